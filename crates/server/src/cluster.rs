//! The cluster: founding, join tokens, joining, members and their roles.
//!
//! The rules are functions of values in `hoist_cluster`. This module has the routes, the records in
//! the store, the certificates, and the memory of which members are alive.
//!
//! Guarantees: an acceptance is durable before its certificate is issued; all controllers of a store
//! answer from the same records; reads never wait for the store.
//!
//! Does not belong here: the work of agents (`deploy`), and the check of certificates and rights
//! (`hoist_chassis`).

mod authority;
mod background;
mod beacon;
mod failure;
mod found;
mod inventory_link;
mod issue;
mod join;
mod join_request;
mod keys;
mod liveness;
mod lookup;
mod member_routes;
mod operators;
mod plan_routes;
mod planning;
mod prometheus;
mod records;
mod report;
mod restored;
mod show;
mod snapshot;
mod tokens;
mod view;

use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use hoist_api::admin::{Context, Verb};
use hoist_chassis::Chassis;
use hoist_chassis::audit::Draft;
use hoist_chassis::failure::Failure;
use hoist_chassis::member::Members;
use hoist_chassis::route::{AccessClass, Route, with_state};
use hoist_cluster::id::NodeId;
use hoist_diagnostic::chain;
use hoist_discovery::Network;
use hoist_site::Registry;
use hoist_site::registry::LoadedFrom;
use parking_lot::Mutex;

use crate::site::Site;
use authority::Authority;
use beacon::Beacon;
use liveness::Liveness;
use planning::Replan;
use snapshot::Snapshot;
use view::{View, Write};

pub(crate) use restored::restored;

const READ: AccessClass = AccessClass::Admin { context: Context::Cluster, verb: Verb::Read };
const WRITE: AccessClass = AccessClass::Admin { context: Context::Cluster, verb: Verb::Write };

/// How long a start waits for the store.
const FIRST_LOAD: Duration = Duration::from_secs(5);

/// State shared by the handlers. Clones share it.
#[derive(Debug, Clone)]
pub struct Cluster {
    chassis: Chassis,
    registry: Registry,
    view: View,
    authority: Arc<Authority>,
    liveness: Arc<Liveness>,
    beacon: Arc<Beacon>,
    /// Why the plan does not follow the members.
    plan_refusal: Arc<Mutex<Option<String>>>,
    /// Where this controller listens with TLS, once it does.
    tls_port: Arc<OnceLock<u16>>,
}

impl Cluster {
    /// Machines that search `discovery` for clusters are answered.
    pub fn new(chassis: &Chassis, site: &Site, discovery: Option<Network>) -> Self {
        Self {
            chassis: chassis.clone(),
            registry: site.registry.clone(),
            view: View::new(Arc::clone(&chassis.store), chassis.audit.clone()),
            authority: Arc::new(Authority::open(&chassis.ca)),
            liveness: Arc::new(Liveness::new(chassis.clock.now())),
            beacon: Arc::new(Beacon::new(discovery, &site.data_dir.join("ca"))),
            plan_refusal: Arc::default(),
            tls_port: Arc::clone(&site.ports.tls),
        }
    }

    /// Reads the cluster, so that members are known when the controller begins to listen. Without
    /// the store they are known as soon as it is back.
    pub async fn open(&self) {
        // The registry has waited for the store already.
        if self.registry.contact().loaded_from != LoadedFrom::Store {
            return;
        }
        match tokio::time::timeout(FIRST_LOAD, self.view.load()).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => {
                tracing::warn!(error = %chain(&error), "the cluster is read later");
            }
            Err(_) => tracing::warn!("the store did not answer; the cluster is read later"),
        }
    }

    /// The members, for the authentication of their requests.
    pub fn members(&self) -> Arc<dyn Members> {
        Arc::new(self.view.clone())
    }

    /// Starts what runs beside the answers.
    pub fn start(&self) {
        let tasks = &self.chassis.tasks;
        let stop = tasks.stopping();
        tasks.spawn("cluster", self.view.clone().follow(stop.clone()));
        tasks.spawn("cluster upkeep", self.clone().keep_up(stop.clone()));
        tasks.spawn("cluster discovery", self.clone().keep_answering(stop.clone()));
    }

    /// Changes the members, and the plan with them in the same transaction.
    async fn change_members<T>(
        &self,
        by: Option<&Draft>,
        decide: impl FnMut(&Snapshot) -> Result<Write<T>, Failure> + Send,
    ) -> Result<T, Failure> {
        self.change_plan(by, &BTreeSet::new(), decide).await
    }

    /// The same, with consent for the moves of these members.
    async fn change_plan<T>(
        &self,
        by: Option<&Draft>,
        consent: &BTreeSet<NodeId>,
        mut decide: impl FnMut(&Snapshot) -> Result<Write<T>, Failure> + Send,
    ) -> Result<T, Failure> {
        let mut replan = Replan::default();
        let writing = self.view.write(by, |snapshot| {
            let mut write = decide(snapshot)?;
            let next = snapshot.with(write.changes.clone());
            replan = planning::replan(&next, &self.registry.roster(), consent);
            write.changes.extend(replan.changes.iter().cloned());
            Ok(write)
        });
        let result = writing.await?;
        self.note_plan(&replan);
        Ok(result)
    }

    /// Tells of a plan that was written, and remembers why there is none.
    fn note_plan(&self, replan: &Replan) {
        if let Some(stored) = replan.plan() {
            let told = serde_json::json!({
                "generation": stored.plan.generation,
                "scale": stored.plan.scale,
                "moves": stored.plan.moves.len(),
            });
            self.publish("cluster.plan.changed", "cluster", told);
        }
        let refusal = replan.refusal.as_ref().map(|refusal| chain(refusal));
        *self.plan_refusal.lock() = refusal;
    }

    fn publish(&self, kind: &str, subject: &str, data: serde_json::Value) {
        self.chassis.events.publish(kind, subject, data);
    }
}

/// All routes of the context.
pub fn routes(cluster: &Cluster) -> Vec<Route> {
    let all = [
        found::routes(),
        tokens::routes(),
        join::routes(),
        operators::routes(),
        plan_routes::routes(),
        member_routes::routes(),
        report::routes(),
        prometheus::routes(),
    ];
    with_state(all.into_iter().flatten().collect(), cluster)
}
