//! `hoist provision`.

pub(crate) mod start;
mod status;
mod steer;
mod watch;

pub(crate) use status::size;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use hoist_api::client::Client;
use hoist_api::provision::{Enrollment, EnrollmentToken, ProvisionProfileObject, ShownKey};
use hoist_model::Exit;
use serde_json::json;

use super::Shell;
use crate::commands::node::chosen::ChosenArgs;
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
    /// Start failed or aborted nodes again
    ///
    /// An agent that is still running continues by itself; other machines must be restarted. If
    /// another key came with a node's token, name the key that may continue.
    #[command(after_help = "Examples:\n  hoist provision retry n1\n  \
        hoist provision retry n1 --key 3f9c2a7700b1d4e8\n  \
        hoist provision retry last --dry-run")]
    Retry(steer::RetryArgs),
    /// Start no more nodes, and stop the running ones where that is safe
    ///
    /// Nodes that have not booted the agent boot as before. A working agent finishes its step, and
    /// the node is held: its disks are only partly written.
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
    /// Show the facts that a node's agent reported: disks, interfaces, firmware
    #[command(after_help = "Examples:\n  hoist provision facts n1\n  \
        hoist provision facts n1 -o json | jq '.facts.disks[].serial'")]
    Facts {
        /// Name, id, xname, MAC, nid or address
        #[arg(value_name = "NODE")]
        node: String,
    },
    Enroll(EnrollArgs),
    /// Revoke a node's permission to take its secrets; secrets already taken stay taken
    #[command(after_help = "Examples:\n  hoist provision unenroll n1\n  \
        hoist provision unenroll n1 n2 --dry-run\n  hoist provision unenroll -l label:rack=7")]
    Unenroll {
        #[command(flatten)]
        nodes: ChosenArgs,
        /// Show the change without making it
        #[arg(long)]
        dry_run: bool,
    },
    /// List the nodes that may take their secrets, and the keys that have taken them
    #[command(
        after_help = "Examples:\n  hoist provision enrollments\n  hoist provision enrollments -o json"
    )]
    Enrollments,
}

/// Let the agent of a node take its secrets, once
///
/// Makes a provision token and shows it only now. The first key that comes with it over TLS gets
/// the node's documents with their secrets; that key may ask again, every other one is refused and
/// reported. An earlier token of the node becomes invalid.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  hoist provision enroll n1 --out n1.token\n  \
    hoist provision enroll n1 -o json\n  hoist provision enroll n1 --dry-run")]
struct EnrollArgs {
    /// Name, id, xname, MAC, nid or address
    #[arg(value_name = "NODE")]
    node: String,

    /// Write the token into this new file (mode 0600) instead of printing it
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,

    /// Show the change without making it
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
            ProvisionCommand::Enroll(args) => args.run(shell).await,
            ProvisionCommand::Unenroll { nodes, dry_run } => unenroll(shell, nodes, dry_run).await,
            ProvisionCommand::Enrollments => list(shell).await,
        }
    }
}

impl EnrollArgs {
    async fn run(self, shell: &mut Shell) -> Result<Exit, Failure> {
        let client = shell.client()?;
        let node = node_ref::find(&client, &self.node).await?;
        let id = node_ref::id_of(&node)?;
        let name = node_ref::name_of(&node)?;
        if self.dry_run {
            self.out.as_deref().map(check_new).transpose()?;
            let what = format!("enroll node {name} (generation {})", node.generation);
            return edit::would(&mut shell.printer, &what);
        }
        // Enrolling revokes the earlier token, so the file for the new one must be writable first.
        let file = self.out.as_deref().map(SecretFile::create).transpose()?;
        let issued = client.enroll(&id.to_string()).await?;
        let printer = &mut shell.printer;
        match file {
            Some(file) => {
                let path = self.out.unwrap_or_default();
                file.keep(&issued.token)?;
                if matches!(printer.output(), Output::Json | Output::Yaml) {
                    let EnrollmentToken { node, id, generation, .. } = &issued;
                    printer.value(&json!({"node": node, "id": id, "generation": generation}))?;
                }
                printer.note(&format!("the token of node {name} is in {}", path.display()));
            }
            None if matches!(printer.output(), Output::Json | Output::Yaml) => {
                printer.value(&issued)?;
            }
            None => {
                printer.line(&issued.token)?;
                printer.flush()?;
                printer.note(&format!(
                    "this is the provision token of node {name}; it is not shown again"
                ));
            }
        }
        Ok(Exit::Done)
    }
}

async fn unenroll(shell: &mut Shell, nodes: ChosenArgs, dry_run: bool) -> Result<Exit, Failure> {
    let client = shell.client()?;
    let mut exit = Exit::Done;
    let mut ended = Vec::new();
    for node in nodes.find(&client).await? {
        let id = node_ref::id_of(&node)?;
        let name = node_ref::name_of(&node)?;
        if dry_run {
            exit = edit::would(&mut shell.printer, &format!("unenroll node {name}"))?;
        } else {
            client.unenroll(&id.to_string()).await?;
            shell.printer.note(&format!("the enrollment of node {name} is ended"));
            ended.push(json!({"node": name, "id": id}));
        }
    }
    if !dry_run && matches!(shell.printer.output(), Output::Json | Output::Yaml) {
        shell.printer.value(&ended)?;
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
    let enrollments = shell.client()?.enrollments().await?.items;
    let printer = &mut shell.printer;
    match printer.output() {
        Output::Table | Output::Wide => printer.table(&table(&enrollments))?,
        Output::Name => {
            enrollments.iter().try_for_each(|enrollment| printer.line(enrollment.node.as_str()))?;
        }
        Output::Json | Output::Yaml => printer.value(&enrollments)?,
    }
    Ok(Exit::Done)
}

/// `3f9c2a7700b1d4e8 from 10.0.0.9 at …`.
fn shown_key(ShownKey { key, at, from }: &ShownKey) -> String {
    let from = from.map(|from| format!(" from {from}")).unwrap_or_default();
    format!("{key}{from} at {at}")
}

fn table(enrollments: &[Enrollment]) -> Table {
    let mut table = Table::new(&["NODE", "SINCE", "CLAIMED BY", "QUARANTINED", "GOOD"]);
    for enrollment in enrollments {
        table.row(vec![
            enrollment.node.to_string(),
            enrollment.since.to_string(),
            enrollment.claimed.as_ref().map(shown_key).unwrap_or_default(),
            enrollment.quarantined.iter().map(shown_key).collect::<Vec<_>>().join(", "),
            if enrollment.outdated {
                "no, the node was renewed, or the site's key changed"
            } else {
                "yes"
            }
            .to_owned(),
        ]);
    }
    table
}
