//! Assigns a role to each member of a cluster.
//!
//! Inputs are the members with their resources, wishes and present roles, and a policy. Names,
//! addresses, clocks and whether a member answers are not inputs: the same members in the same
//! order of joining get the same roles, and a member that is down keeps its role.
//!
//! A batch of newcomers is planned one after the other in the order of joining, each in a cluster
//! of its own size. So it does not matter how joins happen to be batched.
//!
//! Carrying a plan out, generations and consent do not belong here.

mod assignment;
mod cost;
mod reason;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::resources::{Resources, Shortfall};
use crate::role::{RESOURCES_COUNT_FROM, Role, Scale};
use assignment::Assignment;
pub use reason::{Obstacle, Reason};

/// The identity of a member: the hash of its first key, or a name in a file.
#[derive(
    Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(transparent)]
pub struct MemberId(pub String);

impl fmt::Display for MemberId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// An accepted member, as the planner sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    pub id: MemberId,
    /// The place in the order of joining, given once when the member is accepted.
    pub join_order: u64,
    pub resources: Resources,
    /// The role that the member asks for.
    pub preferred: Option<Role>,
    /// The role that an operator gives the member, as soon as the cluster uses that role.
    pub pin: Option<Role>,
    /// Roles that the member must not get.
    pub forbid: BTreeSet<Role>,
    /// The present role; none for a newcomer.
    pub role: Option<Role>,
    /// A member that is leaving is planned as absent.
    pub draining: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Policy {
    pub mode: Mode,
    /// Least resources that differ from [`Role::minimum`].
    pub minima: BTreeMap<Role, Resources>,
}

/// The permitted moves of a plan.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Members keep their roles; only missing roles move them.
    #[default]
    Keep,
    /// Members also move to where they fit better.
    Rebalance,
}

impl Policy {
    pub(crate) fn minimum(&self, role: Role) -> Resources {
        self.minima.get(&role).copied().unwrap_or_else(|| role.minimum())
    }
}

/// The roles of a cluster, with the reasons.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RolePlan {
    pub scale: Scale,
    pub roles: BTreeMap<MemberId, Role>,
    /// Changes of present roles, in the order to carry them out: a role gets its new member before
    /// the old one leaves it.
    pub moves: Vec<Move>,
    pub reasons: BTreeMap<MemberId, Vec<Reason>>,
    /// Required roles that no member has. Such a plan must not be carried out.
    pub uncovered: Vec<Role>,
    /// By role, how many members are missing to its lower bound.
    pub below: BTreeMap<Role, usize>,
    /// Members with less than the least resources for their role.
    pub misfit: BTreeMap<MemberId, Vec<Shortfall>>,
    /// Pins to roles that a cluster of this size does not use.
    pub deferred: BTreeMap<MemberId, Role>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Move {
    pub member: MemberId,
    pub from: Role,
    pub to: Role,
    /// The member holds state of the role that it leaves: the move waits for consent.
    pub needs_drain: bool,
}

impl RolePlan {
    /// Whether the plan leaves a required role without a member.
    pub fn is_refused(&self) -> bool {
        !self.uncovered.is_empty()
    }
}

/// Why members cannot be planned at all.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum PlanError {
    #[error("two members have the id `{0}`")]
    DuplicateId(MemberId),
    #[error("members `{0}` and `{1}` have the same place in the order of joining")]
    DuplicateJoinOrder(MemberId, MemberId),
    #[error("member `{member}` is pinned to `{role}` and forbids it")]
    PinForbidden { member: MemberId, role: Role },
    #[error("member `{0}` forbids `monolith`, the only role of a cluster of one")]
    MonolithForbidden(MemberId),
    #[error("member `{member}` forbids every role of a cluster of {members}")]
    NoRoleAllowed { member: MemberId, members: usize },
}

/// The roles of these members.
///
/// Members that have no role yet join one after the other. Without any, the present members are
/// planned again, for instance after a member left.
pub fn plan(members: &[Member], policy: &Policy) -> Result<RolePlan, PlanError> {
    check(members)?;
    let mut active: Vec<Member> = members.iter().filter(|m| !m.draining).cloned().collect();
    active.sort_by_key(|member| member.join_order);
    let (mut settled, newcomers): (Vec<_>, Vec<_>) =
        active.iter().cloned().partition(|member| member.role.is_some());
    let mut reasons = BTreeMap::new();
    if newcomers.is_empty() {
        step(&mut settled, policy, &mut reasons)?;
    }
    for newcomer in newcomers {
        let place = settled.partition_point(|member| member.join_order < newcomer.join_order);
        settled.insert(place, newcomer);
        step(&mut settled, policy, &mut reasons)?;
    }
    Ok(summary(&active, &settled, reasons, policy))
}

