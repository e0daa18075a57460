//! Review of a change: everything that it touches must be within the writer's rights.

use std::collections::HashSet;

use async_trait::async_trait;
use hoist_api::admin::Verb;
use hoist_model::{BootConfig, BssKey, Group, Kind, MetadataLayer, Node, NodeId, Selector};
use hoist_site::plan::{Draft, Plan, Reason, Refusal};
use hoist_site::registry::{About, Commit, WriteError};
use hoist_site::{Resource, ResourceKey, ResourceKind, Roster};
use hoist_store::{Revision, StoreError, Txn};

use super::secrets::named_in;
use super::{Access, Extent, Right, partition_of};
use crate::audited_commit::AuditedCommit;
use hoist_chassis::audit::AuditLog;
use hoist_chassis::auth::AuditContext;
use hoist_chassis::principal::Principal;

/// Commits with an audit entry, and only changes that the principal may make.
pub(crate) struct ScopedCommit {
    principal: Principal,
    committer: AuditedCommit,
}

impl ScopedCommit {
    /// The gate adds no audit entry of its own to a request that calls this.
    pub(crate) fn new(log: &AuditLog, principal: Principal, audit: &AuditContext) -> Self {
        Self { principal, committer: AuditedCommit::new(log, audit.draft()) }
    }
}

#[async_trait]
impl Commit for ScopedCommit {
    async fn commit(&self, txn: Txn, about: &About) -> Result<Revision, StoreError> {
        self.committer.commit(txn, about).await
    }

    /// Everything drafted must be within reach before it is compared with the site. Unchanged
    /// resources need only the right to read them.
    fn admit(&self, draft: &Draft<'_>) -> Result<(), WriteError> {
        let before = draft.roster();
        let write = Access::new(&self.principal, Verb::Write, before);
        let read = Access::new(&self.principal, Verb::Read, before);
        for key in draft.drafted() {
            if goes_with_node(before, &key, |id| draft.removes(id)) {
                continue;
            }
            let after = drafted(draft, &key);
            let is_shown = || before.resource(&key).is_some_and(|found| read.covers(&found));
            let stays = || !draft.changes(&key) && is_shown();
            if !write.may_change(&key, after) && !stays() {
                return Err(forbidden(before, &key, after));
            }
        }
        Ok(())
    }

    fn review(&self, before: &Roster, plan: &Plan) -> Result<(), WriteError> {
        let write = Access::new(&self.principal, Verb::Write, before);
        let gone = plan.deletes.iter().filter_map(|key| match key {
            ResourceKey::Node(id) => Some(*id),
            _ => None,
        });
        let gone: HashSet<NodeId> = gone.collect();
        let removes = |id| gone.contains(&id);
        for put in &plan.puts {
            let key = put.key();
            let after = Change::of(put);
            if !goes_with_node(before, &key, removes) && !write.may_change(&key, after) {
                return Err(forbidden(before, &key, after));
            }
            write.check_secrets(put)?;
        }
        for key in &plan.deletes {
            if !goes_with_node(before, key, removes) && !write.may_change(key, Change::Other) {
                return Err(forbidden(before, key, Change::Other));
            }
        }
        Ok(())
    }

    /// A refusal about resources that the writer cannot see becomes a refusal for lack of rights.
    fn disclose(&self, before: &Roster, refusals: Vec<Refusal>) -> WriteError {
        match refusals.iter().find(|refusal| !self.may_hear(before, refusal)) {
            Some(hidden) => {
                let subject = hidden.subject.as_ref();
                let kind = subject.map_or(ResourceKind::Node, |subject| subject.kind.into());
                WriteError::Forbidden { subject: hidden.subject_text(), needs: needs(kind) }
            }
            None => WriteError::Refused(refusals),
        }
    }
}

