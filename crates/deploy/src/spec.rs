//! What task files say, as values: roles, tasks, barriers. Every part knows the place it was
//! written at, so that whatever is wrong with it later can be shown there, and so that it is known
//! which file a field came from when files lie over each other.

use std::time::Duration;

use hoist_engine::plan::{MayUse, OnCrash, OnFailure, Repeat, Reversibility};
use hoist_model::selector::Selector;
use serde::Serialize;
use serde_json::Value;

/// Where something was written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Place {
    /// In [`Sources`].
    pub file: u32,
    /// From 1; 0 if unknown.
    pub line: u32,
    /// From 1, in characters.
    pub column: u32,
}

/// A value and where it was written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct At<T> {
    pub value: T,
    pub place: Place,
}

impl<T> At<T> {
    pub fn new(value: T, place: Place) -> Self {
        Self { value, place }
    }
}

/// The files that places speak of.
#[derive(Debug, Clone, Default)]
pub struct Sources(Vec<Source>);

/// One file: its name as it is shown, and its text, for drawing.
#[derive(Debug, Clone)]
pub struct Source {
    pub name: String,
    pub text: String,
}

impl Sources {
    /// The number by which places name the file.
    pub fn add(&mut self, name: impl Into<String>, text: impl Into<String>) -> u32 {
        self.0.push(Source { name: name.into(), text: text.into() });
        u32::try_from(self.0.len() - 1).expect("files are given one by one")
    }

    pub fn get(&self, file: u32) -> Option<&Source> {
        self.0.get(file as usize)
    }

    /// `tasks.yaml:14:3`.
    pub fn show(&self, place: Place) -> String {
        let name = self.get(place.file).map_or("?", |source| source.name.as_str());
        if place.line == 0 {
            return name.to_owned();
        }
        format!("{name}:{}:{}", place.line, place.column)
    }
}

/// One task file.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TaskFile {
    /// Of the document it is the spec of.
    pub name: Option<At<String>>,
    /// The plug-in that brings it.
    pub plugin: Option<At<String>>,
    pub roles: Vec<Role>,
    pub tasks: Vec<Task>,
    pub barriers: Vec<Barrier>,
    /// What conditions and templates know, unless another layer says otherwise.
    pub settings: Option<At<Value>>,
    pub limits: Limits,
    /// References that bind to nothing are warnings: the file comes from a product that never
    /// validated them.
    pub is_lenient: bool,
}

/// Limits of a whole run.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Limits {
    /// Instances of the whole run at once.
    pub at_once: Option<At<u32>>,
    /// Instances at once on each node.
    pub per_node: Option<At<u32>>,
    /// So many nodes with the same failure of the same task pause the run; 0 never does.
    pub breaker: Option<At<u32>>,
    pub on_crash: Option<At<OnCrash>>,
}

/// A set of nodes by name.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Role {
    pub name: At<String>,
    pub patch: bool,
    /// By default the nodes whose role, subrole or group has the role's name.
    pub nodes: Option<At<Selector>>,
    /// A task may name the role although it has no members.
    pub allow_empty: Option<At<bool>>,
    /// Another name for `first(role)`: the elected member.
    pub first: Option<At<String>>,
    /// Nodes that may fail.
    pub tolerate: Option<At<Amount>>,
    /// Nodes of the role that run at once.
    pub at_once: Option<At<Amount>>,
    /// Nodes that go before all others.
    pub canary: Option<At<Amount>>,
    pub pause_after_canary: Option<At<Duration>>,
    /// Nodes that may be worked on or be broken at the same time.
    pub max_unavailable: Option<At<Amount>>,
    /// Nodes at once with the same value of a label.
    pub per: Option<At<Vec<(String, u32)>>>,
    pub window: Option<At<Week>>,
    pub on_failure: Option<At<FailurePolicy>>,
    pub when_tripped: Option<At<TripPolicy>>,
}

/// What becomes of the others when more nodes of a role failed than may.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum TripPolicy {
    /// Nothing new starts at all.
    #[default]
    Stop,
    /// Nothing more of the role starts, and nothing that waits for it.
    Continue,
}

/// What becomes of the nodes of a role on which one of its tasks failed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum FailurePolicy {
    /// They stay as they are.
    #[default]
    Leave,
    /// The changes of the run for the role on the node are undone after the run ended.
    Undo,
}

/// How many of a number of things.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Amount {
    Count(u32),
    /// Rounded down, except for concurrency limits, which are never rounded to zero.
    Percent(u32),
    AllBut(u32),
    /// Like [`When::Expression`], with a number as its value.
    Expression(String),
}

/// Parts of each week, in minutes since Monday 00:00 UTC.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Week {
    /// As it was written.
    pub text: String,
    pub spans: Vec<(u32, u32)>,
}

