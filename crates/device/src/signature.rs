//! Detection of disk contents by magic bytes: file systems, members of arrays and volume groups,
//! partition tables, and hoist's own metadata. Data without known magic bytes is unknown data; a
//! disk is empty only if the areas that a wipe clears are blank.
//!
//! Detection trusts no field and never panics. Wiping does not depend on detection, because damaged
//! structures must be wiped, too.

mod magic;
mod stack;
mod unknown;

use std::io;
use std::ops::Range;

use hoist_provision::facts::{Ours, PartitionFacts, Signature, SignatureKind, SignaturePlace};
use hoist_provision::metadata_area::{Marker, MetadataArea};
use hoist_provision::partition_table::{self as table, IN_PROGRESS, TableOnDisk};
use hoist_provision::read_at::ReadAt;
use hoist_provision::steps::disks::{FAR, FAR_LENGTH, WIPED};

use super::guard::WriteError;
use crate::GuardedIo;
use crate::metadata_area::read_marker;

/// Partition types that identify contents without other magic bytes.
const TELLING_TYPES: [(u128, SignatureKind); 3] = [
    (0xaa31_e02a_400f_11db_9590_000c_2911_d1b8, SignatureKind::Vmfs),
    (0x37af_fc90_ef7d_4e96_91c3_2d7a_e055_b174, SignatureKind::Gpfs),
    (IN_PROGRESS.as_u128(), SignatureKind::Hoist),
];

/// Partition types whose contents belong to the partition table: boot code for BIOS and `PReP`, and
/// space that Windows reserves.
const TYPES_OF_TABLE: [u128; 3] = [
    0x2168_6148_6449_6e6f_744e_6565_6445_4649,
    0x9e1a_2d38_c612_4316_aa26_8b49_521e_5a8b,
    0xe3c9_e316_0b5c_4db8_817d_f92d_f002_15ae,
];

/// All signatures on a disk and in its partitions.
pub fn find(disk: &impl ReadAt, sector: u32) -> io::Result<Vec<Signature>> {
    let found = table::read(disk, sector)?;
    // A table made for another sector size still describes the contents.
    let inside = match other_sector(&found) {
        Some(sector) => table::read(disk, sector)?.facts(),
        None => found.facts(),
    };
    let partitions = inside.map(|facts| facts.partitions).unwrap_or_default();
    let mut all: Vec<Signature> = Vec::new();
    for partition in &partitions {
        let place = SignaturePlace::Partition(partition.number);
        let range = partition.start..partition.start.saturating_add(partition.len);
        let inside = probe(disk, range.start..range.end.min(disk.size()), place)?;
        // A signature at the end of a partition may also appear at the end of an enclosing one.
        all.retain(|have| !inside.iter().any(|found| is_same(have, found)));
        let of_type = by_type(partition, &inside);
        let is_known = !inside.is_empty() || of_type.is_some() || is_of_table(partition);
        all.extend(of_type);
        all.extend(inside);
        if !is_known {
            all.extend(unknown::find(disk, range, place));
        }
    }
    all.extend(of_cut_table(disk, &found, sector)?);
    all.extend(of_table(&found, disk.size(), sector));
    all.extend(of_hoist(disk)?);
    for signature in probe(disk, 0..disk.size(), SignaturePlace::Disk)? {
        // A signature at the end of the last partition may also appear at the end of the disk.
        if !all.iter().any(|have| is_same(have, &signature)) {
            all.push(signature);
        }
    }
    // Space outside of partitions belongs to the table.
    if all.is_empty() {
        all.extend(unknown::find(disk, 0..disk.size(), SignaturePlace::Disk));
    }
    Ok(all)
}

fn is_of_table(partition: &PartitionFacts) -> bool {
    partition.type_guid.is_some_and(|guid| TYPES_OF_TABLE.contains(&guid.as_u128()))
}

/// The signature of an in-progress table that a power cut left incomplete.
fn of_cut_table(
    disk: &impl ReadAt,
    found: &TableOnDisk,
    sector: u32,
) -> io::Result<Option<Signature>> {
    if !matches!(found, TableOnDisk::Nothing | TableOnDisk::Damaged(_)) {
        return Ok(None);
    }
    let txn = table::txn_of_entries(disk, sector)?;
    let offset = 2 * u64::from(sector);
    Ok(txn.map(|txn| bare(SignatureKind::Hoist, offset, SignaturePlace::Disk, Some(txn))))
}

