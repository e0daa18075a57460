//! What operators say to a run.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use hoist_api::Code;
use hoist_api::deploy::{RunCommandRequest, RunCommandResult, RunState};
use hoist_engine::record::Outcome;
use hoist_engine::run::{State as StepState, StepEnd};
use hoist_engine::{Event, StepId};
use serde::{Deserialize, Serialize};

use super::concurrent::ConcurrentRun;
use super::queries::no_instance;
use super::runs::Runs;
use super::view::{View, word};
use super::{Deploy, WRITE};
use hoist_chassis::auth::AuditContext;
use hoist_chassis::extract::{Flag, Json, Path, Query};
use hoist_chassis::failure::Failure;
use hoist_chassis::route::Route;

const MAX_COMMAND: usize = 1024 * 1024;

/// Instances that a run can be told to stop after, so that they fit in one record.
const MAX_AFTER: usize = 100_000;

/// How long an answer waits until the command is in the journal.
const HEARD: Duration = Duration::from_secs(5);

pub(super) fn routes() -> Vec<Route<Deploy>> {
    macro_rules! commands {
        ($($word:literal: $summary:literal,)*) => {
            vec![$(
                Route::post(
                    concat!("/deploy/v1/runs/{run}/", $word),
                    WRITE,
                    |deploy, run, query, audit, body| command($word, deploy, run, query, audit, body),
                )
                .summary($summary)
                .flag("dry_run", "change nothing, return the affected instances")
                .body_limit(MAX_COMMAND)
                .takes::<RunCommandRequest>()
                .gives::<RunCommandResult>(200),
            )*]
        };
    }
    commands! {
        "stop": "Stop a run: start nothing new; `now` also ends running instances, `after` waits for a barrier or task",
        "resume": "Resume a run that was stopped, paused or failed",
        "pause": "Start nothing new, in all of the run or on nodes, until it is unpaused",
        "unpause": "Unpause a run or nodes",
        "hold": "Hold instances: they do not start until they are released",
        "release": "Release held instances",
        "retry": "Retry instances that failed or whose outcome is unknown",
        "mark": "Set the outcome of an instance that failed or whose outcome is unknown",
    }
}

#[derive(Debug, Deserialize)]
struct CommandQuery {
    #[serde(default)]
    dry_run: Flag,
}

async fn command(
    word: &'static str,
    State(deploy): State<Deploy>,
    Path(run): Path<String>,
    Query(query): Query<CommandQuery>,
    audit: AuditContext,
    Json(request): Json<RunCommandRequest>,
) -> Result<Json<RunCommandResult>, Failure> {
    let dry_run = query.dry_run.0;
    if dry_run {
        audit.nothing_written();
    }
    let id = deploy.resolve(&run).await?;
    let given = GivenCommand { word: word.to_owned(), request, by: audit.draft().who };
    let prepared = deploy.prepare(&id, &given).await?;
    let view = prepared.view.clone();
    let concurrent = prepared.concurrent.clone();
    let instances = prepared.told.about.iter().map(|id| view.name(*id).to_owned()).collect();
    if !dry_run {
        let of = id.clone();
        if deploy.blocking(move |runs| Ok(runs.is_active_elsewhere(&of)?)).await? {
            deploy.send(&id, given).await?;
        } else {
            deploy.carry_out(prepared).await?;
        }
        deploy.note(&audit, format!("run/{id}: {word}")).await;
    }
    let summary = deploy.blocking(move |runs| match runs.summary(&id) {
        Some(summary) => Ok(summary),
        None => Ok(runs.view(&id)?.summary()),
    });
    let run = summary.await.unwrap_or_else(|_| view.summary());
    let gaps = Vec::new();
    let unsure = Vec::new();
    Ok(Json(RunCommandResult { run, instances, gaps, unsure, concurrent, dry_run }))
}

/// A command to a run, and the caller.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct GivenCommand {
    word: String,
    #[serde(rename = "order")]
    request: RunCommandRequest,
    by: String,
}

/// A command that has an effect in the current state of its run.
#[derive(Debug)]
struct PreparedCommand {
    told: RunCommand,
    view: View,
    concurrent: Vec<String>,
    allow_concurrent: bool,
}

impl Deploy {
    async fn prepare(&self, id: &str, given: &GivenCommand) -> Result<PreparedCommand, Failure> {
        let id = id.to_owned();
        let GivenCommand { word, request, by } = given.clone();
        let prepared = self.blocking(move |runs| {
            let view = runs.view_to_go_on(&id)?;
            let told = events(&view, &word, &request, &by);
            let told = told.and_then(|told| has_effect(&view, &told).map(|()| told));
            let told = match told {
                Ok(told) => told,
                Err(refused) => return Ok(Err(refused)),
            };
            let concurrent = runs.concurrent_with_events(&id, &view.run, &told.events)?;
            let concurrent = concurrent_texts(&concurrent);
            let allow_concurrent = request.allow_concurrent;
            Ok(Ok(PreparedCommand { told, view, concurrent, allow_concurrent }))
        });
        prepared.await?
    }

