//! Text to a document: YAML or JSON, as everywhere.

use hoist_diagnostic::Diagnostic;
use hoist_model::document::{DocumentError, read_one};

use super::{API, Document, check};
use crate::diagnostic::{Code, ProvisionDiagnostic};

/// Largest text of a document. With a config drive in it, one has a few hundred kilobytes.
pub const MAX_BYTES: usize = 4 * 1024 * 1024;

/// A document without fault, or everything that is wrong with it.
pub fn read(source: &str, text: &[u8]) -> Result<Document, Vec<ProvisionDiagnostic>> {
    if text.len() > MAX_BYTES {
        let what = format!("{} bytes are more than the limit of {MAX_BYTES}", text.len());
        let found = ProvisionDiagnostic::new(Code::TooLarge, source, what);
        return Err(vec![found.hint("fetch large contents as images")]);
    }
    let document: Document = read_one(source, text)
        .map_err(|errors| errors.into_iter().map(unreadable).collect::<Vec<_>>())?;
    if document.api != API {
        let what = format!("this is `{}`, which I do not know", document.api);
        return Err(vec![
            ProvisionDiagnostic::new(Code::BadValue, "api", what)
                .hint(format!("write `api: {API}`")),
        ]);
    }
    let found = check(&document);
    if found.is_empty() { Ok(document) } else { Err(found) }
}

pub(crate) fn unreadable(error: DocumentError) -> ProvisionDiagnostic {
    let DocumentError { source, line, column, message, hint, .. } = error;
    let at = if line > 0 { format!("{source}:{line}:{column}") } else { source };
    ProvisionDiagnostic::of(Code::Unreadable, Diagnostic { at, message, hint })
}
