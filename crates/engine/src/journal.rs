//! Records on a medium: each in a frame of its own, so that a write that was cut short is known for
//! what it is.
//!
//! A frame is the length of its payload, its number, the number of the first record that was written
//! together with it, and a CRC-32C of all of it, in sixteen bytes, and then the payload: a record as
//! JSON. Records that were written together may reach the disk in any order, so the last lot counts
//! up to its first gap, and the rest of it is a torn tail that is cut off. A gap before a later lot
//! is damage, and nobody guesses what stood there.

mod file;
mod snapshot;

use crate::record::Record;

pub use file::{FileJournal, RecoverError};

/// What a journal begins with; the last byte is the version of the format.
pub const MAGIC: [u8; 8] = *b"hoistjl\x01";

const HEAD: usize = 16;

/// Largest record: outputs are kept elsewhere.
pub const MAX_RECORD: usize = 1024 * 1024;

/// Largest journal that is read back: a million steps with their attempts.
pub const MAX_JOURNAL: u64 = 2 * 1024 * 1024 * 1024;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JournalError {
    #[error("cannot use the journal")]
    File(#[source] std::io::Error),
    #[error("there is no room for the journal; make some, and resume the run")]
    Full(#[source] std::io::Error),
    #[error("another controller has this run; wait for it or stop it there")]
    InUse,
    #[error("another controller has taken this run over; follow it there")]
    Fenced,
    #[error("this is no journal of a run")]
    NoJournal,
    #[error("the journal is of version {0}, which this program does not know; use a newer one")]
    Newer(u8),
    #[error(
        "the journal is damaged at byte {at}, after record {after}, and goes on behind that; \
         restore it from a backup"
    )]
    Damaged { at: usize, after: u32 },
    #[error("record {number} at byte {at} is not one that this program knows; use a newer program")]
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

/// What was read of a journal.
#[derive(Debug, PartialEq, Eq)]
pub struct Contents {
    pub records: Vec<Record>,
    /// Where the next frame goes; what is behind it is torn.
    pub length: usize,
}

/// Puts records that are written together into frames, at the end of `out`. The first one has the
/// number `lot`.
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
        // Nothing of it was ever durable.
        return if MAGIC.starts_with(bytes) { Ok(nothing) } else { Err(JournalError::NoJournal) };
    };
    match after_magic.first() {
        None => return Ok(nothing),
        Some(version) if *version == MAGIC[7] => {}
        Some(version) => return Err(JournalError::Newer(*version)),
    }
    read_on(bytes, MAGIC.len(), 0)
}

/// How many whole records a journal begins with; nobody looks what they are.
pub fn count(bytes: &[u8]) -> u32 {
    let (mut at, mut number) = (MAGIC.len(), 0);
    while let Some(frame) =
        bytes.get(at..).and_then(frame_at).filter(|frame| frame.number == number)
    {
        at += HEAD + frame.payload.len();
        number += 1;
    }
    number
}

/// Reads the records from a place on, at which the record of that number is expected.
fn read_on(bytes: &[u8], mut at: usize, mut number: u32) -> Result<Contents, JournalError> {
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

/// Whether a record was durable that is not in the first place of these bytes: something was
/// written after it.
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

/// How far it is to where a frame could begin next. Of its length, which comes first, the last byte
/// that is not zero is among the first three.
fn next_head(bytes: &[u8]) -> usize {
    let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
    zeros.saturating_sub(2).max(1)
}

struct Frame<'a> {
    number: u32,
    lot: u32,
    payload: &'a [u8],
}

/// The frame that begins here, if one does.
fn frame_at(bytes: &[u8]) -> Option<Frame<'_>> {
    let (head, rest) = bytes.split_at_checked(HEAD)?;
    let word = |at: usize| head[at..at + 4].try_into().map(u32::from_le_bytes).ok();
    let (length, number, lot, sum) = (word(0)?, word(4)?, word(8)?, word(12)?);
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

    fn records(count: u32) -> Vec<Record> {
        let intent = |n| Record::Intent { step: StepId(n), attempt: 1, at: u64::from(n) };
        (0..count).map(intent).collect()
    }

    /// Each in a lot of its own.
    fn written(count: u32) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        for (number, record) in (0..).zip(records(count)) {
            frames(&[record], number, &mut bytes).expect("it is small");
        }
        bytes
    }

    /// How many records are whole in so many bytes.
    fn whole(length: usize) -> u32 {
        (0..=8).take_while(|count| written(*count).len() <= length).last().unwrap_or(0)
    }

    proptest! {
        #[test]
        fn a_torn_tail_is_cut_and_everything_before_it_is_there(cut in 0..written(8).len(), junk in 0..2_u8) {
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
        fn damage_before_the_last_record_is_never_guessed_over(
            at in MAGIC.len()..written(7).len(), bit in 0..8_u32,
        ) {
            let mut bytes = written(8);
            bytes[at] ^= 1 << bit;
            let error = read(&bytes).unwrap_err();
            prop_assert!(matches!(error, JournalError::Damaged { at: place, .. } if place <= at), "{}", error);
        }

        #[test]
        fn a_lot_of_which_not_all_reached_the_disk_counts_up_to_the_gap(
            at in written(3).len()..written(8).len(), bit in 0..8_u32,
        ) {
            let mut bytes = written(3);
            frames(&records(8)[3..], 3, &mut bytes).unwrap();
            bytes[at] ^= 1 << bit;
            let found = read(&bytes).unwrap();
            prop_assert_eq!(found.records, records(whole(at)));
        }

        #[test]
        fn anything_is_read_without_panic(bytes: Vec<u8>) {
            let _ = read(&bytes);
            let _ = read(&[&MAGIC[..], &bytes].concat());
        }
    }

    #[test]
    fn journals_of_other_programs_and_newer_ones_are_refused() {
        assert!(matches!(read(b"something else"), Err(JournalError::NoJournal)));
        assert!(matches!(read(b"hoistjl\x02"), Err(JournalError::Newer(2))));
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
    fn the_checksum_is_the_one_that_others_have() {
        // RFC 3720, B.4: the numbers from 0 to 31.
        let bytes: Vec<u8> = (0..32).collect();
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
        assert_eq!(checksum([word(0), word(4), word(8)], &bytes[12..]), 0x46dd_794e);
    }

    #[test]
    fn a_record_is_bounded() {
        let reason = "x".repeat(MAX_RECORD);
        let record = Record::Refused { step: StepId(0), attempt: 1, reason, at: 0 };
        let mut out = Vec::new();
        let lot = [records(1), vec![record]].concat();
        assert!(matches!(frames(&lot, 0, &mut out), Err(JournalError::TooLarge(_))));
        assert!(out.is_empty(), "nothing half is left");
    }
}
