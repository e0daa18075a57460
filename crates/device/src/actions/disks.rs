//! Partition tables, stacked devices and file systems.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use hoist_diagnostic::Diagnostic;
use hoist_engine::action::{Ability, Action, ApplyOutcome, Ctx, Description, Failure, Verdict};
use hoist_engine::execute::process;
use hoist_engine::plan::Step;
use hoist_engine::record::FailureKind;
use hoist_provision::digest::Digest;
use hoist_provision::document::{FsKind, Id};
use hoist_provision::facts::{PartitionFacts, SignaturePlace};
use hoist_provision::layout::{PartitionPlan, TablePlan};
use hoist_provision::metadata_area::Marker;
use hoist_provision::partition_table::{Geometry, Partition, Table, TableOnDisk, read};
use hoist_provision::read_at::ReadAt as _;
use hoist_provision::steps::disks::{NAME, NewFileSystem, Task, metadata_area};
use hoist_provision::steps::grow::FileSystemGrowth;
use hoist_provision::steps::images::Receipt;
use hoist_provision::steps::{FsLocation, stack};
use serde_json::Value;
use uuid::Uuid;

use super::last_lines::LastLines;
use super::{HeldDisks, diagnostics, failed, grow, task, wrong};
use crate::{GuardedIo, fat, kernel, metadata_area, signature, table};

/// Directories to search for programs, independent of the `PATH` of the caller.
pub(super) const SYSTEM_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The path of a program.
pub fn find_tool(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let system = std::env::split_paths(SYSTEM_PATH);
    let mut places = std::env::split_paths(&path).chain(system).filter(|dir| dir.is_absolute());
    places.find_map(|dir| Some(dir.join(name)).filter(|file| file.is_file()))
}

/// Opens a disk: its table now says that a run is in progress, with the transaction, the kept
/// partitions and the ranges to wipe. The marker is written last; a run that finds the marker
/// resumes after this point.
pub fn open(io: &GuardedIo, opening: &DiskOpening<'_>, marker: &Marker) -> Result<(), Failure> {
    let area = metadata_area(opening.kept).map_err(|error| failed(&error))?;
    let kept: Vec<Partition> = opening.kept.iter().map(Partition::from).collect();
    let geometry = Geometry { size: io.size(), sector: io.sector() };
    let table = Table::in_progress(opening.guid, marker.txn, &kept, &geometry);
    let table = table.with_ranges_to_destroy(opening.to_destroy);
    table::write_opening(&table, io).map_err(|error| failed(&error))?;
    // Signatures of an old system may lie between the table and the metadata area.
    io.zero(geometry.usable().start..area.range().start).map_err(|error| failed(&error))?;
    if opening.clears_metadata {
        metadata_area::clear_records(&area, io).map_err(|error| failed(&error))?;
    }
    io.sync().map_err(|error| failed(&error))?;
    metadata_area::write_marker(marker, io, &area).map_err(|error| failed(&error))
}

/// How a disk is opened.
#[derive(Debug, Clone, Copy)]
pub struct DiskOpening<'a> {
    /// The GUID of the table.
    pub guid: Uuid,
    pub kept: &'a [PartitionPlan],
    /// Ranges whose contents are to be destroyed.
    pub to_destroy: &'a [Range<u64>],
    /// Clears all metadata of earlier runs in the metadata area.
    pub clears_metadata: bool,
}

/// The transaction that is in progress on a disk, according to its table.
pub fn txn_in_progress(io: &GuardedIo) -> Result<Option<Uuid>, Failure> {
    Ok(match found(io)? {
        TableOnDisk::Gpt { table, .. } => table.txn_in_progress(),
        _ => None,
    })
}

/// The action.
#[derive(Debug)]
pub struct Disks {
    pub held: Arc<HeldDisks>,
    /// The owner of each disk.
    pub markers: BTreeMap<Id, Marker>,
    /// Fingerprints of the nodes that earlier attempts of this run started to build.
    pub begun: Vec<Digest>,
}

impl Disks {
    fn marker(&self, disk: &Id) -> Result<&Marker, Failure> {
        self.markers
            .get(disk)
            .ok_or_else(|| wrong(format!("disk `{disk}` was not opened by this run")))
    }

    fn make(
        &self,
        place: &FsLocation,
        fs: &NewFileSystem,
        ctx: &mut Ctx<'_>,
    ) -> Result<(), Failure> {
        if fs.kind == FsKind::Vfat {
            let (io, range) = self.held.bytes(place)?;
            let made = fat::make(&io, &range, fs.label.as_deref(), fs.serial());
            return made.map_err(|error| failed(&error));
        }
        self.held.lend_place(place, |node| call(&fs.program, node, &[], ctx))
    }

