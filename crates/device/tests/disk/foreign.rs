//! Contents that hoist only names, and data that it does not know: a disk is empty only if the
//! areas that a wipe clears are blank.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use hoist_device::apply::{self, ApplyError, ApplyOutcome};
use hoist_device::fault::{Fault, FaultEffect, FaultTrigger};
use hoist_device::signature::{find, wipe};
use hoist_device::{GuardedIo, Identity, Ranges, ReadIo, RunInputs, observe};
use hoist_provision::document::Document;
use hoist_provision::facts::{Signature, SignatureKind as Kind, SignaturePlace};
use hoist_provision::plan;
use hoist_testkit::loop_disk::run;
use proptest::prelude::*;

use crate::machine::{FileMachine, Quiet, document};
use crate::signature::{Bench, MIB, blkid, is_word, signatures};

/// A superblock with these fields, by offset.
fn block(length: usize, fields: &[(usize, &[u8])]) -> Vec<u8> {
    let mut block = vec![0; length];
    for (at, bytes) in fields {
        block[*at..*at + bytes.len()].copy_from_slice(bytes);
    }
    block
}

/// A CRC with reflected bits, without the final inversion.
fn crc(polynomial: u32, seed: u32, bytes: &[u8]) -> u32 {
    bytes.iter().fold(seed, |state, byte| {
        (0..8).fold(state ^ u32::from(*byte), |state, _| {
            if state & 1 == 1 { state >> 1 ^ polynomial } else { state >> 1 }
        })
    })
}

const CRC32: u32 = 0xedb8_8320;
const CRC32C: u32 = 0x82f6_3b78;

fn jfs() -> Vec<u8> {
    let size = 4096_u32.to_le_bytes();
    let logs = [12, 0, 3, 0];
    block(
        512,
        &[
            (0, b"JFS1"),
            (4, &[1]),
            (16, &size),
            (20, &logs),
            (24, &512_u32.to_le_bytes()),
            (28, &[9]),
            (136, &[7; 16]),
            (152, b"jlabel"),
        ],
    )
}

fn nilfs2(size: u64) -> Vec<u8> {
    let mut block = block(
        512,
        &[
            (0, &[2]),
            (6, &[0x34, 0x34]),
            (8, &280_u16.to_le_bytes()),
            (12, &0x1234_5678_u32.to_le_bytes()),
            (20, &[2]),
            (24, &8_u64.to_le_bytes()),
            (32, &size.to_le_bytes()),
            (48, &2048_u32.to_le_bytes()),
            (152, &[5; 16]),
            (168, b"nlabel"),
        ],
    );
    let sum = crc(CRC32, 0x1234_5678, &block[..280]);
    block[16..20].copy_from_slice(&sum.to_le_bytes());
    block
}

fn reiserfs(magic: &[u8]) -> Vec<u8> {
    let fields: [(usize, &[u8]); 5] =
        [(12, &[18]), (44, &4096_u16.to_le_bytes()), (52, magic), (84, &[3; 16]), (100, b"rlabel")];
    block(512, &fields)
}

fn stratis() -> Vec<u8> {
    let mut block = block(
        512,
        &[
            (4, b"!Stra0tis\x86\xff\x02^Arh"),
            (20, &(64 * MIB / 512).to_le_bytes()),
            (32, b"0123456789abcdef0123456789abcdef"),
            (64, b"fedcba9876543210fedcba9876543210"),
        ],
    );
    let sum = !crc(CRC32C, u32::MAX, &block[4..512]);
    block[..4].copy_from_slice(&sum.to_le_bytes());
    block
}

/// Both descriptors and the anchor of UDF, with sectors of 2048 bytes.
fn udf() -> Pieces {
    let descriptor = |id: &[u8]| block(2048, &[(1, id), (6, &[1])]);
    let anchor = block(512, &[(0, &[2, 0, 2, 0]), (12, &256_u32.to_le_bytes())]);
    vec![
        (0x8000, descriptor(b"BEA01")),
        (0x8800, descriptor(b"NSR03")),
        (0x9000, descriptor(b"TEA01")),
        (256 * 2048, anchor),
    ]
}

fn ufs(magic: [u8; 4]) -> Vec<u8> {
    block(8192, &[(48, &8192_u32.to_le_bytes()), (1372, &magic)])
}

/// Bytes by offset.
type Pieces = Vec<(u64, Vec<u8>)>;

