//! Erasing disks.

use std::sync::Arc;

use hoist_device::actions::erase::Erase;
use hoist_device::actions::images::ProgressStore;
use hoist_device::apply::{self, ApplyOutcome, Listener};
use hoist_device::fault::{Fault, FaultEffect, FaultTrigger};
use hoist_device::images::{Progress, ProgressError};
use hoist_device::metadata_area::{backup, read_marker};
use hoist_device::{ReadIo, RunInputs, observe};
use hoist_engine::action::{Action as _, Cancel, Ctx, Output, Stream};
use hoist_engine::execute::AttemptPrograms;
use hoist_engine::plan::{Call, Step};
use hoist_provision::diagnostic::Code;
use hoist_provision::document::{Document, Id, Secrets};
use hoist_provision::metadata_area::MetadataArea;
use hoist_provision::partition_table::TableOnDisk;
use hoist_provision::steps::erase::{EraseReport, Method, Verdict};
use hoist_provision::{partition_table as table, plan};
use parking_lot::Mutex;

use crate::machine::{FileMachine, Quiet, document};

const MIB: usize = 1 << 20;
const SIZE: usize = 12 * MIB;

#[derive(Default)]
struct Reports(Mutex<Vec<EraseReport>>);

impl Listener for Reports {
    fn begins(&self, _: &str) {}
    fn progress(&self, _: &Id, _: Progress) {}
    fn erased(&self, report: &EraseReport) {
        self.0.lock().push(report.clone());
    }
}

fn machine(sector: u32) -> FileMachine {
    let machine = FileMachine::new();
    machine.add("sda", sector, &vec![0x77; SIZE]);
    machine.add("sdb", sector, &vec![0x5a; 2 * MIB]);
    machine
}

fn of(method: &str, more: &str) -> Document {
    document(&format!(
        "api: hoist/v1\ntxn: 5d1b6d5e-6f3a-4a7e-9d0c-00000000000a\nsections:\n  node: {{id: n1}}\n  \
         disks: {{os: {{match: {{serial: S-sda}}, wipe: any}}}}\n  \
         erase: {{disks: [os], method: {method}}}\n{more}"
    ))
}

fn apply(machine: &FileMachine, document: &Document) -> Vec<EraseReport> {
    let decision = machine.decide(document);
    let reports = Arc::new(Reports::default());
    let to = Arc::clone(&reports);
    let here = machine.machine();
    let done = apply::apply(document, &decision, &here, &RunInputs::default(), None, to);
    assert_eq!(done.expect("nothing is wrong"), ApplyOutcome::Done { resumed: false });
    assert!(machine.bytes("sdb").iter().all(|byte| *byte == 0x5a), "nobody named it");
    reports.0.lock().clone()
}

#[test]
fn erased_disk_is_empty_and_its_report_has_evidence() {
    for sector in [512, 4096] {
        for (word, method) in [("strongest", Method::Overwrite), ("overwrite", Method::Overwrite)] {
            let machine = machine(sector);
            let reports = apply(&machine, &of(word, ""));
            assert!(machine.bytes("sda").iter().all(|byte| *byte == 0));
            let [report] = reports.as_slice() else { panic!("one report: {reports:?}") };
            assert_eq!((report.method, report.range.clone()), (method, 0..SIZE as u64));
            assert_eq!(report.who.serial.as_deref(), Some("S-sda"));
            assert_eq!((report.verdict, report.evidence.samples), (Verdict::Erased, 64));
            assert!(report.started <= report.ended);
        }
    }
}

#[test]
fn signature_wipe_is_not_reported_as_empty() {
    let machine = machine(512);
    let reports = apply(&machine, &of("signatures", ""));
    assert_eq!((reports[0].method, reports[0].evidence.samples), (Method::Signatures, 0));
    let bytes = machine.bytes("sda");
    assert_eq!((bytes[0], bytes[6 * MIB], bytes[SIZE - 1]), (0, 0x77, 0));
}

#[test]
fn unsupported_method_is_refused_before_any_write() {
    let machine = machine(512);
    for method in ["crypto", "block"] {
        let document = of(method, "");
        let seen = observe::observe(&document, &machine.machine(), &RunInputs::default());
        let found = plan::decide(&document, &seen).expect_err("it cannot");
        assert_eq!(found[0].code, Code::Unsupported, "{}", found[0]);
    }
    fs_err::write(machine.path("sys/block/sda/queue/write_zeroes_max_bytes"), "1048576")
        .expect("written");
    assert_eq!(apply(&machine, &of("block", ""))[0].method, Method::Block);
    assert!(machine.bytes("sda").iter().all(|byte| *byte == 0));
}

#[test]
fn disk_with_new_table_is_erased_once_before_it() {
    let machine = machine(512);
    let storage = "  storage:\n  - part: {id: a, on: os, size: rest}\n";
    let both = of("overwrite", storage);
    let reports = apply(&machine, &both);
    assert_eq!(reports[0].range.start, MIB as u64);
    let bytes = machine.bytes("sda");
    assert!(bytes[MIB..SIZE - MIB].iter().all(|byte| *byte == 0));
    assert!(machine.decide(&both).is_settled());
    let alone = plan::with_actions(both, &["erase".to_owned()]);
    assert_eq!(apply(&machine, &alone)[0].range, 0..SIZE as u64);
    assert!(machine.bytes("sda").iter().all(|byte| *byte == 0), "its table, too");
}

