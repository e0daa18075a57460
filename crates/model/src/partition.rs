//! A partition: nodes that are run apart from the others, with its own rules for booting.

use ipnet::IpNet;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Name;
use crate::boot::BootRules;

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PartitionSpec {
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub description: String,
    /// Interfaces on these networks boot.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub boot_networks: Vec<Name>,
    /// Interfaces with an address in these subnets boot.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(with = "Vec<String>")]
    pub boot_subnets: Vec<IpNet>,
}

/// A partition as the site keeps it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Partition {
    pub name: Name,
    pub spec: PartitionSpec,
    pub revision: u64,
}

impl PartitionSpec {
    pub fn boot_rules(&self) -> BootRules<'_> {
        BootRules { networks: &self.boot_networks, subnets: &self.boot_subnets }
    }
}
