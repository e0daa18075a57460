//! Changes collected over a roster, before they are checked.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use hoist_model::document::{Document, DocumentName, Spec};
use hoist_model::{
    Artifact, ArtifactName, ArtifactSpec, BootConfig, BootConfigSpec, BootState, BssImage,
    BssImageKey, BssKey, BssRecord, Fault, Group, GroupKey, GroupSpec, HandOut, Kind,
    MetadataLayer, MetadataLayerSpec, Name, Network, NetworkSpec, Node, NodeId, NodeSpec,
    Partition, PartitionSpec, Provenance, ProvisionProfile, ProvisionProfileSpec,
};
use jiff::Timestamp;

use super::{
    Change, FieldChange, Item, Plan, Reason, Refusal, affected, check, fields, returning, subject,
};
use crate::record::{AppliedSet, Resource, ResourceKey, Tombstone, member_name};
use crate::roster::Roster;

/// A working copy: what is in the maps replaces what the roster has; `None` removes it.
#[derive(Debug)]
pub struct Draft<'a> {
    pub(super) roster: &'a Roster,
    now: Timestamp,
    pub(super) nodes: BTreeMap<NodeId, Option<Node>>,
    pub(super) groups: BTreeMap<GroupKey, Option<Group>>,
    pub(super) partitions: BTreeMap<Name, Option<Partition>>,
    pub(super) networks: BTreeMap<Name, Option<Network>>,
    pub(super) artifacts: BTreeMap<ArtifactName, Option<Artifact>>,
    pub(super) configs: BTreeMap<Name, Option<BootConfig>>,
    layers: BTreeMap<Name, Option<MetadataLayer>>,
    pub(super) profiles: BTreeMap<Name, Option<ProvisionProfile>>,
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
            configs: BTreeMap::new(),
            layers: BTreeMap::new(),
            profiles: BTreeMap::new(),
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
        let (mut memberships, mut computed) = (Vec::new(), Vec::new());
        for Document { name, spec } in documents {
            let kind = spec.kind();
            if !seen.insert((kind, name.clone())) {
                let fault = Fault::new("", "it is declared twice").hint("keep one of them");
                self.refuse(Refusal::new(Reason::Invalid, subject(kind, &name), fault));
                continue;
            }
            self.mentioned.push((kind, name.clone()));
            match (spec, name) {
                (Spec::Partition(spec), DocumentName::Plain(name)) => {
                    self.put_partition(name, spec);
                }
                (Spec::Network(spec), DocumentName::Plain(name)) => self.put_network(name, spec),
                (Spec::Node(spec), DocumentName::Plain(name)) => {
                    self.put_node_named(name, *spec, mint);
                }
                (Spec::Group(mut spec), DocumentName::Group(key)) => {
                    memberships.extend(spec.members.take().map(|names| (key.clone(), names)));
                    if spec.selector.is_some() {
                        computed.push(key.clone());
                    }
                    self.put_group(key, spec);
                }
                (Spec::Artifact(spec), DocumentName::Artifact(name)) => {
                    self.put_artifact(name, spec);
                }
                (Spec::BootConfig(spec), DocumentName::Plain(name)) => {
                    self.put_boot_config(name, *spec);
                }
                (Spec::MetadataLayer(spec), DocumentName::Plain(name)) => {
                    self.put_metadata_layer(name, *spec);
                }
                (Spec::ProvisionProfile(spec), DocumentName::Plain(name)) => {
                    self.put_provision_profile(name, *spec);
                }
                (spec, name) => unreachable!("a {} named {name}", spec.kind()),
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

    /// A group that becomes a computed one has no listed members any more. Nodes of this draft
    /// that still list it are told so.
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

    /// Remembers what the set contains now; with `prune`, removes what it contained before and does
    /// not any more. Without, that stays in the set, so that a later prune finds it. What another
    /// set contains as well is that one's to remove.
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

    pub fn put_partition(&mut self, name: Name, spec: PartitionSpec) {
        let partition = Partition { name: name.clone(), spec, revision: 0 };
        self.partitions.insert(name, Some(partition));
    }

    pub fn put_network(&mut self, name: Name, spec: NetworkSpec) {
        let network = Network { name: name.clone(), spec, revision: 0 };
        self.networks.insert(name, Some(network));
    }

    pub fn put_group(&mut self, key: GroupKey, spec: GroupSpec) {
        let group =
            Group { partition: key.partition.clone(), name: key.name.clone(), spec, revision: 0 };
        self.groups.insert(key, Some(group));
    }

    pub fn put_artifact(&mut self, name: ArtifactName, spec: ArtifactSpec) {
        let artifact = Artifact { name: name.clone(), spec, revision: 0 };
        self.artifacts.insert(name, Some(artifact));
    }

    pub fn put_boot_config(&mut self, name: Name, spec: BootConfigSpec) {
        let config = BootConfig { name: name.clone(), spec, revision: 0 };
        self.configs.insert(name, Some(config));
    }

    pub fn put_metadata_layer(&mut self, name: Name, spec: MetadataLayerSpec) {
        let layer = MetadataLayer { name: name.clone(), spec, revision: 0 };
        self.layers.insert(name, Some(layer));
    }

    pub fn put_provision_profile(&mut self, name: Name, spec: ProvisionProfileSpec) {
        let profile = ProvisionProfile { name: name.clone(), spec, revision: 0 };
        self.profiles.insert(name, Some(profile));
    }

    /// Changes what is decided about a node's booting. One that says nothing is removed.
    pub fn amend_boot_state(&mut self, node: NodeId, by: &str, amend: impl FnOnce(&mut BootState)) {
        let mut state = self.state_of(node, by);
        amend(&mut state);
        by.clone_into(&mut state.by);
        state.since = self.now;
        self.states.insert(node, Some(state).filter(|state| !state.is_blank()));
    }

    /// Takes note of what a node was handed out. Who decided what about it stays as it is.
    pub fn note_hand_out(&mut self, node: NodeId, out: &HandOut) {
        let mut state = self.state_of(node, "boot");
        state.hand_out(out);
        self.states.insert(node, Some(state).filter(|state| !state.is_blank()));
    }

    fn state_of(&self, node: NodeId, by: &str) -> BootState {
        let state = self.boot_state(node).cloned();
        let mut state = state.unwrap_or_else(|| BootState::new(node, by, self.now));
        // Removed meanwhile, it leads nowhere, and must not keep anybody from changing the rest.
        if state.once.as_ref().is_some_and(|once| self.boot_config(once).is_none()) {
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

    /// Changes a node in place. What comes out has to be a valid node.
    pub fn amend_node(&mut self, id: NodeId, amend: impl FnOnce(&mut Node)) {
        if let Some(mut node) = self.node(id).cloned() {
            amend(&mut node);
            for fault in node.spec.check() {
                let about = subject(Kind::Node, &node.name);
                self.refuse(Refusal::new(Reason::Invalid, about, fault));
            }
            self.keep(node);
        }
    }

    /// Makes the node the next generation of itself: what was made for this one (tokens, instance id)
    /// is good for nothing any more.
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
        let about = subject(Kind::Group, key);
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
                    let fault = Fault::new("members", message).hint(hint);
                    self.refuse(Refusal::new(Reason::Invalid, about.clone(), fault));
                }
                None => {
                    let fault = Fault::new("members", format!("there is no node `{name}`"));
                    self.refuse(Refusal::new(Reason::Missing, about.clone(), fault));
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
            let fault = Fault::new("", "it does not exist");
            self.refuse(Refusal::new(Reason::Missing, subject(kind, &name), fault));
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
                let Some(key) = key.filter(|key| self.group(key).is_some()) else { return false };
                self.set_members(&key, &BTreeSet::new());
                self.groups.insert(key, None);
            }
            Kind::Partition => {
                let found = self.roster.partition(name).map(|partition| partition.name.clone());
                let Some(name) = found else { return false };
                self.partitions.insert(name, None);
            }
            Kind::Artifact => {
                let found = self.roster.artifact(name).map(|artifact| artifact.name.clone());
                let Some(name) = found else { return false };
                self.artifacts.insert(name, None);
            }
            Kind::BootConfig => {
                let found = self.roster.boot_config(name).map(|config| config.name.clone());
                let Some(name) = found else { return false };
                self.configs.insert(name, None);
            }
            Kind::MetadataLayer => {
                let found = self.roster.metadata_layer(name).map(|layer| layer.name.clone());
                let Some(name) = found else { return false };
                self.layers.insert(name, None);
            }
            Kind::ProvisionProfile => {
                let found = self.roster.provision_profile(name).map(|found| found.name.clone());
                let Some(name) = found else { return false };
                self.profiles.insert(name, None);
            }
            Kind::Network => {
                let found = self.roster.network(name).map(|network| network.name.clone());
                let Some(name) = found else { return false };
                self.networks.insert(name, None);
            }
        }
        true
    }

    pub fn remove_node(&mut self, id: NodeId) {
        let Some(node) = self.node(id) else { return };
        if node.is_protected() {
            self.refuse(protected(node, "removed"));
            return;
        }
        let machine = returning::machine(node);
        self.nodes.insert(id, None);
        if let Some(state) = self.boot_state(id) {
            let kept = returning::kept(state, machine);
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
        let groups = self.groups.keys().cloned().map(ResourceKey::Group);
        let partitions = self.partitions.keys().cloned().map(ResourceKey::Partition);
        let networks = self.networks.keys().cloned().map(ResourceKey::Network);
        let artifacts = self.artifacts.keys().cloned().map(ResourceKey::Artifact);
        let configs = self.configs.keys().cloned().map(ResourceKey::BootConfig);
        let layers = self.layers.keys().cloned().map(ResourceKey::MetadataLayer);
        let profiles = self.profiles.keys().cloned().map(ResourceKey::ProvisionProfile);
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

    /// Whether a document comes out otherwise than it is. Records that are no documents count as
    /// changed.
    pub fn changes(&self, key: &ResourceKey) -> bool {
        match key {
            ResourceKey::Node(id) => match (self.roster.by_id(*id), self.node(*id)) {
                (Some(before), Some(after)) => !same_node(before, after),
                (before, after) => before.is_some() != after.is_some(),
            },
            ResourceKey::Group(key) => {
                let before = self.roster.group(key).map(|before| &before.spec);
                before != self.group(key).map(|after| &after.spec)
            }
            ResourceKey::Partition(name) => {
                let before = self.roster.partition(name).map(|before| &before.spec);
                differs(&self.partitions, name, before, |after| &after.spec)
            }
            ResourceKey::Network(name) => {
                let before = self.roster.network(name).map(|before| &before.spec);
                differs(&self.networks, name, before, |after| &after.spec)
            }
            ResourceKey::Artifact(name) => {
                let before = self.roster.artifact(name).map(|before| &before.spec);
                differs(&self.artifacts, name, before, |after| &after.spec)
            }
            ResourceKey::BootConfig(name) => {
                let before = self.roster.boot_config(name).map(|before| &before.spec);
                differs(&self.configs, name, before, |after| &after.spec)
            }
            ResourceKey::MetadataLayer(name) => {
                let before = self.roster.metadata_layer(name).map(|before| &before.spec);
                differs(&self.layers, name, before, |after| &after.spec)
            }
            ResourceKey::ProvisionProfile(name) => {
                let before = self.roster.provision_profile(name).map(|before| &before.spec);
                differs(&self.profiles, name, before, |after| &after.spec)
            }
            ResourceKey::BootState(_)
            | ResourceKey::Bss(_)
            | ResourceKey::BssImage(..)
            | ResourceKey::Set(_)
            | ResourceKey::Tombstone(..) => true,
        }
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

    pub(super) fn boot_config(&self, name: &Name) -> Option<&BootConfig> {
        match self.configs.get(name) {
            Some(changed) => changed.as_ref(),
            None => self.roster.boot_config(name).map(Arc::as_ref),
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

    pub(super) fn group(&self, key: &GroupKey) -> Option<&Group> {
        match self.groups.get(key) {
            Some(changed) => changed.as_ref(),
            None => self.roster.group(key).map(Arc::as_ref),
        }
    }

    pub(super) fn has_partition(&self, name: &Name) -> bool {
        *name == Name::default_partition()
            || match self.partitions.get(name) {
                Some(changed) => changed.is_some(),
                None => self.roster.partition(name).is_some(),
            }
    }

    pub(super) fn has_network(&self, name: &Name) -> bool {
        match self.networks.get(name) {
            Some(changed) => changed.is_some(),
            None => self.roster.network(name).is_some(),
        }
    }
}

impl Draft<'_> {
    /// The plan, or everything that is wrong with the change.
    pub fn finish(mut self) -> Result<Plan, Vec<Refusal>> {
        returning::restore(&mut self);
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
        };
        self.plan_rest(&mut plan);
        self.plan_nodes(&mut plan);
        self.plan_boot(&mut plan);
        self.plan_layers(&mut plan);
        self.plan_profiles(&mut plan);
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
                        plan.items.push(item(Kind::Node, &node.name, Change::Unchanged));
                        continue;
                    }
                    let mut change = item(Kind::Node, &node.name, Change::Changed);
                    change.fields = fields::changed(&before.spec, &node.spec);
                    if before.generation != node.generation {
                        let (from, to) = (before.generation.into(), node.generation.into());
                        let at = "generation".to_owned();
                        change.fields.push(FieldChange { at, from: Some(from), to: Some(to) });
                    }
                    plan.items.push(change);
                    node.revision = plan.base + 1;
                    node.updated = self.now;
                    plan.puts.push(Resource::Node(Arc::new(node)));
                }
                (None, Some(mut node)) => {
                    plan.items.push(item(Kind::Node, &node.name, Change::Created));
                    node.revision = plan.base + 1;
                    plan.puts.push(Resource::Node(Arc::new(node)));
                }
                (Some(before), None) => {
                    plan.items.push(item(Kind::Node, &before.name, Change::Removed));
                    plan.deletes.push(ResourceKey::Node(id));
                    let tombstone = Tombstone { node: id, revision: plan.base + 1, at: self.now };
                    plan.puts.push(Resource::Tombstone(tombstone));
                }
                (None, None) => {}
            }
        }
    }

    fn plan_rest(&mut self, plan: &mut Plan) {
        let revision = plan.base + 1;
        for (name, partition) in std::mem::take(&mut self.partitions) {
            let before = self.roster.partition(&name).map(|before| &before.spec);
            let after = partition.as_ref().map(|after| &after.spec);
            let put = partition
                .clone()
                .map(|p| Resource::Partition(Arc::new(Partition { revision, ..p })));
            plan_one(
                plan,
                Kind::Partition,
                &name,
                before,
                after,
                put,
                ResourceKey::Partition(name.clone()),
            );
        }
        for (name, network) in std::mem::take(&mut self.networks) {
            let before = self.roster.network(&name).map(|before| &before.spec);
            let after = network.as_ref().map(|after| &after.spec);
            let put =
                network.clone().map(|n| Resource::Network(Arc::new(Network { revision, ..n })));
            plan_one(
                plan,
                Kind::Network,
                &name,
                before,
                after,
                put,
                ResourceKey::Network(name.clone()),
            );
        }
        for (key, group) in std::mem::take(&mut self.groups) {
            let before = self.roster.group(&key).map(|before| &before.spec);
            let after = group.as_ref().map(|after| &after.spec);
            let put = group.clone().map(|g| Resource::Group(Arc::new(Group { revision, ..g })));
            plan_one(plan, Kind::Group, &key, before, after, put, ResourceKey::Group(key.clone()));
        }
    }

    fn plan_boot(&mut self, plan: &mut Plan) {
        let revision = plan.base + 1;
        for (name, artifact) in std::mem::take(&mut self.artifacts) {
            let before = self.roster.artifact(&name).map(|before| &before.spec);
            let after = artifact.as_ref().map(|after| &after.spec);
            let put =
                artifact.clone().map(|a| Resource::Artifact(Arc::new(Artifact { revision, ..a })));
            let key = ResourceKey::Artifact(name.clone());
            plan_one(plan, Kind::Artifact, &name, before, after, put, key);
        }
        for (name, config) in std::mem::take(&mut self.configs) {
            let before = self.roster.boot_config(&name).map(|before| &before.spec);
            let after = config.as_ref().map(|after| &after.spec);
            let put = config
                .clone()
                .map(|c| Resource::BootConfig(Arc::new(BootConfig { revision, ..c })));
            let key = ResourceKey::BootConfig(name.clone());
            plan_one(plan, Kind::BootConfig, &name, before, after, put, key);
        }
    }

    fn plan_layers(&mut self, plan: &mut Plan) {
        let revision = plan.base + 1;
        for (name, layer) in std::mem::take(&mut self.layers) {
            let before = self.roster.metadata_layer(&name).map(|before| &before.spec);
            let after = layer.as_ref().map(|after| &after.spec);
            let put = layer
                .clone()
                .map(|l| Resource::MetadataLayer(Arc::new(MetadataLayer { revision, ..l })));
            let key = ResourceKey::MetadataLayer(name.clone());
            plan_one(plan, Kind::MetadataLayer, &name, before, after, put, key);
        }
    }

    fn plan_profiles(&mut self, plan: &mut Plan) {
        let revision = plan.base + 1;
        for (name, profile) in std::mem::take(&mut self.profiles) {
            let before = self.roster.provision_profile(&name).map(|before| &before.spec);
            let after = profile.as_ref().map(|after| &after.spec);
            let put = profile
                .clone()
                .map(|p| Resource::ProvisionProfile(Arc::new(ProvisionProfile { revision, ..p })));
            let key = ResourceKey::ProvisionProfile(name.clone());
            plan_one(plan, Kind::ProvisionProfile, &name, before, after, put, key);
        }
    }

    /// Records that are no documents.
    fn plan_records(&mut self, plan: &mut Plan) {
        let revision = plan.base + 1;
        for (id, state) in std::mem::take(&mut self.states) {
            let before = self.roster.boot_state(id).map(Arc::as_ref);
            let after = state.map(|state| BootState { revision, ..state });
            // Saying again what holds already is no change, whoever says it.
            let same = before.zip(after.as_ref()).is_some_and(|(before, after)| {
                let BootState { revision, since, by, .. } = before.clone();
                *before == BootState { revision, since, by, ..after.clone() }
            });
            let name = self.roster.by_id(id).map_or_else(|| id.to_string(), |n| n.name.to_string());
            let put = after.map(|state| Resource::BootState(Arc::new(state)));
            let key = ResourceKey::BootState(id);
            plan_record(plan, "BootState", name, key, before.is_some(), same, put);
        }
        for (key, record) in std::mem::take(&mut self.bss) {
            let before = self.roster.bss(&key).map(Arc::as_ref);
            let after = record.map(|record| BssRecord { revision, ..record });
            let same = before.zip(after.as_ref()).is_some_and(|(before, after)| {
                *before == BssRecord { revision: before.revision, ..after.clone() }
            });
            let name = key.to_string();
            let put = after.map(|record| Resource::Bss(Arc::new(record)));
            let key = ResourceKey::Bss(key);
            plan_record(plan, "BootParameters", name, key, before.is_some(), same, put);
        }
        for (image, after) in std::mem::take(&mut self.images) {
            let before = self.roster.bss_image(&image).map(Arc::as_ref);
            let after = after.map(|image| BssImage { revision, ..image });
            let same = before.zip(after.as_ref()).is_some_and(|(a, b)| a.params == b.params);
            let key = ResourceKey::of_image(&image);
            let put = after.map(|image| Resource::BssImage(Arc::new(image)));
            plan_record(plan, "BootImage", image.path, key, before.is_some(), same, put);
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

/// Puts what differs into the plan; what stays the same is only listed.
fn plan_one<S: serde::Serialize + PartialEq>(
    plan: &mut Plan,
    kind: Kind,
    name: &impl std::fmt::Display,
    before: Option<&S>,
    after: Option<&S>,
    put: Option<Resource>,
    key: ResourceKey,
) {
    let mut entry = item(kind, name, Change::Unchanged);
    match (before, after) {
        (Some(before), Some(after)) if before != after => {
            entry.change = Change::Changed;
            entry.fields = fields::changed(before, after);
            plan.puts.extend(put);
        }
        (None, Some(_)) => {
            entry.change = Change::Created;
            plan.puts.extend(put);
        }
        (Some(_), None) => {
            entry.change = Change::Removed;
            plan.deletes.push(key);
        }
        (Some(_), Some(_)) => {}
        (None, None) => return,
    }
    plan.items.push(entry);
}

fn plan_record(
    plan: &mut Plan,
    kind: &str,
    name: String,
    key: ResourceKey,
    was_there: bool,
    same: bool,
    put: Option<Resource>,
) {
    let change = match (was_there, &put) {
        (true, Some(_)) if same => Change::Unchanged,
        (true, Some(_)) => Change::Changed,
        (false, Some(_)) => Change::Created,
        (true, None) => Change::Removed,
        (false, None) => return,
    };
    match change {
        Change::Unchanged => {}
        Change::Removed => plan.deletes.push(key),
        Change::Created | Change::Changed => plan.puts.extend(put),
    }
    plan.items.push(Item { kind: kind.to_owned(), name, change, fields: Vec::new() });
}

fn protected(node: &Node, what: &str) -> Refusal {
    let fault = Fault::new("", format!("it is protected and cannot be {what}"))
        .hint(format!("`hoist node protect --off {}` first", node.name));
    Refusal::new(Reason::Protected, subject(Kind::Node, &node.name), fault)
}

fn item(kind: Kind, name: &impl std::fmt::Display, change: Change) -> Item {
    Item { kind: kind.as_str().to_owned(), name: name.to_string(), change, fields: Vec::new() }
}

/// Whether a drafted document is another one than before.
fn differs<K: Ord, T, S: PartialEq>(
    drafted: &BTreeMap<K, Option<T>>,
    key: &K,
    before: Option<&S>,
    spec: impl Fn(&T) -> &S,
) -> bool {
    drafted.get(key).is_some_and(|after| after.as_ref().map(spec) != before)
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
