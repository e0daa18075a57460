//! One test program: its tests and their results.

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::Value;

use super::transcript::Transcript;
use super::{Extent, extend};
use crate::{cargo, say};

/// No test takes this long on a machine that works: one that does has hung, and is ended.
const LONGEST: Duration = Duration::from_mins(20);

const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Started first, because they take longest: a long program at the end would run alone.
const LONG: [&str; 5] =
    ["tests/controller", "tests/initramfs", "tests/disk", "tests/firmware", "tests/images"];

#[derive(Debug)]
pub(super) struct Program {
    /// The package, and which of its targets: `hoist-server tests/controller`.
    title: String,
    file: PathBuf,
    /// The directory of the package, in which its tests run.
    directory: PathBuf,
}

#[derive(Debug)]
pub(super) struct TestResult {
    pub(super) program: Arc<Program>,
    pub(super) name: String,
    pub(super) took: Duration,
    pub(super) outcome: Outcome,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Passed,
    Ignored,
    /// The test itself found that it cannot run here.
    Skipped {
        reason: String,
    },
    Failed {
        output: String,
    },
    /// Failed among the others, and passed alone.
    Flaky {
        first_output: String,
    },
}

impl TestResult {
    pub(super) fn title(&self) -> String {
        format!("{} {}", self.program.title, self.name)
    }
}

/// The test programs of the workspace, which must have been built already.
pub(super) fn built(kinds: [&str; 4]) -> Result<Vec<Program>> {
    let mut command = cargo();
    command.arg("test").args(kinds).args(["--no-run", "--quiet", "--message-format=json"]);
    let output = command.stderr(Stdio::inherit()).output()?;
    ensure!(output.status.success(), "cargo cannot list the test programs");
    let mut programs = Vec::new();
    for line in output.stdout.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        let message: Value = serde_json::from_slice(line).context("a message of cargo")?;
        programs.extend(Program::of_message(&message));
    }
    ensure!(!programs.is_empty(), "cargo built no test program");
    programs.sort_by_key(|program| !LONG.iter().any(|name| program.title.ends_with(name)));
    Ok(programs)
}

impl Program {
    /// The program of a cargo message, if it has tests.
    fn of_message(message: &Value) -> Option<Self> {
        if message["reason"] != "compiler-artifact" || message["profile"]["test"] != true {
            return None;
        }
        let file = PathBuf::from(message["executable"].as_str()?);
        let directory = Path::new(message["manifest_path"].as_str()?).parent()?;
        let target = &message["target"];
        let name = target["name"].as_str()?;
        let kind = match target["kind"][0].as_str()? {
            "test" => format!("tests/{name}"),
            "bin" => format!("bin {name}"),
            _ => "lib".to_owned(),
        };
        let package = directory.file_name()?.to_string_lossy();
        Some(Self::new(&format!("{package} {kind}"), file, directory))
    }

    pub(super) fn new(title: &str, file: PathBuf, directory: &Path) -> Self {
        Self { title: title.to_owned(), file, directory: directory.to_owned() }
    }

    pub(super) fn title(&self) -> &str {
        &self.title
    }

    /// Runs all tests of the program.
    pub(super) fn run(self, extent: Extent) -> Result<Vec<TestResult>> {
        let program = Arc::new(self);
        let names = program.names()?;
        let started = Instant::now();
        let mut results: Vec<TestResult> = Vec::new();
        while results.len() < names.len() {
            let rest = &names[results.len()..];
            let more = program.attempt(rest, results.is_empty(), extent)?;
            ensure!(!more.is_empty(), "`{}` ran none of its tests", program.title);
            results.extend(more);
        }
        let failed = results.iter().filter(|r| matches!(r.outcome, Outcome::Failed { .. })).count();
        let count = results.len();
        let seconds = started.elapsed().as_secs_f64();
        say(format!("{:40} {count:5} tests, {failed} failed {seconds:8.1} s", program.title));
        Ok(results)
    }

    /// Runs one test and nothing else.
    pub(super) fn run_one(self: &Arc<Self>, name: &str, extent: Extent) -> Result<TestResult> {
        let mut results = self.attempt(&[name.to_owned()], false, extent)?;
        results.pop().with_context(|| format!("`{}` has no test {name} any more", self.title))
    }

