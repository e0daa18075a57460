//! The boot log: which node asked for which document, when, and what it got. One row per node and
//! endpoint, and one per unknown machine.
//!
//! Rows are in memory and written behind every few seconds: a crash loses the last seconds of the
//! log and nothing else. Rows of other controllers are followed, so that each controller shows the
//! whole site.
//!
//! Does not belong here: the decision about an answer, and the list of unknown machines
//! (`unknown_machines`).

use std::cell::Cell;
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use compact_str::CompactString;
use hoist_model::{Mac, NodeId};
use hoist_store::follow::{Follower, follow};
use hoist_store::{Batch, Change, Key, Op, Prefix, Record, Revision, Store, StoreError, Txn};
use jiff::Timestamp;
use parking_lot::{Mutex, MutexGuard};
use serde::{Deserialize, Serialize};
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::unknown_addresses::{UnknownAddress, UnknownAddresses};
use super::unknown_machines::{
    Allowance, MachineChanges, UnknownMachine, UnknownMachines, UnknownRequest,
};

/// How often rows are written.
const FLUSH_EVERY: Duration = Duration::from_secs(5);
/// The same while there are more than fit into one transaction.
const FLUSH_ON: Duration = Duration::from_secs(1);
const PAGE: usize = 5_000;
/// Unknown machines in one transaction.
const BATCH: usize = 1_000;
/// Bytes of rows in one transaction. Writing them takes a core for some two milliseconds, and
/// machines that ask wait as long; all rows of 100,000 nodes at once were a hundred.
const BATCH_BYTES: usize = 256 * 1024;

/// Rows are kept in so many pieces, in memory, so that a storm does not queue at one lock, and in
/// the store: a row of its own for every node that asks would cost more than all the answers (seen:
/// 45 µs a row, 15 µs an answer). A million nodes are pieces of a thousand rows, some 150 KB.
const PIECES: usize = 1024;

/// Requests that a thread batches before they are merged into the rows: a row is a cache miss, and
/// merging many requests per shard amortises it.
const LOT: usize = 16_384;
/// Full lots that may wait. The thread that has one more puts it into the rows itself.
const MAX_WAITING: usize = 8;
/// As `nice` takes it.
const LAST: i32 = 19;
/// Shards merged before the thread yields the core: about 30 µs.
const PIECES_AT_A_TIME: usize = 16;
/// Threads that need not share a lot.
const LOTS: usize = 16;

/// Cheap to clone; all clones are the same.
#[derive(Debug, Clone)]
pub struct BootLog(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    store: Arc<dyn Store>,
    hasher: RandomState,
    /// For every endpoint.
    pieces: [Vec<Mutex<Piece>>; Endpoint::ALL.len()],
    lots: [Mutex<Vec<AnsweredRequest>>; LOTS],
    waiting: Mutex<Vec<Vec<AnsweredRequest>>>,
    /// Empty batches for reuse: the first write to fresh memory is slow.
    spare: Mutex<Vec<Vec<AnsweredRequest>>>,
    /// Notified for each batch in `waiting`.
    full: Notify,
    machines: Mutex<UnknownMachines>,
    addresses: Mutex<UnknownAddresses>,
}

/// A quicker hash than the usual one: it is taken for every request.
type Rows = HashMap<NodeId, BootLogRow, hashbrown::DefaultHashBuilder>;

#[derive(Debug, Default)]
struct Piece {
    rows: Rows,
    /// Whether the store lacks something of it.
    changed: bool,
    /// Hash of this controller's last write, to ignore its echo in the watch.
    written: u64,
}

/// A request of a node that was answered.
#[derive(Debug)]
struct AnsweredRequest {
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
    /// Requests for a boot script that ended in an error. BSS has no such history.
    BootscriptError,
}

