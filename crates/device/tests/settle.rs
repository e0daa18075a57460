//! Planning and writing together: a plan is carried out on a file that stands for a disk, the disk
//! is probed again, and the same document must find nothing left to do.

use std::path::PathBuf;
use std::process::Command;

use hoist_device::guard::WriteError;
use hoist_device::metadata_area::write_marker;
use hoist_device::table::{write_closing, write_opening};
use hoist_device::{GuardedIo, Identity, Ranges, ReadIo, signature};
use hoist_provision::diagnostic::{Code, ProvisionDiagnostic};
use hoist_provision::document::{Document, read};
use hoist_provision::facts::{DiskFacts, Facts};
use hoist_provision::layout::{Difference, DiskPlan, Layout, TablePlan, Work, plan};
use hoist_provision::metadata_area::{Marker, MetadataArea};
use hoist_provision::partition_table as table;
use hoist_provision::partition_table::{Partition, Table};
use serde_json::{Value, json};
use uuid::Uuid;

const MIB: u64 = 1 << 20;
const SIZE: u64 = 64 * MIB;

/// A file that stands for a disk, full of old data.
struct Disk {
    _dir: tempfile::TempDir,
    path: PathBuf,
    sector: u32,
}

impl Disk {
    fn new(sector: u32) -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("disk");
        fs_err::write(&path, vec![0xff; usize::try_from(SIZE).expect("small")]).expect("written");
        Self { _dir: dir, path, sector }
    }

    /// The facts of a fresh probe.
    fn facts(&self) -> Facts {
        let io = ReadIo::open(&self.path, self.sector).expect("it is there");
        let disk = DiskFacts {
            kernel_name: "sda".to_owned(),
            size: SIZE,
            logical_sector: self.sector,
            physical_sector: self.sector,
            serial: Some("A1".to_owned()),
            table: table::read(&io, self.sector).expect("it is read").facts(),
            signatures: signature::find(&io, self.sector).expect("it is read"),
            ..DiskFacts::default()
        };
        Facts { disks: vec![disk], ..Facts::default() }
    }

    /// Opens the disk for the ranges of a plan only.
    fn open(&self, plan: &DiskPlan) -> GuardedIo {
        let identity = Identity::of(&self.path, self.sector).expect("it is there");
        let allow: Ranges = plan.writable.iter().cloned().collect();
        GuardedIo::open(&self.path, &identity, &allow, &Ranges::default()).expect("nobody uses it")
    }

    /// Carries out a plan: the marker, the table, and a file system in everything that is new.
    fn carry_out(&self, layout: &Layout, document: &Document) {
        let [disk] = layout.disks.as_slice() else { panic!("one disk") };
        let Work::Table(planned) = &disk.work else { panic!("a table") };
        let io = self.open(disk);
        let marker = Marker {
            node: document.node_id().to_owned(),
            txn: document.txn,
            plan: String::new(),
            generation: 1,
            is_complete: true,
            of_image: false,
            has_root: false,
            undoing: false,
            detached: [].into(),
        };
        write_marker(&marker, &io, &MetadataArea::before(None).expect("an area"))
            .expect("it is allowed");
        for part in planned.partitions.iter().filter(|part| !part.retained) {
            signature::wipe(&io, part.range()).expect("it is allowed");
        }
        write_closing(&table_of(planned), &io).expect("it is allowed");
        drop(io);
        for part in planned.partitions.iter().filter(|part| !part.retained) {
            let mut mke2fs = Command::new("mke2fs");
            mke2fs.args(["-q", "-F", "-E", &format!("offset={}", part.start)]);
            let made = mke2fs.arg(&self.path).arg(format!("{}k", part.len / 1024)).status();
            assert!(made.expect("mke2fs of e2fsprogs starts").success());
        }
    }

    fn bytes(&self, range: std::ops::Range<u64>) -> Vec<u8> {
        let all = fs_err::read(&self.path).expect("it is read");
        let at = |byte: u64| usize::try_from(byte).expect("small");
        all[at(range.start)..at(range.end)].to_vec()
    }
}

fn table_of(planned: &TablePlan) -> Table {
    let partition = |part: &hoist_provision::layout::PartitionPlan| Partition {
        number: part.number,
        start: part.start,
        length: part.len,
        kind: part.type_guid,
        id: part.partuuid,
        attributes: part.attributes,
        name: part.name.clone(),
    };
    Table { id: planned.guid, partitions: planned.partitions.iter().map(partition).collect() }
}

