//! The controller's half of [`super`]: the work of each machine, the stage of each job, and the
//! exchange of reports and orders. The dispatcher decides nothing about a run: it translates
//! effects of a run into jobs, and reports of machines into events of that run.
//!
//! Does not belong here: transport of the messages, and decisions about a run (`run`).

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::{MAX_JOBS, MAX_MEMORY, Orders, WorkId, WorkResult, WorkerReport};
use crate::drive::{Executor, Journal};
use crate::execute::{DryRunResult, Job, JobKind, JobOutcome, Outputs, PredictionError};
use crate::journal::JournalError;
use crate::plan::{Plan, StepId};
use crate::record::{End, Record, attempt_id};
use crate::run::{AttemptStatus, Effect, Event, Run};

/// Interval of the search for lost machines.
const TICK: Duration = Duration::from_secs(1);

/// Unknown run names that are remembered until [`Dispatcher::unknown_runs`] is called. Names beyond
/// this limit are dropped; the machines report them again.
const MAX_UNKNOWN_RUNS: usize = 10_000;

type Waker = Box<dyn Fn(&str) + Send + Sync>;

/// The point where machines fetch their work. One dispatcher serves all runs of a controller.
pub struct Dispatcher {
    state: Mutex<State>,
    lost_after: Duration,
    /// Called with the name of a machine that has new orders.
    waker: Waker,
}

struct State {
    runs: HashMap<String, Connection>,
    machines: HashMap<String, Machine>,
    /// Whether every run of earlier controllers is open again. From then on, work of an unknown run
    /// belongs to no run and is dropped.
    is_complete: bool,
    /// Runs that machines named and that are not open here, since the last call of
    /// [`Dispatcher::unknown_runs`].
    unknown_runs: BTreeSet<String>,
    /// Runs that no controller has.
    disowned: BTreeSet<String>,
}

struct Connection {
    events: Sender<Event>,
    outputs: Outputs,
    /// Receives the dry-run results, where the connection is a dry run.
    predicted: Option<Sender<DryRunResult>>,
}

#[derive(Default)]
struct Machine {
    memory: String,
    /// Earlier memories of this machine. Their reports are ignored.
    former: Vec<String>,
    /// Life and number of the newest report.
    newest: (u64, u64),
    heard: Option<Instant>,
    /// Actions that the machine reported; empty if it reported none.
    actions: BTreeSet<String>,
    work: BTreeMap<WorkId, Work>,
    kill: BTreeSet<WorkId>,
}

struct Work {
    number: StepId,
    attempt: u32,
    what: JobKind,
    stage: Stage,
    since: Instant,
}

enum Stage {
    /// Not offered to the machine.
    Waits(Box<Job>),
    /// Reserved for the machine with this memory; handed out once the journal has the `Given`
    /// record.
    Offered(Box<Job>, String),
    /// Handed out to the machine with this memory. The orders may have been lost on the way.
    Given(Box<Job>, String),
    /// Handed out to the machine with this memory by an earlier controller. The next report tells
    /// the state.
    Asked(String),
    /// The machine reported that the work runs.
    Runs,
    /// The run has the result, its journal does not yet. The machine must keep the result.
    Reported,
    /// The journal has the result; the machine may forget it.
    Recorded,
}

impl std::fmt::Debug for Dispatcher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Dispatcher").field("lost_after", &self.lost_after).finish_non_exhaustive()
    }
}

impl Dispatcher {
    /// `waker` is called with the name of a machine when new orders wait for it.
    pub fn new(lost_after: Duration, waker: impl Fn(&str) + Send + Sync + 'static) -> Arc<Self> {
        let state = State {
            runs: HashMap::new(),
            machines: HashMap::new(),
            is_complete: false,
            unknown_runs: BTreeSet::new(),
            disowned: BTreeSet::new(),
        };
        Arc::new(Self { state: Mutex::new(state), lost_after, waker: Box::new(waker) })
    }

