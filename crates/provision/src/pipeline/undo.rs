//! Putting back what disks were before a transaction, as far as that can be.

use std::collections::BTreeMap;

use hoist_engine::record::Record;

use super::ApplyError;
use super::erase::is_erased;
use super::look::gap;
use crate::actions::images;
use crate::bind::bind;
use crate::device::gap::backup::{self, Before, Taken};
use crate::device::gap::{Gap, GapError, GapJournal, Marker};
use crate::device::probe::Machine;
use crate::device::table::{self, Backup, Found};
use crate::device::{GuardedIo, Identity, Ranges, ReadAt, ReadIo, kernel};
use crate::diagnostic::{Code, Diagnostic};
use crate::document::{Bytes, Document, Id};
use crate::facts::DiskFacts;

/// What is to be put back, disk by disk.
#[derive(Debug)]
pub struct Undoing {
    disks: Vec<Disk>,
    unknown: Vec<Diagnostic>,
}

#[derive(Debug)]
struct Disk {
    id: Id,
    kernel_name: String,
    sector: u32,
    gap: Gap,
    marker: Marker,
    before: Before,
    backup: Backup,
    /// As it was.
    table: Found,
}

impl Undoing {
    pub fn disks(&self) -> Vec<&Id> {
        self.disks.iter().map(|disk| &disk.id).collect()
    }

    /// Disks of which nothing says whether the run has written to them. Whoever has reason to think
    /// that it has does not call them put back.
    pub fn unknown(&self) -> &[Diagnostic] {
        &self.unknown
    }
}

/// The ends of a disk as they were, and nothing between.
struct Ends<'a> {
    size: u64,
    backup: &'a Backup,
}

impl ReadAt for Ends<'_> {
    fn size(&self) -> u64 {
        self.size
    }

    fn read_at(&self, at: u64, into: &mut [u8]) -> std::io::Result<()> {
        into.fill(0);
        let tail = self.size - self.backup.tail.len() as u64;
        for (start, bytes) in [(tail, &self.backup.tail), (0, &self.backup.head)] {
            let from = at.max(start);
            let end = (at + into.len() as u64).min(start + bytes.len() as u64);
            if from < end {
                let index = |place: u64, base: u64| usize::try_from(place - base).expect("small");
                let inside = &bytes[index(from, start)..index(end, start)];
                into[index(from, at)..index(end, at)].copy_from_slice(inside);
            }
        }
        Ok(())
    }
}

/// A disk as it is found, and what is known of it.
struct Looked<'a> {
    id: &'a Id,
    facts: &'a DiskFacts,
    io: ReadIo,
    gap: Gap,
    /// If it is of this transaction.
    marker: Option<Marker>,
    elsewhere: Option<&'a Taken>,
}

impl<'a> Looked<'a> {
    /// Nothing, if no run can have written to it.
    fn at(
        document: &Document,
        machine: &Machine,
        (id, facts): (&'a Id, &'a DiskFacts),
        elsewhere: &'a [Taken],
    ) -> Result<Option<Self>, Diagnostic> {
        let Some(gap) = gap(facts) else { return Ok(None) };
        let io = ReadIo::open(&machine.device(&facts.kernel_name), facts.logical_sector);
        let io = io.map_err(|error| unread(id, facts, &error))?;
        let marker = Marker::read(&io, &gap).map_err(|error| unread(id, facts, &error))?;
        let marker = marker.filter(|marker| marker.txn == document.txn);
        let elsewhere = elsewhere.iter().find(|taken| {
            taken.disk == *id && taken.before.txn == document.txn && taken.size == io.size()
        });
        Ok(Some(Self { id, facts, io, gap, marker, elsewhere }))
    }

    fn is_as(&self, taken: &Taken) -> bool {
        Backup::take(&self.io).is_ok_and(|ends| ends == taken.ends)
    }

    /// What is put back, from what is kept on the disk or elsewhere.
    fn before(&self, marker: &Marker) -> Result<Disk, Diagnostic> {
        let Self { id, facts, io, gap, .. } = self;
        let kept = backup::read(io, gap).map_err(|error| unread(id, facts, &error))?;
        let kept = kept.filter(|(before, _)| before.txn == marker.txn);
        let elsewhere = || Some((self.elsewhere?.before.clone(), self.elsewhere?.ends.clone()));
        let Some((before, backup)) = kept.or_else(elsewhere) else {
            let what =
                "what it held before was not kept, did not fit on it, or is not there any more";
            return Err(lost(id, what));
        };
        let ends = Ends { size: io.size(), backup: &backup };
        let table = table::read(&ends, facts.logical_sector);
        let table = table.map_err(|error| unread(id, facts, &error))?;
        let (sector, kernel_name) = (facts.logical_sector, facts.kernel_name.clone());
        let (id, gap, marker) = (self.id.clone(), gap.clone(), marker.clone());
        Ok(Disk { id, kernel_name, sector, gap, marker, before, backup, table })
    }
}

fn lost(id: &Id, what: impl Into<String>) -> Diagnostic {
    Diagnostic::new(Code::CannotUndo, format!("disks.{id}"), what)
}

fn unread(id: &Id, facts: &DiskFacts, error: &dyn std::error::Error) -> Diagnostic {
    lost(id, format!("disk `{}` cannot be read: {error}", facts.kernel_name))
}

