//! The layout of records and large transactions inside etcd.
//!
//! Below the prefix: `record/<key>`, the one key `pending`, and `stage/<id>/<n>`. The names are
//! chosen so that one range holds `pending` and all records but not the stage, as a watch needs it.

use std::collections::BTreeMap;

use hoist_etcd_proto::etcdserverpb as pb;
use hoist_etcd_proto::mvccpb::KeyValue;
use pb::compare::{CompareResult, CompareTarget, TargetUnion};
use pb::request_op::Request as Do;
use serde::{Deserialize, Serialize};

use crate::{Key, Record, Revision, Span, StoreError};

/// The keys of one prefix.
#[derive(Debug, Clone)]
pub(super) struct Layout {
    root: String,
}

impl Layout {
    pub(super) fn new(prefix: &str) -> Self {
        Self { root: format!("{}/", prefix.trim_end_matches('/')) }
    }

    pub(super) fn pending(&self) -> Vec<u8> {
        format!("{}pending", self.root).into_bytes()
    }

    pub(super) fn record(&self, key: &str) -> Vec<u8> {
        format!("{}record/{key}", self.root).into_bytes()
    }

    /// Start and end of the range of a watch.
    pub(super) fn watched(&self) -> (Vec<u8>, Vec<u8>) {
        (self.pending(), format!("{}record0", self.root).into_bytes())
    }

    pub(super) fn chunk(&self, id: &str, number: u32) -> Vec<u8> {
        format!("{}stage/{id}/{number:08}", self.root).into_bytes()
    }

    pub(super) fn all_stages(&self) -> pb::DeleteRangeRequest {
        self.delete_range("stage/", "stage0")
    }

    pub(super) fn stage(&self, id: &str) -> pb::DeleteRangeRequest {
        self.delete_range(&format!("stage/{id}/"), &format!("stage/{id}0"))
    }

    fn delete_range(&self, from: &str, to: &str) -> pb::DeleteRangeRequest {
        pb::DeleteRangeRequest {
            key: format!("{}{from}", self.root).into_bytes(),
            range_end: format!("{}{to}", self.root).into_bytes(),
            prev_kv: false,
        }
    }

    /// The lookups that find the records of a span, in key order.
    pub(super) fn ranges(&self, span: &Span) -> Vec<pb::RangeRequest> {
        let exact = span.exact.iter().map(|key| one(self.record(key)));
        let (key, range_end) = self.interval(span);
        exact.chain([pb::RangeRequest { key, range_end, ..Default::default() }]).collect()
    }

    /// The open interval of a span as etcd's half-open one.
    pub(super) fn interval(&self, span: &Span) -> (Vec<u8>, Vec<u8>) {
        let mut start = self.record(&span.above);
        start.push(0);
        (start, self.record(&span.below))
    }

    /// `None` if the key is not that of a record.
    pub(super) fn key(&self, raw: &[u8]) -> Option<Key> {
        let text = std::str::from_utf8(raw).ok()?;
        text.strip_prefix(&self.root)?.strip_prefix("record/")?.parse().ok()
    }

    pub(super) fn parse(&self, found: KeyValue) -> Result<Record, StoreError> {
        let key = self.key(&found.key).ok_or_else(|| damaged(&found.key, "is not a record key"))?;
        let revision = written_at(&found)?;
        let header = if found.value.first() == Some(&PLAIN) { 1 } else { 1 + 8 };
        let mut value = found.value;
        value.drain(..header);
        Ok(Record { key, value, revision })
    }
}

/// First byte of a value written by one etcd transaction: its revision is etcd's own.
const PLAIN: u8 = 0;
/// First byte of a value written by a large transaction: eight bytes of revision follow, because
/// the chunks it was applied in have other revisions than the commit.
const STAMPED: u8 = 1;

pub(super) fn plain(value: &[u8]) -> Vec<u8> {
    [&[PLAIN], value].concat()
}

pub(super) fn stamped(value: &[u8], commit: i64) -> Vec<u8> {
    [&[STAMPED], commit.to_be_bytes().as_slice(), value].concat()
}

