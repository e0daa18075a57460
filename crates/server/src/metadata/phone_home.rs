//! A node says that it is up. With its token that counts: a node that was being installed boots its
//! disk from then on.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use hoist_api::Code;
use hoist_model::{Node, PhoneHome};
use http::StatusCode;

use super::Metadata;
use super::seed::with_token;
use crate::auth::AuditContext;
use crate::boot::phone_home::{MAX_REPORT, read};
use crate::extract::Path;
use crate::failure::Failure;
use crate::peer::Peer;
use crate::route::{Plane, Route};

pub(super) fn routes() -> Vec<Route<Metadata>> {
    vec![
        Route::post("/meta/v1/phone-home/{node}/{token}", Plane::Proof, proven)
            .summary("A node says that it is up, as a form or as JSON")
            .takes::<PhoneHome>()
            .body_limit(MAX_REPORT)
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
    let node = metadata.admit(&asking, from).map_err(IntoResponse::into_response)?;
    let node = node.ok_or_else(|| stranger().into_response())?;
    let report = read(request).await.map_err(IntoResponse::into_response)?;
    let boot = &metadata.boot;
    boot.phoned_home(node, &report, &audit).await.map_err(IntoResponse::into_response)?;
    metadata.tell(node, &report, from, "token");
    Ok(StatusCode::OK.into_response())
}

fn stranger() -> Failure {
    Failure::new(Code::NotFound, "this machine is no node")
}

impl Metadata {
    /// What was said, by whom and how it is known: with the node's token, or only by address.
    pub(super) fn tell(
        &self,
        node: &Arc<Node>,
        report: &PhoneHome,
        from: std::net::IpAddr,
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
