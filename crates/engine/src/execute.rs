//! Carries out the decisions of a run on this machine.
//!
//! A [`Job`] contains everything that its execution needs, so that another machine can carry it out
//! as well ([`crate::pull`]). [`LocalExecutor`] carries jobs out here, in a bounded number of
//! threads. Decisions about a run do not belong here; see [`crate::run`].

mod dry_run;
pub(crate) mod guard;
mod ledger;
mod leftover;
pub(crate) mod output;
pub mod process;
mod programs;
pub mod supervisor;
mod worker_pool;

use std::any::Any;
use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::action::{
    Action, Cancel, Catalog, Ctx, Failure, Observation, Prediction, Secrets, UndoOutcome, Verdict,
};
use crate::drive::Executor;
use crate::plan::{AppliedAttempt, Call, Plan, Step, StepId};
use crate::program::{Programs, SurvivingProcesses};
use crate::record::{End, FailedCheck, FailureKind, MAX_REASON, MAX_RECEIPT, attempt_id};
use crate::run::{AttemptStatus, Effect, Event};

use output::{RedactedSecrets, Redactions, Sink};

pub use dry_run::{DryRun, DryRunResult};
pub use ledger::{Durable, Ledger, LedgerEntry, MAX_LEDGER};
pub use output::{KEPT_HEAD, KEPT_TAIL, Outputs};
pub use programs::{AttemptPrograms, private_dir};
pub(crate) use programs::{NotedProgram, ProgramDirectory, file_name};
pub(crate) use worker_pool::WorkerPool;

/// Environment variable with the attempt that a program belongs to.
pub const ATTEMPT_VARIABLE: &str = "HOIST_ATTEMPT";

/// Environment variable with the ledger of that attempt. A copy of a controller's directory has the
/// same attempts, but another ledger id.
pub const LEDGER_VARIABLE: &str = "HOIST_LEDGER";

/// Largest number of threads of one executor. More jobs wait in a queue.
pub const MAX_THREADS: usize = 256;

/// Timeout of a check whose step has no timeout.
const LOOK_TIMEOUT: Duration = Duration::from_mins(1);

/// Timeout of a prediction. The caller does not wait much longer.
pub const PREDICT_TIMEOUT: Duration = Duration::from_secs(10);

/// Interval between polls of a check without `every_ms`.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Interval at which a waiting thread looks for cancellation.
const NAP: Duration = Duration::from_millis(20);

/// One piece of work for one attempt.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Job {
    pub run: String,
    pub number: StepId,
    pub attempt: u32,
    pub what: JobKind,
    /// The name of the step in the plan.
    pub task: String,
    /// The subject of the step; empty if it has none.
    pub subject: String,
    pub step: Step,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobKind {
    /// Check the preconditions.
    Check,
    Start,
    /// Check the postconditions.
    Verify,
    /// Find out which changes the step would make.
    Predict,
}

impl Job {
    /// The job that an effect requests; `None` if the effect requests no job.
    pub fn of(run: &str, plan: &Plan, effect: Effect) -> Option<Self> {
        let (what, number, attempt) = match effect {
            Effect::Check { step, attempt } => (JobKind::Check, step, attempt),
            Effect::Start { step, attempt } => (JobKind::Start, step, attempt),
            Effect::Verify { step, attempt } => (JobKind::Verify, step, attempt),
            Effect::Ask { .. } | Effect::Kill { .. } => return None,
        };
        let step = plan.step(number)?.clone();
        let subject = plan.subject(number).to_owned();
        let task = plan.vertex(number).name.clone();
        Some(Self { run: run.to_owned(), number, attempt, what, task, subject, step })
    }

    pub fn attempt_id(&self) -> String {
        attempt_id(&self.run, self.number, self.attempt)
    }
}

/// The outcome of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobOutcome {
    Checked { failed: Option<FailedCheck> },
    Ran { end: End },
    Verified { failed: Option<FailedCheck> },
    Predicted(Result<Prediction, PredictionError>),
}

