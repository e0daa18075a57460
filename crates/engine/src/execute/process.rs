//! Runs one program to its end.
//!
//! The program has a process group of its own and reads only the given input; its output is taken
//! as it appears. The program has ended when its first process has, even if a descendant still
//! holds the output open. To end a program, the group gets TERM and, after a grace period, KILL.
//!
//! Supervisors, notes and restarts belong to [`super::programs`].

use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};

use super::guard::without_core;
use super::supervisor::{self, Link, SupervisorError};
use crate::action::{Cancel, Output, Stream};
use crate::program::{ExitCause, ProgramExit};

/// Time from TERM to KILL after the deadline.
pub const GRACE_AFTER_TIMEOUT: Duration = Duration::from_secs(10);
/// Time from TERM to KILL after cancellation.
pub const GRACE_AFTER_CANCEL: Duration = Duration::from_secs(30);
/// Time from KILL to giving up: a process that waits for an unresponsive disk cannot be killed.
pub(super) const GRACE_AFTER_KILL: Duration = Duration::from_secs(10);
/// Time for which output is read after the end of the program, if other processes hold the pipe.
const GRACE_OF_PIPE: Duration = Duration::from_millis(200);
/// Interval at which cancellation is checked.
const LOOK: Duration = Duration::from_millis(50);
/// Longer lines are passed on in parts.
const MAX_LINE: usize = 64 * 1024;
/// Bytes of the last line that reasons quote.
const MAX_QUOTED: usize = 300;

/// Runs a program until it ends or must end, and passes on its output.
pub fn run(
    command: &mut Command,
    input: &[u8],
    deadline: Option<Instant>,
    cancel: &Cancel,
    output: &mut dyn Output,
) -> io::Result<ProgramExit> {
    let stdin = if input.is_empty() { Stdio::null() } else { Stdio::piped() };
    command.stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let mut child = command.spawn()?;
    without_core(Pid::from_child(&child));
    let mut running = WatchedProgram::of(&mut child, input)?;
    let watched = running.watch(deadline, cancel, output);
    if cancel.is_left() {
        // Another process follows the program; this one must still reap it.
        std::thread::spawn(move || child.wait());
        return Err(left_error());
    }
    if let Err(error) = watched {
        running.signal(Signal::KILL);
        // The process may never end.
        std::thread::spawn(move || child.wait());
        return Err(error);
    }
    let cause = running.cause;
    let last_line = running.last_line(output);
    drop(running);
    let status = child.wait()?;
    Ok(ProgramExit { status, cause, last_line })
}

/// Follows a program that an earlier process started. `group` is the id of its first process, which
/// `process` refers to; `pipes` are its standard output and standard error.
pub(super) fn follow(
    group: Pid,
    process: OwnedFd,
    pipes: [fs_err::File; 2],
    deadline: Option<Instant>,
    cancel: &Cancel,
    output: &mut dyn Output,
) -> io::Result<(ExitCause, String)> {
    let pipes = pipes.map(|pipe| Some(OwnedFd::from(pipe.into_file())));
    let mut running = WatchedProgram::new(Leader::Foreign(group), process, pipes, None);
    running.watch(deadline, cancel, output)?;
    if cancel.is_left() {
        return Err(left_error());
    }
    Ok((running.cause, running.last_line(output)))
}

/// Follows a program that the supervisor has started.
pub(super) fn run_supervised(
    program: supervisor::SupervisedProgram,
    deadline: Option<Instant>,
    cancel: &Cancel,
    output: &mut dyn Output,
) -> Result<ProgramExit, SupervisorError> {
    let supervisor::SupervisedProgram { link, id, done, pipes } = program;
    let mut running =
        WatchedProgram::new(Leader::Supervised(&link, id), done, pipes.map(Some), None);
    let watched = running.watch(deadline, cancel, output);
    if cancel.is_left() {
        return Err(SupervisorError::NotStarted(left_error()));
    }
    if let Err(error) = watched {
        running.signal(Signal::KILL);
        return Err(SupervisorError::NotStarted(error));
    }
    let cause = running.cause;
    let last_line = running.last_line(output);
    let status = supervisor::answer(running.process)?;
    Ok(ProgramExit { status, cause, last_line })
}

pub(super) fn left_error() -> io::Error {
    io::Error::other("the program continues, and another process waits for it")
}

/// The leader of the process group.
enum Leader<'a> {
    /// Our child: the process id is reserved until we reap it.
    Child(Pid),
    /// A child of the supervisor, which reserves the process id.
    Supervised(&'a Link, u64),
    Foreign(Pid),
}

