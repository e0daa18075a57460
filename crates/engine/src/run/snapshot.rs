//! A run as it is kept beside its journal, so that not all records need to be read back.
//!
//! Only what records say is in it; everything else follows from that.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::breaker::Kept;
use super::tally::Class;
use super::{Breaker, Ended, ReplayError, Run, State};
use crate::plan::{Made, Plan, StepId};
use crate::record::{FailureKind, Outcome};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Snapshot {
    plan: String,
    /// A letter for each vertex.
    states: String,
    classes: String,
    attempts: Vec<u32>,
    /// Steps that changed something in their last attempt.
    changed: Vec<StepId>,
    begun: Vec<StepId>,
    failures: BTreeMap<StepId, u32>,
    #[serde(default)]
    refusals: BTreeMap<StepId, u32>,
    /// When steps are tried again.
    due: BTreeMap<StepId, u64>,
    traces: BTreeMap<StepId, Vec<(u32, Value)>>,
    carried: BTreeMap<StepId, Vec<Made>>,
    #[serde(default)]
    given: BTreeMap<StepId, String>,
    /// Pools and subjects that have a place in them.
    places: Vec<(u32, u32)>,
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
    breaker: Kept,
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
    ('o', State::Ended(Ended::Ok)),
    ('n', State::Ended(Ended::Unchanged)),
    ('g', State::Ended(Ended::Ignored)),
    ('s', State::Ended(Ended::Skipped)),
    ('p', State::Ended(Ended::Failed(FailureKind::Precheck))),
    ('e', State::Ended(Ended::Failed(FailureKind::Exit))),
    ('t', State::Ended(Ended::Failed(FailureKind::Timeout))),
    ('m', State::Ended(Ended::Failed(FailureKind::Limit))),
    ('v', State::Ended(Ended::Failed(FailureKind::Verify))),
    ('l', State::Ended(Ended::Failed(FailureKind::Lost))),
    ('i', State::Ended(Ended::Failed(FailureKind::Internal))),
    ('b', State::Ended(Ended::Blocked)),
    ('x', State::Ended(Ended::LeftOut)),
    ('z', State::Ended(Ended::Stopped)),
    ('k', State::Ended(Ended::Interrupted)),
    ('U', State::Ended(Ended::Undone)),
    // It can be looked at again.
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

fn numbers(flags: &[bool]) -> Vec<u32> {
    (0..).zip(flags).filter(|(_, flag)| **flag).map(|(at, _)| at).collect()
}

impl Run {
    pub fn snapshot(&self) -> Snapshot {
        let ids = || self.plan.ids().zip(&self.tries);
        let places = self.places.of_subjects.iter().filter(|place| place.is_sure);
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
            places: places.map(|place| (place.pool, place.subject)).collect(),
            left_out: numbers(&self.left_out),
            failed: self.failed.clone(),
            shut: self.shut.clone(),
            paused: self.paused.clone(),
            paused_subjects: numbers(&self.paused_subjects),
            held: self.held.clone(),
            stop_after: self.stop_after.iter().map(|goal| goal.vertices.clone()).collect(),
            asked: self.asked,
            tripped: self.tripped,
            kills: self.kills,
            breaker: self.breaker.kept(),
            outcome: self.outcome,
            seen: self.seen,
        }
    }

    /// The run that a snapshot is of.
    pub fn restore(plan: &Arc<Plan>, snapshot: Snapshot) -> Result<Self, ReplayError> {
        if snapshot.plan != plan.hash() {
            let (ours, theirs) = (plan.hash().to_owned(), snapshot.plan);
            return Err(ReplayError::OtherPlan { ours, theirs });
        }
        let mut run = Self::new(Arc::clone(plan));
        run.take_over(snapshot).ok_or(ReplayError::BadSnapshot)?;
        Ok(run)
    }

    /// Nothing, if a number is none of the plan's.
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
        for (pool, subject) in snapshot.places {
            self.occupy(pool, subject)?;
        }
        for id in self.plan.ids() {
            let busy =
                matches!(self.state(id), State::Running | State::Verifying | State::VerifyingLost);
            if busy {
                self.plan.step(id)?;
                self.take(id, true);
            }
        }
        self.count_anew();
        Some(())
    }
}
