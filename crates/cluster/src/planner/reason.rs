//! Why a member has its role, for people.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Member, Policy, shortfalls};
use crate::resources::Shortfall;
use crate::role::{RESOURCES_COUNT_FROM, Role};

/// One reason for a member's role. The first reason of a member decided.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "reason", rename_all = "snake_case")]
pub enum Reason {
    /// A cluster of one has only one role.
    OnlyMember,
    Pinned,
    /// The member keeps its present role.
    Kept,
    /// A cluster of this size does not use the role that the member had.
    RoleNotInPlay {
        from: Role,
    },
    /// The member must not have its former role any more.
    FormerRoleForbidden {
        from: Role,
    },
    /// A required role had no member.
    MovedToCover {
        from: Role,
    },
    /// The move brings a role to its lower bound, or serves a wish or the hardware better.
    Rebalanced {
        from: Role,
    },
    /// A newcomer is the first member of a required role.
    CoversRequired,
    /// A newcomer is counted for the lower bound of its role.
    FillsLower,
    PreferenceHonoured,
    /// The hardware fits this role best.
    BestFit {
        score: i64,
    },
    /// In a small cluster the order of joining decides.
    JoinOrder,
    PreferenceNotMet {
        preferred: Role,
        because: Obstacle,
    },
    PinDeferred {
        pin: Role,
    },
    /// The member has less than the least resources for its role.
    Undersized {
        shortfalls: Vec<Shortfall>,
    },
}

/// Why a wish is not fulfilled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Obstacle {
    /// A cluster of this size does not use the role.
    NotInPlay,
    Pinned,
    Forbidden,
    /// The member is too small for the role.
    Undersized,
    /// The role has as many members as it is useful to have.
    Full,
    /// Another role needs the member more.
    NeededElsewhere,
    /// A member in a role is not moved for a wish.
    NotMoved,
}

/// The reasons for the role of one member, in a cluster whose members get `roles`.
pub(super) fn reasons(
    members: &[Member],
    roles: &[Role],
    index: usize,
    policy: &Policy,
) -> Vec<Reason> {
    let member = &members[index];
    let role = roles[index];
    let count = members.len();
    let in_play = Role::in_play(count);
    let mut reasons = vec![deciding(members, roles, index)];
    if let Some(preferred) = member.preferred {
        if preferred != role {
            let because = obstacle(members, roles, index, preferred, policy);
            reasons.push(Reason::PreferenceNotMet { preferred, because });
        } else if reasons[0] != Reason::PreferenceHonoured {
            reasons.push(Reason::PreferenceHonoured);
        }
    }
    if let Some(pin) = member.pin.filter(|pin| !in_play.contains(pin)) {
        reasons.push(Reason::PinDeferred { pin });
    }
    let shortfalls = shortfalls(member, role, count, policy);
    if !shortfalls.is_empty() {
        reasons.push(Reason::Undersized { shortfalls });
    }
    reasons
}

fn deciding(members: &[Member], roles: &[Role], index: usize) -> Reason {
    let member = &members[index];
    let role = roles[index];
    let count = members.len();
    if count == 1 {
        return Reason::OnlyMember;
    }
    if member.pin == Some(role) {
        return Reason::Pinned;
    }
    let is_required = role.bounds(count).lower > 0;
    let had_role = |member: &&Member| member.role == Some(role);
    match member.role {
        Some(present) if present == role => Reason::Kept,
        Some(from) if !Role::in_play(count).contains(&from) => Reason::RoleNotInPlay { from },
        Some(from) if member.forbid.contains(&from) => Reason::FormerRoleForbidden { from },
        Some(from) if is_required && !members.iter().any(|other| had_role(&other)) => {
            Reason::MovedToCover { from }
        }
        Some(from) => Reason::Rebalanced { from },
        None => newcomer(members, roles, index),
    }
}

fn newcomer(members: &[Member], roles: &[Role], index: usize) -> Reason {
    let member = &members[index];
    let role = roles[index];
    let count = members.len();
    let holders = roles.iter().filter(|other| **other == role).count();
    let lower = role.bounds(count).lower;
    if holders == 1 && lower > 0 {
        Reason::CoversRequired
    } else if holders <= lower {
        Reason::FillsLower
    } else if member.preferred == Some(role) {
        Reason::PreferenceHonoured
    } else if count < RESOURCES_COUNT_FROM {
        Reason::JoinOrder
    } else {
        Reason::BestFit { score: member.resources.affinity(role) }
    }
}

fn obstacle(
    members: &[Member],
    roles: &[Role],
    index: usize,
    preferred: Role,
    policy: &Policy,
) -> Obstacle {
    let member = &members[index];
    let role = roles[index];
    let count = members.len();
    let holders = roles.iter().filter(|other| **other == preferred).count();
    if !Role::in_play(count).contains(&preferred) {
        Obstacle::NotInPlay
    } else if member.pin == Some(role) {
        Obstacle::Pinned
    } else if member.forbid.contains(&preferred) {
        Obstacle::Forbidden
    } else if member.role == Some(role) {
        Obstacle::NotMoved
    } else if !shortfalls(member, preferred, count, policy).is_empty() {
        Obstacle::Undersized
    } else if holders >= preferred.bounds(count).upper {
        Obstacle::Full
    } else {
        Obstacle::NeededElsewhere
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OnlyMember => f.write_str("the only member"),
            Self::Pinned => f.write_str("pinned"),
            Self::Kept => f.write_str("keeps its role"),
            Self::RoleNotInPlay { from } => {
                write!(f, "a cluster of this size does not use `{from}`")
            }
            Self::FormerRoleForbidden { from } => write!(f, "`{from}` is forbidden for it"),
            Self::MovedToCover { from } => write!(f, "moved from `{from}`: the role had no member"),
            Self::Rebalanced { from } => write!(f, "moved from `{from}` for a better balance"),
            Self::CoversRequired => f.write_str("the role had no member"),
            Self::FillsLower => f.write_str("the role had too few members"),
            Self::PreferenceHonoured => f.write_str("preferred"),
            Self::BestFit { score } => write!(f, "fits its hardware best (score {score})"),
            Self::JoinOrder => f.write_str("by the order of joining"),
            Self::PreferenceNotMet { preferred, because } => {
                write!(f, "not `{preferred}` as preferred: {because}")
            }
            Self::PinDeferred { pin } => {
                write!(f, "its pin to `{pin}` waits for a cluster that uses this role")
            }
            Self::Undersized { shortfalls } => {
                let texts: Vec<String> = shortfalls.iter().map(ToString::to_string).collect();
                write!(f, "below the minimum: {}", texts.join(", "))
            }
        }
    }
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotInPlay => "a cluster of this size does not use it",
            Self::Pinned => "pinned to another role",
            Self::Forbidden => "it is forbidden",
            Self::Undersized => "too small for it",
            Self::Full => "it has enough members",
            Self::NeededElsewhere => "needed elsewhere",
            Self::NotMoved => "members are not moved for a wish",
        })
    }
}
