//! The table of one disk: the positions of its partitions, and the changes.
//!
//! Does not belong here: volumes above partitions (`stack`) and safety rules (`refuse`).

use std::collections::BTreeSet;
use std::ops::Range;

use uuid::Uuid;

use super::guid::{derive, type_of};
use super::{Context, Difference, DiskPlan, Entry, PartitionPlan, TableChange, TablePlan, Work};
use crate::diagnostic::{Code, ProvisionDiagnostic};
use crate::document::size::MIB;
use crate::document::{Bytes, FsKind, Id, Part, PartRole, Size, StorageNode};
use crate::facts::{DiskFacts, PartitionFacts, TableFacts, TableKind};
use crate::metadata_area::MetadataArea;
use crate::partition_table::{FIRST_PARTITION, Geometry, IN_PROGRESS, is_of_first, is_of_second};

/// Starts and lengths of partitions are multiples of this. No partition begins in the first unit:
/// it holds the table and the hoist metadata area.
pub const ALIGN: u64 = FIRST_PARTITION;

/// The default tolerance between existing and declared sizes.
pub const SLACK: u64 = MIB;

/// The aligned range for partitions.
fn aligned(geometry: Geometry) -> Range<u64> {
    ALIGN..down(geometry.usable().end)
}

/// Plans one disk, as far as its own table is concerned.
pub(super) fn disk(
    context: &Context<'_>,
    id: &Id,
    facts: &DiskFacts,
) -> Result<DiskPlan, Vec<ProvisionDiagnostic>> {
    let parts: Vec<&Part> = context
        .nodes()
        .iter()
        .filter_map(|node| match node {
            StorageNode::Part(part) if part.on == *id => Some(part),
            _ => None,
        })
        .collect();
    let mut plan = DiskPlan {
        id: id.clone(),
        kernel_name: facts.kernel_name.clone(),
        wwn: facts.wwn.clone(),
        serial: facts.serial.clone(),
        size: facts.size,
        sector: facts.logical_sector,
        work: Work::None,
        changes: Vec::new(),
        destroys: Vec::new(),
        tears_down: Vec::new(),
        writable: Vec::new(),
    };
    let before = facts.table.as_ref().map_or(&[][..], |table| &table.partitions);
    let erased = context.document.sections.erase.iter().flat_map(|erase| &erase.disks);
    let is_erased =
        context.document.is_queued("erase") && erased.into_iter().any(|disk| disk == id);
    let image = context.image_of(id);
    // A disk that is erased and gets a table is erased first.
    if image.is_some() || (is_erased && parts.is_empty()) {
        plan.work = image.map_or(Work::Erase, |image| Work::Image(image.clone()));
        plan.changes = differences(before, &[]);
        plan.writable = std::iter::once(0..facts.size).collect();
        return Ok(plan);
    }
    if parts.is_empty() {
        let kept = |part| {
            let entry = Some(Entry::from(part));
            TableChange { what: Difference::Kept, before: entry.clone(), after: entry }
        };
        plan.changes = before.iter().map(kept).collect();
        return Ok(plan);
    }
    let table = Table { context, id, facts, parts };
    let (partitions, guid) = if context.document.adopts_tables() {
        table.adopted()?
    } else {
        (table.made()?, table.guid())
    };
    plan.changes = differences(before, &partitions);
    plan.writable = table.writable(&partitions);
    plan.work = Work::Table(TablePlan { guid, partitions });
    Ok(plan)
}

struct Table<'a> {
    context: &'a Context<'a>,
    id: &'a Id,
    facts: &'a DiskFacts,
    parts: Vec<&'a Part>,
}

impl<'a> Table<'a> {
    fn geometry(&self) -> Geometry {
        Geometry { size: self.facts.size, sector: self.facts.logical_sector.into() }
    }

    /// The GUID of the table. A table with retained partitions keeps its GUID.
    fn guid(&self) -> Uuid {
        let is_kept = self.parts.iter().any(|part| part.retain.is_some());
        let existing = self.facts.table.as_ref().and_then(|table| table.id.as_ref()?.parse().ok());
        let document = self.context.document;
        let derived = || derive(document.txn, document.node_id(), self.id);
        existing.filter(|_| is_kept).unwrap_or_else(derived)
    }

