//! `hoist deploy list`, `show` and `explain`.

use std::io::IsTerminal as _;

use clap::Args;
use hoist_api::client::{Client, InstanceQuery};
use hoist_api::deploy::{
    FailedInstance, Instance, InstanceExplanation, RunDetail, RunState, RunSummary,
};
use hoist_model::Exit;
use jiff::Timestamp;

use super::{counted, counts, plain, plain_lines, word};
use crate::commands::Shell;
use crate::failure::Failure;
use crate::printer::{Output, Printer, Tone};
use crate::table::Table;
use crate::when;

/// Held and running instances that are shown; `-o wide` shows all of them.
const SHOWN: usize = 10;

/// List runs, the newest first
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  hoist deploy list\n  hoist deploy list --limit 5 -o json")]
pub(super) struct ListArgs {
    /// Most of them
    #[arg(long, value_name = "N")]
    limit: Option<usize>,
}

impl ListArgs {
    pub(super) async fn run(self, shell: &mut Shell) -> Result<Exit, Failure> {
        let runs = shell.client()?.runs(self.limit).await?.items;
        let printer = &mut shell.printer;
        match printer.output() {
            Output::Json | Output::Yaml => printer.value(&runs)?,
            Output::Name => runs.iter().try_for_each(|run| printer.line(&run.id))?,
            Output::Table | Output::Wide => printer.table(&table(&runs, Timestamp::now()))?,
        }
        Ok(Exit::Done)
    }
}

fn table(runs: &[RunSummary], now: Timestamp) -> Table {
    let columns = ["RUN", "TITLE", "STATE", "INSTANCES", "NODES", "AGE"];
    let mut table = Table::new(&columns).wide(&["BY", "UNDOES", "PLAN"]);
    for run in runs {
        let created = run.created.parse::<Timestamp>().ok();
        let age = created.map(|at| now.duration_since(at).as_secs().max(0).unsigned_abs());
        table.row(vec![
            run.id.clone(),
            plain(&run.title),
            word(run).to_owned(),
            run.broken.as_deref().map_or_else(|| counts(run), plain),
            run.nodes.to_string(),
            age.map(when::age).unwrap_or_default(),
            run.by.clone(),
            run.undoes.clone().unwrap_or_default(),
            run.plan.get(..12).unwrap_or_default().to_owned(),
        ]);
    }
    table
}

/// Show a run, failures first; or one instance with its output
///
/// `-o wide` lists every instance.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  hoist deploy show last\n  hoist deploy show last -o wide\n  \
    hoist deploy show last db-init@n1 --attempt 1")]
pub(super) struct ShowArgs {
    #[arg(value_name = "RUN", value_parser = super::named, default_value = "last")]
    run: String,
    #[arg(value_name = "INSTANCE", value_parser = super::named)]
    instance: Option<String>,
    /// Which attempt's output; the last one if left out
    #[arg(long, value_name = "N", requires = "instance")]
    attempt: Option<u32>,
    /// Only instances in these states
    #[arg(long, value_name = "STATES", conflicts_with = "instance")]
    state: Option<String>,
}

impl ShowArgs {
    pub(super) async fn run(self, shell: &mut Shell) -> Result<Exit, Failure> {
        let client = shell.client()?;
        if let Some(instance) = &self.instance {
            return show_instance(shell, &client, &self.run, instance, self.attempt).await;
        }
        let detail = client.run(&self.run).await?;
        let all = shell.printer.output() != Output::Table || self.state.is_some();
        let instances = if all && detail.summary.state != RunState::Broken {
            instances(&client, &detail.summary.id, self.state.as_deref()).await?
        } else {
            Vec::new()
        };
        let printer = &mut shell.printer;
        match printer.output() {
            Output::Json | Output::Yaml => {
                let mut value = serde_json::to_value(&detail).map_err(Failure::Json)?;
                value["instances"] = serde_json::to_value(&instances).map_err(Failure::Json)?;
                printer.value(&value)?;
            }
            Output::Name => instances.iter().try_for_each(|found| printer.line(&found.name))?,
            Output::Table | Output::Wide => {
                print(printer, &detail)?;
                if !instances.is_empty() {
                    printer.line("")?;
                    printer.table(&instance_table(&instances))?;
                }
            }
        }
        Ok(Exit::Done)
    }
}

