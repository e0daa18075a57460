//! `hoist node maintenance`.

use clap::{Args, Subcommand};
use hoist_api::inventory::MaintainRequest;
use hoist_model::Exit;
use jiff::Timestamp;

use super::Shell;
use super::chosen::ChosenArgs;
use crate::edit;
use crate::failure::Failure;
use crate::{node_ref, when};

/// Mark nodes as being worked on
#[derive(Debug, Args)]
pub(super) struct MaintenanceArgs {
    #[command(subcommand)]
    command: MaintenanceCommand,
}

#[derive(Debug, Subcommand)]
enum MaintenanceCommand {
    /// Begin maintenance
    #[command(
        after_help = "Examples:\n  hoist node maintenance on n1 --reason 'new DIMM' --until 4h\n  \
        hoist node maintenance on n1 n2 --reason move --until 2026-08-01T12:00:00Z"
    )]
    On {
        #[command(flatten)]
        chosen: ChosenArgs,
        /// Reason of the maintenance
        #[arg(long)]
        reason: String,
        /// When it ends by itself: a time in RFC 3339, or from now such as `4h`
        #[arg(long, value_name = "TIME")]
        until: Option<String>,
        /// Show the change without making it
        #[arg(long)]
        dry_run: bool,
    },
    /// End maintenance
    #[command(after_help = "Examples:\n  hoist node maintenance off n1\n  \
        hoist node maintenance off -l label:rack=7")]
    Off {
        #[command(flatten)]
        chosen: ChosenArgs,
        /// Show the change without making it
        #[arg(long)]
        dry_run: bool,
    },
}

impl MaintenanceArgs {
    pub(super) async fn run(self, shell: &mut Shell) -> Result<Exit, Failure> {
        match self.command {
            MaintenanceCommand::On { chosen, reason, until, dry_run } => {
                let until = until
                    .map(|text| when::parse(&text, Timestamp::now()).map_err(Failure::usage))
                    .transpose()?;
                begin(shell, chosen, &MaintainRequest { reason, until }, dry_run).await
            }
            MaintenanceCommand::Off { chosen, dry_run } => end(shell, chosen, dry_run).await,
        }
    }
}

async fn begin(
    shell: &mut Shell,
    chosen: ChosenArgs,
    request: &MaintainRequest,
    dry_run: bool,
) -> Result<Exit, Failure> {
    let client = shell.client()?;
    let mut exit = Exit::Done;
    for node in chosen.find(&client).await? {
        let name = node_ref::name_of(&node)?;
        client.maintain(node_ref::id_of(&node)?, request, dry_run).await?;
        if dry_run {
            exit = edit::would(&mut shell.printer, &format!("begin maintenance of node {name}"))?;
            continue;
        }
        let until = request.until.map(|until| format!(" until {until}")).unwrap_or_default();
        shell.printer.note(&format!("node {name} is in maintenance{until}"));
    }
    Ok(exit)
}

async fn end(shell: &mut Shell, chosen: ChosenArgs, dry_run: bool) -> Result<Exit, Failure> {
    let client = shell.client()?;
    let mut exit = Exit::Done;
    for node in chosen.find(&client).await? {
        let name = node_ref::name_of(&node)?;
        if node.maintenance.is_none() {
            shell.printer.note(&format!("node {name} is not in maintenance"));
            continue;
        }
        client.end_maintenance(node_ref::id_of(&node)?, dry_run).await?;
        if dry_run {
            exit = edit::would(&mut shell.printer, &format!("end maintenance of node {name}"))?;
        } else {
            shell.printer.note(&format!("node {name} is not in maintenance any more"));
        }
    }
    Ok(exit)
}
