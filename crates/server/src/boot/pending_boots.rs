//! One-time boots and started installations: recorded in memory at once and in the store soon
//! after, so that a node gets a one-time boot only once and is known to be installing.
//!
//! Entries that the store cannot take wait in a file.

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::time::Duration;

use fs_err as fs;
use hoist_model::{BootState, NodeId, ServedBoot};
use hoist_site::plan::Draft;
use hoist_site::registry::{Commit, Terms, WriteError};
use hoist_site::{Registry, Roster};
use jiff::Timestamp;
use metrics::Counter;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::inventory::committer;
use hoist_chassis::Chassis;
use hoist_chassis::events::EventBus;
use hoist_chassis::secret;

/// The file in the data directory for entries that wait for the store.
const FILE: &str = "pending-boots.json";

/// Pause after a failed write.
const RETRY: Duration = Duration::from_secs(2);

/// How long one write may take before the waiting entries go to the file.
const WRITE_WITHIN: Duration = Duration::from_secs(4);

/// Nodes in one write.
const BATCH: usize = 1_000;

/// Cheap to clone; all clones are the same.
#[derive(Clone)]
pub struct PendingBoots(Arc<Inner>);

struct Inner {
    registry: Registry,
    events: EventBus,
    kept_back: Counter,
    /// The second of the last log line about a withheld one-time boot.
    told: AtomicI64,
    commit: Arc<dyn Commit>,
    file: PathBuf,
    /// Entries that the store does not have yet, in order.
    waiting: Mutex<Waiting>,
    /// The number of nodes with waiting entries, so that most requests need not lock.
    count: AtomicUsize,
    news: Notify,
}

type Waiting = HashMap<NodeId, Vec<ServedBoot>>;

/// Entries that a draft includes, per node; dropped when the draft is committed.
pub(super) type IncludedEntries = Vec<(NodeId, usize)>;

impl PendingBoots {
    pub fn new(chassis: &Chassis, registry: Registry, dir: &Path) -> Self {
        let commit = committer(chassis, "boot");
        let file = dir.join(FILE);
        let waiting = read(&file).unwrap_or_else(|error| {
            tracing::error!(%error, "pending one-time boots of before the start are lost");
            Waiting::new()
        });
        let count = AtomicUsize::new(waiting.len());
        let news = Notify::new();
        if !waiting.is_empty() {
            news.notify_one();
        }
        let waiting = Mutex::new(waiting);
        let kept_back = metrics::counter!("hoist_boot_once_kept_back_total");
        let events = chassis.events.clone();
        let told = AtomicI64::new(0);
        Self(Arc::new(Inner {
            registry,
            events,
            kept_back,
            told,
            commit,
            file,
            waiting,
            count,
            news,
        }))
    }

    /// Reports a request for a node's script from a foreign address, which got no one-time boot.
    /// Operators must know, because it may have been the node itself.
    pub(super) fn kept_back(&self, node: NodeId, from: IpAddr, now: Timestamp) {
        let Inner { registry, events, kept_back, told, .. } = &*self.0;
        kept_back.increment(1);
        // At most one line a second: a scan over all nodes must not fill the log.
        let now = now.as_second();
        if told.swap(now, Ordering::Relaxed) == now {
            return;
        }
        let roster = registry.load();
        let Some(node) = roster.by_id(node) else { return };
        tracing::warn!(
            node = %node.name, %from,
            "a configuration for one boot is kept back: the request is not from the node's address; \
             if a proxy asks for nodes, name it in `http.trusted_proxies`"
        );
        let told = serde_json::json!({"from": from});
        events.publish("boot.once-kept-back", &format!("node/{}", node.name), told);
    }

    /// The boot state of a node, including unwritten entries.
    pub(super) fn state(&self, roster: &Roster, node: NodeId) -> Option<Arc<BootState>> {
        let written = roster.boot_state(node);
        if self.0.count.load(Ordering::Acquire) == 0 {
            return written.cloned();
        }
        let waiting = self.waiting();
        let Some(outs) = waiting.get(&node) else { return written.cloned() };
        let mut state = match written {
            Some(state) => BootState::clone(state),
            None => BootState::new(node, "boot", outs.first()?.at),
        };
        for out in outs {
            state.note_served(out);
        }
        Some(Arc::new(state))
    }

    pub(super) fn push(&self, node: NodeId, out: ServedBoot) {
        let mut waiting = self.waiting();
        waiting.entry(node).or_default().push(out);
        self.0.count.store(waiting.len(), Ordering::Release);
        self.0.news.notify_one();
    }

