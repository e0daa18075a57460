//! A run: what is known of every step, and what follows from it.
//!
//! The state is what the records of the journal come to ([`Run::apply`]), and nothing else changes
//! it, so a run that is read back is the run that was. [`Run::on`] answers what happens with records
//! and effects. Whoever calls it keeps all of the records before it acts on any effect: an intent is
//! then durable before the act, and a result before anything that follows from it.

mod breaker;
mod decide;
mod ends;
mod event;
mod fold;
mod order;
mod places;
mod queues;
mod reopen;
mod snapshot;
mod stop_after;
mod tally;
mod why;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::Value;

use crate::execute::{MAX_RECEIPT, attempt_id};
use crate::plan::{Made, OnFailure, Plan, Step, StepId};
use crate::record::{FailureKind, Outcome, Record};

use breaker::Breaker;
use places::Places;
use queues::Queues;
use stop_after::StopAfter;
use tally::{Class, Tally};

pub use event::{Decision, Effect, Event, Found};
pub use order::Refusal;
pub use snapshot::Snapshot;
pub use why::Reason;

/// Attempts of one step that can be taken back. Their receipts together are as long as one may be;
/// of the first ones none is kept.
pub const MAX_MADE: usize = 1000;

/// Where a vertex stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Something before it is open.
    Waiting,
    /// It could start, if nothing held it back.
    Ready,
    /// What is looked at before it is looked at. Not in the journal: it can be looked at again.
    Checking,
    Running,
    Verifying,
    /// Nobody knows how it ended; it is looked at whether it is done.
    VerifyingLost,
    /// It failed and will be tried again.
    Delayed,
    /// Nobody knows how it ended; a person decides.
    Unknown,
    Ended(Ended),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    Ok,
    /// It was done already.
    Unchanged,
    /// It failed, and that does not matter.
    Ignored,
    Skipped,
    Failed(FailureKind),
    /// Something before it did not come to a good end.
    Blocked,
    /// Its subject is left out.
    LeftOut,
    /// The run was stopped before it started.
    Stopped,
    Interrupted,
    /// It came to a good end, and another run took it back.
    Undone,
}

impl Ended {
    pub fn is_good(self) -> bool {
        matches!(self, Self::Ok | Self::Unchanged | Self::Ignored | Self::Skipped)
    }
}

/// Why records are not those of a plan.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReplayError {
    #[error("the journal is of the plan {theirs}, not of {ours}")]
    OtherPlan { ours: String, theirs: String },
    #[error("the journal does not begin with a plan")]
    NoPlan,
    #[error("record {at} does not follow from those before it: {record}")]
    Impossible { at: usize, record: String },
    #[error("the snapshot is not of this plan")]
    BadSnapshot,
}

/// What is known of the attempts of a step.
#[derive(Debug, Clone, Copy, Default)]
struct Tries {
    /// The last attempt; 0 if there was none.
    attempt: u32,
    /// Attempts that failed since the run was last resumed.
    failures: u32,
    /// Looks before an attempt that refused it since then.
    refusals: u32,
    /// When it is tried again, if it is delayed.
    due: u64,
    /// Whether the last attempt changed anything.
    changed: bool,
    /// Whether it was ever really begun, here or in the run that it was carried over from.
    begun: bool,
}

