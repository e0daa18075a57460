//! Backups of both ends of a disk, taken before hoist writes to it. They are stored on the disk
//! itself and by the controller.

use std::io;
use std::ops::Range;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::document::{Bytes, Id};
use crate::facts::PartitionFacts;
use crate::metadata_area::{LEAST, MetadataArea};
use crate::partition_table::{self, TableOnDisk};
use crate::read_at::ReadAt;

/// Bytes of a backup, at the end of a metadata area that has room for it.
const ROOM: u64 = 256 * 1024;

/// The magic of a backup; its last byte is the version of the format. The lengths of the parts and
/// their checksum follow.
const MAGIC: [u8; 8] = *b"hoistbk\x01";

/// The first and last MiB of a disk before the first write: both copies of the table, and the bytes
/// around them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Backup {
    pub head: Vec<u8>,
    pub tail: Vec<u8>,
}

/// Bytes of each end of the disk.
const BACKUP: u64 = 1024 * 1024;

impl Backup {
    /// Bytes of each end of a disk of this size.
    pub fn length(size: u64) -> u64 {
        size.min(BACKUP)
    }
}

/// The run that made a backup.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackupOrigin {
    /// The transaction that opened the disk.
    pub txn: Uuid,
    /// The ranges that the run may write.
    pub writable: Vec<Range<u64>>,
    /// Descriptions of the destroyed signatures.
    pub destroys: Vec<String>,
    /// The disk with the journal of the run, which records whether a step began. `None` without a
    /// journal.
    pub journal: Option<Id>,
}

/// The backup of one disk with the identity of the disk, as the controller stores it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TakenBackup {
    pub disk: Id,
    pub kernel_name: String,
    pub size: u64,
    pub sector: u32,
    pub before: BackupOrigin,
    pub ends: Backup,
}

impl BackupOrigin {
    /// Adds the ranges and signatures of another attempt of the same transaction. That attempt has
    /// a new journal, which does not record whether this attempt began.
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        let mut all = Self { journal: None, ..self.clone() };
        let new = |range: &&Range<u64>| !self.writable.contains(range);
        all.writable.extend(other.writable.iter().filter(new).cloned());
        let new = |what: &&String| !self.destroys.contains(what);
        all.destroys.extend(other.destroys.iter().filter(new).cloned());
        all
    }
}

/// Bytes of a metadata area that are reserved for the backup.
pub fn room(area: &Range<u64>) -> u64 {
    if area.end - area.start >= LEAST + ROOM { ROOM } else { 0 }
}

pub fn place(area: &MetadataArea) -> Range<u64> {
    let whole = area.range();
    whole.end - room(&whole)..whole.end
}

/// The stored form of a backup.
pub fn pack(before: &BackupOrigin, backup: &Backup) -> io::Result<Vec<u8>> {
    let about = serde_json::to_vec(before).expect("a plain value");
    let ends = [&backup.head[..], &backup.tail].concat();
    let packed = zstd::bulk::compress(&ends, 3)?;
    let number = |length: usize| {
        let number = u32::try_from(length).map_err(io::Error::other)?;
        Ok::<_, io::Error>(number.to_le_bytes())
    };
    let body = [&about[..], &packed].concat();
    let sum = crc32fast::hash(&body).to_le_bytes();
    let head = [&MAGIC[..], &number(about.len())?, &number(packed.len())?, &sum].concat();
    Ok([head, body].concat())
}

/// Reads the result of [`pack`] for a disk of this size.
pub fn parse(bytes: &[u8], size: u64) -> Option<(BackupOrigin, Backup)> {
    let rest = bytes.strip_prefix(&MAGIC)?;
    let word = |at: usize| Some(u32::from_le_bytes(rest.get(at..at + 4)?.try_into().ok()?));
    let about = usize::try_from(word(0)?).ok()?;
    let packed = usize::try_from(word(4)?).ok()?;
    let body = rest.get(12..)?.get(..about.checked_add(packed)?)?;
    if crc32fast::hash(body) != word(8)? {
        return None;
    }
    let length = usize::try_from(Backup::length(size)).ok()?;
    let ends = zstd::bulk::decompress(&body[about..], 2 * length).ok()?;
    let (head, tail) = (ends.len() == 2 * length).then(|| ends.split_at(length))?;
    let backup = Backup { head: head.to_vec(), tail: tail.to_vec() };
    Some((serde_json::from_slice(&body[..about]).ok()?, backup))
}

