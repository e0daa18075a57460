//! `/provision/v1/agent/documents`: a node's documents with their secrets, for whoever proves to be
//! the node: over TLS, with the token of its arming, from its address where it has one of its own,
//! and with a key that nobody took the secrets with before.
//!
//! What is decided about the token is in the store before a secret is read, and what is handed out
//! is in the audit log before it leaves.

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
use hoist_inventory::Roster;
use hoist_metadata::provision::{Arming, KeyPrint, Verdict};
use hoist_metadata::{Document, Failed, Rendered, Secrets, SiteKey, With};
use hoist_model::{Name, Node};
use hoist_store::StoreError;
use http::{HeaderValue, header};
use metrics::Counter;
use tokio::sync::Semaphore;

use super::Metadata;
use super::provision::{Armings, Offer, Redemption};
use super::secrets::Vault;
use crate::audit::Draft;
use crate::auth::AuditContext;
use crate::extract::Json;
use crate::failure::Failure;
use crate::peer::Peer;
use crate::route::{Plane, Route};
use crate::server::Chassis;

/// An id, a token, a key and a signature.
const MAX_REQUEST: usize = 4096;

/// Requests that are looked into at once: each one asks the store, whoever sends it.
const TURNS: usize = 16;

/// What handing out secrets needs.
#[derive(Debug)]
pub(super) struct Unlock {
    pub(super) armings: Armings,
    vault: Arc<Vault>,
    turns: Semaphore,
    counts: Counts,
    /// The second in which a refusal was last logged.
    told: AtomicI64,
}

impl Unlock {
    pub(super) fn new(chassis: &Chassis, key: SiteKey, vault: Vault) -> Self {
        let Chassis { store, clock, audit, events, .. } = chassis;
        let (store, clock) = (Arc::clone(store), Arc::clone(clock));
        Self {
            armings: Armings::new(store, key, audit.clone(), events.clone(), clock),
            vault: Arc::new(vault),
            turns: Semaphore::new(TURNS),
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
        Route::post("/provision/v1/agent/documents", Plane::Proof, documents)
            .reason("Proof: the provision token and the signature of the agent's key, over TLS")
            .summary("The documents of an armed node, with their secrets; over TLS only")
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
        return Err(metadata.refuse(Refused::Plain, None, from));
    }
    let Json(asked) = Json::<DocumentsRequest>::from_request(request, &()).await?;
    let _turn = metadata.unlock.turns.acquire().await.expect("it is never closed");
    let roster = metadata.boot.registry.roster();
    let (node, by) = metadata.unlocked(&roster, &asked, from).await?;
    let rendered = metadata.rendered_whole(&roster, &node).await?;
    let layers = secret_layers(&roster, &rendered.layers);
    let handed = HandedOut { node: &node, by, from, layers: &layers };
    let chassis = &metadata.boot.chassis;
    chassis.audit.append(&handed.entry(audit.draft())).await?;
    chassis.events.publish("provision.secrets", &format!("node/{}", node.name), handed.told());
    metadata.unlock.counts.given.increment(1);
    let no_store = [(header::CACHE_CONTROL, HeaderValue::from_static("no-store"))];
    Ok((no_store, Json(answer(&node, &rendered))).into_response())
}

/// Why nothing is handed out.
#[derive(Debug, Clone, Copy)]
enum Refused {
    Plain,
    /// The key did not sign.
    Proof,
    /// In no node, or in one that is disabled.
    Node,
    Address,
    /// Not armed, or with another token.
    Token,
    Quarantined,
}

impl Refused {
    fn failure(self) -> Failure {
        match self {
            Self::Plain => Failure::new(Code::PlainSecret, "secrets are not given over plain HTTP")
                .with_remedy("use the TLS address, and arm the node again: its token was sent"),
            Self::Proof => {
                Failure::new(Code::Forbidden, "the signature is not of this key and this token")
            }
            // Told alike, so that nobody learns which nodes there are, and where.
            Self::Node | Self::Token | Self::Address => {
                Failure::new(Code::Forbidden, "this token is not good for this node, or not here")
                    .with_remedy(
                        "ask from an address that the node has in the inventory, or \
                         `hoist provision arm NODE` for another token; the log has the reason",
                    )
            }
            Self::Quarantined => {
                Failure::new(Code::Forbidden, "another key has redeemed this token")
                    .with_remedy("`hoist provision arm NODE` makes another one")
            }
        }
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Plain => "over plain HTTP",
            Self::Proof => "with a signature that is not of the key",
            Self::Node => "for a node that is not there or disabled",
            Self::Address => "from an address that is not the node's",
            Self::Token => "with a token that is not the node's, or while it is not armed",
            Self::Quarantined => "with a token that another key has redeemed",
        })
    }
}

