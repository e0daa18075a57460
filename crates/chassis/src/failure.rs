//! Turns a [`Problem`] into an HTTP answer. Handlers return `Result<_, Failure>`.

use axum::response::{IntoResponse, Response};
use hoist_api::{Code, Problem, problem};
use hoist_store::StoreError;
use http::{HeaderValue, StatusCode, header};

use crate::log_limit::LogLimit;

/// While the store is away every request that needs it fails.
static STORE_FAILURES: LogLimit = LogLimit::per_second();

/// A problem on its way out. The body is written by the outermost layer, which knows the request
/// id; until then the problem travels as a response extension.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(transparent)]
pub struct Failure(Box<Problem>);

/// Marks a response with a status of 500 or above as the intended answer: the server has not
/// failed, and the request is not logged as failed.
#[derive(Debug, Clone, Copy)]
pub struct Deliberate;

impl Failure {
    pub fn new(code: Code, detail: impl Into<String>) -> Self {
        Self(Box::new(Problem::new(code, detail)))
    }

    #[must_use]
    pub fn with_remedy(mut self, remedy: impl Into<String>) -> Self {
        self.0.remedy = Some(remedy.into());
        self
    }

    pub fn problem(&self) -> &Problem {
        &self.0
    }
}

impl From<Problem> for Failure {
    fn from(problem: Problem) -> Self {
        Self(Box::new(problem))
    }
}

impl From<StoreError> for Failure {
    /// For commits and reads alike. The reason goes to the log: it may name hosts and paths.
    fn from(error: StoreError) -> Self {
        let failure = match &error {
            StoreError::Conflict { .. } => Self::new(
                Code::Busy,
                "others wrote the same objects again and again; nothing was changed",
            )
            .with_remedy("try again"),
            StoreError::Unavailable { .. }
            | StoreError::Refused { .. }
            | StoreError::Damaged { .. }
            | StoreError::InUse { .. } => Self::new(
                Code::StoreUnavailable,
                format!("{}; reads go on from memory", error.public_reason()),
            )
            .with_remedy("try again when `/readyz` is ok; `hoist status` has the store's message"),
            StoreError::Full { .. } => {
                Self::new(Code::StoreFull, "the store has no space left; nothing was changed")
                    .with_remedy("make room on the data disk")
            }
            StoreError::Compacted { .. } => {
                Self::new(Code::Gone, "the history asked for is not kept any more")
                    .with_remedy("list again and go on from there")
            }
            _ => Self::new(Code::Internal, "the store failed; the log has the reason"),
        };
        if let Some(left_out) = STORE_FAILURES.permit() {
            tracing::warn!(error = %hoist_diagnostic::chain(&error), left_out, "store failed");
        }
        failure
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let status =
            StatusCode::from_u16(self.0.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = status.into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(problem::MEDIA_TYPE));
        match self.0.code {
            Code::Unauthenticated => {
                headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            Code::TooManyFailures | Code::TooManyRequests => {
                headers.insert(header::RETRY_AFTER, HeaderValue::from_static("60"));
            }
            Code::StoreUnavailable | Code::ReadOnly | Code::Timeout | Code::Stopping => {
                headers.insert(header::RETRY_AFTER, HeaderValue::from_static("5"));
            }
            _ => {}
        }
        response.extensions_mut().insert(self);
        response
    }
}
