//! The records of a journal. The state of a run is a fold over its records and depends on nothing
//! else. Their encoding belongs to [`crate::journal`].

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::plan::{AppliedAttempt, StepId};

/// Largest reason or observed output in a record, in bytes; longer ones are cut.
pub const MAX_REASON: usize = 16 * 1024;

/// Largest receipt in a record, in bytes; larger ones are left out.
pub const MAX_RECEIPT: usize = 256 * 1024;

/// The id of an attempt outside of its run.
pub fn attempt_id(run: &str, step: StepId, attempt: u32) -> String {
    format!("{run}/{}/{attempt}", step.0)
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "record", rename_all = "snake_case", deny_unknown_fields)]
pub enum Record {
    /// The first record: the plan of the run.
    Plan { hash: String, at: u64 },
    /// A step is about to start; durable before its effect.
    Intent { step: StepId, attempt: u32, at: u64 },
    /// An attempt is about to be handed out to the machine with this memory; durable before
    /// that. Without this record the attempt was never handed out.
    Given { step: StepId, attempt: u32, to: String, at: u64 },
    /// A precondition did not hold, so the step was not started.
    Refused { step: StepId, attempt: u32, check: FailedCheck, at: u64 },
    /// Progress of an attempt in a measure of its own; everything up to `done` is durable.
    Reached { step: StepId, attempt: u32, done: u64, at: u64 },
    /// An attempt ended.
    Ran { step: StepId, attempt: u32, end: End, at: u64 },
    /// The postconditions were checked. `failed` is the first one that did not hold.
    Verified {
        step: StepId,
        attempt: u32,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        failed: Option<FailedCheck>,
        at: u64,
    },
    /// The outcome of an attempt is unknown and will stay unknown.
    Lost { step: StepId, attempt: u32, at: u64 },
    /// A step that succeeded in an older run and is not repeated.
    Carried {
        step: StepId,
        changed: bool,
        /// Its attempts that may have left changes, the newest first.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        made: Vec<AppliedAttempt>,
        at: u64,
    },
    /// Another run has undone steps of this run, which count as not done. Undoing the steps in
    /// `stuck` began but did not succeed: they may have left changes.
    Undone {
        run: String,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        undone: Vec<StepId>,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        stuck: Vec<StepId>,
        at: u64,
    },
    /// A person decided the outcome of a step. The outcome of an ended run follows the decision.
    Marked { step: StepId, good: bool, by: String, at: u64 },
    /// No new step starts; with `now`, running attempts are killed.
    Stop { now: bool, by: String, at: u64 },
    /// As `Stop`, once all of these vertices have succeeded or are left out.
    StopAfter { vertices: Vec<StepId>, by: String, at: u64 },
    /// Steps that did not succeed are tried again.
    Resume { by: String, at: u64 },
    /// One step is tried again, with all steps that it blocked.
    Retry { step: StepId, by: String, at: u64 },
    /// Pauses or unpauses a subject, or the whole run.
    Pause { subject: Option<u32>, paused: bool, by: String, at: u64 },
    /// Too many subjects failed in the same step for the same reason. No new step starts until a
    /// person ends the pause.
    Breaker { kin: u32, subjects: u32, reason: String, at: u64 },
    /// Holds or releases a step.
    Hold { step: StepId, held: bool, by: String, at: u64 },
    /// The run has ended.
    Finished { outcome: Outcome, at: u64 },
}

impl Record {
    /// Time in milliseconds since 1970, by the clock of the writer.
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
            | Self::Undone { at, .. }
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

/// A check that did not hold: the assertion and the observation are separate, so that no reader
/// takes one for the other.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FailedCheck {
    /// The assertion, as the task words it, or the name of the action that checks. Empty if no
    /// check was made, for example because the subject could not be reached.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub title: String,
    /// The observation: the last line that the check printed, or the reason why it could not run.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub output: String,
    /// The exit code of the program that checked, if there was one and it ended by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
}

impl FailedCheck {
    /// A check that could not run.
    pub fn not_made(reason: impl Into<String>) -> Self {
        Self { output: reason.into(), ..Self::default() }
    }
}

/// `"no one is logged in" failed (exit code 1): alice pts/0`.
impl fmt::Display for FailedCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { title, output, exit_code } = self;
        if title.is_empty() {
            return f.write_str(output);
        }
        write!(f, "\"{title}\" failed")?;
        if let Some(code) = exit_code {
            write!(f, " (exit code {code})")?;
        }
        if output.is_empty() { Ok(()) } else { write!(f, ": {output}") }
    }
}

/// The end of an attempt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "end", rename_all = "snake_case", deny_unknown_fields)]
pub enum End {
    Done {
        /// Whether the attempt changed anything.
        changed: bool,
        /// Data for undo.
        #[serde(default, skip_serializing_if = "Value::is_null")]
        receipt: Value,
    },
    Failed {
        kind: FailureKind,
        reason: String,
    },
    /// The attempt was killed because the run was stopped.
    Interrupted,
    /// A process of the attempt does not end. No step may follow until a person has decided.
    Unknown {
        reason: String,
    },
    /// The attempt never began, so there is nothing to undo.
    NotBegun {
        /// Why the attempt failed; `None` if the run was stopped.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailureKind {
    /// A precondition did not hold; the step did not start.
    Precheck,
    /// The action reported a failure.
    Exit,
    Timeout,
    /// A program exceeded a resource limit.
    Limit,
    /// The action reported success, but a postcondition does not hold.
    Verify,
    /// The outcome is unknown, and the step must not be repeated.
    Lost,
    /// The engine or the executor broke.
    Internal,
}

/// The outcome of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    Succeeded,
    /// Some subjects were left out, within the tolerance.
    Degraded,
    Failed,
    Stopped,
}
