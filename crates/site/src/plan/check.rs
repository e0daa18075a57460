//! Invariants of the site as a whole: references resolve and unique keys are unique.
//!
//! Does not belong here: rules of a single document (`hoist-model`), and rules about rights.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::Hash;
use std::net::IpAddr;

use hoist_diagnostic::Diagnostic;
use hoist_model::selector::Vocabulary;
use hoist_model::{
    Artifact, BootConfig, Group, GroupKey, Kind, Mac, MetadataLayer, Name, Network, Nid, Node,
    NodeId, NodeSpec, Partition, ProvisionProfile, Selector, Xname, nearest,
};

use super::{DocumentRef, Draft, Reason, Refusal};
use crate::kind::DocumentKind;
use crate::selector_names::{KnownNames, unknown_name};
use crate::uses::{ArtifactUsers, Uses};

/// The fields of a spec that a source sets, and that people change only after releasing them.
pub const MANAGED_FIELDS: [&str; 9] =
    ["xname", "nid", "partition", "groups", "interfaces", "arch", "role", "subrole", "enabled"];

/// Most refusals worth telling at once.
const MAX_REFUSALS: usize = 100;

pub(super) fn whole(draft: &mut Draft<'_>) {
    let mut found = Vec::new();
    nodes(draft, &mut found);
    for kind in Kind::ALL {
        documents(kind, draft, &mut found);
    }
    boot_states(draft, &mut found);
    found.truncate(MAX_REFUSALS);
    for refusal in found {
        draft.refuse(refusal);
    }
}

fn documents(kind: Kind, draft: &Draft<'_>, found: &mut Vec<Refusal>) {
    match kind {
        // Nodes come first: most refusals are about them.
        Kind::Node => {}
        Kind::Group => Group::check(draft, found),
        Kind::Partition => Partition::check(draft, found),
        Kind::Network => Network::check(draft, found),
        Kind::Artifact => Artifact::check(draft, found),
        Kind::BootConfig => BootConfig::check(draft, found),
        Kind::MetadataLayer => MetadataLayer::check(draft, found),
        Kind::ProvisionProfile => ProvisionProfile::check(draft, found),
    }
}

fn nodes(draft: &Draft<'_>, found: &mut Vec<Refusal>) {
    managed(draft, found);
    references(draft, found);
    exclusive_sets(draft, found);
    unique_keys(draft, found);
}

/// A field that a source manages must change only through that source: not through the node's
/// document, a group's member list or a swap.
fn managed(draft: &Draft<'_>, found: &mut Vec<Refusal>) {
    for node in drafted(draft).filter(|node| !draft.imported.contains(&node.id)) {
        if let Some(before) = draft.roster.by_id(node.id) {
            found.extend(managed_fields(before, &node.spec));
        }
    }
}

/// Changes to fields that belong to the node's source.
fn managed_fields(node: &Node, wanted: &NodeSpec) -> Vec<Refusal> {
    let Some(provenance) = &node.provenance else { return Vec::new() };
    let differs = |field: &&str| match *field {
        "xname" => node.spec.xname != wanted.xname,
        "nid" => node.spec.nid != wanted.nid,
        "partition" => node.spec.partition != wanted.partition,
        "groups" => node.spec.groups != wanted.groups,
        "interfaces" => node.spec.interfaces != wanted.interfaces,
        "arch" => node.spec.arch != wanted.arch,
        "role" => node.spec.role != wanted.role,
        "subrole" => node.spec.subrole != wanted.subrole,
        "enabled" => node.spec.enabled != wanted.enabled,
        _ => false,
    };
    let released = |field: &&str| provenance.released.iter().any(|released| released == field);
    let held = MANAGED_FIELDS.iter().filter(|field| differs(field) && !released(field));
    held.map(|field| {
        let message = format!("`{field}` comes from `{}`", provenance.source);
        let hint = format!("change it there, or `hoist node release {} {field}`", node.name);
        let diagnostic = Diagnostic::new(*field, message).hint(hint);
        Refusal::of(Reason::Managed, Kind::Node, &node.name, diagnostic)
    })
    .collect()
}

