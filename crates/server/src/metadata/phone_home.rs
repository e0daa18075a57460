//! Phone-home of a node. With its token and from its own address it ends an installation: the node
//! boots its disk from then on. The token alone is not enough if the inventory has addresses of the
//! node, because every caller can request the boot script that contains it.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use hoist_api::Code;
use hoist_model::{Node, PhoneHome};
use hoist_site::Roster;
use http::StatusCode;

use super::Metadata;
use super::seed::with_token;
use crate::boot::phone_home::{Word, read};
use hoist_chassis::auth::AuditContext;
use hoist_chassis::extract::Path;
use hoist_chassis::failure::Failure;
use hoist_chassis::peer::Peer;
use hoist_chassis::route::{AccessClass, Route};

/// A host name and some public keys; events carry it.
const MAX_TOLD: usize = 16 * 1024;

pub(super) fn routes() -> Vec<Route<Metadata>> {
    vec![
        Route::post("/meta/v1/phone-home/{node}/{token}", AccessClass::Proof, proven)
            .reason("Proof: the seed token of the node, in the path")
            .summary("Report that a node is up, as a form or as JSON")
            .takes::<PhoneHome>()
            .body_limit(MAX_TOLD)
            .lenient()
            .gives_nothing(200),
    ]
}

async fn proven(
    State(metadata): State<Metadata>,
    Path((node, token)): Path<(String, String)>,
    peer: Peer,
    audit: AuditContext,
    request: Request,
) -> Result<Response, Response> {
    let from = metadata.client(&peer, request.headers());
    let roster = metadata.boot.registry.roster();
    let asking = with_token(&roster, &metadata.key, &node, &token);
    let admitted = metadata.admit(&asking, from, request.headers());
    let node = admitted.map_err(IntoResponse::into_response)?;
    let node = node.ok_or_else(|| not_a_node().into_response())?;
    if is_of_another(&roster, node, from) {
        let detail = "this address is another node's";
        return Err(Failure::new(Code::Forbidden, detail).into_response());
    }
    let report = read(request).await.map_err(IntoResponse::into_response)?;
    let word = word_of(node, &report, from);
    if word == Word::IsNoted && metadata.may_tell() {
        tracing::warn!(
            node = node.name.as_str(), %from,
            "a report from elsewhere, or of another generation; what the node boots stays"
        );
    }
    let boot = &metadata.boot;
    boot.phoned_home(node, &report, word, &audit).await.map_err(IntoResponse::into_response)?;
    if word == Word::Counts {
        metadata.node_up.node_is_up(node.id).await.map_err(IntoResponse::into_response)?;
    }
    metadata.tell(node, &report, from, "token");
    Ok(StatusCode::OK.into_response())
}

fn is_of_another(roster: &Roster, node: &Node, from: IpAddr) -> bool {
    matches!(roster.by_ip(from).as_slice(), [other] if other.id != node.id)
}

fn word_of(node: &Node, report: &PhoneHome, from: IpAddr) -> Word {
    let mut own = node.spec.own_addresses().peekable();
    let from_home = if own.peek().is_some() {
        own.any(|address| address == from)
    } else {
        !node.spec.has_bmc_at(from)
    };
    let instance = report.instance_id.as_str();
    let is_present = instance.is_empty() || instance == hoist_metadata::instance_id(node);
    if from_home && is_present { Word::Counts } else { Word::IsNoted }
}

fn not_a_node() -> Failure {
    Failure::new(Code::NotFound, "this machine is no node")
}

impl Metadata {
    /// Publishes the report with its sender and proof: the node's token, or the address only.
    pub(super) fn tell(
        &self,
        node: &Arc<Node>,
        report: &PhoneHome,
        from: IpAddr,
        known_by: &'static str,
    ) {
        let told = serde_json::json!({
            "generation": node.generation, "from": from, "known_by": known_by, "report": report,
        });
        let subject = format!("node/{}", node.name);
        self.boot.chassis.events.publish("metadata.phone-home", &subject, told);
        metrics::counter!("hoist_phone_homes_total").increment(1);
    }
}
