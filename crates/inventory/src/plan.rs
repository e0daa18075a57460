//! What a change would do to the site: computed from one roster, without side effects.
//!
//! A [`Draft`] collects changes over a roster. [`Draft::finish`] checks the result as a whole
//! (every reference, every unique key) and yields a [`Plan`], or everything that is wrong with it.
//! The registry commits the plan exactly on top of the revision it was made for.

mod affected;
mod check;
mod draft;
mod fields;
mod returning;

use std::fmt;
use std::time::{Duration, Instant};

use hoist_model::{Fault, Kind, NodeId};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

use crate::record::{Resource, ResourceKey};
use crate::roster::Roster;

pub use check::MANAGED_FIELDS;
pub use draft::Draft;

/// A change that is known to be valid on top of `base`.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The revision it was made for.
    pub base: u64,
    pub puts: Vec<Resource>,
    pub deletes: Vec<ResourceKey>,
    pub items: Vec<Item>,
    /// Existing nodes that are removed, or whose boot, role or membership comes out differently.
    pub affected: Vec<NodeId>,
}

/// What happens to one document.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Item {
    pub kind: String,
    pub name: String,
    pub change: Change,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fields: Vec<FieldChange>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Change {
    Created,
    Changed,
    Unchanged,
    Removed,
}

/// One value that changes, by its path inside the spec.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FieldChange {
    pub at: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<serde_json::Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<serde_json::Value>,
}

/// Why a change is refused. Nothing was changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Refusal {
    pub reason: Reason,
    /// `Node login1`.
    pub subject: String,
    #[serde(flatten)]
    pub fault: Fault,
    /// The other side of a clash.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub other: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Reason {
    /// The document itself is wrong.
    Invalid,
    /// Two things want the same unique key.
    Clash,
    /// It refers to something that is not there.
    Missing,
    /// Something else still refers to it.
    InUse,
    /// The node is protected.
    Protected,
    /// The field belongs to the source the node was imported from.
    Managed,
}

impl Refusal {
    pub fn new(reason: Reason, subject: impl Into<String>, fault: Fault) -> Self {
        Self { reason, subject: subject.into(), fault, other: None }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.subject, self.fault)
    }
}

/// What another context has to say about a plan: it knows what its documents come to.
pub trait Rule: Send + Sync {
    /// Why the plan cannot be done; empty when it can. May add to the affected nodes. Whatever is
    /// done for every node ends when patience does, with [`Patience::refusal`].
    fn judge(&self, before: &Roster, plan: &mut Plan, patience: &Patience) -> Vec<Refusal>;

    /// Whether it would say nothing more about a plan, and add nothing to it, after it has let pass
    /// another one on another roster.
    fn holds(&self, _passed: (&Roster, &Plan), _now: (&Roster, &Plan)) -> bool {
        false
    }
}

/// What trying out one change may take in all; less than a request may.
pub const MAX_TRIAL: Duration = Duration::from_secs(20);

/// What is tried out within this time is tried out although nobody waits for it: a machine that
/// hangs up early has reported all the same.
const AT_LEAST: Duration = Duration::from_secs(1);

/// How long somebody waits for a judgement.
#[derive(Debug, Clone)]
pub struct Patience {
    begun: Instant,
    limit: Duration,
    unwanted: CancellationToken,
}

impl Patience {
    /// For so long, and until nobody wants to know any more.
    pub fn new(limit: Duration, unwanted: CancellationToken) -> Self {
        Self { begun: Instant::now(), limit, unwanted }
    }

    pub fn within(limit: Duration) -> Self {
        Self::new(limit, CancellationToken::new())
    }

    pub fn is_over(&self) -> bool {
        let spent = self.begun.elapsed();
        spent >= self.limit || spent >= AT_LEAST && self.unwanted.is_cancelled()
    }

    /// That it was not tried out to the end.
    pub fn refusal(kind: Kind, name: &impl fmt::Display, at: &str) -> Refusal {
        let message =
            format!("trying it out on its nodes takes longer than {} s", MAX_TRIAL.as_secs());
        let fault = Fault::new(at, message)
            .hint("make its templates simpler, or let it speak of fewer nodes");
        Refusal::new(Reason::Invalid, subject(kind, name), fault)
    }
}

impl Default for Patience {
    fn default() -> Self {
        Self::within(MAX_TRIAL)
    }
}

impl Plan {
    /// The roster with the plan carried out.
    pub fn outcome(&self, before: &Roster) -> Roster {
        before.apply(crate::roster::Delta {
            revision: self.base + 1,
            horizon: before.horizon(),
            puts: self.puts.clone(),
            deletes: self.deletes.clone(),
        })
    }

    pub fn is_empty(&self) -> bool {
        self.puts.is_empty() && self.deletes.is_empty()
    }

    pub fn count(&self, change: Change) -> usize {
        self.items.iter().filter(|item| item.change == change).count()
    }
}

fn subject(kind: Kind, name: &impl fmt::Display) -> String {
    format!("{kind} {name}")
}

#[cfg(test)]
mod tests;
