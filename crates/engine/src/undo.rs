//! Makes the plan that undoes a run: the steps in reverse order.
//!
//! Where steps that are not undone lie between undone ones, a join takes their place if necessary.
//! This keeps the order without an edge for each pair.

use std::collections::BTreeSet;

use crate::plan::{
    Call, ConcurrencyLimit, Draft, FailureDomain, Holder, Kind, OnCrash, OnFailure, Plan, Repeat,
    Reversibility, Rule, Step, StepId, Vertex,
};
use crate::record::Record;
use crate::run::{Run, State, StepEnd};

/// Prefix of the names of undo vertices.
const UNDO: &str = "undo ";

/// The plan that undoes a run, and the steps that it cannot undo.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct UndoDraft {
    pub draft: Draft,
    /// For each vertex of the draft, the step that it undoes.
    pub of: Vec<Option<StepId>>,
    pub gaps: Vec<Gap>,
}

/// A step that was begun and cannot be undone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gap {
    pub step: StepId,
    pub kind: GapKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum GapKind {
    /// Neither the step nor its action has an undo.
    NoUndo,
    /// The step is a commit point.
    CommitPoint,
    /// More than [`MAX_APPLIED`](crate::run::MAX_APPLIED) attempts may have left changes.
    TooMany,
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum UndoError {
    #[error("the run has not ended; stop it first")]
    Unfinished,
    #[error("nothing to undo")]
    Nothing,
}

/// Plans the undo of those begun steps of a run that `is_wanted` selects. `name` is the name of the
/// run. `gap` tells why an action cannot undo a step; `None` if it can.
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
        // The step changed nothing; undoing it would undo the work of others.
        if step.undo.is_none() && !run.left_traces(id) {
            continue;
        }
        match undo_call(run, name, id, &gap) {
            Ok(call) => calls[id.at()] = Some(call),
            Err(kind) => gaps.push(Gap { step: id, kind }),
        }
    }
    if gaps.is_empty() && calls.iter().all(Option::is_none) {
        return Err(UndoError::Nothing);
    }
    let (vertices, of) = reverse(plan, calls);
    let old = plan.draft();
    let count = u32::try_from(old.subjects.len()).unwrap_or(u32::MAX);
    let draft = Draft {
        vertices,
        subjects: old.subjects.clone(),
        // A subject whose undo fails keeps its state and the others continue, but the undo run has
        // failed.
        failure_domains: vec![FailureDomain {
            name: "undo".to_owned(),
            tolerate: count,
            is_strict: true,
            ..FailureDomain::default()
        }],
        limits: old.limits.iter().map(undo_limit).collect(),
        windows: old.windows.clone(),
        breaker: old.breaker,
        on_crash: OnCrash::Resume,
    };
    Ok(UndoDraft { draft, of, gaps })
}

/// The names of steps that an undo run has begun to undo. They no longer count as done, whether or
/// not the undo succeeded.
pub fn undo_started(undo_run: &Run) -> BTreeSet<String> {
    names(undo_run, |id| undo_run.was_begun(id))
}

/// The names of steps that an undo run has undone.
pub fn undone(undo_run: &Run) -> BTreeSet<String> {
    names(undo_run, |id| matches!(undo_run.state(id), State::Ended(end) if end.is_good()))
}

/// The steps of an ended run that must be undone because of a failure.
pub fn steps_to_undo(run: &Run) -> BTreeSet<StepId> {
    let plan = run.plan();
    let parts = || {
        plan.ids().filter_map(|id| {
            let step = plan.step(id).filter(|step| !step.undone_with.is_empty())?;
            Some((id, step, step.subject?))
        })
    };
    let mut failed = BTreeSet::new();
    for (id, step, subject) in parts() {
        if matches!(run.state(id), State::Ended(StepEnd::Failed(_))) {
            failed.extend(step.undone_with.iter().map(|failure_domain| (subject, *failure_domain)));
        }
    }
    let is_meant = |step: &Step, subject: u32| {
        step.undone_with.iter().any(|failure_domain| failed.contains(&(subject, *failure_domain)))
    };
    let affected = parts().filter(|(_, step, subject)| is_meant(step, *subject));
    affected.map(|(id, ..)| id).collect()
}

