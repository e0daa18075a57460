//! The interface of actions, the smallest changes, and the services that an executor offers to them
//! ([`Ctx`]).
//!
//! An action runs in a thread of its own and may block. Anything else that it needs (a disk, an
//! etcd client) is a field of the action, so the engine does not know of it. Implementations of
//! actions do not belong here.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use hoist_diagnostic::Diagnostic;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::plan::{AppliedAttempt, Step};
use crate::program::Programs;
use crate::record::FailureKind;

/// Describes an action to people and programs before it is used.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Description {
    pub name: String,
    pub version: String,
    /// One line.
    #[serde(default)]
    pub about: String,
    /// Sections of the shared document that the action reads.
    #[serde(default)]
    pub reads: Vec<String>,
    /// Sections that the action fills.
    #[serde(default)]
    pub writes: Vec<String>,
    /// Sections that the action may add entries to, see [`Contribution`].
    #[serde(default)]
    pub contributes: Vec<String>,
    /// Programs that the action calls.
    #[serde(default)]
    pub tools: Vec<String>,
    #[serde(default)]
    pub can: BTreeSet<Ability>,
    /// The action is skipped if its step is verified already.
    #[serde(default)]
    pub skip_when_verified: bool,
    /// The action may use the network.
    #[serde(default)]
    pub network: bool,
}

/// Optional abilities of an action.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ability {
    /// Verify whether its own step is done.
    Verify,
    /// Serve as a check: test a condition without changing anything.
    Check,
    /// Undo its change.
    Undo,
}

impl Ability {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Verify => "verify",
            Self::Check => "check",
            Self::Undo => "undo",
        }
    }
}

/// The document that planners share: sections by name.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Document(pub BTreeMap<String, Value>);

impl Document {
    /// Only the sections that the description declares.
    #[must_use]
    pub fn shown_to(&self, description: &Description) -> Self {
        let declared = description.reads.iter().chain(&description.writes);
        let section = |name: &String| Some((name.clone(), self.0.get(name)?.clone()));
        Self(declared.filter_map(section).collect())
    }
}

/// An entry that one planner needs in the section of another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Contribution {
    /// The section that gets the entry.
    pub section: String,
    /// The id of the entry. Two different values for one id are a conflict.
    pub id: String,
    pub value: Value,
}

/// The result of a successful apply.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ApplyOutcome {
    pub changed: bool,
    /// Data for [`Action::undo`].
    pub receipt: Value,
}

/// The result of a check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    Holds,
    Fails(Observation),
}

impl Verdict {
    /// The condition does not hold; `output` is the evidence.
    pub fn fails(output: impl Into<String>) -> Self {
        Self::Fails(Observation { output: output.into(), exit_code: None })
    }
}

/// The observation of a check whose condition does not hold. An observation never repeats the
/// assertion.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Observation {
    pub output: String,
    /// Exit code of the program that checked, if a program did and exited.
    pub exit_code: Option<i32>,
}

impl From<Failure> for Observation {
    fn from(failure: Failure) -> Self {
        Self { output: failure.reason, exit_code: None }
    }
}

impl From<String> for Observation {
    fn from(output: String) -> Self {
        Self { output, exit_code: None }
    }
}

/// The result of an undo that did not fail.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UndoOutcome {
    Undone,
    NotPossible { reason: String },
}

/// Why an action failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct Failure {
    pub kind: FailureKind,
    /// The first line must be enough for a person; the breaker compares it.
    pub reason: String,
}

/// A change, with everything that belongs to it. `step.call` names the action.
pub trait Action: Send + Sync {
    fn describe(&self) -> Description;

    /// Every problem of an input. Pure.
    fn validate(&self, input: &Value) -> Vec<Diagnostic>;

