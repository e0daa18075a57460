//! Fetching an image from a file or from servers. If one server fails, another one continues.
//!
//! Does not belong here: decoding (`decode`) and writing (`stream`, `chunked`).

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use hoist_engine::action::Cancel;
use parking_lot::Mutex;
use rustls_pki_types::CertificateDer;
use secrecy::{ExposeSecret, SecretString};
use ureq::http::{Response, StatusCode, header};
use ureq::tls::{Certificate, RootCerts, TlsConfig, TlsProvider};

use super::wait::{Notices, Wait};

/// Sources with identical contents.
#[derive(Debug, Clone)]
pub struct Origin {
    /// `https://…`, `http://…` or `file:///…`; the first one that responds is used.
    pub urls: Vec<String>,
    /// Sent as a bearer token, only to these sources.
    pub token: Option<SecretString>,
    pub trust: Trust,
    pub limits: FetchLimits,
    /// Ends all waiting for servers.
    pub cancel: Cancel,
    /// Receives a notice while a source sends nothing.
    pub notices: Notices,
}

impl Origin {
    pub fn new(urls: Vec<String>) -> Self {
        let trust = Trust::default();
        let limits = FetchLimits::default();
        let cancel = Cancel::default();
        Self { urls, token: None, trust, limits, cancel, notices: Notices::default() }
    }

    /// The size in bytes, if the source that answers first reports it.
    pub fn size(&self) -> Result<Option<u64>, SourceError> {
        Fetch::probe(self).map(|fetch| fetch.total)
    }

    /// The same sources, with few attempts.
    pub(super) fn for_probe(&self) -> Self {
        Self { limits: self.limits.for_probe(), ..self.clone() }
    }

    /// All contents, if they have at most `most` bytes.
    pub fn read_all(&self, most: u64) -> Result<Vec<u8>, SourceError> {
        let mut fetch = Fetch::begin(self, 0)?;
        let mut all = Vec::new();
        let mut buffer = vec![0; 64 * 1024];
        loop {
            let length = fetch.read(&mut buffer)?;
            if length == 0 {
                return Ok(all);
            }
            all.extend_from_slice(&buffer[..length]);
            if all.len() as u64 > most {
                return Err(SourceError::TooLong { url: shown(&self.urls[fetch.mirror]), most });
            }
        }
    }
}

/// Trusted certificate authorities. Without any, HTTPS is not used.
#[derive(Debug, Clone, Default)]
pub struct Trust {
    pub roots: Vec<CertificateDer<'static>>,
}

/// Timeouts and number of attempts.
#[derive(Debug, Clone)]
pub struct FetchLimits {
    pub connect: Duration,
    /// At least `least` bytes must arrive in each window.
    pub window: Duration,
    pub least: u64,
    /// Connections that may fail or end early.
    pub attempts: u32,
    /// Replaces the number of attempts: connections may fail until then.
    pub deadline: Option<Instant>,
    /// Pause before the next connection. It grows after each connection without data.
    pub pause: Duration,
}

impl FetchLimits {
    /// For a request that only shows whether a source answers.
    #[must_use]
    pub fn for_probe(&self) -> Self {
        let window = self.window.min(PROBE_WINDOW);
        Self { attempts: PROBES, window, least: self.least / 3, ..self.clone() }
    }
}

impl Default for FetchLimits {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(10),
            window: Duration::from_secs(30),
            least: 1024 * 1024,
            attempts: 30,
            deadline: None,
            pause: Duration::from_millis(200),
        }
    }
}

/// The reason why a file could not be fetched.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SourceError {
    #[error("the image has no sources; add at least one URL")]
    Nowhere,
    #[error("cannot fetch `{url}`: {reason}")]
    Refused { url: String, reason: String },
    #[error("cannot fetch `{url}` from byte {at} on: {reason}; gave up after {attempts} attempts")]
    GivenUp { url: String, at: u64, reason: String, attempts: u32 },
    #[error("`{url}` ended at byte {at}, before the end of the image")]
    Short { url: String, at: u64 },
    #[error("`{url}` has more than {most} bytes")]
    TooLong { url: String, most: u64 },
    #[error("the download was cancelled")]
    Stopped,
}

