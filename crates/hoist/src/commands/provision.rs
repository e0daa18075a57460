//! `hoist provision`.

pub(crate) mod start;
mod status;
mod steer;
mod watch;

pub(crate) use status::size;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use hoist_api::client::Client;
use hoist_api::provision::{Armed, Arming, ProvisionProfileObject, ShownKey};
use hoist_model::Exit;
use serde_json::json;

use super::Shell;
use crate::edit;
use crate::failure::Failure;
use crate::node_ref;
use crate::printer::Output;
use crate::secret_file::{SecretFile, check_new};
use crate::table::Table;

/// Make the disks of nodes what profiles say, and say which nodes may take their secrets
#[derive(Debug, Args)]
pub(crate) struct ProvisionArgs {
    #[command(subcommand)]
    command: ProvisionCommand,
}

#[derive(Debug, Subcommand)]
enum ProvisionCommand {
    Start(start::StartArgs),
    Status(status::StatusArgs),
    /// Begin nodes that failed or were aborted once more
    ///
    /// An agent that stayed in memory goes on by itself; other machines have to be started anew. Where
    /// another key came with a node's token, the one that may go on has to be named.
    #[command(after_help = "Examples:\n  hoist provision retry n1\n  \
        hoist provision retry n1 --key 3f9c2a7700b1d4e8\n  \
        hoist provision retry last --dry-run")]
    Retry(steer::RetryArgs),
    /// Begin no more nodes, and end what is under way where that is safe
    ///
    /// Nodes that have not booted the agent boot as before. An agent that works ends its step, and
    /// the node is held: what was begun on its disks is not finished.
    #[command(after_help = "Examples:\n  hoist provision abort last\n  \
        hoist provision abort n1 --yes")]
    Abort(steer::SteerArgs),
    /// Put the disks of nodes back as they were before a run, and let them boot as before
    ///
    /// Nodes whose disks were written to boot the agent once more, which puts back their partition
    /// tables, and the first and last MiB. That is refused where it would not be the truth: data that
    /// was written over does not come back. `--dry-run` says what disks held.
    #[command(after_help = "Examples:\n  hoist provision undo n1 --dry-run\n  \
        hoist provision undo n1\n  hoist provision undo last --boot-only")]
    Undo(steer::UndoArgs),
    /// Show what the agent of a node found there: disks, interfaces, firmware
    #[command(after_help = "Examples:\n  hoist provision facts n1\n  \
        hoist provision facts n1 -o json | jq '.facts.disks[].serial'")]
    Facts {
        /// Name, id, xname, MAC, nid or address
        #[arg(value_name = "NODE")]
        node: String,
    },
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
            ProvisionCommand::Start(args) => args.run(shell).await,
            ProvisionCommand::Status(args) => args.run(shell).await,
            ProvisionCommand::Retry(args) => args.run(shell).await,
            ProvisionCommand::Abort(args) => args.run(shell, "abort").await,
            ProvisionCommand::Undo(args) => args.run(shell).await,
            ProvisionCommand::Facts { node } => facts(shell, &node).await,
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
    let (mut exit, mut disarmed) = (Exit::Done, Vec::new());
    for node in node_ref::find_all(&client, words).await? {
        let (id, name) = (node_ref::id_of(&node)?, node_ref::name_of(&node)?);
        if dry_run {
            exit = edit::would(&mut shell.printer, &format!("disarm node {name}"))?;
        } else {
            client.disarm(&id.to_string()).await?;
            shell.printer.note(&format!("node {name} is disarmed"));
            disarmed.push(json!({"node": name, "id": id}));
        }
    }
    if !dry_run && matches!(shell.printer.output(), Output::Json | Output::Yaml) {
        shell.printer.value(&disarmed)?;
    }
    Ok(exit)
}

async fn facts(shell: &mut Shell, word: &str) -> Result<Exit, Failure> {
    let client = shell.client()?;
    let node = node_ref::find(&client, word).await?;
    let found = client.facts(&node_ref::id_of(&node)?.to_string()).await?;
    let printer = &mut shell.printer;
    match printer.output() {
        Output::Name => printer.line(found.node.as_str())?,
        Output::Json => printer.value(&found)?,
        Output::Table | Output::Wide | Output::Yaml => printer.yaml(&found)?,
    }
    Ok(Exit::Done)
}

pub(crate) async fn find_profile(
    client: &Client,
    name: &str,
) -> Result<ProvisionProfileObject, Failure> {
    client.provision_profile(name).await?.ok_or_else(|| {
        Failure::missing(format!("provision profile `{name}`"))
            .with_hint("`hoist get provisionprofiles` shows all of them")
    })
}

pub(crate) fn profile_table(profiles: &[ProvisionProfileObject]) -> Table {
    let mut table = Table::new(&["NAME", "SELECTOR", "PRIORITY", "NODES", "SECTIONS"]);
    for profile in profiles {
        let sections: Vec<_> = profile.spec.document.keys().map(String::as_str).collect();
        table.row(vec![
            profile.name.to_string(),
            profile.spec.selector.as_ref().map(ToString::to_string).unwrap_or_default(),
            profile.spec.priority.to_string(),
            profile.nodes.to_string(),
            sections.join(","),
        ]);
    }
    table
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

/// `3f9c2a7700b1d4e8 from 10.0.0.9 at …`.
fn shown_key(ShownKey { key, at, from }: &ShownKey) -> String {
    let from = from.map(|from| format!(" from {from}")).unwrap_or_default();
    format!("{key}{from} at {at}")
}

fn table(armings: &[Arming]) -> Table {
    let mut table = Table::new(&["NODE", "SINCE", "REDEEMED BY", "QUARANTINED", "GOOD"]);
    for arming in armings {
        table.row(vec![
            arming.node.to_string(),
            arming.since.to_string(),
            arming.redeemed.as_ref().map(shown_key).unwrap_or_default(),
            arming.quarantined.iter().map(shown_key).collect::<Vec<_>>().join(", "),
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
