//! Whether a plug-in keeps to the protocol, tried out with all verbs.
//!
//! What changes something is tried in an empty directory, and only with an input that the author
//! or the caller named for it.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::{Map, Value, json};

use super::{
    Introduction, Isolation, MAX_SECRETS, PluginError, Program, Terms, Until, Verb, introduce,
};
use crate::action::{Ability, Catalog, Contribution, Diagnostic};
use crate::plan::Step;

/// What is tried with run, verify and undo takes no longer than this, each.
const RUN_TIME: Duration = Duration::from_mins(1);

/// Files that are compared, and how much of each.
const MAX_FILES: usize = 10_000;
const MAX_COMPARED: u64 = 1024 * 1024;

/// One rule, and whether the plug-in keeps it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    pub rule: &'static str,
    pub verdict: Kept,
    /// What was seen.
    pub message: String,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<&'static str>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kept {
    Kept,
    Violated,
    /// It works, and could be better.
    Advice,
    /// It was not tried.
    Untried,
}

/// All that was found, in the order in which it was tried.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Report {
    pub findings: Vec<Finding>,
}

impl Report {
    pub fn is_good(&self) -> bool {
        self.findings.iter().all(|finding| finding.verdict != Kept::Violated)
    }

    fn kept(&mut self, rule: &'static str, message: impl Into<String>) {
        self.findings.push(Finding {
            rule,
            verdict: Kept::Kept,
            message: message.into(),
            remedy: None,
        });
    }

    fn no(
        &mut self,
        rule: &'static str,
        verdict: Kept,
        message: impl Into<String>,
        remedy: &'static str,
    ) {
        self.findings.push(Finding {
            rule,
            verdict,
            message: message.into(),
            remedy: Some(remedy),
        });
    }

    fn violated(&mut self, rule: &'static str, message: impl Into<String>, remedy: &'static str) {
        self.no(rule, Kept::Violated, message, remedy);
    }
}

const SEE: &str = "see docs/plugins.md for what each verb answers";

/// Tries a plug-in out. `there` are the actions that it will stand beside; `directory` is empty and
/// is worked in; `input` is used instead of the plug-in's own example.
pub fn check(
    path: &Path,
    isolation: &Arc<Isolation>,
    there: &Catalog,
    directory: &Path,
    input: Option<Value>,
) -> Report {
    let mut report = Report::default();
    let program = match Program::open(path, isolation) {
        Ok(program) => program,
        Err(error) => {
            report.violated(
                "file",
                error.to_string(),
                "put a program of your own there that only you can write to",
            );
            return report;
        }
    };
    if there.get(&program.name).is_some() {
        report.violated(
            "file",
            format!("`{}` is an action of hoist, whose name no plug-in can take", program.name),
            "rename the file, and in the description the action",
        );
    } else {
        report.kept("file", format!("it is the action `{}`", program.name));
    }
    match introduce(&program) {
        Ok(said) => Trial { program, said, directory, report }.all(input),
        Err(error) => {
            report.violated("describe", error.to_string(), SEE);
            report
        }
    }
}

struct Trial<'a> {
    program: Program,
    said: Introduction,
    directory: &'a Path,
    report: Report,
}

