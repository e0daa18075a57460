//! The one way to change the site, and the keeper of the current roster.
//!
//! A write is planned against the roster of exactly one revision and committed only if the store
//! still is at that revision; if not, it is planned again. What takes long about it, trying it out
//! on every node, is done while others may write. The next roster is published after the
//! store has made the change durable, so what a reader sees is never taken back.
//!
//! [`Registry::follow`] keeps the roster in step with what other controllers write, and goes on
//! serving the last picture while the store is away.

mod contact;
mod follow;
mod past;
mod trial;

use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use async_trait::async_trait;
use hoist_model::NodeId;
use hoist_store::{Compare, Op, Revision, Store, StoreError, Txn};
use jiff::Timestamp;
use tokio::sync::{Mutex, watch};

use crate::plan::{Change, Draft, Plan, Refusal, Rule};
use crate::record::{
    RecordError, Resource, ResourceKey, SiteRevision, arming_key, disk_backup_key,
    disk_backup_parts, facts_key, provision_installed_key, revision_key,
};
use crate::roster::{Delta, Incarnation, Roster};
use crate::schema::SchemaError;
use trial::Trial;

pub use contact::{Contact, LoadedFrom};
pub use trial::while_wanted;

/// How often a write is planned again because another controller was faster.
const ATTEMPTS: u64 = 32;

/// Removals are remembered this long, or this many.
const KEEP_REMOVALS: Duration = Duration::from_hours(24);
const MAX_REMOVALS: usize = 1_000_000;

/// Cheap to clone; all clones are the same registry.
#[derive(Clone)]
pub struct Registry(Arc<Inner>);

struct Inner {
    store: Arc<dyn Store>,
    roster: ArcSwap<Roster>,
    published: watch::Sender<u64>,
    contact: contact::Keeper,
    /// Held while writing and while taking in what others wrote.
    position: Mutex<Position>,
    brake: Brake,
    rules: RwLock<Vec<Arc<dyn Rule>>>,
    past: past::Past,
}

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
pub struct Brake {
    /// Above this many.
    pub nodes: usize,
    /// Above this share of all nodes, in percent…
    pub percent: usize,
    /// …but not below this many.
    pub percent_from: usize,
}

impl Default for Brake {
    fn default() -> Self {
        Self { nodes: 50, percent: 10, percent_from: 10 }
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
    /// The controller itself writes (an import): no brake.
    pub no_brake: bool,
}

/// What a write did, or would do.
#[derive(Debug, Clone)]
pub struct Written {
    pub revision: u64,
    pub plan: Plan,
    /// Whether the number of affected nodes has to be named.
    pub needs_affects: bool,
}

/// What is committed, for the audit log.
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

    /// Called before a draft is checked, so that a writer learns nothing from the checks about what
    /// it may not change.
    fn admit(&self, _draft: &Draft<'_>) -> Result<(), WriteError> {
        Ok(())
    }

    /// A last word before anything is written: whoever commits may not be allowed to do all of it.
    fn review(&self, _before: &Roster, _plan: &Plan) -> Result<(), WriteError> {
        Ok(())
    }

