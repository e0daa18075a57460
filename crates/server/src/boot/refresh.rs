//! Reading the inventory source anew because somebody outside says it changed.
//!
//! Anybody may say so, so it costs at most one reading in a while, however many say it.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use http::{HeaderValue, StatusCode, header};
use serde_json::Value;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::Boot;
use crate::extract::read_body;
use crate::failure::Failure;
use crate::inventory::Source;

/// Least time between two readings that were asked for.
const PAUSE: Duration = Duration::from_secs(5);

/// How long `POST /boot/v1/hosts` waits for the reading to end. Gateways give up after 10 s.
const PATIENCE: Duration = Duration::from_secs(8);

/// Cheap to clone; all clones are the same.
#[derive(Debug, Clone)]
pub(super) struct Refresh {
    source: Option<Source>,
    wanted: Arc<Notify>,
}

impl Refresh {
    pub(super) fn new(source: Option<Source>) -> Self {
        Self { source, wanted: Arc::default() }
    }

    pub(super) fn source(&self) -> Option<&Source> {
        self.source.as_ref()
    }

    /// Asks for a reading soon.
    pub(super) fn soon(&self) {
        self.wanted.notify_one();
    }

    /// Hands requests on to the importer, until told to stop.
    pub(super) async fn run(self, stop: CancellationToken) {
        let Some(source) = self.source else { return };
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = self.wanted.notified() => source.importer.refresh_soon(),
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(PAUSE) => {}
            }
        }
    }

    /// Asks for a reading and waits until one that began after that has ended.
    async fn now(&self) {
        let Some(source) = &self.source else { return };
        let mut cycles = source.importer.cycles();
        let begun = cycles.borrow().begun;
        self.soon();
        // It ends with the importer, and with the reading whether or not that succeeded.
        let _ = cycles.wait_for(|cycles| cycles.ended > begun).await;
    }
}

/// `POST /boot/v1/hosts`.
pub(super) async fn hosts(State(boot): State<Boot>) -> Response {
    // Without the store nothing is read, so there would be nothing to wait for.
    if boot.registry.contact().connected {
        let _ = tokio::time::timeout(PATIENCE, boot.refresh.now()).await;
    }
    let no_cache = [(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"))];
    (StatusCode::NO_CONTENT, no_cache).into_response()
}

/// `POST /boot/v1/scn`: a notice that the state of nodes changed. What it says is not taken from
/// it, but from the source.
pub(super) async fn scn(State(boot): State<Boot>, request: Request) -> Result<StatusCode, Failure> {
    let body = read_body(request).await?;
    let notice = serde_json::Deserializer::from_slice(&body).into_iter::<Value>().next();
    let Some(Ok(Value::Object(members))) = notice else { return Ok(StatusCode::BAD_REQUEST) };
    let named = members.iter().find(|(name, _)| name.eq_ignore_ascii_case("components"));
    let good = match named.map(|(_, value)| value) {
        None | Some(Value::Null) => true,
        Some(Value::Array(names)) => names.iter().all(Value::is_string),
        Some(_) => false,
    };
    if !good {
        return Ok(StatusCode::BAD_REQUEST);
    }
    boot.refresh.soon();
    Ok(StatusCode::OK)
}
