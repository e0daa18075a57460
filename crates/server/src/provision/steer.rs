//! Operators' commands on running and ended nodes: retry, abort and undo.
//!
//! Does not belong here: the start of runs (`start`), and the transitions that agents report
//! (`agent`).

use std::collections::{BTreeSet, HashMap, HashSet};

use axum::extract::State;
use hoist_api::admin::Verb;
use hoist_api::provision::{NodeRunState, ProvisionOptions, RunNode, SteerRequest, SteerResult};
use hoist_api::{Code, Problem};
use hoist_diagnostic::Diagnostic;
use hoist_metadata::provision::Enrollment;
use hoist_model::{Name, Node, NodeId};
use hoist_store::Op;

use super::backup::{self, BackupRecord};
use super::erasure::is_unerased;
use super::record::{NodeRecord, RunRecord, StoredValue, UndoState};
use super::runs::{NodeChange, Runs, TRIES, Wrote};
use super::stuck::{GoesOn, may_go_on, told as told_key};
use super::{BootChange, Provision, WRITE, decide, sight};
use crate::enrollment;
use hoist_chassis::audit::Draft;
use hoist_chassis::auth::AuditContext;
use hoist_chassis::extract::{Json, Path};
use hoist_chassis::failure::Failure;
use hoist_chassis::principal::Principal;
use hoist_chassis::route::Route;

/// Nodes that can be named.
const MAX_NODES: usize = 10_000;
/// Nodes whose earlier disk content is shown.
const MAX_TOLD: usize = 20;

pub(super) fn routes() -> Vec<Route<Provision>> {
    vec![
        Route::post("/provision/v1/runs/{run}/retry", WRITE, retry)
            .summary("Retry failed and aborted nodes")
            .takes::<SteerRequest>()
            .gives::<SteerResult>(200)
            .selective(),
        Route::post("/provision/v1/runs/{run}/abort", WRITE, abort)
            .summary("Abort a run: start no further node, and stop active ones where that is safe")
            .takes::<SteerRequest>()
            .gives::<SteerResult>(200)
            .selective(),
        Route::post("/provision/v1/runs/{run}/undo", WRITE, undo)
            .summary("Undo a run: end it, restore disks where possible, and boot nodes as before")
            .takes::<SteerRequest>()
            .gives::<SteerResult>(200)
            .selective(),
    ]
}

async fn retry(
    state: State<Provision>,
    principal: Principal,
    audit: AuditContext,
    path: Path<String>,
    body: Json<SteerRequest>,
) -> Result<Json<SteerResult>, Failure> {
    SteerCall { state, principal, audit, path, body }.carry_out(SteerCommand::Retry).await
}

async fn abort(
    state: State<Provision>,
    principal: Principal,
    audit: AuditContext,
    path: Path<String>,
    body: Json<SteerRequest>,
) -> Result<Json<SteerResult>, Failure> {
    SteerCall { state, principal, audit, path, body }.carry_out(SteerCommand::Abort).await
}