    /// The partitions at their positions.
    fn made(&self) -> Result<Vec<PartitionPlan>, Vec<ProvisionDiagnostic>> {
        let mut found = Vec::new();
        let mut kept: Vec<Option<&PartitionFacts>> = Vec::new();
        for part in &self.parts {
            match self.retained(part) {
                Ok(existing) => kept.push(existing),
                Err(diagnostic) => {
                    found.push(diagnostic);
                    kept.push(None);
                }
            }
        }
        found.extend(self.kept_apart(&kept));
        if !found.is_empty() {
            return Err(found);
        }
        let fences: Vec<Range<u64>> = kept.iter().flatten().map(|part| part.range()).collect();
        let sizes: Vec<Option<Size>> = self
            .parts
            .iter()
            .zip(&kept)
            .map(|(part, kept)| kept.is_none().then_some(part.size))
            .collect();
        let places = place(&aligned(self.geometry()), &fences, &sizes, self.service_room())
            .map_err(|lack| vec![self.no_room(&lack)])?;
        let mut numbers = Numbers::beside(kept.iter().flatten().map(|part| part.number));
        let plans = self.parts.iter().zip(&kept).zip(places);
        Ok(plans
            .map(|((part, kept), place)| match kept {
                Some(existing) => self.as_it_is(part, existing, true),
                None => self.new_one(part, numbers.next(), &place),
            })
            .collect())
    }

    /// Bytes of the new partitions that firmware, loader and config drive need. Shares of the disk
    /// do not count them, so the last share gets so much less.
    fn service_room(&self) -> u64 {
        let roles = [PartRole::BiosBoot, PartRole::Boot, PartRole::Esp, PartRole::ConfigDrive];
        let parts = self.parts.iter().filter(|part| part.retain.is_none());
        let sizes = parts.filter(|part| roles.contains(&part.role)).map(|part| exact(part.size));
        sizes.fold(0, u64::saturating_add)
    }

    fn new_one(&self, part: &Part, number: u32, place: &Range<u64>) -> PartitionPlan {
        let document = self.context.document;
        let arch = &self.context.facts.cpu.arch;
        let type_guid = part.type_guid.unwrap_or_else(|| type_of(self.role(part), arch));
        PartitionPlan {
            id: part.id.clone(),
            number,
            start: place.start,
            len: place.end - place.start,
            type_guid,
            partuuid: derive(document.txn, document.node_id(), &part.id),
            name: part.name().to_owned(),
            attributes: part.attribute_bits(),
            retained: false,
        }
    }

    fn as_it_is(&self, part: &Part, existing: &PartitionFacts, retained: bool) -> PartitionPlan {
        PartitionPlan {
            retained,
            number: existing.number,
            type_guid: existing.type_guid.unwrap_or_default(),
            partuuid: existing.partuuid.unwrap_or_default(),
            name: existing.name.clone(),
            attributes: existing.attributes,
            ..self.new_one(part, 0, &existing.range())
        }
    }

    /// The role of a partition. Without a declared role, the node on the partition decides.
    fn role(&self, part: &Part) -> PartRole {
        if part.role != PartRole::Data {
            return part.role;
        }
        let role = self.context.nodes_on(&part.id).map(|node| match node {
            StorageNode::Pv(_) => PartRole::Lvm,
            StorageNode::Md(_) => PartRole::Raid,
            StorageNode::Luks(_) => PartRole::Luks,
            StorageNode::Fs(fs) if fs.kind == FsKind::Swap => PartRole::Swap,
            StorageNode::Fs(fs) if fs.mount.as_deref() == Some("/") => PartRole::Root,
            _ => PartRole::Data,
        });
        role.into_iter().next().unwrap_or_default()
    }

