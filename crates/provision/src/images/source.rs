//! Where an image comes from: a file, or servers of which one goes on where another has ended.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use hoist_engine::action::Cancel;
use rustls_pki_types::CertificateDer;
use secrecy::{ExposeSecret, SecretString};
use ureq::http::{Response, StatusCode, header};
use ureq::tls::{Certificate, RootCerts, TlsConfig, TlsProvider};

/// Places that have the same bytes.
#[derive(Debug, Clone)]
pub struct Origin {
    /// `https://…`, `http://…` or `file:///…`; the first that answers is taken.
    pub urls: Vec<String>,
    /// Sent as a bearer token, to none but these places.
    pub token: Option<SecretString>,
    pub trust: Trust,
    pub patience: Patience,
    /// Ends all waiting for them.
    pub cancel: Cancel,
}

impl Origin {
    pub fn new(urls: Vec<String>) -> Self {
        let (trust, patience) = (Trust::default(), Patience::default());
        Self { urls, token: None, trust, patience, cancel: Cancel::default() }
    }

    /// How many bytes it has, if whoever has it says so.
    pub fn size(&self) -> Result<Option<u64>, SourceError> {
        Fetch::begin(&self.for_a_look(), 0).map(|fetch| fetch.total)
    }

    /// Whether somebody has it, or may have it when it is needed: who is only away is no reason to say
    /// no. Of what is there one byte is asked for, which is waited for only if somebody `reads` it.
    pub fn look(&self, reads: bool) -> Result<Looked, SourceError> {
        let once = self.for_a_look();
        let fetch = Fetch::new(&once, 0)?;
        let mut fetch = Fetch { is_look: true, ..fetch };
        match fetch.connect() {
            Err(SourceError::GivenUp { .. }) => return Ok(Looked::default()),
            connected => connected?,
        }
        let (total, has_end, mut first) = (fetch.total, fetch.has_end, [0]);
        // Whoever has it and does not give it is asked again when it is needed.
        let is_read = reads && matches!(fetch.read(&mut first), Ok(1));
        Ok(Looked { first: is_read.then_some(first[0]), total, is_endless: !has_end })
    }

    /// What is not there now is looked for again when it is needed.
    pub(super) fn for_a_look(&self) -> Self {
        Self { patience: Patience { attempts: 2, ..self.patience.clone() }, ..self.clone() }
    }

    /// Everything, if it is no more than `most` bytes.
    pub fn read_all(&self, most: u64) -> Result<Vec<u8>, SourceError> {
        let mut fetch = Fetch::begin(self, 0)?;
        let (mut all, mut buffer) = (Vec::new(), vec![0; 64 * 1024]);
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

/// What is seen of something without fetching it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Looked {
    /// Its first byte, if somebody wanted to know.
    pub first: Option<u8>,
    /// Bytes, if whoever has it says so.
    pub total: Option<u64>,
    /// Nothing tells its end from the end of a connection.
    pub is_endless: bool,
}

/// Authorities that may vouch for a server. Without any, nothing is fetched by HTTPS.
#[derive(Debug, Clone, Default)]
pub struct Trust {
    pub roots: Vec<CertificateDer<'static>>,
}

/// How long is too long.
#[derive(Debug, Clone)]
pub struct Patience {
    pub connect: Duration,
    /// In every such time at least `least` bytes must come.
    pub window: Duration,
    pub least: u64,
    /// Connections that may fail or end early.
    pub attempts: u32,
    /// Before the next one, and longer after each that brought nothing.
    pub pause: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(10),
            window: Duration::from_secs(30),
            least: 1024 * 1024,
            attempts: 30,
            pause: Duration::from_millis(200),
        }
    }
}

