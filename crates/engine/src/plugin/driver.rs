//! Drivers: external executables that translate an input format into a document.

use std::path::Path;
use std::sync::Arc;

use hoist_diagnostic::Diagnostic;
use serde_json::{Value, json};

use super::{
    DRIVER_PREFIX, Isolation, LentDescriptor, PluginError, Program, Terms, Verb, introduce,
    memory_file,
};
use crate::action::Description;

/// The file `hoist-driver-NAME`, described.
#[derive(Debug, Clone)]
pub struct Driver {
    program: Program,
    about: Description,
}

/// The result of a translation.
#[derive(Debug, Clone, PartialEq)]
pub enum DriverResult {
    Document(Value),
    /// The input is not valid, for these reasons.
    Invalid(Vec<Diagnostic>),
}

impl Driver {
    /// Opens the driver of this name in a directory and asks for its description.
    pub fn open(
        directory: &Path,
        name: &str,
        isolation: &Arc<Isolation>,
    ) -> Result<Self, PluginError> {
        let path = directory.join(format!("{DRIVER_PREFIX}{name}"));
        let program = Program::open_as(&path, DRIVER_PREFIX, isolation)?;
        let about = introduce(&program)?.about;
        Ok(Self { program, about })
    }

    pub fn about(&self) -> &Description {
        &self.about
    }

    /// Translates an input, which the driver reads from a descriptor. `options` add information
    /// that the input lacks.
    pub fn parse(&self, input: &[u8], options: &Value) -> Result<DriverResult, PluginError> {
        let at = || self.program.at(Verb::Parse);
        let fd = memory_file(input).map_err(|source| PluginError::Start { at: at(), source })?;
        let lent = vec![LentDescriptor { name: "input".to_owned(), fd, is_written: false }];
        let terms = Terms { lent, ..Terms::pure() };
        let fields = json!({ "options": options });
        let mut answer = self.program.ask(Verb::Parse.as_str(), fields, terms)?;
        if let Some(document) = answer.remove("document") {
            return Ok(DriverResult::Document(document));
        }
        let diagnostics: Vec<Diagnostic> =
            self.program.field(Verb::Parse, &answer, "diagnostics")?;
        if diagnostics.is_empty() {
            let why = "neither `document` nor a diagnostic is in the answer".to_owned();
            return Err(PluginError::WrongResult { at: at(), why });
        }
        Ok(DriverResult::Invalid(diagnostics))
    }
}
