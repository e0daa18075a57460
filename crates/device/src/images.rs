//! Writing an image to a range of a disk: fetched, unpacked, verified, and without skipping holes.
//!
//! Memory use is bounded by the number of buffers. The first MiB is written last, after everything
//! else is durable and the digest matches, so that a truncated, forged or damaged image never looks
//! like a valid system. Runs of zeros are zeroed and never skipped, because the disk may hold old
//! data.

mod beginning;
mod blocks;
mod chunked;
mod decode;
mod format;
mod masked_disk;
mod meter;
mod pack;
mod qcow2;
pub mod source;
mod stream;
mod unpack;
mod wait;

use std::io;
use std::ops::Range;

use hoist_engine::journal::JournalError;
use hoist_provision::diagnostic::Code;
use hoist_provision::digest::Digest;
use hoist_provision::document::Compression;
use hoist_provision::image_table::ImageTableError;
use hoist_provision::manifest::{Chunk, Manifest};
use hoist_provision::read_at::ReadAt;

use crate::GuardedIo;
use crate::guard::WriteError;

pub use beginning::{StreamProbe, beginning, probe_chunks, probe_stream};
pub use format::ForeignFormat;
pub use masked_disk::MaskedDisk;
pub use meter::Progress;
pub use pack::pack;
pub use qcow2::{Header as Qcow2Header, Qcow2Error, virtual_size};
pub use source::{FetchLimits, Origin, SourceError, Trust};
pub use unpack::{UnpackedImage, unpack};
pub use wait::{Notices, WaitNotice};

/// Bytes at the start of an image that are written last.
const FIRST: usize = 1024 * 1024;

/// Everything that identifies a disk or file system lies within these first bytes.
const HEAD: usize = 32 * 1024;
const _: () = assert!(HEAD as u64 == hoist_provision::metadata_area::START);

/// An image that is a single stream.
#[derive(Debug, Clone)]
pub struct Stream<'a> {
    pub origin: &'a Origin,
    pub compression: Compression,
    /// Unpacked size in bytes, if known.
    pub size: Option<u64>,
    /// The digest of the file as served.
    pub digest: Option<Digest>,
    /// The digest of the unpacked bytes.
    pub unpacked_digest: Option<Digest>,
}

/// An image whose chunks are packed separately.
#[derive(Debug, Clone)]
pub struct ChunkedImage<'a> {
    pub origin: &'a Origin,
    pub manifest: &'a Manifest,
    /// Bytes of the image that an earlier attempt made durable.
    pub reached: u64,
    /// Bytes between two progress records. Each record costs a flush of the disk.
    pub keep_every: u64,
}

/// A loss of this many bytes is quickly written again.
pub const KEEP_EVERY: u64 = 256 * 1024 * 1024;

/// Why the progress of an attempt is not saved.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProgressError {
    #[error("`{0}` is not the name of an attempt")]
    BadAttempt(String),
    #[error(transparent)]
    Journal(#[from] JournalError),
}

/// Observes the writing of an image.
pub trait Watch: Sync {
    /// Called about twice a second, and at the end.
    fn progress(&self, _progress: Progress) {}

    /// Called when all bytes before `reached` are durable, except the first MiB. The next attempt
    /// passes the value in `reached`. An error stops the writing.
    fn durable(&self, _reached: u64) -> Result<(), ProgressError> {
        Ok(())
    }

    /// Called before the first MiB is written. Returns how many of its bytes to write; the bytes
    /// behind belong to hoist. An error leaves the target unrecognisable.
    fn last(&self, first: &[u8]) -> Result<usize, ImageTableError> {
        Ok(first.len())
    }

    /// Whether the partition table already marks the target as in progress.
    fn is_marked(&self) -> bool {
        false
    }

    /// Called often. `true` stops the writing.
    fn is_stopped(&self) -> bool {
        false
    }
}

impl Watch for () {}

/// The result of writing an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WriteSummary {
    /// Bytes of the unpacked image.
    pub bytes: u64,
    /// Bytes of it that the device zeroed without a write of data.
    pub zeros: u64,
}

