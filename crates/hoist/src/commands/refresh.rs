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
///
/// Exit code 7: more nodes are missing in the source than one import may remove, and none was
/// removed.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  hoist refresh\n  hoist refresh --force\n  hoist refresh -o json"
)]
pub(crate) struct RefreshArgs {
    /// Remove nodes that the source no longer has however many they are
    #[arg(long)]
    force: bool,
}

/// The command that removes the nodes which an import of the controller's own source withheld.
const FORCE: &str = "run `hoist refresh --force`";

impl RefreshArgs {
    pub(crate) async fn run(self, shell: &mut Shell) -> Result<Exit, Failure> {
        let report = shell.client()?.refresh(self.force).await?;
        print(shell, &report, FORCE)?;
        Ok(exit(&report))
    }
}

/// An import that raised an alarm left the site degraded.
pub(crate) fn exit(report: &ImportReport) -> Exit {
    if report.alarm.is_some() { Exit::Degraded } else { Exit::Done }
}

/// The alarm of the controller's own source, with its remedy.
pub(crate) fn own_alarm(report: &ImportReport) -> Option<String> {
    alarm(report, FORCE)
}

/// An empty answer of the source cannot be forced.
fn alarm(report: &ImportReport, remedy: &str) -> Option<String> {
    let alarm = report.alarm.as_ref()?;
    Some(match report.withheld {
        0 => alarm.clone(),
        _ => format!("{alarm}; if the nodes are really gone, {remedy}"),
    })
}

/// Prints the result of an import; `remedy` is the command that removes withheld nodes.
pub(crate) fn print(shell: &mut Shell, report: &ImportReport, remedy: &str) -> Result<(), Failure> {
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
    if let Some(alarm) = alarm(report, remedy) {
        printer.warn(&alarm);
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
