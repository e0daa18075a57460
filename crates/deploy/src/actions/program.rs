//! Running a program for a step.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

use fs_err::os::unix::fs::OpenOptionsExt as _;
use hoist_engine::action::{Ctx, Failure, Output};
use hoist_engine::execute::ATTEMPT_VARIABLE;
use hoist_engine::execute::process::{self, Ended, Ran};

use super::account::{self, Base};
use super::input::Input;
use super::{exit, io_error, place, timeout};

/// Of our own environment, programs see this; the rest is nobody else's business.
const INHERITED: [&str; 7] = ["PATH", "HOME", "LANG", "LC_ALL", "TZ", "USER", "TMPDIR"];

const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// What is kept in memory only, on every Linux.
const MEMORY: &str = "/dev/shm";

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
            input.fault("secrets", format!("`{name}` is in `env` as well"));
        }
        if options.user.as_ref().is_some_and(|user| user.is_empty() || user.starts_with('-')) {
            input.fault("user", "it cannot be the name of a user");
        }
        options
    }
}

/// Files that nobody but the program may read, gone when it has ended.
pub(super) struct Private {
    dir: tempfile::TempDir,
    owner: Option<u32>,
}

impl Private {
    pub(super) fn new(user: Option<&str>) -> Result<Self, Failure> {
        let owner = user.map(|user| account::number(Base::User, user)).transpose()?;
        let memory = Path::new(MEMORY);
        let base = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
        let made = tempfile::Builder::new()
            .prefix("hoist-")
            .permissions(PermissionsExt::from_mode(0o700))
            .tempdir_in(base)
            .and_then(|dir| {
                owner.map_or(Ok(()), |owner| chown(dir.path(), Some(owner), None)).map(|()| dir)
            });
        made.map(|dir| Self { dir, owner }).map_err(|error| io_error(&error))
    }

    pub(super) fn write(&self, name: &str, text: &str) -> Result<PathBuf, Failure> {
        let path = self.dir.path().join(name);
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

/// Runs a program with what steps give to theirs. `watch` sees what it prints.
pub(super) fn run_watched(
    argv: &[OsString],
    options: &Options,
    ctx: &mut Ctx<'_>,
    watch: impl FnOnce(
        &mut dyn Output,
        &mut dyn FnMut(&mut dyn Output) -> Result<Ran, Failure>,
    ) -> Result<Ran, Failure>,
) -> Result<Ran, Failure> {
    let directory =
        options.cwd.as_ref().map_or(ctx.directory.to_owned(), |cwd| place::to_read(cwd, ctx));
    if !directory.is_dir() {
        return Err(exit(format!("there is no directory `{}`", directory.display())));
    }
    let mut command = match &options.user {
        None => Command::new(&argv[0]),
        Some(user) => {
            let mut command = Command::new("runuser");
            command.args(["-u", user, "--"]).arg(&argv[0]);
            command
        }
    };
    command.args(&argv[1..]).current_dir(directory).env_clear().env("PATH", DEFAULT_PATH);
    command.envs(
        INHERITED.iter().filter_map(|name| std::env::var_os(name).map(|value| (name, value))),
    );
    let run = ctx.attempt.split('/').next().unwrap_or_default();
    command.env("HOIST_NODE", ctx.subject).env("HOIST_RUN", run);
    command.env("HOIST_TASK", ctx.task).env(ATTEMPT_VARIABLE, ctx.attempt).envs(&options.env);
    let private = if options.secrets.is_empty() {
        None
    } else {
        Some(Private::new(options.user.as_deref())?)
    };
    for (name, reference) in &options.secrets {
        let path = private
            .as_ref()
            .expect("there are secrets")
            .write(name, &ctx.secrets.get(reference)?)?;
        command.env(name, path);
    }
    let (deadline, cancel) = (ctx.deadline, ctx.cancel);
    let mut go = |output: &mut dyn Output| {
        process::run(&mut command, b"", deadline, cancel, output).map_err(|error| {
            let program = Path::new(&argv[0]).display();
            match error.kind() {
                std::io::ErrorKind::NotFound => {
                    exit(format!("there is no program `{program}` here"))
                }
                _ => exit(format!("cannot run `{program}`: {error}")),
            }
        })
    };
    watch(ctx.output, &mut go)
}

pub(super) fn run(argv: &[OsString], options: &Options, ctx: &mut Ctx<'_>) -> Result<Ran, Failure> {
    run_watched(argv, options, ctx, |output, go| go(output))
}

/// What a program's end means for the step.
pub(super) fn well(ran: &Ran) -> Result<(), Failure> {
    match ran.fault() {
        None => Ok(()),
        Some(fault) if ran.ended == Ended::TimedOut => Err(timeout(fault)),
        Some(fault) => Err(exit(fault)),
    }
}

pub(super) fn words<const N: usize>(words: [&str; N]) -> Vec<OsString> {
    words.map(OsString::from).to_vec()
}
