//! The controllers that run on a store, as they tell it themselves.
//!
//! `controller/<id>` is written again and again by a running controller and removed when it stops.
//! One that was killed leaves its record behind; it counts as gone when it has been silent for
//! [`SILENT_AFTER`].

use std::time::Duration;

use hoist_store::{Key, Op, Prefix, Store, StoreError, Txn};
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

/// How often a controller says that it is there.
pub const BEAT_EVERY: Duration = Duration::from_secs(30);

/// Three beats, and some allowance for clocks that differ.
pub const SILENT_AFTER: SignedDuration = SignedDuration::from_secs(120);

/// Older records are deleted.
const FORGET_AFTER: SignedDuration = SignedDuration::from_hours(24);

/// Controllers read at once. A site has a handful.
const MOST: usize = 1000;

/// The record of one controller.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Registration {
    /// New with every start.
    pub id: String,
    /// The version of hoist.
    pub version: String,
    /// The newest schema that it can read.
    pub schema: u32,
    /// When it said so.
    pub at: Timestamp,
}

impl Registration {
    pub fn is_live(&self, now: Timestamp) -> bool {
        now.duration_since(self.at) < SILENT_AFTER
    }
}

/// Says that the controller is there.
pub async fn beat(store: &dyn Store, registration: &Registration) -> Result<(), StoreError> {
    let value = serde_json::to_vec(registration).expect("a plain record");
    commit(store, vec![Op::Put(key_of(&registration.id), value)]).await
}

/// Says that the controller is gone.
pub async fn leave(store: &dyn Store, id: &str) -> Result<(), StoreError> {
    commit(store, vec![Op::Delete(key_of(id))]).await
}

/// Removes what controllers left behind that were killed long ago.
pub async fn forget(store: &dyn Store, now: Timestamp) -> Result<(), StoreError> {
    let all = list(store).await?;
    let old = all.iter().filter(|found| now.duration_since(found.at) > FORGET_AFTER);
    let ops: Vec<Op> = old.map(|found| Op::Delete(key_of(&found.id))).collect();
    if ops.is_empty() { Ok(()) } else { commit(store, ops).await }
}

/// Removes all of them, when it is known from elsewhere that none runs.
pub async fn forget_all(store: &dyn Store) -> Result<(), StoreError> {
    commit(store, vec![Op::DeletePrefix(top())]).await
}

/// All that are known, also silent ones.
pub async fn list(store: &dyn Store) -> Result<Vec<Registration>, StoreError> {
    let page = store.list(&Prefix::Under(top()), None, MOST).await?;
    let read = |value: &[u8]| serde_json::from_slice(value).ok();
    Ok(page.records.iter().filter_map(|record| read(&record.value)).collect())
}

/// Those that run.
pub async fn live(store: &dyn Store, now: Timestamp) -> Result<Vec<Registration>, StoreError> {
    let mut all = list(store).await?;
    all.retain(|found| found.is_live(now));
    Ok(all)
}

/// Whether the record belongs to a running controller, and so means nothing in a restored store.
pub fn is_registration(key: &Key) -> bool {
    Prefix::Under(top()).covers(key)
}

fn top() -> Key {
    "controller".parse().expect("a literal key")
}

fn key_of(id: &str) -> Key {
    top().child(id)
}

async fn commit(store: &dyn Store, ops: Vec<Op>) -> Result<(), StoreError> {
    store.commit(Txn { compares: Vec::new(), ops }).await.map(drop)
}