/// Nothing is handed out.
#[derive(Debug)]
pub(crate) struct Locked {
    pub(crate) failure: Failure,
    /// Another key has what was shown.
    pub(crate) is_quarantined: bool,
}

impl From<Locked> for Failure {
    fn from(locked: Locked) -> Self {
        locked.failure
    }
}

impl From<StoreError> for Locked {
    fn from(error: StoreError) -> Self {
        Self { failure: error.into(), is_quarantined: false }
    }
}

/// For provisioning, which hands out more than documents.
impl Metadata {
    pub(crate) fn check_secure(&self, peer: &Peer, from: IpAddr) -> Result<(), Failure> {
        if peer.secure { Ok(()) } else { Err(self.refuse(Refused::Plain, None, from)) }
    }

    /// The node, once the key has its token for good.
    pub(crate) async fn redeem(
        &self,
        asked: &DocumentsRequest,
        from: IpAddr,
    ) -> Result<(Arc<Roster>, Arc<Node>), Locked> {
        let _turn = self.unlock.turns.acquire().await.expect("it is never closed");
        let roster = self.boot.registry.roster();
        let (node, _) = self.unlocked(&roster, asked, from).await?;
        Ok((roster, node))
    }

    /// Whether the key that is shown has redeemed an arming that is over.
    pub(crate) fn is_of_before(
        &self,
        roster: &Roster,
        earlier: &Arming,
        asked: &DocumentsRequest,
        from: IpAddr,
    ) -> Option<Arc<Node>> {
        let (by, now) = (proven(asked)?, self.boot.chassis.clock.now());
        let node = roster.by_id(asked.node).filter(|node| node.spec.enabled)?;
        let verdict = earlier.redeem(&self.key, node.generation, &asked.token, by, now);
        let is_same = verdict == Verdict::Repeated && may_be_at(roster, node, from);
        is_same.then(|| Arc::clone(node))
    }

    /// Lets the key that is shown redeem what the node is armed with now, whatever token it shows:
    /// who calls this knows it. Says whether it has it, and no other key.
    pub(crate) async fn redeem_anew(
        &self,
        node: &Node,
        asked: &DocumentsRequest,
    ) -> Result<bool, StoreError> {
        let Some(by) = proven(asked) else { return Ok(false) };
        let Some(token) = self.unlock.armings.token(node).await? else { return Ok(false) };
        let offer = Offer { token: token.as_str(), by, is_here: true };
        Ok(self.unlock.armings.redeem(node, offer).await? == Redemption::Taken)
    }

    pub(crate) fn vault(&self) -> &Arc<Vault> {
        &self.unlock.vault
    }

    /// The documents of a node with their secrets, all of them or none.
    pub(crate) async fn rendered_whole(
        &self,
        roster: &Arc<Roster>,
        node: &Arc<Node>,
    ) -> Result<Rendered, Failure> {
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
    ) -> Result<(Arc<Node>, KeyPrint), Locked> {
        let Some(by) = proven(asked) else {
            return Err(self.locked(Refused::Proof, None, from));
        };
        let node = roster.by_id(asked.node).filter(|node| node.spec.enabled);
        let Some(node) = node else { return Err(self.locked(Refused::Node, None, from)) };
        let is_here = may_be_at(roster, node, from);
        let offer = Offer { token: &asked.token, by, is_here };
        let refused = match self.unlock.armings.redeem(node, offer).await? {
            Redemption::Taken => return Ok((Arc::clone(node), by)),
            Redemption::Quarantined => Refused::Quarantined,
            Redemption::Elsewhere => Refused::Address,
            Redemption::Refused => Refused::Token,
        };
        Err(self.locked(refused, Some(&node.name), from))
    }

