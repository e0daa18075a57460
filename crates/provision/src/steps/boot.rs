//! Steps for boot files, boot code and firmware variables.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::boot_entries::Changes;
use crate::digest::Digest;
use crate::document::Id;

pub const NAME: &str = "boot";

/// Largest kernel, initramfs or loader.
pub const MAX_FILE: u64 = 512 * 1024 * 1024;

/// One step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case", deny_unknown_fields)]
pub enum Task {
    /// Writes a file into a volume.
    Put { disk: Id, partition: Id, range: Range<u64>, path: String, source: Source },
    /// Writes the core of GRUB into its partition, and its boot code into the first sector.
    Grub { disk: Id, partition: Id, range: Range<u64>, boot: RemoteFile, core: RemoteFile },
    /// Sets the firmware variables.
    Remember { changes: Changes },
}

/// The content of a boot file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    Fetched(RemoteFile),
    Text(String),
}

impl Source {
    pub fn digest(&self) -> Digest {
        match self {
            Self::Fetched(file) => file.digest,
            Self::Text(text) => Digest::of(text.as_bytes()),
        }
    }
}

/// A file to fetch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RemoteFile {
    pub sources: Vec<String>,
    pub digest: Digest,
}
