//! The steps of a plan, as data: the inputs of the built-in actions, and the receipts that they
//! leave in the journal. Carrying them out is not done here.

pub mod boot;
pub mod config_drive;
pub mod disks;
pub mod erase;
pub mod files;
pub mod grow;
pub mod images;
pub mod plugin;
pub mod stack;

use serde::{Deserialize, Serialize};

use crate::document::Id;
use crate::layout::{PartitionPlan, TablePlan};

/// The place of a file system.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum FsLocation {
    /// A partition.
    Partition { disk: Id, table: TablePlan, partition: Id },
    /// A stacked device.
    Device(Id),
}

impl FsLocation {
    /// The id of the partition or the device.
    pub fn id(&self) -> &Id {
        match self {
            Self::Partition { partition, .. } => partition,
            Self::Device(id) => id,
        }
    }

    /// The partition, if it is one.
    pub fn partition(&self) -> Option<&PartitionPlan> {
        match self {
            Self::Partition { table, partition, .. } => {
                table.partitions.iter().find(|part| part.id == *partition)
            }
            Self::Device(_) => None,
        }
    }
}
