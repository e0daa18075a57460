//! The fields of messages as bytes. Numbers are big endian; a text or list has its length, one byte,
//! in front. Each value has exactly one encoding.

use jiff::Timestamp;

use super::{QUERY_BYTES, VERSION};

/// Bytes that are not a message of the beacon.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    #[error("the message has {0} bytes; a query has {QUERY_BYTES}")]
    QuerySize(usize),
    #[error("the message has {actual} bytes; the limit is {limit}")]
    TooLong { actual: usize, limit: usize },
    #[error("the message does not start with the mark of the beacon")]
    Magic,
    #[error("version {0} of the beacon is not supported; this program has version {VERSION}")]
    Version(u8),
    #[error("the message ends within `{0}`")]
    Truncated(&'static str),
    #[error(transparent)]
    Field(#[from] FieldError),
    #[error("{0} bytes follow the last field")]
    Trailing(usize),
}

/// A field with a value that no message has.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("field `{field}` {problem}")]
pub struct FieldError {
    pub field: &'static str,
    pub problem: &'static str,
}

/// Reads fields from the start of a message to its end.
pub(super) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Reads the mark and the version.
    pub(super) fn new(message: &'a [u8], magic: [u8; 4]) -> Result<Self, DecodeError> {
        let Some(rest) = message.strip_prefix(&magic) else { return Err(DecodeError::Magic) };
        let mut reader = Self { rest };
        match reader.byte("version")? {
            VERSION => Ok(reader),
            other => Err(DecodeError::Version(other)),
        }
    }

    pub(super) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    pub(super) fn end(&self) -> Result<(), DecodeError> {
        match self.rest.len() {
            0 => Ok(()),
            count => Err(DecodeError::Trailing(count)),
        }
    }

    pub(super) fn byte(&mut self, field: &'static str) -> Result<u8, DecodeError> {
        let [byte] = self.array(field)?;
        Ok(byte)
    }

    pub(super) fn array<const N: usize>(
        &mut self,
        field: &'static str,
    ) -> Result<[u8; N], DecodeError> {
        let split = self.rest.split_first_chunk();
        let (array, rest) = split.ok_or(DecodeError::Truncated(field))?;
        self.rest = rest;
        Ok(*array)
    }

    /// Bytes with their length in front.
    pub(super) fn bytes(&mut self, field: &'static str) -> Result<&'a [u8], DecodeError> {
        let length = usize::from(self.byte(field)?);
        let split = self.rest.split_at_checked(length);
        let (bytes, rest) = split.ok_or(DecodeError::Truncated(field))?;
        self.rest = rest;
        Ok(bytes)
    }

    pub(super) fn text(&mut self, field: &'static str) -> Result<&'a str, DecodeError> {
        let text = std::str::from_utf8(self.bytes(field)?);
        Ok(text.map_err(|_| FieldError { field, problem: "is not UTF-8" })?)
    }

    pub(super) fn time(&mut self, field: &'static str) -> Result<Timestamp, DecodeError> {
        let seconds = i64::from_be_bytes(self.array(field)?);
        let time = Timestamp::from_second(seconds);
        Ok(time.map_err(|_| FieldError { field, problem: "is out of range" })?)
    }
}

/// Appends a list of bytes. Its length must have been checked: a list has at most 255 bytes.
pub(super) fn append(message: &mut Vec<u8>, bytes: &[u8]) {
    message.push(u8::try_from(bytes.len()).expect("the caller checked the length"));
    message.extend_from_slice(bytes);
}

/// Appends a time in seconds. Fractions are dropped.
pub(super) fn append_time(message: &mut Vec<u8>, time: Timestamp) {
    message.extend_from_slice(&time.as_second().to_be_bytes());
}