/// One kind of step, to be done on each node of a set.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Task {
    pub id: At<String>,
    /// Lies over the task of the same name in the layers below, field by field.
    pub patch: bool,
    pub on: Option<At<Selector>>,
    /// Before it, on the same node; or barriers.
    pub requires: Option<At<Vec<Reference>>>,
    /// After it, on the same node; or barriers.
    pub required_for: Option<At<Vec<Reference>>>,
    /// Before it, on other nodes.
    pub needs: Option<At<Vec<Need>>>,
    /// After it, on other nodes.
    pub needed_by: Option<At<Vec<Need>>>,
    pub run: Option<At<Run>>,
    pub check_before: Option<At<Vec<Check>>>,
    pub check_after: Option<At<Vec<Check>>>,
    pub undo: Option<At<Run>>,
    /// Of which at most one is held on each node.
    pub locks: Option<At<Vec<String>>>,
    pub timeout: Option<At<Duration>>,
    /// Resource limits of the programs of one attempt.
    pub may_use: Option<At<MayUse>>,
    pub retries: Option<At<u32>>,
    /// More attempts where a check before it does not hold.
    pub retries_precheck: Option<At<u32>>,
    pub delay: Option<At<Duration>>,
    /// Instances of this task at once.
    pub at_once: Option<At<Amount>>,
    pub repeat: Option<At<Repeat>>,
    pub on_failure: Option<At<OnFailure>>,
    pub reversibility: Option<At<Reversibility>>,
    /// It is not done where its checks after it hold already (`skip: when_done`).
    pub skip_when_done: Option<At<bool>>,
    pub when: Option<At<When>>,
    /// Parts of the settings and the node set (`settings.mysql`, `nodes.database`); while none of
    /// them changes, and it is done, it is not done again.
    pub inputs: Option<At<Vec<At<String>>>>,
    /// Names of events that it is done for again.
    pub events: Option<At<Vec<String>>>,
    pub window: Option<At<Week>>,
    /// The directory of its commands that do not say another.
    pub cwd: Option<At<String>>,
    /// A description for people.
    pub about: Option<At<String>>,
}

/// A point without a node that waits and does nothing.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Barrier {
    pub id: At<String>,
    pub patch: bool,
    /// Barriers, and all instances of tasks.
    pub requires: Option<At<Vec<Reference>>>,
    pub required_for: Option<At<Vec<Reference>>>,
    pub passes_with: Option<At<PassesWith>>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PassesWith {
    /// Everything came to a good end, on every node.
    All,
    /// Everything did, but for nodes that the role can do without.
    #[default]
    Tolerated,
    AnyResult,
}

/// Tasks or barriers by name, on the node of the referring task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reference {
    pub to: Pattern,
    /// It may bind to nothing.
    pub is_optional: bool,
    pub place: Place,
}

/// Tasks on other nodes.
#[derive(Debug, Clone, PartialEq)]
pub struct Need {
    pub to: Pattern,
    pub on: NeedScope,
    /// The nodes of the task itself that have this need; by default all of them.
    pub only: Option<At<Selector>>,
    pub want: Want,
    pub is_optional: bool,
    pub place: Place,
}

/// Whose instances are meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NeedScope {
    /// Those of all nodes; or the barrier.
    All,
    /// Those of the same node.
    Own,
    /// Those of these nodes.
    Nodes(At<Selector>),
}

/// How many of them must succeed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Want {
    #[default]
    All,
    Any,
    Most,
    Count(u32),
    Percent(u8),
}

impl Want {
    pub(crate) fn is_met_by(self, done: usize, all: usize) -> bool {
        match self {
            Self::All => done == all,
            Self::Any => done > 0,
            Self::Most => done * 2 > all,
            Self::Count(count) => done >= count as usize,
            Self::Percent(percent) => done * 100 >= all * usize::from(percent),
        }
    }
}

/// Names of tasks.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Pattern {
    Exact(String),
    /// With `*`.
    Glob(String),
    /// Of the whole name; in imports (`is_prefix`) of its beginning.
    Regex {
        text: String,
        is_prefix: bool,
    },
}

impl std::fmt::Display for Pattern {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Exact(name) | Self::Glob(name) => f.write_str(name),
            Self::Regex { text, .. } => write!(f, "/{text}/"),
        }
    }
}

/// The actions of a task: one, or several in sequence in one attempt.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Run {
    pub uses: Vec<Use>,
}

impl Run {
    pub fn one(action: impl Into<String>, input: Value, place: Place) -> Self {
        Self { uses: vec![Use { name: None, action: action.into(), input, place }] }
    }
}

/// One use of an action. A `file` may name a `template` in its input, which becomes its `text` when
/// the plan is made.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Use {
    /// As it is called in the log.
    pub name: Option<String>,
    pub action: String,
    /// As the action takes it.
    pub input: Value,
    pub place: Place,
}

/// A probe that changes nothing.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Check {
    pub by: Use,
    /// The title of the check: the state that it asserts.
    pub says: Option<String>,
    /// It may take so long until it holds.
    pub within: Option<Duration>,
    /// The interval between probes.
    pub every: Option<Duration>,
}

/// Whether something is done at all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum When {
    Constant(bool),
    /// Over `settings` and `node`.
    Expression(String),
    /// A condition in another language without a translation; an operator must decide.
    Unknown(String),
}
