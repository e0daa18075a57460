//! Reading and writing the metadata area of a disk, between its table and its first partition: the
//! marker of the run and its journal. The next boot finds both without the controller.

pub mod backup;

use std::io;
use std::ops::Range;

use hoist_engine::journal::{self, Contents, JournalError};
use hoist_engine::record::Record;
use hoist_provision::metadata_area::{Marker, MetadataArea, NoRoom, SLOT, SLOTS};
use hoist_provision::read_at::ReadAt;
use serde::{Deserialize, Serialize};

use crate::GuardedIo;
use crate::guard::WriteError;

/// The first bytes of a slot; the last byte is the version of the format. The length of the body
/// and its checksum follow.
const MAGIC: [u8; 8] = *b"hoistmk\x01";
const HEAD: usize = 16;

/// The first bytes of a journal that is not in its final place yet; length and checksum follow.
const NEXT: [u8; 8] = *b"hoistnx\x01";

/// The reason why the metadata area cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MetadataAreaError {
    #[error(transparent)]
    NoRoom(#[from] NoRoom),
    #[error("the marker has {0} bytes; at most {most} fit", most = SLOT - HEAD as u64)]
    MarkerTooLarge(usize),
    #[error(transparent)]
    Journal(#[from] JournalError),
    #[error(transparent)]
    Write(#[from] WriteError),
    #[error("cannot read the hoist metadata area")]
    Read(#[source] io::Error),
}

/// Clears everything but the marker.
pub fn clear_records(area: &MetadataArea, io: &GuardedIo) -> Result<(), WriteError> {
    io.zero(area.marker().end..area.range().end)?;
    io.sync()
}

/// Clears the whole metadata area.
pub fn clear(area: &MetadataArea, io: &GuardedIo) -> Result<(), WriteError> {
    io.zero(area.range())?;
    io.sync()
}

#[derive(Serialize, Deserialize)]
struct Slot {
    /// The slot with the higher count is valid.
    count: u64,
    marker: Marker,
}

/// The marker of a disk, if there is one.
pub fn read_marker(
    disk: &(impl ReadAt + ?Sized),
    area: &MetadataArea,
) -> io::Result<Option<Marker>> {
    Ok(read_slots(disk, area)?
        .into_iter()
        .flatten()
        .max_by_key(|slot| slot.count)
        .map(|s| s.marker))
}

/// Writes the marker. It is durable on return; until then the previous marker stays valid.
pub fn write_marker(
    marker: &Marker,
    io: &GuardedIo,
    area: &MetadataArea,
) -> Result<(), MetadataAreaError> {
    let slots = read_slots(io, area).map_err(MetadataAreaError::Read)?;
    let counts: Vec<u64> = slots.iter().map(|slot| slot.as_ref().map_or(0, |s| s.count)).collect();
    let count = counts.iter().max().copied().unwrap_or(0).saturating_add(1);
    let oldest = (0..).zip(&counts).min_by_key(|(_, count)| **count).map_or(0, |(at, _)| at);
    let body = serde_json::to_vec(&Slot { count, marker: marker.clone() }).expect("a plain value");
    let room = usize::try_from(SLOT).expect("it is small") - HEAD;
    if body.len() > room {
        return Err(MetadataAreaError::MarkerTooLarge(body.len()));
    }
    let mut bytes = sealed(MAGIC, &body);
    bytes.resize(HEAD + room, 0);
    io.write_at(area.range().start + oldest * SLOT, &bytes)?;
    Ok(io.sync()?)
}

fn read_slots(disk: &(impl ReadAt + ?Sized), area: &MetadataArea) -> io::Result<Vec<Option<Slot>>> {
    let read = |number: u64| {
        let at = area.range().start + number * SLOT;
        // A disk that is too small has no slots.
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

/// Adds the length and a checksum, so that truncated bytes are recognised.
fn sealed(magic: [u8; 8], body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len()).expect("the area is small");
    [&magic[..], &length.to_le_bytes(), &crc32fast::hash(body).to_le_bytes(), body].concat()
}

fn unsealed(magic: [u8; 8], bytes: &[u8]) -> Option<&[u8]> {
    let (head, rest) = bytes.strip_prefix(&magic)?.split_first_chunk::<8>()?;
    let word = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    let body = rest.get(..usize::try_from(word(0)).ok()?)?;
    (crc32fast::hash(body) == word(4)).then_some(body)
}

/// The journal of a run, in the metadata area of one of its disks.
#[derive(Debug)]
pub struct DiskJournal {
    place: Range<u64>,
    next: u32,
    length: u64,
    /// A write failed, so the bytes on the disk are unknown.
    is_broken: bool,
}

impl DiskJournal {
    /// Starts a journal with these records. Guarantees that either the old journal or the new one
    /// can be read after a power cut: the carried-over receipts are stored nowhere else.
    pub fn create(
        io: &GuardedIo,
        area: &MetadataArea,
        records: &[Record],
    ) -> Result<Self, MetadataAreaError> {
        let (place, next) = area.journal();
        settle(io, area)?;
        let mut bytes = journal::MAGIC.to_vec();
        journal::frames(records, 0, &mut bytes)?;
        if bytes.len() as u64 > place.end - place.start {
            return Err(JournalError::Full(io::ErrorKind::StorageFull.into()).into());
        }
        let kept = sealed(NEXT, &bytes);
        // A journal that is too large for the temporary place is written without this protection:
        // the run matters more.
        if kept.len() as u64 <= next.end - next.start {
            io.write_at(next.start, &kept)?;
            io.sync()?;
        }
        put(io, area, &bytes)?;
        let count = u32::try_from(records.len()).expect("the area is small");
        Ok(Self { place, next: count, length: bytes.len() as u64, is_broken: false })
    }

    /// Opens an existing journal with its records. A truncated last record is removed. `None` if
    /// there is no journal yet.
    pub fn open(
        io: &GuardedIo,
        area: &MetadataArea,
    ) -> Result<Option<(Self, Vec<Record>)>, MetadataAreaError> {
        settle(io, area)?;
        let (place, _) = area.journal();
        let Contents { records, length } = match load(io, area) {
            Err(MetadataAreaError::Journal(JournalError::NoJournal)) => return Ok(None),
            loaded => loaded?,
        };
        if length == 0 {
            return Ok(None);
        }
        let length = length as u64;
        io.zero(place.start + length..place.end)?;
        io.sync()?;
        let next = u32::try_from(records.len()).expect("the area is small");
        Ok(Some((Self { place, next, length, is_broken: false }, records)))
    }

    /// The records of a disk, without writing to it; `None` without a journal.
    pub fn peek(
        disk: &(impl ReadAt + ?Sized),
        area: &MetadataArea,
    ) -> Result<Option<Vec<Record>>, MetadataAreaError> {
        if area.range().end > disk.size() {
            return Ok(None);
        }
        match load(disk, area) {
            Ok(contents) if contents.length == 0 => Ok(None),
            Ok(contents) => Ok(Some(contents.records)),
            Err(MetadataAreaError::Journal(JournalError::NoJournal)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Free bytes for records.
    pub fn room(&self) -> u64 {
        self.place.end - self.place.start - self.length
    }

    /// Makes all previous writes to the disk durable, then appends the records, which may refer to
    /// them.
    pub fn append(&mut self, io: &GuardedIo, records: &[Record]) -> Result<(), MetadataAreaError> {
        if self.is_broken {
            let reason = "an earlier write to the journal failed; the journal must be read again";
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
        self.next += u32::try_from(records.len()).expect("the area is small");
        Ok(())
    }
}

/// Writes the journal to its final place and clears the rest of it. Its temporary copy is removed
/// afterwards.
fn put(io: &GuardedIo, area: &MetadataArea, bytes: &[u8]) -> Result<(), MetadataAreaError> {
    let (place, next) = area.journal();
    io.zero(place.clone())?;
    io.sync()?;
    io.write_at(place.start, bytes)?;
    io.sync()?;
    io.zero(next.start..next.start + SLOT)?;
    Ok(io.sync()?)
}

/// Moves a journal from its temporary to its final place.
fn settle(io: &GuardedIo, area: &MetadataArea) -> Result<(), MetadataAreaError> {
    match on_its_way(io, area)? {
        Some(bytes) => put(io, area, &bytes),
        None => Ok(()),
    }
}

fn on_its_way(
    disk: &(impl ReadAt + ?Sized),
    area: &MetadataArea,
) -> Result<Option<Vec<u8>>, MetadataAreaError> {
    let bytes = read(disk, &area.journal().1)?;
    // An empty body has the checksum of zeros.
    let whole = unsealed(NEXT, &bytes).filter(|body| body.starts_with(&journal::MAGIC));
    Ok(whole.map(<[u8]>::to_vec))
}

fn read(disk: &(impl ReadAt + ?Sized), range: &Range<u64>) -> Result<Vec<u8>, MetadataAreaError> {
    let mut bytes = vec![0; usize::try_from(range.end - range.start).expect("less than a MiB")];
    disk.read_at(range.start, &mut bytes).map_err(MetadataAreaError::Read)?;
    Ok(bytes)
}

fn load(disk: &(impl ReadAt + ?Sized), area: &MetadataArea) -> Result<Contents, MetadataAreaError> {
    let bytes = match on_its_way(disk, area)? {
        Some(bytes) => bytes,
        None => read(disk, &area.journal().0)?,
    };
    // Records are text, so no zero behind the last one belongs to it.
    let used = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    Ok(journal::read(&bytes[..used])?)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use hoist_engine::plan::StepId;
    use hoist_engine::record::FailedCheck;
    use hoist_provision::metadata_area::{LEAST, START};
    use hoist_provision::partition_table::FIRST_PARTITION;
    use proptest::prelude::*;
    use uuid::Uuid;

    use super::*;
    use crate::fault::{Fault, FaultEffect, FaultTrigger};
    use crate::{Identity, Ranges};

    /// End of the smallest metadata area.
    const FIRST: u64 = START + LEAST;

    struct Disk(tempfile::NamedTempFile);

    impl Disk {
        fn new() -> Self {
            let file = crate::scratch::file();
            // Starts with an older journal and other data.
            fs_err::write(file.path(), vec![b'7'; usize::try_from(FIRST).expect("small")])
                .expect("written");
            Self(file)
        }

        fn open(&self, fault: Option<Fault>) -> GuardedIo {
            let meant = Identity::of(self.0.path(), 512).expect("it is there");
            let allow = Ranges::from(area().range());
            let io = GuardedIo::open(self.0.path(), &meant, &allow, &Ranges::default());
            let io = io.expect("it is free");
            match fault {
                Some(fault) => io.with_fault(fault),
                None => io,
            }
        }
    }

    fn area() -> MetadataArea {
        MetadataArea::before(Some(FIRST)).expect("it has room")
    }

    fn record(number: u32) -> Record {
        let done = u64::from(number) << 22;
        Record::Reached { step: StepId(number), attempt: 1, done, at: 0 }
    }

    /// Appends batches of one, two and three records until one fails. Returns the number of durable
    /// records.
    fn append_all(journal: &mut DiskJournal, io: &GuardedIo, from: u32) -> u32 {
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
    fn journal_keeps_durable_records_wherever_a_write_ends() {
        let whole = {
            let disk = Disk::new();
            let mut length = 0;
            let io = disk.open(Some(Fault::new(FaultTrigger::Never, FaultEffect::Fail)));
            let mut journal = DiskJournal::create(&io, &area(), &[]).expect("it has room");
            length += io.fault().expect("it has one").write_count().bytes;
            append_all(&mut journal, &io, 0);
            io.fault().expect("it has one").write_count().bytes - length
        };
        assert!(whole > 500, "{whole}");
        for cut in 0..=whole {
            for then in [FaultEffect::Die, FaultEffect::CutPower(cut + 1)] {
                let disk = Disk::new();
                let create = DiskJournal::create(&disk.open(None), &area(), &[]);
                let mut journal = create.expect("it has room");
                let io = disk.open(Some(Fault::new(FaultTrigger::AfterBytes(cut), then)));
                let durable = append_all(&mut journal, &io, 0);
                drop(io);
                let seen = DiskJournal::peek(&disk.open(None), &area()).expect("it is sound");
                let opened = DiskJournal::open(&disk.open(None), &area()).expect("it is sound");
                let (mut journal, read) = opened.expect("it was created");
                assert_eq!(seen.as_ref(), Some(&read), "looking sees the same, at {cut}");
                assert!(read.len() as u64 >= u64::from(durable), "at {cut}: {durable} {read:?}");
                let count = u32::try_from(read.len()).expect("few");
                assert!(count <= durable + 3 && read == (0..count).map(record).collect::<Vec<_>>());
                append_all(&mut journal, &disk.open(None), count);
                let again = DiskJournal::peek(&disk.open(None), &area()).expect("it is sound");
                assert_eq!(again, Some((0..count + 7).map(record).collect()));
            }
        }
    }

    #[test]
    fn interrupted_creation_keeps_the_old_or_new_journal() {
        let carried = [record(1), record(2)];
        for cut in (0..80_000_u64).step_by(997).chain(0..600).chain(45_000..46_200) {
            let disk = Disk::new();
            DiskJournal::create(&disk.open(None), &area(), &[record(9)]).expect("it has room");
            let io = disk.open(Some(Fault::new(
                FaultTrigger::AfterBytes(cut),
                FaultEffect::CutPower(cut + 1),
            )));
            let created = DiskJournal::create(&io, &area(), &carried).is_ok();
            drop(io);
            let seen = DiskJournal::peek(&disk.open(None), &area()).expect("it is sound");
            let is_old = seen.as_deref() == Some(&[record(9)]) && !created;
            assert!(is_old || seen.as_deref() == Some(&carried), "at {cut}: {seen:?}");
            // Cuts the power once more while the journal is opened or replaced.
            let io = disk.open(Some(Fault::new(
                FaultTrigger::AfterBytes(cut),
                FaultEffect::CutPower(cut + 2),
            )));
            let _ = DiskJournal::open(&io, &area());
            drop(io);
            let again = DiskJournal::peek(&disk.open(None), &area()).expect("it is sound");
            assert_eq!(again, seen, "at {cut}");
            let io = disk.open(Some(Fault::new(
                FaultTrigger::AfterBytes(cut),
                FaultEffect::CutPower(cut + 3),
            )));
            let _ = DiskJournal::create(&io, &area(), &[record(5)]);
            drop(io);
            let (_, last) =
                DiskJournal::open(&disk.open(None), &area()).expect("sound").expect("it is there");
            assert!(Some(&last) == seen.as_ref() || last == [record(5)], "at {cut}: {last:?}");
        }
    }

    #[test]
    fn full_journal_reports_it_and_stays_readable() {
        let disk = Disk::new();
        let io = disk.open(None);
        let mut journal = DiskJournal::create(&io, &area(), &[]).expect("it has room");
        let check = FailedCheck::not_made("x".repeat(15_000));
        let large = Record::Refused { step: StepId(0), attempt: 1, check, at: 0 };
        journal.append(&io, &[large.clone(), large.clone()]).expect("two fit");
        let error = journal.append(&io, std::slice::from_ref(&large)).expect_err("three do not");
        assert!(matches!(error, MetadataAreaError::Journal(JournalError::Full(_))), "{error}");
        journal.append(&io, &[record(1)]).expect("there is room for a small one");
        drop(io);
        let seen = DiskJournal::peek(&disk.open(None), &area()).expect("it is sound");
        assert_eq!(seen, Some(vec![large.clone(), large, record(1)]));
    }

    #[test]
    fn too_small_metadata_area_is_refused() {
        assert!(matches!(MetadataArea::before(Some(FIRST - 1)), Err(NoRoom { .. })));
        assert_eq!(
            MetadataArea::before(None).expect("it has room").range(),
            START..FIRST_PARTITION
        );
        let disk = [0; 100];
        assert_eq!(read_marker(&disk[..], &area()).expect("it is memory"), None);
        assert!(DiskJournal::peek(&disk[..], &area()).expect("it is memory").is_none());
    }

    #[test]
    fn marker_is_old_or_new_wherever_its_write_ends() {
        let marker = |is_complete| Marker {
            node: "n1".to_owned(),
            txn: Uuid::from_u128(7),
            plan: "sha256:00".to_owned(),
            generation: 3,
            is_complete,
            of_image: false,
            has_root: false,
            undoing: false,
            detached: BTreeMap::new(),
        };
        for cut in (0..5000).step_by(61) {
            for then in [FaultEffect::Die, FaultEffect::CutPower(cut + 1)] {
                let disk = Disk::new();
                assert_eq!(read_marker(&disk.open(None), &area()).expect("it is read"), None);
                let begun = Marker { generation: 2, ..marker(false) };
                for before in [begun, marker(false)] {
                    write_marker(&before, &disk.open(None), &area()).expect("it is written");
                }
                let io = disk.open(Some(Fault::new(FaultTrigger::AfterBytes(cut), then)));
                let is_good = write_marker(&marker(true), &io, &area()).is_ok();
                drop(io);
                let found = read_marker(&disk.open(None), &area()).expect("it is read");
                let found = found.expect("there is always one");
                assert!(found == marker(true) || (found == marker(false) && !is_good), "{found:?}");
            }
        }
        let disk = Disk::new();
        let large = Marker { node: "n".repeat(5000), ..marker(true) };
        let error = write_marker(&large, &disk.open(None), &area()).expect_err("it is too large");
        assert!(matches!(error, MetadataAreaError::MarkerTooLarge(_)), "{error}");
    }

    proptest! {
        #[test]
        fn any_metadata_area_is_read_without_panic(
            noise in prop::collection::vec((0..FIRST - 16, any::<[u8; 16]>()), 0..40),
            body in prop::collection::vec(any::<u8>(), 0..100),
            is_torn in any::<bool>(),
        ) {
            let disk = Disk::new();
            let io = disk.open(None);
            DiskJournal::create(&io, &area(), &[record(1), record(2)]).expect("it has room");
            drop(io);
            let mut bytes = fs_err::read(disk.0.path()).expect("it is there");
            let at = |at: u64| usize::try_from(at).expect("small");
            for (place, noise) in noise {
                bytes[at(place)..at(place) + 16].copy_from_slice(&noise);
            }
            // Also with valid checksums.
            let next = at(area().journal().1.start);
            let places = [(at(START), sealed(MAGIC, &body)), (next, sealed(NEXT, &body))];
            for (place, sealed) in places.into_iter().skip(usize::from(is_torn)) {
                bytes[place..place + sealed.len()].copy_from_slice(&sealed);
            }
            let _ = read_marker(&bytes[..], &area());
            let _ = DiskJournal::peek(&bytes[..], &area());
        }
    }
}
