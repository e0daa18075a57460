//! `/boot/v1/endpoint-history`: when each node last asked for what.

use axum::extract::State;
use axum::response::Response;
use hoist_boot::bss::host_name;
use hoist_inventory::Roster;
use hoist_model::Node;
use serde::{Deserialize, Serialize};

use super::sightings::{Endpoint, Sightings};
use super::{Boot, bss_json, json_text};
use crate::extract::Query;
use crate::failure::Failure;

#[derive(Debug, Default, Deserialize)]
pub(super) struct Asked {
    #[serde(default)]
    name: String,
    #[serde(default)]
    endpoint: String,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
struct Row {
    name: String,
    endpoint: String,
    last_epoch: i64,
}

pub(super) async fn get(
    State(boot): State<Boot>,
    Query(asked): Query<Asked>,
) -> Result<Response, Failure> {
    if asked.name.is_empty() {
        let sightings = boot.sightings.clone();
        return boot.whole_site(move |roster| json_text(&rows(roster, &sightings, &asked))).await;
    }
    Ok(bss_json(&rows(&boot.registry.roster(), &boot.sightings, &asked)))
}

fn rows(roster: &Roster, sightings: &Sightings, asked: &Asked) -> Vec<Row> {
    let endpoints: Vec<Endpoint> = match asked.endpoint.as_str() {
        "" => Endpoint::ALL.to_vec(),
        word => Endpoint::from_word(word).into_iter().collect(),
    };
    if asked.name.is_empty() {
        let seen = sightings.all().into_iter();
        let seen = seen.filter(|(_, endpoint, _)| endpoints.contains(endpoint));
        let mut rows: Vec<Row> = seen
            .filter_map(|(id, endpoint, seen)| {
                Some(row(host_name(roster.by_id(id)?), endpoint, seen.last.as_second()))
            })
            .collect();
        rows.sort_unstable();
        return rows;
    }
    let node = named(roster, &asked.name);
    let name = node.map_or_else(|| asked.name.clone(), host_name);
    let last = |endpoint| sightings.of(node?.id, endpoint).map(|seen| seen.last.as_second());
    let rows = endpoints.into_iter().filter_map(|endpoint| {
        // Asked for one by both its names, BSS answers even if nobody was there.
        let never = (!asked.endpoint.is_empty()).then_some(0);
        Some(row(name.clone(), endpoint, last(endpoint).or(never)?))
    });
    rows.collect()
}

fn row(name: String, endpoint: Endpoint, last_epoch: i64) -> Row {
    Row { name, endpoint: endpoint.as_str().to_owned(), last_epoch }
}

fn named<'r>(roster: &'r Roster, name: &str) -> Option<&'r Node> {
    let by_xname = name.parse().ok().and_then(|xname| roster.by_xname(xname));
    by_xname.or_else(|| roster.by_name(name)).map(AsRef::as_ref)
}
