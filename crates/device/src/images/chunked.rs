//! Writing an image in chunks: one thread fetches, one thread per core unpacks and verifies, and a
//! few threads write. Separate writers keep the cores busy while the disk works.

use std::collections::BTreeSet;
use std::io;
use std::ops::Range;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use hoist_provision::manifest::{Chunk, ChunkKind, MAX_STORED, Manifest};
use parking_lot::{Mutex, MutexGuard};

use super::meter::Meter;
use super::source::{Fetch, Origin, SourceError, shown};
use super::stream::write_runs;
use super::{
    ChunkedImage, FIRST, ImageError, Watch, WriteSummary, close_target, first_difference,
    open_target,
};
use crate::GuardedIo;
use crate::buffer::{CHUNK, Pool, PooledBuffer};

/// More threads would need more memory without being faster.
const MOST_UNPACKERS: usize = 4;
const WRITERS: usize = 3;

/// Buffers for unpacked chunks: one for each thread that may hold one.
const fn buffers(unpackers: usize) -> usize {
    unpackers + WRITERS
}

/// Longest interval between two progress records while data is written.
const LONGEST: Duration = Duration::from_secs(2);

/// Chunks read back before the recorded position: the disk may have lost data that it reported as
/// durable.
const WINDOW: usize = 4;

/// Most chunks of zeros in one request to the device.
const MOST_ZEROS: usize = 64;

/// Most bytes that are read and skipped before a chunk. Packed zeros are not needed, and a new request
/// takes longer.
const MOST_SKIPPED: u64 = 1024 * 1024;
const _: () = assert!(MOST_SKIPPED <= MAX_STORED as u64);

/// A chunk by its number, with its packed bytes. Chunks of zeros have none, and several of them
/// form one job.
type Job = (Range<usize>, Option<(PooledBuffer, usize)>);

/// The same after unpacking and verification.
type VerifiedChunks = (Range<usize>, Option<PooledBuffer>);