async fn undo(
    state: State<Provision>,
    principal: Principal,
    audit: AuditContext,
    path: Path<String>,
    body: Json<SteerRequest>,
) -> Result<Json<SteerResult>, Failure> {
    SteerCall { state, principal, audit, path, body }.carry_out(SteerCommand::Undo).await
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SteerCommand {
    Retry,
    Abort,
    Undo,
}

/// A request to retry, abort or undo.
struct SteerCall {
    state: State<Provision>,
    principal: Principal,
    audit: AuditContext,
    path: Path<String>,
    body: Json<SteerRequest>,
}

impl SteerCall {
    async fn carry_out(self, command: SteerCommand) -> Result<Json<SteerResult>, Failure> {
        let Self { state: State(provision), principal, audit, path: Path(run), body } = self;
        let Json(request) = body;
        let runs = &provision.runs;
        if request.nodes.len() > MAX_NODES {
            let detail = format!("there are more than {MAX_NODES} nodes");
            return Err(Failure::new(Code::InvalidBody, detail).with_remedy("name the run alone"));
        }
        for _ in 0..TRIES {
            let header = runs.header(&run).await?.ok_or_else(|| no_such_run(&run))?;
            let nodes = chosen(runs, &header.value, &principal, &request).await?;
            let (nodes, elsewhere) = latest(runs, command, nodes).await?;
            let backups = match command {
                SteerCommand::Undo if !request.boot_only => runs.backup_records().await?,
                _ => Vec::new(),
            };
            let how = &header.value.how;
            let boot_only = request.boot_only;
            let enrollments = if command == SteerCommand::Retry {
                runs.enrollments().await?
            } else {
                HashMap::new()
            };
            let backups = &backups;
            let enrollments = &enrollments;
            let keys = &request.keys;
            let case = Case { command, how, boot_only, backups, enrollments, keys };
            let Steps { mut changes, mut notes } = steps(runs, nodes, &case)?;
            for change in changes.iter_mut().filter(|change| is_installed_now(change)) {
                change.more.extend(runs.installed_by(how, &change.now).await?);
            }
            let is_undo = |change: &&NodeChange| change.now.undo.is_some() || change.now.undo_next;
            let written = changes.iter().filter(is_undo).count();
            notes.extend(elsewhere);
            notes.extend(told(runs, &changes).await?);
            let needs_affects = command == SteerCommand::Undo
                && runs.registry().needs_confirmation(&runs.roster(), written);
            let names: Vec<Name> =
                changes.iter().map(|change| change.now.shown.node.clone()).collect();
            let steered = SteerResult {
                run: header.value.run.clone(),
                dry_run: request.dry_run,
                nodes: names,
                notes,
                needs_affects,
            };
            if request.dry_run {
                audit.nothing_written();
                return Ok(Json(steered));
            }
            let count = steered.nodes.len();
            let other = request.affects.is_some_and(|said| said != count);
            if other || needs_affects && request.affects.is_none() {
                let detail = format!("this affects {count} nodes");
                return Err(Failure::new(Code::AffectsTooMany, detail)
                    .with_remedy(format!("if that is what you want, say `--affects {count}`")));
            }
            let next = RunRecord {
                aborted: command != SteerCommand::Retry
                    && (request.nodes.is_empty() || header.value.aborted),
                over: false,
                counts: None,
                ..header.value.clone()
            };
            let draft = Draft { object: format!("run/{}", header.value.run), ..audit.draft() };
            let wrote = runs.write(draft, changes, Some((&header, &next))).await?;
            if wrote == Wrote::Done {
                let word = match command {
                    SteerCommand::Retry => "provision.retried",
                    SteerCommand::Abort => "provision.abort",
                    SteerCommand::Undo => "provision.undone",
                };
                let by = principal.who().to_string();
                let told = serde_json::json!({"nodes": steered.nodes, "by": by});
                runs.tell(word, &steered.run, told);
                runs.advance(&steered.run).await?;
                return Ok(Json(steered));
            }
        }
        Err(Failure::new(Code::Busy, "others write the same again and again")
            .with_remedy("try again"))
    }
}

/// The nodes of the run that are meant; all of them have to be within reach.
async fn chosen(
    runs: &Runs,
    run: &RunRecord,
    principal: &Principal,
    request: &SteerRequest,
) -> Result<Vec<StoredValue<NodeRecord>>, Failure> {
    let roster = runs.roster();
    let sight = sight(principal, Verb::Write, &roster);
    let mut nodes = runs.nodes(&run.run).await?;
    let out_of_reach = |node: &StoredValue<NodeRecord>| match roster.by_id(node.value.shown.id) {
        Some(node) => !sight.reaches(&roster, node),
        None => !sight.is_all(),
    };
    if !sight.is_all() && nodes.iter().all(out_of_reach) {
        return Err(no_such_run(&run.run));
    }
    if !request.nodes.is_empty() {
        // One out of reach is not in the run, as far as the caller can tell.
        nodes.retain(|node| !out_of_reach(node));
        let known: HashSet<&Name> = nodes.iter().map(|node| &node.value.shown.node).collect();
        if let Some(other) = request.nodes.iter().find(|name| !known.contains(name)) {
            let detail = format!("node `{other}` is not in run {}", run.run);
            return Err(Failure::new(Code::NotFound, detail));
        }
        let named: HashSet<&Name> = request.nodes.iter().collect();
        nodes.retain(|node| named.contains(&node.value.shown.node));
    }
    if nodes.iter().any(out_of_reach) {
        return Err(no_such_run(&run.run));
    }
    Ok(nodes)
}

/// Who was in another run since is left to that one, and named.
async fn latest(
    runs: &Runs,
    command: SteerCommand,
    nodes: Vec<StoredValue<NodeRecord>>,
) -> Result<(Vec<StoredValue<NodeRecord>>, Vec<String>), Failure> {
    let mut here = Vec::new();
    let mut notes = Vec::new();
    let lasts = runs.lasts().await?;
    for node in nodes {
        let RunNode { node: name, id, run, .. } = &node.value.shown;
        match lasts.get(id).filter(|last| last.value.run != *run && command != SteerCommand::Abort)
        {
            Some(last) => notes.push(format!("{name}: it was in run {} since", last.value.run)),
            None => here.push(node),
        }
    }
    Ok((here, notes))
}

/// A request with the records it applies to.
struct Case<'a> {
    command: SteerCommand,
    how: &'a ProvisionOptions,
    boot_only: bool,
    backups: &'a [StoredValue<BackupRecord>],
    /// The enrollments of nodes that are started again.
    enrollments: &'a HashMap<NodeId, Enrollment>,
    /// Keys that people have named.
    keys: &'a [String],
}

