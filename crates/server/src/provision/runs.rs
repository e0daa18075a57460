//! Runs in the store. Every transition of a node is one transaction with its next boot state, so
//! that both agree after any failure and on every controller.
//!
//! No controller owns a run: each one may start nodes, and the store's compare decides who wins.
//!
//! Does not belong here: decisions about nodes and runs (`decide`, `rule`), routes and operators'
//! commands (`start`, `steer`).

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use hoist_api::Code;
use hoist_api::provision::{
    Counts, NodeRunState, Progress, ProvisionOptions, ProvisionRun, RunNode, StartRequest,
};
use hoist_metadata::provision::Enrollment;
use hoist_model::{Digest, Name, Node, NodeId, Provisioning};
use hoist_site::registry::{Terms, WriteError};
use hoist_site::site_key::NONCE_BYTES;
use hoist_site::{AddressFit, Registry, Roster, SiteKey};
use hoist_store::{Compare, Op, StoreError, Txn};
use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;
use sha2::{Digest as _, Sha256};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::backup;
use super::boot_change::{BootChange, Together};
use super::decide;
use super::keys;
use super::record::{Last, NodeRecord, RunRecord, StoredValue, last_key, node_key, put};
use crate::audited_commit::AuditedCommit;
use crate::boot::UnerasedNodes;
use crate::enrollment::{self, AgentsSent, Enrollments, shown_key};
use crate::inventory::write_failure;
use crate::site::Site;
use hoist_chassis::Chassis;
use hoist_chassis::audit::{AuditError, Draft};
use hoist_chassis::failure::Failure;

/// Attempts of a transaction under conflicting writes.
pub(super) const TRIES: usize = 16;
/// Nodes that are begun in one transaction.
const BATCH: usize = 200;
/// Runs that are remembered; the oldest that are over are forgotten.
pub(super) const MAX_RUNS: usize = 200;
/// Interval of the background task without events.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// How often progress within one step is stored; less often with many agents, so that a slow store
/// keeps up with transitions.
const WRITE_EVERY: SignedDuration = SignedDuration::from_secs(10);
const WRITE_EACH: SignedDuration = SignedDuration::from_millis(20);
const WRITE_AT_LEAST_EVERY: SignedDuration = SignedDuration::from_secs(30);
/// An agent that has said how far it is within so long counts for how fast all are.
const HEARD_NOW: SignedDuration = SignedDuration::from_secs(15);

/// Cheap to clone; all clones are the same.
#[derive(Debug, Clone)]
pub struct Runs(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    chassis: Chassis,
    registry: Registry,
    key: SiteKey,
    sent: AgentsSent,
    enrollments: Enrollments,
    /// After so long an agent that says nothing is taken for dead.
    silence: SignedDuration,
    listens_since: Timestamp,
    /// How far agents are, as they said to this controller last.
    live: Mutex<HashMap<(String, NodeId), Progress>>,
    news: Notify,
}

/// A change of one node of a run, written in one transaction.
#[derive(Debug)]
pub(super) struct NodeChange {
    pub(super) was: StoredValue<NodeRecord>,
    pub(super) now: NodeRecord,
    pub(super) boot: Option<BootChange>,
    pub(super) more: Vec<Op>,
}

impl NodeChange {
    pub(super) fn new(was: StoredValue<NodeRecord>, now: NodeRecord) -> Self {
        Self { was, now, boot: None, more: Vec::new() }
    }
}

/// A node chosen for a run.
#[derive(Debug, Clone)]
pub(super) struct ChosenNode {
    pub(super) node: Arc<Node>,
    pub(super) profile: Name,
    /// Digest of the inputs of its previous installation, with `--previous`.
    pub(super) given: Option<String>,
}

/// Whether something was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wrote {
    Done,
    /// A conflicting write came first; nothing was written.
    Overtaken,
}

