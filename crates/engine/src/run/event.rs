//! The input and output of a run: events, decisions and effects.

use crate::plan::StepId;
use crate::record::{End, FailedCheck, Record};

/// An event: a report of an executor, or a command of a person.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// Time passed, or the run begins.
    Tick,
    /// The preconditions were checked. `failed` is the first one that did not hold.
    Checked {
        step: StepId,
        attempt: u32,
        failed: Option<FailedCheck>,
    },
    /// The attempt is to be handed out to the machine with this memory, once the record is durable.
    Given {
        step: StepId,
        attempt: u32,
        to: String,
    },
    Ran {
        step: StepId,
        attempt: u32,
        end: End,
    },
    /// The postconditions were checked. `failed` is the first one that did not hold.
    Verified {
        step: StepId,
        attempt: u32,
        failed: Option<FailedCheck>,
    },
    /// The answer to [`Effect::Ask`].
    Found {
        step: StepId,
        attempt: u32,
        found: AttemptStatus,
    },
    Stop {
        now: bool,
        by: String,
    },
    /// Stop once all of these vertices have succeeded or are left out.
    StopAfter {
        vertices: Vec<StepId>,
        by: String,
    },
    Resume {
        by: String,
    },
    /// Try a failed or unknown step again, and the steps that it blocked.
    Retry {
        step: StepId,
        by: String,
    },
    /// Put a step on hold, or release it.
    Hold {
        step: StepId,
        held: bool,
        by: String,
    },
    Pause {
        subject: Option<u32>,
        paused: bool,
        by: String,
    },
    Mark {
        step: StepId,
        good: bool,
        by: String,
    },
}

impl Event {
    /// The vertex of the event, if it has one.
    pub(super) fn vertex(&self) -> Option<StepId> {
        match self {
            Self::Checked { step, .. }
            | Self::Given { step, .. }
            | Self::Ran { step, .. }
            | Self::Verified { step, .. }
            | Self::Found { step, .. }
            | Self::Retry { step, .. }
            | Self::Hold { step, .. }
            | Self::Mark { step, .. } => Some(*step),
            Self::Tick
            | Self::Stop { .. }
            | Self::StopAfter { .. }
            | Self::Resume { .. }
            | Self::Pause { .. } => None,
        }
    }
}

/// The state of an attempt, as its executor knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AttemptStatus {
    /// The executor never got the attempt.
    Never,
    Running,
    Ended(End),
    /// The executor got the attempt and has lost its outcome.
    Gone,
}

/// An act of an executor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// Check the preconditions.
    Check {
        step: StepId,
        attempt: u32,
    },
    Start {
        step: StepId,
        attempt: u32,
    },
    /// Check the postconditions.
    Verify {
        step: StepId,
        attempt: u32,
    },
    /// Ask for the state of an attempt.
    Ask {
        step: StepId,
        attempt: u32,
    },
    /// End the latest [`Effect::Check`], [`Effect::Start`] or [`Effect::Verify`] of the attempt.
    /// Its result is still expected.
    Kill {
        step: StepId,
        attempt: u32,
    },
}

impl Effect {
    /// The step that is acted on, with the attempt.
    pub const fn target(self) -> (StepId, u32) {
        match self {
            Self::Check { step, attempt }
            | Self::Start { step, attempt }
            | Self::Verify { step, attempt }
            | Self::Ask { step, attempt }
            | Self::Kill { step, attempt } => (step, attempt),
        }
    }
}

/// Records, which must be made durable first, and then effects.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Decision {
    pub records: Vec<Record>,
    pub effects: Vec<Effect>,
}
