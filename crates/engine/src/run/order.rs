//! What persons say to a run, and why it would have no effect.

use super::{Event, Run, State};
use crate::plan::StepId;
use crate::record::Record;

/// Why an order has no effect.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    #[error("only orders can be said to a run; this is what an executor tells")]
    NoOrder,
    #[error("the plan has no vertex {0}")]
    NoVertex(StepId),
    #[error("the plan has no subject {0}")]
    NoSubject(u32),
    #[error("`{0}` is a barrier and does nothing; name one of its steps")]
    NoStep(String),
    #[error("`{0}` has begun already; stop the run, or wait for its end")]
    Begun(String),
    #[error("`{0}` did not fail, and it is known how it stands; there is nothing to try or tell")]
    NotFailed(String),
    #[error("the run is stopping; wait for its end, or resume it first")]
    Stopping,
    #[error("what was under way is still being ended; wait for the end of the run")]
    Ending,
    #[error("the run is under way; there is nothing to resume")]
    UnderWay,
    #[error("the run has ended; resume it first")]
    Ended,
}

impl Run {
    /// Whether an order would be followed. What executors say is no order: it is heard if it fits.
    pub fn takes(&self, event: &Event) -> Result<(), Refusal> {
        let refuse = |refusal, when: bool| if when { Err(refusal) } else { Ok(()) };
        let has_ended = self.outcome.is_some();
        match event {
            Event::Tick
            | Event::Checked { .. }
            | Event::Given { .. }
            | Event::Ran { .. }
            | Event::Verified { .. }
            | Event::Found { .. } => Ok(()),
            Event::Stop { .. } => refuse(Refusal::Ended, has_ended),
            Event::StopAfter { vertices, .. } => {
                for vertex in vertices {
                    refuse(Refusal::NoVertex(*vertex), vertex.at() >= self.plan.len())?;
                }
                refuse(Refusal::Ended, has_ended)
            }
            Event::Resume { .. } => {
                refuse(Refusal::UnderWay, !has_ended && !self.is_stopping())?;
                refuse(Refusal::Ending, self.is_ending_all())
            }
            Event::Pause { subject, .. } => {
                if let Some(at) = *subject {
                    refuse(Refusal::NoSubject(at), at as usize >= self.left_out.len())?;
                }
                refuse(Refusal::Ended, has_ended)
            }
            Event::Hold { step, held, .. } => {
                self.must_be_step(*step)?;
                refuse(Refusal::Ended, has_ended)?;
                let begun = match self.state(*step) {
                    State::Running | State::Verifying | State::VerifyingLost => true,
                    State::Ended(ended) => ended.is_good(),
                    _ => false,
                };
                refuse(Refusal::Begun(self.name(*step)), *held && begun)
            }
            Event::Retry { step, .. } => {
                self.must_be_step(*step)?;
                let (by, at) = (String::new(), self.seen);
                let stops = !has_ended && self.is_stopping();
                let fits = self.could_follow(&Record::Retry { step: *step, by, at });
                refuse(Refusal::NotFailed(self.name(*step)), !fits && !stops)?;
                refuse(Refusal::Stopping, !fits)
            }
            Event::Mark { step, good, .. } => {
                self.must_be_step(*step)?;
                let (good, by, at) = (*good, String::new(), self.seen);
                let fits = self.could_follow(&Record::Marked { step: *step, good, by, at });
                refuse(Refusal::NotFailed(self.name(*step)), !fits)
            }
        }
    }

    /// Follows an order, and nothing else: what could start does not, until the run goes on. The
    /// record is to be kept first.
    pub fn say(&mut self, order: Event, now: u64) -> Result<Record, Refusal> {
        self.takes(&order)?;
        let record = self::record(order, now).ok_or(Refusal::NoOrder)?;
        self.look(now);
        self.apply(&record);
        Ok(record)
    }

    fn must_be_step(&self, id: StepId) -> Result<(), Refusal> {
        if id.at() >= self.plan.len() {
            Err(Refusal::NoVertex(id))
        } else if self.plan.step(id).is_none() {
            Err(Refusal::NoStep(self.name(id)))
        } else {
            Ok(())
        }
    }

    fn name(&self, id: StepId) -> String {
        self.plan.vertex(id).name.clone()
    }
}

/// An order as it is kept; nothing, if it is none.
pub(super) fn record(event: Event, at: u64) -> Option<Record> {
    Some(match event {
        Event::Stop { now, by } => Record::Stop { now, by, at },
        Event::StopAfter { vertices, by } => Record::StopAfter { vertices, by, at },
        Event::Resume { by } => Record::Resume { by, at },
        Event::Retry { step, by } => Record::Retry { step, by, at },
        Event::Hold { step, held, by } => Record::Hold { step, held, by, at },
        Event::Pause { subject, paused, by } => Record::Pause { subject, paused, by, at },
        Event::Mark { step, good, by } => Record::Marked { step, good, by, at },
        Event::Tick
        | Event::Checked { .. }
        | Event::Given { .. }
        | Event::Ran { .. }
        | Event::Verified { .. }
        | Event::Found { .. } => return None,
    })
}
