//! Read access to runs.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use hoist_api::Code;
use hoist_api::deploy::{
    FailedInstance, Instance, InstanceExplanation, InstanceList, RunDetail, RunList, RunState,
};
use hoist_deploy::graph::{self, Drawing};
use hoist_engine::StepId;
use hoist_engine::run::{State as StepState, StepEnd};
use http::header;
use serde::Deserialize;

use super::folder::FolderError;
use super::runs::RunsError;
use super::view::{View, attempts_of, word};
use super::{Deploy, READ, folder};
use hoist_chassis::extract::{Flag, Json, Path, Query};
use hoist_chassis::failure::Failure;
use hoist_chassis::large_answer::json;
use hoist_chassis::route::Route;

/// Failures, running and held instances that are shown with a run; the rest is in its instances.
const SHOWN: usize = 50;
/// Lines of output that are shown with a failure.
const LAST_LINES: usize = 10;

const PAGE: usize = 1000;
const MAX_PAGE: usize = 10_000;

/// Runs in one listing.
const LIST: usize = 50;
const MAX_LIST: usize = 1000;

pub(super) fn routes() -> Vec<Route<Deploy>> {
    vec![
        Route::get("/deploy/v1/runs", READ, list)
            .summary("Runs, the newest first")
            .query("limit", "most of them in one answer")
            .gives::<RunList>(200),
        Route::get("/deploy/v1/runs/{run}", READ, show)
            .summary("The state of one run, failures first")
            .gives::<RunDetail>(200),
        Route::get("/deploy/v1/runs/{run}/instances", READ, instances)
            .summary("Every task on every node, with its attempts")
            .query("state", "only those in one of these states, separated by commas")
            .query("node", "only those on this node")
            .query("after", "number of the last one seen")
            .query("limit", "most of them in one answer")
            .gives::<InstanceList>(200),
        Route::get("/deploy/v1/runs/{run}/output/{instance}/{attempt}", READ, output)
            .summary("The output of an attempt, or its end")
            .gives_media(200, "text/plain"),
        Route::get("/deploy/v1/runs/{run}/explain/{instance}", READ, explain)
            .summary("The state of an instance, with its reasons")
            .gives::<InstanceExplanation>(200),
        Route::get("/deploy/v1/runs/{run}/graph", READ, graph)
            .summary("The graph of a run: SVG, DOT, Mermaid or JSON")
            .query("format", "`svg` (the default), `dot`, `mermaid` or `json`")
            .flag("instances", "each task on each node, not each task")
            .query("on", "only instances on these nodes, by commas")
            .query("around", "only the neighbourhood of this task")
            .query("depth", "how near; 2 if left out")
            .flag("force", "even if it is too much to look at")
            .gives_media(200, "image/svg+xml")
            .gives_media(200, "text/vnd.graphviz")
            .gives_media(200, "application/json"),
        Route::get("/deploy/v1/runs/{run}/plan", READ, plan)
            .summary("The plan of a run, as `POST /deploy/v1/runs` accepts it")
            .gives_media(200, "application/json"),
    ]
}

#[derive(Debug, Deserialize)]
struct ListQuery {
    limit: Option<usize>,
}

async fn list(
    State(deploy): State<Deploy>,
    Query(query): Query<ListQuery>,
) -> Result<Json<RunList>, Failure> {
    deploy.runs.recovered().await;
    let limit = limit(query.limit, LIST, MAX_LIST)?;
    let mut items = deploy.blocking(|runs| Ok(runs.list())).await?;
    // Those of other controllers; a store that is away hides nothing of ours.
    for other in deploy.runs.others().await {
        match items.iter_mut().find(|run| run.id == other.id) {
            None => items.push(other),
            // Another controller resumed it.
            Some(run) if run.state == RunState::Ended && run.records < other.records => {
                *run = other;
            }
            Some(_) => {}
        }
    }
    items.sort_by(|a, b| b.id.cmp(&a.id));
    items.truncate(limit);
    Ok(Json(RunList { items }))
}

fn limit(given: Option<usize>, usual: usize, most: usize) -> Result<usize, Failure> {
    let limit = given.unwrap_or(usual);
    if (1..=most).contains(&limit) {
        return Ok(limit);
    }
    Err(Failure::new(Code::BadParameter, format!("`limit` is 1 to {most}, not {limit}")))
}

