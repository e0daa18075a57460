//! `file`: a file with this text.

use hoist_diagnostic::Diagnostic;
use hoist_engine::action::{
    Ability, Action, ApplyOutcome, Ctx, Description, Failure, Prediction, UndoOutcome, Verdict,
};
use hoist_engine::plan::{AppliedAttempt, Step};
use serde_json::Value;

use super::backup::{self, Backup};
use super::input::parse;
use super::put::{Content, DesiredFile, owners};
use super::{described, invalid, place, preview};

pub(super) struct File;

struct Input {
    path: String,
    text: String,
    mode: Option<u32>,
    owner: Option<String>,
    group: Option<String>,
}

fn read(input: &Value) -> Result<Input, Vec<Diagnostic>> {
    parse(input, |input| {
        let path = input.wanted("path").map(str::to_owned);
        let text = input.text("text").map(str::to_owned);
        if text.is_none() && input.get("text").is_none() {
            input.report("text", "the field is missing; give it a value");
        }
        let mode = input.mode("mode");
        let owner = input.text("owner").map(str::to_owned);
        let group = input.text("group").map(str::to_owned);
        Some(Input { path: path?, text: text?, mode, owner, group })
    })
}

impl Input {
    fn wanted(&self) -> Result<DesiredFile<'_>, Failure> {
        let (owner, group) = owners(self.owner.as_deref(), self.group.as_deref())?;
        Ok(DesiredFile { content: Content::Text(&self.text), mode: self.mode, owner, group })
    }
}

impl Action for File {
    fn describe(&self) -> Description {
        let can = [Ability::Verify, Ability::Check, Ability::Undo];
        described("file", "writes a file; as a check, it holds if the file is like that", &can)
    }

    fn validate(&self, input: &Value) -> Vec<Diagnostic> {
        read(input).err().unwrap_or_default()
    }

    fn apply(&self, step: &Step, ctx: &mut Ctx<'_>) -> Result<ApplyOutcome, Failure> {
        let mut backup = Backup::new(ctx);
        let input = read(&step.call.input).map_err(invalid)?;
        let changed = input.wanted()?.put(&place::to_write(&input.path, ctx)?, &mut backup)?;
        Ok(ApplyOutcome { changed, receipt: backup.receipt()? })
    }

    fn verify(&self, step: &Step, ctx: &mut Ctx<'_>) -> Result<Verdict, Failure> {
        let input = read(&step.call.input).map_err(invalid)?;
        input.wanted()?.verdict(&place::to_write(&input.path, ctx)?)
    }

    fn undo(
        &self,
        _: &Step,
        made: &AppliedAttempt,
        ctx: &mut Ctx<'_>,
    ) -> Result<UndoOutcome, Failure> {
        backup::restore(made, ctx)
    }

    fn predict(&self, step: &Step, ctx: &mut Ctx<'_>) -> Result<Prediction, Failure> {
        let input = read(&step.call.input).map_err(invalid)?;
        let path = place::to_write(&input.path, ctx)?;
        let Some(differs) = input.wanted()?.differs(&path)? else {
            return Ok(Prediction::NoChange);
        };
        let new = preview::of_mode(input.mode).map(|()| input.text.clone());
        Ok(preview::change(&input.path, &differs, preview::of_file(&path)?, new))
    }
}