fn document(node: &str, txn: u128, storage: &Value) -> Document {
    let text = json!({
        "api": "hoist/v1",
        "txn": Uuid::from_u128(txn),
        "sections": {
            "node": {"id": node},
            "disks": {"os": {"match": {"serial": "A1"}}},
            "storage": storage,
        },
    });
    read("doc", text.to_string().as_bytes()).unwrap_or_else(|found| panic!("{found:#?}"))
}

fn planned(document: &Document, disk: &Disk) -> Layout {
    plan(document, &disk.facts()).unwrap_or_else(|found| panic!("{found:#?}"))
}

fn refused(document: &Document, disk: &Disk) -> Vec<ProvisionDiagnostic> {
    plan(document, &disk.facts()).expect_err("refused")
}

fn part(id: &str, size: &str) -> Value {
    json!({"part": {"id": id, "on": "os", "size": size}})
}

#[test]
fn written_plan_is_found_settled() {
    for sector in [512, 4096] {
        let disk = Disk::new(sector);
        let storage = json!([part("a", "8 MiB"), part("b", "rest"), part("c", "25%")]);
        let first = document("n1", 1, &storage);
        let layout = planned(&first, &disk);
        assert!(!layout.is_settled());
        disk.carry_out(&layout, &first);
        let again = planned(&first, &disk);
        assert!(again.is_settled(), "{:#?}", again.disks);
        assert_eq!(again.disks[0].work, layout.disks[0].work);
    }
}

#[test]
fn disk_is_reused_only_for_its_own_node() {
    let disk = Disk::new(512);
    let storage = json!([part("a", "8 MiB"), part("b", "rest")]);
    let first = document("n1", 1, &storage);
    disk.carry_out(&planned(&first, &disk), &first);
    let of_another = refused(&document("n2", 2, &storage), &disk);
    assert_eq!(of_another[0].code, Code::ForeignData, "{}", of_another[0]);
    let second = document("n1", 2, &storage);
    let layout = planned(&second, &disk);
    assert!(layout.disks[0].changes.iter().all(|change| change.what != Difference::Kept));
    // The table and two file systems are listed as destroyed.
    assert_eq!(layout.disks[0].destroys.len(), 3, "{:#?}", layout.disks[0].destroys);
    disk.carry_out(&layout, &second);
    assert!(planned(&second, &disk).is_settled());
}

#[test]
fn kept_partition_keeps_every_byte_and_rejects_writes() {
    for sector in [512, 4096] {
        let disk = Disk::new(sector);
        let first =
            document("n1", 1, &json!([part("a", "8 MiB"), part("b", "8 MiB"), part("c", "rest")]));
        let layout = planned(&first, &disk);
        disk.carry_out(&layout, &first);
        let (_, kept) = layout.partition(&"b".parse().expect("an id")).expect("it is there");
        let before = disk.bytes(kept.range());
        let second = document(
            "n1",
            2,
            &json!([
                part("new", "4 MiB"),
                {"part": {"id": "kept", "on": "os", "size": "8 MiB", "retain": {"partuuid": kept.partuuid}}},
                {"fs": {"id": "kept-fs", "on": "kept", "kind": "ext4", "retain": {}}},
                part("rest", "rest"),
            ]),
        );
        let layout = planned(&second, &disk);
        let io = disk.open(&layout.disks[0]);
        for at in [kept.start, kept.range().end - 1] {
            assert!(matches!(io.write_at(at, &[1]), Err(WriteError::Outside { .. })));
        }
        drop(io);
        disk.carry_out(&layout, &second);
        assert!(disk.bytes(kept.range()) == before, "sectors of {sector}");
        assert!(planned(&second, &disk).is_settled());
    }
}

#[test]
fn unfinished_disk_is_continued_by_its_own_transaction_only() {
    let disk = Disk::new(512);
    let storage = json!([part("a", "8 MiB")]);
    let first = document("n1", 1, &storage);
    let layout = planned(&first, &disk);
    let Work::Table(planned_table) = &layout.disks[0].work else { panic!("a table") };
    let geometry = table::Geometry { size: SIZE, sector: 512 };
    let opening = Table::in_progress(planned_table.guid, first.txn, &[], &geometry);
    write_opening(&opening, &disk.open(&layout.disks[0])).expect("it is allowed");
    let again = planned(&first, &disk);
    assert_eq!(again.disks[0].work, layout.disks[0].work);
    disk.carry_out(&again, &first);
    assert!(planned(&first, &disk).is_settled());
    let other = Disk::new(512);
    write_opening(&opening, &other.open(&layout.disks[0])).expect("it is allowed");
    let found = refused(&document("n1", 2, &storage), &other);
    assert_eq!(found[0].code, Code::ForeignData, "{}", found[0]);
}
