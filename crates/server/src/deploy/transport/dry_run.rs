//! The predicted changes of a run on its nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use hoist_api::deploy::{Change, PredictedChange};
use hoist_engine::StepId;
use hoist_engine::action::Prediction;
use hoist_engine::execute::{DryRun, Job, JobKind, PredictionError};
use hoist_engine::plan::{Call, Step};
use hoist_engine::pull::HEARTBEAT;
use hoist_engine::ssh::SshDryRun;
use serde_json::Value;

use super::{
    Arc, BaseDirectory, ExecutionSite, Outputs, Plan, RunContext, Way, action, chain, secret, way,
};
use crate::deploy::runs::now_ms;

/// No two dry runs of one controller have the same name.
static NUMBER: AtomicU64 = AtomicU64::new(0);

/// Instances that are listed; beyond it they are only counted.
pub(crate) const MAX_PREDICTED: usize = 10_000;
/// Bytes of one diff, and of all of them.
pub(crate) const MAX_DIFF: usize = 16 * 1024;
pub(crate) const MAX_DIFFS: usize = 1024 * 1024;
/// Instances that are not examined in this time are left out.
const LOOK_FOR: Duration = Duration::from_secs(10);

/// The predictions, and the number of instances that were not examined.
#[derive(Debug, Default)]
pub(in crate::deploy) struct DryRunResult {
    pub(in crate::deploy) predictions: Vec<PredictedChange>,
    pub(in crate::deploy) left_out: usize,
}

/// The remedy for an action that an agent does not know.
pub(in crate::deploy) const INSTALL_PLUGIN: &str =
    "install its plug-in there, and start the agent anew";

/// An action that cannot be done on a node.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::deploy) struct MissingAction {
    node: String,
    action: String,
}

impl fmt::Display for MissingAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { node, action } = self;
        write!(f, "action `{action}` not found on `{node}`")
    }
}

impl RunContext {
    /// Of all that is done in a plan but `kept`. Nothing is changed.
    pub(in crate::deploy) fn dry_run(&self, plan: &Plan, kept: &BTreeSet<StepId>) -> DryRunResult {
        let site = ExecutionSite {
            catalog: self.catalog(),
            secrets: Arc::clone(&self.secrets) as Arc<dyn action::Secrets>,
            outputs: Outputs::none(),
            base: BaseDirectory::Below(self.local_root.clone()),
        };
        let ready = secret::ensure_private_dir(&self.local_root);
        let ready = ready.map_err(|error| PredictionError(chain(&error)));
        let ways = self.ways(plan.draft().subjects.iter().map(String::as_str));
        let dry_run = DryRun::new(&site, plan);
        let deadline = Instant::now() + LOOK_FOR;
        let is_meant = |id: &StepId| {
            plan.step(*id).is_some_and(|step| step.skip.is_none()) && !kept.contains(id)
        };
        let mut meant: Vec<StepId> = plan.ids().filter(is_meant).collect();
        let mut left_out = meant.len().saturating_sub(MAX_PREDICTED);
        meant.truncate(MAX_PREDICTED);
        // Others look while we do.
        let (send, answers) = channel();
        let name = format!("dry-run-{}-{}", now_ms(), NUMBER.fetch_add(1, Ordering::Relaxed));
        let mut found: BTreeMap<StepId, PredictionResult> = BTreeMap::new();
        let mut by_agent = Vec::new();
        let mut by_ssh = Vec::new();
        for id in &meant {
            match way(&ways, plan, *id) {
                Some(Way::Agent) => match self.unasked(plan, *id) {
                    Some(reason) => _ = found.insert(*id, Err(PredictionError(reason))),
                    None => by_agent.push(job(&name, plan, *id)),
                },
                Some(Way::Ssh) => by_ssh.push(job(&name, plan, *id)),
                _ => {}
            }
        }
        let far = by_agent.iter().chain(&by_ssh);
        let mut asked: BTreeSet<StepId> = far.map(|job| job.number).collect();
        let ssh = SshDryRun::new(&name, self.ssh(), by_ssh, send.clone());
        self.gateway.dispatcher.predict(&name, by_agent, send);
        for id in &meant {
            let came = match way(&ways, plan, *id) {
                Some(Way::Local) if Instant::now() > deadline => {
                    left_out += 1;
                    continue;
                }
                Some(Way::Local) => ready.clone().and_then(|()| {
                    dry_run.of(*id, deadline).map_err(|failure| PredictionError(failure.reason))
                }),
                Some(Way::None(reason)) => Err(PredictionError(reason.clone())),
                Some(Way::Agent | Way::Ssh) => continue,
                None => Err(PredictionError("the step is on no node".to_owned())),
            };
            found.insert(*id, came);
        }
        while !asked.is_empty()
            && let left = deadline.saturating_duration_since(Instant::now())
            && let Ok((id, came)) = answers.recv_timeout(left)
        {
            asked.remove(&id);
            found.insert(id, hidden(&dry_run, came));
        }
        drop(ssh);
        self.gateway.dispatcher.close(&name);
        for id in asked {
            let reason = format!("`{}` did not answer in time", plan.subject(id));
            found.insert(id, Err(PredictionError(reason)));
        }
        let mut room = MAX_DIFFS;
        let tell = |(id, came)| told(plan, id, came, &mut room);
        DryRunResult { predictions: found.into_iter().map(tell).collect(), left_out }
    }

