//! Bodies of `/deploy/v1`: plans, runs and their events.
//!
//! Does not belong here: journal records (`hoist-engine`).

use std::collections::BTreeMap;

use hoist_diagnostic::Diagnostic;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::JsonText;

/// The work to do: task files and a selection of them, or a plan that was compiled before.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PlanRequest {
    /// The purpose of the run, for people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub title: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<TaskFile>,
    /// Over the settings of the files.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub settings: Value,
    #[serde(default)]
    pub selection: Selection,
    /// Value of foreign conditions that could not be translated; without it no plan is made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conditions: Option<bool>,
    /// A plan, instead of files: alone, or with all that `POST /deploy/v1/plans` gave. Then it is
    /// refused if it was changed since, or if another member of a role has become its first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Value>")]
    pub plan: Option<JsonText>,
    /// It only looks whether something holds: `last` does not mean such a run.
    #[serde(default, skip_serializing_if = "is_false")]
    pub check: bool,
    /// Start even if another run is active on the same nodes.
    #[serde(default, skip_serializing_if = "is_false")]
    pub allow_concurrent: bool,
}

/// A file with its content.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TaskFile {
    pub name: String,
    pub text: String,
    /// Texts of the templates that its tasks name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub templates: BTreeMap<String, String>,
}

/// A selection of tasks and nodes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Selection {
    /// Ids, globs, `/regex/`, `+task`, `task+`, `a..b`, `@barrier`; all if there is none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tasks: Vec<String>,
    /// A selector of nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub skip: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// `failed` or `blocked`, in the last run of the same files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub only: Option<String>,
    /// Repeat steps that were already done with the same inputs.
    #[serde(default, skip_serializing_if = "is_false")]
    pub repeat: bool,
    /// Do so for tasks that are for one of these events.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub events: Vec<String>,
    /// Do not check that the prerequisites of the tasks are done.
    #[serde(default, skip_serializing_if = "is_false")]
    pub without_prerequisites: bool,
}

/// Result of compiling.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PlanAnswer {
    /// To be given back to `POST /deploy/v1/runs`; absent if the files are wrong.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Value>")]
    pub plan: Option<JsonText>,
    /// SHA-256 of the plan.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub hash: String,
    pub steps: usize,
    pub edges: usize,
    pub nodes: usize,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub skips: Vec<Skip>,
    /// Unselected prerequisites of selected instances that are not known to be done.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub prerequisites: Vec<String>,
    /// Every instance, every bound edge and every limit, where the plan was made from files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Value")]
    pub listing: Option<JsonText>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub diagnostics: Vec<TaskFileDiagnostic>,
    /// `PredictedChange` changes, if requested.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub predictions: Vec<PredictedChange>,
    /// Number of instances beyond the limit of predictions.
    #[serde(default, skip_serializing_if = "crate::is_zero")]
    pub not_predicted: usize,
    /// Runs active on the same nodes: the run would be refused without `allow_concurrent`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub concurrent: Vec<String>,
}

/// `PredictedChange` changes of an instance in the current state of its node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PredictedChange {
    pub instance: String,
    pub change: Change,
    /// Lines as `diff -u` has them.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub diff: String,
    /// The reason why it is not known.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    Diff,
    None,
    Unknown,
}

/// A step that will not be done, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Skip {
    pub instance: String,
    pub reason: String,
}

/// A problem of a task file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TaskFileDiagnostic {
    pub severity: Severity,
    pub code: String,
    /// Its place is `file:line:column`.
    #[serde(flatten)]
    pub diagnostic: Diagnostic,
    /// An excerpt of the file with the place marked.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub drawing: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    Error,
    Warning,
    Note,
}

/// The state of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RunState {
    Running,
    Paused,
    /// No new step starts; running steps finish.
    Stopping,
    /// A person has to say how it goes on.
    Waiting,
    Ended,
    /// Its journal cannot be read.
    Broken,
}

