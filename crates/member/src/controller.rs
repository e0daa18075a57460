//! Calls of a controller.
//!
//! [`Session::connect`] checks the certificate of the controller before anything is sent. A caller
//! learns from [`CallError::may_have_arrived`] whether a request may have had an effect.

use std::io;
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::time::{Duration, Instant};

use hoist_api::Problem;
use hoist_cluster::address::Address;
use hoist_cluster::id::Pin;
use hoist_cluster::join_token::EXPORTER_BYTES;
use hoist_cluster::membership::MembershipEnd;
use hoist_diagnostic::chain;
use rustls::pki_types::ServerName;
use rustls::{ClientConnection, StreamOwned};
use serde::Serialize;
use serde::de::DeserializeOwned;

pub use crate::http::HttpError;
use crate::http::{Answer, Limits, Request, exchange};
use crate::trust::Tls;

/// The port of a controller's TLS listener.
pub const DEFAULT_PORT: u16 = 27443;

const CONNECT: Duration = Duration::from_secs(10);

/// The time of an ordinary call. A controller that has to ask its store takes longer than one that
/// has not.
pub const ANSWER: Duration = Duration::from_mins(1);

/// Answers are at most a bundle of certificates.
const MAX_ANSWER: usize = 1024 * 1024;

/// The label under which both ends export keying material for the proof of a token.
const EXPORTER_LABEL: &[u8] = b"EXPORTER-hoist-join-1";

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    #[error("cannot reach {address}: {reason}")]
    Unreachable { address: String, reason: String },
    #[error(
        "{address} is not of the expected cluster: its root is {}, expected {}; nothing was sent",
        pins(presented),
        pins(expected)
    )]
    WrongPin { address: String, presented: Vec<Pin>, expected: Vec<Pin> },
    #[error("{address} is not trusted: {reason}; nothing was sent")]
    Untrusted { address: String, reason: String },
    #[error("{address} did not answer")]
    NoAnswer { address: String, source: HttpError },
    /// The controller's reason, with its remedy.
    #[error("{}", said(*status, problem.as_deref()))]
    Refused { status: u16, problem: Option<Box<Problem>> },
    /// As `Refused`, and the same request may succeed later.
    #[error("{}", said(*status, problem.as_deref()))]
    Later { status: u16, problem: Option<Box<Problem>>, retry_after: Option<Duration> },
    #[error("the answer of {address} cannot be read: {reason}")]
    Unreadable { address: String, reason: String },
}

impl CallError {
    /// The request was sent, and its outcome is not known.
    pub fn may_have_arrived(&self) -> bool {
        match self {
            Self::NoAnswer { .. } | Self::Unreadable { .. } => true,
            Self::Later { status, .. } => *status >= 500,
            Self::Unreachable { .. }
            | Self::WrongPin { .. }
            | Self::Untrusted { .. }
            | Self::Refused { .. } => false,
        }
    }

    /// How the membership of this node ended, if a controller said so.
    pub fn membership_end(&self) -> Option<MembershipEnd> {
        match self {
            Self::Refused { problem: Some(problem), .. } => problem.code.membership_end(),
            _ => None,
        }
    }

    /// The error to report of a round over all controllers: the one with the higher rank says more
    /// about the cause. A controller's reason comes before a doubt about its identity, and both
    /// before silence.
    pub(crate) fn rank(&self) -> u8 {
        match self {
            Self::Refused { .. } => 5,
            Self::Later { problem: Some(_), .. } => 4,
            Self::WrongPin { .. } | Self::Untrusted { .. } => 3,
            Self::Later { problem: None, .. } | Self::Unreadable { .. } => 2,
            Self::NoAnswer { .. } => 1,
            Self::Unreachable { .. } => 0,
        }
    }

    /// The error of a round over several controllers: the more telling one of two.
    pub(crate) fn or_more_telling(known: Option<Self>, next: Self) -> Self {
        match known {
            Some(known) if known.rank() >= next.rank() => known,
            _ => next,
        }
    }

    /// With the controller, which the reason that it gave does not name.
    pub(crate) fn at(&self, authority: &str) -> String {
        match self {
            Self::Refused { .. } | Self::Later { .. } => format!("{authority}: {}", chain(self)),
            _ => chain(self),
        }
    }

    /// The same call may succeed later.
    pub fn is_temporary(&self) -> bool {
        match self {
            Self::Unreachable { .. } | Self::NoAnswer { .. } | Self::Later { .. } => true,
            Self::WrongPin { .. }
            | Self::Untrusted { .. }
            | Self::Refused { .. }
            | Self::Unreadable { .. } => false,
        }
    }
}

