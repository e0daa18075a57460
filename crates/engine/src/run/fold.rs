//! Applies records to a run. This is a pure fold; decisions belong to [`super::decide`].

use std::sync::Arc;

use serde_json::Value;

use super::tally::Class;
use super::{Run, State, StepEnd};
use crate::plan::{OnFailure, Repeat, Step, StepId};
use crate::record::{End, FailedCheck, FailureKind, Record};

impl Run {
    /// Whether a record can come next.
    pub(super) fn could_follow(&self, record: &Record) -> bool {
        let is = |step: &StepId| step.at() < self.plan.len() && self.plan.step(*step).is_some();
        let at = |step: &StepId| self.states[step.at()];
        let last = |step: &StepId, attempt: u32| self.attempt(*step) == attempt;
        match record {
            Record::Plan { .. } => false,
            // Time alone makes a delayed step ready, and no record says so.
            Record::Intent { step, attempt, .. } | Record::Refused { step, attempt, .. } => {
                is(step)
                    && matches!(at(step), State::Ready | State::Checking | State::Delayed)
                    && last(step, attempt.wrapping_sub(1))
            }
            Record::Given { step, attempt, .. }
            | Record::Reached { step, attempt, .. }
            | Record::Ran { step, attempt, .. }
            | Record::Lost { step, attempt, .. } => {
                is(step) && at(step) == State::Running && last(step, *attempt)
            }
            Record::Verified { step, attempt, .. } => {
                is(step)
                    && matches!(at(step), State::Verifying | State::VerifyingLost)
                    && last(step, *attempt)
            }
            Record::Marked { step, .. } => {
                is(step) && matches!(at(step), State::Unknown | State::Ended(StepEnd::Failed(_)))
            }
            Record::Carried { step, .. } => {
                is(step) && matches!(at(step), State::Waiting | State::Ready) && last(step, 0)
            }
            Record::Undone { undone, stuck, .. } => {
                self.outcome.is_some() && undone.iter().chain(stuck).all(is)
            }
            Record::Stop { .. } => self.outcome.is_none(),
            Record::StopAfter { vertices, .. } => {
                let is_there = |vertex: &StepId| vertex.at() < self.plan.len();
                self.outcome.is_none() && !vertices.is_empty() && vertices.iter().all(is_there)
            }
            Record::Retry { step, .. } => {
                let ended_badly = |state| {
                    matches!(
                        state,
                        State::Unknown
                            | State::Ended(
                                StepEnd::Failed(_) | StepEnd::Interrupted | StepEnd::Undone
                            )
                    )
                };
                is(step) && ended_badly(at(step)) && (self.outcome.is_some() || !self.is_stopping())
            }
            Record::Hold { step, .. } => is(step),
            Record::Breaker { kin, .. } => {
                self.breaker.asks().is_some_and(|alike| alike.kin == *kin)
            }
            Record::Resume { .. } => {
                self.outcome.is_some() || (self.is_stopping() && !self.is_ending_all())
            }
            Record::Pause { subject, .. } => {
                subject.is_none_or(|at| (at as usize) < self.left_out.len())
            }
            Record::Finished { .. } => self.outcome.is_none() && self.is_over(),
        }
    }

    /// The only way in which a run changes, apart from checks, which can be repeated.
    pub(super) fn apply(&mut self, record: &Record) {
        match record {
            // Only the executor of the step reads its progress; no decision depends on it.
            Record::Plan { .. } | Record::Reached { .. } => {}
            Record::Intent { step, attempt, .. } => {
                self.begin(*step, *attempt, State::Running);
                self.tries[step.at()].begun = true;
            }
            Record::Given { step, to, .. } => _ = self.given.insert(*step, to.clone()),
            Record::Refused { step, attempt, check, at } => {
                self.begin(*step, *attempt, State::Checking);
                self.fail_attempt(*step, FailureKind::Precheck, &check.to_string(), *at);
            }
            Record::Ran { step, end, at, .. } => self.apply_ran(*step, end, *at),
            Record::Verified { step, failed, at, .. } => {
                self.apply_verified(*step, failed.as_ref(), *at);
            }
            Record::Lost { step, .. } => self.apply_lost(*step),
            Record::Carried { step, changed, made, .. } => {
                self.forget(*step);
                self.tries[step.at()].begun = true;
                self.tries[step.at()].changed = *changed;
                if !made.is_empty() {
                    self.carried.insert(*step, made.clone());
                }
                self.succeed(*step);
            }
            Record::Undone { undone, stuck, .. } => self.apply_undone(undone, stuck),
            Record::Marked { step, good, .. } => self.apply_marked(*step, *good),
            Record::Stop { now, .. } => {
                self.asked = true;
                self.kills |= *now;
            }
            Record::StopAfter { vertices, .. } => self.stop_after(vertices.clone()),
            Record::Resume { .. } => self.resume(),
            Record::Retry { step, .. } => self.retry(*step),
            Record::Pause { subject, paused, by, .. } => self.pause(*subject, *paused, by),
            Record::Breaker { .. } => {
                self.breaker.has_asked();
                self.pause(None, true, "the breaker");
            }
            Record::Hold { step, held, .. } => {
                if *held {
                    self.held.insert(*step);
                } else if self.held.remove(step) {
                    self.queues.let_go();
                }
            }
            Record::Finished { outcome, .. } => {
                self.outcome = Some(*outcome);
                for (state, class) in self.states.iter_mut().zip(&mut self.classes) {
                    // Only a copy that shows checks can have steps in `Checking` here.
                    if matches!(
                        state,
                        State::Waiting | State::Ready | State::Delayed | State::Checking
                    ) {
                        *state = State::Ended(StepEnd::Stopped);
                        *class = Class::Bad;
                        self.open -= 1;
                    }
                }
                self.queues.clear();
            }
        }
    }

