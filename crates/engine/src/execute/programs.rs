//! Programs of attempts, so that they are found again when the one who started them is gone.
//!
//! The program of a step that may not be repeated is started by a keeper: by one process for all of
//! them ([`super::keeper`]), or where nobody said how to start that, by a few lines of shell for each.
//! It writes down which process it is, and then how the program ended, in a file that is named after
//! the attempt; it keeps the pipes of the program open, so that printing does not end it; and it
//! outlives the signals that the program is asked to end with. Whoever comes next reads the file,
//! goes on to read what is printed, and knows the exit code.
//!
//! A copy of a controller's directory has the same attempts and files, and nothing to do with the
//! processes of the first one: those are known by the boot and by the number of the directory in its
//! file system, which a copy does not have in common with it.

use std::ffi::OsString;
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use fs_err::os::unix::fs::OpenOptionsExt as _;
use fs_err::{File, OpenOptions};
use rustix::fs::OFlags;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open};
use sha2::{Digest, Sha256};

use super::keeper::{self, Fault, Keeper, Link, Start};
use super::ledger::boot_id;
use super::leftover::{Process, Traces, is_part_of};
use super::process::{self, Ended, Ran};
use super::{ATTEMPT_VARIABLE, LEDGER_VARIABLE};
use crate::action::{Cancel, Failure, Output};
use crate::plan::{MayUse, Repeat, Step};
use crate::record::FailureKind;

/// Its arguments are the file, the control group if there is one, and the program. A trap that does
/// something is, other than one that does nothing, not handed down to the program. What the shell
/// itself says of the program's end is nobody's business. The parentheses keep its own descriptors as
/// they are: others read what is printed from 3 and 4.
const KEEPER: &str = r#"
exec 3</proc/self/fd/1 4</proc/self/fd/2 5>&2 2>/dev/null
trap : HUP INT QUIT TERM
hoist_note=$1
[ -z "$2" ] || echo 0 >"$2/cgroup.procs"
read -r hoist_stat </proc/self/stat
printf '%s %s\n%s\n' "$HOIST_LEDGER" "$hoist_stat" "$2" >>"$1"
shift 2
(exec "$@" 2>&5 3<&- 4<&- 5>&-)
hoist_code=$?
echo "$hoist_code" >>"$hoist_note"
exit "$hoist_code"
"#;

/// Where that one has what is printed.
const SHELL_PIPES: [u32; 2] = [3, 4];

/// Nothing is marked with it.
const NO_LEDGER: &str = "none";

/// What a keeper writes is short.
const MAX_NOTE: u64 = 16 * 1024;

/// In a second, as `/proc` counts them on every machine.
pub(super) const TICKS: u64 = 100;

/// What is kept in memory only, on every Linux.
const MEMORY: &str = "/dev/shm";

/// Where it is written down which programs run.
#[derive(Debug)]
pub(crate) struct Kept {
    notes: PathBuf,
    ledger: String,
    /// Where control groups can be made, if they can.
    cgroups: Option<PathBuf>,
    /// Else each program has a shell of its own.
    keeper: Option<Keeper>,
}

impl Kept {
    /// `dir` is the one of the ledger, and `keeper` what is started as [`super::keeper::main`].
    pub(crate) fn new(dir: &Path, keeper: Option<Vec<OsString>>) -> io::Result<Self> {
        let dir = fs_err::canonicalize(dir)?;
        let about = fs_err::metadata(&dir)?;
        let whole = format!("{} {} {}", boot_id(), about.dev(), about.ino());
        let first = *Sha256::digest(whole).first_chunk().expect("it is longer");
        let ledger = format!("{:016x}", u64::from_be_bytes(first));
        let notes = dir.join("programs");
        // Without it programs run all the same, and are found by what their environment says.
        let _ = std::fs::DirBuilder::new().mode(0o700).create(&notes);
        let cgroups = own_cgroup();
        if let Some(cgroups) = &cgroups {
            remove_empty(cgroups);
        }
        keeper::wait_for_the_last(&dir, &ledger);
        let keeper = keeper.map(|argv| Keeper::new(argv, &dir, &ledger));
        Ok(Self { notes, ledger, cgroups, keeper })
    }

    /// What runs is left to whoever comes next.
    pub(crate) fn close(&self) {
        self.keeper.iter().for_each(Keeper::close);
    }

    fn note(&self, attempt: &str) -> PathBuf {
        self.notes.join(file_name(attempt))
    }

