//! Encoding tables as bytes, and the reasons why a table cannot be encoded.

use std::ops::Range;

use uuid::Uuid;

use super::{Partition, Table};

/// Partitions that a table has room for.
pub const PARTITIONS: u32 = 128;

/// Units of UTF-16 that a partition's name has room for.
pub const MAX_NAME: usize = 36;

pub(crate) const ENTRY: usize = 128;
pub(crate) const HEADER: usize = 92;
pub(crate) const MAGIC: &[u8; 8] = b"EFI PART";
const REVISION: u32 = 0x0001_0000;
/// The type of the one partition of a protective MBR.
pub(crate) const PROTECTIVE: u8 = 0xee;

/// How large a disk and its sectors are, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    pub size: u64,
    pub sector: u64,
}

impl Geometry {
    /// Sectors of the disk.
    pub(crate) fn sectors(&self) -> u64 {
        self.size / self.sector
    }

    fn array_sectors(&self) -> u64 {
        (u64::from(PARTITIONS) * ENTRY as u64).div_ceil(self.sector)
    }

    /// The bytes that partitions may have.
    pub fn usable(&self) -> Range<u64> {
        let start = 2 + self.array_sectors();
        let end = self.sectors().saturating_sub(1 + self.array_sectors()).max(start);
        start * self.sector..end * self.sector
    }
}

/// Why a table cannot be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LayoutError {
    #[error("a disk of {size} bytes has no room for a partition table")]
    TooSmall { size: u64 },
    #[error("partition {number} has a number that is not from 1 to {PARTITIONS}")]
    Number { number: u32 },
    #[error("two partitions have the number {number}")]
    SameNumber { number: u32 },
    #[error("partitions {0} and {1} have the same id")]
    SameId(u32, u32),
    #[error("partition {number} has no type or no id")]
    Nil { number: u32 },
    #[error("partition {number} has no bytes")]
    Empty { number: u32 },
    #[error("partition {number} does not begin and end at a multiple of {sector} bytes")]
    Unaligned { number: u32, sector: u64 },
    #[error("partition {number} is from byte {start} to {end}; {from} to {until} may be used", from = usable.start, until = usable.end)]
    Outside { number: u32, start: u64, end: u64, usable: Range<u64> },
    #[error("partitions {0} and {1} overlap")]
    Overlap(u32, u32),
    #[error("the name of partition {number} has {units} units of UTF-16; {MAX_NAME} fit")]
    Name { number: u32, units: usize },
}

/// A table as the bytes of both of its copies.
#[derive(Debug)]
pub struct EncodedTable {
    /// Protective MBR, header and entries, from the start of the disk.
    pub head: Vec<u8>,
    /// Entries and header, at the end of it.
    pub tail: Vec<u8>,
    pub tail_at: u64,
}

pub fn encode(table: &Table, geometry: &Geometry) -> Result<EncodedTable, LayoutError> {
    check(table, geometry)?;
    let sector = usize::try_from(geometry.sector).expect("sectors are small");
    let mut array = vec![0; usize::try_from(geometry.array_sectors()).expect("few") * sector];
    for partition in &table.partitions {
        let at = (partition.number as usize - 1) * ENTRY;
        array[at..at + ENTRY].copy_from_slice(&entry(partition, geometry.sector));
    }
    let sum = crc32fast::hash(&array[..PARTITIONS as usize * ENTRY]);
    let last = geometry.sectors() - 1;
    let behind = geometry.usable().end / geometry.sector;
    let mut head = protective(geometry, sector);
    head.extend(header(table.id, geometry, (1, last, 2), sum));
    head.extend(&array);
    let mut tail = array;
    tail.extend(header(table.id, geometry, (last, 1, behind), sum));
    Ok(EncodedTable { head, tail, tail_at: geometry.usable().end })
}

