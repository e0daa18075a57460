//! Plug-ins: executables of others that are actions.
//!
//! A file `hoist-action-NAME` in the plug-in directory is the action `NAME`. It is started anew for
//! everything it is asked, with one request on standard input and lines of JSON on standard output,
//! in namespaces of its own; where those are not permitted it is refused. Whatever it does, it ends at its deadline, and
//! what goes wrong is one [`PluginError`]. docs/plugins.md describes it for those who write one.

pub mod check;
mod driver;
mod isolation;
mod lines;
mod place;
mod process;
mod protocol;
mod redact;

use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, memfd_create};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use crate::action::{
    Ability, Action, Catalog, Contribution, Ctx, Description, Diagnostic, Document, Done, Failure,
    Output, Secrets, Stream, Undone, Verdict,
};
use crate::execute::Programs;
use crate::execute::output::Redactions;
use crate::plan::{Made, Step};
use crate::record::FailureKind;

pub use driver::{Driver, Parsed};
pub use isolation::{Isolation, IsolationPolicy};
pub use place::{DRIVER_PREFIX, MAX_NAME, MAX_PLUGINS, PREFIX, Stamp, is_name, look, stamps};
pub use process::{GRACE, LINGER};
pub use protocol::{Fault, MAX_BYTES, MAX_ERROR_LINE, MAX_LINE, MAX_LINES, PROTO, Verb};

use isolation::{Descriptor, Start};
use process::{Trouble, Until, converse};
use protocol::{Answer, Talk};

/// For what changes nothing: describe, contribute, validate and plan.
pub const ASK_TIME: Duration = Duration::from_secs(10);

/// For a step that has no deadline of its own.
pub const RUN_TIME: Duration = Duration::from_hours(1);

/// Plug-ins that are asked at the same time what they are.
const LOADED_AT_ONCE: usize = 8;

/// Secrets of one step, and what else it is lent: each takes a descriptor.
pub const MAX_SECRETS: usize = (isolation::LAST_FD - isolation::FIRST_FD + 1) as usize;

/// Why a plug-in was of no use.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PluginError {
    #[error("`{}` cannot be used: {why}", path.display())]
    Unusable { path: PathBuf, why: String },
    #[error(
        "plug-in `{}` is not run, because it cannot be isolated: {why}; permit namespaces to hoist, or accept plug-ins without isolation: set `plugins.isolation` to `none`",
        path.display()
    )]
    NotIsolated { path: PathBuf, why: String },
    #[error("{at} cannot be started; look at its first line and at the interpreter named there")]
    Start { at: Asked, source: io::Error },
    #[error(
        "{at} was not done after {after:?} and was ended; give it more time, or look why it hangs"
    )]
    TimedOut { at: Asked, after: Duration },
    #[error("{at} was ended because the run was stopped")]
    Cancelled { at: Asked },
    #[error("{at}: {fault}")]
    Protocol { at: Asked, fault: Fault },
    #[error(
        "{at} ended with {status} and without a result{}; print one before it ends",
        said(last_words)
    )]
    NoResult { at: Asked, status: String, last_words: String },
    #[error(
        "{at} said that all is well and ended with {status}{}; end with status 0",
        said(last_words)
    )]
    Died { at: Asked, status: String, last_words: String },
    #[error("{at} gave its result and did not end within {LINGER:?}; end after the result")]
    Stays { at: Asked },
    #[error("{at} closed its output without a result and went on; print the result first")]
    ClosedEarly { at: Asked },
    #[error(
        "{at} left processes behind, which were ended as far as they were found; wait for what it starts"
    )]
    LeftBehind { at: Asked },
    #[error("{at}: {reason}")]
    Said { at: Asked, reason: String },
    #[error("{at} is not supported")]
    Unsupported { at: Asked },
    #[error("{at}: the result is not as it should be: {why}; see docs/plugins.md")]
    WrongResult { at: Asked, why: String },
    #[error(
        "{at}: it speaks the versions {theirs:?} of the protocol and hoist speaks {PROTO}; use versions of both that fit"
    )]
    Version { at: Asked, theirs: Vec<u32> },
    #[error("{at}: it calls itself `{theirs}`; call it and its file the same")]
    Misnamed { at: Asked, theirs: String },
    #[error("{at}: {why}")]
    Secrets { at: Asked, why: String },
    #[error("`{}` is called `{name}` as an action of hoist is; rename it", path.display())]
    Taken { path: PathBuf, name: String },
}

