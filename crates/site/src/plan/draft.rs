//! Changes collected over a roster, before they are checked.
//!
//! Does not belong here: rules of the site as a whole (`check`) and the commit (`registry`).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use hoist_diagnostic::Diagnostic;
use hoist_model::document::{Document, DocumentName};
use hoist_model::{
    Artifact, BootConfig, BootState, BssImage, BssImageKey, BssKey, BssRecord, Group, GroupKey,
    Kind, MetadataLayer, Name, Network, Node, NodeId, NodeSpec, Partition, Provenance,
    ProvisionProfile, ServedBoot,
};
use jiff::Timestamp;

use super::{
    DocumentRef, FieldChange, Item, Plan, Reason, Refusal, SiteChange, affected, check, fields,
    returning_nodes,
};
use crate::kind::{DocumentKind, DraftTable};
use crate::record::{AppliedSet, Resource, ResourceKey, Tombstone, member_name};
use crate::roster::Roster;

/// A working copy: entries of the maps replace those of the roster; `None` removes one.
#[derive(Debug)]
pub struct Draft<'a> {
    pub(super) roster: &'a Roster,
    now: Timestamp,
    pub(super) nodes: BTreeMap<NodeId, Option<Node>>,
    pub(crate) groups: DraftTable<Group>,
    pub(crate) partitions: DraftTable<Partition>,
    pub(crate) networks: DraftTable<Network>,
    pub(crate) artifacts: DraftTable<Artifact>,
    pub(crate) boot_configs: DraftTable<BootConfig>,
    pub(crate) metadata_layers: DraftTable<MetadataLayer>,
    pub(crate) provision_profiles: DraftTable<ProvisionProfile>,
    pub(super) states: BTreeMap<NodeId, Option<BootState>>,
    pub(super) bss: BTreeMap<BssKey, Option<BssRecord>>,
    pub(super) images: BTreeMap<BssImageKey, Option<BssImage>>,
    /// Nodes that their source writes.
    pub(super) imported: BTreeSet<NodeId>,
    sets: BTreeMap<Name, AppliedSet>,
    /// Nodes of this draft by name, so that later documents find them.
    names: BTreeMap<Name, NodeId>,
    /// Documents in the order given, with how often they came up.
    mentioned: Vec<(Kind, DocumentName)>,
    refusals: Vec<Refusal>,
}

impl<'a> Draft<'a> {
    pub fn new(roster: &'a Roster, now: Timestamp) -> Self {
        Self {
            roster,
            now,
            nodes: BTreeMap::new(),
            groups: BTreeMap::new(),
            partitions: BTreeMap::new(),
            networks: BTreeMap::new(),
            artifacts: BTreeMap::new(),
            boot_configs: BTreeMap::new(),
            metadata_layers: BTreeMap::new(),
            provision_profiles: BTreeMap::new(),
            states: BTreeMap::new(),
            bss: BTreeMap::new(),
            images: BTreeMap::new(),
            imported: BTreeSet::new(),
            sets: BTreeMap::new(),
            names: BTreeMap::new(),
            mentioned: Vec::new(),
            refusals: Vec::new(),
        }
    }