    /// Starts a thread that searches for lost machines every second. The thread ends with the
    /// dispatcher.
    pub fn keep_watch(self: &Arc<Self>) -> std::io::Result<()> {
        let dispatcher = Arc::downgrade(self);
        let watch = move || {
            while let Some(dispatcher) = dispatcher.upgrade() {
                dispatcher.tick(Instant::now());
                drop(dispatcher);
                std::thread::sleep(TICK);
            }
        };
        std::thread::Builder::new().name("dispatcher".to_owned()).spawn(watch).map(|_| ())
    }

    /// Opens a run, so that machines can work for it.
    ///
    /// `begun` names the attempts that were begun before, each with the memory it was handed out
    /// to. The machines are asked about them at once, so no report is missed if it arrives before
    /// the run emits [`Effect::Ask`]. An attempt without a memory was never handed out, so it never
    /// began.
    pub fn open(
        self: &Arc<Self>,
        run: &str,
        events: Sender<Event>,
        outputs: Outputs,
        plan: &Plan,
        begun: BTreeMap<(StepId, u32), Option<String>>,
    ) -> DispatcherRun {
        let mut state = self.state.lock();
        for ((step, attempt), given) in &begun {
            let id = WorkId::new(&attempt_id(run, *step, *attempt), JobKind::Start);
            let machine = plan.subject(*step);
            if let Some(memory) = given {
                state.ask(machine, id, *step, *attempt, memory);
                continue;
            }
            state.withdraw(machine, &id);
            // The caller holds the receiving end.
            let _ = events.send(Event::Found {
                step: *step,
                attempt: *attempt,
                found: AttemptStatus::Never,
            });
        }
        state.runs.insert(run.to_owned(), Connection { events, outputs, predicted: None });
        let begun = begun.into_keys().collect();
        DispatcherRun { dispatcher: Arc::clone(self), run: run.to_owned(), asked: begun }
    }

    /// Closes a run that has ended: machines may forget its results, and must stop its remaining
    /// work.
    pub fn close(&self, run: &str) {
        let mut state = self.state.lock();
        state.runs.remove(run);
        for machine in state.machines.values_mut() {
            machine.work.retain(|id, _| id.run() != run);
        }
    }

    /// Declares that every run of earlier controllers is open. From now on the work of other runs
    /// is dropped.
    pub fn complete(&self) {
        self.state.lock().is_complete = true;
    }

    /// Takes the names of runs that machines reported and that are not open here. Another
    /// controller may have them.
    pub fn unknown_runs(&self) -> BTreeSet<String> {
        std::mem::take(&mut self.state.lock().unknown_runs)
    }

    /// Replaces the set of runs that no controller has. Work of these runs is dropped.
    pub fn disown(&self, runs: BTreeSet<String>) {
        self.state.lock().disowned = runs;
    }

    /// Takes the report of a machine and returns its orders. The caller may hand in the same report
    /// again while it holds back an answer without orders. A report whose memory name is longer
    /// than [`MAX_MEMORY`] is ignored, because a journal could not record it.
    pub fn exchange(&self, machine: &str, report: &WorkerReport, now: Instant) -> Orders {
        if report.memory.len() > MAX_MEMORY {
            return Orders::default();
        }
        self.state.lock().exchange(machine, report, now)
    }

    /// Whether work is reserved for the machine and waits only for a journal.
    pub fn has_offers(&self, machine: &str) -> bool {
        let state = self.state.lock();
        let is_offered = |work: &Work| matches!(work.stage, Stage::Offered(..));
        state.machines.get(machine).is_some_and(|machine| machine.work.values().any(is_offered))
    }

