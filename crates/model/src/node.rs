//! A node: a machine as declared ([`NodeSpec`]), as stored by the site ([`Node`]) and as last
//! observed ([`NodeState`]). Declared and observed state never share a record.
//!
//! Does not belong here: uniqueness across nodes (`hoist-site`).

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use compact_str::CompactString;
use hoist_diagnostic::Diagnostic;
use ipnet::IpNet;
use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{GroupName, LabelKey, Mac, Name, Nid, NodeId, Role, Xname};

/// Bounds of one node. They keep a node's record small enough for every backend and every reader.
const MAX_INTERFACES: usize = 64;
const MAX_ADDRESSES: usize = 64;
const MAX_GROUPS: usize = 128;
const MAX_LABELS: usize = 64;
const MAX_LABEL_VALUE: usize = 256;
const MAX_DATA_BYTES: usize = 64 * 1024;

/// The declaration of a machine, by people or by an import.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NodeSpec {
    /// Where the machine sits. Unique if present.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub xname: Option<Xname>,
    /// The site's number for it. Unique if present.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nid: Option<Nid>,
    #[serde(default = "Name::default_partition")]
    pub partition: Name,
    /// Explicit groups of the node's partition.
    #[serde(default, skip_serializing_if = "Groups::is_empty")]
    pub groups: Groups,
    /// The boot interface, if the partition's rules should not select it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot: Option<Box<BootChoice>>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub interfaces: Vec<Interface>,
    #[serde(default, skip_serializing_if = "is_default")]
    pub arch: Arch,
    #[serde(default, skip_serializing_if = "is_default")]
    pub firmware: Firmware,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<Role>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subrole: Option<Role>,
    /// A disabled node does not boot and gets no metadata beyond policy.
    #[serde(default = "yes", skip_serializing_if = "Clone::clone")]
    pub enabled: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bmc: Option<Box<Bmc>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system: Option<Box<System>>,
    /// Selectable key and value pairs.
    #[serde(default, skip_serializing_if = "Labels::is_empty")]
    pub labels: Labels,
    /// Free-form data for templates. hoist itself reads only `ssh`, the way to the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<Box<serde_json::Map<String, serde_json::Value>>>,
}

/// One network interface.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Interface {
    pub name: InterfaceName,
    #[serde(default, skip_serializing_if = "is_default")]
    pub kind: InterfaceKind,
    /// Unique in the site.
    pub mac: Mac,
    /// Addresses with their prefix length, such as `10.1.0.7/24`; unique per network.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(with = "Vec<String>")]
    pub addresses: Vec<IpNet>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<Name>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vlan: Option<u16>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u16>,
}

/// The kernel's name for an interface, as the site expects it: `eth0`, `ens1f0np0`.
pub type InterfaceName = LabelKey;

#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema, PartialOrd, Ord,
)]
#[serde(rename_all = "lowercase")]
pub enum InterfaceKind {
    Boot,
    Mgmt,
    /// High-speed network.
    Hsn,
    Bmc,
    #[default]
    Other,
}

/// The explicit choice of the boot interface; any one of the members is enough.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BootChoice {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac: Option<Mac>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ip: Option<IpAddr>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface: Option<InterfaceName>,
}

#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema, PartialOrd, Ord,
)]
#[serde(rename_all = "lowercase")]
pub enum Arch {
    #[serde(rename = "x86_64")]
    X86_64,
    Aarch64,
    Riscv64,
    #[default]
    Unknown,
}

impl Arch {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::X86_64 => "x86_64",
            Self::Aarch64 => "aarch64",
            Self::Riscv64 => "riscv64",
            Self::Unknown => "unknown",
        }
    }
}

/// How the machine starts; learnt at its first boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Firmware {
    Uefi,
    Bios,
    #[default]
    Unknown,
}

/// The management controller. Credentials have no place in the inventory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Bmc {
    /// Its xname, host name or address.
    pub r#ref: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<String>,
}

/// The hardware identity that the machine reports, besides its MACs.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct System {
    /// The SMBIOS system UUID. Unique if present; read in any case, kept in lower case.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "lower_case")]
    pub uuid: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serial: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vendor: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
}

