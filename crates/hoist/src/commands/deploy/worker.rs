//! `hoist deploy worker`: does the work of one node, as its agent does.

use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use hoist_api::Code;
use hoist_api::client::{Client, ClientError};
use hoist_diagnostic::chain;
use hoist_engine::action::Cancel;
use hoist_engine::execute::{BaseDirectory, NoSecrets};
use hoist_engine::pull::{Orders, Transport, Unreachable, Worker, WorkerReport, WorkerSetup};
use hoist_model::Exit;
use tokio::runtime::Handle;
use tokio::sync::mpsc;

use super::offline;
use crate::commands::Shell;
use crate::failure::Failure;

/// Run the steps of one node until interrupted
///
/// For machines without an agent. The command asks the controller for work with a token of its own,
/// runs it on this machine and reports the results; a report is repeated until the controller
/// acknowledges it. Tasks that call plug-ins need these on this machine too.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    hoist token create n1-agent --scope write:agent:node:n1 --out n1.token\n  \
    hoist deploy worker n1 --dir /var/lib/hoist-worker --token-file n1.token --server \
    https://controller:27443 --ca root.pem")]
pub(super) struct WorkerArgs {
    /// The node that this machine is
    #[arg(value_name = "NODE")]
    node: String,
    /// Directory of the ledger: jobs and their results
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
    /// Work in a directory below this one, not on all of the machine
    #[arg(long, value_name = "DIR")]
    below: Option<PathBuf>,
    /// Where plug-ins are; where `hoist serve` would look for them if left out
    #[arg(long, value_name = "DIR")]
    plugins: Option<PathBuf>,
}

impl WorkerArgs {
    pub(super) async fn run(self, shell: &mut Shell) -> Result<Exit, Failure> {
        let client = shell.client()?;
        let base = self.below.map_or(BaseDirectory::Machine, BaseDirectory::Below);
        let catalog = match &self.plugins {
            Some(directory) if !directory.is_dir() => {
                let message = format!("`{}` is no directory", directory.display());
                return Err(Failure::usage(message).with_hint("name the one with the plug-ins"));
            }
            Some(directory) => offline::catalog_with(shell, directory)?,
            None => offline::catalog(shell)?,
        };
        let secrets = Arc::new(NoSecrets);
        let supervisor = Some(crate::supervisor());
        let setup = WorkerSetup { catalog, secrets, base, dir: self.dir, supervisor };
        let mut worker = Worker::new(setup).map_err(Failure::File)?;
        shell.printer.note(&format!("working for node {}", self.node));
        let cancel = Cancel::default();
        let (notes, mut noted) = mpsc::unbounded_channel();
        let mut dispatcher = Dispatcher {
            client,
            node: self.node,
            runtime: Handle::current(),
            cancel: cancel.clone(),
            notes,
            is_away: false,
            refused: None,
        };
        let mut working = tokio::task::spawn_blocking(move || {
            let cancel = dispatcher.cancel.clone();
            worker.work(&mut dispatcher, &cancel);
            dispatcher.refused
        });
        loop {
            tokio::select! {
                ended = &mut working => {
                    let refused = ended.map_err(|died| Failure::Broken(died.to_string()))?;
                    return refused.map_or(Ok(Exit::Done), |error| Err(error.into()));
                }
                Some(note) = noted.recv() => shell.printer.warn(&note),
                _ = tokio::signal::ctrl_c() => {
                    cancel.cancel();
                    return Ok(Exit::Done);
                }
            }
        }
    }
}

/// The controller, over HTTP. One that is away is waited for; one that refuses is not.
struct Dispatcher {
    client: Client,
    node: String,
    runtime: Handle,
    cancel: Cancel,
    notes: mpsc::UnboundedSender<String>,
    is_away: bool,
    refused: Option<ClientError>,
}

impl Transport for Dispatcher {
    fn exchange(&mut self, report: &WorkerReport) -> Result<Orders, Unreachable> {
        let answered: Result<Orders, ClientError> =
            self.runtime.block_on(self.client.work(&self.node, report));
        let error = match answered {
            Ok(orders) => {
                self.is_away = false;
                return Ok(orders);
            }
            Err(error) => error,
        };
        let unreachable = Unreachable(chain(&error));
        let no = [Code::Forbidden, Code::Unauthenticated, Code::PlainAdmin];
        if error.code().is_some_and(|code| no.contains(code)) {
            self.refused = Some(error);
            self.cancel.cancel();
        } else if !std::mem::replace(&mut self.is_away, true) {
            // The receiver is gone when the process is about to end.
            let _ = self.notes.send(unreachable.to_string());
        }
        Err(unreachable)
    }
}
