//! Steps on machines without an agent, through the system's `ssh`.
//!
//! A step whose actions have a script ([`Action::script`](crate::action::Action::script)) is handed
//! to a small runner on the machine (`ssh/runner.sh`). The runner detaches from the connection and
//! records the exit of the step. After a connection breaks, a new one asks for the state. Attempts
//! never begin twice, because the runner knows them by name.
//!
//! The `ssh` command itself belongs to [`connection`].

mod connection;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use serde_json::Value;

use crate::action::{
    Cancel, Catalog, Failure, Observation, Output as _, Prediction, Purpose, Script, Secrets,
    Stream, WOULD_CHANGE,
};
use crate::drive::Executor;
use crate::execute::output::{RedactedSecrets, Redactions, Sink};
use crate::execute::process::GRACE_AFTER_CANCEL;
use crate::execute::{
    ATTEMPT_VARIABLE, Check, DryRunResult, Job, JobKind, JobOutcome, MAX_THREADS, Outputs,
    PREDICT_TIMEOUT, Polls, WorkerPool, nap,
};
use crate::plan::{Call, Plan, Step, StepId};
use crate::record::{End, FailedCheck, FailureKind};
use crate::run::{AttemptStatus, Effect, Event};

use connection::{NoAnswer, Payload, State};

pub use connection::Login;

/// How long the runner waits for the end of a step before it answers that the step is running.
const WAIT: Duration = Duration::from_secs(20);
/// Timeout of a check whose step has no timeout.
const LOOK_TIMEOUT: Duration = Duration::from_mins(1);
/// Number of machines that are asked for predictions at once.
const PREDICTED_AT_ONCE: usize = 16;
/// Pause between failed connections.
const PAUSE: Duration = Duration::from_secs(1);
/// Exit codes of `timeout` for a program that was terminated or killed.
const TIMED_OUT: [i32; 2] = [124, 137];

/// Everything an executor over ssh needs.
#[derive(Clone)]
pub struct SshSetup {
    pub login: Login,
    pub catalog: Catalog,
    pub secrets: Arc<dyn Secrets>,
    pub outputs: Outputs,
    /// A machine that is unreachable for this long counts as gone.
    pub lost_after: Duration,
    /// Resolves the address of a subject.
    pub address: Address,
}

/// The first action of a step or of its checks that has no script.
pub fn cannot_do<'s>(catalog: &Catalog, step: &'s Step) -> Option<&'s str> {
    // Calls that undo are checked by the planner of the undo.
    let own = step.call.undoes.is_none().then_some(&step.call);
    let has_script = |call: &Call, purpose| {
        let action = catalog.get(&call.action);
        action.is_some_and(|action| action.script(&call.input, purpose).is_some())
    };
    let checks = step.before.iter().chain(&step.after).filter(|call| {
        let check = Check::of(call);
        !check.is_ok_and(|check| has_script(&check.call, Purpose::Verify))
    });
    let own = own.filter(|call| !has_script(call, Purpose::Apply));
    own.into_iter().chain(checks).map(|call| call.action.as_str()).next()
}

/// The address of a subject, or why it is unknown.
pub type Address = Arc<dyn Fn(&str) -> Result<String, String> + Send + Sync>;

impl std::fmt::Debug for SshSetup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SshSetup").field("login", &self.login).finish_non_exhaustive()
    }
}

/// Carries out the steps of one run over ssh.
#[derive(Debug)]
pub struct SshExecutor {
    run: String,
    setup: Arc<SshSetup>,
    workers: WorkerPool,
    shared: Arc<SshState>,
}

#[derive(Debug)]
struct SshState {
    events: Sender<Event>,
    followed: Mutex<HashMap<(StepId, u32), Cancel>>,
    looks: Mutex<HashMap<(StepId, u32, JobKind), Cancel>>,
}

impl SshState {
    fn followed(&self) -> MutexGuard<'_, HashMap<(StepId, u32), Cancel>> {
        self.followed.lock()
    }

    fn looks(&self) -> MutexGuard<'_, HashMap<(StepId, u32, JobKind), Cancel>> {
        self.looks.lock()
    }

    fn tell(&self, event: Event) {
        // The receiver is gone when the run is over.
        let _ = self.events.send(event);
    }
}

