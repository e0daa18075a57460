//! What disks were before is put back, or it is said why not.

use std::sync::{Arc, Mutex};

use hoist_provision::device::fault::{Fault, Then, When};
use hoist_provision::device::gap::backup::Taken;
use hoist_provision::device::gap::{Gap, Marker};
use hoist_provision::device::table::{Partition, Table};
use hoist_provision::device::{GuardedIo, Identity, Ranges};
use hoist_provision::diagnostic::{Code, Diagnostic};
use hoist_provision::document::{Document, Id};
use hoist_provision::images::Progress;
use hoist_provision::pipeline::{self, Given, Listener};
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
        table.write_closing(&io).expect("written");
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

fn undo(machine: &FileMachine, document: &Document) -> Result<usize, Vec<Diagnostic>> {
    undo_with(machine, document, &[])
}

fn undo_with(
    machine: &FileMachine,
    document: &Document,
    elsewhere: &[Taken],
) -> Result<usize, Vec<Diagnostic>> {
    let undoing = pipeline::plan_undo(document, &machine.machine(), elsewhere)?;
    pipeline::undo(&undoing, &machine.machine()).expect("nobody has it");
    Ok(undoing.disks().len())
}

#[test]
fn what_was_overwritten_is_named_and_nothing_is_put_back() {
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
fn the_table_is_put_back_where_all_that_it_speaks_of_is_still_there() {
    for sector in [512, 4096] {
        let machine = machine(Some(&old()), sector);
        let (before, document) = (machine.bytes("sda"), of(BESIDE));
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
fn a_disk_that_was_empty_is_as_it_was() {
    let machine = machine(None, 512);
    let (before, document) = (machine.bytes("sda"), of(NEW));
    machine.apply(&document).expect("nothing is wrong");
    assert_eq!(undo(&machine, &document).expect("nothing was lost"), 1);
    let after = machine.bytes("sda");
    assert!(before[..MIB] == after[..MIB] && before[SIZE - MIB..] == after[SIZE - MIB..]);
}

/// Applies a document, and is cut off when it has written so often.
fn cut_off(machine: &FileMachine, document: &Document, writes: u64) {
    let decision = machine.decide(document);
    let here = machine.machine();
    let mut held = pipeline::take(&decision, &here).expect("nobody has it");
    let fault = Arc::new(Fault::new(When::AtWrite(writes), Then::Die));
    held.break_disk(&"os".parse().expect("an id"), &fault).expect("nobody has it");
    let given = Given::default();
    let cut = pipeline::apply_to(held, document, &decision, &here, &given, Arc::new(Quiet));
    cut.expect_err("it is cut off");
}

#[test]
fn an_attempt_that_began_nothing_does_not_say_that_the_one_before_did_not() {
    // Wherever the later one ends: what the earlier one has overwritten is lost.
    for writes in 0..12 {
        let machine = machine(Some(&old()), 512);
        machine.apply(&of(NEW)).expect("nothing is wrong");
        let smaller = of("  - part: {id: b, on: os, size: 1 MiB}\n");
        cut_off(&machine, &smaller, writes);
        assert!(undo(&machine, &smaller).is_err(), "after {writes} writes");
    }
}

#[test]
fn a_run_that_ended_before_its_first_step_is_undone_whole() {
    let machine = machine(Some(&old()), 512);
    let (before, document) = (machine.bytes("sda"), of(NEW));
    // Tables, marker, gap and backup are there, and the journal is not.
    cut_off(&machine, &document, 6);
    assert!(before != machine.bytes("sda"));
    assert_eq!(undo(&machine, &document).expect("nothing was lost"), 1);
    assert!(before == machine.bytes("sda"), "every byte");
}

/// Keeps what it is told before anything is written.
#[derive(Default)]
struct Elsewhere(Mutex<Vec<Taken>>);

impl Listener for Elsewhere {
    fn begins(&self, _: &str) {}
    fn progress(&self, _: &Id, _: Progress) {}

    fn taken(&self, taken: &[Taken]) {
        *self.0.lock().expect("nobody panicked") = taken.to_vec();
    }
}

fn apply_and_keep(machine: &FileMachine, document: &Document) -> Vec<Taken> {
    let (decision, kept) = (machine.decide(document), Arc::new(Elsewhere::default()));
    let (here, given, listener) = (machine.machine(), Given::default(), Arc::clone(&kept));
    let applied = pipeline::apply(document, &decision, &here, &given, None, listener);
    applied.expect("nothing is wrong");
    kept.0.lock().expect("nobody panicked").clone()
}

#[test]
fn what_has_no_room_on_the_disk_is_put_back_from_elsewhere() {
    let machine = noisy();
    let (before, document) = (machine.bytes("sda"), of(NEW));
    let kept = apply_and_keep(&machine, &document);
    assert_eq!(kept.iter().map(|taken| taken.size).collect::<Vec<_>>(), [SIZE as u64]);
    assert!(pipeline::would_be_lost(&kept[0]).is_empty());
    assert_eq!(undo_with(&machine, &document, &kept).expect("it is known"), 1);
    let after = machine.bytes("sda");
    assert!(before[..MIB] == after[..MIB] && before[SIZE - MIB..] == after[SIZE - MIB..]);
    assert_eq!(undo_with(&machine, &document, &kept).expect("it is as it was"), 0);
}

#[test]
fn a_disk_that_somebody_changed_gets_nothing_from_elsewhere() {
    let machine = noisy();
    let document = of(NEW);
    let kept = apply_and_keep(&machine, &document);
    fs_err::write(machine.disk("sda"), vec![1; SIZE]).expect("written");
    let found = undo_with(&machine, &document, &kept).expect_err("it is another disk now");
    assert_eq!(found[0].code, Code::CannotUndo, "{}", found[0]);
    assert!(found[0].what.contains("somebody has changed it"), "{}", found[0]);
    assert!(machine.bytes("sda") == vec![1; SIZE]);
}

#[test]
fn what_an_earlier_attempt_may_have_destroyed_is_not_forgotten_by_a_later_plan() {
    let machine = machine(Some(&old()), 512);
    machine.apply(&of(NEW)).expect("nothing is wrong");
    let smaller = "  - part: {id: b, on: os, size: 1 MiB}\n";
    let kept = apply_and_keep(&machine, &of(smaller));
    assert_eq!(pipeline::would_be_lost(&kept[0])[0], "partition 1 at 2 MiB, 6 MiB");
    let found = undo(&machine, &of(smaller)).expect_err("it is overwritten");
    assert!(found[0].to_string().contains("partition 1 at 2 MiB, 6 MiB"), "{}", found[0]);
}

#[test]
fn of_what_is_erased_no_copy_goes_elsewhere() {
    let machine = machine(Some(&old()), 512);
    let document = document(
        "api: hoist/v1\ntxn: 5d1b6d5e-6f3a-4a7e-9d0c-00000000000d\nsections:\n  node: {id: n1}\n  \
         disks: {os: {match: {serial: S-sda}, wipe: any}}\n  erase: {disks: [os]}\n",
    );
    assert!(apply_and_keep(&machine, &document).is_empty());
}

#[test]
fn of_what_is_erased_it_is_said_that_nothing_is_known() {
    let machine = machine(Some(&old()), 512);
    machine.add("sdb", 512, &machine.bytes("sda"));
    let document = document(
        "api: hoist/v1\ntxn: 5d1b6d5e-6f3a-4a7e-9d0c-00000000000f\nsections:\n  node: {id: n1}\n  \
         disks:\n    gone: {match: {serial: S-sda}, wipe: any}\n    \
         os: {match: {serial: S-sdb}, wipe: any}\n  erase: {disks: [gone]}\n  \
         flow: {actions: [erase]}\n",
    );
    machine.apply(&document).expect("nothing is wrong");
    let undoing = pipeline::plan_undo(&document, &machine.machine(), &[]).expect("it is looked at");
    assert!(undoing.disks().is_empty());
    let [unknown] = undoing.unknown() else { panic!("one: {undoing:?}") };
    assert_eq!((unknown.code, unknown.place.as_str()), (Code::CannotUndo, "disks.gone"));
}

/// With more at its beginning than can be packed.
fn noisy() -> FileMachine {
    let machine = machine(None, 512);
    let mut noise = machine.bytes("sda");
    let mut state = 1_u64;
    for bytes in noise[..MIB].chunks_mut(8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.copy_from_slice(&state.to_le_bytes());
    }
    fs_err::write(machine.disk("sda"), noise).expect("written");
    machine
}

#[test]
fn what_does_not_fit_on_the_disk_cannot_be_put_back_and_that_is_said() {
    let machine = noisy();
    let document = of(NEW);
    machine.apply(&document).expect("nothing is wrong");
    let found = undo(&machine, &document).expect_err("nobody knows what was there");
    assert_eq!(found[0].code, Code::CannotUndo, "{}", found[0]);
}

#[test]
fn a_disk_that_is_half_erased_does_not_get_its_table_back() {
    let machine = machine(Some(&old()), 512);
    let document = document(
        "api: hoist/v1\ntxn: 5d1b6d5e-6f3a-4a7e-9d0c-00000000000c\nsections:\n  node: {id: n1}\n  \
         disks: {os: {match: {serial: S-sda}, wipe: any}}\n  erase: {disks: [os]}\n",
    );
    let decision = machine.decide(&document);
    let here = machine.machine();
    let mut held = pipeline::take(&decision, &here).expect("nobody has it");
    let fault = Arc::new(Fault::new(When::AtWrite(8), Then::Die));
    held.break_disk(&"os".parse().expect("an id"), &fault).expect("nobody has it");
    let given = Given::default();
    let cut = pipeline::apply_to(held, &document, &decision, &here, &given, Arc::new(Quiet));
    cut.expect_err("it is cut off");
    let found = undo(&machine, &document).expect_err("it is half gone");
    assert_eq!(found[0].code, Code::CannotUndo, "{}", found[0]);
}

/// Where the journal begins: behind the two places of the marker.
const JOURNAL: usize = 40 * 1024;

#[test]
fn a_journal_that_cannot_be_read_does_not_say_that_nothing_was_begun() {
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
fn what_is_kept_before_a_partition_that_begins_early_is_found() {
    let mut early = old();
    early.partitions[0].start = MIB as u64 / 2;
    let machine = machine(Some(&early), 512);
    let (before, document) = (machine.bytes("sda"), of(BESIDE));
    machine.apply(&document).expect("nothing is wrong");
    assert!(before != machine.bytes("sda"));
    assert_eq!(undo(&machine, &document).expect("it stayed"), 1);
    let after = machine.bytes("sda");
    assert!(before[..6 * MIB] == after[..6 * MIB] && before[SIZE - MIB..] == after[SIZE - MIB..]);
}

/// Two disks with something on them, and a run on both that ended before its first step. The journal
/// would have been on the first. With what was taken of them.
fn two_cut_off() -> (FileMachine, Document, Vec<Taken>) {
    let machine = machine(Some(&old()), 512);
    machine.add("sdb", 512, &machine.bytes("sda"));
    let document = document(
        "api: hoist/v1\ntxn: 5d1b6d5e-6f3a-4a7e-9d0c-00000000000e\nsections:\n  node: {id: n1}\n  \
         disks:\n    data: {match: {serial: S-sda}, wipe: any}\n    \
         os: {match: {serial: S-sdb}, wipe: any}\n  storage:\n  \
         - part: {id: a, on: data, size: rest}\n  - part: {id: b, on: os, size: rest}\n",
    );
    let (decision, here) = (machine.decide(&document), machine.machine());
    let mut held = pipeline::take(&decision, &here).expect("nobody has them");
    let fault = Arc::new(Fault::new(When::AtWrite(6), Then::Die));
    held.break_disk(&"data".parse().expect("an id"), &fault).expect("nobody has it");
    let (given, kept) = (Given::default(), Arc::new(Elsewhere::default()));
    let listener = Arc::clone(&kept);
    let cut = pipeline::apply_to(held, &document, &decision, &here, &given, listener);
    cut.expect_err("it is cut off");
    let kept = kept.0.lock().expect("nobody panicked").clone();
    assert_eq!(kept.len(), 2);
    (machine, document, kept)
}

#[test]
fn where_one_disk_is_busy_none_is_put_back_and_later_all_are() {
    let before = machine(Some(&old()), 512).bytes("sda");
    let (machine, document, _) = two_cut_off();
    let cut = ["sda", "sdb"].map(|name| machine.bytes(name));
    assert!(cut.iter().all(|bytes| *bytes != before));
    let here = machine.machine();
    let undoing = pipeline::plan_undo(&document, &here, &[]).expect("nothing was lost");
    let path = machine.disk("sdb");
    let identity = Identity::of(&path, 512).expect("it is there");
    let none = Ranges::default();
    let busy = GuardedIo::open(&path, &identity, &none, &none).expect("free");
    pipeline::undo(&undoing, &here).expect_err("somebody has it");
    assert!(cut == ["sda", "sdb"].map(|name| machine.bytes(name)), "nothing was written");
    drop(busy);
    assert_eq!(undo(&machine, &document).expect("nothing was lost"), 2);
    assert!(["sda", "sdb"].iter().all(|name| machine.bytes(name) == before), "every byte");
}

#[test]
fn putting_back_goes_on_where_it_ended_whichever_disk_came_first() {
    let before = machine(Some(&old()), 512).bytes("sda");
    for done in ["sda", "sdb"] {
        let (machine, document, kept) = two_cut_off();
        fs_err::write(machine.disk(done), &before).expect("written");
        assert_eq!(undo_with(&machine, &document, &kept).expect("nothing was lost"), 1);
        assert!(["sda", "sdb"].iter().all(|name| machine.bytes(name) == before), "after {done}");
    }
}

#[test]
fn a_disk_that_says_that_it_is_being_put_back_is_although_nobody_has_a_copy_of_the_others() {
    let before = machine(Some(&old()), 512).bytes("sda");
    for (done, other) in [("sda", "sdb"), ("sdb", "sda")] {
        let (machine, document, _) = two_cut_off();
        fs_err::write(machine.disk(done), &before).expect("written");
        let path = machine.disk(other);
        let identity = Identity::of(&path, 512).expect("it is there");
        let all = Ranges::from(0..SIZE as u64);
        let io = GuardedIo::open(&path, &identity, &all, &Ranges::default()).expect("free");
        let gap = Gap::before(None).expect("a gap");
        let marker = Marker::read(&io, &gap).expect("it is read").expect("there is one");
        Marker { undoing: true, ..marker }.write(&io, &gap).expect("it is written");
        drop(io);
        assert_eq!(undo(&machine, &document).expect("nothing was lost"), 1);
        assert!(machine.bytes(other) == before, "after {done}");
    }
}
