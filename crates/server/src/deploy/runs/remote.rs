//! Runs of other controllers, as the shared store has them.

use std::collections::VecDeque;
use std::sync::Arc;

use hoist_api::deploy::RunSummary;
use hoist_diagnostic::chain;
use hoist_engine::run::State;
use hoist_engine::{Record, Run};
use parking_lot::Mutex;

use super::{Known, Runs, RunsError};
use crate::deploy::folder::{self, FolderError};
use crate::deploy::shared_runs::SharedRuns;
use crate::deploy::view::View;

/// Views that are kept, so that those who watch a run do not read its plan again and again.
const KEPT: usize = 4;

/// The views of the runs that were shown last, the latest at the end.
#[derive(Debug, Default)]
pub(super) struct RemoteViews(Mutex<VecDeque<View>>);

impl RemoteViews {
    fn take(&self, id: &str) -> Option<View> {
        let mut views = self.0.lock();
        let at = views.iter().position(|view| view.file.id == id)?;
        views.remove(at)
    }

    fn keep(&self, view: View) {
        let mut views = self.0.lock();
        views.retain(|kept| kept.file.id != view.file.id);
        views.push_back(view);
        if views.len() > KEPT {
            views.pop_front();
        }
    }
}

impl Runs {
    /// Whether a run has not ended, and is not driven by this controller. Blocks.
    pub(in crate::deploy) fn is_active_elsewhere(&self, id: &str) -> Result<bool, FolderError> {
        let Some(shared) = &self.0.shared else { return Ok(false) };
        if matches!(self.0.known.lock().get(id), Some(Known::Live(_) | Known::Broken(_))) {
            return Ok(false);
        }
        Ok(shared.is_active(id)?)
    }

    /// The view of a run whose journal in the store is newer than the one here, if there is one.
    /// Blocks.
    pub(super) fn remote_view(&self, id: &str) -> Result<Option<View>, RunsError> {
        let Some(shared) = &self.0.shared else { return Ok(None) };
        let known = self.0.known.lock().get(id).cloned();
        let is_here = folder::is_there(&self.0.root, id);
        match known {
            Some(Known::Live(_) | Known::Broken(_)) => return Ok(None),
            Some(Known::Ended(run)) if is_current(shared, &run) => return Ok(None),
            Some(Known::Ended(_)) | None => {}
        }
        let read = || match self.0.remote.take(id) {
            Some(view) => follow(shared, view),
            None => read(shared, id),
        };
        match read() {
            Ok(Some(view)) => {
                self.0.remote.keep(view.clone());
                Ok(Some(view))
            }
            Ok(None) if is_here => Ok(None),
            Ok(None) => Err(RunsError::Elsewhere(id.to_owned())),
            Err(error) if is_here => {
                tracing::debug!(run = id, error = %chain(&error), "shown as it is known here");
                Ok(None)
            }
            Err(error) => Err(RunsError::Folder(error)),
        }
    }
}

/// Whether no other controller took up the run since it ended here, as far as the store answers.
fn is_current(shared: &SharedRuns, here: &RunSummary) -> bool {
    let newest = shared.summary(&here.id).ok().flatten();
    newest.is_none_or(|newest| newest.records <= here.records)
}

fn read(shared: &SharedRuns, id: &str) -> Result<Option<View>, FolderError> {
    let Some(stored) = shared.read(id)? else { return Ok(None) };
    let plan = folder::plan_of(&stored.plan)?;
    let run = Run::replay(&plan, &stored.records)?;
    let records = Arc::new(stored.records);
    let view = View {
        file: stored.file,
        plan,
        records,
        waiting: waits(&run),
        run: Arc::new(run),
        is_broken: false,
    };
    Ok(Some(view))
}

/// The view with the records that the store got since.
fn follow(shared: &SharedRuns, mut view: View) -> Result<Option<View>, FolderError> {
    let id = view.file.id.clone();
    if shared.file(&id)?.is_none() {
        return Ok(None);
    }
    let new: Vec<Record> = shared.records_from(&id, view.records.len())?;
    let run = Arc::make_mut(&mut view.run);
    let records = Arc::make_mut(&mut view.records);
    for record in new {
        if run.follow(records.len(), &record).is_err() {
            // Not the run that was read before.
            return read(shared, &id);
        }
        records.push(record);
    }
    view.waiting = waits(run);
    Ok(Some(view))
}

/// Whether only an operator can make the run go on; its own controller knows it from its thread.
fn waits(run: &Run) -> bool {
    let is_unknown = || run.plan().ids().any(|id| run.state(id) == State::Unknown);
    run.outcome().is_none() && !run.is_busy() && is_unknown()
}
