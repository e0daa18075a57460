//! Actions: the smallest changes, and what whoever runs them has to offer.
//!
//! An action works in a thread of its own and may block. What it needs of the world beyond the
//! [`Ctx`] (a disk, an etcd) is part of its own value, so that nothing here knows of it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::execute::Programs;
use crate::plan::{Made, Step};
use crate::record::FailureKind;

/// What a person or another program may know of an action before it is used.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Description {
    pub name: String,
    pub version: String,
    /// One line.
    #[serde(default)]
    pub about: String,
    /// Sections of the shared document that it is shown.
    #[serde(default)]
    pub reads: Vec<String>,
    /// Sections that it fills.
    #[serde(default)]
    pub writes: Vec<String>,
    /// Sections that it may ask for entries in, see [`Contribution`].
    #[serde(default)]
    pub contributes: Vec<String>,
    /// Programs that it calls.
    #[serde(default)]
    pub tools: Vec<String>,
    #[serde(default)]
    pub can: BTreeSet<Ability>,
    /// It is not run when its step is verified already.
    #[serde(default)]
    pub skip_when_verified: bool,
    /// It may reach the network.
    #[serde(default)]
    pub network: bool,
}

/// What not every action can.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ability {
    /// Tell whether its own step is done.
    Verify,
    /// Be a check: tell whether something holds, and change nothing.
    Check,
    /// Take back what it did.
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

/// The document that actions share: sections by name.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Document(pub BTreeMap<String, Value>);

impl Document {
    /// The sections that this action has to do with, and no others.
    #[must_use]
    pub fn shown_to(&self, description: &Description) -> Self {
        let declared = description.reads.iter().chain(&description.writes);
        let section = |name: &String| Some((name.clone(), self.0.get(name)?.clone()));
        Self(declared.filter_map(section).collect())
    }
}

/// Something an action needs that is another action's to make.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Contribution {
    /// The section that it becomes an entry of.
    pub section: String,
    /// The entry. The same from two actions is a conflict, unless the values are equal.
    pub id: String,
    pub value: Value,
}

/// What is wrong with an input, where, and what to do about it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Diagnostic {
    /// Path in the input; empty for all of it.
    #[serde(default)]
    pub at: String,
    pub message: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

/// What came of an action that is done.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Done {
    pub changed: bool,
    /// What [`Action::undo`] needs to know.
    pub receipt: Value,
}

/// Whether something holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    Holds,
    DoesNot { reason: String },
}

/// How taking back ended, if it did not fail.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Undone {
    Undone,
    NotPossible { reason: String },
}

/// Why an action did not do what it should.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct Failure {
    pub kind: FailureKind,
    /// In its first line, what a person needs; the breaker compares it.
    pub reason: String,
}

/// A change, with everything that belongs to it. `step.call` names the action.
pub trait Action: Send + Sync {
    fn describe(&self) -> Description;

    /// What it needs of others. Pure.
    fn contribute(&self, _: &Document, _facts: &Value) -> Result<Vec<Contribution>, Failure> {
        Ok(Vec::new())
    }

    /// All that is wrong with an input. Pure.
    fn validate(&self, input: &Value) -> Vec<Diagnostic>;

    /// The steps that make the world as the document says. Pure.
    fn plan(&self, _: &Document, _observed: &Value) -> Result<Vec<Step>, Failure> {
        Ok(Vec::new())
    }

