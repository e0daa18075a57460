//! The audit log: one entry for every write, each with the hash of the entry before it.
//!
//! An entry is written in the *same* transaction as its change. This guarantees that there is no
//! change without an entry and no entry without a change. Verifying the chain shows edits, gaps and
//! a truncated end. The chain gives no protection against a writer who can replace the whole store:
//! export the log elsewhere for that.
//!
//! `audit/<seq>` are the entries, `audit-head` names the last one, `audit-anchor` the last one that
//! retention removed: the chain is verified from there.

use std::sync::Arc;
use std::time::Duration;

use hoist_api::admin::{AuditEntry, AuditVerification};
use hoist_store::{Compare, Key, Op, Record, Revision, Store, StoreError, Txn};
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use crate::clock::Clock;
use crate::scan::{ScanStep, walk};
use crate::secret;

/// Retries of a writer when others append at the same time.
const ATTEMPTS: usize = 64;

/// Operations up to which a transaction is copied, so that it can be tried again here.
const COPIED_OPS: usize = 1000;

/// Deletes per transaction when old entries are removed.
const PRUNE_BATCH: usize = 500;

/// Clones share one log.
#[derive(Debug, Clone)]
pub struct AuditLog {
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    /// Writers of one process queue here rather than collide in the store.
    turn: Arc<tokio::sync::Mutex<()>>,
}

/// An entry before it has its place in the chain.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Draft {
    pub who: String,
    pub from: String,
    pub request_id: String,
    pub method: String,
    pub route: String,
    pub object: String,
    /// Site revision before and after.
    pub before: Option<u64>,
    pub after: Option<u64>,
    /// Empty means `done`.
    pub outcome: String,
}

/// Retention limits; the first that is reached applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    pub max_age: Duration,
    pub max_bytes: u64,
}

#[derive(Debug, thiserror::Error)]
pub enum AuditError {
    #[error("the store failed")]
    Store(#[from] StoreError),
    #[error("audit record `{key}` cannot be read: {detail}")]
    Damaged { key: Key, detail: String },
}

/// The place where the chain is broken.
#[derive(Debug, thiserror::Error)]
enum LinkError {
    #[error(transparent)]
    Damaged(#[from] AuditError),
    #[error("entry {0} is missing")]
    Missing(u64),
    #[error("entry {0} does not follow the one before it")]
    Unlinked(u64),
    #[error("entry {0} was changed")]
    Changed(u64),
}

/// The end of the chain, or the last entry that retention removed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Mark {
    seq: u64,
    hash: String,
}

impl AuditLog {
    pub fn new(store: Arc<dyn Store>, clock: Arc<dyn Clock>) -> Self {
        Self { store, clock, turn: Arc::default() }
    }

    /// The operations that a writer adds to its own transaction. A conflict on the key of the
    /// returned compare means that another writer appended: call this again and retry.
    pub async fn entry_ops(&self, draft: &Draft) -> Result<(Compare, Vec<Op>), AuditError> {
        let (compare, head) = match self.store.get(&head_key()).await? {
            None => (Compare::Absent(head_key()), Mark { seq: 0, hash: String::new() }),
            Some(record) => (Compare::At(head_key(), record.revision), parse(&record)?),
        };
        let mut entry = AuditEntry {
            seq: head.seq + 1,
            at: self.clock.now().to_string(),
            who: draft.who.clone(),
            from: draft.from.clone(),
            request_id: draft.request_id.clone(),
            method: draft.method.clone(),
            route: draft.route.clone(),
            object: draft.object.clone(),
            before: draft.before,
            after: draft.after,
            outcome: if draft.outcome.is_empty() { "done" } else { &draft.outcome }.to_owned(),
            prev: head.hash,
            hash: String::new(),
        };
        entry.hash = digest(&entry);
        let head = Mark { seq: entry.seq, hash: entry.hash.clone() };
        let ops =
            vec![Op::Put(entry_key(entry.seq), json(&entry)), Op::Put(head_key(), json(&head))];
        Ok((compare, ops))
    }

