//! `wait`: until something is there, or for some time.

use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use hoist_diagnostic::Diagnostic;
use hoist_engine::action::{
    Ability, Action, ApplyOutcome, Ctx, Description, Failure, UndoOutcome, Verdict,
};
use hoist_engine::plan::{AppliedAttempt, Step};
use serde_json::Value;

use super::blocks::Until;
use super::input::parse;
use super::{described, invalid, place, timeout};

/// Where the task does not say how long it may take.
const LONGEST: Duration = Duration::from_hours(1);
const EVERY: Duration = Duration::from_millis(250);
const CONNECT: Duration = Duration::from_secs(2);
const NAP: Duration = Duration::from_millis(20);

pub(super) struct Wait;

enum For {
    Tcp(String),
    Path(String),
    Time(Duration),
}

fn read(input: &Value) -> Result<For, Vec<Diagnostic>> {
    parse(input, |input| {
        let Some(given) = input.get("for") else {
            input.report("for", "the field is missing; give it a value");
            return None;
        };
        let mut all = super::input::parse_at(given, "for".to_owned(), |input| {
            let tcp = input.text("tcp").map(|address| For::Tcp(address.to_owned()));
            let path = input.text("path").map(|path| For::Path(path.to_owned()));
            let time = input.number("ms").map(|ms| For::Time(Duration::from_millis(ms)));
            let all: Vec<For> = [tcp, path, time].into_iter().flatten().collect();
            if all.len() != 1 {
                input.report("", "exactly one of `tcp`, `path` and `ms` is required");
            }
            if let Some(For::Tcp(address)) = all.first() {
                let port = address.rsplit_once(':').and_then(|(_, port)| port.parse::<u16>().ok());
                if port.is_none() {
                    input.report(
                        "tcp",
                        format!("`{address}` is no address; write it like `host:5432`"),
                    );
                }
            }
            Some(all)
        });
        match &mut all {
            Ok(all) => all.pop(),
            Err(diagnostics) => {
                input.extend(std::mem::take(diagnostics));
                None
            }
        }
    })
}

/// Why it is not there yet.
fn look(wanted: &For, ctx: &Ctx<'_>) -> Result<(), String> {
    match wanted {
        For::Time(_) => Ok(()),
        For::Path(path) => {
            let path = place::to_read(path, ctx);
            let is_there = path.symlink_metadata().is_ok();
            is_there.then_some(()).ok_or_else(|| format!("`{}` does not exist", path.display()))
        }
        For::Tcp(address) => {
            let addresses =
                address.to_socket_addrs().map_err(|error| format!("`{address}`: {error}"))?;
            let mut reason = format!("`{address}` has no address");
            for found in addresses {
                match TcpStream::connect_timeout(&found, CONNECT) {
                    Ok(_) => return Ok(()),
                    Err(error) => reason = format!("`{address}`: {error}"),
                }
            }
            Err(reason)
        }
    }
}

/// Sleeps, and wakes up early if the step shall end.
fn sleep(time: Duration, ctx: &Ctx<'_>) -> Result<(), Failure> {
    let until = Instant::now() + time;
    loop {
        Until::of(ctx).look()?;
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        std::thread::sleep(left.min(NAP));
    }
}

impl Action for Wait {
    fn describe(&self) -> Description {
        let can = [Ability::Verify, Ability::Check, Ability::Undo];
        let about = "waits for a port, a path, or some time; as a check, it looks once";
        Description { network: true, ..described("wait", about, &can) }
    }

    fn validate(&self, input: &Value) -> Vec<Diagnostic> {
        read(input).err().unwrap_or_default()
    }

    fn apply(&self, step: &Step, ctx: &mut Ctx<'_>) -> Result<ApplyOutcome, Failure> {
        let wanted = read(&step.call.input).map_err(invalid)?;
        if let For::Time(time) = wanted {
            sleep(time, ctx)?;
            return Ok(ApplyOutcome::default());
        }
        let until = Instant::now() + LONGEST;
        while let Err(reason) = look(&wanted, ctx) {
            if Instant::now() > until {
                return Err(timeout(reason));
            }
            sleep(EVERY, ctx).map_err(|failure| Failure { reason: reason.clone(), ..failure })?;
        }
        Ok(ApplyOutcome::default())
    }

    fn verify(&self, step: &Step, ctx: &mut Ctx<'_>) -> Result<Verdict, Failure> {
        let wanted = read(&step.call.input).map_err(invalid)?;
        Ok(match look(&wanted, ctx) {
            Ok(()) => Verdict::Holds,
            Err(reason) => Verdict::fails(reason),
        })
    }

    fn only_looks(&self, _: &Value) -> bool {
        true
    }

    fn undo(&self, _: &Step, _: &AppliedAttempt, _: &mut Ctx<'_>) -> Result<UndoOutcome, Failure> {
        Ok(UndoOutcome::Undone)
    }
}
