//! Bodies of `/boot/v2`: boot configurations, boot states, explanations and the boot history.

use std::net::IpAddr;

use hoist_model::node::Labels;
use hoist_model::{
    Arch, BootAction, BootConfig, BootConfigSpec, BootMode, BootState, ConfigMode, GroupName, Mac,
    Name, Nid, NodeId, Role, Selector, Xname,
};
use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};

/// A boot configuration. It is written as a document, with `POST /inventory/v1/apply`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BootConfigObject {
    pub name: Name,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<Selector>,
    #[serde(default)]
    pub priority: i32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<Name>,
    #[serde(default)]
    pub mode: ConfigMode,
    #[serde(default)]
    pub once: bool,
    pub enabled: bool,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub kernel: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub initrd: Vec<String>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub params: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cloud_init: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<String>,
    /// Number of nodes that its selector names, including nodes that boot another configuration.
    pub nodes: usize,
    pub revision: u64,
}

impl BootConfigObject {
    pub fn from_stored(config: &BootConfig, nodes: usize) -> Self {
        let spec = config.spec.clone();
        Self {
            name: config.name.clone(),
            selector: spec.selector,
            priority: spec.priority,
            profile: spec.profile,
            mode: spec.mode,
            once: spec.once,
            enabled: spec.enabled,
            kernel: spec.kernel,
            initrd: spec.initrd,
            params: spec.params,
            cloud_init: spec.cloud_init,
            template: spec.template,
            nodes,
            revision: config.revision,
        }
    }

    /// The declared part of the object.
    pub fn into_spec(self) -> BootConfigSpec {
        BootConfigSpec {
            selector: self.selector,
            priority: self.priority,
            profile: self.profile,
            mode: self.mode,
            once: self.once,
            enabled: self.enabled,
            kernel: self.kernel,
            initrd: self.initrd,
            params: self.params,
            cloud_init: self.cloud_init,
            template: self.template,
        }
    }
}

/// `GET /boot/v2/explain/{node}`: the boot outcome of a node and its reasons.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BootExplanation {
    pub node: Name,
    pub id: NodeId,
    /// The MAC it is expected to ask with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac: Option<Mac>,
    pub doing: BootAction,
    /// The reason for an error or a wait although a configuration was chosen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// Records for unknown machines (`bss:Unknown-x86_64`): a node that waits boots the one of its
    /// architecture.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub discovery: Vec<String>,
    /// The chosen configuration, even if the node does not get to boot it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub choice: Option<ExplainedChoice>,
    /// Other configurations that select the node, the next best first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lost: Vec<LostChoice>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub initrd: Vec<String>,
    /// The reason for plug-in archives after the agent, or the missing requirement.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub plugins: Vec<String>,
    /// The command line, word by word.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub arguments: Vec<KernelArgument>,
    /// The boot state of the node, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<BootState>,
    pub enabled: bool,
    pub protected: bool,
    /// Time and answer of the node's last request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<HistoryRow>,
    /// The last request of the node that ended in an error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error: Option<HistoryRow>,
    /// The site revision of this explanation.
    pub revision: u64,
    /// Seconds since the roster was last known to be the newest.
    pub age_seconds: u64,
}

/// A configuration, or boot parameters, that select a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ExplainedChoice {
    /// The name of a configuration, or `bss:` and the key of boot parameters.
    pub name: String,
    /// The selector, or the key, that names the node.
    pub matched: String,
    /// The kind of match: `the node itself`, `a group`, …
    pub by: String,
    pub priority: i32,
    pub revision: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LostChoice {
    #[serde(flatten)]
    pub choice: ExplainedChoice,
    pub why: String,
}

/// A kernel argument with its origin.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct KernelArgument {
    pub argument: String,
    /// `params`, `node`, `asked`, `initrd`, `cloud-init`, `referral`, `kernel-image` or
    /// `initrd-image`.
    pub origin: String,
}

/// `POST /boot/v2/diff`: what documents would mean for booting.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BootDiff {
    /// The site revision of the comparison.
    pub revision: u64,
    /// Nodes that would boot something else.
    pub other: usize,
    /// Nodes that would have nothing to boot any more.
    pub loses: usize,
    /// Nodes that would have something to boot at last.
    pub gains: usize,
    /// Nodes with the same kernel and initrd, and another command line or script.
    pub line: usize,
    pub nodes: Vec<BootChange>,
    /// More nodes come out differently than are listed.
    #[serde(default)]
    pub truncated: bool,
}

