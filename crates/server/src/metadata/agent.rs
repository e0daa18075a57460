//! `/provision/v1/agent/documents`: a node's documents with their secrets, for an enrolled node:
//! over TLS, with the token of its enrollment, from its unique address if it has one, and with a
//! key that no earlier claim used.
//!
//! Guarantees that the claim is in the store before a secret is read, and that a release is in the
//! audit log before it is sent.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use axum::extract::{FromRequest, Request, State};
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hoist_api::Code;
use hoist_api::metadata::RenderedDocument;
use hoist_api::provision::{DocumentsRequest, NodeDocuments};
use hoist_metadata::provision::{Enrollment, KeyPrint, PresentedToken, Verdict};
use hoist_metadata::{Document, LayerFailure, RenderedDocuments, Secrets, With};
use hoist_model::{MetadataLayer, MetadataLayerSpec, Name, Node, Secret};
use hoist_site::{AddressFit, Roster, SiteKey};
use hoist_store::StoreError;
use http::{HeaderValue, header};
use metrics::Counter;
use serde_json::Value;
use tokio::sync::Semaphore;

use super::Metadata;
use crate::enrollment::{ClaimResult, Enrollments, Offer};
use crate::vault::Vault;
use hoist_chassis::Chassis;
use hoist_chassis::audit::Draft;
use hoist_chassis::auth::AuditContext;
use hoist_chassis::extract::Json;
use hoist_chassis::failure::Failure;
use hoist_chassis::peer::Peer;
use hoist_chassis::route::{AccessClass, Route};

/// An id, a token, a key and a signature.
const MAX_REQUEST: usize = 4096;

/// Why a node gets no secrets, and the remedy.
pub(crate) const NO_ADDRESS: &str = "the node gets no secrets: it has no address of its own in the \
     inventory, so any host could send this request";
pub(crate) const NO_ADDRESS_REMEDY: &str = "declare its address (`hoist node set NODE --ip …`), or \
     start the run with `--secrets-without-address`";

/// Requests handled at once: each one reads the store, even without credentials.
const PERMITS: usize = 16;

/// What handing out secrets needs.
#[derive(Debug)]
pub(super) struct Unlock {
    pub(super) enrollments: Enrollments,
    vault: Arc<Vault>,
    permits: Semaphore,
    counts: Counts,
    /// The second in which a refusal was last logged.
    told: AtomicI64,
}

impl Unlock {
    pub(super) fn new(chassis: &Chassis, key: SiteKey, vault: Arc<Vault>) -> Self {
        Self {
            enrollments: Enrollments::of(chassis, key),
            vault,
            permits: Semaphore::new(PERMITS),
            counts: Counts::default(),
            told: AtomicI64::new(0),
        }
    }
}

#[derive(Debug)]
struct Counts {
    given: Counter,
    refused: Counter,
    quarantined: Counter,
    failed: Counter,
}

impl Default for Counts {
    fn default() -> Self {
        let counter = |outcome| metrics::counter!("hoist_secrets_total", "outcome" => outcome);
        Self {
            given: counter("given"),
            refused: counter("refused"),
            quarantined: counter("quarantined"),
            failed: counter("failed"),
        }
    }
}

pub(super) fn routes() -> Vec<Route<Metadata>> {
    vec![
        Route::post("/provision/v1/agent/documents", AccessClass::Proof, documents)
            .reason("Proof: the provision token and the signature of the agent's key, over TLS")
            .summary("The documents of an enrolled node, with their secrets; over TLS only")
            .takes::<DocumentsRequest>()
            .body_limit(MAX_REQUEST)
            .gives::<NodeDocuments>(200),
    ]
}

