//! Writes a qcow2 image to a disk, table by table. The clusters of a table are read in file order,
//! so that most of the file is fetched as one stream.

use std::io;
use std::ops::Range;
use std::sync::mpsc::{SyncSender, sync_channel};

use flate2::{Decompress, FlushDecompress};
use parking_lot::Mutex;
use zstd::stream::raw::{DParameter, Decoder, InBuffer, Operation, OutBuffer};

use super::{Cluster, ClusterCompression, HEADER, Header, Qcow2Error};
use crate::GuardedIo;
use crate::buffer::{CHUNK, Pool, PooledBuffer};
use crate::images::blocks::Blocks;
use crate::images::decode::WINDOW_LOG;
use crate::images::meter::Meter;
use crate::images::stream::{CHUNKS, Job, WRITERS, WriterContext};
use crate::images::{
    FIRST, ImageError, Origin, Stream, Watch, WriteSummary, close_target, open_target,
};

/// Bytes zeroed between two checks for cancellation.
const ZEROS: u64 = 256 * 1024 * 1024;

pub(in crate::images) fn write(
    image: &Stream<'_>,
    io: &GuardedIo,
    target: &Range<u64>,
    watch: &dyn Watch,
) -> Result<WriteSummary, ImageError> {
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
    let context = WriterContext::new(io, &meter);
    let (jobs, todo) = sync_channel::<Job>(WRITERS);
    let todo = Mutex::new(todo);
    let first = std::thread::scope(|scope| {
        for _ in 0..WRITERS {
            scope.spawn(|| context.write_all(&todo));
        }
        let length = header.size.min(FIRST as u64);
        let mut writer = Qcow2Writer {
            header,
            blocks,
            target,
            jobs,
            context: &context,
            watch,
            first: vec![0; usize::try_from(length).expect("at most a MiB")],
            pool: Pool::new(CHUNKS, CHUNK),
            batch: None,
            packed: Vec::new(),
            unpacker: Unpacker::new(header.compression)?,
        };
        writer.all().map(|()| writer.first)
    });
    let zeros = context.end()?;
    let first = first?;
    close_target(io, target, &first, watch)?;
    meter.add(first.len() as u64);
    Ok(WriteSummary { bytes: meter.end(), zeros })
}

/// The first MiB of the virtual disk.
pub(in crate::images) fn beginning(origin: &Origin) -> Result<Vec<u8>, ImageError> {
    let mut blocks = Blocks::open(origin, None, &())?;
    let mut start = [0; HEADER];
    blocks.read(0, &mut start)?;
    let header = Header::parse(&start)?;
    let file = blocks.size();
    let cluster = usize::try_from(header.cluster()).expect("small");
    let length = usize::try_from(header.size.min(FIRST as u64)).expect("at most a MiB");
    let mut first = vec![0; length.next_multiple_of(cluster)];
    let mut packed = Vec::new();
    let mut unpacker = Unpacker::new(header.compression)?;
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

struct Qcow2Writer<'a> {
    header: Header,
    blocks: Blocks<'a>,
    target: &'a Range<u64>,
    jobs: SyncSender<Job>,
    context: &'a WriterContext<'a>,
    watch: &'a dyn Watch,
    /// The first MiB, which is written last.
    first: Vec<u8>,
    pool: Pool,
    batch: Option<Batch>,
    /// A cluster as stored in the file.
    packed: Vec<u8>,
    unpacker: Unpacker,
}

/// Clusters that are adjacent on the disk.
struct Batch {
    at: u64,
    bytes: PooledBuffer,
    length: usize,
}

impl Qcow2Writer<'_> {
    fn all(&mut self) -> Result<(), ImageError> {
        let Header { size, l1_at, l1_entries, .. } = self.header;
        let span = self.header.span();
        let file = self.blocks.size();
        if l1_at.checked_add(l1_entries * 8).is_none_or(|end| end > file) {
            return Err(Qcow2Error::Damaged("the L1 table is behind the end of the file").into());
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

    /// Writes the range of one L2 table.
    fn span(&mut self, range: Range<u64>, at: u64) -> Result<(), ImageError> {
        let cluster = self.header.cluster();
        let file = self.blocks.size();
        let entries = (range.end - range.start).div_ceil(cluster);
        let mut clusters = Vec::new();
        // Start of the current run of zeros.
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
            if self.context.has_failed() {
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

    /// Gives the collected clusters to the writers.
    fn flush(&mut self) {
        let Some(Batch { at, bytes, length }) = self.batch.take() else { return };
        // The last cluster may extend beyond the end of the disk.
        let length = (self.header.size - at).min(length as u64);
        let length = usize::try_from(length).expect("at most a buffer");
        let start = usize::try_from(at).unwrap_or(usize::MAX).min(self.first.len());
        let skip = (self.first.len() - start).min(length);
        self.first[start..start + skip].copy_from_slice(&bytes[..skip]);
        if skip < length {
            let job = Job { at: self.target.start + at, bytes, part: skip..length };
            // The writers run until the last job.
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
            self.context.zero(self.target.start + at..self.target.start + end)?;
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
    fn new(compression: ClusterCompression) -> Result<Self, ImageError> {
        Ok(match compression {
            ClusterCompression::Deflate => Self::Deflate(Decompress::new(false)),
            ClusterCompression::Zstd => {
                let mut decoder = Decoder::new().map_err(ImageError::Unpack)?;
                decoder
                    .set_parameter(DParameter::WindowLogMax(WINDOW_LOG))
                    .map_err(ImageError::Unpack)?;
                Self::Zstd(Box::new(decoder))
            }
        })
    }

    /// Unpacks a whole cluster. Bytes behind it in its last sector belong to other clusters.
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

impl WriterContext<'_> {
    /// Bytes that were zeroed, or the first failure.
    fn end(&self) -> Result<u64, ImageError> {
        let mut state = self.state.lock();
        state.failure.take().map_or(Ok(state.zeros), Err)
    }

    fn zero(&self, range: Range<u64>) -> Result<(), ImageError> {
        self.io.zero(range.clone())?;
        self.state.lock().zeros += range.end - range.start;
        self.meter.add(range.end - range.start);
        Ok(())
    }
}