    /// The site as it was.
    pub fn roster(&self) -> &'a Roster {
        self.roster
    }

    pub(super) fn refuse(&mut self, refusal: Refusal) {
        self.refusals.push(refusal);
    }

    /// Sets everything the documents say. A document given twice is refused. `mint` makes ids for
    /// new nodes.
    pub fn apply(&mut self, documents: Vec<Document>, mint: &mut dyn FnMut() -> NodeId) {
        let mut seen = BTreeSet::new();
        let mut memberships = Vec::new();
        let mut computed = Vec::new();
        for document in documents {
            let kind = document.kind();
            let name = document.name();
            if !seen.insert((kind, name.clone())) {
                let diagnostic =
                    Diagnostic::new("", "it is declared twice").hint("keep one of them");
                self.refuse(Refusal::of(Reason::Invalid, kind, &name, diagnostic));
                continue;
            }
            self.mentioned.push((kind, name));
            match document {
                Document::Partition(name, spec) => self.put::<Partition>(name, spec),
                Document::Network(name, mut spec) => {
                    // An import gives it. A document without it must not take it away, or the two
                    // would overwrite each other for ever.
                    let known = self.document::<Network>(&name);
                    spec.smd_name = spec.smd_name.or_else(|| known?.spec.smd_name.clone());
                    self.put::<Network>(name, spec);
                }
                Document::Node(name, spec) => {
                    self.put_node_named(name, *spec, mint);
                }
                Document::Group(key, mut spec) => {
                    memberships.extend(spec.members.take().map(|names| (key.clone(), names)));
                    if spec.selector.is_some() {
                        computed.push(key.clone());
                    }
                    self.put::<Group>(key, spec);
                }
                Document::Artifact(name, spec) => self.put::<Artifact>(name, spec),
                Document::BootConfig(name, spec) => self.put::<BootConfig>(name, *spec),
                Document::MetadataLayer(name, spec) => self.put::<MetadataLayer>(name, *spec),
                Document::ProvisionProfile(name, spec) => {
                    self.put::<ProvisionProfile>(name, *spec);
                }
            }
        }
        // Only now are all nodes of the change known.
        for (key, names) in memberships {
            self.set_members(&key, &names);
        }
        for key in computed {
            self.let_go(&key);
        }
    }

    /// A group that becomes computed loses its listed members. Nodes of this draft that still list
    /// the group are refused by the check.
    fn let_go(&mut self, key: &GroupKey) {
        if self.roster.group(key).is_none_or(|before| before.spec.selector.is_some()) {
            return;
        }
        for id in self.explicit_members(key) {
            if !self.nodes.contains_key(&id) {
                self.amend_node(id, |node| node.spec.groups = node.spec.groups.without(&key.name));
            }
        }
    }

    /// Records the documents of the set. With `prune`, removes documents that the set contained
    /// before and does not contain now; without it they stay in the set, so that a later prune
    /// finds them. A document that another set contains as well stays.
    pub fn record_set(&mut self, set: &Name, prune: bool) {
        let mut members: BTreeSet<String> =
            self.mentioned.iter().map(|(kind, name)| member_name(*kind, name)).collect();
        if !prune {
            let before = self.roster.set(set).into_iter().flat_map(|before| &before.members);
            members.extend(before.cloned());
        } else if let Some(before) = self.roster.set(set) {
            let others: Vec<_> = self.roster.sets().filter(|other| other.name != *set).collect();
            for gone in before.members.difference(&members) {
                if others.iter().any(|other| other.members.contains(gone)) {
                    continue;
                }
                let (kind, name) = gone.split_once('/').unwrap_or((gone, ""));
                if let Some(kind) = Kind::from_word(kind) {
                    self.remove_if_there(kind, name);
                }
            }
        }
        self.sets.insert(set.clone(), AppliedSet { name: set.clone(), members });
    }

    /// Creates a document or replaces its spec.
    pub fn put<T: DocumentKind>(&mut self, key: T::Key, spec: T::Spec) {
        let document = T::new(key.clone(), spec, 0);
        T::drafted_mut(self).insert(key, Some(document));
    }

    /// Changes the boot state of a node. A blank state is removed.
    pub fn amend_boot_state(&mut self, node: NodeId, by: &str, amend: impl FnOnce(&mut BootState)) {
        let mut state = self.state_of(node, by);
        amend(&mut state);
        by.clone_into(&mut state.by);
        state.since = self.now;
        self.states.insert(node, Some(state).filter(|state| !state.is_blank()));
    }

    /// Records the boot configuration that was handed out to a node. The author of the boot state
    /// stays.
    pub fn note_served_boot(&mut self, node: NodeId, out: &ServedBoot) {
        let mut state = self.state_of(node, "boot");
        state.note_served(out);
        self.states.insert(node, Some(state).filter(|state| !state.is_blank()));
    }

    fn state_of(&self, node: NodeId, by: &str) -> BootState {
        let state = self.boot_state(node).cloned();
        let mut state = state.unwrap_or_else(|| BootState::new(node, by, self.now));
        // The configuration was removed meanwhile. A dangling reference must not block other
        // changes.
        if state.once.as_ref().is_some_and(|once| self.document::<BootConfig>(once).is_none()) {
            state.once = None;
            state.reinstall = false;
        }
        state
    }

    pub fn put_bss(&mut self, record: BssRecord) {
        self.bss.insert(record.key.clone(), Some(record));
    }

    pub fn remove_bss(&mut self, key: BssKey) {
        self.bss.insert(key, None);
    }

    /// Sets the parameters of an image; empty ones are none.
    pub fn put_bss_image(&mut self, image: BssImageKey, params: String) {
        let kept =
            (!params.is_empty()).then(|| BssImage { image: image.clone(), params, revision: 0 });
        self.images.insert(image, kept);
    }

    /// Creates the node or replaces its spec.
    pub fn put_node_named(
        &mut self,
        name: Name,
        spec: NodeSpec,
        mint: &mut dyn FnMut() -> NodeId,
    ) -> NodeId {
        let id = self.id_of(&name).unwrap_or_else(mint);
        self.put_node(id, name, spec);
        id
    }

    pub fn put_node(&mut self, id: NodeId, name: Name, spec: NodeSpec) {
        let mut node = self.node(id).cloned().unwrap_or_else(|| self.new_node(id, name.clone()));
        node.name = name;
        node.spec = spec;
        self.keep(node);
    }

    /// A node that comes from a source: its managed fields are the source's to set.
    pub fn put_imported(&mut self, id: NodeId, name: Name, spec: NodeSpec, from: Provenance) {
        let mut node = self.node(id).cloned().unwrap_or_else(|| self.new_node(id, name.clone()));
        node.name = name;
        node.spec = spec;
        node.provenance = Some(Box::new(from));
        self.imported.insert(id);
        self.keep(node);
    }

    /// Changes a node in place. The result must be a valid node.
    pub fn amend_node(&mut self, id: NodeId, amend: impl FnOnce(&mut Node)) {
        if let Some(mut node) = self.node(id).cloned() {
            amend(&mut node);
            for diagnostic in node.spec.check() {
                let about = DocumentRef::new(Kind::Node, &node.name);
                self.refuse(Refusal::new(Reason::Invalid, about, diagnostic));
            }
            self.keep(node);
        }
    }

    /// Starts the next generation of a node. Tokens and the instance id of the old one become
    /// invalid.
    pub fn renew_node(&mut self, id: NodeId) {
        let Some(node) = self.node(id) else { return };
        if node.is_protected() {
            self.refuse(protected(node, "renewed"));
            return;
        }
        self.amend_node(id, |node| node.generation += 1);
    }

    fn new_node(&self, id: NodeId, name: Name) -> Node {
        Node {
            id,
            name,
            spec: NodeSpec::default(),
            protection: None,
            maintenance: None,
            provenance: None,
            generation: 0,
            revision: 0,
            created: self.now,
            updated: self.now,
        }
    }

    fn keep(&mut self, mut node: Node) {
        node.spec.shrink();
        self.names.insert(node.name.clone(), node.id);
        self.nodes.insert(node.id, Some(node));
    }

    /// Makes exactly these nodes the explicit members of a group.
    pub fn set_members(&mut self, key: &GroupKey, names: &BTreeSet<Name>) {
        let about = DocumentRef::new(Kind::Group, key);
        let mut wanted = BTreeSet::new();
        for name in names {
            match self.id_of(name).and_then(|id| self.node(id).map(|node| (id, node))) {
                Some((id, node)) if node.spec.partition == key.partition => {
                    wanted.insert(id);
                }
                Some((_, node)) => {
                    let message = format!("`{name}` is in partition `{}`", node.spec.partition);
                    let hint = format!(
                        "groups live inside a partition; move the node to `{}`",
                        key.partition
                    );
                    let diagnostic = Diagnostic::new("members", message).hint(hint);
                    self.refuse(Refusal::new(Reason::Invalid, about.clone(), diagnostic));
                }
                None => {
                    let diagnostic = Diagnostic::new("members", format!("node `{name}` not found"));
                    self.refuse(Refusal::new(Reason::Missing, about.clone(), diagnostic));
                }
            }
        }
        let current: BTreeSet<NodeId> = self.explicit_members(key).into_iter().collect();
        for id in current.difference(&wanted) {
            self.amend_node(*id, |node| node.spec.groups = node.spec.groups.without(&key.name));
        }
        for id in wanted.difference(&current) {
            self.amend_node(*id, |node| {
                node.spec.groups = node.spec.groups.with(key.name.clone());
            });
        }
    }

    fn explicit_members(&self, key: &GroupKey) -> Vec<NodeId> {
        let inside = |node: &Node| {
            node.spec.partition == key.partition && node.spec.groups.contains(&key.name)
        };
        let posted = self.roster.in_partition(&key.partition);
        let unchanged = posted.into_iter().filter(|node| !self.nodes.contains_key(&node.id));
        let mut members: Vec<_> = unchanged.filter(|n| inside(n)).map(|node| node.id).collect();
        members.extend(self.nodes.values().flatten().filter(|n| inside(n)).map(|node| node.id));
        members
    }

    /// Removes a document; one that is not there is refused.
    pub fn remove(&mut self, kind: Kind, name: &str) {
        if !self.remove_if_there(kind, name) {
            let diagnostic = Diagnostic::new("", "it does not exist");
            self.refuse(Refusal::of(Reason::Missing, kind, &name, diagnostic));
        }
    }

    fn remove_if_there(&mut self, kind: Kind, name: &str) -> bool {
        match kind {
            Kind::Node => {
                let Some(id) = name.parse().ok().and_then(|name| self.id_of(&name)) else {
                    return false;
                };
                self.remove_node(id);
            }
            Kind::Group => {
                let key = name.parse::<GroupKey>().ok();
                let Some(key) = key.filter(|key| self.document::<Group>(key).is_some()) else {
                    return false;
                };
                self.set_members(&key, &BTreeSet::new());
                self.groups.insert(key, None);
            }
            Kind::Partition => return self.remove_document::<Partition>(name),
            Kind::Network => return self.remove_document::<Network>(name),
            Kind::Artifact => return self.remove_document::<Artifact>(name),
            Kind::BootConfig => return self.remove_document::<BootConfig>(name),
            Kind::MetadataLayer => return self.remove_document::<MetadataLayer>(name),
            Kind::ProvisionProfile => return self.remove_document::<ProvisionProfile>(name),
        }
        true
    }

    /// `false` when the roster has no such document.
    fn remove_document<T: DocumentKind>(&mut self, name: &str) -> bool {
        let key = name.parse::<T::Key>().ok();
        let Some(key) = key.filter(|key| self.roster.document::<T>(key).is_some()) else {
            return false;
        };
        T::drafted_mut(self).insert(key, None);
        true
    }

    pub fn remove_node(&mut self, id: NodeId) {
        let Some(node) = self.node(id) else { return };
        if node.is_protected() {
            self.refuse(protected(node, "removed"));
            return;
        }
        let machine = returning_nodes::machine(node);
        self.nodes.insert(id, None);
        if let Some(state) = self.boot_state(id) {
            let kept = returning_nodes::kept(state, machine);
            self.states.insert(id, kept);
        }
        if self.roster.bss(&BssKey::Id(id)).is_some() {
            self.bss.insert(BssKey::Id(id), None);
        }
    }
}