async fn documents(
    State(metadata): State<Metadata>,
    peer: Peer,
    audit: AuditContext,
    request: Request,
) -> Result<Response, Failure> {
    let from = metadata.client(&peer, request.headers());
    if !peer.secure {
        return Err(metadata.refuse(RefusalReason::Plain, None, from));
    }
    let Json(asked) = Json::<DocumentsRequest>::from_request(request, &()).await?;
    let _permit = metadata.unlock.permits.acquire().await.expect("it is never closed");
    let roster = metadata.boot.registry.roster();
    let UnlockedNode { node, by, secrets_without_address } =
        metadata.unlocked(&roster, &asked, from).await?;
    let may_have = secrets_without_address || roster.has_own_address(&node);
    if !may_have && !secret_layers_of(&roster, &node).is_empty() {
        return Err(metadata.refuse(RefusalReason::NoAddress, Some(&node.name), from));
    }
    let rendered = metadata.rendered_whole(&roster, &node).await?;
    let released = SecretRelease::of(&node, by, from).with_layers(&roster, &rendered.layers);
    metadata.release(&released, audit.draft()).await?;
    let no_store = [(header::CACHE_CONTROL, HeaderValue::from_static("no-store"))];
    Ok((no_store, Json(answer(&node, &rendered))).into_response())
}

/// Why a request for secrets is refused.
#[derive(Debug, Clone, Copy)]
enum RefusalReason {
    Plain,
    /// The key did not sign.
    Proof,
    /// In no node, or in one that is disabled.
    Node,
    Address,
    /// Not enrolled, or with another token.
    Token,
    Quarantined,
    /// The node has no unique address, and no operator allowed secrets without one.
    NoAddress,
}

impl RefusalReason {
    fn failure(self) -> Failure {
        match self {
            Self::Plain => Failure::new(Code::PlainSecret, "secrets are not given over plain HTTP")
                .with_remedy("use the TLS address, and enroll the node again: its token was sent"),
            Self::Proof => {
                Failure::new(Code::Forbidden, "the signature is not of this key and this token")
            }
            // One answer for all three, so that callers cannot learn which nodes exist.
            Self::Node | Self::Token | Self::Address => {
                Failure::new(Code::Forbidden, "this token is not good for this node, or not here")
                    .with_remedy(
                        "ask from an address that the node has in the inventory, or \
                         `hoist provision enroll NODE` for another token; the log has the reason",
                    )
            }
            Self::Quarantined => {
                Failure::new(Code::Forbidden, "another key has claimed this token")
                    .with_remedy("`hoist provision enroll NODE` makes another one")
            }
            Self::NoAddress => {
                Failure::new(Code::Forbidden, NO_ADDRESS).with_remedy(NO_ADDRESS_REMEDY)
            }
        }
    }
}

impl fmt::Display for RefusalReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Plain => "over plain HTTP",
            Self::Proof => "with a signature that is not of the key",
            Self::Node => "for a node that is not there or disabled",
            Self::Address => "from an address that is not the node's",
            Self::Token => "with a token that is not the node's, or while it is not enrolled",
            Self::Quarantined => "with a token that another key has claimed",
            Self::NoAddress => "for a node that has no address of its own",
        })
    }
}

/// A request for secrets that was refused.
#[derive(Debug)]
pub(crate) struct AccessDenied {
    pub(crate) failure: Failure,
    /// Another key claimed this token.
    pub(crate) is_quarantined: bool,
}

impl From<AccessDenied> for Failure {
    fn from(locked: AccessDenied) -> Self {
        locked.failure
    }
}

impl From<StoreError> for AccessDenied {
    fn from(error: StoreError) -> Self {
        Self { failure: error.into(), is_quarantined: false }
    }
}

/// For provisioning, which hands out more than documents.
impl Metadata {
    pub(crate) fn check_secure(&self, peer: &Peer, from: IpAddr) -> Result<(), Failure> {
        if peer.secure { Ok(()) } else { Err(self.refuse(RefusalReason::Plain, None, from)) }
    }

