//! Accepting connections: an own loop, because every input from outside has a limit here.
//!
//! Plain connections speak HTTP/1.1; over TLS the client chooses between that and HTTP/2. HTTP/2
//! without TLS is not offered: telling the two apart means reading before any timer runs.
//!
//! Plain connections are accepted when their first bytes have arrived, or after [`SILENCE`]. Most
//! are then answered and closed in one go, and a client that only connects occupies no slot.
//!
//! Does not belong here: routing, authentication and answers.

use std::convert::Infallible;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsRawFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{Either, Full};
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::{HttpService, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use metrics::Gauge;
use rustix::net::SocketFlags;
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinError;
use tokio::time::{Instant, Sleep};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};
use tower::Service;

use crate::addresses::{Clients, CountedConnection};
use crate::direct::{self, Ways};
use crate::peer::{Peer, Proxies};
use crate::plain::PlainEnd;
use crate::streams::{AnswerBody, StreamSlots, StreamTasks, Streams};
use crate::{path, plain, streams};

/// Bounds on what clients may take. Each has a default that suits a site of ten thousand nodes.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Open connections per listener; further ones wait in the kernel's queue.
    pub max_connections: usize,
    /// Open connections of one address per listener; further ones are closed. Not of this machine
    /// itself, nor of the proxies that are listed.
    pub max_per_address: usize,
    /// Deadline for reading all headers: cuts slow-loris clients and idle keep-alive connections.
    pub header_timeout: Duration,
    pub handshake_timeout: Duration,
    /// All headers of a request, in bytes. At least 8192.
    pub max_header_bytes: usize,
    pub max_body_bytes: usize,
    /// From the last header to the first byte of the answer, body included. Not for streams.
    pub request_timeout: Duration,
    /// A client that takes nothing for so long is cut.
    pub write_stall: Duration,
    /// Time that a stop waits for running requests.
    pub grace: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_connections: 16_384,
            max_per_address: 8_192,
            header_timeout: Duration::from_secs(15),
            handshake_timeout: Duration::from_secs(10),
            max_header_bytes: 32 * 1024,
            max_body_bytes: 8 * 1024 * 1024,
            request_timeout: Duration::from_secs(30),
            write_stall: Duration::from_mins(1),
            grace: Duration::from_secs(15),
        }
    }
}

/// HTTP/2 requests at once on one connection.
const MAX_STREAMS: u32 = 128;

/// Bytes that a stream may have waiting for the socket.
const SEND_BUFFER: usize = 64 * 1024;

/// An HTTP/2 connection is closed when it had no stream from one look to the next.
const H2_IDLE: Duration = Duration::from_mins(1);

/// Interval between keep-alive pings to an HTTP/2 client.
const H2_PING: Duration = Duration::from_secs(30);

/// Pause after a failed accept: out of file descriptors, most likely.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Seconds that the kernel keeps a plain connection to itself while its client says nothing.
const SILENCE: libc::c_int = 1;

/// An answer that is sent in one piece.
const SMALL: usize = 2048;

/// Answers requests: direct routes first, then the router.
#[derive(Debug)]
pub(crate) struct App {
    pub(crate) router: Router,
    pub(crate) ways: Ways,
    /// The runtime of the handlers.
    pub(crate) workers: Handle,
}

/// Bytes in memory do not need a box around them.
type Outgoing = Either<Full<Bytes>, Body>;

/// One bound socket. It is closed when accepting ends; open connections still finish.
pub(crate) struct Listener {
    tcp: AsyncFd<TcpListener>,
    host: Arc<Host>,
}

/// The state that all connections of a listener share.
pub(crate) struct Host {
    pub(crate) tls: Option<TlsAcceptor>,
    pub(crate) app: Arc<App>,
    pub(crate) limits: Arc<Limits>,
    /// One permit for each permitted connection.
    pub(crate) slots: Arc<Semaphore>,
    pub(crate) clients: Arc<Clients>,
    pub(crate) proxies: Arc<Proxies>,
    /// For HTTP/2 streams.
    pub(crate) places: Arc<StreamSlots>,
    pub(crate) connections: TaskTracker,
    /// Stop accepting and finish what runs.
    pub(crate) stopping: CancellationToken,
    /// Drop what still runs.
    pub(crate) abort: CancellationToken,
}

