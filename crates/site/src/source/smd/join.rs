//! SMD has no nodes: they are joined from components, interfaces and memberships. Pure, and linear
//! in the size of the input (apart from sorting).

use std::collections::{BTreeMap, BTreeSet, HashMap};

use compact_str::{CompactString, ToCompactString};
use hoist_model::node::{Bmc, Groups};
use hoist_model::{
    GroupName, GroupSpec, Interface, InterfaceKind, Name, Nid, NodeSpec, Role, Xname, XnameKind,
};

use super::wire::{Component, EthernetInterface, Group, Membership, NidValue};
use crate::source::value::{Reader, interface, is_placeholder, observed, short};
use crate::source::{
    Field, FieldSet, ImportedNode, ImportedSet, Warning, WarningKind, declare_named, settle,
};

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JoinOptions {
    /// Give a node without interfaces those that are filed under its BMC, when it is the only node
    /// there. Off, it is only reported: the BMC's own interface looks just the same.
    pub repair_bmc_nics: bool,
}

/// What SMD knows about a node. Labels, data, firmware and the like are never touched.
pub const FIELDS: [Field; 10] = [
    Field::Xname,
    Field::Nid,
    Field::Partition,
    Field::Groups,
    Field::Interfaces,
    Field::Arch,
    Field::Role,
    Field::Subrole,
    Field::Enabled,
    Field::Bmc,
];

/// Joins three lists that were fetched at one revision into nodes and their groups.
///
/// Never fails: an invalid value is left out with a warning, and an invalid machine is held.
pub fn join(
    components: Vec<Component>,
    interfaces: Vec<EthernetInterface>,
    memberships: Vec<Membership>,
    groups: Vec<Group>,
    options: &JoinOptions,
) -> ImportedSet {
    Join::new(interfaces, memberships, groups, options).run(components)
}

/// Ids as keys: SMD normalises most of them, hand-made records are not.
type Key = CompactString;

pub(super) struct Join<'o> {
    options: &'o JoinOptions,
    nics: HashMap<Key, Vec<Nic>>,
    memberships: HashMap<Key, Membership>,
    groups: HashMap<GroupName, GroupSpec>,
    /// Names of networks as SMD spells them, where that is not the name here.
    spellings: BTreeMap<Name, String>,
    warnings: Vec<Warning>,
    placeholders: Tally,
    unowned: Tally,
    without_nid: Tally,
    without_partition: Tally,
    /// How often a record was touched: the test of linearity counts work, not time.
    pub(super) visits: usize,
}

struct Nic {
    filed: EthernetInterface,
    kind: InterfaceKind,
}

impl<'o> Join<'o> {
    pub(super) fn new(
        interfaces: Vec<EthernetInterface>,
        memberships: Vec<Membership>,
        groups: Vec<Group>,
        options: &'o JoinOptions,
    ) -> Self {
        let mut join = Self {
            options,
            nics: HashMap::with_capacity(interfaces.len()),
            memberships: HashMap::with_capacity(memberships.len()),
            groups: HashMap::with_capacity(groups.len()),
            spellings: BTreeMap::new(),
            warnings: Vec::new(),
            placeholders: Tally::default(),
            unowned: Tally::default(),
            without_nid: Tally::default(),
            without_partition: Tally::default(),
            visits: 0,
        };
        for filed in interfaces {
            join.visits += 1;
            let (key, kind) = owner(&filed.component_id);
            // An interface without an owner: SMD keeps interfaces that it has seen anywhere.
            if key.is_empty() {
                join.unowned.add(&filed.mac);
                continue;
            }
            join.nics.entry(key).or_default().push(Nic { filed, kind });
        }
        for membership in memberships {
            join.visits += 1;
            join.memberships.insert(key(&membership.id), membership);
        }
        for group in groups {
            join.visits += 1;
            join.group(group);
        }
        join
    }

    fn group(&mut self, group: Group) {
        let mut reader = Reader { subject: &group.label, warnings: &mut self.warnings };
        let Some(name) = reader.parse::<GroupName>(&group.label) else { return };
        let exclusive_set = reader.network(&group.exclusive_group);
        let spec =
            GroupSpec { description: group.description, exclusive_set, ..GroupSpec::default() };
        self.groups.insert(name, spec);
    }

