//! `/admin/v1/backup` and `/admin/v1/db`.
//!
//! A backup holds the site's keys and a database export all records, so both ask for the right to
//! write, and both leave an entry in the audit log.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use futures_util::{StreamExt, stream};
use hoist_api::Code;
use hoist_api::admin::{Context, Database, Verb};
use hoist_diagnostic::chain;
use hoist_site::schema::SchemaError;
use hoist_store::{StoreError, copy};
use http::header;
use serde::Deserialize;
use tokio::io::DuplexStream;
use tokio::sync::oneshot;
use tokio_util::io::{ReaderStream, SyncIoBridge};

use super::{BackupError, CHUNK_BYTES, Source};
use crate::database;
use hoist_chassis::Chassis;
use hoist_chassis::audit::{AuditError, Draft};
use hoist_chassis::auth::AuditContext;
use hoist_chassis::extract::{Flag, Json, Query};
use hoist_chassis::failure::Failure;
use hoist_chassis::peer::Peer;
use hoist_chassis::route::{AccessClass, Live, Route, with_state};

const NDJSON: &str = "application/x-ndjson";
const ZSTD: &str = "application/zstd";

#[derive(Debug, Clone)]
struct Site {
    chassis: Chassis,
    data_dir: Arc<PathBuf>,
}

pub(crate) fn routes(chassis: &Chassis, data_dir: PathBuf) -> Vec<Route> {
    let admin = |verb| AccessClass::Admin { context: Context::Admin, verb };
    let routes = vec![
        Route::get("/admin/v1/backup", admin(Verb::Write), backup)
            .summary("A complete backup, not encrypted: it contains the site's keys")
            .flag("with_artifacts", "the contents of artifacts too")
            .streaming()
            .gives_media(200, ZSTD),
        Route::get("/admin/v1/db", admin(Verb::Read), status)
            .summary("The store: backend, revision, schema, numbers of records, controllers")
            .streaming()
            .gives::<Database>(200),
        Route::get("/admin/v1/db/export", admin(Verb::Write), export)
            .summary("All records of the store, in the format of `hoist db import`")
            .streaming()
            .gives_media(200, NDJSON),
    ];
    with_state(routes, &Site { chassis: chassis.clone(), data_dir: Arc::new(data_dir) })
}

#[derive(Debug, Deserialize)]
struct BackupQuery {
    #[serde(default)]
    with_artifacts: Flag,
}

async fn backup(
    State(site): State<Site>,
    peer: Peer,
    audit: AuditContext,
    Query(query): Query<BackupQuery>,
) -> Result<Response, Failure> {
    refuse_plain(&peer)?;
    record(&site.chassis, Draft { object: "backup".to_owned(), ..audit.draft() }).await?;
    let source = Source {
        data_dir: site.data_dir.as_ref().clone(),
        store: Arc::clone(&site.chassis.store),
        with_artifacts: query.with_artifacts.0,
        now: site.chassis.clock.now(),
    };
    Ok(streamed(&site.chassis, ZSTD, |out| async move {
        super::write(source, SyncIoBridge::new(out)).await.map(drop)
    }))
}

async fn export(
    State(site): State<Site>,
    peer: Peer,
    audit: AuditContext,
) -> Result<Response, Failure> {
    refuse_plain(&peer)?;
    record(&site.chassis, Draft { object: "database".to_owned(), ..audit.draft() }).await?;
    let store = Arc::clone(&site.chassis.store);
    Ok(streamed(&site.chassis, NDJSON, |out| async move {
        let out = tokio::io::BufWriter::with_capacity(64 * 1024, out);
        copy::export(store.as_ref(), out).await.map(drop).map_err(BackupError::from)
    }))
}

/// A backup is encrypted by its reader, so what travels is not. `auth.allow_plain_admin` allows tokens
/// to be overheard, which can be revoked; the site's keys cannot.
fn refuse_plain(peer: &Peer) -> Result<(), Failure> {
    if peer.secure || peer.is_loopback() {
        return Ok(());
    }
    let detail = "backups and exports are not sent over plain HTTP to other machines";
    Err(Failure::new(Code::PlainSecret, detail)
        .with_remedy("use the TLS address, or make the backup on the controller"))
}

