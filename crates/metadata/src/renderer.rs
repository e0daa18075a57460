//! Rendering for those who ask again and again: layers are compiled once for a state of the site,
//! and what was good is kept for when a template fails.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwapOption;
use hoist_inventory::Roster;
use hoist_model::{MetadataLayer, Node, NodeId};

use crate::layer::Failed;
use crate::layers::Layers;
use crate::render::{Rendered, With, render};
use crate::secret::Secrets;
use crate::{Document, Documents};

/// Most that is kept of documents that were good.
const MAX_KEPT: usize = 64 * 1024 * 1024;

#[derive(Debug, Default)]
pub struct Renderer {
    picture: ArcSwapOption<Picture>,
    /// Held while a picture is made: of several who need it, one makes it.
    making: Mutex<()>,
    pictures: AtomicU64,
    good: Mutex<Good>,
    failures: AtomicU64,
}

/// What was made for a node: without secrets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Made {
    pub documents: Documents,
    /// Layers that fail for the node at present.
    pub failed: Vec<Failed>,
    /// Whether these are documents from before something failed.
    pub stale: bool,
}

/// The layers of a site on one state of its rules. What was made for a node on one picture is what
/// would be made again.
#[derive(Debug)]
pub struct Picture {
    number: u64,
    roster: Arc<Roster>,
    layers: Layers,
}

impl Picture {
    /// Another one for every picture of a renderer.
    pub fn number(&self) -> u64 {
        self.number
    }

    pub fn layers(&self) -> &Layers {
        &self.layers
    }
}

/// The last documents of each node in which nothing failed, the oldest first to go.
#[derive(Debug, Default)]
struct Good {
    by_node: HashMap<NodeId, GoodOne>,
    order: VecDeque<NodeId>,
    bytes: usize,
}

#[derive(Debug)]
struct GoodOne {
    generation: u64,
    layers: Vec<Arc<MetadataLayer>>,
    documents: Documents,
}

impl GoodOne {
    /// Whether nothing has changed but what fails: a key that was taken out of another layer must
    /// not come back because this one is broken.
    fn stands_for(&self, node: &Node, now: &[Arc<MetadataLayer>], failed: &[Failed]) -> bool {
        let fails = |layer: &MetadataLayer| failed.iter().any(|one| one.layer == layer.name);
        let same = |(then, now): (&Arc<MetadataLayer>, &Arc<MetadataLayer>)| {
            Arc::ptr_eq(then, now) || then.name == now.name && fails(now)
        };
        self.generation == node.generation
            && self.layers.len() == now.len()
            && self.layers.iter().zip(now).all(same)
    }
}

impl Renderer {
    /// The number of the picture of a roster, if it is made already.
    pub fn known(&self, roster: &Roster) -> Option<u64> {
        let current = self.picture.load();
        current.as_ref().filter(|one| one.roster.has_rules_of(roster)).map(|one| one.number)
    }

    /// Compiles layers that are new or changed, which takes its time.
    pub fn picture(&self, roster: &Arc<Roster>) -> Arc<Picture> {
        let _making = self.making.lock().unwrap_or_else(PoisonError::into_inner);
        let current = self.picture.load_full();
        if let Some(current) = current.as_ref().filter(|c| c.roster.has_rules_of(roster)) {
            return Arc::clone(current);
        }
        let layers = match &current {
            Some(before) => Layers::after(roster, &before.layers),
            None => Layers::of(roster),
        };
        let number = self.pictures.fetch_add(1, Ordering::Relaxed);
        let picture = Arc::new(Picture { number, roster: Arc::clone(roster), layers });
        // Whoever still looks at an older roster does not take the newer picture away.
        let is_newer = |current: &Picture| {
            current.roster.revision() <= roster.revision()
                || current.roster.incarnation() != roster.incarnation()
        };
        if current.is_none_or(|current| is_newer(&current)) {
            self.picture.store(Some(Arc::clone(&picture)));
        }
        picture
    }

    /// The documents of a node, without secrets. Never fails: in the place of a layer that does are
    /// the last documents that were good, or those without it where there are none.
    pub fn documents(&self, picture: &Picture, node: &Node, token: &str) -> Made {
        let Picture { roster, layers, .. } = picture;
        let with = With { token, secrets: Secrets::LeaveOut, trace: false };
        let Rendered { documents, failed, .. } = render(roster, layers, node, with);
        let speaking = layers.of_node(roster, node);
        let sources = || speaking.iter().map(|layer| Arc::clone(&layer.source)).collect::<Vec<_>>();
        let mut good = self.good.lock().unwrap_or_else(PoisonError::into_inner);
        if failed.is_empty() {
            if speaking.iter().any(|layer| layer.is_template()) {
                let (generation, documents) = (node.generation, documents.clone());
                good.keep(node.id, GoodOne { generation, layers: sources(), documents });
            }
            return Made { documents, failed, stale: false };
        }
        self.failures.fetch_add(1, Ordering::Relaxed);
        for Failed { layer, at, reason } in &failed {
            tracing::warn!(node = %node.name, %layer, %at, %reason, "a metadata layer fails");
        }
        // What was good for another generation or in other layers is not this node's any more.
        let kept = good.by_node.get(&node.id);
        let kept = kept.filter(|one| one.stands_for(node, &sources(), &failed));
        let stale = kept.is_some();
        let documents = kept.map_or(documents, |one| one.documents.clone());
        Made { documents, failed, stale }
    }

    /// A rendering that is remembered nowhere: with secrets, or for a preview.
    pub fn render(&self, roster: &Arc<Roster>, node: &Node, with: With<'_>) -> Rendered {
        render(roster, &self.picture(roster).layers, node, with)
    }

    /// How many renderings failed in part, since the start.
    pub fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }
}

impl Good {
    fn keep(&mut self, node: NodeId, one: GoodOne) {
        self.bytes += size_of(&one.documents);
        match self.by_node.insert(node, one) {
            Some(before) => self.bytes -= size_of(&before.documents),
            None => self.order.push_back(node),
        }
        while self.bytes > MAX_KEPT {
            let Some(oldest) = self.order.pop_front() else { break };
            let gone = self.by_node.remove(&oldest);
            self.bytes -= gone.map_or(0, |gone| size_of(&gone.documents));
        }
    }
}

/// With what it costs to keep anything at all.
fn size_of(documents: &Documents) -> usize {
    256 + Document::ALL.iter().map(|document| documents.get(*document).len()).sum::<usize>()
}