/// Gives every member a role, in a cluster of exactly these members in the order of joining.
fn step(
    members: &mut [Member],
    policy: &Policy,
    reasons: &mut BTreeMap<MemberId, Vec<Reason>>,
) -> Result<(), PlanError> {
    let roles = Assignment::best(members, policy)?.into_roles();
    for (index, member) in members.iter().enumerate() {
        let is_old = member.role == Some(roles[index]);
        if is_old && reasons.contains_key(&member.id) {
            continue;
        }
        let found = reason::reasons(members, &roles, index, policy);
        reasons.insert(member.id.clone(), found);
    }
    for (member, role) in members.iter_mut().zip(roles) {
        member.role = Some(role);
    }
    Ok(())
}

/// The plan that leads from the roles of `before` to those of `after`.
fn summary(
    before: &[Member],
    after: &[Member],
    reasons: BTreeMap<MemberId, Vec<Reason>>,
    policy: &Policy,
) -> RolePlan {
    let members = after.len();
    let holders = |role: Role| after.iter().filter(|member| member.role == Some(role)).count();
    let mut uncovered = Vec::new();
    let mut below = BTreeMap::new();
    for role in Role::in_play(members).iter().copied() {
        let lower = role.bounds(members).lower;
        let missing = lower.saturating_sub(holders(role));
        if missing > 0 {
            below.insert(role, missing);
        }
        if lower > 0 && missing == lower {
            uncovered.push(role);
        }
    }
    let mut roles = BTreeMap::new();
    let mut misfit = BTreeMap::new();
    let mut deferred = BTreeMap::new();
    for member in after {
        let Some(role) = member.role else { continue };
        roles.insert(member.id.clone(), role);
        let shortfalls = shortfalls(member, role, members, policy);
        if !shortfalls.is_empty() {
            misfit.insert(member.id.clone(), shortfalls);
        }
        if let Some(pin) = member.pin.filter(|pin| !Role::in_play(members).contains(pin)) {
            deferred.insert(member.id.clone(), pin);
        }
    }
    let scale = Scale::of(members);
    let moves = moves(before, &roles);
    RolePlan { scale, roles, moves, reasons, uncovered, below, misfit, deferred }
}

/// The resources that a member lacks for a role; none in clusters too small to choose.
fn shortfalls(member: &Member, role: Role, members: usize, policy: &Policy) -> Vec<Shortfall> {
    if members < RESOURCES_COUNT_FROM {
        return Vec::new();
    }
    member.resources.shortfalls(&policy.minimum(role))
}

/// The changes from the roles of `before`. A move whose role keeps another holder goes first.
pub(crate) fn moves(before: &[Member], roles: &BTreeMap<MemberId, Role>) -> Vec<Move> {
    let mut pending: Vec<Move> = Vec::new();
    let mut holders: BTreeMap<Role, usize> = BTreeMap::new();
    for member in before {
        let (Some(from), Some(to)) = (member.role, roles.get(&member.id)) else { continue };
        *holders.entry(from).or_default() += 1;
        if from != *to {
            let needs_drain = from.is_stateful();
            pending.push(Move { member: member.id.clone(), from, to: *to, needs_drain });
        }
    }
    let mut ordered = Vec::with_capacity(pending.len());
    while !pending.is_empty() {
        let keeps_holder = |m: &Move| holders.get(&m.from).is_some_and(|count| *count > 1);
        let next = pending.remove(pending.iter().position(keeps_holder).unwrap_or(0));
        *holders.entry(next.from).or_default() -= 1;
        *holders.entry(next.to).or_default() += 1;
        ordered.push(next);
    }
    ordered
}

fn check(members: &[Member]) -> Result<(), PlanError> {
    let mut ids = BTreeSet::new();
    let mut places = BTreeMap::new();
    for member in members {
        if !ids.insert(&member.id) {
            return Err(PlanError::DuplicateId(member.id.clone()));
        }
        if let Some(other) = places.insert(member.join_order, &member.id) {
            return Err(PlanError::DuplicateJoinOrder(other.clone(), member.id.clone()));
        }
        if member.forbid.contains(&Role::Monolith) {
            return Err(PlanError::MonolithForbidden(member.id.clone()));
        }
        if let Some(role) = member.pin.filter(|pin| member.forbid.contains(pin)) {
            return Err(PlanError::PinForbidden { member: member.id.clone(), role });
        }
    }
    Ok(())
}
