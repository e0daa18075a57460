//! Plain connections, as long as they ask for what is in memory: a request is read, answered and
//! gone in one go, with nothing kept for the connection in between. The first request that is
//! anything else goes to hyper, with the connection and every byte that was read of it.
//!
//! Only whole requests without a body are taken, one at a time, so there is never a doubt where the
//! next one begins; whatever looks unusual is hyper's to judge.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io::Write as _;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use jiff::fmt::rfc2822::DateTimePrinter;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::Sleep;
use tokio_util::sync::{CancellationToken, WaitForCancellationFuture};

use crate::direct::{Direct, Fields, Head, KEPT, Ready};
use crate::peer::Peer;

/// Requests of firmware have some two hundred bytes.
const MAX_REQUEST: usize = 2048;
const MAX_FIELDS: usize = 16;

/// What every request on a thread is read into and answered from.
struct Scratch {
    request: [u8; MAX_REQUEST],
    answer: Vec<u8>,
    date: Date,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = const {
        RefCell::new(Scratch { request: [0; MAX_REQUEST], answer: Vec::new(), date: Date(None) })
    };
}

/// The `Date` of answers, made once a second.
struct Date(Option<(Instant, String)>);

/// How a connection goes on when it does not go on here.
#[derive(Debug, PartialEq, Eq)]
enum Turn {
    /// Closed by either side, or idle for too long.
    End,
    /// The client takes its answer slowly; this is left of it.
    Slow { rest: Vec<u8>, close: bool },
    /// Something was asked that is not answered here.
    Other(Vec<u8>),
}

/// What a request comes to.
#[derive(Debug, PartialEq, Eq)]
enum Reply {
    Keep,
    Close,
    /// There is none here.
    Other,
}

/// What limits a connection.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds<'a> {
    /// From one answer to the next request.
    pub(crate) idle: Duration,
    /// For what is left of an answer.
    pub(crate) write_stall: Duration,
    pub(crate) stopping: &'a CancellationToken,
    pub(crate) abort: &'a CancellationToken,
}

/// Answers what it can. Returns what was read of the first request that it cannot answer, or
/// nothing when the connection has come to its end.
pub(crate) async fn serve(
    stream: &mut TcpStream,
    peer: &Peer,
    ways: &[Direct],
    bounds: Bounds<'_>,
) -> Option<Vec<u8>> {
    let mut since = Instant::now();
    // Whether the two know whom to wake.
    let mut watched = false;
    let mut idle = std::pin::pin!(tokio::time::sleep(bounds.idle));
    let mut stopping = std::pin::pin!(bounds.stopping.cancelled());
    loop {
        let turn = poll_fn(|context| {
            let before = since;
            let turn = answer_all(stream, peer, ways, &mut since, context);
            // They are not what woke us if there was a request.
            if turn.is_ready() || watched && since != before {
                return turn;
            }
            watched = true;
            ended(idle.as_mut(), stopping.as_mut(), since + bounds.idle, context)
        });
        match turn.await {
            Turn::End => return None,
            Turn::Other(read) => return Some(read),
            Turn::Slow { rest, close } => {
                let written = tokio::select! {
                    () = bounds.abort.cancelled() => return None,
                    written = tokio::time::timeout(bounds.write_stall, stream.write_all(&rest)) => written,
                };
                if close || !matches!(written, Ok(Ok(()))) {
                    return None;
                }
                since = Instant::now();
            }
        }
    }
}

/// Whether the connection was idle until `end`, or the server stops.
fn ended(
    mut idle: Pin<&mut Sleep>,
    stopping: Pin<&mut WaitForCancellationFuture<'_>>,
    end: Instant,
    context: &mut Context<'_>,
) -> Poll<Turn> {
    if stopping.poll(context).is_ready() {
        return Poll::Ready(Turn::End);
    }
    // The timer is not set anew for every request: when it rings, it is seen whether there were any.
    while idle.as_mut().poll(context).is_ready() {
        if Instant::now() >= end {
            return Poll::Ready(Turn::End);
        }
        idle.as_mut().reset(end.into());
    }
    Poll::Pending
}

