//! The effect of an imported set on the site: which nodes to create, to change and to remove.
//!
//! A pure function of the site, the import and the nodes that were absent last time. It is careful
//! about removal: never after one absence, never many nodes at once, and never a field that an
//! operator has released from the source.

mod name;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use hoist_model::{Mac, Name, Node, NodeId, NodeSpec, Provenance, Xname};
use serde::{Deserialize, Serialize};

pub use name::{NameTemplate, ParseTemplateError};

use crate::source::{
    Claims, Field, FieldSet, ImportedNode, ImportedSet, ObservedState, Warning, WarningKind,
};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Of 100 nodes of the source, how many may go at once. At least one may, except at 0, which
    /// means never.
    pub max_prune_percent: u8,
    /// Take over nodes that people or another source declared, when xname or MAC is the same.
    pub adopt: bool,
    /// How nodes are named that their source does not name.
    pub template: NameTemplate,
}

impl Default for Options {
    fn default() -> Self {
        Self { max_prune_percent: 10, adopt: false, template: NameTemplate::default() }
    }
}

/// State from one cycle to the next. It is stored with the site, so that it survives a restart and
/// moves with the lease.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Memory {
    /// External ids that were absent in the last good cycle.
    pub absent: BTreeSet<String>,
}

/// The changes to make. Applying all of them leaves the site consistent.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Reconciliation {
    pub creates: Vec<Create>,
    pub updates: Vec<Update>,
    pub removals: Vec<NodeId>,
    pub unchanged: usize,
    /// Observed states of existing nodes. They are not part of the spec and make no revision.
    pub observed: Vec<(NodeId, ObservedState)>,
    /// Those of the import, and those found here.
    pub warnings: Vec<Warning>,
    pub alarm: Option<Alarm>,
    /// The next cycle has work even if the source does not change: nodes are missing, or hold
    /// values that other nodes wait for. The caller must make the source
    /// [`forget`](crate::source::InventorySource::forget), so that it answers in full.
    pub again: bool,
    /// To be kept together with the changes.
    pub memory: Memory,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Create {
    /// Free on this site.
    pub name: Name,
    pub spec: NodeSpec,
    pub provenance: Provenance,
    pub state: Option<ObservedState>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Update {
    pub id: NodeId,
    /// When the source renamed it.
    pub name: Option<Name>,
    pub spec: NodeSpec,
    /// When it was adopted.
    pub provenance: Option<Provenance>,
}

/// Why nothing is removed although something should be. A person has to look.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "kind")]
pub enum Alarm {
    /// The import has no nodes. That is an error of the source.
    Empty,
    /// More nodes are gone than may go at once.
    PruneGuard { gone: usize, limit: usize, managed: usize },
}

impl std::fmt::Display for Alarm {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Empty => f.write_str("the source has no nodes; nothing was changed"),
            Self::PruneGuard { gone, limit, managed } => write!(
                f,
                "{gone} of {managed} nodes are gone from the source, but only {limit} may go at \
                 once; nothing was removed"
            ),
        }
    }
}

impl Reconciliation {
    /// Whether there is nothing to write.
    pub fn is_idle(&self) -> bool {
        self.creates.is_empty() && self.updates.is_empty() && self.removals.is_empty()
    }
}

/// Compares the set of the source `source` with the site.
///
/// * Only fields that the source knows and that are not released are written.
/// * Nodes of other origin are left alone, unless `adopt` is set and they are the same machine.
/// * A unique value stays with a node that this cycle does not write; otherwise it goes to the
///   first node that claims it, in the order of the import. A node that is absent from the import
///   loses the values that the source gives to another node at once, not only when it is removed.
/// * A node is removed when it was absent in this cycle and in the last good one, is not protected,
///   and the guard allows the number of removals. An empty import changes nothing.
pub fn reconcile<'a>(
    existing: impl IntoIterator<Item = &'a Node>,
    source: &Name,
    imported: &ImportedSet,
    memory: &Memory,
    options: &Options,
) -> Reconciliation {
    if imported.nodes.is_empty() {
        return Reconciliation {
            alarm: Some(Alarm::Empty),
            again: true,
            memory: memory.clone(),
            warnings: imported.warnings.clone(),
            ..Reconciliation::default()
        };
    }
    let site = Site::new(existing, source);
    let mut outcome =
        Reconciliation { warnings: imported.warnings.clone(), ..Reconciliation::default() };
    let pairs = site.pairs(imported, options, &mut outcome.warnings);
    site.prune(imported, memory, options, &mut outcome);
    let gone: HashSet<NodeId> = outcome.removals.iter().copied().collect();
    // A result that would not be a valid node leaves its node unchanged, and the values of that
    // node stay taken. The loop starts over with at least one node less to write.
    let mut frozen: HashSet<usize> = HashSet::new();
    let mut absent = site.absent(imported, &gone);
    loop {
        let mut pass = Pass::new(&site, &pairs, &gone, &frozen, &absent, options);
        for (i, pair) in pairs.iter().enumerate().filter(|(i, _)| !frozen.contains(i)) {
            pass.write(i, pair, source);
        }
        for (node, fields) in absent.values() {
            pass.give_up_moved(node, *fields);
        }
        if pass.invalid.is_empty() && pass.unyielding.is_empty() {
            outcome.creates = pass.creates;
            outcome.updates = pass.updates;
            outcome.unchanged = pass.unchanged;
            outcome.observed = pass.observed;
            let waiting = |warning: &Warning| warning.kind == WarningKind::Collision;
            outcome.again = !outcome.memory.absent.is_empty() || pass.warnings.iter().any(waiting);
            outcome.warnings.extend(pass.warnings);
            return outcome;
        }
        for (i, warning) in pass.invalid {
            frozen.insert(i);
            outcome.warnings.push(warning);
        }
        absent.retain(|id, _| !pass.unyielding.contains(id));
    }
}