struct Steps {
    changes: Vec<NodeChange>,
    notes: Vec<String>,
}

fn steps(
    runs: &Runs,
    nodes: Vec<StoredValue<NodeRecord>>,
    case: &Case<'_>,
) -> Result<Steps, Failure> {
    let roster = runs.roster();
    let mut changes = Vec::new();
    let mut notes = Vec::new();
    let mut unnamed = Vec::new();
    let kept: BTreeSet<(&str, NodeId)> =
        case.backups.iter().map(|kept| (kept.value.run.as_str(), kept.value.node)).collect();
    for was in nodes {
        let RunNode { node: name, id, run, changed, state, .. } = was.value.shown.clone();
        let node = roster.by_id(id).cloned();
        let is_written = changed || kept.contains(&(run.as_str(), id));
        let works = state == NodeRunState::Working;
        let changed = match case.command {
            SteerCommand::Retry => match retried(runs, was, node.as_deref(), case, &mut notes)? {
                RetryOutcome::As(changed) => changed,
                RetryOutcome::Unnamed(diagnostic) => {
                    unnamed.push(diagnostic);
                    None
                }
            },
            SteerCommand::Abort => aborted(runs, was, false).map(Box::new),
            // Erased data cannot be restored.
            SteerCommand::Undo if case.how.retire && (is_unerased(&was.value) || is_written) => {
                notes.push(format!("{name}: erased disks cannot be restored; nothing to undo"));
                None
            }
            SteerCommand::Undo if !case.boot_only && !case.how.retire && (is_written || works) => {
                undone(runs, was, node.as_deref(), case.how, &mut notes)?.map(Box::new)
            }
            SteerCommand::Undo => {
                if is_written || works {
                    notes.push(format!("{name}: data already written to its disks stays"));
                }
                aborted(runs, was, true).map(Box::new)
            }
        };
        changes.extend(changed.map(|changed| *changed));
    }
    // Of a whole run, the others go on.
    if unnamed.is_empty() || !changes.is_empty() {
        notes.extend(unnamed.iter().map(|diagnostic| {
            let hint = diagnostic.hint.as_deref().unwrap_or_default();
            format!(
                "{}: {}; the node is skipped until a key is named: {hint}",
                diagnostic.at, diagnostic.message
            )
        }));
        return Ok(Steps { changes, notes });
    }
    let detail = format!("another key came with the token of {} nodes", unnamed.len());
    let mut problem = Problem::new(Code::KeyNotNamed, detail);
    problem.remedy = Some(
        "compare with the screen of the machine, then name its key with `--key FINGERPRINT`, or \
         accept none of the keys with `--key none`"
            .to_owned(),
    );
    problem.errors = unnamed;
    Err(problem.into())
}

/// Whether an operator accepts a system that has not reported that it is up.
fn is_installed_now(change: &NodeChange) -> bool {
    let was_starting = change.was.value.shown.state == NodeRunState::Starting;
    was_starting && (change.now.shown.state == NodeRunState::Done || change.now.undo.is_some())
}

/// Requests that the agent restores the node's disks: a working agent when it has ended, otherwise
/// the agent of the next boot.
fn undone(
    runs: &Runs,
    was: StoredValue<NodeRecord>,
    node: Option<&Node>,
    how: &ProvisionOptions,
    notes: &mut Vec<String>,
) -> Result<Option<NodeChange>, Failure> {
    let state = was.value.shown.state;
    let is_silent = runs.is_silent(&was.value);
    let is_given = was.value.undo.is_some() && state.is_active() || was.value.undo_next;
    let is_under_way = is_given && !is_silent;
    let Some(node) = node.filter(|_| !is_under_way && state != NodeRunState::Undone) else {
        return Ok(None);
    };
    if node.is_protected() {
        return Err(protected(node));
    }
    if state == NodeRunState::Working && !is_silent {
        let mut next = was.value.clone();
        (next.abort, next.undo_next) = (true, true);
        return Ok(Some(NodeChange::new(was, next)));
    }
    if let Some(why) = decide::obstacle(node) {
        notes.push(format!("{}: {why}; its disks stay as they are", node.name));
        return Ok(None);
    }
    let boot = runs.roster().boot_state(node.id).map(|state| state.as_ref().clone());
    // An earlier undo recorded the node's state already.
    let before = was.value.undo.clone();
    let state = without_undo(state);
    let mut changed = runs.enroll(was, node, how);
    changed.now.undo = before.or(Some(UndoState { state, boot }));
    changed.now.undo_next = false;
    changed.now.shown.undo = true;
    Ok(Some(changed))
}

