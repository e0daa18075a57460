//! Disks on which somebody was at work before: a run that failed, or a system with partitions where
//! the notes of the next run come to be.

use std::sync::Arc;

use hoist_provision::device::fault::{Fault, Then, When};
use hoist_provision::device::gap::{Gap, Marker};
use hoist_provision::diagnostic::{Class, Code};
use hoist_provision::document::Document;
use hoist_provision::pipeline::{self, Applied, ApplyError, Given};

use crate::machine::{FileMachine, Quiet, document};
use crate::server::{Answer, Server};

const MIB: usize = 1 << 20;
const DISK: usize = 12 * MIB;

struct Case {
    machine: FileMachine,
    image: Vec<u8>,
}

impl Case {
    fn new() -> Self {
        let machine = FileMachine::new();
        let image: Vec<u8> =
            (0..2 * MIB).map(|at| u8::try_from(at % 251).expect("small")).collect();
        fs_err::write(machine.path("image"), &image).expect("written");
        machine.add("sda", 512, &vec![0; DISK]);
        Self { machine, image }
    }

    fn document(&self, number: u8, more: &str) -> Document {
        let url = format!("file://{}", self.machine.path("image").display());
        Self::from(&url, number, more)
    }

    fn from(url: &str, number: u8, more: &str) -> Document {
        document(&format!(
            "api: hoist/v1\ntxn: 5d1b6d5e-6f3a-4a7e-9d0c-0000000001{number:02}\nsections:\n  \
             node: {{id: n1}}\n  disks: {{os: {{match: {{serial: S-sda}}, wipe: any}}}}\n  \
             storage:\n  - part: {{id: root, on: os, size: 4 MiB}}\n  images:\n    \
             root: {{sources: ['{url}'], target: root{more}}}\n"
        ))
    }

    fn apply_with(&self, document: &Document, fault: &Arc<Fault>) -> Result<Applied, ApplyError> {
        let (decision, machine) = (self.machine.decide(document), self.machine.machine());
        let mut held = pipeline::take(&decision, &machine).expect("nobody has it");
        held.break_disk(&"os".parse().expect("an id"), fault).expect("nobody has it");
        pipeline::apply_to(held, document, &decision, &machine, &Given::default(), Arc::new(Quiet))
    }

    /// From what a disk holds, at every write: it says in whose hands it is, and the next attempt
    /// comes to its end. Says how often that one went on from where the first had been.
    fn at_every_write(&self, before: &[u8]) -> usize {
        let document = self.document(2, "");
        let whole = Arc::new(Fault::new(When::Never, Then::Die));
        let restore = || fs_err::write(self.machine.disk("sda"), before).expect("written");
        restore();
        assert!(self.machine.decide(&document).to_string().contains("in partition 1"));
        let done = self.apply_with(&document, &whole).expect("nothing is wrong");
        assert_eq!(done, Applied::Done { resumed: false });
        assert!(self.machine.decide(&document).is_settled());
        let (mut resumed, mut is_known) = (0, false);
        for number in 0..whole.written().writes {
            restore();
            let fault = Arc::new(Fault::new(When::AtWrite(number), Then::Die));
            self.apply_with(&document, &fault).expect_err("it broke");
            let bytes = self.machine.bytes("sda");
            let marker =
                Marker::read(&bytes[..], &Gap::before(None).expect("room")).expect("memory");
            // From the write on with which it says who is at work on it.
            let is_ours = marker.is_some_and(|marker| marker.txn == document.txn);
            assert!(is_ours || !is_known, "write {number}");
            is_known = is_ours;
            let again = self.machine.apply(&document);
            let again = again.unwrap_or_else(|error| panic!("write {number}: {error}"));
            resumed += usize::from(again == Applied::Done { resumed: true });
            assert!(self.machine.decide(&document).is_settled(), "write {number}");
            let bytes = self.machine.bytes("sda");
            assert!(bytes[MIB..].starts_with(&self.image));
            assert!(!bytes[63 * 512..].starts_with(b"LUKS"), "write {number}: it was to be wiped");
        }
        resumed
    }
}