    pub(super) fn run(&mut self, components: Vec<Component>) -> ImportedSet {
        let mut present: Vec<(Option<Xname>, Component)> = components
            .into_iter()
            .map(|component| (component.id.parse().ok(), component))
            .filter(|(xname, component)| is_node(xname.as_ref(), component))
            .collect();
        self.visits += present.len();
        // Slots count as neighbours on a BMC only when there is a machine in them.
        present.retain(|(_, component)| !component.state.eq_ignore_ascii_case("empty"));
        // By xname; components without a valid one come last.
        present.sort_by(|(x, a), (y, b)| (x.is_none(), x, &a.id).cmp(&(y.is_none(), y, &b.id)));
        let mut on_bmc: HashMap<Key, usize> = HashMap::new();
        for bmc in present.iter().filter_map(|(xname, _)| bmc_of(xname.as_ref())) {
            *on_bmc.entry(bmc.to_compact_string()).or_default() += 1;
        }
        let mut seen = BTreeSet::new();
        let mut imported = ImportedSet {
            fields: FIELDS.into_iter().collect::<FieldSet>(),
            ..ImportedSet::default()
        };
        for (xname, component) in present {
            self.visits += 1;
            let id = key(&component.id);
            if id.is_empty() {
                let message = "there is a component without an id";
                self.warnings.push(Warning::new(WarningKind::Held, "", message));
                continue;
            }
            if !seen.insert(id.clone()) {
                let message = "there are two components with this id; the second is left out";
                self.warnings.push(Warning::new(WarningKind::Collision, id.as_str(), message));
                continue;
            }
            match self.node(&id, xname, &component, &on_bmc) {
                Some(node) => imported.nodes.push(node),
                None => {
                    imported.held.insert(id.into());
                }
            }
        }
        self.orphans(&seen);
        drop_unset_nids(&mut imported.nodes);
        self.tell_tallies(imported.nodes.len());
        imported.nodes = settle(imported.nodes, &mut self.warnings);
        self.exclusive_sets(&mut imported.nodes);
        self.declare(&mut imported);
        imported.warnings = std::mem::take(&mut self.warnings);
        imported
    }

