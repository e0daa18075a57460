//! The machine's half: a worker whose controller is at the other end of standard input and output.
//!
//! When the connection ends, the program ends as well; if work is running then, after this work,
//! whose results a later session fetches. A later session does not wait for that: it ends this
//! program, and its worker continues the work.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use parking_lot::Mutex;
use rustix::process::{Pid, Signal, kill_process};
use sha2::{Digest as _, Sha256};

use super::link::{SILENCE, TRY_AGAIN};
use super::plugins::{hex, is_whole};
use super::{Begin, FromMachine, ToMachine, Values, home};
use crate::action::{Cancel, Catalog, Failure, Secrets};
use crate::execute::{BaseDirectory, file_name};
use crate::pull::{MAX_MESSAGE, Orders, Transport, Unreachable, Worker, WorkerReport, WorkerSetup};
use crate::record::FailureKind;

/// How often the end of work is looked for, without a connection.
const LOOK: Duration = Duration::from_millis(50);
/// How long a predecessor may take to end by itself, and after it was killed.
const GONE: Duration = Duration::from_secs(1);

/// The controller's part of the setup of a session.
#[derive(Debug)]
pub struct Received {
    /// Directory of the controller's plug-ins; `None` if it has none.
    pub plugins: Option<PathBuf>,
    /// They may run where they cannot be isolated.
    pub are_unconfined: bool,
    /// The directory of the run, which plug-ins must not see.
    pub dir: PathBuf,
}

/// Does the work of this machine for the controller at the other end of standard input and output.
/// `supervisor` is the command line that starts [`crate::execute::supervisor::main`].
pub fn serve(
    catalog: impl FnOnce(&Received) -> Catalog,
    supervisor: Option<Vec<OsString>>,
) -> ExitCode {
    match try_serve(catalog, supervisor) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(TRY_AGAIN)
        }
    }
}

fn try_serve(
    catalog: impl FnOnce(&Received) -> Catalog,
    supervisor: Option<Vec<OsString>>,
) -> io::Result<()> {
    let mut input = BufReader::new(io::stdin());
    let ToMachine::Begin(begin) = receive(&mut input)? else { return Err(no_sense()) };
    let home = home().ok_or_else(|| io::Error::other("HOME is not set"))?;
    let dir = home.join("runs").join(file_name(&begin.run));
    make_private(&dir)?;
    let dir = fs_err::canonicalize(dir)?;
    // A directory in use is not removed as old.
    fs_err::File::open(&dir)?.set_modified(SystemTime::now())?;
    end_predecessor(&dir)?;
    let plugins = take_plugins(&begin, &home.join("plugins"), &mut input)?;
    let are_unconfined = begin.are_unconfined;
    let catalog = catalog(&Received { plugins, are_unconfined, dir: dir.clone() });
    let secrets = Arc::new(SentSecrets(Mutex::new(begin.secrets)));
    let setup = WorkerSetup {
        catalog,
        secrets: Arc::clone(&secrets) as Arc<dyn Secrets>,
        base: BaseDirectory::Machine,
        dir: dir.clone(),
        supervisor,
    };
    let mut worker = Worker::new(setup)?;
    let (orders, ordered) = channel();
    let cancel = Cancel::default();
    let is_over = Arc::new(AtomicBool::new(false));
    let wake = worker.waker();
    let ended = (cancel.clone(), Arc::clone(&is_over));
    std::thread::spawn(move || {
        read(&mut input, &orders, &wake, &secrets, &ended.1);
        ended.0.cancel();
    });
    worker.work(&mut Session { ordered, cancel: cancel.clone() }, &cancel);
    if is_over.load(Ordering::Relaxed) && !worker.is_busy() {
        drop(worker);
        return fs_err::remove_dir_all(dir);
    }
    fs_err::write(dir.join("left"), std::process::id().to_string())?;
    while worker.is_busy() {
        std::thread::sleep(LOOK);
    }
    Ok(())
}

/// Reads the messages of the controller, to the end.
fn read(
    input: &mut impl BufRead,
    orders: &Sender<Orders>,
    wake: &Sender<()>,
    secrets: &SentSecrets,
    is_over: &AtomicBool,
) {
    while let Ok(message) = receive(input) {
        match message {
            ToMachine::Secrets(more) => secrets.0.lock().extend(more),
            // The receivers are gone when the session ends.
            ToMachine::Orders(some) => _ = orders.send(some),
            ToMachine::Ring => _ = wake.send(()),
            ToMachine::Forget => is_over.store(true, Ordering::Relaxed),
            ToMachine::Begin(_) | ToMachine::Plugins(_) => return,
        }
    }
}

