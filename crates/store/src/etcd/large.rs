//! Transactions larger than etcd takes in one request.
//!
//! ```text
//! take `pending` (state prepare, bound to a lease)   others wait; a dead writer's prepare expires
//! stage the chunks, check the compares               no reader looks at the stage yet
//! flip `pending` to committed                        one small etcd transaction: the commit point
//! apply the chunks                                   readers help with this before they read
//! delete `pending` and the stage                     ordinary operation continues
//! ```
//!
//! Every step is guarded by a compare on the revision of `pending`, so a delayed writer or helper
//! cannot change a later state. Applying is idempotent and free of order (one final effect per
//! key), so any number of helpers may do it at once.

use std::time::{Duration, Instant};

use futures_util::{StreamExt, TryStreamExt, stream};
use hoist_etcd_proto::etcdserverpb as pb;
use hoist_etcd_proto::mvccpb::KeyValue;

use super::client::Repeat;
use super::layout::{
    Chunk, MAX_OPS, PendingTransaction, State, do_delete, do_delete_range, do_put, do_range,
    if_written_at, one, ranges_of, revision, stamped, written_at,
};
use super::{BUSY_TIMEOUT, BUSY_WAIT, Inner};
use crate::txn::Effects;
use crate::{Compare, Key, Prefix, Revision, StoreError};

/// Lease of a large transaction: the time that a dead writer blocks others. Renewed while staging.
const PREPARE_TTL: Duration = Duration::from_secs(5);

/// Concurrent requests while staging or applying; etcd syncs them to disk together.
const PARALLEL: usize = 8;

/// Keys read at once when a prefix is emptied.
const KEYS_PER_PAGE: i64 = 10_000;

/// `pending` as we hold it: our prepare, before the commit point.
struct Preparation {
    id: String,
    lease: i64,
    /// Revision of the `pending` record.
    at: i64,
    renewed: Instant,
}

impl Inner {
    pub(super) async fn commit_large(
        &self,
        compares: &[Compare],
        effects: Effects,
    ) -> Result<Revision, StoreError> {
        let lease = self.client.grant(PREPARE_TTL).await?;
        let outcome = self.commit_under(lease, compares, effects).await;
        // Takes a `pending` that is still in prepare with it, whatever went wrong. If this fails
        // too, time does the same.
        let _ = self.client.revoke(lease).await;
        if let Err(StoreError::Full { .. }) = outcome {
            self.drop_stage(&stage_id(lease)).await;
        }
        outcome
    }

    /// Frees the chunks of a transaction that was not committed: without space the next
    /// transaction, which would remove them, is refused.
    async fn drop_stage(&self, id: &str) {
        if let Err(error) = self.client.delete(&self.layout.stage(id)).await {
            tracing::debug!(%error, "the chunks of a refused transaction stay for now");
        }
    }

    async fn commit_under(
        &self,
        lease: i64,
        compares: &[Compare],
        effects: Effects,
    ) -> Result<Revision, StoreError> {
        let mut prepared = self.prepare(lease).await?;
        let effects = self.spell_out(effects, &mut prepared).await?;
        self.check_compares(compares, &mut prepared).await?;
        if effects.keys.is_empty() {
            return self.current().await;
        }
        let chunks = Chunk::split(effects.keys);
        self.stage(&chunks, &mut prepared).await?;
        let count = u32::try_from(chunks.len()).expect("chunks are counted in thousands");
        let committed = self.flip(&prepared, count, compares).await?;
        // The transaction is committed from here on; the next reader finishes it if this writer
        // cannot.
        let pending =
            PendingTransaction { id: prepared.id, state: State::Committed { chunks: count } };
        let applied = self.apply(&pending, committed, Some(chunks)).await;
        if let Err(error) = applied {
            tracing::warn!(%error, "large transaction committed, the next reader will apply it");
        }
        Ok(revision(committed))
    }

    async fn prepare(&self, lease: i64) -> Result<Preparation, StoreError> {
        let id = stage_id(lease);
        let pending = PendingTransaction { id: id.clone(), state: State::Prepare };
        let deadline = Instant::now() + BUSY_TIMEOUT;
        let txn = pb::TxnRequest {
            compare: vec![if_written_at(self.layout.pending(), 0)],
            success: vec![
                do_put(self.layout.pending(), pending.encode(), lease),
                // Leftovers of writers that died before their commit point.
                do_delete_range(self.layout.all_stages()),
            ],
            failure: vec![do_range(one(self.layout.pending()))],
        };
        loop {
            let answer = self.client.txn(&txn, Repeat::Never).await?;
            if answer.succeeded {
                let at = answer.header.unwrap_or_default().revision;
                return Ok(Preparation { id, lease, at, renewed: Instant::now() });
            }
            if let Some(found) =
                ranges_of(answer).next().and_then(|range| range.kvs.into_iter().next())
            {
                self.settle(&found, deadline).await?;
            }
        }
    }