    /// Returns the size of the file system after growing.
    fn grow(
        &self,
        place: &FsLocation,
        fs: &FileSystemGrowth,
        ctx: &mut Ctx<'_>,
    ) -> Result<u64, Failure> {
        self.held.lend_place(place, |node| grow::grow(fs, node, ctx))?;
        let (io, range) = self.held.bytes(place)?;
        let size = grow::size_of(&*io, range.start, fs.kind).map_err(|error| failed(&error))?;
        Ok(size.unwrap_or(0))
    }

    fn close(&self, disk: &Id, plan: &TablePlan) -> Result<(), Failure> {
        let io = self.held.io(disk)?;
        let area = metadata_area(&plan.partitions).map_err(|error| failed(&error))?;
        let table = Table::from(plan);
        table::write_closing(&table, &io).map_err(|error| failed(&error))?;
        let marker = Marker { is_complete: true, ..self.marker(disk)?.clone() };
        metadata_area::write_marker(&marker, &io, &area).map_err(|error| failed(&error))?;
        kernel::set_partitions(io.path(), &table.partitions).map_err(|error| failed(&error))?;
        Ok(())
    }

    fn fit(&self, disk: &Id) -> Result<(), Failure> {
        let io = self.held.io(disk)?;
        let marker = self.marker(disk)?;
        let partitions = match found(&io)? {
            TableOnDisk::Gpt { table, .. } if table.txn_in_progress() != Some(marker.txn) => {
                table::write_moved(&table, &io).map_err(|error| failed(&error))?;
                table.partitions
            }
            other => {
                // The backup copy of hoist's table must not stay behind a table of another kind.
                if let TableOnDisk::Gpt { table: opening, .. } = other {
                    table::clear_copy(&opening, &io).map_err(|error| failed(&error))?;
                }
                found(&io)?.facts().map_or(Vec::new(), |facts| known(&facts.partitions))
            }
        };
        let area = metadata_area(&[]).map_err(|error| failed(&error))?;
        // Bytes of the image in the metadata area must stay.
        if metadata_area::read_marker(&*io, &area).map_err(|error| failed(&error))?.as_ref()
            == Some(marker)
        {
            let marker = Marker { is_complete: true, ..marker.clone() };
            metadata_area::write_marker(&marker, &io, &area).map_err(|error| failed(&error))?;
        }
        kernel::set_partitions(io.path(), &partitions).map_err(|error| failed(&error))?;
        Ok(())
    }
}

fn found(io: &GuardedIo) -> Result<TableOnDisk, Failure> {
    let sector = u32::try_from(io.sector()).expect("it is small");
    read(io, sector).map_err(|error| failed(&error))
}

fn receipt(made: Id, task: Digest) -> Value {
    serde_json::to_value(stack::Receipt { made, task }).expect("a plain value")
}

/// Converts partitions to the form that the kernel takes.
fn known(partitions: &[PartitionFacts]) -> Vec<Partition> {
    let known = |part: &PartitionFacts| Partition {
        number: part.number,
        start: part.start,
        length: part.len,
        kind: Uuid::nil(),
        id: Uuid::nil(),
        attributes: 0,
        name: String::new(),
    };
    partitions.iter().map(known).collect()
}

/// Runs a program on a device, without a shell and with a minimal environment.
pub(super) fn call(
    program: &[String],
    node: &Path,
    good: &[i32],
    ctx: &mut Ctx<'_>,
) -> Result<(), Failure> {
    let (tool, words) = program.split_first().ok_or_else(|| wrong("no program".to_owned()))?;
    let path =
        find_tool(tool).ok_or_else(|| wrong(format!("program `{tool}` is no longer available")))?;
    let mut command = Command::new(path);
    command.args(words).arg(node).env_clear().env("PATH", SYSTEM_PATH).env("LC_ALL", "C");
    command.envs(ctx.programs.marks(ctx.attempt));
    let mut lines = LastLines::of(ctx.output);
    let ran = process::run(&mut command, b"", ctx.deadline, ctx.cancel, &mut lines);
    let ran = ran.map_err(|error| failed(&error))?;
    match lines.explain(&ran) {
        Some(_) if ran.status.code().is_some_and(|code| good.contains(&code)) => Ok(()),
        None => Ok(()),
        Some(failure) => {
            let reason = format!("{tool} on `{}`: {failure}", node.display());
            Err(Failure { kind: FailureKind::Exit, reason })
        }
    }
}

