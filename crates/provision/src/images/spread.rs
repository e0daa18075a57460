//! An image in chunks: one fetches them, and several each unpack, check and write one.

use std::collections::BTreeSet;
use std::io;
use std::ops::Range;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::chunks::{Chunk, ChunkKind, MAX_STORED, Manifest};
use super::meter::Meter;
use super::source::Fetch;
use super::stream::write_runs;
use super::{
    Chunked, FIRST, ImageError, Watch, Written, close_target, first_difference, open_target,
};
use crate::device::GuardedIo;
use crate::device::buffer::{Buffer, CHUNK, Pool, Pooled};

/// More would need more memory, and devices do not take more.
const MOST_WORKERS: usize = 4;

/// Longest time between two words about what is durable, as long as something is written.
const LONGEST: Duration = Duration::from_secs(2);

/// Chunks before the one that was reached that are read back: what a disk said to be durable may not
/// have been.
const WINDOW: usize = 4;

/// A chunk by its number, and how it is packed; a chunk of zeros is not.
type Job = (usize, Option<(Pooled, usize)>);

pub(super) fn write(
    image: &Chunked<'_>,
    io: &GuardedIo,
    target: &Range<u64>,
    watch: &dyn Watch,
) -> Result<Written, ImageError> {
    let chunks = &image.manifest.chunks;
    let from = begin_at(image, io, target);
    if from == 0 {
        open_target(io, target)?;
    }
    let skipped: u64 = chunks[1.min(from)..from].iter().map(|chunk| u64::from(chunk.length)).sum();
    let meter = Meter::new(watch, Some(image.manifest.size), skipped);
    let shared = Shared {
        io,
        chunks,
        target,
        watch,
        meter: &meter,
        state: Mutex::new(State { next: from.max(1), ..State::default() }),
        every: image.keep_every,
        told: Mutex::new((chunk_start(chunks, from.max(1)), Instant::now())),
    };
    let workers = std::thread::available_parallelism().map_or(1, usize::from).min(MOST_WORKERS);
    let (jobs, todo) = sync_channel(workers);
    let todo = Mutex::new(todo);
    let fetched = std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| shared.work(&todo));
        }
        let fetched = fetch(image, from, workers, &jobs, &shared);
        drop(jobs);
        fetched
    });
    let state = shared.state.into_inner().unwrap_or_else(PoisonError::into_inner);
    if let Some(error) = state.failure {
        return Err(error);
    }
    fetched?;
    close_target(io, target, &state.first, watch)?;
    meter.add(state.first.len() as u64);
    Ok(Written { bytes: meter.end(), zeros: state.zeros })
}

/// The chunk to go on with: what an earlier attempt wrote last is looked at before it is believed.
fn begin_at(image: &Chunked<'_>, io: &GuardedIo, target: &Range<u64>) -> usize {
    let reached = image.manifest.number_at(image.reached);
    let window = reached.saturating_sub(WINDOW).max(1);
    // The first chunk is fetched again in any case, because its first MiB goes last.
    if reached <= 1 {
        return 0;
    }
    let last = &image.manifest.chunks[window..reached];
    match first_difference(io, target.start, last) {
        Ok(None) => reached,
        _ => 0,
    }
}

/// Gives every chunk that is not there yet to a worker, the first one in any case.
fn fetch(
    image: &Chunked<'_>,
    from: usize,
    workers: usize,
    jobs: &SyncSender<Job>,
    shared: &Shared<'_>,
) -> Result<(), ImageError> {
    let pool = Pool::new(2 * workers, MAX_STORED as usize);
    let Manifest { chunks, .. } = image.manifest;
    let mut stream: Option<Fetch<'_>> = None;
    let wanted = (0..chunks.len()).filter(|number| *number == 0 || *number >= from);
    for number in wanted {
        if shared.watch.is_stopped() {
            return Err(ImageError::Stopped);
        }
        if shared.state().failure.is_some() {
            return Ok(());
        }
        let packed = match chunks[number].kind {
            ChunkKind::Zero => None,
            ChunkKind::Data { at, stored, .. } => {
                let stored = stored as usize;
                let stream = match &mut stream {
                    Some(stream) if stream.position() == at => stream,
                    other => other.insert(Fetch::begin(image.origin, at)?),
                };
                let mut bytes = pool.take();
                stream.read_exactly(&mut bytes[..stored])?;
                Some((bytes, stored))
            }
        };
        let _ = jobs.send((number, packed));
    }
    Ok(())
}

