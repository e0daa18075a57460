//! A process beside the controller that starts programs, is their parent and outlives the
//! controller.
//!
//! This module is the controller's half. Requests go over a socket; the exit of a program comes
//! back through a pipe that is part of the request. The supervisor remembers each exit until the
//! controller says that it is recorded. When the socket closes, the supervisor writes a note for
//! each program, which a later process reads (`NotedProgram` in [`super::programs`]), and stays
//! until the last program has ended.

mod event_loop;

use std::ffi::{OsStr, OsString};
use std::io::{self, IoSlice, Read as _, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fs_err::OpenOptions;
use fs_err::os::unix::fs::OpenOptionsExt as _;
use parking_lot::{Mutex, MutexGuard};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, Shutdown, SocketFlags,
    SocketType, sendmsg, shutdown, socketpair,
};
use rustix::process::Signal;

use super::leftover::Process;
use crate::program::ProgramStart;

pub use event_loop::main;

/// Larger requests are sent in a memory file.
const MAX_MESSAGE: usize = 64 * 1024;

/// Largest arguments and environment of a program; the kernel refuses less.
pub const MAX_REQUEST: usize = 8 * 1024 * 1024;

/// Descriptors of a request: the pipe for the exit, both ends of the output pipes, and the memory
/// file of a large request.
const MAX_DESCRIPTORS: usize = 6;

/// Deadline for an answer of the supervisor, which has nothing else to do.
const ANSWER_DEADLINE: Duration = Duration::from_secs(10);

const NAP: Duration = Duration::from_millis(2);

/// Stack of the waiting threads, which do nothing else.
const STACK: usize = 64 * 1024;

/// Last line of a supervisor's own note, written when the supervisor is on its own.
const LEFT: &str = "left";

/// First field of a request.
const HELLO: &[u8] = b"hello";
const RUN: &[u8] = b"run";
const SIGNAL: &[u8] = b"signal";
const WHO: &[u8] = b"who";
const FORGET: &[u8] = b"forget";
const LARGE: &[u8] = b"large";

/// First byte of an answer: the program ended, or was not started.
const ENDED: u8 = 0;
const REFUSED: u8 = 1;
const ANSWER: usize = 5;

/// Why the exit of a program is unknown.
#[derive(Debug)]
pub(super) enum SupervisorError {
    NotStarted(io::Error),
    /// The supervisor is gone; the program may still run.
    Lost,
}

/// The supervisor of one directory. Its process is started on first use.
#[derive(Debug)]
pub(super) struct Supervisor {
    argv: Vec<OsString>,
    file: PathBuf,
    ledger: String,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    link: Option<Arc<Link>>,
    is_closed: bool,
}