    /// Replaces prefixes by the keys found there and drops deletes of missing keys. `pending`
    /// guarantees that no other writer commits during the preparation, so this stays true until the
    /// flip.
    async fn spell_out(
        &self,
        mut effects: Effects,
        prepared: &mut Preparation,
    ) -> Result<Effects, StoreError> {
        let deleted: Vec<Key> = effects
            .keys
            .iter()
            .filter(|(_, value)| value.is_none())
            .map(|(key, _)| key.clone())
            .collect();
        for (key, found) in self.look_up(&deleted, true, prepared).await? {
            if found.is_none() {
                effects.keys.remove(&key);
            }
        }
        for top in std::mem::take(&mut effects.prefixes) {
            effects.delete_found(self.keys_below(top, prepared).await?);
        }
        Ok(effects)
    }

    async fn keys_below(
        &self,
        top: Key,
        prepared: &mut Preparation,
    ) -> Result<Vec<Key>, StoreError> {
        let prefix = Prefix::Under(top);
        let mut keys: Vec<Key> = Vec::new();
        loop {
            self.renew(prepared).await?;
            let mut full = false;
            for mut range in self.layout.ranges(&prefix.span(keys.last())) {
                (range.keys_only, range.limit) = (true, KEYS_PER_PAGE);
                let found = self.client.range(&range).await?;
                full |= found.more;
                keys.extend(found.kvs.iter().filter_map(|found| self.layout.key(&found.key)));
            }
            if !full {
                return Ok(keys);
            }
        }
    }

    async fn look_up(
        &self,
        keys: &[Key],
        keys_only: bool,
        prepared: &mut Preparation,
    ) -> Result<Vec<(Key, Option<KeyValue>)>, StoreError> {
        let mut all = Vec::with_capacity(keys.len());
        for part in keys.chunks(MAX_OPS) {
            self.renew(prepared).await?;
            let ranges = part.iter().map(|key| {
                let range = one(self.layout.record(key.as_str()));
                do_range(pb::RangeRequest { keys_only, ..range })
            });
            let txn = pb::TxnRequest { success: ranges.collect(), ..Default::default() };
            let answers = ranges_of(self.client.txn(&txn, Repeat::Harmless).await?);
            let found = answers.map(|range| range.kvs.into_iter().next());
            all.extend(part.iter().cloned().zip(found));
        }
        Ok(all)
    }

    /// Holds until the flip, which compares that our prepare is still there. Leases are the
    /// exception, they end by themselves: the flip compares them again.
    async fn check_compares(
        &self,
        compares: &[Compare],
        prepared: &mut Preparation,
    ) -> Result<(), StoreError> {
        let keys: Vec<Key> =
            compares.iter().map(|compare| super::wanted(compare).0.clone()).collect();
        for ((key, found), compare) in
            self.look_up(&keys, false, prepared).await?.into_iter().zip(compares)
        {
            let actual = found.as_ref().map(written_at).transpose()?;
            if actual != super::wanted(compare).1 {
                return Err(StoreError::Conflict { key });
            }
        }
        Ok(())
    }

    async fn stage(&self, chunks: &[Chunk], prepared: &mut Preparation) -> Result<(), StoreError> {
        let numbered: Vec<(u32, &Chunk)> = (0..).zip(chunks).collect();
        for part in numbered.chunks(PARALLEL) {
            self.renew(prepared).await?;
            let puts = part.iter().map(|(number, chunk)| self.stage_one(prepared, *number, chunk));
            futures_util::future::try_join_all(puts).await?;
        }
        Ok(())
    }

    async fn stage_one(
        &self,
        prepared: &Preparation,
        number: u32,
        chunk: &Chunk,
    ) -> Result<(), StoreError> {
        let txn = pb::TxnRequest {
            compare: vec![if_written_at(self.layout.pending(), prepared.at)],
            success: vec![do_put(self.layout.chunk(&prepared.id, number), chunk.encode(), 0)],
            failure: Vec::new(),
        };
        if self.client.txn(&txn, Repeat::Harmless).await?.succeeded {
            Ok(())
        } else {
            Err(expired())
        }
    }

    async fn renew(&self, prepared: &mut Preparation) -> Result<(), StoreError> {
        if prepared.renewed.elapsed() < PREPARE_TTL / 4 {
            return Ok(());
        }
        prepared.renewed = Instant::now();
        if self.client.keep_alive(prepared.lease).await? { Ok(()) } else { Err(expired()) }
    }

