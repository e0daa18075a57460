//! The programs of attempts, and how a later process finds them again.
//!
//! The program of a step that must not be repeated is started by a supervisor: one process for all
//! programs ([`super::supervisor`]), or a short shell script for each program if no supervisor
//! command is configured. The supervisor records its process and the exit code of the program in a
//! note, a file named after the attempt. It keeps the pipes of the program open, so that printing
//! does not end the program, and it ignores the signals that are sent to end the program. A later
//! process reads the note, continues to read the output, and learns the exit code.
//!
//! A copy of a controller's directory has the same attempts and notes, but must not touch the
//! processes of the original. The ledger id tells them apart: it is derived from the boot and from
//! the inode of the directory, which a copy does not share.
//!
//! Searching for processes without a note belongs to [`super::leftover`].

use std::ffi::OsString;
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fs_err::os::unix::fs::OpenOptionsExt as _;
use fs_err::{File, OpenOptions};
use parking_lot::{Mutex, MutexGuard};
use rustix::fs::OFlags;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open};
use sha2::{Digest, Sha256};

use super::ledger::boot_id;
use super::leftover::{Process, Traces, is_part_of};
use super::process;
use super::supervisor::{self, Link, Supervisor, SupervisorError};
use super::{ATTEMPT_VARIABLE, LEDGER_VARIABLE};
use crate::action::{Cancel, Failure, Output};
use crate::plan::{MayUse, Repeat, Step};
use crate::program::{
    EarlierProgram, ExitCause, ProgramExit, ProgramStart, Programs, SurvivingProcesses,
};
use crate::record::FailureKind;

/// Arguments: the note, the control group or an empty string, and the program. A trap with a
/// command, unlike an ignoring trap, is not inherited by the program. Messages of the shell about
/// the exit of the program are discarded. The subshell keeps the descriptors of the outer shell
/// open: a later process reads the output from 3 and 4.
const SUPERVISOR_SCRIPT: &str = r#"
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

/// Descriptors of the shell through which the output can be read.
const SHELL_PIPES: [u32; 2] = [3, 4];

/// A ledger id that no process carries.
const NO_LEDGER: &str = "none";

/// Largest note.
const MAX_NOTE: u64 = 16 * 1024;

/// Clock ticks per second in `/proc`; the same on every machine.
pub(super) const TICKS: u64 = 100;

/// A file system in memory that every Linux has.
const MEMORY: &str = "/dev/shm";

/// The directory with the notes of running programs.
#[derive(Debug)]
pub(crate) struct ProgramDirectory {
    notes: PathBuf,
    ledger: String,
    /// The parent for control groups; `None` if none can be made.
    cgroups: Option<PathBuf>,
    /// Without a supervisor each program gets a shell of its own.
    supervisor: Option<Supervisor>,
}

impl ProgramDirectory {
    /// `dir` is the directory of the ledger; `supervisor` is the command line that starts
    /// [`super::supervisor::main`].
    pub(crate) fn new(dir: &Path, supervisor: Option<Vec<OsString>>) -> io::Result<Self> {
        let dir = fs_err::canonicalize(dir)?;
        let about = fs_err::metadata(&dir)?;
        let whole = format!("{} {} {}", boot_id(), about.dev(), about.ino());
        let first = *Sha256::digest(whole).first_chunk().expect("it is longer");
        let ledger = format!("{:016x}", u64::from_be_bytes(first));
        let notes = dir.join("programs");
        // Without notes programs run as well; they are found by their environment.
        let _ = std::fs::DirBuilder::new().mode(0o700).create(&notes);
        let cgroups = own_cgroup();
        if let Some(cgroups) = &cgroups {
            remove_empty(cgroups);
        }
        supervisor::wait_for_predecessor(&dir, &ledger);
        let supervisor = supervisor.map(|argv| Supervisor::new(argv, &dir, &ledger));
        Ok(Self { notes, ledger, cgroups, supervisor })
    }

    /// Leaves running programs to a later process.
    pub(crate) fn close(&self) {
        self.supervisor.iter().for_each(Supervisor::close);
    }

