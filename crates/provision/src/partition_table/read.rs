//! Reading partition tables from untrusted bytes.
//!
//! Does not belong here: the future table (`layout`) and writing.

use std::collections::BTreeSet;
use std::{fmt, io};

use uuid::Uuid;

use super::encode::{ENTRY, Geometry, HEADER, MAGIC, PARTITIONS, PROTECTIVE};
use super::{IN_PROGRESS, Partition, Table};
use crate::facts::PartitionFacts;
use crate::read_at::ReadAt;

/// Entries that are read; tables with more are damaged or strange.
const MAX_ENTRIES: u32 = 1024;

/// Bytes of one entry, in tables that others made.
const MAX_ENTRY: u32 = 4096;

/// Logical partitions that are looked for: the kernel knows fewer.
const MAX_LOGICAL: u32 = 128;

/// Types of partitions of an MBR that hold others.
const EXTENDED: [u8; 3] = [0x05, 0x0f, 0x85];

/// The partition table on a disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TableOnDisk {
    Nothing,
    /// Its four entries, and the logical partitions, which have numbers from five on.
    Mbr {
        id: u32,
        partitions: Vec<PartitionFacts>,
    },
    Gpt {
        table: Table,
        flaws: Vec<Flaw>,
    },
    /// There was a table, and neither copy of it can be read.
    Damaged(Vec<Flaw>),
}

/// A flaw of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Flaw {
    First(&'static str),
    Second(&'static str),
    /// Both copies can be read, and say different things; the first one is believed.
    Differ,
    /// The second copy is not at the end of the disk.
    Misplaced,
    /// It was made for a disk with sectors of this size.
    OtherSector(u32),
    /// A partition is not within the disk, or has no bytes.
    Outside(u32),
    Overlap(u32, u32),
}

/// Texts of the flaws that power cuts leave.
const FIRST: &str = "the first copy of the table";
const SECOND: &str = "the second copy of the table";
const DIFFER: &str = "the copies of the table say different things";

/// Whether, as it is told, the first copy is damaged. Then the second one counts, and is whole.
pub fn is_of_first(flaw: &str) -> bool {
    flaw.starts_with(FIRST)
}

/// Whether, as it is told, the second copy is damaged, or not of the same table as the first.
pub fn is_of_second(flaw: &str) -> bool {
    flaw == DIFFER
        || flaw.strip_prefix(SECOND).is_some_and(|told| {
            let all = [Unread::NoMagic, Unread::Header, Unread::Size, Unread::Entries];
            all.iter().any(|what| told.strip_prefix(' ') == Some(what.text()))
        })
}

impl fmt::Display for Flaw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::First(what) => write!(f, "{FIRST} {what}"),
            Self::Second(what) => write!(f, "{SECOND} {what}"),
            Self::Differ => f.write_str(DIFFER),
            Self::Misplaced => {
                f.write_str("the second copy of the table is not at the end of the disk")
            }
            Self::OtherSector(sector) => {
                write!(f, "the table was made for a disk with sectors of {sector} bytes")
            }
            Self::Outside(number) => write!(f, "partition {number} is not within the disk"),
            Self::Overlap(one, other) => write!(f, "partitions {one} and {other} overlap"),
        }
    }
}

/// Looks for a table, whatever the disk holds. Errors are those of the device.
pub fn read(disk: &(impl ReadAt + ?Sized), sector: u32) -> io::Result<TableOnDisk> {
    let geometry = Geometry { size: disk.size(), sector: u64::from(sector) };
    if geometry.sectors() < 3 {
        return Ok(TableOnDisk::Nothing);
    }
    let last = geometry.sectors() - 1;
    let first = read_copy(disk, &geometry, 1)?;
    let second_at = first.as_ref().map_or(last, |copy| copy.other.min(last));
    let second = read_copy(disk, &geometry, second_at)?;
    match (first, second) {
        (Ok(first), second) => {
            let mut flaws = Vec::new();
            if first.other != last {
                flaws.push(Flaw::Misplaced);
            }
            match second {
                Ok(second) if second.table != first.table => flaws.push(Flaw::Differ),
                Ok(_) => {}
                Err(what) => flaws.push(Flaw::Second(what.text())),
            }
            Ok(whole(first.table, flaws, &geometry))
        }
        (Err(what), Ok(second)) => {
            Ok(whole(second.table, vec![Flaw::First(what.text())], &geometry))
        }
        (Err(first), Err(second)) => neither(disk, &geometry, first, second),
    }
}

