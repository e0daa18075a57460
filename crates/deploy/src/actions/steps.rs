//! `steps`: several actions one after the other, as one task with one attempt.

use std::fmt::Write as _;
use std::sync::Arc;

use hoist_engine::action::{
    Ability, Action, Catalog, Ctx, Description, Diagnostic, Done, Failure, Prediction, Stream,
    Undone, Verdict,
};
use hoist_engine::plan::{Call, Step};
use hoist_model::nearest;
use serde_json::{Value, json};

use super::input::{parse, parse_at};
use super::{described, exit, invalid};

/// Actions of one list.
pub(super) const MAX_STEPS: usize = 100;

/// With what lists can call; not itself.
pub(super) struct Steps(pub(super) Catalog);

struct Part {
    name: String,
    call: Call,
    action: Arc<dyn Action>,
}

impl Part {
    fn step(&self, whole: &Step) -> Step {
        Step { call: self.call.clone(), ..whole.clone() }
    }

    fn explain(&self, failure: &Failure) -> Failure {
        Failure { kind: failure.kind, reason: format!("{}: {}", self.name, failure.reason) }
    }

    fn can(&self, ability: Ability) -> bool {
        self.action.describe().can.contains(&ability)
    }
}

impl Steps {
    fn read(&self, input: &Value) -> Result<Vec<Part>, Vec<Diagnostic>> {
        parse(input, |input| {
            let Some(list) = input.list("steps") else {
                input.fault("steps", "a list is missing");
                return None;
            };
            if list.is_empty() || list.len() > MAX_STEPS {
                input.fault(
                    "steps",
                    format!("there are {}; 1 to {MAX_STEPS} are wanted", list.len()),
                );
                return None;
            }
            let mut parts = Vec::new();
            for (at, value) in list.iter().enumerate() {
                match self.part(at, value) {
                    Ok(part) => parts.push(part),
                    Err(faults) => input.extend(faults),
                }
            }
            Some(parts)
        })
    }

    fn part(&self, at: usize, value: &Value) -> Result<Part, Vec<Diagnostic>> {
        let place = format!("steps[{at}]");
        parse_at(value, place.clone(), |input| {
            let name = input.text("name").map(str::to_owned);
            let given = input.get("input").cloned().unwrap_or(Value::Null);
            let wanted = input.wanted("action")?;
            let Some(action) = self.0.get(wanted).cloned() else {
                let close = nearest(wanted, self.0.iter().map(|(name, _)| name));
                let hint =
                    close.map(|close| format!("; did you mean `{close}`?")).unwrap_or_default();
                input.fault("action", format!("there is no action `{wanted}`{hint}"));
                return None;
            };
            let below = |fault: Diagnostic| {
                let at = [&place, "input", &fault.at].join(".").trim_end_matches('.').to_owned();
                Diagnostic { at, ..fault }
            };
            input.extend(action.validate(&given).into_iter().map(below).collect());
            let name = name.unwrap_or_else(|| format!("{wanted} ({} of the list)", at + 1));
            let call = Call { action: wanted.to_owned(), input: given, ..Call::default() };
            Some(Part { name, call, action })
        })
    }
}

impl Action for Steps {
    fn describe(&self) -> Description {
        let can = [Ability::Check, Ability::Undo];
        described("steps", "does several things one after the other", &can)
    }

    fn validate(&self, input: &Value) -> Vec<Diagnostic> {
        self.read(input).err().unwrap_or_default()
    }

    fn apply(&self, step: &Step, ctx: &mut Ctx<'_>) -> Result<Done, Failure> {
        let parts = self.read(&step.call.input).map_err(invalid)?;
        let (mut changed, mut receipts) = (false, Vec::new());
        let attempt = ctx.attempt.to_owned();
        for (at, part) in parts.iter().enumerate() {
            ctx.output.line(Stream::Note, part.name.as_bytes());
            let own = format!("{attempt}.{at}");
            let done = part.action.apply(&part.step(step), &mut within(ctx, &own));
            let done = done.map_err(|failure| part.explain(&failure))?;
            changed |= done.changed;
            receipts.push(done.receipt);
        }
        Ok(Done { changed, receipt: json!({ "steps": receipts }) })
    }

    /// All of those that can tell; as a check, all have to be able to.
    fn verify(&self, step: &Step, ctx: &mut Ctx<'_>) -> Result<Verdict, Failure> {
        let parts = self.read(&step.call.input).map_err(invalid)?;
        for part in &parts {
            if !part.can(Ability::Check) && !part.can(Ability::Verify) {
                return Err(exit(format!(
                    "{}: `{}` cannot be a check",
                    part.name, part.call.action
                )));
            }
            let verdict = part.action.verify(&part.step(step), ctx);
            match verdict.map_err(|failure| part.explain(&failure))? {
                Verdict::Holds => {}
                Verdict::DoesNot { reason } => {
                    return Ok(Verdict::DoesNot { reason: format!("{}: {reason}", part.name) });
                }
            }
        }
        Ok(Verdict::Holds)
    }

    /// The last one first. Nothing is taken back if something could not be.
    fn undo(&self, step: &Step, receipt: &Value, ctx: &mut Ctx<'_>) -> Result<Undone, Failure> {
        let parts = self.read(&step.call.input).map_err(invalid)?;
        let Some(receipts) = receipt["steps"].as_array() else { return Ok(Undone::NotPossible) };
        if receipts.len() != parts.len() || !parts.iter().all(|part| part.can(Ability::Undo)) {
            return Ok(Undone::NotPossible);
        }
        let attempt = ctx.attempt.to_owned();
        for (at, (part, receipt)) in parts.iter().zip(receipts).enumerate().rev() {
            let own = format!("{attempt}.{at}");
            let undone = part.action.undo(&part.step(step), receipt, &mut within(ctx, &own));
            if undone.map_err(|failure| part.explain(&failure))? == Undone::NotPossible {
                return Err(exit(format!("{}: it cannot be taken back", part.name)));
            }
        }
        Ok(Undone::Undone)
    }

    /// Each by itself: what one would find of the others is not there yet.
    fn predict(&self, step: &Step, ctx: &mut Ctx<'_>) -> Result<Prediction, Failure> {
        let parts = self.read(&step.call.input).map_err(invalid)?;
        let (mut text, mut changes, mut unknown) = (String::new(), false, false);
        for part in &parts {
            let why = match part.action.predict(&part.step(step), ctx) {
                Ok(Prediction::NoChange) => continue,
                Ok(Prediction::Diff(diff)) => {
                    changes = true;
                    text.push_str(&diff);
                    continue;
                }
                Ok(Prediction::CannotPredict) => String::new(),
                Err(failure) => format!(": {}", failure.reason),
            };
            unknown = true;
            writeln!(text, "{}: cannot be told{why}", part.name).expect("writing to memory");
        }
        Ok(match (changes, unknown) {
            (true, _) => Prediction::Diff(text),
            (false, true) => Prediction::CannotPredict,
            (false, false) => Prediction::NoChange,
        })
    }
}

/// Each one keeps what it needs under a name of its own.
fn within<'a>(ctx: &'a mut Ctx<'_>, attempt: &'a str) -> Ctx<'a> {
    Ctx {
        attempt,
        task: ctx.task,
        subject: ctx.subject,
        directory: ctx.directory,
        deadline: ctx.deadline,
        cancel: ctx.cancel,
        secrets: ctx.secrets,
        output: &mut *ctx.output,
    }
}
