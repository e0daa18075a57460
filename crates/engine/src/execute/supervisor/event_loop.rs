//! The supervisor process itself. It has one thread, which blocks only in `epoll::wait`.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::io::{self, IoSliceMut, Read as _, Seek as _, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Instant;

use fs_err::os::unix::fs::OpenOptionsExt as _;
use fs_err::{File, OpenOptions};
use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, recvmsg, sockopt,
};
use rustix::process::{
    Pid, PidfdFlags, Resource, Rlimit, Signal, getrlimit, kill_process_group, pidfd_open,
    setrlimit, setsid,
};

use super::super::leftover::Process;
use super::super::programs::TICKS;
use super::{
    ANSWER, ENDED, FORGET, HELLO, LARGE, LEFT, MAX_DESCRIPTORS, MAX_MESSAGE, MAX_REQUEST, REFUSED,
    RUN, SIGNAL, WHO, code,
};

/// The exit code by which shells report a program that cannot be started.
const NOT_STARTED: i32 = 127;

/// Events per `epoll::wait`.
const EVENTS: usize = 64;

const SOCKET: u64 = u64::MAX;

/// Runs the supervisor. Standard input must be the socket of the controller.
pub fn main() -> io::Result<()> {
    EventLoop::new()?.live()
}

struct EventLoop {
    /// `None` once the controller is gone.
    socket: Option<OwnedFd>,
    epoll: OwnedFd,
    files: Files,
    ledger: String,
    own: Option<File>,
    running: HashMap<u64, RunningProgram>,
    /// Ended programs whose exit the controller has not recorded.
    ended: HashMap<u64, ExitedProgram>,
}

struct RunningProgram {
    about: About,
    child: Child,
    process: OwnedFd,
    tells: OwnedFd,
    /// The read ends of the pipes. Without them, writing would end the program when no reader is
    /// left.
    reads: [OwnedFd; 2],
    /// Holds the write ends: the streams end together with the program, not before.
    command: Command,
    is_asked_to_end: bool,
}

struct ExitedProgram {
    about: About,
    pid: i32,
    code: i32,
}

struct About {
    note: PathBuf,
    cgroup: OsString,
    began: Instant,
}

impl EventLoop {
    fn new() -> io::Result<Self> {
        let stdin = io::stdin();
        sockopt::socket_type(&stdin)?;
        let socket = stdin.as_fd().try_clone_to_owned()?;
        // Signals to the process group or terminal of the controller must not reach the supervisor.
        // `setsid` fails only if the process leads a group already.
        let _ = setsid();
        // Programs inherit this standard input.
        rustix::stdio::dup2_stdin(File::open("/dev/null")?)?;
        // Core dumps may contain secrets, so they are off unless a program turns them on.
        let core = Rlimit { current: Some(0), ..getrlimit(Resource::Core) };
        setrlimit(Resource::Core, core)?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let event = epoll::EventData::new_u64(SOCKET);
        epoll::add(&epoll, &socket, event, epoll::EventFlags::IN)?;
        Ok(Self {
            socket: Some(socket),
            epoll,
            files: Files::most(),
            ledger: String::new(),
            own: None,
            running: HashMap::new(),
            ended: HashMap::new(),
        })
    }

    fn live(mut self) -> io::Result<()> {
        let mut events: Vec<epoll::Event> = Vec::with_capacity(EVENTS);
        let mut buffer = vec![0; MAX_MESSAGE];
        while self.socket.is_some() || !self.running.is_empty() {
            events.clear();
            match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            for event in &events {
                let data = event.data;
                let flags = event.flags;
                if data.u64() != SOCKET {
                    self.has_ended(data.u64());
                } else if flags.contains(epoll::EventFlags::HUP) {
                    self.leave(&mut buffer)?;
                } else {
                    self.listen(&mut buffer, true)?;
                }
            }
        }
        Ok(())
    }

