//! What a record makes of a run.

use std::collections::BTreeSet;

use super::tally::{Class, Tally};
use super::{Ended, Run, State, Stop};
use crate::plan::{OnFailure, Repeat, Step, StepId};
use crate::record::{End, FailureKind, Record};

impl Run {
    /// Whether a record can come next.
    pub(super) fn could_follow(&self, record: &Record) -> bool {
        let is = |step: &StepId| step.at() < self.plan.len() && self.plan.step(*step).is_some();
        let at = |step: &StepId| self.states[step.at()];
        let last = |step: &StepId, attempt: u32| self.attempt(*step) == attempt;
        match record {
            Record::Plan { .. } => false,
            Record::Intent { step, attempt, .. } => {
                is(step)
                    && matches!(at(step), State::Ready | State::Checking | State::Delayed)
                    && last(step, attempt.wrapping_sub(1))
            }
            Record::Refused { step, attempt, .. } => {
                is(step)
                    && matches!(at(step), State::Ready | State::Checking)
                    && last(step, attempt.wrapping_sub(1))
            }
            Record::Ran { step, attempt, .. } | Record::Lost { step, attempt, .. } => {
                is(step) && at(step) == State::Running && last(step, *attempt)
            }
            Record::Verified { step, attempt, .. } => {
                is(step)
                    && matches!(at(step), State::Verifying | State::VerifyingLost)
                    && last(step, *attempt)
            }
            Record::Marked { step, .. } => {
                is(step) && matches!(at(step), State::Unknown | State::Ended(Ended::Failed(_)))
            }
            Record::Stop { .. } => self.outcome.is_none(),
            Record::Resume { .. } => self.outcome.is_some() || self.stop.is_some(),
            Record::Pause { subject, .. } => {
                subject.is_none_or(|at| (at as usize) < self.left_out.len())
            }
            Record::Finished { .. } => self.outcome.is_none() && self.is_over(),
        }
    }

    /// The only way that a run changes, but for what can be looked at again.
    pub(super) fn apply(&mut self, record: &Record) {
        match record {
            Record::Plan { .. } => {}
            Record::Intent { step, attempt, .. } => {
                self.forget(*step);
                self.take(*step);
                self.states[step.at()] = State::Running;
                self.tries[step.at()].attempt = *attempt;
            }
            Record::Refused { step, attempt, .. } => {
                self.forget(*step);
                self.tries[step.at()].attempt = *attempt;
                self.fail(*step, FailureKind::Precheck);
            }
            Record::Ran { step, end, at, .. } => self.ran(*step, end, *at),
            Record::Verified { step, holds, at, .. } => self.verified(*step, *holds, *at),
            Record::Lost { step, .. } => self.lost(*step),
            Record::Marked { step, good, .. } => self.marked(*step, *good),
            // What was stopped by failures has failed, whoever stops it once more.
            Record::Stop { .. } => _ = self.stop.get_or_insert(Stop::Asked),
            Record::Resume { .. } => self.resume(),
            Record::Pause { subject, paused, .. } => self.pause(*subject, *paused),
            Record::Finished { outcome, .. } => {
                self.outcome = Some(*outcome);
                for state in &mut self.states {
                    if matches!(state, State::Waiting | State::Ready | State::Delayed) {
                        *state = State::Ended(Ended::Stopped);
                    }
                }
                self.ready.clear();
                self.held.clear();
                self.delayed.clear();
                self.parked.iter_mut().for_each(BTreeSet::clear);
            }
        }
    }

    fn ran(&mut self, step: StepId, end: &End, at: u64) {
        match end {
            End::Done { changed, .. } => {
                self.tries[step.at()].changed = *changed;
                if self.step(step).after.is_empty() {
                    self.done(step);
                } else {
                    self.states[step.at()] = State::Verifying;
                }
            }
            End::Failed { kind, .. } => self.failed_at(step, *kind, at),
            End::Interrupted => self.end(step, Ended::Interrupted, Class::Bad),
        }
    }

    fn verified(&mut self, step: StepId, holds: bool, at: u64) {
        let was_lost = self.state(step) == State::VerifyingLost;
        if holds {
            self.tries[step.at()].changed |= was_lost;
            self.done(step);
        } else if was_lost {
            self.release(step);
            self.make_ready(step);
        } else {
            self.failed_at(step, FailureKind::Verify, at);
        }
    }

