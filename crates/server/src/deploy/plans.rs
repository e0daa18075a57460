//! From what was sent to a plan, and from a plan to a run.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use hoist_api::deploy::{
    Order, Ordered, PlanAnswer, PlanRequest, RunState, RunSummary, Selection, Severity,
};
use hoist_api::{Code, Fault, Problem};
use hoist_deploy::select::Past;
use hoist_deploy::target::Site;
use hoist_engine::carry::carry_over;
use hoist_engine::plan::Draft;
use hoist_engine::undo::{GapKind, UndoDraft, undo_plan};
use hoist_engine::{Plan, Record};
use hoist_store::{Key, Op, Txn};
use http::StatusCode;
use serde::Deserialize;

use super::compile::{Grounds, answer, compile, site_of};
use super::past::{forget_others, look_back};
use super::runs::{Begin, now_ms};
use super::view::View;
use super::{Deploy, READ, WRITE};
use crate::auth::AuditContext;
use crate::chain;
use crate::extract::{Json, Path, Query};
use crate::failure::Failure;
use crate::route::Route;

/// Largest request: task files of a large site, or a plan over all of its nodes.
const MAX_REQUEST: usize = 256 * 1024 * 1024;

pub(super) fn routes() -> Vec<Route<Deploy>> {
    let with_files = |route: Route<Deploy>| {
        route.body_limit(MAX_REQUEST).streaming().takes::<PlanRequest>().gives::<PlanAnswer>(200)
    };
    vec![
        with_files(Route::post("/deploy/v1/plans", READ, plan))
            .summary("Compile task files to a plan; nothing is kept, nothing is run"),
        with_files(Route::post("/deploy/v1/runs", WRITE, begin))
            .summary("Compile task files, or take a plan, and run it")
            .query("dry_run", "`1`: only compile")
            .gives::<RunSummary>(201),
        with_files(Route::post("/deploy/v1/runs/{run}/continue", WRITE, go_on))
            .summary("Run a changed plan without what this run has done with the same inputs")
            .query("dry_run", "`1`: only compile")
            .gives::<RunSummary>(201),
        Route::post("/deploy/v1/runs/{run}/undo", WRITE, undo)
            .summary("Take back what a run has done, in a run of its own")
            .query("dry_run", "`1`: change nothing, say what would be taken back")
            .body_limit(64 * 1024)
            .takes::<Order>()
            .gives::<Ordered>(200)
            .gives::<Ordered>(201),
    ]
}

/// The first member of each role.
type Elections = BTreeMap<String, String>;

fn elections_key() -> Key {
    "election".parse().expect("a literal key")
}

#[derive(Debug, Deserialize)]
struct DryRun {
    dry_run: Option<u8>,
}

impl DryRun {
    fn is_on(&self) -> bool {
        self.dry_run == Some(1)
    }
}

async fn plan(
    State(deploy): State<Deploy>,
    Json(request): Json<PlanRequest>,
) -> Result<Json<PlanAnswer>, Failure> {
    let (answer, _) = deploy.compile(request).await?;
    Ok(Json(answer))
}

async fn begin(
    State(deploy): State<Deploy>,
    Query(query): Query<DryRun>,
    audit: AuditContext,
    Json(request): Json<PlanRequest>,
) -> Result<Response, Failure> {
    deploy.begin(request, query.is_on(), &audit, None).await
}

async fn go_on(
    State(deploy): State<Deploy>,
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
    deploy.begin(request, query.is_on(), &audit, Some(old)).await
}

