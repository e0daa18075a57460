//! `script`: a text, or a file, for an interpreter.

use std::ffi::OsString;
use std::io::Read as _;
use std::path::PathBuf;

use hoist_diagnostic::Diagnostic;
use hoist_engine::action::{Ability, Action, ApplyOutcome, Ctx, Description, Failure, Verdict};
use hoist_engine::plan::Step;
use hoist_engine::program::ProgramExit;
use serde_json::Value;

use super::blocks::{Blocks, Until};
use super::input::parse;
use super::program::{self, Options, Private};
use super::{described, exit, invalid, io_error, place};

/// The bytes of a script that are searched for its interpreter; kernels use the same limit.
const FIRST_LINE: u64 = 256;

pub(super) struct ScriptFile;

struct Input {
    source: Source,
    interpreter: Option<String>,
    args: Vec<String>,
    options: Options,
}

enum Source {
    Text(String),
    Path(String),
}

fn read(input: &Value) -> Result<Input, Vec<Diagnostic>> {
    parse(input, |input| {
        let text = input.text("text").filter(|text| !text.is_empty());
        let path = input.text("path").filter(|path| !path.is_empty());
        let source = match (text, path) {
            (Some(text), None) => Some(Source::Text(text.to_owned())),
            (None, Some(path)) => Some(Source::Path(path.to_owned())),
            _ => {
                input.report("", "exactly one of `text` and `path` is required");
                None
            }
        };
        let interpreter = input.text("interpreter").map(str::to_owned);
        if interpreter.as_deref() == Some("") {
            input.report("interpreter", "the text is empty; name a program");
        }
        let args = input.texts("args");
        let options = Options::read(input);
        Some(Input { source: source?, interpreter, args, options })
    })
}

/// Who reads a script: who the task says, who its first line says, or the shell.
fn interpreter(given: Option<&str>, text: &str) -> Vec<OsString> {
    if let Some(given) = given {
        return vec![given.into()];
    }
    let first =
        text.strip_prefix("#!").and_then(|rest| rest.lines().next()).unwrap_or_default().trim();
    if first.is_empty() {
        return vec!["/bin/sh".into()];
    }
    // As the kernel does: the program, and all of the rest as one argument.
    let (program, argument) = first.split_once(char::is_whitespace).unwrap_or((first, ""));
    let argument = Some(argument.trim()).filter(|argument| !argument.is_empty());
    std::iter::once(program).chain(argument).map(OsString::from).collect()
}

fn run(step: &Step, ctx: &mut Ctx<'_>) -> Result<ProgramExit, Failure> {
    let Input { source, interpreter: given, args, options } =
        read(&step.call.input).map_err(invalid)?;
    if ctx.programs.earlier(ctx.attempt).is_some() {
        // The description holds everything that an undo needs, and the script itself may be gone.
        return program::run(&[], &options, ctx);
    }
    let private = Private::new(options.user.as_deref(), ctx)?;
    let (path, text): (PathBuf, String) = match source {
        Source::Text(text) => (private.write("script", &text)?, text),
        Source::Path(path) => {
            let path = place::to_read(&path, ctx);
            let mut head = Vec::new();
            let read = Blocks::open(&path, Until::of(ctx))
                .and_then(|script| script.take(FIRST_LINE).read_to_end(&mut head));
            read.map_err(|error| match error.kind() {
                std::io::ErrorKind::NotFound => {
                    exit(format!("script `{}` not found", path.display()))
                }
                _ => io_error(&error),
            })?;
            (path, String::from_utf8_lossy(&head).into_owned())
        }
    };
    let mut argv = interpreter(given.as_deref(), &text);
    argv.push(path.into());
    argv.extend(args.into_iter().map(OsString::from));
    program::run(&argv, &options, ctx)
}

impl Action for ScriptFile {
    fn describe(&self) -> Description {
        described(
            "script",
            "runs a script; as a check, it holds if the exit code is 0",
            &[Ability::Check],
        )
    }

    fn validate(&self, input: &Value) -> Vec<Diagnostic> {
        read(input).err().unwrap_or_default()
    }

    fn apply(&self, step: &Step, ctx: &mut Ctx<'_>) -> Result<ApplyOutcome, Failure> {
        program::well(&run(step, ctx)?)?;
        Ok(ApplyOutcome { changed: true, receipt: Value::Null })
    }

    fn verify(&self, step: &Step, ctx: &mut Ctx<'_>) -> Result<Verdict, Failure> {
        Ok(run(step, ctx)?.verdict())
    }

    fn is_programs(&self, _: &Value) -> bool {
        true
    }
}