/// The site's nodes, by whose they are.
struct Site<'a> {
    /// Of this source, by external id.
    mine: BTreeMap<&'a str, &'a Node>,
    /// All others.
    foreign: Vec<&'a Node>,
}

/// An imported node and the node of the site it is.
struct Pair<'a> {
    imported: &'a ImportedNode,
    node: Option<&'a Node>,
    /// The fields that are written.
    fields: FieldSet,
}

impl<'a> Site<'a> {
    fn new(existing: impl IntoIterator<Item = &'a Node>, source: &Name) -> Self {
        let mut nodes: Vec<&Node> = existing.into_iter().collect();
        nodes.sort_by_key(|node| node.id);
        let mut site = Self { mine: BTreeMap::new(), foreign: Vec::new() };
        for node in nodes {
            match &node.provenance {
                Some(from) if from.source == *source => {
                    let id = from.external_id.as_str();
                    // The oldest node with the id wins; a second one counts as foreign.
                    if site.mine.contains_key(id) {
                        site.foreign.push(node);
                    } else {
                        site.mine.insert(id, node);
                    }
                }
                _ => site.foreign.push(node),
            }
        }
        site
    }

    fn pairs(
        &self,
        imported: &'a ImportedSet,
        options: &Options,
        warnings: &mut Vec<Warning>,
    ) -> Vec<Pair<'a>> {
        let mut by_xname: HashMap<Xname, &Node> = HashMap::new();
        let mut by_mac: HashMap<Mac, &Node> = HashMap::new();
        for node in &self.foreign {
            by_xname.extend(node.spec.xname.map(|xname| (xname, *node)));
            by_mac.extend(node.spec.interfaces.iter().map(|i| (i.mac, *node)));
        }
        let mut pairs = Vec::with_capacity(imported.nodes.len());
        let mut seen: HashSet<&str> = HashSet::new();
        let mut adopted: HashSet<NodeId> = HashSet::new();
        for new in imported.nodes.iter().filter(|n| !imported.held.contains(&n.external_id)) {
            if !seen.insert(&new.external_id) {
                let message = "the source has it twice; the second is left out";
                warnings.push(Warning::new(WarningKind::Collision, &*new.external_id, message));
                continue;
            }
            let mut same: BTreeMap<NodeId, &Node> = BTreeMap::new();
            if !self.mine.contains_key(new.external_id.as_str()) {
                let by_xname = new.spec.xname.and_then(|xname| by_xname.get(&xname));
                let macs = new.spec.interfaces.iter().filter_map(|i| by_mac.get(&i.mac));
                same.extend(by_xname.into_iter().chain(macs).map(|node| (node.id, *node)));
            }
            let node = match same.len() {
                0 => self.mine.get(new.external_id.as_str()).copied(),
                1 if options.adopt => {
                    let (id, node) = same.pop_first().expect("there is one");
                    if !adopted.insert(id) {
                        warnings.push(foreign(new, &[node]));
                        continue;
                    }
                    Some(node)
                }
                _ => {
                    let nodes: Vec<_> = same.into_values().collect();
                    warnings.push(foreign(new, &nodes));
                    continue;
                }
            };
            pairs.push(Pair { imported: new, node, fields: written(imported.fields, node) });
        }
        pairs
    }

    /// The nodes that stay although the import lacks them, with the fields that the source writes.
    /// A protected node keeps its values.
    fn absent(
        &self,
        imported: &ImportedSet,
        gone: &HashSet<NodeId>,
    ) -> BTreeMap<NodeId, (&'a Node, FieldSet)> {
        let present = present(imported);
        let absent = self.mine.iter().filter(|(id, _)| !present.contains(*id));
        let staying = absent.filter(|(_, node)| !gone.contains(&node.id) && !node.is_protected());
        staying.map(|(_, node)| (node.id, (*node, written(imported.fields, Some(node))))).collect()
    }

    /// Decides who goes and who is missed.
    fn prune(
        &self,
        imported: &ImportedSet,
        memory: &Memory,
        options: &Options,
        outcome: &mut Reconciliation,
    ) {
        let present = present(imported);
        let absent = self.mine.iter().filter(|(id, _)| !present.contains(*id));
        let mut gone = Vec::new();
        for (id, node) in absent {
            outcome.memory.absent.insert((*id).to_owned());
            if !memory.absent.contains(*id) {
                continue;
            }
            if node.is_protected() {
                let message = "it is gone from the source, but protected";
                let warning = Warning::new(WarningKind::Protected, node.name.as_str(), message);
                outcome.warnings.push(warning);
                continue;
            }
            gone.push((*id, node.id));
        }
        let managed = self.mine.len();
        let limit = match usize::from(options.max_prune_percent.min(100)) {
            0 => 0,
            percent => (managed * percent / 100).max(1),
        };
        if gone.len() > limit {
            outcome.alarm = Some(Alarm::PruneGuard { gone: gone.len(), limit, managed });
            return;
        }
        for (id, node) in gone {
            outcome.memory.absent.remove(id);
            outcome.removals.push(node);
        }
    }
}

