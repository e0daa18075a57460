//! Nodes that something is made for at present: of several who ask for one, one makes it, and the
//! others wait for that.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use hoist_model::NodeId;
use parking_lot::Mutex;
use tokio::sync::Mutex as AsyncMutex;

/// With what those who wait for a node tell each other.
#[derive(Debug)]
pub(super) struct UnderWay<T>(Mutex<HashMap<NodeId, Weak<AsyncMutex<T>>>>);

impl<T> Default for UnderWay<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T: Default> UnderWay<T> {
    pub(super) fn of(&self, node: NodeId) -> Arc<AsyncMutex<T>> {
        let mut all = self.0.lock();
        if let Some(known) = all.get(&node).and_then(Weak::upgrade) {
            return known;
        }
        // Looking through them is paid for by as many nodes as there are.
        if all.len() == all.capacity() {
            all.retain(|_, one| one.strong_count() > 0);
        }
        let one = Arc::default();
        all.insert(node, Arc::downgrade(&one));
        one
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_without_waiting_clients_are_forgotten() {
        let under_way = UnderWay::<()>::default();
        let held = under_way.of(NodeId::from_bits(0));
        for n in 1..10_000 {
            under_way.of(NodeId::from_bits(n));
        }
        assert!(Arc::ptr_eq(&held, &under_way.of(NodeId::from_bits(0))));
        assert!(under_way.0.lock().len() < 100);
    }
}
