//! Plug-ins: external executables that are actions.
//!
//! A file `hoist-action-NAME` in the plug-in directory is the action `NAME`. The program is started
//! for each request, with the request on standard input and lines of JSON on standard output, in
//! namespaces of its own; where namespaces are not permitted, the plug-in is refused. A plug-in
//! always ends at its deadline, and every failure is a [`PluginError`]. `docs/plugins.md` describes
//! the protocol for authors.
//!
//! This module asks questions and judges answers. The protocol belongs to [`protocol`], processes
//! to [`process`], namespaces to [`isolation`].

pub mod check;
mod driver;
mod files;
mod isolation;
mod lines;
mod process;
mod protocol;
mod redact;

use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hoist_diagnostic::Diagnostic;
use rustix::fs::{MemfdFlags, memfd_create};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use crate::action::{
    Ability, Action, ApplyOutcome, Catalog, Contribution, Ctx, Description, Document, Failure,
    Output, Planner, Secrets, Stream, UndoOutcome, Verdict,
};
use crate::execute::output::Redactions;
use crate::plan::{AppliedAttempt, Step};
use crate::program::Programs;
use crate::record::FailureKind;

pub use driver::{Driver, DriverResult};
pub use files::{DRIVER_PREFIX, MAX_NAME, MAX_PLUGINS, PREFIX, Stamp, is_name, look, stamps};
pub use isolation::{Isolation, IsolationPolicy, UnknownPolicy};
pub use process::{GRACE, LINGER};
pub use protocol::{MAX_BYTES, MAX_ERROR_LINE, MAX_LINE, MAX_LINES, PROTO, ProtocolError, Verb};

use isolation::{Descriptor, Start};
use process::{ExchangeError, Until, converse};
use protocol::{Answer, Talk};

/// Timeout of requests that change nothing: describe, contribute, validate and plan.
pub const ASK_TIME: Duration = Duration::from_secs(10);

/// Timeout of a step that has no deadline.
pub const RUN_TIME: Duration = Duration::from_hours(1);

/// Number of plug-ins that are described at once.
const LOADED_AT_ONCE: usize = 8;

/// Largest number of secrets and lent descriptors of one step.
pub const MAX_SECRETS: usize = (isolation::LAST_FD - isolation::FIRST_FD + 1) as usize;

/// Why a plug-in could not be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PluginError {
    #[error("`{}` cannot be used: {why}", path.display())]
    Unusable { path: PathBuf, why: String },
    #[error(
        "plug-in `{}` cannot be isolated: {why}; permit namespaces to hoist, or accept plug-ins without isolation: set `plugins.isolation` to `none`",
        path.display()
    )]
    NotIsolated { path: PathBuf, why: String },
    #[error("{at} cannot be started; check its first line and the interpreter named there")]
    Start { at: PluginRequest, source: io::Error },
    #[error("{at} timed out after {after:?}; give it more time, or find out why it hangs")]
    TimedOut { at: PluginRequest, after: Duration },
    #[error("{at} was cancelled because the run was stopped")]
    Cancelled { at: PluginRequest },
    #[error("{at}: {error}")]
    Protocol { at: PluginRequest, error: ProtocolError },
    #[error(
        "{at} exited with {status} and without a result{}; print a result before the exit",
        quote(last_words)
    )]
    NoResult { at: PluginRequest, status: String, last_words: String },
    #[error(
        "{at} reported success but exited with {status}{}; exit with status 0",
        quote(last_words)
    )]
    Died { at: PluginRequest, status: String, last_words: String },
    #[error("{at} did not exit within {LINGER:?} after its result; exit after the result")]
    Stays { at: PluginRequest },
    #[error("{at} closed its output without a result and did not exit; print the result first")]
    ClosedEarly { at: PluginRequest },
    #[error(
        "{at} left processes behind, which were killed as far as they were found; wait for child processes"
    )]
    LeftBehind { at: PluginRequest },
    #[error("{at}: {reason}")]
    Said { at: PluginRequest, reason: String },
    #[error("{at} is not supported")]
    Unsupported { at: PluginRequest },
    #[error("{at}: invalid result: {why}; see docs/plugins.md")]
    WrongResult { at: PluginRequest, why: String },
    #[error(
        "{at}: the plug-in speaks versions {theirs:?} of the protocol, and hoist speaks {PROTO}; use matching versions of both"
    )]
    Version { at: PluginRequest, theirs: Vec<u32> },
    #[error("{at}: the description has the name `{theirs}`; the name must match the file")]
    Misnamed { at: PluginRequest, theirs: String },
    #[error("{at}: {why}")]
    Secrets { at: PluginRequest, why: String },
    #[error("`{}` has the name `{name}` of an action of hoist; rename it", path.display())]
    Taken { path: PathBuf, name: String },
}

