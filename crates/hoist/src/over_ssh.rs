//! The program on a node that is reached by ssh. A controller brings it there and starts it.

use std::process::ExitCode;
use std::sync::Arc;

use hoist_deploy::actions;
use hoist_diagnostic::chain;
use hoist_engine::action::{Action, Catalog};
use hoist_engine::plugin::{self, Isolation, IsolationPolicy};
use hoist_engine::ssh::{Received, serve};

/// The argument with which a controller starts it. Internal.
pub(crate) const ARGUMENT: &str = "work-over-ssh";

pub(crate) fn run() -> ExitCode {
    serve(catalog, Some(crate::supervisor()))
}

/// The actions of hoist, and the plug-ins of the controller.
fn catalog(received: &Received) -> Catalog {
    let Some(directory) = &received.plugins else { return actions::catalog() };
    let policy =
        if received.are_unconfined { IsolationPolicy::None } else { IsolationPolicy::Required };
    let isolation = Arc::new(Isolation::find(policy, [received.dir.clone()]));
    let (plugins, refused) = plugin::load(directory, &isolation, &actions::catalog());
    // The controller shows it if nothing else comes.
    for error in &refused {
        eprintln!("{}", chain(error));
    }
    let action = |plugin| Arc::new(plugin) as Arc<dyn Action>;
    actions::catalog_with(plugins.into_iter().map(action))
}