/// Attempts of a probe, and the longest time without data in each.
const PROBES: u32 = 2;
const PROBE_WINDOW: Duration = Duration::from_secs(10);

/// Bytes that a probe requests.
const PROBED: u64 = 256 * 1024;

/// Longest pause, as a multiple of the first.
const LONGEST_PAUSE: u32 = 32;

/// Longest delay between a cancellation and the end of a blocked read.
const NOTICE: Duration = Duration::from_millis(200);

/// A download that starts at a given position.
#[derive(Debug)]
pub(crate) struct Fetch<'a> {
    origin: &'a Origin,
    agent: ureq::Agent,
    mirror: usize,
    /// The permanent refusal of each source.
    refusals: Vec<Option<String>>,
    /// A probe, which needs only the first bytes.
    is_probe: bool,
    /// The current wait for a source, shared with the thread that reports it.
    wait: Arc<Mutex<Wait>>,
    /// The `ETag` of each source.
    tags: Vec<Option<String>>,
    body: Option<Body>,
    position: u64,
    total: Option<u64>,
    /// Whether the end of the file can be distinguished from a lost connection.
    has_end: bool,
    attempts: u32,
    /// Consecutive attempts without data.
    without_data: u32,
    window: (Instant, u64),
    /// Random access instead of one sequential read.
    is_random_access: bool,
    /// Lives as long as the download. Dropping it ends the thread that closes connections on
    /// cancellation.
    _watcher: Option<Sender<()>>,
}

enum Body {
    File(File),
    Http(Box<ureq::BodyReader<'static>>),
}

impl std::fmt::Debug for Body {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::File(_) => "File",
            Self::Http(_) => "Http",
        })
    }
}

/// The reason why a connection could not be opened.
enum ConnectError {
    Never(String),
    ThisTime(String),
}

impl<'a> Fetch<'a> {
    pub(crate) fn begin(origin: &'a Origin, position: u64) -> Result<Self, SourceError> {
        let mut fetch = Self::new(origin, position)?;
        fetch.open_first()?;
        Ok(fetch)
    }

    /// Requests only the first bytes.
    pub(super) fn probe(origin: &'a Origin) -> Result<Self, SourceError> {
        let mut fetch = Self { is_probe: true, ..Self::new(origin, 0)? };
        fetch.open_first()?;
        Ok(fetch)
    }

    fn open_first(&mut self) -> Result<(), SourceError> {
        self.wait.lock().begin();
        let connected = self.connect();
        self.wait.lock().end();
        connected
    }

    fn new(origin: &'a Origin, position: u64) -> Result<Self, SourceError> {
        if origin.urls.is_empty() {
            return Err(SourceError::Nowhere);
        }
        let agent = agent(origin);
        let wait = Arc::new(Mutex::new(Wait::of(&origin.urls[0])));
        Ok(Self {
            origin,
            _watcher: watch(origin, &agent, &wait),
            agent,
            wait,
            mirror: 0,
            refusals: vec![None; origin.urls.len()],
            is_probe: false,
            tags: vec![None; origin.urls.len()],
            body: None,
            position,
            total: None,
            has_end: true,
            attempts: 0,
            without_data: 0,
            window: (Instant::now(), 0),
            is_random_access: false,
        })
    }

    /// Switches to random access. The server must support ranges and must report the size.
    pub(super) fn needs_random_access(&mut self) -> Result<u64, SourceError> {
        self.is_random_access = true;
        let reason = "the server reports no size, which random access requires";
        let refused = || SourceError::Refused { url: self.url(), reason: reason.to_owned() };
        self.total.ok_or_else(refused)
    }

    /// Sets the position of the next read.
    pub(super) fn seek(&mut self, position: u64) {
        if self.position != position {
            (self.position, self.body) = (position, None);
        }
    }

    /// The size in bytes, if the source reports it.
    pub(super) fn total(&self) -> Option<u64> {
        self.total
    }

    /// Whether the end of the file can be distinguished from a lost connection.
    pub(super) fn has_end(&self) -> bool {
        self.has_end
    }

    /// The position of the next read.
    pub(crate) fn position(&self) -> u64 {
        self.position
    }