    fn note(&self, attempt: &str) -> PathBuf {
        self.notes.join(file_name(attempt))
    }

    fn cgroup(&self, attempt: &str) -> Option<PathBuf> {
        Some(self.cgroups.as_ref()?.join(format!("hoist-{}-{}", self.ledger, file_name(attempt))))
    }

    /// Creates the control group of an attempt, if possible.
    fn make_cgroup(&self, attempt: &str) -> Option<PathBuf> {
        let path = self.cgroup(attempt)?;
        let made = fs_err::create_dir(&path);
        (made.is_ok() || path.is_dir()).then_some(path)
    }

    /// The existing control groups of an attempt and its parts.
    fn cgroups_of(&self, attempt: &str) -> Vec<PathBuf> {
        let wanted = self.cgroup(attempt);
        let wanted = wanted.as_ref().and_then(|path| path.file_name()).unwrap_or_default();
        let entries = self.cgroups.iter().filter_map(|path| fs_err::read_dir(path).ok());
        let entries = entries.flatten().flatten().filter(|entry| {
            is_part_of(entry.file_name().as_encoded_bytes(), wanted.as_encoded_bytes())
        });
        entries.map(|entry| entry.path()).collect()
    }

    /// The noted programs of an attempt and its parts.
    fn begun(&self, attempt: &str) -> Vec<NotedProgram> {
        let wanted = file_name(attempt);
        let entries = fs_err::read_dir(&self.notes).into_iter().flatten().flatten();
        let paths = entries
            .filter(|entry| is_part_of(entry.file_name().as_encoded_bytes(), wanted.as_bytes()))
            .map(|entry| entry.path());
        paths.filter_map(|path| NotedProgram::read(path, &self.ledger)).collect()
    }

    /// Removes private files of attempts that `is_meant` selects.
    fn remove_private(&self, is_meant: impl Fn(&str) -> bool) {
        let prefix = format!("hoist-{}-", self.ledger);
        for entry in fs_err::read_dir(private_dir()).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let attempt =
                name.to_str().and_then(|name| name.strip_prefix(&prefix)?.rsplit_once('-'));
            if attempt.is_some_and(|(attempt, _)| is_meant(attempt)) {
                // A file of another user cannot be removed, and is not ours.
                let _ = fs_err::remove_dir_all(entry.path());
            }
        }
    }

    /// Removes the remains of a killed process. Must be called before any attempt begins: secrets
    /// must not outlive their programs. `is_open` tells whether an attempt may still run. Returns
    /// the processes of checks, which the caller must end.
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
        // A note that stays is harmless.
        let _ = fs_err::remove_file(self.note(attempt));
        // A control group with processes that are meant to stay cannot be removed.
        let _ = self.cgroup(attempt).map(fs_err::remove_dir);
    }
}

/// The name of an attempt, or of a part of one, as a file name.
pub(crate) fn file_name(attempt: &str) -> String {
    attempt.replace('/', "-")
}

/// The directory for private files of programs.
pub fn private_dir() -> PathBuf {
    let memory = Path::new(MEMORY);
    if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() }
}

/// The control group of this process, if groups can be made below it.
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

/// Removes control groups whose last process has ended. A group that was just made is about to be
/// used.
fn remove_empty(cgroups: &Path) {
    for entry in fs_err::read_dir(cgroups).into_iter().flatten().flatten() {
        let made = entry.metadata().and_then(|about| about.modified());
        let is_old =
            made.is_ok_and(|at| at.elapsed().is_ok_and(|age| age > Duration::from_mins(1)));
        if is_old && entry.file_name().as_encoded_bytes().starts_with(b"hoist-") {
            // The kernel refuses to remove a group that is not empty.
            let _ = fs_err::remove_dir(entry.path());
        }
    }
}

/// Processes of checks that a killed process has left.
#[derive(Debug)]
pub(crate) struct Looks(Vec<(i32, u64)>);

impl Looks {
    /// Ends exactly these processes; newer checks are not affected.
    pub(crate) fn end(self) {
        let traces = Traces { ledger: NO_LEDGER.to_owned(), noted: self.0, ..Traces::default() };
        // A check changes nothing, so a surviving process is harmless.
        let _ = traces.end();
    }
}

