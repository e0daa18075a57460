//! `hoist deploy check`: checks whether deployed state still holds.

use std::collections::BTreeSet;
use std::path::PathBuf;

use clap::Args;
use hoist_api::JsonText;
use hoist_api::client::Client;
use hoist_api::deploy::{FailedCheck, Instance, PlanRequest, RunDetail, Selection};
use hoist_deploy::checks::{Checks, checks_only, every_check, which_check};
use hoist_engine::plan::{Draft, Kind, StepId};
use hoist_model::Exit;
use serde_json::{Value, json};

use super::files::{self, SelectionArgs};
use super::offline;
use super::show::instances;
use super::{exit, interrupt, plain, word};
use crate::commands::Shell;
use crate::failure::Failure;
use crate::printer::{Output, Printer, Tone};

/// How long one question waits for the end.
const WAIT: &str = "20s";

/// Check whether deployed state still holds, and change nothing
///
/// Probes the postconditions of each task once, on all of its nodes. The tasks come from task files
/// or from the succeeded instances of a run. The check is a run of its own, with its own journal.
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

    /// List the checks, and probe nothing
    #[arg(long)]
    dry_run: bool,
}

/// The run that was started, or that a dry run would start.
struct StartedCheck {
    run: String,
    instances: Vec<String>,
    unchecked: Vec<String>,
}

impl CheckArgs {
    pub(super) async fn run(self, shell: &mut Shell) -> Result<Exit, Failure> {
        let client = shell.client()?;
        let begun = match self.run_name() {
            Some(run) => self.of_run(&client, &run).await?,
            None => match self.of_files(shell, &client).await? {
                Ok(begun) => begun,
                Err(exit) => return Ok(exit),
            },
        };
        if self.dry_run {
            return would(&mut shell.printer, &begun);
        }
        let Some((detail, found)) = look(shell, &client, &begun.run).await? else {
            return Ok(Exit::Unknown);
        };
        show(&mut shell.printer, &detail, &found, &begun.unchecked)?;
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
    ) -> Result<Result<StartedCheck, Exit>, Failure> {
        let mut selection = self.selection.selection()?;
        // Unchanged instances are checked as well.
        (selection.repeat, selection.without_prerequisites) = (true, true);
        let request = files::request(&self.of, &self.settings, selection)?;
        let answer = client.plan_deploy(&request).await?;
        let Some(draft) = offline::draft(&answer)? else {
            return files::print_plan(shell, &answer, None).map(Err);
        };
        let checks = checks_only(&draft, |id| is_done(&draft, id));
        begin(client, &request.title, checks, self.dry_run).await.map(Ok)
    }

    /// Checks the succeeded instances of a run.
    async fn of_run(&self, client: &Client, run: &str) -> Result<StartedCheck, Failure> {
        let Selection { on, .. } = self.selection.selection()?;
        let only_on = Selection { on: on.clone(), ..Selection::default() };
        if self.selection.selection()? != only_on || !self.settings.is_empty() {
            return Err(Failure::usage("a check of a run accepts no selection except `--on`")
                .with_hint("name the task files instead"));
        }
        let summary = client.run(run).await?.summary;
        let draft: Draft = client.run_plan(&summary.id).await?;
        let nodes = match &on {
            Some(on) => Some(offline::node_names(client, on).await?),
            None => None,
        };
        let is_wanted = |one: &&Instance| {
            let is_there = |nodes: &BTreeSet<String>| {
                one.node.as_ref().is_some_and(|node| nodes.contains(node))
            };
            matches!(one.state.as_str(), "ok" | "unchanged") && nodes.as_ref().is_none_or(is_there)
        };
        let found = instances(client, &summary.id, None).await?;
        let wanted: BTreeSet<u32> = found.iter().filter(is_wanted).map(|one| one.step).collect();
        if wanted.is_empty() {
            let id = &summary.id;
            return Err(Failure::usage(format!("run {id} has no succeeded instance to check"))
                .with_hint("name the task files, or the run that did the skipped instances"));
        }
        let checks = checks_only(&draft, |id| wanted.contains(&id.0));
        begin(client, &summary.title, checks, self.dry_run).await
    }
}

async fn begin(
    client: &Client,
    of: &str,
    checks: Checks,
    dry_run: bool,
) -> Result<StartedCheck, Failure> {
    let Checks { draft, unchecked } = checks;
    if draft.vertices.is_empty() {
        return Err(Failure::usage("no chosen task has a check")
            .with_hint("give tasks a `check: {after: […]}`"));
    }
    let instances = draft.vertices.iter().map(|vertex| vertex.name.clone()).collect();
    let plan = JsonText::new(&draft).map_err(Failure::Json)?;
    let title = format!("check {of}");
    let plan = Some(plan);
    let request = PlanRequest { title, plan, check: true, ..Default::default() };
    let run = if dry_run { String::new() } else { client.start_run(&request).await?.id };
    Ok(StartedCheck { run, instances, unchecked })
}

/// Waits for the results of a check; `None` after an interrupt.
async fn look(
    shell: &mut Shell,
    client: &Client,
    id: &str,
) -> Result<Option<(RunDetail, Vec<Instance>)>, Failure> {
    interrupt::leave_at_the_second();
    let detail = tokio::select! {
        ended = until_rest(client, id) => ended?,
        _ = tokio::signal::ctrl_c() => {
            shell.printer.note(&format!("the check continues; `hoist deploy show {id}` shows its results"));
            return Ok(None);
        }
    };
    let found = instances(client, id, None).await?;
    Ok(Some((detail, found)))
}

