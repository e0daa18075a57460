//! `hoist deploy check`: whether what was deployed still holds.

use std::collections::BTreeSet;
use std::path::PathBuf;

use clap::Args;
use hoist_api::client::Client;
use hoist_api::deploy::{Instance, PlanRequest, RunDetail, RunState};
use hoist_deploy::checks::{Checks, checks_only};
use hoist_engine::plan::{Draft, Kind, StepId};
use hoist_model::Exit;
use serde_json::json;

use super::files::{self, SelectionArgs};
use super::graph::all_instances;
use super::offline;
use super::{exit, word};
use crate::commands::Shell;
use crate::failure::Failure;
use crate::printer::{Output, Printer, Tone};

/// How long one question waits for the end.
const WAIT: &str = "20s";

/// See whether what was deployed still holds, and change nothing
///
/// Only the checks after each task are looked at, once, on all of their nodes: of task files, or of
/// what came to a good end in a run. It is a run of its own, with a journal like every other.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  hoist deploy check site.yaml\n  hoist deploy check last\n  \
    hoist deploy check site.yaml --tasks 'db-*' --on rack=r3 -o json\n\n\
    Ends with 0 if everything holds, 1 if something does not.")]
pub(super) struct CheckArgs {
    /// Task files, the later over the earlier; or one run: its id, the end of it, or `last`
    #[arg(value_name = "FILE|RUN", required = true)]
    of: Vec<PathBuf>,

    /// Settings over those of the files: `api.port=8080`, or a YAML file
    #[arg(long = "set", value_name = "KEY=VALUE|FILE")]
    settings: Vec<String>,

    #[command(flatten)]
    selection: SelectionArgs,

    /// Show what would be looked at, and look at nothing
    #[arg(long)]
    dry_run: bool,
}

impl CheckArgs {
    pub(super) async fn run(self, shell: &mut Shell) -> Result<Exit, Failure> {
        let client = shell.client()?;
        let (title, Checks { draft, unchecked }) = match self.run_name() {
            Some(run) => self.of_run(&client, &run).await?,
            None => match self.of_files(shell, &client).await? {
                Ok(found) => found,
                Err(exit) => return Ok(exit),
            },
        };
        if draft.vertices.is_empty() {
            return Err(Failure::usage("there is nothing to look at")
                .with_hint("give tasks a `check: {after: […]}`"));
        }
        if self.dry_run {
            let names = draft.vertices.iter().map(|vertex| vertex.name.as_str());
            return would(&mut shell.printer, &names.collect::<Vec<_>>(), &unchecked);
        }
        let plan = serde_json::to_value(&draft).map_err(Failure::Json)?;
        let request = PlanRequest { title, plan: Some(plan), ..PlanRequest::default() };
        let run = client.start_run(&request).await?;
        let detail = tokio::select! {
            ended = until_rest(&client, &run.id) => ended?,
            _ = tokio::signal::ctrl_c() => {
                let id = &run.id;
                shell.printer.note(&format!("it goes on; `hoist deploy show {id}` shows what it finds"));
                return Ok(Exit::Unknown);
            }
        };
        let instances = all_instances(&client, &run.id).await?;
        show(&mut shell.printer, &detail, &instances, &unchecked)?;
        Ok(exit(&detail.summary))
    }

    /// A single word that is no file is a run.
    fn run_name(&self) -> Option<String> {
        match &self.of[..] {
            [one] if one.as_os_str() != "-" && !one.exists() => {
                let name = one.to_str()?;
                name.bytes().all(|byte| byte.is_ascii_alphanumeric()).then(|| name.to_owned())
            }
            _ => None,
        }
    }

    async fn of_files(
        &self,
        shell: &mut Shell,
        client: &Client,
    ) -> Result<Result<(String, Checks), Exit>, Failure> {
        let mut selection = self.selection.selection()?;
        // What is unchanged is looked at as well.
        (selection.repeat, selection.without_prerequisites) = (true, true);
        let request = files::request(&self.of, &self.settings, selection)?;
        let answer = client.plan_deploy(&request).await?;
        let Some(plan) = answer.plan else {
            return files::print_plan(shell, &answer).map(Err);
        };
        let draft = offline::draft(plan)?;
        let checks = checks_only(&draft, |id| is_done(&draft, id));
        Ok(Ok((format!("check {}", request.title), checks)))
    }

