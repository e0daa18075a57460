//! `copy`: a file like another one on the same machine.

use hoist_diagnostic::Diagnostic;
use hoist_engine::action::{
    Ability, Action, ApplyOutcome, Ctx, Description, Failure, Prediction, UndoOutcome, Verdict,
};
use hoist_engine::plan::{AppliedAttempt, Step};
use serde_json::Value;

use super::backup::{self, Backup};
use super::blocks::Until;
use super::input::parse;
use super::put::{Content, DesiredFile};
use super::{described, exit, invalid, place, preview};

pub(super) struct Copy;

struct Input {
    from: String,
    to: String,
    mode: Option<u32>,
}

fn read(input: &Value) -> Result<Input, Vec<Diagnostic>> {
    parse(input, |input| {
        let from = input.wanted("from").map(str::to_owned);
        let to = input.wanted("to").map(str::to_owned);
        let mode = input.mode("mode");
        Some(Input { from: from?, to: to?, mode })
    })
}

impl Input {
    /// Calls `then` with the desired content and its path.
    fn with<T>(
        &self,
        ctx: &Ctx<'_>,
        then: impl FnOnce(&DesiredFile<'_>, &std::path::Path) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let from = place::to_read(&self.from, ctx);
        if !from.is_file() {
            return Err(exit(format!("file `{}` not found", from.display())));
        }
        let to = place::to_write(&self.to, ctx)?;
        let wanted = DesiredFile {
            content: Content::Of(&from, Until::of(ctx)),
            mode: self.mode,
            owner: None,
            group: None,
        };
        then(&wanted, &to)
    }
}

impl Action for Copy {
    fn describe(&self) -> Description {
        let can = [Ability::Verify, Ability::Check, Ability::Undo];
        described("copy", "copies a file; as a check, it holds if both are the same", &can)
    }

    fn validate(&self, input: &Value) -> Vec<Diagnostic> {
        read(input).err().unwrap_or_default()
    }

    fn apply(&self, step: &Step, ctx: &mut Ctx<'_>) -> Result<ApplyOutcome, Failure> {
        let mut backup = Backup::new(ctx);
        let input = read(&step.call.input).map_err(invalid)?;
        let changed = input.with(ctx, |wanted, to| wanted.put(to, &mut backup))?;
        Ok(ApplyOutcome { changed, receipt: backup.receipt()? })
    }

    fn verify(&self, step: &Step, ctx: &mut Ctx<'_>) -> Result<Verdict, Failure> {
        let input = read(&step.call.input).map_err(invalid)?;
        input.with(ctx, |wanted, to| {
            let verdict = wanted.verdict(to)?;
            Ok(verdict)
        })
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
        let from = place::to_read(&input.from, ctx);
        input.with(ctx, |wanted, to| {
            let Some(differs) = wanted.differs(to)? else { return Ok(Prediction::NoChange) };
            let new = preview::of_file(&from)?;
            let new = new.and_then(|text| preview::of_mode(input.mode).map(|()| text));
            Ok(preview::change(&input.to, &differs, preview::of_file(to)?, new))
        })
    }
}