    /// The node, once the key has its token for good.
    pub(crate) async fn claim(
        &self,
        asked: &DocumentsRequest,
        from: IpAddr,
    ) -> Result<EnrolledNode, AccessDenied> {
        let _permit = self.unlock.permits.acquire().await.expect("it is never closed");
        let roster = self.boot.registry.roster();
        let UnlockedNode { node, by, .. } = self.unlocked(&roster, asked, from).await?;
        Ok(EnrolledNode { roster, node, by, from })
    }

    /// Whether the key that is shown has claimed an enrollment that is over.
    pub(crate) fn is_of_before(
        &self,
        roster: &Roster,
        earlier: &Enrollment,
        asked: &DocumentsRequest,
        from: IpAddr,
    ) -> Option<Arc<Node>> {
        let by = proven(asked)?;
        let at = self.boot.chassis.clock.now();
        let node = roster.by_id(asked.node).filter(|node| node.spec.enabled)?;
        let fit = roster.address_fit(node, from);
        let shown = PresentedToken { token: &asked.token, by, from, fit, at };
        let verdict = earlier.claim(&self.key, node.generation, &shown);
        (verdict == Verdict::Repeated).then(|| Arc::clone(node))
    }

    /// Lets the presented key claim the node's current enrollment with any token. The caller must
    /// have verified the key. Returns the key if it holds the claim afterwards.
    pub(crate) async fn claim_current(
        &self,
        node: &Node,
        asked: &DocumentsRequest,
        from: IpAddr,
    ) -> Result<Option<KeyPrint>, StoreError> {
        let Some(by) = proven(asked) else { return Ok(None) };
        let Some(token) = self.unlock.enrollments.token(node).await? else { return Ok(None) };
        // Who calls this knows where it is, too.
        let fits = |_| AddressFit::Own;
        let offer = Offer { token: token.as_str(), by, from, fits: &fits, sent: None };
        let result = self.unlock.enrollments.claim(node, offer).await?;
        Ok(matches!(result, ClaimResult::Claimed { .. }).then_some(by))
    }

    /// Writes down that secrets leave, before they do.
    pub(crate) async fn release(
        &self,
        released: &SecretRelease<'_>,
        draft: Draft,
    ) -> Result<(), Failure> {
        let chassis = &self.boot.chassis;
        chassis.audit.append(&released.entry(draft)).await?;
        let object = format!("node/{}", released.node.name);
        chassis.events.publish("provision.secrets", &object, released.told());
        self.unlock.counts.given.increment(1);
        Ok(())
    }

    /// Refuses secrets to a node without a unique address.
    pub(crate) fn refuse_without_address(&self, node: &Node, from: IpAddr) {
        self.refuse(RefusalReason::NoAddress, Some(&node.name), from);
    }

    pub(crate) fn vault(&self) -> &Arc<Vault> {
        &self.unlock.vault
    }

    /// The documents of a node with their secrets, all of them or none.
    pub(crate) async fn rendered_whole(
        &self,
        roster: &Arc<Roster>,
        node: &Arc<Node>,
    ) -> Result<RenderedDocuments, Failure> {
        let rendered = self.with_secrets(roster, node).await?;
        match rendered.failed.first() {
            Some(failed) => Err(self.failed(node, failed)),
            None => Ok(rendered),
        }
    }
}

impl Metadata {
    /// The node, once the key has its token for good.
    async fn unlocked(
        &self,
        roster: &Roster,
        asked: &DocumentsRequest,
        from: IpAddr,
    ) -> Result<UnlockedNode, AccessDenied> {
        let Some(by) = proven(asked) else {
            return Err(self.locked(RefusalReason::Proof, None, from));
        };
        let node = roster.by_id(asked.node).filter(|node| node.spec.enabled);
        let Some(node) = node else { return Err(self.locked(RefusalReason::Node, None, from)) };
        let fits = |from| roster.address_fit(node, from);
        let sent = self.boot.agents_sent.of(node.id);
        let offer = Offer { token: &asked.token, by, from, fits: &fits, sent: sent.as_ref() };
        let refused = match self.unlock.enrollments.claim(node, offer).await? {
            ClaimResult::Claimed { secrets_without_address } => {
                return Ok(UnlockedNode { node: Arc::clone(node), by, secrets_without_address });
            }
            ClaimResult::Quarantined => RefusalReason::Quarantined,
            ClaimResult::Elsewhere => RefusalReason::Address,
            ClaimResult::Refused => RefusalReason::Token,
        };
        Err(self.locked(refused, Some(&node.name), from))
    }

