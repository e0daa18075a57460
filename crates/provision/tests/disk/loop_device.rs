//! Disks for tests.

use std::path::{Path, PathBuf};
use std::process::Command;

use hoist_provision::device::Identity;
use sha2::{Digest, Sha256};

/// A disk over a file of its own, gone at the end of the test. Beside it is another one that nobody
/// names; whatever the test does, that one stays as it was.
#[derive(Debug)]
pub(crate) struct LoopDisk {
    node: PathBuf,
    bystander: Option<Bystander>,
    dir: tempfile::TempDir,
}

#[derive(Debug)]
struct Bystander {
    node: PathBuf,
    digest: Vec<u8>,
}

/// Of the disk that nobody names.
const BYSTANDER: u64 = 1024 * 1024;

impl LoopDisk {
    /// Old disks are full of old things: every byte is `0xff`.
    pub(crate) fn new(size: u64, sector: u32) -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let node = attach(&file(dir.path(), "disk", size), sector);
        let path = file(dir.path(), "bystander", BYSTANDER);
        let bystander = Bystander { node: attach(&path, sector), digest: digest(&path) };
        Self { node, bystander: Some(bystander), dir }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.node
    }

    /// The file below it.
    pub(crate) fn file(&self) -> PathBuf {
        self.dir.path().join("disk")
    }

    pub(crate) fn identity(&self) -> Identity {
        Identity::of(&self.node, 512).expect("it is there")
    }

    /// Bytes as a program sees them that reads the device.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        fs_err::read(&self.node).expect("it is read")
    }

    /// Another disk at the same place.
    pub(crate) fn attach_again(&mut self) {
        let _alone = alone();
        detach(&self.node);
        run(Command::new("losetup").arg(&self.node).arg(self.file()));
    }
}

impl Drop for LoopDisk {
    fn drop(&mut self) {
        detach(&self.node);
        if let Some(Bystander { node, digest: before }) = self.bystander.take() {
            detach(&node);
            let after = digest(&self.dir.path().join("bystander"));
            if !std::thread::panicking() {
                assert!(before == after, "a disk that nobody named was written to");
            }
        }
    }
}

fn file(dir: &Path, name: &str, size: u64) -> PathBuf {
    let path = dir.join(name);
    let size = usize::try_from(size).expect("tests are small");
    fs_err::write(&path, vec![0xff; size]).expect("it is written");
    path
}

fn digest(path: &Path) -> Vec<u8> {
    Sha256::digest(fs_err::read(path).expect("it is there")).to_vec()
}

/// Tests of other processes look for free devices too, and must not find one in between.
fn alone() -> fs_err::File {
    let path = std::env::temp_dir().join("hoist-test-loop.lock");
    let file = fs_err::OpenOptions::new().create(true).append(true).open(path);
    let file = file.expect("a lock beside the temporary directories");
    file.file().lock().expect("it is given back");
    file
}

fn attach(file: &Path, sector: u32) -> PathBuf {
    let _alone = alone();
    let mut losetup = Command::new("losetup");
    losetup.args(["--find", "--show", "--direct-io=on", "--sector-size", &sector.to_string()]);
    PathBuf::from(run(losetup.arg(file)).trim())
}

fn detach(node: &Path) {
    run(Command::new("losetup").arg("--detach").arg(node));
}

/// What the program says; it must end well.
pub(crate) fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let complained = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}\n{said}{complained}", output.status);
    said
}
