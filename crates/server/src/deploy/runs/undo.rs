//! Undo of runs, manual or automatic, and its effect on a resumed run.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use hoist_api::deploy::{RunState, RunSummary};
use hoist_diagnostic::chain;
use hoist_engine::plan::{OnCrash, Step};
use hoist_engine::undo::{
    Gap, GapKind, UndoDraft, UndoError, settle, steps_to_undo, undo_plan, undo_started, undone,
};
use hoist_engine::{Plan, Record, Run, StepId};
use ulid::Ulid;

use super::{Begin, CRASH, Known, Runs, RunsError, now_ms};
use crate::deploy::entry::Entry;
use crate::deploy::folder::{self, FolderError, RunFile};
use crate::deploy::view::View;

/// The author of an undo that a failure triggers.
const FAILURE: &str = "a failure";

/// Most instances that are named for one task and reason.
const MAX_NAMED: usize = 3;

/// The steps that cannot be undone, with reasons: a line for each task and reason.
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
            GapKind::NoUndo => "the task has no `undo`",
            GapKind::CommitPoint => "it cannot be undone",
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
    /// The undo plan for the selected steps of a run that were not undone before. Blocks.
    pub(in crate::deploy) fn undo_run(
        &self,
        run: &Run,
        file: &RunFile,
        is_wanted: impl Fn(StepId) -> bool,
    ) -> Result<Result<UndoDraft, UndoError>, RunsError> {
        let plan = run.plan();
        let before: BTreeSet<String> =
            self.undo_runs(&file.id)?.iter().flat_map(|way| undone(&way.run)).collect();
        let actions = self.actions();
        // A step that only read has nothing to undo, unless its task has an `undo`.
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
            let can = action.is_some_and(|action| action.can_undo(&step.call.input));
            (!can).then_some(GapKind::NoUndo)
        };
        Ok(undo_plan(run, &file.id, is_wanted, gap))
    }

    /// Records of undone steps, for the journal of a run before it resumes. Blocks.
    pub(super) fn settled(&self, id: &str) -> Result<Vec<Record>, RunsError> {
        let run = self.view(id)?;
        if let Some(undone) = &run.file.undoes
            && (self.goes_on(undone) || is_settled(&self.view(undone)?, id))
        {
            return Err(RunsError::WentOn(undone.clone()));
        }
        let mut records = Vec::new();
        for way in self.undo_runs(id)? {
            if self.goes_on(&way.file.id) || way.run.outcome().is_none() {
                return Err(RunsError::BeingUndone(way.file.id));
            }
            records.append(&mut settle(&run.run, &way.file.id, &way.run, now_ms()));
        }
        Ok(records)
    }

    /// The view of a run after a resume: undone steps count as not done. Blocks.
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

    /// Starts the automatic undo of a run, if its plan asks for one after this end. The run's
    /// thread must call this before the end is final; until then, recovery calls it again. Returns
    /// false if it must be retried.
    pub(super) fn undo_by_itself(&self, run: &Run, entry: &Entry) -> bool {
        let file = &entry.file;
        let records = entry.view().records;
        let Some((by, wanted)) = wish(run, &records) else { return true };
        // Those who were there before are known only now.
        while !*self.0.recovered.borrow() {
            std::thread::sleep(Duration::from_millis(5));
        }
        // A deterministic id guarantees that the undo starts once, however often it is tried.
        let id = id_of_undo(file, &records);
        let begun = self.undo_once(run, file, (by, &wanted), id);
        if let Err(error) = &begun {
            let error = chain(error);
            tracing::error!(
                run = file.id,
                error,
                "the automatic undo of the run has not started yet"
            );
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
        if self.is_anywhere(&id)? || !self.undo_runs(&file.id)?.is_empty() {
            return Ok(());
        }
        if self.0.leaving.load(Ordering::SeqCst) {
            return Err(RunsError::Stopping);
        }
        let Ok(UndoDraft { draft, gaps, .. }) =
            self.undo_run(run, file, |step| wanted.contains(&step))?
        else {
            return Ok(());
        };
        let left = told_gaps(run.plan(), &gaps);
        if !left.is_empty() {
            tracing::warn!(run = file.id, ?left, "some instances cannot be undone");
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
            allow_concurrent: true,
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
        Ok(shared.file(id)?.is_some() || shared.has_ended(id).map_err(FolderError::from)?)
    }

    /// The latest run that undoes this one.
    pub(in crate::deploy) fn undone_by(&self, id: &str) -> Option<String> {
        let undoes = |known: &Known| match known {
            Known::Live(entry) => entry.file.undoes.as_deref() == Some(id),
            Known::Ended(run) | Known::Broken(run) => run.undoes.as_deref() == Some(id),
        };
        let known = self.0.known.lock();
        known.iter().rev().find(|(_, known)| undoes(known)).map(|(id, _)| id.clone())
    }

    /// Names of the instances of a run whose undo has started. Blocks.
    pub(in crate::deploy) fn undone(&self, id: &str) -> Result<BTreeSet<String>, RunsError> {
        Ok(self.undo_runs(id)?.iter().flat_map(|way| undo_started(&way.run)).collect())
    }

    /// The runs that undo this one, the oldest first, without those that precede its latest resume.
    /// Blocks.
    pub(in crate::deploy) fn undo_runs(&self, id: &str) -> Result<Vec<View>, RunsError> {
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
        for (way, has_ended) in shared.undo_runs(id).map_err(FolderError::from)? {
            match self.0.known.lock().get(&way) {
                Some(Known::Live(_) | Known::Ended(_)) => continue,
                Some(Known::Broken(_)) | None => {}
            }
            if !has_ended {
                return Err(RunsError::BeingUndone(way));
            }
            if let Some(stored) = shared.read(&way)? {
                folder::adopt(&self.0.root, &way, &stored)?;
                let summary = self.view(&way)?.summary();
                self.0.known.lock().insert(way, Known::Ended(summary));
            }
        }
        Ok(())
    }

    /// Whether a run that undoes another is of no importance any more: that one went on. Blocks.
    pub(in crate::deploy) fn is_outdated(&self, run: &RunSummary) -> bool {
        let undone = run.undoes.as_deref().and_then(|undone| self.view(undone).ok());
        undone.is_some_and(|undone| is_settled(&undone, &run.id))
    }
}

/// Whether the run resumed after that undo.
fn is_settled(run: &View, undo_run: &str) -> bool {
    let is_of = |record: &Record| matches!(record, Record::Undone { run, .. } if run == undo_run);
    run.records.iter().any(is_of)
}

/// The steps of a just ended run that its plan wants undone, and the reason.
fn wish(run: &Run, records: &[Record]) -> Option<(&'static str, BTreeSet<StepId>)> {
    if run.plan().draft().on_crash == OnCrash::Undo && is_ended_by_crash(records) {
        return Some((CRASH, run.plan().ids().collect()));
    }
    Some((FAILURE, steps_to_undo(run))).filter(|(_, fallen)| !fallen.is_empty())
}

/// Whether a crash of the controller stopped the run, without a resume since.
fn is_ended_by_crash(records: &[Record]) -> bool {
    records.iter().fold(false, |ended, record| match record {
        Record::Stop { by, .. } => ended || by == CRASH,
        Record::Resume { .. } | Record::Retry { .. } => false,
        _ => ended,
    })
}

/// The id of the run that undoes this one up to the last of these records.
fn id_of_undo(file: &RunFile, records: &[Record]) -> String {
    let name = format!("{}/{}", file.id, records.len());
    let at = records.last().map_or(0, Record::at);
    let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, name.as_bytes());
    let mut bits = [0; 16];
    bits.copy_from_slice(&digest.as_ref()[..16]);
    let begun = Ulid::from_string(&file.id).map_or(0, |id| id.timestamp_ms());
    Ulid::from_parts(at.max(begun), u128::from_le_bytes(bits)).to_string().to_lowercase()
}
