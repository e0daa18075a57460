//! The disks of a run.

use std::collections::BTreeMap;
use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use hoist_engine::action::Failure;
use hoist_provision::document::Id;
use hoist_provision::layout::{DiskPlan, PartitionPlan, TablePlan};
use hoist_provision::partition_table::Partition;
use hoist_provision::read_at::ReadAt as _;
use hoist_provision::steps::FsLocation;
use parking_lot::{Mutex, MutexGuard};

use super::stack::RunStacks;
use super::{failed, wrong};
use crate::fault::Fault;
use crate::{GuardedIo, Identity, OpenError, Ranges, kernel};

pub(super) fn part_of<'a>(table: &'a TablePlan, id: &Id) -> Result<&'a PartitionPlan, Failure> {
    let part = table.partitions.iter().find(|part| part.id == *id);
    part.ok_or_else(|| wrong(format!("`{id}` is in no table of this run")))
}

/// The device of a partition. Adds the partition to the kernel's list if it is missing.
pub(super) fn known_parts(disk: &Path, table: &TablePlan, part: &Id) -> Result<PathBuf, Failure> {
    let number = part_of(table, part)?.number;
    let wanted: Vec<Partition> = table.partitions.iter().map(Partition::from).collect();
    let known = kernel::set_partitions(disk, &wanted).map_err(|error| failed(&error))?;
    let known = known.into_iter().find(|known| known.number == number);
    let known = known.ok_or_else(|| wrong(format!("`{part}` has no device")))?;
    Ok(Path::new("/dev").join(known.kernel_name))
}

/// The disks of a run, held exclusively until dropped, each with the ranges that its plan allows,
/// and the stacks assembled on their partitions.
#[derive(Debug)]
pub struct HeldDisks {
    disks: BTreeMap<Id, Disk>,
    pub(super) stacks: RunStacks,
}

#[derive(Debug)]
struct Disk {
    path: PathBuf,
    identity: Identity,
    allow: Ranges,
    fault: Option<Arc<Fault>>,
    /// The kernel uses some of its partitions for stacks. The disk stays locked.
    is_shared: AtomicBool,
    /// `None` after a program used the disk and reopening it failed.
    io: Mutex<Option<Arc<GuardedIo>>>,
}

impl Disk {
    fn open(&self) -> Result<GuardedIo, OpenError> {
        let path = &self.path;
        let retain = Ranges::default();
        let io = if self.is_shared.load(Ordering::Relaxed) {
            GuardedIo::open_shared(path, &self.identity, &self.allow, &retain)?
        } else {
            GuardedIo::open(path, &self.identity, &self.allow, &retain)?
        };
        Ok(match &self.fault {
            Some(fault) => io.with_fault(Arc::clone(fault)),
            None => io,
        })
    }

    fn slot(&self) -> MutexGuard<'_, Option<Arc<GuardedIo>>> {
        self.io.lock()
    }

    /// Reopens the disk, exclusively or shared with the stacks on it.
    fn reopen(&self, is_shared: bool) -> Result<(), OpenError> {
        if self.is_shared.swap(is_shared, Ordering::Relaxed) == is_shared {
            return Ok(());
        }
        let mut slot = self.slot();
        *slot = None;
        *slot = Some(Arc::new(self.open()?));
        Ok(())
    }
}

