//! Conversion of Fuel's deployment tasks, of all four generations, to a task file.
//!
//! [`read`] parses the files into Fuel's own types. Then computed dependencies are written out and
//! references that never bind are found. Last, a task file is written for people to edit. Entries
//! that change their meaning, or never had one, are reported one by one.

mod compute;
mod condition;
mod convert;
mod legacy;
mod names;
pub mod read;
mod rename;
mod resolve;
pub mod task;
mod write;
mod yaql;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use hoist_diagnostic::Diagnostic;
use hoist_model::nearest;
use serde::Serialize;
use serde_json::Value;

use convert::Converter;
use names::Names;
use resolve::Resolver;
use task::{Corpus, Task, Type};

/// A problem of one of Fuel's tasks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TaskDiagnostic {
    pub code: &'static str,
    pub task: String,
    /// `at` is the file of the task, with its line where that is known.
    #[serde(flatten)]
    pub diagnostic: Diagnostic,
}

impl TaskDiagnostic {
    fn new(code: &'static str, task: &Task, message: String, hint: Option<String>) -> Self {
        let diagnostic = Diagnostic { at: task.place(), message, hint };
        Self { code, task: task.id.clone(), diagnostic }
    }
}

impl fmt::Display for TaskDiagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { code, task, diagnostic: Diagnostic { at, message, hint } } = self;
        write!(f, "{code} {at}: {task}: {message}")?;
        match hint {
            Some(hint) => write!(f, "; {hint}"),
            None => Ok(()),
        }
    }
}

/// The value of conditions that have no translation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Conditions {
    True,
    False,
    /// A person decides before there is a plan.
    #[default]
    Ask,
}

#[derive(Debug, Clone, Default)]
pub struct Options {
    pub conditions: Conditions,
    /// Fuel's data of the cluster, for computed dependencies.
    pub settings: Value,
    /// What stands for `{CLUSTER_ID}` and the like.
    pub values: BTreeMap<String, String>,
    /// Names that mean no task are errors.
    pub is_strict: bool,
}

/// A task file with the diagnostics of its import.
#[derive(Debug, Clone)]
pub struct Import {
    pub text: String,
    pub tasks: usize,
    pub barriers: usize,
    pub diagnostics: Vec<TaskDiagnostic>,
}

/// Why there is no task file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ImportError {
    #[error("graph `{graph}` not found; {}", or_one_of(.known, .suggestion.as_deref()))]
    NoGraph { graph: String, known: Vec<String>, suggestion: Option<String> },
    #[error("tasks that are to run on the nodes of a group are not there: {}", .found.join(", "))]
    NoSubtasks { found: Vec<String> },
    #[error("{} names mean no task: {}; import without `--strict` to have them left out", .found.len(), .found.join(", "))]
    Strict { found: Vec<String> },
    #[error("{groups} groups are more than the limit of {}", legacy::MAX_GROUPS)]
    Groups { groups: usize },
    #[error("the graph `{graph}` has no tasks; is this the directory of Fuel's tasks?")]
    Nothing { graph: String },
}

fn or_one_of(known: &[String], suggestion: Option<&str>) -> String {
    match suggestion {
        Some(close) => format!("did you mean `{close}`?"),
        None => format!("there are {}", known.join(", ")),
    }
}

/// One graph as a task file.
pub fn import(corpus: &Corpus, graph: &str, options: &Options) -> Result<Import, ImportError> {
    let Some(tasks) = corpus.graphs.get(graph) else {
        let known: Vec<String> = corpus.graphs.keys().cloned().collect();
        let suggestion = nearest(graph, known.iter().map(String::as_str)).map(str::to_owned);
        return Err(ImportError::NoGraph { graph: graph.to_owned(), known, suggestion });
    };
    if tasks.is_empty() {
        return Err(ImportError::Nothing { graph: graph.to_owned() });
    }
    let mut tasks = tasks.clone();
    let ids: BTreeSet<&str> = tasks.iter().map(|task| task.id.as_str()).collect();
    let missing = |group: &Task| -> Vec<String> {
        let missing = group.tasks.iter().filter(|name| !ids.contains(name.as_str()));
        let named = |name: &String| {
            let group = format!("`{name}` of the group `{}` ({})", group.id, group.place());
            match nearest(name, ids.iter().copied()) {
                Some(close) => format!("{group}; did you mean `{close}`?"),
                None => group,
            }
        };
        missing.map(named).collect()
    };
    let found: Vec<String> = tasks.iter().flat_map(missing).collect();
    if !found.is_empty() {
        return Err(ImportError::NoSubtasks { found });
    }
    let groups = tasks.iter().filter(|task| task.kind == Type::Group).count();
    if groups > legacy::MAX_GROUPS {
        return Err(ImportError::Groups { groups });
    }
    let mut diagnostics = corpus.diagnostics.clone();
    rename::rename(&mut tasks, &mut diagnostics);
    legacy::adapt(&mut tasks);
    let names = Names::new(corpus, &tasks);
    let resolver = Resolver { tasks: &tasks, names: &names, settings: &options.settings };
    let resolved = resolver.resolve(&mut diagnostics);
    if options.is_strict {
        let found: Vec<String> = diagnostics
            .iter()
            .filter(|diagnostic| diagnostic.code == "W-REF")
            .map(|diagnostic| format!("{} in {}", diagnostic.diagnostic.message, diagnostic.task))
            .collect();
        if !found.is_empty() {
            return Err(ImportError::Strict { found });
        }
    }
    let converter =
        Converter { corpus, tasks: &tasks, resolved: &resolved, names: &names, options };
    let native = converter.convert(&mut diagnostics);
    let title = format!("Imported from Fuel's graph `{graph}`.");
    Ok(Import {
        text: write::write(&native, &title),
        tasks: native.tasks.len(),
        barriers: native.barriers.len(),
        diagnostics,
    })
}
