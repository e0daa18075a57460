//! Watches on etcd: events in, whole commits out.
//!
//! One etcd watch covers `pending` and all records, because only within one watch are events
//! ordered; the prefix is picked out here. The chunks of a large transaction are gathered from its
//! flip to its end and handed out as the one commit that they are, with the flip's revision.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use hoist_etcd_proto::etcdserverpb as pb;
use hoist_etcd_proto::mvccpb::Event;
use hoist_etcd_proto::mvccpb::event::EventType;

use super::client::{self, WatchConnection};
use super::layout::{PendingTransaction, State, one, revision};
use super::{BUSY_TIMEOUT, Inner};
use crate::{Batch, Change, Key, Prefix, Revision, StoreError, WatchProgress};

/// Interval between progress requests to a member.
const PROGRESS_EVERY: Duration = Duration::from_secs(1);

/// A member that does not answer that for this long hangs; the next watch asks another member.
const SILENT_LIMIT: Duration = Duration::from_secs(3);

/// Deadline for the server to confirm a watch.
const CREATE_TIMEOUT: Duration = Duration::from_secs(4);

pub(super) struct Follower {
    inner: Arc<Inner>,
    prefix: Prefix,
    after: Revision,
    connection: WatchConnection,
    progress: WatchProgress,
    /// When the member was last asked.
    asked: Instant,
    /// Since when the member owes an answer.
    unanswered: Option<Instant>,
    ready: VecDeque<Batch>,
    large: Option<Large>,
}

/// A large transaction between its flip and its end.
struct Large {
    /// `None` when the watch began after the flip: the commit is not news to this watcher.
    revision: Option<Revision>,
    changes: BTreeMap<Key, Change>,
    /// Leases that ended meanwhile; they come after it.
    later: Vec<Batch>,
}

impl Follower {
    pub(super) async fn start(
        inner: Arc<Inner>,
        prefix: Prefix,
        after: Revision,
    ) -> Result<Self, StoreError> {
        // Revision 1 is the empty etcd, and 0 would mean "now" to it.
        let at = i64::try_from(after.0.max(1)).unwrap_or(i64::MAX);
        let range = pb::RangeRequest { revision: at, ..one(inner.layout.pending()) };
        // Asking for the past also says `Compacted` where that is the answer.
        let past = inner.client.range(&range).await.map_err(|error| asked_for(error, after))?;
        let large = match past.kvs.first().map(PendingTransaction::decode).transpose()? {
            Some(PendingTransaction { state: State::Committed { .. }, .. }) => {
                Some(Large::new(None))
            }
            _ => None,
        };
        let (key, range_end) = inner.layout.watched();
        let create =
            pb::WatchCreateRequest { key, range_end, start_revision: at + 1, ..Default::default() };
        let connection = inner.client.watch(create).await?;
        let mut follower = Self {
            inner,
            prefix,
            after,
            connection,
            progress: WatchProgress::default(),
            asked: Instant::now(),
            unanswered: None,
            ready: VecDeque::new(),
            large,
        };
        tokio::time::timeout(CREATE_TIMEOUT, follower.take_response())
            .await
            .map_err(|_| ended("no answer to the request"))??;
        Ok(follower)
    }

    pub(super) async fn next(mut self) -> Result<Option<(Batch, Self)>, StoreError> {
        loop {
            if let Some(batch) = self.ready.pop_front() {
                return Ok(Some((batch, self)));
            }
            let taken = tokio::time::timeout(PROGRESS_EVERY, self.take_response()).await;
            let is_quiet = taken.is_err();
            taken.unwrap_or(Ok(()))?;
            if self.asked.elapsed() >= PROGRESS_EVERY {
                self.ask_progress()?;
            }
            if is_quiet && self.large.is_some() {
                self.help().await?;
            }
        }
    }

    pub(super) fn progress(&self) -> WatchProgress {
        self.progress.clone()
    }

