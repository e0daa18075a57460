//! The gate in front of every route: authentication, rights and the limits of a request.
//!
//! Does not belong here: tokens (`token`), JWTs (`jwks`), members (`member`), and rights to single
//! documents, which the contexts check.

use std::collections::HashSet;
use std::net::IpAddr;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::body::Body;
use axum::extract::{FromRequestParts, Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures_util::future::BoxFuture;
use hoist_api::admin::{Context, Verb};
use hoist_api::{Code, Problem};
use hoist_diagnostic::Diagnostic;
use http::request::Parts;
use http::{HeaderMap, header};
use http_body_util::{BodyExt, Limited};
use parking_lot::Mutex;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;
use zeroize::Zeroizing;

use crate::addresses::Table;
use crate::audit::{AuditLog, Draft};
use crate::extract::{Flag, nearest, too_large};
use crate::failure::Failure;
use crate::host::HostNames;
use crate::jwks::JwtError;
use crate::log_limit::LogLimit;
use crate::member::{Member, MemberCertificate, NotAdmitted};
use crate::peer::{Peer, RequestId};
use crate::principal::{AnswerToToken, Caller, Grant, Principal, Reach};
use crate::route::{AccessClass, Legacy, RouteSpec, Template};
use crate::tasks::Tasks;
use crate::token::TokenError;
use crate::validity::{Credential, CredentialEnd, MemberProblem, TokenProblem, Verifier};

/// Failed attempts of one address in [`WINDOW`] that are still answered with 401. Right credentials
/// always pass, so a guesser cannot lock other clients out.
const FAILURES_ALLOWED: u32 = 20;
const WINDOW: Duration = Duration::from_mins(1);

/// Addresses remembered at once; with more of them attacking, those beyond count by network.
const MAX_TRACKED: usize = 4096;

/// How long and how much of a refused body is read away, so that the client gets to see the answer
/// instead of a reset.
const DRAIN_TIME: Duration = Duration::from_secs(2);
const DRAIN_BYTES: usize = 256 * 1024 * 1024;

/// The access settings of a site.
#[derive(Debug, Clone)]
pub struct Policy {
    /// Take tokens over plain HTTP from other machines too. They can be overheard.
    pub allow_plain_admin: bool,
    /// Contexts whose lockable routes need a token.
    pub locked: HashSet<Context>,
    /// Single lockable paths that need one: `/boot/v1/dumpstate`, or with one method only
    /// `POST /boot/v1/hosts`.
    pub locked_paths: HashSet<String>,
    /// The callers that may use BSS's boot parameters.
    pub bss: BssAuth,
}

/// The callers that may read and write boot parameters over BSS's API.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum BssAuth {
    /// Holders of a token with `boot`, as everywhere.
    #[default]
    Token,
    /// Besides them, holders of any token that the key set verifies, also over plain HTTP: BSS
    /// with a key set.
    Jwks,
    /// No token is needed, as in a BSS without authentication.
    Open,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the authentication mode must be `token`, `jwks` or `open`")]
pub struct ParseBssAuthError;

impl FromStr for BssAuth {
    type Err = ParseBssAuthError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "token" => Ok(Self::Token),
            "jwks" => Ok(Self::Jwks),
            "open" => Ok(Self::Open),
            _ => Err(ParseBssAuthError),
        }
    }
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            allow_plain_admin: false,
            locked: HashSet::from([Context::Metrics]),
            locked_paths: HashSet::new(),
            bss: BssAuth::Token,
        }
    }
}

/// Runs a write inside the scope of the domain, which learns from the token that its caller has
/// gone. The chassis knows no domain, so the composition root passes the scope in.
pub type WriteScope = fn(CancellationToken, BoxFuture<'static, ()>) -> BoxFuture<'static, ()>;

/// The scope of a server without a domain: the write simply runs.
pub(crate) fn no_scope(
    _caller_gone: CancellationToken,
    write: BoxFuture<'static, ()>,
) -> BoxFuture<'static, ()> {
    write
}