fn pins(pins: &[Pin]) -> String {
    if pins.is_empty() {
        return "not in its chain".to_owned();
    }
    let texts: Vec<String> = pins.iter().map(Pin::to_string).collect();
    texts.join(" or ")
}

/// The reason that the controller gave, or the status code if it gave none.
fn said(status: u16, problem: Option<&Problem>) -> String {
    let Some(problem) = problem else {
        return format!("the controller answered with status {status}");
    };
    let detail = if problem.detail.is_empty() { &*problem.title } else { &problem.detail };
    match &problem.remedy {
        Some(remedy) => format!("{detail}; {remedy}"),
        None => detail.to_owned(),
    }
}

/// One TLS connection to a controller.
#[derive(Debug)]
pub struct Session {
    stream: StreamOwned<ClientConnection, TcpStream>,
    /// Host and port, for the header and for messages.
    authority: String,
    /// The certificate of the controller is not valid at the time of this machine.
    is_dated: bool,
    is_closed: bool,
}

impl Session {
    /// Connects and checks the certificate of the controller. `authority` is a host with a port.
    pub fn connect(authority: &str, tls: &Tls) -> Result<Self, CallError> {
        let unreachable = |error: &io::Error| CallError::Unreachable {
            address: authority.to_owned(),
            reason: error.to_string(),
        };
        let socket = open(authority).map_err(|error| unreachable(&error))?;
        let host = host_of(authority);
        let name = ServerName::try_from(host.to_owned()).map_err(|error| {
            CallError::Unreachable { address: authority.to_owned(), reason: error.to_string() }
        })?;
        let untrusted = |error: &rustls::Error| CallError::Untrusted {
            address: authority.to_owned(),
            reason: error.to_string(),
        };
        let connection = ClientConnection::new(Arc::clone(&tls.config), name)
            .map_err(|error| untrusted(&error))?;
        let mut stream = StreamOwned::new(connection, socket);
        // The handshake is complete before the first byte of a request.
        while stream.conn.is_handshaking() {
            if let Err(error) = stream.conn.complete_io(&mut stream.sock) {
                return Err(handshake_error(authority, tls, &error));
            }
        }
        let is_dated = tls.presented().is_dated;
        Ok(Self { stream, authority: authority.to_owned(), is_dated, is_closed: false })
    }

    pub fn authority(&self) -> &str {
        &self.authority
    }

    pub fn is_dated(&self) -> bool {
        self.is_dated
    }

    /// The server closes the connection; the next call needs another one.
    pub fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// Keying material that only the two ends of this connection know.
    pub fn exporter(&self) -> Result<[u8; EXPORTER_BYTES], rustls::Error> {
        self.stream.conn.export_keying_material([0; EXPORTER_BYTES], EXPORTER_LABEL, None)
    }

    pub fn get<T: DeserializeOwned>(&mut self, path: &str) -> Result<T, CallError> {
        let answer = self.call("GET", path, None, MAX_ANSWER, ANSWER)?;
        self.read(&answer)
    }

