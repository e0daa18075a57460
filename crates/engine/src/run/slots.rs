//! The slots of concurrency limits: who holds them, and who gets the next one.

use std::collections::HashMap;
use std::sync::Arc;

use super::{Run, State, StepEnd};
use crate::plan::{Draft, Holder, Kind, Step, StepId};

#[derive(Debug, Clone, Default)]
pub(super) struct Slots {
    /// Number of used slots for each limit.
    pub(super) used: Vec<u32>,
    /// Slots of subjects, for limits that subjects hold.
    pub(super) of_subjects: Vec<Slot>,
    index: HashMap<(u32, u32), usize>,
}

/// The slot of a subject in a limit.
#[derive(Debug, Clone, Copy)]
pub(super) struct Slot {
    pub(super) limit: u32,
    pub(super) subject: u32,
    /// Its steps in the limit that have not ended.
    open: u32,
    /// Its steps in the limit that failed or whose outcome is unknown.
    ill: u32,
    pub(super) held: bool,
    /// Whether a record proves that the slot is held; a running check alone does not.
    pub(super) is_sure: bool,
}

impl Slots {
    pub(super) fn new(draft: &Draft) -> Self {
        let mut slots = Self { used: vec![0; draft.limits.len()], ..Self::default() };
        for vertex in &draft.vertices {
            let Kind::Step(step) = &vertex.kind else { continue };
            let Some(subject) = step.subject else { continue };
            for limit in &step.limits {
                if draft.limits[*limit as usize].held_by != Holder::Step {
                    let next = slots.of_subjects.len();
                    if *slots.index.entry((*limit, subject)).or_insert(next) == next {
                        let limit = *limit;
                        let held = false;
                        let is_sure = false;
                        slots.of_subjects.push(Slot {
                            limit,
                            subject,
                            open: 0,
                            ill: 0,
                            held,
                            is_sure,
                        });
                    }
                }
            }
        }
        slots
    }

    /// The slot of the step's subject, if subjects hold the slots of the limit.
    pub(super) fn at(&self, limit: u32, step: &Step) -> Option<usize> {
        if self.of_subjects.is_empty() {
            return None;
        }
        self.index.get(&(limit, step.subject?)).copied()
    }

    pub(super) fn forget_counts(&mut self) {
        for slot in &mut self.of_subjects {
            (slot.open, slot.ill) = (0, 0);
        }
    }
}

fn is_open(state: State) -> bool {
    !matches!(state, State::Ended(_))
}

fn is_ill(state: State) -> bool {
    matches!(state, State::Unknown | State::Ended(StepEnd::Failed(_) | StepEnd::Interrupted))
}

impl Run {
    /// The first limit of a step without a free slot.
    pub(super) fn full_limit(&self, step: &Step) -> Option<u32> {
        let is_full = |limit: &u32| {
            self.slots.at(*limit, step).is_none_or(|at| !self.slots.of_subjects[at].held)
                && self.is_full(*limit)
        };
        step.limits.iter().copied().find(is_full)
    }

    fn is_full(&self, limit: u32) -> bool {
        self.slots.used[limit as usize] >= self.plan.draft().limits[limit as usize].slots
    }

    /// Offers free slots to the next waiting steps, because this step cannot use them yet.
    pub(super) fn pass_on(&mut self, id: StepId) {
        let plan = Arc::clone(&self.plan);
        for limit in plan.step(id).into_iter().flat_map(|step| &step.limits) {
            if !self.is_full(*limit) {
                self.queues.call(*limit as usize);
            }
        }
    }

    /// Takes the slots of a step that begins; `is_sure` if there is a record of it.
    pub(super) fn take(&mut self, id: StepId, is_sure: bool) {
        let is_new = self.in_flight.insert(id);
        let plan = Arc::clone(&self.plan);
        let step = plan.step(id).expect("only steps hold slots");
        for limit in &step.limits {
            let Some(at) = self.slots.at(*limit, step) else {
                self.slots.used[*limit as usize] += u32::from(is_new);
                continue;
            };
            self.slots.of_subjects[at].is_sure |= is_sure;
            if !std::mem::replace(&mut self.slots.of_subjects[at].held, true) {
                self.slots.used[*limit as usize] += 1;
                self.call_fellows(*limit, step);
            }
        }
    }

    /// Marks the slot of a subject as held; `None` if there is no such slot.
    pub(super) fn occupy(&mut self, limit: u32, subject: u32) -> Option<()> {
        let at = *self.slots.index.get(&(limit, subject))?;
        let slot = &mut self.slots.of_subjects[at];
        (slot.held, slot.is_sure) = (true, true);
        self.slots.used[limit as usize] += 1;
        Some(())
    }