/// The programs of one job.
#[derive(Debug, Clone, Default)]
pub struct AttemptPrograms {
    kept: Option<Arc<ProgramDirectory>>,
    is_look: bool,
    goes_on: bool,
    may_repeat: bool,
    may_use: Option<MayUse>,
    /// Programs that were started here, by attempt or part of one.
    started: Arc<Mutex<Vec<StartedProgram>>>,
}

#[derive(Debug)]
struct StartedProgram {
    attempt: String,
    cgroup: Option<PathBuf>,
    /// The supervisor's handle of the program, if the program has no note.
    kept: Option<(Arc<Link>, u64)>,
}

impl AttemptPrograms {
    pub(crate) fn new(kept: &Arc<ProgramDirectory>) -> Self {
        Self { kept: Some(Arc::clone(kept)), ..Self::default() }
    }

    /// For a step that begins here. If the step may be repeated or checked, no later process needs
    /// the exit code, and a supervisor would cost as much as the program itself. A later process
    /// ends such a program.
    pub(crate) fn of(step: &Step, kept: &Arc<ProgramDirectory>) -> Self {
        let may_repeat = !matches!(step.repeat, Repeat::Never | Repeat::Fail);
        Self { may_repeat, ..Self::new(kept).within(step) }
    }

    /// For a job that an earlier process began.
    pub(crate) fn again(kept: &Arc<ProgramDirectory>) -> Self {
        Self { goes_on: true, ..Self::new(kept) }
    }

    /// Adds the resource limits of the step.
    pub(crate) fn within(self, step: &Step) -> Self {
        Self { may_use: step.may_use.as_deref().copied(), ..self }
    }

    /// For checks: no later process needs their exit code.
    pub(crate) fn looking(&self) -> Self {
        let kept = self.kept.clone();
        let may_use = self.may_use;
        Self { kept, is_look: true, may_use, ..Self::default() }
    }

    pub(crate) fn goes_on(&self) -> bool {
        self.goes_on
    }

