//! Unpacking an image into a file. Runs of zeros become holes of the file.

use std::fs::File;
use std::io::{self, BufReader};
use std::os::unix::fs::FileExt as _;

use hoist_provision::document::Compression;
use hoist_provision::manifest::{ChunkKind, Manifest, is_zero};
use sha2::{Digest as _, Sha256};

use super::decode::{self, Decoder};
use super::stream::fill;
use super::{ImageError, chunked, format};
use crate::buffer::CHUNK;

/// Shorter runs of zeros are written.
const HOLE: usize = 64 * 1024;

/// The content of an unpacked image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnpackedImage {
    pub bytes: u64,
    pub sha256: [u8; 32],
}

/// Unpacks an image into an empty file. With a manifest, every chunk is verified.
pub fn unpack(
    packed: &File,
    manifest: Option<&Manifest>,
    into: &File,
) -> Result<UnpackedImage, ImageError> {
    let mut sink = Sink { file: into, at: 0, hash: Sha256::new() };
    match manifest {
        Some(manifest) => chunks(packed, manifest, &mut sink)?,
        None => stream(packed, &mut sink)?,
    }
    into.set_len(sink.at).and_then(|()| into.sync_all()).map_err(ImageError::File)?;
    Ok(UnpackedImage { bytes: sink.at, sha256: sink.hash.finalize().into() })
}

fn stream(packed: &File, sink: &mut Sink<'_>) -> Result<(), ImageError> {
    let decoder = Decoder::new(BufReader::new(packed), Compression::Detect);
    let mut decoder = decoder.map_err(decode::failure)?;
    let mut buffer = vec![0; CHUNK];
    let mut last = None;
    loop {
        let length = fill(&mut decoder, &mut buffer).map_err(decode::failure)?;
        if sink.at == 0
            && let Some(format) = format::foreign(&buffer[..length])
        {
            return Err(format.into());
        }
        if length > 0 {
            last = format::footer(&buffer[..length]);
        }
        sink.put(&buffer[..length]).map_err(ImageError::File)?;
        if length < CHUNK {
            return last.map_or(Ok(()), |format| Err(format.into()));
        }
    }
}

fn chunks(packed: &File, manifest: &Manifest, sink: &mut Sink<'_>) -> Result<(), ImageError> {
    let mut decompressor = zstd::bulk::Decompressor::new().map_err(ImageError::File)?;
    let mut buffer = vec![0; CHUNK];
    for chunk in &manifest.chunks {
        let bytes = &mut buffer[..chunk.length as usize];
        if let ChunkKind::Data { at, stored, .. } = chunk.kind {
            let mut frame = vec![0; stored as usize];
            let read = packed.read_exact_at(&mut frame, at);
            if read.is_err() || !chunked::unpack(&mut decompressor, &frame, chunk, bytes) {
                let reason = read.err().map_or_else(
                    || "the file has other bytes than the manifest".to_owned(),
                    |error| error.to_string(),
                );
                return Err(ImageError::Chunk { offset: chunk.offset, tried: vec![reason] });
            }
        } else {
            bytes.fill(0);
        }
        sink.put(bytes).map_err(ImageError::File)?;
    }
    Ok(())
}

/// The file, its position, and the digest of everything before it.
struct Sink<'a> {
    file: &'a File,
    at: u64,
    hash: Sha256,
}

impl Sink<'_> {
    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.hash.update(bytes);
        for part in bytes.chunks(HOLE) {
            if !is_zero(part) {
                self.file.write_all_at(part, self.at)?;
            }
            self.at += part.len() as u64;
        }
        Ok(())
    }
}
