//! Recognises formats by their magic bytes. An image in one of these formats must never be written
//! to a disk as it is: the result would have the right digest and no file system.

use hoist_provision::document::Compression;

/// Bytes from the start of an image that show its format.
pub(super) const SAMPLE: usize = 512;

/// Bytes of the footer of a VHD of fixed size, which follows a raw image.
const FOOTER: usize = 512;

const VHD: &[u8] = b"conectix";

const CONVERT: &str = "convert it with `qemu-img convert -O raw`, or to qcow2";
const REPACK: &str = "pack the raw image with gzip, xz or zstd instead";
const EXTRACT: &str = "extract the disk image from it";
const TWICE: &str = "pack it once only, and leave out `compression`";

/// A format that is no raw image, with its remedy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the content is {name} and not a raw image; {remedy}")]
pub struct ForeignFormat {
    name: &'static str,
    remedy: &'static str,
}

/// Offset, magic bytes, name and remedy.
const FORMATS: &[(usize, &[u8], &str, &str)] = &[
    (0, b"QFI\xfb", "qcow2", "set `format: qcow2`"),
    (0, b"QED\0", "QED", CONVERT),
    (0, b"KDMV", "VMDK", CONVERT),
    (0, b"COWD", "VMDK", CONVERT),
    (0, b"# Disk DescriptorFile", "VMDK", CONVERT),
    (64, b"\x7f\x10\xda\xbe", "VDI", CONVERT),
    (0, VHD, "VHD", CONVERT),
    (0, b"vhdxfile", "VHDX", CONVERT),
    (0, b"WithoutFreeSpace", "a Parallels image", CONVERT),
    (0, b"WithouFreSpacExt", "a Parallels image", CONVERT),
    (0, b"\x3a\xff\x26\xed", "an Android sparse image", "convert it with `simg2img`"),
    (0, b"BZh", "packed with bzip2", REPACK),
    (0, b"\x04\x22\x4d\x18", "packed with lz4", REPACK),
    (0, b"\x02\x21\x4c\x18", "packed with lz4", REPACK),
    (0, b"LZIP", "packed with lzip", REPACK),
    (0, b"\x89LZO", "packed with lzop", REPACK),
    (0, b"\x5d\0\0", "packed with lzma", REPACK),
    (0, b"\x1f\x9d", "packed with compress", REPACK),
    (0, b"PK\x03\x04", "a zip archive", EXTRACT),
    (0, b"7z\xbc\xaf\x27\x1c", "a 7z archive", EXTRACT),
    (0, b"Rar!\x1a\x07", "a rar archive", EXTRACT),
    (0, b"MSWIM\0\0\0", "a WIM archive", EXTRACT),
    (0, b"070701", "a cpio archive", EXTRACT),
    (0, b"070702", "a cpio archive", EXTRACT),
    (257, b"ustar", "a tar archive", EXTRACT),
];

/// The format of these first bytes of an unpacked image, if it is none that disks hold.
pub(super) fn foreign(first: &[u8]) -> Option<ForeignFormat> {
    let has = |at: usize, magic: &[u8]| first.get(at..).is_some_and(|rest| rest.starts_with(magic));
    let known = FORMATS.iter().find(|(at, magic, ..)| has(*at, magic));
    if let Some((_, _, name, remedy)) = known {
        return Some(ForeignFormat { name, remedy });
    }
    if is_old_tar(first) {
        return Some(ForeignFormat { name: "a tar archive", remedy: EXTRACT });
    }
    let name = match compression(first) {
        Compression::Gzip => "packed with gzip",
        Compression::Xz => "packed with xz",
        // A skippable frame without a packed one is no evidence.
        Compression::Zstd if first.starts_with(&ZSTD) => "packed with zstd",
        _ if is_markup(first) => {
            let remedy = "check the URL: the server returned a page";
            return Some(ForeignFormat { name: "a web page", remedy });
        }
        _ => return None,
    };
    Some(ForeignFormat { name, remedy: TWICE })
}

/// Whether these last bytes of an image are the footer of a VHD of fixed size.
pub(super) fn footer(last: &[u8]) -> Option<ForeignFormat> {
    let footer = last.len().checked_sub(FOOTER).map(|at| &last[at..])?;
    footer.starts_with(VHD).then_some(ForeignFormat { name: "VHD", remedy: CONVERT })
}

/// The size that the ext file system in these first bytes of an image has. A packed image that is cut
/// between two frames or members is a complete stream, and only this shows that it is truncated.
pub(super) fn ext_size(first: &[u8]) -> Option<u64> {
    const SUPERBLOCK: std::ops::Range<usize> = 1024..2048;
    const HAS_64_BITS: u32 = 0x80;
    let block = first.get(SUPERBLOCK)?;
    let word = |at: usize| u32::from_le_bytes(block[at..at + 4].try_into().expect("4 bytes"));
    if block[56..58] != [0x53, 0xef] {
        return None;
    }
    let high = if word(96) & HAS_64_BITS == 0 { 0 } else { u64::from(word(336)) };
    let block_size = 1024_u64.checked_shl(word(24)).filter(|_| word(24) <= 6)?;
    (high << 32 | u64::from(word(4))).checked_mul(block_size)
}

