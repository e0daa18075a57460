//! Taking back what runs did: by hand or by itself, and what that means for one that goes on.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use hoist_api::deploy::{RunState, RunSummary};
use hoist_engine::plan::{OnCrash, Step};
use hoist_engine::undo::{
    Gap, GapKind, UndoDraft, UndoError, fallen, settle, taken_back, undo_plan, undone,
};
use hoist_engine::{Plan, Record, Run, StepId};
use ulid::Ulid;

use super::{Begin, CRASH, Known, Runs, RunsError, now_ms};
use crate::chain;
use crate::deploy::entry::Entry;
use crate::deploy::folder::{self, FolderError, RunFile};
use crate::deploy::view::View;

/// Who takes back what a failure asks to be taken back.
const FAILURE: &str = "a failure";

/// Instances of a task that cannot be taken back for one reason and are named.
const MAX_NAMED: usize = 3;

/// What cannot be taken back, and why: a line for each task and reason.
pub(in crate::deploy) fn told_gaps(plan: &Plan, gaps: &[Gap]) -> Vec<String> {
    let mut alike: Vec<(&str, GapKind, Vec<&str>)> = Vec::new();
    let mut lines: HashMap<(&str, GapKind), usize> = HashMap::new();
    for Gap { step, kind } in gaps {
        let name = plan.vertex(*step).name.as_str();
        let task = name.rsplit_once('@').map_or(name, |(task, _)| task);
        let line = *lines.entry((task, *kind)).or_insert(alike.len());
        if line == alike.len() {
            alike.push((task, *kind, Vec::new()));
        }
        alike[line].2.push(name);
    }
    let told = |(task, kind, names): (&str, GapKind, Vec<&str>)| {
        let why = match kind {
            GapKind::NoUndo => "nobody said how",
            GapKind::NotThere => "its node is reached by ssh, and only an agent can do it",
            GapKind::CommitPoint => "there is no way back from it",
            GapKind::TooMany => "it was tried too often",
        };
        let named = names[..names.len().min(MAX_NAMED)].join(", ");
        match names.len() - names.len().min(MAX_NAMED) {
            _ if names.len() == 1 => format!("{named}: {why}"),
            0 => format!("{task}: {} instances ({named}): {why}", names.len()),
            more => format!("{task}: {} instances ({named} and {more} more): {why}", names.len()),
        }
    };
    alike.into_iter().map(told).collect()
}

impl Runs {
    /// The way back over those steps of a run that are wanted back and were not taken back before.
    /// Blocks.
    pub(in crate::deploy) fn way_back(
        &self,
        run: &Run,
        file: &RunFile,
        is_wanted: impl Fn(StepId) -> bool,
    ) -> Result<Result<UndoDraft, UndoError>, RunsError> {
        let plan = run.plan();
        let before: BTreeSet<String> =
            self.ways_back(&file.id)?.iter().flat_map(|way| undone(&way.run)).collect();
        let actions = self.actions();
        // What only looked has nothing to be taken back, unless somebody said what.
        let left_nothing = |step: &Step| {
            let action = actions.get(&step.call.action).filter(|_| step.undo.is_none());
            action.is_some_and(|action| action.only_looks(&step.call.input))
        };
        let is_wanted = |id: StepId| {
            is_wanted(id)
                && !before.contains(plan.vertex(id).name.as_str())
                && !plan.step(id).is_some_and(left_nothing)
        };
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

    /// What was taken back of a run, for its journal, before it goes on. Blocks.
    pub(super) fn settled(&self, id: &str) -> Result<Vec<Record>, RunsError> {
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
    pub(in crate::deploy) fn view_to_go_on(&self, id: &str) -> Result<View, RunsError> {
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
    pub(super) fn undo_by_itself(&self, run: &Run, entry: &Entry) -> bool {
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
        if self.is_anywhere(&id)? || !self.ways_back(&file.id)?.is_empty() {
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
        let left = told_gaps(run.plan(), &gaps);
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
        let gate = self.gate()?;
        self.launch(&Arc::new(plan), begin, id, gate.as_ref()).map(drop)
    }

    /// Whether a run is or was with some controller.
    fn is_anywhere(&self, id: &str) -> Result<bool, RunsError> {
        if folder::is_there(&self.0.root, id) {
            return Ok(true);
        }
        let Some(shared) = &self.0.shared else { return Ok(false) };
        Ok(shared.read(id)?.is_some() || shared.has_ended(id).map_err(FolderError::from)?)
    }

    /// The last run that takes back what this one did.
    pub(in crate::deploy) fn undone_by(&self, id: &str) -> Option<String> {
        let undoes = |known: &Known| match known {
            Known::Live(entry) => entry.file.undoes.as_deref() == Some(id),
            Known::Ended(run) | Known::Broken(run) => run.undoes.as_deref() == Some(id),
        };
        let known = self.lock();
        known.iter().rev().find(|(_, known)| undoes(known)).map(|(id, _)| id.clone())
    }

    /// Names of the instances of a run that others began to take back. Blocks.
    pub(in crate::deploy) fn undone(&self, id: &str) -> Result<BTreeSet<String>, RunsError> {
        Ok(self.ways_back(id)?.iter().flat_map(|way| taken_back(&way.run)).collect())
    }

    /// The runs that take back what this one did, the oldest first; without those after which it
    /// went on. Blocks.
    pub(in crate::deploy) fn ways_back(&self, id: &str) -> Result<Vec<View>, RunsError> {
        self.fetch_ways_back(id)?;
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

    /// Brings here what other controllers took back of a run, when that has ended. Blocks.
    fn fetch_ways_back(&self, id: &str) -> Result<(), RunsError> {
        let Some(shared) = self.0.shared.as_ref().filter(|_| self.live(id).is_none()) else {
            return Ok(());
        };
        for (way, has_ended) in shared.ways_back(id).map_err(FolderError::from)? {
            match self.lock().get(&way) {
                Some(Known::Live(_) | Known::Ended(_)) => continue,
                Some(Known::Broken(_)) | None => {}
            }
            if !has_ended {
                return Err(RunsError::TakenBack(way));
            }
            if let Some(stored) = shared.read(&way)? {
                folder::adopt(&self.0.root, &way, &stored)?;
                let summary = self.view(&way)?.summary();
                self.lock().insert(way, Known::Ended(summary));
            }
        }
        Ok(())
    }

    /// Whether a run that takes back another is of no importance any more: that one went on. Blocks.
    pub(in crate::deploy) fn is_outdated(&self, run: &RunSummary) -> bool {
        let undone = run.undoes.as_deref().and_then(|undone| self.view(undone).ok());
        undone.is_some_and(|undone| is_settled(&undone, &run.id))
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
