//! Plain connections that ask for answers from memory: a request is read and answered in one go,
//! and no state is kept between requests. The first other request goes to hyper, with the
//! connection and every byte that was read.
//!
//! Requests for files are answered by the router, and sent by [`file_answer`](crate::file_answer).
//!
//! Only whole requests without a body are handled, one at a time, so the start of the next request
//! is never in doubt. Hyper judges everything unusual.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io::{self, Write as _};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use jiff::fmt::rfc2822::DateTimePrinter;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::Sleep;
use tokio_util::sync::{CancellationToken, WaitForCancellationFuture};

use crate::direct::{Direct, Fields, Head, KEPT, ReadyAnswer, Ways};
use crate::file_answer::{self, Transfer};
use crate::listen::App;
use crate::peer::Peer;

/// Requests of firmware have some two hundred bytes.
const MAX_REQUEST: usize = 2048;
const MAX_FIELDS: usize = 16;

/// Buffers that all requests of a thread share.
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

/// The reason why this loop stops serving a connection.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum PlainEnd {
    /// Closed by either side, or idle for too long.
    End,
    /// The client takes its answer slowly; this is left of it.
    Slow { rest: Vec<u8>, close: bool },
    /// The request may be for a file.
    File { read: Vec<u8>, close: bool },
    /// A request that this loop does not answer.
    Other(Vec<u8>),
}

/// The result of one request.
#[derive(Debug, PartialEq, Eq)]
enum Reply {
    Keep,
    Close,
    /// The router's.
    File {
        close: bool,
    },
    /// There is none here.
    Other,
}

/// The limits of a connection.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds<'a> {
    /// Idle time between an answer and the next request.
    pub(crate) idle: Duration,
    /// For the rest of an answer.
    pub(crate) write_stall: Duration,
    pub(crate) stopping: &'a CancellationToken,
    pub(crate) abort: &'a CancellationToken,
}

/// Answers the first request of a connection if it is there already, as it is when many come at
/// once. Firmware asks once and closes, so that most connections end here, and nothing was ever set
/// up to wait for them.
pub(crate) fn at_once(
    stream: &std::net::TcpStream,
    peer: &Peer,
    ways: &Ways,
) -> Poll<Option<PlainEnd>> {
    answer(&mut &*stream, peer, ways, &mut Instant::now())
}