impl Runs {
    pub fn new(chassis: &Chassis, site: &Site, sent: AgentsSent, silence: Duration) -> Self {
        Self(Arc::new(Inner {
            chassis: chassis.clone(),
            registry: site.registry.clone(),
            enrollments: Enrollments::of(chassis, site.key.clone()),
            key: site.key.clone(),
            sent,
            silence: SignedDuration::try_from(silence).unwrap_or(SignedDuration::MAX),
            listens_since: chassis.clock.now(),
            live: Mutex::default(),
            news: Notify::new(),
        }))
    }

    pub(super) fn roster(&self) -> Arc<Roster> {
        self.0.registry.roster()
    }

    pub(super) fn registry(&self) -> &Registry {
        &self.0.registry
    }

    pub(super) fn chassis(&self) -> &Chassis {
        &self.0.chassis
    }

    pub(super) fn store(&self) -> &dyn hoist_store::Store {
        self.0.chassis.store.as_ref()
    }

    pub(super) fn now(&self) -> Timestamp {
        self.0.chassis.clock.now()
    }

    pub(super) fn silence(&self) -> SignedDuration {
        self.0.silence
    }

    pub(super) fn listens_since(&self) -> Timestamp {
        self.0.listens_since
    }

    pub(super) async fn header(
        &self,
        run: &str,
    ) -> Result<Option<StoredValue<RunRecord>>, StoreError> {
        match keys::run(run) {
            Some(key) => StoredValue::get(self.store(), &key).await,
            None => Ok(None),
        }
    }

    pub(super) async fn headers(&self) -> Result<Vec<StoredValue<RunRecord>>, StoreError> {
        StoredValue::list(self.store(), &keys::runs()).await
    }

    /// Those of a run, in their order.
    pub(super) async fn nodes(
        &self,
        run: &str,
    ) -> Result<Vec<StoredValue<NodeRecord>>, StoreError> {
        let mut nodes: Vec<StoredValue<NodeRecord>> =
            StoredValue::list(self.store(), &keys::run_nodes(run)).await?;
        nodes.sort_by_key(|node| node.value.order);
        Ok(nodes)
    }

    pub(super) async fn node(
        &self,
        run: &str,
        node: NodeId,
    ) -> Result<Option<StoredValue<NodeRecord>>, StoreError> {
        StoredValue::get(self.store(), &node_key(run, node)).await
    }

    /// In which run a node was last.
    pub(super) async fn last(&self, node: NodeId) -> Result<Option<Last>, StoreError> {
        Ok(StoredValue::get(self.store(), &last_key(node)).await?.map(|kept| kept.value))
    }

    /// The node's enrollment.
    pub(super) async fn enrollment(&self, node: NodeId) -> Result<Option<Enrollment>, StoreError> {
        Ok(StoredValue::get(self.store(), &enrollment::keys::enrollment(node))
            .await?
            .map(|kept| kept.value))
    }

    /// The enrollments of all nodes.
    pub(super) async fn enrollments(&self) -> Result<HashMap<NodeId, Enrollment>, StoreError> {
        let all: Vec<StoredValue<Enrollment>> =
            StoredValue::list(self.store(), &enrollment::keys::enrollments()).await?;
        Ok(all.into_iter().map(|kept| (kept.value.node, kept.value)).collect())
    }

    /// A run as it is shown, with what agents said to this controller last.
    pub(super) async fn show(
        &self,
        run: &RunRecord,
        nodes: Vec<NodeRecord>,
    ) -> Result<ProvisionRun, StoreError> {
        let counts = decide::count(&nodes);
        let mut enrollments = match nodes.as_slice() {
            [node] => {
                self.enrollment(node.shown.id).await?.into_iter().map(|it| (it.node, it)).collect()
            }
            _ => self.enrollments().await?,
        };
        let nodes = nodes.into_iter().map(|node| {
            let enrollment =
                enrollments.remove(&node.shown.id).filter(|_| node.shown.state.is_active());
            let mut shown = self.shown(node);
            if let Some(Enrollment { claimed, quarantined, elsewhere, .. }) = enrollment {
                shown.claimed = claimed.as_ref().map(shown_key);
                shown.quarantined = quarantined.iter().map(shown_key).collect();
                shown.elsewhere = elsewhere;
            }
            shown
        });
        Ok(ProvisionRun { nodes: nodes.collect(), ..outline(run, counts) })
    }

