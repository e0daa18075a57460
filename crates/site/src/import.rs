//! Importing: one complete set of a source, reconciled into the site.
//!
//! A cycle that finds nothing new writes nothing. With several controllers only the holder of the
//! lease runs cycles. A failure never removes imported nodes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use hoist_model::{Group, Name, Network, NetworkSpec, NodeId, NodeState, Partition, Provenance};
use hoist_store::{Key, Lease, Op, Revision, Store, StoreError, Txn};
use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use crate::plan::{Draft, Plan, Refusal};
use crate::reconcile::{Alarm, Memory, Options, Reconciliation, reconcile};
use crate::registry::{About, Commit, Registry, Terms, WriteError, mint_id};
use crate::roster::Roster;
use crate::source::{
    self, FetchOutcome, ImportedSet, InventorySource, ObservedState, SourceError, Warning,
    WarningKind,
};
use crate::states::States;

/// How much longer than the pause between two cycles the lease lasts: longer than a cycle takes.
const LEASE_MARGIN: Duration = Duration::from_mins(5);
/// Requests to refresh within this time are one cycle.
const DEBOUNCE: Duration = Duration::from_secs(1);
/// Warnings of each kind kept in a report; all are counted.
const MAX_WARNINGS: usize = 50;
/// Nodes named in a report; all are counted.
const MAX_NODES: usize = 50;

/// The changes of one cycle.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ImportCycle {
    pub idle: bool,
    pub added: usize,
    pub changed: usize,
    pub unchanged: usize,
    pub removed: usize,
    /// Missed once; removed when missed again.
    pub absent: usize,
    /// The first added, changed and removed nodes, such as `+n1`, `~n2` and `-n3`.
    pub nodes: Vec<String>,
    /// Some of each kind.
    pub warnings: Vec<Warning>,
    pub warning_counts: BTreeMap<WarningKind, usize>,
    pub alarm: Option<String>,
    /// Nodes that are too many to be removed; a forced cycle removes them.
    pub withheld: usize,
    pub revision: u64,
}

impl ImportCycle {
    /// Logs the result of a cycle that changed something.
    fn log(&self, source: &Name) {
        let Self { added, changed, unchanged, removed, absent, revision, .. } = self;
        let source = source.as_str();
        let warnings = self.warnings.len();
        if self.idle {
            tracing::debug!(source, unchanged, absent, warnings, "import without changes");
        } else {
            let nodes = self.nodes.join(" ");
            tracing::info!(
                source,
                added,
                changed,
                unchanged,
                removed,
                absent,
                warnings,
                revision,
                nodes,
                "nodes imported"
            );
        }
    }
}

/// The first nodes that an outcome changes.
fn outcome_names(roster: &Roster, outcome: &Reconciliation) -> Vec<String> {
    let named = |sign: char, id: &NodeId| Some(format!("{sign}{}", roster.by_id(*id)?.name));
    let added = outcome.creates.iter().map(|create| format!("+{}", create.name));
    let changed = outcome.updates.iter().filter_map(|update| named('~', &update.id));
    let removed = outcome.removals.iter().filter_map(|id| named('-', id));
    removed.chain(added).chain(changed).take(MAX_NODES).collect()
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
    pub last: Option<ImportCycle>,
    pub success: Option<Timestamp>,
    pub error: Option<String>,
}

