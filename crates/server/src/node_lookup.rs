//! Finding the node that a request names.
//!
//! Not here: finding the machine that asks by its address or MAC (`boot`, `metadata`), and which
//! nodes a principal reaches ([`Sight`]).

use std::sync::Arc;

use hoist_api::Code;
use hoist_chassis::failure::Failure;
use hoist_model::{Mac, Nid, Node, NodeId, Xname};
use hoist_site::{Registry, Roster};

use crate::authorisation::Sight;

/// A node as people name it in a path: by name, xname, MAC, nid or id.
pub(crate) fn find_node<'r>(
    roster: &'r Roster,
    sight: &Sight,
    text: &str,
) -> Result<&'r Arc<Node>, Failure> {
    let by_xname = || text.parse::<Xname>().ok().and_then(|xname| roster.by_xname(xname));
    let by_mac = || text.parse::<Mac>().ok().and_then(|mac| roster.by_mac(mac));
    let by_nid = || text.parse::<Nid>().ok().and_then(|nid| roster.by_nid(nid));
    let by_id = || text.parse::<NodeId>().ok().and_then(|id| roster.by_id(id));
    let found = roster.by_name(text).or_else(by_xname).or_else(by_mac).or_else(by_nid);
    let found = found.or_else(by_id).filter(|node| sight.reaches(roster, node));
    found.ok_or_else(|| no_such_node(format!("`{text}`")))
}

/// The roster, for answers that say which nodes exist and which do not.
pub(crate) fn complete_roster(registry: &Registry) -> Result<Arc<Roster>, Failure> {
    if registry.is_complete() {
        return Ok(registry.roster());
    }
    let detail = "the nodes are not known yet: neither the store nor the source was read";
    let failure = Failure::new(Code::StoreUnavailable, detail);
    Err(failure.with_remedy("ask again when `/readyz` is ok"))
}

/// The answer for a node that does not exist. A node out of the caller's reach must get the same
/// answer, since names of nodes are not public.
pub(crate) fn no_such_node(what: impl std::fmt::Display) -> Failure {
    Failure::new(Code::NotFound, format!("node {what} not found"))
        .with_remedy("`hoist node list` shows all of them")
}

/// The answer to a selector without a node in the caller's reach.
pub(crate) fn no_selected_node(selector: impl std::fmt::Display) -> Failure {
    Failure::new(Code::NotFound, format!("selector `{selector}` matches no node"))
        .with_remedy("`hoist node list` shows all of them")
}