pub(crate) struct Gate {
    pub(crate) write_scope: WriteScope,
    pub(crate) policy: Policy,
    pub(crate) verifier: Verifier,
    pub(crate) audit: AuditLog,
    pub(crate) tasks: Tasks,
    pub(crate) body_limit: usize,
    pub(crate) request_timeout: Duration,
    pub(crate) failures: Failures,
    pub(crate) hosts: HostNames,
    /// Guessers must not fill the log, however many addresses they have.
    pub(crate) failure_lines: LogLimit,
}

/// The audit entry of a write, prepared by the gate: an extractor of routes that write.
///
/// A handler that puts its own entry into its transaction takes [`AuditContext::draft`]; the gate
/// then adds none. Otherwise the gate appends an entry after every successful write of the admin
/// access class.
#[derive(Debug, Clone)]
pub struct AuditContext {
    draft: Draft,
    settled: Arc<AtomicBool>,
}

impl AuditContext {
    /// The entry to write, with everything but the object and the revisions filled in.
    pub fn draft(&self) -> Draft {
        self.settled.store(true, Ordering::SeqCst);
        self.draft.clone()
    }

    /// The request changed nothing (a dry run, or no difference): no entry.
    pub fn nothing_written(&self) {
        self.settled.store(true, Ordering::SeqCst);
    }
}

impl<S: Send + Sync> FromRequestParts<S> for AuditContext {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Failure> {
        parts.extensions.get::<Self>().cloned().ok_or_else(|| {
            Failure::new(Code::Internal, "a route that writes is not declared as one")
        })
    }
}

/// The layer around each handler.
pub(crate) async fn guard(
    State((gate, spec)): State<(Arc<Gate>, Arc<RouteSpec>)>,
    request: Request,
    next: Next,
) -> Response {
    let mut response = match gate.pass(&spec, request, next).await {
        Ok(response) => response,
        Err(failure) => failure.into_response(),
    };
    response.extensions_mut().insert(Template(spec.path));
    if spec.legacy {
        response.extensions_mut().insert(Legacy);
    }
    response
}

impl Gate {
    async fn pass(
        &self,
        spec: &Arc<RouteSpec>,
        mut request: Request,
        next: Next,
    ) -> Result<Response, Failure> {
        let Admission { principal, credential, member } = self.admit(spec, &request)?;
        check_query(spec, &request)?;
        let limit = spec.body_limit.unwrap_or(self.body_limit);
        if content_length(request.headers()).is_some_and(|length| length > limit) {
            drain(request).await;
            return Err(too_large());
        }
        let ending = || credential.clone().map(|credential| self.verifier.ending(credential));
        let draft = draft_of(spec, &principal, &request);
        request.extensions_mut().insert(principal);
        if let Some(member) = member {
            request.extensions_mut().insert(member);
        }
        // Limited even when a length was given: the two need not agree.
        let mut request = request.map(|body| Body::new(Limited::new(body, limit)));
        if !spec.writes() {
            let mut ending = ending();
            let answer = self.within_time(spec, next.run(request));
            let response = match &mut ending {
                Some(ending) if spec.streaming => ending.or(answer).await??,
                _ => answer.await?,
            };
            return Ok(bound(response, ending));
        }
        if spec.streaming
            && let Some(ending) = ending()
        {
            request = request.map(|body| ending.bound_body(body));
        }

        let audit = AuditContext { draft, settled: Arc::default() };
        request.extensions_mut().insert(audit.clone());
        // A write is not cancelled half-way because its caller hung up: it runs in the task set.
        let (sender, receiver) = tokio::sync::oneshot::channel();
        let log = self.audit.clone();
        let audited = spec.audited();
        let write = async move {
            let response = next.run(request).await;
            if audited && response.status().is_success() && !audit.settled.load(Ordering::SeqCst) {
                let outcome = response.status().as_u16().to_string();
                if let Err(error) = log.append(&Draft { outcome, ..audit.draft }).await {
                    tracing::error!(error = %hoist_diagnostic::chain(&error), "write not in the audit log");
                }
            }
            let _ = sender.send(response);
        };
        // Trying a change out is no part of it: that ends with its caller, or with the server.
        let caller_gone = self.tasks.stopping().child_token();
        let _hung_up = caller_gone.clone().drop_guard();
        let write = (self.write_scope)(caller_gone, Box::pin(write));
        self.tasks.spawn("write", write.in_current_span());
        let mut ending = ending();
        let answer = self.within_time(spec, receiver);
        let answer = match &mut ending {
            // An agent's request for work is a write that may wait long.
            Some(ending) if spec.access.takes_members() => ending.or(answer).await??,
            _ => answer.await?,
        };
        let panicked = || Failure::new(Code::Internal, "the handler panicked; the log has more");
        Ok(bound(answer.map_err(|_| panicked())?, ending))
    }

