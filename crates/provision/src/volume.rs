//! Contents of FAT volumes, as far as plans compare them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::digest::Digest;

/// Size and digest of an existing file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StoredFile {
    pub size: u64,
    pub digest: Digest,
}

impl StoredFile {
    pub fn of(bytes: &[u8]) -> Self {
        Self { size: bytes.len() as u64, digest: Digest::of(bytes) }
    }
}

/// The compared contents of a volume.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Contents {
    pub label: Option<String>,
    pub serial: u32,
    /// Bytes that all files together may have.
    pub capacity: u64,
    pub files: BTreeMap<String, StoredFile>,
}
