//! Programs that actions start: the request, the exit, and the interface through which an executor
//! runs them.
//!
//! Only data and traits belong here. Processes, pipes and signals belong to `execute`, which
//! implements [`Programs`].

use std::ffi::OsString;
use std::io;
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::Instant;

use crate::action::{Cancel, Failure, Observation, Output, Verdict};

/// The signal that ends a program which writes a larger file than its limit allows.
const FILE_TOO_LARGE: i32 = 25;

/// The exit code of a shell whose program was ended by that signal.
const FILE_TOO_LARGE_CODE: i32 = 128 + FILE_TOO_LARGE;

/// A program to start, with its complete environment.
#[derive(Debug)]
pub struct ProgramStart {
    pub argv: Vec<OsString>,
    pub directory: PathBuf,
    /// The whole environment; of two entries with the same name the later one counts.
    pub env: Vec<(OsString, OsString)>,
}

/// The exit of a program.
#[derive(Debug)]
pub struct ProgramExit {
    pub status: ExitStatus,
    pub cause: ExitCause,
    /// The last line on standard error, or on standard output if there was none.
    pub last_line: String,
}

/// Why a program ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExitCause {
    Itself,
    TimedOut,
    Cancelled,
}

impl ProgramExit {
    /// Whether the program ended because it wrote a larger file than its limit allows.
    pub fn wrote_too_much(&self) -> bool {
        self.cause == ExitCause::Itself
            && (self.status.signal() == Some(FILE_TOO_LARGE)
                || self.status.code() == Some(FILE_TOO_LARGE_CODE))
    }

    /// The verdict of a program that checks: exit code 0 means that the assertion holds.
    pub fn verdict(&self) -> Verdict {
        let exit_code = self.status.code().filter(|_| self.cause == ExitCause::Itself);
        match (exit_code, self.failure()) {
            (_, None) => Verdict::Holds,
            (Some(code), Some(_)) => Verdict::Fails(Observation {
                output: self.last_line.clone(),
                exit_code: Some(code),
            }),
            (None, Some(failure)) => Verdict::fails(failure),
        }
    }

    /// Why the program did not succeed, in one line; `None` if it did.
    pub fn failure(&self) -> Option<String> {
        let what = match (self.cause, self.status.code(), self.status.signal()) {
            (ExitCause::TimedOut, ..) => "timed out".to_owned(),
            (ExitCause::Cancelled, ..) => "stopped".to_owned(),
            (ExitCause::Itself, Some(0), _) => return None,
            (ExitCause::Itself, Some(code), _) => format!("exit code {code}"),
            (ExitCause::Itself, None, signal) => {
                format!("killed by signal {}", signal.unwrap_or_default())
            }
        };
        if self.last_line.is_empty() {
            return Some(what);
        }
        Some(format!("{what}: {}", self.last_line))
    }
}

/// Runs the programs of one attempt, so that a later executor finds them again after a restart.
pub trait Programs: Send + Sync {
    /// The environment variables by which the programs of an attempt are found. Every program of
    /// the attempt must have them.
    fn marks(&self, attempt: &str) -> [(&'static str, OsString); 2];

    /// Shell commands that limit the resources of a program; they must run before it.
    fn limits(&self) -> String;

    /// Runs a program to its end, within its resource limits. Each attempt, and each named part of
    /// one, has at most one program.
    fn run(
        &self,
        attempt: &str,
        start: ProgramStart,
        deadline: Option<Instant>,
        cancel: &Cancel,
        output: &mut dyn Output,
    ) -> Result<ProgramExit, Failure>;

    /// The program of the attempt, or of this part of it, that an earlier executor started.
    fn earlier(&self, attempt: &str) -> Option<Box<dyn EarlierProgram>>;

    /// The prefix of the names of files that only programs of this attempt may read.
    fn private_prefix(&self, attempt: &str) -> String;

    /// Ends every process of the attempt.
    fn end(&self, attempt: &str) -> Result<(), SurvivingProcesses>;
}

/// Processes of an attempt that do not end even after SIGKILL, each as `PID (NAME)`. Nothing may
/// follow the attempt until a person has decided its outcome.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("processes of the attempt survive SIGKILL: {}", .0.join(", "))]
pub struct SurvivingProcesses(pub Vec<String>);

/// A program that an earlier executor started. It may still run.
pub trait EarlierProgram {
    /// Follows the program to its end, as [`Programs::run`] does.
    fn follow(
        self: Box<Self>,
        deadline: Option<Instant>,
        cancel: &Cancel,
        output: &mut dyn Output,
    ) -> io::Result<ProgramExit>;
}