/// Looking into the draft.
impl Draft<'_> {
    /// Everything that was drafted, be it a change or not.
    pub fn drafted(&self) -> impl Iterator<Item = ResourceKey> {
        let groups = self.drafted_keys::<Group>();
        let partitions = self.drafted_keys::<Partition>();
        let networks = self.drafted_keys::<Network>();
        let artifacts = self.drafted_keys::<Artifact>();
        let configs = self.drafted_keys::<BootConfig>();
        let layers = self.drafted_keys::<MetadataLayer>();
        let profiles = self.drafted_keys::<ProvisionProfile>();
        let bss = self.bss.keys().cloned().map(ResourceKey::Bss);
        let images = self.images.keys().map(ResourceKey::of_image);
        let sets = self.sets.keys().cloned().map(ResourceKey::Set);
        let declared = groups.chain(partitions).chain(networks).chain(artifacts).chain(configs);
        let declared = declared.chain(layers).chain(profiles).chain(sets).chain(bss).chain(images);
        // Last: a change of a group names the group before the nodes that follow from it.
        let states = self.states.keys().map(|id| ResourceKey::BootState(*id));
        let nodes = self.nodes.keys().map(|id| ResourceKey::Node(*id));
        declared.chain(states).chain(nodes)
    }

    fn drafted_keys<T: DocumentKind>(&self) -> impl Iterator<Item = ResourceKey> + use<'_, T> {
        T::drafted(self).keys().cloned().map(T::resource_key)
    }

    /// Whether a document comes out otherwise than it is. Records that are no documents count as
    /// changed.
    pub fn changes(&self, key: &ResourceKey) -> bool {
        match key {
            ResourceKey::Node(id) => match (self.roster.by_id(*id), self.node(*id)) {
                (Some(before), Some(after)) => !same_node(before, after),
                (before, after) => before.is_some() != after.is_some(),
            },
            ResourceKey::Group(key) => self.changes_document::<Group>(key),
            ResourceKey::Partition(name) => self.changes_document::<Partition>(name),
            ResourceKey::Network(name) => self.changes_document::<Network>(name),
            ResourceKey::Artifact(name) => self.changes_document::<Artifact>(name),
            ResourceKey::BootConfig(name) => self.changes_document::<BootConfig>(name),
            ResourceKey::MetadataLayer(name) => self.changes_document::<MetadataLayer>(name),
            ResourceKey::ProvisionProfile(name) => self.changes_document::<ProvisionProfile>(name),
            ResourceKey::BootState(_)
            | ResourceKey::Bss(_)
            | ResourceKey::BssImage(..)
            | ResourceKey::Set(_)
            | ResourceKey::Tombstone(..) => true,
        }
    }

    fn changes_document<T: DocumentKind>(&self, key: &T::Key) -> bool {
        let before = self.roster.document::<T>(key).map(|before| before.spec());
        before != self.document::<T>(key).map(T::spec)
    }

    /// A document as it is after the change.
    pub fn document<T: DocumentKind>(&self, key: &T::Key) -> Option<&T> {
        match T::drafted(self).get(key) {
            Some(changed) => changed.as_ref(),
            None => self.roster.document::<T>(key).map(Arc::as_ref),
        }
    }

    /// All documents of a kind as they are after the change: unchanged ones first.
    pub(super) fn documents<T: DocumentKind>(&self) -> impl Iterator<Item = &T> {
        let drafted = T::drafted(self);
        let unchanged = self.roster.documents::<T>();
        let unchanged = unchanged.filter(|document| !drafted.contains_key(&document.key()));
        unchanged.map(AsRef::as_ref).chain(drafted.values().flatten())
    }

    /// Whether the draft takes this node away.
    pub fn removes(&self, node: NodeId) -> bool {
        self.nodes.get(&node).is_some_and(Option::is_none)
    }

    pub fn boot_state(&self, node: NodeId) -> Option<&BootState> {
        match self.states.get(&node) {
            Some(changed) => changed.as_ref(),
            None => self.roster.boot_state(node).map(Arc::as_ref),
        }
    }

    pub fn bss(&self, key: &BssKey) -> Option<&BssRecord> {
        match self.bss.get(key) {
            Some(changed) => changed.as_ref(),
            None => self.roster.bss(key).map(Arc::as_ref),
        }
    }

    pub(super) fn has_artifact(&self, name: &str) -> bool {
        match self.artifacts.iter().find(|(drafted, _)| drafted.as_str() == name) {
            Some((_, changed)) => changed.is_some(),
            None => self.roster.artifact(name).is_some(),
        }
    }

    pub fn node(&self, id: NodeId) -> Option<&Node> {
        match self.nodes.get(&id) {
            Some(changed) => changed.as_ref(),
            None => self.roster.by_id(id).map(Arc::as_ref),
        }
    }

    pub fn id_of(&self, name: &Name) -> Option<NodeId> {
        let drafted = self.names.get(name).copied();
        let known = || self.roster.by_name(name).map(|node| node.id);
        drafted.or_else(known).filter(|id| self.node(*id).is_some_and(|node| node.name == *name))
    }

    /// Whether a document of this draft has the name.
    pub(super) fn mentions(&self, kind: Kind, name: &Name) -> bool {
        let plain = DocumentName::Plain(name.clone());
        self.mentioned.contains(&(kind, plain))
    }

    pub(super) fn has_partition(&self, name: &Name) -> bool {
        *name == Name::default_partition() || self.document::<Partition>(name).is_some()
    }

    pub(super) fn has_network(&self, name: &Name) -> bool {
        self.document::<Network>(name).is_some()
    }
}