impl Supervisor {
    pub(super) fn new(argv: Vec<OsString>, dir: &Path, ledger: &str) -> Self {
        Self { argv, file: file(dir), ledger: ledger.to_owned(), state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Lets running programs go on, and starts no more.
    pub(super) fn close(&self) {
        let mut state = self.state();
        state.is_closed = true;
        if let Some(link) = state.link.take() {
            link.close();
        }
    }

    /// Starts a program. `note` is the file that the supervisor writes if this process ends first.
    pub(super) fn start(
        &self,
        start: &ProgramStart,
        note: &Path,
        cgroup: Option<&Path>,
    ) -> io::Result<SupervisedProgram> {
        let link = self.link(None)?;
        match link.run(start, note, cgroup) {
            // The supervisor did not get the request.
            Err(error) if is_gone(&error) => {
                let next = self.link(Some(&link))?;
                next.run(start, note, cgroup)
            }
            ran => ran,
        }
    }

    /// The link to the process. If `gone` is the current link, a new process is started.
    fn link(&self, gone: Option<&Arc<Link>>) -> io::Result<Arc<Link>> {
        let mut state = self.state();
        if state.is_closed {
            return Err(io::Error::other("the supervisor is closed"));
        }
        if let Some(link) = &state.link
            && gone.is_none_or(|gone| !Arc::ptr_eq(gone, link))
        {
            return Ok(Arc::clone(link));
        }
        let link = Arc::new(Link::open(&self.argv, &self.file, &self.ledger)?);
        state.link = Some(Arc::clone(&link));
        Ok(link)
    }
}

/// The supervisor's own note.
fn file(dir: &Path) -> PathBuf {
    dir.join("supervisor")
}

fn is_gone(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset)
}

/// Waits until the supervisor of an earlier life has written its notes; it may not have noticed yet
/// that it is on its own.
pub(super) fn wait_for_predecessor(dir: &Path, ledger: &str) {
    let until = Instant::now() + ANSWER_DEADLINE;
    let knows = || -> Option<bool> {
        let text = fs_err::read_to_string(file(dir)).ok()?;
        let mut lines = text.lines();
        let stat = lines.next()?.strip_prefix(ledger)?.strip_prefix(' ')?;
        let Process { pid, start, .. } = Process::read(stat)?;
        let is_on_its_own = lines.next() == Some(LEFT);
        let lives = Process::find(pid).is_some_and(|process| process.is(pid, start));
        Some(is_on_its_own || !lives)
    };
    while knows() == Some(false) && Instant::now() < until {
        std::thread::sleep(NAP);
    }
}

/// The connection to one supervisor process.
#[derive(Debug)]
pub(super) struct Link {
    socket: OwnedFd,
    /// Process id and start time.
    pub(super) supervisor: (i32, u64),
    next: AtomicU64,
    /// Programs whose exits are recorded, so that the supervisor may forget them.
    kept: Mutex<Vec<u64>>,
}

impl Link {
    fn open(argv: &[OsString], file: &Path, ledger: &str) -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC;
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        let (program, arguments) = argv.split_first().ok_or(io::ErrorKind::InvalidInput)?;
        let child = Command::new(program)
            .args(arguments)
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| {
                let program = Path::new(program).display();
                let said = format!("cannot start the supervisor `{program}`: {error}");
                io::Error::new(error.kind(), said)
            })?;
        let written = write_down(&child, file, ledger);
        reap_in_background(child)?;
        let supervisor = written?;
        let next = AtomicU64::new(0);
        let link = Self { socket: ours, supervisor, next, kept: Mutex::default() };
        link.send(&[HELLO, ledger.as_bytes(), file.as_os_str().as_bytes()], &[])?;
        Ok(link)
    }

    fn run(
        self: &Arc<Self>,
        start: &ProgramStart,
        note: &Path,
        cgroup: Option<&Path>,
    ) -> io::Result<SupervisedProgram> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let id = number.to_string();
        let count = start.argv.len().to_string();
        let kept = std::mem::take(&mut *self.kept());
        let kept_text = join_ids(&kept);
        let env: Vec<OsString> =
            start.env.iter().map(|(name, value)| join_variable(name, value)).collect();
        let mut fields = vec![
            RUN,
            kept_text.as_bytes(),
            id.as_bytes(),
            note.as_os_str().as_bytes(),
            cgroup.map_or(b"", |cgroup| cgroup.as_os_str().as_bytes()),
            start.directory.as_os_str().as_bytes(),
            count.as_bytes(),
        ];
        fields.extend(start.argv.iter().chain(&env).map(|field| field.as_bytes()));
        if fields.iter().any(|field| field.contains(&0)) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "an argument or a variable contains a zero byte",
            ));
        }
        let (done, tells) = io::pipe()?;
        let (out, prints) = io::pipe()?;
        let (err, complains) = io::pipe()?;
        let descriptors =
            [tells.as_fd(), out.as_fd(), prints.as_fd(), err.as_fd(), complains.as_fd()];
        if let Err(error) = self.send(&fields, &descriptors) {
            self.kept().extend(kept);
            return Err(error);
        }
        let link = Arc::clone(self);
        let pipes = [out.into(), err.into()];
        Ok(SupervisedProgram { link, id: number, done: done.into(), pipes })
    }

    fn kept(&self) -> MutexGuard<'_, Vec<u64>> {
        self.kept.lock()
    }

    fn send(&self, fields: &[&[u8]], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        let message = fields.join(&0);
        if message.len() <= MAX_MESSAGE {
            return self.send_message(&message, descriptors, SendFlags::empty());
        }
        if message.len() > MAX_REQUEST {
            return Err(Errno::TOOBIG.into());
        }
        let mut large = std::fs::File::from(memfd_create("request", MemfdFlags::CLOEXEC)?);
        large.write_all(&message)?;
        let descriptors: Vec<BorrowedFd<'_>> =
            descriptors.iter().copied().chain([large.as_fd()]).collect();
        self.send_message(LARGE, &descriptors, SendFlags::empty())
    }

    fn send_message(
        &self,
        message: &[u8],
        descriptors: &[BorrowedFd<'_>],
        flags: SendFlags,
    ) -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
        loop {
            let mut ancillary = SendAncillaryBuffer::new(&mut space);
            if !descriptors.is_empty() {
                ancillary.push(SendAncillaryMessage::ScmRights(descriptors));
            }
            let message = [IoSlice::new(message)];
            match sendmsg(&self.socket, &message, &mut ancillary, flags | SendFlags::NOSIGNAL) {
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                // The supervisor is about to receive descriptors in flight; then there is room
                // again.
                Err(Errno::TOOMANYREFS) => std::thread::sleep(NAP),
                Err(error) => return Err(error.into()),
            }
        }
    }

    pub(super) fn signal(&self, id: u64, signal: Signal) {
        let id = id.to_string();
        let number = signal.as_raw().to_string();
        // A supervisor that is gone needs no signal.
        let _ = self.send(&[SIGNAL, id.as_bytes(), number.as_bytes()], &[]);
    }

    /// Process id and start time of a program; `None` if it was not started or is unknown.
    pub(super) fn who(&self, id: u64) -> Option<(i32, u64)> {
        let (answer, tells) = io::pipe().ok()?;
        self.send(&[WHO, id.to_string().as_bytes()], &[tells.as_fd()]).ok()?;
        drop(tells);
        let timeout = Timespec { tv_sec: ANSWER_DEADLINE.as_secs().cast_signed(), tv_nsec: 0 };
        poll(&mut [PollFd::new(&answer, PollFlags::IN)], Some(&timeout)).ok().filter(|n| *n > 0)?;
        let mut text = String::new();
        answer.take(64).read_to_string(&mut text).ok()?;
        let (pid, start) = text.split_once(' ')?;
        Some((pid.parse().ok()?, start.parse().ok()?))
    }

    /// Marks the exit of a program as recorded. The next request tells the supervisor.
    pub(super) fn forget(&self, id: u64) {
        self.kept().push(id);
    }

    fn close(&self) {
        let kept = std::mem::take(&mut *self.kept());
        // A supervisor that misses this message writes notes that no process needs, so a busy one
        // is not waited for.
        let message = [FORGET, join_ids(&kept).as_bytes()].join(&0);
        if message.len() <= MAX_MESSAGE {
            let _ = self.send_message(&message, &[], SendFlags::DONTWAIT);
        }
        let _ = shutdown(&self.socket, Shutdown::Both);
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.close();
    }
}