/// The last request of a node at an endpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BootLogRow {
    pub last: Timestamp,
    /// Since the row was made.
    pub count: u64,
    /// The answer: the name of a configuration, `bss:…`, `disk`, or the detail of an error.
    #[serde(default, skip_serializing_if = "CompactString::is_empty")]
    pub what: CompactString,
    /// The revision of that.
    #[serde(default)]
    pub revision: u64,
    pub from: IpAddr,
}

impl Endpoint {
    pub const ALL: [Self; 3] = [Self::Bootscript, Self::UserData, Self::BootscriptError];
    /// Those that BSS has.
    pub const BSS: [Self; 2] = [Self::Bootscript, Self::UserData];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Bootscript => "bootscript",
            Self::UserData => "user-data",
            Self::BootscriptError => "bootscript-error",
        }
    }

    fn place(self) -> usize {
        match self {
            Self::Bootscript => 0,
            Self::UserData => 1,
            Self::BootscriptError => 2,
        }
    }

    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|endpoint| endpoint.as_str() == word)
    }
}

impl BootLog {
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
            machines: Mutex::default(),
            addresses: Mutex::default(),
        }))
    }

    fn piece_of(&self, node: NodeId, endpoint: Endpoint) -> MutexGuard<'_, Piece> {
        self.piece(place_of(node), endpoint)
    }

    fn piece(&self, at: usize, endpoint: Endpoint) -> MutexGuard<'_, Piece> {
        self.0.pieces[endpoint.place()][at].lock()
    }

    pub(super) fn note_boot(
        &self,
        node: NodeId,
        what: impl Into<CompactString>,
        revision: u64,
        from: IpAddr,
        now: Timestamp,
    ) {
        self.note_request(node, Endpoint::Bootscript, what, revision, from, now);
    }

    /// Records an answered request of a node.
    pub(crate) fn note_request(
        &self,
        node: NodeId,
        endpoint: Endpoint,
        what: impl Into<CompactString>,
        revision: u64,
        from: IpAddr,
        at: Timestamp,
    ) {
        let request = AnsweredRequest { node, endpoint, what: what.into(), revision, from, at };
        let mut lot = self.0.lots[own_lot()].lock();
        lot.push(request);
        if lot.len() < LOT {
            return;
        }
        let spare = self.0.spare.lock().pop().unwrap_or_else(|| Vec::with_capacity(LOT));
        let full = std::mem::replace(&mut *lot, spare);
        drop(lot);
        let mut waiting = self.0.waiting.lock();
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
        let mut all = std::mem::take(&mut *self.0.waiting.lock());
        all.extend(self.0.lots.iter().map(|lot| std::mem::take(&mut *lot.lock())));
        for lot in all {
            self.put(lot);
        }
    }

    fn put(&self, mut lot: Vec<AnsweredRequest>) {
        lot.sort_by_cached_key(|request| (request.endpoint, place_of(request.node)));
        let mut requests = lot.drain(..).peekable();
        let mut pieces = 0;
        while let Some(request) = requests.next() {
            pieces += 1;
            if pieces % PIECES_AT_A_TIME == 0 {
                // Being last is not enough: the kernel lets a thread go on for some milliseconds.
                std::thread::yield_now();
            }
            let endpoint = request.endpoint;
            let at = place_of(request.node);
            let mut piece = self.piece(at, endpoint);
            piece.put(request);
            let same =
                |next: &AnsweredRequest| next.endpoint == endpoint && place_of(next.node) == at;
            while let Some(request) = requests.next_if(same) {
                piece.put(request);
            }
        }
        drop(requests);
        let mut spare = self.0.spare.lock();
        if lot.capacity() >= LOT && spare.len() < MAX_WAITING {
            spare.push(lot);
        }
    }

    pub fn of(&self, node: NodeId, endpoint: Endpoint) -> Option<BootLogRow> {
        self.settle();
        self.piece_of(node, endpoint).rows.get(&node).cloned()
    }

    /// Every row, in no order.
    pub fn all(&self) -> Vec<(NodeId, Endpoint, BootLogRow)> {
        self.settle();
        let mut all = Vec::new();
        for endpoint in Endpoint::ALL {
            for piece in &self.0.pieces[endpoint.place()] {
                let piece = piece.lock();
                all.extend(piece.rows.iter().map(|(node, seen)| (*node, endpoint, seen.clone())));
            }
        }
        all
    }

    /// Records the request of an unknown machine.
    pub(super) fn note_unknown(&self, request: &UnknownRequest<'_>) -> Allowance {
        self.0.machines.lock().note(request)
    }

    /// The unknown machines, latest first.
    pub fn unknown_machines(&self) -> Vec<UnknownMachine> {
        self.0.machines.lock().list()
    }

    /// Records that an address of no enabled node asked for metadata; whether it is time to log it.
    pub(crate) fn note_unknown_address(
        &self,
        from: IpAddr,
        agent: Option<&str>,
        at: Timestamp,
    ) -> bool {
        self.0.addresses.lock().note(from, agent, at)
    }

    /// Those addresses, latest first.
    pub(super) fn unknown_addresses(&self) -> Vec<UnknownAddress> {
        self.0.addresses.lock().list()
    }

    pub(super) fn forget_address(&self, from: IpAddr) -> bool {
        self.0.addresses.lock().forget(from)
    }

    /// Removes a machine from the list: it has become a node, or an operator removed it.
    pub fn forget(&self, mac: Mac) {
        self.0.machines.lock().forget(mac);
    }
}

