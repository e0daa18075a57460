//! `steps`: several actions one after the other, as one task with one attempt.

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::sync::Arc;

use fs_err::os::unix::fs::OpenOptionsExt as _;
use hoist_diagnostic::Diagnostic;
use hoist_engine::action::{
    Ability, Action, ApplyOutcome, Catalog, Ctx, Description, Failure, Observation, Prediction,
    Stream, UndoOutcome, Verdict,
};
use hoist_engine::plan::{AppliedAttempt, Call, Step};
use hoist_engine::record::FailureKind;
use hoist_model::nearest;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::input::{parse, parse_at};
use super::{described, exit, invalid, io_error, place};

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
        let kind = match failure.kind {
            // The list has begun, and those before it may have changed something.
            FailureKind::Precheck => FailureKind::Exit,
            kind => kind,
        };
        Failure { kind, reason: format!("{}: {}", self.name, failure.reason) }
    }

    fn can_undo(&self) -> bool {
        self.action.can_undo(&self.call.input)
    }

    fn can(&self, ability: Ability) -> bool {
        self.action.describe().can.contains(&ability)
    }
}

impl Steps {
    fn read(&self, input: &Value) -> Result<Vec<Part>, Vec<Diagnostic>> {
        parse(input, |input| {
            let Some(list) = input.list("steps") else {
                input.report("steps", "a list is missing");
                return None;
            };
            if list.is_empty() || list.len() > MAX_STEPS {
                input.report(
                    "steps",
                    format!("there are {}; 1 to {MAX_STEPS} are wanted", list.len()),
                );
                return None;
            }
            let mut parts = Vec::new();
            for (at, value) in list.iter().enumerate() {
                match self.part(at, value) {
                    Ok(part) => parts.push(part),
                    Err(diagnostics) => input.extend(diagnostics),
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
                input.report("action", format!("action `{wanted}` not found{hint}"));
                return None;
            };
            let below = |diagnostic: Diagnostic| {
                let at =
                    [&place, "input", &diagnostic.at].join(".").trim_end_matches('.').to_owned();
                Diagnostic { at, ..diagnostic }
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

    fn only_looks(&self, input: &Value) -> bool {
        let looks = |part: &Part| part.action.only_looks(&part.call.input);
        self.read(input).is_ok_and(|parts| parts.iter().all(looks))
    }

    fn can_undo(&self, input: &Value) -> bool {
        self.read(input).is_ok_and(|parts| parts.iter().all(Part::can_undo))
    }

    fn apply(&self, step: &Step, ctx: &mut Ctx<'_>) -> Result<ApplyOutcome, Failure> {
        let parts = self.read(&step.call.input).map_err(invalid)?;
        let mut diary = ProgressLog::of(ctx.attempt, ctx);
        if parts.iter().all(Part::can_undo) {
            diary.begin().map_err(|error| io_error(&error))?;
        }
        let mut changed = false;
        let mut came = Vec::new();
        let attempt = ctx.attempt.to_owned();
        for (at, part) in parts.iter().enumerate() {
            ctx.output.line(Stream::Note, part.name.as_bytes());
            diary.write(&PartOutcome::Begun).map_err(|error| io_error(&error))?;
            let own = format!("{attempt}.{at}");
            let done = part.action.apply(&part.step(step), &mut within(ctx, &own));
            let ApplyOutcome { changed: is_changed, receipt } =
                done.map_err(|failure| part.explain(&failure))?;
            changed |= is_changed;
            let done =
                if is_changed { PartOutcome::Changed { receipt } } else { PartOutcome::Unchanged };
            diary.write(&done).map_err(|error| io_error(&error))?;
            came.push(done);
        }
        if !changed {
            diary.remove();
        }
        Ok(ApplyOutcome { changed, receipt: json!({ "steps": came }) })
    }

    fn is_programs(&self, input: &Value) -> bool {
        let is_program = |part: &Part| part.action.is_programs(&part.call.input);
        self.read(input).is_ok_and(|parts| parts.iter().all(is_program))
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
                Verdict::Fails(Observation { output, exit_code }) => {
                    let output = if output.is_empty() {
                        part.name.clone()
                    } else {
                        format!("{}: {output}", part.name)
                    };
                    return Ok(Verdict::Fails(Observation { output, exit_code }));
                }
            }
        }
        Ok(Verdict::Holds)
    }

    /// The last one first.
    fn undo(
        &self,
        step: &Step,
        made: &AppliedAttempt,
        ctx: &mut Ctx<'_>,
    ) -> Result<UndoOutcome, Failure> {
        let parts = self.read(&step.call.input).map_err(invalid)?;
        let not_possible = |reason: String| Ok(UndoOutcome::NotPossible { reason });
        if let Some(part) = parts.iter().find(|part| !part.can_undo()) {
            let Part { name, call, .. } = part;
            return not_possible(format!("{name}: `{}` has no undo", call.action));
        }
        let came: Vec<PartOutcome> = if made.receipt.is_null() {
            match ProgressLog::of(&made.attempt, ctx).read()? {
                Some(came) => came,
                // Each part is written to the log before it starts.
                None if place::is_kept_still(&made.attempt) => return Ok(UndoOutcome::Undone),
                None => return not_possible("the progress log is missing".to_owned()),
            }
        } else {
            let came = serde_json::from_value(made.receipt["steps"].clone());
            came.map_err(|error| exit(format!("its receipt is of no list: {error}")))?
        };
        if came.len() > parts.len() {
            return not_possible("it was another list".to_owned());
        }
        let attempt = ctx.attempt.to_owned();
        for (at, (part, came)) in parts.iter().zip(came).enumerate().rev() {
            let receipt = match came {
                PartOutcome::Unchanged => continue,
                PartOutcome::Begun => Value::Null,
                PartOutcome::Changed { receipt } => receipt,
            };
            let own = format!("{attempt}.{at}");
            let over_changes = made.over_changes;
            let attempt = format!("{}.{at}", made.attempt);
            let of_part = AppliedAttempt { attempt, receipt, over_changes };
            let undone = part.action.undo(&part.step(step), &of_part, &mut within(ctx, &own));
            match undone.map_err(|failure| part.explain(&failure))? {
                UndoOutcome::Undone => {}
                UndoOutcome::NotPossible { reason } => {
                    return not_possible(format!("{}: {reason}", part.name));
                }
            }
        }
        Ok(UndoOutcome::Undone)
    }

    /// Predicts each part alone: the changes of earlier parts do not exist yet.
    fn predict(&self, step: &Step, ctx: &mut Ctx<'_>) -> Result<Prediction, Failure> {
        let parts = self.read(&step.call.input).map_err(invalid)?;
        let mut text = String::new();
        let mut changes = false;
        let mut unknown = false;
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
            writeln!(text, "{}: cannot be predicted{why}", part.name).expect("writing to memory");
        }
        Ok(match (changes, unknown) {
            (true, _) => Prediction::Diff(text),
            (false, true) => Prediction::CannotPredict,
            (false, false) => Prediction::NoChange,
        })
    }
}

/// The outcome of a part.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum PartOutcome {
    Begun,
    Unchanged,
    Changed { receipt: Value },
}

/// How far a list came, kept beside its backups: a list that does not come to its end gives no
/// receipt.
struct ProgressLog {
    path: PathBuf,
    file: Option<fs_err::File>,
}

impl ProgressLog {
    fn of(attempt: &str, ctx: &Ctx<'_>) -> Self {
        Self { path: place::of("steps", attempt, ctx), file: None }
    }