struct Shared<'a> {
    io: &'a GuardedIo,
    chunks: &'a [Chunk],
    target: &'a Range<u64>,
    watch: &'a dyn Watch,
    meter: &'a Meter<'a>,
    state: Mutex<State>,
    every: u64,
    /// All bytes before this one were said to be durable, and when.
    told: Mutex<(u64, Instant)>,
}

#[derive(Default)]
struct State {
    failure: Option<ImageError>,
    zeros: u64,
    /// The first MiB.
    first: Vec<u8>,
    /// All chunks before this one are written, and some behind it.
    next: usize,
    ahead: BTreeSet<usize>,
}

impl Shared<'_> {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self, todo: &Mutex<Receiver<Job>>) {
        let mut unpacked = Buffer::new(CHUNK);
        let mut decompressor = zstd::bulk::Decompressor::new();
        loop {
            let job = todo.lock().unwrap_or_else(PoisonError::into_inner).recv();
            let Ok((number, packed)) = job else { return };
            // Whoever sends is not kept waiting, even if nothing is written any more.
            if self.state().failure.is_some() {
                continue;
            }
            let chunk = &self.chunks[number];
            let bytes = &mut unpacked[..chunk.length as usize];
            let outcome = match (packed, &mut decompressor) {
                (None, _) => {
                    // Of the others only the length is looked at.
                    if number == 0 {
                        bytes.fill(0);
                    }
                    Ok(())
                }
                (Some((packed, stored)), Ok(decompressor)) => {
                    unpack(decompressor, &packed[..stored], chunk, bytes)
                }
                (Some(_), Err(error)) => {
                    Err(ImageError::Unpack(io::Error::other(error.to_string())))
                }
            };
            let outcome = outcome.and_then(|()| self.put(number, bytes));
            let outcome = outcome.and_then(|()| self.keep());
            if let Err(error) = outcome {
                self.state().failure.get_or_insert(error);
            }
        }
    }

    fn put(&self, number: usize, bytes: &[u8]) -> Result<(), ImageError> {
        let chunk = &self.chunks[number];
        let at = self.target.start + chunk.offset;
        let first = if number == 0 { bytes.len().min(FIRST) } else { 0 };
        let zeros = match chunk.kind {
            // Nobody needs to look at them to know what they are.
            ChunkKind::Zero => {
                let range = at + first as u64..at + bytes.len() as u64;
                self.io.zero(range.clone())?;
                range.end - range.start
            }
            ChunkKind::Data { .. } => write_runs(self.io, at + first as u64, &bytes[first..])?,
        };
        self.meter.add((bytes.len() - first) as u64);
        let mut state = self.state();
        state.zeros += zeros;
        if number == 0 {
            state.first = bytes[..first].to_vec();
        } else {
            state.ahead.insert(number);
        }
        let State { next, ahead, .. } = &mut *state;
        while ahead.remove(next) {
            *next += 1;
        }
        Ok(())
    }

    /// Says what is durable, now and then, one after the other.
    fn keep(&self) -> Result<(), ImageError> {
        let Ok(mut told) = self.told.try_lock() else { return Ok(()) };
        let reached = {
            let state = self.state();
            // Without the first chunk there is nothing to go on from.
            if state.first.is_empty() { 0 } else { chunk_start(self.chunks, state.next) }
        };
        let is_late = reached > told.0 && told.1.elapsed() >= LONGEST;
        if reached < told.0.saturating_add(self.every) && !is_late {
            return Ok(());
        }
        self.io.sync()?;
        *told = (reached, Instant::now());
        self.watch.durable(reached).map_err(ImageError::Keep)
    }
}

/// Where a chunk begins, also the one behind the last.
fn chunk_start(chunks: &[Chunk], number: usize) -> u64 {
    let before = number.checked_sub(1).and_then(|before| chunks.get(before));
    before.map_or(0, |chunk| chunk.offset + u64::from(chunk.length))
}

fn unpack(
    decompressor: &mut zstd::bulk::Decompressor<'_>,
    packed: &[u8],
    chunk: &Chunk,
    into: &mut [u8],
) -> Result<(), ImageError> {
    let is_whole = decompressor.decompress_to_buffer(packed, into);
    match is_whole {
        Ok(length) if length == into.len() && chunk.is(into) => Ok(()),
        _ => Err(ImageError::Chunk { offset: chunk.offset }),
    }
}
