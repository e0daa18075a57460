//! The beginning of an image, looked at before anything is written: whether a machine would start what
//! is an image of a whole disk is told by its first MiB, which comes last.

use std::io::{self, BufReader, Read};

use super::chunks::{ChunkKind, Manifest};
use super::decode::{self, Decoder};
use super::source::{Fetch, Looked, Origin, SourceError};
use super::spread::unpack_one;
use super::{FIRST, ImageError, qcow2, stream};
use crate::document::{Compression, ImageFormat};

/// Bytes that an image has, if they come as they are and whoever has it says how many.
pub fn size_if_plain(looked: Looked, compression: Compression) -> Option<u64> {
    looked.total.filter(|_| decode::is_plain(looked.first, compression))
}

/// An image that comes as it is, of which nobody can tell whether all of it came.
pub fn is_endless(looked: Looked, compression: Compression) -> bool {
    looked.is_endless && decode::is_plain(looked.first, compression)
}

/// The first MiB, unpacked, or all if there is less. Nothing, if whoever has it is away: that is asked
/// again when it is needed.
pub fn beginning(
    origin: &Origin,
    format: ImageFormat,
    compression: Compression,
    manifest: Option<&Manifest>,
) -> Result<Option<Vec<u8>>, ImageError> {
    let origin = origin.for_a_look();
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

/// What is fetched, and why it ended.
struct Fetched<'a> {
    fetch: Fetch<'a>,
    failure: Option<SourceError>,
}

impl Read for Fetched<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.fetch.read(into).map_err(|error| {
            self.failure = Some(error);
            io::Error::other("the image cannot be fetched")
        })
    }
}

fn of_stream(origin: &Origin, compression: Compression) -> Result<Vec<u8>, ImageError> {
    let mut fetched = Fetched { fetch: Fetch::begin(origin, 0)?, failure: None };
    let mut first = vec![0; FIRST];
    let length = Decoder::new(BufReader::new(&mut fetched), compression)
        .and_then(|mut decoder| stream::fill(&mut decoder, &mut first));
    // What stopped the stream is the reason, whatever the unpacker makes of it.
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
            // Another place may have more.
            Err(SourceError::Short { .. }) => packed.clear(),
            read => read?,
        }
        unpack_one(origin, &packed, chunk, &mut bytes)?;
    }
    bytes.truncate(FIRST);
    Ok(bytes)
}