    /// The existing partition of a retained node, if it is as described.
    fn retained(&self, part: &Part) -> Result<Option<&'a PartitionFacts>, ProvisionDiagnostic> {
        let Some(retain) = &part.retain else { return Ok(None) };
        let place = format!("storage.{}.retain", part.id);
        let wrong = |what: String, seen: Vec<String>| {
            let hint = "correct the node in the document; the disk is not touched until then";
            Err(ProvisionDiagnostic::new(Code::NotAsRetained, &place, what)
                .evidence(seen)
                .hint(hint))
        };
        let name = &self.facts.kernel_name;
        let is_good = |table: &&TableFacts| is_sound(table) || self.is_cut_off(table);
        let Some(table) = self.facts.table.as_ref().filter(is_good) else {
            return wrong(
                format!("disk `{name}` has no sound GPT to keep anything in"),
                Vec::new(),
            );
        };
        let is_it = |existing: &&PartitionFacts| {
            retain.partuuid.is_none_or(|wanted| existing.partuuid == Some(wanted))
                && retain.name.as_ref().is_none_or(|wanted| existing.name == *wanted)
                && retain.type_guid.is_none_or(|wanted| existing.type_guid == Some(wanted))
        };
        let candidates: Vec<_> = table.partitions.iter().filter(is_it).collect();
        let [existing] = candidates.as_slice() else {
            let seen = table.partitions.iter().map(shown).collect();
            let count = candidates.len();
            let what = format!("{count} partitions of disk `{name}` are the one that shall stay");
            return wrong(what, seen);
        };
        let Size::Exact(Bytes(wanted)) = part.size else {
            return wrong(
                "a retained partition needs an exact size".to_owned(),
                vec![shown(existing)],
            );
        };
        let slack = retain.tolerance.map_or(SLACK, |Bytes(bytes)| bytes);
        if existing.len.abs_diff(wanted) > slack {
            let what = format!("it has {} and not {}", Bytes(existing.len), Bytes(wanted));
            return wrong(what, vec![shown(existing)]);
        }
        let is_before_journal = MetadataArea::before(Some(existing.start)).is_err();
        if is_before_journal || existing.range().end > self.geometry().usable().end {
            let what = "it lies where the table and the journal are".to_owned();
            return wrong(what, vec![shown(existing)]);
        }
        Ok(Some(existing))
    }

    /// Whether the defects are those of a power loss while a table was written: the first copy is
    /// damaged, or is of this transaction, and the second one is not written yet.
    fn is_cut_off(&self, table: &TableFacts) -> bool {
        let txn = self.context.document.txn.to_string();
        let mut parts = table.partitions.iter();
        let is_ours = parts.any(|part| part.type_guid == Some(IN_PROGRESS) && part.name == txn);
        let is_left = |flaw: &String| is_of_first(flaw) || (is_ours && is_of_second(flaw));
        table.kind == TableKind::Gpt && table.defects.iter().all(is_left)
    }

    /// Retained partitions must be distinct and must not overlap.
    fn kept_apart(&self, kept: &[Option<&PartitionFacts>]) -> Vec<ProvisionDiagnostic> {
        let all: Vec<_> =
            self.parts.iter().zip(kept).filter_map(|(p, k)| Some((*p, (*k)?))).collect();
        let mut found = Vec::new();
        for (at, (part, one)) in all.iter().enumerate() {
            for (other, two) in &all[..at] {
                let overlap = one.start < two.range().end && two.start < one.range().end;
                if overlap {
                    let what = format!("it shares its place with `{}`", other.id);
                    let place = format!("storage.{}.retain", part.id);
                    let seen = [shown(one), shown(two)];
                    found.push(
                        ProvisionDiagnostic::new(Code::NotAsRetained, place, what).evidence(seen),
                    );
                }
            }
        }
        found
    }

    fn no_room(&self, lack: &Lack) -> ProvisionDiagnostic {
        let part = self.parts[lack.at];
        let what = format!(
            "no room for {} on disk `{}`; the largest free range has {}",
            part.size,
            self.facts.kernel_name,
            Bytes(lack.free)
        );
        let usable = aligned(self.geometry());
        let seen = format!(
            "{} can be used of {}",
            Bytes(usable.end.saturating_sub(usable.start)),
            Bytes(self.facts.size)
        );
        let found =
            ProvisionDiagnostic::new(Code::NoRoom, format!("storage.{}.size", part.id), what);
        found.evidence([seen]).hint("make this partition or the ones before it smaller")
    }

    /// The existing table, if it is as the document describes to within [`SLACK`].
    fn adopted(&self) -> Result<(Vec<PartitionPlan>, Uuid), Vec<ProvisionDiagnostic>> {
        let wanted = self.made()?;
        let name = &self.facts.kernel_name;
        let wrong = |what: String, seen: Vec<String>| {
            let found =
                ProvisionDiagnostic::new(Code::NotAsRetained, format!("disks.{}", self.id), what);
            let hint = if self.context.document.is_queued("disks") {
                "correct the document, or let the action `disks` make it"
            } else {
                "needs: disks; run that action before or together with the others, or correct the \
                 document"
            };
            Err(vec![found.evidence(seen).hint(hint)])
        };
        let Some(table) = self.facts.table.as_ref().filter(|table| is_sound(table)) else {
            return wrong(format!("disk `{name}` has no sound GPT that could stay"), Vec::new());
        };
        let mut existing: Vec<_> = table.partitions.iter().collect();
        existing.sort_by_key(|part| part.start);
        if existing.len() != wanted.len() {
            let there = existing.len();
            let said = wanted.len();
            let what = format!("disk `{name}` has {there} partitions, and the document {said}");
            return wrong(what, existing.into_iter().map(shown).collect());
        }
        let mut in_order: Vec<_> = self.parts.iter().zip(&wanted).collect();
        in_order.sort_by_key(|(_, plan)| plan.start);
        let mut adopted = Vec::new();
        for ((part, plan), is) in in_order.into_iter().zip(existing) {
            if is.start.abs_diff(plan.start) > SLACK || is.len.abs_diff(plan.len) > SLACK {
                let what = format!(
                    "`{}` is at {} with {}, and the document says at {} with {}",
                    part.id,
                    Bytes(is.start),
                    Bytes(is.len),
                    Bytes(plan.start),
                    Bytes(plan.len)
                );
                return wrong(what, vec![shown(is)]);
            }
            adopted.push(self.as_it_is(part, is, !self.is_written(&part.id)));
        }
        let guid = table.id.as_ref().and_then(|id| id.parse().ok());
        Ok((adopted, guid.unwrap_or_default()))
    }

    /// Whether an action adds contents to an existing partition.
    fn is_filled(&self, id: &Id) -> bool {
        let document = self.context.document;
        let is_for_boot = |part: &Part| {
            matches!(part.role, PartRole::Esp | PartRole::Boot | PartRole::BiosBoot)
                && document.sections.boot.is_some()
                && document.is_queued("boot")
        };
        // Other file systems are written by the kernel.
        let is_for_files = || {
            let fss = self.context.nodes_on(id).filter_map(StorageNode::as_fs);
            let mut fats = fss.filter(|fs| fs.kind == FsKind::Vfat);
            document.is_queued("files")
                && fats.any(|fs| document.sections.files.iter().any(|file| file.on == fs.id))
        };
        let part = self.parts.iter().find(|part| part.id == *id);
        part.is_some_and(|part| part.retain.is_none() && (is_for_boot(part) || is_for_files()))
    }

    /// Whether a node on an existing partition is created again.
    fn is_written(&self, id: &Id) -> bool {
        let makes = self.context.document.is_queued("disks");
        let mut waiting = vec![id];
        let mut seen = BTreeSet::new();
        while let Some(id) = waiting.pop() {
            if !seen.insert(id) {
                continue;
            }
            if self.context.image_of(id).is_some() {
                return true;
            }
            for node in self.context.nodes_on(id) {
                match node {
                    StorageNode::Fs(fs) if fs.retain.is_none() && makes => return true,
                    other => waiting.push(other.id()),
                }
            }
        }
        false
    }

    fn writable(&self, partitions: &[PartitionPlan]) -> Vec<Range<u64>> {
        if self.context.document.adopts_tables() {
            let written =
                partitions.iter().filter(|part| !part.retained || self.is_filled(&part.id));
            let mut ranges: Vec<_> = written.map(PartitionPlan::range).collect();
            // The boot code for BIOS; the table behind it stays.
            if self
                .parts
                .iter()
                .any(|part| part.role == PartRole::BiosBoot && self.is_filled(&part.id))
            {
                ranges.push(0..self.geometry().sector);
            }
            let first = partitions.iter().map(|part| part.start).min();
            ranges.extend(MetadataArea::before(first).map(|area| area.range()));
            ranges.sort_by_key(|range| range.start);
            return ranges;
        }
        let mut kept: Vec<_> =
            partitions.iter().filter(|part| part.retained).map(PartitionPlan::range).collect();
        kept.sort_by_key(|range| range.start);
        without(&(0..self.facts.size), &kept)
    }
}

