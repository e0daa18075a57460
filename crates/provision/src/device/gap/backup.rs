//! What a disk held at both of its ends before hoist wrote to it, kept in its gap.

use std::io;
use std::ops::Range;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{Gap, GapError, LEAST};
use crate::device::table::Backup;
use crate::device::{GuardedIo, ReadAt};
use crate::document::Id;

/// At the end of a gap that has room for it.
const ROOM: u64 = 256 * 1024;

/// What it begins with; the last byte is the version of the format. The lengths of what follows and
/// its checksum come next.
const MAGIC: [u8; 8] = *b"hoistbk\x01";

/// What is known of it beside its bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Before {
    /// Which transaction began with the disk.
    pub txn: Uuid,
    /// What it may write to.
    pub writable: Vec<Range<u64>>,
    /// What it destroys, in words.
    pub destroys: Vec<String>,
    /// The disk with the journal, which says whether anything was begun; nothing, if it has none.
    pub journal: Option<Id>,
}

/// What one disk held, to be kept elsewhere too.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Taken {
    pub disk: Id,
    pub kernel_name: String,
    pub size: u64,
    pub sector: u32,
    pub before: Before,
    pub ends: Backup,
}

impl Before {
    /// With what another attempt of the same transaction may write to and destroys. Its journal
    /// begins anew, and nobody knows from there whether this one had begun.
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

/// Of a gap, what is no journal's.
pub(super) fn room(gap: &Range<u64>) -> u64 {
    if gap.end - gap.start >= LEAST + ROOM { ROOM } else { 0 }
}

fn place(gap: &Gap) -> Range<u64> {
    let whole = gap.range();
    whole.end - room(&whole)..whole.end
}

/// Keeps it, unless it is there already, or does not fit.
pub fn keep(io: &GuardedIo, gap: &Gap, before: &Before, backup: &Backup) -> Result<(), GapError> {
    let found = read(io, gap).map_err(GapError::Read)?;
    if found.is_some_and(|(found, _)| found == *before) {
        return Ok(());
    }
    let place = place(gap);
    let bytes = pack(before, backup).map_err(GapError::Read)?;
    io.zero(place.clone())?;
    if bytes.len() as u64 <= place.end - place.start {
        io.write_at(place.start, &bytes)?;
    }
    Ok(io.sync()?)
}

/// As it is kept, in a gap and elsewhere.
pub fn pack(before: &Before, backup: &Backup) -> io::Result<Vec<u8>> {
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

/// What was kept, if it was.
pub fn read(disk: &impl ReadAt, gap: &Gap) -> io::Result<Option<(Before, Backup)>> {
    let place = place(gap);
    if place.is_empty() || place.end > disk.size() {
        return Ok(None);
    }
    let mut bytes = vec![0; usize::try_from(place.end - place.start).expect("less than a MiB")];
    disk.read_at(place.start, &mut bytes)?;
    Ok(parse(&bytes, disk.size()))
}

/// What [`pack`] made of a disk of this size.
pub fn parse(bytes: &[u8], size: u64) -> Option<(Before, Backup)> {
    let rest = bytes.strip_prefix(&MAGIC)?;
    let word = |at: usize| Some(u32::from_le_bytes(rest.get(at..at + 4)?.try_into().ok()?));
    let (about, packed) = (usize::try_from(word(0)?).ok()?, usize::try_from(word(4)?).ok()?);
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
        fn what_is_kept_is_read_again_and_nothing_else_is(
            head in any::<[u8; 32]>(),
            about in prop::collection::vec(any::<u8>(), 0..80),
            packed in prop::collection::vec(any::<u8>(), 0..80),
            flips in prop::collection::vec((0..4096_usize, any::<u8>()), 1..4),
        ) {
            let length = usize::try_from(Backup::length(SIZE)).expect("small");
            let ends = Backup { head: head.repeat(length / 32), tail: vec![7; length] };
            let before = Before {
                txn: Uuid::from_u128(7),
                writable: std::iter::once(0..SIZE).collect(),
                destroys: vec!["a table".to_owned()],
                journal: None,
            };
            let mut bytes = pack(&before, &ends).expect("it is memory");
            let kept = parse(&bytes, SIZE);
            prop_assert_eq!(kept, Some((before, ends)));
            // Whoever sends it can make the checksum fit.
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
