//! The embedded store: one redb file, one process, any number of tasks.
//!
//! Writes go through one thread that gathers whatever is waiting and makes it durable with one
//! `fsync` ([`writer`]); reads use redb's snapshots and never wait for writes. History is kept as
//! an undo log ([`tables`]): that gives listings one snapshot over many pages, and watches every
//! commit as it was, without pinning anything in the file while a client thinks.
//!
//! Several controllers cannot share a file: they use etcd or `PostgreSQL`.

mod file;
mod tables;
mod writer;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::stream;
use tokio::sync::{oneshot, watch};

use crate::{
    Batch, Cursor, Health, Key, Lease, Page, Prefix, Record, Revision, Store, StoreError, Txn,
    Watch,
};
use file::File;
pub use file::OpenBackend;
use writer::{OpenFailure, Reply, Request, Work, Writer};

/// Name of the database inside the data directory.
pub const FILE_NAME: &str = "hoist.redb";

/// History limits for watches and listings that lag behind. Whichever limit is reached
/// first drops the oldest commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Retention {
    /// Changed keys, over all commits.
    pub changes: u64,
    pub age: Duration,
    /// Replaced values kept for the sake of history.
    pub bytes: u64,
}

impl Default for Retention {
    fn default() -> Self {
        Self { changes: 1_000_000, age: Duration::from_hours(24), bytes: 1024 * 1024 * 1024 }
    }
}

/// A handle on the open file; clones share it. The file is released when the last handle and the
/// last watch are gone.
#[derive(Debug, Clone)]
pub struct EmbeddedStore {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    file: Arc<File>,
    writer: Writer,
}

/// Commits read from the log at once. Bounds the memory of a watch that catches up.
const WATCH_COMMITS: usize = 64;

impl EmbeddedStore {
    /// Opens or creates the store in `data_dir`, which must exist. Blocks: a file that was not
    /// closed cleanly is checked first.
    pub fn open(data_dir: &Path, retention: Retention) -> Result<Self, StoreError> {
        Self::start(File::at(data_dir.join(FILE_NAME)), retention, OpenFailure::Report)
    }

    /// Like [`Self::open`], for a controller that can go on from its last-good copy: a file that
    /// cannot be opened now (a full disk after a crash) is opened by a later call. Only a file that
    /// another process holds is an error.
    pub fn open_or_later(data_dir: &Path, retention: Retention) -> Result<Self, StoreError> {
        Self::start(File::at(data_dir.join(FILE_NAME)), retention, OpenFailure::Later)
    }

    /// A store on a storage of the caller's making, for tests that cut the power. `open` is called
    /// again whenever the storage has failed.
    pub fn open_on(open: OpenBackend, retention: Retention) -> Result<Self, StoreError> {
        Self::start(File::on(open), retention, OpenFailure::Report)
    }

    fn start(
        file: File,
        retention: Retention,
        on_failure: OpenFailure,
    ) -> Result<Self, StoreError> {
        let file = Arc::new(file);
        let writer = Writer::start(Arc::clone(&file), retention, on_failure)?;
        Ok(Self { inner: Arc::new(Inner { file, writer }) })
    }

    async fn read<T: Send + 'static>(
        &self,
        job: impl FnOnce(&redb::ReadTransaction) -> Result<T, tables::TableError> + Send + 'static,
    ) -> Result<T, StoreError> {
        read(Arc::clone(&self.inner.file), job).await
    }

    async fn ask(&self, work: Work) -> Result<Reply, StoreError> {
        let (reply, answer) = oneshot::channel();
        self.inner.writer.send(Request { work, reply })?;
        answer.await.unwrap_or_else(|_| Err(writer::gone()))
    }
}

