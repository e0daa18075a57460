//! How a refused write is told.

use hoist_api::{Code, Conflict, Fault, Problem};
use hoist_boot::parameters::Refused;
use hoist_inventory::plan::{Reason, Refusal};
use hoist_inventory::registry::WriteError;
use hoist_model::document::DocumentError;

use crate::failure::Failure;

/// Faults listed in one answer; a file with more is mended in rounds.
pub(super) const MAX_FAULTS: usize = 100;

impl From<WriteError> for Failure {
    fn from(error: WriteError) -> Self {
        let detail = error.to_string();
        match error {
            WriteError::Refused(refusals) => refused(detail, &refusals),
            WriteError::Affects { affected, .. } => Self::new(Code::AffectsTooMany, detail)
                .with_remedy(format!("if that is what you want, say `--affects {affected}`")),
            WriteError::Outdated { .. } | WriteError::Precondition => {
                Self::new(Code::PreconditionFailed, detail)
                    .with_remedy("read the current state, look again, try again")
            }
            WriteError::Forbidden { needs, .. } => {
                let limited = || "your token is limited to other nodes".to_owned();
                Self::new(Code::Forbidden, detail).with_remedy(needs.unwrap_or_else(limited))
            }
            WriteError::NotFound { .. } => Self::new(Code::NotFound, detail),
            WriteError::Busy | WriteError::Overtaken => {
                Self::new(Code::Busy, detail).with_remedy("try again")
            }
            WriteError::Unwanted => Self::new(Code::Stopping, detail).with_remedy("try again"),
            WriteError::NotLoaded => Self::new(Code::ReadOnly, detail)
                .with_remedy("reads go on from the last-good copy; try again when `/readyz` is ok"),
            WriteError::Draft(reason) => match reason.downcast::<Refused>() {
                Ok(refused) => (*refused).into(),
                Err(_) => Self::new(Code::Internal, detail),
            },
            WriteError::Store(error) => error.into(),
            _ => Self::new(Code::Internal, detail),
        }
    }
}

fn refused(detail: String, refusals: &[Refusal]) -> Failure {
    // The worst comes first: what is wrong by itself, then what is in the way.
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
    for refusal in refusals.iter().take(MAX_FAULTS) {
        let at = match refusal.fault.at.as_str() {
            "" => refusal.subject.clone(),
            at => format!("{}: {at}", refusal.subject),
        };
        let fault =
            Fault { at, message: refusal.fault.message.clone(), hint: refusal.fault.hint.clone() };
        problem = problem.with_fault(fault);
        if let Some(other) = &refusal.other {
            problem = problem.with_conflict(Conflict {
                field: refusal.fault.at.clone(),
                value: refusal.fault.message.split('`').nth(1).unwrap_or_default().to_owned(),
                holder: format!("node/{other}"),
            });
        }
    }
    problem.into()
}

/// Faults of documents, each with its place in the text.
pub(super) fn invalid_documents(errors: Vec<DocumentError>) -> Failure {
    let detail = match errors.as_slice() {
        [one] => one.to_string(),
        many => format!("{} faults in the documents", many.len()),
    };
    let mut problem = Problem::new(Code::InvalidBody, detail);
    for error in errors.into_iter().take(MAX_FAULTS) {
        let subject = error.subject.map(|subject| format!(" {subject}")).unwrap_or_default();
        let at = format!("{}:{}:{}{subject}", error.source, error.line, error.column);
        problem = problem.with_fault(Fault { at, message: error.message, hint: error.hint });
    }
    problem.into()
}
