//! All runs of this controller: those that are under way, each with a thread of its own, and those
//! that have ended.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use hoist_api::deploy::{Instance, PlanRequest, RunOutcome, RunState, RunSummary};
use hoist_engine::action::Catalog;
use hoist_engine::drive::{Halt, Journal, drive};
use hoist_engine::journal::JournalError;
use hoist_engine::plan::{OnCrash, Step};
use hoist_engine::undo::{
    Gap, GapKind, UndoDraft, UndoError, fallen, settle, taken_back, undo_plan, undone,
};
use hoist_engine::{Event, Plan, Record, Run, StepId};
use serde_json::json;
use tokio::sync::watch;
use ulid::Ulid;

use super::beside::{Beside, open_nodes, opened_nodes, planned_nodes, sharing};
use super::entry::{Entry, Shown};
use super::folder::{self, Folder, FolderError, RunFile};
use super::hands::{Foreseen, Grip, Hands};
use super::shared::{Claim, Shared};
use super::summaries::Summaries;
use super::view::View;
use crate::chain;
use crate::events::EventBus;

/// Runs at once: each has a thread, and what it carries out has more.
const MAX_LIVE: usize = 64;

/// Who stops or pauses runs whose controller ended without leaving them in good order.
const CRASH: &str = "the controller ended";

/// Who takes back what a failure asks to be taken back.
const FAILURE: &str = "a failure";

/// How long somebody who wants an ended run to go on waits for its thread.
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
    grip: Grip,
    bus: EventBus,
    summaries: Summaries,
    /// Where controllers share a store.
    shared: Option<Shared>,
    leaving: AtomicBool,
    /// Held by whoever takes a run up, so that nobody else does.
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

/// What is to be run, and for whom.
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
    pub(super) beside: bool,
}

/// Why a run is read back.
enum Why<'a> {
    /// It had not ended when its controller did.
    Unfinished,
    /// Somebody wants it to go on, and says so in these records; also beside others on its nodes?
    Asked(&'a [Record], bool),
}