impl Listener {
    /// On the runtime that shall accept.
    #[expect(deprecated, reason = "a listener of std has one descriptor for as long as it lives")]
    pub(crate) fn new(tcp: TcpListener, host: Arc<Host>) -> io::Result<Self> {
        tcp.set_nonblocking(true)?;
        Ok(Self { tcp: AsyncFd::with_interest(tcp, Interest::READABLE)?, host })
    }

    /// Accepts until told to stop.
    pub(crate) async fn run(self) {
        let Self { tcp, host } = self;
        let label = if host.tls.is_some() { "tls" } else { "plain" };
        let accepted = metrics::counter!("hoist_connections_total", "listener" => label);
        let refused = metrics::counter!("hoist_connections_refused_total", "listener" => label);
        let open = metrics::gauge!("hoist_connections", "listener" => label);
        let mut stopping = std::pin::pin!(host.stopping.cancelled());
        loop {
            let next = async {
                let slot = Arc::clone(&host.slots).acquire_owned().await;
                let accepted = tcp.async_io(Interest::READABLE, accept).await;
                (slot.expect("the semaphore is never closed"), accepted)
            };
            let (slot, (stream, addr)) = tokio::select! {
                () = &mut stopping => return,
                next = next => match next {
                    (slot, Ok(connection)) => (slot, connection),
                    (_, Err(error)) => {
                        tracing::warn!(%error, listener = label, "connection not accepted");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                        continue;
                    }
                },
            };
            accepted.increment(1);
            let peer = Peer::new(addr, host.tls.is_some());
            let first = host.at_once(&stream, &peer);
            if matches!(first, Some(PlainEnd::End)) {
                continue;
            }
            let Ok(counted) = host.count(&stream, &peer) else {
                refused.increment(1);
                tracing::debug!(peer = %peer.addr, "connection closed: its address has too many");
                continue;
            };
            let open = OpenConnection::new(open.clone(), slot, counted);
            let serving = Arc::clone(&host);
            host.connections.spawn(async move {
                match TcpStream::from_std(stream) {
                    Ok(stream) => serving.greet(stream, peer, first).await,
                    Err(error) => tracing::warn!(%error, "a connection cannot be waited for"),
                }
                drop(open);
            });
        }
    }
}

impl Host {
    /// What hyper and TLS keep for a connection is large; it is made, and moved, only where it is
    /// needed.
    async fn greet(&self, stream: TcpStream, peer: Peer, first: Option<PlainEnd>) {
        match &self.tls {
            Some(tls) => Box::pin(self.greet_tls(tls, stream, peer)).await,
            None => self.greet_plain(stream, peer, first).await,
        }
    }

    /// Counts a connection of its address, where that is limited. A connection that was answered at
    /// once is not counted.
    fn count(
        &self,
        stream: &std::net::TcpStream,
        peer: &Peer,
    ) -> Result<Option<CountedConnection>, TooManyConnections> {
        if peer.is_loopback() {
            return Ok(None);
        }
        let ip = peer.addr.ip();
        let counted = self.clients.enter(ip);
        let is_exempt = || {
            let is_own = || stream.local_addr().is_ok_and(|own| own.ip() == ip);
            self.proxies.contains(ip) || is_own()
        };
        if counted.is_none() && !is_exempt() {
            return Err(TooManyConnections);
        }
        Ok(counted)
    }

    /// Tries to answer a plain connection before a task is started for it.
    fn at_once(&self, stream: &std::net::TcpStream, peer: &Peer) -> Option<PlainEnd> {
        if self.tls.is_some() || self.app.ways.is_empty() {
            return None;
        }
        match plain::at_once(stream, peer, &self.app.ways) {
            Poll::Ready(turn) => turn,
            Poll::Pending => None,
        }
    }

