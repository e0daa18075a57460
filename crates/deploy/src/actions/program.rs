//! Running a program for a step.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};

use fs_err::os::unix::fs::OpenOptionsExt as _;
use hoist_engine::action::{Cancel, Ctx, Failure, Output, Stream};
use hoist_engine::execute::private_dir;
use hoist_engine::program::{ExitCause, ProgramExit, ProgramStart};
use hoist_engine::record::FailureKind;

use super::account::{self, Base};
use super::input::Input;
use super::{exit, io_error, place, timeout};

/// Programs inherit only these variables of the environment; the others may hold secrets.
const INHERITED: [&str; 7] = ["PATH", "HOME", "LANG", "LC_ALL", "TZ", "USER", "TMPDIR"];

const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// How a program is run.
#[derive(Default)]
pub(super) struct Options {
    pub(super) cwd: Option<String>,
    pub(super) env: BTreeMap<String, String>,
    /// By reference.
    pub(super) secrets: BTreeMap<String, String>,
    pub(super) user: Option<String>,
}

impl Options {
    pub(super) fn read(input: &mut Input<'_>) -> Self {
        let options = Self {
            cwd: input.text("cwd").map(str::to_owned),
            env: input.variables("env"),
            secrets: input.variables("secrets"),
            user: input.text("user").map(str::to_owned),
        };
        if let Some(name) = options.env.keys().find(|name| options.secrets.contains_key(*name)) {
            input.report("secrets", format!("`{name}` is in `env` as well"));
        }
        if options.user.as_ref().is_some_and(|user| user.is_empty() || user.starts_with('-')) {
            input.report("user", "it cannot be the name of a user");
        }
        options
    }
}

/// Files that only the program may read, removed after it ended. The names of the files let another
/// process remove them if this one is killed.
pub(super) struct Private {
    dir: Option<tempfile::TempDir>,
    owner: Option<u32>,
    cancel: Cancel,
}

impl Drop for Private {
    fn drop(&mut self) {
        if self.cancel.is_left() {
            self.dir.take().map(tempfile::TempDir::keep);
        }
    }
}

impl Private {
    pub(super) fn new(user: Option<&str>, ctx: &Ctx<'_>) -> Result<Self, Failure> {
        let owner = user.map(|user| account::number(Base::User, user)).transpose()?;
        let made = tempfile::Builder::new()
            .prefix(&ctx.programs.private_prefix(ctx.attempt))
            .permissions(PermissionsExt::from_mode(0o700))
            .tempdir_in(private_dir())
            .and_then(|dir| {
                owner.map_or(Ok(()), |owner| chown(dir.path(), Some(owner), None)).map(|()| dir)
            });
        let private = |dir| Self { dir: Some(dir), owner, cancel: ctx.cancel.clone() };
        made.map(private).map_err(|error| io_error(&error))
    }

    pub(super) fn write(&self, name: &str, text: &str) -> Result<PathBuf, Failure> {
        let path = self.dir.as_ref().expect("it is there until the end").path().join(name);
        let written = fs_err::OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path)
            .and_then(|mut file| file.write_all(text.as_bytes()))
            .and_then(|()| self.owner.map_or(Ok(()), |owner| chown(&path, Some(owner), None)));
        written.map(|()| path).map_err(|error| io_error(&error))
    }
}