pub(super) fn write(
    image: &ChunkedImage<'_>,
    io: &GuardedIo,
    target: &Range<u64>,
    watch: &dyn Watch,
) -> Result<WriteSummary, ImageError> {
    let chunks = &image.manifest.chunks;
    let from = begin_at(image, io, target);
    if from == 0 {
        open_target(io, target, watch)?;
    }
    let skipped: u64 = chunks[1.min(from)..from].iter().map(|chunk| u64::from(chunk.length)).sum();
    let meter = Meter::new(watch, Some(image.manifest.size), skipped);
    let pipeline = ChunkPipeline {
        io,
        origin: image.origin,
        chunks,
        target,
        watch,
        meter: &meter,
        state: Mutex::new(State { next: from.max(1), ..State::default() }),
        every: image.keep_every,
        told: Mutex::new((chunk_start(chunks, from.max(1)), Instant::now())),
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let unpackers = cores.min(MOST_UNPACKERS);
    let unpacked = Pool::new(buffers(unpackers), CHUNK);
    let (jobs, todo) = sync_channel(unpackers);
    let (checked, to_write) = sync_channel(WRITERS);
    let todo = Mutex::new(todo);
    let to_write = Mutex::new(to_write);
    let fetched = std::thread::scope(|scope| {
        for _ in 0..unpackers {
            let pipeline = &pipeline;
            let todo = &todo;
            let unpacked = &unpacked;
            let checked = checked.clone();
            scope.spawn(move || pipeline.unpack_all(todo, unpacked, &checked));
        }
        drop(checked);
        for _ in 0..WRITERS {
            scope.spawn(|| pipeline.write_all(&to_write));
        }
        let fetched = fetch(image, from, unpackers, &jobs, &pipeline);
        drop(jobs);
        fetched
    });
    let state = pipeline.state.into_inner();
    if let Some(error) = state.failure {
        return Err(error);
    }
    fetched?;
    close_target(io, target, &state.first, watch)?;
    meter.add(state.first.len() as u64);
    Ok(WriteSummary { bytes: meter.end(), zeros: state.zeros })
}

/// The first chunk to write. The last chunks of an earlier attempt are read back before they are
/// trusted.
fn begin_at(image: &ChunkedImage<'_>, io: &GuardedIo, target: &Range<u64>) -> usize {
    let reached = image.manifest.number_at(image.reached);
    let window = reached.saturating_sub(WINDOW).max(1);
    // The first chunk is always fetched again, because its first MiB is written last.
    if reached <= 1 {
        return 0;
    }
    let last = &image.manifest.chunks[window..reached];
    match first_difference(io, target.start, last) {
        Ok(None) => reached,
        _ => 0,
    }
}

/// Gives every missing chunk to a worker, and always the first one.
fn fetch(
    image: &ChunkedImage<'_>,
    from: usize,
    unpackers: usize,
    jobs: &SyncSender<Job>,
    pipeline: &ChunkPipeline<'_>,
) -> Result<(), ImageError> {
    let pool = Pool::new(unpackers + 1, MAX_STORED as usize);
    let Manifest { chunks, .. } = image.manifest;
    let mut stream: Option<Fetch<'_>> = None;
    let mut next = 0;
    while next < chunks.len() {
        if pipeline.watch.is_stopped() {
            return Err(ImageError::Stopped);
        }
        if pipeline.state().failure.is_some() {
            return Ok(());
        }
        let number = next;
        let (last, packed) = match chunks[number].kind {
            ChunkKind::Zero => (zeros_until(chunks, number), None),
            ChunkKind::Data { at, stored, .. } => {
                let stored = stored as usize;
                let mut bytes = pool.take();
                let gap = stream.as_ref().and_then(|stream| at.checked_sub(stream.position()));
                let gap = gap.filter(|gap| *gap <= MOST_SKIPPED);
                let (stream, gap) = match (&mut stream, gap) {
                    (Some(stream), Some(gap)) => (stream, usize::try_from(gap).expect("small")),
                    (other, _) => (other.insert(Fetch::begin(image.origin, at)?), 0),
                };
                let skipped = stream.read_exactly(&mut bytes[..gap]);
                let read = skipped.and_then(|()| stream.read_exactly(&mut bytes[..stored]));
                let came = match read {
                    Ok(()) => stored,
                    // A source with a truncated file does not have this chunk.
                    Err(SourceError::Short { .. }) if image.origin.urls.len() > 1 => 0,
                    Err(error) => return Err(error.into()),
                };
                (number + 1, Some((bytes, came)))
            }
        };
        let _ = jobs.send((number..last, packed));
        // The first chunk is always needed.
        next = last.max(from);
        if next > last {
            stream = None;
        }
    }
    Ok(())
}

/// The chunk behind a run of zeros. The first chunk of the image is separate, because only a part
/// of it is written now.
fn zeros_until(chunks: &[Chunk], number: usize) -> usize {
    let most = if number == 0 { 1 } else { MOST_ZEROS };
    let zeros = chunks[number..].iter().take(most);
    number + zeros.take_while(|chunk| chunk.kind == ChunkKind::Zero).count()
}

struct ChunkPipeline<'a> {
    io: &'a GuardedIo,
    origin: &'a Origin,
    chunks: &'a [Chunk],
    target: &'a Range<u64>,
    watch: &'a dyn Watch,
    meter: &'a Meter<'a>,
    state: Mutex<State>,
    every: u64,
    /// All bytes before this position were reported as durable, and the time of the report.
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

impl ChunkPipeline<'_> {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    fn unpack_all(
        &self,
        todo: &Mutex<Receiver<Job>>,
        buffers: &Pool,
        checked: &SyncSender<VerifiedChunks>,
    ) {
        let mut decompressor = zstd::bulk::Decompressor::new();
        loop {
            let job = todo.lock().recv();
            let Ok((numbers, packed)) = job else { return };
            // The queue is drained after a failure, so that the sender never blocks.
            if self.state().failure.is_some() {
                continue;
            }
            let outcome = match (packed, &mut decompressor) {
                (None, _) => Ok(None),
                (Some((packed, stored)), Ok(decompressor)) => {
                    let mut bytes = buffers.take();
                    let chunk = &self.chunks[numbers.start];
                    let is_good = unpack(decompressor, &packed[..stored], chunk, &mut bytes);
                    drop(packed);
                    let outcome = if is_good {
                        Ok(())
                    } else {
                        from_any(self.origin, decompressor, chunk, &mut bytes)
                    };
                    outcome.map(|()| Some(bytes))
                }
                (Some(_), Err(error)) => {
                    Err(ImageError::Unpack(io::Error::other(error.to_string())))
                }
            };
            match outcome {
                // The writers run until the queue is closed.
                Ok(bytes) => drop(checked.send((numbers, bytes))),
                Err(error) => self.fail(error),
            }
        }
    }

    fn write_all(&self, to_write: &Mutex<Receiver<VerifiedChunks>>) {
        loop {
            let chunk = to_write.lock().recv();
            let Ok((numbers, bytes)) = chunk else { return };
            if self.state().failure.is_some() {
                continue;
            }
            let outcome = self.put(numbers, bytes.as_deref());
            if let Err(error) = outcome.and_then(|()| self.keep()) {
                self.fail(error);
            }
        }
    }

    /// Keeps the first failure.
    fn fail(&self, error: ImageError) {
        self.state().failure.get_or_insert(error);
    }

    fn put(&self, numbers: Range<usize>, bytes: Option<&[u8]>) -> Result<(), ImageError> {
        let start = chunk_start(self.chunks, numbers.start);
        let end = chunk_start(self.chunks, numbers.end);
        let length = usize::try_from(end - start).expect("a few chunks");
        let first = if numbers.start == 0 { length.min(FIRST) } else { 0 };
        let at = self.target.start + start + first as u64;
        let zeros = match bytes {
            // Zeros need no inspection.
            None => {
                self.io.zero(at..self.target.start + end)?;
                (length - first) as u64
            }
            Some(bytes) => write_runs(self.io, at, &bytes[first..length])?,
        };
        self.meter.add((length - first) as u64);
        let mut state = self.state();
        state.zeros += zeros;
        if numbers.start == 0 {
            state.first = bytes.map_or_else(|| vec![0; first], |bytes| bytes[..first].to_vec());
        } else {
            state.ahead.extend(numbers);
        }
        let State { next, ahead, .. } = &mut *state;
        while ahead.remove(next) {
            *next += 1;
        }
        Ok(())
    }

    /// Records the durable position at intervals. Only one thread does so at a time.
    fn keep(&self) -> Result<(), ImageError> {
        let Some(mut told) = self.told.try_lock() else { return Ok(()) };
        let reached = {
            let state = self.state();
            // An attempt without the first chunk cannot be resumed.
            if state.first.is_empty() { 0 } else { chunk_start(self.chunks, state.next) }
        };
        let is_late = reached > told.0 && told.1.elapsed() >= LONGEST;
        if reached < told.0.saturating_add(self.every) && !is_late {
            return Ok(());
        }
        self.io.sync()?;
        *told = (reached, Instant::now());
        Ok(self.watch.durable(reached)?)
    }
}

