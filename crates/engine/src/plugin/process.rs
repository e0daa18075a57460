//! One conversation with one process, which comes to an end whatever the process does.
//!
//! A single thread waits for everything at once: what the process takes and says, its end, the
//! deadline, and whether it is still wanted. Nothing is waited for without a limit.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_setfl};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};

use super::protocol::{Fault, Talk};
use crate::action::Cancel;
use crate::execute::guard::without_core;

/// Between TERM and KILL.
pub const GRACE: Duration = Duration::from_secs(2);

/// From the result, or from the end of standard output, to the end of the process; and from that to
/// the end of its pipes.
pub const LINGER: Duration = Duration::from_secs(2);

/// How often it is looked whether somebody wants the end.
const TICK: Duration = Duration::from_millis(50);

/// Why a process was ended, or is of no use.
#[derive(Debug)]
pub(super) enum Trouble {
    System(io::Error),
    Fault(Fault),
    TimedOut,
    Cancelled,
    /// It said all it had to say, and stays.
    Stays,
    /// It closed its output without a result, and stays.
    ClosedEarly,
    /// It ended, and something else has its pipes.
    LeftBehind,
}

impl From<io::Error> for Trouble {
    fn from(error: io::Error) -> Self {
        Self::System(error)
    }
}

impl From<Fault> for Trouble {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

/// How long a conversation may go on.
#[derive(Debug, Clone, Copy)]
pub(super) struct Until<'a> {
    pub(super) deadline: Instant,
    pub(super) cancel: Option<&'a Cancel>,
}

/// Says one thing to a process, hears what it says, and sees its end.
pub(super) fn converse(
    command: &mut Command,
    request: &[u8],
    until: Until<'_>,
    talk: &mut Talk<'_>,
) -> Result<ExitStatus, Trouble> {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    // Everything in its group can be ended at once.
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

/// What can be gone on with.
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
                let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
                Ok(Self { stdin, stdout, stderr: child.stderr.take(), child, end })
            }
            Err(error) => {
                // It would go on with nobody to wait for it.
                let _ = kill_process_group(pid, Signal::KILL);
                child.wait()?;
                Err(error.into())
            }
        }
    }

    /// Until the process and its pipes came to their end by themselves.
    fn follow(
        &mut self,
        mut request: &[u8],
        until: Until<'_>,
        talk: &mut Talk<'_>,
    ) -> Result<(), Trouble> {
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
                return Err(Trouble::LeftBehind);
            } else if ended.is_none() && until.cancel.is_some_and(Cancel::is_cancelled) {
                return Err(Trouble::Cancelled);
            } else if ended.is_none() && now >= until.deadline {
                return Err(Trouble::TimedOut);
            } else if ended.is_none() && lasts(said_all) {
                return Err(if talk.has_answer() { Trouble::Stays } else { Trouble::ClosedEarly });
            }
            let (ready, is_over) = self.wait(TICK, ended.is_none())?;
            if is_over {
                ended.get_or_insert_with(Instant::now);
                // Nobody is left to read it.
                self.stdin = None;
            }
            if ready.stdin {
                self.feed(&mut request)?;
            }
            // What it says before it is wrong may tell why.
            if let Some(chunk) = ready.stderr.then(|| read(&mut self.stderr)).flatten() {
                talk.on_err(&chunk)?;
            }
            if let Some(chunk) = ready.stdout.then(|| read(&mut self.stdout)).flatten() {
                talk.on_out(&chunk)?;
            }
        }
    }

    /// Also tells whether the process came to its end, if that is asked for.
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

    /// Writes what the process takes. It may take none of it: that is its own affair.
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

    /// Ends everything of the process that is left, and reaps it.
    fn end(mut self, is_over: bool) -> io::Result<ExitStatus> {
        // Until it is reaped nobody else gets its number.
        let pid = Pid::from_child(&self.child);
        self.stdin = None;
        if !is_over {
            signal(pid, Signal::TERM);
            self.drain(Drain::UntilEnd, GRACE)?;
        }
        signal(pid, Signal::KILL);
        let status = self.child.wait()?;
        // They are closed by the last of its processes.
        self.drain(Drain::UntilClosed, LINGER)?;
        Ok(status)
    }

    /// Reads and drops what comes, because who waits for a reader cannot end: until the process
    /// ended, or until its pipes are closed.
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

/// What there is to read: nothing yet, or a chunk, which is empty at the end.
fn read(from: &mut Option<impl Read>) -> Option<Vec<u8>> {
    let mut chunk = vec![0; 16 * 1024];
    match from.as_mut()?.read(&mut chunk) {
        Err(error) if is_not_yet(&error) => return None,
        Ok(count) if count > 0 => chunk.truncate(count),
        // A pipe that cannot be read any more is one that came to its end.
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
    // It may be gone, or be somebody else's by now; both are no reason to wait less for its end.
    let _ = kill_process_group(group, signal);
}