fn is_sound(table: &TableFacts) -> bool {
    table.kind == TableKind::Gpt && table.defects.is_empty()
}

fn shown(part: &PartitionFacts) -> String {
    let guid = |guid: Option<Uuid>| guid.map_or_else(|| "none".to_owned(), |guid| guid.to_string());
    format!(
        "partition {} at {} with {}, name `{}`, type {}, partuuid {}",
        part.number,
        Bytes(part.start),
        Bytes(part.len),
        part.name,
        guid(part.type_guid),
        guid(part.partuuid)
    )
}

/// The parts of a range outside of `holes`, which must be sorted and disjoint.
fn without(whole: &Range<u64>, holes: &[Range<u64>]) -> Vec<Range<u64>> {
    let mut ranges = Vec::new();
    let mut start = whole.start;
    for hole in holes {
        if hole.start > start {
            ranges.push(start..hole.start.min(whole.end));
        }
        start = start.max(hole.end);
    }
    if start < whole.end {
        ranges.push(start..whole.end);
    }
    ranges
}

/// Unused partition numbers.
struct Numbers {
    taken: Vec<u32>,
    last: u32,
}

impl Numbers {
    fn beside(taken: impl Iterator<Item = u32>) -> Self {
        Self { taken: taken.collect(), last: 0 }
    }