/// Contents by kind. `blkid` must name them as well, unless it is older than the content.
fn contents() -> Vec<(Kind, Pieces, bool)> {
    let size = 64 * MIB;
    let bcachefs = [
        0xc6, 0x85, 0x73, 0xf6, 0x66, 0xce, 0x90, 0xa9, 0xd9, 0x6a, 0x60, 0xcf, 0x80, 0x3d, 0xf7,
        0xef,
    ];
    let apfs = block(4096, &[(8, &[1]), (24, &[1, 0, 0, 0x80]), (32, b"NXSB"), (37, &[0x10])]);
    let asm = block(512, &[(32, b"ORCLDISK"), (40, b"DATA1")]);
    vec![
        (Kind::Jfs, vec![(0x8000, jfs())], true),
        (Kind::Nilfs2, vec![(1024, nilfs2(size))], true),
        (Kind::Reiserfs, vec![(0x1_0000, reiserfs(b"ReIsEr2Fs"))], true),
        (Kind::Reiserfs, vec![(0x1_0000, reiserfs(b"ReIsEr3Fs"))], true),
        (Kind::Reiserfs, vec![(0x1_0000, block(512, &[(0, b"ReIsEr4"), (20, &[9; 16])]))], true),
        (Kind::Udf, udf(), true),
        (Kind::Ufs, vec![(0x2000, ufs(0x0001_1954_u32.to_le_bytes()))], true),
        (Kind::Ufs, vec![(0x1_0000, ufs(0x1954_0119_u32.to_le_bytes()))], true),
        (Kind::Apfs, vec![(0, apfs)], false),
        (Kind::Bcachefs, vec![(4096, block(512, &[(24, &bcachefs), (56, &[4; 16])]))], false),
        (Kind::Bitlocker, vec![(0, block(512, &[(0, b"\xeb\x58\x90-FVE-FS-")]))], false),
        (Kind::Lvm1, vec![(0, block(512, &[(0, b"HM\x01\0"), (44, &[b'a'; 32])]))], true),
        (Kind::Oracleasm, vec![(0, asm)], true),
        (Kind::Stratis, vec![(512, stratis())], true),
        (Kind::Vdo, vec![(0, block(512, &[(0, b"dmvdo001"), (40, &[6; 16])]))], true),
    ]
}

#[test]
fn contents_of_other_systems_are_named_as_blkid_does() {
    let bench = Bench::new();
    for (kind, content, is_in_blkid) in contents() {
        let pieces: Vec<(u64, &[u8])> = content.iter().map(|(at, b)| (*at, &b[..])).collect();
        let path = bench.plant(64 * MIB, &pieces);
        let found = signatures(&path);
        let [signature] = &found[..] else { panic!("{kind}: {found:#?}") };
        assert_eq!((signature.kind, signature.place), (kind, SignaturePlace::Disk));
        if is_in_blkid {
            let [said, label, _] = blkid(&path);
            let said = said.unwrap_or_else(|| panic!("{kind}: blkid does not know it"));
            assert!(is_word(kind, &said), "{kind}: blkid says {said}");
            assert!(signature.label.is_none() || signature.label == label, "{kind}: {label:?}");
        }
    }
    for version in ["-1", "-2", "-3"] {
        let path = bench.make(8, "mkfs.minix", &[version, "FILE"]);
        let found = signatures(&path);
        assert_eq!(found.iter().map(|one| one.kind).collect::<Vec<_>>(), [Kind::Minix]);
        assert_eq!(blkid(&path)[0].as_deref(), Some("minix"));
    }
}

fn kinds(path: &Path) -> Vec<(Kind, SignaturePlace)> {
    signatures(path).iter().map(|one| (one.kind, one.place)).collect()
}

#[test]
fn unknown_data_is_found_on_disks_and_in_partitions() {
    let bench = Bench::new();
    let path = bench.plant(16 * MIB, &[(3 * MIB + 77, b"data of a program")]);
    let found = signatures(&path);
    assert_eq!(kinds(&path), [(Kind::Unknown, SignaturePlace::Disk)]);
    assert_eq!(found[0].offset, 3 * MIB);
    // The label of an MBR, without partitions and boot code.
    let path = bench.plant(16 * MIB, &[(440, b"\x01\x02\x03\x04"), (510, b"\x55\xaa")]);
    assert_eq!(kinds(&path), [(Kind::Mbr, SignaturePlace::Disk)]);

    let path = bench.plant(32 * MIB, &[(9 * MIB, b"core.img"), (17 * MIB, b"a database")]);
    let mut sgdisk = std::process::Command::new("sgdisk");
    sgdisk.args(["-n", "1:1M:+8M", "-n", "2:9M:+1M", "-t", "2:ef02", "-n", "3:16M:+8M"]);
    run(sgdisk.arg(&path));
    // The first is blank, and the second is for boot code.
    let expected =
        [(Kind::Unknown, SignaturePlace::Partition(3)), (Kind::Gpt, SignaturePlace::Disk)];
    assert_eq!(kinds(&path), expected);
}

/// Bytes at both ends of a disk that a wipe clears.
const PROBED: u64 = 4 * MIB;
const SIZE: u64 = 12 * MIB;

struct Disk(tempfile::NamedTempFile);

impl Disk {
    fn new(bytes: &[u8]) -> Self {
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        fs_err::write(file.path(), bytes).expect("it is written");
        Self(file)
    }