async fn show(
    State(deploy): State<Deploy>,
    Path(run): Path<String>,
) -> Result<Json<RunDetail>, Failure> {
    let id = deploy.resolve(&run).await?;
    let dispatcher = Arc::clone(&deploy.gateway.dispatcher);
    let detail = deploy.blocking(move |runs| {
        if let Some(summary) = runs.summary(&id).filter(|run| run.state == RunState::Broken) {
            let none = Vec::new;
            let failures = Vec::new();
            let critical = Vec::new();
            return Ok(RunDetail {
                summary,
                failures,
                running: none(),
                held: none(),
                critical,
                holds: Vec::new(),
                paused_by: None,
                undone_by: None,
            });
        }
        runs.await_end(&id);
        let view = runs.view(&id)?;
        let mut detail = detail(&view, runs.root());
        detail.undone_by = match runs.undo_runs(&id) {
            Ok(mut ways) => ways.pop().map(|way| way.file.id),
            Err(RunsError::BeingUndone(by)) => Some(by),
            // Undo runs of other controllers are unknown while the store is unreachable.
            Err(RunsError::Folder(FolderError::Store(_))) => runs.undone_by(&id),
            Err(error) => return Err(error),
        };
        let is_here = runs.live(&id).is_some();
        let mut waiting = detail.running.iter_mut().filter(|one| is_here && runs.is_by_agent(one));
        waiting.by_ref().for_each(|one| {
            let node = one.node.as_deref().unwrap_or_default();
            if dispatcher.heard(node).is_none() {
                one.held_by = Some(format!("the agent of `{node}` has not connected yet"));
            }
        });
        Ok(detail)
    });
    detail.await.map(Json)
}

fn detail(view: &View, root: &std::path::Path) -> RunDetail {
    let mut of = attempts_of(&view.records);
    let mut bad = Vec::new();
    let mut running = Vec::new();
    let mut held = Vec::new();
    for (id, _) in view.steps() {
        let into = match view.run.state(id) {
            StepState::Ended(StepEnd::Failed(_) | StepEnd::Interrupted) | StepState::Unknown => {
                &mut bad
            }
            StepState::Running | StepState::Verifying | StepState::VerifyingLost => &mut running,
            StepState::Ready => &mut held,
            _ => continue,
        };
        into.push(id);
    }
    held.truncate(SHOWN);
    let mut instance = |id: StepId| view.instance(id, of.remove(&id).unwrap_or_default());
    let mut running: Vec<Instance> = running.into_iter().map(&mut instance).collect();
    running.sort_by_key(|instance| instance.started.unwrap_or(u64::MAX));
    running.truncate(SHOWN);
    let mut failures: Vec<FailedInstance> = bad
        .into_iter()
        .map(|id| {
            let instance = instance(id);
            let blocked = view.blocked_by(id);
            let nodes: BTreeSet<_> = blocked.iter().filter_map(|id| view.node(*id)).collect();
            let output = last_lines(root, &view.file.id, id, instance.attempt);
            FailedInstance { blocks: blocked.len(), blocked_nodes: nodes.len(), output, instance }
        })
        .collect();
    failures.sort_by_key(|failed| Reverse(failed.blocks));
    failures.truncate(SHOWN);
    let critical = match view.run.outcome() {
        Some(_) => Vec::new(),
        None => view.critical(),
    };
    RunDetail {
        summary: view.summary(),
        failures,
        running,
        held: held.into_iter().map(&mut instance).collect(),
        critical: critical.into_iter().take(SHOWN).map(|id| view.name(id).to_owned()).collect(),
        holds: view.run.held().map(|id| view.name(id).to_owned()).collect(),
        paused_by: view.run.paused_by().map(str::to_owned),
        undone_by: None,
    }
}

fn last_lines(root: &std::path::Path, run: &str, step: StepId, attempt: u32) -> Vec<String> {
    let Ok(Some(bytes)) = folder::read_output(root, run, step, attempt) else { return Vec::new() };
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<&str> = text.lines().collect();
    let from = lines.len().saturating_sub(LAST_LINES);
    lines[from..].iter().map(|line| (*line).to_owned()).collect()
}

#[derive(Debug, Deserialize)]
struct InstancesQuery {
    state: Option<String>,
    node: Option<String>,
    after: Option<u32>,
    limit: Option<usize>,
}

async fn instances(
    State(deploy): State<Deploy>,
    Path(run): Path<String>,
    Query(query): Query<InstancesQuery>,
) -> Result<Json<InstanceList>, Failure> {
    let limit = limit(query.limit, PAGE, MAX_PAGE)?;
    let id = deploy.resolve(&run).await?;
    let list = deploy.blocking(move |runs| {
        let view = runs.view(&id)?;
        let mut of = attempts_of(&view.records);
        let states: Option<BTreeSet<&str>> =
            query.state.as_deref().map(|states| states.split(',').collect());
        let fits = |id: &StepId| {
            query.after.is_none_or(|after| id.0 > after)
                && states.as_ref().is_none_or(|states| states.contains(word(view.run.state(*id))))
                && query.node.as_deref().is_none_or(|node| view.node(*id) == Some(node))
        };
        let mut found = view.steps().map(|(id, _)| id).filter(fits);
        let page: Vec<StepId> = found.by_ref().take(limit).collect();
        let next = found.next().and(page.last().map(|last| last.0));
        let items =
            page.into_iter().map(|id| view.instance(id, of.remove(&id).unwrap_or_default()));
        Ok(InstanceList { items: items.collect(), next })
    });
    list.await.map(Json)
}

/// The one instance that was meant.
pub(super) fn one(view: &View, given: &str) -> Result<StepId, Failure> {
    match view.find(given)[..] {
        [id] => Ok(id),
        [] => Err(no_instance(view, given)),
        ref several => {
            let names: Vec<&str> = several.iter().take(5).map(|id| view.name(*id)).collect();
            let detail = format!("`{given}` is on more than one node: {}", names.join(", "));
            Err(Failure::new(Code::Ambiguous, detail).with_remedy("name one of them"))
        }
    }
}

