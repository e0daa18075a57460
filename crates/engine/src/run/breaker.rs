//! The breaker pauses a run when many subjects fail in the same way: the cause is probably shared,
//! so a person decides before all of them fail.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::plan::Step;

/// Characters of a reason's first line that are compared and stored.
const MAX_LINE: usize = 200;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Breaker {
    /// Failed subjects by kin and first line of the reason.
    counts: BTreeMap<(u32, String), BTreeSet<u32>>,
    /// The failures that a person must be asked about.
    asks: Option<SimilarFailures>,
}

/// A breaker in a snapshot.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct BreakerSnapshot {
    counts: Vec<(u32, String, BTreeSet<u32>)>,
    asks: Option<SimilarFailures>,
}

/// Failures of one kind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SimilarFailures {
    pub(super) kin: u32,
    pub(super) subjects: u32,
    pub(super) reason: String,
}

impl Breaker {
    /// Counts a failure. If `limit` is reached, the breaker asks a person.
    pub(super) fn count(&mut self, step: &Step, reason: &str, limit: Option<u32>) {
        let (Some(limit), Some(kin), Some(subject)) = (limit, step.kin, step.subject) else {
            return;
        };
        let line: String =
            reason.lines().next().unwrap_or_default().chars().take(MAX_LINE).collect();
        let failed = self.counts.entry((kin, line.clone())).or_default();
        failed.insert(subject);
        let subjects = u32::try_from(failed.len()).unwrap_or(u32::MAX);
        if subjects >= limit {
            self.asks = Some(SimilarFailures { kin, subjects, reason: line });
        }
    }

    pub(super) fn asks(&self) -> Option<&SimilarFailures> {
        self.asks.as_ref()
    }

    /// A person was asked; later failures count anew.
    pub(super) fn has_asked(&mut self) {
        if let Some(SimilarFailures { kin, reason, .. }) = self.asks.take() {
            self.counts.remove(&(kin, reason));
        }
    }

    pub(super) fn snapshot(&self) -> BreakerSnapshot {
        let counts =
            self.counts.iter().map(|((kin, line), failed)| (*kin, line.clone(), failed.clone()));
        BreakerSnapshot { counts: counts.collect(), asks: self.asks.clone() }
    }
}

impl From<BreakerSnapshot> for Breaker {
    fn from(kept: BreakerSnapshot) -> Self {
        let counts = kept.counts.into_iter().map(|(kin, line, failed)| ((kin, line), failed));
        Self { counts: counts.collect(), asks: kept.asks }
    }
}