/// Why the changes of a step cannot be predicted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[serde(transparent)]
#[error("{0}")]
pub struct PredictionError(pub String);

impl JobOutcome {
    pub fn event(self, step: StepId, attempt: u32) -> Event {
        match self {
            // A prediction belongs to no run.
            Self::Predicted(_) => Event::Tick,
            Self::Checked { failed } => Event::Checked { step, attempt, failed },
            Self::Ran { end } => Event::Ran { step, attempt, end },
            Self::Verified { failed } => Event::Verified { step, attempt, failed },
        }
    }

    /// Whether the outcome of the attempt is unknown.
    pub(crate) fn is_lost(&self) -> bool {
        matches!(self, Self::Ran { end: End::Failed { kind: FailureKind::Lost, .. } })
    }

    /// The outcome of a job that this executor cannot begin.
    pub(crate) fn not_begun(what: JobKind, reason: String) -> Self {
        match what {
            JobKind::Start => Self::Ran { end: End::NotBegun { reason: Some(reason) } },
            JobKind::Check | JobKind::Verify | JobKind::Predict => Self::broken(what, reason),
        }
    }

    /// The outcome of a job that broke inside the executor.
    pub(crate) fn broken(what: JobKind, reason: String) -> Self {
        match what {
            JobKind::Check => Self::Checked { failed: Some(FailedCheck::not_made(reason)) },
            JobKind::Start => {
                Self::Ran { end: End::Failed { kind: FailureKind::Internal, reason } }
            }
            JobKind::Verify => Self::Verified { failed: Some(FailedCheck::not_made(reason)) },
            JobKind::Predict => Self::Predicted(Err(PredictionError(reason))),
        }
    }
}

/// The place where jobs are carried out, with its actions and secrets.
pub struct ExecutionSite {
    pub catalog: Catalog,
    pub secrets: Arc<dyn Secrets>,
    pub outputs: Outputs,
    pub base: BaseDirectory,
}

/// The base of relative paths.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BaseDirectory {
    /// The root directory: this machine is the subject.
    Machine,
    /// A directory per subject, below this one.
    Below(PathBuf),
}

impl std::fmt::Debug for ExecutionSite {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ExecutionSite").field("catalog", &self.catalog).finish_non_exhaustive()
    }
}

/// A [`Secrets`] without any secret.
#[derive(Debug, Clone, Copy)]
pub struct NoSecrets;

impl Secrets for NoSecrets {
    fn get(&self, reference: &str) -> Result<String, Failure> {
        let reason = format!("secret `{reference}` is not available on this machine");
        Err(Failure { kind: FailureKind::Internal, reason })
    }
}