    /// Commits `txn` together with its entry, again when only the log was in the way. A large one
    /// is not copied for that: its writer gets the conflict and tries again by itself.
    pub async fn commit(&self, txn: Txn, draft: &Draft) -> Result<Revision, AuditError> {
        let _turn = self.turn.lock().await;
        let attempts = if txn.ops.len() <= COPIED_OPS { ATTEMPTS } else { 1 };
        for _ in 1..attempts {
            match self.commit_once(txn.clone(), draft).await {
                Err(AuditError::Store(StoreError::Conflict { key })) if key == head_key() => {
                    tokio::task::yield_now().await;
                }
                outcome => return outcome,
            }
        }
        self.commit_once(txn, draft).await
    }

    async fn commit_once(&self, mut txn: Txn, draft: &Draft) -> Result<Revision, AuditError> {
        let (compare, ops) = self.entry_ops(draft).await?;
        txn.compares.push(compare);
        txn.ops.extend(ops);
        Ok(self.store.commit(txn).await?)
    }

    /// An entry alone, for what changed something outside the store.
    pub async fn append(&self, draft: &Draft) -> Result<Revision, AuditError> {
        self.commit(Txn::default(), draft).await
    }

    /// Sequence number of the newest entry; 0 when there is none.
    pub async fn head(&self) -> Result<u64, AuditError> {
        Ok(self.mark(&head_key()).await?.map_or(0, |(_, mark)| mark.seq))
    }

    /// At most `limit` entries after `after`, oldest first.
    pub async fn list(&self, after: u64, limit: usize) -> Result<Vec<AuditEntry>, AuditError> {
        let mut records = Vec::new();
        walk(self.store.as_ref(), &top(), Some(entry_key(after)), |record| {
            if records.len() < limit {
                records.push(record);
            }
            if records.len() < limit { ScanStep::Go } else { ScanStep::Enough }
        })
        .await?;
        records.iter().map(parse).collect()
    }

    /// Walks the whole chain from the anchor to the head.
    pub async fn verify(&self) -> Result<AuditVerification, AuditError> {
        loop {
            let anchor = self.mark(&anchor_key()).await?;
            let found = self.walk_chain(anchor.as_ref().map(|(_, mark)| mark)).await?;
            // Retention that ran meanwhile took the start of the chain away: not a fault.
            if found.intact || self.mark(&anchor_key()).await? == anchor {
                return Ok(found);
            }
        }
    }

    async fn walk_chain(&self, anchor: Option<&Mark>) -> Result<AuditVerification, AuditError> {
        let start = anchor.cloned().unwrap_or(Mark { seq: 0, hash: String::new() });
        // The head is read first: entries appended during the walk are beyond it and not asked for.
        let head = self.mark(&head_key()).await?.map(|(_, mark)| mark);
        let end = head.unwrap_or_else(|| start.clone());
        let first = start.seq + 1;
        let mut last = start;
        let mut broken: Option<(u64, String)> = None;
        let mut entries = 0;
        walk(self.store.as_ref(), &top(), None, |record| {
            if last.seq == end.seq {
                return ScanStep::Enough;
            }
            match check_link(&record, &last) {
                Ok(entry) => {
                    entries += 1;
                    last = Mark { seq: entry.seq, hash: entry.hash };
                    ScanStep::Go
                }
                Err(error) => {
                    broken = Some((last.seq + 1, error.to_string()));
                    ScanStep::Enough
                }
            }
        })
        .await?;
        if broken.is_none() && last != end {
            broken = Some((last.seq + 1, "the end of the log is missing".to_owned()));
        }
        let (broken_at, detail) = broken.unzip();
        Ok(AuditVerification { intact: broken_at.is_none(), entries, first, broken_at, detail })
    }

