//! The one writer of the embedded file: group commit and leases.
//!
//! All requests that wait when the writer becomes free are applied in one redb transaction and made
//! durable by one `fsync`. Each request still has its own revision and its own compares, which see
//! the requests before it. No request is answered before its data is on the disk.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender, TrySendError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use redb::{Database, Durability};
use tokio::sync::{oneshot, watch};

use super::Retention;
use super::file::File;
use super::tables::{TableError, Tables};
use crate::txn::Effects;
use crate::{Compare, Key, LEASES, Lease, Revision, StoreError, lease_key};

/// One job with the channel for its answer.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) work: Work,
    pub(super) reply: oneshot::Sender<Result<Reply, StoreError>>,
}

#[derive(Debug)]
pub(super) enum Work {
    Commit { compares: Vec<Compare>, effects: Effects },
    Acquire { name: String, owner: String, ttl: Duration },
    Renew(Lease),
    Release(Lease),
}

/// The answer to a [`Work`].
#[derive(Debug)]
pub(super) enum Reply {
    Revision(Revision),
    Lease(Option<Lease>),
    Done,
}

/// Requests that may wait for the writer. More means the disk cannot keep up, and the caller should
/// hear of it rather than queue for minutes.
const QUEUE: usize = 4096;

/// Requests made durable together. Bounds how long the first of them waits for the last.
const GROUP: usize = 512;

/// Pause before an idle writer tries a failing disk again.
const AFTER_FAILURE: Duration = Duration::from_secs(1);

/// Interval between checks for expired leases when the writer is idle.
const NO_LEASE_WAIT: Duration = Duration::from_hours(1);

/// The behaviour if the file cannot be opened at the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OpenFailure {
    Report,
    /// Later calls open it, and report what keeps them from that.
    Later,
}

impl OpenFailure {
    fn waits(self, error: &StoreError) -> bool {
        self == Self::Later && !matches!(error, StoreError::InUse { .. })
    }
}

/// Starts the thread, and joins it when dropped, so that the file is free again afterwards.
#[derive(Debug)]
pub(super) struct Writer {
    requests: Mutex<Option<SyncSender<Request>>>,
    head: watch::Receiver<Revision>,
    thread: Option<JoinHandle<()>>,
}

impl Writer {
    pub(super) fn start(
        file: Arc<File>,
        retention: Retention,
        on_failure: OpenFailure,
    ) -> Result<Self, StoreError> {
        let (requests, waiting) = mpsc::sync_channel(QUEUE);
        let (announce, head) = watch::channel(Revision::default());
        let mut state = WriterState { file, retention, leases: HashMap::new(), head: announce };
        // Creates the tables, and ends the leases of the process that had the file before us: it
        // is gone, or we would not have got the lock.
        match state.serve(Vec::new()) {
            Ok(()) => {}
            // The next request tries again.
            Err(error) if on_failure.waits(&error) => {
                tracing::warn!(%error, "the store cannot be used yet");
            }
            Err(error) => return Err(error),
        }
        let thread = std::thread::Builder::new()
            .name("store-writer".to_owned())
            .spawn(move || state.run(&waiting))
            .map_err(|error| StoreError::Unavailable { detail: error.to_string() })?;
        Ok(Self { requests: Mutex::new(Some(requests)), head, thread: Some(thread) })
    }

    /// Changes after every commit.
    pub(super) fn head(&self) -> watch::Receiver<Revision> {
        self.head.clone()
    }

    pub(super) fn send(&self, request: Request) -> Result<(), StoreError> {
        let requests = self.requests.lock();
        let Some(sender) = requests.as_ref() else { return Err(gone()) };
        sender.try_send(request).map_err(|error| match error {
            TrySendError::Full(_) => StoreError::Unavailable {
                detail: format!("{QUEUE} writes are waiting for the disk already"),
            },
            TrySendError::Disconnected(_) => gone(),
        })
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.requests.lock().take();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was already reported as damage to the waiting callers.
            let _ = thread.join();
        }
    }
}

/// The error of a request when the writer has ended without an answer.
pub(super) fn gone() -> StoreError {
    StoreError::Unavailable { detail: "the store is closed".to_owned() }
}

/// A lease as this process knows it. Only the record is on disk: the next process to open the file
/// knows that this one is dead.
#[derive(Debug, Clone)]
struct HeldLease {
    owner: String,
    fence: u64,
    ttl: Duration,
    until: Instant,
}

