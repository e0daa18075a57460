//! The site's key, which the tokens of nodes are made with: `<data-dir>/ca/site.key`. Backups carry
//! it with the rest of `ca/`.

use std::io;
use std::path::{Path, PathBuf};

use fs_err as fs;
use hoist_metadata::SiteKey;
use hoist_metadata::token::KEY_BYTES;
use zeroize::Zeroizing;

use crate::secret;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    #[error("cannot use the site's key")]
    File(#[from] io::Error),
    /// Never replaced silently: nodes hold tokens that were made with it.
    #[error("`{path}` does not have {KEY_BYTES} bytes; restore it from a backup, or remove it")]
    Damaged { path: PathBuf },
}

/// Reads the key, and makes one if there is none.
pub fn open(data_dir: &Path) -> Result<SiteKey, KeyError> {
    let dir = data_dir.join("ca");
    secret::ensure_private_dir(&dir)?;
    let path = dir.join("site.key");
    let bytes = match fs::read(&path) {
        Ok(bytes) => {
            if secret::tighten(&path)? {
                tracing::warn!(path = %path.display(), "others could read the site's key");
            }
            Zeroizing::new(bytes)
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let mut made = Zeroizing::new(vec![0; KEY_BYTES]);
            aws_lc_rs::rand::fill(&mut made).expect("the operating system gives random bytes");
            secret::write_atomic(&path, &made, 0o600)?;
            made
        }
        Err(error) => return Err(error.into()),
    };
    let bytes: &[u8; KEY_BYTES] =
        bytes.as_slice().try_into().map_err(|_| KeyError::Damaged { path })?;
    Ok(SiteKey::new(bytes))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use hoist_model::NodeId;

    use super::*;

    #[test]
    fn a_key_is_made_once_and_is_private() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ca/site.key");
        let token = |dir: &Path| open(dir).unwrap().seed(NodeId::from_bits(1), 0);
        let first = token(dir.path());
        assert_eq!(token(dir.path()), first);
        assert_eq!(fs::read(&path).unwrap().len(), KEY_BYTES);
        let mode = || fs::metadata(&path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(), 0o600);
        fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
        assert_eq!(token(dir.path()), first);
        assert_eq!(mode(), 0o600);
        assert_ne!(token(tempfile::tempdir().unwrap().path()), first, "every site has its own");
    }

    #[test]
    fn a_damaged_key_is_not_replaced() {
        let dir = tempfile::tempdir().unwrap();
        open(dir.path()).unwrap();
        let path = dir.path().join("ca/site.key");
        for wrong in [&[0; KEY_BYTES - 1][..], &[0; KEY_BYTES + 1], b""] {
            fs::write(&path, wrong).unwrap();
            let error = open(dir.path()).unwrap_err().to_string();
            assert!(error.contains("restore it from a backup"), "{error}");
            assert_eq!(fs::read(&path).unwrap(), wrong);
        }
    }
}
