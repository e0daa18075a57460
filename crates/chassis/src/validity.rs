//! Checks that the token of a request is still valid.
//!
//! A request is let in once; its answer may go on for days. Guarantees: an answer that is made as
//! it is read, and a request that waits, end when their token is revoked, has expired, or allows
//! something else than it did.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::response::Response;
use hoist_api::Code;
use http::header;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use tokio::sync::watch;
use zeroize::Zeroizing;

use crate::clock::Clock;
use crate::failure::Failure;
use crate::jwks::{Jwks, JwtError};
use crate::principal::{Caller, Principal};
use crate::route::Live;
use crate::token::{TokenError, Tokens};

/// The longest time between two readings of the clock, which may be set.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The sources of valid tokens. Reads memory only.
#[derive(Debug, Clone)]
pub(crate) struct Verifier {
    pub(crate) tokens: Arc<Tokens>,
    pub(crate) jwks: Option<Arc<Jwks>>,
    pub(crate) clock: Arc<dyn Clock>,
}

/// Why a token is not good.
#[derive(Debug)]
pub(crate) enum TokenProblem {
    Token(TokenError),
    Jwt(JwtError),
}

impl Verifier {
    pub(crate) fn check(&self, token: &str) -> Result<Principal, TokenProblem> {
        match self.tokens.check(token) {
            Err(TokenError::Foreign) => match &self.jwks {
                Some(jwks) => jwks.check(token).map_err(TokenProblem::Jwt),
                None => Err(TokenProblem::Token(TokenError::Wrong)),
            },
            checked => checked.map_err(TokenProblem::Token),
        }
    }

    /// The end of a token that was good when a request was let in.
    pub(crate) fn ending(&self, token: &str) -> TokenEnd {
        let verifier = self.clone();
        let token = Zeroizing::new(token.to_owned());
        TokenEnd(Box::pin(async move {
            // Subscribed before the token is checked, so that no change is missed.
            let mut tokens = verifier.tokens.changes();
            let mut keys = verifier.jwks.as_ref().map(|jwks| jwks.changes());
            let Ok(first) = verifier.check(&token) else { return };
            let is_jwt = matches!(first.who(), Caller::Jwt { .. });
            loop {
                tokio::select! {
                    () = expired(verifier.clock.as_ref(), &first) => return,
                    () = changed(Some(&mut tokens)), if !is_jwt => {}
                    () = changed(keys.as_mut()), if is_jwt => {}
                }
                if !verifier.check(&token).is_ok_and(|now| now == first) {
                    return;
                }
            }
        }))
    }
}

async fn changed(changes: Option<&mut watch::Receiver<()>>) {
    match changes {
        // The sender lives as long as the verifier does.
        Some(changes) => drop(changes.changed().await),
        None => std::future::pending().await,
    }
}

async fn expired(clock: &dyn Clock, principal: &Principal) {
    let Some(expires) = principal.expires() else { return std::future::pending().await };
    loop {
        let left = clock.now().duration_until(expires);
        if left.is_negative() || left.is_zero() {
            return;
        }
        let left = Duration::try_from(left).unwrap_or(LOOK_EVERY);
        tokio::time::sleep(left.min(LOOK_EVERY)).await;
    }
}

/// Comes back when a token is not good any more.
pub(crate) struct TokenEnd(Pin<Box<dyn Future<Output = ()> + Send>>);

impl TokenEnd {
    /// The result of `work`, unless the token ends before.
    pub(crate) async fn or<F: Future>(&mut self, work: F) -> Result<F::Output, Failure> {
        tokio::select! {
            biased;
            () = &mut self.0 => {
                Err(Failure::new(Code::Unauthenticated, "the token ended while the request waited")
                    .with_remedy("ask for a new one"))
            }
            output = work => Ok(output),
        }
    }

    /// The same answer, which ends with the token. One that is whole in memory is as good as sent.
    pub(crate) fn bound(self, response: Response) -> Response {
        if response.body().size_hint().exact().is_some() {
            return response;
        }
        let is_sse = response
            .headers()
            .get(header::CONTENT_TYPE)
            .is_some_and(|content_type| content_type.as_bytes().starts_with(b"text/event-stream"));
        let is_live = response.extensions().get::<Live>().is_some();
        let has_end = response.headers().contains_key(header::CONTENT_LENGTH);
        let is_endless = (is_sse || is_live) && !has_end;
        response.map(|body| Body::new(BoundBody { body, ending: Some(self), is_endless }))
    }

    /// The same body of a request, which breaks off with the token.
    pub(crate) fn bound_body(self, body: Body) -> Body {
        Body::new(BoundBody { body, ending: Some(self), is_endless: false })
    }
}

struct BoundBody {
    body: Body,
    ending: Option<TokenEnd>,
    /// It may end anywhere. Of anything else, a part must not be taken for the whole.
    is_endless: bool,
}

impl HttpBody for BoundBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let is_over =
            self.ending.as_mut().is_some_and(|ending| ending.0.as_mut().poll(context).is_ready());
        if !is_over {
            return Pin::new(&mut self.body).poll_frame(context);
        }
        metrics::counter!("hoist_streams_ended_total", "reason" => "token").increment(1);
        self.body = Body::empty();
        self.ending = None;
        let error = || axum::Error::new("the token has ended");
        Poll::Ready((!self.is_endless).then(|| Err(error())))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
