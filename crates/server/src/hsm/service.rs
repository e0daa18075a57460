//! Whether it can be asked, and the words it uses.

use axum::response::{IntoResponse, Response};
use hoist_site::smd_view::LISTS;
use http::StatusCode;
use serde_json::{Map, Value, json};

use super::not_there;
use hoist_chassis::extract::{Json, Path};
use hoist_chassis::failure::Failure;

/// A controller that answers has its roster.
pub(super) async fn ready() -> Response {
    Json(json!({ "code": 0, "message": "HSM is healthy" })).into_response()
}

pub(super) async fn liveness() -> StatusCode {
    StatusCode::NO_CONTENT
}

pub(super) async fn values() -> Response {
    let members = LISTS.iter().map(|(name, words)| ((*name).to_owned(), json!(words)));
    Json(Value::Object(members.collect::<Map<_, _>>())).into_response()
}

pub(super) async fn values_of(Path(list): Path<String>) -> Result<Response, Failure> {
    let found = LISTS.iter().find(|(name, _)| name.eq_ignore_ascii_case(&list));
    let (name, words) = found.ok_or_else(|| not_there("list of values"))?;
    Ok(Json(json!({ *name: words })).into_response())
}
