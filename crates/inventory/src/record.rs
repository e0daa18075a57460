//! What the site keeps in the store, and under which keys.
//!
//! Everything people declared lives below `site/`, so one listing is the whole picture and one
//! watch is every change to it. `site/revision` is written by every declared change and compared by
//! it: that is what makes the site have one history.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::sync::Arc;

use hoist_model::document::DocumentName;
use hoist_model::{
    Artifact, ArtifactName, BootConfig, BootState, BssImage, BssImageKey, BssKey, BssRecord,
    Digest, Group, GroupKey, ImageKind, Kind, MetadataLayer, Name, Network, Node, NodeId,
    Partition, ProvisionProfile,
};
use hoist_store::{Key, Prefix, Record};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use sha2::Digest as _;

/// One declared thing, as kept in memory and in the store.
#[derive(Debug, Clone, PartialEq)]
pub enum Resource {
    Node(Arc<Node>),
    Group(Arc<Group>),
    Partition(Arc<Partition>),
    Network(Arc<Network>),
    Artifact(Arc<Artifact>),
    BootConfig(Arc<BootConfig>),
    MetadataLayer(Arc<MetadataLayer>),
    ProvisionProfile(Arc<ProvisionProfile>),
    BootState(Arc<BootState>),
    Bss(Arc<BssRecord>),
    BssImage(Arc<BssImage>),
    Set(Arc<AppliedSet>),
    Tombstone(Tombstone),
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ResourceKey {
    Node(NodeId),
    Group(GroupKey),
    Partition(Name),
    Network(Name),
    Artifact(ArtifactName),
    BootConfig(Name),
    MetadataLayer(Name),
    ProvisionProfile(Name),
    BootState(NodeId),
    Bss(BssKey),
    /// By the digest of the image's path, which may be longer than a key.
    BssImage(ImageKind, Digest),
    Set(Name),
    /// By the revision of the removal, then the node.
    Tombstone(u64, NodeId),
}

/// What a resource is. Every kind has its line in the server's table of rights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ResourceKind {
    Node,
    Group,
    Partition,
    Network,
    Artifact,
    BootConfig,
    MetadataLayer,
    ProvisionProfile,
    BootState,
    Bss,
    BssImage,
    Set,
    Tombstone,
}

impl From<Kind> for ResourceKind {
    fn from(kind: Kind) -> Self {
        match kind {
            Kind::Node => Self::Node,
            Kind::Group => Self::Group,
            Kind::Partition => Self::Partition,
            Kind::Network => Self::Network,
            Kind::Artifact => Self::Artifact,
            Kind::BootConfig => Self::BootConfig,
            Kind::MetadataLayer => Self::MetadataLayer,
            Kind::ProvisionProfile => Self::ProvisionProfile,
        }
    }
}

/// What a named set of documents contained when it was last applied: what `--prune` may remove.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AppliedSet {
    pub name: Name,
    /// `Kind/name`, as people write it.
    pub members: BTreeSet<String>,
}

/// A node that was removed; kept for a while, so that watchers who were away learn of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tombstone {
    pub node: NodeId,
    pub revision: u64,
    pub at: Timestamp,
}

/// The record behind `site/revision`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SiteRevision {
    pub revision: u64,
    /// Removals up to this revision are forgotten: watches cannot start before it.
    #[serde(default)]
    pub horizon: u64,
}

#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    #[error("record `{key}` cannot be read: {reason}")]
    Unreadable { key: Key, reason: String },
    #[error(
        "record `{key}` is of a kind this version does not know; it was written by a newer hoist"
    )]
    UnknownKind { key: Key },
}

pub fn site() -> Prefix {
    Prefix::Under(key("site"))
}

pub fn revision_key() -> Key {
    key("site/revision")
}

/// Who may take nodes' secrets. Not declared, so not below `site/`.
pub fn armings() -> Key {
    key("provision/armed")
}

/// It goes with the node.
pub fn arming_key(node: NodeId) -> Key {
    armings().child(&node.to_string())
}

