//! A run in the form that is stored beside its journal, so that recovery need not replay all
//! records. Only state that comes from records is in it; the rest is derived.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::breaker::BreakerSnapshot;
use super::tally::Class;
use super::{Breaker, ReplayError, Run, State, StepEnd};
use crate::plan::{AppliedAttempt, Plan, StepId};
use crate::record::{FailureKind, Outcome};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Snapshot {
    plan: String,
    /// A letter for each vertex.
    states: String,
    classes: String,
    attempts: Vec<u32>,
    /// Steps whose last attempt changed something.
    changed: Vec<StepId>,
    begun: Vec<StepId>,
    failures: BTreeMap<StepId, u32>,
    #[serde(default)]
    refusals: BTreeMap<StepId, u32>,
    /// Due times of delayed steps.
    due: BTreeMap<StepId, u64>,
    traces: BTreeMap<StepId, Vec<(u32, Value)>>,
    carried: BTreeMap<StepId, Vec<AppliedAttempt>>,
    #[serde(default)]
    given: BTreeMap<StepId, String>,
    /// Limits, and the subjects that hold a slot of them.
    slots: Vec<(u32, u32)>,
    left_out: Vec<u32>,
    failed: Vec<BTreeSet<u32>>,
    #[serde(default)]
    shut: Vec<BTreeSet<StepId>>,
    paused: Option<String>,
    paused_subjects: Vec<u32>,
    held: BTreeSet<StepId>,
    stop_after: Vec<Vec<StepId>>,
    asked: bool,
    tripped: bool,
    kills: bool,
    breaker: BreakerSnapshot,
    outcome: Option<Outcome>,
    seen: u64,
}

const STATES: [(char, State); 24] = [
    ('w', State::Waiting),
    ('r', State::Ready),
    ('R', State::Running),
    ('V', State::Verifying),
    ('L', State::VerifyingLost),
    ('d', State::Delayed),
    ('u', State::Unknown),
    ('o', State::Ended(StepEnd::Ok)),
    ('n', State::Ended(StepEnd::Unchanged)),
    ('g', State::Ended(StepEnd::Ignored)),
    ('s', State::Ended(StepEnd::Skipped)),
    ('p', State::Ended(StepEnd::Failed(FailureKind::Precheck))),
    ('e', State::Ended(StepEnd::Failed(FailureKind::Exit))),
    ('t', State::Ended(StepEnd::Failed(FailureKind::Timeout))),
    ('m', State::Ended(StepEnd::Failed(FailureKind::Limit))),
    ('v', State::Ended(StepEnd::Failed(FailureKind::Verify))),
    ('l', State::Ended(StepEnd::Failed(FailureKind::Lost))),
    ('i', State::Ended(StepEnd::Failed(FailureKind::Internal))),
    ('b', State::Ended(StepEnd::Blocked)),
    ('x', State::Ended(StepEnd::LeftOut)),
    ('z', State::Ended(StepEnd::Stopped)),
    ('k', State::Ended(StepEnd::Interrupted)),
    ('U', State::Ended(StepEnd::Undone)),
    // A check can be repeated.
    ('r', State::Checking),
];

const CLASSES: [(char, Class); 3] = [('g', Class::Good), ('b', Class::Bad), ('x', Class::LeftOut)];

fn letters<T: PartialEq + Copy>(table: &[(char, T)], values: &[T]) -> String {
    let letter = |value: &T| {
        let found = table.iter().find(|(_, other)| other == value);
        found.expect("every value has a letter").0
    };
    values.iter().map(letter).collect()
}

fn values<T: Copy>(table: &[(char, T)], letters: &str) -> Option<Vec<T>> {
    let value =
        |letter: char| table.iter().find(|(other, _)| *other == letter).map(|(_, value)| *value);
    letters.chars().map(value).collect()
}

fn set_indices(flags: &[bool]) -> Vec<u32> {
    (0..).zip(flags).filter(|(_, flag)| **flag).map(|(at, _)| at).collect()
}

