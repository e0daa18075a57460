//! Answers that are read while they arrive: JSON lines, server-sent events and files.

use std::marker::PhantomData;

use bytes::{Buf, Bytes, BytesMut};
use reqwest::Response;
use serde::de::DeserializeOwned;

use super::ClientError;
use crate::event::Event;

/// Longest line. A node has at most 64 KiB of free data and some interfaces.
const MAX_LINE: usize = 16 * 1024 * 1024;

/// The lines of an answer, one at a time.
#[derive(Debug)]
pub struct Lines {
    response: Response,
    buffer: BytesMut,
    /// Bytes of the buffer that are known to have no end of line.
    searched: usize,
    ended: bool,
}

/// Lines that are one `T` each.
#[derive(Debug)]
pub struct TypedLines<T> {
    lines: Lines,
    line: PhantomData<fn() -> T>,
}

/// Events as they happen.
#[derive(Debug)]
pub struct Events {
    lines: Lines,
}

/// A file as it arrives.
#[derive(Debug)]
pub struct Chunks {
    response: Response,
}

impl Chunks {
    pub(super) fn new(response: Response) -> Self {
        Self { response }
    }

    /// The next piece; none when the file is complete. One that breaks off is an error.
    pub async fn next(&mut self) -> Result<Option<Bytes>, ClientError> {
        let chunk = self.response.chunk().await;
        chunk.map_err(|source| ClientError::Lost { write: false, source: source.without_url() })
    }
}

impl Lines {
    pub(super) fn new(response: Response) -> Self {
        Self { response, buffer: BytesMut::new(), searched: 0, ended: false }
    }

    /// The next line without its end; none when there are no more.
    ///
    /// May be dropped while it waits, and then called again: nothing is lost.
    pub async fn next(&mut self) -> Result<Option<BytesMut>, ClientError> {
        loop {
            if let Some(line) = self.buffered() {
                return Ok(Some(line));
            }
            if self.ended {
                self.searched = 0;
                let rest = self.buffer.split();
                return Ok((!rest.is_empty()).then_some(rest));
            }
            if self.buffer.len() > MAX_LINE {
                return Err(ClientError::TooLong { limit: MAX_LINE });
            }
            match self.response.chunk().await {
                Ok(Some(chunk)) => self.buffer.extend_from_slice(&chunk),
                Ok(None) => self.ended = true,
                Err(source) => {
                    return Err(ClientError::Lost { write: false, source: source.without_url() });
                }
            }
        }
    }

    fn buffered(&mut self) -> Option<BytesMut> {
        let found = self.buffer[self.searched..].iter().position(|byte| *byte == b'\n');
        let Some(found) = found else {
            self.searched = self.buffer.len();
            return None;
        };
        let mut line = self.buffer.split_to(self.searched + found);
        self.buffer.advance(1);
        self.searched = 0;
        if line.last() == Some(&b'\r') {
            line.truncate(line.len() - 1);
        }
        Some(line)
    }
}

impl<T: DeserializeOwned> TypedLines<T> {
    pub(super) fn new(lines: Lines) -> Self {
        Self { lines, line: PhantomData }
    }

    pub async fn next(&mut self) -> Result<Option<T>, ClientError> {
        loop {
            let Some(line) = self.lines.next().await? else { return Ok(None) };
            if line.iter().all(u8::is_ascii_whitespace) {
                continue;
            }
            return serde_json::from_slice(&line)
                .map(Some)
                .map_err(|source| ClientError::Answer { write: false, source });
        }
    }
}

impl Events {
    pub(super) fn new(lines: Lines) -> Self {
        Self { lines }
    }

    /// The next event; none when the server closed the stream. hoist writes the whole event as the
    /// data of one line, so the other fields need no reading.
    pub async fn next(&mut self) -> Result<Option<Event>, ClientError> {
        loop {
            let Some(line) = self.lines.next().await? else { return Ok(None) };
            if let Some(data) = line.strip_prefix(b"data:") {
                return serde_json::from_slice(data)
                    .map(Some)
                    .map_err(|source| ClientError::Answer { write: false, source });
            }
        }
    }
}
