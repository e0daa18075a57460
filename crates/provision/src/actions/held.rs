//! The disks of a run.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hoist_engine::action::Failure;

use super::{failed, wrong};
use crate::device::fault::Fault;
use crate::device::{GuardedIo, Identity, OpenError, Ranges};
use crate::document::Id;
use crate::layout::DiskPlan;

/// Disks that nobody else has, each for what its plan allows, until this is dropped.
#[derive(Debug)]
pub struct Held(BTreeMap<Id, Disk>);

#[derive(Debug)]
struct Disk {
    path: PathBuf,
    identity: Identity,
    allow: Ranges,
    fault: Option<Arc<Fault>>,
    /// Nothing, if it was lent and did not come back.
    io: Mutex<Option<Arc<GuardedIo>>>,
}

impl Disk {
    fn open(&self) -> Result<GuardedIo, OpenError> {
        let io = GuardedIo::open(&self.path, &self.identity, &self.allow, &Ranges::default())?;
        Ok(match &self.fault {
            Some(fault) => io.with_fault(Arc::clone(fault)),
            None => io,
        })
    }

    fn slot(&self) -> MutexGuard<'_, Option<Arc<GuardedIo>>> {
        self.io.lock().unwrap_or_else(PoisonError::into_inner)
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
            let disk = Disk { path, identity, allow, fault: None, io: Mutex::default() };
            let io = disk.open()?;
            *disk.slot() = Some(Arc::new(io));
            held.insert(plan.id.clone(), disk);
        }
        Ok(Self(held))
    }

    /// From now on writes to this disk fail as the fault says. Not if somebody has the disk.
    pub fn break_disk(&mut self, id: &Id, fault: &Arc<Fault>) -> Result<(), OpenError> {
        let Some(disk) = self.0.get_mut(id) else { return Ok(()) };
        disk.fault = Some(Arc::clone(fault));
        *disk.slot() = None;
        let io = disk.open()?;
        *disk.slot() = Some(Arc::new(io));
        Ok(())
    }

    pub fn io(&self, id: &Id) -> Result<Arc<GuardedIo>, Failure> {
        let io = self.disk(id)?.slot().clone();
        io.ok_or_else(|| wrong(format!("disk `{id}` was lost on the way")))
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

    fn disk(&self, id: &Id) -> Result<&Disk, Failure> {
        self.0.get(id).ok_or_else(|| wrong(format!("disk `{id}` is not one of this run")))
    }
}
