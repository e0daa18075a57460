//! Trying again, ending, and taking back.

use std::collections::{BTreeSet, HashMap, HashSet};

use axum::extract::State;
use hoist_api::admin::Verb;
use hoist_api::provision::{How, NodeRunState, RunNode, SteerRequest, Steered};
use hoist_api::{Code, Fault, Problem};
use hoist_inventory::record;
use hoist_metadata::provision::Arming;
use hoist_model::{Name, Node, NodeId};
use hoist_store::Op;

use super::backup::{self, BackupRecord};
use super::erasure::is_unerased;
use super::record::{Kept, NodeRecord, RunRecord, Undoing};
use super::runs::{Changed, Runs, TRIES, Wrote};
use super::stuck::{GoesOn, may_go_on, told as told_key};
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
            let (how, boot_only) = (&header.value.how, request.boot_only);
            let armings = if turn == Turn::Retry { runs.armings().await? } else { HashMap::new() };
            let (backups, armings, keys) = (&backups, &armings, &request.keys);
            let case = Case { turn, how, boot_only, backups, armings, keys };
            let Steps { mut changes, mut notes } = steps(runs, nodes, &case)?;
            for change in changes.iter_mut().filter(|change| is_installed_now(change)) {
                change.more.extend(runs.installed_by(how, &change.now).await?);
            }
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
                counts: None,
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
    let out_of_reach = |node: &Kept<NodeRecord>| match roster.by_id(node.value.shown.id) {
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
        if let Some(stranger) = request.nodes.iter().find(|name| !known.contains(name)) {
            let detail = format!("node `{stranger}` is not in run {}", run.run);
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

/// What is wanted, and what is known for it.
struct Case<'a> {
    turn: Turn,
    how: &'a How,
    boot_only: bool,
    backups: &'a [Kept<BackupRecord>],
    /// What nodes are armed with, for those that are begun once more.
    armings: &'a HashMap<NodeId, Arming>,
    /// Keys that people have named.
    keys: &'a [String],
}

struct Steps {
    changes: Vec<Changed>,
    notes: Vec<String>,
}

fn steps(runs: &Runs, nodes: Vec<Kept<NodeRecord>>, case: &Case<'_>) -> Result<Steps, Failure> {
    let roster = runs.roster();
    let (mut changes, mut notes, mut unnamed) = (Vec::new(), Vec::new(), Vec::new());
    let kept: BTreeSet<(&str, NodeId)> =
        case.backups.iter().map(|kept| (kept.value.run.as_str(), kept.value.node)).collect();
    for was in nodes {
        let RunNode { node: name, id, run, changed, state, .. } = was.value.shown.clone();
        let node = roster.by_id(id).cloned();
        let is_written = changed || kept.contains(&(run.as_str(), id));
        let works = state == NodeRunState::Working;
        let changed = match case.turn {
            Turn::Retry => match retried(runs, was, node.as_deref(), case, &mut notes)? {
                RetryOutcome::As(changed) => changed,
                RetryOutcome::Unnamed(fault) => {
                    unnamed.push(fault);
                    None
                }
            },
            Turn::Abort => aborted(runs, was, false).map(Box::new),
            // Nothing that was to be erased is given back.
            Turn::Undo if case.how.retire && (is_unerased(&was.value) || is_written) => {
                notes.push(format!("{name}: what is erased does not come back; it stays as it is"));
                None
            }
            Turn::Undo if !case.boot_only && !case.how.retire && (is_written || works) => {
                undone(runs, was, node.as_deref(), case.how, &mut notes)?.map(Box::new)
            }
            Turn::Undo => {
                if is_written || works {
                    notes.push(format!("{name}: what was written to its disks stays there"));
                }
                aborted(runs, was, true).map(Box::new)
            }
        };
        changes.extend(changed.map(|changed| *changed));
    }
    // Of a whole run, the others go on.
    if unnamed.is_empty() || !changes.is_empty() {
        notes.extend(unnamed.iter().map(|fault| {
            let hint = fault.hint.as_deref().unwrap_or_default();
            format!("{}: {}; it is left out until one is named: {hint}", fault.at, fault.message)
        }));
        return Ok(Steps { changes, notes });
    }
    let detail = format!("another key came with the token of {} nodes", unnamed.len());
    let mut problem = Problem::new(Code::KeyNotNamed, detail);
    problem.remedy = Some(
        "compare with the screen of the machine, then name the key that is its own with `--key \
         FINGERPRINT`, or `--key none` to let none of them go on"
            .to_owned(),
    );
    problem.errors = unnamed;
    Err(problem.into())
}

/// Whether people take a system for good that has not said that it is up.
fn is_installed_now(change: &Changed) -> bool {
    let was_starting = change.was.value.shown.state == NodeRunState::Starting;
    was_starting && (change.now.shown.state == NodeRunState::Done || change.now.undo.is_some())
}

/// Its agent puts its disks back: the one that works, when it has ended, or the one that it boots.
fn undone(
    runs: &Runs,
    was: Kept<NodeRecord>,
    node: Option<&Node>,
    how: &How,
    notes: &mut Vec<String>,
) -> Result<Option<Changed>, Failure> {
    let state = was.value.shown.state;
    let is_silent = runs.is_silent(&was.value);
    let is_ordered = was.value.undo.is_some() && state.is_active() || was.value.undo_next;
    let is_under_way = is_ordered && !is_silent;
    let Some(node) = node.filter(|_| !is_under_way && state != NodeRunState::Undone) else {
        return Ok(None);
    };
    if node.is_protected() {
        return Err(protected(node));
    }
    if state == NodeRunState::Working && !is_silent {
        let mut next = was.value.clone();
        (next.abort, next.undo_next) = (true, true);
        return Ok(Some(Changed::new(was, next)));
    }
    if let Some(why) = decide::obstacle(node) {
        notes.push(format!("{}: {why}; its disks stay as they are", node.name));
        return Ok(None);
    }
    let boot = runs.roster().boot_state(node.id).map(|state| state.as_ref().clone());
    // One that was at it before knows what the node was.
    let before = was.value.undo.clone();
    let state = without_undo(state);
    let mut changed = runs.armed(was, node, how);
    changed.now.undo = before.or(Some(Undoing { state, boot }));
    changed.now.undo_next = false;
    changed.now.shown.undo = true;
    Ok(Some(changed))
}

/// What a node with something on its disks is, if they are not put back: who was to be begun once
/// more is complete by no means.
fn without_undo(state: NodeRunState) -> NodeRunState {
    match state {
        NodeRunState::Starting => NodeRunState::Done,
        NodeRunState::Waiting
        | NodeRunState::Armed
        | NodeRunState::Booting
        | NodeRunState::Working => NodeRunState::Failed,
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

pub(super) fn protected(node: &Node) -> Failure {
    let detail = format!("node `{}` is protected", node.name);
    Failure::new(Code::Protected, detail)
        .with_remedy(format!("`hoist node protect --off {}` first", node.name))
}

/// Its turn comes again, with a token of its own. What is under way is not disturbed, unless nothing
/// more happens with it by itself.
fn retried(
    runs: &Runs,
    was: Kept<NodeRecord>,
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
    if let Some(arming) = case.armings.get(&node.id).filter(|_| is_stuck) {
        let Some(GoesOn(earlier)) = may_go_on(arming, case.keys) else {
            return Ok(RetryOutcome::Unnamed(unnamed(node, arming)));
        };
        let goes_on = earlier.as_ref().and_then(|earlier| earlier.redeemed);
        if !arming.quarantined.is_empty() {
            let who = goes_on.map(|key| format!("key {} goes on", told_key(&key)));
            let nobody = || "no key goes on; start it from the network again".to_owned();
            notes.push(format!("{}: {}", node.name, who.unwrap_or_else(nobody)));
        }
        next.earlier = earlier;
    }
    let disarmed = Op::Delete(record::arming_key(next.shown.id));
    Ok(RetryOutcome::As(Some(Box::new(Changed {
        more: vec![disarmed],
        ..Changed::new(was, next)
    }))))
}

/// What becomes of a node that is begun once more.
enum RetryOutcome {
    As(Option<Box<Changed>>),
    /// People have to say which key is the node's.
    Unnamed(Fault),
}

fn unnamed(node: &Node, arming: &Arming) -> Fault {
    let enrolled = arming.redeemed.iter().map(|key| format!("{} has the token", told_key(key)));
    let others = arming.quarantined.iter().map(|key| format!("{} came later", told_key(key)));
    let keys: Vec<String> = enrolled.chain(others).collect();
    let hint = match arming.quarantined.as_slice() {
        [other] => format!("`hoist provision retry {} --key {}`", node.name, other.by),
        _ => format!("`hoist provision retry {} --key FINGERPRINT`", node.name),
    };
    let message = format!("keys: {}", keys.join("; "));
    Fault { at: format!("Node {}", node.name), message, hint: Some(hint) }
}

/// What was not begun is ended at once; an agent that works is told to end, and says when it has.
fn aborted(runs: &Runs, was: Kept<NodeRecord>, undo: bool) -> Option<Changed> {
    let mut next = was.value.clone();
    let before = || BootChange::Before(Box::new(was.value.before.clone()));
    // Whoever has something unfinished on its disks waits for people.
    let left = || {
        let run = &was.value.shown.run;
        let why = format!("provisioning aborted in run {run}, see hoist provision status");
        if was.value.is_touched() && !undo { BootChange::Hold(why) } else { before() }
    };
    let disarmed = Op::Delete(record::arming_key(next.shown.id));
    if let Some(undo) = next.undo.take() {
        return not_put_back(runs, was, next, undo, disarmed);
    }
    match next.shown.state {
        NodeRunState::Waiting => {
            next.become_state(NodeRunState::Aborted, runs.now());
            let roster = runs.roster();
            let state = roster.boot_state(next.shown.id);
            // It was begun before, and its turn has not come again.
            let is_begun = state.is_some_and(|state| state.provisioning.is_some());
            let boot = is_begun.then(left);
            Some(Changed { boot, ..Changed::new(was, next) })
        }
        // Whoever was at work and says nothing is not there any more.
        state if is_begun(state) || runs.is_silent(&next) => {
            next.become_state(NodeRunState::Aborted, runs.now());
            next.end_session();
            let boot = Some(left());
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

/// It is to boot the agent, or boots it.
fn is_begun(state: NodeRunState) -> bool {
    matches!(state, NodeRunState::Armed | NodeRunState::Booting)
}

/// What was to be put back stays as it is; an agent that is at it comes to its end.
fn not_put_back(
    runs: &Runs,
    was: Kept<NodeRecord>,
    mut next: NodeRecord,
    undo: Undoing,
    disarmed: Op,
) -> Option<Changed> {
    if runs.is_silent(&next) {
        next.become_state(NodeRunState::Failed, runs.now());
        next.end_session();
        next.undo = Some(undo);
        let why = format!("undo ended in run {}, see hoist provision status", next.shown.run);
        let boot = Some(BootChange::Hold(why));
        return Some(Changed { was, now: next, boot, more: vec![disarmed] });
    }
    if !is_begun(next.shown.state) {
        return None;
    }
    next.become_state(undo.state, runs.now());
    next.end_session();
    next.shown.undo = false;
    let boot = Some(undo.boot_as_it_was(&next.shown.run));
    Some(Changed { was, now: next, boot, more: vec![disarmed] })
}

pub(super) fn no_such_run(run: &str) -> Failure {
    let run: String = run.chars().take(64).collect();
    Failure::new(Code::NotFound, format!("there is no run `{run}` of provisioning"))
        .with_remedy("`hoist provision status` shows the runs")
}