/// What disks of nodes held before a run wrote to them: one record of each node, and the bytes in
/// parts that every store takes. It is not declared.
pub fn disk_backups() -> Key {
    key("provision/backup")
}

pub fn disk_backup_key(node: NodeId) -> Key {
    disk_backups().child(&node.to_string())
}

pub fn disk_backup_parts(node: NodeId) -> Key {
    key("provision/backup-part").child(&node.to_string())
}

/// What nodes were given to be made of: a profile as it was then, by digest.
pub fn provision_given() -> Key {
    key("provision/given")
}

/// What nodes have, and had before that, by the runs that ended well.
pub fn provision_installed() -> Key {
    key("provision/installed")
}

pub fn provision_installed_key(node: NodeId) -> Key {
    provision_installed().child(&node.to_string())
}

/// Runs of provisioning, and each node's part in them. Neither is declared.
pub fn provision_runs() -> Key {
    key("provision/run")
}

pub fn provision_run_key(run: &str) -> Option<Key> {
    let is_plain = !run.is_empty() && run.bytes().all(|b| b.is_ascii_alphanumeric());
    is_plain.then(|| provision_runs().child(run))
}

pub fn provision_nodes(run: &str) -> Key {
    key("provision/node").child(run)
}

/// In which run each node was last.
pub fn provision_lasts() -> Key {
    key("provision/last")
}

/// What was found of a machine; it goes with the node.
pub fn facts_key(node: NodeId) -> Key {
    key("provision/facts").child(&node.to_string())
}

pub fn is_arming(key: &Key) -> bool {
    Prefix::Under(armings()).covers(key)
}

fn key(text: &str) -> Key {
    text.parse().expect("keys are made of checked names")
}

impl Resource {
    pub fn key(&self) -> ResourceKey {
        match self {
            Self::Node(node) => ResourceKey::Node(node.id),
            Self::Group(group) => ResourceKey::Group(group.key()),
            Self::Partition(partition) => ResourceKey::Partition(partition.name.clone()),
            Self::Network(network) => ResourceKey::Network(network.name.clone()),
            Self::Artifact(artifact) => ResourceKey::Artifact(artifact.name.clone()),
            Self::BootConfig(config) => ResourceKey::BootConfig(config.name.clone()),
            Self::MetadataLayer(layer) => ResourceKey::MetadataLayer(layer.name.clone()),
            Self::ProvisionProfile(profile) => ResourceKey::ProvisionProfile(profile.name.clone()),
            Self::BootState(state) => ResourceKey::BootState(state.node),
            Self::Bss(record) => ResourceKey::Bss(record.key.clone()),
            Self::BssImage(image) => ResourceKey::of_image(&image.image),
            Self::Set(set) => ResourceKey::Set(set.name.clone()),
            Self::Tombstone(tombstone) => {
                ResourceKey::Tombstone(tombstone.revision, tombstone.node)
            }
        }
    }

    pub fn into_node(self) -> Option<Arc<Node>> {
        match self {
            Self::Node(node) => Some(node),
            _ => None,
        }
    }

    pub fn to_bytes(&self) -> Vec<u8> {
        let bytes = match self {
            Self::Node(node) => serde_json::to_vec(node),
            Self::Group(group) => serde_json::to_vec(group),
            Self::Partition(partition) => serde_json::to_vec(partition),
            Self::Network(network) => serde_json::to_vec(network),
            Self::Artifact(artifact) => serde_json::to_vec(artifact),
            Self::BootConfig(config) => serde_json::to_vec(config),
            Self::MetadataLayer(layer) => serde_json::to_vec(layer),
            Self::ProvisionProfile(profile) => serde_json::to_vec(profile),
            Self::BootState(state) => serde_json::to_vec(state),
            Self::Bss(record) => serde_json::to_vec(record),
            Self::BssImage(image) => serde_json::to_vec(image),
            Self::Set(set) => serde_json::to_vec(set),
            Self::Tombstone(tombstone) => serde_json::to_vec(tombstone),
        };
        bytes.expect("resources are made of maps, lists and plain values")
    }