impl ExecutionSite {
    /// Carries out a job to its end. If the job is cut short, its processes are ended with it, so
    /// that none runs beside later work.
    pub fn carry_out(&self, job: &Job, cancel: &Cancel, programs: &AttemptPrograms) -> JobOutcome {
        let redactions = Arc::new(Redactions::default());
        let mut sink = self.outputs.sink(job.number, job.attempt, &redactions);
        let attempt = job.attempt_id();
        let worked = catch_unwind(AssertUnwindSafe(|| {
            let place = self.directory(&job.subject)?;
            let watched = RedactedSecrets { secrets: &*self.secrets, redactions: &redactions };
            watched.learn(&job.step);
            let mut work = Work {
                site: self,
                job,
                attempt: &attempt,
                place: &place,
                secrets: &watched,
                cancel,
                programs,
                looks: &programs.looking(),
                deadline: None,
                sink: &mut sink,
            };
            Ok(work.carry_out())
        }));
        let outcome = match worked {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(failure)) => {
                let failure: Failure = failure;
                JobOutcome::not_begun(job.what, failure.reason)
            }
            Err(panic) => JobOutcome::broken(
                job.what,
                format!("the action panicked: {}", panic_message(&*panic)),
            ),
        };
        let outcome = redact(outcome, &redactions);
        if cancel.is_left() {
            // Another process continues the attempt and its output file.
            sink.leave();
        } else {
            sink.finish();
        }
        outcome
    }

    /// Continues an attempt that an earlier executor began, and calls `runs` if any of its programs
    /// still runs. `None` if that is impossible or the outcome is unknown; no process of the
    /// attempt is left then.
    pub(crate) fn go_on(
        &self,
        job: &Job,
        cancel: &Cancel,
        programs: &AttemptPrograms,
        runs: impl FnOnce(),
    ) -> Option<JobOutcome> {
        let attempt = job.attempt_id();
        let begun = programs.all_begun(&attempt);
        if begun.iter().any(NotedProgram::runs) {
            runs();
        }
        let Call { action, input, .. } = &job.step.call;
        let is_programs = self.catalog.get(action).is_some_and(|action| action.is_programs(input));
        if is_programs && !begun.is_empty() && begun.iter().all(NotedProgram::has_outcome) {
            let outcome = self.carry_out(job, cancel, programs);
            if !outcome.is_lost() {
                return Some(outcome);
            }
        } else {
            self.wait_for(job, cancel, begun);
        }
        if cancel.is_left() {
            return None;
        }
        match programs.end(&attempt) {
            Ok(()) if cancel.is_cancelled() => Some(JobOutcome::Ran { end: End::Interrupted }),
            Ok(()) => None,
            Err(survivors) => Some(JobOutcome::Ran { end: unknown(&survivors) }),
        }
    }

    /// Waits for the programs of an attempt that cannot be continued.
    fn wait_for(&self, job: &Job, cancel: &Cancel, begun: Vec<NotedProgram>) {
        let redactions = Arc::new(Redactions::default());
        RedactedSecrets { secrets: &*self.secrets, redactions: &redactions }.learn(&job.step);
        let mut sink = self.outputs.sink(job.number, job.attempt, &redactions);
        for begun in begun.into_iter().filter(NotedProgram::runs) {
            let timeout = job.step.timeout_ms.map(Duration::from_millis);
            let left = timeout.map(|timeout| timeout.saturating_sub(begun.age()));
            // The exit of one program is of no use without the rest of the attempt.
            let _ = begun.follow(left.map(|left| Instant::now() + left), cancel, &mut sink);
        }
        if cancel.is_left() {
            sink.leave();
        } else {
            sink.finish();
        }
    }

    /// Creates the directory of a subject if necessary, and returns its path.
    fn directory(&self, subject: &str) -> Result<PathBuf, Failure> {
        let BaseDirectory::Below(base) = &self.base else { return Ok(PathBuf::from("/")) };
        let internal = |reason| Failure { kind: FailureKind::Internal, reason };
        let path = Path::new(subject);
        let mut parts = path.components();
        let is_plain = matches!(parts.next(), None | Some(std::path::Component::Normal(_)));
        if !is_plain || parts.next().is_some() {
            return Err(internal(format!(
                "subject `{subject}` is not a valid name of a directory"
            )));
        }
        let directory = base.join(path);
        let created = fs_err::create_dir_all(&directory);
        created
            .and_then(|()| fs_err::canonicalize(&directory))
            .map_err(|error| internal(format!("cannot use the directory of `{subject}`: {error}")))
    }
}

fn unknown(survivors: &SurvivingProcesses) -> End {
    End::Unknown { reason: survivors.to_string() }
}

fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no reason given")
}

