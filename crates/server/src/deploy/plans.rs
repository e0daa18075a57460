//! From a request to a plan, and from a plan to a run.
//!
//! Does not belong here: compilation (`compile`), and runs once they have started (`runs`).

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use hoist_api::deploy::{
    PlanAnswer, PlanRequest, RunCommandRequest, RunCommandResult, RunState, RunSummary, Selection,
    Severity, TaskFileDiagnostic,
};
use hoist_api::{Code, JsonText, Problem};
use hoist_deploy::diagnostic;
use hoist_deploy::select::History;
use hoist_deploy::target::TargetSite;
use hoist_diagnostic::Diagnostic;
use hoist_engine::carry::carry_over;
use hoist_engine::plan::{Draft, Kind, Step};
use hoist_engine::undo::UndoDraft;
use hoist_engine::{Plan, Record, StepId};
use http::StatusCode;
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::compile::{AnswerWithPlan, Detail, FilePlan, Grounds, answer, compile, site_of};
use super::elections::{Elections, deployment};
use super::instance_history::{forget_others, look_back};
use super::run_commands::{about, concurrent_texts};
use super::runs::{Begin, carried_steps, now_ms, told_gaps};
use super::transport::{DryRunResult, INSTALL_PLUGIN, MissingAction};
use super::view::View;
use super::{Deploy, READ, WRITE};
use crate::authorisation::check_secrets;
use hoist_chassis::auth::AuditContext;
use hoist_chassis::extract::{Flag, Json, Path, Query};
use hoist_chassis::failure::Failure;
use hoist_chassis::large_answer::json;
use hoist_chassis::principal::Principal;
use hoist_chassis::route::Route;

/// Largest request: task files of a large site, or a plan over all of its nodes.
const MAX_REQUEST: usize = 256 * 1024 * 1024;

/// Actions that agents do not have; beyond it they are not named.
const MAX_MISSING: usize = 100;

const PREDICT: &str = "with `dry_run`: also predict the changes on the nodes";

pub(super) fn routes() -> Vec<Route<Deploy>> {
    let with_files = |route: Route<Deploy>| {
        route.body_limit(MAX_REQUEST).streaming().takes::<PlanRequest>().gives::<PlanAnswer>(200)
    };
    vec![
        with_files(Route::post("/deploy/v1/plans", READ, plan))
            .summary("Compile task files to a plan; stores and runs nothing"),
        with_files(Route::post("/deploy/v1/runs", WRITE, begin))
            .summary("Compile task files, or take a plan, and run it")
            .flag("dry_run", "only compile")
            .flag("predict", PREDICT)
            .gives::<RunSummary>(201),
        with_files(Route::post("/deploy/v1/runs/{run}/continue", WRITE, go_on))
            .summary(
                "Run a changed plan without the steps that this run completed with the same inputs",
            )
            .flag("dry_run", "only compile")
            .flag("predict", PREDICT)
            .gives::<RunSummary>(201),
        Route::post("/deploy/v1/runs/{run}/undo", WRITE, undo)
            .summary("Undo a run, in a run of its own")
            .flag("dry_run", "change nothing, return the steps that would be undone")
            .body_limit(64 * 1024)
            .takes::<RunCommandRequest>()
            .gives::<RunCommandResult>(200)
            .gives::<RunCommandResult>(201),
    ]
}

#[derive(Debug, Deserialize)]
struct DryRun {
    #[serde(default)]
    dry_run: Flag,
    #[serde(default)]
    predict: Flag,
}

async fn plan(
    State(deploy): State<Deploy>,
    Json(request): Json<PlanRequest>,
) -> Result<Response, Failure> {
    let PlanResult { answer, plan, .. } = deploy.compile(request, Detail::Listed).await?;
    with_plan(answer, plan).await
}

/// An answer with its plan. Blocks no thread of the runtime, however large the plan is.
async fn with_plan(answer: PlanAnswer, plan: Option<Arc<Plan>>) -> Result<Response, Failure> {
    let write = move || json(&AnswerWithPlan::new(&answer, plan.as_deref().map(Plan::draft)));
    let written = tokio::task::spawn_blocking(write).await;
    written.map_err(|_| Failure::new(Code::Internal, "the log has the reason"))
}

async fn begin(
    State(deploy): State<Deploy>,
    principal: Principal,
    Query(query): Query<DryRun>,
    audit: AuditContext,
    Json(request): Json<PlanRequest>,
) -> Result<Response, Failure> {
    deploy.begin(request, &query, (&principal, &audit), None).await
}