    /// Called after waiting for a response, so an answer that has arrived was taken before.
    fn ask_progress(&mut self) -> Result<(), StoreError> {
        let since = *self.unanswered.get_or_insert_with(Instant::now);
        if since.elapsed() > SILENT_LIMIT {
            self.inner.client.pass_over(&self.connection);
            return Err(ended(&format!("the member was silent for {SILENT_LIMIT:?}")));
        }
        self.connection.ask_progress();
        self.asked = Instant::now();
        Ok(())
    }

    /// A committed transaction without changes for a second lost its writer. Reads never wait for
    /// watches, so a waiting watch must be able to finish a transaction as a read does.
    async fn help(&self) -> Result<(), StoreError> {
        let found = self.inner.client.range(&one(self.inner.layout.pending())).await?;
        match found.kvs.first() {
            Some(found) => self.inner.settle(found, Instant::now() + BUSY_TIMEOUT).await,
            None => Ok(()),
        }
    }

    async fn take_response(&mut self) -> Result<(), StoreError> {
        let message =
            self.connection.events.message().await.map_err(|status| client::explain(&status))?;
        self.unanswered = None;
        let Some(response) = message else { return Err(ended("the server closed it")) };
        if response.canceled {
            return Err(match response.compact_revision {
                0 => ended(&response.cancel_reason),
                oldest => StoreError::Compacted { asked: self.after, oldest: revision(oldest) },
            });
        }
        // etcd never splits a revision over two responses unless asked to.
        for commit in response.events.chunk_by(|a, b| written(a) == written(b)) {
            self.take_commit(revision(written(&commit[0])), commit)?;
        }
        // Only the answer to a question says that nothing is left to send. The changes of an
        // unfinished transaction are committed, and not delivered yet.
        if response.events.is_empty() && !response.created && self.large.is_none() {
            self.progress.mark();
        }
        Ok(())
    }

    fn take_commit(&mut self, at: Revision, events: &[Event]) -> Result<(), StoreError> {
        let pending = self.inner.layout.pending();
        let mut changes = BTreeMap::new();
        for event in events {
            let Some(found) = &event.kv else { continue };
            let deleted = event.r#type() == EventType::Delete;
            if found.key == pending {
                if deleted {
                    self.end_large();
                } else if let State::Committed { .. } = PendingTransaction::decode(found)?.state {
                    self.large = Some(Large::new(Some(at)));
                }
            } else if let Some(key) = self.inner.layout.key(&found.key) {
                let change = if deleted {
                    Change::Delete(key.clone())
                } else {
                    Change::Put(self.inner.layout.parse(found.clone())?)
                };
                changes.insert(key, change);
            }
        }
        self.deliver(at, changes);
        Ok(())
    }

    fn deliver(&mut self, at: Revision, mut changes: BTreeMap<Key, Change>) {
        let all_leases = changes.keys().all(Key::is_lease);
        changes.retain(|key, _| self.prefix.covers(key));
        match &mut self.large {
            Some(large) if !all_leases => large.changes.append(&mut changes),
            _ if changes.is_empty() => {}
            Some(large) => large.later.push(batch(at, changes)),
            None => self.ready.push_back(batch(at, changes)),
        }
    }

    fn end_large(&mut self) {
        // An aborted prepare ends without having begun, as far as watchers are concerned.
        let Some(large) = self.large.take() else { return };
        if let Some(at) = large.revision
            && !large.changes.is_empty()
        {
            self.ready.push_back(batch(at, large.changes));
        }
        self.ready.extend(large.later);
    }
}

impl Large {
    fn new(revision: Option<Revision>) -> Self {
        Self { revision, changes: BTreeMap::new(), later: Vec::new() }
    }
}

fn batch(revision: Revision, changes: BTreeMap<Key, Change>) -> Batch {
    Batch { revision, changes: changes.into_values().collect() }
}

fn written(event: &Event) -> i64 {
    event.kv.as_ref().map_or(0, |found| found.mod_revision)
}

fn ended(why: &str) -> StoreError {
    StoreError::Unavailable { detail: format!("etcd ended the watch: {why}") }
}

/// Puts the revision into an answer that came without.
pub(super) fn asked_for(error: StoreError, asked: Revision) -> StoreError {
    match error {
        StoreError::Compacted { oldest, .. } => StoreError::Compacted { asked, oldest },
        other => other,
    }
}
