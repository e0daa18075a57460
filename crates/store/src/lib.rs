//! Durable records: one contract, three backends (embedded file, etcd, `PostgreSQL`).
//!
//! This crate knows keys, bytes and revisions. It must not know nodes: meaning belongs to the
//! crates above. Nothing here may be called on the boot path; readers of a booting node's data use
//! the roster in `hoist-site`.
//!
//! The suite in `tests/contract.rs` is the definition of the contract: a backend is done when it
//! passes.
//!
//! Keys below `lease/` belong to the leases: commits may compare them but not write them.

pub mod copy;
pub mod embedded;
pub mod etcd;
pub mod follow;
mod password;
pub mod postgres;
mod shared;
pub mod url;

mod txn;
mod watch;

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use async_trait::async_trait;

pub use password::{PasswordError, PasswordFile};
pub use watch::{Watch, WatchProgress};

/// A revision of the whole store. Every commit that changed something has its own, and they grow
/// in commit order on every backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Revision(pub u64);

/// A path such as `node/01J…`: segments of visible ASCII joined by `/`, 1 to 512 bytes, no empty
/// segment. As a *prefix* it always ends at a segment border: `node` covers `node/a`, not `nodes/a`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(String);

/// One stored value and when it last changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    pub key: Key,
    pub value: Vec<u8>,
    /// Revision of the commit that wrote this value.
    pub revision: Revision,
}

/// One page of a listing, cut from one snapshot of the store.
#[derive(Debug, Clone, Default)]
pub struct Page {
    pub records: Vec<Record>,
    /// The revision the snapshot was taken at; every page of one listing carries the same.
    pub revision: Revision,
    /// Hand this to the next call to go on; `None` when this was the last page.
    pub next: Option<Cursor>,
}

/// All or nothing: if every compare holds, every operation is applied, in one revision.
///
/// Operations count in the order given: a key written twice keeps the last of it. There is no limit
/// on the size of a transaction, whatever the backend's own limits are; a single value has one,
/// [`MAX_VALUE_BYTES`].
#[derive(Debug, Clone, Default)]
pub struct Txn {
    pub compares: Vec<Compare>,
    pub ops: Vec<Op>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Compare {
    /// The record is exactly at this revision.
    At(Key, Revision),
    /// There is no such record.
    Absent(Key),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Op {
    Put(Key, Vec<u8>),
    Delete(Key),
    /// Everything below the prefix (and the record at the prefix itself).
    DeletePrefix(Key),
}

/// The changes of one commit, delivered whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch {
    pub revision: Revision,
    /// In key order; a key appears once.
    pub changes: Vec<Change>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    Put(Record),
    Delete(Key),
}

/// Where a listing goes on: the last key delivered and the snapshot it belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cursor {
    pub after: Key,
    pub snapshot: Revision,
}

/// The right to be the one who does something, until it is released or not renewed in time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    pub name: String,
    pub owner: String,
    /// Grows with every new holder. Writers compare it, so that a holder who slept through its
    /// expiry cannot write over its successor.
    pub fence: u64,
    pub ttl: Duration,
}

impl Lease {
    /// The record that exists exactly while this lease is held; compare it in a [`Txn`] to write
    /// only as its holder.
    pub fn guard(&self) -> Compare {
        Compare::At(lease_key(&self.name), Revision(self.fence))
    }
}

/// Result of a health probe. An unreachable store is an error, not a health.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Health {
    /// `embedded`, `etcd` or `postgres`.
    pub backend: &'static str,
    /// The newest revision.
    pub revision: Revision,
    /// Bytes the backend reports to use, when it says so.
    pub size_bytes: Option<u64>,
    /// The backend has no space left for writes, as far as it knows. Reads work.
    pub full: bool,
    /// For people: version of the server, path of the file.
    pub detail: String,
}

