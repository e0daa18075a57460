//! Task files to a plan of this site: its nodes, its actions and its earlier runs.

use std::collections::{BTreeMap, BTreeSet};

use hoist_api::JsonText;
use hoist_api::deploy::{
    PlanAnswer, PlanRequest, Selection, Severity, Skip, TaskFile, TaskFileDiagnostic,
};
use hoist_deploy::compile::{self, CompiledPlan, MAX_LISTED_EDGES, Options};
use hoist_deploy::diagnostic;
use hoist_deploy::layer::{Book, Layer, merge};
use hoist_deploy::parse::parse;
use hoist_deploy::select::{self, History};
use hoist_deploy::spec::Sources;
use hoist_deploy::target::{TargetNode, TargetSite};
use hoist_engine::Plan;
use hoist_engine::action::Catalog;
use hoist_engine::plan::Draft;
use hoist_model::NodeId;
use hoist_model::node::Lifecycle;
use hoist_site::Roster;
use serde::Serialize;

use super::elections::deployment;

/// The inputs of a compilation.
#[derive(Debug)]
pub struct Grounds<'a> {
    pub site: &'a TargetSite,
    pub actions: &'a Catalog,
    /// What became of instances before.
    pub past: History,
    /// How long tasks took, in milliseconds.
    pub expected_ms: BTreeMap<String, u64>,
}

/// The nodes and groups that plans are made for. `installed_by` has the provisioning run of the
/// system of each node.
pub fn site_of(roster: &Roster, installed_by: &BTreeMap<NodeId, String>) -> TargetSite {
    let nodes = roster.nodes().filter(|node| node.spec.enabled).map(|node| TargetNode {
        id: node.id,
        name: node.name.clone(),
        spec: node.spec.clone(),
        lifecycle: Lifecycle::Declared,
        system: match installed_by.get(&node.id) {
            Some(run) => format!("{} {run}", node.generation),
            None => node.generation.to_string(),
        },
    });
    let computed =
        roster.groups().filter_map(|group| Some((group.key(), group.spec.selector.clone()?)));
    TargetSite {
        nodes: nodes.collect(),
        computed_groups: computed.collect(),
        elections: BTreeMap::new(),
    }
}

/// How much of a plan the answer contains, besides the plan itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Detail {
    /// Numbers and diagnostics.
    Summary,
    /// Also the listing.
    Listed,
}

/// A [`PlanAnswer`] with its plan, which is written as it is in memory.
#[derive(Debug, Serialize)]
pub struct AnswerWithPlan<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    plan: Option<&'a Draft>,
    #[serde(flatten)]
    answer: &'a PlanAnswer,
}

impl<'a> AnswerWithPlan<'a> {
    pub fn new(answer: &'a PlanAnswer, plan: Option<&'a Draft>) -> Self {
        Self { plan, answer }
    }
}

/// A plan that was made from files.
#[derive(Debug)]
pub struct FilePlan {
    pub plan: Plan,
    /// The first member of each role.
    pub elections: BTreeMap<String, String>,
}

/// Compiles the files of a request; without a plan, the answer has the diagnostics.
pub fn compile(
    request: &PlanRequest,
    grounds: Grounds<'_>,
    detail: Detail,
) -> (PlanAnswer, Option<FilePlan>) {
    let mut sources = Sources::default();
    let mut found = Vec::new();
    let book = book_of(&request.files, &mut sources, &mut found);
    let selection = match chosen(&request.selection) {
        Ok(selection) => selection,
        Err(wrong) => {
            found.push(wrong);
            select::Selection::default()
        }
    };
    if found.iter().any(diagnostic::SourceDiagnostic::is_error) {
        return (refused(&found, &sources), None);
    }
    let options = Options {
        settings: request.settings.clone(),
        templates: templates_of(&request.files),
        actions: Some(grounds.actions),
        untranslated: request.conditions.into(),
        selection,
        past: grounds.past,
        expected_ms: grounds.expected_ms,
        ..Options::default()
    };
    match compile::compile(&book, grounds.site, &options) {
        Ok(compiled) => {
            found.extend(compiled.diagnostics.iter().cloned());
            let listing = (detail == Detail::Listed).then(|| {
                let deployment = deployment(&request.files);
                let listing = compiled.listing(&sources, deployment, MAX_LISTED_EDGES);
                JsonText::new(&listing).expect("a plain value")
            });
            let name = |id: &hoist_engine::StepId| compiled.vertex(*id).name.clone();
            let prerequisites = compiled.prerequisites.iter().map(name).collect();
            let CompiledPlan { draft, elections, .. } = compiled;
            let plan = match Plan::new(draft) {
                Ok(plan) => plan,
                Err(error) => {
                    let code = diagnostic::Code::Cycle;
                    found
                        .push(diagnostic::SourceDiagnostic::without_place(code, error.to_string()));
                    return (refused(&found, &sources), None);
                }
            };
            let diagnostics = told(&found, &sources);
            let answer = PlanAnswer { diagnostics, listing, prerequisites, ..answer(&plan) };
            (answer, Some(FilePlan { plan, elections }))
        }
        Err(wrong) => {
            found.extend(wrong);
            (refused(&found, &sources), None)
        }
    }
}

