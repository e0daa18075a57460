//! Durable changes of single files: a reader sees the old content or the new one, also after a
//! power loss.

use std::fs::Permissions;
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::Path;

use fs_err as fs;
use fs_err::os::unix::fs::OpenOptionsExt;

/// The beginning of the name of a file that is being written.
const TEMPORARY: &str = ".new-";

pub(super) fn create_private_dir(path: &Path) -> io::Result<()> {
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path)?;
    fs::set_permissions(path, Permissions::from_mode(0o700))
}

/// Unlike `Path::exists`, an error is not an absent file.
pub(super) fn exists(path: &Path) -> io::Result<bool> {
    path.try_exists()
}

/// The content; `None` if the file does not exist.
pub(super) fn read(path: &Path, limit: u64) -> io::Result<Option<Vec<u8>>> {
    let file = match fs::File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut content = Vec::new();
    file.take(limit + 1).read_to_end(&mut content)?;
    if content.len() as u64 > limit {
        let message = format!("the file has more than {limit} bytes");
        return Err(io::Error::new(io::ErrorKind::InvalidData, message));
    }
    Ok(Some(content))
}

/// Replaces the file. Only root may read it.
pub(super) fn write(path: &Path, content: &[u8]) -> io::Result<()> {
    let dir = parent(path)?;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let temporary = dir.join(format!("{TEMPORARY}{name}-{}", std::process::id()));
    let written = (|| {
        let mut options = fs::OpenOptions::new();
        let mut file =
            options.write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
        file.write_all(content)?;
        file.sync_all()?;
        fs::rename(&temporary, path)?;
        fs::File::open(dir)?.sync_all()
    })();
    if written.is_err() {
        // On a full disk its space is needed; otherwise the next operation removes it.
        let _ = fs::remove_file(&temporary);
    }
    written
}

/// Removes the file, if it exists.
pub(super) fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Ok(()) => fs::File::open(parent(path)?)?.sync_all(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

/// Removes files that a process left while it wrote them. The caller must hold the lock.
pub(super) fn remove_temporary(dir: &Path) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_name().as_encoded_bytes().starts_with(TEMPORARY.as_bytes()) {
            remove(&entry.path())?;
        }
    }
    Ok(())
}

fn parent(path: &Path) -> io::Result<&Path> {
    path.parent().ok_or_else(|| io::Error::other("a file of the state has a directory"))
}
