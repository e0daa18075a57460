//! The qcow2 format: tables that map each cluster of a disk to its place in the file.
//!
//! Only the file itself is read. Encrypted images and images with external files are refused. File
//! names in an image are never followed.

mod writer;

use super::source::{Fetch, Origin};
use super::{ImageError, SourceError};

pub(super) use writer::{beginning, write};

/// Bytes of the header that are parsed.
const HEADER: usize = 112;

const MAGIC: [u8; 4] = *b"QFI\xfb";

/// Largest L1 table in bytes, which is kept in memory. With the default cluster size it covers 256
/// TiB.
const MAX_L1: u64 = 4 * 1024 * 1024;

/// The limits of QEMU: clusters of 512 bytes to 2 MiB.
const CLUSTER_BITS: std::ops::RangeInclusive<u32> = 9..=21;

/// Bits of an entry that form the offset.
const OFFSET: u64 = 0x00ff_ffff_ffff_fe00;
const PACKED: u64 = 1 << 62;
const COPIED: u64 = 1 << 63;
const ZERO: u64 = 1;

/// The reason why a qcow2 image is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Qcow2Error {
    #[error("the file is not a qcow2 image")]
    Magic,
    #[error("the qcow2 image has version {0}; only 2 and 3 are supported")]
    Version(u32),
    #[error("the qcow2 image has a backing file; merge both with `qemu-img convert`")]
    BackingFile,
    #[error("the qcow2 image is encrypted; decrypt it with `qemu-img convert`")]
    Encrypted,
    #[error("the qcow2 image has an external data file; merge both with `qemu-img convert`")]
    ExternalData,
    #[error("the qcow2 image was not closed properly; repair it with `qemu-img check -r all`")]
    Dirty,
    #[error("the qcow2 image is marked as corrupt; see `qemu-img check`")]
    Corrupt,
    #[error("the qcow2 image has extended L2 entries; convert it without `extended_l2`")]
    ExtendedL2,
    #[error("the qcow2 image has the unsupported incompatible feature {0}")]
    Feature(u32),
    #[error("the qcow2 image uses the unsupported compression method {0}; use zlib or zstd")]
    Packing(u8),
    #[error("the qcow2 image has clusters of 2^{0} bytes; 2^9 to 2^21 are supported")]
    Clusters(u32),
    #[error("the qcow2 image needs an L1 table of more than {MAX_L1} bytes; use larger clusters")]
    Tables,
    #[error("the qcow2 image is damaged: {0}")]
    Damaged(&'static str),
}

impl Qcow2Error {
    /// Whether the image is damaged, in contrast to unsupported.
    pub(super) fn is_damage(&self) -> bool {
        matches!(self, Self::Magic | Self::Dirty | Self::Corrupt | Self::Damaged(_))
    }
}

/// The parsed header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Size of the virtual disk in bytes.
    pub size: u64,
    cluster_bits: u32,
    /// Offset of the L1 table, and the number of its used entries.
    l1_at: u64,
    l1_entries: u64,
    compression: ClusterCompression,
    /// Whether L2 entries can mark a cluster as zero.
    has_zeros: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ClusterCompression {
    Deflate,
    Zstd,
}

/// The location of a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cluster {
    /// All bytes are zero.
    Nowhere,
    Plain(u64),
    Packed {
        at: u64,
        length: usize,
    },
}

