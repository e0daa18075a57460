//! The store on an etcd cluster, for sites with several controllers.
//!
//! Revisions are etcd's own. A transaction that fits into one of etcd's is one; a larger one goes
//! through a stage and a commit record ([`large`]). For that every commit ensures that no large
//! transaction is in progress, and every read checks the commit record in the same etcd transaction
//! and finishes a committed one first: no reader ever sees a part of a transaction.
//!
//! hoist does not compact etcd by itself: the operator of the cluster owns its history
//! (`--auto-compaction-retention`), unless [`EtcdStore::compact`] is called.

mod client;
mod follow;
mod large;
mod layout;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use futures_util::stream;
use hoist_etcd_proto::etcdserverpb as pb;
use hoist_etcd_proto::mvccpb::KeyValue;

pub use client::{Config, Login, Tls};

use crate::txn::Effects;
use crate::{
    Compare, Cursor, Health, Key, Lease, Page, Prefix, Record, Revision, Store, StoreError, Txn,
    Watch, lease_key,
};
use client::{Client, Repeat};
use follow::Follower;
use layout::{
    Layout, MAX_BYTES, MAX_OPS, do_delete, do_delete_range, do_put, do_range, if_written_at, one,
    plain, ranges_of, revision, written_at,
};

/// How long to wait for another writer's large transaction before giving up.
const BUSY_TIMEOUT: Duration = Duration::from_secs(20);
const BUSY_WAIT: Duration = Duration::from_millis(25);

/// A handle on the cluster; clones share its connections.
#[derive(Debug, Clone)]
pub struct EtcdStore {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    client: Client,
    layout: Layout,
}

impl EtcdStore {
    /// Prepares the connection; nothing is sent yet, so an unreachable cluster shows later, as
    /// [`StoreError::Unavailable`].
    pub fn new(config: &Config) -> Result<Self, StoreError> {
        let client = Client::new(config)?;
        Ok(Self { inner: Arc::new(Inner { client, layout: Layout::new(&config.prefix) }) })
    }

    /// Drops the cluster's history up to `revision`, for everything in that etcd.
    pub async fn compact(&self, revision: Revision) -> Result<(), StoreError> {
        self.inner.client.compact(i64::try_from(revision.0).unwrap_or(i64::MAX)).await
    }
}

#[async_trait]
impl Store for EtcdStore {
    async fn get(&self, key: &Key) -> Result<Option<Record>, StoreError> {
        let wanted = one(self.inner.layout.record(key.as_str()));
        let (_, found) = self.inner.read(vec![wanted]).await?;
        let found = found.into_iter().flat_map(|range| range.kvs).next();
        found.map(|found| self.inner.layout.parse(found)).transpose()
    }

    async fn list(
        &self,
        prefix: &Prefix,
        from: Option<Cursor>,
        limit: usize,
    ) -> Result<Page, StoreError> {
        self.inner.list(prefix, from, limit.max(1)).await
    }

    async fn commit(&self, txn: Txn) -> Result<Revision, StoreError> {
        let effects = Effects::of(txn.ops)?;
        if let Some(key) = txn.compares.iter().find_map(impossible) {
            return Err(StoreError::Conflict { key });
        }
        match self.inner.small(&txn.compares, &effects) {
            Some(ops) => self.inner.commit_small(&txn.compares, ops).await,
            None => self.inner.commit_large(&txn.compares, effects).await,
        }
    }

    async fn watch(&self, prefix: &Prefix, after: Revision) -> Result<Watch, StoreError> {
        let follower = Follower::start(Arc::clone(&self.inner), prefix.clone(), after).await?;
        let progress = follower.progress();
        Ok(Watch::remote(stream::try_unfold(follower, Follower::next), progress))
    }

    async fn acquire(
        &self,
        name: &str,
        owner: &str,
        ttl: Duration,
    ) -> Result<Option<Lease>, StoreError> {
        self.inner.acquire(name, owner, ttl).await
    }

    async fn renew(&self, lease: &Lease) -> Result<(), StoreError> {
        let lost = || StoreError::LeaseLost { name: lease.name.clone() };
        let held = self.inner.held(lease).await?.ok_or_else(lost)?;
        if self.inner.client.keep_alive(held.lease).await? { Ok(()) } else { Err(lost()) }
    }

    async fn release(&self, lease: Lease) -> Result<(), StoreError> {
        match self.inner.held(&lease).await? {
            // Revoking deletes the record with it.
            Some(held) => self.inner.client.revoke(held.lease).await,
            None => Ok(()),
        }
    }

    async fn health(&self) -> Result<Health, StoreError> {
        let status = self.inner.client.status().await?;
        // The status is one member's own; this asks the cluster.
        let revision = self.inner.current().await?;
        Ok(Health {
            backend: "etcd",
            revision,
            size_bytes: u64::try_from(status.db_size).ok(),
            full: status.errors.iter().any(|error| error.contains("NOSPACE")),
            detail: format!("etcd {}", status.version),
        })
    }
}