    fn next(&mut self) -> u32 {
        self.last += 1;
        while self.taken.contains(&self.last) {
            self.last += 1;
        }
        self.last
    }
}

/// The bytes of an exact size, aligned. Other sizes have none of their own.
fn exact(size: Size) -> u64 {
    match size {
        Size::Exact(Bytes(bytes)) => up(bytes),
        Size::Percent(_) | Size::Rest => 0,
    }
}

/// Partitions without room, and the available room.
struct Lack {
    at: usize,
    free: u64,
}

fn up(bytes: u64) -> u64 {
    bytes.div_ceil(ALIGN).saturating_mul(ALIGN)
}

fn down(bytes: u64) -> u64 {
    bytes / ALIGN * ALIGN
}

/// Places partitions that have no position yet (`Some` of their size), in their order: those before
/// the rest from the front, those behind it from the back, and the rest in the largest free range
/// between. No partition overlaps a fence. A partition with a position gets an empty range. A share
/// that lacks at most `service` bytes gets the room that there is.
fn place(
    usable: &Range<u64>,
    fences: &[Range<u64>],
    sizes: &[Option<Size>],
    service: u64,
) -> Result<Vec<Range<u64>>, Lack> {
    let mut fences = fences.to_vec();
    fences.sort_by_key(|fence| fence.start);
    let aligned: Vec<_> = fences.iter().map(|fence| down(fence.start)..up(fence.end)).collect();
    let mut free = without(usable, &aligned);
    free.retain(|range| range.start < range.end);
    let total: u64 = free.iter().map(|range| range.end - range.start).sum();
    let rest = sizes.iter().position(|size| *size == Some(Size::Rest)).unwrap_or(sizes.len());
    let mut places = vec![0..0; sizes.len()];
    let bytes = |size: Size| match size {
        Size::Percent(share) => down(share.of(total)),
        other => exact(other),
    };
    let largest = |free: &[Range<u64>]| free.iter().map(|r| r.end - r.start).max().unwrap_or(0);
    for (at, size) in sizes.iter().enumerate().take(rest) {
        let Some(size) = size else { continue };
        let mut wanted = bytes(*size);
        if matches!(size, Size::Percent(_)) {
            let behind = sizes[at + 1..].iter().flatten().map(|size| exact(*size));
            let behind = behind.fold(0, u64::saturating_add);
            let room = largest(&free).saturating_sub(behind);
            if room < wanted && wanted - room <= service {
                wanted = room;
            }
        }
        let fits = |range: &Range<u64>| wanted > 0 && range.end - range.start >= wanted;
        let Some(slot) = free.iter().position(fits) else {
            return Err(Lack { at, free: largest(&free) });
        };
        let start = free[slot].start;
        places[at] = start..start + wanted;
        // The room before it stays free, to keep the order.
        free.drain(..slot);
        free[0].start += wanted;
    }
    for (at, size) in sizes.iter().enumerate().skip(rest + 1).rev() {
        let Some(size) = size else { continue };
        let wanted = bytes(*size);
        let fits = |range: &Range<u64>| wanted > 0 && range.end - range.start >= wanted;
        let Some(slot) = free.iter().rposition(fits) else {
            return Err(Lack { at, free: largest(&free) });
        };
        let end = free[slot].end;
        places[at] = end - wanted..end;
        free.truncate(slot + 1);
        free[slot].end -= wanted;
    }
    if rest < sizes.len() {
        // The first of the largest free ranges.
        let most =
            free.iter().max_by_key(|range| (range.end - range.start, u64::MAX - range.start));
        match most.filter(|range| range.start < range.end) {
            Some(range) => places[rest] = range.clone(),
            None => return Err(Lack { at: rest, free: 0 }),
        }
    }
    Ok(places)
}

