//! What an older run has done already, and a new one need not do again.

use std::collections::{BTreeSet, HashMap};

use crate::plan::{Kind, Made, Plan, StepId};
use crate::record::Record;
use crate::run::{Ended, Run, State};

/// Records for the beginning of a run of `new`: a step is carried over if it has the same name and
/// fingerprint as one that came to a good end in `old`, and nothing before it is done anew, or its
/// fingerprint covers what that could change. `name` is that of the old run. What was taken back
/// since, by name, is done anew: [`crate::undo::taken_back`] says what that is.
pub fn carry_over(
    old: &Run,
    name: &str,
    new: &Plan,
    taken_back: &BTreeSet<String>,
    at: u64,
) -> Vec<Record> {
    let mut done = done(old);
    done.retain(|name, _| !taken_back.contains(*name));
    let mut carried = Vec::new();
    // Whether something is done anew in a vertex, or behind it through vertices that do nothing.
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
                // Without all of its attempts it could not be taken back any more.
                match same.and_then(|done| Some((done.step, old.made(name, done.step)?))) {
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
    let record = |(step, from, made): (StepId, StepId, Vec<Made>)| {
        let changed = old.state(from) == State::Ended(Ended::Ok) || !made.is_empty();
        Record::Carried { step, changed, made, at }
    };
    carried.into_iter().map(record).collect()
}

struct Done<'a> {
    step: StepId,
    fingerprint: &'a str,
}

/// Steps of a run that came to a good end, by name. What failed and did not matter is not done.
fn done(run: &Run) -> HashMap<&str, Done<'_>> {
    let mut done = HashMap::new();
    for step in run.plan().ids() {
        let fingerprint = run.plan().step(step).and_then(|step| step.fingerprint.as_deref());
        let is_done = matches!(run.state(step), State::Ended(Ended::Ok | Ended::Unchanged));
        if let Some(fingerprint) = fingerprint.filter(|_| is_done) {
            done.insert(run.plan().vertex(step).name.as_str(), Done { step, fingerprint });
        }
    }
    done
}