    /// Sends dry-run jobs to their machines. The caller must [`Dispatcher::close`] the name when it
    /// has enough results.
    pub fn predict(&self, name: &str, jobs: Vec<Job>, predicted: Sender<DryRunResult>) {
        let events = channel().0;
        let outputs = Outputs::none();
        let machines: BTreeSet<String> = jobs.iter().map(|job| job.subject.clone()).collect();
        let mut state = self.state.lock();
        let connection = Connection { events, outputs, predicted: Some(predicted) };
        state.runs.insert(name.to_owned(), connection);
        for job in jobs {
            let machine = job.subject.clone();
            state.give(&machine, job);
        }
        drop(state);
        for machine in &machines {
            (self.waker)(machine);
        }
    }

    /// Whether the machine reported its actions and this one is not among them.
    pub fn lacks(&self, machine: &str, action: &str) -> bool {
        let state = self.state.lock();
        let known = state.machines.get(machine).map(|machine| &machine.actions);
        known.is_some_and(|actions| !actions.is_empty() && !actions.contains(action))
    }

    /// When the machine last reported.
    pub fn heard(&self, machine: &str) -> Option<Instant> {
        self.state.lock().machines.get(machine)?.heard
    }

    /// Whether there is any work for the machine.
    pub(crate) fn has_work(&self, machine: &str) -> bool {
        self.state.lock().machines.get(machine).is_some_and(|machine| !machine.work.is_empty())
    }

    /// Gives up work on machines that have not reported for too long.
    pub fn tick(&self, now: Instant) {
        let lost_after = self.lost_after;
        let mut state = self.state.lock();
        let State { runs, machines, .. } = &mut *state;
        for (name, machine) in machines {
            let heard = machine.heard;
            let is_lost = |work: &Work| {
                let since = heard.map_or(work.since, |heard| heard.max(work.since));
                now.saturating_duration_since(since) >= lost_after
            };
            let reason = format!("`{name}` has not reported for {} s", lost_after.as_secs());
            machine.give_up(runs, &reason, is_lost);
        }
    }

    /// Gives up the work of a machine that cannot be reached; without `also_begun` only work that
    /// the machine cannot have begun, and checks.
    pub(crate) fn give_up(&self, machine: &str, reason: &str, also_begun: bool) {
        let mut state = self.state.lock();
        let State { runs, machines, .. } = &mut *state;
        let Some(machine) = machines.get_mut(machine) else { return };
        let is_new = |work: &Work| matches!(work.stage, Stage::Waits(_) | Stage::Offered(..));
        machine.give_up(runs, reason, |work| {
            also_begun || is_new(work) || work.what != JobKind::Start
        });
    }

    fn carry_out(&self, run: &str, plan: &Plan, effect: Effect) {
        let (step, attempt) = effect.target();
        let machine = plan.subject(step).to_owned();
        let mut state = self.state.lock();
        if let Some(job) = Job::of(run, plan, effect) {
            state.give(&machine, job);
        } else {
            let id = |what| WorkId::new(&attempt_id(run, step, attempt), what);
            if matches!(effect, Effect::Ask { .. }) {
                // The memory is unknown, so a machine that does not hold the work cannot prove that
                // it never began.
                state.ask(&machine, id(JobKind::Start), step, attempt, "");
            } else {
                for what in [JobKind::Check, JobKind::Start, JobKind::Verify] {
                    state.kill(&machine, &id(what));
                }
            }
        }
        drop(state);
        (self.waker)(&machine);
    }

    fn on_recorded(&self, run: &str, plan: &Plan, record: &Record) {
        let (step, attempt, what) = match record {
            Record::Given { step, attempt, .. }
            | Record::Ran { step, attempt, .. }
            | Record::Lost { step, attempt, .. } => (*step, *attempt, JobKind::Start),
            Record::Refused { step, attempt, .. } | Record::Intent { step, attempt, .. } => {
                (*step, *attempt, JobKind::Check)
            }
            Record::Verified { step, attempt, .. } => (*step, *attempt, JobKind::Verify),
            _ => return,
        };
        let id = WorkId::new(&attempt_id(run, step, attempt), what);
        let mut state = self.state.lock();
        let machine = plan.subject(step);
        let work = state.machines.get_mut(machine).and_then(|machine| machine.work.get_mut(&id));
        let Some(work) = work else { return };
        match (&work.stage, record) {
            (Stage::Offered(job, memory), Record::Given { to, .. }) if memory == to => {
                work.stage = Stage::Given(job.clone(), memory.clone());
                drop(state);
                (self.waker)(machine);
            }
            (_, Record::Given { .. }) => {}
            (Stage::Reported, _) => work.stage = Stage::Recorded,
            _ => {}
        }
    }
}

