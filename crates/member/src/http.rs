//! A bounded HTTP/1.1 client over one connection.
//!
//! The join needs keying material of the very TLS connection that carries the request, which no
//! client library hands out. Everything that a server sends has a limit here: size of the head,
//! size of the body, and the time of the whole exchange.

use std::fmt::Write as _;
use std::io::{self, Read, Write};
use std::time::Instant;

const MAX_HEAD: usize = 16 * 1024;
const MAX_HEADERS: usize = 64;
/// The line before a chunk: a length in hexadecimal digits, and extensions, which are not in use.
const MAX_CHUNK_LINE: usize = 256;
const BLOCK: usize = 16 * 1024;

pub(crate) struct Request<'a> {
    pub(crate) method: &'static str,
    pub(crate) host: &'a str,
    pub(crate) path: &'a str,
    /// JSON.
    pub(crate) body: Option<&'a [u8]>,
}

#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) retry_after: Option<u64>,
    pub(crate) body: Vec<u8>,
    /// The server closes the connection after this answer.
    pub(crate) closes: bool,
}

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HttpError {
    #[error("the connection broke")]
    Broken(#[source] io::Error),
    #[error("the connection was closed before the answer was complete")]
    Closed,
    #[error("no complete answer arrived in time")]
    Late,
    #[error("the answer is larger than {0} bytes")]
    TooLarge(usize),
    #[error("the answer is not HTTP/1.1: {0}")]
    Malformed(&'static str),
}

/// Limits of one exchange.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) until: Instant,
    pub(crate) body: usize,
}

/// Sends the request and reads the whole answer. The stream must have a read timeout that is not
/// later than the end of the exchange.
pub(crate) fn exchange(
    stream: &mut (impl Read + Write),
    request: &Request<'_>,
    limits: Limits,
) -> Result<Answer, HttpError> {
    let Request { method, host, path, body } = request;
    let mut head = format!(
        "{method} {path} HTTP/1.1\r\nhost: {host}\r\nuser-agent: hoist/{}\r\naccept: \
         application/json\r\n",
        env!("CARGO_PKG_VERSION")
    );
    if let Some(body) = body {
        head.push_str("content-type: application/json\r\n");
        write!(head, "content-length: {}\r\n", body.len()).expect("writing to a string");
    }
    head.push_str("\r\n");
    let mut message = head.into_bytes();
    message.extend_from_slice(body.unwrap_or_default());
    stream.write_all(&message).and_then(|()| stream.flush()).map_err(broken)?;
    let mut reader = Reader { stream, buffer: Vec::new(), limits };
    loop {
        let answer = reader.answer()?;
        // Interim answers precede the final one.
        if answer.status >= 200 {
            return Ok(answer);
        }
    }
}

fn broken(error: io::Error) -> HttpError {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => HttpError::Late,
        io::ErrorKind::UnexpectedEof => HttpError::Closed,
        _ => HttpError::Broken(error),
    }
}

/// The length of a body, by the head of its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Length {
    Bytes(usize),
    Chunked,
    ToTheEnd,
}

struct Head {
    answer: Answer,
    length: Length,
    /// Bytes of the head in the buffer.
    size: usize,
}

struct Reader<'a, S> {
    stream: &'a mut S,
    buffer: Vec<u8>,
    limits: Limits,
}

impl<S: Read> Reader<'_, S> {
    fn answer(&mut self) -> Result<Answer, HttpError> {
        let Head { mut answer, length, size } = loop {
            if let Some(head) = head(&self.buffer)? {
                break head;
            }
            if self.buffer.len() > MAX_HEAD {
                return Err(HttpError::Malformed("its head is too large"));
            }
            self.read_more()?;
        };
        self.buffer.drain(..size);
        answer.body = match length {
            Length::Bytes(bytes) => self.take(bytes)?,
            Length::Chunked => self.chunks()?,
            Length::ToTheEnd => self.rest()?,
        };
        Ok(answer)
    }

    fn read_more(&mut self) -> Result<(), HttpError> {
        if Instant::now() >= self.limits.until {
            return Err(HttpError::Late);
        }
        let mut block = [0; BLOCK];
        match self.stream.read(&mut block).map_err(broken)? {
            0 => Err(HttpError::Closed),
            read => {
                self.buffer.extend_from_slice(&block[..read]);
                Ok(())
            }
        }
    }

    fn take(&mut self, bytes: usize) -> Result<Vec<u8>, HttpError> {
        if bytes > self.limits.body {
            return Err(HttpError::TooLarge(self.limits.body));
        }
        while self.buffer.len() < bytes {
            self.read_more()?;
        }
        Ok(self.buffer.drain(..bytes).collect())
    }

    fn rest(&mut self) -> Result<Vec<u8>, HttpError> {
        loop {
            if self.buffer.len() > self.limits.body {
                return Err(HttpError::TooLarge(self.limits.body));
            }
            match self.read_more() {
                Ok(()) => {}
                Err(HttpError::Closed) => return Ok(std::mem::take(&mut self.buffer)),
                Err(error) => return Err(error),
            }
        }
    }

    fn chunks(&mut self) -> Result<Vec<u8>, HttpError> {
        let mut body = Vec::new();
        loop {
            let line = self.line()?;
            let digits = line.split(|byte| *byte == b';').next().unwrap_or_default();
            let digits = std::str::from_utf8(digits).unwrap_or_default().trim();
            let size = usize::from_str_radix(digits, 16)
                .map_err(|_| HttpError::Malformed("a chunk has no length"))?;
            if size == 0 {
                // Trailers end with an empty line.
                while !self.line()?.is_empty() {}
                return Ok(body);
            }
            if size > self.limits.body.saturating_sub(body.len()) {
                return Err(HttpError::TooLarge(self.limits.body));
            }
            body.extend(self.take(size)?);
            if !self.line()?.is_empty() {
                return Err(HttpError::Malformed("a chunk is longer than its length"));
            }
        }
    }

    fn line(&mut self) -> Result<Vec<u8>, HttpError> {
        loop {
            if let Some(end) = self.buffer.windows(2).position(|pair| pair == b"\r\n") {
                let line = self.buffer[..end].to_vec();
                self.buffer.drain(..end + 2);
                return Ok(line);
            }
            if self.buffer.len() > MAX_CHUNK_LINE {
                return Err(HttpError::Malformed("a line is too long"));
            }
            self.read_more()?;
        }
    }
}