    async fn greet_tls(&self, tls: &TlsAcceptor, stream: TcpStream, peer: Peer) {
        if !is_without_delay(&stream) {
            return;
        }
        let handshake = tokio::time::timeout(self.limits.handshake_timeout, tls.accept(stream));
        let stream = tokio::select! {
            () = self.stopping.cancelled() => return,
            outcome = handshake => match outcome {
                Ok(Ok(stream)) => stream,
                Ok(Err(error)) => {
                    tracing::debug!(peer = %peer.addr, %error, "TLS handshake failed");
                    return;
                }
                Err(_) => return,
            },
        };
        let (_, session) = stream.get_ref();
        let h2 = session.alpn_protocol() == Some(b"h2");
        let peer = peer.after_handshake(session);
        if h2 {
            self.serve_http2(stream, peer).await;
        } else {
            self.serve_http1(stream, peer).await;
        }
    }

    async fn greet_plain(&self, mut stream: TcpStream, peer: Peer, first: Option<PlainEnd>) {
        let mut read = Vec::new();
        if !self.app.ways.is_empty() {
            let bounds = plain::Bounds {
                idle: self.limits.header_timeout,
                write_stall: self.limits.write_stall,
                stopping: &self.stopping,
                abort: &self.abort,
            };
            match plain::serve(stream, &peer, &self.app, bounds, first).await {
                Some(left) => (stream, read) = left,
                None => return,
            }
        }
        if is_without_delay(&stream) {
            let (rest, answers) = stream.into_split();
            let io = tokio::io::join(io::Cursor::new(read).chain(rest), answers);
            Box::pin(self.serve_http1(io, peer)).await;
        }
    }

    async fn serve_http1<I>(&self, io: I, peer: Peer)
    where
        I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let io = TokioIo::new(Stall::new(io, self.limits.write_stall));
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(self.limits.header_timeout)
            .max_buf_size(self.limits.max_header_bytes.max(8192))
            .serve_connection(io, Arc::clone(&self.app).service(peer));
        // The time limit for headers closes idle ones.
        let idle = std::future::pending();
        self.until_stopped(connection, idle, http1::Connection::graceful_shutdown).await;
    }

    async fn serve_http2<I>(&self, io: I, peer: Peer)
    where
        I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let limits = &self.limits;
        let io = TokioIo::new(Stall::new(io, limits.write_stall));
        let streams = Streams::new(&self.places, !peer.certificates.is_empty());
        let tasks = StreamTasks { tracker: self.connections.clone(), stall: limits.write_stall };
        let connection = http2::Builder::new(tasks)
            .timer(TokioTimer::new())
            .max_header_list_size(u32::try_from(limits.max_header_bytes).unwrap_or(u32::MAX))
            .max_concurrent_streams(MAX_STREAMS)
            .max_send_buf_size(SEND_BUFFER)
            .keep_alive_interval(H2_PING)
            .keep_alive_timeout(limits.header_timeout)
            .serve_connection(io, Arc::clone(&self.app).stream_service(peer, Arc::clone(&streams)));
        let idle = idle(&streams);
        self.until_stopped(connection, idle, http2::Connection::graceful_shutdown).await;
    }

    async fn until_stopped<C>(
        &self,
        connection: C,
        idle: impl Future<Output = ()>,
        shut_down: impl FnOnce(Pin<&mut C>),
    ) where
        C: Future<Output = Result<(), hyper::Error>>,
    {
        let mut connection = std::pin::pin!(connection);
        let outcome = tokio::select! {
            biased;
            outcome = connection.as_mut() => outcome,
            () = self.stopping.cancelled() => {
                shut_down(connection.as_mut());
                tokio::select! {
                    outcome = connection.as_mut() => outcome,
                    () = self.abort.cancelled() => {
                        tracing::warn!("connection cut at the end of the grace period");
                        return;
                    }
                }
            }
            () = idle => {
                shut_down(connection.as_mut());
                tokio::select! {
                    outcome = connection.as_mut() => outcome,
                    () = tokio::time::sleep(self.limits.write_stall) => return,
                    () = self.abort.cancelled() => return,
                }
            }
        };
        if let Err(error) = outcome {
            tracing::debug!(%error, "connection ended");
        }
    }
}

