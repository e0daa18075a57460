//! What becomes of the references to secrets in layers.

use std::{fmt, io};

use hoist_model::Secret;

/// How a preview shows a secret.
const REDACTED: &str = "(secret)";

/// Resolves references to secrets.
pub trait Resolve: Send + Sync {
    fn resolve(&self, secret: &Secret) -> Result<String, SecretError>;
}

/// Why a reference to a secret has no value. It is shown and logged, and must not hold the secret.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SecretError {
    #[error("cannot read the secret `{name}`")]
    Unreadable { name: String, source: io::Error },
    #[error("the secret `{name}` is outside of the directory for secrets")]
    Outside { name: String },
    #[error("the secret `{name}` is not a file")]
    NotAFile { name: String },
    #[error("the server has no variable `{name}`")]
    UnknownVariable { name: String },
    #[error("cannot use the variable `{name}`")]
    BadVariable { name: String, source: io::Error },
    /// The server's own decryption key.
    #[error("cannot read `{file}`; make it with `age-keygen`")]
    NoIdentity { file: &'static str, source: io::Error },
    #[error("`{file}` is not a decryption key; make it with `age-keygen`")]
    BadIdentity { file: &'static str, source: Box<dyn std::error::Error + Send + Sync> },
    #[error("cannot decrypt the secret")]
    Undecryptable(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("the secret is encrypted with a passphrase, not for the server")]
    Passphrase,
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

pub(crate) fn shown(secrets: Secrets<'_>, secret: &Secret) -> Result<Option<String>, SecretError> {
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
