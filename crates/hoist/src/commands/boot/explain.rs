//! `hoist boot explain`.

use clap::Args;
use hoist_api::boot::{BootExplanation, ExplainedChoice};
use hoist_model::{BootAction, BootState, Exit, Provisioning};

use super::Shell;
use crate::failure::Failure;
use crate::printer::{Output, Printer, Tone};
use crate::table::Table;

/// Show the boot decision for a node, with its reasons
///
/// Shows the chosen configuration, the rejected ones with the reason, every kernel argument with
/// its origin, the boot state of the node, and the revision and age of the roster.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  hoist boot explain n1\n  hoist boot explain 52:54:00:00:00:01\n  \
    hoist boot explain n1 -o json"
)]
pub(super) struct ExplainArgs {
    /// Name, id, xname, MAC or nid
    #[arg(value_name = "NODE")]
    node: String,
}

impl ExplainArgs {
    pub(super) async fn run(self, shell: &mut Shell) -> Result<Exit, Failure> {
        let found = shell.client()?.explain(&self.node).await?;
        let printer = &mut shell.printer;
        match printer.output() {
            Output::Table | Output::Wide => print(printer, &found)?,
            Output::Name => printer.line(told(found.choice.as_ref()))?,
            Output::Json | Output::Yaml => printer.value(&found)?,
        }
        Ok(Exit::Done)
    }
}

fn print(printer: &mut Printer, found: &BootExplanation) -> Result<(), Failure> {
    printer.toned(Tone::Strong, &headline(found))?;
    if let Some(provisioning) = found.state.as_ref().and_then(|state| state.provisioning.as_ref()) {
        let Provisioning { run, profile, .. } = provisioning;
        printer
            .line(format!("  run: {run}, by profile {profile}; `hoist provision status {run}`"))?;
    } else if let Some(choice) = &found.choice {
        printer.line(format!(
            "  chosen: {} because `{}` names {}, at priority {}, revision {}",
            choice.name, choice.matched, choice.by, choice.priority, choice.revision
        ))?;
    }
    for record in &found.discovery {
        let arch = record.rsplit_once("Unknown-").map_or("", |(_, arch)| arch);
        printer.line(format!("  {record}: booted instead if its firmware reports {arch}"))?;
    }
    if let Some(state) = &found.state {
        printer.line(format!("  state: {}", decided(state)))?;
    }
    if found.protected {
        printer.line("  protected: never installed while protected")?;
    }
    if let Some(last) = &found.last {
        printer.line(format!(
            "  last asked: {} from {}, got {} at revision {}",
            last.last, last.from, last.what, last.revision
        ))?;
    }
    if let Some(failed) = &found.last_error {
        printer
            .line(format!("  last error: {} from {}: {}", failed.last, failed.from, failed.what))?;
    }
    printer.line(format!("  roster: revision {}, {} s old", found.revision, found.age_seconds))?;
    if !found.lost.is_empty() {
        let mut table = Table::new(&["ALSO", "MATCHED", "PRIORITY", "REASON"]);
        for lost in &found.lost {
            let ExplainedChoice { name, matched, priority, .. } = &lost.choice;
            let row = [name.clone(), matched.clone(), priority.to_string(), lost.why.clone()];
            table.row(row.to_vec());
        }
        printer.line("")?;
        printer.table(&table)?;
    }
    for plugin in &found.plugins {
        printer.line(format!("  plug-ins: {plugin}"))?;
    }
    let Some(kernel) = &found.kernel else { return Ok(()) };
    printer.line("")?;
    printer.line(format!("kernel  {kernel}"))?;
    for initrd in &found.initrd {
        printer.line(format!("initrd  {initrd}"))?;
    }
    if !found.arguments.is_empty() {
        let mut table = Table::new(&["ARGUMENT", "FROM"]);
        for found in &found.arguments {
            table.row(vec![found.argument.clone(), found.origin.clone()]);
        }
        printer.line("")?;
        printer.table(&table)?;
    }
    Ok(())
}

fn headline(found: &BootExplanation) -> String {
    let node = &found.node;
    let name = told(found.choice.as_ref());
    let problem = found.problem.as_deref();
    match found.doing {
        BootAction::Boot => format!("{node} boots {name}"),
        BootAction::Install => format!("{node} is installed by {name}"),
        BootAction::Provision => format!("{node} boots the provisioning agent"),
        BootAction::Disk => format!("{node} boots its disk"),
        BootAction::Hold => format!("{node} is held"),
        BootAction::Wait => {
            format!("{node} waits: {}", problem.unwrap_or("it has no boot configuration"))
        }
        BootAction::Disabled => format!("{node} is disabled; its requests are refused"),
        BootAction::Fail => {
            format!("{node} gets an error instead of {name}: {}", problem.unwrap_or_default())
        }
    }
}

fn told(choice: Option<&ExplainedChoice>) -> &str {
    choice.map_or("nothing", |choice| choice.name.as_str())
}

/// `disk, once rescue, installed … (disk swap), since … by …`.
pub(super) fn decided(state: &BootState) -> String {
    let mut parts: Vec<String> = state.mode.map(|mode| mode.to_string()).into_iter().collect();
    parts.extend(state.profile.as_ref().map(|profile| format!("profile {profile}")));
    let again = if state.reinstall { ", also if it installs" } else { "" };
    parts.extend(state.once.as_ref().map(|once| format!("once {once}{again}")));
    let given = state.given.as_ref();
    parts.extend(given.map(|given| format!("booted {} one time {}", given.config, given.at)));
    parts.extend(state.installing.as_ref().map(|config| format!("being installed by {config}")));
    let provisioning = state.provisioning.as_ref();
    parts.extend(
        provisioning.map(|provisioning| format!("provisioned in run {}", provisioning.run)),
    );
    parts.extend(state.installed.map(|since| format!("installed {since}")));
    if parts.is_empty() {
        parts.push("by its configuration".to_owned());
    }
    let reason = state.reason.as_ref().map(|reason| format!(" ({reason})")).unwrap_or_default();
    format!("{}{reason}, since {} by {}", parts.join(", "), state.since, state.by)
}