fn redact(outcome: JobOutcome, redactions: &Redactions) -> JobOutcome {
    let text = |text: String| {
        let mut text = redactions.text(&text);
        text.truncate(text.floor_char_boundary(MAX_REASON));
        text
    };
    let check = |FailedCheck { title, output, exit_code }: FailedCheck| FailedCheck {
        title: text(title),
        output: text(output),
        exit_code,
    };
    match outcome {
        JobOutcome::Checked { failed } => JobOutcome::Checked { failed: failed.map(check) },
        JobOutcome::Verified { failed } => JobOutcome::Verified { failed: failed.map(check) },
        JobOutcome::Ran { end: End::Failed { kind, reason } } => {
            JobOutcome::Ran { end: End::Failed { kind, reason: text(reason) } }
        }
        JobOutcome::Ran { end: End::Unknown { reason } } => {
            JobOutcome::Ran { end: End::Unknown { reason: text(reason) } }
        }
        JobOutcome::Ran { end: End::NotBegun { reason } } => {
            JobOutcome::Ran { end: End::NotBegun { reason: reason.map(text) } }
        }
        JobOutcome::Ran { end } => JobOutcome::Ran { end },
        JobOutcome::Predicted(Ok(Prediction::Diff(diff))) => {
            let mut diff = redactions.text(&diff);
            diff.truncate(diff.floor_char_boundary(MAX_REASON));
            JobOutcome::Predicted(Ok(Prediction::Diff(diff)))
        }
        JobOutcome::Predicted(Err(PredictionError(reason))) => {
            JobOutcome::Predicted(Err(PredictionError(text(reason))))
        }
        JobOutcome::Predicted(other) => JobOutcome::Predicted(other),
    }
}

/// One job while it is carried out.
struct Work<'a> {
    site: &'a ExecutionSite,
    job: &'a Job,
    attempt: &'a str,
    place: &'a Path,
    secrets: &'a dyn Secrets,
    cancel: &'a Cancel,
    programs: &'a AttemptPrograms,
    looks: &'a AttemptPrograms,
    /// The deadline of the call that started last.
    deadline: Option<Instant>,
    sink: &'a mut Sink,
}

