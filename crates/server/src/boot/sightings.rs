//! Who asked for what, and when: one row per node and endpoint, and one per stranger.
//!
//! Kept in memory and written behind, every few seconds: a crash loses the last of it and nothing
//! else. Other controllers' rows are followed, so every one of them shows the whole site.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::StreamExt;
use hoist_boot::Who;
use hoist_model::{Mac, NodeId};
use hoist_store::{Change, Key, Op, Prefix, Record, Revision, Store, StoreError, Txn};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// How often rows are written.
const FLUSH_EVERY: Duration = Duration::from_secs(5);
const RETRY: Duration = Duration::from_secs(2);
const PAGE: usize = 5_000;
/// Rows in one transaction.
const BATCH: usize = 1_000;

/// Strangers remembered; the one not seen for longest makes room.
const MAX_STRANGERS: usize = 10_000;
/// Source addresses watched at once.
const MAX_SOURCES: usize = 10_000;

/// A stranger may ask so often at once, and then once in so long.
const PER_MAC: Pace = Pace { burst: 10, each: Duration::from_secs(2) };
const PER_SOURCE: Pace = Pace { burst: 100, each: Duration::from_millis(100) };

const PIECES: usize = 64;

/// Cheap to clone; all clones are the same.
#[derive(Debug, Clone)]
pub struct Sightings(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    store: Arc<dyn Store>,
    hasher: RandomState,
    /// In pieces, so that a storm does not queue at one lock.
    rows: Vec<Mutex<HashMap<(NodeId, Endpoint), Row>>>,
    strangers: Mutex<Strangers>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Endpoint {
    Bootscript,
    UserData,
}

/// The last time a node asked for something.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seen {
    pub last: Timestamp,
    /// Since the row was made.
    pub count: u64,
    /// What it got: the name of a configuration, `bss:…` or `disk`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub what: String,
    /// The revision of that.
    #[serde(default)]
    pub revision: u64,
    pub from: IpAddr,
}

/// A machine that nobody knows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stranger {
    pub mac: Mac,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arch: Option<String>,
    pub from: IpAddr,
    /// What it says it is: `iPXE/1.21`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    pub first: Timestamp,
    pub last: Timestamp,
    pub count: u64,
    /// Whether it was given something to boot.
    #[serde(default)]
    pub booted: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Allowance {
    Within,
    TooOften,
}

#[derive(Debug)]
struct Row {
    seen: Seen,
    changed: bool,
}

#[derive(Debug, Default)]
struct Strangers {
    known: HashMap<Mac, Tracked>,
    sources: HashMap<IpAddr, Meter>,
    /// Rows to remove from the store.
    gone: Vec<Mac>,
}

#[derive(Debug)]
struct Tracked {
    stranger: Stranger,
    meter: Meter,
    changed: bool,
}

#[derive(Debug, Clone, Copy)]
struct Pace {
    burst: u32,
    each: Duration,
}

/// A leaky bucket: when it would be empty.
#[derive(Debug, Clone, Copy)]
struct Meter(Instant);

impl Meter {
    fn take(&mut self, pace: Pace, now: Instant) -> bool {
        let level = self.0.max(now) + pace.each;
        if level > now + pace.each * pace.burst {
            return false;
        }
        self.0 = level;
        true
    }
}

impl Endpoint {
    pub const ALL: [Self; 2] = [Self::Bootscript, Self::UserData];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Bootscript => "bootscript",
            Self::UserData => "user-data",
        }
    }

    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|endpoint| endpoint.as_str() == word)
    }
}

impl Sightings {
    pub fn new(store: Arc<dyn Store>) -> Self {
        let rows = (0..PIECES).map(|_| Mutex::default()).collect();
        let hasher = RandomState::new();
        Self(Arc::new(Inner { store, hasher, rows, strangers: Mutex::default() }))
    }

