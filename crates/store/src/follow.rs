//! A view in memory that follows the records under a prefix.
//!
//! [`follow`] loads the view, watches the store and starts over after every failure. The meaning of
//! the records belongs to the view.

use std::convert::Infallible;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use futures_util::StreamExt;

use crate::{Batch, Health, Prefix, Revision, Store, StoreError, WatchProgress};

/// Pause before the first attempt after a failure; it doubles with every further failure.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// A view in memory of the records under a prefix.
#[async_trait]
pub trait Follower: Send + Sync {
    type Error: From<StoreError> + Send;

    /// Interval between probes of a quiet store; `None` to rely on the watch.
    const PROBE_EVERY: Option<Duration> = None;

    /// The revision to watch from. Must read the records first, unless the view holds them already.
    async fn load(&self) -> Result<Revision, Self::Error>;

    async fn apply(&self, batch: Batch) -> Result<(), Self::Error>;

    /// The store answered a probe, and everything that it held at `at` is in the view; `None` while
    /// the view catches up.
    fn heard(&self, _at: Option<Instant>, _health: &Health) {}

    /// The load or the watch failed. Both start over after a pause.
    async fn failed(&self, error: Self::Error);
}

/// Keeps the view in step with the store. Never returns; drop the future to stop.
pub async fn follow<F: Follower>(store: &dyn Store, prefix: &Prefix, view: &F) -> Infallible {
    let mut pause = FIRST_PAUSE;
    loop {
        let error = watch(store, prefix, view, &mut pause).await;
        view.failed(error).await;
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Loads the view and applies changes until something fails.
async fn watch<F: Follower>(
    store: &dyn Store,
    prefix: &Prefix,
    view: &F,
    pause: &mut Duration,
) -> F::Error {
    let loaded = match view.load().await {
        Ok(revision) => revision,
        Err(error) => return error,
    };
    let mut batches = match store.watch(prefix, loaded).await {
        Ok(batches) => batches,
        Err(error) => return error.into(),
    };
    let progress = batches.progress();
    *pause = FIRST_PAUSE;
    let mut probe = F::PROBE_EVERY.map(tokio::time::interval);
    loop {
        tokio::select! {
            batch = batches.next() => {
                let applied = match batch {
                    Some(Ok(batch)) => view.apply(batch).await,
                    Some(Err(error)) => Err(error.into()),
                    None => Err(ended().into()),
                };
                if let Err(error) = applied {
                    return error;
                }
            }
            () = tick(&mut probe) => match store.health().await {
                // An answer of the store says nothing about a watch at another member.
                Ok(health) => {
                    let now = Some(Instant::now());
                    view.heard(progress.as_ref().map_or(now, WatchProgress::last), &health);
                }
                Err(error) => return error.into(),
            }
        }
    }
}

async fn tick(probe: &mut Option<tokio::time::Interval>) {
    match probe {
        Some(interval) => {
            interval.tick().await;
        }
        None => std::future::pending().await,
    }
}

/// The error of a watch that ended without one.
pub fn ended() -> StoreError {
    StoreError::Unavailable { detail: "the watch ended".to_owned() }
}
