//! `hoist-agent`: brings the disks of this machine into the state described by a document, and is
//! the machine's member of a cluster.
//!
//! This crate decides nothing: `hoist_provision::plan` derives the plan from the document and
//! the machine. Every command ends with one code of the table in `hoist_model::Exit`.
//!
//! In the image made by `hoist agent image`, the agent is also the machine's init process and the
//! kernel's module loader.
//!
//! Does not belong here: rules about disks (`hoist-provision`), writes to devices
//! (`hoist-device`), and the node's side of a cluster (`hoist-member`).

mod cli;
mod command_line;
mod commands;
mod failure;
mod final_actions;
mod init;
mod input;
mod membership;
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
        Command::Validate(args) => commands::validate(&args, cli.output),
        Command::Plan(args) => commands::plan(&args.document, args.facts.as_deref(), cli.output),
        Command::Apply(args) => commands::apply(&args, cli.output),
        Command::Verify(args) => commands::verify(&args, cli.output),
        Command::Undo(args) => commands::undo(&args, cli.output),
        Command::Provision(args) => provision::run(&args),
        Command::Bootstrap(args) => membership::bootstrap(&args, cli.output),
        Command::Daemon(args) => membership::daemon(&args),
        Command::Identity(command) => membership::identity(&command, cli.output),
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
