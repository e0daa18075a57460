//! A new file for a secret, made before the secret is: one that could not be kept is never made.

use std::io::Write;
use std::path::{Path, PathBuf};

use crate::failure::Failure;

/// Removed again if nothing is put into it.
#[derive(Debug)]
pub(crate) struct SecretFile {
    path: PathBuf,
    file: fs_err::File,
    is_kept: bool,
}

impl SecretFile {
    /// For its owner only.
    pub(crate) fn create(path: &Path) -> Result<Self, Failure> {
        check_new(path)?;
        let mut file = fs_err::OpenOptions::new();
        fs_err::os::unix::fs::OpenOptionsExt::mode(&mut file, 0o600);
        let file = file.write(true).create_new(true).open(path).map_err(Failure::File)?;
        Ok(Self { path: path.to_owned(), file, is_kept: false })
    }

    pub(crate) fn keep(mut self, secret: &str) -> Result<(), Failure> {
        // From here on it may hold a part of the secret; that is for the reader to see.
        self.is_kept = true;
        self.file.write_all(secret.as_bytes()).map_err(Failure::File)?;
        self.file.write_all(b"\n").map_err(Failure::File)?;
        self.file.sync_all().map_err(Failure::File)
    }
}

impl Drop for SecretFile {
    fn drop(&mut self) {
        if !self.is_kept {
            // The file is empty; the caller learns the reason.
            let _ = fs_err::remove_file(&self.path);
        }
    }
}

/// Whether one could be made, as far as that can be seen.
pub(crate) fn check_new(path: &Path) -> Result<(), Failure> {
    if !path.exists() {
        return Ok(());
    }
    Err(Failure::refused(format!("`{}` exists already", path.display()))
        .with_hint("an existing file is never overwritten by a secret"))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_secret_is_written_for_its_owner_only() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t");
        SecretFile::create(&path).unwrap().keep("hoist_a_b").unwrap();
        assert_eq!(fs_err::read_to_string(&path).unwrap(), "hoist_a_b\n");
        assert_eq!(fs_err::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(SecretFile::create(&path).is_err(), "nothing is written over");
    }

    #[test]
    fn unused_secret_file_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t");
        drop(SecretFile::create(&path).unwrap());
        assert!(!path.exists());
        assert!(SecretFile::create(&dir.path().join("none/t")).is_err());
    }
}