    async fn within_time<F: Future>(
        &self,
        spec: &RouteSpec,
        work: F,
    ) -> Result<F::Output, Failure> {
        if spec.streaming {
            return Ok(work.await);
        }
        tokio::time::timeout(self.request_timeout, work).await.map_err(|_| {
            if spec.writes() {
                Failure::new(Code::OutcomeUnknown, "the write takes too long and goes on behind")
                    .with_remedy("read the object before trying again")
            } else {
                Failure::new(Code::Timeout, "the answer took too long")
            }
        })
    }

    /// The principal of a request with its credential, if it may use the route.
    fn admit(&self, spec: &RouteSpec, request: &Request) -> Result<Admission, Failure> {
        let Some((verb, context)) = spec.needs(&self.policy) else {
            return match (spec.access, spec.more_for) {
                (AccessClass::Bss { verb }, _) => {
                    // Only browsers say where a page came from, and no client of BSS is one.
                    if request.headers().contains_key(header::ORIGIN) {
                        self.hosts.check(request.uri(), request.headers())?;
                    }
                    Ok(open_bss(verb).into())
                }
                (_, Some(access)) => self.recognise(access, request),
                // Credentials are ignored: a booting node must not fail over a stale header.
                _ => Ok(Principal::anonymous().into()),
            };
        };
        if matches!(spec.access, AccessClass::Admin { .. }) || spec.access.takes_members() {
            self.hosts.check(request.uri(), request.headers())?;
        }
        if spec.access == AccessClass::Member {
            return self.admit_member(request);
        }
        let admission = self.identify(spec.access, request)?;
        let principal = &admission.principal;
        if self.is_any_jwt(spec.access, principal) {
            return Ok(admission);
        }
        match principal.reach(verb, context) {
            Reach::All => Ok(admission),
            Reach::Some(_) if spec.selective || spec.access == AccessClass::Agent => Ok(admission),
            Reach::Some(_) => Err(Failure::new(
                Code::Forbidden,
                "this route is not limited to nodes, but your token is",
            )
            .with_remedy("ask for a token without a selector")),
            Reach::None => {
                metrics::counter!("hoist_auth_failures_total", "reason" => "scope").increment(1);
                if admission.member.is_some() {
                    let detail = "this member is not the agent of a node in the inventory";
                    return Err(Failure::new(Code::Forbidden, detail)
                        .with_remedy("link the member to its node, or send a token of the agent"));
                }
                let detail = format!("your token does not allow `{verb}` in `{context}`");
                Err(Failure::new(Code::Forbidden, detail)
                    .with_remedy("`hoist token create` makes one that does"))
            }
        }
    }

    /// Who is asking on a route that also answers anonymous callers. A caller who sends a token
    /// means to be recognised, so a bad one is refused.
    fn recognise(&self, access: AccessClass, request: &Request) -> Result<Admission, Failure> {
        match (access, access.needs(&self.policy)) {
            (AccessClass::Bss { verb }, None) => Ok(open_bss(verb).into()),
            (_, Some(_)) if self.credentials(access, request).is_some() => {
                self.identify(access, request)
            }
            _ => Ok(Principal::anonymous().into()),
        }
    }