    fn cgroup(&self, attempt: &str) -> Option<PathBuf> {
        Some(self.cgroups.as_ref()?.join(format!("hoist-{}-{}", self.ledger, file_name(attempt))))
    }

    /// The same, if it can be made.
    fn make_cgroup(&self, attempt: &str) -> Option<PathBuf> {
        let path = self.cgroup(attempt)?;
        let made = fs_err::create_dir(&path);
        (made.is_ok() || path.is_dir()).then_some(path)
    }

    /// The control groups of an attempt and its parts that are there.
    fn cgroups_of(&self, attempt: &str) -> Vec<PathBuf> {
        let wanted = self.cgroup(attempt);
        let wanted = wanted.as_ref().and_then(|path| path.file_name()).unwrap_or_default();
        let entries = self.cgroups.iter().filter_map(|path| fs_err::read_dir(path).ok());
        let entries = entries.flatten().flatten().filter(|entry| {
            is_part_of(entry.file_name().as_encoded_bytes(), wanted.as_encoded_bytes())
        });
        entries.map(|entry| entry.path()).collect()
    }

    /// What is in the notes of an attempt and its parts.
    fn begun(&self, attempt: &str) -> Vec<Begun> {
        let wanted = file_name(attempt);
        let entries = fs_err::read_dir(&self.notes).into_iter().flatten().flatten();
        let paths = entries
            .filter(|entry| is_part_of(entry.file_name().as_encoded_bytes(), wanted.as_bytes()))
            .map(|entry| entry.path());
        paths.filter_map(|path| Begun::read(path, &self.ledger)).collect()
    }

    /// Removes files that only programs of this ledger may read, of the attempts that are meant.
    fn remove_private(&self, is_meant: impl Fn(&str) -> bool) {
        let prefix = format!("hoist-{}-", self.ledger);
        for entry in fs_err::read_dir(private_dir()).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let attempt =
                name.to_str().and_then(|name| name.strip_prefix(&prefix)?.rsplit_once('-'));
            if attempt.is_some_and(|(attempt, _)| is_meant(attempt)) {
                // It may be somebody else's, who will remove it.
                let _ = fs_err::remove_dir_all(entry.path());
            }
        }
    }

    /// Tidies up after one who was killed, before anything is begun: nobody keeps secrets for what
    /// does not run. `is_open` says of an attempt whether it may run. What looked at something is to
    /// be ended.
    pub(crate) fn tidy_up(&self, is_open: impl Fn(&str) -> bool) -> Looks {
        let ledger = format!("{}.look", self.ledger);
        let looks = Traces { ledger, ..Traces::default() }.processes();
        let is_over = |name: &str| !is_open(name.split_once('.').map_or(name, |(whole, _)| whole));
        self.remove_private(is_over);
        for entry in fs_err::read_dir(&self.notes).into_iter().flatten().flatten() {
            if let Some(name) = entry.file_name().to_str().filter(|name| is_over(name)) {
                self.forget(name);
            }
        }
        Looks(looks.iter().map(|process| (process.pid, process.start)).collect())
    }

    fn forget(&self, attempt: &str) {
        // It may not be there, and does no harm if it is.
        let _ = fs_err::remove_file(self.note(attempt));
        // As long as something that was meant to stay is in it, it stays.
        let _ = self.cgroup(attempt).map(fs_err::remove_dir);
    }
}

/// The name of an attempt, or of a part of it, where there are no directories.
pub(crate) fn file_name(attempt: &str) -> String {
    attempt.replace('/', "-")
}

/// Where files are kept that only a program may read.
pub fn private_dir() -> PathBuf {
    let memory = Path::new(MEMORY);
    if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() }
}

/// Of this process, where others can be made below it.
fn own_cgroup() -> Option<PathBuf> {
    let mounts = fs_err::read_to_string("/proc/self/mounts").ok()?;
    let is_version_2 = |line: &&str| line.split(' ').nth(2) == Some("cgroup2");
    let mount = mounts.lines().find(is_version_2)?.split(' ').nth(1)?;
    let own = fs_err::read_to_string("/proc/self/cgroup").ok()?;
    let own = own.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let path = Path::new(mount).join(own);
    rustix::fs::access(path.join("cgroup.procs"), rustix::fs::Access::WRITE_OK).ok()?;
    Some(path)
}