/// State of a node with written disks if they are not restored: a node that should be retried is
/// never complete.
fn without_undo(state: NodeRunState) -> NodeRunState {
    match state {
        NodeRunState::Starting => NodeRunState::Done,
        NodeRunState::Waiting
        | NodeRunState::Pending
        | NodeRunState::Booting
        | NodeRunState::Working => NodeRunState::Failed,
        ended => ended,
    }
}

/// Notes for the operator before disks are restored.
async fn told(runs: &Runs, changes: &[NodeChange]) -> Result<Vec<String>, Failure> {
    let mut notes = Vec::new();
    let undone =
        |change: &&NodeChange| change.now.undo.is_some() && change.was.value.undo.is_none();
    for change in changes.iter().filter(undone).take(MAX_TOLD) {
        let RunNode { node, id, run, .. } = &change.now.shown;
        let kept = runs.backups(run, *id).await?;
        if kept.is_empty() {
            notes.push(format!(
                "{node}: the controller has no backup; only backups on its disks can be restored"
            ));
        }
        for taken in kept.iter().filter_map(backup::taken) {
            let disk = &taken.disk;
            let kernel = &taken.kernel_name;
            let lost = hoist_provision::backup::would_be_lost(&taken);
            notes.push(if lost.is_empty() {
                format!("{node}: disk {disk} ({kernel}) held no data that the run may overwrite")
            } else {
                format!(
                    "{node}: disk {disk} ({kernel}) held {}; if a step has started, this data is \
                     overwritten, and the agent refuses the undo",
                    lost.join(", ")
                )
            });
        }
        notes.push(format!(
            "{node}: the data that the run wrote is lost; the machine must boot from the network"
        ));
    }
    Ok(notes)
}

pub(super) fn protected(node: &Node) -> Failure {
    let detail = format!("node `{}` is protected", node.name);
    Failure::new(Code::Protected, detail)
        .with_remedy(format!("`hoist node protect --off {}` first", node.name))
}

/// Queues the node again with a new token. A running attempt continues unless it is stuck.
fn retried(
    runs: &Runs,
    was: StoredValue<NodeRecord>,
    node: Option<&Node>,
    case: &Case<'_>,
    notes: &mut Vec<String>,
) -> Result<RetryOutcome, Failure> {
    let state = was.value.shown.state;
    let Some(node) = node else { return Ok(RetryOutcome::As(None)) };
    let is_stuck = state.is_active() && runs.stuck(&was.value, node).is_some();
    let ended = matches!(state, NodeRunState::Failed | NodeRunState::Aborted);
    if !ended && !is_stuck {
        if state.is_active() {
            notes.push(format!("{}: it is {state}, and is not disturbed", node.name));
        }
        return Ok(RetryOutcome::As(None));
    }
    if node.is_protected() {
        return Err(protected(node));
    }
    if let Some(why) = decide::obstacle(node) {
        notes.push(format!("{}: {why}, and waits", node.name));
    }
    let mut next = was.value.clone();
    next.shown.state = NodeRunState::Waiting;
    next.end_session();
    (next.shown.note, next.up_by) = (None, None);
    next.earlier = next.earlier.filter(|_| !is_stuck);
    if let Some(enrollment) = case.enrollments.get(&node.id).filter(|_| is_stuck) {
        let Some(GoesOn(earlier)) = may_go_on(enrollment, case.keys) else {
            return Ok(RetryOutcome::Unnamed(unnamed(node, enrollment)));
        };
        let goes_on = earlier.as_ref().and_then(|earlier| earlier.claimed);
        if !enrollment.quarantined.is_empty() {
            let accepted = match goes_on {
                Some(key) => format!("key {} is accepted", told_key(&key)),
                None => "no key is accepted; boot the machine from the network again".to_owned(),
            };
            notes.push(format!("{}: {accepted}", node.name));
        }
        next.earlier = earlier;
    }
    let end_enrollment = Op::Delete(enrollment::keys::enrollment(next.shown.id));
    Ok(RetryOutcome::As(Some(Box::new(NodeChange {
        more: vec![end_enrollment],
        ..NodeChange::new(was, next)
    }))))
}

