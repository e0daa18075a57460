//! `hoist node protect`.

use clap::Args;
use hoist_api::inventory::ProtectRequest;
use hoist_model::Exit;

use super::Shell;
use crate::edit;
use crate::failure::Failure;
use crate::node_ref;

/// Forbid that nodes are wiped, powered, reinstalled or removed
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  hoist node protect n1 --reason 'holds the only copy'\n  \
    hoist node protect n1 --off")]
pub(super) struct ProtectArgs {
    /// Name, id, xname, MAC, nid or address
    #[arg(value_name = "NODE", required = true)]
    nodes: Vec<String>,

    /// Allow it again
    #[arg(long, conflicts_with = "reason")]
    off: bool,

    /// For the person who meets the protection
    #[arg(long)]
    reason: Option<String>,

    /// Show what would be done, change nothing
    #[arg(long)]
    dry_run: bool,
}

impl ProtectArgs {
    pub(super) async fn run(self, shell: &mut Shell) -> Result<Exit, Failure> {
        let client = shell.client()?;
        let mut exit = Exit::Done;
        for node in node_ref::find_all(&client, &self.nodes).await? {
            let (id, name) = (node_ref::id_of(&node)?, node_ref::name_of(&node)?);
            let done = match (&node.protection, self.off) {
                (None, true) => true,
                (Some(known), false) => self.reason.is_none() || known.reason == self.reason,
                _ => false,
            };
            let word = if self.off { "unprotect" } else { "protect" };
            if done {
                shell.printer.note(&format!("node {name} is {word}ed already"));
                continue;
            }
            if self.off {
                client.unprotect(id, self.dry_run).await?;
            } else {
                let request = ProtectRequest { reason: self.reason.clone() };
                client.protect(id, &request, self.dry_run).await?;
            }
            if self.dry_run {
                exit = edit::would(&mut shell.printer, &format!("{word} node {name}"))?;
            } else {
                shell.printer.note(&format!("node {name} is {word}ed"));
            }
        }
        Ok(exit)
    }
}
