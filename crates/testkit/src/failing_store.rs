//! A store that fails on request, around any other.

use std::time::Duration;

use async_trait::async_trait;
use hoist_store::{
    Cursor, Health, Key, Lease, Page, Prefix, Record, Revision, Store, StoreError, Txn, Watch,
};
use parking_lot::Mutex;

/// The behaviour of the store for the next calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mood {
    #[default]
    Working,
    /// Every call fails at once.
    Unavailable,
    /// Every call waits until the mood changes, then follows the new mood.
    Hanging,
    /// Reads work, commits find no space.
    Full,
}

/// Delegates to `inner` until a test sets another mood.
#[derive(Debug)]
pub struct FailingStore<S> {
    inner: S,
    mood: tokio::sync::watch::Sender<Mood>,
    lose_next_answer: Mutex<bool>,
}

impl<S: Store> FailingStore<S> {
    pub fn new(inner: S) -> Self {
        let (mood, _) = tokio::sync::watch::channel(Mood::Working);
        Self { inner, mood, lose_next_answer: Mutex::new(false) }
    }

    pub fn set(&self, mood: Mood) {
        self.mood.send_replace(mood);
    }

    /// The next commit lands, but its caller gets an error: the store is unreachable.
    pub fn lose_next_answer(&self) {
        *self.lose_next_answer.lock() = true;
    }

    async fn admit(&self, writes: bool) -> Result<(), StoreError> {
        let mut mood = self.mood.subscribe();
        let now = mood.wait_for(|mood| *mood != Mood::Hanging).await;
        match *now.map_err(|_| unavailable())? {
            Mood::Unavailable => Err(unavailable()),
            Mood::Full if writes => {
                Err(StoreError::Full { detail: "as the test asked".to_owned() })
            }
            _ => Ok(()),
        }
    }
}

fn unavailable() -> StoreError {
    StoreError::Unavailable { detail: "as the test asked".to_owned() }
}

#[async_trait]
impl<S: Store> Store for FailingStore<S> {
    async fn get(&self, key: &Key) -> Result<Option<Record>, StoreError> {
        self.admit(false).await?;
        self.inner.get(key).await
    }

    async fn list(
        &self,
        prefix: &Prefix,
        from: Option<Cursor>,
        limit: usize,
    ) -> Result<Page, StoreError> {
        self.admit(false).await?;
        self.inner.list(prefix, from, limit).await
    }

    async fn commit(&self, txn: Txn) -> Result<Revision, StoreError> {
        self.admit(true).await?;
        let outcome = self.inner.commit(txn).await;
        let mut lose = self.lose_next_answer.lock();
        if std::mem::take(&mut *lose) { Err(unavailable()) } else { outcome }
    }

    async fn watch(&self, prefix: &Prefix, after: Revision) -> Result<Watch, StoreError> {
        self.admit(false).await?;
        self.inner.watch(prefix, after).await
    }

    async fn acquire(
        &self,
        name: &str,
        owner: &str,
        ttl: Duration,
    ) -> Result<Option<Lease>, StoreError> {
        self.admit(true).await?;
        self.inner.acquire(name, owner, ttl).await
    }

    async fn renew(&self, lease: &Lease) -> Result<(), StoreError> {
        self.admit(false).await?;
        self.inner.renew(lease).await
    }

    async fn release(&self, lease: Lease) -> Result<(), StoreError> {
        self.admit(true).await?;
        self.inner.release(lease).await
    }

    async fn health(&self) -> Result<Health, StoreError> {
        self.admit(false).await?;
        self.inner.health().await
    }
}
