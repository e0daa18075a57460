//! From the file to the disk, table by table. Within a table, clusters are taken in the order in which
//! they are in the file, so that what is fetched is mostly one stream.

use std::io;
use std::ops::Range;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Mutex, PoisonError};

use flate2::{Decompress, FlushDecompress};
use zstd::stream::raw::{DParameter, Decoder, InBuffer, Operation, OutBuffer};

use super::{Cluster, HEADER, Header, Packing, Qcow2Error};
use crate::device::GuardedIo;
use crate::device::buffer::{CHUNK, Pool, Pooled};
use crate::images::blocks::Blocks;
use crate::images::decode::WINDOW_LOG;
use crate::images::meter::Meter;
use crate::images::stream::{CHUNKS, Job, Shared, WRITERS};
use crate::images::{FIRST, ImageError, Origin, Stream, Watch, Written, close_target, open_target};

/// What is made zero between two looks whether it shall stop.
const ZEROS: u64 = 256 * 1024 * 1024;

pub(in crate::images) fn write(
    image: &Stream<'_>,
    io: &GuardedIo,
    target: &Range<u64>,
    watch: &dyn Watch,
) -> Result<Written, ImageError> {
    let mut blocks = Blocks::open(image.origin, image.digest, watch)?;
    let mut start = [0; HEADER];
    blocks.read(0, &mut start)?;
    let header = Header::parse(&start)?;
    if let Some(wanted) = image.size.filter(|wanted| *wanted != header.size) {
        return Err(ImageError::Size { wanted, is: header.size });
    }
    let room = target.end - target.start;
    if header.size > room {
        return Err(ImageError::TooLarge { size: header.size, room });
    }
    open_target(io, target, watch)?;
    let meter = Meter::new(watch, Some(header.size), 0);
    let shared = Shared::new(io, &meter);
    let (jobs, todo) = sync_channel::<Job>(WRITERS);
    let todo = Mutex::new(todo);
    let first = std::thread::scope(|scope| {
        for _ in 0..WRITERS {
            scope.spawn(|| shared.write_all(&todo));
        }
        let length = header.size.min(FIRST as u64);
        let mut unfolding = Unfolding {
            header,
            blocks,
            target,
            jobs,
            shared: &shared,
            watch,
            first: vec![0; usize::try_from(length).expect("at most a MiB")],
            pool: Pool::new(CHUNKS, CHUNK),
            batch: None,
            packed: Vec::new(),
            unpacker: Unpacker::new(header.packing)?,
        };
        unfolding.all().map(|()| unfolding.first)
    });
    let zeros = shared.end()?;
    let first = first?;
    close_target(io, target, &first, watch)?;
    meter.add(first.len() as u64);
    Ok(Written { bytes: meter.end(), zeros })
}

/// The first MiB of the disk that it is an image of.
pub(in crate::images) fn beginning(origin: &Origin) -> Result<Vec<u8>, ImageError> {
    let mut blocks = Blocks::open(origin, None, &())?;
    let mut start = [0; HEADER];
    blocks.read(0, &mut start)?;
    let header = Header::parse(&start)?;
    let (file, cluster) = (blocks.size(), usize::try_from(header.cluster()).expect("small"));
    let length = usize::try_from(header.size.min(FIRST as u64)).expect("at most a MiB");
    let mut first = vec![0; length.next_multiple_of(cluster)];
    let (mut packed, mut unpacker) = (Vec::new(), Unpacker::new(header.packing)?);
    for (place, into) in (0_u64..).step_by(cluster).zip(first.chunks_mut(cluster)) {
        let mut entry = [0; 8];
        blocks.read(header.l1_at.saturating_add(place / header.span() * 8), &mut entry)?;
        let Some(table) = header.second(u64::from_be_bytes(entry), file)? else { continue };
        blocks.read(table + place % header.span() / header.cluster() * 8, &mut entry)?;
        match header.entry(u64::from_be_bytes(entry), file)? {
            Cluster::Nowhere => {}
            Cluster::Plain(at) => blocks.read(at, into)?,
            Cluster::Packed { at, length } => {
                packed.resize(length, 0);
                blocks.read(at, &mut packed)?;
                unpacker.unpack(&packed, into)?;
            }
        }
    }
    first.truncate(length);
    Ok(first)
}

