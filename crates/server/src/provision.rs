//! Provisioning: runs in which nodes boot the agent, and the agent's routes.
//!
//! The machine plans and writes its own disks. The controller decides which machine gets which
//! provisioning job, when, and its boot state before and after. Disk logic does not belong here.

mod agent;
mod backup;
mod boot_change;
mod decide;
mod document;
mod erasure;
mod heard;
mod image_tools;
mod installed;
mod job;
mod keys;
mod record;
mod rule;
mod runs;
mod start;
mod steer;
mod stuck;
mod view;

use std::sync::{Arc, OnceLock};

use hoist_api::admin::{Context, Verb};
use hoist_site::Roster;

use crate::authorisation::Sight;
use crate::metadata::Metadata;
use hoist_chassis::principal::Principal;
use hoist_chassis::route::{AccessClass, Route, with_state};

use boot_change::BootChange;
use rule::ProfileRule;
pub use runs::Runs;

const READ: AccessClass = AccessClass::Admin { context: Context::Provision, verb: Verb::Read };
const WRITE: AccessClass = AccessClass::Admin { context: Context::Provision, verb: Verb::Write };

/// State shared by the handlers.
#[derive(Debug, Clone)]
pub struct Provision {
    metadata: Metadata,
    runs: Runs,
    /// Where this controller is reached, if that is configured.
    advertise: Vec<String>,
    /// Where it listens without TLS, once it does.
    plain_port: Arc<OnceLock<u16>>,
}

/// Everything that provisioning needs besides the chassis.
#[derive(Debug)]
pub struct Dependencies {
    pub metadata: Metadata,
    pub runs: Runs,
    /// Where this controller is reached, if that is configured.
    pub advertise: Vec<String>,
    /// Where it listens without TLS, once it does.
    pub plain_port: Arc<OnceLock<u16>>,
}

impl Provision {
    pub fn new(dependencies: Dependencies) -> Self {
        let Dependencies { metadata, runs, advertise, plain_port } = dependencies;
        runs.registry().add_rule(Arc::new(ProfileRule));
        runs.registry().on_node_removed(keys::delete_node);
        Self { metadata, runs, advertise, plain_port }
    }

    /// Starts what runs beside the answers.
    pub fn start(&self) {
        let tasks = &self.runs.chassis().tasks;
        tasks.spawn("provision", self.runs.clone().watch(tasks.stopping().clone()));
    }

    /// Where an agent fetches artifacts that reached this controller at `host`. Their digests are in
    /// its document, so that it need not be over TLS.
    fn artifact_base(&self, host: Option<&str>) -> String {
        if let Some(base) = self.advertise.first() {
            return base.clone();
        }
        let host = host.unwrap_or("localhost");
        let name = match host.rsplit_once(':') {
            Some((name, port)) if !port.contains(']') => name,
            _ => host,
        };
        match self.plain_port.get() {
            Some(port) => format!("http://{name}:{port}"),
            None => format!("https://{host}"),
        }
    }
}

/// All routes of the context.
pub fn routes(provision: &Provision) -> Vec<Route> {
    let all = [agent::routes(), backup::routes(), start::routes(), steer::routes(), view::routes()];
    with_state(all.into_iter().flatten().collect(), provision)
}

fn sight(principal: &Principal, verb: Verb, roster: &Roster) -> Sight {
    Sight::within(principal, verb, Context::Provision, roster)
}
