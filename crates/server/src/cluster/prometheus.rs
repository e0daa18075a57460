//! `/cluster/v1/prometheus-sd`: the members as targets, in the format of Prometheus' HTTP service
//! discovery.

use std::collections::BTreeMap;
use std::net::IpAddr;

use axum::extract::State;
use hoist_api::cluster::PrometheusTarget;
use hoist_chassis::extract::{Json, Query};
use hoist_chassis::failure::Failure;
use hoist_chassis::route::Route;
use hoist_cluster::membership::Member;
use ipnet::IpNet;
use serde::Deserialize;

use super::snapshot::Snapshot;
use super::{Cluster, READ, show};

/// The port of Prometheus' node exporter.
const DEFAULT_PORT: u16 = 9100;

pub(super) fn routes() -> Vec<Route<Cluster>> {
    vec![
        Route::get("/cluster/v1/prometheus-sd", READ, targets)
            .summary("Members as targets for Prometheus, with their role")
            .query("port", "the port of the targets; 9100 if left out")
            .gives::<Vec<PrometheusTarget>>(200),
    ]
}

#[derive(Debug, Deserialize)]
struct TargetQuery {
    port: Option<u16>,
}

async fn targets(
    State(cluster): State<Cluster>,
    Query(query): Query<TargetQuery>,
) -> Result<Json<Vec<PrometheusTarget>>, Failure> {
    let snapshot = cluster.view.loaded()?;
    let state = snapshot.founded()?;
    let port = query.port.unwrap_or(DEFAULT_PORT);
    let scale = show::scale(&snapshot).as_str();
    let mut members: Vec<&Member> = show::counted(&snapshot).collect();
    members.sort_by_key(|member| member.join_order);
    let target = |member: &Member| {
        let mut labels = BTreeMap::from([
            ("cluster".to_owned(), state.name.to_string()),
            ("scale".to_owned(), scale.to_owned()),
            ("node".to_owned(), member.registration.name.to_string()),
        ]);
        labels.extend(role(&snapshot, member).map(|role| ("role".to_owned(), role)));
        PrometheusTarget { targets: vec![cluster.target(member, port)], labels }
    };
    Ok(Json(members.into_iter().map(target).collect()))
}

fn role(snapshot: &Snapshot, member: &Member) -> Option<String> {
    snapshot.plan.as_ref().and_then(|stored| stored.role_of(member))
}

impl Cluster {
    /// The address that the member reports from, else the first that is declared, else its name.
    fn target(&self, member: &Member, port: u16) -> String {
        let name = &member.registration.name;
        let roster = self.registry.roster();
        let declared = || {
            let interfaces = &roster.by_name(name)?.spec.interfaces;
            interfaces.iter().flat_map(|interface| &interface.addresses).next().map(IpNet::addr)
        };
        let seen = self.liveness.seen(member.registration.node).map(|seen| seen.from);
        match seen.or_else(declared) {
            Some(IpAddr::V6(ip)) => format!("[{ip}]:{port}"),
            Some(IpAddr::V4(ip)) => format!("{ip}:{port}"),
            None => format!("{name}:{port}"),
        }
    }
}
