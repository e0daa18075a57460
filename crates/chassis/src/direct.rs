//! Answers from memory that bypass the router. A whole site that asks for its boot scripts after a
//! power cut is the load that this server is measured by.
//!
//! A route has a direct handler in addition to its normal one ([`Route::direct`]). Metrics and
//! headers of the outer layers are set here too, with handles that were looked up once.
//!
//! [`Route::direct`]: crate::route::Route::direct

use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, header};
use hyper::body::Body;
use metrics::{Counter, Histogram};

use crate::observe::{self, REQUEST_ID};
use crate::path;
use crate::peer::{GatewayPrefix, Peer, RequestId};

/// The head of a GET request for the path of a route.
#[derive(Debug, Clone, Copy)]
pub struct Head<'a> {
    /// Without the prefix of a gateway and a slash at the end. Nothing in it has to be decoded where
    /// the route has parameters.
    pub path: &'a str,
    /// Empty without one.
    pub query: &'a str,
    pub fields: Fields<'a>,
    pub peer: &'a Peer,
    pub prefix: GatewayPrefix,
}

/// The header fields of a request.
#[derive(Debug, Clone, Copy)]
pub enum Fields<'a> {
    Map(&'a HeaderMap),
    /// As they stand in the request.
    Lines(&'a [httparse::Header<'a>]),
}

/// An answer from memory, with status 200.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadyAnswer {
    pub content_type: &'static str,
    pub body: Bytes,
    /// The value of the `ETag` header. A client with an entity tag keeps the answer and revalidates
    /// it.
    pub etag: Option<Arc<str>>,
}

/// `Cache-Control` of answers with an `ETag`: only the client may store them, and it must revalidate.
pub const KEPT: &str = "private, no-cache";

/// Answers now or not at all.
pub(crate) type DirectHandler = dyn Fn(&Head<'_>) -> Option<ReadyAnswer> + Send + Sync;

/// The ways of plain connections past hyper.
#[derive(Debug, Default)]
pub(crate) struct Ways {
    pub(crate) direct: Vec<Direct>,
    /// The paths of routes that send files.
    pub(crate) files: Vec<&'static str>,
}

impl Ways {
    pub(crate) fn is_empty(&self) -> bool {
        self.direct.is_empty() && self.files.is_empty()
    }

    /// Whether the router may answer a path with a file.
    pub(crate) fn sends_files(&self, path: &str) -> bool {
        let (_, path) = path::routed(path);
        self.files.iter().any(|template| fits(template, path))
    }
}

/// A route that is answered without the router.
pub(crate) struct Direct {
    path: &'static str,
    /// The path has parameters in it.
    pattern: bool,
    answer: Arc<DirectHandler>,
    served: Counter,
    seconds: Histogram,
}

impl<'a> Fields<'a> {
    /// The first of that name, if it is text.
    pub fn get(self, name: &HeaderName) -> Option<&'a str> {
        match self {
            Self::Map(map) => map.get(name).and_then(|value| value.to_str().ok()),
            Self::Lines(lines) => lines.iter().find(|line| is_named(line, name)).and_then(text),
        }
    }

    /// All fields of that name; a field that is not text is empty.
    pub fn all(self, name: &HeaderName) -> Vec<&'a str> {
        match self {
            Self::Map(map) => {
                map.get_all(name).iter().map(|value| value.to_str().unwrap_or_default()).collect()
            }
            Self::Lines(lines) => {
                let named = lines.iter().filter(|line| is_named(line, name));
                named.map(|line| text(line).unwrap_or_default()).collect()
            }
        }
    }
}

fn is_named(line: &httparse::Header<'_>, name: &HeaderName) -> bool {
    line.name.eq_ignore_ascii_case(name.as_str())
}

/// As [`HeaderValue::to_str`] sees it.
fn text<'a>(line: &httparse::Header<'a>) -> Option<&'a str> {
    let visible = |byte: &u8| (0x20..0x7f).contains(byte) || *byte == b'\t';
    std::str::from_utf8(line.value).ok().filter(|_| line.value.iter().all(visible))
}