impl Work<'_> {
    fn carry_out(&mut self) -> JobOutcome {
        let step = &self.job.step;
        match self.job.what {
            JobKind::Check => JobOutcome::Checked { failed: self.look(&step.before, false).err() },
            JobKind::Start => JobOutcome::Ran { end: self.start() },
            JobKind::Verify => JobOutcome::Verified { failed: self.look(&step.after, true).err() },
            JobKind::Predict => {
                let predicted = self.predict();
                JobOutcome::Predicted(predicted.map_err(|failure| PredictionError(failure.reason)))
            }
        }
    }

    fn predict(&mut self) -> Result<Prediction, Failure> {
        let step = &self.job.step;
        let action = self.action(&step.call.action)?;
        let predicted = action.predict(step, &mut self.ctx(Some(PREDICT_TIMEOUT), self.looks));
        if self.was_cut() {
            // A check changes nothing, so a surviving process is harmless.
            let _ = self.looks.end(self.attempt);
        }
        predicted
    }

    fn start(&mut self) -> End {
        let step = &self.job.step;
        let is_new = !self.programs.goes_on();
        if is_new && self.cancel.is_cancelled() {
            return End::NotBegun { reason: None };
        }
        if is_new
            && step.skip_when_done
            && !step.after.is_empty()
            && self.look(&step.after, false).is_ok()
        {
            self.sink.note("already done");
            return End::Done { changed: false, receipt: Value::Null };
        }
        let programs = self.programs;
        let attempt = self.attempt;
        let may_use = step.may_use.as_deref();
        let (applied, excess) = guard::run_guarded(may_use, programs, attempt, || self.apply());
        if let Some(reason) = excess {
            return match programs.end(attempt) {
                Ok(()) => End::Failed { kind: FailureKind::Limit, reason },
                Err(survivors) => unknown(&survivors),
            };
        }
        let end = match applied {
            Ok(end) => return end,
            Err(_) if self.cancel.is_cancelled() => End::Interrupted,
            Err(Failure { kind, reason }) => End::Failed { kind, reason },
        };
        let is_lost = matches!(end, End::Failed { kind: FailureKind::Lost, .. });
        if (self.was_cut() || is_lost && !self.cancel.is_left())
            && let Err(survivors) = self.programs.end(self.attempt)
        {
            return unknown(&survivors);
        }
        end
    }

    /// Whether the call that started last was cut short. Only then must its processes be ended: a
    /// call that ended normally may have started services that are meant to stay.
    fn was_cut(&self) -> bool {
        let is_late = self.deadline.is_some_and(|deadline| Instant::now() >= deadline);
        !self.cancel.is_left() && (is_late || self.cancel.is_cancelled())
    }

    fn apply(&mut self) -> Result<End, Failure> {
        let step = &self.job.step;
        let action = match self.action(&step.call.action) {
            Ok(action) => action,
            Err(failure) => return Ok(End::NotBegun { reason: Some(failure.reason) }),
        };
        let timeout = step.timeout_ms.map(Duration::from_millis);
        let timeout =
            timeout.map(|timeout| timeout.saturating_sub(self.programs.age(self.attempt)));
        if let Some(attempts) = &step.call.undoes {
            self.undo(&*action, attempts, timeout)?;
            return Ok(End::Done { changed: true, receipt: Value::Null });
        }
        let done = action.apply(step, &mut self.ctx(timeout, self.programs))?;
        let size = serde_json::to_vec(&done.receipt).map_or(0, |bytes| bytes.len());
        let receipt = if size <= MAX_RECEIPT {
            done.receipt
        } else {
            let said =
                format!("the receipt has {size} bytes and is left out; at most {MAX_RECEIPT} fit");
            self.sink.note(&said);
            Value::Null
        };
        Ok(End::Done { changed: done.changed, receipt })
    }

    /// Undoes all of these attempts. Each gets the whole timeout.
    fn undo(
        &mut self,
        action: &dyn Action,
        attempts: &[AppliedAttempt],
        timeout: Option<Duration>,
    ) -> Result<(), Failure> {
        let impossible = |reason: &str| {
            let reason = format!("cannot undo: {reason}");
            Failure { kind: FailureKind::Exit, reason }
        };
        if attempts.is_empty() {
            return Err(impossible("no attempt is known"));
        }
        for made in attempts {
            let undone =
                action.undo(&self.job.step, made, &mut self.ctx(timeout, self.programs))?;
            if let UndoOutcome::NotPossible { reason } = undone {
                return Err(impossible(&format!("attempt {}: {reason}", made.attempt)));
            }
        }
        Ok(())
    }

    /// Runs the checks in order. The error is the first one that does not hold.
    fn look(&mut self, checks: &[Call], may_wait: bool) -> Result<(), FailedCheck> {
        for call in checks {
            let check = Check::of(call)?;
            if self.cancel.is_cancelled() {
                return Err(check.failed("stopped before the check".to_owned().into()));
            }
            let poll = check.poll.filter(|_| may_wait);
            let mut polls = Polls::new();
            let until = poll.map(|poll| (Instant::now() + poll.last, poll.every));
            loop {
                let looked = self.look_once(&check.call);
                if poll.is_some() {
                    self.sink.note(&polls.next(&check.title, looked.as_ref().err()));
                }
                let Err(mut seen) = looked else { break };
                match until {
                    Some((until, every)) if Instant::now() + every <= until => {
                        if !nap(every, self.cancel) {
                            seen.output = format!("stopped while polling: {}", seen.output);
                            return Err(check.failed(seen));
                        }
                    }
                    _ => return Err(check.failed(seen)),
                }
            }
        }
        Ok(())
    }

    fn look_once(&mut self, call: &Call) -> Result<(), Observation> {
        let timeout = self.job.step.timeout_ms.map_or(LOOK_TIMEOUT, Duration::from_millis);
        let step = Step { call: call.clone(), ..self.job.step.clone() };
        let action = self.action(&call.action)?;
        let looks = self.looks;
        let attempt = self.attempt;
        let (verdict, excess) = guard::run_guarded(step.may_use.as_deref(), looks, attempt, || {
            action.verify(&step, &mut self.ctx(Some(timeout), looks))
        });
        if let Some(reason) = excess {
            let _ = self.looks.end(self.attempt);
            return Err(reason.into());
        }
        if self.was_cut() {
            // A check changes nothing, so a surviving process is harmless.
            let _ = self.looks.end(self.attempt);
        }
        match verdict {
            Ok(Verdict::Holds) => Ok(()),
            Ok(Verdict::Fails(seen)) => Err(seen),
            Err(failure) => Err(failure.into()),
        }
    }

    fn action(&self, name: &str) -> Result<Arc<dyn Action>, Failure> {
        self.site.catalog.get(name).cloned().ok_or_else(|| Failure {
            kind: FailureKind::Internal,
            reason: format!(
                "action `{name}` is not available on this machine; install its plug-in"
            ),
        })
    }

    fn ctx<'a>(&'a mut self, timeout: Option<Duration>, programs: &'a dyn Programs) -> Ctx<'a> {
        self.deadline = timeout.map(|timeout| Instant::now() + timeout);
        Ctx {
            attempt: self.attempt,
            task: &self.job.task,
            subject: &self.job.subject,
            directory: self.place,
            deadline: self.deadline,
            cancel: self.cancel,
            secrets: self.secrets,
            programs,
            output: &mut *self.sink,
        }
    }
}

