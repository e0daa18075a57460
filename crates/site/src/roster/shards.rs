//! A map that is cheap to copy and to change: what changes is one small piece of it.
//!
//! A roster is replaced with every write. A record per node in one plain map would be copied whole
//! each time; here a copy shares all pieces, and a change copies the piece it falls into.

use std::hash::{BuildHasher, Hash};
use std::sync::Arc;

use hashbrown::{DefaultHashBuilder, HashMap};

/// A million records are pieces of a thousand.
const PIECES: usize = 1024;

type Piece<K, V> = Arc<HashMap<K, V>>;

#[derive(Debug, Clone)]
pub(super) struct Shards<K, V> {
    hasher: DefaultHashBuilder,
    /// Empty until there is something to keep.
    pieces: Arc<[Piece<K, V>]>,
}

impl<K, V> Default for Shards<K, V> {
    fn default() -> Self {
        Self { hasher: DefaultHashBuilder::default(), pieces: Arc::from([]) }
    }
}

impl<K: Hash + Eq + Clone, V: Clone> Shards<K, V> {
    pub(super) fn get(&self, key: &K) -> Option<&V> {
        self.pieces.get(self.place(key))?.get(key)
    }

    /// False only if nothing was ever kept: known without looking.
    pub(super) fn may_have_some(&self) -> bool {
        !self.pieces.is_empty()
    }

    /// Whether nothing changed between the two copies. May be false although both have the same.
    pub(super) fn is_unchanged_from(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.pieces, &other.pieces)
    }

    pub(super) fn insert(&mut self, key: K, value: V) {
        if self.pieces.is_empty() {
            self.pieces = (0..PIECES).map(|_| Arc::default()).collect();
        }
        let place = self.place(&key);
        Arc::make_mut(&mut Arc::make_mut(&mut self.pieces)[place]).insert(key, value);
    }

    pub(super) fn remove(&mut self, key: &K) {
        if self.get(key).is_some() {
            let place = self.place(key);
            Arc::make_mut(&mut Arc::make_mut(&mut self.pieces)[place]).remove(key);
        }
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &V> {
        self.pieces.iter().flat_map(|piece| piece.values())
    }

    fn place(&self, key: &K) -> usize {
        // The upper half: the maps inside use the lower one.
        usize::try_from(self.hasher.hash_one(key) >> 32).unwrap_or(0) % PIECES
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn shards_behave_like_a_map_and_copies_stay(
            steps in proptest::collection::vec((0u16..64, any::<Option<u8>>()), 0..200),
        ) {
            let mut shards = Shards::default();
            let mut map = BTreeMap::new();
            let mut copies = Vec::new();
            for (key, value) in steps {
                copies.push((shards.clone(), map.clone()));
                if let Some(value) = value {
                    shards.insert(key, value);
                    map.insert(key, value);
                } else {
                    shards.remove(&key);
                    map.remove(&key);
                }
            }
            copies.push((shards, map));
            for (shards, map) in copies {
                for key in 0..64 {
                    prop_assert_eq!(shards.get(&key), map.get(&key));
                }
                prop_assert_eq!(shards.values().count(), map.len());
            }
        }
    }
}
