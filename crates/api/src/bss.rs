//! Bodies of `/boot/v2/parameters`: boot parameters carried over from another BSS.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The boot parameters to import.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ImportParameters {
    /// Elements as BSS lists them.
    pub parameters: Vec<serde_json::Value>,
}

/// Result of the import, or of its dry run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ImportedParameters {
    pub revision: u64,
    #[serde(default)]
    pub dry_run: bool,
    pub created: usize,
    pub changed: usize,
    pub unchanged: usize,
    /// Images that got parameters of their own.
    pub images: usize,
    /// Nodes that boot something else than before.
    pub affected: usize,
    /// True if the change guard requires the number.
    #[serde(default)]
    pub needs_affects: bool,
    /// Entries that were not imported.
    #[serde(default)]
    pub left: Vec<ImportRemark>,
    /// Records that BSS never served, and that this controller serves.
    #[serde(default)]
    pub revived: Vec<ImportRemark>,
    /// Changed records that keep cloud-init data which the import does not have.
    #[serde(default)]
    pub kept: Vec<ImportRemark>,
}

/// A remark about one element of an import.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ImportRemark {
    /// Index of the element in the list, from 0.
    pub at: usize,
    /// The target, as far as it is known.
    #[serde(default)]
    pub who: String,
    pub reason: String,
}
