//! `/agent/v1/nodes/{node}/work`: the agent of a node reports its jobs and their results, and
//! receives new jobs. See `hoist_engine::pull`.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::State;
use hoist_api::Code;
use hoist_api::admin::{Context, Verb};
use hoist_engine::pull::{
    Dispatcher, HEARTBEAT, LOST_AFTER, MAX_MEMORY, MAX_MESSAGE, Orders, WorkerReport,
};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::Notify;

use super::Deploy;
use crate::authorisation::Sight;
use hoist_chassis::extract::{Json, Path};
use hoist_chassis::failure::Failure;
use hoist_chassis::principal::Principal;
use hoist_chassis::route::{AccessClass, Route};

/// How long a message waits for journals to store its results, also if it asks for no delay.
const FOR_JOURNALS: Duration = Duration::from_secs(1);

/// Where agents come for their work, and how those who wait are woken.
#[derive(Debug, Clone)]
pub(super) struct AgentGateway {
    pub(super) dispatcher: Arc<Dispatcher>,
    bells: Arc<Bells>,
}

#[derive(Debug, Default)]
struct Bells(Mutex<HashMap<String, Arc<Notify>>>);

impl Bells {
    fn of(&self, node: &str) -> Arc<Notify> {
        let mut bells = self.0.lock();
        Arc::clone(bells.entry(node.to_owned()).or_default())
    }
}

impl AgentGateway {
    pub(super) fn new() -> Self {
        let bells = Arc::<Bells>::default();
        let rung = Arc::clone(&bells);
        let dispatcher = Dispatcher::new(LOST_AFTER, move |node| rung.of(node).notify_waiters());
        if let Err(error) = dispatcher.keep_watch() {
            tracing::error!(%error, "agents that are gone are not noticed");
        }
        Self { dispatcher, bells }
    }
}

pub(super) fn routes() -> Vec<Route<Deploy>> {
    vec![
        Route::post("/agent/v1/nodes/{node}/work", AccessClass::Agent, work)
            .summary("Report an agent's results, and receive its jobs")
            .body_limit(MAX_MESSAGE)
            .streaming()
            .takes::<Value>()
            .gives::<Value>(200),
    ]
}

async fn work(
    State(deploy): State<Deploy>,
    Path(node): Path<String>,
    principal: Principal,
    Json(report): Json<WorkerReport>,
) -> Result<Json<Orders>, Failure> {
    let roster = deploy.registry.roster();
    let sight = Sight::within(&principal, Verb::Write, Context::Agent, &roster);
    let known = roster.by_name(&node).filter(|node| sight.reaches(&roster, node));
    if known.is_none() {
        // One message for all cases, so that a caller cannot probe for names of nodes.
        return Err(Failure::new(Code::Forbidden, "this token is not of the agent of this node")
            .with_remedy("make one with `hoist token create NAME --scope write:agent:node:NODE`"));
    }
    if report.memory.len() > MAX_MEMORY {
        let message = format!("`memory` has more than {MAX_MEMORY} bytes");
        return Err(Failure::new(Code::BadRequest, message));
    }
    let wait = Duration::from_millis(report.wait_ms).min(HEARTBEAT);
    Ok(Json(deploy.exchange(&node, &report, wait).await))
}

impl Deploy {
    /// At once if there is something to do, else when there is, or when the time is over.
    async fn exchange(&self, node: &str, report: &WorkerReport, wait: Duration) -> Orders {
        let AgentGateway { dispatcher, bells } = &self.gateway;
        let bell = bells.of(node);
        let rung = bell.notified();
        tokio::pin!(rung);
        // Whatever comes from here on is heard.
        rung.as_mut().enable();
        let orders = dispatcher.exchange(node, report, Instant::now());
        let wait = match dispatcher.has_offers(node) {
            true => FOR_JOURNALS,
            false if orders.is_empty() => wait,
            false => Duration::ZERO,
        };
        if wait.is_zero() {
            return orders;
        }
        let stopping = self.chassis.tasks.stopping();
        tokio::select! {
            () = stopping.cancelled() => {}
            _ = tokio::time::timeout(wait, rung) => {}
        }
        dispatcher.exchange(node, report, Instant::now())
    }
}
