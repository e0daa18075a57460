//! Restores a data directory and a store from a stream.
//!
//! The backup is first unpacked beside the directory's own files and verified to its end; an
//! invalid one leaves nothing behind. Then `restoring` is set, the old files are moved aside, and
//! the new ones take their place. After an interruption the directory is refused by name until the
//! restore is repeated.

use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fs_err as fs;
use fs_err::os::unix::fs::OpenOptionsExt;
use hoist_store::copy;
use hoist_store::url::{self, Address};
use jiff::Timestamp;
use serde::Serialize;

use super::name::{Folder, Name};
use super::read::{MarkedWriter, Root, check_records, marked, unpack};
use super::{BackupError, Contents, Manifest, Summary, check_unused, fill};
use crate::data_dir::DataDir;
use hoist_chassis::secret;

/// Where entries wait until all of them were checked.
const STAGED: &str = "restore.staged";
const STAGED_STORE: &str = "store.jsonl";

/// Files that a restore replaces: records, the site's root, journals, and data derived from
/// records. Artifacts are content-addressed and stay.
const REPLACED: [&str; 4] = ["hoist.redb", "ca", "journal", "roster.snapshot"];

/// Replaced only by others: a backup without secrets takes none away.
const SECRETS: [&str; 2] = ["secrets", "secrets.key"];

/// Where to restore to.
#[derive(Debug)]
pub struct Restore {
    pub data_dir: PathBuf,
    /// Address of the store; see [`hoist_store::url`].
    pub store: String,
    /// Replace existing data.
    pub force: bool,
    pub now: Timestamp,
}

/// Result of a restore.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RestoreReport {
    #[serde(flatten)]
    pub summary: Summary,
    /// The new incarnation of the store.
    pub new_incarnation: String,
    /// Where the files went that were there before.
    pub moved_to: Option<PathBuf>,
}

/// Restores a backup (already decrypted).
pub async fn restore<R>(input: R, target: Restore) -> Result<RestoreReport, BackupError>
where
    R: Read + Send + 'static,
{
    let address: Address = target.store.parse()?;
    let was_there = target.data_dir.exists();
    let dir = Arc::new(DataDir::open_unfinished(&target.data_dir)?);
    let fresh = dir.is_fresh().map_err(BackupError::File)?;
    if !fresh && !dir.is_restoring() && !target.force {
        return Err(BackupError::NotEmpty(target.data_dir));
    }
    if fresh {
        dir.begin_restore().map_err(BackupError::File)?;
    }
    let checked = check(input, &dir, &address, &target).await;
    let (manifest, contents, pin) = match checked {
        Ok(checked) => checked,
        Err(error) => {
            give_up(&dir, fresh, was_there);
            return Err(error);
        }
    };
    let moved_to = if fresh { None } else { move_aside(&dir, target.now)? };
    dir.begin_restore().map_err(BackupError::File)?;
    place(&dir)?;
    let store = url::open(&target.store, dir.path()).await?;
    // An embedded store here can only be the leftover of an earlier attempt.
    let overwrite = target.force || matches!(address, Address::Embedded);
    let export = open_export(&dir.path().join(STAGED)).await?;
    let new_incarnation = fill(store, export, overwrite, "RESTORE").await?;
    remove_dir(&dir.path().join(STAGED)).map_err(BackupError::File)?;
    dir.end_restore().map_err(BackupError::File)?;
    let summary = Summary { manifest, contents, ca_pin: pin };
    Ok(RestoreReport { summary, new_incarnation, moved_to })
}

/// Everything that can go wrong before something is changed.
async fn check<R>(
    input: R,
    dir: &Arc<DataDir>,
    address: &Address,
    target: &Restore,
) -> Result<(Manifest, Contents, Option<String>), BackupError>
where
    R: Read + Send + 'static,
{
    if !matches!(address, Address::Embedded) {
        let store = url::open(&target.store, dir.path()).await?;
        check_unused(store.as_ref(), target.now).await?;
        // A repeated restore finds its own earlier writes.
        if !target.force && !copy::is_unfinished(store.as_ref()).await? {
            copy::check_empty(store.as_ref()).await?;
        }
    }
    let staged = dir.path().join(STAGED);
    let staging = staged.clone();
    let unpacked = tokio::task::spawn_blocking(move || stage(input, &staging)).await;
    let (manifest, contents) =
        unpacked.unwrap_or_else(|died| std::panic::resume_unwind(died.into_panic()))?;
    let copied = copy::check_copy(open_export(&staged).await?).await;
    check_records(&contents, copied)?;
    let pin = Root::read(&staged.join(Folder::Ca.dir())).map_err(BackupError::File)?.pin()?;
    Ok((manifest, contents, pin))
}

