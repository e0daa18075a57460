//! hoist's own documents and the seeds that lead to them.
//!
//! Documents of small layers are rendered ahead of the first request, or at once, on the thread that
//! answers. Others are rendered on separate threads, a few at once. All are cached. A node waits at
//! most [`BUDGET`]; a later result is cached for its next request.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use hoist_metadata::provider::{ProviderAnswer, ProviderError, ServedDocuments};
use hoist_metadata::{Basis, Documents, MetadataProvider, Renderer};
use hoist_model::Node;
use hoist_site::{Roster, SeedProvider, SeedRef, SiteKey};
use tokio::sync::Semaphore;

use super::failing_nodes::FailingNodes;
use super::node_cache::NodeCache;
use super::under_way::UnderWay;

/// Bytes of documents that are kept.
const ROOM: usize = 256 * 1024 * 1024;

/// Bytes of documents that are rendered ahead. The rest of the room is for nodes that ask, so that
/// preparing never displaces their documents.
const AHEAD: usize = ROOM / 2;

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
    kept: NodeCache<Arc<RenderedEntry>>,
    permits: Arc<Semaphore>,
    /// Of several who ask for one node, one renders.
    under_way: UnderWay<()>,
    /// Nodes whose last rendering lacked layers that failed.
    failing: Arc<FailingNodes>,
}

/// The documents of one node with the inputs they depend on.
#[derive(Debug)]
struct RenderedEntry {
    basis: Basis,
    served: Arc<ServedDocuments>,
}

impl Builtin {
    pub(super) fn new(key: SiteKey, renderer: Arc<Renderer>, failing: Arc<FailingNodes>) -> Self {
        Self(Arc::new(Inner {
            key,
            renderer,
            kept: NodeCache::new(ROOM),
            permits: Arc::new(Semaphore::new(AT_ONCE)),
            under_way: UnderWay::default(),
            failing,
        }))
    }

    /// Renders for these nodes, as far as that is quick and there is room.
    pub(super) fn prepare<'a>(
        &self,
        roster: &Arc<Roster>,
        nodes: impl Iterator<Item = &'a Arc<Node>>,
    ) {
        // Quick rendering needs compiled layers.
        self.0.renderer.compiled(roster);
        let mut bytes = 0;
        for node in nodes {
            let served = self.0.kept(roster, node).or_else(|| self.0.render_now(roster, node));
            bytes += served.map_or(0, |served| NodeCache::<()>::weight(served.size()));
            if bytes > AHEAD {
                return;
            }
        }
    }

    /// A started rendering always finishes and is cached, even if the caller leaves.
    async fn rendered(
        &self,
        roster: &Arc<Roster>,
        node: &Arc<Node>,
    ) -> Option<Arc<ServedDocuments>> {
        let alone = self.0.under_way.of(node.id).lock_owned().await;
        let permit = Arc::clone(&self.0.permits).acquire_owned().await.expect("it is never closed");
        let inner = Arc::clone(&self.0);
        let roster = Arc::clone(roster);
        let node = Arc::clone(node);
        let work = tokio::task::spawn_blocking(move || {
            let served = inner.render(&roster, &node);
            drop((permit, alone));
            served
        });
        work.await.inspect_err(|error| tracing::error!(%error, "rendering documents failed")).ok()
    }
}

impl Inner {
    fn kept(&self, roster: &Roster, node: &Arc<Node>) -> Option<Arc<ServedDocuments>> {
        let kept = self.kept.get(node.id)?;
        let current = self.renderer.bears(roster, &kept.basis, node);
        current.then(|| Arc::clone(&kept.served))
    }

    fn render(&self, roster: &Arc<Roster>, node: &Arc<Node>) -> Arc<ServedDocuments> {
        let compiled = self.renderer.compiled(roster);
        // Rendered by a concurrent request, or for another roster and still valid.
        if let Some(served) = self.kept(roster, node) {
            return served;
        }
        let token = self.key.seed(node.id, node.generation);
        let made = self.renderer.documents(&compiled, node, token.as_str());
        self.failing.note(node.id, !made.failed.is_empty());
        if !made.failed.is_empty() {
            metrics::counter!("hoist_metadata_failures_total").increment(1);
        }
        self.keep(node, made.documents, compiled.basis(node))
    }

    /// Renders, if that takes little time.
    fn render_now(&self, roster: &Roster, node: &Arc<Node>) -> Option<Arc<ServedDocuments>> {
        let token = self.key.seed(node.id, node.generation);
        let (documents, basis) = self.renderer.documents_now(roster, node, token.as_str())?;
        self.failing.note(node.id, false);
        Some(self.keep(node, documents, basis))
    }

