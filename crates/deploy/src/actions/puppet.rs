//! `puppet`: one manifest, applied.

use std::ffi::OsString;

use hoist_diagnostic::Diagnostic;
use hoist_engine::action::{Action, ApplyOutcome, Ctx, Description, Failure, Prediction, Verdict};
use hoist_engine::plan::Step;
use hoist_engine::program::ExitCause;
use serde_json::Value;

use super::input::parse;
use super::program::{self, Options, words};
use super::{described, exit, invalid, place};

pub(super) struct Puppet {
    pub(super) program: OsString,
}

impl Default for Puppet {
    fn default() -> Self {
        Self { program: "puppet".into() }
    }
}

struct Input {
    manifest: String,
    modules: Option<String>,
    noop: bool,
    /// Where the other paths begin, if they are not whole.
    cwd: Option<String>,
}

fn read(input: &Value) -> Result<Input, Vec<Diagnostic>> {
    parse(input, |input| {
        let manifest = input.wanted("manifest").map(str::to_owned);
        let modules = input.text("modules").map(str::to_owned);
        let noop = input.flag("noop");
        let cwd = input.text("cwd").map(str::to_owned);
        Some(Input { manifest: manifest?, modules, noop, cwd })
    })
}

impl Action for Puppet {
    fn describe(&self) -> Description {
        let about = "applies a manifest of Puppet; says whether it changed anything";
        Description { tools: vec!["puppet".to_owned()], ..described("puppet", about, &[]) }
    }

    fn validate(&self, input: &Value) -> Vec<Diagnostic> {
        read(input).err().unwrap_or_default()
    }

    fn apply(&self, step: &Step, ctx: &mut Ctx<'_>) -> Result<ApplyOutcome, Failure> {
        let input = read(&step.call.input).map_err(invalid)?;
        let noop = input.noop;
        let (changed, _) = self.run(input, ctx)?;
        Ok(ApplyOutcome { changed: changed && !noop, receipt: Value::Null })
    }

    fn predict(&self, step: &Step, ctx: &mut Ctx<'_>) -> Result<Prediction, Failure> {
        let input = read(&step.call.input).map_err(invalid)?;
        if input.noop {
            return Ok(Prediction::NoChange);
        }
        let (_, would) = self.run(Input { noop: true, ..input }, ctx)?;
        Ok(if would.is_empty() { Prediction::NoChange } else { Prediction::Diff(would) })
    }

    fn verify(&self, _: &Step, _: &mut Ctx<'_>) -> Result<Verdict, Failure> {
        Err(exit("puppet is no check"))
    }

    fn is_programs(&self, _: &Value) -> bool {
        true
    }
}

impl Puppet {
    /// Returns whether Puppet reported a change, and the changes that it would make.
    fn run(&self, input: Input, ctx: &mut Ctx<'_>) -> Result<(bool, String), Failure> {
        let Input { manifest, modules, noop, cwd } = input;
        let base = place::to_read(cwd.as_deref().unwrap_or_default(), ctx);
        let mut argv = vec![self.program.clone()];
        argv.extend(words(["apply", "--detailed-exitcodes", "--color=false"]));
        if let Some(modules) = modules {
            argv.extend(["--modulepath".into(), base.join(modules).into()]);
        }
        if noop {
            argv.push("--noop".into());
        }
        argv.push(base.join(manifest).into());
        let options = Options { cwd, ..Options::default() };
        let mut would = String::new();
        // The exit code does not tell whether Puppet would change anything.
        let ran = program::run_watched(&argv, &options, ctx, |line| {
            let text = String::from_utf8_lossy(line);
            let said = text.strip_prefix("Notice: ").and_then(|said| said.strip_suffix(" (noop)"));
            if let Some(said) = said {
                would.push_str(said);
                would.push('\n');
            }
        })?;
        match (ran.cause, ran.status.code()) {
            (ExitCause::Itself, Some(0)) => Ok((false, would)),
            (ExitCause::Itself, Some(2)) => Ok((true, would)),
            _ => program::well(&ran).and(Err(exit("puppet failed"))),
        }
    }
}