impl Inner {
    /// Reads one snapshot in which no large transaction is half applied.
    async fn read(
        &self,
        wanted: Vec<pb::RangeRequest>,
    ) -> Result<(Revision, Vec<pb::RangeResponse>), StoreError> {
        let deadline = Instant::now() + BUSY_TIMEOUT;
        let pending = one(self.layout.pending());
        let ranges: Vec<_> = std::iter::once(pending).chain(wanted).collect();
        loop {
            let (at, found) = self.snapshot(&ranges).await?;
            let mut found = found.into_iter();
            let pending = found.next().and_then(|range| range.kvs.into_iter().next());
            match pending {
                Some(pending) if is_committed(&pending)? => self.settle(&pending, deadline).await?,
                _ => return Ok((revision(at), found.collect())),
            }
        }
    }

    /// All ranges at one revision.
    async fn snapshot(
        &self,
        ranges: &[pb::RangeRequest],
    ) -> Result<(i64, Vec<pb::RangeResponse>), StoreError> {
        let success = ranges.iter().cloned().map(do_range).collect();
        let txn = pb::TxnRequest { success, ..Default::default() };
        match self.client.txn(&txn, Repeat::Harmless).await {
            Ok(answer) => {
                let at = answer.header.as_ref().map_or(0, |header| header.revision);
                Ok((at, ranges_of(answer).collect()))
            }
            Err(StoreError::Full { .. }) => self.snapshot_when_full(ranges).await,
            Err(error) => Err(error),
        }
    }

    /// etcd 3.4 without space refuses every transaction, also one that only reads; single reads
    /// still work.
    async fn snapshot_when_full(
        &self,
        ranges: &[pb::RangeRequest],
    ) -> Result<(i64, Vec<pb::RangeResponse>), StoreError> {
        let mut at = 0;
        let mut found = Vec::with_capacity(ranges.len());
        for range in ranges {
            let range = pb::RangeRequest { revision: at, ..range.clone() };
            let answer = self.client.range(&range).await?;
            if at == 0 {
                at = answer.header.as_ref().map_or(0, |header| header.revision);
            }
            found.push(answer);
        }
        Ok((at, found))
    }

    async fn current(&self) -> Result<Revision, StoreError> {
        Ok(self.read(Vec::new()).await?.0)
    }

    async fn list(
        &self,
        prefix: &Prefix,
        from: Option<Cursor>,
        limit: usize,
    ) -> Result<Page, StoreError> {
        let mut wanted =
            self.layout.ranges(&prefix.span(from.as_ref().map(|cursor| &cursor.after)));
        for range in &mut wanted {
            range.limit = i64::try_from(limit).unwrap_or(i64::MAX - 1).saturating_add(1);
        }
        let (snapshot, found) = match from {
            None => self.read(wanted).await?,
            // The first page saw no large transaction at this revision, so there is none.
            Some(cursor) => (cursor.snapshot, self.read_at(wanted, cursor.snapshot).await?),
        };
        let found = found.into_iter().flat_map(|range| range.kvs).take(limit + 1);
        let parsed = found.map(|found| self.layout.parse(found)).collect::<Result<_, _>>()?;
        Ok(page(parsed, snapshot, limit))
    }

    async fn read_at(
        &self,
        mut wanted: Vec<pb::RangeRequest>,
        snapshot: Revision,
    ) -> Result<Vec<pb::RangeResponse>, StoreError> {
        for range in &mut wanted {
            range.revision = i64::try_from(snapshot.0).unwrap_or(i64::MAX);
        }
        let found = self.snapshot(&wanted).await;
        Ok(found.map_err(|error| follow::asked_for(error, snapshot))?.1)
    }

    /// The operations as one etcd transaction, if they fit into one.
    fn small(&self, compares: &[Compare], effects: &Effects) -> Option<Vec<pb::RequestOp>> {
        let bytes: usize =
            effects.keys.iter().map(|(key, value)| layout::size(key, value.as_deref())).sum();
        let count = effects.keys.len() + 2 * effects.prefixes.len();
        if compares.len() > MAX_OPS || count > MAX_OPS || bytes > MAX_BYTES {
            return None;
        }
        let mut ops = Vec::with_capacity(count);
        for top in &effects.prefixes {
            let span = Prefix::Under(top.clone()).span(None);
            let (key, range_end) = self.layout.interval(&span);
            ops.push(do_delete(self.layout.record(top.as_str())));
            ops.push(do_delete_range(pb::DeleteRangeRequest { key, range_end, prev_kv: false }));
        }
        for (key, value) in &effects.keys {
            let emptied = effects.prefixes.iter().any(|top| Prefix::Under(top.clone()).covers(key));
            let raw = self.layout.record(key.as_str());
            match value {
                // etcd refuses to delete and put the same key in one transaction.
                Some(_) if emptied => return None,
                Some(value) => ops.push(do_put(raw, plain(value), 0)),
                None => ops.push(do_delete(raw)),
            }
        }
        Some(ops)
    }

