//! The binary format of a journal: each record in a frame of its own, so that incomplete writes are
//! recognized.
//!
//! A frame has a head of sixteen bytes: the length of the payload, the number of the record, the
//! number of the first record of the same write (the *lot*), and a CRC-32C of all of it. The
//! payload is the record as JSON.
//!
//! Records of one write may reach the disk in any order. The last lot therefore counts up to its
//! first gap, and the rest of it is a truncated tail, which is cut off. A gap before a later lot is
//! damage: the missing records were durable, and reading fails.
//!
//! Files belong to [`crate::file_journal`].

use crate::record::Record;

/// The first bytes of a journal; the last one is the version of the format.
pub const MAGIC: [u8; 8] = *b"hoistjl\x02";

const HEAD: usize = 16;

/// Largest record; outputs are stored elsewhere.
pub const MAX_RECORD: usize = 1024 * 1024;

/// Largest journal that is read: enough for a million steps with their attempts.
pub const MAX_JOURNAL: u64 = 2 * 1024 * 1024 * 1024;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JournalError {
    #[error("cannot use the journal")]
    File(#[source] std::io::Error),
    #[error("the journal has no space left; free some space and resume the run")]
    Full(#[source] std::io::Error),
    #[error("another controller has this run; wait for it or stop it there")]
    InUse,
    #[error("another controller has taken this run over; follow it there")]
    Fenced,
    #[error("the file is not the journal of a run")]
    NoJournal,
    #[error(
        "the journal has format version {0}, and this program reads version {ours}; use the program \
         that wrote it",
        ours = MAGIC[7]
    )]
    OtherVersion(u8),
    #[error(
        "the journal is damaged at byte {at}, after record {after}, and continues behind it; \
         restore it from a backup"
    )]
    Damaged { at: usize, after: u32 },
    #[error("record {number} at byte {at} is of an unknown kind; use a newer program")]
    UnknownRecord { at: usize, number: u32, source: serde_json::Error },
    #[error("a record has {0} bytes; at most {MAX_RECORD} fit")]
    TooLarge(usize),
    #[error("the journal has {0} bytes; at most {MAX_JOURNAL} are read")]
    TooLong(u64),
}

impl From<std::io::Error> for JournalError {
    fn from(error: std::io::Error) -> Self {
        use std::io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
        match error.kind() {
            StorageFull | QuotaExceeded | FileTooLarge => Self::Full(error),
            _ => Self::File(error),
        }
    }
}

/// The records of a journal.
#[derive(Debug, PartialEq, Eq)]
pub struct Contents {
    pub records: Vec<Record>,
    /// Offset of the next frame. Bytes after it are a truncated tail.
    pub length: usize,
}

/// Appends records of one write to `out` as frames. The first record has the number `lot`.
pub fn frames(records: &[Record], lot: u32, out: &mut Vec<u8>) -> Result<(), JournalError> {
    let start = out.len();
    for (number, record) in (lot..).zip(records) {
        if let Err(error) = frame(record, number, lot, out) {
            out.truncate(start);
            return Err(error);
        }
    }
    Ok(())
}

fn frame(record: &Record, number: u32, lot: u32, out: &mut Vec<u8>) -> Result<(), JournalError> {
    let start = out.len();
    out.extend_from_slice(&[0; HEAD]);
    serde_json::to_writer(&mut *out, record).expect("a plain value, written to memory");
    let length = out.len() - start - HEAD;
    if length > MAX_RECORD {
        return Err(JournalError::TooLarge(length));
    }
    let bounded = u32::try_from(length).expect("it is bounded");
    let checksum = checksum([bounded, number, lot], &out[start + HEAD..]);
    let head = [bounded, number, lot, checksum].map(u32::to_le_bytes).concat();
    out[start..start + HEAD].copy_from_slice(&head);
    Ok(())
}

/// Reads all records of a journal.
pub fn read(bytes: &[u8]) -> Result<Contents, JournalError> {
    let nothing = Contents { records: Vec::new(), length: 0 };
    let Some(after_magic) = bytes.strip_prefix(&MAGIC[..7]) else {
        // The file was created, but no record was ever durable.
        return if MAGIC.starts_with(bytes) { Ok(nothing) } else { Err(JournalError::NoJournal) };
    };
    match after_magic.first() {
        None => return Ok(nothing),
        Some(version) if *version == MAGIC[7] => {}
        Some(version) => return Err(JournalError::OtherVersion(*version)),
    }
    read_on(bytes, MAGIC.len(), 0)
}

/// Reads frames without the head of a journal; the first has the number `first`.
pub fn read_frames(bytes: &[u8], first: u32) -> Result<Vec<Record>, JournalError> {
    read_on(bytes, 0, first).map(|contents| contents.records)
}

/// Number of complete records at the beginning of a journal, without parsing their payloads.
pub fn count(bytes: &[u8]) -> u32 {
    let mut at = MAGIC.len();
    let mut number = 0;
    while let Some(frame) =
        bytes.get(at..).and_then(frame_at).filter(|frame| frame.number == number)
    {
        at += HEAD + frame.payload.len();
        number += 1;
    }
    number
}

/// Reads the records from offset `at`, where the record `number` is expected.
pub(crate) fn read_on(
    bytes: &[u8],
    mut at: usize,
    mut number: u32,
) -> Result<Contents, JournalError> {
    let mut records = Vec::new();
    while let Some(frame) = frame_at(&bytes[at..]).filter(|frame| frame.number == number) {
        let record = serde_json::from_slice(frame.payload)
            .map_err(|source| JournalError::UnknownRecord { at, number, source })?;
        records.push(record);
        at += HEAD + frame.payload.len();
        number += 1;
    }
    if was_durable(&bytes[at..], number) {
        return Err(JournalError::Damaged { at, after: number });
    }
    Ok(Contents { records, length: at })
}

