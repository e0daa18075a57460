//! Random texts, digests, and files that only their owner may read.

use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::Path;

use fs_err as fs;
use fs_err::os::unix::fs::OpenOptionsExt;
use sha2::{Digest, Sha256};

/// No letters that look alike, no character that a shell or a double click stops at.
const ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";

/// A random text with 5 bits per character.
pub fn random_text(len: usize) -> String {
    let mut bytes = vec![0_u8; len];
    aws_lc_rs::rand::fill(&mut bytes).expect("the operating system gives random bytes");
    bytes.iter().map(|byte| char::from(ALPHABET[usize::from(byte & 31)])).collect()
}

pub fn sha256(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}

pub fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        write!(text, "{byte:02x}").expect("writing to a string cannot fail");
        text
    })
}

/// Makes the directory (and its parents) if it is not there, readable only by its owner. One that
/// is there keeps its mode: it may be shared on purpose.
pub fn ensure_dir(path: &Path) -> io::Result<()> {
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(|source| {
        io::Error::new(source.kind(), format!("cannot make `{}`: {source}", path.display()))
    })
}

/// As [`ensure_dir`], and removes the access of other users to an existing one.
pub fn ensure_private_dir(path: &Path) -> io::Result<()> {
    ensure_dir(path)?;
    fs::set_permissions(path, std::fs::Permissions::from_mode(0o700))
}

/// Replaces `path` by `content` with mode `mode`: readers see the old file or the new one, and
/// after a power cut one of them is there.
pub fn write_atomic(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    let dir = path.parent().expect("files are written inside the data directory");
    let name = path.file_name().expect("a file has a name").to_string_lossy();
    let temporary = dir.join(format!(".{name}.{}", random_text(8)));
    let written = (|| {
        let mut file =
            fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(&temporary)?;
        file.write_all(content)?;
        file.sync_all()?;
        fs::rename(&temporary, path)?;
        fs::File::open(dir)?.sync_all()
    })();
    if written.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    written
}

/// Removes the access of other users to the file. True when others could read it until now.
pub fn tighten(path: &Path) -> io::Result<bool> {
    let open = fs::metadata(path)?.permissions().mode() & 0o077 != 0;
    if open {
        fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    }
    Ok(open)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_private_file_is_private_and_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("sub").join("key");
        ensure_private_dir(path.parent().unwrap()).unwrap();
        write_atomic(&path, b"one", 0o600).unwrap();
        write_atomic(&path, b"two", 0o600).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"two");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
    }

    #[test]
    fn random_texts_differ() {
        assert_ne!(random_text(40), random_text(40));
        assert_eq!(random_text(7).len(), 7);
    }
}