/// Who was asked what.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asked {
    pub plugin: String,
    pub verb: String,
}

impl std::fmt::Display for Asked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "`{}` of plug-in `{}`", self.verb, self.plugin)
    }
}

fn said(last_words: &str) -> String {
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

/// A file that may be run, of which nothing else is known yet.
#[derive(Debug, Clone)]
struct Program {
    path: PathBuf,
    /// What its file is called before its own name.
    prefix: &'static str,
    name: String,
    isolation: Arc<Isolation>,
}

/// Something open that a plug-in is lent under a name, as long as it answers one question.
#[derive(Debug)]
pub struct Lent {
    pub name: String,
    pub fd: OwnedFd,
    pub is_written: bool,
}

/// What a plug-in is lent for one step.
#[derive(Debug, Default)]
pub struct Loan {
    pub descriptors: Vec<Lent>,
    /// Directories below `/sys` with the settings of its devices, which it may change.
    pub settings: Vec<PathBuf>,
}

/// What a question comes with, beside itself.
struct Terms<'a> {
    directory: &'a Path,
    until: Until<'a>,
    network: bool,
    /// Whether files of the machine may be changed.
    writes: bool,
    secrets: Vec<(String, String)>,
    lent: Vec<Lent>,
    /// Directories below `/sys` that it may write to.
    settable: Vec<PathBuf>,
    /// By which what it leaves behind can be found.
    attempt: Option<(&'a str, &'a Programs)>,
    output: Option<&'a mut dyn Output>,
}

impl Terms<'_> {
    /// Of a question that changes nothing.
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
        let name = place::admit(path, prefix)?;
        if let Isolation::Missing { why } = &**isolation {
            return Err(PluginError::NotIsolated { path: path.to_owned(), why: why.clone() });
        }
        // It is started in another directory, and of those above its own not all may be there.
        let path = fs_err::canonicalize(path).map_err(|error| PluginError::Unusable {
            path: path.to_owned(),
            why: error.to_string(),
        })?;
        Ok(Self { path, prefix, name, isolation: Arc::clone(isolation) })
    }

    /// Asks, and gives what the plug-in answers if that is not a failure.
    fn ask(
        &self,
        verb: &str,
        fields: Value,
        terms: Terms<'_>,
    ) -> Result<Map<String, Value>, PluginError> {
        // It may have been changed since it was found.
        place::admit(&self.path, self.prefix)?;
        let at = || Asked { plugin: self.name.clone(), verb: verb.to_owned() };
        let redactions = Redactions::default();
        let (mut numbers, mut descriptors) = (Map::new(), Vec::new());
        for (name, secret) in &terms.secrets {
            redactions.add(secret);
            let fd = kept(secret.as_bytes())
                .map_err(|source| PluginError::Start { at: at(), source })?;
            numbers.insert(name.clone(), json!(isolation::FIRST_FD as usize + descriptors.len()));
            descriptors.push(Descriptor { fd, is_written: false });
        }
        for Lent { name, fd, is_written } in terms.lent {
            numbers.insert(name, json!(isolation::FIRST_FD as usize + descriptors.len()));
            descriptors.push(Descriptor { fd, is_written });
        }
        if descriptors.len() > MAX_SECRETS {
            let count = descriptors.len();
            let why = format!("{count} descriptors are wanted and {MAX_SECRETS} can be given");
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
            Err(trouble) => {
                // Without namespaces they may be in other groups.
                if let Some((attempt, programs)) = terms.attempt
                    && !self.isolation.is_private()
                {
                    // If the time was over the executor looks again.
                    let _ = programs.end(attempt);
                }
                Err(trouble_at(at(), trouble, left))
            }
        }
    }

    /// What the end of a process makes of its answer.
    fn judge(
        &self,
        at: Asked,
        status: ExitStatus,
        answer: Option<Answer>,
        last_words: String,
    ) -> Result<Map<String, Value>, PluginError> {
        if self.isolation.is_private() && status.code() == Some(isolation::LEFT_BEHIND) {
            return Err(PluginError::LeftBehind { at });
        }
        let Some(answer) = answer else {
            return Err(PluginError::NoResult { at, status: in_words(status), last_words });
        };
        match (answer.ok, answer.error) {
            (true, _) if !status.success() => {
                Err(PluginError::Died { at, status: in_words(status), last_words })
            }
            (true, _) => Ok(answer.rest),
            (false, Some(error)) if error == "unsupported" => Err(PluginError::Unsupported { at }),
            (false, error) => {
                let reason = error.filter(|error| !error.is_empty());
                Err(PluginError::Said {
                    at,
                    reason: reason.unwrap_or_else(|| "it failed without a reason".to_owned()),
                })
            }
        }
    }

    /// A question of which the answer has one field that counts.
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

    fn at(&self, verb: Verb) -> Asked {
        Asked { plugin: self.name.clone(), verb: verb.as_str().to_owned() }
    }
}