    fn begin(&mut self, step: StepId, attempt: u32, state: State) {
        self.forget(step);
        // A step that is refused because its slots would never become free gets none.
        if self.in_flight.contains(&step) || self.full_limit(self.step(step)).is_none() {
            self.take(step, true);
        }
        self.set(step, state);
        self.given.remove(&step);
        self.tries[step.at()].attempt = attempt;
    }

    /// The last attempt may have left changes.
    fn add_trace(&mut self, step: StepId, receipt: Value) {
        let attempt = self.attempt(step);
        self.traces.entry(step).or_default().push((attempt, receipt));
    }

    fn apply_ran(&mut self, step: StepId, end: &End, at: u64) {
        match end {
            End::Done { changed: false, .. }
            | End::NotBegun { .. }
            | End::Failed { kind: FailureKind::Precheck, .. } => {}
            End::Done { receipt, .. } => self.add_trace(step, receipt.clone()),
            _ => self.add_trace(step, Value::Null),
        }
        match end {
            End::Done { changed, .. } => {
                self.tries[step.at()].changed = *changed;
                if self.step(step).after.is_empty() {
                    self.succeed(step);
                } else {
                    self.set(step, State::Verifying);
                }
            }
            End::Failed { kind, reason } => self.fail_attempt(step, *kind, reason, at),
            End::Unknown { .. } => {
                self.release(step);
                self.set(step, State::Unknown);
            }
            End::NotBegun { reason: Some(reason) } => {
                self.fail_attempt(step, FailureKind::Internal, reason, at);
            }
            End::Interrupted | End::NotBegun { reason: None } => {
                self.end(step, StepEnd::Interrupted, Class::Bad);
            }
        }
    }

    fn apply_verified(&mut self, step: StepId, failed: Option<&FailedCheck>, at: u64) {
        let was_lost = self.state(step) == State::VerifyingLost;
        let Some(check) = failed else {
            self.tries[step.at()].changed |= was_lost;
            self.succeed(step);
            return;
        };
        if self.kills {
            // The check was killed, so its failure means nothing.
            self.end(step, StepEnd::Interrupted, Class::Bad);
        } else if was_lost && self.is_shut(step) {
            self.fail(step, FailureKind::Lost, &check.to_string());
        } else if was_lost {
            self.release(step);
            self.make_ready(step);
        } else {
            self.fail_attempt(step, FailureKind::Verify, &check.to_string(), at);
        }
    }

    fn apply_lost(&mut self, step: StepId) {
        self.add_trace(step, Value::Null);
        match self.step(step).repeat {
            Repeat::Safe if self.is_shut(step) => {
                self.fail(step, FailureKind::Lost, "outcome unknown");
            }
            Repeat::Safe => {
                self.release(step);
                self.make_ready(step);
            }
            Repeat::Check => self.set(step, State::VerifyingLost),
            Repeat::Fail => self.fail(step, FailureKind::Lost, "outcome unknown"),
            Repeat::Never => {
                self.release(step);
                self.set(step, State::Unknown);
            }
        }
    }

    fn apply_marked(&mut self, step: StepId, good: bool) {
        match (self.state(step), good) {
            (State::Unknown, true) => {
                self.end(step, StepEnd::Ok, Class::Good);
                self.let_in_again(step);
            }
            (State::Unknown, false) => {
                self.fail(step, FailureKind::Internal, "marked as failed by an operator");
            }
            (_, true) => self.accept(step),
            (_, false) => self.set(step, State::Ended(StepEnd::Failed(FailureKind::Internal))),
        }
        if self.outcome.is_some() {
            self.outcome = Some(self.compute_outcome());
        }
        self.queues.let_go();
    }

