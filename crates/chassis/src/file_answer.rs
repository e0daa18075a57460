//! Files as answers. On plain connections the kernel sends them from its page cache, without a copy
//! (`sendfile`). TLS and HTTP/2 read the body instead.
//!
//! A handler gives its response a body as usual and a [`FilePart`] in addition. Files are sent on
//! the threads of handlers, so that a slow disk delays no booting machine; parts that are not in
//! the page cache are sent by threads that may block.

use std::fs::File;
use std::io::{self, IoSliceMut, Write as _};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use bytes::Buf as _;
use http::{HeaderName, HeaderValue, Request, Response, StatusCode, Uri, header, response};
use http_body_util::BodyExt as _;
use hyper::body::Body as _;
use metrics::Counter;
use rustix::io::ReadWriteFlags;
use rustix::net::SendFlags;
use tokio::io::{AsyncWriteExt as _, Interest};
use tokio::net::TcpStream;
use tokio::runtime::Handle;
use tokio_util::task::AbortOnDropHandle;

use crate::listen::Stall;

/// Sent in one call, at most.
const CHUNK: u64 = 1024 * 1024;

/// The usual read-ahead of the kernel: if pages at this distance are cached, those between are.
const READ_AHEAD: u64 = 128 * 1024;

/// After so many bytes other work gets its turn on the thread.
const TURN: u64 = 4 * CHUNK;

/// A response extension: the body is this part of a file. The file must not change.
#[derive(Debug, Clone)]
pub struct FilePart {
    pub file: Arc<File>,
    pub range: Range<u64>,
    /// Counts the bytes that were sent.
    pub sent: Counter,
}

/// The connection and the limits of an answer.
pub(crate) struct Transfer<'a> {
    pub(crate) workers: &'a Handle,
    /// A client that takes nothing for so long is cut.
    pub(crate) stall: Duration,
    /// The client wants the connection closed.
    pub(crate) close: bool,
    pub(crate) date: &'a str,
}

/// The request in `read`, which has no body and no more than `N` fields.
pub(crate) fn request<const N: usize>(read: &[u8]) -> Option<Request<Body>> {
    let mut fields = [httparse::EMPTY_HEADER; N];
    let mut parsed = httparse::Request::new(&mut fields);
    parsed.parse(read).ok()?;
    let mut request = Request::new(Body::empty());
    *request.uri_mut() = parsed.path?.parse::<Uri>().ok()?;
    for field in parsed.headers.iter() {
        let name = HeaderName::from_bytes(field.name.as_bytes()).ok()?;
        request.headers_mut().append(name, HeaderValue::from_bytes(field.value).ok()?);
    }
    Some(request)
}

impl Transfer<'_> {
    /// Sends an answer of the router. Returns the connection if another request may follow.
    pub(crate) async fn send(
        self,
        stream: TcpStream,
        response: Response<Body>,
    ) -> io::Result<Option<TcpStream>> {
        let (mut parts, body) = response.into_parts();
        let is_encoded = parts.headers.contains_key(header::CONTENT_ENCODING);
        let part = parts.extensions.remove::<FilePart>().filter(|_| !is_encoded);
        let has_body = !matches!(parts.status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
        if let Some(length) = body.size_hint().exact().filter(|_| has_body) {
            parts.headers.insert(header::CONTENT_LENGTH, length.into());
        }
        // The end of the connection ends a body of unknown length.
        let is_open = has_body && !parts.headers.contains_key(header::CONTENT_LENGTH);
        let close = self.close || is_open;
        let head = head(&parts, self.date, close)?;
        stream.set_nodelay(true)?;
        let stream = match part {
            Some(part) => send_file(self.workers, stream, head, part, self.stall).await?,
            None => send_body(stream, &head, body, self.stall).await?,
        };
        Ok((!close).then_some(stream))
    }
}

fn head(parts: &response::Parts, date: &str, close: bool) -> io::Result<Vec<u8>> {
    let mut head = Vec::with_capacity(512);
    write!(head, "HTTP/1.1 {}\r\n", parts.status)?;
    for (name, value) in &parts.headers {
        write!(head, "{name}: ")?;
        head.extend_from_slice(value.as_bytes());
        head.extend_from_slice(b"\r\n");
    }
    let connection = if close { "connection: close\r\n" } else { "" };
    write!(head, "date: {date}\r\n{connection}\r\n")?;
    Ok(head)
}

