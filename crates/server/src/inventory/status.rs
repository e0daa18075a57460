//! How fresh the picture is, and how its store is doing.

use std::time::{Duration, Instant};

use axum::extract::State;
use hoist_api::inventory::{RosterStatus, Status, StoreStatus};
use hoist_inventory::registry::LoadedFrom;

use super::Inventory;
use crate::extract::Json;

/// How long a status waits for the store to tell about itself.
const PATIENCE: Duration = Duration::from_secs(1);

/// A picture not known to be the newest for this long is called stale.
pub(crate) const STALE_AFTER: Duration = Duration::from_secs(15);

/// What goes on beside the requests.
#[derive(Debug, Clone)]
pub struct Background {
    pub started: Instant,
    /// `embedded`, `etcd` or `postgres`: known even while the store is away.
    pub backend: &'static str,
}

pub(super) async fn get(State(inventory): State<Inventory>) -> Json<Status> {
    Json(inventory.status().await)
}

impl Inventory {
    pub async fn status(&self) -> Status {
        let roster = self.roster();
        let contact = self.registry.contact();
        let health = tokio::time::timeout(PATIENCE, self.registry.store().health()).await;
        let health = health.ok().and_then(Result::ok);
        let connected = contact.connected && health.is_some();
        let silent = contact.silent.as_secs();
        let loaded_from = match contact.loaded_from {
            LoadedFrom::Store => "store",
            LoadedFrom::Snapshot { .. } => "snapshot",
        };
        Status {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            incarnation: roster.incarnation().as_str().to_owned(),
            revision: roster.revision(),
            nodes: roster.len(),
            groups: roster.groups().count(),
            partitions: roster.partitions().count(),
            networks: roster.networks().count(),
            store: StoreStatus {
                backend: self.background.backend.to_owned(),
                connected,
                error: if connected { None } else { contact.error.or(Some("no answer".into())) },
                silent_seconds: silent,
                detail: health.as_ref().map(|health| health.detail.clone()).unwrap_or_default(),
                size_bytes: health.and_then(|health| health.size_bytes),
            },
            roster: RosterStatus {
                loaded_from: loaded_from.to_owned(),
                age_seconds: silent,
                stale: contact.silent > STALE_AFTER || loaded_from == "snapshot",
                snapshot_written: None,
            },
            source: None,
            uptime_seconds: self.background.started.elapsed().as_secs(),
        }
    }
}
