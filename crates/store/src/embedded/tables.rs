//! The tables of the embedded file and the reads on them.
//!
//! | table | key | value |
//! | --- | --- | --- |
//! | records | key | revision, value |
//! | history | key, revision | the value replaced by the commit with that revision (undo log) |
//! | commits | revision | wall clock, bytes of history, the keys it changed |
//! | meta | name | number |
//!
//! With the undo log any kept revision can be read back: a record newer than the requested revision
//! is replaced by the value that the first later commit to its key replaced.

use std::collections::BTreeMap;

use redb::{ReadTransaction, ReadableTable, Table, TableDefinition, WriteTransaction};

use super::Retention;
use crate::txn::Effects;
use crate::{
    Batch, Change, Compare, Cursor, Key, Page, Prefix, Record, Revision, Span, StoreError,
};

/// Key of a history entry: which key, and the commit that replaced its value.
type At = (&'static str, u64);
/// Value of a history entry: the replaced value and its revision, if there was one.
type Before = Option<(u64, &'static [u8])>;

const RECORDS: TableDefinition<&str, (u64, &[u8])> = TableDefinition::new("records");
const HISTORY: TableDefinition<At, Before> = TableDefinition::new("history");
const COMMITS: TableDefinition<u64, (u64, u64, &str)> = TableDefinition::new("commits");
const META: TableDefinition<&str, u64> = TableDefinition::new("meta");

/// Version of this layout.
const FORMAT: &str = "format";
const CURRENT_FORMAT: u64 = 1;
const REVISION: &str = "revision";
/// The newest revision whose commit has been dropped from history.
const FLOOR: &str = "floor";
/// Sums over the kept commits.
const CHANGES: &str = "changes";
const BYTES: &str = "bytes";

/// Keys are visible ASCII, so this cannot be part of one.
const SEPARATOR: char = '\n';

/// Commits dropped at most per commit made: keeps a shortened retention from stalling one writer.
const DROPPED_PER_COMMIT: u64 = 4;

/// Why a question has no answer: the storage failed, or the answer is an error.
#[derive(Debug)]
pub(super) enum TableError {
    Storage(redb::Error),
    Answer(StoreError),
}

impl<E: Into<redb::Error>> From<E> for TableError {
    fn from(error: E) -> Self {
        Self::Storage(error.into())
    }
}

pub(super) fn revision(txn: &ReadTransaction) -> Result<Revision, TableError> {
    Ok(Revision(number(&txn.open_table(META)?, REVISION)?))
}

pub(super) fn get(txn: &ReadTransaction, key: Key) -> Result<Option<Record>, TableError> {
    let records = txn.open_table(RECORDS)?;
    let found = records.get(key.as_str())?;
    Ok(found.map(|guard| {
        let (revision, value) = guard.value();
        Record { key, value: value.to_vec(), revision: Revision(revision) }
    }))
}

/// [`StoreError::Compacted`] unless everything after `asked` is still known.
pub(super) fn check_kept(txn: &ReadTransaction, asked: Revision) -> Result<Revision, TableError> {
    let meta = txn.open_table(META)?;
    let oldest = number(&meta, FLOOR)?;
    let head = number(&meta, REVISION)?;
    if (oldest..=head).contains(&asked.0) {
        Ok(Revision(head))
    } else {
        Err(TableError::Answer(StoreError::Compacted { asked, oldest: Revision(oldest) }))
    }
}

pub(super) fn list(
    txn: &ReadTransaction,
    prefix: &Prefix,
    from: Option<&Cursor>,
    limit: usize,
) -> Result<Page, TableError> {
    let snapshot = match from {
        Some(cursor) => cursor.snapshot,
        None => revision(txn)?,
    };
    let head = check_kept(txn, snapshot)?;
    let span = prefix.span(from.map(|cursor| &cursor.after));
    let mut found =
        if snapshot < head { changed_since(txn, &span, snapshot)? } else { BTreeMap::new() };
    collect_unchanged(txn, &span, snapshot, limit + 1, &mut found)?;
    Ok(page(found, snapshot, limit))
}

/// The commits after `after` that touched the prefix, and how far the log was read.
pub(super) fn changes(
    txn: &ReadTransaction,
    prefix: &Prefix,
    after: Revision,
    limit: usize,
) -> Result<(Vec<Batch>, Revision), TableError> {
    check_kept(txn, after)?;
    let records = txn.open_table(RECORDS)?;
    let history = txn.open_table(HISTORY)?;
    let mut batches = Vec::new();
    let mut upto = after;
    for entry in txn.open_table(COMMITS)?.range(after.0 + 1..)?.take(limit) {
        let (revision, commit) = entry?;
        upto = Revision(revision.value());
        let mut changes = Vec::new();
        for key in keys_of(commit.value().2).filter(|key| prefix.covers(key)) {
            changes.push(value_at(&records, &history, key, upto)?);
        }
        if !changes.is_empty() {
            batches.push(Batch { revision: upto, changes });
        }
    }
    Ok((batches, upto))
}

/// The value that the commit at `revision` wrote to `key`: still in the records, or in the history
/// of the commit that replaced it.
fn value_at(
    records: &impl ReadableTable<&'static str, (u64, &'static [u8])>,
    history: &impl ReadableTable<At, Before>,
    key: Key,
    revision: Revision,
) -> Result<Change, TableError> {
    if let Some(guard) = records.get(key.as_str())?
        && guard.value().0 == revision.0
    {
        return Ok(Change::Put(Record { value: guard.value().1.to_vec(), key, revision }));
    }
    let later = (key.as_str(), revision.0 + 1)..=(key.as_str(), u64::MAX);
    if let Some(next) = history.range(later)?.next().transpose()?
        && let Some((written, value)) = next.1.value()
        && written == revision.0
    {
        return Ok(Change::Put(Record { value: value.to_vec(), key, revision }));
    }
    Ok(Change::Delete(key))
}

type ChangedKeys = BTreeMap<Key, Option<Record>>;

/// Keys written after the snapshot, with their values in it.
fn changed_since(
    txn: &ReadTransaction,
    span: &Span,
    snapshot: Revision,
) -> Result<ChangedKeys, TableError> {
    let history = txn.open_table(HISTORY)?;
    let mut found = ChangedKeys::new();
    for entry in txn.open_table(COMMITS)?.range(snapshot.0 + 1..)? {
        let (revision, commit) = entry?;
        for key in keys_of(commit.value().2) {
            if !holds(span, &key) || found.contains_key(&key) {
                continue;
            }
            let undo = history.get((key.as_str(), revision.value()))?;
            let record = undo.and_then(|guard| {
                let (revision, value) = guard.value()?;
                Some(Record {
                    key: key.clone(),
                    value: value.to_vec(),
                    revision: Revision(revision),
                })
            });
            found.insert(key, record);
        }
    }
    Ok(found)
}

fn collect_unchanged(
    txn: &ReadTransaction,
    span: &Span,
    snapshot: Revision,
    limit: usize,
    found: &mut ChangedKeys,
) -> Result<(), TableError> {
    let records = txn.open_table(RECORDS)?;
    let exact = span.exact.iter().map(|key| records.range(key.as_str()..=key.as_str()));
    let inside = std::iter::once(records.range::<&str>((
        std::ops::Bound::Excluded(span.above.as_str()),
        std::ops::Bound::Excluded(span.below.as_str()),
    )));
    let mut taken = 0;
    for range in exact.chain(inside) {
        for entry in range? {
            let (key, guard) = entry?;
            let (revision, value) = guard.value();
            if revision > snapshot.0 {
                continue;
            }
            let key = Key(key.value().to_owned());
            let record =
                Record { key: key.clone(), value: value.to_vec(), revision: Revision(revision) };
            found.insert(key, Some(record));
            taken += 1;
            if taken == limit {
                return Ok(());
            }
        }
    }
    Ok(())
}

fn page(found: ChangedKeys, snapshot: Revision, limit: usize) -> Page {
    let mut records: Vec<Record> = found.into_values().flatten().take(limit + 1).collect();
    let more = records.len() > limit;
    records.truncate(limit);
    let next = more.then(|| records.last()).flatten();
    let next = next.map(|record| Cursor { after: record.key.clone(), snapshot });
    Page { records, revision: snapshot, next }
}

fn holds(span: &Span, key: &Key) -> bool {
    let text = key.as_str();
    span.exact.as_deref() == Some(text)
        || (text > span.above.as_str() && text < span.below.as_str())
}

fn keys_of(joined: &str) -> impl Iterator<Item = Key> {
    joined.split_terminator(SEPARATOR).map(|key| Key(key.to_owned()))
}

fn number(
    meta: &impl ReadableTable<&'static str, u64>,
    name: &'static str,
) -> Result<u64, redb::Error> {
    Ok(meta.get(name)?.map_or(0, |guard| guard.value()))
}

/// A commit about to leave history.
struct OldCommit {
    revision: u64,
    at_ms: u64,
    bytes: u64,
    keys: Vec<Key>,
}

/// The tables of one write transaction, with the numbers of `meta` held beside them.
pub(super) struct Tables<'txn> {
    records: Table<'txn, &'static str, (u64, &'static [u8])>,
    history: Table<'txn, At, Before>,
    commits: Table<'txn, u64, (u64, u64, &'static str)>,
    meta: Table<'txn, &'static str, u64>,
    revision: u64,
    floor: u64,
    changes: u64,
    bytes: u64,
}