    fn shown(&self, node: NodeRecord) -> RunNode {
        let why = self.why_not(&node);
        let mut shown = node.shown;
        shown.note = why.or(shown.note);
        if shown.state == NodeRunState::Working {
            let live = self.0.live.lock();
            let said = live.get(&(shown.run.clone(), shown.id));
            let kept = shown.progress.as_ref().map_or(shown.since, |progress| progress.at);
            // Progress of an earlier attempt is void.
            shown.progress = said.filter(|said| kept <= said.at).cloned().or(shown.progress);
        }
        shown
    }
}

/// A run without its nodes.
pub(super) fn outline(run: &RunRecord, counts: Counts) -> ProvisionRun {
    let (state, why) = decide::state(&run.how, run.aborted, counts);
    ProvisionRun {
        run: run.run.clone(),
        state,
        why,
        selector: run.selector.clone(),
        how: run.how.clone(),
        by: run.by.clone(),
        started: run.started,
        counts,
        nodes: Vec::new(),
    }
}

/// Beginning.
impl Runs {
    /// Writes a run with its nodes; nothing is begun yet.
    pub(super) async fn create(
        &self,
        request: &StartRequest,
        by: &str,
        chosen: &[ChosenNode],
        audit: Draft,
    ) -> Result<String, Failure> {
        let now = self.now();
        let roster = self.roster();
        // Such names grow with time, as those of nodes do.
        let run = hoist_site::registry::mint_id().to_string().to_ascii_lowercase();
        let header = RunRecord {
            run: run.clone(),
            selector: request.selector.clone(),
            how: request.how.clone(),
            by: by.to_owned(),
            started: now,
            aborted: false,
            over: false,
            counts: None,
        };
        let lasts = self.lasts().await?;
        let key = keys::run(&run).expect("letters and digits");
        let mut compares = vec![Compare::Absent(key.clone())];
        let mut ops = vec![put(key, &header)];
        let installed = self.all_installed().await?;
        for (order, ChosenNode { node, profile, given }) in (0..).zip(chosen) {
            let last = lasts.get(&node.id);
            check_free(node, last)?;
            compares.push(match last {
                Some(last) => last.unchanged(),
                None => Compare::Absent(last_key(node.id)),
            });
            let record = NodeRecord {
                shown: RunNode {
                    node: node.name.clone(),
                    id: node.id,
                    run: run.clone(),
                    profile: profile.clone(),
                    state: NodeRunState::Waiting,
                    since: now,
                    attempt: 0,
                    progress: None,
                    problems: Vec::new(),
                    note: None,
                    plan: None,
                    changed: false,
                    resumed: false,
                    undo: false,
                    previous: installed.now(node.id).cloned(),
                    receipts: serde_json::Value::Null,
                    erased: Vec::new(),
                    claimed: None,
                    quarantined: Vec::new(),
                    elsewhere: Vec::new(),
                },
                order,
                txn: Uuid::new_v4(),
                session: None,
                earlier: None,
                seq: 0,
                heard: None,
                generation: None,
                begun_generation: None,
                over: Vec::new(),
                root: Vec::new(),
                told_silent: None,
                given_at: None,
                abort: false,
                before: roster.boot_state(node.id).map(|state| state.as_ref().clone()),
                given: given.clone(),
                is_given: given.is_some(),
                undo: None,
                undo_next: false,
                up_by: None,
            };
            ops.extend(record.ops());
        }
        let draft = Draft { object: format!("run/{run}"), ..audit };
        self.0.chassis.audit.commit(Txn { compares, ops }, &draft).await?;
        let told = serde_json::json!({"nodes": chosen.len(), "by": by, "how": request.how});
        self.tell("provision.started", &run, told);
        self.forget_oldest().await?;
        Ok(run)
    }