/// The external ids that the source has, also of nodes that it holds back.
fn present(imported: &ImportedSet) -> HashSet<&str> {
    let nodes = imported.nodes.iter().map(|node| node.external_id.as_str());
    nodes.chain(imported.held.iter().map(String::as_str)).collect()
}

/// The writable fields of a node: those that the source knows, without released ones.
fn written(fields: FieldSet, node: Option<&Node>) -> FieldSet {
    let released = node.and_then(|node| node.provenance.as_ref());
    let released = released.into_iter().flat_map(|from| &from.released);
    released.filter_map(|word| Field::from_word(word)).fold(fields, FieldSet::without)
}

fn foreign(new: &ImportedNode, nodes: &[&Node]) -> Warning {
    let names: Vec<_> = nodes.iter().map(|node| format!("`{}`", node.name)).collect();
    let message = format!(
        "it is the same machine as {}, which does not come from this source; it is left alone",
        names.join(" and ")
    );
    Warning::new(WarningKind::Foreign, new.external_id.as_str(), message)
}

/// One attempt to write everything that is not frozen.
struct Pass<'p> {
    claims: Claims,
    names: HashSet<Name>,
    options: &'p Options,
    creates: Vec<Create>,
    updates: Vec<Update>,
    unchanged: usize,
    observed: Vec<(NodeId, ObservedState)>,
    warnings: Vec<Warning>,
    /// Pairs that came out wrong.
    invalid: Vec<(usize, Warning)>,
    /// Absent nodes that would not be valid without the values that moved.
    unyielding: HashSet<NodeId>,
}

