//! Why a command did not do what it should, and which exit code says so.

use std::error::Error;
use std::io::{self, Write};
use std::path::PathBuf;

use hoist_model::Exit;
use hoist_provision::device::OpenError;
use hoist_provision::diagnostic::{Class, Diagnostic};
use hoist_provision::pipeline::ApplyError;
use serde_json::{Value, json};

use crate::cli::Output;
use crate::command_line::CommandLineError;
use crate::network::NetworkError;
use crate::provision::NoAuthority;

#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error("cannot read `{path}`; name a document with -f")]
    Read { path: PathBuf, source: io::Error },
    #[error("{} thing(s) forbid it; nothing was written", .0.len())]
    Found(Vec<Diagnostic>),
    #[error(transparent)]
    Apply(#[from] ApplyError),
    #[error("cannot print")]
    Print(#[from] io::Error),
    #[error(transparent)]
    CommandLine(#[from] CommandLineError),
    #[error(transparent)]
    NoAuthority(#[from] NoAuthority),
    #[error(transparent)]
    Network(#[from] NetworkError),
    #[error("cannot switch the machine off or on")]
    Power(#[source] io::Error),
    #[error("the order was not carried out; {0}")]
    NotDone(String),
    #[error("cannot read secret `{path}`{hint}")]
    Secret { path: PathBuf, hint: &'static str, source: Option<io::Error> },
    #[error("`{url}` was not told: {reason}; `hoist-agent apply --only report` tells it how it is")]
    NotTold { url: String, reason: String },
}

/// An error with everything that led to it, in one line.
pub(crate) fn chain(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text
}

impl Failure {
    /// In words, one line each.
    pub(crate) fn said(&self) -> Vec<String> {
        match self {
            Self::Found(found) => found.iter().map(Diagnostic::to_string).collect(),
            other => vec![chain(other)],
        }
    }

    pub(crate) fn problems(&self) -> Vec<Value> {
        match self {
            Self::Found(found) | Self::Apply(ApplyError::Refused(found)) => {
                found.iter().map(|found| json!(found)).collect()
            }
            Self::Apply(error) => {
                let (code, class) = error.code();
                let step = match error {
                    ApplyError::Step { step, .. } => step.as_str(),
                    _ => "",
                };
                vec![json!({
                    "code": code, "class": class, "step": step, "what": chain(self),
                    "hint": error.hint(), "evidence": error.evidence(),
                })]
            }
            _ => vec![json!({ "what": chain(self) })],
        }
    }

    pub(crate) fn exit(&self) -> Exit {
        match self {
            Self::Read { .. }
            | Self::Secret { .. }
            | Self::CommandLine(_)
            | Self::NoAuthority(_) => Exit::Usage,
            Self::Found(found) | Self::Apply(ApplyError::Refused(found)) => {
                let is_input = |found: &Diagnostic| found.class == Class::Input;
                if found.iter().any(is_input) { Exit::Usage } else { Exit::Refused }
            }
            Self::Apply(
                ApplyError::OtherPlan { .. }
                | ApplyError::Changed
                | ApplyError::Open(OpenError::InUse { .. } | OpenError::Changed { .. }),
            ) => Exit::Refused,
            // Whoever reads the output has enough of it.
            Self::Print(error) if error.kind() == io::ErrorKind::BrokenPipe => Exit::Done,
            Self::Apply(_)
            | Self::Print(_)
            | Self::Network(_)
            | Self::Power(_)
            | Self::NotTold { .. }
            | Self::NotDone(_) => Exit::Failed,
        }
    }

    /// For people on standard error; for programs also on standard output, where they look.
    pub(crate) fn print(&self, output: Output) {
        if self.exit() == Exit::Done {
            return;
        }
        if output == Output::Json {
            let problems = json!({ "problems": self.problems() });
            // Whoever does not read it has the exit code.
            let _ = writeln!(io::stdout(), "{problems}");
        }
        match self {
            Self::Found(found) | Self::Apply(ApplyError::Refused(found)) => {
                eprintln!("error: {}", chain(self));
                for found in found {
                    eprintln!("  {found}");
                }
            }
            Self::Apply(error) => {
                eprintln!("error: {} [{}]", chain(self), error.code().0);
                if let Some(hint) = error.hint() {
                    eprintln!("  {hint}");
                }
            }
            _ => eprintln!("error: {}", chain(self)),
        }
    }
}
