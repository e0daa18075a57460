//! Rendering for those who ask again and again: what was made is kept as long as the site stays the
//! same, and what was good is kept for when a template fails.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwapOption;
use hoist_inventory::Roster;
use hoist_model::{Name, Node, NodeId};

use crate::layer::Failed;
use crate::layers::Layers;
use crate::render::{Rendered, With, render};
use crate::secret::Secrets;
use crate::{Document, Documents};

/// Most that is kept of documents that were made, and as much again of those that were good.
const MAX_KEPT: usize = 64 * 1024 * 1024;

/// Locks over what was made: a node waits only for those that share its own.
const SHARDS: usize = 16;

#[derive(Debug, Default)]
pub struct Renderer {
    picture: ArcSwapOption<Picture>,
    good: Mutex<Good>,
    failures: AtomicU64,
}

/// What a node is given: without secrets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Given {
    pub documents: Documents,
    /// Layers that fail for the node at present.
    pub failed: Vec<Failed>,
    /// Whether these are documents from before something failed.
    pub stale: bool,
}

/// One state of the site's rules.
#[derive(Debug)]
struct Picture {
    roster: Arc<Roster>,
    layers: Layers,
    made: [Mutex<Made>; SHARDS],
}

#[derive(Debug, Default)]
struct Made {
    by_node: HashMap<NodeId, (Box<str>, Arc<Given>)>,
    bytes: usize,
}

/// The last documents of each node in which nothing failed, the oldest first to go.
#[derive(Debug, Default)]
struct Good {
    by_node: HashMap<NodeId, Arc<GoodOne>>,
    order: VecDeque<NodeId>,
    bytes: usize,
}

#[derive(Debug)]
struct GoodOne {
    generation: u64,
    layers: Vec<Name>,
    given: Arc<Given>,
}

impl Renderer {
    /// The documents of a node, without secrets. Never fails: a layer that does is replaced by the
    /// last documents that were good, or left out where there are none.
    pub fn documents(&self, roster: &Arc<Roster>, node: &Node, seed: &str) -> Arc<Given> {
        let picture = self.picture(roster);
        if let Some(given) = picture.get(node.id, seed) {
            return given;
        }
        let with = With { seed, secrets: Secrets::LeaveOut, trace: false };
        let rendered = render(roster, &picture.layers, node, with);
        let templated = picture.layers.of_node(roster, node).iter().any(|l| l.is_template());
        let given = self.settle(node, rendered, templated);
        picture.keep(node.id, seed, &given);
        given
    }

    /// A rendering that is kept nowhere: with secrets, or for a preview.
    pub fn render(&self, roster: &Arc<Roster>, node: &Node, with: With<'_>) -> Rendered {
        render(roster, &self.picture(roster).layers, node, with)
    }

    /// How many renderings failed in part, since the start.
    pub fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }

    fn picture(&self, roster: &Arc<Roster>) -> Arc<Picture> {
        let current = self.picture.load_full();
        if let Some(current) = current.as_ref().filter(|c| c.roster.has_rules_of(roster)) {
            return Arc::clone(current);
        }
        let layers = match &current {
            Some(before) => Layers::after(roster, &before.layers),
            None => Layers::of(roster),
        };
        let picture = Picture { roster: Arc::clone(roster), layers, made: Default::default() };
        let picture = Arc::new(picture);
        // Whoever still looks at an older roster must not take the newer picture away.
        let newer = |c: &&Arc<Picture>| c.roster.revision() > roster.revision();
        if current.as_ref().filter(newer).is_none() {
            self.picture.store(Some(Arc::clone(&picture)));
        }
        picture
    }

    fn settle(&self, node: &Node, rendered: Rendered, templated: bool) -> Arc<Given> {
        let Rendered { documents, layers, failed, .. } = rendered;
        let mut good = self.good.lock().unwrap_or_else(PoisonError::into_inner);
        if failed.is_empty() {
            let given = Arc::new(Given { documents, failed, stale: false });
            if templated {
                let generation = node.generation;
                good.keep(node.id, GoodOne { generation, layers, given: Arc::clone(&given) });
            }
            return given;
        }
        self.failures.fetch_add(1, Ordering::Relaxed);
        for Failed { layer, at, reason } in &failed {
            tracing::warn!(node = %node.name, %layer, %at, %reason, "a metadata layer fails");
        }
        // What was good for another generation or in other layers is not this node's any more.
        let kept = good.by_node.get(&node.id);
        let kept = kept.filter(|one| one.generation == node.generation && one.layers == layers);
        let stale = kept.is_some();
        let documents = kept.map_or(documents, |one| one.given.documents.clone());
        Arc::new(Given { documents, failed, stale })
    }
}

impl Picture {
    fn shard(&self, node: NodeId) -> &Mutex<Made> {
        use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
        let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one(node);
        let shards = u64::try_from(SHARDS).unwrap_or(1);
        &self.made[usize::try_from(hash % shards).unwrap_or(0)]
    }

    fn get(&self, node: NodeId, seed: &str) -> Option<Arc<Given>> {
        let made = self.shard(node).lock().unwrap_or_else(PoisonError::into_inner);
        let (made_for, given) = made.by_node.get(&node)?;
        (**made_for == *seed).then(|| Arc::clone(given))
    }

    fn keep(&self, node: NodeId, seed: &str, given: &Arc<Given>) {
        let mut made = self.shard(node).lock().unwrap_or_else(PoisonError::into_inner);
        // Nodes ask for all documents within seconds: those of an hour ago can go.
        if made.bytes > MAX_KEPT / SHARDS {
            *made = Made::default();
        }
        made.bytes += size_of(&given.documents);
        made.by_node.insert(node, (seed.into(), Arc::clone(given)));
    }
}

impl Good {
    fn keep(&mut self, node: NodeId, one: GoodOne) {
        self.bytes += size_of(&one.given.documents);
        match self.by_node.insert(node, Arc::new(one)) {
            Some(before) => self.bytes -= size_of(&before.given.documents),
            None => self.order.push_back(node),
        }
        while self.bytes > MAX_KEPT {
            let Some(oldest) = self.order.pop_front() else { break };
            let gone = self.by_node.remove(&oldest);
            self.bytes -= gone.map_or(0, |gone| size_of(&gone.given.documents));
        }
    }
}

/// With what it costs to keep anything at all.
fn size_of(documents: &Documents) -> usize {
    256 + Document::ALL.iter().map(|document| documents.get(*document).len()).sum::<usize>()
}
