//! The nodes that a principal may see and change: the selectors of its scopes, bound to the site.

use hoist_api::admin::{Context, Verb};
use hoist_model::Node;
use hoist_model::selector::Bound;
use hoist_site::Roster;

use hoist_chassis::principal::{Principal, Reach};

/// The nodes in a principal's reach, on one roster.
#[derive(Debug)]
pub(crate) enum Sight {
    All,
    Some(Vec<Bound>),
}

impl Sight {
    pub(crate) fn new(principal: &Principal, verb: Verb, roster: &Roster) -> Self {
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

    /// Those that either of the two reaches.
    pub(crate) fn or(self, other: Self) -> Self {
        match (self, other) {
            (Self::All, _) | (_, Self::All) => Self::All,
            (Self::Some(mut one), Self::Some(other)) => {
                one.extend(other);
                Self::Some(one)
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
