//! What earlier runs of the same files have done, and how long that took.

use std::collections::BTreeMap;

use hoist_api::deploy::{Attempt, RunSummary, TaskFile};
use hoist_deploy::select::{History, HistoryEntry, PastOutcome};
use hoist_engine::Plan;
use hoist_engine::plan::Kind;
use hoist_engine::run::{State, StepEnd};

use super::runs::Runs;
use super::view::{View, attempts_of};

/// Runs that are looked back over.
const LOOKED_AT: usize = 20;

/// A longer duration, in milliseconds, is the effect of a changed clock.
const LONGEST_MS: u64 = 7 * 24 * 3600 * 1000;

/// What became of instances, and the milliseconds that tasks took.
#[derive(Debug, Default)]
pub(super) struct EarlierRuns {
    pub(super) past: History,
    pub(super) expected_ms: BTreeMap<String, u64>,
}

/// Looks back, the newest run first. Blocks.
pub(super) fn look_back(runs: &Runs, files: &[TaskFile]) -> EarlierRuns {
    let mut before = EarlierRuns::default();
    let is_same = |run: &RunSummary| {
        !files.is_empty() && run.files.iter().eq(files.iter().map(|file| &file.name))
    };
    for run in runs.list().iter().filter(|run| is_same(run)).take(LOOKED_AT) {
        if runs.is_outdated(run) {
            continue;
        }
        // One that cannot be read says nothing.
        if let Ok(view) = runs.view(&run.id) {
            before.add(&view);
        }
    }
    before
}

/// Drops successes whose inputs differ from those of the current files.
pub(super) fn forget_others(past: &mut History, now: Option<&Plan>) {
    let vertices = now.iter().flat_map(|now| &now.draft().vertices);
    let inputs: BTreeMap<&str, &Option<String>> = vertices
        .filter_map(|vertex| match &vertex.kind {
            Kind::Step(step) => Some((vertex.name.as_str(), &step.fingerprint)),
            Kind::Join(_) => None,
        })
        .collect();
    for (name, was) in past {
        let is_same = inputs.get(name.as_str()).is_some_and(|now| **now == was.fingerprint);
        if was.state == PastOutcome::Good && !is_same {
            was.state = PastOutcome::Open;
        }
    }
}

impl EarlierRuns {
    /// Known entries are from later runs.
    fn add(&mut self, view: &View) {
        let attempts = attempts_of(&view.records);
        for (id, step) in view.steps() {
            let state = match view.run.state(id) {
                State::Ended(StepEnd::Skipped) => continue,
                State::Ended(ended) if ended.is_good() => PastOutcome::Good,
                State::Ended(StepEnd::Failed(_) | StepEnd::Interrupted) => PastOutcome::Failed,
                State::Ended(StepEnd::Blocked | StepEnd::LeftOut) => PastOutcome::Blocked,
                _ => PastOutcome::Open,
            };
            // An undone instance counts as not done.
            let state = if view.file.undoes.is_some() { PastOutcome::Open } else { state };
            let was = HistoryEntry { state, fingerprint: step.fingerprint.clone() };
            let name = view.name(id);
            let name =
                name.strip_prefix("undo ").filter(|_| view.file.undoes.is_some()).unwrap_or(name);
            self.past.entry(name.to_owned()).or_insert(was);
            let took = attempts.get(&id).and_then(|of| of.last()).and_then(took);
            if let Some(took) = took.filter(|_| state == PastOutcome::Good) {
                self.expected_ms.entry(view.task(id).to_owned()).or_insert(took);
            }
        }
    }
}

/// How long an attempt took, as far as the clock can be trusted.
fn took(attempt: &Attempt) -> Option<u64> {
    let took = attempt.ended?.checked_sub(attempt.started?)?;
    (took <= LONGEST_MS).then_some(took)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn duration_across_a_clock_change_is_not_learned() {
        let at = |started, ended| {
            let end = String::new();
            let reason = String::new();
            took(&Attempt { attempt: 1, started: Some(started), ended, end, reason, check: None })
        };
        assert_eq!(at(1000, Some(1000 + LONGEST_MS)), Some(LONGEST_MS));
        assert_eq!(at(1000, Some(1001 + LONGEST_MS)), None, "it was set ahead");
        assert_eq!(at(1000, Some(999)), None, "it was set back");
        assert_eq!(at(1000, None), None);
    }
}
