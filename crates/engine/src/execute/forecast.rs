//! What steps would change, found out without changing anything.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

use crate::action::{Cancel, Ctx, Failure, Prediction, Secrets as _};
use crate::plan::{Plan, StepId};
use crate::record::FailureKind;

use super::output::{Redactions, Watched, references_of};
use super::{Site, said, subject};

/// What somebody elsewhere says that a step would change; or why that cannot be told.
pub type Foretold = (StepId, Result<Prediction, String>);

/// Looks at the steps of one plan. No secret that the plan names is shown.
#[derive(Debug)]
pub struct Forecast<'a> {
    site: &'a Site,
    plan: &'a Plan,
    redactions: Arc<Redactions>,
}

impl<'a> Forecast<'a> {
    pub fn new(site: &'a Site, plan: &'a Plan) -> Self {
        let redactions = Arc::new(Redactions::default());
        let watched = Watched { secrets: &*site.secrets, redactions: &redactions };
        let named: BTreeSet<&str> =
            plan.ids().filter_map(|id| plan.step(id)).flat_map(references_of).collect();
        for reference in named {
            // One that cannot be had is in no file either.
            let _ = watched.get(reference);
        }
        Self { site, plan, redactions }
    }

    /// A text without the secrets that the plan names.
    pub fn hide(&self, text: &str) -> String {
        self.redactions.text(text)
    }

    /// What a step would change, as things are now.
    pub fn of(&self, id: StepId, deadline: Instant) -> Result<Prediction, Failure> {
        let worked = catch_unwind(AssertUnwindSafe(|| self.look(id, deadline)));
        let worked = worked.unwrap_or_else(|panic| {
            let reason = format!("the action broke: {}", said(&*panic));
            Err(Failure { kind: FailureKind::Internal, reason })
        });
        match worked {
            Ok(Prediction::Diff(diff)) => Ok(Prediction::Diff(self.redactions.text(&diff))),
            Ok(other) => Ok(other),
            Err(failure) => {
                Err(Failure { reason: self.redactions.text(&failure.reason), ..failure })
            }
        }
    }

    fn look(&self, id: StepId, deadline: Instant) -> Result<Prediction, Failure> {
        let Some(step) = self.plan.step(id) else { return Ok(Prediction::NoChange) };
        let Some(action) = self.site.catalog.get(&step.call.action) else {
            return Ok(Prediction::CannotPredict);
        };
        let subject = subject(self.plan, id);
        let place = self.site.directory(subject)?;
        let watched = Watched { secrets: &*self.site.secrets, redactions: &self.redactions };
        let mut sink = self.site.outputs.sink(id, 0, &self.redactions);
        let mut ctx = Ctx {
            attempt: "forecast",
            task: &self.plan.vertex(id).name,
            subject,
            directory: &place,
            deadline: Some(deadline),
            cancel: &Cancel::default(),
            secrets: &watched,
            programs: &super::Programs::default(),
            output: &mut sink,
        };
        action.predict(step, &mut ctx)
    }
}