/// The transaction of an in-progress table of which a power cut left only the entries: they are
/// written before the header and cleared after it.
pub fn txn_of_entries(disk: &(impl ReadAt + ?Sized), sector: u32) -> io::Result<Option<String>> {
    let geometry = Geometry { size: disk.size(), sector: u64::from(sector) };
    let at = 2 * geometry.sector;
    let mut array = vec![0; PARTITIONS as usize * ENTRY];
    if at + array.len() as u64 > geometry.size {
        return Ok(None);
    }
    disk.read_at(at, &mut array)?;
    let mut entries = (1..).zip(array.chunks_exact(ENTRY));
    let marked = entries.find(|(_, entry)| uuid(entry, 0) == IN_PROGRESS);
    let marked = marked.and_then(|(number, entry)| parse_entry(number, entry, &geometry));
    Ok(marked.map(|partition| partition.name))
}

fn whole(table: Table, mut flaws: Vec<Flaw>, geometry: &Geometry) -> TableOnDisk {
    let is_inside = |one: &Partition| one.length > 0 && one.range().end <= geometry.size;
    let outside = table.partitions.iter().filter(|one| !is_inside(one));
    flaws.extend(outside.map(|one| Flaw::Outside(one.number)));
    let mut ordered: Vec<&Partition> = table.partitions.iter().collect();
    ordered.sort_by_key(|one| one.start);
    let pairs = ordered.windows(2).filter(|pair| pair[0].range().end > pair[1].start);
    flaws.extend(pairs.map(|pair| Flaw::Overlap(pair[0].number, pair[1].number)));
    TableOnDisk::Gpt { table, flaws }
}

fn neither(
    disk: &(impl ReadAt + ?Sized),
    geometry: &Geometry,
    first: Unread,
    second: Unread,
) -> io::Result<TableOnDisk> {
    let other = if geometry.sector == 512 { 4096 } else { 512 };
    let elsewhere = Geometry { sector: other, ..*geometry };
    if elsewhere.sectors() > 3 && read_copy(disk, &elsewhere, 1)?.is_ok() {
        let other = u32::try_from(other).expect("one of two");
        return Ok(TableOnDisk::Damaged(vec![Flaw::OtherSector(other)]));
    }
    let mbr = read_mbr(disk, geometry)?;
    let was_there = first != Unread::NoMagic || second != Unread::NoMagic;
    if was_there || matches!(mbr, Some(Mbr::Protective)) {
        let flaws = vec![Flaw::First(first.text()), Flaw::Second(second.text())];
        return Ok(TableOnDisk::Damaged(flaws));
    }
    Ok(match mbr {
        Some(Mbr::Table { id, partitions }) => TableOnDisk::Mbr { id, partitions },
        Some(Mbr::Protective) | None => TableOnDisk::Nothing,
    })
}

struct Copy {
    table: Table,
    /// Where the other copy is, in sectors.
    other: u64,
}

/// Why a copy is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Unread {
    NoMagic,
    Header,
    Size,
    Entries,
}

impl Unread {
    fn text(self) -> &'static str {
        match self {
            Self::NoMagic => "is missing",
            Self::Header => "is damaged",
            Self::Size => "has a form that is not known",
            Self::Entries => "is damaged where the partitions are",
        }
    }
}

fn read_copy(
    disk: &(impl ReadAt + ?Sized),
    geometry: &Geometry,
    at: u64,
) -> io::Result<Result<Copy, Unread>> {
    let mut header = vec![0; usize::try_from(geometry.sector).expect("sectors are small")];
    disk.read_at(at * geometry.sector, &mut header)?;
    let head = match parse_header(&header, at) {
        Ok(head) => head,
        Err(what) => return Ok(Err(what)),
    };
    let place = head.entries.checked_mul(geometry.sector);
    let length = head.count as usize * head.entry as usize;
    let end = place.and_then(|place| place.checked_add(length as u64));
    let (Some(place), Some(_)) = (place, end.filter(|end| *end <= geometry.size)) else {
        return Ok(Err(Unread::Size));
    };
    let mut array = vec![0; length];
    disk.read_at(place, &mut array)?;
    if crc32fast::hash(&array) != head.sum {
        return Ok(Err(Unread::Entries));
    }
    let entries = (1..).zip(array.chunks_exact(head.entry as usize));
    let partitions = entries.filter_map(|(number, entry)| parse_entry(number, entry, geometry));
    let table = Table { id: head.id, partitions: partitions.collect() };
    Ok(Ok(Copy { table, other: head.other }))
}