/// Probes all preconditions and postconditions of a plan, and runs no task.
pub(super) async fn of_plan(shell: &mut Shell, request: &PlanRequest) -> Result<Exit, Failure> {
    let client = shell.client()?;
    let answer = client.plan_deploy(request).await?;
    let Some(draft) = offline::draft(&answer)? else {
        return files::print_plan(shell, &answer, None);
    };
    let checks = every_check(&draft, |id| is_done(&draft, id));
    let begun = begin(&client, &request.title, checks, false).await?;
    let Some((detail, found)) = look(shell, &client, &begun.run).await? else {
        return Ok(Exit::Unknown);
    };
    show_each(&mut shell.printer, &detail, &found, &begun.unchecked)?;
    Ok(exit(&detail.summary))
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
        if found.rests && after >= found.last {
            return Ok(client.run(run).await?);
        }
    }
}

fn would(printer: &mut Printer, begun: &StartedCheck) -> Result<Exit, Failure> {
    let StartedCheck { instances, unchecked, .. } = begun;
    match printer.output() {
        Output::Json | Output::Yaml => {
            printer.value(&json!({"instances": instances, "unchecked": unchecked}))?;
        }
        Output::Name => instances.iter().try_for_each(|name| printer.line(name))?,
        Output::Table | Output::Wide => {
            instances.iter().try_for_each(|name| printer.line(format!("  {name}")))?;
            let looked = instances.len();
            let none = unchecked.len();
            printer.line(format!("would check {looked} instances; {none} have no check"))?;
        }
    }
    Ok(Exit::WouldChange)
}

fn holds(one: &Instance) -> bool {
    matches!(one.state.as_str(), "ok" | "unchanged")
}

/// The result of a failed check. Each check is a step of its own here, so its kind says nothing.
fn why_not(one: &Instance) -> String {
    match (&one.check, &one.reason) {
        (Some(check), _) => check.result(),
        (None, Some(reason)) => reason.clone(),
        (None, None) => "no reason is known".to_owned(),
    }
}

/// Adds the title, the observed output and the exit code of a check that did not hold.
fn add_check(value: &mut Value, one: &Instance) {
    if let Some(FailedCheck { title, output, exit_code, .. }) = &one.check {
        value["title"] = title.as_str().into();
        value["output"] = output.as_str().into();
        value["exit_code"] = (*exit_code).into();
    }
}

/// Precondition or postcondition, its number, and the instance.
type Look<'a> = (&'a str, u32, &'a Instance);

/// Each check of each instance.
fn show_each(
    printer: &mut Printer,
    detail: &RunDetail,
    looks: &[Instance],
    unchecked: &[String],
) -> Result<(), Failure> {
    let mut instances: Vec<(&str, Vec<Look<'_>>)> = Vec::new();
    for one in looks {
        let Some((name, when, number)) = which_check(&one.name) else { continue };
        if instances.last().is_none_or(|(last, _)| *last != name) {
            instances.push((name, Vec::new()));
        }
        instances.last_mut().expect("one was just put there").1.push((when, number, one));
    }
    match printer.output() {
        Output::Json | Output::Yaml => {
            let check = |(when, number, one): &Look<'_>| {
                let mut value = json!({"when": when, "number": number, "holds": holds(one)});
                if !holds(one) {
                    value["reason"] = why_not(one).into();
                    add_check(&mut value, one);
                }
                value
            };
            let list = instances.iter().map(|(name, checks)| {
                let node = checks.first().and_then(|(_, _, one)| one.node.as_deref());
                let checks: Vec<_> = checks.iter().map(check).collect();
                json!({"name": name, "node": node, "checks": checks})
            });
            return printer.value(&json!({
                "run": detail.summary.id,
                "good": looks.iter().all(holds),
                "outcome": word(&detail.summary),
                "instances": list.collect::<Vec<_>>(),
                "unchecked": unchecked,
            }));
        }
        Output::Name => {
            let is_bad = |checks: &[Look<'_>]| !checks.iter().all(|one| holds(one.2));
            let mut bad = instances.iter().filter(|(_, checks)| is_bad(checks));
            return bad.try_for_each(|(name, _)| printer.line(name));
        }
        Output::Table | Output::Wide => {}
    }
    for (name, checks) in &instances {
        printer.line(*name)?;
        for (when, number, one) in checks {
            if holds(one) {
                printer.toned(Tone::Added, &format!("  {when} {number} holds"))?;
            } else {
                let reason = plain(&why_not(one));
                let line = format!("  {when} {number} does not hold: {reason}");
                printer.toned(Tone::Removed, &line)?;
            }
        }
    }
    let good = looks.iter().filter(|one| holds(one)).count();
    summed_up(printer, detail, (good, looks.len() - good), unchecked)
}

fn summed_up(
    printer: &mut Printer,
    detail: &RunDetail,
    (good, bad): (usize, usize),
    unchecked: &[String],
) -> Result<(), Failure> {
    let tone = if bad == 0 { Tone::Added } else { Tone::Removed };
    let none = match unchecked.len() {
        0 => String::new(),
        count => format!("; {count} have no check"),
    };
    printer.toned(tone, &format!("{good} hold, {bad} do not{none} (run {})", detail.summary.id))
}

fn show(
    printer: &mut Printer,
    detail: &RunDetail,
    instances: &[Instance],
    unchecked: &[String],
) -> Result<(), Failure> {
    let (good, bad): (Vec<&Instance>, Vec<&Instance>) =
        instances.iter().partition(|one| holds(one));
    match printer.output() {
        Output::Json | Output::Yaml => {
            let list = instances.iter().map(|one| {
                let mut value = json!({"name": one.name, "node": one.node, "holds": holds(one)});
                if !holds(one) {
                    value["reason"] = why_not(one).into();
                }
                add_check(&mut value, one);
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
        let reason = plain(&why_not(one));
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
    summed_up(printer, detail, (good.len(), bad.len()), unchecked)
}