    pub(super) async fn lasts(&self) -> Result<HashMap<NodeId, StoredValue<Last>>, StoreError> {
        let lasts: Vec<StoredValue<Last>> =
            StoredValue::list(self.store(), &keys::last_runs()).await?;
        Ok(lasts.into_iter().map(|last| (last.value.node, last)).collect())
    }

    async fn forget_oldest(&self) -> Result<(), StoreError> {
        let headers = self.headers().await?;
        let surplus = headers.len().saturating_sub(MAX_RUNS);
        let backups = if surplus > 0 { self.backup_records().await? } else { Vec::new() };
        // Their names grow with time.
        let unerased = if surplus > 0 { self.unerased().await? } else { HashMap::new() };
        let roster = self.roster();
        let kept: HashSet<&str> = unerased
            .iter()
            .filter(|(node, _)| roster.by_id(**node).is_some())
            .map(|(_, run)| run.as_str())
            .collect();
        // Who was not erased is known to be so for as long as it is there.
        let is_over = |header: &&StoredValue<RunRecord>| {
            header.value.over && !kept.contains(header.value.run.as_str())
        };
        for header in headers.iter().filter(is_over).take(surplus) {
            let nodes = keys::run_nodes(&header.value.run);
            let mut ops = vec![Op::Delete(header.key.clone()), Op::DeletePrefix(nodes)];
            let of_run = backups.iter().filter(|kept| kept.value.run == header.value.run);
            ops.extend(of_run.flat_map(|kept| backup::forgotten(kept.value.node)));
            self.store().commit(Txn { compares: vec![header.unchanged()], ops }).await?;
        }
        if surplus > 0 {
            self.forget_given().await?;
        }
        Ok(())
    }

    /// Starts nodes as far as the limits allow, and closes the run when all are finished.
    pub(super) async fn advance(&self, run: &str) -> Result<(), Failure> {
        for _ in 0..TRIES {
            let Some(header) = self.header(run).await? else { return Ok(()) };
            if header.value.over {
                return Ok(());
            }
            let nodes = self.nodes(run).await?;
            let counts = decide::count(nodes.iter().map(|node| &node.value));
            let changes = self.next(&header.value, counts, nodes);
            let over = counts.waiting + counts.active == 0;
            if changes.is_empty() && !over {
                return Ok(());
            }
            let counted = over.then_some(counts);
            let next = RunRecord { over, counts: counted, ..header.value.clone() };
            let names: Vec<_> =
                changes.iter().map(|change| change.now.shown.node.clone()).collect();
            let audit = own_draft("begin", run);
            let wrote = self.write(audit, changes, Some((&header, &next))).await?;
            if wrote == Wrote::Overtaken {
                continue;
            }
            if over {
                let state = decide::state(&next.how, next.aborted, counts).0;
                self.tell(
                    "provision.ended",
                    run,
                    serde_json::json!({"state": state, "counts": counts}),
                );
                return Ok(());
            }
            for name in names {
                self.tell_node("provision.pending", &name, serde_json::json!({"run": run}));
            }
        }
        Ok(())
    }

    fn next(
        &self,
        run: &RunRecord,
        counts: Counts,
        nodes: Vec<StoredValue<NodeRecord>>,
    ) -> Vec<NodeChange> {
        let roster = self.roster();
        let now = self.now();
        let mut room = if run.aborted { 0 } else { decide::room(&run.how, counts).min(BATCH) };
        let mut changes = Vec::new();
        for was in nodes {
            let shown = &was.value.shown;
            let Some(node) = roster.by_id(shown.id) else {
                if !shown.state.is_over() {
                    changes.push(gone(was, now));
                }
                continue;
            };
            let waits = shown.state == NodeRunState::Waiting;
            if waits && room > 0 && decide::obstacle(node).is_none() && !node.is_protected() {
                room -= 1;
                changes.push(self.enroll(was, node, &run.how));
            }
        }
        changes
    }

