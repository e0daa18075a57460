//! The stored plan of a cluster: the role of each member, made by the planner from the membership.
//!
//! Plans form a chain: each has a generation and the hash of its parent. A plan replaces the
//! current one only if it was made from it, and an agent never goes back to an older generation.
//!
//! Carrying moves out, and consent to them, do not belong here.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use hoist_model::Role as DeclaredRole;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::config::Assignment;
use crate::id::{ClusterId, NodeId};
use crate::membership::{Member, Membership};
use crate::planner::{self, MemberId, PlanError, Policy, Reason, RolePlan};
use crate::role::{Role, Scale};
use crate::text_form::{as_text, hexadecimal_text};

const HASH_DOMAIN: &[u8] = b"hoist cluster plan 1\0";

/// The hash of a plan over its canonical JSON: sorted keys, no white space.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PlanHash([u8; 32]);

hexadecimal_text!(PlanHash, "the hash of a plan; expected 64 hexadecimal digits");
as_text!(PlanHash, "^[0-9a-fA-F]{64}$");

/// The roles of all members, as they should be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClusterPlan {
    pub cluster: ClusterId,
    /// From 1, and one more than that of the parent.
    pub generation: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<PlanHash>,
    /// The generation of the membership that the plan was made from.
    pub membership_generation: u64,
    /// The size class of the members with automatic roles.
    pub scale: Scale,
    pub roles: BTreeMap<NodeId, PlannedRole>,
    /// Changes of roles that members have, in the order to carry them out.
    pub moves: Vec<PlannedMove>,
    pub reasons: BTreeMap<NodeId, Vec<Reason>>,
    /// Members without a role.
    pub held: BTreeMap<NodeId, HoldReason>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PlannedRole {
    /// From the site, of any name.
    Declared(DeclaredRole),
    /// From the planner.
    Automatic(Role),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlannedMove {
    pub node: NodeId,
    pub from: Role,
    pub to: Role,
    /// The member holds state of the role that it leaves: the move waits for consent.
    pub needs_drain: bool,
}

/// Why a member has no role.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HoldReason {
    /// Roles are declared, and the site declares none for this member.
    NotDeclared,
    /// Its pins and forbidden roles permit no role, or leave a required role without a member.
    Unplaceable,
}

/// How the cluster gives roles.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PlanRules {
    pub assignment: Assignment,
    pub policy: Policy,
}

/// Why there is no next plan. The current one stays.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanRefusal {
    #[error("the plan was made from another parent than generation {generation}; plan again")]
    StaleParent { generation: u64 },
    #[error(
        "the members are of generation {offered}, the current plan is of {planned}; read the \
         members again"
    )]
    StaleMembership { offered: u64, planned: u64 },
    #[error("the current plan belongs to cluster {}", .0.short())]
    ForeignCluster(ClusterId),
    #[error("no member can take role `{0}`; change pins or forbidden roles")]
    Uncovered(Role),
    #[error("cannot plan the roles")]
    Planner(#[source] PlanError),
}

impl ClusterPlan {
    /// The plan after `current`; none if the target stays as it is.
    ///
    /// `parent` is the hash of the plan that the caller has seen as the current one. The caller must
    /// write the new plan only if the stored plan is still that parent.
    pub fn next(
        cluster: ClusterId,
        current: Option<&Self>,
        parent: Option<PlanHash>,
        membership: &Membership,
        rules: &PlanRules,
    ) -> Result<Option<Self>, PlanRefusal> {
        let generation = current.map_or(0, |plan| plan.generation);
        let membership_generation = membership.counters.generation;
        if let Some(current) = current {
            if current.cluster != cluster {
                return Err(PlanRefusal::ForeignCluster(current.cluster));
            }
            if membership_generation < current.membership_generation {
                let planned = current.membership_generation;
                let offered = membership_generation;
                return Err(PlanRefusal::StaleMembership { offered, planned });
            }
        }
        if current.map(Self::hash) != parent {
            return Err(PlanRefusal::StaleParent { generation });
        }
        let layout = Layout::plan(membership, rules, current)?;
        let Layout { scale, roles, moves, mut reasons, held } = layout;
        if let Some(current) = current {
            // A move that was carried out meanwhile is no reason for another plan.
            if (&current.roles, &current.held) == (&roles, &held) {
                return Ok(None);
            }
            keep_reasons(&mut reasons, &roles, current);
        }
        let generation = generation + 1;
        let plan = Self {
            cluster,
            generation,
            parent,
            membership_generation,
            scale,
            roles,
            moves,
            reasons,
            held,
        };
        Ok(Some(plan))
    }

