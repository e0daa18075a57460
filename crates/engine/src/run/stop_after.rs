//! Stopping when certain vertices have all come to their ends.

use super::tally::Class;
use super::{Run, State};
use crate::plan::StepId;

/// Vertices after which a run stops: all of them, but for those of subjects that are left out.
#[derive(Debug, Clone)]
pub(super) struct StopAfter {
    /// In their order.
    pub(super) vertices: Vec<StepId>,
    /// One of them that had not come to a good end when it was last looked at. While that is so, nobody
    /// looks at the others.
    open: Option<usize>,
}

impl Run {
    pub(super) fn stop_after(&mut self, mut vertices: Vec<StepId>) {
        vertices.sort_unstable();
        vertices.dedup();
        let mut goal = StopAfter { vertices, open: None };
        self.asked |= self.is_reached(&mut goal, 0);
        self.stop_after.push(goal);
    }

    /// A vertex has come to an end that is not bad.
    pub(super) fn stop_if_reached(&mut self, id: StepId) {
        let mut goals = std::mem::take(&mut self.stop_after);
        for goal in &mut goals {
            let is_open = |at: usize| self.is_open(goal.vertices[at]);
            if goal.vertices.binary_search(&id).is_err() || goal.open.is_some_and(is_open) {
                continue;
            }
            self.asked |= self.is_reached(goal, goal.open.unwrap_or(0));
        }
        self.stop_after = goals;
    }

    /// Whether all have ended well, or at least not badly. Those before `from` are looked at last.
    fn is_reached(&self, goal: &mut StopAfter, from: usize) -> bool {
        let count = goal.vertices.len();
        goal.open = (from..count).chain(0..from).find(|at| self.is_open(goal.vertices[*at]));
        let is_good = |id: &StepId| self.classes[id.at()] == Class::Good;
        goal.open.is_none() && goal.vertices.iter().any(is_good)
    }

    fn is_open(&self, id: StepId) -> bool {
        !matches!(self.state(id), State::Ended(_)) || self.classes[id.at()] == Class::Bad
    }
}
