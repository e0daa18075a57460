//! What happens to a run, and what it asks for.

use crate::plan::StepId;
use crate::record::{End, Record};

/// What happens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// Time went by, or the run begins.
    Tick,
    /// What was looked at before a step: `None` if all of it holds.
    Checked {
        step: StepId,
        attempt: u32,
        refused: Option<String>,
    },
    /// Somebody elsewhere, with that memory, shall be given the attempt when that is kept.
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
    /// What was looked at after a step.
    Verified {
        step: StepId,
        attempt: u32,
        holds: bool,
        reason: String,
    },
    /// What became of an attempt that was asked after.
    Found {
        step: StepId,
        attempt: u32,
        found: Found,
    },
    Stop {
        now: bool,
        by: String,
    },
    /// Stop as soon as all of these have come to a good end, but for what is left out.
    StopAfter {
        vertices: Vec<StepId>,
        by: String,
    },
    Resume {
        by: String,
    },
    /// Try a step again that failed or of which nobody knows how it ended, and do what it blocked.
    Retry {
        step: StepId,
        by: String,
    },
    /// A step shall not start, though it could; or it may again.
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
    /// The vertex that it is about, if it is about one.
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

/// What whoever executes knows of an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found {
    /// It was never told of it.
    Never,
    Running,
    Ended(End),
    /// It was told, and does not know any more.
    Gone,
}

/// What is to be done now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// Look whether the step may start.
    Check {
        step: StepId,
        attempt: u32,
    },
    Start {
        step: StepId,
        attempt: u32,
    },
    /// Look whether the step is done.
    Verify {
        step: StepId,
        attempt: u32,
    },
    /// Ask what became of an attempt.
    Ask {
        step: StepId,
        attempt: u32,
    },
    /// End what was begun last with [`Effect::Check`], [`Effect::Start`] or [`Effect::Verify`] of
    /// the attempt. Its answer is still waited for.
    Kill {
        step: StepId,
        attempt: u32,
    },
}

/// Records to keep, and then what to do.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Decision {
    pub records: Vec<Record>,
    pub effects: Vec<Effect>,
}
