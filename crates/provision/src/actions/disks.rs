//! Tables, what is made of partitions, and file systems.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use hoist_engine::action::{Ability, Action, Ctx, Description, Diagnostic, Done, Failure, Verdict};
use hoist_engine::execute::process;
use hoist_engine::plan::Step;
use hoist_engine::record::FailureKind;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use uuid::Uuid;

use super::grow::{self, Growing};
use super::images::Receipt;
use super::stack::{self, Node};
use super::{Held, Place, failed, faults, task, wrong};
use crate::device::gap::{Gap, Marker};
use crate::device::table::{self, FIRST_PARTITION, Found, Geometry, Partition, Table};
use crate::device::{GuardedIo, ReadAt, kernel, signature};
use crate::document::{FsKind, Id};
use crate::facts::{PartitionFacts, Signature, SignaturePlace};
use crate::fat;
use crate::images::Digest;
use crate::layout::{PartitionPlan, TablePlan};

pub const NAME: &str = "disks";

/// Where programs are looked for that are in no `PATH` of a person.
pub(super) const SYSTEM_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// One step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case", deny_unknown_fields)]
pub enum Task {
    /// These ranges say nothing any more of what was there.
    Wipe {
        disk: Id,
        ranges: Vec<Range<u64>>,
        /// Before this place are the table and the notes of the run, whatever was there earlier.
        from: u64,
    },
    /// A file system is made.
    Make { place: Place, fs: Making },
    /// A file system that came as an image is grown to what it lies on; `of` says which image that was.
    Grow { place: Place, fs: Growing, image: Id, of: Digest },
    /// Something is made of partitions.
    Build { node: Node },
    /// What was put together of the partitions of these disks is stopped.
    Stop { disks: BTreeSet<Id> },
    /// The disk gets its table, and is done.
    Close { disk: Id, table: TablePlan },
    /// The disk has the table of an image, which is made to fit, and is done.
    Fit { disk: Id },
}

impl Task {
    pub fn fingerprint(&self) -> Digest {
        Digest::of(&serde_json::to_vec(self).expect("a plain value"))
    }
}

/// A file system that is made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Making {
    pub id: Id,
    pub kind: FsKind,
    /// As tools show it.
    pub uuid: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// What is called, but for the device, which comes last. For FAT nothing is.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub program: Vec<String>,
}

impl Making {
    pub fn new(id: &Id, kind: FsKind, uuid: Uuid, label: Option<&str>) -> Self {
        // FAT has a number of 32 bits only.
        let serial = uuid.as_fields().0;
        let (tool, uuid_option, uuid_value, label_option): (&[&str], _, _, _) = match kind {
            FsKind::Ext2 => (&["mke2fs", "-q", "-t", "ext2"], "-U", uuid.to_string(), "-L"),
            FsKind::Ext3 => (&["mke2fs", "-q", "-t", "ext3"], "-U", uuid.to_string(), "-L"),
            FsKind::Ext4 => (&["mke2fs", "-q", "-t", "ext4"], "-U", uuid.to_string(), "-L"),
            FsKind::Xfs => (&["mkfs.xfs", "-q"], "-m", format!("uuid={uuid}"), "-L"),
            FsKind::Btrfs => (&["mkfs.btrfs", "-q"], "-U", uuid.to_string(), "-L"),
            FsKind::Vfat => (&[], "", String::new(), ""),
            FsKind::Swap => (&["mkswap"], "-U", uuid.to_string(), "-L"),
        };
        let mut program: Vec<String> = tool.iter().map(|word| (*word).to_owned()).collect();
        if !tool.is_empty() {
            program.extend([uuid_option.to_owned(), uuid_value]);
            let label = label.map(|label| [label_option.to_owned(), label.to_owned()]);
            program.extend(label.into_iter().flatten());
        }
        let uuid = match kind {
            FsKind::Vfat => format!("{:04X}-{:04X}", serial >> 16, serial & 0xffff),
            _ => uuid.to_string(),
        };
        Self { id: id.clone(), kind, uuid, label: label.map(str::to_owned), program }
    }

