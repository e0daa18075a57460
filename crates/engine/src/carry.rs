//! Finds the steps that a new run takes over from an older one instead of repeating them.

use std::collections::{BTreeSet, HashMap};

use crate::plan::{AppliedAttempt, Kind, Plan, StepId};
use crate::record::Record;
use crate::run::{Run, State, StepEnd};

/// Records for the beginning of a run of `new`. A step is carried over if a step of the same name
/// and fingerprint succeeded in `old`, and if no step before it is repeated or its fingerprint
/// covers their effects. `name` is the name of the old run. Steps in `undone` are repeated; see
/// [`crate::undo::undone`].
pub fn carry_over(
    old: &Run,
    name: &str,
    new: &Plan,
    undone: &BTreeSet<String>,
    at: u64,
) -> Vec<Record> {
    let mut done = finished_steps(old);
    done.retain(|name, _| !undone.contains(*name));
    let mut carried = Vec::new();
    // Whether a vertex is repeated, or follows a repeated step through vertices without an effect.
    let mut is_anew = vec![false; new.len()];
    for id in new.order() {
        let vertex = new.vertex(*id);
        let stale = vertex.after.iter().any(|before| is_anew[before.at()]);
        is_anew[id.at()] = match &vertex.kind {
            Kind::Step(step) if step.skip.is_none() => {
                let same = step.fingerprint.as_deref().and_then(|fingerprint| {
                    done.get(vertex.name.as_str()).filter(|done| done.fingerprint == fingerprint)
                });
                let same = same.filter(|_| !stale || step.knows_inputs);
                // Without all of its attempts the step could not be undone any more.
                match same.and_then(|done| Some((done.step, old.applied(name, done.step)?))) {
                    Some((from, made)) => {
                        carried.push((*id, from, made));
                        false
                    }
                    None => true,
                }
            }
            Kind::Step(_) | Kind::Join(_) => stale,
        };
    }
    carried.sort_unstable_by_key(|(step, ..)| *step);
    let record = |(step, from, made): (StepId, StepId, Vec<AppliedAttempt>)| {
        let changed = old.state(from) == State::Ended(StepEnd::Ok) || !made.is_empty();
        Record::Carried { step, changed, made, at }
    };
    carried.into_iter().map(record).collect()
}

struct FinishedStep<'a> {
    step: StepId,
    fingerprint: &'a str,
}

/// The succeeded steps of a run, by name. Ignored failures are not among them.
fn finished_steps(run: &Run) -> HashMap<&str, FinishedStep<'_>> {
    let mut done = HashMap::new();
    for step in run.plan().ids() {
        let fingerprint = run.plan().step(step).and_then(|step| step.fingerprint.as_deref());
        let is_done = matches!(run.state(step), State::Ended(StepEnd::Ok | StepEnd::Unchanged));
        if let Some(fingerprint) = fingerprint.filter(|_| is_done) {
            done.insert(run.plan().vertex(step).name.as_str(), FinishedStep { step, fingerprint });
        }
    }
    done
}
