//! Runs of provisioning: what was started, and how far each node is.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use hoist_model::{Name, NodeId, ProvisionProfile, ProvisionProfileSpec};
use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Erasure, Finding, RootDisk, ShownKey};

/// A provision profile. It is written as a document, with `POST /inventory/v1/apply`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ProvisionProfileObject {
    pub name: Name,
    #[serde(flatten)]
    pub spec: ProvisionProfileSpec,
    /// How many nodes it is for.
    pub nodes: usize,
    pub revision: u64,
}

impl ProvisionProfileObject {
    pub fn from_stored(profile: &ProvisionProfile, nodes: usize) -> Self {
        let ProvisionProfile { name, spec, revision } = profile;
        Self { name: name.clone(), spec: spec.clone(), nodes, revision: *revision }
    }
}

/// `POST /provision/v1/runs`: provision the nodes of a selector.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StartRequest {
    pub selector: String,
    /// By this profile, instead of the one that is closest to each node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<Name>,
    #[serde(default)]
    pub how: How,
    /// With what each node had before what it has now, or was to have; installed nodes are meant.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub previous: bool,
    /// Also nodes that are installed; their disks are written over.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub reinstall: bool,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub dry_run: bool,
    /// How many nodes the caller expects.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub affects: Option<usize>,
}

/// How a run is to go.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct How {
    /// Only these actions; all that have a section if there is none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub only: Vec<String>,
    /// What of others may be destroyed on the disks, besides what the profile says; `any` for all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub wipe: Vec<String>,
    /// So many nodes at the same time; all if it is not said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_once: Option<usize>,
    /// So many nodes may be neither as before nor done; those that failed count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_unavailable: Option<usize>,
    /// So many nodes first, one after the other; the first failure stops the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub canary: Option<usize>,
    /// The root may come to another disk than the last time.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub allow_root_change: bool,
    /// Nodes without an address of their own get their secrets all the same: whoever shows the token
    /// of such a node first is taken for it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub secrets_without_address: bool,
    /// The disks are erased, and the node boots nothing afterwards.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub retire: bool,
}

/// What was started, or would be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Started {
    /// None after a dry run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<String>,
    pub dry_run: bool,
    pub nodes: Vec<Chosen>,
    /// Nodes of the selector that are not provisioned.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<LeftOutNode>,
    /// Whether their number has to be named.
    #[serde(default)]
    pub needs_affects: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Chosen {
    pub node: Name,
    pub profile: Name,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LeftOutNode {
    pub node: Name,
    pub why: String,
}

/// A run, as a whole.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Run {
    pub run: String,
    pub state: RunState,
    /// Why it does not go on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    pub selector: String,
    #[serde(default)]
    pub how: How,
    pub by: String,
    #[schemars(with = "String")]
    pub started: Timestamp,
    pub counts: Counts,
    /// In the order in which they are provisioned; left out in lists of runs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<RunNode>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RunState {
    /// Something is under way, or about to be.
    Running,
    /// Nodes wait, and so many have failed that no more are begun; `retry` lets it go on.
    Stopped,
    Done,
    /// All is over, and some nodes have failed.
    Failed,
    Aborted,
}

/// Nodes of a run, by what became of them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Counts {
    pub waiting: usize,
    /// Armed, booting, working or starting.
    pub active: usize,
    pub done: usize,
    pub failed: usize,
    pub aborted: usize,
    /// Of those that were aborted: what was begun on their disks is not finished.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub unfinished: usize,
    /// Their disks are as before.
    #[serde(default)]
    pub undone: usize,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde wants it")]
fn is_zero(count: &usize) -> bool {
    *count == 0
}