    fn started(&self) -> MutexGuard<'_, Vec<StartedProgram>> {
        self.started.lock()
    }

    fn through_supervisor(
        &self,
        kept: &ProgramDirectory,
        supervisor: &Supervisor,
        attempt: &str,
        start: &ProgramStart,
    ) -> Result<supervisor::SupervisedProgram, SupervisorError> {
        let cgroup = kept.make_cgroup(attempt);
        let started = supervisor.start(start, &kept.note(attempt), cgroup.as_deref());
        let program = started.map_err(|error| {
            let _ = cgroup.as_ref().map(fs_err::remove_dir);
            SupervisorError::NotStarted(error)
        })?;
        let known = Some((Arc::clone(&program.link), program.id));
        self.started().push(StartedProgram { attempt: attempt.to_owned(), cgroup, kept: known });
        Ok(program)
    }

    fn through_shell(
        &self,
        kept: &ProgramDirectory,
        attempt: &str,
        program: Vec<OsString>,
    ) -> Vec<OsString> {
        let note = kept.note(attempt);
        // An existing note is of an earlier life. The mode keeps other users from reading the note.
        let _ = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&note);
        let cgroup = kept.make_cgroup(attempt);
        let mut argv = ["/bin/sh", "-c", SUPERVISOR_SCRIPT, "hoist"].map(OsString::from).to_vec();
        argv.push(note.into());
        argv.push(cgroup.clone().map(OsString::from).unwrap_or_default());
        argv.extend(program);
        self.started().push(StartedProgram { attempt: attempt.to_owned(), cgroup, kept: None });
        argv
    }

    /// The program of the attempt, or of this part of it, that an earlier process started.
    fn noted(&self, attempt: &str) -> Option<NotedProgram> {
        let kept = self.kept.as_ref().filter(|_| self.goes_on && !self.is_look)?;
        NotedProgram::read(kept.note(attempt), &kept.ledger)
    }

    /// The programs of an attempt and of all its parts.
    pub(crate) fn all_begun(&self, attempt: &str) -> Vec<NotedProgram> {
        self.kept.as_ref().map(|kept| kept.begun(attempt)).unwrap_or_default()
    }

    /// Time since an earlier process began the attempt.
    pub(crate) fn age(&self, attempt: &str) -> Duration {
        if !self.goes_on {
            return Duration::ZERO;
        }
        self.all_begun(attempt).iter().map(NotedProgram::age).max().unwrap_or_default()
    }

    /// The traces by which the processes of the attempt are found.
    pub(super) fn traces(&self, attempt: &str) -> Traces {
        let begun = if self.is_look { Vec::new() } else { self.all_begun(attempt) };
        let [_, (_, ledger)] = self.marks(attempt);
        let shells = begun.iter().filter(|begun| begun.program.is_none());
        let waiting = shells.map(|begun| (begun.pid, begun.start)).collect();
        let mut noted: Vec<(i32, u64)> = begun.iter().filter_map(NotedProgram::leader).collect();
        let supervisors = begun.iter().filter(|begun| begun.program.is_some());
        let mut spared: Vec<(i32, u64)> =
            supervisors.map(|begun| (begun.pid, begun.start)).collect();
        let mut cgroups: Vec<PathBuf> =
            begun.into_iter().filter_map(|begun| begun.cgroup).collect();
        for started in &*self.started() {
            if let Some((link, id)) = &started.kept {
                noted.extend(link.who(*id));
                spared.push(link.supervisor);
                cgroups.extend(started.cgroup.clone());
            }
        }
        if let Some(kept) = self.kept.as_ref().filter(|_| self.goes_on) {
            // A program that was killed together with its supervisor has no note.
            cgroups.extend(kept.cgroups_of(attempt));
            cgroups.sort();
            cgroups.dedup();
        }
        let ledger = ledger.to_string_lossy().into_owned();
        Traces { ledger, attempt: attempt.to_owned(), noted, waiting, cgroups, spared }
    }

    /// Removes notes, control groups and private files of an attempt whose outcome is recorded.
    pub(crate) fn forget(&self, attempt: &str) {
        let Some(kept) = &self.kept else { return };
        for StartedProgram { attempt, cgroup, kept: known } in self.started().drain(..) {
            match known {
                Some((link, id)) => {
                    link.forget(id);
                    // A control group with processes that are meant to stay cannot be removed.
                    let _ = cgroup.map(fs_err::remove_dir);
                }
                None => kept.forget(&attempt),
            }
        }
        if self.goes_on {
            let begun = kept.begun(attempt);
            let name = |begun: &NotedProgram| Some(begun.path.file_name()?.to_str()?.to_owned());
            begun.iter().filter_map(name).for_each(|name| kept.forget(&name));
            for cgroup in kept.cgroups_of(attempt) {
                // As above, for a group without a note.
                let _ = fs_err::remove_dir(cgroup);
            }
            let whole = file_name(attempt);
            kept.remove_private(|name| is_part_of(name.as_bytes(), whole.as_bytes()));
        }
    }
}

