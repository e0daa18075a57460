//! What is done to disks, as actions of the engine: each step is data, and an action does to the
//! disks that it was given what the data says.

pub mod boot;
pub mod config_drive;
pub mod disks;
pub mod erase;
pub mod files;
pub mod grow;
mod held;
pub mod images;
pub mod plugin;
pub mod stack;

use std::sync::{Mutex, PoisonError};

use hoist_engine::action::{Ctx, Diagnostic, Failure};
use hoist_engine::record::FailureKind;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::diagnostic::Code;
use crate::document::SecretRef;
use crate::images::source::shown;
use crate::images::{Origin, Trust};

pub use held::{Held, Place};

/// What an action knows of its failure beyond the words for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cause {
    pub code: Code,
    /// What was seen that led to this.
    pub evidence: Vec<String>,
}

/// That of the last step that failed, for whoever tells of it.
#[derive(Debug, Default)]
pub struct Causes(Mutex<Option<Cause>>);

impl Causes {
    /// Something that was to come from these places. Without a code, the disk is to blame.
    fn blame(&self, code: Option<Code>, sources: &[String]) {
        let evidence = || sources.iter().map(|url| format!("from `{}`", shown(url))).collect();
        let cause = code.map(|code| Cause { code, evidence: evidence() });
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = cause;
    }

    /// It is told once.
    pub fn take(&self) -> Option<Cause> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// An error with everything that led to it, in one line.
pub(crate) fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text
}

fn failed(error: &(dyn std::error::Error + 'static)) -> Failure {
    Failure { kind: FailureKind::Exit, reason: chain(error) }
}

/// Where something is fetched from, with what it takes to be let in.
fn origin(
    sources: &[String],
    token: Option<&SecretRef>,
    trust: &Trust,
    ctx: &Ctx<'_>,
) -> Result<Origin, Failure> {
    let token = token.map(|token| ctx.secrets.get(token.name())).transpose()?;
    let (token, trust, cancel) = (token.map(Into::into), trust.clone(), ctx.cancel.clone());
    Ok(Origin { token, trust, cancel, ..Origin::new(sources.to_vec()) })
}

/// Something that a plan of ours never asks for.
fn wrong(reason: String) -> Failure {
    Failure { kind: FailureKind::Internal, reason }
}

/// What a step is to do.
fn task<Task: DeserializeOwned>(input: &Value) -> Result<Task, Failure> {
    Task::deserialize(input).map_err(|error| wrong(error.to_string()))
}

/// Why it cannot be that, if it cannot.
fn faults<Task: DeserializeOwned>(input: &Value) -> Vec<Diagnostic> {
    let found = Task::deserialize(input).err();
    let told = |error: serde_json::Error| Diagnostic {
        at: String::new(),
        message: error.to_string(),
        hint: None,
    };
    found.map(told).into_iter().collect()
}
