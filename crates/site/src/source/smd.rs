//! Nodes from SMD, `OpenCHAMI`'s inventory.
//!
//! SMD has no revisions, no `ETag`s and no order, so every cycle fetches whole collections, and a
//! hash over their sorted content tells whether anything changed. The lists are one answer: if
//! one of them fails, there is none.

mod join;
pub mod wire;

use std::path::PathBuf;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::StreamExt;
use hoist_model::Name;
use parking_lot::Mutex;
use reqwest::header::HeaderValue;
use reqwest::{StatusCode, Url};
use rustls_pki_types::CertificateDer;
use secrecy::{ExposeSecret, SecretString};
use serde::Serialize;
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};

pub(crate) use join::key;
pub use join::{FIELDS, JoinOptions, join};

use super::{FetchOutcome, ImportedSet, InventorySource, SourceError};
use wire::{Components, EthernetInterface, Group, Membership};

/// A token is a line, not a file of any size.
const MAX_TOKEN_BYTES: usize = 64 * 1024;

/// How to talk to SMD.
#[derive(Debug, Clone)]
pub struct SmdOptions {
    /// A file with a bearer token, read anew for every fetch: tokens expire and are replaced.
    pub token_file: Option<PathBuf>,
    /// Trust these authorities and no others. Without any, those of the machine are trusted.
    pub authorities: Vec<CertificateDer<'static>>,
    pub connect_timeout: Duration,
    /// Longest silence in the middle of an answer.
    pub read_timeout: Duration,
    /// Longest time for the complete answer, second tries included.
    pub overall_timeout: Duration,
    /// How long to wait before a second try.
    pub retry_pause: Duration,
    /// Largest collection. A million nodes with two interfaces have 450 MB of them.
    pub max_body_bytes: usize,
    pub join: JoinOptions,
}

impl Default for SmdOptions {
    fn default() -> Self {
        Self {
            token_file: None,
            authorities: Vec::new(),
            connect_timeout: Duration::from_secs(5),
            read_timeout: Duration::from_secs(30),
            overall_timeout: Duration::from_mins(2),
            retry_pause: Duration::from_millis(500),
            max_body_bytes: 1 << 30,
            join: JoinOptions::default(),
        }
    }
}

/// The source behind `smd+http://` and `smd+https://`.
#[derive(Debug)]
pub struct SmdSource {
    name: Name,
    base: Url,
    client: reqwest::Client,
    options: SmdOptions,
    /// Of the last complete answer.
    last: Mutex<Option<Digests>>,
}

/// The three lists and the groups, each hashed after sorting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Digests([[u8; 32]; 4]);

impl SmdSource {
    /// `base` is the root of SMD's API, as [`Location`](super::Location) gives it. Connects to
    /// nothing yet.
    pub fn new(name: Name, base: Url, options: SmdOptions) -> Result<Self, SourceError> {
        let client = client(&base, &options)
            .map_err(|source| SourceError::Setup { what: base.to_string(), source })?;
        Ok(Self { name, base, client, options, last: Mutex::new(None) })
    }

    async fn fetch_all(&self) -> Result<Raw, SourceError> {
        let token = self.token().await?;
        let token = token.as_ref();
        self.get("service/ready", token).await?;
        // Components first: a node that comes or goes meanwhile then has no interfaces or no
        // membership for one cycle, and is not mistaken for one that lost them.
        let components = self.get("State/Components?type=Node&type=VirtualNode", token).await?;
        let interfaces = self.get("Inventory/EthernetInterfaces", token).await?;
        let memberships = self.get("memberships?type=Node&type=VirtualNode", token).await?;
        let groups = self.get("groups", token).await?;
        Ok(Raw { base: self.base.clone(), components, interfaces, memberships, groups })
    }

    async fn token(&self) -> Result<Option<SecretString>, SourceError> {
        let Some(path) = &self.options.token_file else { return Ok(None) };
        let failed = |source| SourceError::Read { path: path.clone(), source };
        let text = fs_err::tokio::read_to_string(path).await.map_err(failed)?;
        let token = text.trim();
        if token.is_empty() || token.len() > MAX_TOKEN_BYTES {
            let text = "a token is one line of text";
            return Err(failed(std::io::Error::new(std::io::ErrorKind::InvalidData, text)));
        }
        Ok(Some(token.into()))
    }

