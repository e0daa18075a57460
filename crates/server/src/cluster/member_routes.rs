//! Routes for a member about its own membership, by its certificate.

use axum::extract::State;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hoist_api::Code;
use hoist_api::cluster::{ConfirmRequest, RenewRequest, RenewedCertificate};
use hoist_chassis::auth::AuditContext;
use hoist_chassis::certificate_request::CertificateRequest;
use hoist_chassis::extract::Json;
use hoist_chassis::failure::Failure;
use hoist_chassis::member::Member;
use hoist_chassis::route::{AccessClass, Route};
use hoist_cluster::id::{NodeId, Pin};
use http::StatusCode;
use serde_json::json;

use super::Cluster;
use super::join_request::invalid;
use super::operators::applied;
use super::records::RecordChange;
use super::view::Write;

/// Largest request for a certificate.
const MAX_RENEWAL: usize = 16 * 1024;

pub(super) fn routes() -> Vec<Route<Cluster>> {
    vec![
        Route::post("/cluster/v1/confirm", AccessClass::Member, confirm)
            .summary("Confirm that the node has stored everything: from now on it counts")
            .takes::<ConfirmRequest>()
            .gives_nothing(204),
        Route::post("/cluster/v1/withdraw", AccessClass::Member, withdraw)
            .summary("Give up a membership before it was confirmed")
            .takes::<ConfirmRequest>()
            .gives_nothing(204),
        Route::post("/cluster/v1/renew", AccessClass::Member, renew)
            .summary("Get a certificate for a new key")
            .body_limit(MAX_RENEWAL)
            .takes::<RenewRequest>()
            .gives::<RenewedCertificate>(200),
    ]
}

/// The id in the certificate of a member that the gate has admitted.
pub(super) fn node_of(member: &Member) -> Result<NodeId, Failure> {
    let unknown = |_| Failure::new(Code::Forbidden, "the certificate names no member");
    member.certificate.node.parse().map_err(unknown)
}

async fn confirm(
    State(cluster): State<Cluster>,
    member: Member,
    audit: AuditContext,
    Json(_): Json<ConfirmRequest>,
) -> Result<StatusCode, Failure> {
    let node = node_of(&member)?;
    let now = cluster.chassis.clock.now();
    let mut draft = audit.draft();
    draft.object = format!("member/{} confirm", node.short());
    let confirming = cluster.change_members(Some(&draft), |snapshot| {
        let confirmed = applied(snapshot.membership.confirm(node, now))?;
        let is_new = !confirmed.changes.is_empty();
        let result = is_new.then(|| snapshot.name_of(node));
        Ok(Write { changes: snapshot.records(confirmed.changes), result })
    });
    if let Some(name) = confirming.await? {
        let told = json!({"id": node});
        cluster.publish("cluster.member.confirmed", &format!("member/{name}"), told);
    }
    Ok(StatusCode::NO_CONTENT)
}

async fn withdraw(
    State(cluster): State<Cluster>,
    member: Member,
    audit: AuditContext,
    Json(_): Json<ConfirmRequest>,
) -> Result<StatusCode, Failure> {
    let node = node_of(&member)?;
    let mut draft = audit.draft();
    draft.object = format!("member/{} withdraw", node.short());
    cluster.view.say_farewell(node, member.certificate.serial);
    let withdrawing = cluster.view.write(Some(&draft), |snapshot| {
        let withdrawn = applied(snapshot.membership.withdraw(node))?;
        let mut changes = snapshot.records(withdrawn.changes);
        if !changes.is_empty() {
            changes.push(RecordChange::RemoveCertificate(node));
        }
        Ok(Write { changes, result: snapshot.name_of(node) })
    });
    let name = withdrawing.await?;
    cluster.liveness.forget(node);
    cluster.publish("cluster.member.left", &format!("member/{name}"), json!({"id": node}));
    Ok(StatusCode::NO_CONTENT)
}

/// The present key has authenticated the connection, and so vouches for the new one. A member whose
/// answer was lost gets the same certificate by a request to join with the new key.
async fn renew(
    State(cluster): State<Cluster>,
    member: Member,
    audit: AuditContext,
    Json(request): Json<RenewRequest>,
) -> Result<Json<RenewedCertificate>, Failure> {
    let node = node_of(&member)?;
    let snapshot = cluster.view.loaded()?;
    let authority = cluster.authority.issuer(snapshot.founded()?)?;
    let field = "certificate_request";
    let der = STANDARD
        .decode(&request.certificate_request)
        .map_err(|_| invalid(field, "it is not base64"))?;
    let request =
        CertificateRequest::verify(&der).map_err(|error| invalid(field, &error.to_string()))?;
    let key: Pin = format!("sha256:{}", request.spki_sha256())
        .parse()
        .map_err(|_| Failure::new(Code::Internal, "the hash of a key is not one"))?;
    let now = cluster.chassis.clock.now();
    let mut draft = audit.draft();
    draft.object = format!("member/{} renew", node.short());
    cluster.view.say_farewell(node, member.certificate.serial);
    let renewing = cluster.view.write(Some(&draft), |snapshot| {
        let membership = &snapshot.membership;
        let known = snapshot.member(node).filter(|member| member.registration.key == key);
        let certificate = known.and_then(|member| snapshot.certificate(member));
        // The same key keeps its certificate until it is due.
        let renewed = match certificate {
            Some(certificate) if certificate.is_due(now) => membership.reissue(node),
            _ => membership.renew(node, key),
        };
        Ok(Write { changes: snapshot.records(applied(renewed)?.changes), result: () })
    });
    renewing.await?;
    let certificate = cluster.certificate(node, &request, &authority).await?;
    Ok(Json(RenewedCertificate {
        certificate: certificate.chain.clone(),
        certificate_ends: certificate.ends,
    }))
}
