//! `hoist db`. STUB: only the commands are here; somebody replaces this file.

use clap::{Args, Subcommand};
use hoist_model::Exit;

use crate::commands::Shell;
use crate::failure::Failure;

/// hoist's own database
#[derive(Debug, Args)]
pub(crate) struct DbArgs {
    #[command(subcommand)]
    pub(crate) command: DbCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum DbCommand {
    /// Show the database and its schema version
    #[command(after_help = "Examples:\n  hoist db status")]
    Status,
    /// Print every record
    #[command(after_help = "Examples:\n  hoist db export > site.db.ndjson")]
    Export,
    /// Read records that were exported
    #[command(after_help = "Examples:\n  hoist db import site.db.ndjson")]
    Import { file: std::path::PathBuf },
    /// Copy everything into another store
    #[command(after_help = "Examples:\n  hoist db migrate --to etcd://h1:2379/hoist")]
    Migrate {
        #[arg(long, value_name = "URL")]
        to: String,
        /// Take over a store that is not empty
        #[arg(long)]
        force: bool,
    },
}

pub(crate) fn run(_args: &DbArgs, _shell: &mut Shell) -> Result<Exit, Failure> {
    Err(Failure::usage("`hoist db` is not part of this build"))
}
