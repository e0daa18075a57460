//! Undo restores disks to their former contents, or reports the reason against it.

use std::sync::Arc;

use hoist_device::apply::{self, Listener};
use hoist_device::fault::{Fault, FaultEffect, FaultTrigger};
use hoist_device::images::Progress;
use hoist_device::metadata_area::{read_marker, write_marker};
use hoist_device::table::write_closing;
use hoist_device::{GuardedIo, Identity, Ranges, RunInputs, undo};
use hoist_provision::backup::{self, TakenBackup};
use hoist_provision::diagnostic::{Code, ProvisionDiagnostic};
use hoist_provision::document::{Document, Id};
use hoist_provision::metadata_area::{Marker, MetadataArea};
use hoist_provision::partition_table::{Partition, Table};
use parking_lot::Mutex;
use uuid::Uuid;

use crate::machine::{FileMachine, Quiet, document};

const MIB: usize = 1 << 20;
const SIZE: usize = 16 * MIB;

fn machine(table: Option<&Table>, sector: u32) -> FileMachine {
    let machine = FileMachine::new();
    let mut bytes = vec![0; SIZE];
    bytes[..8].copy_from_slice(b"bootcode");
    bytes[100_000..100_004].copy_from_slice(b"core");
    bytes[2 * MIB..8 * MIB].fill(0x77);
    machine.add("sda", sector, &bytes);
    if let Some(table) = table {
        let path = machine.disk("sda");
        let identity = Identity::of(&path, sector).expect("it is there");
        let all = Ranges::from(0..SIZE as u64);
        let io = GuardedIo::open(&path, &identity, &all, &Ranges::default()).expect("free");
        write_closing(table, &io).expect("written");
    }
    machine
}

fn old() -> Table {
    let partition = Partition {
        number: 1,
        start: 2 * MIB as u64,
        length: 6 * MIB as u64,
        kind: Uuid::from_u128(7),
        id: Uuid::from_u128(8),
        attributes: 0,
        name: "old".to_owned(),
    };
    Table { id: Uuid::from_u128(9), partitions: vec![partition] }
}

fn of(storage: &str) -> Document {
    document(&format!(
        "api: hoist/v1\ntxn: 5d1b6d5e-6f3a-4a7e-9d0c-00000000000b\nsections:\n  node: {{id: n1}}\n  \
         disks: {{os: {{match: {{serial: S-sda}}, wipe: any}}}}\n  storage:\n{storage}"
    ))
}

const NEW: &str = "  - part: {id: a, on: os, size: rest}\n";
const BESIDE: &str = "  - part: {id: kept, on: os, size: 6 MiB, retain: {partuuid: \
                      00000000-0000-0000-0000-000000000008}}\n  - part: {id: a, on: os, size: 4 MiB}\n";

fn undo(machine: &FileMachine, document: &Document) -> Result<usize, Vec<ProvisionDiagnostic>> {
    undo_with(machine, document, &[])
}

fn undo_with(
    machine: &FileMachine,
    document: &Document,
    elsewhere: &[TakenBackup],
) -> Result<usize, Vec<ProvisionDiagnostic>> {
    let undoing = undo::plan_undo(document, &machine.machine(), elsewhere)?;
    undo::undo(&undoing, &machine.machine()).expect("nobody has it");
    Ok(undoing.disks().len())
}

#[test]
fn undo_after_overwrite_names_the_loss_and_restores_nothing() {
    let machine = machine(Some(&old()), 512);
    let document = of(NEW);
    assert_eq!(undo(&machine, &document).expect("nothing was done"), 0);
    machine.apply(&document).expect("nothing is wrong");
    let before = machine.bytes("sda");
    let found = undo(&machine, &document).expect_err("it is overwritten");
    assert_eq!(found[0].code, Code::CannotUndo, "{}", found[0]);
    assert!(found[0].to_string().contains("partition 1 at 2 MiB, 6 MiB"), "{}", found[0]);
    assert!(before == machine.bytes("sda"), "nothing was written");
}

#[test]
fn undo_restores_the_table_of_intact_partitions() {
    for sector in [512, 4096] {
        let machine = machine(Some(&old()), sector);
        let before = machine.bytes("sda");
        let document = of(BESIDE);
        machine.apply(&document).expect("nothing is wrong");
        assert!(before != machine.bytes("sda"));
        assert_eq!(undo(&machine, &document).expect("it stayed"), 1);
        let after = machine.bytes("sda");
        assert!(before[..8 * MIB] == after[..8 * MIB], "sectors of {sector}");
        assert!(before[SIZE - MIB..] == after[SIZE - MIB..]);
        assert_eq!(undo(&machine, &document).expect("it is done"), 0, "nothing says who was there");
    }
}