/// A check and its options.
pub(crate) struct Check {
    pub(crate) call: Call,
    /// `says` of the task file, or the name of the action.
    pub(crate) title: String,
    pub(crate) poll: Option<Poll>,
}

#[derive(Clone, Copy)]
pub(crate) struct Poll {
    pub(crate) last: Duration,
    pub(crate) every: Duration,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PollInput {
    for_ms: u64,
    #[serde(default)]
    every_ms: Option<u64>,
}

impl Check {
    /// `poll` and `says` are options of the executor; the action never sees them.
    pub(crate) fn of(call: &Call) -> Result<Self, FailedCheck> {
        let mut call = call.clone();
        let mut title = call.action.clone();
        let mut poll = None;
        if let Value::Object(input) = &mut call.input {
            if let Some(Value::String(says)) = input.shift_remove("says") {
                title = says;
            }
            if let Some(given) = input.shift_remove("poll") {
                let given: PollInput = serde_json::from_value(given).map_err(|error| {
                    let output = format!("`poll` of the check `{}`: {error}", call.action);
                    FailedCheck { title: title.clone(), output, exit_code: None }
                })?;
                let every = given.every_ms.map_or(LOOK_EVERY, Duration::from_millis).max(NAP);
                poll = Some(Poll { last: Duration::from_millis(given.for_ms), every });
            }
        }
        Ok(Self { call, title, poll })
    }

    /// The result of a check whose condition does not hold.
    pub(crate) fn failed(&self, seen: Observation) -> FailedCheck {
        let Observation { output, exit_code } = seen;
        FailedCheck { title: self.title.clone(), output, exit_code }
    }
}

/// The polls of a check so far. Each is recorded in the output of the attempt.
pub(crate) struct Polls {
    began: Instant,
    count: u32,
}

impl Polls {
    pub(crate) fn new() -> Self {
        Self { began: Instant::now(), count: 0 }
    }