/// Why it does not come.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SourceError {
    #[error("nothing says where the image is")]
    Nowhere,
    #[error("`{url}` does not have the image: {reason}")]
    Refused { url: String, reason: String },
    #[error("`{url}` ended at byte {at}: {reason}; given up after {attempts} attempts")]
    GivenUp { url: String, at: u64, reason: String, attempts: u32 },
    #[error("`{url}` ended at byte {at}, before the image did")]
    Short { url: String, at: u64 },
    #[error("`{url}` has more than {most} bytes")]
    TooLong { url: String, most: u64 },
    #[error("it was stopped")]
    Stopped,
}

/// Longest pause, as a multiple of the first.
const LONGEST_PAUSE: u32 = 32;

/// How long it takes until somebody who waits for a server knows that nobody wants it any more.
const NOTICE: Duration = Duration::from_millis(200);

/// Something that is being fetched, from a place on.
#[derive(Debug)]
pub(crate) struct Fetch<'a> {
    origin: &'a Origin,
    agent: ureq::Agent,
    mirror: usize,
    /// Why each place will never have it.
    refusals: Vec<Option<String>>,
    /// One byte is enough.
    is_look: bool,
    /// What the server of each place calls its content.
    tags: Vec<Option<String>>,
    body: Option<Body>,
    position: u64,
    total: Option<u64>,
    /// Its end can be told from that of a connection.
    has_end: bool,
    attempts: u32,
    /// Of those the last ones that brought nothing.
    in_vain: u32,
    window: (Instant, u64),
    /// It is read at many places, and not from a place on.
    is_at_places: bool,
    /// For as long as it is there, whoever is waited for can be cut off.
    _watched: Option<Sender<()>>,
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

/// Why a connection is none.
enum Unopened {
    Never(String),
    ThisTime(String),
}

impl<'a> Fetch<'a> {
    pub(crate) fn begin(origin: &'a Origin, position: u64) -> Result<Self, SourceError> {
        let mut fetch = Self::new(origin, position)?;
        fetch.connect()?;
        Ok(fetch)
    }

    fn new(origin: &'a Origin, position: u64) -> Result<Self, SourceError> {
        if origin.urls.is_empty() {
            return Err(SourceError::Nowhere);
        }
        let agent = agent(origin);
        Ok(Self {
            origin,
            _watched: watched(origin, &agent),
            agent,
            mirror: 0,
            refusals: vec![None; origin.urls.len()],
            is_look: false,
            tags: vec![None; origin.urls.len()],
            body: None,
            position,
            total: None,
            has_end: true,
            attempts: 0,
            in_vain: 0,
            window: (Instant::now(), 0),
            is_at_places: false,
        })
    }

    /// From now on it is read at many places: a server has to know how that is asked for, and has to
    /// say how much there is.
    pub(super) fn needs_places(&mut self) -> Result<u64, SourceError> {
        self.is_at_places = true;
        let reason = "it does not say how long it is, and it has to be read at many places";
        let refused = || SourceError::Refused { url: self.url(), reason: reason.to_owned() };
        self.total.ok_or_else(refused)
    }

    /// The next byte that is read is this one.
    pub(super) fn seek(&mut self, position: u64) {
        if self.position != position {
            (self.position, self.body) = (position, None);
        }
    }

    /// Whether its end can be told from that of a connection.
    pub(super) fn has_end(&self) -> bool {
        self.has_end
    }

    /// Of the next byte that is read.
    pub(crate) fn position(&self) -> u64 {
        self.position
    }

