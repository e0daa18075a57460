//! How often the failed requests of a node become events: everyone can ask for a node's script.

use std::collections::HashMap;
use std::time::Duration;

use hoist_model::NodeId;
use parking_lot::Mutex;
use tokio::time::Instant;

/// Least time between two events of one node.
const EVERY: Duration = Duration::from_mins(1);

/// Nodes whose last event is remembered. While so many fail within a minute, further nodes have no
/// events; the boot log has all of them.
const MAX_NODES: usize = 10_000;

#[derive(Debug, Default)]
pub(super) struct FailureEvents(Mutex<HashMap<NodeId, Instant>>);

impl FailureEvents {
    pub(super) fn may_report(&self, node: NodeId, now: Instant) -> bool {
        let mut last = self.0.lock();
        let is_recent = |at: &Instant| now.duration_since(*at) < EVERY;
        if last.get(&node).is_some_and(is_recent) {
            return false;
        }
        if last.len() >= MAX_NODES {
            last.retain(|_, at| is_recent(at));
        }
        if last.len() >= MAX_NODES {
            return false;
        }
        last.insert(node, now);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn node_has_one_event_a_minute_and_memory_is_bounded() {
        let events = FailureEvents::default();
        let node = |n: u128| NodeId::from_bits(n);
        assert!(events.may_report(node(1), Instant::now()));
        assert!(!events.may_report(node(1), Instant::now()));
        assert!(events.may_report(node(2), Instant::now()));
        tokio::time::advance(EVERY).await;
        assert!(events.may_report(node(1), Instant::now()));
        let reported = (10..).take(2 * MAX_NODES);
        let reported = reported.filter(|n| events.may_report(node(*n), Instant::now())).count();
        assert_eq!(reported, MAX_NODES - 1, "one place is taken by the first node");
    }
}