impl<'a> From<&'a HeaderMap> for Fields<'a> {
    fn from(map: &'a HeaderMap) -> Self {
        Self::Map(map)
    }
}

impl Direct {
    pub(crate) fn new(path: &'static str, answer: Arc<DirectHandler>) -> Self {
        Self {
            path,
            pattern: path.contains('{'),
            answer,
            served: observe::requests("GET", path, StatusCode::OK),
            seconds: observe::seconds(path),
        }
    }

    /// Those without parameters first: that is the order in which they are tried.
    pub(crate) fn sort(ways: &mut [Self]) {
        ways.sort_by_key(|way| way.pattern);
    }

    /// The direct handler for a path, the routed path, and the prefix of the gateway.
    pub(crate) fn find<'w, 'p>(
        ways: &'w [Self],
        path: &'p str,
    ) -> Option<(&'w Self, &'p str, GatewayPrefix)> {
        let (prefix, path) = path::routed(path);
        Some((ways.iter().find(|way| way.is_of(path))?, path, prefix))
    }

    fn is_of(&self, path: &str) -> bool {
        if self.pattern { fits(self.path, path) } else { self.path == path }
    }

    pub(crate) fn answer(&self, head: &Head<'_>, asked: Instant) -> Option<ReadyAnswer> {
        // After a panic the router handles the request again; it reports to client and log.
        let answer = std::panic::catch_unwind(AssertUnwindSafe(|| (self.answer)(head)));
        let ready = answer.ok().flatten()?;
        self.served.increment(1);
        self.seconds.record(asked.elapsed().as_secs_f64());
        Some(ready)
    }
}

/// Whether the path is one of the template's: a parameter is one segment, not an empty one. One that
/// has to be decoded is left to the router.
fn fits(template: &str, path: &str) -> bool {
    let mut given = path.split('/');
    let each = template.split('/').all(|part| {
        let is_one = |segment: &str| !segment.is_empty() && !segment.contains('%');
        let parameter = part.starts_with('{');
        given.next().is_some_and(|s| if parameter { is_one(s) } else { s == part })
    });
    each && given.next().is_none()
}

impl Head<'_> {
    /// The request id that the answer repeats. None is made here, since no log line would refer to
    /// it.
    pub(crate) fn request_id(&self) -> Option<&str> {
        self.fields.get(&REQUEST_ID).filter(|id| RequestId::is_plain(id.as_bytes()))
    }
}

/// The answer to `request`, if there is a way past the router for it.
pub(crate) fn answer<B: Body>(
    ways: &[Direct],
    request: &Request<B>,
    peer: &Peer,
) -> Option<Response<Bytes>> {
    if ways.is_empty() || request.method() != Method::GET || !request.body().is_end_stream() {
        return None;
    }
    let (way, path, prefix) = Direct::find(ways, request.uri().path())?;
    let query = request.uri().query().unwrap_or_default();
    let head = Head { path, query, fields: request.headers().into(), peer, prefix };
    let ReadyAnswer { content_type, body, etag } = way.answer(&head, Instant::now())?;
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    if let Some(etag) = etag.and_then(|etag| HeaderValue::from_str(&etag).ok()) {
        headers.insert(header::ETAG, etag);
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static(KEPT));
    }
    if let Some(id) = head.request_id().and_then(|id| HeaderValue::from_str(id).ok()) {
        headers.insert(REQUEST_ID, id);
    }
    Some(response)
}

impl fmt::Debug for Direct {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GET {}", self.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_fits_its_template_segment_by_segment() {
        let template = "/meta/v1/seed/{node}/{token}/{doc}";
        assert!(fits(template, "/meta/v1/seed/a/b/meta-data"));
        for other in [
            "/meta/v1/seed/a/b",
            "/meta/v1/seed/a/b/c/d",
            "/meta/v1/seed//b/c",
            "/meta/v1/seed/a/b/",
            "/meta/v1/seed/a/%2e%2e/c",
            "/meta/v2/seed/a/b/c",
            "meta/v1/seed/a/b/c",
            "",
        ] {
            assert!(!fits(template, other), "{other}");
        }
    }
}
