//! `puppet`: one manifest, applied.

use std::ffi::OsString;

use hoist_engine::action::{Action, Ctx, Description, Diagnostic, Done, Failure, Verdict};
use hoist_engine::execute::process::Ended;
use hoist_engine::plan::Step;
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

    fn apply(&self, step: &Step, ctx: &mut Ctx<'_>) -> Result<Done, Failure> {
        let Input { manifest, modules, noop, cwd } = read(&step.call.input).map_err(invalid)?;
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
        let ran = program::run(&argv, &Options { cwd, ..Options::default() }, ctx)?;
        let changed = match (ran.ended, ran.status.code()) {
            (Ended::ByItself, Some(0)) => false,
            (Ended::ByItself, Some(2)) => !noop,
            _ => return program::well(&ran).and(Err(exit("puppet failed"))),
        };
        Ok(Done { changed, receipt: Value::Null })
    }

    fn verify(&self, _: &Step, _: &mut Ctx<'_>) -> Result<Verdict, Failure> {
        Err(exit("puppet is no check"))
    }

    fn is_programs(&self, _: &Value) -> bool {
        true
    }
}