    fn apply(&self, step: &Step, ctx: &mut Ctx<'_>) -> Result<Done, Failure>;

    /// Whether the step is done, or, for an action that checks, whether what its input says holds.
    fn verify(&self, step: &Step, ctx: &mut Ctx<'_>) -> Result<Verdict, Failure>;

    /// Whether it changes nothing with an input, however it ends, so that there is never anything to
    /// take back. Pure.
    fn only_looks(&self, _input: &Value) -> bool {
        false
    }

    /// Whether it takes back what it does with an input. Pure.
    fn can_undo(&self, _input: &Value) -> bool {
        self.describe().can.contains(&Ability::Undo)
    }

    /// Takes back what one attempt did. Of an attempt that did not come to its end nobody may know
    /// what it did: that is not possible then, and not undone.
    fn undo(&self, _: &Step, _: &Made, _: &mut Ctx<'_>) -> Result<Undone, Failure> {
        let reason = format!("`{}` takes nothing back", self.describe().name);
        Ok(Undone::NotPossible { reason })
    }

    /// What applying would change, found out without changing anything.
    fn predict(&self, _: &Step, _: &mut Ctx<'_>) -> Result<Prediction, Failure> {
        Ok(Prediction::CannotPredict)
    }

    /// Whether all it does is to run programs, each through [`Programs`], one after the other: then it
    /// can be applied again after a restart to go on where it was.
    fn is_programs(&self, _: &Value) -> bool {
        false
    }

    /// The same for a machine that has a POSIX shell and nothing of ours; `None` if there is no such
    /// thing.
    fn script(&self, _: &Value, _: Purpose) -> Option<Script> {
        None
    }

    /// [`Action::predict`] for such a machine. Exit code 0 means that nothing would change, and
    /// [`WOULD_CHANGE`] that it would be what is printed.
    fn predict_script(&self, _: &Value) -> Option<Script> {
        None
    }
}

/// How a script says that there is something to change.
pub const WOULD_CHANGE: i32 = 10;

/// What a step would change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Prediction {
    /// Lines as `diff -u` has them.
    Diff(String),
    NoChange,
    CannotPredict,
}

/// What a script is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Purpose {
    Apply,
    /// Exit code 0 means that it holds.
    Verify,
}

/// A program for `/bin/sh`. Its text is fixed, unless it is what a person wrote; values come in its
/// environment and in files.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Script {
    pub text: String,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Secrets by reference; each is a file, whose path is in the variable of this name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub secrets: BTreeMap<String, String>,
    /// Text whose path is in the variable of this name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub files: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// Exit codes that mean: done, and there was nothing to do.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unchanged: Vec<i32>,
}

/// What an action is given beside its step.
#[allow(missing_debug_implementations)]
pub struct Ctx<'a> {
    /// One attempt of one step of one run; the same again means the same attempt.
    pub attempt: &'a str,
    /// What the plan calls the step.
    pub task: &'a str,
    /// What the step acts on; empty if on nothing in particular.
    pub subject: &'a str,
    /// Where paths that are not absolute begin.
    pub directory: &'a std::path::Path,
    pub deadline: Option<Instant>,
    pub cancel: &'a Cancel,
    pub secrets: &'a dyn Secrets,
    /// Through this programs are found again after a restart.
    pub programs: &'a Programs,
    /// Takes what the action says, as it comes.
    pub output: &'a mut dyn Output,
}

impl Ctx<'_> {
    /// `None` without a deadline; zero when it has passed.
    pub fn time_left(&self) -> Option<Duration> {
        self.deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()))
    }
}

/// Says that a step shall end before it is done, or that nobody waits for it here any more.
#[derive(Debug, Clone, Default)]
pub struct Cancel(Arc<AtomicU8>);

const CANCELLED: u8 = 1;
const LEFT: u8 = 2;

impl Cancel {
    pub fn cancel(&self) {
        self.0.fetch_or(CANCELLED, Ordering::Relaxed);
    }

    /// Programs run on, for somebody else to wait for. What cannot go on without us ends.
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

/// Secrets by reference. They are asked for where they are used, and nowhere else.
pub trait Secrets: Send + Sync {
    fn get(&self, reference: &str) -> Result<String, Failure>;
}

/// Where what actions print goes.
pub trait Output: Send {
    /// A line, without its end.
    fn line(&mut self, stream: Stream, bytes: &[u8]);
    /// A part of a line that is too long to be kept together; the rest follows.
    fn part(&mut self, stream: Stream, bytes: &[u8]) {
        self.line(stream, bytes);
    }
    fn progress(&mut self, done: u64, total: Option<u64>);
    /// A line as it may be quoted elsewhere. Of one that was cut, the end may be a part of something
    /// that must not be, and is left out.
    fn quoted(&self, line: &[u8], _is_cut: bool) -> Vec<u8> {
        line.to_vec()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stream {
    Out,
    Err,
    /// What hoist itself says of the step.
    Note,
}

/// Actions by name.
#[derive(Clone, Default)]
pub struct Catalog(BTreeMap<String, Arc<dyn Action>>);

impl Catalog {
    /// A later one of the same name takes the place of the former, which is returned.
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