/// Writes the supervisor's own note. Must happen before the first request, so that a later process
/// waits for this supervisor.
fn write_down(child: &Child, file: &Path, ledger: &str) -> io::Result<(i32, u64)> {
    let stat = fs_err::read(format!("/proc/{}/stat", child.id()))?;
    let stat = String::from_utf8_lossy(&stat);
    let Process { pid, start, .. } = Process::read(&stat).ok_or(io::ErrorKind::InvalidData)?;
    // An older supervisor may still write to its own file.
    let _ = fs_err::remove_file(file);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(file)?;
    write!(file, "{ledger} {stat}")?;
    Ok((pid, start))
}

/// Reaps the process, whenever it ends.
fn reap_in_background(mut child: Child) -> io::Result<()> {
    let thread = std::thread::Builder::new().name("supervisor".to_owned()).stack_size(STACK);
    thread.spawn(move || child.wait()).map(drop)
}

fn join_variable(name: &OsStr, value: &OsStr) -> OsString {
    let mut variable = name.to_owned();
    variable.push("=");
    variable.push(value);
    variable
}

fn join_ids(ids: &[u64]) -> String {
    ids.iter().map(u64::to_string).collect::<Vec<_>>().join(",")
}

/// A program that the supervisor was asked to start.
pub(super) struct SupervisedProgram {
    pub(super) link: Arc<Link>,
    pub(super) id: u64,
    /// Becomes readable when the program has ended.
    pub(super) done: OwnedFd,
    pub(super) pipes: [OwnedFd; 2],
}

/// Reads the exit of a program. The descriptor must be readable.
pub(super) fn answer(done: OwnedFd) -> Result<ExitStatus, SupervisorError> {
    let mut answer = [0; ANSWER];
    if std::fs::File::from(done).read_exact(&mut answer).is_err() {
        return Err(SupervisorError::Lost);
    }
    let [kind, value @ ..] = answer;
    let value = i32::from_le_bytes(value);
    match kind {
        REFUSED => Err(SupervisorError::NotStarted(io::Error::from_raw_os_error(value))),
        _ => Ok(ExitStatus::from_raw(value)),
    }
}

/// Encodes an exit status for a note: the exit code, or the negative signal number.
fn code(status: ExitStatus) -> i32 {
    status.code().unwrap_or_else(|| -status.signal().unwrap_or_default())
}

pub(super) fn status(code: i32) -> ExitStatus {
    ExitStatus::from_raw(if code < 0 { -code & 0x7f } else { (code & 0xff) << 8 })
}