async fn go_on(
    State(deploy): State<Deploy>,
    principal: Principal,
    Path(run): Path<String>,
    Query(query): Query<DryRun>,
    audit: AuditContext,
    Json(request): Json<PlanRequest>,
) -> Result<Response, Failure> {
    let id = deploy.resolve(&run).await?;
    let old =
        deploy.blocking(move |runs| Ok(Old { view: runs.view(&id)?, undone: runs.undone(&id)? }));
    let old = old.await?;
    if old.view.state() != RunState::Ended {
        return Err(Failure::new(Code::Conflict, "the run has not ended")
            .with_remedy("`hoist deploy stop` it first"));
    }
    deploy.begin(request, &query, (&principal, &audit), Some(old)).await
}

async fn undo(
    State(deploy): State<Deploy>,
    Path(run): Path<String>,
    Query(query): Query<DryRun>,
    audit: AuditContext,
    Json(request): Json<RunCommandRequest>,
) -> Result<Response, Failure> {
    let id = deploy.resolve(&run).await?;
    let view = deploy.blocking(move |runs| runs.view(&id)).await?;
    let (view, UndoDraft { mut draft, gaps, .. }) = deploy.undo_run(view, &request).await?;
    if request.over_changes {
        undo_over_changes(&mut draft);
    }
    let left = gaps.len();
    let gaps = told_gaps(&view.plan, &gaps);
    let plan = Plan::new(draft).map_err(|error| Failure::new(Code::Internal, error.to_string()))?;
    let steps = || plan.ids().filter_map(|id| Some((id, plan.step(id)?)));
    let instances: Vec<String> = steps().map(|(id, _)| plan.vertex(id).name.clone()).collect();
    let unsure: Vec<String> =
        steps().filter_map(|(id, step)| doubt(&plan.vertex(id).name, step)).collect();
    let with =
        |problem: Problem, gap: &String| problem.with_diagnostic(Diagnostic::new("", gap.clone()));
    let nothing = || {
        let problem = Problem::new(Code::Conflict, "no step of the run can be undone");
        Err(gaps.iter().fold(problem, with).into())
    };
    if query.dry_run.0 {
        audit.nothing_written();
        if instances.is_empty() {
            return nothing();
        }
        let run = view.summary();
        let concurrent = deploy.blocking(move |runs| runs.concurrent_with_plan(&plan, &[])).await?;
        let concurrent = concurrent_texts(&concurrent);
        let result = RunCommandResult { run, instances, gaps, unsure, concurrent, dry_run: true };
        return Ok(Json(result).into_response());
    }
    if !gaps.is_empty() && !request.leave_gaps {
        let detail = format!("{left} instances cannot be undone; nothing was changed");
        let problem = Problem::new(Code::Conflict, detail)
            .with_remedy("`--leave-gaps` undoes the others, and leaves these as they are");
        return Err(gaps.iter().fold(problem, with).into());
    }
    if instances.is_empty() {
        return nothing();
    }
    let begin = Begin {
        title: format!("undo {}", view.file.title),
        by: audit.draft().who,
        undoes: Some(view.file.id.clone()),
        automatic: false,
        request: view.file.request.clone(),
        carried: Vec::new(),
        allow_concurrent: request.allow_concurrent,
    };
    let run = deploy.blocking(move |runs| runs.begin(&Arc::new(plan), begin)).await?;
    deploy.note(&audit, format!("run/{}: undoes run/{}", run.id, view.file.id)).await;
    let result =
        RunCommandResult { run, instances, gaps, unsure, concurrent: Vec::new(), dry_run: false };
    Ok((StatusCode::CREATED, Json(result)).into_response())
}

fn undo_over_changes(draft: &mut Draft) {
    for vertex in &mut draft.vertices {
        if let Kind::Step(step) = &mut vertex.kind {
            let made = step.call.undoes.iter_mut().flatten();
            made.for_each(|made| made.over_changes = true);
        }
    }
}

/// The reason why a step may be only partly undoable, if there is one.
fn doubt(name: &str, step: &Step) -> Option<String> {
    let attempts = step.call.undoes.as_ref()?;
    let known = attempts.iter().filter(|made| !made.receipt.is_null()).count();
    let unknown = attempts.len() - known;
    let of = format!("{unknown} of its {} attempts", attempts.len());
    (unknown > 0).then(|| format!("{name}: {of} gave no receipt; backups on the node decide"))
}

/// The result of a plan request.
struct PlanResult {
    answer: PlanAnswer,
    /// `None` if the answer has errors.
    plan: Option<Arc<Plan>>,
    elections: Elections,
    /// The first member of each role in the plan.
    firsts: BTreeMap<String, String>,
}

