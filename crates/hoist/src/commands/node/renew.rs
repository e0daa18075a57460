//! `hoist node renew`.

use clap::Args;
use hoist_api::inventory::RenewRequest;
use hoist_model::Exit;

use super::Shell;
use super::chosen::ChosenArgs;
use crate::edit::{self, WriteArgs};
use crate::failure::Failure;
use crate::node_ref;

/// Make nodes the next generation of themselves
///
/// cloud-init sees a new instance at the next boot of such a node, and runs its once-per-instance
/// modules again. All earlier tokens of the node are refused from now on: those in seed URLs, and
/// those it was enrolled with. Protected nodes are not renewed.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  hoist node renew n1\n  hoist node renew n1 n2 --dry-run\n  \
    hoist node renew -l 'label:rack=7' --affects 64")]
pub(super) struct RenewArgs {
    #[command(flatten)]
    chosen: ChosenArgs,

    #[command(flatten)]
    write: WriteArgs,
}

impl RenewArgs {
    pub(super) async fn run(self, shell: &mut Shell) -> Result<Exit, Failure> {
        let client = shell.client()?;
        let nodes = self.chosen.find(&client).await?;
        if nodes.is_empty() {
            shell.printer.note("no nodes");
            return Ok(Exit::Done);
        }
        let nodes = nodes.iter().map(node_ref::id_of).collect::<Result<_, _>>()?;
        edit::renew(shell, &client, &RenewRequest { nodes }, &self.write).await
    }
}
