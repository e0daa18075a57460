//! The way past the router, for answers that are in memory: a whole site asking for its boot
//! scripts after a power cut is the load that this server is measured by.
//!
//! A route has it in addition to its handler ([`Route::direct`]). What the outer layers do for
//! every answer is done here too, with handles that were looked up once.
//!
//! [`Route::direct`]: crate::route::Route::direct

use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Uri, header};
use hyper::body::Body;
use metrics::{Counter, Histogram};
use tokio::time::Instant;

use crate::observe::{self, REQUEST_ID};
use crate::path;
use crate::peer::{GatewayPrefix, Peer, RequestId};

/// What is known of a request before its body: a GET, of the path of its route.
#[derive(Debug, Clone, Copy)]
pub struct Head<'a> {
    pub uri: &'a Uri,
    pub headers: &'a HeaderMap,
    pub peer: &'a Peer,
    pub prefix: GatewayPrefix,
}

/// Answers now or not at all.
pub(crate) type Answering = dyn Fn(&Head<'_>) -> Option<Response<Bytes>> + Send + Sync;

/// One route's way past the router.
pub(crate) struct Direct {
    path: &'static str,
    answer: Arc<Answering>,
    served: Counter,
    seconds: Histogram,
}

impl Direct {
    pub(crate) fn new(path: &'static str, answer: Arc<Answering>) -> Self {
        Self {
            path,
            answer,
            served: observe::requests("GET", path, StatusCode::OK),
            seconds: observe::seconds(path),
        }
    }

    fn answer(&self, head: &Head<'_>) -> Option<Response<Bytes>> {
        let started = Instant::now();
        // One that panics is asked again by the router, which tells the client and the log.
        let answer = std::panic::catch_unwind(AssertUnwindSafe(|| (self.answer)(head)));
        let mut response = answer.ok().flatten()?;
        let headers = response.headers_mut();
        headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        // None is made here: there are no log lines that it could lead to.
        if let Some(id) = head.headers.get(&REQUEST_ID).and_then(RequestId::accept) {
            headers.insert(REQUEST_ID, id.into_header());
        }
        match response.status() {
            StatusCode::OK => self.served.increment(1),
            other => observe::requests("GET", self.path, other).increment(1),
        }
        self.seconds.record(started.elapsed().as_secs_f64());
        Some(response)
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
    let (prefix, path) = path::routed(request.uri().path());
    let way = ways.iter().find(|way| way.path == path)?;
    way.answer(&Head { uri: request.uri(), headers: request.headers(), peer, prefix })
}

impl fmt::Debug for Direct {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GET {}", self.path)
    }
}