/// Durable records, keyed by path, each with a revision that only grows.
///
/// * A returned revision is on stable storage. After a power cut it is still there.
/// * A commit whose compares do not hold changes nothing and says which one failed; it never merges.
/// * A commit without effective change (no operation, or only deletes of absent keys) returns the
///   current revision and makes no new one. A put always counts as a change.
/// * A listing reads one snapshot, in key order, however many pages it takes. Any handle on the
///   same store can go on with a cursor; one whose snapshot is gone is [`StoreError::Compacted`].
/// * A watch delivers every commit after `after` that touched the prefix, whole and in order,
///   also the ones made by other processes, with the values as they were at that commit. Commits
///   are never merged. An `after` that is no longer kept is [`StoreError::Compacted`]; so is an
///   `after` newer than the store (it was restored). A watch may end with
///   [`StoreError::Unavailable`] or live through an outage; either way nothing is skipped.
#[async_trait]
pub trait Store: Send + Sync + fmt::Debug {
    async fn get(&self, key: &Key) -> Result<Option<Record>, StoreError>;

    /// At most `limit` records below `prefix` (and at it), from one snapshot.
    async fn list(
        &self,
        prefix: &Prefix,
        from: Option<Cursor>,
        limit: usize,
    ) -> Result<Page, StoreError>;

    async fn commit(&self, txn: Txn) -> Result<Revision, StoreError>;

    async fn watch(&self, prefix: &Prefix, after: Revision) -> Result<Watch, StoreError>;

    /// Takes the lease if it is free (or `owner` holds it already, with the same fence); `None`
    /// when another owner holds it. It lasts at least `ttl`; on etcd up to some seconds longer.
    async fn acquire(
        &self,
        name: &str,
        owner: &str,
        ttl: Duration,
    ) -> Result<Option<Lease>, StoreError>;

    /// [`StoreError::LeaseLost`] when it ran out or was taken over.
    async fn renew(&self, lease: &Lease) -> Result<(), StoreError>;

    async fn release(&self, lease: Lease) -> Result<(), StoreError>;

    /// A real round trip to the backend, within its time limit.
    async fn health(&self) -> Result<Health, StoreError>;
}

/// Errors of the store. Each variant says what the caller may assume.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// Nothing was written. Read again, decide again, try again.
    #[error("someone else wrote `{key}` first")]
    Conflict { key: Key },
    /// Worth another try. For a commit, nothing is known about whether it landed.
    #[error("the store is unreachable: {detail}")]
    Unavailable { detail: String },
    /// Nothing was written, and nothing will be until a person makes room.
    #[error("the store has no space left: {detail}")]
    Full { detail: String },
    /// The history asked for is gone: list again and watch from there.
    #[error("revision {asked} is not kept any more (oldest is {oldest})", asked = asked.0, oldest = oldest.0)]
    Compacted { asked: Revision, oldest: Revision },
    #[error("the lease `{name}` is not ours any more")]
    LeaseLost { name: String },
    /// Another process holds the embedded file.
    #[error("the data directory is in use by another process: {detail}")]
    InUse { detail: String },
    /// A retry never helps: an operator must act.
    #[error("the store is damaged: {detail}")]
    Damaged { detail: String },
    /// The address or its credentials are wrong.
    #[error("the store refused us: {detail}")]
    Refused { detail: String },
    /// Nothing was written: one value is larger than [`MAX_VALUE_BYTES`].
    #[error("the value for `{key}` has {bytes} bytes; at most {MAX_VALUE_BYTES} can be stored")]
    TooLarge { key: Key, bytes: usize },
    /// Nothing was written: only leases write below `lease/`.
    #[error("`{key}` is reserved for leases")]
    Reserved { key: Key },
}

impl StoreError {
    /// The kind of failure in a form for any caller: names no host, no path and no account.
    pub fn public_reason(&self) -> &'static str {
        match self {
            Self::Unavailable { .. } => "the store does not answer",
            Self::Full { .. } => "the store has no space left",
            Self::Refused { .. } => {
                "the store refuses this controller: wrong password, missing right or no such \
                 database"
            }
            Self::Damaged { .. } => "the store is damaged",
            Self::InUse { .. } => "the store is in use by another process",
            Self::Conflict { .. }
            | Self::Compacted { .. }
            | Self::LeaseLost { .. }
            | Self::TooLarge { .. }
            | Self::Reserved { .. } => "the store did not accept the request",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a store key")]
pub struct ParseKeyError(String);

/// The range of a listing or a watch: everything, or one key and all below it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Prefix {
    All,
    Under(Key),
}

/// Largest single value. The same on every backend, so that moving between them cannot fail: etcd
/// takes requests up to 1.5 MiB, which leaves room for the key and the envelope.
pub const MAX_VALUE_BYTES: usize = 1024 * 1024;

/// Longest key, in bytes. etcd has no limit of its own; a B-tree page and a log line do.
const MAX_KEY_BYTES: usize = 512;

impl Key {
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether it belongs to the leases, which no commit writes.
    pub(crate) fn is_lease(&self) -> bool {
        self.0.split('/').next() == Some(LEASES)
    }