/// The revision of the commit that wrote the value, as callers know it.
pub(super) fn written_at(found: &KeyValue) -> Result<Revision, StoreError> {
    match found.value.split_first() {
        Some((&PLAIN, _)) => Ok(revision(found.mod_revision)),
        Some((&STAMPED, rest)) => {
            let stamp =
                rest.first_chunk().ok_or_else(|| damaged(&found.key, "has a short stamp"))?;
            Ok(revision(i64::from_be_bytes(*stamp)))
        }
        _ => Err(damaged(&found.key, "was not written by hoist")),
    }
}

pub(super) fn revision(etcd: i64) -> Revision {
    Revision(u64::try_from(etcd).unwrap_or(0))
}

fn damaged(key: &[u8], what: &str) -> StoreError {
    StoreError::Damaged { detail: format!("etcd key `{}` {what}", String::from_utf8_lossy(key)) }
}

/// The record of the current large transaction.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq)]
pub(super) struct PendingTransaction {
    pub(super) id: String,
    pub(super) state: State,
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub(super) enum State {
    /// Its writer is staging; it may still come to nothing. Bound to the writer's etcd lease.
    Prepare,
    /// Committed. Every reader and writer must apply the chunks before doing anything else.
    Committed { chunks: u32 },
}

impl PendingTransaction {
    pub(super) fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("a struct of text and numbers is always JSON")
    }

    pub(super) fn decode(found: &KeyValue) -> Result<Self, StoreError> {
        serde_json::from_slice(&found.value)
            .map_err(|error| damaged(&found.key, &error.to_string()))
    }
}

/// Operations that fit into one etcd transaction (its limit is 128, for compares and operations
/// each) together with ours.
pub(super) const MAX_OPS: usize = 120;

/// Bytes of keys and values in one etcd transaction; the limit is 1.5 MiB with everything around
/// them, and one value of [`crate::MAX_VALUE_BYTES`] must fit.
pub(super) const MAX_BYTES: usize = 1024 * 1024 + 1024;

/// A part of a large transaction that is applied by one etcd transaction.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Chunk(pub(super) Vec<(Key, Option<Vec<u8>>)>);

impl Chunk {
    pub(super) fn split(effects: BTreeMap<Key, Option<Vec<u8>>>) -> Vec<Self> {
        let mut chunks = Vec::new();
        let mut chunk = Self::default();
        let mut bytes = 0;
        for (key, value) in effects {
            let size = size(&key, value.as_deref());
            if chunk.0.len() == MAX_OPS || (bytes + size > MAX_BYTES && !chunk.0.is_empty()) {
                chunks.push(std::mem::take(&mut chunk));
                bytes = 0;
            }
            bytes += size;
            chunk.0.push((key, value));
        }
        if !chunk.0.is_empty() {
            chunks.push(chunk);
        }
        chunks
    }

    /// Lengths in four bytes before each part; a length of `u32::MAX` marks a delete.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        for (key, value) in &self.0 {
            put_part(&mut out, key.as_str().as_bytes());
            match value {
                Some(value) => put_part(&mut out, value),
                None => out.extend(DELETE.to_be_bytes()),
            }
        }
        out
    }

    pub(super) fn decode(found: &KeyValue) -> Result<Self, StoreError> {
        let bad = || damaged(&found.key, "is not a staged chunk");
        let mut rest = found.value.as_slice();
        let mut chunk = Self::default();
        while !rest.is_empty() {
            let Some(Part::Bytes(raw)) = take_part(&mut rest) else { return Err(bad()) };
            let text = std::str::from_utf8(raw).ok();
            let key = text.and_then(|text| text.parse().ok()).ok_or_else(bad)?;
            let value = match take_part(&mut rest).ok_or_else(bad)? {
                Part::Bytes(value) => Some(value.to_vec()),
                Part::Delete => None,
            };
            chunk.0.push((key, value));
        }
        Ok(chunk)
    }
}

const DELETE: u32 = u32::MAX;

fn put_part(out: &mut Vec<u8>, part: &[u8]) {
    let length = u32::try_from(part.len()).expect("keys and values are at most 1 MiB");
    out.extend(length.to_be_bytes());
    out.extend(part);
}

