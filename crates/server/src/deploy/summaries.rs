//! Summaries of all controllers' runs in the store. They are observed state, not declared: a
//! summary does not change the site revision.

use std::sync::Arc;

use hoist_api::deploy::RunSummary;
use hoist_diagnostic::chain;
use hoist_store::{Key, Op, Store, StoreError, Txn};
use tokio::sync::mpsc;

use hoist_chassis::Chassis;
use hoist_chassis::scan::{ScanStep, walk};

#[derive(Debug, Clone)]
pub(super) struct Summaries {
    store: Arc<dyn Store>,
    /// To the one who writes, so that the last word is the last one said.
    ops: mpsc::UnboundedSender<Op>,
}

impl Summaries {
    pub(super) fn new(chassis: &Chassis) -> Self {
        let (ops, mut told) = mpsc::unbounded_channel();
        let store = Arc::clone(&chassis.store);
        let stopping = chassis.tasks.stopping().clone();
        chassis.tasks.spawn("summaries of runs", async move {
            loop {
                let op = tokio::select! {
                    op = told.recv() => op,
                    () = stopping.cancelled() => return,
                };
                let Some(op) = op else { return };
                let txn = Txn { compares: Vec::new(), ops: vec![op] };
                if let Err(error) = store.commit(txn).await {
                    tracing::warn!(error = %chain(&error), "summary of a run not stored");
                }
            }
        });
        Self { store: Arc::clone(&chassis.store), ops }
    }

    /// Later, and never at all if the store is away: the journal is what counts.
    pub(super) fn keep(&self, summary: &RunSummary) {
        let value = serde_json::to_vec(summary).expect("a plain value");
        self.commit(Op::Put(key(&summary.id), value));
    }

    pub(super) fn forget(&self, id: &str) {
        self.commit(Op::Delete(key(id)));
    }

    fn commit(&self, op: Op) {
        // The writer is gone when the controller ends.
        let _ = self.ops.send(op);
    }

    /// Of all controllers, the oldest first.
    pub(super) async fn list(&self) -> Result<Vec<RunSummary>, StoreError> {
        let mut found = Vec::new();
        walk(self.store.as_ref(), &top(), None, |record| {
            // One of a newer version is left to a newer program.
            found.extend(serde_json::from_slice(&record.value));
            ScanStep::Go
        })
        .await?;
        Ok(found)
    }
}

fn top() -> Key {
    "run".parse().expect("a literal key")
}

pub(super) fn key(id: &str) -> Key {
    top().child(id)
}
