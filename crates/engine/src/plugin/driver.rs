//! Drivers of others: executables that make a document of an input that hoist does not know.

use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};

use super::{DRIVER_PREFIX, Isolation, Lent, PluginError, Program, Terms, Verb, introduce, kept};
use crate::action::{Description, Diagnostic};

/// The file `hoist-driver-NAME`, which said what it is.
#[derive(Debug, Clone)]
pub struct Driver {
    program: Program,
    about: Description,
}

/// What it made of an input.
#[derive(Debug, Clone, PartialEq)]
pub enum Parsed {
    Document(Value),
    /// It is none, and this is why.
    Faults(Vec<Diagnostic>),
}

impl Driver {
    /// Asks the driver of this name in a directory what it is.
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

    /// Reads an input, which it gets by a descriptor; `options` say what the input does not.
    pub fn parse(&self, input: &[u8], options: &Value) -> Result<Parsed, PluginError> {
        let at = || self.program.at(Verb::Parse);
        let fd = kept(input).map_err(|source| PluginError::Start { at: at(), source })?;
        let lent = vec![Lent { name: "input".to_owned(), fd, is_written: false }];
        let terms = Terms { lent, ..Terms::pure() };
        let fields = json!({ "options": options });
        let mut answer = self.program.ask(Verb::Parse.as_str(), fields, terms)?;
        if let Some(document) = answer.remove("document") {
            return Ok(Parsed::Document(document));
        }
        let faults: Vec<Diagnostic> = self.program.field(Verb::Parse, &answer, "diagnostics")?;
        if faults.is_empty() {
            let why = "there is no `document`, and no diagnostic says why".to_owned();
            return Err(PluginError::WrongResult { at: at(), why });
        }
        Ok(Parsed::Faults(faults))
    }
}
