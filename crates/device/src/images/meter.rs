//! Progress and throughput.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::Watch;

/// Interval between two progress reports.
const PAUSE: Duration = Duration::from_millis(500);

/// The progress of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Unpacked bytes of the image.
    pub done: u64,
    pub total: Option<u64>,
    /// Bytes per second since the previous report.
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
        let mut state = self.state.lock();
        state.done += bytes;
        if state.at.elapsed() >= PAUSE {
            self.say(&mut state);
        }
    }

    pub(super) fn end(&self) -> u64 {
        let mut state = self.state.lock();
        self.say(&mut state);
        state.done
    }

    fn say(&self, state: &mut State) {
        // The final report may follow another one at once, without new bytes. It repeats the rate.
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
