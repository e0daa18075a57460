//! `hoist boot explain`.

use clap::Args;
use hoist_api::boot::{ExplainedChoice, Explanation};
use hoist_model::{BootState, Doing, Exit, Provisioning};

use super::Shell;
use crate::failure::Failure;
use crate::printer::{Output, Printer, Tone};
use crate::table::Table;

/// Say what a node boots, and why
///
/// Shows the configuration that was chosen, what lost and why, every word of the command line with
/// where it comes from, what was decided about the node, and how old the picture is.
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

fn print(printer: &mut Printer, found: &Explanation) -> Result<(), Failure> {
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
    if let Some(state) = &found.state {
        printer.line(format!("  state: {}", decided(state)))?;
    }
    if found.protected {
        printer.line("  protected: it is not installed while it is")?;
    }
    if let Some(last) = &found.last {
        printer.line(format!(
            "  last asked: {} from {}, got {} at revision {}",
            last.last, last.from, last.what, last.revision
        ))?;
    }
    printer.line(format!(
        "  picture: site revision {}, {} s old",
        found.revision, found.age_seconds
    ))?;
    if !found.lost.is_empty() {
        let mut table = Table::new(&["ALSO", "MATCHED", "PRIORITY", "LOST BECAUSE"]);
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
    if !found.words.is_empty() {
        let mut table = Table::new(&["WORD", "FROM"]);
        for word in &found.words {
            table.row(vec![word.word.clone(), word.origin.clone()]);
        }
        printer.line("")?;
        printer.table(&table)?;
    }
    Ok(())
}

fn headline(found: &Explanation) -> String {
    let node = &found.node;
    let name = told(found.choice.as_ref());
    match found.doing {
        Doing::Boot => format!("{node} boots {name}"),
        Doing::Install => format!("{node} is installed by {name}"),
        Doing::Provision => format!("{node} boots the agent, to be provisioned"),
        Doing::Disk => format!("{node} boots its disk"),
        Doing::Hold => format!("{node} is held and waits"),
        Doing::Wait => format!("{node} waits: nothing was written for it"),
        Doing::Disabled => format!("{node} is disabled and is turned away"),
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
    parts.extend(given.map(|given| format!("had {} for one boot {}", given.config, given.at)));
    parts.extend(state.installing.as_ref().map(|config| format!("being installed by {config}")));
    let provisioning = state.provisioning.as_ref();
    parts.extend(
        provisioning.map(|provisioning| format!("provisioned in run {}", provisioning.run)),
    );
    parts.extend(state.installed.map(|since| format!("installed {since}")));
    if parts.is_empty() {
        parts.push("as its configuration says".to_owned());
    }
    let reason = state.reason.as_ref().map(|reason| format!(" ({reason})")).unwrap_or_default();
    format!("{}{reason}, since {} by {}", parts.join(", "), state.since, state.by)
}
