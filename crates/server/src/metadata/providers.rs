//! Which provider a node has: by its groups, else by the site.

use std::cell::LazyCell;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use hoist_metadata::provider::{ProviderAnswer, ProviderError};
use hoist_metadata::{MetadataProvider, Mode, Renderer};
use hoist_model::{GroupKey, Node};
use hoist_site::{Roster, SeedProvider, SeedRef, SiteKey};
use tokio_util::sync::CancellationToken;

use super::MetadataSettings;
use super::builtin::Builtin;
use super::copies::Copies;
use super::elsewhere::{External, Nowhere, Redirect};
use super::failing_nodes::FailingNodes;
use super::proxy::Proxy;
use crate::http_client::{self, HttpClientError};

/// All providers of a site, as one.
#[derive(Debug)]
pub struct Providers {
    site: Provider,
    groups: Vec<(GroupKey, Provider)>,
    builtin: Arc<Builtin>,
    /// Of hoist's own documents.
    renderer: Arc<Renderer>,
    failing: Arc<FailingNodes>,
}

#[derive(Debug)]
struct Provider {
    mode: Mode,
    gives: Arc<dyn MetadataProvider>,
}

impl Providers {
    /// Connects to nothing yet.
    pub fn new(
        key: &SiteKey,
        settings: &MetadataSettings,
        data_dir: &Path,
    ) -> Result<Self, HttpClientError> {
        let copies = LazyCell::new(|| Arc::new(Copies::open(data_dir)));
        let renderer = Arc::<Renderer>::default();
        let failing = Arc::<FailingNodes>::default();
        let builtin = Builtin::new(key.clone(), Arc::clone(&renderer), Arc::clone(&failing));
        let builtin = Arc::new(builtin);
        let provider = |mode: &Mode| -> Result<Provider, HttpClientError> {
            let gives: Arc<dyn MetadataProvider> = match mode {
                Mode::Builtin => Arc::clone(&builtin) as Arc<dyn MetadataProvider>,
                Mode::External { argument } => Arc::new(External { argument: argument.clone() }),
                Mode::Redirect { url } => Arc::new(Redirect { key: key.clone(), url: url.clone() }),
                Mode::Proxy { url } => {
                    let client = http_client::client(&settings.authorities, url.is_plain())?;
                    let copies = Arc::clone(&copies);
                    Arc::new(Proxy::new(key.clone(), url.clone(), client, copies))
                }
                Mode::None => Arc::new(Nowhere),
            };
            Ok(Provider { mode: mode.clone(), gives })
        };
        let one = |(group, mode): &(GroupKey, Mode)| Ok((group.clone(), provider(mode)?));
        let groups = settings.groups.iter().map(one).collect::<Result<_, HttpClientError>>()?;
        let site = provider(&settings.mode)?;
        Ok(Self { site, groups, builtin, renderer, failing })
    }

    /// Renders hoist's own documents for nodes that have not asked yet.
    pub(super) fn prepare(&self, roster: &Arc<Roster>, stop: &CancellationToken) {
        let is_builtin = |node: &&Arc<Node>| matches!(self.mode_of(roster, node), Mode::Builtin);
        let nodes = roster.nodes().take_while(|_| !stop.is_cancelled());
        self.builtin.prepare(roster, nodes.filter(is_builtin));
    }

    /// Nodes whose documents lack layers that failed.
    pub(super) fn failing(&self) -> &Arc<FailingNodes> {
        &self.failing
    }

    pub(super) fn renderer(&self) -> &Arc<Renderer> {
        &self.renderer
    }

    pub(super) fn mode_of(&self, roster: &Roster, node: &Node) -> &Mode {
        &self.provider(roster, node).mode
    }

    fn of(&self, roster: &Roster, node: &Node) -> &dyn MetadataProvider {
        self.provider(roster, node).gives.as_ref()
    }

    /// Of several groups the one that is applied last.
    fn provider(&self, roster: &Roster, node: &Node) -> &Provider {
        if self.groups.is_empty() {
            return &self.site;
        }
        let named = roster.groups_of(node).into_iter().rev().find_map(|name| {
            let key = GroupKey { partition: node.spec.partition.clone(), name };
            self.groups.iter().find(|(group, _)| *group == key)
        });
        named.map_or(&self.site, |(_, provider)| provider)
    }
}

impl SeedProvider for Providers {
    fn seed_ref(&self, roster: &Roster, node: &Node, base: &str) -> SeedRef {
        self.of(roster, node).seed_ref(roster, node, base)
    }
}

#[async_trait]
impl MetadataProvider for Providers {
    fn at_once(&self, roster: &Arc<Roster>, node: &Arc<Node>) -> Option<ProviderAnswer> {
        self.of(roster, node).at_once(roster, node)
    }

    async fn documents(
        &self,
        roster: &Arc<Roster>,
        node: &Arc<Node>,
        from: IpAddr,
    ) -> Result<ProviderAnswer, ProviderError> {
        self.of(roster, node).documents(roster, node, from).await
    }
}
