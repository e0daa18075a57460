//! The disks of a run.

use std::collections::BTreeMap;
use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hoist_engine::action::Failure;
use serde::{Deserialize, Serialize};

use super::stack::Stacks;
use super::{failed, wrong};
use crate::device::fault::Fault;
use crate::device::table::Partition;
use crate::device::{GuardedIo, Identity, OpenError, Ranges, ReadAt, kernel};
use crate::document::Id;
use crate::layout::{DiskPlan, PartitionPlan, TablePlan};

/// Where something is, or comes to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Place {
    /// A partition.
    Partition { disk: Id, table: TablePlan, partition: Id },
    /// What is made of partitions.
    Device(Id),
}

impl Place {
    /// Of the partition or the device.
    pub fn id(&self) -> &Id {
        match self {
            Self::Partition { partition, .. } => partition,
            Self::Device(id) => id,
        }
    }

    /// The partition, if it is one.
    pub fn partition(&self) -> Option<&PartitionPlan> {
        match self {
            Self::Partition { table, partition, .. } => part_of(table, partition).ok(),
            Self::Device(_) => None,
        }
    }
}

pub(super) fn part_of<'a>(table: &'a TablePlan, id: &Id) -> Result<&'a PartitionPlan, Failure> {
    let part = table.partitions.iter().find(|part| part.id == *id);
    part.ok_or_else(|| wrong(format!("`{id}` is in no table of this run")))
}

/// The device of a partition, of which the kernel is told if it does not know it.
pub(super) fn known_parts(disk: &Path, table: &TablePlan, part: &Id) -> Result<PathBuf, Failure> {
    let number = part_of(table, part)?.number;
    let wanted: Vec<Partition> = table.partitions.iter().map(Partition::from).collect();
    let known = kernel::tell(disk, &wanted).map_err(|error| failed(&error))?;
    let known = known.into_iter().find(|known| known.number == number);
    let known = known.ok_or_else(|| wrong(format!("`{part}` has no device")))?;
    Ok(Path::new("/dev").join(known.kernel_name))
}

/// Disks that nobody else has, each for what its plan allows, until this is dropped; and what is put
/// together of their partitions.
#[derive(Debug)]
pub struct Held {
    disks: BTreeMap<Id, Disk>,
    pub(super) stacks: Stacks,
}

#[derive(Debug)]
struct Disk {
    path: PathBuf,
    identity: Identity,
    allow: Ranges,
    fault: Option<Arc<Fault>>,
    /// The kernel has some of its partitions, for what is made of them. It is locked all the same.
    is_shared: AtomicBool,
    /// Nothing, if it was lent and did not come back.
    io: Mutex<Option<Arc<GuardedIo>>>,
}

impl Disk {
    fn open(&self) -> Result<GuardedIo, OpenError> {
        let (path, retain) = (&self.path, Ranges::default());
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
        self.io.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on alone, or with what is put together on it.
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

impl Held {
    /// All of them or none.
    pub fn take<'a>(
        plans: impl IntoIterator<Item = &'a DiskPlan>,
        device: impl Fn(&str) -> PathBuf,
    ) -> Result<Self, OpenError> {
        let mut held = BTreeMap::new();
        for plan in plans {
            let path = device(&plan.kernel_name);
            let identity = Identity::of(&path, plan.sector)?;
            let allow = plan.writable.iter().cloned().collect();
            let (fault, is_shared) = (None, AtomicBool::new(false));
            let disk = Disk { path, identity, allow, fault, is_shared, io: Mutex::default() };
            let io = disk.open()?;
            *disk.slot() = Some(Arc::new(io));
            held.insert(plan.id.clone(), disk);
        }
        Ok(Self { disks: held, stacks: Stacks::default() })
    }

    /// What is made of their partitions.
    #[must_use]
    pub fn with_stacks(self, stacks: Stacks) -> Self {
        Self { stacks, ..self }
    }

    /// From now on writes to this disk fail as the fault says. Not if somebody has the disk.
    pub fn break_disk(&mut self, id: &Id, fault: &Arc<Fault>) -> Result<(), OpenError> {
        let Some(disk) = self.disks.get_mut(id) else { return Ok(()) };
        disk.fault = Some(Arc::clone(fault));
        *disk.slot() = None;
        let io = disk.open()?;
        *disk.slot() = Some(Arc::new(io));
        Ok(())
    }

    /// A disk, or what is made of partitions, which nobody else has then.
    pub fn io(&self, id: &Id) -> Result<Arc<GuardedIo>, Failure> {
        if self.stacks.node(id).is_some() {
            let path = self.raise(id)?;
            let opened = Identity::of(&path, 512).and_then(|identity| {
                let all = std::iter::once(0..identity.size).collect();
                GuardedIo::open(&path, &identity, &all, &Ranges::default())
            });
            return opened.map(Arc::new).map_err(|error| failed(&error));
        }
        let io = self.disk(id)?.slot().clone();
        io.ok_or_else(|| wrong(format!("disk `{id}` was lost on the way")))
    }

    /// Where the bytes of something are.
    pub(super) fn bytes(&self, place: &Place) -> Result<(Arc<GuardedIo>, Range<u64>), Failure> {
        match place {
            Place::Partition { disk, table, partition } => {
                Ok((self.io(disk)?, part_of(table, partition)?.range()))
            }
            Place::Device(id) => {
                let io = self.io(id)?;
                let all = 0..io.size();
                Ok((io, all))
            }
        }
    }

    /// Lets somebody have a device.
    pub(super) fn lend_place<T>(
        &self,
        place: &Place,
        work: impl FnOnce(&Path) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        match place {
            Place::Partition { disk, table, partition } => {
                self.lend(disk, |path| work(&known_parts(path, table, partition)?))?
            }
            Place::Device(id) => work(&self.raise(id)?),
        }
    }

    /// Lets a program have the partitions of a disk: the kernel gives none of them to anybody as long
    /// as the whole disk is taken. Others of us are kept away meanwhile, and afterwards it must still
    /// be the same disk.
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

    /// Lets the kernel have partitions of a disk, for longer than one program runs. It stays locked,
    /// and what is written to it past its partitions, as the journal, still is.
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
        self.disks.get(id).ok_or_else(|| wrong(format!("disk `{id}` is not one of this run")))
    }
}
