//! How fast it goes.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::Watch;

/// Between two words about it.
const PAUSE: Duration = Duration::from_millis(500);

/// How far an image has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Bytes of the image, unpacked.
    pub done: u64,
    pub total: Option<u64>,
    /// Bytes in a second, since it was last said.
    pub rate: u64,
}

pub(super) struct Meter<'a> {
    watch: &'a dyn Watch,
    total: Option<u64>,
    state: Mutex<State>,
}

struct State {
    done: u64,
    said: u64,
    at: Instant,
    rate: u64,
}

impl<'a> Meter<'a> {
    pub(super) fn new(watch: &'a dyn Watch, total: Option<u64>, done: u64) -> Self {
        let state = State { done, said: done, at: Instant::now(), rate: 0 };
        Self { watch, total, state: Mutex::new(state) }
    }

    pub(super) fn add(&self, bytes: u64) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.done += bytes;
        if state.at.elapsed() >= PAUSE {
            self.say(&mut state);
        }
    }

    pub(super) fn end(&self) -> u64 {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        self.say(&mut state);
        state.done
    }

    fn say(&self, state: &mut State) {
        // The last word may follow another at once, and nothing came meanwhile.
        if state.done > state.said {
            let millis = state.at.elapsed().as_millis().max(1);
            let rate = u128::from(state.done - state.said) * 1000 / millis;
            state.rate = u64::try_from(rate).unwrap_or(u64::MAX);
        }
        let rate = state.rate;
        self.watch.progress(Progress { done: state.done, total: self.total, rate });
        (state.said, state.at) = (state.done, Instant::now());
    }
}
