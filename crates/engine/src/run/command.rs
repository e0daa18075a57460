//! Commands of people to a run, and why a command is refused.

use super::{Event, Run, State};
use crate::plan::StepId;
use crate::record::Record;

/// Why a command has no effect.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CommandRefusal {
    #[error("only commands can be given to a run; this event is a report of an executor")]
    NoOrder,
    #[error("the plan has no vertex {0}")]
    NoVertex(StepId),
    #[error("the plan has no subject {0}")]
    NoSubject(u32),
    #[error("`{0}` is a barrier; name one of its steps")]
    NoStep(String),
    #[error("`{0}` has begun already; stop the run, or wait for its end")]
    Begun(String),
    #[error("`{0}` has not failed and its outcome is known; nothing to retry or mark")]
    NotFailed(String),
    #[error("the run is stopping; wait for its end, or resume it first")]
    Stopping,
    #[error("the run is still stopping; wait for it to finish")]
    Ending,
    #[error("the run has not ended; nothing to resume")]
    UnderWay,
    #[error("the run has ended; resume it first")]
    Ended,
}

impl Run {
    /// Whether a command would be accepted. Reports of executors are not commands; they are always
    /// accepted and ignored if they do not fit.
    pub fn takes(&self, event: &Event) -> Result<(), CommandRefusal> {
        let refuse = |refusal, when: bool| if when { Err(refusal) } else { Ok(()) };
        let has_ended = self.outcome.is_some();
        match event {
            Event::Tick
            | Event::Checked { .. }
            | Event::Given { .. }
            | Event::Ran { .. }
            | Event::Verified { .. }
            | Event::Found { .. } => Ok(()),
            Event::Stop { .. } => refuse(CommandRefusal::Ended, has_ended),
            Event::StopAfter { vertices, .. } => {
                for vertex in vertices {
                    refuse(CommandRefusal::NoVertex(*vertex), vertex.at() >= self.plan.len())?;
                }
                refuse(CommandRefusal::Ended, has_ended)
            }
            Event::Resume { .. } => {
                refuse(CommandRefusal::UnderWay, !has_ended && !self.is_stopping())?;
                refuse(CommandRefusal::Ending, self.is_ending_all())
            }
            Event::Pause { subject, .. } => {
                if let Some(at) = *subject {
                    refuse(CommandRefusal::NoSubject(at), at as usize >= self.left_out.len())?;
                }
                refuse(CommandRefusal::Ended, has_ended)
            }
            Event::Hold { step, held, .. } => {
                self.must_be_step(*step)?;
                refuse(CommandRefusal::Ended, has_ended)?;
                let begun = match self.state(*step) {
                    State::Running | State::Verifying | State::VerifyingLost => true,
                    State::Ended(ended) => ended.is_good(),
                    _ => false,
                };
                refuse(CommandRefusal::Begun(self.name(*step)), *held && begun)
            }
            Event::Retry { step, .. } => {
                self.must_be_step(*step)?;
                let by = String::new();
                let at = self.seen;
                let stops = !has_ended && self.is_stopping();
                let fits = self.could_follow(&Record::Retry { step: *step, by, at });
                refuse(CommandRefusal::NotFailed(self.name(*step)), !fits && !stops)?;
                refuse(CommandRefusal::Stopping, !fits)
            }
            Event::Mark { step, good, .. } => {
                self.must_be_step(*step)?;
                let good = *good;
                let by = String::new();
                let at = self.seen;
                let fits = self.could_follow(&Record::Marked { step: *step, good, by, at });
                refuse(CommandRefusal::NotFailed(self.name(*step)), !fits)
            }
        }
    }

    /// Applies a command only: no step starts until the run continues. The caller must make the
    /// record durable first.
    pub fn say(&mut self, order: Event, now: u64) -> Result<Record, CommandRefusal> {
        self.takes(&order)?;
        let record = self::record(order, now).ok_or(CommandRefusal::NoOrder)?;
        self.set_time(now);
        self.apply(&record);
        Ok(record)
    }

    fn must_be_step(&self, id: StepId) -> Result<(), CommandRefusal> {
        if id.at() >= self.plan.len() {
            Err(CommandRefusal::NoVertex(id))
        } else if self.plan.step(id).is_none() {
            Err(CommandRefusal::NoStep(self.name(id)))
        } else {
            Ok(())
        }
    }

    fn name(&self, id: StepId) -> String {
        self.plan.vertex(id).name.clone()
    }
}

/// The record of a command; `None` for other events.
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
