//! `/provision/v1/nodes/{node}/arming`: people say which node may take its secrets.

use axum::extract::State;
use hoist_api::Code;
use hoist_api::admin::{Context, Verb};
use hoist_api::inventory::Listing;
use hoist_api::provision::{Armed, Arming, ShownKey};
use hoist_inventory::Roster;
use hoist_metadata::provision::{self, Redeemed};
use hoist_model::{Node, Provisioning};
use http::StatusCode;

use super::Metadata;
use crate::auth::AuditContext;
use crate::boot::find_node;
use crate::extract::{Json, Path};
use crate::failure::Failure;
use crate::inventory::Sight;
use crate::principal::Principal;
use crate::route::{Plane, Route};

const READ: Plane = Plane::Admin { context: Context::Provision, verb: Verb::Read };
const WRITE: Plane = Plane::Admin { context: Context::Provision, verb: Verb::Write };

pub(super) fn routes() -> Vec<Route<Metadata>> {
    vec![
        Route::get("/provision/v1/armings", READ, list)
            .summary("The nodes that may take their secrets, and who has taken them")
            .gives::<Listing<Arming>>(200)
            .selective(),
        Route::post("/provision/v1/nodes/{node}/arming", WRITE, arm)
            .summary(
                "Let the agent of a node take its secrets: gives a token, which is told only now",
            )
            .gives::<Armed>(200)
            .selective(),
        Route::delete("/provision/v1/nodes/{node}/arming", WRITE, disarm)
            .summary("Take that back; what was taken is taken")
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
) -> Result<Json<Listing<Arming>>, Failure> {
    let roster = metadata.boot.registry.roster();
    let sight = sight(&principal, Verb::Read, &roster);
    let armings = metadata.unlock.armings.list().await?;
    let items = armings.iter().filter_map(|arming| {
        let node = roster.by_id(arming.node).filter(|node| sight.reaches(&roster, node))?;
        let provision::Arming { since, redeemed, quarantined, bound, elsewhere, .. } = arming;
        Some(Arming {
            node: node.name.clone(),
            id: node.id,
            since: *since,
            redeemed: redeemed.as_ref().map(shown),
            quarantined: quarantined.iter().map(shown).collect(),
            bound: *bound,
            elsewhere: elsewhere.clone(),
            outdated: arming.is_outdated(&metadata.key, node.generation),
        })
    });
    Ok(Json(Listing { revision: roster.revision(), items: items.collect() }))
}

pub(crate) fn shown(redeemed: &Redeemed) -> ShownKey {
    ShownKey { key: redeemed.by.to_string(), at: redeemed.at, from: redeemed.from }
}

async fn arm(
    State(metadata): State<Metadata>,
    principal: Principal,
    audit: AuditContext,
    Path(node): Path<String>,
) -> Result<Json<Armed>, Failure> {
    let roster = metadata.boot.registry.roster();
    let node = find_node(&roster, &sight(&principal, Verb::Write, &roster), &node)?;
    if !node.spec.enabled {
        let detail = format!("node `{}` is disabled, and is told nothing", node.name);
        return Err(Failure::new(Code::Conflict, detail)
            .with_remedy(format!("`hoist node set {} --enable` first", node.name)));
    }
    check_free(&roster, node)?;
    let token = metadata.unlock.armings.arm(node, audit.draft()).await?;
    Ok(Json(Armed {
        node: node.name.clone(),
        id: node.id,
        generation: node.generation,
        token: token.as_str().to_owned(),
    }))
}

/// The token of a run is in the boot script of its node: without it, its agent is let in no more.
fn check_free(roster: &Roster, node: &Node) -> Result<(), Failure> {
    let provisioning = roster.boot_state(node.id).and_then(|state| state.provisioning.as_ref());
    let Some(Provisioning { run, .. }) = provisioning else { return Ok(()) };
    let detail =
        format!("node `{}` is in run {run} of provisioning, which has armed it", node.name);
    Err(Failure::new(Code::Conflict, detail)
        .with_remedy(format!("`hoist provision abort {}` first", node.name)))
}

async fn disarm(
    State(metadata): State<Metadata>,
    principal: Principal,
    audit: AuditContext,
    Path(node): Path<String>,
) -> Result<StatusCode, Failure> {
    let roster = metadata.boot.registry.roster();
    let node = find_node(&roster, &sight(&principal, Verb::Write, &roster), &node)?;
    check_free(&roster, node)?;
    metadata.unlock.armings.disarm(node, audit.draft()).await?;
    Ok(StatusCode::NO_CONTENT)
}
