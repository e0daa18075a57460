//! Reduces a transaction to one final effect per key, for every backend.

use std::collections::BTreeMap;

use crate::{Key, MAX_VALUE_BYTES, Op, Prefix, StoreError};

/// The operations of a [`crate::Txn`] with their order resolved.
///
/// Backends apply the keys in any order and as often as they like; the result is the same. That is
/// what lets another process finish a large transaction that it did not start.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Effects {
    /// Emptied before `keys` are written.
    pub(crate) prefixes: Vec<Key>,
    /// `Some` is put, `None` is deleted.
    pub(crate) keys: BTreeMap<Key, Option<Vec<u8>>>,
}

impl Effects {
    pub(crate) fn of(ops: Vec<Op>) -> Result<Self, StoreError> {
        let mut effects = Self::default();
        for op in ops {
            check(&op)?;
            match op {
                Op::Put(key, value) => drop(effects.keys.insert(key, Some(value))),
                Op::Delete(key) => drop(effects.keys.insert(key, None)),
                Op::DeletePrefix(top) => effects.delete_below(top),
            }
        }
        Ok(effects)
    }

    /// Names the keys that a prefix turned out to hold. Puts made after the prefix was emptied stay.
    pub(crate) fn delete_found(&mut self, found: impl IntoIterator<Item = Key>) {
        for key in found {
            self.keys.entry(key).or_insert(None);
        }
    }

    fn delete_below(&mut self, top: Key) {
        let prefix = Prefix::Under(top.clone());
        for (key, value) in &mut self.keys {
            if prefix.covers(key) {
                *value = None;
            }
        }
        self.prefixes.push(top);
    }
}

fn check(op: &Op) -> Result<(), StoreError> {
    let (Op::Put(key, _) | Op::Delete(key) | Op::DeletePrefix(key)) = op;
    if key.is_lease() {
        return Err(StoreError::Reserved { key: key.clone() });
    }
    match op {
        Op::Put(key, value) if value.len() > MAX_VALUE_BYTES => {
            Err(StoreError::TooLarge { key: key.clone(), bytes: value.len() })
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(text: &str) -> Key {
        text.parse().unwrap()
    }

    #[test]
    fn last_operation_on_a_key_counts() {
        let effects = Effects::of(vec![
            Op::Put(key("a/1"), vec![1]),
            Op::Put(key("b"), vec![1]),
            Op::DeletePrefix(key("a")),
            Op::Put(key("a/2"), vec![2]),
            Op::Delete(key("b")),
        ])
        .unwrap();
        let keys: Vec<_> = effects.keys.into_iter().collect();
        assert_eq!(keys, [(key("a/1"), None), (key("a/2"), Some(vec![2])), (key("b"), None)]);
        assert_eq!(effects.prefixes, [key("a")]);
    }

    #[test]
    fn value_at_the_limit_is_stored_and_a_larger_one_refused() {
        assert!(Effects::of(vec![Op::Put(key("a"), vec![0; MAX_VALUE_BYTES])]).is_ok());
        let more = Effects::of(vec![Op::Put(key("a"), vec![0; MAX_VALUE_BYTES + 1])]);
        assert!(matches!(more, Err(StoreError::TooLarge { .. })));
    }

    #[test]
    fn leases_cannot_be_written_by_hand() {
        for op in [Op::Put(key("lease/x"), vec![]), Op::DeletePrefix(key("lease"))] {
            assert!(matches!(Effects::of(vec![op]), Err(StoreError::Reserved { .. })));
        }
        assert!(Effects::of(vec![Op::Delete(key("leases/x"))]).is_ok());
    }
}
