//! The queues of steps that could start now or later. They are derived from the states and are not
//! in the journal.

use std::collections::BTreeSet;

use crate::plan::{Draft, Step};

#[derive(Debug, Clone)]
pub(super) struct Queues {
    /// Ranks of ready steps.
    pub(super) ready: BTreeSet<u32>,
    /// For each limit, ranks of steps that wait for a slot.
    pub(super) parked: Vec<BTreeSet<u32>>,
    /// For each window, ranks of steps that wait for it to open.
    pub(super) shut: Vec<BTreeSet<u32>>,
    /// Ranks of steps that are on hold or whose subject is paused.
    pub(super) held: BTreeSet<u32>,
    /// Due time and rank of delayed steps.
    pub(super) delayed: BTreeSet<(u64, u32)>,
}

impl Queues {
    pub(super) fn new(draft: &Draft) -> Self {
        Self {
            ready: BTreeSet::new(),
            parked: vec![BTreeSet::new(); draft.limits.len()],
            shut: vec![BTreeSet::new(); draft.windows.len()],
            held: BTreeSet::new(),
            delayed: BTreeSet::new(),
        }
    }

    /// Removes a step from every queue.
    pub(super) fn forget(&mut self, rank: u32, step: &Step, due: u64) {
        let _ = self.ready.remove(&rank)
            || self.held.remove(&rank)
            || self.delayed.remove(&(due, rank))
            || step.window.is_some_and(|window| self.shut[window as usize].remove(&rank))
            || step.limits.iter().any(|limit| self.parked[*limit as usize].remove(&rank));
    }

    /// Reconsiders steps that were on hold or paused.
    pub(super) fn let_go(&mut self) {
        self.ready.append(&mut self.held);
    }

    /// Reconsiders one step that waits for a slot of the limit.
    pub(super) fn call(&mut self, limit: usize) {
        if let Some(rank) = self.parked[limit].pop_first() {
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
