//! What a run has done, looked at again: a run of its own in which nothing is done and every check
//! is made once.

use std::collections::BTreeSet;

use hoist_deploy::checks::{Checks, checks_only};
use hoist_engine::StepId;
use hoist_engine::run::State;

use super::view::View;

/// The checks of all steps that came to a good end, or of those on some subjects.
pub(super) fn checks(view: &View, subjects: Option<&BTreeSet<u32>>) -> Checks {
    let is_good = |id: StepId| match view.run.state(id) {
        State::Ended(ended) => ended.is_good() && view.run.was_begun(id),
        _ => false,
    };
    let is_wanted = |id: StepId| {
        let subject = view.plan.step(id).and_then(|step| step.subject);
        subjects.is_none_or(|only| subject.is_some_and(|at| only.contains(&at)))
    };
    checks_only(view.plan.draft(), |id| is_good(id) && is_wanted(id))
}
