//! Detached disks: disks that only lose a leg of a stack that is destroyed elsewhere.
//!
//! A detached disk keeps its table and has no room for hoist metadata, so it cannot record the
//! ranges to wipe. The markers of the opened disks record them.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use super::ObservedMachine;
use crate::document::{Document, Id};
use crate::facts::{DiskFacts, Signature, SignaturePlace};
use crate::layout::{DiskPlan, Layout, Work};
use crate::metadata_area::Marker;

/// Most bytes that a marker stores of these ranges. Beyond this size they are not stored, and an
/// interrupted run starts over.
const MAX_RECORDED: usize = 2048;

/// The detached disks of a layout.
pub(super) fn disks(layout: &Layout) -> impl Iterator<Item = &DiskPlan> {
    let disks = layout.disks.iter().filter(|disk| matches!(disk.work, Work::None));
    disks.filter(|disk| !disk.writable.is_empty())
}

/// The ranges to wipe on detached disks, as markers record them.
pub fn ranges_for_marker(layout: &Layout) -> BTreeMap<Id, Vec<Range<u64>>> {
    let ranges: BTreeMap<_, _> =
        disks(layout).map(|disk| (disk.id.clone(), disk.writable.clone())).collect();
    let length = serde_json::to_vec(&ranges).expect("a plain value").len();
    if length <= MAX_RECORDED { ranges } else { BTreeMap::new() }
}

/// Adds the ranges that an interrupted run of this transaction had to wipe. The ranges stay part of
/// the plan even if they are wiped already and the rest of the stack is gone, so that the hash of
/// the plan stays the same.
pub(super) fn resume(document: &Document, layout: &mut Layout, machine: &ObservedMachine) {
    let is_interrupted =
        |marker: &&Marker| marker.txn == document.txn && !marker.is_complete && !marker.undoing;
    let markers = machine.disks.metadata.values().filter_map(|metadata| metadata.marker.as_ref());
    let markers: Vec<_> = markers.filter(is_interrupted).collect();
    for disk in layout.disks.iter_mut().filter(|disk| matches!(disk.work, Work::None)) {
        let begun = markers.iter().filter_map(|marker| marker.detached.get(&disk.id)).flatten();
        let begun: Vec<Range<u64>> = begun.cloned().collect();
        let facts = machine.disk_facts(disk);
        let wipe = document.sections.disks.get(&disk.id).map(|disk| &disk.wipe);
        let (Some(facts), Some(wipe)) = (facts, wipe) else { continue };
        let is_inside = |signature: &&Signature| {
            begun.iter().any(|range| range.contains(&start_of(facts, signature)))
        };
        let inside: Vec<&Signature> = facts.signatures.iter().filter(is_inside).collect();
        // Signatures that appeared since then and are not covered by `wipe` must stay.
        let is_allowed = inside.iter().all(|signature| wipe.covers(signature.kind));
        if is_allowed && begun.iter().all(|range| range.end <= disk.size) {
            let is_new = |signature: &&Signature| !disk.destroys.contains(signature);
            let new: Vec<_> = inside.into_iter().filter(is_new).cloned().collect();
            disk.destroys.extend(new);
            disk.writable.extend(begun);
        }
        let all: BTreeSet<_> =
            disk.writable.drain(..).map(|range| (range.start, range.end)).collect();
        disk.writable = all.into_iter().map(|(start, end)| start..end).collect();
    }
}

/// The first byte of the partition that holds a signature, or of the signature itself.
fn start_of(facts: &DiskFacts, signature: &Signature) -> u64 {
    let mut parts = facts.table.iter().flat_map(|table| &table.partitions);
    match signature.place {
        SignaturePlace::Partition(number) => {
            parts.find(|part| part.number == number).map_or(signature.offset, |part| part.start)
        }
        SignaturePlace::Disk => signature.offset,
    }
}