struct Head {
    other: u64,
    id: Uuid,
    entries: u64,
    count: u32,
    entry: u32,
    sum: u32,
}

fn parse_header(bytes: &[u8], at: u64) -> Result<Head, Unread> {
    if !bytes.starts_with(MAGIC) {
        return Err(Unread::NoMagic);
    }
    let length = number32(bytes, 12) as usize;
    if !(HEADER..=bytes.len()).contains(&length) {
        return Err(Unread::Size);
    }
    let mut summed = bytes[..length].to_vec();
    summed[16..20].fill(0);
    if crc32fast::hash(&summed) != number32(bytes, 16) || number64(bytes, 24) != at {
        return Err(Unread::Header);
    }
    let count = number32(bytes, 80);
    let entry = number32(bytes, 84);
    let is_known = entry as usize >= ENTRY && entry <= MAX_ENTRY && count <= MAX_ENTRIES;
    if !is_known {
        return Err(Unread::Size);
    }
    let id = uuid(bytes, 56);
    let other = number64(bytes, 32);
    let entries = number64(bytes, 72);
    let sum = number32(bytes, 88);
    Ok(Head { other, id, entries, count, entry, sum })
}

fn parse_entry(number: u32, bytes: &[u8], geometry: &Geometry) -> Option<Partition> {
    let kind = uuid(bytes, 0);
    if kind.is_nil() {
        return None;
    }
    let start = number64(bytes, 32).saturating_mul(geometry.sector);
    let end = number64(bytes, 40).saturating_add(1).saturating_mul(geometry.sector);
    let units = bytes[56..ENTRY].chunks_exact(2).map(|pair| u16::from_le_bytes([pair[0], pair[1]]));
    let units: Vec<u16> = units.take_while(|unit| *unit != 0).collect();
    Some(Partition {
        number,
        start,
        length: end.saturating_sub(start),
        kind,
        id: uuid(bytes, 16),
        attributes: number64(bytes, 48),
        name: String::from_utf16_lossy(&units),
    })
}

enum Mbr {
    Protective,
    Table { id: u32, partitions: Vec<PartitionFacts> },
}

/// A boot sector of a file system has the same magic, and something else where the partitions are.
fn read_mbr(disk: &(impl ReadAt + ?Sized), geometry: &Geometry) -> io::Result<Option<Mbr>> {
    let mut bytes = [0; 512];
    disk.read_at(0, &mut bytes)?;
    let entries = || bytes[446..510].chunks_exact(16);
    let is_plausible = |entry: &[u8]| matches!(entry[0], 0 | 0x80);
    let has_any = entries().any(|entry| entry[4] != 0);
    if bytes[510..] != [0x55, 0xaa] || !entries().all(is_plausible) || !has_any {
        return Ok(None);
    }
    if entries().any(|entry| entry[4] == PROTECTIVE) {
        return Ok(Some(Mbr::Protective));
    }
    let used = (1..).zip(entries()).filter(|(_, entry)| entry[4] != 0);
    let mut partitions: Vec<PartitionFacts> =
        used.clone().map(|(number, entry)| of_mbr(number, entry, 0, geometry)).collect();
    let is_inside = |one: &PartitionFacts| one.start > 0 && one.len > 0 && one.start < disk.size();
    if !partitions.iter().all(is_inside) {
        return Ok(None);
    }
    let mut next = 5;
    for (number, entry) in used.filter(|(_, entry)| EXTENDED.contains(&entry[4])) {
        let logical = read_logical(disk, geometry, number32(entry, 8), next)?;
        next = logical.last().map_or(next, |last| last.number + 1);
        // As in the kernel, an extended partition with logical ones has only its first sector.
        let outer = partitions.iter_mut().find(|one| one.number == number && !logical.is_empty());
        if let Some(outer) = outer {
            outer.len = geometry.sector;
        }
        partitions.extend(logical);
    }
    Ok(Some(Mbr::Table { id: number32(&bytes, 440), partitions }))
}

