//! The current snapshot of the cluster, which follows the store, and the one way to write.
//!
//! Guarantees that a write is decided on the records as the store has them, and that all writes of
//! all controllers take effect one after the other: each compares the counters and writes them.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use async_trait::async_trait;
use hoist_api::Code;
use hoist_chassis::audit::{AuditError, AuditLog, Draft};
use hoist_chassis::failure::Failure;
use hoist_chassis::member::{MemberGrant, Members, NotAdmitted};
use hoist_chassis::scan::{ScanStep, walk};
use hoist_cluster::id::{ClusterId, NodeId};
use hoist_store::follow::{Follower, follow};
use hoist_store::{Batch, Change, Record, Revision, Store, StoreError};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::keys;
use super::records::RecordChange;
use super::snapshot::Snapshot;

/// Attempts of a write while other controllers write too.
const ATTEMPTS: usize = 32;

/// How long a member may go on with the certificate that its own request has ended, so that it
/// gets the answer.
const FAREWELL: Duration = Duration::from_secs(10);

/// Cheap to clone; all clones are the same.
#[derive(Debug, Clone)]
pub(super) struct View(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    store: Arc<dyn Store>,
    audit: AuditLog,
    snapshot: ArcSwap<Snapshot>,
    /// Held while the snapshot is replaced.
    update: Mutex<()>,
    /// Writers of this controller queue here rather than collide in the store.
    turn: tokio::sync::Mutex<()>,
    /// Rises with every change of the members that may connect.
    connections: watch::Sender<u64>,
    farewells: Mutex<HashMap<NodeId, Farewell>>,
}

/// The certificate of a member that has just asked for another one, or to leave.
#[derive(Debug)]
struct Farewell {
    serial: u64,
    grant: MemberGrant,
    ends: Instant,
}

/// The decision of a write.
#[derive(Debug)]
pub(super) struct Write<T> {
    /// Nothing is written if it is empty.
    pub(super) changes: Vec<RecordChange>,
    pub(super) result: T,
}

impl View {
    pub(super) fn new(store: Arc<dyn Store>, audit: AuditLog) -> Self {
        Self(Arc::new(Inner {
            store,
            audit,
            snapshot: ArcSwap::default(),
            update: Mutex::default(),
            turn: tokio::sync::Mutex::default(),
            connections: watch::Sender::new(0),
            farewells: Mutex::default(),
        }))
    }

    /// The snapshot of now. Never waits.
    pub(super) fn snapshot(&self) -> Arc<Snapshot> {
        self.0.snapshot.load_full()
    }

    /// The snapshot of now, if the store was ever read.
    pub(super) fn loaded(&self) -> Result<Arc<Snapshot>, Failure> {
        let snapshot = self.snapshot();
        if snapshot.is_loaded {
            return Ok(snapshot);
        }
        let detail = "the cluster was not read from the store yet";
        Err(Failure::new(Code::StoreUnavailable, detail)
            .with_remedy("try again when `/readyz` is ok"))
    }

    /// Wakes with every change of the members that may connect.
    pub(super) fn connections(&self) -> watch::Receiver<u64> {
        self.0.connections.subscribe()
    }

    /// Reads all records.
    pub(super) async fn load(&self) -> Result<Revision, StoreError> {
        let mut next = Snapshot { is_loaded: true, ..Snapshot::default() };
        let mut failed = None;
        let top = keys::top();
        let read =
            walk(self.0.store.as_ref(), &top, None, |record| match take_in(&mut next, &record) {
                Ok(()) => ScanStep::Go,
                Err(error) => {
                    failed = Some(error);
                    ScanStep::Enough
                }
            });
        next.revision = read.await?;
        if let Some(error) = failed {
            return Err(error);
        }
        let revision = next.revision;
        self.publish(next);
        Ok(revision)
    }

    /// Follows the writes of other controllers until `stop`.
    pub(super) async fn follow(self, stop: CancellationToken) {
        let prefix = keys::prefix();
        tokio::select! {
            () = stop.cancelled() => {}
            never = follow(self.0.store.as_ref(), &prefix, &self) => match never {},
        }
    }

    /// Decides on the records as the store has them now, and writes the changes in one transaction,
    /// with the audit entry `by`. `decide` is called again when another controller was faster.
    pub(super) async fn write<T>(
        &self,
        by: Option<&Draft>,
        mut decide: impl FnMut(&Snapshot) -> Result<Write<T>, Failure> + Send,
    ) -> Result<T, Failure> {
        let _turn = self.0.turn.lock().await;
        for _ in 0..ATTEMPTS {
            let snapshot = self.current().await?;
            let Write { changes, result } = decide(&snapshot)?;
            if changes.is_empty() {
                return Ok(result);
            }
            let txn = snapshot.transaction(&changes);
            let committed = match by {
                Some(draft) => self.0.audit.commit(txn, draft).await,
                None => self.0.store.commit(txn).await.map_err(AuditError::Store),
            };
            match committed {
                Ok(revision) => {
                    let mut next = snapshot.with(changes);
                    next.revision = revision;
                    next.counters_at = Some(revision);
                    self.publish(next);
                    return Ok(result);
                }
                Err(AuditError::Store(StoreError::Conflict { key })) if key == keys::counters() => {
                }
                Err(error) => return Err(error.into()),
            }
        }
        Err(StoreError::Conflict { key: keys::counters() }.into())
    }

