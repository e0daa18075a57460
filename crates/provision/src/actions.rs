//! What is done to disks, as actions of the engine: each step is data, and an action does to the
//! disks that it was given what the data says.

pub mod disks;
mod held;
pub mod images;

use hoist_engine::action::Failure;
use hoist_engine::record::FailureKind;

pub use held::Held;

/// An error with everything that led to it, in one line.
pub(crate) fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text
}

fn failed(error: &(dyn std::error::Error + 'static)) -> Failure {
    Failure { kind: FailureKind::Exit, reason: chain(error) }
}

/// Something that a plan of ours never asks for.
fn wrong(reason: String) -> Failure {
    Failure { kind: FailureKind::Internal, reason }
}
