//! Where a secret is. What it is stands in no document, plan, event or journal.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

const SCHEME: &str = "secret://";

/// Longest name of a secret.
pub const MAX_SECRET_NAME: usize = 200;

/// `secret://NAME`. May be printed: it says where, and nothing else.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(with = "String", extend("pattern" = "^secret://[A-Za-z0-9._/-]+$"))]
pub struct SecretRef(String);

/// It is no reference. What it is instead may be a secret, so it is not repeated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoReference;

impl std::error::Error for NoReference {}

impl fmt::Display for NoReference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "a secret is referred to as `secret://NAME` and never written down; keep it where the \
             controller keeps secrets, and name it here",
        )
    }
}

impl SecretRef {
    pub fn name(&self) -> &str {
        &self.0
    }
}

impl FromStr for SecretRef {
    type Err = NoReference;
    fn from_str(text: &str) -> Result<Self, NoReference> {
        let name = text.strip_prefix(SCHEME).ok_or(NoReference)?;
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "._/-".contains(c);
        // It becomes a path somewhere: nothing that leads out of there.
        let leads_on = name.split('/').all(|part| !part.is_empty() && part != "." && part != "..");
        if name.len() <= MAX_SECRET_NAME && name.chars().all(is_plain) && leads_on {
            Ok(Self(name.to_owned()))
        } else {
            Err(NoReference)
        }
    }
}

impl fmt::Display for SecretRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}{}", self.0)
    }
}

impl TryFrom<String> for SecretRef {
    type Error = NoReference;
    fn try_from(text: String) -> Result<Self, NoReference> {
        text.parse()
    }
}

impl From<SecretRef> for String {
    fn from(secret: SecretRef) -> Self {
        secret.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_a_reference_and_a_literal_one_is_refused_without_being_repeated() {
        let secret: SecretRef = "secret://disks/key".parse().unwrap();
        assert_eq!(secret.name(), "disks/key");
        assert_eq!(secret.to_string(), "secret://disks/key");
        let longest = format!("{SCHEME}{}", "n".repeat(MAX_SECRET_NAME));
        assert!(longest.parse::<SecretRef>().is_ok());
        let too_long = format!("{longest}n");
        for text in
            ["hunter2", "secret:hunter2", "secret://", "secret://../x", "secret://a b", &too_long]
        {
            let error = text.parse::<SecretRef>().expect_err(text);
            assert!(!error.to_string().contains("hunter2"));
        }
    }
}
