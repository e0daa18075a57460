//! Resume, retry and accept: reopens ended vertices and recomputes everything that follows.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::tally::{Class, Tally};
use super::{Breaker, Run, State, StepEnd};
use crate::plan::{OnFailure, StepId};

impl Run {
    /// Reopens every vertex that did not succeed.
    pub(super) fn resume(&mut self) {
        self.forget_stop();
        self.stop_after.clear();
        self.paused = None;
        self.outcome = None;
        self.breaker = Breaker::default();
        self.left_out.fill(false);
        self.failed.iter_mut().for_each(BTreeSet::clear);
        self.shut.iter_mut().for_each(BTreeSet::clear);
        for id in self.plan.ids() {
            let is_join = self.plan.step(id).is_none();
            let again = match self.states[id.at()] {
                State::Ended(ended) => is_join || !ended.is_good() || ended == StepEnd::Skipped,
                State::Waiting | State::Ready | State::Checking | State::Delayed => true,
                _ => false,
            };
            if again {
                self.release(id);
                self.reset(id);
            }
        }
        self.recount();
    }

    /// Another run has undone steps. Steps in `undone` have left no changes.
    pub(super) fn apply_undone(&mut self, undone: &[StepId], stuck: &[StepId]) {
        for id in undone {
            self.traces.remove(id);
            self.carried.remove(id);
            let tries = &mut self.tries[id.at()];
            (tries.begun, tries.changed) = (false, false);
        }
        for id in undone.iter().chain(stuck) {
            if matches!(self.state(*id), State::Ended(ended) if ended.is_good()) {
                self.set(*id, State::Ended(StepEnd::Undone));
                self.classes[id.at()] = Class::Bad;
            }
        }
    }

    /// Reopens one step and the vertices that it blocked.
    pub(super) fn retry(&mut self, step: StepId) {
        let shut = self.open_failure_domain(step, true);
        self.open_again_after(step, shut);
        self.open_again_before(step);
        self.reset(step);
        let is_good = |id: &StepId| matches!(self.state(*id), State::Ended(end) if end.is_good());
        let subject = self.step(step).subject;
        if subject.is_some_and(|at| self.left_out[at as usize])
            && self.plan.vertex(step).after.iter().all(is_good)
        {
            // The other steps of the subject wait until the subject has no failure left.
            self.states[step.at()] = State::Ready;
        }
        if self.outcome.take().is_some() {
            self.forget_stop();
        }
        self.recount();
    }

    /// Counts a failed step as succeeded.
    pub(super) fn accept(&mut self, step: StepId) {
        self.classes[step.at()] = Class::Good;
        let shut = self.open_failure_domain(step, false);
        if self.outcome.is_none() {
            self.states[step.at()] = State::Ended(StepEnd::Ok);
            self.open_again_after(step, shut);
            self.recount();
            self.stop_if_reached(step);
        } else {
            // Vertices that it blocked are reopened when the run is resumed.
            self.set(step, State::Ended(StepEnd::Ok));
            self.let_in(step);
        }
        self.tripped &= self.is_tripped();
    }

    /// Readmits the subject of an accepted step if all its steps have succeeded.
    fn let_in(&mut self, step: StepId) {
        let Some(subject) = self.step(step).subject else { return };
        let is_good = |id: &StepId| matches!(self.state(*id), State::Ended(end) if end.is_good());
        if self.of_subject[subject as usize].iter().all(is_good) {
            self.left_out[subject as usize] = false;
            for failed in &mut self.failed {
                failed.remove(&subject);
            }
        }
    }

    /// Readmits the subject of a step that succeeded after all, if no other failure left it out.
    pub(super) fn let_in_again(&mut self, step: StepId) {
        let subject = self.step(step).subject;
        let is_out = subject.is_some_and(|at| self.left_out[at as usize]);
        if is_out && self.outcome.is_none() && !self.has_other_failure(step) {
            self.open_again_after(step, Vec::new());
            self.recount();
        }
    }

    /// Whether another failure on the subject of the step counts.
    fn has_other_failure(&self, step: StepId) -> bool {
        let Some(subject) = self.step(step).subject else { return false };
        let counts = |id: &StepId| {
            *id != step
                && matches!(self.state(*id), State::Ended(StepEnd::Failed(_)))
                && self.step(*id).on_failure == OnFailure::Stop
        };
        self.of_subject[subject as usize].iter().any(counts)
    }

