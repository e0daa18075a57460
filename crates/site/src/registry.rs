//! The one writer of the site, and the owner of the current roster.
//!
//! A write is planned against the roster of exactly one revision and committed only if the store is
//! still at that revision; otherwise it is planned again. Validation on every node may take long,
//! so it runs while others may write. The next roster is published after the store has made the
//! change durable: a revision that a reader has seen is never withdrawn.
//!
//! [`Registry::follow`] keeps the roster in step with the writes of other controllers, and keeps
//! serving the last roster revision while the store is away.
//!
//! Does not belong here: rules (`plan`), indexes (`roster`) and the backends of the store.

mod contact;
mod follow;
mod history;
mod validation;

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use async_trait::async_trait;
use hoist_model::NodeId;
use hoist_store::{Compare, Op, Revision, Store, StoreError, Txn};
use jiff::Timestamp;
use parking_lot::RwLock;
use tokio::sync::{Mutex, watch};

use crate::plan::{Draft, Item, Plan, Refusal, Rule, SiteChange};
use crate::record::{RecordError, Resource, ResourceKey, SiteRevision, revision_key};
use crate::roster::{Delta, Incarnation, Roster};
use crate::schema::SchemaError;
use validation::{MAX_ROUNDS, Validation};

pub use contact::{Contact, LoadedFrom};
pub use validation::until_cancelled;

/// How often a write is planned again because another controller was faster.
const ATTEMPTS: u64 = 32;

/// Cheap to clone; all clones are the same registry.
#[derive(Clone)]
pub struct Registry(Arc<Inner>);

struct Inner {
    store: Arc<dyn Store>,
    roster: ArcSwap<Roster>,
    published: watch::Sender<u64>,
    contact: contact::ContactTracker,
    /// Locked while writing and while applying the writes of other controllers.
    position: Mutex<Position>,
    change_guard: ChangeGuard,
    rules: RwLock<Vec<Arc<dyn Rule>>>,
    node_cleanups: RwLock<Vec<NodeCleanup>>,
    history: history::RosterHistory,
    /// Nodes come from a source that was not read yet.
    awaits_import: AtomicBool,
    horizon: RwLock<Horizon>,
}

/// The operations that delete one context's records of a removed node.
pub type NodeCleanup = fn(NodeId) -> Vec<Op>;

/// How far into the store's history the roster is.
#[derive(Debug, Clone, Copy, Default)]
struct Position {
    /// The newest store revision whose changes are in the roster.
    seen: Revision,
    /// Where `site/revision` was last written; `None` before the first write.
    site: Option<Revision>,
    /// The roster came from the store, not from the last-good copy.
    loaded: bool,
}

/// When a change must say how many nodes it affects.
#[derive(Debug, Clone, Copy)]
pub struct ChangeGuard {
    /// Above this many.
    pub nodes: usize,
    /// Above this share of all nodes, in percent…
    pub percent: usize,
    /// …but not below this many.
    pub percent_from: usize,
}

impl Default for ChangeGuard {
    fn default() -> Self {
        Self { nodes: 50, percent: 10, percent_from: 10 }
    }
}

/// How far back changes can be asked for: this long, or this many removals, whichever is less.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Horizon {
    pub age: Duration,
    pub removals: usize,
}

impl Default for Horizon {
    fn default() -> Self {
        Self { age: Duration::from_hours(24), removals: 1_000_000 }
    }
}

/// How a write is to be done.
#[derive(Debug, Clone, Copy, Default)]
pub struct Terms {
    /// Plan only.
    pub dry_run: bool,
    /// How many nodes the caller expects to affect.
    pub affects: Option<usize>,
    /// The site revision the caller has seen; another one is refused.
    pub expect: Option<u64>,
    /// The controller itself writes (an import): no `change_guard`.
    pub skip_change_guard: bool,
}

/// The result of a write or of a dry run.
#[derive(Debug, Clone)]
pub struct WriteOutcome {
    pub revision: u64,
    pub plan: Plan,
    /// Whether the number of affected nodes has to be named.
    pub needs_affects: bool,
}

/// The summary of a commit, for the audit log.
#[derive(Debug, Clone)]
pub struct About {
    pub before: u64,
    pub after: u64,
    pub summary: String,
}

