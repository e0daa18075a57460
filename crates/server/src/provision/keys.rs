//! The keys below `provision/` in the store: records of this context, none of them declared. The
//! keys of enrollments belong to `enrollment`.
//!
//! [`delete_node`] ends the records of a removed node; the registry runs it in the transaction that
//! removes the node.

use hoist_model::NodeId;
use hoist_store::{Key, Op};

use crate::enrollment;

/// The content of disks before a run wrote to them: one record per node. The bytes are in
/// [`disk_backup_parts`], small enough for every store.
pub(super) fn disk_backups() -> Key {
    key("provision/backup")
}

pub(super) fn disk_backup(node: NodeId) -> Key {
    disk_backups().child(&node.to_string())
}

pub(super) fn disk_backup_parts(node: NodeId) -> Key {
    key("provision/backup-part").child(&node.to_string())
}

/// Profiles as they were when nodes were provisioned with them, by digest.
pub(super) fn given_profiles() -> Key {
    key("provision/given")
}

/// The installed profile of each node, and the one before, by successful runs.
pub(super) fn all_installed() -> Key {
    key("provision/installed")
}

pub(super) fn installed(node: NodeId) -> Key {
    all_installed().child(&node.to_string())
}

pub(super) fn runs() -> Key {
    key("provision/run")
}

/// `None` for text that cannot be the id of a run.
pub(super) fn run(id: &str) -> Option<Key> {
    let is_plain = !id.is_empty() && id.bytes().all(|b| b.is_ascii_alphanumeric());
    is_plain.then(|| runs().child(id))
}

/// The nodes of a run.
pub(super) fn run_nodes(run: &str) -> Key {
    key("provision/node").child(run)
}

/// The last run of each node.
pub(super) fn last_runs() -> Key {
    key("provision/last")
}

/// The facts that the agent of a node reported.
pub(super) fn facts(node: NodeId) -> Key {
    key("provision/facts").child(&node.to_string())
}

/// Deletes the records of a removed node, which could not be listed or ended any more.
pub(super) fn delete_node(node: NodeId) -> Vec<Op> {
    vec![
        Op::Delete(enrollment::keys::enrollment(node)),
        Op::Delete(facts(node)),
        Op::Delete(disk_backup(node)),
        Op::Delete(installed(node)),
        Op::DeletePrefix(disk_backup_parts(node)),
    ]
}

fn key(text: &str) -> Key {
    text.parse().expect("a literal key")
}
