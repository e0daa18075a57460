//! Addresses that fetched the agent's boot script. They are remembered in memory, because the answer
//! to a booting machine must not wait for the store; a background task of the runs stores them.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use hoist_metadata::provision::MAX_ELSEWHERE;
use hoist_model::NodeId;
use hoist_site::site_key::NONCE_BYTES;
use parking_lot::Mutex;

/// Nodes remembered until the background task reads them. A forgotten one stays `pending` longer,
/// and its token is bound to the first address that presents it.
const MAX_SENT: usize = 100_000;

/// Cheap to clone; all clones are the same.
#[derive(Debug, Clone, Default)]
pub struct AgentsSent(Arc<Mutex<BTreeMap<NodeId, SentScript>>>);

/// The addresses that fetched the script with one token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SentScript {
    /// The nonce of the node's enrollment.
    pub nonce: [u8; NONCE_BYTES],
    /// Each address once, first request first.
    pub to: Vec<IpAddr>,
}

impl AgentsSent {
    pub(crate) fn push(&self, node: NodeId, nonce: [u8; NONCE_BYTES], from: IpAddr) {
        let mut all = self.0.lock();
        if all.len() >= MAX_SENT && !all.contains_key(&node) {
            return;
        }
        let sent = all.entry(node).or_insert_with(|| SentScript { nonce, to: Vec::new() });
        if sent.nonce != nonce {
            *sent = SentScript { nonce, to: Vec::new() };
        }
        if sent.to.len() <= MAX_ELSEWHERE && !sent.to.contains(&from) {
            sent.to.push(from);
        }
    }

    /// The entries that are not stored yet.
    pub(crate) fn all(&self) -> BTreeMap<NodeId, SentScript> {
        self.0.lock().clone()
    }

    pub(crate) fn of(&self, node: NodeId) -> Option<SentScript> {
        self.0.lock().get(&node).cloned()
    }

    /// Forgets an entry that was stored, unless further addresses came since.
    pub(crate) fn forget(&self, node: NodeId, kept: &SentScript) {
        let mut all = self.0.lock();
        if all.get(&node) == Some(kept) {
            all.remove(&node);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FROM: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    #[test]
    fn memory_of_sent_agents_is_bounded() {
        let sent = AgentsSent::default();
        for n in 0..=MAX_SENT as u128 {
            sent.push(NodeId::from_bits(n), [0; NONCE_BYTES], FROM);
        }
        assert_eq!(sent.all().len(), MAX_SENT);
        let node = NodeId::from_bits(1);
        for n in 0..=u8::MAX {
            sent.push(node, [1; NONCE_BYTES], [10, 0, 0, n].into());
        }
        let kept = sent.of(node).expect("it is remembered");
        assert_eq!((kept.to[0], kept.to.len()), ([10, 0, 0, 0].into(), MAX_ELSEWHERE + 1));
        sent.forget(node, &SentScript { to: Vec::new(), ..kept.clone() });
        assert!(sent.of(node).is_some(), "an address came since");
        sent.forget(node, &kept);
        assert!(sent.of(node).is_none());
    }
}
