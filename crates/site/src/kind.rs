//! The descriptor of each kind of document: key, codec, tables, checks and effect on nodes.
//!
//! A new kind implements [`DocumentKind`] here and gets a variant in [`Kind`], [`Resource`] and
//! [`ResourceKey`]; the compiler then names every match that lacks it. Nodes are documents too, but
//! they are found by id, MAC, xname and more, so `roster` and `plan::draft` handle them apart.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::str::FromStr;
use std::sync::Arc;

use hoist_model::{
    Artifact, ArtifactName, ArtifactSpec, BootConfig, BootConfigSpec, Group, GroupKey, GroupSpec,
    Kind, MetadataLayer, MetadataLayerSpec, Name, Network, NetworkSpec, NodeId, Partition,
    PartitionSpec, ProvisionProfile, ProvisionProfileSpec,
};
use serde::Serialize;

use crate::plan::check;
use crate::plan::{Draft, Refusal};
use crate::record::{Resource, ResourceKey};
use crate::roster::{Roster, Tables};

/// The documents of one kind in a roster.
pub type Table<T> = BTreeMap<<T as DocumentKind>::Key, Arc<T>>;

/// The documents of one kind that a draft changes; `None` removes one.
pub type DraftTable<T> = BTreeMap<<T as DocumentKind>::Key, Option<T>>;

/// One kind of document that is not a node.
pub trait DocumentKind: Clone + 'static {
    type Key: Ord + Clone + Display + FromStr + 'static;
    type Spec: Serialize + PartialEq;
    const KIND: Kind;

    fn new(key: Self::Key, spec: Self::Spec, revision: u64) -> Self;
    fn key(&self) -> Self::Key;
    fn spec(&self) -> &Self::Spec;
    fn into_spec(self) -> Self::Spec;
    fn into_resource(self) -> Resource;
    fn resource_key(key: Self::Key) -> ResourceKey;

    fn table(tables: &Tables) -> &Table<Self>;
    fn table_mut(tables: &mut Tables) -> &mut Table<Self>;
    fn drafted<'d>(draft: &'d Draft<'_>) -> &'d DraftTable<Self>;
    fn drafted_mut<'d>(draft: &'d mut Draft<'_>) -> &'d mut DraftTable<Self>;

    /// Refuses states of the site that must not exist once the draft is applied.
    fn check(draft: &Draft<'_>, found: &mut Vec<Refusal>);

    /// The nodes whose boot address, role or membership this document may decide. Effects that
    /// another context computes, such as boot scripts, belong to the rule of that context.
    fn affects(_before: &Roster, _key: &Self::Key) -> Vec<NodeId> {
        Vec::new()
    }
}

fn in_partition(before: &Roster, partition: &Name) -> Vec<NodeId> {
    before.in_partition(partition).iter().map(|node| node.id).collect()
}

impl DocumentKind for Group {
    type Key = GroupKey;
    type Spec = GroupSpec;
    const KIND: Kind = Kind::Group;

    fn new(key: Self::Key, spec: Self::Spec, revision: u64) -> Self {
        Self { partition: key.partition, name: key.name, spec, revision }
    }

    fn key(&self) -> Self::Key {
        GroupKey { partition: self.partition.clone(), name: self.name.clone() }
    }

    fn spec(&self) -> &Self::Spec {
        &self.spec
    }

    fn into_spec(self) -> Self::Spec {
        self.spec
    }

    fn into_resource(self) -> Resource {
        Resource::Group(Arc::new(self))
    }

    fn resource_key(key: Self::Key) -> ResourceKey {
        ResourceKey::Group(key)
    }

    fn table(tables: &Tables) -> &Table<Self> {
        &tables.groups
    }

    fn table_mut(tables: &mut Tables) -> &mut Table<Self> {
        &mut tables.groups
    }

    fn drafted<'d>(draft: &'d Draft<'_>) -> &'d DraftTable<Self> {
        &draft.groups
    }

    fn drafted_mut<'d>(draft: &'d mut Draft<'_>) -> &'d mut DraftTable<Self> {
        &mut draft.groups
    }

    fn check(draft: &Draft<'_>, found: &mut Vec<Refusal>) {
        check::groups(draft, found);
    }