fn drafted<'d>(draft: &'d Draft<'_>) -> impl Iterator<Item = &'d Node> {
    draft.nodes.values().flatten()
}

fn references(draft: &Draft<'_>, found: &mut Vec<Refusal>) {
    let mut computed = Vec::new();
    for node in drafted(draft) {
        let spec = &node.spec;
        let mut missing = |at: String, kind: Kind, name: String, close: Option<String>| {
            let diagnostic = Diagnostic::new(at, format!("{kind} `{name}` not found"));
            let hint = match close {
                Some(close) => format!("did you mean `{close}`?"),
                None => {
                    format!("declare it in the same file, or `hoist {} add {name}`", word(kind))
                }
            };
            let diagnostic = diagnostic.hint(hint);
            let refusal = Refusal::of(Reason::Missing, Kind::Node, &node.name, diagnostic);
            found.push(refusal.with_value(&name));
        };
        if !draft.has_partition(&spec.partition) {
            let known = draft.roster.partitions().map(|p| p.name.as_str());
            let close = nearest(&spec.partition, known).map(str::to_owned);
            missing("partition".into(), Kind::Partition, spec.partition.to_string(), close);
            continue;
        }
        for name in &spec.groups {
            let key = GroupKey { partition: spec.partition.clone(), name: name.clone() };
            let group = draft.document::<Group>(&key);
            if group.is_some_and(|group| group.spec.selector.is_some()) {
                let message = format!("the members of `{key}` are computed by its selector");
                let diagnostic = Diagnostic::new("groups", message).hint("leave it out");
                computed.push(Refusal::of(Reason::Invalid, Kind::Node, &node.name, diagnostic));
            } else if group.is_none() {
                let known = draft.roster.groups().filter(|g| g.partition == spec.partition);
                let close = nearest(name, known.map(|g| g.name.as_str())).map(str::to_owned);
                missing("groups".into(), Kind::Group, key.to_string(), close);
            }
        }
        for (i, interface) in spec.interfaces.iter().enumerate() {
            if let Some(network) = interface.network.as_ref().filter(|n| !draft.has_network(n)) {
                let known = draft.roster.networks().map(|n| n.name.as_str());
                let close = nearest(network, known).map(str::to_owned);
                let at = format!("interfaces[{i}].network");
                missing(at, Kind::Network, network.to_string(), close);
            }
        }
    }
    found.append(&mut computed);
}

/// Partitions boot from declared networks, and one that is still used stays.
pub(crate) fn partitions(draft: &Draft<'_>, found: &mut Vec<Refusal>) {
    for partition in draft.documents::<Partition>() {
        let networks = partition.spec.boot_networks.iter();
        for network in networks.filter(|network| !draft.has_network(network)) {
            let diagnostic =
                Diagnostic::new("boot_networks", format!("Network `{network}` not found"))
                    .hint("declare it, or take it out of the list");
            let refusal =
                Refusal::of(Reason::Missing, Kind::Partition, &partition.name, diagnostic);
            found.push(refusal.with_value(network));
        }
    }
    let removed: BTreeSet<_> = removed(&draft.partitions).collect();
    if removed.is_empty() {
        return;
    }
    for group in draft.documents::<Group>().filter(|group| removed.contains(&group.partition)) {
        let diagnostic = Diagnostic::new("", format!("the group `{}` is in it", group.key()))
            .hint("remove the group first, or in the same change");
        found.push(Refusal::of(Reason::InUse, Kind::Partition, &group.partition, diagnostic));
    }
    let mut users = Users::default();
    for node in all_nodes(draft).filter(|node| removed.contains(&node.spec.partition)) {
        users.add(&node.spec.partition, node);
    }
    users.refuse(Kind::Partition, found);
}

/// A network that is still used stays.
pub(crate) fn networks(draft: &Draft<'_>, found: &mut Vec<Refusal>) {
    let removed: BTreeSet<_> = removed(&draft.networks).collect();
    if removed.is_empty() {
        return;
    }
    let mut users = Users::default();
    for node in all_nodes(draft) {
        let networks = node.spec.interfaces.iter().filter_map(|i| i.network.as_ref());
        for network in networks.filter(|network| removed.contains(network)) {
            users.add(network, node);
        }
    }
    users.refuse(Kind::Network, found);
}

