//! The agent's routes: jobs, events and reports. An agent proves its identity once, with the token
//! of its enrollment and its own key; the session it gets is valid for this node in this attempt of
//! this run.
//!
//! Guarantees that a report is durable before the agent gets its next instruction.
//!
//! Does not belong here: the content of jobs (`job`, `document`) and decisions about runs
//! (`decide`).

use axum::extract::{FromRequest, Request, State};
use axum::response::{IntoResponse, Response};
use hoist_api::Code;
use hoist_api::provision::{
    Directive, DocumentsRequest, Event, EventsAnswer, EventsRequest, MAX_EVENTS,
    MAX_EVENTS_REQUEST, MAX_JOB_REQUEST, MAX_REPORT, NextAction, NodeDiagnostic, NodeRunState,
    Outcome, Phase, Progress, ProvisionOptions, ProvisioningJob, ProvisioningJobRequest, Report,
    ReportAnswer, RootDisk,
};
use hoist_diagnostic::Diagnostic;
use hoist_model::{BootState, NodeId, ProvisionProfileSpec};
use hoist_store::Op;
use http::{HeaderMap, HeaderValue, header};
use jiff::{SignedDuration, Timestamp};
use serde_json::Value;
use subtle::ConstantTimeEq as _;

use super::backup;
use super::erasure;
use super::keys;
use super::record::{FactsRecord, NodeRecord, StoredValue, UndoState};
use super::runs::{NodeChange, print};
use super::stuck::kept_for_later;
use super::{BootChange, Provision};
use crate::enrollment;
use crate::metadata::EnrolledNode;
use hoist_chassis::audit::Draft;
use hoist_chassis::auth::AuditContext;
use hoist_chassis::extract::{Json, Path};
use hoist_chassis::failure::Failure;
use hoist_chassis::peer::Peer;
use hoist_chassis::route::{AccessClass, Route};

/// Largest facts that are kept: a record of every store takes them.
const MAX_FACTS: usize = 768 * 1024;
/// Longest texts of an event, and of a diagnostic.
const MAX_TEXT: usize = 4096;
/// Longest name of an action or a step: people have it in a table.
const MAX_NAME: usize = 256;
/// Diagnostics of one report.
const MAX_DIAGNOSTICS: usize = 100;
/// Remedy on the screen of a restarted machine.
const LET_IN: &str = "if this machine was started anew, `hoist provision status` shows its key, and \
                      `hoist provision retry --key` lets it in";
/// Note for a node that was not installed before and got only some actions.
const PART: &str = "it was not installed before, and a part of a system is none: it boots as before; \
                    if it is whole, `hoist boot set` lets it boot its disk";
/// How often a node is begun by itself.
const MAX_ATTEMPTS: u32 = 3;

/// What proves an agent's further requests.
pub(super) const SESSION: &str = "Proof: the session that the agent got with its job, over TLS";

pub(super) fn routes() -> Vec<Route<Provision>> {
    vec![
        Route::post("/provision/v1/agent/job", AccessClass::Proof, job)
            .reason("Proof: the provision token and the signature of the agent's key, over TLS")
            .summary("Request the provisioning job of a node; over TLS only")
            .takes::<ProvisioningJobRequest>()
            .body_limit(MAX_JOB_REQUEST)
            .gives::<ProvisioningJob>(200),
        Route::post("/provision/v1/agent/runs/{run}/events", AccessClass::Proof, events)
            .reason(SESSION)
            .summary("Report an agent's progress, with its session as bearer token")
            .takes::<EventsRequest>()
            .body_limit(MAX_EVENTS_REQUEST)
            .gives::<EventsAnswer>(200),
        Route::post("/provision/v1/agent/runs/{run}/report", AccessClass::Proof, report)
            .reason(SESSION)
            .summary("Report the result of an agent; durable before the answer")
            .takes::<Report>()
            .body_limit(MAX_REPORT)
            .gives::<ReportAnswer>(200),
    ]
}

