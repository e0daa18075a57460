//! `hoist backup`. STUB: only the commands are here; somebody replaces this file.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use hoist_model::Exit;

use crate::commands::Shell;
use crate::failure::Failure;

/// Everything needed on an empty machine, in one encrypted file
#[derive(Debug, Args)]
pub(crate) struct BackupArgs {
    #[command(subcommand)]
    pub(crate) command: BackupCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum BackupCommand {
    /// Make a backup
    #[command(after_help = "Examples:\n  hoist backup create site.hoist")]
    Create { file: PathBuf },
    /// Check that a backup can be restored
    #[command(after_help = "Examples:\n  hoist backup verify site.hoist")]
    Verify { file: PathBuf },
    /// Restore a backup into an empty data directory
    #[command(
        after_help = "Examples:\n  hoist backup restore site.hoist --data-dir /var/lib/hoist"
    )]
    Restore { file: PathBuf },
}

pub(crate) fn run(_args: &BackupArgs, _shell: &mut Shell) -> Result<Exit, Failure> {
    Err(Failure::usage("`hoist backup` is not part of this build"))
}
