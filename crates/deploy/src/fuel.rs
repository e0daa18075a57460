//! Fuel's deployment tasks, of all four generations, made into a task file of our own.
//!
//! First they are read into Fuel's own types ([`read`]), then what Fuel computed is written down
//! and what can never bind is found, and then a task file is written that a person can go on with.
//! Whatever changes its meaning or never had any is told, entry by entry.

mod compute;
mod condition;
mod convert;
mod legacy;
mod names;
pub mod read;
mod resolve;
pub mod task;
mod write;
mod yaql;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use hoist_model::nearest;
use serde::Serialize;
use serde_json::Value;

use convert::Converter;
use names::Names;
use resolve::Resolver;
use task::{Corpus, Task};

/// Something in Fuel's files that a person should know of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    pub code: &'static str,
    pub task: String,
    pub file: String,
    pub message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

impl Finding {
    fn new(code: &'static str, task: &Task, message: String, hint: Option<String>) -> Self {
        Self { code, task: task.id.clone(), file: task.file.clone(), message, hint }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { code, task, file, message, hint } = self;
        write!(f, "{code} {file}: {task}: {message}")?;
        match hint {
            Some(hint) => write!(f, "; {hint}"),
            None => Ok(()),
        }
    }
}

/// What to do with conditions that cannot be said in our words.
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
    /// Fuel's data of the cluster, for what was computed from it.
    pub settings: Value,
    /// What stands for `{CLUSTER_ID}` and the like.
    pub values: BTreeMap<String, String>,
    /// Names that mean no task are errors.
    pub is_strict: bool,
}

/// A task file, and what there is to know about it.
#[derive(Debug, Clone)]
pub struct Import {
    pub text: String,
    pub tasks: usize,
    pub barriers: usize,
    pub findings: Vec<Finding>,
}

/// Why there is no task file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ImportError {
    #[error("there is no graph `{graph}`; {}", or_one_of(.known, .suggestion.as_deref()))]
    NoGraph { graph: String, known: Vec<String>, suggestion: Option<String> },
    #[error("tasks that are to run on the nodes of a group are not there: {}", .found.join(", "))]
    NoSubtasks { found: Vec<String> },
    #[error("{} names mean no task: {}; import without `--strict` to have them left out", .found.len(), .found.join(", "))]
    Strict { found: Vec<String> },
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
        missing.map(|name| format!("`{name}` of the group `{}`", group.id)).collect()
    };
    let found: Vec<String> = tasks.iter().flat_map(missing).collect();
    if !found.is_empty() {
        return Err(ImportError::NoSubtasks { found });
    }
    legacy::adapt(&mut tasks);
    let mut findings = corpus.findings.clone();
    let names = Names::new(corpus, &tasks);
    let resolver = Resolver { tasks: &tasks, names: &names, settings: &options.settings };
    let resolved = resolver.resolve(&mut findings);
    if options.is_strict {
        let found: Vec<String> = findings
            .iter()
            .filter(|finding| finding.code == "W-REF")
            .map(|finding| format!("{} in {}", finding.message, finding.task))
            .collect();
        if !found.is_empty() {
            return Err(ImportError::Strict { found });
        }
    }
    let converter =
        Converter { corpus, tasks: &tasks, resolved: &resolved, names: &names, options };
    let native = converter.convert(&mut findings);
    let title = format!("Imported from Fuel's graph `{graph}`.");
    Ok(Import {
        text: write::write(&native, &title),
        tasks: native.tasks.len(),
        barriers: native.barriers.len(),
        findings,
    })
}
