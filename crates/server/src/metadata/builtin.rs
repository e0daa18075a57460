//! Documents of hoist's own, and the seeds that lead to them.

use std::net::IpAddr;
use std::sync::Arc;

use async_trait::async_trait;
use hoist_inventory::Roster;
use hoist_inventory::roster::Incarnation;
use hoist_metadata::provider::{Given, Missing, Served};
use hoist_metadata::{Documents, MetadataProvider, SeedRef, SiteKey};
use hoist_model::Node;

use super::kept::Kept;

/// Bytes of documents that are kept.
const ROOM: usize = 128 * 1024 * 1024;

#[derive(Debug)]
pub(super) struct Builtin {
    key: SiteKey,
    kept: Kept<Arc<Rendered>>,
}

/// The documents of one node on one roster.
#[derive(Debug)]
struct Rendered {
    incarnation: Incarnation,
    revision: u64,
    served: Arc<Served>,
}

impl Builtin {
    pub(super) fn new(key: SiteKey) -> Self {
        Self { key, kept: Kept::new(ROOM) }
    }

    fn rendered(&self, roster: &Roster, node: &Node) -> Arc<Served> {
        let current = |kept: &Arc<Rendered>| {
            kept.revision == roster.revision() && kept.incarnation == *roster.incarnation()
        };
        if let Some(kept) = self.kept.get(node.id).filter(current) {
            return Arc::clone(&kept.served);
        }
        let served = Arc::new(Served::new(render(node)));
        let rendered = Rendered {
            incarnation: roster.incarnation().clone(),
            revision: roster.revision(),
            served: Arc::clone(&served),
        };
        self.kept.put(node.id, Arc::new(rendered), served.size());
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

/// The same as long as the node is of one generation, whoever serves it: cloud-init takes a new one
/// for a new machine.
pub(super) fn instance_id(node: &Node) -> String {
    format!("{}-g{}", node.id, node.generation)
}

fn render(node: &Node) -> Documents {
    let meta_data = format!("instance-id: {}\nlocal-hostname: {}\n", instance_id(node), node.name);
    Documents { meta_data: meta_data.into(), ..Documents::default() }
}
