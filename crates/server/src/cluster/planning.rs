//! The plan in force: how the next one is made, and which of its moves are carried out now.
//!
//! A move that leaves state behind waits until an operator has agreed, every move before it is
//! done, and another member holds the role already. So one such move is under way at a time, and a
//! role keeps a holder, unless two members exchange their roles.

use std::collections::BTreeSet;
use std::sync::Arc;

use hoist_api::cluster::Assignment;
use hoist_cluster::cluster_plan::{ClusterPlan, PlanRefusal, PlanRules, PlannedMove, PlannedRole};
use hoist_cluster::config;
use hoist_cluster::id::NodeId;
use hoist_cluster::membership::{Member, Membership, Placement, Standing};
use hoist_cluster::planner::{Mode, Policy};
use hoist_site::Roster;

use super::records::{ClusterState, RecordChange, StoredPlan};
use super::snapshot::Snapshot;

impl ClusterState {
    pub(super) fn mode(&self) -> Mode {
        if self.rebalance_on_join { Mode::Rebalance } else { Mode::Keep }
    }

    fn rules(&self) -> PlanRules {
        let assignment = match self.assignment {
            Assignment::Automatic => config::Assignment::Automatic,
            Assignment::Declared => config::Assignment::Declared,
        };
        PlanRules { assignment, policy: Policy { mode: self.mode(), ..Policy::default() } }
    }
}

/// The changes that bring the plan in step with a snapshot; none if it is.
#[derive(Debug, Default)]
pub(super) struct Replan {
    pub(super) changes: Vec<RecordChange>,
    /// Why the plan stays as it is although the members have changed.
    pub(super) refusal: Option<PlanRefusal>,
}

impl Replan {
    /// The plan that this leads to.
    pub(super) fn plan(&self) -> Option<&Arc<StoredPlan>> {
        self.changes.iter().find_map(|change| match change {
            RecordChange::Plan(plan) => Some(plan),
            _ => None,
        })
    }
}

/// Plans the members of a snapshot, with the roles that the site declares now. A refusal keeps the
/// current plan: members keep their roles.
pub(super) fn replan(snapshot: &Snapshot, roster: &Roster, consent: &BTreeSet<NodeId>) -> Replan {
    let Some(state) = &snapshot.state else { return Replan::default() };
    let mut placed = snapshot.clone();
    let mut changes = Vec::new();
    for change in declared_roles(snapshot, roster) {
        placed.apply(change.clone());
        changes.push(change);
    }
    match next_plan(state, placed.plan.as_deref(), &placed.membership, consent) {
        Ok(next) => {
            changes.extend(next.map(|plan| RecordChange::Plan(Arc::new(plan))));
            Replan { changes, refusal: None }
        }
        Err(refusal) => Replan { changes, refusal: Some(refusal) },
    }
}

/// Members whose declared role in the site differs from the one in their record.
fn declared_roles(snapshot: &Snapshot, roster: &Roster) -> Vec<RecordChange> {
    let membership = &snapshot.membership;
    let mut changes = Vec::new();
    for (node, member) in membership.members.iter().filter(|(_, member)| member.may_connect()) {
        let placement = &member.registration.placement;
        let declared = declared_role(roster, &member.registration.name);
        if declared == placement.declared {
            continue;
        }
        let placement = Placement { declared, ..placement.clone() };
        if let Ok(transition) = membership.place(*node, placement) {
            changes.extend(snapshot.records(transition.changes));
        }
    }
    changes
}

/// The role that the site declares for a node.
pub(super) fn declared_role(
    roster: &Roster,
    name: &hoist_model::Name,
) -> Option<hoist_model::Role> {
    roster.by_name(name).and_then(|node| node.spec.role.clone())
}

