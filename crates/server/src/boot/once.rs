//! What was handed out to nodes and has consequences: remembered at once, and then written down, so
//! that a node does not get a configuration for one boot twice, and is known to install itself.
//!
//! What cannot be written to the store is kept in a file until it can.

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fs_err as fs;
use hoist_inventory::plan::Draft;
use hoist_inventory::registry::{Commit, Terms, WriteError};
use hoist_inventory::{Registry, Roster};
use hoist_model::{BootState, HandOut, NodeId};
use jiff::Timestamp;
use metrics::Counter;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::events::EventBus;
use crate::inventory::committer;
use crate::secret;
use crate::server::Chassis;

/// What waits for the store, in the data directory.
const FILE: &str = "hand-outs.json";

/// Pause after a failed write.
const RETRY: Duration = Duration::from_secs(2);

/// How long one write may take before what waits goes to the file.
const WRITE_WITHIN: Duration = Duration::from_secs(4);

/// Nodes in one write.
const BATCH: usize = 1_000;

/// Cheap to clone; all clones are the same.
#[derive(Clone)]
pub struct OneBoots(Arc<Inner>);

struct Inner {
    registry: Registry,
    events: EventBus,
    kept_back: Counter,
    /// The second in which it was last told that something was kept back.
    told: AtomicI64,
    commit: Arc<dyn Commit>,
    file: PathBuf,
    /// Not written yet, in order.
    waiting: Mutex<Waiting>,
    /// For how many nodes something waits, so that most requests need not lock.
    count: AtomicUsize,
    news: Notify,
}

type Waiting = HashMap<NodeId, Vec<HandOut>>;

/// What a draft has taken up, to be forgotten when it is committed: how much of which nodes.
pub(super) type Settled = Vec<(NodeId, usize)>;

impl OneBoots {
    pub fn new(chassis: &Chassis, registry: Registry, dir: &Path) -> Self {
        let commit = committer(chassis, "boot");
        let file = dir.join(FILE);
        let waiting = read(&file).unwrap_or_else(|error| {
            tracing::error!(%error, "hand-outs of before the start are lost");
            Waiting::new()
        });
        let count = AtomicUsize::new(waiting.len());
        let news = Notify::new();
        if !waiting.is_empty() {
            news.notify_one();
        }
        let waiting = Mutex::new(waiting);
        let kept_back = metrics::counter!("hoist_boot_once_kept_back_total");
        let (events, told) = (chassis.events.clone(), AtomicI64::new(0));
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

    /// Somebody asked for a node's script who is not at the node's address, and got what the node
    /// gets without its configuration for one boot. People have to know if that is the node itself.
    pub(super) fn kept_back(&self, node: NodeId, from: IpAddr, now: Timestamp) {
        let Inner { registry, events, kept_back, told, .. } = &*self.0;
        kept_back.increment(1);
        // One a second: whoever asks for all nodes must not fill the log.
        let now = now.as_second();
        if told.swap(now, Ordering::Relaxed) == now {
            return;
        }
        let roster = registry.glance();
        let Some(node) = roster.by_id(node) else { return };
        tracing::warn!(
            node = %node.name, %from,
            "a configuration for one boot is kept back: the request is not from the node's address; \
             if a proxy asks for nodes, name it in `http.trusted_proxies`"
        );
        let told = serde_json::json!({"from": from});
        events.publish("boot.once-kept-back", &format!("node/{}", node.name), told);
    }

    /// The boot state of a node, with what is not written yet.
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
            state.hand_out(out);
        }
        Some(Arc::new(state))
    }

    pub(super) fn hand_out(&self, node: NodeId, out: HandOut) {
        let mut waiting = self.waiting();
        waiting.entry(node).or_default().push(out);
        self.0.count.store(waiting.len(), Ordering::Release);
        self.0.news.notify_one();
    }

    /// Puts what waits for a node into a draft that decides about it: what comes later stands.
    pub(super) fn settle(&self, draft: &mut Draft<'_>, node: NodeId) -> Option<(NodeId, usize)> {
        let outs = self.waiting().get(&node).cloned()?;
        note(draft, node, &outs);
        Some((node, outs.len()))
    }

    /// What was settled is written.
    pub(super) fn written(&self, settled: &Settled) {
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
        self.0.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes down what was handed out, and once more when told to stop.
    pub async fn write(self, stop: CancellationToken) {
        let mut kept = Waiting::new();
        loop {
            let stopping = tokio::select! {
                () = stop.cancelled() => true,
                () = self.0.news.notified() => false,
            };
            while let Err(error) = self.write_all().await {
                tracing::warn!(error, "hand-outs are not written yet");
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

    async fn write_all(&self) -> Result<(), String> {
        loop {
            let batch: Vec<_> = {
                let waiting = self.waiting();
                let batch = waiting.iter().take(BATCH);
                batch.map(|(node, outs)| (*node, outs.clone())).collect()
            };
            if batch.is_empty() {
                return self.forget_file().map_err(|error| error.to_string());
            }
            match tokio::time::timeout(WRITE_WITHIN, self.write_batch(&batch)).await {
                Ok(written) => written.map_err(|error| crate::chain(&error))?,
                Err(_) => return Err(format!("the store took longer than {WRITE_WITHIN:?}")),
            }
            self.written(&batch.iter().map(|(node, outs)| (*node, outs.len())).collect());
        }
    }

    async fn write_batch(&self, batch: &[(NodeId, Vec<HandOut>)]) -> Result<(), WriteError> {
        let terms = Terms { no_brake: true, ..Terms::default() };
        let draft = |draft: &mut Draft<'_>| {
            for (node, outs) in batch {
                note(draft, *node, outs);
            }
            Ok(())
        };
        self.0.registry.write(terms, self.0.commit.as_ref(), draft).await.map(drop)
    }

    /// Keeps what waits where a restart finds it.
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
            Err(error) => tracing::error!(%error, "hand-outs would not survive a stop"),
        }
    }

    fn forget_file(&self) -> io::Result<()> {
        match fs::remove_file(&self.0.file) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}

fn read(file: &Path) -> io::Result<Waiting> {
    match fs::read(file) {
        Ok(text) => Ok(serde_json::from_slice(&text)?),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Waiting::new()),
        Err(error) => Err(error),
    }
}

/// A node that is gone meanwhile has nothing left to remember.
fn note(draft: &mut Draft<'_>, node: NodeId, outs: &[HandOut]) {
    if draft.node(node).is_some() {
        for out in outs {
            draft.note_hand_out(node, out);
        }
    }
}

impl std::fmt::Debug for OneBoots {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OneBoots").finish_non_exhaustive()
    }
}