/// The plug-in and the verb of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PluginRequest {
    pub plugin: String,
    pub verb: String,
}

impl std::fmt::Display for PluginRequest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "`{}` of plug-in `{}`", self.verb, self.plugin)
    }
}

fn quote(last_words: &str) -> String {
    if last_words.is_empty() { String::new() } else { format!(" (`{last_words}`)") }
}

impl From<PluginError> for Failure {
    fn from(error: PluginError) -> Self {
        let kind = match &error {
            PluginError::TimedOut { .. } => FailureKind::Timeout,
            PluginError::Said { .. } | PluginError::Died { .. } | PluginError::NoResult { .. } => {
                FailureKind::Exit
            }
            _ => FailureKind::Internal,
        };
        Self { kind, reason: error.to_string() }
    }
}

/// An executable file that was admitted but not described yet.
#[derive(Debug, Clone)]
struct Program {
    path: PathBuf,
    /// The part of the file name before the name of the plug-in.
    prefix: &'static str,
    name: String,
    isolation: Arc<Isolation>,
}

/// An open file that a plug-in may use under a name during one request.
#[derive(Debug)]
pub struct LentDescriptor {
    pub name: String,
    pub fd: OwnedFd,
    pub is_written: bool,
}

/// Everything that is lent to a plug-in for one step.
#[derive(Debug, Default)]
pub struct Loan {
    pub descriptors: Vec<LentDescriptor>,
    /// Directories below `/sys` with settings of its devices, which the plug-in may change.
    pub settings: Vec<PathBuf>,
}

/// The conditions of one request.
struct Terms<'a> {
    directory: &'a Path,
    until: Until<'a>,
    network: bool,
    /// Whether the plug-in may change files of the machine.
    writes: bool,
    secrets: Vec<(String, String)>,
    lent: Vec<LentDescriptor>,
    /// Directories below `/sys` that the plug-in may write to.
    settable: Vec<PathBuf>,
    /// The attempt, by which leftover processes are found.
    attempt: Option<(&'a str, &'a dyn Programs)>,
    output: Option<&'a mut dyn Output>,
}

impl Terms<'_> {
    /// For a request that changes nothing.
    fn pure() -> Self {
        let until = Until { deadline: Instant::now() + ASK_TIME, cancel: None };
        let directory = Path::new("/");
        Self {
            directory,
            until,
            network: false,
            writes: false,
            secrets: Vec::new(),
            lent: Vec::new(),
            settable: Vec::new(),
            attempt: None,
            output: None,
        }
    }
}

impl Program {
    fn open(path: &Path, isolation: &Arc<Isolation>) -> Result<Self, PluginError> {
        Self::open_as(path, PREFIX, isolation)
    }

    fn open_as(
        path: &Path,
        prefix: &'static str,
        isolation: &Arc<Isolation>,
    ) -> Result<Self, PluginError> {
        let name = files::admit(path, prefix)?;
        if let Isolation::Missing { why } = &**isolation {
            return Err(PluginError::NotIsolated { path: path.to_owned(), why: why.clone() });
        }
        // The program is started in another directory, and parents of its own may be hidden.
        let path = fs_err::canonicalize(path).map_err(|error| PluginError::Unusable {
            path: path.to_owned(),
            why: error.to_string(),
        })?;
        Ok(Self { path, prefix, name, isolation: Arc::clone(isolation) })
    }

