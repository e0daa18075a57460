//! `make test`: sets up, builds, runs every test, and summarises.
//!
//! Belongs here: the order of the parts, the second try of failed tests, the summary. How one test
//! program is run belongs to [`program`]; a time limit for the whole belongs to `.ci/run`, because a
//! user's slow machine is no reason to fail.

mod program;
pub(crate) mod smoke;
mod transcript;

use std::fmt::Write as _;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use parking_lot::Mutex;

use crate::{cargo, root, run_command, say, setup};
use program::{Outcome, Program, TestResult};

/// How many cases each property is tried with in a full run; the usual number is 256.
const FULL_CASES: &str = "8192";

/// Without --lib --bins --tests, cargo would build and run the doc tests twice.
const KINDS: [&str; 4] = ["--workspace", "--lib", "--bins", "--tests"];

/// More tests than this that fail first and pass alone are a broken suite, not bad luck.
const MOST_FLAKY: usize = 5;

const SLOWEST: usize = 20;

/// Where the first output of flaky tests is kept.
const FLAKY_FILE: &str = "target/flaky.txt";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Extent {
    Usual,
    /// Ignored tests too, and many more cases of each property.
    Full,
}

pub(crate) fn run(extent: Extent) -> Result<()> {
    let started = Instant::now();
    setup::test()?;
    let mut parts: Vec<(&str, Duration)> = Vec::new();
    let mut lap = Instant::now();
    let mut part_ended = |name: &'static str| {
        parts.push((name, lap.elapsed()));
        lap = Instant::now();
    };

    run_command(cargo().arg("test").args(KINDS).arg("--no-run"))?;
    let programs = program::built(KINDS)?;
    smoke::check_names(&programs)?;
    part_ended("build");

    let mut results = run_all(programs, extent)?;
    part_ended("tests");
    repeat_failed(&mut results, extent)?;
    part_ended("second try");
    run_command(cargo().args(["test", "--workspace", "--doc"]))?;
    part_ended("doc tests");

    let summary = Summary::of(&results);
    say(summary.text());
    for (name, took) in parts.iter().chain([&("whole", started.elapsed())]) {
        say(format!("{name:10} {:5.1} min", took.as_secs_f64() / 60.0));
    }
    fs_err::write(root().join(FLAKY_FILE), summary.flaky_text())?;
    summary.verdict()
}

/// Runs every program, as many at a time as there are processors. Each runs its own tests one after
/// the other, so that the seconds of a test are its own.
fn run_all(programs: Vec<Program>, extent: Extent) -> Result<Vec<TestResult>> {
    let workers = std::thread::available_parallelism().map_or(2, std::num::NonZero::get);
    let queue = Mutex::new(programs.into_iter());
    let next = || queue.lock().next();
    let work = || -> Result<Vec<TestResult>> {
        let mut results = Vec::new();
        while let Some(program) = next() {
            results.extend(program.run(extent)?);
        }
        Ok(results)
    };
    std::thread::scope(|scope| {
        let handles: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        let mut results = Vec::new();
        for handle in handles {
            results.extend(handle.join().expect("a worker does not panic")?);
        }
        Ok(results)
    })
}

/// Runs each failed test once more, alone on the machine. A test that passes now is flaky.
fn repeat_failed(results: &mut [TestResult], extent: Extent) -> Result<()> {
    for result in results.iter_mut() {
        let Outcome::Failed { output } = &result.outcome else { continue };
        say(format!("once more, alone: {}", result.title()));
        let second = result.program.run_one(&result.name, extent)?;
        if second.outcome == Outcome::Passed {
            result.outcome = Outcome::Flaky { first_output: output.clone() };
        }
    }
    Ok(())
}

struct Summary<'a> {
    results: &'a [TestResult],
    failed: Vec<&'a TestResult>,
    flaky: Vec<(&'a TestResult, &'a str)>,
}

impl<'a> Summary<'a> {
    fn of(results: &'a [TestResult]) -> Self {
        let failed = |result: &&TestResult| matches!(result.outcome, Outcome::Failed { .. });
        let flaky = |result: &'a TestResult| match &result.outcome {
            Outcome::Flaky { first_output } => Some((result, first_output.as_str())),
            _ => None,
        };
        Self {
            results,
            failed: results.iter().filter(failed).collect(),
            flaky: results.iter().filter_map(flaky).collect(),
        }
    }

    fn text(&self) -> String {
        let mut text = format!("\nthe {SLOWEST} slowest tests:\n");
        let mut by_time: Vec<&TestResult> = self.results.iter().collect();
        by_time.sort_by_key(|result| std::cmp::Reverse(result.took));
        for result in by_time.iter().take(SLOWEST) {
            let _ = writeln!(text, "{:7.1} s  {}", result.took.as_secs_f64(), result.title());
        }
        for (result, first_output) in &self.flaky {
            let _ =
                writeln!(text, "\nflaky: {}; its first output:\n{first_output}", result.title());
        }
        for result in &self.failed {
            let _ = writeln!(text, "\nfailed twice: {}", result.title());
        }
        let skipped: Vec<_> = self.results.iter().filter_map(skip_line).collect();
        for line in &skipped {
            let _ = writeln!(text, "{line}");
        }
        let count =
            |outcome: &Outcome| self.results.iter().filter(|r| r.outcome == *outcome).count();
        let passed = count(&Outcome::Passed) + self.flaky.len();
        let failed = self.failed.len();
        let skipped = count(&Outcome::Ignored) + skipped.len();
        let _ = write!(text, "\n{passed} passed, {failed} failed, {skipped} skipped\n");
        text
    }

    fn flaky_text(&self) -> String {
        let entry = |(result, output): &(&TestResult, &str)| {
            format!("flaky: {}\n{output}\n", result.title())
        };
        self.flaky.iter().map(entry).collect()
    }

    fn verdict(&self) -> Result<()> {
        ensure!(self.failed.is_empty(), "{} tests failed twice", self.failed.len());
        let flaky = self.flaky.len();
        ensure!(
            flaky <= MOST_FLAKY,
            "{flaky} tests failed and passed alone; more than {MOST_FLAKY} fail the run, see {FLAKY_FILE}"
        );
        Ok(())
    }
}

