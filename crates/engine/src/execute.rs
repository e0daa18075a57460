//! Carrying out what a run decides, on this machine.
//!
//! A [`Job`] is all that has to be known for it, so that another machine can carry it out as well
//! ([`crate::pull`]). [`LocalExecutor`] does it here, in a bounded number of threads.

mod crew;
mod forecast;
pub(crate) mod guard;
pub mod keeper;
mod ledger;
mod leftover;
pub(crate) mod output;
pub mod process;
mod programs;

use std::any::Any;
use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::action::{Action, Cancel, Catalog, Ctx, Failure, Prediction, Secrets, Undone, Verdict};
use crate::drive::Executor;
use crate::plan::{Call, Made, Plan, Step, StepId};
use crate::record::{End, FailureKind};
use crate::run::{Effect, Event, Found};

use output::{Redactions, Sink, Watched};

pub(crate) use crew::Crew;
pub use forecast::{Forecast, Foretold};
pub use keeper::Start;
pub use ledger::{Durable, Known, Ledger, MAX_LEDGER};
pub use output::{KEPT_HEAD, KEPT_TAIL, Outputs, references_of};
pub use programs::{Begun, Programs, private_dir};
pub(crate) use programs::{Kept, file_name};

/// Programs find the attempt that they belong to in this variable.
pub const ATTEMPT_VARIABLE: &str = "HOIST_ATTEMPT";

/// And in this one whose attempt that is: a copy of a controller's directory has the same attempts.
pub const LEDGER_VARIABLE: &str = "HOIST_LEDGER";

/// Threads of one executor. More than that at once wait for their turn.
pub const MAX_THREADS: usize = 256;

/// Largest reason that is kept.
pub const MAX_REASON: usize = 16 * 1024;

/// Largest receipt that is kept; it has to fit into a record.
pub const MAX_RECEIPT: usize = 256 * 1024;

/// For one look, where the step does not say how long it may take.
const LOOK_TIMEOUT: Duration = Duration::from_mins(1);

/// For finding out what a step would change. Whoever asks does not wait much longer.
pub const PREDICT_TIMEOUT: Duration = Duration::from_secs(10);

/// Between looks, where the check does not say.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// How often somebody who waits looks whether he shall go on waiting.
const NAP: Duration = Duration::from_millis(20);

/// Something to be done for one attempt.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Job {
    pub run: String,
    pub number: StepId,
    pub attempt: u32,
    pub what: What,
    /// What the plan calls the step.
    pub task: String,
    /// What it acts on; empty if on nothing in particular.
    pub subject: String,
    pub step: Step,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum What {
    /// Look whether it may start.
    Check,
    Start,
    /// Look whether it is done.
    Verify,
    /// Look what it would change.
    Predict,
}

impl Job {
    /// The job that an effect asks for, if it asks for one.
    pub fn of(run: &str, plan: &Plan, effect: Effect) -> Option<Self> {
        let (what, number, attempt) = match effect {
            Effect::Check { step, attempt } => (What::Check, step, attempt),
            Effect::Start { step, attempt } => (What::Start, step, attempt),
            Effect::Verify { step, attempt } => (What::Verify, step, attempt),
            Effect::Ask { .. } | Effect::Kill { .. } => return None,
        };
        let step = plan.step(number)?.clone();
        let subject = subject(plan, number).to_owned();
        let task = plan.vertex(number).name.clone();
        Some(Self { run: run.to_owned(), number, attempt, what, task, subject, step })
    }

    pub fn attempt_id(&self) -> String {
        attempt_id(&self.run, self.number, self.attempt)
    }
}

/// The name of an attempt everywhere outside of its run.
pub fn attempt_id(run: &str, step: StepId, attempt: u32) -> String {
    format!("{run}/{}/{attempt}", step.0)
}

/// What a step acts on; empty if on nothing in particular.
pub fn subject(plan: &Plan, step: StepId) -> &str {
    let subject = plan.step(step).and_then(|step| step.subject);
    subject.map_or("", |at| plan.draft().subjects[at as usize].as_str())
}

/// What came of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Came {
    Checked { refused: Option<String> },
    Ran { end: End },
    Verified { holds: bool, reason: String },
    Predicted(Result<Prediction, String>),
}

