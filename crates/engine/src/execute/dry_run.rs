//! Predicts the changes of the steps of a plan without making them.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

use crate::action::{Cancel, Ctx, Failure, Prediction, Secrets as _};
use crate::plan::{Plan, Step, StepId};
use crate::record::FailureKind;

use super::output::{RedactedSecrets, Redactions};
use super::{ExecutionSite, PredictionError, panic_message};

/// The prediction of a step on another machine, or the reason why there is none.
pub type DryRunResult = (StepId, Result<Prediction, PredictionError>);

/// Predicts the steps of one plan. Secrets that the plan names are redacted.
#[derive(Debug)]
pub struct DryRun<'a> {
    site: &'a ExecutionSite,
    plan: &'a Plan,
    redactions: Arc<Redactions>,
}

impl<'a> DryRun<'a> {
    pub fn new(site: &'a ExecutionSite, plan: &'a Plan) -> Self {
        let redactions = Arc::new(Redactions::default());
        let secrets = RedactedSecrets { secrets: &*site.secrets, redactions: &redactions };
        let named: BTreeSet<&str> =
            plan.ids().filter_map(|id| plan.step(id)).flat_map(Step::secret_references).collect();
        for reference in named {
            // A secret that cannot be read is in no file either.
            let _ = secrets.get(reference);
        }
        Self { site, plan, redactions }
    }

    /// Redacts the secrets that the plan names.
    pub fn hide(&self, text: &str) -> String {
        self.redactions.text(text)
    }

    /// Predicts the changes of a step in the current state of its subject.
    pub fn of(&self, id: StepId, deadline: Instant) -> Result<Prediction, Failure> {
        let worked = catch_unwind(AssertUnwindSafe(|| self.look(id, deadline)));
        let worked = worked.unwrap_or_else(|panic| {
            let reason = format!("the action panicked: {}", panic_message(&*panic));
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
        let subject = self.plan.subject(id);
        let place = self.site.directory(subject)?;
        let secrets =
            RedactedSecrets { secrets: &*self.site.secrets, redactions: &self.redactions };
        let mut sink = self.site.outputs.sink(id, 0, &self.redactions);
        let mut ctx = Ctx {
            attempt: "dry-run",
            task: &self.plan.vertex(id).name,
            subject,
            directory: &place,
            deadline: Some(deadline),
            cancel: &Cancel::default(),
            secrets: &secrets,
            programs: &super::AttemptPrograms::default(),
            output: &mut sink,
        };
        action.predict(step, &mut ctx)
    }
}
