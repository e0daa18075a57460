//! Accepting connections: an own loop, because everything from outside has a limit here.
//!
//! Plain connections speak HTTP/1.1; over TLS the client chooses between that and HTTP/2. HTTP/2
//! without TLS is not offered: telling the two apart means reading before any timer runs.

use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use http::Request;
use hyper::body::Incoming;
use hyper::rt::Executor;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{Instant, Sleep};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::Service;

use crate::peer::Peer;

/// Bounds on what clients may take. Each has a default that suits a site of ten thousand nodes.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Open connections per listener; further ones wait in the kernel's queue.
    pub max_connections: usize,
    /// From the first byte wanted to the last header: cuts slow lorises and idle keep-alives.
    pub header_timeout: Duration,
    pub handshake_timeout: Duration,
    /// All headers of a request, in bytes. At least 8192.
    pub max_header_bytes: usize,
    pub max_body_bytes: usize,
    /// From the last header to the first byte of the answer, body included. Not for streams.
    pub request_timeout: Duration,
    /// A client that takes nothing for so long is cut.
    pub write_stall: Duration,
    /// How long a stop waits for running requests.
    pub grace: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_connections: 16_384,
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

/// How often an HTTP/2 client is asked whether it is still there.
const H2_PING: Duration = Duration::from_secs(30);

/// Pause after a failed accept: out of file descriptors, most likely.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// One bound socket and what to do with it.
pub(crate) struct Listener {
    pub(crate) tcp: TcpListener,
    pub(crate) tls: Option<TlsAcceptor>,
    pub(crate) router: Router,
    pub(crate) limits: Arc<Limits>,
    pub(crate) connections: TaskTracker,
    /// Stop accepting and finish what runs.
    pub(crate) stopping: CancellationToken,
    /// Drop what still runs.
    pub(crate) abort: CancellationToken,
}

impl Listener {
    /// Accepts until told to stop.
    pub(crate) async fn run(self) {
        let label = if self.tls.is_some() { "tls" } else { "plain" };
        let slots = Arc::new(Semaphore::new(self.limits.max_connections));
        let listener = Arc::new(self);
        loop {
            let accepted = tokio::select! {
                () = listener.stopping.cancelled() => return,
                accepted = async {
                    let slot = Arc::clone(&slots).acquire_owned().await;
                    (slot.expect("the semaphore is never closed"), listener.tcp.accept().await)
                } => accepted,
            };
            let (slot, (stream, addr)) = match accepted {
                (slot, Ok(accepted)) => (slot, accepted),
                (_, Err(error)) => {
                    tracing::warn!(%error, listener = label, "connection not accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            metrics::counter!("hoist_connections_total", "listener" => label).increment(1);
            let open = metrics::gauge!("hoist_connections", "listener" => label);
            open.increment(1.0);
            let connection = Connection {
                tls: listener.tls.clone(),
                router: listener.router.clone(),
                limits: Arc::clone(&listener.limits),
                connections: listener.connections.clone(),
                stopping: listener.stopping.clone(),
                abort: listener.abort.clone(),
            };
            listener.connections.spawn(async move {
                connection.run(stream, addr).await;
                open.decrement(1.0);
                drop(slot);
            });
        }
    }
}

struct Connection {
    tls: Option<TlsAcceptor>,
    router: Router,
    limits: Arc<Limits>,
    connections: TaskTracker,
    stopping: CancellationToken,
    abort: CancellationToken,
}

impl Connection {
    async fn run(self, stream: TcpStream, addr: std::net::SocketAddr) {
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "connection is gone already");
            return;
        }
        let Some(tls) = self.tls.clone() else {
            let peer = Peer { addr, secure: false, certificates: [].into() };
            return self.serve(stream, peer, false).await;
        };
        let handshake = tokio::time::timeout(self.limits.handshake_timeout, tls.accept(stream));
        let stream = tokio::select! {
            () = self.stopping.cancelled() => return,
            outcome = handshake => match outcome {
                Ok(Ok(stream)) => stream,
                Ok(Err(error)) => {
                    tracing::debug!(peer = %addr, %error, "TLS handshake failed");
                    return;
                }
                Err(_) => return,
            },
        };
        let (_, session) = stream.get_ref();
        let h2 = session.alpn_protocol() == Some(b"h2");
        let certificates: Vec<_> = session
            .peer_certificates()
            .unwrap_or_default()
            .iter()
            .map(|certificate| certificate.clone().into_owned())
            .collect();
        let peer = Peer { addr, secure: true, certificates: certificates.into() };
        self.serve(stream, peer, h2).await;
    }

    async fn serve<I>(&self, io: I, peer: Peer, h2: bool)
    where
        I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let limits = &self.limits;
        let mut builder = auto::Builder::new(Tracked(self.connections.clone()));
        builder
            .http1()
            .timer(TokioTimer::new())
            .header_read_timeout(limits.header_timeout)
            .max_buf_size(limits.max_header_bytes.max(8192));
        builder
            .http2()
            .timer(TokioTimer::new())
            .max_header_list_size(u32::try_from(limits.max_header_bytes).unwrap_or(u32::MAX))
            .max_concurrent_streams(MAX_STREAMS)
            .keep_alive_interval(H2_PING)
            .keep_alive_timeout(limits.header_timeout);
        let builder = if h2 { builder.http2_only() } else { builder.http1_only() };
        let router = self.router.clone();
        let service = service_fn(move |request: Request<Incoming>| {
            let mut request = request.map(Body::new);
            request.extensions_mut().insert(peer.clone());
            let answer = router.clone().call(request);
            async move { answer.await.map_err(|never: Infallible| never) }
        });
        let io = TokioIo::new(Stall::new(io, limits.write_stall));
        let mut connection = std::pin::pin!(builder.serve_connection(io, service));
        let outcome = tokio::select! {
            outcome = connection.as_mut() => outcome,
            () = self.stopping.cancelled() => {
                connection.as_mut().graceful_shutdown();
                tokio::select! {
                    outcome = connection.as_mut() => outcome,
                    () = self.abort.cancelled() => {
                        tracing::warn!("connection cut at the end of the grace period");
                        return;
                    }
                }
            }
        };
        if let Err(error) = outcome {
            tracing::debug!(%error, "connection ended");
        }
    }
}

/// HTTP/2 needs tasks of its own; they are joined like the connections.
#[derive(Clone)]
struct Tracked(TaskTracker);

impl<F> Executor<F> for Tracked
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    fn execute(&self, task: F) {
        self.0.spawn(task);
    }
}

/// A connection whose writes must get somewhere: one that takes nothing for `limit` is an error.
struct Stall<I> {
    io: I,
    limit: Duration,
    /// Runs while a write waits.
    timer: Option<Pin<Box<Sleep>>>,
}

impl<I> Stall<I> {
    fn new(io: I, limit: Duration) -> Self {
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
        let outcome = Pin::new(&mut self.io).poll_write_vectored(context, buffers);
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
}
