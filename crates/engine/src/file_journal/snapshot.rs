//! A snapshot beside a journal file. It only saves time: if it is missing or damaged, the whole
//! journal is read.

use std::io::Write;
use std::path::{Path, PathBuf};

use fs_err::OpenOptions;
use fs_err::os::unix::fs::OpenOptionsExt;
use serde::{Deserialize, Serialize};

use crate::run::Snapshot;

/// First bytes of a snapshot; the last one is the version of the format. A checksum follows.
const MAGIC: [u8; 8] = *b"hoistss\x01";

/// Largest snapshot that is read.
const MAX_SNAPSHOT: u64 = 512 * 1024 * 1024;

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct JournalSnapshot {
    /// Number of journal records in the snapshot.
    pub(super) records: u32,
    /// Length of these records in the journal in bytes, and the CRC-32C of those bytes.
    pub(super) length: u64,
    pub(super) sum: u32,
    pub(super) run: Snapshot,
}

pub(super) fn path_beside(journal: &Path) -> PathBuf {
    journal.with_added_extension("snapshot")
}

/// Writes a snapshot without syncing: the checksum detects an incomplete one.
pub(super) fn save(journal: &Path, kept: &JournalSnapshot) -> std::io::Result<()> {
    let path = path_beside(journal);
    let new = path.with_added_extension("new");
    let body = serde_json::to_vec(kept)?;
    let mut options = OpenOptions::new();
    let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&new)?;
    file.write_all(&[&MAGIC[..], &crc32c::crc32c(&body).to_le_bytes()].concat())?;
    file.write_all(&body)?;
    fs_err::rename(new, path)
}

/// The snapshot beside a journal, if it is intact.
pub(super) fn load(journal: &Path) -> Option<JournalSnapshot> {
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