    pub fn hash(&self) -> PlanHash {
        let value = serde_json::to_value(self).expect("keys of maps are texts");
        let mut text = String::new();
        write_canonical(&value, &mut text);
        let mut hash = Sha256::new();
        hash.update(HASH_DOMAIN);
        hash.update(text.as_bytes());
        PlanHash(hash.finalize().into())
    }

    pub fn reference(&self) -> PlanReference {
        let Self { cluster, generation, .. } = *self;
        PlanReference { cluster, generation, hash: self.hash() }
    }
}

/// A member that keeps its role has it for the reasons of the plan that gave it the role.
fn keep_reasons(
    reasons: &mut BTreeMap<NodeId, Vec<Reason>>,
    roles: &BTreeMap<NodeId, PlannedRole>,
    current: &ClusterPlan,
) {
    for (node, earlier) in &current.reasons {
        if roles.contains_key(node) && roles.get(node) == current.roles.get(node) {
            reasons.insert(*node, earlier.clone());
        }
    }
}

fn write_canonical(value: &Value, text: &mut String) {
    match value {
        Value::Object(object) => {
            let sorted: BTreeMap<&String, &Value> = object.iter().collect();
            text.push('{');
            for (index, (key, value)) in sorted.into_iter().enumerate() {
                if index > 0 {
                    text.push(',');
                }
                text.push_str(&Value::from(key.as_str()).to_string());
                text.push(':');
                write_canonical(value, text);
            }
            text.push('}');
        }
        Value::Array(items) => {
            text.push('[');
            for (index, item) in items.iter().enumerate() {
                if index > 0 {
                    text.push(',');
                }
                write_canonical(item, text);
            }
            text.push(']');
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {
            text.push_str(&value.to_string());
        }
    }
}

/// The part of a plan that follows from the membership alone.
#[derive(Debug)]
struct Layout {
    scale: Scale,
    roles: BTreeMap<NodeId, PlannedRole>,
    moves: Vec<PlannedMove>,
    reasons: BTreeMap<NodeId, Vec<Reason>>,
    held: BTreeMap<NodeId, HoldReason>,
}

impl Layout {
    fn plan(
        membership: &Membership,
        rules: &PlanRules,
        current: Option<&ClusterPlan>,
    ) -> Result<Self, PlanRefusal> {
        let mut roles = BTreeMap::new();
        let mut held = BTreeMap::new();
        let mut automatic = Vec::new();
        for (node, member) in membership.members.iter().filter(|(_, m)| m.is_counted()) {
            match (&member.registration.placement.declared, rules.assignment) {
                (Some(role), _) => {
                    roles.insert(*node, PlannedRole::Declared(role.clone()));
                }
                (None, Assignment::Declared) => {
                    held.insert(*node, HoldReason::NotDeclared);
                }
                (None, Assignment::Automatic) => automatic.push(member),
            }
        }
        let plan = plan_automatic(automatic, &rules.policy, current, &mut held)?;
        let nodes: BTreeMap<MemberId, NodeId> =
            membership.members.keys().map(|node| (member_id(*node), *node)).collect();
        for (id, role) in &plan.roles {
            roles.insert(nodes[id], PlannedRole::Automatic(*role));
        }
        let moves = plan.moves.iter().map(|planned| PlannedMove {
            node: nodes[&planned.member],
            from: planned.from,
            to: planned.to,
            needs_drain: planned.needs_drain,
        });
        let moves = moves.collect();
        let reasons = plan.reasons.into_iter().map(|(id, reasons)| (nodes[&id], reasons)).collect();
        Ok(Self { scale: plan.scale, roles, moves, reasons, held })
    }
}

/// Plans the members. The latest newcomers go without a role until the others can be planned.
fn plan_automatic(
    mut members: Vec<&Member>,
    policy: &Policy,
    current: Option<&ClusterPlan>,
    held: &mut BTreeMap<NodeId, HoldReason>,
) -> Result<RolePlan, PlanRefusal> {
    members.sort_by_key(|member| member.join_order);
    loop {
        let inputs: Vec<planner::Member> =
            members.iter().map(|member| planner_member(member, current)).collect();
        let refusal = match planner::plan(&inputs, policy) {
            Ok(plan) => match plan.uncovered.first() {
                None => return Ok(plan),
                Some(role) => PlanRefusal::Uncovered(*role),
            },
            Err(error) => PlanRefusal::Planner(error),
        };
        let Some(newcomer) = inputs.iter().rposition(|member| member.role.is_none()) else {
            return Err(refusal);
        };
        held.insert(members.remove(newcomer).registration.node, HoldReason::Unplaceable);
    }
}

fn member_id(node: NodeId) -> MemberId {
    MemberId(node.to_string())
}

/// The role of a member that has none yet is the planned one: whether its agent was fast enough to
/// carry the role out before the next node joined must not change the roles of the others.
fn present_role(member: &Member, current: Option<&ClusterPlan>) -> Option<Role> {
    let planned = || match current?.roles.get(&member.registration.node)? {
        PlannedRole::Automatic(role) => Some(*role),
        PlannedRole::Declared(_) => None,
    };
    member.assigned.or_else(planned)
}

fn planner_member(member: &Member, current: Option<&ClusterPlan>) -> planner::Member {
    let registration = &member.registration;
    let placement = &registration.placement;
    let mut forbid: BTreeSet<Role> = placement.forbid.clone();
    // One record that contradicts itself must not stop the plan of the whole cluster.
    forbid.remove(&Role::Monolith);
    if let Some(pin) = placement.pin {
        forbid.remove(&pin);
    }
    planner::Member {
        id: member_id(registration.node),
        join_order: member.join_order,
        resources: registration.claims.resources,
        preferred: registration.claims.preferred,
        pin: placement.pin,
        forbid,
        role: present_role(member, current),
        draining: member.standing == crate::membership::Standing::Draining,
    }
}

/// The identity of a plan, as agents remember and compare it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlanReference {
    pub cluster: ClusterId,
    pub generation: u64,
    pub hash: PlanHash,
}

