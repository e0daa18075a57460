//! Images of whole disks.

use std::process::Command;
use std::sync::Arc;

use hoist_device::apply::{self, ApplyOutcome, Listener};
use hoist_device::fault::{Fault, FaultEffect, FaultTrigger};
use hoist_device::images::{Progress, pack};
use hoist_device::{ReadIo, RunInputs, kernel, observe, signature};
use hoist_provision::diagnostic::{Class, Code, ProvisionDiagnostic};
use hoist_provision::document::{Document, Id};
use hoist_provision::facts::SignaturePlace;
use hoist_provision::partition_table::TableOnDisk;
use hoist_provision::{partition_table as table, plan};

use crate::machine::{FileMachine, Quiet, document};
use crate::old_system::add_old;
use hoist_testkit::loop_disk::{LoopDisk, run};

const MIB: usize = 1 << 20;
const IMAGE: usize = 14 * MIB;
const DISK: usize = 20 * MIB;

/// The content before the first partition of an image.
#[derive(Clone, Copy, PartialEq)]
enum AreaContent {
    Empty,
    Loader,
}

/// A disk with a table for this sector size, as other tools write it, and data in a partition.
fn image(sector: u32, area: AreaContent) -> Vec<u8> {
    let disk = LoopDisk::new(IMAGE as u64, sector);
    fs_err::write(disk.path(), vec![0; IMAGE]).expect("it is written");
    let first = MIB / sector as usize;
    let mut sgdisk = Command::new("sgdisk");
    sgdisk.args(["-n", &format!("1:{first}:+8M"), "-c", "1:system"]);
    run(sgdisk.arg(disk.path()));
    let mut bytes = disk.bytes();
    for (number, chunk) in (1..).zip(bytes[MIB..9 * MIB].chunks_mut(MIB)) {
        chunk[5000..400_000].fill(number);
    }
    bytes[..8].copy_from_slice(b"bootcode");
    if area == AreaContent::Loader {
        bytes[700_000..700_010].copy_from_slice(b"its loader");
    }
    bytes
}

struct Case {
    machine: FileMachine,
    image: Vec<u8>,
    sector: u32,
}

impl Case {
    fn new(image: Vec<u8>, sector: u32, chunked: bool) -> Self {
        let machine = FileMachine::new();
        machine.add("sda", sector, &vec![0xff; DISK]);
        machine.add("sdb", sector, &vec![0x5a; 2 * MIB]);
        let mut packed = image.clone();
        if chunked {
            packed.clear();
            let manifest = pack(&image[..], &mut packed, 1).expect("it is memory");
            let manifest = serde_json::to_vec(&manifest).expect("a plain value");
            fs_err::write(machine.path("manifest"), manifest).expect("written");
        }
        fs_err::write(machine.path("image"), packed).expect("written");
        Self { machine, image, sector }
    }

    fn document(&self, more: &str) -> Document {
        document(&self.text(more))
    }

    fn text(&self, more: &str) -> String {
        let manifest = self.machine.path("manifest");
        let list = format!(", manifest: 'file://{}'", manifest.display());
        let list = if manifest.exists() { list.as_str() } else { "" };
        format!(
            "api: hoist/v1\ntxn: 5d1b6d5e-6f3a-4a7e-9d0c-000000000009\nsections:\n  \
             node: {{id: n1}}\n  disks: {{os: {{match: {{serial: S-sda}}}}}}\n  \
             images: {{system: {{sources: ['file://{}'], target: os{list}{more}}}}}\n",
            self.machine.path("image").display()
        )
    }

    fn found(&self) -> TableOnDisk {
        table::read(&self.machine.bytes("sda")[..], self.sector).expect("it is memory")
    }

