//! Profiles, runs and facts, for those who look.

use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use hoist_api::Code;
use hoist_api::admin::Verb;
use hoist_api::inventory::Listing;
use hoist_api::provision::{NodeFacts, ProvisionProfileObject, ProvisionRun};
use hoist_model::ProvisionProfile;
use hoist_site::{Resource, Roster};

use super::decide::count;
use super::keys;
use super::record::{FactsRecord, NodeRecord, StoredValue};
use super::runs::outline;
use super::steer::no_such_run;
use super::{Provision, READ, sight};
use crate::authorisation::Access;
use crate::authorisation::Sight;
use crate::node_lookup::find_node;
use hoist_chassis::extract::{Json, Path};
use hoist_chassis::failure::Failure;
use hoist_chassis::principal::Principal;
use hoist_chassis::route::Route;

/// What stands for the last run.
const LAST: &str = "last";

pub(super) fn routes() -> Vec<Route<Provision>> {
    vec![
        Route::get("/provision/v1/profiles", READ, profiles)
            .summary("All provision profiles, with the number of nodes that each selects")
            .gives::<Listing<ProvisionProfileObject>>(200)
            .selective(),
        Route::get("/provision/v1/profiles/{name}", READ, profile)
            .summary("One provision profile")
            .gives::<ProvisionProfileObject>(200)
            .selective(),
        Route::get("/provision/v1/runs", READ, list)
            .summary("Provisioning runs, the newest first, without their nodes")
            .gives::<Listing<ProvisionRun>>(200)
            .selective(),
        Route::get("/provision/v1/runs/{run}", READ, get)
            .summary("A run with all its nodes; `last` is the newest one")
            .gives::<ProvisionRun>(200)
            .selective(),
        Route::get("/provision/v1/nodes/{node}/run", READ, of_node)
            .summary("The latest run of a node, with this node only")
            .gives::<ProvisionRun>(200)
            .selective(),
        Route::get("/provision/v1/nodes/{node}/facts", READ, facts)
            .summary("The facts of a node, as its agent reported them")
            .gives::<NodeFacts>(200)
            .selective(),
    ]
}

async fn profiles(State(provision): State<Provision>, principal: Principal) -> Response {
    let roster = provision.runs.roster();
    let object = |profile| object(&roster, &principal, profile);
    let items = roster.provision_profiles().filter_map(object);
    Json(Listing { revision: roster.revision(), items: items.collect() }).into_response()
}

async fn profile(
    State(provision): State<Provision>,
    principal: Principal,
    Path(name): Path<String>,
) -> Result<Json<ProvisionProfileObject>, Failure> {
    let roster = provision.runs.roster();
    let found = roster.provision_profile(&name);
    let found = found.and_then(|profile| object(&roster, &principal, profile));
    found.map(Json).ok_or_else(|| {
        Failure::new(Code::NotFound, format!("ProvisionProfile `{name}` not found"))
            .with_remedy("`hoist get provisionprofiles` shows all of them")
    })
}

/// A profile as far as a principal may see it: one limited to some nodes sees those of its nodes.
fn object(
    roster: &Roster,
    principal: &Principal,
    profile: &Arc<ProvisionProfile>,
) -> Option<ProvisionProfileObject> {
    if !sees_profile(roster, principal, profile) {
        return None;
    }
    let sight = sight(principal, Verb::Read, roster);
    let bound = profile.spec.selector.as_ref().and_then(|selector| selector.bind(roster).ok());
    let nodes = bound.map(|bound| roster.select_bound(&bound)).unwrap_or_default();
    let nodes = nodes.iter().filter(|node| sight.reaches(roster, node)).count();
    Some(ProvisionProfileObject::from_stored(profile, nodes))
}

pub(super) fn sees_profile(
    roster: &Roster,
    principal: &Principal,
    profile: &Arc<ProvisionProfile>,
) -> bool {
    let access = Access::new(principal, Verb::Read, roster);
    access.covers(&Resource::ProvisionProfile(Arc::clone(profile)))
}

async fn list(
    State(provision): State<Provision>,
    principal: Principal,
) -> Result<Json<Listing<ProvisionRun>>, Failure> {
    let runs = &provision.runs;
    let roster = provision.runs.roster();
    let sight = sight(&principal, Verb::Read, &roster);
    let mut items = Vec::new();
    for header in runs.headers().await?.into_iter().rev() {
        let header = header.value;
        if let Some(counts) = header.counts.filter(|_| sight.is_all()) {
            items.push(outline(&header, counts));
            continue;
        }
        let nodes = seen(&roster, &sight, runs.nodes(&header.run).await?);
        if sight.is_all() || !nodes.is_empty() {
            items.push(outline(&header, count(&nodes)));
        }
    }
    Ok(Json(Listing { revision: roster.revision(), items }))
}

async fn get(
    State(provision): State<Provision>,
    principal: Principal,
    Path(run): Path<String>,
) -> Result<Json<ProvisionRun>, Failure> {
    let runs = &provision.runs;
    let roster = provision.runs.roster();
    let sight = sight(&principal, Verb::Read, &roster);
    let header = match run.as_str() {
        LAST => runs.headers().await?.pop(),
        run => runs.header(run).await?,
    };
    let header = header.ok_or_else(|| no_such_run(&run))?.value;
    let nodes = seen(&roster, &sight, runs.nodes(&header.run).await?);
    if nodes.is_empty() && !sight.is_all() {
        return Err(no_such_run(&run));
    }
    Ok(Json(runs.show(&header, nodes).await?))
}

/// The nodes of a run that the caller may see; removed nodes are visible only to callers who may
/// see all.
fn seen(roster: &Roster, sight: &Sight, nodes: Vec<StoredValue<NodeRecord>>) -> Vec<NodeRecord> {
    let is_seen = |node: &NodeRecord| match roster.by_id(node.shown.id) {
        Some(node) => sight.reaches(roster, node),
        None => sight.is_all(),
    };
    nodes.into_iter().map(|node| node.value).filter(is_seen).collect()
}

async fn of_node(
    State(provision): State<Provision>,
    principal: Principal,
    Path(node): Path<String>,
) -> Result<Json<ProvisionRun>, Failure> {
    let runs = &provision.runs;
    let roster = provision.runs.roster();
    let node = find_node(&roster, &sight(&principal, Verb::Read, &roster), &node)?;
    let none = || {
        Failure::new(Code::NotFound, format!("node `{}` was in no run yet", node.name))
            .with_remedy("`hoist provision start` begins one")
    };
    let last = runs.last(node.id).await?.ok_or_else(none)?;
    let header = runs.header(&last.run).await?.ok_or_else(none)?.value;
    let record = runs.node(&last.run, node.id).await?.ok_or_else(none)?.value;
    Ok(Json(runs.show(&header, vec![record]).await?))
}

async fn facts(
    State(provision): State<Provision>,
    principal: Principal,
    Path(node): Path<String>,
) -> Result<Json<NodeFacts>, Failure> {
    let roster = provision.runs.roster();
    let node = find_node(&roster, &sight(&principal, Verb::Read, &roster), &node)?;
    let store = provision.runs.chassis().store.as_ref();
    let found: Option<StoredValue<FactsRecord>> =
        StoredValue::get(store, &keys::facts(node.id)).await?;
    let FactsRecord { at, facts } = found
        .ok_or_else(|| {
            Failure::new(
                Code::NotFound,
                format!("node `{}` has no facts: no agent has reported any", node.name),
            )
            .with_remedy("one does when the node is provisioned")
        })?
        .value;
    Ok(Json(NodeFacts { node: node.name.clone(), id: node.id, at, facts }))
}