    fn apply(&self, step: &Step, ctx: &mut Ctx<'_>) -> Result<ApplyOutcome, Failure>;

    /// Checks whether the step is done. For a check action: whether the condition of its input
    /// holds.
    fn verify(&self, step: &Step, ctx: &mut Ctx<'_>) -> Result<Verdict, Failure>;

    /// Whether the action never changes anything with this input, so that there is never anything
    /// to undo. Pure.
    fn only_looks(&self, _input: &Value) -> bool {
        false
    }

    /// Whether the action can undo its change with this input. Pure.
    fn can_undo(&self, _input: &Value) -> bool {
        self.describe().can.contains(&Ability::Undo)
    }

    /// Undoes one attempt. If the attempt did not end, its changes may be unknown: the result is
    /// then [`UndoOutcome::NotPossible`], never `Undone`.
    fn undo(&self, _: &Step, _: &AppliedAttempt, _: &mut Ctx<'_>) -> Result<UndoOutcome, Failure> {
        let reason = format!("`{}` has no undo", self.describe().name);
        Ok(UndoOutcome::NotPossible { reason })
    }

    /// Finds out which changes `apply` would make, without making them.
    fn predict(&self, _: &Step, _: &mut Ctx<'_>) -> Result<Prediction, Failure> {
        Ok(Prediction::CannotPredict)
    }

    /// Whether the action does nothing but run programs one after the other through [`Programs`].
    /// Such an action can be applied again after a restart to continue the attempt.
    fn is_programs(&self, _: &Value) -> bool {
        false
    }
}

/// The planning half of an action: it turns a document into steps, before anything runs. Executors
/// never call it.
///
/// Every method is pure, and sees only the sections that the description declares.
pub trait Planner {
    fn describe(&self) -> Description;

    /// Entries that it needs in the sections of other planners.
    fn contribute(&self, _: &Document, _facts: &Value) -> Result<Vec<Contribution>, Failure> {
        Ok(Vec::new())
    }

    /// The steps that bring the observed state to the state of the document.
    fn plan(&self, _: &Document, _observed: &Value) -> Result<Vec<Step>, Failure> {
        Ok(Vec::new())
    }
}

/// The predicted changes of a step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Prediction {
    /// A diff in the format of `diff -u`.
    Diff(String),
    NoChange,
    CannotPredict,
}

/// The context of one call of an action.
#[allow(missing_debug_implementations)]
pub struct Ctx<'a> {
    /// The id of the attempt: one attempt of one step of one run.
    pub attempt: &'a str,
    /// The name of the step in the plan.
    pub task: &'a str,
    /// The subject of the step; empty if it has none.
    pub subject: &'a str,
    /// The base of relative paths.
    pub directory: &'a std::path::Path,
    pub deadline: Option<Instant>,
    pub cancel: &'a Cancel,
    pub secrets: &'a dyn Secrets,
    /// Starts programs so that they are found again after a restart.
    pub programs: &'a dyn Programs,
    /// Takes the output of the action as it appears.
    pub output: &'a mut dyn Output,
}

impl Ctx<'_> {
    /// `None` without a deadline; zero if the deadline has passed.
    pub fn time_left(&self, now: Instant) -> Option<Duration> {
        self.deadline.map(|deadline| deadline.saturating_duration_since(now))
    }
}

/// Tells an action to end early, or that its caller leaves.
#[derive(Debug, Clone, Default)]
pub struct Cancel(Arc<AtomicU8>);

const CANCELLED: u8 = 1;
const LEFT: u8 = 2;

impl Cancel {
    pub fn cancel(&self) {
        self.0.fetch_or(CANCELLED, Ordering::Relaxed);
    }

    /// The caller leaves. Programs go on for a later process to follow; anything that cannot go on
    /// without this process ends.
    pub fn leave(&self) {
        self.0.fetch_or(LEFT, Ordering::Relaxed);
    }

    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed) != 0
    }

    pub fn is_left(&self) -> bool {
        self.0.load(Ordering::Relaxed) & LEFT != 0
    }
}

/// Secrets by reference. An action must ask for a secret only where it uses the secret.
pub trait Secrets: Send + Sync {
    fn get(&self, reference: &str) -> Result<String, Failure>;
}

/// The sink for the output of actions.
pub trait Output: Send {
    /// A line, without its newline.
    fn line(&mut self, stream: Stream, bytes: &[u8]);
    /// A part of a line that is too long to keep in memory; the rest follows.
    fn part(&mut self, stream: Stream, bytes: &[u8]) {
        self.line(stream, bytes);
    }
    fn progress(&mut self, done: u64, total: Option<u64>);
    /// A line as it may be quoted elsewhere. The end of a cut line may be the beginning of a
    /// secret, and is left out.
    fn quoted(&self, line: &[u8], _is_cut: bool) -> Vec<u8> {
        line.to_vec()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stream {
    Out,
    Err,
    /// Notes of hoist itself about the step.
    Note,
}

/// Actions by name.
#[derive(Clone, Default)]
pub struct Catalog(BTreeMap<String, Arc<dyn Action>>);

impl Catalog {
    /// Adds an action. An action of the same name is replaced and returned.
    pub fn add(&mut self, action: Arc<dyn Action>) -> Option<Arc<dyn Action>> {
        self.0.insert(action.describe().name, action)
    }

    pub fn get(&self, name: &str) -> Option<&Arc<dyn Action>> {
        self.0.get(name)
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, &Arc<dyn Action>)> {
        self.0.iter().map(|(name, action)| (name.as_str(), action))
    }
}

impl std::fmt::Debug for Catalog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.0.keys()).finish()
    }
}
