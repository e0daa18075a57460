//! Events: an in-process bus for live readers, kept in the store for readers that resume later.
//!
//! Publishing never waits. Events go to a ring in memory, to live readers, and through a bounded
//! queue to the store. A slow reader is cut by closing its stream; a slow store gets a gap. A gap
//! is never hidden: resuming across one begins with a `reset`.
//!
//! Ids are `incarnation.seq`. An incarnation is one life of one controller; its name begins with
//! its start time, so that `event/<incarnation>/<seq>` is in order across restarts. A clean stop
//! stores an `end` record; an incarnation without one may have lost events.
//!
//! Does not belong here: the audit log (`audit`), and the meaning of events.

use std::collections::VecDeque;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{self, Stream, StreamExt};
use hoist_api::event::{Event, RESET};
use hoist_store::{Key, Op, Store, StoreError, Txn};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::sync::{broadcast, mpsc};
use tokio_util::sync::CancellationToken;

use crate::audit::{Retention, excess};
use crate::clock::Clock;
use crate::scan::{ScanStep, walk};
use crate::secret;

/// Events waiting for the store. Together with one batch in flight this must be less than [`RING`]:
/// an event that has left the ring is in the store, or was counted as lost.
const QUEUE: usize = 2048;
const BATCH: usize = 256;

/// Events that can be replayed from memory.
const RING: usize = 4096;

/// The number of events that a live reader may lag before it is disconnected.
const READER_LAG: usize = 1024;

/// Most events replayed from the store to one reader; who is further behind gets a `reset`.
const REPLAY_MAX: usize = 20_000;

/// Time that a stop waits for the store to accept the last events.
const FLUSH_AT_STOP: Duration = Duration::from_secs(5);

const RETRY_FIRST: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(5);

const PRUNE_BATCH: usize = 500;

/// Clones share one bus.
#[derive(Debug, Clone)]
pub struct EventBus(Arc<Bus>);

/// The position of a reader: the id of the last event that it received.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventId {
    pub incarnation: String,
    pub seq: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not an event id")]
pub struct ParseEventIdError(String);

struct Bus {
    incarnation: String,
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
    live: broadcast::Sender<NumberedEvent>,
    queue: mpsc::Sender<NumberedEvent>,
    /// Taken by the task that writes to the store.
    pending: Mutex<Option<mpsc::Receiver<NumberedEvent>>>,
    closing: CancellationToken,
}

#[derive(Debug, Default)]
struct State {
    /// Number of the newest event; the first is 1.
    last: u64,
    ring: VecDeque<NumberedEvent>,
}

#[derive(Debug, Clone)]
struct NumberedEvent {
    seq: u64,
    event: Arc<Event>,
}

/// `event/<incarnation>/<seq>`.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum EventRecord {
    Event(Event),
    /// Nothing follows in this incarnation, and nothing was lost in it.
    End,
}

impl EventBus {
    pub fn new(store: Arc<dyn Store>, clock: Arc<dyn Clock>) -> Self {
        let began = clock.now().as_millisecond();
        let (queue, pending) = mpsc::channel(QUEUE);
        Self(Arc::new(Bus {
            incarnation: format!("{began:014}-{}", secret::random_text(6)),
            store,
            clock,
            state: Mutex::default(),
            live: broadcast::Sender::new(READER_LAG),
            queue,
            pending: Mutex::new(Some(pending)),
            closing: CancellationToken::new(),
        }))
    }

    /// Publishes an event to all readers. Never waits, never fails. `data` must not hold secrets.
    pub fn publish(&self, kind: &str, subject: &str, data: Value) {
        let bus = &self.0;
        let at = bus.clock.now().to_string();
        let mut state = bus.state.lock();
        state.last += 1;
        let seq = state.last;
        let event =
            Event { id: bus.id(seq), at, kind: kind.to_owned(), subject: subject.to_owned(), data };
        let numbered = NumberedEvent { seq, event: Arc::new(event) };
        if state.ring.len() == RING {
            state.ring.pop_front();
        }
        state.ring.push_back(numbered.clone());
        // Under the lock, so that every reader and the store see the same order.
        let _ = bus.live.send(numbered.clone());
        if bus.queue.try_send(numbered).is_err() {
            metrics::counter!("hoist_events_lost_total").increment(1);
        }
        drop(state);
        metrics::counter!("hoist_events_total").increment(1);
        metrics::gauge!("hoist_event_queue").set(as_gauge(QUEUE - bus.queue.capacity()));
    }

