//! Runs in a store that controllers share. The store has each journal record first, written only by
//! the holder of the run's lease, so that another controller can take the run over.
//!
//! | key | content |
//! | --- | --- |
//! | `journal-active/<run>` | the run, while it is active |
//! | `journal-ended/<run>` | the run, when it has ended |
//! | `journal/<run>/plan/<n>`, `journal/<run>/records/<n>` | its plan, compressed, and its records |
//!
//! The journals of the last [`KEPT`] ended runs stay, so that any controller can show, undo and
//! resume them; those of undo runs stay until the run is removed, because a controller that has the
//! undone run must know its undone steps. Output stays on the controller that ran the step.

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
use hoist_chassis::scan::{ScanStep, walk};
use hoist_chassis::secret;

/// A controller that was not heard of for so long has lost its runs. With some slack of the store
/// and [`super::retention::LOOK_EVERY`], another controller has them within 10 s. A short pause of
/// its controller must not move a run, so that several renewals fit.
const LEASE: Duration = Duration::from_secs(5);
const RENEW_EVERY: Duration = Duration::from_secs(1);

/// Journals of ended runs that stay in the store.
const KEPT: usize = 20;

/// Who holds it lets a run begin, or one go on that had ended: two controllers at once would each
/// find that the other is on none of its nodes.
const GATE: &str = "runs-begin";
/// Not renewed: long enough to bring a large plan to the store.
const GATE_LEASE: Duration = Duration::from_secs(15);
/// How long to wait for a lease: longer than the lease of a dead controller lasts.
const AT_GATE: Duration = Duration::from_secs(20);

/// Before the store is asked again.
const PAUSE: Duration = Duration::from_millis(500);

