//! The index beside a built image: its files and their artifact names. `hoist-image` writes it,
//! `hoist` reads it, and neither depends on the other.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{ArtifactName, Digest, Name};

/// The name of the file that an index is in.
pub const INDEX_FILE: &str = "index.json";

/// Bytes of an index that are read.
pub const MAX_INDEX: u64 = 1024 * 1024;

/// Everything that was made of one image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImageIndex {
    pub name: Name,
    /// Words for the kernel, beside those that say where the root is.
    pub kernel_args: Vec<String>,
    /// Sources that the document only names: packages with their versions.
    pub made_from: Vec<String>,
    pub files: Vec<ImageFile>,
}

/// A file beside the index.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImageFile {
    /// A plain file name.
    pub file: String,
    pub artifact: ArtifactName,
    pub size: u64,
    pub sha256: Digest,
    /// The image that is packed in the file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unpacked: Option<UnpackedContent>,
}

/// An unpacked image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct UnpackedContent {
    /// In bytes.
    pub size: u64,
    pub sha256: Digest,
}

impl ImageIndex {
    /// Whether every file is beside the index and nowhere else.
    pub fn stays_inside(&self) -> bool {
        let is_plain = |file: &str| !matches!(file, "" | "." | "..") && !file.contains(['/', '\0']);
        self.files.iter().all(|entry| is_plain(&entry.file))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_leads_only_to_files_beside_it() {
        let index = |file: &str| ImageIndex {
            name: "tiny".parse().unwrap(),
            kernel_args: Vec::new(),
            made_from: Vec::new(),
            files: vec![ImageFile {
                file: file.to_owned(),
                artifact: "os-tiny-kernel".parse().unwrap(),
                size: 1,
                sha256: Digest::from_bytes([0; 32]),
                unpacked: None,
            }],
        };
        assert!(index("kernel").stays_inside());
        for file in ["", ".", "..", "../kernel", "/etc/passwd", "a/b"] {
            assert!(!index(file).stays_inside(), "{file}");
        }
    }
}
