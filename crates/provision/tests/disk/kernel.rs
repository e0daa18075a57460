use std::path::{Path, PathBuf};
use std::process::Command;

use hoist_provision::device::kernel::{Known, partitions, tell};
use hoist_provision::device::table::Partition;
use hoist_provision::device::{GuardedIo, Ranges};
use uuid::Uuid;

use crate::loop_device::{LoopDisk, run};

const MIB: u64 = 1 << 20;

fn partition(number: u32, start: u64, length: u64) -> Partition {
    let id = Uuid::from_u128(number.into());
    Partition { number, start, length, kind: id, id, attributes: 0, name: String::new() }
}

fn places(known: &[Known]) -> Vec<(u32, u64, u64)> {
    known.iter().map(|one| (one.number, one.start / MIB, one.length / MIB)).collect()
}

fn device(known: &Known) -> PathBuf {
    Path::new("/dev").join(&known.kernel_name)
}

#[test]
fn the_kernel_learns_what_changed_while_the_rest_is_in_use() {
    for sector in [512, 4096] {
        let disk = LoopDisk::new(32 * MIB, sector);
        // As during a run, in which nobody else may have the disk.
        let identity = disk.identity();
        let allow = Ranges::from(0..32 * MIB);
        let io = GuardedIo::open(disk.path(), &identity, &allow, &Ranges::default());
        let wanted = [partition(1, MIB, 8 * MIB), partition(3, 16 * MIB, 4 * MIB)];
        let known = tell(disk.path(), &wanted).expect("it is told");
        assert_eq!(places(&known), [(1, 1, 8), (3, 16, 4)]);
        assert_eq!(partitions(disk.path()).expect("it is there"), known);
        assert_eq!(places(&tell(disk.path(), &wanted).expect("it is told")), places(&known));
        drop(io);

        run(Command::new("mke2fs").args(["-q", "-F"]).arg(device(&known[0])));
        let dir = tempfile::tempdir().expect("a temporary directory");
        run(Command::new("mount").arg(device(&known[0])).arg(dir.path()));
        let wanted = [
            partition(1, MIB, 9 * MIB),
            partition(2, 12 * MIB, 2 * MIB),
            partition(3, 14 * MIB, MIB),
        ];
        let known = tell(disk.path(), &wanted);
        let refused = tell(disk.path(), &wanted[1..]);
        run(Command::new("umount").arg(dir.path()));
        assert_eq!(places(&known.expect("it is told")), [(1, 1, 9), (2, 12, 2), (3, 14, 1)]);
        let error = refused.expect_err("the first one is mounted");
        assert!(error.is_in_use(), "{error}");
        assert_eq!(tell(disk.path(), &[]).expect("it is told"), []);
    }
}