    fn locked(&self, why: RefusalReason, node: Option<&Name>, from: IpAddr) -> AccessDenied {
        let is_quarantined = matches!(why, RefusalReason::Quarantined);
        AccessDenied { failure: self.refuse(why, node, from), is_quarantined }
    }

    /// Away from the threads that answer: secrets are in files.
    async fn with_secrets(
        &self,
        roster: &Arc<Roster>,
        node: &Arc<Node>,
    ) -> Result<RenderedDocuments, Failure> {
        let token = self.key.seed(node.id, node.generation);
        let renderer = Arc::clone(self.provider.renderer());
        let vault = Arc::clone(&self.unlock.vault);
        let roster = Arc::clone(roster);
        let node = Arc::clone(node);
        let rendering = tokio::task::spawn_blocking(move || {
            let secrets = Secrets::Resolve(vault.as_ref());
            let compiled = renderer.compiled(&roster);
            renderer.render(&compiled, &node, With { token: token.as_str(), secrets, trace: false })
        });
        rendering.await.map_err(|_| Failure::new(Code::Internal, "the documents cannot be made"))
    }

    fn refuse(&self, why: RefusalReason, node: Option<&Name>, from: IpAddr) -> Failure {
        let Unlock { counts, told, .. } = &*self.unlock;
        match why {
            RefusalReason::Quarantined => counts.quarantined.increment(1),
            _ => counts.refused.increment(1),
        }
        // One line a second: a guesser must not fill the log.
        let now = self.boot.chassis.clock.now().as_second();
        if told.swap(now, Ordering::Relaxed) != now {
            let node = node.map(Name::as_str).unwrap_or_default();
            tracing::warn!(node, %from, %why, "secrets were asked for and refused");
        }
        why.failure()
    }

    /// Half of its documents are worse than none for a node that is being made.
    fn failed(
        &self,
        node: &Node,
        LayerFailure { layer, at, reason, .. }: &LayerFailure,
    ) -> Failure {
        self.unlock.counts.failed.increment(1);
        tracing::error!(
            node = %node.name, %layer, %at, %reason,
            "the node has proven its identity, but a layer fails; no document is sent"
        );
        let told = serde_json::json!({"layer": layer, "at": at, "reason": reason});
        let events = &self.boot.chassis.events;
        events.publish("provision.failed", &format!("node/{}", node.name), told);
        // The reason may name places of the server.
        let detail = format!("layer `{layer}`: `{at}` cannot be rendered; no document is sent");
        Failure::new(Code::Held, detail)
            .with_remedy("the event `provision.failed` has the reason; ask again with the same key")
    }
}

/// The key that was shown, if it signed.
fn proven(asked: &DocumentsRequest) -> Option<KeyPrint> {
    let key = STANDARD.decode(&asked.key).ok()?;
    let signature = STANDARD.decode(&asked.signature).ok()?;
    KeyPrint::proven(&key, &signature, asked.node, &asked.token)
}

/// The layers with secrets that speak of a node.
pub(crate) fn secret_layers_of<'r>(roster: &'r Roster, node: &Node) -> Vec<&'r Arc<MetadataLayer>> {
    let subject = roster.subject(node);
    let speaks = |layer: &&Arc<MetadataLayer>| {
        let bound = layer.spec.selector.as_ref().and_then(|selector| selector.bind(roster).ok());
        // One that cannot be told for sure counts.
        bound.is_none_or(|bound| bound.specificity(&subject).is_some())
    };
    roster.metadata_layers().filter(|layer| layer.spec.has_secrets()).filter(speaks).collect()
}

