//! `hoist provision`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use hoist_api::provision::{Armed, Arming, ShownKey};
use hoist_model::Exit;
use serde_json::json;

use super::Shell;
use crate::edit;
use crate::failure::Failure;
use crate::node_ref;
use crate::printer::Output;
use crate::secret_file::{SecretFile, check_new};
use crate::table::Table;

/// Which nodes may take their secrets
#[derive(Debug, Args)]
pub(crate) struct ProvisionArgs {
    #[command(subcommand)]
    command: ProvisionCommand,
}

#[derive(Debug, Subcommand)]
enum ProvisionCommand {
    Arm(ArmArgs),
    /// Take back that a node may take its secrets; what was taken is taken
    #[command(after_help = "Examples:\n  hoist provision disarm n1\n  \
        hoist provision disarm n1 n2 --dry-run")]
    Disarm {
        /// Name, id, xname, MAC, nid or address
        #[arg(value_name = "NODE", required = true)]
        nodes: Vec<String>,
        /// Show what would be done, change nothing
        #[arg(long)]
        dry_run: bool,
    },
    /// List the nodes that may take their secrets, and who has taken them
    #[command(after_help = "Examples:\n  hoist provision armed\n  hoist provision armed -o json")]
    Armed,
}

/// Let the agent of a node take its secrets, once
///
/// Makes a provision token and shows it only now. The first key that comes with it over TLS gets the
/// node's documents with their secrets; that key may ask again, every other one is refused and told
/// of. What the node was armed with before is good for nothing any more.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  hoist provision arm n1 --out n1.token\n  \
    hoist provision arm n1 -o json\n  hoist provision arm n1 --dry-run")]
struct ArmArgs {
    /// Name, id, xname, MAC, nid or address
    #[arg(value_name = "NODE")]
    node: String,

    /// Write the token into this new file (mode 0600) instead of printing it
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,

    /// Show what would be done, change nothing
    #[arg(long)]
    dry_run: bool,
}

impl ProvisionArgs {
    pub(crate) async fn run(self, shell: &mut Shell) -> Result<Exit, Failure> {
        match self.command {
            ProvisionCommand::Arm(args) => args.run(shell).await,
            ProvisionCommand::Disarm { nodes, dry_run } => disarm(shell, &nodes, dry_run).await,
            ProvisionCommand::Armed => list(shell).await,
        }
    }
}

impl ArmArgs {
    async fn run(self, shell: &mut Shell) -> Result<Exit, Failure> {
        let client = shell.client()?;
        let node = node_ref::find(&client, &self.node).await?;
        let (id, name) = (node_ref::id_of(&node)?, node_ref::name_of(&node)?);
        if self.dry_run {
            self.out.as_deref().map(check_new).transpose()?;
            let what = format!("arm node {name} (generation {})", node.generation);
            return edit::would(&mut shell.printer, &what);
        }
        // Arming ends the token of before, so the place of the new one is made sure of first.
        let file = self.out.as_deref().map(SecretFile::create).transpose()?;
        let armed = client.arm(&id.to_string()).await?;
        let printer = &mut shell.printer;
        match file {
            Some(file) => {
                let path = self.out.unwrap_or_default();
                file.keep(&armed.token)?;
                if matches!(printer.output(), Output::Json | Output::Yaml) {
                    let Armed { node, id, generation, .. } = &armed;
                    printer.value(&json!({"node": node, "id": id, "generation": generation}))?;
                }
                printer.note(&format!("the token of node {name} is in {}", path.display()));
            }
            None if matches!(printer.output(), Output::Json | Output::Yaml) => {
                printer.value(&armed)?;
            }
            None => {
                printer.line(&armed.token)?;
                printer.flush()?;
                printer.note(&format!(
                    "this is the provision token of node {name}; it is not shown again"
                ));
            }
        }
        Ok(Exit::Done)
    }
}

async fn disarm(shell: &mut Shell, words: &[String], dry_run: bool) -> Result<Exit, Failure> {
    let client = shell.client()?;
    let mut exit = Exit::Done;
    for node in node_ref::find_all(&client, words).await? {
        let (id, name) = (node_ref::id_of(&node)?, node_ref::name_of(&node)?);
        if dry_run {
            exit = edit::would(&mut shell.printer, &format!("disarm node {name}"))?;
        } else {
            client.disarm(&id.to_string()).await?;
            shell.printer.note(&format!("node {name} is disarmed"));
        }
    }
    Ok(exit)
}

async fn list(shell: &mut Shell) -> Result<Exit, Failure> {
    let armings = shell.client()?.armings().await?.items;
    let printer = &mut shell.printer;
    match printer.output() {
        Output::Table | Output::Wide => printer.table(&table(&armings))?,
        Output::Name => {
            armings.iter().try_for_each(|arming| printer.line(arming.node.as_str()))?;
        }
        Output::Json | Output::Yaml => printer.value(&armings)?,
    }
    Ok(Exit::Done)
}

fn table(armings: &[Arming]) -> Table {
    let mut table = Table::new(&["NODE", "SINCE", "REDEEMED BY", "QUARANTINED", "GOOD"]);
    let shown = |ShownKey { key, at }: &ShownKey| format!("{key} at {at}");
    for arming in armings {
        table.row(vec![
            arming.node.to_string(),
            arming.since.to_string(),
            arming.redeemed.as_ref().map(shown).unwrap_or_default(),
            arming.quarantined.iter().map(shown).collect::<Vec<_>>().join(", "),
            if arming.outdated {
                "no, the node was renewed, or the site's key changed"
            } else {
                "yes"
            }
            .to_owned(),
        ]);
    }
    table
}