impl Came {
    pub fn event(self, step: StepId, attempt: u32) -> Event {
        match self {
            // It is of no run.
            Self::Predicted(_) => Event::Tick,
            Self::Checked { refused } => Event::Checked { step, attempt, refused },
            Self::Ran { end } => Event::Ran { step, attempt, end },
            Self::Verified { holds, reason } => Event::Verified { step, attempt, holds, reason },
        }
    }

    /// Whether nobody knows how it ended.
    pub(crate) fn is_lost(&self) -> bool {
        matches!(self, Self::Ran { end: End::Failed { kind: FailureKind::Lost, .. } })
    }

    /// What is told of a job that cannot be carried out here.
    pub(crate) fn not_begun(what: What, reason: String) -> Self {
        match what {
            What::Start => Self::Ran { end: End::NotBegun { reason: Some(reason) } },
            What::Check | What::Verify | What::Predict => Self::broken(what, reason),
        }
    }

    /// What is told of a job that broke.
    pub(crate) fn broken(what: What, reason: String) -> Self {
        match what {
            What::Check => Self::Checked { refused: Some(reason) },
            What::Start => Self::Ran { end: End::Failed { kind: FailureKind::Internal, reason } },
            What::Verify => Self::Verified { holds: false, reason },
            What::Predict => Self::Predicted(Err(reason)),
        }
    }
}

/// Where jobs are carried out, and with what.
pub struct Site {
    pub catalog: Catalog,
    pub secrets: Arc<dyn Secrets>,
    pub outputs: Outputs,
    pub place: Place,
}

/// Where paths begin that are not absolute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// This machine is the subject.
    Machine,
    /// Each subject is a directory below this one.
    Below(PathBuf),
}

impl std::fmt::Debug for Site {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Site").field("catalog", &self.catalog).finish_non_exhaustive()
    }
}

/// No secret is known here.
#[derive(Debug, Clone, Copy)]
pub struct NoSecrets;

impl Secrets for NoSecrets {
    fn get(&self, reference: &str) -> Result<String, Failure> {
        let reason = format!("there is no secret `{reference}` here");
        Err(Failure { kind: FailureKind::Internal, reason })
    }
}

impl Site {
    /// Carries out a job to its end, whatever that is. What one has left that was ended before its
    /// time ends with it, so that nothing runs beside what comes next.
    pub fn carry_out(&self, job: &Job, cancel: &Cancel, programs: &Programs) -> Came {
        let redactions = Arc::new(Redactions::default());
        let mut sink = self.outputs.sink(job.number, job.attempt, &redactions);
        let attempt = job.attempt_id();
        let worked = catch_unwind(AssertUnwindSafe(|| {
            let place = self.directory(&job.subject)?;
            let watched = Watched { secrets: &*self.secrets, redactions: &redactions };
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
            Ok(work.all())
        }));
        let came = match worked {
            Ok(Ok(came)) => came,
            Ok(Err(failure)) => {
                let failure: Failure = failure;
                Came::not_begun(job.what, failure.reason)
            }
            Err(panic) => Came::broken(job.what, format!("the action broke: {}", said(&*panic))),
        };
        let came = redacted(came, &redactions);
        if cancel.is_left() {
            // Whoever goes on with it writes on.
            sink.leave();
        } else {
            sink.finish();
        }
        came
    }

    /// Goes on with an attempt that another life has begun. `None` if that cannot be, or nobody
    /// knows how it ended; then nothing of it is left.
    pub(crate) fn go_on(
        &self,
        job: &Job,
        cancel: &Cancel,
        programs: &Programs,
        runs: impl FnOnce(),
    ) -> Option<Came> {
        let attempt = job.attempt_id();
        let begun = programs.all_begun(&attempt);
        if begun.iter().any(Begun::runs) {
            runs();
        }
        let Call { action, input, .. } = &job.step.call;
        let is_programs = self.catalog.get(action).is_some_and(|action| action.is_programs(input));
        if is_programs && !begun.is_empty() && begun.iter().all(Begun::has_outcome) {
            let came = self.carry_out(job, cancel, programs);
            if !came.is_lost() {
                return Some(came);
            }
        } else {
            self.wait_for(job, cancel, begun);
        }
        if cancel.is_left() {
            return None;
        }
        match programs.end(&attempt) {
            Ok(()) if cancel.is_cancelled() => Some(Came::Ran { end: End::Interrupted }),
            Ok(()) => None,
            Err(reason) => Some(Came::Ran { end: End::Unknown { reason } }),
        }
    }

