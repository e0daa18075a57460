//! Join tokens: create, list, revoke.

use std::collections::BTreeMap;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use hoist_api::Code;
use hoist_api::cluster::{JoinTokenEntry, JoinTokenRequest, NewJoinToken};
use hoist_api::inventory::Listing;
use hoist_chassis::auth::AuditContext;
use hoist_chassis::extract::{Json, Path};
use hoist_chassis::failure::Failure;
use hoist_chassis::route::Route;
use hoist_cluster::join_token::{
    JoinSecret, JoinToken, Pins, SECRET_BYTES, TokenId, TokenKey, TokenRecord, TokenScope,
};
use http::{StatusCode, header};
use jiff::{SignedDuration, Timestamp};

use super::join_request::invalid;
use super::records::RecordChange;
use super::view::Write;
use super::{Cluster, READ, WRITE};

const DEFAULT_TTL: u64 = 60 * 60;
/// A year: a longer one is a password.
const MAX_TTL: u64 = 366 * 24 * 60 * 60;
const MAX_USES: u32 = 10_000;
/// Most entries of each limit of a token.
const MAX_SCOPE: usize = 64;
/// Tokens stay listed for so long after their end.
const REMEMBERED: SignedDuration = SignedDuration::from_hours(7 * 24);
/// Most tokens that are not over.
const MAX_TOKENS: usize = 10_000;

pub(super) fn routes() -> Vec<Route<Cluster>> {
    vec![
        Route::post("/cluster/v1/tokens", WRITE, create)
            .summary("Create a join token; it is shown only now")
            .takes::<JoinTokenRequest>()
            .gives::<NewJoinToken>(201),
        Route::get("/cluster/v1/tokens", READ, list)
            .summary("Join tokens, without their secrets")
            .gives::<Listing<JoinTokenEntry>>(200),
        Route::delete("/cluster/v1/tokens/{id}", WRITE, revoke)
            .summary("Revoke a join token, by its id or the start of it")
            .gives_nothing(204),
    ]
}

async fn create(
    State(cluster): State<Cluster>,
    audit: AuditContext,
    Json(request): Json<JoinTokenRequest>,
) -> Result<Response, Failure> {
    let now = cluster.chassis.clock.now();
    let secret = JoinSecret::from_random(random::<SECRET_BYTES>());
    let record = record(request, &secret, now)?;
    let mut draft = audit.draft();
    draft.object = format!("join-token/{}", record.id);
    let writing = cluster.view.write(Some(&draft), |snapshot| {
        let state = snapshot.founded()?;
        let over = |token: &&TokenRecord| token.expires + REMEMBERED < now;
        let removed: Vec<TokenId> = snapshot.tokens.values().filter(over).map(|t| t.id).collect();
        if snapshot.tokens.len() - removed.len() >= MAX_TOKENS {
            let detail = format!("there are {MAX_TOKENS} join tokens");
            return Err(Failure::new(Code::TooManyRequests, detail)
                .with_remedy("use a token for several nodes, or wait until some have expired"));
        }
        let mut changes: Vec<_> = removed.into_iter().map(RecordChange::RemoveToken).collect();
        changes.push(RecordChange::Token(Box::new(record.clone())));
        let pins = Pins { current: state.pin, next: None };
        Ok(Write { changes, result: (state.uid, pins) })
    });
    let (uid, pins) = writing.await?;
    let token = JoinToken { cluster: uid.short(), pins, id: record.id, secret };
    let made = NewJoinToken { entry: entry(&record), token: token.reveal().to_string() };
    let told = serde_json::json!({"expires": record.expires, "uses": record.max_uses});
    cluster.publish("cluster.token.created", &format!("join-token/{}", record.id), told);
    let no_store = [(header::CACHE_CONTROL, "no-store")];
    Ok((StatusCode::CREATED, no_store, Json(made)).into_response())
}

async fn list(State(cluster): State<Cluster>) -> Result<Json<Listing<JoinTokenEntry>>, Failure> {
    let snapshot = cluster.view.loaded()?;
    snapshot.founded()?;
    let mut items: Vec<_> = snapshot.tokens.values().map(entry).collect();
    items.sort_by_key(|entry| entry.created);
    Ok(Json(Listing { revision: snapshot.revision.0, items }))
}

