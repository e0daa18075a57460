//! The cluster as the API presents it.

use std::collections::BTreeMap;

use hoist_api::cluster::{
    ClusterMember, ClusterPlanView, ClusterStatus, Hello, MemberCounts, MemberState, PROTOCOL,
    PendingJoin, reason_texts,
};
use hoist_cluster::cluster_plan::{HoldReason, PlannedRole};
use hoist_cluster::id::NodeId;
use hoist_cluster::membership::{Expulsion, Member, NodeState, PendingRequest};
use hoist_cluster::planner::{MemberId, Move, RolePlan};
use hoist_cluster::resources::Resources;
use hoist_cluster::role::{Role, Scale};
use jiff::{SignedDuration, Timestamp};

use super::Cluster;
use super::planning;
use super::records::{ClusterState, StoredPlan};
use super::snapshot::Snapshot;

/// A certificate that ends sooner should have been renewed long ago.
const ENDS_SOON: SignedDuration = SignedDuration::from_hours(14 * 24);
/// Most members that a warning names.
const MAX_NAMED: usize = 10;

pub(super) fn hello(state: &ClusterState, now: Timestamp) -> Hello {
    let ClusterState { name, uid, .. } = state;
    Hello { name: name.clone(), uid: uid.to_string(), protocol: PROTOCOL, now }
}

pub(super) fn status(
    cluster: &Cluster,
    snapshot: &Snapshot,
    state: &ClusterState,
) -> ClusterStatus {
    let now = cluster.chassis.clock.now();
    ClusterStatus {
        name: state.name.clone(),
        uid: state.uid.to_string(),
        pin: state.pin.to_string(),
        founded: state.founded,
        assignment: state.assignment,
        mode: state.mode(),
        membership_generation: snapshot.membership.counters.generation,
        plan_generation: snapshot.plan.as_ref().map_or(0, |stored| stored.plan.generation),
        scale: scale(snapshot).as_str().to_owned(),
        counts: counts(cluster, snapshot, now),
        warnings: warnings(cluster, snapshot, state, now),
    }
}

/// The size class of all members, with automatic and declared roles.
pub(super) fn scale(snapshot: &Snapshot) -> Scale {
    Scale::of(counted(snapshot).count())
}

pub(super) fn counted(snapshot: &Snapshot) -> impl Iterator<Item = &Member> {
    snapshot.membership.members.values().filter(|member| member.is_counted())
}

pub(super) fn counts(cluster: &Cluster, snapshot: &Snapshot, now: Timestamp) -> MemberCounts {
    let connected = snapshot.membership.members.values().filter(|member| member.may_connect());
    let is_silent = |member: &&Member| cluster.liveness.is_silent(member.registration.node, now);
    MemberCounts {
        members: counted(snapshot).count(),
        accepted: connected.filter(|member| !member.is_counted()).count(),
        pending: snapshot.membership.pending.len(),
        silent: counted(snapshot).filter(is_silent).count(),
    }
}

fn warnings(
    cluster: &Cluster,
    snapshot: &Snapshot,
    state: &ClusterState,
    now: Timestamp,
) -> Vec<String> {
    let mut warnings = Vec::new();
    let mut warn = |text: &str, names: Vec<String>, remedy: &str| {
        if !names.is_empty() {
            warnings.push(format!("{text}: {}; {remedy}", listed(&names)));
        }
    };
    let names_of = |fits: &dyn Fn(&Member) -> bool| -> Vec<String> {
        let connected = snapshot.membership.members.values().filter(|m| m.may_connect());
        connected.filter(|m| fits(m)).map(|m| m.registration.name.to_string()).collect()
    };
    let cloned = cluster.liveness.cloned(now);
    warn(
        "two machines report with the identity of one member",
        names_of(&|member| cloned.contains(&member.registration.node)),
        "run `hoist identity reset` on the copy",
    );
    let state_of = |member: &Member| snapshot.membership.state(member.registration.node, now);
    warn(
        "accepted and never confirmed",
        names_of(&|member| state_of(member) == Some(NodeState::Stalled)),
        "run `hoist bootstrap` on the node again, or expel it",
    );
    let is_silent = |member: &Member| {
        member.is_counted() && cluster.liveness.is_silent(member.registration.node, now)
    };
    warn("silent members", names_of(&is_silent), "check `hoist-agent` on them");
    let ends_soon = |member: &Member| {
        snapshot.certificate(member).is_some_and(|certificate| certificate.ends < now + ENDS_SOON)
    };
    warn("certificates end soon", names_of(&ends_soon), "check `hoist-agent` on them");
    if let Some(stored) = &snapshot.plan {
        warn(
            "moves wait for consent",
            names_of(&|member| stored.is_waiting(member.registration.node)),
            "look at `hoist cluster plan`",
        );
        warn(
            "members without a role",
            names_of(&|member| stored.plan.held.contains_key(&member.registration.node)),
            "look at `hoist cluster plan`",
        );
    }
    if let Some(refusal) = cluster.plan_refusal.lock().as_ref() {
        warnings.push(format!("the roles stay as they are: {refusal}"));
    }
    if !cluster.authority.can_issue(state) {
        warnings.push("this controller cannot issue certificates".to_owned());
    }
    warnings.extend(cluster.beacon.warnings());
    warnings
}

