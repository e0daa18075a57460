//! What is kept of runs: one record of the run, one of each node in it, and one for each node that
//! says in which run it was last.

use std::collections::BTreeMap;

use hoist_api::provision::{Counts, How, Installed, NodeRunState, RootDisk, RunNode};
use hoist_inventory::record;
use hoist_metadata::provision::Arming;
use hoist_model::{BootState, Digest, Name, NodeId, ProvisionProfileSpec};
use hoist_store::{Compare, Key, Op, Record, Revision, Store, StoreError};
use jiff::Timestamp;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use uuid::Uuid;

use crate::scan::{Step, walk};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RunRecord {
    pub(super) run: String,
    pub(super) selector: String,
    pub(super) how: How,
    pub(super) by: String,
    pub(super) started: Timestamp,
    /// Nothing more is begun.
    #[serde(default)]
    pub(super) aborted: bool,
    /// All its nodes are over: nobody has to look at it any more.
    #[serde(default)]
    pub(super) over: bool,
    /// What became of its nodes, once it is over: lists of runs need not read all of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) counts: Option<Counts>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct NodeRecord {
    #[serde(flatten)]
    pub(super) shown: RunNode,
    /// Its place in the run.
    pub(super) order: u32,
    pub(super) txn: Uuid,
    /// SHA-256 of what its agent shows, in hexadecimal digits; of the last attempt.
    #[serde(default)]
    pub(super) session: Option<String>,
    /// The arming of the attempt before: an agent that stayed in memory with its key goes on with it.
    #[serde(default)]
    pub(super) earlier: Option<Arming>,
    /// The last event that was taken in.
    #[serde(default)]
    pub(super) seq: u64,
    /// When its agent was last heard of, within half a minute.
    #[serde(default)]
    pub(super) heard: Option<Timestamp>,
    /// Of the node, when it was armed last.
    #[serde(default)]
    pub(super) generation: Option<u64>,
    /// Of the node, when the run began with it: markers on its disks carry it, by which the next
    /// attempt knows what is its own.
    #[serde(default)]
    pub(super) begun_generation: Option<u64>,
    /// Of earlier attempts, as `session`; the last ones.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) over: Vec<String>,
    /// The disks that its root is on, by its last report.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) root: Vec<RootDisk>,
    /// When it was told that nothing is heard of its agent; nothing since it was heard again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) told_silent: Option<Timestamp>,
    /// Since when an agent has an order of which nobody has heard what came of it.
    #[serde(default)]
    pub(super) ordered: Option<Timestamp>,
    /// Its agent is told to end.
    #[serde(default)]
    pub(super) abort: bool,
    /// What had been decided about its booting before.
    #[serde(default)]
    pub(super) before: Option<BootState>,
    /// The digest of what it was given last.
    #[serde(default)]
    pub(super) given: Option<String>,
    /// It gets this, whatever its profile says now.
    #[serde(default)]
    pub(super) is_given: bool,
    /// Its disks are put back, now or with the next attempt.
    #[serde(default, rename = "undoing")]
    pub(super) undo: Option<Undoing>,
    /// When its agent has ended, its disks are put back.
    #[serde(default)]
    pub(super) undo_next: bool,
    /// Until when its system has to be up.
    #[serde(default)]
    pub(super) up_by: Option<Timestamp>,
}

/// Sessions that are remembered when they are over.
const MAX_OVER: usize = 8;

/// What a node is made of: its profile as it was, and what the artifacts in it were.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Given {
    pub(super) profile: Name,
    pub(super) spec: ProvisionProfileSpec,
    /// The content of each artifact that it names.
    pub(super) artifacts: BTreeMap<String, String>,
}

impl Given {
    /// What it is kept under, and as what; nothing if it is more than a store takes.
    pub(super) fn packed(&self) -> Option<(String, Vec<u8>)> {
        let bytes = serde_json::to_vec(self).expect("a plain value");
        let digest = Digest::from_bytes(Sha256::digest(&bytes).into()).to_string();
        (bytes.len() <= hoist_store::MAX_VALUE_BYTES).then_some((digest, bytes))
    }
}

