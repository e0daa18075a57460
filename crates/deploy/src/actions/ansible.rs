//! `ansible`: one playbook, on this machine.

use std::ffi::OsString;

use hoist_diagnostic::Diagnostic;
use hoist_engine::action::{Action, ApplyOutcome, Ctx, Description, Failure, Prediction, Verdict};
use hoist_engine::plan::Step;
use hoist_engine::record::FailureKind;
use serde_json::Value;

use super::input::parse;
use super::program::{self, Options, Private, words};
use super::{described, exit, invalid, place};

pub(super) struct Ansible {
    pub(super) program: OsString,
}

impl Default for Ansible {
    fn default() -> Self {
        Self { program: "ansible-playbook".into() }
    }
}

struct Input {
    playbook: String,
    extra: Option<Value>,
    check: bool,
}

fn read(input: &Value) -> Result<Input, Vec<Diagnostic>> {
    parse(input, |input| {
        let playbook = input.wanted("playbook").map(str::to_owned);
        let extra = input.get("extra").cloned();
        if extra.as_ref().is_some_and(|extra| !extra.is_object()) {
            input.report("extra", "expected a mapping");
        }
        let check = input.flag("check");
        Some(Input { playbook: playbook?, extra, check })
    })
}

/// Changed, skipped and failed tasks, as far as the output of Ansible reports them.
#[derive(Default)]
struct PlaybookSummary {
    is_recap: bool,
    /// The running task.
    task: String,
    changed: u64,
    skipped: u64,
    /// Tasks that changed something.
    tasks: String,
    /// The last one that failed, and why.
    fatal: String,
}

/// Why a task failed: in the first line of its message, if it has one.
fn message(line: &str) -> String {
    let (_, said) = line.split_once("=> ").unwrap_or_default();
    let said: Value = serde_json::from_str(said).unwrap_or_default();
    let first = said["msg"].as_str().and_then(|text| text.lines().next());
    first.unwrap_or(line).to_owned()
}

/// The number after a word of the recap.
fn number(text: &str, word: &str) -> u64 {
    let Some((_, rest)) = text.split_once(word) else { return 0 };
    let digits = rest.split(|c: char| !c.is_ascii_digit()).next().unwrap_or_default();
    digits.parse().unwrap_or(0)
}

impl PlaybookSummary {
    fn hear(&mut self, line: &str) {
        self.is_recap |= line.starts_with("PLAY RECAP");
        if self.is_recap {
            self.changed += number(line, " changed=");
            self.skipped += number(line, " skipped=");
        } else if line.starts_with("TASK [") || line.starts_with("RUNNING HANDLER [") {
            line.trim_end_matches('*').trim_end().clone_into(&mut self.task);
        } else if line.starts_with("fatal: ") || line.starts_with("failed: ") {
            self.fatal = format!("{}: {}", self.task, message(line));
        } else if line.starts_with("changed: ") {
            self.tasks += &self.task;
            self.tasks.push('\n');
        }
    }
}

impl Action for Ansible {
    fn describe(&self) -> Description {
        let about = "runs a playbook of Ansible on the machine; says whether it changed anything";
        Description {
            tools: vec!["ansible-playbook".to_owned()],
            ..described("ansible", about, &[])
        }
    }

    fn validate(&self, input: &Value) -> Vec<Diagnostic> {
        read(input).err().unwrap_or_default()
    }

    fn apply(&self, step: &Step, ctx: &mut Ctx<'_>) -> Result<ApplyOutcome, Failure> {
        let input = read(&step.call.input).map_err(invalid)?;
        let check = input.check;
        let found = self.run(input, ctx)?;
        Ok(ApplyOutcome { changed: found.changed > 0 && !check, receipt: Value::Null })
    }

    /// Many modules do nothing when they shall only look, and say that they were skipped.
    fn predict(&self, step: &Step, ctx: &mut Ctx<'_>) -> Result<Prediction, Failure> {
        let input = read(&step.call.input).map_err(invalid)?;
        if input.check {
            return Ok(Prediction::NoChange);
        }
        let found = self.run(Input { check: true, ..input }, ctx)?;
        Ok(match (found.changed, found.skipped) {
            (0, 0) => Prediction::NoChange,
            (0, _) => Prediction::CannotPredict,
            (_, 0) => Prediction::Diff(found.tasks),
            (_, skipped) => Prediction::Diff(format!(
                "{}({skipped} more tasks cannot be predicted)\n",
                found.tasks
            )),
        })
    }

    fn verify(&self, _: &Step, _: &mut Ctx<'_>) -> Result<Verdict, Failure> {
        Err(exit("ansible is no check"))
    }
}

impl Ansible {
    fn run(&self, input: Input, ctx: &mut Ctx<'_>) -> Result<PlaybookSummary, Failure> {
        let Input { playbook, extra, check } = input;
        let mut argv = vec![self.program.clone()];
        argv.extend(words(["-i", "localhost,", "-c", "local"]));
        let private = Private::new(None, ctx)?;
        if let Some(extra) = extra {
            // A file, because every user of the machine can read the arguments of a program.
            let path = private.write("extra.json", &extra.to_string())?;
            argv.extend(["-e".into(), OsString::from(format!("@{}", path.display()))]);
        }
        if check {
            argv.push("--check".into());
        }
        argv.push(place::to_read(&playbook, ctx).into());
        let env = [
            ("ANSIBLE_NOCOLOR", "1"),
            ("ANSIBLE_STDOUT_CALLBACK", "default"),
            ("ANSIBLE_RETRY_FILES_ENABLED", "0"),
        ];
        let env = env.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        let options = Options { env, ..Options::default() };
        let mut found = PlaybookSummary::default();
        let ran = program::run_watched(&argv, &options, ctx, |line| {
            found.hear(&String::from_utf8_lossy(line));
        })?;
        // Its last line is the recap, which says that something failed and not what.
        program::well(&ran).map_err(|failure| match (failure.kind, found.fatal.as_str()) {
            (FailureKind::Exit, fatal) if !fatal.is_empty() => {
                let code = failure.reason.split(": ").next().unwrap_or_default();
                exit(format!("{code}: {fatal}"))
            }
            _ => failure,
        })?;
        Ok(found)
    }
}
