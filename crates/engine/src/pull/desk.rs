//! The controller's side: what every machine shall do, and what is known of it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::{MAX_JOBS, MAX_MEMORY, Orders, Report, WorkId, WorkResult};
use crate::drive::{Executor, Journal};
use crate::execute::{Came, Foretold, Job, Outputs, What, attempt_id, subject};
use crate::journal::JournalError;
use crate::plan::{Plan, StepId};
use crate::record::{End, Record};
use crate::run::{Effect, Event, Found, Run};

/// How often somebody has to look whether a machine is lost.
const TICK: Duration = Duration::from_secs(1);

/// Strange runs that are remembered until somebody asks; machines name the others again.
const MAX_STRANGERS: usize = 10_000;

type Waker = Box<dyn Fn(&str) + Send + Sync>;

/// Where machines come for their work. One for all runs of a controller.
pub struct Desk {
    state: Mutex<State>,
    lost_after: Duration,
    /// Called with the name of a machine for which there is something new.
    waker: Waker,
}

struct State {
    runs: HashMap<String, Connection>,
    machines: HashMap<String, Machine>,
    /// All runs of former times are open again: what belongs to none of them belongs to nobody.
    is_complete: bool,
    /// Runs that machines have named and that are not here, since somebody last asked.
    strangers: BTreeSet<String>,
    /// Runs that are nowhere any more.
    disowned: BTreeSet<String>,
}

struct Connection {
    events: Sender<Event>,
    outputs: Outputs,
    /// For what is only asked what it would change.
    predicted: Option<Sender<Foretold>>,
}

#[derive(Default)]
struct Machine {
    memory: String,
    /// Memories that the machine had before.
    former: Vec<String>,
    /// Life and number of the last report.
    said: (u64, u64),
    heard: Option<Instant>,
    /// What it can do, if it has said so.
    actions: BTreeSet<String>,
    work: BTreeMap<WorkId, Work>,
    kill: BTreeSet<WorkId>,
}

struct Work {
    number: StepId,
    attempt: u32,
    what: What,
    stage: Stage,
    since: Instant,
}

enum Stage {
    /// Not given to the machine yet.
    Waits(Box<Job>),
    /// To be given to the machine with that memory when the journal says so.
    Offered(Box<Job>, String),
    /// Given to the machine with that memory; it may or may not have reached it.
    Given(Box<Job>, String),
    /// Given to the machine, with that memory, by a controller of former times, and asked after.
    Asked(String),
    /// The machine said that it is under way.
    Runs,
    /// The run knows; the machine keeps it until the run's journal does.
    Told,
    /// The journal has it.
    Kept,
}

impl std::fmt::Debug for Desk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Desk").field("lost_after", &self.lost_after).finish_non_exhaustive()
    }
}

impl Desk {
    /// `waker` is called with the name of a machine when it has something to come for.
    pub fn new(lost_after: Duration, waker: impl Fn(&str) + Send + Sync + 'static) -> Arc<Self> {
        let state = State {
            runs: HashMap::new(),
            machines: HashMap::new(),
            is_complete: false,
            strangers: BTreeSet::new(),
            disowned: BTreeSet::new(),
        };
        Arc::new(Self { state: Mutex::new(state), lost_after, waker: Box::new(waker) })
    }

    /// Looks every second, in a thread of its own, whether machines are lost. It ends with the desk.
    pub fn keep_watch(self: &Arc<Self>) -> std::io::Result<()> {
        let desk = Arc::downgrade(self);
        let watch = move || {
            while let Some(desk) = desk.upgrade() {
                desk.tick(Instant::now());
                drop(desk);
                std::thread::sleep(TICK);
            }
        };
        std::thread::Builder::new().name("desk".to_owned()).spawn(watch).map(|_| ())
    }

    /// Opens a run, so that machines can be told of it and be listened to. In the same moment they
    /// are asked after the attempts that were begun before: what a machine says of them is heard,
    /// also if it comes before the run itself asks. Each comes with the memory that it was given to;
    /// what was given to nobody has not begun.
    pub fn open(
        self: &Arc<Self>,
        run: &str,
        events: Sender<Event>,
        outputs: Outputs,
        plan: &Plan,
        begun: BTreeMap<(StepId, u32), Option<String>>,
    ) -> DeskRun {
        let mut state = self.lock();
        for ((step, attempt), given) in &begun {
            let id = WorkId::new(&attempt_id(run, *step, *attempt), What::Start);
            let machine = subject(plan, *step);
            if let Some(memory) = given {
                state.ask(machine, id, *step, *attempt, memory);
                continue;
            }
            state.withdraw(machine, &id);
            // Whoever opens it listens.
            let _ =
                events.send(Event::Found { step: *step, attempt: *attempt, found: Found::Never });
        }
        state.runs.insert(run.to_owned(), Connection { events, outputs, predicted: None });
        let begun = begun.into_keys().collect();
        DeskRun { desk: Arc::clone(self), run: run.to_owned(), asked: begun }
    }

