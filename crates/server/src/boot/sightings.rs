//! Who asked for what, and when: one row per node and endpoint, and one per stranger.
//!
//! Kept in memory and written behind, every few seconds: a crash loses the last of it and nothing
//! else. Other controllers' rows are followed, so every one of them shows the whole site.

use std::cell::Cell;
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use compact_str::CompactString;
use futures_util::StreamExt;
use hoist_boot::{What, Who};
use hoist_model::{Mac, NodeId};
use hoist_store::{Change, Key, Op, Prefix, Record, Revision, Store, StoreError, Txn};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::addresses::Table;

/// How often rows are written.
const FLUSH_EVERY: Duration = Duration::from_secs(5);
/// The same while there are more than fit into one transaction.
const FLUSH_ON: Duration = Duration::from_secs(1);
const RETRY: Duration = Duration::from_secs(2);
const PAGE: usize = 5_000;
/// Strangers in one transaction.
const BATCH: usize = 1_000;
/// Bytes of rows in one transaction. Writing them takes a core for some two milliseconds, and
/// machines that ask wait as long; all rows of 100,000 nodes at once were a hundred.
const BATCH_BYTES: usize = 256 * 1024;

/// Strangers remembered; the one not seen for longest makes room.
const MAX_STRANGERS: usize = 10_000;
/// Source addresses watched at once; those beyond share what is allowed to one, by network.
const MAX_SOURCES: usize = 10_000;

/// A stranger may ask so often at once, and then once in so long.
const PER_MAC: Pace = Pace { burst: 10, each: Duration::from_secs(2) };
const PER_SOURCE: Pace = Pace { burst: 100, each: Duration::from_millis(100) };

/// Rows are kept in so many pieces, in memory, so that a storm does not queue at one lock, and in
/// the store: a row of its own for every node that asks would cost more than all the answers (seen:
/// 45 µs a row, 15 µs an answer). A million nodes are pieces of a thousand rows, some 150 KB.
const PIECES: usize = 1024;

/// Questions that a thread keeps before they are put into the rows, by somebody who has time: a row
/// comes from main memory, and many for one piece come at the price of few.
const LOT: usize = 16_384;
/// Full lots that may wait. The thread that has one more puts it into the rows itself.
const MAX_WAITING: usize = 8;
/// As `nice` takes it.
const LAST: i32 = 19;
/// Pieces that questions are put into before somebody else may have the core: some 30 µs.
const PIECES_AT_A_TIME: usize = 16;
/// Threads that need not share a lot.
const LOTS: usize = 16;

/// Cheap to clone; all clones are the same.
#[derive(Debug, Clone)]
pub struct Sightings(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    store: Arc<dyn Store>,
    hasher: RandomState,
    /// For every endpoint.
    pieces: [Vec<Mutex<Piece>>; Endpoint::ALL.len()],
    lots: [Mutex<Vec<Question>>; LOTS],
    waiting: Mutex<Vec<Vec<Question>>>,
    /// Empty ones: memory that is used for the first time costs whoever writes to it.
    spare: Mutex<Vec<Vec<Question>>>,
    /// There is one more that waits.
    full: Notify,
    strangers: Mutex<Strangers>,
}

/// A quicker hash than the usual one: it is taken for every question.
type Rows = HashMap<NodeId, Seen, hashbrown::DefaultHashBuilder>;

#[derive(Debug, Default)]
struct Piece {
    rows: Rows,
    /// Whether the store lacks something of it.
    changed: bool,
    /// The hash of what we wrote last: that comes back through the watch.
    written: u64,
}

/// A node asked for something and got it.
#[derive(Debug)]
struct Question {
    node: NodeId,
    endpoint: Endpoint,
    what: CompactString,
    revision: u64,
    from: IpAddr,
    at: Timestamp,
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
    #[serde(default, skip_serializing_if = "CompactString::is_empty")]
    pub what: CompactString,
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
struct Strangers {
    known: HashMap<Mac, Tracked>,
    sources: Table<Meter>,
    /// Rows to remove from the store.
    gone: Vec<Mac>,
}

impl Default for Strangers {
    fn default() -> Self {
        Self { known: HashMap::new(), sources: Table::new(MAX_SOURCES), gone: Vec::new() }
    }
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

