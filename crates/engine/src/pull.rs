//! Machines that come for their work.
//!
//! A machine says who it is, what it holds and what came of it ([`Report`]), and is told what to do
//! ([`Orders`]). It says everything each time until it is told that it is kept, so that any message
//! may be lost, come twice or come late. Both sides name work by its attempt, and a machine begins
//! each attempt once ([`Worker`]). That it is given one is in the run's journal before it is, with the
//! machine's memory: a controller of later times knows what was never given, and by whom it may have
//! been begun. The controller's side is the [`Desk`]. How messages travel is
//! somebody else's business ([`Transport`]).

mod desk;
mod worker;

use std::collections::BTreeSet;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::{Deserialize, Serialize};

use crate::execute::{Came, Job, What};

pub use desk::{Desk, DeskRun, Kept};
pub use worker::{Transport, Unreachable, Worker, WorkerSetup};

/// Jobs that a machine is given at once. Plans limit how many there are.
pub const MAX_JOBS: usize = 64;

/// Largest output of a job that goes to the controller, compressed.
pub const MAX_OUTPUT: usize = 1024 * 1024;

/// Largest message in either direction; whoever carries messages refuses larger ones.
pub const MAX_MESSAGE: usize = 32 * 1024 * 1024;

/// Longest name of a machine's memory: it is in journals.
pub const MAX_MEMORY: usize = 128;

/// A machine that has not been heard of for so long is taken for gone.
pub const LOST_AFTER: Duration = Duration::from_mins(10);

/// How often a machine says that it is there, also when it has nothing to say.
pub const HEARTBEAT: Duration = Duration::from_secs(20);

/// How often a machine that does something asks whether it shall do something else.
pub const WHILE_BUSY: Duration = Duration::from_secs(2);

/// What a machine says.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Report {
    /// Another one when the machine has lost what it knew.
    pub memory: String,
    /// How often the worker was started with this memory.
    pub life: u64,
    /// Counts up within a life; what comes late is known by it.
    pub number: u64,
    /// So long the answer may be held back when there is nothing to do.
    pub wait_ms: u64,
    /// Under way, or ended with more to say than fits here.
    pub running: Vec<WorkId>,
    /// Ended, and not known to be kept by the controller.
    pub results: Vec<WorkResult>,
    /// Begun in another life, and nobody knows how it ended.
    pub lost: Vec<WorkId>,
    /// What the machine can do; nothing, if it does not say.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub actions: BTreeSet<String>,
}

/// What a machine is told.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Orders {
    pub jobs: Vec<Job>,
    /// To be ended, if they are under way.
    pub kill: Vec<WorkId>,
    /// Results that the machine need not keep any longer.
    pub acknowledged: Vec<WorkId>,
}

impl Orders {
    pub fn is_empty(&self) -> bool {
        self.jobs.is_empty() && self.kill.is_empty() && self.acknowledged.is_empty()
    }
}

/// A job by its attempt and what is to be done for it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct WorkId(pub String);

impl WorkId {
    pub fn of(job: &Job) -> Self {
        Self::new(&job.attempt_id(), job.what)
    }

    fn new(attempt: &str, what: What) -> Self {
        Self(match what {
            What::Check => format!("{attempt}/check"),
            What::Start => attempt.to_owned(),
            What::Verify => format!("{attempt}/verify"),
            What::Predict => format!("{attempt}/predict"),
        })
    }

    fn run(&self) -> &str {
        self.0.split('/').next().unwrap_or_default()
    }
}

/// What came of a job, and what it printed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkResult {
    pub id: WorkId,
    pub came: Came,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<Packed>,
}

/// Bytes, compressed and in letters.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Packed(String);

impl Packed {
    /// `None` if it would be too large, even without its middle.
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