struct Unfolding<'a> {
    header: Header,
    blocks: Blocks<'a>,
    target: &'a Range<u64>,
    jobs: SyncSender<Job>,
    shared: &'a Shared<'a>,
    watch: &'a dyn Watch,
    /// The first MiB, which goes last.
    first: Vec<u8>,
    pool: Pool,
    batch: Option<Batch>,
    /// A cluster as it is in the file.
    packed: Vec<u8>,
    unpacker: Unpacker,
}

/// Clusters that are beside each other on the disk.
struct Batch {
    at: u64,
    bytes: Pooled,
    length: usize,
}

impl Unfolding<'_> {
    fn all(&mut self) -> Result<(), ImageError> {
        let Header { size, l1_at, l1_entries, .. } = self.header;
        let span = self.header.span();
        let file = self.blocks.size();
        if l1_at.checked_add(l1_entries * 8).is_none_or(|end| end > file) {
            return Err(Qcow2Error::Damaged("its first table is behind its end").into());
        }
        let table = self.table(l1_at, l1_entries)?;
        for (number, entry) in (0_u64..).zip(table) {
            let start = number * span;
            let range = start..size.min(start.saturating_add(span));
            match self.header.second(entry, file)? {
                None => self.zero(range)?,
                Some(at) => self.span(range, at)?,
            }
        }
        self.flush();
        Ok(())
    }

    fn table(&mut self, at: u64, entries: u64) -> Result<Vec<u64>, ImageError> {
        let mut bytes = vec![0; usize::try_from(entries * 8).expect("it was looked at")];
        self.blocks.read(at, &mut bytes)?;
        let (entries, _) = bytes.as_chunks::<8>();
        Ok(entries.iter().copied().map(u64::from_be_bytes).collect())
    }

    /// What one second table is about.
    fn span(&mut self, range: Range<u64>, at: u64) -> Result<(), ImageError> {
        let cluster = self.header.cluster();
        let file = self.blocks.size();
        let entries = (range.end - range.start).div_ceil(cluster);
        let mut clusters = Vec::new();
        // Where a run of zeros began.
        let mut hole = None;
        for (number, entry) in (0_u64..).zip(self.table(at, entries)?) {
            let place = range.start + number * cluster;
            match self.header.entry(entry, file)? {
                Cluster::Nowhere => {
                    hole.get_or_insert(place);
                }
                found => {
                    clusters.push((found, place));
                    if let Some(from) = hole.take() {
                        self.zero(from..place)?;
                    }
                }
            }
        }
        if let Some(from) = hole {
            self.zero(from..range.end)?;
        }
        clusters.sort_unstable_by_key(|(found, _)| match found {
            Cluster::Nowhere => 0,
            Cluster::Plain(at) | Cluster::Packed { at, .. } => *at,
        });
        for (found, place) in clusters {
            if self.watch.is_stopped() {
                return Err(ImageError::Stopped);
            }
            if self.shared.has_failed() {
                return Ok(());
            }
            self.add(found, place)?;
        }
        Ok(())
    }

    fn add(&mut self, found: Cluster, place: u64) -> Result<(), ImageError> {
        let cluster = usize::try_from(self.header.cluster()).expect("at most 2 MiB");
        let fits = |batch: &Batch| {
            batch.at + batch.length as u64 == place && batch.length + cluster <= CHUNK
        };
        if !self.batch.as_ref().is_some_and(fits) {
            self.flush();
        }
        let pool = &self.pool;
        let batch =
            self.batch.get_or_insert_with(|| Batch { at: place, bytes: pool.take(), length: 0 });
        let into = &mut batch.bytes[batch.length..batch.length + cluster];
        match found {
            Cluster::Nowhere => into.fill(0),
            Cluster::Plain(at) => self.blocks.read(at, into)?,
            Cluster::Packed { at, length } => {
                self.packed.resize(length, 0);
                self.blocks.read(at, &mut self.packed)?;
                self.unpacker.unpack(&self.packed, into)?;
            }
        }
        batch.length += cluster;
        Ok(())
    }

    /// Gives what came together to the writers.
    fn flush(&mut self) {
        let Some(Batch { at, bytes, length }) = self.batch.take() else { return };
        // The last cluster may reach over the end of the disk.
        let length = (self.header.size - at).min(length as u64);
        let length = usize::try_from(length).expect("at most a buffer");
        let start = usize::try_from(at).unwrap_or(usize::MAX).min(self.first.len());
        let skip = (self.first.len() - start).min(length);
        self.first[start..start + skip].copy_from_slice(&bytes[..skip]);
        if skip < length {
            let job = Job { at: self.target.start + at, bytes, part: skip..length };
            // The writers are there until there are no more jobs.
            let _ = self.jobs.send(job);
        }
    }

    fn zero(&mut self, range: Range<u64>) -> Result<(), ImageError> {
        let mut at = range.start.max(self.first.len() as u64);
        while at < range.end {
            if self.watch.is_stopped() {
                return Err(ImageError::Stopped);
            }
            let end = range.end.min(at + ZEROS);
            self.shared.zero(self.target.start + at..self.target.start + end)?;
            at = end;
        }
        Ok(())
    }
}