/// Why an agent refuses a plan. Its role stays as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum OfferRefusal {
    #[error("the plan belongs to cluster {}, this node to {}", offered.short(), own.short())]
    ForeignCluster { offered: ClusterId, own: ClusterId },
    #[error(
        "the plan has generation {offered}, this node has carried out {applied}; the controller \
         may have been restored from a backup"
    )]
    Older { offered: u64, applied: u64 },
    #[error("two plans have generation {0}; the controller may have been restored from a backup")]
    Conflicting(u64),
}

/// Whether an agent of cluster `own` carries out the offered plan: true if the plan is newer than
/// the applied one, false if it is the same.
pub fn supersedes(
    own: ClusterId,
    applied: Option<&PlanReference>,
    offered: &PlanReference,
) -> Result<bool, OfferRefusal> {
    if offered.cluster != own {
        return Err(OfferRefusal::ForeignCluster { offered: offered.cluster, own });
    }
    let Some(applied) = applied else { return Ok(true) };
    match offered.generation.cmp(&applied.generation) {
        std::cmp::Ordering::Greater => Ok(true),
        std::cmp::Ordering::Equal if offered.hash == applied.hash => Ok(false),
        std::cmp::Ordering::Equal => Err(OfferRefusal::Conflicting(offered.generation)),
        std::cmp::Ordering::Less => {
            Err(OfferRefusal::Older { offered: offered.generation, applied: applied.generation })
        }
    }
}
