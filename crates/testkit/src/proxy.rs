//! A TCP proxy that understands just enough of a protocol to die at the n-th request.
//!
//! To the server that looks exactly like a client process that was killed there, and it needs no
//! hooks in the code under test.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

/// How to find requests in the bytes of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// gRPC over HTTP/2 without TLS: a HEADERS frame begins a request.
    Http2,
    /// `PostgreSQL`: a Sync or Query message asks for an answer.
    Postgres,
}

/// When the proxy dies. Requests are counted from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    Never,
    /// The n-th request never reaches the server.
    Before(usize),
    /// The n-th request reaches the server, its answer never comes back.
    After(usize),
}

#[derive(Debug)]
pub struct Proxy {
    port: u16,
    shared: Arc<ProxyState>,
}

#[derive(Debug)]
struct ProxyState {
    target: u16,
    protocol: Protocol,
    cut: Cut,
    requests: AtomicUsize,
    /// Answers are dropped from here on.
    mute: AtomicBool,
    dead: AtomicBool,
    sockets: Mutex<Vec<TcpStream>>,
}

/// The time that a forwarded request needs to reach the server.
const LAST_REQUEST: Duration = Duration::from_millis(40);

impl Proxy {
    /// Listens on a loopback port for clients of `target`, another loopback port.
    pub fn start(target: u16, protocol: Protocol, cut: Cut) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a loopback port");
        let port = listener.local_addr().expect("bound").port();
        let shared = Arc::new(ProxyState {
            target,
            protocol,
            cut,
            requests: AtomicUsize::new(0),
            mute: AtomicBool::new(false),
            dead: AtomicBool::new(false),
            sockets: Mutex::new(Vec::new()),
        });
        let accepting = Arc::clone(&shared);
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                if accepting.dead.load(Ordering::SeqCst) {
                    return;
                }
                let _ = accepting.clone().connect(client);
            }
        });
        Self { port, shared }
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// Requests seen so far.
    pub fn requests(&self) -> usize {
        self.shared.requests.load(Ordering::SeqCst)
    }

    /// Whether the cut has happened.
    pub fn is_dead(&self) -> bool {
        self.shared.dead.load(Ordering::SeqCst)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.die();
        // Wakes the accepting thread, so that it sees that it is over.
        let _ = TcpStream::connect(("127.0.0.1", self.port));
    }
}

impl ProxyState {
    fn connect(self: Arc<Self>, client: TcpStream) -> io::Result<()> {
        let server = TcpStream::connect(("127.0.0.1", self.target))?;
        let _ = (client.set_nodelay(true), server.set_nodelay(true));
        self.sockets.lock().extend([client.try_clone()?, server.try_clone()?]);
        let client_back = client.try_clone()?;
        let server_back = server.try_clone()?;
        let forth = Arc::clone(&self);
        std::thread::spawn(move || {
            let _ = forth.pass_requests(client, &server);
            let _ = server.shutdown(Shutdown::Both);
        });
        std::thread::spawn(move || {
            let _ = self.pass_answers(server_back, &client_back);
            let _ = client_back.shutdown(Shutdown::Both);
        });
        Ok(())
    }

    fn pass_requests(&self, client: TcpStream, mut server: &TcpStream) -> io::Result<()> {
        let mut client = io::BufReader::new(client);
        server.write_all(&opening(self.protocol, &mut client)?)?;
        loop {
            let (is_request, message) = next(self.protocol, &mut client)?;
            if is_request && !self.count() {
                return Ok(());
            }
            server.write_all(&message)?;
        }
    }

    /// `false` when this request must not pass.
    fn count(&self) -> bool {
        let number = self.requests.fetch_add(1, Ordering::SeqCst) + 1;
        match self.cut {
            Cut::Before(cut) if number >= cut => {
                self.die();
                return false;
            }
            Cut::After(cut) if number == cut => self.mute.store(true, Ordering::SeqCst),
            _ => {}
        }
        true
    }

    fn pass_answers(&self, mut server: TcpStream, mut client: &TcpStream) -> io::Result<()> {
        let mut buffer = [0; 16 * 1024];
        loop {
            let count = server.read(&mut buffer)?;
            if self.mute.load(Ordering::SeqCst) {
                std::thread::sleep(LAST_REQUEST);
                self.die();
            }
            if count == 0 || self.dead.load(Ordering::SeqCst) {
                return Ok(());
            }
            client.write_all(&buffer[..count])?;
        }
    }

    fn die(&self) {
        self.dead.store(true, Ordering::SeqCst);
        for socket in self.sockets.lock().drain(..) {
            let _ = socket.shutdown(Shutdown::Both);
        }
    }
}

/// The bytes before the first message: HTTP/2's preface, `PostgreSQL`'s untyped startup message.
fn opening(protocol: Protocol, client: &mut impl Read) -> io::Result<Vec<u8>> {
    match protocol {
        Protocol::Http2 => take(client, Vec::new(), 24),
        Protocol::Postgres => {
            let head = take(client, Vec::new(), 4)?;
            let length = length(&head);
            take(client, head, length.saturating_sub(4))
        }
    }
}

/// The next message, and whether it begins a request.
fn next(protocol: Protocol, client: &mut impl Read) -> io::Result<(bool, Vec<u8>)> {
    match protocol {
        Protocol::Http2 => {
            const HEADERS: u8 = 1;
            let head = take(client, Vec::new(), 9)?;
            let length = length(&[0, head[0], head[1], head[2]]);
            let kind = head[3];
            Ok((kind == HEADERS, take(client, head, length)?))
        }
        Protocol::Postgres => {
            let head = take(client, Vec::new(), 5)?;
            let kind = head[0];
            let length = length(&head[1..]);
            Ok((matches!(kind, b'S' | b'Q'), take(client, head, length.saturating_sub(4))?))
        }
    }
}

fn take(from: &mut impl Read, mut into: Vec<u8>, count: usize) -> io::Result<Vec<u8>> {
    let start = into.len();
    into.resize(start + count, 0);
    from.read_exact(&mut into[start..])?;
    Ok(into)
}

fn length(bytes: &[u8]) -> usize {
    bytes.iter().take(4).fold(0, |sum, byte| sum << 8 | usize::from(*byte))
}
