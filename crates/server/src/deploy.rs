//! Deployment, over HTTP: task files become plans, plans become runs, and runs are watched and told
//! what to do (`/deploy/v1`).
//!
//! Each run has a directory of its own with its journal, and a thread that drives it; both outlive
//! nothing but themselves: a controller that starts again reads every journal and goes on.

mod beside;
mod compile;
mod elections;
mod entry;
mod folder;
mod hands;
mod orders;
mod past;
mod plans;
mod prune;
mod read;
mod runs;
mod shared;
mod stream;
mod summaries;
mod view;
mod work;

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;

use hoist_api::Code;
use hoist_api::admin::{Context, Verb};
use hoist_api::deploy::RunSummary;
use hoist_engine::plugin::IsolationPolicy;
use hoist_inventory::Registry;
use hoist_model::Selector;

use crate::audit::Draft;
use crate::auth::AuditContext;
use crate::chain;
use crate::failure::Failure;
use crate::metadata::secrets::Vault;
use crate::route::{Plane, Route, with_state};
use crate::secret;
use crate::server::Chassis;

use folder::FolderError;
use hands::Grip;
use runs::{Runs, RunsError};
use shared::Shared;
use summaries::Summaries;
use work::Counter;

pub use compile::{Grounds, book_of, compile, site_of, templates_of};
pub use prune::RunRetention;

/// How the nodes of runs are reached, and how long runs are kept.
#[derive(Debug, Clone, Default)]
pub struct DeploySettings {
    /// Nodes that are directories on this machine; none by default.
    pub local: Option<Selector>,
    /// Nodes that are reached by ssh.
    pub ssh: Option<Selector>,
    pub ssh_user: Option<String>,
    pub ssh_key: Option<PathBuf>,
    pub ssh_port: Option<u16>,
    /// Whose keys are known; else what ssh knows by itself.
    pub ssh_known_hosts: Option<PathBuf>,
    /// Where plug-ins are; without it there are none.
    pub plugins: Option<PathBuf>,
    /// Whether plug-ins may run where they cannot be isolated.
    pub isolation: IsolationPolicy,
    /// Files and directories that plug-ins do not find, beside the data directory.
    pub hidden: Vec<PathBuf>,
    /// How [`hoist_engine::execute::keeper::main`] is started, which keeps programs on this machine;
    /// without it each has a shell of its own.
    pub keeper: Option<Vec<OsString>>,
    pub retention: RunRetention,
}

/// What the handlers share.
#[derive(Debug, Clone)]
pub struct Deploy {
    chassis: Chassis,
    registry: Registry,
    runs: Runs,
    counter: Counter,
}

const READ: Plane = Plane::Admin { context: Context::Deploy, verb: Verb::Read };
const WRITE: Plane = Plane::Admin { context: Context::Deploy, verb: Verb::Write };

/// What to do about a run on the same nodes.
const INSIST: &str = "wait for it, `hoist deploy stop` it, or insist with `--beside` (`beside: true`): \
    what limits the steps of a run, such as `locks`, knows nothing of the other";

impl Deploy {
    /// In a runtime.
    pub fn new(
        chassis: &Chassis,
        registry: Registry,
        settings: DeploySettings,
        vault: Vault,
        is_shared: bool,
        data_dir: &std::path::Path,
    ) -> Self {
        let retention = settings.retention;
        let counter = Counter::new();
        let grip = Grip::new(settings, registry.clone(), vault, counter.clone(), data_dir);
        let summaries = Summaries::new(chassis);
        let root = data_dir.join("journal");
        let shared = is_shared.then(|| {
            let owner = folder::owner(&root).unwrap_or_else(|error| {
                tracing::warn!(error = %chain(&error), "runs are taken up late after a restart");
                secret::random_text(folder::OWNER_CHARS)
            });
            Shared::new(Arc::clone(&chassis.store), owner)
        });
        let runs = Runs::new(root, grip, chassis.events.clone(), summaries, shared);
        chassis
            .tasks
            .spawn("runs", prune::keep(runs.clone(), retention, chassis.tasks.stopping().clone()));
        Self { chassis: chassis.clone(), registry, runs, counter }
    }

    /// What was done, for the audit log. It is done: a store that is away does not undo it.
    async fn note(&self, audit: &AuditContext, object: String) {
        let draft = Draft { object, ..audit.draft() };
        if let Err(error) = self.chassis.audit.append(&draft).await {
            tracing::error!(error = %chain(&error), object = draft.object, "not in the audit log");
        }
    }

    /// Full id of the run that was named, once all of them are known.
    async fn resolve(&self, given: &str) -> Result<String, Failure> {
        self.runs.recovered().await;
        let found = self.runs.resolve(given);
        if let Err(RunsError::Unknown(given)) = &found
            && self.runs.are_shared()
        {
            let others = self.runs.others().await;
            let is_meant = |run: &&RunSummary| run.id == given.to_lowercase();
            if let Some(run) = others.iter().find(is_meant) {
                let detail = format!("run {} is with another controller of the site", run.id);
                return Err(Failure::new(Code::NotFound, detail)
                    .with_remedy("ask that one; here it is only listed"));
            }
        }
        Ok(found?)
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
    let all = [plans::routes(), read::routes(), orders::routes(), stream::routes(), work::routes()];
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
            RunsError::Unknown(_) => Code::NotFound,
            RunsError::Ambiguous(_) => Code::Ambiguous,
            RunsError::Ended
            | RunsError::UnderWay
            | RunsError::TakenBack(_)
            | RunsError::WentOn(_)
            | RunsError::Beside(_)
            | RunsError::NoEffect
            | RunsError::Broken(..) => Code::Conflict,
            RunsError::TooMany => Code::TooManyRequests,
            RunsError::Stopping => Code::Stopping,
            RunsError::Folder(_) | RunsError::NoThread(_) | RunsError::Fault => Code::Internal,
        };
        let failure = Self::new(code, chain(&error));
        match error {
            RunsError::Unknown(_) => failure.with_remedy("`hoist deploy list` shows all of them"),
            RunsError::Beside(_) => failure.with_remedy(INSIST),
            RunsError::Folder(error) if error.is_full() => {
                failure.with_remedy("make room on the data disk")
            }
            RunsError::Broken(..) => failure.with_remedy(
                "look at the place it names; a journal that is damaged is restored from a backup",
            ),
            _ => failure,
        }
    }
}
