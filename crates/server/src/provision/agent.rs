//! What an agent is told and tells. It proves once who it is, with the token of its arming and a key
//! of its own; what it shows from then on is good for this node in this attempt of this run.
//!
//! What an agent reports is durable before it is told what to do next.

use axum::extract::{FromRequest, Request, State};
use axum::response::{IntoResponse, Response};
use hoist_api::Code;
use hoist_api::provision::{
    DocumentsRequest, Event, EventsAnswer, EventsRequest, Finding, Go, How, MAX_EVENTS,
    MAX_EVENTS_REQUEST, MAX_ORDER_REQUEST, MAX_REPORT, NodeRunState, Order, OrderRequest, Outcome,
    Phase, Progress, Report, ReportAnswer, RootDisk, Then,
};
use hoist_inventory::record;
use hoist_model::{BootState, NodeId, ProvisionProfileSpec};
use hoist_store::Op;
use http::{HeaderMap, HeaderValue, header};
use jiff::{SignedDuration, Timestamp};
use serde_json::Value;
use subtle::ConstantTimeEq as _;

use super::backup;
use super::erasure;
use super::record::{FactsRecord, Kept, NodeRecord, Undoing};
use super::runs::{Changed, print};
use super::stuck::kept_for_later;
use super::{BootChange, Provision};
use crate::audit::Draft;
use crate::auth::AuditContext;
use crate::extract::{Json, Path};
use crate::failure::Failure;
use crate::metadata::EnrolledNode;
use crate::peer::Peer;
use crate::route::{Plane, Route};

/// Largest facts that are kept: a record of every store takes them.
const MAX_FACTS: usize = 768 * 1024;
/// Longest words of an event, and of a finding.
const MAX_TEXT: usize = 4096;
/// Longest name of an action or a step: people have it in a table.
const MAX_NAME: usize = 256;
/// Findings of one report.
const MAX_FINDINGS: usize = 100;
/// What a machine that was started anew shows on its screen.
const LET_IN: &str = "if this machine was started anew, `hoist provision status` shows its key, and \
                      `hoist provision retry --key` lets it in";
/// What is said of a node that was not installed, and got a part of a system.
const PART: &str = "it was not installed before, and a part of a system is none: it boots as before; \
                    if it is whole, `hoist boot set` lets it boot its disk";
/// How often a node is begun by itself.
const MAX_ATTEMPTS: u32 = 3;

/// What proves an agent's further requests.
pub(super) const SESSION: &str = "Proof: the session that the agent got with its order, over TLS";

pub(super) fn routes() -> Vec<Route<Provision>> {
    vec![
        Route::post("/provision/v1/agent/order", Plane::Proof, order)
            .reason("Proof: the provision token and the signature of the agent's key, over TLS")
            .summary("An agent asks what it shall do; over TLS only")
            .takes::<OrderRequest>()
            .body_limit(MAX_ORDER_REQUEST)
            .gives::<Order>(200),
        Route::post("/provision/v1/agent/runs/{run}/events", Plane::Proof, events)
            .reason(SESSION)
            .summary("An agent says how far it is, with its session as bearer token")
            .takes::<EventsRequest>()
            .body_limit(MAX_EVENTS_REQUEST)
            .gives::<EventsAnswer>(200),
        Route::post("/provision/v1/agent/runs/{run}/report", Plane::Proof, report)
            .reason(SESSION)
            .summary("An agent says what came of it; it is durable before it is answered")
            .takes::<Report>()
            .body_limit(MAX_REPORT)
            .gives::<ReportAnswer>(200),
    ]
}

