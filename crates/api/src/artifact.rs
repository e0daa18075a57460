//! Bodies of `/boot/v2/artifacts` and `/boot/v2/blobs`.

use hoist_model::image::UnpackedContent;
use hoist_model::node::Arch;
use hoist_model::{ArtifactName, Digest, Name};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The header of a controller's request to another one for content. The answer comes from the disk
/// only, so that controllers that all lack the content do not ask each other in circles.
pub const SIBLING_HEADER: &str = "hoist-sibling";

/// Content as far as a controller has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Blob {
    pub sha256: Digest,
    /// All of it is here, and was found to have this digest.
    pub whole: bool,
    /// Bytes that are here; an upload goes on from there.
    pub received: u64,
}

/// An artifact with the state of its content at this controller.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ArtifactObject {
    pub name: ArtifactName,
    pub sha256: Digest,
    /// In bytes.
    pub size: u64,
    #[serde(default)]
    pub arch: Arch,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub description: String,
    /// Of an archive of plug-ins: actions and sections.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub provides: Vec<String>,
    /// Of a packed disk image: the image in it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unpacked: Option<UnpackedContent>,
    pub revision: u64,
    /// Its content is on the disk of the controller that was asked.
    pub here: bool,
    /// The boot configurations and provision profiles that name it.
    #[serde(default)]
    pub used_by: Vec<Name>,
    /// Number of BSS records that name it.
    #[serde(default)]
    pub bss_records: usize,
}

/// The result of verifying one blob.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ArtifactVerification {
    pub sha256: Digest,
    /// The artifacts that it is the content of.
    pub names: Vec<ArtifactName>,
    pub size: u64,
    pub outcome: Outcome,
    /// Bytes checked so far, this blob included.
    pub done: u64,
    /// Bytes that will be checked.
    pub total: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    Whole,
    /// It is not what its digest says, and was set aside: it is not served any more.
    Damaged,
    /// The disk did not give it; the log says why.
    Unreadable,
    /// An artifact names it, and it is not on this controller.
    Missing,
}

/// Result of a garbage collection, or of its dry run.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct CollectionResult {
    pub dry_run: bool,
    /// Artifacts that nothing named, if that was asked for.
    pub artifacts: Vec<ArtifactName>,
    pub blobs: Vec<CollectedBlob>,
    /// Abandoned uploads and content set aside as damaged.
    pub leftovers: usize,
    /// Of all of them together.
    pub bytes: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CollectedBlob {
    pub sha256: Digest,
    pub size: u64,
}
