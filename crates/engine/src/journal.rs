//! Records on a medium: each in a frame of its own, so that a write that was cut short is known for
//! what it is.
//!
//! A frame is the length of its payload, its number and a checksum of all three, in twelve bytes,
//! and then the payload: a record as JSON. Whatever is behind the last good frame is a torn tail and
//! is cut off, unless another good frame follows: then the middle is damaged, and nobody guesses
//! what stood there.

mod file;

use crate::record::Record;

pub use file::FileJournal;

/// What a journal begins with; the last byte is the version of the format.
const MAGIC: [u8; 8] = *b"hoistjl\x01";

const HEAD: usize = 12;

/// Largest record: outputs are kept elsewhere.
pub const MAX_RECORD: usize = 1024 * 1024;

/// Largest journal that is read back: a million steps with their attempts.
pub const MAX_JOURNAL: u64 = 2 * 1024 * 1024 * 1024;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JournalError {
    #[error("cannot use the journal")]
    File(#[from] std::io::Error),
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

/// What was read of a journal.
#[derive(Debug, PartialEq, Eq)]
pub struct Contents {
    pub records: Vec<Record>,
    /// Where the next frame goes; what is behind it is torn.
    pub length: usize,
}

/// Puts a record into a frame, at the end of `out`.
pub fn frame(record: &Record, number: u32, out: &mut Vec<u8>) -> Result<(), JournalError> {
    let start = out.len();
    out.extend_from_slice(&[0; HEAD]);
    serde_json::to_writer(&mut *out, record).expect("a plain value, written to memory");
    let length = out.len() - start - HEAD;
    if length > MAX_RECORD {
        out.truncate(start);
        return Err(JournalError::TooLarge(length));
    }
    let bounded = u32::try_from(length).expect("it is bounded");
    let checksum = checksum(bounded, number, &out[start + HEAD..]);
    let head = [bounded, number, checksum].map(u32::to_le_bytes).concat();
    out[start..start + HEAD].copy_from_slice(&head);
    Ok(())
}

/// Reads all records of a journal.
pub fn read(bytes: &[u8]) -> Result<Contents, JournalError> {
    let Some(after_magic) = bytes.strip_prefix(&MAGIC[..7]) else {
        // Nothing of it was ever durable.
        if MAGIC.starts_with(bytes) {
            return Ok(Contents { records: Vec::new(), length: 0 });
        }
        return Err(JournalError::NoJournal);
    };
    match after_magic.first() {
        None => return Ok(Contents { records: Vec::new(), length: 0 }),
        Some(version) if *version == MAGIC[7] => {}
        Some(version) => return Err(JournalError::Newer(*version)),
    }
    let (mut at, mut records) = (MAGIC.len(), Vec::new());
    loop {
        let number = u32::try_from(records.len()).expect("journals are bounded");
        let Some(payload) = payload(&bytes[at..]).filter(|found| found.number == number) else {
            // A frame behind this place was written after this one was.
            if (at + 1..bytes.len()).any(|place| payload(&bytes[place..]).is_some()) {
                return Err(JournalError::Damaged { at, after: number });
            }
            return Ok(Contents { records, length: at });
        };
        let record = serde_json::from_slice(payload.bytes)
            .map_err(|source| JournalError::UnknownRecord { at, number, source })?;
        records.push(record);
        at += HEAD + payload.bytes.len();
    }
}

struct Payload<'a> {
    number: u32,
    bytes: &'a [u8],
}

/// The payload of the frame that begins here, if one does.
fn payload(bytes: &[u8]) -> Option<Payload<'_>> {
    let (head, rest) = bytes.split_at_checked(HEAD)?;
    let word = |at: usize| head[at..at + 4].try_into().map(u32::from_le_bytes).ok();
    let (length, number, sum) = (word(0)?, word(4)?, word(8)?);
    let bytes = rest.get(..usize::try_from(length).ok().filter(|length| *length <= MAX_RECORD)?)?;
    (checksum(length, number, bytes) == sum).then_some(Payload { number, bytes })
}

fn checksum(length: u32, number: u32, payload: &[u8]) -> u32 {
    let mut sum = crc32fast::Hasher::new();
    sum.update(&length.to_le_bytes());
    sum.update(&number.to_le_bytes());
    sum.update(payload);
    sum.finalize()
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

    fn written(count: u32) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        for (number, record) in (0..).zip(&records(count)) {
            frame(record, number, &mut bytes).expect("it is small");
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
        let head = [length, 0, checksum(length, 0, payload)].map(u32::to_le_bytes).concat();
        bytes.extend([&head[..], payload].concat());
        let error = read(&bytes).unwrap_err();
        assert!(matches!(error, JournalError::UnknownRecord { number: 0, .. }), "{error}");
    }

    #[test]
    fn a_record_is_bounded() {
        let reason = "x".repeat(MAX_RECORD);
        let record = Record::Refused { step: StepId(0), attempt: 1, reason, at: 0 };
        let mut out = Vec::new();
        assert!(matches!(frame(&record, 0, &mut out), Err(JournalError::TooLarge(_))));
        assert!(out.is_empty(), "nothing half is left");
    }
}
