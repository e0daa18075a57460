//! The members of a cluster and the machines that ask to become one.
//!
//! [`Membership`] is a value. Each operation of `transition` reads it and returns a
//! [`Transition`]: the records to write, and an outcome for the caller. The caller writes all
//! records in one transaction and compares the [`Counters`] in it, so concurrent operations take
//! effect one after the other.
//!
//! Whether a member answers, certificates, and the roles of members do not belong here.

mod refusal;
#[cfg(test)]
mod tests;
mod transition;

use std::collections::{BTreeMap, BTreeSet};

use hoist_model::{Name, Role};
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use crate::id::{NodeId, Pin};
use crate::join_token::Enrollment;
use crate::resources::Resources;
use crate::role;
use crate::text_form::{as_text, hexadecimal_text};
pub use refusal::MembershipRefusal;
pub use transition::{Change, Outcome, Transition};

/// Most requests that wait for a decision. A flood of requests cannot fill the store.
pub const MAX_PENDING: usize = 100;
/// Most nodes that may connect.
pub const MAX_MEMBERS: usize = 10_000;
/// An accepted node that has not confirmed for so long is shown as stalled.
pub const STALLED_AFTER: SignedDuration = SignedDuration::from_mins(30);
/// Join orders and serials that are skipped after a restore: a backup does not know the last ones.
const RESTORE_GAP: u64 = 1_000;
/// Request ids that a pending request remembers as superseded.
const MAX_SUPERSEDED: usize = 8;

/// The id of one attempt to join, chosen at random by the joiner.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId([u8; 16]);

hexadecimal_text!(RequestId, "a request id; expected 32 hexadecimal digits");
as_text!(RequestId, "^[0-9a-fA-F]{32}$");

impl RequestId {
    pub const fn from_random(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }
}

/// The properties that a joiner claims.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Claims {
    pub resources: Resources,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preferred: Option<role::Role>,
}

/// Limits on the role of a node, from its token, the site and operators.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Placement {
    /// The role that an operator gives the member.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pin: Option<role::Role>,
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub forbid: BTreeSet<role::Role>,
    /// A role from the site, of any name. The planner leaves such a member alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub declared: Option<Role>,
}

/// A request to join. The caller must have verified the proof of the token and of the key.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Registration {
    pub node: NodeId,
    pub request: RequestId,
    /// The public key of the certificate request.
    pub key: Pin,
    pub name: Name,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enrollment: Option<Enrollment>,
    #[serde(default)]
    pub claims: Claims,
    /// The controller sets this. A value from the network must not get here.
    #[serde(default)]
    pub placement: Placement,
}

/// A registration that waits for a decision.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PendingRequest {
    pub registration: Registration,
    /// The place in the queue. A new request of the same node keeps it.
    pub arrival: u64,
    pub received: Timestamp,
    /// The member with the same machine and an older installation, which acceptance replaces.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replaces: Option<NodeId>,
    /// Earlier request ids of the same node, the latest last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub superseded: Vec<RequestId>,
}

/// An accepted node. The record stays after the node left, as evidence.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Member {
    pub registration: Registration,
    pub join_order: u64,
    /// The serial number of the present certificate.
    pub serial: u64,
    /// The planned role that the member has carried out; none for a newcomer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub assigned: Option<role::Role>,
    pub standing: Standing,
    pub accepted: Timestamp,
    pub last_seen: Timestamp,
}

/// The stored state of an accepted node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Standing {
    /// The node may connect and has not confirmed that it has its certificate.
    Accepted,
    Confirmed,
    Draining,
    Left,
    /// Another node takes the role and the join order.
    Replaced {
        by: NodeId,
        /// False until that node is accepted.
        inherited: bool,
    },
}

/// How a membership ended, as the node learns it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MembershipEnd {
    /// The id of the node may never join again.
    Expelled,
    Left,
    /// Another node has its place.
    Replaced,
}

impl MembershipEnd {
    pub const ALL: [Self; 3] = [Self::Expelled, Self::Left, Self::Replaced];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Expelled => "expelled",
            Self::Left => "left",
            Self::Replaced => "replaced",
        }
    }

    /// With "this machine" or "the member" before it, and "cluster …" after it.
    pub fn predicate(self) -> &'static str {
        match self {
            Self::Expelled => "was expelled from",
            Self::Left => "has left",
            Self::Replaced => "was replaced in",
        }
    }
}