    /// Lets programs finish that are part of something which cannot be gone on with.
    fn wait_for(&self, job: &Job, cancel: &Cancel, begun: Vec<Begun>) {
        let redactions = Arc::new(Redactions::default());
        Watched { secrets: &*self.secrets, redactions: &redactions }.learn(&job.step);
        let mut sink = self.outputs.sink(job.number, job.attempt, &redactions);
        for begun in begun.into_iter().filter(Begun::runs) {
            let timeout = job.step.timeout_ms.map(Duration::from_millis);
            let left = timeout.map(|timeout| timeout.saturating_sub(begun.age()));
            // How it ended is of no use without the rest.
            let _ = begun.follow(left.map(|left| Instant::now() + left), cancel, &mut sink);
        }
        if cancel.is_left() {
            sink.leave();
        } else {
            sink.finish();
        }
    }

    /// Prepares the directory of a subject and says where it is.
    fn directory(&self, subject: &str) -> Result<PathBuf, Failure> {
        let Place::Below(base) = &self.place else { return Ok(PathBuf::from("/")) };
        let internal = |reason| Failure { kind: FailureKind::Internal, reason };
        let path = Path::new(subject);
        let mut parts = path.components();
        let is_plain = matches!(parts.next(), None | Some(std::path::Component::Normal(_)));
        if !is_plain || parts.next().is_some() {
            return Err(internal(format!("`{subject}` cannot be the name of a directory")));
        }
        let directory = base.join(path);
        let made = fs_err::create_dir_all(&directory);
        made.and_then(|()| fs_err::canonicalize(&directory))
            .map_err(|error| internal(format!("cannot use the directory of `{subject}`: {error}")))
    }
}

fn said(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no reason given")
}

fn redacted(came: Came, redactions: &Redactions) -> Came {
    let text = |text: String| {
        let mut text = redactions.text(&text);
        text.truncate(text.floor_char_boundary(MAX_REASON));
        text
    };
    match came {
        Came::Checked { refused } => Came::Checked { refused: refused.map(text) },
        Came::Verified { holds, reason } => Came::Verified { holds, reason: text(reason) },
        Came::Ran { end: End::Failed { kind, reason } } => {
            Came::Ran { end: End::Failed { kind, reason: text(reason) } }
        }
        Came::Ran { end: End::Unknown { reason } } => {
            Came::Ran { end: End::Unknown { reason: text(reason) } }
        }
        Came::Ran { end: End::NotBegun { reason } } => {
            Came::Ran { end: End::NotBegun { reason: reason.map(text) } }
        }
        Came::Ran { end } => Came::Ran { end },
        Came::Predicted(Ok(Prediction::Diff(diff))) => {
            let mut diff = redactions.text(&diff);
            diff.truncate(diff.floor_char_boundary(MAX_REASON));
            Came::Predicted(Ok(Prediction::Diff(diff)))
        }
        Came::Predicted(Err(reason)) => Came::Predicted(Err(text(reason))),
        Came::Predicted(other) => Came::Predicted(other),
    }
}

/// One job under way.
struct Work<'a> {
    site: &'a Site,
    job: &'a Job,
    attempt: &'a str,
    place: &'a Path,
    secrets: &'a dyn Secrets,
    cancel: &'a Cancel,
    programs: &'a Programs,
    looks: &'a Programs,
    /// Of what was begun last.
    deadline: Option<Instant>,
    sink: &'a mut Sink,
}