impl Run {
    pub fn snapshot(&self) -> Snapshot {
        let ids = || self.plan.ids().zip(&self.tries);
        let slots = self.slots.of_subjects.iter().filter(|slot| slot.is_sure);
        Snapshot {
            plan: self.plan.hash().to_owned(),
            states: letters(&STATES, &self.states),
            classes: letters(&CLASSES, &self.classes),
            attempts: self.tries.iter().map(|tries| tries.attempt).collect(),
            changed: ids().filter(|(_, tries)| tries.changed).map(|(id, _)| id).collect(),
            begun: ids().filter(|(_, tries)| tries.begun).map(|(id, _)| id).collect(),
            failures: ids()
                .filter(|(_, tries)| tries.failures > 0)
                .map(|(id, tries)| (id, tries.failures))
                .collect(),
            refusals: ids()
                .filter(|(_, tries)| tries.refusals > 0)
                .map(|(id, tries)| (id, tries.refusals))
                .collect(),
            due: ids()
                .filter(|(id, _)| self.state(*id) == State::Delayed)
                .map(|(id, tries)| (id, tries.due))
                .collect(),
            traces: self.traces.clone(),
            carried: self.carried.clone(),
            given: self.given.clone(),
            slots: slots.map(|slot| (slot.limit, slot.subject)).collect(),
            left_out: set_indices(&self.left_out),
            failed: self.failed.clone(),
            shut: self.shut.clone(),
            paused: self.paused.clone(),
            paused_subjects: set_indices(&self.paused_subjects),
            held: self.held.clone(),
            stop_after: self.stop_after.iter().map(|goal| goal.vertices.clone()).collect(),
            asked: self.asked,
            tripped: self.tripped,
            kills: self.kills,
            breaker: self.breaker.snapshot(),
            outcome: self.outcome,
            seen: self.seen,
        }
    }

    /// Restores the run of a snapshot.
    pub fn restore(plan: &Arc<Plan>, snapshot: Snapshot) -> Result<Self, ReplayError> {
        if snapshot.plan != plan.hash() {
            let ours = plan.hash().to_owned();
            let theirs = snapshot.plan;
            return Err(ReplayError::OtherPlan { ours, theirs });
        }
        let mut run = Self::new(Arc::clone(plan));
        run.take_over(snapshot).ok_or(ReplayError::BadSnapshot)?;
        Ok(run)
    }

    /// `None` if the snapshot does not fit the plan.
    fn take_over(&mut self, snapshot: Snapshot) -> Option<()> {
        let count = self.plan.len();
        self.states = values(&STATES, &snapshot.states).filter(|all| all.len() == count)?;
        self.classes = values(&CLASSES, &snapshot.classes).filter(|all| all.len() == count)?;
        if snapshot.attempts.len() != count || snapshot.failed.len() != self.failed.len() {
            return None;
        }
        for (tries, attempt) in self.tries.iter_mut().zip(snapshot.attempts) {
            tries.attempt = attempt;
        }
        for id in snapshot.changed {
            self.tries.get_mut(id.at())?.changed = true;
        }
        for id in snapshot.begun {
            self.tries.get_mut(id.at())?.begun = true;
        }
        for (id, failures) in snapshot.failures {
            self.tries.get_mut(id.at())?.failures = failures;
        }
        for (id, refusals) in snapshot.refusals {
            self.tries.get_mut(id.at())?.refusals = refusals;
        }
        for (id, due) in snapshot.due {
            self.tries.get_mut(id.at())?.due = due;
        }
        for at in snapshot.left_out {
            *self.left_out.get_mut(at as usize)? = true;
        }
        for at in snapshot.paused_subjects {
            *self.paused_subjects.get_mut(at as usize)? = true;
        }
        (self.traces, self.carried) = (snapshot.traces, snapshot.carried);
        self.given = snapshot.given;
        self.failed = snapshot.failed;
        self.shut = snapshot.shut;
        self.shut.resize(self.failed.len(), BTreeSet::new());
        self.paused = snapshot.paused;
        self.held = snapshot.held;
        for goal in snapshot.stop_after {
            goal.iter().try_for_each(|id| self.states.get(id.at()).map(|_| ()))?;
            self.stop_after(goal);
        }
        self.asked = snapshot.asked;
        self.tripped = snapshot.tripped;
        self.kills = snapshot.kills;
        self.breaker = Breaker::from(snapshot.breaker);
        self.outcome = snapshot.outcome;
        self.seen = snapshot.seen;
        for (limit, subject) in snapshot.slots {
            self.occupy(limit, subject)?;
        }
        for id in self.plan.ids() {
            let busy =
                matches!(self.state(id), State::Running | State::Verifying | State::VerifyingLost);
            if busy {
                self.plan.step(id)?;
                self.take(id, true);
            }
        }
        self.recount();
        Some(())
    }
}