impl<'p> Pass<'p> {
    fn new(
        site: &Site<'_>,
        pairs: &[Pair<'_>],
        gone: &HashSet<NodeId>,
        frozen: &HashSet<usize>,
        absent: &BTreeMap<NodeId, (&Node, FieldSet)>,
        options: &'p Options,
    ) -> Self {
        let mut pass = Self {
            claims: Claims::default(),
            names: HashSet::new(),
            options,
            creates: Vec::new(),
            updates: Vec::new(),
            unchanged: 0,
            observed: Vec::new(),
            warnings: Vec::new(),
            invalid: Vec::new(),
            unyielding: HashSet::new(),
        };
        let writes: HashMap<NodeId, FieldSet> = pairs
            .iter()
            .enumerate()
            .filter(|(i, _)| !frozen.contains(i))
            .filter_map(|(_, pair)| Some((pair.node?.id, pair.fields)))
            .chain(absent.iter().map(|(id, (_, fields))| (*id, *fields)))
            .collect();
        for node in site.mine.values().chain(&site.foreign) {
            if gone.contains(&node.id) {
                continue;
            }
            // Every node keeps the values that this cycle does not write.
            let written = writes.get(&node.id).copied().unwrap_or_default();
            let kept = written.iter().fold(FieldSet::all(), FieldSet::without);
            pass.claims.hold(&node.name, &node.spec, kept);
            // Names stay until the one who has them is renamed, which is seen to below.
            pass.names.insert(node.name.clone());
        }
        pass
    }

    /// Takes from an absent node the values that the import gave to other nodes. Must follow the
    /// last [`Self::write`].
    fn give_up_moved(&mut self, node: &Node, fields: FieldSet) {
        let before = self.warnings.len();
        let mut spec = node.spec.clone();
        self.claims.trim(&node.name, &mut spec, fields, &mut self.warnings);
        if spec == node.spec {
            return;
        }
        if spec.check().is_empty() {
            self.updates.push(Update { id: node.id, name: None, spec, provenance: None });
        } else {
            self.warnings.truncate(before);
            self.unyielding.insert(node.id);
        }
    }

    fn write(&mut self, i: usize, pair: &Pair<'_>, source: &Name) {
        let before = self.warnings.len();
        let new = pair.imported;
        let mut spec = merged(pair);
        let owner = pair.node.map_or(new.external_id.as_str(), |node| node.name.as_str());
        self.claims.trim(owner, &mut spec, pair.fields, &mut self.warnings);
        if let Some(diagnostic) = spec.check().first() {
            // Warnings about the attempt would only confuse.
            self.warnings.truncate(before);
            let message = format!("it would not be a valid node: {diagnostic}");
            self.invalid.push((i, Warning::new(WarningKind::Invalid, owner, message)));
            return;
        }
        match pair.node {
            Some(node) => self.update(node, new, spec, pair.fields, source),
            None => self.create(i, new, spec, source),
        }
    }

    fn update(
        &mut self,
        node: &Node,
        new: &ImportedNode,
        spec: NodeSpec,
        fields: FieldSet,
        source: &Name,
    ) {
        self.observed.extend(new.state.clone().map(|state| (node.id, state)));
        let wanted = new.name.as_ref().filter(|_| fields.contains(Field::Name));
        let name = wanted.filter(|wanted| **wanted != node.name).and_then(|wanted| {
            if self.names.insert(wanted.clone()) {
                return Some(wanted.clone());
            }
            let message = format!("its source calls it `{wanted}`, but that name is taken");
            let warning = Warning::new(WarningKind::Collision, node.name.as_str(), message);
            self.warnings.push(warning);
            None
        });
        let from = node.provenance.as_ref();
        let known =
            from.is_some_and(|from| from.source == *source && from.external_id == new.external_id);
        let provenance = (!known).then(|| Provenance {
            source: source.clone(),
            external_id: new.external_id.clone(),
            released: from.map(|from| from.released.clone()).unwrap_or_default(),
        });
        if name.is_none() && provenance.is_none() && spec == node.spec {
            self.unchanged += 1;
        } else {
            self.updates.push(Update { id: node.id, name, spec, provenance });
        }
    }

    fn create(&mut self, i: usize, new: &ImportedNode, spec: NodeSpec, source: &Name) {
        let candidates = name::candidates(new, &spec, &self.options.template);
        let mut free = candidates.iter().filter(|name| !self.names.contains(*name));
        let Some(name) = free.next().cloned() else {
            let message = "every name it could have is taken";
            let warning = Warning::new(WarningKind::Invalid, new.external_id.as_str(), message);
            self.invalid.push((i, warning));
            return;
        };
        if let Some(first) = candidates.first().filter(|first| **first != name) {
            let message = format!("the name `{first}` is taken; it is called `{name}`");
            let subject = new.external_id.as_str();
            // Not a collision that another cycle would solve: the name stays.
            self.warnings.push(Warning::new(WarningKind::Value, subject, message));
        }
        self.names.insert(name.clone());
        let provenance = Provenance {
            source: source.clone(),
            external_id: new.external_id.clone(),
            released: Vec::new(),
        };
        self.creates.push(Create { name, spec, provenance, state: new.state.clone() });
    }
}

/// The node's own spec with the source's fields written over it.
fn merged(pair: &Pair<'_>) -> NodeSpec {
    let Some(node) = pair.node else {
        return pair.imported.spec.clone();
    };
    let mut spec = node.spec.clone();
    let new = &pair.imported.spec;
    for field in pair.fields.iter() {
        match field {
            Field::Name => {}
            Field::Xname => spec.xname = new.xname,
            Field::Nid => spec.nid = new.nid,
            Field::Partition => spec.partition.clone_from(&new.partition),
            Field::Groups => spec.groups.clone_from(&new.groups),
            Field::Boot => spec.boot.clone_from(&new.boot),
            Field::Interfaces => spec.interfaces.clone_from(&new.interfaces),
            Field::Arch => spec.arch = new.arch,
            Field::Firmware => spec.firmware = new.firmware,
            Field::Role => spec.role.clone_from(&new.role),
            Field::Subrole => spec.subrole.clone_from(&new.subrole),
            Field::Enabled => spec.enabled = new.enabled,
            Field::Bmc => spec.bmc.clone_from(&new.bmc),
            Field::System => spec.system.clone_from(&new.system),
            Field::Labels => spec.labels.clone_from(&new.labels),
            Field::Data => spec.data.clone_from(&new.data),
        }
    }
    spec
}

#[cfg(test)]
mod tests;
