//! The documents that cloud-init reads, behind one trait.
//!
//! The provider of the documents is chosen per site and per group: hoist itself or another service.
//! Booting knows only the provider's [`SeedProvider`] half.

use std::fmt::Write as _;
use std::net::IpAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use aws_lc_rs::digest;
use bytes::Bytes;
use hoist_model::Node;
use hoist_site::{Roster, SeedProvider};

use crate::facts::{Facts, FactsError};
use crate::{Document, Documents};

/// A provider's answer to a request for a node's documents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProviderAnswer {
    Here(Arc<ServedDocuments>),
    /// Earlier documents: the provider does not answer now.
    Stale {
        served: Arc<ServedDocuments>,
        age: Duration,
    },
    /// The URL in front of the documents' names, without a slash at its end.
    Elsewhere(String),
}

/// Documents with their entity tags.
#[derive(Debug, Clone)]
pub struct ServedDocuments {
    documents: Documents,
    /// In the order of [`Document::ALL`].
    etags: [Arc<str>; 4],
    /// Read at the first request for them.
    facts: OnceLock<Result<Facts, FactsError>>,
}

impl PartialEq for ServedDocuments {
    fn eq(&self, other: &Self) -> bool {
        self.documents == other.documents
    }
}

impl Eq for ServedDocuments {}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProviderError {
    /// The node was directed to another service, so the client is not that node.
    #[error("the documents of this node are not served here")]
    NotHere,
    #[error("the documents are not available yet: {reason}")]
    Later { reason: String, after: Duration },
}

/// Gives nodes their documents.
#[async_trait]
pub trait MetadataProvider: SeedProvider {
    /// The answer, if there is nothing to wait for: it is in memory, or made in little time.
    fn at_once(&self, roster: &Arc<Roster>, node: &Arc<Node>) -> Option<ProviderAnswer>;

    /// `from` is the address that the node asks from.
    async fn documents(
        &self,
        roster: &Arc<Roster>,
        node: &Arc<Node>,
        from: IpAddr,
    ) -> Result<ProviderAnswer, ProviderError>;
}

impl ServedDocuments {
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

    /// Size of the documents and of the facts read from them.
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