impl BootDiff {
    pub fn is_empty(&self) -> bool {
        self.other + self.loses + self.gains + self.line == 0
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BootChange {
    pub node: Name,
    pub change: BootChangeKind,
    /// The boot outcome before and after the change.
    pub from: String,
    pub to: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum BootChangeKind {
    Other,
    Loses,
    Gains,
    Line,
}

impl BootChangeKind {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Other => "other",
            Self::Loses => "loses",
            Self::Gains => "gains",
            Self::Line => "line",
        }
    }
}

/// The last request of a node per endpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HistoryRow {
    /// `bootscript`, `user-data`, or `bootscript-error` for requests that ended in an error.
    pub endpoint: String,
    #[schemars(with = "String")]
    pub last: Timestamp,
    /// Number of requests since it is remembered.
    pub count: u64,
    /// The answer: a configuration, `bss:…`, `disk`, or the detail of the error.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub what: String,
    /// The revision of that.
    pub revision: u64,
    pub from: IpAddr,
}

/// `GET /boot/v2/history/{node}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct History {
    pub node: Name,
    pub rows: Vec<HistoryRow>,
}

/// The boot state of a node and its effect.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NodeBootState {
    pub node: Name,
    pub id: NodeId,
    pub doing: BootAction,
    /// The configuration that the node boots, unless its state overrides it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub choice: Option<String>,
    /// Absent: nothing was decided.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<BootState>,
}

/// One page of boot states.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct BootStateList {
    pub revision: u64,
    pub items: Vec<NodeBootState>,
    /// Give this as `after` for the next page; absent on the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<NodeId>,
}

/// `PUT /boot/v2/state/{node}` and `PUT /boot/v2/states`. Absent fields stay unchanged.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StateRequest {
    /// `none` leaves it to the boot configuration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<ModeWord>,
    /// `null` takes the node off its profile.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "given")]
    pub profile: Option<Option<Name>>,
    /// The configuration of the next boot only; `null` takes it back.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "given")]
    pub once: Option<Option<Name>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Needed to install a node that is installed already.
    #[serde(default)]
    pub reinstall: bool,
}

/// A boot mode, or none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ModeWord {
    Live,
    Install,
    Disk,
    Hold,
    None,
}

impl ModeWord {
    pub fn mode(self) -> Option<BootMode> {
        match self {
            Self::Live => Some(BootMode::Live),
            Self::Install => Some(BootMode::Install),
            Self::Disk => Some(BootMode::Disk),
            Self::Hold => Some(BootMode::Hold),
            Self::None => None,
        }
    }
}

/// Result of a change of boot states, or of its dry run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StatesChanged {
    pub revision: u64,
    pub dry_run: bool,
    /// Nodes that were named.
    pub named: usize,
    /// Nodes whose boot state changes.
    pub changed: Vec<Name>,
    /// Nodes that boot something else afterwards: what `affects` must name when it is asked for.
    pub affected: usize,
    /// True if `affects` is (or would be) required.
    pub needs_affects: bool,
}

/// A machine that asked for a boot script or metadata and is not in the inventory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DiscoveredMachine {
    /// Of those that asked for a boot script. One that asked for metadata is known by its address
    /// only, on the controller that it asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac: Option<Mac>,
    /// The architecture as its firmware reports it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arch: Option<String>,
    /// The address of its last request.
    pub from: IpAddr,
    /// The user agent of the machine: `iPXE/1.21`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    #[schemars(with = "String")]
    pub first: Timestamp,
    #[schemars(with = "String")]
    pub last: Timestamp,
    pub count: u64,
    /// True if the answer had something to boot.
    pub booted: bool,
    /// The disabled node that has the address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<Name>,
}

/// `POST /boot/v2/discovered/{mac}/adopt`: the machine becomes a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AdoptRequest {
    pub name: Name,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partition: Option<Name>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<GroupName>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<Role>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subrole: Option<Role>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nid: Option<Nid>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub xname: Option<Xname>,
    #[serde(default, skip_serializing_if = "Labels::is_empty")]
    pub labels: Labels,
    /// By default the value reported by its firmware.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arch: Option<Arch>,
    /// The address that was seen is not kept.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub no_address: bool,
}

impl AdoptRequest {
    pub fn new(name: Name) -> Self {
        Self {
            name,
            partition: None,
            groups: Vec::new(),
            role: None,
            subrole: None,
            nid: None,
            xname: None,
            labels: Labels::default(),
            arch: None,
            no_address: false,
        }
    }
}

/// Tells `null` from a member that is not there.
#[expect(clippy::option_option, reason = "absent, `null`, or a name")]
fn given<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Option<Name>>, D::Error> {
    Option::deserialize(deserializer).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn null_takes_back_and_absence_leaves_alone() {
        let read = |text: &str| serde_json::from_str::<StateRequest>(text).unwrap();
        assert_eq!(read("{}").once, None);
        assert_eq!(read(r#"{"once": null}"#).once, Some(None));
        let named = read(r#"{"once": "rescue"}"#);
        assert_eq!(named.once, Some(Some("rescue".parse().unwrap())));
        for text in ["{}", r#"{"once":null}"#, r#"{"once":"rescue","mode":"none"}"#] {
            let request = read(text);
            let again = serde_json::to_string(&request).unwrap();
            assert_eq!(read(&again), request);
        }
        assert!(serde_json::from_str::<StateRequest>(r#"{"mode": "reboot"}"#).is_err());
    }
}
