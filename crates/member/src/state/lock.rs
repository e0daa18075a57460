//! Locks of the state directory. The kernel releases a lock when its process ends, and the lock
//! files are never removed: two processes must never lock different files of the same name.

use std::fs::TryLockError;
use std::io::{Read, Seek, Write};
use std::path::Path;

use fs_err::File;

use super::StateError;

/// A lock file names its holder in one line.
const MAX_HOLDER: u64 = 200;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LockKind {
    /// For commands that change the membership.
    Operation,
    /// For the daemon. Two daemons would be two sessions of one node, as those of a cloned disk.
    Daemon,
}

/// Held until it is dropped.
#[derive(Debug)]
pub struct StateLock {
    _file: File,
}

pub(super) fn take(dir: &Path, kind: LockKind, operation: &str) -> Result<StateLock, StateError> {
    let path = dir.join(match kind {
        LockKind::Operation => "lock",
        LockKind::Daemon => "daemon.lock",
    });
    let unusable = |source| StateError::Unusable { path: path.clone(), source };
    let mut options = fs_err::OpenOptions::new();
    fs_err::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let options = options.read(true).write(true).create(true).truncate(false);
    let mut file = options.open(&path).map_err(unusable)?;
    match file.file().try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let mut holder = String::new();
            // The name of the holder is for people; the lock counts without it.
            let _ = (&mut file).take(MAX_HOLDER).read_to_string(&mut holder);
            let holder = holder.lines().next().unwrap_or("another process").to_owned();
            return Err(StateError::Locked { path, holder });
        }
        Err(TryLockError::Error(source)) => return Err(unusable(source)),
    }
    let holder = format!("{operation} (process {})\n", std::process::id());
    // On a full disk the lock holds without the name of its holder.
    let _ = file
        .file()
        .set_len(0)
        .and_then(|()| file.rewind())
        .and_then(|()| file.write_all(holder.as_bytes()));
    Ok(StateLock { _file: file })
}