    /// Reconsiders the other steps of a subject that got its slot.
    fn call_fellows(&mut self, limit: u32, step: &Step) {
        let Some(subject) = step.subject else { return };
        for fellow in &self.of_subject[subject as usize] {
            let rank = self.plan.rank(*fellow);
            if self.queues.parked[limit as usize].remove(&rank) {
                self.queues.ready.insert(rank);
            }
        }
    }

    /// Releases the slots of a step, and those that its subject holds only for this step.
    pub(super) fn release(&mut self, id: StepId) {
        if !self.in_flight.remove(&id) {
            return;
        }
        let plan = Arc::clone(&self.plan);
        let step = plan.step(id).expect("only steps hold slots");
        for limit in &step.limits {
            if let Some(at) = self.slots.at(*limit, step) {
                if !self.is_only_looked_at(at) {
                    continue;
                }
                self.slots.of_subjects[at].held = false;
            }
            self.slots.used[*limit as usize] -= 1;
            // One free slot admits one step. If that step waits for another limit as well, it is
            // checked in its turn.
            self.queues.call(*limit as usize);
        }
    }

    /// Whether a subject holds its slot only for a check that has ended.
    fn is_only_looked_at(&self, at: usize) -> bool {
        let Slot { limit, subject, held, is_sure, .. } = self.slots.of_subjects[at];
        let uses = |id: &StepId| {
            let step = self.step(*id);
            step.subject == Some(subject) && step.limits.contains(&limit)
        };
        held && !is_sure && !self.in_flight.iter().any(uses)
    }

    /// The first step that would wait for a slot forever, and why. This is the case if nothing runs
    /// or is scheduled, nothing is paused or on hold, and the holders of the slots wait themselves.
    pub(super) fn find_deadlock(&self) -> Option<(StepId, String)> {
        let is_left_alone = self.may_start()
            && !self.is_busy()
            && self.wakes_at().is_none()
            && self.queues.held.is_empty()
            && !self.paused_subjects.contains(&true)
            && self.undecided.iter().all(|count| *count == 0);
        if !is_left_alone {
            return None;
        }
        // A step is queued in only one of its full limits.
        let parked = || self.queues.parked.iter().flatten();
        let wants =
            |rank: &u32, limit: u32| self.step(self.plan.ranked(*rank)).limits.contains(&limit);
        let is_wanted = |limit: u32| parked().any(|rank| wants(rank, limit));
        // A person can resolve failed holders.
        let is_ill = |slot: &Slot| slot.held && slot.open == 0 && is_wanted(slot.limit);
        if self.slots.of_subjects.iter().any(is_ill) {
            return None;
        }
        let first = parked().min()?;
        let id = self.plan.ranked(*first);
        let limit = self.full_limit(self.step(id))?;
        Some((id, self.explain_deadlock(limit)))
    }

    fn explain_deadlock(&self, limit: u32) -> String {
        let is_left =
            |id: &&StepId| is_open(self.state(**id)) && self.step(**id).limits.contains(&limit);
        let keeps = |slot: &&Slot| slot.limit == limit && slot.held;
        let mut holders = self.slots.of_subjects.iter().filter(keeps);
        let left =
            holders.find_map(|slot| self.of_subject[slot.subject as usize].iter().find(is_left));
        let waits = left.map_or_else(String::new, |id| {
            let name = &self.plan.vertex(*id).name;
            let why = self.explain(&self.why(*id));
            format!("; there `{name}`: {why}")
        });
        let full = self.explain(&self.limit_reason(limit));
        format!(
            "deadlock: {full}{waits}; raise the limit, or remove the dependency between these steps"
        )
    }

    /// Releases the slot of a subject that no longer needs it.
    pub(super) fn settle(&mut self, at: usize) {
        // Subjects keep their slots across the end of a run, for a later resume.
        if self.outcome.is_some() {
            return;
        }
        let Self { slots, queues, plan, .. } = self;
        let slot = &mut slots.of_subjects[at];
        let limit = slot.limit as usize;
        let is_well = slot.ill == 0 || plan.draft().limits[limit].held_by != Holder::Healthy;
        if slot.held && slot.open == 0 && is_well {
            (slot.held, slot.is_sure) = (false, false);
            slots.used[limit] -= 1;
            queues.call(limit);
        }
    }

    /// Counts a change of state in the slots of the subject.
    pub(super) fn count_in_slots(&mut self, id: StepId, was: Option<State>, is: State) {
        if self.slots.of_subjects.is_empty() {
            return;
        }
        let plan = Arc::clone(&self.plan);
        let Some(step) = plan.step(id) else { return };
        for limit in &step.limits {
            let Some(at) = self.slots.at(*limit, step) else { continue };
            let slot = &mut self.slots.of_subjects[at];
            slot.open += u32::from(is_open(is));
            slot.ill += u32::from(is_ill(is));
            if let Some(was) = was {
                slot.open -= u32::from(is_open(was));
                slot.ill -= u32::from(is_ill(was));
                self.settle(at);
            }
        }
    }
}