async fn revoke(
    State(cluster): State<Cluster>,
    audit: AuditContext,
    Path(id): Path<String>,
) -> Result<StatusCode, Failure> {
    let now = cluster.chassis.clock.now();
    let id = find(&cluster.view.loaded()?.tokens, &id)?;
    let mut draft = audit.draft();
    draft.object = format!("join-token/{id}");
    let revoking = cluster.view.write(Some(&draft), |snapshot| {
        let token = snapshot.tokens.get(&id).ok_or_else(|| unknown(&id.to_string()))?;
        if token.revoked.is_some() {
            return Ok(Write { changes: Vec::new(), result: () });
        }
        let revoked = TokenRecord { revoked: Some(now), ..token.clone() };
        Ok(Write { changes: vec![RecordChange::Token(Box::new(revoked))], result: () })
    });
    revoking.await?;
    cluster.publish("cluster.token.revoked", &format!("join-token/{id}"), serde_json::Value::Null);
    Ok(StatusCode::NO_CONTENT)
}

/// The token with this id, or the only one whose id starts so.
fn find(tokens: &BTreeMap<TokenId, TokenRecord>, text: &str) -> Result<TokenId, Failure> {
    let text = text.to_ascii_lowercase();
    let mut fitting = tokens.keys().filter(|id| id.to_string().starts_with(&text));
    match (fitting.next(), fitting.next()) {
        (Some(id), None) if !text.is_empty() => Ok(*id),
        (Some(_), Some(_)) => {
            let detail = format!("several join tokens start with `{text}`");
            Err(Failure::new(Code::Ambiguous, detail).with_remedy("give more of the id"))
        }
        _ => Err(unknown(&text)),
    }
}

fn unknown(id: &str) -> Failure {
    Failure::new(Code::NotFound, format!("there is no join token `{id}`"))
        .with_remedy("`hoist cluster token list` shows all")
}

fn record(
    request: JoinTokenRequest,
    secret: &JoinSecret,
    now: Timestamp,
) -> Result<TokenRecord, Failure> {
    let JoinTokenRequest { ttl_seconds, uses, roles, names, networks, manual } = request;
    let ttl = ttl_seconds.unwrap_or(DEFAULT_TTL);
    if !(1..=MAX_TTL).contains(&ttl) {
        return Err(invalid("ttl_seconds", &format!("it is 1 to {MAX_TTL}")));
    }
    let max_uses = uses.unwrap_or(1);
    if !(1..=MAX_USES).contains(&max_uses) {
        return Err(invalid("uses", &format!("it is 1 to {MAX_USES}")));
    }
    if roles.len() > MAX_SCOPE || networks.len() > MAX_SCOPE {
        return Err(invalid("roles", &format!("at most {MAX_SCOPE} roles and networks")));
    }
    let roles: Result<_, _> = roles.iter().map(|role| role.parse()).collect();
    let roles = roles.map_err(|error| invalid("roles", &format!("{error}")))?;
    let names = match names {
        Some(pattern) => {
            Some(pattern.parse().map_err(|error| invalid("names", &format!("{error}")))?)
        }
        None => None,
    };
    let networks: Result<_, _> = networks.iter().map(|network| network.parse()).collect();
    let networks =
        networks.map_err(|error| invalid("networks", &format!("write `10.0.0.0/24`: {error}")))?;
    let seconds = i64::try_from(ttl).expect("it was checked");
    Ok(TokenRecord {
        id: TokenId::from_random(random()),
        key: TokenKey::of(secret),
        created: now,
        expires: now + SignedDuration::from_secs(seconds),
        max_uses,
        used_by: BTreeMap::new(),
        scope: TokenScope { roles, names, networks, bound_to: None, manual },
        revoked: None,
    })
}

fn entry(token: &TokenRecord) -> JoinTokenEntry {
    let scope = &token.scope;
    JoinTokenEntry {
        id: token.id.to_string(),
        created: token.created,
        expires: token.expires,
        uses_left: token.uses_left(),
        used_by: token.used_by.keys().map(ToString::to_string).collect(),
        roles: scope.roles.iter().map(ToString::to_string).collect(),
        names: scope.names.as_ref().map(ToString::to_string),
        networks: scope.networks.iter().map(ToString::to_string).collect(),
        manual: scope.manual,
        revoked: token.revoked.is_some(),
    }
}

fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    aws_lc_rs::rand::fill(&mut bytes).expect("the operating system gives random bytes");
    bytes
}