    pub fn tool(&self) -> Option<&str> {
        self.program.first().map(String::as_str)
    }

    /// The number that FAT has in place of a UUID.
    fn serial(&self) -> u32 {
        u32::from_str_radix(&self.uuid.replace('-', ""), 16).unwrap_or_default()
    }

    /// Whether this is what was made.
    pub fn is(&self, found: &Signature) -> bool {
        found.kind == self.kind.signature() && found.uuid.as_deref() == Some(&self.uuid)
    }
}

/// Where a program is.
pub fn find_tool(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let system = std::env::split_paths(SYSTEM_PATH);
    let mut places = std::env::split_paths(&path).chain(system).filter(|dir| dir.is_absolute());
    places.find_map(|dir| Some(dir.join(name)).filter(|file| file.is_file()))
}

/// Begins with a disk: from here on it says that it is being worked on, and by whom. What is kept of
/// its table stays visible, and where something is to be wiped. The marker comes last: a run that finds
/// it goes on behind all of this.
pub fn open(io: &GuardedIo, opening: &Opening<'_>, marker: &Marker) -> Result<(), Failure> {
    let gap = gap(opening.kept).map_err(|error| failed(&error))?;
    let kept: Vec<Partition> = opening.kept.iter().map(Partition::from).collect();
    let geometry = Geometry { size: io.size(), sector: io.sector() };
    let table = Table::in_progress(opening.guid, marker.txn, &kept, &geometry);
    let table = table.with_doomed(opening.doomed);
    table.write_opening(io).map_err(|error| failed(&error))?;
    // Between the table and the journal an old system may have said what it is.
    io.zero(geometry.usable().start..gap.range().start).map_err(|error| failed(&error))?;
    if opening.clears_notes {
        gap.clear_notes(io).map_err(|error| failed(&error))?;
    }
    io.sync().map_err(|error| failed(&error))?;
    marker.write(io, &gap).map_err(|error| failed(&error))
}

/// How a disk is begun with.
#[derive(Debug, Clone, Copy)]
pub struct Opening<'a> {
    /// Of the table.
    pub guid: Uuid,
    pub kept: &'a [PartitionPlan],
    /// Where something was that is destroyed.
    pub doomed: &'a [Range<u64>],
    /// Nothing of earlier runs stays in the gap.
    pub clears_notes: bool,
}

/// The transaction that a disk says it is in the middle of, by its table.
pub fn txn_in_progress(io: &GuardedIo) -> Result<Option<Uuid>, Failure> {
    Ok(match found(io)? {
        Found::Gpt { table, .. } => table.txn_in_progress(),
        _ => None,
    })
}

/// The gap before what stays, or will be there.
pub fn gap(partitions: &[PartitionPlan]) -> Result<Gap, crate::device::gap::GapError> {
    Gap::before(partitions.iter().map(|part| part.start).min())
}

/// Room on a disk that is no partition's, but for that of the table and the gap.
pub fn free(table: &TablePlan, geometry: &Geometry) -> Vec<Range<u64>> {
    let mut taken: Vec<_> = table.partitions.iter().map(PartitionPlan::range).collect();
    taken.sort_by_key(|range| range.start);
    let (mut at, mut free) = (FIRST_PARTITION, Vec::new());
    let end = geometry.usable().end;
    for range in taken.into_iter().chain(std::iter::once(end..end)) {
        if at < range.start {
            free.push(at..range.start);
        }
        at = at.max(range.end);
    }
    free
}

impl From<&PartitionPlan> for Partition {
    fn from(plan: &PartitionPlan) -> Self {
        Self {
            number: plan.number,
            start: plan.start,
            length: plan.len,
            kind: plan.type_guid,
            id: plan.partuuid,
            attributes: plan.attributes,
            name: plan.name.clone(),
        }
    }
}

impl From<&TablePlan> for Table {
    fn from(plan: &TablePlan) -> Self {
        let partitions = plan.partitions.iter().map(Partition::from).collect();
        Self { id: plan.guid, partitions }
    }
}

