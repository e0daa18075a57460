//! Reads the first MiB of an image before anything is written. It shows whether an image of a whole
//! disk can boot, and it is written last.

use std::io::{self, BufRead, BufReader, Read};

use hoist_provision::document::{Compression, ImageFormat};
use hoist_provision::manifest::{ChunkKind, Manifest};

use super::chunked::unpack_one;
use super::decode::{self, Decoder};
use super::format::{self, SAMPLE};
use super::source::{Fetch, Origin, SourceError};
use super::{FIRST, ImageError, qcow2, stream};

/// The answer of a source, from the first bytes of a stream.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StreamProbe {
    /// The size of an uncompressed image, if the server reports one.
    pub plain_size: Option<u64>,
    /// Whether an uncompressed image could be truncated without notice.
    pub is_endless: bool,
}

/// Fetches the first bytes of a stream and checks that they unpack to the start of a raw image.
pub fn probe_stream(origin: &Origin, compression: Compression) -> Result<StreamProbe, ImageError> {
    let fetch = Fetch::probe(origin)?;
    let total = fetch.total();
    let has_end = fetch.has_end();
    let mut fetched = SourceReader { fetch, failure: None };
    let mut packed = BufReader::new(&mut fetched);
    let start = packed.fill_buf().map(<[u8]>::to_vec);
    let mut first = vec![0; SAMPLE];
    let unpacked = start.is_ok().then(|| {
        let decoder = Decoder::new(packed, compression);
        decoder.and_then(|mut decoder| stream::fill(&mut decoder, &mut first))
    });
    let start = start.unwrap_or_default();
    match (fetched.failure.take(), unpacked) {
        (Some(SourceError::GivenUp { .. }), _) if !start.is_empty() => first.clear(),
        (Some(error), _) => return Err(error.into()),
        (None, None) => first.clear(),
        (None, Some(length)) => first.truncate(length.map_err(decode::failure)?),
    }
    if let Some(format) = format::foreign(&first) {
        return Err(format.into());
    }
    let is_plain = decode::is_plain(&start, compression);
    if let Some(total) = total.filter(|_| is_plain) {
        check_footer(origin, total)?;
    }
    let plain_size = total.filter(|_| is_plain);
    Ok(StreamProbe { plain_size, is_endless: is_plain && !has_end })
}

/// A VHD of fixed size shows its format only at its end. A source that does not return it is no
/// error: the end is checked again when the image is written.
fn check_footer(origin: &Origin, total: u64) -> Result<(), ImageError> {
    let mut last = [0; SAMPLE];
    let Some(at) = total.checked_sub(SAMPLE as u64).filter(|at| *at > 0) else { return Ok(()) };
    let read =
        Fetch::begin(&origin.for_probe(), at).and_then(|mut end| end.read_exactly(&mut last));
    match format::footer(&last).filter(|_| read.is_ok()) {
        Some(format) => Err(format.into()),
        None => Ok(()),
    }
}

/// Checks that a source has the file of all chunks.
pub fn probe_chunks(origin: &Origin, manifest: &Manifest) -> Result<(), ImageError> {
    let fetch = Fetch::probe(origin)?;
    let end = manifest.chunks.iter().rev().find_map(|chunk| match chunk.kind {
        ChunkKind::Data { at, stored, .. } => Some(at + u64::from(stored)),
        ChunkKind::Zero => None,
    });
    match fetch.total().zip(end).filter(|(total, end)| total < end) {
        Some((at, _)) => Err(SourceError::Short { url: fetch.url(), at }.into()),
        None => Ok(()),
    }
}

/// The unpacked first MiB, or less for a smaller image. `None` if no source responds.
pub fn beginning(
    origin: &Origin,
    format: ImageFormat,
    compression: Compression,
    manifest: Option<&Manifest>,
) -> Result<Option<Vec<u8>>, ImageError> {
    let origin = origin.for_probe();
    let read = match (format, manifest) {
        (ImageFormat::Qcow2, _) => qcow2::beginning(&origin),
        (ImageFormat::Raw, Some(manifest)) => of_chunks(&origin, manifest),
        (ImageFormat::Raw, None) => of_stream(&origin, compression),
    };
    match read {
        Err(ImageError::Source(SourceError::GivenUp { .. })) => Ok(None),
        read => read.map(Some),
    }
}

/// A stream from a source that keeps the reason of its failure.
struct SourceReader<'a> {
    fetch: Fetch<'a>,
    failure: Option<SourceError>,
}

impl Read for SourceReader<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.fetch.read(into).map_err(|error| {
            self.failure = Some(error);
            io::Error::other("the image cannot be fetched")
        })
    }
}

fn of_stream(origin: &Origin, compression: Compression) -> Result<Vec<u8>, ImageError> {
    let mut fetched = SourceReader { fetch: Fetch::begin(origin, 0)?, failure: None };
    let mut first = vec![0; FIRST];
    let length = Decoder::new(BufReader::new(&mut fetched), compression)
        .and_then(|mut decoder| stream::fill(&mut decoder, &mut first));
    // A failure of the source takes precedence over the error of the decompressor.
    if let Some(error) = fetched.failure {
        return Err(error.into());
    }
    first.truncate(length.map_err(decode::failure)?);
    Ok(first)
}

fn of_chunks(origin: &Origin, manifest: &Manifest) -> Result<Vec<u8>, ImageError> {
    let Some(chunk) = manifest.chunks.first() else { return Ok(Vec::new()) };
    let mut bytes = vec![0; chunk.length as usize];
    if let ChunkKind::Data { at, stored, .. } = chunk.kind {
        let mut packed = vec![0; stored as usize];
        match Fetch::begin(origin, at)?.read_exactly(&mut packed) {
            // Another source may have all of it.
            Err(SourceError::Short { .. }) => packed.clear(),
            read => read?,
        }
        unpack_one(origin, &packed, chunk, &mut bytes)?;
    }
    bytes.truncate(FIRST);
    Ok(bytes)
}
