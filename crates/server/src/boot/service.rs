//! `/boot/v1/service/…`: whether everything that BSS stands on is there.

use std::time::Duration;

use axum::extract::State;
use axum::response::Response;
use http::StatusCode;
use serde_json::{Map, Value, json};

use super::{Boot, BssDialect, bss_json};

/// How long the store is given to tell how it is.
const TIMEOUT: Duration = Duration::from_secs(1);

pub(super) async fn status() -> Response {
    bss_json(&running())
}

pub(super) async fn version() -> Response {
    bss_json(&of_version())
}

pub(super) async fn hsm(State(boot): State<Boot>) -> Response {
    told(boot.source_is_there(), &boot.hsm())
}

pub(super) async fn storage(State(boot): State<Boot>) -> Response {
    let there = boot.store_is_there().await;
    told(there, &boot.storage(there))
}

/// As the upstream of BSS tells it, whatever the store is.
pub(super) async fn etcd(State(boot): State<Boot>) -> Response {
    let there = boot.store_is_there().await;
    told(there, &of_etcd(there))
}

pub(super) async fn all(State(boot): State<Boot>) -> Response {
    let there = boot.store_is_there().await;
    let storage = match boot.dialect {
        BssDialect::OpenChami => boot.storage(there),
        BssDialect::Hpe => of_etcd(there),
    };
    let parts = [running(), of_version(), boot.hsm(), storage];
    let members = parts.into_iter().filter_map(|part| match part {
        Value::Object(members) => Some(members),
        _ => None,
    });
    let members: Map<String, Value> = members.flatten().collect();
    told(there && boot.source_is_there(), &Value::Object(members))
}

fn running() -> Value {
    json!({ "bss-status": "running" })
}

fn of_etcd(there: bool) -> Value {
    json!({ "bss-status-etcd": word(there) })
}

fn of_version() -> Value {
    json!({ "bss-version": env!("CARGO_PKG_VERSION") })
}

fn word(there: bool) -> &'static str {
    if there { "connected" } else { "error" }
}

fn told(good: bool, body: &Value) -> Response {
    let mut response = bss_json(body);
    if !good {
        *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
    }
    response
}

impl Boot {
    /// Whether the last reading of the inventory source succeeded. Without a source the inventory
    /// is here.
    fn source_is_there(&self) -> bool {
        let source = self.refresh.source();
        source.is_none_or(|source| source.importer.progress().error.is_none())
    }

    /// Asked of the store itself, which takes one small question.
    async fn store_is_there(&self) -> bool {
        let health = tokio::time::timeout(TIMEOUT, self.registry.store().health()).await;
        self.registry.contact().connected && matches!(health, Ok(Ok(_)))
    }

    fn hsm(&self) -> Value {
        json!({ "bss-status-hsm": word(self.source_is_there()) })
    }

    fn storage(&self, there: bool) -> Value {
        json!({ "bss-storage-backend": { "name": self.backend, "status": word(there) } })
    }
}