/// Removes control groups in which something was meant to stay, and has ended since. One that was
/// just made is still to be used.
fn remove_empty(cgroups: &Path) {
    for entry in fs_err::read_dir(cgroups).into_iter().flatten().flatten() {
        let made = entry.metadata().and_then(|about| about.modified());
        let is_old =
            made.is_ok_and(|at| at.elapsed().is_ok_and(|age| age > Duration::from_mins(1)));
        if is_old && entry.file_name().as_encoded_bytes().starts_with(b"hoist-") {
            // The system refuses to remove one that is not empty.
            let _ = fs_err::remove_dir(entry.path());
        }
    }
}

/// Processes that looked at something when the one who wanted to know was killed.
#[derive(Debug)]
pub(crate) struct Looks(Vec<(i32, u64)>);

impl Looks {
    /// Only those: others may look by now.
    pub(crate) fn end(self) {
        let traces = Traces { ledger: NO_LEDGER.to_owned(), noted: self.0, ..Traces::default() };
        // What does not end looks on, and changes nothing.
        let _ = traces.end();
    }
}

/// The programs of one job.
#[derive(Debug, Clone, Default)]
pub struct Programs {
    kept: Option<Arc<Kept>>,
    is_look: bool,
    goes_on: bool,
    may_repeat: bool,
    may_use: Option<MayUse>,
    /// Attempts, and parts of them, whose program was started here.
    started: Arc<Mutex<Vec<Started>>>,
}

#[derive(Debug)]
struct Started {
    attempt: String,
    cgroup: Option<PathBuf>,
    /// Where it is known, if there is no note.
    kept: Option<(Arc<Link>, u64)>,
}

impl Programs {
    pub(crate) fn new(kept: &Arc<Kept>) -> Self {
        Self { kept: Some(Arc::clone(kept)), ..Self::default() }
    }

    /// Of a step that is begun here. Where it may be done again, or looked at, nobody needs to know
    /// after a restart how a program ended, and a keeper would cost as much as starting it: what is
    /// found of it then is ended.
    pub(crate) fn of(step: &Step, kept: &Arc<Kept>) -> Self {
        let may_repeat = !matches!(step.repeat, Repeat::Never | Repeat::Fail);
        Self { may_repeat, ..Self::new(kept).within(step) }
    }

    /// Of a job that another life has begun.
    pub(crate) fn again(kept: &Arc<Kept>) -> Self {
        Self { goes_on: true, ..Self::new(kept) }
    }

    /// The same, with no more than the step may use.
    pub(crate) fn within(self, step: &Step) -> Self {
        Self { may_use: step.may_use.as_deref().copied(), ..self }
    }

    /// For what only looks: nobody needs to know after a restart how that ended.
    pub(crate) fn looking(&self) -> Self {
        let (kept, may_use) = (self.kept.clone(), self.may_use);
        Self { kept, is_look: true, may_use, ..Self::default() }
    }

    pub(crate) fn goes_on(&self) -> bool {
        self.goes_on
    }