fn next_plan(
    state: &ClusterState,
    current: Option<&StoredPlan>,
    membership: &Membership,
    consent: &BTreeSet<NodeId>,
) -> Result<Option<StoredPlan>, PlanRefusal> {
    let plan = current.map(|stored| &stored.plan);
    if plan.is_none() && !membership.members.values().any(Member::is_counted) {
        return Ok(None);
    }
    let parent = plan.map(ClusterPlan::hash);
    let next = ClusterPlan::next(state.uid, plan, parent, membership, &state.rules())?;
    let Some(plan) = next.as_ref().or(plan) else { return Ok(None) };
    let is_kept = |node: &NodeId| {
        let of = |stored: &StoredPlan| stored.plan.move_of(*node).copied();
        current.and_then(of) == plan.move_of(*node).copied()
    };
    let kept = |nodes: &BTreeSet<NodeId>| -> BTreeSet<NodeId> {
        nodes.iter().filter(|node| is_kept(node)).copied().collect()
    };
    let moving = |nodes: &BTreeSet<NodeId>| -> BTreeSet<NodeId> {
        nodes.iter().filter(|node| plan.move_of(**node).is_some()).copied().collect()
    };
    let mut consented = current.map(|stored| kept(&stored.consented)).unwrap_or_default();
    consented.extend(consent);
    let consented = moving(&consented);
    let mut released = current.map(|stored| kept(&stored.released)).unwrap_or_default();
    released.extend(released_moves(plan, membership, &consented));
    let released = moving(&released);
    if next.is_none() && current.is_some_and(|c| c.consented == consented && c.released == released)
    {
        return Ok(None);
    }
    let mut plan = plan.clone();
    if next.is_none() {
        // Members compare generations: an instruction that changes needs another one.
        plan.generation += 1;
        plan.parent = parent;
    }
    Ok(Some(StoredPlan { plan, consented, released }))
}

/// The moves that may start now.
fn released_moves(
    plan: &ClusterPlan,
    membership: &Membership,
    consented: &BTreeSet<NodeId>,
) -> BTreeSet<NodeId> {
    let may_start = |(index, planned): &(usize, &PlannedMove)| {
        !planned.needs_drain
            || *index == 0
                && consented.contains(&planned.node)
                && has_other_holder(plan, membership, planned)
    };
    let open = plan.moves.iter().filter(|planned| is_open(planned, membership));
    open.enumerate().filter(may_start).map(|(_, planned)| planned.node).collect()
}

/// Whether the member has not carried the move out yet. Moves stay in the plan when they are done.
pub(super) fn is_open(planned: &PlannedMove, membership: &Membership) -> bool {
    let member = membership.members.get(&planned.node);
    member.is_some_and(|member| member.assigned != Some(planned.to))
}

/// Whether another member has taken the role over that this one leaves, if any can do so first.
fn has_other_holder(plan: &ClusterPlan, membership: &Membership, planned: &PlannedMove) -> bool {
    let is_planned = |role: &PlannedRole| *role == PlannedRole::Automatic(planned.from);
    let holders = plan.roles.iter().filter(|(_, role)| is_planned(role)).map(|(node, _)| *node);
    let holders: Vec<NodeId> = holders.collect();
    let holds = |node: &NodeId| {
        membership.members.get(node).is_some_and(|member| member.assigned == Some(planned.from))
    };
    // Two members that exchange stateful roles would wait for each other for ever.
    let waits_too = |node: &NodeId| plan.move_of(*node).is_some_and(|other| other.needs_drain);
    holders.iter().any(holds) || holders.iter().all(waits_too)
}

/// The part of a plan for one member.
impl StoredPlan {
    /// The role that the member has to have now.
    pub(super) fn role_of(&self, member: &Member) -> Option<String> {
        let node = member.registration.node;
        match self.plan.roles.get(&node) {
            Some(PlannedRole::Declared(role)) => Some(role.to_string()),
            Some(PlannedRole::Automatic(to)) => {
                let waiting = self.plan.move_of(node).filter(|_| self.is_waiting(node));
                let role = waiting.map_or(*to, |planned| planned.from);
                Some(role.to_string())
            }
            // The planner takes a draining member for absent; it works on until it leaves.
            None if member.standing == Standing::Draining => {
                member.assigned.map(|role| role.to_string())
            }
            None => None,
        }
    }

    /// The planned role, if the member has to take it on now and has not yet.
    pub(super) fn due_role(&self, member: &Member) -> Option<hoist_cluster::role::Role> {
        let node = member.registration.node;
        match self.plan.roles.get(&node) {
            Some(PlannedRole::Automatic(role))
                if !self.is_waiting(node) && member.assigned != Some(*role) =>
            {
                Some(*role)
            }
            _ => None,
        }
    }

    /// Whether the move of a member waits.
    pub(super) fn is_waiting(&self, node: NodeId) -> bool {
        self.plan.move_of(node).is_some() && !self.released.contains(&node)
    }
}

