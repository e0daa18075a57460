//! One session with one machine, and its renewal: [`Link`] starts `ssh`, brings the program, and
//! carries reports to the dispatcher and orders back. The meaning of the messages belongs to
//! [`crate::pull`].

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader, Read, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::login::{Target, is_final};
use super::plugins::digest_of;
use super::{Begin, FromMachine, Links, ToMachine, Values};
use crate::pull::{Dispatcher, MAX_MESSAGE, WorkerReport};

/// Interval at which a link looks at the time.
const TICK: Duration = Duration::from_secs(1);
/// A session without any message for this long is given up; a machine reports more often.
pub(super) const SILENCE: Duration = Duration::from_mins(1);
/// A link without work ends after this time, or after a tick if others wait for its thread.
const IDLE: Duration = Duration::from_secs(30);
/// Shortest and longest pause between failed sessions.
const PAUSES: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(20)];
/// How long `ssh` may take to end.
const END: Duration = Duration::from_secs(3);
/// Bytes of `ssh`'s complaints that are quoted.
const MAX_COMPLAINT: usize = 4096;
/// Exit code of a machine's program that may be able to work later.
pub(super) const TRY_AGAIN: u8 = 75;

/// An event that a link waits for.
pub(super) enum Signal {
    /// There may be work, or the link may be closed.
    Bell,
    /// A line of the session with this number.
    Line(u64, Vec<u8>),
    /// The end of this session.
    End(u64),
}

/// Why there is no session.
enum SessionError {
    /// The machine may be reachable later.
    Unreachable(String),
    /// A retry is useless.
    Refused(String),
}

/// The session has ended or makes no sense; `ssh` knows why.
struct Broken;

/// The next event of a session.
enum Next {
    Line(Vec<u8>),
    Bell,
    Nothing,
}

pub(super) struct Link<'a> {
    links: &'a Links,
    dispatcher: &'a Dispatcher,
    machine: &'a str,
    signals: Sender<Signal>,
    heard: Receiver<Signal>,
    session: u64,
    /// Whether the machine has reported in this session.
    has_reported: bool,
    /// Since when no session came about.
    failing: Option<Instant>,
}

impl<'a> Link<'a> {
    pub(super) fn new(
        links: &'a Links,
        dispatcher: &'a Dispatcher,
        machine: &'a str,
        signals: Sender<Signal>,
        heard: Receiver<Signal>,
    ) -> Self {
        Self {
            links,
            dispatcher,
            machine,
            signals,
            heard,
            session: 0,
            has_reported: false,
            failing: None,
        }
    }

    /// Holds a session while there is work.
    pub(super) fn run(mut self) {
        while !self.links.is_closed() {
            let Err(error) = self.hold() else { return };
            let since = *self.failing.get_or_insert_with(Instant::now);
            let is_lost = since.elapsed() >= self.links.setup.lost_after;
            let (is_final, reason) = match error {
                SessionError::Refused(reason) => (true, reason),
                SessionError::Unreachable(reason) => (false, reason),
            };
            if is_lost || is_final {
                self.dispatcher.give_up(self.machine, &reason, is_lost);
            }
            if self.links.release(self.dispatcher, self.machine) {
                return;
            }
            self.pause((since.elapsed() / 4).clamp(PAUSES[0], PAUSES[1]));
        }
    }

    fn pause(&self, time: Duration) {
        let until = Instant::now() + time;
        let left =
            || Some(until.saturating_duration_since(Instant::now())).filter(|l| !l.is_zero());
        while let Some(left) = left()
            && !self.links.is_closed()
            && self.heard.recv_timeout(left).is_ok()
        {}
    }

    /// One session, to its end.
    fn hold(&mut self) -> Result<(), SessionError> {
        let setup = &self.links.setup;
        let found = (setup.target)(self.machine);
        let target = found.map_err(|error| SessionError::Refused(error.to_string()))?;
        target
            .check()
            .map_err(|error| SessionError::Refused(format!("{}: {error}", self.machine)))?;
        let no_ssh =
            |error: std::io::Error| SessionError::Refused(format!("cannot run ssh: {error}"));
        self.session += 1;
        self.has_reported = false;
        let command = target.command(&setup.arguments);
        let mut ssh = Ssh::start(command, self.session, &self.signals).map_err(no_ssh)?;
        let talked = self.bring(&mut ssh, &target)?;
        let talked = match talked {
            Ok(()) => self.talk(&mut ssh),
            Err(Broken) => Err(Broken),
        };
        match talked {
            Ok(()) => Ok(()),
            Err(Broken) => Err(ssh.error(&target.host, self.has_reported)),
        }
    }

