//! Documents of hoist's own, and the seeds that lead to them.

use std::net::IpAddr;
use std::sync::Arc;

use async_trait::async_trait;
use hoist_inventory::Roster;
use hoist_metadata::provider::{Given, Missing, Served};
use hoist_metadata::{MetadataProvider, Renderer, SeedRef, SiteKey};
use hoist_model::Node;
use metrics::Counter;

use super::kept::Kept;

/// Bytes of documents that are kept.
const ROOM: usize = 128 * 1024 * 1024;

pub(super) struct Builtin {
    key: SiteKey,
    renderer: Renderer,
    kept: Kept<Rendered>,
    failures: Counter,
}

/// The documents of one node on one picture of the layers.
#[derive(Debug, Clone)]
struct Rendered {
    picture: u64,
    served: Arc<Served>,
}

impl Builtin {
    pub(super) fn new(key: SiteKey) -> Self {
        let failures = metrics::counter!("hoist_metadata_failures_total");
        Self { key, renderer: Renderer::default(), kept: Kept::new(ROOM), failures }
    }

    fn rendered(&self, roster: &Arc<Roster>, node: &Node) -> Arc<Served> {
        let picture = self.renderer.picture(roster);
        let current = |kept: &Rendered| kept.picture == picture.number();
        if let Some(kept) = self.kept.get(node.id).filter(current) {
            return kept.served;
        }
        let token = self.key.seed(node.id, node.generation);
        let made = self.renderer.documents(&picture, node, token.as_str());
        if !made.failed.is_empty() {
            self.failures.increment(1);
        }
        let served = Arc::new(Served::new(made.documents));
        let rendered = Rendered { picture: picture.number(), served: Arc::clone(&served) };
        self.kept.put(node.id, rendered, served.size());
        served
    }
}

#[async_trait]
impl MetadataProvider for Builtin {
    fn seed_ref(&self, _: &Roster, node: &Node, base: &str) -> SeedRef {
        seed_here(&self.key, node, base)
    }

    fn at_once(&self, roster: &Arc<Roster>, node: &Arc<Node>) -> Option<Given> {
        Some(Given::Here(self.rendered(roster, node)))
    }

    async fn documents(
        &self,
        roster: &Arc<Roster>,
        node: &Arc<Node>,
        _: IpAddr,
    ) -> Result<Given, Missing> {
        Ok(Given::Here(self.rendered(roster, node)))
    }
}

/// A path of this server with the node's token in it.
pub(super) fn seed_here(key: &SiteKey, node: &Node, base: &str) -> SeedRef {
    let token = key.seed(node.id, node.generation);
    SeedRef::nocloud(format!("{base}/meta/v1/seed/{}/{}/", node.id, token.as_str()))
}

impl std::fmt::Debug for Builtin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Builtin").field("renderer", &self.renderer).finish_non_exhaustive()
    }
}
