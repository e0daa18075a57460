//! Growing file systems from images to the size of their partition or device.

use std::path::Path;

use hoist_engine::action::{Ctx, Failure};
use hoist_provision::document::FsKind;
use hoist_provision::read_at::ReadAt;
use hoist_provision::steps::grow::FileSystemGrowth;

use super::disks::call;
use super::{failed, wrong};
use crate::mount;

/// Grows a file system on the device of its partition.
pub(super) fn grow(fs: &FileSystemGrowth, node: &Path, ctx: &mut Ctx<'_>) -> Result<(), Failure> {
    if !fs.is_mounted {
        return call_all(fs, node, ctx);
    }
    let kind = match fs.kind {
        FsKind::Xfs => "xfs",
        FsKind::Btrfs => "btrfs",
        other => return Err(wrong(format!("{other} cannot be grown"))),
    };
    mount::mounted(node, kind, |place| call_all(fs, place, ctx)).map_err(|error| failed(&error))?
}

fn call_all(fs: &FileSystemGrowth, target: &Path, ctx: &mut Ctx<'_>) -> Result<(), Failure> {
    fs.programs.iter().try_for_each(|program| {
        // Exit code 1 of e2fsck means that errors were corrected.
        let good: &[i32] = if program[0] == "e2fsck" { &[0, 1] } else { &[0] };
        call(program, target, good, ctx)
    })
}

/// The size in the superblock of a file system. `None` if the device holds no file system of this
/// kind.
pub(super) fn size_of(
    disk: &(impl ReadAt + ?Sized),
    start: u64,
    kind: FsKind,
) -> std::io::Result<Option<u64>> {
    let mut block = [0; 512];
    let at = match kind {
        FsKind::Ext2 | FsKind::Ext3 | FsKind::Ext4 => 1024,
        FsKind::Xfs => 0,
        FsKind::Btrfs => 64 * 1024,
        FsKind::Vfat | FsKind::Swap => return Ok(None),
    };
    disk.read_at(start + at, &mut block)?;
    let four = |at: usize| [block[at], block[at + 1], block[at + 2], block[at + 3]];
    let number = |at: usize| u64::from(u32::from_le_bytes(four(at)));
    let eight = |at: usize| {
        let low = u64::from(u32::from_be_bytes(four(at)));
        let high = u32::from_be_bytes(four(at + 4));
        low << 32 | u64::from(high)
    };
    Ok(match kind {
        FsKind::Xfs if block.starts_with(b"XFSB") => {
            eight(8).checked_mul(u64::from(u32::from_be_bytes(four(4))))
        }
        FsKind::Btrfs if block[0x40..].starts_with(b"_BHRfS_M") => {
            Some(number(0x74) << 32 | number(0x70))
        }
        FsKind::Ext2 | FsKind::Ext3 | FsKind::Ext4 if block[0x38..].starts_with(b"\x53\xef") => {
            let is_large = number(0x60) & 0x80 != 0;
            let high = if is_large { number(0x150) << 32 } else { 0 };
            let size = u32::try_from(number(0x18)).ok().and_then(|log| 1024_u64.checked_shl(log));
            size.and_then(|size| (high | number(4)).checked_mul(size))
        }
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_file_system_has_no_size() {
        let disk = vec![0xff_u8; 128 * 1024];
        for kind in [FsKind::Ext4, FsKind::Xfs, FsKind::Btrfs, FsKind::Vfat] {
            assert_eq!(size_of(&disk[..], 4096, kind).expect("it is memory"), None);
        }
    }
}
