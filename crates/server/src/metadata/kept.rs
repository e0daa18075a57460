//! What was made for nodes, kept as long as there is room for it.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use hoist_model::NodeId;

/// Locks, so that nodes seldom wait for each other.
const SHARDS: usize = 64;

/// Counted for every entry besides what is in it.
const OVERHEAD: usize = 512;

/// By node. A part that is full is emptied: what is lost is made again.
pub(super) struct Kept<T> {
    shards: Vec<Mutex<Shard<T>>>,
    /// Bytes for one shard.
    room: usize,
}

struct Shard<T> {
    entries: HashMap<NodeId, (T, usize)>,
    bytes: usize,
}

impl<T> Kept<T> {
    /// Whether an entry of so many bytes finds room.
    pub(super) const fn fits(room: usize, bytes: usize) -> bool {
        bytes + OVERHEAD <= room / SHARDS
    }
}

impl<T: Clone> Kept<T> {
    pub(super) fn new(room: usize) -> Self {
        let shard = || Mutex::new(Shard { entries: HashMap::new(), bytes: 0 });
        let shards = std::iter::repeat_with(shard).take(SHARDS).collect();
        Self { shards, room: room / SHARDS }
    }

    pub(super) fn get(&self, node: NodeId) -> Option<T> {
        self.shard(node).entries.get(&node).map(|(value, _)| value.clone())
    }

    pub(super) fn put(&self, node: NodeId, value: T, bytes: usize) {
        let bytes = bytes + OVERHEAD;
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
        self.shards[at].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> fmt::Debug for Kept<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kept").field("room", &self.room).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_bounded_and_the_newest_is_there() {
        let kept = Kept::new(SHARDS * 10 * OVERHEAD);
        for n in 0..10_000_u128 {
            kept.put(NodeId::from_bits(n), n, OVERHEAD);
            assert_eq!(kept.get(NodeId::from_bits(n)), Some(n));
        }
        let held = |shard: &Mutex<Shard<u128>>| shard.lock().unwrap().bytes;
        assert!(kept.shards.iter().all(|shard| held(shard) <= kept.room));
        let entries = |shard: &Mutex<Shard<u128>>| shard.lock().unwrap().entries.len();
        assert!(kept.shards.iter().map(entries).sum::<usize>() <= SHARDS * 5);
    }

    #[test]
    fn what_is_put_again_counts_once_and_what_is_too_large_not_at_all() {
        let kept = Kept::new(SHARDS * 4 * OVERHEAD);
        let node = NodeId::from_bits(0);
        for n in 0..100 {
            kept.put(node, n, OVERHEAD);
        }
        kept.put(NodeId::from_bits(SHARDS as u128), 7, OVERHEAD);
        assert_eq!(kept.get(node), Some(99));
        // What it was before is not what it is now.
        kept.put(node, 100, 4 * OVERHEAD);
        assert_eq!(kept.get(node), None);
        assert_eq!(kept.get(NodeId::from_bits(SHARDS as u128)), Some(7));
    }
}