    fn locked(&self, why: Refused, node: Option<&Name>, from: IpAddr) -> Locked {
        let is_quarantined = matches!(why, Refused::Quarantined);
        Locked { failure: self.refuse(why, node, from), is_quarantined }
    }

    /// Away from the threads that answer: secrets are in files.
    async fn with_secrets(
        &self,
        roster: &Arc<Roster>,
        node: &Arc<Node>,
    ) -> Result<Rendered, Failure> {
        let token = self.key.seed(node.id, node.generation);
        let (renderer, vault) =
            (Arc::clone(self.provider.renderer()), Arc::clone(&self.unlock.vault));
        let (roster, node) = (Arc::clone(roster), Arc::clone(node));
        let rendering = tokio::task::spawn_blocking(move || {
            let secrets = Secrets::Resolve(vault.as_ref());
            let picture = renderer.picture(&roster);
            renderer.render(&picture, &node, With { token: token.as_str(), secrets, trace: false })
        });
        rendering.await.map_err(|_| Failure::new(Code::Internal, "the documents cannot be made"))
    }

    fn refuse(&self, why: Refused, node: Option<&Name>, from: IpAddr) -> Failure {
        let Unlock { counts, told, .. } = &*self.unlock;
        match why {
            Refused::Quarantined => counts.quarantined.increment(1),
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
    fn failed(&self, node: &Node, Failed { layer, at, reason }: &Failed) -> Failure {
        self.unlock.counts.failed.increment(1);
        tracing::error!(
            node = %node.name, %layer, %at, %reason,
            "a node has proven who it is, and gets nothing because a layer fails"
        );
        let told = serde_json::json!({"layer": layer, "at": at, "reason": reason});
        let events = &self.boot.chassis.events;
        events.publish("provision.failed", &format!("node/{}", node.name), told);
        // The reason may name places of the server.
        let detail = format!("layer `{layer}`: `{at}` cannot be told; nothing is handed out");
        Failure::new(Code::Held, detail)
            .with_remedy("the event `provision.failed` has the reason; ask again with the same key")
    }
}

/// The key that was shown, if it signed.
fn proven(asked: &DocumentsRequest) -> Option<KeyPrint> {
    let (key, signature) =
        (STANDARD.decode(&asked.key).ok()?, STANDARD.decode(&asked.signature).ok()?);
    KeyPrint::proven(&key, &signature, asked.node, &asked.token)
}

/// An address that only this node has tells it from others; behind user networking all have one.
/// At that of its management controller, it is not the node who asks.
fn may_be_at(roster: &Roster, node: &Node, from: IpAddr) -> bool {
    if node.spec.has_bmc_at(from) {
        return false;
    }
    let there = roster.by_ip(from);
    let is_only = |found: &[&Arc<Node>]| matches!(found, [only] if only.id == node.id);
    let boots_at = roster.boot(node).and_then(|boot| boot.ip);
    if boots_at.is_some_and(|address| is_only(&roster.by_ip(address))) {
        return is_only(&there);
    }
    there.is_empty() || there.iter().any(|found| found.id == node.id)
}

fn secret_layers(roster: &Roster, layers: &[Name]) -> Vec<Name> {
    let holds =
        |name: &&Name| roster.metadata_layer(name).is_some_and(|layer| layer.spec.has_secrets());
    layers.iter().filter(holds).cloned().collect()
}

/// What happened, for those who look at it later; no secret is in it.
struct HandedOut<'a> {
    node: &'a Node,
    by: KeyPrint,
    from: IpAddr,
    layers: &'a [Name],
}

impl HandedOut<'_> {
    fn entry(&self, draft: Draft) -> Draft {
        let Self { node, by, from, layers } = self;
        let layers = match layers {
            [] => "no layer".to_owned(),
            some => some.iter().map(Name::as_str).collect::<Vec<_>>().join(", "),
        };
        Draft {
            who: format!("node/{} with key {by}", node.name),
            from: from.to_string(),
            object: format!("node/{}: secrets of {layers}", node.name),
            ..draft
        }
    }

    fn told(&self) -> serde_json::Value {
        let Self { node, by, from, layers } = self;
        serde_json::json!({
            "generation": node.generation, "key": by.to_string(), "from": from, "layers": layers,
        })
    }
}

fn answer(node: &Node, rendered: &Rendered) -> NodeDocuments {
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
