//! A machine whose disks are files, for tests with too many attempts for real devices.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use hoist_device::apply::{self, ApplyError, ApplyOutcome, Listener};
use hoist_device::images::Progress;
use hoist_device::probe::Machine;
use hoist_device::{Identity, RunInputs, observe};
use hoist_provision::document::{Document, Id, read};
use hoist_provision::plan::{self, ProvisionPlan};
use hoist_testkit::loop_disk::LoopDisk;

/// The identity of a loop device, as the guard knows it.
pub(crate) fn identity(disk: &LoopDisk) -> Identity {
    Identity::of(disk.path(), 512).expect("the disk is attached")
}

pub(crate) struct FileMachine {
    dir: tempfile::TempDir,
}

/// Ignores all notices.
pub(crate) struct Quiet;

impl Listener for Quiet {
    fn begins(&self, _: &str) {}
    fn progress(&self, _: &Id, _: Progress) {}
}

impl FileMachine {
    pub(crate) fn new() -> Self {
        let memory = Path::new("/dev/shm");
        let elsewhere = std::env::temp_dir();
        let dir = tempfile::tempdir_in(if memory.is_dir() { memory } else { &elsewhere });
        let dir = dir.expect("a temporary directory");
        fs_err::create_dir(dir.path().join("dev")).expect("created");
        Self { dir }
    }

    /// Adds a disk with this name. Its serial number contains the name.
    pub(crate) fn add(&self, name: &str, sector: u32, content: &[u8]) {
        let sys = self.dir.path().join("sys/block").join(name);
        fs_err::create_dir_all(sys.join("queue")).expect("created");
        fs_err::write(sys.join("size"), (content.len() / 512).to_string()).expect("written");
        fs_err::write(sys.join("queue/logical_block_size"), sector.to_string()).expect("written");
        fs_err::write(sys.join("serial"), format!("S-{name}")).expect("written");
        fs_err::write(self.disk(name), content).expect("written");
    }

    pub(crate) fn disk(&self, name: &str) -> PathBuf {
        self.dir.path().join("dev").join(name)
    }

    pub(crate) fn bytes(&self, name: &str) -> Vec<u8> {
        fs_err::read(self.disk(name)).expect("it is there")
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn machine(&self) -> Machine {
        Machine::at(self.dir.path())
    }

    pub(crate) fn decide(&self, document: &Document) -> ProvisionPlan {
        let seen = observe::observe(document, &self.machine(), &RunInputs::default());
        plan::decide(document, &seen).unwrap_or_else(|found| panic!("{found:#?}"))
    }

    pub(crate) fn apply(&self, document: &Document) -> Result<ApplyOutcome, ApplyError> {
        let decision = self.decide(document);
        apply::apply(
            document,
            &decision,
            &self.machine(),
            &RunInputs::default(),
            None,
            Arc::new(Quiet),
        )
    }
}

pub(crate) fn document(text: &str) -> Document {
    read("doc", text.as_bytes()).unwrap_or_else(|found| panic!("{found:#?}"))
}