/// Runs a program with what steps give to theirs. `hear` gets every line that it prints.
pub(super) fn run_watched(
    argv: &[OsString],
    options: &Options,
    ctx: &mut Ctx<'_>,
    hear: impl FnMut(&[u8]) + Send,
) -> Result<ProgramExit, Failure> {
    let deadline = ctx.deadline;
    let cancel = ctx.cancel;
    if let Some(program) = ctx.programs.earlier(ctx.attempt) {
        return program
            .follow(deadline, cancel, &mut ObservedOutput { output: ctx.output, hear })
            .map_err(|error| Failure { kind: FailureKind::Lost, reason: error.to_string() });
    }
    let directory =
        options.cwd.as_ref().map_or(ctx.directory.to_owned(), |cwd| place::to_read(cwd, ctx));
    if !directory.is_dir() {
        return Err(exit(format!("directory `{}` not found", directory.display())));
    }
    let program = match &options.user {
        None => argv.to_vec(),
        Some(user) => {
            let mut program = words(["runuser", "-u", user, "--"]);
            program.extend_from_slice(argv);
            program
        }
    };
    let path = options.env.get("PATH").map(OsString::from).or_else(|| std::env::var_os("PATH"));
    let path = path.unwrap_or_else(|| DEFAULT_PATH.into());
    if !is_there(&program[0], &path, &directory) {
        return Err(exit(format!("program `{}` not found", Path::new(&program[0]).display())));
    }
    let mut env: Vec<(OsString, OsString)> = vec![("PATH".into(), path)];
    let inherited = |name: &&str| Some((OsString::from(name), std::env::var_os(name)?));
    env.extend(INHERITED.iter().filter_map(inherited));
    let run = ctx.attempt.split('/').next().unwrap_or_default();
    let own = [("HOIST_NODE", ctx.subject), ("HOIST_RUN", run), ("HOIST_TASK", ctx.task)];
    env.extend(own.map(|(name, value)| (name.into(), value.into())));
    env.extend(options.env.iter().map(|(name, value)| (name.into(), value.into())));
    env.extend(ctx.programs.marks(ctx.attempt).map(|(name, value)| (name.into(), value)));
    let private = if options.secrets.is_empty() {
        None
    } else {
        Some(Private::new(options.user.as_deref(), ctx)?)
    };
    for (name, reference) in &options.secrets {
        let path = private
            .as_ref()
            .expect("there are secrets")
            .write(name, &ctx.secrets.get(reference)?)?;
        env.push((name.into(), path.into()));
    }
    let mut heard = ObservedOutput { output: ctx.output, hear };
    let start = ProgramStart { argv: program, directory, env };
    ctx.programs.run(ctx.attempt, start, deadline, cancel, &mut heard)
}

/// Forwards all output and calls a listener for each line.
struct ObservedOutput<'a, Hear> {
    output: &'a mut dyn Output,
    hear: Hear,
}

impl<Hear: FnMut(&[u8]) + Send> Output for ObservedOutput<'_, Hear> {
    fn line(&mut self, stream: Stream, bytes: &[u8]) {
        (self.hear)(bytes);
        self.output.line(stream, bytes);
    }

    fn part(&mut self, stream: Stream, bytes: &[u8]) {
        self.output.part(stream, bytes);
    }

    fn progress(&mut self, done: u64, total: Option<u64>) {
        self.output.progress(done, total);
    }

    fn quoted(&self, line: &[u8], is_cut: bool) -> Vec<u8> {
        self.output.quoted(line, is_cut)
    }
}

pub(super) fn run(
    argv: &[OsString],
    options: &Options,
    ctx: &mut Ctx<'_>,
) -> Result<ProgramExit, Failure> {
    run_watched(argv, options, ctx, |_| {})
}

fn is_there(program: &OsStr, path: &OsStr, directory: &Path) -> bool {
    if program.as_encoded_bytes().contains(&b'/') {
        return directory.join(program).exists();
    }
    std::env::split_paths(path).any(|path| path.join(program).is_file())
}

/// Maps the end of a program to the result of the step.
pub(super) fn well(ran: &ProgramExit) -> Result<(), Failure> {
    match ran.failure() {
        None => Ok(()),
        Some(failure) if ran.cause == ExitCause::TimedOut => Err(timeout(failure)),
        Some(failure) if ran.wrote_too_much() => {
            let reason = format!("it wrote a larger file than it may: {failure}");
            Err(Failure { kind: FailureKind::Limit, reason })
        }
        Some(failure) => Err(exit(failure)),
    }
}

pub(super) fn words<const N: usize>(words: [&str; N]) -> Vec<OsString> {
    words.map(OsString::from).to_vec()
}
