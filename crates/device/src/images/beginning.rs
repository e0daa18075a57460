//! Reads the first MiB of an image before anything is written. It shows whether an image of a whole
//! disk can boot, and it is written last.

use std::io::{self, BufReader, Read};

use hoist_provision::document::{Compression, ImageFormat};
use hoist_provision::manifest::{ChunkKind, Manifest};

use super::chunked::unpack_one;
use super::decode::{self, Decoder};
use super::source::{Fetch, Origin, SourceError, SourceProbe};
use super::{FIRST, ImageError, qcow2, stream};

/// The size of an uncompressed image, if the server reports one.
pub fn size_if_plain(probe: SourceProbe, compression: Compression) -> Option<u64> {
    probe.total.filter(|_| decode::is_plain(probe.first, compression))
}

/// Whether an uncompressed image could be truncated without notice.
pub fn is_endless(probe: SourceProbe, compression: Compression) -> bool {
    probe.is_endless && decode::is_plain(probe.first, compression)
}

/// The unpacked first MiB, or less for a smaller image. `None` if no source responds; the image is
/// then read when it is needed.
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
