//! Places in pools: who has one, and who gets it next.

use std::collections::HashMap;
use std::sync::Arc;

use super::{Ended, Run, State};
use crate::plan::{Draft, Holder, Kind, Step, StepId};

#[derive(Debug, Clone, Default)]
pub(super) struct Places {
    /// For each pool.
    pub(super) used: Vec<u32>,
    /// Those of subjects, in pools that subjects hold.
    pub(super) of_subjects: Vec<Place>,
    index: HashMap<(u32, u32), usize>,
}

/// A subject's place in a pool.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    pub(super) pool: u32,
    pub(super) subject: u32,
    /// Its steps there that have not come to an end.
    open: u32,
    /// Its steps there that failed, or of which nobody knows how they ended.
    ill: u32,
    pub(super) held: bool,
    /// A record says that it is held: it is not only being looked at whether a step may start.
    pub(super) is_sure: bool,
}

impl Places {
    pub(super) fn new(draft: &Draft) -> Self {
        let mut places = Self { used: vec![0; draft.pools.len()], ..Self::default() };
        for vertex in &draft.vertices {
            let Kind::Step(step) = &vertex.kind else { continue };
            let Some(subject) = step.subject else { continue };
            for pool in &step.pools {
                if draft.pools[*pool as usize].held_by != Holder::Step {
                    let next = places.of_subjects.len();
                    if *places.index.entry((*pool, subject)).or_insert(next) == next {
                        let (pool, held, is_sure) = (*pool, false, false);
                        places.of_subjects.push(Place {
                            pool,
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
        places
    }

    /// The place of the step's subject, if subjects hold the places of the pool.
    pub(super) fn at(&self, pool: u32, step: &Step) -> Option<usize> {
        if self.of_subjects.is_empty() {
            return None;
        }
        self.index.get(&(pool, step.subject?)).copied()
    }

    pub(super) fn forget_counts(&mut self) {
        for place in &mut self.of_subjects {
            (place.open, place.ill) = (0, 0);
        }
    }
}

fn is_open(state: State) -> bool {
    !matches!(state, State::Ended(_))
}

fn is_ill(state: State) -> bool {
    matches!(state, State::Unknown | State::Ended(Ended::Failed(_) | Ended::Interrupted))
}

impl Run {
    /// The first pool of a step that has no place for it.
    pub(super) fn full_pool(&self, step: &Step) -> Option<u32> {
        let is_full = |pool: &u32| {
            self.places.at(*pool, step).is_none_or(|at| !self.places.of_subjects[at].held)
                && self.is_full(*pool)
        };
        step.pools.iter().copied().find(is_full)
    }

    fn is_full(&self, pool: u32) -> bool {
        self.places.used[pool as usize] >= self.plan.draft().pools[pool as usize].places
    }

    /// Places that were kept for a step that cannot use them yet are for who comes next.
    pub(super) fn pass_on(&mut self, id: StepId) {
        let plan = Arc::clone(&self.plan);
        for pool in plan.step(id).into_iter().flat_map(|step| &step.pools) {
            if !self.is_full(*pool) {
                self.queues.call(*pool as usize);
            }
        }
    }

    /// Takes the places of a step that begins; `is_sure` when there is a record of it.
    pub(super) fn take(&mut self, id: StepId, is_sure: bool) {
        let is_new = self.in_flight.insert(id);
        let plan = Arc::clone(&self.plan);
        let step = plan.step(id).expect("only steps hold places");
        for pool in &step.pools {
            let Some(at) = self.places.at(*pool, step) else {
                self.places.used[*pool as usize] += u32::from(is_new);
                continue;
            };
            self.places.of_subjects[at].is_sure |= is_sure;
            if !std::mem::replace(&mut self.places.of_subjects[at].held, true) {
                self.places.used[*pool as usize] += 1;
                self.call_fellows(*pool, step);
            }
        }
    }

    /// A subject has its place in a pool; nothing, if there is no such place.
    pub(super) fn occupy(&mut self, pool: u32, subject: u32) -> Option<()> {
        let at = *self.places.index.get(&(pool, subject))?;
        let place = &mut self.places.of_subjects[at];
        (place.held, place.is_sure) = (true, true);
        self.places.used[pool as usize] += 1;
        Some(())
    }

    /// Steps of a subject that has got its place in the pool need not wait for one.
    fn call_fellows(&mut self, pool: u32, step: &Step) {
        let Some(subject) = step.subject else { return };
        for fellow in &self.of_subject[subject as usize] {
            let rank = self.plan.rank(*fellow);
            if self.queues.parked[pool as usize].remove(&rank) {
                self.queues.ready.insert(rank);
            }
        }
    }

    /// Gives back what a step had for itself, and what its subject had only because of it.
    pub(super) fn release(&mut self, id: StepId) {
        if !self.in_flight.remove(&id) {
            return;
        }
        let plan = Arc::clone(&self.plan);
        let step = plan.step(id).expect("only steps hold places");
        for pool in &step.pools {
            if let Some(at) = self.places.at(*pool, step) {
                if !self.is_only_looked_at(at) {
                    continue;
                }
                self.places.of_subjects[at].held = false;
            }
            self.places.used[*pool as usize] -= 1;
            // One place, one that gets it; what it waits for besides, it is told when it is its
            // turn.
            self.queues.call(*pool as usize);
        }
    }

    /// Whether a subject has its place though nothing began there, and nothing is about to.
    fn is_only_looked_at(&self, at: usize) -> bool {
        let Place { pool, subject, held, is_sure, .. } = self.places.of_subjects[at];
        let uses = |id: &StepId| {
            let step = self.step(*id);
            step.subject == Some(subject) && step.pools.contains(&pool)
        };
        held && !is_sure && !self.in_flight.iter().any(uses)
    }

    /// The first step that would wait for a place for ever, and why: nothing is under way, nothing
    /// begins with time, no person holds anything back, and whoever keeps the places has something
    /// left to do that waits in turn.
    pub(super) fn jam(&self) -> Option<(StepId, String)> {
        let is_left_alone = self.may_start()
            && !self.is_busy()
            && self.wakes_at().is_none()
            && self.queues.held.is_empty()
            && !self.paused_subjects.contains(&true)
            && self.undecided.iter().all(|count| *count == 0);
        if !is_left_alone {
            return None;
        }
        // In which of its full pools a step is parked is chance.
        let parked = || self.queues.parked.iter().flatten();
        let wants =
            |rank: &u32, pool: u32| self.step(self.plan.ranked(*rank)).pools.contains(&pool);
        let is_wanted = |pool: u32| parked().any(|rank| wants(rank, pool));
        // A person can make those well that have only failed.
        let is_ill = |place: &Place| place.held && place.open == 0 && is_wanted(place.pool);
        if self.places.of_subjects.iter().any(is_ill) {
            return None;
        }
        let first = parked().min()?;
        let id = self.plan.ranked(*first);
        let pool = self.full_pool(self.step(id))?;
        Some((id, self.explain_jam(pool)))
    }

    fn explain_jam(&self, pool: u32) -> String {
        let is_left =
            |id: &&StepId| is_open(self.state(**id)) && self.step(**id).pools.contains(&pool);
        let keeps = |place: &&Place| place.pool == pool && place.held;
        let mut keepers = self.places.of_subjects.iter().filter(keeps);
        let left =
            keepers.find_map(|place| self.of_subject[place.subject as usize].iter().find(is_left));
        let waits = left.map_or_else(String::new, |id| {
            let (name, why) = (&self.plan.vertex(*id).name, self.explain(&self.why(*id)));
            format!("; there `{name}`: {why}")
        });
        let full = self.explain(&self.full(pool));
        format!(
            "it would wait for ever: {full}{waits}; raise the limit, or let them not wait for each other"
        )
    }

    /// Gives back the place of a subject that has no use for it any more.
    pub(super) fn settle(&mut self, at: usize) {
        // Subjects that the end of a run caught in the middle of something go on with their places
        // when it is resumed.
        if self.outcome.is_some() {
            return;
        }
        let Self { places, queues, plan, .. } = self;
        let place = &mut places.of_subjects[at];
        let pool = place.pool as usize;
        let is_well = place.ill == 0 || plan.draft().pools[pool].held_by != Holder::Healthy;
        if place.held && place.open == 0 && is_well {
            (place.held, place.is_sure) = (false, false);
            places.used[pool] -= 1;
            queues.call(pool);
        }
    }

    /// Counts a vertex whose state changes in the places of its subject.
    pub(super) fn count_in_places(&mut self, id: StepId, was: Option<State>, is: State) {
        if self.places.of_subjects.is_empty() {
            return;
        }
        let plan = Arc::clone(&self.plan);
        let Some(step) = plan.step(id) else { return };
        for pool in &step.pools {
            let Some(at) = self.places.at(*pool, step) else { continue };
            let place = &mut self.places.of_subjects[at];
            place.open += u32::from(is_open(is));
            place.ill += u32::from(is_ill(is));
            if let Some(was) = was {
                place.open -= u32::from(is_open(was));
                place.ill -= u32::from(is_ill(was));
                self.settle(at);
            }
        }
    }
}
