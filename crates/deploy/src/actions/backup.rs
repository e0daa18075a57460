//! Backups of paths that a step changes. They stay on the machine until they expire.
//!
//! Each attempt has a directory. It holds a list with one line for every path, written before the
//! path is changed; copies of the replaced files; and, after an attempt that finished, the state in
//! which it left each path. Contents stay on the machine: a receipt holds the directory and a
//! checksum of that state.

use std::collections::{BTreeSet, HashMap};
use std::fmt::Write as _;
use std::io::{self, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use fs_err::os::unix::fs::OpenOptionsExt as _;
use hoist_engine::action::{Ctx, Failure, UndoOutcome};
use hoist_engine::plan::AppliedAttempt;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::blocks::{Blocks, Until};
use super::{exit, io_error, place};

const LIST: &str = "list";
/// The state in which a finished attempt left each path.
const LEFT: &str = "left";
/// Marks an attempt that was undone.
const UNDONE: &str = "undone";

pub(super) struct Backup<'a> {
    dir: PathBuf,
    until: Until<'a>,
    /// Where in the list the line of each path begins.
    lines: Vec<u64>,
    list: Option<fs_err::File>,
}

#[derive(Serialize, Deserialize)]
struct BackupEntry {
    path: PathBuf,
    was: OriginalState,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum OriginalState {
    Nothing,
    Directory(Access),
    Link(PathBuf),
    File { copy: PathBuf, access: Access },
}

#[derive(Clone, Copy, PartialEq, Serialize, Deserialize)]
struct Access {
    mode: u32,
    uid: u32,
    gid: u32,
}

impl<'a> Backup<'a> {
    /// With an empty list, which says of an attempt that ends badly that it has changed nothing yet.
    pub(super) fn new(ctx: &Ctx<'a>) -> Self {
        let dir = place::own("backup", ctx);
        let until = Until::of(ctx);
        let mut backup = Self { dir, until, lines: Vec::new(), list: None };
        // Only who changes something has to have one.
        let _ = backup.make();
        backup
    }

    /// Backs up a path. The caller must call this before it changes the path.
    pub(super) fn keep(&mut self, path: &Path) -> io::Result<()> {
        if let Some(copy) = self.note(path)? {
            copy.sync_data()?;
        }
        // Whatever becomes of the machine, it was kept before it was changed.
        self.list.as_ref().expect("just made").sync_data()?;
        let above = self.dir.parent().filter(|_| self.lines.len() == 1);
        [Some(self.dir.as_path()), above]
            .into_iter()
            .flatten()
            .try_for_each(|dir| fs_err::File::open(dir)?.sync_all())
    }

    /// The same for many paths at once, none of which is changed meanwhile. Gives the number of the
    /// first one.
    pub(super) fn keep_all(&mut self, paths: &[PathBuf]) -> io::Result<usize> {
        self.make()?;
        let first = self.lines.len();
        let kept = paths.iter().try_for_each(|path| self.note(path).map(drop)).and_then(|()| {
            // One for all of them: three for each would take most of the time.
            Ok(rustix::fs::syncfs(self.list.as_ref().expect("just made"))?)
        });
        if kept.is_err() {
            self.forget_from(first);
        }
        kept.map(|()| first)
    }

    /// Those from this number on were not changed, and what becomes of them now is not ours.
    pub(super) fn forget_from(&mut self, number: usize) {
        if let Some((list, end)) = self.list.as_mut().zip(self.lines.get(number)) {
            // An undo would otherwise restore these paths.
            let _ = list.set_len(*end).and_then(|()| list.seek(io::SeekFrom::End(0)));
            self.lines.truncate(number);
        }
    }

