//! The actions of the engine that change disks. Each step is data; its action carries it out on the
//! disks that the run holds.

pub mod boot;
pub mod config_drive;
pub mod disks;
pub mod erase;
pub mod files;
mod grow;
mod held_disks;
pub mod images;
mod last_lines;
pub mod plugin;
mod stack;

use hoist_diagnostic::Diagnostic;
use hoist_diagnostic::chain;
use hoist_engine::action::{Ctx, Failure};
use hoist_engine::record::FailureKind;
use hoist_provision::diagnostic::Code;
use hoist_provision::document::SecretRef;
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::images::source::shown;
use crate::images::{Notices, Origin, Trust};

pub use held_disks::HeldDisks;
pub use stack::RunStacks;

/// The classified cause of a failure, beside its message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cause {
    pub code: Code,
    /// Observations that led to the failure.
    pub evidence: Vec<String>,
}

/// The cause of the last failed step, for the report.
#[derive(Debug, Default)]
pub struct Causes(Mutex<Option<Cause>>);

impl Causes {
    /// Records the cause of a failure, with the sources of the file. Without a code, the disk
    /// failed.
    fn blame(&self, code: Option<Code>, sources: &[String]) {
        let evidence = || sources.iter().map(|url| format!("from `{}`", shown(url))).collect();
        let cause = code.map(|code| Cause { code, evidence: evidence() });
        *self.0.lock() = cause;
    }

    /// Returns the cause once and forgets it.
    pub fn take(&self) -> Option<Cause> {
        self.0.lock().take()
    }
}

fn failed(error: &(dyn std::error::Error + 'static)) -> Failure {
    Failure { kind: FailureKind::Exit, reason: chain(error) }
}

/// The sources of a file, with the token they require.
fn origin(
    sources: &[String],
    token: Option<&SecretRef>,
    (trust, notices): (&Trust, &Notices),
    ctx: &Ctx<'_>,
) -> Result<Origin, Failure> {
    let token = token.map(|token| ctx.secrets.get(token.name())).transpose()?;
    let token = token.map(Into::into);
    let trust = trust.clone();
    let cancel = ctx.cancel.clone();
    let notices = notices.clone();
    Ok(Origin { token, trust, cancel, notices, ..Origin::new(sources.to_vec()) })
}

/// A step that no plan of hoist contains: an internal error.
fn wrong(reason: String) -> Failure {
    Failure { kind: FailureKind::Internal, reason }
}

/// The input of a step.
fn task<Task: DeserializeOwned>(input: &Value) -> Result<Task, Failure> {
    Task::deserialize(input).map_err(|error| wrong(error.to_string()))
}

/// The reason why `input` is not valid for the action.
fn diagnostics<Task: DeserializeOwned>(input: &Value) -> Vec<Diagnostic> {
    let found = Task::deserialize(input).err();
    let told = |error: serde_json::Error| Diagnostic {
        at: String::new(),
        message: error.to_string(),
        hint: None,
    };
    found.map(told).into_iter().collect()
}