async fn undo(
    State(deploy): State<Deploy>,
    Path(run): Path<String>,
    Query(query): Query<DryRun>,
    audit: AuditContext,
    Json(order): Json<Order>,
) -> Result<Response, Failure> {
    let id = deploy.resolve(&run).await?;
    let view = deploy.blocking(move |runs| runs.view(&id)).await?;
    let UndoDraft { draft, gaps, .. } = deploy.way_back(&view, order.on.as_deref())?;
    let gap = |gap: &hoist_engine::undo::Gap| {
        let why = match gap.kind {
            GapKind::NoUndo => "nobody said how",
            GapKind::CommitPoint => "there is no way back from it",
            GapKind::TooMany => "it was tried too often",
        };
        format!("{}: {why}", view.name(gap.step))
    };
    let gaps: Vec<String> = gaps.iter().map(gap).collect();
    let plan = Plan::new(draft).map_err(|error| Failure::new(Code::Internal, error.to_string()))?;
    let step = |id| plan.step(id).map(|_| plan.vertex(id).name.clone());
    let instances: Vec<String> = plan.ids().filter_map(step).collect();
    if query.is_on() {
        audit.nothing_written();
        let run = view.summary();
        return Ok(Json(Ordered { run, instances, gaps, dry_run: true }).into_response());
    }
    if !gaps.is_empty() && !order.leave_gaps {
        let detail = format!("{} instances cannot be taken back; nothing was done", gaps.len());
        let problem = Problem::new(Code::Conflict, detail)
            .with_remedy("`--leave-gaps` takes back what can be, and leaves these as they are");
        let with = |problem: Problem, gap: &String| problem.with_fault(Fault::new("", gap.clone()));
        return Err(gaps.iter().fold(problem, with).into());
    }
    let begin = Begin {
        title: format!("undo {}", view.file.title),
        by: audit.draft().who,
        undoes: Some(view.file.id.clone()),
        request: view.file.request.clone(),
        carried: Vec::new(),
    };
    let run = deploy.blocking(move |runs| runs.begin(&Arc::new(plan), begin)).await?;
    deploy.note(&audit, format!("run/{}: undoes run/{}", run.id, view.file.id)).await;
    let ordered = Ordered { run, instances, gaps, dry_run: false };
    Ok((StatusCode::CREATED, Json(ordered)).into_response())
}

/// A run that is continued.
struct Old {
    view: View,
    /// Names of what was taken back since.
    undone: BTreeSet<String>,
}

impl Deploy {
    /// Starts a run; with `old`, without what that has done already.
    async fn begin(
        &self,
        request: PlanRequest,
        dry_run: bool,
        audit: &AuditContext,
        old: Option<Old>,
    ) -> Result<Response, Failure> {
        self.runs.recovered().await;
        let kept = PlanRequest { plan: None, ..request.clone() };
        let (mut answer, plan) = self.compile(request).await?;
        let carried = match (&old, &plan) {
            (Some(Old { view, undone }), Some(plan)) => {
                carry_over(&view.run, &view.file.id, plan, undone, now_ms())
            }
            _ => Vec::new(),
        };
        if dry_run {
            audit.nothing_written();
            answer.skips.extend(plan.iter().flat_map(|plan| carried_over(plan, &carried)));
            return Ok(Json(answer).into_response());
        }
        let Some(plan) = plan else { return Err(refused(&answer)) };
        if plan.ids().all(|id| plan.step(id).is_none()) {
            return Err(Failure::new(Code::InvalidBody, "there is nothing to do in the plan")
                .with_remedy("`hoist deploy plan` says what files come to"));
        }
        if !answer.prerequisites.is_empty() && !kept.selection.without_prerequisites {
            let names = answer.prerequisites.join(", ");
            let detail = format!("not selected, and not known to be done: {names}");
            return Err(Failure::new(Code::Conflict, detail).with_remedy(
                "write `+TASK` to do what it needs as well, or say `--without-prerequisites`",
            ));
        }
        let (title, by) = (kept.title.clone(), audit.draft().who);
        let begin = Begin { title, by, undoes: None, request: Some(kept), carried };
        let summary = self.blocking(move |runs| runs.begin(&plan, begin)).await?;
        let what = match &old {
            None => format!("run/{}: started", summary.id),
            Some(old) => format!("run/{}: continues run/{}", summary.id, old.view.file.id),
        };
        self.note(audit, what).await;
        if let Ok(elections) = serde_json::from_value(answer.listing["elections"].take()) {
            self.elect(elections).await;
        }
        Ok((StatusCode::CREATED, Json(summary)).into_response())
    }

