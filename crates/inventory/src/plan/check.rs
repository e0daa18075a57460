//! What must hold for the site as a whole: references lead somewhere, unique keys are unique.

use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;
use std::net::IpAddr;

use hoist_model::selector::Vocabulary;
use hoist_model::{Fault, GroupKey, Kind, Mac, Name, Nid, Node, NodeId, NodeSpec, Xname, nearest};

use super::{Draft, Reason, Refusal, subject};
use crate::uses::{Users, Uses};

/// The fields of a spec that a source sets, and that people change only after releasing them.
pub const MANAGED_FIELDS: [&str; 9] =
    ["xname", "nid", "partition", "groups", "interfaces", "arch", "role", "subrole", "enabled"];

/// Most refusals worth telling at once.
const MAX_REFUSALS: usize = 100;

pub(super) fn whole(draft: &mut Draft<'_>) {
    let mut found = Vec::new();
    managed(draft, &mut found);
    references(draft, &mut found);
    boot_networks(draft, &mut found);
    exclusive_sets(draft, &mut found);
    unique_keys(draft, &mut found);
    removals(draft, &mut found);
    computed_groups(draft, &mut found);
    boot_configs(draft, &mut found);
    provision_profiles(draft, &mut found);
    artifacts_in_use(draft, &mut found);
    boot_states(draft, &mut found);
    found.truncate(MAX_REFUSALS);
    for refusal in found {
        draft.refuse(refusal);
    }
}

/// Whoever changes a node changes only what is theirs, whichever way they come: by its own
/// document, as a member of a group, or by a swap.
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
        let fault = Fault::new(*field, message).hint(hint);
        Refusal::new(Reason::Managed, subject(Kind::Node, &node.name), fault)
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
            let fault = Fault::new(at, format!("there is no {kind} `{name}`"));
            let hint = match close {
                Some(close) => format!("did you mean `{close}`?"),
                None => {
                    format!("declare it in the same file, or `hoist {} add {name}`", word(kind))
                }
            };
            let about = subject(Kind::Node, &node.name);
            found.push(Refusal::new(Reason::Missing, about, fault.hint(hint)));
        };
        if !draft.has_partition(&spec.partition) {
            let known = draft.roster.partitions().map(|p| p.name.as_str());
            let close = nearest(&spec.partition, known).map(str::to_owned);
            missing("partition".into(), Kind::Partition, spec.partition.to_string(), close);
            continue;
        }
        for name in &spec.groups {
            let key = GroupKey { partition: spec.partition.clone(), name: name.clone() };
            let group = draft.group(&key);
            if group.is_some_and(|group| group.spec.selector.is_some()) {
                let message = format!("the members of `{key}` are computed by its selector");
                let fault = Fault::new("groups", message).hint("leave it out");
                computed.push(Refusal::new(
                    Reason::Invalid,
                    subject(Kind::Node, &node.name),
                    fault,
                ));
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

/// A partition boots from networks that are there.
fn boot_networks(draft: &Draft<'_>, found: &mut Vec<Refusal>) {
    let drafted =
        draft.partitions.iter().filter_map(|(name, partition)| Some((name, partition.as_ref()?)));
    let unchanged = draft.roster.partitions().filter(|p| !draft.partitions.contains_key(&p.name));
    let all = drafted.chain(unchanged.map(|partition| (&partition.name, partition.as_ref())));
    for (partition, spec) in all.map(|(name, partition)| (name, &partition.spec)) {
        for network in spec.boot_networks.iter().filter(|network| !draft.has_network(network)) {
            let about = subject(Kind::Partition, partition);
            let fault = Fault::new("boot_networks", format!("there is no Network `{network}`"));
            let hint = "declare it, or take it out of the list";
            found.push(Refusal::new(Reason::Missing, about, fault.hint(hint)));
        }
    }
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
            let set = draft.group(&key).and_then(|group| group.spec.exclusive_set.as_ref());
            if let Some(other) = set.and_then(|set| taken.insert(set, name)) {
                let message = format!("`{other}` and `{name}` exclude each other");
                let fault = Fault::new("groups", message).hint("keep one of them");
                found.push(Refusal::new(Reason::Clash, subject(Kind::Node, &node.name), fault));
            }
        }
    }
}