    fn begin(&mut self) -> io::Result<()> {
        let dir = self.path.parent().expect("a file in a directory");
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
        place::remove_old(dir);
        let mut options = fs_err::OpenOptions::new();
        self.file = Some(options.append(true).create(true).mode(0o600).open(&self.path)?);
        fs_err::File::open(dir)?.sync_all()
    }

    /// Durable before anything is done after it.
    fn write(&mut self, came: &PartOutcome) -> io::Result<()> {
        let Some(file) = &mut self.file else { return Ok(()) };
        let mut line = serde_json::to_vec(came).map_err(io::Error::other)?;
        line.push(b'\n');
        file.write_all(&line)?;
        file.sync_data()
    }

    /// The outcome of each part that started; `None` if there is no log.
    fn read(&self) -> Result<Option<Vec<PartOutcome>>, Failure> {
        let text = match fs_err::read_to_string(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            text => text.map_err(|error| io_error(&error))?,
        };
        let mut all = Vec::new();
        // A line that was cut short was written before anything was done.
        for line in text.split_inclusive('\n').filter(|line| line.ends_with('\n')) {
            let came: PartOutcome = serde_json::from_str(line)
                .map_err(|error| exit(format!("`{}` is damaged: {error}", self.path.display())))?;
            match came {
                PartOutcome::Begun => all.push(came),
                done => {
                    *all.last_mut()
                        .ok_or_else(|| exit("the progress log has a result without a start"))? =
                        done;
                }
            }
        }
        Ok(Some(all))
    }

    fn remove(self) {
        if self.file.is_some() {
            let _ = fs_err::remove_file(self.path);
        }
    }
}

/// A context for one part. Each part keeps its data under an attempt name of its own.
fn within<'a>(ctx: &'a mut Ctx<'_>, attempt: &'a str) -> Ctx<'a> {
    Ctx {
        attempt,
        task: ctx.task,
        subject: ctx.subject,
        directory: ctx.directory,
        deadline: ctx.deadline,
        cancel: ctx.cancel,
        secrets: ctx.secrets,
        programs: ctx.programs,
        output: &mut *ctx.output,
    }
}
