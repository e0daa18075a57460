//! Planner of stacks on partitions: arrays, volumes, encryption, and the file systems on them.

use std::collections::BTreeSet;
use std::ops::Range;

use super::DiskMetadata;
use super::context::PlanContext;
use super::disks::geometry;
use super::erase::is_erased;
use super::fragment::{Fragment, PlannedStep};
use crate::diagnostic::{Code, ProvisionDiagnostic};
use crate::digest::Digest;
use crate::document::{Fs, Id};
use crate::facts::{PartitionFacts, Signature, SignatureKind, SignaturePlace};
use crate::layout::{DiskPlan, PartitionPlan, StackPlan};
use crate::partition_table::{FIRST_PARTITION, IN_PROGRESS, TO_DESTROY};
use crate::steps::FsLocation;
use crate::steps::disks::{self, NewFileSystem, Task};
use crate::steps::stack::{Receipt, StackKind, StackNode};

/// The receipt of a node or of a file system on a stack.
fn receipt<'a>(context: &PlanContext<'a>, id: &Id, task: &Digest) -> Option<&'a Receipt> {
    let mut receipts = context.all_metadata().flat_map(|metadata| &metadata.stacks);
    receipts.find(|receipt| receipt.made == *id && receipt.task == *task)
}

/// Whether a node exists as desired. Signatures are visible only on the partitions while a stack is
/// stopped; higher layers are known from the receipts of the run that made them.
pub(super) fn is_existing(context: &PlanContext<'_>, node: &StackNode) -> bool {
    receipt(context, &node.id, &node.fingerprint()).is_some()
        && node.on.iter().all(|on| context.exists(on) && carries(context, on, node))
}

/// Whether a partition carries the signature of this node. Stacked devices are not visible here and
/// count as matching.
fn carries(context: &PlanContext<'_>, on: &Id, node: &StackNode) -> bool {
    let Some((disk, part)) = context.layout.partition(on) else { return true };
    let is_of_node = |signature: &Signature| {
        let has_uuid = signature.uuid.as_ref() == Some(&node.uuid.to_string());
        match node.what {
            StackKind::Md => signature.kind == SignatureKind::Md && has_uuid,
            StackKind::Luks { .. } => signature.kind == SignatureKind::Luks && has_uuid,
            StackKind::Pv => signature.kind == SignatureKind::Lvm,
            StackKind::Vg { .. } | StackKind::Lv { .. } => true,
        }
    };
    context.signatures_in(disk, part).any(is_of_node)
}

/// The nodes that this plan makes.
fn missing_nodes<'c>(context: &'c PlanContext<'_>) -> Vec<&'c StackNode> {
    let is_ours = |node: &&StackNode| context.planned(&node.id).is_some_and(|plan| !plan.retained);
    let nodes = context.stacks.nodes.iter().filter(is_ours);
    nodes.filter(|node| !context.exists(&node.id)).collect()
}

/// Whether a missing node lies on this partition.
pub(super) fn is_built_on(context: &PlanContext<'_>, part: &Id) -> bool {
    missing_nodes(context).iter().any(|node| node.on.contains(part))
}

/// The file systems on stacked devices.
fn file_systems<'a>(context: &PlanContext<'a>) -> Vec<(&'a StackPlan, &'a Fs)> {
    let all = context.layout.stack.iter().filter_map(|plan| {
        let fs = context.file_system(&plan.id)?;
        let is_stacked = context.layout.partition(&fs.on).is_none();
        (is_stacked && !plan.retained && plan.image.is_none()).then_some((plan, fs))
    });
    all.collect()
}

fn new_file_system(plan: &StackPlan, fs: &Fs) -> NewFileSystem {
    NewFileSystem::new(&fs.id, fs.kind, plan.uuid, fs.label.as_deref())
}

fn make_task(plan: &StackPlan, fs: &Fs) -> Task {
    Task::Make { place: FsLocation::Device(fs.on.clone()), fs: new_file_system(plan, fs) }
}

/// The receipt of a file system on a stacked device that still exists.
fn file_system_receipt<'a>(
    context: &PlanContext<'a>,
    plan: &StackPlan,
    fs: &Fs,
) -> Option<&'a Receipt> {
    let receipt = receipt(context, &fs.id, &make_task(plan, fs).fingerprint());
    receipt.filter(|_| context.exists(&fs.on))
}

pub(super) fn has_file_system(context: &PlanContext<'_>, plan: &StackPlan, fs: &Fs) -> bool {
    file_system_receipt(context, plan, fs).is_some()
}

/// The stacked devices that get a new file system.
pub(super) fn reformatted<'a>(context: &PlanContext<'a>) -> Vec<&'a Id> {
    let all = file_systems(context).into_iter();
    let new = all.filter(|(plan, fs)| !has_file_system(context, plan, fs));
    new.map(|(_, fs)| &fs.on).collect()
}