    fn succeed(&mut self, step: StepId) {
        let changed = self.tries[step.at()].changed;
        let ended = if changed { StepEnd::Ok } else { StepEnd::Unchanged };
        self.end(step, ended, Class::Good);
        self.let_in_again(step);
    }

    fn fail_attempt(&mut self, step: StepId, kind: FailureKind, reason: &str, at: u64) {
        let Step { retries, retries_precheck, delay_ms, .. } = *self.step(step);
        let tries = &mut self.tries[step.at()];
        let (count, most) = match kind {
            FailureKind::Precheck => (&mut tries.refusals, retries_precheck),
            _ => (&mut tries.failures, retries),
        };
        *count += 1;
        if *count > most || self.is_shut(step) {
            return self.fail(step, kind, reason);
        }
        let tries = &mut self.tries[step.at()];
        tries.due = at.saturating_add(delay_ms);
        self.queues.delayed.insert((tries.due, self.plan.rank(step)));
        self.release(step);
        self.set(step, State::Delayed);
    }

    /// The step has failed for good.
    fn fail(&mut self, id: StepId, kind: FailureKind, reason: &str) {
        let Self { plan, breaker, .. } = self;
        let step = plan.step(id).expect("only steps fail");
        let Step { on_failure, subject, failure_domain, .. } = *step;
        // An unknown outcome is not a failure of the subject.
        if on_failure != OnFailure::Ignore && kind != FailureKind::Lost {
            breaker.count(step, reason, plan.draft().breaker);
        }
        match on_failure {
            OnFailure::Ignore => self.end(id, StepEnd::Ignored, Class::Good),
            OnFailure::Continue => self.end(id, StepEnd::Failed(kind), Class::Bad),
            OnFailure::Stop => {
                let tolerated = subject.zip(failure_domain).filter(|(subject, failure_domain)| {
                    let failed = &mut self.failed[*failure_domain as usize];
                    if !self.left_out[*subject as usize] {
                        failed.insert(*subject);
                    }
                    failed.len()
                        <= self.plan.draft().failure_domains[*failure_domain as usize].tolerate
                            as usize
                });
                let alone = failure_domain
                    .filter(|at| self.plan.draft().failure_domains[*at as usize].trips_alone);
                if let Some((subject, _)) = tolerated {
                    self.leave_out(subject, id);
                    self.end(id, StepEnd::Failed(kind), Class::LeftOut);
                } else if let Some(failure_domain) = alone {
                    self.end(id, StepEnd::Failed(kind), Class::Bad);
                    self.shut(failure_domain, id);
                } else {
                    self.end(id, StepEnd::Failed(kind), Class::Bad);
                    self.tripped = true;
                }
            }
        }
    }

    /// Shuts a failure domain: no more steps of it start.
    fn shut(&mut self, failure_domain: u32, because: StepId) {
        self.shut[failure_domain as usize].insert(because);
        let plan = Arc::clone(&self.plan);
        let is_of = |id: &StepId| {
            plan.step(*id).is_some_and(|step| {
                step.failure_domain == Some(failure_domain) && step.skip.is_none()
            })
        };
        for step in plan.ids().filter(is_of) {
            if self.has_not_begun(step) {
                self.forget(step);
                self.end(step, StepEnd::Blocked, Class::Bad);
                // A slot that was just released may have been reserved for the step.
                self.pass_on(step);
            }
        }
    }

    /// Whether no record says that the step has begun; a check is not a beginning.
    fn has_not_begun(&self, step: StepId) -> bool {
        matches!(self.state(step), State::Waiting | State::Ready | State::Delayed | State::Checking)
    }

    /// Leaves a subject out: its remaining steps do not run, and no step waits for them.
    fn leave_out(&mut self, subject: u32, because: StepId) {
        if std::mem::replace(&mut self.left_out[subject as usize], true) {
            return;
        }
        for step in std::mem::take(&mut self.of_subject[subject as usize]) {
            if self.has_not_begun(step) && step != because {
                self.forget(step);
                self.end(step, self.passed_over(step, StepEnd::LeftOut), Class::LeftOut);
                self.pass_on(step);
            }
            self.of_subject[subject as usize].push(step);
        }
    }

    fn pause(&mut self, subject: Option<u32>, paused: bool, by: &str) {
        match subject {
            None => self.paused = paused.then(|| by.to_owned()),
            Some(subject) => self.paused_subjects[subject as usize] = paused,
        }
        if !paused {
            self.queues.let_go();
        }
    }
}