/// Serves requests until one cannot be answered here, beginning with the result of the first.
/// Returns the bytes that were read of that request, or nothing when the connection has ended.
pub(crate) async fn serve(
    mut stream: TcpStream,
    peer: &Peer,
    app: &App,
    bounds: Bounds<'_>,
    mut first: Option<PlainEnd>,
) -> Option<(TcpStream, Vec<u8>)> {
    let mut since = Instant::now();
    // Whether the two know whom to wake.
    let mut watched = false;
    let mut idle = std::pin::pin!(tokio::time::sleep(bounds.idle));
    let mut stopping = std::pin::pin!(bounds.stopping.cancelled());
    loop {
        let turn = poll_fn(|context| {
            if let Some(turn) = first.take() {
                return Poll::Ready(turn);
            }
            let before = since;
            let turn = answer_all(&mut stream, peer, &app.ways, &mut since, context);
            // They are not what woke us if there was a request.
            if turn.is_ready() || watched && since != before {
                return turn;
            }
            watched = true;
            ended(idle.as_mut(), stopping.as_mut(), since + bounds.idle, context)
        });
        match turn.await {
            PlainEnd::End => return None,
            PlainEnd::Other(read) => return Some((stream, read)),
            PlainEnd::File { read, close } => {
                let Some(request) = file_answer::request::<MAX_FIELDS>(&read) else {
                    return Some((stream, read));
                };
                let routed = app.route(request, peer);
                let sent = async {
                    let response = routed.await;
                    let date = SCRATCH
                        .with_borrow_mut(|scratch| scratch.date.at(Instant::now()).to_owned());
                    let stall = bounds.write_stall;
                    let sending = Transfer { workers: &app.workers, stall, close, date: &date };
                    sending.send(stream, response).await
                };
                let sent = tokio::select! {
                    () = bounds.abort.cancelled() => return None,
                    sent = sent => sent,
                };
                stream =
                    sent.inspect_err(|error| tracing::debug!(%error, "file not sent")).ok()??;
                watched = false;
                since = Instant::now();
            }
            PlainEnd::Slow { rest, close } => {
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
) -> Poll<PlainEnd> {
    if stopping.poll(context).is_ready() {
        return Poll::Ready(PlainEnd::End);
    }
    // The timer is not set anew for every request: when it rings, it is seen whether there were any.
    while idle.as_mut().poll(context).is_ready() {
        if Instant::now() >= end {
            return Poll::Ready(PlainEnd::End);
        }
        idle.as_mut().reset(end.into());
    }
    Poll::Pending
}

/// Answers until there is nothing to read.
fn answer_all(
    stream: &mut TcpStream,
    peer: &Peer,
    ways: &Ways,
    since: &mut Instant,
    context: &mut Context<'_>,
) -> Poll<PlainEnd> {
    loop {
        let mut wire = PolledStream { stream, context };
        if let Some(turn) = ready!(answer(&mut wire, peer, ways, since)) {
            return Poll::Ready(turn);
        }
    }
}

/// Answers one request; without a turn, the connection stays as it is.
fn answer(
    wire: &mut impl Wire,
    peer: &Peer,
    ways: &Ways,
    since: &mut Instant,
) -> Poll<Option<PlainEnd>> {
    SCRATCH.with_borrow_mut(|Scratch { request, answer, date }| {
        let request = match ready!(wire.read(request)) {
            Ok(count @ 1..) => &request[..count],
            Ok(0) | Err(_) => return Poll::Ready(Some(PlainEnd::End)),
        };
        let now = Instant::now();
        let reply = reply(request, peer, ways, now, date, answer);
        let close = match reply {
            Reply::Keep => false,
            Reply::Close => true,
            Reply::File { close } => {
                return Poll::Ready(Some(PlainEnd::File { read: request.to_vec(), close }));
            }
            Reply::Other => return Poll::Ready(Some(PlainEnd::Other(request.to_vec()))),
        };
        *since = now;
        let written = match wire.write(answer) {
            Poll::Ready(Ok(written)) => written,
            Poll::Ready(Err(_)) => return Poll::Ready(Some(PlainEnd::End)),
            Poll::Pending => 0,
        };
        if written < answer.len() {
            let rest = answer[written..].to_vec();
            return Poll::Ready(Some(PlainEnd::Slow { rest, close }));
        }
        Poll::Ready(close.then_some(PlainEnd::End))
    })
}

/// A connection that is never waited for in the middle of a request.
trait Wire {
    fn read(&mut self, into: &mut [u8]) -> Poll<io::Result<usize>>;
    fn write(&mut self, bytes: &[u8]) -> Poll<io::Result<usize>>;
}

/// One that wakes its task.
struct PolledStream<'a, 'c> {
    stream: &'a mut TcpStream,
    context: &'a mut Context<'c>,
}

impl Wire for PolledStream<'_, '_> {
    fn read(&mut self, into: &mut [u8]) -> Poll<io::Result<usize>> {
        let mut buffer = ReadBuf::new(into);
        let read = ready!(Pin::new(&mut *self.stream).poll_read(self.context, &mut buffer));
        Poll::Ready(read.map(|()| buffer.filled().len()))
    }

    fn write(&mut self, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.stream).poll_write(self.context, bytes)
    }
}

/// A stream without a task that waits for it.
impl Wire for &std::net::TcpStream {
    fn read(&mut self, into: &mut [u8]) -> Poll<io::Result<usize>> {
        unless_waiting(io::Read::read(self, into))
    }

    fn write(&mut self, bytes: &[u8]) -> Poll<io::Result<usize>> {
        unless_waiting(io::Write::write(self, bytes))
    }
}

fn unless_waiting(outcome: io::Result<usize>) -> Poll<io::Result<usize>> {
    match outcome {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Poll::Pending,
        outcome => Poll::Ready(outcome),
    }
}

/// Puts the answer to `request` into `out`, if it is one whole request that can be answered.
fn reply(
    request: &[u8],
    peer: &Peer,
    ways: &Ways,
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
    let Some((way, path, prefix)) = Direct::find(&ways.direct, path) else {
        return if ways.sends_files(path) { Reply::File { close } } else { Reply::Other };
    };
    let head = Head { path, query, fields: Fields::Lines(parsed.headers), peer, prefix };
    let Some(ready) = way.answer(&head, now) else { return Reply::Other };
    out.clear();
    write(out, &ready, date.at(now), head.request_id(), close);
    if close { Reply::Close } else { Reply::Keep }
}

/// The characters of a target that need no further checks.
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

fn write(out: &mut Vec<u8>, ready: &ReadyAnswer, date: &str, id: Option<&str>, close: bool) {
    let ReadyAnswer { content_type, body, etag } = ready;
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

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;

    const REQUEST: &str = "GET /boot/v1/bootscript?mac=1 HTTP/1.1\r\nhost: h\r\n\r\n";

    fn ways() -> Ways {
        let answer = |head: &Head<'_>| {
            Some(ReadyAnswer {
                content_type: "text/plain",
                body: head.query.to_owned().into(),
                etag: None,
            })
        };
        let direct = vec![Direct::new("/boot/v1/bootscript", Arc::new(answer))];
        Ways { direct, files: vec!["/artifacts/{digest}"] }
    }

    fn peer() -> Peer {
        let addr = "192.0.2.1:1".parse().expect("an address");
        Peer::new(addr, false)
    }

    fn answered(request: &[u8]) -> (Reply, String) {
        let mut out = Vec::new();
        let reply = reply(request, &peer(), &ways(), Instant::now(), &mut Date(None), &mut out);
        (reply, String::from_utf8(out).expect("text"))
    }

    #[test]
    fn a_request_that_is_there_already_is_answered_at_once() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let closing = REQUEST.replace("host:", "Connection: close\r\nhost:");
        let other = REQUEST.replace("GET", "HEAD");
        for (request, turn, text) in [
            (&closing, Some(PlainEnd::End), "HTTP/1.1 200 OK"),
            (&REQUEST.to_owned(), None, "HTTP/1.1 200 OK"),
            (&other, Some(PlainEnd::Other(other.clone().into_bytes())), ""),
        ] {
            let mut client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (stream, _) = listener.accept().unwrap();
            stream.set_nonblocking(true).unwrap();
            assert_eq!(at_once(&stream, &peer(), &ways()), Poll::Pending, "nothing is asked yet");
            client.write_all(request.as_bytes()).unwrap();
            // A peek returns once the request has arrived.
            stream.set_nonblocking(false).unwrap();
            stream.peek(&mut [0]).unwrap();
            stream.set_nonblocking(true).unwrap();
            assert_eq!(at_once(&stream, &peer(), &ways()), Poll::Ready(turn), "{request}");
            drop(stream);
            let mut answer = String::new();
            client.read_to_string(&mut answer).unwrap();
            assert!(answer.starts_with(text) && answer.is_empty() == text.is_empty(), "{answer}");
        }
    }

    #[test]
    fn whole_requests_for_what_is_in_memory_are_answered() {
        for (request, reply, more) in [
            (REQUEST.to_owned(), Reply::Keep, ""),
            (REQUEST.replace("/boot/v1", "/apis/bss/boot/v1"), Reply::Keep, ""),
            (REQUEST.replace("script?", "script/?"), Reply::Keep, ""),
            (REQUEST.replace("host:", "Connection: Keep-Alive\r\nhost:"), Reply::Keep, ""),
            (
                REQUEST.replace("host:", "Connection: Close\r\nhost:"),
                Reply::Close,
                "connection: close\r\n",
            ),
            (
                REQUEST.replace("host:", "X-Request-Id: a-1\r\nhost:"),
                Reply::Keep,
                "x-request-id: a-1\r\n",
            ),
            (REQUEST.replace("host:", "X-Request-Id: a b\r\nhost:"), Reply::Keep, ""),
        ] {
            let (found, text) = answered(request.as_bytes());
            assert_eq!(found, reply, "{request}");
            let (head, body) = text.split_once("\r\n\r\n").unwrap();
            assert_eq!(body, "mac=1", "{request}");
            let date = head.lines().find(|line| line.starts_with("date: ")).unwrap();
            let expected = format!(
                "HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n\
                 x-content-type-options: nosniff\r\ncontent-length: 5\r\n{date}\r\n{more}"
            );
            assert_eq!(format!("{head}\r\n"), expected);
        }
    }

    #[test]
    fn other_requests_are_left_to_hyper() {
        let with = |field: &str| REQUEST.replace("host:", &format!("{field}\r\nhost:"));
        let fields = "x-more: 1\r\n".repeat(MAX_FIELDS);
        for request in [
            REQUEST.replace("GET", "HEAD"),
            REQUEST.replace("GET", "POST"),
            REQUEST.replace("1.1", "1.0"),
            REQUEST.replace("/boot/v1/bootscript", "/boot/v1/hosts"),
            REQUEST.replace("/boot", "http://h/boot"),
            REQUEST.replace("mac=1", "mac=1#x"),
            REQUEST.replace("mac=1", "mac={1}"),
            REQUEST.replace("mac=1", "mac=\u{e4}"),
            with("Content-Length: 0"),
            with("Transfer-Encoding: chunked"),
            with("Expect: 100-continue"),
            with("Upgrade: h2c"),
            with("Connection: upgrade"),
            with("Connection: close, x"),
            with(" folded: 1"),
            with("name : 1"),
            with("no colon"),
            with(&fields),
            format!("{REQUEST}{REQUEST}"),
            format!("{REQUEST}x"),
        ] {
            assert_eq!(answered(request.as_bytes()).0, Reply::Other, "{request}");
        }
    }

    proptest! {
        #[test]
        fn partial_request_is_not_answered(length in 0..REQUEST.len()) {
            prop_assert_eq!(answered(&REQUEST.as_bytes()[..length]).0, Reply::Other);
        }

        #[test]
        fn damage_gives_one_answer_or_none(
            at in 0..REQUEST.len(), byte in any::<u8>(), more in proptest::collection::vec(any::<u8>(), 0..8),
        ) {
            let mut request = REQUEST.as_bytes().to_vec();
            request[at] = byte;
            request.splice(at..at, more);
            let (reply, text) = answered(&request);
            prop_assert_eq!(text.matches("HTTP/1.1 200 OK").count(), usize::from(reply != Reply::Other));
        }
    }

    #[test]
    fn the_date_is_made_once_a_second() {
        let mut date = Date(None);
        let now = Instant::now();
        let first = date.at(now).to_owned();
        assert!(first.ends_with(" GMT"), "{first}");
        let made = date.0.as_ref().map(|(made, _)| *made);
        date.at(now + Duration::from_millis(999));
        assert_eq!(date.0.as_ref().map(|(made, _)| *made), made);
        date.at(now + Duration::from_secs(1));
        assert_ne!(date.0.as_ref().map(|(made, _)| *made), made);
    }
}
