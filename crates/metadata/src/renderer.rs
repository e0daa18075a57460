//! Rendering for repeated requests: layers are compiled once per roster, and the last good
//! documents are kept for when a template fails.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwapOption;
use hoist_model::selector::Vocabulary as _;
use hoist_model::{GroupName, MetadataLayer, Node, NodeId};
use hoist_site::Roster;
use parking_lot::Mutex;
use serde_json::json;

use crate::layer::{LayerFailure, size_of};
use crate::layers::Layers;
use crate::render::{RenderedDocuments, With, render};
use crate::secret::Secrets;
use crate::{Document, Documents, network};

/// Limit of cached good documents.
const MAX_KEPT: usize = 64 * 1024 * 1024;

/// Limits for rendering on the answering thread, where other machines wait. The layers have their
/// own limits.
const MAX_QUICK_LAYERS: usize = 8;
const MAX_QUICK_INTERFACES: usize = 8;
const MAX_QUICK_ADDRESSES: usize = 32;
const MAX_QUICK_DATA: usize = 4 * 1024;
const MAX_QUICK_GROUPS: usize = 32;

#[derive(Debug, Default)]
pub struct Renderer {
    compiled: ArcSwapOption<CompiledLayers>,
    /// Held while layers are compiled, so that concurrent requests compile them once.
    compiling: Mutex<()>,
    compilations: AtomicU64,
    good: Mutex<Good>,
}

/// The documents rendered for a node, without secrets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RenderResult {
    pub documents: Documents,
    /// Layers that fail for the node at present.
    pub failed: Vec<LayerFailure>,
    /// Whether these are documents from before something failed.
    pub stale: bool,
}

/// The compiled layers of a roster.
#[derive(Debug)]
pub struct CompiledLayers {
    /// Changes with partitions, groups, networks and layers.
    site: u64,
    /// Changes with every compilation.
    number: u64,
    /// How many groups have selectors: their members may change with any node.
    computed: usize,
    roster: Arc<Roster>,
    layers: Layers,
}

/// The inputs from which a node's documents were rendered.
#[derive(Debug, Clone)]
pub struct Basis {
    site: u64,
    number: u64,
    node: Arc<Node>,
    /// Where groups are computed.
    groups: Vec<GroupName>,
}

