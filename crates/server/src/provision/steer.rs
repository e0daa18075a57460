//! Trying again, ending, and taking back.

use std::collections::BTreeSet;

use axum::extract::State;
use hoist_api::Code;
use hoist_api::admin::Verb;
use hoist_api::provision::{How, NodeRunState, RunNode, SteerRequest, Steered};
use hoist_inventory::record;
use hoist_model::{Name, Node, NodeId};
use hoist_store::Op;

use super::backup::{self, BackupRecord};
use super::record::{Kept, NodeRecord, RunRecord, Undoing};
use super::runs::{Changed, Runs, Wrote};
use super::{BootChange, Provision, WRITE, decide, sight};
use crate::audit::Draft;
use crate::auth::AuditContext;
use crate::extract::{Json, Path};
use crate::failure::Failure;
use crate::principal::Principal;
use crate::route::Route;

/// Nodes that can be named.
const MAX_NODES: usize = 10_000;
/// Nodes of which it is told what their disks held.
const MAX_TOLD: usize = 20;
/// How often somebody else may be faster.
const TRIES: usize = 16;

pub(super) fn routes() -> Vec<Route<Provision>> {
    vec![
        Route::post("/provision/v1/runs/{run}/retry", WRITE, retry)
            .summary("Begin nodes that failed or were ended once more")
            .takes::<SteerRequest>()
            .gives::<Steered>(200)
            .selective(),
        Route::post("/provision/v1/runs/{run}/abort", WRITE, abort)
            .summary("Begin no more, and end what is under way where that is safe")
            .takes::<SteerRequest>()
            .gives::<Steered>(200)
            .selective(),
        Route::post("/provision/v1/runs/{run}/undo", WRITE, undo)
            .summary("End it, put disks back as far as they can be, and let nodes boot as before")
            .takes::<SteerRequest>()
            .gives::<Steered>(200)
            .selective(),
    ]
}

async fn retry(
    state: State<Provision>,
    principal: Principal,
    audit: AuditContext,
    path: Path<String>,
    body: Json<SteerRequest>,
) -> Result<Json<Steered>, Failure> {
    Wish { state, principal, audit, path, body }.carry_out(Turn::Retry).await
}

async fn abort(
    state: State<Provision>,
    principal: Principal,
    audit: AuditContext,
    path: Path<String>,
    body: Json<SteerRequest>,
) -> Result<Json<Steered>, Failure> {
    Wish { state, principal, audit, path, body }.carry_out(Turn::Abort).await
}

