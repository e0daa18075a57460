//! Disks with remains of earlier work: a failed run, or a system with partitions over the metadata
//! area of the next run.

use std::sync::Arc;

use hoist_device::apply::{self, ApplyError, ApplyOutcome};
use hoist_device::fault::{Fault, FaultEffect, FaultTrigger};
use hoist_device::metadata_area::read_marker;
use hoist_device::{RunInputs, observe};
use hoist_provision::diagnostic::{Class, Code};
use hoist_provision::document::Document;
use hoist_provision::metadata_area::MetadataArea;
use hoist_provision::plan;

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

    fn apply_with(
        &self,
        document: &Document,
        fault: &Arc<Fault>,
    ) -> Result<ApplyOutcome, ApplyError> {
        let decision = self.machine.decide(document);
        let machine = self.machine.machine();
        let mut held = apply::take(&decision, &machine).expect("nobody has it");
        held.break_disk(&"os".parse().expect("an id"), fault).expect("nobody has it");
        apply::apply_to(held, document, &decision, &machine, &RunInputs::default(), Arc::new(Quiet))
    }

    /// Cuts a run on this disk at every write: the disk must name its transaction, and the next
    /// attempt must finish. Returns how often the next attempt continued the first one.
    fn at_every_write(&self, before: &[u8]) -> usize {
        let document = self.document(2, "");
        let whole = Arc::new(Fault::new(FaultTrigger::Never, FaultEffect::Die));
        let restore = || fs_err::write(self.machine.disk("sda"), before).expect("written");
        restore();
        assert!(self.machine.decide(&document).to_string().contains("in partition 1"));
        let done = self.apply_with(&document, &whole).expect("nothing is wrong");
        assert_eq!(done, ApplyOutcome::Done { resumed: false });
        assert!(self.machine.decide(&document).is_settled());
        let mut resumed = 0;
        let mut is_known = false;
        for number in 0..whole.write_count().writes {
            restore();
            let fault = Arc::new(Fault::new(FaultTrigger::AtWrite(number), FaultEffect::Die));
            self.apply_with(&document, &fault).expect_err("it broke");
            let bytes = self.machine.bytes("sda");
            let marker = read_marker(&bytes[..], &MetadataArea::before(None).expect("room"))
                .expect("memory");
            // From this write on, the marker on the disk names the run.
            let is_ours = marker.is_some_and(|marker| marker.txn == document.txn);
            assert!(is_ours || !is_known, "write {number}");
            is_known = is_ours;
            let again = self.machine.apply(&document);
            let again = again.unwrap_or_else(|error| panic!("write {number}: {error}"));
            resumed += usize::from(again == ApplyOutcome::Done { resumed: true });
            assert!(self.machine.decide(&document).is_settled(), "write {number}");
            let bytes = self.machine.bytes("sda");
            assert!(bytes[MIB..].starts_with(&self.image));
            assert!(!bytes[63 * 512..].starts_with(b"LUKS"), "write {number}: it was to be wiped");
        }
        resumed
    }
}

#[test]
fn disk_of_a_failed_run_is_redone_and_keeps_its_journal() {
    let case = Case::new();
    let wrong = format!(", digest: 'sha256:{}'", "0".repeat(64));
    case.machine.apply(&case.document(1, &wrong)).expect_err("it is another one");
    let resumed = case.at_every_write(&case.machine.bytes("sda"));
    assert!(resumed > 3, "{resumed}");
}

#[test]
fn old_partition_over_the_metadata_area_keeps_the_journal() {
    let mut before = vec![0; DISK];
    // Starts at sector 63, as old tools did, with encrypted contents.
    let start = 63_u32;
    let sectors = 20_000_u32;
    before[450] = 0x83;
    before[454..458].copy_from_slice(&start.to_le_bytes());
    before[458..462].copy_from_slice(&sectors.to_le_bytes());
    before[510..512].copy_from_slice(&[0x55, 0xaa]);
    before[63 * 512..63 * 512 + 8].copy_from_slice(b"LUKS\xba\xbe\0\x02");
    Case::new().at_every_write(&before);
}

#[test]
fn failure_names_its_kind_and_who_must_act() {
    let case = Case::new();
    let zst = zstd::encode_all(&case.image[..], 1).expect("it is memory");
    let large = zstd::encode_all(&vec![7; 5 * MIB][..], 1).expect("it is memory");
    let good = [Answer::Good];
    // The source passes two probes and is gone afterwards.
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
    let fault = Arc::new(Fault::new(FaultTrigger::AfterBytes(3 * MIB as u64), FaultEffect::Fail));
    let error = case.apply_with(&document, &fault).expect_err("the disk fails");
    assert_eq!(error.code(), ("step-failed", Class::Device), "{error}");
}

#[test]
fn image_without_declared_size_is_not_trusted() {
    let case = Case::new();
    let server = Server::start(&case.image, &[Answer::Endless(MIB)]);
    let decide = |more: &str| {
        let document = Case::from(&server.url, 1, more);
        let seen = observe::observe(&document, &case.machine.machine(), &RunInputs::default());
        plan::decide(&document, &seen).map(drop)
    };
    let before = case.machine.bytes("sda");
    let found = decide("").expect_err("a truncated image would go unnoticed");
    assert!(
        found[0].code == Code::Missing && found[0].diagnostic.message.contains("truncated"),
        "{}",
        found[0]
    );
    assert!(before == case.machine.bytes("sda"));
    decide(", size: 2 MiB").expect("its size tells");
    let error = case.machine.apply(&Case::from(&server.url, 1, ", size: 2 MiB"));
    assert_eq!(error.expect_err("it is truncated").code(), ("wrong-content", Class::Input));
}