/// A plan that was made earlier.
struct SubmittedPlan {
    plan: Arc<Plan>,
    deployment: String,
    firsts: BTreeMap<String, String>,
}

/// The fields of a [`PlanAnswer`] that are read when a client sends it back.
#[derive(Debug, Deserialize)]
struct Answer {
    plan: Draft,
    hash: Option<String>,
    #[serde(default)]
    listing: Option<AnswerListing>,
}

#[derive(Debug, Default, Deserialize)]
struct AnswerListing {
    deployment: Option<String>,
    elections: Option<BTreeMap<String, String>>,
}

/// Tells an answer from a plan, which has no field of this name.
#[derive(Debug, Deserialize)]
struct AnswerProbe {
    plan: Option<IgnoredAny>,
}

impl SubmittedPlan {
    /// Reads a plan alone, or the complete answer; the hash of an answer guarantees an unchanged
    /// plan.
    fn read(given: &JsonText) -> Result<Self, Failure> {
        let no_plan = |error: serde_json::Error| {
            Failure::new(Code::InvalidBody, format!("this is no plan: {error}"))
                .with_remedy("send one that `POST /deploy/v1/plans` gave")
        };
        let is_answer = given.read::<AnswerProbe>().is_ok_and(|probe| probe.plan.is_some());
        let Answer { plan, hash, listing } = if is_answer {
            given.read().map_err(no_plan)?
        } else {
            Answer { plan: given.read().map_err(no_plan)?, hash: None, listing: None }
        };
        let AnswerListing { deployment, elections } = listing.unwrap_or_default();
        let plan = Plan::new(plan).map_err(|error| {
            Failure::new(Code::InvalidBody, format!("this plan cannot be run: {error}"))
        })?;
        if let Some((name, first, second)) = twice(&plan) {
            let detail = format!("the vertices {first} and {second} are both called `{name}`");
            return Err(Failure::new(Code::InvalidBody, detail)
                .with_remedy("commands name steps by it; give each a unique name"));
        }
        if let Some(hash) = hash.filter(|hash| hash != plan.hash()) {
            let detail = format!("the plan has the hash {}, not {hash}", plan.hash());
            return Err(Failure::new(Code::Conflict, detail).with_remedy(
                "it was changed since it was made; make it again, or send the plan alone",
            ));
        }
        Ok(Self {
            plan: Arc::new(plan),
            deployment: deployment.unwrap_or_default(),
            firsts: elections.unwrap_or_default(),
        })
    }
}

/// The first name that two vertices have.
fn twice(plan: &Plan) -> Option<(&str, StepId, StepId)> {
    let mut names = HashMap::with_capacity(plan.len());
    plan.ids().find_map(|id| {
        let name = plan.vertex(id).name.as_str();
        names.insert(name, id).map(|first| (name, first, id))
    })
}

/// A run that is continued.
struct Old {
    view: View,
    /// Names of instances that were undone since.
    undone: BTreeSet<String>,
}