impl HeldDisks {
    /// Opens all disks or none.
    pub fn take<'a>(
        plans: impl IntoIterator<Item = &'a DiskPlan>,
        device: impl Fn(&str) -> PathBuf,
    ) -> Result<Self, OpenError> {
        let mut held = BTreeMap::new();
        for plan in plans {
            let path = device(&plan.kernel_name);
            let identity = Identity::of(&path, plan.sector)?;
            let allow = plan.writable.iter().cloned().collect();
            let fault = None;
            let is_shared = AtomicBool::new(false);
            let disk = Disk { path, identity, allow, fault, is_shared, io: Mutex::default() };
            let io = disk.open()?;
            *disk.slot() = Some(Arc::new(io));
            held.insert(plan.id.clone(), disk);
        }
        Ok(Self { disks: held, stacks: RunStacks::default() })
    }

    /// Adds the stacks on the partitions.
    #[must_use]
    pub fn with_stacks(self, stacks: RunStacks) -> Self {
        Self { stacks, ..self }
    }

    /// Injects a fault into all later writes to this disk. The caller must not hold the disk.
    pub fn break_disk(&mut self, id: &Id, fault: &Arc<Fault>) -> Result<(), OpenError> {
        let Some(disk) = self.disks.get_mut(id) else { return Ok(()) };
        disk.fault = Some(Arc::clone(fault));
        *disk.slot() = None;
        let io = disk.open()?;
        *disk.slot() = Some(Arc::new(io));
        Ok(())
    }

    /// A disk, or a stacked device, opened exclusively.
    pub fn io(&self, id: &Id) -> Result<Arc<GuardedIo>, Failure> {
        if self.stacks.stacks.node(id).is_some() {
            let path = self.assemble(id)?;
            let opened = Identity::of(&path, 512).and_then(|identity| {
                let all = std::iter::once(0..identity.size).collect();
                GuardedIo::open(&path, &identity, &all, &Ranges::default())
            });
            return opened.map(Arc::new).map_err(|error| failed(&error));
        }
        let io = self.disk(id)?.slot().clone();
        io.ok_or_else(|| wrong(format!("disk `{id}` could not be opened again")))
    }

    /// The device and the range of a place.
    pub(super) fn bytes(
        &self,
        place: &FsLocation,
    ) -> Result<(Arc<GuardedIo>, Range<u64>), Failure> {
        match place {
            FsLocation::Partition { disk, table, partition } => {
                Ok((self.io(disk)?, part_of(table, partition)?.range()))
            }
            FsLocation::Device(id) => {
                let io = self.io(id)?;
                let all = 0..io.size();
                Ok((io, all))
            }
        }
    }

    /// Lends the device of a partition or a stack to `work`.
    pub(super) fn lend_place<T>(
        &self,
        place: &FsLocation,
        work: impl FnOnce(&Path) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        match place {
            FsLocation::Partition { disk, table, partition } => {
                self.lend(disk, |path| work(&known_parts(path, table, partition)?))?
            }
            FsLocation::Device(id) => work(&self.assemble(id)?),
        }
    }

    /// Lends the partitions of a disk to a program. The kernel refuses partitions while the whole
    /// disk is open exclusively, so the disk is closed meanwhile; a lock keeps other hoist
    /// processes away. Afterwards it must still be the same disk.
    pub(super) fn lend<T>(&self, id: &Id, work: impl FnOnce(&Path) -> T) -> Result<T, Failure> {
        let disk = self.disk(id)?;
        let mut slot = disk.slot();
        *slot = None;
        let lock = File::open(&disk.path).map_err(|error| failed(&error))?;
        lock.lock().map_err(|error| failed(&error))?;
        let outcome = work(&disk.path);
        drop(lock);
        *slot = Some(Arc::new(disk.open().map_err(|error| failed(&error))?));
        Ok(outcome)
    }

    /// Shares the partitions of a disk with the kernel beyond one program. The disk stays locked,
    /// and writes outside its partitions, as those to the journal, still work.
    pub(super) fn share(&self, id: &Id) -> Result<(), Failure> {
        self.disk(id)?.reopen(true).map_err(|error| failed(&error))
    }

    pub(super) fn have_alone(&self, id: &Id) -> Result<(), Failure> {
        self.disk(id)?.reopen(false).map_err(|error| failed(&error))
    }

    pub(super) fn shared(&self) -> Vec<Id> {
        let shared = self.disks.iter().filter(|(_, disk)| disk.is_shared.load(Ordering::Relaxed));
        shared.map(|(id, _)| id.clone()).collect()
    }

    pub(super) fn path(&self, id: &Id) -> Result<PathBuf, Failure> {
        self.disk(id).map(|disk| disk.path.clone())
    }

    fn disk(&self, id: &Id) -> Result<&Disk, Failure> {
        self.disks.get(id).ok_or_else(|| wrong(format!("disk `{id}` does not belong to this run")))
    }
}
