//! The records of the cluster in the store, and one change of a record as a value.
//!
//! A change is made by a write of this controller, or read from the store; it has the same effect on
//! the snapshot in both cases.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use hoist_api::cluster::Assignment;
use hoist_cluster::cluster_plan::ClusterPlan;
use hoist_cluster::id::{ClusterId, NodeId, Pin};
use hoist_cluster::join_token::{TokenId, TokenRecord};
use hoist_cluster::membership::{Change, Counters, Expulsion, Member, PendingRequest};
use hoist_model::{Arch, Name};
use hoist_store::{Key, Op, StoreError};
use jiff::Timestamp;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::keys;

/// Plans that are kept besides the current one.
const PAST_PLANS: u64 = 100;

/// Largest plan after decompression. One of the largest cluster has about 4 MiB.
const MAX_PLAN: usize = 64 << 20;

/// The cluster itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ClusterState {
    pub(super) name: Name,
    pub(super) uid: ClusterId,
    pub(super) pin: Pin,
    pub(super) founded: Timestamp,
    pub(super) assignment: Assignment,
    pub(super) rebalance_on_join: bool,
    /// URLs of the controller with the authority of the cluster.
    #[serde(default)]
    pub(super) authority: Vec<String>,
}

/// A request to join, with its origin.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PendingRecord {
    pub(super) request: PendingRequest,
    pub(super) origin: Origin,
}

/// Where a request to join came from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Origin {
    pub(super) from: IpAddr,
    /// As the machine said it.
    pub(super) hostname: String,
    #[serde(default)]
    pub(super) arch: Arch,
}

/// The present certificate of a member. A repeated request gets the same one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct StoredCertificate {
    pub(super) serial: u64,
    /// The certificate and its intermediate, PEM.
    pub(super) chain: String,
    pub(super) ends: Timestamp,
}

/// The plan in force, and the progress of its moves.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct StoredPlan {
    pub(super) plan: ClusterPlan,
    /// Members whose stateful move an operator has agreed to.
    #[serde(default)]
    pub(super) consented: BTreeSet<NodeId>,
    /// Members that are told to carry out their move.
    #[serde(default)]
    pub(super) released: BTreeSet<NodeId>,
}

/// One record that is written or removed.
#[derive(Debug, Clone)]
pub(super) enum RecordChange {
    State(Arc<ClusterState>),
    Counters(Counters),
    Member(Box<Member>),
    RemoveMember(NodeId),
    Pending(Box<PendingRecord>),
    RemovePending(NodeId),
    Expulsion(Expulsion),
    Token(Box<TokenRecord>),
    RemoveToken(TokenId),
    Certificate(NodeId, Arc<StoredCertificate>),
    RemoveCertificate(NodeId),
    Plan(Arc<StoredPlan>),
}

impl RecordChange {
    /// The change of a record by an operation on the membership. `origin` is that of a new request.
    pub(super) fn of_membership(change: Change, origin: &Origin) -> Self {
        match change {
            Change::Counters(counters) => Self::Counters(counters),
            Change::Member(member) => Self::Member(member),
            Change::RemoveMember(node) => Self::RemoveMember(node),
            Change::Pending(request) => {
                let origin = origin.clone();
                Self::Pending(Box::new(PendingRecord { request: *request, origin }))
            }
            Change::RemovePending(node) => Self::RemovePending(node),
            Change::Expulsion(expulsion) => Self::Expulsion(expulsion),
        }
    }