async fn undo(
    state: State<Provision>,
    principal: Principal,
    audit: AuditContext,
    path: Path<String>,
    body: Json<SteerRequest>,
) -> Result<Json<Steered>, Failure> {
    Wish { state, principal, audit, path, body }.carry_out(Turn::Undo).await
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Turn {
    Retry,
    Abort,
    Undo,
}

/// What somebody wants of a run.
struct Wish {
    state: State<Provision>,
    principal: Principal,
    audit: AuditContext,
    path: Path<String>,
    body: Json<SteerRequest>,
}

impl Wish {
    async fn carry_out(self, turn: Turn) -> Result<Json<Steered>, Failure> {
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
            let (nodes, elsewhere) = latest(runs, turn, nodes).await?;
            let backups = match turn {
                Turn::Undo if !request.boot_only => runs.backup_records().await?,
                _ => Vec::new(),
            };
            let (how, only) = (&header.value.how, request.boot_only);
            let Steps { changes, mut notes } = steps(runs, turn, nodes, how, only, &backups)?;
            let is_put_back = |change: &&Changed| change.now.undo.is_some() || change.now.undo_next;
            let written = changes.iter().filter(is_put_back).count();
            notes.extend(elsewhere);
            notes.extend(told(runs, &changes).await?);
            let needs_affects =
                turn == Turn::Undo && runs.registry().brake_acts(&runs.roster(), written);
            let names: Vec<Name> =
                changes.iter().map(|change| change.now.shown.node.clone()).collect();
            let steered = Steered {
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
                aborted: turn != Turn::Retry && (request.nodes.is_empty() || header.value.aborted),
                over: false,
                ..header.value.clone()
            };
            let draft = Draft { object: format!("run/{}", header.value.run), ..audit.draft() };
            let wrote = runs.write(draft, changes, Some((&header, &next))).await?;
            if wrote == Wrote::Done {
                let word = match turn {
                    Turn::Retry => "provision.retried",
                    Turn::Abort => "provision.abort",
                    Turn::Undo => "provision.undone",
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
) -> Result<Vec<Kept<NodeRecord>>, Failure> {
    let roster = runs.roster();
    let sight = sight(principal, Verb::Write, &roster);
    let mut nodes = runs.nodes(&run.run).await?;
    if !request.nodes.is_empty() {
        let known = |name: &Name| nodes.iter().any(|node| node.value.shown.node == *name);
        if let Some(stranger) = request.nodes.iter().find(|name| !known(name)) {
            let detail = format!("node `{stranger}` is not in run {}", run.run);
            return Err(Failure::new(Code::NotFound, detail));
        }
        nodes.retain(|node| request.nodes.contains(&node.value.shown.node));
    }
    let out_of_reach = |node: &Kept<NodeRecord>| match roster.by_id(node.value.shown.id) {
        Some(node) => !sight.reaches(&roster, node),
        None => !sight.is_all(),
    };
    if nodes.iter().any(out_of_reach) {
        return Err(no_such_run(&run.run));
    }
    Ok(nodes)
}

/// Who was in another run since is left to that one, and named.
async fn latest(
    runs: &Runs,
    turn: Turn,
    nodes: Vec<Kept<NodeRecord>>,
) -> Result<(Vec<Kept<NodeRecord>>, Vec<String>), Failure> {
    let (mut here, mut notes) = (Vec::new(), Vec::new());
    let lasts = runs.lasts().await?;
    for node in nodes {
        let RunNode { node: name, id, run, .. } = &node.value.shown;
        match lasts.get(id).filter(|last| last.value.run != *run && turn != Turn::Abort) {
            Some(last) => notes.push(format!("{name}: it was in run {} since", last.value.run)),
            None => here.push(node),
        }
    }
    Ok((here, notes))
}

struct Steps {
    changes: Vec<Changed>,
    notes: Vec<String>,
}

fn steps(
    runs: &Runs,
    turn: Turn,
    nodes: Vec<Kept<NodeRecord>>,
    how: &How,
    boot_only: bool,
    backups: &[Kept<BackupRecord>],
) -> Result<Steps, Failure> {
    let roster = runs.roster();
    let (mut changes, mut notes) = (Vec::new(), Vec::new());
    let kept: BTreeSet<(&str, NodeId)> =
        backups.iter().map(|kept| (kept.value.run.as_str(), kept.value.node)).collect();
    for was in nodes {
        let RunNode { node: name, id, run, changed, state, .. } = was.value.shown.clone();
        let node = roster.by_id(id).cloned();
        let is_written = changed || kept.contains(&(run.as_str(), id));
        let works = state == NodeRunState::Working;
        let changed = match turn {
            Turn::Retry => retried(was, node.as_deref(), &mut notes)?,
            Turn::Abort => aborted(runs, was, false),
            Turn::Undo if !boot_only && !how.retire && (is_written || works) => {
                undone(runs, was, node.as_deref(), &mut notes)?
            }
            Turn::Undo => {
                if is_written || works {
                    notes.push(format!("{name}: what was written to its disks stays there"));
                }
                aborted(runs, was, true)
            }
        };
        changes.extend(changed);
    }
    Ok(Steps { changes, notes })
}

/// Its agent puts its disks back: the one that works, when it has ended, or the one that it boots.
fn undone(
    runs: &Runs,
    was: Kept<NodeRecord>,
    node: Option<&Node>,
    notes: &mut Vec<String>,
) -> Result<Option<Changed>, Failure> {
    let state = was.value.shown.state;
    let is_under_way = was.value.undo.is_some() && state.is_active() || was.value.undo_next;
    let Some(node) = node.filter(|_| !is_under_way && state != NodeRunState::Undone) else {
        return Ok(None);
    };
    if node.is_protected() {
        return Err(protected(node));
    }
    if state == NodeRunState::Working {
        let mut next = was.value.clone();
        (next.abort, next.undo_next) = (true, true);
        return Ok(Some(Changed::new(was, next)));
    }
    if let Some(why) = decide::obstacle(node) {
        notes.push(format!("{}: {why}; its disks stay as they are", node.name));
        return Ok(None);
    }
    let boot = runs.roster().boot_state(node.id).map(|state| state.as_ref().clone());
    let state = without_undo(state);
    let mut changed = runs.armed(was, node);
    changed.now.undo = Some(Undoing { state, boot });
    changed.now.shown.undo = true;
    Ok(Some(changed))
}

/// What a node with something on its disks is, if they are not put back: who was to be begun once
/// more is complete by no means.
fn without_undo(state: NodeRunState) -> NodeRunState {
    match state {
        NodeRunState::Starting => NodeRunState::Done,
        NodeRunState::Waiting | NodeRunState::Armed | NodeRunState::Booting => NodeRunState::Failed,
        ended => ended,
    }
}

/// What people should know before disks are put back.
async fn told(runs: &Runs, changes: &[Changed]) -> Result<Vec<String>, Failure> {
    let mut notes = Vec::new();
    let undone = |change: &&Changed| change.now.undo.is_some() && change.was.value.undo.is_none();
    for change in changes.iter().filter(undone).take(MAX_TOLD) {
        let RunNode { node, id, run, .. } = &change.now.shown;
        let kept = runs.backups(run, *id).await?;
        if kept.is_empty() {
            notes.push(format!("{node}: only its disks can say what they held; no copy is here"));
        }
        for taken in kept.iter().filter_map(backup::taken) {
            let (disk, kernel) = (&taken.disk, &taken.kernel_name);
            let lost = hoist_provision::pipeline::would_be_lost(&taken);
            notes.push(if lost.is_empty() {
                format!(
                    "{node}: disk {disk} ({kernel}) held nothing that the run may have written over"
                )
            } else {
                format!(
                    "{node}: disk {disk} ({kernel}) held {}; if a step has begun, that is written \
                     over, and the agent refuses",
                    lost.join(", ")
                )
            });
        }
        notes.push(format!(
            "{node}: what the run put on its disks is lost; the machine has to start from the network"
        ));
    }
    Ok(notes)
}

fn protected(node: &Node) -> Failure {
    let detail = format!("node `{}` is protected", node.name);
    Failure::new(Code::Protected, detail)
        .with_remedy(format!("`hoist node protect --off {}` first", node.name))
}

/// Its turn comes again, with a token of its own. What is under way is not disturbed, unless a second
/// key has come for it: then the machine was started anew, and waits.
fn retried(
    was: Kept<NodeRecord>,
    node: Option<&Node>,
    notes: &mut Vec<String>,
) -> Result<Option<Changed>, Failure> {
    let shown = &was.value.shown;
    let stuck = shown.state.is_active() && shown.note.is_some();
    let ended = matches!(shown.state, NodeRunState::Failed | NodeRunState::Aborted);
    if !ended && !stuck {
        return Ok(None);
    }
    let Some(node) = node else { return Ok(None) };
    if node.is_protected() {
        return Err(protected(node));
    }
    if let Some(why) = decide::obstacle(node) {
        notes.push(format!("{}: {why}, and waits", node.name));
    }
    let mut next = was.value.clone();
    next.shown.state = NodeRunState::Waiting;
    (next.shown.note, next.session, next.up_by) = (None, None, None);
    let disarmed = Op::Delete(record::arming_key(next.shown.id));
    Ok(Some(Changed { more: vec![disarmed], ..Changed::new(was, next) }))
}

/// What was not begun is ended at once; an agent that works is told to end, and says when it has.
fn aborted(runs: &Runs, was: Kept<NodeRecord>, undo: bool) -> Option<Changed> {
    let mut next = was.value.clone();
    let before = || BootChange::Before(Box::new(was.value.before.clone()));
    let disarmed = Op::Delete(record::arming_key(next.shown.id));
    if let Some(undo) = next.undo.take() {
        return not_put_back(runs, was, next, &undo, disarmed);
    }
    match next.shown.state {
        NodeRunState::Waiting => {
            next.become_state(NodeRunState::Aborted, runs.now());
            Some(Changed::new(was, next))
        }
        NodeRunState::Armed | NodeRunState::Booting => {
            next.become_state(NodeRunState::Aborted, runs.now());
            next.session = None;
            let boot = Some(before());
            Some(Changed { was, now: next, boot, more: vec![disarmed] })
        }
        NodeRunState::Working if !next.abort => {
            next.abort = true;
            Some(Changed::new(was, next))
        }
        NodeRunState::Starting if !undo => {
            next.become_state(NodeRunState::Done, runs.now());
            next.up_by = None;
            Some(Changed::new(was, next))
        }
        NodeRunState::Starting | NodeRunState::Done | NodeRunState::Failed if undo => {
            next.become_state(NodeRunState::Aborted, runs.now());
            next.up_by = None;
            let boot = Some(before());
            Some(Changed { was, now: next, boot, more: vec![disarmed] })
        }
        _ => None,
    }
}

/// What was to be put back stays as it is; an agent that is at it comes to its end.
fn not_put_back(
    runs: &Runs,
    was: Kept<NodeRecord>,
    mut next: NodeRecord,
    undo: &Undoing,
    disarmed: Op,
) -> Option<Changed> {
    if !matches!(next.shown.state, NodeRunState::Armed | NodeRunState::Booting) {
        return None;
    }
    next.become_state(undo.state, runs.now());
    (next.session, next.shown.undo) = (None, false);
    let boot = Some(undo.boot_as_it_was(&next.shown.run));
    Some(Changed { was, now: next, boot, more: vec![disarmed] })
}

pub(super) fn no_such_run(run: &str) -> Failure {
    let run: String = run.chars().take(64).collect();
    Failure::new(Code::NotFound, format!("there is no run `{run}` of provisioning"))
        .with_remedy("`hoist provision status` shows the runs")
}
