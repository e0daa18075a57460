//! Provisioning: runs in which nodes boot the agent, and what agents are told and tell.
//!
//! What becomes of a machine's disks is decided and done on the machine; here it is decided which
//! machine gets which document, when, and what it boots before and afterwards.

mod agent;
mod backup;
mod boot_change;
mod decide;
mod document;
pub(crate) mod erasure;
mod heard;
pub(crate) mod installed;
mod order;
mod record;
mod rule;
mod runs;
mod start;
mod steer;
mod stuck;
mod view;

use std::sync::{Arc, OnceLock};

use hoist_api::admin::{Context, Verb};
use hoist_inventory::Roster;

use crate::inventory::Sight;
use crate::metadata::Metadata;
use crate::principal::Principal;
use crate::route::{Plane, Route, with_state};

use boot_change::BootChange;
pub(crate) use document::secret_of;
use rule::ProfileRule;
pub use runs::Runs;

const READ: Plane = Plane::Admin { context: Context::Provision, verb: Verb::Read };
const WRITE: Plane = Plane::Admin { context: Context::Provision, verb: Verb::Write };

/// What the handlers share.
#[derive(Debug, Clone)]
pub struct Provision {
    metadata: Metadata,
    runs: Runs,
    /// Where this controller is reached, if that is configured.
    advertise: Vec<String>,
    /// Where it listens without TLS, once it does.
    plain_port: Arc<OnceLock<u16>>,
}

impl Provision {
    pub fn new(
        metadata: &Metadata,
        runs: Runs,
        advertise: Vec<String>,
        plain_port: Arc<OnceLock<u16>>,
    ) -> Self {
        runs.registry().add_rule(Arc::new(ProfileRule));
        Self { metadata: metadata.clone(), runs, advertise, plain_port }
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