#[derive(Debug, thiserror::Error)]
pub(super) enum RunsError {
    #[error("there is no run `{0}`")]
    Unknown(String),
    #[error("more than one run ends in `{0}`")]
    Ambiguous(String),
    #[error("run {0} cannot be read")]
    Broken(String, #[source] FolderError),
    #[error("{MAX_LIVE} runs are under way; let one of them end first")]
    TooMany,
    #[error("the run cannot be kept")]
    Folder(#[from] FolderError),
    #[error("the run has ended; `resume` makes it go on")]
    Ended,
    #[error("the run is under way")]
    UnderWay,
    #[error("what the run did is taken back by run {0}, which has not ended")]
    TakenBack(String),
    #[error("run {0}, which it takes back, went on since; `undo` takes that back anew")]
    WentOn(String),
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Beside(Vec<Beside>),
    #[error("the controller is stopping")]
    Stopping,
    #[error("it has no effect on the run as it is now")]
    NoEffect,
    #[error("no thread can be made for the run")]
    NoThread(#[source] std::io::Error),
    #[error("the program has a fault")]
    Fault,
}

/// A fault in what is done for one run leaves all others as they are.
fn caught<T>(work: impl FnOnce() -> Result<T, RunsError>) -> Result<T, RunsError> {
    std::panic::catch_unwind(AssertUnwindSafe(work)).unwrap_or(Err(RunsError::Fault))
}

impl Runs {
    pub(super) fn new(
        root: PathBuf,
        grip: Grip,
        bus: EventBus,
        summaries: Summaries,
        shared: Option<Shared>,
    ) -> Self {
        Self(Arc::new(Inner {
            root,
            known: Mutex::default(),
            threads: Mutex::default(),
            recovered: watch::Sender::new(false),
            grip,
            bus,
            summaries,
            shared,
            leaving: AtomicBool::new(false),
            taking: Mutex::default(),
            newest: Mutex::default(),
        }))
    }

    pub(super) fn root(&self) -> &Path {
        &self.0.root
    }

    /// The way back over those steps of a run that are wanted back and were not taken back before.
    /// Blocks.
    pub(super) fn way_back(
        &self,
        run: &Run,
        file: &RunFile,
        is_wanted: impl Fn(StepId) -> bool,
    ) -> Result<Result<UndoDraft, UndoError>, RunsError> {
        let plan = run.plan();
        let before: BTreeSet<String> =
            self.ways_back(&file.id)?.iter().flat_map(|way| undone(&way.run)).collect();
        let is_wanted =
            |id: StepId| is_wanted(id) && !before.contains(plan.vertex(id).name.as_str());
        let actions = self.actions();
        let gap = |step: &Step| {
            let action = actions.get(&step.call.action);
            if !action.is_some_and(|action| action.can_undo(&step.call.input)) {
                return Some(GapKind::NoUndo);
            }
            let subject = step.subject.map(|at| plan.draft().subjects[at as usize].as_str());
            let is_far = subject.is_some_and(|node| self.0.grip.is_by_ssh(node));
            is_far.then_some(GapKind::NotThere)
        };
        Ok(undo_plan(run, &file.id, is_wanted, gap))
    }

    /// Whether an instance is carried out by the agent of its node.
    pub(super) fn is_by_agent(&self, instance: &Instance) -> bool {
        instance.node.as_deref().is_some_and(|node| self.0.grip.is_by_agent(node))
    }

    /// What tasks can do. It waits for plug-ins that are new.
    pub(super) fn actions(&self) -> Catalog {
        self.0.grip.catalog()
    }

    /// What agents cannot do that a plan wants of them: nodes and actions.
    pub(super) fn missing(&self, plan: &Plan) -> BTreeSet<(String, String)> {
        self.0.grip.missing(plan)
    }

    /// What a plan would change, without what is `kept` as it is.
    pub(super) fn foresee(&self, plan: &Plan, kept: &BTreeSet<StepId>) -> Foreseen {
        self.0.grip.foresee(plan, kept)
    }

    /// Waits until everything that was there at the start is known.
    pub(super) async fn recovered(&self) {
        // The sender lives as long as we do.
        let _ = self.0.recovered.subscribe().wait_for(|done| *done).await;
    }

    /// Reads back what is on disk; what did not end goes on. Blocks.
    pub(super) fn recover(&self) {
        /// Whatever becomes of us, those who wait for us shall be answered.
        struct Done<'r>(&'r Runs);
        impl Drop for Done<'_> {
            fn drop(&mut self) {
                self.0.0.recovered.send_replace(true);
            }
        }
        let _done = Done(self);
        match folder::list(&self.0.root) {
            Ok(ids) => {
                for id in &ids {
                    self.recover_one(id);
                }
                self.let_agents_forget();
            }
            Err(error) => tracing::error!(error = %chain(&error), "runs cannot be read back"),
        }
        // So that nobody who answers waits for plug-ins.
        self.actions();
    }

    /// What agents hold of runs that nobody knows is dropped, once every run can be read: until
    /// then it may be of one of those. Where controllers share a store, others may know them.
    fn let_agents_forget(&self) {
        if !self.are_shared()
            && !self.lock().values().any(|known| matches!(known, Known::Broken(_)))
        {
            self.0.grip.counter.desk.complete();
        }
    }

    fn recover_one(&self, id: &str) {
        let known = match folder::read_summary(&self.0.root, id) {
            Ok(Some(summary)) => Known::Ended(summary),
            Ok(None) => match caught(|| self.take_up(id, &Why::Unfinished)) {
                Ok(()) => {
                    tracing::info!(run = id, "goes on");
                    return;
                }
                // Another controller has it.
                Err(RunsError::Folder(FolderError::InUse)) if self.are_shared() => return,
                Err(error) => self.broken(id, &error),
            },
            Err(error) => self.broken(id, &error),
        };
        self.lock().insert(id.to_owned(), known);
    }

    pub(super) fn are_shared(&self) -> bool {
        self.0.shared.is_some()
    }

    /// Takes up runs that other controllers have left. Blocks.
    pub(super) fn take_over(&self) {
        let Some(shared) = &self.0.shared else { return };
        let desk = &self.0.grip.counter.desk;
        // Whatever agents have work of was in the store before they got it.
        let mut strangers = desk.strangers();
        let ids = match shared.list() {
            Ok(ids) => ids,
            Err(error) => return tracing::debug!(error = %chain(&error), "runs not looked at"),
        };
        let is_here = |id: &str| matches!(self.lock().get(id), Some(known) if !known.has_ended());
        strangers.retain(|id| !ids.contains(id) && !is_here(id));
        desk.disown(strangers);
        for id in ids.into_iter().filter(|id| self.live(id).is_none() && folder::is_id(id)) {
            match caught(|| self.take_up(&id, &Why::Unfinished)) {
                Ok(()) => tracing::info!(run = id, "taken over"),
                Err(RunsError::Folder(FolderError::InUse)) => {}
                Err(error) => {
                    let broken = self.broken(&id, &error);
                    self.lock().insert(id, broken);
                }
            }
        }
    }

    fn broken(&self, id: &str, error: &dyn std::error::Error) -> Known {
        let reason = chain(error);
        tracing::error!(run = id, error = reason, "run cannot go on");
        let file = folder::read_run(&self.0.root, id).ok();
        let told = file.clone().map(|file| (file.title, file.by, file.created));
        let (title, by, created) = told.unwrap_or_default();
        Known::Broken(RunSummary {
            id: id.to_owned(),
            title,
            by,
            created,
            ended: None,
            state: RunState::Broken,
            outcome: None,
            counts: BTreeMap::new(),
            steps: 0,
            nodes: 0,
            plan: String::new(),
            undoes: file.as_ref().and_then(|file| file.undoes.clone()),
            automatic: file.as_ref().is_some_and(|file| file.automatic),
            check: file.as_ref().is_some_and(RunFile::is_check),
            files: file.as_ref().map(RunFile::files).unwrap_or_default(),
            records: 0,
            broken: Some(reason),
            diagnostics: Vec::new(),
        })
    }

    /// Begins a run. Blocks until that is durable.
    pub(super) fn begin(&self, plan: &Arc<Plan>, begin: Begin) -> Result<RunSummary, RunsError> {
        self.room()?;
        // Nobody begins on the same nodes at the same time, takes the same back, or makes it go on.
        let _only_we = self.only_we();
        if let Some(undone) = &begin.undoes {
            if self.goes_on(undone) {
                return Err(RunsError::UnderWay);
            }
            if let Some(by) = self.undone_by(undone).filter(|by| self.goes_on(by)) {
                return Err(RunsError::TakenBack(by));
            }
        }
        let only_looks = begin.request.as_ref().is_some_and(|request| request.check);
        if !begin.beside && !only_looks {
            alone(self.beside_plan(plan, &begin.carried))?;
        }
        self.launch(plan, begin, self.new_id(now_ms()))
    }

    /// Runs under way on the nodes of a plan, without what is carried over.
    pub(super) fn beside_plan(&self, plan: &Plan, carried: &[Record]) -> Vec<Beside> {
        self.beside("", &planned_nodes(plan, &carried_steps(carried)))
    }

    /// Runs under way on the nodes on which a run has something to do again when it is told this.
    pub(super) fn beside_told(&self, id: &str, run: &Run, events: &[Event]) -> Vec<Beside> {
        let said: Vec<Record> = events.iter().filter_map(to_the_ended).collect();
        let opened = opened_nodes(run, &said, 0);
        self.beside(id, &opened.iter().map(String::as_str).collect())
    }

    /// Other runs that are under way on these nodes. Those that only look harm nobody.
    fn beside(&self, id: &str, nodes: &BTreeSet<&str>) -> Vec<Beside> {
        let mut others = Vec::new();
        for (other, known) in &*self.lock() {
            if let Known::Live(entry) = known
                && other != id
                && !entry.file.is_check()
            {
                others.push((other.clone(), entry.run()));
            }
        }
        sharing(others.iter().map(|(id, run)| (id.as_str(), &**run)), nodes)
    }

    /// Begins a run that nothing stands against. Blocks until that is durable.
    fn launch(&self, plan: &Arc<Plan>, begin: Begin, id: String) -> Result<RunSummary, RunsError> {
        let now = now_ms();
        let file = RunFile {
            id,
            title: begin.title,
            by: begin.by,
            created: super::view::rfc3339(now),
            undoes: begin.undoes,
            automatic: begin.automatic,
            request: begin.request,
        };
        let made = folder::create(&self.0.root, &file, plan, &begin.carried, now)?;
        let folder::Made { folder, journal, records } = made;
        let claim = self.claim(&file.id)?;
        if let Some(claim) = &claim {
            claim.publish(&file, plan, &records).map_err(FolderError::from)?;
        }
        let run = Run::replay(plan, &records).map_err(FolderError::from)?;
        let (events, told) = channel();
        let entry = Arc::new(Entry::new(file, &run, records, events));
        let summary = entry.view().summary();
        let shown = Shown { journal, entry: Arc::clone(&entry), claim };
        let hands = Hands::new(&self.0.grip, &entry, &folder, &run);
        let runs = self.clone();
        let driver = Driver { runs, shown, entry, folder, run, hands, told };
        self.spawn(driver, "deploy.run.started")?;
        Ok(summary)
    }

    /// Ids are in the order in which runs were started, whatever becomes of the clock.
    fn new_id(&self, now: u64) -> String {
        let known = self.lock().keys().next_back().and_then(|id| Ulid::from_string(id).ok());
        let mut newest = self.0.newest.lock().unwrap_or_else(PoisonError::into_inner);
        *newest = id_after((*newest).max(known.unwrap_or_default()), now);
        newest.to_string().to_lowercase()
    }

    fn room(&self) -> Result<(), RunsError> {
        if self.0.leaving.load(Ordering::SeqCst) {
            return Err(RunsError::Stopping);
        }
        let live = self.lock().values().filter(|known| matches!(known, Known::Live(_))).count();
        if live >= MAX_LIVE { Err(RunsError::TooMany) } else { Ok(()) }
    }

    /// Reads a run back and lets it go on. Blocks.
    fn take_up(&self, id: &str, why: &Why) -> Result<(), RunsError> {
        let _only_we = self.only_we();
        if self.live(id).is_some() {
            return Err(RunsError::UnderWay);
        }
        let came_back = match why {
            Why::Asked(..) => self.settled(id)?,
            Why::Unfinished => Vec::new(),
        };
        let claim = self.claim(id)?;
        let stored = match &self.0.shared {
            Some(shared) => shared.read(id)?,
            None => None,
        };
        if let Some(stored) = &stored {
            folder::adopt(&self.0.root, id, stored)?;
        } else if let Some(shared) = &self.0.shared
            && matches!(why, Why::Unfinished)
            && shared.has_ended(id).map_err(FolderError::from)?
        {
            // Elsewhere: what is here is not all of it.
            folder::remove(&self.0.root, id).map_err(FolderError::from)?;
            return Err(FolderError::InUse.into());
        }
        let file = folder::read_run(&self.0.root, id)?;
        let mut back = folder::open(&self.0.root, id)?;
        if let (Some(claim), None) = (&claim, &stored) {
            claim.publish(&file, &back.plan, &back.records).map_err(FolderError::from)?;
        }
        let mut run = back.run;
        let on_crash = back.plan.draft().on_crash;
        let said = match why {
            Why::Asked(said, _) => [&came_back, *said].concat(),
            Why::Unfinished if back.crashed && run.outcome().is_none() => after_crash(on_crash),
            Why::Unfinished => Vec::new(),
        };
        // Whatever was said counts before anything is done.
        let before = back.records.len();
        for record in said {
            run.follow(back.records.len(), &record).map_err(|_| RunsError::NoEffect)?;
            back.records.push(record);
        }
        if matches!(why, Why::Asked(_, false))
            && let Err(shared) = alone(self.beside(id, &open_nodes(&run)))
        {
            if let Some(claim) = claim {
                claim.leave();
            }
            return Err(shared);
        }
        let said = &back.records[before..];
        if !said.is_empty() {
            back.folder.go_on().map_err(FolderError::from)?;
            if let Some(claim) = &claim {
                claim.append(before, said).map_err(FolderError::from)?;
            }
            back.journal.append(said).map_err(FolderError::from)?;
        }
        let (events, told) = channel();
        let entry = Arc::new(Entry::new(file, &run, back.records, events));
        let shown = Shown { journal: back.journal, entry: Arc::clone(&entry), claim };
        let (runs, folder) = (self.clone(), back.folder);
        // Before anybody takes all runs for known.
        let hands = Hands::new(&self.0.grip, &entry, &folder, &run);
        let driver = Driver { runs, shown, entry, folder, run, hands, told };
        self.spawn(driver, "deploy.run.resumed")
    }

    /// What was taken back of a run, for its journal, before it goes on. Blocks.
    fn settled(&self, id: &str) -> Result<Vec<Record>, RunsError> {
        let run = self.view(id)?;
        if let Some(undone) = &run.file.undoes
            && (self.goes_on(undone) || is_settled(&self.view(undone)?, id))
        {
            return Err(RunsError::WentOn(undone.clone()));
        }
        let mut records = Vec::new();
        for way in self.ways_back(id)? {
            if self.goes_on(&way.file.id) || way.run.outcome().is_none() {
                return Err(RunsError::TakenBack(way.file.id));
            }
            records.append(&mut settle(&run.run, &way.file.id, &way.run, now_ms()));
        }
        Ok(records)
    }

    /// A run as it will be when it goes on: what was taken back of it is not done. Blocks.
    pub(super) fn view_to_go_on(&self, id: &str) -> Result<View, RunsError> {
        let mut view = self.view(id)?;
        if view.state() == RunState::Ended {
            let records = self.settled(id)?;
            let run = Arc::make_mut(&mut view.run);
            for record in records {
                let number = view.records.len();
                run.follow(number, &record).map_err(|error| {
                    RunsError::Broken(id.to_owned(), FolderError::Replay(error))
                })?;
            }
        }
        Ok(view)
    }

    /// Begins to take back what a run has done, if its plan wants that after such an end. Its own
    /// thread calls this before the end is final: until then whoever reads it back calls it again.
    /// False if it has to be tried again.
    fn undo_by_itself(&self, run: &Run, entry: &Entry) -> bool {
        let (file, records) = (&entry.file, entry.view().records);
        let Some((by, wanted)) = wish(run, &records) else { return true };
        // Those who were there before are known only now.
        while !*self.0.recovered.borrow() {
            std::thread::sleep(Duration::from_millis(5));
        }
        // Always the same one, so that it is begun once whoever tries, and however often.
        let id = id_of_undo(file, &records);
        let begun = self.undo_once(run, file, (by, &wanted), id);
        if let Err(error) = &begun {
            let error = chain(error);
            tracing::error!(run = file.id, error, "what the run did is not taken back yet");
        }
        begun.is_ok()
    }

    fn undo_once(
        &self,
        run: &Run,
        file: &RunFile,
        (by, wanted): (&str, &BTreeSet<StepId>),
        id: String,
    ) -> Result<(), RunsError> {
        if !self.ways_back(&file.id)?.is_empty() || self.is_anywhere(&id)? {
            return Ok(());
        }
        if self.0.leaving.load(Ordering::SeqCst) {
            return Err(RunsError::Stopping);
        }
        let Ok(UndoDraft { draft, gaps, .. }) =
            self.way_back(run, file, |step| wanted.contains(&step))?
        else {
            return Ok(());
        };
        let name = |gap: &Gap| run.plan().vertex(gap.step).name.clone();
        let left: Vec<String> = gaps.iter().map(name).collect();
        if !left.is_empty() {
            tracing::warn!(run = file.id, ?left, "some instances cannot be taken back");
        }
        if draft.vertices.is_empty() {
            return Ok(());
        }
        let plan = Plan::new(draft).map_err(FolderError::from)?;
        let begin = Begin {
            title: format!("undo {}", file.title),
            by: by.to_owned(),
            undoes: Some(file.id.clone()),
            automatic: true,
            request: file.request.clone(),
            carried: Vec::new(),
            beside: true,
        };
        self.launch(&Arc::new(plan), begin, id).map(drop)
    }

    /// Whether a run is or was with some controller.
    fn is_anywhere(&self, id: &str) -> Result<bool, RunsError> {
        if folder::is_there(&self.0.root, id) {
            return Ok(true);
        }
        let Some(shared) = &self.0.shared else { return Ok(false) };
        Ok(shared.read(id)?.is_some() || shared.has_ended(id).map_err(FolderError::from)?)
    }

    /// Makes a run ours, where controllers share a store.
    fn claim(&self, id: &str) -> Result<Option<Claim>, FolderError> {
        let Some(shared) = &self.0.shared else { return Ok(None) };
        shared.claim(id)?.ok_or(FolderError::InUse).map(Some)
    }

    fn spawn(&self, driver: Driver, told: &str) -> Result<(), RunsError> {
        let entry = Arc::clone(&driver.entry);
        let id = entry.file.id.clone();
        if let Some(claim) = &driver.shown.claim {
            let entry = Arc::clone(&entry);
            claim.keep(move || entry.leave());
        }
        let (runs, of) = (self.clone(), id.clone());
        let drive = move || {
            let driven = caught(|| {
                driver.run();
                Ok(())
            });
            if let Err(fault) = driven {
                let broken = runs.broken(&of, &fault);
                runs.lock().insert(of, broken);
            }
        };
        // Whoever drives it says how it ended only after it is known that somebody does.
        let mut known = self.lock();
        let thread = std::thread::Builder::new().name("run".to_owned()).spawn(drive);
        let thread = match thread {
            Ok(thread) => thread,
            Err(error) => {
                drop(known);
                let error = RunsError::NoThread(error);
                let broken = self.broken(&id, &error);
                self.lock().insert(id, broken);
                return Err(error);
            }
        };
        known.insert(id.clone(), Known::Live(Arc::clone(&entry)));
        drop(known);
        self.0.bus.publish(told, &format!("run/{id}"), json!({ "title": entry.file.title }));
        self.0.summaries.keep(&entry.view().summary());
        let mut threads = self.0.threads.lock().unwrap_or_else(PoisonError::into_inner);
        threads.retain(|thread| !thread.is_finished());
        threads.push(thread);
        Ok(())
    }

    /// Lets every run be as it is. Blocks until their threads have ended.
    pub(super) fn leave(&self) {
        self.0.leaving.store(true, Ordering::SeqCst);
        for known in self.lock().values() {
            if let Known::Live(entry) = known {
                entry.leave();
            }
        }
        let threads =
            std::mem::take(&mut *self.0.threads.lock().unwrap_or_else(PoisonError::into_inner));
        for thread in threads {
            if thread.join().is_err() {
                tracing::error!("the thread of a run panicked");
            }
        }
    }

    /// The full id of what was typed: all of it, its end, or `last`, the one that was started last
    /// to do something.
    pub(super) fn resolve(&self, given: &str) -> Result<String, RunsError> {
        /// Fewer characters are a typo, not a name.
        const SHORTEST: usize = 4;
        let known = self.lock();
        let given_lower = given.to_lowercase();
        if known.contains_key(&given_lower) {
            return Ok(given_lower);
        }
        if given == "last" {
            let is_aside = |known: &Known| match known {
                Known::Live(entry) => entry.file.is_check() || entry.file.automatic,
                Known::Ended(run) | Known::Broken(run) => run.check || run.automatic,
            };
            let last = known.iter().rev().find(|(_, known)| !is_aside(known));
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
        let known: Vec<Known> = self.lock().values().rev().cloned().collect();
        let summary = |known| match known {
            Known::Live(entry) => entry.view().summary(),
            Known::Ended(summary) | Known::Broken(summary) => summary,
        };
        known.into_iter().map(summary).collect()
    }

    /// What the store has of all controllers; nothing while it is away.
    pub(super) async fn others(&self) -> Vec<RunSummary> {
        self.0.summaries.list().await.unwrap_or_default()
    }

    /// Of a run with this full id.
    pub(super) fn summary(&self, id: &str) -> Option<RunSummary> {
        let known = self.lock().get(id).cloned()?;
        Some(match known {
            Known::Live(entry) => entry.view().summary(),
            Known::Ended(summary) | Known::Broken(summary) => summary,
        })
    }

    /// The last run that takes back what this one did.
    pub(super) fn undone_by(&self, id: &str) -> Option<String> {
        let undoes = |known: &Known| match known {
            Known::Live(entry) => entry.file.undoes.as_deref() == Some(id),
            Known::Ended(run) | Known::Broken(run) => run.undoes.as_deref() == Some(id),
        };
        let known = self.lock();
        known.iter().rev().find(|(_, known)| undoes(known)).map(|(id, _)| id.clone())
    }

    /// Names of the instances of a run that others began to take back. Blocks.
    pub(super) fn undone(&self, id: &str) -> Result<BTreeSet<String>, RunsError> {
        Ok(self.ways_back(id)?.iter().flat_map(|way| taken_back(&way.run)).collect())
    }

    /// The runs that take back what this one did, the oldest first; without those after which it
    /// went on. Blocks.
    pub(super) fn ways_back(&self, id: &str) -> Result<Vec<View>, RunsError> {
        let mut ways: Vec<String> = Vec::new();
        for run in self.list().into_iter().rev() {
            if run.undoes.as_deref() == Some(id) {
                ways.push(run.id);
            }
        }
        if ways.is_empty() {
            return Ok(Vec::new());
        }
        let undone = self.view(id)?;
        ways.retain(|way| !is_settled(&undone, way));
        ways.iter().map(|way| self.view(way)).collect()
    }

    /// Whether a run that takes back another is of no importance any more: that one went on. Blocks.
    pub(super) fn is_outdated(&self, run: &RunSummary) -> bool {
        let undone = run.undoes.as_deref().and_then(|undone| self.view(undone).ok());
        undone.is_some_and(|undone| is_settled(&undone, &run.id))
    }

    /// Waits for the thread of a run that has ended: it may begin another one. Blocks.
    pub(super) fn await_end(&self, id: &str) {
        if self.live(id).is_some_and(|entry| entry.view().run.outcome().is_some()) {
            self.goes_on(id);
        }
    }

    /// The run as its own thread sees it, while it has one.
    pub(super) fn live(&self, id: &str) -> Option<Arc<Entry>> {
        match self.lock().get(id) {
            Some(Known::Live(entry)) => Some(Arc::clone(entry)),
            _ => None,
        }
    }

    /// Whether a run is under way. The thread of one that has ended is about to end. Blocks.
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
        let read = || {
            let (plan, file) =
                (folder::read_plan(&self.0.root, id)?, folder::read_run(&self.0.root, id)?);
            let records = Arc::new(folder::read_records(&self.0.root, id)?);
            let run = Arc::new(Run::replay(&plan, records.iter())?);
            let is_broken = matches!(self.lock().get(id), Some(Known::Broken(_)));
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
        beside: bool,
    ) -> Result<Option<Arc<Entry>>, RunsError> {
        let said: Vec<Record> = events.iter().filter_map(to_the_ended).collect();
        let wakes = said.len() == events.len();
        let deadline = Instant::now() + SETTLE;
        loop {
            let known = self.lock().get(id).cloned();
            match known {
                None => return Err(RunsError::Unknown(id.to_owned())),
                Some(Known::Live(entry)) if self.tell_live(&entry, events, wakes && !beside)? => {
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
        match self.take_up(id, &Why::Asked(&said, beside)) {
            Err(RunsError::Folder(error)) => Err(RunsError::Broken(id.to_owned(), error)),
            Err(error) => Err(error),
            Ok(()) => {
                self.let_agents_forget();
                Ok(None)
            }
        }
    }

    /// False when it does not listen any more. What would let it begin on nodes of others is refused
    /// to one that shall be `alone` there.
    fn tell_live(
        &self,
        entry: &Entry,
        events: &[Event],
        is_alone: bool,
    ) -> Result<bool, RunsError> {
        // Whoever stops a run does not wait for those who begin others.
        let _only_we = is_alone.then(|| self.only_we());
        if is_alone {
            alone(self.beside_told(&entry.file.id, &entry.run(), events))?;
        }
        Ok(entry.tell(events))
    }

    /// Removes a run that is not under way. Blocks.
    pub(super) fn remove(&self, id: &str) -> Result<(), RunsError> {
        if self.live(id).is_some() {
            return Err(RunsError::UnderWay);
        }
        folder::remove(&self.0.root, id).map_err(FolderError::from)?;
        self.lock().remove(id);
        self.0.summaries.forget(id);
        self.let_agents_forget();
        Ok(())
    }

    fn only_we(&self) -> MutexGuard<'_, ()> {
        self.0.taking.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Known>> {
        self.0.known.lock().unwrap_or_else(PoisonError::into_inner)
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

/// Refuses what would share nodes with others.
fn alone(beside: Vec<Beside>) -> Result<(), RunsError> {
    if beside.is_empty() { Ok(()) } else { Err(RunsError::Beside(beside)) }
}

/// What is written into the journal of a run that has ended; nothing if it cannot hear that.
fn to_the_ended(event: &Event) -> Option<Record> {
    let at = now_ms();
    Some(match event.clone() {
        Event::Resume { by } => Record::Resume { by, at },
        Event::Retry { step, by } => Record::Retry { step, by, at },
        Event::Mark { step, good, by } => Record::Marked { step, good, by, at },
        _ => return None,
    })
}

/// What is said to a run whose controller died, as its plan wants it.
fn after_crash(on_crash: OnCrash) -> Vec<Record> {
    let (by, at) = (CRASH.to_owned(), now_ms());
    match on_crash {
        OnCrash::Resume => Vec::new(),
        OnCrash::Ask => vec![Record::Pause { subject: None, paused: true, by, at }],
        OnCrash::Undo => vec![Record::Stop { now: true, by, at }],
    }
}

/// Whether the run went on after what that other one took back.
fn is_settled(run: &View, way_back: &str) -> bool {
    let is_of =
        |record: &Record| matches!(record, Record::TakenBack { run, .. } if run == way_back);
    run.records.iter().any(is_of)
}

/// What is to be taken back of a run that has just ended though nobody says so, and why.
fn wish(run: &Run, records: &[Record]) -> Option<(&'static str, BTreeSet<StepId>)> {
    if run.plan().draft().on_crash == OnCrash::Undo && is_ended_by_crash(records) {
        return Some((CRASH, run.plan().ids().collect()));
    }
    Some((FAILURE, fallen(run))).filter(|(_, fallen)| !fallen.is_empty())
}

/// Whether a run was stopped because its controller died, and nobody let it go on since.
fn is_ended_by_crash(records: &[Record]) -> bool {
    records.iter().fold(false, |ended, record| match record {
        Record::Stop { by, .. } => ended || by == CRASH,
        Record::Resume { .. } | Record::Retry { .. } => false,
        _ => ended,
    })
}

/// The thread of one run.
struct Driver {
    runs: Runs,
    shown: Shown,
    entry: Arc<Entry>,
    folder: Folder,
    run: Run,
    hands: Hands,
    told: Receiver<Event>,
}

impl Driver {
    fn run(mut self) {
        let inner = Arc::clone(&self.runs.0);
        let mut hands = self.hands;
        let mut journal = hands.kept(&self.entry.plan, self.shown);
        let mut is_final = true;
        let known = loop {
            let halt = drive(&mut self.run, &mut journal, &mut hands, &self.told, now_ms);
            let halt = halt.and_then(|halt| match halt {
                Halt::Finished(_)
                    if goes_on(&mut self.run, &self.entry, &self.told, &mut journal)? =>
                {
                    Ok(None)
                }
                halt => Ok(Some(halt)),
            });
            match halt {
                Ok(None) => {}
                Ok(Some(Halt::Finished(_))) => {
                    is_final = self.runs.undo_by_itself(&self.run, &self.entry);
                    break ended(&self.entry, &self.folder, is_final);
                }
                Ok(Some(Halt::NeedsPerson)) => {
                    self.entry.set_waiting(true);
                    let Ok(event) = self.told.recv() else { return };
                    self.entry.set_waiting(false);
                    self.entry.tell(&[event]);
                }
                Ok(Some(Halt::Deserted)) => return,
                // Whoever has it now says what is listed of it.
                Err(JournalError::Fenced) => {
                    self.runs.lock().remove(&self.entry.file.id);
                    return;
                }
                Err(_) if self.entry.is_leaving() => {
                    if let Some(claim) = journal.journal.claim.take() {
                        self.runs.lock().remove(&self.entry.file.id);
                        claim.leave();
                    }
                    if let Err(error) = self.folder.leave() {
                        tracing::warn!(error = %chain(&error), "the next start takes this for a crash");
                    }
                    return;
                }
                Err(error) => {
                    let error = FolderError::Journal(error);
                    break self.runs.broken(&self.entry.file.id, &error);
                }
            }
        };
        let id = self.entry.file.id.clone();
        let summary = match &known {
            Known::Ended(summary) | Known::Broken(summary) => summary.clone(),
            Known::Live(_) => unreachable!("its thread ends"),
        };
        self.entry.close();
        let is_ended = matches!(known, Known::Ended(_));
        // What agents hold of one that is broken is needed when it goes on.
        if is_ended {
            inner.grip.counter.desk.close(&id);
        }
        match journal.journal.claim.take() {
            Some(claim) if is_ended && is_final => claim.end(),
            // Others may be able to go on.
            Some(claim) => claim.leave(),
            None => {}
        }
        // Whoever makes it go on needs the lock.
        drop((self.folder, journal));
        self.runs.lock().insert(id.clone(), known);
        // Those who wait look again.
        self.entry.set_waiting(false);
        let outcome = summary.outcome.map(RunOutcome::as_str);
        inner.bus.publish("deploy.run.ended", &format!("run/{id}"), json!({ "outcome": outcome }));
        inner.summaries.keep(&summary);
    }
}

/// What was said to a run while it ended makes it go on; false when that was nothing, and from then
/// on nobody can say anything.
fn goes_on(
    run: &mut Run,
    entry: &Entry,
    told: &Receiver<Event>,
    journal: &mut impl Journal,
) -> Result<bool, JournalError> {
    while let Some(events) = entry.close_unless_told(told) {
        let mut number = entry.view().records.len();
        let mut said = Vec::new();
        for record in events.iter().filter_map(to_the_ended) {
            // What does not fit is not heard, and whoever said it is told so.
            if run.follow(number, &record).is_ok() {
                number += 1;
                said.push(record);
            }
        }
        journal.append(&said)?;
        if run.outcome().is_none() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// What is not final is looked at again at the next start.
fn ended(entry: &Entry, folder: &Folder, is_final: bool) -> Known {
    let summary = entry.view().summary();
    if is_final && let Err(error) = folder.end(&summary) {
        tracing::warn!(error = %chain(&error), "the journal is read at the next start");
    }
    Known::Ended(summary)
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

/// The run that takes back what this one did up to the last of these records.
fn id_of_undo(file: &RunFile, records: &[Record]) -> String {
    let (name, at) =
        (format!("{}/{}", file.id, records.len()), records.last().map_or(0, Record::at));
    let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, name.as_bytes());
    let mut bits = [0; 16];
    bits.copy_from_slice(&digest.as_ref()[..16]);
    let begun = Ulid::from_string(&file.id).map_or(0, |id| id.timestamp_ms());
    Ulid::from_parts(at.max(begun), u128::from_le_bytes(bits)).to_string().to_lowercase()
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
    fn a_fault_in_one_run_is_told_as_one_and_goes_no_further() {
        let fault = caught::<()>(|| panic!("on purpose")).expect_err("it did not come to its end");
        assert!(matches!(fault, RunsError::Fault));
        assert_eq!(caught(|| Ok(7)).expect("it ended well"), 7);
    }

    #[test]
    fn ids_are_in_the_order_of_the_starts_although_the_clock_is_set_back() {
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
