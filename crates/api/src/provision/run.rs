//! Provisioning runs: their start, and the progress of each node.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use hoist_model::{Name, NodeId, ProvisionProfile, ProvisionProfileSpec};
use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Erasure, NodeDiagnostic, RootDisk, ShownKey};

/// A provision profile. It is written as a document, with `POST /inventory/v1/apply`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ProvisionProfileObject {
    pub name: Name,
    #[serde(flatten)]
    pub spec: ProvisionProfileSpec,
    /// Number of nodes that its selector names.
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
    pub how: ProvisionOptions,
    /// Install the previous installation of each node again; implies installed nodes.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub previous: bool,
    /// Also nodes that are installed; their disks are written over.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub reinstall: bool,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub dry_run: bool,
    /// Number of nodes that the caller expects.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub affects: Option<usize>,
}

/// Options of a provisioning run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ProvisionOptions {
    /// Only these actions; all that have a section if there is none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub only: Vec<String>,
    /// Kinds of foreign content that may be destroyed besides those of the profile; `any` for all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub wipe: Vec<String>,
    /// Number of nodes at the same time; all by default.
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
    /// Give secrets to nodes without an address of their own: the first client with such a node's
    /// token is taken for the node.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub secrets_without_address: bool,
    /// The disks are erased, and the node boots nothing afterwards.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub retire: bool,
}

/// Result of starting a run, or of its dry run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StartResult {
    /// None after a dry run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<String>,
    pub dry_run: bool,
    pub nodes: Vec<SelectedNode>,
    /// Nodes of the selector that are not provisioned.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<LeftOutNode>,
    /// True if the change guard requires their number.
    #[serde(default)]
    pub needs_affects: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SelectedNode {
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
pub struct ProvisionRun {
    pub run: String,
    pub state: ProvisionRunState,
    /// The reason why it does not continue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    pub selector: String,
    #[serde(default)]
    pub how: ProvisionOptions,
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
pub enum ProvisionRunState {
    /// A node is being provisioned, or will be soon.
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
    /// Pending, booting, working or starting.
    pub active: usize,
    pub done: usize,
    pub failed: usize,
    pub aborted: usize,
    /// Number of aborted nodes whose disks are only partly written.
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
    /// Number of attempts.
    pub attempt: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<Progress>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<NodeDiagnostic>,
    /// A note for operators.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// The hash of the plan that was carried out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<String>,
    #[serde(default)]
    pub changed: bool,
    #[serde(default)]
    pub resumed: bool,
    /// The disks of the node are being restored, or were to be.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub undo: bool,
    /// The node's installation at the start of the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub previous: Option<Installation>,
    /// The receipts of the actions.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub receipts: Value,
    /// Disks that were to be erased, and what became of each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub erased: Vec<Erasure>,
    /// The key that has the node's token, while its agent is waited for or works.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claimed: Option<ShownKey>,
    /// Other keys that came with the token: none is let in until `retry` names it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub quarantined: Vec<ShownKey>,
    /// Addresses that had the token besides the one that it is good at.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub elsewhere: Vec<IpAddr>,
}

/// The installation of a node by a successful run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Installation {
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
    Pending,
    /// The agent was sent to it.
    Booting,
    /// The agent works.
    Working,
    /// Installed; the new system has not reported yet.
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
            Self::Pending => "pending",
            Self::Booting => "booting",
            Self::Working => "working",
            Self::Starting => "starting",
            Self::Done => "done",
            Self::Failed => "failed",
            Self::Aborted => "aborted",
            Self::Undone => "undone",
        }
    }

    /// True while the node is being provisioned.
    pub fn is_active(self) -> bool {
        matches!(self, Self::Pending | Self::Booting | Self::Working | Self::Starting)
    }

    /// True if the state does not change by itself.
    pub fn is_over(self) -> bool {
        matches!(self, Self::Done | Self::Failed | Self::Aborted | Self::Undone)
    }
}

impl fmt::Display for NodeRunState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl ProvisionRunState {
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

impl fmt::Display for ProvisionRunState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// Progress of a node's agent.
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

/// `POST /provision/v1/runs/{run}/retry`, `…/abort`, `…/undo`: a command for nodes of a run.
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
    /// `undo`: leave the disks as they are and restore only the boot state of the nodes.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub boot_only: bool,
    /// Of an `undo`: how many nodes the caller expects.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub affects: Option<usize>,
}

/// The result of a command on a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SteerResult {
    pub run: String,
    pub dry_run: bool,
    /// Nodes that it concerns.
    pub nodes: Vec<Name>,
    /// Notes for operators.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// True if the change guard requires the number of nodes.
    #[serde(default)]
    pub needs_affects: bool,
}

/// `GET /provision/v1/nodes/{node}/facts`: the facts that a node's agent reported.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct NodeFacts {
    pub node: Name,
    pub id: NodeId,
    #[schemars(with = "String")]
    pub at: Timestamp,
    pub facts: Value,
}
