//! What changed since the base was frozen. Small, so plain maps do.

use std::net::IpAddr;
use std::sync::Arc;

use hashbrown::HashMap;
use hoist_model::{Mac, Name, Nid, Node, NodeId, Xname};

use super::base::{self, At, Base};

#[derive(Debug, Clone, Default)]
pub(super) struct Overlay {
    /// `None`: removed, but still in the base.
    nodes: HashMap<NodeId, Option<Arc<Node>>>,
    macs: HashMap<Mac, NodeId>,
    names: HashMap<Name, NodeId>,
    xnames: HashMap<Xname, NodeId>,
    nids: HashMap<Nid, NodeId>,
    /// One bit per node of the base: what stands there is outdated. Empty when nothing is.
    hidden: Vec<u64>,
}

impl Overlay {
    pub(super) fn put(&mut self, node: Arc<Node>, base: &Base) {
        self.forget(node.id);
        self.hide(node.id, base);
        for interface in &node.spec.interfaces {
            self.macs.insert(interface.mac, node.id);
        }
        self.names.insert(node.name.clone(), node.id);
        self.xnames.extend(node.spec.xname.map(|xname| (xname, node.id)));
        self.nids.extend(node.spec.nid.map(|nid| (nid, node.id)));
        self.nodes.insert(node.id, Some(node));
    }

    pub(super) fn remove(&mut self, id: NodeId, base: &Base) {
        self.forget(id);
        if self.hide(id, base) {
            self.nodes.insert(id, None);
        }
    }

    /// Whether there was something to hide.
    fn hide(&mut self, id: NodeId, base: &Base) -> bool {
        let Some(at) = base.by_id(id) else { return false };
        self.hidden.resize(base.len().div_ceil(64), 0);
        self.hidden[at as usize / 64] |= 1 << (at % 64);
        true
    }

    /// Whether the base's node at this position is outdated.
    pub(super) fn hides(&self, at: At) -> bool {
        self.hidden.get(at as usize / 64).is_some_and(|bits| bits >> (at % 64) & 1 == 1)
    }

    /// Drops a node and its keys. A key that has moved to another node meanwhile stays.
    fn forget(&mut self, id: NodeId) {
        let Some(Some(old)) = self.nodes.remove(&id) else { return };
        for interface in &old.spec.interfaces {
            remove_if(&mut self.macs, &interface.mac, id);
        }
        if self.names.get(old.name.as_str()) == Some(&id) {
            self.names.remove(old.name.as_str());
        }
        old.spec.xname.iter().for_each(|xname| remove_if(&mut self.xnames, xname, id));
        old.spec.nid.iter().for_each(|nid| remove_if(&mut self.nids, nid, id));
    }

    pub(super) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// How many more nodes there are than in the base; fewer counts as negative.
    pub(super) fn grown(&self, base: &Base) -> isize {
        self.nodes.iter().fold(0, |grown, (id, node)| match node {
            None => grown - 1,
            Some(_) if base.by_id(*id).is_none() => grown + 1,
            Some(_) => grown,
        })
    }

    /// `Some(None)`: it was removed. `None`: nothing changed, ask the base.
    pub(super) fn get(&self, id: NodeId) -> Option<&Option<Arc<Node>>> {
        self.nodes.get(&id)
    }

    pub(super) fn by_mac(&self, mac: Mac) -> Option<&Arc<Node>> {
        self.node(*self.macs.get(&mac)?)
    }

    pub(super) fn by_name(&self, name: &str) -> Option<&Arc<Node>> {
        self.node(*self.names.get(name)?)
    }

    pub(super) fn by_xname(&self, xname: Xname) -> Option<&Arc<Node>> {
        self.node(*self.xnames.get(&xname)?)
    }

    pub(super) fn by_nid(&self, nid: Nid) -> Option<&Arc<Node>> {
        self.node(*self.nids.get(&nid)?)
    }

    pub(super) fn by_uuid(&self, uuid: &str) -> Option<&Arc<Node>> {
        self.present().find(|node| base::uuid(node) == Some(uuid))
    }

    pub(super) fn by_ip(&self, ip: IpAddr) -> impl Iterator<Item = &Arc<Node>> {
        self.present().filter(move |node| {
            node.spec.interfaces.iter().flat_map(|i| &i.addresses).any(|a| a.addr() == ip)
        })
    }

    /// The changed nodes that are still there, behind `after`, in id order.
    pub(super) fn sorted_after(&self, after: Option<NodeId>) -> Vec<&Arc<Node>> {
        let mut nodes: Vec<_> =
            self.present().filter(|node| after.is_none_or(|after| node.id > after)).collect();
        nodes.sort_by_key(|node| node.id);
        nodes
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (NodeId, &Option<Arc<Node>>)> {
        self.nodes.iter().map(|(id, node)| (*id, node))
    }

    fn present(&self) -> impl Iterator<Item = &Arc<Node>> {
        self.nodes.values().flatten()
    }

    fn node(&self, id: NodeId) -> Option<&Arc<Node>> {
        self.nodes.get(&id)?.as_ref()
    }
}

fn remove_if<K: std::hash::Hash + Eq>(map: &mut HashMap<K, NodeId>, key: &K, id: NodeId) {
    if map.get(key) == Some(&id) {
        map.remove(key);
    }
}
