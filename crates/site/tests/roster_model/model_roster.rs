//! A real roster as part of a checked state.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use hoist_model::{Mac, Node, NodeId, Role};
use hoist_site::roster::Incarnation;
use hoist_site::{Delta, Resource, Roster};

/// What tells two nodes apart in here: which, of which revision, written by whom, with which MAC.
pub(crate) type Mark = (NodeId, u64, Option<Role>, Option<Mac>);

pub(crate) fn mark(node: &Node) -> Mark {
    (node.id, node.revision, node.spec.role.clone(), node.spec.interfaces.first().map(|i| i.mac))
}

/// Equal when all its futures are: its content, and the part of it in its base.
#[derive(Clone)]
pub(crate) struct ModelRoster {
    pub(crate) roster: Arc<Roster>,
    base: Arc<Vec<Mark>>,
    /// Counts the bases of one process: two with the same content are still not the same one.
    pub(crate) made: u8,
}

impl ModelRoster {
    pub(crate) fn build(revision: u64, resources: Vec<Resource>, made: u8) -> Self {
        let incarnation = Incarnation::new("model");
        Self::frozen(Roster::build(incarnation, revision, 0, resources.into_iter()), made)
    }

    fn frozen(roster: Roster, made: u8) -> Self {
        let base = Arc::new(roster.nodes().map(|node| mark(node)).collect());
        Self { roster: Arc::new(roster), base, made }
    }

    pub(crate) fn apply(&self, delta: Delta) -> Self {
        Self { roster: Arc::new(self.roster.apply(delta)), ..self.clone() }
    }

    pub(crate) fn folded(&self) -> Self {
        Self::frozen(self.roster.folded(), self.made + 1)
    }

    /// As the registry publishes it when a folding that began at `before` has ended.
    pub(crate) fn rebased(&self, before: &Self) -> Self {
        let folded = before.folded();
        match self.roster.rebased(&before.roster, &folded.roster) {
            Some(roster) => {
                Self { roster: Arc::new(roster), base: folded.base, made: self.made + 1 }
            }
            None => self.clone(),
        }
    }

    pub(crate) fn revision(&self) -> u64 {
        self.roster.revision()
    }

    pub(crate) fn nodes(&self) -> Vec<Mark> {
        self.roster.nodes().map(|node| mark(node)).collect()
    }
}

impl PartialEq for ModelRoster {
    fn eq(&self, other: &Self) -> bool {
        self.revision() == other.revision()
            && self.made == other.made
            && self.base == other.base
            && self.nodes() == other.nodes()
    }
}

impl Eq for ModelRoster {}

impl Hash for ModelRoster {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.revision(), self.made, &self.base, self.nodes()).hash(state);
    }
}

impl fmt::Debug for ModelRoster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nodes: Vec<_> =
            self.roster.nodes().map(|n| format!("{}@{}", n.name, n.revision)).collect();
        write!(f, "r{} {nodes:?}", self.revision())
    }
}