/// The action.
#[derive(Debug)]
pub struct Disks {
    pub held: Arc<Held>,
    /// Whose disks they are.
    pub markers: BTreeMap<Id, Marker>,
    /// What earlier attempts of this run had begun to make of partitions.
    pub begun: Vec<Digest>,
}

impl Disks {
    fn marker(&self, disk: &Id) -> Result<&Marker, Failure> {
        self.markers.get(disk).ok_or_else(|| wrong(format!("disk `{disk}` was not begun with")))
    }

    fn make(&self, place: &Place, fs: &Making, ctx: &mut Ctx<'_>) -> Result<(), Failure> {
        if fs.kind == FsKind::Vfat {
            let (io, range) = self.held.bytes(place)?;
            let made = fat::make(&io, &range, fs.label.as_deref(), fs.serial());
            return made.map_err(|error| failed(&error));
        }
        self.held.lend_place(place, |node| call(&fs.program, node, &[], ctx))
    }

    /// Says how large it is then.
    fn grow(&self, place: &Place, fs: &Growing, ctx: &mut Ctx<'_>) -> Result<u64, Failure> {
        self.held.lend_place(place, |node| fs.grow(node, ctx))?;
        let (io, range) = self.held.bytes(place)?;
        let size = grow::size_of(&*io, range.start, fs.kind).map_err(|error| failed(&error))?;
        Ok(size.unwrap_or(0))
    }

    fn close(&self, disk: &Id, plan: &TablePlan) -> Result<(), Failure> {
        let io = self.held.io(disk)?;
        let gap = gap(&plan.partitions).map_err(|error| failed(&error))?;
        let table = Table::from(plan);
        table.write_closing(&io).map_err(|error| failed(&error))?;
        let marker = Marker { is_complete: true, ..self.marker(disk)?.clone() };
        marker.write(&io, &gap).map_err(|error| failed(&error))?;
        kernel::tell(io.path(), &table.partitions).map_err(|error| failed(&error))?;
        Ok(())
    }

    fn fit(&self, disk: &Id) -> Result<(), Failure> {
        let io = self.held.io(disk)?;
        let marker = self.marker(disk)?;
        let partitions = match found(&io)? {
            Found::Gpt { table, .. } if table.txn_in_progress() != Some(marker.txn) => {
                table.write_moved(&io).map_err(|error| failed(&error))?;
                table.partitions
            }
            other => {
                // Behind a table of another kind the copy of ours must not stay.
                if let Found::Gpt { table: opening, .. } = other {
                    opening.clear_copy(&io).map_err(|error| failed(&error))?;
                }
                found(&io)?.facts().map_or(Vec::new(), |facts| known(&facts.partitions))
            }
        };
        let gap = gap(&[]).map_err(|error| failed(&error))?;
        // What the image has in the gap stays.
        if Marker::read(&*io, &gap).map_err(|error| failed(&error))?.as_ref() == Some(marker) {
            let marker = Marker { is_complete: true, ..marker.clone() };
            marker.write(&io, &gap).map_err(|error| failed(&error))?;
        }
        kernel::tell(io.path(), &partitions).map_err(|error| failed(&error))?;
        Ok(())
    }
}

fn found(io: &GuardedIo) -> Result<Found, Failure> {
    let sector = u32::try_from(io.sector()).expect("it is small");
    table::read(io, sector).map_err(|error| failed(&error))
}

fn receipt(made: Id, task: Digest) -> Value {
    serde_json::to_value(stack::Receipt { made, task }).expect("a plain value")
}

/// As the kernel is told of them.
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

