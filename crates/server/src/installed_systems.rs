//! The systems that nodes have, for contexts that must not use provisioning itself.

use std::collections::BTreeMap;

use async_trait::async_trait;
use hoist_model::NodeId;
use hoist_store::StoreError;

/// Knows which provisioning run installed the system of a node.
#[async_trait]
pub trait InstalledSystems: std::fmt::Debug + Send + Sync {
    /// The run of each node whose system was installed by one.
    async fn installed_by(&self) -> Result<BTreeMap<NodeId, String>, StoreError>;
}
