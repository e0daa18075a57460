//! Founding, the state of the cluster, and the open greeting.

use std::collections::BTreeSet;
use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use hoist_api::Code;
use hoist_api::cluster::{ClusterStatus, FoundRequest, Hello};
use hoist_chassis::auth::AuditContext;
use hoist_chassis::ca::ServerName;
use hoist_chassis::extract::Json;
use hoist_chassis::failure::Failure;
use hoist_chassis::route::{AccessClass, Route};
use hoist_cluster::id::{ClusterId, Pin};
use http::StatusCode;
use serde_json::json;

use super::failure::no_cluster;
use super::records::{ClusterState, RecordChange};
use super::snapshot::Snapshot;
use super::view::Write;
use super::{Cluster, READ, WRITE, show};

pub(super) fn routes() -> Vec<Route<Cluster>> {
    vec![
        Route::post("/cluster/v1/found", WRITE, found)
            .summary("Found the cluster of this site, without a member")
            .takes::<FoundRequest>()
            .gives::<ClusterStatus>(201),
        Route::get("/cluster/v1", READ, status)
            .summary("The cluster: generations, scale, counts and warnings")
            .gives::<ClusterStatus>(200),
        Route::get("/cluster/v1/hello", AccessClass::Open, hello)
            .summary("Name, id and clock of the cluster")
            .reason(
                "Name and id of the cluster and the controller's clock. A node checks them before \
                 it sends anything about itself",
            )
            .gives::<Hello>(200),
    ]
}

async fn found(
    State(cluster): State<Cluster>,
    audit: AuditContext,
    Json(request): Json<FoundRequest>,
) -> Result<Response, Failure> {
    check_unfounded(&*cluster.view.loaded()?)?;
    let uid = match cluster.authority.uid()? {
        Some(uid) => uid,
        None => random_uid(),
    };
    cluster.authority.create(&cluster.chassis.ca, uid).await?;
    let FoundRequest { name, assignment, rebalance_on_join } = request;
    let root_pin = cluster.chassis.ca.root_pin();
    let pin: Pin = root_pin
        .parse()
        .map_err(|_| Failure::new(Code::Internal, "the pin of the root is not one"))?;
    let state = Arc::new(ClusterState {
        name,
        uid,
        pin,
        founded: cluster.chassis.clock.now(),
        assignment,
        rebalance_on_join,
        authority: cluster.urls(None),
    });
    let mut draft = audit.draft();
    draft.object = format!("cluster/{}", state.name);
    let founding = cluster.view.write(Some(&draft), |snapshot| {
        check_unfounded(snapshot)?;
        Ok(Write { changes: vec![RecordChange::State(Arc::clone(&state))], result: () })
    });
    founding.await?;
    let told = json!({"uid": state.uid, "pin": state.pin});
    cluster.publish("cluster.founded", &format!("cluster/{}", state.name), told);
    cluster.start_beacon().await;
    let status = show::status(&cluster, &cluster.view.snapshot(), &state);
    Ok((StatusCode::CREATED, Json(status)).into_response())
}

/// A site has one cluster, for ever.
fn check_unfounded(snapshot: &Snapshot) -> Result<(), Failure> {
    let Some(state) = &snapshot.state else { return Ok(()) };
    let detail = format!("this site has the cluster `{}` ({}) already", state.name, state.uid);
    Err(Failure::new(Code::Conflict, detail)
        .with_remedy("join nodes to it; another cluster needs another site"))
}

async fn status(State(cluster): State<Cluster>) -> Result<Json<ClusterStatus>, Failure> {
    let snapshot = cluster.view.loaded()?;
    let state = snapshot.founded()?;
    Ok(Json(show::status(&cluster, &snapshot, state)))
}

async fn hello(State(cluster): State<Cluster>) -> Result<Json<Hello>, Failure> {
    let snapshot = cluster.view.loaded()?;
    let state = snapshot.founded()?;
    Ok(Json(show::hello(state, cluster.chassis.clock.now())))
}

fn random_uid() -> ClusterId {
    let mut bytes = [0; 16];
    aws_lc_rs::rand::fill(&mut bytes).expect("the operating system gives random bytes");
    ClusterId::from_random(bytes)
}

impl Snapshot {
    pub(super) fn founded(&self) -> Result<&Arc<ClusterState>, Failure> {
        self.state.as_ref().ok_or_else(no_cluster)
    }
}

impl Cluster {
    /// The URLs of this controller with TLS: first the one that the caller has used, then all names
    /// in its certificate.
    pub(super) fn urls(&self, used: Option<&str>) -> Vec<String> {
        let port = self.tls_port.get().copied().unwrap_or(443);
        let mut urls: Vec<String> =
            used.map(|host| format!("https://{host}")).into_iter().collect();
        let mut seen: BTreeSet<String> = urls.iter().cloned().collect();
        for name in self.chassis.ca.names() {
            let host = match name {
                ServerName::Dns(name) if name == "localhost" => continue,
                ServerName::Dns(name) => name.clone(),
                ServerName::Ip(ip) if ip.is_loopback() || ip.is_unspecified() => continue,
                ServerName::Ip(ip) if ip.is_ipv6() => format!("[{ip}]"),
                ServerName::Ip(ip) => ip.to_string(),
            };
            let url = format!("https://{host}:{port}");
            if seen.insert(url.clone()) {
                urls.push(url);
            }
        }
        urls
    }
}