/// The head at the beginning of these bytes; `None` if it is not complete.
fn head(bytes: &[u8]) -> Result<Option<Head>, HttpError> {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut parsed = httparse::Response::new(&mut headers);
    let size = match parsed.parse(bytes) {
        Ok(httparse::Status::Complete(size)) => size,
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(_) => return Err(HttpError::Malformed("its head cannot be read")),
    };
    let status = parsed.code.unwrap_or_default();
    let mut answer = Answer { status, retry_after: None, body: Vec::new(), closes: false };
    let has_body = status >= 200 && status != 204 && status != 304;
    let mut length = if has_body { Length::ToTheEnd } else { Length::Bytes(0) };
    for header in parsed.headers.iter() {
        let value = std::str::from_utf8(header.value).unwrap_or_default().trim();
        if header.name.eq_ignore_ascii_case("content-length") && has_body {
            let bytes =
                value.parse().map_err(|_| HttpError::Malformed("its length is not a number"))?;
            if matches!(length, Length::Bytes(other) if other != bytes) {
                return Err(HttpError::Malformed("it has two lengths"));
            }
            if length == Length::ToTheEnd {
                length = Length::Bytes(bytes);
            }
        } else if header.name.eq_ignore_ascii_case("transfer-encoding") && has_body {
            if !value.eq_ignore_ascii_case("chunked") {
                return Err(HttpError::Malformed("its transfer encoding is unknown"));
            }
            length = Length::Chunked;
        } else if header.name.eq_ignore_ascii_case("connection") {
            answer.closes = value.eq_ignore_ascii_case("close");
        } else if header.name.eq_ignore_ascii_case("retry-after") {
            answer.retry_after = value.parse().ok();
        }
    }
    answer.closes |= length == Length::ToTheEnd || parsed.version == Some(0);
    Ok(Some(Head { answer, length, size }))
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;
    use std::time::Duration;

    use super::*;

    struct Wire {
        sent: Vec<u8>,
        answer: Cursor<Vec<u8>>,
    }

    impl Read for Wire {
        /// One byte at a time: no cut of the answer may matter.
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            self.answer.read(&mut buffer[..1])
        }
    }

    impl Write for Wire {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.sent.extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn ask(answer: &str) -> (Result<Answer, HttpError>, String) {
        let mut wire = Wire { sent: Vec::new(), answer: Cursor::new(answer.into()) };
        let request = Request { method: "POST", host: "c:1", path: "/p", body: Some(b"{}") };
        let limits = Limits { until: Instant::now() + Duration::from_mins(1), body: 32 };
        let answer = exchange(&mut wire, &request, limits);
        (answer, String::from_utf8(wire.sent).unwrap())
    }

    fn body(answer: &str) -> String {
        String::from_utf8(ask(answer).0.unwrap().body).unwrap()
    }

    #[test]
    fn answers_of_every_length_are_read() {
        let (answer, sent) = ask(
            "HTTP/1.1 503 Busy\r\nContent-Length: 2\r\nRetry-After: 7\r\nConnection: close\r\n\r\nhi",
        );
        let answer = answer.unwrap();
        assert_eq!((answer.status, answer.retry_after, answer.closes), (503, Some(7), true));
        assert_eq!(answer.body, b"hi");
        assert!(sent.starts_with("POST /p HTTP/1.1\r\nhost: c:1\r\n"), "{sent}");
        assert!(sent.ends_with("content-length: 2\r\n\r\n{}"), "{sent}");
        assert_eq!(
            body(
                "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n\
                 3\r\nabc\r\n2;x=y\r\nde\r\n0\r\nt: 1\r\n\r\n"
            ),
            "abcde"
        );
        assert_eq!(body("HTTP/1.1 200 OK\r\n\r\nto the end"), "to the end");
        assert_eq!(body("HTTP/1.1 204 No\r\ncontent-length: 5\r\n\r\n"), "");
    }

    #[test]
    fn limits_hold_and_malformed_answers_are_refused() {
        let error = |answer: &str| ask(answer).0.unwrap_err().to_string();
        let large = "HTTP/1.1 200 OK\r\ncontent-length: 33\r\n\r\n";
        assert!(error(large).contains("larger than 32"));
        let rest = format!("HTTP/1.1 200 OK\r\n\r\n{}", "x".repeat(40));
        assert!(error(&rest).contains("larger than 32"));
        let chunk = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nffffffffffffffff\r\n";
        assert!(error(chunk).contains("larger than 32"));
        let head = format!("HTTP/1.1 200 OK\r\nx: {}", "y".repeat(MAX_HEAD + 10));
        assert!(error(&head).contains("head is too large"));
        assert!(error("SSH-2.0-OpenSSH\r\n\r\n").contains("not HTTP/1.1"));
        let two = "HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab";
        assert!(error(two).contains("two lengths"));
        assert!(error("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nab").contains("closed"));
    }
}
