//! Bodies of `/inventory/v1`: the flat objects that programs read and write.
//!
//! A flat object combines the declared fields (the `spec` of a document) with the fields of the
//! server. A client may always send back an object it read: a write ignores the fields of the
//! server.
//!
//! Does not belong here: conversion from and to stored records (`hoist-server`).

use std::collections::{BTreeMap, BTreeSet};

use hoist_model::boot::SelectedBy;
use hoist_model::node::{Bmc, Groups, Labels, System};
use hoist_model::{
    Arch, Boot, BootChoice, Firmware, GroupName, GroupSpec, Interface, Maintenance, Name, Network,
    NetworkSpec, Nid, NodeId, NodeSpec, NodeState, Partition, PartitionSpec, Protection,
    Provenance, Role, Selector, Xname,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A node. Written with PUT and POST, read with GET.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Node {
    /// Set by the server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<NodeId>,
    /// Absent in a write: made from the nid, such as `nid000048`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<Name>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub xname: Option<Xname>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nid: Option<Nid>,
    #[serde(default = "Name::default_partition")]
    pub partition: Name,
    /// In the order in which they apply: by priority, then by name. Computed ones are read-only
    /// and listed in `computed_groups` too.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<GroupName>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub computed_groups: Vec<GroupName>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot: Option<NodeBoot>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub interfaces: Vec<Interface>,
    #[serde(default)]
    pub arch: Arch,
    #[serde(default)]
    pub firmware: Firmware,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<Role>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subrole: Option<Role>,
    #[serde(default = "yes")]
    pub enabled: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bmc: Option<Box<Bmc>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system: Option<Box<System>>,
    #[serde(default, skip_serializing_if = "Labels::is_empty")]
    pub labels: Labels,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<Box<serde_json::Map<String, serde_json::Value>>>,
    /// Set through its own route.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protection: Option<Box<Protection>>,
    /// Set through its own route.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub maintenance: Option<Box<Maintenance>>,
    /// Set by the server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provenance: Option<Box<Provenance>>,
    /// Last seen state; set through its own route, never part of a revision.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<NodeState>,
    /// Set by the server.
    #[serde(default)]
    pub generation: u64,
    /// Set by the server.
    #[serde(default)]
    pub revision: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub created: Option<jiff::Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub updated: Option<jiff::Timestamp>,
}

/// The boot interface: with `selected_by` as found by the rules, in a write as chosen.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NodeBoot {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac: Option<hoist_model::Mac>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ip: Option<std::net::IpAddr>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface: Option<hoist_model::node::InterfaceName>,
    /// Set by the server. Anything but `explicit` was found by a rule and is ignored in a write.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selected_by: Option<SelectedBy>,
}

/// One page of nodes, cut from one snapshot.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct NodeList {
    /// The site revision that every page of this listing shows.
    pub revision: u64,
    /// Give this as `since` for the changes after this listing.
    #[serde(default)]
    pub since: String,
    pub items: Vec<Node>,
    /// Give this as `continue` for the next page; absent on the last one.
    #[serde(default, rename = "continue", skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// One line of a watch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum WatchLine {
    Put {
        revision: u64,
        node: Box<Node>,
    },
    Delete {
        revision: u64,
        id: NodeId,
    },
    /// Everything up to this revision has been sent.
    Bookmark {
        revision: u64,
        /// Give this as `since` to go on from here.
        #[serde(default)]
        since: String,
    },
}

/// The answer to a poll with `since` and `wait`.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct WatchBatch {
    pub revision: u64,
    /// Give this as `since` to go on from here.
    #[serde(default)]
    pub since: String,
    pub lines: Vec<WatchLine>,
}

/// A group. `members` are the names of its nodes, explicit or computed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Group {
    /// In a write, the path says it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partition: Option<Name>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<GroupName>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub description: String,
    #[serde(default)]
    pub priority: i32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exclusive_set: Option<Name>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<Selector>,
    /// Absent in a write: membership stays as it is. Ignored where there is a selector.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub members: Option<std::collections::BTreeSet<Name>>,
    #[serde(default)]
    pub revision: u64,
}

