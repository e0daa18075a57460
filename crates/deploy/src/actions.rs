//! What tasks can do on a machine.
//!
//! Every one is an [`Action`] like those of plug-ins, and knows of its machine only what its
//! [`Ctx`](hoist_engine::action::Ctx) says. Where that names a directory other than `/`, the subject
//! is that directory, and files are only written below it.

mod account;
mod ansible;
mod backup;
mod blocks;
mod copy;
mod file;
mod http;
mod input;
mod line_diff;
mod none;
mod place;
mod preview;
mod program;
mod puppet;
mod put;
mod reboot;
mod script;
mod shell;
mod steps;
mod sync;
mod wait;

use std::sync::Arc;

use hoist_diagnostic::Diagnostic;
use hoist_engine::action::{Ability, Action, Catalog, Description, Failure};
use hoist_engine::record::FailureKind;

/// All of the built-in actions.
pub fn catalog() -> Catalog {
    catalog_with([])
}

/// The built-in actions and others, which lists of steps can call as well. One with the name of a
/// built-in action takes its place.
pub fn catalog_with(others: impl IntoIterator<Item = Arc<dyn Action>>) -> Catalog {
    let mut catalog = Catalog::default();
    let built_in: [Arc<dyn Action>; 11] = [
        Arc::new(shell::Shell),
        Arc::new(script::ScriptFile),
        Arc::new(file::File),
        Arc::new(copy::Copy),
        Arc::new(sync::Sync),
        Arc::new(reboot::Reboot::default()),
        Arc::new(http::Http),
        Arc::new(wait::Wait),
        Arc::new(puppet::Puppet::default()),
        Arc::new(ansible::Ansible::default()),
        Arc::new(none::None),
    ];
    for action in built_in.into_iter().chain(others) {
        catalog.add(action);
    }
    let steps = steps::Steps(catalog.clone());
    catalog.add(Arc::new(steps));
    catalog
}

fn described(name: &str, about: &str, can: &[Ability]) -> Description {
    Description {
        name: name.to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        about: about.to_owned(),
        can: can.iter().copied().collect(),
        ..Description::default()
    }
}

fn exit(reason: impl Into<String>) -> Failure {
    Failure { kind: FailureKind::Exit, reason: reason.into() }
}

fn timeout(reason: impl Into<String>) -> Failure {
    Failure { kind: FailureKind::Timeout, reason: reason.into() }
}

/// Compilation rejects invalid input before a run starts, so invalid input here is a programming
/// error.
fn invalid(diagnostics: Vec<Diagnostic>) -> Failure {
    let diagnostic = diagnostics.into_iter().next().unwrap_or_else(|| Diagnostic {
        at: String::new(),
        message: "the input is not valid".to_owned(),
        hint: None,
    });
    let at = if diagnostic.at.is_empty() { String::new() } else { format!("{}: ", diagnostic.at) };
    Failure { kind: FailureKind::Internal, reason: format!("{at}{}", diagnostic.message) }
}

/// What ends the reading of a file may be no diagnostic of the file.
fn io_error(error: &std::io::Error) -> Failure {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<Failure>());
    inner.cloned().unwrap_or_else(|| exit(error.to_string()))
}

#[cfg(test)]
mod tests;
