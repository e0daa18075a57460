//! `hoist-agent`: makes the disks of this machine what a document says.
//!
//! It decides nothing itself: what is done follows from the document and the machine, in
//! `hoist_provision::pipeline`. Every command ends with one code of the table in
//! `hoist_model::Exit`.
//!
//! In the image that `hoist agent image` makes it is also the first program of the machine, and what
//! the kernel calls for drivers.

mod cli;
mod command_line;
mod commands;
mod ending;
mod failure;
mod init;
mod input;
mod modules;
mod network;
mod provision;

use std::path::Path;
use std::process::ExitCode;

use clap::Parser;
use hoist_model::Exit;

use crate::cli::{Cli, Command};

fn main() -> ExitCode {
    if init::is_ours() {
        return init::run();
    }
    let called = std::env::args_os().next().unwrap_or_default();
    if Path::new(&called).file_name().is_some_and(|name| name == "modprobe") {
        return load_module();
    }
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
        Command::Validate(wanted) => commands::validate(&wanted, cli.output),
        Command::Plan(wanted) => commands::plan(&wanted, cli.output),
        Command::Apply(args) => commands::apply(&args, cli.output),
        Command::Verify(wanted) => commands::verify(&wanted, cli.output),
        Command::Undo(args) => commands::undo(&args, cli.output),
        Command::Provision(args) => provision::run(&args),
    };
    let exit = ended.unwrap_or_else(|failure| {
        failure.print(cli.output);
        failure.exit()
    });
    ExitCode::from(exit.code())
}

/// The kernel asks for a module by `/sbin/modprobe -q -- NAME`.
fn load_module() -> ExitCode {
    let name = std::env::args().skip(1).find(|word| !word.starts_with('-'));
    let loaded = name.map(|name| modules::load_by_name(&name));
    ExitCode::from(if matches!(loaded, Some(Ok(()))) { Exit::Done } else { Exit::Failed }.code())
}
