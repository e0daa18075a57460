//! All runs of this controller: active ones, each with a thread of its own, and ended ones.
//!
//! Does not belong here: compilation of plans (`plans`, `compile`), transports (`transport`), and
//! the form of answers (`view`).

mod driver;
mod recover;
mod remote;
mod undo;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use hoist_api::deploy::{Instance, PlanRequest, RunSummary};
use hoist_diagnostic::chain;
use hoist_engine::action::Catalog;
use hoist_engine::{Event, Plan, Record, Run, StepId};
use parking_lot::{Mutex, MutexGuard};
use tokio::runtime::Handle;
use tokio::sync::watch;
use ulid::Ulid;

pub(super) use self::undo::told_gaps;

use self::driver::Driver;
use self::recover::Why;
use self::remote::RemoteViews;
use super::concurrent::{ConcurrentRun, opened_nodes, planned_nodes, sharing};
use super::entry::{Entry, RunJournal};
use super::folder::{self, FolderError, RunFile};
use super::shared_runs::{Claim, Gate, SharedRuns, StoredRun};
use super::summaries::Summaries;
use super::transport::{DryRunResult, MissingAction, RunContext, Transport};
use super::view::View;
use hoist_chassis::events::EventBus;

/// Most active runs: each has a thread, and its executors have more.
const MAX_LIVE: usize = 64;

/// Who stops or pauses runs whose controller ended without leaving them in good order.
const CRASH: &str = "the controller ended";

/// How long a resume of an ended run waits for the run's thread.
const SETTLE: Duration = Duration::from_secs(5);

/// Clones share them.
#[derive(Debug, Clone)]
pub(super) struct Runs(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    root: PathBuf,
    known: Mutex<BTreeMap<String, Known>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// Everything that was on disk at the start is known.
    recovered: watch::Sender<bool>,
    context: RunContext,
    bus: EventBus,
    summaries: Summaries,
    /// Where controllers share a store.
    shared: Option<SharedRuns>,
    leaving: AtomicBool,
    /// Views of runs of other controllers.
    remote: RemoteViews,
    /// Held while a run is taken up, so that it is taken up once.
    taking: Mutex<()>,
    /// The last id that was given.
    newest: Mutex<Ulid>,
}

#[derive(Debug, Clone)]
enum Known {
    Live(Arc<Entry>),
    Ended(RunSummary),
    Broken(RunSummary),
}

impl Known {
    fn has_ended(&self) -> bool {
        matches!(self, Self::Ended(_))
    }
}

