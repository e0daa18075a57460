//! `/meta/v1/seed/…`: the documents that cloud-init fetches on every boot.
//!
//! A client asks again ten times, a second apart, for every answer other than 200, so every
//! document of a known node gets 200. Older clients have no timeout, so no answer may block.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use hoist_api::Code;
use hoist_metadata::provider::{ProviderAnswer, ProviderError, ServedDocuments};
use hoist_metadata::{Document, Documents, MetadataProvider as _, Unknown};
use hoist_model::{Node, NodeId};
use hoist_site::{Roster, SiteKey};
use http::{HeaderMap, HeaderValue, StatusCode, header};
use metrics::Counter;

use super::{Metadata, OPEN, openchami};
use hoist_chassis::direct::{Head, KEPT, ReadyAnswer};
use hoist_chassis::extract::Path;
use hoist_chassis::failure::{Deliberate, Failure};
use hoist_chassis::peer::Peer;
use hoist_chassis::route::Route;
use hoist_chassis::secret;

/// cloud-init ignores it; browsers must not guess.
pub(super) const TEXT: &str = "text/plain; charset=utf-8";

/// When a machine that is held shall ask again.
const HOLD_SECONDS: u64 = 10;

/// Who asks.
#[derive(Debug)]
pub(super) enum Requester<'r> {
    Node(&'r Arc<Node>),
    /// In no node, or in one that is disabled.
    Nobody,
    /// The token belongs to another node or generation. The answer does not reveal whether the id
    /// exists.
    WrongToken(Option<&'r Arc<Node>>),
    /// Several nodes have its address.
    Several,
}

/// What became of requests.
#[derive(Debug)]
pub(super) struct Counts {
    served: Counter,
    redirected: Counter,
    held: Counter,
    generic: Counter,
    denied: Counter,
    refused: Counter,
    later: Counter,
    /// The second in which a refusal was last logged.
    told: AtomicI64,
}

impl Default for Counts {
    fn default() -> Self {
        let counter = |outcome| metrics::counter!("hoist_seeds_total", "outcome" => outcome);
        Self {
            served: counter("served"),
            redirected: counter("redirected"),
            held: counter("held"),
            generic: counter("default"),
            denied: counter("denied"),
            refused: counter("refused"),
            later: counter("later"),
            told: AtomicI64::new(0),
        }
    }
}

pub(super) fn routes(metadata: &Metadata) -> Vec<Route<Metadata>> {
    let with_token = metadata.clone();
    let bare = metadata.clone();
    let openchami = metadata.clone();
    vec![
        Route::get("/meta/v1/seed/{node}/{token}/{doc}", OPEN, by_token)
            .summary("A cloud-init document for the node of the token")
            .reason(
                "The documents of a node, without secrets, for the seed token in the path. \
                 cloud-init has no other credentials",
            )
            .gives_media(200, "text/plain")
            .lenient()
            .direct(move |head| direct(&with_token, head)),
        Route::get("/meta/v1/seed/{doc}", OPEN, by_address)
            .summary("A cloud-init document for the node with the caller's address")
            .reason("The documents of the node whose address asks, without secrets")
            .gives_media(200, "text/plain")
            .lenient()
            .direct(move |head| direct(&bare, head)),
        Route::get("/cloud-init/{doc}", OPEN, by_address)
            .summary("OpenCHAMI: a cloud-init document for the node with the caller's address")
            .reason(
                "The documents of the node whose address asks, without secrets, and those of its \
                 groups",
            )
            .gives_media(200, "text/plain")
            .lenient()
            .direct(move |head| direct(&openchami, head)),
    ]
}

/// Without waiting; `None` when there is something to wait for, or to tell.
fn direct(metadata: &Metadata, head: &Head<'_>) -> Option<ReadyAnswer> {
    if head.fields.get(&header::IF_NONE_MATCH).is_some() {
        return None;
    }
    let roster = metadata.boot.registry.load();
    let (rest, doc) = head.path.rsplit_once('/')?;
    let document = Document::from_word(doc)?;
    let asking = match rest.strip_prefix("/meta/v1/seed/") {
        Some(both) => {
            let (node, token) = both.split_once('/')?;
            with_token(&roster, &metadata.key, node, token)
        }
        None => with_address(&roster, metadata.client(head.peer, head.fields)),
    };
    let Requester::Node(node) = asking else { return None };
    let ProviderAnswer::Here(served) = metadata.provider.at_once(&roster, node)? else {
        return None;
    };
    metadata.counts.served.increment(1);
    let body = served.get(document).clone();
    let etag = Some(Arc::clone(served.etag(document)));
    Some(ReadyAnswer { content_type: TEXT, body, etag })
}

async fn by_token(
    State(metadata): State<Metadata>,
    Path((node, token, doc)): Path<(String, String, String)>,
    peer: Peer,
    headers: HeaderMap,
) -> Response {
    let roster = metadata.boot.registry.roster();
    let from = metadata.client(&peer, &headers);
    let asking = with_token(&roster, &metadata.key, &node, &token);
    metadata.answer(&roster, asking, &doc, from, &headers).await
}

async fn by_address(
    State(metadata): State<Metadata>,
    Path(doc): Path<String>,
    peer: Peer,
    headers: HeaderMap,
) -> Response {
    let roster = metadata.boot.registry.roster();
    let from = metadata.client(&peer, &headers);
    let asking = with_address(&roster, from);
    metadata.answer(&roster, asking, &doc, from, &headers).await
}

/// The node of an id, if the token is its own and of its present generation.
pub(super) fn with_token<'r>(
    roster: &'r Roster,
    key: &SiteKey,
    node: &str,
    token: &str,
) -> Requester<'r> {
    match node.parse::<NodeId>().ok().and_then(|id| roster.by_id(id)) {
        Some(node) if !key.is_seed(node, token) => Requester::WrongToken(Some(node)),
        Some(node) if node.spec.enabled => Requester::Node(node),
        Some(_) => Requester::Nobody,
        // Ids are never reused: waiting for a removed node would never end.
        None => Requester::WrongToken(None),
    }
}