    /// Takes one request. Returns `false` if there is none.
    fn listen(&mut self, buffer: &mut [u8], may_start: bool) -> io::Result<bool> {
        let Some(socket) = &self.socket else { return Ok(false) };
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        let received = recvmsg(socket, &mut [IoSliceMut::new(buffer)], &mut ancillary, flags);
        let (received, has_all) = match received {
            Ok(received) if received.bytes > 0 => {
                (received.bytes, !received.flags.contains(ReturnFlags::CTRUNC))
            }
            Ok(_) | Err(Errno::AGAIN | Errno::CONNRESET) => return Ok(false),
            Err(Errno::INTR) => return Ok(true),
            Err(error) => return Err(error.into()),
        };
        let mut descriptors: Vec<OwnedFd> = Vec::with_capacity(MAX_DESCRIPTORS);
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                descriptors.extend(rights);
            }
        }
        if !has_all {
            // This process is out of descriptors. If even the first one is missing, the closed pipe
            // tells the controller that the outcome is unknown.
            if let Some(tells) = descriptors.into_iter().next() {
                tell(tells, REFUSED, Errno::MFILE.raw_os_error());
            }
        } else if &buffer[..received] == LARGE {
            let large = descriptors.pop().map(read_large).transpose()?.unwrap_or_default();
            self.obey(&large, descriptors, may_start);
        } else {
            self.obey(&buffer[..received], descriptors, may_start);
        }
        Ok(true)
    }

    /// Carries out a request. Malformed requests are ignored: only this program writes them.
    fn obey(&mut self, request: &[u8], descriptors: Vec<OwnedFd>, may_start: bool) {
        let mut fields = request.split(|byte| *byte == 0);
        let verb = fields.next().unwrap_or_default();
        if verb == RUN {
            self.forget(fields.next());
            if may_start {
                self.run(fields, descriptors);
            }
        } else if verb == FORGET {
            self.forget(fields.next());
        } else if verb == HELLO {
            text(fields.next()).clone_into(&mut self.ledger);
            let path = Path::new(OsStr::from_bytes(fields.next().unwrap_or_default()));
            self.own = OpenOptions::new().append(true).open(path).ok();
        } else if verb == SIGNAL {
            self.signal(number(fields.next()), number(fields.next()));
        } else if verb == WHO
            && let Some((pid, start)) = number(fields.next()).and_then(|id| self.who(id))
            && let Some(tells) = descriptors.into_iter().next()
        {
            // The controller may be gone.
            let _ = write!(std::fs::File::from(tells), "{pid} {start}");
        }
    }

    fn forget(&mut self, ids: Option<&[u8]>) {
        for id in text(ids).split(',').filter_map(|id| id.parse().ok()) {
            self.ended.remove(&id);
        }
    }

    fn run<'r>(
        &mut self,
        mut fields: impl Iterator<Item = &'r [u8]>,
        descriptors: Vec<OwnedFd>,
    ) -> Option<()> {
        let id = number(fields.next())?;
        let mut field = || fields.next().map(|field| OsStr::from_bytes(field).to_owned());
        let note = PathBuf::from(field()?);
        let cgroup = field()?;
        let directory = field()?;
        let about = About { note, cgroup, began: Instant::now() };
        let count: usize = field()?.to_str()?.parse().ok()?;
        let [tells, out, prints, err, complains] = descriptors.try_into().ok()?;
        let mut command = Command::new(field()?);
        command.args((1..count).map_while(|_| field()));
        command.env_clear().current_dir(directory).process_group(0);
        command.stdin(Stdio::inherit()).stdout(prints).stderr(complains);
        while let Some(variable) = field() {
            let variable = variable.as_bytes();
            let at = variable.iter().position(|byte| *byte == b'=')?;
            let name = &variable[..at];
            let value = &variable[at + 1..];
            command.env(OsStr::from_bytes(name), OsStr::from_bytes(value));
        }
        let start = || self.files.as_they_were(|| command.spawn());
        let started = within(Path::new(&about.cgroup), start);
        let watched = started.and_then(|mut child| {
            let process = self.watch(id, &child);
            if process.is_err() {
                // A program that cannot be watched must not run.
                child.kill()?;
                child.wait()?;
            }
            Ok((child, process?))
        });
        match watched {
            Ok((child, process)) => {
                let reads = [out, err];
                let is_asked_to_end = false;
                let running = RunningProgram {
                    about,
                    child,
                    process,
                    tells,
                    reads,
                    command,
                    is_asked_to_end,
                };
                self.running.insert(id, running);
            }
            Err(error) => {
                tell(tells, REFUSED, error.raw_os_error().unwrap_or(Errno::INVAL.raw_os_error()));
                self.ended.insert(id, ExitedProgram { about, pid: 0, code: NOT_STARTED });
            }
        }
        Some(())
    }

    fn watch(&self, id: u64, child: &Child) -> io::Result<OwnedFd> {
        let process = pidfd_open(Pid::from_child(child), PidfdFlags::empty())?;
        let event = epoll::EventData::new_u64(id);
        epoll::add(&self.epoll, &process, event, epoll::EventFlags::IN)?;
        Ok(process)
    }

    fn has_ended(&mut self, id: u64) {
        let Some(running) = self.running.remove(&id) else { return };
        let RunningProgram { about, mut child, process, tells, reads, command, is_asked_to_end } =
            running;
        // Closing is not enough: a process that is being started may hold a copy.
        let _ = epoll::delete(&self.epoll, &process);
        if is_asked_to_end {
            // The process id is still reserved, because the child is not reaped. No process of the
            // group may survive.
            let _ = kill_process_group(Pid::from_child(&child), Signal::KILL);
        }
        // If another thread reaped the child, its status is unknown; the other programs must not
        // suffer.
        let Ok(status) = child.wait() else { return };
        drop((command, reads));
        if self.socket.is_some() {
            tell(tells, ENDED, status.into_raw());
            let pid = child.id().cast_signed();
            self.ended.insert(id, ExitedProgram { about, pid, code: code(status) });
        } else {
            about.write_end(status);
        }
    }

    fn signal(&mut self, id: Option<u64>, signal: Option<i32>) {
        let signal = signal.and_then(Signal::from_named_raw);
        if let Some((running, signal)) = id.and_then(|id| self.running.get_mut(&id)).zip(signal) {
            running.is_asked_to_end = true;
            // The program may have ended, but its process id is reserved until it is reaped.
            let _ = kill_process_group(Pid::from_child(&running.child), signal);
        }
    }

    fn who(&self, id: u64) -> Option<(i32, u64)> {
        if let Some(running) = self.running.get(&id) {
            return Some((running.pid(), running.start()));
        }
        let ended = self.ended.get(&id).filter(|ended| ended.pid != 0)?;
        Some((ended.pid, ended.about.start()))
    }

    /// The controller is gone. Remaining start requests are dropped: no process would know of their
    /// programs.
    fn leave(&mut self, buffer: &mut [u8]) -> io::Result<()> {
        while self.listen(buffer, false)? {}
        if let Some(socket) = self.socket.take() {
            epoll::delete(&self.epoll, &socket)?;
        }
        let stat = fs_err::read("/proc/self/stat")?;
        let stat = String::from_utf8_lossy(&stat);
        let head = format!("{} {}", self.ledger, stat.trim_end());
        for running in self.running.values() {
            let [out, err] = running.reads.each_ref().map(AsRawFd::as_raw_fd);
            let line = format!("{} {} {out} {err}\n", running.pid(), running.start());
            running.about.write(&head, &line);
        }
        for ended in self.ended.drain().map(|(_, ended)| ended) {
            let start = ended.about.start();
            ended.about.write(&head, &format!("{} {start} 0 0\n{}\n", ended.pid, ended.code));
        }
        if let Some(own) = &mut self.own {
            // If the disk is full, a later process waits longer; the programs go on.
            let _ = writeln!(own, "{LEFT}");
        }
        Ok(())
    }
}

