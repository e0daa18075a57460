//! The members and the requests to join, and what operators decide about them.

use std::collections::BTreeSet;

use axum::extract::State;
use hoist_api::cluster::{
    AcceptRequest, ClusterMember, PendingJoin, ReasonRequest, ReplaceRequest, RoleWishes,
};
use hoist_api::inventory::Listing;
use hoist_chassis::auth::AuditContext;
use hoist_chassis::extract::{Json, Path};
use hoist_chassis::failure::Failure;
use hoist_chassis::route::Route;
use hoist_cluster::id::NodeId;
use hoist_cluster::membership::{Outcome, Placement, Transition};
use hoist_cluster::role::Role;
use http::StatusCode;
use serde_json::json;

use super::failure::of_membership;
use super::join_request::invalid;
use super::lookup::Among;
use super::records::RecordChange;
use super::snapshot::Snapshot;
use super::view::Write;
use super::{Cluster, READ, WRITE, inventory_link, show};

pub(super) fn routes() -> Vec<Route<Cluster>> {
    vec![
        Route::get("/cluster/v1/members", READ, members)
            .summary("Members with their roles, and the nodes that were members")
            .gives::<Listing<ClusterMember>>(200),
        Route::get("/cluster/v1/pending", READ, pending)
            .summary("Requests to join that wait for an operator")
            .gives::<Listing<PendingJoin>>(200),
        Route::post("/cluster/v1/pending/{id}/accept", WRITE, accept)
            .summary("Accept a node")
            .takes::<AcceptRequest>()
            .gives::<ClusterMember>(200),
        Route::post("/cluster/v1/pending/{id}/reject", WRITE, reject)
            .summary("Remove a request to join; the node may ask again")
            .takes::<ReasonRequest>()
            .gives_nothing(204),
        Route::post("/cluster/v1/members/{id}/drain", WRITE, drain)
            .summary("Plan the roles without a member, which works on until it leaves")
            .takes::<ReasonRequest>()
            .gives::<ClusterMember>(200),
        Route::post("/cluster/v1/members/{id}/leave", WRITE, leave)
            .summary("End a membership; the node may join again")
            .takes::<ReasonRequest>()
            .gives::<ClusterMember>(200),
        Route::post("/cluster/v1/members/{id}/expel", WRITE, expel)
            .summary("End a membership for ever, and all connections of the node at once")
            .takes::<ReasonRequest>()
            .gives::<ClusterMember>(200),
        Route::put("/cluster/v1/members/{id}/roles", WRITE, roles)
            .summary("Pin a member to a role, and forbid it roles")
            .takes::<RoleWishes>()
            .gives::<ClusterMember>(200),
        Route::post("/cluster/v1/replace", WRITE, replace)
            .summary("Let a node take the place and the role of a member")
            .takes::<ReplaceRequest>()
            .gives::<ClusterMember>(200),
    ]
}

async fn members(State(cluster): State<Cluster>) -> Result<Json<Listing<ClusterMember>>, Failure> {
    let snapshot = cluster.view.loaded()?;
    snapshot.founded()?;
    let items = show::members(&cluster, &snapshot);
    Ok(Json(Listing { revision: snapshot.revision.0, items }))
}

async fn pending(State(cluster): State<Cluster>) -> Result<Json<Listing<PendingJoin>>, Failure> {
    let snapshot = cluster.view.loaded()?;
    snapshot.founded()?;
    let mut requests: Vec<_> = snapshot.membership.pending.values().collect();
    requests.sort_by_key(|request| request.arrival);
    let items = requests.into_iter().map(|request| show::pending(&snapshot, request)).collect();
    Ok(Json(Listing { revision: snapshot.revision.0, items }))
}

async fn accept(
    State(cluster): State<Cluster>,
    audit: AuditContext,
    Path(id): Path<String>,
    Json(request): Json<AcceptRequest>,
) -> Result<Json<ClusterMember>, Failure> {
    let now = cluster.chassis.clock.now();
    let roster = cluster.registry.roster();
    let mut draft = audit.draft();
    draft.object = format!("member/{id}");
    let accepting = cluster.view.write(Some(&draft), |snapshot| {
        snapshot.founded()?;
        let node = snapshot.find(&id, Among::Pending)?;
        let mut changes = Vec::new();
        let mut membership = snapshot.membership.clone();
        if let Some(name) = &request.node {
            inventory_link::check_enabled(&roster, name)?;
            changes = applied(membership.name_request(node, name.clone()))?.changes;
            membership = membership.with(&changes);
        }
        let latest = membership.pending.get(&node).map(|pending| pending.registration.request);
        let Some(latest) = latest else { return snapshot.find(&id, Among::Pending).map(unchanged) };
        changes.extend(applied(membership.accept(node, latest, now))?.changes);
        Ok(Write { changes: snapshot.records(changes), result: node })
    });
    let node = accepting.await?;
    cluster.tell_operation(node, "accepted", None);
    cluster.shown(node)
}

