//! The keys below `cluster/` in the store.

use hoist_cluster::id::NodeId;
use hoist_cluster::join_token::TokenId;
use hoist_store::{Key, Prefix};

pub(super) const STATE: &str = "state";
pub(super) const COUNTERS: &str = "counters";
pub(super) const MEMBER: &str = "member";
pub(super) const PENDING: &str = "pending";
pub(super) const EXPELLED: &str = "expelled";
pub(super) const TOKEN: &str = "token";
pub(super) const CERTIFICATE: &str = "certificate";
pub(super) const PLAN: &str = "plan";
pub(super) const CURRENT: &str = "current";

pub(super) fn prefix() -> Prefix {
    Prefix::Under(top())
}

pub(super) fn top() -> Key {
    "cluster".parse().expect("a literal key")
}

pub(super) fn state() -> Key {
    top().child(STATE)
}

/// The record that every write of the cluster compares and puts.
pub(super) fn counters() -> Key {
    top().child(COUNTERS)
}

pub(super) fn of_node(kind: &str, node: NodeId) -> Key {
    top().child(kind).child(&node.to_string())
}

pub(super) fn token(id: TokenId) -> Key {
    top().child(TOKEN).child(&id.to_string())
}

pub(super) fn current_plan() -> Key {
    top().child(PLAN).child(CURRENT)
}

/// A plan that was in force once, kept to look back.
pub(super) fn past_plan(generation: u64) -> Key {
    top().child(PLAN).child(&format!("{generation:020}"))
}

/// The parts of a key below `cluster/`: the kind, and the name within it.
pub(super) fn parts(key: &Key) -> Option<(&str, Option<&str>)> {
    let rest = key.as_str().strip_prefix("cluster/")?;
    Some(match rest.split_once('/') {
        Some((kind, name)) => (kind, Some(name)),
        None => (rest, None),
    })
}