    /// `None` for `site/revision`, which is not a resource.
    pub fn from_record(record: &Record) -> Result<Option<Self>, RecordError> {
        let path = record.key.as_str();
        let segment = path.strip_prefix("site/").unwrap_or(path);
        let kind = segment.split('/').next().unwrap_or(segment);
        let value = &record.value;
        let resource = match kind {
            "revision" => return Ok(None),
            "node" => {
                let mut node: Node = parse(record, value)?;
                node.spec.shrink();
                Self::Node(Arc::new(node))
            }
            "group" => Self::Group(Arc::new(parse(record, value)?)),
            "partition" => Self::Partition(Arc::new(parse(record, value)?)),
            "network" => Self::Network(Arc::new(parse(record, value)?)),
            "artifact" => Self::Artifact(Arc::new(parse(record, value)?)),
            "boot-config" => Self::BootConfig(Arc::new(parse(record, value)?)),
            "metadata-layer" => Self::MetadataLayer(Arc::new(parse(record, value)?)),
            "provision-profile" => Self::ProvisionProfile(Arc::new(parse(record, value)?)),
            "boot-state" => Self::BootState(Arc::new(parse(record, value)?)),
            "bss" => Self::Bss(Arc::new(parse(record, value)?)),
            "bss-image" => Self::BssImage(Arc::new(parse(record, value)?)),
            "set" => Self::Set(Arc::new(parse(record, value)?)),
            "gone" => Self::Tombstone(parse(record, value)?),
            _ => return Err(RecordError::UnknownKind { key: record.key.clone() }),
        };
        Ok(Some(resource))
    }
}

fn parse<'de, T: Deserialize<'de>>(record: &Record, value: &'de [u8]) -> Result<T, RecordError> {
    serde_json::from_slice(value).map_err(|error| RecordError::Unreadable {
        key: record.key.clone(),
        reason: error.to_string(),
    })
}

impl ResourceKey {
    pub fn kind(&self) -> ResourceKind {
        match self {
            Self::Node(_) => ResourceKind::Node,
            Self::Group(_) => ResourceKind::Group,
            Self::Partition(_) => ResourceKind::Partition,
            Self::Network(_) => ResourceKind::Network,
            Self::Artifact(_) => ResourceKind::Artifact,
            Self::BootConfig(_) => ResourceKind::BootConfig,
            Self::MetadataLayer(_) => ResourceKind::MetadataLayer,
            Self::ProvisionProfile(_) => ResourceKind::ProvisionProfile,
            Self::BootState(_) => ResourceKind::BootState,
            Self::Bss(_) => ResourceKind::Bss,
            Self::BssImage(..) => ResourceKind::BssImage,
            Self::Set(_) => ResourceKind::Set,
            Self::Tombstone(..) => ResourceKind::Tombstone,
        }
    }

    pub fn of_image(image: &BssImageKey) -> Self {
        let digest = sha2::Sha256::digest(image.path.as_bytes());
        Self::BssImage(image.kind, Digest::from_bytes(digest.into()))
    }

    pub fn to_key(&self) -> Key {
        key(&match self {
            Self::Node(id) => format!("site/node/{id}"),
            Self::Group(group) => format!("site/group/{}/{}", group.partition, group.name),
            Self::Partition(name) => format!("site/partition/{name}"),
            Self::Network(name) => format!("site/network/{name}"),
            Self::Artifact(name) => format!("site/artifact/{name}"),
            Self::BootConfig(name) => format!("site/boot-config/{name}"),
            Self::MetadataLayer(name) => format!("site/metadata-layer/{name}"),
            Self::ProvisionProfile(name) => format!("site/provision-profile/{name}"),
            Self::BootState(id) => format!("site/boot-state/{id}"),
            Self::Bss(key) => format!("site/bss/{}", escape(&key.to_string())),
            Self::BssImage(ImageKind::Kernel, path) => format!("site/bss-image/kernel-{path}"),
            Self::BssImage(ImageKind::Initrd, path) => format!("site/bss-image/initrd-{path}"),
            Self::Set(name) => format!("site/set/{name}"),
            // Padded, so that they sort by revision.
            Self::Tombstone(revision, id) => format!("site/gone/{revision:020}-{id}"),
        })
    }

