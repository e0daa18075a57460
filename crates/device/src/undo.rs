//! Restoring disks to their state before a transaction, as far as possible.

use std::collections::BTreeMap;

use hoist_engine::record::Record;
use hoist_provision::backup::{Backup, BackupOrigin, Ends, TakenBackup, gone};
use hoist_provision::bind::bind;
use hoist_provision::diagnostic::{Code, ProvisionDiagnostic};
use hoist_provision::document::{Document, Id};
use hoist_provision::facts::DiskFacts;
use hoist_provision::metadata_area::{Marker, MetadataArea};
use hoist_provision::partition_table::{self as table, TableOnDisk};
use hoist_provision::plan::erase::is_erased;
use hoist_provision::read_at::ReadAt as _;
use hoist_provision::steps::images;

use crate::apply::ApplyError;
use crate::metadata_area::{DiskJournal, backup, read_marker, write_marker};
use crate::observe::area;
use crate::probe::Machine;
use crate::{GuardedIo, Identity, Ranges, ReadIo, kernel};

/// The disks to restore.
#[derive(Debug)]
pub struct UndoPlan {
    disks: Vec<Disk>,
    unknown: Vec<ProvisionDiagnostic>,
}

#[derive(Debug)]
struct Disk {
    id: Id,
    kernel_name: String,
    sector: u32,
    area: MetadataArea,
    marker: Marker,
    before: BackupOrigin,
    backup: Backup,
    /// The table before the transaction.
    table: TableOnDisk,
}

impl UndoPlan {
    pub fn disks(&self) -> Vec<&Id> {
        self.disks.iter().map(|disk| &disk.id).collect()
    }

    /// Disks without evidence of whether the run wrote to them. A caller that knows of a write must
    /// not report them as restored.
    pub fn unknown(&self) -> &[ProvisionDiagnostic] {
        &self.unknown
    }
}

/// A disk in its current state, with its backups.
struct CurrentDisk<'a> {
    id: &'a Id,
    facts: &'a DiskFacts,
    io: ReadIo,
    area: MetadataArea,
    /// The marker, if it belongs to this transaction.
    marker: Option<Marker>,
    elsewhere: Option<&'a TakenBackup>,
}

impl<'a> CurrentDisk<'a> {
    /// `None` if no run can have written to the disk.
    fn at(
        document: &Document,
        machine: &Machine,
        (id, facts): (&'a Id, &'a DiskFacts),
        elsewhere: &'a [TakenBackup],
    ) -> Result<Option<Self>, ProvisionDiagnostic> {
        let Some(area) = area(facts) else { return Ok(None) };
        let io = ReadIo::open(&machine.device(&facts.kernel_name), facts.logical_sector);
        let io = io.map_err(|error| unread(id, facts, &error))?;
        let marker = read_marker(&io, &area).map_err(|error| unread(id, facts, &error))?;
        let marker = marker.filter(|marker| marker.txn == document.txn);
        let elsewhere = elsewhere.iter().find(|taken| {
            taken.disk == *id && taken.before.txn == document.txn && taken.size == io.size()
        });
        Ok(Some(Self { id, facts, io, area, marker, elsewhere }))
    }

    fn is_as(&self, taken: &TakenBackup) -> bool {
        backup::take(&self.io).is_ok_and(|ends| ends == taken.ends)
    }

    /// The disk to restore, from the backup on it or the one of the controller.
    fn before(&self, marker: &Marker) -> Result<Disk, ProvisionDiagnostic> {
        let Self { id, facts, io, area, .. } = self;
        let kept = backup::read(io, area).map_err(|error| unread(id, facts, &error))?;
        let kept = kept.filter(|(before, _)| before.txn == marker.txn);
        let elsewhere = || Some((self.elsewhere?.before.clone(), self.elsewhere?.ends.clone()));
        let Some((before, backup)) = kept.or_else(elsewhere) else {
            let what =
                "backup of this disk not found: it was not taken, did not fit, or was overwritten";
            return Err(lost(id, what));
        };
        let ends = Ends { size: io.size(), backup: &backup };
        let table = table::read(&ends, facts.logical_sector);
        let table = table.map_err(|error| unread(id, facts, &error))?;
        let sector = facts.logical_sector;
        let kernel_name = facts.kernel_name.clone();
        let id = self.id.clone();
        let area = area.clone();
        let marker = marker.clone();
        Ok(Disk { id, kernel_name, sector, area, marker, before, backup, table })
    }
}

fn lost(id: &Id, what: impl Into<String>) -> ProvisionDiagnostic {
    ProvisionDiagnostic::new(Code::CannotUndo, format!("disks.{id}"), what)
}

fn unread(id: &Id, facts: &DiskFacts, error: &dyn std::error::Error) -> ProvisionDiagnostic {
    lost(id, format!("disk `{}` cannot be read: {error}", facts.kernel_name))
}

