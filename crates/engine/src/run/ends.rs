//! What follows from ends: what could start now, and what never will.

use std::sync::Arc;

use super::tally::Class;
use super::{Ended, Run, State};
use crate::plan::{Kind, StepId};

impl Run {
    pub(super) fn end(&mut self, id: StepId, ended: Ended, class: Class) {
        self.release(id);
        self.set_ended(id, ended, class);
        self.spread(id, class);
    }

    /// A state, and everything that is counted of it.
    pub(super) fn set(&mut self, id: StepId, state: State) {
        let was = std::mem::replace(&mut self.states[id.at()], state);
        let has_ended = |state| usize::from(matches!(state, State::Ended(_)));
        self.open = self.open + has_ended(was) - has_ended(state);
        if let Some(subject) = self.plan.step(id).and_then(|step| step.subject) {
            let undecided = &mut self.undecided[subject as usize];
            *undecided += u32::from(state == State::Unknown);
            *undecided -= u32::from(was == State::Unknown);
        }
        self.count_in_places(id, Some(was), state);
    }

    fn set_ended(&mut self, id: StepId, ended: Ended, class: Class) {
        self.set(id, State::Ended(ended));
        self.classes[id.at()] = class;
        if class != Class::Bad {
            self.stop_if_reached(id);
        }
    }

    /// What becomes of a step that is not done because of others: of one that was not to be done
    /// anyway, nobody has lost anything.
    pub(super) fn passed_over(&self, id: StepId, because: Ended) -> Ended {
        if self.step(id).skip.is_some() { Ended::Skipped } else { because }
    }

    /// Whether a vertex only tells those after it what did not come to a good end before it.
    pub fn passes_on_loss(&self, id: StepId) -> bool {
        match self.state(id) {
            State::Ended(Ended::Blocked | Ended::LeftOut) => true,
            State::Ended(Ended::Skipped) => self.classes[id.at()] != Class::Good,
            _ => false,
        }
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

    /// Looks whether a vertex still waits.
    pub(super) fn look_after(&mut self, id: StepId) {
        if let Some(class) = self.judge(id) {
            self.spread(id, class);
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
                if step.subject.is_some_and(|at| self.left_out[at as usize]) {
                    (self.passed_over(id, Ended::LeftOut), Class::LeftOut)
                } else if tally.has_lost() || self.is_shut(id) && step.skip.is_none() {
                    (self.passed_over(id, Ended::Blocked), Class::Bad)
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
        self.set_ended(id, ended, class);
        Some(class)
    }

    pub(super) fn make_ready(&mut self, id: StepId) {
        self.set(id, State::Ready);
        self.queues.ready.insert(self.plan.rank(id));
    }

    /// Takes a step out of everything that it waits in.
    pub(super) fn forget(&mut self, id: StepId) {
        let Self { plan, queues, tries, .. } = self;
        if let Some(step) = plan.step(id) {
            queues.forget(plan.rank(id), step, tries[id.at()].due);
        }
    }
}
