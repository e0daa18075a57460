//! Rendering for those who ask again and again: layers are compiled once for a state of the site,
//! and what was good is kept for when a template fails.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwapOption;
use hoist_inventory::Roster;
use hoist_model::selector::Vocabulary as _;
use hoist_model::{GroupName, MetadataLayer, Node, NodeId};
use serde_json::json;

use crate::layer::Failed;
use crate::layers::Layers;
use crate::render::{Rendered, With, render};
use crate::secret::Secrets;
use crate::{Document, Documents, network};

/// Most that is kept of documents that were good.
const MAX_KEPT: usize = 64 * 1024 * 1024;

#[derive(Debug, Default)]
pub struct Renderer {
    picture: ArcSwapOption<Picture>,
    /// Held while a picture is made: of several who need it, one makes it.
    making: Mutex<()>,
    pictures: AtomicU64,
    good: Mutex<Good>,
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

/// The layers of a site on one state of its rules.
#[derive(Debug)]
pub struct Picture {
    /// Another one when partitions, groups, networks or layers are others.
    site: u64,
    /// Another one when anything is.
    number: u64,
    /// Whether groups have selectors: who is in them may change with any node.
    computed: bool,
    roster: Arc<Roster>,
    layers: Layers,
}

/// What the documents of a node were made from.
#[derive(Debug, Clone)]
pub struct Basis {
    site: u64,
    number: u64,
    node: Arc<Node>,
    /// Where groups are computed.
    groups: Vec<GroupName>,
}

impl Picture {
    fn of(roster: &Arc<Roster>, number: u64, before: Option<&Self>) -> Self {
        let computed = !roster.selector_groups().is_empty();
        if let Some(node) = roster.nodes().next().filter(|_| computed) {
            // Selectors are bound with the first question, here and not where somebody waits.
            roster.groups_of(node);
        }
        let layers = before.map(|before| Layers::after(roster, &before.layers));
        Self {
            site: before
                .filter(|one| same_site(&one.roster, roster))
                .map_or(number, |one| one.site),
            number,
            computed,
            roster: Arc::clone(roster),
            layers: layers.unwrap_or_else(|| Layers::of(roster)),
        }
    }

    pub fn layers(&self) -> &Layers {
        &self.layers
    }

    pub fn basis(&self, node: &Arc<Node>) -> Basis {
        let groups = if self.computed { self.roster.groups_of(node) } else { Vec::new() };
        Basis { site: self.site, number: self.number, node: Arc::clone(node), groups }
    }

    /// Whether the same would be made again for a node of this picture.
    fn bears(&self, basis: &Basis, node: &Arc<Node>) -> bool {
        self.site == basis.site
            && Arc::ptr_eq(&basis.node, node)
            && (!self.computed
                || self.number == basis.number
                || self.roster.groups_of(node) == basis.groups)
    }
}

/// Whether two rosters have the same partitions, groups, networks and layers.
fn same_site(one: &Roster, other: &Roster) -> bool {
    same(one.partitions(), other.partitions())
        && same(one.groups(), other.groups())
        && same(one.networks(), other.networks())
        && same(one.metadata_layers(), other.metadata_layers())
}

fn same<'r, T: 'r>(
    mut one: impl Iterator<Item = &'r Arc<T>>,
    mut other: impl Iterator<Item = &'r Arc<T>>,
) -> bool {
    loop {
        match (one.next(), other.next()) {
            (Some(a), Some(b)) if Arc::ptr_eq(a, b) => {}
            (None, None) => return true,
            _ => return false,
        }
    }
}

/// What is a node's own in its documents, and may be another node's tomorrow: documents in which any
/// of it is another are never served again.
fn own(roster: &Roster, node: &Node) -> String {
    let spec = &node.spec;
    let boot = roster.boot(node).map(|boot| (boot.mac, boot.ip));
    let named = (node.generation, &node.name, spec.xname, spec.nid, &spec.partition);
    let addresses = (&spec.interfaces, boot, network::config(roster, node));
    let servers: Vec<_> =
        network::time_servers(roster, node).into_iter().map(|(_, server)| server).collect();
    json!([named, roster.groups_of(node), addresses, servers]).to_string()
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
    own: String,
    layers: Vec<Arc<MetadataLayer>>,
    documents: Documents,
}

impl GoodOne {
    /// Whether nothing has changed but what fails: a key that was taken out of another layer must
    /// not come back because this one is broken.
    fn stands_for(&self, own: &str, now: &[Arc<MetadataLayer>], failed: &[Failed]) -> bool {
        let fails = |layer: &MetadataLayer| failed.iter().any(|one| one.layer == layer.name);
        let same = |(then, now): (&Arc<MetadataLayer>, &Arc<MetadataLayer>)| {
            Arc::ptr_eq(then, now) || then.name == now.name && fails(now)
        };
        self.own == own && self.layers.len() == now.len() && self.layers.iter().zip(now).all(same)
    }

