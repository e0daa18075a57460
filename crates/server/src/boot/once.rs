//! Configurations for one boot: remembered when they are handed out, and then written down, so that
//! a node does not get them twice.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hoist_inventory::Registry;
use hoist_inventory::registry::{Commit, Terms};
use hoist_model::{Name, NodeId};
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::inventory::committer;
use crate::server::Chassis;

/// A machine that fails to load what it was given tries again: for so long that is the same boot.
const SAME_BOOT: Duration = Duration::from_mins(15);

/// Pause after a failed write.
const RETRY: Duration = Duration::from_secs(2);

/// Cheap to clone; all clones are the same.
#[derive(Clone)]
pub struct OneBoots(Arc<Inner>);

struct Inner {
    registry: Registry,
    commit: Arc<dyn Commit>,
    given: Mutex<HashMap<NodeId, Given>>,
    /// How many there are, so that most requests need not lock.
    count: AtomicUsize,
    news: Notify,
}

struct Given {
    config: Name,
    at: Instant,
    written: bool,
}

impl OneBoots {
    pub fn new(chassis: &Chassis, registry: Registry) -> Self {
        let commit = committer(chassis, "boot");
        let given = Mutex::default();
        let count = AtomicUsize::new(0);
        Self(Arc::new(Inner { registry, commit, given, count, news: Notify::new() }))
    }

    /// What the node was given, and whether this is still that boot.
    pub(super) fn given(&self, node: NodeId, retry: u32) -> Option<(Name, bool)> {
        if self.0.count.load(Ordering::Acquire) == 0 {
            return None;
        }
        let given = self.0.given.lock().unwrap_or_else(PoisonError::into_inner);
        let given = given.get(&node)?;
        let same_boot = retry > 0 && given.at.elapsed() < SAME_BOOT;
        // Once it is written, the roster says what was had.
        (same_boot || !given.written).then(|| (given.config.clone(), same_boot))
    }

    pub(super) fn hand_out(&self, node: NodeId, config: &Name, retry: u32) {
        let mut given = self.0.given.lock().unwrap_or_else(PoisonError::into_inner);
        // Named again after it was had, it is had again.
        let known = given.get(&node).is_some_and(|given| {
            let same_boot = !given.written || retry > 0 && given.at.elapsed() < SAME_BOOT;
            given.config == *config && same_boot
        });
        if !known {
            let fresh = Given { config: config.clone(), at: Instant::now(), written: false };
            given.insert(node, fresh);
            self.0.count.store(given.len(), Ordering::Release);
            self.0.news.notify_one();
        }
    }

    /// Writes down what was handed out, until told to stop.
    pub async fn write(self, stop: CancellationToken) {
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = self.0.news.notified() => {}
            }
            while let Err(error) = self.write_all().await {
                tracing::warn!(error = %crate::chain(&error), "boots for one time not written yet");
                tokio::select! {
                    () = stop.cancelled() => return,
                    () = tokio::time::sleep(RETRY) => {}
                }
            }
        }
    }

    async fn write_all(&self) -> Result<(), hoist_inventory::registry::WriteError> {
        let waiting: Vec<(NodeId, Name)> = {
            let mut given = self.0.given.lock().unwrap_or_else(PoisonError::into_inner);
            given.retain(|_, given| !given.written || given.at.elapsed() < SAME_BOOT);
            self.0.count.store(given.len(), Ordering::Release);
            let unwritten = given.iter().filter(|(_, given)| !given.written);
            unwritten.map(|(node, given)| (*node, given.config.clone())).collect()
        };
        if waiting.is_empty() {
            return Ok(());
        }
        let terms = Terms { no_brake: true, ..Terms::default() };
        let draft = |draft: &mut hoist_inventory::plan::Draft<'_>| {
            for (node, name) in &waiting {
                // Gone meanwhile: there is nothing left to remember.
                if draft.node(*node).is_none() {
                    continue;
                }
                let config = draft.roster().boot_config(name).cloned();
                draft.amend_boot_state(*node, "boot", |state| {
                    if state.once.as_ref() == Some(name) {
                        state.once = None;
                    }
                    if let Some(config) = config.filter(|config| config.spec.once) {
                        state.spent.insert(name.clone(), config.revision);
                    }
                });
            }
            Ok(())
        };
        self.0.registry.write(terms, self.0.commit.as_ref(), draft).await?;
        let mut given = self.0.given.lock().unwrap_or_else(PoisonError::into_inner);
        for (node, name) in waiting {
            if let Some(given) = given.get_mut(&node).filter(|given| given.config == name) {
                given.written = true;
            }
        }
        Ok(())
    }
}

impl std::fmt::Debug for OneBoots {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OneBoots").finish_non_exhaustive()
    }
}
