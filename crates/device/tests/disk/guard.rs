use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use hoist_device::guard::WriteError;
use hoist_device::{GuardedIo, Identity, OpenError, Ranges, ReadIo, kernel};
use hoist_provision::partition_table::Partition;
use hoist_provision::read_at::ReadAt;

use crate::machine::identity;
use hoist_testkit::eventually;
use hoist_testkit::loop_disk::{LoopDisk, run};

const SIZE: u64 = 16 * 1024 * 1024;

fn open(disk: &LoopDisk, identity: &Identity) -> Result<GuardedIo, OpenError> {
    GuardedIo::open(disk.path(), identity, &Ranges::from(0..SIZE), &Ranges::default())
}

#[test]
fn partial_sectors_are_written_directly_and_keep_the_rest() {
    for sector in [512, 4096] {
        let disk = LoopDisk::new(SIZE, sector);
        let identity = identity(&disk);
        assert_eq!((identity.size, identity.sector), (SIZE, sector));
        let allow = Ranges::from(0..8 << 20);
        let retain = Ranges::from(1 << 20..2 << 20);
        let io = GuardedIo::open(disk.path(), &identity, &allow, &retain).expect("nobody uses it");
        let mut wanted = disk.bytes();
        let mut write = |at: usize, bytes: &[u8]| {
            io.write_at(at as u64, bytes).expect("it is allowed");
            wanted[at..at + bytes.len()].copy_from_slice(bytes);
        };
        write(440, &[1; 72]);
        write(511, &[2; 2]);
        write(4095, &[3; 8194]);
        write((2 << 20) + 7, &vec![4; 5 << 20]);
        io.zero((2 << 20) + 100..(7 << 20) - 1).expect("it is allowed");
        wanted[(2 << 20) + 100..(7 << 20) - 1].fill(0);
        for at in [(1 << 20) - 1, 1 << 20, (2 << 20) - 1, (8 << 20) - 1, SIZE - 1, SIZE] {
            let refused = io.write_at(at, &[9; 2]);
            assert!(matches!(refused, Err(WriteError::Outside { .. })), "at {at}");
        }
        io.sync().expect("it is durable");
        assert!(disk.bytes() == wanted, "sectors of {sector}");
        let mut read = vec![0; 5 << 20];
        io.read_at((1 << 20) + 3, &mut read).expect("it is there");
        assert!(read[..] == wanted[(1 << 20) + 3..(6 << 20) + 3]);
        let looked = ReadIo::open(disk.path(), 512).expect("looking is allowed");
        let mut read = [0; 3];
        looked.read_at(4094, &mut read).expect("it is there");
        assert_eq!(read, [0xff, 3, 3]);
    }
}

#[test]
fn mounted_or_opened_disk_is_in_use() {
    let disk = LoopDisk::new(SIZE, 512);
    let identity = identity(&disk);
    run(Command::new("mke2fs").args(["-q", "-F"]).arg(disk.path()));
    let dir = tempfile::tempdir().expect("a temporary directory");
    run(Command::new("mount").arg(disk.path()).arg(dir.path()));
    let opened = open(&disk, &identity);
    run(Command::new("umount").arg(dir.path()));
    assert!(matches!(opened, Err(OpenError::InUse { .. })), "it was mounted");
    let io = open(&disk, &identity).expect("it is free");
    let mounted = Command::new("mount").arg(disk.path()).arg(dir.path()).output();
    assert!(!mounted.expect("mount starts").status.success(), "it is ours for the whole run");
    drop(io);
}

/// A program in a mount namespace of its own, with a mount. Ends when its input does.
fn mounted_elsewhere(disk: &LoopDisk, dir: &Path) -> Child {
    let script = "mount \"$0\" \"$1\" && echo mounted && read line";
    let mut unshare = Command::new("unshare");
    unshare.args(["--mount", "sh", "-c", script]).arg(disk.path()).arg(dir);
    let mut program = unshare.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("starts");
    let mut line = String::new();
    let output = program.stdout.as_mut().expect("it is captured");
    BufReader::new(output).read_line(&mut line).expect("it says so");
    assert_eq!(line, "mounted\n");
    program
}

