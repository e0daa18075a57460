//! Telling systemd how we are. Outside of systemd all of this does nothing.

use sd_notify::NotifyState;

use crate::tasks::Tasks;

/// The server answers requests.
pub fn ready(status: &str) {
    notify(&[NotifyState::Ready, NotifyState::Status(status)]);
}

/// The server is stopping on purpose.
pub fn stopping() {
    notify(&[NotifyState::Stopping]);
}

/// Answers the watchdog, when the unit has one, twice per period.
pub fn start_watchdog(tasks: &Tasks) {
    let Some(period) = sd_notify::watchdog_enabled() else { return };
    let stopping = tasks.stopping().clone();
    tasks.spawn("watchdog", async move {
        let mut beat = tokio::time::interval(period / 2);
        loop {
            tokio::select! {
                _ = beat.tick() => notify(&[NotifyState::Watchdog]),
                () = stopping.cancelled() => return,
            }
        }
    });
}

fn notify(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::warn!(%error, "systemd not notified");
    }
}
