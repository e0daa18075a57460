//! Runs in a store that controllers share. The store has each journal record first, written only by
//! the holder of the run's lease, so that another controller can take the run over.
//!
//! `journal/<run>/run`, `journal/<run>/plan/<n>` and `journal/<run>/records/<n>` exist while the
//! run is active; output stays on the controller that ran the step. The keys of an undo run stay
//! until it is removed, with `journal/<run>/ended` in place of `run`: a controller that has the
//! undone run must know its undone steps.

use std::sync::Arc;
use std::time::{Duration, Instant};

use hoist_api::deploy::{RunState, RunSummary};
use hoist_diagnostic::chain;
use hoist_engine::journal::{self, JournalError};
use hoist_engine::{Plan, Record, Run};
use hoist_store::{Key, Lease, MAX_VALUE_BYTES, Op, Store, StoreError, Txn};
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

use super::folder::{self, FolderError, OWNER_CHARS, RunFile};
use super::summaries;
use hoist_chassis::scan::{Step, walk};
use hoist_chassis::secret;

/// A controller that was not heard of for so long has lost its runs.
const LEASE: Duration = Duration::from_secs(15);
const RENEW_EVERY: Duration = Duration::from_secs(4);

/// Who holds it lets a run begin, or one go on that had ended: two controllers at once would each
/// find that the other is on none of its nodes.
const GATE: &str = "runs-begin";
/// How long to wait for a lease: longer than the lease of a dead controller lasts.
const AT_GATE: Duration = Duration::from_secs(20);

/// Before the store is asked again.
const PAUSE: Duration = Duration::from_millis(500);

/// Largest part of a plan in one value.
const PART: usize = 256 * 1024;
/// Records in one value, if they are not too long.
const LOT: usize = 256;

/// What all runs share.
#[derive(Debug, Clone)]
pub(super) struct SharedRuns {
    store: Arc<dyn Store>,
    workers: Handle,
    /// The same after a restart, so that our own lease is ours again.
    owner: String,
}

/// A run that is ours.
#[derive(Debug)]
pub(super) struct Claim {
    shared: SharedRuns,
    id: String,
    lease: Lease,
    ended: CancellationToken,
}

/// No other controller lets runs begin meanwhile.
#[derive(Debug)]
pub(super) struct Gate {
    shared: SharedRuns,
    lease: Lease,
}

impl Drop for Gate {
    fn drop(&mut self) {
        let released = self.shared.store.release(self.lease.clone());
        if let Err(error) = self.shared.workers.block_on(released) {
            tracing::debug!(error = %chain(&error), "the gate opens by itself");
        }
    }
}

/// A run as the store has it.
#[derive(Debug)]
pub(super) struct StoredRun {
    pub(super) file: RunFile,
    pub(super) plan: Vec<u8>,
    pub(super) records: Vec<Record>,
}

impl StoredRun {
    /// What its records come to.
    pub(super) fn run(self) -> Result<(RunFile, Run), FolderError> {
        let plan = folder::plan_of(&self.plan)?;
        Ok((self.file, Run::replay(&plan, &self.records)?))
    }
}

impl SharedRuns {
    /// In a runtime.
    pub(super) fn new(store: Arc<dyn Store>, owner: String) -> Self {
        Self { store, workers: Handle::current(), owner }
    }

    /// Ids of the active runs of all controllers.
    pub(super) fn list(&self) -> Result<Vec<String>, StoreError> {
        let mut found = Vec::new();
        self.workers.block_on(walk(self.store.as_ref(), &top(), None, |record| {
            let mut parts = record.key.as_str().split('/').skip(1);
            if let (Some(id), Some("run")) = (parts.next(), parts.next()) {
                found.push(id.to_owned());
            }
            Step::Go
        }))?;
        Ok(found)
    }

