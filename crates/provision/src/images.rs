//! Writing an image: from where it is, unpacked, checked and without holes, to a range of a disk.
//!
//! Nothing is kept in between but a bounded number of buffers. The first MiB goes last, when all the
//! rest is durable and the digest is the right one: what was cut off, forged or damaged on the way
//! never looks like a system. Runs of zeros are made zero, never skipped, because an old disk is full
//! of old things.

mod beginning;
mod blocks;
pub mod chunks;
mod decode;
mod digest;
mod meter;
mod pack;
mod qcow2;
pub mod source;
mod spread;
mod stream;
mod whole;

use std::io;
use std::ops::Range;

use crate::device::guard::WriteError;
use crate::device::{GuardedIo, ReadAt};
use crate::diagnostic::Code;
use crate::document::Compression;

pub use beginning::{beginning, is_endless, size_if_plain};
pub use chunks::{Chunk, ChunkKind, Manifest, ManifestError};
pub use digest::Digest;
pub use meter::Progress;
pub use pack::pack;
pub use qcow2::{Header as Qcow2Header, Qcow2Error, virtual_size};
pub use source::{Origin, Patience, SourceError, Trust};
pub use whole::{Masked, Place, judge, table_of};

/// What goes last.
const FIRST: usize = 1024 * 1024;

/// What a disk or a file system is recognised by is not behind this.
const HEAD: usize = 32 * 1024;
const _: () = assert!(HEAD as u64 == crate::device::gap::START);

/// An image that is one stream.
#[derive(Debug, Clone)]
pub struct Stream<'a> {
    pub origin: &'a Origin,
    pub compression: Compression,
    /// Bytes when it is unpacked, if that is known.
    pub size: Option<u64>,
    /// Of what comes.
    pub digest: Option<Digest>,
}

/// An image of which every chunk is packed by itself.
#[derive(Debug, Clone)]
pub struct Chunked<'a> {
    pub origin: &'a Origin,
    pub manifest: &'a Manifest,
    /// Bytes of it that an earlier attempt has made durable.
    pub reached: u64,
    /// Bytes between two words about what is durable; each costs a flush of the disk.
    pub keep_every: u64,
}

/// What is soon written again.
pub const KEEP_EVERY: u64 = 256 * 1024 * 1024;

/// Somebody who wants to know how it goes.
pub trait Watch: Sync {
    /// About twice a second, and at the end.
    fn progress(&self, _progress: Progress) {}

    /// All bytes of the image before this one are durable, but for its first MiB. What is said here
    /// comes back as `reached`. An error ends the writing.
    fn durable(&self, _reached: u64) -> Result<(), String> {
        Ok(())
    }

    /// What comes last of an image, before it is written: how many bytes of it shall be. Those behind
    /// are somebody else's. An error leaves the target unrecognisable.
    fn last(&self, first: &[u8]) -> Result<usize, String> {
        Ok(first.len())
    }

    /// The target says by something else, its table, that it is being worked on.
    fn is_marked(&self) -> bool {
        false
    }

    /// Asked often: nothing more shall be written.
    fn is_stopped(&self) -> bool {
        false
    }
}

impl Watch for () {}

/// What was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Written {
    /// Of the image, unpacked.
    pub bytes: u64,
    /// Of those, made zero without writing them as data.
    pub zeros: u64,
}