    /// The record of the next poll, which observed this unless the check holds.
    pub(crate) fn next(&mut self, title: &str, observed: Option<&Observation>) -> String {
        self.count += 1;
        let count = self.count;
        let seconds = self.began.elapsed().as_secs_f64();
        let poll = format!("check \"{title}\", poll {count} after {seconds:.1} s");
        let Some(Observation { output, exit_code }) = observed else {
            return format!("{poll}: holds");
        };
        let code = exit_code.map(|code| format!(" (exit code {code})")).unwrap_or_default();
        match output.lines().last() {
            Some(line) => format!("{poll}: does not hold{code}: {line}"),
            None => format!("{poll}: does not hold{code}"),
        }
    }
}

/// Sleeps. Returns `false` if cancelled before the end.
pub(crate) fn nap(time: Duration, cancel: &Cancel) -> bool {
    let until = Instant::now() + time;
    loop {
        if cancel.is_cancelled() {
            return false;
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return true;
        }
        std::thread::sleep(left.min(NAP));
    }
}

/// Carries out the steps of one run on this machine.
#[derive(Debug)]
pub struct LocalExecutor {
    run: String,
    site: Arc<ExecutionSite>,
    kept: Arc<ProgramDirectory>,
    workers: WorkerPool,
    shared: Arc<ExecutorState>,
}

#[derive(Debug)]
struct ExecutorState {
    events: Sender<Event>,
    book: Mutex<Book>,
}

#[derive(Debug)]
struct Book {
    ledger: Ledger<End>,
    /// Attempts that were started here and have not ended.
    running: HashMap<(StepId, u32), Cancel>,
    /// Checks that have not ended.
    looks: HashMap<(StepId, u32, JobKind), Cancel>,
    /// The executor is being dropped: attempts that end from now on were cut short, so their ends
    /// are not recorded.
    is_closed: bool,
}

impl ExecutorState {
    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock()
    }

    fn tell(&self, event: Event) {
        // The receiver is gone when the run is over.
        let _ = self.events.send(event);
    }

    /// Records and reports the end of an attempt; `None` means that the outcome is unknown.
    fn record_end(&self, job: &Job, programs: &AttemptPrograms, outcome: Option<JobOutcome>) {
        let step = job.number;
        let attempt = job.attempt;
        let mut book = self.book();
        book.running.remove(&(step, attempt));
        if book.is_closed {
            return;
        }
        let event = match outcome {
            Some(JobOutcome::Ran { end }) => {
                // If the ledger cannot be written, the run still gets the result and records it.
                let _ = book.ledger.end(&short_id((step, attempt)), end.clone());
                Event::Ran { step, attempt, end }
            }
            _ => Event::Found { step, attempt, found: AttemptStatus::Gone },
        };
        drop(book);
        programs.forget(&job.attempt_id());
        self.tell(event);
    }
}

impl LocalExecutor {
    /// `ledger` is a file of this run that records begun attempts across restarts. `supervisor` is
    /// the command line that starts [`supervisor::main`]; without it, each program that must
    /// outlive this process gets a shell of its own.
    pub fn new(
        run: impl Into<String>,
        site: ExecutionSite,
        ledger: &Path,
        events: Sender<Event>,
        supervisor: Option<Vec<OsString>>,
    ) -> io::Result<Self> {
        let run = run.into();
        let dir = ledger.parent().unwrap_or(Path::new("."));
        let kept = Arc::new(ProgramDirectory::new(dir, supervisor)?);
        let ledger: Ledger<End> = Ledger::open(ledger, Durable::Process)?;
        let workers = WorkerPool::new(MAX_THREADS);
        if ledger.iter().next().is_some() {
            let begun = |(id, known): (&str, &LedgerEntry<End>)| {
                matches!(known, LedgerEntry::Begun).then(|| file_name(&format!("{run}/{id}")))
            };
            let open: HashSet<String> = ledger.iter().filter_map(begun).collect();
            let looks = kept.tidy_up(|attempt| open.contains(attempt));
            workers.send(move || looks.end());
        }
        let book = Mutex::new(Book {
            ledger,
            running: HashMap::new(),
            looks: HashMap::new(),
            is_closed: false,
        });
        let shared = Arc::new(ExecutorState { events, book });
        Ok(Self { run, site: Arc::new(site), kept, workers, shared })
    }

    fn start(&self, job: Job) {
        let key = (job.number, job.attempt);
        let cancel = Cancel::default();
        let mut book = self.shared.book();
        if book.running.contains_key(&key) {
            return;
        }
        match book.ledger.begin(&short_id(key)) {
            Ok(true) => {}
            // The attempt was begun before and must not begin again.
            Ok(false) => {
                drop(book);
                return self.ask(job);
            }
            Err(error) => {
                drop(book);
                let reason = format!("cannot save progress: {error}");
                return self
                    .shared
                    .tell(JobOutcome::not_begun(JobKind::Start, reason).event(key.0, key.1));
            }
        }
        book.running.insert(key, cancel.clone());
        drop(book);
        let site = Arc::clone(&self.site);
        let shared = Arc::clone(&self.shared);
        let programs = AttemptPrograms::of(&job.step, &self.kept);
        self.workers.send(move || {
            let outcome = site.carry_out(&job, &cancel, &programs);
            shared.record_end(&job, &programs, Some(outcome).filter(|outcome| !outcome.is_lost()));
        });
    }