    pub fn post<T: DeserializeOwned>(
        &mut self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T, CallError> {
        self.post_within(path, body, MAX_ANSWER, ANSWER)
    }

    /// With limits of its own for the answer.
    pub fn post_within<T: DeserializeOwned>(
        &mut self,
        path: &str,
        body: &impl Serialize,
        size: usize,
        time: Duration,
    ) -> Result<T, CallError> {
        let body = serde_json::to_vec(body).expect("plain values");
        let answer = self.call("POST", path, Some(&body), size, time)?;
        self.read(&answer)
    }

    /// For a call whose answer has no content that matters.
    pub fn tell(&mut self, path: &str, body: &impl Serialize) -> Result<(), CallError> {
        let body = serde_json::to_vec(body).expect("plain values");
        self.call("POST", path, Some(&body), MAX_ANSWER, ANSWER).map(drop)
    }

    fn call(
        &mut self,
        method: &'static str,
        path: &str,
        body: Option<&[u8]>,
        size: usize,
        time: Duration,
    ) -> Result<Answer, CallError> {
        let request = Request { method, host: &self.authority, path, body };
        let limits = Limits { until: Instant::now() + time, body: size };
        let answer = self
            .stream
            .sock
            .set_read_timeout(Some(time))
            .map_err(HttpError::Broken)
            .and_then(|()| exchange(&mut self.stream, &request, limits));
        let answer = match answer {
            Ok(answer) => answer,
            Err(source) => {
                self.is_closed = true;
                return Err(CallError::NoAnswer { address: self.authority.clone(), source });
            }
        };
        self.is_closed |= answer.closes;
        if (200..300).contains(&answer.status) {
            return Ok(answer);
        }
        let status = answer.status;
        let problem = serde_json::from_slice::<Problem>(&answer.body).ok().map(Box::new);
        let is_later = status >= 500 || matches!(status, 408 | 425 | 429);
        if !is_later {
            return Err(CallError::Refused { status, problem });
        }
        let retry_after = answer.retry_after.map(Duration::from_secs);
        Err(CallError::Later { status, problem, retry_after })
    }

    fn read<T: DeserializeOwned>(&self, answer: &Answer) -> Result<T, CallError> {
        serde_json::from_slice(&answer.body).map_err(|error| CallError::Unreadable {
            address: self.authority.clone(),
            reason: error.to_string(),
        })
    }
}

/// Tries all addresses of the name within the time for one.
fn open(authority: &str) -> io::Result<TcpStream> {
    let until = Instant::now() + CONNECT;
    let mut last = io::Error::other("the name has no address");
    for address in authority.to_socket_addrs()? {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        match TcpStream::connect_timeout(&address, left) {
            Ok(socket) => {
                socket.set_nodelay(true)?;
                socket.set_read_timeout(Some(CONNECT))?;
                socket.set_write_timeout(Some(CONNECT))?;
                return Ok(socket);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn handshake_error(authority: &str, tls: &Tls, error: &io::Error) -> CallError {
    let address = authority.to_owned();
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    let Some(inner) = inner else {
        return CallError::Unreachable { address, reason: error.to_string() };
    };
    let presented = tls.presented();
    match inner {
        rustls::Error::InvalidCertificate(_) if !presented.is_trusted => CallError::WrongPin {
            address,
            presented: presented.authorities,
            expected: tls.expected(),
        },
        inner => CallError::Untrusted { address, reason: chain(inner) },
    }
}

/// Host and port of an address, with the default port if it has none.
pub fn authority_of(address: &Address) -> String {
    let text = address.as_str();
    if let Ok(ip) = text.parse::<std::net::IpAddr>() {
        return match ip {
            std::net::IpAddr::V4(ip) => format!("{ip}:{DEFAULT_PORT}"),
            std::net::IpAddr::V6(ip) => format!("[{ip}]:{DEFAULT_PORT}"),
        };
    }
    let has_port = text.rsplit_once(':').is_some_and(|(_, port)| !port.contains(']'));
    if has_port { text.to_owned() } else { format!("{text}:{DEFAULT_PORT}") }
}

/// Host and port of the URL of a controller; `None` if the URL is not one over TLS.
pub fn authority_of_url(url: &str) -> Option<String> {
    let rest = url.strip_prefix("https://")?;
    let authority = rest.split('/').next().unwrap_or_default();
    let has_port = authority.rsplit_once(':').is_some_and(|(_, port)| !port.contains(']'));
    match (authority.is_empty(), has_port) {
        (true, _) => None,
        (false, true) => Some(authority.to_owned()),
        (false, false) => Some(format!("{authority}:443")),
    }
}

fn host_of(authority: &str) -> &str {
    let host = authority.rsplit_once(':').map_or(authority, |(host, _)| host);
    host.trim_start_matches('[').trim_end_matches(']')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn authorities_of_addresses_have_a_port() {
        let of = |text: &str| authority_of(&text.parse().unwrap());
        assert_eq!(of("10.0.0.1"), "10.0.0.1:27443");
        assert_eq!(of("10.0.0.1:1"), "10.0.0.1:1");
        assert_eq!(of("fe80::1"), "[fe80::1]:27443");
        assert_eq!(of("[::1]:8"), "[::1]:8");
        assert_eq!(of("c.example"), "c.example:27443");
        assert_eq!(of("c:8443"), "c:8443");
        assert_eq!(authority_of_url("https://c:1/x").as_deref(), Some("c:1"));
        assert_eq!(authority_of_url("https://[::1]").as_deref(), Some("[::1]:443"));
        assert_eq!(authority_of_url("http://c:1"), None);
        assert_eq!((host_of("[::1]:8"), host_of("c:1")), ("::1", "c"));
    }

    #[test]
    fn problem_of_the_controller_is_shown_with_its_remedy() {
        let problem = Problem::new(hoist_api::Code::Forbidden, "the token has expired")
            .with_remedy("hoist cluster token create");
        let error = CallError::Refused { status: 403, problem: Some(Box::new(problem)) };
        assert_eq!(error.to_string(), "the token has expired; hoist cluster token create");
        let error = CallError::Later { status: 502, problem: None, retry_after: None };
        assert_eq!(error.to_string(), "the controller answered with status 502");
        assert!(error.may_have_arrived() && error.is_temporary());
    }
}
