//! How a refused write is told.

use hoist_api::{Code, Conflict, Problem};
use hoist_diagnostic::Diagnostic;
use hoist_site::plan::{Reason, Refusal};
use hoist_site::registry::WriteError;

use hoist_chassis::failure::Failure;

/// Diagnostics in one answer; a file with more is corrected in rounds.
pub(super) const MAX_DIAGNOSTICS: usize = 100;

/// The answer to a write that was not done.
pub(crate) fn write_failure(error: WriteError) -> Failure {
    let detail = error.to_string();
    match error {
        WriteError::Refused(refusals) => refused(detail, &refusals),
        WriteError::Affects { affected, .. } => Failure::new(Code::AffectsTooMany, detail)
            .with_remedy(format!("if that is what you want, say `--affects {affected}`")),
        WriteError::Outdated { .. } | WriteError::Precondition => {
            Failure::new(Code::PreconditionFailed, detail)
                .with_remedy("read the current state, look again, try again")
        }
        WriteError::Forbidden { needs, .. } => {
            let limited = || "your token is limited to other nodes".to_owned();
            Failure::new(Code::Forbidden, detail).with_remedy(needs.unwrap_or_else(limited))
        }
        WriteError::NotFound { .. } => Failure::new(Code::NotFound, detail),
        WriteError::Busy | WriteError::SiteKeptChanging => {
            Failure::new(Code::Busy, detail).with_remedy("try again")
        }
        WriteError::Cancelled => Failure::new(Code::Stopping, detail).with_remedy("try again"),
        WriteError::NotLoaded { .. } => Failure::new(Code::ReadOnly, detail)
            .with_remedy("reads go on from the last-good copy; try again when `/readyz` is ok"),
        WriteError::Store(error) => error.into(),
        _ => Failure::new(Code::Internal, detail),
    }
}

fn refused(detail: String, refusals: &[Refusal]) -> Failure {
    // The worst comes first: invalid documents, then conflicts.
    let has = |reason| refusals.iter().any(|refusal| refusal.reason == reason);
    let code = if has(Reason::Invalid) || has(Reason::Missing) {
        Code::InvalidBody
    } else if has(Reason::Protected) {
        Code::Protected
    } else if has(Reason::Managed) {
        Code::Managed
    } else {
        Code::Conflict
    };
    let mut problem = Problem::new(code, detail);
    for refusal in refusals.iter().take(MAX_DIAGNOSTICS) {
        problem =
            problem.with_diagnostic(refusal.diagnostic.clone().within(&refusal.subject_text()));
        if let Some(holder) = &refusal.holder {
            problem = problem.with_conflict(Conflict {
                field: refusal.diagnostic.at.clone(),
                value: refusal.value.clone().unwrap_or_default(),
                holder: format!("node/{holder}"),
            });
        }
    }
    problem.into()
}

/// The answer to documents with problems.
pub(super) fn invalid_documents(found: Vec<Diagnostic>) -> Failure {
    let detail = match found.as_slice() {
        [one] => one.to_string(),
        many => format!("{} problems in the documents", many.len()),
    };
    let mut problem = Problem::new(Code::InvalidBody, detail);
    for diagnostic in found.into_iter().take(MAX_DIAGNOSTICS) {
        problem = problem.with_diagnostic(diagnostic);
    }
    problem.into()
}