#[test]
fn users_of_a_busy_disk_are_named() {
    let disk = LoopDisk::new(SIZE, 512);
    let identity = identity(&disk);
    run(Command::new("mke2fs").args(["-q", "-F"]).arg(disk.path()));
    let name = disk.path().file_name().expect("a name").to_string_lossy().into_owned();
    let dir = tempfile::tempdir().expect("a temporary directory");
    let is = |opened: Result<GuardedIo, OpenError>| opened.expect_err("it is in use").to_string();

    let held = open(&disk, &identity).expect("it is free");
    let said = is(open(&disk, &identity));
    let who = format!("process {} (", std::process::id());
    assert!(said.contains(&who) && said.contains(&format!("has `{name}` open")), "{said}");
    drop(held);

    run(Command::new("mount").arg(disk.path()).arg(dir.path()));
    let opened = open(&disk, &identity);
    run(Command::new("umount").arg(dir.path()));
    let place = format!("`{name}` is mounted at `{}`", dir.path().display());
    let said = is(opened);
    assert!(said.contains(&place), "{said}");
    assert!(!said.contains(&format!("{place}, as ")), "{said}");

    let elsewhere = tempfile::tempdir().expect("a temporary directory");
    let place = format!("`{name}` is mounted at `{}`", elsewhere.path().display());
    let mut program = mounted_elsewhere(&disk, elsewhere.path());
    let opened = open(&disk, &identity);
    drop(program.stdin.take());
    program.wait().expect("it ends");
    let said = is(opened);
    assert!(said.contains(&format!("{place}, as process ")), "{said}");
}

#[test]
fn disk_with_kernel_partitions_is_locked_and_writable() {
    let disk = LoopDisk::new(SIZE, 512);
    let identity = identity(&disk);
    let id = uuid::Uuid::from_u128(1);
    let start = 4 << 20;
    let length = 8 << 20;
    let part =
        Partition { number: 1, start, length, kind: id, id, attributes: 0, name: String::new() };
    let known = kernel::set_partitions(disk.path(), &[part]).expect("it is told");
    let node = std::path::Path::new("/dev").join(&known[0].kernel_name);
    run(Command::new("mke2fs").args(["-q", "-F"]).arg(&node));
    let dir = tempfile::tempdir().expect("a temporary directory");
    // A mount holds the partition exclusively, as an array or a volume does.
    run(Command::new("mount").arg(&node).arg(dir.path()));
    let alone = open(&disk, &identity);
    let allow = Ranges::from(0..4 << 20);
    let share = || GuardedIo::open_shared(disk.path(), &identity, &allow, &Ranges::default());
    let shared = share();
    let other = share();
    let written = shared.map(|io| {
        let refused = io.write_at(4 << 20, &[1; 512]);
        (io.write_at(1 << 20, &[7; 512]).is_ok(), refused.is_err())
    });
    run(Command::new("umount").arg(dir.path()));
    assert!(matches!(alone, Err(OpenError::InUse { .. })), "the kernel has a part of it");
    assert!(matches!(other, Err(OpenError::InUse { .. })), "one of us has it");
    assert_eq!(written.ok(), Some((true, true)));
    assert_eq!(disk.bytes()[1 << 20..][..512], [7; 512]);
    // A mount namespace that another process made meanwhile holds a copy of the mount for a moment.
    eventually("the partition is removed", || kernel::set_partitions(disk.path(), &[]));
}

#[test]
fn replaced_disk_of_the_same_size_is_refused() {
    let mut disk = LoopDisk::new(SIZE, 512);
    let before = identity(&disk);
    disk.attach_again();
    assert_eq!(identity(&disk), Identity { sequence: identity(&disk).sequence, ..before });
    let opened = open(&disk, &before);
    assert!(matches!(opened, Err(OpenError::Changed { what: "sequence number", .. })));
}
