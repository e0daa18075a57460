//! Compression of answers, with a bound on the memory that unread ones hold.
//!
//! An encoder costs a client nothing and this server up to a megabyte for as long as its answer is
//! not read. Therefore no encoder outlives the moment in which it is used, but for two cases that
//! others bound: answers to holders of a token, and lists of a whole site, of which a few are made
//! at a time. Constants are compressed once. Live streams never are: an encoder would hold lines
//! back until it has a block full of them.

use std::io::Write as _;
use std::sync::OnceLock;

use axum::body::Body;
use axum::extract::Request;
use axum::middleware::Next;
use axum::response::Response;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, StatusCode, header};
use http_body_util::BodyExt;
use hyper::body::Body as HttpBody;
use tokio::sync::Semaphore;
use tower_http::compression::CompressionLayer;
use tower_http::compression::predicate::{NotForContentType, Predicate};

use crate::principal::AnswerToToken;
use crate::route::Live;

/// Shorter answers gain nothing that a client would notice.
const MIN: u64 = 1024;

/// Larger answers are compressed on a thread that may take its time.
const LARGE: u64 = 64 * 1024;

/// Large answers that are compressed at once; further ones are sent as they are.
const LARGE_AT_ONCE: usize = 4;

static LARGE_TURNS: Semaphore = Semaphore::const_new(LARGE_AT_ONCE);

/// A content coding that this server has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Coding {
    Zstd,
    Gzip,
}

impl Coding {
    /// The one that the client wants most; the better one when it does not care.
    fn of(headers: &HeaderMap) -> Option<Self> {
        let mut best: Option<(f32, Self)> = None;
        let lines = headers.get_all(header::ACCEPT_ENCODING).iter();
        for word in lines.filter_map(|line| line.to_str().ok()).flat_map(|line| line.split(',')) {
            let (name, weight) = word.split_once(';').unwrap_or((word, ""));
            let coding = match name.trim() {
                name if name.eq_ignore_ascii_case("zstd") => Self::Zstd,
                name if name.eq_ignore_ascii_case("gzip") => Self::Gzip,
                _ => continue,
            };
            let weight = match weight.trim().strip_prefix("q=") {
                None => 1.0,
                Some(weight) => weight.trim().parse().unwrap_or(0.0),
            };
            let better = best
                .is_none_or(|(most, held)| weight > most || (weight >= most && held == Self::Gzip));
            if weight > 0.0 && better {
                best = Some((weight, coding));
            }
        }
        best.map(|(_, coding)| coding)
    }

    fn name(self) -> HeaderValue {
        HeaderValue::from_static(match self {
            Self::Zstd => "zstd",
            Self::Gzip => "gzip",
        })
    }

    fn compress(self, bytes: &[u8]) -> std::io::Result<Bytes> {
        match self {
            Self::Zstd => zstd::bulk::compress(bytes, zstd::DEFAULT_COMPRESSION_LEVEL),
            Self::Gzip => {
                let level = flate2::Compression::default();
                let mut encoder = flate2::write::GzEncoder::new(Vec::new(), level);
                encoder.write_all(bytes).and_then(|()| encoder.finish())
            }
        }
        .map(Bytes::from)
    }
}

/// An answer that stays the same for all callers while the server runs.
#[derive(Debug, Default)]
pub(crate) struct Constant {
    plain: Bytes,
    zstd: OnceLock<Bytes>,
    gzip: OnceLock<Bytes>,
}

impl Constant {
    pub(crate) fn new(plain: impl Into<Bytes>) -> Self {
        Self { plain: plain.into(), ..Self::default() }
    }

    pub(crate) fn answer(&self, asked: &HeaderMap, content_type: &'static str) -> Response {
        let coding = Coding::of(asked);
        let kept = coding.map(|coding| match coding {
            Coding::Zstd => (coding, &self.zstd),
            Coding::Gzip => (coding, &self.gzip),
        });
        let compress = |coding: Coding| coding.compress(&self.plain).unwrap_or_default();
        let packed = kept.map(|(coding, kept)| (coding, kept.get_or_init(|| compress(coding))));
        // Empty where it could not be compressed.
        let mut response = match packed.filter(|(_, bytes)| !bytes.is_empty()) {
            None => Response::new(Body::from(self.plain.clone())),
            Some((coding, bytes)) => {
                let mut response = Response::new(Body::from(bytes.clone()));
                response.headers_mut().insert(header::CONTENT_ENCODING, coding.name());
                response
            }
        };
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
        headers.insert(header::VARY, HeaderValue::from_static("accept-encoding"));
        response
    }
}

/// The layer that compresses answers which are whole in memory, before the first byte is sent.
pub(crate) async fn whole(request: Request, next: Next) -> Response {
    let coding = Coding::of(request.headers());
    let response = next.run(request).await;
    match coding.filter(|_| is_worth_it(&response)) {
        None => response,
        Some(coding) => compressed(response, coding).await,
    }
}