fn listed(names: &[String]) -> String {
    match names.len().checked_sub(MAX_NAMED) {
        None | Some(0) => names.join(", "),
        Some(more) => format!("{} and {more} more", names[..MAX_NAMED].join(", ")),
    }
}

pub(super) fn member(cluster: &Cluster, snapshot: &Snapshot, member: &Member) -> ClusterMember {
    let now = cluster.chassis.clock.now();
    let registration = &member.registration;
    let node = registration.node;
    let seen = cluster.liveness.seen(node);
    let plan = snapshot.plan.as_ref();
    let reasons = plan.and_then(|stored| stored.plan.reasons.get(&node));
    let role = plan.filter(|_| member.is_counted()).and_then(|stored| stored.role_of(member));
    ClusterMember {
        id: node.to_string(),
        node: registration.name.clone(),
        state: match snapshot.membership.state(node, now) {
            Some(NodeState::Accepted) => MemberState::Accepted,
            Some(NodeState::Stalled) => MemberState::Stalled,
            Some(NodeState::Member) => MemberState::Member,
            Some(NodeState::Draining) => MemberState::Draining,
            Some(NodeState::Expelled) => MemberState::Expelled,
            Some(NodeState::Replaced) => MemberState::Replaced,
            // A node that left may wait to join again.
            Some(NodeState::Left | NodeState::Pending) | None => MemberState::Left,
        },
        join_order: member.join_order,
        role,
        reasons: reasons.map(|reasons| reason_texts(reasons)).unwrap_or_default(),
        resources: registration.claims.resources,
        preferred: registration.claims.preferred.map(|role| role.to_string()),
        accepted: member.accepted,
        certificate_ends: snapshot.certificate(member).map(|certificate| certificate.ends),
        last_seen: seen.as_ref().map(|seen| seen.at).or(Some(member.last_seen)),
        address: seen.as_ref().map(|seen| seen.from),
        plan_generation: seen.map(|seen| seen.plan_generation),
    }
}

/// An expelled node: its id and name are all that is kept.
pub(super) fn expelled(expulsion: &Expulsion) -> ClusterMember {
    ClusterMember {
        id: expulsion.node.to_string(),
        node: expulsion.name.clone(),
        state: MemberState::Expelled,
        join_order: 0,
        role: None,
        reasons: Vec::new(),
        resources: Resources::default(),
        preferred: None,
        accepted: expulsion.at,
        certificate_ends: None,
        last_seen: None,
        address: None,
        plan_generation: None,
    }
}

/// Every member by its place, the present ones first, and then the expelled nodes.
pub(super) fn members(cluster: &Cluster, snapshot: &Snapshot) -> Vec<ClusterMember> {
    let mut members: Vec<&Member> = snapshot.membership.members.values().collect();
    members.sort_by_key(|member| {
        (snapshot.is_gone(member.registration.node), member.join_order, member.registration.node)
    });
    let mut shown: Vec<_> = members.into_iter().map(|one| member(cluster, snapshot, one)).collect();
    shown.extend(snapshot.membership.expelled.values().map(expelled));
    shown
}

