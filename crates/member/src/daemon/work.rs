//! The worker of the node: fetches steps of deployments over the member's certificate and runs them
//! with the same actions as `hoist deploy worker`.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use hoist_deploy::actions;
use hoist_diagnostic::chain;
use hoist_engine::action::{Action, Cancel, Catalog};
use hoist_engine::execute::{BaseDirectory, NoSecrets};
use hoist_engine::plugin::{self, Isolation, IsolationPolicy};
use hoist_engine::pull::{
    HEARTBEAT, MAX_MESSAGE, Orders, Transport, Unreachable, Worker, WorkerReport, WorkerSetup,
};
use parking_lot::Mutex;

use super::{DaemonError, DaemonSetup, Membership};
use crate::console::Console;
use crate::controller::{CallError, Session, authority_of_url};

/// A controller holds an answer back for a heartbeat while it has no orders.
const ANSWER: Duration = Duration::from_secs(3 * HEARTBEAT.as_secs());

/// Starts the worker in a thread of its own. It ends with the process: programs that run then go on
/// and are found again.
pub(super) fn start(
    setup: &DaemonSetup,
    shared: &Arc<Mutex<Membership>>,
    cancel: &Cancel,
) -> Result<(), DaemonError> {
    let catalog = catalog(&setup.plugins, setup.state.path(), setup.console.as_ref());
    let worker_setup = WorkerSetup {
        catalog,
        secrets: Arc::new(NoSecrets),
        base: BaseDirectory::Machine,
        dir: setup.state.work_dir(),
        supervisor: None,
    };
    let mut worker = Worker::new(worker_setup).map_err(DaemonError::Worker)?;
    let mut controller = Controllers {
        shared: Arc::clone(shared),
        console: Arc::clone(&setup.console),
        first: 0,
        is_away: false,
    };
    let cancel = cancel.clone();
    let work = move || worker.work(&mut controller, &cancel);
    std::thread::Builder::new()
        .name("worker".to_owned())
        .spawn(work)
        .map(drop)
        .map_err(DaemonError::Worker)
}

/// The built-in actions, and the plug-ins of the directory.
fn catalog(directory: &Path, state: &Path, console: &dyn Console) -> Catalog {
    if !directory.is_dir() {
        return actions::catalog();
    }
    let isolation = Arc::new(Isolation::find(IsolationPolicy::Required, [state.to_owned()]));
    let (plugins, refused) = plugin::load(directory, &isolation, &actions::catalog());
    for error in &refused {
        console.warn(&chain(error));
    }
    let action = |plugin| Arc::new(plugin) as Arc<dyn Action>;
    actions::catalog_with(plugins.into_iter().map(action))
}

/// The controllers of the cluster, tried one after the other.
struct Controllers {
    shared: Arc<Mutex<Membership>>,
    console: Arc<dyn Console>,
    /// The index of the controller that answered last.
    first: usize,
    is_away: bool,
}

impl Transport for Controllers {
    fn exchange(&mut self, report: &WorkerReport) -> Result<Orders, Unreachable> {
        let Membership { file, tls } = self.shared.lock().clone();
        let controllers: Vec<String> =
            file.controllers.iter().filter_map(|url| authority_of_url(url)).collect();
        let path = format!("/agent/v1/nodes/{}/work", file.node);
        let mut failed: Option<CallError> = None;
        for offset in 0..controllers.len() {
            let at = (self.first + offset) % controllers.len();
            let asked = Session::connect(&controllers[at], &tls).and_then(|mut session| {
                session.post_within::<Orders>(&path, report, MAX_MESSAGE, ANSWER)
            });
            match asked {
                Ok(orders) => {
                    self.first = at;
                    self.is_away = false;
                    return Ok(orders);
                }
                Err(error) => failed = Some(CallError::or_more_telling(failed, error)),
            }
        }
        // The daemon reports the end of the membership, and ends.
        let is_ended = failed.as_ref().is_some_and(|error| error.membership_end().is_some());
        let problem = failed.map_or_else(|| "no controller is known".to_owned(), |e| chain(&e));
        if !is_ended && !std::mem::replace(&mut self.is_away, true) {
            self.console.warn(&format!("cannot fetch work: {problem}"));
        }
        Err(Unreachable(problem))
    }
}
