//! Ends maintenance whose `until` has passed.
//!
//! The end is a write like any other, so that every reader, every controller and every watch sees
//! it. Several controllers may try at once: the second one finds nothing to end.

use std::time::Duration;

use hoist_chassis::Chassis;
use hoist_chassis::audit::Draft as AuditDraft;
use hoist_model::NodeId;
use hoist_site::registry::{Terms, WriteError};
use hoist_site::{Registry, Roster};
use jiff::Timestamp;
use tokio_util::sync::CancellationToken;

use crate::audited_commit::AuditedCommit;

/// How often the nodes are looked at: maintenance ends that much later at most.
const EVERY: Duration = Duration::from_secs(5);

pub(crate) async fn end_expired(registry: Registry, chassis: Chassis, stop: CancellationToken) {
    let draft = AuditDraft {
        who: "controller".to_owned(),
        method: "maintenance".to_owned(),
        route: "until".to_owned(),
        ..AuditDraft::default()
    };
    let commit = AuditedCommit::new(&chassis.audit, draft);
    let mut tick = tokio::time::interval(EVERY);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            _ = tick.tick() => {}
        }
        let now = chassis.clock.now();
        if expired(&registry.roster(), now).is_empty() {
            continue;
        }
        if let Err(error) = end(&registry, &commit, now).await {
            tracing::warn!(%error, "maintenance that is over cannot be ended; it is tried again");
        }
    }
}

async fn end(
    registry: &Registry,
    commit: &AuditedCommit,
    now: Timestamp,
) -> Result<(), WriteError> {
    let terms = Terms { skip_change_guard: true, ..Terms::default() };
    let written = registry.write(terms, commit, |draft| {
        for id in expired(draft.roster(), now) {
            draft.amend_node(id, |node| node.maintenance = None);
        }
        Ok(())
    });
    written.await.map(drop)
}

/// The nodes whose maintenance is over.
fn expired(roster: &Roster, now: Timestamp) -> Vec<NodeId> {
    let over = |until: Timestamp| until <= now;
    let is_expired = |node: &&std::sync::Arc<hoist_model::Node>| {
        node.maintenance.as_ref().and_then(|maintenance| maintenance.until).is_some_and(over)
    };
    roster.nodes().filter(is_expired).map(|node| node.id).collect()
}
