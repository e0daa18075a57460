//! Steps for images.

use std::ops::Range;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::digest::Digest;
use crate::document::{Compression, Id, ImageFormat, ImageTable, SecretRef};

pub const NAME: &str = "images";

/// One step: all of an image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Task {
    pub image: Id,
    /// The disk, or the stacked device.
    pub disk: Id,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_stacked: bool,
    /// The PARTUUID, or the GUID of the table for an image of a whole disk.
    pub partuuid: Uuid,
    pub range: Range<u64>,
    pub sources: Vec<String>,
    #[serde(default, skip_serializing_if = "is_raw")]
    pub format: ImageFormat,
    pub compression: Compression,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<Digest>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unpacked_digest: Option<Digest>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<SecretRef>,
    /// The URL and the digest of the chunk manifest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub manifest: Option<(String, Digest)>,
    /// The declared table of an image of a whole disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub table: Option<ImageTable>,
}

/// The journal entry of a written image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Receipt {
    pub image: Id,
    /// The fingerprint of the task.
    pub task: Digest,
    pub bytes: u64,
    /// Bytes of these that were zeros, and not written as data.
    pub zeros: u64,
    /// Whether the receipt is of growing the file system, to `bytes`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_grown: bool,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks by reference")]
fn is_raw(format: &ImageFormat) -> bool {
    *format == ImageFormat::Raw
}

impl Task {
    /// No partition begins at the beginning of a disk.
    pub fn is_whole_disk(&self) -> bool {
        self.range.start == 0 && !self.is_stacked
    }

    pub fn fingerprint(&self) -> Digest {
        Digest::of(&serde_json::to_vec(self).expect("a plain value"))
    }
}