impl RunningProgram {
    fn pid(&self) -> i32 {
        self.child.id().cast_signed()
    }

    fn start(&self) -> u64 {
        let stat = fs_err::read(format!("/proc/{}/stat", self.pid())).unwrap_or_default();
        let process = Process::read(&String::from_utf8_lossy(&stat));
        process.map_or_else(|| self.about.start(), |process| process.start)
    }
}

impl About {
    /// Start time in clock ticks, estimated from the time of the request.
    fn start(&self) -> u64 {
        let uptime = fs_err::read_to_string("/proc/uptime").unwrap_or_default();
        let seconds = uptime.split(' ').next().and_then(|text| text.parse::<f64>().ok());
        let since = seconds.unwrap_or_default() - self.began.elapsed().as_secs_f64();
        let since = std::time::Duration::try_from_secs_f64(since).unwrap_or_default();
        u64::try_from(since.as_millis()).unwrap_or_default() * TICKS / 1000
    }

    /// Writes the note. On failure the outcome of the program is lost.
    fn write(&self, head: &str, rest: &str) {
        let note =
            OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&self.note);
        let cgroup = self.cgroup.to_string_lossy();
        let _ = note.and_then(|mut note| write!(note, "{head}\n{cgroup}\n{rest}"));
    }

    fn write_end(&self, status: ExitStatus) {
        // If the note was removed, no process needs the exit code.
        let note = OpenOptions::new().append(true).open(&self.note);
        let _ = note.and_then(|mut note| writeln!(note, "{}", code(status)));
    }
}

