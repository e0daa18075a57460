//! Deployment over HTTP (`/deploy/v1`): task files become plans, plans become runs, and runs are
//! watched and controlled.
//!
//! Each run has a directory with its journal and a thread that drives it. A controller that
//! restarts reads every journal and continues its runs. Rules of task files belong in
//! `hoist-deploy`, rules of runs in `hoist-engine`.

mod agent_work;
mod compile;
mod concurrent;
mod elections;
mod entry;
mod folder;
mod instance_history;
mod plans;
mod queries;
mod remote_commands;
mod retention;
mod run_commands;
mod runs;
mod shared_runs;
mod stream;
mod summaries;
mod transport;
mod view;

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;

use hoist_api::Code;
use hoist_api::admin::{Context, Verb};
use hoist_diagnostic::chain;
use hoist_engine::plugin::IsolationPolicy;
use hoist_engine::ssh::Login;
use hoist_model::Selector;
use hoist_site::Registry;

use crate::installed_systems::InstalledSystems;
use crate::site::Site;
use crate::vault::Vault;
use hoist_chassis::Chassis;
use hoist_chassis::audit::Draft;
use hoist_chassis::auth::AuditContext;
use hoist_chassis::failure::Failure;
use hoist_chassis::route::{AccessClass, Route, with_state};
use hoist_chassis::secret;

use agent_work::AgentGateway;
use folder::FolderError;
use runs::{Runs, RunsError};
use shared_runs::SharedRuns;
use summaries::Summaries;
use transport::RunContext;

pub use compile::{
    AnswerWithPlan, Detail, FilePlan, Grounds, book_of, compile, site_of, templates_of,
};
pub use retention::RunRetention;

/// How the nodes of runs are reached, and how long runs are kept.
#[derive(Debug, Clone, Default)]
pub struct DeploySettings {
    /// Nodes that are directories on this machine; none by default.
    pub local: Option<Selector>,
    /// Nodes that are reached by ssh.
    pub ssh: Option<Selector>,
    /// How they are reached, unless their `data.ssh` names another way.
    pub ssh_login: Box<Login>,
    /// Where the keys are that nodes name.
    pub ssh_keys: Option<PathBuf>,
    /// The file of the program that works on nodes, with `{arch}` for their architecture; else the
    /// program that runs here.
    pub ssh_program: Option<String>,
    /// The arguments with which it calls [`hoist_engine::ssh::serve`].
    pub ssh_arguments: Vec<String>,
    /// Where plug-ins are; without it there are none.
    pub plugins: Option<PathBuf>,
    /// Whether plug-ins may run where they cannot be isolated.
    pub isolation: IsolationPolicy,
    /// Files and directories that plug-ins do not find, beside the data directory.
    pub hidden: Vec<PathBuf>,
    /// How [`hoist_engine::execute::supervisor::main`] is started, which keeps programs on this machine;
    /// without it each has a shell of its own.
    pub supervisor: Option<Vec<OsString>>,
    pub retention: RunRetention,
}

/// The state that the handlers share.
#[derive(Debug, Clone)]
pub struct Deploy {
    chassis: Chassis,
    registry: Registry,
    runs: Runs,
    gateway: AgentGateway,
    systems: Arc<dyn InstalledSystems>,
}

const READ: AccessClass = AccessClass::Admin { context: Context::Deploy, verb: Verb::Read };
const WRITE: AccessClass = AccessClass::Admin { context: Context::Deploy, verb: Verb::Write };

/// The remedy for a run on the same nodes.
const INSIST: &str = "wait for it, `hoist deploy stop` it, or allow it with `--allow-concurrent` (`allow_concurrent: true`): \
    what limits the steps of a run, such as `locks`, knows nothing of the other";

/// Everything that deployment needs besides the chassis.
#[derive(Debug)]
pub struct Dependencies {
    pub site: Site,
    pub vault: Arc<Vault>,
    pub systems: Arc<dyn InstalledSystems>,
    pub settings: DeploySettings,
}

