//! Errors of client calls.

use reqwest::Url;

use crate::problem::{Code, Problem};

/// Errors of a call. `write` says whether the call was a write.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    #[error("`{url}` is not a server address; it must begin with `http://` or `https://`")]
    Address { url: Url },
    #[error("cannot set up the HTTP client")]
    Setup(#[source] reqwest::Error),
    #[error("cannot read the trusted certificates")]
    Pem(#[source] rustls_pki_types::pem::Error),
    #[error("cannot use the trusted certificates")]
    Authority(#[source] rustls::Error),
    #[error("the file of trusted certificates contains none")]
    NoAuthority,
    /// Nothing was sent.
    #[error("cannot connect to the server at {url}")]
    Connect { url: Url, source: reqwest::Error },
    /// The request was sent, at least in part, and the answer is incomplete.
    #[error("the connection to the server was lost before it answered")]
    Lost { write: bool, source: reqwest::Error },
    #[error("{problem}")]
    Problem { write: bool, problem: Box<Problem> },
    /// The answer of a proxy, or of a server that is not hoist.
    #[error("{url} answered {status}, but not in the format of hoist")]
    Foreign { write: bool, status: u16, url: Url },
    #[error("cannot parse the server's answer")]
    Answer { write: bool, source: serde_json::Error },
    #[error("the server's answer is longer than {limit} bytes")]
    TooLong { limit: usize },
}

impl ClientError {
    /// The problem code of the server.
    pub fn code(&self) -> Option<&Code> {
        match self {
            Self::Problem { problem, .. } => Some(&problem.code),
            _ => None,
        }
    }

    /// True if the call may have changed something although it failed.
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