/// What can be put back of the disks that a document names, or everything that is lost already.
/// `elsewhere` is what was kept of them beside what they have themselves. Nothing is changed.
pub fn plan_undo(
    document: &Document,
    machine: &Machine,
    elsewhere: &[Taken],
) -> Result<Undoing, Vec<Diagnostic>> {
    let facts = machine.probe().facts;
    let binding = bind(document, &facts)?;
    let (mut disks, mut found, mut begun) = (Vec::new(), Vec::new(), BTreeMap::new());
    let mut unknown = Vec::new();
    for (id, facts) in &binding {
        let looked = Looked::at(document, machine, (id, facts), elsewhere);
        let Some(looked) = looked.map_err(|error| vec![error])? else { continue };
        match (&looked.marker, looked.elsewhere) {
            (Some(marker), _) => {
                begun.insert(id.clone(), has_begun(&looked.io, &looked.gap));
                match looked.before(marker) {
                    Ok(disk) => disks.push(disk),
                    Err(what) => found.push(what),
                }
            }
            // It is put back already, or was never begun with.
            (None, Some(taken)) if looked.is_as(taken) => {
                begun.insert(id.clone(), false);
            }
            (None, Some(_)) => {
                let what = format!(
                    "nothing on disk `{}` says that it is of this run; somebody has changed it",
                    facts.kernel_name
                );
                found.push(lost(id, what));
            }
            (None, None) if may_leave_nothing(document, id) => {
                unknown.push(nothing_known(id, facts));
            }
            // Who had begun with it would have said so on it.
            (None, None) => {}
        }
    }
    // Where nobody can say that nothing was begun, it was.
    let has_begun = |disk: &&Disk| {
        let journal = disk.before.journal.as_ref();
        journal.and_then(|disk| begun.get(disk)).copied().unwrap_or(true)
    };
    let new = disks.iter().filter(|disk| !disk.marker.undoing);
    found.extend(new.filter(has_begun).filter_map(overwritten));
    // As long as it is there, the journal says that nothing was begun.
    disks.sort_by_key(|disk| disk.before.journal.as_ref() == Some(&disk.id));
    if disks.iter().any(|disk| disk.marker.undoing) {
        // What is being put back was known, and is not any more once it is.
        unknown.clear();
    }
    if found.is_empty() { Ok(Undoing { disks, unknown }) } else { Err(found) }
}

/// Whether a run may end with nothing on a disk that says whose it was: it is erased, or an image has
/// the place where that would be said.
fn may_leave_nothing(document: &Document, disk: &Id) -> bool {
    let has_image = || document.sections.images.iter().any(|(_, image)| image.target == *disk);
    is_erased(document, disk) || (document.is_queued(images::NAME) && has_image())
}

fn nothing_known(id: &Id, facts: &DiskFacts) -> Diagnostic {
    let what = format!(
        "nothing is known of what disk `{}` held, nor whether it was written to",
        facts.kernel_name
    );
    lost(id, what).hint("`hoist provision undo --boot-only` leaves disks as they are")
}

/// Whether a step has begun. A journal that cannot be read does not say that none has.
fn has_begun(disk: &ReadIo, gap: &Gap) -> bool {
    let is_intent = |record: &Record| matches!(record, Record::Intent { .. });
    let records = GapJournal::peek(disk, gap);
    records.map_or(true, |records| records.iter().flatten().any(is_intent))
}

/// What was on a disk and is not any more, once anything was written behind its table.
fn overwritten(disk: &Disk) -> Option<Diagnostic> {
    let lost = gone(&disk.table, &disk.before);
    if lost.is_empty() {
        return None;
    }
    let what = format!("what was on disk `{}` is overwritten", disk.kernel_name);
    let found = Diagnostic::new(Code::CannotUndo, format!("disks.{}", disk.id), what);
    Some(found.evidence(lost).hint("its table could be put back, but what it speaks of could not"))
}

fn gone(table: &Found, before: &Before) -> Vec<String> {
    let parts = table.facts().map(|facts| facts.partitions).unwrap_or_default();
    let is_hit = |start: u64, end: u64| {
        before.writable.iter().any(|range| range.start < end && start < range.end)
    };
    let gone = parts.iter().filter(|part| is_hit(part.start, part.start.saturating_add(part.len)));
    let say = |part: &crate::facts::PartitionFacts| {
        format!("partition {} at {}, {}", part.number, Bytes(part.start), Bytes(part.len))
    };
    gone.map(say).chain(before.destroys.iter().cloned()).collect()
}

/// What of a disk does not come back with its table, once a step of the run has begun.
pub fn would_be_lost(taken: &Taken) -> Vec<String> {
    let ends = Ends { size: taken.size, backup: &taken.ends };
    match table::read(&ends, taken.sector) {
        Ok(table) => gone(&table, &taken.before),
        Err(_) => taken.before.destroys.clone(),
    }
}

/// Puts it back: both ends of every disk, with its table. Nothing is written before all disks are
/// taken, and whatever ends it in the middle, it can be done again.
pub fn undo(undoing: &Undoing, machine: &Machine) -> Result<(), ApplyError> {
    let mut taken = Vec::new();
    for disk in &undoing.disks {
        let path = machine.device(&disk.kernel_name);
        let identity = Identity::of(&path, disk.sector)?;
        let allow: Ranges = disk.before.writable.iter().cloned().collect();
        taken.push((disk, GuardedIo::open(&path, &identity, &allow, &Ranges::default())?));
    }
    for (disk, io) in &taken {
        let marker = Marker { is_complete: false, undoing: true, ..disk.marker.clone() };
        marker.write(io, &disk.gap)?;
    }
    for (disk, io) in &taken {
        disk.backup.restore(io, &disk.gap.marker()).map_err(GapError::from)?;
        let parts = match &disk.table {
            Found::Gpt { table, .. } => table.partitions.clone(),
            _ => Vec::new(),
        };
        // Where the kernel has none of its own, whoever wants the partitions reads the table.
        let _ = kernel::tell(io.path(), &parts);
    }
    Ok(())
}
