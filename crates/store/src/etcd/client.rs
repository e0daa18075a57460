//! Calls to an etcd cluster: choice of member, timeouts, authentication, and the meaning of errors.

use std::fmt;
use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::{Stream, StreamExt, stream};
use hoist_diagnostic::chain;
use hoist_etcd_proto::etcdserverpb as pb;
use parking_lot::RwLock;
use pb::auth_client::AuthClient;
use pb::kv_client::KvClient;
use pb::lease_client::LeaseClient;
use pb::maintenance_client::MaintenanceClient;
use pb::watch_client::WatchClient;
use pb::watch_request::RequestUnion;
use secrecy::{ExposeSecret, SecretString};
use tokio::sync::mpsc;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Code, ConnectError, Request, Response, Status, Streaming};

use crate::{PasswordFile, Revision, StoreError};

/// Addresses and credentials of the cluster.
#[derive(Clone)]
pub struct Config {
    /// `host:port`, at least one.
    pub endpoints: Vec<String>,
    /// Everything is kept below this path, so that one etcd can serve several sites.
    pub prefix: String,
    pub tls: Option<Tls>,
    pub login: Option<Login>,
}

/// PEM blocks. The key is why [`Config`] does not print itself.
#[derive(Clone, Default)]
pub struct Tls {
    pub ca: Option<Vec<u8>>,
    pub identity: Option<(Vec<u8>, SecretString)>,
}

#[derive(Clone)]
pub struct Login {
    pub user: String,
    pub password: PasswordFile,
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("endpoints", &self.endpoints)
            .field("prefix", &self.prefix)
            .field("tls", &self.tls.is_some())
            .field("user", &self.login.as_ref().map(|login| &login.user))
            .finish()
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").finish_non_exhaustive()
    }
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Login").field("user", &self.user).finish_non_exhaustive()
    }
}

/// The longest any call may take, over all members tried. A server that hangs is as good as dead.
const CALL_TIMEOUT: Duration = Duration::from_secs(4);

/// A member that does not even accept a connection in this time is skipped.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(1500);

/// Finds connections that died without a word (etcd refuses pings more often than every 5 s).
const PING_EVERY: Duration = Duration::from_secs(10);
const PING_TIMEOUT: Duration = Duration::from_secs(5);

/// An open watch: the messages of the member, and a sender for progress requests.
pub(super) struct WatchConnection {
    pub(super) events: Streaming<pb::WatchResponse>,
    requests: mpsc::Sender<RequestUnion>,
    /// Index of the member.
    member: usize,
}

impl WatchConnection {
    /// Asks the member to confirm that everything up to its revision has been sent. A request that
    /// still waits to be sent is enough.
    pub(super) fn ask_progress(&self) {
        let _ = self.requests.try_send(RequestUnion::ProgressRequest(pb::WatchProgressRequest {}));
    }
}

/// The requests of a watch. The stream ends with its [`WatchConnection`]: etcd takes the end for
/// "not interested any more".
fn watch_requests(
    create: RequestUnion,
    waiting: mpsc::Receiver<RequestUnion>,
) -> impl Stream<Item = pb::WatchRequest> + Send {
    let later = stream::unfold(waiting, |mut waiting| async move {
        waiting.recv().await.map(|request| (request, waiting))
    });
    let all = stream::iter([create]).chain(later);
    all.map(|request| pb::WatchRequest { request_union: Some(request) })
}

/// Whether a call may be sent again when it is unknown if the first one arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Repeat {
    Harmless,
    Never,
}

pub(super) struct Client {
    members: Vec<Channel>,
    /// Index of the member that answered last.
    current: AtomicUsize,
    login: Option<Login>,
    token: RwLock<Option<MetadataValue<Ascii>>>,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("members", &self.members.len()).finish_non_exhaustive()
    }
}

impl Client {
    /// Connects lazily: nothing is sent before the first call.
    pub(super) fn new(config: &Config) -> Result<Self, StoreError> {
        let members = config
            .endpoints
            .iter()
            .map(|address| channel(address, config.tls.as_ref()))
            .collect::<Result<Vec<_>, _>>()?;
        if members.is_empty() {
            return Err(StoreError::Refused { detail: "no etcd endpoint given".to_owned() });
        }
        Ok(Self {
            members,
            current: AtomicUsize::new(0),
            login: config.login.clone(),
            token: RwLock::new(None),
        })
    }

    pub(super) async fn txn(
        &self,
        txn: &pb::TxnRequest,
        repeat: Repeat,
    ) -> Result<pb::TxnResponse, StoreError> {
        self.call(txn, repeat, |channel, request| async move { kv(channel).txn(request).await })
            .await
    }

    pub(super) async fn range(
        &self,
        range: &pb::RangeRequest,
    ) -> Result<pb::RangeResponse, StoreError> {
        let send = |channel, request| async move { kv(channel).range(request).await };
        self.call(range, Repeat::Harmless, send).await
    }

