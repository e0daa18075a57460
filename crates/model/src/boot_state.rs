//! Where a node stands in its booting: what it is to do the next time it asks.
//!
//! Most nodes have no record at all and boot whatever their configuration says.

use std::collections::BTreeMap;

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Name, NodeId};

/// What was decided about one node's booting, by people or by what the node reported.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BootState {
    pub node: NodeId,
    /// `None`: what its boot configuration says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<BootMode>,
    /// The configuration of the next boot only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub once: Option<Name>,
    /// Which further configurations are open to the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<Name>,
    /// Configurations marked `once` that the node has had, with their revision: a changed one
    /// counts as new.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub spent: BTreeMap<Name, u64>,
    /// Since when the node has something on its disk to boot from: what installs is not given to
    /// it again unless somebody says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub installed: Option<Timestamp>,
    /// Why, in the words of who said so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Who said so: a token's name, `phone-home`, `agent`.
    pub by: String,
    #[schemars(with = "String")]
    pub since: Timestamp,
    pub revision: u64,
}

#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema, PartialOrd, Ord,
)]
#[serde(rename_all = "lowercase")]
pub enum BootMode {
    /// Boots its configuration, every time.
    Live,
    /// Boots its configuration to install itself; when it reports that it did, it goes to `disk`.
    Install,
    /// Leaves the network boot for the disk.
    Disk,
    /// Waits until told otherwise.
    Hold,
}

/// What a node does when it asks what to boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Doing {
    /// It boots a kernel.
    Boot,
    /// It boots what installs it.
    Install,
    /// It leaves for its disk.
    Disk,
    /// It waits because somebody said so.
    Hold,
    /// It waits because nothing was written for it.
    Wait,
    /// It is turned away.
    Disabled,
}

impl Doing {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Boot => "boot",
            Self::Install => "install",
            Self::Disk => "disk",
            Self::Hold => "hold",
            Self::Wait => "wait",
            Self::Disabled => "disabled",
        }
    }

    /// Whether it gets a kernel from the network.
    pub fn boots(self) -> bool {
        matches!(self, Self::Boot | Self::Install)
    }
}

impl std::fmt::Display for Doing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.as_str())
    }
}

impl BootMode {
    pub const ALL: [Self; 4] = [Self::Live, Self::Install, Self::Disk, Self::Hold];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Live => "live",
            Self::Install => "install",
            Self::Disk => "disk",
            Self::Hold => "hold",
        }
    }
}

impl std::fmt::Display for BootMode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.as_str())
    }
}

impl BootState {
    pub fn new(node: NodeId, by: impl Into<String>, now: Timestamp) -> Self {
        Self {
            node,
            mode: None,
            once: None,
            profile: None,
            spent: BTreeMap::new(),
            installed: None,
            reason: None,
            by: by.into(),
            since: now,
            revision: 0,
        }
    }

    /// Whether it says nothing beyond what holds without it.
    pub fn is_blank(&self) -> bool {
        self.mode.is_none()
            && self.once.is_none()
            && self.profile.is_none()
            && self.spent.is_empty()
            && self.installed.is_none()
    }
}
