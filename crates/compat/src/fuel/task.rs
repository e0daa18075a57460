//! Fuel's tasks as Fuel's files say them, one type for all four generations.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

/// Tasks of one release and its plug-ins.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Corpus {
    /// By type: `default`, `provision`, …
    pub graphs: BTreeMap<String, Vec<Task>>,
    pub vocabulary: Vocabulary,
    /// Files beside the task files, by path: a test is only a check where its script is there.
    pub files: BTreeSet<String>,
    /// Findings about the files themselves.
    pub diagnostics: Vec<super::TaskDiagnostic>,
}

/// The names that nodes answer to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Vocabulary {
    /// The tags of each role; nodes have the tags of their roles.
    pub roles: BTreeMap<String, Vec<String>>,
    /// Names of which one node has `primary-NAME` instead.
    pub primaries: BTreeSet<String>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Task {
    pub id: String,
    pub kind: Type,
    pub version: Option<String>,
    /// Names and `/regexes/` of roles and tags; `None` for stages.
    pub on: Option<List<String>>,
    pub requires: List<String>,
    pub required_for: List<String>,
    pub cross_depends: List<Dependency>,
    pub cross_depended_by: List<Dependency>,
    pub condition: Condition,
    pub strategy: Option<Strategy>,
    pub parameters: Map<String, Value>,
    pub test_pre: Option<String>,
    pub test_post: Option<String>,
    pub refresh_on: Vec<String>,
    pub reexecute_on: Vec<String>,
    pub fault_tolerance: Option<Tolerance>,
    /// Of a group: tasks that run on its nodes whatever they say themselves.
    pub tasks: Vec<String>,
    pub fail_on_error: bool,
    /// Of a plug-in's task in the first generation: `post_deployment/100`.
    pub stage: Option<Stage>,
    pub file: String,
    /// In the file, from 1; 0 if unknown.
    pub line: u32,
    /// The names and patterns of `roles`, `role` or `groups`, whatever `tags` say.
    pub roles: Option<Vec<String>>,
    /// Of the first generation: before or after all groups.
    pub is_in_a_phase: bool,
}

/// The type of a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Type {
    Puppet,
    Shell,
    UploadFile,
    CopyFiles,
    Sync,
    Reboot,
    Stage,
    Skipped,
    Group,
    /// A type that only Fuel itself or one of its plug-ins implements.
    Other(String),
}

/// Written down, or computed when the graph is made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum List<T> {
    Given(Vec<T>),
    Computed(String),
}

impl<T> Default for List<T> {
    fn default() -> Self {
        Self::Given(Vec::new())
    }
}

impl<T> List<T> {
    pub fn given(&self) -> &[T] {
        match self {
            Self::Given(items) => items,
            Self::Computed(_) => &[],
        }
    }
}

/// One of `cross-depends` or `cross-depended-by`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dependency {
    pub name: String,
    pub role: Where,
    /// One of them is enough.
    pub is_any: bool,
    /// It may bind to nothing.
    pub is_optional: bool,
    /// Names and patterns of nodes on which the task does not have it.
    pub unless: Vec<String>,
}

impl Dependency {
    pub(super) fn new(name: String, role: Where) -> Self {
        Self { name, role, is_any: false, is_optional: false, unless: Vec::new() }
    }

    pub(super) fn own(name: String) -> Self {
        Self::new(name, Where::Own)
    }
}

/// The nodes that a dependency is looked for on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Where {
    /// Every node but the deployment server.
    All,
    /// The same node, and never a stage.
    Own,
    /// Where stages are.
    Null,
    Names(Vec<String>),
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Condition {
    #[default]
    None,
    Constant(bool),
    /// In the language of the first generation.
    Old(String),
    Yaql(String),
}

/// How many instances of a task at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Strategy {
    OneByOne,
    Parallel(Option<u32>),
    /// As many as an expression says.
    Computed(String),
}

/// How many nodes of a group may fail; a negative number is of those that have to be left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tolerance {
    Nodes(i32),
    Percent(i32),
}

/// Where a plug-in's task of the first generation goes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Stage {
    pub name: String,
    /// In thousandths, since they may have a fraction.
    pub priority: i64,
}

impl Type {
    pub(super) fn parse(text: &str) -> Self {
        match text {
            "puppet" => Self::Puppet,
            "shell" => Self::Shell,
            "upload_file" => Self::UploadFile,
            "copy_files" => Self::CopyFiles,
            "sync" => Self::Sync,
            "reboot" => Self::Reboot,
            "stage" => Self::Stage,
            "skipped" => Self::Skipped,
            "group" => Self::Group,
            other => Self::Other(other.to_owned()),
        }
    }
}

impl Task {
    /// Of the first generation: its order is that of its group, not its own.
    pub fn is_legacy(&self) -> bool {
        if matches!(self.kind, Type::Stage | Type::Group) {
            return false;
        }
        let major = self.version.as_deref().and_then(|version| version.split('.').next());
        major.and_then(|major| major.parse::<u32>().ok()).is_none_or(|major| major < 2)
    }

    /// Something that runs on nodes and is not in a plug-in's stage.
    pub(super) fn is_in_a_list(&self) -> bool {
        !matches!(self.kind, Type::Stage | Type::Group) && self.stage.is_none()
    }

    /// `tasks.yaml:14`.
    pub(super) fn place(&self) -> String {
        match self.line {
            0 => self.file.clone(),
            line => format!("{}:{line}", self.file),
        }
    }
}
