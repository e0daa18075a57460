//! The last observed state of each node. Kept apart from the roster: states change all the time and
//! never make a site revision.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use hoist_model::node::Power;
use hoist_model::{NodeId, NodeState};
use hoist_store::follow::{Follower, follow};
use hoist_store::{Batch, Change, Key, Op, Prefix, Record, Revision, Store, StoreError, Txn};
use parking_lot::RwLock;
use tokio_util::sync::CancellationToken;

const PAGE: usize = 5_000;

/// Cheap to clone; all clones are the same.
#[derive(Debug, Clone)]
pub struct States {
    store: Arc<dyn Store>,
    seen: Arc<RwLock<HashMap<NodeId, NodeState>>>,
    version: Arc<AtomicU64>,
}

impl States {
    pub fn new(store: Arc<dyn Store>) -> Self {
        // Anywhere but where another process began: versions are not told apart by who counted.
        let start = RandomState::new().build_hasher().finish();
        Self { store, seen: Arc::default(), version: Arc::new(AtomicU64::new(start)) }
    }

    /// Changes with everything that is seen, and is never the same in two processes.
    pub fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    pub fn power(&self, id: NodeId) -> Power {
        let seen = self.seen.read();
        seen.get(&id).map_or(Power::Unknown, |state| state.power)
    }

    pub fn get(&self, id: NodeId) -> Option<NodeState> {
        self.seen.read().get(&id).cloned()
    }

    /// Durable when it returns.
    pub async fn set(&self, id: NodeId, state: NodeState) -> Result<(), StoreError> {
        self.set_all(vec![(id, state)]).await
    }

    /// Several at once; durable when it returns.
    pub async fn set_all(&self, states: Vec<(NodeId, NodeState)>) -> Result<(), StoreError> {
        if states.is_empty() {
            return Ok(());
        }
        let bytes = |state: &NodeState| serde_json::to_vec(state).expect("a plain record");
        let ops = states.iter().map(|(id, state)| Op::Put(key(*id), bytes(state))).collect();
        self.store.commit(Txn { compares: Vec::new(), ops }).await?;
        self.write(|seen| seen.extend(states));
        Ok(())
    }

    /// Reads the states and follows the reports of other controllers until `stop`.
    pub async fn follow(self, stop: CancellationToken) {
        let prefix = prefix();
        tokio::select! {
            () = stop.cancelled() => {}
            never = follow(self.store.as_ref(), &prefix, &self) => match never {},
        }
    }

    async fn read_all(&self) -> Result<Revision, StoreError> {
        let mut all = HashMap::new();
        let mut from = None;
        loop {
            let page = self.store.list(&prefix(), from, PAGE).await?;
            all.extend(page.records.iter().filter_map(parse));
            from = page.next;
            if from.is_none() {
                self.write(|seen| *seen = all);
                return Ok(page.revision);
            }
        }
    }

    fn write(&self, change: impl FnOnce(&mut HashMap<NodeId, NodeState>)) {
        change(&mut self.seen.write());
        self.version.fetch_add(1, Ordering::Release);
    }
}

#[async_trait]
impl Follower for States {
    type Error = StoreError;

    async fn load(&self) -> Result<Revision, StoreError> {
        self.read_all().await
    }

    async fn apply(&self, batch: Batch) -> Result<(), StoreError> {
        self.write(|seen| {
            for change in batch.changes {
                match change {
                    Change::Put(record) => seen.extend(parse(&record)),
                    Change::Delete(key) => drop(id_of(&key).and_then(|id| seen.remove(&id))),
                }
            }
        });
        Ok(())
    }

    async fn failed(&self, error: StoreError) {
        // The registry reports an unreachable store; once is enough.
        tracing::debug!(%error, "observed states are not followed");
    }
}

fn prefix() -> Prefix {
    Prefix::Under("state".parse().expect("a valid key"))
}

fn key(id: NodeId) -> Key {
    format!("state/{id}").parse().expect("ids are valid segments")
}

fn id_of(key: &Key) -> Option<NodeId> {
    key.as_str().strip_prefix("state/")?.parse().ok()
}

fn parse(record: &Record) -> Option<(NodeId, NodeState)> {
    Some((id_of(&record.key)?, serde_json::from_slice(&record.value).ok()?))
}
