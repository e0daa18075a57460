//! What a principal may see and change: the selectors of its scopes, bound to the site.

use async_trait::async_trait;
use hoist_api::Code;
use hoist_api::admin::{Context, Verb};
use hoist_inventory::plan::Plan;
use hoist_inventory::registry::{About, Commit, WriteError};
use hoist_inventory::{Resource, ResourceKey, Roster};
use hoist_model::selector::Bound;
use hoist_model::{Kind, Node};
use hoist_store::{Revision, StoreError, Txn};

use crate::audit::Committer;
use crate::failure::Failure;
use crate::principal::{Principal, Reach};

/// The nodes somebody reaches, on one roster.
#[derive(Debug)]
pub(crate) enum Sight {
    All,
    Some(Vec<Bound>),
}

impl Sight {
    pub(super) fn new(principal: &Principal, verb: Verb, roster: &Roster) -> Self {
        Self::within(principal, verb, Context::Inventory, roster)
    }

    /// A selector that means nothing at this site reaches nothing.
    pub(crate) fn within(
        principal: &Principal,
        verb: Verb,
        context: Context,
        roster: &Roster,
    ) -> Self {
        match principal.reach(verb, context) {
            Reach::All => Self::All,
            Reach::None => Self::Some(Vec::new()),
            Reach::Some(selectors) => {
                let bind = |selector: &&hoist_model::Selector| selector.bind(roster).ok();
                Self::Some(selectors.iter().filter_map(bind).collect())
            }
        }
    }

    pub(crate) fn reaches(&self, roster: &Roster, node: &Node) -> bool {
        match self {
            Self::All => true,
            Self::Some(bound) => bound.iter().any(|bound| bound.matches(&roster.subject(node))),
        }
    }

    pub(crate) fn is_all(&self) -> bool {
        matches!(self, Self::All)
    }
}

/// A node out of reach is answered like one that does not exist: names are not for everybody.
pub(crate) fn no_such_node(what: impl std::fmt::Display) -> Failure {
    Failure::new(Code::NotFound, format!("there is no node {what}"))
        .with_remedy("`hoist node list` shows all of them")
}

/// Commits with an audit entry, and only what the principal may change.
pub(crate) struct Scoped {
    pub(crate) principal: Principal,
    pub(crate) committer: Committer,
}

#[async_trait]
impl Commit for Scoped {
    async fn commit(&self, txn: Txn, about: &About) -> Result<Revision, StoreError> {
        self.committer.commit(txn, about).await
    }

    fn review(&self, before: &Roster, plan: &Plan) -> Result<(), WriteError> {
        let forbidden = |subject: String| Err(WriteError::Forbidden { subject });
        // What machines boot and are told are other rights than what machines there are.
        for context in [Context::Boot, Context::Metadata] {
            if matches!(self.principal.reach(Verb::Write, context), Reach::All) {
                continue;
            }
            let touched = plan.puts.iter().map(Resource::key).chain(plan.deletes.iter().cloned());
            if let Some(key) = touched.into_iter().find(|key| context_of(key) == context) {
                return forbidden(told(&key));
            }
        }
        let sight = Sight::new(&self.principal, Verb::Write, before);
        if sight.is_all() {
            return Ok(());
        }
        let known = |id| before.by_id(id).is_none_or(|node| sight.reaches(before, node));
        for put in plan.puts.iter().filter(|put| is_inventory(&put.key())) {
            match put {
                // Neither a node out of reach, nor one moved out of it.
                Resource::Node(node) if known(node.id) && sight.reaches(before, node) => {}
                Resource::Node(node) => return forbidden(format!("Node {}", node.name)),
                Resource::Tombstone(_) => {}
                Resource::BootState(state) if known(state.node) => {}
                other => return forbidden(told(&other.key())),
            }
        }
        for key in plan.deletes.iter().filter(|key| is_inventory(key)) {
            match key {
                ResourceKey::Node(id) | ResourceKey::BootState(id) if known(*id) => {}
                // By its name: that is how whoever removes a node they cannot see called it.
                ResourceKey::Node(id) => {
                    let name = before.by_id(*id).map(|node| node.name.to_string());
                    return forbidden(format!("{} {}", Kind::Node, name.unwrap_or_default()));
                }
                other => return forbidden(told(other)),
            }
        }
        Ok(())
    }
}

fn is_inventory(key: &ResourceKey) -> bool {
    context_of(key) == Context::Inventory
}

/// Where it is declared. A boot state goes with its node, and may.
fn context_of(key: &ResourceKey) -> Context {
    match key {
        ResourceKey::Artifact(_)
        | ResourceKey::BootConfig(_)
        | ResourceKey::Bss(_)
        | ResourceKey::BssImage(..) => Context::Boot,
        ResourceKey::MetadataLayer(_) => Context::Metadata,
        ResourceKey::ProvisionProfile(_) => Context::Provision,
        ResourceKey::Node(_)
        | ResourceKey::Group(_)
        | ResourceKey::Partition(_)
        | ResourceKey::Network(_)
        | ResourceKey::BootState(_)
        | ResourceKey::Set(_)
        | ResourceKey::Tombstone(..) => Context::Inventory,
    }
}

fn told(key: &ResourceKey) -> String {
    match key {
        ResourceKey::Node(id) => format!("{} {id}", Kind::Node),
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
