//! Nodes whose documents lack layers that failed to render.
//!
//! A rendering is judged when a node asks. A node that never asked is not here.

use std::collections::BTreeSet;
use std::sync::Arc;

use hoist_chassis::health::{CheckResult, Readiness};
use hoist_model::NodeId;
use hoist_site::{Registry, Roster};
use parking_lot::Mutex;

#[derive(Debug, Default)]
pub(super) struct FailingNodes(Mutex<BTreeSet<NodeId>>);

impl FailingNodes {
    /// Records how the rendering for a node ended.
    pub(super) fn note(&self, node: NodeId, failed: bool) {
        let mut nodes = self.0.lock();
        if failed {
            nodes.insert(node);
        } else {
            nodes.remove(&node);
        }
    }

    /// How many there are. Forgets nodes that were removed.
    fn count(&self, exists: impl Fn(NodeId) -> bool) -> usize {
        let mut nodes = self.0.lock();
        nodes.retain(|node| exists(*node));
        nodes.len()
    }

    /// Sets the gauge.
    #[expect(clippy::cast_precision_loss, reason = "gauges are floats")]
    pub(super) fn measure(&self, roster: &Roster) {
        let count = self.count(|node| roster.by_id(node).is_some());
        metrics::gauge!("hoist_metadata_failing_nodes").set(count as f64);
    }
}

pub(super) fn check(readiness: &Readiness, registry: Registry, failing: Arc<FailingNodes>) {
    readiness.add("metadata", move || {
        let roster = registry.roster();
        let count = failing.count(|node| roster.by_id(node).is_some());
        async move { judge(count) }
    });
}

fn judge(count: usize) -> CheckResult {
    match count {
        0 => CheckResult::ok(""),
        count => CheckResult::degraded(format!(
            "metadata layers fail for {count} nodes; the log has the reasons"
        )),
    }
}

#[cfg(test)]
mod tests {
    use hoist_api::event::HealthStatus;

    use super::*;

    #[test]
    fn node_is_failing_until_it_renders_or_is_removed() {
        let failing = FailingNodes::default();
        let [one, two] = [1, 2].map(NodeId::from_bits);
        failing.note(one, true);
        failing.note(two, true);
        assert_eq!(failing.count(|_| true), 2);
        assert_eq!(judge(2).status, HealthStatus::Degraded);
        failing.note(one, false);
        assert_eq!(failing.count(|_| true), 1);
        assert_eq!(failing.count(|node| node != two), 0);
        assert_eq!(judge(0).status, HealthStatus::Ok);
    }
}
