//! The hoist metadata area of a disk, between its table and its first partition: position, marker
//! and journal.

use std::collections::BTreeMap;
use std::ops::Range;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::backup;
use crate::document::Id;
use crate::partition_table::FIRST_PARTITION;

/// Behind every table: with sectors of 4096 bytes the second one ends at 24 KiB.
pub const START: u64 = 32 * 1024;

/// Fewest bytes of a metadata area.
pub const LEAST: u64 = 64 * 1024;

/// Slots of the marker. The invalid slot is written, so that one slot is always valid.
pub const SLOT: u64 = 4096;
pub const SLOTS: u64 = 2;

/// The metadata area of a disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MetadataArea(Range<u64>);

/// A disk has no room for a journal.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "no room for a journal before the first partition, at byte {first}; \
     it must not begin before byte {least}", least = START + LEAST
)]
pub struct NoRoom {
    pub first: u64,
}

impl MetadataArea {
    /// `first_partition` is the start of the first retained partition.
    pub fn before(first_partition: Option<u64>) -> Result<Self, NoRoom> {
        let first = first_partition.unwrap_or(FIRST_PARTITION);
        let end = first.min(FIRST_PARTITION) / SLOT * SLOT;
        if end < START + LEAST {
            return Err(NoRoom { first });
        }
        Ok(Self(START..end))
    }

    /// The range that must be writable.
    pub fn range(&self) -> Range<u64> {
        self.0.clone()
    }

    /// The range of the marker.
    pub fn marker(&self) -> Range<u64> {
        self.0.start..self.0.start + SLOTS * SLOT
    }

    /// The range of the journal, and the range for its successor while it is written.
    pub fn journal(&self) -> (Range<u64>, Range<u64>) {
        let all = self.marker().end..self.0.end - backup::room(&self.0);
        let middle = all.end - (all.end - all.start) / 4 / SLOT * SLOT;
        (all.start..middle, middle..all.end)
    }
}

/// The marker: owner and state of a disk.
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Marker {
    /// The node, as the inventory has it.
    pub node: String,
    pub txn: Uuid,
    /// The hash of the plan.
    pub plan: String,
    /// The generation of the node's boot state.
    pub generation: u64,
    /// Whether the run completed.
    pub is_complete: bool,
    /// Whether the whole disk is an image, with the partitions of the image.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub of_image: bool,
    /// Whether the disk holds the installed system, or a part of it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub has_root: bool,
    /// Whether an undo restores the disk. The checks against data loss passed before it began.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub undoing: bool,
    /// Ranges to wipe on detached disks, which have no marker of their own.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub detached: BTreeMap<Id, Vec<Range<u64>>>,
}
