//! `hoist-image`: builds images of operating systems from documents, and unpacks them.
//!
//! A program of its own, so that neither `hoist` nor a node carries what building takes; `hoist image
//! build` runs it. Every command ends with one code of the table in `hoist_model::Exit`.
//!
//! Does not belong here: building itself, which is the library of this crate.

mod cli;
mod commands;
mod failure;

use std::process::ExitCode;

use clap::Parser;
use hoist_model::Exit;

use crate::cli::{Cli, Command};

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version are answers, on standard output; a closed pipe there is no fault.
            let _ = error.print();
            let exit = if error.use_stderr() { Exit::Usage } else { Exit::Done };
            return ExitCode::from(exit.code());
        }
    };
    let ended = match cli.command {
        Command::Build(args) => commands::build(&args, cli.output),
        Command::Unpack(args) => commands::unpack(&args, cli.output),
        Command::Schema => commands::schema(),
    };
    let exit = ended.unwrap_or_else(|failure| {
        failure.print();
        failure.exit()
    });
    ExitCode::from(exit.code())
}
