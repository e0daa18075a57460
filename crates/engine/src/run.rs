//! A run: what is known of every step, and what follows from it.
//!
//! The state is what the records of the journal come to ([`Run::apply`]), and nothing else changes
//! it, so a run that is read back is the run that was. [`Run::on`] answers what happens with records
//! and effects. Whoever calls it keeps all of the records before it acts on any effect: an intent is
//! then durable before the act, and a result before anything that follows from it.

mod ends;
mod fold;
mod tally;

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::plan::{Plan, Step, StepId};
use crate::record::{End, FailureKind, Outcome, Record};

use tally::Tally;

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
}

impl Ended {
    pub fn is_good(self) -> bool {
        matches!(self, Self::Ok | Self::Unchanged | Self::Ignored | Self::Skipped)
    }
}

/// What happens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// Time went by, or the run begins.
    Tick,
    /// What was looked at before a step: `None` if all of it holds.
    Checked {
        step: StepId,
        attempt: u32,
        refused: Option<String>,
    },
    Ran {
        step: StepId,
        attempt: u32,
        end: End,
    },
    /// What was looked at after a step.
    Verified {
        step: StepId,
        attempt: u32,
        holds: bool,
        reason: String,
    },
    /// What became of an attempt that was asked after.
    Found {
        step: StepId,
        attempt: u32,
        found: Found,
    },
    Stop {
        now: bool,
        by: String,
    },
    Resume {
        by: String,
    },
    Pause {
        subject: Option<u32>,
        paused: bool,
        by: String,
    },
    Mark {
        step: StepId,
        good: bool,
        by: String,
    },
}

/// What whoever executes knows of an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found {
    /// It was never told of it.
    Never,
    Running,
    Ended(End),
    /// It was told, and does not know any more.
    Gone,
}

/// What is to be done now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// Look whether the step may start.
    Check {
        step: StepId,
        attempt: u32,
    },
    Start {
        step: StepId,
        attempt: u32,
    },
    /// Look whether the step is done.
    Verify {
        step: StepId,
        attempt: u32,
    },
    /// Ask what became of an attempt.
    Ask {
        step: StepId,
        attempt: u32,
    },
    Kill {
        step: StepId,
        attempt: u32,
    },
}

/// Records to keep, and then what to do.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Decision {
    pub records: Vec<Record>,
    pub effects: Vec<Effect>,
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
}

#[derive(Debug, Clone, Copy, Default)]
struct Tries {
    /// The last attempt; 0 if there was none.
    attempt: u32,
    /// Since the run was last resumed.
    failures: u32,
    /// Whether the last attempt changed anything.
    changed: bool,
    /// Whether it has its places in the pools.
    holds: bool,
}