struct WatchedProgram<'a> {
    leader: Leader<'a>,
    /// Becomes readable when the program has ended.
    process: OwnedFd,
    input: Option<(ChildStdin, &'a [u8])>,
    out: Option<Lines>,
    err: Option<Lines>,
    last_out: LastLine,
    last_err: LastLine,
    cause: ExitCause,
    kill_at: Option<Instant>,
}

impl<'a> WatchedProgram<'a> {
    fn of(child: &mut Child, input: &'a [u8]) -> io::Result<Self> {
        let group = Pid::from_child(child);
        let process = match pidfd_open(group, PidfdFlags::empty()) {
            Ok(process) => process,
            Err(error) => {
                child.kill()?;
                child.wait()?;
                return Err(error.into());
            }
        };
        let input = child.stdin.take().map(|stdin| (stdin, input));
        if let Some((stdin, _)) = &input {
            rustix::io::ioctl_fionbio(stdin, true)?;
        }
        let pipes =
            [child.stdout.take().map(OwnedFd::from), child.stderr.take().map(OwnedFd::from)];
        Ok(Self::new(Leader::Child(group), process, pipes, input))
    }

    fn new(
        leader: Leader<'a>,
        process: OwnedFd,
        pipes: [Option<OwnedFd>; 2],
        input: Option<(ChildStdin, &'a [u8])>,
    ) -> Self {
        let [out, err] = pipes.map(|pipe| pipe.map(Lines::new));
        Self {
            leader,
            process,
            input,
            out,
            err,
            last_out: LastLine::default(),
            last_err: LastLine::default(),
            cause: ExitCause::Itself,
            kill_at: None,
        }
    }

    fn watch(
        &mut self,
        deadline: Option<Instant>,
        cancel: &Cancel,
        output: &mut dyn Output,
    ) -> io::Result<()> {
        let mut gone_at: Option<Instant> = None;
        let is_foreign = matches!(self.leader, Leader::Foreign(_));
        loop {
            let now = Instant::now();
            if cancel.is_left() {
                return Ok(());
            }
            if gone_at.is_none() && self.kill_at.is_some_and(|at| now >= at + GRACE_AFTER_KILL) {
                return Err(io::Error::other("the program survives SIGKILL"));
            }
            // After its end the process id of a foreign process may be reused.
            if !is_foreign || gone_at.is_none() {
                self.end_if_told(now, deadline, cancel);
            }
            if let Some(gone_at) = gone_at
                && (self.out.is_none() && self.err.is_none() || now >= gone_at + GRACE_OF_PIPE)
            {
                break;
            }
            let mut wait = LOOK;
            if let Some(until) =
                [deadline, self.kill_at].into_iter().flatten().filter(|at| *at > now).min()
            {
                wait = wait.min(until - now);
            }
            let ready = self.poll(gone_at.is_none(), wait)?;
            if ready.input {
                self.feed();
            }
            if ready.out {
                take(&mut self.out, &mut self.last_out, Stream::Out, output)?;
            }
            if ready.err {
                take(&mut self.err, &mut self.last_err, Stream::Err, output)?;
            }
            if ready.gone && gone_at.is_none() {
                gone_at = Some(Instant::now());
                self.input = None;
                if !is_foreign && self.kill_at.is_some() {
                    self.signal(Signal::KILL);
                }
            }
        }
        for (lines, last, stream) in [
            (self.out.take().map(Lines::rest), &mut self.last_out, Stream::Out),
            (self.err.take().map(Lines::rest), &mut self.last_err, Stream::Err),
        ] {
            if let Some(rest) = lines.filter(|rest| !rest.is_empty()) {
                last.remember(&rest, true);
                output.line(stream, &rest);
            }
        }
        Ok(())
    }

    fn end_if_told(&mut self, now: Instant, deadline: Option<Instant>, cancel: &Cancel) {
        match self.kill_at {
            None if cancel.is_cancelled() => {
                self.terminate(ExitCause::Cancelled, now + GRACE_AFTER_CANCEL);
            }
            None if deadline.is_some_and(|deadline| now >= deadline) => {
                self.terminate(ExitCause::TimedOut, now + GRACE_AFTER_TIMEOUT);
            }
            Some(kill_at) if now >= kill_at => self.signal(Signal::KILL),
            _ => {}
        }
    }

    fn terminate(&mut self, cause: ExitCause, kill_at: Instant) {
        self.cause = cause;
        self.kill_at = Some(kill_at);
        self.signal(Signal::TERM);
    }

    fn signal(&self, signal: Signal) {
        match self.leader {
            // The group may be empty already.
            Leader::Child(group) | Leader::Foreign(group) => {
                let _ = kill_process_group(group, signal);
            }
            Leader::Supervised(link, id) => link.signal(id, signal),
        }
    }

    fn poll(&self, is_running: bool, wait: Duration) -> io::Result<Ready> {
        let mut fds: Vec<PollFd<'_>> = Vec::with_capacity(4);
        let gone = add(&mut fds, is_running.then(|| self.process.as_fd()), PollFlags::IN);
        let out = add(&mut fds, self.out.as_ref().map(|lines| lines.from.as_fd()), PollFlags::IN);
        let err = add(&mut fds, self.err.as_ref().map(|lines| lines.from.as_fd()), PollFlags::IN);
        let input = self.input.as_ref().map(|(stdin, _)| stdin.as_fd());
        let input = add(&mut fds, input, PollFlags::OUT);
        let timeout = Timespec { tv_sec: 0, tv_nsec: i64::from(wait.subsec_nanos()) };
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let is_ready = |at: Option<usize>| at.is_some_and(|at| !fds[at].revents().is_empty());
        Ok(Ready {
            gone: is_ready(gone),
            out: is_ready(out),
            err: is_ready(err),
            input: is_ready(input),
        })
    }

    /// Writes more of the input. The program need not read it.
    fn feed(&mut self) {
        let Some((stdin, left)) = &mut self.input else { return };
        match stdin.write(left) {
            Ok(written) => *left = &left[written..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => *left = &[],
        }
        if left.is_empty() {
            self.input = None;
        }
    }

    fn last_line(&self, output: &dyn Output) -> String {
        let is_silent = self.last_err.line.is_empty();
        let last = if is_silent { &self.last_out } else { &self.last_err };
        // The quote is redacted before it is cut: half a secret would not be recognized.
        let mut line = output.quoted(&last.line, last.is_cut);
        line.truncate(MAX_QUOTED);
        String::from_utf8_lossy(&line).trim().to_owned()
    }
}

/// Adds a descriptor to the poll set and returns its index.
fn add<'fd>(
    fds: &mut Vec<PollFd<'fd>>,
    fd: Option<BorrowedFd<'fd>>,
    flags: PollFlags,
) -> Option<usize> {
    fds.push(PollFd::from_borrowed_fd(fd?, flags));
    Some(fds.len() - 1)
}

#[expect(clippy::struct_excessive_bools, reason = "one for each descriptor")]
struct Ready {
    gone: bool,
    out: bool,
    err: bool,
    input: bool,
}

/// A stream, split into lines.
struct Lines {
    from: OwnedFd,
    /// The beginning of an incomplete line.
    open: Vec<u8>,
}

impl Lines {
    fn new(from: OwnedFd) -> Self {
        Self { from, open: Vec::new() }
    }

