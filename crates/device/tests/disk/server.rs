//! An HTTP server with scripted answers.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

#[derive(Debug, Clone, Copy)]
pub(crate) enum Answer {
    /// The correct answer.
    Good,
    /// Closes the connection after this many bytes, although the header announced all.
    Cut(usize),
    /// Ignores ranges.
    Whole,
    /// Another range than the requested one.
    OtherPart,
    /// This many bytes at a time, with a pause after each.
    Drip(usize, Duration),
    /// The same, ignoring ranges.
    DripWhole(usize, Duration),
    /// This many bytes, then silence on an open connection. With 0, not even a header.
    Stall(usize),
    Status(u16),
    /// Announces more bytes than the file has.
    OtherLength,
    /// One bit is wrong, in the last MiB.
    Flipped,
    /// No length, and the connection closes after this many bytes.
    Endless(usize),
}

/// Longer than any test.
const STALL: Duration = Duration::from_mins(10);

/// Runs as long as the test.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) url: String,
    seen: Arc<Seen>,
}

/// The requests of a server, and the number of answers that stalled.
#[derive(Debug, Default)]
struct Seen {
    requests: Mutex<Vec<String>>,
    stalls: AtomicUsize,
}

impl Seen {
    fn stall(&self) {
        self.stalls.fetch_add(1, Ordering::Release);
        std::thread::sleep(STALL);
    }
}

impl Server {
    /// The last answer is repeated.
    pub(crate) fn start(content: &[u8], answers: &[Answer]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let url = format!("http://{}/image?secret=1", listener.local_addr().expect("it is bound"));
        let seen = Arc::<Seen>::default();
        let all_seen = Arc::clone(&seen);
        let content = Arc::new(content.to_vec());
        let answers = answers.to_vec();
        std::thread::spawn(move || {
            for (number, stream) in listener.incoming().enumerate() {
                let answer = answers[number.min(answers.len() - 1)];
                let content = content.clone();
                let seen = all_seen.clone();
                std::thread::spawn(move || {
                    // An error means that the client is gone.
                    let _ = serve(&mut stream.expect("a connection"), &content, answer, &seen);
                });
            }
        });
        Self { url, seen }
    }

    /// Answers correctly, by HTTPS, with a certificate that the client does not trust yet.
    pub(crate) fn start_with_tls(content: &[u8]) -> (Self, CertificateDer<'static>) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let url = format!("https://{}/image", listener.local_addr().expect("it is bound"));
        let made = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]);
        let made = made.expect("a certificate");
        let certificate = made.cert.der().clone();
        let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).expect("a key");
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions that are known")
            .with_no_client_auth()
            .with_single_cert(vec![certificate.clone()], key);
        let config = Arc::new(config.expect("they belong together"));
        let seen = Arc::<Seen>::default();
        let all_seen = Arc::clone(&seen);
        let content = content.to_vec();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let connection =
                    rustls::ServerConnection::new(config.clone()).expect("it is whole");
                let stream: TcpStream = stream.expect("a connection");
                let mut stream = rustls::StreamOwned::new(connection, stream);
                let _ = serve(&mut stream, &content, Answer::Good, &all_seen);
                stream.conn.send_close_notify();
                let _ = stream.flush();
            }
        });
        (Self { url, seen }, certificate)
    }

    /// The headers of all requests, in lower case.
    pub(crate) fn requests(&self) -> Vec<String> {
        self.seen.requests.lock().clone()
    }

    /// Counts the answers that have stalled so far.
    pub(crate) fn stalls(&self) -> impl Fn() -> usize + Send + 'static {
        let seen = Arc::clone(&self.seen);
        move || seen.stalls.load(Ordering::Acquire)
    }

    /// The first requested byte of each request.
    pub(crate) fn starts(&self) -> Vec<usize> {
        self.requests().iter().map(|head| start(head).unwrap_or(0)).collect()
    }
}

fn start(head: &str) -> Option<usize> {
    head.split_once("range: bytes=")?.1.split_once('-')?.0.parse().ok()
}

fn serve(
    stream: &mut (impl Read + Write),
    content: &[u8],
    answer: Answer,
    seen: &Seen,
) -> std::io::Result<()> {
    let mut head = String::new();
    let mut reader = BufReader::new(&mut *stream);
    while !head.ends_with("\r\n\r\n") {
        if reader.read_line(&mut head)? == 0 {
            return Ok(());
        }
    }
    let head = head.to_lowercase();
    seen.requests.lock().push(head.clone());
    if let Answer::Status(status) = answer {
        return write!(
            stream,
            "HTTP/1.1 {status} No\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
        );
    }
    let total = content.len();
    if let Answer::Stall(0) = answer {
        seen.stall();
    }
    if let Answer::Endless(length) = answer {
        write!(stream, "HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n")?;
        return stream.write_all(&content[..length]);
    }
    let flipped = matches!(answer, Answer::Flipped).then(|| {
        let mut other = content.to_vec();
        other[total.saturating_sub(1 << 20)] ^= 1;
        other
    });
    let content = flipped.as_deref().unwrap_or(content);
    let from = match answer {
        Answer::Whole | Answer::DripWhole(..) | Answer::Endless(_) => None,
        _ => start(&head),
    };
    let from = if matches!(answer, Answer::OtherPart) { from.map(|from| from + 1) } else { from };
    let body = &content[from.unwrap_or(0)..];
    let more = usize::from(matches!(answer, Answer::OtherLength));
    match from {
        Some(from) => write!(
            stream,
            "HTTP/1.1 206 Partial\r\ncontent-range: bytes {from}-{}/{}\r\n",
            total - 1,
            total + more
        )?,
        None => write!(stream, "HTTP/1.1 200 OK\r\n")?,
    }
    write!(
        stream,
        "etag: \"one\"\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
        body.len() + more
    )?;
    match answer {
        Answer::Stall(length) => {
            stream.write_all(&body[..length.min(body.len())])?;
            seen.stall();
            Ok(())
        }
        Answer::Cut(length) => stream.write_all(&body[..length.min(body.len())]),
        Answer::Drip(length, pause) | Answer::DripWhole(length, pause) => {
            body.chunks(length).try_for_each(|drop| {
                std::thread::sleep(pause);
                stream.write_all(drop)
            })
        }
        _ => stream.write_all(body),
    }
}