    /// Some bytes; none at the end.
    pub(crate) fn read(&mut self, into: &mut [u8]) -> Result<usize, SourceError> {
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
                // A connection that was cut off may look as if it had come to its end.
                Ok(0) | Err(_) if self.origin.cancel.is_cancelled() => {
                    return Err(SourceError::Stopped);
                }
                Ok(0) if self.total.is_none_or(|total| self.position == total) => return Ok(0),
                Ok(0) => self.broken(&self.ended_early())?,
                Ok(length) => {
                    self.position += length as u64;
                    self.in_vain = 0;
                    if self.is_dripping(length as u64) {
                        self.broken("too few bytes come")?;
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

    fn url(&self) -> String {
        shown(&self.origin.urls[self.mirror])
    }

    fn ended_early(&self) -> String {
        let total = self.total.unwrap_or_default();
        format!("it ended after {} of {total} bytes", self.position)
    }

    /// Whether in the last window too little came.
    fn is_dripping(&mut self, length: u64) -> bool {
        let Patience { window, least, .. } = self.origin.patience;
        self.window.1 += length;
        if self.window.0.elapsed() < window {
            return false;
        }
        let came = self.window.1;
        self.window = (Instant::now(), 0);
        came < least && !matches!(self.body, Some(Body::File(_)))
    }

    /// The connection is of no more use; the next one may be to another place.
    fn broken(&mut self, reason: &str) -> Result<(), SourceError> {
        let Patience { attempts, pause, .. } = self.origin.patience;
        self.body = None;
        self.attempts += 1;
        if self.attempts >= attempts {
            let (url, at) = (self.url(), self.position);
            return Err(SourceError::GivenUp { url, at, reason: reason.to_owned(), attempts });
        }
        let factor = 1_u32.checked_shl(self.in_vain).unwrap_or(LONGEST_PAUSE).min(LONGEST_PAUSE);
        self.in_vain += 1;
        self.wait(pause * factor)?;
        self.next_mirror();
        Ok(())
    }

    fn wait(&self, pause: Duration) -> Result<(), SourceError> {
        let until = Instant::now() + pause;
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
        }
    }

    fn connect(&mut self) -> Result<(), SourceError> {
        while self.body.is_none() {
            if self.origin.cancel.is_cancelled() {
                return Err(SourceError::Stopped);
            }
            match self.open() {
                // Whatever it says: it was cut off.
                Err(_) if self.origin.cancel.is_cancelled() => return Err(SourceError::Stopped),
                Ok(body) => {
                    self.body = Some(body);
                    self.window = (Instant::now(), 0);
                }
                Err(Unopened::ThisTime(reason)) => self.broken(&reason)?,
                Err(Unopened::Never(reason)) => {
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

    fn open(&mut self) -> Result<Body, Unopened> {
        let url = &self.origin.urls[self.mirror];
        if let Some(path) = url.strip_prefix("file://") {
            let never = |error: io::Error| Unopened::Never(error.to_string());
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
        if self.is_look {
            request = request.header(header::RANGE, "bytes=0-0");
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
            | ureq::Error::Rustls(_) => Unopened::Never(error.to_string()),
            // Who is not trusted now is not trusted later.
            ureq::Error::Io(error) if is_of_tls(&error) => Unopened::Never(error.to_string()),
            error => Unopened::ThisTime(error.to_string()),
        })?;
        self.accept(answer)
    }

    fn accept(&mut self, answer: Response<ureq::Body>) -> Result<Body, Unopened> {
        let status = answer.status();
        let value = |name: header::HeaderName| {
            answer.headers().get(name).and_then(|value| value.to_str().ok()).map(str::to_owned)
        };
        // A weak one does not say that bytes are the same.
        let tag = value(header::ETAG).filter(|tag| !tag.starts_with("W/"));
        let length = value(header::CONTENT_LENGTH).and_then(|length| length.parse::<u64>().ok());
        let range = value(header::CONTENT_RANGE);
        let is_in_pieces = value(header::TRANSFER_ENCODING).is_some();
        let was = self.tags[self.mirror].as_ref();
        if status.is_success() && was.zip(tag.as_ref()).is_some_and(|(was, is)| was != is) {
            return Err(Unopened::Never("it has changed since it was begun".to_owned()));
        }
        let skip = match status {
            StatusCode::OK if self.is_at_places && self.position > 0 => {
                let reason = "it knows no ranges, and it has to be read at many places";
                return Err(Unopened::Never(reason.to_owned()));
            }
            StatusCode::OK => {
                self.has_total(length)?;
                self.position
            }
            StatusCode::PARTIAL_CONTENT => {
                let (start, total) = range.as_deref().and_then(content_range).ok_or_else(|| {
                    Unopened::Never("it does not say which part it answers with".to_owned())
                })?;
                if start != self.position {
                    let wanted = self.position;
                    let reason = format!("it answers from byte {start}, not {wanted}");
                    return Err(Unopened::Never(reason));
                }
                self.has_total(total)?;
                0
            }
            status if status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS => {
                return Err(Unopened::ThisTime(format!("it answers {}", status.as_u16())));
            }
            status => return Err(Unopened::Never(format!("it answers {}", status.as_u16()))),
        };
        if tag.is_some() {
            self.tags[self.mirror] = tag;
        }
        self.has_end = is_in_pieces || self.total.is_some();
        let mut body = answer.into_body().into_reader();
        // A server that does not know ranges begins from the start; what we have is passed over.
        self.pass_over(&mut body, skip).map_err(Unopened::ThisTime)?;
        Ok(Body::Http(Box::new(body)))
    }

    /// With the patience that there is for what is new.
    fn pass_over(&mut self, body: &mut impl Read, skip: u64) -> Result<(), String> {
        let (mut buffer, mut left) = (vec![0; 64 * 1024], skip);
        self.window = (Instant::now(), 0);
        while left > 0 {
            let most = usize::try_from(left).map_or(buffer.len(), |left| left.min(buffer.len()));
            match body.read(&mut buffer[..most]) {
                Ok(0) => return Err(format!("it ended after {} bytes", skip - left)),
                Ok(length) if self.is_dripping(length as u64) => {
                    return Err("too few bytes come".to_owned());
                }
                Ok(length) => left -= length as u64,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.to_string()),
            }
        }
        Ok(())
    }

    /// All places must have the same.
    fn has_total(&mut self, is: Option<u64>) -> Result<(), Unopened> {
        match (self.total, is) {
            (Some(was), Some(is)) if was != is => {
                Err(Unopened::Never(format!("it has {is} bytes, and had {was} before")))
            }
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

/// `bytes 100-199/1000`: where it begins, and how much there is in all.
fn content_range(value: &str) -> Option<(u64, Option<u64>)> {
    let (range, total) = value.strip_prefix("bytes ")?.split_once('/')?;
    let (start, _) = range.split_once('-')?;
    Some((start.trim().parse().ok()?, total.trim().parse().ok()))
}

/// What comes behind a question mark may be a secret.
pub(crate) fn shown(url: &str) -> String {
    url.split(['?', '#']).next().unwrap_or_default().to_owned()
}

fn agent(origin: &Origin) -> ureq::Agent {
    let Patience { connect, window, .. } = origin.patience;
    let config = ureq::Agent::config_builder()
        .http_status_as_error(false)
        .proxy(None)
        .timeout_connect(Some(connect))
        .timeout_recv_response(Some(window))
        .timeout_per_read(Some(window))
        .tls_config(tls(&origin.trust));
    ureq::Agent::new_with_config(config.build())
}

/// Somebody who cuts off all connections of an agent when nobody wants them any more: who waits for a
/// server cannot look for that. Ends with what is returned.
fn watched(origin: &Origin, agent: &ureq::Agent) -> Option<Sender<()>> {
    let is_remote = origin.urls.iter().any(|url| !url.starts_with("file://"));
    let (sender, ended) = channel();
    let (cancel, agent) = (origin.cancel.clone(), agent.clone());
    let watch = move || {
        while ended.recv_timeout(NOTICE) == Err(RecvTimeoutError::Timeout) {
            if cancel.is_cancelled() {
                return agent.shutdown();
            }
        }
    };
    // Without it all is as it shall be, but for how soon it ends.
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
