//! The cost of a role for a member: a vector of which an earlier part decides before all later
//! ones. The planner finds the roles whose costs have the smallest sum.

use std::ops::{Add, Neg, Sub};

use super::{Member, Mode, Policy};
use crate::role::{RESOURCES_COUNT_FROM, Role};

/// A cost, compared part by part.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Cost([i64; 8]);

/// The parts of a cost, whose order depends on the mode.
#[derive(Debug, Clone, Copy, Default)]
struct Parts {
    /// Required roles without a member.
    uncovered: i64,
    /// Members that leave `data`.
    leaves_data: i64,
    /// The weight of moves.
    moves: i64,
    /// Members that come to a role for which they are too small.
    misfits: i64,
    /// Members missing to lower bounds or beyond upper ones.
    out_of_bounds: i64,
    /// Wishes that are not fulfilled.
    missed_wishes: i64,
    /// How badly the hardware fits.
    unfitness: i64,
    /// How far the ranks of roles are from the order of joining.
    disorder: i64,
}

impl Parts {
    fn cost(self, mode: Mode) -> Cost {
        let Self { uncovered, leaves_data, moves, misfits, out_of_bounds, .. } = self;
        let [third, fourth, fifth] = match mode {
            Mode::Keep => [moves, misfits, out_of_bounds],
            Mode::Rebalance => [misfits, out_of_bounds, moves],
        };
        Cost([
            uncovered,
            leaves_data,
            third,
            fourth,
            fifth,
            self.missed_wishes,
            self.unfitness,
            self.disorder,
        ])
    }
}

impl Cost {
    /// The cost of a role for the member at place `join_rank` of a cluster of `members`; none if
    /// the member must not have it.
    pub(super) fn of_role(
        member: &Member,
        join_rank: i64,
        role: Role,
        members: usize,
        policy: &Policy,
    ) -> Option<Self> {
        let in_play = Role::in_play(members);
        let pin = member.pin.filter(|pin| in_play.contains(pin));
        if pin.is_some_and(|pin| pin != role) || member.forbid.contains(&role) {
            return None;
        }
        let left = member.role.filter(|present| *present != role);
        let preferred = member.preferred.filter(|preferred| in_play.contains(preferred));
        let resources_count = members >= RESOURCES_COUNT_FROM;
        let is_misfit = resources_count
            && member.role != Some(role)
            && !member.resources.reach(&policy.minimum(role));
        let unfitness = if resources_count { -member.resources.affinity(role) } else { 0 };
        let parts = Parts {
            leaves_data: i64::from(left == Some(Role::Data)),
            moves: left.map_or(0, Role::move_weight),
            misfits: i64::from(is_misfit),
            missed_wishes: i64::from(preferred.is_some_and(|preferred| preferred != role)),
            unfitness,
            disorder: -join_rank * role.rank(),
            ..Parts::default()
        };
        Some(parts.cost(policy.mode))
    }

    /// The cost of the `count`th member of a role, which never falls as `count` rises. `before` is
    /// the number of members that have the role now: no member must leave because of a bound.
    pub(super) fn of_slot(
        role: Role,
        count: usize,
        before: usize,
        members: usize,
        mode: Mode,
    ) -> Self {
        let bounds = role.bounds(members);
        let upper = bounds.upper.max(before);
        let out_of_bounds = match count {
            count if count <= bounds.lower => -1,
            count if count > upper => 1,
            _ => 0,
        };
        let uncovered = if count == 1 && bounds.lower > 0 { -1 } else { 0 };
        Parts { uncovered, out_of_bounds, ..Parts::default() }.cost(mode)
    }
}

impl Add for Cost {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self(std::array::from_fn(|part| self.0[part] + other.0[part]))
    }
}

impl Sub for Cost {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        Self(std::array::from_fn(|part| self.0[part] - other.0[part]))
    }
}

impl Neg for Cost {
    type Output = Self;

    fn neg(self) -> Self {
        Self::default() - self
    }
}
