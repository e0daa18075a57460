//! References to secrets. The values are in no document, plan, event or journal.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use hoist_engine::action::{Failure, Secrets as Known};
use hoist_engine::record::FailureKind;
use schemars::JsonSchema;
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};

const SCHEME: &str = "secret://";

/// Longest name of a secret.
pub const MAX_SECRET_NAME: usize = 200;

/// `secret://NAME`. May be printed: it says where, and nothing else.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(with = "String", extend("pattern" = "^secret://[A-Za-z0-9._/-]+$"))]
pub struct SecretRef(String);

/// The text is no reference. The text may be a secret, so the error does not repeat it.
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

/// The values of secrets by name, for the duration of a run. They are never shown.
#[derive(Clone, Default)]
pub struct Secrets(BTreeMap<String, SecretString>);

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

impl Secrets {
    pub fn has(&self, secret: &SecretRef) -> bool {
        self.0.contains_key(secret.name())
    }
}

impl<N: Into<String>, S: Into<String>> FromIterator<(N, S)> for Secrets {
    fn from_iter<I: IntoIterator<Item = (N, S)>>(all: I) -> Self {
        let named = |(name, secret): (N, S)| (name.into(), SecretString::from(secret.into()));
        Self(all.into_iter().map(named).collect())
    }
}

impl Known for Secrets {
    fn get(&self, name: &str) -> Result<String, Failure> {
        let secret = self.0.get(name).map(|secret| secret.expose_secret().to_owned());
        secret.ok_or_else(|| {
            let reason = format!("secret `{name}` not found");
            Failure { kind: FailureKind::Precheck, reason }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_known_by_name_and_not_shown() {
        let secrets: Secrets = [("join", "hunter2")].into_iter().collect();
        assert_eq!(secrets.get("join").expect("it is known"), "hunter2");
        assert!(secrets.get("other").expect_err("it is not").reason.contains("`other`"));
        assert!(secrets.has(&"secret://join".parse().unwrap()));
        let shown = format!("{secrets:?}");
        assert!(shown.contains("join") && !shown.contains("hunter2"), "{shown}");
    }

    #[test]
    fn literal_secret_is_refused_without_quoting_it() {
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