    fn piece(&self, node: NodeId) -> MutexGuard<'_, HashMap<(NodeId, Endpoint), Row>> {
        let at = usize::try_from(self.0.hasher.hash_one(node)).unwrap_or(usize::MAX) % PIECES;
        lock(&self.0.rows[at])
    }

    pub(super) fn booted(
        &self,
        node: NodeId,
        what: &str,
        revision: u64,
        from: IpAddr,
        now: Timestamp,
    ) {
        self.asked(node, Endpoint::Bootscript, what, revision, from, now);
    }

    /// A node asked for something and got it.
    pub(crate) fn asked(
        &self,
        node: NodeId,
        endpoint: Endpoint,
        what: &str,
        revision: u64,
        from: IpAddr,
        now: Timestamp,
    ) {
        let mut piece = self.piece(node);
        let row = piece.entry((node, endpoint)).or_insert_with(|| Row {
            seen: Seen { last: now, count: 0, what: String::new(), revision, from },
            changed: true,
        });
        row.seen.last = now;
        row.seen.count += 1;
        row.seen.revision = revision;
        row.seen.from = from;
        if row.seen.what != what {
            what.clone_into(&mut row.seen.what);
        }
        row.changed = true;
    }

    pub fn of(&self, node: NodeId, endpoint: Endpoint) -> Option<Seen> {
        self.piece(node).get(&(node, endpoint)).map(|row| row.seen.clone())
    }

    /// Every row, in no order.
    pub fn all(&self) -> Vec<(NodeId, Endpoint, Seen)> {
        let mut all = Vec::new();
        for piece in &self.0.rows {
            let piece = lock(piece);
            let rows = piece.iter();
            all.extend(rows.map(|((node, endpoint), row)| (*node, *endpoint, row.seen.clone())));
        }
        all
    }

    /// A machine that nobody knows asked. Only MACs are remembered: other names are made up too
    /// easily.
    pub(super) fn stranger(
        &self,
        who: &Who<'_>,
        arch: Option<&str>,
        from: IpAddr,
        agent: Option<&str>,
        booted: bool,
        now: Timestamp,
    ) -> Allowance {
        let moment = Instant::now();
        let mut strangers = lock(&self.0.strangers);
        if strangers.sources.len() >= MAX_SOURCES {
            strangers.sources.retain(|_, meter| meter.0 > moment);
        }
        if strangers.sources.len() < MAX_SOURCES || strangers.sources.contains_key(&from) {
            let meter = strangers.sources.entry(from).or_insert(Meter(moment));
            if !meter.take(PER_SOURCE, moment) {
                return Allowance::TooOften;
            }
        }
        let Who::Mac(mac, _) = who else { return Allowance::Within };
        if strangers.known.len() >= MAX_STRANGERS && !strangers.known.contains_key(mac) {
            strangers.make_room();
        }
        let tracked = strangers.known.entry(*mac).or_insert_with(|| Tracked {
            stranger: Stranger {
                mac: *mac,
                arch: None,
                from,
                agent: None,
                first: now,
                last: now,
                count: 0,
                booted: false,
            },
            meter: Meter(moment),
            changed: true,
        });
        let stranger = &mut tracked.stranger;
        stranger.last = now;
        stranger.count += 1;
        stranger.from = from;
        stranger.booted |= booted;
        if let Some(arch) = arch {
            stranger.arch = Some(arch.to_owned());
        }
        if let Some(agent) = agent {
            stranger.agent = Some(agent.chars().filter(|c| !c.is_control()).take(64).collect());
        }
        tracked.changed = true;
        if tracked.meter.take(PER_MAC, moment) { Allowance::Within } else { Allowance::TooOften }
    }

    /// Machines that nobody knew when they asked, the latest first.
    pub fn strangers(&self) -> Vec<Stranger> {
        let strangers = lock(&self.0.strangers);
        let mut all: Vec<_> =
            strangers.known.values().map(|tracked| tracked.stranger.clone()).collect();
        all.sort_by_key(|stranger| std::cmp::Reverse(stranger.last));
        all
    }

    /// It is a stranger no more.
    pub fn forget(&self, mac: Mac) {
        let mut strangers = lock(&self.0.strangers);
        if strangers.known.remove(&mac).is_some() {
            strangers.gone.push(mac);
        }
    }
}

impl Strangers {
    /// Drops the tenth that was not seen for longest.
    fn make_room(&mut self) {
        let mut by_age: Vec<_> =
            self.known.values().map(|t| (t.stranger.last, t.stranger.mac)).collect();
        by_age.sort_unstable();
        for (_, mac) in by_age.into_iter().take(MAX_STRANGERS / 10) {
            self.known.remove(&mac);
            self.gone.push(mac);
        }
    }
}

/// Keeping it.
impl Sightings {
    /// Writes what changed, now and then, and once more when told to stop.
    pub async fn flush(self, stop: CancellationToken) {
        loop {
            let stopping = tokio::select! {
                () = stop.cancelled() => true,
                () = tokio::time::sleep(FLUSH_EVERY) => false,
            };
            if let Err(error) = self.flush_once().await {
                tracing::debug!(%error, "boot history not written yet");
            }
            if stopping {
                return;
            }
        }
    }