/// Runs a program on a device. No shell, and nothing of our environment but where programs are.
pub(super) fn call(
    program: &[String],
    node: &Path,
    good: &[i32],
    ctx: &mut Ctx<'_>,
) -> Result<(), Failure> {
    let (tool, words) = program.split_first().ok_or_else(|| wrong("no program".to_owned()))?;
    let path = find_tool(tool).ok_or_else(|| wrong(format!("`{tool}` is not here any more")))?;
    let mut command = Command::new(path);
    command.args(words).arg(node).env_clear().env("PATH", SYSTEM_PATH).env("LC_ALL", "C");
    command.envs(ctx.programs.marks(ctx.attempt));
    let ran = process::run(&mut command, b"", ctx.deadline, ctx.cancel, ctx.output);
    let ran = ran.map_err(|error| failed(&error))?;
    match ran.fault() {
        Some(_) if ran.status.code().is_some_and(|code| good.contains(&code)) => Ok(()),
        None => Ok(()),
        Some(fault) => {
            let reason = format!("{tool} on `{}`: {fault}", node.display());
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
            about: "partition tables, what is made of partitions, and file systems".to_owned(),
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
        faults::<Task>(input)
    }

    fn apply(&self, step: &Step, ctx: &mut Ctx<'_>) -> Result<Done, Failure> {
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
                if let Place::Device(_) = place {
                    return Ok(Done { changed: true, receipt: receipt(fs.id, print) });
                }
            }
            Task::Build { node } => {
                let print = node.fingerprint();
                self.held.make_node(&node, self.begun.contains(&print))?;
                return Ok(Done { changed: true, receipt: receipt(node.id, print) });
            }
            Task::Stop { .. } => self.held.lower()?,
            Task::Grow { place, fs, image, .. } => {
                let bytes = self.grow(&place, &fs, ctx)?;
                let receipt = Receipt { image, task: print, bytes, zeros: 0, is_grown: true };
                let receipt = serde_json::to_value(receipt).expect("a plain value");
                return Ok(Done { changed: true, receipt });
            }
            Task::Close { disk, table } => self.close(&disk, &table)?,
            Task::Fit { disk } => self.fit(&disk)?,
        }
        Ok(Done { changed: true, receipt: Value::Null })
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
                (!left.is_empty()).then(|| format!("there still is {}", left.join(", ")))
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
                left.map(|disk| format!("the kernel still has partitions of disk `{disk}`"))
            }
            Task::Grow { place, fs, .. } => {
                let (io, range) = self.held.bytes(&place)?;
                let size = grow::size_of(&*io, range.start, fs.kind).map_err(read)?;
                let room = range.end - range.start;
                let is_grown = size.is_some_and(|size| Growing::fills(size, room));
                (!is_grown).then(|| format!("`{}` does not fill `{}`", fs.id, place.id()))
            }
            Task::Close { disk, table } => {
                let io = self.held.io(&disk)?;
                let is = found(&io)?;
                let mut wanted = Table::from(&table);
                wanted.partitions.sort_by_key(|part| part.number);
                let is_it = is == Found::Gpt { table: wanted, flaws: Vec::new() };
                (!is_it).then(|| format!("the table of disk `{disk}` is another one"))
            }
            Task::Fit { disk } => match self.held.io(&disk).and_then(|io| found(&io))? {
                Found::Gpt { flaws, .. } if !flaws.is_empty() => {
                    let flaws: Vec<_> = flaws.iter().map(ToString::to_string).collect();
                    Some(flaws.join(", "))
                }
                Found::Damaged(_) => Some(format!("the table of disk `{disk}` is damaged")),
                _ => None,
            },
        };
        Ok(difference.map_or(Verdict::Holds, |reason| Verdict::DoesNot { reason }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_words_and_labels_stay_one_of_them() {
        let id = "root-fs".parse().expect("an id");
        let uuid = Uuid::from_u128(0x1234_abcd_0000_4000_8000_0000_0000_0001);
        let made = |kind| Making::new(&id, kind, uuid, Some("a b; c")).program.join("|");
        let text = uuid.to_string();
        assert_eq!(made(FsKind::Ext4), format!("mke2fs|-q|-t|ext4|-U|{text}|-L|a b; c"));
        assert_eq!(made(FsKind::Xfs), format!("mkfs.xfs|-q|-m|uuid={text}|-L|a b; c"));
        assert_eq!(made(FsKind::Vfat), "", "it is made without a program");
        assert_eq!(made(FsKind::Swap), format!("mkswap|-U|{text}|-L|a b; c"));
        let fat = Making::new(&id, FsKind::Vfat, uuid, None);
        assert_eq!((fat.uuid.as_str(), fat.serial()), ("1234-ABCD", 0x1234_ABCD));
    }
}