/// Answers until there is nothing to read.
fn answer_all(
    stream: &mut TcpStream,
    peer: &Peer,
    ways: &[Direct],
    since: &mut Instant,
    context: &mut Context<'_>,
) -> Poll<Turn> {
    SCRATCH.with_borrow_mut(|Scratch { request, answer, date }| {
        loop {
            let mut buffer = ReadBuf::new(request);
            let read = ready!(Pin::new(&mut *stream).poll_read(context, &mut buffer));
            let request = buffer.filled();
            if read.is_err() || request.is_empty() {
                return Poll::Ready(Turn::End);
            }
            let now = Instant::now();
            let reply = reply(request, peer, ways, now, date, answer);
            if reply == Reply::Other {
                return Poll::Ready(Turn::Other(request.to_vec()));
            }
            *since = now;
            let close = reply == Reply::Close;
            let written = match Pin::new(&mut *stream).poll_write(context, answer) {
                Poll::Ready(Ok(written)) => written,
                Poll::Ready(Err(_)) => return Poll::Ready(Turn::End),
                Poll::Pending => 0,
            };
            if written < answer.len() {
                let rest = answer[written..].to_vec();
                return Poll::Ready(Turn::Slow { rest, close });
            }
            if close {
                return Poll::Ready(Turn::End);
            }
        }
    })
}

/// Puts the answer to `request` into `out`, if it is one whole request that can be answered.
fn reply(
    request: &[u8],
    peer: &Peer,
    ways: &[Direct],
    now: Instant,
    date: &mut Date,
    out: &mut Vec<u8>,
) -> Reply {
    let mut fields = [httparse::EMPTY_HEADER; MAX_FIELDS];
    let mut parsed = httparse::Request::new(&mut fields);
    let whole = matches!(
        parsed.parse(request),
        Ok(httparse::Status::Complete(length)) if length == request.len()
    );
    let (Some("GET"), Some(target), Some(1)) = (parsed.method, parsed.path, parsed.version) else {
        return Reply::Other;
    };
    if !whole || !target.bytes().all(is_plain) {
        return Reply::Other;
    }
    let Some(close) = closes(parsed.headers) else { return Reply::Other };
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let Some((way, path, prefix)) = Direct::find(ways, path) else { return Reply::Other };
    let head = Head { path, query, fields: Fields::Lines(parsed.headers), peer, prefix };
    let Some(ready) = way.answer(&head, now) else { return Reply::Other };
    out.clear();
    write(out, &ready, date.at(now), head.request_id(), close);
    if close { Reply::Close } else { Reply::Keep }
}

/// What needs no second look in a target.
fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"/?&=%:._~+-".contains(&byte)
}

/// Whether the client wants the connection closed; `None` if a field says more about the connection
/// or of a body.
fn closes(fields: &[httparse::Header<'_>]) -> Option<bool> {
    let mut close = false;
    for field in fields {
        let is = |name: &str| field.name.eq_ignore_ascii_case(name);
        if is("connection") {
            close = field.value.eq_ignore_ascii_case(b"close");
            if !close && !field.value.eq_ignore_ascii_case(b"keep-alive") {
                return None;
            }
        } else if is("content-length") || is("transfer-encoding") || is("upgrade") || is("expect") {
            return None;
        }
    }
    Some(close)
}

fn write(out: &mut Vec<u8>, ready: &Ready, date: &str, id: Option<&str>, close: bool) {
    let Ready { content_type, body, etag } = ready;
    let length = body.len();
    let wrote = write!(
        out,
        "HTTP/1.1 200 OK\r\ncontent-type: {content_type}\r\nx-content-type-options: nosniff\r\n\
         content-length: {length}\r\ndate: {date}\r\n"
    );
    wrote.expect("writing to memory");
    if let Some(etag) = etag {
        let wrote = write!(out, "etag: {etag}\r\ncache-control: {KEPT}\r\n");
        wrote.expect("writing to memory");
    }
    if let Some(id) = id {
        out.extend_from_slice(b"x-request-id: ");
        out.extend_from_slice(id.as_bytes());
        out.extend_from_slice(b"\r\n");
    }
    if close {
        out.extend_from_slice(b"connection: close\r\n");
    }
    out.extend_from_slice(b"\r\n");
    out.extend_from_slice(body);
}

impl Date {
    fn at(&mut self, now: Instant) -> &str {
        let is_current =
            |made: &Instant| now.saturating_duration_since(*made) < Duration::from_secs(1);
        if !self.0.as_ref().is_some_and(|(made, _)| is_current(made)) {
            let text = DateTimePrinter::new().timestamp_to_rfc9110_string(&Timestamp::now());
            self.0 = Some((now, text.expect("the year has four digits")));
        }
        self.0.as_ref().map_or("", |(_, text)| text)
    }
}