    /// Who is the first of each role; nobody yet, if the store is away.
    async fn elections(&self) -> Elections {
        let found = self.chassis.store.get(&elections_key()).await.ok().flatten();
        found.and_then(|record| serde_json::from_slice(&record.value).ok()).unwrap_or_default()
    }

    /// Keeps who is the first of each role, so that it stays so.
    async fn elect(&self, elected: Elections) {
        let before = self.elections().await;
        let mut after = before.clone();
        after.extend(elected);
        if after == before {
            return;
        }
        let value = serde_json::to_vec(&after).expect("a plain value");
        let txn = Txn { compares: Vec::new(), ops: vec![Op::Put(elections_key(), value)] };
        if let Err(error) = self.chassis.store.commit(txn).await {
            tracing::warn!(error = %chain(&error), "first members of roles not stored");
        }
    }

    async fn compile(
        &self,
        request: PlanRequest,
    ) -> Result<(PlanAnswer, Option<Arc<Plan>>), Failure> {
        let (deploy, elections) = (self.clone(), self.elections().await);
        let compile = move || deploy.compile_here(request, elections);
        let compiled = tokio::task::spawn_blocking(compile).await;
        compiled.map_err(|_| Failure::new(Code::Internal, "the log has the reason"))?
    }

    fn compile_here(
        &self,
        mut request: PlanRequest,
        elections: Elections,
    ) -> Result<(PlanAnswer, Option<Arc<Plan>>), Failure> {
        let invalid = |detail: String| Failure::new(Code::InvalidBody, detail);
        let draft = match request.plan.take() {
            Some(plan) => serde_json::from_value::<Draft>(plan).map_err(|error| {
                invalid(format!("this is no plan: {error}"))
                    .with_remedy("send one that `POST /deploy/v1/plans` gave")
            })?,
            None if request.files.is_empty() => {
                return Err(invalid("there is neither a plan nor a file".to_owned())
                    .with_remedy("send task files as `files`"));
            }
            None => {
                let site = Site { elections, ..site_of(&self.registry.roster()) };
                let before = look_back(&self.runs, &request.files);
                let (mut past, expected_ms) = (before.past, before.expected_ms);
                let actions = self.runs.actions();
                if request.selection != Selection::default() && !past.is_empty() {
                    // Files of the same names may be of another project, or have changed since.
                    let all = PlanRequest { selection: Selection::default(), ..request.clone() };
                    let grounds = Grounds {
                        site: &site,
                        actions,
                        past: Past::default(),
                        expected_ms: BTreeMap::new(),
                    };
                    forget_others(&mut past, compile(&all, grounds).1.as_ref());
                }
                let grounds = Grounds { site: &site, actions, past, expected_ms };
                let (answer, compiled) = compile(&request, grounds);
                let plan = compiled.map(|compiled| Plan::new(compiled.draft)).transpose();
                let plan = plan.map_err(|error| invalid(error.to_string()))?;
                return Ok((answer, plan.map(Arc::new)));
            }
        };
        let plan = Plan::new(draft)
            .map_err(|error| invalid(format!("this plan cannot be run: {error}")))?;
        Ok((answer(&plan), Some(Arc::new(plan))))
    }

    fn way_back(&self, view: &View, on: Option<&str>) -> Result<UndoDraft, Failure> {
        let only = match on {
            None => None,
            Some(on) => Some(self.subjects(view, on)?),
        };
        undo_plan(&view.run, &view.file.id, only.as_ref(), |call| self.runs.can_undo(call))
            .map_err(|error| Failure::new(Code::Conflict, error.to_string()))
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
    let with = |problem: Problem, found: &hoist_api::deploy::Diagnostic| {
        let mut fault = Fault::new(found.at.clone(), format!("{} {}", found.code, found.message));
        fault.hint.clone_from(&found.hint);
        problem.with_fault(fault)
    };
    errors.fold(problem, with).into()
}
