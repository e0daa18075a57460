//! What the site keeps in the store, and under which keys.
//!
//! Everything people declared lives below `site/`, so one listing is the whole picture and one
//! watch is every change to it. `site/revision` is written by every declared change and compared by
//! it: that is what makes the site have one history.

use std::collections::BTreeSet;
use std::sync::Arc;

use hoist_model::document::DocumentName;
use hoist_model::{Group, GroupKey, Kind, Name, Network, Node, NodeId, Partition};
use hoist_store::{Key, Prefix, Record};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// One declared thing, as kept in memory and in the store.
#[derive(Debug, Clone, PartialEq)]
pub enum Resource {
    Node(Arc<Node>),
    Group(Arc<Group>),
    Partition(Arc<Partition>),
    Network(Arc<Network>),
    Set(Arc<AppliedSet>),
    Tombstone(Tombstone),
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ResourceKey {
    Node(NodeId),
    Group(GroupKey),
    Partition(Name),
    Network(Name),
    Set(Name),
    /// By the revision of the removal, then the node.
    Tombstone(u64, NodeId),
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
            Self::Set(set) => ResourceKey::Set(set.name.clone()),
            Self::Tombstone(tombstone) => {
                ResourceKey::Tombstone(tombstone.revision, tombstone.node)
            }
        }
    }

    pub fn to_bytes(&self) -> Vec<u8> {
        let bytes = match self {
            Self::Node(node) => serde_json::to_vec(node),
            Self::Group(group) => serde_json::to_vec(group),
            Self::Partition(partition) => serde_json::to_vec(partition),
            Self::Network(network) => serde_json::to_vec(network),
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
    pub fn to_key(&self) -> Key {
        key(&match self {
            Self::Node(id) => format!("site/node/{id}"),
            Self::Group(group) => format!("site/group/{}/{}", group.partition, group.name),
            Self::Partition(name) => format!("site/partition/{name}"),
            Self::Network(name) => format!("site/network/{name}"),
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
            "set" => Self::Set(name.parse().ok()?),
            "gone" => {
                let (revision, id) = name.split_once('-')?;
                Self::Tombstone(revision.parse().ok()?, id.parse().ok()?)
            }
            _ => return None,
        })
    }
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
            ResourceKey::Set("site".parse().expect("a name")),
            ResourceKey::Tombstone(7, id),
        ] {
            assert_eq!(ResourceKey::from_key(&key.to_key()), Some(key));
        }
        assert_eq!(ResourceKey::from_key(&revision_key()), None);
    }
}
