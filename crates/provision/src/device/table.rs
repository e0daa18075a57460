//! Partition tables: what is there, whole or damaged, and what shall be there.
//!
//! A table is untrusted until it was approved, so reading one never allocates what it says and never
//! panics. Writing has an order: the table that opens a run is on the disk before anything else is,
//! and the table that closes it comes when everything else is durable, so that a disk is at every
//! moment the old one, marked as being worked on, or complete.

mod layout;
mod read;

use std::ops::Range;

use uuid::Uuid;

use super::guard::WriteError;
use super::{GuardedIo, ReadAt};
use crate::facts::{PartitionFacts, TableFacts, TableKind};

pub use layout::{Geometry, LayoutError, MAX_NAME, PARTITIONS};
pub use read::{Flaw, Found, is_of_first, is_of_second, read};

/// The type of the partition that says that hoist is at work on this disk.
pub const IN_PROGRESS: Uuid = Uuid::from_u128(0x9b1d_8a4e_5c0f_4f0b_a6c7_2e31_68d4_70f5);

/// The type of a partition where something was that is destroyed, on a disk that is worked on: the old
/// table is gone, and whoever goes on must know what is still to be wiped.
pub const DOOMED: Uuid = Uuid::from_u128(0x3f6e_0c2d_7a41_4b8e_9c15_d0a8_54b7_e921);

/// What such a partition is called.
const DOOMED_NAME: &str = "hoist: to be wiped";

/// Partitions begin at multiples of this, so that there is a gap behind the table.
pub const FIRST_PARTITION: u64 = 1024 * 1024;

/// Code that a BIOS runs, before the table of an MBR.
const BOOT_CODE: usize = 440;

/// A GUID partition table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    pub id: Uuid,
    pub partitions: Vec<Partition>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Partition {
    /// From 1.
    pub number: u32,
    /// In bytes.
    pub start: u64,
    pub length: u64,
    pub kind: Uuid,
    pub id: Uuid,
    pub attributes: u64,
    pub name: String,
}

impl Partition {
    pub fn range(&self) -> Range<u64> {
        self.start..self.start.saturating_add(self.length)
    }
}

impl Table {
    /// The table of a disk that is being worked on: what is retained, and in the gap one partition
    /// whose name is the transaction.
    pub fn in_progress(id: Uuid, txn: Uuid, retained: &[Partition], geometry: &Geometry) -> Self {
        let mut partitions = retained.to_vec();
        let is_taken = |number: &u32| retained.iter().any(|kept| kept.number == *number);
        let number = (1..=PARTITIONS).find(|number| !is_taken(number)).unwrap_or(PARTITIONS);
        let start = geometry.usable().start;
        let first = retained.iter().map(|kept| kept.start).min().unwrap_or(FIRST_PARTITION);
        let length = first.min(FIRST_PARTITION).saturating_sub(start);
        let name = txn.hyphenated().to_string();
        partitions.push(Partition {
            number,
            start,
            length,
            kind: IN_PROGRESS,
            // Two disks of one transaction must not have partitions of one name.
            id: Uuid::new_v5(&txn, id.as_bytes()),
            attributes: 0,
            name,
        });
        Self { id, partitions }
    }

    /// Says also where something was that is destroyed. Ranges that the table has no room for are known
    /// only to the run that begins with the disk.
    #[must_use]
    pub fn with_doomed(mut self, ranges: &[Range<u64>]) -> Self {
        let taken: Vec<u32> = self.partitions.iter().map(|one| one.number).collect();
        let free = (1..=PARTITIONS).filter(|number| !taken.contains(number));
        let doomed = ranges.iter().zip(free).map(|(range, number)| Partition {
            number,
            start: range.start,
            length: range.end - range.start,
            kind: DOOMED,
            id: Uuid::new_v5(&self.id, &range.start.to_le_bytes()),
            attributes: 0,
            name: DOOMED_NAME.to_owned(),
        });
        self.partitions.extend(doomed);
        self
    }

    /// The transaction that a disk was left in the middle of.
    pub fn txn_in_progress(&self) -> Option<Uuid> {
        let marker = self.partitions.iter().find(|partition| partition.kind == IN_PROGRESS)?;
        marker.name.parse().ok()
    }