/// A secret where only its descriptor leads.
fn kept(secret: &[u8]) -> io::Result<OwnedFd> {
    let fd = memfd_create("secret", MemfdFlags::CLOEXEC)?;
    let mut file = std::fs::File::from(fd);
    file.write_all(secret)?;
    Ok(file.into())
}

fn trouble_at(at: Asked, trouble: Trouble, given: Duration) -> PluginError {
    match trouble {
        Trouble::System(source) => PluginError::Start { at, source },
        Trouble::Fault(fault) => PluginError::Protocol { at, fault },
        Trouble::TimedOut => {
            // As people set it.
            let after =
                Duration::from_secs(given.as_secs() + u64::from(given.subsec_millis() >= 500));
            PluginError::TimedOut { at, after }
        }
        Trouble::Cancelled => PluginError::Cancelled { at },
        Trouble::Stays => PluginError::Stays { at },
        Trouble::ClosedEarly => PluginError::ClosedEarly { at },
        Trouble::LeftBehind => PluginError::LeftBehind { at },
    }
}

fn in_words(status: ExitStatus) -> String {
    match status.code() {
        Some(code) => format!("status {code}"),
        None => status.to_string(),
    }
}

/// What a plug-in says of itself.
#[derive(Debug, Clone, PartialEq, Deserialize)]
struct Introduction {
    /// The versions of the protocol that it speaks.
    proto: Vec<u32>,
    #[serde(flatten)]
    about: Description,
    /// An input that does no harm in an empty directory.
    #[serde(default)]
    example: Option<Value>,
}

/// A plug-in that said what it is.
#[derive(Debug, Clone)]
pub struct Plugin {
    program: Program,
    about: Description,
}

impl Plugin {
    /// Asks a file what it is.
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

    /// Does a step with what it is lent for it; `fields` are told beside the step.
    pub fn apply_with(
        &self,
        step: &Step,
        fields: Map<String, Value>,
        loan: Loan,
        ctx: &mut Ctx<'_>,
    ) -> Result<Done, Failure> {
        let mut answer = self.act(Verb::Run, step, fields, loan, ctx)?;
        let receipt = answer.remove("receipt").unwrap_or_default();
        // Who does not say so may have changed something.
        let changed = if answer.contains_key("changed") {
            self.program.field(Verb::Run, &answer, "changed")?
        } else {
            true
        };
        Ok(Done { changed, receipt })
    }

    /// The same for whether it is done.
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
        let reason = answer.get("reason").and_then(Value::as_str).unwrap_or("it does not hold");
        Ok(Verdict::DoesNot { reason: reason.to_owned() })
    }

    /// Asks for something that happens on a machine.
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

/// What a program says of itself, if that fits.
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

