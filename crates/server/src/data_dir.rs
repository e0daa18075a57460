//! The data directory: created by hoist, private, and used by one process at a time.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use fs_err as fs;
use serde::{Deserialize, Serialize};

use hoist_chassis::secret;

/// What marks a directory as ours.
const MARKER: &str = "hoist.json";
/// Tells local commands where the server is.
const RUNTIME: &str = "server.json";
/// Held while a server runs.
const LOCK: &str = "lock";

/// Settings may lie here before anything else does.
const SETTINGS: &str = "hoist.toml";
/// There while a backup is being restored, and after that was interrupted.
const RESTORING: &str = "restoring";

/// The layout of the directory that this version writes.
const FORMAT: u32 = 1;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DataDirError {
    #[error("cannot use the data directory")]
    Io(#[from] io::Error),
    #[error("`{path}` has files in it, but is not a data directory of hoist; name an empty one")]
    Foreign { path: PathBuf },
    #[error("`{path}` has format {found}; this version of hoist knows formats up to {FORMAT}")]
    Newer { path: PathBuf, found: u32 },
    #[error("`{path}` is in use by another hoist; stop that one first, or name another directory")]
    InUse { path: PathBuf },
    #[error(
        "a backup was not restored to its end in `{path}`; repeat that, or remove the directory"
    )]
    Restoring { path: PathBuf },
    #[error("`{path}` is not a data directory of hoist")]
    Missing { path: PathBuf },
}

#[derive(Debug, Serialize, Deserialize)]
struct Marker {
    hoist: u32,
}

/// What `<data-dir>/server.json` says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Runtime {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls_url: Option<String>,
    /// The site's CA certificate.
    pub ca: PathBuf,
    pub pid: u32,
}

/// An opened data directory. No other process can open it until this is dropped.
#[derive(Debug)]
pub struct DataDir {
    path: PathBuf,
    _lock: std::fs::File,
}

impl DataDir {
    /// Opens the directory, and makes it if it is not there.
    pub fn open(path: &Path) -> Result<Self, DataDirError> {
        let opened = Self::open_unfinished(path)?;
        if path.join(RESTORING).exists() {
            return Err(DataDirError::Restoring { path: path.to_owned() });
        }
        Ok(opened)
    }

    /// Whether there is a directory of ours.
    pub fn is_there(path: &Path) -> bool {
        path.join(MARKER).exists()
    }

    /// Opens a directory that is there, and makes none.
    pub fn open_existing(path: &Path) -> Result<Self, DataDirError> {
        if !Self::is_there(path) {
            return Err(DataDirError::Missing { path: path.to_owned() });
        }
        Self::open(path)
    }

    /// Opens it also while a restore is not finished, for the one that finishes it.
    pub(crate) fn open_unfinished(path: &Path) -> Result<Self, DataDirError> {
        secret::ensure_private_dir(path)?;
        check_marker(path)?;
        let lock = fs::File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(path.join(LOCK))?
            .into_parts()
            .0;
        match lock.try_lock() {
            Ok(()) => Ok(Self { path: path.to_owned(), _lock: lock }),
            Err(std::fs::TryLockError::WouldBlock) => {
                Err(DataDirError::InUse { path: path.to_owned() })
            }
            Err(std::fs::TryLockError::Error(error)) => Err(error.into()),
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn last_good(&self) -> PathBuf {
        self.path.join("roster.snapshot")
    }

    /// Whether there is anything in it but what opening it made, and a restore that was begun.
    pub(crate) fn is_fresh(&self) -> io::Result<bool> {
        for entry in fs::read_dir(&self.path)? {
            let name = entry?.file_name();
            if ![MARKER, LOCK, SETTINGS].iter().any(|ours| name == *ours) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    pub(crate) fn is_restoring(&self) -> bool {
        self.path.join(RESTORING).exists()
    }

    /// Blocks every other open until [`Self::end_restore`].
    pub(crate) fn begin_restore(&self) -> io::Result<()> {
        secret::write_atomic(&self.path.join(RESTORING), b"", 0o600)
    }

    pub(crate) fn end_restore(&self) -> io::Result<()> {
        fs::File::open(&self.path)?.sync_all()?;
        fs::remove_file(self.path.join(RESTORING))?;
        fs::File::open(&self.path)?.sync_all()
    }

    /// Removes hoist's marks from a directory that was fresh.
    pub(crate) fn abandon(&self) {
        for ours in [RESTORING, MARKER, LOCK] {
            // The caller reports a more important error.
            let _ = fs::remove_file(self.path.join(ours));
        }
    }

    /// Tells local commands where the server listens, until [`Self::withdraw`].
    pub fn announce(&self, runtime: &Runtime) -> io::Result<()> {
        let text = serde_json::to_vec_pretty(runtime)?;
        let path = self.path.join(RUNTIME);
        match write_atomically(&path, &text) {
            // On a full disk there is no room for a second file.
            Err(error) if error.kind() == io::ErrorKind::StorageFull => overwrite(&path, &text),
            written => written,
        }
    }

    pub fn withdraw(&self) {
        // A leftover does no harm: it names a server that does not answer.
        let _ = fs::remove_file(self.path.join(RUNTIME));
    }
}

fn check_marker(path: &Path) -> Result<(), DataDirError> {
    let marker = path.join(MARKER);
    match fs::read(&marker) {
        Ok(text) => match serde_json::from_slice::<Marker>(&text) {
            Ok(Marker { hoist }) if hoist <= FORMAT => Ok(()),
            Ok(Marker { hoist }) => {
                Err(DataDirError::Newer { path: path.to_owned(), found: hoist })
            }
            Err(_) => Err(DataDirError::Foreign { path: path.to_owned() }),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            for entry in fs::read_dir(path)? {
                if entry?.file_name() != SETTINGS {
                    return Err(DataDirError::Foreign { path: path.to_owned() });
                }
            }
            let text = serde_json::to_vec(&Marker { hoist: FORMAT }).expect("a number");
            Ok(write_atomically(&marker, &text)?)
        }
        Err(error) => Err(error.into()),
    }
}

fn write_atomically(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let temporary = path.with_extension("new");
    let write = || {
        let mut file = fs::File::create(&temporary)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&temporary, path)
    };
    write().inspect_err(|_| drop(fs::remove_file(&temporary)))
}

/// Writes into the blocks that the file has already.
fn overwrite(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = fs::File::options().write(true).open(path)?;
    file.write_all(bytes)?;
    file.set_len(bytes.len() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directory_must_be_ours_or_empty() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("data");
        let first = DataDir::open(&path).unwrap();
        assert!(matches!(DataDir::open(&path), Err(DataDirError::InUse { .. })));
        drop(first);
        DataDir::open(&path).expect("free again");

        std::fs::write(path.join(MARKER), r#"{"hoist": 9}"#).unwrap();
        assert!(matches!(DataDir::open(&path), Err(DataDirError::Newer { found: 9, .. })));

        let settled = scratch.path().join("settled");
        std::fs::create_dir(&settled).unwrap();
        std::fs::write(settled.join(SETTINGS), "").unwrap();
        DataDir::open(&settled).expect("settings alone do not make it somebody else's");

        let foreign = scratch.path().join("home");
        std::fs::create_dir(&foreign).unwrap();
        std::fs::write(foreign.join("letter.txt"), "dear").unwrap();
        assert!(matches!(DataDir::open(&foreign), Err(DataDirError::Foreign { .. })));
        assert_eq!(std::fs::read_dir(&foreign).unwrap().count(), 1, "nothing was added");
    }
}
