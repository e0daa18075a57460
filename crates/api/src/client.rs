//! The typed client of hoist's API, for the command line, the agent and tests.
//!
//! Every error says whether the call was a write: a read may be repeated after a lost answer, but
//! the outcome of a write is unknown.

mod admin;
mod artifact;
mod boot;
mod bootscript;
mod bss;
mod cluster;
mod deploy;
mod error;
mod inventory;
mod lines;
mod metadata;
mod provision;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use reqwest::header::{
    ACCEPT, ACCEPT_ENCODING, AUTHORIZATION, CONTENT_TYPE, ETAG, HeaderMap, HeaderValue, IF_MATCH,
};
use reqwest::{Method, RequestBuilder, Response};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use secrecy::{ExposeSecret, SecretString};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::event::Health;
use crate::problem::{self, Problem};

pub use admin::AuditQuery;
pub use deploy::InstanceQuery;
pub use error::ClientError;
pub use inventory::{ApplyQuery, Collection, NodeKey, NodeQuery};
pub use lines::{Chunks, Events, Lines, TypedLines};
pub use reqwest::{Body, Url};

/// The media type of one JSON value per line.
pub const NDJSON: &str = "application/x-ndjson";

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// For calls whose answer does not grow with the site. Bulk calls and streams have no limit of
/// their own: only TCP's keepalive ends them when the other side is gone.
const ORDINARY_TIMEOUT: Duration = Duration::from_mins(1);
const KEEPALIVE: Duration = Duration::from_secs(30);
/// Largest answer that is read as a whole.
const MAX_ANSWER: usize = 256 * 1024 * 1024;

/// Credentials and authorities for a server.
#[derive(Debug, Default)]
pub struct Access {
    /// Sent with every request.
    pub token: Option<SecretString>,
    /// Certificates in PEM that are trusted, and no others: a site has its own authority.
    pub authorities: Option<Vec<u8>>,
}

/// One server, and who we are to it.
#[derive(Clone)]
pub struct Client {
    http: reqwest::Client,
    base: Url,
    token: Option<SecretString>,
}

/// A call that was not sent yet.
struct Call<'a> {
    client: &'a Client,
    request: RequestBuilder,
    write: bool,
}

impl Client {
    pub fn new(base: Url, access: Access) -> Result<Self, ClientError> {
        if !matches!(base.scheme(), "http" | "https") || base.cannot_be_a_base() {
            return Err(ClientError::Address { url: base });
        }
        let http = reqwest::Client::builder()
            .user_agent(concat!("hoist/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(CONNECT_TIMEOUT)
            .tcp_keepalive(KEEPALIVE)
            // The token must not be sent to a server that the configured one redirects to.
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy()
            .tls_backend_preconfigured(tls(access.authorities.as_deref())?)
            .build()
            .map_err(ClientError::Setup)?;
        Ok(Self { http, base, token: access.token })
    }

    pub fn base(&self) -> &Url {
        &self.base
    }

    fn get(&self, path: &[&str]) -> Call<'_> {
        self.call(Method::GET, path)
    }

    fn call(&self, method: Method, path: &[&str]) -> Call<'_> {
        let mut url = self.base.clone();
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().extend(path);
        }
        let write = method != Method::GET;
        let mut request = self.http.request(method, url);
        if let Some(token) = &self.token {
            request = request.headers(bearer(token));
        }
        Call { client: self, request, write }
    }
}