    /// What the environment of every program of the attempt has to say, so that it is found.
    pub fn marks(&self, attempt: &str) -> [(&'static str, OsString); 2] {
        let mut ledger = self.kept.as_ref().map(|kept| kept.ledger.clone()).unwrap_or_default();
        if self.is_look {
            ledger.push_str(".look");
        }
        [(ATTEMPT_VARIABLE, attempt.into()), (LEDGER_VARIABLE, ledger.into())]
    }

    /// Commands for a shell that comes before a program.
    pub(crate) fn limits(&self) -> String {
        self.may_use.as_ref().map(MayUse::as_commands).unwrap_or_default()
    }

    /// Runs a program to its end with no more than it may use, and so that others know of it. For
    /// each attempt, or part of one, there is one.
    pub fn run(
        &self,
        attempt: &str,
        start: Start,
        deadline: Option<Instant>,
        cancel: &Cancel,
        output: &mut dyn Output,
    ) -> Result<Ran, Failure> {
        let name = start.argv.first().cloned().unwrap_or_default();
        let start = Start { argv: within(self.limits(), start.argv), ..start };
        // Of one that is counted it is known at once which processes are its own.
        let is_plain = self.may_repeat && !self.may_use.is_some_and(|may_use| may_use.is_counted());
        let kept = self.kept.as_ref().filter(|_| !self.is_look && !is_plain);
        let ran = match kept.map(|kept| (kept, kept.keeper.as_ref())) {
            None => plainly(&start, deadline, cancel, output),
            Some((kept, None)) => {
                let argv = self.through_shell(kept, attempt, start.argv);
                plainly(&Start { argv, ..start }, deadline, cancel, output)
            }
            Some((kept, Some(keeper))) => self
                .through_keeper(kept, keeper, attempt, &start)
                .and_then(|program| process::run_kept(program, deadline, cancel, output)),
        };
        ran.map_err(|fault| match fault {
            Fault::Lost => {
                let reason = "the process that started it is gone; nobody knows how it ended";
                Failure { kind: FailureKind::Lost, reason: reason.to_owned() }
            }
            Fault::NotStarted(error) => {
                let reason = format!("cannot run `{}`: {error}", Path::new(&name).display());
                Failure { kind: FailureKind::Exit, reason }
            }
        })
    }

    fn started(&self) -> MutexGuard<'_, Vec<Started>> {
        self.started.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn through_keeper(
        &self,
        kept: &Kept,
        keeper: &Keeper,
        attempt: &str,
        start: &Start,
    ) -> Result<keeper::Kept, Fault> {
        let cgroup = kept.make_cgroup(attempt);
        let started = keeper.start(start, &kept.note(attempt), cgroup.as_deref());
        let program = started.map_err(|error| {
            let _ = cgroup.as_ref().map(fs_err::remove_dir);
            Fault::NotStarted(error)
        })?;
        let known = Some((Arc::clone(&program.link), program.id));
        self.started().push(Started { attempt: attempt.to_owned(), cgroup, kept: known });
        Ok(program)
    }

    fn through_shell(&self, kept: &Kept, attempt: &str, program: Vec<OsString>) -> Vec<OsString> {
        let note = kept.note(attempt);
        // What it says is of another life, if there is one. A keeper would let others read it.
        let _ = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&note);
        let cgroup = kept.make_cgroup(attempt);
        let mut argv = ["/bin/sh", "-c", KEEPER, "hoist"].map(OsString::from).to_vec();
        argv.push(note.into());
        argv.push(cgroup.clone().map(OsString::from).unwrap_or_default());
        argv.extend(program);
        self.started().push(Started { attempt: attempt.to_owned(), cgroup, kept: None });
        argv
    }

    /// The program of the attempt, or of this part of it, that another life has started.
    pub fn begun(&self, attempt: &str) -> Option<Begun> {
        let kept = self.kept.as_ref().filter(|_| self.goes_on && !self.is_look)?;
        Begun::read(kept.note(attempt), &kept.ledger)
    }

    /// The programs of an attempt and all of its parts.
    pub(crate) fn all_begun(&self, attempt: &str) -> Vec<Begun> {
        self.kept.as_ref().map(|kept| kept.begun(attempt)).unwrap_or_default()
    }

    /// How long ago another life has begun the attempt.
    pub(crate) fn age(&self, attempt: &str) -> Duration {
        if !self.goes_on {
            return Duration::ZERO;
        }
        self.all_begun(attempt).iter().map(Begun::age).max().unwrap_or_default()
    }

    /// The prefix of names in [`private_dir`].
    pub fn private_prefix(&self, attempt: &str) -> String {
        let ledger = self.kept.as_ref().map_or("", |kept| kept.ledger.as_str());
        format!("hoist-{ledger}-{}-", file_name(attempt))
    }

    /// Ends all that the attempt has left. If something does not go away, says what.
    pub(crate) fn end(&self, attempt: &str) -> Result<(), String> {
        self.traces(attempt).end()
    }

    /// By which its processes are found.
    pub(super) fn traces(&self, attempt: &str) -> Traces {
        let begun = if self.is_look { Vec::new() } else { self.all_begun(attempt) };
        let [_, (_, ledger)] = self.marks(attempt);
        let shells = begun.iter().filter(|begun| begun.program.is_none());
        let waiting = shells.map(|begun| (begun.pid, begun.start)).collect();
        let mut noted: Vec<(i32, u64)> = begun.iter().filter_map(Begun::leader).collect();
        let keepers = begun.iter().filter(|begun| begun.program.is_some());
        let mut spared: Vec<(i32, u64)> = keepers.map(|begun| (begun.pid, begun.start)).collect();
        let mut cgroups: Vec<PathBuf> =
            begun.into_iter().filter_map(|begun| begun.cgroup).collect();
        for started in &*self.started() {
            if let Some((link, id)) = &started.kept {
                noted.extend(link.who(*id));
                spared.push(link.keeper);
                cgroups.extend(started.cgroup.clone());
            }
        }
        if let Some(kept) = self.kept.as_ref().filter(|_| self.goes_on) {
            // Who was killed together with its keeper has left no note.
            cgroups.extend(kept.cgroups_of(attempt));
            cgroups.sort();
            cgroups.dedup();
        }
        let ledger = ledger.to_string_lossy().into_owned();
        Traces { ledger, attempt: attempt.to_owned(), noted, waiting, cgroups, spared }
    }