impl SshExecutor {
    pub fn new(run: impl Into<String>, setup: SshSetup, events: Sender<Event>) -> Self {
        let shared =
            Arc::new(SshState { events, followed: Mutex::default(), looks: Mutex::default() });
        Self {
            run: run.into(),
            setup: Arc::new(setup),
            workers: WorkerPool::new(MAX_THREADS),
            shared,
        }
    }

    /// Follows an attempt to its end; with `is_new`, begins it first.
    fn follow(&self, job: Job, is_new: bool) {
        let key = (job.number, job.attempt);
        let cancel = Cancel::default();
        if self.shared.followed().insert(key, cancel.clone()).is_some() {
            return;
        }
        let setup = Arc::clone(&self.setup);
        let shared = Arc::clone(&self.shared);
        self.workers.send(move || {
            let event = Talk::new(&setup, &job, &cancel).follow(is_new, &shared);
            shared.followed().remove(&key);
            shared.tell(event);
        });
    }

    fn look(&self, job: Job) {
        let key = (job.number, job.attempt, job.what);
        let cancel = Cancel::default();
        self.shared.looks().insert(key, cancel.clone());
        let setup = Arc::clone(&self.setup);
        let shared = Arc::clone(&self.shared);
        self.workers.send(move || {
            let outcome = Talk::new(&setup, &job, &cancel).look_job();
            shared.looks().remove(&key);
            shared.tell(outcome.event(job.number, job.attempt));
        });
    }
}

impl Executor for SshExecutor {
    fn act(&mut self, plan: &Plan, effect: Effect) {
        match effect {
            Effect::Kill { step, attempt } => {
                if let Some(cancel) = self.shared.followed().get(&(step, attempt)) {
                    cancel.cancel();
                }
                let looks = self.shared.looks();
                let looks =
                    [JobKind::Check, JobKind::Verify].map(|what| looks.get(&(step, attempt, what)));
                looks.into_iter().flatten().for_each(Cancel::cancel);
            }
            Effect::Ask { step, attempt } => {
                if let Some(job) = Job::of(&self.run, plan, Effect::Start { step, attempt }) {
                    self.follow(job, false);
                }
            }
            Effect::Start { .. } | Effect::Check { .. } | Effect::Verify { .. } => {
                let Some(job) = Job::of(&self.run, plan, effect) else { return };
                match job.what {
                    JobKind::Start => self.follow(job, true),
                    JobKind::Check | JobKind::Verify | JobKind::Predict => self.look(job),
                }
            }
        }
    }
}

/// Why the outcome of an attempt is unknown.
enum NoOutcome {
    /// The attempt was not begun.
    Refused(String),
    Gone,
}

/// All exchanges with a machine about one job.
struct Talk<'a> {
    setup: &'a SshSetup,
    job: &'a Job,
    cancel: &'a Cancel,
    redactions: Arc<Redactions>,
    sink: Sink,
}

impl<'a> Talk<'a> {
    fn new(setup: &'a SshSetup, job: &'a Job, cancel: &'a Cancel) -> Self {
        let redactions = Arc::new(Redactions::default());
        RedactedSecrets { secrets: &*setup.secrets, redactions: &redactions }.learn(&job.step);
        let sink = setup.outputs.sink(job.number, job.attempt, &redactions);
        Self { setup, job, cancel, redactions, sink }
    }

    fn follow(mut self, is_new: bool, shared: &SshState) -> Event {
        let step = self.job.number;
        let attempt = self.job.attempt;
        let event = match self.try_follow(is_new, shared) {
            Ok(Some(end)) if is_new => Event::Ran { step, attempt, end },
            Ok(Some(end)) => Event::Found { step, attempt, found: AttemptStatus::Ended(end) },
            Ok(None) => Event::Found { step, attempt, found: AttemptStatus::Never },
            Err(NoOutcome::Refused(reason)) if is_new => {
                JobOutcome::broken(JobKind::Start, reason).event(step, attempt)
            }
            // An earlier controller began the attempt; its outcome is unknown.
            Err(NoOutcome::Refused(_) | NoOutcome::Gone) => {
                Event::Found { step, attempt, found: AttemptStatus::Gone }
            }
        };
        self.sink.finish();
        event
    }

