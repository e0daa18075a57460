//! Entity tags: which version of an object or of the whole site an answer shows.

use axum::response::{IntoResponse, Response};
use hoist_api::Code;
use hoist_model::{Kind, NodeId};
use hoist_site::Roster;
use hoist_site::registry::WriteError;
use http::{HeaderMap, HeaderValue, StatusCode, header};
use serde::Serialize;
use sha2::{Digest, Sha256};

use hoist_chassis::extract::Json;
use hoist_chassis::failure::Failure;
use hoist_chassis::secret;

/// Two listings of a site must not have the same tag by accident.
const HASH_BYTES: usize = 16;

/// `"<incarnation>.<revision>"`: of listings of all nodes, and of the site as a whole.
pub(super) fn of_site(roster: &Roster) -> String {
    format!("\"{}.{}\"", roster.incarnation().as_str(), roster.revision())
}

/// `"<incarnation>.<hash>"`: of a listing of some nodes, given with their revisions.
pub(super) fn of_nodes(roster: &Roster, nodes: impl Iterator<Item = (NodeId, u64)>) -> String {
    let mut hash = Sha256::new();
    for (id, revision) in nodes {
        hash.update(id.to_bits().to_be_bytes());
        hash.update(revision.to_be_bytes());
    }
    let hash = secret::hex(&hash.finalize()[..HASH_BYTES]);
    format!("\"{}.{hash}\"", roster.incarnation().as_str())
}

/// `"<incarnation>.<id>.<revision>"`.
pub(super) fn of_node(roster: &Roster, id: NodeId, revision: u64) -> String {
    format!("\"{}.{id}.{revision}\"", roster.incarnation().as_str())
}

/// Whether the caller already has this version: then the body need not be built.
pub(crate) fn is_known(headers: &HeaderMap, tag: &str) -> bool {
    listed(headers, header::IF_NONE_MATCH).any(|known| known == "*" || known == tag)
}

/// Whether `If-Match` (if any) names this version.
pub(super) fn matches(headers: &HeaderMap, tag: Option<&str>) -> bool {
    if !headers.contains_key(header::IF_MATCH) {
        return true;
    }
    listed(headers, header::IF_MATCH)
        .any(|wanted| wanted == "*" && tag.is_some() || tag == Some(wanted))
}

/// `If-None-Match: *`: only if there is none yet.
pub(super) fn only_create(headers: &HeaderMap) -> bool {
    listed(headers, header::IF_NONE_MATCH).any(|known| known == "*")
}

/// `"<incarnation>.<kind>.<name>.<revision>"`: of a partition or a network.
pub(super) fn of_object(roster: &Roster, kind: Kind, name: &str, revision: u64) -> String {
    format!("\"{}.{kind}.{name}.{revision}\"", roster.incarnation().as_str())
}

/// Whether a write may replace the version `tag` (`None`: there is no such object yet).
pub(super) fn check(headers: &HeaderMap, tag: Option<&str>) -> Result<(), WriteError> {
    let taken = tag.is_some() && only_create(headers);
    if taken || !matches(headers, tag) { Err(WriteError::Precondition) } else { Ok(()) }
}

/// The site revision in `If-Match`, if the caller gave one.
pub(super) fn expected_revision(
    headers: &HeaderMap,
    roster: &Roster,
) -> Result<Option<u64>, Failure> {
    let Some(tag) = listed(headers, header::IF_MATCH).next() else { return Ok(None) };
    if tag == "*" {
        return Ok(None);
    }
    let revision = tag
        .trim_matches('"')
        .split_once('.')
        .filter(|(incarnation, _)| *incarnation == roster.incarnation().as_str())
        .and_then(|(_, revision)| revision.parse().ok());
    match revision {
        Some(revision) => Ok(Some(revision)),
        None => Err(Failure::new(
            Code::PreconditionFailed,
            "the version in `If-Match` is not one of this site",
        )
        .with_remedy("read the current state again")),
    }
}

fn listed(headers: &HeaderMap, name: header::HeaderName) -> impl Iterator<Item = &str> {
    let values = headers.get_all(name).into_iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).map(|tag| {
        let tag = tag.trim();
        tag.strip_prefix("W/").unwrap_or(tag)
    })
}

/// JSON with its tag; caches may keep it but must ask.
pub(crate) fn tagged(status: StatusCode, tag: &str, body: &impl Serialize) -> Response {
    let mut response = (status, Json(body)).into_response();
    mark(&mut response, tag);
    response
}

pub(crate) fn not_modified(tag: &str) -> Response {
    let mut response = StatusCode::NOT_MODIFIED.into_response();
    mark(&mut response, tag);
    response
}

pub(crate) fn mark(response: &mut Response, tag: &str) {
    let value = HeaderValue::from_str(tag).expect("tags are plain characters");
    response.headers_mut().insert(header::ETAG, value);
    let private = HeaderValue::from_static("private, no-cache");
    response.headers_mut().insert(header::CACHE_CONTROL, private);
}