    /// The attempt has ended, and what came of it is kept.
    pub(crate) fn forget(&self, attempt: &str) {
        let Some(kept) = &self.kept else { return };
        for Started { attempt, cgroup, kept: known } in self.started().drain(..) {
            match known {
                Some((link, id)) => {
                    link.forget(id);
                    // As long as something that was meant to stay is in it, it stays.
                    let _ = cgroup.map(fs_err::remove_dir);
                }
                None => kept.forget(&attempt),
            }
        }
        if self.goes_on {
            let begun = kept.begun(attempt);
            let name = |begun: &Begun| Some(begun.path.file_name()?.to_str()?.to_owned());
            begun.iter().filter_map(name).for_each(|name| kept.forget(&name));
            for cgroup in kept.cgroups_of(attempt) {
                // The same for one without a note.
                let _ = fs_err::remove_dir(cgroup);
            }
            let whole = file_name(attempt);
            kept.remove_private(|name| is_part_of(name.as_bytes(), whole.as_bytes()));
        }
    }
}

/// Without anybody who keeps it.
fn plainly(
    start: &Start,
    deadline: Option<Instant>,
    cancel: &Cancel,
    output: &mut dyn Output,
) -> Result<Ran, Fault> {
    let mut command = Command::new(start.argv.first().ok_or_else(no_program)?);
    command.args(&start.argv[1..]).current_dir(&start.directory);
    command.env_clear().envs(start.env.iter().map(|(name, value)| (name, value)));
    process::run(&mut command, b"", deadline, cancel, output).map_err(Fault::NotStarted)
}

fn no_program() -> Fault {
    Fault::NotStarted(io::ErrorKind::InvalidInput.into())
}

