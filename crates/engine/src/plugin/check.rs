//! Tests whether a plug-in follows the protocol, with all verbs. Verbs with side effects run in an
//! empty directory, and only with an input that the author or the caller provided.
//!
//! Does not belong here: the protocol (`protocol`), and the isolation of plug-ins.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use hoist_diagnostic::Diagnostic;
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::{
    Introduction, Isolation, MAX_SECRETS, PluginError, Program, Terms, Until, Verb, introduce,
};
use crate::action::{Ability, Catalog, Contribution};
use crate::plan::Step;

/// Timeout of each run, verify and undo.
const RUN_TIME: Duration = Duration::from_mins(1);

/// Limits of the comparison of directories.
const MAX_FILES: usize = 10_000;
const MAX_COMPARED: u64 = 1024 * 1024;

/// One rule, and whether the plug-in follows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RuleResult {
    pub rule: &'static str,
    pub verdict: RuleVerdict,
    /// The observation.
    pub message: String,
    /// How to fix it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<&'static str>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RuleVerdict {
    Followed,
    Violated,
    /// The plug-in works, and could be better.
    Advice,
    /// The rule was not tested.
    Untried,
}

/// The results in the order of the tests.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct PluginReport {
    pub results: Vec<RuleResult>,
}

impl PluginReport {
    pub fn is_good(&self) -> bool {
        self.results.iter().all(|result| result.verdict != RuleVerdict::Violated)
    }

    fn followed(&mut self, rule: &'static str, message: impl Into<String>) {
        self.results.push(RuleResult {
            rule,
            verdict: RuleVerdict::Followed,
            message: message.into(),
            remedy: None,
        });
    }

    fn add(
        &mut self,
        rule: &'static str,
        verdict: RuleVerdict,
        message: impl Into<String>,
        remedy: &'static str,
    ) {
        self.results.push(RuleResult {
            rule,
            verdict,
            message: message.into(),
            remedy: Some(remedy),
        });
    }

    fn violated(&mut self, rule: &'static str, message: impl Into<String>, remedy: &'static str) {
        self.add(rule, RuleVerdict::Violated, message, remedy);
    }
}

const SEE: &str = "see docs/plugins.md for the answer of each verb";

/// Tests a plug-in. `there` are the existing actions; `directory` must be empty and is used as
/// working directory; `input` replaces the example of the plug-in.
pub fn check(
    path: &Path,
    isolation: &Arc<Isolation>,
    there: &Catalog,
    directory: &Path,
    input: Option<Value>,
) -> PluginReport {
    let mut report = PluginReport::default();
    let program = match Program::open(path, isolation) {
        Ok(program) => program,
        Err(error) => {
            report.violated(
                "file",
                error.to_string(),
                "put a program there that only its owner can write to",
            );
            return report;
        }
    };
    if there.get(&program.name).is_some() {
        report.violated(
            "file",
            format!("`{}` is an action of hoist; a plug-in cannot have its name", program.name),
            "rename the file and the action in its description",
        );
    } else {
        report.followed("file", format!("the file is the action `{}`", program.name));
    }
    match introduce(&program) {
        Ok(said) => PluginCheck { program, said, directory, report }.all(input),
        Err(error) => {
            report.violated("describe", error.to_string(), SEE);
            report
        }
    }
}

struct PluginCheck<'a> {
    program: Program,
    said: Introduction,
    directory: &'a Path,
    report: PluginReport,
}