/// Starts a program within a control group: this process enters the group, starts the program and
/// returns. Moving a running program takes several times as long, and children started before the
/// move would stay outside.
fn within<T>(cgroup: &Path, start: impl FnOnce() -> T) -> T {
    let open = |cgroup: &Path| OpenOptions::new().write(true).open(cgroup.join("cgroup.procs"));
    let doors = cgroup.parent().and_then(|home| Some((open(cgroup).ok()?, open(home).ok()?)));
    let Some((mut there, mut back)) = doors else { return start() };
    // If this fails, the processes are found by other traces.
    let _ = there.write_all(b"0");
    let started = start();
    let _ = back.write_all(b"0");
    started
}

/// The limits of open files, of this process and of its programs.
struct Files {
    own: Rlimit,
    theirs: Rlimit,
}

impl Files {
    /// Raises the limit of this process, which needs several descriptors per program. Programs keep
    /// the original limit.
    fn most() -> Self {
        let theirs = getrlimit(Resource::Nofile);
        let own = Rlimit { current: theirs.maximum, ..theirs };
        let files = Self { own, theirs };
        // With a lower limit fewer programs can run.
        let _ = setrlimit(Resource::Nofile, files.own);
        files
    }

    fn as_they_were<T>(&self, start: impl FnOnce() -> T) -> T {
        // The same limits were accepted before.
        let _ = setrlimit(Resource::Nofile, self.theirs);
        let started = start();
        let _ = setrlimit(Resource::Nofile, self.own);
        started
    }
}

fn tell(tells: OwnedFd, kind: u8, value: i32) {
    let mut answer = [kind; ANSWER];
    answer[1..].copy_from_slice(&value.to_le_bytes());
    // The controller may be gone.
    let _ = std::fs::File::from(tells).write_all(&answer);
}

fn read_large(descriptor: OwnedFd) -> io::Result<Vec<u8>> {
    let mut file = std::fs::File::from(descriptor);
    file.rewind()?;
    let mut request = Vec::new();
    file.take(MAX_REQUEST as u64).read_to_end(&mut request)?;
    Ok(request)
}

fn text(field: Option<&[u8]>) -> &str {
    field.and_then(|field| str::from_utf8(field).ok()).unwrap_or_default()
}

fn number<T: std::str::FromStr>(field: Option<&[u8]>) -> Option<T> {
    text(field).parse().ok()
}