    fn affects(before: &Roster, key: &Self::Key) -> Vec<NodeId> {
        in_partition(before, &key.partition)
    }
}

impl DocumentKind for Partition {
    type Key = Name;
    type Spec = PartitionSpec;
    const KIND: Kind = Kind::Partition;

    fn new(key: Self::Key, spec: Self::Spec, revision: u64) -> Self {
        Self { name: key, spec, revision }
    }

    fn key(&self) -> Self::Key {
        self.name.clone()
    }

    fn spec(&self) -> &Self::Spec {
        &self.spec
    }

    fn into_spec(self) -> Self::Spec {
        self.spec
    }

    fn into_resource(self) -> Resource {
        Resource::Partition(Arc::new(self))
    }

    fn resource_key(key: Self::Key) -> ResourceKey {
        ResourceKey::Partition(key)
    }

    fn table(tables: &Tables) -> &Table<Self> {
        &tables.partitions
    }

    fn table_mut(tables: &mut Tables) -> &mut Table<Self> {
        &mut tables.partitions
    }

    fn drafted<'d>(draft: &'d Draft<'_>) -> &'d DraftTable<Self> {
        &draft.partitions
    }

    fn drafted_mut<'d>(draft: &'d mut Draft<'_>) -> &'d mut DraftTable<Self> {
        &mut draft.partitions
    }

    fn check(draft: &Draft<'_>, found: &mut Vec<Refusal>) {
        check::partitions(draft, found);
    }

    fn affects(before: &Roster, key: &Self::Key) -> Vec<NodeId> {
        in_partition(before, key)
    }
}

impl DocumentKind for Network {
    type Key = Name;
    type Spec = NetworkSpec;
    const KIND: Kind = Kind::Network;

    fn new(key: Self::Key, spec: Self::Spec, revision: u64) -> Self {
        Self { name: key, spec, revision }
    }

    fn key(&self) -> Self::Key {
        self.name.clone()
    }

    fn spec(&self) -> &Self::Spec {
        &self.spec
    }

    fn into_spec(self) -> Self::Spec {
        self.spec
    }

    fn into_resource(self) -> Resource {
        Resource::Network(Arc::new(self))
    }

    fn resource_key(key: Self::Key) -> ResourceKey {
        ResourceKey::Network(key)
    }

    fn table(tables: &Tables) -> &Table<Self> {
        &tables.networks
    }

    fn table_mut(tables: &mut Tables) -> &mut Table<Self> {
        &mut tables.networks
    }

    fn drafted<'d>(draft: &'d Draft<'_>) -> &'d DraftTable<Self> {
        &draft.networks
    }

    fn drafted_mut<'d>(draft: &'d mut Draft<'_>) -> &'d mut DraftTable<Self> {
        &mut draft.networks
    }

    fn check(draft: &Draft<'_>, found: &mut Vec<Refusal>) {
        check::networks(draft, found);
    }
}

impl DocumentKind for Artifact {
    type Key = ArtifactName;
    type Spec = ArtifactSpec;
    const KIND: Kind = Kind::Artifact;

    fn new(key: Self::Key, spec: Self::Spec, revision: u64) -> Self {
        Self { name: key, spec, revision }
    }

    fn key(&self) -> Self::Key {
        self.name.clone()
    }

    fn spec(&self) -> &Self::Spec {
        &self.spec
    }

    fn into_spec(self) -> Self::Spec {
        self.spec
    }

    fn into_resource(self) -> Resource {
        Resource::Artifact(Arc::new(self))
    }

    fn resource_key(key: Self::Key) -> ResourceKey {
        ResourceKey::Artifact(key)
    }

    fn table(tables: &Tables) -> &Table<Self> {
        &tables.artifacts
    }

    fn table_mut(tables: &mut Tables) -> &mut Table<Self> {
        &mut tables.artifacts
    }

    fn drafted<'d>(draft: &'d Draft<'_>) -> &'d DraftTable<Self> {
        &draft.artifacts
    }

    fn drafted_mut<'d>(draft: &'d mut Draft<'_>) -> &'d mut DraftTable<Self> {
        &mut draft.artifacts
    }

    fn check(draft: &Draft<'_>, found: &mut Vec<Refusal>) {
        check::artifacts(draft, found);
    }
}