    /// The reverse of [`Self::to_key`]; `None` for keys that name no resource.
    pub fn from_key(key: &Key) -> Option<Self> {
        let (kind, name) = key.as_str().strip_prefix("site/")?.split_once('/')?;
        Some(match kind {
            "node" => Self::Node(name.parse().ok()?),
            "group" => Self::Group(name.parse().ok()?),
            "partition" => Self::Partition(name.parse().ok()?),
            "network" => Self::Network(name.parse().ok()?),
            "artifact" => Self::Artifact(name.parse().ok()?),
            "boot-config" => Self::BootConfig(name.parse().ok()?),
            "metadata-layer" => Self::MetadataLayer(name.parse().ok()?),
            "provision-profile" => Self::ProvisionProfile(name.parse().ok()?),
            "boot-state" => Self::BootState(name.parse().ok()?),
            "bss" => Self::Bss(unescape(name)?.parse().ok()?),
            "bss-image" => {
                let (kind, path) = name.split_once('-')?;
                let kind = match kind {
                    "kernel" => ImageKind::Kernel,
                    "initrd" => ImageKind::Initrd,
                    _ => return None,
                };
                Self::BssImage(kind, path.parse().ok()?)
            }
            "set" => Self::Set(name.parse().ok()?),
            "gone" => {
                let (revision, id) = name.split_once('-')?;
                Self::Tombstone(revision.parse().ok()?, id.parse().ok()?)
            }
            _ => return None,
        })
    }
}

/// Any text as one segment of a key: what is not plain becomes `%XX`.
fn escape(text: &str) -> String {
    text.bytes().fold(String::with_capacity(text.len()), |mut escaped, byte| {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b':') {
            escaped.push(char::from(byte));
        } else {
            write!(escaped, "%{byte:02X}").expect("writing to a string");
        }
        escaped
    })
}

fn unescape(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [byte, tail @ ..] = rest {
        rest = tail;
        if *byte == b'%' {
            let (digits, tail) = rest.split_at_checked(2)?;
            bytes.push(u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?);
            rest = tail;
        } else {
            bytes.push(*byte);
        }
    }
    String::from_utf8(bytes).ok()
}

/// How a document is called in an applied set.
pub fn member_name(kind: Kind, name: &DocumentName) -> String {
    format!("{kind}/{name}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_lead_back_to_what_they_were_made_of() {
        let id = NodeId::mint(1, 2);
        for key in [
            ResourceKey::Node(id),
            ResourceKey::Group("p1/rack:1".parse().expect("a group")),
            ResourceKey::Partition("p1".parse().expect("a name")),
            ResourceKey::Network("nmn".parse().expect("a name")),
            ResourceKey::Artifact("vmlinuz-6.1+a".parse().expect("a name")),
            ResourceKey::BootConfig("compute".parse().expect("a name")),
            ResourceKey::MetadataLayer("site".parse().expect("a name")),
            ResourceKey::ProvisionProfile("compute".parse().expect("a name")),
            ResourceKey::BootState(id),
            ResourceKey::Bss("x1203c4s2b1n0".parse().expect("a key")),
            ResourceKey::Bss("a4:bf:01:3c:5e:70".parse().expect("a key")),
            ResourceKey::Bss("nid7".parse().expect("a key")),
            ResourceKey::Bss("Rölle/100%".parse().expect("a key")),
            ResourceKey::of_image(&BssImageKey {
                kind: ImageKind::Initrd,
                path: "http://a/b".to_owned(),
            }),
            ResourceKey::Set("site".parse().expect("a name")),
            ResourceKey::Tombstone(7, id),
        ] {
            assert_eq!(ResourceKey::from_key(&key.to_key()), Some(key));
        }
        assert_eq!(ResourceKey::from_key(&revision_key()), None);
    }
}
