//! `hoist metadata`.

mod layer;
mod render;

use clap::{Args, Subcommand};
use hoist_model::Exit;

use super::Shell;
use crate::failure::Failure;

pub(crate) use layer::{find, table};

/// What machines are told about themselves: the layers behind cloud-init's documents
#[derive(Debug, Args)]
pub(crate) struct MetadataArgs {
    #[command(subcommand)]
    command: MetadataCommand,
}

#[derive(Debug, Subcommand)]
enum MetadataCommand {
    /// List the layers, with how many nodes each speaks of
    #[command(after_help = "Examples:\n  hoist metadata list\n  hoist metadata list -o wide")]
    List,
    Show(layer::ShowArgs),
    Render(render::RenderArgs),
}

impl MetadataArgs {
    pub(crate) async fn run(self, shell: &mut Shell) -> Result<Exit, Failure> {
        match self.command {
            MetadataCommand::List => layer::list(shell).await,
            MetadataCommand::Show(args) => args.run(shell).await,
            MetadataCommand::Render(args) => args.run(shell).await,
        }
    }
}