/// Why an image is not on its target. The target then holds nothing that looks whole.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImageError {
    #[error("the image has {size} bytes, and its target only {room}; nothing was written")]
    TooLarge { size: u64, room: u64 },
    #[error("the image is larger than its target of {room} bytes; nothing behind it was written")]
    Overflow { room: u64 },
    #[error("the image has {is} bytes when it is unpacked, not {wanted}")]
    Size { wanted: u64, is: u64 },
    #[error("the image has the digest {is}, not {wanted}; ask who made it")]
    Digest { wanted: Digest, is: Digest },
    #[error(
        "the chunk at byte {offset} of the image is damaged: {}; ask who made it", tried.join(", ")
    )]
    Chunk {
        offset: u64,
        /// What each place had in its stead.
        tried: Vec<String>,
    },
    #[error(
        "nobody says how long the image is, so that it may be cut off; give its `size` or `digest`"
    )]
    Endless,
    #[error("the image cannot be unpacked; it is damaged, or cut off")]
    Unpack(#[source] io::Error),
    #[error(
        "the image wants {most} bytes of memory or more to be unpacked; \
         pack it without `--ultra` and `--long`", most = decode::WINDOW
    )]
    Window,
    #[error("the image is in a file of {size} bytes; of this format at most {most} are read", most = blocks::MAX_FILE)]
    TooLong { size: u64 },
    #[error(transparent)]
    Qcow2(#[from] Qcow2Error),
    #[error(transparent)]
    Source(SourceError),
    #[error(transparent)]
    Write(#[from] WriteError),
    #[error("how far it came cannot be kept: {0}")]
    Keep(String),
    #[error("it cannot be started from this disk: {0}")]
    Last(String),
    #[error("it was stopped")]
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
    /// What it is, as findings have it; nothing, if the disk is to blame.
    pub fn code(&self) -> Option<Code> {
        match self {
            Self::TooLarge { .. } | Self::Overflow { .. } => Some(Code::ImageTooLarge),
            Self::Size { .. } | Self::Digest { .. } => Some(Code::WrongContent),
            Self::Chunk { .. } | Self::Unpack(_) => Some(Code::Damaged),
            Self::Endless => Some(Code::Missing),
            Self::Qcow2(error) if error.is_damage() => Some(Code::Damaged),
            Self::Window | Self::TooLong { .. } | Self::Qcow2(_) => Some(Code::Unsupported),
            Self::Source(_) => Some(Code::Unreachable),
            Self::Last(_) => Some(Code::Firmware),
            Self::Write(_) | Self::Keep(_) | Self::Stopped => None,
        }
    }
}

/// Writes an image that is one stream. It starts at its beginning every time.
pub fn write(
    image: &Stream<'_>,
    io: &GuardedIo,
    target: Range<u64>,
    watch: &dyn Watch,
) -> Result<Written, ImageError> {
    check_room(image.size, io, &target)?;
    stream::write(image, io, &target, watch)
}

/// Writes an image of QEMU. Its digest is that of the file, which is then read twice: nothing is
/// written before all of it was looked at.
pub fn write_qcow2(
    image: &Stream<'_>,
    io: &GuardedIo,
    target: Range<u64>,
    watch: &dyn Watch,
) -> Result<Written, ImageError> {
    check_room(image.size, io, &target)?;
    qcow2::write(image, io, &target, watch)
}

/// Writes an image in chunks, several of them at a time, from where an earlier attempt was.
pub fn write_chunks(
    image: &Chunked<'_>,
    io: &GuardedIo,
    target: Range<u64>,
    watch: &dyn Watch,
) -> Result<Written, ImageError> {
    check_room(Some(image.manifest.size), io, &target)?;
    spread::write(image, io, &target, watch)
}

/// Where the first chunk is that a disk does not hold as the image has it.
pub fn first_difference(
    disk: &impl ReadAt,
    start: u64,
    chunks: &[Chunk],
) -> io::Result<Option<u64>> {
    let mut buffer = crate::device::buffer::Buffer::new(crate::device::buffer::CHUNK);
    for chunk in chunks {
        let bytes = &mut buffer[..chunk.length as usize];
        disk.read_at(start + chunk.offset, bytes)?;
        if !chunk.is(bytes) {
            return Ok(Some(chunk.offset));
        }
    }
    Ok(None)
}

/// All of the target must be allowed, and what is known to be too large is not begun.
fn check_room(size: Option<u64>, io: &GuardedIo, target: &Range<u64>) -> Result<(), ImageError> {
    let room = target.end.saturating_sub(target.start);
    if let Some(size) = size.filter(|size| *size > room) {
        return Err(ImageError::TooLarge { size, room });
    }
    Ok(io.check(target.clone())?)
}

/// Makes the target unrecognisable before it is half of something, unless it says itself that it is
/// being worked on.
fn open_target(io: &GuardedIo, target: &Range<u64>, watch: &dyn Watch) -> Result<(), WriteError> {
    if !watch.is_marked() {
        io.zero(target.start..target.end.min(target.start + FIRST as u64))?;
        io.sync()?;
    }
    Ok(())
}

/// The last thing that is written, and of that the very last what it is recognised by.
fn close_target(
    io: &GuardedIo,
    target: &Range<u64>,
    first: &[u8],
    watch: &dyn Watch,
) -> Result<(), ImageError> {
    io.sync()?;
    let last = first.get(..watch.last(first).map_err(ImageError::Last)?).unwrap_or(first);
    let (head, rest) = last.split_at(last.len().min(HEAD));
    io.write_at(target.start + head.len() as u64, rest)?;
    io.sync()?;
    io.write_at(target.start, head)?;
    Ok(io.sync()?)
}
