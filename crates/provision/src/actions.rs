//! What is done to disks, as actions of the engine: each step is data, and an action does to the
//! disks that it was given what the data says.

pub mod disks;
mod held;
pub mod images;

use hoist_engine::action::Failure;
use hoist_engine::record::FailureKind;

pub use held::Held;

/// A failure with everything that led to it, in one line.
fn failed(error: &(dyn std::error::Error + 'static)) -> Failure {
    let mut reason = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        reason = format!("{reason}: {error}");
        source = error.source();
    }
    Failure { kind: FailureKind::Exit, reason }
}

/// Something that a plan of ours never asks for.
fn wrong(reason: String) -> Failure {
    Failure { kind: FailureKind::Internal, reason }
}
