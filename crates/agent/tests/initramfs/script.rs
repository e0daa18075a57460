//! The agent by hand, in a machine of its own without a network: a script is the first program, and
//! its console output tells how each call of the agent ended.

use std::path::PathBuf;

use hoist_initramfs::Tree;
use hoist_machine::{Kernel, Permit, StandaloneMachine, guest, quick_dir};
use sha2::{Digest, Sha256};

use crate::{DEADLINE, image};

/// `try NAME COMMAND…` runs a command and says how it ended; `disks N` waits for so many disks.
const BEGIN: &str = r#"#!/bin/busybox sh
export PATH=/sbin:/bin
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs /tmp
for name in efivarfs nvme virtio_pci virtio_blk virtio_scsi sd_mod; do /sbin/modprobe -q -- $name; done
mount -t efivarfs efivarfs /sys/firmware/efi/efivars
disks() {
    for turn in $(seq 120); do
        [ "$(ls /sys/block | grep -c '^nvme\|^sd\|^vd')" -ge "$1" ] && return
        sleep 0.5
    done
}
try() {
    name=$1; shift
    echo; echo "hoist-test: $name begins"
    "$@" 2>&1
    echo "hoist-test: $name ended with $?"
}
"#;
const END: &str = "\necho hoist-test: done\npoweroff -f\n";

pub(crate) struct Scenario {
    pub(crate) dir: tempfile::TempDir,
    _permit: Permit,
    /// Files in the memory of the machine beside the agent.
    pub(crate) tree: Tree,
}

impl Scenario {
    pub(crate) fn new() -> Self {
        let permit = Permit::wait().expect("a permit");
        let mut tree = Tree::new();
        let busybox = fs_err::read(guest::busybox().expect("set up")).expect("it is there");
        tree.program("bin/busybox", busybox).expect("a path");
        let dir = tempfile::tempdir_in(quick_dir()).expect("a temporary directory");
        Self { dir, _permit: permit, tree }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A file that this machine has as `/NAME`.
    pub(crate) fn file(&mut self, name: &str, content: impl Into<Vec<u8>>) {
        self.tree.file(name, content.into()).expect("a path");
    }

    /// A disk's file, every byte the same.
    pub(crate) fn disk(&self, name: &str, size: u64, byte: u8) -> PathBuf {
        let path = self.path(name);
        let size = usize::try_from(size).expect("disks are small");
        fs_err::write(&path, vec![byte; size]).expect("written");
        path
    }

    pub(crate) fn run(&self, machine: StandaloneMachine, script: &str) -> Said {
        let said = self.run_until_off(machine, script);
        assert!(said.0.contains("hoist-test: done"), "{}", said.0);
        said
    }

    /// Also if the script does not come to its end.
    pub(crate) fn run_until_off(&self, machine: StandaloneMachine, script: &str) -> Said {
        let mut tree = self.tree.clone();
        let script = [BEGIN, script, END].concat();
        tree.program("bin/scenario", script.into_bytes()).expect("a path");
        let initrd = self.path("scenario.cpio");
        fs_err::write(&initrd, [&image()[..], &tree.archive()].concat()).expect("written");
        let command_line = "console=ttyS0 loglevel=5 panic=-1 rdinit=/bin/scenario".to_owned();
        let kernel = guest::kernel().expect("set up");
        let kernel = Some(Kernel { kernel, initrd, command_line, clock: None });
        Said(StandaloneMachine { kernel, ..machine }.run(DEADLINE).expect("it goes off"))
    }
}

/// The console output of a script.
pub(crate) struct Said(pub(crate) String);

impl Said {
    /// The exit code and the output of the command of this name.
    pub(crate) fn of(&self, name: &str) -> (i32, &str) {
        let begin = format!("hoist-test: {name} begins");
        let end = format!("hoist-test: {name} ended with ");
        let after = self.0.split_once(&begin).map(|(_, after)| after);
        let parts = after.and_then(|after| after.split_once(&end));
        let (said, rest) = parts.unwrap_or_else(|| panic!("no `{name}` in\n{}", self.0));
        let code = rest.lines().next().and_then(|code| code.trim().parse().ok());
        (code.unwrap_or_else(|| panic!("`{name}` has no end in\n{}", self.0)), said.trim())
    }

    /// The hash of a plan that was shown.
    pub(crate) fn plan(&self, name: &str) -> String {
        let (code, said) = self.of(name);
        assert_eq!(code, 20, "{said}");
        let line = said.lines().rev().find_map(|line| line.strip_prefix("plan "));
        line.unwrap_or_else(|| panic!("no plan in\n{said}")).trim().to_owned()
    }
}

/// Of a disk, from outside.
pub(crate) fn digest(path: &std::path::Path) -> Vec<u8> {
    Sha256::digest(fs_err::read(path).expect("it can be read")).to_vec()
}
