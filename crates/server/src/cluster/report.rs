//! `/agent/v1/report`: a member says every few seconds that it is alive, and learns its role.

use axum::extract::State;
use hoist_api::Code;
use hoist_api::cluster::{MemberOrders, MemberReport};
use hoist_chassis::auth::AuditContext;
use hoist_chassis::extract::Json;
use hoist_chassis::failure::Failure;
use hoist_chassis::member::Member;
use hoist_chassis::peer::Peer;
use hoist_chassis::route::{AccessClass, Route};
use hoist_cluster::id::NodeId;
use hoist_cluster::membership::{MembershipRefusal, Standing};
use hoist_cluster::role::Role;
use serde_json::json;

use super::failure::of_membership;
use super::join_request::invalid;
use super::liveness::{INTERVAL, Identity, MAX_SESSION, Report, Seen};
use super::member_routes::node_of;
use super::operators::applied;
use super::snapshot::Snapshot;
use super::view::Write;
use super::{Cluster, show};

/// Largest report.
const MAX_REPORT: usize = 16 * 1024;

pub(super) fn routes() -> Vec<Route<Cluster>> {
    vec![
        Route::post("/agent/v1/report", AccessClass::Member, report)
            .summary("Report that a member is alive, and receive its role")
            .body_limit(MAX_REPORT)
            .takes::<MemberReport>()
            .gives::<MemberOrders>(200),
    ]
}

async fn report(
    State(cluster): State<Cluster>,
    member: Member,
    peer: Peer,
    audit: AuditContext,
    Json(report): Json<MemberReport>,
) -> Result<Json<MemberOrders>, Failure> {
    // Reports are frequent and no decisions.
    audit.nothing_written();
    let node = node_of(&member)?;
    if report.session.is_empty() || report.session.len() > MAX_SESSION {
        return Err(invalid("session", &format!("use 1 to {MAX_SESSION} bytes")));
    }
    let now = cluster.chassis.clock.now();
    let seen = Seen {
        at: now,
        from: peer.addr.ip().to_canonical(),
        plan_generation: report.plan_generation,
    };
    let identity = cluster.liveness.report(node, Report { session: &report.session, seen });
    let snapshot = cluster.view.loaded()?;
    match identity {
        Identity::Single | Identity::First { is_new: false } => {}
        Identity::First { is_new: true } => cluster.tell_clone(&snapshot, node, &peer),
        Identity::Second => return Err(second_machine()),
    }
    if let Some(role) = due_role(&snapshot, node, report.plan_generation)
        && let Err(failure) = cluster.carry_out(node, role).await
    {
        // The member asks again in a few seconds, and works on until then.
        tracing::debug!(%failure, %node, "the role of a member is noted later");
    }
    cluster.orders(node).map(Json)
}

/// The role that a member has taken on, if its record says otherwise.
fn due_role(snapshot: &Snapshot, node: NodeId, generation: u64) -> Option<Role> {
    let stored = snapshot.plan.as_ref()?;
    let member = snapshot.member(node).filter(|member| member.is_counted())?;
    (stored.plan.generation == generation).then(|| stored.due_role(member)).flatten()
}

fn second_machine() -> Failure {
    let detail = "another machine reports with the identity of this member; one is a copy of the \
                  other";
    Failure::new(Code::ClonedIdentity, detail)
        .with_remedy("run `hoist identity reset` on the copy, and join it as a node of its own")
}

impl Cluster {
    fn tell_clone(&self, snapshot: &Snapshot, node: NodeId, peer: &Peer) {
        let name = snapshot.name_of(node);
        tracing::warn!(member = %name, from = %peer.addr, "two machines report as one member");
        let told = json!({"id": node, "from": peer.addr.ip().to_canonical()});
        self.publish("cluster.member.cloned", &format!("member/{name}"), told);
    }

    /// Notes that a member has taken on a role, which may let the next move start.
    async fn carry_out(&self, node: NodeId, role: Role) -> Result<(), Failure> {
        self.change_members(None, |snapshot| {
            let carried_out = applied(snapshot.membership.carry_out(node, role))?;
            Ok(Write { changes: snapshot.records(carried_out.changes), result: () })
        })
        .await
    }

    fn orders(&self, node: NodeId) -> Result<MemberOrders, Failure> {
        let snapshot = self.view.loaded()?;
        let state = snapshot.founded()?;
        let member = snapshot.member(node);
        let member = member.ok_or_else(|| of_membership(&MembershipRefusal::NotMember(node)))?;
        let stored = snapshot.plan.as_ref().filter(|_| member.is_counted());
        Ok(MemberOrders {
            cluster: show::hello(state, self.chassis.clock.now()),
            plan_generation: stored.map_or(0, |stored| stored.plan.generation),
            role: stored.and_then(|stored| stored.role_of(member)),
            scale: show::scale(&snapshot).as_str().to_owned(),
            members: show::counted(&snapshot).count(),
            report_after_seconds: INTERVAL.as_secs().unsigned_abs(),
            draining: member.standing == Standing::Draining,
        })
    }
}
