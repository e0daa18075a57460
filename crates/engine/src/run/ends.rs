//! What follows from ends: what could start now, and what never will.

use std::sync::Arc;

use super::tally::Class;
use super::{Ended, Run, State};
use crate::plan::{Kind, StepId};

impl Run {
    /// From what has ended, to what could start.
    pub(super) fn begin(&mut self) {
        let has_ended = |id: &StepId| matches!(self.states[id.at()], State::Ended(_));
        let ended: Vec<StepId> = self.plan.ids().filter(has_ended).collect();
        for id in ended {
            self.spread(id, Class::Good);
        }
        let plan = Arc::clone(&self.plan);
        for id in plan.ids().filter(|id| plan.vertex(*id).after.is_empty()) {
            if let Some(class) = self.judge(id) {
                self.spread(id, class);
            }
        }
    }

    pub(super) fn end(&mut self, id: StepId, ended: Ended, class: Class) {
        self.release(id);
        self.states[id.at()] = State::Ended(ended);
        self.open -= 1;
        self.spread(id, class);
    }

    /// Tells everything after a vertex, and everything that ends because of it. With a list, not by
    /// recursion: a plan may be one long line.
    fn spread(&mut self, id: StepId, class: Class) {
        let mut told = vec![(id, class)];
        let plan = Arc::clone(&self.plan);
        while let Some((id, class)) = told.pop() {
            for after in plan.successors(id) {
                self.tallies[after.at()].count(class);
                if let Some(class) = self.judge(*after) {
                    told.push((*after, class));
                }
            }
        }
    }

    /// Ends a vertex that waits, if what came before it ends it too.
    fn judge(&mut self, id: StepId) -> Option<Class> {
        if self.states[id.at()] != State::Waiting {
            return None;
        }
        let tally = self.tallies[id.at()];
        let (ended, class) = match &self.plan.vertex(id).kind {
            Kind::Join(rule) => {
                if tally.passes(*rule)? {
                    (Ended::Ok, Class::Good)
                } else {
                    (Ended::Blocked, Class::Bad)
                }
            }
            Kind::Step(step) => {
                let left_out = step.subject.is_some_and(|at| self.left_out[at as usize]);
                if left_out && tally.has_lost() {
                    (Ended::LeftOut, Class::LeftOut)
                } else if tally.has_lost() {
                    (Ended::Blocked, Class::Bad)
                } else if !tally.has_nothing_open() {
                    return None;
                } else if step.skip.is_some() {
                    (Ended::Skipped, Class::Good)
                } else {
                    self.make_ready(id);
                    return None;
                }
            }
        };
        self.states[id.at()] = State::Ended(ended);
        self.open -= 1;
        Some(class)
    }

    pub(super) fn make_ready(&mut self, id: StepId) {
        self.states[id.at()] = State::Ready;
        self.ready.insert(self.plan.rank(id));
    }

    /// Takes a step out of everything that it waits in.
    pub(super) fn forget(&mut self, step: StepId) {
        let rank = self.plan.rank(step);
        if self.ready.remove(&rank) || self.held.remove(&rank) {
            return;
        }
        match self.state(step) {
            State::Delayed => self.delayed.retain(|(_, other)| *other != rank),
            State::Ready => {
                self.parked.iter_mut().for_each(|parked| {
                    parked.remove(&rank);
                });
            }
            _ => {}
        }
    }

    pub(super) fn full_pool(&self, step: StepId) -> Option<usize> {
        let mut pools = self.step(step).pools.iter().map(|pool| *pool as usize);
        pools.find(|pool| self.used[*pool] >= self.plan.draft().pools[*pool].places)
    }

    /// Places that were kept for a step that cannot use them yet are for who comes next.
    pub(super) fn pass_on(&mut self, step: StepId) {
        let plan = Arc::clone(&self.plan);
        for pool in plan.step(step).into_iter().flat_map(|step| &step.pools) {
            let pool = *pool as usize;
            if self.used[pool] < plan.draft().pools[pool].places
                && let Some(rank) = self.parked[pool].pop_first()
            {
                self.ready.insert(rank);
            }
        }
    }

    pub(super) fn take(&mut self, step: StepId) {
        if std::mem::replace(&mut self.tries[step.at()].holds, true) {
            return;
        }
        self.in_flight += 1;
        let plan = Arc::clone(&self.plan);
        for pool in &plan.step(step).expect("only steps hold places").pools {
            self.used[*pool as usize] += 1;
        }
    }

    pub(super) fn release(&mut self, step: StepId) {
        if !std::mem::replace(&mut self.tries[step.at()].holds, false) {
            return;
        }
        self.in_flight -= 1;
        let plan = Arc::clone(&self.plan);
        for pool in &plan.step(step).expect("only steps hold places").pools {
            self.used[*pool as usize] -= 1;
            // One place, one that gets it; what it waits for besides, it is told when it is its turn.
            if let Some(rank) = self.parked[*pool as usize].pop_first() {
                self.ready.insert(rank);
            }
        }
    }
}