impl PluginCheck<'_> {
    fn all(mut self, input: Option<Value>) -> PluginReport {
        self.description();
        self.strange_requests();
        self.garbage();
        self.pure_verbs();
        match input.or_else(|| self.said.example.clone()) {
            Some(input) => self.changes(&input),
            None => self.report.add(
                "run",
                RuleVerdict::Untried,
                "run, verify and undo were not tested: no input is known",
                "name one as `example` in the description, or with --input; paths in it are relative",
            ),
        }
        self.report
    }

    fn description(&mut self) {
        let about = &self.said.about;
        self.report.followed(
            "describe",
            format!("version {}, protocol {:?}", about.version, self.said.proto),
        );
        if about.version.is_empty() {
            self.report.violated(
                "describe.version",
                "the version is empty",
                "give it one, such as `1.0`",
            );
        }
        if about.about.is_empty() || about.about.contains('\n') {
            let message = "`about` is not one line";
            self.report.add(
                "describe.about",
                RuleVerdict::Advice,
                message,
                "describe the action in one line",
            );
        }
        match introduce(&self.program) {
            Ok(again) if again == self.said => {
                self.report.followed("describe.stable", "the description is constant");
            }
            Ok(_) => self.report.violated(
                "describe.stable",
                "the second description differs from the first",
                "answer describe with a constant: no clock, no random values, no state of the machine",
            ),
            Err(error) => self.report.violated("describe.stable", error.to_string(), SEE),
        }
    }

    /// Requests of a newer hoist, and malformed ones.
    fn strange_requests(&mut self) {
        let newer = json!({"from_the_future": {"deep": [1, 2, 3]}});
        match self.program.ask(Verb::Describe.as_str(), newer, Terms::pure()) {
            Ok(_) => self.report.followed("fields", "unknown fields of a request are ignored"),
            Err(error) => self.report.violated(
                "fields",
                error.to_string(),
                "ignore unknown fields of the request",
            ),
        }
        match self.program.ask("from_the_future", Value::Null, Terms::pure()) {
            Err(PluginError::Unsupported { .. }) => {
                self.report.followed("verbs", "an unknown verb is `unsupported`");
            }
            other => self.report.violated(
                "verbs",
                format!("an unknown verb was answered with {}", outcome(&other)),
                r#"answer {"t":"result","ok":false,"error":"unsupported"} and exit with status 0"#,
            ),
        }
    }

    /// Inputs that no action accepts.
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
                Ok(diagnostics) if diagnostics.is_empty() => {
                    let message = format!("validate accepts {what} as input");
                    let remedy = "report every problem in validate, also unknown fields";
                    self.report.violated("validate", message, remedy);
                    return;
                }
                Ok(_) => {}
                Err(PluginError::Unsupported { .. }) => {
                    let message = "the plug-in has no validate: problems are found during the run, not before";
                    self.report.add(
                        "validate",
                        RuleVerdict::Advice,
                        message,
                        "report the problem in validate",
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
        self.report.followed("validate", "invalid inputs are refused");
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
                    "the plug-in contributes to section `{}`, which it does not declare",
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
            Ok(()) => self.report.followed(rule, "answered"),
            // An empty document may not be enough for the plug-in.
            Err(PluginError::Said { reason, .. }) => {
                self.report.followed(rule, format!("refused for an empty document: {reason}"));
            }
            Err(PluginError::Unsupported { .. }) => self.report.followed(rule, "unsupported"),
            Err(error) => self.report.violated(rule, error.to_string(), SEE),
        }
    }

    /// Run, second run, verify and undo.
    fn changes(&mut self, input: &Value) {
        match self.validate(input) {
            Ok(diagnostics) if !diagnostics.is_empty() => {
                let message = format!("the example is refused: {}", diagnostics[0].message);
                let remedy = "name an example that validate accepts";
                self.report.violated("example", message, remedy);
                return;
            }
            // Other problems of validate were reported before.
            _ => {}
        }
        let before = contents(self.directory);
        let can = |ability| self.said.about.can.contains(&ability);
        let verifies = can(Ability::Verify);
        let undoes = can(Ability::Undo);
        let held_before = verifies.then(|| self.holds(input)).transpose();
        let receipt = match self.act(Verb::Run, input, Map::new()) {
            Ok(answer) => {
                self.report.followed("run", "the example ran");
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
                let message = "the plug-in cannot verify its step: `verify` is not in `can`";
                self.report.add(
                    "verify",
                    RuleVerdict::Advice,
                    message,
                    "with verify, lost runs are resumed by themselves",
                );
            }
            Err(error) => self.report.violated("verify", error.to_string(), SEE),
        }
        if undoes {
            if self.undo(input, receipt, &before) {
                self.undo_without_receipt(input, &before);
            }
        } else {
            let message = "the plug-in has no undo: `undo` is not in `can`";
            self.report.add(
                "undo",
                RuleVerdict::Advice,
                message,
                "put the data for undo into the receipt",
            );
        }
    }

    /// Tests verify and the second run, after the first run.
    fn again(&mut self, input: &Value, held_before: bool) {
        match self.holds(input) {
            Ok(true) if held_before => {
                let message = "verify reports the step as done even before the run";
                let remedy =
                    "check the machine in verify, and use an example that changes something";
                self.report.add("verify", RuleVerdict::Advice, message, remedy);
            }
            Ok(true) => {
                self.report.followed("verify", "the step is done after the run and was not before");
            }
            Ok(false) => {
                let message = "verify reports the step as not done right after the run";
                self.report.violated("verify", message, "let verify check the result of run");
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
                let message = "the second run changed the result of the first one";
                self.report.violated(
                    "run.again",
                    message,
                    "let run skip changes that are already made",
                );
            }
            Ok(answer) if answer.get("changed") != Some(&Value::Bool(false)) => {
                let message = "the second run does not report `changed: false`";
                let remedy = r#"answer "changed":false if there was nothing to change"#;
                self.report.violated("run.again", message, remedy);
            }
            Ok(_) => self.report.followed("run.again", "the second run changed nothing"),
            Err(error) => {
                let message = format!("the second run failed: {error}");
                self.report.violated(
                    "run.again",
                    message,
                    "let run skip changes that are already made",
                );
            }
        }
    }

    /// Whether the undo restored the directory.
    fn undo(&mut self, input: &Value, receipt: Value, before: &BTreeMap<PathBuf, Vec<u8>>) -> bool {
        let fields = Map::from_iter([("receipt".to_owned(), receipt)]);
        let answer = match self.act(Verb::Undo, input, fields) {
            Ok(answer) => answer,
            Err(error) => {
                self.report.violated("undo", error.to_string(), SEE);
                return false;
            }
        };
        if answer.get("undone") != Some(&Value::Bool(true)) {
            let remedy = r#"answer "undone":true, or do not name `undo` in `can`"#;
            self.report.violated(
                "undo",
                "the plug-in does not report that it undid its change",
                remedy,
            );
        } else if contents(self.directory) != *before {
            let message = "the directory differs from its state before the run";
            self.report.violated(
                "undo",
                message,
                "restore every change of run, with the help of the receipt",
            );
        } else {
            self.report.followed("undo", "the directory is the same as before the run");
            return true;
        }
        false
    }

    /// Undoes another run as if it had been cut short: such an attempt has no receipt.
    fn undo_without_receipt(&mut self, input: &Value, before: &BTreeMap<PathBuf, Vec<u8>>) {
        const RULE: &str = "undo.no_receipt";
        if let Err(error) = self.act(Verb::Run, input, Map::new()) {
            let message = format!("the run after the undo failed: {error}");
            self.report.violated("undo", message, "let undo remove every trace of run");
            return;
        }
        let fields = Map::from_iter([("receipt".to_owned(), Value::Null)]);
        match self.act(Verb::Undo, input, fields) {
            Ok(answer) if answer.get("undone") != Some(&Value::Bool(true)) => {
                self.report.followed(RULE, "the plug-in does not claim to undo a lost run");
            }
            Ok(_) if contents(self.directory) == *before => {
                self.report.followed(RULE, "a lost run is undone completely");
            }
            Ok(_) => {
                let message =
                    "undo with `receipt: null` reports success, but the change is still there";
                let remedy = r#"answer "undone":false unless certainly no change is left"#;
                self.report.violated(RULE, message, remedy);
            }
            Err(PluginError::Said { reason, .. }) => {
                self.report.followed(RULE, format!("refused: {reason}"));
            }
            Err(error) => {
                let message = format!("undo with `receipt: null` failed: {error}");
                let remedy = "runs that failed or were lost have no receipt; answer without it";
                self.report.violated(RULE, message, remedy);
            }
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
        // The input names secrets; their values do not matter here.
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

/// Files by path, with the beginning of their content.
fn contents(directory: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut open = vec![directory.to_owned()];
    while let Some(next) = open.pop() {
        for entry in fs_err::read_dir(&next).into_iter().flatten().flatten() {
            if found.len() >= MAX_FILES {
                return found;
            }
            let path = entry.path();
            let kind = entry.file_type().ok();
            let mut bytes = Vec::new();
            if kind.is_some_and(|kind| kind.is_file()) {
                let file = fs_err::File::open(&path).map(|file| file.take(MAX_COMPARED));
                // An unreadable file is compared by name only.
                let _ = file.and_then(|mut file| file.read_to_end(&mut bytes));
            } else if kind.is_some_and(|kind| kind.is_dir()) {
                open.push(path.clone());
            }
            found.insert(path, bytes);
        }
    }
    found
}
