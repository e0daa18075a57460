//! One exchange with one process, bounded in time.
//!
//! A single thread waits for the pipes, the end of the process, the deadline and the cancellation
//! at once. Every wait has a limit. The meaning of the output belongs to [`super::protocol`].

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_setfl};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};

use super::protocol::{ProtocolError, Talk};
use crate::action::Cancel;
use crate::execute::guard::without_core;

/// Time between TERM and KILL.
pub const GRACE: Duration = Duration::from_secs(2);

/// Time from the result, or from the end of standard output, to the end of the process; and from
/// there to the end of its pipes.
pub const LINGER: Duration = Duration::from_secs(2);

/// Interval at which cancellation is checked.
const TICK: Duration = Duration::from_millis(50);

/// Why a process was ended, or its output is useless.
#[derive(Debug)]
pub(super) enum ExchangeError {
    System(io::Error),
    ProtocolError(ProtocolError),
    TimedOut,
    Cancelled,
    /// The process gave its result and does not end.
    Stays,
    /// The process closed its output without a result and does not end.
    ClosedEarly,
    /// The process ended, but another one holds its pipes.
    LeftBehind,
}

impl From<io::Error> for ExchangeError {
    fn from(error: io::Error) -> Self {
        Self::System(error)
    }
}

impl From<ProtocolError> for ExchangeError {
    fn from(error: ProtocolError) -> Self {
        Self::ProtocolError(error)
    }
}

/// The limits of an exchange.
#[derive(Debug, Clone, Copy)]
pub(super) struct Until<'a> {
    pub(super) deadline: Instant,
    pub(super) cancel: Option<&'a Cancel>,
}

/// Sends one request to a process, takes its output and waits for its end.
pub(super) fn converse(
    command: &mut Command,
    request: &[u8],
    until: Until<'_>,
    talk: &mut Talk<'_>,
) -> Result<ExitStatus, ExchangeError> {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    // The whole group can be signalled at once.
    let child = command.process_group(0).spawn()?;
    without_core(Pid::from_child(&child));
    let mut process = Process::new(child)?;
    let ended = process.follow(request, until, talk);
    let status = process.end(ended.is_ok())?;
    ended.map(|()| status)
}

struct Process {
    child: Child,
    end: OwnedFd,
    stdin: Option<std::process::ChildStdin>,
    stdout: Option<std::process::ChildStdout>,
    stderr: Option<std::process::ChildStderr>,
}

/// The pipes that are ready.
#[derive(Default)]
struct Ready {
    stdin: bool,
    stdout: bool,
    stderr: bool,
}

impl Process {
    fn new(mut child: Child) -> io::Result<Self> {
        let pid = Pid::from_child(&child);
        let made = pidfd_open(pid, PidfdFlags::empty()).and_then(|end| {
            let pipes = [
                child.stdin.as_ref().map(AsFd::as_fd),
                child.stdout.as_ref().map(AsFd::as_fd),
                child.stderr.as_ref().map(AsFd::as_fd),
            ];
            for pipe in pipes.into_iter().flatten() {
                fcntl_setfl(pipe, OFlags::NONBLOCK)?;
            }
            Ok(end)
        });
        match made {
            Ok(end) => {
                let stdin = child.stdin.take();
                let stdout = child.stdout.take();
                Ok(Self { stdin, stdout, stderr: child.stderr.take(), child, end })
            }
            Err(error) => {
                // The process must not go on unwatched.
                let _ = kill_process_group(pid, Signal::KILL);
                child.wait()?;
                Err(error.into())
            }
        }
    }

    /// Follows the process until it and its pipes end by themselves.
    fn follow(
        &mut self,
        mut request: &[u8],
        until: Until<'_>,
        talk: &mut Talk<'_>,
    ) -> Result<(), ExchangeError> {
        let mut said_all: Option<Instant> = None;
        let mut ended: Option<Instant> = None;
        loop {
            let now = Instant::now();
            if self.stdout.is_none() || talk.has_answer() {
                said_all.get_or_insert(now);
            }
            let lasts = |since: Option<Instant>| since.is_some_and(|since| now >= since + LINGER);
            if ended.is_some() && self.stdout.is_none() && self.stderr.is_none() {
                return Ok(());
            } else if lasts(ended) {
                return Err(ExchangeError::LeftBehind);
            } else if ended.is_none() && until.cancel.is_some_and(Cancel::is_cancelled) {
                return Err(ExchangeError::Cancelled);
            } else if ended.is_none() && now >= until.deadline {
                return Err(ExchangeError::TimedOut);
            } else if ended.is_none() && lasts(said_all) {
                return Err(if talk.has_answer() {
                    ExchangeError::Stays
                } else {
                    ExchangeError::ClosedEarly
                });
            }
            let (ready, is_over) = self.wait(TICK, ended.is_none())?;
            if is_over {
                ended.get_or_insert_with(Instant::now);
                // No process is left to read the input.
                self.stdin = None;
            }
            if ready.stdin {
                self.feed(&mut request)?;
            }
            // Standard error first: it may explain a error in the output.
            if let Some(chunk) = ready.stderr.then(|| read(&mut self.stderr)).flatten() {
                talk.on_err(&chunk)?;
            }
            if let Some(chunk) = ready.stdout.then(|| read(&mut self.stdout)).flatten() {
                talk.on_out(&chunk)?;
            }
        }
    }

