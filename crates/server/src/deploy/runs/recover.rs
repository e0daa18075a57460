//! Recovery of earlier runs and of runs of other controllers: unfinished runs are read and
//! continued.

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::mpsc::channel;

use hoist_api::deploy::{RunState, RunSummary};
use hoist_diagnostic::chain;
use hoist_engine::Record;
use hoist_engine::plan::OnCrash;

use super::driver::Driver;
use super::{CRASH, Known, Runs, RunsError, alone, now_ms};
use crate::deploy::concurrent::open_nodes;
use crate::deploy::entry::{Entry, RunJournal};
use crate::deploy::folder::{self, FolderError, RunFile};
use crate::deploy::transport::Transport;

/// Why a run is read back.
pub(super) enum Why<'a> {
    /// It had not ended when this controller did.
    Unfinished,
    /// Its controller is gone.
    Left,
    /// A resume with these records; the flag allows other runs on its nodes.
    Asked(&'a [Record], bool),
}

/// Contains a panic: a bug in one run must not affect the others.
pub(super) fn caught<T>(work: impl FnOnce() -> Result<T, RunsError>) -> Result<T, RunsError> {
    std::panic::catch_unwind(AssertUnwindSafe(work)).unwrap_or(Err(RunsError::Panicked))
}

impl Runs {
    /// Waits until everything that was there at the start is known.
    pub(in crate::deploy) async fn recovered(&self) {
        // The sender lives as long as we do.
        let _ = self.0.recovered.subscribe().wait_for(|done| *done).await;
    }