    pub(super) async fn delete(&self, range: &pb::DeleteRangeRequest) -> Result<(), StoreError> {
        let send = |channel, request| async move { kv(channel).delete_range(request).await };
        self.call(range, Repeat::Harmless, send).await.map(drop)
    }

    pub(super) async fn compact(&self, revision: i64) -> Result<(), StoreError> {
        let request = pb::CompactionRequest { revision, physical: false };
        let send = |channel, request| async move { kv(channel).compact(request).await };
        self.call(&request, Repeat::Harmless, send).await.map(drop)
    }

    pub(super) async fn grant(&self, ttl: Duration) -> Result<i64, StoreError> {
        // Whole seconds, rounded up: a lease may last longer than asked, never shorter.
        let seconds = i64::try_from(ttl.as_millis().div_ceil(1000)).unwrap_or(i64::MAX).max(1);
        let request = pb::LeaseGrantRequest { ttl: seconds, id: 0 };
        let send =
            |channel, request| async move { LeaseClient::new(channel).lease_grant(request).await };
        Ok(self.call(&request, Repeat::Harmless, send).await?.id)
    }

    pub(super) async fn revoke(&self, lease: i64) -> Result<(), StoreError> {
        let request = pb::LeaseRevokeRequest { id: lease };
        let send =
            |channel, request| async move { LeaseClient::new(channel).lease_revoke(request).await };
        self.call(&request, Repeat::Harmless, send).await.map(drop)
    }

    /// `false` when the lease is gone.
    pub(super) async fn keep_alive(&self, lease: i64) -> Result<bool, StoreError> {
        let send = |channel, request: Request<i64>| async move {
            let request = request.map(|id| stream::iter([pb::LeaseKeepAliveRequest { id }]));
            let mut answers =
                LeaseClient::new(channel).lease_keep_alive(request).await?.into_inner();
            Ok(Response::new(answers.message().await?))
        };
        let answer = self.call(&lease, Repeat::Harmless, send).await?;
        Ok(answer.is_some_and(|answer| answer.ttl > 0))
    }

    pub(super) async fn status(&self) -> Result<pb::StatusResponse, StoreError> {
        let send =
            |channel, request| async move { MaintenanceClient::new(channel).status(request).await };
        self.call(&pb::StatusRequest {}, Repeat::Harmless, send).await
    }

    pub(super) async fn watch(
        &self,
        create: pb::WatchCreateRequest,
    ) -> Result<WatchConnection, StoreError> {
        let create = RequestUnion::CreateRequest(create);
        let send = |channel, request: Request<RequestUnion>| async move {
            let (requests, waiting) = mpsc::channel(1);
            let mut request = request.map(|create| watch_requests(create, waiting));
            // A member cut off from its cluster then ends the watch instead of going silent.
            request.metadata_mut().insert("hasleader", MetadataValue::from_static("true"));
            let answer = watching(channel).watch(request).await?;
            Ok(answer.map(|events| WatchConnection { events, requests, member: 0 }))
        };
        let mut connection = self.call(&create, Repeat::Harmless, send).await?;
        connection.member = self.current.load(Ordering::Relaxed);
        Ok(connection)
    }

    /// Lets the next call begin with another member than that of this watch.
    pub(super) fn pass_over(&self, watch: &WatchConnection) {
        let next = (watch.member + 1) % self.members.len();
        let ours = watch.member;
        let relaxed = Ordering::Relaxed;
        // An error means that another member is asked already.
        let _ = self.current.compare_exchange(ours, next, relaxed, relaxed);
    }

    /// Sends `message` to the member that answered last, then to the others as far as allowed.
    async fn call<M, R, F, Fut>(
        &self,
        message: &M,
        repeat: Repeat,
        send: F,
    ) -> Result<R, StoreError>
    where
        M: Clone,
        F: Fn(Channel, Request<M>) -> Fut,
        Fut: Future<Output = Result<Response<R>, Status>>,
    {
        let count = self.members.len();
        let share = CALL_TIMEOUT / u32::try_from(count).unwrap_or(u32::MAX);
        let first = self.current.load(Ordering::Relaxed);
        // A connection that broke while idle is worth one more try, also on the only member.
        let turns = count.max(2);
        let mut turn = 0;
        loop {
            let index = (first + turn) % count;
            let error = match self.attempt(index, message, share, &send).await {
                Ok(answer) => {
                    self.current.store(index, Ordering::Relaxed);
                    return Ok(answer);
                }
                Err(status) => status,
            };
            turn += 1;
            let hangs = error.code() == Code::DeadlineExceeded && count == 1;
            if turn == turns || hangs || !another_may_help(&error, repeat) {
                self.current.store((index + 1) % count, Ordering::Relaxed);
                return Err(explain(&error));
            }
        }
    }