/// A signature without an identifier.
fn bare(
    kind: SignatureKind,
    offset: u64,
    place: SignaturePlace,
    label: Option<String>,
) -> Signature {
    Signature { kind, offset, place, label, uuid: None, members: None, ours: None }
}

fn other_sector(found: &TableOnDisk) -> Option<u32> {
    let TableOnDisk::Damaged(flaws) = found else { return None };
    flaws.iter().find_map(|flaw| match flaw {
        table::Flaw::OtherSector(sector) => Some(*sector),
        _ => None,
    })
}

fn is_same(one: &Signature, other: &Signature) -> bool {
    (one.kind, one.offset) == (other.kind, other.offset)
}

/// The signatures in a range, such as a partition or a whole disk. Partition tables are not
/// included.
pub fn probe(
    disk: &impl ReadAt,
    range: Range<u64>,
    place: SignaturePlace,
) -> io::Result<Vec<Signature>> {
    let region = Region { disk, range };
    let mut found = magic::find(&region)?;
    found.extend(stack::find(&region)?);
    let signature = |SignatureMatch { kind, at, label, uuid, members }: SignatureMatch| Signature {
        kind,
        offset: region.range.start + at,
        place,
        label,
        uuid,
        members,
        ours: None,
    };
    Ok(found.into_iter().map(signature).collect())
}

/// Wipes all signatures in a range. Nothing is read first: other tools may read a superblock that
/// hoist does not know.
pub fn wipe(io: &GuardedIo, range: Range<u64>) -> Result<(), WriteError> {
    wipe_from(io, range, 0)
}

/// As [`wipe`], but bytes before `from` stay: an old partition may overlap the metadata area of the
/// run that wipes it.
pub fn wipe_from(io: &GuardedIo, range: Range<u64>, from: u64) -> Result<(), WriteError> {
    let Range { start, end } = range;
    io.check(start..end)?;
    let zero = |range: Range<u64>| match range.start.max(from)..range.end {
        rest if rest.is_empty() => Ok(()),
        rest => io.zero(rest),
    };
    let far = FAR.map(|at| start.saturating_add(at)..start.saturating_add(at + FAR_LENGTH));
    for far in far.into_iter().filter(|far| far.end <= end) {
        zero(far)?;
    }
    let before = start..end.min(start.saturating_add(WIPED));
    let behind = end.saturating_sub(WIPED).max(before.end)..end;
    zero(behind)?;
    zero(before)?;
    io.sync()
}

/// A signature at a position within a region.
#[derive(Debug)]
struct SignatureMatch {
    kind: SignatureKind,
    at: u64,
    label: Option<String>,
    uuid: Option<String>,
    members: Option<u32>,
}

impl SignatureMatch {
    fn bare(kind: SignatureKind, at: u64) -> Self {
        Self { kind, at, label: None, uuid: None, members: None }
    }
}

/// A range of a disk.
struct Region<'a> {
    disk: &'a dyn ReadAt,
    range: Range<u64>,
}

impl Region<'_> {
    fn size(&self) -> u64 {
        self.range.end.saturating_sub(self.range.start)
    }

    /// Bytes of the region; `None` beyond its end.
    fn get(&self, at: u64, length: usize) -> io::Result<Option<Vec<u8>>> {
        let is_inside = at.checked_add(length as u64).is_some_and(|end| end <= self.size());
        if !is_inside {
            return Ok(None);
        }
        let mut bytes = vec![0; length];
        self.disk.read_at(self.range.start + at, &mut bytes)?;
        Ok(Some(bytes))
    }
}

fn of_table(found: &TableOnDisk, size: u64, sector: u32) -> Option<Signature> {
    let sector = u64::from(sector);
    let (kind, offset) = match found {
        TableOnDisk::Nothing => return None,
        TableOnDisk::Mbr { .. } => (SignatureKind::Mbr, 510),
        TableOnDisk::Gpt { flaws, .. }
            if flaws.iter().any(|flaw| matches!(flaw, table::Flaw::First(_))) =>
        {
            (SignatureKind::Gpt, (size / sector - 1) * sector)
        }
        TableOnDisk::Gpt { .. } | TableOnDisk::Damaged(_) => (SignatureKind::Gpt, sector),
    };
    let uuid = found.facts().and_then(|facts| facts.id);
    let place = SignaturePlace::Disk;
    Some(Signature { kind, offset, place, label: None, uuid, members: None, ours: None })
}

