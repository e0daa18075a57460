//! Writing an image that is a single stream: one thread fetches, one computes the digest, one
//! unpacks and two write.

use std::io::{self, BufRead, Read};
use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use hoist_provision::manifest::is_zero;
use parking_lot::Mutex;
use sha2::{Digest as _, Sha256};

use super::decode::{self, Decoder};
use super::format;
use super::meter::Meter;
use super::source::Fetch;
use super::{
    Digest, FIRST, ForeignFormat, ImageError, SourceError, Stream, Watch, WriteSummary,
    close_target, open_target,
};
use crate::GuardedIo;
use crate::buffer::{CHUNK, Pool, PooledBuffer};

/// Bytes of one read, and the number of pieces that may be queued.
const FETCHED: usize = 512 * 1024;
const FETCHES: usize = 8;

/// Buffers of unpacked bytes: one to fill, and for each writer one to write and one queued.
pub(super) const CHUNKS: usize = 1 + 2 * WRITERS;
pub(super) const WRITERS: usize = 2;

/// Shorter runs of zeros are written as data, because a separate request to the device would take
/// longer.
const RUN: usize = 256 * 1024;

/// A fetched piece, shared by the unpacker and the hasher.
#[derive(Clone)]
struct Piece {
    bytes: Arc<PooledBuffer>,
    length: usize,
}

impl Piece {
    fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

/// A buffer to write, of which only a part goes to the disk.
pub(super) struct Job {
    /// Position of the first byte of the buffer.
    pub(super) at: u64,
    pub(super) bytes: PooledBuffer,
    pub(super) part: Range<usize>,
}

pub(super) fn write(
    image: &Stream<'_>,
    io: &GuardedIo,
    target: &Range<u64>,
    watch: &dyn Watch,
) -> Result<WriteSummary, ImageError> {
    let fetch = Fetch::begin(image.origin, 0)?;
    let has_end = fetch.has_end() || image.size.is_some() || image.digest.is_some();
    open_target(io, target, watch)?;
    let meter = Meter::new(watch, image.size, 0);
    let context = WriterContext::new(io, &meter);
    let digest = image.digest;
    let (pieces, fetched) = sync_channel(FETCHES);
    let (jobs, todo) = sync_channel::<Job>(WRITERS);
    let todo = Mutex::new(todo);
    let (first, is) = std::thread::scope(|scope| {
        let hashed = digest.map(|_| sync_channel::<Piece>(FETCHES));
        let (to_hash, hasher) = match hashed {
            Some((to_hash, hashed)) => (Some(to_hash), Some(scope.spawn(|| hash(hashed)))),
            None => (None, None),
        };
        scope.spawn(move || fetch_all(fetch, &pieces, to_hash.as_ref()));
        for _ in 0..WRITERS {
            scope.spawn(|| context.write_all(&todo));
        }
        let first = unpack((image, has_end), target, fetched, &jobs, &context, watch);
        drop(jobs);
        let is = hasher.map(|hasher| hasher.join().expect("it does not panic"));
        (first, is)
    });
    let state = context.state.into_inner();
    if let Some(error) = state.failure {
        return Err(error);
    }
    let first = first?;
    if let (Some(wanted), Some(is)) = (digest, is)
        && wanted != is
    {
        return Err(ImageError::Digest { wanted, is });
    }
    close_target(io, target, &first, watch)?;
    meter.add(first.len() as u64);
    Ok(WriteSummary { bytes: meter.end(), zeros: state.zeros })
}

fn fetch_all(
    mut fetch: Fetch<'_>,
    pieces: &SyncSender<Result<Piece, SourceError>>,
    to_hash: Option<&SyncSender<Piece>>,
) {
    let pool = Pool::new(FETCHES + 2, FETCHED);
    loop {
        let mut bytes = pool.take();
        let length = match fetch.read(&mut bytes) {
            Ok(0) => return,
            Ok(length) => length,
            Err(error) => {
                let _ = pieces.send(Err(error));
                return;
            }
        };
        let piece = Piece { bytes: Arc::new(bytes), length };
        if let Some(to_hash) = to_hash {
            let _ = to_hash.send(piece.clone());
        }
        // The receiver ended after a failure, which it reports itself.
        if pieces.send(Ok(piece)).is_err() {
            return;
        }
    }
}

fn hash(pieces: Receiver<Piece>) -> Digest {
    let mut hash = Sha256::new();
    for piece in pieces {
        hash.update(piece.bytes());
    }
    Digest::end(hash)
}

/// Unpacks the stream and gives it to the writers, except for the first MiB, which is returned.
fn unpack(
    (image, has_end): (&Stream<'_>, bool),
    target: &Range<u64>,
    fetched: Receiver<Result<Piece, SourceError>>,
    jobs: &SyncSender<Job>,
    context: &WriterContext<'_>,
    watch: &dyn Watch,
) -> Result<Vec<u8>, ImageError> {
    let room = target.end - target.start;
    let mut packed = PieceReader { pieces: fetched, piece: None, at: 0, failure: None };
    let decoder = Decoder::new(&mut packed, image.compression);
    let outcome = decoder.map_err(decode::failure).and_then(|mut decoder| {
        if matches!(decoder, Decoder::Raw(_)) && !has_end {
            return Err(ImageError::Endless);
        }
        let pool = Pool::new(CHUNKS, CHUNK);
        let mut first = Vec::new();
        let mut last = None;
        let mut hash = image.unpacked_digest.map(|wanted| (wanted, Sha256::new()));
        let mut done = 0_u64;
        loop {
            if watch.is_stopped() {
                return Err(ImageError::Stopped);
            }
            let mut bytes = pool.take();
            // All chunks but the first have the same alignment.
            let want = if done == 0 { FIRST } else { CHUNK };
            let length = fill(&mut decoder, &mut bytes[..want]).map_err(decode::failure)?;
            let at = done;
            done += length as u64;
            if done > room {
                return Err(ImageError::Overflow { room });
            }
            if length > 0 {
                last = format::footer(&bytes[..length]);
            }
            if let Some((_, hash)) = &mut hash {
                hash.update(&bytes[..length]);
            }
            if at == 0 {
                first = bytes[..length].to_vec();
                if let Some(format) = format::foreign(&first) {
                    return Err(format.into());
                }
            } else if length > 0 {
                let job = Job { at: target.start + at, bytes, part: 0..length };
                // The writers run until the last job.
                let _ = jobs.send(job);
            }
            if length < want {
                break check_whole(image, done, (&first, last), hash).map(|()| first);
            }
            if context.has_failed() {
                return Ok(first);
            }
        }
    });
    // A failure of the source takes precedence over the error of the decompressor.
    match packed.failure.take() {
        Some(error) => Err(error.into()),
        None => outcome,
    }
}

/// Checks a completely unpacked image: its size, the formats that its first and last bytes show, and
/// its digest.
fn check_whole(
    image: &Stream<'_>,
    is: u64,
    (first, last): (&[u8], Option<ForeignFormat>),
    hash: Option<(Digest, Sha256)>,
) -> Result<(), ImageError> {
    if let Some(wanted) = image.size.filter(|wanted| *wanted != is) {
        return Err(ImageError::Size { wanted, is });
    }
    if let Some(wanted) = format::ext_size(first).filter(|wanted| *wanted > is) {
        return Err(ImageError::Truncated { wanted, is });
    }
    if let Some(format) = last {
        return Err(format.into());
    }
    let hash = hash.map(|(wanted, hash)| (wanted, Digest::end(hash)));
    match hash.filter(|(wanted, is)| wanted != is) {
        Some((wanted, is)) => Err(ImageError::UnpackedDigest { wanted, is }),
        None => Ok(()),
    }
}

/// The fetched pieces as a stream.
struct PieceReader {
    pieces: Receiver<Result<Piece, SourceError>>,
    piece: Option<Piece>,
    at: usize,
    failure: Option<SourceError>,
}

impl BufRead for PieceReader {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.piece.as_ref().is_none_or(|piece| self.at == piece.length) {
            // Releases the piece before waiting for the next one, so that its buffer can be reused.
            (self.piece, self.at) = (None, 0);
            match self.pieces.recv() {
                Ok(Ok(piece)) => self.piece = Some(piece),
                Ok(Err(error)) => {
                    self.failure = Some(error);
                    return Err(io::Error::other("the image cannot be fetched"));
                }
                Err(_) => {}
            }
        }
        Ok(self.piece.as_ref().map_or(&[], |piece| &piece.bytes()[self.at..]))
    }

    fn consume(&mut self, amount: usize) {
        self.at += amount;
    }
}

impl Read for PieceReader {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let from = self.fill_buf()?;
        let length = from.len().min(into.len());
        into[..length].copy_from_slice(&from[..length]);
        self.consume(length);
        Ok(length)
    }
}