    fn rest(self) -> Vec<u8> {
        self.open
    }
}

/// Reads once from a stream that is readable or closed.
fn take(
    lines: &mut Option<Lines>,
    last: &mut LastLine,
    stream: Stream,
    output: &mut dyn Output,
) -> io::Result<()> {
    let Some(Lines { from, open }) = lines else { return Ok(()) };
    let mut chunk = [0; 16 * 1024];
    let read = match rustix::io::read(&*from, &mut chunk) {
        Err(Errno::INTR | Errno::AGAIN) => return Ok(()),
        read => read?,
    };
    if read == 0 {
        if !open.is_empty() {
            last.remember(open, true);
            output.line(stream, open);
        }
        *lines = None;
        return Ok(());
    }
    let mut rest = &chunk[..read];
    while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
        let line = if open.is_empty() {
            &rest[..end]
        } else {
            open.extend_from_slice(&rest[..end]);
            &open[..]
        };
        last.remember(line, true);
        output.line(stream, line);
        open.clear();
        rest = &rest[end + 1..];
    }
    open.extend_from_slice(rest);
    if open.len() >= MAX_LINE {
        last.remember(open, false);
        output.part(stream, open);
        open.clear();
    }
    Ok(())
}

/// The last line that is not empty; of a long line, its first part.
#[derive(Default)]
struct LastLine {
    line: Vec<u8>,
    is_cut: bool,
    /// More of the same line follows.
    goes_on: bool,
}