    /// Tells a run that no other controller drives, and waits until its journal has the command.
    async fn carry_out(&self, prepared: PreparedCommand) -> Result<(), Failure> {
        let PreparedCommand { told, view, allow_concurrent, .. } = prepared;
        let before = view.records.len();
        let events = Arc::new(told.events);
        let said = Arc::clone(&events);
        let tell = move |runs: &Runs| runs.tell(&view.file.id, &said, allow_concurrent);
        if let Some(entry) = self.blocking(tell).await? {
            let heard = tokio::time::timeout(HEARD, entry.heard(&events, before)).await;
            if heard != Ok(true) {
                return Err(unheard(heard.is_err()));
            }
        }
        Ok(())
    }

    /// Carries out a command that another controller was given.
    pub(super) async fn obey(&self, id: &str, given: &GivenCommand) -> Result<(), Failure> {
        let prepared = self.prepare(id, given).await?;
        self.carry_out(prepared).await
    }
}

/// Runs on the same nodes, a sentence each.
pub(super) fn concurrent_texts(concurrent: &[ConcurrentRun]) -> Vec<String> {
    concurrent.iter().map(ToString::to_string).collect()
}

/// The run rejected the command, or did not accept it in time.
fn unheard(is_late: bool) -> Failure {
    let detail = if is_late {
        "the run has not taken that yet; it may still"
    } else {
        "the run ended before it could take that"
    };
    Failure::new(Code::Conflict, detail).with_remedy("`hoist deploy show` says where it stands")
}

/// The events of a command, and the instances that it affects.
#[derive(Debug)]
struct RunCommand {
    events: Vec<Event>,
    about: Vec<StepId>,
}

impl RunCommand {
    fn run(event: Event) -> Self {
        Self { events: vec![event], about: Vec::new() }
    }
}

/// The meaning of a command in the current state of the run.
fn events(
    view: &View,
    word: &str,
    request: &RunCommandRequest,
    by: &str,
) -> Result<RunCommand, Failure> {
    let by = by.to_owned();
    let refuse = |detail: &str, remedy: &str| {
        Err(Failure::new(Code::Conflict, detail.to_owned()).with_remedy(remedy.to_owned()))
    };
    let state = view.state();
    match word {
        "resume" if state == RunState::Ended => what_is_left(view, by),
        // The earlier commands count, and the resume adds none.
        "resume" if state == RunState::Broken => {
            Ok(RunCommand { events: Vec::new(), about: Vec::new() })
        }
        _ if state == RunState::Broken => {
            refuse("no controller drives the run", "`hoist deploy resume` continues it")
        }
        "resume" if state == RunState::Stopping => Ok(RunCommand::run(Event::Resume { by })),
        "resume" if state == RunState::Paused => {
            Ok(RunCommand::run(Event::Pause { subject: None, paused: false, by }))
        }
        "resume" => refuse("the run is under way", "`hoist deploy watch` shows it"),
        _ if state == RunState::Ended && !matches!(word, "mark" | "retry") => {
            refuse("the run has ended", "`hoist deploy resume` continues it")
        }
        "stop" => {
            let Some(after) = &request.after else {
                return Ok(RunCommand::run(Event::Stop { now: request.now, by }));
            };
            let about = view.find(after);
            if about.is_empty() {
                return Err(no_instance(view, after));
            }
            if about.len() > MAX_AFTER {
                let detail = format!("`{after}` is on {} nodes", about.len());
                let remedy = format!("name a barrier; at most {MAX_AFTER} instances fit");
                return refuse(&detail, &remedy);
            }
            let vertices = about.clone();
            Ok(RunCommand { events: vec![Event::StopAfter { vertices, by }], about })
        }
        "hold" | "release" => {
            let about = about(view, request)?;
            let held = word == "hold";
            let hold = |id: &StepId| Event::Hold { step: *id, held, by: by.clone() };
            Ok(RunCommand { events: about.iter().map(hold).collect(), about })
        }
        "retry" => {
            let about = about(view, request)?;
            let ended_badly = |state| {
                matches!(
                    state,
                    StepState::Unknown
                        | StepState::Ended(
                            StepEnd::Failed(_) | StepEnd::Interrupted | StepEnd::Undone
                        )
                )
            };
            expect(
                view,
                &about,
                ended_badly,
                "only failed, unknown and undone instances can be retried",
            )?;
            let retry = |id: &StepId| Event::Retry { step: *id, by: by.clone() };
            Ok(RunCommand { events: about.iter().map(retry).collect(), about })
        }
        "pause" | "unpause" => {
            let paused = word == "pause";
            let pause = |subject| Event::Pause { subject, paused, by: by.clone() };
            let events = paused_subjects(view, request)?.into_iter().map(pause).collect();
            Ok(RunCommand { events, about: Vec::new() })
        }
        "mark" => {
            let Some(good) = request.good else {
                return Err(Failure::new(Code::InvalidBody, "`good` says how the instance ended"));
            };
            let about = about(view, request)?;
            let open =
                |state| matches!(state, StepState::Unknown | StepState::Ended(StepEnd::Failed(_)));
            expect(view, &about, open, "only what failed or is unknown can be marked")?;
            let mark = |id: &StepId| Event::Mark { step: *id, good, by: by.clone() };
            Ok(RunCommand { events: about.iter().map(mark).collect(), about })
        }
        _ => Err(Failure::new(Code::UnknownRoute, format!("unknown command `{word}` for a run"))
            .with_remedy("`/openapi.json` lists the commands")),
    }
}

