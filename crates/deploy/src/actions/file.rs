//! `file`: a file with this text.

use hoist_diagnostic::Diagnostic;
use hoist_engine::action::{
    Ability, Action, ApplyOutcome, Ctx, Description, Failure, Prediction, Purpose, Script,
    UndoOutcome, Verdict,
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
            input.fault("text", "it is missing");
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

/// Where there is nothing of ours, the same in few words.
const APPLY: &str = r#"set -eu
umask 077
if [ -e "$HOIST_PATH" ] && [ ! -f "$HOIST_PATH" ]; then
    echo "\`$HOIST_PATH\` is no plain file and is not replaced; remove it first" >&2
    exit 1
fi
new=$(dirname -- "$HOIST_PATH")/.hoist-$$
trap 'rm -f -- "$new"' EXIT
mkdir -p -- "$(dirname -- "$HOIST_PATH")"
cp -- "$HOIST_TEXT" "$new"
chmod -- "${HOIST_MODE:-0644}" "$new"
[ -z "${HOIST_OWNER:-}" ] || chown -- "$HOIST_OWNER" "$new"
[ -z "${HOIST_GROUP:-}" ] || chgrp -- "$HOIST_GROUP" "$new"
if cmp -s -- "$HOIST_TEXT" "$HOIST_PATH" &&
    [ "$(stat -c '%a %U %G' -- "$new")" = "$(stat -c '%a %U %G' -- "$HOIST_PATH")" ]; then
    exit 3
fi
mv -f -- "$new" "$HOIST_PATH"
"#;

const VERIFY: &str = r#"cmp -- "$HOIST_TEXT" "$HOIST_PATH" || exit 1
[ -z "${HOIST_MODE:-}" ] || [ "$(stat -c %a -- "$HOIST_PATH")" = "$HOIST_MODE" ] || { echo "another mode" >&2; exit 1; }
[ -z "${HOIST_OWNER:-}" ] || [ "$(stat -c %U -- "$HOIST_PATH")" = "$HOIST_OWNER" ] || { echo "another owner" >&2; exit 1; }
[ -z "${HOIST_GROUP:-}" ] || [ "$(stat -c %G -- "$HOIST_PATH")" = "$HOIST_GROUP" ] || { echo "another group" >&2; exit 1; }
"#;

const PREDICT: &str = r#"is_open() { case $1 in *[4567]) return 0 ;; *) return 1 ;; esac; }
old=$HOIST_PATH
now=$(stat -c %a -- "$HOIST_PATH" 2>/dev/null)
if [ -L "$HOIST_PATH" ]; then
    echo "\`$HOIST_PATH\` is a link"
    exit 10
elif [ ! -e "$HOIST_PATH" ]; then
    what="\`$HOIST_PATH\` does not exist"
    old=/dev/null
elif [ ! -f "$HOIST_PATH" ]; then
    echo "\`$HOIST_PATH\` is no plain file" >&2
    exit 1
elif ! cmp -s -- "$HOIST_TEXT" "$HOIST_PATH"; then
    what="\`$HOIST_PATH\` has another content"
elif [ -n "${HOIST_MODE:-}" ] && [ "$now" != "$HOIST_MODE" ]; then
    echo "\`$HOIST_PATH\`: its mode is $now, not $HOIST_MODE"
    exit 10
elif [ -n "${HOIST_OWNER:-}" ] && [ "$(stat -c %U -- "$HOIST_PATH")" != "$HOIST_OWNER" ]; then
    echo "\`$HOIST_PATH\` belongs to another user"
    exit 10
elif [ -n "${HOIST_GROUP:-}" ] && [ "$(stat -c %G -- "$HOIST_PATH")" != "$HOIST_GROUP" ]; then
    echo "\`$HOIST_PATH\` belongs to another group"
    exit 10
else
    exit 0
fi
if ! is_open "${HOIST_MODE:-4}" || ! is_open "${now:-4}"; then
    echo "$what"
    echo "(not shown: not everybody may read it)"
elif ! diff -u -L "$HOIST_PATH" -L "$HOIST_PATH" "$old" "$HOIST_TEXT" 2>/dev/null; then
    [ $? -lt 2 ] || echo "$what"
fi
exit 10
"#;

const UNCHANGED: i32 = 3;

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

    fn script(&self, input: &Value, purpose: Purpose) -> Option<Script> {
        let text = match purpose {
            Purpose::Apply => APPLY,
            Purpose::Verify => VERIFY,
        };
        script(input, text)
    }

    fn predict_script(&self, input: &Value) -> Option<Script> {
        script(input, PREDICT)
    }
}

fn script(input: &Value, text: &str) -> Option<Script> {
    let input = read(input).ok()?;
    let mode = input.mode.map(|mode| format!("{mode:o}"));
    let values = [
        ("PATH", Some(input.path)),
        ("MODE", mode),
        ("OWNER", input.owner),
        ("GROUP", input.group),
    ];
    let env =
        values.into_iter().filter_map(|(name, value)| Some((format!("HOIST_{name}"), value?)));
    Some(Script {
        text: text.to_owned(),
        env: env.collect(),
        files: [("HOIST_TEXT".to_owned(), input.text)].into(),
        unchanged: vec![UNCHANGED],
        ..Script::default()
    })
}