    /// Reads some bytes; 0 at the end.
    pub(crate) fn read(&mut self, into: &mut [u8]) -> Result<usize, SourceError> {
        self.wait.lock().begin();
        let read = self.read_some(into);
        self.wait.lock().end();
        read
    }

    fn read_some(&mut self, into: &mut [u8]) -> Result<usize, SourceError> {
        loop {
            self.connect()?;
            if self.origin.cancel.is_cancelled() {
                return Err(SourceError::Stopped);
            }
            let outcome = match &mut self.body {
                Some(Body::File(file)) => file.read(into),
                Some(Body::Http(body)) => body.read(into),
                None => continue,
            };
            match outcome {
                // A connection closed by the cancellation may look like the end of the file.
                Ok(0) | Err(_) if self.origin.cancel.is_cancelled() => {
                    return Err(SourceError::Stopped);
                }
                Ok(0) if self.total.is_none_or(|total| self.position == total) => return Ok(0),
                Ok(0) => self.broken(&self.ended_early())?,
                Ok(length) => {
                    self.position += length as u64;
                    self.without_data = 0;
                    if self.is_dripping(length as u64) {
                        self.broken("the connection is too slow")?;
                    }
                    return Ok(length);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => self.broken(&error.to_string())?,
            }
        }
    }

    pub(super) fn read_exactly(&mut self, into: &mut [u8]) -> Result<(), SourceError> {
        let mut length = 0;
        while length < into.len() {
            match self.read(&mut into[length..])? {
                0 => return Err(SourceError::Short { url: self.url(), at: self.position }),
                more => length += more,
            }
        }
        Ok(())
    }

    pub(super) fn url(&self) -> String {
        shown(&self.origin.urls[self.mirror])
    }

    fn ended_early(&self) -> String {
        let total = self.total.unwrap_or_default();
        format!("the connection ended after {} of {total} bytes", self.position)
    }

    /// Whether too few bytes arrived in the last window.
    fn is_dripping(&mut self, length: u64) -> bool {
        let FetchLimits { window, least, .. } = self.origin.limits;
        self.window.1 += length;
        if self.window.0.elapsed() < window {
            return false;
        }
        let came = self.window.1;
        self.window = (Instant::now(), 0);
        came < least && !matches!(self.body, Some(Body::File(_)))
    }

    /// Gives up the connection. The next one may go to another source.
    fn broken(&mut self, reason: &str) -> Result<(), SourceError> {
        let FetchLimits { attempts, deadline, pause, .. } = self.origin.limits;
        self.body = None;
        self.attempts += 1;
        self.wait.lock().reason = Some(reason.to_owned());
        let is_over = match deadline {
            Some(deadline) => Instant::now() >= deadline,
            None => self.attempts >= attempts,
        };
        if is_over {
            let url = self.url();
            let at = self.position;
            let reason = reason.to_owned();
            return Err(SourceError::GivenUp { url, at, reason, attempts: self.attempts });
        }
        let factor =
            1_u32.checked_shl(self.without_data).unwrap_or(LONGEST_PAUSE).min(LONGEST_PAUSE);
        self.without_data += 1;
        self.wait(pause * factor)?;
        self.next_mirror();
        Ok(())
    }

    fn wait(&self, pause: Duration) -> Result<(), SourceError> {
        let until = Instant::now() + pause;
        let until = self.origin.limits.deadline.map_or(until, |deadline| deadline.min(until));
        loop {
            if self.origin.cancel.is_cancelled() {
                return Err(SourceError::Stopped);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            std::thread::sleep(left.min(NOTICE));
        }
    }

    fn next_mirror(&mut self) {
        let count = self.origin.urls.len();
        let order = (1..=count).map(|step| (self.mirror + step) % count);
        if let Some(next) = order.into_iter().find(|mirror| self.refusals[*mirror].is_none()) {
            self.mirror = next;
            self.wait.lock().url = self.url();
        }
    }

    fn connect(&mut self) -> Result<(), SourceError> {
        while self.body.is_none() {
            if self.origin.cancel.is_cancelled() {
                return Err(SourceError::Stopped);
            }
            match self.open() {
                // After a cancellation, the error of the closed connection does not matter.
                Err(_) if self.origin.cancel.is_cancelled() => return Err(SourceError::Stopped),
                Ok(body) => {
                    self.body = Some(body);
                    self.window = (Instant::now(), 0);
                }
                Err(ConnectError::ThisTime(reason)) => self.broken(&reason)?,
                Err(ConnectError::Never(reason)) => {
                    self.refusals[self.mirror] = Some(reason.clone());
                    if self.refusals.iter().all(Option::is_some) {
                        return Err(SourceError::Refused { url: self.url(), reason });
                    }
                    self.next_mirror();
                }
            }
        }
        Ok(())
    }

    fn open(&mut self) -> Result<Body, ConnectError> {
        let url = &self.origin.urls[self.mirror];
        if let Some(path) = url.strip_prefix("file://") {
            let never = |error: io::Error| ConnectError::Never(error.to_string());
            let mut file = File::open(path).map_err(never)?;
            self.has_total(Some(file.seek(SeekFrom::End(0)).map_err(never)?))?;
            file.seek(SeekFrom::Start(self.position)).map_err(never)?;
            return Ok(Body::File(file));
        }
        let mut request = self.agent.get(url).header(header::ACCEPT_ENCODING, "identity");
        if let Some(token) = &self.origin.token {
            let value = format!("Bearer {}", token.expose_secret());
            request = request.header(header::AUTHORIZATION, value);
        }
        if self.is_probe {
            let last = self.position + PROBED - 1;
            request = request.header(header::RANGE, format!("bytes={}-{last}", self.position));
        } else if self.position > 0 {
            request = request.header(header::RANGE, format!("bytes={}-", self.position));
            if let Some(tag) = &self.tags[self.mirror] {
                request = request.header(header::IF_RANGE, tag);
            }
        }
        let answer = request.call().map_err(|error| match error {
            ureq::Error::BadUri(_)
            | ureq::Error::Http(_)
            | ureq::Error::Tls(_)
            | ureq::Error::Rustls(_) => ConnectError::Never(error.to_string()),
            // A certificate that is not trusted now is not trusted later.
            ureq::Error::Io(error) if is_of_tls(&error) => ConnectError::Never(error.to_string()),
            error => ConnectError::ThisTime(error.to_string()),
        })?;
        self.accept(answer)
    }

    fn accept(&mut self, answer: Response<ureq::Body>) -> Result<Body, ConnectError> {
        let status = answer.status();
        let value = |name: header::HeaderName| {
            answer.headers().get(name).and_then(|value| value.to_str().ok()).map(str::to_owned)
        };
        // A weak tag does not guarantee identical bytes.
        let tag = value(header::ETAG).filter(|tag| !tag.starts_with("W/"));
        let length = value(header::CONTENT_LENGTH).and_then(|length| length.parse::<u64>().ok());
        let range = value(header::CONTENT_RANGE);
        let is_in_pieces = value(header::TRANSFER_ENCODING).is_some();
        let was = self.tags[self.mirror].as_ref();
        if status.is_success() && was.zip(tag.as_ref()).is_some_and(|(was, is)| was != is) {
            return Err(ConnectError::Never("the file changed during the download".to_owned()));
        }
        let skip = match status {
            StatusCode::OK if self.is_random_access && self.position > 0 => {
                let reason = "the server does not support ranges, which random access requires";
                return Err(ConnectError::Never(reason.to_owned()));
            }
            StatusCode::OK => {
                self.has_total(length)?;
                self.position
            }
            StatusCode::PARTIAL_CONTENT => {
                let (start, total) = range.as_deref().and_then(content_range).ok_or_else(|| {
                    ConnectError::Never(
                        "the partial response has no valid Content-Range".to_owned(),
                    )
                })?;
                if start != self.position {
                    let wanted = self.position;
                    let reason =
                        format!("the server returned bytes from {start} on instead of {wanted}");
                    return Err(ConnectError::Never(reason));
                }
                self.has_total(total)?;
                0
            }
            status if status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS => {
                return Err(ConnectError::ThisTime(format!(
                    "the server returned status {}",
                    status.as_u16()
                )));
            }
            status => {
                return Err(ConnectError::Never(format!(
                    "the server returned status {}",
                    status.as_u16()
                )));
            }
        };
        if tag.is_some() {
            self.tags[self.mirror] = tag;
        }
        self.has_end = is_in_pieces || self.total.is_some();
        let mut body = answer.into_body().into_reader();
        // A server without support for ranges sends the file from its start. The bytes already
        // received are skipped.
        self.pass_over(&mut body, skip).map_err(ConnectError::ThisTime)?;
        Ok(Body::Http(Box::new(body)))
    }

    /// Skips bytes under the same timeouts as new data.
    fn pass_over(&mut self, body: &mut impl Read, skip: u64) -> Result<(), String> {
        let mut buffer = vec![0; 64 * 1024];
        let mut left = skip;
        self.window = (Instant::now(), 0);
        while left > 0 {
            let most = usize::try_from(left).map_or(buffer.len(), |left| left.min(buffer.len()));
            match body.read(&mut buffer[..most]) {
                Ok(0) => return Err(format!("the connection ended after {} bytes", skip - left)),
                Ok(length) if self.is_dripping(length as u64) => {
                    return Err("the connection is too slow".to_owned());
                }
                Ok(length) => left -= length as u64,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.to_string()),
            }
        }
        Ok(())
    }

    /// All sources must report the same size.
    fn has_total(&mut self, is: Option<u64>) -> Result<(), ConnectError> {
        match (self.total, is) {
            (Some(was), Some(is)) if was != is => Err(ConnectError::Never(format!(
                "the file has {is} bytes, but its size was reported as {was} before"
            ))),
            (_, is) => {
                self.total = is.or(self.total);
                Ok(())
            }
        }
    }
}

fn is_of_tls(error: &io::Error) -> bool {
    error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()).is_some()
}