impl Header {
    /// Parses the start of an image. Missing bytes count as zero.
    pub fn parse(start: &[u8]) -> Result<Self, Qcow2Error> {
        let mut bytes = [0; HEADER];
        let length = start.len().min(HEADER);
        bytes[..length].copy_from_slice(&start[..length]);
        let u32_at = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().expect("four"));
        let u64_at = |at: usize| u64::from_be_bytes(bytes[at..at + 8].try_into().expect("eight"));
        if bytes[..4] != MAGIC {
            return Err(Qcow2Error::Magic);
        }
        let version = u32_at(4);
        if ![2, 3].contains(&version) {
            return Err(Qcow2Error::Version(version));
        }
        if version == 3 {
            features(u64_at(72))?;
            if u32_at(100) < 104 {
                return Err(Qcow2Error::Damaged("the header is too short"));
            }
        }
        if u64_at(8) != 0 {
            return Err(Qcow2Error::BackingFile);
        }
        if u32_at(32) != 0 {
            return Err(Qcow2Error::Encrypted);
        }
        let compression = match bytes[104] {
            1 if version == 3 && u32_at(100) > 104 => ClusterCompression::Zstd,
            other if version == 3 && u32_at(100) > 104 && other != 0 => {
                return Err(Qcow2Error::Packing(other));
            }
            _ => ClusterCompression::Deflate,
        };
        let cluster_bits = u32_at(20);
        if !CLUSTER_BITS.contains(&cluster_bits) {
            return Err(Qcow2Error::Clusters(cluster_bits));
        }
        let size = u64_at(24);
        let l1_at = u64_at(40);
        let l1_entries = size.div_ceil(1 << (2 * cluster_bits - 3));
        if l1_entries > MAX_L1 / 8 {
            return Err(Qcow2Error::Tables);
        }
        if u64::from(u32_at(36)) < l1_entries {
            return Err(Qcow2Error::Damaged("the L1 table is too short for the size of the disk"));
        }
        if l1_at % (1 << cluster_bits) != 0 {
            return Err(Qcow2Error::Damaged("the L1 table does not start at a cluster"));
        }
        let has_zeros = version == 3;
        Ok(Self { size, cluster_bits, l1_at, l1_entries, compression, has_zeros })
    }

    fn cluster(&self) -> u64 {
        1 << self.cluster_bits
    }

    /// Bytes of the disk that one L1 entry covers.
    fn span(&self) -> u64 {
        1 << (2 * self.cluster_bits - 3)
    }

    /// Offset of the L2 table of an L1 entry, in a file of `file` bytes.
    fn second(&self, entry: u64, file: u64) -> Result<Option<u64>, Qcow2Error> {
        let at = entry & OFFSET;
        if entry & !(OFFSET | COPIED) != 0 || !at.is_multiple_of(self.cluster()) {
            return Err(Qcow2Error::Damaged("an L1 entry is invalid"));
        }
        if at.saturating_add(self.cluster()) > file {
            return Err(Qcow2Error::Damaged("an L2 table is behind the end of the file"));
        }
        Ok((at != 0).then_some(at))
    }

    fn entry(&self, entry: u64, file: u64) -> Result<Cluster, Qcow2Error> {
        let inside = |at: u64| match at {
            at if at < file => Ok(at),
            _ => Err(Qcow2Error::Damaged("a cluster is behind the end of the file")),
        };
        if entry & PACKED != 0 {
            // Larger clusters have more sectors and need more bits for the count of them.
            let bits = 62 - (self.cluster_bits - 8);
            let at = inside(entry & ((1 << bits) - 1))?;
            let sectors = ((entry & (PACKED - 1)) >> bits) + 1;
            let length = usize::try_from(sectors * 512 - at % 512).expect("at most 4 MiB");
            return Ok(Cluster::Packed { at, length });
        }
        let known = OFFSET | COPIED | if self.has_zeros { ZERO } else { 0 };
        let at = entry & OFFSET;
        if entry & !known != 0 || !at.is_multiple_of(self.cluster()) {
            return Err(Qcow2Error::Damaged("an L2 entry is invalid"));
        }
        if at == 0 || entry & ZERO != 0 {
            return Ok(Cluster::Nowhere);
        }
        Ok(Cluster::Plain(inside(at)?))
    }
}

/// Checks the incompatible features. A reader must refuse an image with features that it does not
/// know.
fn features(bits: u64) -> Result<(), Qcow2Error> {
    /// Compression method of the clusters.
    const PACKING: u32 = 3;
    for bit in (0..u64::BITS).filter(|bit| bits & (1 << bit) != 0) {
        match bit {
            0 => return Err(Qcow2Error::Dirty),
            1 => return Err(Qcow2Error::Corrupt),
            2 => return Err(Qcow2Error::ExternalData),
            PACKING => {}
            4 => return Err(Qcow2Error::ExtendedL2),
            other => return Err(Qcow2Error::Feature(other)),
        }
    }
    Ok(())
}

/// The size of the virtual disk. Fetches only the header.
pub fn virtual_size(origin: &Origin) -> Result<u64, ImageError> {
    let mut start = [0; HEADER];
    let mut fetch = Fetch::begin(origin, 0)?;
    match fetch.read_exactly(&mut start) {
        Ok(()) => Ok(Header::parse(&start)?.size),
        Err(SourceError::Short { .. }) => Err(Qcow2Error::Magic.into()),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests;