    /// It boots the agent from now on, which finds a token that is good for it once.
    pub(super) fn enroll(
        &self,
        was: StoredValue<NodeRecord>,
        node: &Node,
        how: &ProvisionOptions,
    ) -> NodeChange {
        let now = self.now();
        let mut nonce = [0; NONCE_BYTES];
        aws_lc_rs::rand::fill(&mut nonce).expect("the operating system gives random bytes");
        let enrollment = Enrollment::new(&self.0.key, node.id, node.generation, nonce, now)
            .with_secrets_without_address(how.secrets_without_address);
        let session = self.session(node, &nonce);
        let mut next = was.value.clone();
        next.become_state(NodeRunState::Pending, now);
        if next.shown.attempt == 0 {
            next.begun_generation = Some(node.generation);
        }
        next.shown.attempt += 1;
        next.shown.problems.clear();
        (next.shown.note, next.shown.progress, next.up_by) = (None, None, None);
        next.end_session();
        (next.session, next.seq, next.abort) = (Some(print(&session)), 0, false);
        (next.heard, next.generation, next.told_silent) = (None, Some(node.generation), None);
        let run = next.shown.run.clone();
        let profile = next.shown.profile.clone();
        let more = vec![put(enrollment::keys::enrollment(node.id), &enrollment)];
        let boot = Some(BootChange::Agent(Provisioning { run, profile, nonce }));
        NodeChange { was, now: next, boot, more }
    }

    /// The session token of the agent of this enrollment.
    pub(super) fn session(&self, node: &Node, nonce: &[u8; NONCE_BYTES]) -> String {
        let token = self.0.key.session(node.id, node.generation, nonce);
        format!("{}.{}", node.id, token.as_str())
    }
}

/// Going on.
impl Runs {
    /// Writes what becomes of nodes, and of the run, all or nothing.
    pub(super) async fn write(
        &self,
        audit: Draft,
        changes: Vec<NodeChange>,
        run: Option<(&StoredValue<RunRecord>, &RunRecord)>,
    ) -> Result<Wrote, Failure> {
        let now = self.now();
        let mut compares = Vec::new();
        let mut ops = Vec::new();
        let mut boots = Vec::new();
        if let Some((was, next)) = run {
            compares.push(was.unchanged());
            ops.push(put(was.key.clone(), next));
        }
        for change in changes {
            let NodeChange { was, now: next, boot, more } = change;
            compares.push(was.unchanged());
            ops.extend(next.ops());
            ops.extend(more);
            let by = format!("provision {}", next.shown.run);
            boots.extend(boot.map(|boot| (next.shown.id, by, boot)));
        }
        let audited = audit.clone();
        let together =
            Together::new(AuditedCommit::new(&self.0.chassis.audit, audit), compares, ops);
        if !boots.is_empty() {
            // The operator confirmed the number of nodes when the run was started.
            let terms = Terms { skip_change_guard: true, ..Terms::default() };
            let written = self.0.registry.write(terms, &together, |draft| {
                for (node, by, boot) in &boots {
                    boot.draft(draft, *node, by, now);
                }
                Ok(())
            });
            match written.await {
                Err(WriteError::Precondition) => return Ok(Wrote::Overtaken),
                written => drop(written.map_err(write_failure)?),
            }
        }
        let Some(txn) = together.left() else { return Ok(Wrote::Done) };
        match self.0.chassis.audit.commit(txn, &audited).await {
            Err(AuditError::Store(StoreError::Conflict { .. })) => Ok(Wrote::Overtaken),
            written => written.map(|_| Wrote::Done).map_err(Into::into),
        }
    }