/// The inputs of a new run.
#[derive(Debug)]
pub(super) struct Begin {
    pub(super) title: String,
    pub(super) by: String,
    pub(super) undoes: Option<String>,
    pub(super) automatic: bool,
    pub(super) request: Option<PlanRequest>,
    /// What another run has done already.
    pub(super) carried: Vec<Record>,
    /// Also where another run is under way on the same nodes.
    pub(super) allow_concurrent: bool,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum RunsError {
    #[error("run `{0}` not found")]
    Unknown(String),
    #[error("run {0} ended on another controller of the site, which alone still has its journal")]
    Elsewhere(String),
    #[error("more than one run ends in `{0}`")]
    Ambiguous(String),
    #[error("run {0} cannot be read")]
    Broken(String, #[source] FolderError),
    #[error("{MAX_LIVE} runs are active; wait until one of them ends")]
    TooMany,
    #[error("cannot save the run")]
    Folder(#[from] FolderError),
    #[error("the run has ended; `resume` makes it go on")]
    Ended,
    #[error("the run is under way")]
    UnderWay,
    #[error("run {0} undoes this run and has not ended")]
    BeingUndone(String),
    #[error("run {0}, which it undoes, went on since; undo that run again")]
    WentOn(String),
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Concurrent(Vec<ConcurrentRun>),
    #[error("another controller lets a run begin just now; try again")]
    AtGate,
    #[error("the controller is stopping")]
    Stopping,
    #[error("the command has no effect in the current state of the run")]
    NoEffect,
    #[error("no thread can be made for the run")]
    NoThread(#[source] std::io::Error),
    #[error("the run panicked; this is a bug of hoist")]
    Panicked,
}

impl Runs {
    pub(super) fn new(
        root: PathBuf,
        context: RunContext,
        bus: EventBus,
        summaries: Summaries,
        shared: Option<SharedRuns>,
    ) -> Self {
        Self(Arc::new(Inner {
            root,
            known: Mutex::default(),
            threads: Mutex::default(),
            recovered: watch::Sender::new(false),
            context,
            bus,
            summaries,
            shared,
            leaving: AtomicBool::new(false),
            remote: RemoteViews::default(),
            taking: Mutex::default(),
            newest: Mutex::default(),
        }))
    }

    pub(super) fn root(&self) -> &Path {
        &self.0.root
    }

    /// Whether an instance is carried out by the agent of its node.
    pub(super) fn is_by_agent(&self, instance: &Instance) -> bool {
        instance.node.as_deref().is_some_and(|node| self.0.context.is_by_agent(node))
    }

    /// What tasks can do. It waits for plug-ins that are new.
    pub(super) fn actions(&self) -> Catalog {
        self.0.context.catalog()
    }

    /// Actions that are impossible with the transport of their node.
    pub(super) fn missing(&self, plan: &Plan) -> BTreeSet<MissingAction> {
        self.0.context.missing(plan)
    }

    /// The predicted changes of a plan, without the `kept` steps.
    pub(super) fn dry_run(&self, plan: &Plan, kept: &BTreeSet<StepId>) -> DryRunResult {
        self.0.context.dry_run(plan, kept)
    }

    pub(super) fn are_shared(&self) -> bool {
        self.0.shared.is_some()
    }

    /// Begins a run. Blocks until that is durable.
    pub(super) fn begin(&self, plan: &Arc<Plan>, begin: Begin) -> Result<RunSummary, RunsError> {
        self.room()?;
        // Guarantees that no concurrent request starts, undoes or resumes a run on the same nodes.
        let _only_we = self.only_we();
        if let Some(undone) = &begin.undoes {
            if self.goes_on(undone) || self.is_active_elsewhere(undone)? {
                return Err(RunsError::UnderWay);
            }
            if let Some(by) = self.undone_by(undone).filter(|by| self.goes_on(by)) {
                return Err(RunsError::BeingUndone(by));
            }
        }
        let only_looks = begin.request.as_ref().is_some_and(|request| request.check);
        let gate = self.gate()?;
        if !begin.allow_concurrent && !only_looks {
            alone(self.concurrent_with_plan(plan, &begin.carried)?)?;
        }
        self.launch(plan, begin, self.new_id(now_ms()), gate.as_ref())
    }

    /// No other controller begins on the same nodes at the same time, where controllers share a store.
    /// Blocks.
    fn gate(&self) -> Result<Option<Gate>, RunsError> {
        let Some(shared) = &self.0.shared else { return Ok(None) };
        shared.gate().map_err(FolderError::from)?.ok_or(RunsError::AtGate).map(Some)
    }

    /// Active runs on the nodes of a plan, without carried-over instances. Blocks.
    pub(super) fn concurrent_with_plan(
        &self,
        plan: &Plan,
        carried: &[Record],
    ) -> Result<Vec<ConcurrentRun>, RunsError> {
        self.concurrent_runs("", &planned_nodes(plan, &carried_steps(carried)))
    }

    /// Active runs on the nodes on which a run would get new work from these events. Blocks.
    pub(super) fn concurrent_with_events(
        &self,
        id: &str,
        run: &Run,
        events: &[Event],
    ) -> Result<Vec<ConcurrentRun>, RunsError> {
        let said: Vec<Record> = events.iter().filter_map(to_the_ended).collect();
        let opened = opened_nodes(run, &said, 0);
        self.concurrent_runs(id, &opened.iter().map(String::as_str).collect())
    }

    /// Other active runs on these nodes, on any controller. Runs that only check are left out.
    /// Blocks.
    fn concurrent_runs(
        &self,
        id: &str,
        nodes: &BTreeSet<&str>,
    ) -> Result<Vec<ConcurrentRun>, RunsError> {
        if nodes.is_empty() {
            return Ok(Vec::new());
        }
        let mut others = self.elsewhere(id)?;
        for (other, known) in &*self.0.known.lock() {
            if let Known::Live(entry) = known
                && other != id
                && !entry.file.is_check()
            {
                others.push((other.clone(), entry.run()));
            }
        }
        Ok(sharing(others.iter().map(|(id, run)| (id.as_str(), &**run)), nodes))
    }

    /// Active runs of other controllers, without checks and without one run.
    fn elsewhere(&self, but: &str) -> Result<Vec<(String, Arc<Run>)>, RunsError> {
        let Some(shared) = &self.0.shared else { return Ok(Vec::new()) };
        let mut found = Vec::new();
        for id in shared.list().map_err(FolderError::from)? {
            if id == but || self.0.known.lock().contains_key(&id) {
                continue;
            }
            let run = shared.read(&id).and_then(|stored| stored.map(StoredRun::run).transpose());
            match run.map_err(|error| RunsError::Broken(id.clone(), error))? {
                Some((file, run)) if !file.is_check() => found.push((id, Arc::new(run))),
                // It only looks, or has ended since.
                Some(_) | None => {}
            }
        }
        Ok(found)
    }

    /// Begins a run that nothing stands against. Blocks until that is durable.
    fn launch(
        &self,
        plan: &Arc<Plan>,
        begin: Begin,
        id: String,
        gate: Option<&Gate>,
    ) -> Result<RunSummary, RunsError> {
        let now = now_ms();
        let file = RunFile {
            id,
            title: begin.title,
            by: begin.by,
            created: super::view::rfc3339(now),
            undoes: begin.undoes,
            automatic: begin.automatic,
            request: begin.request,
            hosts: vec![folder::host()],
        };
        let made = folder::create(&self.0.root, &file, plan, &begin.carried, now)?;
        let folder::NewRun { folder, journal, records } = made;
        let claim = self.publish(&file, plan, &records, gate).inspect_err(|_| {
            // The caller learns that the run did not start, so the next start must not find it.
            if let Err(error) = folder::remove(&self.0.root, &file.id) {
                tracing::error!(error = %chain(&error), run = file.id, "a run that did not begin is still there");
            }
        })?;
        let run = Run::replay(plan, &records).map_err(FolderError::from)?;
        let (events, told) = channel();
        let entry = Arc::new(Entry::new(file, &run, records, events));
        let summary = entry.view().summary();
        let shown = RunJournal { journal, entry: Arc::clone(&entry), claim };
        let transport = Transport::new(&self.0.context, &entry, &folder, &run);
        let runs = self.clone();
        let driver = Driver { runs, shown, entry, folder, run, transport, told };
        self.spawn(driver, "deploy.run.started")?;
        Ok(summary)
    }

    /// Ids are in the order in which runs were started, whatever becomes of the clock.
    fn new_id(&self, now: u64) -> String {
        let known =
            self.0.known.lock().keys().next_back().and_then(|id| Ulid::from_string(id).ok());
        let mut newest = self.0.newest.lock();
        *newest = id_after((*newest).max(known.unwrap_or_default()), now);
        newest.to_string().to_lowercase()
    }

    fn room(&self) -> Result<(), RunsError> {
        if self.0.leaving.load(Ordering::SeqCst) {
            return Err(RunsError::Stopping);
        }
        let live =
            self.0.known.lock().values().filter(|known| matches!(known, Known::Live(_))).count();
        if live >= MAX_LIVE { Err(RunsError::TooMany) } else { Ok(()) }
    }

    /// Brings a new run to the store, where controllers share one.
    fn publish(
        &self,
        file: &RunFile,
        plan: &Plan,
        records: &[Record],
        gate: Option<&Gate>,
    ) -> Result<Option<Claim>, FolderError> {
        let Some(claim) = self.claim(&file.id)? else { return Ok(None) };
        if let Err(error) = claim.publish(file, plan, records, gate) {
            claim.wipe();
            return Err(error.into());
        }
        Ok(Some(claim))
    }

    /// Makes a run ours, where controllers share a store.
    fn claim(&self, id: &str) -> Result<Option<Claim>, FolderError> {
        let Some(shared) = &self.0.shared else { return Ok(None) };
        shared.claim(id)?.ok_or(FolderError::InUse).map(Some)
    }

    /// Lets every run be as it is. Blocks until their threads have ended.
    pub(super) fn leave(&self) {
        self.0.leaving.store(true, Ordering::SeqCst);
        for known in self.0.known.lock().values() {
            if let Known::Live(entry) = known {
                entry.leave();
            }
        }
        let threads = std::mem::take(&mut *self.0.threads.lock());
        for thread in threads {
            if thread.join().is_err() {
                tracing::error!("the thread of a run panicked");
            }
        }
    }

    /// Whether this controller has a run of this full id.
    pub(super) fn is_known(&self, id: &str) -> bool {
        self.0.known.lock().contains_key(id)
    }

    /// Resolves a typed id: a full id, the end of one, or `last`, the latest run that changes
    /// something. `others` are the runs of all controllers.
    pub(super) fn resolve(&self, given: &str, others: &[RunSummary]) -> Result<String, RunsError> {
        /// Fewer characters are a typo, not a name.
        const SHORTEST: usize = 4;
        let is_aside = |known: &Known| match known {
            Known::Live(entry) => entry.file.is_check() || entry.file.automatic,
            Known::Ended(run) | Known::Broken(run) => run.check || run.automatic,
        };
        let mut known: BTreeMap<String, bool> =
            others.iter().map(|run| (run.id.clone(), run.check || run.automatic)).collect();
        known.extend(self.0.known.lock().iter().map(|(id, known)| (id.clone(), is_aside(known))));
        let given_lower = given.to_lowercase();
        if known.contains_key(&given_lower) {
            return Ok(given_lower);
        }
        if given == "last" {
            let last = known.iter().rev().find(|(_, is_aside)| !**is_aside);
            let last = last.map(|(id, _)| id.clone());
            return last.ok_or_else(|| RunsError::Unknown(given.to_owned()));
        }
        let mut found = known.keys().filter(|id| id.ends_with(&given_lower));
        match (found.next(), found.next()) {
            (Some(id), None) if given.len() >= SHORTEST => Ok(id.clone()),
            (Some(_), Some(_)) if given.len() >= SHORTEST => {
                Err(RunsError::Ambiguous(given.to_owned()))
            }
            _ => Err(RunsError::Unknown(given.to_owned())),
        }
    }

    /// All of them, the newest first.
    pub(super) fn list(&self) -> Vec<RunSummary> {
        let known: Vec<Known> = self.0.known.lock().values().rev().cloned().collect();
        let summary = |known| match known {
            Known::Live(entry) => entry.view().summary(),
            Known::Ended(summary) | Known::Broken(summary) => summary,
        };
        known.into_iter().map(summary).collect()
    }

    /// The stored runs of all controllers; empty while the store is unreachable.
    pub(super) async fn others(&self) -> Vec<RunSummary> {
        self.0.summaries.list().await.unwrap_or_default()
    }

    /// Of a run with this full id.
    pub(super) fn summary(&self, id: &str) -> Option<RunSummary> {
        let known = self.0.known.lock().get(id).cloned()?;
        Some(match known {
            Known::Live(entry) => entry.view().summary(),
            Known::Ended(summary) | Known::Broken(summary) => summary,
        })
    }

    /// Waits for the thread of a run that has ended: it may begin another one. Blocks.
    pub(super) fn await_end(&self, id: &str) {
        if self.live(id).is_some_and(|entry| entry.view().run.outcome().is_some()) {
            self.goes_on(id);
        }
    }

    /// The run as its own thread sees it, while it has one.
    pub(super) fn live(&self, id: &str) -> Option<Arc<Entry>> {
        match self.0.known.lock().get(id) {
            Some(Known::Live(entry)) => Some(Arc::clone(entry)),
            _ => None,
        }
    }

    /// Whether a run is active. Waits for the thread of a run that is ending. Blocks.
    fn goes_on(&self, id: &str) -> bool {
        let deadline = Instant::now() + SETTLE;
        while let Some(entry) = self.live(id) {
            if entry.view().run.outcome().is_none() || Instant::now() >= deadline {
                return true;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        false
    }

    /// Everything there is to see; one that has ended is read from disk. Blocks.
    pub(super) fn view(&self, id: &str) -> Result<View, RunsError> {
        if let Some(entry) = self.live(id) {
            return Ok(entry.view());
        }
        if let Some(view) = self.remote_view(id)? {
            return Ok(view);
        }
        let read = || {
            let plan = folder::read_plan(&self.0.root, id)?;
            let file = folder::read_run(&self.0.root, id)?;
            let records = Arc::new(folder::read_records(&self.0.root, id)?);
            let run = Arc::new(Run::replay(&plan, records.iter())?);
            let is_broken = matches!(self.0.known.lock().get(id), Some(Known::Broken(_)));
            Ok(View { file, plan, records, run, waiting: false, is_broken })
        };
        read().map_err(|error| RunsError::Broken(id.to_owned(), error))
    }

    /// Tells a run something. One that has ended hears only what makes it go on. Where a thread has
    /// it, that is given: it has heard when it has records of that. Blocks.
    pub(super) fn tell(
        &self,
        id: &str,
        events: &[Event],
        allow_concurrent: bool,
    ) -> Result<Option<Arc<Entry>>, RunsError> {
        let said: Vec<Record> = events.iter().filter_map(to_the_ended).collect();
        let wakes = said.len() == events.len();
        let deadline = Instant::now() + SETTLE;
        loop {
            let known = self.0.known.lock().get(id).cloned();
            match known {
                None if wakes && self.are_shared() => break,
                None => return Err(RunsError::Unknown(id.to_owned())),
                Some(Known::Live(entry))
                    if self.tell_live(&entry, events, wakes, allow_concurrent)? =>
                {
                    return Ok(Some(entry));
                }
                // Its thread is about to end.
                Some(Known::Live(_)) if wakes && Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_millis(5));
                }
                Some(Known::Ended(_) | Known::Broken(_)) if wakes => break,
                Some(_) => return Err(RunsError::Ended),
            }
        }
        self.room()?;
        match self.take_up(id, &Why::Asked(&said, allow_concurrent)) {
            Err(RunsError::Folder(error)) => Err(RunsError::Broken(id.to_owned(), error)),
            Err(error) => Err(error),
            Ok(()) => {
                self.let_agents_forget();
                Ok(None)
            }
        }
    }

    /// False when it does not listen any more. What `wakes` may let it begin on nodes of others, which
    /// is refused unless `allow_concurrent` is set.
    fn tell_live(
        &self,
        entry: &Entry,
        events: &[Event],
        wakes: bool,
        allow_concurrent: bool,
    ) -> Result<bool, RunsError> {
        // A stop must not wait for starts of other runs.
        if !wakes {
            return Ok(entry.tell(events));
        }
        let _only_we = self.only_we();
        let _gate = self.gate()?;
        let run = entry.view();
        if !allow_concurrent {
            alone(self.concurrent_with_events(&entry.file.id, &run.run, events)?)?;
        }
        if !entry.tell(events) {
            return Ok(false);
        }
        // The lock is held until the records show the resume; otherwise another request could miss
        // it.
        let heard = entry.heard(events, run.records.len());
        let _ = Handle::current().block_on(tokio::time::timeout(SETTLE, heard));
        Ok(true)
    }

    /// Removes an inactive run. Blocks.
    pub(super) fn remove(&self, id: &str) -> Result<(), RunsError> {
        if self.live(id).is_some() {
            return Err(RunsError::UnderWay);
        }
        folder::remove(&self.0.root, id).map_err(FolderError::from)?;
        let known = self.0.known.lock().remove(id);
        self.0.summaries.forget(id);
        // Others may have it, and then it is for them to remove.
        if matches!(known, Some(Known::Ended(_)))
            && !self.is_active_elsewhere(id).unwrap_or(true)
            && let Some(claim) = self.claim(id).ok().flatten()
        {
            claim.wipe();
        }
        self.let_agents_forget();
        Ok(())
    }

    fn only_we(&self) -> MutexGuard<'_, ()> {
        self.0.taking.lock()
    }
}

/// The steps that are not done again.
pub(super) fn carried_steps(carried: &[Record]) -> BTreeSet<StepId> {
    let step = |record: &Record| match record {
        Record::Carried { step, .. } => Some(*step),
        _ => None,
    };
    carried.iter().filter_map(step).collect()
}

/// Refuses a run that would share nodes with others.
fn alone(concurrent: Vec<ConcurrentRun>) -> Result<(), RunsError> {
    if concurrent.is_empty() { Ok(()) } else { Err(RunsError::Concurrent(concurrent)) }
}

/// The record of an event for an ended run; `None` if an ended run rejects the event.
fn to_the_ended(event: &Event) -> Option<Record> {
    let at = now_ms();
    Some(match event.clone() {
        Event::Resume { by } => Record::Resume { by, at },
        Event::Retry { step, by } => Record::Retry { step, by, at },
        Event::Mark { step, good, by } => Record::Marked { step, good, by, at },
        _ => return None,
    })
}

pub(super) fn now_ms() -> u64 {
    let since = std::time::UNIX_EPOCH.elapsed().unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// An id of this time, or of the time of the one before if that is later.
fn id_after(before: Ulid, now: u64) -> Ulid {
    let time = before.timestamp_ms();
    if now > time {
        return Ulid::from_parts(now, rand_bits());
    }
    before.increment().unwrap_or_else(|_| Ulid::from_parts(time + 1, rand_bits()))
}

fn rand_bits() -> u128 {
    let mut bytes = [0; 16];
    aws_lc_rs::rand::fill(&mut bytes).expect("the operating system gives random bytes");
    u128::from_le_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_ids_keep_start_order_when_the_clock_goes_back() {
        let mut last = Ulid::default();
        for now in [1000, 1000, 1001, 500, 0, 1001, 1002] {
            let next = id_after(last, now);
            assert!(next > last && next.timestamp_ms() >= now, "{last} {next}");
            last = next;
        }
        let full = Ulid::from_parts(7, u128::MAX);
        assert_eq!(id_after(full, 3).timestamp_ms(), 8);
    }
}