async fn job(
    State(provision): State<Provision>,
    peer: Peer,
    audit: AuditContext,
    request: Request,
) -> Result<Response, Failure> {
    let host = request.headers().get(header::HOST).and_then(|host| host.to_str().ok());
    let base = provision.artifact_base(host);
    let from = provision.metadata.client(&peer, request.headers());
    provision.metadata.check_secure(&peer, from)?;
    let Json(asked) = Json::<ProvisioningJobRequest>::from_request(request, &()).await?;
    let ProvisioningJobRequest { node, token, key, signature, facts } = asked;
    let facts = FactsRecord { at: provision.runs.now(), facts };
    if serde_json::to_vec(&facts).map_or(usize::MAX, |text| text.len()) > MAX_FACTS {
        let detail = format!("the facts have more than {MAX_FACTS} bytes");
        return Err(Failure::new(Code::BodyTooLarge, detail));
    }
    let proof = DocumentsRequest { node, token, key, signature };
    let enrolled = match provision.metadata.claim(&proof, from).await {
        Ok(claimed) => claimed,
        Err(locked) => match provision.come_back(&proof, from).await? {
            Some(claimed) => claimed,
            None if locked.is_quarantined => {
                provision.note_second_key(node).await;
                return Err(locked.failure.with_remedy(LET_IN));
            }
            None => {
                let why = provision.why_over(&proof, from).await?;
                return Err(why.unwrap_or(locked.failure));
            }
        },
    };
    let EnrolledNode { roster, node, .. } = &enrolled;
    let draft = Draft { who: format!("node/{}", node.name), ..audit.draft() };
    let record = provision.take_up(roster, node, &facts, &draft).await?;
    let job = provision.job(&enrolled, &record, &base, &draft).await?;
    let no_store = [(header::CACHE_CONTROL, HeaderValue::from_static("no-store"))];
    Ok((no_store, Json(job)).into_response())
}

async fn events(
    State(provision): State<Provision>,
    Path(run): Path<String>,
    peer: Peer,
    audit: AuditContext,
    request: Request,
) -> Result<Json<EventsAnswer>, Failure> {
    let node = provision.session(&run, &peer, request.headers()).await?;
    let Json(EventsRequest { events }) = Json::<EventsRequest>::from_request(request, &()).await?;
    if events.len() > MAX_EVENTS {
        let detail = format!("there are more than {MAX_EVENTS} events");
        return Err(Failure::new(Code::InvalidBody, detail).with_remedy("send them in parts"));
    }
    provision.take_in(node, events, &audit).await
}

async fn report(
    State(provision): State<Provision>,
    Path(run): Path<String>,
    peer: Peer,
    audit: AuditContext,
    request: Request,
) -> Result<Json<ReportAnswer>, Failure> {
    let node = provision.session(&run, &peer, request.headers()).await?;
    let Json(mut report) = Json::<Report>::from_request(request, &()).await?;
    report.problems.truncate(MAX_DIAGNOSTICS);
    report.problems.iter_mut().for_each(shorten_diagnostic);
    report.erased.truncate(erasure::MAX_DISKS);
    report.erased.iter_mut().flat_map(erasure::texts).for_each(shorten);
    report.root.retain(is_known_by);
    report.root.truncate(erasure::MAX_DISKS);
    let draft = Draft { who: format!("node/{}", node.value.shown.node), ..audit.draft() };
    let then = provision.reported(&node.value, &report, &draft).await?;
    Ok(Json(ReportAnswer { then }))
}