impl RunState {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Paused => "paused",
            Self::Stopping => "stopping",
            Self::Waiting => "waiting",
            Self::Ended => "ended",
            Self::Broken => "broken",
        }
    }
}

/// The outcome of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RunOutcome {
    Succeeded,
    /// Some nodes were left out, as many as may be.
    Degraded,
    Failed,
    Stopped,
}

impl RunOutcome {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Succeeded => "succeeded",
            Self::Degraded => "degraded",
            Self::Failed => "failed",
            Self::Stopped => "stopped",
        }
    }
}

/// A run, as it is listed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RunSummary {
    pub id: String,
    pub title: String,
    /// The principal that started it.
    pub by: String,
    /// RFC 3339.
    pub created: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<String>,
    pub state: RunState,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<RunOutcome>,
    /// Number of instances in each state.
    #[serde(default)]
    pub counts: BTreeMap<String, usize>,
    pub steps: usize,
    pub nodes: usize,
    /// SHA-256 of the plan.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub plan: String,
    /// The run that this one undoes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub undoes: Option<String>,
    /// Started automatically because its task files ask for it.
    #[serde(default, skip_serializing_if = "is_false")]
    pub automatic: bool,
    /// It only looks whether something holds.
    #[serde(default, skip_serializing_if = "is_false")]
    pub check: bool,
    /// Names of the task files that it was made of.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<String>,
    /// Number of records in its journal, which is the number of its last event.
    pub records: u64,
    /// The reason why its journal cannot be read, with the place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub broken: Option<String>,
    /// At the start: warnings about its inputs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub diagnostics: Vec<TaskFileDiagnostic>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RunList {
    pub items: Vec<RunSummary>,
}

/// A run with what matters most in it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RunDetail {
    #[serde(flatten)]
    pub summary: RunSummary,
    /// Failures, and steps that need a decision of an operator.
    pub failures: Vec<FailedInstance>,
    /// Running instances, the longest first.
    pub running: Vec<Instance>,
    /// Ready instances that may not start, with the reason.
    pub held: Vec<Instance>,
    /// The critical path of the remaining steps.
    pub critical: Vec<String>,
    /// Steps that wait until they are released.
    pub holds: Vec<String>,
    /// The principal or rule that paused it, if it is paused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused_by: Option<String>,
    /// The last run that undid this one, unless this one continued since.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub undone_by: Option<String>,
}

/// An instance that failed, or that waits for a decision.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FailedInstance {
    #[serde(flatten)]
    pub instance: Instance,
    /// The last lines of its output.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub output: Vec<String>,
    /// Number of instances that it blocks.
    pub blocks: usize,
    /// On how many nodes those are.
    pub blocked_nodes: usize,
}

/// One task on one node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Instance {
    /// Its number in the plan.
    pub step: u32,
    pub name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    pub action: String,
    pub state: String,
    pub attempt: u32,
    /// The reason for its state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The check that did not hold, if it is in that state because of one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub check: Option<FailedCheck>,
    /// The reason why it does not start yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_by: Option<String>,
    /// Milliseconds since 1970, of the last attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<u64>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub attempts: Vec<Attempt>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Attempt {
    pub attempt: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<u64>,
    /// `done`, `unchanged`, `failed`, `interrupted`, `lost`, `refused`, or nothing while it runs.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub end: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// The check that did not hold, if the attempt ended because of one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub check: Option<FailedCheck>,
}

/// A check that did not hold: the assertion and the observation, apart from each other.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FailedCheck {
    pub kind: CheckKind,
    /// The assertion, `says` of the task file, or the name of the action that checks. Empty if the
    /// check could not be made.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub title: String,
    /// The observation: the last line that the check printed, or the reason why it could not be
    /// made.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub output: String,
    /// The exit code of the program that checked, if there was one and it ended by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
}