    fn place(self) -> usize {
        match self {
            Self::Bootscript => 0,
            Self::UserData => 1,
        }
    }

    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|endpoint| endpoint.as_str() == word)
    }
}

impl Sightings {
    pub fn new(store: Arc<dyn Store>) -> Self {
        let pieces = Endpoint::ALL.map(|_| (0..PIECES).map(|_| Mutex::default()).collect());
        Self(Arc::new(Inner {
            store,
            hasher: RandomState::new(),
            pieces,
            lots: Default::default(),
            waiting: Mutex::default(),
            spare: Mutex::default(),
            full: Notify::new(),
            strangers: Mutex::default(),
        }))
    }

    fn piece_of(&self, node: NodeId, endpoint: Endpoint) -> MutexGuard<'_, Piece> {
        self.piece(place_of(node), endpoint)
    }

    fn piece(&self, at: usize, endpoint: Endpoint) -> MutexGuard<'_, Piece> {
        lock(&self.0.pieces[endpoint.place()][at])
    }

    pub(super) fn booted(
        &self,
        node: NodeId,
        what: impl Into<CompactString>,
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
        what: impl Into<CompactString>,
        revision: u64,
        from: IpAddr,
        at: Timestamp,
    ) {
        let question = Question { node, endpoint, what: what.into(), revision, from, at };
        let mut lot = lock(&self.0.lots[own_lot()]);
        lot.push(question);
        if lot.len() < LOT {
            return;
        }
        let spare = lock(&self.0.spare).pop().unwrap_or_else(|| Vec::with_capacity(LOT));
        let full = std::mem::replace(&mut *lot, spare);
        drop(lot);
        let mut waiting = lock(&self.0.waiting);
        if waiting.len() < MAX_WAITING {
            waiting.push(full);
            self.0.full.notify_one();
        } else {
            drop(waiting);
            self.put(full);
        }
    }

    /// Puts all that was asked until now into the rows.
    fn settle(&self) {
        let mut all = std::mem::take(&mut *lock(&self.0.waiting));
        all.extend(self.0.lots.iter().map(|lot| std::mem::take(&mut *lock(lot))));
        for lot in all {
            self.put(lot);
        }
    }

    fn put(&self, mut lot: Vec<Question>) {
        lot.sort_by_cached_key(|question| (question.endpoint, place_of(question.node)));
        let mut questions = lot.drain(..).peekable();
        let mut pieces = 0;
        while let Some(question) = questions.next() {
            pieces += 1;
            if pieces % PIECES_AT_A_TIME == 0 {
                // Being last is not enough: the kernel lets a thread go on for some milliseconds.
                std::thread::yield_now();
            }
            let (endpoint, at) = (question.endpoint, place_of(question.node));
            let mut piece = self.piece(at, endpoint);
            piece.put(question);
            let same = |next: &Question| next.endpoint == endpoint && place_of(next.node) == at;
            while let Some(question) = questions.next_if(same) {
                piece.put(question);
            }
        }
        drop(questions);
        let mut spare = lock(&self.0.spare);
        if lot.capacity() >= LOT && spare.len() < MAX_WAITING {
            spare.push(lot);
        }
    }

    pub fn of(&self, node: NodeId, endpoint: Endpoint) -> Option<Seen> {
        self.settle();
        self.piece_of(node, endpoint).rows.get(&node).cloned()
    }

    /// Every row, in no order.
    pub fn all(&self) -> Vec<(NodeId, Endpoint, Seen)> {
        self.settle();
        let mut all = Vec::new();
        for endpoint in Endpoint::ALL {
            for piece in &self.0.pieces[endpoint.place()] {
                let piece = lock(piece);
                all.extend(piece.rows.iter().map(|(node, seen)| (*node, endpoint, seen.clone())));
            }
        }
        all
    }

    /// A machine that nobody knows asked. Only MACs are remembered: other names are made up too
    /// easily. Those that boot parameters were written for are as few as these are.
    pub(super) fn stranger(
        &self,
        who: &Who<'_>,
        arch: Option<&str>,
        from: IpAddr,
        agent: Option<&str>,
        what: &What,
        now: Timestamp,
    ) -> Allowance {
        let moment = Instant::now();
        let mut strangers = lock(&self.0.strangers);
        let limited = !matches!(what, What::Boot { .. });
        if limited && !strangers.lets(from, moment) {
            return Allowance::TooOften;
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
        if limited && !tracked.meter.take(PER_MAC, moment) {
            return Allowance::TooOften;
        }
        let stranger = &mut tracked.stranger;
        stranger.last = now;
        stranger.count += 1;
        stranger.from = from;
        stranger.booted |= matches!(what, What::Boot { .. } | What::Discovery);
        if let Some(arch) = arch {
            stranger.arch = Some(arch.to_owned());
        }
        if let Some(agent) = agent {
            stranger.agent = Some(agent.chars().filter(|c| !c.is_control()).take(64).collect());
        }
        tracked.changed = true;
        Allowance::Within
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
    /// Whether the address may ask once more.
    fn lets(&mut self, from: IpAddr, moment: Instant) -> bool {
        let is_over = |meter: &Meter| meter.0 <= moment;
        let meter = self.sources.entry(from, moment, is_over, || Meter(moment));
        meter.take(PER_SOURCE, moment)
    }

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
    /// Writes what changed, now and then, and all of it once more when told to stop. While a whole
    /// site boots a row may be behind by a minute: a storm of writes would hold up one of answers.
    pub async fn flush(self, stop: CancellationToken) {
        let mut next = Instant::now() + FLUSH_EVERY;
        let mut place = 0;
        loop {
            let stopping = tokio::select! {
                () = stop.cancelled() => true,
                () = tokio::time::sleep_until(next) => false,
                () = self.0.full.notified() => {
                    self.settle_aside().await;
                    continue;
                }
            };
            let written = if stopping {
                self.flush_once().await.map(|()| true)
            } else {
                self.flush_some(&mut place).await
            };
            let pause = match written {
                Ok(true) => FLUSH_EVERY,
                Ok(false) => FLUSH_ON,
                Err(error) => {
                    tracing::debug!(%error, "boot history not written yet");
                    FLUSH_EVERY
                }
            };
            if stopping {
                return;
            }
            next = Instant::now() + pause;
        }
    }

    /// Where it keeps nobody waiting: on a thread that every other one goes before. Sorting a lot
    /// takes milliseconds, and machines that ask would wait as long for a core.
    async fn settle_aside(&self) {
        let sightings = self.clone();
        let (done, settled) = oneshot::channel();
        let thread = std::thread::Builder::new().name("history".to_owned()).spawn(move || {
            // Of this thread only; without it, history is as urgent as everything else.
            if let Err(error) = rustix::process::setpriority_process(None, LAST) {
                tracing::debug!(%error, "boot history is not put behind everything else");
            }
            sightings.settle();
            // Whoever waits for us may close the store.
            drop(sightings);
            done.send(())
        });
        let outcome = match thread {
            Ok(_) => settled.await.map_err(|_| "its thread ended early".to_owned()),
            Err(error) => Err(error.to_string()),
        };
        if let Err(error) = outcome {
            tracing::error!(%error, "boot history is not taken in");
        }
    }

    /// Everything that changed until now.
    pub(crate) async fn flush_once(&self) -> Result<(), StoreError> {
        let mut place = 0;
        while !self.flush_some(&mut place).await? {}
        Ok(())
    }

    /// What changed, as much of it as goes into one transaction; whether that was all. `place` is
    /// where the next one begins, so that all pieces get their turn.
    async fn flush_some(&self, place: &mut usize) -> Result<bool, StoreError> {
        self.settle_aside().await;
        let all = Endpoint::ALL.len() * PIECES;
        let (mut batch, mut size, mut looked_at) = (Vec::new(), 0, 0);
        while looked_at < all && size < BATCH_BYTES {
            let (endpoint, at) = (Endpoint::ALL[*place / PIECES], *place % PIECES);
            if let Some(value) = self.take_changed(at, endpoint) {
                size += value.len();
                batch.push((at, endpoint, value));
            }
            *place = (*place + 1) % all;
            looked_at += 1;
        }
        self.write_pieces(batch).await?;
        self.flush_strangers().await?;
        Ok(looked_at == all)
    }

    /// A piece as the store keeps it, if it has changed.
    fn take_changed(&self, at: usize, endpoint: Endpoint) -> Option<Vec<u8>> {
        let mut piece = self.piece(at, endpoint);
        if !std::mem::take(&mut piece.changed) {
            return None;
        }
        let value = bytes(&piece.rows);
        piece.written = self.0.hasher.hash_one(&value);
        Some(value)
    }

    async fn write_pieces(
        &self,
        pieces: Vec<(usize, Endpoint, Vec<u8>)>,
    ) -> Result<(), StoreError> {
        if pieces.is_empty() {
            return Ok(());
        }
        let places: Vec<_> = pieces.iter().map(|(at, endpoint, _)| (*at, *endpoint)).collect();
        let put = |(at, endpoint, value)| Op::Put(piece_key(at, endpoint), value);
        let txn = Txn { compares: Vec::new(), ops: pieces.into_iter().map(put).collect() };
        let written = self.0.store.commit(txn).await;
        if written.is_err() {
            // The next time, then.
            for (at, endpoint) in places {
                self.piece(at, endpoint).changed = true;
            }
        }
        written.map(drop)
    }

    async fn flush_strangers(&self) -> Result<(), StoreError> {
        let mut ops = Vec::new();
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
                self.mark_strangers(rest);
                return Err(error);
            }
            rest = tail;
        }
        Ok(())
    }

    /// What could not be written is written the next time.
    fn mark_strangers(&self, ops: &[Op]) {
        let mut strangers = lock(&self.0.strangers);
        for op in ops {
            let (Op::Put(key, _) | Op::Delete(key)) = op else {
                continue;
            };
            if let Some(RowKey::Stranger(mac)) = parse_key(key) {
                match strangers.known.get_mut(&mac) {
                    Some(tracked) => tracked.changed = true,
                    None => strangers.gone.push(mac),
                }
            }
        }
    }

    /// Reads what was kept and follows what other controllers see, until told to stop.
    pub async fn follow(self, stop: CancellationToken) {
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                ended = self.follow_once() => {
                    if let Err(error) = ended {
                        tracing::debug!(%error, "boot history of others is not followed");
                    }
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

    /// What another controller saw, where that is newer than ours. Ours comes back here too.
    fn take_in(&self, record: &Record) {
        match parse_key(&record.key) {
            Some(RowKey::Piece(at, endpoint)) => {
                if self.piece(at, endpoint).written == self.0.hasher.hash_one(&record.value) {
                    return;
                }
                if let Ok(rows) = serde_json::from_slice(&record.value) {
                    self.piece(at, endpoint).take_in(rows);
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

impl Piece {
    /// Threads hand in their lots one after the other: what was asked first may come last.
    fn put(&mut self, question: Question) {
        let Question { node, what, revision, from, at, .. } = question;
        self.changed = true;
        let fresh = || Seen { last: at, count: 0, what: CompactString::default(), revision, from };
        let seen = self.rows.entry(node).or_insert_with(fresh);
        seen.count += 1;
        if at >= seen.last {
            *seen = Seen { last: at, count: seen.count, what, revision, from };
        }
    }

    /// The newer of every two rows stays. Where that is ours, the store gets it with the next
    /// flush: two controllers that wrote at once come to the same that way.
    fn take_in(&mut self, others: Rows) {
        let newer = |ours: &Seen, theirs: Option<&Seen>| theirs.is_none_or(|t| t.last < ours.last);
        self.changed |= self.rows.iter().any(|(node, ours)| newer(ours, others.get(node)));
        for (node, theirs) in others {
            if self.rows.get(&node).is_none_or(|ours| ours.last < theirs.last) {
                self.rows.insert(node, theirs);
            }
        }
    }
}

enum RowKey {
    Piece(usize, Endpoint),
    Stranger(Mac),
}

/// The piece a node's rows are in, the same on every controller: the end of an id is random.
fn place_of(node: NodeId) -> usize {
    usize::try_from(node.to_bits() % PIECES as u128).unwrap_or(0)
}

/// The lot of the thread that asks for it.
fn own_lot() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static OWN: Cell<Option<usize>> = const { Cell::new(None) };
    }
    OWN.get().unwrap_or_else(|| {
        let own = NEXT.fetch_add(1, Ordering::Relaxed) % LOTS;
        OWN.set(Some(own));
        own
    })
}

fn prefix() -> Prefix {
    Prefix::Under(key("seen"))
}

fn piece_key(at: usize, endpoint: Endpoint) -> Key {
    key(&format!("seen/{}/{at:03x}", endpoint.as_str()))
}

fn stranger_key(mac: Mac) -> Key {
    key(&format!("seen/stranger/{mac}"))
}

fn parse_key(key: &Key) -> Option<RowKey> {
    let (kind, name) = key.as_str().strip_prefix("seen/")?.split_once('/')?;
    match Endpoint::from_word(kind) {
        Some(endpoint) => {
            let at = usize::from_str_radix(name, 16).ok().filter(|at| *at < PIECES)?;
            Some(RowKey::Piece(at, endpoint))
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use hoist_store::embedded::{EmbeddedStore, Retention};

    const FROM: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    fn node(n: u128) -> NodeId {
        NodeId::from_bits(n)
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn store() -> (tempfile::TempDir, Arc<dyn Store>) {
        let dir = tempfile::tempdir().unwrap();
        let store = EmbeddedStore::open(dir.path(), Retention::default()).unwrap();
        (dir, Arc::new(store))
    }

    #[tokio::test]
    async fn rows_are_read_back_as_they_were_written() {
        let (_dir, store) = store();
        let sightings = Sightings::new(Arc::clone(&store));
        // More than the pieces, so that some share one.
        for n in 0..3000 {
            sightings.booted(node(n), "compute", 7, FROM, at(100));
        }
        sightings.asked(node(5), Endpoint::UserData, "seed", 1, FROM, at(101));
        sightings.flush_once().await.unwrap();
        let again = Sightings::new(store);
        again.load().await.unwrap();
        let sorted = |sightings: &Sightings| {
            let mut all = sightings.all();
            all.sort_by_key(|(node, endpoint, _)| (*node, *endpoint));
            all
        };
        assert_eq!(sorted(&again).len(), 3001);
        assert_eq!(sorted(&again), sorted(&sightings));
    }

    #[tokio::test(start_paused = true)]
    async fn sources_beyond_those_watched_are_limited_by_network() {
        let mut strangers = Strangers::default();
        let now = Instant::now();
        for n in 0..u32::try_from(MAX_SOURCES).unwrap() {
            assert!(strangers.lets(IpAddr::from((0x0a00_0000 + n).to_be_bytes()), now));
        }
        let mut let_in = 0;
        for host in 0..=255 {
            for _ in 0..PER_SOURCE.burst {
                let_in += u32::from(strangers.lets([203, 0, 113, host].into(), now));
            }
        }
        assert_eq!(let_in, PER_SOURCE.burst, "a network beyond them is as good as one address");
        assert!(strangers.sources.len() <= MAX_SOURCES);
        assert!(strangers.lets([10, 0, 0, 1].into(), now), "and nobody else has less for it");
        // Those that have not asked for a while make room.
        tokio::time::advance(Duration::from_mins(1)).await;
        assert!(strangers.lets([203, 0, 113, 1].into(), Instant::now()));
        assert_eq!(strangers.sources.len(), 1);
    }

    #[test]
    fn every_question_counts_and_the_latest_is_told() {
        let (_dir, store) = store();
        let sightings = Sightings::new(store);
        let ask = |thread: i64| {
            for n in 0..3 * LOT {
                let (what, second) = (format!("on-{thread}"), i64::try_from(n).unwrap());
                sightings.booted(node(n as u128 % 5000), what, 7, FROM, at(10 * second + thread));
            }
        };
        std::thread::scope(|scope| {
            for thread in 0..4 {
                scope.spawn(move || ask(thread));
            }
        });
        let all = sightings.all();
        assert_eq!(all.len(), 5000);
        assert_eq!(all.iter().map(|(_, _, seen)| seen.count).sum::<u64>(), 4 * 3 * LOT as u64);
        assert!(all.iter().all(|(_, _, seen)| seen.what == "on-3"));
        // Nobody takes lots away here; those who made too many did it themselves.
        let last = i64::try_from(3 * LOT - 1).unwrap();
        let of = node((3 * LOT - 1) as u128 % 5000);
        let seen = sightings.of(of, Endpoint::Bootscript).unwrap();
        assert_eq!(seen.last, at(10 * last + 3));
    }

    #[tokio::test]
    async fn two_controllers_that_write_one_piece_at_once_come_to_the_same() {
        let (_dir, store) = store();
        let (one, other) = (Sightings::new(Arc::clone(&store)), Sightings::new(store));
        let (a, b) = (node(1), node(1 + PIECES as u128));
        one.booted(a, "first", 1, FROM, at(100));
        one.booted(b, "first", 1, FROM, at(300));
        other.booted(a, "second", 2, FROM, at(200));
        one.flush_once().await.unwrap();
        // It has not heard of the one before, and writes over it.
        other.flush_once().await.unwrap();
        for _ in 0..2 {
            for sightings in [&one, &other] {
                sightings.load().await.unwrap();
                sightings.flush_once().await.unwrap();
            }
        }
        for sightings in [&one, &other] {
            let what = |node| sightings.of(node, Endpoint::Bootscript).unwrap().what;
            assert_eq!((what(a).as_str(), what(b).as_str()), ("second", "first"));
        }
    }

    #[tokio::test]
    async fn a_storm_is_written_bit_by_bit_and_every_piece_gets_its_turn() {
        let (_dir, store) = store();
        let sightings = Sightings::new(Arc::clone(&store));
        let storm = |second| {
            for n in 0..10_000 {
                sightings.booted(node(n), "compute", 7, FROM, at(second));
            }
        };
        storm(100);
        let mut place = 0;
        let mut turns = 1;
        while !sightings.flush_some(&mut place).await.unwrap() {
            // It never ends, and what waits longest still comes next.
            if turns < 20 {
                storm(100 + turns);
            }
            turns += 1;
            assert!(turns < 100, "what changed again is not written for ever");
        }
        assert!(turns > 4, "a megabyte is not written at once");
        let again = Sightings::new(store);
        again.load().await.unwrap();
        assert_eq!(again.all().len(), 10_000);
        assert!(again.all().iter().all(|(_, _, seen)| seen.last >= at(101)), "of every piece");
    }

    #[tokio::test]
    async fn what_could_not_be_written_is_written_later() {
        use hoist_testkit::failing_store::{FailingStore, Mood};
        let dir = tempfile::tempdir().unwrap();
        let store = EmbeddedStore::open(dir.path(), Retention::default()).unwrap();
        let failing = Arc::new(FailingStore::new(store));
        let store: Arc<dyn Store> = failing.clone();
        let sightings = Sightings::new(Arc::clone(&store));
        sightings.booted(node(1), "compute", 7, FROM, at(100));
        failing.set(Mood::Unavailable);
        assert!(sightings.flush_once().await.is_err());
        failing.set(Mood::Working);
        sightings.flush_once().await.unwrap();
        let again = Sightings::new(store);
        again.load().await.unwrap();
        assert_eq!(again.of(node(1), Endpoint::Bootscript).unwrap().what, "compute");
    }
}
