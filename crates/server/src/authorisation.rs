//! Authorisation of resources: which right a principal needs to read or write each kind, and
//! whether it has that right.
//!
//! [`Right::of`] is the only place that knows which right a kind needs. Every way in asks it:
//! routes, `apply`, `delete`, prune, import, adoption, export and lists. A new kind does not compile
//! until it has its line there.
//!
//! Does not belong here: the rights of a token ([`crate::principal`]), and the right that a route
//! needs before its handler runs ([`crate::auth`]). Writes of the controller itself (provisioning
//! runs, scheduled imports, reports of nodes) act for no principal and are not reviewed.

mod review;
mod secrets;
mod sight;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use hoist_api::Code;
use hoist_api::admin::{Context, Verb};
use hoist_model::Node;
use hoist_site::{Resource, ResourceKind, Roster};

use hoist_chassis::failure::Failure;
use hoist_chassis::principal::{Principal, Reach};

pub(crate) use review::ScopedCommit;
pub(crate) use sight::Sight;

/// A required right: the requested verb, in this context, over this extent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Right {
    pub(crate) context: Context,
    pub(crate) extent: Extent,
}

/// How far a grant with a selector reaches for a kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Extent {
    /// The resource belongs to one node: the selector must reach that node.
    Node,
    /// The resource speaks of nodes by a selector of its own: one of them must be reached.
    Selected,
    /// The words that nodes are described with: every grant in the context will do.
    Vocabulary,
    /// The resource can concern one partition only: a grant for the whole of this partition will
    /// do, see [`Selector::partition`]. Otherwise as [`Extent::Site`].
    Partition,
    /// The resource concerns the whole site: a grant with a selector is worth nothing.
    Site,
}

impl Right {
    /// Naming a secret that is not named there yet.
    pub(crate) const NAME_SECRET: Self = Self::new(Context::Secrets, Extent::Site);

    const fn new(context: Context, extent: Extent) -> Self {
        Self { context, extent }
    }

    /// The table. No wildcards: a new kind or verb must be decided on here.
    pub(crate) const fn of(kind: ResourceKind, verb: Verb) -> Self {
        match (kind, verb) {
            (ResourceKind::Node, Verb::Read | Verb::Write) => {
                Self::new(Context::Inventory, Extent::Node)
            }
            (ResourceKind::Group | ResourceKind::Partition | ResourceKind::Network, Verb::Read) => {
                Self::new(Context::Inventory, Extent::Vocabulary)
            }
            (ResourceKind::Group, Verb::Write) => Self::new(Context::Inventory, Extent::Partition),
            (ResourceKind::Partition | ResourceKind::Network, Verb::Write)
            | (ResourceKind::Set | ResourceKind::Tombstone, Verb::Read | Verb::Write) => {
                Self::new(Context::Inventory, Extent::Site)
            }
            (ResourceKind::BootState, Verb::Read | Verb::Write) => {
                Self::new(Context::Boot, Extent::Node)
            }
            (ResourceKind::BootConfig, Verb::Read) => Self::new(Context::Boot, Extent::Selected),
            (ResourceKind::BootConfig, Verb::Write) => Self::new(Context::Boot, Extent::Partition),
            (
                ResourceKind::Artifact | ResourceKind::Bss | ResourceKind::BssImage,
                Verb::Read | Verb::Write,
            ) => Self::new(Context::Boot, Extent::Site),
            (ResourceKind::MetadataLayer, Verb::Read) => {
                Self::new(Context::Metadata, Extent::Selected)
            }
            (ResourceKind::MetadataLayer, Verb::Write) => {
                Self::new(Context::Metadata, Extent::Partition)
            }
            (ResourceKind::ProvisionProfile, Verb::Read) => {
                Self::new(Context::Provision, Extent::Selected)
            }
            (ResourceKind::ProvisionProfile, Verb::Write) => {
                Self::new(Context::Provision, Extent::Site)
            }
        }
    }

    /// The remedy where a grant over single nodes is not enough.
    fn remedy(self, verb: Verb) -> String {
        let or = match self.extent {
            Extent::Partition => ", or for the partition that its selector is limited to",
            Extent::Node | Extent::Selected | Extent::Vocabulary | Extent::Site => "",
        };
        format!("this needs a token with `{verb}` in `{}` for the whole site{or}", self.context)
    }
}

/// The access of one principal with one verb, on one roster.
pub(crate) struct Access<'a> {
    principal: &'a Principal,
    verb: Verb,
    roster: &'a Roster,
    /// Selectors are bound once for each context that is asked about.
    sights: RefCell<BTreeMap<Context, Rc<Sight>>>,
}

