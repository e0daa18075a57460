//! Steps on machines without an agent, through the system's `ssh`.
//!
//! Each machine has one session per run. `bootstrap.sh` brings the program of the controller to the
//! machine, unless it is there, and starts it; the program runs a [`Worker`](crate::pull::Worker),
//! whose messages are lines of JSON on the session. A machine behind ssh therefore has the
//! abilities of a machine with an agent, and the rules for lost messages are those of [`crate::pull`].
//!
//! [`link`] holds one session, [`login`] is the `ssh` command, [`remote`] is the machine's half.

mod link;
mod login;
mod plugins;
mod remote;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::action::Secrets;
use crate::drive::Executor;
use crate::execute::{DryRunResult, Job, MAX_THREADS, Outputs, PREDICT_TIMEOUT, WorkerPool};
use crate::plan::{Plan, Step, StepId};
use crate::pull::{Dispatcher, DispatcherRun, Orders};
use crate::run::{Effect, Event};

use link::{Link, Signal};

pub use login::{Login, Target, TargetError};
pub use plugins::SentPlugins;
pub use remote::{Received, serve};

/// Everything an executor over ssh needs.
#[derive(Clone)]
pub struct SshSetup {
    /// The arguments with which the program calls [`serve`].
    pub arguments: Vec<String>,
    pub secrets: Arc<dyn Secrets>,
    pub plugins: SentPlugins,
    /// A machine that is unreachable for this long counts as gone.
    pub lost_after: Duration,
    /// How a subject is reached, or why it is not.
    pub target: Find,
}

/// Finds the way to a subject.
pub type Find = Arc<dyn Fn(&str) -> Result<Target, FindError> + Send + Sync>;

/// Why a subject cannot be reached, with the remedy. A retry is useless.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct FindError(pub String);

impl std::fmt::Debug for SshSetup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SshSetup").field("arguments", &self.arguments).finish_non_exhaustive()
    }
}

/// Secrets by reference, or why one has no value.
type Values = BTreeMap<String, Result<String, String>>;

/// A message to the machine.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum ToMachine {
    /// The first message.
    Begin(Begin),
    /// The programs of missing plug-ins, in base64, by file name.
    Plugins(BTreeMap<String, String>),
    /// More secrets, for orders that follow.
    Secrets(Values),
    /// The answer to a report.
    Orders(Orders),
    /// There is something new: report.
    Ring,
    /// The run is over: nothing of it is needed any more.
    Forget,
}

#[derive(Debug, Serialize, Deserialize)]
struct Begin {
    run: String,
    secrets: Values,
    /// Digests of plug-ins, by file name.
    plugins: BTreeMap<String, String>,
    /// Plug-ins may run where they cannot be isolated.
    are_unconfined: bool,
}

/// A message from the machine.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum FromMachine {
    /// Plug-ins that the machine does not have.
    Missing(BTreeSet<String>),
    Report(crate::pull::WorkerReport),
}

/// Carries out the steps of one run over ssh.
#[derive(Debug)]
pub struct SshExecutor {
    dispatcher: Arc<Dispatcher>,
    work: DispatcherRun,
    links: Arc<Links>,
}

/// The sessions of one run.
struct Links {
    run: String,
    setup: SshSetup,
    machines: Mutex<HashMap<String, Machine>>,
    pool: WorkerPool,
    /// Machines for which no thread is free.
    waiting: AtomicUsize,
    is_over: AtomicBool,
    is_closed: AtomicBool,
}

#[derive(Default)]
struct Machine {
    /// `None` without a link.
    signals: Option<Sender<Signal>>,
    /// References of all secrets that the work of the machine names.
    secrets: BTreeSet<String>,
}

impl std::fmt::Debug for Links {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Links").field("run", &self.run).finish_non_exhaustive()
    }
}

impl Links {
    fn new(run: &str, setup: SshSetup) -> Arc<Self> {
        Arc::new(Self {
            run: run.to_owned(),
            setup,
            machines: Mutex::default(),
            pool: WorkerPool::new(MAX_THREADS),
            waiting: AtomicUsize::new(0),
            is_over: AtomicBool::new(false),
            is_closed: AtomicBool::new(false),
        })
    }

    fn learn(&self, machine: &str, step: &Step) {
        let mut machines = self.machines.lock();
        let machine = machines.entry(machine.to_owned()).or_default();
        machine.secrets.extend(step.secret_references().map(str::to_owned));
    }

    fn secrets_of(&self, machine: &str) -> BTreeSet<String> {
        self.machines.lock().get(machine).map(|known| known.secrets.clone()).unwrap_or_default()
    }

    fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Relaxed)
    }

    fn ring(&self, machine: &str) {
        if let Some(Machine { signals: Some(signals), .. }) = self.machines.lock().get(machine) {
            // The link ends.
            let _ = signals.send(Signal::Bell);
        }
    }

    /// Makes sure that the machine has a link which looks for its work.
    fn open(self: &Arc<Self>, dispatcher: &Arc<Dispatcher>, machine: &str) {
        let mut machines = self.machines.lock();
        let entry = machines.entry(machine.to_owned()).or_default();
        if let Some(signals) = &entry.signals
            && signals.send(Signal::Bell).is_ok()
        {
            return;
        }
        let (signals, heard) = channel();
        entry.signals = Some(signals.clone());
        drop(machines);
        let links = Arc::clone(self);
        let dispatcher = Arc::clone(dispatcher);
        let machine = machine.to_owned();
        self.waiting.fetch_add(1, Ordering::Relaxed);
        self.pool.send(move || {
            links.waiting.fetch_sub(1, Ordering::Relaxed);
            Link::new(&links, &dispatcher, &machine, signals, heard).run();
        });
    }

    /// Ends the link of a machine, unless there is work for it. Work that comes later opens another.
    fn release(&self, dispatcher: &Dispatcher, machine: &str) -> bool {
        let mut machines = self.machines.lock();
        let is_idle = !dispatcher.has_work(machine);
        if is_idle && let Some(entry) = machines.get_mut(machine) {
            entry.signals = None;
        }
        is_idle
    }

    fn close(&self) {
        self.is_closed.store(true, Ordering::Relaxed);
        for signals in self.machines.lock().values().filter_map(|machine| machine.signals.as_ref())
        {
            // The link has ended.
            let _ = signals.send(Signal::Bell);
        }
    }
}

impl SshExecutor {
    /// `begun` names the attempts that were begun before; see [`Dispatcher::open`].
    pub fn new(
        run: &str,
        setup: SshSetup,
        events: Sender<Event>,
        outputs: Outputs,
        plan: &Plan,
        begun: BTreeMap<(StepId, u32), Option<String>>,
    ) -> Self {
        let (dispatcher, links) = dispatcher(run, setup);
        for (step, _) in begun.keys() {
            plan.step(*step).iter().for_each(|found| links.learn(plan.subject(*step), found));
        }
        let work = dispatcher.open(run, events, outputs, plan, begun);
        Self { dispatcher, work, links }
    }

    /// The handle by which the journal of the run tells what it has recorded.
    pub fn work(&self) -> &DispatcherRun {
        &self.work
    }

    /// Lets the machines forget the run, which is over.
    pub fn forget(&self) {
        self.links.is_over.store(true, Ordering::Relaxed);
    }
}

fn dispatcher(run: &str, setup: SshSetup) -> (Arc<Dispatcher>, Arc<Links>) {
    let lost_after = setup.lost_after;
    let links = Links::new(run, setup);
    let rung = Arc::downgrade(&links);
    let ring = move |machine: &str| rung.upgrade().iter().for_each(|links| links.ring(machine));
    let dispatcher = Dispatcher::new(lost_after, ring);
    // Machines keep the work of this run apart, so that they report no other.
    dispatcher.complete();
    (dispatcher, links)
}

impl Executor for SshExecutor {
    fn act(&mut self, plan: &Plan, effect: Effect) {
        let (step, _) = effect.target();
        let machine = plan.subject(step);
        plan.step(step).iter().for_each(|found| self.links.learn(machine, found));
        self.work.act(plan, effect);
        self.links.open(&self.dispatcher, machine);
    }
}

impl Drop for SshExecutor {
    fn drop(&mut self) {
        self.links.close();
    }
}

/// Predicts steps over ssh. Dropping it cancels the remaining predictions.
#[derive(Debug)]
pub struct SshDryRun {
    links: Arc<Links>,
}

impl SshDryRun {
    pub fn new(name: &str, setup: SshSetup, jobs: Vec<Job>, send: Sender<DryRunResult>) -> Self {
        let setup = SshSetup { lost_after: PREDICT_TIMEOUT, ..setup };
        let (dispatcher, links) = dispatcher(name, setup);
        let machines: BTreeSet<String> = jobs.iter().map(|job| job.subject.clone()).collect();
        for job in &jobs {
            links.learn(&job.subject, &job.step);
        }
        dispatcher.predict(name, jobs, send);
        for machine in &machines {
            links.open(&dispatcher, machine);
        }
        links.is_over.store(true, Ordering::Relaxed);
        Self { links }
    }
}

impl Drop for SshDryRun {
    fn drop(&mut self) {
        self.links.close();
    }
}

/// The place of hoist in the home of the login.
fn home() -> Option<PathBuf> {
    Some(PathBuf::from(std::env::var_os("HOME")?).join(".hoist"))
}