impl<'txn> Tables<'txn> {
    pub(super) fn open(txn: &'txn WriteTransaction) -> Result<Self, TableError> {
        let meta = txn.open_table(META)?;
        let format = number(&meta, FORMAT)?;
        if format > CURRENT_FORMAT {
            let detail = format!("the file has format {format}, this hoist knows {CURRENT_FORMAT}");
            return Err(TableError::Answer(StoreError::Refused { detail }));
        }
        Ok(Self {
            records: txn.open_table(RECORDS)?,
            history: txn.open_table(HISTORY)?,
            commits: txn.open_table(COMMITS)?,
            revision: number(&meta, REVISION)?,
            floor: number(&meta, FLOOR)?,
            changes: number(&meta, CHANGES)?,
            bytes: number(&meta, BYTES)?,
            meta,
        })
    }

    pub(super) fn revision(&self) -> Revision {
        Revision(self.revision)
    }

    /// The key of the first compare that does not hold.
    pub(super) fn failed_compare(&self, compares: &[Compare]) -> Result<Option<Key>, TableError> {
        for compare in compares {
            let (key, wanted) = match compare {
                Compare::At(key, revision) => (key, Some(revision.0)),
                Compare::Absent(key) => (key, None),
            };
            if self.records.get(key.as_str())?.map(|guard| guard.value().0) != wanted {
                return Ok(Some(key.clone()));
            }
        }
        Ok(None)
    }