/// Of zstd: beyond it, time grows faster than plans shrink.
const LEVEL: i32 = 3;
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
    pub(super) has_ended: bool,
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
        self.workers.block_on(walk(self.store.as_ref(), &active(), None, |record| {
            found.extend(record.key.as_str().split('/').nth(1).map(str::to_owned));
            ScanStep::Go
        }))?;
        Ok(found)
    }

    fn get(&self, key: &Key) -> Result<Option<Vec<u8>>, StoreError> {
        let found = self.workers.block_on(self.store.get(key))?;
        Ok(found.map(|record| record.value))
    }

    /// Whether some controller has the run, and it has not ended.
    pub(super) fn is_active(&self, id: &str) -> Result<bool, StoreError> {
        self.get(&active().child(id)).map(|found| found.is_some())
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
            let lease = self.workers.block_on(self.store.acquire(GATE, &owner, GATE_LEASE))?;
            if let Some(lease) = lease {
                return Ok(Some(Gate { shared: self.clone(), lease }));
            }
            if Instant::now() >= until {
                return Ok(None);
            }
            std::thread::sleep(PAUSE / 10);
        }
    }

    /// The summary of a run of any controller.
    pub(super) fn summary(&self, id: &str) -> Result<Option<RunSummary>, StoreError> {
        let found = self.get(&summaries::key(id))?;
        Ok(found.and_then(|value| serde_json::from_slice(&value).ok()))
    }

    /// Whether some controller has brought the run to its end.
    pub(super) fn has_ended(&self, id: &str) -> Result<bool, StoreError> {
        Ok(self.summary(id)?.is_some_and(|run| run.state == RunState::Ended))
    }

    /// The data of a run whose journal is in the store, and whether it has ended.
    pub(super) fn file(&self, id: &str) -> Result<Option<(RunFile, bool)>, FolderError> {
        for (top, has_ended) in [(active(), false), (ended(), true)] {
            if let Some(value) = self.get(&top.child(id))? {
                let file = serde_json::from_slice(&value).map_err(|error| unreadable(&error))?;
                return Ok(Some((file, has_ended)));
            }
        }
        Ok(None)
    }

    /// The stored state of a run; `None` if there is none.
    pub(super) fn read(&self, id: &str) -> Result<Option<StoredRun>, FolderError> {
        let Some((file, has_ended)) = self.file(id)? else { return Ok(None) };
        let mut plan = Vec::new();
        let mut records = Vec::new();
        let below = journals().child(id);
        let walked = walk(self.store.as_ref(), &below, None, |record| {
            match record.key.as_str().split('/').nth(2) {
                Some("plan") => plan.extend_from_slice(&record.value),
                Some("records") => records.extend_from_slice(&record.value),
                _ => {}
            }
            ScanStep::Go
        });
        self.workers.block_on(walked)?;
        let plan = zstd::decode_all(&*plan).map_err(|error| unreadable(&error))?;
        let records = journal::read_frames(&records, 0)?;
        Ok(Some(StoredRun { file, has_ended, plan, records }))
    }

    /// The records of a run from this number on.
    pub(super) fn records_from(&self, id: &str, first: usize) -> Result<Vec<Record>, FolderError> {
        let below = journals().child(id).child("records");
        let after = first.checked_sub(1).map(|before| below.child(&format!("{before:010}")));
        let mut records = Vec::new();
        self.workers.block_on(walk(self.store.as_ref(), &below, after, |record| {
            records.extend_from_slice(&record.value);
            ScanStep::Go
        }))?;
        let first = u32::try_from(first).expect("journals are bounded");
        Ok(journal::read_frames(&records, first)?)
    }

    /// Runs of any controller that take this one back, or have; and whether they have ended.
    pub(super) fn undo_runs(&self, undone: &str) -> Result<Vec<(String, bool)>, StoreError> {
        let mut found = self.undo_runs_below(&active(), undone)?;
        let active = found.len();
        found.extend(self.undo_runs_below(&ended(), undone)?);
        let has_ended = |(at, id)| (id, at >= active);
        Ok(found.into_iter().enumerate().map(has_ended).collect())
    }

    fn undo_runs_below(&self, top: &Key, undone: &str) -> Result<Vec<String>, StoreError> {
        let files = self.files(top)?;
        let undo_runs = files.into_iter().filter(|file| file.undoes.as_deref() == Some(undone));
        Ok(undo_runs.map(|file| file.id).collect())
    }

    fn files(&self, top: &Key) -> Result<Vec<RunFile>, StoreError> {
        let mut found = Vec::new();
        self.workers.block_on(walk(self.store.as_ref(), top, None, |record| {
            // One of a newer version is left to a newer program.
            found.extend(serde_json::from_slice::<RunFile>(&record.value));
            ScanStep::Go
        }))?;
        Ok(found)
    }

    /// Removes the journals of older ended runs from the store.
    fn prune(&self) -> Result<(), StoreError> {
        let files = self.files(&ended())?;
        let mut ids: Vec<String> =
            files.into_iter().filter(|file| file.undoes.is_none()).map(|file| file.id).collect();
        ids.sort_unstable();
        ids.truncate(ids.len().saturating_sub(KEPT));
        for id in ids {
            // A controller that resumes the run just now keeps its journal.
            if let Some(claim) = self.claim(&id)? {
                if self.is_active(&id)? { claim.leave() } else { claim.wipe() }
            }
        }
        Ok(())
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
        let key = journals().child(&self.id);
        let draft = serde_json::to_vec(plan.draft()).expect("a plain value");
        let draft = zstd::encode_all(&*draft, LEVEL)?;
        for (n, part) in draft.chunks(PART).enumerate() {
            self.put(key.child("plan").child(&format!("{n:010}")), part.to_vec())?;
        }
        self.append(0, records)?;
        // Last: without it the rest is nothing. Who has lost the gate does not know any more whether
        // others began on the same nodes.
        self.reopen(file, gate)
    }

    /// Marks a run as active whose journal is in the store.
    pub(super) fn reopen(&self, file: &RunFile, gate: Option<&Gate>) -> Result<(), JournalError> {
        let value = serde_json::to_vec(file).expect("a plain value");
        let mut txn = self.putting(active().child(&self.id), value);
        txn.ops.push(Op::Delete(ended().child(&self.id)));
        txn.compares.extend(gate.map(|gate| gate.lease.guard()));
        self.shared.commit(&txn, &self.lease)
    }

    /// Keeps records, the first of which has this number.
    pub(super) fn append(&self, first: usize, records: &[Record]) -> Result<(), JournalError> {
        let key = journals().child(&self.id).child("records");
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

    /// Ends a run: its journal stays for a while, so that other controllers can show it.
    pub(super) fn end(self, file: &RunFile) {
        let shared = self.shared.clone();
        let value = serde_json::to_vec(file).expect("a plain value");
        let put = Op::Put(ended().child(&self.id), value);
        let ops = vec![Op::Delete(active().child(&self.id)), put];
        self.finish(ops);
        if let Err(error) = shared.prune() {
            tracing::debug!(error = %chain(&error), "old journals are still in the store");
        }
    }

    /// The store need not know anything of the run.
    pub(super) fn wipe(self) {
        let ops = vec![
            Op::Delete(active().child(&self.id)),
            Op::Delete(ended().child(&self.id)),
            Op::DeletePrefix(journals().child(&self.id)),
        ];
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

fn unreadable(error: &dyn std::error::Error) -> FolderError {
    FolderError::Unreadable { file: "run.json", reason: chain(error) }
}

fn active() -> Key {
    "journal-active".parse().expect("a literal key")
}

fn ended() -> Key {
    "journal-ended".parse().expect("a literal key")
}

fn journals() -> Key {
    "journal".parse().expect("a literal key")
}