fn receive(input: &mut impl BufRead) -> io::Result<ToMachine> {
    let mut line = Vec::new();
    // Escapes of JSON may make a message longer.
    input.by_ref().take(2 * MAX_MESSAGE as u64).read_until(b'\n', &mut line)?;
    if !line.ends_with(b"\n") {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    serde_json::from_slice(&line).map_err(|_| no_sense())
}

fn send(message: &FromMachine) -> io::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    let mut out = io::stdout().lock();
    out.write_all(&line)?;
    out.flush()
}

fn no_sense() -> io::Error {
    io::Error::other(
        "the message on standard input is not from a controller, and only a controller starts this program",
    )
}

/// The connection to the controller.
struct Session {
    ordered: Receiver<Orders>,
    cancel: Cancel,
}

impl Transport for Session {
    fn exchange(&mut self, report: &WorkerReport) -> Result<Orders, Unreachable> {
        let answered =
            send(&FromMachine::Report(report.clone())).map_err(|error| error.to_string());
        let answered = answered.and_then(|()| {
            // The controller answers each report within a heartbeat.
            self.ordered.recv_timeout(SILENCE).map_err(|error| error.to_string())
        });
        answered.map_err(|reason| {
            // Another session follows, and not another report.
            self.cancel.cancel();
            Unreachable(reason)
        })
    }
}

/// The secrets that came from the controller. They are never on a disk.
struct SentSecrets(Mutex<Values>);

impl Secrets for SentSecrets {
    fn get(&self, reference: &str) -> Result<String, Failure> {
        let value = self.0.lock().get(reference).cloned();
        let unsent = || Err(format!("secret `{reference}` did not come from the controller"));
        let internal = |reason| Failure { kind: FailureKind::Internal, reason };
        value.unwrap_or_else(unsent).map_err(internal)
    }
}

/// Ends the program of an earlier session that stayed for its work.
fn end_predecessor(dir: &Path) -> io::Result<()> {
    let left = dir.join("left");
    let pid = fs_err::read_to_string(&left).ok().and_then(|text| text.trim().parse().ok());
    if let Some(pid) = pid.and_then(Pid::from_raw)
        && is_ours(pid, dir)
    {
        // Work that is no program cannot be continued, but may be about to end.
        if !is_gone(pid, dir) {
            kill_process(pid, Signal::KILL)?;
            is_gone(pid, dir);
        }
    }
    match fs_err::remove_file(left) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn is_gone(pid: Pid, dir: &Path) -> bool {
    let until = Instant::now() + GONE;
    while is_ours(pid, dir) && Instant::now() < until {
        std::thread::sleep(LOOK);
    }
    !is_ours(pid, dir)
}

/// Whether a process holds the lock of the directory, and so is not another one with an old number.
fn is_ours(pid: Pid, dir: &Path) -> bool {
    let descriptors = fs_err::read_dir(format!("/proc/{}/fd", pid.as_raw_pid()));
    let lock = dir.join("lock");
    let mut links = descriptors.into_iter().flatten().flatten();
    links.any(|link| fs_err::read_link(link.path()).is_ok_and(|target| target == lock))
}

/// Makes sure that the plug-ins of the controller are here, and returns their directory.
fn take_plugins(
    begin: &Begin,
    base: &Path,
    input: &mut impl BufRead,
) -> io::Result<Option<PathBuf>> {
    if begin.plugins.is_empty() {
        return Ok(None);
    }
    let mut set = Sha256::new();
    begin.plugins.iter().for_each(|(name, digest)| set.update(format!("{name} {digest}\n")));
    let dir = base.join(hex(set));
    make_private(&dir)?;
    fs_err::File::open(&dir)?.set_modified(SystemTime::now())?;
    let is_missing = |(name, digest): &(&String, &String)| !is_whole(&dir.join(name), digest);
    let missing = begin.plugins.iter().filter(is_missing).map(|(name, _)| name.clone());
    let missing: BTreeSet<String> = missing.collect();
    if missing.is_empty() {
        return Ok(Some(dir));
    }
    send(&FromMachine::Missing(missing.clone()))?;
    let ToMachine::Plugins(content) = receive(input)? else { return Err(no_sense()) };
    for name in &missing {
        put(&dir.join(name), &begin.plugins[name], &content)?;
    }
    Ok(Some(dir))
}

/// Writes a plug-in, whole or not at all.
fn put(path: &Path, digest: &str, content: &BTreeMap<String, String>) -> io::Result<()> {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let bytes = content.get(name).and_then(|text| BASE64.decode(text).ok());
    let bytes = bytes.filter(|bytes| hex(Sha256::new_with_prefix(bytes)) == digest);
    let bytes = bytes.ok_or_else(|| {
        io::Error::other(format!("the plug-in `{name}` was changed while it was sent"))
    })?;
    let new = path.with_file_name(format!(".{name}.{}", std::process::id()));
    let mut file = std::fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o700)
        .open(&new)?;
    file.write_all(&bytes)?;
    drop(file);
    fs_err::rename(new, path)
}

fn make_private(dir: &Path) -> io::Result<()> {
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)
}