/// The move of one member.
trait Moves {
    fn move_of(&self, node: NodeId) -> Option<&PlannedMove>;
}

impl Moves for ClusterPlan {
    fn move_of(&self, node: NodeId) -> Option<&PlannedMove> {
        self.moves.iter().find(|planned| planned.node == node)
    }
}

#[cfg(test)]
mod tests {
    use hoist_cluster::id::{ClusterId, Pin};
    use hoist_cluster::membership::{Claims, Registration, RequestId};
    use hoist_cluster::role::Role;
    use jiff::Timestamp;

    use super::*;

    fn node(index: u8) -> NodeId {
        NodeId::of_key(&[index])
    }

    fn joined(membership: Membership, index: u8) -> Membership {
        let request = RequestId::from_random([index; 16]);
        let now = Timestamp::UNIX_EPOCH;
        let registration = Registration {
            node: node(index),
            request,
            key: Pin::of_key(&[index]),
            name: format!("n{index}").parse().unwrap(),
            enrollment: None,
            claims: Claims::default(),
            placement: Placement::default(),
        };
        let changes = membership.register(&registration, now).unwrap().changes;
        let membership = membership.with(&changes);
        let changes = membership.accept(node(index), request, now).unwrap().changes;
        let membership = membership.with(&changes);
        let changes = membership.confirm(node(index), now).unwrap().changes;
        membership.with(&changes)
    }

    fn state() -> ClusterState {
        ClusterState {
            name: "blue".parse().unwrap(),
            uid: ClusterId::from_random([1; 16]),
            pin: Pin::of_key(b"root"),
            founded: Timestamp::UNIX_EPOCH,
            assignment: Assignment::Automatic,
            rebalance_on_join: false,
            authority: Vec::new(),
        }
    }

    fn next(
        current: Option<&StoredPlan>,
        membership: &Membership,
        consent: &[NodeId],
    ) -> Option<StoredPlan> {
        let consent = consent.iter().copied().collect();
        next_plan(&state(), current, membership, &consent).unwrap()
    }

    /// Every member takes on the role that it is told.
    fn obeyed(mut membership: Membership, plan: &StoredPlan) -> Membership {
        for member in membership.members.clone().values() {
            if let Some(role) = plan.due_role(member) {
                let node = member.registration.node;
                let changes = membership.carry_out(node, role).unwrap().changes;
                membership = membership.with(&changes);
            }
        }
        membership
    }

    #[test]
    fn stateful_move_waits_for_consent_and_for_its_successor() {
        let mut membership = Membership::default();
        let mut plan = None;
        for index in 1..=3 {
            membership = joined(membership, index);
            while let Some(next) = next(plan.as_ref(), &membership, &[]) {
                membership = obeyed(membership, &next);
                plan = Some(next);
            }
        }
        let mut plan = plan.unwrap();
        assert_eq!(plan.role_of(&membership.members[&node(3)]).as_deref(), Some("data"));
        let placement = Placement { pin: Some(Role::Edge), ..Placement::default() };
        let changes = membership.place(node(3), placement).unwrap().changes;
        membership = membership.with(&changes);
        plan = next(Some(&plan), &membership, &[]).unwrap();
        assert!(plan.is_waiting(node(3)), "{plan:#?}");
        assert_eq!(plan.role_of(&membership.members[&node(3)]).as_deref(), Some("data"));
        assert_eq!(next(Some(&plan), &membership, &[]), None);
        let moving: Vec<NodeId> = plan.plan.moves.iter().map(|planned| planned.node).collect();
        let mut rounds = 0;
        while let Some(after) = next(Some(&plan), &membership, &moving) {
            assert!(after.plan.generation > plan.plan.generation);
            assert_eq!(after.plan.parent, Some(plan.plan.hash()));
            membership = obeyed(membership, &after);
            plan = after;
            let holders = membership.members.values();
            let data = holders.filter(|member| member.assigned == Some(Role::Data)).count();
            assert!(data >= 1, "the data role lost its last holder");
            rounds += 1;
            assert!(rounds < 10, "{plan:#?}");
        }
        assert_eq!(membership.members[&node(3)].assigned, Some(Role::Edge));
        assert!(!plan.plan.moves.iter().any(|planned| is_open(planned, &membership)));
    }
}
