//! The one task set: everything that runs in the background is started here, told to stop by one
//! token, and joined before the process ends.

use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex};

use futures_util::FutureExt;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Clones share one set.
#[derive(Debug, Clone, Default)]
pub struct Tasks {
    tracker: TaskTracker,
    stopping: CancellationToken,
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
        self.tracker.spawn(async move {
            if AssertUnwindSafe(task).catch_unwind().await.is_err() {
                tracing::error!(task = name, "background task panicked");
                panicked.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(name);
            }
        });
    }

    /// Cancelled when the server begins to stop.
    pub fn stopping(&self) -> &CancellationToken {
        &self.stopping
    }

    /// Waits for every task and names those that panicked.
    pub async fn join(&self) -> Vec<&'static str> {
        self.tracker.close();
        self.tracker.wait().await;
        self.panicked.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone()
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
        assert_eq!(tasks.join().await, ["kettle"]);
    }
}