    /// Sends a request and returns the fields of a successful answer.
    fn ask(
        &self,
        verb: &str,
        fields: Value,
        terms: Terms<'_>,
    ) -> Result<Map<String, Value>, PluginError> {
        // The file may have changed since it was opened.
        files::admit(&self.path, self.prefix)?;
        let at = || PluginRequest { plugin: self.name.clone(), verb: verb.to_owned() };
        let redactions = Redactions::default();
        let mut numbers = Map::new();
        let mut descriptors = Vec::new();
        for (name, secret) in &terms.secrets {
            redactions.add(secret);
            let fd = memory_file(secret.as_bytes())
                .map_err(|source| PluginError::Start { at: at(), source })?;
            numbers.insert(name.clone(), json!(isolation::FIRST_FD as usize + descriptors.len()));
            descriptors.push(Descriptor { fd, is_written: false });
        }
        for LentDescriptor { name, fd, is_written } in terms.lent {
            numbers.insert(name, json!(isolation::FIRST_FD as usize + descriptors.len()));
            descriptors.push(Descriptor { fd, is_written });
        }
        if descriptors.len() > MAX_SECRETS {
            let count = descriptors.len();
            let why =
                format!("{count} descriptors are needed; at most {MAX_SECRETS} are available");
            return Err(PluginError::Secrets { at: at(), why });
        }
        let left = terms.until.deadline.saturating_duration_since(Instant::now());
        let mut request = json!({"proto": PROTO, "verb": verb, "fds": numbers, "deadline_s": left.as_secs().max(1)});
        if let (Value::Object(request), Value::Object(fields)) = (&mut request, fields) {
            request.extend(fields);
        }
        let mut line = request.to_string();
        line.push('\n');
        let mut talk = Talk::new(redactions, terms.output);
        let limits = terms.attempt.map(|(_, programs)| programs.limits()).unwrap_or_default();
        let mut command = self.isolation.command(Start {
            program: &self.path,
            directory: terms.directory,
            descriptors: &descriptors,
            network: terms.network,
            writes: terms.writes,
            settable: &terms.settable,
            limits,
        });
        if let Some((attempt, programs)) = terms.attempt {
            command.envs(programs.marks(attempt));
        }
        let ended = converse(&mut command, line.as_bytes(), terms.until, &mut talk);
        let (answer, last_words) = talk.into_parts();
        match ended {
            Ok(status) => self.judge(at(), status, answer, last_words),
            Err(error) => {
                // Without namespaces the processes may be in other groups.
                if let Some((attempt, programs)) = terms.attempt
                    && !self.isolation.is_private()
                {
                    // After a timeout the executor searches again.
                    let _ = programs.end(attempt);
                }
                Err(error_of(at(), error, left))
            }
        }
    }

    /// Combines the answer of a process with its exit status.
    fn judge(
        &self,
        at: PluginRequest,
        status: ExitStatus,
        answer: Option<Answer>,
        last_words: String,
    ) -> Result<Map<String, Value>, PluginError> {
        if self.isolation.is_private() && status.code() == Some(isolation::LEFT_BEHIND) {
            return Err(PluginError::LeftBehind { at });
        }
        let Some(answer) = answer else {
            return Err(PluginError::NoResult { at, status: describe_status(status), last_words });
        };
        match (answer.ok, answer.error) {
            (true, _) if !status.success() => {
                Err(PluginError::Died { at, status: describe_status(status), last_words })
            }
            (true, _) => Ok(answer.rest),
            (false, Some(error)) if error == "unsupported" => Err(PluginError::Unsupported { at }),
            (false, error) => {
                let reason = error.filter(|error| !error.is_empty());
                Err(PluginError::Said {
                    at,
                    reason: reason
                        .unwrap_or_else(|| "the plug-in failed without a reason".to_owned()),
                })
            }
        }
    }