/// The reason why an image was not written. The target then holds nothing that looks complete.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImageError {
    #[error("the image has {size} bytes, but its target only {room}; nothing was written")]
    TooLarge { size: u64, room: u64 },
    #[error("the image is larger than its target of {room} bytes; nothing behind it was written")]
    Overflow { room: u64 },
    #[error("the unpacked image has {is} bytes instead of {wanted}")]
    Size { wanted: u64, is: u64 },
    #[error(
        "the unpacked image has {is} bytes, but its ext file system {wanted}: the image is truncated; \
         build or copy it again"
    )]
    Truncated { wanted: u64, is: u64 },
    #[error("the image has the digest {is} instead of {wanted}; check the image and the document")]
    Digest { wanted: Digest, is: Digest },
    #[error(
        "the unpacked image has the digest {is} instead of {wanted}; check the image and the document"
    )]
    UnpackedDigest { wanted: Digest, is: Digest },
    #[error(
        "the chunk at byte {offset} of the image is damaged: {}; build it again", tried.join(", ")
    )]
    Chunk {
        offset: u64,
        /// The answer of each source.
        tried: Vec<String>,
    },
    #[error(
        "the server reports no size of the image, so a truncated download would go unnoticed; \
         set `size` or `digest`"
    )]
    Endless,
    #[error("the image cannot be unpacked: it is damaged or truncated")]
    Unpack(#[source] io::Error),
    #[error("unpacking the image needs more than {most} bytes of memory; {remedy}")]
    Window { most: u64, remedy: &'static str },
    #[error(transparent)]
    Format(#[from] ForeignFormat),
    #[error("the file of the image has {size} bytes; at most {most} are supported in this format", most = blocks::MAX_FILE)]
    TooLong { size: u64 },
    #[error(transparent)]
    Qcow2(#[from] Qcow2Error),
    #[error(transparent)]
    Source(SourceError),
    #[error("cannot write the unpacked image")]
    File(#[source] io::Error),
    #[error(transparent)]
    Write(#[from] WriteError),
    #[error("cannot save progress")]
    Keep(#[from] ProgressError),
    #[error("the image cannot boot from this disk")]
    Last(#[from] ImageTableError),
    #[error("writing the image was cancelled")]
    Stopped,
}

impl From<SourceError> for ImageError {
    fn from(error: SourceError) -> Self {
        match error {
            SourceError::Stopped => Self::Stopped,
            error => Self::Source(error),
        }
    }
}

impl ImageError {
    /// The diagnostic code of the failure. `None` means that the disk failed.
    pub fn code(&self) -> Option<Code> {
        match self {
            Self::TooLarge { .. } | Self::Overflow { .. } => Some(Code::ImageTooLarge),
            Self::Size { .. } | Self::Digest { .. } | Self::UnpackedDigest { .. } => {
                Some(Code::WrongContent)
            }
            Self::Chunk { .. } | Self::Truncated { .. } | Self::Unpack(_) => Some(Code::Damaged),
            Self::Endless => Some(Code::Missing),
            Self::Qcow2(error) if error.is_damage() => Some(Code::Damaged),
            Self::Format(_) | Self::Window { .. } | Self::TooLong { .. } | Self::Qcow2(_) => {
                Some(Code::Unsupported)
            }
            Self::Source(_) => Some(Code::Unreachable),
            Self::Last(_) => Some(Code::Firmware),
            Self::File(_) | Self::Write(_) | Self::Keep(_) | Self::Stopped => None,
        }
    }
}

/// Writes an image that is a single stream. A new attempt starts from the beginning.
pub fn write(
    image: &Stream<'_>,
    io: &GuardedIo,
    target: Range<u64>,
    watch: &dyn Watch,
) -> Result<WriteSummary, ImageError> {
    check_room(image.size, io, &target)?;
    stream::write(image, io, &target, watch)
}

/// Writes a qcow2 image. A digest covers the file, so the file is read twice: once to verify it,
/// and then to write it.
pub fn write_qcow2(
    image: &Stream<'_>,
    io: &GuardedIo,
    target: Range<u64>,
    watch: &dyn Watch,
) -> Result<WriteSummary, ImageError> {
    check_room(image.size, io, &target)?;
    qcow2::write(image, io, &target, watch)
}

/// Writes an image in chunks, several at a time, resuming after the chunks of an earlier attempt.
pub fn write_chunks(
    image: &ChunkedImage<'_>,
    io: &GuardedIo,
    target: Range<u64>,
    watch: &dyn Watch,
) -> Result<WriteSummary, ImageError> {
    check_room(Some(image.manifest.size), io, &target)?;
    chunked::write(image, io, &target, watch)
}

/// Offset of the first chunk that differs between disk and image.
pub fn first_difference(
    disk: &impl ReadAt,
    start: u64,
    chunks: &[Chunk],
) -> io::Result<Option<u64>> {
    let mut buffer = crate::buffer::Buffer::new(crate::buffer::CHUNK);
    for chunk in chunks {
        let bytes = &mut buffer[..chunk.length as usize];
        disk.read_at(start + chunk.offset, bytes)?;
        if !chunk.is(bytes) {
            return Ok(Some(chunk.offset));
        }
    }
    Ok(None)
}

/// Checks that the whole target may be written and that the image fits, as far as its size is
/// known.
fn check_room(size: Option<u64>, io: &GuardedIo, target: &Range<u64>) -> Result<(), ImageError> {
    let room = target.end.saturating_sub(target.start);
    if let Some(size) = size.filter(|size| *size > room) {
        return Err(ImageError::TooLarge { size, room });
    }
    Ok(io.check(target.clone())?)
}

/// Makes the target unrecognisable before the first write, unless its table marks it as in
/// progress.
fn open_target(io: &GuardedIo, target: &Range<u64>, watch: &dyn Watch) -> Result<(), WriteError> {
    if !watch.is_marked() {
        io.zero(target.start..target.end.min(target.start + FIRST as u64))?;
        io.sync()?;
    }
    Ok(())
}

/// Writes the first MiB, and its identifying bytes last of all.
fn close_target(
    io: &GuardedIo,
    target: &Range<u64>,
    first: &[u8],
    watch: &dyn Watch,
) -> Result<(), ImageError> {
    if let Some(format) = format::foreign(first) {
        return Err(format.into());
    }
    io.sync()?;
    let last = first.get(..watch.last(first)?).unwrap_or(first);
    let (head, rest) = last.split_at(last.len().min(HEAD));
    io.write_at(target.start + head.len() as u64, rest)?;
    io.sync()?;
    io.write_at(target.start, head)?;
    Ok(io.sync()?)
}
