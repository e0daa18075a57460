//! Problems in the form that every crate reports them: [`Diagnostic`] for an input that a person
//! has to correct, and [`chain`] for an error of an operation with all its causes.
//!
//! A refusal by policy and an HTTP problem answer do not belong here: they have types of their own
//! in the crates that decide and answer. This crate depends on no other crate of the workspace.

use std::error::Error;
use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One problem of an input. Checks return all of them, so that a person corrects an input once.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Diagnostic {
    /// Path inside the input (`interfaces[1].mac`), a query parameter, or file, line and column,
    /// from the outside in; empty for the whole input.
    #[serde(default)]
    pub at: String,
    pub message: String,
    /// How to correct it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

impl Diagnostic {
    pub fn new(at: impl Into<String>, message: impl Into<String>) -> Self {
        Self { at: at.into(), message: message.into(), hint: None }
    }

    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// The same problem as part of a larger input, whose name goes before the path.
    #[must_use]
    pub fn within(mut self, outer: &str) -> Self {
        self.at =
            if self.at.is_empty() { outer.to_owned() } else { format!("{outer}: {}", self.at) };
        self
    }
}

/// `at: message; hint` in one line.
impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.at.is_empty() {
            write!(f, "{}: ", self.at)?;
        }
        f.write_str(&self.message)?;
        if let Some(hint) = &self.hint {
            write!(f, "; {hint}")?;
        }
        Ok(())
    }
}

/// An error and all its causes in one line, separated by `: `.
///
/// A cause that the line already contains is left out: some libraries print their cause
/// themselves.
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let more = cause.to_string();
        if !text.contains(&more) {
            text.push_str(": ");
            text.push_str(&more);
        }
        next = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Layer(&'static str, Option<Box<Layer>>);

    impl fmt::Display for Layer {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(self.0)
        }
    }

    impl Error for Layer {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            let cause = self.1.as_deref()?;
            Some(cause)
        }
    }

    #[test]
    fn chain_prints_every_cause_once() {
        let refused = Layer("connection refused", None);
        let connect = Layer("cannot connect: connection refused", Some(Box::new(refused)));
        let outer = Layer("cannot read the site", Some(Box::new(connect)));
        assert_eq!(chain(&outer), "cannot read the site: cannot connect: connection refused");
    }

    #[test]
    fn diagnostic_prints_place_message_and_hint() {
        let whole = Diagnostic::new("", "not a node");
        assert_eq!(whole.to_string(), "not a node");
        let mac = Diagnostic::new("interfaces[1].mac", "taken").hint("see n1");
        assert_eq!(mac.to_string(), "interfaces[1].mac: taken; see n1");
        assert_eq!(whole.within("Node n1").at, "Node n1");
        assert_eq!(mac.clone().within("Node n1").at, "Node n1: interfaces[1].mac");
        let json = serde_json::to_value(&mac).unwrap();
        assert_eq!(json["at"], "interfaces[1].mac");
        assert_eq!(serde_json::from_value::<Diagnostic>(json).unwrap(), mac);
    }
}
