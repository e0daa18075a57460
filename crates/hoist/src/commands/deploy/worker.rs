//! `hoist deploy worker`: does the work of one node, as its agent does.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use hoist_api::Code;
use hoist_api::client::{Client, ClientError};
use hoist_deploy::actions;
use hoist_engine::action::Cancel;
use hoist_engine::execute::{NoSecrets, Place};
use hoist_engine::pull::{Orders, Report, Transport, Unreachable, Worker, WorkerSetup};
use hoist_model::Exit;
use tokio::runtime::Handle;
use tokio::sync::mpsc;

use crate::commands::Shell;
use crate::failure::{Failure, chain};

/// How long a question waits for work, when nothing is under way.
const IDLE: &str = "20s";
/// While something is under way: its end is told at the next question.
const BUSY: &str = "300ms";

const PAUSE_FIRST: Duration = Duration::from_millis(200);
const PAUSE_MAX: Duration = Duration::from_secs(20);

/// Do the work of one node, until it is interrupted
///
/// For machines whose agent is not there yet. It asks the controller for work with a token of its
/// own, does it on this machine, and says what came of it; what the controller did not hear is said
/// again.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    hoist token create n1-agent --scope write:agent:node:n1 --out n1.token\n  \
    hoist deploy worker n1 --dir /var/lib/hoist-worker --token-file n1.token --server \
    https://controller:27443 --ca root.pem")]
pub(super) struct WorkerArgs {
    /// The node that this machine is
    #[arg(value_name = "NODE")]
    node: String,
    /// Where it keeps what it was told and what came of it
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
    /// Work in a directory below this one, not on all of the machine
    #[arg(long, value_name = "DIR")]
    below: Option<PathBuf>,
}

impl WorkerArgs {
    pub(super) async fn run(self, shell: &mut Shell) -> Result<Exit, Failure> {
        let client = shell.client()?;
        let place = self.below.map_or(Place::Machine, Place::Below);
        let (catalog, secrets) = (actions::catalog(), Arc::new(NoSecrets));
        let setup = WorkerSetup { catalog, secrets, place, dir: self.dir };
        let mut worker = Worker::new(setup).map_err(Failure::File)?;
        shell.printer.note(&format!("working for node {}", self.node));
        let (cancel, (notes, mut noted)) = (Cancel::default(), mpsc::unbounded_channel());
        let mut desk = Desk { client, node: self.node, runtime: Handle::current(), refused: None };
        let until = cancel.clone();
        let mut working =
            tokio::task::spawn_blocking(move || work(&mut worker, &mut desk, &until, &notes));
        loop {
            tokio::select! {
                ended = &mut working => {
                    ended.map_err(|died| Failure::Broken(died.to_string()))??;
                    return Ok(Exit::Done);
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

/// Asks, does, and asks again. A controller that is away is waited for; one that refuses is not.
fn work(
    worker: &mut Worker,
    desk: &mut Desk,
    cancel: &Cancel,
    notes: &mpsc::UnboundedSender<String>,
) -> Result<(), Failure> {
    let mut pause = PAUSE_FIRST;
    while !cancel.is_cancelled() {
        let exchanged = worker.exchange(desk);
        if let Some(error) = desk.refused.take() {
            return Err(error.into());
        }
        match exchanged {
            Ok(_) => pause = PAUSE_FIRST,
            Err(unreachable) => {
                if pause == PAUSE_FIRST {
                    // Nobody reads them when we are about to end.
                    let _ = notes.send(unreachable.to_string());
                }
                std::thread::sleep(pause);
                pause = (pause * 2).min(PAUSE_MAX);
            }
        }
    }
    Ok(())
}

/// The controller, over HTTP.
struct Desk {
    client: Client,
    node: String,
    runtime: Handle,
    /// It said no, and will again.
    refused: Option<ClientError>,
}

impl Transport for Desk {
    fn exchange(&mut self, report: &Report) -> Result<Orders, Unreachable> {
        let wait = if report.running.is_empty() { IDLE } else { BUSY };
        let asked = self.client.work(&self.node, report, wait);
        let answered: Result<Orders, ClientError> = self.runtime.block_on(asked);
        answered.map_err(|error| {
            let unreachable = Unreachable(chain(&error));
            let no = [Code::Forbidden, Code::Unauthenticated, Code::PlainAdmin];
            if error.code().is_some_and(|code| no.contains(code)) {
                self.refused = Some(error);
            }
            unreachable
        })
    }
}