fn unchanged(node: NodeId) -> Write<NodeId> {
    Write { changes: Vec::new(), result: node }
}

async fn reject(
    State(cluster): State<Cluster>,
    audit: AuditContext,
    Path(id): Path<String>,
    Json(request): Json<ReasonRequest>,
) -> Result<StatusCode, Failure> {
    let mut draft = audit.draft();
    draft.object = object("reject", &id, request.reason.as_deref());
    let rejecting = cluster.view.write(Some(&draft), |snapshot| {
        let node = snapshot.find(&id, Among::Pending)?;
        let latest = snapshot.membership.pending[&node].registration.request;
        let rejected = applied(snapshot.membership.reject(node, latest))?;
        Ok(Write { changes: snapshot.records(rejected.changes), result: node })
    });
    let node = rejecting.await?;
    let told = json!({"id": node, "reason": request.reason});
    cluster.publish("cluster.join.rejected", &format!("member/{id}"), told);
    Ok(StatusCode::NO_CONTENT)
}

async fn drain(
    State(cluster): State<Cluster>,
    audit: AuditContext,
    Path(id): Path<String>,
    Json(request): Json<ReasonRequest>,
) -> Result<Json<ClusterMember>, Failure> {
    cluster.steer(&audit, &id, &request, Steering::Drain).await
}

async fn leave(
    State(cluster): State<Cluster>,
    audit: AuditContext,
    Path(id): Path<String>,
    Json(request): Json<ReasonRequest>,
) -> Result<Json<ClusterMember>, Failure> {
    cluster.steer(&audit, &id, &request, Steering::Leave).await
}

async fn expel(
    State(cluster): State<Cluster>,
    audit: AuditContext,
    Path(id): Path<String>,
    Json(request): Json<ReasonRequest>,
) -> Result<Json<ClusterMember>, Failure> {
    cluster.steer(&audit, &id, &request, Steering::Expel).await
}

/// What an operator does with a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Steering {
    Drain,
    Leave,
    Expel,
}

impl Steering {
    /// For the audit log.
    fn word(self) -> &'static str {
        match self {
            Self::Drain => "drain",
            Self::Leave => "leave",
            Self::Expel => "expel",
        }
    }

    /// The last word of the event.
    fn done(self) -> &'static str {
        match self {
            Self::Drain => "draining",
            Self::Leave => "left",
            Self::Expel => "expelled",
        }
    }

    fn among(self) -> Among {
        match self {
            Self::Drain | Self::Leave => Among::Members,
            Self::Expel => Among::All,
        }
    }
}

async fn roles(
    State(cluster): State<Cluster>,
    audit: AuditContext,
    Path(id): Path<String>,
    Json(wishes): Json<RoleWishes>,
) -> Result<Json<ClusterMember>, Failure> {
    let pin = wishes.pin.as_deref().map(|role| planner_role("pin", role)).transpose()?;
    let forbid: Result<BTreeSet<Role>, Failure> =
        wishes.forbid.iter().map(|role| planner_role("forbid", role)).collect();
    let forbid = forbid?;
    if let Some(pin) = pin.filter(|pin| forbid.contains(pin)) {
        return Err(invalid("pin", &format!("`{pin}` is forbidden as well")));
    }
    if forbid.contains(&Role::Monolith) {
        return Err(invalid("forbid", "`monolith` is the only role of a cluster of one member"));
    }
    let mut draft = audit.draft();
    draft.object = format!("member/{id} roles");
    let placing = cluster.change_members(Some(&draft), |snapshot| {
        let node = snapshot.find(&id, Among::Members)?;
        let declared =
            snapshot.member(node).and_then(|member| member.registration.placement.declared.clone());
        let placement = Placement { pin, forbid: forbid.clone(), declared };
        let placed = applied(snapshot.membership.place(node, placement))?;
        Ok(Write { changes: snapshot.records(placed.changes), result: node })
    });
    let node = placing.await?;
    cluster.tell_operation(node, "placed", None);
    cluster.shown(node)
}

fn planner_role(field: &str, text: &str) -> Result<Role, Failure> {
    serde_json::from_value(text.into())
        .map_err(|_| invalid(field, "the roles are monolith, edge, core, data and compute"))
}