/// Listening.
impl Provision {
    /// The node whose session is shown; it is of the last attempt.
    pub(super) async fn session(
        &self,
        run: &str,
        peer: &Peer,
        headers: &HeaderMap,
    ) -> Result<StoredValue<NodeRecord>, Failure> {
        let from = self.metadata.client(peer, headers);
        self.metadata.check_secure(peer, from)?;
        let shown = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        let shown = shown.and_then(|shown| shown.strip_prefix("Bearer ")).unwrap_or_default();
        let refused = || Failure::new(Code::Forbidden, "this session is not good for this run");
        let node: NodeId =
            shown.split_once('.').and_then(|(node, _)| node.parse().ok()).ok_or_else(refused)?;
        // Nothing but letters and digits is in the name of a run.
        let run = keys::run(run).map(|_| run).ok_or_else(refused)?;
        let kept = self.runs.node(run, node).await?.ok_or_else(refused)?;
        let print = print(shown);
        let is_it = |known: &String| bool::from(known.as_bytes().ct_eq(print.as_bytes()));
        if kept.value.session.as_ref().is_some_and(is_it) {
            return Ok(kept);
        }
        if kept.value.over.iter().any(is_it) {
            let name = &kept.value.shown.node;
            let detail = format!(
                "node `{name}`: this attempt is over: the node was restarted or its run ended"
            );
            return Err(Failure::new(Code::AttemptOver, detail));
        }
        Err(refused())
    }

    async fn take_in(
        &self,
        node: StoredValue<NodeRecord>,
        events: Vec<Event>,
        audit: &AuditContext,
    ) -> Result<Json<EventsAnswer>, Failure> {
        let record = &node.value;
        let new = |event: &Event| event.seq > record.seq;
        let events: Vec<Event> = events.into_iter().filter(new).map(shorten_event).collect();
        metrics::counter!("hoist_provision_events_total").increment(events.len() as u64);
        for event in events.iter().filter(|event| event.phase != Phase::Progress) {
            let told = serde_json::json!({"run": record.shown.run, "event": event});
            self.runs.tell_node("provision.step", &record.shown.node, told);
        }
        let last = events.last().map(|event| (event.seq, progress(event, self.runs.now())));
        let works = record.shown.state == NodeRunState::Working;
        let mut directive =
            if record.abort || !works { Directive::Abort } else { Directive::Continue };
        if let Some((seq, progress)) = last.filter(|_| works)
            && self.runs.heard_of(record, &progress)
        {
            directive = self.keep_progress(record, seq, &progress).await?.unwrap_or(directive);
        } else if works && self.runs.is_worth_writing(record) {
            self.keep_life(record).await?;
        }
        // Progress is observed state, not an audited change.
        audit.nothing_written();
        Ok(Json(EventsAnswer { directive }))
    }

    async fn keep_progress(
        &self,
        record: &NodeRecord,
        seq: u64,
        progress: &Progress,
    ) -> Result<Option<Directive>, Failure> {
        let run = &record.shown.run;
        let id = record.shown.id;
        let kept = self.runs.keep(run, id, |node| {
            let works = node.shown.state == NodeRunState::Working && seq > node.seq;
            works.then(|| {
                let mut next = node.clone();
                next.seq = seq;
                next.heard = Some(progress.at);
                next.told_silent = None;
                next.shown.progress = Some(progress.clone());
                next
            })
        });
        Ok(kept.await?.map(|node| if node.abort { Directive::Abort } else { Directive::Continue }))
    }

    /// An agent in a long step says nothing but that it lives.
    async fn keep_life(&self, record: &NodeRecord) -> Result<(), Failure> {
        let heard = Some(self.runs.now());
        let kept = self.runs.keep(&record.shown.run, record.shown.id, |node| {
            let works = node.shown.state == NodeRunState::Working && node.heard < heard;
            works.then(|| NodeRecord { heard, told_silent: None, ..node.clone() })
        });
        kept.await.map(|_| ())
    }

