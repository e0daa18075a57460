//! How the store is doing: when it was last heard of, and what went wrong.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use hoist_store::StoreError;
use jiff::Timestamp;

/// What is known about the store right now.
#[derive(Debug, Clone)]
pub struct Contact {
    pub loaded_from: LoadedFrom,
    pub connected: bool,
    /// Why not, in words.
    pub error: Option<String>,
    /// How long ago the store was last heard of.
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
}

#[derive(Debug)]
pub(super) struct Keeper(Mutex<State>);

#[derive(Debug)]
struct State {
    loaded_from: LoadedFrom,
    heard: Instant,
    error: Option<String>,
}

impl Keeper {
    pub(super) fn new(loaded_from: LoadedFrom) -> Self {
        let error = match loaded_from {
            LoadedFrom::Store => None,
            LoadedFrom::Snapshot { .. } => Some("not reached since the start".to_owned()),
        };
        let age = match loaded_from {
            LoadedFrom::Store => Duration::ZERO,
            LoadedFrom::Snapshot { taken } => {
                Duration::try_from(Timestamp::now().duration_since(taken)).unwrap_or_default()
            }
        };
        let now = Instant::now();
        let heard = now.checked_sub(age).unwrap_or(now);
        Self(Mutex::new(State { loaded_from, heard, error }))
    }

    pub(super) fn get(&self) -> Contact {
        let state = self.lock();
        Contact {
            loaded_from: state.loaded_from,
            connected: state.error.is_none(),
            error: state.error.clone(),
            silent: state.heard.elapsed(),
        }
    }

    pub(super) fn heard(&self) {
        let mut state = self.lock();
        state.heard = Instant::now();
        if state.error.take().is_some() {
            tracing::info!("the store is reachable");
        }
    }

    pub(super) fn loaded(&self) {
        self.lock().loaded_from = LoadedFrom::Store;
        self.heard();
    }

    /// Only trouble with the store itself counts: a lost race is no trouble.
    pub(super) fn failed(&self, error: &StoreError) {
        if matches!(error, StoreError::Conflict { .. } | StoreError::Full { .. }) {
            return;
        }
        self.lost(error.to_string());
    }

    pub(super) fn lost(&self, error: String) {
        let mut state = self.lock();
        if state.error.is_none() {
            tracing::warn!(%error, "the store is not reachable; reads go on from memory");
        }
        state.error = Some(error);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}
