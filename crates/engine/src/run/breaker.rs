//! Many subjects that fail alike: the fault is not theirs, so a person is asked before all of them
//! have failed.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::plan::Step;

/// Of the first line of a reason, what is compared and kept.
const MAX_LINE: usize = 200;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Breaker {
    /// Subjects that failed, by kin and the first line of the reason.
    counts: BTreeMap<(u32, String), BTreeSet<u32>>,
    /// What a person is to be asked about.
    asks: Option<Alike>,
}

/// A breaker as it is kept: its counts one after the other, and what it asks about.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Kept {
    counts: Vec<(u32, String, BTreeSet<u32>)>,
    asks: Option<Alike>,
}

/// Failures that are alike.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Alike {
    pub(super) kin: u32,
    pub(super) subjects: u32,
    pub(super) reason: String,
}

impl Breaker {
    /// So many subjects are too many, if there is a limit.
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
            self.asks = Some(Alike { kin, subjects, reason: line });
        }
    }

    pub(super) fn asks(&self) -> Option<&Alike> {
        self.asks.as_ref()
    }

    /// A person was asked; what fails from now on counts anew.
    pub(super) fn has_asked(&mut self) {
        if let Some(Alike { kin, reason, .. }) = self.asks.take() {
            self.counts.remove(&(kin, reason));
        }
    }

    pub(super) fn kept(&self) -> Kept {
        let counts =
            self.counts.iter().map(|((kin, line), failed)| (*kin, line.clone(), failed.clone()));
        Kept { counts: counts.collect(), asks: self.asks.clone() }
    }
}

impl From<Kept> for Breaker {
    fn from(kept: Kept) -> Self {
        let counts = kept.counts.into_iter().map(|(kin, line, failed)| ((kin, line), failed));
        Self { counts: counts.collect(), asks: kept.asks }
    }
}