    fn lost(&mut self, step: StepId) {
        match self.step(step).repeat {
            Repeat::Safe => {
                self.release(step);
                self.make_ready(step);
            }
            Repeat::Check => self.states[step.at()] = State::VerifyingLost,
            Repeat::Never => {
                self.release(step);
                self.states[step.at()] = State::Unknown;
                self.pause_subject_of(step, true);
            }
        }
    }

    fn marked(&mut self, step: StepId, good: bool) {
        if self.state(step) == State::Unknown {
            self.pause_subject_of(step, false);
            if good {
                self.end(step, Ended::Ok, Class::Good);
            } else {
                self.fail(step, FailureKind::Internal);
            }
        } else {
            // What it blocked is looked at again when the run is resumed.
            let ended = if good { Ended::Ok } else { Ended::Failed(FailureKind::Internal) };
            self.states[step.at()] = State::Ended(ended);
        }
    }

    fn done(&mut self, step: StepId) {
        let changed = self.tries[step.at()].changed;
        let ended = if changed { Ended::Ok } else { Ended::Unchanged };
        self.end(step, ended, Class::Good);
    }

    fn failed_at(&mut self, step: StepId, kind: FailureKind, at: u64) {
        let Step { retries, delay_ms, .. } = *self.step(step);
        let tries = &mut self.tries[step.at()];
        tries.failures += 1;
        if tries.failures > retries {
            return self.fail(step, kind);
        }
        self.release(step);
        self.states[step.at()] = State::Delayed;
        self.delayed.insert((at.saturating_add(delay_ms), self.plan.rank(step)));
    }

    /// For good.
    fn fail(&mut self, step: StepId, kind: FailureKind) {
        let Step { on_failure, subject, cohort, .. } = *self.step(step);
        match on_failure {
            OnFailure::Ignore => self.end(step, Ended::Ignored, Class::Good),
            OnFailure::Continue => self.end(step, Ended::Failed(kind), Class::Bad),
            OnFailure::Stop => {
                let tolerated = match (subject, cohort) {
                    (Some(subject), Some(cohort)) => {
                        let new = !self.left_out[subject as usize];
                        self.failed[cohort as usize] += u32::from(new);
                        let most = self.plan.draft().cohorts[cohort as usize].tolerate;
                        (self.failed[cohort as usize] <= most).then_some(subject)
                    }
                    _ => None,
                };
                if let Some(subject) = tolerated {
                    self.leave_out(subject);
                    self.end(step, Ended::Failed(kind), Class::LeftOut);
                } else {
                    self.end(step, Ended::Failed(kind), Class::Bad);
                    self.stop = Some(Stop::Tripped);
                }
            }
        }
    }

    /// The site can do without it: what is left to do there is not done, and nobody waits for it.
    fn leave_out(&mut self, subject: u32) {
        if std::mem::replace(&mut self.left_out[subject as usize], true) {
            return;
        }
        for step in std::mem::take(&mut self.of_subject[subject as usize]) {
            let idle = matches!(self.state(step), State::Waiting | State::Ready | State::Delayed);
            if idle {
                self.forget(step);
                self.end(step, Ended::LeftOut, Class::LeftOut);
            }
            self.of_subject[subject as usize].push(step);
        }
    }

    fn pause_subject_of(&mut self, step: StepId, paused: bool) {
        if let Some(subject) = self.step(step).subject {
            self.pause(Some(subject), paused);
        }
    }

    fn pause(&mut self, subject: Option<u32>, paused: bool) {
        match subject {
            None => self.paused = paused,
            Some(subject) => self.paused_subjects[subject as usize] = paused,
        }
        if !paused {
            self.ready.append(&mut self.held);
        }
    }

    fn resume(&mut self) {
        self.stop = None;
        self.outcome = None;
        self.left_out.fill(false);
        self.failed.fill(0);
        self.ready.clear();
        self.held.clear();
        self.delayed.clear();
        self.parked.iter_mut().for_each(BTreeSet::clear);
        for id in self.plan.ids() {
            let is_join = self.plan.step(id).is_none();
            let again = match self.states[id.at()] {
                State::Ended(ended) => is_join || !ended.is_good() || ended == Ended::Skipped,
                State::Waiting | State::Ready | State::Delayed => true,
                _ => false,
            };
            if again {
                self.states[id.at()] = State::Waiting;
                self.tries[id.at()].failures = 0;
            }
            self.tallies[id.at()] = Tally::of(self.plan.vertex(id));
        }
        let ended = |state: &&State| matches!(state, State::Ended(_));
        self.open = self.plan.len() - self.states.iter().filter(ended).count();
        self.begin();
    }
}
