//! The boot state that follows from a step of a run, written in the same transaction as the step.

use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use hoist_api::provision::NodeRunState;
use hoist_model::{BootMode, BootState, NodeId, Provisioning};
use hoist_site::Roster;
use hoist_site::plan::{Draft, Plan};
use hoist_site::registry::{About, Commit, WriteError};
use hoist_store::{Compare, Key, Op, Revision, StoreError, Txn};
use jiff::Timestamp;
use parking_lot::Mutex;

use super::record::UndoState;
use crate::audited_commit::AuditedCommit;

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
    Restore(Box<Option<BootState>>),
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
            Self::Before(before) | Self::Restore(before) => {
                let before = before.as_ref().as_ref();
                state.decide(now, |state| state.mode = before.and_then(|before| before.mode));
                state.reason = before.and_then(|before| before.reason.clone());
                if matches!(self, Self::Restore(_)) {
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

impl UndoState {
    /// Nothing was restored: a node with a system boots it, every other node is held.
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

/// Commits run records together with a change of the site.
pub(super) struct Together {
    audit: AuditedCommit,
    rest: Mutex<Option<(Vec<Compare>, Vec<Op>)>>,
    /// Set if the run's records changed since they were read; the registry cannot read them again.
    overtaken: AtomicBool,
}

impl Together {
    pub(super) fn new(audit: AuditedCommit, compares: Vec<Compare>, ops: Vec<Op>) -> Self {
        let rest = Mutex::new(Some((compares, ops)));
        Self { audit, rest, overtaken: AtomicBool::new(false) }
    }

    /// The run records that were not written because the site did not change.
    pub(super) fn left(&self) -> Option<Txn> {
        let left = self.rest.lock().take();
        left.map(|(compares, ops)| Txn { compares, ops })
    }
}

#[async_trait]
impl Commit for Together {
    async fn commit(&self, mut txn: Txn, about: &About) -> Result<Revision, StoreError> {
        let rest = self.rest.lock().clone();
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
