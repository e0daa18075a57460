//! How fresh the picture is, and how its store is doing.

use std::time::{Duration, Instant};

use axum::extract::State;
use hoist_api::inventory::{ImportReport, RosterStatus, SourceStatus, Status, StoreStatus};
use hoist_inventory::import::{Importer, Report};
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
    /// Where nodes are imported from, if they are.
    pub source: Option<Source>,
}

/// The configured source of the inventory.
#[derive(Debug, Clone)]
pub struct Source {
    /// Without credentials.
    pub url: String,
    pub importer: Importer,
}

impl Source {
    fn status(&self) -> SourceStatus {
        let progress = self.importer.progress();
        SourceStatus {
            url: self.url.clone(),
            last_report: progress.last.map(|report| import_report(&self.url, report)),
            error: progress.error,
            last_success: progress.success,
        }
    }
}

pub(super) fn import_report(source: &str, report: Report) -> ImportReport {
    ImportReport {
        source: source.to_owned(),
        idle: report.idle,
        added: report.added,
        changed: report.changed,
        unchanged: report.unchanged,
        removed: report.removed,
        absent: report.absent,
        warnings: report.warnings.iter().map(ToString::to_string).collect(),
        alarm: report.alarm,
        revision: report.revision,
    }
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
            source: self.background.source.as_ref().map(Source::status),
            uptime_seconds: self.background.started.elapsed().as_secs(),
        }
    }
}