/// The time of a check: before or after its task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CheckKind {
    Precondition,
    Postcondition,
}

impl FailedCheck {
    /// The result without the kind: `"no one is logged in" failed (exit code 1): alice pts/0`.
    pub fn result(&self) -> String {
        let Self { title, output, exit_code, .. } = self;
        let verdict = match title.as_str() {
            "" => "not checked".to_owned(),
            title => format!("\"{title}\" failed"),
        };
        let code = exit_code.map(|code| format!(" (exit code {code})")).unwrap_or_default();
        let separator = if output.is_empty() { "" } else { ": " };
        format!("{verdict}{code}{separator}{output}")
    }
}

/// `precondition "no one is logged in" failed (exit code 1): alice pts/0; nothing was changed`.
impl std::fmt::Display for FailedCheck {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let result = self.result();
        match self.kind {
            CheckKind::Precondition => write!(f, "precondition {result}; nothing was changed"),
            CheckKind::Postcondition => write!(f, "postcondition {result}"),
        }
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct InstanceList {
    pub items: Vec<Instance>,
    /// Give this as `after` for the next page; absent on the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<u32>,
}

/// A record of the journal, with names instead of numbers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RunEvent {
    /// The first record of a run is 1.
    pub seq: u64,
    /// The kind of the record.
    pub record: String,
    /// Milliseconds since 1970.
    pub at: u64,
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

/// The events after a given one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RunEvents {
    pub items: Vec<RunEvent>,
    /// The number of the last record there is.
    pub last: u64,
    /// The state of the run after it.
    pub state: RunState,
    /// No step is running and none will start without an operator: the run has ended or waits for
    /// a command.
    #[serde(default)]
    pub rests: bool,
}

/// A command of an operator to a run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[expect(clippy::struct_excessive_bools, reason = "each is a word of its own on the wire")]
pub struct RunCommandRequest {
    /// `stop`: end also what runs.
    #[serde(default, skip_serializing_if = "is_false")]
    pub now: bool,
    /// `stop`: only after this barrier or task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
    /// `pause`, `unpause`: only this node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// `pause`, `unpause`: only the nodes on which the run does something for this role.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    /// `hold`, `release`, `retry`, `mark`, `undo`: these instances, by name or number; a task's name
    /// means all of its instances.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub instances: Vec<String>,
    /// `mark`: it came to a good end, or not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub good: Option<bool>,
    /// `undo`: only instances of these nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on: Option<String>,
    /// `undo`: continue although some steps cannot be undone.
    #[serde(default, skip_serializing_if = "is_false")]
    pub leave_gaps: bool,
    /// `undo`: also steps whose result was changed since.
    #[serde(default, skip_serializing_if = "is_false")]
    pub over_changes: bool,
    /// `resume`, `retry`, `mark`, `undo`: also if another run is active on the same nodes.
    #[serde(default, skip_serializing_if = "is_false")]
    pub allow_concurrent: bool,
}

/// Result of a command to a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RunCommandResult {
    pub run: RunSummary,
    /// Names of the affected instances.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub instances: Vec<String>,
    /// Steps that cannot be undone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gaps: Vec<String>,
    /// Steps that may be undone only partly; only their nodes know.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unsure: Vec<String>,
    /// Runs active on the same nodes: the command is refused without `allow_concurrent`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub concurrent: Vec<String>,
    pub dry_run: bool,
}

/// The state of an instance with its reasons.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct InstanceExplanation {
    pub instance: Instance,
    /// From the instance back to the cause, one sentence each.
    pub because: Vec<String>,
    /// Names of the steps it waits for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub needs: Vec<String>,
    /// Instances that wait for it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub needed_by: Vec<String>,
    /// The place of its task: file, line and column.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub written: Option<String>,
    /// The place where each field of its task was set; a later file may have set some of them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub from: BTreeMap<String, String>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "for serde")]
fn is_false(flag: &bool) -> bool {
    !flag
}