enum Unpacker {
    Deflate(Decompress),
    Zstd(Box<Decoder<'static>>),
}

impl Unpacker {
    fn new(packing: Packing) -> Result<Self, ImageError> {
        Ok(match packing {
            Packing::Deflate => Self::Deflate(Decompress::new(false)),
            Packing::Zstd => {
                let mut decoder = Decoder::new().map_err(ImageError::Unpack)?;
                decoder
                    .set_parameter(DParameter::WindowLogMax(WINDOW_LOG))
                    .map_err(ImageError::Unpack)?;
                Self::Zstd(Box::new(decoder))
            }
        })
    }

    /// All of a cluster. What is behind it in its last sector is somebody else's.
    fn unpack(&mut self, packed: &[u8], into: &mut [u8]) -> Result<(), ImageError> {
        let length = match self {
            Self::Deflate(inflate) => {
                inflate.reset(false);
                let outcome = inflate.decompress(packed, into, FlushDecompress::Finish);
                outcome.map_err(|error| ImageError::Unpack(io::Error::other(error)))?;
                usize::try_from(inflate.total_out()).unwrap_or(usize::MAX)
            }
            Self::Zstd(decoder) => {
                decoder.reinit().map_err(ImageError::Unpack)?;
                let mut from = InBuffer::around(packed);
                let mut to = OutBuffer::around(&mut *into);
                while to.pos() < to.capacity() {
                    let before = (from.pos(), to.pos());
                    let hint = decoder.run(&mut from, &mut to).map_err(ImageError::Unpack)?;
                    if hint == 0 || before == (from.pos(), to.pos()) {
                        break;
                    }
                }
                to.pos()
            }
        };
        if length < into.len() {
            return Err(Qcow2Error::Damaged("a packed cluster is too short").into());
        }
        Ok(())
    }
}

impl Shared<'_> {
    /// What was made zero, if nothing went wrong.
    fn end(&self) -> Result<u64, ImageError> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.failure.take().map_or(Ok(state.zeros), Err)
    }

    fn zero(&self, range: Range<u64>) -> Result<(), ImageError> {
        self.io.zero(range.clone())?;
        self.state.lock().unwrap_or_else(PoisonError::into_inner).zeros += range.end - range.start;
        self.meter.add(range.end - range.start);
        Ok(())
    }
}
