//! The JSON files of the state.

use hoist_cluster::address::Address;
use hoist_cluster::detection::ExpectedCluster;
use hoist_cluster::id::{ClusterId, ClusterIdPrefix, NodeId, Pin};
use hoist_cluster::membership::{MembershipEnd, RequestId};
use hoist_model::Name;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// `cluster.json`: the membership of this node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MemberFile {
    pub standing: Standing,
    pub name: Name,
    pub uid: ClusterId,
    pub id: NodeId,
    /// The inventory node that this member is.
    pub node: Name,
    pub join_order: u64,
    /// URLs of controllers.
    pub controllers: Vec<String>,
    /// The pins of the roots that this node trusts.
    pub pins: Vec<Pin>,
    /// This node founded the cluster.
    #[serde(default)]
    pub founded: bool,
    pub accepted: Timestamp,
    /// When the certificate was received and when it ends.
    pub certificate_from: Timestamp,
    pub certificate_ends: Timestamp,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Standing {
    /// Accepted by the controller; the node has not confirmed yet.
    Accepted,
    Member,
    Expelled,
    Left,
    Replaced,
}

impl Standing {
    /// How the membership ended, if it has.
    pub fn end(self) -> Option<MembershipEnd> {
        match self {
            Self::Accepted | Self::Member => None,
            Self::Expelled => Some(MembershipEnd::Expelled),
            Self::Left => Some(MembershipEnd::Left),
            Self::Replaced => Some(MembershipEnd::Replaced),
        }
    }
}

impl From<MembershipEnd> for Standing {
    fn from(end: MembershipEnd) -> Self {
        match end {
            MembershipEnd::Expelled => Self::Expelled,
            MembershipEnd::Left => Self::Left,
            MembershipEnd::Replaced => Self::Replaced,
        }
    }
}

/// `role.json`: the last orders of the controller. The role stays in force while no controller
/// answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RoleFile {
    pub cluster: ClusterId,
    pub plan_generation: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    pub scale: String,
    pub members: usize,
    pub draining: bool,
    /// Since when no controller has answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stale_since: Option<Timestamp>,
}

/// `join.json`: a join that has begun and not ended. Written before anything else of the join.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JoinIntent {
    pub operation: String,
    /// Each repetition of the registration has the same id, so the controller counts it once.
    pub request: RequestId,
    /// Addresses of controllers, to try one after the other.
    pub addresses: Vec<Address>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<ClusterId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefix: Option<ClusterIdPrefix>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<Name>,
    pub pins: Vec<Pin>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preferred: Option<String>,
    pub install_service: bool,
    #[serde(default)]
    pub founded: bool,
    pub started: Timestamp,
}

impl JoinIntent {
    pub fn expected(&self) -> ExpectedCluster {
        ExpectedCluster { id: self.cluster, prefix: self.prefix, name: self.name.clone() }
    }

    pub(crate) fn expected_prefix(&self) -> Option<ClusterIdPrefix> {
        self.prefix.or(self.cluster.map(ClusterId::short))
    }
}