/// Whether a node or a file system above the partitions of a disk is missing.
pub(super) fn is_pending(context: &PlanContext<'_>, disk: &Id) -> bool {
    let is_on = |id: &Id| context.stacks.disks_below(id).contains(disk);
    missing_nodes(context).iter().any(|node| is_on(&node.id))
        || reformatted(context).into_iter().any(is_on)
}

/// Plans nodes bottom-up, then their file systems. Receipts of existing nodes are carried into the
/// next journal, if there is one: `touched` has the disks that earlier planners touch.
pub(super) fn plan(context: &PlanContext<'_>, touched: &BTreeSet<Id>) -> Fragment {
    let mut fragment = Fragment { diagnostics: check_losses(context), ..Fragment::default() };
    for node in &context.stacks.nodes {
        let Some(plan) = context.planned(&node.id) else { continue };
        let exists = context.exists(&node.id);
        let has_journal = !touched.is_empty() || !fragment.touched.is_empty();
        if (plan.retained && !exists) || (exists && !has_journal) {
            continue;
        }
        let receipt = receipt(context, &node.id, &node.fingerprint()).filter(|_| exists);
        if receipt.is_none() {
            fragment.assemble(&node.id, &context.stacks);
        }
        let on: Vec<_> = node.on.iter().map(Id::as_str).collect();
        let name = format!("make {} {} of {}", plan.kind, node.id, on.join(" and "));
        let step = PlannedStep::new(name, disks::NAME, Task::Build { node: node.clone() });
        fragment.steps.push(step.with_receipt(receipt));
    }
    for (plan, fs) in file_systems(context) {
        let receipt = file_system_receipt(context, plan, fs);
        let has_journal = !touched.is_empty() || !fragment.touched.is_empty();
        if receipt.is_some() && !has_journal {
            continue;
        }
        if receipt.is_none() {
            fragment.assemble(&fs.on, &context.stacks);
            let new = new_file_system(plan, fs);
            fragment.tools.extend(new.tool().map(|tool| (tool.to_owned(), fs.id.clone())));
        }
        let name = format!("make {} {} in {}", fs.kind, fs.id, fs.on);
        let step = PlannedStep::new(name, disks::NAME, make_task(plan, fs));
        fragment.steps.push(step.with_receipt(receipt));
    }
    fragment
}

/// Stops all devices that steps assembled, when no step needs them any more. The installed system
/// assembles them by itself. Refuses devices that cannot be assembled.
pub(super) fn stop(context: &PlanContext<'_>, assembled: &BTreeSet<Id>) -> Fragment {
    let diagnostics = check_assembled(context, assembled);
    let mut fragment = Fragment { diagnostics, ..Fragment::default() };
    let below = assembled.iter().flat_map(|id| context.stacks.disks_below(id));
    let disks: BTreeSet<Id> = below.cloned().collect();
    if !disks.is_empty() {
        let names: Vec<_> = disks.iter().map(Id::as_str).collect();
        let name = format!("stop what was made of {}", names.join(" and "));
        fragment.steps.push(PlannedStep::new(name, disks::NAME, Task::Stop { disks }));
    }
    fragment
}

/// The assembled nodes and all nodes below them.
pub(super) fn assembled_nodes<'c>(
    context: &'c PlanContext<'_>,
    assembled: &BTreeSet<Id>,
) -> Vec<&'c StackNode> {
    let mut waiting: Vec<&Id> = assembled.iter().collect();
    let mut nodes: Vec<&'c StackNode> = Vec::new();
    while let Some(id) = waiting.pop() {
        let Some(node) = context.stacks.node(id) else { continue };
        if !nodes.iter().any(|known| known.id == *id) {
            waiting.extend(&node.on);
            nodes.push(node);
        }
    }
    nodes.sort_by(|a, b| a.id.cmp(&b.id));
    nodes
}

/// Whether this transaction made a node or a file system on it, also with other parameters. The
/// disks alone would not show the data in it.
fn is_made(context: &PlanContext<'_>, id: &Id) -> bool {
    let is_ours = |metadata: &&DiskMetadata| {
        metadata.marker.as_ref().is_none_or(|marker| marker.txn == context.document.txn)
    };
    let ours = context.all_metadata().filter(is_ours);
    ours.flat_map(|metadata| &metadata.stacks).any(|receipt| receipt.made == *id)
}

/// Whether the legs of a node that this transaction made still carry it.
fn has_other_shape(context: &PlanContext<'_>, node: &StackNode) -> bool {
    is_made(context, &node.id)
        && node.on.iter().any(|on| context.exists(on) && carries(context, on, node))
}

