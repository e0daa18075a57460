//! Writing partition tables.
//!
//! The order of writes guarantees that a disk always has one of three states: old, in progress, or
//! complete. The opening table is written before anything else. The closing table is written when
//! everything else is durable.

use std::ops::Range;

use hoist_provision::metadata_area::START;
use hoist_provision::partition_table::{EncodedTable, Geometry, LayoutError, Table, encode};
use hoist_provision::read_at::ReadAt as _;

use crate::GuardedIo;
use crate::guard::WriteError;

/// Bytes of boot code before the table of an MBR.
const BOOT_CODE: usize = 440;

/// Opens a run: from now on the table marks the disk as in progress, and nothing boots from it. The
/// primary copy is written first: it is valid without the backup copy, and until it is complete the
/// old table is valid. The first of its entries, which name the transaction, are written before
/// everything else: a disk without an old table is recognised as a disk of this run wherever the
/// power is cut.
pub fn write_opening(table: &Table, io: &GuardedIo) -> Result<(), TableError> {
    let encoded = encoded(table, io)?;
    let (header, entries) = encoded.head.split_at(header_length(io));
    // A sector is written as a whole or not at all.
    let first = &entries[..entries.len().min(header.len() / 2)];
    for (at, piece) in [(header.len(), first), (header.len(), entries), (0, header)] {
        io.write_at(at as u64, piece)?;
        io.sync()?;
    }
    io.write_at(encoded.tail_at, &encoded.tail)?;
    Ok(io.sync()?)
}

/// Closes a run, when everything else is durable. The primary copy is written last: until then the
/// disk stays in progress. Existing boot code is kept.
pub fn write_closing(table: &Table, io: &GuardedIo) -> Result<(), TableError> {
    let mut encoded = encoded(table, io)?;
    io.read(0, &mut encoded.head[..BOOT_CODE])?;
    io.write_at(encoded.tail_at, &encoded.tail)?;
    io.sync()?;
    io.write_at(0, &encoded.head)?;
    Ok(io.sync()?)
}

/// Writes the table of an image to a disk of another size: the backup copy moves to the real end of
/// the disk, and the first copy points to it. The first sector stays unchanged.
pub fn write_moved(table: &Table, io: &GuardedIo) -> Result<(), TableError> {
    let encoded = encoded(table, io)?;
    io.write_at(encoded.tail_at, &encoded.tail)?;
    io.sync()?;
    let sector = usize::try_from(io.sector()).expect("it is small");
    io.write_at(io.sector(), &encoded.head[sector..])?;
    Ok(io.sync()?)
}

/// Removes the backup copy of this table from the end of a disk, if it is there.
pub fn clear_copy(table: &Table, io: &GuardedIo) -> Result<(), TableError> {
    let encoded = encoded(table, io)?;
    let mut found = vec![0; encoded.tail.len()];
    io.read(encoded.tail_at, &mut found)?;
    if found == encoded.tail {
        io.zero(encoded.tail_at..encoded.tail_at + found.len() as u64)?;
        io.sync()?;
    }
    Ok(())
}

/// The ranges of an in-progress table, in the order in which an erasure clears them. The entries
/// are last, so a power cut leaves a disk that is empty or names the transaction.
pub(crate) fn clearing_order(io: &GuardedIo) -> [Range<u64>; 2] {
    let entries = header_length(io) as u64;
    [0..entries, entries..START]
}

/// Bytes of the protective MBR and of the header.
fn header_length(io: &GuardedIo) -> usize {
    usize::try_from(2 * io.sector()).expect("it is small")
}

fn encoded(table: &Table, io: &GuardedIo) -> Result<EncodedTable, TableError> {
    let encoded = encode(table, &Geometry { size: io.size(), sector: io.sector() })?;
    // A partial table is worse than none.
    io.check(0..encoded.head.len() as u64)?;
    io.check(encoded.tail_at..encoded.tail_at + encoded.tail.len() as u64)?;
    Ok(encoded)
}