    /// Takes a run; `None` if another controller has it.
    pub(super) fn claim(&self, id: &str) -> Result<Option<Claim>, StoreError> {
        let name = format!("run-{id}");
        let lease = self.workers.block_on(self.store.acquire(&name, &self.owner, LEASE))?;
        Ok(lease.map(|lease| Claim {
            shared: self.clone(),
            id: id.to_owned(),
            lease,
            ended: CancellationToken::new(),
        }))
    }

    /// Waits until no other controller lets runs begin; `None` if that takes too long. Blocks, and so
    /// does letting it go.
    pub(super) fn gate(&self) -> Result<Option<Gate>, StoreError> {
        // Of each one its own: two of this controller wait for each other as well.
        let owner = format!("{}-{}", self.owner, secret::random_text(OWNER_CHARS));
        let until = Instant::now() + AT_GATE;
        loop {
            let lease = self.workers.block_on(self.store.acquire(GATE, &owner, LEASE))?;
            if let Some(lease) = lease {
                return Ok(Some(Gate { shared: self.clone(), lease }));
            }
            if Instant::now() >= until {
                return Ok(None);
            }
            std::thread::sleep(PAUSE / 10);
        }
    }

    /// Whether some controller has brought the run to its end.
    pub(super) fn has_ended(&self, id: &str) -> Result<bool, StoreError> {
        let found = self.workers.block_on(self.store.get(&summaries::key(id)))?;
        let summary = found.and_then(|record| serde_json::from_slice(&record.value).ok());
        Ok(summary.is_some_and(|run: RunSummary| run.state == RunState::Ended))
    }

    /// The stored state of a run; `None` if there is none.
    pub(super) fn read(&self, id: &str) -> Result<Option<StoredRun>, FolderError> {
        let mut run = None;
        let mut plan = Vec::new();
        let mut records = journal::MAGIC.to_vec();
        let below = top().child(id);
        let walked = walk(self.store.as_ref(), &below, None, |record| {
            match record.key.as_str().split('/').nth(2) {
                Some("run" | "ended") => run = Some(record.value),
                Some("plan") => plan.extend_from_slice(&record.value),
                Some("records") => records.extend_from_slice(&record.value),
                _ => {}
            }
            Step::Go
        });
        self.workers.block_on(walked).map_err(FolderError::Store)?;
        let Some(run) = run else { return Ok(None) };
        let file = serde_json::from_slice(&run).map_err(|error| FolderError::Unreadable {
            file: "run.json",
            reason: error.to_string(),
        })?;
        let records = journal::read(&records)?.records;
        Ok(Some(StoredRun { file, plan, records }))
    }

    /// Runs of any controller that take this one back, or have; and whether they have ended.
    pub(super) fn undo_runs(&self, undone: &str) -> Result<Vec<(String, bool)>, StoreError> {
        let mut found = Vec::new();
        self.workers.block_on(walk(self.store.as_ref(), &top(), None, |record| {
            let mut parts = record.key.as_str().split('/').skip(1);
            if let (Some(id), Some(part @ ("run" | "ended"))) = (parts.next(), parts.next())
                && let Ok(file) = serde_json::from_slice::<RunFile>(&record.value)
                && file.undoes.as_deref() == Some(undone)
            {
                found.push((id.to_owned(), part == "ended"));
            }
            Step::Go
        }))?;
        Ok(found)
    }

    /// Until it is done, or the store says no for good.
    fn commit(&self, txn: &Txn, lease: &Lease) -> Result<(), JournalError> {
        loop {
            match self.workers.block_on(self.store.commit(txn.clone())) {
                Ok(_) => return Ok(()),
                // The same again is the same: what landed unheard is written over by itself.
                Err(StoreError::Unavailable { detail }) => {
                    tracing::warn!(detail, lease = lease.name, "a run waits for the store");
                    std::thread::sleep(PAUSE);
                }
                Err(StoreError::Conflict { .. }) => return Err(JournalError::Fenced),
                Err(error) => return Err(std::io::Error::other(chain(&error)).into()),
            }
        }
    }
}

