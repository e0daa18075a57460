//! The existing nodes that a change affects: the number that the change guard (`--affects`) checks.

use std::collections::BTreeSet;
use std::sync::Arc;

use hoist_model::{
    Artifact, BootConfig, Group, MetadataLayer, Network, Node, NodeId, Partition, ProvisionProfile,
};
use jiff::Timestamp;

use super::Plan;
use crate::kind::DocumentKind;
use crate::record::{Resource, ResourceKey};
use crate::roster::Roster;

/// Notes the existing nodes that are removed, or whose boot, role or membership comes out
/// differently. New nodes never count.
///
/// A node that a rule alone changes (the priority or the selector of a group, the boot networks of
/// its partition) is written with the rule, so that its revision tells watchers and caches.
pub(super) fn find(before: &Roster, plan: &mut Plan, now: Timestamp) {
    let candidates = candidates(before, plan);
    let mut affected = BTreeSet::new();
    for key in &plan.deletes {
        if let ResourceKey::Node(id) = key {
            affected.insert(*id);
        }
    }
    // Records of single nodes come by the thousand, and have nothing to look for here.
    if candidates.is_empty() {
        plan.affected = affected.into_iter().collect();
        return;
    }
    let after = plan.outcome(before);
    for id in candidates {
        let (Some(old), Some(new)) = (before.by_id(id), after.by_id(id)) else { continue };
        if outcome(before, old) != outcome(&after, new) {
            affected.insert(id);
        }
        let shown = |roster: &Roster, node: &Node| (roster.boot(node), roster.groups_of(node));
        if Arc::ptr_eq(old, new) && shown(before, old) != shown(&after, new) {
            let revision = plan.base + 1;
            let node = Node { revision, updated: now, ..old.as_ref().clone() };
            plan.puts.push(Resource::Node(Arc::new(node)));
        }
    }
    plan.affected = affected.into_iter().collect();
}

/// The nodes worth comparing: those that change, and, where a rule changes, all it may speak of.
fn candidates(before: &Roster, plan: &Plan) -> BTreeSet<NodeId> {
    let mut ids = BTreeSet::new();
    let touched = plan.puts.iter().map(Resource::key).chain(plan.deletes.iter().cloned());
    for key in touched {
        match key {
            ResourceKey::Node(id) => {
                ids.insert(id);
            }
            ResourceKey::Group(key) => ids.extend(Group::affects(before, &key)),
            ResourceKey::Partition(name) => ids.extend(Partition::affects(before, &name)),
            ResourceKey::Network(name) => ids.extend(Network::affects(before, &name)),
            ResourceKey::Artifact(name) => ids.extend(Artifact::affects(before, &name)),
            ResourceKey::BootConfig(name) => ids.extend(BootConfig::affects(before, &name)),
            ResourceKey::MetadataLayer(name) => {
                ids.extend(MetadataLayer::affects(before, &name));
            }
            ResourceKey::ProvisionProfile(name) => {
                ids.extend(ProvisionProfile::affects(before, &name));
            }
            ResourceKey::BootState(_)
            | ResourceKey::Bss(_)
            | ResourceKey::BssImage(..)
            | ResourceKey::Set(_)
            | ResourceKey::Tombstone(..) => {}
        }
    }
    ids
}

/// The outcome for a node: everything an operator would notice on the machine.
fn outcome(roster: &Roster, node: &Node) -> impl PartialEq + use<> {
    let spec = &node.spec;
    (
        roster.boot(node).map(|boot| (boot.mac, boot.ip)),
        (spec.arch, spec.enabled, node.generation),
        (spec.role.clone(), spec.subrole.clone()),
        (spec.partition.clone(), roster.groups_of(node)),
    )
}