/// Parses `bytes 100-199/1000` into the first position and the total size.
fn content_range(value: &str) -> Option<(u64, Option<u64>)> {
    let (range, total) = value.strip_prefix("bytes ")?.split_once('/')?;
    let (start, _) = range.split_once('-')?;
    Some((start.trim().parse().ok()?, total.trim().parse().ok()))
}

/// The URL without its query, which may contain a secret.
pub(crate) fn shown(url: &str) -> String {
    url.split(['?', '#']).next().unwrap_or_default().to_owned()
}

fn agent(origin: &Origin) -> ureq::Agent {
    let FetchLimits { connect, window, .. } = origin.limits;
    let config = ureq::Agent::config_builder()
        .http_status_as_error(false)
        .proxy(None)
        .timeout_connect(Some(connect))
        .timeout_recv_response(Some(window))
        .timeout_per_read(Some(window))
        .tls_config(tls(&origin.trust));
    ureq::Agent::new_with_config(config.build())
}

/// Starts a thread that reports waiting, and closes all connections of an agent on cancellation: a
/// thread that waits for a server can do neither. The thread ends when the returned sender is
/// dropped.
fn watch(origin: &Origin, agent: &ureq::Agent, wait: &Arc<Mutex<Wait>>) -> Option<Sender<()>> {
    let is_remote = origin.urls.iter().any(|url| !url.starts_with("file://"));
    let (sender, ended) = channel();
    let cancel = origin.cancel.clone();
    let notices = origin.notices.clone();
    let agent = agent.clone();
    let wait = Arc::clone(wait);
    let watch = move || {
        while ended.recv_timeout(NOTICE) == Err(RecvTimeoutError::Timeout) {
            if cancel.is_cancelled() {
                return agent.shutdown();
            }
            let due = wait.lock().due();
            if let Some(notice) = due {
                notices.send(&notice);
            }
        }
    };
    // If the thread cannot be started, only the reaction to a cancellation is slower.
    let watcher = || std::thread::Builder::new().name("fetch watch".to_owned()).spawn(watch);
    is_remote.then(watcher)?.ok().map(|_| sender)
}

fn tls(trust: &Trust) -> TlsConfig {
    let roots: Vec<Certificate<'static>> =
        trust.roots.iter().map(|root| Certificate::from_der(root).to_owned()).collect();
    TlsConfig::builder()
        .provider(TlsProvider::Rustls)
        .unversioned_rustls_crypto_provider(Arc::new(rustls::crypto::aws_lc_rs::default_provider()))
        .root_certs(RootCerts::new_with_certs(&roots))
        .build()
}
