//! `/artifacts/…`: content as machines fetch it.

use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use hoist_api::Code;
use hoist_api::artifact::SIBLING_HEADER;
use hoist_model::{ArtifactName, Digest};
use http::request::Parts;
use http::{HeaderValue, Method, StatusCode, header};

use super::blobs::blocking;
use super::range::{Reply, decide};
use super::{Artifacts, body, disk_failed};
use hoist_chassis::extract::Path;
use hoist_chassis::failure::Failure;
use hoist_chassis::file_answer::FilePart;
use hoist_chassis::route::Live;

/// The content of a digest never changes; that of a name does.
const FOR_EVER: HeaderValue = HeaderValue::from_static("public, max-age=31536000, immutable");
const ASK_AGAIN: HeaderValue = HeaderValue::from_static("no-cache");
/// For bytes that may turn out to be wrong.
const NOT_KEPT: HeaderValue = HeaderValue::from_static("no-store");

pub(super) async fn by_digest(
    State(artifacts): State<Artifacts>,
    Path(digest): Path<String>,
    asked: Parts,
) -> Result<Response, Failure> {
    artifacts.answer(parse(&digest)?, &asked, FOR_EVER).await
}

/// The name is for the client, which may want to keep the file under one.
pub(super) async fn by_digest_and_name(
    State(artifacts): State<Artifacts>,
    Path((digest, _)): Path<(String, String)>,
    asked: Parts,
) -> Result<Response, Failure> {
    artifacts.answer(parse(&digest)?, &asked, FOR_EVER).await
}

pub(super) async fn by_name(
    State(artifacts): State<Artifacts>,
    Path(name): Path<String>,
    asked: Parts,
) -> Result<Response, Failure> {
    let name: ArtifactName =
        name.parse().map_err(|error| Failure::new(Code::BadParameter, format!("{error}")))?;
    let digest = artifacts.registry.roster().artifact(&name).map(|found| found.spec.sha256);
    let digest = digest.ok_or_else(|| {
        Failure::new(Code::NotFound, format!("artifact `{name}` not found"))
            .with_remedy("`hoist artifact list` shows all of them")
    })?;
    artifacts.answer(digest, &asked, ASK_AGAIN).await
}

pub(super) fn parse(digest: &str) -> Result<Digest, Failure> {
    digest.parse().map_err(|error| Failure::new(Code::BadParameter, format!("{error}")))
}

impl Artifacts {
    async fn answer(
        &self,
        digest: Digest,
        asked: &Parts,
        cache: HeaderValue,
    ) -> Result<Response, Failure> {
        let Parts { method, version, headers, .. } = asked;
        let blobs = self.blobs.clone();
        let here = blocking(move || blobs.open(digest)).await.map_err(|e| disk_failed(&e))?;
        let content = match here {
            Some(content) => content,
            None if headers.contains_key(SIBLING_HEADER) => return Err(not_here(digest)),
            None => {
                let size = self.declared_size(digest).ok_or_else(|| not_here(digest))?;
                if *method == Method::HEAD {
                    let known = self.can_be_fetched(digest, size).await;
                    return if known {
                        Ok(reply(asked, digest, size, NOT_KEPT).0)
                    } else {
                        Err(not_here(digest))
                    };
                }
                self.fetch(digest, size).await?
            }
        };
        let (mut response, range) = reply(asked, digest, content.size, cache);
        if content.growth.is_some() {
            response.headers_mut().insert(header::CACHE_CONTROL, NOT_KEPT);
            response.headers_mut().remove(header::ETAG);
        }
        if let Some(range) = range.filter(|_| *method != Method::HEAD) {
            let sent = metrics::counter!("hoist_artifact_bytes_total");
            if content.growth.is_none() {
                let file = Arc::clone(&content.file);
                let part = FilePart { file, range: range.clone(), sent: sent.clone() };
                response.extensions_mut().insert(part);
            }
            *response.body_mut() = body::body(content, range, *version, &self.buffers, sent);
        }
        Ok(response)
    }

    /// The size of content that the site knows of.
    fn declared_size(&self, digest: Digest) -> Option<u64> {
        let roster = self.registry.roster();
        let artifact = roster.artifacts().find(|artifact| artifact.spec.sha256 == digest)?;
        Some(artifact.spec.size)
    }
}

pub(super) fn not_here(digest: Digest) -> Failure {
    Failure::new(Code::NotFound, format!("content with the digest `{digest}` not found"))
        .with_remedy("`hoist artifact add FILE` brings it")
}

/// The answer without its bytes, and which bytes they are.
fn reply(
    asked: &Parts,
    digest: Digest,
    size: u64,
    cache: HeaderValue,
) -> (Response, Option<std::ops::Range<u64>>) {
    let tag = format!("\"sha256:{digest}\"");
    let (status, range) = match decide(&asked.method, &asked.headers, size, &tag) {
        Reply::NotModified => (StatusCode::NOT_MODIFIED, None),
        Reply::Whole => (StatusCode::OK, Some(0..size)),
        Reply::Part(range) => (StatusCode::PARTIAL_CONTENT, Some(range)),
        Reply::Unsatisfiable => (StatusCode::RANGE_NOT_SATISFIABLE, None),
    };
    let mut response = status.into_response();
    let headers = response.headers_mut();
    let text = |text: String| HeaderValue::try_from(text).expect("digits and signs");
    headers.insert(header::ETAG, text(tag));
    // That there is no such range is no content to keep.
    let refused = status == StatusCode::RANGE_NOT_SATISFIABLE;
    headers.insert(header::CACHE_CONTROL, if refused { NOT_KEPT } else { cache });
    headers.insert(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    if let Some(range) = &range {
        let octets = HeaderValue::from_static("application/octet-stream");
        headers.insert(header::CONTENT_TYPE, octets);
        headers.insert(header::CONTENT_LENGTH, HeaderValue::from(range.end - range.start));
    }
    match (status, &range) {
        (StatusCode::PARTIAL_CONTENT, Some(range)) => {
            let part = format!("bytes {}-{}/{size}", range.start, range.end - 1);
            headers.insert(header::CONTENT_RANGE, text(part));
        }
        (StatusCode::RANGE_NOT_SATISFIABLE, _) => {
            headers.insert(header::CONTENT_RANGE, text(format!("bytes */{size}")));
        }
        _ => {}
    }
    // Not to be compressed: machines trust the length.
    response.extensions_mut().insert(Live);
    (response, range)
}
