//! Bodies of `/deploy/v1`: plans, runs and what happens in them.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// What is to be done: task files and which part of them, or a plan that was made before.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PlanRequest {
    /// For people: what the run is for.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub title: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<TaskFile>,
    /// Over the settings of the files.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub settings: Value,
    #[serde(default)]
    pub selection: Selection,
    /// What conditions of another product are that nobody translated; without it there is no plan.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conditions: Option<bool>,
    /// A plan, instead of files: alone, or with all that `POST /deploy/v1/plans` gave. Then it is
    /// refused if it was changed since, or if another member of a role has become its first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<Value>,
    /// It only looks whether something holds: `last` does not mean such a run.
    #[serde(default, skip_serializing_if = "is_false")]
    pub check: bool,
    /// Begin also where another run is under way on the same nodes.
    #[serde(default, skip_serializing_if = "is_false")]
    pub beside: bool,
}

/// A file and what is in it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TaskFile {
    pub name: String,
    pub text: String,
    /// Texts of the templates that its tasks name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub templates: BTreeMap<String, String>,
}

/// Which tasks, on which nodes.
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
    /// Do also what was done with the same inputs before.
    #[serde(default, skip_serializing_if = "is_false")]
    pub repeat: bool,
    /// Do so for tasks that are for one of these events.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub events: Vec<String>,
    /// Do not ask whether what the tasks need was done.
    #[serde(default, skip_serializing_if = "is_false")]
    pub without_prerequisites: bool,
}

/// What came of compiling.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PlanAnswer {
    /// To be given back to `POST /deploy/v1/runs`; absent if the files are wrong.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<Value>,
    /// SHA-256 of the plan.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub hash: String,
    pub steps: usize,
    pub edges: usize,
    pub nodes: usize,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub skips: Vec<Skip>,
    /// What selected instances wait for, that is not selected and not known to be done.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub prerequisites: Vec<String>,
    /// Every instance, every bound edge and every limit, where the plan was made from files.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub listing: Value,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub diagnostics: Vec<Diagnostic>,
    /// What would change, where that was asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub predictions: Vec<Predicted>,
    /// Instances that were not looked at, because there are so many.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub not_predicted: usize,
    /// Runs under way on the same nodes: it would be refused without `beside`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub beside: Vec<String>,
}

/// What an instance would change, as its node is now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Predicted {
    pub instance: String,
    pub change: Change,
    /// Lines as `diff -u` has them.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub diff: String,
    /// Why it is not known.
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

/// What is wrong with a task file, or odd.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Diagnostic {
    pub severity: Severity,
    pub code: String,
    pub message: String,
    /// `file:line:column`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub at: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// The place, drawn.
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

/// Where a run stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RunState {
    Running,
    Paused,
    /// Nothing new starts; what runs comes to its end.
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

/// How a run ended.
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
    /// Who started it.
    pub by: String,
    /// RFC 3339.
    pub created: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<String>,
    pub state: RunState,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<RunOutcome>,
    /// How many instances are in each state.
    #[serde(default)]
    pub counts: BTreeMap<String, usize>,
    pub steps: usize,
    pub nodes: usize,
    /// SHA-256 of the plan.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub plan: String,
    /// The run that this one takes back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub undoes: Option<String>,
    /// Nobody started it: its task files wanted it.
    #[serde(default, skip_serializing_if = "is_false")]
    pub automatic: bool,
    /// It only looks whether something holds.
    #[serde(default, skip_serializing_if = "is_false")]
    pub check: bool,
    /// Names of the task files that it was made of.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<String>,
    /// How many records its journal has: the number of its last event.
    pub records: u64,
    /// Why it cannot be read, with the place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub broken: Option<String>,
    /// When it is begun: what is odd about what it was made of.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub diagnostics: Vec<Diagnostic>,
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
    /// What failed, and what a person has to decide about.
    pub failures: Vec<Trouble>,
    /// What is under way, the longest first.
    pub running: Vec<Instance>,
    /// What is ready and may not start, with what holds it back.
    pub held: Vec<Instance>,
    /// The longest way through what is left.
    pub critical: Vec<String>,
    /// Steps that wait until they are released.
    pub holds: Vec<String>,
    /// Who or what paused it, if it is paused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused_by: Option<String>,
    /// The last run that takes back what this one did, unless it went on since.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub taken_back_by: Option<String>,
}

/// An instance that did not come to a good end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Trouble {
    #[serde(flatten)]
    pub instance: Instance,
    /// The last lines of its output.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub output: Vec<String>,
    /// How many instances are not done because of it.
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
    /// Why it is in that state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// What keeps it from starting.
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
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct InstanceList {
    pub items: Vec<Instance>,
    /// Give this as `after` for the next page; absent on the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<u32>,
}

/// A record of the journal, with names for what has one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RunEvent {
    /// The first record of a run is 1.
    pub seq: u64,
    /// What kind it is.
    pub record: String,
    /// Milliseconds since 1970.
    pub at: u64,
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

/// What happened after some event.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RunEvents {
    pub items: Vec<RunEvent>,
    /// The number of the last record there is.
    pub last: u64,
    /// Where the run stands after it.
    pub state: RunState,
    /// Nothing runs, and nothing more comes by itself: it has ended, or somebody has to say
    /// something.
    #[serde(default)]
    pub rests: bool,
}

/// What an operator says to a run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[expect(clippy::struct_excessive_bools, reason = "each is a word of its own on the wire")]
pub struct Order {
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
    /// `undo`: go on although some steps cannot be taken back.
    #[serde(default, skip_serializing_if = "is_false")]
    pub leave_gaps: bool,
    /// `undo`: also where somebody changed since what a step left.
    #[serde(default, skip_serializing_if = "is_false")]
    pub over_changes: bool,
    /// `resume`, `retry`, `mark`, `undo`: also where another run is under way on the same nodes.
    #[serde(default, skip_serializing_if = "is_false")]
    pub beside: bool,
}

/// What came of an order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Ordered {
    pub run: RunSummary,
    /// What it was about, by name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub instances: Vec<String>,
    /// Steps that cannot be taken back.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gaps: Vec<String>,
    /// Steps of which only their nodes know whether all of it can be taken back.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unsure: Vec<String>,
    /// Runs under way on the same nodes: it is refused without `beside`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub beside: Vec<String>,
    pub dry_run: bool,
}

/// Why an instance is where it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Explanation {
    pub instance: Instance,
    /// From the instance back to the cause, one sentence each.
    pub because: Vec<String>,
    /// What it waits for, by name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub needs: Vec<String>,
    /// What waits for it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub needed_by: Vec<String>,
    /// Where its task begins: file, line and column.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub written: Option<String>,
    /// Where each field of its task was set; a later file may have set some of them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub from: BTreeMap<String, String>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "for serde")]
fn is_false(flag: &bool) -> bool {
    !flag
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "for serde")]
fn is_zero(count: &usize) -> bool {
    *count == 0
}