    /// Records the outcome of an attempt. Idempotent: the same report again changes nothing and
    /// gets the same answer.
    pub(super) async fn reported(
        &self,
        node: &NodeRecord,
        report: &Report,
        audit: &Draft,
    ) -> Result<NextAction, Failure> {
        let roster = self.runs.roster();
        let run = &node.shown.run;
        let id = node.shown.id;
        let how = self.runs.header(run).await?.map(|header| header.value.how).unwrap_or_default();
        let given = self.given_to(&roster, node).await?;
        let flow = match node.undo {
            Some(_) => Flow::undoing(),
            None => Flow::of(given.as_ref().map(|given| &given.spec), &how, node),
        };
        let kept = match (report.outcome, &node.undo) {
            (Outcome::Done, Some(_)) => self.runs.uninstalled(node).await?,
            (Outcome::Done, None) if how.retire => Some(Op::Delete(keys::installed(id))),
            // With a phone-home deadline the system counts as installed only after its phone-home.
            (Outcome::Done, None) if flow.up_within.is_none() => {
                let node = NodeRecord { root: report.root.clone(), ..node.clone() };
                self.runs.installed_by(&how, &node).await?
            }
            _ => None,
        };
        let draft = Draft {
            object: format!("node/{}: {:?}", node.shown.node, report.outcome),
            ..audit.clone()
        };
        let session = node.session.clone();
        let enrollment = self.runs.enrollment(id).await?;
        let taken = self.runs.amend(run, id, &draft, |runs, was| {
            let is_of_this = was.value.session == session;
            let works = was.value.shown.state.is_active() && was.value.up_by.is_none();
            if !is_of_this || !works || was.value.shown.state == NodeRunState::Starting {
                return None;
            }
            // Started anew, a machine comes with another key.
            let begun_anew = flow.is_begun_anew(&was.value, report);
            if let Some(node) = roster.by_id(id).filter(|_| begun_anew) {
                let mut changed = runs.enroll(was, node, &how);
                changed.now.shown.problems.clone_from(&report.problems);
                add_to(&mut changed.now, report);
                return Some(changed);
            }
            let mut changed = ended(was, report, &flow, runs.now());
            changed.now.earlier = kept_for_later(changed.now.earlier.as_ref(), enrollment.clone());
            // Without proof of erasure the node keeps its record of the installed system.
            let is_unproven = how.retire && changed.now.shown.state != NodeRunState::Done;
            changed.more.extend(kept.clone().filter(|_| !is_unproven));
            Some(changed)
        });
        let taken = taken.await?;
        let state = taken.as_ref().map_or(NodeRunState::Aborted, |taken| taken.shown.state);
        let undo_follows = node.undo.is_none() && taken.is_some_and(|taken| taken.undo.is_some());
        if undo_follows && state == NodeRunState::Pending {
            return Ok(NextAction::Retry);
        }
        Ok(flow.then(report.outcome, state))
    }
}

/// The profile's settings for the end of a run.
struct Flow {
    end: NextAction,
    again: Again,
    up_within: Option<u32>,
    /// Disks of which it must be known that they are erased, before the node is retired.
    retire: Option<Vec<String>>,
    /// A part of a system on a node that has none: nothing says that there is one afterwards.
    is_part: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Again {
    No,
    /// The same agent asks again.
    Same,
    /// The machine is started anew.
    Reboot,
}

impl Flow {
    fn of(spec: Option<&ProvisionProfileSpec>, how: &ProvisionOptions, node: &NodeRecord) -> Self {
        let was_installed = node.before.as_ref().is_some_and(|before| before.installed.is_some());
        let is_part = !how.only.is_empty() && !how.retire && !was_installed;
        let section = spec.and_then(|spec| spec.document.get("flow"));
        let word = |key: &str| section.and_then(|flow| flow.get(key)).and_then(Value::as_str);
        let end = match word("end") {
            _ if how.retire => NextAction::PowerOff,
            Some("power_off") => NextAction::PowerOff,
            Some("stay") => NextAction::Stay,
            Some("kexec") if !is_part => NextAction::Kexec,
            _ => NextAction::Reboot,
        };
        let again = match word("on_failure") {
            // An operator must look at a failed erasure.
            _ if how.retire => Again::No,
            Some("retry") => Again::Same,
            Some("reboot") => Again::Reboot,
            _ => Again::No,
        };
        let up_within = spec.and_then(|spec| spec.phone_home_within_s);
        let retire = how.retire.then(|| erasure::disks(spec));
        let up_within = up_within.filter(|_| !how.retire && !is_part);
        Self { end, again, up_within, retire, is_part }
    }

