//! File systems, and whatever else says what it is at one place.

use std::io;

use super::{Region, Seen, number32, number64, text, uuid};
use crate::facts::SignatureKind as K;

/// Something that is told by some bytes at a place.
struct Magic {
    kind: K,
    at: u64,
    bytes: &'static [u8],
    /// Where the block begins that it is in; all other places are within it.
    block: u64,
    /// Where its name is, and how long at most.
    label: Option<(usize, usize)>,
    id: Id,
    /// Whether it is what it seems to be: some magics are short.
    fits: fn(&[u8]) -> bool,
}

/// How something is told from others of its kind.
#[derive(Clone, Copy)]
enum Id {
    None,
    Uuid(usize),
    /// A number of 32 bits, as FAT has it.
    Short(usize),
    /// A number of 64 bits.
    Long(usize),
    Text(usize, usize),
}

const NOTHING: Magic = Magic {
    kind: K::Hoist,
    at: 0,
    bytes: b"",
    block: 0,
    label: None,
    id: Id::None,
    fits: |_| true,
};

const fn magic(kind: K, at: u64, bytes: &'static [u8]) -> Magic {
    Magic { kind, at, bytes, ..NOTHING }
}

/// With a name and a UUID at places of the block.
const fn named(
    kind: K,
    (block, at): (u64, u64),
    bytes: &'static [u8],
    label: (usize, usize),
    id: usize,
) -> Magic {
    let (label, id) = (Some(label), Id::Uuid(id));
    Magic { block, label, id, ..magic(kind, block + at, bytes) }
}

const fn luks(at: u64, bytes: &'static [u8]) -> Magic {
    Magic { block: at, id: Id::Text(168, 40), ..magic(K::Luks, at, bytes) }
}

const fn ocfs2(at: u64) -> Magic {
    named(K::Ocfs2, (at, 0), b"OCFSV2", (272, 64), 336)
}

/// Of several that tell the same kind, the first one that is there counts.
const MAGICS: [Magic; 28] = [
    Magic { fits: is_ext, ..named(K::Ext, (0x400, 0x38), b"\x53\xef", (0x78, 16), 0x68) },
    named(K::Xfs, (0, 0), b"XFSB", (108, 12), 32),
    named(K::Btrfs, (0x1_0000, 0x40), b"_BHRfS_M", (0x12b, 256), 0x20),
    // A copy of its superblock, if the first one is gone.
    named(K::Btrfs, (64 << 20, 0x40), b"_BHRfS_M", (0x12b, 256), 0x20),
    Magic {
        fits: is_large_fat,
        label: Some((71, 11)),
        id: Id::Short(67),
        ..magic(K::Vfat, 510, b"\x55\xaa")
    },
    Magic {
        fits: is_small_fat,
        label: Some((43, 11)),
        id: Id::Short(39),
        ..magic(K::Vfat, 510, b"\x55\xaa")
    },
    Magic { id: Id::Short(100), ..magic(K::Exfat, 3, b"EXFAT   ") },
    Magic { id: Id::Long(72), ..magic(K::Ntfs, 3, b"NTFS    ") },
    Magic { block: 0x8000, label: Some((40, 32)), ..magic(K::Iso9660, 0x8001, b"CD001") },
    Magic { fits: is_squashfs, ..magic(K::Squashfs, 0, b"hsqs") },
    magic(K::Squashfs, 0, b"sqsh"),
    named(K::Erofs, (0x400, 0), b"\xe2\xe1\xf5\xe0", (64, 16), 48),
    Magic { block: 0x400, id: Id::Uuid(108), ..magic(K::F2fs, 0x400, b"\x10\x20\xf5\xf2") },
    Magic { label: Some((24, 48)), ..luks(0, b"LUKS\xba\xbe\0\x02") },
    luks(0, b"LUKS\xba\xbe"),
    // The second header of LUKS2, if the first one is gone.
    luks(0x4000, b"SKUL\xba\xbe"),
    luks(0x8000, b"SKUL\xba\xbe"),
    luks(0x1_0000, b"SKUL\xba\xbe"),
    luks(0x2_0000, b"SKUL\xba\xbe"),
    // What the cache and all that it is for have in common.
    named(K::Bcache, (0x1000, 24), &BCACHE, (72, 32), 56),
    Magic { id: Id::Text(23, 36), ..magic(K::Ceph, 0, b"bluestore block device\n") },
    magic(K::Vmfs, 1 << 20, b"\x0d\xd0\x01\xc0"),
    magic(K::Vmfs, 2 << 20, b"\x5e\xf1\xab\x2f"),
    named(K::Gfs2, (0x1_0000, 0), b"\x01\x16\x19\x70", (160, 64), 256),
    // At the third block, whose size is not known yet.
    ocfs2(0x400),
    ocfs2(0x800),
    ocfs2(0x1000),
    ocfs2(0x2000),
];