impl DocumentKind for BootConfig {
    type Key = Name;
    type Spec = BootConfigSpec;
    const KIND: Kind = Kind::BootConfig;

    fn new(key: Self::Key, spec: Self::Spec, revision: u64) -> Self {
        Self { name: key, spec, revision }
    }

    fn key(&self) -> Self::Key {
        self.name.clone()
    }

    fn spec(&self) -> &Self::Spec {
        &self.spec
    }

    fn into_spec(self) -> Self::Spec {
        self.spec
    }

    fn into_resource(self) -> Resource {
        Resource::BootConfig(Arc::new(self))
    }

    fn resource_key(key: Self::Key) -> ResourceKey {
        ResourceKey::BootConfig(key)
    }

    fn table(tables: &Tables) -> &Table<Self> {
        &tables.boot_configs
    }

    fn table_mut(tables: &mut Tables) -> &mut Table<Self> {
        &mut tables.boot_configs
    }

    fn drafted<'d>(draft: &'d Draft<'_>) -> &'d DraftTable<Self> {
        &draft.boot_configs
    }

    fn drafted_mut<'d>(draft: &'d mut Draft<'_>) -> &'d mut DraftTable<Self> {
        &mut draft.boot_configs
    }

    fn check(draft: &Draft<'_>, found: &mut Vec<Refusal>) {
        check::boot_configs(draft, found);
    }
}

impl DocumentKind for MetadataLayer {
    type Key = Name;
    type Spec = MetadataLayerSpec;
    const KIND: Kind = Kind::MetadataLayer;

    fn new(key: Self::Key, spec: Self::Spec, revision: u64) -> Self {
        Self { name: key, spec, revision }
    }

    fn key(&self) -> Self::Key {
        self.name.clone()
    }

    fn spec(&self) -> &Self::Spec {
        &self.spec
    }

    fn into_spec(self) -> Self::Spec {
        self.spec
    }

    fn into_resource(self) -> Resource {
        Resource::MetadataLayer(Arc::new(self))
    }

    fn resource_key(key: Self::Key) -> ResourceKey {
        ResourceKey::MetadataLayer(key)
    }

    fn table(tables: &Tables) -> &Table<Self> {
        &tables.metadata_layers
    }

    fn table_mut(tables: &mut Tables) -> &mut Table<Self> {
        &mut tables.metadata_layers
    }

    fn drafted<'d>(draft: &'d Draft<'_>) -> &'d DraftTable<Self> {
        &draft.metadata_layers
    }

    fn drafted_mut<'d>(draft: &'d mut Draft<'_>) -> &'d mut DraftTable<Self> {
        &mut draft.metadata_layers
    }

    fn check(draft: &Draft<'_>, found: &mut Vec<Refusal>) {
        check::metadata_layers(draft, found);
    }
}

impl DocumentKind for ProvisionProfile {
    type Key = Name;
    type Spec = ProvisionProfileSpec;
    const KIND: Kind = Kind::ProvisionProfile;

    fn new(key: Self::Key, spec: Self::Spec, revision: u64) -> Self {
        Self { name: key, spec, revision }
    }

    fn key(&self) -> Self::Key {
        self.name.clone()
    }

    fn spec(&self) -> &Self::Spec {
        &self.spec
    }

    fn into_spec(self) -> Self::Spec {
        self.spec
    }

    fn into_resource(self) -> Resource {
        Resource::ProvisionProfile(Arc::new(self))
    }

    fn resource_key(key: Self::Key) -> ResourceKey {
        ResourceKey::ProvisionProfile(key)
    }

    fn table(tables: &Tables) -> &Table<Self> {
        &tables.provision_profiles
    }

    fn table_mut(tables: &mut Tables) -> &mut Table<Self> {
        &mut tables.provision_profiles
    }

    fn drafted<'d>(draft: &'d Draft<'_>) -> &'d DraftTable<Self> {
        &draft.provision_profiles
    }

    fn drafted_mut<'d>(draft: &'d mut Draft<'_>) -> &'d mut DraftTable<Self> {
        &mut draft.provision_profiles
    }

    fn check(draft: &Draft<'_>, found: &mut Vec<Refusal>) {
        check::provision_profiles(draft, found);
    }
}
