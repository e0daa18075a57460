//! The frozen part of a roster: nodes in id order, and tables of positions into them.
//!
//! Most tables hold only a 4-byte position and compare through the node, because a million nodes
//! with six keys each would otherwise spend more on keys than on nodes. The MAC table carries its
//! keys, since that is the lookup every booting machine waits for.

use std::hash::{BuildHasher, Hash};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use hashbrown::{DefaultHashBuilder, Equivalent, HashMap, HashSet, HashTable};
use hoist_model::{GroupKey, Mac, Name, Nid, Node, NodeId, Xname};

/// A position in [`Base::nodes`]. Sites end long before it does.
pub(super) type At = u32;

#[derive(Debug, Default)]
pub(super) struct Base {
    nodes: Box<[Arc<Node>]>,
    /// The newest revision of any node in here.
    revision: u64,
    hasher: DefaultHashBuilder,
    ids: HashTable<At>,
    macs: HashTable<(Mac, At)>,
    names: HashTable<At>,
    xnames: HashTable<At>,
    nids: HashTable<At>,
    uuids: HashTable<At>,
    /// Sorted: one address may stand for several nodes, on several networks.
    v4: Box<[(Ipv4Addr, At)]>,
    v6: Box<[(Ipv6Addr, At)]>,
    postings: HashMap<NodeSet, Vec<At>>,
    /// Roles and subroles, and names of explicit groups, in lower case.
    roles: HashSet<String>,
    groups: HashSet<String>,
}

/// Sets of nodes worth remembering.
#[derive(Debug, PartialEq, Eq, Hash)]
enum NodeSet {
    Partition(String),
    Group(String, String),
    Label(String, String),
    Bmc(String),
}