impl Stage {
    fn is_open(&self) -> bool {
        !matches!(self, Self::Reported | Self::Recorded)
    }
}

impl Work {
    /// The event for work that was stopped before the machine got it.
    fn not_begun_event(&self) -> Event {
        let step = self.number;
        let attempt = self.attempt;
        match self.what {
            JobKind::Start => Event::Ran { step, attempt, end: End::NotBegun { reason: None } },
            what => {
                JobOutcome::broken(what, "stopped before the check".to_owned()).event(step, attempt)
            }
        }
    }

    /// The event for work on a machine that cannot be reached.
    fn give_up_event(&self, reason: String) -> Event {
        let step = self.number;
        let attempt = self.attempt;
        match (&self.stage, self.what) {
            // The machine never fetched the work, so it has not begun.
            (Stage::Waits(_) | Stage::Offered(..), JobKind::Start) => {
                let end = End::NotBegun { reason: Some(reason) };
                Event::Ran { step, attempt, end }
            }
            (_, JobKind::Start) => Event::Found { step, attempt, found: AttemptStatus::Gone },
            (_, what) => JobOutcome::broken(what, reason).event(step, attempt),
        }
    }
}

fn tell(runs: &HashMap<String, Connection>, id: &WorkId, event: Event) {
    if let Some(run) = runs.get(id.run()) {
        // The receiver is gone when the run is over.
        let _ = run.events.send(event);
    }
}

impl State {
    fn give(&mut self, machine: &str, job: Job) {
        let id = WorkId::of(&job);
        let machine = self.machines.entry(machine.to_owned()).or_default();
        machine.kill.remove(&id);
        // A check may be requested again; an attempt must begin only once.
        let known = machine
            .work
            .get(&id)
            .is_some_and(|work| job.what == JobKind::Start || work.stage.is_open());
        if known {
            return;
        }
        let number = job.number;
        let attempt = job.attempt;
        let what = job.what;
        let stage = Stage::Waits(Box::new(job));
        machine.work.insert(id, Work { number, attempt, what, stage, since: Instant::now() });
    }

    fn ask(&mut self, machine: &str, id: WorkId, number: StepId, attempt: u32, memory: &str) {
        let machine = self.machines.entry(machine.to_owned()).or_default();
        // The next report of the machine tells the state.
        let asked = || Stage::Asked(memory.to_owned());
        let what = JobKind::Start;
        let since = Instant::now();
        let known = machine.work.entry(id);
        let known = known.or_insert_with(|| Work { number, attempt, what, stage: asked(), since });
        match &known.stage {
            // The result may be in no journal, otherwise the run would not ask.
            Stage::Reported => known.stage = asked(),
            // The journal has the record, although the append failed or was not reported.
            Stage::Offered(job, to) if to == memory => {
                known.stage = Stage::Given(job.clone(), to.clone());
            }
            Stage::Offered(job, _) => known.stage = Stage::Waits(job.clone()),
            _ => {}
        }
    }

    /// Takes back an offer that no journal has recorded.
    fn withdraw(&mut self, machine: &str, id: &WorkId) {
        let work = self.machines.get_mut(machine).and_then(|machine| machine.work.get_mut(id));
        if let Some(work) = work
            && let Stage::Offered(job, _) = &work.stage
        {
            work.stage = Stage::Waits(job.clone());
        }
    }