type Leases = HashMap<String, HeldLease>;
type Answers = Vec<Result<Reply, StoreError>>;

/// The state of the writer thread.
struct WriterState {
    file: Arc<File>,
    retention: Retention,
    leases: Leases,
    head: watch::Sender<Revision>,
}

/// The stage at which a group failed.
enum Stage {
    /// Nothing reached the file.
    Before(TableError),
    /// The commit itself failed: only the file knows.
    Commit(TableError),
}

impl From<TableError> for Stage {
    fn from(error: TableError) -> Self {
        Self::Before(error)
    }
}

impl WriterState {
    fn run(mut self, waiting: &Receiver<Request>) {
        let mut pause = Duration::ZERO;
        loop {
            let first = match waiting.recv_timeout(self.until_next_expiry().max(pause)) {
                Ok(request) => Some(request),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => return,
            };
            let group: Vec<_> = first.into_iter().chain(waiting.try_iter()).take(GROUP).collect();
            // A group of nothing only ends leases; if that fails (a full disk), try again, but not
            // at once.
            pause = if self.serve(group).is_ok() { Duration::ZERO } else { AFTER_FAILURE };
        }
    }

    fn until_next_expiry(&self) -> Duration {
        let next = self.leases.values().map(|held| held.until).min();
        next.map_or(NO_LEASE_WAIT, |until| until.saturating_duration_since(Instant::now()))
    }

    fn serve(&mut self, group: Vec<Request>) -> Result<(), StoreError> {
        let (works, replies): (Vec<_>, Vec<_>) =
            group.into_iter().map(|request| (request.work, request.reply)).unzip();
        let mut leases = self.leases.clone();
        let worked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            self.work(works, &mut leases)
        }));
        let outcome = worked.unwrap_or_else(|_| {
            self.file.close();
            Err(StoreError::Damaged { detail: format!("{}: unreadable page", self.file.name()) })
        });
        // A caller that stopped waiting is no error.
        match outcome {
            Ok((head, told)) => {
                self.file.set_full(false);
                self.leases = leases;
                self.head.send_replace(head);
                for (reply, told) in replies.into_iter().zip(told) {
                    drop(reply.send(told));
                }
                Ok(())
            }
            Err(error) => {
                self.file.set_full(matches!(error, StoreError::Full { .. }));
                for reply in replies {
                    drop(reply.send(Err(same(&error))));
                }
                Err(error)
            }
        }
    }

    /// Applies the group and makes it durable; returns the reply of each request.
    fn work(
        &self,
        works: Vec<Work>,
        leases: &mut Leases,
    ) -> Result<(Revision, Answers), StoreError> {
        let mut reached = None;
        let done =
            self.file.with(|database| Ok(self.write(database, works, leases, &mut reached)))?;
        done.map_err(|stage| self.recover(stage, reached))
    }

    fn write(
        &self,
        database: &Database,
        works: Vec<Work>,
        leases: &mut Leases,
        reached: &mut Option<Revision>,
    ) -> Result<(Revision, Answers), Stage> {
        let commits = works.len() as u64;
        let mut txn = database.begin_write().map_err(TableError::from)?;
        txn.set_durability(Durability::Immediate).map_err(TableError::from)?;
        let mut tables = Tables::open(&txn)?;
        let before = tables.revision();
        let mut group = GroupCommit { tables: &mut tables, leases, now_ms: now_ms() };
        group.end_leases()?;
        let told =
            works.into_iter().map(|work| group.take(work)).collect::<Result<_, TableError>>()?;
        let head = tables.revision();
        *reached = Some(head);
        // Nothing to make durable, except the tables of a new file.
        if head == before && head > Revision(0) {
            return Ok((head, told));
        }
        tables.trim(&self.retention, commits, now_ms())?;
        tables.close()?;
        txn.commit().map_err(|error| Stage::Commit(error.into()))?;
        Ok((head, told))
    }

    /// Closes the failed database. A commit that failed half way may have landed: the reopened file
    /// tells, and if it cannot, the answer has to be "unknown".
    fn recover(&self, stage: Stage, reached: Option<Revision>) -> StoreError {
        let (error, may_have_landed) = match stage {
            Stage::Before(error) => (error, false),
            Stage::Commit(error) => (error, true),
        };
        self.file.close();
        let error = self.file.explain(error);
        if may_have_landed {
            let found = self.file.read(super::tables::revision).ok();
            if found.is_none() || found >= reached {
                return StoreError::Unavailable { detail: format!("outcome unknown: {error}") };
            }
        }
        error
    }
}