/// Refuses nodes and file systems on them whose data would be lost.
fn check_losses(context: &PlanContext<'_>) -> Vec<ProvisionDiagnostic> {
    let missing = missing_nodes(context).into_iter();
    let nodes = missing.filter(|node| has_other_shape(context, node)).map(|node| &node.id);
    let is_lost = |(plan, fs): &(&StackPlan, &Fs)| {
        !has_file_system(context, plan, fs) && context.exists(&fs.on) && is_made(context, &fs.id)
    };
    let on_nodes = file_systems(context).into_iter().filter(is_lost).map(|(_, fs)| &fs.id);
    let refuse = |id: &Id| {
        let what = "an earlier run made it with other parameters; making it again would destroy \
                    its data";
        let hint = "restore the parameters, set `retain` on it and on the nodes above, or \
                    reinstall with another `txn` and with `wipe`";
        ProvisionDiagnostic::new(Code::ForeignData, format!("storage.{id}"), what).hint(hint)
    };
    nodes.chain(on_nodes).map(refuse).collect()
}

/// Refuses nodes that cannot be assembled.
fn check_assembled(
    context: &PlanContext<'_>,
    assembled: &BTreeSet<Id>,
) -> Vec<ProvisionDiagnostic> {
    let mut diagnostics = Vec::new();
    for node in assembled_nodes(context, assembled) {
        let mut refuse = |field: &str, what: String, hint: &str| {
            let place = format!("storage.{}{field}", node.id);
            diagnostics.push(ProvisionDiagnostic::new(Code::Unsupported, place, what).hint(hint));
        };
        let is_retained = context.planned(&node.id).is_some_and(|plan| plan.retained);
        if is_retained && !context.exists(&node.id) {
            let what = "the node is retained and hoist has no record of making it, so it is not \
                        assembled";
            refuse("", what.to_owned(), "write only to nodes that the document makes");
        }
        if let StackKind::Luks { key } = &node.what
            && !context.machine.secrets.has(key)
        {
            let what = format!("`{key}` is not known here");
            refuse(".key", what, "by hand, name the directory of its file with --secrets");
        }
    }
    diagnostics
}

/// The ranges of old partitions whose contents are destroyed. No signature may be found there
/// later, even if new partitions begin elsewhere. Once the disk is opened, its in-progress table
/// records the same ranges, so an interrupted run derives the same plan.
pub(super) fn ranges_to_destroy(
    context: &PlanContext<'_>,
    disk: &DiskPlan,
    kept: &[&PartitionPlan],
) -> Vec<Range<u64>> {
    // An erased disk has no old contents left to wipe.
    if kept.is_empty() && is_erased(context.document, &disk.id) {
        return Vec::new();
    }
    let table = context.disk_facts(disk).and_then(|facts| facts.table.as_ref());
    let destroyed: BTreeSet<SignaturePlace> =
        disk.destroys.iter().map(|signature| signature.place).collect();
    let parts = table.map_or(&[][..], |table| &table.partitions).iter();
    // The in-progress partition only marks the disk; it never had contents.
    let parts = parts.filter(|part| part.type_guid != Some(IN_PROGRESS));
    let to_destroy = parts.filter(|part| {
        part.type_guid == Some(TO_DESTROY)
            || destroyed.contains(&SignaturePlace::Partition(part.number))
    });
    let is_free = |range: &Range<u64>| {
        let is_writable = |w: &Range<u64>| w.start <= range.start && range.end <= w.end;
        let overlaps =
            |part: &&&PartitionPlan| part.start < range.end && range.start < part.start + part.len;
        disk.writable.iter().any(is_writable) && !kept.iter().any(|part| overlaps(&part))
    };
    let first = kept.iter().map(|part| part.start).min().unwrap_or(FIRST_PARTITION);
    let first = first.min(FIRST_PARTITION);
    let last = geometry(disk).usable().end;
    // The tables and the metadata area of the run lie outside of these bounds.
    let within = |range: Range<u64>| range.start.max(first)..range.end.min(last);
    disjoint(to_destroy.map(PartitionFacts::range).filter(is_free).map(within).collect())
}

/// Splits ranges at every start and end, so that the results do not overlap.
fn disjoint(ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    let ranges: Vec<_> = ranges.into_iter().filter(|range| !range.is_empty()).collect();
    let edges: BTreeSet<u64> = ranges.iter().flat_map(|range| [range.start, range.end]).collect();
    let pieces = edges.iter().zip(edges.iter().skip(1)).map(|(start, end)| *start..*end);
    let is_covered =
        |piece: &Range<u64>| ranges.iter().any(|r| r.start <= piece.start && piece.end <= r.end);
    pieces.filter(is_covered).collect()
}