macro_rules! flat {
    ($(#[$doc:meta])* $object:ident, $stored:ident, $spec:ident { $($(#[$attribute:meta])* $field:ident: $type:ty),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
        #[serde(deny_unknown_fields)]
        pub struct $object {
            /// In a write, the path says it.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub name: Option<Name>,
            $($(#[$attribute])* pub $field: $type,)*
            #[serde(default)]
            pub revision: u64,
        }

        impl From<&$stored> for $object {
            fn from(stored: &$stored) -> Self {
                let $spec { $($field),* } = stored.spec.clone();
                Self { name: Some(stored.name.clone()), $($field,)* revision: stored.revision }
            }
        }

        impl From<$object> for $spec {
            fn from(object: $object) -> Self {
                let $object { $($field,)* .. } = object;
                Self { $($field),* }
            }
        }
    };
}

flat! {
    /// A partition.
    PartitionObject, Partition, PartitionSpec {
        #[serde(default, skip_serializing_if = "String::is_empty")]
        description: String,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        boot_networks: Vec<Name>,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        #[schemars(with = "Vec<String>")]
        boot_subnets: Vec<ipnet::IpNet>,
    }
}

flat! {
    /// A network.
    NetworkObject, Network, NetworkSpec {
        #[serde(default, skip_serializing_if = "String::is_empty")]
        description: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        vlan: Option<u16>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        mtu: Option<u16>,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        subnets: Vec<hoist_model::Subnet>,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        dns: Vec<std::net::IpAddr>,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        ntp: Vec<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        domain: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        smd_name: Option<String>,
    }
}

/// Records of one kind, and the site revision they belong to.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "{T}Listing")]
pub struct Listing<T> {
    pub revision: u64,
    pub items: Vec<T>,
}

/// The answer to `POST /inventory/v1/apply` and `/delete`, done or dry.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct ApplyResult {
    /// The site revision after the change; for a dry run, the one it was computed for.
    pub revision: u64,
    pub dry_run: bool,
    pub created: usize,
    pub changed: usize,
    pub unchanged: usize,
    pub removed: usize,
    /// Number of existing nodes that change, which `affects` must name where it is required.
    pub affected: usize,
    /// True if `affects` is (or would be) required.
    pub needs_affects: bool,
    /// Changes, document by document; unchanged documents are only counted.
    pub items: Vec<AppliedItem>,
    /// More items differ than are listed.
    #[serde(default)]
    pub truncated: bool,
    /// Effects that are allowed but probably not meant.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AppliedItem {
    pub kind: String,
    pub name: String,
    pub change: ItemChange,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fields: Vec<FieldChange>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ItemChange {
    Created,
    Changed,
    Removed,
}

/// One value that changes, by its path inside the spec.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FieldChange {
    pub at: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<serde_json::Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<serde_json::Value>,
}

/// Objects for `POST /inventory/v1/delete`: `Kind/name`, such as `Node/login1` or `Group/p1/gpu`.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DeleteRequest {
    pub targets: Vec<String>,
}

/// Nodes for `POST /inventory/v1/renew`; a node that is named twice is renewed once.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RenewRequest {
    pub nodes: BTreeSet<NodeId>,
}

/// `PUT /inventory/v1/nodes/{id}/protection`.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ProtectRequest {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// `PUT /inventory/v1/nodes/{id}/maintenance`.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MaintainRequest {
    pub reason: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub until: Option<jiff::Timestamp>,
}

/// `PUT /inventory/v1/nodes/{id}/released`: fields that people took over from the node's source.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReleaseRequest {
    pub fields: Vec<String>,
}

/// `POST /inventory/v1/nodes/{id}/swap`: the machine behind a node was replaced. The node keeps its
/// id, name and everything declared; its hardware identity changes.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SwapRequest {
    /// Old MAC to new MAC.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub macs: Vec<MacSwap>,
    /// Exchange hardware with this node (a spare) instead: MACs, system identity and BMC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub with: Option<Name>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system: Option<Box<System>>,
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MacSwap {
    pub old: hoist_model::Mac,
    pub new: hoist_model::Mac,
}

/// `POST /inventory/v1/import`.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ImportRequest {
    /// `smd+http://…`, `smd+https://…`, `file:PATH`, `store+etcd://…` or `store+postgres://…`, as the
    /// controller reaches it.
    pub url: String,
    /// Under which name the nodes are known to come from there; `smd`, `file` or `store` by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<Name>,
    /// A file on the controller with a bearer token for the source.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_file: Option<std::path::PathBuf>,
    /// Take over nodes that are known already, when xname or MAC is the same.
    #[serde(default)]
    pub adopt: bool,
    /// Remove nodes that are gone from the source, however many they are.
    #[serde(default)]
    pub force: bool,
}

/// Result of one import cycle.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ImportReport {
    pub source: String,
    /// The source reported no change since the last cycle.
    pub idle: bool,
    pub added: usize,
    pub changed: usize,
    pub unchanged: usize,
    pub removed: usize,
    /// Nodes that were absent once; removed when they are absent again.
    pub absent: usize,
    /// The first removed (`-n3`), added (`+n1`) and changed (`~n2`) nodes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<String>,
    /// Some of each kind.
    pub warnings: Vec<String>,
    /// Number of warnings of each kind: `orphan`, `placeholder-mac`, `no-nid` and others.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub warning_counts: BTreeMap<String, usize>,
    /// The reason why no missing node was removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alarm: Option<String>,
    /// Nodes that were not removed because they are too many; an import with `force` removes them.
    #[serde(default, skip_serializing_if = "crate::is_zero")]
    pub withheld: usize,
    pub revision: u64,
}