/// Labels in key order. A sorted slice, because a tree per node would cost more than its content.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Labels(Box<[(LabelKey, CompactString)]>);

/// Names of groups, sorted, each once. A sorted slice for the same reason.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Groups(Box<[GroupName]>);

/// A node as the site keeps it: the spec and the fields of the server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Node {
    pub id: NodeId,
    pub name: Name,
    pub spec: NodeSpec,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protection: Option<Box<Protection>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub maintenance: Option<Box<Maintenance>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provenance: Option<Box<Provenance>>,
    /// Counts deliberate re-provisionings; part of the instance id.
    pub generation: u64,
    /// The site revision that last changed this node.
    pub revision: u64,
    #[schemars(with = "String")]
    pub created: Timestamp,
    #[schemars(with = "String")]
    pub updated: Timestamp,
}

/// While it is there, the node is not wiped, powered, reinstalled or removed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Protection {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    #[schemars(with = "String")]
    pub since: Timestamp,
}

/// A person is working on the machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Maintenance {
    pub reason: String,
    #[schemars(with = "String")]
    pub since: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub until: Option<Timestamp>,
}

/// Where a node came from, and which fields its source may overwrite.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Provenance {
    /// Such as `smd` or `file`.
    pub source: Name,
    /// The identifier of the node at the source.
    pub external_id: String,
    /// Fields of the spec that people took over; the source does not write them any more.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub released: Vec<String>,
}

/// The last observed state of a machine. Stored apart from the spec; never makes a site revision.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NodeState {
    #[serde(default)]
    pub power: Power,
    /// The lifecycle phase of the machine, as reported.
    #[serde(default)]
    pub phase: Lifecycle,
    #[schemars(with = "String")]
    pub since: Timestamp,
    /// Who says so: `smd`, `agent`, `operator`.
    pub source: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Power {
    On,
    Off,
    #[default]
    Unknown,
}

/// How far a node is on its journey. Derived, never stored on the node.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema, PartialOrd, Ord,
)]
#[serde(rename_all = "lowercase")]
pub enum Lifecycle {
    Discovered,
    #[default]
    Declared,
    Installing,
    Installed,
    Joining,
    Member,
    Draining,
    Retired,
}

impl Lifecycle {
    pub const ALL: [Self; 8] = [
        Self::Discovered,
        Self::Declared,
        Self::Installing,
        Self::Installed,
        Self::Joining,
        Self::Member,
        Self::Draining,
        Self::Retired,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Discovered => "discovered",
            Self::Declared => "declared",
            Self::Installing => "installing",
            Self::Installed => "installed",
            Self::Joining => "joining",
            Self::Member => "member",
            Self::Draining => "draining",
            Self::Retired => "retired",
        }
    }
}

impl Default for NodeSpec {
    fn default() -> Self {
        Self {
            xname: None,
            nid: None,
            partition: Name::default_partition(),
            groups: Groups::default(),
            boot: None,
            interfaces: Vec::new(),
            arch: Arch::default(),
            firmware: Firmware::default(),
            role: None,
            subrole: None,
            enabled: true,
            bmc: None,
            system: None,
            labels: Labels::default(),
            data: None,
        }
    }
}

impl NodeSpec {
    /// Gives back the memory that growing left over. For specs that are kept for long.
    pub fn shrink(&mut self) {
        exact(&mut self.interfaces);
        for interface in &mut self.interfaces {
            exact(&mut interface.addresses);
        }
    }