#[derive(Debug, Clone)]
pub struct Run {
    plan: Arc<Plan>,
    states: Vec<State>,
    /// What the end of a vertex means to those after it, if it has one.
    classes: Vec<Class>,
    tries: Vec<Tries>,
    tallies: Vec<Tally>,
    /// Attempts that may have left something, in their order, each with its receipt: every one that
    /// did not say that all was done already.
    traces: BTreeMap<StepId, Vec<(u32, Value)>>,
    /// Whom the last attempt of a step was given to, if that is somebody elsewhere.
    given: BTreeMap<StepId, String>,
    /// The same of steps that were carried over, the last one first.
    carried: BTreeMap<StepId, Vec<Made>>,
    queues: Queues,
    places: Places,
    in_flight: BTreeSet<StepId>,
    /// In a copy, what the run itself is looking at.
    shown: BTreeSet<StepId>,
    /// Vertices that have not come to an end.
    open: usize,
    of_subject: Vec<Vec<StepId>>,
    left_out: Vec<bool>,
    /// Subjects that failed, for each cohort.
    failed: Vec<BTreeSet<u32>>,
    /// For each cohort, the steps because of which nothing more of it starts.
    shut: Vec<BTreeSet<StepId>>,
    /// Who said that nothing new starts.
    paused: Option<String>,
    paused_subjects: Vec<bool>,
    /// For each subject, steps of which nobody knows how they ended.
    undecided: Vec<u32>,
    /// Steps that somebody wants to wait.
    held: BTreeSet<StepId>,
    stop_after: Vec<StopAfter>,
    /// Somebody said that nothing new starts.
    asked: bool,
    /// More failed than may, so nothing new starts.
    tripped: bool,
    /// What runs is ended too.
    kills: bool,
    breaker: Breaker,
    outcome: Option<Outcome>,
    /// When it was last looked at.
    seen: u64,
}

impl Run {
    pub fn new(plan: Arc<Plan>) -> Self {
        let draft = plan.draft();
        let mut of_subject = vec![Vec::new(); draft.subjects.len()];
        for id in plan.ids() {
            if let Some(subject) = plan.step(id).and_then(|step| step.subject) {
                of_subject[subject as usize].push(id);
            }
        }
        let mut run = Self {
            states: vec![State::Waiting; plan.len()],
            classes: vec![Class::Good; plan.len()],
            tries: vec![Tries::default(); plan.len()],
            tallies: Vec::new(),
            traces: BTreeMap::new(),
            given: BTreeMap::new(),
            carried: BTreeMap::new(),
            queues: Queues::new(draft),
            places: Places::new(draft),
            in_flight: BTreeSet::new(),
            shown: BTreeSet::new(),
            open: 0,
            of_subject,
            left_out: vec![false; draft.subjects.len()],
            failed: vec![BTreeSet::new(); draft.cohorts.len()],
            shut: vec![BTreeSet::new(); draft.cohorts.len()],
            paused: None,
            paused_subjects: vec![false; draft.subjects.len()],
            undecided: vec![0; draft.subjects.len()],
            held: BTreeSet::new(),
            stop_after: Vec::new(),
            asked: false,
            tripped: false,
            kills: false,
            breaker: Breaker::default(),
            outcome: None,
            seen: 0,
            plan,
        };
        run.count_anew();
        run
    }

