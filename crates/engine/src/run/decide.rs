//! The answers of a run to events: records to make durable, then effects. How a record changes the
//! state belongs to [`super::fold`].

use serde_json::Value;

use super::breaker::SimilarFailures;
use super::command;
use super::queues::Queues;
use super::{AttemptStatus, Decision, Effect, Event, Run, State};
use crate::plan::{Step, StepId};
use crate::record::{End, FailedCheck, MAX_REASON, MAX_RECEIPT, Record};

/// What keeps a ready step from starting, apart from limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Bar {
    /// The step is on hold.
    Held,
    /// The subject is paused.
    Subject,
    Window(u32),
}

impl Run {
    /// The decision after reading the journal back: asks about running attempts and repeats checks.
    pub fn recover(&mut self, now: u64) -> Decision {
        self.set_time(now);
        let mut decision = Decision::default();
        for step in self.plan.ids() {
            let attempt = self.attempt(step);
            match self.state(step) {
                State::Running => decision.effects.push(Effect::Ask { step, attempt }),
                State::Verifying | State::VerifyingLost => {
                    self.request_verify(step, now, &mut decision);
                }
                _ => {}
            }
        }
        self.go_on(now, &mut decision);
        decision
    }

    /// The decision for an event. An event that does not fit (duplicate, late, or of another plan)
    /// has no effect.
    pub fn on(&mut self, event: Event, now: u64) -> Decision {
        self.set_time(now);
        let mut decision = Decision::default();
        if event.vertex().is_some_and(|id| id.at() >= self.plan.len()) {
            return decision;
        }
        match bounded(event) {
            Event::Tick => {}
            Event::Checked { step, attempt, failed } => {
                self.on_checked(step, attempt, failed, now, &mut decision);
            }
            Event::Given { step, attempt, to } => {
                self.keep(Record::Given { step, attempt, to, at: now }, &mut decision);
            }
            Event::Ran { step, attempt, end } => {
                self.keep(Record::Ran { step, attempt, end, at: now }, &mut decision);
                self.request_verify(step, now, &mut decision);
            }
            Event::Verified { step, attempt, failed } => {
                let record = Record::Verified { step, attempt, failed, at: now };
                self.keep(record, &mut decision);
            }
            Event::Found { step, attempt, found } => {
                self.on_found(step, attempt, found, now, &mut decision);
            }
            said => {
                let ends_all = matches!(said, Event::Stop { now: true, .. });
                if let Some(record) = command::record(said, now) {
                    self.keep(record, &mut decision);
                }
                if ends_all {
                    decision.effects.extend(self.in_flight.iter().map(|step| self.kill(*step)));
                }
            }
        }
        self.go_on(now, &mut decision);
        decision
    }

    fn on_checked(
        &mut self,
        step: StepId,
        attempt: u32,
        failed: Option<FailedCheck>,
        now: u64,
        decision: &mut Decision,
    ) {
        if self.state(step) != State::Checking || attempt != self.attempt(step) + 1 {
            return;
        }
        let is_moot = match &failed {
            // The check was killed, so its result means nothing.
            Some(_) => self.kills,
            // In the meantime the run or the step was stopped, paused or held.
            None => !self.may_start() || self.bar(step).is_some(),
        };
        match failed {
            _ if is_moot => {
                self.release(step);
                self.make_ready(step);
            }
            Some(check) => {
                self.keep(Record::Refused { step, attempt, check, at: now }, decision);
            }
            None => self.start(step, now, decision),
        }
    }

    fn on_found(
        &mut self,
        step: StepId,
        attempt: u32,
        found: AttemptStatus,
        now: u64,
        decision: &mut Decision,
    ) {
        if self.state(step) != State::Running || attempt != self.attempt(step) {
            return;
        }
        match found {
            AttemptStatus::Running if self.kills => {
                decision.effects.push(Effect::Kill { step, attempt });
            }
            AttemptStatus::Running => {}
            AttemptStatus::Never if self.kills => {
                let end = End::NotBegun { reason: None };
                self.keep(Record::Ran { step, attempt, end, at: now }, decision);
            }
            // The intent is durable; the attempt is the same one.
            AttemptStatus::Never => decision.effects.push(Effect::Start { step, attempt }),
            AttemptStatus::Ended(end) => {
                self.keep(Record::Ran { step, attempt, end, at: now }, decision);
                self.request_verify(step, now, decision);
            }
            AttemptStatus::Gone => {
                self.keep(Record::Lost { step, attempt, at: now }, decision);
                self.request_verify(step, now, decision);
            }
        }
    }

    /// Starts every step that can start, and ends the run when nothing is left.
    fn go_on(&mut self, now: u64, decision: &mut Decision) {
        self.ask_about_failures(now, decision);
        self.wake(now);
        self.start_all(now, decision);
        while let Some((step, reason)) = self.find_deadlock() {
            let attempt = self.attempt(step) + 1;
            let check = FailedCheck::not_made(reason);
            self.keep(Record::Refused { step, attempt, check, at: now }, decision);
            self.start_all(now, decision);
        }
        if self.outcome.is_none() && self.is_over() {
            let outcome = self.compute_outcome();
            self.keep(Record::Finished { outcome, at: now }, decision);
        }
    }