/// Plans restoring the disks of a document, or returns every reason against it. `elsewhere` holds
/// backups beside those on the disks. Nothing is changed.
pub fn plan_undo(
    document: &Document,
    machine: &Machine,
    elsewhere: &[TakenBackup],
) -> Result<UndoPlan, Vec<ProvisionDiagnostic>> {
    let facts = machine.probe().facts;
    let binding = bind(document, &facts)?;
    let mut disks = Vec::new();
    let mut found = Vec::new();
    let mut begun = BTreeMap::new();
    let mut unknown = Vec::new();
    for (id, facts) in &binding {
        let current = CurrentDisk::at(document, machine, (id, facts), elsewhere);
        let Some(current) = current.map_err(|error| vec![error])? else { continue };
        match (&current.marker, current.elsewhere) {
            (Some(marker), _) => {
                begun.insert(id.clone(), has_begun(&current.io, &current.area));
                match current.before(marker) {
                    Ok(disk) => disks.push(disk),
                    Err(what) => found.push(what),
                }
            }
            // The disk is already restored, or the run never opened it.
            (None, Some(taken)) if current.is_as(taken) => {
                begun.insert(id.clone(), false);
            }
            (None, Some(_)) => {
                let what = format!(
                    "disk `{}` has no marker of this run and was changed since; it cannot be restored",
                    facts.kernel_name
                );
                found.push(lost(id, what));
            }
            (None, None) if may_leave_nothing(document, id) => {
                unknown.push(nothing_known(id, facts));
            }
            // A run that had opened the disk would have left a marker on it.
            (None, None) => {}
        }
    }
    // Without evidence to the contrary, a step has started.
    let has_begun = |disk: &&Disk| {
        let journal = disk.before.journal.as_ref();
        journal.and_then(|disk| begun.get(disk)).copied().unwrap_or(true)
    };
    let new = disks.iter().filter(|disk| !disk.marker.undoing);
    found.extend(new.filter(has_begun).filter_map(overwritten));
    // The disk with the journal comes last: as long as the journal exists, it proves that no step
    // has started.
    disks.sort_by_key(|disk| disk.before.journal.as_ref() == Some(&disk.id));
    if disks.iter().any(|disk| disk.marker.undoing) {
        // Disks already restored by an interrupted undo have no marker any more.
        unknown.clear();
    }
    if found.is_empty() { Ok(UndoPlan { disks, unknown }) } else { Err(found) }
}

/// Whether a run may leave a disk without a marker: the disk is erased, or an image occupies the
/// metadata area.
fn may_leave_nothing(document: &Document, disk: &Id) -> bool {
    let has_image = || document.sections.images.iter().any(|(_, image)| image.target == *disk);
    is_erased(document, disk) || (document.is_queued(images::NAME) && has_image())
}

fn nothing_known(id: &Id, facts: &DiskFacts) -> ProvisionDiagnostic {
    let what = format!(
        "disk `{}` has no backup, and it is unknown whether the run wrote to it",
        facts.kernel_name
    );
    lost(id, what).hint("`hoist provision undo --boot-only` leaves disks as they are")
}

/// Whether a step has started. An unreadable journal does not prove that none has.
fn has_begun(disk: &ReadIo, area: &MetadataArea) -> bool {
    let is_intent = |record: &Record| matches!(record, Record::Intent { .. });
    let records = DiskJournal::peek(disk, area);
    records.map_or(true, |records| records.iter().flatten().any(is_intent))
}

/// The data that is lost because a step wrote behind the table.
fn overwritten(disk: &Disk) -> Option<ProvisionDiagnostic> {
    let lost = gone(&disk.table, &disk.before);
    if lost.is_empty() {
        return None;
    }
    let what = format!("data on disk `{}` is overwritten", disk.kernel_name);
    let found = ProvisionDiagnostic::new(Code::CannotUndo, format!("disks.{}", disk.id), what);
    Some(
        found.evidence(lost).hint(
            "the partition table could be restored, but the data in the partitions could not",
        ),
    )
}

/// Restores both ends of every disk, including the partition tables. All disks are opened before
/// the first write, and an interrupted undo can be repeated.
pub fn undo(plan: &UndoPlan, machine: &Machine) -> Result<(), ApplyError> {
    let mut taken = Vec::new();
    for disk in &plan.disks {
        let path = machine.device(&disk.kernel_name);
        let identity = Identity::of(&path, disk.sector)?;
        let allow: Ranges = disk.before.writable.iter().cloned().collect();
        taken.push((disk, GuardedIo::open(&path, &identity, &allow, &Ranges::default())?));
    }
    for (disk, io) in &taken {
        let marker = Marker { is_complete: false, undoing: true, ..disk.marker.clone() };
        write_marker(&marker, io, &disk.area).map_err(ApplyError::on_disk(&disk.id))?;
    }
    for (disk, io) in &taken {
        backup::restore(&disk.backup, io, &disk.area.marker())
            .map_err(ApplyError::on_disk(&disk.id))?;
        let parts = match &disk.table {
            TableOnDisk::Gpt { table, .. } => table.partitions.clone(),
            _ => Vec::new(),
        };
        // A kernel without these partitions reads the table when they are needed.
        let _ = kernel::set_partitions(io.path(), &parts);
    }
    Ok(())
}