impl App {
    /// The service of one connection, which has one request at a time.
    fn service(
        self: Arc<Self>,
        peer: Peer,
    ) -> impl HttpService<Incoming, ResBody = Outgoing, Future: Send + 'static, Error = Infallible>
    {
        service_fn(move |request: Request<Incoming>| {
            let answer = self.answer(request, &peer);
            async move { Ok(answer.await) }
        })
    }

    /// The service of one HTTP/2 connection.
    fn stream_service(
        self: Arc<Self>,
        peer: Peer,
        streams: Arc<Streams>,
    ) -> impl HttpService<
        Incoming,
        ResBody = AnswerBody<Outgoing>,
        Future: Send + 'static,
        Error = h2::Error,
    > {
        service_fn(move |request: Request<Incoming>| {
            let admitted =
                streams.enter(&request).map(|place| (place, self.answer(request, &peer)));
            async move {
                let (place, answer) = admitted.ok_or_else(streams::refused)?;
                let answer = answer.await;
                let place = place.for_answer(&answer).ok_or_else(streams::refused)?;
                Ok(answer.map(|body| AnswerBody::new(body, place)))
            }
        })
    }

    /// The answer to one request: from memory, or from the router.
    fn answer(
        &self,
        request: Request<Incoming>,
        peer: &Peer,
    ) -> impl Future<Output = Response<Outgoing>> + Send + use<> {
        let answer = match direct::answer(&self.ways.direct, &request, peer) {
            Some(response) => Ok(response.map(|body| Either::Left(Full::new(body)))),
            None => Err(self.route(request.map(Body::new), peer)),
        };
        async move {
            match answer {
                Ok(response) => response,
                Err(routed) => routed.await.map(Either::Right),
            }
        }
    }

    /// Runs the router. The work ends when the client hangs up.
    pub(crate) fn route(
        &self,
        mut request: Request<Body>,
        peer: &Peer,
    ) -> impl Future<Output = Response<Body>> + Send + use<> {
        let (prefix, path) = path::routed(request.uri().path());
        if path != request.uri().path() {
            *request.uri_mut() = path::with_path(request.uri(), path);
        }
        let extensions = request.extensions_mut();
        extensions.insert(prefix);
        extensions.insert(peer.clone());
        let work = AbortOnDropHandle::new(self.workers.spawn(self.router.clone().call(request)));
        async move {
            let Ok(response) = work.await.unwrap_or_else(|error| Ok(broken(&error)));
            response
        }
    }
}

/// Leaves connections to the kernel until their clients have said something, for [`SILENCE`] at
/// most. Where it cannot be had they are accepted at once.
#[expect(unsafe_code, reason = "no crate has this option of a socket")]
#[expect(clippy::cast_possible_truncation, reason = "a number has four bytes")]
pub(crate) fn defer_silent(tcp: &TcpListener) {
    let seconds = SILENCE;
    let size = size_of_val(&SILENCE);
    // SAFETY: the descriptor is open for as long as `tcp` is borrowed, and the kernel reads `size`
    // bytes from `seconds`, which outlives the call.
    let outcome = unsafe {
        libc::setsockopt(
            tcp.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_DEFER_ACCEPT,
            (&raw const seconds).cast(),
            size as libc::socklen_t,
        )
    };
    if outcome != 0 {
        let error = io::Error::last_os_error();
        tracing::debug!(%error, "silent connections are accepted at once");
    }
}

/// A connection that waits for nothing by itself.
fn accept(tcp: &TcpListener) -> io::Result<(std::net::TcpStream, SocketAddr)> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let (socket, addr) = rustix::net::acceptfrom_with(tcp, flags)?;
    let addr = addr.ok_or_else(|| io::Error::other("it has no address"))?;
    Ok((socket.into(), addr.try_into()?))
}

