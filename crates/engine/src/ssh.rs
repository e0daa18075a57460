//! Machines without an agent, through the system's `ssh`.
//!
//! A step that has a form for machines with nothing but a shell
//! ([`Action::script`](crate::action::Action::script)) is handed to a small runner over there, which
//! lets go of the connection and writes down how the step ended. A connection that breaks is made
//! anew, and the machine is asked; nothing is begun twice, because the runner knows attempts by name.

mod connection;

use std::collections::HashMap;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::action::{
    Cancel, Catalog, Failure, Output as _, Prediction, Purpose, Script, Secrets, Stream,
    WOULD_CHANGE,
};
use crate::drive::Executor;
use crate::execute::output::{Redactions, Sink, Watched};
use crate::execute::process::GRACE_AFTER_CANCEL;
use crate::execute::{
    ATTEMPT_VARIABLE, Came, Check, Crew, Foretold, Job, MAX_THREADS, Outputs, PREDICT_TIMEOUT,
    What, nap,
};
use crate::plan::{Call, Plan, Step, StepId};
use crate::record::{End, FailureKind};
use crate::run::{Effect, Event, Found};

use connection::{NoAnswer, Payload, State};

pub use connection::Login;

/// So long the machine waits for an end before it says that there is none yet.
const WAIT: Duration = Duration::from_secs(20);
/// For one look, where the step does not say how long it may take.
const LOOK_TIMEOUT: Duration = Duration::from_mins(1);
/// Machines that are asked at the same time what a step would change.
const PREDICTED_AT_ONCE: usize = 16;
/// Between connections that fail.
const PAUSE: Duration = Duration::from_secs(1);
/// What `timeout` says of a program whose time was over: ended, or killed.
const TIMED_OUT: [i32; 2] = [124, 137];

/// With what machines are reached and steps are carried out on them.
#[derive(Clone)]
pub struct SshSetup {
    pub login: Login,
    pub catalog: Catalog,
    pub secrets: Arc<dyn Secrets>,
    pub outputs: Outputs,
    /// A machine that cannot be reached for so long is taken for gone.
    pub lost_after: Duration,
    /// Where a subject is, or why nobody knows.
    pub address: Address,
}

/// The first action of a step, with its checks, that has no form for machines with nothing but a shell.
pub fn cannot_do<'s>(catalog: &Catalog, step: &'s Step) -> Option<&'s str> {
    // What takes back is looked at by who plans that.
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

/// Says where a subject is, or why nobody knows.
pub type Address = Arc<dyn Fn(&str) -> Result<String, String> + Send + Sync>;

impl std::fmt::Debug for SshSetup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SshSetup").field("login", &self.login).finish_non_exhaustive()
    }
}

/// Carries out the steps of one run on machines that it logs in to.
#[derive(Debug)]
pub struct SshExecutor {
    run: String,
    setup: Arc<SshSetup>,
    crew: Crew,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    events: Sender<Event>,
    followed: Mutex<HashMap<(StepId, u32), Cancel>>,
    looks: Mutex<HashMap<(StepId, u32, What), Cancel>>,
}

impl Shared {
    fn followed(&self) -> MutexGuard<'_, HashMap<(StepId, u32), Cancel>> {
        self.followed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn looks(&self) -> MutexGuard<'_, HashMap<(StepId, u32, What), Cancel>> {
        self.looks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self, event: Event) {
        // Without a run nobody needs to know.
        let _ = self.events.send(event);
    }
}

impl SshExecutor {
    pub fn new(run: impl Into<String>, setup: SshSetup, events: Sender<Event>) -> Self {
        let shared =
            Arc::new(Shared { events, followed: Mutex::default(), looks: Mutex::default() });
        Self { run: run.into(), setup: Arc::new(setup), crew: Crew::new(MAX_THREADS), shared }
    }