    /// Adds a node's waiting entries to a draft before the draft changes its state.
    pub(super) fn settle(&self, draft: &mut Draft<'_>, node: NodeId) -> Option<(NodeId, usize)> {
        let outs = self.waiting().get(&node).cloned()?;
        note(draft, node, &outs);
        Some((node, outs.len()))
    }

    /// Drops the entries of a committed draft.
    pub(super) fn written(&self, settled: &IncludedEntries) {
        let mut waiting = self.waiting();
        for (node, count) in settled {
            let Some(outs) = waiting.get_mut(node) else { continue };
            outs.drain(..outs.len().min(*count));
            if outs.is_empty() {
                waiting.remove(node);
            }
        }
        self.0.count.store(waiting.len(), Ordering::Release);
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.0.waiting.lock()
    }

    /// Writes waiting entries to the store, and a last time on `stop`.
    pub async fn write(self, stop: CancellationToken) {
        let mut kept = Waiting::new();
        loop {
            let stopping = tokio::select! {
                () = stop.cancelled() => true,
                () = self.0.news.notified() => false,
            };
            while let Err(error) = self.write_all().await {
                let error = hoist_diagnostic::chain(&error);
                tracing::warn!(error, "one-time boots are not written yet");
                self.keep(&mut kept).await;
                if stop.is_cancelled() {
                    return;
                }
                tokio::select! {
                    () = stop.cancelled() => {}
                    () = tokio::time::sleep(RETRY) => {}
                }
            }
            if stopping {
                return;
            }
            kept.clear();
        }
    }

    async fn write_all(&self) -> Result<(), PendingBootsError> {
        loop {
            let batch: Vec<_> = {
                let waiting = self.waiting();
                let batch = waiting.iter().take(BATCH);
                batch.map(|(node, outs)| (*node, outs.clone())).collect()
            };
            if batch.is_empty() {
                return self.forget_file().map_err(PendingBootsError::File);
            }
            match tokio::time::timeout(WRITE_WITHIN, self.write_batch(&batch)).await {
                Ok(written) => written.map_err(PendingBootsError::Write)?,
                Err(_) => return Err(PendingBootsError::Timeout),
            }
            self.written(&batch.iter().map(|(node, outs)| (*node, outs.len())).collect());
        }
    }

    async fn write_batch(&self, batch: &[(NodeId, Vec<ServedBoot>)]) -> Result<(), WriteError> {
        let terms = Terms { skip_change_guard: true, ..Terms::default() };
        let draft = |draft: &mut Draft<'_>| {
            for (node, outs) in batch {
                note(draft, *node, outs);
            }
            Ok(())
        };
        self.0.registry.write(terms, self.0.commit.as_ref(), draft).await.map(drop)
    }

    /// Writes the waiting entries to the file, where a restart finds them.
    async fn keep(&self, kept: &mut Waiting) {
        let waiting = self.waiting().clone();
        if waiting == *kept {
            return;
        }
        let text = serde_json::to_vec(&waiting).expect("plain values");
        let file = self.0.file.clone();
        let written =
            tokio::task::spawn_blocking(move || secret::write_atomic(&file, &text, 0o600)).await;
        match written.map_err(io::Error::other).flatten() {
            Ok(()) => *kept = waiting,
            Err(error) => tracing::error!(%error, "one-time boots would not survive a stop"),
        }
    }

    fn forget_file(&self) -> io::Result<()> {
        match fs::remove_file(&self.0.file) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}

/// Why waiting one-time boots are not in the store yet.
#[derive(Debug, thiserror::Error)]
enum PendingBootsError {
    #[error("cannot write to the store")]
    Write(#[source] WriteError),
    #[error("the store took longer than {WRITE_WITHIN:?}")]
    Timeout,
    #[error("cannot remove the file of one-time boots")]
    File(#[source] io::Error),
}

fn read(file: &Path) -> io::Result<Waiting> {
    match fs::read(file) {
        Ok(text) => Ok(serde_json::from_slice(&text)?),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Waiting::new()),
        Err(error) => Err(error),
    }
}

/// Entries of a node that was removed meanwhile are dropped.
fn note(draft: &mut Draft<'_>, node: NodeId, outs: &[ServedBoot]) {
    if draft.node(node).is_some() {
        for out in outs {
            draft.note_served_boot(node, out);
        }
    }
}

impl std::fmt::Debug for PendingBoots {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PendingBoots").finish_non_exhaustive()
    }
}
