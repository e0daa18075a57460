//! Trying again: what is taken back of what has ended, and what follows from the rest.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::tally::{Class, Tally};
use super::{Breaker, Ended, Run, State};
use crate::plan::{OnFailure, StepId};

impl Run {
    /// What did not come to a good end is tried again.
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
                State::Ended(ended) => is_join || !ended.is_good() || ended == Ended::Skipped,
                State::Waiting | State::Ready | State::Checking | State::Delayed => true,
                _ => false,
            };
            if again {
                self.release(id);
                self.reset(id);
            }
        }
        self.count_anew();
    }

    /// Another run took these back: nothing is left of those that are `undone`.
    pub(super) fn taken_back(&mut self, undone: &[StepId], stuck: &[StepId]) {
        for id in undone {
            self.traces.remove(id);
            self.carried.remove(id);
            let tries = &mut self.tries[id.at()];
            (tries.begun, tries.changed) = (false, false);
        }
        for id in undone.iter().chain(stuck) {
            if matches!(self.state(*id), State::Ended(ended) if ended.is_good()) {
                self.set(*id, State::Ended(Ended::Undone));
                self.classes[id.at()] = Class::Bad;
            }
        }
    }

    /// One step is tried again, and what it blocked waits again.
    pub(super) fn retry(&mut self, step: StepId) {
        let shut = self.open_cohort(step, true);
        self.open_again_after(step, shut);
        self.open_again_before(step);
        self.reset(step);
        let is_good = |id: &StepId| matches!(self.state(*id), State::Ended(end) if end.is_good());
        let subject = self.step(step).subject;
        if subject.is_some_and(|at| self.left_out[at as usize])
            && self.plan.vertex(step).after.iter().all(is_good)
        {
            // The others of its subject wait until nothing has failed there any more.
            self.states[step.at()] = State::Ready;
        }
        if self.outcome.take().is_some() {
            self.forget_stop();
        }
        self.count_anew();
    }

    /// A step that failed is as good as done.
    pub(super) fn accept(&mut self, step: StepId) {
        self.classes[step.at()] = Class::Good;
        let shut = self.open_cohort(step, false);
        if self.outcome.is_none() {
            self.states[step.at()] = State::Ended(Ended::Ok);
            self.open_again_after(step, shut);
            self.count_anew();
            self.stop_if_reached(step);
        } else {
            // What it blocked is looked at again when the run is resumed.
            self.set(step, State::Ended(Ended::Ok));
            self.let_in(step);
        }
        self.tripped &= self.is_tripped();
    }

    /// The subject of a step that was accepted is not left out any more, if nothing else of it is
    /// missing.
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

    /// The subject of a step that came to a good end after all is let in, if that was the last thing
    /// for which it was left out.
    pub(super) fn let_in_again(&mut self, step: StepId) {
        let subject = self.step(step).subject;
        let is_out = subject.is_some_and(|at| self.left_out[at as usize]);
        if is_out && self.outcome.is_none() && !self.has_other_failure(step) {
            self.open_again_after(step, Vec::new());
            self.count_anew();
        }
    }

    /// Whether something else failed on the subject of a step, and is counted.
    fn has_other_failure(&self, step: StepId) -> bool {
        let Some(subject) = self.step(step).subject else { return false };
        let counts = |id: &StepId| {
            *id != step
                && matches!(self.state(*id), State::Ended(Ended::Failed(_)))
                && self.step(*id).on_failure == OnFailure::Stop
        };
        self.of_subject[subject as usize].iter().any(counts)
    }

    fn forget_stop(&mut self) {
        (self.asked, self.tripped, self.kills) = (false, false, false);
    }

    /// The step is no reason any more why its cohort is shut; nor is any other, if `wholly`. Gives
    /// what could start again because of that.
    fn open_cohort(&mut self, step: StepId, wholly: bool) -> Vec<StepId> {
        let Some(cohort) = self.step(step).cohort else { return Vec::new() };
        let shut = &mut self.shut[cohort as usize];
        if shut.is_empty() {
            return Vec::new();
        }
        shut.retain(|because| !wholly && *because != step);
        if shut.is_empty() { self.blocked_of(cohort).collect() } else { Vec::new() }
    }

    /// Sets back what a step's failure ended, with what was `shut` because of it, and nothing else:
    /// what something else ended too will end again.
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

    /// Sets back what was taken back before a step, and the joins between them: it is done again
    /// first.
    fn open_again_before(&mut self, step: StepId) {
        let plan = Arc::clone(&self.plan);
        let mut leads = vec![false; plan.len()];
        for id in plan.order() {
            let is_join = plan.step(*id).is_none();
            leads[id.at()] = self.state(*id) == State::Ended(Ended::Undone)
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

    /// Everything that follows from the states, made anew.
    pub(super) fn count_anew(&mut self) {
        self.queues.clear();
        self.open = 0;
        self.undecided.fill(0);
        self.places.forget_counts();
        self.tallies = self.plan.ids().map(|id| Tally::of(self.plan.vertex(id))).collect();
        for id in self.plan.ids() {
            let state = self.states[id.at()];
            self.count_in_places(id, None, state);
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
        for at in 0..self.places.of_subjects.len() {
            self.settle(at);
        }
    }
}
