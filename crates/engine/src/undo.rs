//! Taking a run back: a plan of its own, with what was done last first.
//!
//! Between steps that are taken back, whatever stood there stands there again as a join, so the
//! order among them is kept without an edge for each pair.

use std::collections::BTreeSet;

use crate::execute::references_of;
use crate::plan::{
    Call, Cohort, Draft, Holder, Kind, OnCrash, OnFailure, Plan, Pool, Repeat, Reversibility, Rule,
    Step, StepId, Vertex,
};
use crate::record::Record;
use crate::run::{Ended, Run, State};

/// What the name of a vertex on the way back begins with.
const UNDO: &str = "undo ";

/// What is to be taken back, and what cannot be.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct UndoDraft {
    pub draft: Draft,
    /// For each vertex of the draft, the step that it takes back.
    pub of: Vec<Option<StepId>>,
    pub gaps: Vec<Gap>,
}

/// A step that was begun and cannot be taken back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gap {
    pub step: StepId,
    pub kind: GapKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum GapKind {
    /// Nobody said how.
    NoUndo,
    /// It could be, but not the way that its subject is reached.
    NotThere,
    /// There is no way back from it.
    CommitPoint,
    /// More than [`MAX_MADE`](crate::run::MAX_MADE) attempts may have changed something.
    TooMany,
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum UndoError {
    #[error("the run has not ended; stop it first")]
    Unfinished,
    #[error("there is nothing to take back")]
    Nothing,
}

/// The way back over those steps of a run that were begun and are wanted back.
///
/// `name` is that of the run, and `gap` says of a step why what its action did cannot be taken back,
/// if that is so.
pub fn undo_plan(
    run: &Run,
    name: &str,
    is_wanted: impl Fn(StepId) -> bool,
    gap: impl Fn(&Step) -> Option<GapKind>,
) -> Result<UndoDraft, UndoError> {
    let plan = run.plan();
    if run.outcome().is_none() {
        return Err(UndoError::Unfinished);
    }
    let mut gaps = Vec::new();
    let mut calls: Vec<Option<(Call, Repeat)>> = vec![None; plan.len()];
    for id in plan.ids().filter(|id| run.was_begun(*id) && is_wanted(*id)) {
        let Some(step) = plan.step(id) else { continue };
        // All was done already: taking it back would take back what others did.
        if step.undo.is_none() && !run.left_traces(id) {
            continue;
        }
        match way_back(run, name, id, &gap) {
            Ok(call) => calls[id.at()] = Some(call),
            Err(kind) => gaps.push(Gap { step: id, kind }),
        }
    }
    if gaps.is_empty() && calls.iter().all(Option::is_none) {
        return Err(UndoError::Nothing);
    }
    let (vertices, of) = turn_around(plan, calls);
    let old = plan.draft();
    let count = u32::try_from(old.subjects.len()).unwrap_or(u32::MAX);
    let draft = Draft {
        vertices,
        subjects: old.subjects.clone(),
        // A subject that cannot be taken back stays as it is, and the others go on without it; but
        // it is not as it was, and that is no success.
        cohorts: vec![Cohort {
            name: "undo".to_owned(),
            tolerate: count,
            is_strict: true,
            ..Cohort::default()
        }],
        pools: old.pools.iter().map(back_pool).collect(),
        windows: old.windows.clone(),
        breaker: old.breaker,
        on_crash: OnCrash::Resume,
    };
    Ok(UndoDraft { draft, of, gaps })
}

/// The names of steps that a way back, which is run, has begun to take back: nobody can say of them
/// any more that they are done, however the taking back ended.
pub fn taken_back(way_back: &Run) -> BTreeSet<String> {
    names(way_back, |id| way_back.was_begun(id))
}

/// The names of those that it has taken back.
pub fn undone(way_back: &Run) -> BTreeSet<String> {
    names(way_back, |id| matches!(way_back.state(id), State::Ended(end) if end.is_good()))
}

/// The steps of a run that has ended which a failure asks to be taken back.
pub fn fallen(run: &Run) -> BTreeSet<StepId> {
    let plan = run.plan();
    let parts = || {
        plan.ids().filter_map(|id| {
            let step = plan.step(id).filter(|step| !step.undone_with.is_empty())?;
            Some((id, step, step.subject?))
        })
    };
    let mut failed = BTreeSet::new();
    for (id, step, subject) in parts() {
        if matches!(run.state(id), State::Ended(Ended::Failed(_))) {
            failed.extend(step.undone_with.iter().map(|cohort| (subject, *cohort)));
        }
    }
    let is_fallen = |step: &Step, subject: u32| {
        step.undone_with.iter().any(|cohort| failed.contains(&(subject, *cohort)))
    };
    let fallen = parts().filter(|(_, step, subject)| is_fallen(step, *subject));
    fallen.map(|(id, ..)| id).collect()
}

/// What a way back over a run came to, for the journal of that run: before it goes on, its own
/// records say what is not done any more. `name` is that of the way back.
pub fn settle(run: &Run, name: &str, way_back: &Run, at: u64) -> Vec<Record> {
    /// Steps in one record, so that it fits.
    const LOT: usize = 10_000;
    let (undone, begun) = (self::undone(way_back), taken_back(way_back));
    let named = |names: &BTreeSet<String>| -> Vec<StepId> {
        let is_meant = |id: &StepId| {
            run.plan().step(*id).is_some() && names.contains(&run.plan().vertex(*id).name)
        };
        run.plan().ids().filter(is_meant).collect()
    };
    let stuck = begun.difference(&undone).cloned().collect();
    let record = |undone: &[StepId], stuck: &[StepId]| Record::TakenBack {
        run: name.to_owned(),
        undone: undone.to_vec(),
        stuck: stuck.to_vec(),
        at,
    };
    let (undone, stuck) = (named(&undone), named(&stuck));
    // One at least, although nothing came of it: from here on it is too late for that.
    let mut records = vec![record(&[], &[])];
    records.extend(undone.chunks(LOT).map(|lot| record(lot, &[])));
    records.extend(stuck.chunks(LOT).map(|lot| record(&[], lot)));
    if records.len() > 1 {
        records.remove(0);
    }
    records
}

fn names(way_back: &Run, is_meant: impl Fn(StepId) -> bool) -> BTreeSet<String> {
    let plan = way_back.plan();
    let meant = plan.ids().filter(|id| is_meant(*id));
    let names = meant.filter_map(|id| plan.vertex(id).name.strip_prefix(UNDO));
    names.map(str::to_owned).collect()
}

fn way_back(
    run: &Run,
    name: &str,
    id: StepId,
    gap: impl Fn(&Step) -> Option<GapKind>,
) -> Result<(Call, Repeat), GapKind> {
    let step = run.plan().step(id).expect("only steps are begun");
    if step.reversibility == Reversibility::CommitPoint {
        return Err(GapKind::CommitPoint);
    }
    if let Some(call) = &step.undo {
        // What can be done twice can mostly be taken back twice; of the rest nobody can tell.
        let repeat = if step.repeat == Repeat::Safe { Repeat::Safe } else { Repeat::Fail };
        return Ok((call.clone(), repeat));
    }
    // What takes back is not taken back by doing it once more.
    let gap = if step.call.undoes.is_some() { Some(GapKind::NoUndo) } else { gap(step) };
    if let Some(gap) = gap {
        return Err(gap);
    }
    let undoes = Some(run.made(name, id).ok_or(GapKind::TooMany)?);
    Ok((Call { undoes, ..step.call.clone() }, Repeat::Safe))
}

/// A subject whose undo failed has no place to keep: it is left as it is.
fn back_pool(pool: &Pool) -> Pool {
    let held_by = match pool.held_by {
        Holder::Healthy => Holder::Subject,
        other => other,
    };
    Pool { held_by, ..pool.clone() }
}

/// The vertices of the way back, and what each takes back.
fn turn_around(
    plan: &Plan,
    mut calls: Vec<Option<(Call, Repeat)>>,
) -> (Vec<Vertex>, Vec<Option<StepId>>) {
    let is_step: Vec<bool> = calls.iter().map(Option::is_some).collect();
    // What has nothing to take back before it orders nothing.
    let mut leads = vec![false; plan.len()];
    for id in plan.order() {
        let before = &plan.vertex(*id).after;
        leads[id.at()] = before.iter().any(|at| leads[at.at()] || is_step[at.at()]);
    }
    let (mut vertices, mut of): (Vec<Vertex>, Vec<Option<StepId>>) = (Vec::new(), Vec::new());
    // For each vertex, what those before it wait for on the way back.
    let mut ends: Vec<Vec<StepId>> = vec![Vec::new(); plan.len()];
    for id in plan.order().iter().rev() {
        let mut after: Vec<StepId> = Vec::new();
        for next in plan.successors(*id) {
            after.extend_from_slice(&ends[next.at()]);
        }
        after.sort_unstable();
        after.dedup();
        let call = calls[id.at()].take();
        if call.is_none() && (!leads[id.at()] || after.len() <= 1) {
            ends[id.at()] = if leads[id.at()] { after } else { Vec::new() };
            continue;
        }
        let (kind, takes_back) = match (call, plan.step(*id)) {
            (Some((call, repeat)), Some(step)) => (back_step(step, call, repeat), Some(*id)),
            _ => (Kind::Join(Rule::All), None),
        };
        let name = match takes_back {
            Some(_) => format!("{UNDO}{}", plan.vertex(*id).name),
            None => plan.vertex(*id).name.clone(),
        };
        ends[id.at()] = vec![StepId(u32::try_from(vertices.len()).expect("plans are bounded"))];
        vertices.push(Vertex { name, after, kind });
        of.push(takes_back);
    }
    (vertices, of)
}

fn back_step(step: &Step, call: Call, repeat: Repeat) -> Kind {
    let on_failure = match step.subject {
        Some(_) => OnFailure::Stop,
        None => OnFailure::Continue,
    };
    Kind::Step(Box::new(Step {
        call,
        repeat,
        subject: step.subject,
        cohort: step.subject.map(|_| 0),
        pools: step.pools.clone(),
        retries: step.retries,
        delay_ms: step.delay_ms,
        timeout_ms: step.timeout_ms,
        may_use: step.may_use.clone(),
        on_failure,
        window: step.window,
        kin: step.kin,
        // What takes it back may print what it wrote.
        hides: references_of(step).map(str::to_owned).collect(),
        ..Step::default()
    }))
}
