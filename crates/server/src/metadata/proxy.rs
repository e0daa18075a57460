//! Documents of another service, fetched for the node that asks.
//!
//! A node waits at most [`BUDGET`]. What was fetched is kept, asked for again with its `ETag`, and
//! served when the other service fails.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use futures_util::future::try_join_all;
use hoist_inventory::Roster;
use hoist_metadata::mode::Pattern;
use hoist_metadata::provider::{Given, Missing, Served};
use hoist_metadata::{Document, Documents, MetadataProvider, SeedRef, SiteKey};
use hoist_model::Node;
use http::{HeaderName, StatusCode, header};
use metrics::Counter;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::builtin::seed_here;
use super::kept::Kept;

/// How long a node waits for all of its documents.
const BUDGET: Duration = Duration::from_secs(2);

/// Nodes that are fetched for at once.
const AT_ONCE: usize = 256;

/// Largest document.
const MAX_DOCUMENT: usize = 1024 * 1024;

/// Bytes of documents that are kept.
const ROOM: usize = 128 * 1024 * 1024;

/// How long what is kept is served without asking: cloud-init fetches its four documents one after
/// the other, and each answer has all of them.
const FRESH: Duration = Duration::from_secs(5);

const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

#[derive(Debug)]
pub(super) struct Proxy {
    key: SiteKey,
    url: Pattern,
    client: reqwest::Client,
    turns: Semaphore,
    kept: Kept<Fetched>,
    failures: Counter,
    stale: Counter,
}

/// What the other service said last of a node.
#[derive(Debug, Clone)]
struct Fetched {
    served: Arc<Served>,
    /// Of the other service, in the order of [`Document::ALL`].
    etags: Arc<[Option<String>; 4]>,
    /// When it was last asked, whatever came of it.
    asked: Instant,
}

#[derive(Debug, thiserror::Error)]
enum FetchError {
    #[error("the service took longer than {BUDGET:?}")]
    Slow,
    #[error("the service failed")]
    Http(#[from] reqwest::Error),
    #[error("the service answered {0} for {1}")]
    Status(StatusCode, Document),
    #[error("{0} is larger than {MAX_DOCUMENT} bytes")]
    TooLarge(Document),
}

impl Proxy {
    pub(super) fn new(key: SiteKey, url: Pattern, client: reqwest::Client) -> Self {
        Self {
            key,
            url,
            client,
            turns: Semaphore::new(AT_ONCE),
            kept: Kept::new(ROOM),
            failures: metrics::counter!("hoist_metadata_proxy_failures_total"),
            stale: metrics::counter!("hoist_metadata_proxy_stale_total"),
        }
    }

    async fn fetch(
        &self,
        node: &Node,
        address: IpAddr,
        before: Option<&Fetched>,
    ) -> Result<Fetched, FetchError> {
        let _turn = self.turns.acquire().await.expect("it is never closed");
        let url = self.url.fill(node);
        let one = |(at, document): (usize, Document)| {
            let known = before.and_then(|before| {
                Some((before.etags[at].clone()?, before.served.get(document).clone()))
            });
            self.fetch_one(format!("{url}/{document}"), document, address, known)
        };
        let all = Document::ALL.into_iter().enumerate().map(one);
        let mut all = try_join_all(all).await?.into_iter();
        let mut next = || all.next().expect("as many as were asked for");
        let [meta, user, vendor, network] = [next(), next(), next(), next()];
        let documents = Documents {
            meta_data: meta.0,
            user_data: user.0,
            vendor_data: vendor.0,
            network_config: network.0,
        };
        Ok(Fetched {
            served: Arc::new(Served::new(documents)),
            etags: Arc::new([meta.1, user.1, vendor.1, network.1]),
            asked: Instant::now(),
        })
    }

    /// A document and its `ETag`. One that there is not is empty, but for the one that says who the
    /// node is.
    async fn fetch_one(
        &self,
        url: String,
        document: Document,
        address: IpAddr,
        known: Option<(String, Bytes)>,
    ) -> Result<(Bytes, Option<String>), FetchError> {
        let mut request = self.client.get(url).header(FORWARDED_FOR, address.to_string());
        if let Some((etag, _)) = &known {
            request = request.header(header::IF_NONE_MATCH, etag);
        }
        let mut response = request.send().await?;
        match (response.status(), known) {
            (StatusCode::NOT_MODIFIED, Some((etag, body))) => return Ok((body, Some(etag))),
            (StatusCode::NOT_FOUND, _) if document != Document::MetaData => {
                return Ok((Bytes::new(), None));
            }
            (status, _) if status.is_success() => {}
            (status, _) => return Err(FetchError::Status(status, document)),
        }
        let too_large = |length: u64| length > MAX_DOCUMENT as u64;
        if response.content_length().is_some_and(too_large) {
            return Err(FetchError::TooLarge(document));
        }
        let etag = response.headers().get(header::ETAG).and_then(|etag| etag.to_str().ok());
        let etag = etag.map(str::to_owned);
        let mut body = BytesMut::new();
        while let Some(chunk) = response.chunk().await? {
            if body.len() + chunk.len() > MAX_DOCUMENT {
                return Err(FetchError::TooLarge(document));
            }
            body.extend_from_slice(&chunk);
        }
        Ok((body.freeze(), etag))
    }

    fn keep(&self, node: &Node, fetched: Fetched) {
        let bytes = fetched.served.size();
        self.kept.put(node.id, fetched, bytes);
    }
}

#[async_trait]
impl MetadataProvider for Proxy {
    fn seed_ref(&self, _: &Roster, node: &Node, base: &str) -> SeedRef {
        seed_here(&self.key, node, base)
    }

    fn at_once(&self, _: &Arc<Roster>, node: &Arc<Node>) -> Option<Given> {
        let kept = self.kept.get(node.id).filter(|kept| kept.asked.elapsed() < FRESH)?;
        Some(Given::Here(kept.served))
    }

    async fn documents(
        &self,
        roster: &Arc<Roster>,
        node: &Arc<Node>,
        from: IpAddr,
    ) -> Result<Given, Missing> {
        let before = self.kept.get(node.id);
        if let Some(kept) = before.as_ref().filter(|kept| kept.asked.elapsed() < FRESH) {
            return Ok(Given::Here(Arc::clone(&kept.served)));
        }
        // As the inventory has it: between the node and us there may be somebody who translates.
        let address = roster.boot(node).and_then(|boot| boot.ip).unwrap_or(from);
        let fetching = self.fetch(node, address, before.as_ref());
        let error = match tokio::time::timeout(BUDGET, fetching).await {
            Ok(Ok(fetched)) => {
                let served = Arc::clone(&fetched.served);
                self.keep(node, fetched);
                return Ok(Given::Here(served));
            }
            Ok(Err(error)) => error,
            Err(_) => FetchError::Slow,
        };
        self.failures.increment(1);
        tracing::warn!(
            node = %node.name, error = %crate::chain(&error), stale = before.is_some(),
            "the service of the node's documents failed"
        );
        let Some(before) = before else {
            let reason = "the service that has them failed".to_owned();
            return Err(Missing::Later { reason, after: FRESH });
        };
        self.stale.increment(1);
        let served = Arc::clone(&before.served);
        self.keep(node, Fetched { asked: Instant::now(), ..before });
        Ok(Given::Here(served))
    }
}