impl Call<'_> {
    fn query(mut self, name: &str, value: Option<&str>) -> Self {
        if let Some(value) = value {
            self.request = self.request.query(&[(name, value)]);
        }
        self
    }

    fn flag(self, name: &str, on: bool) -> Self {
        self.query(name, on.then_some("1"))
    }

    fn accept_lines(mut self) -> Self {
        self.request = self.request.header(ACCEPT, NDJSON);
        self
    }

    fn header(mut self, name: &'static str, value: Option<&str>) -> Self {
        if let Some(value) = value {
            self.request = self.request.header(name, value);
        }
        self
    }

    /// Only if the object, or the site, still is at this version.
    fn if_match(mut self, tag: Option<&str>) -> Self {
        if let Some(tag) = tag {
            self.request = self.request.header(IF_MATCH, format!("\"{tag}\""));
        }
        self
    }

    fn json(mut self, body: &impl Serialize) -> Self {
        self.request = self.request.json(body);
        self
    }

    fn lines(mut self, body: Body) -> Self {
        self.request = self.request.header(CONTENT_TYPE, NDJSON).body(body);
        self
    }

    fn ordinary(mut self) -> Self {
        self.request = self.request.timeout(ORDINARY_TIMEOUT);
        self
    }

    /// Sends it, and gives whatever is answered.
    async fn answer(self) -> Result<Response, ClientError> {
        let Self { client, request, write } = self;
        request.send().await.map_err(|source| {
            let source = source.without_url();
            if source.is_connect() {
                ClientError::Connect { url: client.base.clone(), source }
            } else {
                ClientError::Lost { write, source }
            }
        })
    }

    /// Sends it, and gives an answer that is a success.
    async fn send(self) -> Result<Response, ClientError> {
        let client = self.client;
        let write = self.write;
        let response = self.answer().await?;
        if response.status().is_success() {
            return Ok(response);
        }
        Err(refusal(response, write, client.base.clone()).await)
    }

    /// The body states the health, with any status code.
    async fn health(self) -> Result<Health, ClientError> {
        let client = self.client;
        let response = self.answer().await?;
        let told = matches!(response.status().as_u16(), 200 | 503)
            && !media_type(&response).starts_with(problem::MEDIA_TYPE);
        if !told {
            return Err(refusal(response, false, client.base.clone()).await);
        }
        let body = whole(response, false).await?;
        serde_json::from_slice(&body).map_err(|source| ClientError::Answer { write: false, source })
    }

    async fn value<T: DeserializeOwned>(self) -> Result<T, ClientError> {
        Ok(self.tagged().await?.0)
    }

    /// The value, and the version it has.
    async fn tagged<T: DeserializeOwned>(self) -> Result<(T, Option<String>), ClientError> {
        let write = self.write;
        let response = self.send().await?;
        let tag = entity_tag(response.headers());
        let body = whole(response, write).await?;
        let value = serde_json::from_slice(&body)
            .map_err(|source| ClientError::Answer { write, source })?;
        Ok((value, tag))
    }

    /// The value, or nothing where the server has no such object.
    async fn optional<T: DeserializeOwned>(self) -> Result<Option<T>, ClientError> {
        match self.value().await {
            Err(ClientError::Problem { problem, .. }) if problem.code == crate::Code::NotFound => {
                Ok(None)
            }
            other => other.map(Some),
        }
    }

    /// Success is all there is to know.
    async fn done(self) -> Result<(), ClientError> {
        self.send().await.map(drop)
    }

    async fn stream(mut self) -> Result<Lines, ClientError> {
        // A line is to arrive when it is written, not when a compressor has enough of them.
        self.request = self.request.header(ACCEPT_ENCODING, "identity");
        Ok(Lines::new(self.send().await?))
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("base", &self.base.as_str()).finish_non_exhaustive()
    }
}

/// A header that does not appear in logs. A token that is not a valid header value is not sent: the
/// server then reports the missing token.
fn bearer(token: &SecretString) -> HeaderMap {
    let mut headers = HeaderMap::new();
    if let Ok(mut value) = HeaderValue::from_str(&format!("Bearer {}", token.expose_secret())) {
        value.set_sensitive(true);
        headers.insert(AUTHORIZATION, value);
    }
    headers
}

fn entity_tag(headers: &HeaderMap) -> Option<String> {
    let tag = headers.get(ETAG)?.to_str().ok()?;
    Some(tag.trim_start_matches("W/").trim_matches('"').to_owned())
}

async fn whole(mut response: Response, write: bool) -> Result<Bytes, ClientError> {
    let lost = |source: reqwest::Error| ClientError::Lost { write, source: source.without_url() };
    let mut body = bytes::BytesMut::new();
    while let Some(chunk) = response.chunk().await.map_err(lost)? {
        if body.len() + chunk.len() > MAX_ANSWER {
            return Err(ClientError::TooLong { limit: MAX_ANSWER });
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body.freeze())
}

/// Converts an unsuccessful answer into an error.
async fn refusal(response: Response, write: bool, url: Url) -> ClientError {
    let status = response.status().as_u16();
    let is_problem = media_type(&response).starts_with(problem::MEDIA_TYPE);
    let body = whole(response, write).await.unwrap_or_default();
    match serde_json::from_slice::<Problem>(&body) {
        Ok(problem) if is_problem => ClientError::Problem { write, problem: Box::new(problem) },
        _ => ClientError::Foreign { write, status, url },
    }
}

fn media_type(response: &Response) -> &str {
    let value = response.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    value.unwrap_or_default()
}

/// TLS that trusts exactly these authorities.
fn tls(authorities: Option<&[u8]>) -> Result<rustls::ClientConfig, ClientError> {
    let mut roots = rustls::RootCertStore::empty();
    if let Some(pem) = authorities {
        for certificate in CertificateDer::pem_slice_iter(pem) {
            let certificate = certificate.map_err(ClientError::Pem)?;
            roots.add(certificate).map_err(ClientError::Authority)?;
        }
        if roots.is_empty() {
            return Err(ClientError::NoAuthority);
        }
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(ClientError::Authority)?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(config)
}

#[cfg(test)]
mod tests;