    /// Checks that the disk holds the image, with a table that fits the disk and with hoist's own
    /// metadata.
    fn assert_whole(&self, area: AreaContent) {
        let bytes = self.machine.bytes("sda");
        assert!(bytes[MIB..IMAGE] == self.image[MIB..], "all behind the first MiB");
        assert!(bytes[..512] == self.image[..512], "its first sector");
        let is_loader = bytes[32 * 1024..MIB] == self.image[32 * 1024..MIB];
        assert_eq!(is_loader, area == AreaContent::Loader);
        let TableOnDisk::Gpt { table, flaws } = self.found() else { panic!("a table") };
        assert_eq!(flaws, [], "sectors of {}", self.sector);
        assert_eq!(table.partitions[0].name, "system");
        assert!(self.machine.bytes("sdb").iter().all(|byte| *byte == 0x5a));
    }
}

#[test]
fn whole_disk_image_is_written_once_with_fitting_table() {
    for sector in [512, 4096] {
        let image = image(sector, AreaContent::Empty);
        for chunked in [false, true] {
            let case = Case::new(image.clone(), sector, chunked);
            let document = case.document(", table: gpt");
            let done = case.machine.apply(&document).expect("nothing is wrong");
            assert_eq!(done, ApplyOutcome::Done { resumed: false });
            case.assert_whole(AreaContent::Empty);
            let before = case.machine.bytes("sda");
            let again = case.machine.decide(&document);
            assert!(again.is_settled() && !again.to_string().contains("deleted"), "{again}");
            assert_eq!(case.machine.apply(&document).expect("settled"), ApplyOutcome::Nothing);
            assert!(before == case.machine.bytes("sda"));
        }
    }
}

#[test]
fn whole_disk_image_gives_a_sound_table_and_its_partitions() {
    for sector in [512, 4096] {
        let disk = LoopDisk::new(DISK as u64, sector);
        let name = disk.path().file_name().expect("a name").to_string_lossy().into_owned();
        let file = disk.file().with_file_name("image");
        fs_err::write(&file, image(sector, AreaContent::Empty)).expect("written");
        let document = document(&format!(
            "api: hoist/v1\ntxn: 5d1b6d5e-6f3a-4a7e-9d0c-{:012x}\nsections:\n  node: {{id: n1}}\n  \
             policy: {{allow_kernel_names: true}}\n  \
             disks: {{os: {{match: {{kernel_name: {name}}}}}}}\n  \
             images: {{system: {{sources: ['file://{}'], target: os, sector_size: {sector}}}}}\n",
            std::process::id() ^ sector,
            file.display()
        ));
        let machine = hoist_device::probe::Machine::here();
        let decide = || {
            plan::decide(&document, &observe::observe(&document, &machine, &RunInputs::default()))
        };
        let decision = decide().unwrap_or_else(|found| panic!("{found:#?}"));
        apply::apply(&document, &decision, &machine, &RunInputs::default(), None, Arc::new(Quiet))
            .expect("done");
        let checked = run(Command::new("sgdisk").arg("-v").arg(disk.path()));
        assert!(checked.contains("No problems found"), "{checked}");
        let known = kernel::partitions(disk.path()).expect("it is looked at");
        assert_eq!((known.len(), known[0].start), (1, MIB as u64));
        kernel::set_partitions(disk.path(), &[]).expect("nobody uses it");
    }
}

#[test]
fn image_over_the_metadata_area_replaces_it() {
    let case = Case::new(image(512, AreaContent::Loader), 512, true);
    let document = case.document("");
    case.machine.apply(&document).expect("nothing is wrong");
    case.assert_whole(AreaContent::Loader);
    let seen = observe::observe(&document, &case.machine.machine(), &RunInputs::default());
    let found = plan::decide(&document, &seen).expect_err("nothing says whose it is");
    assert_eq!(found[0].code, Code::ForeignData, "{}", found[0]);
}

/// The refusal, reported before anything is written.
fn refused(case: &Case, document: &Document) -> ProvisionDiagnostic {
    let before = case.machine.bytes("sda");
    let seen = observe::observe(document, &case.machine.machine(), &RunInputs::default());
    let mut found = plan::decide(document, &seen).expect_err("it is known before");
    assert!(before == case.machine.bytes("sda"));
    assert_eq!(found.len(), 1, "{found:#?}");
    found.remove(0)
}