    fn kill(&mut self, machine: &str, id: &WorkId) {
        let machine = self.machines.entry(machine.to_owned()).or_default();
        let Some(work) = machine.work.get_mut(id) else { return };
        if matches!(work.stage, Stage::Waits(_) | Stage::Offered(..)) {
            tell(&self.runs, id, work.not_begun_event());
            work.stage =
                if work.what == JobKind::Start { Stage::Reported } else { Stage::Recorded };
        } else {
            machine.kill.insert(id.clone());
        }
    }

    fn exchange(&mut self, name: &str, report: &WorkerReport, now: Instant) -> Orders {
        let Self { runs, machines, is_complete, unknown_runs, disowned } = self;
        let machine = machines.entry(name.to_owned()).or_default();
        if !machine.is_news(report) {
            // A newer report arrived before this delayed one.
            return Orders::default();
        }
        machine.heard = Some(now);
        machine.actions.clone_from(&report.actions);
        let mut orders = Orders::default();
        let mut is_orphan = |id: &WorkId| {
            let is_orphan = *is_complete || disowned.contains(id.run());
            if !is_orphan && !runs.contains_key(id.run()) && unknown_runs.len() < MAX_UNKNOWN_RUNS {
                unknown_runs.insert(id.run().to_owned());
            }
            is_orphan
        };
        for result in &report.results {
            machine.take_result(result, runs, is_orphan(&result.id), &mut orders);
        }
        for id in &report.lost {
            machine.take_lost(id, runs, is_orphan(id), &mut orders);
        }
        for id in &report.running {
            machine.take_running(id, runs, is_orphan(id), &mut orders);
        }
        machine.give_work(report, runs, &mut orders);
        orders
    }
}

impl Machine {
    fn give_up(
        &mut self,
        runs: &HashMap<String, Connection>,
        reason: &str,
        is_lost: impl Fn(&Work) -> bool,
    ) {
        let is_lost = |work: &Work| work.stage.is_open() && is_lost(work);
        let lost = self.work.iter().filter(|(_, work)| is_lost(work)).map(|(id, _)| id.clone());
        for id in lost.collect::<Vec<WorkId>>() {
            let Some(work) = self.work.remove(&id) else { continue };
            // If the machine comes back, it must not go on with this work.
            self.kill.insert(id.clone());
            if let Some(Connection { predicted: Some(predicted), .. }) = runs.get(id.run()) {
                // The receiver is gone if the dry run timed out.
                let _ = predicted.send((work.number, Err(PredictionError(reason.to_owned()))));
            }
            tell(runs, &id, work.give_up_event(reason.to_owned()));
        }
    }

    /// Whether a report is the newest one known; if so, it is remembered. The newest report may
    /// arrive repeatedly.
    fn is_news(&mut self, report: &WorkerReport) -> bool {
        let newest = (report.life, report.number);
        if self.memory == report.memory {
            if newest < self.newest {
                return false;
            }
        } else if self.former.contains(&report.memory) {
            return false;
        } else if !self.memory.is_empty() {
            self.former.push(std::mem::take(&mut self.memory));
        }
        self.memory.clone_from(&report.memory);
        self.newest = newest;
        true
    }

