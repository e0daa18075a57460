//! `hoist metadata`.

mod layer;
mod render;
mod seed;

use clap::{Args, Subcommand};
use hoist_model::Exit;

use super::Shell;
use crate::failure::Failure;

pub(crate) use layer::{find, table};

/// Metadata of machines: the layers behind cloud-init's documents
#[derive(Debug, Args)]
pub(crate) struct MetadataArgs {
    #[command(subcommand)]
    command: MetadataCommand,
}

#[derive(Debug, Subcommand)]
enum MetadataCommand {
    /// List the layers with their numbers of nodes
    #[command(after_help = "Examples:\n  hoist metadata list\n  hoist metadata list -o wide")]
    List,
    Show(layer::ShowArgs),
    Render(render::RenderArgs),
    Seed(seed::SeedArgs),
    ConfigDrive(seed::ConfigDriveArgs),
}

impl MetadataArgs {
    pub(crate) async fn run(self, shell: &mut Shell) -> Result<Exit, Failure> {
        match self.command {
            MetadataCommand::List => layer::list(shell).await,
            MetadataCommand::Show(args) => args.run(shell).await,
            MetadataCommand::Render(args) => args.run(shell).await,
            MetadataCommand::Seed(args) => args.run(shell).await,
            MetadataCommand::ConfigDrive(args) => args.run(shell).await,
        }
    }
}
