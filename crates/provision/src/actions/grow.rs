//! File systems that came as images, grown to what they lie on.

use std::path::Path;

use hoist_engine::action::{Ctx, Failure};
use serde::{Deserialize, Serialize};

use super::disks::call;
use super::{failed, wrong};
use crate::device::{ReadAt, mount};
use crate::document::{FsKind, Id};

/// What tools leave out at the end, because it is too small for a group of its own.
const LEFT_OUT: u64 = 16 * 1024 * 1024;

/// A file system that is grown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Growing {
    pub id: Id,
    pub kind: FsKind,
    /// What is called, one after the other, but for the device or the place where it is mounted,
    /// which comes last.
    pub programs: Vec<Vec<String>>,
    /// Only what is mounted can be grown.
    pub is_mounted: bool,
}

impl Growing {
    /// Nothing, if there is no program for it.
    pub fn new(id: &Id, kind: FsKind) -> Option<Self> {
        let (programs, is_mounted): (&[&[&str]], _) = match kind {
            // What was written is not what e2fsck has seen last, and resize2fs insists.
            FsKind::Ext2 | FsKind::Ext3 | FsKind::Ext4 => {
                (&[&["e2fsck", "-f", "-p"], &["resize2fs"]], false)
            }
            FsKind::Xfs => (&[&["xfs_growfs"]], true),
            FsKind::Btrfs => (&[&["btrfs", "filesystem", "resize", "max"]], true),
            FsKind::Vfat | FsKind::Swap => return None,
        };
        let words = |words: &&[&str]| words.iter().map(|word| (*word).to_owned()).collect();
        let programs = programs.iter().map(words).collect();
        Some(Self { id: id.clone(), kind, programs, is_mounted })
    }

    pub fn tools(&self) -> impl Iterator<Item = &str> {
        self.programs.iter().filter_map(|words| words.first()).map(String::as_str)
    }

    /// Does it, to a partition's device.
    pub(super) fn grow(&self, node: &Path, ctx: &mut Ctx<'_>) -> Result<(), Failure> {
        if !self.is_mounted {
            return self.call_all(node, ctx);
        }
        let kind = match self.kind {
            FsKind::Xfs => "xfs",
            FsKind::Btrfs => "btrfs",
            other => return Err(wrong(format!("{other} is not grown while it is mounted"))),
        };
        mount::mounted(node, kind, |place| self.call_all(place, ctx))
            .map_err(|error| failed(&error))?
    }

    fn call_all(&self, target: &Path, ctx: &mut Ctx<'_>) -> Result<(), Failure> {
        self.programs.iter().try_for_each(|program| {
            // It says with 1 that it has mended something.
            let good: &[i32] = if program[0] == "e2fsck" { &[0, 1] } else { &[0] };
            call(program, target, good, ctx)
        })
    }

    /// Whether a file system of this size is as large as it gets.
    pub fn fills(size: u64, room: u64) -> bool {
        size <= room && size.saturating_add(LEFT_OUT) >= room
    }
}

/// How large a file system says that it is; nothing, if it is none of this kind.
pub fn size_of(
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
        let (low, high) =
            (u64::from(u32::from_be_bytes(four(at))), u32::from_be_bytes(four(at + 4)));
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
    fn a_file_system_that_says_nothing_has_no_size() {
        let disk = vec![0xff_u8; 128 * 1024];
        for kind in [FsKind::Ext4, FsKind::Xfs, FsKind::Btrfs, FsKind::Vfat] {
            assert_eq!(size_of(&disk[..], 4096, kind).expect("it is memory"), None);
        }
    }

    #[test]
    fn programs_are_words_and_what_cannot_be_grown_has_none() {
        let id: Id = "root-fs".parse().expect("an id");
        let said = |kind| {
            let growing = Growing::new(&id, kind)?;
            let words: Vec<_> = growing.programs.iter().map(|words| words.join(" ")).collect();
            Some((words.join("; "), growing.is_mounted))
        };
        assert_eq!(said(FsKind::Ext4), Some(("e2fsck -f -p; resize2fs".to_owned(), false)));
        assert_eq!(said(FsKind::Xfs), Some(("xfs_growfs".to_owned(), true)));
        assert_eq!(said(FsKind::Btrfs), Some(("btrfs filesystem resize max".to_owned(), true)));
        assert_eq!(said(FsKind::Vfat), None);
        assert!(Growing::fills(100, 100) && !Growing::fills(101, 100));
        assert!(!Growing::fills(64 << 20, 100 << 20));
    }
}