/// What tasks have beside their files, by the number of the file.
pub fn templates_of(files: &[TaskFile]) -> BTreeMap<(u32, String), String> {
    let of = |(at, file): (u32, &TaskFile)| -> Vec<_> {
        let templates = file.templates.iter();
        templates.map(|(name, text)| ((at, name.clone()), text.clone())).collect()
    };
    (0..).zip(files).flat_map(of).collect()
}

/// One book of all files, the later over the earlier.
pub fn book_of(
    given: &[TaskFile],
    sources: &mut Sources,
    found: &mut Vec<diagnostic::SourceDiagnostic>,
) -> Book {
    let mut files = Vec::new();
    for file in given {
        let (read, wrong) = parse(sources, &file.name, file.text.as_bytes());
        found.extend(wrong);
        files.push(read);
    }
    let (book, wrong) = merge(Layer::of(files));
    found.extend(wrong);
    book
}

fn chosen(asked: &Selection) -> Result<select::Selection, diagnostic::SourceDiagnostic> {
    let on = match &asked.on {
        None => None,
        Some(text) => Some(text.parse().map_err(|error| {
            let message = format!("`{text}` is not a selector: {error}");
            diagnostic::SourceDiagnostic::without_place(diagnostic::Code::BadTarget, message)
        })?),
    };
    Ok(select::Selection {
        tasks: asked.tasks.clone(),
        on,
        from: asked.from.clone().into_iter().collect(),
        to: asked.to.clone().into_iter().collect(),
        skip: asked.skip.clone(),
        only: asked.only.as_deref().map(str::parse).transpose()?,
        repeat: asked.repeat,
        events: asked.events.clone(),
    })
}

fn refused(found: &[diagnostic::SourceDiagnostic], sources: &Sources) -> PlanAnswer {
    PlanAnswer { diagnostics: told(found, sources), ..PlanAnswer::default() }
}

fn told(found: &[diagnostic::SourceDiagnostic], sources: &Sources) -> Vec<TaskFileDiagnostic> {
    found.iter().map(|one| task_file_diagnostic(one, sources)).collect()
}

fn task_file_diagnostic(
    one: &diagnostic::SourceDiagnostic,
    sources: &Sources,
) -> TaskFileDiagnostic {
    TaskFileDiagnostic {
        severity: match one.severity {
            diagnostic::Severity::Error => Severity::Error,
            diagnostic::Severity::Warning => Severity::Warning,
            diagnostic::Severity::Info => Severity::Note,
        },
        code: one.code.as_str().to_owned(),
        diagnostic: one.located(sources),
        drawing: one.draw(sources, false),
    }
}

/// The description of a plan.
pub(super) fn answer(plan: &Plan) -> PlanAnswer {
    let steps = || plan.ids().filter_map(|id| Some((id, plan.step(id)?)));
    let skips = steps().filter_map(|(id, step)| {
        let reason = step.skip.clone()?;
        Some(Skip { instance: plan.vertex(id).name.clone(), reason })
    });
    PlanAnswer {
        hash: plan.hash().to_owned(),
        steps: steps().count(),
        edges: plan.ids().map(|id| plan.vertex(id).after.len()).sum(),
        nodes: steps().filter_map(|(_, step)| step.subject).collect::<BTreeSet<_>>().len(),
        skips: skips.collect(),
        ..PlanAnswer::default()
    }
}