    /// Opens a run: from now on the disk says that it is being worked on, and nothing boots from it.
    /// The first copy comes first: without the other it already counts, and before it is whole the
    /// disk is the old one.
    pub fn write_opening(&self, io: &GuardedIo) -> Result<(), TableError> {
        let encoded = self.encode(io)?;
        io.write_at(0, &encoded.head)?;
        io.sync()?;
        io.write_at(encoded.tail_at, &encoded.tail)?;
        Ok(io.sync()?)
    }

    /// Closes a run, when everything else is durable. The first copy comes last: as long as it is
    /// the old one, the disk is being worked on. Boot code that is there stays.
    pub fn write_closing(&self, io: &GuardedIo) -> Result<(), TableError> {
        let mut encoded = self.encode(io)?;
        io.read(0, &mut encoded.head[..BOOT_CODE])?;
        io.write_at(encoded.tail_at, &encoded.tail)?;
        io.sync()?;
        io.write_at(0, &encoded.head)?;
        Ok(io.sync()?)
    }

    /// A table that came with an image, for a disk of another size: the copy goes to the real end of
    /// it, and the first one says where that is. What is in the first sector stays.
    pub fn write_moved(&self, io: &GuardedIo) -> Result<(), TableError> {
        let encoded = self.encode(io)?;
        io.write_at(encoded.tail_at, &encoded.tail)?;
        io.sync()?;
        let sector = usize::try_from(io.sector()).expect("it is small");
        io.write_at(io.sector(), &encoded.head[sector..])?;
        Ok(io.sync()?)
    }

    /// Whether it can be a table of a disk.
    pub fn check(&self, geometry: &Geometry) -> Result<(), LayoutError> {
        layout::encode(self, geometry).map(|_| ())
    }

    /// Takes away the copy of it at the end of a disk, if it is there.
    pub fn clear_copy(&self, io: &GuardedIo) -> Result<(), TableError> {
        let encoded = self.encode(io)?;
        let mut found = vec![0; encoded.tail.len()];
        io.read(encoded.tail_at, &mut found)?;
        if found == encoded.tail {
            io.zero(encoded.tail_at..encoded.tail_at + found.len() as u64)?;
            io.sync()?;
        }
        Ok(())
    }

    fn encode(&self, io: &GuardedIo) -> Result<layout::Encoded, TableError> {
        let encoded = layout::encode(self, &Geometry { size: io.size(), sector: io.sector() })?;
        // Half of a table is worse than none.
        io.check(0..encoded.head.len() as u64)?;
        io.check(encoded.tail_at..encoded.tail_at + encoded.tail.len() as u64)?;
        Ok(encoded)
    }
}

/// Why a table was not written.
#[derive(Debug, thiserror::Error)]
pub enum TableError {
    #[error(transparent)]
    Layout(#[from] LayoutError),
    #[error(transparent)]
    Write(#[from] WriteError),
}

impl Found {
    /// As a person sees it.
    pub fn facts(&self) -> Option<TableFacts> {
        let bare = |kind, faults| TableFacts { kind, id: None, partitions: Vec::new(), faults };
        match self {
            Self::Nothing => None,
            Self::Mbr { id, partitions } => Some(TableFacts {
                kind: TableKind::Mbr,
                id: Some(format!("{id:08x}")),
                partitions: partitions.clone(),
                faults: Vec::new(),
            }),
            Self::Damaged(flaws) => {
                Some(bare(TableKind::Gpt, flaws.iter().map(ToString::to_string).collect()))
            }
            Self::Gpt { table, flaws } => Some(TableFacts {
                kind: TableKind::Gpt,
                id: Some(table.id.to_string()),
                partitions: table.partitions.iter().map(PartitionFacts::from).collect(),
                faults: flaws.iter().map(ToString::to_string).collect(),
            }),
        }
    }
}

impl From<&Partition> for PartitionFacts {
    fn from(partition: &Partition) -> Self {
        Self {
            number: partition.number,
            start: partition.start,
            len: partition.length,
            type_guid: Some(partition.kind),
            partuuid: Some(partition.id),
            name: partition.name.clone(),
            attributes: partition.attributes,
            kernel_name: None,
        }
    }
}

/// What a disk holds in its first and last MiB, from before anything is written: both copies of a
/// table, and whatever stands beside them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Backup {
    pub head: Vec<u8>,
    pub tail: Vec<u8>,
}

/// Of each end of the disk.
const BACKUP: u64 = 1024 * 1024;

impl Backup {
    /// Of each end of a disk of this size.
    pub(super) fn length(size: u64) -> u64 {
        size.min(BACKUP)
    }

