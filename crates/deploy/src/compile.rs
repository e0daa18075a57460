//! From a book of tasks and a set of nodes to a plan of the engine: expanded, bound, limited,
//! decided and selected, or everything that is wrong with it.

mod report;
mod rollout;
mod steps;
mod warn;

use std::collections::{BTreeMap, BTreeSet};

use hoist_engine::action::Catalog;
use hoist_engine::plan::{Draft, MAX_VERTICES, StepId, Vertex};
use serde_json::Value;

use crate::bind::{self, Counts, Declaration, Graph, Instance, VertexKind};
use crate::condition::{Facts, UntranslatedPolicy};
use crate::diagnostic::{self, Code, SourceDiagnostic};
use crate::layer::{Book, lay_over};
use crate::select::{Chooser, History, Selection};
use crate::spec::{Place, Task};
use crate::target::{TargetSite, Targets};

pub use report::{Listing, MAX_LISTED_EDGES};
pub use steps::templates;

/// Instances that may run on one node at once, unless a file says otherwise.
const PER_NODE: u32 = 4;
/// Nodes with the same failure that pause a run, unless a file says otherwise.
const BREAKER: u32 = 3;

/// Inputs of a plan besides tasks and nodes.
#[derive(Debug, Clone, Default)]
pub struct Options<'a> {
    /// Over those of the files.
    pub settings: Value,
    /// Texts of the templates that tasks name, by the number of the file and the name.
    pub templates: BTreeMap<(u32, String), String>,
    /// The known actions. Without them, inputs of actions are not validated.
    pub actions: Option<&'a Catalog>,
    pub untranslated: UntranslatedPolicy,
    /// References of imported files that bind to nothing are errors too.
    pub is_strict: bool,
    pub selection: Selection,
    pub past: History,
    /// How long a task takes on a node, in milliseconds, by its name.
    pub expected_ms: BTreeMap<String, u64>,
}

/// A draft with its sources.
#[derive(Debug)]
pub struct CompiledPlan {
    pub draft: Draft,
    /// Tasks by the numbers in instances.
    pub tasks: Vec<String>,
    pub barriers: Vec<String>,
    /// Nodes by the numbers in instances.
    pub nodes: Vec<String>,
    /// Warnings and notes that do not prevent the plan.
    pub diagnostics: Vec<SourceDiagnostic>,
    /// Who is the first of each role; to be stored, so that it stays so.
    pub elections: BTreeMap<String, String>,
    /// Instances that selected ones wait for, that are not selected and were not done before.
    pub prerequisites: Vec<StepId>,
    /// Of each task.
    notes: Vec<Note>,
    graph: Graph,
}

/// Compiles task files to a plan, or returns the diagnostics, errors first.
pub fn compile(
    book: &Book,
    site: &TargetSite,
    options: &Options<'_>,
) -> Result<CompiledPlan, Vec<SourceDiagnostic>> {
    let mut found = Vec::new();
    let targets = Targets::new(book, site, &mut found);
    warn::empty_roles(book, &targets, &mut found);
    let graph = bind::bind(book, &targets, options.is_strict, &mut found);
    if graph.after.len() > MAX_VERTICES {
        let message = format!(
            "{} instances, barriers and joins are more than the {MAX_VERTICES} that fit in a plan",
            graph.after.len()
        );
        found.push(SourceDiagnostic::without_place(Code::TooLarge, message));
    }
    if found.iter().any(|one| one.code == Code::TooLarge) {
        diagnostic::sort(&mut found);
        return Err(found);
    }
    let is_bound = !found.iter().any(SourceDiagnostic::is_error);
    let mut settings = book.settings.clone();
    if !options.settings.is_null() {
        lay_over(&mut settings, options.settings.clone());
    }
    let facts = Facts::new(settings, &targets, &options.templates, &mut found);
    let mut maker = steps::Maker::new(book, &targets, &graph, &facts, options);
    maker.make(&mut found);
    let mut prerequisites = Vec::new();
    if is_bound {
        let chooser = Chooser { book, targets: &targets, graph: &graph, past: &options.past };
        if let Some(chosen) = chooser.choose(&options.selection, &mut found) {
            maker.skip_unless(&chosen.is_chosen);
            prerequisites = chosen.prerequisites.into_iter().map(StepId).collect();
            found.extend(missing(&maker.draft, &prerequisites));
        }
        // Rollouts need an acyclic graph, and canaries are chosen from the selected part.
        maker.rollouts(&mut found);
    }
    let mut draft = maker.draft;
    warn::look(book, &graph, options, &mut found);
    warn::wishes(book, &targets, &mut found);
    warn::role_gaps(book, &targets, &graph, options, &mut found);
    if !is_bound {
        diagnostic::sort(&mut found);
        return Err(found);
    }
    diagnostic::sort(&mut found);
    if found.iter().any(SourceDiagnostic::is_error) {
        return Err(found);
    }
    draft.subjects.shrink_to_fit();
    let name = |node: &crate::target::TargetNode| node.name.to_string();
    Ok(CompiledPlan {
        draft,
        tasks: book.tasks.iter().map(|task| task.id.value.clone()).collect(),
        barriers: book.barriers.iter().map(|barrier| barrier.id.value.clone()).collect(),
        nodes: targets.nodes.iter().map(name).collect(),
        diagnostics: found,
        elections: targets.elections,
        prerequisites,
        notes: book.tasks.iter().map(note).collect(),
        graph,
    })
}

