//! How a run reaches its nodes: each by the way that the site has said.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::Sender;

use hoist_engine::drive::Executor;
use hoist_engine::plan::Plan;
use hoist_engine::record::{End, FailureKind};
use hoist_engine::run::Found;
use hoist_engine::{Effect, Event};
use hoist_inventory::Registry;

use super::DeploySettings;
use super::entry::Entry;

/// What all runs share.
#[derive(Debug)]
pub(super) struct Grip {
    settings: DeploySettings,
    registry: Registry,
    /// Below it, each local node has its directory.
    local_root: PathBuf,
}

impl Grip {
    pub(super) fn new(settings: DeploySettings, registry: Registry, data_dir: &Path) -> Self {
        Self { settings, registry, local_root: data_dir.join("deploy").join("local") }
    }
}

/// What carries out the steps of one run.
pub(super) struct Hands {
    events: Sender<Event>,
    /// For each subject of the plan.
    ways: Vec<Way>,
}

/// How a node is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Way {
    /// Not at all, and why.
    None(String),
}

impl Hands {
    pub(super) fn new(grip: &Grip, entry: &Arc<Entry>, _outputs: &Path) -> Self {
        let ways = entry.plan.draft().subjects.iter().map(|name| grip.way(name)).collect();
        Self { events: entry.sender(), ways }
    }
}

impl Grip {
    /// The ways of all subjects of a plan.
    fn way(&self, name: &str) -> Way {
        let roster = self.registry.roster();
        if roster.by_name(name).is_none() {
            return Way::None(format!("there is no node `{name}` any more"));
        }
        let reason = format!(
            "nobody says how `{name}` is reached; set `deploy.local` or `deploy.ssh`, or start its agent"
        );
        Way::None(reason)
    }
}

impl Executor for Hands {
    fn act(&mut self, plan: &Plan, effect: Effect) {
        let (Effect::Check { step, .. }
        | Effect::Start { step, .. }
        | Effect::Verify { step, .. }
        | Effect::Ask { step, .. }
        | Effect::Kill { step, .. }) = effect;
        let subject = plan.step(step).and_then(|step| step.subject);
        let way = subject.map(|at| &self.ways[at as usize]);
        match way {
            Some(Way::None(reason)) => self.refuse(effect, reason.clone()),
            None => self.refuse(effect, "the step is on no node".to_owned()),
        }
    }
}

impl Hands {
    /// Answers for a node that cannot be reached.
    fn refuse(&self, effect: Effect, reason: String) {
        let event = match effect {
            Effect::Check { step, attempt } => {
                Event::Checked { step, attempt, refused: Some(reason) }
            }
            Effect::Start { step, attempt } => {
                let end = End::Failed { kind: FailureKind::Internal, reason };
                Event::Ran { step, attempt, end }
            }
            Effect::Verify { step, attempt } => {
                Event::Verified { step, attempt, holds: false, reason }
            }
            Effect::Ask { step, attempt } => Event::Found { step, attempt, found: Found::Gone },
            Effect::Kill { .. } => return,
        };
        // The run has ended, if nobody listens.
        let _ = self.events.send(event);
    }
}
