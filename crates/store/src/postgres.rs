//! The store in a `PostgreSQL` database, for sites that run one anyway.
//!
//! Every commit locks the one row that holds the revision: writers queue, and revisions follow
//! commit order (a sequence would not). Watches wait for `NOTIFY` and look for themselves once a
//! second in case one was lost. Leases go by the server's clock.

mod connection;
mod tables;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::stream;
use tokio::sync::{Notify, OnceCell, watch};
use tokio::task::JoinHandle;

use crate::txn::Effects;
use crate::{
    Batch, Cursor, Health, Key, Lease, Page, PasswordFile, Prefix, Record, Revision, Store,
    StoreError, Txn, Watch, WatchProgress,
};
use connection::{Connection, Lent, Pool};
use tables::Commit;

/// Address and credentials of the database.
#[derive(Clone)]
pub struct Config {
    /// Prints itself without the password.
    pub server: tokio_postgres::Config,
    /// Schema of our tables; created when missing.
    pub schema: String,
    /// The certificate is always verified.
    pub tls: Option<Arc<rustls::ClientConfig>>,
    /// Instead of a password in `server`.
    pub password: Option<PasswordFile>,
    pub retention: Retention,
}

/// History limits for watches and listings that lag behind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Retention {
    /// Changed keys, over all commits.
    pub changes: u64,
    pub age: Duration,
}

impl Default for Retention {
    fn default() -> Self {
        Self { changes: 1_000_000, age: Duration::from_hours(24) }
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("hosts", &self.server.get_hosts())
            .field("database", &self.server.get_dbname())
            .field("user", &self.server.get_user())
            .field("schema", &self.schema)
            .field("tls", &self.tls.is_some())
            .finish_non_exhaustive()
    }
}

/// Interval of polls for lost notifications and expired leases.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// A handle on the database; clones share its connections.
#[derive(Debug, Clone)]
pub struct PostgresStore {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    pool: Arc<Pool>,
    head: Arc<watch::Sender<Revision>>,
    /// When `head` was last known to be the newest.
    progress: WatchProgress,
    /// Whether the last commit found no space.
    full: AtomicBool,
    /// Set by the first successful connection: the tables exist and the listener runs.
    ready: OnceCell<Listener>,
}

/// The task that keeps `head` current; ends with the store.
#[derive(Debug)]
struct Listener(JoinHandle<()>);

impl Drop for Listener {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl PostgresStore {
    /// Connects with the first call, so an unreachable server shows there, as
    /// [`StoreError::Unavailable`].
    pub fn new(config: Config) -> Self {
        let (head, _) = watch::channel(Revision::default());
        let pool = Arc::new(Pool::new(config));
        let inner = Inner {
            pool,
            head: Arc::new(head),
            progress: WatchProgress::default(),
            full: AtomicBool::new(false),
            ready: OnceCell::new(),
        };
        Self { inner: Arc::new(inner) }
    }

    async fn lend(&self) -> Result<Lent<'_>, StoreError> {
        let mut lent = self.inner.pool.take().await?;
        let prepare = async {
            tables::ensure(&mut lent.connection, &self.inner.pool.config().schema).await?;
            let pool = Arc::clone(&self.inner.pool);
            let head = Arc::clone(&self.inner.head);
            let progress = self.inner.progress.clone();
            Ok::<_, StoreError>(Listener(tokio::spawn(listen(pool, head, progress))))
        };
        self.inner.ready.get_or_try_init(|| prepare).await?;
        Ok(lent)
    }
}

/// Runs one piece of work on a lent connection, which goes back if the work ended in order.
macro_rules! on_connection {
    ($self:ident, |$connection:ident| $work:expr) => {{
        let mut lent = $self.lend().await?;
        let $connection = &mut lent.connection;
        let outcome = $work.await;
        if session_is_sound(&outcome) {
            lent.give_back();
        }
        outcome
    }};
}

#[async_trait]
impl Store for PostgresStore {
    async fn get(&self, key: &Key) -> Result<Option<Record>, StoreError> {
        on_connection!(self, |connection| tables::get(connection, key))
    }

    async fn list(
        &self,
        prefix: &Prefix,
        from: Option<Cursor>,
        limit: usize,
    ) -> Result<Page, StoreError> {
        on_connection!(self, |connection| tables::list(connection, prefix, from, limit.max(1)))
    }