impl Claim {
    /// Brings a run to the store that is not there.
    pub(super) fn publish(
        &self,
        file: &RunFile,
        plan: &Plan,
        records: &[Record],
        gate: Option<&Gate>,
    ) -> Result<(), JournalError> {
        let key = top().child(&self.id);
        let draft = serde_json::to_vec(plan.draft()).expect("a plain value");
        for (n, part) in draft.chunks(PART).enumerate() {
            self.put(key.child("plan").child(&format!("{n:010}")), part.to_vec())?;
        }
        self.append(0, records)?;
        // Last: without it the rest is nothing. Who has lost the gate does not know any more whether
        // others began on the same nodes.
        let mut txn = self.putting(key.child("run"), serde_json::to_vec(file).expect("plain"));
        txn.compares.extend(gate.map(|gate| gate.lease.guard()));
        self.shared.commit(&txn, &self.lease)
    }

    /// Keeps records, the first of which has this number.
    pub(super) fn append(&self, first: usize, records: &[Record]) -> Result<(), JournalError> {
        let key = top().child(&self.id).child("records");
        for (n, lot) in records.chunks(LOT).enumerate() {
            let first = first + n * LOT;
            let mut bytes = Vec::new();
            let number = u32::try_from(first).expect("journals are bounded");
            journal::frames(lot, number, &mut bytes)?;
            if bytes.len() > MAX_VALUE_BYTES {
                // Rare: many long reasons at once.
                for (n, one) in lot.iter().enumerate() {
                    self.append(first + n, std::slice::from_ref(one))?;
                }
                continue;
            }
            self.put(key.child(&format!("{first:010}")), bytes)?;
        }
        Ok(())
    }

    fn put(&self, key: Key, value: Vec<u8>) -> Result<(), JournalError> {
        self.shared.commit(&self.putting(key, value), &self.lease)
    }

    fn putting(&self, key: Key, value: Vec<u8>) -> Txn {
        Txn { compares: vec![self.lease.guard()], ops: vec![Op::Put(key, value)] }
    }

    /// Renews the lease until the claim is given up; calls `lost` when it is not ours any more.
    pub(super) fn keep(&self, lost: impl Fn() + Send + 'static) {
        let store = Arc::clone(&self.shared.store);
        let lease = self.lease.clone();
        let ended = self.ended.clone();
        self.shared.workers.spawn(async move {
            loop {
                tokio::select! {
                    () = ended.cancelled() => return,
                    () = tokio::time::sleep(RENEW_EVERY) => {}
                }
                if let Err(StoreError::LeaseLost { .. }) = store.renew(&lease).await {
                    tracing::error!(lease = lease.name, "another controller may take this run");
                    return lost();
                }
            }
        });
    }

    /// Ends a run: the store keeps only its summary and its undone steps.
    pub(super) fn end(self, file: &RunFile) {
        let key = top().child(&self.id);
        if file.undoes.is_none() {
            return self.wipe();
        }
        let ended = Op::Put(key.child("ended"), serde_json::to_vec(file).expect("a plain value"));
        self.finish(vec![Op::Delete(key.child("run")), ended]);
    }

    /// The store need not know anything of the run.
    pub(super) fn wipe(self) {
        let ops = vec![Op::DeletePrefix(top().child(&self.id))];
        self.finish(ops);
    }

    fn finish(self, ops: Vec<Op>) {
        let txn = Txn { compares: vec![self.lease.guard()], ops };
        if let Err(error) = self.shared.commit(&txn, &self.lease) {
            tracing::warn!(error = %chain(&error), "a run that has ended is still in the store");
        }
        self.leave();
    }

    /// Others may have it.
    pub(super) fn leave(self) {
        self.ended.cancel();
        let released = self.shared.store.release(self.lease.clone());
        if let Err(error) = self.shared.workers.block_on(released) {
            tracing::debug!(error = %chain(&error), "the lease of a run runs out by itself");
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.ended.cancel();
    }
}

fn top() -> Key {
    "journal".parse().expect("a literal key")
}