/// The change of a node by a retry.
enum RetryOutcome {
    As(Option<Box<NodeChange>>),
    /// The operator must name the node's key.
    Unnamed(Diagnostic),
}

fn unnamed(node: &Node, enrollment: &Enrollment) -> Diagnostic {
    let enrolled = enrollment.claimed.iter().map(|key| format!("{} has the token", told_key(key)));
    let others = enrollment.quarantined.iter().map(|key| format!("{} came later", told_key(key)));
    let keys: Vec<String> = enrolled.chain(others).collect();
    let hint = match enrollment.quarantined.as_slice() {
        [other] => format!("`hoist provision retry {} --key {}`", node.name, other.by),
        _ => format!("`hoist provision retry {} --key FINGERPRINT`", node.name),
    };
    let message = format!("keys: {}", keys.join("; "));
    Diagnostic { at: format!("Node {}", node.name), message, hint: Some(hint) }
}

/// Ends nodes that have not started at once; a working agent is told to stop and reports when it
/// has.
fn aborted(runs: &Runs, was: StoredValue<NodeRecord>, undo: bool) -> Option<NodeChange> {
    let mut next = was.value.clone();
    let before = || BootChange::Before(Box::new(was.value.before.clone()));
    // A node with unfinished disks is held.
    let left = || {
        let run = &was.value.shown.run;
        let why = format!("provisioning aborted in run {run}, see hoist provision status");
        if was.value.is_touched() && !undo { BootChange::Hold(why) } else { before() }
    };
    let end_enrollment = Op::Delete(enrollment::keys::enrollment(next.shown.id));
    if let Some(undo) = next.undo.take() {
        return not_restored(runs, was, next, undo, end_enrollment);
    }
    match next.shown.state {
        NodeRunState::Waiting => {
            next.become_state(NodeRunState::Aborted, runs.now());
            let roster = runs.roster();
            let state = roster.boot_state(next.shown.id);
            // It was begun before, and its command has not come again.
            let is_begun = state.is_some_and(|state| state.provisioning.is_some());
            let boot = is_begun.then(left);
            Some(NodeChange { boot, ..NodeChange::new(was, next) })
        }
        // A silent agent is treated as dead.
        state if is_begun(state) || runs.is_silent(&next) => {
            next.become_state(NodeRunState::Aborted, runs.now());
            next.end_session();
            let boot = Some(left());
            Some(NodeChange { was, now: next, boot, more: vec![end_enrollment] })
        }
        NodeRunState::Working if !next.abort => {
            next.abort = true;
            Some(NodeChange::new(was, next))
        }
        NodeRunState::Starting if !undo => {
            next.become_state(NodeRunState::Done, runs.now());
            next.up_by = None;
            Some(NodeChange::new(was, next))
        }
        NodeRunState::Starting | NodeRunState::Done | NodeRunState::Failed if undo => {
            next.become_state(NodeRunState::Aborted, runs.now());
            next.up_by = None;
            let boot = Some(before());
            Some(NodeChange { was, now: next, boot, more: vec![end_enrollment] })
        }
        _ => None,
    }
}

/// It is to boot the agent, or boots it.
fn is_begun(state: NodeRunState) -> bool {
    matches!(state, NodeRunState::Pending | NodeRunState::Booting)
}

/// Cancels a pending undo; an agent that is already restoring finishes.
fn not_restored(
    runs: &Runs,
    was: StoredValue<NodeRecord>,
    mut next: NodeRecord,
    undo: UndoState,
    end_enrollment: Op,
) -> Option<NodeChange> {
    if runs.is_silent(&next) {
        next.become_state(NodeRunState::Failed, runs.now());
        next.end_session();
        next.undo = Some(undo);
        let why = format!("undo ended in run {}, see hoist provision status", next.shown.run);
        let boot = Some(BootChange::Hold(why));
        return Some(NodeChange { was, now: next, boot, more: vec![end_enrollment] });
    }
    if !is_begun(next.shown.state) {
        return None;
    }
    next.become_state(undo.state, runs.now());
    next.end_session();
    next.shown.undo = false;
    let boot = Some(undo.boot_as_it_was(&next.shown.run));
    Some(NodeChange { was, now: next, boot, more: vec![end_enrollment] })
}

pub(super) fn no_such_run(run: &str) -> Failure {
    let run: String = run.chars().take(64).collect();
    Failure::new(Code::NotFound, format!("provisioning run `{run}` not found"))
        .with_remedy("`hoist provision status` shows the runs")
}
