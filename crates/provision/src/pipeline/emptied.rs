//! Disks that only lose a leg of a stack that is destroyed elsewhere. Nothing on them says so: they
//! keep their tables, and have no room for notes. The disks that are begun with say it for them.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use super::Seen;
use crate::device::gap::Marker;
use crate::document::{Document, Id};
use crate::facts::{DiskFacts, Signature, SignaturePlace};
use crate::layout::{DiskPlan, Layout, Work};

/// Most bytes of it that a marker has room for. What is more is not kept, and a run that is cut off
/// begins anew.
const MOST: usize = 2048;

/// The disks of a layout that lose something, and nothing else is done to them.
pub(super) fn disks(layout: &Layout) -> impl Iterator<Item = &DiskPlan> {
    let disks = layout.disks.iter().filter(|disk| matches!(disk.work, Work::None));
    disks.filter(|disk| !disk.writable.is_empty())
}

/// What markers keep of it.
pub(super) fn kept(layout: &Layout) -> BTreeMap<Id, Vec<Range<u64>>> {
    let kept: BTreeMap<_, _> =
        disks(layout).map(|disk| (disk.id.clone(), disk.writable.clone())).collect();
    let length = serde_json::to_vec(&kept).expect("a plain value").len();
    if length <= MOST { kept } else { BTreeMap::new() }
}

/// What a run of this transaction that was cut off was to make empty is still a part of its plan, also
/// if it is empty already, and if the rest of the stack is gone.
pub(super) fn go_on(document: &Document, layout: &mut Layout, seen: &Seen) {
    let is_at_work =
        |marker: &&Marker| marker.txn == document.txn && !marker.is_complete && !marker.undoing;
    let markers = seen.notes.values().filter_map(|notes| notes.marker.as_ref());
    let markers: Vec<_> = markers.filter(is_at_work).collect();
    for disk in layout.disks.iter_mut().filter(|disk| matches!(disk.work, Work::None)) {
        let begun = markers.iter().filter_map(|marker| marker.emptied.get(&disk.id)).flatten();
        let begun: Vec<Range<u64>> = begun.cloned().collect();
        let facts = seen.facts.disks.iter().find(|facts| facts.kernel_name == disk.kernel_name);
        let wipe = document.sections.disks.get(&disk.id).map(|disk| &disk.wipe);
        let (Some(facts), Some(wipe)) = (facts, wipe) else { continue };
        let inside = facts
            .signatures
            .iter()
            .filter(|found| begun.iter().any(|range| range.contains(&place_of(facts, found))));
        let inside: Vec<&Signature> = inside.collect();
        // What came since then, and nobody named, stays.
        let is_allowed = inside.iter().all(|found| wipe.covers(found.kind));
        if is_allowed && begun.iter().all(|range| range.end <= disk.size) {
            let new = inside.into_iter().filter(|found| !disk.destroys.contains(found)).cloned();
            let new: Vec<_> = new.collect();
            disk.destroys.extend(new);
            disk.writable.extend(begun);
        }
        let all: BTreeSet<_> =
            disk.writable.drain(..).map(|range| (range.start, range.end)).collect();
        disk.writable = all.into_iter().map(|(start, end)| start..end).collect();
    }
}

fn place_of(facts: &DiskFacts, signature: &Signature) -> u64 {
    let mut parts = facts.table.iter().flat_map(|table| &table.partitions);
    match signature.place {
        SignaturePlace::Partition(number) => {
            parts.find(|part| part.number == number).map_or(signature.offset, |part| part.start)
        }
        SignaturePlace::Disk => signature.offset,
    }
}