    /// A member, on a route for members only.
    fn admit_member(&self, request: &Request) -> Result<Admission, Failure> {
        let peer = peer_of(request)?;
        if bearer(request.headers()).is_some() {
            let detail = "this route takes a member certificate and no token";
            return Err(Failure::new(Code::Forbidden, detail)
                .with_remedy("send the request without `Authorization`"));
        }
        if peer.certificates.is_empty() {
            let detail = "this route needs a member certificate";
            return Err(Failure::new(Code::Unauthenticated, detail)
                .with_remedy("present the certificate that the cluster issued, over TLS"));
        }
        self.identify_member(peer)
    }

    /// The holder of the token that the request carries, or else the member whose certificate its
    /// connection has.
    ///
    /// A token is sent on purpose and a certificate belongs to the connection, so the token counts
    /// where there are both. Their rights are never added up.
    fn identify(&self, access: AccessClass, request: &Request) -> Result<Admission, Failure> {
        let peer = peer_of(request)?;
        let plain = !peer.secure && !peer.is_loopback();
        if plain && !self.is_as_bss(access) && !self.policy.allow_plain_admin {
            return Err(Failure::new(
                Code::PlainAdmin,
                "this route is not served over plain HTTP to other machines",
            )
            .with_remedy("use the TLS address, or set `allow_plain_admin`"));
        }
        let token = self.credentials(access, request);
        if token.is_none() && access.takes_members() && !peer.certificates.is_empty() {
            return self.identify_member(peer);
        }
        let principal = self.authenticate(token, peer)?;
        let credential = token.map(|token| Credential::Token(Zeroizing::new(token.to_owned())));
        if self.is_any_jwt(access, &principal) {
            return Ok(Admission {
                principal: principal.with(boot_grant()),
                credential,
                member: None,
            });
        }
        let has_audience = self.verifier.jwks.as_ref().is_none_or(|jwks| jwks.has_audience());
        if matches!(principal.who(), Caller::Jwt { .. }) && !has_audience {
            let detail = "a JWT is not accepted here: this server has no audience to compare";
            return Err(Failure::new(Code::Forbidden, detail)
                .with_remedy("set `auth.audience`, and use tokens that name it"));
        }
        Ok(Admission { principal, credential, member: None })
    }

    /// The member that the connection's certificates name. Not counted as a guess: certificates
    /// cannot be guessed.
    fn identify_member(&self, peer: &Peer) -> Result<Admission, Failure> {
        let problem = match self.verifier.identify_member(&peer.certificates) {
            Ok(member) => {
                return Ok(Admission {
                    principal: member.principal(),
                    credential: Some(Credential::Member(member.certificate.clone())),
                    member: Some(member),
                });
            }
            Err(problem) => problem,
        };
        let reason = member_reason(&problem);
        metrics::counter!("hoist_auth_failures_total", "reason" => reason).increment(1);
        if let Some(left_out) = self.failure_lines.permit() {
            tracing::warn!(peer = %peer.addr, reason, left_out, "member not admitted");
        }
        Err(member_failure(&problem))
    }