    /// Follows an attempt to its end; with `is_new`, begins it.
    fn follow(&self, job: Job, is_new: bool) {
        let key = (job.number, job.attempt);
        let cancel = Cancel::default();
        if self.shared.followed().insert(key, cancel.clone()).is_some() {
            return;
        }
        let (setup, shared) = (Arc::clone(&self.setup), Arc::clone(&self.shared));
        self.crew.send(move || {
            let event = Talk::new(&setup, &job, &cancel).follow(is_new, &shared);
            shared.followed().remove(&key);
            shared.tell(event);
        });
    }

    fn look(&self, job: Job) {
        let (key, cancel) = ((job.number, job.attempt, job.what), Cancel::default());
        self.shared.looks().insert(key, cancel.clone());
        let (setup, shared) = (Arc::clone(&self.setup), Arc::clone(&self.shared));
        self.crew.send(move || {
            let came = Talk::new(&setup, &job, &cancel).look_job();
            shared.looks().remove(&key);
            shared.tell(came.event(job.number, job.attempt));
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
                    [What::Check, What::Verify].map(|what| looks.get(&(step, attempt, what)));
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
                    What::Start => self.follow(job, true),
                    What::Check | What::Verify | What::Predict => self.look(job),
                }
            }
        }
    }
}

/// Nothing more can be learned of an attempt.
enum Lost {
    /// It was not begun.
    Refused(String),
    Gone,
}

