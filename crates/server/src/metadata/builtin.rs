//! Documents of hoist's own, and the seeds that lead to them.
//!
//! They are rendered on threads that nobody else waits for, a few at once, and kept. A node waits at
//! most [`BUDGET`]; what its rendering comes to later is there when it asks again.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use hoist_inventory::Roster;
use hoist_metadata::provider::{Given, Missing, Served};
use hoist_metadata::{Basis, MetadataProvider, Renderer, SeedRef, SiteKey};
use hoist_model::Node;
use tokio::sync::Semaphore;

use super::kept::Kept;
use super::under_way::UnderWay;

/// Bytes of documents that are kept.
const ROOM: usize = 256 * 1024 * 1024;

/// How long a node waits for its documents.
const BUDGET: Duration = Duration::from_secs(2);

/// When it shall ask again.
const RETRY: Duration = Duration::from_secs(1);

/// Nodes that are rendered for at once.
const AT_ONCE: usize = 4;

#[derive(Debug)]
pub(super) struct Builtin(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    key: SiteKey,
    renderer: Arc<Renderer>,
    kept: Kept<Arc<Rendered>>,
    turns: Arc<Semaphore>,
    /// Of several who ask for one node, one renders.
    under_way: UnderWay<()>,
}

/// The documents of one node, and what they were made from.
#[derive(Debug)]
struct Rendered {
    basis: Basis,
    served: Arc<Served>,
}

impl Builtin {
    pub(super) fn new(key: SiteKey, renderer: Arc<Renderer>) -> Self {
        Self(Arc::new(Inner {
            key,
            renderer,
            kept: Kept::new(ROOM),
            turns: Arc::new(Semaphore::new(AT_ONCE)),
            under_way: UnderWay::default(),
        }))
    }

    /// Once it has begun, it ends and is kept, whether or not anybody waits for it.
    async fn rendered(&self, roster: &Arc<Roster>, node: &Arc<Node>) -> Option<Arc<Served>> {
        let alone = self.0.under_way.of(node.id).lock_owned().await;
        let turn = Arc::clone(&self.0.turns).acquire_owned().await.expect("it is never closed");
        let (inner, roster, node) = (Arc::clone(&self.0), Arc::clone(roster), Arc::clone(node));
        let work = tokio::task::spawn_blocking(move || {
            let served = inner.render(&roster, &node);
            drop((turn, alone));
            served
        });
        work.await.inspect_err(|error| tracing::error!(%error, "rendering documents failed")).ok()
    }
}

impl Inner {
    fn kept(&self, roster: &Roster, node: &Arc<Node>) -> Option<Arc<Served>> {
        let kept = self.kept.get(node.id)?;
        let current = self.renderer.bears(roster, &kept.basis, node);
        current.then(|| Arc::clone(&kept.served))
    }

    fn render(&self, roster: &Arc<Roster>, node: &Arc<Node>) -> Arc<Served> {
        let picture = self.renderer.picture(roster);
        // Made by somebody else meanwhile, or for another roster and still good.
        if let Some(served) = self.kept(roster, node) {
            return served;
        }
        let token = self.key.seed(node.id, node.generation);
        let made = self.renderer.documents(&picture, node, token.as_str());
        if !made.failed.is_empty() {
            metrics::counter!("hoist_metadata_failures_total").increment(1);
        }
        let served = Arc::new(Served::new(made.documents));
        let rendered = Rendered { basis: picture.basis(node), served: Arc::clone(&served) };
        self.kept.put(node.id, Arc::new(rendered), served.size());
        served
    }
}

#[async_trait]
impl MetadataProvider for Builtin {
    fn seed_ref(&self, _: &Roster, node: &Node, base: &str) -> SeedRef {
        seed_here(&self.0.key, node, base)
    }

    fn at_once(&self, roster: &Arc<Roster>, node: &Arc<Node>) -> Option<Given> {
        self.0.kept(roster, node).map(Given::Here)
    }

    async fn documents(
        &self,
        roster: &Arc<Roster>,
        node: &Arc<Node>,
        _: IpAddr,
    ) -> Result<Given, Missing> {
        if let Some(served) = self.0.kept(roster, node) {
            return Ok(Given::Here(served));
        }
        let rendered = tokio::time::timeout(BUDGET, self.rendered(roster, node)).await;
        rendered.ok().flatten().map(Given::Here).ok_or_else(|| {
            let reason = "they are being rendered".to_owned();
            Missing::Later { reason, after: RETRY }
        })
    }
}

