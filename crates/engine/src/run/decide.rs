//! What a run answers to what happens: records to keep, and then what to do.

use serde_json::Value;

use super::breaker::Alike;
use super::order;
use super::queues::Queues;
use super::{Decision, Effect, Event, Found, Run, State};
use crate::execute::{MAX_REASON, MAX_RECEIPT};
use crate::plan::{Step, StepId};
use crate::record::{End, Record};

/// What keeps a step from starting that could.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Bar {
    /// A person wants it to wait.
    Held,
    /// Its subject is paused.
    Subject,
    Window(u32),
}

impl Run {
    /// What to do after the records were read back: ask after what ran, and look again at what was
    /// being looked at.
    pub fn recover(&mut self, now: u64) -> Decision {
        self.look(now);
        let mut decision = Decision::default();
        for step in self.plan.ids() {
            let attempt = self.attempt(step);
            match self.state(step) {
                State::Running => decision.effects.push(Effect::Ask { step, attempt }),
                State::Verifying | State::VerifyingLost => {
                    self.look_at(step, now, &mut decision);
                }
                _ => {}
            }
        }
        self.go_on(now, &mut decision);
        decision
    }

    /// What follows from what happens. What does not fit, because it is told twice or late or of
    /// another plan, has no consequence.
    pub fn on(&mut self, event: Event, now: u64) -> Decision {
        self.look(now);
        let mut decision = Decision::default();
        if event.vertex().is_some_and(|id| id.at() >= self.plan.len()) {
            return decision;
        }
        match bounded(event) {
            Event::Tick => {}
            Event::Checked { step, attempt, refused } => {
                self.on_checked(step, attempt, refused, now, &mut decision);
            }
            Event::Given { step, attempt, to } => {
                self.keep(Record::Given { step, attempt, to, at: now }, &mut decision);
            }
            Event::Ran { step, attempt, end } => {
                self.keep(Record::Ran { step, attempt, end, at: now }, &mut decision);
                self.look_at(step, now, &mut decision);
            }
            Event::Verified { step, attempt, holds, reason } => {
                let record = Record::Verified { step, attempt, holds, reason, at: now };
                self.keep(record, &mut decision);
            }
            Event::Found { step, attempt, found } => {
                self.on_found(step, attempt, found, now, &mut decision);
            }
            said => {
                let ends_all = matches!(said, Event::Stop { now: true, .. });
                if let Some(record) = order::record(said, now) {
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
        refused: Option<String>,
        now: u64,
        decision: &mut Decision,
    ) {
        if self.state(step) != State::Checking || attempt != self.attempt(step) + 1 {
            return;
        }
        let is_moot = match &refused {
            // Whoever looked was ended, so what it says is no answer.
            Some(_) => self.kills,
            // Meanwhile nothing shall start any more, or not this.
            None => !self.may_start() || self.bar(step).is_some(),
        };
        match refused {
            _ if is_moot => {
                self.release(step);
                self.make_ready(step);
            }
            Some(reason) => {
                self.keep(Record::Refused { step, attempt, reason, at: now }, decision);
            }
            None => self.start(step, now, decision),
        }
    }

    fn on_found(
        &mut self,
        step: StepId,
        attempt: u32,
        found: Found,
        now: u64,
        decision: &mut Decision,
    ) {
        if self.state(step) != State::Running || attempt != self.attempt(step) {
            return;
        }
        match found {
            Found::Running if self.kills => decision.effects.push(Effect::Kill { step, attempt }),
            Found::Running => {}
            Found::Never if self.kills => {
                let end = End::NotBegun { reason: None };
                self.keep(Record::Ran { step, attempt, end, at: now }, decision);
            }
            // The intent is durable; the attempt is the same one.
            Found::Never => decision.effects.push(Effect::Start { step, attempt }),
            Found::Ended(end) => {
                self.keep(Record::Ran { step, attempt, end, at: now }, decision);
                self.look_at(step, now, decision);
            }
            Found::Gone => {
                self.keep(Record::Lost { step, attempt, at: now }, decision);
                self.look_at(step, now, decision);
            }
        }
    }

    /// Starts what can start, and ends the run when nothing is left.
    fn go_on(&mut self, now: u64, decision: &mut Decision) {
        self.ask_about_failures(now, decision);
        self.wake(now);
        self.start_all(now, decision);
        while let Some((step, reason)) = self.jam() {
            let attempt = self.attempt(step) + 1;
            self.keep(Record::Refused { step, attempt, reason, at: now }, decision);
            self.start_all(now, decision);
        }
        if self.outcome.is_none() && self.is_over() {
            let outcome = self.comes_to();
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

    /// Begins a step, if there is a place for it.
    fn go(&mut self, id: StepId, now: u64, decision: &mut Decision) {
        if let Some(pool) = self.full_pool(self.step(id)) {
            self.queues.parked[pool as usize].insert(self.plan.rank(id));
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

    /// What nobody can be sure of any more when too many failed alike.
    fn ask_about_failures(&mut self, now: u64, decision: &mut Decision) {
        if self.may_start()
            && self.open > 0
            && let Some(Alike { kin, subjects, reason }) = self.breaker.asks().cloned()
        {
            self.keep(Record::Breaker { kin, subjects, reason, at: now }, decision);
        }
    }

    /// What waited for a time that has come could start.
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

    /// Time is what the clock says; if it goes back, nothing waits longer for that.
    pub(super) fn look(&mut self, now: u64) {
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

    /// What keeps a step from starting, whatever the pools say.
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

    /// What an attempt's end asks for.
    fn look_at(&mut self, step: StepId, now: u64, decision: &mut Decision) {
        if !matches!(self.state(step), State::Verifying | State::VerifyingLost) {
            return;
        }
        let attempt = self.attempt(step);
        if self.kills {
            let reason = "the run was stopped before it was looked at".to_owned();
            self.keep(Record::Verified { step, attempt, holds: false, reason, at: now }, decision);
            return;
        }
        let verify = Effect::Verify { step, attempt };
        if !decision.effects.contains(&verify) {
            decision.effects.push(verify);
        }
    }

    /// Ends what is under way: an attempt, or the look before or after one.
    fn kill(&self, step: StepId) -> Effect {
        let next = u32::from(self.state(step) == State::Checking);
        Effect::Kill { step, attempt: self.attempt(step) + next }
    }

    /// Applies a record that fits, and gives it out to be kept.
    fn keep(&mut self, record: Record, decision: &mut Decision) {
        if self.could_follow(&record) {
            self.apply(&record);
            decision.records.push(record);
        }
    }
}

/// What an executor says, or whoever speaks for it, as large as a record may be: a result that
/// cannot be kept would end the run.
fn bounded(mut event: Event) -> Event {
    match &mut event {
        Event::Checked { refused: Some(reason), .. } | Event::Verified { reason, .. } => {
            clip(reason);
        }
        Event::Ran { end, .. } | Event::Found { found: Found::Ended(end), .. } => match end {
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
