//! Steps on tables, stacks and file systems.

use std::collections::BTreeSet;
use std::ops::Range;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::FsLocation;
use super::grow::FileSystemGrowth;
use super::stack::StackNode;
use crate::digest::Digest;
use crate::document::{FsKind, Id};
use crate::facts::Signature;
use crate::layout::{PartitionPlan, TablePlan};
use crate::metadata_area::{MetadataArea, NoRoom};
use crate::partition_table::{FIRST_PARTITION, Geometry};

pub const NAME: &str = "disks";

/// One step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case", deny_unknown_fields)]
pub enum Task {
    /// Wipes the signatures in these ranges.
    Wipe {
        disk: Id,
        ranges: Vec<Range<u64>>,
        /// The first byte that is wiped. The table and the metadata area of the run are before it.
        from: u64,
    },
    /// Creates a file system.
    Make { place: FsLocation, fs: NewFileSystem },
    /// Grows the file system of an image to the size of its place; `of` is the fingerprint of the
    /// image task.
    Grow { place: FsLocation, fs: FileSystemGrowth, image: Id, of: Digest },
    /// Creates a stack node.
    Build { node: StackNode },
    /// Stops all assembled nodes on these disks.
    Stop { disks: BTreeSet<Id> },
    /// Writes the final table of a disk.
    Close { disk: Id, table: TablePlan },
    /// Fits the table of an image to the disk.
    Fit { disk: Id },
}

impl Task {
    pub fn fingerprint(&self) -> Digest {
        Digest::of(&serde_json::to_vec(self).expect("a plain value"))
    }
}

/// A file system to create.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewFileSystem {
    pub id: Id,
    pub kind: FsKind,
    /// The UUID as tools show it.
    pub uuid: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// The program without the device, which is its last argument. Empty for FAT.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub program: Vec<String>,
}

impl NewFileSystem {
    pub fn new(id: &Id, kind: FsKind, uuid: Uuid, label: Option<&str>) -> Self {
        // FAT has only a serial number of 32 bits.
        let serial = uuid.as_fields().0;
        let (tool, uuid_option, uuid_value, label_option): (&[&str], _, _, _) = match kind {
            FsKind::Ext2 => (&["mke2fs", "-q", "-t", "ext2"], "-U", uuid.to_string(), "-L"),
            FsKind::Ext3 => (&["mke2fs", "-q", "-t", "ext3"], "-U", uuid.to_string(), "-L"),
            FsKind::Ext4 => (&["mke2fs", "-q", "-t", "ext4"], "-U", uuid.to_string(), "-L"),
            FsKind::Xfs => (&["mkfs.xfs", "-q"], "-m", format!("uuid={uuid}"), "-L"),
            FsKind::Btrfs => (&["mkfs.btrfs", "-q"], "-U", uuid.to_string(), "-L"),
            FsKind::Vfat => (&[], "", String::new(), ""),
            FsKind::Swap => (&["mkswap"], "-U", uuid.to_string(), "-L"),
        };
        let mut program: Vec<String> = tool.iter().map(|word| (*word).to_owned()).collect();
        if !tool.is_empty() {
            program.extend([uuid_option.to_owned(), uuid_value]);
            let label = label.map(|label| [label_option.to_owned(), label.to_owned()]);
            program.extend(label.into_iter().flatten());
        }
        let uuid = match kind {
            FsKind::Vfat => format!("{:04X}-{:04X}", serial >> 16, serial & 0xffff),
            _ => uuid.to_string(),
        };
        Self { id: id.clone(), kind, uuid, label: label.map(str::to_owned), program }
    }

    pub fn tool(&self) -> Option<&str> {
        self.program.first().map(String::as_str)
    }

    /// The number that FAT has in place of a UUID.
    pub fn serial(&self) -> u32 {
        u32::from_str_radix(&self.uuid.replace('-', ""), 16).unwrap_or_default()
    }

    /// Whether a signature is of this file system. Without a declared label any label will do.
    pub fn is(&self, found: &Signature) -> bool {
        found.kind == self.kind.signature()
            && found.uuid.as_deref() == Some(&self.uuid)
            && has_label(self.kind, self.label.as_deref(), found)
    }
}

/// Whether a file system has the declared label, if one is declared. FAT stores capitals, and blanks
/// at the end of a label are filling.
pub fn has_label(kind: FsKind, wanted: Option<&str>, found: &Signature) -> bool {
    let Some(wanted) = wanted.map(str::trim_end) else { return true };
    let label = found.label.as_deref().unwrap_or_default().trim_end();
    match kind {
        FsKind::Vfat => label.eq_ignore_ascii_case(wanted),
        _ => label == wanted,
    }
}

/// The metadata area before the first of these partitions.
pub fn metadata_area(partitions: &[PartitionPlan]) -> Result<MetadataArea, NoRoom> {
    MetadataArea::before(partitions.iter().map(|part| part.start).min())
}

/// The ranges of a disk outside of partitions, tables and metadata area.
pub fn free(table: &TablePlan, geometry: &Geometry) -> Vec<Range<u64>> {
    let mut taken: Vec<_> = table.partitions.iter().map(PartitionPlan::range).collect();
    taken.sort_by_key(|range| range.start);
    let mut at = FIRST_PARTITION;
    let mut free = Vec::new();
    let end = geometry.usable().end;
    for range in taken.into_iter().chain(std::iter::once(end..end)) {
        if at < range.start {
            free.push(at..range.start);
        }
        at = at.max(range.end);
    }
    free
}

/// Bytes at both ends of a range that may hold signatures.
pub const WIPED: u64 = 4 * 1024 * 1024;

/// Copies of the superblock of btrfs.
pub const FAR: [u64; 2] = [64 << 20, 256 << 30];
pub const FAR_LENGTH: u64 = 4096;

/// Most bytes that wiping a range writes.
pub fn wiped(range: &Range<u64>) -> u64 {
    let length = range.end.saturating_sub(range.start);
    let far = FAR.iter().filter(|at| *at + FAR_LENGTH <= length).count() as u64;
    length.min(2 * WIPED + far * FAR_LENGTH)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_stay_one_argument_of_programs() {
        let id = "root-fs".parse().expect("an id");
        let uuid = Uuid::from_u128(0x1234_abcd_0000_4000_8000_0000_0000_0001);
        let made = |kind| NewFileSystem::new(&id, kind, uuid, Some("a b; c")).program.join("|");
        let text = uuid.to_string();
        assert_eq!(made(FsKind::Ext4), format!("mke2fs|-q|-t|ext4|-U|{text}|-L|a b; c"));
        assert_eq!(made(FsKind::Xfs), format!("mkfs.xfs|-q|-m|uuid={text}|-L|a b; c"));
        assert_eq!(made(FsKind::Vfat), "", "it is made without a program");
        assert_eq!(made(FsKind::Swap), format!("mkswap|-U|{text}|-L|a b; c"));
        let fat = NewFileSystem::new(&id, FsKind::Vfat, uuid, None);
        assert_eq!((fat.uuid.as_str(), fat.serial()), ("1234-ABCD", 0x1234_ABCD));
    }
}