/// A path of this server with the node's token in it.
pub(super) fn seed_here(key: &SiteKey, node: &Node, base: &str) -> SeedRef {
    let token = key.seed(node.id, node.generation);
    SeedRef::nocloud(format!("{base}/meta/v1/seed/{}/{}/", node.id, token.as_str()))
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use hoist_inventory::Resource;
    use hoist_inventory::roster::{Delta, Incarnation};
    use hoist_metadata::Document;
    use hoist_model::NodeId;
    use tokio::time::Instant;

    use super::*;

    const FROM: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    fn builtin() -> Builtin {
        let dir = tempfile::tempdir().unwrap();
        Builtin::new(super::super::key::open(dir.path()).unwrap(), Arc::default())
    }

    fn roster() -> (Arc<Roster>, Arc<Node>) {
        let now = jiff::Timestamp::UNIX_EPOCH;
        let node = Arc::new(Node {
            id: NodeId::from_bits(1),
            name: "n1".parse().unwrap(),
            spec: hoist_model::NodeSpec::default(),
            protection: None,
            maintenance: None,
            provenance: None,
            generation: 0,
            revision: 1,
            created: now,
            updated: now,
        });
        let resources = [Resource::Node(Arc::clone(&node))].into_iter();
        (Arc::new(Roster::build(Incarnation::new("test"), 1, 0, resources)), node)
    }

    fn here(given: Result<Given, Missing>) -> Arc<Served> {
        match given {
            Ok(Given::Here(served)) => served,
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn who_asks_on_a_lane_gets_what_is_kept_and_renders_nothing() {
        let (builtin, (roster, node)) = (builtin(), roster());
        assert_eq!(builtin.at_once(&roster, &node), None);
        let served = here(builtin.documents(&roster, &node, FROM).await);
        assert!(!served.get(Document::MetaData).is_empty());
        assert_eq!(builtin.at_once(&roster, &node), Some(Given::Here(served)));
    }

    #[tokio::test]
    async fn an_edit_of_another_node_leaves_what_is_kept() {
        let (builtin, (roster, node)) = (builtin(), roster());
        let served = here(builtin.documents(&roster, &node, FROM).await);
        let other =
            Node { id: NodeId::from_bits(2), name: "n2".parse().unwrap(), ..(*node).clone() };
        let put = |node: &Node| {
            let puts = vec![Resource::Node(Arc::new(node.clone()))];
            let delta = Delta { revision: 2, horizon: 0, puts, deletes: Vec::new() };
            Arc::new(roster.apply(delta))
        };
        let edited = put(&other);
        // The lane cannot know it before somebody has looked.
        assert_eq!(builtin.at_once(&edited, &node), None);
        let again = here(builtin.documents(&edited, &node, FROM).await);
        assert!(Arc::ptr_eq(&again, &served));
        assert_eq!(builtin.at_once(&edited, &node), Some(Given::Here(served)));
        let renamed = put(&Node { name: "n3".parse().unwrap(), ..(*node).clone() });
        let node = Arc::clone(renamed.by_id(node.id).unwrap());
        let told = here(builtin.documents(&renamed, &node, FROM).await);
        assert!(String::from_utf8_lossy(told.get(Document::MetaData)).contains("hostname: n3"));
    }

    #[tokio::test]
    async fn of_several_who_ask_for_one_node_one_renders() {
        let (builtin, (roster, node)) = (builtin(), roster());
        let all = (0..50).map(|_| builtin.documents(&roster, &node, FROM));
        let mut all = futures_util::future::join_all(all).await.into_iter().map(here);
        let first = all.next().unwrap();
        assert!(all.all(|served| Arc::ptr_eq(&served, &first)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_whose_rendering_takes_too_long_is_told_when_to_ask_again_and_has_it_then() {
        let (builtin, (roster, node)) = (builtin(), roster());
        // A rendering that does not end.
        let alone = builtin.0.under_way.of(node.id).lock_owned().await;
        let before = Instant::now();
        let later = builtin.documents(&roster, &node, FROM).await;
        assert!(matches!(later, Err(Missing::Later { after: RETRY, .. })), "{later:?}");
        assert_eq!(before.elapsed(), BUDGET);
        // It comes to something after all, for nobody in particular.
        let served = builtin.0.render(&roster, &node);
        drop(alone);
        let given = here(builtin.documents(&roster, &node, FROM).await);
        assert!(Arc::ptr_eq(&given, &served));
    }

    #[tokio::test]
    async fn a_rendering_goes_on_when_nobody_waits_for_it_any_more() {
        let (builtin, (roster, node)) = (builtin(), roster());
        let mut asking = builtin.documents(&roster, &node, FROM);
        // Polled once, it has begun.
        assert!(futures_util::poll!(&mut asking).is_pending());
        drop(asking);
        while builtin.at_once(&roster, &node).is_none() {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn no_more_than_a_few_are_rendered_for_at_once() {
        let (builtin, (roster, node)) = (builtin(), roster());
        let turns = Arc::clone(&builtin.0.turns);
        let all = turns.acquire_many(u32::try_from(AT_ONCE).unwrap()).await.unwrap();
        let later = builtin.documents(&roster, &node, FROM).await;
        assert!(matches!(later, Err(Missing::Later { .. })), "{later:?}");
        assert_eq!(builtin.at_once(&roster, &node), None);
        drop(all);
        here(builtin.documents(&roster, &node, FROM).await);
    }
}
