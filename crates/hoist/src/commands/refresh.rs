//! `hoist refresh`.

use clap::Args;
use hoist_api::inventory::ImportReport;
use hoist_model::Exit;

use super::Shell;
use crate::failure::Failure;
use crate::printer::Output;

/// Read the controller's own inventory source now, and show what changed
///
/// The source is the one of `hoist serve --inventory`. `hoist node import` reads another one.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  hoist refresh\n  hoist refresh -o json")]
pub(crate) struct RefreshArgs {}

impl RefreshArgs {
    pub(crate) async fn run(self, shell: &mut Shell) -> Result<Exit, Failure> {
        let report = shell.client()?.refresh().await?;
        print(shell, &report)?;
        Ok(exit(&report))
    }
}

/// An import that raised an alarm left the site degraded.
pub(crate) fn exit(report: &ImportReport) -> Exit {
    if report.alarm.is_some() { Exit::Degraded } else { Exit::Done }
}

/// Prints the result of an import.
pub(crate) fn print(shell: &mut Shell, report: &ImportReport) -> Result<(), Failure> {
    let printer = &mut shell.printer;
    match printer.output() {
        Output::Json | Output::Yaml => return printer.value(report),
        Output::Name => {
            return report
                .nodes
                .iter()
                .try_for_each(|node| printer.line(node.trim_start_matches(['+', '~', '-'])));
        }
        Output::Table | Output::Wide => {}
    }
    for warning in &report.warnings {
        printer.warn(warning);
    }
    if !report.warning_counts.is_empty() {
        let counts = report.warning_counts.iter().map(|(kind, count)| format!("{count} {kind}"));
        printer.warn(&format!("warnings: {}", counts.collect::<Vec<_>>().join(", ")));
    }
    if let Some(alarm) = &report.alarm {
        printer.warn(&format!(
            "{alarm}; if the nodes are really gone, run `hoist node import smd --force`"
        ));
    }
    let ImportReport { source, added, changed, unchanged, removed, absent, .. } = report;
    printer.line(format!(
        "{source}: {added} added, {changed} changed, {unchanged} unchanged, {removed} removed, \
         {absent} absent"
    ))?;
    for node in &report.nodes {
        printer.line(format!("  {node}"))?;
    }
    let more = (added + changed + removed).saturating_sub(report.nodes.len());
    if more > 0 {
        printer.line(format!("  and {more} more"))?;
    }
    Ok(())
}