#[test]
fn a_disk_that_a_failed_run_has_left_is_begun_anew_and_keeps_its_notes() {
    let case = Case::new();
    let wrong = format!(", digest: 'sha256:{}'", "0".repeat(64));
    case.machine.apply(&case.document(1, &wrong)).expect_err("it is another one");
    let resumed = case.at_every_write(&case.machine.bytes("sda"));
    assert!(resumed > 3, "{resumed}");
}

#[test]
fn an_old_partition_where_the_notes_come_to_be_does_not_take_them_with_it() {
    let mut before = vec![0; DISK];
    // From sector 63 on, as it was usual, with something encrypted.
    let (start, sectors) = (63_u32, 20_000_u32);
    before[450] = 0x83;
    before[454..458].copy_from_slice(&start.to_le_bytes());
    before[458..462].copy_from_slice(&sectors.to_le_bytes());
    before[510..512].copy_from_slice(&[0x55, 0xaa]);
    before[63 * 512..63 * 512 + 8].copy_from_slice(b"LUKS\xba\xbe\0\x02");
    Case::new().at_every_write(&before);
}

#[test]
fn what_failed_says_what_it_is_and_who_has_to_do_something_about_it() {
    let case = Case::new();
    let zst = zstd::encode_all(&case.image[..], 1).expect("it is memory");
    let large = zstd::encode_all(&vec![7; 5 * MIB][..], 1).expect("it is memory");
    let good = [Answer::Good];
    // Looked at twice, and gone then.
    let gone = [Answer::Good, Answer::Good, Answer::Status(404)];
    let wrong = format!(", digest: 'sha256:{}'", "0".repeat(64));
    for (content, answers, more, code, class) in [
        (&zst, &good[..], wrong.as_str(), "wrong-content", Class::Input),
        (&zst, &good, ", size: 1 MiB", "wrong-content", Class::Input),
        (&zst[..zst.len() - 9].to_vec(), &good, "", "damaged", Class::Input),
        (&large, &good, "", "image-too-large", Class::Refused),
        (&zst, &gone, "", "unreachable", Class::Transient),
    ] {
        let server = Server::start(content, answers);
        let error = case.machine.apply(&Case::from(&server.url, 1, more)).expect_err(code);
        assert_eq!(error.code(), (code, class), "{error}");
        let told = error.evidence().join(" ");
        assert!(told.contains("127.0.0.1") && !told.contains("secret"), "{told}");
        assert!(error.hint().is_some());
    }
    let document = case.document(3, "");
    let fault = Arc::new(Fault::new(When::AfterBytes(3 * MIB as u64), Then::Fail));
    let error = case.apply_with(&document, &fault).expect_err("the disk fails");
    assert_eq!(error.code(), ("step-failed", Class::Device), "{error}");
}

#[test]
fn an_image_whose_end_nobody_tells_is_not_taken_on_trust() {
    let case = Case::new();
    let server = Server::start(&case.image, &[Answer::Endless(MIB)]);
    let decide = |more: &str| {
        let document = Case::from(&server.url, 1, more);
        let seen = pipeline::look(&document, &case.machine.machine(), &Given::default());
        pipeline::decide(&document, &seen).map(drop)
    };
    let before = case.machine.bytes("sda");
    let found = decide("").expect_err("it may be cut off");
    assert!(found[0].code == Code::Missing && found[0].what.contains("cut off"), "{}", found[0]);
    assert!(before == case.machine.bytes("sda"));
    decide(", size: 2 MiB").expect("its size tells");
    let error = case.machine.apply(&Case::from(&server.url, 1, ", size: 2 MiB"));
    assert_eq!(error.expect_err("it is cut off").code(), ("wrong-content", Class::Input));
}