    async fn commit_small(
        &self,
        compares: &[Compare],
        ops: Vec<pb::RequestOp>,
    ) -> Result<Revision, StoreError> {
        let deadline = Instant::now() + BUSY_TIMEOUT;
        let looks =
            compares.iter().map(|compare| one(self.layout.record(wanted(compare).0.as_str())));
        let looks =
            std::iter::once(one(self.layout.pending())).chain(looks).map(do_range).collect();
        let mut txn = pb::TxnRequest { compare: Vec::new(), success: ops, failure: looks };
        let mut chunked = HashMap::new();
        loop {
            txn.compare = self.etcd_compares(compares, &chunked);
            let answer = self.client.txn(&txn, Repeat::Never).await?;
            if answer.succeeded {
                return Ok(revision(answer.header.unwrap_or_default().revision));
            }
            let mut found = ranges_of(answer).map(|range| range.kvs.into_iter().next());
            if let Some(pending) = found.next().flatten() {
                self.settle(&pending, deadline).await?;
            } else {
                chunked = explain_conflict(compares, found)?;
            }
        }
    }

    /// `chunked` holds etcd's revision for records whose revision, as callers know it, is another.
    fn etcd_compares(&self, compares: &[Compare], chunked: &HashMap<Key, i64>) -> Vec<pb::Compare> {
        let mut all = vec![if_written_at(self.layout.pending(), 0)];
        all.extend(compares.iter().map(|compare| {
            let (key, at) = wanted(compare);
            let at = chunked.get(key).copied().unwrap_or_else(|| number(at));
            if_written_at(self.layout.record(key.as_str()), at)
        }));
        all
    }

    async fn acquire(
        &self,
        name: &str,
        owner: &str,
        ttl: Duration,
    ) -> Result<Option<Lease>, StoreError> {
        let granted = self.client.grant(ttl).await?;
        let raw = self.layout.record(lease_key(name).as_str());
        let txn = pb::TxnRequest {
            compare: vec![if_written_at(raw.clone(), 0)],
            success: vec![do_put(raw.clone(), plain(owner.as_bytes()), granted)],
            failure: vec![do_range(one(raw))],
        };
        let lease = |at: i64| Lease {
            name: name.to_owned(),
            owner: owner.to_owned(),
            fence: revision(at).0,
            ttl,
        };
        let answer = self.client.txn(&txn, Repeat::Never).await?;
        if answer.succeeded {
            return Ok(Some(lease(answer.header.unwrap_or_default().revision)));
        }
        // Another owner holds the lease; the grant of this attempt would only expire.
        let _ = self.client.revoke(granted).await;
        let held = ranges_of(answer).next().and_then(|range| range.kvs.into_iter().next());
        match held {
            Some(held) if held.value == plain(owner.as_bytes()) => {
                Ok(self.client.keep_alive(held.lease).await?.then(|| lease(held.mod_revision)))
            }
            _ => Ok(None),
        }
    }

    /// The record of a lease, if it is still this holder's.
    async fn held(&self, lease: &Lease) -> Result<Option<KeyValue>, StoreError> {
        let raw = self.layout.record(lease_key(&lease.name).as_str());
        let found = self.client.range(&one(raw)).await?;
        Ok(found.kvs.into_iter().find(|found| revision(found.mod_revision).0 == lease.fence))
    }
}

fn is_committed(pending: &KeyValue) -> Result<bool, StoreError> {
    let state = layout::PendingTransaction::decode(pending)?.state;
    Ok(matches!(state, layout::State::Committed { .. }))
}

fn page(mut records: Vec<Record>, snapshot: Revision, limit: usize) -> Page {
    let more = records.len() > limit;
    records.truncate(limit);
    let last = more.then(|| records.last()).flatten();
    let next = last.map(|record| Cursor { after: record.key.clone(), snapshot });
    Page { records, revision: snapshot, next }
}

/// The key of a compare and the revision it must have.
fn wanted(compare: &Compare) -> (&Key, Option<Revision>) {
    match compare {
        Compare::At(key, revision) => (key, Some(*revision)),
        Compare::Absent(key) => (key, None),
    }
}

/// etcd's number for a revision; absent keys have 0.
fn number(at: Option<Revision>) -> i64 {
    at.map_or(0, |at| i64::try_from(at.0).unwrap_or(i64::MAX))
}

/// No record was ever written at revision 0, and to etcd that number would mean "absent".
fn impossible(compare: &Compare) -> Option<Key> {
    match compare {
        Compare::At(key, Revision(0)) => Some(key.clone()),
        _ => None,
    }
}

/// The conflict, or the compare to use instead: a record written by a large transaction has its
/// revision in the value, and etcd's own is that of a chunk.
fn explain_conflict(
    compares: &[Compare],
    found: impl Iterator<Item = Option<KeyValue>>,
) -> Result<HashMap<Key, i64>, StoreError> {
    let mut chunked = HashMap::new();
    for (compare, found) in compares.iter().zip(found) {
        let (key, at) = wanted(compare);
        if found.as_ref().map(written_at).transpose()? != at {
            return Err(StoreError::Conflict { key: key.clone() });
        }
        if let Some(found) = found {
            chunked.insert(key.clone(), found.mod_revision);
        }
    }
    Ok(chunked)
}