impl Draft<'_> {
    /// The plan, or everything that is wrong with the change.
    pub fn finish(mut self) -> Result<Plan, Vec<Refusal>> {
        returning_nodes::restore(&mut self);
        check::whole(&mut self);
        if !self.refusals.is_empty() {
            return Err(self.refusals);
        }
        let base = self.roster.revision();
        let mut plan = Plan {
            base,
            puts: Vec::new(),
            deletes: Vec::new(),
            items: Vec::new(),
            affected: Vec::new(),
            warnings: Vec::new(),
        };
        self.plan_documents::<Partition>(&mut plan);
        self.plan_documents::<Network>(&mut plan);
        self.plan_documents::<Group>(&mut plan);
        self.plan_nodes(&mut plan);
        self.plan_documents::<Artifact>(&mut plan);
        self.plan_documents::<BootConfig>(&mut plan);
        self.plan_documents::<MetadataLayer>(&mut plan);
        self.plan_documents::<ProvisionProfile>(&mut plan);
        self.plan_records(&mut plan);
        self.plan_sets(&mut plan);
        affected::find(self.roster, &mut plan, self.now);
        Ok(plan)
    }

    fn plan_nodes(&mut self, plan: &mut Plan) {
        for (id, node) in std::mem::take(&mut self.nodes) {
            let before = self.roster.by_id(id);
            match (before, node) {
                (Some(before), Some(mut node)) => {
                    if same_node(before, &node) {
                        plan.items.push(item(Kind::Node, &node.name, SiteChange::Unchanged));
                        continue;
                    }
                    let mut change = item(Kind::Node, &node.name, SiteChange::Changed);
                    change.fields = fields::changed(&before.spec, &node.spec);
                    if before.generation != node.generation {
                        let from = before.generation.into();
                        let to = node.generation.into();
                        let at = "generation".to_owned();
                        change.fields.push(FieldChange { at, from: Some(from), to: Some(to) });
                    }
                    change.fields.extend(fields::changed(&Marks::of(before), &Marks::of(&node)));
                    plan.items.push(change);
                    node.revision = plan.base + 1;
                    node.updated = self.now;
                    plan.puts.push(Resource::Node(Arc::new(node)));
                }
                (None, Some(mut node)) => {
                    plan.items.push(item(Kind::Node, &node.name, SiteChange::Created));
                    node.revision = plan.base + 1;
                    plan.puts.push(Resource::Node(Arc::new(node)));
                }
                (Some(before), None) => {
                    plan.items.push(item(Kind::Node, &before.name, SiteChange::Removed));
                    plan.deletes.push(ResourceKey::Node(id));
                    let tombstone = Tombstone { node: id, revision: plan.base + 1, at: self.now };
                    plan.puts.push(Resource::Tombstone(tombstone));
                }
                (None, None) => {}
            }
        }
    }

    /// Puts documents that differ into the plan; unchanged ones are only listed.
    fn plan_documents<T: DocumentKind>(&mut self, plan: &mut Plan) {
        let revision = plan.base + 1;
        for (key, after) in std::mem::take(T::drafted_mut(self)) {
            let before = self.roster.document::<T>(&key).map(|before| before.spec());
            let mut entry = item(T::KIND, &key, SiteChange::Unchanged);
            match (before, after) {
                (Some(before), Some(after)) => {
                    if before != after.spec() {
                        entry.change = SiteChange::Changed;
                        entry.fields = fields::changed(before, after.spec());
                        let put = T::new(key, after.into_spec(), revision);
                        plan.puts.push(put.into_resource());
                    }
                }
                (None, Some(after)) => {
                    entry.change = SiteChange::Created;
                    let put = T::new(key, after.into_spec(), revision);
                    plan.puts.push(put.into_resource());
                }
                (Some(_), None) => {
                    entry.change = SiteChange::Removed;
                    plan.deletes.push(T::resource_key(key));
                }
                (None, None) => continue,
            }
            plan.items.push(entry);
        }
    }

    /// Records that are no documents.
    fn plan_records(&mut self, plan: &mut Plan) {
        let revision = plan.base + 1;
        for (id, state) in std::mem::take(&mut self.states) {
            let before = self.roster.boot_state(id).map(Arc::as_ref);
            let after = state.map(|state| BootState { revision, ..state });
            // Repeating the current state is no change, even by another author.
            let same = before.zip(after.as_ref()).is_some_and(|(before, after)| {
                let BootState { revision, since, by, .. } = before.clone();
                *before == BootState { revision, since, by, ..after.clone() }
            });
            let name = self.roster.by_id(id).map_or_else(|| id.to_string(), |n| n.name.to_string());
            let fields = record_fields(before, after.as_ref(), &["node", "since", "by", "decided"]);
            let put = after.map(|state| Resource::BootState(Arc::new(state)));
            let key = ResourceKey::BootState(id);
            let item = record_item("BootState", name, before.is_some(), put.is_some(), same);
            plan_record(plan, item, fields, key, put);
        }
        for (key, record) in std::mem::take(&mut self.bss) {
            let before = self.roster.bss(&key).map(Arc::as_ref);
            let after = record.map(|record| BssRecord { revision, ..record });
            let same = before.zip(after.as_ref()).is_some_and(|(before, after)| {
                *before == BssRecord { revision: before.revision, ..after.clone() }
            });
            let fields = record_fields(before, after.as_ref(), &["key", "referral_token"]);
            let put = after.map(|record| Resource::Bss(Arc::new(record)));
            let name = key.to_string();
            let item = record_item("BootParameters", name, before.is_some(), put.is_some(), same);
            plan_record(plan, item, fields, ResourceKey::Bss(key), put);
        }
        for (image, after) in std::mem::take(&mut self.images) {
            let before = self.roster.bss_image(&image).map(Arc::as_ref);
            let after = after.map(|image| BssImage { revision, ..image });
            let same = before.zip(after.as_ref()).is_some_and(|(a, b)| a.params == b.params);
            let fields = record_fields(before, after.as_ref(), &["image"]);
            let put = after.map(|image| Resource::BssImage(Arc::new(image)));
            let key = ResourceKey::of_image(&image);
            let item = record_item("BootImage", image.path, before.is_some(), put.is_some(), same);
            plan_record(plan, item, fields, key, put);
        }
    }

    fn plan_sets(&mut self, plan: &mut Plan) {
        for (name, set) in std::mem::take(&mut self.sets) {
            if self.roster.set(&name).map(Arc::as_ref) != Some(&set) {
                plan.puts.push(Resource::Set(Arc::new(set)));
            }
        }
    }
}