/// Who commits: the store itself, or something that adds an audit entry to the same transaction.
#[async_trait]
pub trait Commit: Send + Sync {
    async fn commit(&self, txn: Txn, about: &About) -> Result<Revision, StoreError>;

    /// Called before a draft is checked, so that the checks disclose nothing to a writer without
    /// the right to change it.
    fn admit(&self, _draft: &Draft<'_>) -> Result<(), WriteError> {
        Ok(())
    }

    /// Called before the commit: the writer may lack the right to a part of the plan.
    fn review(&self, _before: &Roster, _plan: &Plan) -> Result<(), WriteError> {
        Ok(())
    }

    /// The error that the writer gets for refusals, which may name resources hidden from the
    /// writer.
    fn disclose(&self, _before: &Roster, refusals: Vec<Refusal>) -> WriteError {
        WriteError::Refused(refusals)
    }
}

#[async_trait]
impl Commit for Arc<dyn Store> {
    async fn commit(&self, txn: Txn, _: &About) -> Result<Revision, StoreError> {
        self.as_ref().commit(txn).await
    }
}

/// Why a write was not done.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WriteError {
    /// Nothing was changed.
    #[error("{}", first_of(.0))]
    Refused(Vec<Refusal>),
    /// Nothing was changed.
    #[error(
        "this affects {affected} nodes{}",
        said.map(|said| format!(", not {said}")).unwrap_or_default()
    )]
    Affects { affected: usize, said: Option<usize> },
    /// Nothing was changed.
    #[error("the site is at revision {actual}, not {expected}")]
    Outdated { expected: u64, actual: u64 },
    /// Nothing was changed.
    #[error("the object has changed since it was read")]
    Precondition,
    /// Nothing was changed.
    #[error("{subject} is out of reach")]
    Forbidden {
        subject: String,
        /// The missing right, where the node itself is within reach.
        needs: Option<String>,
    },
    /// Nothing was changed.
    #[error("{subject} does not exist")]
    NotFound { subject: String },
    /// Nothing was changed: the draft failed for a reason of its caller.
    #[error(transparent)]
    Draft(Box<dyn std::error::Error + Send + Sync>),
    /// Nothing was changed.
    #[error(
        "other controllers changed the site during all {ATTEMPTS} attempts to commit this change"
    )]
    Busy,
    /// Nothing was changed.
    #[error(
        "the site kept changing while this change was validated ({MAX_ROUNDS} attempts); try again"
    )]
    SiteKeptChanging,
    /// Nothing was changed: the caller has hung up, or the controller stops.
    #[error("the change was cancelled before it was committed; nothing was changed")]
    Cancelled,
    /// The site was not read from the store yet: nothing can be validated against the truth.
    #[error("the site has not been read from the store since the controller started: {reason}")]
    NotLoaded { reason: &'static str },
    /// For `Unavailable`, nothing is known about whether it landed.
    #[error("the change could not be stored")]
    Store(#[from] StoreError),
}

fn first_of(refusals: &[Refusal]) -> String {
    match refusals {
        [] => "the change was refused".to_owned(),
        [one] => one.to_string(),
        [first, rest @ ..] => format!("{first} (and {} more)", rest.len()),
    }
}

/// Why the site could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    #[error("the site cannot be read from the store")]
    Store(#[from] StoreError),
    #[error("the site in the store cannot be understood")]
    Record(#[from] RecordError),
    #[error("the store is not one that this version can use")]
    Schema(#[source] SchemaError),
}

impl LoadError {
    /// The kind of failure, for anyone who asks: names no host, no path and no account.
    pub fn public_reason(&self) -> &'static str {
        match self {
            Self::Store(error) => error.public_reason(),
            Self::Record(_) => "the site in the store cannot be understood",
            Self::Schema(_) => "the store is not one that this version can use",
        }
    }
}

impl From<SchemaError> for LoadError {
    fn from(error: SchemaError) -> Self {
        match error {
            SchemaError::Store(error) => Self::Store(error),
            error => Self::Schema(error),
        }
    }
}

/// Everything a store holds, read once.
pub(crate) async fn read_site(store: &dyn Store) -> Result<Roster, LoadError> {
    follow::load(store).await.map(|(roster, _)| roster)
}

impl Registry {
    /// A registry on a store that is there: reads the whole site.
    pub async fn open(store: Arc<dyn Store>, change_guard: ChangeGuard) -> Result<Self, LoadError> {
        let (roster, position) = follow::load(store.as_ref()).await?;
        Ok(Self::new(store, roster, position, LoadedFrom::Store, change_guard))
    }

    /// A registry that starts from the last-good copy, because the store cannot be read. It answers
    /// at once; writes are refused until [`Self::follow`] has read the store.
    pub fn resume(
        store: Arc<dyn Store>,
        last_good: Roster,
        taken: Timestamp,
        change_guard: ChangeGuard,
    ) -> Self {
        let from = LoadedFrom::Snapshot { taken };
        Self::new(store, last_good, Position::default(), from, change_guard)
    }

    /// A registry that knows nothing yet: the store cannot be read, and there is no last-good copy.
    pub fn empty(store: Arc<dyn Store>, change_guard: ChangeGuard) -> Self {
        let roster = Roster::build(mint_incarnation(), 0, 0, std::iter::empty());
        Self::new(store, roster, Position::default(), LoadedFrom::Nothing, change_guard)
    }

    fn new(
        store: Arc<dyn Store>,
        roster: Roster,
        position: Position,
        from: LoadedFrom,
        change_guard: ChangeGuard,
    ) -> Self {
        let (published, _) = watch::channel(roster.revision());
        Self(Arc::new(Inner {
            store,
            roster: ArcSwap::from_pointee(roster),
            published,
            contact: contact::ContactTracker::new(from),
            position: Mutex::new(position),
            change_guard,
            rules: RwLock::default(),
            node_cleanups: RwLock::default(),
            history: history::RosterHistory::default(),
            awaits_import: AtomicBool::new(false),
            horizon: RwLock::default(),
        }))
    }

    /// Lets another context have its say about every plan.
    pub fn add_rule(&self, rule: Arc<dyn Rule>) {
        self.0.rules.write().push(rule);
    }

    /// Lets another context delete its records of a node in the transaction that removes the node.
    pub fn on_node_removed(&self, cleanup: NodeCleanup) {
        self.0.node_cleanups.write().push(cleanup);
    }

    /// The site as it was at a revision; `Err` with the oldest one that is still known.
    pub fn roster_at(&self, revision: u64) -> Result<Roster, u64> {
        self.0.history.at(&self.roster(), revision)
    }

    /// The current roster. One atomic load; hold it as long as you like.
    pub fn roster(&self) -> Arc<Roster> {
        self.0.roster.load_full()
    }

    /// The current roster without a reference count, so that answering threads share no written
    /// memory. The caller must not hold it longer than one answer takes.
    pub fn load(&self) -> impl Deref<Target = Arc<Roster>> {
        self.0.roster.load()
    }

    /// The site as the store has it now, including the latest writes of other controllers. Fails
    /// while the store is away: for decisions that cannot be undone.
    pub async fn latest(&self) -> Result<Arc<Roster>, WriteError> {
        let mut position = self.0.position.lock().await;
        if !position.loaded {
            return Err(self.not_loaded());
        }
        self.catch_up(&mut position).await?;
        Ok(self.roster())
    }

    pub fn store(&self) -> &Arc<dyn Store> {
        &self.0.store
    }

    /// How far back changes can be asked for, from the next write on.
    pub fn set_horizon(&self, horizon: Horizon) {
        *self.0.horizon.write() = horizon;
    }

    /// Whether the roster ever was the whole site: a node that is not in it is unknown. Before that,
    /// a machine must be told to ask again.
    pub fn is_complete(&self) -> bool {
        let awaits_import = self.0.awaits_import.load(Ordering::Relaxed);
        let is_empty = self.0.roster.load().is_empty();
        self.contact().loaded_from != LoadedFrom::Nothing && !(awaits_import && is_empty)
    }

    /// Nodes come from a source: an empty site is incomplete until the source was read once.
    pub fn set_awaits_import(&self, awaits: bool) {
        self.0.awaits_import.store(awaits, Ordering::Relaxed);
    }

    /// Records why the store cannot be read, for [`Self::contact`] and the answers to writes.
    pub fn note_failure(&self, error: &LoadError) {
        if let LoadError::Store(StoreError::Full { .. }) = error {
            self.0.contact.set_full(true);
        }
        self.0.contact.lost(hoist_diagnostic::chain(error), error.public_reason());
    }

    fn not_loaded(&self) -> WriteError {
        let reason = self.contact().reason.unwrap_or("the store is being read");
        WriteError::NotLoaded { reason }
    }

    /// How the store is doing, as far as is known.
    pub fn contact(&self) -> Contact {
        self.0.contact.get()
    }

    /// Wakes whenever a new roster is published; the value is its revision.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.0.published.subscribe()
    }

    /// Plans what `draft` says and commits it. `draft` is called again when another controller was
    /// faster, each time on the then current roster.
    pub async fn write(
        &self,
        terms: Terms,
        commit: &dyn Commit,
        mut draft: impl FnMut(&mut Draft<'_>) -> Result<(), WriteError> + Send,
    ) -> Result<WriteOutcome, WriteError> {
        let admitted = |drafted: &mut Draft<'_>| {
            draft(drafted)?;
            commit.admit(drafted)
        };
        match self.write_drafted(terms, commit, admitted).await {
            Err(WriteError::Refused(refusals)) => Err(commit.disclose(&self.roster(), refusals)),
            done => done,
        }
    }

    async fn write_drafted(
        &self,
        terms: Terms,
        commit: &dyn Commit,
        mut draft: impl FnMut(&mut Draft<'_>) -> Result<(), WriteError> + Send,
    ) -> Result<WriteOutcome, WriteError> {
        if !terms.dry_run && !self.0.position.lock().await.loaded {
            return Err(self.not_loaded());
        }
        let mut validation = Validation::new(self.rules());
        let roster = self.roster();
        validation.validate(&roster, plan(&roster, terms, &mut draft)?).await?;
        if terms.dry_run {
            let plan = validation.judged(&roster).expect("it was judged on this roster");
            commit.review(&roster, &plan)?;
            return Ok(self.written(&roster, roster.revision(), plan));
        }
        let mut position = self.0.position.lock().await;
        for attempt in 0..ATTEMPTS {
            if !position.loaded {
                return Err(self.not_loaded());
            }
            let roster = self.roster();
            let Some(plan) = self.judged(&mut validation, &roster, terms, &mut draft).await? else {
                validation.overtaken()?;
                drop(position);
                validation.validate(&roster, plan(&roster, terms, &mut draft)?).await?;
                position = self.0.position.lock().await;
                continue;
            };
            if plan.is_empty() {
                return Ok(self.written(&roster, roster.revision(), plan));
            }
            commit.review(&roster, &plan)?;
            self.check_change_guard(&roster, terms, &plan)?;
            let cleanup = self.cleanup(&plan);
            let forgotten = forget(&roster, Timestamp::now(), *self.0.horizon.read());
            match commit_plan(*position, commit, &plan, cleanup, forgotten).await {
                Ok((stored, delta)) => {
                    position.seen = position.seen.max(stored);
                    position.site = Some(stored);
                    let revision = delta.revision;
                    self.advance(&roster, delta);
                    return Ok(self.written(&roster, revision, plan));
                }
                Err(StoreError::Conflict { .. }) => {
                    step_aside(attempt).await;
                    self.catch_up(&mut position).await?;
                }
                Err(error) => {
                    self.0.contact.failed(&error);
                    return Err(error.into());
                }
            }
        }
        Err(WriteError::Busy)
    }

    fn written(&self, roster: &Roster, revision: u64, plan: Plan) -> WriteOutcome {
        let needs_affects = self.needs_confirmation(roster, plan.affected.len());
        WriteOutcome { revision, plan, needs_affects }
    }

    /// Whether the caller must confirm this many affected nodes with `--affects`.
    pub fn needs_confirmation(&self, roster: &Roster, affected: usize) -> bool {
        let change_guard = self.0.change_guard;
        affected > change_guard.nodes
            || affected >= change_guard.percent_from
                && affected * 100 > roster.len() * change_guard.percent
    }

    fn check_change_guard(
        &self,
        roster: &Roster,
        terms: Terms,
        plan: &Plan,
    ) -> Result<(), WriteError> {
        let affected = plan.affected.len();
        let asked = !terms.skip_change_guard && self.needs_confirmation(roster, affected);
        match terms.affects {
            Some(said) if said != affected => {
                Err(WriteError::Affects { affected, said: Some(said) })
            }
            None if asked => Err(WriteError::Affects { affected, said: None }),
            _ => Ok(()),
        }
    }

    /// Deletes the records that other contexts hold of the removed nodes.
    fn cleanup(&self, plan: &Plan) -> Vec<Op> {
        let removed = plan.deletes.iter().filter_map(|key| match key {
            ResourceKey::Node(id) => Some(*id),
            _ => None,
        });
        let cleanups = self.0.node_cleanups.read();
        removed.flat_map(|id| cleanups.iter().flat_map(move |cleanup| cleanup(id))).collect()
    }

    fn rules(&self) -> Vec<Arc<dyn Rule>> {
        self.0.rules.read().clone()
    }

    /// A plan on this roster that all rules accept; `None` if validating it would take long,
    /// because the caller holds the write lock.
    async fn judged(
        &self,
        validation: &mut Validation,
        roster: &Arc<Roster>,
        terms: Terms,
        draft: &mut impl FnMut(&mut Draft<'_>) -> Result<(), WriteError>,
    ) -> Result<Option<Plan>, WriteError> {
        if let Some(plan) = validation.judged(roster) {
            return Ok(Some(plan));
        }
        let mut plan = plan(roster, terms, draft)?;
        if validation.covers(roster, &plan) {
            plan.warnings = validation.warnings();
            return Ok(Some(plan));
        }
        if validation.is_slow() {
            return Ok(None);
        }
        validation.validate(roster, plan).await?;
        Ok(validation.judged(roster))
    }

    /// Takes a committed change into the roster.
    fn advance(&self, roster: &Roster, delta: Delta) {
        self.0.history.remember(roster, &delta, Instant::now(), self.0.horizon.read().age);
        self.publish(roster.apply(delta));
    }

    /// Makes a roster the current one.
    fn publish(&self, roster: Roster) {
        let revision = roster.revision();
        self.0.roster.store(Arc::new(roster));
        self.0.contact.heard(Instant::now());
        self.0.published.send_replace(revision);
    }
}

fn plan(
    roster: &Roster,
    terms: Terms,
    draft: &mut impl FnMut(&mut Draft<'_>) -> Result<(), WriteError>,
) -> Result<Plan, WriteError> {
    let actual = roster.revision();
    if let Some(expected) = terms.expect.filter(|expected| *expected != actual) {
        return Err(WriteError::Outdated { expected, actual });
    }
    let mut drafted = Draft::new(roster, Timestamp::now());
    draft(&mut drafted)?;
    drafted.finish().map_err(WriteError::Refused)
}

/// Writes a plan, if the site still is where the plan was made.
async fn commit_plan(
    position: Position,
    commit: &dyn Commit,
    plan: &Plan,
    cleanup: Vec<Op>,
    (forgotten, horizon): (Vec<ResourceKey>, u64),
) -> Result<(Revision, Delta), StoreError> {
    let after = plan.base + 1;
    let site = SiteRevision { revision: after, horizon };
    let compare = match position.site {
        Some(at) => Compare::At(revision_key(), at),
        None => Compare::Absent(revision_key()),
    };
    let mut ops = Vec::with_capacity(plan.puts.len() + plan.deletes.len() + 1);
    let site_bytes = serde_json::to_vec(&site).expect("two numbers");
    ops.push(Op::Put(revision_key(), site_bytes));
    let mut deletes = plan.deletes.clone();
    deletes.extend(forgotten);
    ops.extend(deletes.iter().map(|key| Op::Delete(key.to_key())));
    ops.extend(cleanup);
    ops.extend(plan.puts.iter().map(|put| Op::Put(put.key().to_key(), value(put))));
    let about = About { before: plan.base, after, summary: summary(plan) };
    let stored = commit.commit(Txn { compares: vec![compare], ops }, &about).await?;
    let puts = plan.puts.clone();
    Ok((stored, Delta { revision: after, horizon, puts, deletes }))
}

/// Without the room that writing left over: a whole site of values is held until it is stored.
fn value(put: &Resource) -> Vec<u8> {
    put.to_bytes().as_slice().to_vec()
}

/// Removals that need not be remembered any more, and the horizon that follows.
fn forget(roster: &Roster, now: Timestamp, kept: Horizon) -> (Vec<ResourceKey>, u64) {
    let age = jiff::SignedDuration::try_from(kept.age).unwrap_or(jiff::SignedDuration::MAX);
    let oldest_kept = now.checked_sub(age).unwrap_or(Timestamp::MIN);
    let count = roster.tombstones().count();
    let surplus = count.saturating_sub(kept.removals);
    let mut keys = Vec::new();
    let mut horizon = roster.horizon();
    for (i, tombstone) in roster.tombstones().enumerate() {
        if i >= surplus && tombstone.at >= oldest_kept {
            break;
        }
        horizon = horizon.max(tombstone.revision);
        keys.push(crate::record::Resource::Tombstone(*tombstone).key());
    }
    (keys, horizon)
}

fn summary(plan: &Plan) -> String {
    let parts = [
        (SiteChange::Created, "created"),
        (SiteChange::Changed, "changed"),
        (SiteChange::Removed, "removed"),
    ];
    let counted = parts.map(|(change, word)| (plan.count(change), word));
    let told: Vec<_> = counted
        .iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, word)| format!("{count} {word}"))
        .collect();
    let changed = plan.items.iter().filter(|item| item.change != SiteChange::Unchanged);
    let names: Vec<_> = changed.take(NAMED).map(summary_of).collect();
    format!("{}: {}", told.join(", "), names.join(", "))
}

/// Documents, and fields of each, that a summary names.
const NAMED: usize = 3;

/// `Node/n1 (maintenance: new DIMM, role)`.
fn summary_of(item: &Item) -> String {
    let document = format!("{}/{}", item.kind, item.name);
    let mut fields: Vec<String> = Vec::new();
    for field in &item.fields {
        let name = field.at.split(['.', '[']).next().unwrap_or_default();
        let reason = field.to.as_ref().and_then(|to| match name {
            "reason" => to.as_str(),
            _ => to.get("reason")?.as_str(),
        });
        let told = match reason {
            Some(reason) => format!("{name}: {}", short_reason(reason)),
            None => name.to_owned(),
        };
        if !fields.contains(&told) {
            fields.push(told);
        }
    }
    if fields.len() > NAMED {
        fields.truncate(NAMED);
        fields.push("…".to_owned());
    }
    if fields.is_empty() { document } else { format!("{document} ({})", fields.join(", ")) }
}

/// A reason is for the reader of the log, on one line.
fn short_reason(reason: &str) -> String {
    reason.chars().map(|c| if c.is_control() { ' ' } else { c }).take(80).collect()
}

/// A short random pause that grows with every lost race, so that two busy controllers do not keep
/// each other from writing.
async fn step_aside(attempt: u64) {
    let random = u64::from(u16::from_le_bytes(random()));
    let longest_us = 500 * (attempt + 1).min(20);
    tokio::time::sleep(Duration::from_micros(random * longest_us / u64::from(u16::MAX))).await;
}

/// A fresh id for a node. Ids of one process grow, so that nodes list in the order in which they
/// were declared.
pub fn mint_id() -> NodeId {
    static LAST: parking_lot::Mutex<NodeId> = parking_lot::Mutex::new(NodeId::from_bits(0));
    let now = u64::try_from(Timestamp::now().as_millisecond()).unwrap_or(0);
    let fresh = NodeId::mint(now, u128::from_le_bytes(random()));
    let mut last = LAST.lock();
    *last = fresh.max(NodeId::from_bits(last.to_bits() + 1));
    *last
}

/// A fresh incarnation for a new or restored store.
pub fn mint_incarnation() -> Incarnation {
    Incarnation::new(format!("{:016x}", u64::from_le_bytes(random())))
}

fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).expect("the system has a source of randomness");
    bytes
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let revision = self.0.roster.load().revision();
        f.debug_struct("Registry").field("revision", &revision).finish_non_exhaustive()
    }
}
