//! The chassis' own routes: tokens, audit, events, health, metrics and the `OpenAPI` document.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::response::sse::{KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::StreamExt;
use hoist_api::Code;
use hoist_api::admin::{AuditPage, Context, NewToken, Token, TokenList, TokenRequest, Verb};
use hoist_api::event::{Event, Health, HealthStatus, RESET};
use http::{HeaderMap, HeaderName, StatusCode, header};
use serde::Deserialize;

use crate::auth::AuditContext;
use crate::compress::Constant;
use crate::events::EventId;
use crate::extract::{Flag, Json, Path, Query};
use crate::failure::Failure;
use crate::principal::Principal;
use crate::route::{AccessClass, Route, with_state};
use crate::server::Chassis;
use crate::telemetry;

/// Entries in one answer of the audit log.
const AUDIT_PAGE: usize = 100;
const AUDIT_PAGE_MAX: usize = 1000;

/// A comment this often keeps proxies from closing a quiet stream.
const HEARTBEAT: Duration = Duration::from_secs(15);

const NDJSON: &str = "application/x-ndjson";

pub(crate) fn routes(chassis: &Chassis) -> Vec<Route> {
    let admin = |verb| AccessClass::Admin { context: Context::Admin, verb };
    let routes = vec![
        Route::get("/healthz", AccessClass::Open, healthz)
            .summary("Liveness of the process")
            .reason("A constant. Supervisors restart a process that does not answer")
            .gives::<Health>(200),
        Route::get("/readyz", AccessClass::Open, readyz)
            .summary("Readiness for requests")
            .reason(
                "The state of each check, the number of nodes, the kind of store; no addresses, \
                 no names. Load balancers have no token",
            )
            .gives::<Health>(200)
            .gives::<Health>(503),
        Route::get("/metrics", AccessClass::Lockable { context: Context::Metrics }, metrics_text)
            .summary("Metrics in Prometheus' text format")
            .reason(
                "Locked unless `auth.locked` is changed: counters and gauges, no names of nodes",
            )
            .gives_media(200, "text/plain"),
        Route::get("/admin/v1/tokens", admin(Verb::Read), list_tokens)
            .summary("All managed tokens, without their secrets")
            .gives::<TokenList>(200),
        Route::post("/admin/v1/tokens", admin(Verb::Write), create_token)
            .summary("Create a token; its secret is shown only now")
            .body_limit(64 * 1024)
            .takes::<TokenRequest>()
            .gives::<NewToken>(201),
        Route::delete("/admin/v1/tokens/{id}", admin(Verb::Write), revoke_token)
            .summary("Revoke a token")
            .gives::<Token>(200),
        Route::get("/admin/v1/audit", admin(Verb::Read), list_audit)
            .summary("The audit log, oldest first")
            .query("after", "sequence number to go on from")
            .query("tail", "only the newest so many entries")
            .query("limit", "most entries in one answer")
            .flag("verify", "walk the whole chain as well")
            .streaming()
            .gives::<AuditPage>(200)
            .gives_media(200, NDJSON),
        Route::get(
            "/events/v1",
            AccessClass::Admin { context: Context::Events, verb: Verb::Read },
            events,
        )
        .summary("Events of the site, as server-sent events")
        .query(
            "since",
            "id of the last event seen, or `-N` for the last N events; `Last-Event-ID` wins",
        )
        .query("kind", "only kinds that begin with one of these words, separated by commas")
        .streaming()
        .gives_media(200, "text/event-stream"),
    ];
    with_state(routes, chassis)
}

/// The document is made from the finished table, so its route comes last.
pub(crate) fn openapi_route() -> Route<Arc<Constant>> {
    Route::get("/openapi.json", AccessClass::Open, openapi)
        .summary("This document")
        .reason("The description of the API, the same on every site of this version")
        .gives_media(200, "application/json")
}

async fn openapi(State(document): State<Arc<Constant>>, headers: HeaderMap) -> Response {
    document.answer(&headers, "application/json")
}

async fn healthz() -> Json<Health> {
    Json(Health { status: HealthStatus::Ok, checks: Vec::new() })
}

async fn readyz(State(chassis): State<Chassis>) -> (StatusCode, Json<Health>) {
    let health = chassis.readiness.check().await;
    let status = match health.status {
        HealthStatus::Ok | HealthStatus::Degraded => StatusCode::OK,
        HealthStatus::Down => StatusCode::SERVICE_UNAVAILABLE,
    };
    (status, Json(health))
}

async fn metrics_text() -> Response {
    let text = telemetry::metrics().render();
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response()
}

async fn list_tokens(State(chassis): State<Chassis>) -> Json<TokenList> {
    Json(TokenList { tokens: chassis.tokens.list() })
}

