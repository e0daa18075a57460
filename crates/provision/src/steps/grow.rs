//! Growing file systems of images to the size of their place.

use serde::{Deserialize, Serialize};

use crate::document::{FsKind, Id};

/// Most bytes that tools leave unused at the end, because they are too few for a block group.
const LEFT_OUT: u64 = 16 * 1024 * 1024;

/// A file system to grow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileSystemGrowth {
    pub id: Id,
    pub kind: FsKind,
    /// Programs to run in order. The device or the mount point is added as the last argument.
    pub programs: Vec<Vec<String>>,
    /// Whether the file system must be mounted to grow.
    pub is_mounted: bool,
}

impl FileSystemGrowth {
    /// Nothing, if there is no program for it.
    pub fn new(id: &Id, kind: FsKind) -> Option<Self> {
        let (programs, is_mounted): (&[&[&str]], _) = match kind {
            // resize2fs insists on a check after the last write.
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

    /// Whether a file system of this size is as large as it gets.
    pub fn fills(size: u64, room: u64) -> bool {
        size <= room && size.saturating_add(LEFT_OUT) >= room
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_programs_exist_only_for_growable_kinds() {
        let id: Id = "root-fs".parse().expect("an id");
        let said = |kind| {
            let growing = FileSystemGrowth::new(&id, kind)?;
            let words: Vec<_> = growing.programs.iter().map(|words| words.join(" ")).collect();
            Some((words.join("; "), growing.is_mounted))
        };
        assert_eq!(said(FsKind::Ext4), Some(("e2fsck -f -p; resize2fs".to_owned(), false)));
        assert_eq!(said(FsKind::Xfs), Some(("xfs_growfs".to_owned(), true)));
        assert_eq!(said(FsKind::Btrfs), Some(("btrfs filesystem resize max".to_owned(), true)));
        assert_eq!(said(FsKind::Vfat), None);
        assert!(FileSystemGrowth::fills(100, 100) && !FileSystemGrowth::fills(101, 100));
        assert!(!FileSystemGrowth::fills(64 << 20, 100 << 20));
    }
}
