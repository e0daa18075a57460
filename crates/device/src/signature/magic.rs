//! File systems and other contents with magic bytes at a fixed position.

use std::io;

use hoist_provision::facts::SignatureKind as K;

use super::{Region, SignatureMatch, number32, number64, text, uuid};

/// A kind of content that is identified by bytes at a position.
struct Magic {
    kind: K,
    at: u64,
    bytes: &'static [u8],
    /// Start of the block that contains the magic bytes. The positions of the other fields are
    /// relative to it.
    block: u64,
    /// Position and maximal length of the label.
    label: Option<(usize, usize)>,
    id: Id,
    /// An additional check, because some magic bytes are short.
    fits: fn(&[u8]) -> bool,
    /// The magic bytes are so short that they also occur in other contents. They count only if
    /// nothing else is found.
    is_weak: bool,
}

/// The identifier of a file system.
#[derive(Clone, Copy)]
enum Id {
    None,
    Uuid(usize),
    /// 32 bits, as in FAT.
    Short(usize),
    /// 64 bits.
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
    is_weak: false,
};

const fn magic(kind: K, at: u64, bytes: &'static [u8]) -> Magic {
    Magic { kind, at, bytes, ..NOTHING }
}

/// With a label and a UUID at these positions of the block.
const fn named(
    kind: K,
    (block, at): (u64, u64),
    bytes: &'static [u8],
    label: (usize, usize),
    id: usize,
) -> Magic {
    let label = Some(label);
    let id = Id::Uuid(id);
    Magic { block, label, id, ..magic(kind, block + at, bytes) }
}

const fn luks(at: u64, bytes: &'static [u8]) -> Magic {
    Magic { block: at, id: Id::Text(168, 40), ..magic(K::Luks, at, bytes) }
}

const fn ocfs2(at: u64) -> Magic {
    named(K::Ocfs2, (at, 0), b"OCFSV2", (272, 64), 336)
}

/// If several entries of the same kind match, the first one counts.
const MAGICS: [Magic; 60] = [
    Magic { fits: is_ext, ..named(K::Ext, (0x400, 0x38), b"\x53\xef", (0x78, 16), 0x68) },
    named(K::Xfs, (0, 0), b"XFSB", (108, 12), 32),
    named(K::Btrfs, (0x1_0000, 0x40), b"_BHRfS_M", (0x12b, 256), 0x20),
    // A copy of the superblock, in case the first one is gone.
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
    // The second header of LUKS2, in case the first one is gone.
    luks(0x4000, b"SKUL\xba\xbe"),
    luks(0x8000, b"SKUL\xba\xbe"),
    luks(0x1_0000, b"SKUL\xba\xbe"),
    luks(0x2_0000, b"SKUL\xba\xbe"),
    // The magic bytes of both cache and backing devices.
    named(K::Bcache, (0x1000, 24), &BCACHE, (72, 32), 56),
    Magic { id: Id::Text(23, 36), ..magic(K::Ceph, 0, b"bluestore block device\n") },
    magic(K::Vmfs, 1 << 20, b"\x0d\xd0\x01\xc0"),
    magic(K::Vmfs, 2 << 20, b"\x5e\xf1\xab\x2f"),
    named(K::Gfs2, (0x1_0000, 0), b"\x01\x16\x19\x70", (160, 64), 256),
    // In the third block. The block size is unknown at this point.
    ocfs2(0x400),
    ocfs2(0x800),
    ocfs2(0x1000),
    ocfs2(0x2000),
    Magic { fits: is_jfs, ..named(K::Jfs, (0x8000, 0), b"JFS1", (152, 16), 136) },
    Magic {
        fits: is_nilfs2,
        is_weak: true,
        ..named(K::Nilfs2, (0x400, 6), b"\x34\x34", (168, 80), 152)
    },
    reiserfs(0x1_0000, b"ReIsErFs"),
    reiserfs(0x1_0000, b"ReIsEr2Fs"),
    reiserfs(0x1_0000, b"ReIsEr3Fs"),
    reiserfs(0x2000, b"ReIsErFs"),
    magic(K::Reiserfs, 0x1_0000, b"ReIsEr4"),
    // The descriptors of UDF follow those of ISO 9660, if there are any.
    magic(K::Udf, 0x8001, b"BEA01"),
    magic(K::Udf, 0x8001, b"NSR02"),
    magic(K::Udf, 0x8001, b"NSR03"),
    magic(K::Udf, 0x8801, b"NSR02"),
    magic(K::Udf, 0x8801, b"NSR03"),
    minix(&[0x7f, 0x13]),
    minix(&[0x8f, 0x13]),
    minix(&[0x68, 0x24]),
    minix(&[0x78, 0x24]),
    Magic { fits: is_minix_3, at: 0x418, ..minix(&[0x5a, 0x4d]) },
    // The superblock of UFS is in one of four places, in the byte order of its machine.
    ufs(0, &UFS_1),
    ufs(0x2000, &UFS_1),
    ufs(0x2000, &UFS_1_BIG),
    ufs(0x2000, &UFS_2),
    ufs(0x1_0000, &UFS_2),
    ufs(0x1_0000, &UFS_2_BIG),
    ufs(0x4_0000, &UFS_2),
    Magic { id: Id::Uuid(72), ..magic(K::Apfs, 32, b"NXSB") },
    named(K::Bcachefs, (0x1000, 24), &BCACHEFS, (72, 32), 56),
    magic(K::Bitlocker, 3, b"-FVE-FS-"),
    Magic { fits: is_lvm_1, is_weak: true, ..magic(K::Lvm1, 0, b"HM") },
    Magic { label: Some((40, 24)), ..magic(K::Oracleasm, 32, b"ORCLDISK") },
    // The second one is a copy. All members of a pool share the first identifier.
    stratis(0x200),
    stratis(0x1200),
    Magic { id: Id::Uuid(40), ..magic(K::Vdo, 0, b"dmvdo001") },
];

