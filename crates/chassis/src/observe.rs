//! The outermost layer: request ids, panics, problem bodies, and one measurement per request.

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures_util::FutureExt;
use hoist_api::{Code, Problem};
use http::{HeaderName, HeaderValue, Method, StatusCode, header};
use metrics::{Counter, Histogram};
use parking_lot::Mutex;
use tokio::time::Instant;
use tracing::Instrument;

use crate::failure::{Deliberate, Failure};
use crate::log_limit::LogLimit;
use crate::peer::RequestId;
use crate::route::{Legacy, Template};

/// Interval between log lines of a route that keeps failing in the same way.
const FAILURES_TOLD_EVERY: Duration = Duration::from_secs(10);

pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

pub(crate) async fn observe(mut request: Request, next: Next) -> Response {
    let started = Instant::now();
    let id = RequestId::accept_or_make(request.headers().get(&REQUEST_ID));
    let method = request.method().clone();
    request.extensions_mut().insert(id.clone());
    // No path here: paths may hold the tokens of booting nodes. The route's template is logged.
    let span = tracing::info_span!("request", request_id = %id, method = %method);
    let answer = AssertUnwindSafe(next.run(request).instrument(span.clone())).catch_unwind().await;
    let _in_span = span.enter();
    let mut response = answer.unwrap_or_else(|_| {
        tracing::error!("handler panicked");
        Failure::new(Code::Internal, "the handler panicked; the log has more").into_response()
    });
    if let Some(failure) = response.extensions_mut().remove::<Failure>() {
        write_problem(&mut response, &failure, &id, &method);
    }
    let headers = response.headers_mut();
    headers.insert(REQUEST_ID, id.into_header());
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));

    let route = response.extensions().get::<Template>().map_or("none", |template| template.0);
    let status = response.status();
    let elapsed = started.elapsed();
    // Methods are clients' words: only the known ones become labels.
    let method = match method {
        Method::GET => "GET",
        Method::HEAD => "HEAD",
        Method::POST => "POST",
        Method::PUT => "PUT",
        Method::PATCH => "PATCH",
        Method::DELETE => "DELETE",
        _ => "other",
    };
    requests(method, route, status).increment(1);
    seconds(route).record(elapsed.as_secs_f64());
    let elapsed_ms = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX);
    if status.is_server_error()
        && response.extensions().get::<Deliberate>().is_none()
        && let Some(left_out) = may_tell(route, status)
    {
        tracing::warn!(route, status = status.as_u16(), elapsed_ms, left_out, "request failed");
    } else {
        tracing::debug!(route, status = status.as_u16(), elapsed_ms, "request done");
    }
    response
}

/// An open route that fails can be called without end: one log line per period for each route and
/// status. A repeated failure does not hide another.
fn may_tell(route: &'static str, status: StatusCode) -> Option<u64> {
    static LIMITS: Mutex<BTreeMap<(&str, u16), LogLimit>> = Mutex::new(BTreeMap::new());
    let mut limits = LIMITS.lock();
    let limit = limits.entry((route, status.as_u16()));
    limit.or_insert_with(|| LogLimit::new(FAILURES_TOLD_EVERY)).permit()
}

/// The counter of one kind of request.
pub(crate) fn requests(method: &'static str, route: &'static str, status: StatusCode) -> Counter {
    metrics::counter!(
        "hoist_http_requests_total",
        "method" => method, "route" => route, "status" => status.as_str().to_owned()
    )
}

/// The times of one route.
pub(crate) fn seconds(route: &'static str) -> Histogram {
    metrics::histogram!("hoist_http_request_seconds", "route" => route)
}

fn write_problem(response: &mut Response, failure: &Failure, id: &RequestId, method: &Method) {
    if *method == Method::HEAD {
        return;
    }
    let body = if response.extensions().get::<Legacy>().is_some() {
        legacy_problem(response.status(), failure.problem())
    } else {
        let mut problem = failure.problem().clone();
        problem.request_id = Some(id.to_string());
        serde_json::to_vec(&problem).expect("a problem always serializes")
    };
    response.headers_mut().remove(header::CONTENT_LENGTH);
    *response.body_mut() = Body::from(body);
}

/// The problem in the form of BSS. Members that BSS lacks go into the detail.
fn legacy_problem(status: StatusCode, problem: &Problem) -> Vec<u8> {
    let remedy = problem.remedy.as_ref().map(|remedy| format!("; {remedy}")).unwrap_or_default();
    let body = serde_json::json!({
        "type": "about:blank",
        "title": status.canonical_reason().unwrap_or_default(),
        "detail": format!("{}{remedy}", problem.detail),
        "status": status.as_u16(),
    });
    body.to_string().into_bytes()
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::Arc;

    use axum::Router;
    use axum::middleware::from_fn;
    use axum::routing::get;
    use tower::ServiceExt;

    use super::*;

    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<u8>>>);

    impl Write for Log {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    fn failing(route: &'static str, status: StatusCode) -> Response {
        let mut response = status.into_response();
        response.extensions_mut().insert(Template(route));
        response
    }

    #[tokio::test]
    async fn repeated_failures_of_a_route_write_one_line() {
        let log = Log::default();
        let writer = log.clone();
        let subscriber =
            tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).finish();
        let _logged = tracing::subscriber::set_default(subscriber);
        let router = Router::new()
            .route("/one", get(async || failing("/one", StatusCode::SERVICE_UNAVAILABLE)))
            .route("/two", get(async || failing("/two", StatusCode::INTERNAL_SERVER_ERROR)))
            .layer(from_fn(observe));
        for path in ["/one"; 500].into_iter().chain(["/two"]) {
            let request = http::Request::get(path).body(Body::empty()).unwrap();
            router.clone().oneshot(request).await.unwrap();
        }
        let text = String::from_utf8(log.0.lock().clone()).unwrap();
        for route in ["/one", "/two"] {
            assert_eq!(text.lines().filter(|line| line.contains(route)).count(), 1, "{text}");
        }
    }
}