    /// One answer, tried twice: SMD is known to stumble in a boot storm.
    async fn get(&self, path: &str, token: Option<&SecretString>) -> Result<Vec<u8>, SourceError> {
        match self.get_once(path, token).await {
            Err(error) if worth_another_try(&error) => {
                tracing::debug!(path, error = %error, "asking SMD again");
                tokio::time::sleep(self.options.retry_pause).await;
                self.get_once(path, token).await
            }
            answer => answer,
        }
    }

    async fn get_once(
        &self,
        path: &str,
        token: Option<&SecretString>,
    ) -> Result<Vec<u8>, SourceError> {
        let (route, query) = path.split_once('?').unwrap_or((path, ""));
        let mut url = self.base.clone();
        url.set_path(&format!("{}/{route}", self.base.path().trim_end_matches('/')));
        url.set_query(Some(query).filter(|query| !query.is_empty()));
        let what = url.to_string();
        let mut request = self.client.get(url);
        if let Some(token) = token {
            let bearer = format!("Bearer {}", token.expose_secret());
            let mut bearer = HeaderValue::from_str(&bearer).map_err(|source| {
                SourceError::Setup { what: what.clone(), source: source.into() }
            })?;
            bearer.set_sensitive(true);
            request = request.header(reqwest::header::AUTHORIZATION, bearer);
        }
        let response = request.send().await.map_err(|error| self.transport(&what, error))?;
        match response.status() {
            StatusCode::OK => {}
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                return Err(SourceError::Refused { what, status: response.status().as_u16() });
            }
            // Readiness may be said without a body.
            StatusCode::NO_CONTENT if route == "service/ready" => {}
            status => return Err(SourceError::Status { what, status: status.as_u16() }),
        }
        self.body(what, response).await
    }

    async fn body(
        &self,
        what: String,
        response: reqwest::Response,
    ) -> Result<Vec<u8>, SourceError> {
        let limit = self.options.max_body_bytes;
        let mut body = Vec::new();
        let mut chunks = response.bytes_stream();
        while let Some(chunk) = chunks.next().await {
            let chunk = chunk.map_err(|error| {
                if error.is_timeout() {
                    return self.transport(&what, error);
                }
                SourceError::Partial { what: what.clone(), source: error.without_url().into() }
            })?;
            if body.len() + chunk.len() > limit {
                return Err(SourceError::TooLarge { what, limit });
            }
            body.extend_from_slice(&chunk);
        }
        Ok(body)
    }

    fn transport(&self, what: &str, error: reqwest::Error) -> SourceError {
        let what = what.to_owned();
        if error.is_timeout() {
            let options = &self.options;
            let after =
                if error.is_connect() { options.connect_timeout } else { options.read_timeout };
            return SourceError::TimedOut { what, after };
        }
        SourceError::Unreachable { what, source: error.without_url().into() }
    }

    fn last(&self) -> parking_lot::MutexGuard<'_, Option<Digests>> {
        self.last.lock()
    }
}

#[async_trait]
impl InventorySource for SmdSource {
    fn name(&self) -> &Name {
        &self.name
    }

    async fn fetch(&self) -> Result<FetchOutcome, SourceError> {
        let after = self.options.overall_timeout;
        let raw = tokio::time::timeout(after, self.fetch_all())
            .await
            .map_err(|_| SourceError::TimedOut { what: self.base.to_string(), after })??;
        let last = *self.last();
        let options = self.options.join.clone();
        // A large site is a second of parsing and joining; that is not for the tasks' threads.
        let work = tokio::task::spawn_blocking(move || raw.read(last, &options));
        let (digests, fetched) = work.await.map_err(|source| {
            let detail = source.to_string();
            SourceError::Malformed { what: self.base.to_string(), detail }
        })??;
        *self.last() = Some(digests);
        Ok(fetched)
    }

    fn forget(&self) {
        *self.last() = None;
    }
}

/// The bodies of one complete answer.
struct Raw {
    base: Url,
    components: Vec<u8>,
    interfaces: Vec<u8>,
    memberships: Vec<u8>,
    groups: Vec<u8>,
}

