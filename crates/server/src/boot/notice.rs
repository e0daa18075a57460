//! Telling another service that a machine asked for its boot script.
//!
//! A queue and a few senders behind the answers: no machine waits for it, and when the service is
//! slower than the machines, notices are dropped and counted.

use std::net::SocketAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::http_client::form;

/// Notices that may wait.
const QUEUE: usize = 4096;
/// Concurrent requests.
const AT_ONCE: usize = 16;

/// Cheap to clone; all clones are the same.
#[derive(Debug, Clone)]
pub(super) struct Notices(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    client: reqwest::Client,
    url: String,
    sender: mpsc::Sender<SocketAddr>,
    /// Taken by the one task that sends.
    receiver: Mutex<Option<mpsc::Receiver<SocketAddr>>>,
}

impl Notices {
    pub(super) fn new(client: reqwest::Client, url: String) -> Self {
        let (sender, receiver) = mpsc::channel(QUEUE);
        let receiver = Mutex::new(Some(receiver));
        Self(Arc::new(Inner { client, url, sender, receiver }))
    }

    /// Never waits.
    pub(super) fn tell(&self, from: SocketAddr) {
        if self.0.sender.try_send(from).is_err() {
            metrics::counter!("hoist_boot_notices_dropped_total").increment(1);
        }
    }

    /// Sends queued notices until `stop`.
    pub(super) async fn send(self, stop: CancellationToken) {
        let taken = self.0.receiver.lock().take();
        let Some(mut receiver) = taken else { return };
        let mut under_way = JoinSet::new();
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                Some(_) = under_way.join_next() => {}
                Some(from) = receiver.recv(), if under_way.len() < AT_ONCE => {
                    under_way.spawn(self.clone().send_one(from));
                }
            }
        }
    }

    async fn send_one(self, from: SocketAddr) {
        let from = from.to_string();
        let sent = form(&self.0.client, &self.0.url, &[("data", &from)]).send().await;
        if let Err(error) = sent.and_then(reqwest::Response::error_for_status) {
            metrics::counter!("hoist_boot_notice_failures_total").increment(1);
            let error = hoist_diagnostic::chain(&error.without_url());
            tracing::debug!(error, "a boot notice was not delivered");
        }
    }
}