/// The same, borrowed: asking and adding to a known set copies no text.
#[derive(Hash)]
enum NodeSetRef<'a> {
    Partition(&'a str),
    Group(&'a str, &'a str),
    Label(&'a str, &'a str),
    Bmc(&'a str),
}

impl Base {
    pub(super) fn build(mut nodes: Vec<Arc<Node>>) -> Self {
        nodes.sort_by_key(|node| node.id);
        assert!(At::try_from(nodes.len()).is_ok(), "a site has fewer than four billion nodes");
        let mut base = Self {
            revision: nodes.iter().map(|node| node.revision).max().unwrap_or(0),
            nodes: nodes.into_boxed_slice(),
            ..Self::default()
        };
        base.index_keys();
        base.index_addresses();
        base.index_sets();
        base
    }

    fn index_keys(&mut self) {
        let nodes = &self.nodes;
        let hasher = &self.hasher;
        let interfaces = |node: &Arc<Node>| node.spec.interfaces.len();
        let macs = nodes.iter().map(interfaces).sum();
        self.macs.reserve(macs, |(mac, _)| hash_mac(hasher, *mac));
        for (at, node) in (0..).zip(nodes) {
            for interface in &node.spec.interfaces {
                let mac = interface.mac;
                let hash = hash_mac(hasher, mac);
                self.macs.insert_unique(hash, (mac, at), |(mac, _)| hash_mac(hasher, *mac));
            }
        }
        self.ids = table(nodes, hasher, |node| Some(node.id));
        self.names = table(nodes, hasher, |node| Some(node.name.as_str()));
        self.xnames = table(nodes, hasher, |node| node.spec.xname);
        self.nids = table(nodes, hasher, |node| node.spec.nid);
        self.uuids = table(nodes, hasher, uuid);
    }

    fn index_addresses(&mut self) {
        let addresses = self.nodes.iter().flat_map(|node| &node.spec.interfaces);
        let addresses = addresses.flat_map(|interface| &interface.addresses);
        let count = addresses.filter(|address| address.addr().is_ipv4()).count();
        let mut v4 = Vec::with_capacity(count);
        let mut v6 = Vec::new();
        for (at, node) in (0..).zip(&self.nodes) {
            for address in node.spec.interfaces.iter().flat_map(|i| &i.addresses) {
                match address.addr() {
                    IpAddr::V4(ip) => v4.push((ip, at)),
                    IpAddr::V6(ip) => v6.push((ip, at)),
                }
            }
        }
        v4.sort_unstable();
        v6.sort_unstable();
        self.v4 = v4.into_boxed_slice();
        self.v6 = v6.into_boxed_slice();
    }

    fn index_sets(&mut self) {
        let nodes = std::mem::take(&mut self.nodes);
        for (at, node) in (0..).zip(&nodes) {
            let spec = &node.spec;
            self.post(&NodeSetRef::Partition(&spec.partition), at);
            for group in &spec.groups {
                self.post(&NodeSetRef::Group(&spec.partition, group), at);
                remember(&mut self.groups, group);
            }
            for (key, value) in spec.labels.iter() {
                self.post(&NodeSetRef::Label(key, value), at);
            }
            if let Some(bmc) = &spec.bmc {
                self.post(&NodeSetRef::Bmc(&bmc.r#ref), at);
            }
            for role in [&spec.role, &spec.subrole].into_iter().flatten() {
                remember(&mut self.roles, role);
            }
        }
        self.postings.values_mut().for_each(Vec::shrink_to_fit);
        self.nodes = nodes;
    }

    fn post(&mut self, posting: &NodeSetRef<'_>, at: At) {
        if let Some(positions) = self.postings.get_mut(posting) {
            positions.push(at);
        } else {
            self.postings.insert(posting.into(), vec![at]);
        }
    }
}

/// Looking up.
impl Base {
    pub(super) fn len(&self) -> usize {
        self.nodes.len()
    }

    pub(super) fn revision(&self) -> u64 {
        self.revision
    }

    pub(super) fn at(&self, at: At) -> &Arc<Node> {
        &self.nodes[at as usize]
    }

    pub(super) fn by_id(&self, id: NodeId) -> Option<At> {
        self.find(&self.ids, &id, |node| node.id == id)
    }

    pub(super) fn by_mac(&self, mac: Mac) -> Option<At> {
        let found = self.macs.find(hash_mac(&self.hasher, mac), |(other, _)| *other == mac);
        found.map(|(_, at)| *at)
    }

    pub(super) fn by_name(&self, name: &str) -> Option<At> {
        self.find(&self.names, &name, |node| node.name == *name)
    }

    pub(super) fn by_xname(&self, xname: Xname) -> Option<At> {
        self.find(&self.xnames, &xname, |node| node.spec.xname == Some(xname))
    }

    pub(super) fn by_nid(&self, nid: Nid) -> Option<At> {
        self.find(&self.nids, &nid, |node| node.spec.nid == Some(nid))
    }

    pub(super) fn by_uuid(&self, text: &str) -> Option<At> {
        self.find(&self.uuids, &text, |node| uuid(node) == Some(text))
    }

    pub(super) fn by_ip(&self, ip: IpAddr) -> Vec<At> {
        let mut found: Vec<At> = match ip {
            IpAddr::V4(ip) => run_of(&self.v4, ip).map(|(_, at)| *at).collect(),
            IpAddr::V6(ip) => run_of(&self.v6, ip).map(|(_, at)| *at).collect(),
        };
        found.dedup();
        found
    }

    /// The nodes behind `after`, in id order.
    pub(super) fn after(&self, after: Option<NodeId>) -> impl Iterator<Item = At> + use<> {
        let from = after.map_or(0, |id| self.nodes.partition_point(|node| node.id <= id));
        let position = |at| At::try_from(at).expect("checked when it was built");
        position(from)..position(self.nodes.len())
    }

    pub(super) fn in_partition(&self, name: &Name) -> &[At] {
        self.posted(&NodeSetRef::Partition(name))
    }

    pub(super) fn in_group(&self, key: &GroupKey) -> &[At] {
        self.posted(&NodeSetRef::Group(&key.partition, &key.name))
    }

    pub(super) fn labelled(&self, key: &str, value: &str) -> &[At] {
        self.posted(&NodeSetRef::Label(key, value))
    }

    pub(super) fn behind_bmc(&self, bmc: &str) -> &[At] {
        self.posted(&NodeSetRef::Bmc(bmc))
    }

    pub(super) fn is_role(&self, word: &str) -> bool {
        self.roles.contains(word.to_ascii_lowercase().as_str())
    }

    pub(super) fn is_group(&self, word: &str) -> bool {
        self.groups.contains(word.to_ascii_lowercase().as_str())
    }

    pub(super) fn known_names(&self) -> impl Iterator<Item = String> {
        self.roles.iter().chain(&self.groups).cloned()
    }

    fn find(
        &self,
        table: &HashTable<At>,
        key: &impl Hash,
        same: impl Fn(&Node) -> bool,
    ) -> Option<At> {
        table.find(self.hasher.hash_one(key), |at| same(self.at(*at))).copied()
    }

    fn posted(&self, posting: &NodeSetRef<'_>) -> &[At] {
        self.postings.get(posting).map_or(&[], Vec::as_slice)
    }
}

/// As one number: hashing six bytes as a slice takes twice as long, and every boot does it.
fn hash_mac(hasher: &DefaultHashBuilder, mac: Mac) -> u64 {
    let mut number = [0; 8];
    number[2..].copy_from_slice(&mac.octets());
    hasher.hash_one(u64::from_be_bytes(number))
}

/// A table of the positions of all nodes that have the key.
fn table<'n, K: Hash>(
    nodes: &'n [Arc<Node>],
    hasher: &DefaultHashBuilder,
    key: impl Fn(&'n Node) -> Option<K>,
) -> HashTable<At> {
    let hash =
        |at: &At| hasher.hash_one(key(&nodes[*at as usize]).expect("it was put in by its key"));
    let count = nodes.iter().filter(|node| key(node).is_some()).count();
    let mut table = HashTable::with_capacity(count);
    for (at, node) in (0..).zip(nodes) {
        if let Some(key) = key(node) {
            table.insert_unique(hasher.hash_one(key), at, hash);
        }
    }
    table
}

/// The entries of one address in a sorted list.
fn run_of<K: Ord + Copy>(sorted: &[(K, At)], key: K) -> impl Iterator<Item = &(K, At)> {
    let from = sorted.partition_point(|(other, _)| *other < key);
    sorted[from..].iter().take_while(move |(other, _)| *other == key)
}

pub(super) fn uuid(node: &Node) -> Option<&str> {
    node.spec.system.as_ref()?.uuid.as_deref()
}

fn remember(words: &mut HashSet<String>, word: &str) {
    let word = word.to_ascii_lowercase();
    words.get_or_insert_with(word.as_str(), str::to_owned);
}

impl Equivalent<NodeSet> for NodeSetRef<'_> {
    fn equivalent(&self, other: &NodeSet) -> bool {
        match (self, other) {
            (Self::Partition(a), NodeSet::Partition(b)) | (Self::Bmc(a), NodeSet::Bmc(b)) => a == b,
            (Self::Group(a, b), NodeSet::Group(c, d))
            | (Self::Label(a, b), NodeSet::Label(c, d)) => a == c && b == d,
            _ => false,
        }
    }
}

impl From<&NodeSetRef<'_>> for NodeSet {
    fn from(posting: &NodeSetRef<'_>) -> Self {
        match posting {
            NodeSetRef::Partition(a) => Self::Partition((*a).to_owned()),
            NodeSetRef::Group(a, b) => Self::Group((*a).to_owned(), (*b).to_owned()),
            NodeSetRef::Label(a, b) => Self::Label((*a).to_owned(), (*b).to_owned()),
            NodeSetRef::Bmc(a) => Self::Bmc((*a).to_owned()),
        }
    }
}