    /// The id of the newest event.
    pub fn last_id(&self) -> String {
        self.0.id(self.0.state.lock().last)
    }

    /// All events after `since`, then new ones; without `since` only new ones.
    ///
    /// The stream begins with a `reset` when events after `since` are gone, and ends when its
    /// reader is too slow or the bus closes.
    pub async fn subscribe(
        &self,
        since: Option<EventId>,
    ) -> impl Stream<Item = Arc<Event>> + Send + 'static {
        let bus = &self.0;
        let (live, last, ring) = {
            let state = bus.state.lock();
            (bus.live.subscribe(), state.last, state.ring.clone())
        };
        let backlog = match since {
            None => Vec::new(),
            Some(since) => match bus.replay(&since, last, &ring).await {
                Ok(events) => events,
                Err(reason) => {
                    metrics::counter!("hoist_event_resets_total").increment(1);
                    vec![Arc::new(Event {
                        id: bus.id(last),
                        at: bus.clock.now().to_string(),
                        kind: RESET.to_owned(),
                        subject: "events".to_owned(),
                        data: json!({ "reason": reason }),
                    })]
                }
            },
        };
        stream::iter(backlog).chain(follow(live, last, bus.closing.clone()))
    }

    /// The last `count` events, then new ones. Older ones than those in memory come from the store,
    /// which has those of earlier lives of this controller and of its siblings.
    pub async fn subscribe_recent(
        &self,
        count: usize,
    ) -> impl Stream<Item = Arc<Event>> + Send + 'static {
        let bus = &self.0;
        let (live, last, ring) = {
            let state = bus.state.lock();
            (bus.live.subscribe(), state.last, state.ring.clone())
        };
        let missing = count.saturating_sub(ring.len());
        let mut recent = if missing > 0 { bus.stored_elsewhere(missing).await } else { Vec::new() };
        let skipped = ring.len().saturating_sub(count);
        recent.extend(ring.iter().skip(skipped).map(|numbered| Arc::clone(&numbered.event)));
        stream::iter(recent).chain(follow(live, last, bus.closing.clone()))
    }

    /// Writes events to the store until [`EventBus::close`], then the remaining ones.
    pub(crate) async fn flush(self) {
        let bus = &self.0;
        let pending = bus.pending.lock().take();
        let Some(mut pending) = pending else { return };
        loop {
            let mut batch = Vec::with_capacity(BATCH);
            tokio::select! {
                biased;
                count = pending.recv_many(&mut batch, BATCH) => if count == 0 { return },
                () = bus.closing.cancelled() => break,
            }
            tokio::select! {
                () = bus.write(&batch) => {}
                () = bus.closing.cancelled() => {
                    bus.write_last(&batch, &mut pending).await;
                    return;
                }
            }
            metrics::gauge!("hoist_event_queue").set(as_gauge(pending.len()));
        }
        bus.write_last(&[], &mut pending).await;
    }

    /// Ends every reader's stream and lets [`EventBus::flush`] finish.
    pub(crate) fn close(&self) {
        self.0.closing.cancel();
    }

    /// Removes what `retention` does not keep. Returns how many events went.
    pub async fn prune(&self, retention: Retention) -> Result<usize, StoreError> {
        let bus = &self.0;
        let mut held = Vec::new();
        walk(bus.store.as_ref(), &top(), None, |record| {
            let at = match serde_json::from_slice(&record.value) {
                Ok(EventRecord::Event(event)) => event.at.parse().ok(),
                _ => None,
            };
            let bytes = u64::try_from(record.value.len()).unwrap_or(u64::MAX);
            held.push((record.key, at, bytes));
            ScanStep::Go
        })
        .await?;
        let cut =
            excess(held.iter().map(|(_, at, bytes)| (*at, *bytes)), bus.clock.now(), retention);
        for batch in held[..cut].chunks(PRUNE_BATCH) {
            let ops = batch.iter().map(|(key, ..)| Op::Delete(key.clone())).collect();
            bus.store.commit(Txn { compares: vec![], ops }).await?;
        }
        Ok(cut)
    }
}

impl Bus {
    fn id(&self, seq: u64) -> String {
        format!("{}.{seq}", self.incarnation)
    }