impl LastLine {
    fn remember(&mut self, bytes: &[u8], ends_line: bool) {
        let begins = !self.goes_on;
        self.goes_on = !ends_line;
        let bytes = bytes.trim_ascii();
        if begins && !bytes.is_empty() {
            self.line.clear();
            self.line.extend_from_slice(bytes);
            self.is_cut = !ends_line;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct CollectedOutput(Vec<u8>);

    impl Output for CollectedOutput {
        fn line(&mut self, _: Stream, bytes: &[u8]) {
            self.0.extend_from_slice(bytes);
            self.0.push(b'\n');
        }

        fn part(&mut self, _: Stream, bytes: &[u8]) {
            self.0.extend_from_slice(bytes);
        }

        fn progress(&mut self, _: u64, _: Option<u64>) {}
    }

    fn sh(
        script: &str,
        input: &[u8],
        deadline: Option<Duration>,
        cancel: &Cancel,
    ) -> (ProgramExit, Vec<u8>) {
        let mut output = CollectedOutput::default();
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]);
        let deadline = deadline.map(|left| Instant::now() + left);
        let ran = run(&mut command, input, deadline, cancel, &mut output).expect("a shell");
        (ran, output.0)
    }

    #[test]
    fn output_of_both_streams_and_the_exit_code_are_seen() {
        let (ran, output) =
            sh("echo one; echo two >&2; printf three; exit 3", b"", None, &Cancel::default());
        assert_eq!(ran.failure().as_deref(), Some("exit code 3: two"));
        let mut lines: Vec<&[u8]> = output.split(|byte| *byte == b'\n').collect();
        lines.sort();
        assert_eq!(lines, [&b""[..], b"one", b"three", b"two"]);
    }

    #[test]
    fn program_reads_only_its_input() {
        let (ran, output) = sh("cat", b"", None, &Cancel::default());
        assert!(ran.failure().is_none() && output.is_empty());
        let much = vec![b'x'; 3 * 1024 * 1024];
        let (ran, output) = sh("cat", &much, None, &Cancel::default());
        assert!(ran.failure().is_none());
        assert!(output.starts_with(&much), "a line of three megabytes, in parts");
        let (ran, _) = sh("exit 0", &much, None, &Cancel::default());
        assert!(ran.failure().is_none(), "it need not read it");
    }

    #[test]
    fn program_ends_without_waiting_for_descendants() {
        let started = Instant::now();
        let (ran, output) = sh("sleep 60 & echo $!", b"", None, &Cancel::default());
        assert!(ran.failure().is_none());
        assert!(started.elapsed() < Duration::from_secs(30), "the descendant was not waited for");
        let pid: i32 = String::from_utf8(output).unwrap().trim().parse().unwrap();
        let pid = Pid::from_raw(pid).unwrap();
        rustix::process::kill_process(pid, Signal::KILL).expect("it still runs");
    }

    #[test]
    fn timeout_terminates_program_and_kills_children() {
        let dir = tempfile::tempdir().unwrap();
        let mark = dir.path().join("asked");
        let script = format!(
            "trap 'touch {}; exit 1' TERM; (trap '' TERM; exec sleep 61) & echo $!; wait",
            mark.display()
        );
        let (ran, output) = sh(&script, b"", Some(Duration::from_millis(300)), &Cancel::default());
        assert_eq!(ran.cause, ExitCause::TimedOut);
        assert!(ran.failure().unwrap().starts_with("timed out"));
        assert!(mark.exists(), "it was asked first");
        let pid = String::from_utf8(output).unwrap();
        wait_until_gone(pid.trim());
    }

    #[test]
    fn program_that_ignores_term_is_killed() {
        let started = Instant::now();
        let (ran, _) = sh(
            "trap '' TERM; while :; do sleep 0.1; done",
            b"",
            Some(Duration::from_millis(100)),
            &Cancel::default(),
        );
        assert_eq!(ran.cause, ExitCause::TimedOut);
        assert!(started.elapsed() >= GRACE_AFTER_TIMEOUT);
    }

    #[test]
    fn cancelled_program_is_stopped() {
        let cancel = Cancel::default();
        std::thread::scope(|scope| {
            scope.spawn(|| cancel.cancel());
            let (ran, _) = sh("sleep 60", b"", None, &cancel);
            assert_eq!(ran.cause, ExitCause::Cancelled);
        });
    }

    fn wait_until_gone(pid: &str) {
        let stat = format!("/proc/{pid}/stat");
        let is_alive = || fs_err::read_to_string(&stat).is_ok_and(|stat| !stat.contains(") Z "));
        hoist_testkit::eventually(&format!("process {pid} ends"), || !is_alive());
    }
}