/// `base` is what its start is counted from, in sectors.
fn of_mbr(number: u32, entry: &[u8], base: u64, geometry: &Geometry) -> PartitionFacts {
    PartitionFacts {
        number,
        start: (base + u64::from(number32(entry, 8))) * geometry.sector,
        len: u64::from(number32(entry, 12)) * geometry.sector,
        type_guid: None,
        partuuid: None,
        name: String::new(),
        attributes: 0,
        kernel_name: None,
    }
}

/// The logical partitions of an extended partition: a chain of tables, each with one partition and
/// the position of the next table. A chain may lead anywhere, also to its beginning.
fn read_logical(
    disk: &(impl ReadAt + ?Sized),
    geometry: &Geometry,
    first: u32,
    mut number: u32,
) -> io::Result<Vec<PartitionFacts>> {
    let first = u64::from(first);
    let mut found = Vec::new();
    let mut seen = BTreeSet::new();
    let mut next = Some(first);
    while let Some(at) = next.take() {
        let place = at * geometry.sector;
        let is_new = place.saturating_add(512) <= disk.size() && seen.insert(at);
        if !is_new || number > 4 + MAX_LOGICAL || seen.len() > MAX_LOGICAL as usize {
            break;
        }
        let mut bytes = [0; 512];
        disk.read_at(place, &mut bytes)?;
        if bytes[510..] != [0x55, 0xaa] {
            break;
        }
        for entry in bytes[446..510].chunks_exact(16).filter(|entry| number32(entry, 12) > 0) {
            if EXTENDED.contains(&entry[4]) {
                next = next.or(Some(first + u64::from(number32(entry, 8))));
            } else if entry[4] != 0 {
                let one = of_mbr(number, entry, at, geometry);
                if one.start < disk.size() {
                    found.push(one);
                    number += 1;
                }
            }
        }
    }
    Ok(found)
}

