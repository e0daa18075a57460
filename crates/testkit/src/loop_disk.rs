//! Disks on loop devices. They need root.

use std::path::{Path, PathBuf};
use std::process::Command;

use sha2::{Digest, Sha256};

/// A disk over a file of its own, removed at the end of the test.
///
/// Each disk has a bystander: a second disk that no test names. Dropping the disk checks that the
/// bystander is unchanged.
#[derive(Debug)]
pub struct LoopDisk {
    node: PathBuf,
    bystander: Option<Bystander>,
    dir: tempfile::TempDir,
}

#[derive(Debug)]
struct Bystander {
    node: PathBuf,
    digest: Vec<u8>,
}

const BYSTANDER_SIZE: u64 = 1024 * 1024;

impl LoopDisk {
    /// A disk full of `0xff`, because disks in the field are never empty.
    pub fn new(size: u64, sector: u32) -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let node = attach(&file(dir.path(), "disk", size), sector);
        let path = file(dir.path(), "bystander", BYSTANDER_SIZE);
        let bystander = Bystander { node: attach(&path, sector), digest: digest(&path) };
        Self { node, bystander: Some(bystander), dir }
    }

    /// The device node.
    pub fn path(&self) -> &Path {
        &self.node
    }

    /// The file below the device.
    pub fn file(&self) -> PathBuf {
        self.dir.path().join("disk")
    }

    /// The content, read through the device.
    pub fn bytes(&self) -> Vec<u8> {
        fs_err::read(&self.node).expect("the device is readable")
    }

    /// Detaches the device and attaches it again: the kernel counts it as another disk.
    pub fn attach_again(&mut self) {
        let _lock = lock_loop_devices();
        detach(&self.node);
        // The device is free when the last process that probes all disks has closed it.
        crate::eventually("loop device is free", || {
            let output = Command::new("losetup").arg(&self.node).arg(self.file()).output();
            let output = output.expect("losetup starts");
            if output.status.success() { Ok(()) } else { Err(output) }
        });
    }
}

impl Drop for LoopDisk {
    fn drop(&mut self) {
        detach(&self.node);
        if let Some(Bystander { node, digest: before }) = self.bystander.take() {
            detach(&node);
            let after = digest(&self.dir.path().join("bystander"));
            if !std::thread::panicking() {
                assert!(before == after, "a disk that the test did not name was written to");
            }
        }
    }
}

fn file(dir: &Path, name: &str, size: u64) -> PathBuf {
    let path = dir.join(name);
    let size = usize::try_from(size).expect("disks of tests are small");
    fs_err::write(&path, vec![0xff; size]).expect("the file is written");
    path
}

fn digest(path: &Path) -> Vec<u8> {
    Sha256::digest(fs_err::read(path).expect("the file is readable")).to_vec()
}

/// Tests of other processes search for free devices too, and must not find one that is in between.
fn lock_loop_devices() -> fs_err::File {
    let path = std::env::temp_dir().join("hoist-test-loop.lock");
    let file = fs_err::OpenOptions::new().create(true).append(true).open(path);
    let file = file.expect("a lock beside the temporary directories");
    file.file().lock().expect("the holder unlocks it when it ends");
    file
}

fn attach(file: &Path, sector: u32) -> PathBuf {
    let _lock = lock_loop_devices();
    let mut losetup = Command::new("losetup");
    losetup.args(["--find", "--show", "--direct-io=on", "--sector-size", &sector.to_string()]);
    PathBuf::from(run(losetup.arg(file)).trim())
}

fn detach(node: &Path) {
    run(Command::new("losetup").arg("--detach").arg(node));
}

/// Runs a program that must succeed, and returns its standard output.
pub fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}\n{stdout}{stderr}", output.status);
    stdout
}
