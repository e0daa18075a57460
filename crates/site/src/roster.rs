//! All declared records of the site in memory: immutable, indexed, replaced whole.
//!
//! A [`Roster`] is a frozen base with compact indexes plus a small overlay of what changed since.
//! Making the next one costs as much as the overlay, not as much as the site; when the overlay has
//! grown, it is folded into a new base in the background. Readers hold an `Arc` and see one
//! revision, however long they look.
//!
//! Does not belong here: writing (`registry`), validation (`plan`) and the store.

mod base;
mod overlay;
mod shards;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::IpAddr;
use std::sync::{Arc, OnceLock};

use hoist_model::selector::{BindError, Bound, Subject, Vocabulary};
use hoist_model::{
    Artifact, Boot, BootConfig, BootState, BssImage, BssImageKey, BssKey, BssRecord, Group,
    GroupKey, GroupName, Lifecycle, Mac, MetadataLayer, Name, Network, Nid, Node, NodeId,
    Partition, ProvisionProfile, Selector, Xname,
};

use crate::kind::{DocumentKind, Table};
use crate::record::{AppliedSet, Resource, ResourceKey, ResourceKind, Tombstone};
use base::{At, Base};
use overlay::Overlay;
use shards::Shards;

/// Random, new for every new store and after every restore: revisions of different incarnations
/// say nothing about each other.
#[derive(Debug, Clone, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct Incarnation(String);

/// Marks the incarnation of a restored store. Other incarnations are hexadecimal.
const RESTORED: char = 'r';

impl Incarnation {
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// For a store that was filled from a backup or from another store.
    pub(crate) fn restored(fresh: &Self) -> Self {
        Self(format!("{RESTORED}{}", fresh.0))
    }

    /// Whether the site had revisions in another incarnation: a revision that does not name its
    /// incarnation may be of that one.
    pub fn is_restored(&self) -> bool {
        self.0.starts_with(RESTORED)
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// One committed change, as the next roster needs it.
#[derive(Debug, Clone, Default)]
pub struct Delta {
    pub revision: u64,
    pub horizon: u64,
    pub puts: Vec<Resource>,
    pub deletes: Vec<ResourceKey>,
}

#[derive(Debug, Clone)]
pub struct Roster {
    incarnation: Incarnation,
    revision: u64,
    horizon: u64,
    base: Arc<Base>,
    overlay: Arc<Overlay>,
    tables: Arc<Tables>,
    records: Arc<Records>,
    /// Computed groups with their selectors bound, made on first use.
    computed: Arc<OnceLock<Vec<ComputedGroup>>>,
}

/// A group whose members are computed.
#[derive(Debug)]
struct ComputedGroup {
    key: GroupKey,
    priority: i32,
    members: Bound,
}

/// Everything that is not a node. There is little of it, and it changes rarely.
#[derive(Debug, Clone, Default)]
pub struct Tables {
    pub(crate) groups: Table<Group>,
    pub(crate) partitions: Table<Partition>,
    pub(crate) networks: Table<Network>,
    pub(crate) artifacts: Table<Artifact>,
    pub(crate) boot_configs: Table<BootConfig>,
    pub(crate) metadata_layers: Table<MetadataLayer>,
    pub(crate) provision_profiles: Table<ProvisionProfile>,
    sets: BTreeMap<Name, Arc<AppliedSet>>,
    tombstones: BTreeMap<(u64, NodeId), Tombstone>,
}

/// Records that may exist for every node, and that change while machines boot.
#[derive(Debug, Clone, Default)]
struct Records {
    bss: Shards<BssKey, Arc<BssRecord>>,
    states: Shards<NodeId, Arc<BootState>>,
    /// One per kernel or initrd: few.
    images: Arc<HashMap<BssImageKey, Arc<BssImage>>>,
}

/// Above this many changed nodes the overlay is worth folding into the base.
const FOLD_AT: usize = 1024;

/// How an address stands to a node, by the inventory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AddressFit {
    /// The node has an address of its own, and so is this one.
    Own,
    /// The node has no address of its own, and this one is not that of others.
    Possible,
    /// Others are there, or the node is elsewhere.
    Foreign,
}

fn is_only(found: &[&Arc<Node>], node: &Node) -> bool {
    matches!(found, [only] if only.id == node.id)
}

impl Roster {
    pub fn empty(incarnation: Incarnation) -> Self {
        Self::build(incarnation, 0, 0, std::iter::empty())
    }