const fn reiserfs(block: u64, bytes: &'static [u8]) -> Magic {
    named(K::Reiserfs, (block, 52), bytes, (100, 16), 84)
}

const fn minix(bytes: &'static [u8]) -> Magic {
    Magic { block: 0x400, fits: is_minix, is_weak: true, ..magic(K::Minix, 0x410, bytes) }
}

const fn ufs(block: u64, bytes: &'static [u8]) -> Magic {
    magic(K::Ufs, block + 1372, bytes)
}

const fn stratis(block: u64) -> Magic {
    Magic {
        block,
        id: Id::Text(32, 32),
        ..magic(K::Stratis, block + 4, b"!Stra0tis\x86\xff\x02^Arh")
    }
}

const UFS_1: [u8; 4] = 0x0001_1954_u32.to_le_bytes();
const UFS_1_BIG: [u8; 4] = 0x0001_1954_u32.to_be_bytes();
const UFS_2: [u8; 4] = 0x1954_0119_u32.to_le_bytes();
const UFS_2_BIG: [u8; 4] = 0x1954_0119_u32.to_be_bytes();

const BCACHEFS: [u8; 16] = [
    0xc6, 0x85, 0x73, 0xf6, 0x66, 0xce, 0x90, 0xa9, 0xd9, 0x6a, 0x60, 0xcf, 0x80, 0x3d, 0xf7, 0xef,
];

const BCACHE: [u8; 16] = [
    0xc6, 0x85, 0x73, 0xf6, 0x4e, 0x1a, 0x45, 0xca, 0x82, 0x65, 0xf5, 0x7f, 0x48, 0xba, 0x6d, 0x81,
];

/// Bytes of a block that are read.
const BLOCK: u64 = 1024;

/// Page sizes of machines that may have created the swap.
const PAGES: [u64; 4] = [4096, 8192, 16_384, 65_536];

/// Magic bytes at the end of the first page of swap. The last three belong to suspended machines.
const SWAPS: [&[u8; 10]; 5] =
    [b"SWAPSPACE2", b"SWAP-SPACE", b"S1SUSPEND\0", b"S2SUSPEND\0", b"ULSUSPEND\0"];

pub(super) fn find(region: &Region<'_>) -> io::Result<Vec<SignatureMatch>> {
    let mut found: Vec<SignatureMatch> = Vec::new();
    for magic in MAGICS.iter().filter(|magic| !magic.is_weak) {
        if found.iter().all(|seen| seen.kind != magic.kind) {
            found.extend(matched(region, magic)?);
        }
    }
    found.extend(swap(region)?);
    for magic in MAGICS.iter().filter(|magic| magic.is_weak) {
        if found.is_empty() {
            found.extend(matched(region, magic)?);
        }
    }
    Ok(found)
}

fn matched(region: &Region<'_>, magic: &Magic) -> io::Result<Option<SignatureMatch>> {
    if region.get(magic.at, magic.bytes.len())?.as_deref() != Some(magic.bytes) {
        return Ok(None);
    }
    // The end of a small region may cut the block short.
    let length = region.size().saturating_sub(magic.block).min(BLOCK);
    let block = region.get(magic.block, usize::try_from(length).expect("it is small"))?;
    let block = block.unwrap_or_default();
    let label = magic.label.and_then(|(at, length)| text(part(&block, at, length)));
    // FAT stores this text for an empty label.
    let label = label.filter(|label| label != "NO NAME");
    let uuid = magic.id.of(&block);
    let matched = SignatureMatch { label, uuid, ..SignatureMatch::bare(magic.kind, magic.at) };
    Ok((magic.fits)(&block).then_some(matched))
}

fn swap(region: &Region<'_>) -> io::Result<Option<SignatureMatch>> {
    for page in PAGES {
        let at = page - 10;
        let Some(magic) = region.get(at, 10)? else { break };
        if SWAPS.iter().any(|swap| magic == **swap) {
            let head = region.get(1024, 44)?.unwrap_or_default();
            let label = text(part(&head, 28, 16));
            let uuid = uuid(part(&head, 12, 16));
            return Ok(Some(SignatureMatch { label, uuid, ..SignatureMatch::bare(K::Swap, at) }));
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
    let blocks = number32(block, 4);
    let log_size = number32(block, 24);
    blocks > 0 && log_size <= 6
}

/// The magic bytes of FAT are in every boot sector, so more fields are checked.
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

fn is_jfs(block: &[u8]) -> bool {
    let size = number32(block, 16);
    size.is_power_of_two() && (512..=4096).contains(&size)
}

/// The magic bytes have the revision before and the length of the superblock behind them.
fn is_nilfs2(block: &[u8]) -> bool {
    let length = number32(block, 8) & 0xffff;
    number32(block, 0) == 2 && (120..=1024).contains(&length)
}

/// The superblock has inodes, and its bitmaps at least one block each.
fn is_minix(block: &[u8]) -> bool {
    let has = |at: usize| part(block, at, 2).iter().any(|byte| *byte != 0);
    has(0) && has(4) && has(6)
}

fn is_minix_3(block: &[u8]) -> bool {
    let has = |at: usize| part(block, at, 2).iter().any(|byte| *byte != 0);
    number32(block, 0) != 0 && has(6) && has(8)
}

fn is_lvm_1(block: &[u8]) -> bool {
    matches!(number32(block, 2) & 0xffff, 1 | 2)
}
