//! `/provision/v1/nodes/{node}/enrollment`: operators decide which node may get its secrets.

use axum::extract::State;
use hoist_api::Code;
use hoist_api::admin::{Context, Verb};
use hoist_api::inventory::Listing;
use hoist_api::provision::{Enrollment, EnrollmentToken};
use hoist_metadata::provision;
use hoist_model::{Node, Provisioning};
use hoist_site::Roster;
use http::StatusCode;

use super::Metadata;
use crate::authorisation::Sight;
use crate::enrollment::shown_key;
use crate::node_lookup::find_node;
use hoist_chassis::auth::AuditContext;
use hoist_chassis::extract::{Json, Path};
use hoist_chassis::failure::Failure;
use hoist_chassis::principal::Principal;
use hoist_chassis::route::{AccessClass, Route};

const READ: AccessClass = AccessClass::Admin { context: Context::Provision, verb: Verb::Read };
const WRITE: AccessClass = AccessClass::Admin { context: Context::Provision, verb: Verb::Write };

pub(super) fn routes() -> Vec<Route<Metadata>> {
    vec![
        Route::get("/provision/v1/enrollments", READ, list)
            .summary("Enrollments: nodes whose agents may receive secrets, with the keys that claimed them")
            .gives::<Listing<Enrollment>>(200)
            .selective(),
        Route::post("/provision/v1/nodes/{node}/enrollment", WRITE, enroll)
            .summary(
                "Enroll a node: returns the token for its agent's secrets, shown only now",
            )
            .gives::<EnrollmentToken>(200)
            .selective(),
        Route::delete("/provision/v1/nodes/{node}/enrollment", WRITE, unenroll)
            .summary("End the enrollment of a node; released secrets stay released")
            .gives_nothing(204)
            .selective(),
    ]
}

fn sight(principal: &Principal, verb: Verb, roster: &Roster) -> Sight {
    Sight::within(principal, verb, Context::Provision, roster)
}

async fn list(
    State(metadata): State<Metadata>,
    principal: Principal,
) -> Result<Json<Listing<Enrollment>>, Failure> {
    let roster = metadata.boot.registry.roster();
    let sight = sight(&principal, Verb::Read, &roster);
    let enrollments = metadata.unlock.enrollments.list().await?;
    let items = enrollments.iter().filter_map(|enrollment| {
        let node = roster.by_id(enrollment.node).filter(|node| sight.reaches(&roster, node))?;
        let provision::Enrollment { since, claimed, quarantined, bound, elsewhere, .. } =
            enrollment;
        Some(Enrollment {
            node: node.name.clone(),
            id: node.id,
            since: *since,
            claimed: claimed.as_ref().map(shown_key),
            quarantined: quarantined.iter().map(shown_key).collect(),
            bound: *bound,
            elsewhere: elsewhere.clone(),
            outdated: enrollment.is_outdated(&metadata.key, node.generation),
        })
    });
    Ok(Json(Listing { revision: roster.revision(), items: items.collect() }))
}

async fn enroll(
    State(metadata): State<Metadata>,
    principal: Principal,
    audit: AuditContext,
    Path(node): Path<String>,
) -> Result<Json<EnrollmentToken>, Failure> {
    let roster = metadata.boot.registry.roster();
    let node = find_node(&roster, &sight(&principal, Verb::Write, &roster), &node)?;
    if !node.spec.enabled {
        let detail = format!("node `{}` is disabled and gets no secrets", node.name);
        return Err(Failure::new(Code::Conflict, detail)
            .with_remedy(format!("`hoist node set {} --enable` first", node.name)));
    }
    check_free(&roster, node)?;
    let token = metadata.unlock.enrollments.enroll(node, audit.draft()).await?;
    Ok(Json(EnrollmentToken {
        node: node.name.clone(),
        id: node.id,
        generation: node.generation,
        token: token.as_str().to_owned(),
    }))
}

/// The agent of a provisioning run needs the token in the boot script of its node, so the run keeps
/// it.
fn check_free(roster: &Roster, node: &Node) -> Result<(), Failure> {
    let provisioning = roster.boot_state(node.id).and_then(|state| state.provisioning.as_ref());
    let Some(Provisioning { run, .. }) = provisioning else { return Ok(()) };
    let detail =
        format!("node `{}` is in provisioning run {run}, which manages its enrollment", node.name);
    Err(Failure::new(Code::Conflict, detail)
        .with_remedy(format!("`hoist provision abort {}` first", node.name)))
}

async fn unenroll(
    State(metadata): State<Metadata>,
    principal: Principal,
    audit: AuditContext,
    Path(node): Path<String>,
) -> Result<StatusCode, Failure> {
    let roster = metadata.boot.registry.roster();
    let node = find_node(&roster, &sight(&principal, Verb::Write, &roster), &node)?;
    check_free(&roster, node)?;
    metadata.unlock.enrollments.unenroll(node, audit.draft()).await?;
    Ok(StatusCode::NO_CONTENT)
}