/// What happens to a record that is no document; `None` if it never was and will not be.
fn record_item(kind: &str, name: String, was: bool, will_be: bool, same: bool) -> Option<Item> {
    let change = match (was, will_be) {
        (true, true) if same => SiteChange::Unchanged,
        (true, true) => SiteChange::Changed,
        (false, true) => SiteChange::Created,
        (true, false) => SiteChange::Removed,
        (false, false) => return None,
    };
    Some(Item { kind: kind.to_owned(), name, change, fields: Vec::new() })
}

fn plan_record(
    plan: &mut Plan,
    item: Option<Item>,
    fields: Vec<FieldChange>,
    key: ResourceKey,
    put: Option<Resource>,
) {
    let Some(mut item) = item else { return };
    match item.change {
        SiteChange::Unchanged => {}
        SiteChange::Removed => plan.deletes.push(key),
        SiteChange::Created | SiteChange::Changed => {
            plan.puts.extend(put);
            item.fields = fields;
        }
    }
    plan.items.push(item);
}

/// The fields that a record changes, also when it is new; not those in `own`, which every write
/// sets.
fn record_fields<T: serde::Serialize>(
    before: Option<&T>,
    after: Option<&T>,
    own: &[&str],
) -> Vec<FieldChange> {
    let Some(after) = after else { return Vec::new() };
    let mut changes = match before {
        Some(before) => fields::changed(before, after),
        None => fields::changed(&serde_json::Map::new(), after),
    };
    changes.retain(|change| change.at != "revision" && !own.contains(&change.at.as_str()));
    changes
}