/// Names of the secrets in a layer.
fn secret_names(layer: &MetadataLayerSpec) -> Vec<String> {
    let maps = layer.maps().into_iter().flat_map(|(_, map)| map.values());
    let mut names = Vec::new();
    for value in maps.chain(layer.parts.iter().map(|part| &part.content)) {
        collect_names(value, &mut names);
    }
    names
}

fn collect_names(value: &Value, names: &mut Vec<String>) {
    match (Secret::in_value(value), value) {
        (Some(Ok(Secret::File(name) | Secret::Env(name))), _) => names.push(name),
        (Some(Ok(Secret::Age(_))), _) => names.push("(encrypted in the layer)".to_owned()),
        (_, Value::Array(list)) => list.iter().for_each(|value| collect_names(value, names)),
        (_, Value::Object(map)) => map.values().for_each(|value| collect_names(value, names)),
        _ => {}
    }
}

/// A node whose key has its token.
struct UnlockedNode {
    node: Arc<Node>,
    by: KeyPrint,
    secrets_without_address: bool,
}

/// The same for provisioning, and on which roster.
pub(crate) struct EnrolledNode {
    pub(crate) roster: Arc<Roster>,
    pub(crate) node: Arc<Node>,
    pub(crate) by: KeyPrint,
    pub(crate) from: IpAddr,
}

/// A release of secrets for audit and events: names only, never values.
pub(crate) struct SecretRelease<'a> {
    node: &'a Node,
    by: KeyPrint,
    from: IpAddr,
    layers: Vec<Name>,
    secrets: Vec<String>,
}

impl<'a> SecretRelease<'a> {
    pub(crate) fn of(node: &'a Node, by: KeyPrint, from: IpAddr) -> Self {
        Self { node, by, from, layers: Vec::new(), secrets: Vec::new() }
    }

    /// Those of the layers that hold some.
    pub(crate) fn with_layers(mut self, roster: &Roster, layers: &[Name]) -> Self {
        for name in layers {
            let Some(layer) = roster.metadata_layer(name) else { continue };
            if layer.spec.has_secrets() {
                self.layers.push(name.clone());
                self.secrets.extend(secret_names(&layer.spec));
            }
        }
        self
    }

    pub(crate) fn with_secrets<'n>(mut self, names: impl IntoIterator<Item = &'n String>) -> Self {
        self.secrets.extend(names.into_iter().cloned());
        self
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.secrets.is_empty()
    }

    fn entry(&self, draft: Draft) -> Draft {
        let Self { node, by, from, layers, secrets } = self;
        let secrets = if secrets.is_empty() { "none".to_owned() } else { secrets.join(", ") };
        let layers = layers.iter().map(Name::as_str).collect::<Vec<_>>().join(", ");
        let layers = if layers.is_empty() { layers } else { format!(" (layers {layers})") };
        Draft {
            who: format!("node/{} with key {by}", node.name),
            from: from.to_string(),
            object: format!("node/{}: secrets {secrets}{layers}", node.name),
            ..draft
        }
    }

    fn told(&self) -> Value {
        let Self { node, by, from, layers, secrets } = self;
        serde_json::json!({
            "generation": node.generation, "key": by.to_string(), "from": from, "layers": layers,
            "secrets": secrets,
        })
    }
}

fn answer(node: &Node, rendered: &RenderedDocuments) -> NodeDocuments {
    let documents = Document::ALL.map(|document| RenderedDocument {
        document: document.to_string(),
        text: String::from_utf8_lossy(rendered.documents.get(document)).into_owned(),
    });
    NodeDocuments {
        node: node.name.clone(),
        id: node.id,
        generation: node.generation,
        documents: documents.into(),
    }
}