/// Writing to the store and following it.
impl BootLog {
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

    /// Merges on a thread of the lowest priority: sorting a batch takes milliseconds, which booting
    /// machines must not wait for.
    async fn settle_aside(&self) {
        let boot_log = self.clone();
        let (done, settled) = oneshot::channel();
        let thread = std::thread::Builder::new().name("history".to_owned()).spawn(move || {
            // Of this thread only; without it, history is as urgent as everything else.
            if let Err(error) = rustix::process::setpriority_process(None, LAST) {
                tracing::debug!(%error, "boot history is not put behind everything else");
            }
            boot_log.settle();
            // The waiting caller may close the store next.
            drop(boot_log);
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
        let mut batch = Vec::new();
        let mut size = 0;
        let mut looked_at = 0;
        while looked_at < all && size < BATCH_BYTES {
            let endpoint = Endpoint::ALL[*place / PIECES];
            let at = *place % PIECES;
            if let Some(value) = self.take_changed(at, endpoint) {
                size += value.len();
                batch.push((at, endpoint, value));
            }
            *place = (*place + 1) % all;
            looked_at += 1;
        }
        self.write_pieces(batch).await?;
        self.flush_machines().await?;
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

    async fn flush_machines(&self) -> Result<(), StoreError> {
        let MachineChanges { gone, changed } = self.0.machines.lock().take_changes();
        let mut ops: Vec<Op> = gone.into_iter().map(|mac| Op::Delete(machine_key(mac))).collect();
        let put = |machine: UnknownMachine| Op::Put(machine_key(machine.mac), bytes(&machine));
        ops.extend(changed.into_iter().map(put));
        let mut rest = ops.as_slice();
        while !rest.is_empty() {
            let (batch, tail) = rest.split_at(BATCH.min(rest.len()));
            let txn = Txn { compares: Vec::new(), ops: batch.to_vec() };
            if let Err(error) = self.0.store.commit(txn).await {
                self.restore_changes(rest);
                return Err(error);
            }
            rest = tail;
        }
        Ok(())
    }

    /// Marks changes that could not be stored, so that the next flush contains them.
    fn restore_changes(&self, ops: &[Op]) {
        let mut machines = self.0.machines.lock();
        for op in ops {
            let (Op::Put(key, _) | Op::Delete(key)) = op else {
                continue;
            };
            if let Some(RowKey::Machine(mac)) = parse_key(key) {
                machines.restore_change(mac);
            }
        }
    }

    /// Loads the stored log and follows other controllers' writes until `stop`.
    pub async fn follow(self, stop: CancellationToken) {
        let store = Arc::clone(&self.0.store);
        stop.run_until_cancelled(follow(store.as_ref(), &prefix(), &self)).await;
    }

    /// Merges a row of another controller. The watch also delivers this controller's own rows.
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
            Some(RowKey::Machine(_)) => {
                let Ok(machine) = serde_json::from_slice::<UnknownMachine>(&record.value) else {
                    return;
                };
                self.0.machines.lock().take_in(machine);
            }
            None => {}
        }
    }
}

#[async_trait]
impl Follower for BootLog {
    type Error = StoreError;

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