    /// `None`: it is there, but there is nothing to know it by.
    fn node(
        &mut self,
        id: &Key,
        xname: Option<Xname>,
        component: &Component,
        on_bmc: &HashMap<Key, usize>,
    ) -> Option<ImportedNode> {
        let mut reader = Reader { subject: id, warnings: &mut self.warnings };
        // Parsed again for the warning only.
        let xname = xname.filter(Xname::is_node).or_else(|| reader.node_xname(&component.id));
        let mut spec = NodeSpec {
            xname,
            arch: reader.arch(&component.arch),
            role: reader.parse::<Role>(&component.role),
            subrole: reader.parse::<Role>(&component.sub_role),
            enabled: component.enabled.unwrap_or(true),
            nid: match &component.nid {
                Some(NidValue::Number(number)) => reader.nid(*number),
                Some(NidValue::Text(text)) if text != "-1" => reader.parse(text),
                _ => None,
            },
            ..NodeSpec::default()
        };
        let bmc = bmc_of(xname.as_ref());
        spec.bmc = bmc.map(|bmc| Box::new(Bmc { r#ref: bmc.to_string(), protocol: None }));
        let membership = self.memberships.get(id);
        let partition = membership.map(|m| m.partition_name.as_str()).unwrap_or_default();
        let Some(partition) = partition_of(partition) else {
            let message = format!("the partition `{}` is no name", short(partition));
            reader.warn(WarningKind::Held, message);
            return None;
        };
        if partition == Name::default_partition() {
            self.without_partition.add(id);
        }
        if spec.nid.is_none() {
            self.without_nid.add(id);
        }
        spec.partition = partition;
        if let Some(membership) = membership {
            let labels = membership.group_labels.iter().map(CompactString::as_str);
            spec.groups = reader.groups(labels).into_iter().collect::<Groups>();
        }
        spec.interfaces = self.interfaces(id);
        if spec.interfaces.is_empty() {
            spec.interfaces = self.misfiled(id, bmc, on_bmc);
        }
        if spec.xname.is_none() && spec.interfaces.is_empty() {
            let message = "it has neither a valid xname nor an interface";
            self.warnings.push(Warning::new(WarningKind::Held, id.as_str(), message));
            return None;
        }
        spec.shrink();
        let state = observed(&component.state);
        Some(ImportedNode { external_id: id.to_string(), name: None, spec, state })
    }

    /// In the order of their MACs: SMD has none.
    fn interfaces(&mut self, id: &Key) -> Vec<Interface> {
        let nics = self.nics.remove(id).unwrap_or_default();
        self.visits += nics.len();
        let mut interfaces = Vec::with_capacity(nics.len());
        for nic in nics {
            if is_placeholder(nic.filed.mac.trim()) {
                self.placeholders.add(id);
                continue;
            }
            interfaces.extend(read_nic(id, &nic, &mut self.warnings, &mut self.spellings));
        }
        interfaces.sort_by_key(|interface| interface.mac);
        interfaces
    }

    /// Interfaces filed under the BMC of a node that has none itself.
    fn misfiled(
        &mut self,
        id: &Key,
        bmc: Option<Xname>,
        on_bmc: &HashMap<Key, usize>,
    ) -> Vec<Interface> {
        let Some(bmc) = bmc.map(|bmc| bmc.to_compact_string()) else { return Vec::new() };
        let filed = self.nics.get(&bmc).map_or(0, Vec::len);
        if filed == 0 {
            return Vec::new();
        }
        let nodes = on_bmc.get(&bmc).copied().unwrap_or_default();
        let alone = nodes == 1;
        let found =
            if self.options.repair_bmc_nics && alone { self.interfaces(&bmc) } else { Vec::new() };
        let message = if !found.is_empty() {
            format!("it has no interface; {} of its BMC {bmc} were taken over", found.len())
        } else if alone {
            format!("it has no interface, but its BMC {bmc} has {filed}; are they misfiled?")
        } else {
            format!("it has no interface, but its BMC {bmc} has {filed} and {nodes} nodes")
        };
        self.warnings.push(Warning::new(WarningKind::MisfiledNic, id.as_str(), message));
        found
    }

    /// Interfaces of nodes that are not there. Those of switches and controllers are none of ours.
    fn orphans(&mut self, seen: &BTreeSet<Key>) {
        let mut orphans: Vec<_> = self
            .nics
            .iter()
            .filter(|(id, _)| {
                !seen.contains(*id) && id.parse::<Xname>().is_ok_and(|xname| xname.is_node())
            })
            .map(|(id, nics)| (id.to_string(), nics.len()))
            .collect();
        self.visits += self.nics.len();
        orphans.sort();
        self.warnings.extend(orphans.into_iter().map(|(id, count)| {
            let message = format!("{count} interfaces name it, but the node does not exist");
            Warning::new(WarningKind::Orphan, id, message)
        }));
    }

    /// One warning for each thing that may be true of many nodes.
    fn tell_tallies(&mut self, nodes: usize) {
        let has_partitions = self.without_partition.count < nodes;
        let told = [
            (
                WarningKind::PlaceholderMac,
                &self.placeholders,
                "interfaces have a placeholder MAC and are left out",
            ),
            (WarningKind::Orphan, &self.unowned, "interfaces belong to no component"),
            (WarningKind::NoNid, &self.without_nid, "nodes have no NID"),
            (
                WarningKind::NoPartition,
                &self.without_partition,
                "nodes have no partition and are in `default`",
            ),
        ];
        for (kind, tally, what) in told {
            let is_normal = kind == WarningKind::NoPartition && !has_partitions;
            if tally.count > 0 && !is_normal {
                let message = format!("{} {what}: {}", tally.count, tally.shown());
                self.warnings.push(Warning::new(kind, "smd", message));
            }
        }
    }

    /// A node is in at most one group of an exclusive set. SMD sees to that, but memberships and
    /// groups are two answers.
    fn exclusive_sets(&mut self, nodes: &mut [ImportedNode]) {
        for node in nodes {
            self.visits += 1;
            let mut taken: BTreeMap<&Name, &GroupName> = BTreeMap::new();
            let mut excluded = Vec::new();
            for name in &node.spec.groups {
                let set = self.groups.get(name).and_then(|group| group.exclusive_set.as_ref());
                let Some(set) = set else { continue };
                match taken.get(set) {
                    None => {
                        taken.insert(set, name);
                    }
                    Some(first) => {
                        let message = format!("`{first}` excludes `{name}`");
                        let subject = node.external_id.as_str();
                        self.warnings.push(Warning::new(WarningKind::Collision, subject, message));
                        excluded.push(name.clone());
                    }
                }
            }
            for name in excluded {
                node.spec.groups = node.spec.groups.without(&name);
            }
        }
    }

    /// The groups that nodes are in. A group lives inside of a partition, so one label of SMD may
    /// become several groups.
    fn declare(&mut self, imported: &mut ImportedSet) {
        self.visits += imported.nodes.len();
        declare_named(imported);
        for (key, spec) in &mut imported.groups {
            if let Some(known) = self.groups.get(&key.name) {
                spec.clone_from(known);
            }
        }
        for (name, spec) in &mut imported.networks {
            spec.smd_name = self.spellings.get(name).cloned();
        }
    }
}

/// How many records have something in common, and the first of them.
#[derive(Debug, Default)]
struct Tally {
    count: usize,
    first: Vec<String>,
}

impl Tally {
    /// Records that are named.
    const NAMED: usize = 5;

    fn add(&mut self, id: &str) {
        self.count += 1;
        if self.first.len() < Self::NAMED {
            self.first.push(short(id));
        }
    }

    fn shown(&self) -> String {
        let more = if self.count > self.first.len() { ", …" } else { "" };
        format!("{}{more}", self.first.join(", "))
    }
}

fn read_nic(
    subject: &str,
    nic: &Nic,
    warnings: &mut Vec<Warning>,
    spellings: &mut BTreeMap<Name, String>,
) -> Option<Interface> {
    let mut reader = Reader { subject, warnings };
    let mut found = interface(reader.mac(&nic.filed.mac)?);
    found.kind = nic.kind;
    let mut addresses: Vec<_> = nic
        .filed
        .addresses
        .iter()
        .filter_map(|a| Some((reader.address(&a.ip)?, a.network.as_str())))
        .collect();
    addresses.sort_unstable();
    addresses.dedup_by_key(|(address, _)| *address);
    let networks: BTreeSet<_> =
        addresses.iter().map(|(_, network)| *network).filter(|n| !n.is_empty()).collect();
    if networks.len() > 1 {
        let message = format!(
            "the interface {} has addresses on {} networks; it is filed under the first",
            found.mac,
            networks.len()
        );
        reader.warn(WarningKind::Value, message);
    }
    found.network = networks.first().and_then(|network| reader.network(network));
    if let (Some(name), Some(spelled)) = (&found.network, networks.first())
        && name.as_str() != *spelled
    {
        spellings.entry(name.clone()).or_insert_with(|| (*spelled).to_owned());
    }
    if found.network.as_ref().is_some_and(|network| *network == *"hsn") {
        found.kind = InterfaceKind::Hsn;
    }
    found.addresses = addresses.into_iter().map(|(address, _)| address).collect();
    Some(found)
}

/// Tools that have no nid for a node send 0 to SMD. One node may have the nid 0; of several nodes
/// none has it.
fn drop_unset_nids(nodes: &mut [ImportedNode]) {
    let zero = Some(Nid::new(0));
    if nodes.iter().filter(|node| node.spec.nid == zero).count() > 1 {
        for node in nodes.iter_mut().filter(|node| node.spec.nid == zero) {
            node.spec.nid = None;
        }
    }
}

/// We ask for nodes only, but SMD ignores filters it does not understand.
fn is_node(xname: Option<&Xname>, component: &Component) -> bool {
    match component.r#type.as_str() {
        "" => xname.is_none_or(Xname::is_node),
        word => word.eq_ignore_ascii_case("node") || word.eq_ignore_ascii_case("virtualnode"),
    }
}

/// SMD's partitions are `p1` and `p1.2`; a dot is not for names.
fn partition_of(text: &str) -> Option<Name> {
    match text.trim() {
        "" => Some(Name::default_partition()),
        text => text.replace('.', "-").parse().ok(),
    }
}

fn bmc_of(node: Option<&Xname>) -> Option<Xname> {
    node.filter(|xname| xname.kind() == XnameKind::Node).and_then(Xname::parent)
}

/// An id in its one spelling.
pub(crate) fn key(id: &str) -> Key {
    match id.parse::<Xname>() {
        Ok(xname) => xname.to_compact_string(),
        Err(_) => id.trim().to_ascii_lowercase().into(),
    }
}

/// The node or BMC of an interface: some are filed under the interface's own xname.
fn owner(component_id: &str) -> (Key, InterfaceKind) {
    let Ok(xname) = component_id.parse::<Xname>() else {
        return (key(component_id), InterfaceKind::Other);
    };
    let (owner, kind) = match xname.kind() {
        XnameKind::NodeNic | XnameKind::NodeBmcNic => (xname.parent(), InterfaceKind::Other),
        XnameKind::NodeHsnNic => (xname.parent(), InterfaceKind::Hsn),
        _ => (Some(xname), InterfaceKind::Other),
    };
    (owner.unwrap_or(xname).to_compact_string(), kind)
}

#[cfg(test)]
mod tests;