impl Programs for AttemptPrograms {
    fn marks(&self, attempt: &str) -> [(&'static str, OsString); 2] {
        let mut ledger = self.kept.as_ref().map(|kept| kept.ledger.clone()).unwrap_or_default();
        if self.is_look {
            ledger.push_str(".look");
        }
        [(ATTEMPT_VARIABLE, attempt.into()), (LEDGER_VARIABLE, ledger.into())]
    }

    fn limits(&self) -> String {
        self.may_use.as_ref().map(MayUse::as_commands).unwrap_or_default()
    }

    fn run(
        &self,
        attempt: &str,
        start: ProgramStart,
        deadline: Option<Instant>,
        cancel: &Cancel,
        output: &mut dyn Output,
    ) -> Result<ProgramExit, Failure> {
        let name = start.argv.first().cloned().unwrap_or_default();
        let start = ProgramStart { argv: limit_program(self.limits(), start.argv), ..start };
        // Only a supervised program has a control group or a process id by which its processes are
        // counted.
        let is_plain = self.may_repeat && !self.may_use.is_some_and(|may_use| may_use.is_counted());
        let kept = self.kept.as_ref().filter(|_| !self.is_look && !is_plain);
        let ran = match kept.map(|kept| (kept, kept.supervisor.as_ref())) {
            None => run_directly(&start, deadline, cancel, output),
            Some((kept, None)) => {
                let argv = self.through_shell(kept, attempt, start.argv);
                run_directly(&ProgramStart { argv, ..start }, deadline, cancel, output)
            }
            Some((kept, Some(supervisor))) => self
                .through_supervisor(kept, supervisor, attempt, &start)
                .and_then(|program| process::run_supervised(program, deadline, cancel, output)),
        };
        ran.map_err(|error| match error {
            SupervisorError::Lost => {
                let reason = "the supervisor of the program is gone; outcome unknown";
                Failure { kind: FailureKind::Lost, reason: reason.to_owned() }
            }
            SupervisorError::NotStarted(error) => {
                let reason = format!("cannot run `{}`: {error}", Path::new(&name).display());
                Failure { kind: FailureKind::Exit, reason }
            }
        })
    }

    fn earlier(&self, attempt: &str) -> Option<Box<dyn EarlierProgram>> {
        let noted = self.noted(attempt)?;
        Some(Box::new(noted))
    }

    fn private_prefix(&self, attempt: &str) -> String {
        let ledger = self.kept.as_ref().map_or("", |kept| kept.ledger.as_str());
        format!("hoist-{ledger}-{}-", file_name(attempt))
    }

    fn end(&self, attempt: &str) -> Result<(), SurvivingProcesses> {
        self.traces(attempt).end()
    }
}

/// Runs a program as a direct child, without a supervisor.
fn run_directly(
    start: &ProgramStart,
    deadline: Option<Instant>,
    cancel: &Cancel,
    output: &mut dyn Output,
) -> Result<ProgramExit, SupervisorError> {
    let mut command = Command::new(start.argv.first().ok_or_else(no_program)?);
    command.args(&start.argv[1..]).current_dir(&start.directory);
    command.env_clear().envs(start.env.iter().map(|(name, value)| (name, value)));
    process::run(&mut command, b"", deadline, cancel, output).map_err(SupervisorError::NotStarted)
}

fn no_program() -> SupervisorError {
    SupervisorError::NotStarted(io::ErrorKind::InvalidInput.into())
}

/// Prefixes a program with shell commands.
fn limit_program(limits: String, program: Vec<OsString>) -> Vec<OsString> {
    if limits.is_empty() {
        return program;
    }
    let shell = ["/bin/sh", "-c", &(limits + r#"exec "$@""#), "hoist"];
    shell.map(OsString::from).into_iter().chain(program).collect()
}

/// A program that an earlier process started, as its note describes it.
#[derive(Debug)]
pub(crate) struct NotedProgram {
    path: PathBuf,
    ledger: String,
    /// Process id of the supervisor.
    pid: i32,
    start: u64,
    cgroup: Option<PathBuf>,
    /// Present if the supervisor is not a shell.
    program: Option<Program>,
    code: Option<i32>,
}

/// One of the programs of a supervisor process.
#[derive(Debug, Clone, Copy)]
struct Program {
    pid: i32,
    start: u64,
    /// The supervisor's descriptors of the output pipes.
    pipes: [u32; 2],
}

impl Program {
    fn read(line: &str) -> Option<Self> {
        let mut fields = line.split(' ');
        let pid = fields.next()?.parse().ok()?;
        let start = fields.next()?.parse().ok()?;
        let pipes = [fields.next()?.parse().ok()?, fields.next()?.parse().ok()?];
        Some(Self { pid, start, pipes })
    }
}

impl NotedProgram {
    /// `None` if there is no note, or if it is of another ledger or boot.
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

    /// The first process of the program's group; `None` if the program could not be started.
    fn leader(&self) -> Option<(i32, u64)> {
        let (pid, start) =
            self.program.map_or((self.pid, self.start), |program| (program.pid, program.start));
        (pid > 0).then_some((pid, start))
    }

    pub(crate) fn runs(&self) -> bool {
        self.code.is_none()
            && Process::find(self.pid).is_some_and(|process| process.is(self.pid, self.start))
    }

    /// Whether the exit code is known, or will be.
    pub(crate) fn has_outcome(&self) -> bool {
        self.code.is_some() || self.runs()
    }

    /// Time since the program was started.
    pub(crate) fn age(&self) -> Duration {
        let uptime = fs_err::read_to_string("/proc/uptime").unwrap_or_default();
        let seconds = uptime.split(' ').next().and_then(|text| text.parse::<f64>().ok());
        let Some((_, start)) = self.leader() else { return Duration::ZERO };
        let age =
            seconds.unwrap_or_default() - Duration::from_millis(start * 1000 / TICKS).as_secs_f64();
        Duration::try_from_secs_f64(age).unwrap_or_default()
    }

    /// Follows the program to its end, as [`process::run`] does.
    pub(crate) fn follow(
        self,
        deadline: Option<Instant>,
        cancel: &Cancel,
        output: &mut dyn Output,
    ) -> io::Result<ProgramExit> {
        let mut cause = ExitCause::Itself;
        let mut last_line = String::new();
        if let Some((group, program, out, err)) = self.open() {
            (cause, last_line) =
                process::follow(group, program, [out, err], deadline, cancel, output)?;
        }
        let status = match (cause, self.wait_for_code(cancel)) {
            _ if cancel.is_left() => return Err(process::left_error()),
            (_, Some(code)) => supervisor::status(code),
            (ExitCause::Itself, None) => {
                return Err(io::Error::other("outcome unknown"));
            }
            (ExitCause::TimedOut | ExitCause::Cancelled, None) => {
                ExitStatus::from_raw(Signal::KILL.as_raw())
            }
        };
        Ok(ProgramExit { status, cause, last_line })
    }

    /// Waits for the exit code: a supervisor process writes it shortly after the end.
    fn wait_for_code(self, cancel: &Cancel) -> Option<i32> {
        let Self { path, ledger, .. } = self;
        loop {
            // Checked before reading the note: a supervisor that is gone has written its note.
            let begun = Self::read(path.clone(), &ledger)?;
            if !begun.runs() || cancel.is_left() {
                return Self::read(path, &ledger)?.code;
            }
            std::thread::sleep(super::NAP);
        }
    }

    /// Opens the program, or its shell, and its pipes; `None` if it has ended.
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
        let out = pipe(out)?;
        let err = pipe(err)?;
        // The process ids were not reused while the files were opened.
        let is_it = Process::find(pid).is_some_and(|process| process.is(pid, start));
        (is_it && self.runs()).then_some((raw, process, out, err))
    }
}

impl EarlierProgram for NotedProgram {
    fn follow(
        self: Box<Self>,
        deadline: Option<Instant>,
        cancel: &Cancel,
        output: &mut dyn Output,
    ) -> io::Result<ProgramExit> {
        NotedProgram::follow(*self, deadline, cancel, output)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn program_that_did_not_start_has_no_group() {
        let dir = tempfile::tempdir().unwrap();
        let kept = Arc::new(ProgramDirectory::new(dir.path(), None).unwrap());
        let stat = fs_err::read_to_string("/proc/self/stat").unwrap();
        let head = format!("{} {}\n\n", kept.ledger, stat.trim_end());
        fs_err::write(kept.note("r/1/1"), format!("{head}0 77 0 0\n127\n")).unwrap();
        let programs = AttemptPrograms::again(&kept);
        let begun = programs.noted("r/1/1").unwrap();
        assert_eq!((begun.code, begun.age()), (Some(127), Duration::ZERO));
        // Kernel threads, and processes from outside a PID namespace, have group 0.
        assert_eq!(programs.traces("r/1/1").noted, []);
        fs_err::write(kept.note("r/1/1"), format!("{head}4194303 77 0 0\n0\n")).unwrap();
        assert_eq!(programs.traces("r/1/1").noted, [(4_194_303, 77)]);
    }
}