    /// Disks that cannot be restored need an operator, regardless of the profile.
    fn undoing() -> Self {
        Self {
            end: NextAction::Reboot,
            again: Again::No,
            up_within: None,
            retire: None,
            is_part: false,
        }
    }

    /// A refusal by a rule is never retried automatically.
    fn tries_again(&self, node: &NodeRecord, report: &Report) -> bool {
        let failed = report.outcome == Outcome::Failed && !node.abort;
        failed && node.shown.attempt < MAX_ATTEMPTS && self.again != Again::No
    }

    fn is_begun_anew(&self, node: &NodeRecord, report: &Report) -> bool {
        self.again == Again::Reboot && self.tries_again(node, report)
    }

    fn then(&self, outcome: Outcome, state: NodeRunState) -> NextAction {
        match (outcome, state) {
            (Outcome::Done, state) if state != NodeRunState::Failed => self.end,
            // Nothing was restored, and the node has a system to boot.
            (Outcome::Refused, NodeRunState::Done) => NextAction::Reboot,
            (_, state) if state.is_over() => NextAction::Stay,
            (_, _) if self.again == Again::Reboot => NextAction::Reboot,
            _ => NextAction::Retry,
        }
    }
}

/// What becomes of a node whose agent has reported.
fn ended(was: StoredValue<NodeRecord>, report: &Report, flow: &Flow, now: Timestamp) -> NodeChange {
    let mut next = was.value.clone();
    let Report { outcome, plan, resumed, problems, receipts, .. } = report;
    next.shown.problems.clone_from(problems);
    next.shown.plan.clone_from(plan);
    next.shown.resumed = *resumed;
    add_to(&mut next, report);
    next.shown.receipts = receipts.clone();
    if next.undo_next {
        // Its enrollment stays: the same key asks again, and puts its disks back.
        (next.undo_next, next.abort) = (false, false);
        // Boot state if nothing is restored.
        let id = next.shown.id;
        let before = || next.before.clone().unwrap_or_else(|| BootState::new(id, "", now));
        let boot = flow.is_part.then(before);
        next.undo = Some(UndoState { state: come_to(*outcome), boot });
        next.shown.undo = true;
        next.shown.attempt += 1;
        next.become_state(NodeRunState::Pending, now);
        return NodeChange::new(was, next);
    }
    if let Some(undo) = next.undo.take() {
        return restored(was, next, undo, *outcome, now);
    }
    let is_reported_done = *outcome == Outcome::Done;
    let unproven = flow.retire.as_ref().filter(|_| is_reported_done);
    let unproven = unproven.and_then(|disks| erasure::unproven(disks, &next.shown.erased));
    let is_done = is_reported_done && unproven.is_none();
    next.shown.problems.extend(unproven);
    let end_enrollment = Op::Delete(enrollment::keys::enrollment(next.shown.id));
    let run = next.shown.run.clone();
    if is_done {
        let up_within = flow.up_within.map(|s| SignedDuration::from_secs(i64::from(s)));
        next.up_by = up_within.and_then(|within| now.checked_add(within).ok());
        let waits = next.up_by.is_some();
        next.become_state(if waits { NodeRunState::Starting } else { NodeRunState::Done }, now);
        next.shown.note = flow.is_part.then(|| PART.to_owned());
        next.root.clone_from(&report.root);
        let mut more = vec![end_enrollment];
        // Nothing of a disk that was erased is kept.
        more.extend(backup::forgotten(next.shown.id).into_iter().filter(|_| flow.retire.is_some()));
        let boot = match flow.retire {
            Some(_) => BootChange::Retired,
            None if flow.is_part => BootChange::Before(Box::new(next.before.clone())),
            None => BootChange::Disk,
        };
        return NodeChange { was, now: next, boot: Some(boot), more };
    }
    if flow.tries_again(&next, report) && flow.again == Again::Same {
        // Its enrollment stays: the same key may ask again.
        next.shown.attempt += 1;
        next.become_state(NodeRunState::Pending, now);
        return NodeChange::new(was, next);
    }
    // Done, and not known to be erased.
    let state = if is_reported_done { NodeRunState::Failed } else { come_to(*outcome) };
    next.become_state(state, now);
    let why = format!("provisioning {state} in run {run}, see hoist provision status");
    NodeChange { was, now: next, boot: Some(BootChange::Hold(why)), more: vec![end_enrollment] }
}

/// Accumulates results of all attempts: a later attempt neither repeats nor reports finished work.
fn add_to(node: &mut NodeRecord, report: &Report) {
    node.given_at = None;
    node.shown.changed |= report.changed;
    node.shown.erased = erasure::of_both(&node.shown.erased, &report.erased);
}

/// State of a node whose agent ended with this outcome.
fn come_to(outcome: Outcome) -> NodeRunState {
    match outcome {
        Outcome::Done => NodeRunState::Done,
        Outcome::Aborted => NodeRunState::Aborted,
        Outcome::Failed | Outcome::Refused => NodeRunState::Failed,
    }
}

/// Next state of a node after an undo.
fn restored(
    was: StoredValue<NodeRecord>,
    mut next: NodeRecord,
    undo: UndoState,
    outcome: Outcome,
    now: Timestamp,
) -> NodeChange {
    let mut more = vec![Op::Delete(enrollment::keys::enrollment(next.shown.id))];
    let run = next.shown.run.clone();
    let boot = match outcome {
        Outcome::Done => {
            more.extend(backup::forgotten(next.shown.id));
            next.become_state(NodeRunState::Undone, now);
            (next.shown.changed, next.shown.note) = (false, None);
            BootChange::Restore(Box::new(next.before.clone()))
        }
        // Nothing was written: the node keeps its earlier state.
        Outcome::Refused => {
            let boot = undo.boot_as_it_was(&run);
            next.become_state(undo.state, now);
            (next.shown.undo, next.shown.changed) = (false, was.value.shown.changed);
            next.shown.note =
                Some("the agent refused the undo; its disks are unchanged".to_owned());
            boot
        }
        Outcome::Failed | Outcome::Aborted => {
            let why = format!("undo failed in run {run}, see hoist provision status");
            next.become_state(NodeRunState::Failed, now);
            // To be tried again.
            next.undo = Some(undo);
            BootChange::Hold(why)
        }
    };
    NodeChange { was, now: next, boot: Some(boot), more }
}

fn progress(event: &Event, now: Timestamp) -> Progress {
    let Event { action, step, done, total, unit, rate, message, .. } = event.clone();
    // By the clock here: that of a machine without a system may say anything.
    Progress { action, step, done, total, unit, rate, message, at: now }
}

/// Whether a document can express this disk. A `last_root` that it cannot express would make every
/// later job invalid.
fn is_known_by(disk: &RootDisk) -> bool {
    let RootDisk { wwn, eui, serial, model } = disk;
    let is_plain =
        |text: &String| (1..=MAX_NAME).contains(&text.len()) && !text.contains(char::is_control);
    let texts = [wwn, eui, serial, model].into_iter().flatten();
    [wwn, eui, serial].iter().any(|text| text.is_some()) && texts.into_iter().all(is_plain)
}

fn shorten(text: &mut String) {
    shorten_to(MAX_TEXT, text);
}

fn shorten_to(most: usize, text: &mut String) {
    if text.len() > most {
        let mut end = most;
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        text.truncate(end);
    }
}

fn shorten_event(mut event: Event) -> Event {
    shorten_to(MAX_NAME, &mut event.action);
    shorten_to(MAX_NAME, &mut event.step);
    event.unit.as_mut().map(shorten);
    event.message.as_mut().map(shorten);
    event
}

fn shorten_diagnostic(found: &mut NodeDiagnostic) {
    let NodeDiagnostic { code, class, action, step, diagnostic, evidence } = found;
    let Diagnostic { at, message, hint } = diagnostic;
    for text in [code, class, action, step, at, message] {
        shorten(text);
    }
    hint.as_mut().map(shorten);
    evidence.truncate(MAX_DIAGNOSTICS);
    evidence.iter_mut().for_each(shorten);
}
