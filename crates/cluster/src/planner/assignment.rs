//! The roles with the smallest sum of costs, as a minimum-cost flow.
//!
//! The residual graph has only one vertex a role, and one for the end: an arc from role to role
//! weighs as much as the cheapest member to shift between them, an arc from a role to the end as
//! much as one more member of the role. An assignment is optimal if and only if this graph has no
//! cycle of negative cost. The search starts from the present roles, so that of two equally good
//! assignments the present one stays.

use super::cost::Cost;
use super::{Member, PlanError, Policy};
use crate::role::Role;

/// Roles of members, as indexes of the roles in play.
#[derive(Debug)]
pub(super) struct Assignment<'a> {
    members: &'a [Member],
    policy: &'a Policy,
    in_play: &'static [Role],
    /// By member, the index of its role.
    chosen: Vec<Option<usize>>,
    /// By role, the number of members that have it.
    counts: Vec<usize>,
    /// By role, the number of members that had it before.
    before: Vec<usize>,
}

/// An arc of the residual graph, with the change that it stands for.
#[derive(Debug, Clone, Copy)]
struct Arc {
    from: usize,
    to: usize,
    cost: Cost,
    change: Change,
}

#[derive(Debug, Clone, Copy)]
enum Change {
    /// A member goes to another role.
    Shift { member: usize, to: usize },
    /// A role has one member more.
    Fill { role: usize },
    /// A role does without one member.
    Release { role: usize },
}

/// The cheapest way to a vertex.
#[derive(Debug, Clone, Copy)]
struct Way {
    cost: Cost,
    /// The last change, with the vertex that it leaves; none where the way starts.
    last: Option<(usize, Change)>,
}

impl<'a> Assignment<'a> {
    /// The best roles of these members, who are in the order of joining.
    pub(super) fn best(members: &'a [Member], policy: &'a Policy) -> Result<Self, PlanError> {
        let in_play = Role::in_play(members.len());
        let present = |member: &Member| in_play.iter().position(|r| Some(*r) == member.role);
        let mut before = vec![0; in_play.len()];
        for role in members.iter().filter_map(present) {
            before[role] += 1;
        }
        let mut assignment = Self {
            members,
            policy,
            in_play,
            chosen: vec![None; members.len()],
            counts: vec![0; in_play.len()],
            before,
        };
        for (index, member) in members.iter().enumerate() {
            let kept = present(member).filter(|role| assignment.cost(index, *role).is_some());
            if let Some(role) = kept {
                assignment.chosen[index] = Some(role);
                assignment.counts[role] += 1;
            }
        }
        while let Some(cycle) = assignment.improving_cycle() {
            assignment.follow(&cycle);
        }
        for index in 0..members.len() {
            if assignment.chosen[index].is_none() {
                assignment.insert(index)?;
            }
        }
        Ok(assignment)
    }

    /// By member, its role. Every member has one after [`Self::best`].
    pub(super) fn into_roles(self) -> Vec<Role> {
        self.chosen.into_iter().flatten().map(|role| self.in_play[role]).collect()
    }

    fn cost(&self, member: usize, role: usize) -> Option<Cost> {
        let join_rank = i64::try_from(member).unwrap_or(i64::MAX);
        let role = self.in_play[role];
        Cost::of_role(&self.members[member], join_rank, role, self.members.len(), self.policy)
    }

    fn slot_cost(&self, role: usize, count: usize) -> Cost {
        let members = self.members.len();
        let mode = self.policy.mode;
        Cost::of_slot(self.in_play[role], count, self.before[role], members, mode)
    }

    /// The vertex after those of the roles.
    fn end(&self) -> usize {
        self.in_play.len()
    }