const BCACHE: [u8; 16] = [
    0xc6, 0x85, 0x73, 0xf6, 0x4e, 0x1a, 0x45, 0xca, 0x82, 0x65, 0xf5, 0x7f, 0x48, 0xba, 0x6d, 0x81,
];

/// What is read of a block.
const BLOCK: u64 = 1024;

/// Pages of machines that may have swapped to it.
const PAGES: [u64; 4] = [4096, 8192, 16_384, 65_536];

/// What stands at the end of the first page of swap; the last three are of machines that sleep.
const SWAPS: [&[u8; 10]; 5] =
    [b"SWAPSPACE2", b"SWAP-SPACE", b"S1SUSPEND\0", b"S2SUSPEND\0", b"ULSUSPEND\0"];

pub(super) fn find(region: &Region<'_>) -> io::Result<Vec<Seen>> {
    let mut found: Vec<Seen> = Vec::new();
    for magic in &MAGICS {
        let is_known = found.iter().any(|seen| seen.kind == magic.kind);
        if is_known || region.get(magic.at, magic.bytes.len())?.as_deref() != Some(magic.bytes) {
            continue;
        }
        // At the end of something small there may be less of it.
        let length = region.size().saturating_sub(magic.block).min(BLOCK);
        let block = region.get(magic.block, usize::try_from(length).expect("it is small"))?;
        let block = block.unwrap_or_default();
        if (magic.fits)(&block) {
            let label = magic.label.and_then(|(at, length)| text(part(&block, at, length)));
            // So says FAT.
            let label = label.filter(|label| label != "NO NAME");
            let uuid = magic.id.of(&block);
            found.push(Seen { label, uuid, ..Seen::bare(magic.kind, magic.at) });
        }
    }
    found.extend(swap(region)?);
    Ok(found)
}

fn swap(region: &Region<'_>) -> io::Result<Option<Seen>> {
    for page in PAGES {
        let at = page - 10;
        let Some(magic) = region.get(at, 10)? else { break };
        if SWAPS.iter().any(|swap| magic == **swap) {
            let head = region.get(1024, 44)?.unwrap_or_default();
            let (label, uuid) = (text(part(&head, 28, 16)), uuid(part(&head, 12, 16)));
            return Ok(Some(Seen { label, uuid, ..Seen::bare(K::Swap, at) }));
        }
    }
    Ok(None)
}

impl Id {
    fn of(self, block: &[u8]) -> Option<String> {
        match self {
            Self::None => None,
            Self::Uuid(at) => uuid(part(block, at, 16)),
            Self::Short(at) => Some(number32(block, at))
                .filter(|serial| *serial != 0)
                .map(|serial| format!("{:04X}-{:04X}", serial >> 16, serial & 0xffff)),
            Self::Long(at) => Some(number64(block, at))
                .filter(|serial| *serial != 0)
                .map(|serial| format!("{serial:016X}")),
            Self::Text(at, length) => text(part(block, at, length)),
        }
    }
}

fn part(bytes: &[u8], at: usize, length: usize) -> &[u8] {
    bytes.get(at..at + length).unwrap_or_default()
}

fn is_ext(block: &[u8]) -> bool {
    let (blocks, log_size) = (number32(block, 4), number32(block, 24));
    blocks > 0 && log_size <= 6
}

/// Every boot sector has the magic of FAT.
fn is_fat(block: &[u8]) -> bool {
    let jumps = matches!(block.first(), Some(0xeb | 0xe9));
    let sector = number32(block, 11) & 0xffff;
    jumps && sector.is_power_of_two() && (512..=4096).contains(&sector)
}

fn is_large_fat(block: &[u8]) -> bool {
    is_fat(block) && part(block, 82, 8) == b"FAT32   "
}

fn is_small_fat(block: &[u8]) -> bool {
    is_fat(block) && matches!(part(block, 54, 8), b"FAT12   " | b"FAT16   " | b"FAT     ")
}

fn is_squashfs(block: &[u8]) -> bool {
    part(block, 28, 2) == [4, 0]
}
