//! Documents that others serve, as far as nodes have to be told where.

use std::net::IpAddr;
use std::sync::Arc;

use async_trait::async_trait;
use hoist_metadata::MetadataProvider;
use hoist_metadata::mode::Pattern;
use hoist_metadata::provider::{ProviderAnswer, ProviderError};
use hoist_model::Node;
use hoist_site::{Roster, SeedKind, SeedProvider, SeedRef, SiteKey};

use super::builtin::seed_here;

/// Nodes find another service by their command line alone.
#[derive(Debug)]
pub(super) struct External {
    pub(super) argument: Pattern,
}

/// Nodes ask here and are sent on.
#[derive(Debug)]
pub(super) struct Redirect {
    pub(super) key: SiteKey,
    pub(super) url: Pattern,
}

/// Nodes have no documents.
#[derive(Debug)]
pub(super) struct Nowhere;

impl SeedProvider for External {
    fn seed_ref(&self, _: &Roster, node: &Node, _: &str) -> SeedRef {
        SeedRef { kernel_args: self.argument.fill(node), url: None, kind: SeedKind::NoCloud }
    }
}

#[async_trait]
impl MetadataProvider for External {
    fn at_once(&self, _: &Arc<Roster>, _: &Arc<Node>) -> Option<ProviderAnswer> {
        None
    }

    async fn documents(
        &self,
        _: &Arc<Roster>,
        _: &Arc<Node>,
        _: IpAddr,
    ) -> Result<ProviderAnswer, ProviderError> {
        Err(ProviderError::NotHere)
    }
}

impl SeedProvider for Redirect {
    fn seed_ref(&self, _: &Roster, node: &Node, base: &str) -> SeedRef {
        seed_here(&self.key, node, base)
    }
}

#[async_trait]
impl MetadataProvider for Redirect {
    fn at_once(&self, _: &Arc<Roster>, node: &Arc<Node>) -> Option<ProviderAnswer> {
        Some(ProviderAnswer::Elsewhere(self.url.fill(node)))
    }

    async fn documents(
        &self,
        _: &Arc<Roster>,
        node: &Arc<Node>,
        _: IpAddr,
    ) -> Result<ProviderAnswer, ProviderError> {
        Ok(ProviderAnswer::Elsewhere(self.url.fill(node)))
    }
}

impl SeedProvider for Nowhere {
    fn seed_ref(&self, _: &Roster, _: &Node, _: &str) -> SeedRef {
        SeedRef::NONE
    }
}

#[async_trait]
impl MetadataProvider for Nowhere {
    fn at_once(&self, _: &Arc<Roster>, _: &Arc<Node>) -> Option<ProviderAnswer> {
        None
    }

    async fn documents(
        &self,
        _: &Arc<Roster>,
        _: &Arc<Node>,
        _: IpAddr,
    ) -> Result<ProviderAnswer, ProviderError> {
        Err(ProviderError::NotHere)
    }
}