    /// Adds a path to the list. Neither the line nor the copy is durable on return.
    fn note(&mut self, path: &Path) -> io::Result<Option<fs_err::File>> {
        self.make()?;
        let mut copied = None;
        let was = match path.symlink_metadata() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => OriginalState::Nothing,
            Err(error) => return Err(error),
            Ok(meta) if meta.is_dir() => OriginalState::Directory(Access::of(&meta)),
            Ok(meta) if meta.is_symlink() => OriginalState::Link(fs_err::read_link(path)?),
            Ok(meta) if meta.is_file() => {
                let copy = self.dir.join(self.lines.len().to_string());
                let mut to = private(&copy)?;
                to.set_len(0)?;
                io::copy(&mut Blocks::open(path, self.until)?, &mut to)?;
                copied = Some(to);
                OriginalState::File { copy, access: Access::of(&meta) }
            }
            Ok(_) => {
                let odd = format!("`{}` is no file, directory or link", path.display());
                return Err(io::Error::other(odd));
            }
        };
        let mut line = serde_json::to_vec(&BackupEntry { path: path.to_owned(), was })
            .map_err(io::Error::other)?;
        line.push(b'\n');
        let list = self.list.as_mut().expect("just made");
        let begins = list.stream_position()?;
        list.write_all(&line)?;
        self.lines.push(begins);
        Ok(copied)
    }

    /// Makes the directories that a path needs, and keeps that they were not there.
    pub(super) fn make_parents(&mut self, path: &Path) -> io::Result<()> {
        let parents = path.ancestors().skip(1).take_while(|dir| dir.symlink_metadata().is_err());
        let missing: Vec<&Path> = parents.collect();
        for dir in missing.into_iter().rev() {
            self.keep(dir)?;
            fs_err::create_dir(dir)?;
        }
        Ok(())
    }

    /// The number of the latest backup.
    pub(super) fn last(&self) -> usize {
        self.lines.len().saturating_sub(1)
    }

    /// The temporary path next to `path` where its new content is built before the rename.
    pub(super) fn beside(&self, path: &Path, number: usize) -> io::Result<PathBuf> {
        beside(path, &self.dir, number)
    }

    fn make(&mut self) -> io::Result<()> {
        if self.list.is_some() {
            return Ok(());
        }
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.dir)?;
        place::remove_old(self.dir.parent().unwrap_or(&self.dir));
        let path = self.dir.join(LIST);
        // The same attempt is begun once; if it was not, all that was there before is still needed.
        let there = match fs_err::read_to_string(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            there => there?,
        };
        let mut list = private(&path)?;
        let whole = whole_lines(&there);
        list.set_len(whole.len() as u64)?;
        list.seek(io::SeekFrom::End(0))?;
        let mut begins = 0;
        for line in whole.split_inclusive('\n') {
            self.lines.push(begins);
            begins += line.len() as u64;
        }
        self.list = Some(list);
        Ok(())
    }

    /// The receipt for an undo, or null if nothing was changed. It has a checksum of the final
    /// state, which reveals later changes by others.
    pub(super) fn receipt(self) -> Result<Value, Failure> {
        if self.lines.is_empty() {
            // There is nothing that it could say which the end of the attempt does not.
            let _ = fs_err::remove_dir_all(&self.dir);
            return Ok(Value::Null);
        }
        let left = self.write_left().map_err(|error| io_error(&error))?;
        Ok(json!({ "backup": self.dir, "left": left }))
    }

    fn write_left(&self) -> io::Result<String> {
        let list = fs_err::read_to_string(self.dir.join(LIST))?;
        let mut paths = BTreeSet::new();
        let mut text = String::new();
        for line in whole_lines(&list).lines() {
            let BackupEntry { path, .. } = serde_json::from_str(line)?;
            if paths.insert(path.clone()) {
                let left = FinalState::at(&path, self.until)?;
                text.push_str(&serde_json::to_string(&FinalStateAt { path, left })?);
                text.push('\n');
            }
        }
        let mut file = private(&self.dir.join(LEFT))?;
        file.set_len(0)?;
        file.write_all(text.as_bytes())?;
        sum(text.as_bytes())
    }
}

#[derive(Serialize, Deserialize)]
struct FinalStateAt {
    path: PathBuf,
    left: FinalState,
}

/// The state of a path.
#[derive(PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum FinalState {
    Nothing,
    /// Entries and access are not compared, because an undo removes a directory only if it is
    /// empty.
    Directory,
    Link(PathBuf),
    File {
        sum: String,
        access: Access,
    },
    Other,
}

