//! The plan of roles: look at it, make it again, agree to a move.

use std::collections::BTreeSet;
use std::sync::Arc;

use axum::extract::State;
use hoist_api::cluster::ClusterPlanView;
use hoist_chassis::auth::AuditContext;
use hoist_chassis::extract::{Flag, Json, Query};
use hoist_chassis::failure::Failure;
use hoist_chassis::route::Route;
use hoist_cluster::id::NodeId;
use serde::Deserialize;

use super::failure::of_plan;
use super::lookup::Among;
use super::snapshot::Snapshot;
use super::view::Write;
use super::{Cluster, READ, WRITE, planning, show};

pub(super) fn routes() -> Vec<Route<Cluster>> {
    vec![
        Route::get("/cluster/v1/plan", READ, plan)
            .summary("The roles of the members with reasons, and the moves that are under way")
            .flag("preview", "the plan that would be made now; it is not stored")
            .gives::<ClusterPlanView>(200),
        Route::post("/cluster/v1/plan", WRITE, replan)
            .summary("Plan the roles again, and agree to moves that leave state behind")
            .query("consent", "members whose move may start, separated by commas; `all` for each")
            .gives::<ClusterPlanView>(200),
    ]
}

#[derive(Debug, Deserialize)]
struct PlanQuery {
    #[serde(default)]
    preview: Flag,
}

async fn plan(
    State(cluster): State<Cluster>,
    Query(query): Query<PlanQuery>,
) -> Result<Json<ClusterPlanView>, Failure> {
    let snapshot = cluster.view.loaded()?;
    snapshot.founded()?;
    if !query.preview.0 {
        return Ok(Json(show::plan(&snapshot, snapshot.plan.as_deref(), false)));
    }
    let roster = cluster.registry.roster();
    let replan = planning::replan(&snapshot, &roster, &BTreeSet::new());
    if let Some(refusal) = &replan.refusal {
        return Err(of_plan(refusal));
    }
    let next = replan.plan().cloned().or_else(|| snapshot.plan.clone());
    Ok(Json(show::plan(&snapshot, next.as_deref(), true)))
}

#[derive(Debug, Deserialize)]
struct ReplanQuery {
    consent: Option<String>,
}

async fn replan(
    State(cluster): State<Cluster>,
    audit: AuditContext,
    Query(query): Query<ReplanQuery>,
) -> Result<Json<ClusterPlanView>, Failure> {
    let snapshot = cluster.view.loaded()?;
    snapshot.founded()?;
    let consent = consent(&snapshot, query.consent.as_deref())?;
    let before = snapshot.plan.clone();
    let mut draft = audit.draft();
    draft.object = match &query.consent {
        Some(members) => format!("cluster plan, consent for {members}"),
        None => "cluster plan".to_owned(),
    };
    let planning = cluster
        .change_plan(Some(&draft), &consent, |_| Ok(Write { changes: Vec::new(), result: () }));
    planning.await?;
    let roster = cluster.registry.roster();
    let snapshot = cluster.view.snapshot();
    if let Some(refusal) = planning::replan(&snapshot, &roster, &BTreeSet::new()).refusal {
        return Err(of_plan(&refusal));
    }
    let is_unchanged = match (&before, &snapshot.plan) {
        (Some(before), Some(after)) => {
            Arc::ptr_eq(before, after) || before.plan.generation == after.plan.generation
        }
        (before, after) => before.is_none() && after.is_none(),
    };
    Ok(Json(show::plan(&snapshot, snapshot.plan.as_deref(), is_unchanged)))
}

/// The members that `consent` names.
fn consent(snapshot: &Snapshot, text: Option<&str>) -> Result<BTreeSet<NodeId>, Failure> {
    match text {
        None => Ok(BTreeSet::new()),
        Some("all") => {
            let moves = snapshot.plan.iter().flat_map(|stored| &stored.plan.moves);
            Ok(moves.map(|planned| planned.node).collect())
        }
        Some(names) => {
            names.split(',').map(|name| snapshot.find(name.trim(), Among::Members)).collect()
        }
    }
}
