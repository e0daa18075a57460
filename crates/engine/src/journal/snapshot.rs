//! A snapshot beside a journal in a file. It saves reading; whatever is wrong with it, the journal
//! says everything.

use std::io::Write;
use std::path::{Path, PathBuf};

use fs_err::OpenOptions;
use fs_err::os::unix::fs::OpenOptionsExt;
use serde::{Deserialize, Serialize};

use crate::run::Snapshot;

/// What it begins with; the last byte is the version of the format. A checksum comes next.
const MAGIC: [u8; 8] = *b"hoistss\x01";

/// Largest snapshot that is read.
const MAX_SNAPSHOT: u64 = 512 * 1024 * 1024;

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Kept {
    /// Records of the journal that it is made of.
    pub(super) records: u32,
    /// Bytes of the journal that they are in, and the CRC-32C of those.
    pub(super) length: u64,
    pub(super) sum: u32,
    pub(super) run: Snapshot,
}

pub(super) fn path_beside(journal: &Path) -> PathBuf {
    journal.with_added_extension("snapshot")
}

/// It need not be durable: half of one is none.
pub(super) fn save(journal: &Path, kept: &Kept) -> std::io::Result<()> {
    let path = path_beside(journal);
    let new = path.with_added_extension("new");
    let body = serde_json::to_vec(kept)?;
    let mut options = OpenOptions::new();
    let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&new)?;
    file.write_all(&[&MAGIC[..], &crc32c::crc32c(&body).to_le_bytes()].concat())?;
    file.write_all(&body)?;
    fs_err::rename(new, path)
}

/// The one beside a journal, if it is whole.
pub(super) fn load(journal: &Path) -> Option<Kept> {
    let path = path_beside(journal);
    if fs_err::metadata(&path).ok()?.len() > MAX_SNAPSHOT {
        return None;
    }
    let bytes = fs_err::read(&path).ok()?;
    let (sum, body) = bytes.strip_prefix(&MAGIC)?.split_at_checked(4)?;
    if crc32c::crc32c(body).to_le_bytes() != sum {
        return None;
    }
    serde_json::from_slice(body).ok()
}
