//! The node selector of a scope.

use std::fmt;
use std::str::FromStr;

/// A node selector. TODO(later): becomes `hoist_model::Selector` (issue 2).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Selector(String);

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a selector is 1 to 4096 printable characters")]
pub struct ParseSelectorError;

impl FromStr for Selector {
    type Err = ParseSelectorError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let text = text.trim();
        if (1..=4096).contains(&text.len()) && !text.chars().any(char::is_control) {
            Ok(Self(text.to_owned()))
        } else {
            Err(ParseSelectorError)
        }
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
