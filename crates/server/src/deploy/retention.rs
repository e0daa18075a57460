//! How long runs are kept, and the one task behind all of them.

use std::time::Duration;

use hoist_diagnostic::chain;
use jiff::Timestamp;
use tokio_util::sync::CancellationToken;

use super::folder;
use super::runs::Runs;
use hoist_chassis::audit::{Retention, excess};

/// How often it is looked whether other controllers have left runs behind.
/// The lease of a run and this together stay below 10 s.
pub(super) const LOOK_EVERY: Duration = Duration::from_secs(2);

/// How often old runs are removed.
const PRUNE_EVERY: Duration = Duration::from_hours(1);

/// How long runs that have ended are kept: whichever limit is reached first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunRetention {
    pub max_age: Duration,
    pub max_bytes: u64,
    pub max_runs: usize,
}

impl Default for RunRetention {
    fn default() -> Self {
        Self { max_age: Duration::from_hours(24 * 90), max_bytes: 4 << 30, max_runs: 1000 }
    }
}

/// Reads runs back, lets them go on, removes old ones, and leaves all of them at the end.
pub(super) async fn keep(runs: Runs, retention: RunRetention, stopping: CancellationToken) {
    let all = runs.clone();
    let recovered = tokio::task::spawn_blocking(move || all.recover()).await;
    if recovered.is_err() {
        tracing::error!("runs were not read back");
    }
    let mut look = tokio::time::interval(LOOK_EVERY);
    look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut beat = tokio::time::interval(PRUNE_EVERY);
    beat.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = stopping.cancelled() => break,
            _ = beat.tick() => {}
            _ = look.tick(), if runs.are_shared() => {
                let all = runs.clone();
                if tokio::task::spawn_blocking(move || all.take_over()).await.is_err() {
                    tracing::error!("cannot examine the runs of other controllers");
                }
                continue;
            }
        }
        let all = runs.clone();
        let pruned =
            tokio::task::spawn_blocking(move || prune(&all, retention, Timestamp::now())).await;
        if let Ok(count @ 1..) = pruned {
            tracing::info!(count, "old runs removed");
        }
    }
    let left = tokio::task::spawn_blocking(move || runs.leave()).await;
    if left.is_err() {
        tracing::error!("runs were not left in good order");
    }
}

/// Removes expired runs and returns their number. Blocks.
fn prune(runs: &Runs, retention: RunRetention, now: Timestamp) -> usize {
    let mut ended: Vec<_> = runs.list().into_iter().filter(|run| run.ended.is_some()).collect();
    // The oldest first.
    ended.reverse();
    let ages = ended.iter().map(|run| {
        let at = run.ended.as_deref().and_then(|at| at.parse().ok());
        (at, folder::size(runs.root(), &run.id))
    });
    let RunRetention { max_age, max_bytes, max_runs } = retention;
    let by_age = excess(ages, now, Retention { max_age, max_bytes });
    let cut = by_age.max(ended.len().saturating_sub(max_runs));
    let mut count = 0;
    for run in &ended[..cut] {
        match runs.remove(&run.id) {
            Ok(()) => count += 1,
            Err(error) => {
                tracing::warn!(run = run.id, error = %chain(&error), "old run not removed");
            }
        }
    }
    count
}