/// State shared by the writers.
pub(super) struct WriterContext<'a> {
    pub(super) io: &'a GuardedIo,
    pub(super) meter: &'a Meter<'a>,
    pub(super) state: Mutex<State>,
}

#[derive(Default)]
pub(super) struct State {
    pub(super) failure: Option<ImageError>,
    pub(super) zeros: u64,
}

impl<'a> WriterContext<'a> {
    pub(super) fn new(io: &'a GuardedIo, meter: &'a Meter<'a>) -> Self {
        Self { io, meter, state: Mutex::default() }
    }

    pub(super) fn has_failed(&self) -> bool {
        self.state.lock().failure.is_some()
    }

    pub(super) fn write_all(&self, todo: &Mutex<Receiver<Job>>) {
        loop {
            let job = todo.lock().recv();
            let Ok(Job { at, bytes, part }) = job else { return };
            // The queue is drained after a failure, so that the sender never blocks.
            if self.has_failed() {
                continue;
            }
            let length = part.len() as u64;
            let outcome = write_runs(self.io, at + part.start as u64, &bytes[part]);
            let mut state = self.state.lock();
            match outcome {
                Ok(zeros) => state.zeros += zeros,
                Err(error) => {
                    state.failure.get_or_insert(error.into());
                }
            }
            drop(state);
            self.meter.add(length);
        }
    }
}

/// Writes bytes, and zeroes long runs of zeros. Returns the number of bytes in those runs.
pub(super) fn write_runs(
    io: &GuardedIo,
    at: u64,
    bytes: &[u8],
) -> Result<u64, crate::guard::WriteError> {
    let mut zeros = 0;
    let mut start = 0;
    while start < bytes.len() {
        let is_hole = is_zero(&bytes[start..bytes.len().min(start + RUN)]);
        let mut end = start;
        while end < bytes.len() && is_zero(&bytes[end..bytes.len().min(end + RUN)]) == is_hole {
            end = bytes.len().min(end + RUN);
        }
        let from = at + start as u64;
        let until = at + end as u64;
        if is_hole {
            io.zero(from..until)?;
            zeros += until - from;
        } else {
            io.write_at(from, &bytes[start..end])?;
        }
        start = end;
    }
    Ok(zeros)
}

/// Reads until the buffer is full or the stream ends.
pub(super) fn fill(stream: &mut impl Read, into: &mut [u8]) -> io::Result<usize> {
    let mut length = 0;
    while length < into.len() {
        match stream.read(&mut into[length..]) {
            Ok(0) => break,
            Ok(more) => length += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(length)
}