fn check(table: &Table, geometry: &Geometry) -> Result<(), LayoutError> {
    let Geometry { size, sector } = *geometry;
    // Both copies with nothing between them.
    if geometry.sectors() < 3 + 2 * geometry.array_sectors() {
        return Err(LayoutError::TooSmall { size });
    }
    for partition in &table.partitions {
        check_partition(partition, sector, geometry.usable())?;
    }
    let mut ordered: Vec<&Partition> = table.partitions.iter().collect();
    for (at, one) in ordered.iter().enumerate() {
        for other in &ordered[at + 1..] {
            if one.number == other.number {
                return Err(LayoutError::SameNumber { number: one.number });
            }
            if one.id == other.id {
                return Err(LayoutError::SameId(one.number, other.number));
            }
        }
    }
    ordered.sort_by_key(|partition| partition.start);
    match ordered.windows(2).find(|pair| pair[0].range().end > pair[1].start) {
        Some(pair) => Err(LayoutError::Overlap(pair[0].number, pair[1].number)),
        None => Ok(()),
    }
}

fn check_partition(
    partition: &Partition,
    sector: u64,
    usable: Range<u64>,
) -> Result<(), LayoutError> {
    let number = partition.number;
    if !(1..=PARTITIONS).contains(&number) {
        return Err(LayoutError::Number { number });
    }
    if partition.kind.is_nil() || partition.id.is_nil() {
        return Err(LayoutError::Nil { number });
    }
    if partition.length == 0 {
        return Err(LayoutError::Empty { number });
    }
    if !partition.start.is_multiple_of(sector) || !partition.length.is_multiple_of(sector) {
        return Err(LayoutError::Unaligned { number, sector });
    }
    let Range { start, end } = partition.range();
    if start < usable.start || end > usable.end {
        return Err(LayoutError::Outside { number, start, end, usable });
    }
    let units = partition.name.encode_utf16().count();
    if units > MAX_NAME {
        return Err(LayoutError::Name { number, units });
    }
    Ok(())
}

fn entry(partition: &Partition, sector: u64) -> [u8; ENTRY] {
    let mut bytes = [0; ENTRY];
    bytes[..16].copy_from_slice(&partition.kind.to_bytes_le());
    bytes[16..32].copy_from_slice(&partition.id.to_bytes_le());
    let Range { start, end } = partition.range();
    let numbers = [start / sector, end / sector - 1, partition.attributes];
    bytes[32..56].copy_from_slice(numbers.map(u64::to_le_bytes).as_flattened());
    for (place, unit) in bytes[56..].chunks_exact_mut(2).zip(partition.name.encode_utf16()) {
        place.copy_from_slice(&unit.to_le_bytes());
    }
    bytes
}

/// One sector. `at` is where this header is, where the other one is and where its entries are.
fn header(id: Uuid, geometry: &Geometry, at: (u64, u64, u64), sum: u32) -> Vec<u8> {
    let usable = geometry.usable();
    let (own, other, entries) = at;
    let mut bytes = Vec::with_capacity(usize::try_from(geometry.sector).expect("it is small"));
    bytes.extend(MAGIC);
    bytes.extend(REVISION.to_le_bytes());
    bytes.extend(u32::try_from(HEADER).expect("it is small").to_le_bytes());
    bytes.extend([0; 8]);
    let usable = [usable.start / geometry.sector, usable.end / geometry.sector - 1];
    for number in [own, other, usable[0], usable[1]] {
        bytes.extend(number.to_le_bytes());
    }
    bytes.extend(id.to_bytes_le());
    bytes.extend(entries.to_le_bytes());
    bytes.extend(PARTITIONS.to_le_bytes());
    bytes.extend(u32::try_from(ENTRY).expect("it is small").to_le_bytes());
    bytes.extend(sum.to_le_bytes());
    let own_sum = crc32fast::hash(&bytes);
    bytes[16..20].copy_from_slice(&own_sum.to_le_bytes());
    bytes.resize(bytes.capacity(), 0);
    bytes
}