    /// From everything the store holds.
    pub fn build(
        incarnation: Incarnation,
        revision: u64,
        horizon: u64,
        resources: impl Iterator<Item = Resource>,
    ) -> Self {
        let mut parts = Parts::default();
        for resource in resources {
            parts.put(resource);
        }
        Self {
            incarnation,
            revision,
            horizon,
            base: Arc::new(Base::build(parts.nodes)),
            overlay: Arc::default(),
            tables: parts.tables,
            records: parts.records,
            computed: Arc::default(),
        }
    }

    /// The roster after a change. Costs as much as the overlay plus the change.
    #[must_use]
    pub fn apply(&self, delta: Delta) -> Self {
        let mut next = self.clone();
        next.revision = delta.revision;
        next.horizon = delta.horizon;
        let mut parts = Parts {
            tables: Arc::clone(&self.tables),
            records: Arc::clone(&self.records),
            nodes: Vec::new(),
            removed_nodes: Vec::new(),
        };
        for key in delta.deletes {
            parts.remove(&key);
        }
        for put in delta.puts {
            parts.put(put);
        }
        let Parts { tables, records, nodes, removed_nodes } = parts;
        next.tables = tables;
        next.records = records;
        let changes_nodes = !nodes.is_empty() || !removed_nodes.is_empty();
        if changes_nodes || !Arc::ptr_eq(&next.tables, &self.tables) {
            next.computed = Arc::default();
        }
        if !changes_nodes {
            return next;
        }
        // A change as large as the site itself makes a new base: the rest of the old one is not
        // worth an overlay.
        if nodes.len() + removed_nodes.len() > FOLD_AT.max(self.len()) {
            next.base = Arc::new(Base::build(self.merged(nodes, &removed_nodes)));
            next.overlay = Arc::default();
            return next;
        }
        let overlay = Arc::make_mut(&mut next.overlay);
        for id in removed_nodes {
            overlay.remove(id, &self.base);
        }
        for node in nodes {
            overlay.put(node, &self.base);
        }
        // An overlay this large costs more on every change than folding it now.
        if next.overlay.len() > FOLD_AT.max(next.base.len()) { next.folded() } else { next }
    }

    /// The nodes after a change.
    fn merged(&self, puts: Vec<Arc<Node>>, removed: &[NodeId]) -> Vec<Arc<Node>> {
        let changed: HashSet<NodeId> =
            puts.iter().map(|node| node.id).chain(removed.iter().copied()).collect();
        let kept = self.nodes().filter(|node| !changed.contains(&node.id));
        let mut nodes: Vec<_> = kept.cloned().collect();
        nodes.extend(puts);
        nodes
    }

    /// Whether [`Self::folded`] is worth its while.
    pub fn wants_folding(&self) -> bool {
        self.overlay.len() > FOLD_AT.max(self.base.len() / 128)
    }

    /// The same roster with everything in the base.
    #[must_use]
    pub fn folded(&self) -> Self {
        let base = Base::build(self.nodes().cloned().collect());
        Self { base: Arc::new(base), overlay: Arc::default(), ..self.clone() }
    }

