use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use hoist_device::kernel::{KernelPartition, partitions, set_partitions};
use hoist_device::{GuardedIo, Ranges};
use hoist_provision::partition_table::Partition;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create};
use uuid::Uuid;

use crate::machine::identity;
use hoist_testkit::loop_disk::{LoopDisk, run};

const MIB: u64 = 1 << 20;

fn partition(number: u32, start: u64, length: u64) -> Partition {
    let id = Uuid::from_u128(number.into());
    Partition { number, start, length, kind: id, id, attributes: 0, name: String::new() }
}

fn places(known: &[KernelPartition]) -> Vec<(u32, u64, u64)> {
    known.iter().map(|one| (one.number, one.start / MIB, one.length / MIB)).collect()
}

fn device(known: &KernelPartition) -> PathBuf {
    Path::new("/dev").join(&known.kernel_name)
}

/// Mounts at no path. A mount at a path would be copied into every namespace created meanwhile, as
/// for plug-ins, and would stay there after it is removed here.
fn mount(device: &Path) -> OwnedFd {
    let fs = rustix::mount::fsopen("ext4", FsOpenFlags::FSOPEN_CLOEXEC).expect("it is known");
    rustix::mount::fsconfig_set_string(&fs, "source", device).expect("it is taken");
    fsconfig_create(&fs).expect("it is one");
    rustix::mount::fsmount(&fs, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())
        .expect("it is mounted")
}

#[test]
fn changed_partitions_reach_the_kernel_while_others_are_used() {
    for sector in [512, 4096] {
        let disk = LoopDisk::new(32 * MIB, sector);
        // As during a run, which must be the only user of the disk.
        let identity = identity(&disk);
        let allow = Ranges::from(0..32 * MIB);
        let io = GuardedIo::open(disk.path(), &identity, &allow, &Ranges::default());
        let wanted = [partition(1, MIB, 8 * MIB), partition(3, 16 * MIB, 4 * MIB)];
        let known = set_partitions(disk.path(), &wanted).expect("it is told");
        assert_eq!(places(&known), [(1, 1, 8), (3, 16, 4)]);
        assert_eq!(partitions(disk.path()).expect("it is there"), known);
        assert_eq!(
            places(&set_partitions(disk.path(), &wanted).expect("it is told")),
            places(&known)
        );
        drop(io);

        run(Command::new("mke2fs").args(["-q", "-F"]).arg(device(&known[0])));
        let mounted = mount(&device(&known[0]));
        let wanted = [
            partition(1, MIB, 9 * MIB),
            partition(2, 12 * MIB, 2 * MIB),
            partition(3, 14 * MIB, MIB),
        ];
        let known = set_partitions(disk.path(), &wanted);
        let refused = set_partitions(disk.path(), &wanted[1..]);
        drop(mounted);
        assert_eq!(places(&known.expect("it is told")), [(1, 1, 9), (2, 12, 2), (3, 14, 1)]);
        let error = refused.expect_err("the first one is mounted");
        assert!(error.is_in_use(), "{error}");
        assert_eq!(set_partitions(disk.path(), &[]).expect("it is told"), []);
    }
}

#[test]
fn short_reader_of_a_partition_is_waited_for() {
    let disk = LoopDisk::new(8 * MIB, 512);
    let known = set_partitions(disk.path(), &[partition(1, MIB, MIB)]).expect("it is told");
    let looks = File::open(device(&known[0])).expect("it is there");
    let looking = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(300));
        drop(looks);
    });
    let moved = set_partitions(disk.path(), &[partition(1, 2 * MIB, MIB)]).expect("it is told");
    assert_eq!(places(&moved), [(1, 2, 1)]);
    looking.join().expect("it ends");
    assert_eq!(set_partitions(disk.path(), &[]).expect("it is told"), []);
}
