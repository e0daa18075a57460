//! A journal in a file of its own.

use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;

use fs_err::{File, OpenOptions};

use super::{Contents, JournalError, MAGIC, MAX_JOURNAL, frame, read};
use crate::record::Record;

/// Records are durable when [`FileJournal::append`] has returned.
#[derive(Debug)]
pub struct FileJournal {
    file: File,
    next: u32,
    /// What is written at once.
    buffer: Vec<u8>,
    /// A write failed: what the file holds is not known any more.
    is_broken: bool,
}

impl FileJournal {
    /// A new one; there must be none at this place.
    pub fn create(path: &Path) -> Result<Self, JournalError> {
        use fs_err::os::unix::fs::OpenOptionsExt;
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
        let mut journal = Self { file, next: 0, buffer: MAGIC.to_vec(), is_broken: false };
        journal.write()?;
        // The name is as durable as what it names.
        if let Some(dir) = path.parent() {
            File::open(dir)?.sync_all()?;
        }
        Ok(journal)
    }

    /// One that is there, with its records; a torn tail is cut off.
    pub fn open(path: &Path) -> Result<(Self, Vec<Record>), JournalError> {
        let mut file = OpenOptions::new().read(true).write(true).open(path)?;
        let size = file.metadata()?.len();
        if size > MAX_JOURNAL {
            return Err(JournalError::TooLong(size));
        }
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        let Contents { records, length } = read(&bytes)?;
        if length < bytes.len() {
            file.set_len(length as u64)?;
            file.sync_data()?;
        }
        file.seek(SeekFrom::Start(length as u64))?;
        let next = u32::try_from(records.len()).expect("journals are bounded");
        let mut journal = Self { file, next, buffer: Vec::new(), is_broken: false };
        if length == 0 {
            journal.buffer.extend_from_slice(&MAGIC);
            journal.write()?;
        }
        Ok((journal, records))
    }

    /// Makes all of the records durable, in one go.
    pub fn append(&mut self, records: &[Record]) -> Result<(), JournalError> {
        if records.is_empty() {
            return Ok(());
        }
        self.buffer.clear();
        for (number, record) in (self.next..).zip(records) {
            frame(record, number, &mut self.buffer)?;
        }
        self.write()?;
        self.next += u32::try_from(records.len()).expect("journals are bounded");
        Ok(())
    }

    fn write(&mut self) -> Result<(), JournalError> {
        if self.is_broken {
            let reason = "an earlier write failed; what is durable is known when it is read back";
            return Err(std::io::Error::other(reason).into());
        }
        self.is_broken = true;
        self.file.write_all(&self.buffer)?;
        self.file.sync_data()?;
        self.is_broken = false;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::StepId;

    fn record(n: u32) -> Record {
        Record::Lost { step: StepId(n), attempt: 1, at: 0 }
    }

    #[test]
    fn what_was_appended_is_read_back_and_a_torn_tail_is_written_over() {
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
    fn a_journal_that_was_cut_before_its_first_record_is_an_empty_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run");
        for length in 0..=MAGIC.len() {
            fs_err::write(&path, &MAGIC[..length]).unwrap();
            let (mut journal, records) = FileJournal::open(&path).unwrap();
            assert!(records.is_empty());
            journal.append(&[record(1)]).unwrap();
            assert_eq!(FileJournal::open(&path).unwrap().1, [record(1)]);
        }
    }
}
