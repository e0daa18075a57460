//! Where steps wait that could start, or will be able to.
//!
//! Nothing of this is in the journal: it follows from the states.

use std::collections::BTreeSet;

use crate::plan::{Draft, Step};

#[derive(Debug, Clone)]
pub(super) struct Queues {
    /// Ranks of what could start.
    pub(super) ready: BTreeSet<u32>,
    /// For each pool, ranks of what waits for a place in it.
    pub(super) parked: Vec<BTreeSet<u32>>,
    /// For each window, ranks of what waits for it to open.
    pub(super) shut: Vec<BTreeSet<u32>>,
    /// Ranks of what a person holds back, or whose subject is paused.
    pub(super) held: BTreeSet<u32>,
    /// When, and the rank of what is tried again then.
    pub(super) delayed: BTreeSet<(u64, u32)>,
}

impl Queues {
    pub(super) fn new(draft: &Draft) -> Self {
        Self {
            ready: BTreeSet::new(),
            parked: vec![BTreeSet::new(); draft.pools.len()],
            shut: vec![BTreeSet::new(); draft.windows.len()],
            held: BTreeSet::new(),
            delayed: BTreeSet::new(),
        }
    }

    /// Takes a step out of everything that it waits in.
    pub(super) fn forget(&mut self, rank: u32, step: &Step, due: u64) {
        let _ = self.ready.remove(&rank)
            || self.held.remove(&rank)
            || self.delayed.remove(&(due, rank))
            || step.window.is_some_and(|window| self.shut[window as usize].remove(&rank))
            || step.pools.iter().any(|pool| self.parked[*pool as usize].remove(&rank));
    }

    /// What a person held back is looked at again.
    pub(super) fn let_go(&mut self) {
        self.ready.append(&mut self.held);
    }

    /// One that waits for a place in the pool is looked at again.
    pub(super) fn call(&mut self, pool: usize) {
        if let Some(rank) = self.parked[pool].pop_first() {
            self.ready.insert(rank);
        }
    }

    pub(super) fn clear(&mut self) {
        self.ready.clear();
        self.held.clear();
        self.delayed.clear();
        self.parked.iter_mut().for_each(BTreeSet::clear);
        self.shut.iter_mut().for_each(BTreeSet::clear);
    }
}
