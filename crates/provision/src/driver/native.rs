//! Hoist's own documents.

use super::{Confidence, DataDriver, DriverInfo, Options, tree};
use crate::diagnostic::ProvisionDiagnostic;
use crate::document::{Document, read};

/// The driver `hoist`.
#[derive(Debug)]
pub struct Native;

impl DataDriver for Native {
    fn describe(&self) -> DriverInfo {
        DriverInfo { name: "hoist", version: 1, about: "hoist's own documents" }
    }

    fn sniff(&self, input: &[u8]) -> Confidence {
        match tree(input) {
            Some(tree) if tree.get("api").is_some() && tree.get("sections").is_some() => {
                Confidence::Sure
            }
            Some(tree) if tree.get("sections").is_some() => Confidence::Maybe,
            _ => Confidence::No,
        }
    }

    /// Such a document says everything itself.
    fn parse(&self, input: &[u8], _: &Options) -> Result<Document, Vec<ProvisionDiagnostic>> {
        read("input", input)
    }
}