impl From<&PartitionFacts> for Entry {
    fn from(part: &PartitionFacts) -> Self {
        let PartitionFacts { number, start, len, type_guid, partuuid, ref name, .. } = *part;
        Self { number, start, len, type_guid, partuuid, name: name.clone() }
    }
}

impl From<&PartitionPlan> for Entry {
    fn from(part: &PartitionPlan) -> Self {
        let PartitionPlan { number, start, len, type_guid, partuuid, ref name, .. } = *part;
        let type_guid = Some(type_guid);
        let partuuid = Some(partuuid);
        Self { number, start, len, type_guid, partuuid, name: name.clone() }
    }
}

/// Compares two tables. Partitions are the same if PARTUUID and start are equal.
fn differences(before: &[PartitionFacts], after: &[PartitionPlan]) -> Vec<TableChange> {
    let is_same = |is: &PartitionFacts, will: &PartitionPlan| {
        is.partuuid == Some(will.partuuid) && is.start == will.start
    };
    let mut changes: Vec<TableChange> = after
        .iter()
        .map(|will| {
            let is = before.iter().find(|is| is_same(is, will));
            let what = match is {
                None => Difference::New,
                Some(is)
                    if Entry::from(is) == Entry::from(will) && is.attributes == will.attributes =>
                {
                    Difference::Kept
                }
                Some(is) if is.len == will.len => Difference::Renamed,
                Some(_) => Difference::Recreated,
            };
            TableChange { what, before: is.map(Entry::from), after: Some(will.into()) }
        })
        .collect();
    let gone = before.iter().filter(|is| !after.iter().any(|will| is_same(is, will)));
    let deleted =
        |is| TableChange { what: Difference::Deleted, before: Some(Entry::from(is)), after: None };
    changes.extend(gone.map(deleted));
    let start = |entry: &Option<Entry>| entry.as_ref().map(|entry| entry.start);
    changes.sort_by_key(|change| {
        (start(&change.after).or(start(&change.before)), change.after.is_some())
    });
    changes
}
