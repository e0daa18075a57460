//! From what was sent to a plan, and from a plan to a run.

use std::sync::Arc;

use axum::extract::State;
use hoist_api::Code;
use hoist_api::deploy::{PlanAnswer, PlanRequest, RunSummary, Skip};
use hoist_engine::Plan;
use hoist_engine::plan::Draft;
use http::StatusCode;
use serde::Deserialize;

use super::runs::Begin;
use super::{Deploy, READ, WRITE};
use crate::auth::AuditContext;
use crate::extract::{Json, Query};
use crate::failure::Failure;
use crate::route::Route;

/// Largest request: task files of a large site, or a plan over all of its nodes.
const MAX_REQUEST: usize = 256 * 1024 * 1024;

pub(super) fn routes() -> Vec<Route<Deploy>> {
    vec![
        Route::post("/deploy/v1/plans", READ, plan)
            .summary("Compile task files to a plan; nothing is kept, nothing is run")
            .body_limit(MAX_REQUEST)
            .streaming()
            .takes::<PlanRequest>()
            .gives::<PlanAnswer>(200),
        Route::post("/deploy/v1/runs", WRITE, begin)
            .summary("Compile task files, or take a plan, and run it")
            .query("dry_run", "`1`: only compile")
            .body_limit(MAX_REQUEST)
            .streaming()
            .takes::<PlanRequest>()
            .gives::<PlanAnswer>(200)
            .gives::<RunSummary>(201),
    ]
}

async fn plan(
    State(deploy): State<Deploy>,
    Json(request): Json<PlanRequest>,
) -> Result<Json<PlanAnswer>, Failure> {
    let (answer, _) = deploy.compile(request).await?;
    Ok(Json(answer))
}

#[derive(Debug, Deserialize)]
struct BeginQuery {
    dry_run: Option<u8>,
}

async fn begin(
    State(deploy): State<Deploy>,
    Query(query): Query<BeginQuery>,
    audit: AuditContext,
    Json(request): Json<PlanRequest>,
) -> Result<axum::response::Response, Failure> {
    use axum::response::IntoResponse;
    let title = request.title.clone();
    let kept = PlanRequest { plan: None, ..request.clone() };
    let (answer, plan) = deploy.compile(request).await?;
    if query.dry_run == Some(1) {
        audit.nothing_written();
        return Ok(Json(answer).into_response());
    }
    let Some(plan) = plan else {
        return Err(refused(&answer));
    };
    let by = audit.draft().who;
    let begin = Begin { title, by, undoes: None, request: Some(kept) };
    let summary = deploy.blocking(move |runs| runs.begin(plan, begin)).await?;
    deploy.note(&audit, format!("run/{}: started", summary.id)).await;
    Ok((StatusCode::CREATED, Json(summary)).into_response())
}

impl Deploy {
    async fn compile(
        &self,
        request: PlanRequest,
    ) -> Result<(PlanAnswer, Option<Arc<Plan>>), Failure> {
        let compiled = tokio::task::spawn_blocking(move || compile(request)).await;
        compiled.map_err(|_| Failure::new(Code::Internal, "the log has the reason"))?
    }
}

fn compile(request: PlanRequest) -> Result<(PlanAnswer, Option<Arc<Plan>>), Failure> {
    let Some(value) = request.plan else {
        return Err(Failure::new(Code::InvalidBody, "there is neither a plan nor a file")
            .with_remedy("send task files as `files`"));
    };
    let draft: Draft = serde_json::from_value(value).map_err(|error| {
        Failure::new(Code::InvalidBody, format!("this is no plan: {error}"))
            .with_remedy("send one that `POST /deploy/v1/plans` gave")
    })?;
    let plan = Plan::new(draft).map_err(|error| {
        Failure::new(Code::InvalidBody, format!("this plan cannot be run: {error}"))
    })?;
    Ok((answer(&plan), Some(Arc::new(plan))))
}

/// What there is to say about a plan.
pub(super) fn answer(plan: &Plan) -> PlanAnswer {
    let steps = || plan.ids().filter_map(|id| Some((id, plan.step(id)?)));
    let skips = steps().filter_map(|(id, step)| {
        let reason = step.skip.clone()?;
        Some(Skip { instance: plan.vertex(id).name.clone(), reason })
    });
    PlanAnswer {
        plan: serde_json::to_value(plan.draft()).ok(),
        hash: plan.hash().to_owned(),
        steps: steps().count(),
        edges: plan.ids().map(|id| plan.vertex(id).after.len()).sum(),
        nodes: plan.draft().subjects.len(),
        skips: skips.collect(),
        diagnostics: Vec::new(),
    }
}

/// Task files that are wrong, told as every wrong input is.
fn refused(answer: &PlanAnswer) -> Failure {
    use hoist_api::deploy::Severity;
    use hoist_api::{Fault, Problem};
    let errors = answer.diagnostics.iter().filter(|found| found.severity == Severity::Error);
    let mut problem =
        Problem::new(Code::InvalidBody, "the task files have errors; nothing was run");
    for found in errors {
        let mut fault = Fault::new(found.at.clone(), format!("{} [{}]", found.message, found.code));
        fault.hint.clone_from(&found.hint);
        problem = problem.with_fault(fault);
    }
    problem.into()
}
