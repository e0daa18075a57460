//! `hoist boot`.

mod compare_bss;
mod config;
mod diff;
mod explain;
mod export;
mod history;
mod import_bss;
mod script;
mod state;

use clap::{Args, Subcommand};
use hoist_api::client::ClientError;
use hoist_model::Exit;

use super::Shell;
use crate::failure::Failure;

pub(crate) use config::{find, table};

/// What machines boot, and why
#[derive(Debug, Args)]
pub(crate) struct BootArgs {
    #[command(subcommand)]
    command: BootCommand,
}

#[derive(Debug, Subcommand)]
enum BootCommand {
    /// List the boot configurations, with how many nodes each selects, and boot parameters of BSS
    #[command(after_help = "Examples:\n  hoist boot list\n  hoist boot list -o wide")]
    List,
    Show(config::ShowArgs),
    Explain(explain::ExplainArgs),
    Diff(diff::DiffArgs),
    Script(script::ScriptArgs),
    History(history::HistoryArgs),
    State(state::StateArgs),
    Set(state::SetArgs),
    Once(state::OnceArgs),
    ImportBss(import_bss::ImportBssArgs),
    Export(export::ExportArgs),
}

impl BootArgs {
    pub(crate) async fn run(self, shell: &mut Shell) -> Result<Exit, Failure> {
        match self.command {
            BootCommand::List => config::list(shell).await,
            BootCommand::Show(args) => args.run(shell).await,
            BootCommand::Explain(args) => args.run(shell).await,
            BootCommand::Diff(args) => args.run(shell).await,
            BootCommand::Script(args) => args.run(shell).await,
            BootCommand::History(args) => args.run(shell).await,
            BootCommand::State(args) => args.run(shell).await,
            BootCommand::Set(args) => args.run(shell).await,
            BootCommand::Once(args) => args.run(shell).await,
            BootCommand::ImportBss(args) => args.run(shell).await,
            BootCommand::Export(args) => args.run(shell).await,
        }
    }

    /// As with diff(1), 1 means differences and nothing else.
    pub(crate) fn compares(&self) -> bool {
        match &self.command {
            BootCommand::Diff(_) => true,
            BootCommand::ImportBss(args) => args.compares(),
            _ => false,
        }
    }
}

/// The HTTP status that a server answered with, if it answered.
fn answered_status(error: &ClientError) -> Option<u16> {
    match error {
        ClientError::Foreign { status, .. } => Some(*status),
        ClientError::Problem { problem, .. } => Some(problem.status),
        _ => None,
    }
}
