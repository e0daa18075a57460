//! Stops a run once certain vertices have succeeded.

use super::tally::Class;
use super::{Run, State};
use crate::plan::StepId;

/// Vertices after which a run stops. Those of left-out subjects do not count.
#[derive(Debug, Clone)]
pub(super) struct StopAfter {
    /// Sorted.
    pub(super) vertices: Vec<StepId>,
    /// A vertex that was open at the last check. While it is open, the others need no check.
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

    /// Checks all goals after a vertex ended without failing.
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

    /// Whether all vertices have ended without failing. The search starts at `from`.
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
