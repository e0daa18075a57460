//! Bodies of `/boot/v2/parameters`: boot parameters carried over from another BSS.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What to carry over.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ImportParameters {
    /// Elements as BSS lists them.
    pub parameters: Vec<serde_json::Value>,
}

/// What was carried over, or would be.
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
    /// Whether that is so many that the number has to be named.
    #[serde(default)]
    pub needs_affects: bool,
    /// What was not carried over.
    #[serde(default)]
    pub left: Vec<LeftOut>,
}

/// One thing that was not carried over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LeftOut {
    /// Which element of the list, from 0.
    pub at: usize,
    /// Whom it was for, as far as can be told.
    #[serde(default)]
    pub who: String,
    pub reason: String,
}