    /// The commit point. Returns the revision of the commit.
    async fn flip(
        &self,
        prepared: &Preparation,
        chunks: u32,
        compares: &[Compare],
    ) -> Result<i64, StoreError> {
        let leases: Vec<_> = compares
            .iter()
            .filter(|compare| super::wanted(compare).0.is_lease())
            .take(MAX_OPS)
            .collect();
        let mut compare = vec![if_written_at(self.layout.pending(), prepared.at)];
        for lease in &leases {
            let (key, at) = super::wanted(lease);
            compare.push(if_written_at(self.layout.record(key.as_str()), super::number(at)));
        }
        let pending =
            PendingTransaction { id: prepared.id.clone(), state: State::Committed { chunks } };
        let txn = pb::TxnRequest {
            compare,
            success: vec![do_put(self.layout.pending(), pending.encode(), 0)],
            failure: vec![do_range(one(self.layout.pending()))],
        };
        let answer = self.client.txn(&txn, Repeat::Never).await?;
        let at = answer.header.as_ref().map_or(0, |header| header.revision);
        if answer.succeeded {
            return Ok(at);
        }
        let still_ours = ranges_of(answer)
            .next()
            .and_then(|range| range.kvs.into_iter().next())
            .is_some_and(|found| found.mod_revision == prepared.at);
        match leases.first() {
            Some(lease) if still_ours => {
                Err(StoreError::Conflict { key: super::wanted(lease).0.clone() })
            }
            _ => Err(expired()),
        }
    }

    /// Waits for, or completes, the pending large transaction.
    pub(super) async fn settle(
        &self,
        found: &KeyValue,
        deadline: Instant,
    ) -> Result<(), StoreError> {
        if Instant::now() > deadline {
            let detail = "another writer's large transaction does not end".to_owned();
            return Err(StoreError::Unavailable { detail });
        }
        let pending = PendingTransaction::decode(found)?;
        match pending.state {
            State::Prepare => {
                tokio::time::sleep(BUSY_WAIT).await;
                Ok(())
            }
            State::Committed { .. } => self.apply(&pending, found.mod_revision, None).await,
        }
    }

    /// Rolls a committed transaction forward. Only its writer has the `chunks`; others read the
    /// stage. Succeeds when another helper was quicker.
    async fn apply(
        &self,
        pending: &PendingTransaction,
        committed: i64,
        chunks: Option<Vec<Chunk>>,
    ) -> Result<(), StoreError> {
        let State::Committed { chunks: count } = pending.state else { return Ok(()) };
        let chunks = chunks.as_deref();
        let steps = (0..count).map(|number| async move {
            let chunk = match chunks {
                Some(chunks) => chunks[number as usize].clone(),
                None => match self.staged(&pending.id, number).await? {
                    Some(chunk) => chunk,
                    None => return Ok(false),
                },
            };
            self.apply_one(&chunk, committed).await
        });
        let mut steps = stream::iter(steps).buffer_unordered(PARALLEL);
        while let Some(ours) = steps.try_next().await? {
            if !ours {
                return Ok(());
            }
        }
        self.finish(&pending.id, committed).await
    }

    async fn staged(&self, id: &str, number: u32) -> Result<Option<Chunk>, StoreError> {
        let found = self.client.range(&one(self.layout.chunk(id, number))).await?;
        found.kvs.first().map(Chunk::decode).transpose()
    }

    /// `false` when another helper has finished the transaction.
    async fn apply_one(&self, chunk: &Chunk, committed: i64) -> Result<bool, StoreError> {
        let ops = chunk.0.iter().map(|(key, value)| {
            let raw = self.layout.record(key.as_str());
            match value {
                Some(value) => do_put(raw, stamped(value, committed), 0),
                None => do_delete(raw),
            }
        });
        let txn = pb::TxnRequest {
            compare: vec![if_written_at(self.layout.pending(), committed)],
            success: ops.collect(),
            failure: Vec::new(),
        };
        Ok(self.client.txn(&txn, Repeat::Harmless).await?.succeeded)
    }

    async fn finish(&self, id: &str, committed: i64) -> Result<(), StoreError> {
        let txn = pb::TxnRequest {
            compare: vec![if_written_at(self.layout.pending(), committed)],
            success: vec![do_delete(self.layout.pending()), do_delete_range(self.layout.stage(id))],
            failure: Vec::new(),
        };
        self.client.txn(&txn, Repeat::Harmless).await.map(drop)
    }
}

/// Unique, because the cluster chose the lease.
fn stage_id(lease: i64) -> String {
    format!("{lease:x}")
}

fn expired() -> StoreError {
    StoreError::Unavailable {
        detail: "writing a large transaction took too long; nothing was written".to_owned(),
    }
}