async fn status(State(site): State<Site>) -> Result<Json<Database>, Failure> {
    let chassis = &site.chassis;
    match database::status(chassis.store.as_ref(), chassis.clock.now()).await {
        Ok(found) => Ok(Json(found)),
        Err(SchemaError::Store(error)) => Err(error.into()),
        Err(error) => Err(Failure::new(Code::Internal, error.to_string())),
    }
}

/// Records the backup before it is sent. A full store must not prevent a backup.
async fn record(chassis: &Chassis, draft: Draft) -> Result<(), Failure> {
    match chassis.audit.append(&draft).await {
        Ok(_) => Ok(()),
        Err(AuditError::Store(StoreError::Full { .. })) => {
            tracing::warn!(
                object = draft.object,
                who = draft.who,
                "read, but not in the audit log"
            );
            Ok(())
        }
        Err(error) => Err(error.into()),
    }
}

/// An answer that `work` writes. If it fails, or the server stops, the answer breaks off in a way
/// that its reader notices.
fn streamed<F>(
    chassis: &Chassis,
    media_type: &'static str,
    work: impl FnOnce(DuplexStream) -> F,
) -> Response
where
    F: Future<Output = Result<(), BackupError>> + Send + 'static,
{
    let (writer, reader) = tokio::io::duplex(CHUNK_BYTES);
    let (tell, told) = oneshot::channel();
    let stopping = chassis.tasks.stopping().clone();
    let work = work(writer);
    chassis.tasks.spawn("backup", async move {
        let outcome = tokio::select! {
            outcome = work => outcome.map_err(|error| chain(&error)),
            () = stopping.cancelled() => Err("the server stops".to_owned()),
        };
        if let Err(error) = &outcome {
            tracing::warn!(error, "backup or export broken off");
        }
        // A reader that went away needs no answer.
        let _ = tell.send(outcome.is_ok());
    });
    let end = stream::once(told).filter_map(async |outcome| match outcome {
        Ok(true) => None,
        Ok(false) | Err(_) => Some(Err(io::Error::other("broken off"))),
    });
    let body = Body::from_stream(ReaderStream::with_capacity(reader, 64 * 1024).chain(end));
    let headers = [(header::CONTENT_TYPE, media_type), (header::CACHE_CONTROL, "no-store")];
    let mut response = (headers, body).into_response();
    // Compressed already, or read by a program that waits for nothing.
    response.extensions_mut().insert(Live);
    response
}

#[cfg(test)]
mod tests {
    use tower::ServiceExt;

    use super::*;
    use hoist_chassis::Server;
    use hoist_chassis::auth::Policy;
    use hoist_testkit::stores::test_store;

    #[tokio::test]
    async fn plain_http_carries_no_backup_to_another_machine() {
        let dir = tempfile::tempdir().unwrap();
        for path in ["/admin/v1/backup", "/admin/v1/db/export"] {
            for (addr, secure, expected) in [
                ("192.0.2.1:9", false, 403),
                ("[2001:db8::1]:9", false, 403),
                ("192.0.2.1:9", true, 200),
                ("127.0.0.1:9", false, 200),
            ] {
                let policy = Policy { allow_plain_admin: true, ..Policy::default() };
                let data_dir = dir.path().to_owned();
                let builder = Server::builder(dir.path(), test_store()).policy(policy);
                let mut server = builder.prepare().await.unwrap();
                let context = routes(server.chassis(), data_dir);
                server.add_routes(context);
                let router = server.into_router().unwrap();
                let token = fs_err::read_to_string(dir.path().join("admin.token")).unwrap();
                let mut request = http::Request::get(path)
                    .header("authorization", format!("Bearer {}", token.trim()))
                    .header("host", "localhost")
                    .body(Body::empty())
                    .unwrap();
                let addr = addr.parse().unwrap();
                request.extensions_mut().insert(Peer::new(addr, secure));
                let response = router.oneshot(request).await.unwrap();
                assert_eq!(response.status(), expected, "{path} {addr} {secure}");
            }
        }
    }
}