impl ScopedCommit {
    /// Refusals name what stands in the way: other nodes, other documents.
    fn may_hear(&self, before: &Roster, refusal: &Refusal) -> bool {
        let read = Access::new(&self.principal, Verb::Read, before);
        let all_nodes = read.is_whole(Right::of(ResourceKind::Node, Verb::Read).context);
        let absent = refusal.reason == Reason::Missing && refusal.diagnostic.at.is_empty();
        let is_shown = |name: &str| match before.by_name(name) {
            Some(node) => read.covers(&Resource::Node(node.clone())),
            None => !absent,
        };
        let Some(subject) = &refusal.subject else { return all_nodes };
        match subject.kind {
            Kind::Node => {
                let holder = refusal.holder.as_deref();
                all_nodes || is_shown(&subject.name) && holder.is_none_or(is_shown)
            }
            kind => {
                let context = Right::of(kind.into(), Verb::Read).context;
                let write = Access::new(&self.principal, Verb::Write, before);
                let whole = read.is_whole(context) || write.is_whole(context);
                // A document outside the writer's reach may conflict with a node.
                whole || all_nodes && !absent
            }
        }
    }
}

impl Access<'_> {
    /// Secrets that stay where they were need no right.
    fn check_secrets(&self, put: &Resource) -> Result<(), WriteError> {
        let right = Right::NAME_SECRET;
        if self.is_whole(right.context) {
            return Ok(());
        }
        let key = put.key();
        let named = named_in(put);
        let known = self.roster.resource(&key).map(|known| named_in(&known)).unwrap_or_default();
        match named.difference(&known).next() {
            None => Ok(()),
            Some(new) => {
                let document = subject(self.roster, &key, Change::Other);
                let subject = format!("the secret `{}` in {document}", new.told());
                Err(WriteError::Forbidden { subject, needs: Some(right.remedy(self.verb)) })
            }
        }
    }

    /// Whether the principal may put or remove this key. It may neither touch a node out of reach
    /// nor move one out of it.
    pub(super) fn may_change(&self, key: &ResourceKey, after: Change<'_>) -> bool {
        let right = Right::of(key.kind(), self.verb);
        if self.is_whole(right.context) {
            return true;
        }
        match right.extent {
            Extent::Site | Extent::Selected | Extent::Vocabulary => false,
            Extent::Partition => {
                let administers =
                    |partition: Option<&str>| self.administers(right.context, partition);
                let before = self.roster.resource(key);
                let is_known = before.is_some() || !matches!(after, Change::Other);
                let was_within = before.is_none_or(|before| administers(partition_of(&before)));
                let is_within = match after {
                    Change::Within(partition) => administers(partition),
                    Change::Node(_) => false,
                    Change::Other => true,
                };
                is_known && was_within && is_within
            }
            Extent::Node => {
                let before = node_of(key).and_then(|id| self.roster.by_id(id)).map(AsRef::as_ref);
                let mut nodes = before.into_iter().chain(after.node()).peekable();
                nodes.peek().is_some() && nodes.all(|node| self.reaches(right.context, node))
            }
        }
    }
}

/// What becomes of a resource, as far as rights depend on it.
#[derive(Debug, Clone, Copy)]
pub(super) enum Change<'a> {
    Node(&'a Node),
    /// A resource of a kind that can be limited to one partition, and that partition.
    Within(Option<&'a str>),
    /// The resource is removed, or only its kind counts.
    Other,
}

impl<'a> Change<'a> {
    pub(super) fn of(after: &'a Resource) -> Self {
        match after {
            Resource::Node(node) => Self::Node(node),
            Resource::Group(_) | Resource::BootConfig(_) | Resource::MetadataLayer(_) => {
                Self::Within(partition_of(after))
            }
            Resource::Tombstone(_)
            | Resource::Partition(_)
            | Resource::Network(_)
            | Resource::Artifact(_)
            | Resource::ProvisionProfile(_)
            | Resource::BootState(_)
            | Resource::Bss(_)
            | Resource::BssImage(_)
            | Resource::Set(_) => Self::Other,
        }
    }

    fn node(self) -> Option<&'a Node> {
        match self {
            Self::Node(node) => Some(node),
            Self::Within(_) | Self::Other => None,
        }
    }
}

