//! The keys of enrollments in the store.

use hoist_model::NodeId;
use hoist_store::{Key, Prefix};

/// Which agents may take nodes' secrets, one record per node.
pub(crate) fn enrollments() -> Key {
    "provision/enrollments".parse().expect("a literal key")
}

pub(crate) fn enrollment(node: NodeId) -> Key {
    enrollments().child(&node.to_string())
}

pub(crate) fn is_enrollment(key: &Key) -> bool {
    Prefix::Under(enrollments()).covers(key)
}