    pub(super) fn keys_below(&self, top: &Key) -> Result<Vec<Key>, TableError> {
        let span = Prefix::Under(top.clone()).span(None);
        let mut keys = Vec::new();
        if let Some(exact) = span.exact
            && self.records.get(exact.as_str())?.is_some()
        {
            keys.push(Key(exact));
        }
        for entry in self.records.range(span.above.as_str()..span.below.as_str())? {
            keys.push(Key(entry?.0.value().to_owned()));
        }
        Ok(keys)
    }

    /// Applies the effects as one commit; the current revision when nothing changes.
    pub(super) fn apply(
        &mut self,
        mut effects: Effects,
        now_ms: u64,
    ) -> Result<Revision, TableError> {
        for top in std::mem::take(&mut effects.prefixes) {
            effects.delete_found(self.keys_below(&top)?);
        }
        let revision = self.revision + 1;
        let mut changed = String::new();
        let mut count = 0;
        let mut bytes = 0;
        for (key, value) in effects.keys {
            let before = self.replace(&key, revision, value.as_deref())?;
            if value.is_none() && before.is_none() {
                continue;
            }
            bytes += before.as_ref().map_or(0, |(_, value)| value.len() as u64);
            let undo = before.as_ref().map(|(revision, value)| (*revision, value.as_slice()));
            self.history.insert((key.as_str(), revision), undo)?;
            changed.push_str(key.as_str());
            changed.push(SEPARATOR);
            count += 1;
        }
        if count > 0 {
            self.commits.insert(revision, (now_ms, bytes, changed.as_str()))?;
            self.revision = revision;
            self.changes += count;
            self.bytes += bytes;
        }
        Ok(Revision(self.revision))
    }

    /// Drops history beyond the retention, a bounded amount of it.
    pub(super) fn trim(
        &mut self,
        retention: &Retention,
        commits: u64,
        now_ms: u64,
    ) -> Result<(), TableError> {
        let age_ms = u64::try_from(retention.age.as_millis()).unwrap_or(u64::MAX);
        for _ in 0..commits * DROPPED_PER_COMMIT {
            let Some(oldest) = self.oldest_commit()? else { break };
            let old = now_ms.saturating_sub(oldest.at_ms) > age_ms;
            if self.changes <= retention.changes && self.bytes <= retention.bytes && !old {
                break;
            }
            self.commits.remove(oldest.revision)?;
            for key in &oldest.keys {
                self.history.remove((key.as_str(), oldest.revision))?;
            }
            self.floor = oldest.revision;
            self.changes = self.changes.saturating_sub(oldest.keys.len() as u64);
            self.bytes = self.bytes.saturating_sub(oldest.bytes);
        }
        Ok(())
    }

    /// Writes the numbers back.
    pub(super) fn close(mut self) -> Result<(), TableError> {
        let numbers = [
            (FORMAT, CURRENT_FORMAT),
            (REVISION, self.revision),
            (FLOOR, self.floor),
            (CHANGES, self.changes),
            (BYTES, self.bytes),
        ];
        for (name, value) in numbers {
            self.meta.insert(name, value)?;
        }
        Ok(())
    }

    fn oldest_commit(&self) -> Result<Option<OldCommit>, TableError> {
        let Some((revision, commit)) = self.commits.first()? else { return Ok(None) };
        let (at_ms, bytes, keys) = commit.value();
        let keys = keys_of(keys).collect();
        Ok(Some(OldCommit { revision: revision.value(), at_ms, bytes, keys }))
    }

    fn replace(
        &mut self,
        key: &Key,
        revision: u64,
        value: Option<&[u8]>,
    ) -> Result<Option<(u64, Vec<u8>)>, TableError> {
        let before = match value {
            Some(value) => self.records.insert(key.as_str(), (revision, value))?,
            None => self.records.remove(key.as_str())?,
        };
        Ok(before.map(|guard| {
            let (revision, value) = guard.value();
            (revision, value.to_vec())
        }))
    }
}
