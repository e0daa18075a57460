//! `hoist node remove`.

use clap::Args;
use hoist_model::{Exit, Kind};

use super::Shell;
use super::chosen::ChosenArgs;
use crate::edit::{self, WriteArgs};
use crate::failure::Failure;
use crate::node_ref;

/// Remove nodes
///
/// Asks before it removes anything. Without a terminal it needs `-y`, or `--affects` with the number
/// of nodes.
#[derive(Debug, Args)]
#[command(
    visible_alias = "rm",
    after_help = "Examples:\n  hoist node remove n1 n2\n  \
        hoist node remove -l 'label:rack=7' --affects 64 --dry-run"
)]
pub(super) struct RemoveArgs {
    #[command(flatten)]
    chosen: ChosenArgs,

    #[command(flatten)]
    write: WriteArgs,
}

impl RemoveArgs {
    pub(super) async fn run(self, shell: &mut Shell) -> Result<Exit, Failure> {
        let client = shell.client()?;
        let nodes = self.chosen.find(&client).await?;
        if nodes.is_empty() {
            shell.printer.note("no nodes");
            return Ok(Exit::Done);
        }
        let asks = shell.printer.interactive();
        if !asks && !self.write.yes && !self.write.dry_run && self.write.affects.is_none() {
            let message = format!("nodes to remove: {}; the removal is not confirmed", nodes.len());
            return Err(Failure::refused(message).with_hint(
                "hoist has no terminal to ask on; repeat with `-y`, or with `--dry-run`",
            ));
        }
        let target = |node| node_ref::name_of(node).map(|name| format!("{}/{name}", Kind::Node));
        let targets = nodes.iter().map(target).collect::<Result<_, _>>()?;
        edit::delete(shell, &client, targets, &self.write).await
    }
}