impl CompiledLayers {
    fn of(roster: &Arc<Roster>, number: u64, before: Option<&Self>) -> Self {
        let computed = roster.selector_groups().len();
        if let Some(node) = roster.nodes().next().filter(|_| computed > 0) {
            // The first use binds the selectors; that must happen here and not while a client
            // waits.
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
        let groups = if self.computed > 0 { self.roster.groups_of(node) } else { Vec::new() };
        Basis { site: self.site, number: self.number, node: Arc::clone(node), groups }
    }

    /// Whether rendering for the node takes little time.
    fn is_quick_for(&self, node: &Node) -> bool {
        let spec = &node.spec;
        let addresses = spec.interfaces.iter().map(|interface| interface.addresses.len());
        let data = spec.data.iter().flat_map(|data| data.iter());
        let data = data.map(|(key, value)| key.len() + size_of(value));
        if self.computed > MAX_QUICK_GROUPS
            || spec.interfaces.len() > MAX_QUICK_INTERFACES
            || addresses.sum::<usize>() > MAX_QUICK_ADDRESSES
            || data.sum::<usize>() > MAX_QUICK_DATA
        {
            return false;
        }
        let layers = self.layers.of_node(&self.roster, node);
        layers.len() <= MAX_QUICK_LAYERS && layers.iter().all(|layer| layer.is_quick())
    }

    /// Whether the same would be rendered again for a node of this roster.
    fn bears(&self, basis: &Basis, node: &Arc<Node>) -> bool {
        self.site == basis.site
            && Arc::ptr_eq(&basis.node, node)
            && (self.computed == 0
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

/// The node's own values in its documents, which may belong to another node later: documents in
/// which any of them differs must not be served again.
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
    fn stands_for(&self, own: &str, now: &[Arc<MetadataLayer>], failed: &[LayerFailure]) -> bool {
        let fails = |layer: &MetadataLayer| failed.iter().any(|one| one.layer == layer.name);
        let same = |(then, now): (&Arc<MetadataLayer>, &Arc<MetadataLayer>)| {
            Arc::ptr_eq(then, now) || then.name == now.name && fails(now)
        };
        self.own == own && self.layers.len() == now.len() && self.layers.iter().zip(now).all(same)
    }

    /// Size including the overhead of a cache entry.
    fn size(&self) -> usize {
        let documents = Document::ALL.iter().map(|document| self.documents.get(*document).len());
        256 + self.own.len() + documents.sum::<usize>()
    }
}

impl Renderer {
    /// Whether documents made on `basis` are still current for a node of this roster. Returns false
    /// if only compiling the roster's layers could tell.
    pub fn bears(&self, roster: &Roster, basis: &Basis, node: &Arc<Node>) -> bool {
        let current = self.compiled.load();
        let current = current.as_ref().filter(|one| one.roster.has_rules_of(roster));
        current.is_some_and(|compiled| compiled.bears(basis, node))
    }

    /// Compiles layers that are new or changed, which takes its time.
    pub fn compiled(&self, roster: &Arc<Roster>) -> Arc<CompiledLayers> {
        let _making = self.compiling.lock();
        let current = self.compiled.load_full();
        if let Some(current) = current.as_ref().filter(|c| c.roster.has_rules_of(roster)) {
            return Arc::clone(current);
        }
        let number = self.compilations.fetch_add(1, Ordering::Relaxed);
        let compiled = Arc::new(CompiledLayers::of(roster, number, current.as_deref()));
        // A caller with an older roster must not replace the newer compilation.
        let is_newer = |current: &CompiledLayers| {
            current.roster.revision() <= roster.revision()
                || current.roster.incarnation() != roster.incarnation()
        };
        if current.is_none_or(|current| is_newer(&current)) {
            self.compiled.store(Some(Arc::clone(&compiled)));
        }
        compiled
    }

    /// The documents of a node, without secrets. Never fails: in the place of a layer that does are
    /// the last documents that were good, or those without it where there are none.
    pub fn documents(&self, compiled: &CompiledLayers, node: &Node, token: &str) -> RenderResult {
        let CompiledLayers { roster, layers, .. } = compiled;
        let with = With { token, secrets: Secrets::LeaveOut, trace: false };
        let RenderedDocuments { documents, failed, .. } = render(roster, layers, node, with);
        if failed.is_empty() {
            self.keep_good(compiled, node, &documents);
            return RenderResult { documents, failed, stale: false };
        }
        for LayerFailure { layer, at, reason, .. } in &failed {
            tracing::warn!(node = %node.name, %layer, %at, %reason, "metadata layer failed");
        }
        let kept = self.last_good(compiled, node, &failed);
        let stale = kept.is_some();
        RenderResult { documents: kept.unwrap_or(documents), failed, stale }
    }

    /// The documents of a node with their inputs, if that takes little time: the roster's layers are
    /// compiled, they and the node are small, and none of them fails.
    pub fn documents_now(
        &self,
        roster: &Roster,
        node: &Arc<Node>,
        token: &str,
    ) -> Option<(Documents, Basis)> {
        let compiled = self.compiled.load();
        let compiled = compiled.as_ref().filter(|one| one.roster.has_rules_of(roster))?;
        if !compiled.is_quick_for(node) {
            return None;
        }
        let with = With { token, secrets: Secrets::LeaveOut, trace: false };
        let rendered = render(&compiled.roster, &compiled.layers, node, with);
        if !rendered.failed.is_empty() {
            return None;
        }
        self.keep_good(compiled, node, &rendered.documents);
        Some((rendered.documents, compiled.basis(node)))
    }

    /// Keeps documents in which nothing failed, where something could.
    fn keep_good(&self, compiled: &CompiledLayers, node: &Node, documents: &Documents) {
        let CompiledLayers { roster, layers, .. } = compiled;
        let speaking = layers.of_node(roster, node);
        if speaking.iter().any(|layer| layer.is_template()) {
            let own = own(roster, node);
            let layers = speaking.iter().map(|layer| Arc::clone(&layer.source)).collect();
            let documents = documents.clone();
            self.good.lock().keep(node.id, GoodOne { own, layers, documents });
        }
    }

    /// The documents served instead of a rendering in which layers failed.
    pub fn last_good(
        &self,
        compiled: &CompiledLayers,
        node: &Node,
        failed: &[LayerFailure],
    ) -> Option<Documents> {
        if failed.is_empty() {
            return None;
        }
        let speaking = compiled.layers.of_node(&compiled.roster, node);
        let sources: Vec<_> = speaking.iter().map(|layer| Arc::clone(&layer.source)).collect();
        let own = own(&compiled.roster, node);
        self.good.lock().instead(node.id, &own, &sources, failed)
    }

    /// A rendering that is remembered nowhere: with secrets, or for a preview.
    pub fn render(
        &self,
        compiled: &CompiledLayers,
        node: &Node,
        with: With<'_>,
    ) -> RenderedDocuments {
        render(&compiled.roster, &compiled.layers, node, with)
    }
}

impl Good {
    /// Documents of another generation, of other addresses or of other layers do not belong to this
    /// node any more.
    fn instead(
        &self,
        node: NodeId,
        own: &str,
        now: &[Arc<MetadataLayer>],
        failed: &[LayerFailure],
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