/// The signature of the hoist marker, which names the owner of the disk.
fn of_hoist(disk: &impl ReadAt) -> io::Result<Option<Signature>> {
    let area = MetadataArea::before(None).expect("an empty disk has room");
    let marker = read_marker(disk, &area)?;
    Ok(marker.map(|Marker { node, txn, of_image, has_root, .. }| Signature {
        kind: SignatureKind::Hoist,
        offset: area.range().start,
        place: SignaturePlace::Disk,
        label: None,
        uuid: None,
        members: None,
        ours: Some(Ours { node, txn, of_image, has_root }),
    }))
}

fn by_type(partition: &PartitionFacts, inside: &[Signature]) -> Option<Signature> {
    let kind = partition.type_guid?.as_u128();
    let (_, kind) = TELLING_TYPES.into_iter().find(|(guid, _)| *guid == kind)?;
    let is_seen = inside.iter().any(|signature| signature.kind == kind);
    let label = Some(partition.name.clone()).filter(|name| !name.is_empty());
    let place = SignaturePlace::Partition(partition.number);
    (!is_seen).then(|| bare(kind, partition.start, place, label))
}

/// Text up to its first zero byte, without trailing blanks.
fn text(bytes: &[u8]) -> Option<String> {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    let text = String::from_utf8_lossy(&bytes[..end]);
    Some(text.trim_end().to_owned()).filter(|text| !text.is_empty())
}

fn uuid(bytes: &[u8]) -> Option<String> {
    let uuid = uuid::Uuid::from_slice(bytes).ok()?;
    (!uuid.is_nil()).then(|| uuid.to_string())
}

fn number32(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|four| four.try_into().ok()).map_or(0, u32::from_le_bytes)
}

fn number64(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).and_then(|eight| eight.try_into().ok()).map_or(0, u64::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SIZE: usize = 640 * 1024;

    /// Positions and bytes that the detection reads.
    const PLACES: [(usize, &[u8]); 20] = [
        (0, b"LUKS\xba\xbe\0\x02"),
        (0, b"XFSB"),
        (0, b"bluestore block device\n"),
        (0, b"LABELONE"),
        (24, b"LVM2 001"),
        (3, b"NTFS    "),
        (510, b"\x55\xaaEFI PART"),
        (512, b"LABELONE\0\0\0\0\0\0\0\0\0\0\0\0\x20\0\0\0LVM2 001"),
        (0x438, b"\x53\xef"),
        (0x400, b"\xe2\xe1\xf5\xe0"),
        (0x800, b"OCFSV2"),
        (4096, b"\xfc\x4e\x2b\xa9\x01\0\0\0"),
        (4100, b"\x20LVM2\x20x[5A%r0N*>"),
        (4086, b"SWAPSPACE2"),
        (32_768, b"hoistmk\x01"),
        (0x1_0000, b"\x01\x16\x19\x70"),
        (0x1_0040, b"_BHRfS_M"),
        (128 * 1024, b"\x0c\xb1\xba\0\0\0\0\0"),
        (SIZE - 65_536, b"\xfc\x4e\x2b\xa9\0\0\0\0"),
        (SIZE - 4036, b"\x83\x74\x02\x6b"),
    ];

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]
        #[test]
        fn any_disk_content_is_read_without_panic(
            planted in prop::collection::vec(0..PLACES.len(), 0..6),
            noise in prop::collection::vec((0..9000_usize, any::<[u8; 16]>()), 0..60),
            cut in prop_oneof![Just(SIZE), 0..SIZE],
        ) {
            let mut bytes = vec![0; SIZE];
            for (at, noise) in noise {
                bytes[at..at + 16].copy_from_slice(&noise);
            }
            for (at, magic) in planted.into_iter().map(|place| PLACES[place]) {
                bytes[at..at + magic.len()].copy_from_slice(magic);
            }
            bytes.truncate(cut);
            for sector in [512, 4096] {
                find(&Memory(bytes.clone()), sector)?;
            }
        }
    }

    struct Memory(Vec<u8>);

    impl ReadAt for Memory {
        fn size(&self) -> u64 {
            self.0.as_slice().size()
        }

        fn read_at(&self, at: u64, into: &mut [u8]) -> io::Result<()> {
            self.0.as_slice().read_at(at, into)
        }
    }

    #[test]
    fn uniform_disk_has_no_signatures() {
        for size in [0, 1, 511, 512, 4096, 70_000, SIZE] {
            for byte in [0, 0xff] {
                let found = find(&Memory(vec![byte; size]), 512).expect("it is memory");
                assert_eq!(found, [], "{size} times {byte}");
            }
        }
    }
}