    /// The key one level down. Panics when `segment` is not one valid segment: keys are made by
    /// code from checked values, never from raw input.
    #[must_use]
    pub fn child(&self, segment: &str) -> Self {
        assert!(!segment.contains('/'), "`{segment}` is more than one key segment");
        format!("{}/{segment}", self.0).parse().expect("a checked segment makes a valid key")
    }
}

impl FromStr for Key {
    type Err = ParseKeyError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let visible = text.bytes().all(|b| b.is_ascii_graphic());
        let segments = text.split('/').all(|s| !s.is_empty());
        if visible && segments && (1..=MAX_KEY_BYTES).contains(&text.len()) {
            Ok(Self(text.to_owned()))
        } else {
            Err(ParseKeyError(text.to_owned()))
        }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Prefix {
    pub fn covers(&self, key: &Key) -> bool {
        match self {
            Self::All => true,
            Self::Under(top) => key
                .0
                .strip_prefix(&top.0)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('/')),
        }
    }

    /// The rest of this prefix after `after`, in key order.
    pub(crate) fn span(&self, after: Option<&Key>) -> Span {
        let after = after.map_or("", Key::as_str);
        match self {
            Self::All => Span { exact: None, above: after.to_owned(), below: "\x7f".to_owned() },
            Self::Under(top) => {
                let inside = format!("{top}/");
                Span {
                    exact: (after < top.as_str()).then(|| top.0.clone()),
                    above: if after > inside.as_str() { after.to_owned() } else { inside },
                    // `0` is the character after `/`.
                    below: format!("{top}0"),
                }
            }
        }
    }
}

/// The keys of a prefix as a backend can look them up: one exact key, then an open interval.
///
/// Two parts because `a-b` sorts between `a` and `a/b`. Both ends are exclusive and are themselves
/// never valid keys, except for a cursor's own key, which must be left out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) exact: Option<String>,
    pub(crate) above: String,
    pub(crate) below: String,
}

/// Where all leases are kept.
const LEASES: &str = "lease";

/// Where lease `name` is kept. Names are chosen in code, one segment each.
fn lease_key(name: &str) -> Key {
    Key(LEASES.to_owned()).child(name)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn key_is_segments_of_visible_ascii(text in "[ -~/é\n]{0,40}") {
            let valid = !text.is_empty()
                && text.split('/').all(|s| !s.is_empty() && s.bytes().all(|b| (b'!'..=b'~').contains(&b)));
            let parsed = text.parse::<Key>();
            prop_assert_eq!(parsed.is_ok(), valid);
            if let Ok(key) = parsed {
                prop_assert_eq!(key.to_string(), text);
            }
        }

        /// `covers` (what watches use) and `span` (what listings use) must never disagree.
        #[test]
        fn span_holds_exactly_the_keys_of_its_prefix(
            top in "[ab/!0.-]{1,4}", key in "[ab/!0.-]{1,6}", after in proptest::option::of("[ab/!0.-]{1,6}"),
        ) {
            let (Ok(top), Ok(key)) = (top.parse::<Key>(), key.parse::<Key>()) else { return Ok(()) };
            let after = after.and_then(|a| a.parse::<Key>().ok());
            for prefix in [Prefix::All, Prefix::Under(top)] {
                let span = prefix.span(after.as_ref());
                let text = key.as_str();
                let inside = span.exact.as_deref() == Some(text)
                    || (text > span.above.as_str() && text < span.below.as_str());
                let wanted = prefix.covers(&key) && after.as_ref().is_none_or(|a| key > *a);
                prop_assert_eq!(inside, wanted, "{:?} {} {:?}", prefix, key, after);
            }
        }
    }

    #[test]
    fn key_length_is_bounded() {
        assert!("k".repeat(MAX_KEY_BYTES).parse::<Key>().is_ok());
        assert!("k".repeat(MAX_KEY_BYTES + 1).parse::<Key>().is_err());
    }
}