    pub fn take(disk: &impl ReadAt) -> std::io::Result<Self> {
        let length = usize::try_from(Self::length(disk.size())).expect("it is a MiB");
        let (mut head, mut tail) = (vec![0; length], vec![0; length]);
        disk.read_at(0, &mut head)?;
        disk.read_at(disk.size() - length as u64, &mut tail)?;
        Ok(Self { head, tail })
    }

    /// Puts back what may be written; the rest was not changed either. The first copy of the table
    /// comes late, as at the end of every run, and `last` after it: for as long as that says that
    /// there is something to put back, all of it can be done again.
    pub fn restore(&self, io: &GuardedIo, last: &Range<u64>) -> Result<(), WriteError> {
        let tail = io.size() - self.tail.len() as u64;
        let head = self.head.len() as u64;
        let pieces = [
            (tail, &self.tail, tail..io.size()),
            (0, &self.head, last.end..head),
            (0, &self.head, 0..last.start.min(head)),
            (0, &self.head, last.start..last.end.min(head)),
        ];
        for (at, bytes, piece) in pieces {
            for allowed in io.allowed().iter() {
                let start = allowed.start.max(piece.start);
                let end = allowed.end.min(piece.end);
                if start < end {
                    let inside = |place: u64| usize::try_from(place - at).expect("within a MiB");
                    io.write_at(start, &bytes[inside(start)..inside(end)])?;
                }
            }
            io.sync()?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::fault::{Fault, Then, When};
    use crate::device::{Identity, Ranges};

    const SIZE: u64 = 3 << 20;
    const GEOMETRY: Geometry = Geometry { size: SIZE, sector: 512 };
    const TXN: Uuid = Uuid::from_u128(0xabcd_0123);

    fn partition(number: u32, start: u64, length: u64) -> Partition {
        let (kind, id) = (Uuid::from_u128(7), Uuid::from_u128(u128::from(number)));
        Partition { number, start, length, kind, id, attributes: 0, name: format!("p{number}") }
    }

    fn old() -> Table {
        Table { id: Uuid::from_u128(1), partitions: vec![partition(1, 1 << 20, 1 << 19)] }
    }

    fn new() -> Table {
        let more = partition(2, 3 << 19, 1 << 19);
        Table { id: Uuid::from_u128(1), partitions: vec![old().partitions.remove(0), more] }
    }

    fn marked() -> Table {
        Table::in_progress(old().id, TXN, &old().partitions, &GEOMETRY)
    }

    struct Disk(tempfile::NamedTempFile);

    impl Disk {
        fn with(table: &Table) -> Self {
            let file = crate::device::scratch::file();
            file.as_file().set_len(SIZE).expect("it has a size");
            let disk = Self(file);
            let io = disk.open();
            io.write_at(0, &[0x90; BOOT_CODE]).expect("it is written");
            table.write_closing(&io).expect("it is written");
            disk
        }

        fn open(&self) -> GuardedIo {
            let meant = Identity::of(self.0.path(), 512).expect("it is there");
            let allow = Ranges::from(0..SIZE);
            GuardedIo::open(self.0.path(), &meant, &allow, &Ranges::default()).expect("it is free")
        }

        fn found(&self) -> Found {
            read(&fs_err::read(self.0.path()).expect("it is there")[..], 512).expect("it is memory")
        }
    }

    fn table(found: Found) -> Table {
        match found {
            Found::Gpt { table, .. } => table,
            other => panic!("no table: {other:?}"),
        }
    }

    #[test]
    fn a_disk_that_is_worked_on_says_so_and_keeps_what_is_retained() {
        let disk = Disk::with(&old());
        marked().write_opening(&disk.open()).expect("it is written");
        let found = disk.found();
        assert_eq!(found, Found::Gpt { table: marked(), flaws: vec![] });
        let found = table(found);
        assert_eq!(found.txn_in_progress(), Some(TXN));
        assert_eq!(found.partitions[0], old().partitions[0]);
        assert_eq!(found.partitions[1].range(), 34 * 512..FIRST_PARTITION);
        assert_eq!(old().txn_in_progress(), None);
        let first = fs_err::read(disk.0.path()).expect("it is there");
        assert!(first[..BOOT_CODE].iter().all(|byte| *byte == 0), "nothing boots from it");
        assert_eq!(found.facts_name(), "00000000-0000-0000-0000-0000abcd0123");
    }

    impl Table {
        fn facts_name(&self) -> String {
            let found = Found::Gpt { table: self.clone(), flaws: vec![] };
            found.facts().expect("a table").partitions[1].name.clone()
        }
    }

    /// Every place at which the write may end, and what reaches the disk of what was not durable.
    fn ends(
        from: &Table,
        write: impl Fn(&GuardedIo) -> Result<(), TableError>,
    ) -> Vec<(Option<Found>, bool)> {
        let mut seen = Vec::new();
        for cut in (0..40_000).step_by(509) {
            let seed = cut * 7919 + 1;
            for then in [Then::Die, Then::CutPower(seed)] {
                let disk = Disk::with(from);
                let io = disk.open().with_fault(Fault::new(When::AfterBytes(cut), then));
                let is_good = write(&io).is_ok();
                drop(io);
                seen.push((Some(disk.found()), is_good));
            }
        }
        seen
    }

    #[test]
    fn wherever_opening_ends_the_disk_is_the_old_one_or_says_that_it_is_worked_on() {
        let mut count = [0; 2];
        for (found, is_good) in ends(&old(), |io| marked().write_opening(io)) {
            let table = table(found.expect("it was looked at"));
            assert!(table == marked() || (table == old() && !is_good), "{table:?}");
            count[usize::from(table == marked())] += 1;
        }
        assert!(count[0] > 10 && count[1] > 10, "{count:?}");
    }

    #[test]
    fn wherever_closing_ends_the_disk_says_that_it_is_worked_on_or_is_complete() {
        let mut count = [0; 2];
        for (found, is_good) in ends(&marked(), |io| new().write_closing(io)) {
            let table = table(found.expect("it was looked at"));
            assert!(table == new() || (table == marked() && !is_good), "{table:?}");
            count[usize::from(table == new())] += 1;
        }
        assert!(count[0] > 10 && count[1] > 10, "{count:?}");
    }

    #[test]
    fn what_was_at_both_ends_of_a_disk_is_put_back() {
        let disk = Disk::with(&old());
        let before = fs_err::read(disk.0.path()).expect("it is there");
        let backup = Backup::take(&disk.open()).expect("it is read");
        marked().write_opening(&disk.open()).expect("it is written");
        disk.open().write_at(40_000, &[9; 5000]).expect("it is written");
        backup.restore(&disk.open(), &(32_768..40_960)).expect("it is written");
        assert!(fs_err::read(disk.0.path()).expect("it is there") == before);
    }

    #[test]
    fn a_table_outside_of_what_may_be_written_is_not_begun() {
        let disk = Disk::with(&old());
        let meant = Identity::of(disk.0.path(), 512).expect("it is there");
        let allow = Ranges::from(0..SIZE - 33 * 512);
        let io = GuardedIo::open(disk.0.path(), &meant, &allow, &Ranges::default());
        let io = io.expect("it is free");
        let error = new().write_closing(&io).expect_err("the second copy has no place");
        assert!(matches!(error, TableError::Write(WriteError::Outside { .. })), "{error}");
        assert_eq!(table(disk.found()), old());
        let error = new().write_opening(&io).expect_err("the second copy has no place");
        assert!(matches!(error, TableError::Write(WriteError::Outside { .. })), "{error}");
        assert_eq!(table(disk.found()), old(), "nothing of it was written");
    }
}