    /// The events after `since` up to our own `last`, or why they cannot be had.
    async fn replay(
        &self,
        since: &EventId,
        last: u64,
        ring: &VecDeque<NumberedEvent>,
    ) -> Result<Vec<Arc<Event>>, &'static str> {
        let ring_first = ring.front().map_or(last + 1, |numbered| numbered.seq);
        let own = since.incarnation == self.incarnation;
        if own && since.seq > last {
            return Err("this id is not given out yet");
        }
        let mut events = Vec::new();
        // Our own events up to the ring, and older incarnations, come from the store.
        let from_ring = if own && since.seq + 1 >= ring_first {
            since.seq + 1
        } else {
            let own_until = ring_first - 1;
            self.replay_stored(since, own_until, &mut events).await?;
            ring_first
        };
        let rest = ring.iter().filter(|numbered| numbered.seq >= from_ring);
        events.extend(rest.map(|numbered| Arc::clone(&numbered.event)));
        Ok(events)
    }

    async fn replay_stored(
        &self,
        since: &EventId,
        own_until: u64,
        events: &mut Vec<Arc<Event>>,
    ) -> Result<(), &'static str> {
        let mut at = since.clone();
        let mut ended = false;
        let mut reason: Option<&'static str> = None;
        let start = key_of(&since.incarnation, since.seq);
        let walked = walk(self.store.as_ref(), &top(), Some(start), |record| {
            let Some(id) = id_of(&record.key) else { return ScanStep::Go };
            if id.incarnation > self.incarnation
                || (id.incarnation == self.incarnation && id.seq > own_until)
            {
                return ScanStep::Enough;
            }
            if id.incarnation != at.incarnation {
                if !ended {
                    reason = Some("the controller stopped without storing its last events");
                    return ScanStep::Enough;
                }
                at = EventId { incarnation: id.incarnation.clone(), seq: 0 };
                ended = false;
            }
            if id.seq != at.seq + 1 || events.len() == REPLAY_MAX {
                reason = Some("events are missing");
                return ScanStep::Enough;
            }
            at = id;
            match serde_json::from_slice(&record.value) {
                Ok(EventRecord::Event(event)) => events.push(Arc::new(event)),
                Ok(EventRecord::End) => ended = true,
                Err(_) => {
                    reason = Some("stored events cannot be read");
                    return ScanStep::Enough;
                }
            }
            ScanStep::Go
        })
        .await;
        if let Err(error) = walked {
            tracing::warn!(error = %hoist_diagnostic::chain(&error), "events not replayed");
            return Err("the store cannot be read");
        }
        if let Some(reason) = reason {
            return Err(reason);
        }
        let complete = if at.incarnation == self.incarnation {
            at.seq == own_until
        } else {
            ended && own_until == 0
        };
        if complete { Ok(()) } else { Err("events are missing") }
    }

    /// The last `count` stored events of other incarnations, in the order of their times.
    async fn stored_elsewhere(&self, count: usize) -> Vec<Arc<Event>> {
        let mut newest: VecDeque<Arc<Event>> = VecDeque::with_capacity(count);
        let walked = walk(self.store.as_ref(), &top(), None, |record| {
            let is_own = id_of(&record.key).is_none_or(|id| id.incarnation == self.incarnation);
            if let (false, Ok(EventRecord::Event(event))) =
                (is_own, serde_json::from_slice(&record.value))
            {
                if newest.len() == count {
                    newest.pop_front();
                }
                newest.push_back(Arc::new(event));
            }
            ScanStep::Go
        })
        .await;
        if let Err(error) = walked {
            tracing::warn!(error = %hoist_diagnostic::chain(&error), "stored events not read");
        }
        let mut newest: Vec<_> = newest.into();
        newest.sort_by(|a, b| a.at.cmp(&b.at));
        newest
    }

    /// Stores the batch, trying until it is done. Meanwhile the queue fills and then overflows.
    async fn write(&self, batch: &[NumberedEvent]) {
        let ops: Vec<Op> = batch
            .iter()
            .map(|numbered| {
                let stored = EventRecord::Event(Event::clone(&numbered.event));
                Op::Put(self.key(numbered.seq), to_json(&stored))
            })
            .collect();
        let mut pause = RETRY_FIRST;
        while let Err(error) = self.store.commit(Txn { compares: vec![], ops: ops.clone() }).await {
            tracing::warn!(error = %hoist_diagnostic::chain(&error), "events not stored yet");
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(RETRY_MAX);
        }
    }

    /// The last events of this incarnation and, when all before them are there, its end.
    async fn write_last(
        &self,
        batch: &[NumberedEvent],
        pending: &mut mpsc::Receiver<NumberedEvent>,
    ) {
        let mut rest = batch.to_vec();
        pending.close();
        while let Ok(numbered) = pending.try_recv() {
            rest.push(numbered);
        }
        let end = async {
            self.write(&rest).await;
            let last = self.state.lock().last;
            let op = Op::Put(self.key(last + 1), to_json(&EventRecord::End));
            self.store.commit(Txn { compares: vec![], ops: vec![op] }).await
        };
        let ended = tokio::time::timeout(FLUSH_AT_STOP, end).await;
        if !matches!(ended, Ok(Ok(_))) {
            tracing::warn!(unwritten = rest.len(), "last events not stored");
        }
    }

    fn key(&self, seq: u64) -> Key {
        key_of(&self.incarnation, seq)
    }
}

