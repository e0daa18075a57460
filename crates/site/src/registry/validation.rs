//! Validation of a change by the rules, without the write lock: rendering a layer for every node of
//! a site may take seconds, and other writers must not wait for it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;

use super::WriteError;
use crate::plan::{MAX_VALIDATION, Plan, Rule, ValidationDeadline};
use crate::roster::Roster;

/// How often a change is validated again because the site changed during validation.
pub(super) const MAX_ROUNDS: usize = 5;

/// A validation this short is repeated under the write lock: other writers hardly wait, and
/// it is not overtaken.
const QUICK: Duration = Duration::from_millis(50);

tokio::task_local! {
    static CANCELLED: CancellationToken;
}

/// Runs `work`; validation stops once the token is cancelled. A commit under way is completed.
pub async fn until_cancelled<F: Future>(unwanted: CancellationToken, work: F) -> F::Output {
    CANCELLED.scope(unwanted, work).await
}

/// The validation of one change.
pub(super) struct Validation {
    rules: Vec<Arc<dyn Rule>>,
    unwanted: CancellationToken,
    /// Of what all rounds together may take.
    left: Duration,
    took: Duration,
    rounds: usize,
    last: Option<ValidatedPlan>,
}

/// An accepted plan, and the roster it was validated on.
struct ValidatedPlan {
    roster: Arc<Roster>,
    plan: Plan,
}

impl Validation {
    pub(super) fn new(rules: Vec<Arc<dyn Rule>>) -> Self {
        let unwanted = CANCELLED.try_with(Clone::clone).unwrap_or_default();
        let left = MAX_VALIDATION;
        let took = Duration::ZERO;
        Self { rules, unwanted, left, took, rounds: 0, last: None }
    }

    /// Lets the rules validate a plan on a blocking thread. They stop when the caller has hung up.
    pub(super) async fn validate(
        &mut self,
        roster: &Arc<Roster>,
        mut plan: Plan,
    ) -> Result<(), WriteError> {
        let roster = Arc::clone(roster);
        if self.rules.is_empty() || plan.is_empty() {
            self.last = Some(ValidatedPlan { roster, plan });
            return Ok(());
        }
        let unwanted = self.unwanted.child_token();
        let _stops = unwanted.clone().drop_guard();
        let deadline = ValidationDeadline::new(self.left, unwanted.clone());
        let rules = self.rules.clone();
        let waiting = deadline.clone();
        let began = Instant::now();
        let judging = tokio::task::spawn_blocking(move || {
            let mut said = rules.iter().map(|rule| rule.validate(&roster, &mut plan, &waiting));
            let refusals = said.find(|refusals| !refusals.is_empty()).unwrap_or_default();
            drop(said);
            (refusals, ValidatedPlan { roster, plan })
        });
        let judged = judging.await;
        let (refusals, tried) =
            judged.unwrap_or_else(|died| std::panic::resume_unwind(died.into_panic()));
        if !refusals.is_empty() {
            if unwanted.is_cancelled() {
                return Err(WriteError::Cancelled);
            }
            // Alone it would have had the time.
            let overtaken = self.rounds > 0 && deadline.is_over();
            return Err(if overtaken {
                WriteError::SiteKeptChanging
            } else {
                WriteError::Refused(refusals)
            });
        }
        self.took = began.elapsed();
        self.left = self.left.saturating_sub(self.took);
        self.last = Some(tried);
        Ok(())
    }

    /// The plan that was judged, if it was on this very roster.
    pub(super) fn judged(&mut self, roster: &Arc<Roster>) -> Option<Plan> {
        let tried = self.last.take_if(|tried| Arc::ptr_eq(&tried.roster, roster));
        tried.map(|tried| tried.plan)
    }

    /// Whether every rule would decide about this plan as about the last one.
    pub(super) fn covers(&self, roster: &Roster, plan: &Plan) -> bool {
        let covered = |tried: &ValidatedPlan| {
            let then = (tried.roster.as_ref(), &tried.plan);
            let now = (roster, plan);
            self.rules.iter().all(|rule| rule.still_holds(then, now))
        };
        plan.is_empty() || self.last.as_ref().is_some_and(covered)
    }

    /// The warnings of the last plan, for a plan that it covers.
    pub(super) fn warnings(&self) -> Vec<String> {
        self.last.as_ref().map(|tried| tried.plan.warnings.clone()).unwrap_or_default()
    }

    /// Whether others would have to wait while it is judged again.
    pub(super) fn is_slow(&self) -> bool {
        self.took > QUICK
    }

    /// Counts a round that was for nothing.
    pub(super) fn overtaken(&mut self) -> Result<(), WriteError> {
        self.rounds += 1;
        if self.rounds > MAX_ROUNDS { Err(WriteError::SiteKeptChanging) } else { Ok(()) }
    }
}
