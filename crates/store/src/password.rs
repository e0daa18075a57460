//! The password of an account on a store's server, in a file.
//!
//! The file is read for every login, so that a changed password needs no restart.

use std::io::Read;
use std::path::PathBuf;

use secrecy::SecretString;

use crate::StoreError;

/// Longest password file; passwords have a few dozen characters.
const MAX_BYTES: u64 = 64 * 1024;

#[derive(Debug, Clone)]
pub struct PasswordFile(PathBuf);

/// Names the file, never its content.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct PasswordError(String);

impl From<PasswordError> for StoreError {
    fn from(error: PasswordError) -> Self {
        Self::Refused { detail: error.0 }
    }
}

impl PasswordFile {
    /// The file is read for each connection. It may be missing now: that must not keep a controller
    /// from serving its last-good copy.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self(path.into())
    }

    pub(crate) fn read(&self) -> Result<SecretString, PasswordError> {
        let refused = |reason: String| {
            PasswordError(format!("`password-file={}`: {reason}", self.0.display()))
        };
        let mut text = String::new();
        let opened = std::fs::File::open(&self.0);
        opened
            .and_then(|file| file.take(MAX_BYTES + 1).read_to_string(&mut text))
            .map_err(|error| refused(error.to_string()))?;
        if text.len() as u64 > MAX_BYTES {
            return Err(refused(format!("it is larger than {MAX_BYTES} bytes")));
        }
        let line = text.strip_suffix('\n').unwrap_or(&text);
        Ok(SecretString::from(line.strip_suffix('\r').unwrap_or(line)))
    }
}

#[cfg(test)]
mod tests {
    use secrecy::ExposeSecret;

    use super::*;

    #[test]
    fn password_is_the_line_of_a_small_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("password");
        let file = PasswordFile::new(&path);
        assert!(file.read().unwrap_err().to_string().contains("password-file="));
        let most = usize::try_from(MAX_BYTES).unwrap();
        std::fs::write(&path, "x".repeat(most)).unwrap();
        for text in ["sesame", "sesame\n", "sesame\r\n"] {
            std::fs::write(&path, text).unwrap();
            assert_eq!(file.read().unwrap().expose_secret(), "sesame", "{text:?}");
        }
        std::fs::write(&path, "x".repeat(most + 1)).unwrap();
        assert!(file.read().unwrap_err().to_string().contains("larger"));
    }
}