    /// What the writer is told of refusals, which may name what it may not see.
    fn told(&self, _before: &Roster, refusals: Vec<Refusal>) -> WriteError {
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
    #[error("the object was changed meanwhile")]
    Precondition,
    /// Nothing was changed.
    #[error("{subject} is out of reach")]
    Forbidden {
        subject: String,
        /// What the writer lacks, where it is not the node that is out of its reach.
        needs: Option<String>,
    },
    /// Nothing was changed.
    #[error("there is no {subject}")]
    NotFound { subject: String },
    /// Nothing was changed: whoever drafted has its own reason.
    #[error(transparent)]
    Draft(Box<dyn std::error::Error + Send + Sync>),
    /// Nothing was changed.
    #[error("others were faster {ATTEMPTS} times in a row")]
    Busy,
    /// Nothing was changed.
    #[error("others changed what this is tried out on again and again")]
    Overtaken,
    /// Nothing was changed: whoever asked is gone, or the controller stops.
    #[error("the change was given up before it was made")]
    Unwanted,
    /// The roster is the last-good copy: nothing can be validated against the truth.
    #[error("the store has not been reached since the start")]
    NotLoaded,
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
    pub async fn open(store: Arc<dyn Store>, brake: Brake) -> Result<Self, LoadError> {
        let (roster, position) = follow::load(store.as_ref()).await?;
        Ok(Self::new(store, roster, position, LoadedFrom::Store, brake))
    }

    /// A registry that starts from the last-good copy, because the store is away. It answers at
    /// once; writes are refused until [`Self::follow`] has reached the store.
    pub fn resume(
        store: Arc<dyn Store>,
        last_good: Roster,
        taken: Timestamp,
        brake: Brake,
    ) -> Self {
        let from = LoadedFrom::Snapshot { taken };
        Self::new(store, last_good, Position::default(), from, brake)
    }

    fn new(
        store: Arc<dyn Store>,
        roster: Roster,
        position: Position,
        from: LoadedFrom,
        brake: Brake,
    ) -> Self {
        let (published, _) = watch::channel(roster.revision());
        Self(Arc::new(Inner {
            store,
            roster: ArcSwap::from_pointee(roster),
            published,
            contact: contact::Keeper::new(from),
            position: Mutex::new(position),
            brake,
            rules: RwLock::default(),
            past: past::Past::default(),
        }))
    }

    /// Lets another context have its say about every plan.
    pub fn add_rule(&self, rule: Arc<dyn Rule>) {
        self.0.rules.write().unwrap_or_else(PoisonError::into_inner).push(rule);
    }

    /// The site as it was at a revision; `Err` with the oldest one that is still known.
    pub fn roster_at(&self, revision: u64) -> Result<Roster, u64> {
        self.0.past.at(&self.roster(), revision)
    }

    /// The current picture. One atomic load; hold it as long as you like.
    pub fn roster(&self) -> Arc<Roster> {
        self.0.roster.load_full()
    }

    /// The same, for no longer than an answer takes: nothing that threads share is written to.
    pub fn glance(&self) -> impl Deref<Target = Arc<Roster>> {
        self.0.roster.load()
    }

    /// The site as the store has it, with what other controllers wrote until now. Fails while the
    /// store is away: for decisions that cannot be taken back.
    pub async fn latest(&self) -> Result<Arc<Roster>, WriteError> {
        let mut position = self.0.position.lock().await;
        if !position.loaded {
            return Err(WriteError::NotLoaded);
        }
        self.catch_up(&mut position).await?;
        Ok(self.roster())
    }

    pub fn store(&self) -> &Arc<dyn Store> {
        &self.0.store
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
    ) -> Result<Written, WriteError> {
        let admitted = |drafted: &mut Draft<'_>| {
            draft(drafted)?;
            commit.admit(drafted)
        };
        match self.write_drafted(terms, commit, admitted).await {
            Err(WriteError::Refused(refusals)) => Err(commit.told(&self.roster(), refusals)),
            done => done,
        }
    }

