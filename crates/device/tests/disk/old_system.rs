//! Disks with partitions of an earlier system in places where the new one has none. Whatever
//! interrupts a run, the next one continues the same plan, and no signature of the old partitions
//! is left.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use hoist_device::apply::{self, ApplyError, ApplyOutcome};
use hoist_device::fault::{Fault, FaultEffect, FaultTrigger};
use hoist_device::images::pack;
use hoist_device::metadata_area::read_marker;
use hoist_device::table::write_closing;
use hoist_device::{GuardedIo, Identity, Ranges, ReadIo, RunInputs, signature};
use hoist_provision::document::Document;
use hoist_provision::facts::{SignatureKind, SignaturePlace};
use hoist_provision::metadata_area::{Marker, MetadataArea};
use hoist_provision::partition_table as table;
use hoist_provision::partition_table::{Partition, Table, TableOnDisk};
use uuid::Uuid;

use crate::machine::{FileMachine, Quiet, document};

const MIB: usize = 1 << 20;
const SIZE: usize = 24 * MIB;

/// A partition in MiB, and whether it is a leg of an array.
type Old = (Range<usize>, bool);

/// The old system. Its legs are neither at the start nor at the end of any new partition.
const OLD: [(&str, &[Old]); 3] = [
    ("sda", &[(1..2, false), (15..18, true)]),
    ("sdb", &[(1..4, false), (12..15, true)]),
    ("sdc", &[(2..5, true), (6..8, false)]),
];

/// Places of the images, on the first disk.
const CHUNKED: usize = MIB;
const STREAM: usize = 10 * MIB;

struct Case {
    machine: FileMachine,
    sector: u32,
    before: BTreeMap<&'static str, Vec<u8>>,
    document: Document,
    chunked: Vec<u8>,
    stream: Vec<u8>,
}

/// Superblocks of one array, in the versions at the start and at the end of a leg.
fn plant_leg(disk: &mut [u8], range: &Range<usize>) {
    let mut block = [0; 256];
    block[..4].copy_from_slice(&0xa92b_4efc_u32.to_le_bytes());
    block[4] = 1;
    block[16..32].fill(0x77);
    block[92] = 3;
    for at in [range.start * MIB + 4096, range.end * MIB - 8192] {
        disk[at..at + block.len()].copy_from_slice(&block);
    }
}

/// Adds a disk with a table and with legs.
pub(crate) fn add_old(machine: &FileMachine, name: &str, sector: u32, size: usize, parts: &[Old]) {
    let mut bytes = vec![0xff; size];
    let legs = parts.iter().filter(|(_, is_leg)| *is_leg);
    legs.for_each(|(range, _)| plant_leg(&mut bytes, range));
    machine.add(name, sector, &bytes);
    let partition = |(number, (range, _)): (u32, &Old)| Partition {
        number,
        start: (range.start * MIB) as u64,
        length: (range.len() * MIB) as u64,
        kind: Uuid::from_u128(7),
        id: Uuid::from_u128(u128::from(number) + u128::from(name.as_bytes()[2]) * 256),
        attributes: 0,
        name: format!("{name}-{number}"),
    };
    let partitions = (1..).zip(parts).map(partition).collect();
    let table = Table { id: Uuid::from_u128(9), partitions };
    let meant = Identity::of(&machine.disk(name), sector).expect("it is there");
    let all = Ranges::from(0..size as u64);
    let io = GuardedIo::open(&machine.disk(name), &meant, &all, &Ranges::default());
    write_closing(&table, &io.expect("it is free")).expect("it is written");
}

impl Case {
    fn new(sector: u32, more: &str) -> Self {
        let machine = FileMachine::new();
        let mut before = BTreeMap::new();
        for (name, parts) in OLD {
            add_old(&machine, name, sector, SIZE, parts);
            before.insert(name, machine.bytes(name));
        }
        machine.add("sdd", sector, &vec![0x5a; 2 * MIB]);
        before.insert("sdd", machine.bytes("sdd"));
        let mut chunked = vec![0; 8 * MIB + 8192];
        chunked[..300_000].fill(1);
        chunked[8 * MIB..].fill(3);
        let stream: Vec<u8> = (0..251).cycle().take(2 * MIB).collect();
        let mut packed = Vec::new();
        let manifest = pack(&chunked[..], &mut packed, 1).expect("it is memory");
        let manifest = serde_json::to_vec(&manifest).expect("a plain value");
        for (name, bytes) in [("chunked", &packed), ("manifest", &manifest), ("stream", &stream)] {
            fs_err::write(machine.path(name), bytes).expect("written");
        }
        let url = |name: &str| format!("file://{}", machine.path(name).display());
        let document = document(&format!(
            "api: hoist/v1\ntxn: 5d1b6d5e-6f3a-4a7e-9d0c-000000000001\nsections:\n  node: {{id: n1}}\n  \
             disks:\n    os: {{match: {{serial: S-sda}}, wipe: any}}\n    \
             data: {{match: {{serial: S-sdb}}, wipe: any}}\n    \
             leg: {{match: {{serial: S-sdc}}, wipe: [md]}}\n  storage:\n  \
             - part: {{id: a, on: os, size: 9 MiB}}\n  - part: {{id: b, on: os, size: rest}}\n  \
             - part: {{id: kept, on: data, size: 3 MiB, retain: {{partuuid: 00000000-0000-0000-0000-000000006201}}}}\n  \
             - part: {{id: d, on: data, size: rest}}\n  images:\n    \
             c: {{sources: ['{}'], manifest: '{}', target: a}}\n    \
             s: {{sources: ['{}'], target: b}}\n{more}",
            url("chunked"),
            url("manifest"),
            url("stream")
        ));
        Self { machine, sector, before, document, chunked, stream }
    }