/// The nodes that use removed documents: how many, and the name of one.
#[derive(Default)]
struct Users<'d>(BTreeMap<&'d Name, (usize, &'d Name)>);

impl<'d> Users<'d> {
    fn add(&mut self, used: &'d Name, node: &'d Node) {
        self.0.entry(used).or_insert((0, &node.name)).0 += 1;
    }

    fn refuse(self, kind: Kind, found: &mut Vec<Refusal>) {
        for (used, (count, example)) in self.0 {
            let message = format!("{count} nodes still use it, `{example}` among them");
            let diagnostic =
                Diagnostic::new("", message).hint("move them first, or in the same change");
            found.push(Refusal::of(Reason::InUse, kind, used, diagnostic));
        }
    }
}

/// All nodes as they are after the change.
fn all_nodes<'d>(draft: &'d Draft<'_>) -> impl Iterator<Item = &'d Node> {
    let unchanged = draft.roster.nodes().filter(|node| !draft.nodes.contains_key(&node.id));
    unchanged.map(AsRef::as_ref).chain(drafted(draft))
}

fn word(kind: Kind) -> String {
    kind.as_str().to_lowercase()
}

/// A node is in at most one group of an exclusive set.
fn exclusive_sets(draft: &Draft<'_>, found: &mut Vec<Refusal>) {
    for node in drafted(draft).chain(under_new_rules(draft)) {
        let mut taken: HashMap<&Name, &str> = HashMap::new();
        for name in &node.spec.groups {
            let key = GroupKey { partition: node.spec.partition.clone(), name: name.clone() };
            let set =
                draft.document::<Group>(&key).and_then(|group| group.spec.exclusive_set.as_ref());
            if let Some(other) = set.and_then(|set| taken.insert(set, name)) {
                let message = format!("`{other}` and `{name}` exclude each other");
                let diagnostic = Diagnostic::new("groups", message).hint("keep one of them");
                found.push(Refusal::of(Reason::Clash, Kind::Node, &node.name, diagnostic));
            }
        }
    }
}

/// Nodes that stay as they are while one of their groups joins an exclusive set.
fn under_new_rules<'d>(draft: &'d Draft<'_>) -> impl Iterator<Item = &'d Node> {
    let joins = |key: &GroupKey, group: &Option<Group>| {
        let set = |spec: &hoist_model::GroupSpec| spec.exclusive_set.clone();
        let after = group.as_ref().and_then(|group| set(&group.spec));
        after.is_some() && after != draft.roster.group(key).and_then(|group| set(&group.spec))
    };
    let partitions: BTreeSet<&Name> = draft
        .groups
        .iter()
        .filter(|(key, group)| joins(key, group))
        .map(|(key, _)| &key.partition)
        .collect();
    let nodes = partitions.into_iter().flat_map(|name| draft.roster.in_partition(name));
    nodes.filter(|node| !draft.nodes.contains_key(&node.id)).map(AsRef::as_ref)
}

/// Who holds which key, in the draft first and in the roster behind it.
fn unique_keys(draft: &Draft<'_>, found: &mut Vec<Refusal>) {
    let mut keys = UniqueKeyCheck { draft, found, claimed: ClaimedKeys::default() };
    for node in drafted(draft) {
        keys.check(node);
    }
}

#[derive(Default)]
struct ClaimedKeys {
    names: HashMap<Name, NodeId>,
    xnames: HashMap<Xname, NodeId>,
    nids: HashMap<Nid, NodeId>,
    macs: HashMap<Mac, NodeId>,
    uuids: HashMap<String, NodeId>,
    addresses: HashMap<(Option<Name>, IpAddr), NodeId>,
}

struct UniqueKeyCheck<'d, 'a> {
    draft: &'d Draft<'a>,
    found: &'d mut Vec<Refusal>,
    claimed: ClaimedKeys,
}

impl UniqueKeyCheck<'_, '_> {
    fn check(&mut self, node: &Node) {
        let roster = self.draft.roster;
        let id = node.id;
        let other = claim(&mut self.claimed.names, node.name.clone(), id);
        self.clash(node, "name", &node.name, other, roster.by_name(&node.name).map(|n| n.id));
        if let Some(xname) = node.spec.xname {
            let other = claim(&mut self.claimed.xnames, xname, id);
            self.clash(node, "xname", &xname, other, roster.by_xname(xname).map(|n| n.id));
        }
        if let Some(nid) = node.spec.nid {
            let other = claim(&mut self.claimed.nids, nid, id);
            self.clash(node, "nid", &nid, other, roster.by_nid(nid).map(|n| n.id));
        }
        if let Some(uuid) = node.spec.system.as_ref().and_then(|system| system.uuid.as_ref()) {
            let other = claim(&mut self.claimed.uuids, uuid.clone(), id);
            self.clash(node, "system.uuid", uuid, other, roster.by_uuid(uuid).map(|n| n.id));
        }
        for (i, interface) in node.spec.interfaces.iter().enumerate() {
            let mac = interface.mac;
            let other = claim(&mut self.claimed.macs, mac, id);
            let at = format!("interfaces[{i}].mac");
            self.clash(node, &at, &mac, other, roster.by_mac(mac).map(|n| n.id));
            for address in &interface.addresses {
                let ip = address.addr();
                let key = (interface.network.clone(), ip);
                let other = claim(&mut self.claimed.addresses, key, id);
                let at = format!("interfaces[{i}].addresses");
                let known = self.holder_of_address(interface.network.as_ref(), ip, id);
                self.clash(node, &at, &ip, other, known);
            }
        }
    }

    /// An address is unique per network: the same one on another network is another address.
    fn holder_of_address(&self, network: Option<&Name>, ip: IpAddr, me: NodeId) -> Option<NodeId> {
        let holds = |node: &Node| {
            node.spec.interfaces.iter().any(|interface| {
                interface.network.as_ref() == network
                    && interface.addresses.iter().any(|address| address.addr() == ip)
            })
        };
        let found = self.draft.roster.by_ip(ip);
        found.into_iter().find(|node| node.id != me && holds(node)).map(|node| node.id)
    }

    fn clash(
        &mut self,
        node: &Node,
        at: &str,
        value: &impl std::fmt::Display,
        in_draft: Option<NodeId>,
        in_roster: Option<NodeId>,
    ) {
        // A node of the roster that the draft changes or removes is judged by its drafted self.
        let in_roster = in_roster.filter(|id| !self.draft.nodes.contains_key(id));
        let Some(other) = in_draft.or(in_roster).filter(|other| *other != node.id) else { return };
        let other = self.draft.node(other).map_or_else(String::new, |node| node.name.to_string());
        let message = format!("`{value}` belongs to node `{other}` already");
        let diagnostic = Diagnostic::new(at, message).hint("one of the two has to give it up");
        let refusal = Refusal::of(Reason::Clash, Kind::Node, &node.name, diagnostic);
        self.found.push(refusal.with_value(value).held_by(other));
    }
}

/// Takes the key; says who had it before.
fn claim<K: Hash + Eq>(claimed: &mut HashMap<K, NodeId>, key: K, id: NodeId) -> Option<NodeId> {
    claimed.insert(key, id)
}

fn removed<K, V>(drafted: &BTreeMap<K, Option<V>>) -> impl Iterator<Item = &K> {
    drafted.iter().filter(|(_, value)| value.is_none()).map(|(key, _)| key)
}

/// Selectors of groups must mean something, and not each other.
pub(crate) fn groups(draft: &Draft<'_>, found: &mut Vec<Refusal>) {
    let words = DraftVocabulary { draft };
    for (key, group) in &draft.groups {
        let Some(group) = group else { continue };
        if !draft.has_partition(&key.partition) {
            let diagnostic =
                Diagnostic::new("", format!("Partition `{}` not found", key.partition));
            found.push(Refusal::of(Reason::Missing, Kind::Group, key, diagnostic));
        }
        if let Some(diagnostic) = words.diagnostic_of(group.spec.selector.as_ref()) {
            found.push(Refusal::of(Reason::Invalid, Kind::Group, key, diagnostic));
        }
    }
}

/// Selectors of boot configurations must mean something, and the artifacts they name must exist.
pub(crate) fn boot_configs(draft: &Draft<'_>, found: &mut Vec<Refusal>) {
    let words = DraftVocabulary { draft };
    for (name, config) in &draft.boot_configs {
        let Some(config) = config else { continue };
        let about = DocumentRef::new(Kind::BootConfig, name);
        if let Some(diagnostic) = words.diagnostic_of(config.spec.selector.as_ref()) {
            found.push(Refusal::new(Reason::Invalid, about.clone(), diagnostic));
        }
        for (at, artifact) in config.spec.artifacts() {
            found.extend(missing_artifact(draft, &about, at, artifact));
        }
    }
}

/// Selectors of layers in documents must name groups and partitions of the site. A layer of
/// `OpenCHAMI`'s API is no document, and may come before its group. Layers are rendered by the rule
/// of the metadata context.
pub(crate) fn metadata_layers(draft: &Draft<'_>, found: &mut Vec<Refusal>) {
    let words = DraftVocabulary { draft };
    for (name, layer) in &draft.metadata_layers {
        let Some(layer) = layer.as_ref().filter(|_| draft.mentions(Kind::MetadataLayer, name))
        else {
            continue;
        };
        let unknown = layer.spec.selector.as_ref().and_then(|one| unknown_name(&words, one));
        if let Some(message) = unknown {
            let diagnostic = Diagnostic::new("selector", message);
            found.push(Refusal::of(Reason::Invalid, Kind::MetadataLayer, name, diagnostic));
        }
    }
}

/// The same for provision profiles.
pub(crate) fn provision_profiles(draft: &Draft<'_>, found: &mut Vec<Refusal>) {
    let words = DraftVocabulary { draft };
    for (name, profile) in &draft.provision_profiles {
        let Some(profile) = profile else { continue };
        let about = DocumentRef::new(Kind::ProvisionProfile, name);
        if let Some(diagnostic) = words.diagnostic_of(profile.spec.selector.as_ref()) {
            found.push(Refusal::new(Reason::Invalid, about.clone(), diagnostic));
        }
        for (at, artifact) in profile.spec.artifacts() {
            found.extend(missing_artifact(draft, &about, at, artifact));
        }
    }
}

fn missing_artifact(
    draft: &Draft<'_>,
    about: &DocumentRef,
    at: String,
    artifact: &str,
) -> Option<Refusal> {
    if draft.has_artifact(artifact) {
        return None;
    }
    let known = draft.roster.artifacts().map(|artifact| artifact.name.as_str());
    let hint = match nearest(artifact, known) {
        Some(close) => format!("did you mean `{close}`?"),
        None => format!("`hoist artifact add FILE --name {artifact}` first"),
    };
    let diagnostic =
        Diagnostic::new(at, format!("artifact `{artifact}` does not exist")).hint(hint);
    Some(Refusal::new(Reason::Missing, about.clone(), diagnostic).with_value(&artifact))
}

/// An artifact that a configuration or a BSS record names stays.
pub(crate) fn artifacts(draft: &Draft<'_>, found: &mut Vec<Refusal>) {
    let gone = removed(&draft.artifacts).filter_map(|name| draft.roster.artifact(name));
    let gone: Vec<_> = gone.collect();
    if gone.is_empty() {
        return;
    }
    let Draft { roster, bss, images, .. } = draft;
    let records = roster.bss_records().filter(|record| !bss.contains_key(&record.key));
    let of_images = roster.bss_images().filter(|image| !images.contains_key(&image.image));
    let uses = Uses::new(
        draft.documents::<BootConfig>(),
        records.map(AsRef::as_ref).chain(bss.values().flatten()),
        of_images.map(AsRef::as_ref).chain(images.values().flatten()),
        draft.documents::<ProvisionProfile>(),
    );
    for artifact in gone {
        let ArtifactUsers { configs, profiles, records } = uses.users(artifact);
        let configs = configs.iter().map(|config| format!("the BootConfig `{config}` names it"));
        let profiles =
            profiles.iter().map(|profile| format!("the ProvisionProfile `{profile}` names it"));
        let records = (records > 0).then(|| format!("{records} BSS records name it"));
        for message in configs.chain(profiles).chain(records) {
            let diagnostic =
                Diagnostic::new("", message).hint("change that first, or in the same change");
            let about = DocumentRef::new(Kind::Artifact, &artifact.name);
            found.push(Refusal::new(Reason::InUse, about, diagnostic));
        }
    }
}

/// A boot-once must lead somewhere.
fn boot_states(draft: &Draft<'_>, found: &mut Vec<Refusal>) {
    for state in draft.states.values().flatten() {
        let Some(once) = &state.once else { continue };
        if draft.document::<BootConfig>(once).is_none() {
            let node = draft.node(state.node);
            let about = node.map(|node| DocumentRef::new(Kind::Node, &node.name));
            let diagnostic = Diagnostic::new("once", format!("BootConfig `{once}` not found"));
            let refusal = Refusal::new(Reason::Missing, about, diagnostic);
            found.push(refusal.with_value(once));
        }
    }
}

/// The vocabulary of the site as it would be after the change.
struct DraftVocabulary<'d, 'a> {
    draft: &'d Draft<'a>,
}

impl DraftVocabulary<'_, '_> {
    fn diagnostic_of(&self, selector: Option<&Selector>) -> Option<Diagnostic> {
        let selector = selector?;
        let error = selector.bind(self).err().map(|error| error.to_string());
        let message = error.or_else(|| unknown_name(self, selector))?;
        Some(Diagnostic::new("selector", message))
    }
}

impl KnownNames for DraftVocabulary<'_, '_> {
    fn has_group(&self, name: &str) -> bool {
        self.is_group(name)
    }

    fn has_partition(&self, name: &str) -> bool {
        let drafted = name.parse().is_ok_and(|name: Name| self.draft.has_partition(&name));
        drafted || KnownNames::has_partition(self.draft.roster, name)
    }

    fn groups(&self) -> Vec<String> {
        self.draft.documents::<Group>().map(|group| group.name.to_string()).collect()
    }

    fn partitions(&self) -> Vec<String> {
        self.draft.documents::<Partition>().map(|one| one.name.to_string()).collect()
    }
}

impl Vocabulary for DraftVocabulary<'_, '_> {
    fn is_role(&self, word: &str) -> bool {
        let drafted = drafted(self.draft);
        let mut roles = drafted.flat_map(|node| [&node.spec.role, &node.spec.subrole]).flatten();
        self.draft.roster.is_role(word) || roles.any(|role| role.is(word))
    }

    fn is_group(&self, word: &str) -> bool {
        let mut drafted = self.draft.groups.iter().filter(|(_, group)| group.is_some());
        self.draft.roster.is_group(word)
            || drafted.any(|(key, _)| key.name.eq_ignore_ascii_case(word))
    }

    fn known_names(&self) -> Vec<String> {
        let mut words = self.draft.roster.known_names();
        words.extend(self.draft.groups.keys().map(|key| key.name.to_string()));
        words
    }

    fn selector_groups(&self) -> Vec<(GroupKey, hoist_model::Selector)> {
        let known = self.draft.roster.selector_groups().into_iter();
        let mut groups: Vec<_> =
            known.filter(|(key, _)| !self.draft.groups.contains_key(key)).collect();
        for (key, group) in &self.draft.groups {
            let selector = group.as_ref().and_then(|group| group.spec.selector.clone());
            groups.extend(selector.map(|selector| (key.clone(), selector)));
        }
        groups
    }

    fn first(&self, set: &hoist_model::selector::Bound) -> Option<NodeId> {
        self.draft.roster.first(set)
    }
}
