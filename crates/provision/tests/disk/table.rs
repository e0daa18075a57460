//! What others say about our tables, and we about theirs.

use std::path::Path;
use std::process::Command;

use hoist_provision::device::table::{Found, Geometry, Partition, Table, read};
use hoist_provision::device::{GuardedIo, Ranges, ReadIo};
use uuid::{Uuid, uuid};

use crate::loop_device::{LoopDisk, run};

const SIZE: u64 = 16 * 1024 * 1024;
const ESP: Uuid = uuid!("c12a7328-f81f-11d2-ba4b-00a0c93ec93b");
const LINUX: Uuid = uuid!("0fc63daf-8483-4772-8e79-3d69d8477de4");

fn wanted() -> Table {
    let partition = |number, start, length, kind, name: &str| Partition {
        number,
        start,
        length,
        kind,
        id: Uuid::from_u128(0x1111_2222_3333_4444_5555_0000 + u128::from(number)),
        attributes: if kind == ESP { 1 << 2 } else { 0 },
        name: name.to_owned(),
    };
    Table {
        id: uuid!("0e8a0c3f-4e0c-4c5e-8b69-2d8a2f1f0a11"),
        partitions: vec![
            partition(1, 1 << 20, 4 << 20, ESP, "esp"),
            partition(3, 8 << 20, 7 << 20, LINUX, "würzel"),
        ],
    }
}

/// All that sgdisk has to say against a disk.
fn complaints(disk: &Path) -> String {
    run(Command::new("sgdisk").arg("--verify").arg(disk))
}

fn found(disk: &LoopDisk) -> Found {
    let io = ReadIo::open(disk.path(), 512).expect("it is there");
    read(&io, io.identity().sector).expect("it is read")
}

#[test]
fn others_find_nothing_wrong_with_our_tables_and_read_them_as_we_do() {
    for sector in [512, 4096] {
        let disk = LoopDisk::new(SIZE, sector);
        let identity = disk.identity();
        assert_eq!(found(&disk), Found::Nothing);
        let allow = Ranges::from(0..SIZE);
        let io = GuardedIo::open(disk.path(), &identity, &allow, &Ranges::default());
        let io = io.expect("nobody uses it");
        let geometry = Geometry { size: SIZE, sector: sector.into() };
        let txn = Uuid::from_u128(99);
        let marked = Table::in_progress(wanted().id, txn, &[], &geometry);
        marked.write_opening(&io).expect("it is written");
        assert_eq!(found(&disk), Found::Gpt { table: marked, flaws: vec![] });
        let said = complaints(disk.path());
        assert!(said.contains("No problems found"), "sectors of {sector}: {said}");
        wanted().write_closing(&io).expect("it is written");
        drop(io);
        let said = complaints(disk.path());
        assert!(said.contains("No problems found"), "sectors of {sector}: {said}");
        let said = run(Command::new("sgdisk").arg("--info=3").arg(disk.path()));
        assert!(said.contains(&LINUX.to_string().to_uppercase()), "{said}");
        assert!(said.contains(&wanted().partitions[1].id.to_string().to_uppercase()), "{said}");
        assert!(said.contains("'würzel'"), "{said}");
        let said = run(Command::new("sgdisk").arg("--info=1").arg(disk.path()));
        assert!(said.contains("Attribute flags: 0000000000000004"), "{said}");
        let said = run(Command::new("blkid").args(["-p", "-o", "export"]).arg(disk.path()));
        assert!(said.contains("PTTYPE=gpt") && said.contains(&wanted().id.to_string()), "{said}");
    }
}

#[test]
fn tables_of_others_are_read_and_written_again_bit_for_bit() {
    for sector in [512, 4096] {
        let disk = LoopDisk::new(SIZE, sector);
        let mut sgdisk = Command::new("sgdisk");
        sgdisk.args(["--clear", "--new=2:1M:+3M", "--typecode=2:ef00", "--change-name=2:boot"]);
        sgdisk.args(["--new=1:0:0", "--change-name=1:root", "--attributes=1:set:63"]);
        run(sgdisk.arg(disk.path()));
        let before = disk.bytes();
        let Found::Gpt { table, flaws } = found(&disk) else { panic!("no table") };
        assert_eq!(flaws, []);
        let [root, boot] = &table.partitions[..] else { panic!("two partitions") };
        assert_eq!((boot.number, boot.kind, boot.name.as_str()), (2, ESP, "boot"));
        assert_eq!((boot.start, boot.length), (1 << 20, 3 << 20));
        assert_eq!((root.name.as_str(), root.attributes), ("root", 1 << 63));
        let identity = disk.identity();
        let allow = Ranges::from(0..SIZE);
        let io = GuardedIo::open(disk.path(), &identity, &allow, &Ranges::default());
        table.write_closing(&io.expect("nobody uses it")).expect("it is written");
        let mut bytes = disk.bytes();
        // Cylinders and heads that no disk has: we say that they cannot be said, as of large disks.
        bytes[451..454].copy_from_slice(&before[451..454]);
        let differs = |at: &usize| bytes[*at] != before[*at];
        let different: Vec<usize> = (0..bytes.len()).filter(differs).take(9).collect();
        assert_eq!(different, [0; 0], "sectors of {sector}");
    }
}