/// The secrets that an input names: `secrets: {NAME: reference}`.
fn secrets(input: &Value, known: &dyn Secrets) -> Result<Vec<(String, String)>, String> {
    let Some(wanted) = input.get("secrets") else { return Ok(Vec::new()) };
    let wanted = wanted.as_object().ok_or("`secrets` must be an object of names and references")?;
    if wanted.len() > MAX_SECRETS {
        return Err(format!(
            "{} secrets are named and {MAX_SECRETS} can be given; put several into one",
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

/// A verb that a plug-in does not have says nothing.
fn or_nothing<T: Default>(said: Result<T, PluginError>) -> Result<T, PluginError> {
    match said {
        Err(PluginError::Unsupported { .. }) => Ok(T::default()),
        other => other,
    }
}

impl Action for Plugin {
    fn describe(&self) -> Description {
        self.about.clone()
    }

    fn contribute(&self, document: &Document, facts: &Value) -> Result<Vec<Contribution>, Failure> {
        if self.about.contributes.is_empty() {
            return Ok(Vec::new());
        }
        let fields = json!({"doc": document.shown_to(&self.about), "facts": facts});
        let said = self.program.ask_for(Verb::Contribute, "contributions", fields, Terms::pure());
        Ok(or_nothing(said)?)
    }

    fn validate(&self, input: &Value) -> Vec<Diagnostic> {
        let fields = json!({"step": {"action": self.about.name, "input": input}});
        let said = self.program.ask_for(Verb::Validate, "diagnostics", fields, Terms::pure());
        or_nothing(said).unwrap_or_else(|error| {
            vec![Diagnostic { at: String::new(), message: error.to_string(), hint: None }]
        })
    }

    fn plan(&self, document: &Document, observed: &Value) -> Result<Vec<Step>, Failure> {
        let fields = json!({"doc": document.shown_to(&self.about), "observed": observed});
        let said = self.program.ask_for(Verb::Plan, "steps", fields, Terms::pure());
        Ok(or_nothing(said)?)
    }

    fn apply(&self, step: &Step, ctx: &mut Ctx<'_>) -> Result<Done, Failure> {
        self.apply_with(step, Map::new(), Loan::default(), ctx)
    }

    fn verify(&self, step: &Step, ctx: &mut Ctx<'_>) -> Result<Verdict, Failure> {
        self.verify_with(step, Map::new(), Loan::default(), ctx)
    }

    fn undo(&self, step: &Step, made: &Made, ctx: &mut Ctx<'_>) -> Result<Undone, Failure> {
        let not_possible = |reason: &str| {
            let reason = format!("plug-in `{}` {reason}", self.program.name);
            Ok(Undone::NotPossible { reason })
        };
        if !self.about.can.contains(&Ability::Undo) {
            return not_possible("takes nothing back");
        }
        let fields = Map::from_iter([
            ("receipt".to_owned(), made.receipt.clone()),
            ("undoes".to_owned(), json!(made.attempt)),
        ]);
        let answer = self.act(Verb::Undo, step, fields, Loan::default(), ctx)?;
        if self.program.field(Verb::Undo, &answer, "undone")? {
            return Ok(Undone::Undone);
        }
        not_possible("says that it is not possible")
    }
}

impl crate::contribute::Contributor for Plugin {
    fn describe(&self) -> Description {
        self.about.clone()
    }

    fn contribute(&self, document: &Document, facts: &Value) -> Result<Vec<Contribution>, Failure> {
        Action::contribute(self, document, facts)
    }
}

/// The plug-ins of a directory, and why others in it are none. None takes the place of an action
/// that there is already.
pub fn load(
    directory: &Path,
    isolation: &Arc<Isolation>,
    there: &Catalog,
) -> (Vec<Plugin>, Vec<PluginError>) {
    let paths = match look(directory) {
        Ok(paths) => paths,
        Err(error) => return (Vec::new(), vec![error]),
    };
    let (mut plugins, mut refused) = (Vec::new(), Vec::new());
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
                    let (path, name) = (plugin.program.path, plugin.about.name);
                    refused.push(PluginError::Taken { path, name });
                }
                Ok(plugin) => plugins.push(plugin),
                Err(error) => refused.push(error),
            }
        }
    }
    (plugins, refused)
}
