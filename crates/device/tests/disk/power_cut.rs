//! A run that is cut at any of its writes: the state of the disk, and the continuation by the next
//! run.

use std::sync::Arc;

use hoist_device::RunInputs;
use hoist_device::apply::{self, ApplyError, ApplyOutcome};
use hoist_device::fault::{Fault, FaultEffect, FaultTrigger};
use hoist_device::images::pack;
use hoist_provision::document::Document;
use hoist_provision::partition_table as table;
use hoist_provision::partition_table::{Table, TableOnDisk};
use uuid::Uuid;

use crate::machine::{FileMachine, Quiet, document};

const MIB: usize = 1 << 20;
const SIZE: usize = 16 * MIB;
const TXN: Uuid = Uuid::from_u128(0x5d1b_6d5e_6f3a_4a7e_9d0c_0000_0000_0001);

/// A disk of this node from another transaction, and a disk that the document does not name.
struct Case {
    machine: FileMachine,
    sector: u32,
    old: Vec<u8>,
    bystander: Vec<u8>,
    document: Document,
    chunked: Vec<u8>,
    stream: Vec<u8>,
}

/// Places of the partitions.
const CHUNKED: usize = MIB;
const STREAM: usize = 10 * MIB;

impl Case {
    fn new(sector: u32) -> Self {
        let machine = FileMachine::new();
        let mut chunked = vec![0; 8 * MIB + 8192];
        for (number, chunk) in (1..).zip(chunked.chunks_mut(4 * MIB)) {
            if number != 2 {
                let length = chunk.len().min(300_000);
                chunk[..length].fill(number);
            }
        }
        let stream: Vec<u8> = (0..251).cycle().take(2 * MIB).collect();
        let mut packed = Vec::new();
        let manifest = pack(&chunked[..], &mut packed, 1).expect("it is memory");
        let manifest = serde_json::to_vec(&manifest).expect("a plain value");
        fs_err::write(machine.path("chunked"), packed).expect("written");
        fs_err::write(machine.path("manifest"), manifest).expect("written");
        fs_err::write(machine.path("stream"), &stream).expect("written");
        let url = |name: &str| format!("file://{}", machine.path(name).display());
        let text = |txn: Uuid, images: &str| {
            document(&format!(
                "api: hoist/v1\ntxn: {txn}\nsections:\n  node: {{id: n1}}\n  disks: {{os: {{match: \
                 {{serial: S-sda}}, wipe: any}}}}\n  storage:\n  - part: {{id: a, on: os, size: 9 \
                 MiB}}\n  - part: {{id: b, on: os, size: 3 MiB}}\n  - part: {{id: c, on: os, size: \
                 rest}}\n  images: {images}\n"
            ))
        };
        machine.add("sda", sector, &vec![0xff; SIZE]);
        let images = format!("{{s: {{sources: ['{}'], target: a}}}}", url("stream"));
        let before = text(Uuid::from_u128(7), &images);
        assert_eq!(
            machine.apply(&before).expect("it is done"),
            ApplyOutcome::Done { resumed: false }
        );
        let old = machine.bytes("sda");
        machine.add("sdb", sector, &vec![0x5a; 2 * MIB]);
        let images = format!(
            "{{c: {{sources: ['{}'], manifest: '{}', target: a}}, s: {{sources: ['{}'], target: b}}}}",
            url("chunked"),
            url("manifest"),
            url("stream")
        );
        let document = text(TXN, &images);
        Self { old, bystander: machine.bytes("sdb"), machine, sector, document, chunked, stream }
    }

    fn renew(&self) {
        fs_err::write(self.machine.disk("sda"), &self.old).expect("written");
    }

    /// Runs over a disk that fails. Returns whether the run failed.
    fn run(&self, fault: &Arc<Fault>) -> Result<ApplyOutcome, ApplyError> {
        let decision = self.machine.decide(&self.document);
        let machine = self.machine.machine();
        let mut held = apply::take(&decision, &machine).expect("nobody has it");
        held.break_disk(&"os".parse().expect("an id"), fault).expect("nobody has it");
        apply::apply_to(
            held,
            &self.document,
            &decision,
            &machine,
            &RunInputs::default(),
            Arc::new(Quiet),
        )
    }

    fn table(&self) -> Table {
        let bytes = self.machine.bytes("sda");
        match table::read(&bytes[..], self.sector).expect("it is memory") {
            TableOnDisk::Gpt { table, .. } => table,
            other => panic!("no table: {other:?}"),
        }
    }

    fn has_images(&self) -> bool {
        let bytes = self.machine.bytes("sda");
        bytes[CHUNKED..].starts_with(&self.chunked) && bytes[STREAM..].starts_with(&self.stream)
    }
}

#[test]
fn cut_run_leaves_a_marked_disk_and_is_continued() {
    let mut old = 0;
    let mut marked = 0;
    let mut complete = 0;
    let mut resumed = 0;
    for (sector, parity) in [(512, 0), (4096, 1)] {
        let case = Case::new(sector);
        let before = case.table();
        let whole = Arc::new(Fault::new(FaultTrigger::Never, FaultEffect::Die));
        assert_eq!(case.run(&whole).expect("it is whole"), ApplyOutcome::Done { resumed: false });
        let after = case.table();
        let writes = whole.write_count().writes;
        assert!(case.has_images() && writes > 25, "{writes}");
        for number in 0..writes {
            case.renew();
            let power = FaultEffect::CutPower(number * 7919 + 1);
            let then = if number % 2 == parity { FaultEffect::Die } else { power };
            let at = format!("write {number} of {writes}, {then:?}, sectors of {sector}");
            let fault = Arc::new(Fault::new(FaultTrigger::AtWrite(number), then));
            // The number of progress records depends on time, and so does the number of writes.
            if case.run(&fault).is_ok() {
                assert!(!fault.has_broken(), "{at}");
                continue;
            }
            let table = case.table();
            if table == after {
                assert!(case.has_images(), "{at}: what looks whole is");
                complete += 1;
            } else if table == before {
                old += 1;
            } else {
                assert_eq!(table.txn_in_progress(), Some(TXN), "{at}: {table:?}");
                marked += 1;
            }
            // The second attempt is interrupted, too.
            let again = Arc::new(Fault::new(
                FaultTrigger::AtWrite(number % 7),
                FaultEffect::CutPower(number + 1),
            ));
            assert!(case.run(&again).is_err() == again.has_broken(), "{at}");
            let last = case.machine.apply(&case.document);
            let last = last.unwrap_or_else(|error| panic!("{at}: {error}"));
            resumed += usize::from(last == ApplyOutcome::Done { resumed: true });
            assert!(case.has_images() && case.table() == after, "{at}");
            assert!(case.machine.bytes("sdb") == case.bystander, "{at}: nobody named it");
        }
    }
    assert!(old > 0 && marked > 40 && complete > 0, "{old} {marked} {complete}");
    assert!(resumed > 20, "{resumed}");
}