    /// Changes one node of a run, and retries after a conflicting write. `change` returns the new
    /// record, or `None` for no change.
    pub(super) async fn amend(
        &self,
        run: &str,
        node: NodeId,
        audit: &Draft,
        change: impl Fn(&Runs, StoredValue<NodeRecord>) -> Option<NodeChange>,
    ) -> Result<Option<NodeRecord>, Failure> {
        for _ in 0..TRIES {
            let Some(was) = self.node(run, node).await? else { return Ok(None) };
            let before = was.value.clone();
            let Some(changed) = change(self, was) else { return Ok(Some(before)) };
            let next = changed.now.clone();
            if self.write(audit.clone(), vec![changed], None).await? == Wrote::Done {
                if next.shown.state != before.shown.state {
                    self.changed(&next);
                }
                return Ok(Some(next));
            }
        }
        Err(Failure::new(Code::Busy, "others write the same again and again")
            .with_remedy("try again"))
    }

    /// Publishes the event of a node's transition.
    pub(super) fn changed(&self, node: &NodeRecord) {
        let RunNode { run, state, problems, attempt, .. } = &node.shown;
        let told = serde_json::json!({
            "run": run, "state": state, "attempt": attempt, "problems": problems,
        });
        self.tell_node(&format!("provision.{state}"), &node.shown.node, told);
        if state.is_over() {
            let key = (run.clone(), node.shown.id);
            self.0.live.lock().remove(&key);
            metrics::counter!("hoist_provision_nodes_total", "outcome" => state.as_str())
                .increment(1);
            self.0.news.notify_one();
        }
    }

    /// Remembers how far an agent is, and says whether that is worth being written.
    pub(super) fn heard_of(&self, node: &NodeRecord, progress: &Progress) -> bool {
        let mut live = self.0.live.lock();
        live.insert((node.shown.run.clone(), node.shown.id), progress.clone());
        let Some(kept) = &node.shown.progress else { return true };
        let same = kept.action == progress.action && kept.step == progress.step;
        !same || progress.at.duration_since(kept.at) >= pause(live.len())
    }

    pub(super) fn tell(&self, kind: &str, run: &str, told: serde_json::Value) {
        self.0.chassis.events.publish(kind, &format!("run/{run}"), told);
    }

    pub(super) fn tell_node(&self, kind: &str, node: &Name, told: serde_json::Value) {
        self.0.chassis.events.publish(kind, &format!("node/{node}"), told);
    }
}

/// Looking after runs.
impl Runs {
    /// Looks after all runs until told to stop.
    pub async fn watch(self, stop: CancellationToken) {
        loop {
            if let Err(error) = Box::pin(self.look()).await {
                tracing::warn!(error = %hoist_diagnostic::chain(&error), "runs are not looked after");
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = self.0.news.notified() => {}
                () = tokio::time::sleep(LOOK_EVERY) => {}
            }
        }
    }

    /// A problem with one run must not stop the others.
    async fn look(&self) -> Result<(), Failure> {
        self.note_sent().await?;
        let mut headers = self.headers().await?;
        headers.retain(|header| !header.value.over);
        self.forget_all_but(&headers.iter().map(|header| header.value.run.as_str()).collect());
        self.measure();
        for header in headers {
            let run = &header.value.run;
            let looked = async {
                Box::pin(self.end_waits(run)).await?;
                self.tell_silent(run).await?;
                Box::pin(self.advance(run)).await
            };
            if let Err(error) = looked.await {
                tracing::warn!(run, error = %hoist_diagnostic::chain(&error), "a run is not looked after");
            }
        }
        Ok(())
    }

    /// Stores the addresses that fetched the agent's boot script; retries later if the store is
    /// down.
    async fn note_sent(&self) -> Result<(), Failure> {
        let roster = self.roster();
        for (id, sent) in self.0.sent.all() {
            if let Some(node) = roster.by_id(id) {
                let fits = |from| roster.address_fit(node, from);
                self.0.enrollments.note_fetches(node, &sent, &fits).await?;
                // A request from another node's address does not prove that the machine booted.
                if sent.to.iter().any(|from| fits(*from) != AddressFit::Foreign) {
                    self.agent_was_sent(id).await?;
                }
            }
            self.0.sent.forget(id, &sent);
        }
        Ok(())
    }