impl Deploy {
    /// Starts a run; with `old`, without the instances that `old` has done.
    async fn begin(
        &self,
        mut request: PlanRequest,
        query: &DryRun,
        (principal, audit): (&Principal, &AuditContext),
        old: Option<Old>,
    ) -> Result<Response, Failure> {
        self.runs.recovered().await;
        let allow_concurrent = request.allow_concurrent;
        let given = request.plan.take();
        let kept = PlanRequest { allow_concurrent: false, ..request.clone() };
        request.plan = given;
        let detail = if query.dry_run.0 { Detail::Listed } else { Detail::Summary };
        let PlanResult { mut answer, plan, elections, firsts } =
            self.compile(request, detail).await?;
        // Programs of a plan, also those that only look, are given the secrets that it names.
        let steps = plan.iter().flat_map(|plan| plan.ids().filter_map(|id| plan.step(id)));
        check_secrets(principal, steps.flat_map(Step::secret_references))?;
        let carried = match (&old, &plan) {
            (Some(Old { view, undone }), Some(plan)) => {
                carry_over(&view.run, &view.file.id, plan, undone, now_ms())
            }
            _ => Vec::new(),
        };
        if query.dry_run.0 {
            audit.nothing_written();
            if let Some(plan) = plan.as_ref().filter(|_| query.predict.0) {
                let DryRunResult { predictions, left_out } = self.dry_run(plan, &carried).await?;
                (answer.predictions, answer.not_predicted) = (predictions, left_out);
            }
            if let Some(plan) = plan.clone() {
                let carried = carried.clone();
                let concurrent =
                    self.blocking(move |runs| runs.concurrent_with_plan(&plan, &carried)).await?;
                answer.concurrent = concurrent_texts(&concurrent);
            }
            answer.skips.extend(plan.iter().flat_map(|plan| carried_over(plan, &carried)));
            return with_plan(answer, plan).await;
        }
        let Some(plan) = plan else { return Err(refused(&answer)) };
        if plan.ids().all(|id| plan.step(id).is_none()) {
            return Err(Failure::new(Code::InvalidBody, "the plan has no tasks").with_remedy(
                "`hoist deploy plan` shows the plan of the files and the reason of each skip",
            ));
        }
        if !answer.prerequisites.is_empty() && !kept.selection.without_prerequisites {
            let names = answer.prerequisites.join(", ");
            let detail = format!("not selected, and not known to be done: {names}");
            return Err(Failure::new(Code::Conflict, detail).with_remedy(
                "select `+TASK` to include its prerequisites, or pass `--without-prerequisites`",
            ));
        }
        if let Some(missing) = self.missing(&plan).await?.first() {
            let remedy = format!("{INSTALL_PLUGIN}; `hoist deploy plan` names all of them");
            let detail = format!("{missing}, and nothing was begun");
            return Err(Failure::new(Code::Conflict, detail).with_remedy(remedy));
        }
        elections.keep(&*self.chassis.store, &firsts).await?;
        let title = kept.title.clone();
        let by = audit.draft().who;
        let begin = Begin {
            title,
            by,
            undoes: None,
            automatic: false,
            request: Some(kept),
            carried,
            allow_concurrent,
        };
        let mut summary = self.blocking(move |runs| runs.begin(&plan, begin)).await?;
        summary.diagnostics = answer.diagnostics;
        let what = match &old {
            None => format!("run/{}: started", summary.id),
            Some(old) => format!("run/{}: continues run/{}", summary.id, old.view.file.id),
        };
        self.note(audit, what).await;
        Ok((StatusCode::CREATED, Json(summary)).into_response())
    }

    /// The predicted changes of a plan, without carried-over instances.
    async fn dry_run(&self, plan: &Arc<Plan>, carried: &[Record]) -> Result<DryRunResult, Failure> {
        let plan = Arc::clone(plan);
        let kept = carried_steps(carried);
        self.blocking(move |runs| Ok(runs.dry_run(&plan, &kept))).await
    }

    /// Actions that are impossible with the transport of their node.
    async fn missing(&self, plan: &Arc<Plan>) -> Result<BTreeSet<MissingAction>, Failure> {
        let plan = Arc::clone(plan);
        self.blocking(move |runs| Ok(runs.missing(&plan))).await
    }

    /// Compiles a plan and adds diagnostics of its remote nodes.
    async fn compile(&self, request: PlanRequest, detail: Detail) -> Result<PlanResult, Failure> {
        let mut made = self.make(request, detail).await?;
        if let Some(plan) = &made.plan {
            let missing = self.missing(plan).await?.into_iter().take(MAX_MISSING);
            made.answer.diagnostics.extend(missing.map(|missing| TaskFileDiagnostic {
                severity: Severity::Warning,
                code: diagnostic::Code::NotOnNode.as_str().to_owned(),
                diagnostic: Diagnostic::new("", missing.to_string()).hint(INSTALL_PLUGIN),
                drawing: String::new(),
            }));
        }
        Ok(made)
    }

    async fn make(&self, mut request: PlanRequest, detail: Detail) -> Result<PlanResult, Failure> {
        let invalid = |detail: String| Failure::new(Code::InvalidBody, detail);
        let store = &*self.chassis.store;
        if let Some(given) = request.plan.take() {
            let given = SubmittedPlan::read(&given)?;
            let elections = Elections::read(store, &given.deployment).await?;
            elections.check(&given.firsts)?;
            let SubmittedPlan { plan, firsts, .. } = given;
            let answer = answer(&plan);
            return Ok(PlanResult { answer, plan: Some(plan), elections, firsts });
        }
        if request.files.is_empty() {
            return Err(invalid("there is neither a plan nor a file".to_owned())
                .with_remedy("send task files as `files`"));
        }
        let elections = Elections::read(store, deployment(&request.files)).await?;
        let deploy = self.clone();
        let chosen = elections.chosen.clone();
        let installed_by = self.systems.installed_by().await?;
        let compile = move || {
            let roster = deploy.registry.roster();
            let site = TargetSite { elections: chosen, ..site_of(&roster, &installed_by) };
            deploy.compile_files(&request, &site, detail)
        };
        let compiled = tokio::task::spawn_blocking(compile).await;
        let (answer, made) =
            compiled.map_err(|_| Failure::new(Code::Internal, "the log has the reason"))?;
        let (plan, firsts) = made.map(|made| (Arc::new(made.plan), made.elections)).unzip();
        Ok(PlanResult { answer, plan, elections, firsts: firsts.unwrap_or_default() })
    }

