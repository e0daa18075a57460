//! Failures of the agent's commands and the exit code of each.

use std::io::{self, Write};
use std::path::PathBuf;

use hoist_device::OpenError;
use hoist_device::apply::ApplyError;
use hoist_diagnostic::chain;
use hoist_member::bootstrap::BootstrapError;
use hoist_member::command_line::OptionsError;
use hoist_member::daemon::DaemonError;
use hoist_member::identity::IdentityError;
use hoist_model::Exit;
use hoist_provision::diagnostic::{Class, ProvisionDiagnostic};
use serde_json::{Value, json};

use crate::cli::Output;
use crate::command_line::CommandLineError;
use crate::network::NetworkError;
use crate::provision::NoAuthority;

#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error("cannot read `{path}`; name an existing file")]
    Read { path: PathBuf, source: io::Error },
    #[error("refused for {} reason(s); nothing was written", .0.len())]
    Found(Vec<ProvisionDiagnostic>),
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
    #[error("cannot restart or power off the machine")]
    Power(#[source] io::Error),
    #[error("the job failed: {0}")]
    NotDone(String),
    #[error("cannot read secret `{path}`{hint}")]
    Secret { path: PathBuf, hint: &'static str, source: Option<io::Error> },
    #[error(
        "cannot send the report to `{url}`: {reason}; send it again with `hoist-agent apply --only report`"
    )]
    ReportNotSent { url: String, reason: String },
    #[error("cannot wait for signals")]
    Signals(#[source] io::Error),
    #[error(transparent)]
    Options(#[from] OptionsError),
    #[error(transparent)]
    Bootstrap(#[from] BootstrapError),
    #[error(transparent)]
    Daemon(#[from] DaemonError),
    #[error(transparent)]
    Identity(#[from] IdentityError),
}

impl Failure {
    /// One message per line.
    pub(crate) fn messages(&self) -> Vec<String> {
        match self {
            Self::Found(found) => found.iter().map(ProvisionDiagnostic::to_string).collect(),
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
                    "code": code, "class": class, "step": step, "at": "", "message": chain(self),
                    "hint": error.hint(), "evidence": error.evidence(),
                })]
            }
            _ => vec![json!({ "at": "", "message": chain(self), "hint": self.remedy() })],
        }
    }

    pub(crate) fn exit(&self) -> Exit {
        match self {
            Self::Read { .. }
            | Self::Secret { .. }
            | Self::CommandLine(_)
            | Self::Options(_)
            | Self::NoAuthority(_) => Exit::Usage,
            Self::Bootstrap(error) => error.exit(),
            Self::Daemon(error) => error.exit(),
            Self::Identity(error) => error.exit(),
            Self::Found(found) | Self::Apply(ApplyError::Refused(found)) => {
                let is_input = |found: &ProvisionDiagnostic| found.class == Class::Input;
                if found.iter().any(is_input) { Exit::Usage } else { Exit::Refused }
            }
            Self::Apply(
                ApplyError::OtherPlan { .. }
                | ApplyError::Changed
                | ApplyError::Open(OpenError::InUse { .. } | OpenError::Changed { .. }),
            ) => Exit::Refused,
            // The reader closed the pipe because it needs no more output.
            Self::Print(error) if error.kind() == io::ErrorKind::BrokenPipe => Exit::Done,
            Self::Apply(_)
            | Self::Print(_)
            | Self::Network(_)
            | Self::Power(_)
            | Self::ReportNotSent { .. }
            | Self::Signals(_)
            | Self::NotDone(_) => Exit::Failed,
        }
    }

    /// The next step of the operator, where the message does not have it.
    fn remedy(&self) -> Option<&'static str> {
        match self {
            Self::Bootstrap(error) => error.remedy(),
            Self::Daemon(error) => error.remedy(),
            Self::Identity(error) => Some(error.remedy()),
            _ => None,
        }
    }

    /// Prints the failure on standard error and, as JSON, on standard output if that was chosen.
    pub(crate) fn print(&self, output: Output) {
        if self.exit() == Exit::Done {
            return;
        }
        if output == Output::Json {
            let problems = json!({ "problems": self.problems() });
            // If standard output is closed, the exit code still reports the failure.
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
            _ => {
                eprintln!("error: {}", chain(self));
                if let Some(remedy) = self.remedy() {
                    eprintln!("  {remedy}");
                }
            }
        }
    }
}