    /// Reads the runs on disk and continues unfinished ones. Blocks.
    pub(in crate::deploy) fn recover(&self) {
        /// Whatever becomes of us, those who wait for us shall be answered.
        struct RecoveryGuard<'r>(&'r Runs);
        impl Drop for RecoveryGuard<'_> {
            fn drop(&mut self) {
                self.0.0.recovered.send_replace(true);
            }
        }
        let _done = RecoveryGuard(self);
        match folder::list(&self.0.root) {
            Ok(ids) => {
                for id in &ids {
                    self.recover_one(id);
                }
                self.let_agents_forget();
            }
            Err(error) => tracing::error!(error = %chain(&error), "runs cannot be read back"),
        }
        // Loads plug-ins now, so that no request waits for them.
        self.actions();
    }

    /// Lets agents drop jobs of unknown runs, once every run is readable; until then a job may
    /// belong to an unreadable one. With a shared store, other controllers may know the runs.
    pub(super) fn let_agents_forget(&self) {
        if !self.are_shared()
            && !self.0.known.lock().values().any(|known| matches!(known, Known::Broken(_)))
        {
            self.0.context.gateway.dispatcher.complete();
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
        self.0.known.lock().insert(id.to_owned(), known);
    }

    /// Takes up runs that other controllers have left. Blocks.
    pub(in crate::deploy) fn take_over(&self) {
        let Some(shared) = &self.0.shared else { return };
        let dispatcher = &self.0.context.gateway.dispatcher;
        // Whatever agents have work of was in the store before they got it.
        let mut unknown_runs = dispatcher.unknown_runs();
        let ids = match shared.list() {
            Ok(ids) => ids,
            Err(error) => return tracing::debug!(error = %chain(&error), "cannot examine the runs"),
        };
        let is_here =
            |id: &str| matches!(self.0.known.lock().get(id), Some(known) if !known.has_ended());
        unknown_runs.retain(|id| !ids.contains(id) && !is_here(id));
        dispatcher.disown(unknown_runs);
        for id in ids.into_iter().filter(|id| self.live(id).is_none() && folder::is_id(id)) {
            match caught(|| self.take_up(&id, &Why::Left)) {
                Ok(()) => tracing::info!(run = id, "taken over"),
                Err(RunsError::Folder(FolderError::InUse)) => {}
                Err(error) => {
                    let broken = self.broken(&id, &error);
                    self.0.known.lock().insert(id, broken);
                }
            }
        }
    }

    pub(super) fn broken(&self, id: &str, error: &dyn std::error::Error) -> Known {
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

    /// Reads a run back and lets it go on. Blocks.
    pub(super) fn take_up(&self, id: &str, why: &Why) -> Result<(), RunsError> {
        let _only_we = self.only_we();
        if self.live(id).is_some() {
            return Err(RunsError::UnderWay);
        }
        let came_back = match why {
            Why::Asked(..) => self.settled(id)?,
            Why::Unfinished | Why::Left => Vec::new(),
        };
        let gate = match why {
            Why::Asked(..) => self.gate()?,
            Why::Unfinished | Why::Left => None,
        };
        let claim = self.claim(id)?;
        let mut stored = match &self.0.shared {
            Some(shared) => shared.read(id)?,
            None => None,
        };
        if let Some(shared) = &self.0.shared
            && !matches!(why, Why::Asked(..))
            && match &stored {
                Some(stored) => stored.has_ended,
                None => shared.has_ended(id).map_err(FolderError::from)?,
            }
        {
            // Another controller owns the run; the local part is incomplete.
            if folder::is_there(&self.0.root, id) {
                folder::remove(&self.0.root, id).map_err(FolderError::from)?;
            }
            if let Some(claim) = claim {
                claim.leave();
            }
            return Err(FolderError::InUse.into());
        }
        let mut is_new_host = false;
        if let Some(stored) = &mut stored {
            is_new_host = stored.file.is_driven_on(&folder::host());
            folder::adopt(&self.0.root, id, stored)?;
        }
        let file = folder::read_run(&self.0.root, id)?;
        let mut back = folder::open(&self.0.root, id)?;
        let mut run = back.run;
        let on_crash = back.plan.draft().on_crash;
        let said = match why {
            Why::Asked(said, _) => [&came_back, *said].concat(),
            Why::Unfinished | Why::Left if back.crashed && run.outcome().is_none() => {
                after_crash(on_crash)
            }
            Why::Unfinished | Why::Left => Vec::new(),
        };
        // Whatever was said counts before anything is done.
        let before = back.records.len();
        for record in said {
            run.follow(back.records.len(), &record).map_err(|_| RunsError::NoEffect)?;
            back.records.push(record);
        }
        if matches!(why, Why::Asked(_, false))
            && let Err(shared) = self.concurrent_runs(id, &open_nodes(&run)).and_then(alone)
        {
            if let Some(claim) = claim {
                claim.leave();
            }
            return Err(shared);
        }
        let published = match (&claim, &stored) {
            (Some(claim), None) => {
                claim.publish(&file, &back.plan, &back.records[..before], gate.as_ref())
            }
            (Some(claim), Some(stored)) if stored.has_ended || is_new_host => {
                claim.reopen(&file, gate.as_ref())
            }
            _ => Ok(()),
        };
        published.map_err(FolderError::from)?;
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
        let shown = RunJournal { journal: back.journal, entry: Arc::clone(&entry), claim };
        let runs = self.clone();
        let folder = back.folder;
        // Registers before the recovery counts as complete.
        let transport = Transport::new(&self.0.context, &entry, &folder, &run);
        let driver = Driver { runs, shown, entry, folder, run, transport, told };
        let told = match why {
            Why::Left => "deploy.run.taken_over",
            Why::Unfinished | Why::Asked(..) => "deploy.run.resumed",
        };
        self.spawn(driver, told)
    }
}

/// The records for a run whose controller crashed, by the `on_crash` of its plan.
fn after_crash(on_crash: OnCrash) -> Vec<Record> {
    let by = CRASH.to_owned();
    let at = now_ms();
    match on_crash {
        OnCrash::Resume => Vec::new(),
        OnCrash::Ask => vec![Record::Pause { subject: None, paused: true, by, at }],
        OnCrash::Undo => vec![Record::Stop { now: true, by, at }],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_in_one_run_is_told_as_one_and_goes_no_further() {
        let error = caught::<()>(|| panic!("on purpose")).expect_err("it did not come to its end");
        assert!(matches!(error, RunsError::Panicked));
        assert_eq!(caught(|| Ok(7)).expect("it ended well"), 7);
    }
}