impl FinalState {
    fn at(path: &Path, until: Until<'_>) -> io::Result<Self> {
        Ok(match path.symlink_metadata() {
            Err(error) if is_missing(&error) => Self::Nothing,
            Err(error) => return Err(error),
            Ok(meta) if meta.is_dir() => Self::Directory,
            Ok(meta) if meta.is_symlink() => Self::Link(fs_err::read_link(path)?),
            Ok(meta) if meta.is_file() => {
                let sum = sum(Blocks::open(path, until)?)?;
                Self::File { sum, access: Access::of(&meta) }
            }
            Ok(_) => Self::Other,
        })
    }

    /// Whether it is there again already: taking back may be begun more than once.
    fn is(&self, was: &OriginalState, until: Until<'_>) -> io::Result<bool> {
        Ok(match (self, was) {
            (Self::Nothing, OriginalState::Nothing)
            | (Self::Directory, OriginalState::Directory(_)) => true,
            (Self::Link(target), OriginalState::Link(other)) => target == other,
            (Self::File { sum: now, .. }, OriginalState::File { copy, .. }) => {
                *now == sum(Blocks::open(copy, until)?)?
            }
            _ => false,
        })
    }
}

fn sum(mut from: impl io::Read) -> io::Result<String> {
    let mut sum = Sha256::new();
    let mut block = vec![0; 64 * 1024];
    loop {
        match from.read(&mut block)? {
            0 => break,
            count => sum.update(&block[..count]),
        }
    }
    let mut text = String::new();
    for byte in sum.finalize() {
        write!(text, "{byte:02x}").expect("writing to memory");
    }
    Ok(text)
}

fn is_missing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

impl Access {
    fn of(meta: &std::fs::Metadata) -> Self {
        Self { mode: meta.permissions().mode() & 0o7777, uid: meta.uid(), gid: meta.gid() }
    }

    fn give(self, file: &std::fs::File) -> io::Result<()> {
        std::os::unix::fs::fchown(file, Some(self.uid), Some(self.gid))?;
        file.set_permissions(PermissionsExt::from_mode(self.mode))
    }
}

/// Opens a file for writing that only the owner can read.
fn private(path: &Path) -> io::Result<fs_err::File> {
    fs_err::OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(path)
}

/// A line that was cut short was written before anything was done.
fn whole_lines(list: &str) -> &str {
    list.rfind('\n').map_or("", |end| &list[..=end])
}

fn beside(path: &Path, backup: &Path, at: usize) -> io::Result<PathBuf> {
    let name = backup.file_name().unwrap_or_default().to_string_lossy();
    let parent = path.parent().ok_or_else(|| io::Error::other("a path without a directory"))?;
    Ok(parent.join(format!(".{name}.{at}")))
}

