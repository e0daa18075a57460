//! What hoist keeps on a disk of its own, in the gap between the table and the first partition: who
//! works on it, and the journal of that work. It is found again at the next boot, also if nobody else
//! can be asked.

pub mod backup;

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;

use hoist_engine::journal::{self, Contents, JournalError};
use hoist_engine::record::Record;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::guard::WriteError;
use super::table::FIRST_PARTITION;
use super::{GuardedIo, ReadAt};
use crate::document::Id;

/// Behind every table: with sectors of 4096 bytes the second one ends at 24 KiB.
pub const START: u64 = 32 * 1024;

/// A gap that is smaller holds no run.
const LEAST: u64 = 64 * 1024;

/// Two places for the marker: the one that is not valid is written, so that one always is.
const SLOT: u64 = 4096;
const SLOTS: u64 = 2;

/// What a slot begins with; the last byte is the version of the format. The length of what follows
/// and its checksum come next.
const MAGIC: [u8; 8] = *b"hoistmk\x01";
const HEAD: usize = 16;

/// What a journal begins with that is not in its place yet; the same follows.
const NEXT: [u8; 8] = *b"hoistnx\x01";

/// The gap of a disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gap(Range<u64>);

/// Why nothing can be kept on a disk, or nothing was found.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GapError {
    #[error(
        "there is no room for a journal before the first partition, at byte {first}; \
         it must not begin before byte {least}", least = START + LEAST
    )]
    NoRoom { first: u64 },
    #[error("the marker has {0} bytes; at most {most} fit", most = SLOT - HEAD as u64)]
    MarkerTooLarge(usize),
    #[error(transparent)]
    Journal(#[from] JournalError),
    #[error(transparent)]
    Write(#[from] WriteError),
    #[error("cannot read the gap")]
    Read(#[source] io::Error),
}

impl Gap {
    /// `first_partition` is where the first of those begins that stay.
    pub fn before(first_partition: Option<u64>) -> Result<Self, GapError> {
        let first = first_partition.unwrap_or(FIRST_PARTITION);
        let end = first.min(FIRST_PARTITION) / SLOT * SLOT;
        if end < START + LEAST {
            return Err(GapError::NoRoom { first });
        }
        Ok(Self(START..end))
    }

    /// What must be allowed to be written.
    pub fn range(&self) -> Range<u64> {
        self.0.clone()
    }

    /// Where it says whose disk it is.
    pub fn marker(&self) -> Range<u64> {
        self.0.start..self.0.start + SLOTS * SLOT
    }

    /// Where the journal is, and behind it where the next one is kept until it is in its place.
    fn journal(&self) -> (Range<u64>, Range<u64>) {
        let all = self.marker().end..self.0.end - backup::room(&self.0);
        let middle = all.end - (all.end - all.start) / 4 / SLOT * SLOT;
        (all.start..middle, middle..all.end)
    }

    /// Nothing is left in it, but for who works on the disk.
    pub fn clear_notes(&self, io: &GuardedIo) -> Result<(), WriteError> {
        io.zero(self.marker().end..self.0.end)?;
        io.sync()
    }

    /// Nothing of hoist's is left in it.
    pub fn clear(&self, io: &GuardedIo) -> Result<(), WriteError> {
        io.zero(self.range())?;
        io.sync()
    }
}

/// Whose disk it is.
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Marker {
    /// The node, as the inventory has it.
    pub node: String,
    pub txn: Uuid,
    /// The hash of what was planned.
    pub plan: String,
    /// Of the node's boot state.
    pub generation: u64,
    /// Everything was done.
    pub is_complete: bool,
    /// All of it is, or becomes, an image, with whatever partitions that has.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub of_image: bool,
    /// The system that the machine starts is on it, or a part of that.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub has_root: bool,
    /// All of it is being put back: that nothing is lost by that was seen before it began.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub undoing: bool,
    /// Where other disks are made empty, of which nothing else is touched. They say nothing of it
    /// themselves, neither before nor when it is done.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub emptied: BTreeMap<Id, Vec<Range<u64>>>,
}

#[derive(Serialize, Deserialize)]
struct Slot {
    /// The later one counts.
    count: u64,
    marker: Marker,
}

impl Marker {
    /// The one on a disk, if there is one.
    pub fn read(disk: &(impl ReadAt + ?Sized), gap: &Gap) -> io::Result<Option<Self>> {
        Ok(read_slots(disk, gap)?
            .into_iter()
            .flatten()
            .max_by_key(|slot| slot.count)
            .map(|s| s.marker))
    }

    /// It is durable when this has returned, and until then the one before counts.
    pub fn write(&self, io: &GuardedIo, gap: &Gap) -> Result<(), GapError> {
        let slots = read_slots(io, gap).map_err(GapError::Read)?;
        let counts: Vec<u64> =
            slots.iter().map(|slot| slot.as_ref().map_or(0, |s| s.count)).collect();
        let count = counts.iter().max().copied().unwrap_or(0).saturating_add(1);
        let oldest = (0..).zip(&counts).min_by_key(|(_, count)| **count).map_or(0, |(at, _)| at);
        let body =
            serde_json::to_vec(&Slot { count, marker: self.clone() }).expect("a plain value");
        let room = usize::try_from(SLOT).expect("it is small") - HEAD;
        if body.len() > room {
            return Err(GapError::MarkerTooLarge(body.len()));
        }
        let mut bytes = sealed(MAGIC, &body);
        bytes.resize(HEAD + room, 0);
        io.write_at(gap.0.start + oldest * SLOT, &bytes)?;
        Ok(io.sync()?)
    }
}

fn read_slots(disk: &(impl ReadAt + ?Sized), gap: &Gap) -> io::Result<Vec<Option<Slot>>> {
    let read = |number: u64| {
        let at = gap.0.start + number * SLOT;
        // A disk that is too small has none.
        if at + SLOT > disk.size() {
            return Ok(None);
        }
        let mut bytes = vec![0; usize::try_from(SLOT).expect("it is small")];
        disk.read_at(at, &mut bytes)?;
        Ok(parse_slot(&bytes))
    };
    (0..SLOTS).map(read).collect()
}

fn parse_slot(bytes: &[u8]) -> Option<Slot> {
    serde_json::from_slice(unsealed(MAGIC, bytes)?).ok()
}

/// With how long it is, and a checksum: what is torn is nothing.
fn sealed(magic: [u8; 8], body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len()).expect("a gap is small");
    [&magic[..], &length.to_le_bytes(), &crc32fast::hash(body).to_le_bytes(), body].concat()
}

fn unsealed(magic: [u8; 8], bytes: &[u8]) -> Option<&[u8]> {
    let (head, rest) = bytes.strip_prefix(&magic)?.split_first_chunk::<8>()?;
    let word = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    let body = rest.get(..usize::try_from(word(0)).ok()?)?;
    (crc32fast::hash(body) == word(4)).then_some(body)
}

/// The journal of a run, in the gap of a disk that the run is about.
#[derive(Debug)]
pub struct GapJournal {
    place: Range<u64>,
    next: u32,
    length: u64,
    /// A write failed: what the disk holds is not known any more.
    is_broken: bool,
}

impl GapJournal {
    /// A new one, with these records. What was there before is there, or these are: what they carry
    /// over is nowhere else.
    pub fn create(io: &GuardedIo, gap: &Gap, records: &[Record]) -> Result<Self, GapError> {
        let (place, next) = gap.journal();
        settle(io, gap)?;
        let mut bytes = journal::MAGIC.to_vec();
        journal::frames(records, 0, &mut bytes)?;
        if bytes.len() as u64 > place.end - place.start {
            return Err(JournalError::Full(io::ErrorKind::StorageFull.into()).into());
        }
        let kept = sealed(NEXT, &bytes);
        // More than has room there is worth less than to go on.
        if kept.len() as u64 <= next.end - next.start {
            io.write_at(next.start, &kept)?;
            io.sync()?;
        }
        put(io, gap, &bytes)?;
        let count = u32::try_from(records.len()).expect("a gap is small");
        Ok(Self { place, next: count, length: bytes.len() as u64, is_broken: false })
    }

    /// The one that is there, with its records; a torn tail is cut off. Nothing where there is none,
    /// because it had not come to that.
    pub fn open(io: &GuardedIo, gap: &Gap) -> Result<Option<(Self, Vec<Record>)>, GapError> {
        settle(io, gap)?;
        let (place, _) = gap.journal();
        let Contents { records, length } = match load(io, gap) {
            Err(GapError::Journal(JournalError::NoJournal)) => return Ok(None),
            loaded => loaded?,
        };
        if length == 0 {
            return Ok(None);
        }
        let length = length as u64;
        io.zero(place.start + length..place.end)?;
        io.sync()?;
        let next = u32::try_from(records.len()).expect("a gap is small");
        Ok(Some((Self { place, next, length, is_broken: false }, records)))
    }

    /// The records of a disk that is only looked at; nothing if there is no journal.
    pub fn peek(disk: &(impl ReadAt + ?Sized), gap: &Gap) -> Result<Option<Vec<Record>>, GapError> {
        if gap.0.end > disk.size() {
            return Ok(None);
        }
        match load(disk, gap) {
            Ok(contents) if contents.length == 0 => Ok(None),
            Ok(contents) => Ok(Some(contents.records)),
            Err(GapError::Journal(JournalError::NoJournal)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Bytes that are left for records.
    pub fn room(&self) -> u64 {
        self.place.end - self.place.start - self.length
    }

    /// Makes everything durable that was written to the disk so far, and then the records, which may
    /// say so.
    pub fn append(&mut self, io: &GuardedIo, records: &[Record]) -> Result<(), GapError> {
        if self.is_broken {
            let reason = "an earlier write failed; what is durable is known when it is read back";
            return Err(JournalError::from(io::Error::other(reason)).into());
        }
        let mut bytes = Vec::new();
        journal::frames(records, self.next, &mut bytes)?;
        if bytes.len() as u64 > self.room() {
            return Err(JournalError::Full(io::ErrorKind::StorageFull.into()).into());
        }
        io.sync()?;
        self.is_broken = true;
        io.write_at(self.place.start + self.length, &bytes)?;
        io.sync()?;
        self.is_broken = false;
        self.length += bytes.len() as u64;
        self.next += u32::try_from(records.len()).expect("a gap is small");
        Ok(())
    }
}

/// What comes into the place of the journal, and nothing of what was there; then it is kept nowhere
/// else any more.
fn put(io: &GuardedIo, gap: &Gap, bytes: &[u8]) -> Result<(), GapError> {
    let (place, next) = gap.journal();
    io.zero(place.clone())?;
    io.sync()?;
    io.write_at(place.start, bytes)?;
    io.sync()?;
    io.zero(next.start..next.start + SLOT)?;
    Ok(io.sync()?)
}

/// A journal that was on its way comes into its place.
fn settle(io: &GuardedIo, gap: &Gap) -> Result<(), GapError> {
    match on_its_way(io, gap)? {
        Some(bytes) => put(io, gap, &bytes),
        None => Ok(()),
    }
}

fn on_its_way(disk: &(impl ReadAt + ?Sized), gap: &Gap) -> Result<Option<Vec<u8>>, GapError> {
    let bytes = read(disk, &gap.journal().1)?;
    // The checksum of nothing is that of zeros.
    let whole = unsealed(NEXT, &bytes).filter(|body| body.starts_with(&journal::MAGIC));
    Ok(whole.map(<[u8]>::to_vec))
}

fn read(disk: &(impl ReadAt + ?Sized), range: &Range<u64>) -> Result<Vec<u8>, GapError> {
    let mut bytes = vec![0; usize::try_from(range.end - range.start).expect("less than a MiB")];
    disk.read_at(range.start, &mut bytes).map_err(GapError::Read)?;
    Ok(bytes)
}

fn load(disk: &(impl ReadAt + ?Sized), gap: &Gap) -> Result<Contents, GapError> {
    let bytes = match on_its_way(disk, gap)? {
        Some(bytes) => bytes,
        None => read(disk, &gap.journal().0)?,
    };
    // Records are text, so no zero behind the last one belongs to it.
    let used = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    Ok(journal::read(&bytes[..used])?)
}

#[cfg(test)]
mod tests {
    use hoist_engine::plan::StepId;
    use proptest::prelude::*;

    use super::*;
    use crate::device::fault::{Fault, Then, When};
    use crate::device::{Identity, Ranges};

    /// Of the smallest gap that there is.
    const FIRST: u64 = START + LEAST;

    struct Disk(tempfile::NamedTempFile);

    impl Disk {
        fn new() -> Self {
            let file = crate::device::scratch::file();
            // An older journal was there, and something else.
            fs_err::write(file.path(), vec![b'7'; usize::try_from(FIRST).expect("small")])
                .expect("written");
            Self(file)
        }

        fn open(&self, fault: Option<Fault>) -> GuardedIo {
            let meant = Identity::of(self.0.path(), 512).expect("it is there");
            let allow = Ranges::from(gap().range());
            let io = GuardedIo::open(self.0.path(), &meant, &allow, &Ranges::default());
            let io = io.expect("it is free");
            match fault {
                Some(fault) => io.with_fault(fault),
                None => io,
            }
        }
    }

    fn gap() -> Gap {
        Gap::before(Some(FIRST)).expect("it has room")
    }

    fn record(number: u32) -> Record {
        let done = u64::from(number) << 22;
        Record::Reached { step: StepId(number), attempt: 1, done, at: 0 }
    }

    /// Lots of one, two and three records, until one fails. Says how many are durable.
    fn append_all(journal: &mut GapJournal, io: &GuardedIo, from: u32) -> u32 {
        let mut number = from;
        for lot in [1, 2, 3, 1] {
            let records: Vec<Record> = (number..number + lot).map(record).collect();
            if journal.append(io, &records).is_err() {
                assert!(
                    journal.append(io, &records).is_err(),
                    "nothing is put behind what is not known"
                );
                return number;
            }
            number += lot;
        }
        number
    }

    #[test]
    fn wherever_a_write_ends_what_was_durable_is_read_back_and_the_journal_goes_on() {
        let whole = {
            let (disk, mut length) = (Disk::new(), 0);
            let io = disk.open(Some(Fault::new(When::Never, Then::Fail)));
            let mut journal = GapJournal::create(&io, &gap(), &[]).expect("it has room");
            length += io.fault().expect("it has one").written().bytes;
            append_all(&mut journal, &io, 0);
            io.fault().expect("it has one").written().bytes - length
        };
        assert!(whole > 500, "{whole}");
        for cut in 0..=whole {
            for then in [Then::Die, Then::CutPower(cut + 1)] {
                let disk = Disk::new();
                let create = GapJournal::create(&disk.open(None), &gap(), &[]);
                let mut journal = create.expect("it has room");
                let io = disk.open(Some(Fault::new(When::AfterBytes(cut), then)));
                let durable = append_all(&mut journal, &io, 0);
                drop(io);
                let seen = GapJournal::peek(&disk.open(None), &gap()).expect("it is sound");
                let opened = GapJournal::open(&disk.open(None), &gap()).expect("it is sound");
                let (mut journal, read) = opened.expect("it was created");
                assert_eq!(seen.as_ref(), Some(&read), "looking sees the same, at {cut}");
                assert!(read.len() as u64 >= u64::from(durable), "at {cut}: {durable} {read:?}");
                let count = u32::try_from(read.len()).expect("few");
                assert!(count <= durable + 3 && read == (0..count).map(record).collect::<Vec<_>>());
                append_all(&mut journal, &disk.open(None), count);
                let again = GapJournal::peek(&disk.open(None), &gap()).expect("it is sound");
                assert_eq!(again, Some((0..count + 7).map(record).collect()));
            }
        }
    }

    #[test]
    fn wherever_creating_ends_there_is_the_old_one_or_the_new_one() {
        let carried = [record(1), record(2)];
        for cut in (0..80_000_u64).step_by(997).chain(0..600).chain(45_000..46_200) {
            let disk = Disk::new();
            GapJournal::create(&disk.open(None), &gap(), &[record(9)]).expect("it has room");
            let io = disk.open(Some(Fault::new(When::AfterBytes(cut), Then::CutPower(cut + 1))));
            let created = GapJournal::create(&io, &gap(), &carried).is_ok();
            drop(io);
            let seen = GapJournal::peek(&disk.open(None), &gap()).expect("it is sound");
            let is_old = seen.as_deref() == Some(&[record(9)]) && !created;
            assert!(is_old || seen.as_deref() == Some(&carried), "at {cut}: {seen:?}");
            // Cut off once more, when it is opened or replaced.
            let io = disk.open(Some(Fault::new(When::AfterBytes(cut), Then::CutPower(cut + 2))));
            let _ = GapJournal::open(&io, &gap());
            drop(io);
            let again = GapJournal::peek(&disk.open(None), &gap()).expect("it is sound");
            assert_eq!(again, seen, "at {cut}");
            let io = disk.open(Some(Fault::new(When::AfterBytes(cut), Then::CutPower(cut + 3))));
            let _ = GapJournal::create(&io, &gap(), &[record(5)]);
            drop(io);
            let (_, last) =
                GapJournal::open(&disk.open(None), &gap()).expect("sound").expect("it is there");
            assert!(Some(&last) == seen.as_ref() || last == [record(5)], "at {cut}: {last:?}");
        }
    }

    #[test]
    fn a_journal_that_is_full_says_so_and_stays_whole() {
        let disk = Disk::new();
        let io = disk.open(None);
        let mut journal = GapJournal::create(&io, &gap(), &[]).expect("it has room");
        let reason = "x".repeat(15_000);
        let large = Record::Refused { step: StepId(0), attempt: 1, reason, at: 0 };
        journal.append(&io, &[large.clone(), large.clone()]).expect("two fit");
        let error = journal.append(&io, std::slice::from_ref(&large)).expect_err("three do not");
        assert!(matches!(error, GapError::Journal(JournalError::Full(_))), "{error}");
        journal.append(&io, &[record(1)]).expect("there is room for a small one");
        drop(io);
        let seen = GapJournal::peek(&disk.open(None), &gap()).expect("it is sound");
        assert_eq!(seen, Some(vec![large.clone(), large, record(1)]));
    }

    #[test]
    fn a_gap_that_is_too_small_is_none() {
        assert!(matches!(Gap::before(Some(FIRST - 1)), Err(GapError::NoRoom { .. })));
        assert_eq!(Gap::before(None).expect("it has room").range(), START..FIRST_PARTITION);
        let disk = [0; 100];
        assert_eq!(Marker::read(&disk[..], &gap()).expect("it is memory"), None);
        assert!(GapJournal::peek(&disk[..], &gap()).expect("it is memory").is_none());
    }

    #[test]
    fn wherever_writing_the_marker_ends_the_one_before_counts_or_the_new_one() {
        let marker = |is_complete| Marker {
            node: "n1".to_owned(),
            txn: Uuid::from_u128(7),
            plan: "sha256:00".to_owned(),
            generation: 3,
            is_complete,
            of_image: false,
            has_root: false,
            undoing: false,
            emptied: BTreeMap::new(),
        };
        for cut in (0..5000).step_by(61) {
            for then in [Then::Die, Then::CutPower(cut + 1)] {
                let disk = Disk::new();
                assert_eq!(Marker::read(&disk.open(None), &gap()).expect("it is read"), None);
                let begun = Marker { generation: 2, ..marker(false) };
                for before in [begun, marker(false)] {
                    before.write(&disk.open(None), &gap()).expect("it is written");
                }
                let io = disk.open(Some(Fault::new(When::AfterBytes(cut), then)));
                let is_good = marker(true).write(&io, &gap()).is_ok();
                drop(io);
                let found = Marker::read(&disk.open(None), &gap()).expect("it is read");
                let found = found.expect("there is always one");
                assert!(found == marker(true) || (found == marker(false) && !is_good), "{found:?}");
            }
        }
        let disk = Disk::new();
        let large = Marker { node: "n".repeat(5000), ..marker(true) };
        let error = large.write(&disk.open(None), &gap()).expect_err("it is too large");
        assert!(matches!(error, GapError::MarkerTooLarge(_)), "{error}");
    }

    proptest! {
        #[test]
        fn whatever_the_gap_holds_it_is_looked_at_without_panic(
            noise in prop::collection::vec((0..FIRST - 16, any::<[u8; 16]>()), 0..40),
            body in prop::collection::vec(any::<u8>(), 0..100),
            is_torn in any::<bool>(),
        ) {
            let disk = Disk::new();
            let io = disk.open(None);
            GapJournal::create(&io, &gap(), &[record(1), record(2)]).expect("it has room");
            drop(io);
            let mut bytes = fs_err::read(disk.0.path()).expect("it is there");
            let at = |at: u64| usize::try_from(at).expect("small");
            for (place, noise) in noise {
                bytes[at(place)..at(place) + 16].copy_from_slice(&noise);
            }
            // With checksums that fit, too.
            let next = at(gap().journal().1.start);
            let places = [(at(START), sealed(MAGIC, &body)), (next, sealed(NEXT, &body))];
            for (place, sealed) in places.into_iter().skip(usize::from(is_torn)) {
                bytes[place..place + sealed.len()].copy_from_slice(&sealed);
            }
            let _ = Marker::read(&bytes[..], &gap());
            let _ = GapJournal::peek(&bytes[..], &gap());
        }
    }
}