    /// The end of the attempt; `None` if it never began.
    fn try_follow(&mut self, is_new: bool, shared: &SshState) -> Result<Option<End>, NoOutcome> {
        let job = self.job;
        let refused = |failure: Failure| NoOutcome::Refused(failure.reason);
        let script = self.script(&job.step.call, Purpose::Apply).map_err(refused)?;
        let host = (self.setup.address)(&job.subject).map_err(NoOutcome::Refused)?;
        let id = file_name(&job.attempt_id());
        if is_new && self.cancel.is_cancelled() {
            return Ok(Some(End::NotBegun { reason: None }));
        }
        if is_new
            && job.step.skip_when_done
            && !job.step.after.is_empty()
            && self.look(&job.step.after, false).is_ok()
        {
            self.sink.note("already done");
            return Ok(Some(End::Done { changed: false, receipt: Value::Null }));
        }
        let timeout = job.step.timeout_ms.map(Duration::from_millis);
        let first =
            if is_new { self.begin(&id, &script, timeout)? } else { ask(&id, Duration::ZERO) };
        let mut state = self.say(&host, &first, is_new)?;
        if !is_new && state == State::Running {
            let step = job.number;
            let attempt = job.attempt;
            shared.tell(Event::Found { step, attempt, found: AttemptStatus::Running });
        }
        loop {
            match state {
                State::Never => return Ok(None),
                State::Gone => return Err(NoOutcome::Gone),
                State::Ended { code, output } => {
                    let last = self.print(&output);
                    return Ok(Some(end(code, &script, timeout, &last)));
                }
                State::Running if self.cancel.is_cancelled() => {
                    return self.stop(&host, &id).map(Some);
                }
                State::Running => state = self.say(&host, &ask(&id, WAIT), false)?,
            }
        }
    }

    /// Ends a running attempt.
    fn stop(&mut self, host: &str, id: &str) -> Result<End, NoOutcome> {
        let deaf = Cancel::default();
        for (signal, wait) in [("TERM", GRACE_AFTER_CANCEL), ("KILL", WAIT)] {
            let payload = Payload::new("kill", id)
                .with("signal", signal)
                .with("wait", &wait.as_secs().to_string());
            match self.say_until_heard(host, &payload, false, wait, &deaf)? {
                State::Running => {}
                State::Ended { output, .. } => {
                    self.print(&output);
                    return Ok(End::Interrupted);
                }
                State::Never | State::Gone => return Err(NoOutcome::Gone),
            }
        }
        let reason = "the attempt was stopped but does not end".to_owned();
        Ok(End::Unknown { reason })
    }

    fn begin(
        &self,
        id: &str,
        script: &Script,
        timeout: Option<Duration>,
    ) -> Result<Payload, NoOutcome> {
        // Zero means no limit.
        let seconds = timeout.map_or(0.0, |timeout| timeout.as_secs_f64());
        let may_use = self.job.step.may_use.as_ref();
        let limits = may_use.map(|may_use| may_use.as_all_commands()).unwrap_or_default();
        let mut payload = Payload::new("start", id)
            .with("wait", &WAIT.as_secs().to_string())
            .with("attempt", &self.job.attempt_id())
            .with("cwd", script.cwd.as_deref().unwrap_or("/"))
            .with("timeout", &format!("{seconds:.3}"))
            // The runner passes the text on descriptor 7.
            .with("text", &format!("exec 7<&-; ulimit -S -c 0; {limits}{}", script.text))
            .with("env HOIST_NODE", &self.job.subject)
            .with("env HOIST_RUN", &self.job.run)
            .with("env HOIST_TASK", &self.job.task)
            .with(&format!("env {ATTEMPT_VARIABLE}"), &self.job.attempt_id());
        for (name, value) in &script.env {
            payload = payload.with(&format!("env {name}"), value);
        }
        for (name, text) in &script.files {
            payload = payload.with(&format!("file {name}"), text);
        }
        for (name, reference) in &script.secrets {
            let value = self
                .setup
                .secrets
                .get(reference)
                .map_err(|failure| NoOutcome::Refused(failure.reason))?;
            self.redactions.add(&value);
            payload = payload.with(&format!("secret {name}"), &value);
        }
        Ok(payload)
    }