    async fn apply(&self, batch: Batch) -> Result<(), StoreError> {
        for change in batch.changes {
            match change {
                Change::Put(record) => self.take_in(&record),
                Change::Delete(key) => {
                    if let Some(RowKey::Machine(mac)) = parse_key(&key) {
                        self.0.machines.lock().remove(mac);
                    }
                }
            }
        }
        Ok(())
    }

    async fn failed(&self, error: StoreError) {
        tracing::debug!(%error, "boot log of other controllers not followed");
    }
}

impl Piece {
    /// Batches of several threads arrive out of order.
    fn put(&mut self, request: AnsweredRequest) {
        let AnsweredRequest { node, what, revision, from, at, .. } = request;
        self.changed = true;
        let fresh =
            || BootLogRow { last: at, count: 0, what: CompactString::default(), revision, from };
        let seen = self.rows.entry(node).or_insert_with(fresh);
        seen.count += 1;
        if at >= seen.last {
            *seen = BootLogRow { last: at, count: seen.count, what, revision, from };
        }
    }

    /// The newer of every two rows stays. Where that is ours, the store gets it with the next
    /// flush: two controllers that wrote at once come to the same that way.
    fn take_in(&mut self, others: Rows) {
        let newer = |ours: &BootLogRow, theirs: Option<&BootLogRow>| {
            theirs.is_none_or(|t| t.last < ours.last)
        };
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
    Machine(Mac),
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

fn machine_key(mac: Mac) -> Key {
    key(&format!("seen/machine/{mac}"))
}

fn parse_key(key: &Key) -> Option<RowKey> {
    let (kind, name) = key.as_str().strip_prefix("seen/")?.split_once('/')?;
    match Endpoint::from_word(kind) {
        Some(endpoint) => {
            let at = usize::from_str_radix(name, 16).ok().filter(|at| *at < PIECES)?;
            Some(RowKey::Piece(at, endpoint))
        }
        None if kind == "machine" => Some(RowKey::Machine(name.parse().ok()?)),
        None => None,
    }
}

fn key(text: &str) -> Key {
    text.parse().expect("ids and MACs are valid segments")
}

fn bytes(row: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(row).expect("a plain record")
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
        let boot_log = BootLog::new(Arc::clone(&store));
        // More than the pieces, so that some share one.
        for n in 0..3000 {
            boot_log.note_boot(node(n), "compute", 7, FROM, at(100));
        }
        boot_log.note_request(node(5), Endpoint::UserData, "seed", 1, FROM, at(101));
        boot_log.flush_once().await.unwrap();
        let again = BootLog::new(store);
        again.load().await.unwrap();
        let sorted = |boot_log: &BootLog| {
            let mut all = boot_log.all();
            all.sort_by_key(|(node, endpoint, _)| (*node, *endpoint));
            all
        };
        assert_eq!(sorted(&again).len(), 3001);
        assert_eq!(sorted(&again), sorted(&boot_log));
    }

    #[test]
    fn every_request_counts_and_the_latest_is_shown() {
        let (_dir, store) = store();
        let boot_log = BootLog::new(store);
        let ask = |thread: i64| {
            for n in 0..3 * LOT {
                let what = format!("on-{thread}");
                let second = i64::try_from(n).unwrap();
                boot_log.note_boot(node(n as u128 % 5000), what, 7, FROM, at(10 * second + thread));
            }
        };
        std::thread::scope(|scope| {
            for thread in 0..4 {
                scope.spawn(move || ask(thread));
            }
        });
        let all = boot_log.all();
        assert_eq!(all.len(), 5000);
        assert_eq!(all.iter().map(|(_, _, seen)| seen.count).sum::<u64>(), 4 * 3 * LOT as u64);
        assert!(all.iter().all(|(_, _, seen)| seen.what == "on-3"));
        // No background task merges here; the writers that exceeded the limit did.
        let last = i64::try_from(3 * LOT - 1).unwrap();
        let of = node((3 * LOT - 1) as u128 % 5000);
        let seen = boot_log.of(of, Endpoint::Bootscript).unwrap();
        assert_eq!(seen.last, at(10 * last + 3));
    }

    #[tokio::test]
    async fn concurrent_writes_of_one_boot_log_piece_merge() {
        let (_dir, store) = store();
        let one = BootLog::new(Arc::clone(&store));
        let other = BootLog::new(store);
        let a = node(1);
        let b = node(1 + PIECES as u128);
        one.note_boot(a, "first", 1, FROM, at(100));
        one.note_boot(b, "first", 1, FROM, at(300));
        other.note_boot(a, "second", 2, FROM, at(200));
        one.flush_once().await.unwrap();
        // It has not heard of the one before, and writes over it.
        other.flush_once().await.unwrap();
        for _ in 0..2 {
            for boot_log in [&one, &other] {
                boot_log.load().await.unwrap();
                boot_log.flush_once().await.unwrap();
            }
        }
        for boot_log in [&one, &other] {
            let what = |node| boot_log.of(node, Endpoint::Bootscript).unwrap().what;
            assert_eq!((what(a).as_str(), what(b).as_str()), ("second", "first"));
        }
    }

    #[tokio::test]
    async fn a_storm_is_written_bit_by_bit_and_every_piece_gets_its_turn() {
        let (_dir, store) = store();
        let boot_log = BootLog::new(Arc::clone(&store));
        let storm = |second| {
            for n in 0..10_000 {
                boot_log.note_boot(node(n), "compute", 7, FROM, at(second));
            }
        };
        storm(100);
        let mut place = 0;
        let mut permits = 1;
        while !boot_log.flush_some(&mut place).await.unwrap() {
            // It never ends, and what waits longest still comes next.
            if permits < 20 {
                storm(100 + permits);
            }
            permits += 1;
            assert!(permits < 100, "what changed again is not written for ever");
        }
        assert!(permits > 4, "a megabyte is not written at once");
        let again = BootLog::new(store);
        again.load().await.unwrap();
        assert_eq!(again.all().len(), 10_000);
        assert!(again.all().iter().all(|(_, _, seen)| seen.last >= at(101)), "of every piece");
    }

    #[tokio::test]
    async fn failed_writes_are_retried_later() {
        use hoist_testkit::failing_store::{FailingStore, Mood};
        let dir = tempfile::tempdir().unwrap();
        let store = EmbeddedStore::open(dir.path(), Retention::default()).unwrap();
        let failing = Arc::new(FailingStore::new(store));
        let store: Arc<dyn Store> = failing.clone();
        let boot_log = BootLog::new(Arc::clone(&store));
        boot_log.note_boot(node(1), "compute", 7, FROM, at(100));
        failing.set(Mood::Unavailable);
        assert!(boot_log.flush_once().await.is_err());
        failing.set(Mood::Working);
        boot_log.flush_once().await.unwrap();
        let again = BootLog::new(store);
        again.load().await.unwrap();
        assert_eq!(again.of(node(1), Endpoint::Bootscript).unwrap().what, "compute");
    }
}
