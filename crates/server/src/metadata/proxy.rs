//! Documents of another service, fetched for the node that asks.
//!
//! A node waits at most [`BUDGET`]. Fetched documents are cached in memory and on disk, revalidated
//! with their `ETag`, and served when the other service fails.
//!
//! Does not belong here: documents that hoist renders itself (`builtin`).

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use futures_util::future::try_join_all;
use hoist_metadata::facts::{FactsError, MAX_FACTS};
use hoist_metadata::mode::Pattern;
use hoist_metadata::provider::{ProviderAnswer, ProviderError, ServedDocuments};
use hoist_metadata::{Document, Documents, MetadataProvider};
use hoist_model::{Node, NodeId};
use hoist_site::{Roster, SeedProvider, SeedRef, SiteKey};
use http::{HeaderName, StatusCode, header};
use metrics::{Counter, Gauge};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::builtin::seed_here;
use super::copies::{Copies, Copy, Identity};
use super::node_cache::NodeCache;
use super::under_way::UnderWay;
use hoist_chassis::log_limit::LogLimit;

/// How long a node waits for all of its documents.
const BUDGET: Duration = Duration::from_secs(2);

/// Timeout of a fetch; the rest of the budget is for callers that share it.
const FETCHING: Duration = Duration::from_millis(1800);

/// Nodes that are fetched for at once.
const AT_ONCE: usize = 256;

/// Nodes whose meta-data is looked into at once.
const READ_AT_ONCE: usize = 4;

/// Largest document.
pub(super) const MAX_DOCUMENT: usize = 1024 * 1024;

/// Bytes of documents that are kept.
const ROOM: usize = 272 * 1024 * 1024;

/// Whatever is served can be kept.
const _: () = assert!(NodeCache::<CachedDocuments>::fits(
    ROOM,
    Document::ALL.len() * MAX_DOCUMENT + MAX_FACTS
));

/// How long cached documents are served without revalidation: cloud-init fetches its four documents
/// one after the other, and each fetch brings all of them.
const FRESH: Duration = Duration::from_secs(5);

/// A whole site asks while the other service is away.
static FAILED: LogLimit = LogLimit::per_second();

/// Longest tag that is remembered.
const MAX_ETAG: usize = 1024;

/// How old a copy on disk may be before it is written anew, although nothing in it changed.
const COPY_AGE: Duration = Duration::from_mins(10);

const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

#[derive(Debug)]
pub(super) struct Proxy(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    key: SiteKey,
    url: Pattern,
    client: reqwest::Client,
    permits: Semaphore,
    readings: Arc<Semaphore>,
    /// Of several who ask for one node, one fetches; the others learn when that failed.
    under_way: UnderWay<Option<Instant>>,
    kept: NodeCache<CachedDocuments>,
    copies: Arc<Copies>,
    unwritten: Mutex<CopyQueue>,
    failures: Counter,
    stale: Counter,
    age: Gauge,
}

/// Nodes whose copies are to be written.
#[derive(Debug, Default)]
struct CopyQueue {
    nodes: VecDeque<NodeId>,
    /// A writer is active.
    writing: bool,
}

/// The other service's last documents for a node.
#[derive(Debug, Clone)]
struct CachedDocuments {
    identity: Arc<Identity>,
    served: Arc<ServedDocuments>,
    /// Of the other service, in the order of [`Document::ALL`].
    etags: Arc<[Option<String>; 4]>,
    /// Time of the last request, successful or not.
    asked: Instant,
    /// When it last said so.
    good: SystemTime,
    /// It was asked again since, and said nothing.
    is_stale: bool,
    /// The time in the copy on disk, if there is one of just these.
    copied: Option<SystemTime>,
}

impl CachedDocuments {
    fn is_fresh(&self) -> bool {
        self.asked.elapsed() < FRESH
    }

    /// It was asked again just now, in vain.
    fn stale(self) -> Self {
        Self { asked: Instant::now(), is_stale: true, ..self }
    }

    fn of_copy(copy: Copy) -> Self {
        let good = SystemTime::UNIX_EPOCH + Duration::from_secs(copy.good);
        Self {
            identity: Arc::new(copy.identity),
            served: Arc::new(ServedDocuments::new(copy.documents)),
            etags: Arc::default(),
            asked: Instant::now(),
            good,
            is_stale: true,
            copied: Some(good),
        }
    }

