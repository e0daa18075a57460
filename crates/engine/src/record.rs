//! What a journal holds. The state of a run is what its records come to, one after the other, and
//! nothing else.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::plan::{Made, StepId};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "record", rename_all = "snake_case", deny_unknown_fields)]
pub enum Record {
    /// The first one: what is run.
    Plan { hash: String, at: u64 },
    /// A step shall be started; durable before anybody is told to.
    Intent { step: StepId, attempt: u32, at: u64 },
    /// What an attempt asks for is about to be given to somebody elsewhere, with that memory; durable
    /// before it is. Where this is missing, nobody was given anything.
    Given { step: StepId, attempt: u32, to: String, at: u64 },
    /// What was looked at before the step said no; the step was not started.
    Refused { step: StepId, attempt: u32, reason: String, at: u64 },
    /// How far an attempt has come, in its own measure; all of that is durable.
    Reached { step: StepId, attempt: u32, done: u64, at: u64 },
    /// An attempt came to its end.
    Ran { step: StepId, attempt: u32, end: End, at: u64 },
    /// What was looked at after it.
    Verified { step: StepId, attempt: u32, holds: bool, reason: String, at: u64 },
    /// Nobody can tell how an attempt ended, and nobody ever will.
    Lost { step: StepId, attempt: u32, at: u64 },
    /// A step that came to a good end in an older run, and is not done again.
    Carried {
        step: StepId,
        changed: bool,
        /// Its attempts that may have changed something, the last one first.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        made: Vec<Made>,
        at: u64,
    },
    /// What another run took back of this one is as good as not done. Of `stuck` it was only begun
    /// to be taken back: what these left may still be there.
    TakenBack {
        run: String,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        undone: Vec<StepId>,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        stuck: Vec<StepId>,
        at: u64,
    },
    /// A person decided how a step ended. A run that has ended comes to what follows from that.
    Marked { step: StepId, good: bool, by: String, at: u64 },
    /// Nothing new starts; with `now`, what runs is ended too.
    Stop { now: bool, by: String, at: u64 },
    /// As `Stop`, as soon as all of these have come to a good end, but for what is left out.
    StopAfter { vertices: Vec<StepId>, by: String, at: u64 },
    /// What did not come to a good end is tried again.
    Resume { by: String, at: u64 },
    /// One step is tried again, with everything that it blocked.
    Retry { step: StepId, by: String, at: u64 },
    /// Nothing new starts on the subject, or at all, until the opposite is said.
    Pause { subject: Option<u32>, paused: bool, by: String, at: u64 },
    /// So many subjects failed in the same step for the same reason that a person shall look at it:
    /// nothing new starts until the pause is ended.
    Breaker { kin: u32, subjects: u32, reason: String, at: u64 },
    /// The step does not start, though it could, until the opposite is said.
    Hold { step: StepId, held: bool, by: String, at: u64 },
    /// Everything that could end has.
    Finished { outcome: Outcome, at: u64 },
}

impl Record {
    /// In milliseconds since 1970, as the one who wrote it saw it.
    pub fn at(&self) -> u64 {
        match self {
            Self::Plan { at, .. }
            | Self::Intent { at, .. }
            | Self::Given { at, .. }
            | Self::Refused { at, .. }
            | Self::Reached { at, .. }
            | Self::Ran { at, .. }
            | Self::Verified { at, .. }
            | Self::Lost { at, .. }
            | Self::Carried { at, .. }
            | Self::TakenBack { at, .. }
            | Self::Marked { at, .. }
            | Self::Stop { at, .. }
            | Self::StopAfter { at, .. }
            | Self::Resume { at, .. }
            | Self::Retry { at, .. }
            | Self::Pause { at, .. }
            | Self::Breaker { at, .. }
            | Self::Hold { at, .. }
            | Self::Finished { at, .. } => *at,
        }
    }
}

/// How an attempt ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "end", rename_all = "snake_case", deny_unknown_fields)]
pub enum End {
    Done {
        /// Whether there was anything to do.
        changed: bool,
        /// What taking it back needs to know.
        #[serde(default, skip_serializing_if = "Value::is_null")]
        receipt: Value,
    },
    Failed {
        kind: FailureKind,
        reason: String,
    },
    /// Ended because the run was stopped.
    Interrupted,
    /// Something of it does not end: nothing can follow until a person has looked.
    Unknown {
        reason: String,
    },
    /// It was never begun, so there is nothing to take back.
    NotBegun {
        /// Why it failed; nothing if the run was stopped.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailureKind {
    /// It did not start: what was looked at before said no.
    Precheck,
    /// It said so itself.
    Exit,
    Timeout,
    /// It used more than it may.
    Limit,
    /// It said that it is done, and it is not.
    Verify,
    /// Nobody knows how it ended, and it cannot be done twice.
    Lost,
    /// The engine or the executor broke.
    Internal,
}

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    Succeeded,
    /// Some subjects were left out, as many as may be.
    Degraded,
    Failed,
    Stopped,
}
