//! What a run has done, looked at again: a run of its own in which nothing is done and every check
//! is made once.

use std::collections::BTreeSet;

use hoist_engine::StepId;
use hoist_engine::plan::{Call, Draft, Kind, OnFailure, Repeat, Step, Vertex};
use hoist_engine::run::State;
use serde_json::{Value, json};

use super::view::View;

/// The checks of all steps that came to a good end, or of those on some subjects; `None` if there
/// are none.
pub(super) fn draft(view: &View, subjects: Option<&BTreeSet<u32>>) -> Option<Draft> {
    let wanted = |step: &Step| {
        !step.after.is_empty()
            && subjects.is_none_or(|only| step.subject.is_some_and(|at| only.contains(&at)))
    };
    let good = |id: StepId| match view.run.state(id) {
        State::Ended(ended) => ended.is_good() && view.run.was_begun(id),
        _ => false,
    };
    let steps = view.steps().filter(|(id, step)| good(*id) && wanted(step));
    let vertices: Vec<Vertex> = steps.map(|(id, step)| vertex(view.name(id), step)).collect();
    let old = view.plan.draft();
    (!vertices.is_empty()).then(|| Draft {
        vertices,
        subjects: old.subjects.clone(),
        pools: old.pools.clone(),
        ..Draft::default()
    })
}

fn vertex(name: &str, step: &Step) -> Vertex {
    let look = Step {
        call: Call { action: "none".to_owned(), input: json!({}), ..Call::default() },
        after: step.after.iter().map(once).collect(),
        subject: step.subject,
        pools: step.pools.clone(),
        repeat: Repeat::Safe,
        timeout_ms: step.timeout_ms,
        on_failure: OnFailure::Continue,
        ..Step::default()
    };
    let (name, kind) = (format!("check {name}"), Kind::Step(Box::new(look)));
    Vertex { name, after: Vec::new(), kind }
}

/// What should hold already is not waited for.
fn once(check: &Call) -> Call {
    let mut check = check.clone();
    if let Value::Object(input) = &mut check.input {
        input.shift_remove("poll");
    }
    check
}
