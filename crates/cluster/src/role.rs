//! The roles that the planner assigns, and how many members of a cluster have each.
//!
//! Declared roles (any name, from the site) do not belong here: the planner leaves them alone.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::resources::Resources;

/// The task of a member in its cluster. A member has exactly one.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
// Declared roles are `Role` in the same documents.
#[schemars(rename = "ClusterRole")]
pub enum Role {
    /// Everything on one machine: the only role of a cluster of one.
    Monolith,
    Edge,
    Core,
    Data,
    Compute,
}

/// The size class of a cluster.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Scale {
    /// No member.
    Empty,
    /// One member.
    Single,
    /// Two or three members.
    Small,
    /// Four to six members.
    Medium,
    /// Seven and more members.
    Distributed,
}

/// How many members of a cluster have a role.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// The number to reach. A role with a lower bound is required.
    pub lower: usize,
    /// The number above which further members are better used elsewhere.
    pub upper: usize,
}

/// From this number of members on, resources decide; below it, the order of joining does.
pub(crate) const RESOURCES_COUNT_FROM: usize = 4;

impl Role {
    /// The roles of clusters of two and more members, by rank.
    pub const SHARED: [Self; 4] = [Self::Edge, Self::Core, Self::Data, Self::Compute];

    /// The roles that a cluster of `members` uses, by rank.
    pub fn in_play(members: usize) -> &'static [Self] {
        match members {
            0 => &[],
            1 => &[Self::Monolith],
            2 => &Self::SHARED[..2],
            3 => &Self::SHARED[..3],
            _ => &Self::SHARED,
        }
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Monolith => "monolith",
            Self::Edge => "edge",
            Self::Core => "core",
            Self::Data => "data",
            Self::Compute => "compute",
        }
    }

    /// Whether a member that leaves the role must hand over state first. The data of a monolith
    /// stays where it is until a data member exists, so leaving that role moves nothing.
    pub fn is_stateful(self) -> bool {
        matches!(self, Self::Core | Self::Data)
    }

    /// The number of members of a cluster of `members` with this role.
    ///
    /// No bound falls as a cluster grows, and from three members on the sum of the lower bounds
    /// rises by at most one with each member: this is why a join moves no existing member.
    pub fn bounds(self, members: usize) -> Bounds {
        let third = members.div_ceil(3);
        let lower = match self {
            Self::Monolith => usize::from(members == 1),
            Self::Edge => steps(members, &[2, 7, 15]),
            Self::Core => steps(members, &[2, 5, 9]),
            Self::Data => steps(members, &[3, 6, 10]),
            Self::Compute => steps(members, &[8]),
        };
        let upper = match self {
            Self::Core | Self::Data if members >= RESOURCES_COUNT_FROM => lower.max(third),
            Self::Compute => members,
            _ => lower,
        };
        Bounds { lower, upper }
    }

    /// The least resources for this role, unless the policy has others.
    pub fn minimum(self) -> Resources {
        let (cores, memory_gib, disk_gib) = match self {
            Self::Monolith => (0, 0, 0),
            Self::Edge => (2, 4, 50),
            Self::Core => (4, 8, 100),
            Self::Data => (4, 16, 500),
            Self::Compute => (2, 4, 20),
        };
        Resources { cores, memory_gib, disk_gib, ..Resources::default() }
    }

    /// The cost of a move out of this role, relative to other moves.
    pub(crate) fn move_weight(self) -> i64 {
        match self {
            Self::Monolith => 0,
            Self::Compute => 1,
            Self::Edge => 3,
            Self::Core => 10,
            Self::Data => 100,
        }
    }

    /// Later members get roles of higher rank, if nothing else decides.
    pub(crate) fn rank(self) -> i64 {
        match self {
            Self::Monolith | Self::Edge => 0,
            Self::Core => 1,
            Self::Data => 2,
            Self::Compute => 3,
        }
    }
}

/// How many of the thresholds a cluster of `members` has reached.
fn steps(members: usize, thresholds: &[usize]) -> usize {
    thresholds.iter().filter(|threshold| members >= **threshold).count()
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Scale {
    pub fn of(members: usize) -> Self {
        match members {
            0 => Self::Empty,
            1 => Self::Single,
            2..=3 => Self::Small,
            4..=6 => Self::Medium,
            _ => Self::Distributed,
        }
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Empty => "empty",
            Self::Single => "single",
            Self::Small => "small",
            Self::Medium => "medium",
            Self::Distributed => "distributed",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Role; 5] = [Role::Monolith, Role::Edge, Role::Core, Role::Data, Role::Compute];

    /// Property P13 of the planner.
    #[test]
    fn bounds_rise_with_the_cluster_by_one_member_at_most() {
        let lower_sum = |n| Role::SHARED.iter().map(|role| role.bounds(n).lower).sum::<usize>();
        for n in 2..1000 {
            for role in Role::SHARED {
                let now = role.bounds(n);
                let next = role.bounds(n + 1);
                assert!(now.lower <= next.lower && now.upper <= next.upper, "{role} at {n}");
                assert!(now.lower <= now.upper, "{role} at {n}");
            }
            assert!(lower_sum(n) <= n, "{n}");
            assert!(n < 3 || lower_sum(n + 1) <= lower_sum(n) + 1, "{n}");
        }
    }

    #[test]
    fn required_roles_are_in_play() {
        for n in 0..20 {
            let required = ALL.into_iter().filter(|role| role.bounds(n).lower > 0);
            for role in required {
                assert!(Role::in_play(n).contains(&role), "{role} at {n}");
            }
        }
    }

    #[test]
    fn role_and_scale_are_printed_as_they_are_serialized() {
        for role in ALL {
            assert_eq!(serde_json::to_value(role).unwrap(), role.as_str());
        }
        for n in [0, 1, 2, 3, 4, 6, 7, 100] {
            assert_eq!(serde_json::to_value(Scale::of(n)).unwrap(), Scale::of(n).as_str());
        }
    }
}