#[test]
fn undo_restores_an_empty_disk() {
    let machine = FileMachine::new();
    // Erased blocks of zeros and of ones.
    machine.add("sda", 512, &[vec![0; SIZE / 2], vec![0xff; SIZE / 2]].concat());
    let before = machine.bytes("sda");
    let document = of(NEW);
    machine.apply(&document).expect("nothing is wrong");
    assert_eq!(undo(&machine, &document).expect("nothing was lost"), 1);
    let after = machine.bytes("sda");
    assert!(before[..MIB] == after[..MIB] && before[SIZE - MIB..] == after[SIZE - MIB..]);
}

#[test]
fn undo_reports_overwritten_unknown_data() {
    let machine = machine(None, 512);
    let document = of(NEW);
    machine.apply(&document).expect("nothing is wrong");
    let before = machine.bytes("sda");
    let found = undo(&machine, &document).expect_err("it is overwritten");
    assert_eq!(found[0].code, Code::CannotUndo, "{}", found[0]);
    assert!(found[0].to_string().contains("unknown data in the disk"), "{}", found[0]);
    assert!(before == machine.bytes("sda"), "nothing was written");
}

/// Applies a document and is interrupted after this many writes.
fn cut_off(machine: &FileMachine, document: &Document, writes: u64) {
    let decision = machine.decide(document);
    let here = machine.machine();
    let mut held = apply::take(&decision, &here).expect("nobody has it");
    let fault = Arc::new(Fault::new(FaultTrigger::AtWrite(writes), FaultEffect::Die));
    held.break_disk(&"os".parse().expect("an id"), &fault).expect("nobody has it");
    let given = RunInputs::default();
    let cut = apply::apply_to(held, document, &decision, &here, &given, Arc::new(Quiet));
    cut.expect_err("it is cut off");
}

#[test]
fn idle_attempt_keeps_the_record_of_the_previous_one() {
    // Wherever the later run ends: data that the earlier run has overwritten is lost.
    for writes in 0..12 {
        let machine = machine(Some(&old()), 512);
        machine.apply(&of(NEW)).expect("nothing is wrong");
        let smaller = of("  - part: {id: b, on: os, size: 1 MiB}\n");
        cut_off(&machine, &smaller, writes);
        assert!(undo(&machine, &smaller).is_err(), "after {writes} writes");
    }
}

#[test]
fn run_without_a_started_step_is_undone_completely() {
    let machine = machine(Some(&old()), 512);
    let before = machine.bytes("sda");
    let document = of(NEW);
    // Tables, marker, metadata area and backup are written, and the journal is not.
    cut_off(&machine, &document, 8);
    assert!(before != machine.bytes("sda"));
    assert_eq!(undo(&machine, &document).expect("nothing was lost"), 1);
    assert!(before == machine.bytes("sda"), "every byte");
}

/// Stores backups before the first write.
#[derive(Default)]
struct Elsewhere(Mutex<Vec<TakenBackup>>);

impl Listener for Elsewhere {
    fn begins(&self, _: &str) {}
    fn progress(&self, _: &Id, _: Progress) {}

    fn taken(&self, taken: &[TakenBackup]) {
        *self.0.lock() = taken.to_vec();
    }
}

fn apply_and_keep(machine: &FileMachine, document: &Document) -> Vec<TakenBackup> {
    let decision = machine.decide(document);
    let kept = Arc::new(Elsewhere::default());
    let here = machine.machine();
    let given = RunInputs::default();
    let listener = Arc::clone(&kept);
    let applied = apply::apply(document, &decision, &here, &given, None, listener);
    applied.expect("nothing is wrong");
    kept.0.lock().clone()
}

#[test]
fn backup_without_room_on_disk_is_restored_from_the_controller() {
    let machine = noisy();
    let before = machine.bytes("sda");
    let document = of(BESIDE);
    let kept = apply_and_keep(&machine, &document);
    assert_eq!(kept.iter().map(|taken| taken.size).collect::<Vec<_>>(), [SIZE as u64]);
    assert!(backup::would_be_lost(&kept[0]).is_empty());
    assert_eq!(undo_with(&machine, &document, &kept).expect("it is known"), 1);
    let after = machine.bytes("sda");
    assert!(before[..MIB] == after[..MIB] && before[SIZE - MIB..] == after[SIZE - MIB..]);
    assert_eq!(undo_with(&machine, &document, &kept).expect("it is as it was"), 0);
}

#[test]
fn changed_disk_gets_no_remote_backup() {
    let machine = noisy();
    let document = of(BESIDE);
    let kept = apply_and_keep(&machine, &document);
    fs_err::write(machine.disk("sda"), vec![1; SIZE]).expect("written");
    let found = undo_with(&machine, &document, &kept).expect_err("it is another disk now");
    assert_eq!(found[0].code, Code::CannotUndo, "{}", found[0]);
    assert!(found[0].diagnostic.message.contains("was changed since"), "{}", found[0]);
    assert!(machine.bytes("sda") == vec![1; SIZE]);
}