impl Raw {
    fn read(
        self,
        last: Option<Digests>,
        options: &JoinOptions,
    ) -> Result<(Digests, FetchOutcome), SourceError> {
        let what = |list: &str| format!("{list} of {}", self.base);
        let Components { mut components } = parse(&self.components, what("State/Components"))?;
        let mut interfaces: Vec<EthernetInterface> =
            parse(&self.interfaces, what("Inventory/EthernetInterfaces"))?;
        let mut memberships: Vec<Membership> = parse(&self.memberships, what("memberships"))?;
        let mut groups: Vec<Group> = parse(&self.groups, what("groups"))?;
        // No site has none of these. A database that was just emptied does.
        for (list, empty) in [
            ("State/Components", components.is_empty()),
            ("Inventory/EthernetInterfaces", interfaces.is_empty()),
            ("memberships", memberships.is_empty()),
        ] {
            if empty {
                return Err(SourceError::Empty { what: what(list) });
            }
        }
        for interface in &mut interfaces {
            interface.addresses.sort_unstable();
        }
        for membership in &mut memberships {
            membership.group_labels.sort_unstable();
        }
        let digests = Digests([
            digest(&mut components),
            digest(&mut interfaces),
            digest(&mut memberships),
            digest(&mut groups),
        ]);
        if last == Some(digests) {
            return Ok((digests, FetchOutcome::Unchanged));
        }
        let imported: ImportedSet = join(components, interfaces, memberships, groups, options);
        if imported.nodes.is_empty() {
            return Err(SourceError::Empty { what: format!("the set of nodes of {}", self.base) });
        }
        Ok((digests, FetchOutcome::Complete(imported)))
    }
}

fn parse<T: DeserializeOwned>(body: &[u8], what: String) -> Result<T, SourceError> {
    serde_json::from_slice(body)
        .map_err(|error| SourceError::Malformed { what, detail: error.to_string() })
}

/// SMD's order is random, so a list is sorted before it is hashed.
fn digest<T: Ord + Serialize>(records: &mut [T]) -> [u8; 32] {
    records.sort_unstable();
    let mut hash = Sha256::new();
    for record in records {
        let text = serde_json::to_vec(record).expect("records are text and numbers");
        hash.update(text);
        hash.update(b"\n");
    }
    hash.finalize().into()
}

fn worth_another_try(error: &SourceError) -> bool {
    match error {
        SourceError::Unreachable { .. }
        | SourceError::TimedOut { .. }
        | SourceError::Partial { .. } => true,
        SourceError::Status { status, .. } => *status >= 500 || *status == 429,
        _ => false,
    }
}

type Failure = Box<dyn std::error::Error + Send + Sync>;

fn client(base: &Url, options: &SmdOptions) -> Result<reqwest::Client, Failure> {
    let builder = reqwest::Client::builder()
        .user_agent(concat!("hoist/", env!("CARGO_PKG_VERSION")))
        .connect_timeout(options.connect_timeout)
        .read_timeout(options.read_timeout)
        .gzip(true)
        // A token goes where it was meant to go, and nowhere else.
        .redirect(reqwest::redirect::Policy::none())
        .no_proxy()
        .tls_backend_preconfigured(tls(roots(base, &options.authorities)?)?);
    Ok(builder.build()?)
}

/// The trusted authorities: the given ones, else those of the machine. Plain HTTP meets no
/// certificate, so it works on a machine without authorities.
fn roots(base: &Url, given: &[CertificateDer<'static>]) -> Result<rustls::RootCertStore, Failure> {
    let mut roots = rustls::RootCertStore::empty();
    for authority in given {
        roots.add(authority.clone())?;
    }
    if roots.is_empty() && base.scheme() != "http" {
        // An installed certificate that cannot be parsed must not hide the others.
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        if roots.is_empty() {
            let message = "this machine has no certificate authorities; install them \
                           (ca-certificates), or name the one of SMD in `import.ca`";
            return Err(message.into());
        }
    }
    Ok(roots)
}

/// The provider is named here because the process has no default one.
fn tls(roots: rustls::RootCertStore) -> Result<rustls::ClientConfig, Failure> {
    let provider = std::sync::Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(config)
}
