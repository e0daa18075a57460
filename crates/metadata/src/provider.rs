//! The boundary between booting and cloud-init: where a node finds its documents, and what they are.
//!
//! Booting knows only [`MetadataProvider::seed_ref`], which never waits. Who serves the documents is
//! chosen per site and per group; every way stands behind the same trait.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use hoist_inventory::Roster;
use hoist_model::Node;

use crate::Documents;

/// How a node finds its documents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeedRef {
    /// Words for the kernel's command line; empty when it needs none.
    pub kernel_args: String,
    /// With a slash at its end.
    pub url: Option<String>,
    pub kind: SeedKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SeedKind {
    /// Fetched over HTTP.
    NoCloud,
    /// On a disk of the node.
    ConfigDrive,
    /// It has none.
    None,
}

/// What a provider says when it is asked for a node's documents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Given {
    Here(Arc<Documents>),
    /// The URL in front of the documents' names, without a slash at its end.
    Elsewhere(String),
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Missing {
    /// The node was told to ask somewhere else; whoever comes here is not that node.
    #[error("the documents of this node are not served here")]
    NotHere,
    #[error("the documents are not there yet: {reason}")]
    Later { reason: String, after: Duration },
}

/// Gives nodes their documents.
#[async_trait]
pub trait MetadataProvider: fmt::Debug + Send + Sync {
    /// Called while a machine waits for its boot script: no lock, no disk, no network. `base` is
    /// where the machine reaches this controller, without a slash at its end.
    fn seed_ref(&self, roster: &Roster, node: &Node, base: &str) -> SeedRef;

    /// What is in memory already.
    fn at_once(&self, roster: &Arc<Roster>, node: &Arc<Node>) -> Option<Given>;

    /// `from` is the address that the node asks from.
    async fn documents(
        &self,
        roster: &Arc<Roster>,
        node: &Arc<Node>,
        from: IpAddr,
    ) -> Result<Given, Missing>;
}

impl SeedRef {
    pub const NONE: Self = Self { kernel_args: String::new(), url: None, kind: SeedKind::None };

    /// The form of the argument that every version of cloud-init takes.
    pub fn nocloud(url: impl Into<String>) -> Self {
        let url = url.into();
        let kernel_args = nocloud_argument(&url);
        Self { kernel_args, url: Some(url), kind: SeedKind::NoCloud }
    }
}

/// `ds=nocloud;s=URL/;dsmode=net`: without `dsmode` older versions fetch the documents and throw
/// them away, and without the slash they ask for the wrong ones.
pub fn nocloud_argument(url: &str) -> String {
    let slash = if url.ends_with('/') { "" } else { "/" };
    format!("ds=nocloud;s={url}{slash};dsmode=net")
}
