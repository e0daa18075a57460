//! Running a program to its end, whatever it does.
//!
//! It has a process group of its own, nothing to read but what it is given, and its output is taken
//! as it comes. A program that leaves somebody behind who holds its output has ended when it has
//! ended itself. One that shall end is asked first, and its whole group is killed if it does not.

use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};

use super::guard::{FILE_TOO_LARGE, FILE_TOO_LARGE_CODE, without_core};
use super::keeper::{self, Fault, Link};
use crate::action::{Cancel, Output, Stream};

/// After the time is over, from asking to killing.
pub const GRACE_AFTER_TIMEOUT: Duration = Duration::from_secs(10);
/// After somebody stopped it, from asking to killing.
pub const GRACE_AFTER_CANCEL: Duration = Duration::from_secs(30);
/// From killing to giving up: one that waits for a disk that does not answer cannot be killed.
pub(super) const GRACE_AFTER_KILL: Duration = Duration::from_secs(10);
/// Output is taken so long after the program has ended, if others hold it open.
const GRACE_OF_PIPE: Duration = Duration::from_millis(200);
/// How often it is looked whether it shall end.
const LOOK: Duration = Duration::from_millis(50);
/// Longer lines are handed on in parts.
const MAX_LINE: usize = 64 * 1024;
/// Of the last line, which reasons quote.
const MAX_QUOTED: usize = 300;

/// How a program ended.
#[derive(Debug)]
pub struct Ran {
    pub status: ExitStatus,
    pub ended: Ended,
    /// The last thing that it complained of, or said.
    pub last_line: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    ByItself,
    TimedOut,
    Cancelled,
}

impl Ran {
    /// Whether it ended because it wrote a larger file than it may.
    pub fn wrote_too_much(&self) -> bool {
        self.ended == Ended::ByItself
            && (self.status.signal() == Some(FILE_TOO_LARGE)
                || self.status.code() == Some(FILE_TOO_LARGE_CODE))
    }

    /// Why it did not end well, in one line; `None` if it did.
    pub fn fault(&self) -> Option<String> {
        let what = match (self.ended, self.status.code(), self.status.signal()) {
            (Ended::TimedOut, ..) => "was ended because its time was over".to_owned(),
            (Ended::Cancelled, ..) => "was stopped".to_owned(),
            (Ended::ByItself, Some(0), _) => return None,
            (Ended::ByItself, Some(code), _) => format!("exit code {code}"),
            (Ended::ByItself, None, signal) => {
                format!("was killed by signal {}", signal.unwrap_or_default())
            }
        };
        if self.last_line.is_empty() {
            return Some(what);
        }
        Some(format!("{what}: {}", self.last_line))
    }
}

/// Runs a program until it ends or shall end, and hands on what it prints.
pub fn run(
    command: &mut Command,
    input: &[u8],
    deadline: Option<Instant>,
    cancel: &Cancel,
    output: &mut dyn Output,
) -> io::Result<Ran> {
    let stdin = if input.is_empty() { Stdio::null() } else { Stdio::piped() };
    command.stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let mut child = command.spawn()?;
    without_core(Pid::from_child(&child));
    let mut running = Running::of(&mut child, input)?;
    let watched = running.watch(deadline, cancel, output);
    if cancel.is_left() {
        // Somebody else goes on with it; it is still for us to wait for.
        std::thread::spawn(move || child.wait());
        return Err(left());
    }
    if let Err(error) = watched {
        running.signal(Signal::KILL);
        // It may not end.
        std::thread::spawn(move || child.wait());
        return Err(error);
    }
    let (ended, last_line) = (running.ended, running.last_line(output));
    drop(running);
    let status = child.wait()?;
    Ok(Ran { status, ended, last_line })
}

