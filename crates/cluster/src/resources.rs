//! The hardware of a member, as far as the choice of its role depends on it.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::role::Role;

/// The hardware of a member, in whole units.
#[derive(
    Debug,
    Clone,
    Copy,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    JsonSchema,
)]
#[serde(default, deny_unknown_fields)]
pub struct Resources {
    pub cores: u64,
    pub memory_gib: u64,
    /// Room on disks that may hold data of the cluster.
    pub disk_gib: u64,
    pub network_mbps: u64,
    pub gpus: u64,
}

/// One resource that is below the minimum of a role.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Shortfall {
    pub resource: Resource,
    pub have: u64,
    pub want: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Resource {
    Cores,
    MemoryGib,
    DiskGib,
    NetworkMbps,
    Gpus,
}

impl Resources {
    /// Everything that is below `minimum`.
    pub fn shortfalls(&self, minimum: &Self) -> Vec<Shortfall> {
        [
            (Resource::Cores, self.cores, minimum.cores),
            (Resource::MemoryGib, self.memory_gib, minimum.memory_gib),
            (Resource::DiskGib, self.disk_gib, minimum.disk_gib),
            (Resource::NetworkMbps, self.network_mbps, minimum.network_mbps),
            (Resource::Gpus, self.gpus, minimum.gpus),
        ]
        .into_iter()
        .filter(|(_, have, want)| have < want)
        .map(|(resource, have, want)| Shortfall { resource, have, want })
        .collect()
    }

    pub(crate) fn reach(&self, minimum: &Self) -> bool {
        self.cores >= minimum.cores
            && self.memory_gib >= minimum.memory_gib
            && self.disk_gib >= minimum.disk_gib
            && self.network_mbps >= minimum.network_mbps
            && self.gpus >= minimum.gpus
    }

    /// How well the hardware fits a role; more is better. Each resource counts by its order of
    /// magnitude, so that a few megabytes more or less decide nothing.
    pub(crate) fn affinity(&self, role: Role) -> i64 {
        let cores = magnitude(self.cores);
        let memory = magnitude(self.memory_gib);
        match role {
            Role::Monolith => 0,
            Role::Edge => 4 * magnitude(self.network_mbps) + cores,
            Role::Core => 3 * cores + 3 * memory,
            Role::Data => 5 * magnitude(self.disk_gib) + 2 * memory,
            Role::Compute => 5 * cores + 3 * memory + 8 * magnitude(self.gpus),
        }
    }
}

/// The number of binary digits: 0 for 0, 1 for 1, 2 for 2 and 3.
fn magnitude(value: u64) -> i64 {
    i64::from(u64::BITS - value.leading_zeros())
}

impl fmt::Display for Shortfall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { have, want, .. } = self;
        match self.resource {
            Resource::Cores => write!(f, "{have} of {want} cores"),
            Resource::MemoryGib => write!(f, "{have} of {want} GiB of memory"),
            Resource::DiskGib => write!(f, "{have} of {want} GiB of disk"),
            Resource::NetworkMbps => write!(f, "{have} of {want} Mbit/s"),
            Resource::Gpus => write!(f, "{have} of {want} GPUs"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shortfalls_name_each_resource_below_the_minimum() {
        let small = Resources { cores: 2, memory_gib: 64, disk_gib: 499, ..Resources::default() };
        let shortfalls = small.shortfalls(&Role::Data.minimum());
        let texts: Vec<String> = shortfalls.iter().map(ToString::to_string).collect();
        assert_eq!(texts, ["2 of 4 cores", "499 of 500 GiB of disk"]);
        assert!(!small.reach(&Role::Data.minimum()));
        assert!(small.reach(&Role::Compute.minimum()));
    }

    #[test]
    fn affinity_ignores_changes_within_an_order_of_magnitude() {
        let node = Resources { cores: 8, memory_gib: 33, disk_gib: 600, ..Resources::default() };
        let alike = Resources { cores: 15, memory_gib: 63, disk_gib: 1023, ..node };
        let larger = Resources { cores: 16, ..node };
        for role in Role::in_play(4) {
            assert_eq!(node.affinity(*role), alike.affinity(*role));
        }
        assert!(larger.affinity(Role::Compute) > node.affinity(Role::Compute));
    }
}
