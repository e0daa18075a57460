//! Why a call did not give what was asked for.

use reqwest::Url;

use crate::problem::{Code, Problem};

/// Why a call failed. `write` says whether it was to change something.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    #[error("`{url}` is not the address of a server; it begins with `http://` or `https://`")]
    Address { url: Url },
    #[error("the client cannot be set up")]
    Setup(#[source] reqwest::Error),
    #[error("the certificates to trust cannot be read")]
    Pem(#[source] rustls_pki_types::pem::Error),
    #[error("the certificates to trust cannot be used")]
    Authority(#[source] rustls::Error),
    #[error("there is no certificate in the file of those to trust")]
    NoAuthority,
    /// Nothing was sent.
    #[error("cannot connect to the server at {url}")]
    Connect { url: Url, source: reqwest::Error },
    /// It was sent, at least in part, and there is no whole answer.
    #[error("the connection to the server broke before it answered")]
    Lost { write: bool, source: reqwest::Error },
    #[error("{problem}")]
    Problem { write: bool, problem: Box<Problem> },
    /// Something between us and hoist, or something that is not hoist.
    #[error("{url} answered {status}, and not as hoist does")]
    Foreign { write: bool, status: u16, url: Url },
    #[error("the server's answer cannot be understood")]
    Answer { write: bool, source: serde_json::Error },
    #[error("the server's answer is longer than {limit} bytes")]
    TooLong { limit: usize },
}

impl ClientError {
    /// The server's own word for it.
    pub fn code(&self) -> Option<&Code> {
        match self {
            Self::Problem { problem, .. } => Some(&problem.code),
            _ => None,
        }
    }

    /// Whether something may have been changed although the call failed.
    pub fn outcome_unknown(&self) -> bool {
        match self {
            Self::Lost { write, .. } | Self::Answer { write, .. } => *write,
            Self::Foreign { write, status, .. } => *write && *status >= 500,
            Self::Problem { write, problem } => {
                let unsure = match &problem.code {
                    Code::StoreUnavailable | Code::OutcomeUnknown | Code::Timeout => true,
                    Code::Unknown(_) => problem.status >= 500,
                    _ => false,
                };
                *write && unsure
            }
            _ => false,
        }
    }
}