fn number32(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn number64(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

fn uuid(bytes: &[u8], at: usize) -> Uuid {
    Uuid::from_bytes_le(bytes[at..at + 16].try_into().expect("sixteen bytes"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::partition_table::encode;

    /// Of small disks, in sectors.
    const SECTORS: u64 = 400;

    fn disk(table: &Table, sector: u64) -> Vec<u8> {
        let geometry = Geometry { size: SECTORS * sector, sector };
        let encoded = encode(table, &geometry).expect("it can be");
        let mut bytes = vec![0; usize::try_from(geometry.size).expect("it is small")];
        bytes[..encoded.head.len()].copy_from_slice(&encoded.head);
        let at = bytes.len() - encoded.tail.len();
        bytes[at..].copy_from_slice(&encoded.tail);
        bytes
    }

    fn a_table(sector: u64) -> impl Strategy<Value = Table> {
        let one = (any::<[u128; 2]>(), 1..40_u64, any::<u64>(), "[a-zäß 𝄞]{0,18}");
        (1..u128::MAX, prop::collection::vec(one, 0..6)).prop_map(move |(id, parts)| {
            let mut start = 40;
            let mut partitions = Vec::new();
            for (number, ([kind, id], length, attributes, name)) in (1..).zip(parts) {
                let kind = Uuid::from_u128(kind | 1);
                let id = Uuid::from_u128(id | 1);
                let start_at = start * sector;
                let length_of = length * sector;
                // Numbers need not be in the order of places.
                let number = number * 17 % 128 + 1;
                partitions.push(Partition {
                    number,
                    start: start_at,
                    length: length_of,
                    kind,
                    id,
                    attributes,
                    name,
                });
                start += length;
            }
            partitions.sort_by_key(|partition| partition.number);
            Table { id: Uuid::from_u128(id), partitions }
        })
    }

    fn sector() -> impl Strategy<Value = u32> {
        prop_oneof![Just(512_u32), Just(4096)]
    }

    fn table_and_sector() -> impl Strategy<Value = (Table, u32)> {
        sector().prop_flat_map(|sector| (a_table(u64::from(sector)), Just(sector)))
    }

    /// A place where a copy of the table has something.
    fn places(sector: u32) -> [Vec<usize>; 2] {
        let sector = sector as usize;
        let size = usize::try_from(SECTORS).expect("it is small") * sector;
        let array = 128 * ENTRY;
        let header = |at: usize| at..at + HEADER;
        let first = header(sector).chain(2 * sector..2 * sector + array);
        let second = header(size - sector).chain(size - sector - array..size - sector);
        [first.collect(), second.collect()]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn written_table_is_read_back((table, sector) in table_and_sector()) {
            let bytes = disk(&table, u64::from(sector));
            prop_assert_eq!(read(&bytes[..], sector)?, TableOnDisk::Gpt { table, flaws: vec![] });
            let other = if sector == 512 { 4096 } else { 512 };
            let wrong = TableOnDisk::Damaged(vec![Flaw::OtherSector(sector)]);
            prop_assert_eq!(read(&bytes[..], other)?, wrong);
        }

        #[test]
        fn damaged_copy_is_reported_and_the_other_is_read(
            (table, sector) in table_and_sector(), copy in 0..2_usize,
            place: prop::sample::Index, bit in 0..8_u32,
        ) {
            let mut bytes = disk(&table, u64::from(sector));
            let places = places(sector);
            bytes[*place.get(&places[copy])] ^= 1 << bit;
            let found = read(&bytes[..], sector)?;
            let TableOnDisk::Gpt { table: read_back, flaws } = found else {
                return Err(TestCaseError::fail(format!("{found:?}")));
            };
            prop_assert_eq!(read_back, table);
            let is_said = match copy {
                0 => matches!(flaws[..], [Flaw::First(_)]),
                _ => matches!(flaws[..], [Flaw::Second(_)]),
            };
            prop_assert!(is_said, "{:?}", flaws);
        }

        #[test]
        fn damage_to_both_copies_is_reported(
            (table, sector) in table_and_sector(), place: [prop::sample::Index; 2],
        ) {
            let mut bytes = disk(&table, u64::from(sector));
            for (place, places) in place.iter().zip(places(sector)) {
                bytes[*place.get(&places)] ^= 0x10;
            }
            let found = read(&bytes[..], sector)?;
            let is_said = matches!(&found, TableOnDisk::Damaged(flaws) if flaws.len() == 2);
            prop_assert!(is_said, "{:?}", found);
        }

        #[test]
        fn any_table_with_a_good_checksum_is_read_without_panic(
            (table, sector) in table_and_sector(),
            words in prop::collection::vec((2..23_usize, any::<u32>()), 1..4),
            entry: [u64; 2],
        ) {
            let mut bytes = disk(&table, u64::from(sector));
            let at = sector as usize;
            for (word, value) in words.into_iter().filter(|(word, _)| *word != 4) {
                bytes[at + word * 4..][..4].copy_from_slice(&value.to_le_bytes());
            }
            bytes[2 * at + 32..][..16].copy_from_slice(entry.map(u64::to_le_bytes).as_flattened());
            let array = crc32fast::hash(&bytes[2 * at..2 * at + 128 * ENTRY]);
            bytes[at + 88..][..4].copy_from_slice(&array.to_le_bytes());
            bytes[at + 16..][..4].fill(0);
            let sum = crc32fast::hash(&bytes[at..at + HEADER]);
            bytes[at + 16..][..4].copy_from_slice(&sum.to_le_bytes());
            read(&bytes[..], sector)?;
        }

        #[test]
        fn cyclic_chain_of_tables_ends(
            links in prop::collection::vec((0..40_u32, 0..50_u32, 0..50_u32), 1..12),
            first in 0..40_u32,
        ) {
            let mut bytes = vec![0; 512 * 40];
            for (at, start, next) in links {
                let at = at as usize * 512;
                one_of_old(&mut bytes, at, 0, (0x83, start, 3));
                one_of_old(&mut bytes, at, 1, (0x05, next, 9));
            }
            one_of_old(&mut bytes, 0, 0, (0x0f, first, 39));
            let found = read(&bytes[..], 512)?;
            let most = 4 + MAX_LOGICAL as usize;
            let count = found.facts().map_or(0, |facts| facts.partitions.len());
            prop_assert!(count <= most, "{} partitions", count);
        }

        #[test]
        fn arbitrary_bytes_are_read_without_panic(
            bytes in prop::collection::vec(any::<u8>(), 0..4096), sector in sector(), magic: bool,
        ) {
            let mut bytes = bytes;
            if magic && bytes.len() > 1024 {
                bytes[510..520].copy_from_slice(b"\x55\xaaEFI PART");
            }
            read(&bytes[..], sector)?;
        }
    }

    /// Puts an entry into a table of old, at a byte: its type, its start and its length in sectors.
    fn one_of_old(
        bytes: &mut [u8],
        at: usize,
        entry: usize,
        (kind, start, length): (u8, u32, u32),
    ) {
        bytes[at + 510..at + 512].copy_from_slice(&[0x55, 0xaa]);
        let entry = &mut bytes[at + 446 + entry * 16..][..16];
        entry[4] = kind;
        entry[8..12].copy_from_slice(&start.to_le_bytes());
        entry[12..16].copy_from_slice(&length.to_le_bytes());
    }

    #[test]
    fn logical_partitions_are_read() {
        let mut bytes = vec![0; 512 * 200];
        one_of_old(&mut bytes, 0, 0, (0x83, 8, 12));
        one_of_old(&mut bytes, 0, 1, (0x05, 20, 180));
        one_of_old(&mut bytes, 20 * 512, 0, (0x8e, 4, 30));
        one_of_old(&mut bytes, 20 * 512, 1, (0x05, 60, 100));
        one_of_old(&mut bytes, 80 * 512, 0, (0x83, 2, 40));
        let found = |bytes: &[u8]| {
            let TableOnDisk::Mbr { partitions, .. } = read(bytes, 512).expect("it is memory")
            else {
                panic!("it is a table of old");
            };
            let sectors = |part: PartitionFacts| (part.number, part.start / 512, part.len / 512);
            partitions.into_iter().map(sectors).collect::<Vec<_>>()
        };
        assert_eq!(found(&bytes), [(1, 8, 12), (2, 20, 1), (5, 24, 30), (6, 82, 40)]);
        // A chain that leads back to its beginning, and one that leads nowhere.
        one_of_old(&mut bytes, 80 * 512, 1, (0x05, 0, 100));
        assert_eq!(found(&bytes).len(), 4);
        one_of_old(&mut bytes, 80 * 512, 1, (0x05, u32::MAX, 100));
        assert_eq!(found(&bytes).len(), 4);
        bytes[20 * 512 + 510] = 0;
        assert_eq!(found(&bytes), [(1, 8, 12), (2, 20, 180)], "all of it, if nothing is inside");
    }

    #[test]
    fn grown_disk_has_a_misplaced_second_copy() {
        let table = Table { id: Uuid::from_u128(5), partitions: Vec::new() };
        let mut bytes = disk(&table, 512);
        bytes.resize(bytes.len() + 512 * 100, 0);
        let found = read(&bytes[..], 512).expect("it is memory");
        assert_eq!(found, TableOnDisk::Gpt { table, flaws: vec![Flaw::Misplaced] });
    }

    #[test]
    fn mbr_is_told_from_boot_sector_and_gpt_remains() {
        let mut bytes = vec![0; 512 * 100];
        let nothing = read(&bytes[..], 512).expect("it is memory");
        assert_eq!(nothing, TableOnDisk::Nothing);
        bytes[510..512].copy_from_slice(&[0x55, 0xaa]);
        assert_eq!(read(&bytes[..], 512).expect("it is memory"), TableOnDisk::Nothing);
        bytes[440..444].copy_from_slice(&0xdead_beef_u32.to_le_bytes());
        bytes[446] = 0x80;
        bytes[450] = 0x83;
        bytes[454..462].copy_from_slice(&[8, 0, 0, 0, 50, 0, 0, 0]);
        let TableOnDisk::Mbr { id: 0xdead_beef, partitions } =
            read(&bytes[..], 512).expect("memory")
        else {
            panic!("it is a table of old");
        };
        assert_eq!((partitions[0].start, partitions[0].len), (4096, 25_600));
        bytes[450] = PROTECTIVE;
        let left = read(&bytes[..], 512).expect("it is memory");
        let flaws = vec![Flaw::First("is missing"), Flaw::Second("is missing")];
        assert_eq!(left, TableOnDisk::Damaged(flaws));
        // Code of a boot sector, where a table would have its entries.
        bytes[446] = 0x66;
        assert_eq!(read(&bytes[..], 512).expect("it is memory"), TableOnDisk::Nothing);
    }
}
