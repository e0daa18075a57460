use std::process::Command;

use hoist_device::guard::WriteError;
use hoist_device::{GuardedIo, Identity, OpenError, Ranges, ReadIo, kernel};
use hoist_provision::partition_table::Partition;
use hoist_provision::read_at::ReadAt;

use crate::machine::identity;
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
    kernel::set_partitions(disk.path(), &[]).expect("it is told");
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