#[derive(Debug, Clone)]
pub struct Run {
    plan: Arc<Plan>,
    states: Vec<State>,
    tries: Vec<Tries>,
    tallies: Vec<Tally>,
    /// Ranks of what could start.
    ready: BTreeSet<u32>,
    /// For each pool, ranks of what waits for a place in it.
    parked: Vec<BTreeSet<u32>>,
    /// Ranks of what waits for its subject.
    held: BTreeSet<u32>,
    /// When, and the rank of what is tried again then.
    delayed: BTreeSet<(u64, u32)>,
    used: Vec<u32>,
    in_flight: usize,
    /// Vertices that have not come to an end.
    open: usize,
    of_subject: Vec<Vec<StepId>>,
    left_out: Vec<bool>,
    /// Subjects that failed, for each cohort.
    failed: Vec<u32>,
    paused: bool,
    paused_subjects: Vec<bool>,
    stop: Option<Stop>,
    outcome: Option<Outcome>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stop {
    /// Somebody said so.
    Asked,
    /// More failed than may.
    Tripped,
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
            tries: vec![Tries::default(); plan.len()],
            tallies: plan.ids().map(|id| Tally::of(plan.vertex(id))).collect(),
            ready: BTreeSet::new(),
            parked: vec![BTreeSet::new(); draft.pools.len()],
            held: BTreeSet::new(),
            delayed: BTreeSet::new(),
            used: vec![0; draft.pools.len()],
            in_flight: 0,
            open: plan.len(),
            of_subject,
            left_out: vec![false; draft.subjects.len()],
            failed: vec![0; draft.cohorts.len()],
            paused: false,
            paused_subjects: vec![false; draft.subjects.len()],
            stop: None,
            outcome: None,
            plan,
        };
        run.begin();
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
            Some(Record::Plan { hash, .. }) if hash == plan.hash() => {}
            Some(Record::Plan { hash, .. }) => {
                let (ours, theirs) = (plan.hash().to_owned(), hash.clone());
                return Err(ReplayError::OtherPlan { ours, theirs });
            }
            Some(_) | None => return Err(ReplayError::NoPlan),
        }
        for (at, record) in records.enumerate() {
            if !run.could_follow(record) {
                let record = format!("{record:?}");
                return Err(ReplayError::Impossible { at: at + 1, record });
            }
            run.apply(record);
        }
        Ok(run)
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

    pub fn outcome(&self) -> Option<Outcome> {
        self.outcome
    }

    /// When something is to be tried again, if nothing happens before.
    pub fn wakes_at(&self) -> Option<u64> {
        self.delayed.first().map(|(at, _)| *at)
    }

    /// Whether something is under way that will come to an end by itself.
    pub fn is_busy(&self) -> bool {
        self.in_flight > 0
    }

    /// Steps whose end a person must tell.
    pub fn undecided(&self) -> impl Iterator<Item = StepId> {
        self.plan.ids().filter(|id| self.state(*id) == State::Unknown)
    }

    /// What to do after the records were read back: ask after what ran, and look again at what was
    /// being looked at.
    pub fn recover(&mut self, now: u64) -> Decision {
        let mut decision = Decision::default();
        for step in self.plan.ids() {
            let attempt = self.attempt(step);
            match self.state(step) {
                State::Running => decision.effects.push(Effect::Ask { step, attempt }),
                State::Verifying | State::VerifyingLost => {
                    decision.effects.push(Effect::Verify { step, attempt });
                }
                _ => {}
            }
        }
        self.go_on(now, &mut decision);
        decision
    }

    /// What follows from what happens. What does not fit, because it is told twice or late, has no
    /// consequence.
    pub fn on(&mut self, event: Event, now: u64) -> Decision {
        let mut decision = Decision::default();
        match event {
            Event::Tick => {}
            Event::Checked { step, attempt, refused } => {
                self.on_checked(step, attempt, refused, now, &mut decision);
            }
            Event::Ran { step, attempt, end } => {
                self.keep(Record::Ran { step, attempt, end, at: now }, &mut decision);
                self.look_at(step, &mut decision);
            }
            Event::Verified { step, attempt, holds, reason } => {
                let record = Record::Verified { step, attempt, holds, reason, at: now };
                self.keep(record, &mut decision);
            }
            Event::Found { step, attempt, found } => {
                self.on_found(step, attempt, found, now, &mut decision);
            }
            Event::Stop { now: at_once, by } => {
                self.keep(Record::Stop { now: at_once, by, at: now }, &mut decision);
                if at_once {
                    let running = self.plan.ids().filter(|id| self.state(*id) == State::Running);
                    let kill = |step| Effect::Kill { step, attempt: self.attempt(step) };
                    decision.effects.extend(running.map(kill));
                }
            }
            Event::Resume { by } => self.keep(Record::Resume { by, at: now }, &mut decision),
            Event::Pause { subject, paused, by } => {
                self.keep(Record::Pause { subject, paused, by, at: now }, &mut decision);
            }
            Event::Mark { step, good, by } => {
                self.keep(Record::Marked { step, good, by, at: now }, &mut decision);
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
        match refused {
            Some(reason) => {
                self.keep(Record::Refused { step, attempt, reason, at: now }, decision);
            }
            // Meanwhile nothing shall start any more.
            None if !self.may_start() => {
                self.release(step);
                self.make_ready(step);
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
            Found::Running => {}
            // The intent is durable; the attempt is the same one.
            Found::Never => decision.effects.push(Effect::Start { step, attempt }),
            Found::Ended(end) => {
                self.keep(Record::Ran { step, attempt, end, at: now }, decision);
                self.look_at(step, decision);
            }
            Found::Gone => {
                self.keep(Record::Lost { step, attempt, at: now }, decision);
                self.look_at(step, decision);
            }
        }
    }

    /// Starts what can start, and ends the run when nothing is left.
    fn go_on(&mut self, now: u64, decision: &mut Decision) {
        while let Some((at, rank)) = self.delayed.first().copied().filter(|(at, _)| *at <= now) {
            self.delayed.remove(&(at, rank));
            self.make_ready(self.plan.ranked(rank));
        }
        while self.may_start() {
            let Some(rank) = self.ready.pop_first() else { break };
            let step = self.plan.ranked(rank);
            if self.step(step).subject.is_some_and(|at| self.paused_subjects[at as usize]) {
                self.held.insert(rank);
            } else if let Some(pool) = self.full_pool(step) {
                self.parked[pool].insert(rank);
                self.pass_on(step);
            } else {
                self.take(step);
                if self.step(step).before.is_empty() {
                    self.start(step, now, decision);
                } else {
                    self.states[step.at()] = State::Checking;
                    let attempt = self.attempt(step) + 1;
                    decision.effects.push(Effect::Check { step, attempt });
                }
            }
        }
        if self.outcome.is_none() && self.is_over() {
            let outcome = self.comes_to();
            self.keep(Record::Finished { outcome, at: now }, decision);
        }
    }

    fn start(&mut self, step: StepId, now: u64, decision: &mut Decision) {
        let attempt = self.attempt(step) + 1;
        self.keep(Record::Intent { step, attempt, at: now }, decision);
        decision.effects.push(Effect::Start { step, attempt });
    }

    /// What an attempt's end asks for.
    fn look_at(&self, step: StepId, decision: &mut Decision) {
        if matches!(self.state(step), State::Verifying | State::VerifyingLost) {
            let attempt = self.attempt(step);
            let verify = Effect::Verify { step, attempt };
            if !decision.effects.contains(&verify) {
                decision.effects.push(verify);
            }
        }
    }

    /// Applies a record that fits, and gives it out to be kept.
    fn keep(&mut self, record: Record, decision: &mut Decision) {
        if self.could_follow(&record) {
            self.apply(&record);
            decision.records.push(record);
        }
    }

    fn may_start(&self) -> bool {
        self.stop.is_none() && !self.paused && self.outcome.is_none()
    }

    /// Nothing runs, and nothing will.
    fn is_over(&self) -> bool {
        self.in_flight == 0 && (self.open == 0 || self.stop.is_some())
    }

    fn comes_to(&self) -> Outcome {
        let mut bad = false;
        for id in self.plan.ids() {
            bad |= match self.state(id) {
                State::Ended(Ended::Failed(_) | Ended::Blocked) => {
                    let subject = self.plan.step(id).and_then(|step| step.subject);
                    !subject.is_some_and(|at| self.left_out[at as usize])
                }
                State::Ended(Ended::Interrupted) | State::Unknown => true,
                _ => false,
            };
        }
        match self.stop {
            Some(Stop::Tripped) => Outcome::Failed,
            Some(Stop::Asked) if self.open > 0 => Outcome::Stopped,
            _ if bad => Outcome::Failed,
            _ if self.left_out.contains(&true) => Outcome::Degraded,
            _ => Outcome::Succeeded,
        }
    }

    fn step(&self, id: StepId) -> &Step {
        self.plan.step(id).expect("only steps start")
    }
}