/// Nodes that stay as they are while one of their groups joins an exclusive set.
fn under_new_rules<'d>(draft: &'d Draft<'_>) -> impl Iterator<Item = &'d Node> {
    let joins = |key: &GroupKey, group: &Option<hoist_model::Group>| {
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
    let mut keys = Keys { draft, found, seen: Seen::default() };
    for node in drafted(draft) {
        keys.check(node);
    }
}

#[derive(Default)]
struct Seen {
    names: HashMap<Name, NodeId>,
    xnames: HashMap<Xname, NodeId>,
    nids: HashMap<Nid, NodeId>,
    macs: HashMap<Mac, NodeId>,
    uuids: HashMap<String, NodeId>,
    addresses: HashMap<(Option<Name>, IpAddr), NodeId>,
}

struct Keys<'d, 'a> {
    draft: &'d Draft<'a>,
    found: &'d mut Vec<Refusal>,
    seen: Seen,
}

impl Keys<'_, '_> {
    fn check(&mut self, node: &Node) {
        let roster = self.draft.roster;
        let id = node.id;
        let other = claim(&mut self.seen.names, node.name.clone(), id);
        self.clash(node, "name", &node.name, other, roster.by_name(&node.name).map(|n| n.id));
        if let Some(xname) = node.spec.xname {
            let other = claim(&mut self.seen.xnames, xname, id);
            self.clash(node, "xname", &xname, other, roster.by_xname(xname).map(|n| n.id));
        }
        if let Some(nid) = node.spec.nid {
            let other = claim(&mut self.seen.nids, nid, id);
            self.clash(node, "nid", &nid, other, roster.by_nid(nid).map(|n| n.id));
        }
        if let Some(uuid) = node.spec.system.as_ref().and_then(|system| system.uuid.as_ref()) {
            let other = claim(&mut self.seen.uuids, uuid.clone(), id);
            self.clash(node, "system.uuid", uuid, other, roster.by_uuid(uuid).map(|n| n.id));
        }
        for (i, interface) in node.spec.interfaces.iter().enumerate() {
            let mac = interface.mac;
            let other = claim(&mut self.seen.macs, mac, id);
            let at = format!("interfaces[{i}].mac");
            self.clash(node, &at, &mac, other, roster.by_mac(mac).map(|n| n.id));
            for address in &interface.addresses {
                let ip = address.addr();
                let key = (interface.network.clone(), ip);
                let other = claim(&mut self.seen.addresses, key, id);
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
        let fault = Fault::new(at, message).hint("one of the two has to give it up");
        let refusal = Refusal::new(Reason::Clash, subject(Kind::Node, &node.name), fault);
        self.found.push(Refusal { other: Some(other), ..refusal });
    }
}

/// Takes the key; says who had it before.
fn claim<K: Hash + Eq>(seen: &mut HashMap<K, NodeId>, key: K, id: NodeId) -> Option<NodeId> {
    seen.insert(key, id)
}

/// Nothing is removed that something else still needs.
fn removals(draft: &Draft<'_>, found: &mut Vec<Refusal>) {
    let gone_partitions: BTreeSet<_> = removed(&draft.partitions).collect();
    let gone_networks: BTreeSet<_> = removed(&draft.networks).collect();
    if gone_partitions.is_empty() && gone_networks.is_empty() {
        return;
    }
    let mut found_users: HashMap<String, (usize, Name)> = HashMap::new();
    let mut uses = |about: String, node: &Node| {
        found_users.entry(about).or_insert_with(|| (0, node.name.clone())).0 += 1;
    };
    let kept = draft.roster.groups().map(|group| group.key());
    let kept = kept.filter(|key| !draft.groups.contains_key(key));
    let drafted_groups = draft.groups.iter().filter(|(_, group)| group.is_some());
    for key in kept.chain(drafted_groups.map(|(key, _)| key.clone())) {
        if gone_partitions.contains(&key.partition) {
            let fault = Fault::new("", format!("the group `{key}` is in it"))
                .hint("remove the group first, or in the same change");
            let about = subject(Kind::Partition, &key.partition);
            found.push(Refusal::new(Reason::InUse, about, fault));
        }
    }
    let unchanged = draft.roster.nodes().map(std::convert::AsRef::as_ref);
    let unchanged = unchanged.filter(|node: &&Node| !draft.nodes.contains_key(&node.id));
    for node in unchanged.chain(drafted(draft)) {
        if gone_partitions.contains(&node.spec.partition) {
            uses(subject(Kind::Partition, &node.spec.partition), node);
        }
        for network in node.spec.interfaces.iter().filter_map(|i| i.network.as_ref()) {
            if gone_networks.contains(network) {
                uses(subject(Kind::Network, network), node);
            }
        }
    }
    for (about, (count, example)) in found_users {
        let message = format!("{count} nodes still use it, `{example}` among them");
        let fault = Fault::new("", message).hint("move them first, or in the same change");
        found.push(Refusal::new(Reason::InUse, about, fault));
    }
}

fn removed<K, V>(drafted: &std::collections::BTreeMap<K, Option<V>>) -> impl Iterator<Item = &K> {
    drafted.iter().filter(|(_, value)| value.is_none()).map(|(key, _)| key)
}

/// Selectors of groups must mean something, and not each other.
fn computed_groups(draft: &Draft<'_>, found: &mut Vec<Refusal>) {
    let words = Words { draft };
    for (key, group) in &draft.groups {
        let Some(group) = group else { continue };
        if !draft.has_partition(&key.partition) {
            let fault = Fault::new("", format!("there is no Partition `{}`", key.partition));
            found.push(Refusal::new(Reason::Missing, subject(Kind::Group, key), fault));
        }
        let bound = group.spec.selector.as_ref().map(|selector| selector.bind(&words));
        if let Some(Err(error)) = bound {
            let fault = Fault::new("selector", error.to_string());
            found.push(Refusal::new(Reason::Invalid, subject(Kind::Group, key), fault));
        }
    }
}

/// Selectors of boot configurations must mean something, and what they name must be there.
fn boot_configs(draft: &Draft<'_>, found: &mut Vec<Refusal>) {
    let words = Words { draft };
    for (name, config) in &draft.configs {
        let Some(config) = config else { continue };
        let about = subject(Kind::BootConfig, name);
        let bound = config.spec.selector.as_ref().map(|selector| selector.bind(&words));
        if let Some(Err(error)) = bound {
            let fault = Fault::new("selector", error.to_string());
            found.push(Refusal::new(Reason::Invalid, about.clone(), fault));
        }
        for (at, artifact) in config.spec.artifacts() {
            found.extend(missing_artifact(draft, &about, at, artifact));
        }
    }
}

/// The same for provision profiles.
fn provision_profiles(draft: &Draft<'_>, found: &mut Vec<Refusal>) {
    let words = Words { draft };
    for (name, profile) in &draft.profiles {
        let Some(profile) = profile else { continue };
        let about = subject(Kind::ProvisionProfile, name);
        let bound = profile.spec.selector.as_ref().map(|selector| selector.bind(&words));
        if let Some(Err(error)) = bound {
            let fault = Fault::new("selector", error.to_string());
            found.push(Refusal::new(Reason::Invalid, about.clone(), fault));
        }
        for (at, artifact) in profile.spec.artifacts() {
            found.extend(missing_artifact(draft, &about, at, artifact));
        }
    }
}

fn missing_artifact(draft: &Draft<'_>, about: &str, at: String, artifact: &str) -> Option<Refusal> {
    if draft.has_artifact(artifact) {
        return None;
    }
    let known = draft.roster.artifacts().map(|artifact| artifact.name.as_str());
    let hint = match nearest(artifact, known) {
        Some(close) => format!("did you mean `{close}`?"),
        None => format!("`hoist artifact add FILE --name {artifact}` first"),
    };
    let fault = Fault::new(at, format!("there is no Artifact `{artifact}`")).hint(hint);
    Some(Refusal::new(Reason::Missing, about, fault))
}

/// An artifact that a configuration or a BSS record names stays.
fn artifacts_in_use(draft: &Draft<'_>, found: &mut Vec<Refusal>) {
    let gone = removed(&draft.artifacts).filter_map(|name| draft.roster.artifact(name));
    let gone: Vec<_> = gone.collect();
    if gone.is_empty() {
        return;
    }
    let Draft { roster, configs, bss, images, profiles, .. } = draft;
    let kept = roster.boot_configs().filter(|config| !configs.contains_key(&config.name));
    let records = roster.bss_records().filter(|record| !bss.contains_key(&record.key));
    let of_images = roster.bss_images().filter(|image| !images.contains_key(&image.image));
    let of_profiles =
        roster.provision_profiles().filter(|profile| !profiles.contains_key(&profile.name));
    let uses = Uses::new(
        kept.map(AsRef::as_ref).chain(configs.values().flatten()),
        records.map(AsRef::as_ref).chain(bss.values().flatten()),
        of_images.map(AsRef::as_ref).chain(images.values().flatten()),
        of_profiles.map(AsRef::as_ref).chain(profiles.values().flatten()),
    );
    for artifact in gone {
        let Users { configs, profiles, records } = uses.users(artifact);
        let configs = configs.iter().map(|config| format!("the BootConfig `{config}` names it"));
        let profiles =
            profiles.iter().map(|profile| format!("the ProvisionProfile `{profile}` names it"));
        let records = (records > 0).then(|| format!("{records} BSS records name it"));
        for message in configs.chain(profiles).chain(records) {
            let fault = Fault::new("", message).hint("change that first, or in the same change");
            let about = subject(Kind::Artifact, &artifact.name);
            found.push(Refusal::new(Reason::InUse, about, fault));
        }
    }
}

/// A boot-once must lead somewhere.
fn boot_states(draft: &Draft<'_>, found: &mut Vec<Refusal>) {
    for state in draft.states.values().flatten() {
        let Some(once) = &state.once else { continue };
        if draft.boot_config(once).is_none() {
            let about = draft
                .node(state.node)
                .map_or_else(String::new, |node| subject(Kind::Node, &node.name));
            let fault = Fault::new("once", format!("there is no BootConfig `{once}`"));
            found.push(Refusal::new(Reason::Missing, about, fault));
        }
    }
}

/// The vocabulary of the site as it would be after the change.
struct Words<'d, 'a> {
    draft: &'d Draft<'a>,
}

impl Vocabulary for Words<'_, '_> {
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

    fn words(&self) -> Vec<String> {
        let mut words = self.draft.roster.words();
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