impl fmt::Debug for Bus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bus").field("incarnation", &self.incarnation).finish_non_exhaustive()
    }
}

/// Live events after `last`, until the reader lags or the bus closes.
fn follow(
    live: broadcast::Receiver<NumberedEvent>,
    last: u64,
    closing: CancellationToken,
) -> impl Stream<Item = Arc<Event>> + Send + 'static {
    stream::unfold((live, closing), move |(mut live, closing)| async move {
        loop {
            let received = tokio::select! {
                received = live.recv() => received,
                () = closing.cancelled() => return None,
            };
            match received {
                Ok(numbered) if numbered.seq <= last => {}
                Ok(numbered) => return Some((numbered.event, (live, closing))),
                Err(broadcast::error::RecvError::Lagged(_)) => {
                    metrics::counter!("hoist_event_readers_cut_total").increment(1);
                    return None;
                }
                Err(broadcast::error::RecvError::Closed) => return None,
            }
        }
    })
}

fn to_json(stored: &EventRecord) -> Vec<u8> {
    serde_json::to_vec(stored).expect("plain structs always serialize")
}

#[expect(clippy::cast_precision_loss, reason = "queue lengths are small")]
fn as_gauge(count: usize) -> f64 {
    count as f64
}

fn top() -> Key {
    "event".parse().expect("a literal key")
}

fn key_of(incarnation: &str, seq: u64) -> Key {
    top().child(incarnation).child(&format!("{seq:020}"))
}

fn id_of(key: &Key) -> Option<EventId> {
    let mut parts = key.as_str().split('/').skip(1);
    let incarnation = parts.next()?.to_owned();
    Some(EventId { incarnation, seq: parts.next()?.parse().ok()? })
}

impl FromStr for EventId {
    type Err = ParseEventIdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parsed = text.split_once('.').and_then(|(incarnation, seq)| {
            let plain = (1..=64).contains(&incarnation.len())
                && incarnation.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
            let seq = if plain { seq.parse().ok()? } else { return None };
            Some(Self { incarnation: incarnation.to_owned(), seq })
        });
        parsed.ok_or_else(|| ParseEventIdError(text.to_owned()))
    }
}