    pub(super) fn append_to(&self, ops: &mut Vec<Op>) {
        match self {
            Self::State(state) => ops.push(Op::Put(keys::state(), json(state))),
            Self::Counters(counters) => ops.push(Op::Put(keys::counters(), json(counters))),
            Self::Member(member) => {
                let node = member.registration.node;
                ops.push(Op::Put(keys::of_node(keys::MEMBER, node), json(member)));
            }
            Self::RemoveMember(node) => {
                ops.push(Op::Delete(keys::of_node(keys::MEMBER, *node)));
            }
            Self::Pending(pending) => {
                let node = pending.request.registration.node;
                ops.push(Op::Put(keys::of_node(keys::PENDING, node), json(pending)));
            }
            Self::RemovePending(node) => {
                ops.push(Op::Delete(keys::of_node(keys::PENDING, *node)));
            }
            Self::Expulsion(expulsion) => {
                let key = keys::of_node(keys::EXPELLED, expulsion.node);
                ops.push(Op::Put(key, json(expulsion)));
            }
            Self::Token(token) => ops.push(Op::Put(keys::token(token.id), json(token))),
            Self::RemoveToken(id) => ops.push(Op::Delete(keys::token(*id))),
            Self::Certificate(node, certificate) => {
                let key = keys::of_node(keys::CERTIFICATE, *node);
                ops.push(Op::Put(key, json(certificate)));
            }
            Self::RemoveCertificate(node) => {
                ops.push(Op::Delete(keys::of_node(keys::CERTIFICATE, *node)));
            }
            Self::Plan(stored) => append_plan(stored, ops),
        }
    }

    /// The change that a record of the store means; `None` for past plans.
    pub(super) fn of_record(key: &Key, value: &[u8]) -> Result<Option<Self>, StoreError> {
        let change = match keys::parts(key) {
            Some((keys::STATE, None)) => Self::State(read(key, value)?),
            Some((keys::COUNTERS, None)) => Self::Counters(read(key, value)?),
            Some((keys::MEMBER, Some(_))) => Self::Member(read(key, value)?),
            Some((keys::PENDING, Some(_))) => Self::Pending(read(key, value)?),
            Some((keys::EXPELLED, Some(_))) => Self::Expulsion(read(key, value)?),
            Some((keys::TOKEN, Some(_))) => Self::Token(read(key, value)?),
            Some((keys::CERTIFICATE, Some(node))) => {
                Self::Certificate(name(key, node)?, read(key, value)?)
            }
            Some((keys::PLAN, Some(keys::CURRENT))) => Self::Plan(read_plan(key, value)?),
            Some((keys::PLAN, Some(_))) => return Ok(None),
            _ => return Err(damaged(key, "no record has this key")),
        };
        Ok(Some(change))
    }

    /// The change that the removal of a record means. Some records are never removed: whoever did
    /// it replaced the store, so that everything has to be read again.
    pub(super) fn of_removal(key: &Key) -> Result<Option<Self>, StoreError> {
        let change = match keys::parts(key) {
            Some((keys::MEMBER, Some(node))) => Self::RemoveMember(name(key, node)?),
            Some((keys::PENDING, Some(node))) => Self::RemovePending(name(key, node)?),
            Some((keys::TOKEN, Some(id))) => Self::RemoveToken(name(key, id)?),
            Some((keys::CERTIFICATE, Some(node))) => Self::RemoveCertificate(name(key, node)?),
            Some((keys::PLAN, Some(generation))) if generation != keys::CURRENT => return Ok(None),
            _ => return Err(damaged(key, "the record was removed")),
        };
        Ok(Some(change))
    }
}

/// A plan of many members is larger than a record may be, but repeats itself.
fn append_plan(stored: &StoredPlan, ops: &mut Vec<Op>) {
    let generation = stored.plan.generation;
    let packed = zstd::encode_all(json(stored).as_slice(), 0).expect("writing to memory");
    ops.push(Op::Put(keys::past_plan(generation), packed.clone()));
    ops.push(Op::Put(keys::current_plan(), packed));
    if let Some(old) = generation.checked_sub(PAST_PLANS) {
        ops.push(Op::Delete(keys::past_plan(old)));
    }
}

fn read_plan(key: &Key, value: &[u8]) -> Result<Arc<StoredPlan>, StoreError> {
    let text = zstd::bulk::decompress(value, MAX_PLAN)
        .map_err(|error| damaged(key, &error.to_string()))?;
    read(key, &text)
}

fn json(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("a plain value")
}

fn read<T: DeserializeOwned>(key: &Key, value: &[u8]) -> Result<T, StoreError> {
    serde_json::from_slice(value).map_err(|error| damaged(key, &error.to_string()))
}

fn name<T: std::str::FromStr>(key: &Key, text: &str) -> Result<T, StoreError> {
    text.parse().map_err(|_| damaged(key, "the key has no such name"))
}

fn damaged(key: &Key, reason: &str) -> StoreError {
    StoreError::Damaged { detail: format!("`{key}`: {reason}") }
}