/// The only node that speaks from the address.
pub(super) fn with_address(roster: &Roster, address: IpAddr) -> Requester<'_> {
    match roster.speaking_from(address).as_slice() {
        [node] if node.spec.enabled => Requester::Node(node),
        [] | [_] => Requester::Nobody,
        _ => Requester::Several,
    }
}

impl Metadata {
    /// Who really asks, as far as proxies are believed.
    pub(crate) fn client<'a>(
        &self,
        peer: &Peer,
        fields: impl Into<hoist_chassis::direct::Fields<'a>>,
    ) -> IpAddr {
        self.boot.chassis.proxies.client(peer, fields)
    }

    pub(super) async fn answer(
        &self,
        roster: &Arc<Roster>,
        asking: Requester<'_>,
        doc: &str,
        from: IpAddr,
        headers: &HeaderMap,
    ) -> Response {
        if let Some(text) = openchami::of_group(roster, &asking, doc) {
            return ([(header::CONTENT_TYPE, TEXT)], text).into_response();
        }
        let Some(document) = Document::from_word(doc) else {
            let known = Document::ALL.map(Document::as_str).join(", ");
            let failure = Failure::new(Code::NotFound, format!("document `{doc}` not found"));
            return failure.with_remedy(format!("the documents are {known}")).into_response();
        };
        match self.given(roster, &asking, from, headers).await {
            Ok(ProviderAnswer::Here(served)) => respond(&served, document, headers),
            Ok(ProviderAnswer::Stale { served, age }) => {
                let mut response = respond(&served, document, headers);
                response.headers_mut().insert(header::AGE, age.as_secs().into());
                response
            }
            Ok(ProviderAnswer::Elsewhere(url)) => redirect(&format!("{url}/{document}")),
            Err(refused) => refused,
        }
    }

    /// The documents for who asks, or where they are; counted.
    pub(super) async fn given(
        &self,
        roster: &Arc<Roster>,
        asking: &Requester<'_>,
        from: IpAddr,
        headers: &HeaderMap,
    ) -> Result<ProviderAnswer, Response> {
        let node = self.admit(asking, from, headers).map_err(IntoResponse::into_response)?;
        let Some(node) = node else { return Ok(ProviderAnswer::Here(Arc::new(generic(from)))) };
        match self.provider.documents(roster, node, from).await {
            Ok(given) => {
                let counter = match given {
                    ProviderAnswer::Here(_) | ProviderAnswer::Stale { .. } => &self.counts.served,
                    ProviderAnswer::Elsewhere(_) => &self.counts.redirected,
                };
                counter.increment(1);
                Ok(given)
            }
            Err(ProviderError::Later { reason, after }) => {
                self.counts.later.increment(1);
                let failure = Failure::new(Code::Held, reason).with_remedy("ask again");
                Err(retry_after(failure.into_response(), after.as_secs()))
            }
            Err(error) => {
                self.counts.denied.increment(1);
                Err(Failure::new(Code::NotFound, error.to_string()).into_response())
            }
        }
    }

    /// The node to answer; `None` if unknown machines get documents too.
    pub(super) fn admit<'r>(
        &self,
        asking: &Requester<'r>,
        from: IpAddr,
        headers: &HeaderMap,
    ) -> Result<Option<&'r Arc<Node>>, SeedFailure> {
        let policy = self.unknown;
        if matches!(asking, Requester::Nobody) {
            self.note_unknown(from, headers);
        }
        match asking {
            Requester::Nobody | Requester::WrongToken(None)
                if !self.boot.registry.is_complete() =>
            {
                self.counts.held.increment(1);
                let failure = Failure::new(Code::Held, "the nodes are not known yet");
                Err(SeedFailure(failure.with_remedy("ask again")))
            }
            Requester::Node(node) => Ok(Some(node)),
            Requester::Nobody => match policy {
                Unknown::Hold => {
                    self.counts.held.increment(1);
                    let failure = Failure::new(Code::Held, "this machine is not known yet");
                    Err(SeedFailure(failure.with_remedy("ask again")))
                }
                Unknown::Default => {
                    self.counts.generic.increment(1);
                    Ok(None)
                }
                Unknown::Deny => {
                    self.counts.denied.increment(1);
                    Err(SeedFailure(Failure::new(Code::NotFound, "this machine is not known")))
                }
            },
            Requester::WrongToken(node) => {
                self.counts.refused.increment(1);
                if self.may_tell() {
                    tracing::warn!(
                        node = node.map(|node| node.name.as_str()), %from,
                        "a seed was asked for with a token of another node, or an old one"
                    );
                }
                let code = match policy {
                    Unknown::Deny => Code::NotFound,
                    Unknown::Hold | Unknown::Default => Code::Forbidden,
                };
                Err(SeedFailure(Failure::new(code, "this token is not the node's")))
            }
            Requester::Several => {
                self.counts.refused.increment(1);
                if self.may_tell() {
                    tracing::warn!(%from, "a seed was asked for from an address of several nodes");
                }
                let failure = Failure::new(Code::Ambiguous, "several nodes have this address");
                Err(SeedFailure(failure.with_remedy("ask with the node's token")))
            }
        }
    }

    /// Lists the address, so that operators can declare the machine.
    fn note_unknown(&self, from: IpAddr, headers: &HeaderMap) {
        let agent = headers.get(header::USER_AGENT).and_then(|agent| agent.to_str().ok());
        let now = self.boot.chassis.clock.now();
        if self.boot.log.note_unknown_address(from, agent, now) {
            tracing::warn!(
                %from, agent, policy = ?self.unknown,
                "an address of no enabled node asks for metadata; `hoist node discovered` lists it"
            );
        }
    }

    /// One line a second: a guesser must not fill the log.
    pub(super) fn may_tell(&self) -> bool {
        let now = self.boot.chassis.clock.now().as_second();
        self.counts.told.swap(now, Ordering::Relaxed) != now
    }
}