/// A node id that may never join again.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Expulsion {
    pub node: NodeId,
    pub name: Name,
    pub at: Timestamp,
}

/// The numbers that only rise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Counters {
    /// Rises with each transition: two operations that read one revision cannot both be committed.
    pub revision: u64,
    /// Rises by one with each change of the nodes that may connect.
    pub generation: u64,
    pub next_join_order: u64,
    pub next_serial: u64,
    pub next_arrival: u64,
}

impl Default for Counters {
    fn default() -> Self {
        Self { revision: 0, generation: 0, next_join_order: 1, next_serial: 1, next_arrival: 1 }
    }
}

/// All records of a cluster about its members.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Membership {
    pub counters: Counters,
    pub members: BTreeMap<NodeId, Member>,
    pub pending: BTreeMap<NodeId, PendingRequest>,
    pub expelled: BTreeMap<NodeId, Expulsion>,
}

/// The state of a node at a time, for lists and messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum NodeState {
    Pending,
    Accepted,
    /// Accepted and not confirmed for [`STALLED_AFTER`].
    Stalled,
    Member,
    Draining,
    Left,
    Expelled,
    Replaced,
}

impl Member {
    /// Whether the controller lets the node connect.
    pub fn may_connect(&self) -> bool {
        match self.standing {
            Standing::Accepted | Standing::Confirmed | Standing::Draining => true,
            Standing::Left | Standing::Replaced { .. } => false,
        }
    }

    /// Whether the node counts as a member in role plans: from its confirmation until it left.
    pub fn is_counted(&self) -> bool {
        matches!(self.standing, Standing::Confirmed | Standing::Draining)
    }
}

impl Membership {
    /// The state of a node, or none for an unknown one. A node may wait to rejoin while its earlier
    /// record says that it left.
    pub fn state(&self, node: NodeId, now: Timestamp) -> Option<NodeState> {
        if self.expelled.contains_key(&node) {
            return Some(NodeState::Expelled);
        }
        if self.pending.contains_key(&node) {
            return Some(NodeState::Pending);
        }
        let member = self.members.get(&node)?;
        Some(match member.standing {
            Standing::Accepted if now.duration_since(member.accepted) >= STALLED_AFTER => {
                NodeState::Stalled
            }
            Standing::Accepted => NodeState::Accepted,
            Standing::Confirmed => NodeState::Member,
            Standing::Draining => NodeState::Draining,
            Standing::Left => NodeState::Left,
            Standing::Replaced { .. } => NodeState::Replaced,
        })
    }

    /// How the membership that this certificate was issued for ended, if that is known. A serial
    /// above the recorded one is of a later membership, which these records do not have.
    pub fn end_of(&self, node: NodeId, serial: u64) -> Option<MembershipEnd> {
        if self.expelled.contains_key(&node) {
            return Some(MembershipEnd::Expelled);
        }
        let member = self.members.get(&node).filter(|member| serial <= member.serial)?;
        match member.standing {
            Standing::Left => Some(MembershipEnd::Left),
            Standing::Replaced { .. } => Some(MembershipEnd::Replaced),
            Standing::Accepted | Standing::Confirmed | Standing::Draining => None,
        }
    }

    /// Whether the controller lets the node connect.
    pub fn may_connect(&self, node: NodeId) -> bool {
        self.members.get(&node).is_some_and(Member::may_connect)
    }

    /// The value after a transition.
    #[must_use]
    pub fn with(mut self, changes: &[Change]) -> Self {
        for change in changes {
            match change.clone() {
                Change::Counters(counters) => self.counters = counters,
                Change::Member(member) => {
                    self.members.insert(member.registration.node, *member);
                }
                Change::RemoveMember(node) => {
                    self.members.remove(&node);
                }
                Change::Pending(request) => {
                    self.pending.insert(request.registration.node, *request);
                }
                Change::RemovePending(node) => {
                    self.pending.remove(&node);
                }
                Change::Expulsion(expulsion) => {
                    self.expelled.insert(expulsion.node, expulsion);
                }
            }
        }
        self
    }
}