/// One node of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RunNode {
    pub node: Name,
    pub id: NodeId,
    pub run: String,
    pub profile: Name,
    pub state: NodeRunState,
    #[schemars(with = "String")]
    pub since: Timestamp,
    /// How often it was begun.
    pub attempt: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<Progress>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<Finding>,
    /// For people: what they should know or do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// The hash of the plan that was carried out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<String>,
    #[serde(default)]
    pub changed: bool,
    #[serde(default)]
    pub resumed: bool,
    /// Its disks are being put back as they were before, or were to be.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub undo: bool,
    /// What it had when the run was started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub previous: Option<Installed>,
    /// What the actions left.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub receipts: Value,
    /// Disks that were to be erased, and what became of each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub erased: Vec<Erasure>,
    /// The key that has the node's token, while its agent is waited for or works.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enrolled: Option<ShownKey>,
    /// Other keys that came with the token: none is let in until `retry` names it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub quarantined: Vec<ShownKey>,
    /// Addresses that had the token besides the one that it is good at.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub elsewhere: Vec<IpAddr>,
}

/// What a run that ended well made of a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Installed {
    pub run: String,
    pub profile: Name,
    /// The digest of the profile as it was, with its artifacts: the same made the same.
    pub document: String,
    /// The content of each artifact that it named.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub artifacts: BTreeMap<String, String>,
    /// The disks that the root is on, as far as something that lasts is known of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub root: Vec<RootDisk>,
    #[schemars(with = "String")]
    pub at: Timestamp,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum NodeRunState {
    /// Its turn has not come.
    Waiting,
    /// The next time it boots, it boots the agent.
    Armed,
    /// The agent was sent to it.
    Booting,
    /// The agent works.
    Working,
    /// It is installed; its system has not said yet that it is up.
    Starting,
    Done,
    Failed,
    Aborted,
    /// Its disks are as they were before, and it boots as before.
    Undone,
}

impl NodeRunState {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Armed => "armed",
            Self::Booting => "booting",
            Self::Working => "working",
            Self::Starting => "starting",
            Self::Done => "done",
            Self::Failed => "failed",
            Self::Aborted => "aborted",
            Self::Undone => "undone",
        }
    }

    /// Whether something is under way on it.
    pub fn is_active(self) -> bool {
        matches!(self, Self::Armed | Self::Booting | Self::Working | Self::Starting)
    }

    /// Whether nothing more happens by itself.
    pub fn is_over(self) -> bool {
        matches!(self, Self::Done | Self::Failed | Self::Aborted | Self::Undone)
    }
}

impl fmt::Display for NodeRunState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl RunState {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Stopped => "stopped",
            Self::Done => "done",
            Self::Failed => "failed",
            Self::Aborted => "aborted",
        }
    }
}

impl fmt::Display for RunState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// How far the agent of a node is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Progress {
    pub action: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub step: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub done: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unit: Option<String>,
    /// In a second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    #[schemars(with = "String")]
    pub at: Timestamp,
}

/// `POST /provision/v1/runs/{run}/retry`, `…/abort`, `…/undo`: what is to happen to nodes of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SteerRequest {
    /// Only these nodes; all of the run if there is none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<Name>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub dry_run: bool,
    /// Of a `retry`: the keys that may go on, by fingerprint, for nodes with which another key came;
    /// `none` lets no key go on, and the machine has to be started from the network again.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub keys: Vec<String>,
    /// Of an `undo`: what is on the disks stays, only what the nodes boot is taken back.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub boot_only: bool,
    /// Of an `undo`: how many nodes the caller expects.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub affects: Option<usize>,
}

/// What became of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Steered {
    pub run: String,
    pub dry_run: bool,
    /// Nodes that it concerns.
    pub nodes: Vec<Name>,
    /// What people should know of it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// Whether the number of nodes has to be named.
    #[serde(default)]
    pub needs_affects: bool,
}

/// `GET /provision/v1/nodes/{node}/facts`: what a node's agent found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct NodeFacts {
    pub node: Name,
    pub id: NodeId,
    #[schemars(with = "String")]
    pub at: Timestamp,
    pub facts: Value,
}