pub(super) fn no_instance(view: &View, given: &str) -> Failure {
    let detail = format!("instance `{given}` not found in the run");
    let names = view.steps().map(|(id, _)| view.name(id));
    let remedy = match hoist_chassis::extract::nearest(given, names) {
        Some(name) => format!("did you mean `{name}`?"),
        None => "`hoist deploy show RUN -o wide` lists all of them".to_owned(),
    };
    Failure::new(Code::NotFound, detail).with_remedy(remedy)
}

async fn output(
    State(deploy): State<Deploy>,
    Path((run, instance, attempt)): Path<(String, String, u32)>,
) -> Result<Response, Failure> {
    let id = deploy.resolve(&run).await?;
    let read = deploy.blocking(move |runs| {
        let view = runs.view(&id)?;
        let step = match one(&view, &instance) {
            Ok(step) => step,
            Err(failure) => return Ok(Err(failure)),
        };
        let last = view.run.attempt(step);
        if !(1..=last).contains(&attempt) {
            let detail = format!("{}: attempt {attempt} does not exist", view.name(step));
            let remedy = format!("the instance had {last} attempts");
            return Ok(Err(Failure::new(Code::NotFound, detail).with_remedy(remedy)));
        }
        let bytes = folder::read_output(runs.root(), &id, step, attempt);
        let bytes = bytes.map_err(FolderError::from)?;
        let hosts = view.file.hosts;
        let is_remote = !runs.is_known(&id) || hosts.iter().any(|host| *host != folder::host());
        Ok(Ok((bytes, is_remote.then_some(hosts))))
    });
    let (bytes, elsewhere) = read.await??;
    match bytes {
        Some(bytes) => {
            let plain = [
                (header::CONTENT_TYPE, "text/plain; charset=utf-8"),
                (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
            ];
            Ok((plain, bytes).into_response())
        }
        None => Err(no_output(elsewhere)),
    }
}

/// No output on this host; `elsewhere` has the hosts of all controllers that drove the run.
fn no_output(elsewhere: Option<Vec<String>>) -> Failure {
    let Some(hosts) = elsewhere else {
        return Failure::new(Code::NotFound, "this attempt printed nothing");
    };
    let detail = "output of the attempt is not on this controller; it is on the controller that ran \
                  the attempt";
    let remedy = match hosts.as_slice() {
        [] => "ask that controller".to_owned(),
        hosts => format!("ask the controller on host `{}`", hosts.join("` or `")),
    };
    Failure::new(Code::NotFound, detail).with_remedy(remedy)
}

async fn explain(
    State(deploy): State<Deploy>,
    Path((run, instance)): Path<(String, String)>,
) -> Result<Json<InstanceExplanation>, Failure> {
    let id = deploy.resolve(&run).await?;
    let explained = deploy.blocking(move |runs| {
        let view = runs.view(&id)?;
        Ok(one(&view, &instance).map(|step| view.explain(step)))
    });
    explained.await?.map(Json)
}

async fn plan(State(deploy): State<Deploy>, Path(run): Path<String>) -> Result<Response, Failure> {
    let id = deploy.resolve(&run).await?;
    deploy.blocking(move |runs| Ok(json(runs.view(&id)?.plan.draft()))).await
}

#[derive(Debug, Deserialize)]
struct GraphQuery {
    format: Option<String>,
    #[serde(default)]
    instances: Flag,
    on: Option<String>,
    around: Option<String>,
    depth: Option<usize>,
    #[serde(default)]
    force: Flag,
}

async fn graph(
    State(deploy): State<Deploy>,
    Path(run): Path<String>,
    Query(query): Query<GraphQuery>,
) -> Result<Response, Failure> {
    const NEAR: usize = 2;
    let id = deploy.resolve(&run).await?;
    let seen = deploy.blocking(move |runs| runs.view(&id)).await?;
    let on = query.on.as_deref();
    let view = graph::View {
        instances: query.instances.0,
        on: on.map(|nodes| nodes.split(',').map(str::to_owned).collect()),
        around: query.around,
        depth: query.depth.unwrap_or(NEAR),
        all_edges: false,
        force: query.force.0,
    };
    let state = |step| seen.run.state(step);
    let drawing = Drawing::of(seen.plan.draft(), Some(&state), &view)
        .map_err(|error| Failure::new(Code::BadParameter, error.to_string()))?;
    let (media_type, text) = match query.format.as_deref().unwrap_or("svg") {
        "svg" => ("image/svg+xml", drawing.svg()),
        "dot" => ("text/vnd.graphviz", drawing.dot()),
        "mermaid" => ("text/plain; charset=utf-8", drawing.mermaid()),
        "json" => ("application/json", drawing.json().to_string()),
        other => {
            let detail = format!("`format` is svg, dot, mermaid or json, not `{other}`");
            return Err(Failure::new(Code::BadParameter, detail));
        }
    };
    Ok(([(header::CONTENT_TYPE, media_type)], text).into_response())
}
