//! How BSS records belong to nodes: a node is the same node by any of its names.

use std::sync::Arc;

use hoist_model::bss::ParseBssKeyError;
use hoist_model::selector::Class;
use hoist_model::{BssKey, BssRecord, Node, Xname};
use hoist_site::Roster;

/// What BSS calls a node.
pub fn host_name(node: &Node) -> String {
    node.spec.xname.map_or_else(|| node.name.to_string(), |xname| xname.to_string())
}

/// The key under which a node's record is written.
pub fn home_of(node: &Node) -> BssKey {
    node.spec.xname.map_or_else(|| BssKey::of_name(&node.name, node.id), BssKey::Xname)
}

/// Every key of exactly this node, in the order of lookup.
pub fn keys_of(node: &Node) -> impl Iterator<Item = BssKey> + '_ {
    let xname = node.spec.xname.map(BssKey::Xname);
    let name = BssKey::of_name(&node.name, node.id);
    let macs = node.spec.interfaces.iter().map(|interface| BssKey::Mac(interface.mac));
    let nid = node.spec.nid.map(BssKey::Nid);
    xname.into_iter().chain([name]).chain(macs).chain(nid)
}

/// The key for a host of a request. A node's own names take precedence over their syntax.
pub fn key_of_host(roster: &Roster, host: &str) -> Result<BssKey, ParseBssKeyError> {
    let known = |xname: &Xname| roster.by_xname(*xname).is_some();
    if let Some(xname) = host.parse().ok().filter(known) {
        return Ok(BssKey::Xname(xname));
    }
    match roster.by_name(host) {
        Some(node) => Ok(home_of(node)),
        None => host.parse(),
    }
}

/// The node that a host of a request means, in any spelling of its xname, name, MAC or nid.
pub fn node_of_host<'r>(roster: &'r Roster, host: &str) -> Option<&'r Arc<Node>> {
    key_of_host(roster, host).ok().and_then(|key| node_of(roster, &key))
}

/// The node a key means, if it means one.
pub fn node_of<'r>(roster: &'r Roster, key: &BssKey) -> Option<&'r Arc<Node>> {
    match key {
        BssKey::Xname(xname) => roster.by_xname(*xname),
        BssKey::Mac(mac) => roster.by_mac(*mac),
        BssKey::Nid(nid) => roster.by_nid(*nid),
        BssKey::Tag(tag) => roster.by_name(tag),
        BssKey::Id(id) => roster.by_id(*id),
    }
}

/// The record that was written for exactly this node. The key it asked by goes before its other
/// MACs and its nid, if it is one of its keys.
pub fn own_record<'r>(
    roster: &'r Roster,
    node: &Node,
    asked: Option<&BssKey>,
) -> Option<&'r Arc<BssRecord>> {
    let home = roster.bss(&home_of(node));
    let asked = || asked.filter(|key| keys_of(node).any(|own| own == **key));
    let asked = || asked().and_then(|key| roster.bss(key));
    let others = || keys_of(node).find_map(|key| roster.bss(&key));
    home.or_else(asked).or_else(others)
}

/// The record of the first tag that boots the node: role, subrole, groups in their order, and in
/// the end `Default`. BSS does not look at subroles and groups when a node boots, so a record of
/// theirs without a kernel must not hide `Default`.
pub fn tagged_record<'r>(
    roster: &'r Roster,
    node: &Node,
) -> Option<(&'r Arc<BssRecord>, Class, String)> {
    first_tagged(roster, node, |record, _| !record.kernel.is_empty())
}

/// The record of the first tag whose cloud-init data the node gets, in the same order. The data of
/// a subrole without a kernel lies beneath that of the record found here.
pub fn tagged_cloud_init<'r>(roster: &'r Roster, node: &Node) -> Option<&'r Arc<BssRecord>> {
    let counts = |record: &BssRecord, class| {
        !record.kernel.is_empty() || class == Class::Group && record.cloud_init.is_some()
    };
    first_tagged(roster, node, counts).map(|(record, ..)| record)
}

/// `counts` decides about the tags that BSS does not know: subroles and groups.
fn first_tagged<'r>(
    roster: &'r Roster,
    node: &Node,
    counts: impl Fn(&BssRecord, Class) -> bool,
) -> Option<(&'r Arc<BssRecord>, Class, String)> {
    let tag = |word: &str, class| {
        let record = roster.bss(&BssKey::tag(word))?;
        let is_known_to_bss = !matches!(class, Class::Subrole | Class::Group);
        (is_known_to_bss || counts(record, class)).then(|| (record, class, word.to_owned()))
    };
    let role = || node.spec.role.as_deref().and_then(|role| tag(role, Class::Role));
    let subrole = || node.spec.subrole.as_deref().and_then(|role| tag(role, Class::Subrole));
    let groups = || roster.groups_of(node).iter().find_map(|group| tag(group, Class::Group));
    let default = || tag(BssKey::DEFAULT, Class::Everything);
    role().or_else(subrole).or_else(groups).or_else(default)
}