    fn forget_stop(&mut self) {
        (self.asked, self.tripped, self.kills) = (false, false, false);
    }

    /// Removes the step, or with `wholly` every step, from the reasons why its failure domain is
    /// shut. Returns the steps that become free.
    fn open_failure_domain(&mut self, step: StepId, wholly: bool) -> Vec<StepId> {
        let Some(failure_domain) = self.step(step).failure_domain else { return Vec::new() };
        let shut = &mut self.shut[failure_domain as usize];
        if shut.is_empty() {
            return Vec::new();
        }
        shut.retain(|because| !wholly && *because != step);
        if shut.is_empty() { self.blocked_of(failure_domain).collect() } else { Vec::new() }
    }

    /// Reopens the vertices that the failure of a step ended, and those in `shut`. Vertices that
    /// were also ended by something else will end again.
    fn open_again_after(&mut self, step: StepId, shut: Vec<StepId>) {
        let mut from = shut;
        from.push(step);
        let subject = self.step(step).subject;
        if let Some(subject) = subject.filter(|_| !self.has_other_failure(step)) {
            for failed in &mut self.failed {
                failed.remove(&subject);
            }
            if std::mem::replace(&mut self.left_out[subject as usize], false) {
                let is_left_out = |id: &&StepId| {
                    self.passes_on_loss(**id) && self.classes[id.at()] == Class::LeftOut
                };
                from.extend(self.of_subject[subject as usize].iter().filter(is_left_out));
            }
        }
        let mut again: Vec<bool> = vec![false; self.plan.len()];
        while let Some(id) = from.pop() {
            if std::mem::replace(&mut again[id.at()], true) {
                continue;
            }
            let is_blocked =
                |id: &&StepId| self.passes_on_loss(**id) && self.classes[id.at()] == Class::Bad;
            from.extend(self.plan.successors(id).iter().filter(is_blocked));
        }
        for id in self.plan.ids().filter(|id| again[id.at()] && *id != step) {
            self.reset(id);
        }
    }

    /// Reopens undone steps before a step, and the joins between them: they must run first.
    fn open_again_before(&mut self, step: StepId) {
        let plan = Arc::clone(&self.plan);
        let mut leads = vec![false; plan.len()];
        for id in plan.order() {
            let is_join = plan.step(*id).is_none();
            leads[id.at()] = self.state(*id) == State::Ended(StepEnd::Undone)
                || is_join && plan.vertex(*id).after.iter().any(|before| leads[before.at()]);
        }
        let mut from = vec![step];
        while let Some(id) = from.pop() {
            for before in &plan.vertex(id).after {
                if std::mem::replace(&mut leads[before.at()], false) {
                    self.reset(*before);
                    from.push(*before);
                }
            }
        }
    }

    fn reset(&mut self, id: StepId) {
        self.states[id.at()] = State::Waiting;
        (self.tries[id.at()].failures, self.tries[id.at()].refusals) = (0, 0);
    }

    /// Recomputes everything that follows from the states.
    pub(super) fn recount(&mut self) {
        self.queues.clear();
        self.open = 0;
        self.undecided.fill(0);
        self.slots.forget_counts();
        self.tallies = self.plan.ids().map(|id| Tally::of(self.plan.vertex(id))).collect();
        for id in self.plan.ids() {
            let state = self.states[id.at()];
            self.count_in_slots(id, None, state);
            let rank = self.plan.rank(id);
            match state {
                State::Ended(_) => {
                    for after in self.plan.successors(id) {
                        self.tallies[after.at()].count(self.classes[id.at()]);
                    }
                    continue;
                }
                State::Ready => _ = self.queues.ready.insert(rank),
                State::Delayed => {
                    self.queues.delayed.insert((self.tries[id.at()].due, rank));
                }
                State::Unknown => {
                    if let Some(subject) = self.step(id).subject {
                        self.undecided[subject as usize] += 1;
                    }
                }
                _ => {}
            }
            self.open += 1;
        }
        for id in self.plan.ids() {
            self.look_after(id);
        }
        for at in 0..self.slots.of_subjects.len() {
            self.settle(at);
        }
    }
}