    fn renew(&self) {
        for (name, bytes) in &self.before {
            fs_err::write(self.machine.disk(name), bytes).expect("written");
        }
    }

    fn run(&self, disk: &str, fault: &Arc<Fault>) -> Result<ApplyOutcome, ApplyError> {
        let decision = self.machine.decide(&self.document);
        let machine = self.machine.machine();
        let mut held = apply::take(&decision, &machine).expect("nobody has it");
        held.break_disk(&disk.parse().expect("an id"), fault).expect("nobody has it");
        let given = RunInputs::default();
        apply::apply_to(held, &self.document, &decision, &machine, &given, Arc::new(Quiet))
    }

    /// Whether the disks are opened and their closing tables are not written yet.
    fn is_begun(&self) -> bool {
        ["sda", "sdb"].into_iter().all(|name| {
            let bytes = self.machine.bytes(name);
            let area = MetadataArea::before(None).expect("it has room");
            let marker = read_marker(&bytes[..], &area).expect("it is memory");
            let is_ours = |marker: Marker| marker.txn == self.document.txn && !marker.is_complete;
            let found = table::read(&bytes[..], self.sector).expect("it is memory");
            let TableOnDisk::Gpt { table, .. } = found else { return false };
            marker.is_some_and(is_ours) && table.txn_in_progress() == Some(self.document.txn)
        })
    }

    fn assert_done(&self, at: &str) {
        for (name, parts) in OLD {
            let disk = ReadIo::open(&self.machine.disk(name), self.sector).expect("it is there");
            for (range, _) in parts {
                let range = (range.start * MIB) as u64..(range.end * MIB) as u64;
                let left = signature::probe(&disk, range, SignaturePlace::Disk);
                let left = left.expect("it is read");
                assert!(left.is_empty(), "{at}: {name} still has {left:?}");
            }
            let left = signature::find(&disk, self.sector).expect("it is read");
            let is_md = left.iter().any(|found| found.kind == SignatureKind::Md);
            assert!(!is_md, "{at}: {name} still has {left:?}");
        }
        let [os, data, leg, other] = ["sda", "sdb", "sdc", "sdd"].map(|n| self.machine.bytes(n));
        assert!(os[CHUNKED..].starts_with(&self.chunked), "{at}");
        assert!(os[STREAM..].starts_with(&self.stream), "{at}");
        assert!(data[MIB..4 * MIB] == self.before["sdb"][MIB..4 * MIB], "{at}: it is retained");
        let was = &self.before["sdc"];
        let same = leg[..2 * MIB] == was[..2 * MIB] && leg[5 * MIB..] == was[5 * MIB..];
        assert!(same, "{at}: it only has a leg");
        assert!(other == self.before["sdd"], "{at}: nobody named it");
        assert!(self.machine.decide(&self.document).is_settled(), "{at}");
    }

    /// Interrupts at every `step`-th write to each disk. Returns how often the next run had to
    /// resume and did.
    fn at_writes(&self, first: u64, step: usize) -> usize {
        let mut resumed = 0;
        for disk in ["os", "data", "leg"] {
            self.renew();
            let whole = Arc::new(Fault::new(FaultTrigger::Never, FaultEffect::Die));
            let done = self.run(disk, &whole).expect("nothing is wrong");
            assert_eq!(done, ApplyOutcome::Done { resumed: false });
            self.assert_done("at once");
            for number in (first..whole.write_count().writes).step_by(step) {
                self.renew();
                let power = FaultEffect::CutPower(number * 7919 + 1);
                let then = if number % 4 < 2 { FaultEffect::Die } else { power };
                let at = format!("{disk}, write {number}, {then:?}, sectors of {}", self.sector);
                let fault = Arc::new(Fault::new(FaultTrigger::AtWrite(number), then));
                // The number of progress records depends on time, and so does the number of writes.
                if self.run(disk, &fault).is_ok() {
                    assert!(!fault.has_broken(), "{at}");
                    continue;
                }
                let hash = self.machine.decide(&self.document).plan.hash().to_owned();
                let area = MetadataArea::before(None).expect("it has room");
                let bytes = self.machine.bytes("sda");
                let marker = read_marker(&bytes[..], &area).expect("it is memory");
                let is_begun = self.is_begun();
                assert!(
                    !is_begun || marker.is_some_and(|is| is.plan == hash),
                    "{at}: another plan"
                );
                let again = self.machine.apply(&self.document);
                let again = again.unwrap_or_else(|error| panic!("{at}: {error}"));
                resumed += usize::from(is_begun && again == ApplyOutcome::Done { resumed: true });
                self.assert_done(&at);
            }
        }
        resumed
    }
}

#[test]
fn cut_reinstall_is_continued_and_leaves_no_old_system() {
    for (sector, first) in [(512, 0), (4096, 1)] {
        let resumed = Case::new(sector, "").at_writes(first, 3);
        assert!(resumed > 10, "{resumed}");
    }
}

#[test]
fn erased_reinstall_leaves_no_old_system() {
    let case = Case::new(512, "  erase: {disks: [os], method: overwrite}\n");
    let resumed = case.at_writes(3, 7);
    assert!(resumed > 3, "{resumed}");
}