/// The reason why a table was not written.
#[derive(Debug, thiserror::Error)]
pub enum TableError {
    #[error(transparent)]
    Layout(#[from] LayoutError),
    #[error(transparent)]
    Write(#[from] WriteError),
}

#[cfg(test)]
mod tests {
    use hoist_provision::partition_table::{FIRST_PARTITION, Partition, TableOnDisk, read};
    use uuid::Uuid;

    use super::*;
    use crate::fault::{Fault, FaultEffect, FaultTrigger};
    use crate::metadata_area::backup;
    use crate::{Identity, Ranges};

    const SIZE: u64 = 3 << 20;
    const GEOMETRY: Geometry = Geometry { size: SIZE, sector: 512 };
    const TXN: Uuid = Uuid::from_u128(0xabcd_0123);

    fn partition(number: u32, start: u64, length: u64) -> Partition {
        let kind = Uuid::from_u128(7);
        let id = Uuid::from_u128(u128::from(number));
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
            let file = crate::scratch::file();
            file.as_file().set_len(SIZE).expect("it has a size");
            let disk = Self(file);
            let io = disk.open();
            io.write_at(0, &[0x90; BOOT_CODE]).expect("it is written");
            write_closing(table, &io).expect("it is written");
            disk
        }

        fn open(&self) -> GuardedIo {
            let meant = Identity::of(self.0.path(), 512).expect("it is there");
            let allow = Ranges::from(0..SIZE);
            GuardedIo::open(self.0.path(), &meant, &allow, &Ranges::default()).expect("it is free")
        }

        fn found(&self) -> TableOnDisk {
            read(&fs_err::read(self.0.path()).expect("it is there")[..], 512).expect("it is memory")
        }
    }

    fn table(found: TableOnDisk) -> Table {
        match found {
            TableOnDisk::Gpt { table, .. } => table,
            other => panic!("no table: {other:?}"),
        }
    }

    #[test]
    fn opened_disk_is_marked_and_keeps_retained_bytes() {
        let disk = Disk::with(&old());
        write_opening(&marked(), &disk.open()).expect("it is written");
        let found = disk.found();
        assert_eq!(found, TableOnDisk::Gpt { table: marked(), flaws: vec![] });
        let found = table(found);
        assert_eq!(found.txn_in_progress(), Some(TXN));
        assert_eq!(found.partitions[0], old().partitions[0]);
        assert_eq!(found.partitions[1].range(), 34 * 512..FIRST_PARTITION);
        assert_eq!(old().txn_in_progress(), None);
        let first = fs_err::read(disk.0.path()).expect("it is there");
        assert!(first[..BOOT_CODE].iter().all(|byte| *byte == 0), "nothing boots from it");
        assert_eq!(facts_name(&found), "00000000-0000-0000-0000-0000abcd0123");
    }

    fn facts_name(table: &Table) -> String {
        let found = TableOnDisk::Gpt { table: table.clone(), flaws: vec![] };
        found.facts().expect("a table").partitions[1].name.clone()
    }

    /// Interrupts the write at many positions, with and without loss of unsynced data.
    fn ends(
        from: &Table,
        write: impl Fn(&GuardedIo) -> Result<(), TableError>,
    ) -> Vec<(Option<TableOnDisk>, bool)> {
        let mut seen = Vec::new();
        for cut in (0..40_000).step_by(509) {
            let seed = cut * 7919 + 1;
            for then in [FaultEffect::Die, FaultEffect::CutPower(seed)] {
                let disk = Disk::with(from);
                let io = disk.open().with_fault(Fault::new(FaultTrigger::AfterBytes(cut), then));
                let is_good = write(&io).is_ok();
                drop(io);
                seen.push((Some(disk.found()), is_good));
            }
        }
        seen
    }

    #[test]
    fn interrupted_open_leaves_the_old_table_or_a_marked_one() {
        let mut count = [0; 2];
        for (found, is_good) in ends(&old(), |io| write_opening(&marked(), io)) {
            let table = table(found.expect("it was looked at"));
            assert!(table == marked() || (table == old() && !is_good), "{table:?}");
            count[usize::from(table == marked())] += 1;
        }
        assert!(count[0] > 10 && count[1] > 10, "{count:?}");
    }

    #[test]
    fn interrupted_close_leaves_a_marked_or_complete_table() {
        let mut count = [0; 2];
        for (found, is_good) in ends(&marked(), |io| write_closing(&new(), io)) {
            let table = table(found.expect("it was looked at"));
            assert!(table == new() || (table == marked() && !is_good), "{table:?}");
            count[usize::from(table == new())] += 1;
        }
        assert!(count[0] > 10 && count[1] > 10, "{count:?}");
    }

    #[test]
    fn both_ends_of_a_disk_are_restored() {
        let disk = Disk::with(&old());
        let before = fs_err::read(disk.0.path()).expect("it is there");
        let ends = backup::take(&disk.open()).expect("it is read");
        write_opening(&marked(), &disk.open()).expect("it is written");
        disk.open().write_at(40_000, &[9; 5000]).expect("it is written");
        backup::restore(&ends, &disk.open(), &(32_768..40_960)).expect("it is written");
        assert!(fs_err::read(disk.0.path()).expect("it is there") == before);
    }

    #[test]
    fn table_outside_the_allowed_ranges_is_not_started() {
        let disk = Disk::with(&old());
        let meant = Identity::of(disk.0.path(), 512).expect("it is there");
        let allow = Ranges::from(0..SIZE - 33 * 512);
        let io = GuardedIo::open(disk.0.path(), &meant, &allow, &Ranges::default());
        let io = io.expect("it is free");
        let error = write_closing(&new(), &io).expect_err("the second copy has no place");
        assert!(matches!(error, TableError::Write(WriteError::Outside { .. })), "{error}");
        assert_eq!(table(disk.found()), old());
        let error = write_opening(&new(), &io).expect_err("the second copy has no place");
        assert!(matches!(error, TableError::Write(WriteError::Outside { .. })), "{error}");
        assert_eq!(table(disk.found()), old(), "nothing of it was written");
    }
}