/// All conversations about one job.
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
        Watched { secrets: &*setup.secrets, redactions: &redactions }.learn(&job.step);
        let sink = setup.outputs.sink(job.number, job.attempt, &redactions);
        Self { setup, job, cancel, redactions, sink }
    }

    fn follow(mut self, is_new: bool, shared: &Shared) -> Event {
        let (step, attempt) = (self.job.number, self.job.attempt);
        let event = match self.try_follow(is_new, shared) {
            Ok(Some(end)) if is_new => Event::Ran { step, attempt, end },
            Ok(Some(end)) => Event::Found { step, attempt, found: Found::Ended(end) },
            Ok(None) => Event::Found { step, attempt, found: Found::Never },
            Err(Lost::Refused(reason)) if is_new => {
                Came::broken(What::Start, reason).event(step, attempt)
            }
            // It was told by an earlier controller; what became of it nobody can tell.
            Err(Lost::Refused(_) | Lost::Gone) => {
                Event::Found { step, attempt, found: Found::Gone }
            }
        };
        self.sink.finish();
        event
    }

    /// How the attempt ended; `None` if it was never begun.
    fn try_follow(&mut self, is_new: bool, shared: &Shared) -> Result<Option<End>, Lost> {
        let job = self.job;
        let refused = |failure: Failure| Lost::Refused(failure.reason);
        let script = self.script(&job.step.call, Purpose::Apply).map_err(refused)?;
        let host = (self.setup.address)(&job.subject).map_err(Lost::Refused)?;
        let id = file_name(&job.attempt_id());
        if is_new && self.cancel.is_cancelled() {
            return Ok(Some(End::NotBegun { reason: None }));
        }
        if is_new
            && job.step.skip_when_done
            && !job.step.after.is_empty()
            && self.look(&job.step.after, false).is_ok()
        {
            self.sink.note("it was done already");
            return Ok(Some(End::Done { changed: false, receipt: Value::Null }));
        }
        let timeout = job.step.timeout_ms.map(Duration::from_millis);
        let first =
            if is_new { self.begin(&id, &script, timeout)? } else { ask(&id, Duration::ZERO) };
        let mut state = self.say(&host, &first, is_new)?;
        if !is_new && state == State::Running {
            let (step, attempt) = (job.number, job.attempt);
            shared.tell(Event::Found { step, attempt, found: Found::Running });
        }
        loop {
            match state {
                State::Never => return Ok(None),
                State::Gone => return Err(Lost::Gone),
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

    /// Ends an attempt that is under way.
    fn stop(&mut self, host: &str, id: &str) -> Result<End, Lost> {
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
                State::Never | State::Gone => return Err(Lost::Gone),
            }
        }
        let reason = "it was stopped and does not end".to_owned();
        Ok(End::Unknown { reason })
    }

    fn begin(&self, id: &str, script: &Script, timeout: Option<Duration>) -> Result<Payload, Lost> {
        // Zero means that there is no limit.
        let seconds = timeout.map_or(0.0, |timeout| timeout.as_secs_f64());
        let may_use = self.job.step.may_use.as_ref();
        let limits = may_use.map(|may_use| may_use.as_all_commands()).unwrap_or_default();
        let mut payload = Payload::new("start", id)
            .with("wait", &WAIT.as_secs().to_string())
            .with("attempt", &self.job.attempt_id())
            .with("cwd", script.cwd.as_deref().unwrap_or("/"))
            .with("timeout", &format!("{seconds:.3}"))
            // The runner hands the text over on descriptor 7.
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
                .map_err(|failure| Lost::Refused(failure.reason))?;
            self.redactions.add(&value);
            payload = payload.with(&format!("secret {name}"), &value);
        }
        Ok(payload)
    }

    fn say(&self, host: &str, payload: &Payload, may_be_refused: bool) -> Result<State, Lost> {
        self.say_until_heard(host, payload, may_be_refused, WAIT, self.cancel)
    }

    /// Says the same until it is answered, or the machine is taken for gone. If the step shall be
    /// stopped meanwhile, it is as if it were under way.
    fn say_until_heard(
        &self,
        host: &str,
        payload: &Payload,
        may_be_refused: bool,
        wait: Duration,
        cancel: &Cancel,
    ) -> Result<State, Lost> {
        let until = Instant::now() + self.setup.lost_after;
        let mut is_first = true;
        loop {
            match self.setup.login.talk(host, payload, wait, cancel) {
                Ok(state) => return Ok(state),
                Err(_) if cancel.is_cancelled() => return Ok(State::Running),
                Err(NoAnswer::Refused(reason)) if may_be_refused && is_first => {
                    return Err(Lost::Refused(reason));
                }
                Err(NoAnswer::Refused(_) | NoAnswer::Unreachable(_)) if Instant::now() >= until => {
                    return Err(Lost::Gone);
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

    /// Keeps what was printed; its last line comes back, without secrets.
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
        let action =
            action.ok_or_else(|| internal(format!("there is no action `{}` here", call.action)))?;
        let script = if call.undoes.is_some() { None } else { action.script(&call.input, purpose) };
        script.ok_or_else(|| {
            let what =
                if call.undoes.is_some() { "cannot be taken back" } else { "cannot be done" };
            let name = &call.action;
            internal(format!(
                "`{name}` {what} through ssh; start an agent on `{}`",
                self.job.subject
            ))
        })
    }

    fn look_job(mut self) -> Came {
        let Step { before, after, .. } = &self.job.step;
        let came = match self.job.what {
            What::Check => Came::Checked { refused: self.look(before, false).err() },
            _ => match self.look(after, true) {
                Ok(()) => Came::Verified { holds: true, reason: String::new() },
                Err(reason) => Came::Verified { holds: false, reason },
            },
        };
        self.sink.finish();
        came
    }

    fn look(&mut self, checks: &[Call], may_wait: bool) -> Result<(), String> {
        for (at, call) in checks.iter().enumerate() {
            let Check { call, says, poll } = Check::of(call)?;
            let until =
                poll.filter(|_| may_wait).map(|poll| (Instant::now() + poll.last, poll.every));
            let mut turn = 0;
            while let Err(reason) = self.look_once(&call, &format!("{at}-{turn}")) {
                turn += 1;
                let reason =
                    says.as_ref().map_or(reason.clone(), |says| format!("{says}: {reason}"));
                match until {
                    Some((until, every)) if Instant::now() + every <= until => {
                        nap(every, self.cancel);
                    }
                    _ => return Err(reason),
                }
            }
        }
        Ok(())
    }

    fn look_once(&mut self, call: &Call, turn: &str) -> Result<(), String> {
        let script = self.script(call, Purpose::Verify).map_err(|failure| failure.reason)?;
        let timeout = self.job.step.timeout_ms.map_or(LOOK_TIMEOUT, Duration::from_millis);
        let (code, output) = self.run(&script, timeout, turn)?;
        let last = self.print(&output);
        match end(code, &Script { unchanged: Vec::new(), ..script }, Some(timeout), &last) {
            End::Done { .. } => Ok(()),
            End::Failed { reason, .. } | End::Unknown { reason } => Err(reason),
            End::Interrupted | End::NotBegun { .. } => Err("was stopped".to_owned()),
        }
    }

    /// Runs something that changes nothing; its exit code and what it printed.
    fn run(
        &self,
        script: &Script,
        timeout: Duration,
        turn: &str,
    ) -> Result<(i32, Vec<u8>), String> {
        let host = (self.setup.address)(&self.job.subject)?;
        // Another one each time: what was seen before does not count.
        let now = std::time::UNIX_EPOCH.elapsed().unwrap_or_default().as_nanos();
        let id = format!("{}-look-{turn}-{now}", file_name(&self.job.attempt_id()));
        let lost = |lost| match lost {
            Lost::Refused(reason) => reason,
            Lost::Gone => format!("`{host}` does not answer"),
        };
        let mut state = self
            .say(&host, &self.begin(&id, script, Some(timeout)).map_err(lost)?, true)
            .map_err(lost)?;
        while state == State::Running {
            if self.cancel.is_cancelled() {
                return Err("was stopped".to_owned());
            }
            state = self.say(&host, &ask(&id, WAIT), false).map_err(lost)?;
        }
        let State::Ended { code, output } = state else { return Err(lost(Lost::Gone)) };
        // It is forgotten in time by itself, too.
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

/// Asks machines what steps would change. When it is dropped, nobody waits for the rest.
#[derive(Debug)]
pub struct SshForecast {
    cancel: Cancel,
    _crew: Crew,
}

impl SshForecast {
    pub fn new(setup: SshSetup, jobs: Vec<Job>, send: &Sender<Foretold>) -> Self {
        let setup = Arc::new(SshSetup { lost_after: PREDICT_TIMEOUT, ..setup });
        let (cancel, crew) = (Cancel::default(), Crew::new(PREDICTED_AT_ONCE));
        for job in jobs {
            let (setup, cancel, send) = (Arc::clone(&setup), cancel.clone(), send.clone());
            crew.send(move || {
                let predicted = Talk::new(&setup, &job, &cancel).predict();
                // Nobody waits for it any more.
                let _ = send.send((job.number, predicted));
            });
        }
        Self { cancel, _crew: crew }
    }
}

impl Drop for SshForecast {
    fn drop(&mut self) {
        self.cancel.cancel();
    }
}

/// What an exit code over there means.
fn end(code: i32, script: &Script, timeout: Option<Duration>, last: &str) -> End {
    if code == 0 || script.unchanged.contains(&code) {
        return End::Done { changed: !script.unchanged.contains(&code), receipt: Value::Null };
    }
    let quoted = if last.is_empty() { String::new() } else { format!(": {last}") };
    if timeout.is_some() && TIMED_OUT.contains(&code) {
        let reason = format!("was ended because its time was over{quoted}");
        return End::Failed { kind: FailureKind::Timeout, reason };
    }
    End::Failed { kind: FailureKind::Exit, reason: format!("exit code {code}{quoted}") }
}

fn ask(id: &str, wait: Duration) -> Payload {
    Payload::new("ask", id).with("wait", &wait.as_secs().to_string())
}

/// A name that can be one of a file.
fn file_name(id: &str) -> String {
    id.chars().map(|c| if c.is_ascii_alphanumeric() || c == '.' { c } else { '-' }).collect()
}