    /// Why the agent of a node need not be asked.
    fn unasked(&self, plan: &Plan, id: StepId) -> Option<String> {
        let node = plan.subject(id);
        let heard = self.gateway.dispatcher.heard(node);
        if heard.is_none_or(|at| at.elapsed() > 2 * HEARTBEAT) {
            return Some(format!("the agent of `{node}` sent no message recently"));
        }
        let action = self.missing_in(node, plan.step(id)?)?;
        Some(format!("action `{action}` not found on `{node}`"))
    }

    /// Actions that a plan wants of agents which have said that they do not have them.
    pub(in crate::deploy) fn missing(&self, plan: &Plan) -> BTreeSet<MissingAction> {
        let ways = self.ways(plan.draft().subjects.iter().map(String::as_str));
        let missing = |id: StepId| {
            let step = plan.step(id).filter(|step| step.skip.is_none())?;
            let node = plan.subject(id);
            if *way(&ways, plan, id)? != Way::Agent {
                return None;
            }
            let action = self.missing_in(node, step)?;
            Some(MissingAction { node: node.to_owned(), action: action.to_owned() })
        };
        plan.ids().filter_map(missing).collect()
    }

    fn missing_in<'s>(&self, node: &str, step: &'s Step) -> Option<&'s str> {
        let calls = [&step.call].into_iter().chain(&step.before).chain(&step.after);
        calls.flat_map(actions_of).find(|action| self.gateway.dispatcher.lacks(node, action))
    }
}

/// The job for a remote prediction.
fn job(name: &str, plan: &Plan, id: StepId) -> Job {
    Job {
        run: name.to_owned(),
        number: id,
        attempt: 0,
        what: JobKind::Predict,
        task: plan.vertex(id).name.clone(),
        subject: plan.subject(id).to_owned(),
        step: plan.step(id).cloned().unwrap_or_default(),
    }
}

/// The prediction for an instance, or the reason why there is none.
type PredictionResult = Result<Prediction, PredictionError>;

/// The actions of a call: of a list, those in it.
fn actions_of(call: &Call) -> impl Iterator<Item = &str> {
    let parts = call.input.get("steps").and_then(Value::as_array).into_iter().flatten();
    let parts = parts.filter_map(|part| part["action"].as_str());
    [call.action.as_str()].into_iter().chain(parts)
}

/// Without the secrets of the plan, of which an agent knows only those that it was given.
fn hidden(dry_run: &DryRun<'_>, came: PredictionResult) -> PredictionResult {
    match came {
        Ok(Prediction::Diff(diff)) => Ok(Prediction::Diff(dry_run.hide(&diff))),
        Ok(other) => Ok(other),
        Err(PredictionError(reason)) => Err(PredictionError(dry_run.hide(&reason))),
    }
}

fn told(plan: &Plan, id: StepId, came: PredictionResult, room: &mut usize) -> PredictedChange {
    let (change, text) = match came {
        Ok(Prediction::Diff(diff)) => (Change::Diff, diff),
        Ok(Prediction::NoChange) => (Change::None, String::new()),
        Ok(Prediction::CannotPredict) => {
            let action = plan.step(id).map_or("", |step| step.call.action.as_str());
            (Change::Unknown, format!("`{action}` cannot tell before it is done"))
        }
        Err(PredictionError(reason)) => (Change::Unknown, reason),
    };
    predicted(plan.vertex(id).name.clone(), change, text, room)
}

fn predicted(instance: String, change: Change, text: String, room: &mut usize) -> PredictedChange {
    let mut diff = String::new();
    let mut reason = String::new();
    match change {
        Change::Diff => {
            diff = cut(text, MAX_DIFF.min(*room));
            *room -= diff.len().min(*room);
        }
        Change::Unknown => reason = cut(text, MAX_DIFF),
        Change::None => {}
    }
    PredictedChange { instance, change, diff, reason }
}

/// The first lines, and how much is missing.
fn cut(mut text: String, most: usize) -> String {
    if text.len() <= most {
        return text;
    }
    let end = text[..text.floor_char_boundary(most)].rfind('\n').map_or(0, |at| at + 1);
    let missing = text.len() - end;
    text.truncate(end);
    text + &format!("({missing} bytes more)\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn diffs_are_cut_between_lines_and_bounded_in_total() {
        let long = "+ grün\n".repeat(MAX_DIFF);
        let mut room = MAX_DIFFS;
        let mut all = 0;
        for _ in 0..2 * MAX_DIFFS / MAX_DIFF {
            let one = predicted("a@n".to_owned(), Change::Diff, long.clone(), &mut room);
            let (head, tail) = one.diff.rsplit_once('(').expect("something is missing");
            assert!(head.len() <= MAX_DIFF && (head.is_empty() || head.ends_with('\n')));
            let missing = long.len() - head.len();
            assert_eq!(tail, format!("{missing} bytes more)\n"));
            all += head.len();
        }
        assert!(all <= MAX_DIFFS && all > MAX_DIFFS - MAX_DIFF, "{all}");
        let mut room = MAX_DIFFS;
        let exact = format!("{}\n", "x".repeat(MAX_DIFF - 1));
        let one = predicted("a@n".to_owned(), Change::Diff, exact.clone(), &mut room);
        assert_eq!(one.diff, exact, "at the limit nothing is missing");
    }
}
