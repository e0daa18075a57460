//! Why an operation on the membership is refused. A refused operation changes nothing.

use hoist_model::Name;
use jiff::Timestamp;

use super::{MAX_MEMBERS, MAX_PENDING, RequestId};
use crate::id::NodeId;
use crate::role::Role;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MembershipRefusal {
    #[error(
        "node {} was expelled at {at}; run `hoist identity reset` on it and join with a new \
         identity", node.short()
    )]
    Expelled { node: NodeId, at: Timestamp },
    #[error(
        "node {} was replaced by node {}; run `hoist identity reset` on it and join with a new \
         identity", node.short(), by.short()
    )]
    Replaced { node: NodeId, by: NodeId },
    #[error(
        "name `{name}` is in use by node {}, last seen {last_seen}; rename the new node, or run \
         `hoist cluster replace {} {}` if it takes the place of the old one",
        holder.short(), holder.short(), node.short()
    )]
    NameInUse { name: Name, holder: NodeId, last_seen: Timestamp, node: NodeId },
    #[error(
        "node {} is known with another key; two machines may have the same disk image: run \
         `hoist identity reset` on the copy", node.short()
    )]
    OtherKey { node: NodeId },
    #[error("request {request} was superseded by {latest}; repeat the latest request")]
    Superseded { request: RequestId, latest: RequestId },
    #[error("{MAX_PENDING} requests to join are pending; accept or reject some and try again")]
    PendingFull,
    #[error("the cluster has {MAX_MEMBERS} members, no more are supported; remove some first")]
    ClusterFull,
    #[error("node {} has no pending request; let it register first", .0.short())]
    NotPending(NodeId),
    #[error("node {} is not a member; see `hoist cluster nodes`", .0.short())]
    NotMember(NodeId),
    #[error("node {} has not confirmed its acceptance; wait, or expel it", .0.short())]
    NotConfirmed(NodeId),
    #[error("node {} is a member; use `hoist cluster leave`", .0.short())]
    AlreadyConfirmed(NodeId),
    #[error("node {} may hold data of role `{role}`; drain it first", node.short())]
    DrainFirst { node: NodeId, role: Role },
    #[error("a node cannot replace itself; name the old node and the new one")]
    SameNode,
}