    /// The run that these records are of.
    pub fn replay<'r>(
        plan: &Arc<Plan>,
        records: impl IntoIterator<Item = &'r Record>,
    ) -> Result<Self, ReplayError> {
        let mut run = Self::new(Arc::clone(plan));
        let mut records = records.into_iter();
        match records.next() {
            Some(Record::Plan { hash, at }) if hash == plan.hash() => run.look(*at),
            Some(Record::Plan { hash, .. }) => {
                let (ours, theirs) = (plan.hash().to_owned(), hash.clone());
                return Err(ReplayError::OtherPlan { ours, theirs });
            }
            Some(_) | None => return Err(ReplayError::NoPlan),
        }
        for (at, record) in (1..).zip(records) {
            run.follow(at, record)?;
        }
        Ok(run)
    }

    /// Takes the record of that number of the run's journal into account. It is durable already.
    pub fn follow(&mut self, number: usize, record: &Record) -> Result<(), ReplayError> {
        if !self.could_follow(record) {
            let record = format!("{record:?}");
            return Err(ReplayError::Impossible { at: number, record });
        }
        self.look(record.at());
        self.apply(record);
        Ok(())
    }

    pub fn plan(&self) -> &Arc<Plan> {
        &self.plan
    }

    pub fn state(&self, id: StepId) -> State {
        self.states[id.at()]
    }

    /// The last attempt of a step; 0 if there was none.
    pub fn attempt(&self, id: StepId) -> u32 {
        self.tries[id.at()].attempt
    }

    /// The memory of whoever elsewhere was given the last attempt of a step; nothing, if nobody was.
    pub fn given(&self, id: StepId) -> Option<&str> {
        self.given.get(&id).map(String::as_str)
    }

    /// Whether a step was ever begun, here or in the run that it was carried over from.
    pub fn was_begun(&self, id: StepId) -> bool {
        self.tries[id.at()].begun
    }

    /// Whether a step may have changed something, here or in the run that it was carried over from.
    pub fn left_traces(&self, id: StepId) -> bool {
        self.traces.contains_key(&id) || self.carried.contains_key(&id)
    }

    /// Attempts of a step that may have changed something, the last one first, here or in the run that
    /// it was carried over from. `run` is the name of this one. Nothing, if there are more than
    /// [`MAX_MADE`].
    pub fn made(&self, run: &str, id: StepId) -> Option<Vec<Made>> {
        let (own, carried) = (self.traces.get(&id), self.carried.get(&id));
        if own.map_or(0, Vec::len) + carried.map_or(0, Vec::len) > MAX_MADE {
            return None;
        }
        let own = own.into_iter().flatten().rev().map(|(attempt, receipt)| Made {
            attempt: attempt_id(run, id, *attempt),
            receipt: receipt.clone(),
            over_changes: false,
        });
        let mut room = MAX_RECEIPT;
        let fits = |made: Made| {
            let size = serde_json::to_vec(&made.receipt).map_or(usize::MAX, |bytes| bytes.len());
            let fits = size <= room;
            room -= if fits { size } else { 0 };
            if fits { made } else { Made { receipt: Value::Null, ..made } }
        };
        Some(own.chain(carried.into_iter().flatten().cloned()).map(fits).collect())
    }

    pub fn outcome(&self) -> Option<Outcome> {
        self.outcome
    }

    /// When something could start, if nothing happens before: it is tried again, or its window
    /// opens.
    pub fn wakes_at(&self) -> Option<u64> {
        let again = self.queues.delayed.first().map(|(at, _)| *at);
        let shut = self.queues.shut.iter().zip(&self.plan.draft().windows);
        let opens = shut
            .filter(|(waiting, _)| !waiting.is_empty())
            .map(|(_, window)| window.opens_at(self.seen));
        opens.chain(again).min()
    }

    /// Whether something is under way that will come to an end by itself.
    pub fn is_busy(&self) -> bool {
        !self.in_flight.is_empty()
    }

    /// So many steps have been begun, or looked at, and have not ended.
    pub(crate) fn under_way(&self) -> usize {
        self.in_flight.len()
    }

    /// Steps that are being looked at before they start. A run that only follows records does not
    /// know of them.
    pub fn checking(&self) -> impl Iterator<Item = StepId> {
        self.in_flight.iter().copied().filter(|id| self.state(*id) == State::Checking)
    }

    /// Lets a copy, which only follows the records and decides nothing, show what the run itself is
    /// looking at.
    pub fn show_checking(&mut self, of: &Self) {
        let shown: BTreeSet<StepId> = of.checking().collect();
        for id in std::mem::replace(&mut self.shown, shown) {
            if self.state(id) == State::Checking {
                self.states[id.at()] = of.state(id);
            }
        }
        for id in &self.shown {
            if matches!(self.states[id.at()], State::Ready | State::Delayed) {
                self.states[id.at()] = State::Checking;
            }
        }
    }

    /// Who or what said that nothing new starts, if it is so.
    pub fn paused_by(&self) -> Option<&str> {
        self.paused.as_deref()
    }

    /// Whether nothing new starts because somebody stopped it, or because too much failed.
    pub fn is_stopping(&self) -> bool {
        self.asked || self.tripped
    }

    /// Whether somebody stopped it at once, and not everything that was under way has ended.
    fn is_ending_all(&self) -> bool {
        self.kills && self.is_busy()
    }

    /// Whether nothing more of the step's cohort starts, because too much of it failed.
    pub fn is_shut(&self, id: StepId) -> bool {
        self.shut_by(id).next().is_some()
    }

    /// The steps whose failure shut a step's cohort.
    fn shut_by(&self, id: StepId) -> impl Iterator<Item = StepId> {
        let cohort = self.plan.step(id).and_then(|step| step.cohort);
        cohort.into_iter().flat_map(|at| &self.shut[at as usize]).copied()
    }

    /// Steps that were not begun because the failure of this one shut its cohort.
    pub fn shut_with(&self, id: StepId) -> impl Iterator<Item = StepId> {
        let cohort = self.plan.step(id).and_then(|step| step.cohort);
        let cohort = cohort.filter(|at| self.shut[*at as usize].contains(&id));
        cohort.into_iter().flat_map(|at| self.blocked_of(at))
    }

    fn blocked_of(&self, cohort: u32) -> impl Iterator<Item = StepId> {
        let is_of = move |id: &StepId| {
            self.plan.step(*id).is_some_and(|step| step.cohort == Some(cohort))
                && self.passes_on_loss(*id)
                && self.classes[id.at()] == Class::Bad
        };
        self.plan.ids().filter(is_of)
    }

    /// Steps that somebody wants to wait.
    pub fn held(&self) -> impl Iterator<Item = StepId> {
        self.held.iter().copied()
    }

    /// Steps whose end a person must tell.
    pub fn undecided(&self) -> impl Iterator<Item = StepId> {
        self.plan.ids().filter(|id| self.state(*id) == State::Unknown)
    }

    fn may_start(&self) -> bool {
        !self.is_stopping() && self.paused.is_none() && self.outcome.is_none()
    }

    /// Nothing runs, and nothing will.
    fn is_over(&self) -> bool {
        self.in_flight.is_empty() && (self.open == 0 || self.is_stopping())
    }

    fn comes_to(&self) -> Outcome {
        let (mut bad, mut stopped, mut interrupted) = (false, false, false);
        for id in self.plan.ids() {
            match self.state(id) {
                State::Ended(Ended::Failed(_) | Ended::Blocked) => {
                    let subject = self.plan.step(id).and_then(|step| step.subject);
                    bad |= !subject.is_some_and(|at| self.left_out[at as usize]);
                }
                State::Ended(Ended::Interrupted) => interrupted = true,
                State::Unknown => bad = true,
                State::Ended(Ended::Stopped | Ended::Undone) => stopped = true,
                _ => {}
            }
        }
        // What was stopped by failures has failed, whoever stops it besides.
        if self.tripped {
            Outcome::Failed
        } else if self.asked && (self.open > 0 || stopped || interrupted) {
            Outcome::Stopped
        } else if bad || interrupted || self.fails_strictly() {
            Outcome::Failed
        } else if stopped {
            Outcome::Stopped
        } else if self.left_out.contains(&true) {
            Outcome::Degraded
        } else {
            Outcome::Succeeded
        }
    }

    fn fails_strictly(&self) -> bool {
        let cohorts = self.plan.draft().cohorts.iter().zip(&self.failed);
        cohorts.into_iter().any(|(cohort, failed)| cohort.is_strict && !failed.is_empty())
    }

    /// Whether what failed so far stops the run.
    fn is_tripped(&self) -> bool {
        self.plan.ids().any(|id| {
            matches!(self.state(id), State::Ended(Ended::Failed(_)))
                && !self.is_shut(id)
                && self.classes[id.at()] == Class::Bad
                && self.step(id).on_failure == OnFailure::Stop
        })
    }

    fn step(&self, id: StepId) -> &Step {
        self.plan.step(id).expect("only steps start")
    }
}