/// The same for a program that somebody else has started. Its group has the number of its first
/// process, which `process` stands for; `pipes` are its output and its complaints.
pub(super) fn follow(
    group: Pid,
    process: OwnedFd,
    pipes: [fs_err::File; 2],
    deadline: Option<Instant>,
    cancel: &Cancel,
    output: &mut dyn Output,
) -> io::Result<(Ended, String)> {
    let pipes = pipes.map(|pipe| Some(OwnedFd::from(pipe.into_file())));
    let mut running = Running::new(Leader::Stranger(group), process, pipes, None);
    running.watch(deadline, cancel, output)?;
    if cancel.is_left() {
        return Err(left());
    }
    Ok((running.ended, running.last_line(output)))
}

/// The same for a program that the keeper has started.
pub(super) fn run_kept(
    program: keeper::Kept,
    deadline: Option<Instant>,
    cancel: &Cancel,
    output: &mut dyn Output,
) -> Result<Ran, Fault> {
    let keeper::Kept { link, id, done, pipes } = program;
    let mut running = Running::new(Leader::Kept(&link, id), done, pipes.map(Some), None);
    let watched = running.watch(deadline, cancel, output);
    if cancel.is_left() {
        return Err(Fault::NotStarted(left()));
    }
    if let Err(error) = watched {
        running.signal(Signal::KILL);
        return Err(Fault::NotStarted(error));
    }
    let (ended, last_line) = (running.ended, running.last_line(output));
    let status = keeper::answer(running.process)?;
    Ok(Ran { status, ended, last_line })
}

pub(super) fn left() -> io::Error {
    io::Error::other("it runs on, and somebody else waits for it")
}

/// Who is at the head of the group.
enum Leader<'a> {
    /// It is for us to wait for it, so its number is nobody else's.
    Child(Pid),
    /// The same for the keeper.
    Kept(&'a Link, u64),
    Stranger(Pid),
}

struct Running<'a> {
    leader: Leader<'a>,
    /// Has something to read when it has ended.
    process: OwnedFd,
    input: Option<(ChildStdin, &'a [u8])>,
    out: Option<Lines>,
    err: Option<Lines>,
    last_out: Last,
    last_err: Last,
    ended: Ended,
    kill_at: Option<Instant>,
}