    /// This roster on the base that `before` was folded into, with what changed since on top.
    /// `None` when meanwhile the whole roster was replaced: then the folded base is outdated.
    #[must_use]
    pub fn rebased(&self, before: &Self, folded: &Self) -> Option<Self> {
        if !Arc::ptr_eq(&self.base, &before.base) {
            return None;
        }
        let base = Arc::clone(&folded.base);
        let mut overlay = Overlay::default();
        for (id, node) in self.overlay.iter() {
            let known = base.by_id(id).map(|at| base.at(at));
            match node {
                Some(node) if known.is_some_and(|known| Arc::ptr_eq(known, node)) => {}
                Some(node) => overlay.put(Arc::clone(node), &base),
                None => overlay.remove(id, &base),
            }
        }
        // Nodes that were new when the folding began and are gone now: the overlay has forgotten
        // them, the folded base has not.
        for (id, node) in before.overlay.iter() {
            if node.is_some() && self.overlay.get(id).is_none() {
                overlay.remove(id, &base);
            }
        }
        Some(Self { base, overlay: Arc::new(overlay), ..self.clone() })
    }

    pub fn incarnation(&self) -> &Incarnation {
        &self.incarnation
    }

    /// The site revision of this roster.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// Removals up to this revision are forgotten.
    pub fn horizon(&self) -> u64 {
        self.horizon
    }