    /// A run has ended: machines may forget what belongs to it, and end what is left of it.
    pub fn close(&self, run: &str) {
        let mut state = self.lock();
        state.runs.remove(run);
        for machine in state.machines.values_mut() {
            machine.work.retain(|id, _| id.run() != run);
        }
    }

    /// All runs of former times are open. What machines hold of others is dropped from now on.
    pub fn complete(&self) {
        self.lock().is_complete = true;
    }

    /// Runs that machines have named and that are not here, since this was last asked. Where there
    /// are other controllers, one of those may have them.
    pub fn strangers(&self) -> BTreeSet<String> {
        std::mem::take(&mut self.lock().strangers)
    }

    /// Nobody has these runs, only these: what machines hold of them is dropped.
    pub fn disown(&self, runs: BTreeSet<String>) {
        self.lock().disowned = runs;
    }

    /// What a machine says, and what it is told. While a message is held back because there is
    /// nothing to do, it may be handed in again. Nobody listens to a machine whose memory has a name
    /// that no journal has room for.
    pub fn exchange(&self, machine: &str, report: &Report, now: Instant) -> Orders {
        if report.memory.len() > MAX_MEMORY {
            return Orders::default();
        }
        self.lock().exchange(machine, report, now)
    }

    /// Whether something is to be given to a machine as soon as that is in a journal.
    pub fn has_offers(&self, machine: &str) -> bool {
        let state = self.lock();
        let is_offered = |work: &Work| matches!(work.stage, Stage::Offered(..));
        state.machines.get(machine).is_some_and(|machine| machine.work.values().any(is_offered))
    }

