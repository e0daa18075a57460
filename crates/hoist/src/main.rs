//! `hoist`: the command line, and the place where the server is put together.
//!
//! Every command ends with one code of the table in `hoist_model::Exit`; that is decided here and
//! in `failure`, and nowhere else.
//!
//! Does not belong here: rules of the domain. A command parses its arguments, calls the controller
//! or a pure crate, and prints.

mod backup;
mod changes;
mod cli;
mod commands;
mod connect;
mod db;
mod edit;
mod failure;
mod input;
mod node_ref;
mod offline;
mod over_ssh;
mod printer;
mod secret_file;
mod serve;
mod settings;
mod table;
mod when;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Parser;
use hoist_model::Exit;
use tokio::signal::unix::{SignalKind, signal};

use crate::cli::{Cli, Command};
use crate::commands::Shell;
use crate::failure::Failure;
use crate::printer::Printer;

/// The system's allocator keeps an arena per thread and gives hardly any of it back: after a bulk
/// apply of 100,000 nodes a controller stayed four times as large as its roster; see bench/RESULTS.md.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The argument with which this program starts itself to keep programs of steps. Internal.
const SUPERVISE_PROGRAMS: &str = "supervise-programs";

/// How the supervisor of programs is started: as what runs here, whatever has become of its file.
fn supervisor() -> Vec<OsString> {
    vec!["/proc/self/exe".into(), SUPERVISE_PROGRAMS.into()]
}

/// A signal that asks all processes of a service to end is meant for the programs; their supervisor
/// ends with the last of them. The signal is caught, and not ignored, because programs would
/// inherit that. The controller's parent may ignore ended children; the supervisor must not inherit
/// that.
fn outlive_signals() -> std::io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    let _inside = runtime.enter();
    let kinds = [
        SignalKind::child(),
        SignalKind::hangup(),
        SignalKind::interrupt(),
        SignalKind::quit(),
        SignalKind::terminate(),
    ];
    // A caught signal stays caught without the runtime.
    kinds.into_iter().try_for_each(|kind| signal(kind).map(drop))
}

fn main() -> ExitCode {
    if std::env::args_os().nth(1).is_some_and(|argument| argument == SUPERVISE_PROGRAMS) {
        let kept = outlive_signals().and_then(|()| hoist_engine::execute::supervisor::main());
        if let Err(error) = &kept {
            // For a person who starts it by hand; the controller does not read it.
            eprintln!(
                "hoist: this command is internal; only a controller starts it, with a socket: {error}"
            );
        }
        return exit_code(if kept.is_ok() { Exit::Done } else { Exit::Failed });
    }
    if std::env::args_os().nth(1).is_some_and(|argument| argument == over_ssh::ARGUMENT) {
        return over_ssh::run();
    }
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version are answers, on standard output; a closed pipe there is no fault.
            let _ = error.print();
            let wrong = error.use_stderr();
            return exit_code(if wrong { Exit::Usage } else { Exit::Done });
        }
    };
    // As with diff(1), 1 means differences and nothing else.
    let compares = match &cli.command {
        Command::Diff(_) => true,
        Command::Boot(args) => args.compares(),
        _ => false,
    };
    let failed = if compares { Exit::Usage } else { Exit::Failed };
    let mut shell = Shell {
        printer: Printer::standard(cli.output),
        connection: cli.connection.without_empty(),
    };
    let ended = run(cli.command, &mut shell).and_then(|exit| {
        shell.printer.flush()?;
        Ok(exit)
    });
    exit_code(match ended {
        Ok(exit) => exit,
        Err(failure) if failure.is_closed_pipe() => Exit::Done,
        Err(failure) => {
            // Results come before the failure.
            let _ = shell.printer.flush();
            shell.printer.failure(&failure);
            if failure.exit() == Exit::Failed { failed } else { failure.exit() }
        }
    })
}

fn run(command: Command, shell: &mut Shell) -> Result<Exit, Failure> {
    match command {
        // These make their own runtime.
        Command::Serve(args) => serve::run(&args, shell),
        Command::Db(args) => db::run(&args, shell),
        Command::Backup(args) => backup::run(&args, shell),
        // These need none.
        Command::Bootstrap(args) => args.run(shell),
        Command::Identity(args) => args.run(shell),
        Command::Schema(args) => args.run(shell),
        Command::Completions(args) => args.run(shell),
        Command::Man(args) => args.run(shell),
        Command::Version => commands::version::run(shell),
        command => tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(Failure::Runtime)?
            .block_on(ask(command, shell)),
    }
}

/// The commands that ask a server.
async fn ask(command: Command, shell: &mut Shell) -> Result<Exit, Failure> {
    match command {
        Command::Apply(args) => args.run(shell).await,
        Command::Diff(args) => args.run(shell).await,
        Command::Export(args) => args.run(shell).await,
        Command::Get(args) => args.run(shell).await,
        Command::Delete(args) => args.run(shell).await,
        Command::Node(args) => args.run(shell).await,
        Command::Boot(args) => args.run(shell).await,
        Command::Metadata(args) => args.run(shell).await,
        Command::Provision(args) => args.run(shell).await,
        Command::Agent(args) => args.run(shell).await,
        Command::Cluster(args) => args.run(shell).await,
        Command::Plugin(args) => args.run(shell).await,
        Command::Deploy(args) => args.run(shell).await,
        Command::Group(args) => args.run(shell).await,
        Command::Network(args) => args.run(shell).await,
        Command::Partition(args) => args.run(shell).await,
        Command::Artifact(args) => args.run(shell).await,
        Command::Image(args) => args.run(shell).await,
        Command::Token(args) => args.run(shell).await,
        Command::Audit(args) => args.run(shell).await,
        Command::Status(args) => args.run(shell).await,
        Command::Refresh(args) => args.run(shell).await,
        Command::Events(args) => args.run(shell).await,
        Command::Bench(args) => args.run(shell).await,
        Command::Serve(_)
        | Command::Db(_)
        | Command::Backup(_)
        | Command::Bootstrap(_)
        | Command::Identity(_)
        | Command::Schema(_)
        | Command::Completions(_)
        | Command::Man(_)
        | Command::Version => unreachable!("dispatched by `run`"),
    }
}

fn exit_code(exit: Exit) -> ExitCode {
    ExitCode::from(exit.code())
}