    pub fn len(&self) -> usize {
        self.base.len().saturating_add_signed(self.overlay.grown(&self.base))
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Looking up.
impl Roster {
    pub fn by_id(&self, id: NodeId) -> Option<&Arc<Node>> {
        match self.overlay.get(id) {
            Some(changed) => changed.as_ref(),
            None => self.base.by_id(id).map(|at| self.base.at(at)),
        }
    }

    /// Any MAC of any interface, the BMC's too.
    pub fn by_mac(&self, mac: Mac) -> Option<&Arc<Node>> {
        self.lookup(self.base.by_mac(mac), || self.overlay.by_mac(mac))
    }

    pub fn by_name(&self, name: &str) -> Option<&Arc<Node>> {
        self.lookup(self.base.by_name(name), || self.overlay.by_name(name))
    }

    pub fn by_xname(&self, xname: Xname) -> Option<&Arc<Node>> {
        self.lookup(self.base.by_xname(xname), || self.overlay.by_xname(xname))
    }

    pub fn by_nid(&self, nid: Nid) -> Option<&Arc<Node>> {
        self.lookup(self.base.by_nid(nid), || self.overlay.by_nid(nid))
    }

    /// Every node with the address: the same one may be used on several networks.
    pub fn by_ip(&self, ip: IpAddr) -> Vec<&Arc<Node>> {
        let mut found: Vec<_> = self.overlay.by_ip(ip).collect();
        found.extend(self.unchanged(self.base.by_ip(ip)));
        found
    }

    /// Every node that speaks from the address itself.
    pub fn speaking_from(&self, ip: IpAddr) -> Vec<&Arc<Node>> {
        let mut found = self.by_ip(ip);
        found.retain(|node| node.spec.own_addresses().any(|own| own == ip));
        found
    }

    /// Whether a request from an address can be the node's. An address that only this node has tells
    /// it from others; behind user networking all have one. At that of its management controller it
    /// is not the node that asks.
    pub fn address_fit(&self, node: &Node, from: IpAddr) -> AddressFit {
        let found = self.by_ip(from);
        let has_own = self.has_own_address(node);
        if node.spec.has_bmc_at(from) {
            AddressFit::Foreign
        } else if has_own && is_only(&found, node) {
            AddressFit::Own
        } else if !has_own && (found.is_empty() || found.iter().any(|one| one.id == node.id)) {
            AddressFit::Possible
        } else {
            AddressFit::Foreign
        }
    }

    /// Whether no other node has the address that the node boots with.
    pub fn has_own_address(&self, node: &Node) -> bool {
        let boots_at = self.boot(node).and_then(|boot| boot.ip);
        boots_at.is_some_and(|address| is_only(&self.by_ip(address), node))
    }

    /// The SMBIOS system UUID, without case.
    pub fn by_uuid(&self, uuid: &str) -> Option<&Arc<Node>> {
        self.lookup(self.base.by_uuid(uuid), || self.overlay.by_uuid(uuid))
    }

    /// Nodes behind one management controller.
    pub fn by_bmc(&self, bmc: &str) -> Vec<&Arc<Node>> {
        let same = |node: &&Arc<Node>| node.spec.bmc.as_ref().is_some_and(|b| b.r#ref == bmc);
        self.with_posting(self.base.behind_bmc(bmc), same)
    }

    /// The base first: keys are unique, so a node that did not change since still has its keys, and
    /// most lookups need not ask the overlay at all.
    fn lookup<'a>(
        &'a self,
        base: Option<At>,
        changed: impl FnOnce() -> Option<&'a Arc<Node>>,
    ) -> Option<&'a Arc<Node>> {
        match base.filter(|at| !self.overlay.hides(*at)) {
            Some(at) => Some(self.base.at(at)),
            None => changed(),
        }
    }

    /// Those nodes of the base that the overlay did not change.
    fn unchanged(
        &self,
        positions: impl IntoIterator<Item = At>,
    ) -> impl Iterator<Item = &Arc<Node>> {
        let kept = positions.into_iter().filter(|at| !self.overlay.hides(*at));
        kept.map(|at| self.base.at(at))
    }

    /// All nodes in id order.
    pub fn nodes(&self) -> impl Iterator<Item = &Arc<Node>> {
        self.nodes_after(None)
    }

    /// All nodes behind `after`, in id order.
    pub fn nodes_after(&self, after: Option<NodeId>) -> impl Iterator<Item = &Arc<Node>> {
        let mut base = self.unchanged(self.base.after(after)).peekable();
        let mut changed = self.overlay.sorted_after(after).into_iter().peekable();
        std::iter::from_fn(move || match (base.peek(), changed.peek()) {
            (Some(from_base), Some(from_overlay)) if from_base.id < from_overlay.id => base.next(),
            (_, Some(_)) => changed.next(),
            (_, None) => base.next(),
        })
    }

    /// What changed after `revision`: the nodes as they are now, and the removals. `None` when that
    /// is further back than removals are remembered.
    pub fn changes_since(&self, revision: u64) -> Option<(Vec<&Arc<Node>>, Vec<Tombstone>)> {
        if revision < self.horizon {
            return None;
        }
        // Everything in the base is older than `base.revision()`, so callers that know this
        // revision need only the overlay.
        let newer = |node: &&Arc<Node>| node.revision > revision;
        let mut nodes: Vec<_> = if revision >= self.base.revision() {
            self.overlay.sorted_after(None).into_iter().filter(newer).collect()
        } else {
            self.nodes().filter(newer).collect()
        };
        nodes.sort_by_key(|node| (node.revision, node.id));
        let gone = self.tables.tombstones.range((revision + 1, NodeId::from_bits(0))..);
        Some((nodes, gone.map(|(_, tombstone)| *tombstone).collect()))
    }

    pub fn group(&self, key: &GroupKey) -> Option<&Arc<Group>> {
        self.tables.groups.get(key)
    }

    pub fn groups(&self) -> impl Iterator<Item = &Arc<Group>> {
        self.tables.groups.values()
    }

    pub fn partition(&self, name: &str) -> Option<&Arc<Partition>> {
        self.tables.partitions.get(name)
    }

    pub fn partitions(&self) -> impl Iterator<Item = &Arc<Partition>> {
        self.tables.partitions.values()
    }

    pub fn network(&self, name: &str) -> Option<&Arc<Network>> {
        self.tables.networks.get(name)
    }

    pub fn networks(&self) -> impl Iterator<Item = &Arc<Network>> {
        self.tables.networks.values()
    }

    pub fn artifact(&self, name: &str) -> Option<&Arc<Artifact>> {
        self.tables.artifacts.get(name)
    }

    pub fn artifacts(&self) -> impl Iterator<Item = &Arc<Artifact>> {
        self.tables.artifacts.values()
    }

    pub fn boot_config(&self, name: &str) -> Option<&Arc<BootConfig>> {
        self.tables.boot_configs.get(name)
    }

    pub fn boot_configs(&self) -> impl Iterator<Item = &Arc<BootConfig>> {
        self.tables.boot_configs.values()
    }

    pub fn metadata_layer(&self, name: &str) -> Option<&Arc<MetadataLayer>> {
        self.tables.metadata_layers.get(name)
    }

    pub fn metadata_layers(&self) -> impl Iterator<Item = &Arc<MetadataLayer>> {
        self.tables.metadata_layers.values()
    }

    pub fn provision_profile(&self, name: &str) -> Option<&Arc<ProvisionProfile>> {
        self.tables.provision_profiles.get(name)
    }

    pub fn provision_profiles(&self) -> impl Iterator<Item = &Arc<ProvisionProfile>> {
        self.tables.provision_profiles.values()
    }

    /// The boot state of a node; most nodes have none.
    pub fn boot_state(&self, id: NodeId) -> Option<&Arc<BootState>> {
        self.records.states.get(&id)
    }

    pub fn boot_states(&self) -> impl Iterator<Item = &Arc<BootState>> {
        self.records.states.values()
    }

    pub fn bss(&self, key: &BssKey) -> Option<&Arc<BssRecord>> {
        self.records.bss.get(key)
    }

    /// Whether it is worth looking for records.
    pub fn has_bss_records(&self) -> bool {
        self.records.bss.may_have_some()
    }

    /// Whether BSS records and images are those of `other`: results computed from the one then hold
    /// for the other.
    pub fn has_bss_records_of(&self, other: &Self) -> bool {
        self.records.bss.is_unchanged_from(&other.records.bss)
            && Arc::ptr_eq(&self.records.images, &other.records.images)
    }

    /// In no order.
    pub fn bss_records(&self) -> impl Iterator<Item = &Arc<BssRecord>> {
        self.records.bss.values()
    }

    pub fn bss_image(&self, image: &BssImageKey) -> Option<&Arc<BssImage>> {
        self.records.images.get(image)
    }

    /// In no order.
    pub fn bss_images(&self) -> impl Iterator<Item = &Arc<BssImage>> {
        self.records.images.values()
    }

    /// Whether nodes, groups and configurations are those of `other`: results computed from the one
    /// then hold for the other.
    pub fn has_rules_of(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.base, &other.base)
            && Arc::ptr_eq(&self.overlay, &other.overlay)
            && Arc::ptr_eq(&self.tables, &other.tables)
    }