/// All of them, page by page.
pub(super) async fn instances(
    client: &Client,
    run: &str,
    state: Option<&str>,
) -> Result<Vec<Instance>, Failure> {
    let mut all = Vec::new();
    let mut after = None;
    loop {
        let page = client.run_instances(run, InstanceQuery { state, node: None, after }).await?;
        all.extend(page.items);
        after = page.next;
        if after.is_none() {
            return Ok(all);
        }
    }
}

fn instance_table(instances: &[Instance]) -> Table {
    let columns = ["INSTANCE", "STATE", "ATTEMPT", "TOOK", "REASON"];
    let mut table = Table::new(&columns).wide(&["ACTION", "#"]);
    for one in instances {
        table.row(vec![
            one.name.clone(),
            one.state.clone(),
            one.attempt.to_string(),
            took(one).unwrap_or_default(),
            one.held_by.as_deref().or(one.reason.as_deref()).map(plain).unwrap_or_default(),
            one.action.clone(),
            one.step.to_string(),
        ]);
    }
    table
}

/// How long the last attempt took.
pub(super) fn took(instance: &Instance) -> Option<String> {
    let started = instance.started?;
    let ended = instance.ended?;
    Some(duration(ended.saturating_sub(started)))
}

pub(super) fn duration(ms: u64) -> String {
    match ms {
        0..1000 => format!("{ms}ms"),
        1000..60_000 => format!("{}.{}s", ms / 1000, ms % 1000 / 100),
        _ => format!("{}m{:02}s", ms / 60_000, ms % 60_000 / 1000),
    }
}

/// A run at a glance.
pub(super) fn print(printer: &mut Printer, detail: &RunDetail) -> Result<(), Failure> {
    let run = &detail.summary;
    printer.toned(Tone::Strong, &format!("{}  {}  {}", run.id, plain(&run.title), word(run)))?;
    if let Some(broken) = &run.broken {
        return printer.toned(Tone::Removed, &format!("  {}", plain(broken)));
    }
    printer.line(format!(
        "  {} on {}; started by {} at {}",
        counts(run),
        counted(run.nodes, "node"),
        run.by,
        run.created
    ))?;
    failures(printer, &detail.failures)?;
    undone(printer, detail)?;
    list(printer, "running", &detail.running)?;
    list(printer, "held back", &detail.held)?;
    if !detail.holds.is_empty() {
        printer.line(format!("  held until released: {}", detail.holds.join(", ")))?;
    }
    if let [_, .., _] = detail.critical[..] {
        let shown: Vec<&str> = detail.critical.iter().take(SHOWN).map(String::as_str).collect();
        let more = if detail.critical.len() > SHOWN { " -> …" } else { "" };
        printer.line(format!("  longest way left: {}{more}", shown.join(" -> ")))?;
    }
    Ok(())
}

/// Why an instance did not succeed.
pub(super) fn reason_of(instance: &Instance) -> &str {
    match (&instance.reason, instance.state.as_str()) {
        (Some(reason), _) => reason,
        (None, "interrupted") => "ended by `stop --now`",
        (None, _) => "no reason is known",
    }
}

pub(super) fn undone(printer: &mut Printer, detail: &RunDetail) -> Result<(), Failure> {
    let Some(by) = &detail.undone_by else { return Ok(()) };
    printer.line(format!("  undone by run {by}; `hoist deploy show {by}` lists its steps"))
}

/// Failures with the end of their output and the instances that they block.
pub(super) fn failures(printer: &mut Printer, failures: &[FailedInstance]) -> Result<(), Failure> {
    for FailedInstance { instance, output, blocks, blocked_nodes } in failures {
        let reason = reason_of(instance);
        let line = format!(
            "  {} {} (attempt {}): {reason}",
            instance.state, instance.name, instance.attempt
        );
        printer.toned(Tone::Removed, &plain(&line))?;
        for line in output {
            printer.line(format!("    | {}", plain(line)))?;
        }
        if *blocks > 0 {
            let nodes = counted(*blocked_nodes, "node");
            printer.line(format!("    blocks {} on {nodes}", counted(*blocks, "instance")))?;
        }
    }
    Ok(())
}

