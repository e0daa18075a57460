//! Steps on machines that fetch their work.
//!
//! A machine sends a [`WorkerReport`] (identity, running work, results) and gets [`Orders`]. Every report
//! repeats all results until they are acknowledged, so any message may be lost, duplicated or
//! delayed. Both sides name work by its attempt, and a machine begins each attempt at most once
//! ([`Worker`]).
//!
//! Before work is handed out, the journal of the run records the machine's *memory*: the random
//! name of the worker's durable state. A later controller therefore knows which work was never
//! handed out, and which machine may have begun the rest.
//!
//! The controller's half is the [`Dispatcher`]. The transport of messages does not belong here; see
//! [`Transport`].

mod dispatcher;
mod worker;

use std::collections::BTreeSet;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::{Deserialize, Serialize};

use crate::execute::{Job, JobKind, JobOutcome};

pub use dispatcher::{Dispatcher, DispatcherJournal, DispatcherRun};
pub use worker::{Transport, Unreachable, Worker, WorkerSetup};

/// Jobs that a machine may hold at once. Plans have limits of their own.
pub const MAX_JOBS: usize = 64;

/// Largest compressed output of a job that is sent to the controller.
pub const MAX_OUTPUT: usize = 1024 * 1024;

/// Largest message in either direction. The transport must refuse larger ones.
pub const MAX_MESSAGE: usize = 32 * 1024 * 1024;

/// Longest name of a machine's memory; journals record it.
pub const MAX_MEMORY: usize = 128;

/// A machine that has not reported for this long counts as gone.
pub const LOST_AFTER: Duration = Duration::from_mins(10);

/// Longest interval between reports of a machine, even without news.
pub const HEARTBEAT: Duration = Duration::from_secs(20);

/// Interval at which a busy machine asks for new orders.
pub const WHILE_BUSY: Duration = Duration::from_secs(2);

/// The state of a machine, as it reports it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkerReport {
    /// Changes when the machine has lost its durable state.
    pub memory: String,
    /// How often the worker was started with this memory.
    pub life: u64,
    /// Increases within a life, so that delayed reports are recognized.
    pub number: u64,
    /// The longest time that the answer may be held back when there are no orders.
    pub wait_ms: u64,
    /// Work that runs, or whose result did not fit into this message.
    pub running: Vec<WorkId>,
    /// Results of ended work that the controller has not acknowledged.
    pub results: Vec<WorkResult>,
    /// Work of an earlier life, with unknown outcome.
    pub lost: Vec<WorkId>,
    /// Actions that the machine knows; empty if the machine does not report them.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub actions: BTreeSet<String>,
}

/// The controller's orders to a machine.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Orders {
    pub jobs: Vec<Job>,
    /// Work to be ended, if it runs.
    pub kill: Vec<WorkId>,
    /// Results that the machine may forget.
    pub acknowledged: Vec<WorkId>,
}

impl Orders {
    pub fn is_empty(&self) -> bool {
        self.jobs.is_empty() && self.kill.is_empty() && self.acknowledged.is_empty()
    }
}

/// Names a job: its attempt, and the kind of the job.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct WorkId(pub String);

impl WorkId {
    pub fn of(job: &Job) -> Self {
        Self::new(&job.attempt_id(), job.what)
    }

    fn new(attempt: &str, what: JobKind) -> Self {
        Self(match what {
            JobKind::Check => format!("{attempt}/check"),
            JobKind::Start => attempt.to_owned(),
            JobKind::Verify => format!("{attempt}/verify"),
            JobKind::Predict => format!("{attempt}/predict"),
        })
    }

    fn run(&self) -> &str {
        self.0.split('/').next().unwrap_or_default()
    }
}

/// The outcome of a job, with its output.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkResult {
    pub id: WorkId,
    pub outcome: JobOutcome,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<CompressedOutput>,
}

/// The output of a job, compressed and encoded as base64.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct CompressedOutput(String);

impl CompressedOutput {
    /// `None` if the output is too large even without its middle part.
    pub(crate) fn new(bytes: &[u8]) -> Option<Self> {
        let pack = |bytes: &[u8]| {
            zstd::encode_all(bytes, 3).ok().filter(|packed| packed.len() <= MAX_OUTPUT)
        };
        let packed = pack(bytes).or_else(|| {
            let half = MAX_OUTPUT / 2 - 1024;
            let left_out = bytes.len().saturating_sub(2 * half);
            let said = format!("\nhoist: {left_out} bytes were left out here\n");
            pack(
                &[
                    &bytes[..half.min(bytes.len())],
                    said.as_bytes(),
                    &bytes[bytes.len().saturating_sub(half)..],
                ]
                .concat(),
            )
        })?;
        Some(Self(BASE64.encode(packed)))
    }

    fn compressed(&self) -> Option<Vec<u8>> {
        BASE64.decode(&self.0).ok().filter(|packed| packed.len() <= MAX_OUTPUT)
    }
}

#[cfg(test)]
mod tests;
