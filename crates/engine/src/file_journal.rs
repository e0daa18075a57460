//! A journal in a file: durable appends, recovery after a crash, and snapshots.
//!
//! The format of frames belongs to [`crate::journal`].

mod snapshot;

use std::fs::TryLockError;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fs_err::{File, OpenOptions};

use crate::journal::{Contents, JournalError, MAGIC, MAX_JOURNAL, frames, read, read_on};
use crate::plan::Plan;
use crate::record::Record;
use crate::run::{ReplayError, Run};

use snapshot::JournalSnapshot;

/// Records between two snapshots; the rest is replayed quickly.
const SNAPSHOT_EVERY: u32 = 16_384;

/// Zeros that a long journal has after its records. Syncing bytes within a file is much faster than
/// extending the file, for which the file system writes metadata as well.
static AHEAD: [u8; 256 * 1024] = [0; 256 * 1024];
/// Journals from this length on get zeros. Most runs are short and numerous.
const LONG: u64 = 64 * 1024;

/// Records are durable when [`FileJournal::append`] returns. A lock guarantees a single writer.
#[derive(Debug)]
pub struct FileJournal {
    path: PathBuf,
    file: LockedFile,
    next: u32,
    length: u64,
    /// Size of the file; bytes after the records are zeros.
    room: u64,
    /// CRC-32C of all records, which ties a snapshot to exactly these bytes.
    sum: u32,
    /// Number of records in the last snapshot.
    in_snapshot: u32,
    /// Bytes of the next write.
    buffer: Vec<u8>,
    /// A write failed, so the content of the file is unknown.
    is_broken: bool,
}