    fn compile_files(
        &self,
        request: &PlanRequest,
        site: &TargetSite,
        detail: Detail,
    ) -> (PlanAnswer, Option<FilePlan>) {
        let before = look_back(&self.runs, &request.files);
        let mut past = before.past;
        let expected_ms = before.expected_ms;
        let actions = &self.runs.actions();
        if request.selection != Selection::default() && !past.is_empty() {
            // Files of the same names may be of another project, or have changed since.
            let all = PlanRequest { selection: Selection::default(), ..request.clone() };
            let grounds =
                Grounds { site, actions, past: History::default(), expected_ms: BTreeMap::new() };
            let made = compile(&all, grounds, Detail::Summary).1;
            forget_others(&mut past, made.as_ref().map(|made| &made.plan));
        }
        compile(request, Grounds { site, actions, past, expected_ms }, detail)
    }

    /// The undo plan of a run, or of some of its nodes or instances.
    async fn undo_run(
        &self,
        view: View,
        request: &RunCommandRequest,
    ) -> Result<(View, UndoDraft), Failure> {
        let on = request.on.as_ref().map(|on| self.subjects(&view, on)).transpose()?;
        let named = match request.instances[..] {
            [] => None,
            _ => Some(BTreeSet::from_iter(about(&view, request)?)),
        };
        let found = self.blocking(move |runs| {
            let is_wanted = |id| {
                let subject = view.plan.step(id).and_then(|step| step.subject);
                let is_there =
                    on.as_ref().is_none_or(|on| subject.is_some_and(|at| on.contains(&at)));
                is_there && named.as_ref().is_none_or(|named| named.contains(&id))
            };
            let undo_run = runs.undo_run(&view.run, &view.file, is_wanted)?;
            Ok(undo_run.map(|undo_run| (view, undo_run)))
        });
        found.await?.map_err(|error| Failure::new(Code::Conflict, error.to_string()))
    }

    /// The subjects of a run that a selector chooses.
    fn subjects(&self, view: &View, selector: &str) -> Result<BTreeSet<u32>, Failure> {
        let wrong = |error: String| Failure::new(Code::BadParameter, format!("`on`: {error}"));
        let selector: hoist_model::Selector = selector
            .parse()
            .map_err(|error: hoist_model::selector::ParseSelectorError| wrong(error.to_string()))?;
        let roster = self.registry.roster();
        let nodes = roster.select(&selector).map_err(|error| wrong(error.to_string()))?;
        let names: BTreeSet<&str> = nodes.iter().map(|node| node.name.as_str()).collect();
        let chosen = (0..).zip(&view.plan.draft().subjects);
        let chosen = chosen.filter(|(_, name)| names.contains(name.as_str())).map(|(at, _)| at);
        let chosen: BTreeSet<u32> = chosen.collect();
        if chosen.is_empty() {
            return Err(wrong("no node of the run is chosen".to_owned()));
        }
        Ok(chosen)
    }
}

fn carried_over<'a>(
    plan: &'a Plan,
    carried: &'a [Record],
) -> impl Iterator<Item = hoist_api::deploy::Skip> + 'a {
    carried.iter().filter_map(|record| match record {
        Record::Carried { step, .. } => Some(hoist_api::deploy::Skip {
            instance: plan.vertex(*step).name.clone(),
            reason: "done in the run that is continued".to_owned(),
        }),
        _ => None,
    })
}

/// Task files that are wrong, told as every wrong input is.
fn refused(answer: &PlanAnswer) -> Failure {
    let errors = answer.diagnostics.iter().filter(|found| found.severity == Severity::Error);
    let problem = Problem::new(Code::InvalidBody, "the task files have errors; nothing was run");
    let with = |problem: Problem, found: &TaskFileDiagnostic| {
        let mut diagnostic = found.diagnostic.clone();
        diagnostic.message = format!("{} {}", found.code, diagnostic.message);
        problem.with_diagnostic(diagnostic)
    };
    errors.fold(problem, with).into()
}
