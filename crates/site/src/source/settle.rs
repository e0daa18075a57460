//! What only one node can have: the first to claim it keeps it, the others go without, and a
//! warning names both.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::hash::Hash;
use std::net::IpAddr;
use std::rc::Rc;

use hoist_model::{GroupKey, Mac, Name, NetworkSpec, Nid, NodeSpec, PartitionSpec, Xname};

use super::{Field, FieldSet, ImportedNode, ImportedSet, Warning, WarningKind};

/// The model's limits of one node. Values beyond them are left out with a warning, so that one odd
/// machine does not stop the whole import.
const MAX_INTERFACES: usize = 64;
const MAX_ADDRESSES: usize = 64;
const MAX_GROUPS: usize = 128;

/// Makes a set consistent in itself. The order of `nodes` is the order of claims.
pub fn settle(nodes: Vec<ImportedNode>, warnings: &mut Vec<Warning>) -> Vec<ImportedNode> {
    let mut claims = Claims::default();
    let mut names: HashMap<Name, String> = HashMap::new();
    let mut settled = nodes;
    for node in &mut settled {
        bound(node, warnings);
        claims.trim(&node.external_id, &mut node.spec, FieldSet::all(), warnings);
        let Some(name) = node.name.clone() else { continue };
        match names.entry(name) {
            Entry::Vacant(free) => {
                free.insert(node.external_id.clone());
            }
            Entry::Occupied(taken) => {
                let message = format!("the name `{}` belongs to {}", taken.key(), taken.get());
                let subject = node.external_id.as_str();
                warnings.push(Warning::new(WarningKind::Collision, subject, message));
                node.name = None;
            }
        }
    }
    settled
}

/// Declares the partitions, groups and networks that nodes refer to and the source cannot declare.
pub(crate) fn declare_named(imported: &mut ImportedSet) {
    let mut partitions: BTreeMap<_, _> =
        std::mem::take(&mut imported.partitions).into_iter().collect();
    let mut groups: BTreeMap<_, _> = std::mem::take(&mut imported.groups).into_iter().collect();
    let mut networks: BTreeMap<_, _> = std::mem::take(&mut imported.networks).into_iter().collect();
    for node in &imported.nodes {
        let partition = &node.spec.partition;
        if !partitions.contains_key(partition) {
            partitions.insert(partition.clone(), PartitionSpec::default());
        }
        for name in &node.spec.groups {
            let key = GroupKey { partition: partition.clone(), name: name.clone() };
            groups.entry(key).or_default();
        }
        for network in node.spec.interfaces.iter().filter_map(|i| i.network.as_ref()) {
            if !networks.contains_key(network) {
                networks.insert(network.clone(), NetworkSpec::default());
            }
        }
    }
    imported.partitions = partitions.into_iter().collect();
    imported.groups = groups.into_iter().collect();
    imported.networks = networks.into_iter().collect();
}

fn bound(node: &mut ImportedNode, warnings: &mut Vec<Warning>) {
    let ImportedNode { external_id, spec, .. } = node;
    let mut limit = |what: &str, count: usize, most: usize| {
        if count > most {
            let message = format!("{count} {what} are more than {most}; the others are left out");
            warnings.push(Warning::new(WarningKind::Limit, external_id.as_str(), message));
        }
        count > most
    };
    if limit("interfaces", spec.interfaces.len(), MAX_INTERFACES) {
        spec.interfaces.truncate(MAX_INTERFACES);
    }
    for interface in &mut spec.interfaces {
        if limit("addresses of one interface", interface.addresses.len(), MAX_ADDRESSES) {
            interface.addresses.truncate(MAX_ADDRESSES);
        }
    }
    if limit("groups", spec.groups.len(), MAX_GROUPS) {
        spec.groups = spec.groups.iter().take(MAX_GROUPS).cloned().collect();
    }
}

/// Who has what.
#[derive(Debug, Default)]
pub(crate) struct Claims {
    xnames: HashMap<Xname, Rc<str>>,
    nids: HashMap<Nid, Rc<str>>,
    macs: HashMap<Mac, Rc<str>>,
    uuids: HashMap<String, Rc<str>>,
    /// An address is unique per network.
    addresses: HashMap<(Option<Name>, IpAddr), Rc<str>>,
}

impl Claims {
    /// Reserves the values of these fields of `spec` for `owner`.
    pub(crate) fn hold(&mut self, owner: &str, spec: &NodeSpec, fields: FieldSet) {
        let owner: Rc<str> = owner.into();
        if let Some(xname) = spec.xname.filter(|_| fields.contains(Field::Xname)) {
            self.xnames.entry(xname).or_insert_with(|| Rc::clone(&owner));
        }
        if let Some(nid) = spec.nid.filter(|_| fields.contains(Field::Nid)) {
            self.nids.entry(nid).or_insert_with(|| Rc::clone(&owner));
        }
        let uuid = spec.system.as_ref().and_then(|system| system.uuid.clone());
        if let Some(uuid) = uuid.filter(|_| fields.contains(Field::System)) {
            self.uuids.entry(uuid).or_insert_with(|| Rc::clone(&owner));
        }
        if !fields.contains(Field::Interfaces) {
            return;
        }
        for interface in &spec.interfaces {
            self.macs.entry(interface.mac).or_insert_with(|| Rc::clone(&owner));
            for address in &interface.addresses {
                let key = (interface.network.clone(), address.addr());
                self.addresses.entry(key).or_insert_with(|| Rc::clone(&owner));
            }
        }
    }