pub(super) fn pending(snapshot: &Snapshot, pending: &PendingRequest) -> PendingJoin {
    let registration = &pending.registration;
    let origin = snapshot.origins.get(&registration.node);
    PendingJoin {
        id: registration.node.to_string(),
        hostname: origin
            .map_or_else(|| registration.name.to_string(), |origin| origin.hostname.clone()),
        fingerprint: fingerprint(registration.node),
        from: origin.map_or(std::net::Ipv4Addr::UNSPECIFIED.into(), |origin| origin.from),
        since: pending.received,
        resources: registration.claims.resources,
        preferred: registration.claims.preferred.map(|role| role.to_string()),
    }
}

/// The start of a node id in groups of four digits, for people who compare two screens.
pub(super) fn fingerprint(node: NodeId) -> String {
    let digits = node.to_string();
    let groups: Vec<&str> = (0..6).map(|group| &digits[4 * group..4 * group + 4]).collect();
    groups.join("-")
}

pub(super) fn plan(
    snapshot: &Snapshot,
    stored: Option<&StoredPlan>,
    dry_run: bool,
) -> ClusterPlanView {
    let members = &snapshot.membership.members;
    let mut view = ClusterPlanView {
        generation: 0,
        names: BTreeMap::new(),
        plan: RolePlan {
            scale: Scale::Empty,
            roles: BTreeMap::new(),
            moves: Vec::new(),
            reasons: BTreeMap::new(),
            uncovered: Vec::new(),
            below: BTreeMap::new(),
            misfit: BTreeMap::new(),
            deferred: BTreeMap::new(),
        },
        declared: BTreeMap::new(),
        held: BTreeMap::new(),
        waiting: Vec::new(),
        dry_run,
    };
    let Some(stored) = stored else { return view };
    let source = &stored.plan;
    view.generation = source.generation;
    view.plan.scale = source.scale;
    for (node, role) in &source.roles {
        match role {
            PlannedRole::Declared(role) => {
                view.declared.insert(node.to_string(), role.to_string());
            }
            PlannedRole::Automatic(role) => {
                view.plan.roles.insert(member_id(*node), *role);
            }
        }
    }
    for (node, reason) in &source.held {
        let reason = match reason {
            HoldReason::NotDeclared => "the site declares no role for it",
            HoldReason::Unplaceable => "its pins and forbidden roles permit no role",
        };
        view.held.insert(node.to_string(), reason.to_owned());
    }
    let planned_move = |planned: &hoist_cluster::cluster_plan::PlannedMove| Move {
        member: member_id(planned.node),
        from: planned.from,
        to: planned.to,
        needs_drain: planned.needs_drain,
    };
    let open = source.moves.iter().filter(|one| planning::is_open(one, &snapshot.membership));
    view.plan.moves = open.map(planned_move).collect();
    let waiting = source.moves.iter().filter(|planned| stored.is_waiting(planned.node));
    view.waiting = waiting.map(|planned| planned.node.to_string()).collect();
    let reasons = source.reasons.iter();
    view.plan.reasons = reasons.map(|(node, of)| (member_id(*node), of.clone())).collect();
    let listed = source.roles.keys().chain(source.held.keys());
    let named = listed.filter_map(|node| members.get(node));
    let named = named.map(|m| (m.registration.node.to_string(), m.registration.name.clone()));
    view.names = named.collect();
    add_shortfalls(&mut view.plan, snapshot);
    view
}

/// The number of members that the automatic roles of a plan lack now.
fn add_shortfalls(plan: &mut RolePlan, snapshot: &Snapshot) {
    let size = plan.roles.len();
    for role in Role::in_play(size) {
        let have = plan.roles.values().filter(|planned| *planned == role).count();
        let lower = role.bounds(size).lower;
        if have < lower {
            plan.below.insert(*role, lower - have);
        }
        if have == 0 && lower > 0 {
            plan.uncovered.push(*role);
        }
    }
    for member in snapshot.membership.members.values() {
        let id = member_id(member.registration.node);
        let Some(role) = plan.roles.get(&id) else { continue };
        let shortfalls = member.registration.claims.resources.shortfalls(&role.minimum());
        // In smaller clusters resources decide nothing.
        if size > 3 && !shortfalls.is_empty() {
            plan.misfit.insert(id.clone(), shortfalls);
        }
        let pin = member.registration.placement.pin;
        if let Some(pin) = pin.filter(|pin| !Role::in_play(size).contains(pin)) {
            plan.deferred.insert(id, pin);
        }
    }
}

fn member_id(node: NodeId) -> MemberId {
    MemberId(node.to_string())
}