    /// Asks machines what steps would change. Whoever has heard enough closes it like a run.
    pub fn predict(&self, name: &str, jobs: Vec<Job>, predicted: Sender<Foretold>) {
        let (events, outputs) = (channel().0, Outputs::none());
        let machines: BTreeSet<String> = jobs.iter().map(|job| job.subject.clone()).collect();
        let mut state = self.lock();
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

    /// Whether a machine has said what it can do, and cannot do this.
    pub fn lacks(&self, machine: &str, action: &str) -> bool {
        let state = self.lock();
        let known = state.machines.get(machine).map(|machine| &machine.actions);
        known.is_some_and(|actions| !actions.is_empty() && !actions.contains(action))
    }

    /// When a machine was last heard of.
    pub fn heard(&self, machine: &str) -> Option<Instant> {
        self.lock().machines.get(machine)?.heard
    }

    /// Gives up on machines that were not heard of for too long.
    pub fn tick(&self, now: Instant) {
        let lost_after = self.lost_after;
        let mut state = self.lock();
        let State { runs, machines, .. } = &mut *state;
        for (name, machine) in machines {
            let heard = machine.heard;
            let is_lost = |work: &Work| {
                let since = heard.map_or(work.since, |heard| heard.max(work.since));
                now.saturating_duration_since(since) >= lost_after
            };
            let lost: Vec<WorkId> = machine
                .work
                .iter()
                .filter(|(_, work)| work.stage.is_open() && is_lost(work))
                .map(|(id, _)| id.clone())
                .collect();
            for id in lost {
                let Some(work) = machine.work.remove(&id) else { continue };
                // Should it come back, it shall not go on with that.
                machine.kill.insert(id.clone());
                tell(runs, &id, work.given_up(name, lost_after));
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn act(&self, run: &str, plan: &Plan, effect: Effect) {
        let (Effect::Check { step, attempt }
        | Effect::Start { step, attempt }
        | Effect::Verify { step, attempt }
        | Effect::Ask { step, attempt }
        | Effect::Kill { step, attempt }) = effect;
        let machine = subject(plan, step).to_owned();
        let mut state = self.lock();
        if let Some(job) = Job::of(run, plan, effect) {
            state.give(&machine, job);
        } else {
            let id = |what| WorkId::new(&attempt_id(run, step, attempt), what);
            if matches!(effect, Effect::Ask { .. }) {
                // Nobody said whom it was given to, so nobody can say that it did not begin.
                state.ask(&machine, id(What::Start), step, attempt, "");
            } else {
                for what in [What::Check, What::Start, What::Verify] {
                    state.kill(&machine, &id(what));
                }
            }
        }
        drop(state);
        (self.waker)(&machine);
    }

    fn kept(&self, run: &str, plan: &Plan, record: &Record) {
        let (step, attempt, what) = match record {
            Record::Given { step, attempt, .. }
            | Record::Ran { step, attempt, .. }
            | Record::Lost { step, attempt, .. } => (*step, *attempt, What::Start),
            Record::Refused { step, attempt, .. } | Record::Intent { step, attempt, .. } => {
                (*step, *attempt, What::Check)
            }
            Record::Verified { step, attempt, .. } => (*step, *attempt, What::Verify),
            _ => return,
        };
        let id = WorkId::new(&attempt_id(run, step, attempt), what);
        let (mut state, machine) = (self.lock(), subject(plan, step));
        let work = state.machines.get_mut(machine).and_then(|machine| machine.work.get_mut(&id));
        let Some(work) = work else { return };
        match (&work.stage, record) {
            (Stage::Offered(job, memory), Record::Given { to, .. }) if memory == to => {
                work.stage = Stage::Given(job.clone(), memory.clone());
                drop(state);
                (self.waker)(machine);
            }
            (_, Record::Given { .. }) => {}
            (Stage::Told, _) => work.stage = Stage::Kept,
            _ => {}
        }
    }
}

impl Stage {
    fn is_open(&self) -> bool {
        !matches!(self, Self::Told | Self::Kept)
    }
}

impl Work {
    /// What is told of work that was stopped before the machine had it.
    fn never_began(&self) -> Event {
        let (step, attempt) = (self.number, self.attempt);
        match self.what {
            What::Start => Event::Ran { step, attempt, end: End::NotBegun { reason: None } },
            what => Came::broken(what, "stopped before it was looked at".to_owned())
                .event(step, attempt),
        }
    }

    /// What is told of work on a machine that is not heard of any more.
    fn given_up(&self, machine: &str, after: Duration) -> Event {
        let (step, attempt) = (self.number, self.attempt);
        let reason = format!("`{machine}` has not been heard of for {} s", after.as_secs());
        match (&self.stage, self.what) {
            // It never came for it, so it has not begun.
            (Stage::Waits(_) | Stage::Offered(..), What::Start) => {
                let end = End::NotBegun { reason: Some(reason) };
                Event::Ran { step, attempt, end }
            }
            (_, What::Start) => Event::Found { step, attempt, found: Found::Gone },
            (_, what) => Came::broken(what, reason).event(step, attempt),
        }
    }
}

fn tell(runs: &HashMap<String, Connection>, id: &WorkId, event: Event) {
    if let Some(run) = runs.get(id.run()) {
        // Nobody listens any more when the run is over.
        let _ = run.events.send(event);
    }
}

impl State {
    fn give(&mut self, machine: &str, job: Job) {
        let id = WorkId::of(&job);
        let machine = self.machines.entry(machine.to_owned()).or_default();
        machine.kill.remove(&id);
        // The same look may be asked for again; an attempt is begun once.
        let known = machine
            .work
            .get(&id)
            .is_some_and(|work| job.what == What::Start || work.stage.is_open());
        if known {
            return;
        }
        let (number, attempt, what) = (job.number, job.attempt, job.what);
        let stage = Stage::Waits(Box::new(job));
        machine.work.insert(id, Work { number, attempt, what, stage, since: Instant::now() });
    }

    fn ask(&mut self, machine: &str, id: WorkId, number: StepId, attempt: u32, memory: &str) {
        let machine = self.machines.entry(machine.to_owned()).or_default();
        // The machine says what it knows when it comes next.
        let asked = || Stage::Asked(memory.to_owned());
        let (what, since) = (What::Start, Instant::now());
        let known = machine.work.entry(id);
        let known = known.or_insert_with(|| Work { number, attempt, what, stage: asked(), since });
        match &known.stage {
            // What was told may be in no journal, or it would not be asked for.
            Stage::Told => known.stage = asked(),
            // The journal has it, though nobody said so.
            Stage::Offered(job, to) if to == memory => {
                known.stage = Stage::Given(job.clone(), to.clone());
            }
            Stage::Offered(job, _) => known.stage = Stage::Waits(job.clone()),
            _ => {}
        }
    }

    /// No journal says that it was offered.
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
            tell(&self.runs, id, work.never_began());
            work.stage = if work.what == What::Start { Stage::Told } else { Stage::Kept };
        } else {
            machine.kill.insert(id.clone());
        }
    }

    fn exchange(&mut self, name: &str, report: &Report, now: Instant) -> Orders {
        let Self { runs, machines, is_complete, strangers, disowned } = self;
        let machine = machines.entry(name.to_owned()).or_default();
        if !machine.is_news(report) {
            // It was long under way; the machine has said more since.
            return Orders::default();
        }
        machine.heard = Some(now);
        machine.actions.clone_from(&report.actions);
        let mut orders = Orders::default();
        let mut is_nobodys = |id: &WorkId| {
            let is_nobodys = *is_complete || disowned.contains(id.run());
            if !is_nobodys && !runs.contains_key(id.run()) && strangers.len() < MAX_STRANGERS {
                strangers.insert(id.run().to_owned());
            }
            is_nobodys
        };
        for result in &report.results {
            machine.take(result, runs, is_nobodys(&result.id), &mut orders);
        }
        for id in &report.lost {
            machine.take_lost(id, runs, is_nobodys(id), &mut orders);
        }
        for id in &report.running {
            machine.take_running(id, runs, is_nobodys(id), &mut orders);
        }
        machine.hand_out(report, runs, &mut orders);
        orders
    }
}

impl Machine {
    /// Whether a report is the last one, as far as anybody knows; if so it is remembered. The same
    /// one may come again.
    fn is_news(&mut self, report: &Report) -> bool {
        let said = (report.life, report.number);
        if self.memory == report.memory {
            if said < self.said {
                return false;
            }
        } else if self.former.contains(&report.memory) {
            return false;
        } else if !self.memory.is_empty() {
            self.former.push(std::mem::take(&mut self.memory));
        }
        self.memory.clone_from(&report.memory);
        self.said = said;
        true
    }

    fn take(
        &mut self,
        result: &WorkResult,
        runs: &HashMap<String, Connection>,
        is_nobodys: bool,
        orders: &mut Orders,
    ) {
        let WorkResult { id, came, output } = result;
        let Some(work) = self.work.get_mut(id) else {
            // Of a run that nobody knows, or an attempt that was given up.
            if is_nobodys || runs.contains_key(id.run()) {
                orders.acknowledged.push(id.clone());
            }
            return;
        };
        self.kill.remove(id);
        match work.stage {
            Stage::Kept => {
                orders.acknowledged.push(id.clone());
            }
            Stage::Told => {}
            Stage::Waits(_)
            | Stage::Offered(..)
            | Stage::Given(..)
            | Stage::Runs
            | Stage::Asked(_) => {
                let (step, attempt) = (work.number, work.attempt);
                if let (Some(run), Some(packed)) =
                    (runs.get(id.run()), output.as_ref().and_then(super::Packed::compressed))
                {
                    run.outputs.adopt(step, attempt, &packed);
                }
                if let (Came::Predicted(prediction), Some(run)) = (came, runs.get(id.run()))
                    && let Some(predicted) = &run.predicted
                {
                    // Nobody listens any more when it took too long.
                    let _ = predicted.send((step, prediction.clone()));
                }
                let event = match (&work.stage, came) {
                    (Stage::Asked(_), Came::Ran { end }) => {
                        Event::Found { step, attempt, found: Found::Ended(end.clone()) }
                    }
                    _ => came.clone().event(step, attempt),
                };
                tell(runs, id, event);
                // A look is in no journal unless something follows from it, and can be done again.
                work.stage = if work.what == What::Start { Stage::Told } else { Stage::Kept };
            }
        }
    }

    fn take_lost(
        &mut self,
        id: &WorkId,
        runs: &HashMap<String, Connection>,
        is_nobodys: bool,
        orders: &mut Orders,
    ) {
        match self.work.get_mut(id) {
            Some(work) if work.stage.is_open() => {
                let (step, attempt) = (work.number, work.attempt);
                let event = match work.what {
                    What::Start => Event::Found { step, attempt, found: Found::Gone },
                    what => Came::broken(what, "the machine was restarted".to_owned())
                        .event(step, attempt),
                };
                tell(runs, id, event);
                work.stage = if work.what == What::Start { Stage::Told } else { Stage::Kept };
            }
            Some(work) if matches!(work.stage, Stage::Kept) => orders.acknowledged.push(id.clone()),
            None if is_nobodys || runs.contains_key(id.run()) => {
                orders.acknowledged.push(id.clone());
            }
            Some(_) | None => {}
        }
    }

    fn take_running(
        &mut self,
        id: &WorkId,
        runs: &HashMap<String, Connection>,
        is_nobodys: bool,
        orders: &mut Orders,
    ) {
        match self.work.get_mut(id) {
            Some(work) => {
                if matches!(work.stage, Stage::Asked(_)) {
                    let (step, attempt) = (work.number, work.attempt);
                    tell(runs, id, Event::Found { step, attempt, found: Found::Running });
                }
                if work.stage.is_open() {
                    work.stage = Stage::Runs;
                }
                if self.kill.contains(id) {
                    orders.kill.push(id.clone());
                }
            }
            None if is_nobodys || runs.contains_key(id.run()) => orders.kill.push(id.clone()),
            None => {}
        }
    }

    /// New work, and work that did not arrive. What the machine should hold and does not is gone.
    fn hand_out(
        &mut self,
        report: &Report,
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
            let (step, attempt, to) = (work.number, work.attempt, &report.memory);
            let is_look = work.what != What::Start;
            match &mut work.stage {
                // Who was given it is gone, and may have begun it.
                Stage::Given(_, memory) | Stage::Asked(memory) if memory != to && !is_look => {
                    tell(runs, id, Event::Found { step, attempt, found: Found::Gone });
                    work.stage = Stage::Kept;
                }
                Stage::Asked(_) => {
                    tell(runs, id, Event::Found { step, attempt, found: Found::Never });
                    work.stage = Stage::Kept;
                }
                // It has not arrived, and need not any more.
                Stage::Waits(_) | Stage::Given(..) if self.kill.contains(id) => {
                    tell(runs, id, work.never_began());
                    work.stage = Stage::Kept;
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
                // It is begun once, so whom it is given to is kept before.
                Stage::Waits(job) | Stage::Offered(job, _) => {
                    room -= 1;
                    work.stage = Stage::Offered(job.clone(), to.clone());
                    tell(runs, id, Event::Given { step, attempt, to: to.clone() });
                }
                // It had it, and has lost all that it knew.
                Stage::Runs => {
                    let event = match work.what {
                        What::Start => Event::Found { step, attempt, found: Found::Gone },
                        what => Came::broken(what, "the machine has forgotten it".to_owned())
                            .event(step, attempt),
                    };
                    tell(runs, id, event);
                    work.stage = Stage::Kept;
                }
                Stage::Told | Stage::Kept => {}
            }
        }
        self.work.retain(|id, work| !matches!(work.stage, Stage::Kept) || held.contains(id));
        let (running, work) = (&report.running, &self.work);
        self.kill.retain(|id| running.contains(id) || work.contains_key(id));
    }
}

/// One run at the desk: carries out its effects on machines.
#[derive(Debug)]
pub struct DeskRun {
    desk: Arc<Desk>,
    run: String,
    /// Attempts that were asked after when it was opened.
    asked: BTreeSet<(StepId, u32)>,
}

impl DeskRun {
    /// A journal that lets machines forget what it has kept.
    pub fn kept<J>(&self, plan: &Arc<Plan>, journal: J) -> Kept<J> {
        Kept {
            desk: Arc::clone(&self.desk),
            run: self.run.clone(),
            plan: Arc::clone(plan),
            journal,
        }
    }
}

impl Executor for DeskRun {
    fn act(&mut self, plan: &Plan, effect: Effect) {
        match effect {
            // What is said of it is on its way already, or comes when the machine does.
            Effect::Ask { step, attempt } if self.asked.remove(&(step, attempt)) => {
                (self.desk.waker)(subject(plan, step));
            }
            effect => self.desk.act(&self.run, plan, effect),
        }
    }
}

/// A journal that lets machines forget what it has kept.
#[derive(Debug)]
pub struct Kept<J> {
    desk: Arc<Desk>,
    run: String,
    plan: Arc<Plan>,
    pub journal: J,
}

impl<J: Journal> Journal for Kept<J> {
    fn append(&mut self, records: &[Record]) -> Result<(), JournalError> {
        self.journal.append(records)?;
        for record in records {
            self.desk.kept(&self.run, &self.plan, record);
        }
        Ok(())
    }

    fn snapshot(&mut self, run: &Run) {
        self.journal.snapshot(run);
    }
}