/// The number of cycles begun and ended. A cycle that began after a request covers that request.
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

    /// The name of the source.
    pub fn name(&self) -> &Name {
        self.0.source.name()
    }

    pub fn progress(&self) -> Progress {
        self.0.progress.lock().clone()
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
                    Ok(_) | Err(ImportError::Elsewhere) => {}
                    Err(error) => {
                        metrics::counter!("hoist_import_failures_total").increment(1);
                        tracing::warn!(
                            error = %hoist_diagnostic::chain(&error), source = self.0.source.name().as_str(),
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

    /// Runs one cycle now. The caller must call [`Self::release`] after its last cycle.
    pub async fn cycle(&self, commit: &dyn Commit) -> Result<ImportCycle, ImportError> {
        self.cycle_with(commit, &self.0.options).await
    }

    /// Runs one cycle that removes every node absent twice, however many they are.
    pub async fn force_cycle(&self, commit: &dyn Commit) -> Result<ImportCycle, ImportError> {
        let options = Options { max_prune_percent: 100, ..self.0.options.clone() };
        self.cycle_with(commit, &options).await
    }

    async fn cycle_with(
        &self,
        commit: &dyn Commit,
        options: &Options,
    ) -> Result<ImportCycle, ImportError> {
        let mut lease = self.0.turn.lock().await;
        self.0.cycles.send_modify(|cycles| cycles.begun += 1);
        let outcome = match self.hold(&mut lease).await {
            Ok(()) => self.cycle_alone(commit, options).await,
            Err(error) => Err(error),
        };
        self.0.cycles.send_modify(|cycles| cycles.ended = cycles.begun);
        let mut progress = self.0.progress.lock();
        match &outcome {
            Ok(report) => {
                report.log(self.0.source.name());
                let last = Some(report.clone());
                let success = Some(Timestamp::now());
                *progress = Progress { last, success, error: None };
                self.0.registry.set_awaits_import(false);
            }
            Err(ImportError::Elsewhere) => {}
            Err(error) => progress.error = Some(hoist_diagnostic::chain(error)),
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

    async fn cycle_alone(
        &self,
        commit: &dyn Commit,
        options: &Options,
    ) -> Result<ImportCycle, ImportError> {
        let revision = self.0.registry.roster().revision();
        let left_at = self.0.left_at.lock().take();
        if left_at != Some(revision) {
            // The site has changed, so the data of the source may have to be written again even if
            // the source did not change.
            self.0.source.forget();
        }
        let imported = match self.0.source.fetch().await? {
            FetchOutcome::Unchanged => {
                self.leave_at(revision);
                return Ok(ImportCycle { idle: true, revision, ..ImportCycle::default() });
            }
            FetchOutcome::Complete(imported) => imported,
        };
        let done = self.write(commit, &imported, options).await;
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
        *self.0.left_at.lock() = Some(revision);
    }

    async fn write(
        &self,
        commit: &dyn Commit,
        imported: &ImportedSet,
        options: &Options,
    ) -> Result<(ImportCycle, bool), ImportError> {
        let inner = &self.0;
        let store = inner.registry.store();
        let key = memory_key(inner.source.name());
        let known = store.get(&key).await?;
        let memory = known.and_then(|record| serde_json::from_slice(&record.value).ok());
        let memory: Memory = memory.unwrap_or_default();
        let mut outcome = Reconciliation::default();
        let mut named: Vec<String> = Vec::new();
        let mut created: Vec<NodeId> = Vec::new();
        let remember = ImportCommit { inner: commit, key: key.clone(), memory: Mutex::default() };
        let written = inner
            .registry
            .write(Terms { skip_change_guard: true, ..Terms::default() }, &remember, |draft| {
                let roster = inner.registry.roster();
                let nodes = roster.nodes().map(AsRef::as_ref);
                outcome = reconcile(nodes, inner.source.name(), imported, &memory, options);
                named = outcome_names(&roster, &outcome);
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
        let (warnings, warning_counts) = self.warnings(imported, &mut outcome);
        let report = ImportCycle {
            idle: written.plan.is_empty(),
            added: outcome.creates.len(),
            changed: outcome.updates.len(),
            unchanged: outcome.unchanged,
            removed: outcome.removals.len(),
            absent: outcome.memory.absent.len(),
            nodes: named,
            warnings,
            warning_counts,
            alarm: outcome.alarm.as_ref().map(ToString::to_string),
            withheld: match outcome.alarm {
                Some(Alarm::PruneGuard { gone, .. }) => gone,
                Some(Alarm::Empty) | None => 0,
            },
            revision: written.revision,
        };
        if let Some(alarm) = &report.alarm {
            tracing::error!(%alarm, source = inner.source.name().as_str(), "import needs a person");
        }
        Ok((report, outcome.again))
    }

    /// Some warnings of each kind, and how many there are.
    fn warnings(
        &self,
        imported: &ImportedSet,
        outcome: &mut Reconciliation,
    ) -> (Vec<Warning>, BTreeMap<WarningKind, usize>) {
        let roster = self.0.registry.roster();
        let rules = |partition: &Name| {
            roster.partition(partition).map(|p| p.spec.boot_rules()).unwrap_or_default()
        };
        let mut warnings = std::mem::take(&mut outcome.warnings);
        warnings.extend(source::check_boot(&imported.nodes, rules));
        let mut counts: BTreeMap<WarningKind, usize> = BTreeMap::new();
        warnings.retain(|warning| {
            let count = counts.entry(warning.kind).or_default();
            *count += 1;
            *count <= MAX_WARNINGS
        });
        (warnings, counts)
    }

    /// Records the power states that the source reports, where they differ from the known ones.
    async fn observe(
        &self,
        outcome: &Reconciliation,
        created: &[NodeId],
    ) -> Result<(), StoreError> {
        let name = self.0.source.name();
        let new = created.iter().zip(&outcome.creates);
        let new = new.filter_map(|(id, create)| Some((*id, create.state.clone()?)));
        let seen = outcome.observed.iter().cloned().chain(new);
        let mut changed = Vec::new();
        for (id, ObservedState { power, .. }) in seen {
            let before = self.0.states.get(id);
            // Every other reporter knows more than an inventory does.
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
    imported: &ImportedSet,
    outcome: &Reconciliation,
) -> Vec<NodeId> {
    spell_networks(draft, imported);
    if outcome.is_idle() {
        return Vec::new();
    }
    for (name, spec) in &imported.partitions {
        if roster.partition(name).is_none() {
            draft.put::<Partition>(name.clone(), spec.clone());
        }
    }
    for (name, spec) in &imported.networks {
        if roster.network(name).is_none() {
            draft.put::<Network>(name.clone(), spec.clone());
        }
    }
    for (key, spec) in &imported.groups {
        if roster.group(key).is_none() {
            draft.put::<Group>(key.clone(), spec.clone());
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

/// Gives networks that the site has already the spelling of the source, where they have none.
fn spell_networks(draft: &mut Draft<'_>, imported: &ImportedSet) {
    for (name, spec) in &imported.networks {
        let Some(spelling) = &spec.smd_name else { continue };
        let Some(known) = draft.document::<Network>(name) else { continue };
        if known.spec.smd_name.is_none() {
            let spec = NetworkSpec { smd_name: Some(spelling.clone()), ..known.spec.clone() };
            draft.put::<Network>(name.clone(), spec);
        }
    }
}

fn memory_key(source: &Name) -> Key {
    format!("source/{source}").parse().expect("names are valid segments")
}

/// Writes the source's memory in the transaction that follows from it.
struct ImportCommit<'a> {
    inner: &'a dyn Commit,
    key: Key,
    memory: Mutex<Vec<u8>>,
}

impl ImportCommit<'_> {
    fn set(&self, memory: &Memory) {
        let bytes = serde_json::to_vec(memory).expect("a plain record");
        *self.memory.lock() = bytes;
    }
}

#[async_trait]
impl Commit for ImportCommit<'_> {
    async fn commit(&self, mut txn: Txn, about: &About) -> Result<Revision, StoreError> {
        let memory = self.memory.lock().clone();
        txn.ops.push(Op::Put(self.key.clone(), memory));
        self.inner.commit(txn, about).await
    }

    fn review(&self, before: &Roster, plan: &Plan) -> Result<(), WriteError> {
        self.inner.review(before, plan)
    }

    fn admit(&self, draft: &Draft<'_>) -> Result<(), WriteError> {
        self.inner.admit(draft)
    }

    fn disclose(&self, before: &Roster, refusals: Vec<Refusal>) -> WriteError {
        self.inner.disclose(before, refusals)
    }
}

fn rand_byte() -> u8 {
    let mut byte = [0];
    getrandom::fill(&mut byte).expect("the system has a source of randomness");
    byte[0]
}