/// An ended run retries every instance that did not succeed.
fn what_is_left(view: &View, by: String) -> Result<RunCommand, Failure> {
    let good = |id: StepId| match view.run.state(id) {
        StepState::Ended(ended) => ended.is_good(),
        _ => false,
    };
    let left = view.steps().map(|(id, _)| id).filter(|id| !good(*id)).collect::<Vec<_>>();
    // Instances marked as succeeded since change the outcome.
    let was_good = matches!(view.run.outcome(), Some(Outcome::Succeeded));
    if left.is_empty() && was_good {
        return Err(Failure::new(Code::Conflict, "nothing is left to do in the run")
            .with_remedy("start another run"));
    }
    Ok(RunCommand { events: vec![Event::Resume { by }], about: left })
}

/// Refuses events that the run would reject.
fn has_effect(view: &View, told: &RunCommand) -> Result<(), Failure> {
    let refusal = told.events.iter().find_map(|event| view.run.takes(event).err());
    let Some(refusal) = refusal.map(|refusal| refusal.to_string()) else { return Ok(()) };
    Err(match refusal.split_once("; ") {
        Some((detail, remedy)) => Failure::new(Code::Conflict, detail).with_remedy(remedy),
        None => Failure::new(Code::Conflict, refusal),
    })
}

/// The instances of a command, all in a state that the command is for.
fn expect(
    view: &View,
    about: &[StepId],
    fits: impl Fn(StepState) -> bool,
    remedy: &str,
) -> Result<(), Failure> {
    let Some(id) = about.iter().find(|id| !fits(view.run.state(**id))) else { return Ok(()) };
    let detail = format!("{} is {}", view.name(*id), word(view.run.state(*id)));
    Err(Failure::new(Code::Conflict, detail).with_remedy(remedy.to_owned()))
}

fn subject(view: &View, node: &str) -> Result<u32, Failure> {
    let subjects = &view.plan.draft().subjects;
    let at = subjects.iter().position(|subject| subject == node);
    at.and_then(|at| u32::try_from(at).ok()).ok_or_else(|| {
        let failure = Failure::new(Code::NotFound, format!("no step of the run is on `{node}`"));
        match hoist_chassis::extract::nearest(node, subjects.iter().map(String::as_str)) {
            Some(name) => failure.with_remedy(format!("did you mean `{name}`?")),
            None => failure,
        }
    })
}

/// The subjects of a pause; `None` is the whole run.
fn paused_subjects(view: &View, request: &RunCommandRequest) -> Result<Vec<Option<u32>>, Failure> {
    match (&request.node, &request.role) {
        (None, None) => Ok(vec![None]),
        (Some(node), None) => Ok(vec![Some(subject(view, node)?)]),
        (None, Some(role)) => Ok(members(view, role)?.into_iter().map(Some).collect()),
        (Some(_), Some(_)) => {
            Err(Failure::new(Code::InvalidBody, "`node` and `role` are both there")
                .with_remedy("name the one or the other"))
        }
    }
}

/// The nodes on which the run does something for a role.
fn members(view: &View, role: &str) -> Result<BTreeSet<u32>, Failure> {
    let failure_domains = &view.plan.draft().failure_domains;
    // The canaries of a role are counted by themselves.
    let canaries = format!("{role} canaries");
    let is_meant = |at: u32| {
        let name = &failure_domains[at as usize].name;
        name == role || *name == canaries
    };
    if !failure_domains.iter().any(|failure_domain| failure_domain.name == role) {
        let failure = Failure::new(Code::NotFound, format!("the run has no role `{role}`"));
        let names = failure_domains.iter().map(|failure_domain| failure_domain.name.as_str());
        return Err(match hoist_chassis::extract::nearest(role, names) {
            Some(name) => failure.with_remedy(format!("did you mean `{name}`?")),
            None => failure,
        });
    }
    let of_role = view.steps().filter(|(_, step)| step.failure_domain.is_some_and(is_meant));
    let members: BTreeSet<u32> = of_role.filter_map(|(_, step)| step.subject).collect();
    if members.is_empty() {
        return Err(Failure::new(
            Code::NotFound,
            format!("no step of the run is of role `{role}`"),
        ));
    }
    Ok(members)
}

/// The instances that a command names.
pub(super) fn about(view: &View, request: &RunCommandRequest) -> Result<Vec<StepId>, Failure> {
    if request.instances.is_empty() {
        return Err(Failure::new(Code::InvalidBody, "no instance is named")
            .with_remedy("name at least one in `instances`"));
    }
    let mut about = Vec::new();
    let mut seen = BTreeSet::new();
    for given in &request.instances {
        match view.find(given) {
            found if found.is_empty() => return Err(no_instance(view, given)),
            found => about.extend(found.into_iter().filter(|id| seen.insert(*id))),
        }
    }
    Ok(about)
}