impl fmt::Display for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.incarnation, self.seq)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::SystemClock;
    use hoist_testkit::eventually_async;
    use hoist_testkit::stores::{TestStore, test_store};

    fn bus_on(store: &Arc<TestStore>) -> EventBus {
        EventBus::new(Arc::clone(store) as Arc<dyn Store>, Arc::new(SystemClock))
    }

    #[tokio::test]
    async fn the_recent_past_spans_a_restart() {
        let store = test_store();
        let clock = Arc::new(crate::clock::SystemClock);
        let first = EventBus::new(Arc::clone(&store) as Arc<dyn Store>, clock.clone());
        let writing = tokio::spawn(first.clone().flush());
        for n in 0..5 {
            first.publish(&format!("old.{n}"), "x", Value::Null);
        }
        first.close();
        writing.await.unwrap();
        let second = EventBus::new(Arc::clone(&store) as Arc<dyn Store>, clock);
        second.publish("new.0", "x", Value::Null);
        second.publish("new.1", "x", Value::Null);
        for (count, expected) in [
            (1, vec!["new.1"]),
            (2, vec!["new.0", "new.1"]),
            (4, vec!["old.3", "old.4", "new.0", "new.1"]),
        ] {
            let stream = second.subscribe_recent(count).await;
            let events: Vec<_> = stream.take(expected.len()).collect().await;
            let kinds: Vec<_> = events.iter().map(|event| event.kind.as_str()).collect();
            assert_eq!(kinds, expected);
        }
    }

    async fn kinds(bus: &EventBus, since: &str, count: usize) -> Vec<String> {
        let stream = bus.subscribe(Some(since.parse().unwrap())).await;
        let all = stream.take(count).map(|event| event.kind.clone()).collect();
        tokio::time::timeout(Duration::from_secs(10), all).await.expect("that many events come")
    }

    async fn end(bus: EventBus) {
        bus.close();
        bus.flush().await;
    }

    #[tokio::test]
    async fn a_reader_goes_on_where_it_was() {
        let store = test_store();
        let bus = bus_on(&store);
        bus.publish("a", "x", Value::Null);
        let seen = bus.last_id();
        bus.publish("b", "x", Value::Null);
        assert_eq!(kinds(&bus, &seen, 1).await, ["b"]);
    }

    #[tokio::test]
    async fn events_beyond_the_ring_come_from_the_store() {
        let store = test_store();
        let bus = bus_on(&store);
        bus.publish("first", "x", Value::Null);
        let seen = bus.last_id();
        let flusher = tokio::spawn(bus.clone().flush());
        for _ in 0..RING + 10 {
            bus.publish("more", "x", Value::Null);
            // A disk may be slower than this loop; here nothing is to be lost.
            let has_room = async || bus.0.queue.capacity() >= QUEUE / 2;
            eventually_async("queue of events has room", has_room).await;
        }
        assert_eq!(kinds(&bus, &seen, RING + 10).await, vec!["more"; RING + 10]);
        bus.close();
        flusher.await.unwrap();
    }

    #[tokio::test]
    async fn a_clean_restart_loses_nothing() {
        let store = test_store();
        let bus = bus_on(&store);
        bus.publish("a", "x", Value::Null);
        let seen = bus.last_id();
        bus.publish("b", "x", Value::Null);
        end(bus).await;
        // Ids of events begin with milliseconds, and must not repeat those before the restart.
        let stopped = jiff::Timestamp::now().as_millisecond();
        let later = async || jiff::Timestamp::now().as_millisecond() > stopped + 1;
        eventually_async("clock has moved on", later).await;
        let bus = bus_on(&store);
        bus.publish("c", "x", Value::Null);
        assert_eq!(kinds(&bus, &seen, 2).await, ["b", "c"]);
    }

    #[tokio::test]
    async fn lost_continuity_is_said() {
        let store = test_store();
        let crashed = bus_on(&store);
        crashed.publish("a", "x", Value::Null);
        let seen = crashed.last_id();
        drop(crashed);
        let bus = bus_on(&store);
        assert_eq!(kinds(&bus, &seen, 1).await, [RESET]);
        assert_eq!(kinds(&bus, "00000000000000-kettle.7", 1).await, [RESET]);
        let future = format!("{}9", bus.last_id());
        assert_eq!(kinds(&bus, &future, 1).await, [RESET]);
    }

    #[tokio::test]
    async fn a_full_queue_leaves_a_gap_that_is_noticed() {
        let store = test_store();
        let bus = bus_on(&store);
        bus.publish("a", "x", Value::Null);
        let seen = bus.last_id();
        for _ in 0..RING + QUEUE {
            bus.publish("b", "x", Value::Null);
        }
        assert_eq!(kinds(&bus, &seen, 1).await, [RESET]);
        end(bus).await;
        let next = bus_on(&store);
        assert_eq!(kinds(&next, &seen, 1).await, [RESET]);
    }

    #[tokio::test]
    async fn a_slow_reader_is_cut() {
        let bus = bus_on(&test_store());
        let stream = bus.subscribe(None).await;
        for _ in 0..=READER_LAG {
            bus.publish("a", "x", Value::Null);
        }
        assert_eq!(stream.count().await, 0);
    }

    #[tokio::test]
    async fn old_events_go() {
        let store = test_store();
        let bus = bus_on(&store);
        bus.publish("a", "x", Value::Null);
        end(bus.clone()).await;
        let keep = Retention { max_age: Duration::from_hours(1), max_bytes: 1 << 20 };
        assert_eq!(bus.prune(keep).await.unwrap(), 0);
        assert_eq!(bus.prune(Retention { max_bytes: 0, ..keep }).await.unwrap(), 2);
    }
}