impl Work<'_> {
    fn all(&mut self) -> Came {
        let step = &self.job.step;
        match self.job.what {
            What::Check => Came::Checked { refused: self.look(&step.before, false).err() },
            What::Start => Came::Ran { end: self.start() },
            What::Verify => match self.look(&step.after, true) {
                Ok(()) => Came::Verified { holds: true, reason: String::new() },
                Err(reason) => Came::Verified { holds: false, reason },
            },
            What::Predict => Came::Predicted(self.predict().map_err(|failure| failure.reason)),
        }
    }

    fn predict(&mut self) -> Result<Prediction, Failure> {
        let step = &self.job.step;
        let action = self.action(&step.call.action)?;
        let predicted = action.predict(step, &mut self.ctx(Some(PREDICT_TIMEOUT), self.looks));
        if self.was_cut() {
            // What looks changes nothing, if it stays.
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
            self.sink.note("it was done already");
            return End::Done { changed: false, receipt: Value::Null };
        }
        let (programs, attempt) = (self.programs, self.attempt);
        let may_use = step.may_use.as_deref();
        let (applied, excess) = guard::guarded(may_use, programs, attempt, || self.apply());
        if let Some(reason) = excess {
            return match programs.end(attempt) {
                Ok(()) => End::Failed { kind: FailureKind::Limit, reason },
                Err(reason) => End::Unknown { reason },
            };
        }
        let end = match applied {
            Ok(end) => return end,
            Err(_) if self.cancel.is_cancelled() => End::Interrupted,
            Err(Failure { kind, reason }) => End::Failed { kind, reason },
        };
        let is_lost = matches!(end, End::Failed { kind: FailureKind::Lost, .. });
        if (self.was_cut() || is_lost && !self.cancel.is_left())
            && let Err(reason) = self.programs.end(self.attempt)
        {
            return End::Unknown { reason };
        }
        end
    }

    /// Whether what was begun last was ended before its time. Only of that nothing may be left:
    /// others can have started what is meant to stay.
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
            self.take_back(&*action, attempts, timeout)?;
            return Ok(End::Done { changed: true, receipt: Value::Null });
        }
        let done = action.apply(step, &mut self.ctx(timeout, self.programs))?;
        let size = serde_json::to_vec(&done.receipt).map_or(0, |bytes| bytes.len());
        let receipt = if size <= MAX_RECEIPT {
            done.receipt
        } else {
            let said =
                format!("its receipt of {size} bytes is not kept; at most {MAX_RECEIPT} are");
            self.sink.note(&said);
            Value::Null
        };
        Ok(End::Done { changed: done.changed, receipt })
    }

    /// Takes back what all of these attempts did. Each had its time, and has it again.
    fn take_back(
        &mut self,
        action: &dyn Action,
        attempts: &[Made],
        timeout: Option<Duration>,
    ) -> Result<(), Failure> {
        let impossible = |reason: &str| {
            let reason = format!("it cannot be taken back: {reason}");
            Failure { kind: FailureKind::Exit, reason }
        };
        if attempts.is_empty() {
            return Err(impossible("nobody knows what was done"));
        }
        for made in attempts {
            let undone =
                action.undo(&self.job.step, made, &mut self.ctx(timeout, self.programs))?;
            if let Undone::NotPossible { reason } = undone {
                return Err(impossible(&format!("attempt {}: {reason}", made.attempt)));
            }
        }
        Ok(())
    }

    /// Whether all of the checks hold; if not, why not.
    fn look(&mut self, checks: &[Call], may_wait: bool) -> Result<(), String> {
        for call in checks {
            if self.cancel.is_cancelled() {
                return Err("stopped before it was looked at".to_owned());
            }
            let Check { call, says, poll } = Check::of(call)?;
            let until =
                poll.filter(|_| may_wait).map(|poll| (Instant::now() + poll.last, poll.every));
            while let Err(reason) = self.look_once(&call) {
                let reason =
                    says.as_ref().map_or(reason.clone(), |says| format!("{says}: {reason}"));
                match until {
                    Some((until, every)) if Instant::now() + every <= until => {
                        if !nap(every, self.cancel) {
                            return Err(format!("stopped while it was waited for: {reason}"));
                        }
                    }
                    _ => return Err(reason),
                }
            }
        }
        Ok(())
    }

    fn look_once(&mut self, call: &Call) -> Result<(), String> {
        let timeout = self.job.step.timeout_ms.map_or(LOOK_TIMEOUT, Duration::from_millis);
        let step = Step { call: call.clone(), ..self.job.step.clone() };
        let action = self.action(&call.action).map_err(|failure| failure.reason)?;
        let (looks, attempt) = (self.looks, self.attempt);
        let (verdict, excess) = guard::guarded(step.may_use.as_deref(), looks, attempt, || {
            action.verify(&step, &mut self.ctx(Some(timeout), looks))
        });
        if let Some(reason) = excess {
            let _ = self.looks.end(self.attempt);
            return Err(reason);
        }
        if self.was_cut() {
            // What looks changes nothing, if it stays.
            let _ = self.looks.end(self.attempt);
        }
        match verdict {
            Ok(Verdict::Holds) => Ok(()),
            Ok(Verdict::DoesNot { reason }) => Err(reason),
            Err(failure) => Err(failure.reason),
        }
    }

    fn action(&self, name: &str) -> Result<Arc<dyn Action>, Failure> {
        self.site.catalog.get(name).cloned().ok_or_else(|| Failure {
            kind: FailureKind::Internal,
            reason: format!(
                "there is no action `{name}` here; install its plug-in on this machine"
            ),
        })
    }

    fn ctx<'a>(&'a mut self, timeout: Option<Duration>, programs: &'a Programs) -> Ctx<'a> {
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

/// A check with what its options say.
pub(crate) struct Check {
    pub(crate) call: Call,
    pub(crate) says: Option<String>,
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
    /// `poll` and `says` are for who looks, not for the action.
    pub(crate) fn of(call: &Call) -> Result<Self, String> {
        let mut call = call.clone();
        let (mut says, mut poll) = (None, None);
        if let Value::Object(input) = &mut call.input {
            says = input.shift_remove("says").and_then(|says| says.as_str().map(str::to_owned));
            if let Some(given) = input.shift_remove("poll") {
                let given: PollInput = serde_json::from_value(given)
                    .map_err(|error| format!("`poll` of the check `{}`: {error}", call.action))?;
                let every = given.every_ms.map_or(LOOK_EVERY, Duration::from_millis).max(NAP);
                poll = Some(Poll { last: Duration::from_millis(given.for_ms), every });
            }
        }
        Ok(Self { call, says, poll })
    }
}

/// `false` if it was ended before its time.
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
    site: Arc<Site>,
    kept: Arc<Kept>,
    crew: Crew,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    events: Sender<Event>,
    book: Mutex<Book>,
}

