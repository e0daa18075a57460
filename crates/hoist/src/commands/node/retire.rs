//! `hoist node retire`.

use clap::Args;
use hoist_api::provision::{ProvisionOptions, StartRequest};
use hoist_model::{Exit, Name};

use super::Shell;
use crate::commands::provision::start;
use crate::edit::WriteArgs;
use crate::failure::Failure;
use crate::node_ref;

/// Erase the disks of a node and stop booting it
///
/// The node boots the provisioning agent, which erases every disk that its `ProvisionProfile` names
/// and verifies the erasure. Then the node is disabled and its boot requests are refused; the
/// erasure report is in `hoist provision status NODE -o json`. If erasing fails the node is held
/// until an operator has examined it. Protected nodes are not retired.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  hoist node retire n1 --dry-run\n  \
    hoist node retire n1 --profile all-disks --watch")]
pub(super) struct RetireArgs {
    /// Name, id, xname, MAC, nid or address
    #[arg(value_name = "NODE")]
    node: String,

    /// The disks that this profile names, instead of those of the one that is closest to the node
    #[arg(long, value_name = "PROFILE")]
    profile: Option<Name>,

    /// Show how it goes until it is over
    #[arg(long)]
    watch: bool,

    #[command(flatten)]
    write: WriteArgs,
}

impl RetireArgs {
    pub(super) async fn run(self, shell: &mut Shell) -> Result<Exit, Failure> {
        let node = node_ref::find(&shell.client()?, &self.node).await?;
        let selector = format!("node:{}", node_ref::name_of(&node)?);
        let request = StartRequest {
            selector,
            profile: self.profile,
            how: ProvisionOptions { retire: true, ..ProvisionOptions::default() },
            dry_run: true,
            ..StartRequest::default()
        };
        start::begin(shell, request, &self.write, self.watch, "erased and retired").await
    }
}
