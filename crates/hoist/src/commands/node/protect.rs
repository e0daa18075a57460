//! `hoist node protect`.

use clap::Args;
use hoist_api::inventory::ProtectRequest;
use hoist_model::Exit;

use super::Shell;
use super::chosen::ChosenArgs;
use crate::edit;
use crate::failure::Failure;
use crate::node_ref;

/// Forbid that nodes are wiped, powered, reinstalled or removed
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  hoist node protect n1 --reason 'holds the only copy'\n  \
    hoist node protect n1 --off\n  hoist node protect -l 'role:storage' --reason data")]
pub(super) struct ProtectArgs {
    #[command(flatten)]
    chosen: ChosenArgs,

    /// Allow it again
    #[arg(long, conflicts_with = "reason")]
    off: bool,

    /// For the person who meets the protection
    #[arg(long)]
    reason: Option<String>,

    /// Show the change without making it
    #[arg(long)]
    dry_run: bool,
}

impl ProtectArgs {
    pub(super) async fn run(self, shell: &mut Shell) -> Result<Exit, Failure> {
        let client = shell.client()?;
        let mut exit = Exit::Done;
        for node in self.chosen.find(&client).await? {
            let id = node_ref::id_of(&node)?;
            let name = node_ref::name_of(&node)?;
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
