//! Propagates ends through the plan: which vertices become ready, and which end without running.

use std::sync::Arc;

use super::tally::Class;
use super::{Run, State, StepEnd};
use crate::plan::{Kind, StepId};

impl Run {
    pub(super) fn end(&mut self, id: StepId, ended: StepEnd, class: Class) {
        self.release(id);
        self.set_ended(id, ended, class);
        self.spread(id, class);
    }

    /// Sets a state and updates everything that is counted from it.
    pub(super) fn set(&mut self, id: StepId, state: State) {
        let was = std::mem::replace(&mut self.states[id.at()], state);
        let has_ended = |state| usize::from(matches!(state, State::Ended(_)));
        self.open = self.open + has_ended(was) - has_ended(state);
        if let Some(subject) = self.plan.step(id).and_then(|step| step.subject) {
            let undecided = &mut self.undecided[subject as usize];
            *undecided += u32::from(state == State::Unknown);
            *undecided -= u32::from(was == State::Unknown);
        }
        self.count_in_slots(id, Some(was), state);
    }

    fn set_ended(&mut self, id: StepId, ended: StepEnd, class: Class) {
        self.set(id, State::Ended(ended));
        self.classes[id.at()] = class;
        if class != Class::Bad {
            self.stop_if_reached(id);
        }
    }

    /// The end of a step that does not run because of others. A step that was to be skipped stays
    /// skipped.
    pub(super) fn passed_over(&self, id: StepId, because: StepEnd) -> StepEnd {
        if self.step(id).skip.is_some() { StepEnd::Skipped } else { because }
    }

    /// Whether a vertex only passes on the failure of vertices before it.
    pub fn passes_on_loss(&self, id: StepId) -> bool {
        match self.state(id) {
            State::Ended(StepEnd::Blocked | StepEnd::LeftOut) => true,
            State::Ended(StepEnd::Skipped) => self.classes[id.at()] != Class::Good,
            _ => false,
        }
    }

    /// Counts an end in all vertices after it, and in those that end because of it. Uses a list
    /// instead of recursion: a plan may be one long chain.
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

    /// Checks whether a waiting vertex is ready or ends.
    pub(super) fn look_after(&mut self, id: StepId) {
        if let Some(class) = self.judge(id) {
            self.spread(id, class);
        }
    }

    /// Ends a waiting vertex if the ends before it decide it, or makes it ready.
    fn judge(&mut self, id: StepId) -> Option<Class> {
        if self.states[id.at()] != State::Waiting {
            return None;
        }
        let tally = self.tallies[id.at()];
        let (ended, class) = match &self.plan.vertex(id).kind {
            Kind::Join(rule) => {
                if tally.passes(*rule)? {
                    (StepEnd::Ok, Class::Good)
                } else {
                    (StepEnd::Blocked, Class::Bad)
                }
            }
            Kind::Step(step) => {
                if step.subject.is_some_and(|at| self.left_out[at as usize]) {
                    (self.passed_over(id, StepEnd::LeftOut), Class::LeftOut)
                } else if tally.has_lost() || self.is_shut(id) && step.skip.is_none() {
                    (self.passed_over(id, StepEnd::Blocked), Class::Bad)
                } else if !tally.has_nothing_open() {
                    return None;
                } else if step.skip.is_some() {
                    (StepEnd::Skipped, Class::Good)
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

    /// Removes a step from every queue.
    pub(super) fn forget(&mut self, id: StepId) {
        let Self { plan, queues, tries, .. } = self;
        if let Some(step) = plan.step(id) {
            queues.forget(plan.rank(id), step, tries[id.at()].due);
        }
    }
}