    fn arcs(&self) -> Vec<Arc> {
        let end = self.end();
        let mut arcs = self.shifts();
        for role in 0..end {
            let count = self.counts[role];
            let cost = self.slot_cost(role, count + 1);
            arcs.push(Arc { from: role, to: end, cost, change: Change::Fill { role } });
            if count > 0 {
                let cost = -self.slot_cost(role, count);
                arcs.push(Arc { from: end, to: role, cost, change: Change::Release { role } });
            }
        }
        arcs
    }

    /// For each pair of roles, the cheapest member to shift.
    fn shifts(&self) -> Vec<Arc> {
        let roles = self.in_play.len();
        let mut cheapest: Vec<Option<Arc>> = vec![None; roles * roles];
        for (member, from) in self.chosen.iter().enumerate() {
            let Some(from) = *from else { continue };
            let Some(present) = self.cost(member, from) else { continue };
            for to in (0..roles).filter(|to| *to != from) {
                let Some(cost) = self.cost(member, to) else { continue };
                let cost = cost - present;
                let best = &mut cheapest[from * roles + to];
                if best.is_none_or(|known| cost < known.cost) {
                    *best = Some(Arc { from, to, cost, change: Change::Shift { member, to } });
                }
            }
        }
        cheapest.into_iter().flatten().collect()
    }

    /// A cycle of changes that lowers the sum of costs, if there is one.
    fn improving_cycle(&self) -> Option<Vec<Change>> {
        let arcs = self.arcs();
        let vertices = self.end() + 1;
        let mut ways = vec![Some(Way { cost: Cost::default(), last: None }); vertices];
        let relaxed = relax(&mut ways, &arcs);
        let before = |vertex: usize| ways[vertex].and_then(|way: Way| way.last);
        // A way that still gets shorter leads back into a cycle of negative cost.
        let mut vertex = relaxed?;
        for _ in 0..vertices {
            vertex = before(vertex)?.0;
        }
        let first = vertex;
        let mut cycle = Vec::new();
        loop {
            let (from, change) = before(vertex)?;
            cycle.push(change);
            vertex = from;
            if vertex == first {
                return Some(cycle);
            }
        }
    }

    /// Gives a role to a member without one, along the cheapest way.
    fn insert(&mut self, member: usize) -> Result<(), PlanError> {
        let start = |role| self.cost(member, role).map(|cost| Way { cost, last: None });
        let mut ways: Vec<Option<Way>> = (0..self.end()).map(start).collect();
        ways.push(None);
        let mut arcs = self.arcs();
        arcs.retain(|arc| arc.from != self.end());
        relax(&mut ways, &arcs);
        let mut vertex = self.end();
        let mut path = Vec::new();
        while let Some((from, change)) = ways[vertex].and_then(|way| way.last) {
            path.push(change);
            vertex = from;
        }
        if vertex == self.end() {
            let id = self.members[member].id.clone();
            let members = self.members.len();
            return Err(PlanError::NoRoleAllowed { member: id, members });
        }
        self.follow(&path);
        self.chosen[member] = Some(vertex);
        Ok(())
    }

    fn follow(&mut self, changes: &[Change]) {
        for change in changes {
            match *change {
                Change::Shift { member, to } => self.chosen[member] = Some(to),
                Change::Fill { role } => self.counts[role] += 1,
                Change::Release { role } => self.counts[role] -= 1,
            }
        }
    }
}

/// Shortens ways along arcs (Bellman and Ford), as often as there are vertices. Returns a vertex
/// whose way was shortened in the last round: only a cycle of negative cost does that.
fn relax(ways: &mut [Option<Way>], arcs: &[Arc]) -> Option<usize> {
    let mut shortened = None;
    for _ in 0..ways.len() {
        shortened = None;
        for arc in arcs {
            let Some(way) = ways[arc.from] else { continue };
            let cost = way.cost + arc.cost;
            if ways[arc.to].is_none_or(|known| cost < known.cost) {
                ways[arc.to] = Some(Way { cost, last: Some((arc.from, arc.change)) });
                shortened = Some(arc.to);
            }
        }
        if shortened.is_none() {
            break;
        }
    }
    shortened
}