/// `GET /inventory/v1/status`: how old the roster is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Status {
    pub version: String,
    pub incarnation: String,
    pub revision: u64,
    pub nodes: usize,
    pub groups: usize,
    pub partitions: usize,
    pub networks: usize,
    pub store: StoreStatus,
    pub roster: RosterStatus,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<SourceStatus>,
    /// Seconds since the server started.
    pub uptime_seconds: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StoreStatus {
    /// `embedded`, `etcd` or `postgres`.
    pub backend: String,
    pub connected: bool,
    /// The store has no space left: writes fail, reads go on.
    #[serde(default)]
    pub full: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Seconds since the store was last heard of.
    pub silent_seconds: u64,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub detail: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size_bytes: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RosterStatus {
    /// `store`; `snapshot` while the store has not been read since the start; `nothing` if there is
    /// no last-good copy either.
    pub loaded_from: String,
    /// Seconds since the roster was last known to be the newest.
    pub age_seconds: u64,
    pub stale: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub snapshot_written: Option<jiff::Timestamp>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SourceStatus {
    /// The source of the nodes, without credentials.
    pub url: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_report: Option<ImportReport>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub last_success: Option<jiff::Timestamp>,
}

/// Fields that the server derives for a stored node.
#[derive(Debug, Clone, Default)]
pub struct DerivedFields {
    pub boot: Option<Boot>,
    /// All groups in priority order.
    pub groups: Vec<GroupName>,
    pub state: Option<NodeState>,
}

impl Node {
    pub fn from_stored(node: &hoist_model::Node, derived: DerivedFields) -> Self {
        let spec = node.spec.clone();
        let computed = |name: &&GroupName| !spec.groups.contains(name);
        let computed_groups = derived.groups.iter().filter(computed).cloned().collect();
        Self {
            id: Some(node.id),
            name: Some(node.name.clone()),
            xname: spec.xname,
            nid: spec.nid,
            partition: spec.partition,
            groups: derived.groups,
            computed_groups,
            boot: derived.boot.map(NodeBoot::from),
            interfaces: spec.interfaces,
            arch: spec.arch,
            firmware: spec.firmware,
            role: spec.role,
            subrole: spec.subrole,
            enabled: spec.enabled,
            bmc: spec.bmc,
            system: spec.system,
            labels: spec.labels,
            data: spec.data,
            protection: node.protection.clone(),
            maintenance: node.maintenance.clone(),
            provenance: node.provenance.clone(),
            state: derived.state,
            generation: node.generation,
            revision: node.revision,
            created: Some(node.created),
            updated: Some(node.updated),
        }
    }

    /// The declared part of the object.
    pub fn into_spec(self) -> NodeSpec {
        let computed = self.computed_groups;
        let groups: Groups =
            self.groups.into_iter().filter(|name| !computed.contains(name)).collect();
        NodeSpec {
            xname: self.xname,
            nid: self.nid,
            partition: self.partition,
            groups,
            boot: self.boot.and_then(NodeBoot::into_choice).map(Box::new),
            interfaces: self.interfaces,
            arch: self.arch,
            firmware: self.firmware,
            role: self.role,
            subrole: self.subrole,
            enabled: self.enabled,
            bmc: self.bmc,
            system: self.system,
            labels: self.labels,
            data: self.data,
        }
    }
}

impl From<Boot> for NodeBoot {
    fn from(boot: Boot) -> Self {
        Self {
            mac: Some(boot.mac),
            ip: boot.ip,
            interface: Some(boot.interface),
            selected_by: Some(boot.selected_by),
        }
    }
}

impl NodeBoot {
    fn into_choice(self) -> Option<BootChoice> {
        match self.selected_by {
            None | Some(SelectedBy::Explicit) => {
                Some(BootChoice { mac: self.mac, ip: self.ip, interface: self.interface })
            }
            Some(_) => None,
        }
    }
}

impl Group {
    pub fn from_stored(group: &hoist_model::Group, members: Vec<Name>) -> Self {
        let spec = group.spec.clone();
        Self {
            partition: Some(group.partition.clone()),
            name: Some(group.name.clone()),
            description: spec.description,
            priority: spec.priority,
            exclusive_set: spec.exclusive_set,
            selector: spec.selector,
            members: Some(members.into_iter().collect()),
            revision: group.revision,
        }
    }

    pub fn into_spec(self) -> GroupSpec {
        let members = if self.selector.is_some() { None } else { self.members };
        GroupSpec {
            description: self.description,
            priority: self.priority,
            exclusive_set: self.exclusive_set,
            members,
            selector: self.selector,
        }
    }
}

fn yes() -> bool {
    true
}