    pub fn set(&self, name: &str) -> Option<&Arc<AppliedSet>> {
        self.tables.sets.get(name)
    }

    pub fn sets(&self) -> impl Iterator<Item = &Arc<AppliedSet>> {
        self.tables.sets.values()
    }

    pub fn tombstones(&self) -> impl Iterator<Item = &Tombstone> {
        self.tables.tombstones.values()
    }

    /// A document of the kind `T`.
    pub fn document<T: DocumentKind>(&self, key: &T::Key) -> Option<&Arc<T>> {
        T::table(&self.tables).get(key)
    }

    /// All documents of the kind `T`, in the order of their keys.
    pub fn documents<T: DocumentKind>(&self) -> impl Iterator<Item = &Arc<T>> {
        T::table(&self.tables).values()
    }

    pub fn resource(&self, key: &ResourceKey) -> Option<Resource> {
        match key {
            ResourceKey::Node(id) => self.by_id(*id).cloned().map(Resource::Node),
            ResourceKey::Group(key) => self.document(key).cloned().map(Resource::Group),
            ResourceKey::Partition(name) => self.document(name).cloned().map(Resource::Partition),
            ResourceKey::Network(name) => self.document(name).cloned().map(Resource::Network),
            ResourceKey::Artifact(name) => self.document(name).cloned().map(Resource::Artifact),
            ResourceKey::BootConfig(name) => self.document(name).cloned().map(Resource::BootConfig),
            ResourceKey::MetadataLayer(name) => {
                self.document(name).cloned().map(Resource::MetadataLayer)
            }
            ResourceKey::ProvisionProfile(name) => {
                self.document(name).cloned().map(Resource::ProvisionProfile)
            }
            ResourceKey::BootState(id) => self.boot_state(*id).cloned().map(Resource::BootState),
            ResourceKey::Bss(key) => self.bss(key).cloned().map(Resource::Bss),
            ResourceKey::BssImage(..) => {
                let mut images = self.bss_images();
                let found = images.find(|image| ResourceKey::of_image(&image.image) == *key);
                found.cloned().map(Resource::BssImage)
            }
            ResourceKey::Set(name) => self.tables.sets.get(name).cloned().map(Resource::Set),
            ResourceKey::Tombstone(revision, id) => {
                self.tables.tombstones.get(&(*revision, *id)).copied().map(Resource::Tombstone)
            }
        }
    }

