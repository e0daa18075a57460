//! To whom the agent was sent, for those who look after runs: remembered in memory, since nothing on
//! the way of a booting machine waits.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use hoist_model::NodeId;

/// Nodes that are remembered until somebody looks; what is forgotten shows as armed for longer.
const MAX_SENT: usize = 100_000;

/// Cheap to clone; all clones are the same.
#[derive(Debug, Clone, Default)]
pub struct AgentsSent(Arc<Mutex<BTreeSet<NodeId>>>);

impl AgentsSent {
    pub(super) fn push(&self, node: NodeId) {
        let mut sent = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if sent.len() < MAX_SENT {
            sent.insert(node);
        }
    }

    pub(crate) fn take(&self) -> BTreeSet<NodeId> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_remembered_is_bounded() {
        let sent = AgentsSent::default();
        for n in 0..=MAX_SENT as u128 {
            sent.push(NodeId::from_bits(n));
        }
        assert_eq!(sent.take().len(), MAX_SENT);
        assert!(sent.take().is_empty());
    }
}
