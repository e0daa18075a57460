//! Work without a request: changed declared roles, requests that were not decided in time, gauges.

use std::collections::BTreeSet;
use std::time::Duration;

use hoist_cluster::id::NodeId;
use hoist_cluster::membership::NodeState;
use hoist_store::Revision;
use jiff::{SignedDuration, Timestamp};
use tokio_util::sync::CancellationToken;

use super::operators::applied;
use super::snapshot::Snapshot;
use super::view::Write;
use super::{Cluster, planning, show};

const EVERY: Duration = Duration::from_secs(5);
/// A request that no operator decided is removed; the node may ask again.
const PENDING_FOR: SignedDuration = SignedDuration::from_hours(24);

impl Cluster {
    /// Until `stop`.
    pub(super) async fn keep_up(self, stop: CancellationToken) {
        let mut tick = tokio::time::interval(EVERY);
        let mut planned = None;
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                _ = tick.tick() => {}
            }
            let snapshot = self.view.snapshot();
            if snapshot.state.is_none() {
                continue;
            }
            let now = self.chassis.clock.now();
            self.measure(&snapshot, now);
            self.plan_if_changed(&snapshot, &mut planned).await;
            self.remove_old_requests(&snapshot, now).await;
        }
    }

    /// Plans again when the members or the site have changed, here or at another controller.
    async fn plan_if_changed(&self, snapshot: &Snapshot, planned: &mut Option<(Revision, u64)>) {
        let roster = self.registry.roster();
        let seen = (snapshot.revision, roster.revision());
        if *planned == Some(seen) {
            return;
        }
        let replan = planning::replan(snapshot, &roster, &BTreeSet::new());
        if replan.changes.is_empty() {
            self.note_plan(&replan);
            *planned = Some(seen);
            return;
        }
        let writing = self.change_members(None, |_| Ok(Write { changes: Vec::new(), result: () }));
        if let Err(failure) = writing.await {
            tracing::debug!(%failure, "the roles are planned later");
        }
    }

    async fn remove_old_requests(&self, snapshot: &Snapshot, now: Timestamp) {
        let pending = snapshot.membership.pending.values();
        let old = pending.filter(|request| now.duration_since(request.received) > PENDING_FOR);
        let old: Vec<NodeId> = old.map(|request| request.registration.node).collect();
        for node in old {
            let removing = self.view.write(None, |snapshot| {
                let Some(request) = snapshot.membership.pending.get(&node) else {
                    return Ok(Write { changes: Vec::new(), result: () });
                };
                let latest = request.registration.request;
                let rejected = applied(snapshot.membership.reject(node, latest))?;
                Ok(Write { changes: snapshot.records(rejected.changes), result: () })
            });
            if let Err(failure) = removing.await {
                tracing::debug!(%failure, "an old request to join is removed later");
            }
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "gauges are floats")]
    fn measure(&self, snapshot: &Snapshot, now: Timestamp) {
        let membership = &snapshot.membership;
        let count = |wanted: NodeState| {
            let members = membership.members.keys();
            members.filter(|node| membership.state(**node, now) == Some(wanted)).count()
        };
        let counts = show::counts(self, snapshot, now);
        for (state, number) in [
            ("accepted", count(NodeState::Accepted)),
            ("stalled", count(NodeState::Stalled)),
            ("member", count(NodeState::Member)),
            ("draining", count(NodeState::Draining)),
            ("left", count(NodeState::Left)),
            ("replaced", count(NodeState::Replaced)),
            ("expelled", membership.expelled.len()),
            ("pending", counts.pending),
            ("silent", counts.silent),
        ] {
            metrics::gauge!("hoist_cluster_nodes", "state" => state).set(number as f64);
        }
        let generation = snapshot.plan.as_ref().map_or(0, |stored| stored.plan.generation);
        metrics::gauge!("hoist_cluster_plan_generation").set(generation as f64);
        metrics::gauge!("hoist_cluster_membership_generation")
            .set(membership.counters.generation as f64);
        let connected = membership.members.values().filter(|member| member.may_connect());
        let ends = connected.filter_map(|member| snapshot.certificate(member));
        if let Some(first) = ends.map(|certificate| certificate.ends).min() {
            let left = first.duration_since(now).as_secs_f64();
            metrics::gauge!("hoist_cluster_first_certificate_ends_seconds").set(left);
        }
    }
}
