//! A store in memory, for tests of what stands on the store.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::{StreamExt, stream};
use hoist_store::{
    Batch, Change, Compare, Cursor, Health, Key, Lease, Op, Page, Prefix, Record, Revision, Store,
    StoreError, Txn, Watch,
};
use tokio::sync::broadcast;

#[derive(Debug)]
pub(crate) struct MemoryStore {
    state: Mutex<(u64, BTreeMap<Key, Record>, Vec<Batch>)>,
    news: broadcast::Sender<Batch>,
    away: AtomicBool,
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self {
            state: Mutex::default(),
            news: broadcast::Sender::new(1024),
            away: AtomicBool::new(false),
        }
    }
}

impl MemoryStore {
    #[allow(dead_code, reason = "not every user of this file makes it fail")]
    pub(crate) fn set_away(&self, away: bool) {
        self.away.store(away, Ordering::SeqCst);
    }

    fn check(&self) -> Result<(), StoreError> {
        if self.away.load(Ordering::SeqCst) {
            return Err(StoreError::Unavailable { detail: "switched off".to_owned() });
        }
        Ok(())
    }
}

#[async_trait]
impl Store for MemoryStore {
    async fn get(&self, key: &Key) -> Result<Option<Record>, StoreError> {
        self.check()?;
        Ok(self.state.lock().unwrap().1.get(key).cloned())
    }

    async fn list(
        &self,
        prefix: &Prefix,
        from: Option<Cursor>,
        limit: usize,
    ) -> Result<Page, StoreError> {
        self.check()?;
        let state = self.state.lock().unwrap();
        let after = from.map(|cursor| cursor.after);
        let mut records: Vec<Record> = state
            .1
            .values()
            .filter(|record| prefix.covers(&record.key))
            .filter(|record| after.as_ref().is_none_or(|after| record.key > *after))
            .take(limit + 1)
            .cloned()
            .collect();
        let more = records.len() > limit;
        records.truncate(limit);
        let revision = Revision(state.0);
        let next =
            more.then(|| Cursor { after: records.last().unwrap().key.clone(), snapshot: revision });
        Ok(Page { records, revision, next })
    }

    async fn commit(&self, txn: Txn) -> Result<Revision, StoreError> {
        self.check()?;
        let mut state = self.state.lock().unwrap();
        for compare in &txn.compares {
            let (key, holds) = match compare {
                Compare::Absent(key) => (key, !state.1.contains_key(key)),
                Compare::At(key, revision) => {
                    (key, state.1.get(key).is_some_and(|record| record.revision == *revision))
                }
            };
            if !holds {
                return Err(StoreError::Conflict { key: key.clone() });
            }
        }
        let revision = Revision(state.0 + 1);
        let mut changes = BTreeMap::new();
        for op in txn.ops {
            match op {
                Op::Put(key, value) => {
                    let record = Record { key: key.clone(), value, revision };
                    state.1.insert(key.clone(), record.clone());
                    changes.insert(key, Change::Put(record));
                }
                Op::Delete(key) => {
                    if state.1.remove(&key).is_some() {
                        changes.insert(key.clone(), Change::Delete(key));
                    }
                }
                Op::DeletePrefix(key) => {
                    let prefix = Prefix::Under(key);
                    let gone: Vec<Key> =
                        state.1.keys().filter(|key| prefix.covers(key)).cloned().collect();
                    for key in gone {
                        state.1.remove(&key);
                        changes.insert(key.clone(), Change::Delete(key));
                    }
                }
            }
        }
        if changes.is_empty() {
            return Ok(Revision(state.0));
        }
        state.0 = revision.0;
        let batch = Batch { revision, changes: changes.into_values().collect() };
        state.2.push(batch.clone());
        let _ = self.news.send(batch);
        Ok(revision)
    }

    async fn watch(&self, prefix: &Prefix, after: Revision) -> Result<Watch, StoreError> {
        self.check()?;
        let state = self.state.lock().unwrap();
        let old: Vec<_> = state.2.iter().filter(|b| b.revision > after).cloned().collect();
        let live = stream::unfold(self.news.subscribe(), |mut news| async move {
            news.recv().await.ok().map(|batch| (batch, news))
        });
        let prefix = prefix.clone();
        let all = stream::iter(old).chain(live).filter_map(move |mut batch| {
            batch.changes.retain(|change| match change {
                Change::Put(record) => prefix.covers(&record.key),
                Change::Delete(key) => prefix.covers(key),
            });
            std::future::ready((!batch.changes.is_empty()).then_some(Ok(batch)))
        });
        Ok(Box::pin(all))
    }

    async fn acquire(&self, _: &str, _: &str, _: Duration) -> Result<Option<Lease>, StoreError> {
        Ok(None)
    }

    async fn renew(&self, lease: &Lease) -> Result<(), StoreError> {
        Err(StoreError::LeaseLost { name: lease.name.clone() })
    }

    async fn release(&self, _: Lease) -> Result<(), StoreError> {
        Ok(())
    }

    async fn health(&self) -> Result<Health, StoreError> {
        self.check()?;
        Ok(Health {
            backend: "embedded",
            revision: Revision(self.state.lock().unwrap().0),
            size_bytes: None,
            detail: "in memory".to_owned(),
        })
    }
}