    async fn of_run(&self, client: &Client, run: &str) -> Result<(String, Checks), Failure> {
        if self.selection.is_given() || !self.settings.is_empty() {
            return Err(Failure::usage("a run is looked at as it was")
                .with_hint("select tasks and nodes with task files"));
        }
        let title = client.run(run).await?.summary.title;
        let draft = offline::draft(client.run_plan(run).await?)?;
        let instances = all_instances(client, run).await?;
        let good = instances.iter().filter(|one| matches!(one.state.as_str(), "ok" | "unchanged"));
        let good: BTreeSet<u32> = good.map(|one| one.step).collect();
        Ok((format!("check {title}"), checks_only(&draft, |id| good.contains(&id.0))))
    }
}

/// Whether a step is part of the plan at all.
fn is_done(draft: &Draft, id: StepId) -> bool {
    matches!(&draft.vertices[id.0 as usize].kind, Kind::Step(step) if step.skip.is_none())
}

async fn until_rest(client: &Client, run: &str) -> Result<RunDetail, Failure> {
    let mut after = 0;
    loop {
        let found = client.run_events(run, after, WAIT).await?;
        after = found.items.last().map_or(after, |event| event.seq);
        let rests = matches!(found.state, RunState::Ended | RunState::Broken | RunState::Waiting);
        if rests && after >= found.last {
            return Ok(client.run(run).await?);
        }
    }
}

fn would(printer: &mut Printer, names: &[&str], unchecked: &[String]) -> Result<Exit, Failure> {
    match printer.output() {
        Output::Json | Output::Yaml => {
            printer.value(&json!({"instances": names, "unchecked": unchecked}))?;
        }
        Output::Name => names.iter().try_for_each(|name| printer.line(name))?,
        Output::Table | Output::Wide => {
            names.iter().try_for_each(|name| printer.line(format!("  {name}")))?;
            printer.line(format!(
                "would look at {} instances; {} have no check",
                names.len(),
                unchecked.len()
            ))?;
        }
    }
    Ok(Exit::WouldChange)
}

fn show(
    printer: &mut Printer,
    detail: &RunDetail,
    instances: &[Instance],
    unchecked: &[String],
) -> Result<(), Failure> {
    let holds = |one: &&Instance| matches!(one.state.as_str(), "ok" | "unchanged");
    let (good, bad): (Vec<&Instance>, Vec<&Instance>) = instances.iter().partition(holds);
    match printer.output() {
        Output::Json | Output::Yaml => {
            let list = instances.iter().map(|one| {
                let mut value = json!({"name": one.name, "node": one.node, "holds": holds(&one)});
                if let Some(reason) = &one.reason {
                    value["reason"] = reason.as_str().into();
                }
                value
            });
            return printer.value(&json!({
                "run": detail.summary.id,
                "good": bad.is_empty(),
                "outcome": word(&detail.summary),
                "instances": list.collect::<Vec<_>>(),
                "unchecked": unchecked,
            }));
        }
        Output::Name => return bad.iter().try_for_each(|one| printer.line(&one.name)),
        Output::Table | Output::Wide => {}
    }
    for one in &bad {
        let reason = one.reason.as_deref().unwrap_or("no reason is known");
        printer.toned(Tone::Removed, &format!("  {} does not hold: {reason}", one.name))?;
    }
    if printer.output() == Output::Wide {
        for one in &good {
            printer.toned(Tone::Added, &format!("  {} holds", one.name))?;
        }
        for name in unchecked {
            printer.toned(Tone::Faint, &format!("  {name} has no check"))?;
        }
    }
    let tone = if bad.is_empty() { Tone::Added } else { Tone::Removed };
    let none = match unchecked.len() {
        0 => String::new(),
        count => format!("; {count} have no check"),
    };
    printer.toned(
        tone,
        &format!("{} hold, {} do not{none} (run {})", good.len(), bad.len(), detail.summary.id),
    )
}
