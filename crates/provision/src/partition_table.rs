//! Partition tables as values: read from bytes, checked, and made into bytes.
//!
//! A table is untrusted until it is approved: reading one must not allocate sizes that the table
//! claims, and must not panic. Writing tables to disks is not done here.

mod encode;
mod read;

use std::ops::Range;

use uuid::Uuid;

use crate::facts::{PartitionFacts, TableFacts, TableKind};
use crate::layout::{PartitionPlan, TablePlan};

pub use encode::{EncodedTable, Geometry, LayoutError, MAX_NAME, PARTITIONS, encode};
pub use read::{Flaw, TableOnDisk, is_of_first, is_of_second, read, txn_of_entries};

/// The type of the in-progress partition, which marks a disk during a run.
pub const IN_PROGRESS: Uuid = Uuid::from_u128(0x9b1d_8a4e_5c0f_4f0b_a6c7_2e31_68d4_70f5);

/// The type of a partition with a range to destroy, in an in-progress table. The old table is gone,
/// and a resumed run must know the ranges that are still to be wiped.
pub const TO_DESTROY: Uuid = Uuid::from_u128(0x3f6e_0c2d_7a41_4b8e_9c15_d0a8_54b7_e921);

/// The name of such a partition.
const TO_DESTROY_NAME: &str = "hoist: to be wiped";

/// Partitions begin at multiples of this, so that there is room for the metadata area behind the
/// table.
pub const FIRST_PARTITION: u64 = 1024 * 1024;

/// A GUID partition table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    pub id: Uuid,
    pub partitions: Vec<Partition>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Partition {
    /// From 1.
    pub number: u32,
    /// In bytes.
    pub start: u64,
    pub length: u64,
    pub kind: Uuid,
    pub id: Uuid,
    pub attributes: u64,
    pub name: String,
}

impl Partition {
    pub fn range(&self) -> Range<u64> {
        self.start..self.start.saturating_add(self.length)
    }
}

impl Table {
    /// The in-progress table of a disk: the retained partitions, and in the metadata area one
    /// partition whose name is the transaction.
    pub fn in_progress(id: Uuid, txn: Uuid, retained: &[Partition], geometry: &Geometry) -> Self {
        let mut partitions = retained.to_vec();
        let is_taken = |number: &u32| retained.iter().any(|kept| kept.number == *number);
        let number = (1..=PARTITIONS).find(|number| !is_taken(number)).unwrap_or(PARTITIONS);
        let start = geometry.usable().start;
        let first = retained.iter().map(|kept| kept.start).min().unwrap_or(FIRST_PARTITION);
        let length = first.min(FIRST_PARTITION).saturating_sub(start);
        let name = txn.hyphenated().to_string();
        partitions.push(Partition {
            number,
            start,
            length,
            kind: IN_PROGRESS,
            // Two disks of one transaction must not have partitions of one name.
            id: Uuid::new_v5(&txn, id.as_bytes()),
            attributes: 0,
            name,
        });
        Self { id, partitions }
    }

    /// Adds the ranges to destroy. Ranges that the table has no room for are known only to the run
    /// that opens the disk.
    #[must_use]
    pub fn with_ranges_to_destroy(mut self, ranges: &[Range<u64>]) -> Self {
        let taken: Vec<u32> = self.partitions.iter().map(|one| one.number).collect();
        let free = (1..=PARTITIONS).filter(|number| !taken.contains(number));
        let to_destroy = ranges.iter().zip(free).map(|(range, number)| Partition {
            number,
            start: range.start,
            length: range.end - range.start,
            kind: TO_DESTROY,
            id: Uuid::new_v5(&self.id, &range.start.to_le_bytes()),
            attributes: 0,
            name: TO_DESTROY_NAME.to_owned(),
        });
        self.partitions.extend(to_destroy);
        self
    }

    /// The transaction of an interrupted run.
    pub fn txn_in_progress(&self) -> Option<Uuid> {
        let marker = self.partitions.iter().find(|partition| partition.kind == IN_PROGRESS)?;
        marker.name.parse().ok()
    }

    /// Checks that the table fits the disk.
    pub fn check(&self, geometry: &Geometry) -> Result<(), LayoutError> {
        encode(self, geometry).map(|_| ())
    }
}

impl TableOnDisk {
    /// The facts of the table.
    pub fn facts(&self) -> Option<TableFacts> {
        let bare = |kind, defects| TableFacts { kind, id: None, partitions: Vec::new(), defects };
        match self {
            Self::Nothing => None,
            Self::Mbr { id, partitions } => Some(TableFacts {
                kind: TableKind::Mbr,
                id: Some(format!("{id:08x}")),
                partitions: partitions.clone(),
                defects: Vec::new(),
            }),
            Self::Damaged(flaws) => {
                Some(bare(TableKind::Gpt, flaws.iter().map(ToString::to_string).collect()))
            }
            Self::Gpt { table, flaws } => Some(TableFacts {
                kind: TableKind::Gpt,
                id: Some(table.id.to_string()),
                partitions: table.partitions.iter().map(PartitionFacts::from).collect(),
                defects: flaws.iter().map(ToString::to_string).collect(),
            }),
        }
    }
}

impl From<&Partition> for PartitionFacts {
    fn from(partition: &Partition) -> Self {
        Self {
            number: partition.number,
            start: partition.start,
            len: partition.length,
            type_guid: Some(partition.kind),
            partuuid: Some(partition.id),
            name: partition.name.clone(),
            attributes: partition.attributes,
            kernel_name: None,
        }
    }
}

impl From<&PartitionPlan> for Partition {
    fn from(plan: &PartitionPlan) -> Self {
        Self {
            number: plan.number,
            start: plan.start,
            length: plan.len,
            kind: plan.type_guid,
            id: plan.partuuid,
            attributes: plan.attributes,
            name: plan.name.clone(),
        }
    }
}

impl From<&TablePlan> for Table {
    fn from(plan: &TablePlan) -> Self {
        let partitions = plan.partitions.iter().map(Partition::from).collect();
        Self { id: plan.guid, partitions }
    }
}