impl<'a> Running<'a> {
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
            last_out: Last::default(),
            last_err: Last::default(),
            ended: Ended::ByItself,
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
        let is_stranger = matches!(self.leader, Leader::Stranger(_));
        loop {
            let now = Instant::now();
            if cancel.is_left() {
                return Ok(());
            }
            if gone_at.is_none() && self.kill_at.is_some_and(|at| now >= at + GRACE_AFTER_KILL) {
                return Err(io::Error::other("it does not end when it is killed"));
            }
            // After its end its number may be another's, if it is not for us to wait for it.
            if !is_stranger || gone_at.is_none() {
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
                if !is_stranger && self.kill_at.is_some() {
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
            None if cancel.is_cancelled() => self.ask(Ended::Cancelled, now + GRACE_AFTER_CANCEL),
            None if deadline.is_some_and(|deadline| now >= deadline) => {
                self.ask(Ended::TimedOut, now + GRACE_AFTER_TIMEOUT);
            }
            Some(kill_at) if now >= kill_at => self.signal(Signal::KILL),
            _ => {}
        }
    }

    fn ask(&mut self, ended: Ended, kill_at: Instant) {
        self.ended = ended;
        self.kill_at = Some(kill_at);
        self.signal(Signal::TERM);
    }

    fn signal(&self, signal: Signal) {
        match self.leader {
            // Nobody may be left.
            Leader::Child(group) | Leader::Stranger(group) => {
                let _ = kill_process_group(group, signal);
            }
            Leader::Kept(link, id) => link.signal(id, signal),
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

    /// Gives the program more of what it reads; it need not want it.
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
        // Half of a secret would not be known for one, so nothing is cut before.
        let mut line = output.quoted(&last.line, last.is_cut);
        line.truncate(MAX_QUOTED);
        String::from_utf8_lossy(&line).trim().to_owned()
    }
}

/// The place of the descriptor among those that are polled.
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

/// A stream as lines.
struct Lines {
    from: OwnedFd,
    /// Of a line whose end has not come.
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

/// One read of a stream that has something, or has ended.
fn take(
    lines: &mut Option<Lines>,
    last: &mut Last,
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

/// The last line that says something; of a long one its first part.
#[derive(Default)]
struct Last {
    line: Vec<u8>,
    is_cut: bool,
    /// More of the same line follows.
    goes_on: bool,
}

impl Last {
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
    struct Kept(Vec<u8>);

    impl Output for Kept {
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
    ) -> (Ran, Vec<u8>) {
        let mut output = Kept::default();
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
        assert_eq!(ran.fault().as_deref(), Some("exit code 3: two"));
        let mut lines: Vec<&[u8]> = output.split(|byte| *byte == b'\n').collect();
        lines.sort();
        assert_eq!(lines, [&b""[..], b"one", b"three", b"two"]);
    }

    #[test]
    fn it_reads_nothing_or_what_it_is_given() {
        let (ran, output) = sh("cat", b"", None, &Cancel::default());
        assert!(ran.fault().is_none() && output.is_empty());
        let much = vec![b'x'; 3 * 1024 * 1024];
        let (ran, output) = sh("cat", &much, None, &Cancel::default());
        assert!(ran.fault().is_none());
        assert!(output.starts_with(&much), "a line of three megabytes, in parts");
        let (ran, _) = sh("exit 0", &much, None, &Cancel::default());
        assert!(ran.fault().is_none(), "it need not read it");
    }

    #[test]
    fn one_that_leaves_somebody_behind_has_ended_when_it_has() {
        let started = Instant::now();
        let (ran, output) = sh("sleep 60 & echo $!", b"", None, &Cancel::default());
        assert!(ran.fault().is_none());
        assert!(started.elapsed() < Duration::from_secs(30), "nobody waited for the one behind");
        let pid: i32 = String::from_utf8(output).unwrap().trim().parse().unwrap();
        let pid = Pid::from_raw(pid).unwrap();
        rustix::process::kill_process(pid, Signal::KILL).expect("it still runs");
    }

    #[test]
    fn one_whose_time_is_over_is_asked_and_its_children_are_killed() {
        let dir = tempfile::tempdir().unwrap();
        let mark = dir.path().join("asked");
        let script = format!(
            "trap 'touch {}; exit 1' TERM; (trap '' TERM; exec sleep 61) & echo $!; wait",
            mark.display()
        );
        let (ran, output) = sh(&script, b"", Some(Duration::from_millis(300)), &Cancel::default());
        assert_eq!(ran.ended, Ended::TimedOut);
        assert!(ran.fault().unwrap().starts_with("was ended because its time was over"));
        assert!(mark.exists(), "it was asked first");
        let pid = String::from_utf8(output).unwrap();
        wait_until_gone(pid.trim());
    }

    #[test]
    fn one_that_does_not_listen_is_killed() {
        let started = Instant::now();
        let (ran, _) = sh(
            "trap '' TERM; while :; do sleep 0.1; done",
            b"",
            Some(Duration::from_millis(100)),
            &Cancel::default(),
        );
        assert_eq!(ran.ended, Ended::TimedOut);
        assert!(started.elapsed() >= GRACE_AFTER_TIMEOUT);
    }

    #[test]
    fn one_that_is_cancelled_is_stopped() {
        let cancel = Cancel::default();
        std::thread::scope(|scope| {
            scope.spawn(|| cancel.cancel());
            let (ran, _) = sh("sleep 60", b"", None, &cancel);
            assert_eq!(ran.ended, Ended::Cancelled);
        });
    }

    fn wait_until_gone(pid: &str) {
        let stat = format!("/proc/{pid}/stat");
        let until = Instant::now() + Duration::from_secs(20);
        while fs_err::read_to_string(&stat).is_ok_and(|stat| !stat.contains(") Z ")) {
            assert!(Instant::now() < until, "process {pid} is still there");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}