#[derive(Debug)]
struct Book {
    ledger: Ledger<End>,
    /// What was told to this executor and has not ended.
    running: HashMap<(StepId, u32), Cancel>,
    /// Looks under way.
    looks: HashMap<(StepId, u32, What), Cancel>,
    /// Nobody listens any more: how things end now is not how they ended.
    is_closed: bool,
}

impl Shared {
    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self, event: Event) {
        // Without a run nobody needs to know.
        let _ = self.events.send(event);
    }

    /// Keeps and tells what came of an attempt; nothing, if nobody knows.
    fn ended(&self, job: &Job, programs: &Programs, came: Option<Came>) {
        let (step, attempt) = (job.number, job.attempt);
        let mut book = self.book();
        book.running.remove(&(step, attempt));
        if book.is_closed {
            return;
        }
        let event = match came {
            Some(Came::Ran { end }) => {
                // If that cannot be written it is still told, and the run keeps it.
                let _ = book.ledger.end(&short_id((step, attempt)), end.clone());
                Event::Ran { step, attempt, end }
            }
            _ => Event::Found { step, attempt, found: Found::Gone },
        };
        drop(book);
        programs.forget(&job.attempt_id());
        self.tell(event);
    }
}

impl LocalExecutor {
    /// `ledger` is a file of this run, which says after a restart what was told before. `keeper` is
    /// how [`keeper::main`] is started, the program and its arguments; without it each program that
    /// shall outlive us has a shell of its own.
    pub fn new(
        run: impl Into<String>,
        site: Site,
        ledger: &Path,
        events: Sender<Event>,
        keeper: Option<Vec<OsString>>,
    ) -> io::Result<Self> {
        let run = run.into();
        let dir = ledger.parent().unwrap_or(Path::new("."));
        let kept = Arc::new(Kept::new(dir, keeper)?);
        let ledger: Ledger<End> = Ledger::open(ledger, Durable::Process)?;
        let crew = Crew::new(MAX_THREADS);
        if ledger.iter().next().is_some() {
            let begun = |(id, known): (&str, &Known<End>)| {
                matches!(known, Known::Begun).then(|| file_name(&format!("{run}/{id}")))
            };
            let open: HashSet<String> = ledger.iter().filter_map(begun).collect();
            let looks = kept.tidy_up(|attempt| open.contains(attempt));
            crew.send(move || looks.end());
        }
        let book = Mutex::new(Book {
            ledger,
            running: HashMap::new(),
            looks: HashMap::new(),
            is_closed: false,
        });
        let shared = Arc::new(Shared { events, book });
        Ok(Self { run, site: Arc::new(site), kept, crew, shared })
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
            // It was told before, and shall not be told again.
            Ok(false) => {
                drop(book);
                return self.ask(job);
            }
            Err(error) => {
                drop(book);
                let reason = format!("what is begun cannot be kept: {error}");
                return self.shared.tell(Came::not_begun(What::Start, reason).event(key.0, key.1));
            }
        }
        book.running.insert(key, cancel.clone());
        drop(book);
        let (site, shared) = (Arc::clone(&self.site), Arc::clone(&self.shared));
        let programs = Programs::of(&job.step, &self.kept);
        self.crew.send(move || {
            let came = site.carry_out(&job, &cancel, &programs);
            shared.ended(&job, &programs, Some(came).filter(|came| !came.is_lost()));
        });
    }

    fn ask(&self, job: Job) {
        let key = (job.number, job.attempt);
        let mut book = self.shared.book();
        let found = if book.running.contains_key(&key) {
            Some(Found::Running)
        } else {
            match book.ledger.get(&short_id(key)) {
                Some(Known::Ended(end)) => Some(Found::Ended(end.clone())),
                None if book.ledger.is_complete() => Some(Found::Never),
                None => {
                    // Whoever asks next gets the same answer. If that cannot be written, nobody
                    // gets another one as long as this executor lives.
                    let _ = book.ledger.begin(&short_id(key));
                    None
                }
                Some(Known::Begun | Known::Acknowledged) => None,
            }
        };
        if let Some(found) = found {
            drop(book);
            return self.shared.tell(Event::Found { step: key.0, attempt: key.1, found });
        }
        let cancel = Cancel::default();
        book.running.insert(key, cancel.clone());
        drop(book);
        let (site, shared) = (Arc::clone(&self.site), Arc::clone(&self.shared));
        let programs = Programs::again(&self.kept);
        self.crew.send(move || {
            let found = Found::Running;
            let runs = || shared.tell(Event::Found { step: key.0, attempt: key.1, found });
            let came = site.go_on(&job, &cancel, &programs, runs);
            shared.ended(&job, &programs, came);
        });
    }

    fn look(&self, job: Job) {
        let (key, cancel) = ((job.number, job.attempt, job.what), Cancel::default());
        self.shared.book().looks.insert(key, cancel.clone());
        let (site, shared) = (Arc::clone(&self.site), Arc::clone(&self.shared));
        let programs = Programs::new(&self.kept).within(&job.step);
        self.crew.send(move || {
            let came = site.carry_out(&job, &cancel, &programs);
            shared.book().looks.remove(&key);
            shared.tell(came.event(job.number, job.attempt));
        });
    }
}

/// Programs of steps run on, and are found by whoever asks after them later. The rest is ended, and
/// is gone.
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
                let looks = [What::Check, What::Verify];
                let looks = looks.iter().filter_map(|what| book.looks.get(&(step, attempt, *what)));
                looks.chain(book.running.get(&(step, attempt))).for_each(Cancel::cancel);
            }
            Effect::Start { .. } | Effect::Check { .. } | Effect::Verify { .. } => {
                let Some(job) = Job::of(&self.run, plan, effect) else { return };
                match job.what {
                    What::Start => self.start(job),
                    What::Check | What::Verify | What::Predict => self.look(job),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
