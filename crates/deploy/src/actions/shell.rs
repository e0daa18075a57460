//! `shell`: a command line for `/bin/sh`.

use std::ffi::OsString;

use hoist_diagnostic::Diagnostic;
use hoist_engine::action::{Ability, Action, ApplyOutcome, Ctx, Description, Failure, Verdict};
use hoist_engine::plan::Step;
use serde_json::Value;

use super::input::parse;
use super::program::{self, Options, words};
use super::{described, invalid};

pub(super) struct Shell;

struct Input {
    command: String,
    options: Options,
}

fn read(input: &Value) -> Result<Input, Vec<Diagnostic>> {
    parse(input, |input| {
        let command = input.wanted("command").map(str::to_owned);
        let options = Options::read(input);
        Some(Input { command: command?, options })
    })
}

/// A program with its whole path and plain words needs no shell, which takes as long to start as the
/// program does.
fn argv(command: &str) -> Vec<OsString> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || " /._-+,:@%=".contains(c);
    if command.starts_with('/') && command.chars().all(is_plain) {
        return command.split(' ').filter(|word| !word.is_empty()).map(OsString::from).collect();
    }
    words(["/bin/sh", "-c", command])
}

impl Action for Shell {
    fn describe(&self) -> Description {
        described(
            "shell",
            "runs a command line; as a check, it holds if the exit code is 0",
            &[Ability::Check],
        )
    }

    fn validate(&self, input: &Value) -> Vec<Diagnostic> {
        read(input).err().unwrap_or_default()
    }

    fn apply(&self, step: &Step, ctx: &mut Ctx<'_>) -> Result<ApplyOutcome, Failure> {
        let Input { command, options } = read(&step.call.input).map_err(invalid)?;
        let ran = program::run(&argv(&command), &options, ctx)?;
        program::well(&ran)?;
        Ok(ApplyOutcome { changed: true, receipt: Value::Null })
    }

    fn verify(&self, step: &Step, ctx: &mut Ctx<'_>) -> Result<Verdict, Failure> {
        let Input { command, options } = read(&step.call.input).map_err(invalid)?;
        let ran = program::run(&argv(&command), &options, ctx)?;
        Ok(ran.verdict())
    }

    fn is_programs(&self, _: &Value) -> bool {
        true
    }
}
