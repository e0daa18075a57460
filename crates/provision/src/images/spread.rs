//! An image in chunks: one fetches them, as many as there are cores unpack and check them, and a few
//! write. A core that waited for the disk would unpack nothing meanwhile.

use std::collections::BTreeSet;
use std::io;
use std::ops::Range;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::chunks::{Chunk, ChunkKind, MAX_STORED, Manifest};
use super::meter::Meter;
use super::source::{Fetch, Origin, SourceError, shown};
use super::stream::write_runs;
use super::{
    Chunked, FIRST, ImageError, Watch, Written, close_target, first_difference, open_target,
};
use crate::device::GuardedIo;
use crate::device::buffer::{CHUNK, Pool, Pooled};

/// More would need more memory, and devices do not take more.
const MOST_UNPACKERS: usize = 4;
const WRITERS: usize = 3;

/// Buffers of unpacked chunks: one for everybody who has one in hand.
const fn buffers(unpackers: usize) -> usize {
    unpackers + WRITERS
}

/// Longest time between two words about what is durable, as long as something is written.
const LONGEST: Duration = Duration::from_secs(2);

/// Chunks before the one that was reached that are read back: what a disk said to be durable may not
/// have been.
const WINDOW: usize = 4;

/// Chunks of zeros that are told to the device as one.
const MOST_ZEROS: usize = 64;

/// A chunk by its number, and how it is packed; chunks of zeros are not, and come several at once.
type Job = (Range<usize>, Option<(Pooled, usize)>);

/// The same, unpacked and checked.
type Checked = (Range<usize>, Option<Pooled>);

pub(super) fn write(
    image: &Chunked<'_>,
    io: &GuardedIo,
    target: &Range<u64>,
    watch: &dyn Watch,
) -> Result<Written, ImageError> {
    let chunks = &image.manifest.chunks;
    let from = begin_at(image, io, target);
    if from == 0 {
        open_target(io, target, watch)?;
    }
    let skipped: u64 = chunks[1.min(from)..from].iter().map(|chunk| u64::from(chunk.length)).sum();
    let meter = Meter::new(watch, Some(image.manifest.size), skipped);
    let shared = Shared {
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
    let (todo, to_write) = (Mutex::new(todo), Mutex::new(to_write));
    let fetched = std::thread::scope(|scope| {
        for _ in 0..unpackers {
            let (shared, todo, unpacked) = (&shared, &todo, &unpacked);
            let checked = checked.clone();
            scope.spawn(move || shared.unpack_all(todo, unpacked, &checked));
        }
        drop(checked);
        for _ in 0..WRITERS {
            scope.spawn(|| shared.write_all(&to_write));
        }
        let fetched = fetch(image, from, unpackers, &jobs, &shared);
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
    unpackers: usize,
    jobs: &SyncSender<Job>,
    shared: &Shared<'_>,
) -> Result<(), ImageError> {
    let pool = Pool::new(unpackers + 1, MAX_STORED as usize);
    let Manifest { chunks, .. } = image.manifest;
    let mut stream: Option<Fetch<'_>> = None;
    let mut next = 0;
    while next < chunks.len() {
        if shared.watch.is_stopped() {
            return Err(ImageError::Stopped);
        }
        if shared.state().failure.is_some() {
            return Ok(());
        }
        let number = next;
        let (last, packed) = match chunks[number].kind {
            ChunkKind::Zero => (zeros_until(chunks, number), None),
            ChunkKind::Data { at, stored, .. } => {
                let stored = stored as usize;
                let stream = match &mut stream {
                    Some(stream) if stream.position() == at => stream,
                    other => other.insert(Fetch::begin(image.origin, at)?),
                };
                let mut bytes = pool.take();
                let came = match stream.read_exactly(&mut bytes[..stored]) {
                    Ok(()) => stored,
                    // Who has less than there is has nothing of this one.
                    Err(SourceError::Short { .. }) if image.origin.urls.len() > 1 => 0,
                    Err(error) => return Err(error.into()),
                };
                (number + 1, Some((bytes, came)))
            }
        };
        let _ = jobs.send((number..last, packed));
        // The first one is needed in any case.
        next = last.max(from);
    }
    Ok(())
}

/// The chunk behind those of zeros that begin here. The first of all is by itself, because not all of
/// it is written now.
fn zeros_until(chunks: &[Chunk], number: usize) -> usize {
    let most = if number == 0 { 1 } else { MOST_ZEROS };
    let zeros = chunks[number..].iter().take(most);
    number + zeros.take_while(|chunk| chunk.kind == ChunkKind::Zero).count()
}

struct Shared<'a> {
    io: &'a GuardedIo,
    origin: &'a Origin,
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

    fn unpack_all(
        &self,
        todo: &Mutex<Receiver<Job>>,
        buffers: &Pool,
        checked: &SyncSender<Checked>,
    ) {
        let mut decompressor = zstd::bulk::Decompressor::new();
        loop {
            let job = todo.lock().unwrap_or_else(PoisonError::into_inner).recv();
            let Ok((numbers, packed)) = job else { return };
            // Whoever sends is not kept waiting, even if nothing is written any more.
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
                // The writers are there until there is nothing more.
                Ok(bytes) => drop(checked.send((numbers, bytes))),
                Err(error) => self.fail(error),
            }
        }
    }

    fn write_all(&self, to_write: &Mutex<Receiver<Checked>>) {
        loop {
            let chunk = to_write.lock().unwrap_or_else(PoisonError::into_inner).recv();
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

    /// The first reason is told.
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
            // Nobody needs to look at them to know what they are.
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

/// A chunk, where there are no others: what came of it, or what another place has.
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

/// A chunk from the first place that has it as it shall be: one may have it damaged, or less than all
/// of it, and another not.
fn from_any(
    origin: &Origin,
    decompressor: &mut zstd::bulk::Decompressor<'_>,
    chunk: &Chunk,
    into: &mut [u8],
) -> Result<(), ImageError> {
    let ChunkKind::Data { at, stored, .. } = chunk.kind else { return Ok(()) };
    let (mut packed, mut tried) = (vec![0; stored as usize], Vec::new());
    for url in &origin.urls {
        let alone = Origin { urls: vec![url.clone()], ..origin.for_a_look() };
        let read = Fetch::begin(&alone, at).and_then(|mut fetch| fetch.read_exactly(&mut packed));
        match read {
            Ok(()) if unpack(decompressor, &packed, chunk, into) => return Ok(()),
            Ok(()) => tried.push(format!("`{}` has something else", shown(url))),
            Err(SourceError::Stopped) => return Err(ImageError::Stopped),
            Err(error) => tried.push(error.to_string()),
        }
    }
    Err(ImageError::Chunk { offset: chunk.offset, tried })
}

/// Whether it is what it shall be.
fn unpack(
    decompressor: &mut zstd::bulk::Decompressor<'_>,
    packed: &[u8],
    chunk: &Chunk,
    into: &mut [u8],
) -> bool {
    let into = &mut into[..chunk.length as usize];
    let is_packed = chunk.is_packed(packed);
    // What is known to be another is not even unpacked.
    is_packed != Some(false)
        && decompressor.decompress_to_buffer(packed, into).is_ok_and(|is| is == into.len())
        && (is_packed == Some(true) || chunk.is(into))
}
