//! The roster revision and its age, and how its store is doing.

use std::time::Duration;

use axum::extract::State;
use hoist_api::inventory::{ImportReport, RosterStatus, SourceStatus, Status, StoreStatus};
use hoist_site::import::ImportCycle;
use hoist_site::registry::LoadedFrom;

use super::Inventory;
use crate::site::Source;
use hoist_chassis::extract::Json;

/// How long a status waits for the store to tell about itself.
const TIMEOUT: Duration = Duration::from_secs(1);

/// A roster that is not known to be the newest for this long is called stale.
pub(crate) const STALE_AFTER: Duration = Duration::from_secs(15);

fn source_status(source: &Source) -> SourceStatus {
    let progress = source.importer.progress();
    SourceStatus {
        url: source.url.clone(),
        last_report: progress.last.map(|report| import_report(&source.url, report)),
        error: progress.error,
        last_success: progress.success,
    }
}

pub(super) fn import_report(source: &str, report: ImportCycle) -> ImportReport {
    ImportReport {
        source: source.to_owned(),
        idle: report.idle,
        added: report.added,
        changed: report.changed,
        unchanged: report.unchanged,
        removed: report.removed,
        absent: report.absent,
        nodes: report.nodes,
        warnings: report.warnings.iter().map(ToString::to_string).collect(),
        warning_counts: report
            .warning_counts
            .into_iter()
            .map(|(kind, count)| (kind.as_str().to_owned(), count))
            .collect(),
        alarm: report.alarm,
        withheld: report.withheld,
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
        let health = tokio::time::timeout(TIMEOUT, self.registry.store().health()).await;
        let health = health.ok().and_then(Result::ok);
        let connected = contact.connected && health.is_some();
        let silent = contact.silent.as_secs();
        let loaded_from = match contact.loaded_from {
            LoadedFrom::Store => "store",
            LoadedFrom::Snapshot { .. } => "snapshot",
            LoadedFrom::Nothing => "nothing",
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
                backend: self.backend.to_owned(),
                connected,
                full: contact.full,
                error: if connected { None } else { contact.error.or(Some("no answer".into())) },
                silent_seconds: silent,
                detail: health.as_ref().map(|health| health.detail.clone()).unwrap_or_default(),
                size_bytes: health.and_then(|health| health.size_bytes),
            },
            roster: RosterStatus {
                loaded_from: loaded_from.to_owned(),
                age_seconds: silent,
                stale: contact.silent > STALE_AFTER || loaded_from != "store",
                snapshot_written: None,
            },
            source: self.source.as_ref().map(source_status),
            uptime_seconds: self.started.elapsed().as_secs(),
        }
    }
}
