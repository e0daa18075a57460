//! `hoist node`.

mod add;
mod adopt;
pub(crate) mod chosen;
mod discovered;
mod import;
pub(crate) mod list;
mod maintenance;
mod protect;
mod release;
mod remove;
mod renew;
mod retire;
mod set;
mod show;
mod spec;
mod swap;

use clap::{Args, Subcommand};
use hoist_model::Exit;

use super::Shell;
use crate::failure::Failure;
pub(crate) use spec::word;

/// Nodes: the machines of the site
#[derive(Debug, Args)]
pub(crate) struct NodeArgs {
    #[command(subcommand)]
    command: NodeCommand,
}

#[derive(Debug, Subcommand)]
enum NodeCommand {
    Add(add::AddArgs),
    List(list::ListArgs),
    Show(show::ShowArgs),
    Set(set::SetArgs),
    Swap(swap::SwapArgs),
    Renew(renew::RenewArgs),
    Protect(protect::ProtectArgs),
    Maintenance(maintenance::MaintenanceArgs),
    Release(release::ReleaseArgs),
    Retire(retire::RetireArgs),
    Remove(remove::RemoveArgs),
    Import(import::ImportArgs),
    Discovered(discovered::DiscoveredArgs),
    Adopt(adopt::AdoptArgs),
}

impl NodeArgs {
    pub(crate) async fn run(self, shell: &mut Shell) -> Result<Exit, Failure> {
        match self.command {
            NodeCommand::Add(args) => args.run(shell).await,
            NodeCommand::List(args) => args.run(shell).await,
            NodeCommand::Show(args) => args.run(shell).await,
            NodeCommand::Set(args) => args.run(shell).await,
            NodeCommand::Swap(args) => args.run(shell).await,
            NodeCommand::Renew(args) => args.run(shell).await,
            NodeCommand::Protect(args) => args.run(shell).await,
            NodeCommand::Maintenance(args) => args.run(shell).await,
            NodeCommand::Release(args) => args.run(shell).await,
            NodeCommand::Retire(args) => args.run(shell).await,
            NodeCommand::Remove(args) => args.run(shell).await,
            NodeCommand::Import(args) => args.run(shell).await,
            NodeCommand::Discovered(args) => args.run(shell).await,
            NodeCommand::Adopt(args) => args.run(shell).await,
        }
    }
}