    /// Removes what `retention` does not keep, oldest first, and moves the anchor in the same
    /// transaction. Returns how many entries went.
    pub async fn prune(&self, retention: Retention) -> Result<u64, AuditError> {
        let mut held = Vec::new();
        walk(self.store.as_ref(), &top(), None, |record| {
            if let Ok(entry) = parse::<AuditEntry>(&record) {
                let bytes = u64::try_from(record.value.len()).unwrap_or(u64::MAX);
                held.push((Mark { seq: entry.seq, hash: entry.hash }, entry.at, bytes));
            }
            ScanStep::Go
        })
        .await?;
        let ages = held.iter().map(|(_, at, bytes)| (at.parse().ok(), *bytes));
        let cut = excess(ages, self.clock.now(), retention);
        for batch in held[..cut].chunks(PRUNE_BATCH) {
            let (last, ..) = batch.last().expect("a chunk is not empty");
            let compare = match self.mark(&anchor_key()).await? {
                None => Compare::Absent(anchor_key()),
                Some((revision, _)) => Compare::At(anchor_key(), revision),
            };
            let mut ops: Vec<Op> =
                batch.iter().map(|(mark, ..)| Op::Delete(entry_key(mark.seq))).collect();
            ops.push(Op::Put(anchor_key(), json(last)));
            self.store.commit(Txn { compares: vec![compare], ops }).await?;
        }
        Ok(u64::try_from(cut).unwrap_or(u64::MAX))
    }

