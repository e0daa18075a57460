//! The state of a run, and the decisions that follow from it.
//!
//! The state is a fold over the records of the journal ([`Run::apply`]); nothing else changes it,
//! so a run that is read back equals the run that wrote the journal. [`Run::on`] answers an event
//! with records and effects. The caller must make all records durable before it carries out any
//! effect. This guarantees that an intent is durable before its act, and a result before any
//! consequence.
//!
//! Clocks, files, threads and processes do not belong here.

mod breaker;
mod command;
mod decide;
mod event;
mod explanation;
mod fold;
mod propagation;
mod queues;
mod reopen;
mod slots;
mod snapshot;
mod stop_after;
mod tally;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::Value;

use crate::plan::{AppliedAttempt, OnFailure, Plan, Step, StepId};
use crate::record::{FailureKind, MAX_RECEIPT, Outcome, Record, attempt_id};

use breaker::Breaker;
use queues::Queues;
use slots::Slots;
use stop_after::StopAfter;
use tally::{Class, Tally};

pub use command::CommandRefusal;
pub use event::{AttemptStatus, Decision, Effect, Event};
pub use explanation::Reason;
pub use snapshot::Snapshot;

/// Largest number of attempts of one step that can be undone. Their receipts share the size limit
/// of one receipt; the oldest attempts lose theirs.
pub const MAX_APPLIED: usize = 1000;

/// The state of a vertex.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// A vertex before it has not ended.
    Waiting,
    /// The vertex could start; a limit, window or pause may hold it back.
    Ready,
    /// The preconditions are being checked. This is not in the journal, because the check can be
    /// repeated.
    Checking,
    Running,
    Verifying,
    /// The outcome of the attempt is unknown; its postconditions are being checked.
    VerifyingLost,
    /// An attempt failed; the next one is scheduled.
    Delayed,
    /// The outcome of the attempt is unknown; a person decides.
    Unknown,
    Ended(StepEnd),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StepEnd {
    Ok,
    /// The step was done already.
    Unchanged,
    /// The step failed, and its failure is ignored.
    Ignored,
    Skipped,
    Failed(FailureKind),
    /// A vertex before it did not succeed.
    Blocked,
    /// The subject of the step is left out.
    LeftOut,
    /// The run was stopped before the step started.
    Stopped,
    Interrupted,
    /// The step succeeded, and another run has undone it.
    Undone,
}

impl StepEnd {
    pub fn is_good(self) -> bool {
        matches!(self, Self::Ok | Self::Unchanged | Self::Ignored | Self::Skipped)
    }
}

/// Why records do not belong to a plan.
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

/// The attempts of a step.
#[derive(Debug, Clone, Copy, Default)]
struct Tries {
    /// Number of the last attempt; 0 before the first.
    attempt: u32,
    /// Failed attempts since the run was last resumed.
    failures: u32,
    /// Failed preconditions since the run was last resumed.
    refusals: u32,
    /// When the next attempt is due, if the step is delayed.
    due: u64,
    /// Whether the last attempt changed anything.
    changed: bool,
    /// Whether an attempt ever began, here or in the run that the step was carried over from.
    begun: bool,
}