/// Offset of a chunk. The number behind the last chunk gives the size of the image.
fn chunk_start(chunks: &[Chunk], number: usize) -> u64 {
    let before = number.checked_sub(1).and_then(|before| chunks.get(before));
    before.map_or(0, |chunk| chunk.offset + u64::from(chunk.length))
}

/// Unpacks a single chunk. If its bytes are damaged, fetches it from another source.
pub(super) fn unpack_one(
    origin: &Origin,
    packed: &[u8],
    chunk: &Chunk,
    into: &mut [u8],
) -> Result<(), ImageError> {
    let mut decompressor = zstd::bulk::Decompressor::new().map_err(ImageError::Unpack)?;
    if unpack(&mut decompressor, packed, chunk, into) {
        return Ok(());
    }
    from_any(origin, &mut decompressor, chunk, into)
}

/// Fetches a chunk from the first source that has a valid one. A source may have a damaged or
/// truncated file.
fn from_any(
    origin: &Origin,
    decompressor: &mut zstd::bulk::Decompressor<'_>,
    chunk: &Chunk,
    into: &mut [u8],
) -> Result<(), ImageError> {
    let ChunkKind::Data { at, stored, .. } = chunk.kind else { return Ok(()) };
    let mut packed = vec![0; stored as usize];
    let mut tried = Vec::new();
    for url in &origin.urls {
        let alone = Origin { urls: vec![url.clone()], ..origin.for_probe() };
        let read = Fetch::begin(&alone, at).and_then(|mut fetch| fetch.read_exactly(&mut packed));
        match read {
            Ok(()) if unpack(decompressor, &packed, chunk, into) => return Ok(()),
            Ok(()) => tried.push(format!("`{}` has other bytes", shown(url))),
            Err(SourceError::Stopped) => return Err(ImageError::Stopped),
            Err(error) => tried.push(error.to_string()),
        }
    }
    Err(ImageError::Chunk { offset: chunk.offset, tried })
}

/// Unpacks a chunk and returns whether it is valid.
pub(super) fn unpack(
    decompressor: &mut zstd::bulk::Decompressor<'_>,
    packed: &[u8],
    chunk: &Chunk,
    into: &mut [u8],
) -> bool {
    let into = &mut into[..chunk.length as usize];
    let is_packed = chunk.is_packed(packed);
    // Bytes with the wrong digest are not unpacked.
    is_packed != Some(false)
        && decompressor.decompress_to_buffer(packed, into).is_ok_and(|is| is == into.len())
        && (is_packed == Some(true) || chunk.is(into))
}