    fn say(&self, host: &str, payload: &Payload, may_be_refused: bool) -> Result<State, NoOutcome> {
        self.say_until_heard(host, payload, may_be_refused, WAIT, self.cancel)
    }

    /// Repeats a message until the machine answers or counts as gone. If the step is cancelled in
    /// the meantime, the state is reported as running, so that the caller stops the step.
    fn say_until_heard(
        &self,
        host: &str,
        payload: &Payload,
        may_be_refused: bool,
        wait: Duration,
        cancel: &Cancel,
    ) -> Result<State, NoOutcome> {
        let until = Instant::now() + self.setup.lost_after;
        let mut is_first = true;
        loop {
            match self.setup.login.talk(host, payload, wait, cancel) {
                Ok(state) => return Ok(state),
                Err(_) if cancel.is_cancelled() => return Ok(State::Running),
                Err(NoAnswer::Refused(reason)) if may_be_refused && is_first => {
                    return Err(NoOutcome::Refused(reason));
                }
                Err(NoAnswer::Refused(_) | NoAnswer::Unreachable(_)) if Instant::now() >= until => {
                    return Err(NoOutcome::Gone);
                }
                Err(NoAnswer::Refused(_) | NoAnswer::Unreachable(_)) => {
                    is_first = false;
                    if !nap(PAUSE, cancel) {
                        return Ok(State::Running);
                    }
                }
            }
        }
    }

    /// Stores the output and returns its last line, without secrets.
    fn print(&mut self, output: &[u8]) -> String {
        let mut last: &[u8] = b"";
        for line in output.strip_suffix(b"\n").unwrap_or(output).split(|byte| *byte == b'\n') {
            if !output.is_empty() {
                self.sink.line(Stream::Out, line);
            }
            if !line.trim_ascii().is_empty() {
                last = line.trim_ascii();
            }
        }
        let last = String::from_utf8_lossy(&last[..last.len().min(300)]).into_owned();
        self.redactions.text(&last)
    }

    fn script(&self, call: &Call, purpose: Purpose) -> Result<Script, Failure> {
        let internal = |reason| Failure { kind: FailureKind::Internal, reason };
        let action = self.setup.catalog.get(&call.action);
        let action = action.ok_or_else(|| {
            internal(format!("action `{}` is not available on the controller", call.action))
        })?;
        let script = if call.undoes.is_some() { None } else { action.script(&call.input, purpose) };
        script.ok_or_else(|| {
            let what = if call.undoes.is_some() { "cannot be undone" } else { "cannot be done" };
            let name = &call.action;
            internal(format!(
                "`{name}` {what} through ssh; start an agent on `{}`",
                self.job.subject
            ))
        })
    }

    fn look_job(mut self) -> JobOutcome {
        let Step { before, after, .. } = &self.job.step;
        let outcome = match self.job.what {
            JobKind::Check => JobOutcome::Checked { failed: self.look(before, false).err() },
            _ => JobOutcome::Verified { failed: self.look(after, true).err() },
        };
        self.sink.finish();
        outcome
    }