/// The part that was put; `None` if the text is truncated.
fn take_part<'a>(rest: &mut &'a [u8]) -> Option<Part<'a>> {
    let (length, after) = rest.split_first_chunk::<4>()?;
    let length = u32::from_be_bytes(*length);
    if length == DELETE {
        *rest = after;
        return Some(Part::Delete);
    }
    let (part, after) = after.split_at_checked(length as usize)?;
    *rest = after;
    Some(Part::Bytes(part))
}

enum Part<'a> {
    Bytes(&'a [u8]),
    Delete,
}

pub(super) fn size(key: &Key, value: Option<&[u8]>) -> usize {
    key.as_str().len() + value.map_or(0, <[u8]>::len)
}

/// A lookup of one key.
pub(super) fn one(key: Vec<u8>) -> pb::RangeRequest {
    pb::RangeRequest { key, ..Default::default() }
}

pub(super) fn do_range(range: pb::RangeRequest) -> pb::RequestOp {
    pb::RequestOp { request: Some(Do::RequestRange(range)) }
}

pub(super) fn do_put(key: Vec<u8>, value: Vec<u8>, lease: i64) -> pb::RequestOp {
    let put = pb::PutRequest { key, value, lease, ..Default::default() };
    pb::RequestOp { request: Some(Do::RequestPut(put)) }
}

pub(super) fn do_delete(key: Vec<u8>) -> pb::RequestOp {
    do_delete_range(pb::DeleteRangeRequest { key, ..Default::default() })
}

pub(super) fn do_delete_range(range: pb::DeleteRangeRequest) -> pb::RequestOp {
    pb::RequestOp { request: Some(Do::RequestDeleteRange(range)) }
}

/// Holds while the key was last written at exactly this revision; 0 means "does not exist".
pub(super) fn if_written_at(key: Vec<u8>, revision: i64) -> pb::Compare {
    pb::Compare {
        result: CompareResult::Equal.into(),
        target: CompareTarget::Mod.into(),
        key,
        target_union: Some(TargetUnion::ModRevision(revision)),
        range_end: Vec::new(),
    }
}

/// The answers of the ranges in a transaction, in order.
pub(super) fn ranges_of(answer: pb::TxnResponse) -> impl Iterator<Item = pb::RangeResponse> {
    answer.responses.into_iter().filter_map(|op| match op.response {
        Some(pb::response_op::Response::ResponseRange(range)) => Some(range),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn kv(value: Vec<u8>) -> KeyValue {
        KeyValue { value, ..Default::default() }
    }

    proptest! {
        #[test]
        fn chunks_survive_the_stage(
            effects in proptest::collection::btree_map("[a-z]{1,8}", proptest::option::of(any::<Vec<u8>>()), 0..300),
        ) {
            let effects: BTreeMap<Key, _> =
                effects.into_iter().map(|(key, value)| (key.parse().unwrap(), value)).collect();
            let mut back = BTreeMap::new();
            for chunk in Chunk::split(effects.clone()) {
                prop_assert!(chunk.0.len() <= MAX_OPS);
                back.extend(Chunk::decode(&kv(chunk.encode())).unwrap().0);
            }
            prop_assert_eq!(back, effects);
        }

        #[test]
        fn cut_chunk_is_damage_not_less_data(cut in 1usize..20) {
            let chunk = Chunk(vec![("key".parse().unwrap(), Some(b"a value".to_vec()))]);
            let mut raw = chunk.encode();
            raw.truncate(raw.len().saturating_sub(cut).max(1));
            prop_assert!(Chunk::decode(&kv(raw)).is_err());
        }
    }

    #[test]
    fn chunks_of_large_values_stay_below_the_request_limit() {
        let effects: BTreeMap<Key, _> = (0..5)
            .map(|n| (format!("k{n}").parse().unwrap(), Some(vec![0; crate::MAX_VALUE_BYTES])))
            .collect();
        let chunks = Chunk::split(effects);
        assert_eq!(chunks.len(), 5);
        assert!(chunks.iter().all(|chunk| chunk.encode().len() < 1_500_000));
    }
}