#[test]
fn later_plan_keeps_the_losses_of_earlier_attempts() {
    let machine = machine(Some(&old()), 512);
    machine.apply(&of(NEW)).expect("nothing is wrong");
    let smaller = "  - part: {id: b, on: os, size: 1 MiB}\n";
    let kept = apply_and_keep(&machine, &of(smaller));
    assert_eq!(backup::would_be_lost(&kept[0])[0], "partition 1 at 2 MiB, 6 MiB");
    let found = undo(&machine, &of(smaller)).expect_err("it is overwritten");
    assert!(found[0].to_string().contains("partition 1 at 2 MiB, 6 MiB"), "{}", found[0]);
}

#[test]
fn erased_disk_is_never_backed_up() {
    let machine = machine(Some(&old()), 512);
    let document = document(
        "api: hoist/v1\ntxn: 5d1b6d5e-6f3a-4a7e-9d0c-00000000000d\nsections:\n  node: {id: n1}\n  \
         disks: {os: {match: {serial: S-sda}, wipe: any}}\n  erase: {disks: [os]}\n",
    );
    assert!(apply_and_keep(&machine, &document).is_empty());
}

#[test]
fn undo_of_an_erased_disk_reports_it_as_unknown() {
    let machine = machine(Some(&old()), 512);
    machine.add("sdb", 512, &machine.bytes("sda"));
    let document = document(
        "api: hoist/v1\ntxn: 5d1b6d5e-6f3a-4a7e-9d0c-00000000000f\nsections:\n  node: {id: n1}\n  \
         disks:\n    gone: {match: {serial: S-sda}, wipe: any}\n    \
         os: {match: {serial: S-sdb}, wipe: any}\n  erase: {disks: [gone]}\n  \
         flow: {actions: [erase]}\n",
    );
    machine.apply(&document).expect("nothing is wrong");
    let undoing = undo::plan_undo(&document, &machine.machine(), &[]).expect("it is looked at");
    assert!(undoing.disks().is_empty());
    let [unknown] = undoing.unknown() else { panic!("one: {undoing:?}") };
    assert_eq!((unknown.code, unknown.diagnostic.at.as_str()), (Code::CannotUndo, "disks.gone"));
}

/// A disk whose first MiB is too noisy to be packed, with a partition to retain.
fn noisy() -> FileMachine {
    let machine = machine(Some(&old()), 512);
    let mut noise = machine.bytes("sda");
    let mut state = 1_u64;
    for bytes in noise[64 * 1024..MIB].chunks_mut(8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.copy_from_slice(&state.to_le_bytes());
    }
    fs_err::write(machine.disk("sda"), noise).expect("written");
    machine
}

#[test]
fn backup_without_room_is_reported_as_not_restorable() {
    let machine = noisy();
    let document = of(BESIDE);
    machine.apply(&document).expect("nothing is wrong");
    let found = undo(&machine, &document).expect_err("nobody knows what was there");
    assert_eq!(found[0].code, Code::CannotUndo, "{}", found[0]);
}

#[test]
fn half_erased_disk_keeps_its_marked_table() {
    let machine = machine(Some(&old()), 512);
    let document = document(
        "api: hoist/v1\ntxn: 5d1b6d5e-6f3a-4a7e-9d0c-00000000000c\nsections:\n  node: {id: n1}\n  \
         disks: {os: {match: {serial: S-sda}, wipe: any}}\n  erase: {disks: [os]}\n",
    );
    let decision = machine.decide(&document);
    let here = machine.machine();
    let mut held = apply::take(&decision, &here).expect("nobody has it");
    let fault = Arc::new(Fault::new(FaultTrigger::AtWrite(8), FaultEffect::Die));
    held.break_disk(&"os".parse().expect("an id"), &fault).expect("nobody has it");
    let given = RunInputs::default();
    let cut = apply::apply_to(held, &document, &decision, &here, &given, Arc::new(Quiet));
    cut.expect_err("it is cut off");
    let found = undo(&machine, &document).expect_err("it is half gone");
    assert_eq!(found[0].code, Code::CannotUndo, "{}", found[0]);
}

/// The journal is behind the two slots of the marker.
const JOURNAL: usize = 40 * 1024;

#[test]
fn unreadable_journal_counts_as_started() {
    let machine = machine(Some(&old()), 512);
    let document = of(NEW);
    machine.apply(&document).expect("nothing is wrong");
    let mut bytes = machine.bytes("sda");
    bytes[JOURNAL + 30] ^= 0xff;
    fs_err::write(machine.disk("sda"), &bytes).expect("written");
    let found = undo(&machine, &document).expect_err("it is overwritten");
    assert!(found[0].to_string().contains("partition 1 at 2 MiB, 6 MiB"), "{}", found[0]);
    assert!(bytes == machine.bytes("sda"), "nothing was written");
}

