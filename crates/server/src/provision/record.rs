//! Stored records of runs: one per run, one per node of a run, and one per node that names its last
//! run.

use std::collections::BTreeMap;

use hoist_api::provision::{
    Counts, Installation, NodeRunState, ProvisionOptions, RootDisk, RunNode,
};
use hoist_metadata::provision::Enrollment;
use hoist_model::{BootState, Digest, Name, NodeId, ProvisionProfileSpec};
use hoist_store::{Compare, Key, Op, Record, Revision, Store, StoreError};
use jiff::Timestamp;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use uuid::Uuid;

use hoist_chassis::scan::{ScanStep, walk};

use super::keys;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RunRecord {
    pub(super) run: String,
    pub(super) selector: String,
    pub(super) how: ProvisionOptions,
    pub(super) by: String,
    pub(super) started: Timestamp,
    /// Nothing more is begun.
    #[serde(default)]
    pub(super) aborted: bool,
    /// All nodes are finished; the background task skips this run.
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
    /// The enrollment of the previous attempt. An agent that stayed in memory continues with it.
    #[serde(default)]
    pub(super) earlier: Option<Enrollment>,
    /// The last event that was taken in.
    #[serde(default)]
    pub(super) seq: u64,
    /// When its agent was last heard of, within half a minute.
    #[serde(default)]
    pub(super) heard: Option<Timestamp>,
    /// The generation of the node when it was last enrolled.
    #[serde(default)]
    pub(super) generation: Option<u64>,
    /// The node's generation when the run started. Disk markers carry it, so that a later attempt
    /// recognises its own disks.
    #[serde(default)]
    pub(super) begun_generation: Option<u64>,
    /// Of earlier attempts, as `session`; the last ones.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) over: Vec<String>,
    /// The disks that its root is on, by its last report.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) root: Vec<RootDisk>,
    /// When the agent's silence was reported; cleared by its next heartbeat.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) told_silent: Option<Timestamp>,
    /// Since when an agent has a job without a reported outcome.
    #[serde(default)]
    pub(super) given_at: Option<Timestamp>,
    /// The agent must stop.
    #[serde(default)]
    pub(super) abort: bool,
    /// Boot state before the run.
    #[serde(default)]
    pub(super) before: Option<BootState>,
    /// Digest of the inputs of its last job.
    #[serde(default)]
    pub(super) given: Option<String>,
    /// It gets this, whatever its profile says now.
    #[serde(default)]
    pub(super) is_given: bool,
    /// Its disks are restored, now or in the next attempt.
    #[serde(default, rename = "undoing")]
    pub(super) undo: Option<UndoState>,
    /// Its disks are restored when its agent has stopped.
    #[serde(default)]
    pub(super) undo_next: bool,
    /// Until when its system has to be up.
    #[serde(default)]
    pub(super) up_by: Option<Timestamp>,
}

/// Sessions that are remembered when they are over.
const MAX_OVER: usize = 8;

/// Inputs of a job: the profile at that time and the digests of its artifacts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct JobInputs {
    pub(super) profile: Name,
    pub(super) spec: ProvisionProfileSpec,
    /// The content of each artifact that it names.
    pub(super) artifacts: BTreeMap<String, String>,
}

impl JobInputs {
    /// Key and encoded value; `None` if it exceeds the store's limit.
    pub(super) fn packed(&self) -> Option<(String, Vec<u8>)> {
        let bytes = serde_json::to_vec(self).expect("a plain value");
        let digest = Digest::from_bytes(Sha256::digest(&bytes).into()).to_string();
        (bytes.len() <= hoist_store::MAX_VALUE_BYTES).then_some((digest, bytes))
    }
}

pub(super) fn given_key(digest: &str) -> Key {
    keys::given_profiles().child(digest)
}

/// The node's current and previous installation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct InstalledRecord {
    pub(crate) node: NodeId,
    pub(crate) now: Installation,
    #[serde(default)]
    pub(crate) before: Option<Installation>,
    /// The last run with `--only` since the current installation.
    #[serde(default)]
    pub(crate) changed_by: Option<String>,
}

/// The node's state before an undo.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct UndoState {
    pub(super) state: NodeRunState,
    /// Its boot state at that time.
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

/// Hardware facts reported by the machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct FactsRecord {
    pub(super) at: Timestamp,
    pub(super) facts: serde_json::Value,
}

/// A stored value with its key and the revision at which it was read.
#[derive(Debug, Clone)]
pub(super) struct StoredValue<T> {
    pub(super) value: T,
    pub(super) key: Key,
    pub(super) at: Revision,
}

impl<T: DeserializeOwned + Send> StoredValue<T> {
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
            ScanStep::Go
        })
        .await?;
        found.into_iter().collect()
    }

    /// Precondition that the record is unchanged since it was read.
    pub(super) fn unchanged(&self) -> Compare {
        Compare::At(self.key.clone(), self.at)
    }
}

pub(super) fn put<T: Serialize>(key: Key, value: &T) -> Op {
    Op::Put(key, serde_json::to_vec(value).expect("a plain value"))
}

pub(super) fn node_key(run: &str, node: NodeId) -> Key {
    keys::run_nodes(run).child(&node.to_string())
}

pub(super) fn last_key(node: NodeId) -> Key {
    keys::last_runs().child(&node.to_string())
}

impl NodeRecord {
    pub(super) fn key(&self) -> Key {
        node_key(&self.shown.run, self.shown.id)
    }

    /// Store operations for a node: its record, and its claim on the node.
    pub(super) fn ops(&self) -> Vec<Op> {
        let RunNode { id, run, state, .. } = &self.shown;
        let last = Last { node: *id, run: run.clone(), over: state.is_over() };
        vec![put(self.key(), self), put(last_key(*id), &last)]
    }

    /// Whether something may have been written to its disks.
    pub(super) fn is_touched(&self) -> bool {
        self.shown.changed || self.given_at.is_some()
    }

    /// The previous agent gets `attempt-over` at its next request.
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