    fn keep(&self, node: &Node, documents: Documents, basis: Basis) -> Arc<ServedDocuments> {
        let served = Arc::new(ServedDocuments::new(documents));
        let rendered = RenderedEntry { basis, served: Arc::clone(&served) };
        self.kept.put(node.id, Arc::new(rendered), served.size());
        served
    }
}

impl SeedProvider for Builtin {
    fn seed_ref(&self, _: &Roster, node: &Node, base: &str) -> SeedRef {
        seed_here(&self.0.key, node, base)
    }
}

#[async_trait]
impl MetadataProvider for Builtin {
    fn at_once(&self, roster: &Arc<Roster>, node: &Arc<Node>) -> Option<ProviderAnswer> {
        let served = self.0.kept(roster, node).or_else(|| self.0.render_now(roster, node));
        served.map(ProviderAnswer::Here)
    }

    async fn documents(
        &self,
        roster: &Arc<Roster>,
        node: &Arc<Node>,
        _: IpAddr,
    ) -> Result<ProviderAnswer, ProviderError> {
        if let Some(served) = self.0.kept(roster, node) {
            return Ok(ProviderAnswer::Here(served));
        }
        let rendered = tokio::time::timeout(BUDGET, self.rendered(roster, node)).await;
        rendered.ok().flatten().map(ProviderAnswer::Here).ok_or_else(|| {
            let reason = "they are being rendered".to_owned();
            ProviderError::Later { reason, after: RETRY }
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

    use hoist_metadata::Document;
    use hoist_model::{MetadataLayer, NodeId};
    use hoist_site::Resource;
    use hoist_site::roster::{Delta, Incarnation};
    use tokio::time::Instant;

    use super::*;

    const FROM: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    fn builtin() -> Builtin {
        let dir = tempfile::tempdir().unwrap();
        Builtin::new(crate::site_key::open(dir.path()).unwrap(), Arc::default(), Arc::default())
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

    fn here(given: Result<ProviderAnswer, ProviderError>) -> Arc<ServedDocuments> {
        match given {
            Ok(ProviderAnswer::Here(served)) => served,
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn acceptor_thread_serves_cached_documents_without_rendering() {
        let builtin = builtin();
        let (roster, node) = roster();
        assert_eq!(builtin.at_once(&roster, &node), None);
        let served = here(builtin.documents(&roster, &node, FROM).await);
        assert!(!served.get(Document::MetaData).is_empty());
        assert_eq!(builtin.at_once(&roster, &node), Some(ProviderAnswer::Here(served)));
    }

    /// Two nodes and a layer.
    fn site(layer: serde_json::Value) -> (Arc<Roster>, [Arc<Node>; 2]) {
        let (_, node) = roster();
        let other =
            Node { id: NodeId::from_bits(2), name: "n2".parse().unwrap(), ..(*node).clone() };
        let nodes = [node, Arc::new(other)];
        let spec = serde_json::from_value(layer).unwrap();
        let layer = MetadataLayer { name: "site".parse().unwrap(), spec, revision: 1 };
        let all = nodes.iter().cloned().map(Resource::Node);
        let all = all.chain([Resource::MetadataLayer(Arc::new(layer))]);
        (Arc::new(Roster::build(Incarnation::new("test"), 1, 0, all)), nodes)
    }

    #[tokio::test]
    async fn acceptor_thread_renders_for_a_node_that_never_asked() {
        let layer = serde_json::json!({
            "selector": "*", "hostname": "{{ node.name }}.example.org",
            "user_data": {"write_files": [{"path": "/etc/n", "content": "{{ node.name }}\n"}]},
        });
        let (roster, [one, other]) = site(layer);
        let quick = builtin();
        assert_eq!(quick.at_once(&roster, &one), None, "the layers are not compiled yet");
        here(quick.documents(&roster, &one, FROM).await);
        let given = here(Ok(quick.at_once(&roster, &other).expect("documents")));
        let slow = Builtin::new(quick.0.key.clone(), Arc::default(), Arc::default());
        assert_eq!(given, here(slow.documents(&roster, &other, FROM).await));
        assert!(String::from_utf8_lossy(given.get(Document::UserData)).contains("n2"));
        let again = here(Ok(quick.at_once(&roster, &other).expect("documents")));
        assert!(Arc::ptr_eq(&given, &again), "it is kept");
    }

    #[test]
    fn prepared_documents_are_those_of_a_request() {
        let user_data =
            serde_json::json!({"write_files": [{"path": "/etc/n", "content": "{{ node.name }}"}]});
        let (roster, nodes) = site(serde_json::json!({"selector": "*", "user_data": user_data}));
        let ahead = builtin();
        ahead.prepare(&roster, nodes.iter());
        let asked = Builtin::new(ahead.0.key.clone(), Arc::default(), Arc::default());
        for node in &nodes {
            let prepared = ahead.0.kept(&roster, node).expect("it is rendered ahead");
            assert_eq!(prepared, asked.0.render(&roster, node));
        }
        ahead.prepare(&roster, nodes.iter());
        let (kept, given) = (ahead.0.kept(&roster, &nodes[0]), ahead.at_once(&roster, &nodes[0]));
        assert_eq!(kept.map(ProviderAnswer::Here), given, "a second preparation changes nothing");
    }

    #[tokio::test]
    async fn costly_or_failing_layers_leave_acceptor_threads_free() {
        let file = |content: &str| {
            let files = serde_json::json!([{"path": "/etc/n", "content": content}]);
            serde_json::json!({"selector": "*", "user_data": {"write_files": files}})
        };
        for layer in [
            file("{% for label in node.labels %}{{ label }}{% endfor %}"),
            file(&"x".repeat(9 * 1024)),
            file("{{ node.labels.rack }}"),
        ] {
            let (roster, [one, other]) = site(layer);
            let builtin = builtin();
            here(builtin.documents(&roster, &one, FROM).await);
            assert_eq!(builtin.at_once(&roster, &other), None);
            here(builtin.documents(&roster, &other, FROM).await);
        }
    }

    #[tokio::test]
    async fn an_edit_of_another_node_leaves_what_is_kept() {
        let builtin = builtin();
        let (roster, node) = roster();
        let served = here(builtin.documents(&roster, &node, FROM).await);
        let other =
            Node { id: NodeId::from_bits(2), name: "n2".parse().unwrap(), ..(*node).clone() };
        let put = |node: &Node| {
            let puts = vec![Resource::Node(Arc::new(node.clone()))];
            let delta = Delta { revision: 2, horizon: 0, puts, deletes: Vec::new() };
            Arc::new(roster.apply(delta))
        };
        let edited = put(&other);
        // The acceptor thread cannot answer before the first rendering.
        assert_eq!(builtin.at_once(&edited, &node), None);
        let again = here(builtin.documents(&edited, &node, FROM).await);
        assert!(Arc::ptr_eq(&again, &served));
        assert_eq!(builtin.at_once(&edited, &node), Some(ProviderAnswer::Here(served)));
        let renamed = put(&Node { name: "n3".parse().unwrap(), ..(*node).clone() });
        let node = Arc::clone(renamed.by_id(node.id).unwrap());
        let told = here(builtin.documents(&renamed, &node, FROM).await);
        assert!(String::from_utf8_lossy(told.get(Document::MetaData)).contains("hostname: n3"));
    }

    #[tokio::test]
    async fn concurrent_requests_for_one_node_render_once() {
        let builtin = builtin();
        let (roster, node) = roster();
        let all = (0..50).map(|_| builtin.documents(&roster, &node, FROM));
        let mut all = futures_util::future::join_all(all).await.into_iter().map(here);
        let first = all.next().unwrap();
        assert!(all.all(|served| Arc::ptr_eq(&served, &first)));
    }

    #[tokio::test(start_paused = true)]
    async fn slow_rendering_answers_retry_later_and_then_the_document() {
        let builtin = builtin();
        let (roster, node) = roster();
        // A rendering that does not end.
        let alone = builtin.0.under_way.of(node.id).lock_owned().await;
        let before = Instant::now();
        let later = builtin.documents(&roster, &node, FROM).await;
        assert!(matches!(later, Err(ProviderError::Later { after: RETRY, .. })), "{later:?}");
        assert_eq!(before.elapsed(), BUDGET);
        // The rendering finishes without a waiting caller.
        let served = builtin.0.render(&roster, &node);
        drop(alone);
        let given = here(builtin.documents(&roster, &node, FROM).await);
        assert!(Arc::ptr_eq(&given, &served));
    }

    #[tokio::test]
    async fn rendering_continues_without_a_waiting_client() {
        let builtin = builtin();
        let (roster, node) = roster();
        let mut asking = builtin.documents(&roster, &node, FROM);
        // Polled once, it has begun.
        assert!(futures_util::poll!(&mut asking).is_pending());
        drop(asking);
        while builtin.at_once(&roster, &node).is_none() {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn concurrent_renderings_are_bounded() {
        let builtin = builtin();
        let (roster, node) = roster();
        let permits = Arc::clone(&builtin.0.permits);
        let all = permits.acquire_many(u32::try_from(AT_ONCE).unwrap()).await.unwrap();
        let later = builtin.documents(&roster, &node, FROM).await;
        assert!(matches!(later, Err(ProviderError::Later { .. })), "{later:?}");
        assert_eq!(builtin.at_once(&roster, &node), None);
        drop(all);
        here(builtin.documents(&roster, &node, FROM).await);
    }
}