    fn look(&mut self, checks: &[Call], may_wait: bool) -> Result<(), FailedCheck> {
        for (at, call) in checks.iter().enumerate() {
            let check = Check::of(call)?;
            let poll = check.poll.filter(|_| may_wait);
            let until = poll.map(|poll| (Instant::now() + poll.last, poll.every));
            let mut polls = Polls::new();
            for turn in 0.. {
                let looked = self.look_once(&check.call, &format!("{at}-{turn}"));
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

    fn look_once(&mut self, call: &Call, turn: &str) -> Result<(), Observation> {
        let script = self.script(call, Purpose::Verify)?;
        let timeout = self.job.step.timeout_ms.map_or(LOOK_TIMEOUT, Duration::from_millis);
        let (code, output) = self.run(&script, timeout, turn)?;
        let last = self.print(&output);
        match end(code, &Script { unchanged: Vec::new(), ..script }, Some(timeout), &last) {
            End::Done { .. } => Ok(()),
            End::Failed { kind: FailureKind::Exit, .. } => {
                Err(Observation { output: last, exit_code: Some(code) })
            }
            End::Failed { reason, .. } | End::Unknown { reason } => Err(reason.into()),
            End::Interrupted | End::NotBegun { .. } => Err("stopped".to_owned().into()),
        }
    }

    /// Runs a script that changes nothing. Returns its exit code and output.
    fn run(
        &self,
        script: &Script,
        timeout: Duration,
        turn: &str,
    ) -> Result<(i32, Vec<u8>), String> {
        let host = (self.setup.address)(&self.job.subject)?;
        // A new id each time, so that an earlier result is not returned.
        let now = std::time::UNIX_EPOCH.elapsed().unwrap_or_default().as_nanos();
        let id = format!("{}-look-{turn}-{now}", file_name(&self.job.attempt_id()));
        let lost = |lost| match lost {
            NoOutcome::Refused(reason) => reason,
            NoOutcome::Gone => format!("`{host}` does not answer"),
        };
        let mut state = self
            .say(&host, &self.begin(&id, script, Some(timeout)).map_err(lost)?, true)
            .map_err(lost)?;
        while state == State::Running {
            if self.cancel.is_cancelled() {
                return Err("stopped".to_owned());
            }
            state = self.say(&host, &ask(&id, WAIT), false).map_err(lost)?;
        }
        let State::Ended { code, output } = state else { return Err(lost(NoOutcome::Gone)) };
        // The machine forgets old results by itself, too.
        let _ =
            self.setup.login.talk(&host, &Payload::new("forget", &id), Duration::ZERO, self.cancel);
        Ok((code, output))
    }

    fn predict(&self) -> Result<Prediction, String> {
        let Call { action, input, .. } = &self.job.step.call;
        let action = self.setup.catalog.get(action);
        let Some(script) = action.and_then(|action| action.predict_script(input)) else {
            return Ok(Prediction::CannotPredict);
        };
        let (code, output) = self.run(&script, PREDICT_TIMEOUT, "predict")?;
        let said = String::from_utf8_lossy(&output);
        match code {
            0 => Ok(Prediction::NoChange),
            WOULD_CHANGE => Ok(Prediction::Diff(said.into_owned())),
            code => Err(format!("exit code {code}: {}", said.trim())),
        }
    }
}

/// Predicts steps over ssh. Dropping it cancels the remaining predictions.
#[derive(Debug)]
pub struct SshDryRun {
    cancel: Cancel,
    _workers: WorkerPool,
}

impl SshDryRun {
    pub fn new(setup: SshSetup, jobs: Vec<Job>, send: &Sender<DryRunResult>) -> Self {
        let setup = Arc::new(SshSetup { lost_after: PREDICT_TIMEOUT, ..setup });
        let cancel = Cancel::default();
        let workers = WorkerPool::new(PREDICTED_AT_ONCE);
        for job in jobs {
            let setup = Arc::clone(&setup);
            let cancel = cancel.clone();
            let send = send.clone();
            workers.send(move || {
                let predicted = Talk::new(&setup, &job, &cancel).predict();
                // The receiver may be gone.
                let _ = send.send((job.number, predicted));
            });
        }
        Self { cancel, _workers: workers }
    }
}

impl Drop for SshDryRun {
    fn drop(&mut self) {
        self.cancel.cancel();
    }
}

/// The end that an exit code of the machine means.
fn end(code: i32, script: &Script, timeout: Option<Duration>, last: &str) -> End {
    if code == 0 || script.unchanged.contains(&code) {
        return End::Done { changed: !script.unchanged.contains(&code), receipt: Value::Null };
    }
    let quoted = if last.is_empty() { String::new() } else { format!(": {last}") };
    if timeout.is_some() && TIMED_OUT.contains(&code) {
        let reason = format!("timed out{quoted}");
        return End::Failed { kind: FailureKind::Timeout, reason };
    }
    End::Failed { kind: FailureKind::Exit, reason: format!("exit code {code}{quoted}") }
}

fn ask(id: &str, wait: Duration) -> Payload {
    Payload::new("ask", id).with("wait", &wait.as_secs().to_string())
}

/// An id as a file name.
fn file_name(id: &str) -> String {
    id.chars().map(|c| if c.is_ascii_alphanumeric() || c == '.' { c } else { '-' }).collect()
}