impl Action for Disks {
    fn describe(&self) -> Description {
        let owned = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
        Description {
            name: NAME.to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            about: "partition tables, stacked devices and file systems".to_owned(),
            reads: owned(&["disks", "storage"]),
            tools: owned(&[
                "cryptsetup",
                "lvm",
                "mdadm",
                "mke2fs",
                "mkfs.btrfs",
                "mkfs.xfs",
                "mkswap",
            ]),
            can: BTreeSet::from([Ability::Verify]),
            skip_when_verified: true,
            ..Description::default()
        }
    }

    fn validate(&self, input: &Value) -> Vec<Diagnostic> {
        diagnostics::<Task>(input)
    }

    fn apply(&self, step: &Step, ctx: &mut Ctx<'_>) -> Result<ApplyOutcome, Failure> {
        let task = task::<Task>(&step.call.input)?;
        let print = task.fingerprint();
        match task {
            Task::Wipe { disk, ranges, from } => {
                let io = self.held.io(&disk)?;
                for range in ranges {
                    signature::wipe_from(&io, range, from).map_err(|error| failed(&error))?;
                }
            }
            Task::Make { place, fs } => {
                self.make(&place, &fs, ctx)?;
                if let FsLocation::Device(_) = place {
                    return Ok(ApplyOutcome { changed: true, receipt: receipt(fs.id, print) });
                }
            }
            Task::Build { node } => {
                let print = node.fingerprint();
                self.held.make_node(&node, self.begun.contains(&print))?;
                return Ok(ApplyOutcome { changed: true, receipt: receipt(node.id, print) });
            }
            Task::Stop { .. } => self.held.stop_stacks()?,
            Task::Grow { place, fs, image, .. } => {
                let bytes = self.grow(&place, &fs, ctx)?;
                let receipt = Receipt { image, task: print, bytes, zeros: 0, is_grown: true };
                let receipt = serde_json::to_value(receipt).expect("a plain value");
                return Ok(ApplyOutcome { changed: true, receipt });
            }
            Task::Close { disk, table } => self.close(&disk, &table)?,
            Task::Fit { disk } => self.fit(&disk)?,
        }
        Ok(ApplyOutcome { changed: true, receipt: Value::Null })
    }

    fn verify(&self, step: &Step, _: &mut Ctx<'_>) -> Result<Verdict, Failure> {
        let read = |error: std::io::Error| failed(&error);
        let difference = match task::<Task>(&step.call.input)? {
            Task::Wipe { disk, ranges, from } => {
                let io = self.held.io(&disk)?;
                let mut left = Vec::new();
                for range in ranges {
                    let found =
                        signature::probe(&*io, range, SignaturePlace::Disk).map_err(read)?;
                    let found = found.iter().filter(|found| found.offset >= from);
                    left.extend(found.map(ToString::to_string));
                }
                (!left.is_empty()).then(|| format!("signatures are left: {}", left.join(", ")))
            }
            Task::Make { place, fs } => {
                let (io, range) = self.held.bytes(&place)?;
                let found = signature::probe(&*io, range, SignaturePlace::Disk).map_err(read)?;
                let is_there = found.iter().any(|found| fs.is(found));
                (!is_there).then(|| format!("`{}` does not hold {}", place.id(), fs.kind))
            }
            Task::Build { node } => self.held.differs(&node)?,
            Task::Stop { disks } => {
                let shared = self.held.shared();
                let left = disks.iter().find(|disk| shared.contains(disk));
                left.map(|disk| format!("the kernel still uses partitions of disk `{disk}`"))
            }
            Task::Grow { place, fs, .. } => {
                let (io, range) = self.held.bytes(&place)?;
                let size = grow::size_of(&*io, range.start, fs.kind).map_err(read)?;
                let room = range.end - range.start;
                let is_grown = size.is_some_and(|size| FileSystemGrowth::fills(size, room));
                (!is_grown).then(|| format!("`{}` does not fill `{}`", fs.id, place.id()))
            }
            Task::Close { disk, table } => {
                let io = self.held.io(&disk)?;
                let is = found(&io)?;
                let mut wanted = Table::from(&table);
                wanted.partitions.sort_by_key(|part| part.number);
                let is_it = is == TableOnDisk::Gpt { table: wanted, flaws: Vec::new() };
                (!is_it).then(|| format!("the table of disk `{disk}` differs from the plan"))
            }
            Task::Fit { disk } => match self.held.io(&disk).and_then(|io| found(&io))? {
                TableOnDisk::Gpt { flaws, .. } if !flaws.is_empty() => {
                    let flaws: Vec<_> = flaws.iter().map(ToString::to_string).collect();
                    Some(flaws.join(", "))
                }
                TableOnDisk::Damaged(_) => Some(format!("the table of disk `{disk}` is damaged")),
                _ => None,
            },
        };
        Ok(difference.map_or(Verdict::Holds, Verdict::fails))
    }
}