/// A test that skipped itself, with its reason.
fn skip_line(result: &TestResult) -> Option<String> {
    let Outcome::Skipped { reason } = &result.outcome else { return None };
    Some(format!("SKIPPED {}: {reason}", result.title()))
}

/// The environment of a full run.
fn extend(command: &mut Command, extent: Extent) {
    if extent == Extent::Full {
        command.arg("--include-ignored");
        if std::env::var_os("PROPTEST_CASES").is_none() {
            command.env("PROPTEST_CASES", FULL_CASES);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn result(name: &str, outcome: Outcome) -> TestResult {
        let program = Program::new("suite", "suite".into(), Path::new("."));
        TestResult { program: program.into(), name: name.to_owned(), took: Duration::ZERO, outcome }
    }

    fn flaky(name: &str) -> TestResult {
        result(name, Outcome::Flaky { first_output: format!("output of {name}") })
    }

    /// Tests that fail or kill their program the first time, and others.
    const SUITE: &str = r#"
        fn marker(name: &str) -> bool {
            let file = std::env::current_dir().unwrap().join(name);
            file.exists() || { std::fs::write(file, "").unwrap(); false }
        }
        #[test] fn a_fails_before_a_death() { assert!(marker("a")); }
        #[test] fn b_dies_first() { if !marker("b") { std::process::abort() } }
        #[test] fn c_fails_first() { assert!(marker("c"), "no marker yet"); }
        #[test] #[ignore] fn d_ignored() {}
        #[test] fn e_runs_after_a_death() {
            std::process::Command::new("echo").arg("test f ... failures:").status().unwrap();
        }
        #[test] #[should_panic] fn f_panics() { panic!("as it should") }
    "#;

    #[test]
    fn failed_tests_run_once_more_and_pass_alone() {
        let place = tempfile::tempdir().unwrap();
        let source = place.path().join("suite.rs");
        fs_err::write(&source, SUITE).unwrap();
        let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
        let mut rustc = Command::new(rustc);
        rustc.args(["--test", "--edition=2024"]).arg(&source).current_dir(place.path());
        assert!(rustc.status().unwrap().success());

        let program = Program::new("suite", place.path().join("suite"), place.path());
        let mut results = run_all(vec![program], Extent::Usual).unwrap();
        let failed = |result: &&TestResult| matches!(result.outcome, Outcome::Failed { .. });
        let names: Vec<&str> = results.iter().filter(failed).map(|r| r.name.as_str()).collect();
        assert_eq!(names, ["a_fails_before_a_death", "b_dies_first", "c_fails_first"]);

        repeat_failed(&mut results, Extent::Usual).unwrap();
        let summary = Summary::of(&results);
        assert!(summary.verdict().is_ok());
        let text = summary.text();
        assert!(
            text.contains("flaky: suite c_fails_first") && text.contains("no marker yet"),
            "{text}"
        );
        assert!(text.contains("flaky: suite b_dies_first"), "{text}");
        assert!(text.ends_with("\n5 passed, 0 failed, 1 skipped\n"), "{text}");
    }

    #[test]
    fn flaky_tests_are_listed_and_pass_up_to_the_limit() {
        let mut results: Vec<TestResult> =
            (0..MOST_FLAKY).map(|number| flaky(&format!("shaky_{number}"))).collect();
        results.push(result("steady", Outcome::Passed));
        let summary = Summary::of(&results);
        assert!(summary.verdict().is_ok());
        assert!(
            summary.text().contains("flaky: suite shaky_0; its first output:\noutput of shaky_0")
        );
        assert!(summary.text().ends_with("\n6 passed, 0 failed, 0 skipped\n"));
        assert!(summary.flaky_text().contains("flaky: suite shaky_4\noutput of shaky_4"));

        results.push(flaky("one_too_many"));
        let error = Summary::of(&results).verdict().unwrap_err().to_string();
        assert!(error.starts_with("6 tests failed and passed alone"), "{error}");
    }

    #[test]
    fn skipped_tests_are_listed_with_their_reason() {
        let reason = "no second address".to_owned();
        let results = [result("lonely", Outcome::Skipped { reason })];
        let text = Summary::of(&results).text();
        assert!(text.contains("SKIPPED suite lonely: no second address\n"), "{text}");
        assert!(text.ends_with("\n0 passed, 0 failed, 1 skipped\n"), "{text}");
    }

    #[test]
    fn test_that_fails_twice_fails_the_run() {
        let results = [result("broken", Outcome::Failed { output: "panicked".to_owned() })];
        let summary = Summary::of(&results);
        assert!(summary.verdict().is_err());
        assert!(summary.text().contains("failed twice: suite broken"));
        assert!(summary.text().ends_with("\n0 passed, 1 failed, 0 skipped\n"));
    }
}