/// One pass over a group inside one transaction.
struct GroupCommit<'a, 'txn> {
    tables: &'a mut Tables<'txn>,
    leases: &'a mut Leases,
    now_ms: u64,
}

impl GroupCommit<'_, '_> {
    /// Removes the records of leases without a holder: expired, or left by a process that died. One
    /// commit for all of them.
    fn end_leases(&mut self) -> Result<(), TableError> {
        let now = Instant::now();
        self.leases.retain(|_, held| held.until > now);
        let recorded = self.tables.keys_below(&Key(LEASES.to_owned()))?;
        let dead = recorded.into_iter().filter(|key| {
            let name = key.as_str().rsplit('/').next().unwrap_or_default();
            !self.leases.contains_key(name)
        });
        let mut effects = Effects::default();
        effects.delete_found(dead);
        self.tables.apply(effects, self.now_ms)?;
        Ok(())
    }

    fn take(&mut self, work: Work) -> Result<Result<Reply, StoreError>, TableError> {
        match work {
            Work::Commit { compares, effects } => self.commit(&compares, effects),
            Work::Acquire { name, owner, ttl } => self.acquire(name, owner, ttl).map(Ok),
            Work::Renew(lease) => Ok(self.renew(&lease)),
            Work::Release(lease) => self.release(&lease).map(Ok),
        }
    }

    fn commit(
        &mut self,
        compares: &[Compare],
        effects: Effects,
    ) -> Result<Result<Reply, StoreError>, TableError> {
        match self.tables.failed_compare(compares)? {
            Some(key) => Ok(Err(StoreError::Conflict { key })),
            None => Ok(Ok(Reply::Revision(self.tables.apply(effects, self.now_ms)?))),
        }
    }

    fn acquire(&mut self, name: String, owner: String, ttl: Duration) -> Result<Reply, TableError> {
        let until = Instant::now() + ttl;
        if let Some(held) = self.leases.get_mut(&name) {
            if held.owner != owner {
                return Ok(Reply::Lease(None));
            }
            (held.until, held.ttl) = (until, ttl);
            return Ok(Reply::Lease(Some(Lease { name, owner, fence: held.fence, ttl })));
        }
        let mut effects = Effects::default();
        effects.keys.insert(lease_key(&name), Some(owner.clone().into_bytes()));
        let fence = self.tables.apply(effects, self.now_ms)?.0;
        self.leases.insert(name.clone(), HeldLease { owner: owner.clone(), fence, ttl, until });
        Ok(Reply::Lease(Some(Lease { name, owner, fence, ttl })))
    }

    fn renew(&mut self, lease: &Lease) -> Result<Reply, StoreError> {
        match self.leases.get_mut(&lease.name) {
            Some(held) if held.fence == lease.fence => {
                held.until = Instant::now() + held.ttl;
                Ok(Reply::Done)
            }
            _ => Err(StoreError::LeaseLost { name: lease.name.clone() }),
        }
    }

    /// Releasing a lease that is no longer held is no error: the result is the same.
    fn release(&mut self, lease: &Lease) -> Result<Reply, TableError> {
        if self.leases.get(&lease.name).is_some_and(|held| held.fence == lease.fence) {
            self.leases.remove(&lease.name);
            let mut effects = Effects::default();
            effects.keys.insert(lease_key(&lease.name), None);
            self.tables.apply(effects, self.now_ms)?;
        }
        Ok(Reply::Done)
    }
}

/// The error for every member of a group that failed together.
fn same(error: &StoreError) -> StoreError {
    match error {
        StoreError::Full { detail } => StoreError::Full { detail: detail.clone() },
        StoreError::Damaged { detail } => StoreError::Damaged { detail: detail.clone() },
        StoreError::InUse { detail } => StoreError::InUse { detail: detail.clone() },
        StoreError::Refused { detail } => StoreError::Refused { detail: detail.clone() },
        other => StoreError::Unavailable { detail: other.to_string() },
    }
}

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