async fn read<T: Send + 'static>(
    file: Arc<File>,
    job: impl FnOnce(&redb::ReadTransaction) -> Result<T, tables::TableError> + Send + 'static,
) -> Result<T, StoreError> {
    let path = file.name().to_owned();
    tokio::task::spawn_blocking(move || file.read(job)).await.unwrap_or_else(|panic| {
        // redb asserts on pages it cannot make sense of.
        Err(StoreError::Damaged { detail: format!("{path}: {panic}") })
    })
}

#[async_trait]
impl Store for EmbeddedStore {
    async fn get(&self, key: &Key) -> Result<Option<Record>, StoreError> {
        let key = key.clone();
        self.read(move |txn| tables::get(txn, key)).await
    }

    async fn list(
        &self,
        prefix: &Prefix,
        from: Option<Cursor>,
        limit: usize,
    ) -> Result<Page, StoreError> {
        let prefix = prefix.clone();
        self.read(move |txn| tables::list(txn, &prefix, from.as_ref(), limit.max(1))).await
    }

    async fn commit(&self, txn: Txn) -> Result<Revision, StoreError> {
        let effects = crate::txn::Effects::of(txn.ops)?;
        match self.ask(Work::Commit { compares: txn.compares, effects }).await? {
            Reply::Revision(revision) => Ok(revision),
            Reply::Lease(_) | Reply::Done => unreachable!("a commit is told its revision"),
        }
    }

    async fn watch(&self, prefix: &Prefix, after: Revision) -> Result<Watch, StoreError> {
        let follower = Follower {
            file: Arc::clone(&self.inner.file),
            prefix: prefix.clone(),
            after,
            ready: Vec::new().into_iter(),
            head: self.inner.writer.head(),
        };
        // Returns `Compacted` now rather than with the first item.
        self.read(move |txn| tables::check_kept(txn, after)).await?;
        Ok(Watch::immediate(stream::try_unfold(follower, Follower::next)))
    }

    async fn acquire(
        &self,
        name: &str,
        owner: &str,
        ttl: Duration,
    ) -> Result<Option<Lease>, StoreError> {
        let name = name.to_owned();
        let owner = owner.to_owned();
        match self.ask(Work::Acquire { name, owner, ttl }).await? {
            Reply::Lease(lease) => Ok(lease),
            Reply::Revision(_) | Reply::Done => unreachable!("an acquire is told its lease"),
        }
    }

    async fn renew(&self, lease: &Lease) -> Result<(), StoreError> {
        self.ask(Work::Renew(lease.clone())).await.map(drop)
    }

    async fn release(&self, lease: Lease) -> Result<(), StoreError> {
        self.ask(Work::Release(lease)).await.map(drop)
    }

    async fn health(&self) -> Result<Health, StoreError> {
        let revision = self.read(tables::revision).await?;
        Ok(Health {
            backend: "embedded",
            revision,
            size_bytes: self.inner.file.size(),
            full: self.inner.file.is_full(),
            detail: self.inner.file.name().to_owned(),
        })
    }
}

/// One watch: returns the batches it has read, reads on, waits for the next commit.
struct Follower {
    file: Arc<File>,
    prefix: Prefix,
    after: Revision,
    ready: std::vec::IntoIter<Batch>,
    head: watch::Receiver<Revision>,
}

impl Follower {
    async fn next(mut self) -> Result<Option<(Batch, Self)>, StoreError> {
        loop {
            if let Some(batch) = self.ready.next() {
                return Ok(Some((batch, self)));
            }
            let head = *self.head.borrow_and_update();
            if head > self.after {
                self.fill().await?;
            } else if self.head.changed().await.is_err() {
                // The store was closed: there will be no more commits.
                return Ok(None);
            }
        }
    }

    async fn fill(&mut self) -> Result<(), StoreError> {
        let prefix = self.prefix.clone();
        let after = self.after;
        let file = Arc::clone(&self.file);
        let (batches, upto) =
            read(file, move |txn| tables::changes(txn, &prefix, after, WATCH_COMMITS)).await?;
        self.ready = batches.into_iter();
        self.after = upto;
        Ok(())
    }
}
