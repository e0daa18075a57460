use hoist_provision::document::Compression;
use proptest::prelude::*;

use super::*;
use crate::images::{FetchLimits, Stream, write_qcow2};
use crate::{GuardedIo, Identity, Ranges, scratch};

const CLUSTER: usize = 512;
/// Entries of a table of one cluster.
const ENTRIES: usize = CLUSTER / 8;
const SIZE: usize = 100 * CLUSTER;
const TARGET: std::ops::Range<u64> = 4096..4096 + 64 * 1024;

fn header() -> Vec<u8> {
    let mut bytes = vec![0; HEADER];
    bytes[..4].copy_from_slice(&MAGIC);
    bytes[7] = 3;
    bytes[23] = 9;
    bytes[24..32].copy_from_slice(&(SIZE as u64).to_be_bytes());
    bytes[39] = 2;
    bytes[40..48].copy_from_slice(&(CLUSTER as u64).to_be_bytes());
    bytes[100..104].copy_from_slice(&112_u32.to_be_bytes());
    bytes
}

/// An image in which every third cluster is allocated, plain or packed, behind its header and
/// tables.
fn image() -> (Vec<u8>, Vec<u8>) {
    let mut file = header();
    let mut raw = vec![0; SIZE];
    let mut data = Vec::new();
    let mut entries = vec![0_u64; 2 * ENTRIES];
    for number in (0..SIZE / CLUSTER).step_by(3) {
        let into = &mut raw[number * CLUSTER..(number + 1) * CLUSTER];
        into.fill(u8::try_from(number).expect("few"));
        into[7] = 0xaa;
        let at = 4 * CLUSTER + data.len();
        entries[number] = if number % 2 == 0 {
            data.extend(&*into);
            at as u64 | COPIED
        } else {
            let mut packer = flate2::Compress::new(flate2::Compression::best(), false);
            let mut packed = vec![0; CLUSTER];
            packer.compress(into, &mut packed, flate2::FlushCompress::Finish).expect("memory");
            data.extend(packed);
            at as u64 | PACKED
        };
    }
    file.resize(CLUSTER, 0);
    let tables = [(2 * CLUSTER as u64) | COPIED, (3 * CLUSTER as u64) | COPIED];
    file.extend(tables.iter().flat_map(|entry| entry.to_be_bytes()));
    file.resize(2 * CLUSTER, 0);
    file.extend(entries.iter().flat_map(|entry| entry.to_be_bytes()));
    file.extend(data);
    (file, raw)
}

fn fault(change: impl Fn(&mut [u8])) -> Qcow2Error {
    let mut bytes = header();
    change(&mut bytes);
    Header::parse(&bytes).expect_err("it is refused")
}

/// Writes an image, and returns the contents of the disk.
fn written(file: &[u8]) -> (Result<(), ImageError>, Vec<u8>) {
    let from = scratch::file();
    let to = scratch::file();
    fs_err::write(from.path(), file).expect("it is written");
    fs_err::write(to.path(), vec![0xff; 128 * 1024]).expect("it is written");
    let meant = Identity::of(to.path(), 512).expect("it is there");
    let io = GuardedIo::open(to.path(), &meant, &Ranges::from(TARGET), &Ranges::default());
    let limits = FetchLimits { attempts: 1, ..FetchLimits::default() };
    let origin =
        Origin { limits, ..Origin::new(vec![format!("file://{}", from.path().display())]) };
    let compression = Compression::Detect;
    let image =
        Stream { origin: &origin, compression, size: None, digest: None, unpacked_digest: None };
    let outcome = write_qcow2(&image, &io.expect("nobody has it"), TARGET, &());
    (outcome.map(drop), fs_err::read(to.path()).expect("it is there"))
}

#[test]
fn external_or_unknown_qcow2_features_are_refused_by_name() {
    assert!(Header::parse(&header()).is_ok());
    assert_eq!(fault(|bytes| bytes[0] = b'q'), Qcow2Error::Magic);
    assert_eq!(fault(|bytes| bytes[7] = 4), Qcow2Error::Version(4));
    assert_eq!(fault(|bytes| bytes[15] = 112), Qcow2Error::BackingFile);
    assert_eq!(fault(|bytes| bytes[35] = 2), Qcow2Error::Encrypted);
    assert_eq!(fault(|bytes| bytes[79] = 1), Qcow2Error::Dirty);
    assert_eq!(fault(|bytes| bytes[79] = 2), Qcow2Error::Corrupt);
    assert_eq!(fault(|bytes| bytes[79] = 4), Qcow2Error::ExternalData);
    assert_eq!(fault(|bytes| bytes[79] = 16), Qcow2Error::ExtendedL2);
    assert_eq!(fault(|bytes| bytes[72] = 128), Qcow2Error::Feature(63));
    assert_eq!(fault(|bytes| bytes[104] = 2), Qcow2Error::Packing(2));
    assert_eq!(fault(|bytes| bytes[23] = 8), Qcow2Error::Clusters(8));
    assert_eq!(fault(|bytes| bytes[23] = 22), Qcow2Error::Clusters(22));
    assert_eq!(Header::parse(b""), Err(Qcow2Error::Magic));
}

#[test]
fn qcow2_tables_have_bounded_memory() {
    let entries = MAX_L1 / 8;
    let with = |size: u64| {
        let mut bytes = header();
        bytes[24..32].copy_from_slice(&size.to_be_bytes());
        bytes[36..40].copy_from_slice(&u32::MAX.to_be_bytes());
        Header::parse(&bytes)
    };
    let span = (CLUSTER * ENTRIES) as u64;
    assert!(with(entries * span).is_ok());
    assert_eq!(with(entries * span + 1), Err(Qcow2Error::Tables));
    assert_eq!(with(u64::MAX), Err(Qcow2Error::Tables));
    let error = fault(|bytes| bytes[39] = 1);
    assert_eq!(error, Qcow2Error::Damaged("the L1 table is too short for the size of the disk"));
}

#[test]
fn qcow2_image_becomes_its_virtual_disk() {
    let (file, raw) = image();
    let (outcome, disk) = written(&file);
    outcome.expect("it is whole");
    let start = usize::try_from(TARGET.start).expect("small");
    assert!(disk[start..start + SIZE] == raw);
    let end = usize::try_from(TARGET.end).expect("small");
    assert!(disk[..start].iter().chain(&disk[end..]).all(|byte| *byte == 0xff));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]
    #[test]
    fn arbitrary_image_is_written_within_its_target_or_refused(
        changes in prop::collection::vec((0..4 * CLUSTER, any::<u8>()), 0..12),
        cut in 0..40 * CLUSTER,
    ) {
        let (mut file, _) = image();
        for (at, byte) in changes {
            file[at] = byte;
        }
        file.truncate(file.len() - cut.saturating_sub(20 * CLUSTER).min(file.len()));
        let (_, disk) = written(&file);
        let start = usize::try_from(TARGET.start)?;
        let end = usize::try_from(TARGET.end)?;
        prop_assert!(disk[..start].iter().chain(&disk[end..]).all(|byte| *byte == 0xff));
    }

    #[test]
    fn any_header_is_parsed_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let mut bytes = bytes;
        let _ = Header::parse(&bytes);
        let length = bytes.len().min(8);
        bytes[..length].copy_from_slice(&b"QFI\xfb\0\0\0\x03"[..length]);
        if let Ok(header) = Header::parse(&bytes) {
            for entry in [0, 1, u64::MAX, PACKED, COPIED | 512, PACKED | (PACKED - 1)] {
                let _ = (header.entry(entry, 1 << 40), header.second(entry, 1 << 40));
            }
        }
    }
}
