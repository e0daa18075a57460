//! Checks that the token or member certificate of a request is still valid.
//!
//! A request is let in once; its answer may go on for days. Guarantees: an answer that is made as
//! it is read, and a request that waits, end when their token is revoked, has expired, or allows
//! something else than it did; and in the same way when their member is expelled, its certificate
//! has expired or was replaced, or its grant has changed.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::response::Response;
use hoist_api::Code;
use http::header;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use rustls_pki_types::CertificateDer;
use tokio::sync::watch;
use zeroize::Zeroizing;

use crate::clock::Clock;
use crate::failure::Failure;
use crate::jwks::{Jwks, JwtError};
use crate::member::{Member, MemberCertificate, Members, NotAdmitted};
use crate::principal::{Caller, Principal};
use crate::route::Live;
use crate::token::{TokenError, Tokens};

/// The longest time between two readings of the clock, which may be set.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Checks tokens and member certificates. Reads memory only.
#[derive(Debug, Clone)]
pub(crate) struct Verifier {
    pub(crate) tokens: Arc<Tokens>,
    pub(crate) jwks: Option<Arc<Jwks>>,
    pub(crate) members: Arc<dyn Members>,
    /// The site's root.
    pub(crate) root: CertificateDer<'static>,
    pub(crate) clock: Arc<dyn Clock>,
}

/// The credential of an admitted request.
#[derive(Clone)]
pub(crate) enum Credential {
    Token(Zeroizing<String>),
    Member(MemberCertificate),
}

/// Why a token is not good.
#[derive(Debug)]
pub(crate) enum TokenProblem {
    Token(TokenError),
    Jwt(JwtError),
}

/// Why a client certificate is not good.
#[derive(Debug)]
pub(crate) enum MemberProblem {
    /// It is of this site, and not a member's.
    NotAMember,
    Expired(MemberCertificate),
    NotAdmitted(MemberCertificate, NotAdmitted),
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

    /// The member that presented these certificates, which TLS has verified.
    pub(crate) fn identify_member(
        &self,
        presented: &[CertificateDer<'_>],
    ) -> Result<Member, MemberProblem> {
        let certificate = MemberCertificate::read(presented, &self.root);
        self.check_member(&certificate.ok_or(MemberProblem::NotAMember)?)
    }

    /// A connection, and a resumed session, may outlive the certificate that TLS has verified.
    fn check_member(&self, certificate: &MemberCertificate) -> Result<Member, MemberProblem> {
        let certificate = certificate.clone();
        if certificate.not_after <= self.clock.now() {
            return Err(MemberProblem::Expired(certificate));
        }
        let MemberCertificate { cluster, node, serial, .. } = &certificate;
        match self.members.find(cluster, node, *serial) {
            Ok(grant) => Ok(Member { certificate, grant }),
            Err(reason) => Err(MemberProblem::NotAdmitted(certificate, reason)),
        }
    }

    /// The end of a credential that was good when a request was let in.
    pub(crate) fn ending(&self, credential: Credential) -> CredentialEnd {
        let verifier = self.clone();
        match credential {
            Credential::Token(token) => CredentialEnd {
                ended: Box::pin(async move { verifier.token_ended(&token).await }),
                kind: "token",
            },
            Credential::Member(certificate) => CredentialEnd {
                ended: Box::pin(async move { verifier.member_ended(&certificate).await }),
                kind: "membership",
            },
        }
    }

    async fn token_ended(&self, token: &str) {
        // Subscribed before the token is checked, so that no change is missed.
        let mut tokens = self.tokens.changes();
        let mut keys = self.jwks.as_ref().map(|jwks| jwks.changes());
        let Ok(first) = self.check(token) else { return };
        let is_jwt = matches!(first.who(), Caller::Jwt { .. });
        loop {
            tokio::select! {
                () = expired(self.clock.as_ref(), &first) => return,
                () = changed(Some(&mut tokens)), if !is_jwt => {}
                () = changed(keys.as_mut()), if is_jwt => {}
            }
            if !self.check(token).is_ok_and(|now| now == first) {
                return;
            }
        }
    }

    async fn member_ended(&self, certificate: &MemberCertificate) {
        let mut generation = self.members.generation();
        let principal = || self.check_member(certificate).map(|member| member.principal());
        let Ok(first) = principal() else { return };
        loop {
            tokio::select! {
                () = expired(self.clock.as_ref(), &first) => return,
                // Without a sender no change would be heard of.
                changed = generation.changed() => if changed.is_err() { return },
            }
            if !principal().is_ok_and(|now| now == first) {
                return;
            }
        }
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

/// Completes when a credential is not good any more.
pub(crate) struct CredentialEnd {
    ended: Pin<Box<dyn Future<Output = ()> + Send>>,
    /// For messages and metrics.
    kind: &'static str,
}

impl CredentialEnd {
    /// The result of `work`, unless the credential ends before.
    pub(crate) async fn or<F: Future>(&mut self, work: F) -> Result<F::Output, Failure> {
        tokio::select! {
            biased;
            () = &mut self.ended => {
                let detail = format!("the {} ended while the request waited", self.kind);
                Err(Failure::new(Code::Unauthenticated, detail).with_remedy("ask for a new one"))
            }
            output = work => Ok(output),
        }
    }

    /// The same answer, which ends with the credential. One that is whole in memory is as good as sent.
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

    /// The same body of a request, which breaks off with the credential.
    pub(crate) fn bound_body(self, body: Body) -> Body {
        Body::new(BoundBody { body, ending: Some(self), is_endless: false })
    }
}

struct BoundBody {
    body: Body,
    ending: Option<CredentialEnd>,
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
        let ended = self.ending.as_mut().and_then(|ending| {
            let is_over = ending.ended.as_mut().poll(context).is_ready();
            is_over.then_some(ending.kind)
        });
        let Some(kind) = ended else {
            return Pin::new(&mut self.body).poll_frame(context);
        };
        metrics::counter!("hoist_streams_ended_total", "reason" => kind).increment(1);
        self.body = Body::empty();
        self.ending = None;
        let error = || axum::Error::new(format!("the {kind} has ended"));
        Poll::Ready((!self.is_endless).then(|| Err(error())))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