/// Why a run cannot continue from its file.
#[derive(Debug, thiserror::Error)]
pub enum RecoverError {
    #[error(transparent)]
    Journal(#[from] JournalError),
    #[error(transparent)]
    Replay(#[from] ReplayError),
}

impl FileJournal {
    /// Creates a journal; the file must not exist.
    pub fn create(path: &Path) -> Result<Self, JournalError> {
        use fs_err::os::unix::fs::OpenOptionsExt;
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
        let mut journal = Self::at(path, LockedFile::new(file)?, 0, &[]);
        journal.buffer.extend_from_slice(&MAGIC);
        journal.write()?;
        // The directory entry must be as durable as the file.
        if let Some(dir) = path.parent() {
            File::open(dir)?.sync_all()?;
        }
        Ok(journal)
    }

    /// Opens an existing journal and reads its records. A truncated tail is cut off.
    pub fn open(path: &Path) -> Result<(Self, Vec<Record>), JournalError> {
        let (file, bytes) = open_locked(path)?;
        let contents = read(&bytes)?;
        Self::go_on(path, file, 0, &bytes, contents)
    }

    /// Restores the run of a journal: from the snapshot, if there is one, and the records after it.
    pub fn recover(path: &Path, plan: &Arc<Plan>) -> Result<(Self, Run), RecoverError> {
        let (file, bytes) = open_locked(path)?;
        if let Some((kept, mut run, contents)) = from_snapshot(path, plan, &bytes) {
            for (number, record) in (kept.records as usize..).zip(&contents.records) {
                run.follow(number, record)?;
            }
            let (mut journal, _) = Self::go_on(path, file, kept.records, &bytes, contents)?;
            journal.in_snapshot = kept.records;
            return Ok((journal, run));
        }
        let contents = read(&bytes)?;
        let run = Run::replay(plan, &contents.records)?;
        let (journal, _) = Self::go_on(path, file, 0, &bytes, contents)?;
        Ok((journal, run))
    }

    /// Reads the records of a journal that another process may be writing.
    pub fn peek(path: &Path) -> Result<Vec<Record>, JournalError> {
        let mut last = None;
        loop {
            match read(&load(&mut File::open(path)?)?) {
                // A write between two reads leaves an apparent gap, which is gone on the next
                // attempt.
                Err(JournalError::Damaged { at, .. }) if last != Some(at) => last = Some(at),
                read => return Ok(read?.records),
            }
        }
    }

    /// Number of records.
    pub fn count(&self) -> u32 {
        self.next
    }

    /// Length of the header and all records in bytes.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Makes all of the records durable in one write.
    pub fn append(&mut self, records: &[Record]) -> Result<(), JournalError> {
        if records.is_empty() {
            return Ok(());
        }
        self.buffer.clear();
        frames(records, self.next, &mut self.buffer)?;
        self.write()?;
        self.next += u32::try_from(records.len()).expect("journals are bounded");
        Ok(())
    }

    /// Writes a snapshot if one is due. All records of `run` must be in the journal.
    pub fn snapshot(&mut self, run: &Run) {
        if self.next - self.in_snapshot < SNAPSHOT_EVERY {
            return;
        }
        self.in_snapshot = self.next;
        let records = self.next;
        let length = self.length;
        let sum = self.sum;
        let kept = JournalSnapshot { records, length, sum, run: run.snapshot() };
        // Without a snapshot recovery replays more records; nothing is lost.
        let _ = snapshot::save(&self.path, &kept);
    }

    fn at(path: &Path, file: LockedFile, next: u32, holds: &[u8]) -> Self {
        let path = path.to_owned();
        let buffer = Vec::new();
        let length = holds.len() as u64;
        let sum = crc32c::crc32c(holds);
        let room = length;
        Self { path, file, next, length, room, sum, in_snapshot: 0, buffer, is_broken: false }
    }

    /// Continues after the records that were read, the first of which has the number `first`.
    fn go_on(
        path: &Path,
        file: LockedFile,
        first: u32,
        bytes: &[u8],
        contents: Contents,
    ) -> Result<(Self, Vec<Record>), JournalError> {
        let Contents { records, length } = contents;
        if length < bytes.len() {
            file.0.set_len(length as u64)?;
            file.0.sync_data()?;
        }
        let next = first + u32::try_from(records.len()).expect("journals are bounded");
        let mut journal = Self::at(path, file, next, &bytes[..length]);
        if length == 0 {
            journal.buffer.extend_from_slice(&MAGIC);
            journal.write()?;
        }
        Ok((journal, records))
    }

    fn write(&mut self) -> Result<(), JournalError> {
        if self.is_broken {
            let reason =
                "an earlier write failed; read the journal again to see which records are durable";
            return Err(std::io::Error::other(reason).into());
        }
        self.is_broken = true;
        let file = self.file.0.file();
        let end = self.length + self.buffer.len() as u64;
        file.write_all_at(&self.buffer, self.length)?;
        if end > self.room {
            // If there is no space for the zeros, the records have been written nevertheless.
            let has_zeros = end >= LONG && file.write_all_at(&AHEAD, end).is_ok();
            self.room = if has_zeros { end + AHEAD.len() as u64 } else { end };
        }
        file.sync_data()?;
        self.length = end;
        self.sum = crc32c::crc32c_append(self.sum, &self.buffer);
        self.is_broken = false;
        Ok(())
    }
}

impl Drop for FileJournal {
    fn drop(&mut self) {
        if self.room > self.length && !self.is_broken {
            // Readers ignore the zeros if this fails.
            let _ = self.file.0.set_len(self.length);
        }
    }
}

/// A file with an exclusive lock until it is closed or the process ends.
#[derive(Debug)]
struct LockedFile(File);

impl LockedFile {
    fn new(file: File) -> Result<Self, JournalError> {
        match file.file().try_lock() {
            Ok(()) => Ok(Self(file)),
            Err(TryLockError::WouldBlock) => Err(JournalError::InUse),
            Err(TryLockError::Error(error)) => Err(error.into()),
        }
    }
}

impl Drop for LockedFile {
    fn drop(&mut self) {
        // Closing is not enough: a process that is being started holds a copy of the descriptor.
        let _ = self.0.file().unlock();
    }
}

fn open_locked(path: &Path) -> Result<(LockedFile, Vec<u8>), JournalError> {
    let mut file = LockedFile::new(OpenOptions::new().read(true).write(true).open(path)?)?;
    let bytes = load(&mut file.0)?;
    Ok((file, bytes))
}

fn load(file: &mut File) -> Result<Vec<u8>, JournalError> {
    let size = file.metadata()?.len();
    if size > MAX_JOURNAL {
        return Err(JournalError::TooLong(size));
    }
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// A snapshot that matches the journal, and the records after it.
fn from_snapshot(
    path: &Path,
    plan: &Arc<Plan>,
    bytes: &[u8],
) -> Option<(JournalSnapshot, Run, Contents)> {
    let kept = snapshot::load(path)?;
    let length = usize::try_from(kept.length).ok()?;
    if crc32c::crc32c(bytes.get(..length)?) != kept.sum {
        return None;
    }
    // Damage after the snapshot is found again, and reported, when the whole journal is read.
    let contents = read_on(bytes, length, kept.records).ok()?;
    let run = Run::restore(plan, kept.run.clone()).ok()?;
    Some((kept, run, contents))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::StepId;

    fn record(n: u32) -> Record {
        Record::Lost { step: StepId(n), attempt: 1, at: 0 }
    }

    #[test]
    fn appended_records_are_read_back_and_torn_tail_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run");
        let mut journal = FileJournal::create(&path).unwrap();
        journal.append(&[record(0), record(1)]).unwrap();
        journal.append(&[]).unwrap();
        journal.append(&[record(2)]).unwrap();
        drop(journal);
        let whole = fs_err::read(&path).unwrap();
        fs_err::write(&path, &whole[..whole.len() - 3]).unwrap();
        let (mut journal, records) = FileJournal::open(&path).unwrap();
        assert_eq!(records, [record(0), record(1)]);
        journal.append(&[record(3)]).unwrap();
        drop(journal);
        assert_eq!(FileJournal::open(&path).unwrap().1, [record(0), record(1), record(3)]);
        assert!(FileJournal::create(&path).is_err(), "none is written over");
    }

    #[test]
    fn journal_cut_before_its_first_record_is_empty() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run");
        for length in 0..=MAGIC.len() {
            fs_err::write(&path, &MAGIC[..length]).unwrap();
            let (mut journal, records) = FileJournal::open(&path).unwrap();
            assert!(records.is_empty());
            journal.append(&[record(1)]).unwrap();
            drop(journal);
            assert_eq!(FileJournal::open(&path).unwrap().1, [record(1)]);
        }
    }

    #[test]
    fn journal_has_one_owner_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run");
        let mut journal = FileJournal::create(&path).unwrap();
        journal.append(&[record(0)]).unwrap();
        assert!(matches!(FileJournal::open(&path), Err(JournalError::InUse)));
        assert_eq!(FileJournal::peek(&path).unwrap(), [record(0)], "looking is allowed");
        drop(journal);
        FileJournal::open(&path).unwrap();
    }