    pub(crate) async fn flush_once(&self) -> Result<(), StoreError> {
        let mut ops = Vec::new();
        for piece in &self.0.rows {
            for ((node, endpoint), row) in lock(piece).iter_mut().filter(|(_, row)| row.changed) {
                row.changed = false;
                ops.push(Op::Put(row_key(*node, *endpoint), bytes(&row.seen)));
            }
        }
        {
            let mut strangers = lock(&self.0.strangers);
            let gone = std::mem::take(&mut strangers.gone);
            ops.extend(gone.into_iter().map(|mac| Op::Delete(stranger_key(mac))));
            for tracked in strangers.known.values_mut().filter(|tracked| tracked.changed) {
                tracked.changed = false;
                let key = stranger_key(tracked.stranger.mac);
                ops.push(Op::Put(key, bytes(&tracked.stranger)));
            }
        }
        let mut rest = ops.as_slice();
        while !rest.is_empty() {
            let (batch, tail) = rest.split_at(BATCH.min(rest.len()));
            let txn = Txn { compares: Vec::new(), ops: batch.to_vec() };
            if let Err(error) = self.0.store.commit(txn).await {
                self.mark_changed(rest);
                return Err(error);
            }
            rest = tail;
        }
        Ok(())
    }

    /// What could not be written is written the next time.
    fn mark_changed(&self, ops: &[Op]) {
        let mut strangers = lock(&self.0.strangers);
        for op in ops {
            let (Op::Put(key, _) | Op::Delete(key)) = op else {
                continue;
            };
            match parse_key(key) {
                Some(RowKey::Node(node, endpoint)) => {
                    if let Some(row) = self.piece(node).get_mut(&(node, endpoint)) {
                        row.changed = true;
                    }
                }
                Some(RowKey::Stranger(mac)) => match strangers.known.get_mut(&mac) {
                    Some(tracked) => tracked.changed = true,
                    None => strangers.gone.push(mac),
                },
                None => {}
            }
        }
    }

    /// Reads what was kept and follows what other controllers see, until told to stop.
    pub async fn follow(self, stop: CancellationToken) {
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                Err(error) = self.follow_once() => {
                    tracing::debug!(%error, "boot history of others is not followed");
                }
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(RETRY) => {}
            }
        }
    }

    async fn follow_once(&self) -> Result<(), StoreError> {
        let revision = self.load().await?;
        let mut batches = self.0.store.watch(&prefix(), revision).await?;
        while let Some(batch) = batches.next().await {
            for change in batch?.changes {
                match change {
                    Change::Put(record) => self.take_in(&record),
                    Change::Delete(key) => {
                        if let Some(RowKey::Stranger(mac)) = parse_key(&key) {
                            lock(&self.0.strangers).known.remove(&mac);
                        }
                    }
                }
            }
        }
        Ok(())
    }

    async fn load(&self) -> Result<Revision, StoreError> {
        let mut from = None;
        loop {
            let page = self.0.store.list(&prefix(), from, PAGE).await?;
            page.records.iter().for_each(|record| self.take_in(record));
            from = page.next;
            if from.is_none() {
                return Ok(page.revision);
            }
        }
    }

    /// A row of another controller, if it is newer than ours. Ours come back here too.
    fn take_in(&self, record: &Record) {
        match parse_key(&record.key) {
            Some(RowKey::Node(node, endpoint)) => {
                let Ok(seen) = serde_json::from_slice::<Seen>(&record.value) else { return };
                let mut piece = self.piece(node);
                let older = piece.get(&(node, endpoint)).is_none_or(|r| r.seen.last < seen.last);
                if older {
                    piece.insert((node, endpoint), Row { seen, changed: false });
                }
            }
            Some(RowKey::Stranger(mac)) => {
                let Ok(stranger) = serde_json::from_slice::<Stranger>(&record.value) else {
                    return;
                };
                let mut strangers = lock(&self.0.strangers);
                let older =
                    strangers.known.get(&mac).is_none_or(|t| t.stranger.last < stranger.last);
                if older && strangers.known.len() < MAX_STRANGERS {
                    let meter = Meter(Instant::now());
                    strangers.known.insert(mac, Tracked { stranger, meter, changed: false });
                }
            }
            None => {}
        }
    }
}

enum RowKey {
    Node(NodeId, Endpoint),
    Stranger(Mac),
}

fn prefix() -> Prefix {
    Prefix::Under(key("seen"))
}

fn row_key(node: NodeId, endpoint: Endpoint) -> Key {
    key(&format!("seen/{}/{node}", endpoint.as_str()))
}

fn stranger_key(mac: Mac) -> Key {
    key(&format!("seen/stranger/{mac}"))
}

fn parse_key(key: &Key) -> Option<RowKey> {
    let (kind, name) = key.as_str().strip_prefix("seen/")?.split_once('/')?;
    match Endpoint::from_word(kind) {
        Some(endpoint) => Some(RowKey::Node(name.parse().ok()?, endpoint)),
        None if kind == "stranger" => Some(RowKey::Stranger(name.parse().ok()?)),
        None => None,
    }
}

fn key(text: &str) -> Key {
    text.parse().expect("ids and MACs are valid segments")
}

fn bytes(row: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(row).expect("a plain record")
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
