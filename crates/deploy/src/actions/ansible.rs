//! `ansible`: one playbook, on this machine.

use std::ffi::OsString;

use hoist_engine::action::{
    Action, Ctx, Description, Diagnostic, Done, Failure, Output, Stream, Verdict,
};
use hoist_engine::plan::Step;
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
            input.fault("extra", "a mapping is wanted here");
        }
        let check = input.flag("check");
        Some(Input { playbook: playbook?, extra, check })
    })
}

/// Looks for what the recap says was changed, and hands everything on.
struct Recap<'a> {
    output: &'a mut dyn Output,
    is_here: bool,
    changed: u64,
}

impl Output for Recap<'_> {
    fn line(&mut self, stream: Stream, bytes: &[u8]) {
        let text = String::from_utf8_lossy(bytes);
        self.is_here |= text.starts_with("PLAY RECAP");
        if self.is_here
            && let Some((_, rest)) = text.split_once(" changed=")
        {
            let digits = rest.split(|c: char| !c.is_ascii_digit()).next().unwrap_or_default();
            self.changed += digits.parse::<u64>().unwrap_or(0);
        }
        self.output.line(stream, bytes);
    }

    fn part(&mut self, stream: Stream, bytes: &[u8]) {
        self.output.part(stream, bytes);
    }

    fn progress(&mut self, done: u64, total: Option<u64>) {
        self.output.progress(done, total);
    }

    fn quoted(&self, line: &[u8], is_cut: bool) -> Vec<u8> {
        self.output.quoted(line, is_cut)
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

    fn apply(&self, step: &Step, ctx: &mut Ctx<'_>) -> Result<Done, Failure> {
        let Input { playbook, extra, check } = read(&step.call.input).map_err(invalid)?;
        let mut argv = vec![self.program.clone()];
        argv.extend(words(["-i", "localhost,", "-c", "local"]));
        let private = Private::new(None, ctx)?;
        if let Some(extra) = extra {
            // Everybody can read the arguments of a program.
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
        let mut changed = 0;
        let ran = program::run_watched(&argv, &options, ctx, |output, go| {
            let mut recap = Recap { output, is_here: false, changed: 0 };
            let ran = go(&mut recap);
            changed = recap.changed;
            ran
        })?;
        program::well(&ran)?;
        Ok(Done { changed: changed > 0 && !check, receipt: Value::Null })
    }

    fn verify(&self, _: &Step, _: &mut Ctx<'_>) -> Result<Verdict, Failure> {
        Err(exit("ansible is no check"))
    }
}
