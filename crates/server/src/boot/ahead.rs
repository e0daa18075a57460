//! Prepares the boot answers of all nodes after each change of the roster, because all nodes may ask
//! at the same time.
//!
//! Does not belong here: rendering of answers (`hoist_boot::Booter`).

use std::sync::Arc;
use std::time::Duration;

use hoist_boot::Booter;
use hoist_site::Registry;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Changes within this time are prepared together.
const QUIET: Duration = Duration::from_secs(1);
/// Preparation takes at most one part in this many of the time, however often the site changes.
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
            tracing::error!(%error, "boot answers not prepared: the task failed; they are rendered on request");
        }
        pause = QUIET.max(started.elapsed() * PART);
        tokio::select! {
            () = stop.cancelled() => return,
            changed = changes.changed() => if changed.is_err() { return },
        }
    }
}