pub(super) fn given_key(digest: &str) -> Key {
    record::provision_given().child(digest)
}

/// What a node has, and what it had before that.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct InstalledRecord {
    pub(crate) node: NodeId,
    pub(crate) now: Installed,
    #[serde(default)]
    pub(crate) before: Option<Installed>,
}

/// What a node was before its disks were to be put back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Undoing {
    pub(super) state: NodeRunState,
    /// What it booted then.
    #[serde(default)]
    pub(super) boot: Option<BootState>,
}

/// In which run a node was last.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Last {
    pub(super) node: NodeId,
    pub(super) run: String,
    pub(super) over: bool,
}

/// What a machine has, as it said itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct FactsRecord {
    pub(super) at: Timestamp,
    pub(super) facts: serde_json::Value,
}

/// Something that is kept, and where in the history of the store it was read.
#[derive(Debug, Clone)]
pub(super) struct Kept<T> {
    pub(super) value: T,
    pub(super) key: Key,
    pub(super) at: Revision,
}

impl<T: DeserializeOwned + Send> Kept<T> {
    pub(super) fn read(record: &Record) -> Result<Self, StoreError> {
        let value = serde_json::from_slice(&record.value).map_err(|error| StoreError::Damaged {
            detail: format!("`{}` cannot be read: {error}", record.key),
        })?;
        Ok(Self { value, key: record.key.clone(), at: record.revision })
    }

    pub(super) async fn get(store: &dyn Store, key: &Key) -> Result<Option<Self>, StoreError> {
        store.get(key).await?.as_ref().map(Self::read).transpose()
    }

    pub(super) async fn list(store: &dyn Store, top: &Key) -> Result<Vec<Self>, StoreError> {
        let mut found = Vec::new();
        walk(store, top, None, |record| {
            found.push(Self::read(&record));
            Step::Go
        })
        .await?;
        found.into_iter().collect()
    }

    /// That nobody else has written it since.
    pub(super) fn unchanged(&self) -> Compare {
        Compare::At(self.key.clone(), self.at)
    }
}

pub(super) fn put<T: Serialize>(key: Key, value: &T) -> Op {
    Op::Put(key, serde_json::to_vec(value).expect("a plain value"))
}

pub(super) fn node_key(run: &str, node: NodeId) -> Key {
    record::provision_nodes(run).child(&node.to_string())
}

pub(super) fn last_key(node: NodeId) -> Key {
    record::provision_lasts().child(&node.to_string())
}

impl NodeRecord {
    pub(super) fn key(&self) -> Key {
        node_key(&self.shown.run, self.shown.id)
    }

    /// What is written of a node: its record, and whether it is free for another run.
    pub(super) fn ops(&self) -> Vec<Op> {
        let RunNode { id, run, state, .. } = &self.shown;
        let last = Last { node: *id, run: run.clone(), over: state.is_over() };
        vec![put(self.key(), self), put(last_key(*id), &last)]
    }

    /// Whether something may have been written to its disks.
    pub(super) fn is_touched(&self) -> bool {
        self.shown.changed || self.ordered.is_some()
    }

    /// Its agent of before is told that it is over, when it is heard again.
    pub(super) fn end_session(&mut self) {
        self.over.extend(self.session.take());
        let surplus = self.over.len().saturating_sub(MAX_OVER);
        self.over.drain(..surplus);
    }

    /// Whether it was ended with something on its disks that is neither as before nor complete.
    pub(super) fn is_unfinished(&self) -> bool {
        self.shown.state == NodeRunState::Aborted && self.is_touched()
    }

    pub(super) fn become_state(&mut self, state: NodeRunState, now: Timestamp) {
        if self.shown.state != state {
            self.shown.state = state;
            self.shown.since = now;
        }
    }
}
