//! Explains why a step does not run.

use std::collections::HashSet;
use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

use super::decide::Bar;
use super::tally::Class;
use super::{Run, State, StepEnd};
use crate::plan::{Kind, StepId, time_of_week};

/// Largest number of steps or subjects that a reason names; the rest is counted.
const NAMED: usize = 16;

/// Largest number of vertices that are searched once a cause is known. A caller that asks for all
/// steps must not wait for every path through the plan.
const LOOKED_AT: usize = 2048;

/// Why a vertex does not run or did not run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "why", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Reason {
    /// The vertex runs, has ended by itself, or is about to start.
    Nothing,
    /// These steps come first.
    Waits {
        steps: Vec<StepId>,
        more: usize,
    },
    /// All slots of the limit are taken.
    Limit {
        limit: u32,
        steps: Vec<StepId>,
        subjects: Vec<u32>,
    },
    Window {
        window: u32,
        opens_at: u64,
    },
    /// The step is on hold.
    Held,
    Paused {
        by: String,
    },
    SubjectPaused {
        subject: u32,
    },
    /// The outcome of these steps of the same subject is unknown.
    Undecided {
        steps: Vec<StepId>,
    },
    Delayed {
        until: u64,
    },
    /// The run is stopping, or was stopped before the step started.
    Stopped,
    /// These steps did not succeed.
    Blocked {
        roots: Vec<StepId>,
        more: usize,
    },
    /// The subject is left out because of these steps.
    LeftOut {
        roots: Vec<StepId>,
    },
    Skipped {
        reason: String,
    },
}

impl Run {
    /// Why a vertex does not run now, or did not run.
    pub fn why(&self, id: StepId) -> Reason {
        match self.state(id) {
            State::Waiting if self.is_stopping() => Reason::Stopped,
            State::Waiting => self.waits(id),
            State::Ready => self.why_not_now(id),
            State::Delayed => Reason::Delayed { until: self.tries[id.at()].due },
            State::Unknown => Reason::Undecided { steps: vec![id] },
            State::Ended(StepEnd::Blocked) => {
                let (roots, more) = first(self.roots(id));
                Reason::Blocked { roots, more }
            }
            State::Ended(StepEnd::LeftOut) => {
                let subject = self.plan.step(id).and_then(|step| step.subject);
                let roots = subject.map(|at| self.failed_on(at)).unwrap_or_default();
                Reason::LeftOut { roots: first(roots).0 }
            }
            State::Ended(StepEnd::Skipped) => {
                let reason = self.plan.step(id).and_then(|step| step.skip.clone());
                Reason::Skipped { reason: reason.unwrap_or_default() }
            }
            State::Ended(StepEnd::Stopped) => Reason::Stopped,
            State::Checking
            | State::Running
            | State::Verifying
            | State::VerifyingLost
            | State::Ended(_) => Reason::Nothing,
        }
    }

    /// The steps that a person must look at when nothing continues by itself: each ready step and
    /// each step with unknown outcome, with its reason.
    pub fn stuck(&self) -> Vec<(StepId, Reason)> {
        if self.outcome.is_some() || self.is_busy() || self.wakes_at().is_some() {
            return Vec::new();
        }
        let stands = |id: &StepId| matches!(self.state(*id), State::Ready | State::Unknown);
        let why = |id| (id, self.why(id));
        let stuck: Vec<_> = self.plan.ids().filter(stands).map(why).collect();
        // After reading back a run, steps that wait for their window are not yet in their queue.
        let wakes = stuck.iter().any(|(_, why)| matches!(why, Reason::Window { .. }));
        if wakes { Vec::new() } else { stuck }
    }

    /// A reason as a sentence.
    pub fn explain(&self, reason: &Reason) -> String {
        let steps = |steps: &[StepId], more: usize| {
            let names = steps.iter().map(|id| self.plan.vertex(*id).name.as_str());
            list(names, more)
        };
        let draft = self.plan.draft();
        match reason {
            Reason::Nothing => "nothing holds the step back".to_owned(),
            Reason::Waits { steps: before, more } => format!("waits for {}", steps(before, *more)),
            Reason::Limit { limit, steps: by, subjects } => {
                let limit = &draft.limits[*limit as usize];
                let subjects = subjects.iter().map(|at| draft.subjects[*at as usize].as_str());
                let steps = by.iter().map(|id| self.plan.vertex(*id).name.as_str());
                let by = list(subjects.chain(steps), 0);
                format!("all {} slots of `{}` are taken: {by}", limit.slots, limit.name)
            }
            Reason::Window { window, opens_at } => format!(
                "window `{}` is closed; it opens on {}",
                draft.windows[*window as usize].name,
                time_of_week(*opens_at)
            ),
            Reason::Held => "held by an operator; release it to continue".to_owned(),
            Reason::Paused { by } => format!("the run was paused by {by}"),
            Reason::SubjectPaused { subject } => {
                format!("`{}` is paused", draft.subjects[*subject as usize])
            }
            Reason::Undecided { steps: unknown } => {
                format!("the outcome of {} is unknown; mark or retry it", steps(unknown, 0))
            }
            Reason::Delayed { .. } => {
                "the last attempt failed; the next one is scheduled".to_owned()
            }
            Reason::Stopped => "the run was stopped before the step started".to_owned(),
            Reason::Blocked { roots, more } => format!("blocked by {}", steps(roots, *more)),
            Reason::LeftOut { roots } => {
                format!("the subject is left out because of {}", steps(roots, 0))
            }
            Reason::Skipped { reason } => format!("skipped: {reason}"),
        }
    }