#[test]
fn image_of_other_sectors_or_table_is_refused_before_any_write() {
    let gpt = image(512, AreaContent::Empty);
    for (sector, more, why) in [
        (4096, "", "sectors of 512 bytes"),
        (512, ", table: mbr", "the image has a GPT, not an MBR"),
    ] {
        let mut cases = vec![Case::new(gpt.clone(), sector, false)];
        cases.push(Case::new(gpt.clone(), sector, true));
        let packed = Case::new(gpt.clone(), sector, false);
        let zst = zstd::encode_all(&gpt[..], 1).expect("it is memory");
        fs_err::write(packed.machine.path("image"), zst).expect("written");
        cases.push(packed);
        for case in cases {
            let found = refused(&case, &case.document(more));
            assert!(
                found.code == Code::Firmware && found.diagnostic.message.contains(why),
                "{found}"
            );
        }
    }
    let case = Case::new(gpt, 4096, false);
    let found = refused(&case, &case.document(", compression: zstd"));
    assert_eq!(found.code, Code::Damaged, "{found}");
}

#[test]
fn qcow2_table_is_checked_before_any_write() {
    let gpt = image(512, AreaContent::Empty);
    for more in [&[][..], &["-c"]] {
        let case = Case::new(gpt.clone(), 4096, false);
        let raw = case.machine.path("image");
        let qcow2 = case.machine.path("qcow2");
        let mut convert = Command::new("qemu-img");
        convert.args(["convert", "-f", "raw", "-O", "qcow2"]).args(more);
        run(convert.arg(&raw).arg(&qcow2));
        fs_err::rename(&qcow2, &raw).expect("it is there");
        let found = refused(&case, &case.document(", format: qcow2"));
        assert!(found.diagnostic.message.contains("sectors of 512 bytes"), "{found}");
    }
}

#[test]
fn mbr_image_is_refused_on_uefi() {
    let mut mbr = vec![0; IMAGE];
    mbr[450] = 0x83;
    mbr[454..458].copy_from_slice(&2048_u32.to_le_bytes());
    mbr[458..462].copy_from_slice(&4096_u32.to_le_bytes());
    mbr[510..512].copy_from_slice(&[0x55, 0xaa]);
    let case = Case::new(mbr.clone(), 512, false);
    let decide = |case: &Case, document: &Document| {
        let seen = observe::observe(document, &case.machine.machine(), &RunInputs::default());
        plan::decide(document, &seen)
    };
    decide(&case, &case.document("")).expect("BIOS starts it");
    fs_err::create_dir_all(case.machine.path("sys/firmware/efi")).expect("made");
    let found = refused(&case, &case.document(""));
    assert!(
        found.code == Code::Firmware && found.diagnostic.message.contains("has an MBR"),
        "{found}"
    );
    // A table with an EFI system partition is bootable.
    mbr[450] = 0xef;
    fs_err::write(case.machine.path("image"), &mbr).expect("written");
    decide(&case, &case.document("")).expect("UEFI starts it");
}

/// Replaces the content of a file when its image is about to be written.
struct Swap(std::path::PathBuf, Vec<u8>);

impl Listener for Swap {
    fn begins(&self, step: &str) {
        if step.starts_with("write image") {
            fs_err::write(&self.0, &self.1).expect("written");
        }
    }

    fn progress(&self, _: &Id, _: Progress) {}
}

#[test]
fn unbootable_image_that_was_swapped_leaves_the_disk_marked() {
    let case = Case::new(image(4096, AreaContent::Empty), 4096, false);
    let document = case.document("");
    let plan = case.machine.decide(&document);
    let swap = Arc::new(Swap(case.machine.path("image"), image(512, AreaContent::Empty)));
    let machine = case.machine.machine();
    let applied = apply::apply(&document, &plan, &machine, &RunInputs::default(), None, swap);
    let error = applied.expect_err("it would not start");
    assert!(error.to_string().contains("sectors of 512 bytes"), "{error}");
    assert_eq!(error.code(), ("firmware", Class::Refused));
    let TableOnDisk::Gpt { table, .. } = case.found() else { panic!("a table") };
    assert!(table.txn_in_progress().is_some());
}