    pub(super) fn names(&self) -> Result<Vec<String>> {
        let output = self.command().args(["--list", "--format", "terse"]).output()?;
        ensure!(output.status.success(), "`{}` cannot list its tests", self.title);
        let text = String::from_utf8(output.stdout)?;
        Ok(text.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect())
    }

    /// Runs these tests until all are done or the program dies. The results are those of the tests
    /// that were begun.
    fn attempt(
        self: &Arc<Self>,
        names: &[String],
        is_all: bool,
        extent: Extent,
    ) -> Result<Vec<TestResult>> {
        let mut command = self.command();
        command.arg("--test-threads=1");
        if !is_all {
            command.arg("--exact").args(names);
        }
        extend(&mut command, extent);
        let mut running = RunningProgram::start(command, Transcript::new(names.to_vec()))?;
        running.finish()?;
        let RunningProgram { transcript, .. } = running;
        let failures = transcript.failures();
        if let Some(failures) = &failures {
            ensure!(
                transcript.begun() == names.len(),
                "`{}` did not print the names of its tests:\n{}",
                self.title,
                transcript.text()
            );
            if !failures.is_empty() {
                say(format!("{}\n{}", self.title, transcript.text()));
            }
        } else {
            say(format!("{} died in the middle\n{}", self.title, transcript.text()));
        }
        let durations = transcript.durations(Instant::now());
        let results = durations.into_iter().enumerate().map(|(index, took)| {
            let name = transcript.name(index).to_owned();
            let has_failed = match &failures {
                Some(list) => list.contains(&name),
                None => index + 1 == transcript.begun() || transcript.says_failed(index),
            };
            let outcome = if has_failed {
                Outcome::Failed { output: transcript.output_of(&name) }
            } else if transcript.is_ignored(index) {
                Outcome::Ignored
            } else if let Some(reason) = transcript.skip_reason(index) {
                Outcome::Skipped { reason }
            } else {
                Outcome::Passed
            };
            TestResult { program: Arc::clone(self), name, took, outcome }
        });
        Ok(results.collect())
    }

    /// As cargo would run it.
    fn command(&self) -> Command {
        let mut command = Command::new(&self.file);
        command.current_dir(&self.directory).stdin(Stdio::null());
        command.env("CARGO_MANIFEST_DIR", &self.directory);
        command
    }
}

/// A program that runs, in a process group of its own.
struct RunningProgram {
    child: Child,
    output: Receiver<Vec<u8>>,
    transcript: Transcript,
}

impl RunningProgram {
    fn start(mut command: Command, transcript: Transcript) -> Result<Self> {
        let (mut reader, writer) = std::io::pipe()?;
        command.stdout(writer.try_clone()?).stderr(writer).process_group(0);
        let child = command.spawn()?;
        let (sender, output) = mpsc::channel();
        std::thread::spawn(move || {
            let mut buffer = [0; 8192];
            while let Ok(length @ 1..) = reader.read(&mut buffer) {
                if sender.send(buffer[..length].to_vec()).is_err() {
                    break;
                }
            }
        });
        Ok(Self { child, output, transcript })
    }

    /// Reads until the program has ended, and ends it if one test takes too long. Programs that a
    /// test left behind may hold the pipe open, so the end of the pipe is not waited for.
    fn finish(&mut self) -> Result<()> {
        let mut last_begin = Instant::now();
        loop {
            let begun = self.transcript.begun();
            match self.output.recv_timeout(LOOK_EVERY) {
                Ok(bytes) => self.transcript.read(&bytes, Instant::now()),
                Err(RecvTimeoutError::Timeout) if self.child.try_wait()?.is_none() => {}
                Err(RecvTimeoutError::Timeout) => return Ok(()),
                Err(RecvTimeoutError::Disconnected) => {
                    self.child.wait()?;
                    return Ok(());
                }
            }
            if self.transcript.begun() > begun {
                last_begin = Instant::now();
            }
            if last_begin.elapsed() > LONGEST {
                say(format!("no test ended for {} minutes; ending them", LONGEST.as_secs() / 60));
                let group = Pid::from_child(&self.child);
                kill_process_group(group, Signal::KILL)?;
                self.child.wait()?;
                return Ok(());
            }
        }
    }
}