/// The change of a resource by a draft.
fn drafted<'a>(draft: &'a Draft<'_>, key: &'a ResourceKey) -> Change<'a> {
    let selected =
        |selector: Option<&'a Selector>| Change::Within(selector.and_then(Selector::partition));
    match key {
        ResourceKey::Node(id) => draft.node(*id).map_or(Change::Other, Change::Node),
        ResourceKey::Group(key) => match draft.document::<Group>(key) {
            Some(_) => Change::Within(Some(key.partition.as_str())),
            None => Change::Other,
        },
        ResourceKey::BootConfig(name) => match draft.document::<BootConfig>(name) {
            Some(config) => selected(config.spec.selector.as_ref()),
            None => Change::Other,
        },
        ResourceKey::MetadataLayer(name) => match draft.document::<MetadataLayer>(name) {
            Some(layer) => selected(layer.spec.selector.as_ref()),
            None => Change::Other,
        },
        ResourceKey::Tombstone(..)
        | ResourceKey::Partition(_)
        | ResourceKey::Network(_)
        | ResourceKey::Artifact(_)
        | ResourceKey::ProvisionProfile(_)
        | ResourceKey::BootState(_)
        | ResourceKey::Bss(_)
        | ResourceKey::BssImage(..)
        | ResourceKey::Set(_) => Change::Other,
    }
}

fn node_of(key: &ResourceKey) -> Option<NodeId> {
    match key {
        ResourceKey::Node(id) | ResourceKey::BootState(id) => Some(*id),
        ResourceKey::Tombstone(..)
        | ResourceKey::Group(_)
        | ResourceKey::Partition(_)
        | ResourceKey::Network(_)
        | ResourceKey::Artifact(_)
        | ResourceKey::BootConfig(_)
        | ResourceKey::MetadataLayer(_)
        | ResourceKey::ProvisionProfile(_)
        | ResourceKey::Bss(_)
        | ResourceKey::BssImage(..)
        | ResourceKey::Set(_) => None,
    }
}

/// Records that follow from what becomes of a node: the right to change the node covers them.
fn goes_with_node(before: &Roster, key: &ResourceKey, removes: impl Fn(NodeId) -> bool) -> bool {
    match key {
        ResourceKey::Tombstone(_, id) | ResourceKey::Bss(BssKey::Id(id)) => removes(*id),
        // Includes records of nodes that were removed earlier.
        ResourceKey::BootState(id) => removes(*id) || before.by_id(*id).is_none(),
        ResourceKey::Node(_)
        | ResourceKey::Group(_)
        | ResourceKey::Partition(_)
        | ResourceKey::Network(_)
        | ResourceKey::Artifact(_)
        | ResourceKey::BootConfig(_)
        | ResourceKey::MetadataLayer(_)
        | ResourceKey::ProvisionProfile(_)
        | ResourceKey::Bss(_)
        | ResourceKey::BssImage(..)
        | ResourceKey::Set(_) => false,
    }
}

fn forbidden(before: &Roster, key: &ResourceKey, after: Change<'_>) -> WriteError {
    WriteError::Forbidden { subject: subject(before, key, after), needs: needs(key.kind()) }
}

/// The right that a writer lacks; for kinds that belong to nodes, the node.
fn needs(kind: ResourceKind) -> Option<String> {
    let right = Right::of(kind, Verb::Write);
    match right.extent {
        Extent::Node => None,
        Extent::Site | Extent::Partition | Extent::Selected | Extent::Vocabulary => {
            Some(right.remedy(Verb::Write))
        }
    }
}

/// The subject as the writer named it: a node by its name.
fn subject(before: &Roster, key: &ResourceKey, after: Change<'_>) -> String {
    match key {
        ResourceKey::Node(id) => {
            let node = after.node().or_else(|| before.by_id(*id).map(AsRef::as_ref));
            let name = node.map(|node| node.name.to_string()).unwrap_or_default();
            format!("{} {name}", Kind::Node)
        }
        ResourceKey::Group(key) => format!("{} {key}", Kind::Group),
        ResourceKey::Partition(name) => format!("{} {name}", Kind::Partition),
        ResourceKey::Network(name) => format!("{} {name}", Kind::Network),
        ResourceKey::Artifact(name) => format!("{} {name}", Kind::Artifact),
        ResourceKey::BootConfig(name) => format!("{} {name}", Kind::BootConfig),
        ResourceKey::MetadataLayer(name) => format!("{} {name}", Kind::MetadataLayer),
        ResourceKey::ProvisionProfile(name) => format!("{} {name}", Kind::ProvisionProfile),
        ResourceKey::BootState(id) => format!("the boot state of {id}"),
        ResourceKey::Bss(key) => format!("the boot parameters of {key}"),
        ResourceKey::BssImage(..) => "the parameters of an image".to_owned(),
        ResourceKey::Set(name) => format!("the set {name}"),
        ResourceKey::Tombstone(_, id) => format!("the removal of {id}"),
    }
}
