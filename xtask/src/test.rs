//! Every test, with the minutes each part took.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use crate::{cargo, run_command, say, setup};

/// All of `make test`, builds included, on two cores.
const BUDGET: Duration = Duration::from_hours(1);

/// How many cases each property is tried with in a full run; the usual number is 256.
const FULL_CASES: &str = "8192";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Extent {
    Usual,
    /// Ignored tests too, many more cases of each property, no limit of time.
    Full,
}

pub(crate) fn run(extent: Extent) -> Result<()> {
    let started = Instant::now();
    setup::test()?;
    let mut parts: Vec<(&str, Duration)> = Vec::new();
    let mut part = |name: &'static str, command: &mut Command| {
        let started = Instant::now();
        let done = run_command(command);
        parts.push((name, started.elapsed()));
        done
    };
    // Without --lib --bins --tests, `cargo test` would run the doc tests twice.
    let kinds = ["--workspace", "--lib", "--bins", "--tests"];
    part("build", cargo().arg("test").args(kinds).arg("--no-run"))?;
    part("tests", &mut tests(extent, kinds))?;
    part("doc tests", cargo().args(["test", "--workspace", "--doc"]))?;

    say("");
    for (name, took) in &parts {
        say(format!("{name:10} {:5.1} min", took.as_secs_f64() / 60.0));
    }
    let whole = started.elapsed();
    say(format!("{:10} {:5.1} min", "whole", whole.as_secs_f64() / 60.0));
    let in_time = extent == Extent::Full || whole <= BUDGET;
    ensure!(in_time, "the tests took longer than {} minutes", BUDGET.as_secs() / 60);
    Ok(())
}

fn tests(extent: Extent, kinds: [&str; 4]) -> Command {
    let mut command = cargo();
    if has_nextest() {
        command.args(["nextest", "run", "--no-fail-fast"]).args(kinds);
        if extent == Extent::Full {
            command.args(["--run-ignored", "all"]);
        }
    } else {
        command.args(["test", "--quiet", "--no-fail-fast"]).args(kinds);
        if extent == Extent::Full {
            command.args(["--", "--include-ignored"]);
        }
    }
    if extent == Extent::Full && std::env::var_os("PROPTEST_CASES").is_none() {
        command.env("PROPTEST_CASES", FULL_CASES);
    }
    command
}

fn has_nextest() -> bool {
    let mut command = cargo();
    command.args(["nextest", "--version"]).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}
