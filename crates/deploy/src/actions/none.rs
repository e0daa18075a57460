//! `none`: nothing.

use hoist_diagnostic::Diagnostic;
use hoist_engine::action::{
    Ability, Action, ApplyOutcome, Ctx, Description, Failure, Prediction, UndoOutcome, Verdict,
};
use hoist_engine::plan::{AppliedAttempt, Step};
use serde_json::Value;

use super::described;
use super::input::parse;

pub(super) struct None;

impl Action for None {
    fn describe(&self) -> Description {
        described("none", "does nothing", &[Ability::Verify, Ability::Undo])
    }

    fn validate(&self, input: &Value) -> Vec<Diagnostic> {
        parse(input, |_| Some(())).err().unwrap_or_default()
    }

    fn apply(&self, _: &Step, _: &mut Ctx<'_>) -> Result<ApplyOutcome, Failure> {
        Ok(ApplyOutcome::default())
    }

    fn verify(&self, _: &Step, _: &mut Ctx<'_>) -> Result<Verdict, Failure> {
        Ok(Verdict::Holds)
    }

    fn only_looks(&self, _: &Value) -> bool {
        true
    }

    fn undo(&self, _: &Step, _: &AppliedAttempt, _: &mut Ctx<'_>) -> Result<UndoOutcome, Failure> {
        Ok(UndoOutcome::Undone)
    }

    fn predict(&self, _: &Step, _: &mut Ctx<'_>) -> Result<Prediction, Failure> {
        Ok(Prediction::NoChange)
    }
}
