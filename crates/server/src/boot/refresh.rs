//! Imports the inventory source again on an outside notice.
//!
//! Notices need no token, so their number must not matter: at most one import per interval.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use hoist_api::Code;
use http::{HeaderValue, StatusCode, header};
use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::Boot;
use crate::site::Source;
use hoist_chassis::extract::read_body;
use hoist_chassis::failure::Failure;

/// Least time between two readings that were asked for.
const PAUSE: Duration = Duration::from_secs(5);

/// How long `POST /boot/v1/hosts` waits for the reading to end, and a notice for its turn. Gateways
/// give up after 10 s.
const TIMEOUT: Duration = Duration::from_secs(8);

/// Largest notice: of a hundred thousand nodes.
pub(super) const MAX_NOTICE: usize = 2 * 1024 * 1024;
/// Notices that are read at once.
pub(super) const NOTICES: usize = 8;

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
    boot.booter.wake(boot.chassis.clock.now());
    // Without the store nothing is read, so there would be nothing to wait for.
    if boot.registry.contact().connected {
        let _ = tokio::time::timeout(TIMEOUT, boot.refresh.now()).await;
    }
    let no_cache = [(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"))];
    (StatusCode::NO_CONTENT, no_cache).into_response()
}

/// `POST /boot/v1/scn`: a notice that nodes changed. Its content is ignored; the source is read
/// instead.
pub(super) async fn scn(State(boot): State<Boot>, request: Request) -> Result<StatusCode, Failure> {
    let late = |_| Failure::new(Code::Timeout, "there are too many notices, or yours is too slow");
    // Held while the body arrives: an unread body costs no memory.
    let permit = boot.notice_permits.acquire();
    let _permit = tokio::time::timeout(TIMEOUT, permit).await.map_err(late)?;
    let body = tokio::time::timeout(TIMEOUT, read_body(request)).await.map_err(late)??;
    let good = tokio::task::spawn_blocking(move || is_notice(&body)).await;
    if !good.unwrap_or(false) {
        return Ok(StatusCode::BAD_REQUEST);
    }
    boot.booter.wake(boot.chassis.clock.now());
    boot.refresh.soon();
    Ok(StatusCode::OK)
}

/// A notice; its content is discarded, because it is unauthenticated.
struct Notice;

/// A text, of which a byte is kept.
struct Text {
    is_components: bool,
}

fn is_notice(body: &[u8]) -> bool {
    let mut values = serde_json::Deserializer::from_slice(body).into_iter::<Notice>();
    matches!(values.next(), Some(Ok(_)))
}

impl<'de> Deserialize<'de> for Notice {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Self)
    }
}

impl<'de> Visitor<'de> for Notice {
    type Value = Self;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a notice")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Self, A::Error> {
        while let Some(Text { is_components }) = members.next_key()? {
            if is_components {
                members.next_value::<Option<Vec<Text>>>()?;
            } else {
                members.next_value::<IgnoredAny>()?;
            }
        }
        Ok(self)
    }
}

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reads;
        impl Visitor<'_> for Reads {
            type Value = Text;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text")
            }

            fn visit_str<E>(self, text: &str) -> Result<Text, E> {
                Ok(Text { is_components: text.eq_ignore_ascii_case("components") })
            }
        }
        deserializer.deserialize_str(Reads)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notices_are_read_as_leniently_as_by_bss() {
        for good in [
            "{}",
            r#"{"Components": ["x1"], "State": "On", "more": [{"a": [1]}]} and more"#,
            r#"{"COMPONENTS": null, "components": ["x1", "x\u0032"]}"#,
            r#"{"Compo\u006eents": []}"#,
        ] {
            assert!(is_notice(good.as_bytes()), "{good}");
        }
        let deep = format!("{{\"a\": {}", "[".repeat(100_000));
        for wrong in [
            "",
            "null",
            "[]",
            "{",
            r#"{"components": "x"}"#,
            r#"{"Components": [1]}"#,
            r#"{"State": }"#,
            &deep,
        ] {
            assert!(!is_notice(wrong.as_bytes()), "{}", &wrong[..wrong.len().min(40)]);
        }
    }
}