fn protected(node: &Node, what: &str) -> Refusal {
    let diagnostic = Diagnostic::new("", format!("it is protected and cannot be {what}"))
        .hint(format!("`hoist node protect --off {}` first", node.name));
    Refusal::of(Reason::Protected, Kind::Node, &node.name, diagnostic)
}

fn item(kind: Kind, name: &impl std::fmt::Display, change: SiteChange) -> Item {
    Item { kind: kind.as_str().to_owned(), name: name.to_string(), change, fields: Vec::new() }
}

/// Equal in everything that is not set by the commit itself.
fn same_node(before: &Node, after: &Node) -> bool {
    before.name == after.name
        && before.spec == after.spec
        && before.protection == after.protection
        && before.maintenance == after.maintenance
        && before.provenance == after.provenance
        && before.generation == after.generation
}

/// Marks of operators, which are not in the spec.
#[derive(serde::Serialize)]
struct Marks<'n> {
    #[serde(skip_serializing_if = "Option::is_none")]
    protection: Option<&'n hoist_model::Protection>,
    #[serde(skip_serializing_if = "Option::is_none")]
    maintenance: Option<&'n hoist_model::Maintenance>,
}

impl<'n> Marks<'n> {
    fn of(node: &'n Node) -> Self {
        Self { protection: node.protection.as_deref(), maintenance: node.maintenance.as_deref() }
    }
}
