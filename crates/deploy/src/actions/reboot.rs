//! `reboot`: restarts the machine.
//!
//! The process that asks for the reboot does not live to report it. The machine keeps the id of the
//! boot in which it was asked; the step is done when the boot id differs.

use std::path::Path;
use std::time::{Duration, Instant};

use hoist_diagnostic::Diagnostic;
use hoist_engine::action::{Ability, Action, ApplyOutcome, Ctx, Description, Failure, Verdict};
use hoist_engine::plan::Step;
use hoist_engine::record::FailureKind;
use serde_json::Value;

use super::input::parse;
use super::program::{self, Options, words};
use super::{described, exit, invalid, io_error, place};

/// So long it may take to go down.
const GOING_DOWN: Duration = Duration::from_mins(10);
const NAP: Duration = Duration::from_millis(100);
const MAX_DELAY: u64 = 24 * 3600 * 1000;

pub(super) struct Reboot {
    program: &'static str,
    boot_id: &'static str,
}

impl Default for Reboot {
    fn default() -> Self {
        Self { program: "systemctl", boot_id: "/proc/sys/kernel/random/boot_id" }
    }
}

fn read(input: &Value) -> Result<Duration, Vec<Diagnostic>> {
    parse(input, |input| {
        let after = input.number("after_ms").unwrap_or(0);
        if after > MAX_DELAY {
            input.report("after_ms", "it is longer than a day");
        }
        Some(Duration::from_millis(after))
    })
}

impl Reboot {
    fn boot(&self) -> Result<String, Failure> {
        let id = fs_err::read_to_string(self.boot_id).map_err(|error| io_error(&error))?;
        Ok(id.trim().to_owned())
    }

    /// The boot in which this attempt asked for another; `None` if it did not.
    fn asked_in(ctx: &Ctx<'_>) -> Result<Option<String>, Failure> {
        match fs_err::read_to_string(place::own("reboot", ctx)) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            found => found.map(Some).map_err(|error| io_error(&error)),
        }
    }

    fn refuse_directory(ctx: &Ctx<'_>) -> Result<(), Failure> {
        if ctx.directory == Path::new("/") {
            return Ok(());
        }
        let reason = format!(
            "`{}` is a directory of the controller's machine, which is not rebooted",
            ctx.subject
        );
        // Nothing was changed, so there is nothing to undo and nothing to retry.
        Err(Failure { kind: FailureKind::Precheck, reason })
    }
}

impl Action for Reboot {
    fn describe(&self) -> Description {
        let about = "reboots the machine and waits until it is up again";
        Description {
            tools: vec![self.program.to_owned()],
            ..described("reboot", about, &[Ability::Verify])
        }
    }

    fn validate(&self, input: &Value) -> Vec<Diagnostic> {
        read(input).err().unwrap_or_default()
    }

    fn apply(&self, step: &Step, ctx: &mut Ctx<'_>) -> Result<ApplyOutcome, Failure> {
        let after = read(&step.call.input).map_err(invalid)?;
        Self::refuse_directory(ctx)?;
        let now = self.boot()?;
        if Self::asked_in(ctx)?.is_some_and(|then| then != now) {
            return Ok(ApplyOutcome { changed: true, receipt: Value::Null });
        }
        wait(after, ctx)?;
        let path = place::own("reboot", ctx);
        let kept = fs_err::create_dir_all(path.parent().expect("a file in a directory"))
            .and_then(|()| fs_err::write(&path, &now))
            .and_then(|()| fs_err::File::open(&path)?.sync_all());
        kept.map_err(|error| io_error(&error))?;
        let ran = program::run(&words([self.program, "reboot"]), &Options::default(), ctx)?;
        program::well(&ran)?;
        wait(GOING_DOWN, ctx)?;
        Err(exit("the machine did not go down"))
    }

    fn verify(&self, step: &Step, ctx: &mut Ctx<'_>) -> Result<Verdict, Failure> {
        read(&step.call.input).map_err(invalid)?;
        Self::refuse_directory(ctx)?;
        let now = self.boot()?;
        Ok(match Self::asked_in(ctx)? {
            Some(then) if then != now => Verdict::Holds,
            Some(_) => Verdict::fails("the machine has not gone down"),
            None => Verdict::fails("no reboot was asked for"),
        })
    }
}

fn wait(time: Duration, ctx: &Ctx<'_>) -> Result<(), Failure> {
    let now = Instant::now();
    let until = now + ctx.time_left(now).unwrap_or(time).min(time);
    while Instant::now() < until {
        if ctx.cancel.is_cancelled() {
            return Err(exit("stopped"));
        }
        std::thread::sleep(NAP.min(until.saturating_duration_since(Instant::now())));
    }
    Ok(())
}
