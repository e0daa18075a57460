//! The boundary between booting and cloud-init: where a node finds its documents, and what they are.
//!
//! Booting knows only [`MetadataProvider::seed_ref`], which never waits. Who serves the documents is
//! chosen per site and per group; every way stands behind the same trait.

use std::fmt::{self, Write as _};
use std::net::IpAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use aws_lc_rs::digest;
use bytes::Bytes;
use hoist_inventory::Roster;
use hoist_model::Node;

use crate::facts::{Facts, FactsError};
use crate::{Document, Documents};

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
    /// It has none.
    None,
}

/// What a provider says when it is asked for a node's documents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Given {
    Here(Arc<Served>),
    /// What was good so long ago: who has them does not say anything now.
    Stale {
        served: Arc<Served>,
        age: Duration,
    },
    /// The URL in front of the documents' names, without a slash at its end.
    Elsewhere(String),
}

/// Documents and what tells them from others of the same name.
#[derive(Debug, Clone)]
pub struct Served {
    documents: Documents,
    /// In the order of [`Document::ALL`].
    etags: [Arc<str>; 4],
    /// Once somebody has asked for them.
    facts: OnceLock<Result<Facts, FactsError>>,
}

impl PartialEq for Served {
    fn eq(&self, other: &Self) -> bool {
        self.documents == other.documents
    }
}

impl Eq for Served {}

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

impl Served {
    pub fn new(documents: Documents) -> Self {
        let etags = Document::ALL.map(|document| etag(documents.get(document)));
        Self { documents, etags, facts: OnceLock::new() }
    }

    /// What meta-data says, if it has been read.
    pub fn known_facts(&self) -> Option<Result<&Facts, &FactsError>> {
        self.facts.get().map(Result::as_ref)
    }

    /// What meta-data says. Reading it takes its time, the first time.
    pub fn facts(&self) -> Result<&Facts, &FactsError> {
        self.facts.get_or_init(|| Facts::read(self.get(Document::MetaData))).as_ref()
    }

    pub fn get(&self, document: Document) -> &Bytes {
        self.documents.get(document)
    }

    /// As it stands in the header, with its quotes.
    pub fn etag(&self, document: Document) -> &Arc<str> {
        let at = Document::ALL.iter().position(|one| *one == document);
        &self.etags[at.expect("one of them all")]
    }

    /// Bytes of all of them, and of what has been read.
    pub fn size(&self) -> usize {
        let facts = self.known_facts().and_then(Result::ok).map_or(0, Facts::size);
        facts + Document::ALL.iter().map(|document| self.get(*document).len()).sum::<usize>()
    }
}

fn etag(content: &[u8]) -> Arc<str> {
    let hash = digest::digest(&digest::SHA256, content);
    let hex = hash.as_ref()[..16].iter().fold(String::from("\""), |mut text, byte| {
        write!(text, "{byte:02x}").expect("writing to a string");
        text
    });
    format!("{hex}\"").into()
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