impl Trial<'_> {
    fn all(mut self, input: Option<Value>) -> Report {
        self.description();
        self.strange_requests();
        self.garbage();
        self.pure_verbs();
        match input.or_else(|| self.said.example.clone()) {
            Some(input) => self.changes(&input),
            None => self.report.no(
                "run",
                Kept::Untried,
                "run, verify and undo were not tried: there is no input to try them with",
                "name one as `example` in the description, or with --input; paths in it are relative",
            ),
        }
        self.report
    }

    fn description(&mut self) {
        let about = &self.said.about;
        self.report
            .kept("describe", format!("version {}, protocol {:?}", about.version, self.said.proto));
        if about.version.is_empty() {
            self.report.violated(
                "describe.version",
                "the version is empty",
                "give it one, such as `1.0`",
            );
        }
        if about.about.is_empty() || about.about.contains('\n') {
            let message = "`about` is not one line";
            self.report.no("describe.about", Kept::Advice, message, "say in one line what it does");
        }
        match introduce(&self.program) {
            Ok(again) if again == self.said => {
                self.report.kept("describe.stable", "it says the same of itself each time");
            }
            Ok(_) => self.report.violated(
                "describe.stable",
                "it says something else of itself the second time",
                "answer describe with a constant: no clock, no chance, no look at the machine",
            ),
            Err(error) => self.report.violated("describe.stable", error.to_string(), SEE),
        }
    }

    /// What a newer hoist may ask, and what nobody should.
    fn strange_requests(&mut self) {
        let newer = json!({"from_the_future": {"deep": [1, 2, 3]}});
        match self.program.ask(Verb::Describe.as_str(), newer, Terms::pure()) {
            Ok(_) => self.report.kept("fields", "fields that it does not know are passed over"),
            Err(error) => self.report.violated(
                "fields",
                error.to_string(),
                "pass over fields of the request that you do not know",
            ),
        }
        match self.program.ask("from_the_future", Value::Null, Terms::pure()) {
            Err(PluginError::Unsupported { .. }) => {
                self.report.kept("verbs", "a verb that it does not know is `unsupported`");
            }
            other => self.report.violated(
                "verbs",
                format!("a verb that it does not know was answered with {}", outcome(&other)),
                r#"answer {"t":"result","ok":false,"error":"unsupported"} and end with status 0"#,
            ),
        }
    }

    /// Inputs that cannot be meant.
    fn garbage(&mut self) {
        let large = "x".repeat(64 * 1024);
        let inputs = [
            ("null", Value::Null),
            ("a number", json!(42)),
            ("a text", json!("text")),
            ("a list", json!([[[[]]]])),
            ("an unknown field", json!({"no_such_field_of_any_action": 1})),
            ("a large text", json!({ "no_such_field_of_any_action": large })),
            ("control characters", json!("\u{0}\u{1b}[31m\"\\\n")),
        ];
        for (what, input) in inputs {
            match self.validate(&input) {
                Ok(faults) if faults.is_empty() => {
                    let message = format!("{what} is a valid input to it");
                    let remedy =
                        "say in validate what is wrong, also with fields that you do not know";
                    self.report.violated("validate", message, remedy);
                    return;
                }
                Ok(_) => {}
                Err(PluginError::Unsupported { .. }) => {
                    let message = "it has no validate: faults are found when it runs, not before";
                    self.report.no(
                        "validate",
                        Kept::Advice,
                        message,
                        "answer validate with what is wrong",
                    );
                    return;
                }
                Err(error) => {
                    let message = format!("with {what} as input: {error}");
                    let remedy = "answer validate with diagnostics, whatever the input is";
                    self.report.violated("validate", message, remedy);
                    return;
                }
            }
        }
        self.report.kept("validate", "inputs that cannot be meant are refused");
    }

    fn validate(&self, input: &Value) -> Result<Vec<Diagnostic>, PluginError> {
        let fields = json!({"step": {"action": self.program.name, "input": input}});
        self.program.ask_for(Verb::Validate, "diagnostics", fields, Terms::pure())
    }

    fn pure_verbs(&mut self) {
        let fields = json!({"doc": {}, "facts": {}});
        let said = self.program.ask_for(Verb::Contribute, "contributions", fields, Terms::pure());
        let said = said.map(|asked: Vec<Contribution>| {
            asked.into_iter().find(|one| !self.said.about.contributes.contains(&one.section))
        });
        match said {
            Ok(Some(one)) => self.report.violated(
                "contribute",
                format!(
                    "it asks for something in section `{}`, which it does not declare",
                    one.section
                ),
                "name the section under `contributes` in the description",
            ),
            other => self.answered("contribute", other.map(|_| ())),
        }
        let fields = json!({"doc": {}, "observed": {}});
        let said = self.program.ask_for(Verb::Plan, "steps", fields, Terms::pure());
        self.answered("plan", said.map(|_: Vec<Step>| ()));
    }

    fn answered(&mut self, rule: &'static str, said: Result<(), PluginError>) {
        match said {
            Ok(()) => self.report.kept(rule, "answered"),
            // An empty document may not be enough for it.
            Err(PluginError::Said { reason, .. }) => {
                self.report.kept(rule, format!("refused for an empty document: {reason}"));
            }
            Err(PluginError::Unsupported { .. }) => self.report.kept(rule, "unsupported"),
            Err(error) => self.report.violated(rule, error.to_string(), SEE),
        }
    }

    /// Run, run again, verify and undo.
    fn changes(&mut self, input: &Value) {
        match self.validate(input) {
            Ok(faults) if !faults.is_empty() => {
                let message = format!("the example is refused: {}", faults[0].message);
                let remedy = "name an example that validate accepts";
                self.report.violated("example", message, remedy);
                return;
            }
            // What else is wrong with validate has been told.
            _ => {}
        }
        let before = contents(self.directory);
        let can = |ability| self.said.about.can.contains(&ability);
        let (verifies, undoes) = (can(Ability::Verify), can(Ability::Undo));
        let held_before = verifies.then(|| self.holds(input)).transpose();
        let receipt = match self.act(Verb::Run, input, Map::new()) {
            Ok(answer) => {
                self.report.kept("run", "it ran with the example");
                answer.get("receipt").cloned().unwrap_or_default()
            }
            Err(error) => {
                self.report.violated(
                    "run",
                    error.to_string(),
                    "make the example work in an empty directory",
                );
                return;
            }
        };
        match held_before {
            Ok(Some(held)) => self.again(input, held),
            Ok(None) => {
                let message = "it cannot tell whether it is done: `verify` is not in `can`";
                self.report.no(
                    "verify",
                    Kept::Advice,
                    message,
                    "with verify, lost runs are resumed by themselves",
                );
            }
            Err(error) => self.report.violated("verify", error.to_string(), SEE),
        }
        if undoes {
            self.undo(input, receipt, &before);
        } else {
            let message = "it cannot take back what it did: `undo` is not in `can`";
            self.report.no("undo", Kept::Advice, message, "keep in the receipt what undo needs");
        }
    }

    /// After the first run.
    fn again(&mut self, input: &Value, held_before: bool) {
        match self.holds(input) {
            Ok(true) if held_before => {
                let message = "verify says that it is done before it ran, too";
                let remedy =
                    "look at the machine in verify, and use an example that has something to do";
                self.report.no("verify", Kept::Advice, message, remedy);
            }
            Ok(true) => self.report.kept("verify", "it is done after it ran and was not before"),
            Ok(false) => {
                let message = "verify says that it is not done, right after it ran";
                self.report.violated("verify", message, "let verify look at what run makes");
                return;
            }
            Err(error) => {
                self.report.violated("verify", error.to_string(), SEE);
                return;
            }
        }
        let made = contents(self.directory);
        match self.act(Verb::Run, input, Map::new()) {
            Ok(answer) if contents(self.directory) != made => {
                drop(answer);
                let message = "the second run made something else of what the first one made";
                self.report.violated("run.again", message, "let run do only what is not done yet");
            }
            Ok(answer) if answer.get("changed") != Some(&Value::Bool(false)) => {
                let message = "the second run does not say that it changed nothing";
                let remedy = r#"answer "changed":false when there was nothing to do"#;
                self.report.violated("run.again", message, remedy);
            }
            Ok(_) => self.report.kept("run.again", "the second run changed nothing"),
            Err(error) => {
                let message = format!("the second run failed: {error}");
                self.report.violated("run.again", message, "let run do only what is not done yet");
            }
        }
    }

    fn undo(&mut self, input: &Value, receipt: Value, before: &BTreeMap<PathBuf, Vec<u8>>) {
        let fields = Map::from_iter([("receipt".to_owned(), receipt)]);
        let answer = match self.act(Verb::Undo, input, fields) {
            Ok(answer) => answer,
            Err(error) => {
                self.report.violated("undo", error.to_string(), SEE);
                return;
            }
        };
        if answer.get("undone") != Some(&Value::Bool(true)) {
            let remedy = r#"answer "undone":true, or do not name `undo` in `can`"#;
            self.report.violated("undo", "it does not say that it took its change back", remedy);
        } else if contents(self.directory) != *before {
            let message = "the directory is not as it was before the run";
            self.report.violated(
                "undo",
                message,
                "restore all that run changed, with the help of the receipt",
            );
        } else {
            self.report.kept("undo", "all is as it was before the run");
        }
    }

    fn holds(&self, input: &Value) -> Result<bool, PluginError> {
        let answer = self.act(Verb::Verify, input, Map::new())?;
        self.program.field(Verb::Verify, &answer, "holds")
    }

    fn act(
        &self,
        verb: Verb,
        input: &Value,
        mut fields: Map<String, Value>,
    ) -> Result<Map<String, Value>, PluginError> {
        fields.insert("attempt".to_owned(), json!("check/0/1"));
        fields.insert("task".to_owned(), json!("check"));
        fields.insert("subject".to_owned(), json!(""));
        fields.insert("step".to_owned(), json!({"action": self.program.name, "input": input}));
        // Secrets are named by the input; here each is as good as any other.
        let named = input.get("secrets").and_then(Value::as_object).into_iter().flatten();
        let secrets = named.map(|(name, _)| (name.clone(), format!("secret of {name}")));
        let terms = Terms {
            secrets: secrets.take(MAX_SECRETS).collect(),
            directory: self.directory,
            until: Until { deadline: Instant::now() + RUN_TIME, cancel: None },
            network: self.said.about.network,
            writes: true,
            ..Terms::pure()
        };
        self.program.ask(verb.as_str(), Value::Object(fields), terms)
    }
}

fn outcome(said: &Result<Map<String, Value>, PluginError>) -> String {
    match said {
        Ok(_) => "`ok`".to_owned(),
        Err(error) => format!("an error: {error}"),
    }
}

/// Files by path, with the beginning of what is in them.
fn contents(directory: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut open = vec![directory.to_owned()];
    while let Some(next) = open.pop() {
        for entry in fs_err::read_dir(&next).into_iter().flatten().flatten() {
            if found.len() >= MAX_FILES {
                return found;
            }
            let (path, kind) = (entry.path(), entry.file_type().ok());
            let mut bytes = Vec::new();
            if kind.is_some_and(|kind| kind.is_file()) {
                let file = fs_err::File::open(&path).map(|file| file.take(MAX_COMPARED));
                // What cannot be read is compared by its name.
                let _ = file.and_then(|mut file| file.read_to_end(&mut bytes));
            } else if kind.is_some_and(|kind| kind.is_dir()) {
                open.push(path.clone());
            }
            found.insert(path, bytes);
        }
    }
    found
}
