//! `hoist cluster`.

mod accept;
mod discover;
mod found;
mod lookup;
mod members;
mod nodes;
mod pin;
mod place;
mod plan;
mod roles;
mod status;
mod targets;
mod token;

use clap::{Args, Subcommand};
use hoist_api::Code;
use hoist_model::Exit;

use super::Shell;
use crate::failure::Failure;

/// The cluster of the site, its members and their roles
#[derive(Debug, Args)]
pub(crate) struct ClusterArgs {
    #[command(subcommand)]
    command: ClusterCommand,
}

#[derive(Debug, Subcommand)]
enum ClusterCommand {
    Found(found::FoundArgs),
    Discover(discover::DiscoverArgs),
    Status(status::StatusArgs),
    Nodes(nodes::NodesArgs),
    Roles(roles::RolesArgs),
    Place(place::PlaceArgs),
    Plan(plan::PlanArgs),
    Pin(pin::PinArgs),
    Token(token::TokenArgs),
    Pending(accept::PendingArgs),
    Accept(accept::AcceptArgs),
    Reject(accept::RejectArgs),
    Drain(members::DrainArgs),
    Leave(members::LeaveArgs),
    Expel(members::ExpelArgs),
    Replace(members::ReplaceArgs),
    Targets(targets::TargetsArgs),
}

impl ClusterArgs {
    pub(crate) async fn run(self, shell: &mut Shell) -> Result<Exit, Failure> {
        match self.command.run(shell).await {
            Err(Failure::Client(error)) if error.code() == Some(&Code::NotFound) => {
                // The object is missing, or the whole cluster is: these have different remedies.
                match shell.client()?.cluster().await {
                    Ok(None) => Err(Failure::NoCluster),
                    _ => Err(Failure::Client(error)),
                }
            }
            ended => ended,
        }
    }
}

impl ClusterCommand {
    async fn run(self, shell: &mut Shell) -> Result<Exit, Failure> {
        match self {
            Self::Found(args) => args.run(shell).await,
            Self::Discover(args) => args.run(shell).await,
            Self::Status(args) => args.run(shell).await,
            Self::Nodes(args) => args.run(shell).await,
            Self::Roles(args) => args.run(shell).await,
            Self::Place(args) => args.run(shell).await,
            Self::Plan(args) => args.run(shell).await,
            Self::Pin(args) => args.run(shell).await,
            Self::Token(args) => args.run(shell).await,
            Self::Pending(args) => args.run(shell).await,
            Self::Accept(args) => args.run(shell).await,
            Self::Reject(args) => args.run(shell).await,
            Self::Drain(args) => args.run(shell).await,
            Self::Leave(args) => args.run(shell).await,
            Self::Expel(args) => args.run(shell).await,
            Self::Replace(args) => args.run(shell).await,
            Self::Targets(args) => args.run(shell).await,
        }
    }
}