    /// How many agents are heard by this controller, and how fast they are together.
    fn measure(&self) {
        let now = self.now();
        let live = self.0.live.lock();
        let heard = live.values().filter(|said| now.duration_since(said.at) < HEARD_NOW);
        let mut agents = 0_u32;
        let mut rate = 0_u64;
        for said in heard {
            agents += 1;
            let is_bytes = said.unit.as_deref().is_none_or(|unit| unit == "bytes");
            rate = rate.saturating_add(said.rate.filter(|_| is_bytes).unwrap_or(0));
        }
        metrics::gauge!("hoist_provision_agents").set(agents);
        #[expect(clippy::cast_precision_loss, reason = "a measure, not a count")]
        metrics::gauge!("hoist_provision_bytes_per_second").set(rate as f64);
    }

    /// Drops progress of agents that reported to another controller.
    fn forget_all_but(&self, open: &HashSet<&str>) {
        let mut live = self.0.live.lock();
        live.retain(|(run, _), _| open.contains(run.as_str()));
    }
}

/// Between two times that it is written how far an agent is, of so many.
fn pause(agents: usize) -> SignedDuration {
    let agents = i32::try_from(agents).unwrap_or(i32::MAX);
    WRITE_EACH.saturating_mul(agents).clamp(WRITE_EVERY, WRITE_AT_LEAST_EVERY)
}

/// A node that was removed meanwhile.
fn gone(was: StoredValue<NodeRecord>, now: Timestamp) -> NodeChange {
    let mut next = was.value.clone();
    next.become_state(NodeRunState::Aborted, now);
    next.shown.note = Some("the node was removed".to_owned());
    NodeChange::new(was, next)
}

/// A node is in one run at a time.
pub(super) fn check_free(node: &Node, last: Option<&StoredValue<Last>>) -> Result<(), Failure> {
    let Some(last) = last.filter(|last| !last.value.over) else { return Ok(()) };
    let run = &last.value.run;
    let detail = format!("node `{}` is in run {run}, which is not over", node.name);
    Err(Failure::new(Code::Conflict, detail)
        .with_remedy(format!("`hoist provision status {run}`, then `retry` or `abort`")))
}

/// Audit draft of the controller's own writes.
pub(super) fn own_draft(what: &str, run: &str) -> Draft {
    Draft {
        who: "controller".to_owned(),
        method: what.to_owned(),
        route: "provision".to_owned(),
        object: format!("run/{run}"),
        ..Draft::default()
    }
}

/// Stored hash of a session token.
pub(super) fn print(session: &str) -> String {
    Digest::from_bytes(Sha256::digest(session.as_bytes()).into()).to_string()
}

/// What only says how far something is.
impl Runs {
    /// Writes a record without an entry in the audit log; `None` when there was nothing to write.
    pub(super) async fn keep(
        &self,
        run: &str,
        node: NodeId,
        change: impl Fn(&NodeRecord) -> Option<NodeRecord>,
    ) -> Result<Option<NodeRecord>, Failure> {
        for _ in 0..TRIES {
            let Some(was) = self.node(run, node).await? else { return Ok(None) };
            let Some(next) = change(&was.value) else { return Ok(None) };
            let txn = Txn { compares: vec![was.unchanged()], ops: vec![put(next.key(), &next)] };
            match self.store().commit(txn).await {
                Ok(_) => return Ok(Some(next)),
                Err(StoreError::Conflict { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heartbeat_writes_scale_down_without_false_deaths() {
        assert_eq!(pause(1), WRITE_EVERY);
        assert_eq!(pause(1000), SignedDuration::from_secs(20));
        assert_eq!(pause(usize::MAX), WRITE_AT_LEAST_EVERY);
    }
}
