//! Records of the site in the store, and their keys.
//!
//! All declared records live below `site/`, so one listing reads the whole site and one watch sees
//! every change. Every declared change compares and writes `site/revision`; this guarantees that
//! the site has one history.

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

/// The kind of a resource. Every kind has its line in the server's table of rights.
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

impl ResourceKind {
    /// In the order in which copies list them.
    pub const ALL: [Self; 13] = [
        Self::Partition,
        Self::Network,
        Self::Group,
        Self::Artifact,
        Self::BootConfig,
        Self::BootState,
        Self::Bss,
        Self::BssImage,
        Self::MetadataLayer,
        Self::ProvisionProfile,
        Self::Set,
        Self::Tombstone,
        Self::Node,
    ];

    /// The segment below `site/` that holds the records of this kind.
    const fn segment(self) -> &'static str {
        match self {
            Self::Node => "node",
            Self::Group => "group",
            Self::Partition => "partition",
            Self::Network => "network",
            Self::Artifact => "artifact",
            Self::BootConfig => "boot-config",
            Self::MetadataLayer => "metadata-layer",
            Self::ProvisionProfile => "provision-profile",
            Self::BootState => "boot-state",
            Self::Bss => "bss",
            Self::BssImage => "bss-image",
            Self::Set => "set",
            Self::Tombstone => "gone",
        }
    }

    fn of_key(key: &Key) -> Option<Self> {
        let path = key.as_str();
        let path = path.strip_prefix("site/").unwrap_or(path);
        let segment = path.split('/').next().unwrap_or(path);
        Self::ALL.into_iter().find(|kind| kind.segment() == segment)
    }
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

/// The members of a named set of documents when it was last applied. `--prune` may remove them.
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
        if record.key == revision_key() {
            return Ok(None);
        }
        let unknown = || RecordError::UnknownKind { key: record.key.clone() };
        let kind = ResourceKind::of_key(&record.key).ok_or_else(unknown)?;
        let resource = match kind {
            ResourceKind::Node => {
                let mut node: Node = decode(record)?;
                node.spec.shrink();
                Self::Node(Arc::new(node))
            }
            ResourceKind::Group => Self::Group(Arc::new(decode(record)?)),
            ResourceKind::Partition => Self::Partition(Arc::new(decode(record)?)),
            ResourceKind::Network => Self::Network(Arc::new(decode(record)?)),
            ResourceKind::Artifact => Self::Artifact(Arc::new(decode(record)?)),
            ResourceKind::BootConfig => Self::BootConfig(Arc::new(decode(record)?)),
            ResourceKind::MetadataLayer => Self::MetadataLayer(Arc::new(decode(record)?)),
            ResourceKind::ProvisionProfile => Self::ProvisionProfile(Arc::new(decode(record)?)),
            ResourceKind::BootState => Self::BootState(Arc::new(decode(record)?)),
            ResourceKind::Bss => Self::Bss(Arc::new(decode(record)?)),
            ResourceKind::BssImage => Self::BssImage(Arc::new(decode(record)?)),
            ResourceKind::Set => Self::Set(Arc::new(decode(record)?)),
            ResourceKind::Tombstone => Self::Tombstone(decode(record)?),
        };
        Ok(Some(resource))
    }
}

fn decode<'r, T: Deserialize<'r>>(record: &'r Record) -> Result<T, RecordError> {
    serde_json::from_slice(&record.value).map_err(|error| RecordError::Unreadable {
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
        key(&format!("site/{}/{}", self.kind().segment(), self.name()))
    }

    /// The last part of the key, below the kind.
    fn name(&self) -> String {
        match self {
            Self::Node(id) | Self::BootState(id) => id.to_string(),
            Self::Group(group) => group.to_string(),
            Self::Partition(name)
            | Self::Network(name)
            | Self::BootConfig(name)
            | Self::MetadataLayer(name)
            | Self::ProvisionProfile(name)
            | Self::Set(name) => name.to_string(),
            Self::Artifact(name) => name.to_string(),
            Self::Bss(key) => escape(&key.to_string()),
            Self::BssImage(ImageKind::Kernel, path) => format!("kernel-{path}"),
            Self::BssImage(ImageKind::Initrd, path) => format!("initrd-{path}"),
            // Padded, so that tombstones sort by revision.
            Self::Tombstone(revision, id) => format!("{revision:020}-{id}"),
        }
    }

    /// The reverse of [`Self::to_key`]; `None` for keys that name no resource.
    pub fn from_key(key: &Key) -> Option<Self> {
        let kind = ResourceKind::of_key(key)?;
        let (_, name) = key.as_str().strip_prefix("site/")?.split_once('/')?;
        Some(match kind {
            ResourceKind::Node => Self::Node(name.parse().ok()?),
            ResourceKind::Group => Self::Group(name.parse().ok()?),
            ResourceKind::Partition => Self::Partition(name.parse().ok()?),
            ResourceKind::Network => Self::Network(name.parse().ok()?),
            ResourceKind::Artifact => Self::Artifact(name.parse().ok()?),
            ResourceKind::BootConfig => Self::BootConfig(name.parse().ok()?),
            ResourceKind::MetadataLayer => Self::MetadataLayer(name.parse().ok()?),
            ResourceKind::ProvisionProfile => Self::ProvisionProfile(name.parse().ok()?),
            ResourceKind::BootState => Self::BootState(name.parse().ok()?),
            ResourceKind::Bss => Self::Bss(unescape(name)?.parse().ok()?),
            ResourceKind::BssImage => {
                let (kind, path) = name.split_once('-')?;
                let kind = match kind {
                    "kernel" => ImageKind::Kernel,
                    "initrd" => ImageKind::Initrd,
                    _ => return None,
                };
                Self::BssImage(kind, path.parse().ok()?)
            }
            ResourceKind::Set => Self::Set(name.parse().ok()?),
            ResourceKind::Tombstone => {
                let (revision, id) = name.split_once('-')?;
                Self::Tombstone(revision.parse().ok()?, id.parse().ok()?)
            }
        })
    }
}

/// Any text as one segment of a key: other characters than plain ones become `%XX`.
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
    fn resource_keys_round_trip_through_store_keys() {
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