fn list(printer: &mut Printer, what: &str, instances: &[Instance]) -> Result<(), Failure> {
    for one in instances.iter().take(SHOWN) {
        let why = one.held_by.as_deref().map(|why| format!(": {}", plain(why))).unwrap_or_default();
        printer.line(format!("  {what} {}{why}", one.name))?;
    }
    if instances.len() > SHOWN {
        printer.line(format!("  … and {} more", instances.len() - SHOWN))?;
    }
    Ok(())
}

async fn show_instance(
    shell: &mut Shell,
    client: &Client,
    run: &str,
    instance: &str,
    attempt: Option<u32>,
) -> Result<Exit, Failure> {
    let explained = client.explain_instance(run, instance).await?;
    let one = &explained.instance;
    if let Some(given) = attempt
        && !(1..=one.attempt).contains(&given)
    {
        let what = format!("attempt {given} of {}", one.name);
        let hint = match one.attempt {
            0 => "the instance has not been attempted".to_owned(),
            1 => "there is attempt 1 only".to_owned(),
            last => format!("there are the attempts 1 to {last}"),
        };
        return Err(Failure::missing(what).with_hint(hint));
    }
    if matches!(shell.printer.output(), Output::Json | Output::Yaml) {
        shell.printer.value(one)?;
        return Ok(Exit::Done);
    }
    for line in &explained.because {
        shell.printer.line(plain(line))?;
    }
    for each in &one.attempts {
        let took = match (each.started, each.ended) {
            (Some(started), Some(ended)) => duration(ended.saturating_sub(started)),
            _ => "under way".to_owned(),
        };
        let reason =
            if each.reason.is_empty() { String::new() } else { format!(": {}", each.reason) };
        let line = format!("  attempt {} {} in {took}{reason}", each.attempt, each.end);
        shell.printer.line(plain(&line))?;
    }
    let attempt = attempt.unwrap_or(one.attempt);
    if attempt == 0 {
        return Ok(Exit::Done);
    }
    match client.run_output(run, &one.step.to_string(), attempt).await {
        // Output to a file or pipe stays unchanged.
        Ok(bytes) if std::io::stdout().is_terminal() => {
            shell.printer.text(&plain_lines(&String::from_utf8_lossy(&bytes)))?;
        }
        Ok(bytes) => shell.printer.bytes(&bytes)?,
        Err(error) if error.code() == Some(&hoist_api::Code::NotFound) => {
            shell.printer.note("it printed nothing");
        }
        Err(error) => return Err(error.into()),
    }
    Ok(Exit::Done)
}

/// Say why an instance is where it is
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  hoist deploy explain last web-check@n2")]
pub(super) struct ExplainArgs {
    #[arg(value_name = "RUN", value_parser = super::named)]
    run: String,
    #[arg(value_name = "INSTANCE", value_parser = super::named)]
    instance: String,
}

impl ExplainArgs {
    pub(super) async fn run(self, shell: &mut Shell) -> Result<Exit, Failure> {
        let explained = shell.client()?.explain_instance(&self.run, &self.instance).await?;
        let printer = &mut shell.printer;
        match printer.output() {
            Output::Json | Output::Yaml => printer.value(&explained)?,
            Output::Name => printer.line(&explained.instance.name)?,
            Output::Table | Output::Wide => {
                for line in &explained.because {
                    printer.line(plain(line))?;
                }
                let lists = [("needs", &explained.needs), ("needed by", &explained.needed_by)];
                for (what, names) in lists.iter().filter(|(_, names)| !names.is_empty()) {
                    printer.line(format!("  {what}: {}", names.join(", ")))?;
                }
                for line in places(&explained) {
                    printer.line(plain(&line))?;
                }
            }
        }
        Ok(Exit::Done)
    }
}

/// Where it was written, and what another file set.
fn places(explained: &InstanceExplanation) -> Vec<String> {
    let Some(written) = &explained.written else { return Vec::new() };
    let file = |place: &str| place.rsplitn(3, ':').last().map(str::to_owned);
    let own = file(written);
    let others = explained.from.iter().filter(|(_, place)| file(place) != own);
    let others = others.map(|(field, place)| format!("  {field}: {place}"));
    std::iter::once(format!("  written: {written}")).chain(others).collect()
}
