//! Other tools read hoist's tables, and hoist reads theirs.

use std::path::Path;
use std::process::Command;

use hoist_device::table::{write_closing, write_opening};
use hoist_device::{GuardedIo, Ranges, ReadIo};
use hoist_provision::partition_table::{Geometry, Partition, Table, TableOnDisk, read};
use uuid::{Uuid, uuid};

use crate::machine::identity;
use hoist_testkit::loop_disk::{LoopDisk, run};

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

/// All complaints of sgdisk about a disk.
fn complaints(disk: &Path) -> String {
    run(Command::new("sgdisk").arg("--verify").arg(disk))
}

fn found(disk: &LoopDisk) -> TableOnDisk {
    let io = ReadIo::open(disk.path(), 512).expect("it is there");
    read(&io, io.identity().sector).expect("it is read")
}

#[test]
fn tables_pass_the_checks_of_other_tools() {
    for sector in [512, 4096] {
        let disk = LoopDisk::new(SIZE, sector);
        let identity = identity(&disk);
        assert_eq!(found(&disk), TableOnDisk::Nothing);
        let allow = Ranges::from(0..SIZE);
        let io = GuardedIo::open(disk.path(), &identity, &allow, &Ranges::default());
        let io = io.expect("nobody uses it");
        let geometry = Geometry { size: SIZE, sector: sector.into() };
        let txn = Uuid::from_u128(99);
        let marked = Table::in_progress(wanted().id, txn, &[], &geometry);
        write_opening(&marked, &io).expect("it is written");
        assert_eq!(found(&disk), TableOnDisk::Gpt { table: marked, flaws: vec![] });
        let said = complaints(disk.path());
        assert!(said.contains("No problems found"), "sectors of {sector}: {said}");
        write_closing(&wanted(), &io).expect("it is written");
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
fn foreign_tables_are_rewritten_bit_for_bit() {
    for sector in [512, 4096] {
        let disk = LoopDisk::new(SIZE, sector);
        let mut sgdisk = Command::new("sgdisk");
        sgdisk.args(["--clear", "--new=2:1M:+3M", "--typecode=2:ef00", "--change-name=2:boot"]);
        sgdisk.args(["--new=1:0:0", "--change-name=1:root", "--attributes=1:set:63"]);
        run(sgdisk.arg(disk.path()));
        let before = disk.bytes();
        let TableOnDisk::Gpt { table, flaws } = found(&disk) else { panic!("no table") };
        assert_eq!(flaws, []);
        let [root, boot] = &table.partitions[..] else { panic!("two partitions") };
        assert_eq!((boot.number, boot.kind, boot.name.as_str()), (2, ESP, "boot"));
        assert_eq!((boot.start, boot.length), (1 << 20, 3 << 20));
        assert_eq!((root.name.as_str(), root.attributes), ("root", 1 << 63));
        let identity = identity(&disk);
        let allow = Ranges::from(0..SIZE);
        let io = GuardedIo::open(disk.path(), &identity, &allow, &Ranges::default());
        write_closing(&table, &io.expect("nobody uses it")).expect("it is written");
        let mut bytes = disk.bytes();
        // Cylinder and head values beyond any disk: hoist writes them as out of range, as for large
        // disks.
        bytes[451..454].copy_from_slice(&before[451..454]);
        let differs = |at: &usize| bytes[*at] != before[*at];
        let different: Vec<usize> = (0..bytes.len()).filter(differs).take(9).collect();
        assert_eq!(different, [0; 0], "sectors of {sector}");
    }
}