/// Answers leave in as few pieces as they can; none waits for another. Not for a client that is gone
/// already.
fn is_without_delay(stream: &TcpStream) -> bool {
    let set = stream.set_nodelay(true);
    set.inspect_err(|error| tracing::debug!(%error, "connection is gone already")).is_ok()
}

/// The answer for a handler that did not end. Panics are caught below, so the runtime is shutting
/// down.
fn broken(error: &JoinError) -> Response<Body> {
    tracing::debug!(%error, "request cut");
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
    response
}

/// An address has as many connections as it may have.
struct TooManyConnections;

/// Comes back when no stream was open from one look to the next.
async fn idle(streams: &Streams) {
    let mut before = None;
    loop {
        tokio::time::sleep(H2_IDLE).await;
        let now = streams.idle_since();
        if now.is_some() && now == before {
            return;
        }
        before = now;
    }
}

/// An open connection, counted until it ends, however that happens.
struct OpenConnection {
    gauge: Gauge,
    _slot: OwnedSemaphorePermit,
    _counted: Option<CountedConnection>,
}

impl OpenConnection {
    fn new(gauge: Gauge, slot: OwnedSemaphorePermit, counted: Option<CountedConnection>) -> Self {
        gauge.increment(1.0);
        Self { gauge, _slot: slot, _counted: counted }
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.gauge.decrement(1.0);
    }
}

/// A connection whose writes must get somewhere: one that takes nothing for `limit` is an error.
pub(crate) struct Stall<I> {
    io: I,
    limit: Duration,
    /// Runs while a write waits.
    timer: Option<Pin<Box<Sleep>>>,
}

impl<I> Stall<I> {
    pub(crate) fn new(io: I, limit: Duration) -> Self {
        Self { io, limit, timer: None }
    }

    fn watched<T>(
        &mut self,
        outcome: Poll<io::Result<T>>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<T>> {
        if outcome.is_ready() {
            self.timer = None;
            return outcome;
        }
        let limit = self.limit;
        let timer = self
            .timer
            .get_or_insert_with(|| Box::pin(tokio::time::sleep_until(Instant::now() + limit)));
        ready!(timer.as_mut().poll(context));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client takes nothing")))
    }
}

/// All of the buffers in one, if that is small.
fn joined<'a>(buffers: &[io::IoSlice<'_>], together: &'a mut [u8; SMALL]) -> Option<&'a [u8]> {
    let mut length = 0;
    for buffer in buffers {
        together.get_mut(length..length + buffer.len())?.copy_from_slice(buffer);
        length += buffer.len();
    }
    Some(&together[..length])
}

impl<I: AsyncRead + Unpin> AsyncRead for Stall<I> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(context, buffer)
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for Stall<I> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.io).poll_write(context, bytes);
        self.watched(outcome, context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        // Head and body of a small answer: putting them together takes less than telling the
        // kernel that they are two.
        let mut together = [0; SMALL];
        let outcome = match joined(buffers, &mut together) {
            Some(bytes) => Pin::new(&mut self.io).poll_write(context, bytes),
            None => Pin::new(&mut self.io).poll_write_vectored(context, buffers),
        };
        self.watched(outcome, context)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let outcome = Pin::new(&mut self.io).poll_flush(context);
        self.watched(outcome, context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let outcome = Pin::new(&mut self.io).poll_shutdown(context);
        self.watched(outcome, context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_reader_who_takes_nothing_is_cut() {
        let (ours, _theirs) = tokio::io::duplex(16);
        let mut io = Stall::new(ours, Duration::from_mins(1));
        let error = io.write_all(&[0; 64]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    #[test]
    fn small_answer_is_sent_in_one_piece() {
        let head = [1; 100];
        let body = vec![2; SMALL - 100];
        let mut together = [0; SMALL];
        let whole = [io::IoSlice::new(&head), io::IoSlice::new(&body)];
        assert_eq!(
            joined(&whole, &mut together),
            Some([head.as_slice(), &body].concat().as_slice())
        );
        let more = [io::IoSlice::new(&head), io::IoSlice::new(&body), io::IoSlice::new(&[3])];
        assert_eq!(joined(&more, &mut together), None);
    }
}