    async fn attempt<M, R, F, Fut>(
        &self,
        index: usize,
        message: &M,
        limit: Duration,
        send: &F,
    ) -> Result<R, Status>
    where
        M: Clone,
        F: Fn(Channel, Request<M>) -> Fut,
        Fut: Future<Output = Result<Response<R>, Status>>,
    {
        let work = async {
            let used = self.token(index).await?;
            match send(self.members[index].clone(), with_token(message.clone(), used.as_ref()))
                .await
            {
                // Tokens end with a server's restart or after some minutes.
                Err(status) if used.is_some() && token_is_stale(&status) => {
                    self.forget_token();
                    let fresh = self.token(index).await?;
                    send(self.members[index].clone(), with_token(message.clone(), fresh.as_ref()))
                        .await
                }
                other => other,
            }
        };
        match tokio::time::timeout(limit, work).await {
            Ok(answer) => answer.map(Response::into_inner),
            Err(_) => Err(Status::deadline_exceeded(format!("no answer within {limit:?}"))),
        }
    }

    async fn token(&self, index: usize) -> Result<Option<MetadataValue<Ascii>>, Status> {
        let Some(login) = &self.login else { return Ok(None) };
        let known = self.token.read().clone();
        if known.is_some() {
            return Ok(known);
        }
        let password =
            login.password.read().map_err(|error| Status::unauthenticated(error.to_string()))?;
        let request = pb::AuthenticateRequest {
            name: login.user.clone(),
            password: password.expose_secret().to_owned(),
        };
        let answer = AuthClient::new(self.members[index].clone()).authenticate(request).await?;
        let mut token = MetadataValue::try_from(answer.into_inner().token)
            .map_err(|_| Status::unauthenticated("etcd gave a token that cannot be sent"))?;
        token.set_sensitive(true);
        *self.token.write() = Some(token.clone());
        Ok(Some(token))
    }

    fn forget_token(&self) {
        *self.token.write() = None;
    }
}

fn channel(address: &str, tls: Option<&Tls>) -> Result<Channel, StoreError> {
    let scheme = if tls.is_some() { "https" } else { "http" };
    let refused = |error: &dyn std::error::Error| StoreError::Refused {
        detail: format!("etcd endpoint `{address}`: {}", chain(error)),
    };
    let mut endpoint = Endpoint::from_shared(format!("{scheme}://{address}"))
        .map_err(|error| refused(&error))?
        .connect_timeout(CONNECT_TIMEOUT)
        .tcp_nodelay(true)
        .http2_keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PING_TIMEOUT)
        .keep_alive_while_idle(true);
    if let Some(tls) = tls {
        let mut config = ClientTlsConfig::new();
        if let Some(ca) = &tls.ca {
            config = config.ca_certificate(Certificate::from_pem(ca));
        }
        if let Some((certificate, key)) = &tls.identity {
            config = config.identity(Identity::from_pem(certificate, key.expose_secret()));
        }
        endpoint = endpoint.tls_config(config).map_err(|error| refused(&error))?;
    }
    Ok(endpoint.connect_lazy())
}

fn kv(channel: Channel) -> KvClient<Channel> {
    // Our own pages decide how much comes at once, not the transport's default of 4 MiB.
    KvClient::new(channel).max_decoding_message_size(usize::MAX)
}

fn watching(channel: Channel) -> WatchClient<Channel> {
    WatchClient::new(channel).max_decoding_message_size(usize::MAX)
}

fn with_token<M>(message: M, token: Option<&MetadataValue<Ascii>>) -> Request<M> {
    let mut request = Request::new(message);
    if let Some(token) = token {
        request.metadata_mut().insert("token", token.clone());
    }
    request
}

fn token_is_stale(status: &Status) -> bool {
    status.code() == Code::Unauthenticated || status.message().contains("revision in header is old")
}

fn another_may_help(status: &Status, repeat: Repeat) -> bool {
    never_sent(status)
        || (repeat == Repeat::Harmless
            && matches!(status.code(), Code::Unavailable | Code::DeadlineExceeded | Code::Unknown))
}

/// A connection that was never made cannot have carried the request.
fn never_sent(status: &Status) -> bool {
    let mut next = std::error::Error::source(status);
    while let Some(error) = next {
        if error.is::<ConnectError>() {
            return true;
        }
        next = error.source();
    }
    false
}

/// The meaning of an unsuccessful answer for the caller.
pub(super) fn explain(status: &Status) -> StoreError {
    // tonic hides the interesting half of the message (`connection refused`) in the causes.
    let cause = std::error::Error::source(status).map(|cause| format!(": {}", chain(cause)));
    let detail = format!("etcd: {}{}", status.message(), cause.unwrap_or_default());
    match status.code() {
        Code::ResourceExhausted if status.message().contains("space exceeded") => {
            StoreError::Full { detail }
        }
        Code::PermissionDenied
        | Code::Unauthenticated
        | Code::InvalidArgument
        | Code::FailedPrecondition
        | Code::Unimplemented => StoreError::Refused { detail },
        Code::DataLoss => StoreError::Damaged { detail },
        Code::OutOfRange => StoreError::Compacted { asked: Revision(0), oldest: Revision(0) },
        _ => StoreError::Unavailable { detail },
    }
}