/// The answer to a machine that gets no documents.
#[derive(Debug)]
pub(super) struct SeedFailure(Failure);

impl IntoResponse for SeedFailure {
    fn into_response(self) -> Response {
        let held = self.0.problem().code == Code::Held;
        let mut response = self.0.into_response();
        if !held {
            return response;
        }
        // The address was logged; that it is held is no failure of this server.
        response.extensions_mut().insert(Deliberate);
        retry_after(response, HOLD_SECONDS)
    }
}

/// The documents of every unknown machine: a stable instance id and nothing else.
fn generic(from: IpAddr) -> ServedDocuments {
    let hash = secret::hex(&secret::sha256(from.to_string().as_bytes())[..8]);
    let meta_data = format!("instance-id: unknown-{hash}\n");
    ServedDocuments::new(Documents { meta_data: meta_data.into(), ..Documents::default() })
}

fn respond(served: &ServedDocuments, document: Document, headers: &HeaderMap) -> Response {
    let etag = served.etag(document);
    let tag = HeaderValue::from_str(etag).expect("hexadecimal digits in quotes");
    let kept = [(header::ETAG, tag), (header::CACHE_CONTROL, HeaderValue::from_static(KEPT))];
    if has(headers, etag) {
        return (StatusCode::NOT_MODIFIED, kept).into_response();
    }
    let body: Bytes = served.get(document).clone();
    (kept, [(header::CONTENT_TYPE, HeaderValue::from_static(TEXT))], body).into_response()
}

/// Whether the client has just this one. Compressed on the way it comes back as a weak one.
fn has(headers: &HeaderMap, etag: &str) -> bool {
    let given = headers.get_all(header::IF_NONE_MATCH).iter();
    let given = given.filter_map(|value| value.to_str().ok()).flat_map(|line| line.split(','));
    given.map(str::trim).any(|tag| tag == "*" || tag.trim_start_matches("W/") == etag)
}

fn redirect(url: &str) -> Response {
    match HeaderValue::from_str(url) {
        Ok(url) => (StatusCode::TEMPORARY_REDIRECT, [(header::LOCATION, url)]).into_response(),
        Err(_) => Failure::new(Code::Internal, "the URL of the documents is none").into_response(),
    }
}

fn retry_after(mut response: Response, seconds: u64) -> Response {
    response.headers_mut().insert(header::RETRY_AFTER, seconds.into());
    response
}
