//! What becomes of the references to secrets in layers.

use std::fmt;

use hoist_model::Secret;

/// How a preview shows a secret.
const REDACTED: &str = "(secret)";

/// Resolves references to secrets.
pub trait Resolve: Send + Sync {
    /// The secret, or why there is none; the reason is shown and logged, and must not hold it.
    fn resolve(&self, secret: &Secret) -> Result<String, String>;
}

/// The treatment of secrets for a client.
#[derive(Clone, Copy, Default)]
pub enum Secrets<'a> {
    /// Nothing: what holds one is left out.
    #[default]
    LeaveOut,
    /// That there is one.
    Redact,
    Resolve(&'a dyn Resolve),
}

pub(crate) fn shown(secrets: Secrets<'_>, secret: &Secret) -> Result<Option<String>, String> {
    match secrets {
        Secrets::LeaveOut => Ok(None),
        Secrets::Redact => Ok(Some(REDACTED.to_owned())),
        Secrets::Resolve(resolver) => resolver.resolve(secret).map(Some),
    }
}

impl fmt::Debug for Secrets<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::LeaveOut => "LeaveOut",
            Self::Redact => "Redact",
            Self::Resolve(_) => "Resolve",
        })
    }
}