/// Unpacks everything below `staged`.
fn stage(mut input: impl Read, staged: &Path) -> Result<(Manifest, Contents), BackupError> {
    remove_dir(staged).map_err(BackupError::File)?;
    secret::ensure_private_dir(staged).map_err(BackupError::File)?;
    let mut export = new_file(&staged.join(STAGED_STORE)).map_err(BackupError::Output)?;
    let unpacked = unpack(&mut input, &mut |name, content| {
        if let Name::Chunk(_) = name {
            return io::copy(content, &mut MarkedWriter(&mut export)).map(drop);
        }
        let path = staged.join(name.path());
        let dir = path.parent().expect("it is below `staged`");
        secret::ensure_dir(dir).map_err(marked)?;
        let mut file = new_file(&path).map_err(marked)?;
        io::copy(content, &mut MarkedWriter(&mut file))?;
        file.sync_all().map_err(marked)
    })?;
    export.sync_all().map_err(BackupError::Output)?;
    Ok(unpacked)
}

/// Puts the staged files where they belong.
fn place(dir: &DataDir) -> Result<(), BackupError> {
    let staged = dir.path().join(STAGED);
    let moved = (|| {
        for place in Folder::ALL {
            let from = staged.join(place.dir());
            if from.is_dir() {
                merge(place, &from, &dir.path().join(place.dir()))?;
            }
        }
        let key = Name::SecretsKey.path();
        if staged.join(&key).is_file() {
            fs::rename(staged.join(&key), dir.path().join(&key))?;
        }
        Ok(())
    })();
    moved.map_err(BackupError::File)
}

fn merge(place: Folder, from: &Path, to: &Path) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    secret::ensure_private_dir(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let path = entry.path();
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            merge(place, &path, &target)?;
            continue;
        }
        let is_public = place == Folder::Ca && target.extension().is_some_and(|it| it == "pem");
        if is_public {
            fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644))?;
        }
        fs::rename(path, target)?;
    }
    fs::File::open(to)?.sync_all()
}

/// Moves replaced files into a directory of their own; nothing is deleted.
fn move_aside(dir: &DataDir, now: Timestamp) -> Result<Option<PathBuf>, BackupError> {
    let aside = dir.path().join(format!("replaced-{}", now.strftime("%Y%m%dT%H%M%SZ")));
    let staged = dir.path().join(STAGED);
    let brought = SECRETS.iter().filter(|name| staged.join(name).exists());
    let names: Vec<_> = REPLACED.iter().chain(brought).collect();
    let there = || names.iter().map(|name| dir.path().join(name)).filter(|path| path.exists());
    if there().next().is_none() || dir.is_restoring() {
        return Ok(None);
    }
    dir.begin_restore().map_err(BackupError::File)?;
    let moved = (|| {
        secret::ensure_private_dir(&aside)?;
        for path in there() {
            fs::rename(&path, aside.join(path.file_name().expect("a file has a name")))?;
        }
        fs::File::open(&aside)?.sync_all()
    })();
    moved.map_err(BackupError::File)?;
    Ok(Some(aside))
}

/// Removes the files made before the backup was refused.
fn give_up(dir: &DataDir, fresh: bool, was_there: bool) {
    let path = dir.path();
    // The error that led here is the one to tell.
    let _ = remove_dir(&path.join(STAGED));
    if fresh {
        dir.abandon();
        if !was_there {
            let _ = fs::remove_dir(path);
        }
    }
}

async fn open_export(staged: &Path) -> Result<tokio::fs::File, BackupError> {
    let file = fs_err::tokio::File::open(staged.join(STAGED_STORE)).await;
    Ok(file.map_err(BackupError::File)?.into_parts().0)
}

fn new_file(path: &Path) -> io::Result<fs::File> {
    fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)
}

fn remove_dir(path: &Path) -> io::Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