    #[test]
    fn long_journal_is_preallocated_and_trimmed_on_close() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run");
        let mut journal = FileJournal::create(&path).unwrap();
        let mut all = Vec::new();
        let length = || fs_err::metadata(&path).unwrap().len();
        while journal.length() < LONG + 2 * AHEAD.len() as u64 {
            let lot: Vec<_> = (0..100).map(record).collect();
            journal.append(&lot).unwrap();
            all.extend(lot);
            assert_eq!(length() > journal.length(), journal.length() >= LONG);
        }
        assert_eq!(FileJournal::peek(&path).unwrap(), all);
        // The file as a killed controller leaves it.
        let left = fs_err::read(&path).unwrap();
        let whole = journal.length();
        drop(journal);
        assert_eq!(length(), whole);
        fs_err::write(&path, &left).unwrap();
        let (mut journal, records) = FileJournal::open(&path).unwrap();
        assert_eq!((records, length()), (all.clone(), whole));
        journal.append(&[record(7)]).unwrap();
        drop(journal);
        all.push(record(7));
        assert_eq!(FileJournal::peek(&path).unwrap(), all);
    }

    #[test]
    fn too_long_journal_is_refused_before_reading() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run");
        drop(FileJournal::create(&path).unwrap());
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        file.set_len(MAX_JOURNAL + 1).unwrap();
        assert!(matches!(FileJournal::open(&path), Err(JournalError::TooLong(_))));
    }

    /// Independent steps, all of which have ended except the last.
    fn long(count: u32) -> (Arc<Plan>, Vec<Record>) {
        use crate::plan::{Draft, Kind, Step, Vertex};
        use crate::record::End;
        let kind = || Kind::Step(Box::<Step>::default());
        let vertex = |at: u32| Vertex { name: format!("s{at}"), after: Vec::new(), kind: kind() };
        let vertices = (0..count).map(vertex).collect();
        let plan = Plan::new(Draft { vertices, ..Draft::default() }).unwrap();
        let mut records = vec![Record::Plan { hash: plan.hash().to_owned(), at: 0 }];
        for step in plan.ids() {
            records.push(Record::Intent { step, attempt: 1, at: 1 });
            if step.0 + 1 < count {
                let end = End::Done { changed: true, receipt: serde_json::json!({ "was": step }) };
                records.push(Record::Ran { step, attempt: 1, end, at: 2 });
            }
        }
        (Arc::new(plan), records)
    }

    #[test]
    fn recovery_uses_snapshot_and_ignores_a_damaged_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run");
        let (plan, records) = long(SNAPSHOT_EVERY / 2 + 100);
        let (first, rest) = records.split_at(SNAPSHOT_EVERY as usize + 7);
        let mut journal = FileJournal::create(&path).unwrap();
        journal.append(first).unwrap();
        journal.snapshot(&Run::replay(&plan, first).unwrap());
        journal.append(rest).unwrap();
        drop(journal);
        let beside = snapshot::path_beside(&path);
        let good = fs_err::read(&beside).unwrap();
        let whole = Run::replay(&plan, &records).unwrap().snapshot();

        let (mut journal, run) = FileJournal::recover(&path, &plan).unwrap();
        assert_eq!(run.snapshot(), whole);
        let last = Record::Lost { step: StepId(SNAPSHOT_EVERY / 2 + 99), attempt: 1, at: 3 };
        journal.append(std::slice::from_ref(&last)).unwrap();
        drop(journal);
        assert_eq!(FileJournal::peek(&path).unwrap(), [records.clone(), vec![last]].concat());

        // Only the records after the snapshot were read.
        let sound = fs_err::read(&path).unwrap();
        let kept = snapshot::load(&path).unwrap();
        let from = |bytes: &[u8]| from_snapshot(&path, &plan, bytes).map(|found| found.2.records);
        assert_eq!(from(&sound).unwrap().len(), records.len() + 1 - kept.records as usize);
        // Damage is reported even if it lies before the snapshot.
        let mut damaged = sound.clone();
        damaged[100] ^= 1;
        fs_err::write(&path, &damaged).unwrap();
        let error = FileJournal::recover(&path, &plan).unwrap_err();
        let is_told = matches!(error, RecoverError::Journal(JournalError::Damaged { .. }));
        assert!(is_told, "{error}");
        fs_err::write(&path, &sound).unwrap();
        let mut bad = good.clone();
        bad[good.len() / 2] ^= 1;
        fs_err::write(&beside, &bad).unwrap();
        assert_eq!(from(&sound), None);
        FileJournal::recover(&path, &plan).unwrap();

        // If the journal is older than its snapshot, the journal counts.
        fs_err::write(&beside, &good).unwrap();
        fs_err::write(&path, &sound[..sound.len() / 2]).unwrap();
        let (journal, run) = FileJournal::recover(&path, &plan).unwrap();
        assert!(journal.count() < SNAPSHOT_EVERY);
        assert_eq!(run.attempt(StepId(SNAPSHOT_EVERY / 2 + 99)), 0);
    }
}
