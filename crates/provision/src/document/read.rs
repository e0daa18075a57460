//! Text to a document: YAML or JSON, as everywhere.

mod type_errors;

use hoist_diagnostic::Diagnostic;
use hoist_model::document::read_one;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{API, Document, check};
use crate::diagnostic::{Code, ProvisionDiagnostic};

/// Largest text of a document. With a config drive in it, one has a few hundred kilobytes.
pub const MAX_BYTES: usize = 4 * 1024 * 1024;

/// A valid document, or everything that is wrong with it.
pub fn read(source: &str, text: &[u8]) -> Result<Document, Vec<ProvisionDiagnostic>> {
    if text.len() > MAX_BYTES {
        let what = format!("{} bytes are more than the limit of {MAX_BYTES}", text.len());
        let found = ProvisionDiagnostic::new(Code::TooLarge, source, what);
        return Err(vec![found.hint("fetch large contents as images")]);
    }
    let document: Document =
        read_one(source, text).map_err(|errors| type_errors::all(source, text, errors))?;
    if document.api != API {
        let what = format!("unknown API version `{}`", document.api);
        return Err(vec![
            ProvisionDiagnostic::new(Code::BadValue, "api", what)
                .hint(format!("write `api: {API}`")),
        ]);
    }
    let found = check(&document);
    if found.is_empty() { Ok(document) } else { Err(found) }
}

/// Every type error in the sections of a document, with its path.
pub fn type_errors(sections: &Value) -> Vec<ProvisionDiagnostic> {
    type_errors::in_sections(sections)
}

/// An input of another format, or all of its type errors.
pub(crate) fn read_typed<T: DeserializeOwned>(
    source: &str,
    text: &[u8],
) -> Result<T, Vec<ProvisionDiagnostic>> {
    read_one(source, text).map_err(|errors| type_errors::all_of::<T>(source, text, errors))
}

pub(crate) fn unreadable(diagnostic: Diagnostic) -> ProvisionDiagnostic {
    ProvisionDiagnostic::of(Code::Unreadable, diagnostic)
}
