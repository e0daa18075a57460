//! One process beside the controller that starts its programs, is their parent and outlives it.
//!
//! It is asked over a socket, and says how a program ended through a pipe that came with the
//! request. What it has said is remembered until it is told that somebody keeps it. When the socket
//! ends, it writes down what it knows of each program, for whoever comes next ([`super::Begun`]), and
//! stays until the last one has ended.

mod house;

use std::ffi::{OsStr, OsString};
use std::io::{self, IoSlice, Read as _, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use fs_err::OpenOptions;
use fs_err::os::unix::fs::OpenOptionsExt as _;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, Shutdown, SocketFlags,
    SocketType, sendmsg, shutdown, socketpair,
};
use rustix::process::Signal;

use super::leftover::Process;

pub use house::main;

/// Larger requests travel in a file of their own.
const MAX_MESSAGE: usize = 64 * 1024;

/// No program is given more than this, arguments and environment together; systems refuse less.
pub const MAX_REQUEST: usize = 8 * 1024 * 1024;

/// Descriptors of a request: where it is told how the program ended, what it prints, and the request
/// if it is a large one.
const MAX_DESCRIPTORS: usize = 6;

/// For an answer of a process that has nothing else to do.
const PATIENCE: Duration = Duration::from_secs(10);

const NAP: Duration = Duration::from_millis(2);

/// The waiting threads do nothing.
const STACK: usize = 64 * 1024;

/// Ends what a keeper has written about itself when it is on its own.
const LEFT: &str = "left";

/// What begins a request.
const HELLO: &[u8] = b"hello";
const RUN: &[u8] = b"run";
const SIGNAL: &[u8] = b"signal";
const WHO: &[u8] = b"who";
const FORGET: &[u8] = b"forget";
const LARGE: &[u8] = b"large";

/// What begins an answer: how a program ended, or why it was not started.
const ENDED: u8 = 0;
const REFUSED: u8 = 1;
const ANSWER: usize = 5;

/// A program, with all that it is given.
#[derive(Debug)]
pub struct Start {
    pub argv: Vec<OsString>,
    pub directory: PathBuf,
    /// All of it; of two with the same name the later one.
    pub env: Vec<(OsString, OsString)>,
}

/// Why nobody can say how a program ended.
#[derive(Debug)]
pub(super) enum Fault {
    NotStarted(io::Error),
    /// It may run.
    Lost,
}

/// The keeper of one directory. Its process is started when it is first needed.
#[derive(Debug)]
pub(super) struct Keeper {
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

impl Keeper {
    pub(super) fn new(argv: Vec<OsString>, dir: &Path, ledger: &str) -> Self {
        Self { argv, file: file(dir), ledger: ledger.to_owned(), state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What was started runs on; nothing more is.
    pub(super) fn close(&self) {
        let mut state = self.state();
        state.is_closed = true;
        if let Some(link) = state.link.take() {
            link.close();
        }
    }

    /// Starts a program. `note` is where is written what becomes of it without us.
    pub(super) fn start(
        &self,
        start: &Start,
        note: &Path,
        cgroup: Option<&Path>,
    ) -> io::Result<Kept> {
        let link = self.link(None)?;
        match link.run(start, note, cgroup) {
            // It has not got it.
            Err(error) if is_gone(&error) => {
                let next = self.link(Some(&link))?;
                next.run(start, note, cgroup)
            }
            ran => ran,
        }
    }

    /// To the process, which is a new one if this one is gone.
    fn link(&self, gone: Option<&Arc<Link>>) -> io::Result<Arc<Link>> {
        let mut state = self.state();
        if state.is_closed {
            return Err(io::Error::other("nothing is started any more"));
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

/// Where a keeper writes that it is one.
fn file(dir: &Path) -> PathBuf {
    dir.join("keeper")
}

fn is_gone(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset)
}

/// Waits until the keeper of another life has written down what it knows: it may not have seen yet
/// that it is on its own.
pub(super) fn wait_for_the_last(dir: &Path, ledger: &str) {
    let until = Instant::now() + PATIENCE;
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

/// To one process.
#[derive(Debug)]
pub(super) struct Link {
    socket: OwnedFd,
    /// The process, and its start.
    pub(super) keeper: (i32, u64),
    next: AtomicU64,
    /// What the keeper need not remember any more.
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
                let said = format!("`{program}`, which would keep it, cannot be started: {error}");
                io::Error::new(error.kind(), said)
            })?;
        let written = write_down(&child, file, ledger);
        wait_in_the_background(child)?;
        let (keeper, next) = (written?, AtomicU64::new(0));
        let link = Self { socket: ours, keeper, next, kept: Mutex::default() };
        link.send(&[HELLO, ledger.as_bytes(), file.as_os_str().as_bytes()], &[])?;
        Ok(link)
    }

    fn run(
        self: &Arc<Self>,
        start: &Start,
        note: &Path,
        cgroup: Option<&Path>,
    ) -> io::Result<Kept> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let (id, count) = (number.to_string(), start.argv.len().to_string());
        let kept = std::mem::take(&mut *self.kept());
        let kept_text = listed(&kept);
        let env: Vec<OsString> =
            start.env.iter().map(|(name, value)| joined(name, value)).collect();
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
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "it has a zero byte in it"));
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
        let (link, pipes) = (Arc::clone(self), [out.into(), err.into()]);
        Ok(Kept { link, id: number, done: done.into(), pipes })
    }