impl Deploy {
    /// In a runtime.
    pub fn new(chassis: &Chassis, dependencies: Dependencies) -> Self {
        let Dependencies { site, settings, vault, systems } = dependencies;
        let registry = &site.registry;
        let data_dir = &site.data_dir;
        let retention = settings.retention;
        let gateway = AgentGateway::new();
        let context = RunContext::new(settings, registry.clone(), vault, gateway.clone(), data_dir);
        let summaries = Summaries::new(chassis);
        let root = data_dir.join("journal");
        let shared = site.is_shared().then(|| {
            let owner = folder::owner(&root).unwrap_or_else(|error| {
                tracing::warn!(error = %chain(&error), "runs are taken up late after a restart");
                secret::random_text(folder::OWNER_CHARS)
            });
            SharedRuns::new(Arc::clone(&chassis.store), owner)
        });
        let runs = Runs::new(root, context, chassis.events.clone(), summaries, shared);
        chassis.tasks.spawn(
            "runs",
            retention::keep(runs.clone(), retention, chassis.tasks.stopping().clone()),
        );
        let is_shared = runs.are_shared();
        let deploy =
            Self { chassis: chassis.clone(), registry: site.registry, runs, gateway, systems };
        if is_shared {
            let stopping = chassis.tasks.stopping().clone();
            chassis.tasks.spawn("commands to runs", deploy.clone().obey_commands(stopping));
        }
        deploy
    }

    /// Writes an audit entry after the act. A store outage does not revert the act.
    async fn note(&self, audit: &AuditContext, object: String) {
        let draft = Draft { object, ..audit.draft() };
        if let Err(error) = self.chassis.audit.append(&draft).await {
            tracing::error!(error = %chain(&error), object = draft.object, "not in the audit log");
        }
    }

    /// Full id of the run that was named, once all of them are known.
    async fn resolve(&self, given: &str) -> Result<String, Failure> {
        self.runs.recovered().await;
        let is_plain = !self.runs.are_shared() || self.runs.is_known(&given.to_lowercase());
        let others = if is_plain { Vec::new() } else { self.runs.others().await };
        Ok(self.runs.resolve(given, &others)?)
    }

    /// What reads or writes files, away from those who answer.
    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Runs) -> Result<T, RunsError> + Send + 'static,
    ) -> Result<T, Failure> {
        let runs = self.runs.clone();
        let done = tokio::task::spawn_blocking(move || work(&runs)).await;
        let done = done.map_err(|_| Failure::new(Code::Internal, "the log has the reason"))?;
        Ok(done?)
    }
}

/// All routes of the context.
pub fn routes(deploy: &Deploy) -> Vec<Route> {
    let all = [
        plans::routes(),
        queries::routes(),
        run_commands::routes(),
        stream::routes(),
        agent_work::routes(),
    ];
    with_state(all.into_iter().flatten().collect(), deploy)
}

impl From<RunsError> for Failure {
    fn from(error: RunsError) -> Self {
        if let RunsError::Folder(FolderError::Store(error)) = error {
            return error.into();
        }
        let code = match &error {
            RunsError::Folder(error) if error.is_full() => Code::StoreFull,
            RunsError::AtGate => Code::Busy,
            RunsError::Unknown(_) | RunsError::Elsewhere(_) => Code::NotFound,
            RunsError::Ambiguous(_) => Code::Ambiguous,
            RunsError::Ended
            | RunsError::UnderWay
            | RunsError::BeingUndone(_)
            | RunsError::WentOn(_)
            | RunsError::Concurrent(_)
            | RunsError::NoEffect
            | RunsError::Broken(..) => Code::Conflict,
            RunsError::TooMany => Code::TooManyRequests,
            RunsError::Stopping => Code::Stopping,
            RunsError::Folder(_) | RunsError::NoThread(_) | RunsError::Panicked => Code::Internal,
        };
        let failure = Self::new(code, chain(&error));
        match error {
            RunsError::Unknown(_) => failure.with_remedy("`hoist deploy list` shows all of them"),
            RunsError::Elsewhere(_) => failure.with_remedy("ask the controller that ran it"),
            RunsError::Concurrent(_) => failure.with_remedy(INSIST),
            RunsError::Folder(error) if error.is_full() => {
                failure.with_remedy("make room on the data disk")
            }
            RunsError::Broken(..) => {
                failure.with_remedy("check the named file; restore a damaged journal from a backup")
            }
            _ => failure,
        }
    }
}