    fn found(&self) -> Vec<Signature> {
        let io = ReadIo::open(self.0.path(), 512).expect("it is there");
        find(&io, 512).expect("it is read")
    }

    fn wipe(&self, range: Range<u64>) {
        let meant = Identity::of(self.0.path(), 512).expect("it is there");
        let all = Ranges::from(0..SIZE);
        let io = GuardedIo::open(self.0.path(), &meant, &all, &Ranges::default());
        wipe(&io.expect("it is free"), range).expect("it is allowed");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn disk_is_empty_only_if_its_probed_areas_are_blank(
        ones in prop::collection::vec(0..SIZE / 4096, 0..20),
        data in prop::collection::vec((0..SIZE - 16, any::<[u8; 16]>()), 0..3),
    ) {
        let mut bytes = vec![0; usize::try_from(SIZE).expect("it is small")];
        let at = |at: u64| usize::try_from(at).expect("it is small");
        for block in ones {
            bytes[at(block * 4096)..][..4096].fill(0xff);
        }
        for (place, data) in &data {
            bytes[at(*place)..][..16].copy_from_slice(data);
        }
        let is_blank = |unit: &[u8]| unit.iter().all(|b| *b == 0) || unit.iter().all(|b| *b == 0xff);
        let mut probed = bytes[..at(PROBED)].chunks(512).chain(bytes[at(SIZE - PROBED)..].chunks(512));
        let is_empty = probed.all(is_blank);
        let disk = Disk::new(&bytes);
        let found = disk.found();
        prop_assert_eq!(found.is_empty(), is_empty, "{:?}", found);
        // Nothing that a wipe leaves counts as data.
        disk.wipe(0..SIZE);
        prop_assert_eq!(disk.found(), []);
    }
}

/// A disk, the kinds that its document names, and the sections of the document.
struct Case {
    bytes: Vec<u8>,
    wipe: &'static str,
    sections: &'static str,
}

impl Case {
    fn document(&self) -> Document {
        document(&format!(
            "api: hoist/v1\ntxn: 5d1b6d5e-6f3a-4a7e-9d0c-00000000000a\nsections:\n  node: {{id: n1}}\n  \
             disks: {{os: {{match: {{serial: S-sda}}, wipe: [{}]}}}}\n  {}\n",
            self.wipe, self.sections
        ))
    }

    fn run(&self, machine: &FileMachine, fault: &Arc<Fault>) -> Result<ApplyOutcome, ApplyError> {
        let document = self.document();
        let decision = machine.decide(&document);
        let here = machine.machine();
        let mut held = apply::take(&decision, &here).expect("nobody has it");
        held.break_disk(&"os".parse().expect("an id"), fault).expect("nobody has it");
        let given = RunInputs::default();
        apply::apply_to(held, &document, &decision, &here, &given, Arc::new(Quiet))
    }

    /// Cuts the run at every write. Returns the number of cuts.
    fn cut_everywhere(&self) -> usize {
        let machine = FileMachine::new();
        let renew = || machine.add("sda", 512, &self.bytes);
        renew();
        let whole = Arc::new(Fault::new(FaultTrigger::Never, FaultEffect::Die));
        self.run(&machine, &whole).expect("nothing is wrong");
        let mut cuts = 0;
        for number in 0..whole.write_count().writes {
            for then in [FaultEffect::CutPower(number * 7919 + 1), FaultEffect::Die] {
                renew();
                let fault = Arc::new(Fault::new(FaultTrigger::AtWrite(number), then));
                cuts += usize::from(self.run(&machine, &fault).is_err());
                let document = self.document();
                let seen = observe::observe(&document, &machine.machine(), &RunInputs::default());
                let again = plan::decide(&document, &seen);
                assert!(again.is_ok(), "{}, write {number}, {then:?}: {again:#?}", self.wipe);
                machine.apply(&document).expect("it is continued");
            }
        }
        cuts
    }
}

#[test]
fn run_cut_anywhere_is_continued_without_wipe() {
    let size = usize::try_from(SIZE).expect("it is small");
    let install = "storage: [part: {id: a, on: os, size: rest}]";
    let erase = "erase: {disks: [os], method: overwrite}";
    let mut ext = vec![0; size];
    ext[1024..1088].copy_from_slice(&block(64, &[(4, &[1]), (0x38, b"\x53\xef")]));
    let mut md = vec![0; size];
    md[4096..4104].copy_from_slice(&[0xfc, 0x4e, 0x2b, 0xa9, 1, 0, 0, 0]);
    for bytes in [&mut ext, &mut md] {
        bytes[20_000..6_000_000].fill(0x77);
    }
    let cases = [(vec![0xff; size], "", install), (md, "md", install), (ext, "ext", erase)];
    for (bytes, wipe, sections) in cases {
        let cuts = Case { bytes, wipe, sections }.cut_everywhere();
        assert!(cuts > 10, "{cuts}");
    }
}
