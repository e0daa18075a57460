//! The commands of a member: `bootstrap`, `daemon`, `identity`. Their work is in `hoist-member`.

use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;

use hoist_member::bootstrap::{self, BootstrapHost};
use hoist_member::command_line::IdentityCommand;
use hoist_member::console::Terminal;
use hoist_member::daemon::{self, DaemonSetup};
use hoist_member::facts::FactSource;
use hoist_member::identity;
use hoist_member::interrupt::Interrupt;
use hoist_member::join::JoinSetup;
use hoist_member::local_network::LocalNetwork;
use hoist_member::service::ServiceHost;
use hoist_member::state::StateDir;
use hoist_model::Exit;
use serde::Serialize;

use crate::cli::{BootstrapArgs, DaemonArgs, Output};
use crate::commands::print_json;
use crate::failure::Failure;

pub(crate) fn bootstrap(args: &BootstrapArgs, output: Output) -> Result<Exit, Failure> {
    let request = args.options.request(args.token_file.as_deref(), &Terminal)?;
    let host = BootstrapHost {
        state: StateDir::new(&args.options.state_dir),
        console: Arc::new(Terminal),
        interrupt: Interrupt::on_signals().map_err(Failure::Signals)?,
        facts: FactSource::default(),
        service: ServiceHost::default(),
        discovery: &LocalNetwork::default(),
        founder: None,
    };
    let report = bootstrap::run(&request, &host)?;
    print(&report, output)?;
    Ok(report.exit())
}

pub(crate) fn daemon(args: &DaemonArgs) -> Result<Exit, Failure> {
    let setup = DaemonSetup {
        state: StateDir::new(&args.state.state_dir),
        console: Arc::new(Terminal),
        interrupt: Interrupt::on_signals().map_err(Failure::Signals)?,
        facts: FactSource::default(),
        plugins: args.plugins.clone(),
    };
    Ok(daemon::run(&setup)?)
}

pub(crate) fn identity(command: &IdentityCommand, output: Output) -> Result<Exit, Failure> {
    match command {
        IdentityCommand::Show(args) => {
            print(&identity::show(&StateDir::new(&args.state_dir))?, output)?;
        }
        IdentityCommand::Reset(args) => {
            let setup = JoinSetup {
                state: StateDir::new(&args.state.state_dir),
                console: Arc::new(Terminal),
                interrupt: Interrupt::on_signals().map_err(Failure::Signals)?,
                facts: FactSource::default(),
                service: ServiceHost::default(),
                wait: Duration::ZERO,
                probe: None,
            };
            let was_removed = identity::reset(&setup, args.yes)?;
            let text = if was_removed { "the identity was removed" } else { "nothing to remove" };
            writeln!(io::stdout(), "{text}")?;
        }
    }
    Ok(Exit::Done)
}

fn print(value: &(impl Serialize + std::fmt::Display), output: Output) -> Result<(), Failure> {
    match output {
        Output::Json => print_json(value),
        Output::Text => Ok(writeln!(io::stdout(), "{value}")?),
    }
}