/// Undoes an attempt, the last change first. An attempt that did not finish has no receipt; its
/// backups are found by the attempt's name.
pub(super) fn restore(made: &AppliedAttempt, ctx: &Ctx<'_>) -> Result<UndoOutcome, Failure> {
    let dir = if made.receipt.is_null() {
        place::of("backup", &made.attempt, ctx)
    } else if let Some(dir) = made.receipt["backup"].as_str() {
        PathBuf::from(dir)
    } else {
        let reason = "its receipt names no backup".to_owned();
        return Ok(UndoOutcome::NotPossible { reason });
    };
    if dir.parent() != place::own("backup", ctx).parent() || dir.file_name().is_none() {
        return Err(exit(format!("`{}` is no backup of this machine", dir.display())));
    }
    let list = match fs_err::read_to_string(dir.join(LIST)) {
        // Every path is backed up before it is changed, so an attempt without backups changed
        // nothing.
        Err(error)
            if error.kind() == io::ErrorKind::NotFound
                && made.receipt.is_null()
                && place::is_kept_still(&made.attempt) =>
        {
            return Ok(UndoOutcome::Undone);
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let reason = format!("no backup of its changes in `{}`", dir.display());
            return Ok(UndoOutcome::NotPossible { reason });
        }
        list => list.map_err(|error| io_error(&error))?,
    };
    let until = Until::of(ctx);
    let damaged = |error| exit(format!("the backup {} is damaged: {error}", dir.display()));
    let kept: Vec<BackupEntry> = whole_lines(&list)
        .lines()
        .map(serde_json::from_str)
        .collect::<Result<_, _>>()
        .map_err(damaged)?;
    let is_looked_at = !made.over_changes && !dir.join(UNDONE).exists();
    if let Some(sum) = made.receipt["left"].as_str().filter(|_| is_looked_at) {
        let changed = changed_since(&dir, sum, &kept, until).map_err(|error| io_error(&error))?;
        if let Some(what) = changed {
            let reason = format!(
                "{what}; check it, then restore the content from before the step with \
                 `--over-changes`"
            );
            return Ok(UndoOutcome::NotPossible { reason });
        }
    }
    for (at, kept) in kept.iter().enumerate().rev() {
        until.look()?;
        let new = beside(&kept.path, &dir, at);
        new.and_then(|new| restore_entry(kept, &new, until)).map_err(|error| io_error(&error))?;
    }
    private(&dir.join(UNDONE)).map_err(|error| io_error(&error))?;
    Ok(UndoOutcome::Undone)
}

/// The paths that others changed after the attempt.
fn changed_since(
    dir: &Path,
    expected: &str,
    kept: &[BackupEntry],
    until: Until<'_>,
) -> io::Result<Option<String>> {
    let path = dir.join(LEFT);
    let text = match fs_err::read(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        text => text?,
    };
    if sum(text.as_slice())? != expected {
        let path = path.display();
        return Ok(Some(format!("the final state is unknown: `{path}` is damaged")));
    }
    let mut before: HashMap<&Path, Vec<&OriginalState>> = HashMap::new();
    for BackupEntry { path, was } in kept {
        before.entry(path).or_default().push(was);
    }
    for line in text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        let FinalStateAt { path, left } = serde_json::from_slice(line)?;
        let now = FinalState::at(&path, until)?;
        if now == left {
            continue;
        }
        let mut is_back = false;
        for was in before.get(path.as_path()).into_iter().flatten() {
            is_back |= now.is(was, until)?;
        }
        if !is_back {
            return Ok(Some(format!("`{}` was changed since the step left it", path.display())));
        }
    }
    Ok(None)
}

/// `new` may be there from an attempt, here or on the way back, that was cut short.
fn restore_entry(
    BackupEntry { path, was }: &BackupEntry,
    new: &Path,
    until: Until<'_>,
) -> io::Result<()> {
    remove(new)?;
    match was {
        OriginalState::Directory(access) => {
            match fs_err::create_dir(path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                made => made?,
            }
            access.give(fs_err::File::open(path)?.file())
        }
        OriginalState::Nothing => match remove(path) {
            // Others added entries, and this step must not remove them.
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => Ok(()),
            removed => removed,
        },
        OriginalState::Link(target) => {
            remove(path)?;
            fs_err::os::unix::fs::symlink(target, path)
        }
        OriginalState::File { copy, access } => {
            let parent =
                path.parent().ok_or_else(|| io::Error::other("a path without a directory"))?;
            fs_err::create_dir_all(parent)?;
            let mut to = private(new)?;
            io::copy(&mut Blocks::open(copy, until)?, &mut to)?;
            access.give(to.file())?;
            to.sync_data()?;
            if path.is_dir() && !path.is_symlink() {
                fs_err::remove_dir(path)?;
            }
            fs_err::rename(new, path)
        }
    }
}

/// Whatever it is; nothing is fine as well.
pub(super) fn remove(path: &Path) -> io::Result<()> {
    let removed = match path.symlink_metadata() {
        Ok(meta) if meta.is_dir() => fs_err::remove_dir(path),
        _ => fs_err::remove_file(path),
    };
    match removed {
        Err(error)
            if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) =>
        {
            Ok(())
        }
        removed => removed,
    }
}