async fn order(
    State(provision): State<Provision>,
    peer: Peer,
    audit: AuditContext,
    request: Request,
) -> Result<Response, Failure> {
    let host = request.headers().get(header::HOST).and_then(|host| host.to_str().ok());
    let base = provision.artifact_base(host);
    let from = provision.metadata.client(&peer, request.headers());
    provision.metadata.check_secure(&peer, from)?;
    let Json(asked) = Json::<OrderRequest>::from_request(request, &()).await?;
    let OrderRequest { node, token, key, signature, facts } = asked;
    let facts = FactsRecord { at: provision.runs.now(), facts };
    if serde_json::to_vec(&facts).map_or(usize::MAX, |text| text.len()) > MAX_FACTS {
        let detail = format!("the facts have more than {MAX_FACTS} bytes");
        return Err(Failure::new(Code::BodyTooLarge, detail));
    }
    let proof = DocumentsRequest { node, token, key, signature };
    let enrolled = match provision.metadata.redeem(&proof, from).await {
        Ok(redeemed) => redeemed,
        Err(locked) => match provision.come_back(&proof, from).await? {
            Some(redeemed) => redeemed,
            None if locked.is_quarantined => {
                provision.note_stranger(node).await;
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
    let order = provision.order(&enrolled, &record, &base, &draft).await?;
    let no_store = [(header::CACHE_CONTROL, HeaderValue::from_static("no-store"))];
    Ok((no_store, Json(order)).into_response())
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
    report.problems.truncate(MAX_FINDINGS);
    report.problems.iter_mut().for_each(shorten_finding);
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
    ) -> Result<Kept<NodeRecord>, Failure> {
        let from = self.metadata.client(peer, headers);
        self.metadata.check_secure(peer, from)?;
        let shown = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        let shown = shown.and_then(|shown| shown.strip_prefix("Bearer ")).unwrap_or_default();
        let refused = || Failure::new(Code::Forbidden, "this session is not good for this run");
        let node: NodeId =
            shown.split_once('.').and_then(|(node, _)| node.parse().ok()).ok_or_else(refused)?;
        // Nothing but letters and digits is in the name of a run.
        let run = record::provision_run_key(run).map(|_| run).ok_or_else(refused)?;
        let kept = self.runs.node(run, node).await?.ok_or_else(refused)?;
        let print = print(shown);
        let is_it = |known: &String| bool::from(known.as_bytes().ct_eq(print.as_bytes()));
        if kept.value.session.as_ref().is_some_and(is_it) {
            return Ok(kept);
        }
        if kept.value.over.iter().any(is_it) {
            let name = &kept.value.shown.node;
            let detail = format!("node `{name}` was begun once more, or ended, since");
            return Err(Failure::new(Code::AttemptOver, detail));
        }
        Err(refused())
    }

    async fn take_in(
        &self,
        node: Kept<NodeRecord>,
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
        let mut go = if record.abort || !works { Go::Abort } else { Go::On };
        if let Some((seq, progress)) = last.filter(|_| works)
            && self.runs.heard_of(record, &progress)
        {
            go = self.keep_progress(record, seq, &progress).await?.unwrap_or(go);
        } else if works && self.runs.is_worth_writing(record) {
            self.keep_life(record).await?;
        }
        // What an agent says of its progress is no change that anybody has to answer for.
        audit.nothing_written();
        Ok(Json(EventsAnswer { go }))
    }

    async fn keep_progress(
        &self,
        record: &NodeRecord,
        seq: u64,
        progress: &Progress,
    ) -> Result<Option<Go>, Failure> {
        let (run, id) = (&record.shown.run, record.shown.id);
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
        Ok(kept.await?.map(|node| if node.abort { Go::Abort } else { Go::On }))
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

    /// Takes in what came of an attempt; the same report again changes nothing, and is answered the
    /// same.
    pub(super) async fn reported(
        &self,
        node: &NodeRecord,
        report: &Report,
        audit: &Draft,
    ) -> Result<Then, Failure> {
        let roster = self.runs.roster();
        let (run, id) = (&node.shown.run, node.shown.id);
        let how = self.runs.header(run).await?.map(|header| header.value.how).unwrap_or_default();
        let given = self.given_to(&roster, node).await?;
        let flow = match node.undo {
            Some(_) => Flow::undoing(),
            None => Flow::of(given.as_ref().map(|given| &given.spec), &how, node),
        };
        let kept = match (report.outcome, &node.undo) {
            (Outcome::Done, Some(_)) => self.runs.uninstalled(node).await?,
            (Outcome::Done, None) if how.retire => {
                Some(Op::Delete(record::provision_installed_key(id)))
            }
            // Whoever has to say that it is up has a system only then.
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
        let arming = self.runs.arming(id).await?;
        let taken = self.runs.amend(run, id, &draft, |runs, was| {
            let is_of_this = was.value.session == session;
            let works = was.value.shown.state.is_active() && was.value.up_by.is_none();
            if !is_of_this || !works || was.value.shown.state == NodeRunState::Starting {
                return None;
            }
            // Started anew, a machine comes with another key.
            let begun_anew = flow.is_begun_anew(&was.value, report);
            if let Some(node) = roster.by_id(id).filter(|_| begun_anew) {
                let mut changed = runs.armed(was, node, &how);
                changed.now.shown.problems.clone_from(&report.problems);
                add_to(&mut changed.now, report);
                return Some(changed);
            }
            let mut changed = ended(was, report, &flow, runs.now());
            changed.now.earlier = kept_for_later(changed.now.earlier.as_ref(), arming.clone());
            // Who is not known to be erased still has what it had.
            let is_unproven = how.retire && changed.now.shown.state != NodeRunState::Done;
            changed.more.extend(kept.clone().filter(|_| !is_unproven));
            Some(changed)
        });
        let taken = taken.await?;
        let state = taken.as_ref().map_or(NodeRunState::Aborted, |taken| taken.shown.state);
        let undo_follows = node.undo.is_none() && taken.is_some_and(|taken| taken.undo.is_some());
        if undo_follows && state == NodeRunState::Armed {
            return Ok(Then::Retry);
        }
        Ok(flow.then(report.outcome, state))
    }
}

/// What the profile says about the end.
struct Flow {
    end: Then,
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
    fn of(spec: Option<&ProvisionProfileSpec>, how: &How, node: &NodeRecord) -> Self {
        let was_installed = node.before.as_ref().is_some_and(|before| before.installed.is_some());
        let is_part = !how.only.is_empty() && !how.retire && !was_installed;
        let section = spec.and_then(|spec| spec.document.get("flow"));
        let word = |key: &str| section.and_then(|flow| flow.get(key)).and_then(Value::as_str);
        let end = match word("end") {
            _ if how.retire => Then::PowerOff,
            Some("power_off") => Then::PowerOff,
            Some("stay") => Then::Stay,
            Some("kexec") if !is_part => Then::Kexec,
            _ => Then::Reboot,
        };
        let again = match word("on_failure") {
            // A failed erasure is looked at by people.
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

    /// Whatever the profile says, people look at what cannot be put back.
    fn undoing() -> Self {
        Self { end: Then::Reboot, again: Again::No, up_within: None, retire: None, is_part: false }
    }

    /// What a rule forbids is never tried again by itself.
    fn tries_again(&self, node: &NodeRecord, report: &Report) -> bool {
        let failed = report.outcome == Outcome::Failed && !node.abort;
        failed && node.shown.attempt < MAX_ATTEMPTS && self.again != Again::No
    }

    fn is_begun_anew(&self, node: &NodeRecord, report: &Report) -> bool {
        self.again == Again::Reboot && self.tries_again(node, report)
    }

    fn then(&self, outcome: Outcome, state: NodeRunState) -> Then {
        match (outcome, state) {
            (Outcome::Done, state) if state != NodeRunState::Failed => self.end,
            // Nothing was put back, and it has a system to boot.
            (Outcome::Refused, NodeRunState::Done) => Then::Reboot,
            (_, state) if state.is_over() => Then::Stay,
            (_, _) if self.again == Again::Reboot => Then::Reboot,
            _ => Then::Retry,
        }
    }
}

/// What becomes of a node whose agent has reported.
fn ended(was: Kept<NodeRecord>, report: &Report, flow: &Flow, now: Timestamp) -> Changed {
    let mut next = was.value.clone();
    let Report { outcome, plan, resumed, problems, receipts, .. } = report;
    next.shown.problems.clone_from(problems);
    next.shown.plan.clone_from(plan);
    next.shown.resumed = *resumed;
    add_to(&mut next, report);
    next.shown.receipts = receipts.clone();
    if next.undo_next {
        // Its arming stays: the same key asks again, and puts its disks back.
        (next.undo_next, next.abort) = (false, false);
        // What it boots if nothing is put back.
        let id = next.shown.id;
        let before = || next.before.clone().unwrap_or_else(|| BootState::new(id, "", now));
        let boot = flow.is_part.then(before);
        next.undo = Some(Undoing { state: come_to(*outcome), boot });
        next.shown.undo = true;
        next.shown.attempt += 1;
        next.become_state(NodeRunState::Armed, now);
        return Changed::new(was, next);
    }
    if let Some(undo) = next.undo.take() {
        return put_back(was, next, undo, *outcome, now);
    }
    let is_reported_done = *outcome == Outcome::Done;
    let unproven = flow.retire.as_ref().filter(|_| is_reported_done);
    let unproven = unproven.and_then(|disks| erasure::unproven(disks, &next.shown.erased));
    let is_done = is_reported_done && unproven.is_none();
    next.shown.problems.extend(unproven);
    let disarmed = Op::Delete(record::arming_key(next.shown.id));
    let run = next.shown.run.clone();
    if is_done {
        let up_within = flow.up_within.map(|s| SignedDuration::from_secs(i64::from(s)));
        next.up_by = up_within.and_then(|within| now.checked_add(within).ok());
        let waits = next.up_by.is_some();
        next.become_state(if waits { NodeRunState::Starting } else { NodeRunState::Done }, now);
        next.shown.note = flow.is_part.then(|| PART.to_owned());
        next.root.clone_from(&report.root);
        let mut more = vec![disarmed];
        // Nothing of a disk that was erased is kept.
        more.extend(backup::forgotten(next.shown.id).into_iter().filter(|_| flow.retire.is_some()));
        let boot = match flow.retire {
            Some(_) => BootChange::Retired,
            None if flow.is_part => BootChange::Before(Box::new(next.before.clone())),
            None => BootChange::Disk,
        };
        return Changed { was, now: next, boot: Some(boot), more };
    }
    if flow.tries_again(&next, report) && flow.again == Again::Same {
        // Its arming stays: the same key may ask again.
        next.shown.attempt += 1;
        next.become_state(NodeRunState::Armed, now);
        return Changed::new(was, next);
    }
    // Done, and not known to be erased.
    let state = if is_reported_done { NodeRunState::Failed } else { come_to(*outcome) };
    next.become_state(state, now);
    let why = format!("provisioning {state} in run {run}, see hoist provision status");
    Changed { was, now: next, boot: Some(BootChange::Hold(why)), more: vec![disarmed] }
}

/// What counts of all attempts: what one has done already, the next one neither does nor reports.
fn add_to(node: &mut NodeRecord, report: &Report) {
    node.ordered = None;
    node.shown.changed |= report.changed;
    node.shown.erased = erasure::of_both(&node.shown.erased, &report.erased);
}

/// What a node is whose agent has ended like this.
fn come_to(outcome: Outcome) -> NodeRunState {
    match outcome {
        Outcome::Done => NodeRunState::Done,
        Outcome::Aborted => NodeRunState::Aborted,
        Outcome::Failed | Outcome::Refused => NodeRunState::Failed,
    }
}

/// What becomes of a node whose disks were to be put back.
fn put_back(
    was: Kept<NodeRecord>,
    mut next: NodeRecord,
    undo: Undoing,
    outcome: Outcome,
    now: Timestamp,
) -> Changed {
    let mut more = vec![Op::Delete(record::arming_key(next.shown.id))];
    let run = next.shown.run.clone();
    let boot = match outcome {
        Outcome::Done => {
            more.extend(backup::forgotten(next.shown.id));
            next.become_state(NodeRunState::Undone, now);
            (next.shown.changed, next.shown.note) = (false, None);
            BootChange::PutBack(Box::new(next.before.clone()))
        }
        // Nothing was written: it is what it was.
        Outcome::Refused => {
            let boot = undo.boot_as_it_was(&run);
            next.become_state(undo.state, now);
            (next.shown.undo, next.shown.changed) = (false, was.value.shown.changed);
            next.shown.note = Some("its disks are not put back: that was refused".to_owned());
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
    Changed { was, now: next, boot: Some(boot), more }
}

fn progress(event: &Event, now: Timestamp) -> Progress {
    let Event { action, step, done, total, unit, rate, message, .. } = event.clone();
    // By the clock here: that of a machine without a system may say anything.
    Progress { action, step, done, total, unit, rate, message, at: now }
}

/// Whether a document can say it: what cannot be said there would keep the node from every order.
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

fn shorten_finding(found: &mut Finding) {
    let Finding { code, class, action, step, what, place, hint, evidence } = found;
    for text in [code, class, action, step, what, place] {
        shorten(text);
    }
    hint.as_mut().map(shorten);
    evidence.truncate(MAX_FINDINGS);
    evidence.iter_mut().for_each(shorten);
}