    /// Removes values from these fields of `spec` that other nodes own, and claims the rest for
    /// `owner`.
    pub(crate) fn trim(
        &mut self,
        owner: &str,
        spec: &mut NodeSpec,
        fields: FieldSet,
        warnings: &mut Vec<Warning>,
    ) {
        let mut claimant = Claimant { owner: owner.into(), warnings };
        if fields.contains(Field::Xname) {
            spec.xname = spec.xname.filter(|x| claimant.claim(&mut self.xnames, *x, &"xname", x));
        }
        if fields.contains(Field::Nid) {
            spec.nid = spec.nid.filter(|nid| claimant.claim(&mut self.nids, *nid, &"nid", nid));
        }
        if fields.contains(Field::System)
            && let Some(system) = &mut spec.system
        {
            let free = |uuid: &String| claimant.claim(&mut self.uuids, uuid.clone(), &"UUID", uuid);
            system.uuid = system.uuid.take().filter(free);
        }
        if !fields.contains(Field::Interfaces) {
            return;
        }
        spec.interfaces.retain(|i| claimant.claim(&mut self.macs, i.mac, &"MAC", &i.mac));
        for interface in &mut spec.interfaces {
            let network = interface.network.clone();
            interface.addresses.retain(|address| {
                let ip = address.addr();
                claimant.claim(&mut self.addresses, (network.clone(), ip), &"address", &ip)
            });
        }
    }
}

struct Claimant<'a> {
    owner: Rc<str>,
    warnings: &'a mut Vec<Warning>,
}

impl Claimant<'_> {
    fn claim<K: Hash + Eq>(
        &mut self,
        claims: &mut HashMap<K, Rc<str>>,
        key: K,
        what: &dyn fmt::Display,
        value: &dyn fmt::Display,
    ) -> bool {
        match claims.entry(key) {
            Entry::Vacant(free) => {
                free.insert(Rc::clone(&self.owner));
                true
            }
            Entry::Occupied(taken) => {
                let message = format!("the {what} {value} belongs to {}", taken.get());
                self.warnings.push(Warning::new(WarningKind::Collision, &*self.owner, message));
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(id: &str, spec: serde_json::Value) -> ImportedNode {
        let spec = serde_json::from_value(spec).unwrap();
        ImportedNode { external_id: id.to_owned(), name: id.parse().ok(), spec, state: None }
    }

    #[test]
    fn first_claimant_keeps_a_unique_value() {
        let mac = "02:00:00:00:00:01";
        let nics = serde_json::json!([{"name": "a", "mac": mac, "addresses": ["10.0.0.1/32"]}]);
        let more = serde_json::json!([
            {"name": "a", "mac": mac},
            {"name": "b", "mac": "02:00:00:00:00:02", "addresses": ["10.0.0.1/32", "10.0.0.2/32"]},
            {"name": "c", "mac": "02:00:00:00:00:03", "addresses": ["10.0.0.1/32"], "network": "hsn"},
        ]);
        let mut warnings = Vec::new();
        let nodes = settle(
            vec![
                node("one", serde_json::json!({"nid": 7, "interfaces": nics})),
                node("two", serde_json::json!({"nid": 7, "interfaces": more})),
            ],
            &mut warnings,
        );
        assert_eq!(nodes[0].spec.nid.map(Nid::get), Some(7));
        assert_eq!(nodes[1].spec.nid, None);
        let left: Vec<_> = nodes[1].spec.interfaces.iter().map(|i| i.name.as_str()).collect();
        assert_eq!(left, ["b", "c"]);
        assert_eq!(nodes[1].spec.interfaces[0].addresses.len(), 1);
        // The same address on another network is another address.
        assert_eq!(nodes[1].spec.interfaces[1].addresses.len(), 1);
        let texts: Vec<_> = warnings.iter().map(ToString::to_string).collect();
        assert_eq!(
            texts,
            [
                "two: the nid 7 belongs to one",
                "two: the MAC 02:00:00:00:00:01 belongs to one",
                "two: the address 10.0.0.1 belongs to one",
            ]
        );
    }

    #[test]
    fn node_keeps_values_up_to_the_limits() {
        for (count, kept, warned) in [(64, 64, 0), (65, 64, 1)] {
            let nics: Vec<_> = (1..=count)
                .map(|i| serde_json::json!({"name": format!("n{i}"), "mac": format!("02:00:00:00:00:{i:02x}")}))
                .collect();
            let mut warnings = Vec::new();
            let nodes =
                settle(vec![node("n", serde_json::json!({"interfaces": nics}))], &mut warnings);
            assert_eq!(nodes[0].spec.interfaces.len(), kept);
            assert_eq!(warnings.len(), warned);
            assert!(nodes[0].spec.check().is_empty());
        }
    }
}