    fn kept(&self) -> MutexGuard<'_, Vec<u64>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
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
                // The keeper takes what is under way, and then there is room again.
                Err(Errno::TOOMANYREFS) => std::thread::sleep(NAP),
                Err(error) => return Err(error.into()),
            }
        }
    }

    pub(super) fn signal(&self, id: u64, signal: Signal) {
        let (id, number) = (id.to_string(), signal.as_raw().to_string());
        // If nobody is there, nobody can be told.
        let _ = self.send(&[SIGNAL, id.as_bytes(), number.as_bytes()], &[]);
    }

    /// The number of a program and its start; nothing if it was not started, or nobody knows.
    pub(super) fn who(&self, id: u64) -> Option<(i32, u64)> {
        let (answer, tells) = io::pipe().ok()?;
        self.send(&[WHO, id.to_string().as_bytes()], &[tells.as_fd()]).ok()?;
        drop(tells);
        let timeout = Timespec { tv_sec: PATIENCE.as_secs().cast_signed(), tv_nsec: 0 };
        poll(&mut [PollFd::new(&answer, PollFlags::IN)], Some(&timeout)).ok().filter(|n| *n > 0)?;
        let mut text = String::new();
        answer.take(64).read_to_string(&mut text).ok()?;
        let (pid, start) = text.split_once(' ')?;
        Some((pid.parse().ok()?, start.parse().ok()?))
    }

    /// Somebody keeps how it ended. That is said with the next request.
    pub(super) fn forget(&self, id: u64) {
        self.kept().push(id);
    }

    fn close(&self) {
        let kept = std::mem::take(&mut *self.kept());
        // What it does not hear it writes down, and nobody reads it: one that does not listen is not
        // waited for.
        let message = [FORGET, listed(&kept).as_bytes()].join(&0);
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

/// Before anything is asked of it, so that whoever comes next waits for it.
fn write_down(child: &Child, file: &Path, ledger: &str) -> io::Result<(i32, u64)> {
    let stat = fs_err::read(format!("/proc/{}/stat", child.id()))?;
    let stat = String::from_utf8_lossy(&stat);
    let Process { pid, start, .. } = Process::read(&stat).ok_or(io::ErrorKind::InvalidData)?;
    // An older one may still write to its own.
    let _ = fs_err::remove_file(file);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(file)?;
    write!(file, "{ledger} {stat}")?;
    Ok((pid, start))
}

/// It is ours to wait for, whenever it ends.
fn wait_in_the_background(mut child: Child) -> io::Result<()> {
    let thread = std::thread::Builder::new().name("keeper".to_owned()).stack_size(STACK);
    thread.spawn(move || child.wait()).map(drop)
}

fn joined(name: &OsStr, value: &OsStr) -> OsString {
    let mut variable = name.to_owned();
    variable.push("=");
    variable.push(value);
    variable
}

fn listed(ids: &[u64]) -> String {
    ids.iter().map(u64::to_string).collect::<Vec<_>>().join(",")
}

/// A program that the keeper was asked to start.
pub(super) struct Kept {
    pub(super) link: Arc<Link>,
    pub(super) id: u64,
    /// Has something to read when it has ended.
    pub(super) done: OwnedFd,
    pub(super) pipes: [OwnedFd; 2],
}

/// How it ended, once there is something to read.
pub(super) fn answer(done: OwnedFd) -> Result<ExitStatus, Fault> {
    let mut answer = [0; ANSWER];
    if std::fs::File::from(done).read_exact(&mut answer).is_err() {
        return Err(Fault::Lost);
    }
    let [kind, value @ ..] = answer;
    let value = i32::from_le_bytes(value);
    match kind {
        REFUSED => Err(Fault::NotStarted(io::Error::from_raw_os_error(value))),
        _ => Ok(ExitStatus::from_raw(value)),
    }
}

/// What is written of the end of a program: its exit code, or less than nothing for a signal.
fn code(status: ExitStatus) -> i32 {
    status.code().unwrap_or_else(|| -status.signal().unwrap_or_default())
}

pub(super) fn status(code: i32) -> ExitStatus {
    ExitStatus::from_raw(if code < 0 { -code & 0x7f } else { (code & 0xff) << 8 })
}