    /// A request whose answer has one relevant field.
    fn ask_for<T: DeserializeOwned>(
        &self,
        verb: Verb,
        field: &str,
        fields: Value,
        terms: Terms<'_>,
    ) -> Result<T, PluginError> {
        let answer = self.ask(verb.as_str(), fields, terms)?;
        self.field(verb, &answer, field)
    }

    fn field<T: DeserializeOwned>(
        &self,
        verb: Verb,
        answer: &Map<String, Value>,
        field: &str,
    ) -> Result<T, PluginError> {
        let wrong = |why| PluginError::WrongResult { at: self.at(verb), why };
        let value = answer.get(field).ok_or_else(|| wrong(format!("`{field}` is missing")))?;
        T::deserialize(value).map_err(|error| wrong(format!("`{field}`: {error}")))
    }

    fn at(&self, verb: Verb) -> PluginRequest {
        PluginRequest { plugin: self.name.clone(), verb: verb.as_str().to_owned() }
    }
}

/// Puts a secret into a memory file that only its descriptor refers to.
fn memory_file(secret: &[u8]) -> io::Result<OwnedFd> {
    let fd = memfd_create("secret", MemfdFlags::CLOEXEC)?;
    let mut file = std::fs::File::from(fd);
    file.write_all(secret)?;
    Ok(file.into())
}

fn error_of(at: PluginRequest, error: ExchangeError, given: Duration) -> PluginError {
    match error {
        ExchangeError::System(source) => PluginError::Start { at, source },
        ExchangeError::ProtocolError(error) => PluginError::Protocol { at, error },
        ExchangeError::TimedOut => {
            // Rounded to the value that people configured.
            let after =
                Duration::from_secs(given.as_secs() + u64::from(given.subsec_millis() >= 500));
            PluginError::TimedOut { at, after }
        }
        ExchangeError::Cancelled => PluginError::Cancelled { at },
        ExchangeError::Stays => PluginError::Stays { at },
        ExchangeError::ClosedEarly => PluginError::ClosedEarly { at },
        ExchangeError::LeftBehind => PluginError::LeftBehind { at },
    }
}

fn describe_status(status: ExitStatus) -> String {
    match status.code() {
        Some(code) => format!("status {code}"),
        None => status.to_string(),
    }
}

/// The description that a plug-in gives of itself.
#[derive(Debug, Clone, PartialEq, Deserialize)]
struct Introduction {
    /// Supported versions of the protocol.
    proto: Vec<u32>,
    #[serde(flatten)]
    about: Description,
    /// An input that is harmless in an empty directory.
    #[serde(default)]
    example: Option<Value>,
}

/// A described plug-in.
#[derive(Debug, Clone)]
pub struct Plugin {
    program: Program,
    about: Description,
}

impl Plugin {
    /// The description that the program gave of itself.
    pub fn describe(&self) -> Description {
        self.about.clone()
    }

    /// Opens a file and asks for its description.
    pub fn open(path: &Path, isolation: &Arc<Isolation>) -> Result<Self, PluginError> {
        let program = Program::open(path, isolation)?;
        let about = introduce(&program)?.about;
        Ok(Self { program, about })
    }

    pub fn path(&self) -> &Path {
        &self.program.path
    }

    pub fn isolation(&self) -> &Isolation {
        &self.program.isolation
    }

    /// Applies a step with lent resources; `fields` are added to the request.
    pub fn apply_with(
        &self,
        step: &Step,
        fields: Map<String, Value>,
        loan: Loan,
        ctx: &mut Ctx<'_>,
    ) -> Result<ApplyOutcome, Failure> {
        let mut answer = self.act(Verb::Run, step, fields, loan, ctx)?;
        let receipt = answer.remove("receipt").unwrap_or_default();
        // Without the field the step may have changed something.
        let changed = if answer.contains_key("changed") {
            self.program.field(Verb::Run, &answer, "changed")?
        } else {
            true
        };
        Ok(ApplyOutcome { changed, receipt })
    }