    fn take_result(
        &mut self,
        result: &WorkResult,
        runs: &HashMap<String, Connection>,
        is_orphan: bool,
        orders: &mut Orders,
    ) {
        let WorkResult { id, outcome, output } = result;
        let Some(work) = self.work.get_mut(id) else {
            // The work is of an unknown run, or of an attempt that was given up.
            if is_orphan || runs.contains_key(id.run()) {
                orders.acknowledged.push(id.clone());
            }
            return;
        };
        self.kill.remove(id);
        match work.stage {
            Stage::Recorded => {
                orders.acknowledged.push(id.clone());
            }
            Stage::Reported => {}
            Stage::Waits(_)
            | Stage::Offered(..)
            | Stage::Given(..)
            | Stage::Runs
            | Stage::Asked(_) => {
                let step = work.number;
                let attempt = work.attempt;
                if let (Some(run), Some(packed)) = (
                    runs.get(id.run()),
                    output.as_ref().and_then(super::CompressedOutput::compressed),
                ) {
                    run.outputs.adopt(step, attempt, &packed);
                }
                if let (JobOutcome::Predicted(prediction), Some(run)) =
                    (outcome, runs.get(id.run()))
                    && let Some(predicted) = &run.predicted
                {
                    // The receiver is gone if the dry run timed out.
                    let _ = predicted.send((step, prediction.clone()));
                }
                let event = match (&work.stage, outcome) {
                    (Stage::Asked(_), JobOutcome::Ran { end }) => {
                        Event::Found { step, attempt, found: AttemptStatus::Ended(end.clone()) }
                    }
                    _ => outcome.clone().event(step, attempt),
                };
                tell(runs, id, event);
                // A check is in no journal unless a decision follows from it, and it can be
                // repeated.
                work.stage =
                    if work.what == JobKind::Start { Stage::Reported } else { Stage::Recorded };
            }
        }
    }

    fn take_lost(
        &mut self,
        id: &WorkId,
        runs: &HashMap<String, Connection>,
        is_orphan: bool,
        orders: &mut Orders,
    ) {
        match self.work.get_mut(id) {
            Some(work) if work.stage.is_open() => {
                let step = work.number;
                let attempt = work.attempt;
                let event = match work.what {
                    JobKind::Start => Event::Found { step, attempt, found: AttemptStatus::Gone },
                    what => JobOutcome::broken(what, "the machine was restarted".to_owned())
                        .event(step, attempt),
                };
                tell(runs, id, event);
                work.stage =
                    if work.what == JobKind::Start { Stage::Reported } else { Stage::Recorded };
            }
            Some(work) if matches!(work.stage, Stage::Recorded) => {
                orders.acknowledged.push(id.clone());
            }
            None if is_orphan || runs.contains_key(id.run()) => {
                orders.acknowledged.push(id.clone());
            }
            Some(_) | None => {}
        }
    }

    fn take_running(
        &mut self,
        id: &WorkId,
        runs: &HashMap<String, Connection>,
        is_orphan: bool,
        orders: &mut Orders,
    ) {
        match self.work.get_mut(id) {
            Some(work) => {
                if matches!(work.stage, Stage::Asked(_)) {
                    let step = work.number;
                    let attempt = work.attempt;
                    tell(runs, id, Event::Found { step, attempt, found: AttemptStatus::Running });
                }
                if work.stage.is_open() {
                    work.stage = Stage::Runs;
                }
                if self.kill.contains(id) {
                    orders.kill.push(id.clone());
                }
            }
            None if is_orphan || runs.contains_key(id.run()) => orders.kill.push(id.clone()),
            None => {}
        }
    }