    /// Everything, as it would be written: for copies and comparisons.
    pub fn resources(&self) -> impl Iterator<Item = Resource> + '_ {
        ResourceKind::ALL.into_iter().flat_map(|kind| self.resources_of(kind))
    }

    fn resources_of(&self, kind: ResourceKind) -> Box<dyn Iterator<Item = Resource> + '_> {
        match kind {
            ResourceKind::Node => Box::new(self.nodes().cloned().map(Resource::Node)),
            ResourceKind::Group => Box::new(self.documents().cloned().map(Resource::Group)),
            ResourceKind::Partition => Box::new(self.documents().cloned().map(Resource::Partition)),
            ResourceKind::Network => Box::new(self.documents().cloned().map(Resource::Network)),
            ResourceKind::Artifact => Box::new(self.documents().cloned().map(Resource::Artifact)),
            ResourceKind::BootConfig => {
                Box::new(self.documents().cloned().map(Resource::BootConfig))
            }
            ResourceKind::MetadataLayer => {
                Box::new(self.documents().cloned().map(Resource::MetadataLayer))
            }
            ResourceKind::ProvisionProfile => {
                Box::new(self.documents().cloned().map(Resource::ProvisionProfile))
            }
            ResourceKind::BootState => {
                Box::new(self.boot_states().cloned().map(Resource::BootState))
            }
            ResourceKind::Bss => Box::new(self.bss_records().cloned().map(Resource::Bss)),
            ResourceKind::BssImage => Box::new(self.bss_images().cloned().map(Resource::BssImage)),
            ResourceKind::Set => Box::new(self.sets().cloned().map(Resource::Set)),
            ResourceKind::Tombstone => {
                Box::new(self.tombstones().copied().map(Resource::Tombstone))
            }
        }
    }
}

/// What nodes are in, and where they boot.
impl Roster {
    /// The bootable MAC and address of a node under its partition's rules.
    pub fn boot(&self, node: &Node) -> Option<Boot> {
        let partition = self.partition(&node.spec.partition);
        let rules = partition.map(|partition| partition.spec.boot_rules());
        node.spec.boot(&rules.unwrap_or_default())
    }

    /// The node's groups, explicit and computed, in the order (priority, name).
    pub fn groups_of(&self, node: &Node) -> Vec<GroupName> {
        let partition = &node.spec.partition;
        let priority = |name: &GroupName| {
            let key = GroupKey { partition: partition.clone(), name: name.clone() };
            self.group(&key).map_or(0, |group| group.spec.priority)
        };
        let mut found: Vec<_> =
            node.spec.groups.iter().map(|name| (priority(name), name.clone())).collect();
        let subject = self.subject(node);
        for group in self.computed().iter().filter(|group| group.key.partition == *partition) {
            let name = &group.key.name;
            if group.members.matches(&subject) && !node.spec.groups.contains(name) {
                found.push((group.priority, name.clone()));
            }
        }
        found.sort();
        found.into_iter().map(|(_, name)| name).collect()
    }