    async fn write_drafted(
        &self,
        terms: Terms,
        commit: &dyn Commit,
        mut draft: impl FnMut(&mut Draft<'_>) -> Result<(), WriteError> + Send,
    ) -> Result<Written, WriteError> {
        if !terms.dry_run && !self.0.position.lock().await.loaded {
            return Err(WriteError::NotLoaded);
        }
        let mut trial = Trial::new(self.rules());
        let roster = self.roster();
        trial.judge(&roster, plan(&roster, terms, &mut draft)?).await?;
        if terms.dry_run {
            let plan = trial.judged(&roster).expect("it was judged on this roster");
            commit.review(&roster, &plan)?;
            return Ok(self.written(&roster, roster.revision(), plan));
        }
        let mut position = self.0.position.lock().await;
        for attempt in 0..ATTEMPTS {
            if !position.loaded {
                return Err(WriteError::NotLoaded);
            }
            let roster = self.roster();
            let Some(plan) = self.judged(&mut trial, &roster, terms, &mut draft).await? else {
                trial.overtaken()?;
                drop(position);
                trial.judge(&roster, plan(&roster, terms, &mut draft)?).await?;
                position = self.0.position.lock().await;
                continue;
            };
            if plan.is_empty() {
                return Ok(self.written(&roster, roster.revision(), plan));
            }
            commit.review(&roster, &plan)?;
            self.check_brake(&roster, terms, &plan)?;
            match commit_plan(&roster, *position, commit, &plan).await {
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

    fn written(&self, roster: &Roster, revision: u64, plan: Plan) -> Written {
        let needs_affects = self.brake_acts(roster, plan.affected.len());
        Written { revision, plan, needs_affects }
    }

    /// Whether so many nodes have to be named by whoever changes them.
    pub fn brake_acts(&self, roster: &Roster, affected: usize) -> bool {
        let brake = self.0.brake;
        affected > brake.nodes
            || affected >= brake.percent_from && affected * 100 > roster.len() * brake.percent
    }

    fn check_brake(&self, roster: &Roster, terms: Terms, plan: &Plan) -> Result<(), WriteError> {
        let affected = plan.affected.len();
        let asked = !terms.no_brake && self.brake_acts(roster, affected);
        match terms.affects {
            Some(said) if said != affected => {
                Err(WriteError::Affects { affected, said: Some(said) })
            }
            None if asked => Err(WriteError::Affects { affected, said: None }),
            _ => Ok(()),
        }
    }

    fn rules(&self) -> Vec<Arc<dyn Rule>> {
        self.0.rules.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// A plan on this roster that other contexts have let pass; none while they would need time for
    /// it, since nobody else can write meanwhile.
    async fn judged(
        &self,
        trial: &mut Trial,
        roster: &Arc<Roster>,
        terms: Terms,
        draft: &mut impl FnMut(&mut Draft<'_>) -> Result<(), WriteError>,
    ) -> Result<Option<Plan>, WriteError> {
        if let Some(plan) = trial.judged(roster) {
            return Ok(Some(plan));
        }
        let plan = plan(roster, terms, draft)?;
        if trial.covers(roster, &plan) {
            return Ok(Some(plan));
        }
        if trial.is_slow() {
            return Ok(None);
        }
        trial.judge(roster, plan).await?;
        Ok(trial.judged(roster))
    }

    /// Takes a committed change into the roster.
    fn advance(&self, roster: &Roster, delta: Delta) {
        self.0.past.remember(roster, &delta, Instant::now());
        self.publish(roster.apply(delta));
    }

    /// Makes a roster the current one.
    fn publish(&self, roster: Roster) {
        let revision = roster.revision();
        self.0.roster.store(Arc::new(roster));
        self.0.contact.heard();
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
    roster: &Roster,
    position: Position,
    commit: &dyn Commit,
    plan: &Plan,
) -> Result<(Revision, Delta), StoreError> {
    let after = plan.base + 1;
    let (forgotten, horizon) = forget(roster, Timestamp::now());
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
    ops.extend(plan.deletes.iter().flat_map(ends_with_node));
    ops.extend(plan.puts.iter().map(|put| Op::Put(put.key().to_key(), value(put))));
    let about = About { before: plan.base, after, summary: summary(plan) };
    let stored = commit.commit(Txn { compares: vec![compare], ops }, &about).await?;
    let puts = plan.puts.clone();
    Ok((stored, Delta { revision: after, horizon, puts, deletes }))
}

/// A node that is gone can neither be listed nor disarmed, and has no disks.
fn ends_with_node(deleted: &ResourceKey) -> Vec<Op> {
    match deleted {
        ResourceKey::Node(id) => {
            let mut ops = [
                arming_key(*id),
                facts_key(*id),
                disk_backup_key(*id),
                provision_installed_key(*id),
            ]
            .map(Op::Delete)
            .to_vec();
            ops.push(Op::DeletePrefix(disk_backup_parts(*id)));
            ops
        }
        _ => Vec::new(),
    }
}

/// Without the room that writing left over: a whole site of values is held until it is stored.
fn value(put: &Resource) -> Vec<u8> {
    put.to_bytes().as_slice().to_vec()
}

/// Removals that need not be remembered any more, and the horizon that follows.
fn forget(roster: &Roster, now: Timestamp) -> (Vec<ResourceKey>, u64) {
    let oldest_kept = now - jiff::SignedDuration::try_from(KEEP_REMOVALS).expect("a day fits");
    let count = roster.tombstones().count();
    let surplus = count.saturating_sub(MAX_REMOVALS);
    let (mut keys, mut horizon) = (Vec::new(), roster.horizon());
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
    let parts =
        [(Change::Created, "created"), (Change::Changed, "changed"), (Change::Removed, "removed")];
    let counted = parts.map(|(change, word)| (plan.count(change), word));
    let told: Vec<_> = counted
        .iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, word)| format!("{count} {word}"))
        .collect();
    let changed = plan.items.iter().filter(|item| item.change != Change::Unchanged);
    let names: Vec<_> =
        changed.take(3).map(|item| format!("{}/{}", item.kind, item.name)).collect();
    format!("{}: {}", told.join(", "), names.join(", "))
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
    static LAST: std::sync::Mutex<NodeId> = std::sync::Mutex::new(NodeId::from_bits(0));
    let now = u64::try_from(Timestamp::now().as_millisecond()).unwrap_or(0);
    let fresh = NodeId::mint(now, u128::from_le_bytes(random()));
    let mut last = LAST.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
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