impl<'a> Access<'a> {
    pub(crate) fn new(principal: &'a Principal, verb: Verb, roster: &'a Roster) -> Self {
        Self { principal, verb, roster, sights: RefCell::default() }
    }

    /// Whether the principal may read this resource, or write it as a whole.
    pub(crate) fn covers(&self, resource: &Resource) -> bool {
        let right = Right::of(resource.key().kind(), self.verb);
        match self.principal.reach(self.verb, right.context) {
            Reach::None => false,
            Reach::All => true,
            Reach::Some(_) => match right.extent {
                Extent::Vocabulary => true,
                Extent::Site => false,
                Extent::Partition => self.administers(right.context, partition_of(resource)),
                Extent::Node | Extent::Selected => {
                    let nodes = nodes_of(self.roster, resource);
                    nodes.into_iter().any(|node| self.reaches(right.context, node))
                        || self.administers(right.context, partition_of(resource))
                }
            },
        }
    }

    /// Whether a grant is for the whole of this partition.
    fn administers(&self, context: Context, partition: Option<&str>) -> bool {
        let Some(partition) = partition else { return false };
        match self.principal.reach(self.verb, context) {
            Reach::None => false,
            Reach::All => true,
            Reach::Some(selectors) => {
                selectors.iter().any(|selector| selector.whole_partitions().contains(&partition))
            }
        }
    }

    fn reaches(&self, context: Context, node: &Node) -> bool {
        let mut sights = self.sights.borrow_mut();
        let sight = sights.entry(context).or_insert_with(|| {
            Rc::new(Sight::within(self.principal, self.verb, context, self.roster))
        });
        sight.reaches(self.roster, node)
    }

    fn is_whole(&self, context: Context) -> bool {
        self.principal.reach(self.verb, context) == Reach::All
    }
}

/// The one partition that a resource can concern, whatever nodes the site has.
fn partition_of(resource: &Resource) -> Option<&str> {
    match resource {
        Resource::Group(group) => Some(group.partition.as_str()),
        Resource::BootConfig(config) => config.spec.selector.as_ref()?.partition(),
        Resource::MetadataLayer(layer) => layer.spec.selector.as_ref()?.partition(),
        Resource::Node(_)
        | Resource::Tombstone(_)
        | Resource::Partition(_)
        | Resource::Network(_)
        | Resource::Artifact(_)
        | Resource::ProvisionProfile(_)
        | Resource::BootState(_)
        | Resource::Bss(_)
        | Resource::BssImage(_)
        | Resource::Set(_) => None,
    }
}

/// The nodes of the roster that a resource belongs to or speaks of.
fn nodes_of<'r>(roster: &'r Roster, resource: &Resource) -> Vec<&'r Arc<Node>> {
    match resource {
        Resource::Node(node) => roster.by_id(node.id).into_iter().collect(),
        Resource::BootState(state) => roster.by_id(state.node).into_iter().collect(),
        Resource::BootConfig(config) => hoist_boot::rule::selected(roster, config),
        Resource::MetadataLayer(layer) => hoist_metadata::layers::nodes_of(roster, layer),
        Resource::ProvisionProfile(profile) => {
            let selector = profile.spec.selector.as_ref();
            let bound = selector.and_then(|selector| selector.bind(roster).ok());
            bound.map(|bound| roster.select_bound(&bound)).unwrap_or_default()
        }
        // A removed node is out of every selector's reach, and the other kinds belong to no node.
        Resource::Tombstone(_)
        | Resource::Group(_)
        | Resource::Partition(_)
        | Resource::Network(_)
        | Resource::Artifact(_)
        | Resource::Bss(_)
        | Resource::BssImage(_)
        | Resource::Set(_) => Vec::new(),
    }
}

/// A principal that starts work with secrets must have the right to name them.
pub(crate) fn check_secrets<'s>(
    principal: &Principal,
    named: impl IntoIterator<Item = &'s str>,
) -> Result<(), Failure> {
    let Some(secret) = named.into_iter().next() else { return Ok(()) };
    let right = Right::NAME_SECRET;
    match principal.reach(Verb::Write, right.context) {
        Reach::All => Ok(()),
        Reach::None | Reach::Some(_) => {
            let detail = format!("the secret `{secret}` is out of reach");
            Err(Failure::new(Code::Forbidden, detail).with_remedy(right.remedy(Verb::Write)))
        }
    }
}

#[cfg(test)]
mod tests;