#[test]
fn erase_leaves_nothing_below_a_later_layout() {
    let machine = FileMachine::new();
    for name in ["sda", "sdb"] {
        machine.add(name, 512, &vec![0x77; SIZE]);
    }
    let document = document(
        "api: hoist/v1\ntxn: 5d1b6d5e-6f3a-4a7e-9d0c-00000000001a\nsections:\n  node: {id: n1}\n  \
         disks:\n    data: {match: {serial: S-sda}, wipe: any}\n    \
         os: {match: {serial: S-sdb}, wipe: any}\n  erase: {disks: [data, os]}\n  storage:\n  \
         - part: {id: a, on: data, size: rest}\n  - part: {id: b, on: os, size: rest}\n",
    );
    machine.apply(&document).expect("nothing is wrong");
    let area = MetadataArea::before(None).expect("an area");
    for name in ["sda", "sdb"] {
        let bytes = machine.bytes(name);
        let disk = ReadIo::open(&machine.disk(name), 512).expect("it is there");
        assert!(backup::read(&disk, &area).expect("it is read").is_none(), "{name}");
        let left = bytes.chunks(512).position(|sector| sector == [0x77; 512]);
        assert_eq!(left, None, "{name}");
        assert!(read_marker(&bytes[..], &area).expect("it is memory").is_some());
    }
    assert!(machine.decide(&document).is_settled());
}

#[test]
fn half_erased_disk_is_marked_in_progress() {
    let document = of("overwrite", "");
    for number in [3, 4, 7, 8, 9] {
        let machine = machine(512);
        let decision = machine.decide(&document);
        let here = machine.machine();
        let mut held = apply::take(&decision, &here).expect("nobody has it");
        let fault = Arc::new(Fault::new(FaultTrigger::AtWrite(number), FaultEffect::Die));
        held.break_disk(&"os".parse().expect("an id"), &fault).expect("nobody has it");
        let given = RunInputs::default();
        let cut = apply::apply_to(held, &document, &decision, &here, &given, Arc::new(Quiet));
        cut.expect_err("it is cut off");
        let bytes = machine.bytes("sda");
        let found = table::read(&bytes[..], 512).expect("it is memory");
        let TableOnDisk::Gpt { table, .. } = found else { panic!("write {number}: {found:?}") };
        assert_eq!(table.txn_in_progress(), Some(document.txn), "write {number}");
        apply(&machine, &document);
        assert!(machine.bytes("sda").iter().all(|byte| *byte == 0));
    }
}

#[derive(Default)]
struct RecordedReports(Mutex<Vec<EraseReport>>);

impl hoist_device::actions::erase::Listener for RecordedReports {
    fn progress(&self, _: &Id, _: Progress) {}
    fn erased(&self, report: &EraseReport) {
        self.0.lock().push(report.clone());
    }
}

struct Records;

impl ProgressStore for Records {
    fn reached(&self, _: &str, _: u64) -> Result<(), ProgressError> {
        Ok(())
    }
    fn leave(&self, _: &Id) {}
}

struct Nowhere;

impl Output for Nowhere {
    fn line(&mut self, _: Stream, _: &[u8]) {}
    fn progress(&mut self, _: u64, _: Option<u64>) {}
}

#[test]
fn failed_erase_command_has_no_fallback() {
    let machine = machine(512);
    let decision = machine.decide(&of("overwrite", ""));
    let held = Arc::new(apply::take(&decision, &machine.machine()).expect("nobody has it"));
    let kept = Arc::new(RecordedReports::default());
    let to: Arc<dyn hoist_device::actions::erase::Listener> = Arc::<RecordedReports>::clone(&kept);
    let action = Erase::new(held, to, Arc::new(Records));
    let input = serde_json::json!({
        "disk": "os", "who": {"kernel_name": "sda", "size": SIZE}, "method": "sanitize_crypto",
        "range": {"start": 0, "end": SIZE}, "seed": 7,
    });
    let call = Call { action: "erase".to_owned(), input, undoes: None };
    let step = Step { call, ..Step::default() };
    let mut ctx = Ctx {
        attempt: "1",
        task: "erase",
        subject: "",
        directory: std::path::Path::new("/"),
        deadline: None,
        cancel: &Cancel::default(),
        secrets: &Secrets::default(),
        programs: &AttemptPrograms::default(),
        output: &mut Nowhere,
    };
    let failure = action.apply(&step, &mut ctx).expect_err("a file takes no commands");
    assert!(failure.reason.contains("cannot send the command"), "{}", failure.reason);
    assert!(machine.bytes("sda").iter().all(|byte| *byte == 0x77), "nothing was written");
    let reports = kept.0.lock().clone();
    assert_eq!((reports.len(), reports[0].verdict), (1, Verdict::NotErased));
    assert_eq!(reports[0].reason.as_ref(), Some(&failure.reason));
}
