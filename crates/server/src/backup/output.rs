//! An output file that appears complete or not at all, readable by its owner only.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use fs_err as fs;
use fs_err::os::unix::fs::OpenOptionsExt;

use super::BackupError;

/// Written beside its place as `<name>.partial`; [`Output::finish`] moves it there. Dropped before
/// that, nothing is left.
#[derive(Debug)]
pub struct Output {
    path: PathBuf,
    partial: PathBuf,
    file: Option<fs::File>,
    replace: bool,
}

impl Output {
    /// Refuses a path that is taken, unless `replace`.
    pub fn create(path: &Path, replace: bool) -> Result<Self, BackupError> {
        let mut partial = path.as_os_str().to_owned();
        partial.push(".partial");
        let mut output =
            Self { path: path.to_owned(), partial: partial.into(), file: None, replace };
        output.check()?;
        match fs::remove_file(&output.partial) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(BackupError::Output(error));
            }
            _ => {}
        }
        // Must not exist before, so that a planted link cannot redirect it.
        let file = fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&output.partial)
            .map_err(BackupError::Output)?;
        output.file = Some(file);
        Ok(output)
    }

    /// Makes it durable and gives it its name.
    pub fn finish(mut self) -> Result<(), BackupError> {
        self.check()?;
        let place = || {
            self.file.as_ref().expect("there until now").sync_all()?;
            fs::rename(&self.partial, &self.path)
        };
        place().map_err(BackupError::Output)?;
        self.file = None;
        let dir = self.path.parent().filter(|dir| !dir.as_os_str().is_empty());
        let dir = fs::File::open(dir.unwrap_or(Path::new(".")));
        dir.and_then(|dir| dir.sync_all()).map_err(BackupError::Output)
    }

    fn check(&self) -> Result<(), BackupError> {
        match fs::symlink_metadata(&self.path) {
            Ok(_) if !self.replace => Err(BackupError::Exists(self.path.clone())),
            Ok(found) if found.is_dir() => Err(BackupError::Exists(self.path.clone())),
            Ok(_) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(BackupError::Output(error)),
        }
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.as_mut().expect("there until it is finished").write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        if self.file.take().is_some() {
            // Nothing more can be done about one that cannot be removed.
            let _ = fs::remove_file(&self.partial);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_file_is_there_whole_or_not_at_all() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("b");
        let mut given_up = Output::create(&path, false).unwrap();
        given_up.write_all(b"half").unwrap();
        drop(given_up);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);

        let mut output = Output::create(&path, false).unwrap();
        output.write_all(b"one").unwrap();
        assert!(!path.exists());
        output.finish().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"one");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);

        assert!(matches!(Output::create(&path, false), Err(BackupError::Exists(_))));
        let mut output = Output::create(&path, true).unwrap();
        output.write_all(b"two").unwrap();
        output.finish().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"two");
    }

    #[test]
    fn a_planted_link_is_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("b");
        let victim = dir.path().join("victim");
        std::os::unix::fs::symlink(&victim, dir.path().join("b.partial")).unwrap();
        let mut output = Output::create(&path, false).unwrap();
        output.write_all(b"x").unwrap();
        output.finish().unwrap();
        assert!(!victim.exists());
    }
}