    fn credentials<'r>(&self, access: AccessClass, request: &'r Request) -> Option<&'r str> {
        let cookie = || self.is_as_bss(access).then(|| jwt_cookie(request.headers())).flatten();
        bearer(request.headers()).or_else(cookie)
    }

    /// Boot parameters of a site whose tokens are those of BSS.
    fn is_as_bss(&self, access: AccessClass) -> bool {
        matches!(access, AccessClass::Bss { .. }) && self.policy.bss == BssAuth::Jwks
    }

    /// A JWT there needs no scope.
    fn is_any_jwt(&self, access: AccessClass, principal: &Principal) -> bool {
        self.is_as_bss(access) && matches!(principal.who(), Caller::Jwt { .. })
    }

    fn authenticate(&self, token: Option<&str>, peer: &Peer) -> Result<Principal, Failure> {
        let Some(token) = token else {
            return Err(Failure::new(Code::Unauthenticated, "this route needs a token")
                .with_remedy("send `Authorization: Bearer <token>`"));
        };
        let (reason, detail) = match self.verifier.check(token) {
            Ok(principal) => return Ok(principal),
            Err(TokenProblem::Jwt(error)) => (jwt_reason(&error), error.to_string()),
            Err(TokenProblem::Token(error)) => (token_reason(error), error.to_string()),
        };
        metrics::counter!("hoist_auth_failures_total", "reason" => reason).increment(1);
        match self.failures.count(peer.addr.ip(), Instant::now()) {
            count if count <= FAILURES_ALLOWED => {
                if let Some(left_out) = self.failure_lines.permit() {
                    tracing::warn!(peer = %peer.addr, reason, left_out, "authentication failed");
                }
                Err(Failure::new(Code::Unauthenticated, detail)
                    .with_remedy("check the token, or ask for a new one"))
            }
            // One line per window: an attacker must not fill the log.
            count => {
                if count == FAILURES_ALLOWED + 1
                    && let Some(left_out) = self.failure_lines.permit()
                {
                    tracing::warn!(peer = %peer.addr, left_out, "too many failed authentications");
                }
                Err(Failure::new(Code::TooManyFailures, "too many failed attempts from you")
                    .with_remedy("wait a minute"))
            }
        }
    }
}

/// The principal of a request, and the credential that it was let in with.
struct Admission {
    principal: Principal,
    credential: Option<Credential>,
    member: Option<Member>,
}

/// Without a credential.
impl From<Principal> for Admission {
    fn from(principal: Principal) -> Self {
        Self { principal, credential: None, member: None }
    }
}

fn peer_of(request: &Request) -> Result<&Peer, Failure> {
    request
        .extensions()
        .get::<Peer>()
        .ok_or_else(|| Failure::new(Code::Internal, "the listener did not say who is asking"))
}

/// The answer, which ends with the credential it is for.
fn bound(mut response: Response, ending: Option<CredentialEnd>) -> Response {
    match ending {
        None => response,
        Some(ending) => {
            response.extensions_mut().insert(AnswerToToken);
            ending.bound(response)
        }
    }
}

/// Failed attempts per address in the current window.
#[derive(Debug)]
pub(crate) struct Failures(Mutex<Table<(Instant, u32)>>);

impl Default for Failures {
    fn default() -> Self {
        Self(Mutex::new(Table::new(MAX_TRACKED)))
    }
}

impl Failures {
    fn count(&self, ip: IpAddr, now: Instant) -> u32 {
        let mut seen = self.0.lock();
        let is_over = |(start, _): &(Instant, u32)| now.duration_since(*start) >= WINDOW;
        let window = seen.entry(ip, now, is_over, || (now, 0));
        if is_over(window) {
            *window = (now, 0);
        }
        let (_, count) = window;
        *count = count.saturating_add(1);
        *count
    }
}

impl RouteSpec {
    /// Runs to its end whatever its caller does.
    fn writes(&self) -> bool {
        match self.access {
            AccessClass::Admin { verb, .. } | AccessClass::Bss { verb } => verb == Verb::Write,
            _ => !self.method.is_safe(),
        }
    }

    /// Whether the gate appends an audit entry if the handler wrote none. Reports of agents and
    /// nodes are too many for that; the handlers audit the changes that a report causes.
    fn audited(&self) -> bool {
        let writes = Verb::Write;
        matches!(self.access, AccessClass::Admin { verb, .. } | AccessClass::Bss { verb } if verb == writes)
    }
}