/// A disk with the backed-up ends, and zeros between.
#[derive(Debug)]
pub struct Ends<'a> {
    pub size: u64,
    pub backup: &'a Backup,
}

impl ReadAt for Ends<'_> {
    fn size(&self) -> u64 {
        self.size
    }

    fn read_at(&self, at: u64, into: &mut [u8]) -> std::io::Result<()> {
        into.fill(0);
        let tail = self.size - self.backup.tail.len() as u64;
        for (start, bytes) in [(tail, &self.backup.tail), (0, &self.backup.head)] {
            let from = at.max(start);
            let end = (at + into.len() as u64).min(start + bytes.len() as u64);
            if from < end {
                let index = |place: u64, base: u64| usize::try_from(place - base).expect("small");
                let inside = &bytes[index(from, start)..index(end, start)];
                into[index(from, at)..index(end, at)].copy_from_slice(inside);
            }
        }
        Ok(())
    }
}

/// Former contents that are lost once a step wrote behind the table.
pub fn gone(table: &TableOnDisk, before: &BackupOrigin) -> Vec<String> {
    let parts = table.facts().map(|facts| facts.partitions).unwrap_or_default();
    let is_hit = |start: u64, end: u64| {
        before.writable.iter().any(|range| range.start < end && start < range.end)
    };
    let gone = parts.iter().filter(|part| is_hit(part.start, part.start.saturating_add(part.len)));
    let say = |part: &PartitionFacts| {
        format!("partition {} at {}, {}", part.number, Bytes(part.start), Bytes(part.len))
    };
    gone.map(say).chain(before.destroys.iter().cloned()).collect()
}

/// Former contents that a restored table does not bring back, once a step of the run began.
pub fn would_be_lost(taken: &TakenBackup) -> Vec<String> {
    let ends = Ends { size: taken.size, backup: &taken.ends };
    match partition_table::read(&ends, taken.sector) {
        Ok(table) => gone(&table, &taken.before),
        Err(_) => taken.before.destroys.clone(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SIZE: u64 = 4096;

    fn with_sum(about: &[u8], packed: &[u8]) -> Vec<u8> {
        let number = |bytes: &[u8]| u32::try_from(bytes.len()).expect("small").to_le_bytes();
        let body = [about, packed].concat();
        let sum = crc32fast::hash(&body).to_le_bytes();
        [&MAGIC[..], &number(about), &number(packed), &sum, &body].concat()
    }

    proptest! {
        #[test]
        fn backup_round_trips_and_other_bytes_are_refused(
            head in any::<[u8; 32]>(),
            about in prop::collection::vec(any::<u8>(), 0..80),
            packed in prop::collection::vec(any::<u8>(), 0..80),
            flips in prop::collection::vec((0..4096_usize, any::<u8>()), 1..4),
        ) {
            let length = usize::try_from(Backup::length(SIZE)).expect("small");
            let ends = Backup { head: head.repeat(length / 32), tail: vec![7; length] };
            let before = BackupOrigin {
                txn: Uuid::from_u128(7),
                writable: std::iter::once(0..SIZE).collect(),
                destroys: vec!["a table".to_owned()],
                journal: None,
            };
            let mut bytes = pack(&before, &ends).expect("it is memory");
            let kept = parse(&bytes, SIZE);
            prop_assert_eq!(kept, Some((before, ends)));
            // The sender can forge the checksum.
            let _ = parse(&with_sum(&about, &packed), SIZE);
            let _ = parse(&with_sum(&about, &bytes), SIZE);
            for (at, byte) in flips {
                let at = at % bytes.len();
                bytes[at] ^= byte;
            }
            let _ = parse(&bytes, SIZE);
            let _ = parse(&bytes[..bytes.len() / 2], SIZE);
        }
    }
}
