//! How a run reaches its nodes: each by the way that the site has said.

mod dry_run;
mod ssh;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::Sender;

use hoist_deploy::actions;
use hoist_diagnostic::chain;
use hoist_engine::action::{self, Catalog};
use hoist_engine::drive::Executor;
use hoist_engine::execute::{BaseDirectory, ExecutionSite, LocalExecutor, Outputs};
use hoist_engine::plan::Plan;
use hoist_engine::plugin::{self, Isolation, Stamp};
use hoist_engine::pull::{DispatcherJournal, DispatcherRun};
use hoist_engine::record::{End, FailedCheck, FailureKind};
use hoist_engine::run::{AttemptStatus, State};
use hoist_engine::ssh::SshExecutor;
use hoist_engine::{Effect, Event, Run, StepId};
use hoist_metadata::Resolve;
use hoist_model::selector::Bound;
use hoist_model::{Secret, Selector};
use hoist_site::Registry;
use parking_lot::Mutex;

use super::DeploySettings;
use super::agent_work::AgentGateway;
use super::entry::Entry;
use super::folder::Folder;
use crate::vault::Vault;
use hoist_chassis::secret;

/// What variables with secrets begin with; every other reference is a file.
use hoist_model::metadata_layer::SECRET_VARIABLES;

pub(super) use dry_run::{DryRunResult, INSTALL_PLUGIN, MissingAction};

/// What all runs share.
#[derive(Debug)]
pub(super) struct RunContext {
    settings: DeploySettings,
    registry: Registry,
    /// Includes plug-ins. They are asked for their description on first use, and again after they
    /// changed.
    catalog: Mutex<Option<(Vec<Stamp>, Catalog)>>,
    secrets: Arc<VaultSecrets>,
    pub(super) gateway: AgentGateway,
    /// The data directory of the controller.
    data_dir: PathBuf,
    /// Below it, each local node has its directory.
    local_root: PathBuf,
}

/// The site's secrets, by a variable's name or that of a file.
#[derive(Debug)]
struct VaultSecrets(Arc<Vault>);

impl action::Secrets for VaultSecrets {
    fn get(&self, reference: &str) -> Result<String, action::Failure> {
        let secret = if reference.starts_with(SECRET_VARIABLES) {
            Secret::Env(reference.to_owned())
        } else {
            Secret::File(reference.to_owned())
        };
        self.0
            .resolve(&secret)
            .map_err(|error| action::Failure { kind: FailureKind::Internal, reason: chain(&error) })
    }
}

impl RunContext {
    pub(super) fn new(
        settings: DeploySettings,
        registry: Registry,
        vault: Arc<Vault>,
        gateway: AgentGateway,
        data_dir: &Path,
    ) -> Self {
        let local_root = data_dir.join("deploy").join("local");
        let data_dir = data_dir.to_owned();
        let secrets = Arc::new(VaultSecrets(vault));
        let catalog = Mutex::default();
        Self { settings, registry, catalog, secrets, gateway, data_dir, local_root }
    }

    /// What tasks can do. It waits for plug-ins that are new or were changed.
    pub(super) fn catalog(&self) -> Catalog {
        let Some(directory) = &self.settings.plugins else { return actions::catalog() };
        let mut known = self.catalog.lock();
        // Looked at before they are asked: what changes meanwhile is seen the next time.
        let stamps = plugin::stamps(directory);
        if let Some((then, catalog)) = &*known
            && *then == stamps
        {
            return catalog.clone();
        }
        let hidden = [&[self.data_dir.clone()][..], &self.settings.hidden].concat();
        let isolation = Arc::new(Isolation::find(self.settings.isolation, hidden));
        let (plugins, refused) = plugin::load(directory, &isolation, &actions::catalog());
        for error in refused {
            tracing::warn!(error = %chain(&error), "a plug-in cannot be used");
        }
        let action = |plugin| Arc::new(plugin) as Arc<dyn action::Action>;
        let catalog = actions::catalog_with(plugins.into_iter().map(action));
        *known = Some((stamps, catalog.clone()));
        catalog
    }

    /// How each node of these is reached.
    fn ways<'n>(&self, names: impl IntoIterator<Item = &'n str>) -> Vec<Way> {
        let roster = self.registry.roster();
        let bind = |key: &str, selector: &Option<Selector>| match selector {
            None => Ok(None),
            Some(selector) => selector
                .bind(&*roster)
                .map(Some)
                .map_err(|error| format!("setting `{key}`: invalid selector: {error}")),
        };
        let local = bind("deploy.local", &self.settings.local);
        let ssh = bind("deploy.ssh", &self.settings.ssh);
        let way = |name: &str| {
            let Some(node) = roster.by_name(name) else {
                return Way::None(format!("node `{name}` not found"));
            };
            let is = |bound: &Option<Bound>| {
                bound.as_ref().is_some_and(|bound| bound.matches(&roster.subject(node)))
            };
            match (&local, &ssh) {
                (Ok(local), _) if is(local) => Way::Local,
                (Err(reason), _) | (_, Err(reason)) => Way::None(reason.clone()),
                (_, Ok(ssh)) if is(ssh) => Way::Ssh,
                _ => Way::Agent,
            }
        };
        names.into_iter().map(way).collect()
    }

    pub(super) fn is_by_agent(&self, node: &str) -> bool {
        self.ways([node]) == [Way::Agent]
    }
}

