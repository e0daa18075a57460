//! The effect of a site change on booting, node by node.

use std::collections::BTreeSet;
use std::sync::Arc;

use hoist_model::{Name, NodeId};
use hoist_site::Roster;

use crate::answer::Booter;
use crate::outcome::{self, BootOutcome};
use crate::select::Table;

/// The site on both sides of a change.
#[derive(Debug)]
pub struct Sides<'a> {
    booter: &'a Booter,
    before: Arc<Roster>,
    after: Arc<Roster>,
    old: Arc<Table>,
    new: Arc<Table>,
}

/// A node that comes out differently.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    pub node: NodeId,
    pub name: Name,
    pub kind: Kind,
    pub from: String,
    pub to: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// It had something to boot, and has nothing any more.
    Loses,
    /// It had nothing to boot, and has something now.
    Gains,
    /// Another configuration, kernel, initrd or state.
    Other,
    /// The same kernel and initrd, with other words on its command line or in its script.
    Line,
}

impl<'a> Sides<'a> {
    /// `before` is the current roster: its boot table is reused.
    pub fn new(booter: &'a Booter, before: Arc<Roster>, after: Roster) -> Self {
        let after = Arc::new(after);
        let old = booter.table(&before);
        let new = if old.is_of(&after) { Arc::clone(&old) } else { Arc::new(Table::build(&after)) };
        Self { booter, before, after, old, new }
    }

    pub fn before(&self) -> &Arc<Roster> {
        &self.before
    }

    pub fn after(&self) -> &Arc<Roster> {
        &self.after
    }

    pub(crate) fn table_after(&self) -> &Table {
        &self.new
    }

    /// How one node comes out, if differently.
    pub fn of(&self, id: NodeId) -> Option<Difference> {
        let old = self.before.by_id(id);
        let new = self.after.by_id(id);
        let name = new.or(old)?.name.clone();
        let outcome =
            |roster, table, node: &hoist_model::Node| outcome::of(self.booter, roster, table, node);
        let from = old.map(|node| outcome(self.before.as_ref(), self.old.as_ref(), node));
        let to = new.map(|node| outcome(self.after.as_ref(), self.new.as_ref(), node));
        let kind = kind(from.as_ref(), to.as_ref())?;
        let told = |outcome: Option<BootOutcome>| {
            outcome.map_or_else(|| "no such node".to_owned(), |outcome| outcome.told())
        };
        Some(Difference { node: id, name, kind, from: told(from), to: told(to) })
    }

    /// Every node that comes out differently, in the order of their ids.
    pub fn all(&self) -> Vec<Difference> {
        let mut ids: BTreeSet<NodeId> = self.before.nodes().map(|node| node.id).collect();
        ids.extend(self.after.nodes().map(|node| node.id));
        ids.into_iter().filter_map(|id| self.of(id)).collect()
    }
}

fn kind(from: Option<&BootOutcome>, to: Option<&BootOutcome>) -> Option<Kind> {
    use hoist_model::BootAction::{Disabled, Wait};
    if from == to {
        return None;
    }
    let nothing = |side: Option<&BootOutcome>| {
        side.is_none_or(|outcome| matches!(outcome.doing, Wait | Disabled))
    };
    match (nothing(from), nothing(to)) {
        (true, true) => None,
        (false, true) => Some(Kind::Loses),
        (true, false) => Some(Kind::Gains),
        (false, false) => {
            let what = |side: Option<&BootOutcome>| {
                let booted = side.and_then(|outcome| outcome.booted.clone());
                (side.map(|s| s.doing), booted.map(|booted| (booted.name, booted.images)))
            };
            Some(if what(from) == what(to) { Kind::Line } else { Kind::Other })
        }
    }
}
