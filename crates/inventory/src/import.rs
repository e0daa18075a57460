//! Importing: one complete set of a source, reconciled into the site.
//!
//! A cycle that finds nothing new writes nothing. With several controllers only the one that holds
//! the lease runs cycles. Whatever goes wrong, what was imported before stays.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use hoist_model::{Name, NodeId, NodeState, Provenance};
use hoist_store::{Key, Lease, Op, Revision, Store, StoreError, Txn};
use jiff::Timestamp;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use crate::plan::{Draft, Plan, Refusal};
use crate::reconcile::{Memory, Options, Outcome, reconcile};
use crate::registry::{About, Commit, Registry, Terms, WriteError, mint_id};
use crate::roster::Roster;
use crate::source::{self, Fetched, Imported, InventorySource, Observed, SourceError, Warning};
use crate::states::States;

/// How much longer than the pause between two cycles the lease lasts: longer than a cycle takes.
const LEASE_MARGIN: Duration = Duration::from_mins(5);
/// Requests to refresh within this time are one cycle.
const DEBOUNCE: Duration = Duration::from_secs(1);
/// Warnings kept in a report; all are counted.
const MAX_WARNINGS: usize = 200;

/// What one cycle did.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Report {
    pub idle: bool,
    pub added: usize,
    pub changed: usize,
    pub unchanged: usize,
    pub removed: usize,
    /// Missed once; removed when missed again.
    pub absent: usize,
    pub warnings: Vec<Warning>,
    pub alarm: Option<String>,
    pub revision: u64,
}

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImportError {
    #[error("the source gave no complete answer")]
    Source(#[from] SourceError),
    #[error("the imported set could not be written")]
    Write(#[from] WriteError),
    #[error("another controller imports right now")]
    Elsewhere,
    #[error("the store failed")]
    Store(#[from] StoreError),
}

/// How the last cycles went.
#[derive(Debug, Clone, Default)]
pub struct Progress {
    pub last: Option<Report>,
    pub success: Option<Timestamp>,
    pub error: Option<String>,
}

/// How many cycles there were: what began later than it was asked for has seen what was meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Cycles {
    pub begun: u64,
    /// Whether or not they succeeded.
    pub ended: u64,
}

/// A source and what its cycles need. Cheap to clone; all clones are the same importer.
#[derive(Debug, Clone)]
pub struct Importer(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    registry: Registry,
    states: States,
    source: Box<dyn InventorySource>,
    options: Options,
    every: Duration,
    owner: String,
    progress: Mutex<Progress>,
    cycles: watch::Sender<Cycles>,
    wanted: Notify,
    /// One cycle at a time; the lease is kept between them, since taking it is a write, and an
    /// idle cycle makes none.
    turn: tokio::sync::Mutex<Option<Lease>>,
    /// The site revision after the last cycle.
    left_at: Mutex<Option<u64>>,
}

impl Importer {
    pub fn new(
        registry: Registry,
        states: States,
        source: Box<dyn InventorySource>,
        options: Options,
        every: Duration,
    ) -> Self {
        let owner = mint_id().to_string();
        Self(Arc::new(Inner {
            registry,
            states,
            source,
            options,
            every,
            owner,
            progress: Mutex::default(),
            cycles: watch::Sender::default(),
            wanted: Notify::new(),
            turn: tokio::sync::Mutex::default(),
            left_at: Mutex::default(),
        }))
    }

    pub fn progress(&self) -> Progress {
        self.0.progress.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Counts the cycles.
    pub fn cycles(&self) -> watch::Receiver<Cycles> {
        self.0.cycles.subscribe()
    }

    /// Asks for a cycle soon. Many requests make one cycle.
    pub fn refresh_soon(&self) {
        self.0.wanted.notify_one();
    }

    /// Runs cycles until told to stop: regularly with some jitter, and when asked.
    pub async fn run(self, commit: Arc<dyn Commit>, stop: CancellationToken) {
        loop {
            if self.0.registry.contact().connected {
                match self.cycle(commit.as_ref()).await {
                    Ok(report) => tracing::debug!(?report, "import cycle"),
                    Err(ImportError::Elsewhere) => {}
                    Err(error) => {
                        metrics::counter!("hoist_import_failures_total").increment(1);
                        tracing::warn!(
                            error = %crate::chain(&error), source = self.0.source.name().as_str(),
                            "the import did not succeed; what was imported before stays"
                        );
                    }
                }
            }
            // Up to a tenth late, so that controllers and sites do not ask all at once.
            let jitter = self.0.every.mul_f64(f64::from(rand_byte()) / 2560.0);
            tokio::select! {
                () = stop.cancelled() => return self.release().await,
                () = tokio::time::sleep(self.0.every + jitter) => {}
                () = self.0.wanted.notified() => tokio::time::sleep(DEBOUNCE).await,
            }
        }
    }

    /// One cycle now. Whoever runs the last one calls [`Self::release`].
    pub async fn cycle(&self, commit: &dyn Commit) -> Result<Report, ImportError> {
        let mut lease = self.0.turn.lock().await;
        self.0.cycles.send_modify(|cycles| cycles.begun += 1);
        let outcome = match self.hold(&mut lease).await {
            Ok(()) => self.cycle_alone(commit).await,
            Err(error) => Err(error),
        };
        self.0.cycles.send_modify(|cycles| cycles.ended = cycles.begun);
        let mut progress = self.0.progress.lock().unwrap_or_else(PoisonError::into_inner);
        match &outcome {
            Ok(report) => {
                let (last, success) = (Some(report.clone()), Some(Timestamp::now()));
                *progress = Progress { last, success, error: None };
            }
            Err(ImportError::Elsewhere) => {}
            Err(error) => progress.error = Some(crate::chain(error)),
        }
        outcome
    }

    /// Lets another controller import at once.
    pub async fn release(&self) {
        let Some(lease) = self.0.turn.lock().await.take() else { return };
        if let Err(error) = self.0.registry.store().release(lease).await {
            tracing::debug!(%error, "the import's lease runs out by itself");
        }
    }

    async fn hold(&self, lease: &mut Option<Lease>) -> Result<(), ImportError> {
        let store = self.0.registry.store();
        if let Some(held) = lease.take()
            && store.renew(&held).await.is_ok()
        {
            *lease = Some(held);
            return Ok(());
        }
        let name = format!("import-{}", self.0.source.name());
        let ttl = self.0.every + LEASE_MARGIN;
        *lease = store.acquire(&name, &self.0.owner, ttl).await?;
        if lease.is_some() { Ok(()) } else { Err(ImportError::Elsewhere) }
    }

    async fn cycle_alone(&self, commit: &dyn Commit) -> Result<Report, ImportError> {
        let revision = self.0.registry.roster().revision();
        let left_at = self.0.left_at.lock().unwrap_or_else(PoisonError::into_inner).take();
        if left_at != Some(revision) {
            // People changed the site: what the source says may have to be written again, even if
            // it says nothing new.
            self.0.source.forget();
        }
        let imported = match self.0.source.fetch().await? {
            Fetched::Unchanged => {
                self.leave_at(revision);
                return Ok(Report { idle: true, revision, ..Report::default() });
            }
            Fetched::Complete(imported) => imported,
        };
        let done = self.write(commit, &imported).await;
        match &done {
            Ok((_, again)) if !again => {}
            // Otherwise the source would say "unchanged" although something is left to do.
            _ => self.0.source.forget(),
        }
        if let Ok((report, _)) = &done {
            self.leave_at(report.revision);
        }
        done.map(|(report, _)| report)
    }

    fn leave_at(&self, revision: u64) {
        *self.0.left_at.lock().unwrap_or_else(PoisonError::into_inner) = Some(revision);
    }

    async fn write(
        &self,
        commit: &dyn Commit,
        imported: &Imported,
    ) -> Result<(Report, bool), ImportError> {
        let inner = &self.0;
        let store = inner.registry.store();
        let key = memory_key(inner.source.name());
        let known = store.get(&key).await?;
        let memory = known.and_then(|record| serde_json::from_slice(&record.value).ok());
        let memory: Memory = memory.unwrap_or_default();
        let mut outcome = Outcome::default();
        let mut created: Vec<NodeId> = Vec::new();
        let remember = Remember { inner: commit, key: key.clone(), memory: Mutex::default() };
        let written = inner
            .registry
            .write(Terms { no_brake: true, ..Terms::default() }, &remember, |draft| {
                let roster = inner.registry.roster();
                let nodes = roster.nodes().map(AsRef::as_ref);
                outcome = reconcile(nodes, inner.source.name(), imported, &memory, &inner.options);
                created = apply(draft, &roster, imported, &outcome);
                remember.set(&outcome.memory);
                Ok(())
            })
            .await?;
        if written.plan.is_empty() && outcome.memory != memory {
            let bytes = serde_json::to_vec(&outcome.memory).expect("a plain record");
            let txn = Txn { compares: Vec::new(), ops: vec![Op::Put(key, bytes)] };
            Store::commit(store.as_ref(), txn).await?;
        }
        self.observe(&outcome, &created).await?;
        let report = Report {
            idle: outcome.is_idle(),
            added: outcome.creates.len(),
            changed: outcome.updates.len(),
            unchanged: outcome.unchanged,
            removed: outcome.removals.len(),
            absent: outcome.memory.absent.len(),
            warnings: self.warnings(imported, &mut outcome),
            alarm: outcome.alarm.as_ref().map(ToString::to_string),
            revision: written.revision,
        };
        if let Some(alarm) = &report.alarm {
            tracing::error!(%alarm, source = inner.source.name().as_str(), "import needs a person");
        }
        Ok((report, outcome.again))
    }

    fn warnings(&self, imported: &Imported, outcome: &mut Outcome) -> Vec<Warning> {
        let roster = self.0.registry.roster();
        let rules = |partition: &Name| {
            roster.partition(partition).map(|p| p.spec.boot_rules()).unwrap_or_default()
        };
        let mut warnings = std::mem::take(&mut outcome.warnings);
        warnings.extend(source::check_boot(&imported.nodes, rules));
        warnings.truncate(MAX_WARNINGS);
        warnings
    }

    /// Keeps what the source saw of the machines, where it differs from what is known.
    async fn observe(&self, outcome: &Outcome, created: &[NodeId]) -> Result<(), StoreError> {
        let name = self.0.source.name();
        let new = created.iter().zip(&outcome.creates);
        let new = new.filter_map(|(id, create)| Some((*id, create.state.clone()?)));
        let seen = outcome.observed.iter().cloned().chain(new);
        let mut changed = Vec::new();
        for (id, Observed { power, .. }) in seen {
            let before = self.0.states.get(id);
            // Whoever else reports knows more than an inventory does.
            let ours = before.as_ref().is_none_or(|state| state.source == **name);
            if ours && before.as_ref().is_none_or(|state| state.power != power) {
                let phase = before.map(|state| state.phase).unwrap_or_default();
                let since = Timestamp::now();
                changed.push((id, NodeState { power, phase, since, source: name.to_string() }));
            }
        }
        self.0.states.set_all(changed).await
    }
}

/// Puts an outcome into a draft; the ids are those of the created nodes, in order.
fn apply(
    draft: &mut Draft<'_>,
    roster: &Roster,
    imported: &Imported,
    outcome: &Outcome,
) -> Vec<NodeId> {
    if outcome.is_idle() {
        return Vec::new();
    }
    for (name, spec) in &imported.partitions {
        if roster.partition(name).is_none() {
            draft.put_partition(name.clone(), spec.clone());
        }
    }
    for (name, spec) in &imported.networks {
        if roster.network(name).is_none() {
            draft.put_network(name.clone(), spec.clone());
        }
    }
    for (key, spec) in &imported.groups {
        if roster.group(key).is_none() {
            draft.put_group(key.clone(), spec.clone());
        }
    }
    for id in &outcome.removals {
        draft.remove_node(*id);
    }
    for update in &outcome.updates {
        let Some(node) = draft.node(update.id) else { continue };
        let name = update.name.clone().unwrap_or_else(|| node.name.clone());
        let provenance = update.provenance.clone().or_else(|| node.provenance.as_deref().cloned());
        if let Some(provenance) = provenance {
            draft.put_imported(update.id, name, update.spec.clone(), provenance);
        }
    }
    let create = |create: &crate::reconcile::Create| {
        let id = mint_id();
        let provenance: Provenance = create.provenance.clone();
        draft.put_imported(id, create.name.clone(), create.spec.clone(), provenance);
        id
    };
    outcome.creates.iter().map(create).collect()
}

fn memory_key(source: &Name) -> Key {
    format!("source/{source}").parse().expect("names are valid segments")
}

/// Writes the source's memory in the transaction that follows from it.
struct Remember<'a> {
    inner: &'a dyn Commit,
    key: Key,
    memory: Mutex<Vec<u8>>,
}

impl Remember<'_> {
    fn set(&self, memory: &Memory) {
        let bytes = serde_json::to_vec(memory).expect("a plain record");
        *self.memory.lock().unwrap_or_else(PoisonError::into_inner) = bytes;
    }
}

#[async_trait]
impl Commit for Remember<'_> {
    async fn commit(&self, mut txn: Txn, about: &About) -> Result<Revision, StoreError> {
        let memory = self.memory.lock().unwrap_or_else(PoisonError::into_inner).clone();
        txn.ops.push(Op::Put(self.key.clone(), memory));
        self.inner.commit(txn, about).await
    }

    fn review(&self, before: &Roster, plan: &Plan) -> Result<(), WriteError> {
        self.inner.review(before, plan)
    }

    fn admit(&self, draft: &Draft<'_>) -> Result<(), WriteError> {
        self.inner.admit(draft)
    }

    fn told(&self, before: &Roster, refusals: Vec<Refusal>) -> WriteError {
        self.inner.told(before, refusals)
    }
}

fn rand_byte() -> u8 {
    let mut byte = [0];
    getrandom::fill(&mut byte).expect("the system has a source of randomness");
    byte[0]
}
