//! Hearing the rules about a change while nobody waits: trying a layer out on every node of a site
//! may take seconds, and the site's other writers have no part in it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;

use super::WriteError;
use crate::plan::{MAX_TRIAL, Patience, Plan, Rule};
use crate::roster::Roster;

/// How often a change is tried out again because what it was tried out on was changed meanwhile.
pub(super) const MAX_ROUNDS: usize = 5;

/// What took no longer than this is tried out again while other writers wait: they hardly do, and
/// it is not overtaken.
const QUICK: Duration = Duration::from_millis(50);

tokio::task_local! {
    static UNWANTED: CancellationToken;
}

/// Runs `work`; once the token is cancelled, nothing is tried out for it any more. What is being
/// committed is committed all the same.
pub async fn while_wanted<F: Future>(unwanted: CancellationToken, work: F) -> F::Output {
    UNWANTED.scope(unwanted, work).await
}

/// What the rules say about one change.
pub(super) struct Trial {
    rules: Vec<Arc<dyn Rule>>,
    unwanted: CancellationToken,
    /// Of what all rounds together may take.
    left: Duration,
    took: Duration,
    rounds: usize,
    last: Option<Tried>,
}

/// A plan as the rules left it, and what they looked at.
struct Tried {
    roster: Arc<Roster>,
    plan: Plan,
}

impl Trial {
    pub(super) fn new(rules: Vec<Arc<dyn Rule>>) -> Self {
        let unwanted = UNWANTED.try_with(Clone::clone).unwrap_or_default();
        let (left, took) = (MAX_TRIAL, Duration::ZERO);
        Self { rules, unwanted, left, took, rounds: 0, last: None }
    }

    /// Lets the rules judge a plan, on a thread of their own. They stop when nobody waits for them.
    pub(super) async fn judge(
        &mut self,
        roster: &Arc<Roster>,
        mut plan: Plan,
    ) -> Result<(), WriteError> {
        let roster = Arc::clone(roster);
        if self.rules.is_empty() || plan.is_empty() {
            self.last = Some(Tried { roster, plan });
            return Ok(());
        }
        let unwanted = self.unwanted.child_token();
        let _stops = unwanted.clone().drop_guard();
        let patience = Patience::new(self.left, unwanted.clone());
        let (rules, waiting, began) = (self.rules.clone(), patience.clone(), Instant::now());
        let judging = tokio::task::spawn_blocking(move || {
            let mut said = rules.iter().map(|rule| rule.judge(&roster, &mut plan, &waiting));
            let refusals = said.find(|refusals| !refusals.is_empty()).unwrap_or_default();
            drop(said);
            (refusals, Tried { roster, plan })
        });
        let judged = judging.await;
        let (refusals, tried) =
            judged.unwrap_or_else(|died| std::panic::resume_unwind(died.into_panic()));
        if !refusals.is_empty() {
            if unwanted.is_cancelled() {
                return Err(WriteError::Unwanted);
            }
            // Alone it would have had the time.
            let overtaken = self.rounds > 0 && patience.is_over();
            return Err(if overtaken {
                WriteError::Overtaken
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

    /// Whether every rule would say of this plan what it said of the last one.
    pub(super) fn covers(&self, roster: &Roster, plan: &Plan) -> bool {
        let covered = |tried: &Tried| {
            let (then, now) = ((tried.roster.as_ref(), &tried.plan), (roster, plan));
            self.rules.iter().all(|rule| rule.holds(then, now))
        };
        plan.is_empty() || self.last.as_ref().is_some_and(covered)
    }

    /// Whether others would have to wait while it is judged again.
    pub(super) fn is_slow(&self) -> bool {
        self.took > QUICK
    }

    /// Counts a round that was for nothing.
    pub(super) fn overtaken(&mut self) -> Result<(), WriteError> {
        self.rounds += 1;
        if self.rounds > MAX_ROUNDS { Err(WriteError::Overtaken) } else { Ok(()) }
    }
}