/// How a node is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Way {
    /// It is a directory on this machine.
    Local,
    /// The controller connects with SSH.
    Ssh,
    /// Its agent comes for its work.
    Agent,
    /// Not at all, and why.
    None(String),
}

/// What carries out the steps of one run.
#[derive(Debug)]
pub(super) struct Transport {
    events: Sender<Event>,
    /// For each subject of the plan.
    ways: Vec<Way>,
    local: io::Result<LocalExecutor>,
    ssh: SshExecutor,
    dispatcher: DispatcherRun,
}

impl Transport {
    /// Agents are heard from here on, also before a thread drives the run.
    pub(super) fn new(
        context: &RunContext,
        entry: &Arc<Entry>,
        folder: &Folder,
        run: &Run,
    ) -> Self {
        let events = entry.sender();
        let site = ExecutionSite {
            catalog: context.catalog(),
            secrets: Arc::clone(&context.secrets) as Arc<dyn action::Secrets>,
            outputs: Outputs::in_dir(folder.outputs()),
            base: BaseDirectory::Below(context.local_root.clone()),
        };
        let local = secret::ensure_private_dir(&context.local_root).and_then(|()| {
            let ledger = folder.ledger();
            let supervisor = context.settings.supervisor.clone();
            LocalExecutor::new(&entry.file.id, site, &ledger, events.clone(), supervisor)
        });
        let outputs = Outputs::in_dir(folder.outputs());
        let plan = &*entry.plan;
        let ways = context.ways(plan.draft().subjects.iter().map(String::as_str));
        let begun = |by: &Way| {
            let is_there =
                |id: &StepId| run.state(*id) == State::Running && way(&ways, plan, *id) == Some(by);
            let begun = plan.ids().filter(is_there);
            begun.map(|id| ((id, run.attempt(id)), run.given(id).map(str::to_owned))).collect()
        };
        let (id, by_ssh) = (&entry.file.id, begun(&Way::Ssh));
        let ssh =
            SshExecutor::new(id, context.ssh(), events.clone(), outputs.clone(), plan, by_ssh);
        let by_agent = begun(&Way::Agent);
        let dispatcher =
            context.gateway.dispatcher.open(id, events.clone(), outputs, plan, by_agent);
        Self { events, ways, local, ssh, dispatcher }
    }

    /// The same journal; nodes may forget results after it has stored them.
    pub(super) fn kept<J>(&self, plan: &Arc<Plan>, journal: J) -> DispatcherJournal<J> {
        self.dispatcher.wrap_journal(plan, journal).and(self.ssh.work())
    }

    /// Lets nodes behind ssh forget the run, which is over.
    pub(super) fn forget(&self) {
        self.ssh.forget();
    }

    /// Answers for a node that cannot be reached.
    fn refuse(&self, effect: Effect, reason: String) {
        let event = match effect {
            Effect::Check { step, attempt } => {
                Event::Checked { step, attempt, failed: Some(FailedCheck::not_made(reason)) }
            }
            Effect::Start { step, attempt } => {
                let end = End::NotBegun { reason: Some(reason) };
                Event::Ran { step, attempt, end }
            }
            Effect::Verify { step, attempt } => {
                Event::Verified { step, attempt, failed: Some(FailedCheck::not_made(reason)) }
            }
            Effect::Ask { step, attempt } => {
                Event::Found { step, attempt, found: AttemptStatus::Gone }
            }
            Effect::Kill { .. } => return,
        };
        // The run has ended if the receiver is gone.
        let _ = self.events.send(event);
    }
}

/// How the node of a step is reached.
fn way<'w>(ways: &'w [Way], plan: &Plan, step: StepId) -> Option<&'w Way> {
    plan.step(step).and_then(|step| step.subject).map(|at| &ways[at as usize])
}

impl Executor for Transport {
    fn act(&mut self, plan: &Plan, effect: Effect) {
        let (step, _) = effect.target();
        match (way(&self.ways, plan, step), &mut self.local) {
            (Some(Way::Local), Ok(local)) => local.act(plan, effect),
            (Some(Way::Local), Err(error)) => {
                let reason = format!("the controller cannot run steps: {}", chain(error));
                self.refuse(effect, reason);
            }
            (Some(Way::Ssh), _) => self.ssh.act(plan, effect),
            (Some(Way::Agent), _) => self.dispatcher.act(plan, effect),
            (Some(Way::None(reason)), _) => self.refuse(effect, reason.clone()),
            (None, _) => self.refuse(effect, "the step is on no node".to_owned()),
        }
    }
}
