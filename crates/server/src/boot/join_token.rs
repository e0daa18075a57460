//! SPIRE join tokens, fetched for a node whose kernel arguments need one.
//!
//! Only that node waits, and the number of waiting nodes is bounded: a hanging token server affects
//! no other node.

use std::sync::Arc;
use std::time::Duration;

use hoist_boot::answer::PendingScript;
use serde::Deserialize;
use tokio::sync::Semaphore;

use crate::http_client::form;

/// Concurrent requests.
const AT_ONCE: usize = 64;
/// How long a node waits until its request is sent.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Largest answer read.
const MAX_ANSWER: usize = 64 * 1024;
/// Longest token.
const MAX_TOKEN: usize = 4096;

/// Cheap to clone; all clones are the same.
#[derive(Debug, Clone)]
pub(super) struct JoinTokens {
    client: reqwest::Client,
    url: String,
    permits: Arc<Semaphore>,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum TokenError {
    #[error("the machine is no node")]
    NoNode,
    #[error("too many nodes wait for one")]
    Busy,
    #[error("the server of join tokens failed")]
    Http(#[from] reqwest::Error),
    #[error("the answer is larger than {MAX_ANSWER} bytes")]
    TooLarge,
    #[error("the answer has no `join_token`")]
    Answer(#[from] serde_json::Error),
    /// It becomes a part of the script.
    #[error("the token is not one word of at most {MAX_TOKEN} characters")]
    Token,
}

#[derive(Debug, Deserialize)]
struct Answer {
    join_token: String,
}

impl JoinTokens {
    /// `url` is the root of the server.
    pub(super) fn new(client: reqwest::Client, url: &str) -> Self {
        let permits = Arc::new(Semaphore::new(AT_ONCE));
        Self { client, url: format!("{url}/api/token"), permits }
    }

    pub(super) async fn fetch(&self, pending: &PendingScript) -> Result<String, TokenError> {
        if pending.xname.is_empty() {
            return Err(TokenError::NoNode);
        }
        let permit = tokio::time::timeout(TIMEOUT, self.permits.acquire()).await;
        let _permit = permit.map_err(|_| TokenError::Busy)?;
        let kind = kind(pending.role.as_deref(), pending.subrole.as_deref());
        let kind = kind.map(|kind| ("type", kind));
        let members: Vec<_> = kind.into_iter().chain([("xname", pending.xname.as_str())]).collect();
        let response = form(&self.client, &self.url, &members).send().await;
        let mut response = response.and_then(reqwest::Response::error_for_status)?;
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await? {
            if body.len() + chunk.len() > MAX_ANSWER {
                return Err(TokenError::TooLarge);
            }
            body.extend_from_slice(&chunk);
        }
        let Answer { join_token } = serde_json::from_slice(&body)?;
        let plain = join_token.chars().all(|c| c.is_ascii_graphic());
        let fits = (1..=MAX_TOKEN).contains(&join_token.len());
        (plain && fits).then_some(join_token).ok_or(TokenError::Token)
    }
}

/// What SPIRE calls a node of this role.
fn kind(role: Option<&str>, subrole: Option<&str>) -> Option<&'static str> {
    let is =
        |given: Option<&str>, word| given.is_some_and(|given| given.eq_ignore_ascii_case(word));
    if is(role, "Compute") {
        Some("compute")
    } else if is(role, "Application") && is(subrole, "UAN") {
        Some("uan")
    } else {
        None
    }
}