/// Descriptive data of a task.
#[derive(Debug)]
struct Note {
    about: Option<String>,
    /// Where each of its fields was written.
    fields: Vec<(&'static str, Place)>,
}

fn note(task: &Task) -> Note {
    let about = task.about.as_ref().map(|about| about.value.clone());
    Note { about, fields: task.provenance() }
}

/// Everything that can be told of a book whatever nodes there are.
pub(crate) fn look(
    book: &Book,
    graph: &Graph,
    options: &Options<'_>,
    found: &mut Vec<SourceDiagnostic>,
) {
    let from = found.len();
    // The run may bring other settings, so nothing is derived from the current ones.
    let targets = Targets::new(book, &TargetSite::default(), &mut Vec::new());
    let facts = Facts::new(book.settings.clone(), &targets, &options.templates, found);
    steps::Maker::new(book, &targets, graph, &facts, options).look(found);
    warn::look(book, graph, options, found);
    // What another product did by itself may be a plug-in's where it runs.
    for one in &mut found[from..] {
        let is_lenient = one.place.is_some_and(|place| book.is_lenient(place));
        if one.code == Code::Action && is_lenient && !options.is_strict {
            *one = one.clone().mild();
        }
    }
}

/// What selected instances wait for in vain.
fn missing(draft: &Draft, prerequisites: &[StepId]) -> Option<SourceDiagnostic> {
    const MAX_NAMED: usize = 5;
    let names = prerequisites.iter().take(MAX_NAMED);
    let names: Vec<&str> = names.map(|id| draft.vertices[id.0 as usize].name.as_str()).collect();
    if names.is_empty() {
        return None;
    }
    let more = match prerequisites.len() - names.len() {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let message = format!("not selected, and not known to be done: {}{more}", names.join(", "));
    let remedy = "select `+TASK` to include its prerequisites, or pass `--without-prerequisites`";
    Some(SourceDiagnostic::without_place(Code::Prerequisites, message).hint(remedy))
}

impl CompiledPlan {
    /// Every instance with its place in the draft.
    pub fn instances(&self) -> impl Iterator<Item = (StepId, Instance)> {
        self.graph.instances().filter_map(|at| match self.graph.is(at) {
            VertexKind::Instance(instance) => Some((StepId(at), instance)),
            VertexKind::Barrier(_) | VertexKind::Join(_) => None,
        })
    }

    /// The place of a task on a node.
    pub fn find(&self, task: &str, node: &str) -> Option<StepId> {
        let task = self.tasks.iter().position(|other| other == task).map(bind::number)?;
        let node = self.nodes.iter().position(|other| other == node).map(bind::number)?;
        self.graph.vertex(Instance { task, node }).map(StepId)
    }

    pub fn counts(&self) -> Counts {
        self.graph.counts()
    }

    /// The dependencies of an instance or barrier with joins expanded, each once.
    pub fn before(&self, vertex: StepId) -> Vec<StepId> {
        let mut all = BTreeSet::new();
        if self.graph.end(vertex.0).is_some() {
            self.graph.for_each_before(vertex.0, |before, _| {
                all.insert(StepId(before));
            });
        }
        all.into_iter().collect()
    }

    /// Who said that one comes before the other.
    pub fn reasons(&self, before: StepId, after: StepId) -> Vec<&Declaration> {
        self.graph.reasons(before.0, after.0).collect()
    }

    pub fn vertex(&self, id: StepId) -> &Vertex {
        &self.draft.vertices[id.0 as usize]
    }
}