    /// The next line of the session.
    fn next(&self, wait: Duration) -> Result<Next, Broken> {
        loop {
            return match self.heard.recv_timeout(wait) {
                Ok(Signal::Line(session, line)) if session == self.session => Ok(Next::Line(line)),
                Ok(Signal::End(session)) if session == self.session => Err(Broken),
                // An earlier session.
                Ok(Signal::Line(..) | Signal::End(_)) => continue,
                Ok(Signal::Bell) => Ok(Next::Bell),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                    Ok(Next::Nothing)
                }
            };
        }
    }

    /// Waits for one of these lines; others are output of the login shell.
    fn expect(&self, lines: &[&str]) -> Result<usize, Broken> {
        let until = Instant::now() + SILENCE;
        while Instant::now() < until && !self.links.is_closed() {
            let Next::Line(line) = self.next(TICK)? else { continue };
            let line = line.trim_ascii();
            if let Some(at) = lines.iter().position(|one| one.as_bytes() == line) {
                return Ok(at);
            }
        }
        Err(Broken)
    }

    /// Has the program started, and sends it first if it is not there.
    fn bring(&self, ssh: &mut Ssh, target: &Target) -> Result<Result<(), Broken>, SessionError> {
        let unreadable = |error| {
            let program = target.program.display();
            SessionError::Refused(format!(
                "cannot read the program for nodes, `{program}`: {error}"
            ))
        };
        let (digest, size) = digest_of(&target.program).map_err(unreadable)?;
        let mut program = fs_err::File::open(&target.program).map_err(unreadable)?;
        let mut brought = || {
            self.expect(&["hoist 2"])?;
            ssh.write(format!("{digest} {size}\n").as_bytes())?;
            if self.expect(&["ready", "missing"])? == 1 {
                let stdin = ssh.stdin.as_mut().ok_or(Broken)?;
                std::io::copy(&mut program, stdin).map_err(|_| Broken)?;
                self.expect(&["ready"])?;
            }
            Ok(())
        };
        Ok(brought())
    }

    /// Carries messages until there is nothing more to do.
    fn talk(&mut self, ssh: &mut Ssh) -> Result<(), Broken> {
        let mut sent = BTreeSet::new();
        let plugins = &self.links.setup.plugins;
        ssh.send(&ToMachine::Begin(Begin {
            run: self.links.run.clone(),
            secrets: self.secrets(&mut sent),
            plugins: plugins.digests(),
            are_unconfined: plugins.are_unconfined,
        }))?;
        let mut held: Option<(WorkerReport, Instant)> = None;
        let mut is_rung = false;
        let mut last = Instant::now();
        let mut busy = Instant::now();
        loop {
            let next = self.next(TICK)?;
            if self.links.is_closed() {
                if self.links.is_over.load(Ordering::Relaxed) {
                    ssh.send(&ToMachine::Forget)?;
                }
                return Ok(());
            }
            let mut is_new = matches!(next, Next::Bell);
            // Nothing else begins like a message.
            if let Next::Line(line) = next
                && line.starts_with(b"{")
            {
                last = Instant::now();
                match serde_json::from_slice(&line).map_err(|_| Broken)? {
                    FromMachine::Missing(names) => {
                        ssh.send(&ToMachine::Plugins(plugins.content(names)))?;
                    }
                    FromMachine::Report(report) => {
                        (self.has_reported, self.failing) = (true, None);
                        held = Some((report, last));
                        (is_new, is_rung) = (true, false);
                    }
                }
            }
            let Some((report, since)) = &held else {
                if is_new && !is_rung {
                    ssh.send(&ToMachine::Ring)?;
                    is_rung = true;
                }
                if last.elapsed() > SILENCE {
                    return Err(Broken);
                }
                continue;
            };
            let is_due = since.elapsed() >= Duration::from_millis(report.wait_ms);
            if is_new || is_due {
                let orders = self.dispatcher.exchange(self.machine, report, Instant::now());
                if !orders.is_empty() || is_due {
                    let secrets = self.secrets(&mut sent);
                    if !secrets.is_empty() {
                        ssh.send(&ToMachine::Secrets(secrets))?;
                    }
                    ssh.send(&ToMachine::Orders(orders))?;
                    // The silence of the machine begins.
                    (held, last) = (None, Instant::now());
                    continue;
                }
            }
            if self.dispatcher.has_work(self.machine) {
                busy = Instant::now();
            }
            let is_wanted = self.links.waiting.load(Ordering::Relaxed) > 0;
            if busy.elapsed() > if is_wanted { TICK } else { IDLE }
                && self.links.release(self.dispatcher, self.machine)
            {
                return Ok(());
            }
        }
    }

    /// The secrets that the machine needs and does not have in this session.
    fn secrets(&self, sent: &mut BTreeSet<String>) -> Values {
        let named = self.links.secrets_of(self.machine);
        let new = named.into_iter().filter(|reference| sent.insert(reference.clone()));
        let value = |reference: String| {
            let value = self.links.setup.secrets.get(&reference).map_err(|failure| failure.reason);
            (reference, value)
        };
        new.map(value).collect()
    }
}

