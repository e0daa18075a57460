//! `hoist-agent`: makes the disks of this machine what a document says.
//!
//! It decides nothing itself: what is done follows from the document and the machine, in
//! `hoist_provision::pipeline`. Every command ends with one code of the table in
//! `hoist_model::Exit`.

mod cli;
mod commands;
mod failure;
mod input;

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
        Command::Facts => commands::facts(cli.output),
        Command::Plan(wanted) => commands::plan(&wanted, cli.output),
        Command::Apply(args) => commands::apply(&args, cli.output),
        Command::Verify(wanted) => commands::verify(&wanted, cli.output),
    };
    let exit = ended.unwrap_or_else(|failure| {
        failure.print();
        failure.exit()
    });
    ExitCode::from(exit.code())
}