    /// With what it costs to keep anything at all.
    fn size(&self) -> usize {
        let documents = Document::ALL.iter().map(|document| self.documents.get(*document).len());
        256 + self.own.len() + documents.sum::<usize>()
    }
}

impl Renderer {
    /// Whether what was made on `basis` for a node of this roster would be made again. Not if that
    /// is not known without making a picture.
    pub fn bears(&self, roster: &Roster, basis: &Basis, node: &Arc<Node>) -> bool {
        let current = self.picture.load();
        let current = current.as_ref().filter(|one| one.roster.has_rules_of(roster));
        current.is_some_and(|picture| picture.bears(basis, node))
    }

    /// Compiles layers that are new or changed, which takes its time.
    pub fn picture(&self, roster: &Arc<Roster>) -> Arc<Picture> {
        let _making = self.making.lock().unwrap_or_else(PoisonError::into_inner);
        let current = self.picture.load_full();
        if let Some(current) = current.as_ref().filter(|c| c.roster.has_rules_of(roster)) {
            return Arc::clone(current);
        }
        let number = self.pictures.fetch_add(1, Ordering::Relaxed);
        let picture = Arc::new(Picture::of(roster, number, current.as_deref()));
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
                let (own, documents) = (own(roster, node), documents.clone());
                good.keep(node.id, GoodOne { own, layers: sources(), documents });
            }
            return Made { documents, failed, stale: false };
        }
        for Failed { layer, at, reason } in &failed {
            tracing::warn!(node = %node.name, %layer, %at, %reason, "a metadata layer fails");
        }
        let kept = good.instead(node.id, &own(roster, node), &sources(), &failed);
        let stale = kept.is_some();
        Made { documents: kept.unwrap_or(documents), failed, stale }
    }

    /// What a node is served in place of a rendering in which layers failed.
    pub fn last_good(
        &self,
        picture: &Picture,
        node: &Node,
        failed: &[Failed],
    ) -> Option<Documents> {
        if failed.is_empty() {
            return None;
        }
        let speaking = picture.layers.of_node(&picture.roster, node);
        let sources: Vec<_> = speaking.iter().map(|layer| Arc::clone(&layer.source)).collect();
        let good = self.good.lock().unwrap_or_else(PoisonError::into_inner);
        good.instead(node.id, &own(&picture.roster, node), &sources, failed)
    }

    /// A rendering that is remembered nowhere: with secrets, or for a preview.
    pub fn render(&self, picture: &Picture, node: &Node, with: With<'_>) -> Rendered {
        render(&picture.roster, &picture.layers, node, with)
    }
}

impl Good {
    /// What was good for another generation, with other addresses or in other layers is not this
    /// node's any more.
    fn instead(
        &self,
        node: NodeId,
        own: &str,
        now: &[Arc<MetadataLayer>],
        failed: &[Failed],
    ) -> Option<Documents> {
        let kept = self.by_node.get(&node).filter(|one| one.stands_for(own, now, failed));
        kept.map(|one| one.documents.clone())
    }

    fn keep(&mut self, node: NodeId, one: GoodOne) {
        self.bytes += one.size();
        match self.by_node.insert(node, one) {
            Some(before) => self.bytes -= before.size(),
            None => self.order.push_back(node),
        }
        while self.bytes > MAX_KEPT {
            let Some(oldest) = self.order.pop_front() else { break };
            let gone = self.by_node.remove(&oldest);
            self.bytes -= gone.map_or(0, |gone| gone.size());
        }
    }
}