    fn ask(&self, job: Job) {
        let key = (job.number, job.attempt);
        let mut book = self.shared.book();
        let found = if book.running.contains_key(&key) {
            Some(AttemptStatus::Running)
        } else {
            match book.ledger.get(&short_id(key)) {
                Some(LedgerEntry::Ended(end)) => Some(AttemptStatus::Ended(end.clone())),
                None if book.ledger.is_complete() => Some(AttemptStatus::Never),
                None => {
                    // The entry guarantees that later questions get the same answer. If it cannot
                    // be written, it holds at least for the lifetime of this executor.
                    let _ = book.ledger.begin(&short_id(key));
                    None
                }
                Some(LedgerEntry::Begun | LedgerEntry::Acknowledged) => None,
            }
        };
        if let Some(found) = found {
            drop(book);
            return self.shared.tell(Event::Found { step: key.0, attempt: key.1, found });
        }
        let cancel = Cancel::default();
        book.running.insert(key, cancel.clone());
        drop(book);
        let site = Arc::clone(&self.site);
        let shared = Arc::clone(&self.shared);
        let programs = AttemptPrograms::again(&self.kept);
        self.workers.send(move || {
            let found = AttemptStatus::Running;
            let runs = || shared.tell(Event::Found { step: key.0, attempt: key.1, found });
            let outcome = site.go_on(&job, &cancel, &programs, runs);
            shared.record_end(&job, &programs, outcome);
        });
    }

    fn look(&self, job: Job) {
        let key = (job.number, job.attempt, job.what);
        let cancel = Cancel::default();
        self.shared.book().looks.insert(key, cancel.clone());
        let site = Arc::clone(&self.site);
        let shared = Arc::clone(&self.shared);
        let programs = AttemptPrograms::new(&self.kept).within(&job.step);
        self.workers.send(move || {
            let outcome = site.carry_out(&job, &cancel, &programs);
            shared.book().looks.remove(&key);
            shared.tell(outcome.event(job.number, job.attempt));
        });
    }
}

/// Programs of steps go on; a later executor finds them. Everything else is ended and lost.
impl Drop for LocalExecutor {
    fn drop(&mut self) {
        let mut book = self.shared.book();
        book.is_closed = true;
        book.running.values().for_each(Cancel::leave);
        book.looks.values().for_each(Cancel::cancel);
        drop(book);
        self.kept.close();
    }
}

fn short_id((step, attempt): (StepId, u32)) -> String {
    format!("{}/{attempt}", step.0)
}

impl Executor for LocalExecutor {
    fn act(&mut self, plan: &Plan, effect: Effect) {
        match effect {
            Effect::Ask { step, attempt } => {
                if let Some(job) = Job::of(&self.run, plan, Effect::Start { step, attempt }) {
                    self.ask(job);
                }
            }
            Effect::Kill { step, attempt } => {
                let book = self.shared.book();
                let looks = [JobKind::Check, JobKind::Verify];
                let looks = looks.iter().filter_map(|what| book.looks.get(&(step, attempt, *what)));
                looks.chain(book.running.get(&(step, attempt))).for_each(Cancel::cancel);
            }
            Effect::Start { .. } | Effect::Check { .. } | Effect::Verify { .. } => {
                let Some(job) = Job::of(&self.run, plan, effect) else { return };
                match job.what {
                    JobKind::Start => self.start(job),
                    JobKind::Check | JobKind::Verify | JobKind::Predict => self.look(job),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