#[test]
fn image_leaves_no_old_data_behind_it_even_if_cut() {
    let case = Case::new(image(512, AreaContent::Empty), 512, true);
    let text = case.text("").replace("serial: S-sda}}", "serial: S-sda}, wipe: any}");
    let document = document(&text);
    let attempt = |fault: &Arc<Fault>| {
        add_old(&case.machine, "sda", 512, DISK, &[(1..2, false), (14..16, true)]);
        let decision = case.machine.decide(&document);
        let machine = case.machine.machine();
        let mut held = apply::take(&decision, &machine).expect("nobody has it");
        held.break_disk(&"os".parse().expect("an id"), fault).expect("nobody has it");
        apply::apply_to(
            held,
            &document,
            &decision,
            &machine,
            &RunInputs::default(),
            Arc::new(Quiet),
        )
    };
    let assert_clean = |at: u64| {
        case.assert_whole(AreaContent::Empty);
        let disk = ReadIo::open(&case.machine.disk("sda"), 512).expect("it is there");
        let old = (14 * MIB) as u64..(16 * MIB) as u64;
        let left = signature::probe(&disk, old, SignaturePlace::Disk).expect("it is read");
        assert!(left.is_empty(), "write {at}: {left:?}");
    };
    let whole = Arc::new(Fault::new(FaultTrigger::Never, FaultEffect::Die));
    attempt(&whole).expect("nothing is wrong");
    assert_clean(u64::MAX);
    let mut resumed = 0;
    for number in (0..whole.write_count().writes).step_by(2) {
        if attempt(&Arc::new(Fault::new(FaultTrigger::AtWrite(number), FaultEffect::Die))).is_ok() {
            continue;
        }
        let again = case.machine.apply(&document);
        let again = again.unwrap_or_else(|error| panic!("write {number}: {error}"));
        resumed += usize::from(again == ApplyOutcome::Done { resumed: true });
        assert_clean(number);
    }
    assert!(resumed > 3, "{resumed}");
}

#[test]
fn interrupted_image_never_looks_complete() {
    let case = Case::new(image(512, AreaContent::Empty), 512, true);
    let document = case.document("");
    let attempt = |fault: &Arc<Fault>| {
        let decision = case.machine.decide(&document);
        let machine = case.machine.machine();
        let mut held = apply::take(&decision, &machine).expect("nobody has it");
        held.break_disk(&"os".parse().expect("an id"), fault).expect("nobody has it");
        apply::apply_to(
            held,
            &document,
            &decision,
            &machine,
            &RunInputs::default(),
            Arc::new(Quiet),
        )
    };
    let whole = Arc::new(Fault::new(FaultTrigger::Never, FaultEffect::Die));
    attempt(&whole).expect("nothing is wrong");
    let writes = whole.write_count().writes;
    let mut resumed = 0;
    let mut marked = 0;
    for number in 0..writes {
        fs_err::write(case.machine.disk("sda"), vec![0xff; DISK]).expect("written");
        let power = FaultEffect::CutPower(number * 7919 + 1);
        let then = if number % 2 == 0 { FaultEffect::Die } else { power };
        let fault = Arc::new(Fault::new(FaultTrigger::AtWrite(number), then));
        // The number of progress records depends on time, and so does the number of writes.
        if attempt(&fault).is_ok() {
            assert!(!fault.has_broken());
            continue;
        }
        match case.found() {
            TableOnDisk::Nothing => assert!(number < 3),
            TableOnDisk::Gpt { table, .. } if table.txn_in_progress().is_some() => marked += 1,
            TableOnDisk::Gpt { .. } => {
                let bytes = case.machine.bytes("sda");
                assert!(bytes[MIB..IMAGE] == case.image[MIB..], "write {number} of {writes}");
            }
            other => panic!("write {number} of {writes}: {other:?}"),
        }
        let again = case.machine.apply(&document);
        let again = again.unwrap_or_else(|error| panic!("write {number} of {writes}: {error}"));
        resumed += usize::from(again == ApplyOutcome::Done { resumed: true });
        case.assert_whole(AreaContent::Empty);
    }
    assert!(resumed > 5 && marked > 5, "{resumed} and {marked} of {writes}");
}
