//! Steps for files of the installed system.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::FsLocation;
use crate::digest::Digest;
use crate::document::{FsKind, Id, SecretRef};
use crate::volume::StoredFile;

pub const NAME: &str = "files";

/// One step: all files of a file system.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Task {
    pub place: FsLocation,
    pub fs: Id,
    pub kind: FsKind,
    pub files: Vec<FileSpec>,
}

/// The desired state of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileSpec {
    /// The path from the root of the file system, without a leading slash.
    pub path: String,
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub content: FileContent,
}

/// The content of a file. Texts are in the document; secrets are never stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FileContent {
    Text(StoredFile),
    Secret(SecretRef),
}

/// The journal entry of written files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Receipt {
    pub files_on: Id,
    /// The fingerprint of the task.
    pub task: Digest,
}

impl Task {
    /// The fingerprint of the files and their place. The rest of the disk does not matter.
    pub fn fingerprint(&self) -> Digest {
        let part = self.place.partition().map(|part| part.partuuid);
        let all = (&self.fs, part, self.place.id(), &self.files);
        Digest::of(&serde_json::to_vec(&all).expect("a plain value"))
    }
}

/// Texts by file system and path.
pub type Texts = BTreeMap<(Id, String), String>;