#[test]
fn backup_before_an_early_partition_is_found() {
    let mut early = old();
    early.partitions[0].start = MIB as u64 / 2;
    let machine = machine(Some(&early), 512);
    let before = machine.bytes("sda");
    let document = of(BESIDE);
    machine.apply(&document).expect("nothing is wrong");
    assert!(before != machine.bytes("sda"));
    assert_eq!(undo(&machine, &document).expect("it stayed"), 1);
    let after = machine.bytes("sda");
    assert!(before[..6 * MIB] == after[..6 * MIB] && before[SIZE - MIB..] == after[SIZE - MIB..]);
}

/// Two disks with contents, and a run on both that was interrupted before its first step. The
/// journal would have been on the first disk. Also returns the backups of both.
fn two_cut_off() -> (FileMachine, Document, Vec<TakenBackup>) {
    let machine = machine(Some(&old()), 512);
    machine.add("sdb", 512, &machine.bytes("sda"));
    let document = document(
        "api: hoist/v1\ntxn: 5d1b6d5e-6f3a-4a7e-9d0c-00000000000e\nsections:\n  node: {id: n1}\n  \
         disks:\n    data: {match: {serial: S-sda}, wipe: any}\n    \
         os: {match: {serial: S-sdb}, wipe: any}\n  storage:\n  \
         - part: {id: a, on: data, size: rest}\n  - part: {id: b, on: os, size: rest}\n",
    );
    let decision = machine.decide(&document);
    let here = machine.machine();
    let mut held = apply::take(&decision, &here).expect("nobody has them");
    let fault = Arc::new(Fault::new(FaultTrigger::AtWrite(8), FaultEffect::Die));
    held.break_disk(&"data".parse().expect("an id"), &fault).expect("nobody has it");
    let given = RunInputs::default();
    let kept = Arc::new(Elsewhere::default());
    let listener = Arc::clone(&kept);
    let cut = apply::apply_to(held, &document, &decision, &here, &given, listener);
    cut.expect_err("it is cut off");
    let kept = kept.0.lock().clone();
    assert_eq!(kept.len(), 2);
    (machine, document, kept)
}

#[test]
fn busy_disk_blocks_undo_of_all_disks() {
    let before = machine(Some(&old()), 512).bytes("sda");
    let (machine, document, _) = two_cut_off();
    let cut = ["sda", "sdb"].map(|name| machine.bytes(name));
    assert!(cut.iter().all(|bytes| *bytes != before));
    let here = machine.machine();
    let undoing = undo::plan_undo(&document, &here, &[]).expect("nothing was lost");
    let path = machine.disk("sdb");
    let identity = Identity::of(&path, 512).expect("it is there");
    let none = Ranges::default();
    let busy = GuardedIo::open(&path, &identity, &none, &none).expect("free");
    undo::undo(&undoing, &here).expect_err("somebody has it");
    assert!(cut == ["sda", "sdb"].map(|name| machine.bytes(name)), "nothing was written");
    drop(busy);
    assert_eq!(undo(&machine, &document).expect("nothing was lost"), 2);
    assert!(["sda", "sdb"].iter().all(|name| machine.bytes(name) == before), "every byte");
}

#[test]
fn interrupted_undo_is_resumed_on_any_disk() {
    let before = machine(Some(&old()), 512).bytes("sda");
    for done in ["sda", "sdb"] {
        let (machine, document, kept) = two_cut_off();
        fs_err::write(machine.disk(done), &before).expect("written");
        assert_eq!(undo_with(&machine, &document, &kept).expect("nothing was lost"), 1);
        assert!(["sda", "sdb"].iter().all(|name| machine.bytes(name) == before), "after {done}");
    }
}

#[test]
fn restoring_disk_is_restored_without_copies_of_the_others() {
    let before = machine(Some(&old()), 512).bytes("sda");
    for (done, other) in [("sda", "sdb"), ("sdb", "sda")] {
        let (machine, document, _) = two_cut_off();
        fs_err::write(machine.disk(done), &before).expect("written");
        let path = machine.disk(other);
        let identity = Identity::of(&path, 512).expect("it is there");
        let all = Ranges::from(0..SIZE as u64);
        let io = GuardedIo::open(&path, &identity, &all, &Ranges::default()).expect("free");
        let area = MetadataArea::before(None).expect("an area");
        let marker = read_marker(&io, &area).expect("it is read").expect("there is one");
        write_marker(&Marker { undoing: true, ..marker }, &io, &area).expect("it is written");
        drop(io);
        assert_eq!(undo(&machine, &document).expect("nothing was lost"), 1);
        assert!(machine.bytes(other) == before, "after {done}");
    }
}
