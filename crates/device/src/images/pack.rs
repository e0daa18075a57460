//! Packing an image in chunks, for image builders.

use std::io::{self, Read, Write};

use hoist_provision::digest::Digest;
use hoist_provision::manifest::{Chunk, ChunkKind, Manifest, is_zero};

use super::stream;
use crate::buffer::CHUNK;

/// Packs `image` in chunks and returns their manifest. Output is deterministic. The frames of all
/// chunks form one zstd stream with every byte of the image. Readers of the manifest skip the frames
/// of zeros, which have about 150 bytes.
pub fn pack(mut image: impl Read, mut packed: impl Write, level: i32) -> io::Result<Manifest> {
    let mut compressor = zstd::bulk::Compressor::new(level)?;
    let mut buffer = vec![0; CHUNK];
    let mut chunks = Vec::new();
    let mut offset = 0;
    let mut at = 0;
    let mut zeros: Option<(usize, Vec<u8>)> = None;
    loop {
        let length = stream::fill(&mut image, &mut buffer)?;
        if length == 0 {
            return Ok(Manifest::new(offset, chunks));
        }
        let bytes = &buffer[..length];
        let kind = if is_zero(bytes) {
            let frame = match zeros.take() {
                Some((packed, frame)) if packed == length => frame,
                _ => compressor.compress(bytes)?,
            };
            packed.write_all(&frame)?;
            at += frame.len() as u64;
            zeros = Some((length, frame));
            ChunkKind::Zero
        } else {
            let frame = compressor.compress(bytes)?;
            packed.write_all(&frame)?;
            let stored = u32::try_from(frame.len()).expect("a frame is little larger than a chunk");
            let sha256 = Digest::of(bytes);
            let packed = Some(Digest::of(&frame));
            let kind = ChunkKind::Data { sha256, at, stored, packed };
            at += u64::from(stored);
            kind
        };
        let length = u32::try_from(length).expect("a chunk is small");
        chunks.push(Chunk { offset, length, kind });
        offset += u64::from(length);
    }
}
