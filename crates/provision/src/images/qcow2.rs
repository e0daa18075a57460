//! Images of QEMU: tables that say where each piece of a disk is in the file.
//!
//! Only what is in the file itself is read. An image that would have to be put together from other
//! files, or that is encrypted, is refused: no name in an image is ever followed.

mod unfold;

use super::source::{Fetch, Origin};
use super::{ImageError, SourceError};

pub(super) use unfold::{beginning, write};

/// Bytes of a header that matter.
const HEADER: usize = 112;

const MAGIC: [u8; 4] = *b"QFI\xfb";

/// Of the first table, which is all in memory: with usual clusters it is enough for 256 TiB.
const MAX_L1: u64 = 4 * 1024 * 1024;

/// As QEMU has it: clusters of 512 bytes up to 2 MiB.
const CLUSTER_BITS: std::ops::RangeInclusive<u32> = 9..=21;

/// Bits of an entry that are an offset.
const OFFSET: u64 = 0x00ff_ffff_ffff_fe00;
const PACKED: u64 = 1 << 62;
const COPIED: u64 = 1 << 63;
const ZERO: u64 = 1;

/// Why an image of QEMU is not written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Qcow2Error {
    #[error("this is no qcow2 image")]
    Magic,
    #[error("it is of version {0}, and only 2 and 3 are known")]
    Version(u32),
    #[error("it lies on a backing file; `qemu-img convert` makes one image of both")]
    BackingFile,
    #[error("it is encrypted, and nothing here has its key")]
    Encrypted,
    #[error("its data is in an external data file; `qemu-img convert` makes one image of both")]
    ExternalData,
    #[error("it was not closed when it was last written; see `qemu-img check -r all`")]
    Dirty,
    #[error("it says itself that it is corrupt; see `qemu-img check`")]
    Corrupt,
    #[error("it has extended L2 entries, which are not known; convert it without `extended_l2`")]
    ExtendedL2,
    #[error("it has the incompatible feature {0}, which is not known")]
    Feature(u32),
    #[error("its clusters are packed with method {0}, which is not known; use zlib or zstd")]
    Packing(u8),
    #[error("its clusters are of 2^{0} bytes, and 2^9 to 2^21 are known")]
    Clusters(u32),
    #[error("its tables would need more than {MAX_L1} bytes of memory; make its clusters larger")]
    Tables,
    #[error("it is damaged: {0}")]
    Damaged(&'static str),
}

impl Qcow2Error {
    /// It is an image that could be read, if it were whole.
    pub(super) fn is_damage(&self) -> bool {
        matches!(self, Self::Magic | Self::Dirty | Self::Corrupt | Self::Damaged(_))
    }
}

/// What the header says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Of the disk that it is an image of.
    pub size: u64,
    cluster_bits: u32,
    /// Where the first table is, and how many entries of it matter.
    l1_at: u64,
    l1_entries: u64,
    packing: Packing,
    /// Entries may say that a cluster is zero.
    has_zeros: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Packing {
    Deflate,
    Zstd,
}

/// Where the bytes of a cluster are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cluster {
    /// They are zero.
    Nowhere,
    Plain(u64),
    Packed {
        at: u64,
        length: usize,
    },
}

impl Header {
    /// From what an image begins with; bytes that are missing are zero.
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
                return Err(Qcow2Error::Damaged("its header is too short"));
            }
        }
        if u64_at(8) != 0 {
            return Err(Qcow2Error::BackingFile);
        }
        if u32_at(32) != 0 {
            return Err(Qcow2Error::Encrypted);
        }
        let packing = match bytes[104] {
            1 if version == 3 && u32_at(100) > 104 => Packing::Zstd,
            other if version == 3 && u32_at(100) > 104 && other != 0 => {
                return Err(Qcow2Error::Packing(other));
            }
            _ => Packing::Deflate,
        };
        let cluster_bits = u32_at(20);
        if !CLUSTER_BITS.contains(&cluster_bits) {
            return Err(Qcow2Error::Clusters(cluster_bits));
        }
        let (size, l1_at) = (u64_at(24), u64_at(40));
        let l1_entries = size.div_ceil(1 << (2 * cluster_bits - 3));
        if l1_entries > MAX_L1 / 8 {
            return Err(Qcow2Error::Tables);
        }
        if u64::from(u32_at(36)) < l1_entries {
            return Err(Qcow2Error::Damaged("its first table is too short for its size"));
        }
        if l1_at % (1 << cluster_bits) != 0 {
            return Err(Qcow2Error::Damaged("its first table is not where a cluster begins"));
        }
        let has_zeros = version == 3;
        Ok(Self { size, cluster_bits, l1_at, l1_entries, packing, has_zeros })
    }

    fn cluster(&self) -> u64 {
        1 << self.cluster_bits
    }

    /// Bytes of the disk that one entry of the first table is about.
    fn span(&self) -> u64 {
        1 << (2 * self.cluster_bits - 3)
    }

    /// Where the second table of an entry of the first is, in a file of that many bytes.
    fn second(&self, entry: u64, file: u64) -> Result<Option<u64>, Qcow2Error> {
        let at = entry & OFFSET;
        if entry & !(OFFSET | COPIED) != 0 || !at.is_multiple_of(self.cluster()) {
            return Err(Qcow2Error::Damaged("an entry of its first table is none"));
        }
        if at.saturating_add(self.cluster()) > file {
            return Err(Qcow2Error::Damaged("a table is behind its end"));
        }
        Ok((at != 0).then_some(at))
    }

    fn entry(&self, entry: u64, file: u64) -> Result<Cluster, Qcow2Error> {
        let inside = |at: u64| match at {
            at if at < file => Ok(at),
            _ => Err(Qcow2Error::Damaged("a cluster is behind its end")),
        };
        if entry & PACKED != 0 {
            // The more sectors a cluster has, the more bits say how many of them are taken.
            let bits = 62 - (self.cluster_bits - 8);
            let at = inside(entry & ((1 << bits) - 1))?;
            let sectors = ((entry & (PACKED - 1)) >> bits) + 1;
            let length = usize::try_from(sectors * 512 - at % 512).expect("at most 4 MiB");
            return Ok(Cluster::Packed { at, length });
        }
        let known = OFFSET | COPIED | if self.has_zeros { ZERO } else { 0 };
        let at = entry & OFFSET;
        if entry & !known != 0 || !at.is_multiple_of(self.cluster()) {
            return Err(Qcow2Error::Damaged("an entry of a second table is none"));
        }
        if at == 0 || entry & ZERO != 0 {
            return Ok(Cluster::Nowhere);
        }
        Ok(Cluster::Plain(inside(at)?))
    }
}

/// What an image has that whoever does not know of it must not read.
fn features(bits: u64) -> Result<(), Qcow2Error> {
    /// How clusters are packed.
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

/// How large the disk is that an image is of: only its beginning is fetched.
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
