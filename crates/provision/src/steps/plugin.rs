//! Steps of plug-ins.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::digest::Digest;
use crate::document::Id;
use crate::layout::TablePlan;

/// One step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Task {
    /// As the plug-in planned it.
    pub input: Value,
    /// The version of the plug-in: another version may do something else.
    pub version: String,
    pub disk: Id,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub table: Option<TablePlan>,
    /// Devices by the names that the plug-in uses: a partition, which is lent, or the whole disk,
    /// which is only described.
    pub devices: BTreeMap<String, Option<Id>>,
}

/// The journal entry of a finished step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Receipt {
    pub plugin: String,
    /// The fingerprint of the task.
    pub task: Digest,
    /// The receipt of the plug-in.
    pub said: Value,
}

impl Task {
    /// The fingerprint of the input and the places of its partitions. Their names, and the rest of
    /// the disk, do not matter.
    pub fn fingerprint(&self) -> Digest {
        let parts = self.table.iter().flat_map(|table| &table.partitions);
        let lent = parts.filter(|part| self.partitions().any(|id| *id == part.id));
        let places: Vec<_> = lent.map(|part| (part.partuuid, part.start, part.len)).collect();
        let all = (&self.input, &self.version, &self.disk, &self.devices, places);
        Digest::of(&serde_json::to_vec(&all).expect("a plain value"))
    }

    pub fn partitions(&self) -> impl Iterator<Item = &Id> {
        self.devices.values().flatten()
    }
}