async fn create_token(
    State(chassis): State<Chassis>,
    principal: Principal,
    audit: AuditContext,
    Json(request): Json<TokenRequest>,
) -> Result<Response, Failure> {
    let made = chassis.tokens.create(&request, &principal, audit.draft()).await?;
    let subject = format!("token/{}", made.token.id);
    chassis.events.publish("token.created", &subject, serde_json::Value::Null);
    let no_store = [(header::CACHE_CONTROL, "no-store")];
    Ok((StatusCode::CREATED, no_store, Json(made)).into_response())
}

async fn revoke_token(
    State(chassis): State<Chassis>,
    audit: AuditContext,
    Path(id): Path<String>,
) -> Result<Json<Token>, Failure> {
    let revoked = chassis.tokens.revoke(&id, audit.draft()).await?;
    chassis.events.publish("token.revoked", &format!("token/{id}"), serde_json::Value::Null);
    Ok(Json(revoked))
}

#[derive(Debug, Deserialize)]
struct AuditQuery {
    after: Option<u64>,
    tail: Option<u64>,
    limit: Option<usize>,
    #[serde(default)]
    verify: Flag,
}

async fn list_audit(
    State(chassis): State<Chassis>,
    Query(query): Query<AuditQuery>,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    let head = chassis.audit.head().await?;
    let limit = query.limit.unwrap_or(AUDIT_PAGE);
    if !(1..=AUDIT_PAGE_MAX).contains(&limit) {
        let detail = format!("`limit` is 1 to {AUDIT_PAGE_MAX}, not {limit}");
        return Err(Failure::new(Code::BadParameter, detail));
    }
    let after = query
        .after
        .or_else(|| query.tail.map(|tail| head.saturating_sub(tail)))
        .unwrap_or_default();
    let verification = match query.verify {
        Flag(true) => Some(chassis.audit.verify().await?),
        Flag(false) => None,
    };
    let entries = chassis.audit.list(after, limit).await?;
    let last = entries.last().map(|entry| entry.seq);
    let next = last.filter(|last| *last < head);
    let wants_lines = headers
        .get(header::ACCEPT)
        .and_then(|accept| accept.to_str().ok())
        .is_some_and(|accept| accept.contains(NDJSON));
    if !wants_lines {
        return Ok(Json(AuditPage { entries, head, next, verification }).into_response());
    }
    let mut lines = Vec::new();
    for entry in &entries {
        serde_json::to_writer(&mut lines, entry).expect("plain structs always serialize");
        lines.push(b'\n');
    }
    let mut response = ([(header::CONTENT_TYPE, NDJSON)], lines).into_response();
    if let Some(next) = next {
        response.headers_mut().insert(HeaderName::from_static("x-hoist-next"), next.into());
    }
    Ok(response)
}

/// Most events of the past that one request gets with `since=-N`; fewer than are in memory.
const MAX_RECENT: usize = 1000;

#[derive(Debug, Deserialize)]
struct EventsQuery {
    since: Option<String>,
    kind: Option<String>,
}

async fn events(
    State(chassis): State<Chassis>,
    Query(query): Query<EventsQuery>,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    let last_id = headers.get("last-event-id").map(|value| value.to_str().unwrap_or("?"));
    let since = last_id.or(query.since.as_deref()).filter(|id| !id.is_empty());
    let recent = since.and_then(|text| text.strip_prefix('-')?.parse::<usize>().ok());
    let since = match since.filter(|_| recent.is_none()) {
        None => None,
        Some(text) => Some(text.parse::<EventId>().map_err(|error| {
            Failure::new(Code::BadParameter, error.to_string())
                .with_remedy("give back an id that this route gave out")
        })?),
    };
    let kinds: Vec<String> = query
        .kind
        .unwrap_or_default()
        .split(',')
        .filter(|k| !k.is_empty())
        .map(str::to_owned)
        .collect();
    let stopping = chassis.tasks.stopping().clone();
    let events = match recent {
        Some(count) => chassis.events.subscribe_recent(count.min(MAX_RECENT)).await.left_stream(),
        None => chassis.events.subscribe(since).await.right_stream(),
    };
    let stream = events
        .filter(move |event| std::future::ready(wanted(event, &kinds)))
        .map(|event| Ok::<_, Infallible>(to_sse(&event)))
        .take_until(stopping.cancelled_owned());
    let sse = Sse::new(stream).keep_alive(KeepAlive::new().interval(HEARTBEAT).text("alive"));
    Ok(sse.into_response())
}

/// `node` covers `node` and `node.changed`, not `nodes`. A reset concerns every subscriber.
fn wanted(event: &Event, kinds: &[String]) -> bool {
    let begins = |word: &String| {
        event
            .kind
            .strip_prefix(word.as_str())
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    };
    kinds.is_empty() || event.kind == RESET || kinds.iter().any(begins)
}

fn to_sse(event: &Event) -> axum::response::sse::Event {
    let data = serde_json::to_string(event).expect("an event always serializes");
    axum::response::sse::Event::default().id(&event.id).event(&event.kind).data(data)
}
