//! `none`: nothing.

use hoist_engine::action::{
    Ability, Action, Ctx, Description, Diagnostic, Done, Failure, Prediction, Purpose, Script,
    Undone, Verdict,
};
use hoist_engine::plan::{Made, Step};
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

    fn apply(&self, _: &Step, _: &mut Ctx<'_>) -> Result<Done, Failure> {
        Ok(Done::default())
    }

    fn verify(&self, _: &Step, _: &mut Ctx<'_>) -> Result<Verdict, Failure> {
        Ok(Verdict::Holds)
    }

    fn only_looks(&self, _: &Value) -> bool {
        true
    }

    fn undo(&self, _: &Step, _: &Made, _: &mut Ctx<'_>) -> Result<Undone, Failure> {
        Ok(Undone::Undone)
    }

    fn predict(&self, _: &Step, _: &mut Ctx<'_>) -> Result<Prediction, Failure> {
        Ok(Prediction::NoChange)
    }

    fn script(&self, _: &Value, _: Purpose) -> Option<Script> {
        Some(Script { text: ":".to_owned(), unchanged: vec![0], ..Script::default() })
    }
}
