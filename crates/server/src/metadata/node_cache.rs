//! A bounded cache by node.

use std::collections::HashMap;
use std::fmt;

use hoist_model::NodeId;
use parking_lot::{Mutex, MutexGuard};

/// Locks, so that nodes seldom wait for each other.
const SHARDS: usize = 64;

/// Counted for every entry in addition to its content.
const OVERHEAD: usize = 512;

/// Cache by node. A full shard is cleared; its entries are rendered again on demand.
pub(super) struct NodeCache<T> {
    shards: Vec<Mutex<Shard<T>>>,
    /// Bytes for one shard.
    room: usize,
}

struct Shard<T> {
    entries: HashMap<NodeId, (T, usize)>,
    bytes: usize,
}

impl<T> NodeCache<T> {
    /// Whether an entry of so many bytes finds room.
    pub(super) const fn fits(room: usize, bytes: usize) -> bool {
        Self::weight(bytes) <= room / SHARDS
    }

    /// The bytes that an entry of so many bytes counts for.
    pub(super) const fn weight(bytes: usize) -> usize {
        bytes + OVERHEAD
    }
}

impl<T: Clone> NodeCache<T> {
    pub(super) fn new(room: usize) -> Self {
        let shard = || Mutex::new(Shard { entries: HashMap::new(), bytes: 0 });
        let shards = std::iter::repeat_with(shard).take(SHARDS).collect();
        Self { shards, room: room / SHARDS }
    }

    pub(super) fn get(&self, node: NodeId) -> Option<T> {
        self.shard(node).entries.get(&node).map(|(value, _)| value.clone())
    }

    pub(super) fn put(&self, node: NodeId, value: T, bytes: usize) {
        let bytes = NodeCache::<T>::weight(bytes);
        let mut shard = self.shard(node);
        if let Some((_, before)) = shard.entries.remove(&node) {
            shard.bytes -= before;
        }
        if bytes > self.room {
            return;
        }
        if shard.bytes + bytes > self.room {
            shard.entries.clear();
            shard.bytes = 0;
        }
        shard.entries.insert(node, (value, bytes));
        shard.bytes += bytes;
    }

    fn shard(&self, node: NodeId) -> MutexGuard<'_, Shard<T>> {
        // The last bits of an id are random.
        let at = usize::try_from(node.to_bits() % SHARDS as u128).expect("a small number");
        self.shards[at].lock()
    }
}

impl<T> fmt::Debug for NodeCache<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeCache").field("room", &self.room).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_bounded_and_the_newest_is_there() {
        let kept = NodeCache::new(SHARDS * 10 * OVERHEAD);
        for n in 0..10_000_u128 {
            kept.put(NodeId::from_bits(n), n, OVERHEAD);
            assert_eq!(kept.get(NodeId::from_bits(n)), Some(n));
        }
        let held = |shard: &Mutex<Shard<u128>>| shard.lock().bytes;
        assert!(kept.shards.iter().all(|shard| held(shard) <= kept.room));
        let entries = |shard: &Mutex<Shard<u128>>| shard.lock().entries.len();
        assert!(kept.shards.iter().map(entries).sum::<usize>() <= SHARDS * 5);
    }

    #[test]
    fn repeated_entry_counts_once_and_too_large_one_not_at_all() {
        let kept = NodeCache::new(SHARDS * 4 * OVERHEAD);
        let node = NodeId::from_bits(0);
        for n in 0..100 {
            kept.put(node, n, OVERHEAD);
        }
        kept.put(NodeId::from_bits(SHARDS as u128), 7, OVERHEAD);
        assert_eq!(kept.get(node), Some(99));
        // The outdated entry is gone too.
        kept.put(node, 100, 4 * OVERHEAD);
        assert_eq!(kept.get(node), None);
        assert_eq!(kept.get(NodeId::from_bits(SHARDS as u128)), Some(7));
    }
}
