//! What every node boots is worked out before it asks: the next question may come from all of them.

use std::sync::Arc;
use std::time::Duration;

use hoist_boot::Booter;
use hoist_site::Registry;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// A change is seldom alone.
const QUIET: Duration = Duration::from_secs(1);
/// A site that changes all the time is worked out for no more than this part of the time.
const PART: u32 = 20;

pub(crate) async fn work(registry: Registry, booter: Arc<Booter>, stop: CancellationToken) {
    let mut changes = registry.changes();
    let mut pause = QUIET;
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(pause) => {}
        }
        changes.mark_unchanged();
        let started = Instant::now();
        let booter = Arc::clone(&booter);
        let roster = registry.roster();
        if let Err(error) = tokio::task::spawn_blocking(move || booter.prepare(&roster)).await {
            tracing::error!(%error, "what nodes boot is not worked out ahead");
        }
        pause = QUIET.max(started.elapsed() * PART);
        tokio::select! {
            () = stop.cancelled() => return,
            changed = changes.changed() => if changed.is_err() { return },
        }
    }
}