    fn to_copy(&self) -> Copy {
        let good = self.good.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let document = |document| self.served.get(document).clone();
        let documents = Documents {
            meta_data: document(Document::MetaData),
            user_data: document(Document::UserData),
            vendor_data: document(Document::VendorData),
            network_config: document(Document::NetworkConfig),
        };
        Copy { identity: (*self.identity).clone(), good: good.as_secs(), documents }
    }
}

#[derive(Debug, thiserror::Error)]
enum FetchError {
    #[error("the service took longer than {FETCHING:?}")]
    Slow,
    #[error("the service failed")]
    Http(#[from] reqwest::Error),
    #[error("the service answered {0} for {1}")]
    Status(StatusCode, Document),
    #[error("{0} is larger than {MAX_DOCUMENT} bytes")]
    TooLarge(Document),
    #[error("the answer of the service is not meta-data")]
    NotMetaData(#[source] FactsError),
    #[error("the meta-data of the service has no instance-id")]
    NoInstanceId,
}

impl Proxy {
    pub(super) fn new(
        key: SiteKey,
        url: Pattern,
        client: reqwest::Client,
        copies: Arc<Copies>,
    ) -> Self {
        Self(Arc::new(Inner {
            key,
            url,
            client,
            permits: Semaphore::new(AT_ONCE),
            readings: Arc::new(Semaphore::new(READ_AT_ONCE)),
            under_way: UnderWay::default(),
            kept: NodeCache::new(ROOM),
            copies,
            unwritten: Mutex::default(),
            failures: metrics::counter!("hoist_metadata_proxy_failures_total"),
            stale: metrics::counter!("hoist_metadata_proxy_stale_total"),
            age: metrics::gauge!("hoist_metadata_proxy_stale_age_seconds"),
        }))
    }

    /// Caches fetched documents.
    fn take(&self, node: NodeId, mut fetched: CachedDocuments) -> ProviderAnswer {
        let given = self.0.give(&fetched);
        let old = |copied: SystemTime| copied.elapsed().is_ok_and(|age| age > COPY_AGE);
        let unwritten = fetched.copied.is_none_or(old);
        if unwritten {
            fetched.copied = Some(fetched.good);
        }
        self.0.keep(node, fetched);
        if unwritten {
            self.write_behind(node);
        }
        given
    }

    /// Queues a copy for the background writer.
    fn write_behind(&self, node: NodeId) {
        let mut unwritten = self.0.unwritten();
        unwritten.nodes.push_back(node);
        if !std::mem::replace(&mut unwritten.writing, true) {
            let proxy = Arc::downgrade(&self.0);
            tokio::task::spawn_blocking(move || write_all(&proxy));
        }
    }
}

/// Writes until there is nothing left to write, or the controller has ended.
fn write_all(proxy: &Weak<Inner>) {
    while let Some(inner) = proxy.upgrade() {
        let mut unwritten = inner.unwritten();
        let Some(node) = unwritten.nodes.pop_front() else {
            unwritten.writing = false;
            return;
        };
        drop(unwritten);
        let Some(kept) = inner.kept.get(node) else { continue };
        if let Err(error) = inner.copies.write(node, &kept.to_copy()) {
            tracing::warn!(%node, %error, "the node's documents are not kept on disk");
        }
    }
}

impl Inner {
    fn unwritten(&self) -> MutexGuard<'_, CopyQueue> {
        self.unwritten.lock()
    }

    fn identity(&self, node: &Node, address: IpAddr) -> Identity {
        Identity { generation: node.generation, url: self.url.fill(node), address }
    }

    /// The cached documents, if they were fetched with the same identity.
    fn kept(&self, node: &Node, identity: &Identity) -> Option<CachedDocuments> {
        self.kept.get(node.id).filter(|kept| *kept.identity == *identity)
    }

    fn keep(&self, node: NodeId, fetched: CachedDocuments) {
        let bytes = fetched.served.size();
        self.kept.put(node, fetched, bytes);
    }

    fn give(&self, fetched: &CachedDocuments) -> ProviderAnswer {
        let served = Arc::clone(&fetched.served);
        if !fetched.is_stale {
            return ProviderAnswer::Here(served);
        }
        // A clock that was set back makes nothing younger than now.
        let age = fetched.good.elapsed().unwrap_or_default();
        self.stale.increment(1);
        self.age.set(age.as_secs_f64());
        ProviderAnswer::Stale { served, age }
    }

    async fn fetch(
        &self,
        identity: &Identity,
        before: Option<&CachedDocuments>,
    ) -> Result<CachedDocuments, FetchError> {
        let _permit = self.permits.acquire().await.expect("it is never closed");
        let url = &identity.url;
        let address = identity.address;
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
        let served = Arc::new(ServedDocuments::new(documents));
        let same = before.filter(|before| before.served == served);
        let served = match same {
            Some(before) => Arc::clone(&before.served),
            None => self.check(served).await?,
        };
        Ok(CachedDocuments {
            identity: Arc::new(identity.clone()),
            etags: Arc::new([meta.1, user.1, vendor.1, network.1]),
            asked: Instant::now(),
            good: SystemTime::now(),
            is_stale: false,
            copied: same.and_then(|before| before.copied),
            served,
        })
    }

    /// A service that answers anything says little: who the node is has to be in it, or the client
    /// makes something up.
    async fn check(
        &self,
        served: Arc<ServedDocuments>,
    ) -> Result<Arc<ServedDocuments>, FetchError> {
        let readings = Arc::clone(&self.readings);
        let permit = readings.acquire_owned().await.expect("it is never closed");
        let reading = tokio::task::spawn_blocking(move || {
            let instance = served.facts().map(|facts| facts.instance_id().is_some());
            let instance = instance.map_err(|error| FetchError::NotMetaData(error.clone()));
            drop(permit);
            if instance? { Ok(served) } else { Err(FetchError::NoInstanceId) }
        });
        reading.await.unwrap_or_else(|died| std::panic::resume_unwind(died.into_panic()))
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
        let etag = etag.filter(|etag| etag.len() <= MAX_ETAG).map(str::to_owned);
        let mut body = BytesMut::new();
        while let Some(chunk) = response.chunk().await? {
            if body.len() + chunk.len() > MAX_DOCUMENT {
                return Err(FetchError::TooLarge(document));
            }
            body.extend_from_slice(&chunk);
        }
        Ok((body.freeze(), etag))
    }
}

impl SeedProvider for Proxy {
    fn seed_ref(&self, _: &Roster, node: &Node, base: &str) -> SeedRef {
        seed_here(&self.0.key, node, base)
    }
}

#[async_trait]
impl MetadataProvider for Proxy {
    fn at_once(&self, roster: &Arc<Roster>, node: &Arc<Node>) -> Option<ProviderAnswer> {
        let address = roster.boot(node)?.ip?;
        let kept = self.0.kept(node, &self.0.identity(node, address))?;
        // Stale documents need an `Age` header, which this answer cannot carry.
        (kept.is_fresh() && !kept.is_stale).then(|| ProviderAnswer::Here(kept.served))
    }

