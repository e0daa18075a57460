//! How the store is doing: when it was last heard of, and what went wrong.

use std::time::{Duration, Instant};

use hoist_store::StoreError;
use jiff::Timestamp;
use parking_lot::Mutex;

/// The known state of the store.
#[derive(Debug, Clone)]
pub struct Contact {
    pub loaded_from: LoadedFrom,
    pub connected: bool,
    /// Why not, in words.
    pub error: Option<String>,
    /// The kind of that error, for anyone: names no host and no path.
    pub reason: Option<&'static str>,
    /// The store has no space left for writes.
    pub full: bool,
    /// How long ago the roster was last known to hold everything that the store holds.
    pub silent: Duration,
}

/// Where the roster in memory came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoadedFrom {
    Store,
    /// The last-good copy, taken then.
    Snapshot {
        taken: Timestamp,
    },
    /// The store was never read, and there is no last-good copy: the roster is empty.
    Nothing,
}

#[derive(Debug)]
pub(super) struct ContactTracker(Mutex<State>);

#[derive(Debug)]
struct State {
    loaded_from: LoadedFrom,
    heard: Instant,
    failure: Option<StoreFailure>,
    full: bool,
}

/// Why the store cannot be used, for its operators and for others.
#[derive(Debug, Clone)]
struct StoreFailure {
    error: String,
    reason: &'static str,
}

impl ContactTracker {
    pub(super) fn new(loaded_from: LoadedFrom) -> Self {
        let not_reached = || StoreFailure {
            error: "not reached since the start".to_owned(),
            reason: "the store does not answer",
        };
        let failure = (loaded_from != LoadedFrom::Store).then(not_reached);
        let age = match loaded_from {
            LoadedFrom::Store | LoadedFrom::Nothing => Duration::ZERO,
            LoadedFrom::Snapshot { taken } => {
                Duration::try_from(Timestamp::now().duration_since(taken)).unwrap_or_default()
            }
        };
        let now = Instant::now();
        let heard = now.checked_sub(age).unwrap_or(now);
        Self(Mutex::new(State { loaded_from, heard, failure, full: false }))
    }

    pub(super) fn get(&self) -> Contact {
        let state = self.0.lock();
        Contact {
            loaded_from: state.loaded_from,
            connected: state.failure.is_none(),
            error: state.failure.as_ref().map(|failure| failure.error.clone()),
            reason: state.failure.as_ref().map(|failure| failure.reason),
            full: state.full,
            silent: state.heard.elapsed(),
        }
    }

    /// The roster holds everything that the store held then.
    pub(super) fn heard(&self, at: Instant) {
        let mut state = self.0.lock();
        state.heard = state.heard.max(at);
        if state.failure.take().is_some() {
            tracing::info!("the store is reachable");
        }
    }

    pub(super) fn set_full(&self, full: bool) {
        let mut state = self.0.lock();
        if full && !state.full {
            tracing::warn!("the store has no space left; writes are refused until there is some");
        }
        state.full = full;
    }

    pub(super) fn loaded(&self) {
        self.0.lock().loaded_from = LoadedFrom::Store;
        self.heard(Instant::now());
    }

    /// Only failures of the store itself count, not lost races.
    pub(super) fn failed(&self, error: &StoreError) {
        match error {
            StoreError::Conflict { .. } => {}
            StoreError::Full { .. } => self.set_full(true),
            error => self.lost(error.to_string(), error.public_reason()),
        }
    }

    pub(super) fn lost(&self, error: String, reason: &'static str) {
        let mut state = self.0.lock();
        if state.failure.is_none() {
            tracing::warn!(%error, "the store cannot be used; reads go on from memory");
        }
        state.failure = Some(StoreFailure { error, reason });
    }
}