fn check_query(spec: &RouteSpec, request: &Request) -> Result<(), Failure> {
    let has_flags = spec.query.iter().any(|parameter| parameter.is_flag);
    let is_unchecked = spec.lenient && !has_flags;
    if is_unchecked || request.uri().query().is_none_or(str::is_empty) {
        return Ok(());
    }
    let axum::extract::Query(pairs) =
        axum::extract::Query::<Vec<(String, String)>>::try_from_uri(request.uri())
            .map_err(|_| Failure::new(Code::BadParameter, "the query string cannot be read"))?;
    let declared = || spec.query.iter().map(|parameter| parameter.name);
    let is_flag = |name: &str| spec.query.iter().any(|known| known.is_flag && known.name == name);
    let mut problem = Problem::new(Code::UnknownParameter, "");
    for (name, value) in pairs {
        if is_flag(&name) {
            let flag: Result<Flag, String> = value.parse();
            flag.map_err(|why| Failure::new(Code::BadParameter, format!("{name}: {why}")))?;
        }
        if spec.lenient || declared().any(|known| known == name) {
            continue;
        }
        let mut diagnostic =
            Diagnostic::new(format!("?{name}"), format!("`{name}` is not a parameter here"));
        diagnostic.hint = match nearest(&name, declared()) {
            Some(near) => Some(format!("did you mean `{near}`?")),
            None if spec.query.is_empty() => Some("this route takes no parameters".to_owned()),
            None => Some(format!("known are {}", declared().collect::<Vec<_>>().join(", "))),
        };
        problem.errors.push(diagnostic);
    }
    match problem.errors.first() {
        None => Ok(()),
        Some(first) => {
            problem.detail.clone_from(&first.message);
            problem.remedy.clone_from(&first.hint);
            Err(problem.into())
        }
    }
}

fn draft_of(spec: &RouteSpec, principal: &Principal, request: &Request) -> Draft {
    let peer = request.extensions().get::<Peer>();
    let id = request.extensions().get::<RequestId>();
    Draft {
        who: match principal.who() {
            Caller::Anonymous => String::new(),
            who => who.to_string(),
        },
        from: peer.map(|peer| peer.addr.ip().to_canonical().to_string()).unwrap_or_default(),
        request_id: id.map(ToString::to_string).unwrap_or_default(),
        method: spec.method.to_string(),
        route: spec.path.to_owned(),
        object: request.uri().path().to_owned(),
        ..Draft::default()
    }
}

/// Discards the rest of the body. A client that waits for `100 Continue` gets its answer at once
/// instead.
async fn drain(request: Request) {
    if request.headers().contains_key(header::EXPECT) {
        return;
    }
    drain_body(request.into_body()).await;
}

pub async fn drain_body(body: Body) {
    let mut body = Limited::new(body, DRAIN_BYTES);
    let all = async { while let Some(Ok(_)) = body.frame().await {} };
    let _ = tokio::time::timeout(DRAIN_TIME, all).await;
}

fn content_length(headers: &HeaderMap) -> Option<usize> {
    let text = headers.get(header::CONTENT_LENGTH)?.to_str().ok()?;
    // Too many digits for a number is too large as well.
    Some(text.parse().unwrap_or(usize::MAX))
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers.get(header::AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

/// The cookie with the token of browsers behind BSS's gateway.
fn jwt_cookie(headers: &HeaderMap) -> Option<&str> {
    let cookies = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    let mut pairs = cookies.flat_map(|cookies| cookies.split(';'));
    pairs.find_map(|pair| pair.trim().strip_prefix("jwt="))
}

/// The rights of every client that BSS itself would admit.
fn boot_grant() -> Grant {
    let verbs = vec![Verb::Read, Verb::Write];
    Grant { verbs, contexts: vec![Context::Boot], selector: None }
}

fn open_bss(verb: Verb) -> Principal {
    if verb == Verb::Write {
        metrics::counter!("hoist_bss_open_writes_total").increment(1);
    }
    Principal::anonymous().with(boot_grant())
}

fn token_reason(error: TokenError) -> &'static str {
    match error {
        TokenError::Foreign | TokenError::Wrong => "wrong",
        TokenError::Expired => "expired",
        TokenError::Revoked => "revoked",
    }
}

fn jwt_reason(error: &JwtError) -> &'static str {
    match error {
        JwtError::Expired => "expired",
        JwtError::UnknownKey => "unknown_key",
        _ => "wrong",
    }
}