    async fn documents(
        &self,
        roster: &Arc<Roster>,
        node: &Arc<Node>,
        from: IpAddr,
    ) -> Result<ProviderAnswer, ProviderError> {
        // The inventory's address: a NAT may be between the node and this controller.
        let address = roster.boot(node).and_then(|boot| boot.ip).unwrap_or(from);
        let identity = self.0.identity(node, address);
        let known = self.0.kept(node, &identity);
        if let Some(kept) = known.as_ref().filter(|kept| kept.is_fresh()) {
            return Ok(self.0.give(kept));
        }
        let started = Instant::now();
        let deadline = started + BUDGET;
        let alone = self.0.under_way.of(node.id).lock_owned();
        let Ok(mut failed) = tokio::time::timeout_at(deadline, alone).await else {
            return known.map_or_else(|| Err(later()), |known| Ok(self.0.give(&known.stale())));
        };
        // Fetched by a concurrent request.
        let known = self.0.kept(node, &identity);
        if let Some(kept) = known.as_ref().filter(|kept| kept.is_fresh()) {
            return Ok(self.0.give(kept));
        }
        if failed.is_some_and(|failed| failed >= started) {
            return Err(later());
        }
        // Meanwhile, so that it is there when it is needed.
        let reading = (known.is_none() && self.0.copies.has(node.id)).then(|| {
            let copies = Arc::clone(&self.0.copies);
            let node = node.id;
            tokio::task::spawn_blocking(move || copies.read(node))
        });
        let fetching = self.0.fetch(&identity, known.as_ref());
        let error = match tokio::time::timeout_at(started + FETCHING, fetching).await {
            Ok(Ok(fetched)) => return Ok(self.take(node.id, fetched)),
            Ok(Err(error)) => error,
            Err(_) => FetchError::Slow,
        };
        self.0.failures.increment(1);
        let before = match (known, reading) {
            (None, Some(reading)) => {
                let copy = tokio::time::timeout_at(deadline, reading).await;
                let copy = copy.ok().and_then(Result::ok).flatten();
                copy.filter(|copy| copy.identity == identity).map(CachedDocuments::of_copy)
            }
            (known, _) => known,
        };
        if let Some(left_out) = FAILED.permit() {
            tracing::warn!(
                node = %node.name, error = %hoist_diagnostic::chain(&error), stale = before.is_some(),
                left_out, "the service of the node's documents failed"
            );
        }
        let Some(before) = before else {
            *failed = Some(Instant::now());
            return Err(later());
        };
        let stale = before.stale();
        let given = self.0.give(&stale);
        self.0.keep(node.id, stale);
        Ok(given)
    }
}

fn later() -> ProviderError {
    ProviderError::Later { reason: "the service that has them failed".to_owned(), after: FRESH }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use hoist_site::Resource;
    use hoist_site::roster::Incarnation;
    use serde_json::json;

    use super::*;
    use crate::http_client;

    const FROM: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    fn node(name: &str, generation: u64, address: &str) -> Node {
        let interface = json!({"name": "eth0", "mac": "02:00:00:00:00:01", "addresses": [address]});
        let now = jiff::Timestamp::UNIX_EPOCH;
        Node {
            id: NodeId::from_bits(1),
            name: name.parse().unwrap(),
            spec: serde_json::from_value(json!({"interfaces": [interface]})).unwrap(),
            protection: None,
            maintenance: None,
            provenance: None,
            generation,
            revision: 1,
            created: now,
            updated: now,
        }
    }

    async fn ask(proxy: &Proxy, node: Node) -> Result<ProviderAnswer, ProviderError> {
        let node = Arc::new(node);
        let resources = [Resource::Node(Arc::clone(&node))].into_iter();
        let roster = Arc::new(Roster::build(Incarnation::new("test"), 1, 0, resources));
        assert_eq!(proxy.at_once(&roster, &node), None, "nothing is fresh here");
        proxy.documents(&roster, &node, FROM).await
    }

    #[tokio::test]
    async fn cached_documents_do_not_outlive_a_node_change() {
        let dir = tempfile::tempdir().unwrap();
        let copies = Arc::new(Copies::open(dir.path()));
        let key = crate::site_key::open(dir.path()).unwrap();
        // No server listens on this port.
        let url: Pattern = "http://127.0.0.1:1/{name}".parse().unwrap();
        let proxy = || {
            let client = http_client::client(&[], true).unwrap();
            Proxy::new(key.clone(), url.clone(), client, Arc::clone(&copies))
        };
        let before = node("n1", 0, "10.0.0.1/8");
        let identity = proxy().0.identity(&before, "10.0.0.1".parse().unwrap());
        let documents = Documents { meta_data: "instance-id: i\n".into(), ..Documents::default() };
        let hour_ago = SystemTime::now() - Duration::from_hours(1);
        let good = hour_ago.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
        let copy = Copy { identity, good, documents };
        copies.write(before.id, &copy).unwrap();

        // From the disk, and from memory after that.
        let started = proxy();
        for _ in 0..2 {
            let given = ask(&started, before.clone()).await;
            let Ok(ProviderAnswer::Stale { served, age }) = given else { panic!("{given:?}") };
            assert_eq!(served.get(Document::MetaData), &copy.documents.meta_data);
            assert!((3600..3700).contains(&age.as_secs()), "{age:?}");
        }
        for other in
            [node("n1", 1, "10.0.0.1/8"), node("n2", 0, "10.0.0.1/8"), node("n1", 0, "10.0.0.2/8")]
        {
            for proxy in [&started, &proxy()] {
                let given = ask(proxy, other.clone()).await;
                assert!(matches!(given, Err(ProviderError::Later { .. })), "{given:?}");
            }
        }
    }
}