    /// The snapshot, after it was compared with the store.
    async fn current(&self) -> Result<Arc<Snapshot>, StoreError> {
        let snapshot = self.snapshot();
        let counters = self.0.store.get(&keys::counters()).await?;
        let is_current = counters.map(|record| record.revision) == snapshot.counters_at;
        if !snapshot.is_loaded || !is_current {
            self.load().await?;
        }
        Ok(self.snapshot())
    }

    /// Lets a member use its present certificate until it has the answer to its request.
    pub(super) fn say_farewell(&self, node: NodeId, serial: u64) {
        let Some(grant) = self.grant(node, serial) else { return };
        let now = Instant::now();
        let mut farewells = self.0.farewells.lock();
        farewells.retain(|_, farewell| farewell.ends > now);
        farewells.insert(node, Farewell { serial, grant, ends: now + FAREWELL });
    }

    fn grant(&self, node: NodeId, serial: u64) -> Option<MemberGrant> {
        let snapshot = self.0.snapshot.load();
        let member = snapshot.member(node)?;
        (member.may_connect() && member.serial == serial).then(|| MemberGrant {
            inventory_node: Some(member.registration.name.clone()),
            generation: snapshot.membership.counters.generation,
        })
    }

    fn farewell(&self, node: NodeId, serial: u64) -> Option<MemberGrant> {
        let farewells = self.0.farewells.lock();
        let farewell = farewells.get(&node)?;
        let is_valid = farewell.serial == serial && farewell.ends > Instant::now();
        let is_expelled = self.0.snapshot.load().membership.expelled.contains_key(&node);
        (is_valid && !is_expelled).then(|| farewell.grant.clone())
    }

    /// Replaces the snapshot, unless a newer one is there.
    fn publish(&self, next: Snapshot) {
        let _update = self.0.update.lock();
        self.replace(next);
    }

    fn replace(&self, next: Snapshot) {
        let current = self.snapshot();
        if current.is_loaded && next.revision < current.revision {
            return;
        }
        let is_other =
            current.membership.members != next.membership.members || current.state != next.state;
        self.0.snapshot.store(Arc::new(next));
        if is_other {
            self.0.connections.send_modify(|generation| *generation += 1);
        }
    }

    fn apply_batch(&self, batch: Batch) -> Result<(), StoreError> {
        let _update = self.0.update.lock();
        let current = self.snapshot();
        // Writes of this controller are in it already, with everything before them.
        if batch.revision <= current.revision {
            return Ok(());
        }
        let mut next = Snapshot::clone(&current);
        for change in batch.changes {
            match change {
                Change::Put(record) => take_in(&mut next, &record)?,
                Change::Delete(key) => {
                    if let Some(change) = RecordChange::of_removal(&key)? {
                        next.apply(change);
                    }
                }
            }
        }
        next.revision = batch.revision;
        self.replace(next);
        Ok(())
    }
}

/// Adds a record. One that cannot be read is left out and named in the log, unless the others have
/// no meaning without it.
fn take_in(snapshot: &mut Snapshot, record: &Record) -> Result<(), StoreError> {
    match RecordChange::of_record(&record.key, &record.value) {
        Ok(None) => {}
        Ok(Some(change)) => {
            if matches!(change, RecordChange::Counters(_)) {
                snapshot.counters_at = Some(record.revision);
            }
            snapshot.apply(change);
        }
        Err(error) if is_needed(record) => return Err(error),
        Err(error) => {
            tracing::error!(%error, "a record of the cluster cannot be read and is left out");
        }
    }
    Ok(())
}

/// Without these nothing can be decided; without an expulsion, the wrong thing.
fn is_needed(record: &Record) -> bool {
    matches!(
        keys::parts(&record.key),
        Some(
            (keys::STATE | keys::COUNTERS | keys::EXPELLED, _) | (keys::PLAN, Some(keys::CURRENT))
        )
    )
}

#[async_trait]
impl Follower for View {
    type Error = StoreError;

    async fn load(&self) -> Result<Revision, StoreError> {
        Self::load(self).await
    }

    async fn apply(&self, batch: Batch) -> Result<(), StoreError> {
        self.apply_batch(batch)
    }

    /// The roster reports that the store is unreachable, once for the whole controller.
    async fn failed(&self, error: StoreError) {
        match error {
            StoreError::Damaged { .. } => {
                tracing::error!(error = %hoist_diagnostic::chain(&error), "cluster not followed");
            }
            error => {
                tracing::debug!(error = %hoist_diagnostic::chain(&error), "cluster not followed");
            }
        }
    }
}

impl Members for View {
    fn find(&self, cluster: &str, node: &str, serial: u64) -> Result<MemberGrant, NotAdmitted> {
        let unknown = NotAdmitted::Unknown;
        let cluster: ClusterId = cluster.parse().map_err(|_| unknown)?;
        let node: NodeId = node.parse().map_err(|_| unknown)?;
        let snapshot = self.0.snapshot.load();
        if !snapshot.is_loaded {
            return Err(NotAdmitted::NotLoaded);
        }
        if snapshot.state.as_ref().is_none_or(|state| state.uid != cluster) {
            return Err(unknown);
        }
        let grant = self.grant(node, serial).or_else(|| self.farewell(node, serial));
        grant.ok_or_else(|| {
            let end = snapshot.membership.end_of(node, serial);
            end.map_or(unknown, NotAdmitted::Ended)
        })
    }

    fn generation(&self) -> watch::Receiver<u64> {
        self.connections()
    }
}