    /// Verifies a step, as [`Plugin::apply_with`] applies it.
    pub fn verify_with(
        &self,
        step: &Step,
        fields: Map<String, Value>,
        loan: Loan,
        ctx: &mut Ctx<'_>,
    ) -> Result<Verdict, Failure> {
        let answer = self.act(Verb::Verify, step, fields, loan, ctx)?;
        if self.program.field(Verb::Verify, &answer, "holds")? {
            return Ok(Verdict::Holds);
        }
        let reason =
            answer.get("reason").and_then(Value::as_str).unwrap_or("the condition does not hold");
        Ok(Verdict::fails(reason))
    }

    /// Sends a request that acts on a machine.
    fn act(
        &self,
        verb: Verb,
        step: &Step,
        mut fields: Map<String, Value>,
        loan: Loan,
        ctx: &mut Ctx<'_>,
    ) -> Result<Map<String, Value>, PluginError> {
        if let Isolation::None { why } = &*self.program.isolation {
            let note = format!(
                "plug-in `{}` runs without namespaces of its own: {why}",
                self.program.name
            );
            ctx.output.line(Stream::Note, note.as_bytes());
        }
        let input = &step.call.input;
        let secrets = secrets(input, ctx.secrets)
            .map_err(|why| PluginError::Secrets { at: self.program.at(verb), why })?;
        fields.insert("attempt".to_owned(), json!(ctx.attempt));
        fields.insert("task".to_owned(), json!(ctx.task));
        fields.insert("subject".to_owned(), json!(ctx.subject));
        fields.insert("step".to_owned(), json!({"action": step.call.action, "input": input}));
        let deadline = ctx.deadline.unwrap_or_else(|| Instant::now() + RUN_TIME);
        let terms = Terms {
            directory: ctx.directory,
            until: Until { deadline, cancel: Some(ctx.cancel) },
            network: self.about.network,
            writes: true,
            secrets,
            lent: loan.descriptors,
            settable: loan.settings,
            attempt: Some((ctx.attempt, ctx.programs)),
            output: Some(&mut *ctx.output),
        };
        self.program.ask(verb.as_str(), Value::Object(fields), terms)
    }
}

/// The description of a program, after checking version and name.
fn introduce(program: &Program) -> Result<Introduction, PluginError> {
    let at = || program.at(Verb::Describe);
    let said: Introduction =
        program.ask_for(Verb::Describe, "description", Value::Null, Terms::pure())?;
    if !said.proto.contains(&PROTO) {
        return Err(PluginError::Version { at: at(), theirs: said.proto });
    }
    if said.about.name != program.name {
        return Err(PluginError::Misnamed { at: at(), theirs: said.about.name });
    }
    Ok(said)
}

/// The secrets that an input names as `secrets: {NAME: reference}`.
fn secrets(input: &Value, known: &dyn Secrets) -> Result<Vec<(String, String)>, String> {
    let Some(wanted) = input.get("secrets") else { return Ok(Vec::new()) };
    let wanted = wanted.as_object().ok_or("`secrets` must be an object of names and references")?;
    if wanted.len() > MAX_SECRETS {
        return Err(format!(
            "{} secrets are named; at most {MAX_SECRETS} are available; put several into one",
            wanted.len()
        ));
    }
    let secret = |(name, reference): (&String, &Value)| {
        let reference =
            reference.as_str().ok_or_else(|| format!("secret `{name}` must be a reference"))?;
        let value = known.get(reference).map_err(|failure| failure.reason)?;
        Ok((name.clone(), value))
    };
    wanted.iter().map(secret).collect()
}

/// Treats an unsupported verb as an empty answer.
fn or_nothing<T: Default>(said: Result<T, PluginError>) -> Result<T, PluginError> {
    match said {
        Err(PluginError::Unsupported { .. }) => Ok(T::default()),
        other => other,
    }
}