/// A running `ssh`.
struct Ssh {
    child: Child,
    stdin: Option<ChildStdin>,
    said: Arc<Mutex<Vec<u8>>>,
    complains: JoinHandle<()>,
}

impl Ssh {
    fn start(
        mut command: Command,
        session: u64,
        signals: &Sender<Signal>,
    ) -> std::io::Result<Self> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.process_group(0).spawn()?;
        let stdin = child.stdin.take();
        let (out, err) = (child.stdout.take(), child.stderr.take());
        let said = Arc::<Mutex<Vec<u8>>>::default();
        let signals = signals.clone();
        std::thread::spawn(move || {
            // The receiver is gone if the link has ended.
            if let Some(out) = out {
                read_lines(out, session, &signals);
            }
            let _ = signals.send(Signal::End(session));
        });
        let kept = Arc::clone(&said);
        let complains = std::thread::spawn(move || {
            let Some(mut err) = err else { return };
            let mut buffer = [0; 1024];
            while let Ok(read @ 1..) = err.read(&mut buffer) {
                let mut kept = kept.lock();
                let room = MAX_COMPLAINT.saturating_sub(kept.len());
                kept.extend_from_slice(&buffer[..read.min(room)]);
            }
        });
        Ok(Self { child, stdin, said, complains })
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), Broken> {
        let stdin = self.stdin.as_mut().ok_or(Broken)?;
        stdin.write_all(bytes).and_then(|()| stdin.flush()).map_err(|_| Broken)
    }

    fn send(&mut self, message: &ToMachine) -> Result<(), Broken> {
        let mut line = serde_json::to_vec(message).map_err(|_| Broken)?;
        line.push(b'\n');
        self.write(&line)
    }

    /// Lets `ssh` end, and the machine with it.
    fn end(&mut self) -> Option<ExitStatus> {
        self.stdin = None;
        let until = Instant::now() + END;
        while Instant::now() < until {
            if let Ok(Some(status)) = self.child.try_wait() {
                return Some(status);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        // It may have ended by itself meanwhile.
        let _ = self.child.kill();
        let _ = self.child.wait();
        None
    }

    fn error(&mut self, host: &str, has_reported: bool) -> SessionError {
        let code = self.end().and_then(|status| status.code());
        let until = Instant::now() + TICK;
        // A process that ssh left behind may hold the pipe.
        while !self.complains.is_finished() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(10));
        }
        let said = String::from_utf8_lossy(&self.said.lock()).into_owned();
        let lines = said.lines().map(str::trim).filter(|line| !line.is_empty());
        let said = lines.collect::<Vec<_>>().join("; ");
        let said = if said.is_empty() { "no answer".to_owned() } else { said };
        match code {
            Some(255) | None if !is_final(&said) => {
                SessionError::Unreachable(format!("`{host}` cannot be reached: {said}"))
            }
            Some(255) | None => {
                SessionError::Refused(format!("`{host}` cannot be reached: {said}"))
            }
            Some(code) if has_reported || code == i32::from(TRY_AGAIN) => {
                SessionError::Unreachable(format!("the program on `{host}` has ended: {said}"))
            }
            Some(_) => SessionError::Refused(format!("`{host}` cannot run steps: {said}")),
        }
    }
}

impl Drop for Ssh {
    fn drop(&mut self) {
        self.end();
    }
}

fn read_lines(out: impl Read, session: u64, signals: &Sender<Signal>) {
    let mut out = BufReader::new(out);
    loop {
        let mut line = Vec::new();
        // Escapes of JSON may make a message longer.
        let read = out.by_ref().take(2 * MAX_MESSAGE as u64).read_until(b'\n', &mut line);
        let is_whole = read.is_ok() && line.ends_with(b"\n");
        if !is_whole || signals.send(Signal::Line(session, line)).is_err() {
            return;
        }
    }
}
