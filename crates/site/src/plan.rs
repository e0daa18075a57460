//! The effect of a change on the site, computed from one roster without side effects.
//!
//! A [`Draft`] collects changes over a roster. [`Draft::finish`] checks the result as a whole
//! (every reference, every unique key) and yields a [`Plan`] or all refusals. The registry commits
//! a plan only on top of the revision it was made for.

mod affected;
pub(crate) mod check;
mod draft;
mod fields;
mod returning_nodes;

use std::fmt;
use std::time::{Duration, Instant};

use hoist_diagnostic::Diagnostic;
use hoist_model::{Kind, NodeId};
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
    /// Permitted but probably unintended effects of the change.
    pub warnings: Vec<String>,
}

/// The change of one document.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Item {
    pub kind: String,
    pub name: String,
    pub change: SiteChange,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fields: Vec<FieldChange>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum SiteChange {
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
///
/// Callers act on the fields. The message of the diagnostic is for people and is never parsed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    pub reason: Reason,
    /// The refused document; `None` when the change as a whole is refused.
    pub subject: Option<DocumentRef>,
    pub diagnostic: Diagnostic,
    /// The refused value of the field, where one value is the cause.
    pub value: Option<String>,
    /// The node that holds the value already.
    pub holder: Option<String>,
}

/// A document by its kind and name: `Node login1`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DocumentRef {
    pub kind: Kind,
    pub name: String,
}

impl DocumentRef {
    pub fn new(kind: Kind, name: &impl fmt::Display) -> Self {
        Self { kind, name: name.to_string() }
    }
}

impl fmt::Display for DocumentRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind, self.name)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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
    pub fn new(
        reason: Reason,
        subject: impl Into<Option<DocumentRef>>,
        diagnostic: Diagnostic,
    ) -> Self {
        Self { reason, subject: subject.into(), diagnostic, value: None, holder: None }
    }

    /// A refusal of the document `kind`/`name`.
    pub fn of(
        reason: Reason,
        kind: Kind,
        name: &impl fmt::Display,
        diagnostic: Diagnostic,
    ) -> Self {
        Self::new(reason, DocumentRef::new(kind, name), diagnostic)
    }

    #[must_use]
    pub fn with_value(mut self, value: &impl fmt::Display) -> Self {
        self.value = Some(value.to_string());
        self
    }

    #[must_use]
    pub fn held_by(mut self, holder: impl Into<String>) -> Self {
        self.holder = Some(holder.into());
        self
    }

    /// The subject as it is printed: `Node login1`, or `the change`.
    pub fn subject_text(&self) -> String {
        self.subject.as_ref().map_or_else(|| "the change".to_owned(), DocumentRef::to_string)
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.subject_text(), self.diagnostic)
    }
}

/// What another context has to say about a plan: it knows what its documents come to.
pub trait Rule: Send + Sync {
    /// Why the plan cannot be done; empty when it can. May add to the affected nodes and to the
    /// warnings. Work that is
    /// done for every node must end with [`ValidationDeadline::refusal`] once the deadline is over.
    fn validate(
        &self,
        before: &Roster,
        plan: &mut Plan,
        deadline: &ValidationDeadline,
    ) -> Vec<Refusal>;

    /// Whether it would say the same about a plan after it has let pass another one on another
    /// roster. It adds no affected nodes then; the warnings of the other plan are taken over.
    fn still_holds(&self, _passed: (&Roster, &Plan), _now: (&Roster, &Plan)) -> bool {
        false
    }
}

/// Longest validation of one change; shorter than the longest request.
pub const MAX_VALIDATION: Duration = Duration::from_secs(20);

/// Validation may take this long even when the caller has hung up: a machine that hangs up early
/// has reported all the same.
const AT_LEAST: Duration = Duration::from_secs(1);

/// The time within which a change must be validated.
#[derive(Debug, Clone)]
pub struct ValidationDeadline {
    begun: Instant,
    limit: Duration,
    unwanted: CancellationToken,
}

impl ValidationDeadline {
    /// Ends after `limit`, or when the caller cancels.
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

    /// The refusal of a change whose validation took too long.
    pub fn refusal(kind: Kind, name: &impl fmt::Display, at: &str) -> Refusal {
        let message =
            format!("validation on its nodes takes longer than {} s", MAX_VALIDATION.as_secs());
        let diagnostic = Diagnostic::new(at, message)
            .hint("make its templates simpler, or let it speak of fewer nodes");
        Refusal::of(Reason::Invalid, kind, name, diagnostic)
    }
}

impl Default for ValidationDeadline {
    fn default() -> Self {
        Self::within(MAX_VALIDATION)
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

    pub fn count(&self, change: SiteChange) -> usize {
        self.items.iter().filter(|item| item.change == change).count()
    }
}

#[cfg(test)]
mod tests;
