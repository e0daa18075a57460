//! Reading requests: JSON bodies, query strings and path parameters whose errors are problems with
//! a place and a hint, never plain text.

use axum::body::Bytes;
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::response::{IntoResponse, Response};
use hoist_api::{Code, Problem};
use hoist_diagnostic::Diagnostic;
use http::request::Parts;
use http::{HeaderMap, HeaderValue, StatusCode, header};
use http_body_util::{BodyExt, LengthLimitError};
use serde::de::{self, DeserializeOwned};
use serde::{Deserialize, Deserializer, Serialize};

use crate::failure::Failure;

/// A JSON body, in and out.
#[derive(Debug, Clone, Copy)]
pub struct Json<T>(pub T);

/// The query string as a value. Undeclared parameters were refused before the handler is called.
#[derive(Debug, Clone, Copy)]
pub struct Query<T>(pub T);

/// A yes or no in a query: `1`, `true`, `0` or `false`, and nothing else, so that `dry_run=2` or
/// `dry_run=yes` is never a real run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Flag(pub bool);

/// The parameters of the path.
#[derive(Debug, Clone, Copy)]
pub struct Path<T>(pub T);

impl std::str::FromStr for Flag {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "1" | "true" => Ok(Self(true)),
            "0" | "false" => Ok(Self(false)),
            other => Err(format!("`{other}` is not a flag; use 1, 0, true or false")),
        }
    }
}

impl<'de> Deserialize<'de> for Flag {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        text.parse().map_err(de::Error::custom)
    }
}

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Json<T> {
    type Rejection = Failure;

    async fn from_request(request: Request, _: &S) -> Result<Self, Failure> {
        check_media_type(request.headers())?;
        let bytes = read_body(request).await?;
        // Or it would count as the values of an object, without their names.
        if bytes.trim_ascii_start().starts_with(b"[") {
            return Err(Failure::new(Code::InvalidBody, "the body is a list")
                .with_remedy("send a JSON object"));
        }
        parse_json(&bytes).map(Self)
    }
}

impl<T: Serialize> IntoResponse for Json<T> {
    fn into_response(self) -> Response {
        match serde_json::to_vec(&self.0) {
            Ok(body) => {
                let json = HeaderValue::from_static("application/json");
                ([(header::CONTENT_TYPE, json)], body).into_response()
            }
            Err(error) => {
                tracing::error!(%error, "answer cannot be written as JSON");
                StatusCode::INTERNAL_SERVER_ERROR.into_response()
            }
        }
    }
}

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Query<T> {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Failure> {
        axum::extract::Query::try_from_uri(&parts.uri)
            .map(|axum::extract::Query(value)| Self(value))
            .map_err(|error| {
                Failure::new(Code::BadParameter, strip(&error.body_text(), "query string"))
            })
    }
}

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for Path<T> {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Failure> {
        axum::extract::Path::from_request_parts(parts, state)
            .await
            .map(|axum::extract::Path(value)| Self(value))
            .map_err(|error| Failure::new(Code::BadParameter, strip(&error.body_text(), "path")))
    }
}

/// The whole body. The limit was set by the route: a larger one is 413 here.
pub async fn read_body(request: Request) -> Result<Bytes, Failure> {
    match request.into_body().collect().await {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(error) => Err(body_failure(&error)),
    }
}

/// The problem for a body that cannot be read. Handlers that stream a body use it too.
pub fn body_failure(error: &(dyn std::error::Error + 'static)) -> Failure {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = cause {
        if error.is::<LengthLimitError>() {
            return too_large();
        }
        cause = error.source();
    }
    Failure::new(Code::BadRequest, "the body ended before it was complete")
}

pub(crate) fn too_large() -> Failure {
    Failure::new(Code::BodyTooLarge, "the body is larger than this route takes")
        .with_remedy("send it in smaller parts")
}