async fn send_body(
    mut stream: TcpStream,
    head: &[u8],
    mut body: Body,
    stall: Duration,
) -> io::Result<TcpStream> {
    let mut io = Stall::new(&mut stream, stall);
    io.write_all(head).await?;
    while let Some(frame) = body.frame().await {
        if let Ok(mut data) = frame.map_err(io::Error::other)?.into_data() {
            while data.has_remaining() {
                io.write_buf(&mut data).await?;
            }
        }
    }
    Ok(stream)
}

/// Sends on the threads of handlers, and comes back with the connection.
async fn send_file(
    workers: &Handle,
    stream: TcpStream,
    head: Vec<u8>,
    part: FilePart,
    stall: Duration,
) -> io::Result<TcpStream> {
    let stream = stream.into_std()?;
    let work = workers.spawn(async move {
        let stream = Arc::new(TcpStream::from_std(stream)?);
        // The head waits for the first bytes of the file.
        let more = if part.range.is_empty() { SendFlags::empty() } else { SendFlags::MORE };
        let mut rest = head.as_slice();
        while !rest.is_empty() {
            let send = || Ok(rustix::net::send(&stream, rest, more | SendFlags::NOSIGNAL)?);
            rest = &rest[within(stall, stream.async_io(Interest::WRITABLE, send)).await?..];
        }
        send_part(&stream, part, stall).await?;
        let stream = Arc::into_inner(stream).expect("the threads that may block have ended");
        stream.into_std()
    });
    let stream = AbortOnDropHandle::new(work).await.map_err(io::Error::other)??;
    TcpStream::from_std(stream)
}

async fn send_part(stream: &Arc<TcpStream>, part: FilePart, stall: Duration) -> io::Result<()> {
    let FilePart { file, range, sent } = part;
    let mut at = range.start;
    let mut turn = 0;
    while at < range.end {
        let length = (range.end - at).min(CHUNK);
        let is_here = is_cached(&file, at..at + length);
        let count = if is_here {
            let send = || sendfile(stream, &file, at, length);
            within(stall, stream.async_io(Interest::WRITABLE, send)).await?
        } else {
            within(stall, send_aside(stream, &file, at, length)).await?
        };
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        sent.increment(count);
        at += count;
        turn += count;
        if turn >= TURN {
            turn = 0;
            tokio::task::yield_now().await;
        }
    }
    Ok(())
}

/// The same on a thread that may wait for the disk.
async fn send_aside(
    stream: &Arc<TcpStream>,
    file: &Arc<File>,
    at: u64,
    length: u64,
) -> io::Result<u64> {
    loop {
        stream.writable().await?;
        let socket = Arc::clone(stream);
        let file = Arc::clone(file);
        let send =
            move || socket.try_io(Interest::WRITABLE, || sendfile(&socket, &file, at, length));
        let sent = tokio::task::spawn_blocking(send).await.map_err(io::Error::other)?;
        match sent {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            sent => return sent,
        }
    }
}

/// Sends as many bytes as the socket accepts.
fn sendfile(stream: &TcpStream, file: &File, at: u64, length: u64) -> io::Result<u64> {
    let mut offset = at;
    let length = usize::try_from(length).unwrap_or(usize::MAX);
    Ok(rustix::fs::sendfile(stream, file, Some(&mut offset), length)? as u64)
}

/// Whether the range is in the page cache, estimated from some of its pages.
fn is_cached(file: &File, range: Range<u64>) -> bool {
    let is_here = |at: u64| {
        let mut byte = [0];
        let mut slices = [IoSliceMut::new(&mut byte)];
        rustix::io::preadv2(file, &mut slices, at, ReadWriteFlags::NOWAIT).is_ok()
    };
    let step = usize::try_from(READ_AHEAD).unwrap_or(usize::MAX);
    range.clone().step_by(step).chain([range.end - 1]).all(is_here)
}

async fn within<T>(stall: Duration, work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    let stalled = || io::Error::new(io::ErrorKind::TimedOut, "the client takes nothing");
    tokio::time::timeout(stall, work).await.unwrap_or_else(|_| Err(stalled()))
}