/// Whether the record `number` was durable although it is not at the beginning of these bytes: a
/// later lot follows.
fn was_durable(bytes: &[u8], number: u32) -> bool {
    let mut place = 0;
    while place < bytes.len() {
        match frame_at(&bytes[place..]) {
            Some(frame) if frame.lot > number || frame.number < number => return true,
            Some(frame) => place += HEAD + frame.payload.len(),
            None => place += next_head(&bytes[place..]),
        }
    }
    false
}

/// Distance to the next offset at which a frame could begin. A frame begins with its length, which
/// has a non-zero byte among its first three bytes.
fn next_head(bytes: &[u8]) -> usize {
    let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
    zeros.saturating_sub(2).max(1)
}

struct Frame<'a> {
    number: u32,
    lot: u32,
    payload: &'a [u8],
}

/// The frame at the beginning of these bytes, if there is a valid one.
fn frame_at(bytes: &[u8]) -> Option<Frame<'_>> {
    let (head, rest) = bytes.split_at_checked(HEAD)?;
    let word = |at: usize| head[at..at + 4].try_into().map(u32::from_le_bytes).ok();
    let length = word(0)?;
    let number = word(4)?;
    let lot = word(8)?;
    let sum = word(12)?;
    let payload =
        rest.get(..usize::try_from(length).ok().filter(|length| *length <= MAX_RECORD)?)?;
    (lot <= number && checksum([length, number, lot], payload) == sum).then_some(Frame {
        number,
        lot,
        payload,
    })
}

fn checksum(head: [u32; 3], payload: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(head.map(u32::to_le_bytes).as_flattened()), payload)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::plan::StepId;
    use crate::record::FailedCheck;

    fn records(count: u32) -> Vec<Record> {
        let intent = |n| Record::Intent { step: StepId(n), attempt: 1, at: u64::from(n) };
        (0..count).map(intent).collect()
    }

    /// Each record in a lot of its own.
    fn written(count: u32) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        for (number, record) in (0..).zip(records(count)) {
            frames(&[record], number, &mut bytes).expect("it is small");
        }
        bytes
    }

    /// Number of complete records in this many bytes.
    fn whole(length: usize) -> u32 {
        (0..=8).take_while(|count| written(*count).len() <= length).last().unwrap_or(0)
    }

    proptest! {
        #[test]
        fn torn_tail_is_cut_and_records_before_it_survive(cut in 0..written(8).len(), junk in 0..2_u8) {
            let mut bytes = written(8);
            bytes.truncate(cut);
            // Some file systems leave zeros.
            bytes.extend(vec![0; usize::from(junk) * 64]);
            if junk == 0 || cut >= MAGIC.len() {
                let found = read(&bytes).unwrap();
                prop_assert_eq!(found.records, records(whole(cut)));
            }
            prop_assert_eq!(count(&bytes), whole(cut));
        }

        #[test]
        fn damage_before_the_last_record_is_an_error(
            at in MAGIC.len()..written(7).len(), bit in 0..8_u32,
        ) {
            let mut bytes = written(8);
            bytes[at] ^= 1 << bit;
            let error = read(&bytes).unwrap_err();
            prop_assert!(matches!(error, JournalError::Damaged { at: place, .. } if place <= at), "{}", error);
        }

        #[test]
        fn partially_written_lot_counts_up_to_the_gap(
            at in written(3).len()..written(8).len(), bit in 0..8_u32,
        ) {
            let mut bytes = written(3);
            frames(&records(8)[3..], 3, &mut bytes).unwrap();
            bytes[at] ^= 1 << bit;
            let found = read(&bytes).unwrap();
            prop_assert_eq!(found.records, records(whole(at)));
        }

        #[test]
        fn journal_reader_never_panics(bytes: Vec<u8>) {
            let _ = read(&bytes);
            let _ = read(&[&MAGIC[..], &bytes].concat());
        }
    }

    #[test]
    fn foreign_and_newer_journals_are_refused() {
        assert!(matches!(read(b"something else"), Err(JournalError::NoJournal)));
        assert!(matches!(read(b"hoistjl\x01"), Err(JournalError::OtherVersion(1))));
        assert!(matches!(read(b"hoistjl\x03"), Err(JournalError::OtherVersion(3))));
        let mut bytes = MAGIC.to_vec();
        let payload = br#"{"record":"from_the_future","at":1}"#;
        let length = u32::try_from(payload.len()).unwrap();
        let sum = checksum([length, 0, 0], payload);
        let head = [length, 0, 0, sum].map(u32::to_le_bytes).concat();
        bytes.extend([&head[..], payload].concat());
        let error = read(&bytes).unwrap_err();
        assert!(matches!(error, JournalError::UnknownRecord { number: 0, .. }), "{error}");
    }

    #[test]
    fn checksum_is_standard_crc32c() {
        // RFC 3720, B.4: the numbers from 0 to 31.
        let bytes: Vec<u8> = (0..32).collect();
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
        assert_eq!(checksum([word(0), word(4), word(8)], &bytes[12..]), 0x46dd_794e);
    }

    #[test]
    fn record_size_is_bounded() {
        let check = FailedCheck::not_made("x".repeat(MAX_RECORD));
        let record = Record::Refused { step: StepId(0), attempt: 1, check, at: 0 };
        let mut out = Vec::new();
        let lot = [records(1), vec![record]].concat();
        assert!(matches!(frames(&lot, 0, &mut out), Err(JournalError::TooLarge(_))));
        assert!(out.is_empty(), "nothing half is left");
    }
}