fn is_worth_it(response: &Response) -> bool {
    let headers = response.headers();
    let done = headers.contains_key(header::CONTENT_ENCODING)
        || headers.contains_key(header::CONTENT_RANGE)
        || response.status() == StatusCode::PARTIAL_CONTENT;
    let size = HttpBody::size_hint(response.body()).exact();
    !done && size.is_some_and(|size| size >= MIN) && is_compressible(response)
}

fn is_compressible<B>(response: &Response<B>) -> bool
where
    B: HttpBody,
{
    response.extensions().get::<Live>().is_none()
        && NotForContentType::IMAGES.should_compress(response)
        && NotForContentType::SSE.should_compress(response)
}

async fn compressed(response: Response, coding: Coding) -> Response {
    let (mut parts, body) = response.into_parts();
    let large = HttpBody::size_hint(&body).lower() > LARGE;
    let Ok(whole) = body.collect().await.map(http_body_util::Collected::to_bytes) else {
        return Response::from_parts(parts, Body::empty());
    };
    let packed = if large {
        match LARGE_TURNS.try_acquire() {
            Err(_) => None,
            Ok(turn) => {
                let plain = whole.clone();
                let work = tokio::task::spawn_blocking(move || {
                    let packed = coding.compress(&plain);
                    drop(turn);
                    packed.ok()
                });
                work.await.ok().flatten()
            }
        }
    } else {
        coding.compress(&whole).ok()
    };
    parts.headers.append(header::VARY, HeaderValue::from_static("accept-encoding"));
    let body = match packed {
        None => whole,
        Some(packed) => {
            parts.headers.remove(header::CONTENT_LENGTH);
            parts.headers.remove(header::ACCEPT_RANGES);
            parts.headers.insert(header::CONTENT_ENCODING, coding.name());
            packed
        }
    };
    Response::from_parts(parts, Body::from(body))
}

/// Answers that are made while they are read. Their encoders live as long as they do.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StreamedAnswers {
    authenticated_only: bool,
}

impl Predicate for StreamedAnswers {
    fn should_compress<B>(&self, response: &Response<B>) -> bool
    where
        B: HttpBody,
    {
        let is_known = || response.extensions().get::<AnswerToToken>().is_some();
        response.body().size_hint().exact().is_none()
            && is_compressible(response)
            && (!self.authenticated_only || is_known())
    }
}

/// For holders of a token: every coding.
pub(crate) fn for_token_holders() -> CompressionLayer<StreamedAnswers> {
    CompressionLayer::new().compress_when(StreamedAnswers { authenticated_only: true })
}

/// For all callers: no coding with a large window.
pub(crate) fn for_everybody() -> CompressionLayer<StreamedAnswers> {
    let layer = CompressionLayer::new().no_zstd();
    layer.compress_when(StreamedAnswers { authenticated_only: false })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn coding_is_the_one_that_the_client_wants_most() {
        for (asked, expected) in [
            ("gzip, zstd, br", Some(Coding::Zstd)),
            ("zstd, gzip", Some(Coding::Zstd)),
            ("gzip;q=1.0, zstd;q=0.5", Some(Coding::Gzip)),
            ("gzip;q=0.2, zstd;q=0.5", Some(Coding::Zstd)),
            ("zstd;q=0, GZIP", Some(Coding::Gzip)),
            ("zstd;q=kettle, gzip;q=0.000", None),
            ("br, deflate", None),
            ("", None),
        ] {
            let headers = HeaderMap::from_iter([(
                header::ACCEPT_ENCODING,
                HeaderValue::from_str(asked).unwrap(),
            )]);
            assert_eq!(Coding::of(&headers), expected, "{asked}");
        }
        assert_eq!(Coding::of(&HeaderMap::new()), None);
    }

    #[test]
    fn constant_is_compressed_once_for_each_coding() {
        let constant = Constant::new("kettle ".repeat(1000));
        for coding in ["gzip", "zstd"] {
            let asked =
                HeaderMap::from_iter([(header::ACCEPT_ENCODING, HeaderValue::from_static(coding))]);
            let bytes = |response: Response| {
                assert_eq!(response.headers()["content-encoding"], coding);
                let mut body = std::pin::pin!(response.into_body().collect());
                let mut context = std::task::Context::from_waker(std::task::Waker::noop());
                match body.as_mut().poll(&mut context) {
                    std::task::Poll::Ready(Ok(body)) => body.to_bytes(),
                    other => panic!("{other:?}"),
                }
            };
            let first = bytes(constant.answer(&asked, "text/plain"));
            let second = bytes(constant.answer(&asked, "text/plain"));
            assert!(first.len() < 200);
            assert_eq!(first.as_ptr(), second.as_ptr(), "the same bytes, not a copy");
        }
        let plain = constant.answer(&HeaderMap::new(), "text/plain");
        assert!(plain.headers().get("content-encoding").is_none());
    }
}