    /// Where the node itself speaks from: its management controller is another machine.
    pub fn own_addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.addresses(|kind| kind != InterfaceKind::Bmc)
    }

    pub fn has_bmc_at(&self, address: IpAddr) -> bool {
        self.addresses(|kind| kind == InterfaceKind::Bmc).any(|one| one == address)
    }

    fn addresses(&self, of: impl Fn(InterfaceKind) -> bool) -> impl Iterator<Item = IpAddr> {
        let interfaces = self.interfaces.iter().filter(move |interface| of(interface.kind));
        interfaces.flat_map(|interface| &interface.addresses).map(IpNet::addr)
    }

    /// Everything wrong with this spec by itself. Clashes with other nodes are the roster's business.
    pub fn check(&self) -> Vec<Diagnostic> {
        let mut diagnostics = Vec::new();
        if self.xname.is_some_and(|xname| !xname.is_node()) {
            diagnostics.push(
                Diagnostic::new("xname", "this xname does not name a node")
                    .hint("a node's xname ends in n and a number, like x1000c0s0b0n0"),
            );
        }
        at_most(&mut diagnostics, "groups", self.groups.len(), MAX_GROUPS);
        let uuid = self.system.as_ref().and_then(|system| system.uuid.as_ref());
        if let Some(uuid) = uuid.filter(|uuid| !is_uuid(uuid)) {
            diagnostics.push(
                Diagnostic::new("system.uuid", format!("`{uuid}` is not a UUID"))
                    .hint("write it like 4c4c4544-0042-3510-8057-b4c04f4a5931"),
            );
        }
        self.check_interfaces(&mut diagnostics);
        self.check_boot(&mut diagnostics);
        self.check_labels(&mut diagnostics);
        self.check_data(&mut diagnostics);
        diagnostics
    }

    fn check_interfaces(&self, diagnostics: &mut Vec<Diagnostic>) {
        at_most(diagnostics, "interfaces", self.interfaces.len(), MAX_INTERFACES);
        for (i, interface) in self.interfaces.iter().enumerate() {
            let at = format!("interfaces[{i}]");
            if !interface.mac.is_unicast() {
                let message = format!("`{}` cannot belong to one interface", interface.mac);
                diagnostics.push(Diagnostic::new(format!("{at}.mac"), message)
                    .hint("broadcast, multicast and all-zero addresses are placeholders; leave the interface out"));
            }
            at_most(
                diagnostics,
                &format!("{at}.addresses"),
                interface.addresses.len(),
                MAX_ADDRESSES,
            );
            if interface.vlan.is_some_and(|vlan| !(1..=4094).contains(&vlan)) {
                diagnostics.push(Diagnostic::new(format!("{at}.vlan"), "a VLAN is 1 to 4094"));
            }
            for earlier in &self.interfaces[..i] {
                if earlier.name == interface.name {
                    let message = format!("two interfaces are named `{}`", interface.name);
                    diagnostics.push(Diagnostic::new(format!("{at}.name"), message));
                }
                if earlier.mac == interface.mac {
                    let message = format!("two interfaces have the MAC {}", interface.mac);
                    diagnostics.push(Diagnostic::new(format!("{at}.mac"), message));
                }
            }
        }
    }

    fn check_boot(&self, diagnostics: &mut Vec<Diagnostic>) {
        let Some(choice) = &self.boot else { return };
        if **choice == BootChoice::default() {
            diagnostics.push(
                Diagnostic::new("boot", "selects no interface")
                    .hint("name `mac`, `ip` or `interface`, or leave `boot` out"),
            );
        } else if crate::boot::chosen(self, choice).is_none() {
            diagnostics
                .push(Diagnostic::new("boot", "no interface of this node fits the choice").hint(
                "`mac`, `ip` and `interface` must all be those of one interface that is not a BMC",
            ));
        }
    }

    fn check_labels(&self, diagnostics: &mut Vec<Diagnostic>) {
        at_most(diagnostics, "labels", self.labels.0.len(), MAX_LABELS);
        for (key, value) in self.labels.iter() {
            let plain = !value.chars().any(char::is_control);
            if value.len() > MAX_LABEL_VALUE || !plain {
                let message = format!(
                    "a label value has at most {MAX_LABEL_VALUE} characters, none of them control characters"
                );
                diagnostics.push(Diagnostic::new(format!("labels.{key}"), message));
            }
        }
    }

    fn check_data(&self, diagnostics: &mut Vec<Diagnostic>) {
        let Some(data) = &self.data else { return };
        let bytes = serde_json::to_vec(data).map_or(usize::MAX, |text| text.len());
        if bytes > MAX_DATA_BYTES {
            let message = format!("{bytes} bytes of data are more than {MAX_DATA_BYTES}");
            diagnostics
                .push(Diagnostic::new("data", message).hint("keep large files in artifacts"));
        }
    }
}