fn member_reason(problem: &MemberProblem) -> &'static str {
    match problem {
        MemberProblem::NotAMember => "not_a_member",
        MemberProblem::Expired(_) => "member_expired",
        MemberProblem::NotAdmitted(_, NotAdmitted::NotLoaded) => "members_not_loaded",
        MemberProblem::NotAdmitted(_, NotAdmitted::Ended(_)) => "member_ended",
        MemberProblem::NotAdmitted(_, NotAdmitted::Unknown) => "member_unknown",
    }
}

fn member_failure(problem: &MemberProblem) -> Failure {
    match problem {
        MemberProblem::NotAMember => {
            let detail = "the client certificate is not one of a cluster member";
            Failure::new(Code::Unauthenticated, detail)
                .with_remedy("present the chain that the cluster issued, or send a token")
        }
        MemberProblem::Expired(certificate) => {
            let detail = format!("the member certificate ended at {}", certificate.not_after);
            Failure::new(Code::Unauthenticated, detail)
                .with_remedy("check the clock; connect with the renewed certificate, or join again")
        }
        MemberProblem::NotAdmitted(certificate, reason) => not_admitted(certificate, *reason),
    }
}

fn not_admitted(certificate: &MemberCertificate, reason: NotAdmitted) -> Failure {
    let MemberCertificate { node, serial, .. } = certificate;
    match reason {
        NotAdmitted::NotLoaded => {
            let detail = "the members of the cluster were not read from the store yet";
            Failure::new(Code::StoreUnavailable, detail)
                .with_remedy("try again when `/readyz` is ok")
        }
        NotAdmitted::Ended(end) => {
            let detail = format!("member `{node}` {} the cluster", end.predicate());
            Failure::new(end.into(), detail).with_remedy(
                "run `hoist-agent identity reset --yes` on the machine, and join it with a new \
                 identity",
            )
        }
        NotAdmitted::Unknown => {
            let detail = format!(
                "member `{node}` is unknown, or its certificate with serial {serial} was replaced"
            );
            Failure::new(Code::Forbidden, detail).with_remedy(
                "connect with the newest certificate, or let the machine join with a new join token",
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn failures_are_counted_per_address_and_forgotten() {
        let failures = Failures::default();
        let [one, two]: [IpAddr; 2] = [[10, 0, 0, 1].into(), [10, 0, 0, 2].into()];
        for expected in 1..=FAILURES_ALLOWED + 1 {
            assert_eq!(failures.count(one, Instant::now()), expected);
        }
        assert_eq!(failures.count(two, Instant::now()), 1);
        tokio::time::advance(WINDOW).await;
        assert_eq!(failures.count(one, Instant::now()), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn failures_of_many_addresses_are_bounded_and_none_is_forgotten() {
        let failures = Failures::default();
        let ip = |number: u32| IpAddr::from(number.to_be_bytes());
        for number in 0..u32::try_from(2 * MAX_TRACKED).unwrap() {
            failures.count(ip(number), Instant::now());
        }
        assert!(failures.0.lock().len() <= MAX_TRACKED);
        assert_eq!(failures.count(ip(0), Instant::now()), 2, "the first is still counted");
        let last = failures.count(IpAddr::from([203, 0, 113, 1]), Instant::now());
        for more in 1..=FAILURES_ALLOWED {
            let neighbour = IpAddr::from([203, 0, 113, u8::try_from(more).unwrap()]);
            assert_eq!(
                failures.count(neighbour, Instant::now()),
                last + more,
                "and so is the last"
            );
        }
    }
}