    /// A selector that no longer means anything here (its last role is gone) selects nothing.
    fn computed(&self) -> &[ComputedGroup] {
        self.computed.get_or_init(|| {
            let bind = |(key, selector): (GroupKey, Selector)| {
                let priority = self.group(&key).map_or(0, |group| group.spec.priority);
                Some(ComputedGroup { members: selector.bind(self).ok()?, key, priority })
            };
            self.selector_groups().into_iter().filter_map(bind).collect()
        })
    }

    /// The nodes of a group, in id order.
    pub fn members(&self, key: &GroupKey) -> Vec<&Arc<Node>> {
        if let Some(group) = self.computed().iter().find(|group| group.key == *key) {
            let inside = |node: &&Arc<Node>| {
                node.spec.partition == key.partition && group.members.matches(&self.subject(node))
            };
            return self.nodes().filter(inside).collect();
        }
        let inside = |node: &&Arc<Node>| {
            node.spec.partition == key.partition && node.spec.groups.contains(&key.name)
        };
        self.with_posting(self.base.in_group(key), inside)
    }

    /// The nodes of a partition, in id order.
    pub fn in_partition(&self, partition: &Name) -> Vec<&Arc<Node>> {
        let inside = |node: &&Arc<Node>| node.spec.partition == *partition;
        self.with_posting(self.base.in_partition(partition), inside)
    }

    /// The nodes with a label, in id order.
    pub fn labelled(&self, key: &str, value: &str) -> Vec<&Arc<Node>> {
        let has = |node: &&Arc<Node>| node.spec.labels.get(key) == Some(value);
        self.with_posting(self.base.labelled(key, value), has)
    }

    /// Those of the base that did not change, and those of the overlay that fit.
    fn with_posting<'a>(
        &'a self,
        posting: &[At],
        fits: impl Fn(&&'a Arc<Node>) -> bool,
    ) -> Vec<&'a Arc<Node>> {
        let mut found: Vec<_> = self.unchanged(posting.iter().copied()).collect();
        found.extend(self.overlay.sorted_after(None).into_iter().filter(fits));
        found.sort_by_key(|node| node.id);
        found
    }

    /// How far the node has come. Until agents report more, a known node is a declared one.
    pub fn subject<'a>(&self, node: &'a Node) -> Subject<'a> {
        Subject { id: node.id, name: &node.name, spec: &node.spec, lifecycle: Lifecycle::Declared }
    }

    /// The nodes a selector names, in id order.
    pub fn select(&self, selector: &Selector) -> Result<Vec<&Arc<Node>>, BindError> {
        let bound = selector.bind(self)?;
        Ok(self.select_bound(&bound))
    }

    pub fn select_bound(&self, bound: &Bound) -> Vec<&Arc<Node>> {
        if let Some(name) = bound.exact_node() {
            return self.by_name(name).into_iter().collect();
        }
        self.nodes().filter(|node| bound.matches(&self.subject(node))).collect()
    }
}

impl Vocabulary for Roster {
    fn is_role(&self, word: &str) -> bool {
        self.base.is_role(word)
            || self.overlay.iter().any(|(_, node)| {
                let spec = node.as_ref().map(|node| &node.spec);
                let roles = spec.into_iter().flat_map(|spec| [&spec.role, &spec.subrole]).flatten();
                roles.into_iter().any(|role| role.is(word))
            })
    }

    fn is_group(&self, word: &str) -> bool {
        let same = |name: &GroupName| name.eq_ignore_ascii_case(word);
        self.groups().any(|group| same(&group.name))
            || self.base.is_group(word)
            || self.overlay.iter().any(|(_, node)| {
                node.as_ref().is_some_and(|node| node.spec.groups.iter().any(same))
            })
    }