/// Parses JSON strictly: UTF-8 throughout, bounded depth, nothing after the value.
pub fn parse_json<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Failure> {
    let text = std::str::from_utf8(bytes).map_err(|error| {
        let at = error.valid_up_to();
        let line = bytes[..at].split(|byte| *byte == b'\n').count();
        Failure::from(
            Problem::new(Code::MalformedBody, "the body is not UTF-8").with_diagnostic(
                Diagnostic::new(format!("line {line}, byte {at}"), "invalid UTF-8"),
            ),
        )
    })?;
    if text.trim().is_empty() {
        return Err(Failure::new(Code::MalformedBody, "the body is empty")
            .with_remedy("send a JSON object"));
    }
    serde_json::from_str(text).map_err(|error| {
        let code = match error.classify() {
            serde_json::error::Category::Data => Code::InvalidBody,
            _ => Code::MalformedBody,
        };
        let at = format!("line {} column {}", error.line(), error.column());
        let message = error.to_string();
        let message = message.strip_suffix(&format!(" at {at}")).unwrap_or(&message);
        let mut diagnostic = Diagnostic::new(at, message);
        diagnostic.hint = nearest_expected(message).map(|name| format!("did you mean `{name}`?"));
        Failure::from(
            Problem::new(code, format!("the body is not valid: {message}"))
                .with_diagnostic(diagnostic),
        )
    })
}

/// The best guess at what `given` was meant to be, if any candidate is close.
pub fn nearest<'a>(given: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    /// Below this two words have too little in common to be worth suggesting.
    const CLOSE: f64 = 0.75;
    candidates
        .into_iter()
        .map(|name| (strsim::jaro_winkler(given, name), name))
        .filter(|(score, _)| *score >= CLOSE)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, name)| name)
}

/// Serde lists the expected names in its message: ``unknown field `nmae`, expected one of `name`,
/// …``.
fn nearest_expected(message: &str) -> Option<&str> {
    let (given, expected) = message.split_once(", expected ")?;
    if !given.starts_with("unknown ") {
        return None;
    }
    let quoted = |text| -> Vec<&str> { str::split(text, '`').skip(1).step_by(2).collect() };
    nearest(quoted(given).first()?, quoted(expected))
}

fn check_media_type(headers: &HeaderMap) -> Result<(), Failure> {
    let Some(value) = headers.get(header::CONTENT_TYPE) else { return Ok(()) };
    let essence = value.to_str().unwrap_or("").split(';').next().unwrap_or("").trim();
    let essence = essence.to_ascii_lowercase();
    if essence == "application/json" || essence.ends_with("+json") {
        return Ok(());
    }
    Err(Failure::new(Code::UnsupportedMediaType, format!("`{essence}` is not JSON"))
        .with_remedy("send `Content-Type: application/json`"))
}

/// axum's messages start with a sentence that says nothing new.
fn strip(message: &str, what: &str) -> String {
    let reason = message.split_once(": ").map_or(message, |(_, reason)| reason);
    format!("{what}: {reason}")
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Pot {
        #[expect(dead_code, reason = "only its name matters here")]
        litres: u8,
    }

    fn problem(body: &[u8]) -> Problem {
        parse_json::<Pot>(body).unwrap_err().problem().clone()
    }

    #[test]
    fn faults_have_a_place_and_a_hint() {
        let problem = problem(b"{\n  \"liters\": 3}");
        assert_eq!(problem.code, Code::InvalidBody);
        assert_eq!(problem.errors[0].at, "line 2 column 10");
        assert_eq!(problem.errors[0].hint.as_deref(), Some("did you mean `litres`?"));
    }

    #[test]
    fn body_that_is_no_json_is_refused_by_name() {
        assert_eq!(problem(b"").code, Code::MalformedBody);
        assert_eq!(problem(b"{\"litres\": \xff}").detail, "the body is not UTF-8");
        assert_eq!(problem(b"{\"litres\": 3} x").code, Code::MalformedBody);
        let deep = "[".repeat(10_000);
        assert_eq!(
            parse_json::<serde_json::Value>(deep.as_bytes()).unwrap_err().problem().status,
            400
        );
    }

    #[test]
    fn far_words_are_not_suggested() {
        assert_eq!(nearest("selctor", ["selector", "limit"]), Some("selector"));
        assert_eq!(nearest("kettle", ["selector", "limit"]), None);
    }
}