/// Moves a list to an allocation of exact size. Shrinking it in place would leave a hole behind
/// every node, too small for most later allocations.
fn exact<T>(list: &mut Vec<T>) {
    if list.capacity() > list.len() {
        let mut moved = Vec::with_capacity(list.len());
        moved.append(list);
        *list = moved;
    }
}

fn at_most(diagnostics: &mut Vec<Diagnostic>, at: &str, count: usize, limit: usize) {
    if count > limit {
        diagnostics
            .push(Diagnostic::new(at, format!("{count} are more than the limit of {limit}")));
    }
}

impl Labels {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn get(&self, key: &str) -> Option<&str> {
        let found = self.0.binary_search_by(|(k, _)| k.as_str().cmp(key)).ok()?;
        Some(self.0[found].1.as_str())
    }

    pub fn iter(&self) -> impl Iterator<Item = (&LabelKey, &str)> {
        self.0.iter().map(|(key, value)| (key, value.as_str()))
    }
}

impl Groups {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn contains(&self, group: &GroupName) -> bool {
        self.0.binary_search(group).is_ok()
    }

    pub fn iter(&self) -> std::slice::Iter<'_, GroupName> {
        self.0.iter()
    }

    #[must_use]
    pub fn with(&self, group: GroupName) -> Self {
        self.iter().cloned().chain([group]).collect()
    }

    #[must_use]
    pub fn without(&self, group: &GroupName) -> Self {
        self.iter().filter(|other| *other != group).cloned().collect()
    }
}

impl<'a> IntoIterator for &'a Groups {
    type Item = &'a GroupName;
    type IntoIter = std::slice::Iter<'a, GroupName>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl FromIterator<GroupName> for Groups {
    fn from_iter<I: IntoIterator<Item = GroupName>>(names: I) -> Self {
        let mut names: Vec<_> = names.into_iter().collect();
        names.sort();
        names.dedup();
        exact(&mut names);
        Self(names.into_boxed_slice())
    }
}

impl Serialize for Groups {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.iter())
    }
}

impl<'de> Deserialize<'de> for Groups {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Vec::<GroupName>::deserialize(deserializer)?.into_iter().collect())
    }
}

impl JsonSchema for Groups {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Groups".into()
    }
    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        BTreeSet::<GroupName>::json_schema(generator)
    }
}

impl FromIterator<(LabelKey, String)> for Labels {
    fn from_iter<I: IntoIterator<Item = (LabelKey, String)>>(pairs: I) -> Self {
        // Through a map, so that a key given twice keeps its last value.
        let map: BTreeMap<_, _> = pairs.into_iter().collect();
        Self(map.into_iter().map(|(key, value)| (key, value.into())).collect())
    }
}

impl Serialize for Labels {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter())
    }
}

impl<'de> Deserialize<'de> for Labels {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let map = BTreeMap::<LabelKey, String>::deserialize(deserializer)?;
        Ok(map.into_iter().collect())
    }
}

impl JsonSchema for Labels {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Labels".into()
    }
    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "type": "object", "additionalProperties": { "type": "string" } })
    }
}

impl Node {
    /// Whether a rule forbids to wipe, power, reinstall or remove it now.
    pub fn is_protected(&self) -> bool {
        self.protection.is_some()
    }
}

/// 32 hex digits in the usual groups.
pub fn is_uuid(text: &str) -> bool {
    let groups: Vec<&str> = text.split('-').collect();
    groups.iter().map(|group| group.len()).eq([8, 4, 4, 4, 12])
        && groups.iter().all(|group| group.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

fn lower_case<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<String>, D::Error> {
    let text = Option::<String>::deserialize(from)?;
    Ok(text.map(|text| text.to_ascii_lowercase()))
}

fn yes() -> bool {
    true
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}
