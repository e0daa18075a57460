//! This controller's word that it is there: see `hoist_site::controllers`.

use std::sync::Arc;
use std::time::Duration;

use hoist_site::controllers::{self, BEAT_EVERY, Registration};
use hoist_site::schema;
use hoist_store::Store;
use tokio_util::sync::CancellationToken;

use hoist_chassis::clock::Clock;
use hoist_chassis::secret;

/// How long a stop waits for the store to hear of it. A record that stays ages by itself.
const GOODBYE: Duration = Duration::from_secs(2);

const ID_CHARS: usize = 10;

/// Registers, again and again, until `stopping`; then takes it back.
pub(crate) async fn keep(
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    stopping: CancellationToken,
) {
    let id = secret::random_text(ID_CHARS);
    let mut beat = tokio::time::interval(BEAT_EVERY);
    beat.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let beating = async {
        loop {
            beat.tick().await;
            let registration = Registration {
                id: id.clone(),
                version: env!("CARGO_PKG_VERSION").to_owned(),
                schema: schema::VERSION,
                at: clock.now(),
            };
            let said = controllers::beat(store.as_ref(), &registration).await;
            let said = match said {
                Ok(()) => controllers::forget(store.as_ref(), registration.at).await,
                failed => failed,
            };
            if let Err(error) = said {
                // The readiness check is what tells people that the store is away.
                tracing::debug!(error = %hoist_diagnostic::chain(&error), "controller not registered");
            }
        }
    };
    tokio::select! {
        () = stopping.cancelled() => {}
        () = beating => {}
    }
    let leave = controllers::leave(store.as_ref(), &id);
    if !matches!(tokio::time::timeout(GOODBYE, leave).await, Ok(Ok(()))) {
        tracing::debug!("the store did not hear that this controller stops");
    }
}
