//! `/boot/v1/endpoint-history`: when each node last asked for what.

use axum::extract::State;
use axum::response::Response;
use hoist_boot::bss::{host_name, node_of_host};
use hoist_site::Roster;
use serde::{Deserialize, Serialize};

use super::boot_log::{BootLog, Endpoint};
use super::{Boot, bss_json, json_text};
use hoist_chassis::extract::Query;
use hoist_chassis::failure::Failure;

#[derive(Debug, Default, Deserialize)]
pub(super) struct HistoryQuery {
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
    Query(asked): Query<HistoryQuery>,
) -> Result<Response, Failure> {
    if asked.name.is_empty() {
        let boot_log = boot.log.clone();
        return boot.whole_site(move |roster| json_text(&rows(roster, &boot_log, &asked))).await;
    }
    Ok(bss_json(&rows(&boot.registry.roster(), &boot.log, &asked)))
}

fn rows(roster: &Roster, boot_log: &BootLog, asked: &HistoryQuery) -> Vec<Row> {
    let endpoints: Vec<Endpoint> = match asked.endpoint.as_str() {
        "" => Endpoint::BSS.to_vec(),
        word => Endpoint::BSS.into_iter().filter(|endpoint| endpoint.as_str() == word).collect(),
    };
    if asked.name.is_empty() {
        let seen = boot_log.all().into_iter();
        let seen = seen.filter(|(_, endpoint, _)| endpoints.contains(endpoint));
        let mut rows: Vec<Row> = seen
            .filter_map(|(id, endpoint, seen)| {
                Some(row(host_name(roster.by_id(id)?), endpoint, seen.last.as_second()))
            })
            .collect();
        rows.sort_unstable();
        return rows;
    }
    let node = node_of_host(roster, &asked.name).map(AsRef::as_ref);
    let name = node.map_or_else(|| asked.name.clone(), host_name);
    let last = |endpoint| boot_log.of(node?.id, endpoint).map(|seen| seen.last.as_second());
    let rows = endpoints.into_iter().filter_map(|endpoint| {
        // BSS answers a query by both names even without history.
        let never = (!asked.endpoint.is_empty()).then_some(0);
        Some(row(name.clone(), endpoint, last(endpoint).or(never)?))
    });
    rows.collect()
}

fn row(name: String, endpoint: Endpoint, last_epoch: i64) -> Row {
    Row { name, endpoint: endpoint.as_str().to_owned(), last_epoch }
}