/// Whether these bytes are the header of a tar archive from before the magic bytes: its checksum
/// counts the own field as blanks.
fn is_old_tar(first: &[u8]) -> bool {
    const CHECKSUM: std::ops::Range<usize> = 148..156;
    let Some(header) = first.get(..512) else { return false };
    let text = std::str::from_utf8(&header[CHECKSUM]).unwrap_or_default();
    let digits = text.trim_matches([' ', '\0']);
    let sum = header.iter().enumerate().map(|(at, byte)| {
        let byte = if CHECKSUM.contains(&at) { b' ' } else { *byte };
        u32::from(byte)
    });
    u32::from_str_radix(digits, 8).is_ok_and(|wanted| wanted == sum.sum::<u32>())
}

fn is_markup(first: &[u8]) -> bool {
    let text = first.trim_ascii_start();
    ["<!doctype", "<html", "<?xml"].iter().any(|word| {
        let start = text.get(..word.len());
        start.is_some_and(|start| start.eq_ignore_ascii_case(word.as_bytes()))
    })
}

/// Magic bytes of the supported compression formats.
const GZIP: [u8; 2] = [0x1f, 0x8b];
const ZSTD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
const XZ: [u8; 6] = [0xfd, b'7', b'z', b'X', b'Z', 0];

/// The compression of a stream that starts with these bytes.
pub(super) fn compression(start: &[u8]) -> Compression {
    let skippable = start.get(1..4) == Some(&[0x2a, 0x4d, 0x18]) && start[0] & 0xf0 == 0x50;
    if start.starts_with(&GZIP) {
        Compression::Gzip
    } else if start.starts_with(&ZSTD) || skippable {
        Compression::Zstd
    } else if start.starts_with(&XZ) {
        Compression::Xz
    } else {
        Compression::None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_are_recognised_by_their_magic_bytes() {
        for (at, magic, name, _) in FORMATS {
            let mut bytes = vec![0; SAMPLE];
            bytes[*at..at + magic.len()].copy_from_slice(magic);
            assert_eq!(foreign(&bytes).map(|found| found.name), Some(*name));
            assert_eq!(foreign(&bytes[..at + magic.len()]).map(|found| found.name), Some(*name));
            assert_eq!(foreign(&bytes[..at + magic.len() - 1]), None, "{name}");
        }
        for (bytes, name) in [
            (&GZIP[..], "packed with gzip"),
            (&XZ, "packed with xz"),
            (&ZSTD, "packed with zstd"),
            (b"\n <HTML>", "a web page"),
        ] {
            assert_eq!(foreign(bytes).map(|found| found.name), Some(name));
        }
    }

    #[test]
    fn tar_archive_without_magic_is_recognised_by_its_checksum() {
        let mut header = [0; SAMPLE];
        header[..8].copy_from_slice(b"disk.raw");
        header[100..107].copy_from_slice(b"0000644");
        header[124..135].copy_from_slice(b"00000010000");
        assert_eq!(foreign(&header), None, "it has no checksum");
        header[148..156].fill(b' ');
        let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
        header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        assert_eq!(foreign(&header).map(|found| found.name), Some("a tar archive"));
        header[0] += 1;
        assert_eq!(foreign(&header), None, "the checksum differs");
    }

    #[test]
    fn ext_superblock_tells_the_size() {
        let mut first = vec![0; 2048];
        let mut set = |at: usize, value: u32| {
            first[1024 + at..1028 + at].copy_from_slice(&value.to_le_bytes());
            ext_size(&first)
        };
        assert_eq!(set(4, 3), None, "it has no magic bytes");
        assert_eq!(set(56, 0xef53), Some(3 * 1024));
        assert_eq!(set(24, 2), Some(3 * 4096));
        assert_eq!(set(336, 1), Some(3 * 4096), "these bytes are of something else");
        assert_eq!(set(96, 0x80), Some(((1 << 32) + 3) * 4096));
        assert_eq!(set(336, u32::MAX), None, "no disk has this size");
        assert_eq!(set(24, 64), None, "no block has this size");
        assert_eq!(ext_size(&[0x53; 2047]), None);
    }

    #[test]
    fn contents_of_disks_are_not_foreign() {
        let mut ext = vec![0; 2048];
        ext[1024 + 56..1024 + 58].copy_from_slice(&[0x53, 0xef]);
        let mut mbr = vec![0; 512];
        mbr[..3].copy_from_slice(&[0xeb, 0x63, 0x90]);
        mbr[510..].copy_from_slice(&[0x55, 0xaa]);
        let fat = b"\xeb\x58\x90mkfs.fat";
        for first in [&[][..], &[0], &ext, &mbr, fat, b"XFSB", b"hsqs", b"LUKS\xba\xbe"] {
            assert_eq!(foreign(first), None);
            assert_eq!(footer(first), None);
        }
    }
}