/// The result of an undo run as records for the journal of the original run. They must be in that
/// journal before the run is resumed. `name` is the name of the undo run.
pub fn settle(run: &Run, name: &str, undo_run: &Run, at: u64) -> Vec<Record> {
    /// Steps per record, so that each record fits its size limit.
    const LOT: usize = 10_000;
    let undone = self::undone(undo_run);
    let begun = undo_started(undo_run);
    let named = |names: &BTreeSet<String>| -> Vec<StepId> {
        let is_meant = |id: &StepId| {
            run.plan().step(*id).is_some() && names.contains(&run.plan().vertex(*id).name)
        };
        run.plan().ids().filter(is_meant).collect()
    };
    let stuck = begun.difference(&undone).cloned().collect();
    let record = |undone: &[StepId], stuck: &[StepId]| Record::Undone {
        run: name.to_owned(),
        undone: undone.to_vec(),
        stuck: stuck.to_vec(),
        at,
    };
    let undone = named(&undone);
    let stuck = named(&stuck);
    // At least one record, even without steps: from here on the undo run counts as settled.
    let mut records = vec![record(&[], &[])];
    records.extend(undone.chunks(LOT).map(|lot| record(lot, &[])));
    records.extend(stuck.chunks(LOT).map(|lot| record(&[], lot)));
    if records.len() > 1 {
        records.remove(0);
    }
    records
}

fn names(undo_run: &Run, is_meant: impl Fn(StepId) -> bool) -> BTreeSet<String> {
    let plan = undo_run.plan();
    let meant = plan.ids().filter(|id| is_meant(*id));
    let names = meant.filter_map(|id| plan.vertex(id).name.strip_prefix(UNDO));
    names.map(str::to_owned).collect()
}

fn undo_call(
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
        // If a step can be repeated, its undo mostly can; otherwise it is unknown.
        let repeat = if step.repeat == Repeat::Safe { Repeat::Safe } else { Repeat::Fail };
        return Ok((call.clone(), repeat));
    }
    // Repeating an undo does not undo it.
    let gap = if step.call.undoes.is_some() { Some(GapKind::NoUndo) } else { gap(step) };
    if let Some(gap) = gap {
        return Err(gap);
    }
    let undoes = Some(run.applied(name, id).ok_or(GapKind::TooMany)?);
    Ok((Call { undoes, ..step.call.clone() }, Repeat::Safe))
}

/// A subject whose undo failed is left as it is and must not keep its slot.
fn undo_limit(limit: &ConcurrencyLimit) -> ConcurrencyLimit {
    let held_by = match limit.held_by {
        Holder::Healthy => Holder::Subject,
        other => other,
    };
    ConcurrencyLimit { held_by, ..limit.clone() }
}

/// The vertices of the undo plan, and the step that each undoes.
fn reverse(
    plan: &Plan,
    mut calls: Vec<Option<(Call, Repeat)>>,
) -> (Vec<Vertex>, Vec<Option<StepId>>) {
    let is_step: Vec<bool> = calls.iter().map(Option::is_some).collect();
    // A vertex without undone predecessors orders nothing.
    let mut leads = vec![false; plan.len()];
    for id in plan.order() {
        let before = &plan.vertex(*id).after;
        leads[id.at()] = before.iter().any(|at| leads[at.at()] || is_step[at.at()]);
    }
    let mut vertices: Vec<Vertex> = Vec::new();
    let mut of: Vec<Option<StepId>> = Vec::new();
    // For each vertex, the undo vertices that its predecessors must wait for.
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
        let (kind, undoes) = match (call, plan.step(*id)) {
            (Some((call, repeat)), Some(step)) => (undo_step(step, call, repeat), Some(*id)),
            _ => (Kind::Join(Rule::All), None),
        };
        let name = match undoes {
            Some(_) => format!("{UNDO}{}", plan.vertex(*id).name),
            None => plan.vertex(*id).name.clone(),
        };
        ends[id.at()] = vec![StepId(u32::try_from(vertices.len()).expect("plans are bounded"))];
        vertices.push(Vertex { name, after, kind });
        of.push(undoes);
    }
    (vertices, of)
}

fn undo_step(step: &Step, call: Call, repeat: Repeat) -> Kind {
    let on_failure = match step.subject {
        Some(_) => OnFailure::Stop,
        None => OnFailure::Continue,
    };
    Kind::Step(Box::new(Step {
        call,
        repeat,
        subject: step.subject,
        failure_domain: step.subject.map(|_| 0),
        limits: step.limits.clone(),
        retries: step.retries,
        delay_ms: step.delay_ms,
        timeout_ms: step.timeout_ms,
        may_use: step.may_use.clone(),
        on_failure,
        window: step.window,
        kin: step.kin,
        // The undo may print text that the step wrote.
        hides: step.secret_references().map(str::to_owned).collect(),
        ..Step::default()
    }))
}