    /// Waits for the pipes, and with `for_end` also for the end of the process.
    fn wait(&self, longest: Duration, for_end: bool) -> io::Result<(Ready, bool)> {
        let mut fds: Vec<PollFd<'_>> = Vec::with_capacity(4);
        let mut places = [None; 4];
        let watched = [
            (self.stdin.as_ref().map(AsFd::as_fd), PollFlags::OUT),
            (self.stdout.as_ref().map(AsFd::as_fd), PollFlags::IN),
            (self.stderr.as_ref().map(AsFd::as_fd), PollFlags::IN),
            (for_end.then(|| self.end.as_fd()), PollFlags::IN),
        ];
        for (place, (fd, flags)) in places.iter_mut().zip(watched) {
            if let Some(fd) = fd {
                *place = Some(fds.len());
                fds.push(PollFd::from_borrowed_fd(fd, flags));
            }
        }
        let longest = Timespec::try_from(longest).expect("it is short");
        match poll(&mut fds, Some(&longest)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let ready = |place: usize| places[place].is_some_and(|at| !fds[at].revents().is_empty());
        Ok((Ready { stdin: ready(0), stdout: ready(1), stderr: ready(2) }, ready(3)))
    }

    /// Writes as much as the process takes. A process need not read its input.
    fn feed(&mut self, request: &mut &[u8]) -> io::Result<()> {
        let Some(stdin) = &mut self.stdin else { return Ok(()) };
        match stdin.write(request) {
            Ok(count) => *request = &request[count..],
            Err(error) if is_not_yet(&error) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => *request = &[],
            Err(error) => return Err(error),
        }
        if request.is_empty() {
            self.stdin = None;
        }
        Ok(())
    }

    /// Ends the remaining processes and reaps the first one.
    fn end(mut self, is_over: bool) -> io::Result<ExitStatus> {
        // The process id is reserved until it is reaped.
        let pid = Pid::from_child(&self.child);
        self.stdin = None;
        if !is_over {
            signal(pid, Signal::TERM);
            self.drain(Drain::UntilEnd, GRACE)?;
        }
        signal(pid, Signal::KILL);
        let status = self.child.wait()?;
        // The pipes close with the last process of the group.
        self.drain(Drain::UntilClosed, LINGER)?;
        Ok(status)
    }

    /// Discards output, because a process that waits for a reader cannot end. Stops at the end of
    /// the process, or when its pipes are closed.
    fn drain(&mut self, what: Drain, longest: Duration) -> io::Result<()> {
        let until = Instant::now() + longest;
        let for_end = what == Drain::UntilEnd;
        while Instant::now() < until && (for_end || self.stdout.is_some() || self.stderr.is_some())
        {
            let (ready, is_over) = self.wait(TICK, for_end)?;
            if is_over {
                break;
            }
            if ready.stdout {
                read(&mut self.stdout);
            }
            if ready.stderr {
                read(&mut self.stderr);
            }
        }
        Ok(())
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Drain {
    UntilEnd,
    UntilClosed,
}

/// Reads once: `None` if nothing is available, an empty chunk at the end.
fn read(from: &mut Option<impl Read>) -> Option<Vec<u8>> {
    let mut chunk = vec![0; 16 * 1024];
    match from.as_mut()?.read(&mut chunk) {
        Err(error) if is_not_yet(&error) => return None,
        Ok(count) if count > 0 => chunk.truncate(count),
        // A pipe that cannot be read any more counts as closed.
        Ok(_) | Err(_) => {
            *from = None;
            chunk.clear();
        }
    }
    Some(chunk)
}

fn is_not_yet(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

fn signal(group: Pid, signal: Signal) {
    // The group may be gone; the caller waits for its end anyway.
    let _ = kill_process_group(group, signal);
}