async fn replace(
    State(cluster): State<Cluster>,
    audit: AuditContext,
    Json(request): Json<ReplaceRequest>,
) -> Result<Json<ClusterMember>, Failure> {
    let now = cluster.chassis.clock.now();
    let ReplaceRequest { old, new } = request;
    let mut draft = audit.draft();
    draft.object = format!("member/{old} replaced by {new}");
    let replacing = cluster.change_members(Some(&draft), |snapshot| {
        let old = snapshot.find(&old, Among::Members)?;
        let new = cluster.successor(snapshot, &new)?;
        let replaced = applied(snapshot.membership.replace(old, new))?;
        let mut changes = replaced.changes;
        let mut shown = new;
        if replaced.outcome == Outcome::AwaitsSuccessor {
            // The operator has seen the request: there is nothing left to decide.
            let membership = snapshot.membership.clone().with(&changes);
            match membership.pending.get(&new).map(|pending| pending.registration.request) {
                Some(latest) => {
                    changes.extend(applied(membership.accept(new, latest, now))?.changes);
                }
                None => shown = old,
            }
        }
        let mut changes = snapshot.records(changes);
        if !changes.is_empty() {
            changes.push(RecordChange::RemoveCertificate(old));
        }
        Ok(Write { changes, result: (old, new, shown) })
    });
    let (old, new, shown) = replacing.await?;
    cluster.tell_operation(old, "replaced", Some(json!({"old": old, "new": new})));
    cluster.shown(shown)
}

impl Cluster {
    async fn steer(
        &self,
        audit: &AuditContext,
        id: &str,
        request: &ReasonRequest,
        steering: Steering,
    ) -> Result<Json<ClusterMember>, Failure> {
        let now = self.chassis.clock.now();
        let mut draft = audit.draft();
        draft.object = object(steering.word(), id, request.reason.as_deref());
        let steered = self.change_members(Some(&draft), |snapshot| {
            let node = snapshot.find(id, steering.among())?;
            let membership = &snapshot.membership;
            let transition = match steering {
                Steering::Drain => membership.drain(node),
                Steering::Leave => membership.leave(node),
                Steering::Expel => membership.expel(node, now),
            };
            let name = snapshot.name_of(node);
            let mut changes = snapshot.records(applied(transition)?.changes);
            if steering != Steering::Drain && !changes.is_empty() {
                changes.push(RecordChange::RemoveCertificate(node));
            }
            Ok(Write { changes, result: (node, name) })
        });
        let (node, name) = steered.await?;
        if steering != Steering::Drain {
            self.liveness.forget(node);
        }
        let told = json!({"id": node, "reason": request.reason});
        let kind = format!("cluster.member.{}", steering.done());
        self.publish(&kind, &format!("member/{name}"), told);
        self.shown(node)
    }

    /// The node that takes the place of another one. It may have been refused over the name of the
    /// old one, and then there is no record of it.
    fn successor(&self, snapshot: &Snapshot, text: &str) -> Result<NodeId, Failure> {
        match snapshot.find(text, Among::All) {
            Ok(node) => Ok(node),
            Err(failure) => {
                let whole = text.parse().ok();
                let refused = || self.liveness.refused(&text.to_ascii_lowercase());
                whole.or_else(refused).ok_or(failure)
            }
        }
    }

    fn tell_operation(&self, node: NodeId, word: &str, told: Option<serde_json::Value>) {
        let name = self.view.snapshot().name_of(node);
        let told = told.unwrap_or_else(|| json!({"id": node}));
        self.publish(&format!("cluster.member.{word}"), &format!("member/{name}"), told);
    }

    /// A node as it is now.
    fn shown(&self, node: NodeId) -> Result<Json<ClusterMember>, Failure> {
        let snapshot = self.view.snapshot();
        if let Some(member) = snapshot.member(node) {
            return Ok(Json(show::member(self, &snapshot, member)));
        }
        let expelled = snapshot.membership.expelled.get(&node).map(show::expelled);
        let gone = || of_membership(&hoist_cluster::membership::MembershipRefusal::NotMember(node));
        expelled.map(Json).ok_or_else(gone)
    }
}

impl Snapshot {
    /// The name of a node, or else the start of its id.
    pub(super) fn name_of(&self, node: NodeId) -> String {
        let member = self.member(node).map(|member| &member.registration.name);
        let pending = || self.membership.pending.get(&node).map(|p| &p.registration.name);
        let expelled = || self.membership.expelled.get(&node).map(|expulsion| &expulsion.name);
        let name = member.or_else(pending).or_else(expelled);
        name.map_or_else(|| node.short(), ToString::to_string)
    }
}

pub(super) fn applied(
    transition: Result<Transition, hoist_cluster::membership::MembershipRefusal>,
) -> Result<Transition, Failure> {
    transition.map_err(|refusal| of_membership(&refusal))
}

/// Longest reason that the audit log gets.
const MAX_REASON: usize = 512;

fn object(word: &str, id: &str, reason: Option<&str>) -> String {
    match reason {
        None => format!("member/{id} {word}"),
        Some(reason) => {
            let reason: String = reason.chars().take(MAX_REASON).collect();
            format!("member/{id} {word}: {reason}")
        }
    }
}