impl Action for Plugin {
    fn describe(&self) -> Description {
        Self::describe(self)
    }

    fn validate(&self, input: &Value) -> Vec<Diagnostic> {
        let fields = json!({"step": {"action": self.about.name, "input": input}});
        let said = self.program.ask_for(Verb::Validate, "diagnostics", fields, Terms::pure());
        or_nothing(said).unwrap_or_else(|error| {
            vec![Diagnostic { at: String::new(), message: error.to_string(), hint: None }]
        })
    }

    fn apply(&self, step: &Step, ctx: &mut Ctx<'_>) -> Result<ApplyOutcome, Failure> {
        self.apply_with(step, Map::new(), Loan::default(), ctx)
    }

    fn verify(&self, step: &Step, ctx: &mut Ctx<'_>) -> Result<Verdict, Failure> {
        self.verify_with(step, Map::new(), Loan::default(), ctx)
    }

    fn undo(
        &self,
        step: &Step,
        made: &AppliedAttempt,
        ctx: &mut Ctx<'_>,
    ) -> Result<UndoOutcome, Failure> {
        let not_possible = |reason: &str| {
            let reason = format!("plug-in `{}` {reason}", self.program.name);
            Ok(UndoOutcome::NotPossible { reason })
        };
        if !self.about.can.contains(&Ability::Undo) {
            return not_possible("has no undo");
        }
        let fields = Map::from_iter([
            ("receipt".to_owned(), made.receipt.clone()),
            ("undoes".to_owned(), json!(made.attempt)),
        ]);
        let answer = self.act(Verb::Undo, step, fields, Loan::default(), ctx)?;
        if self.program.field(Verb::Undo, &answer, "undone")? {
            return Ok(UndoOutcome::Undone);
        }
        not_possible("reports that undo is not possible")
    }
}

impl Planner for Plugin {
    fn describe(&self) -> Description {
        Self::describe(self)
    }

    fn contribute(&self, document: &Document, facts: &Value) -> Result<Vec<Contribution>, Failure> {
        if self.about.contributes.is_empty() {
            return Ok(Vec::new());
        }
        let fields = json!({"doc": document.shown_to(&self.about), "facts": facts});
        let said = self.program.ask_for(Verb::Contribute, "contributions", fields, Terms::pure());
        Ok(or_nothing(said)?)
    }

    fn plan(&self, document: &Document, observed: &Value) -> Result<Vec<Step>, Failure> {
        let fields = json!({"doc": document.shown_to(&self.about), "observed": observed});
        let said = self.program.ask_for(Verb::Plan, "steps", fields, Terms::pure());
        Ok(or_nothing(said)?)
    }
}

/// Loads the plug-ins of a directory. Returns the usable ones and the errors of the others. A
/// plug-in cannot replace an existing action.
pub fn load(
    directory: &Path,
    isolation: &Arc<Isolation>,
    there: &Catalog,
) -> (Vec<Plugin>, Vec<PluginError>) {
    let paths = match look(directory) {
        Ok(paths) => paths,
        Err(error) => return (Vec::new(), vec![error]),
    };
    let mut plugins = Vec::new();
    let mut refused = Vec::new();
    for some in paths.chunks(LOADED_AT_ONCE) {
        let opened: Vec<_> = std::thread::scope(|scope| {
            let open = |path: &PathBuf| {
                let path = path.clone();
                scope.spawn(move || Plugin::open(&path, isolation))
            };
            let threads: Vec<_> = some.iter().map(open).collect();
            threads.into_iter().map(|thread| thread.join().expect("nothing panics")).collect()
        });
        for opened in opened {
            match opened {
                Ok(plugin) if there.get(&plugin.about.name).is_some() => {
                    let path = plugin.program.path;
                    let name = plugin.about.name;
                    refused.push(PluginError::Taken { path, name });
                }
                Ok(plugin) => plugins.push(plugin),
                Err(error) => refused.push(error),
            }
        }
    }
    (plugins, refused)
}
