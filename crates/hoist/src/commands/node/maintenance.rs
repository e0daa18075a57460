//! `hoist node maintenance`.

use clap::{Args, Subcommand};
use hoist_api::inventory::MaintainRequest;
use hoist_model::Exit;
use jiff::Timestamp;

use super::Shell;
use crate::edit;
use crate::failure::Failure;
use crate::{node_ref, when};

/// Say that somebody is working on nodes
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
        /// Name, id, xname, MAC, nid or address
        #[arg(value_name = "NODE", required = true)]
        nodes: Vec<String>,
        /// What is being done
        #[arg(long)]
        reason: String,
        /// When it ends by itself: a time in RFC 3339, or from now such as `4h`
        #[arg(long, value_name = "TIME")]
        until: Option<String>,
        /// Show what would be done, change nothing
        #[arg(long)]
        dry_run: bool,
    },
    /// End maintenance
    #[command(after_help = "Examples:\n  hoist node maintenance off n1")]
    Off {
        /// Name, id, xname, MAC, nid or address
        #[arg(value_name = "NODE", required = true)]
        nodes: Vec<String>,
        /// Show what would be done, change nothing
        #[arg(long)]
        dry_run: bool,
    },
}

impl MaintenanceArgs {
    pub(super) async fn run(self, shell: &mut Shell) -> Result<Exit, Failure> {
        match self.command {
            MaintenanceCommand::On { nodes, reason, until, dry_run } => {
                let until = until
                    .map(|text| when::parse(&text, Timestamp::now()).map_err(Failure::usage))
                    .transpose()?;
                begin(shell, &nodes, &MaintainRequest { reason, until }, dry_run).await
            }
            MaintenanceCommand::Off { nodes, dry_run } => end(shell, &nodes, dry_run).await,
        }
    }
}

async fn begin(
    shell: &mut Shell,
    nodes: &[String],
    request: &MaintainRequest,
    dry_run: bool,
) -> Result<Exit, Failure> {
    let client = shell.client()?;
    let mut exit = Exit::Done;
    for node in node_ref::find_all(&client, nodes).await? {
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

async fn end(shell: &mut Shell, nodes: &[String], dry_run: bool) -> Result<Exit, Failure> {
    let client = shell.client()?;
    let mut exit = Exit::Done;
    for node in node_ref::find_all(&client, nodes).await? {
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
