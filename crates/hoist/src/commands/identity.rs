//! `hoist identity`: the command of `hoist-agent`.

use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use hoist_member::command_line::IdentityCommand;
use hoist_member::console::Terminal;
use hoist_member::facts::FactSource;
use hoist_member::identity::{self, IdentityError};
use hoist_member::interrupt::Interrupt;
use hoist_member::join::JoinSetup;
use hoist_member::service::ServiceHost;
use hoist_member::state::StateDir;
use hoist_model::Exit;

use super::Shell;
use crate::failure::Failure;
use crate::printer::Output;

/// Show or remove the identity of this machine in its cluster
#[derive(Debug, Args)]
pub(crate) struct IdentityArgs {
    #[command(subcommand)]
    command: IdentityCommand,
}

impl IdentityArgs {
    pub(crate) fn run(&self, shell: &mut Shell) -> Result<Exit, Failure> {
        match &self.command {
            IdentityCommand::Show(args) => {
                let view = identity::show(&StateDir::new(&args.state_dir)).map_err(failed)?;
                match shell.printer.output() {
                    Output::Json | Output::Yaml => shell.printer.value(&view)?,
                    Output::Name => shell.printer.line(view.id.as_deref().unwrap_or_default())?,
                    Output::Table | Output::Wide => shell.printer.line(view.to_string())?,
                }
            }
            IdentityCommand::Reset(args) => {
                let setup = JoinSetup {
                    state: StateDir::new(&args.state.state_dir),
                    console: Arc::new(Terminal),
                    interrupt: Interrupt::on_signals().map_err(Failure::Runtime)?,
                    facts: FactSource::default(),
                    service: ServiceHost::default(),
                    wait: Duration::ZERO,
                    probe: None,
                };
                let was_removed = identity::reset(&setup, args.yes).map_err(failed)?;
                let text =
                    if was_removed { "the identity was removed" } else { "nothing to remove" };
                shell.printer.line(text)?;
            }
        }
        Ok(Exit::Done)
    }
}

#[expect(clippy::needless_pass_by_value, reason = "for `map_err`")]
fn failed(error: IdentityError) -> Failure {
    Failure::member(&error, error.exit(), Some(error.remedy()))
}