    fn known_names(&self) -> Vec<String> {
        let mut words: Vec<String> = self.groups().map(|group| group.name.to_string()).collect();
        words.extend(self.base.known_names());
        words
    }

    fn selector_groups(&self) -> Vec<(GroupKey, Selector)> {
        let computed = |group: &Arc<Group>| {
            group.spec.selector.clone().map(|selector| (group.key(), selector))
        };
        self.groups().filter_map(computed).collect()
    }

    fn first(&self, set: &Bound) -> Option<NodeId> {
        let order = |node: &&Arc<Node>| (node.spec.nid.is_none(), node.spec.nid, node.name.clone());
        self.select_bound(set).into_iter().min_by_key(order).map(|node| node.id)
    }
}

/// The parts of a roster while resources are put into them or removed.
#[derive(Default)]
struct Parts {
    tables: Arc<Tables>,
    records: Arc<Records>,
    nodes: Vec<Arc<Node>>,
    removed_nodes: Vec<NodeId>,
}

impl Parts {
    fn put(&mut self, resource: Resource) {
        match resource {
            Resource::Node(node) => self.nodes.push(node),
            Resource::Group(group) => self.put_document(group),
            Resource::Partition(partition) => self.put_document(partition),
            Resource::Network(network) => self.put_document(network),
            Resource::Artifact(artifact) => self.put_document(artifact),
            Resource::BootConfig(config) => self.put_document(config),
            Resource::MetadataLayer(layer) => self.put_document(layer),
            Resource::ProvisionProfile(profile) => self.put_document(profile),
            Resource::Bss(record) => self.records().bss.insert(record.key.clone(), record),
            Resource::BootState(state) => self.records().states.insert(state.node, state),
            Resource::BssImage(image) => {
                let images = Arc::make_mut(&mut self.records().images);
                images.insert(image.image.clone(), image);
            }
            Resource::Set(set) => {
                self.tables().sets.insert(set.name.clone(), set);
            }
            Resource::Tombstone(tombstone) => {
                let key = (tombstone.revision, tombstone.node);
                self.tables().tombstones.insert(key, tombstone);
            }
        }
    }

    fn remove(&mut self, key: &ResourceKey) {
        match key {
            ResourceKey::Node(id) => self.removed_nodes.push(*id),
            ResourceKey::Group(key) => self.remove_document::<Group>(key),
            ResourceKey::Partition(name) => self.remove_document::<Partition>(name),
            ResourceKey::Network(name) => self.remove_document::<Network>(name),
            ResourceKey::Artifact(name) => self.remove_document::<Artifact>(name),
            ResourceKey::BootConfig(name) => self.remove_document::<BootConfig>(name),
            ResourceKey::MetadataLayer(name) => self.remove_document::<MetadataLayer>(name),
            ResourceKey::ProvisionProfile(name) => self.remove_document::<ProvisionProfile>(name),
            ResourceKey::Bss(key) => self.records().bss.remove(key),
            ResourceKey::BootState(id) => self.records().states.remove(id),
            ResourceKey::BssImage(..) => {
                let images = Arc::make_mut(&mut self.records().images);
                images.retain(|image, _| ResourceKey::of_image(image) != *key);
            }
            ResourceKey::Set(name) => {
                self.tables().sets.remove(name);
            }
            ResourceKey::Tombstone(revision, id) => {
                self.tables().tombstones.remove(&(*revision, *id));
            }
        }
    }

    fn put_document<T: DocumentKind>(&mut self, document: Arc<T>) {
        T::table_mut(self.tables()).insert(document.key(), document);
    }

    fn remove_document<T: DocumentKind>(&mut self, key: &T::Key) {
        T::table_mut(self.tables()).remove(key);
    }

    fn tables(&mut self) -> &mut Tables {
        Arc::make_mut(&mut self.tables)
    }

    fn records(&mut self) -> &mut Records {
        Arc::make_mut(&mut self.records)
    }
}

#[cfg(test)]
mod tests;