    /// Adds new work and work whose orders were lost. Work that the machine should hold and does
    /// not hold is gone.
    fn give_work(
        &mut self,
        report: &WorkerReport,
        runs: &HashMap<String, Connection>,
        orders: &mut Orders,
    ) {
        let held: BTreeSet<&WorkId> = report
            .running
            .iter()
            .chain(&report.lost)
            .chain(report.results.iter().map(|result| &result.id))
            .collect();
        let mut room = MAX_JOBS;
        for (id, work) in &mut self.work {
            if held.contains(id) {
                continue;
            }
            let step = work.number;
            let attempt = work.attempt;
            let to = &report.memory;
            let is_look = work.what != JobKind::Start;
            match &mut work.stage {
                // The work went to another memory, which may have begun it.
                Stage::Given(_, memory) | Stage::Asked(memory) if memory != to && !is_look => {
                    tell(runs, id, Event::Found { step, attempt, found: AttemptStatus::Gone });
                    work.stage = Stage::Recorded;
                }
                Stage::Asked(_) => {
                    tell(runs, id, Event::Found { step, attempt, found: AttemptStatus::Never });
                    work.stage = Stage::Recorded;
                }
                // The orders were lost, and the work has been stopped since.
                Stage::Waits(_) | Stage::Given(..) if self.kill.contains(id) => {
                    tell(runs, id, work.not_begun_event());
                    work.stage = Stage::Recorded;
                }
                Stage::Offered(_, memory) if memory == to => room = room.saturating_sub(1),
                Stage::Waits(_) | Stage::Offered(..) | Stage::Given(..) if room == 0 => {}
                Stage::Waits(job) | Stage::Given(job, _) if is_look => {
                    room -= 1;
                    orders.jobs.push((**job).clone());
                    work.stage = Stage::Given(job.clone(), to.clone());
                }
                Stage::Given(job, _) => {
                    room -= 1;
                    orders.jobs.push((**job).clone());
                }
                // An attempt must begin only once, so the journal must name its memory before it is
                // handed out.
                Stage::Waits(job) | Stage::Offered(job, _) => {
                    room -= 1;
                    work.stage = Stage::Offered(job.clone(), to.clone());
                    tell(runs, id, Event::Given { step, attempt, to: to.clone() });
                }
                // The machine had the work and has lost its state.
                Stage::Runs => {
                    let event = match work.what {
                        JobKind::Start => {
                            Event::Found { step, attempt, found: AttemptStatus::Gone }
                        }
                        what => {
                            JobOutcome::broken(what, "the machine has lost its state".to_owned())
                                .event(step, attempt)
                        }
                    };
                    tell(runs, id, event);
                    work.stage = Stage::Recorded;
                }
                Stage::Reported | Stage::Recorded => {}
            }
        }
        self.work.retain(|id, work| !matches!(work.stage, Stage::Recorded) || held.contains(id));
        let running = &report.running;
        let work = &self.work;
        self.kill.retain(|id| running.contains(id) || work.contains_key(id));
    }
}

/// The executor of one run: carries out the effects of the run on machines.
#[derive(Debug)]
pub struct DispatcherRun {
    dispatcher: Arc<Dispatcher>,
    run: String,
    /// Attempts that the machines were asked about when the run was opened.
    asked: BTreeSet<(StepId, u32)>,
}

impl DispatcherRun {
    /// Wraps a journal, so that machines may forget results once it has recorded them.
    pub fn wrap_journal<J>(&self, plan: &Arc<Plan>, journal: J) -> DispatcherJournal<J> {
        DispatcherJournal {
            dispatchers: vec![Arc::clone(&self.dispatcher)],
            run: self.run.clone(),
            plan: Arc::clone(plan),
            journal,
        }
    }
}

impl Executor for DispatcherRun {
    fn act(&mut self, plan: &Plan, effect: Effect) {
        match effect {
            // The answer is on its way already, or comes with the next report of the machine.
            Effect::Ask { step, attempt } if self.asked.remove(&(step, attempt)) => {
                (self.dispatcher.waker)(plan.subject(step));
            }
            effect => self.dispatcher.carry_out(&self.run, plan, effect),
        }
    }
}

/// A journal that lets machines forget recorded results.
#[derive(Debug)]
pub struct DispatcherJournal<J> {
    dispatchers: Vec<Arc<Dispatcher>>,
    run: String,
    plan: Arc<Plan>,
    pub journal: J,
}

impl<J> DispatcherJournal<J> {
    /// Another executor of the same run, for other machines.
    #[must_use]
    pub fn and(mut self, work: &DispatcherRun) -> Self {
        self.dispatchers.push(Arc::clone(&work.dispatcher));
        self
    }
}

impl<J: Journal> Journal for DispatcherJournal<J> {
    fn append(&mut self, records: &[Record]) -> Result<(), JournalError> {
        self.journal.append(records)?;
        for dispatcher in &self.dispatchers {
            for record in records {
                dispatcher.on_recorded(&self.run, &self.plan, record);
            }
        }
        Ok(())
    }

    fn snapshot(&mut self, run: &Run) {
        self.journal.snapshot(run);
    }
}