    async fn commit(&self, txn: Txn) -> Result<Revision, StoreError> {
        let effects = Effects::of(txn.ops)?;
        let retention = &self.inner.pool.config().retention;
        let work = |connection| async move {
            let mut commit = Commit::begin(connection).await?;
            if let Some(key) = commit.failed_compare(&txn.compares).await? {
                commit.roll_back().await?;
                return Err(StoreError::Conflict { key });
            }
            commit.apply(effects).await?;
            commit.finish(retention).await
        };
        let outcome = on_connection!(self, |connection| work(connection));
        self.inner.full.store(matches!(outcome, Err(StoreError::Full { .. })), Ordering::Relaxed);
        if let Ok(revision) = outcome {
            announce(&self.inner.head, revision);
        }
        outcome
    }

    async fn watch(&self, prefix: &Prefix, after: Revision) -> Result<Watch, StoreError> {
        let head = on_connection!(self, |connection| tables::head(connection, after))?;
        announce(&self.inner.head, head);
        let follower = Follower {
            store: self.clone(),
            prefix: prefix.clone(),
            after,
            ready: Vec::new().into_iter(),
            head: self.inner.head.subscribe(),
        };
        let progress = self.inner.progress.clone();
        Ok(Watch::remote(stream::try_unfold(follower, Follower::next), progress))
    }

    async fn acquire(
        &self,
        name: &str,
        owner: &str,
        ttl: Duration,
    ) -> Result<Option<Lease>, StoreError> {
        let retention = &self.inner.pool.config().retention;
        let work = |connection| async move {
            let mut commit = Commit::begin(connection).await?;
            commit.end_leases().await?;
            let lease = commit.acquire(name, owner, ttl).await?;
            commit.finish(retention).await?;
            Ok(lease)
        };
        on_connection!(self, |connection| work(connection))
    }

    async fn renew(&self, lease: &Lease) -> Result<(), StoreError> {
        on_connection!(self, |connection| tables::renew(connection, lease))
    }

    async fn release(&self, lease: Lease) -> Result<(), StoreError> {
        let retention = &self.inner.pool.config().retention;
        let work = |connection| async move {
            let mut commit = Commit::begin(connection).await?;
            commit.release(&lease).await?;
            commit.finish(retention).await.map(drop)
        };
        on_connection!(self, |connection| work(connection))
    }

    async fn health(&self) -> Result<Health, StoreError> {
        let (revision, version, size) =
            on_connection!(self, |connection| tables::facts(connection))?;
        Ok(Health {
            backend: "postgres",
            revision,
            size_bytes: u64::try_from(size).ok(),
            full: self.inner.full.load(Ordering::Relaxed),
            detail: format!("PostgreSQL {version}"),
        })
    }
}

/// Answers leave the session as they found it; anything else may have left a transaction open.
fn session_is_sound<T>(outcome: &Result<T, StoreError>) -> bool {
    matches!(
        outcome,
        Ok(_)
            | Err(StoreError::Conflict { .. }
                | StoreError::Compacted { .. }
                | StoreError::LeaseLost { .. })
    )
}

fn announce(head: &watch::Sender<Revision>, revision: Revision) {
    head.send_if_modified(|known| {
        let news = revision > *known;
        *known = revision.max(*known);
        news
    });
}

/// Keeps `head` current for as long as the store lives, through any number of server restarts.
async fn listen(pool: Arc<Pool>, head: Arc<watch::Sender<Revision>>, progress: WatchProgress) {
    loop {
        if let Err(error) = listen_once(&pool, &head, &progress).await {
            tracing::debug!(%error, "listening for changes was interrupted");
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

async fn listen_once(
    pool: &Pool,
    head: &watch::Sender<Revision>,
    progress: &WatchProgress,
) -> Result<(), StoreError> {
    let told = Arc::new(Notify::new());
    let mut connection = Connection::open(pool.config(), Arc::clone(&told)).await?;
    connection.batch(&format!("listen hoist_{}", pool.config().schema)).await?;
    loop {
        announce(head, tables::current(&mut connection).await?);
        progress.mark();
        if tables::leases_ended(&mut connection).await? {
            let mut commit = Commit::begin(&mut connection).await?;
            commit.end_leases().await?;
            announce(head, commit.finish(&pool.config().retention).await?);
        }
        // Checked with or without a notification.
        let _ = tokio::time::timeout(LOOK_EVERY, told.notified()).await;
    }
}

/// One watch: returns the batches it has read, reads on, waits for the next commit.
struct Follower {
    store: PostgresStore,
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
                return Ok(None);
            }
        }
    }

    async fn fill(&mut self) -> Result<(), StoreError> {
        let store = &self.store;
        let prefix = &self.prefix;
        let after = self.after;
        let (batches, upto) =
            on_connection!(store, |connection| tables::changes(connection, prefix, after))?;
        self.ready = batches.into_iter();
        self.after = upto;
        Ok(())
    }
}
