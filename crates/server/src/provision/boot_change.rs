//! What a step of a run means for what the node boots, written in the same transaction.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use async_trait::async_trait;
use hoist_api::provision::NodeRunState;
use hoist_inventory::Roster;
use hoist_inventory::plan::{Draft, Plan};
use hoist_inventory::registry::{About, Commit, WriteError};
use hoist_model::{BootMode, BootState, NodeId, Provisioning};
use hoist_store::{Compare, Key, Op, Revision, StoreError, Txn};
use jiff::Timestamp;

use super::record::Undoing;
use crate::audit::Committer;

#[derive(Debug, Clone)]
pub(super) enum BootChange {
    /// It boots the agent.
    Agent(Provisioning),
    /// It has something on its disk to boot from.
    Disk,
    /// It waits for people.
    Hold(String),
    /// As it was before the run.
    Before(Box<Option<BootState>>),
    /// As it was before the run, and so are its disks.
    PutBack(Box<Option<BootState>>),
    /// It has no disk with anything on it any more, and is turned away.
    Retired,
}

impl BootChange {
    pub(super) fn draft(&self, draft: &mut Draft<'_>, node: NodeId, by: &str, now: Timestamp) {
        if draft.node(node).is_none() {
            return;
        }
        draft.amend_boot_state(node, by, |state| self.amend(state, now));
        if matches!(self, Self::Retired) {
            draft.amend_node(node, |node| node.spec.enabled = false);
        }
    }

    fn amend(&self, state: &mut BootState, now: Timestamp) {
        state.provisioning = None;
        match self {
            Self::Agent(provisioning) => state.provisioning = Some(provisioning.clone()),
            Self::Disk => {
                state.decide(now, |state| state.mode = Some(BootMode::Disk));
                state.reason = None;
                state.installed = Some(now);
                state.installing = None;
            }
            Self::Hold(reason) => {
                state.decide(now, |state| state.mode = Some(BootMode::Hold));
                state.reason = Some(reason.clone());
            }
            Self::Before(before) | Self::PutBack(before) => {
                let before = before.as_ref().as_ref();
                state.decide(now, |state| state.mode = before.and_then(|before| before.mode));
                state.reason = before.and_then(|before| before.reason.clone());
                if matches!(self, Self::PutBack(_)) {
                    state.installed = before.and_then(|before| before.installed);
                    state.installing = None;
                }
            }
            Self::Retired => {
                state.decide(now, |state| state.mode = Some(BootMode::Hold));
                state.reason = Some("retired: its disks are erased".to_owned());
                state.installed = None;
                state.installing = None;
            }
        }
    }
}

impl Undoing {
    /// Nothing was put back: who had a system boots it, and all others wait for people.
    pub(super) fn boot_as_it_was(&self, run: &str) -> BootChange {
        let state = self.state;
        match (state, &self.boot) {
            // It has not booted its system yet: its agent was at work until then.
            (NodeRunState::Done, None) => return BootChange::Disk,
            (NodeRunState::Done, boot) => return BootChange::Before(Box::new(boot.clone())),
            _ => {}
        }
        BootChange::Hold(format!("provisioning {state} in run {run}, see hoist provision status"))
    }
}

/// Writes what is kept of runs together with what the site declares.
pub(super) struct Together {
    audit: Committer,
    rest: Mutex<Option<(Vec<Compare>, Vec<Op>)>>,
    /// Somebody else was faster with what is kept of the run: reading again is not for the registry.
    overtaken: AtomicBool,
}

impl Together {
    pub(super) fn new(audit: Committer, compares: Vec<Compare>, ops: Vec<Op>) -> Self {
        let rest = Mutex::new(Some((compares, ops)));
        Self { audit, rest, overtaken: AtomicBool::new(false) }
    }

    /// What was not written because the site declares nothing new.
    pub(super) fn left(&self) -> Option<Txn> {
        let left = self.rest.lock().unwrap_or_else(PoisonError::into_inner).take();
        left.map(|(compares, ops)| Txn { compares, ops })
    }
}

#[async_trait]
impl Commit for Together {
    async fn commit(&self, mut txn: Txn, about: &About) -> Result<Revision, StoreError> {
        let rest = self.rest.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let (compares, ops) = rest.unwrap_or_default();
        let own: Vec<Key> = compares.iter().map(key_of).collect();
        txn.compares.extend(compares);
        txn.ops.extend(ops);
        let stored = self.audit.commit(txn, about).await.inspect_err(|error| {
            if matches!(error, StoreError::Conflict { key } if own.contains(key)) {
                self.overtaken.store(true, Ordering::Relaxed);
            }
        })?;
        self.left();
        Ok(stored)
    }

    fn review(&self, _: &Roster, _: &Plan) -> Result<(), WriteError> {
        if self.overtaken.load(Ordering::Relaxed) { Err(WriteError::Precondition) } else { Ok(()) }
    }
}

fn key_of(compare: &Compare) -> Key {
    match compare {
        Compare::At(key, _) | Compare::Absent(key) => key.clone(),
    }
}
