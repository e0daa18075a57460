//! The one task set: everything that runs in the background is started here, told to stop by one
//! token, and joined before the process ends.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Clones share one set.
#[derive(Debug, Clone, Default)]
pub struct Tasks {
    tracker: TaskTracker,
    stopping: CancellationToken,
    abort: CancellationToken,
    panicked: Arc<Mutex<Vec<&'static str>>>,
}

impl Tasks {
    /// Starts `task`, which must end soon after [`Tasks::stopping`] is cancelled.
    ///
    /// A panic is logged, remembered for [`Tasks::join`] and stops nothing else.
    pub fn spawn<F>(&self, name: &'static str, task: F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let panicked = Arc::clone(&self.panicked);
        let abort = self.abort.clone();
        self.tracker.spawn(async move {
            let outcome = tokio::select! {
                outcome = AssertUnwindSafe(task).catch_unwind() => outcome,
                () = abort.cancelled() => {
                    tracing::error!(task = name, "background task did not stop in time");
                    return;
                }
            };
            if outcome.is_err() {
                tracing::error!(task = name, "background task panicked");
                panicked.lock().push(name);
            }
        });
    }

    /// Cancelled when the server begins to stop.
    pub fn stopping(&self) -> &CancellationToken {
        &self.stopping
    }

    /// Waits for every task and names those that panicked. What still runs after `limit` is
    /// dropped: a hanging store must not keep the process from ending.
    pub async fn join(&self, limit: Duration) -> Vec<&'static str> {
        self.tracker.close();
        if tokio::time::timeout(limit, self.tracker.wait()).await.is_err() {
            self.abort.cancel();
            self.tracker.wait().await;
        }
        self.panicked.lock().clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_panicking_task_is_named_and_the_others_are_joined() {
        let tasks = Tasks::default();
        tasks.spawn("kettle", async { panic!("boiled over") });
        let stopping = tasks.stopping().clone();
        tasks.spawn("teapot", async move { stopping.cancelled().await });
        tasks.stopping().cancel();
        assert_eq!(tasks.join(Duration::from_mins(1)).await, ["kettle"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_task_that_does_not_stop_is_dropped() {
        let tasks = Tasks::default();
        tasks.spawn("stubborn", std::future::pending());
        assert!(tasks.join(Duration::from_secs(1)).await.is_empty());
    }
}
