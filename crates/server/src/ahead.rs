//! Prepares answers for all nodes after each change of the roster, because all nodes may ask at the
//! same time.
//!
//! Does not belong here: rendering of the answers, which each context passes in.

use std::sync::Arc;
use std::time::Duration;

use hoist_site::{Registry, Roster};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Changes within this time are prepared together.
const QUIET: Duration = Duration::from_secs(1);
/// Preparation takes at most one part in this many of the time, however often the site changes.
const PART: u32 = 20;

/// Calls `prepare` with the present roster, and again after changes.
pub(crate) async fn work(
    registry: Registry,
    stop: CancellationToken,
    prepare: impl Fn(&Arc<Roster>) + Clone + Send + 'static,
) {
    let mut changes = registry.changes();
    let mut pause = QUIET;
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(pause) => {}
        }
        changes.mark_unchanged();
        let started = Instant::now();
        let roster = registry.roster();
        let prepare = prepare.clone();
        if let Err(error) = tokio::task::spawn_blocking(move || prepare(&roster)).await {
            tracing::error!(%error, "answers not prepared: the task failed; they are rendered on request");
        }
        pause = QUIET.max(started.elapsed() * PART);
        tokio::select! {
            () = stop.cancelled() => return,
            changed = changes.changed() => if changed.is_err() { return },
        }
    }
}
