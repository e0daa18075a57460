//! `hoist deploy simulate`: a run on paper.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use hoist_engine::plan::Plan;
use hoist_engine::record::Outcome;
use hoist_engine::simulate::{Scenario, Simulation, simulate};
use hoist_model::Exit;
use jiff::Timestamp;

use super::files::SelectionArgs;
use super::offline::BookArgs;
use super::show::duration;
use crate::commands::Shell;
use crate::failure::Failure;
use crate::input;
use crate::printer::{Output, Printer, Tone};
use crate::table::Table;

/// Steps of the longest way that are shown; `-o wide` shows all.
const SHOWN: usize = 20;

/// Run task files on paper: how long it takes, and what holds it up
///
/// The same decisions as in a run, in a time of its own; nothing is done anywhere. A task takes as
/// long as it took before, as far as the controller knows, and else a second; `--with` says
/// otherwise. Ends as the run would: 0 succeeded, 7 degraded, 1 failed, 4 a person would have to
/// decide.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  hoist deploy simulate site.yaml --nodes nodes.yaml\n  \
    hoist deploy simulate site.yaml --nodes nodes.yaml --with durations.yaml -o json\n\n\
    What takes how long, and what fails:\n  takes_ms: 5000\n  cases:\n  \
    - {steps: \"db-*\", takes_ms: 60000}\n  \
    - {steps: \"web-start@n3\", fails: always, reason: no disk}\n  \
    - {steps: \"fetch@*\", fails: {first: 2}}")]
pub(super) struct SimulateArgs {
    #[command(flatten)]
    book: BookArgs,

    /// What takes how long, and what fails
    #[arg(long, value_name = "FILE")]
    with: Option<PathBuf>,

    #[command(flatten)]
    selection: SelectionArgs,
}

impl SimulateArgs {
    pub(super) async fn run(self, shell: &mut Shell) -> Result<Exit, Failure> {
        if self.book.files.is_empty() {
            return Err(Failure::usage("simulate: no task file is given")
                .with_hint("`hoist deploy simulate FILE… --nodes FILE`"));
        }
        let scenario = self.with.as_deref().map(scenario).transpose()?.unwrap_or_default();
        let draft = match self.book.draft(shell, self.selection.selection()?).await? {
            Ok(draft) => draft,
            Err(exit) => return Ok(exit),
        };
        let plan = Plan::new(draft).map_err(|error| Failure::usage(error.to_string()))?;
        let plan = Arc::new(plan);
        // It matters where tasks may only start at some times of the week.
        let now = u64::try_from(Timestamp::now().as_millisecond()).unwrap_or_default();
        let simulated = simulate(&plan, &scenario, now)
            .map_err(|error| Failure::usage(format!("the scenario: {error}")))?;
        let printer = &mut shell.printer;
        match printer.output() {
            Output::Json | Output::Yaml => printer.value(&simulated)?,
            Output::Name => {
                simulated.critical_path.iter().try_for_each(|leg| printer.line(&leg.name))?;
            }
            Output::Table | Output::Wide => show(printer, &simulated)?,
        }
        Ok(match simulated.outcome {
            Some(Outcome::Succeeded) => Exit::Done,
            Some(Outcome::Degraded) => Exit::Degraded,
            Some(Outcome::Failed) => Exit::Failed,
            Some(Outcome::Stopped) => Exit::Stopped,
            None => Exit::Waiting,
        })
    }
}

fn scenario(path: &Path) -> Result<Scenario, Failure> {
    let bytes = input::read_whole(path)?;
    serde_saphyr::from_slice(&bytes)
        .map_err(|error| Failure::usage(format!("`{}`: {error}", path.display())))
}

fn show(printer: &mut Printer, simulated: &Simulation) -> Result<(), Failure> {
    let legs = &simulated.critical_path;
    let shown = if printer.output() == Output::Wide { legs.len() } else { legs.len().min(SHOWN) };
    if shown > 0 {
        printer.line("critical path:")?;
        let mut table = Table::new(&["FROM", "TAKES", "INSTANCE", "WAITED FOR"]);
        for leg in &legs[..shown] {
            table.row(vec![
                duration(leg.from_ms),
                duration(leg.until_ms - leg.from_ms),
                leg.name.clone(),
                leg.waited_for.clone().unwrap_or_default(),
            ]);
        }
        printer.table(&table)?;
        if shown < legs.len() {
            printer.line(format!("… and {} more; `-o wide` shows all", legs.len() - shown))?;
        }
        printer.line("")?;
    }
    let waited: Vec<_> = simulated.limits.iter().filter(|limit| limit.steps > 0).collect();
    if !waited.is_empty() {
        printer.line("what held others up:")?;
        let mut table = Table::new(&["LIMIT", "PLACES", "WAITED", "LONGEST", "TOGETHER"]);
        for limit in waited {
            table.row(vec![
                limit.limit.clone(),
                limit.slots.to_string(),
                limit.steps.to_string(),
                duration(limit.longest_ms),
                duration(limit.waited_ms),
            ]);
        }
        printer.table(&table)?;
        printer.line("")?;
    }
    let failures = &simulated.failures;
    let shown =
        if printer.output() == Output::Wide { failures.len() } else { failures.len().min(SHOWN) };
    for failed in &failures[..shown] {
        printer.line(format!("failed  {}  {}", failed.name, failed.reason))?;
    }
    if shown < failures.len() {
        printer.line(format!("… and {} more; `-o wide` shows all", failures.len() - shown))?;
    }
    let (tone, word) = match simulated.outcome {
        Some(Outcome::Succeeded) => (Tone::Added, "succeeded"),
        Some(Outcome::Degraded) => (Tone::Changed, "degraded"),
        Some(Outcome::Failed) => (Tone::Removed, "failed"),
        Some(Outcome::Stopped) => (Tone::Changed, "stopped"),
        None => (Tone::Changed, "a person would have to decide"),
    };
    let ends: Vec<String> =
        simulated.ends.iter().map(|(end, count)| format!("{count} {end}")).collect();
    let took = duration(simulated.makespan_ms);
    printer.toned(tone, &format!("{word} after {took}: {}", ends.join(", ")))
}