/// One sector that tells programs of old that all of the disk is taken.
fn protective(geometry: &Geometry, sector: usize) -> Vec<u8> {
    let mut bytes = vec![0; sector];
    let length = u32::try_from(geometry.sectors() - 1).unwrap_or(u32::MAX);
    bytes[446..454].copy_from_slice(&[0, 0, 2, 0, PROTECTIVE, 0xff, 0xff, 0xff]);
    bytes[454..458].copy_from_slice(&1_u32.to_le_bytes());
    bytes[458..462].copy_from_slice(&length.to_le_bytes());
    bytes[510..512].copy_from_slice(&[0x55, 0xaa]);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    const GEOMETRY: Geometry = Geometry { size: 64 << 20, sector: 512 };

    fn partition(number: u32, start: u64, length: u64) -> Partition {
        let id = Uuid::from_u128(u128::from(number) + 1);
        Partition { number, start, length, kind: id, id, attributes: 0, name: String::new() }
    }

    fn refusal(partitions: &[Partition]) -> LayoutError {
        let table = Table { id: Uuid::from_u128(1), partitions: partitions.to_vec() };
        encode(&table, &GEOMETRY).expect_err("it is impossible")
    }

    #[test]
    fn impossible_table_is_not_encoded() {
        let good = partition(1, 1 << 20, 1 << 20);
        let error = refusal(&[Partition { number: 0, ..good.clone() }]);
        assert_eq!(error, LayoutError::Number { number: 0 });
        let error = refusal(&[Partition { number: 129, ..good.clone() }]);
        assert_eq!(error, LayoutError::Number { number: 129 });
        let error = refusal(&[Partition { length: 0, ..good.clone() }]);
        assert_eq!(error, LayoutError::Empty { number: 1 });
        let error = refusal(&[Partition { start: 513, ..good.clone() }]);
        assert_eq!(error, LayoutError::Unaligned { number: 1, sector: 512 });
        let error = refusal(&[Partition { length: u64::MAX / 512 * 512, ..good.clone() }]);
        assert!(matches!(error, LayoutError::Outside { number: 1, .. }), "{error}");
        let error = refusal(&[Partition { start: 33 * 512, ..good.clone() }]);
        assert!(matches!(error, LayoutError::Outside { number: 1, .. }), "{error}");
        let error = refusal(&[Partition { id: Uuid::nil(), ..good.clone() }]);
        assert_eq!(error, LayoutError::Nil { number: 1 });
        let error = refusal(&[good.clone(), partition(1, 4 << 20, 512)]);
        assert_eq!(error, LayoutError::SameNumber { number: 1 });
        let other = Partition { id: good.id, ..partition(2, 4 << 20, 512) };
        assert_eq!(refusal(&[good.clone(), other]), LayoutError::SameId(1, 2));
        let other = partition(2, (2 << 20) - 512, 512);
        assert_eq!(refusal(&[other, good.clone()]), LayoutError::Overlap(1, 2));
        // Two units of UTF-16 each.
        let name = "𝄞".repeat(19);
        let error = refusal(&[Partition { name, ..good.clone() }]);
        assert_eq!(error, LayoutError::Name { number: 1, units: 38 });
        let fits = Partition { name: "𝄞".repeat(18), ..good };
        let table = Table { id: Uuid::from_u128(1), partitions: vec![fits] };
        encode(&table, &GEOMETRY).expect("as many as fit");
    }

    #[test]
    fn smallest_disk_has_room_for_both_copies() {
        let table = Table { id: Uuid::from_u128(1), partitions: Vec::new() };
        for (sector, least) in [(512, 67), (4096, 11)] {
            encode(&table, &Geometry { size: least * sector, sector }).expect("it has room");
            let size = (least - 1) * sector;
            let error = encode(&table, &Geometry { size, sector }).expect_err("it has none");
            assert_eq!(error, LayoutError::TooSmall { size });
        }
    }
}