/// The same program, after some commands of a shell.
fn within(limits: String, program: Vec<OsString>) -> Vec<OsString> {
    if limits.is_empty() {
        return program;
    }
    let shell = ["/bin/sh", "-c", &(limits + r#"exec "$@""#), "hoist"];
    shell.map(OsString::from).into_iter().chain(program).collect()
}

/// A program that another life has started.
#[derive(Debug)]
pub struct Begun {
    path: PathBuf,
    ledger: String,
    /// Of its keeper.
    pid: i32,
    start: u64,
    cgroup: Option<PathBuf>,
    /// If its keeper is no shell.
    program: Option<Program>,
    code: Option<i32>,
}

/// One of several that the same process keeps.
#[derive(Debug, Clone, Copy)]
struct Program {
    pid: i32,
    start: u64,
    /// The keeper's descriptors of what it prints.
    pipes: [u32; 2],
}

impl Program {
    fn read(line: &str) -> Option<Self> {
        let mut fields = line.split(' ');
        let (pid, start) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
        let pipes = [fields.next()?.parse().ok()?, fields.next()?.parse().ok()?];
        Some(Self { pid, start, pipes })
    }
}

impl Begun {
    /// Nothing if it is not there, or of another ledger or boot.
    fn read(path: PathBuf, ledger: &str) -> Option<Self> {
        use std::io::Read as _;
        let mut text = String::new();
        File::open(&path).ok()?.take(MAX_NOTE).read_to_string(&mut text).ok()?;
        let lines = text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n'));
        let mut lines = lines.peekable();
        let stat = lines.next()?.strip_prefix(ledger)?.strip_prefix(' ')?;
        let Process { pid, start, .. } = Process::read(stat)?;
        let cgroup = lines.next().filter(|line| !line.is_empty()).map(PathBuf::from);
        let program = lines.peek().and_then(|line| Program::read(line));
        let code = lines.nth(usize::from(program.is_some())).and_then(|line| line.parse().ok());
        Some(Self { path, ledger: ledger.to_owned(), pid, start, cgroup, program, code })
    }

    /// The first process of its group; there is none if it could not be started.
    fn leader(&self) -> Option<(i32, u64)> {
        let (pid, start) =
            self.program.map_or((self.pid, self.start), |program| (program.pid, program.start));
        (pid > 0).then_some((pid, start))
    }

    pub(crate) fn runs(&self) -> bool {
        self.code.is_none()
            && Process::find(self.pid).is_some_and(|process| process.is(self.pid, self.start))
    }

    /// Whether somebody will know how it ended.
    pub(crate) fn has_outcome(&self) -> bool {
        self.code.is_some() || self.runs()
    }

    /// Since it was started.
    pub(crate) fn age(&self) -> Duration {
        let uptime = fs_err::read_to_string("/proc/uptime").unwrap_or_default();
        let seconds = uptime.split(' ').next().and_then(|text| text.parse::<f64>().ok());
        let Some((_, start)) = self.leader() else { return Duration::ZERO };
        let age =
            seconds.unwrap_or_default() - Duration::from_millis(start * 1000 / TICKS).as_secs_f64();
        Duration::try_from_secs_f64(age).unwrap_or_default()
    }

    /// Runs it to its end, as [`process::run`] does.
    pub fn follow(
        self,
        deadline: Option<Instant>,
        cancel: &Cancel,
        output: &mut dyn Output,
    ) -> io::Result<Ran> {
        let (mut ended, mut last_line) = (Ended::ByItself, String::new());
        if let Some((group, program, out, err)) = self.open() {
            (ended, last_line) =
                process::follow(group, program, [out, err], deadline, cancel, output)?;
        }
        let status = match (ended, self.wait_for_code(cancel)) {
            _ if cancel.is_left() => return Err(process::left()),
            (_, Some(code)) => keeper::status(code),
            (Ended::ByItself, None) => {
                return Err(io::Error::other("nobody has seen how it ended"));
            }
            (Ended::TimedOut | Ended::Cancelled, None) => {
                ExitStatus::from_raw(Signal::KILL.as_raw())
            }
        };
        Ok(Ran { status, ended, last_line })
    }

    /// A keeper of many writes it down a moment after the end.
    fn wait_for_code(self, cancel: &Cancel) -> Option<i32> {
        let Self { path, ledger, .. } = self;
        loop {
            // Looked at before the note: one that is gone by then has written it.
            let begun = Self::read(path.clone(), &ledger)?;
            if !begun.runs() || cancel.is_left() {
                return Self::read(path, &ledger)?.code;
            }
            std::thread::sleep(super::NAP);
        }
    }

    /// The program, or the shell that keeps it, and what is printed; nothing if it has ended.
    fn open(&self) -> Option<(Pid, std::os::fd::OwnedFd, File, File)> {
        let (pid, start) = self.leader()?;
        let [out, err] = self.program.map_or(SHELL_PIPES, |program| program.pipes);
        let raw = Pid::from_raw(pid).filter(|_| self.code.is_none())?;
        let process = pidfd_open(raw, PidfdFlags::empty()).ok()?;
        let pipe = |number: u32| {
            let flags = i32::try_from(OFlags::NONBLOCK.bits()).unwrap_or_default();
            let path = format!("/proc/{}/fd/{number}", self.pid);
            OpenOptions::new().read(true).custom_flags(flags).open(path).ok()
        };
        let (out, err) = (pipe(out)?, pipe(err)?);
        // No number was another's when all of that was opened.
        let is_it = Process::find(pid).is_some_and(|process| process.is(pid, start));
        (is_it && self.runs()).then_some((raw, process, out, err))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_could_not_be_started_has_no_group_that_could_be_ended() {
        let dir = tempfile::tempdir().unwrap();
        let kept = Arc::new(Kept::new(dir.path(), None).unwrap());
        let stat = fs_err::read_to_string("/proc/self/stat").unwrap();
        let head = format!("{} {}\n\n", kept.ledger, stat.trim_end());
        fs_err::write(kept.note("r/1/1"), format!("{head}0 77 0 0\n127\n")).unwrap();
        let programs = Programs::again(&kept);
        let begun = programs.begun("r/1/1").unwrap();
        assert_eq!((begun.code, begun.age()), (Some(127), Duration::ZERO));
        // Kernel threads, and whoever came from outside a namespace, are of group 0.
        assert_eq!(programs.traces("r/1/1").noted, []);
        fs_err::write(kept.note("r/1/1"), format!("{head}4194303 77 0 0\n0\n")).unwrap();
        assert_eq!(programs.traces("r/1/1").noted, [(4_194_303, 77)]);
    }
}
