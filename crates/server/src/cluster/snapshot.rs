//! All records of the cluster at one revision of the store: immutable, replaced whole.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::Arc;

use hoist_cluster::id::NodeId;
use hoist_cluster::join_token::{TokenId, TokenRecord};
use hoist_cluster::membership::{Change, Member, Membership};
use hoist_model::Arch;
use hoist_store::{Compare, Op, Revision, Txn};

use super::keys;
use super::records::{ClusterState, Origin, RecordChange, StoredCertificate, StoredPlan};

#[derive(Debug, Clone, Default)]
pub(super) struct Snapshot {
    /// False until the store was read for the first time.
    pub(super) is_loaded: bool,
    /// The newest commit that is in it.
    pub(super) revision: Revision,
    /// Where the counters were last written. Every write of the cluster writes them, so equal values
    /// mean equal records.
    pub(super) counters_at: Option<Revision>,
    pub(super) state: Option<Arc<ClusterState>>,
    pub(super) membership: Membership,
    pub(super) origins: BTreeMap<NodeId, Origin>,
    pub(super) tokens: BTreeMap<TokenId, TokenRecord>,
    pub(super) certificates: BTreeMap<NodeId, Arc<StoredCertificate>>,
    pub(super) plan: Option<Arc<StoredPlan>>,
}

impl Snapshot {
    /// The snapshot after these changes.
    pub(super) fn with(&self, changes: Vec<RecordChange>) -> Self {
        let mut next = self.clone();
        for change in changes {
            next.apply(change);
        }
        next
    }

    pub(super) fn apply(&mut self, change: RecordChange) {
        let membership = &mut self.membership;
        match change {
            RecordChange::State(state) => self.state = Some(state),
            RecordChange::Counters(counters) => membership.counters = counters,
            RecordChange::Member(member) => {
                membership.members.insert(member.registration.node, *member);
            }
            RecordChange::RemoveMember(node) => {
                membership.members.remove(&node);
            }
            RecordChange::Pending(pending) => {
                let node = pending.request.registration.node;
                self.origins.insert(node, pending.origin);
                membership.pending.insert(node, pending.request);
            }
            RecordChange::RemovePending(node) => {
                self.origins.remove(&node);
                membership.pending.remove(&node);
            }
            RecordChange::Expulsion(expulsion) => {
                membership.expelled.insert(expulsion.node, expulsion);
            }
            RecordChange::Token(token) => {
                self.tokens.insert(token.id, *token);
            }
            RecordChange::RemoveToken(id) => {
                self.tokens.remove(&id);
            }
            RecordChange::Certificate(node, certificate) => {
                self.certificates.insert(node, certificate);
            }
            RecordChange::RemoveCertificate(node) => {
                self.certificates.remove(&node);
            }
            RecordChange::Plan(plan) => self.plan = Some(plan),
        }
    }

    /// The transaction that makes these changes of exactly this snapshot.
    pub(super) fn transaction(&self, changes: &[RecordChange]) -> Txn {
        let mut ops: Vec<Op> = Vec::new();
        // Written by every transaction, also by those that leave the numbers as they are.
        RecordChange::Counters(self.membership.counters).append_to(&mut ops);
        for change in changes {
            change.append_to(&mut ops);
        }
        let unchanged = match self.counters_at {
            Some(revision) => Compare::At(keys::counters(), revision),
            None => Compare::Absent(keys::counters()),
        };
        Txn { compares: vec![unchanged], ops }
    }

    /// Changes of the membership as changes of records. Requests keep the origin that they have.
    pub(super) fn records(&self, changes: Vec<Change>) -> Vec<RecordChange> {
        let unknown = Origin {
            from: Ipv4Addr::UNSPECIFIED.into(),
            hostname: String::new(),
            arch: Arch::default(),
        };
        let origin_of = |change: &Change| match change {
            Change::Pending(request) => self.origins.get(&request.registration.node),
            _ => None,
        };
        let record = |change: Change| {
            let origin = origin_of(&change).unwrap_or(&unknown).clone();
            RecordChange::of_membership(change, &origin)
        };
        changes.into_iter().map(record).collect()
    }

    pub(super) fn member(&self, node: NodeId) -> Option<&Member> {
        self.membership.members.get(&node)
    }

    /// The present certificate of a member, if it was issued.
    pub(super) fn certificate(&self, member: &Member) -> Option<&Arc<StoredCertificate>> {
        let certificate = self.certificates.get(&member.registration.node)?;
        (certificate.serial == member.serial).then_some(certificate)
    }
}