    fn start_all(&mut self, now: u64, decision: &mut Decision) {
        while self.may_start() {
            let Some(rank) = self.queues.ready.pop_first() else { break };
            let id = self.plan.ranked(rank);
            match self.bar(id) {
                None => self.go(id, now, decision),
                Some(bar) => {
                    match bar {
                        Bar::Held | Bar::Subject => self.queues.held.insert(rank),
                        Bar::Window(window) => self.queues.shut[window as usize].insert(rank),
                    };
                    self.pass_on(id);
                }
            }
        }
    }

    /// Begins a step if its limits have free slots.
    fn go(&mut self, id: StepId, now: u64, decision: &mut Decision) {
        if let Some(limit) = self.full_limit(self.step(id)) {
            self.queues.parked[limit as usize].insert(self.plan.rank(id));
            self.pass_on(id);
            return;
        }
        self.take(id, false);
        if self.step(id).before.is_empty() {
            self.start(id, now, decision);
        } else {
            self.set(id, State::Checking);
            decision.effects.push(Effect::Check { step: id, attempt: self.attempt(id) + 1 });
        }
    }

    /// Pauses the run if too many subjects failed in the same way.
    fn ask_about_failures(&mut self, now: u64, decision: &mut Decision) {
        if self.may_start()
            && self.open > 0
            && let Some(SimilarFailures { kin, subjects, reason }) = self.breaker.asks().cloned()
        {
            self.keep(Record::Breaker { kin, subjects, reason, at: now }, decision);
        }
    }

    /// Makes steps ready whose time has come.
    fn wake(&mut self, now: u64) {
        while let Some((at, rank)) =
            self.queues.delayed.first().copied().filter(|(at, _)| *at <= now)
        {
            self.queues.delayed.remove(&(at, rank));
            self.make_ready(self.plan.ranked(rank));
        }
        let Queues { shut, ready, .. } = &mut self.queues;
        for (shut, window) in shut.iter_mut().zip(&self.plan.draft().windows) {
            if !shut.is_empty() && window.is_open(now) {
                ready.append(shut);
            }
        }
    }

    /// Advances the time. If the clock jumps back, delayed steps do not wait longer for it.
    pub(super) fn set_time(&mut self, now: u64) {
        let back = self.seen.saturating_sub(now);
        if back > 0 {
            for (due, rank) in std::mem::take(&mut self.queues.delayed) {
                let due = due.saturating_sub(back);
                self.tries[self.plan.ranked(rank).at()].due = due;
                self.queues.delayed.insert((due, rank));
            }
        }
        self.seen = now;
    }

    /// What keeps a step from starting, apart from limits.
    pub(super) fn bar(&self, id: StepId) -> Option<Bar> {
        let Step { subject, window, .. } = self.step(id);
        let is_paused =
            |at: &u32| self.paused_subjects[*at as usize] || self.undecided[*at as usize] > 0;
        let windows = &self.plan.draft().windows;
        if self.held.contains(&id) {
            Some(Bar::Held)
        } else if subject.as_ref().is_some_and(is_paused) {
            Some(Bar::Subject)
        } else {
            window.filter(|at| !windows[*at as usize].is_open(self.seen)).map(Bar::Window)
        }
    }

    fn start(&mut self, step: StepId, now: u64, decision: &mut Decision) {
        let attempt = self.attempt(step) + 1;
        self.keep(Record::Intent { step, attempt, at: now }, decision);
        decision.effects.push(Effect::Start { step, attempt });
    }

    /// Requests the postconditions after the end of an attempt.
    fn request_verify(&mut self, step: StepId, now: u64, decision: &mut Decision) {
        if !matches!(self.state(step), State::Verifying | State::VerifyingLost) {
            return;
        }
        let attempt = self.attempt(step);
        if self.kills {
            let failed = Some(FailedCheck::not_made("the run was stopped before the check"));
            self.keep(Record::Verified { step, attempt, failed, at: now }, decision);
            return;
        }
        let verify = Effect::Verify { step, attempt };
        if !decision.effects.contains(&verify) {
            decision.effects.push(verify);
        }
    }

    /// The effect that ends an attempt, or the check before or after it.
    fn kill(&self, step: StepId) -> Effect {
        let next = u32::from(self.state(step) == State::Checking);
        Effect::Kill { step, attempt: self.attempt(step) + next }
    }

    /// Applies a record if it fits, and adds it to the decision.
    fn keep(&mut self, record: Record, decision: &mut Decision) {
        if self.could_follow(&record) {
            self.apply(&record);
            decision.records.push(record);
        }
    }
}

/// Cuts an event to the size limits of records: a result that cannot be recorded would end the run.
fn bounded(mut event: Event) -> Event {
    match &mut event {
        Event::Checked { failed: Some(check), .. }
        | Event::Verified { failed: Some(check), .. } => {
            clip(&mut check.title);
            clip(&mut check.output);
        }
        Event::Ran { end, .. } | Event::Found { found: AttemptStatus::Ended(end), .. } => match end
        {
            End::Failed { reason, .. }
            | End::Unknown { reason }
            | End::NotBegun { reason: Some(reason) } => clip(reason),
            End::Done { receipt, .. } if !receipt.is_null() => {
                let size = serde_json::to_vec(receipt).map_or(usize::MAX, |bytes| bytes.len());
                if size > MAX_RECEIPT {
                    *receipt = Value::Null;
                }
            }
            End::Done { .. } | End::Interrupted | End::NotBegun { reason: None } => {}
        },
        _ => {}
    }
    event
}

fn clip(reason: &mut String) {
    reason.truncate(reason.floor_char_boundary(MAX_REASON));
}