    async fn mark(&self, key: &Key) -> Result<Option<(Revision, Mark)>, AuditError> {
        match self.store.get(key).await? {
            None => Ok(None),
            Some(record) => Ok(Some((record.revision, parse(&record)?))),
        }
    }
}

/// How many of the oldest records have to go. A record without a readable age is as old as its
/// neighbours: it goes when a younger one goes.
pub fn excess(
    records: impl DoubleEndedIterator<Item = (Option<Timestamp>, u64)> + ExactSizeIterator,
    now: Timestamp,
    retention: Retention,
) -> usize {
    let oldest = SignedDuration::try_from(retention.max_age)
        .ok()
        .and_then(|age| now.checked_sub(age).ok())
        .unwrap_or(Timestamp::MIN);
    let count = records.len();
    let mut bytes = 0_u64;
    for (kept, (at, size)) in records.rev().enumerate() {
        bytes = bytes.saturating_add(size);
        if bytes > retention.max_bytes || at.is_some_and(|at| at < oldest) {
            return count - kept;
        }
    }
    0
}

/// The entry, if it follows `last` and its hash is right.
fn check_link(record: &Record, last: &Mark) -> Result<AuditEntry, LinkError> {
    let entry: AuditEntry = parse(record)?;
    if entry.seq != last.seq + 1 || record.key != entry_key(entry.seq) {
        return Err(LinkError::Missing(last.seq + 1));
    }
    if entry.prev != last.hash {
        return Err(LinkError::Unlinked(entry.seq));
    }
    if digest(&entry) != entry.hash {
        return Err(LinkError::Changed(entry.seq));
    }
    Ok(entry)
}

/// Over the entry's JSON with an empty `hash`. Fields are written in the order of the struct, and
/// absent ones are left out, so that a field added later does not change old hashes.
fn digest(entry: &AuditEntry) -> String {
    let bare = AuditEntry { hash: String::new(), ..entry.clone() };
    secret::hex(&secret::sha256(&json(&bare)))
}

fn json(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("plain structs always serialize")
}

fn parse<T: for<'de> Deserialize<'de>>(record: &Record) -> Result<T, AuditError> {
    serde_json::from_slice(&record.value)
        .map_err(|error| AuditError::Damaged { key: record.key.clone(), detail: error.to_string() })
}

fn top() -> Key {
    "audit".parse().expect("a literal key")
}

fn entry_key(seq: u64) -> Key {
    top().child(&format!("{seq:020}"))
}

fn head_key() -> Key {
    "audit-head".parse().expect("a literal key")
}

fn anchor_key() -> Key {
    "audit-anchor".parse().expect("a literal key")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::SystemClock;
    use hoist_testkit::stores::{TestStore, test_store};

    async fn log_of(count: u64) -> (Arc<TestStore>, AuditLog) {
        let store = test_store();
        let log = AuditLog::new(Arc::clone(&store) as Arc<dyn Store>, Arc::new(SystemClock));
        for number in 0..count {
            log.append(&Draft { object: format!("node/n{number}"), ..Draft::default() })
                .await
                .unwrap();
        }
        (store, log)
    }

    async fn put(store: &TestStore, key: Key, value: Vec<u8>) {
        store.commit(Txn { compares: vec![], ops: vec![Op::Put(key, value)] }).await.unwrap();
    }

    #[tokio::test]
    async fn an_untouched_chain_is_intact() {
        let (_, log) = log_of(5).await;
        let found = log.verify().await.unwrap();
        assert_eq!((found.intact, found.entries, found.first), (true, 5, 1));
        assert_eq!(log.list(2, 2).await.unwrap().iter().map(|e| e.seq).collect::<Vec<_>>(), [3, 4]);
        let (_, empty) = log_of(0).await;
        assert!(empty.verify().await.unwrap().intact);
    }

    #[tokio::test]
    async fn every_kind_of_tampering_is_found() {
        let (store, log) = log_of(5).await;
        let mut entry = log.list(2, 1).await.unwrap().remove(0);
        entry.who = "somebody else".to_owned();
        put(&store, entry_key(3), json(&entry)).await;
        assert_eq!(log.verify().await.unwrap().broken_at, Some(3), "changed");

        // A forger who also repairs the hash breaks the link to the next entry.
        entry.hash = digest(&entry);
        put(&store, entry_key(3), json(&entry)).await;
        assert_eq!(log.verify().await.unwrap().broken_at, Some(4), "changed and rehashed");

        let (store, log) = log_of(5).await;
        let delete = |seq| Txn { compares: vec![], ops: vec![Op::Delete(entry_key(seq))] };
        store.commit(delete(5)).await.unwrap();
        assert_eq!(log.verify().await.unwrap().broken_at, Some(5), "cut at the end");
        store.commit(delete(1)).await.unwrap();
        assert_eq!(log.verify().await.unwrap().broken_at, Some(1), "cut at the start");
    }

    #[tokio::test]
    async fn retention_leaves_a_chain_that_verifies() {
        let (_, log) = log_of(10).await;
        let size: u64 =
            log.list(7, 10).await.unwrap().iter().map(|entry| json(entry).len() as u64).sum();
        let retention = Retention { max_age: Duration::from_hours(1), max_bytes: size };
        assert_eq!(log.prune(retention).await.unwrap(), 7);
        let found = log.verify().await.unwrap();
        assert_eq!((found.intact, found.entries, found.first), (true, 3, 8));
        log.append(&Draft::default()).await.unwrap();
        assert!(log.verify().await.unwrap().intact);

        let nothing = Retention { max_age: Duration::ZERO, max_bytes: 0 };
        assert_eq!(log.prune(nothing).await.unwrap(), 4);
        assert!(log.verify().await.unwrap().intact, "an emptied log still knows its end");
        log.append(&Draft::default()).await.unwrap();
        assert!(log.verify().await.unwrap().intact);
    }

    #[tokio::test]
    async fn writers_of_two_controllers_share_one_chain() {
        let (store, one) = log_of(0).await;
        let two = AuditLog::new(Arc::clone(&store) as Arc<dyn Store>, Arc::new(SystemClock));
        let appends = (0..40).map(|n| {
            let log = if n % 2 == 0 { one.clone() } else { two.clone() };
            async move { log.append(&Draft::default()).await.unwrap() }
        });
        futures_util::future::join_all(appends).await;
        let found = one.verify().await.unwrap();
        assert_eq!((found.intact, found.entries), (true, 40));
    }
}