    fn why_not_now(&self, id: StepId) -> Reason {
        if self.is_stopping() {
            return Reason::Stopped;
        }
        if let Some(by) = &self.paused {
            return Reason::Paused { by: by.clone() };
        }
        let step = self.step(id);
        match self.bar(id) {
            Some(Bar::Held) => Reason::Held,
            Some(Bar::Subject) => {
                let subject = step.subject.unwrap_or_default();
                let of_subject = self.of_subject[subject as usize].iter().copied();
                let unknown = of_subject.filter(|id| self.state(*id) == State::Unknown);
                let steps = first(unknown.collect()).0;
                if steps.is_empty() {
                    Reason::SubjectPaused { subject }
                } else {
                    Reason::Undecided { steps }
                }
            }
            Some(Bar::Window(window)) => {
                let opens_at = self.plan.draft().windows[window as usize].opens_at(self.seen);
                Reason::Window { window, opens_at }
            }
            None => self.full_limit(step).map_or(Reason::Nothing, |limit| self.limit_reason(limit)),
        }
    }

    pub(super) fn limit_reason(&self, limit: u32) -> Reason {
        let inside = |id: &&StepId| {
            let step = self.step(**id);
            step.limits.contains(&limit) && self.slots.at(limit, step).is_none()
        };
        let steps = self.in_flight.iter().filter(inside).copied().take(NAMED).collect();
        let slots = self.slots.of_subjects.iter();
        let subjects =
            slots.filter(|slot| slot.limit == limit && slot.held).map(|slot| slot.subject);
        Reason::Limit { limit, steps, subjects: subjects.take(NAMED).collect() }
    }

    /// The open steps before a vertex, looking through joins.
    fn waits(&self, id: StepId) -> Reason {
        let (steps, more) = first(self.walk_back(id, |before, steps| {
            let is_join = matches!(self.plan.vertex(before).kind, Kind::Join(_));
            let is_open = !matches!(self.state(before), State::Ended(_));
            if is_open && !is_join {
                steps.push(before);
            }
            is_open && is_join
        }));
        Reason::Waits { steps, more }
    }

    /// The steps whose own failure blocked a vertex.
    fn roots(&self, id: StepId) -> Vec<StepId> {
        let mut shut: Vec<StepId> = self.shut_by(id).collect();
        let mut roots = self.walk_back(id, |before, roots| match self.state(before) {
            State::Ended(ended) if self.passes_on_loss(before) => {
                if ended == StepEnd::Blocked {
                    roots.extend(self.shut_by(before));
                }
                if self.classes[before.at()] == Class::Bad {
                    return true;
                }
                let subject = self.plan.step(before).and_then(|step| step.subject);
                roots.extend(subject.map(|at| self.failed_on(at)).unwrap_or_default());
                false
            }
            State::Ended(ended) if !ended.is_good() => {
                roots.push(before);
                false
            }
            _ => false,
        });
        roots.append(&mut shut);
        roots.sort_unstable();
        roots.dedup();
        roots
    }

    /// Visits the predecessors of a vertex, each once, and continues behind those for which `look`
    /// returns true. Returns the collected steps in order; the search is cut short only after one
    /// is found.
    fn walk_back(
        &self,
        id: StepId,
        mut look: impl FnMut(StepId, &mut Vec<StepId>) -> bool,
    ) -> Vec<StepId> {
        let mut seen = HashSet::new();
        let mut found = Vec::new();
        let mut left = vec![id];
        while let Some(id) = left.pop() {
            for before in &self.plan.vertex(id).after {
                if seen.insert(*before) && look(*before, &mut found) {
                    left.push(*before);
                }
            }
            if seen.len() > LOOKED_AT && !found.is_empty() {
                break;
            }
        }
        found.sort_unstable();
        found.dedup();
        found
    }

    fn failed_on(&self, subject: u32) -> Vec<StepId> {
        let failed = |id: &StepId| matches!(self.state(*id), State::Ended(StepEnd::Failed(_)));
        self.of_subject[subject as usize].iter().copied().filter(failed).collect()
    }
}

fn first(mut steps: Vec<StepId>) -> (Vec<StepId>, usize) {
    let more = steps.len().saturating_sub(NAMED);
    steps.truncate(NAMED);
    (steps, more)
}

fn list<'a>(names: impl Iterator<Item = &'a str>, more: usize) -> String {
    let mut text = String::new();
    for name in names {
        let comma = if text.is_empty() { "" } else { ", " };
        write!(text, "{comma}`{name}`").expect("writing to memory");
    }
    if more > 0 {
        write!(text, " and {more} more").expect("writing to memory");
    }
    text
}