#[derive(Debug, Clone)]
pub struct Run {
    plan: Arc<Plan>,
    states: Vec<State>,
    /// The meaning of each vertex's end for its successors; valid only after the end.
    classes: Vec<Class>,
    tries: Vec<Tries>,
    tallies: Vec<Tally>,
    /// Attempts that may have left changes, in order, each with its receipt: all except those that
    /// reported no change.
    traces: BTreeMap<StepId, Vec<(u32, Value)>>,
    /// The memory that the last attempt of a step was handed out to, for steps on other machines.
    given: BTreeMap<StepId, String>,
    /// Attempts of carried-over steps that may have left changes, the newest first.
    carried: BTreeMap<StepId, Vec<AppliedAttempt>>,
    queues: Queues,
    slots: Slots,
    in_flight: BTreeSet<StepId>,
    /// In a copy: the steps that the original run is checking.
    shown: BTreeSet<StepId>,
    /// Number of vertices that have not ended.
    open: usize,
    of_subject: Vec<Vec<StepId>>,
    left_out: Vec<bool>,
    /// The failed subjects of each failure domain.
    failed: Vec<BTreeSet<u32>>,
    /// The failed steps that shut each failure domain; no more steps of a shut domain start.
    shut: Vec<BTreeSet<StepId>>,
    /// Who paused the run, if it is paused.
    paused: Option<String>,
    paused_subjects: Vec<bool>,
    /// Number of steps with unknown outcome, for each subject.
    undecided: Vec<u32>,
    /// Steps that are on hold.
    held: BTreeSet<StepId>,
    stop_after: Vec<StopAfter>,
    /// The run was told to stop: no new step starts.
    asked: bool,
    /// Too many steps failed: no new step starts.
    tripped: bool,
    /// The run was told to stop at once: running attempts are killed.
    kills: bool,
    breaker: Breaker,
    outcome: Option<Outcome>,
    /// The time of the newest record or event.
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
            slots: Slots::new(draft),
            in_flight: BTreeSet::new(),
            shown: BTreeSet::new(),
            open: 0,
            of_subject,
            left_out: vec![false; draft.subjects.len()],
            failed: vec![BTreeSet::new(); draft.failure_domains.len()],
            shut: vec![BTreeSet::new(); draft.failure_domains.len()],
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
        run.recount();
        run
    }

    /// Replays the records of a journal.
    pub fn replay<'r>(
        plan: &Arc<Plan>,
        records: impl IntoIterator<Item = &'r Record>,
    ) -> Result<Self, ReplayError> {
        let mut run = Self::new(Arc::clone(plan));
        let mut records = records.into_iter();
        match records.next() {
            Some(Record::Plan { hash, at }) if hash == plan.hash() => run.set_time(*at),
            Some(Record::Plan { hash, .. }) => {
                let ours = plan.hash().to_owned();
                let theirs = hash.clone();
                return Err(ReplayError::OtherPlan { ours, theirs });
            }
            Some(_) | None => return Err(ReplayError::NoPlan),
        }
        for (at, record) in (1..).zip(records) {
            run.follow(at, record)?;
        }
        Ok(run)
    }

    /// Applies the durable record with this number in the journal.
    pub fn follow(&mut self, number: usize, record: &Record) -> Result<(), ReplayError> {
        if !self.could_follow(record) {
            let record = format!("{record:?}");
            return Err(ReplayError::Impossible { at: number, record });
        }
        self.set_time(record.at());
        self.apply(record);
        Ok(())
    }

    pub fn plan(&self) -> &Arc<Plan> {
        &self.plan
    }

    pub fn state(&self, id: StepId) -> State {
        self.states[id.at()]
    }

    /// Number of the last attempt of a step; 0 before the first.
    pub fn attempt(&self, id: StepId) -> u32 {
        self.tries[id.at()].attempt
    }

    /// The memory that the last attempt of a step was handed out to; `None` if it was not handed
    /// out.
    pub fn given(&self, id: StepId) -> Option<&str> {
        self.given.get(&id).map(String::as_str)
    }

    /// Whether an attempt of the step ever began, here or in the run that it was carried over from.
    pub fn was_begun(&self, id: StepId) -> bool {
        self.tries[id.at()].begun
    }

    /// Whether the step may have left changes, here or in the run that it was carried over from.
    pub fn left_traces(&self, id: StepId) -> bool {
        self.traces.contains_key(&id) || self.carried.contains_key(&id)
    }

    /// The attempts of a step that may have left changes, the newest first, here or in the run that
    /// the step was carried over from. `run` is the name of this run. `None` if there are more than
    /// [`MAX_APPLIED`].
    pub fn applied(&self, run: &str, id: StepId) -> Option<Vec<AppliedAttempt>> {
        let own = self.traces.get(&id);
        let carried = self.carried.get(&id);
        if own.map_or(0, Vec::len) + carried.map_or(0, Vec::len) > MAX_APPLIED {
            return None;
        }
        let own = own.into_iter().flatten().rev().map(|(attempt, receipt)| AppliedAttempt {
            attempt: attempt_id(run, id, *attempt),
            receipt: receipt.clone(),
            over_changes: false,
        });
        let mut room = MAX_RECEIPT;
        let fits = |made: AppliedAttempt| {
            let size = serde_json::to_vec(&made.receipt).map_or(usize::MAX, |bytes| bytes.len());
            let fits = size <= room;
            room -= if fits { size } else { 0 };
            if fits { made } else { AppliedAttempt { receipt: Value::Null, ..made } }
        };
        Some(own.chain(carried.into_iter().flatten().cloned()).map(fits).collect())
    }

    pub fn outcome(&self) -> Option<Outcome> {
        self.outcome
    }

    /// The next time at which a step could start without an event: a delayed attempt is due, or a
    /// window opens.
    pub fn wakes_at(&self) -> Option<u64> {
        let again = self.queues.delayed.first().map(|(at, _)| *at);
        let shut = self.queues.shut.iter().zip(&self.plan.draft().windows);
        let opens = shut
            .filter(|(waiting, _)| !waiting.is_empty())
            .map(|(_, window)| window.opens_at(self.seen));
        opens.chain(again).min()
    }

    /// Whether any work runs that will end by itself.
    pub fn is_busy(&self) -> bool {
        !self.in_flight.is_empty()
    }

    /// Number of steps that run or are being checked.
    pub(crate) fn under_way(&self) -> usize {
        self.in_flight.len()
    }

    /// Steps whose preconditions are being checked. A run that only follows records does not know
    /// them.
    pub fn checking(&self) -> impl Iterator<Item = StepId> {
        self.in_flight.iter().copied().filter(|id| self.state(*id) == State::Checking)
    }

    /// Shows the checks of the original run in a copy that only follows the records.
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

    /// Who or which rule paused the run, if it is paused.
    pub fn paused_by(&self) -> Option<&str> {
        self.paused.as_deref()
    }

    /// Whether no new step starts because the run was told to stop, or because too many steps
    /// failed.
    pub fn is_stopping(&self) -> bool {
        self.asked || self.tripped
    }

    /// Whether the run was told to stop at once and some attempts still run.
    fn is_ending_all(&self) -> bool {
        self.kills && self.is_busy()
    }

    /// Whether the failure domain of the step is shut, because too many of its subjects failed.
    pub fn is_shut(&self, id: StepId) -> bool {
        self.shut_by(id).next().is_some()
    }

    /// The failed steps that shut the failure domain of a step.
    fn shut_by(&self, id: StepId) -> impl Iterator<Item = StepId> {
        let failure_domain = self.plan.step(id).and_then(|step| step.failure_domain);
        failure_domain.into_iter().flat_map(|at| &self.shut[at as usize]).copied()
    }

    /// Steps that did not start because the failure of this one shut their failure domain.
    pub fn shut_with(&self, id: StepId) -> impl Iterator<Item = StepId> {
        let failure_domain = self.plan.step(id).and_then(|step| step.failure_domain);
        let failure_domain = failure_domain.filter(|at| self.shut[*at as usize].contains(&id));
        failure_domain.into_iter().flat_map(|at| self.blocked_of(at))
    }

    fn blocked_of(&self, failure_domain: u32) -> impl Iterator<Item = StepId> {
        let is_of = move |id: &StepId| {
            self.plan.step(*id).is_some_and(|step| step.failure_domain == Some(failure_domain))
                && self.passes_on_loss(*id)
                && self.classes[id.at()] == Class::Bad
        };
        self.plan.ids().filter(is_of)
    }

    /// Steps that are on hold.
    pub fn held(&self) -> impl Iterator<Item = StepId> {
        self.held.iter().copied()
    }

    /// Steps with unknown outcome, which a person must decide.
    pub fn undecided(&self) -> impl Iterator<Item = StepId> {
        self.plan.ids().filter(|id| self.state(*id) == State::Unknown)
    }

    fn may_start(&self) -> bool {
        !self.is_stopping() && self.paused.is_none() && self.outcome.is_none()
    }

    /// Nothing runs, and nothing will start.
    fn is_over(&self) -> bool {
        self.in_flight.is_empty() && (self.open == 0 || self.is_stopping())
    }

    fn compute_outcome(&self) -> Outcome {
        let mut bad = false;
        let mut stopped = false;
        let mut interrupted = false;
        for id in self.plan.ids() {
            match self.state(id) {
                State::Ended(StepEnd::Failed(_) | StepEnd::Blocked) => {
                    let subject = self.plan.step(id).and_then(|step| step.subject);
                    bad |= !subject.is_some_and(|at| self.left_out[at as usize]);
                }
                State::Ended(StepEnd::Interrupted) => interrupted = true,
                State::Unknown => bad = true,
                State::Ended(StepEnd::Stopped | StepEnd::Undone) => stopped = true,
                _ => {}
            }
        }
        // A run that was stopped by failures has failed, even if a person stops it as well.
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
        let failure_domains = self.plan.draft().failure_domains.iter().zip(&self.failed);
        failure_domains
            .into_iter()
            .any(|(failure_domain, failed)| failure_domain.is_strict && !failed.is_empty())
    }

    /// Whether the failures so far stop the run.
    fn is_tripped(&self) -> bool {
        self.plan.ids().any(|id| {
            matches!(self.state(id), State::Ended(StepEnd::Failed(_)))
                && !self.is_shut(id)
                && self.classes[id.at()] == Class::Bad
                && self.step(id).on_failure == OnFailure::Stop
        })
    }

    fn step(&self, id: StepId) -> &Step {
        self.plan.step(id).expect("only steps start")
    }
}
