//! The machine's half of [`super`]: fetches orders, begins each attempt at most once, and repeats
//! each result until the controller acknowledges it. The worker never decides which work is next.

use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::{
    CompressedOutput, HEARTBEAT, MAX_MESSAGE, Orders, WHILE_BUSY, WorkId, WorkResult, WorkerReport,
};
use crate::action::{Cancel, Catalog, Secrets};
use crate::execute::{
    AttemptPrograms, BaseDirectory, Durable, ExecutionSite, Job, JobKind, JobOutcome, Ledger,
    LedgerEntry, MAX_THREADS, Outputs, ProgramDirectory, WorkerPool, file_name,
};
use crate::plan::StepId;
use crate::program::Programs as _;
use crate::record::{End, MAX_REASON, MAX_RECEIPT};

/// First pause after a message that did not get through; each further failure doubles the pause,
const FIRST_PAUSE: Duration = Duration::from_millis(200);
/// up to this maximum.
const LONGEST_PAUSE: Duration = Duration::from_secs(20);
/// Shortest interval between messages when the controller answers at once without orders.
const AT_LEAST: Duration = Duration::from_millis(500);
/// Largest encoded result without its output.
const MAX_PLAIN: usize = MAX_REASON + MAX_RECEIPT + 1024;

/// Carries messages between worker and controller.
pub trait Transport {
    /// Sends a report to the controller and returns its orders. The answer may take as long as a
    /// heartbeat if there are no orders.
    fn exchange(&mut self, report: &WorkerReport) -> Result<Orders, Unreachable>;
}

/// The exchange failed. The report may or may not have arrived.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the controller cannot be reached: {0}")]
pub struct Unreachable(pub String);

/// Everything a worker needs for its work.
#[derive(Clone)]
pub struct WorkerSetup {
    pub catalog: Catalog,
    pub secrets: Arc<dyn Secrets>,
    pub base: BaseDirectory,
    /// A directory that only this worker uses, and that survives restarts.
    pub dir: PathBuf,
    /// The command line that starts [`crate::execute::supervisor::main`]; without it each program
    /// gets a shell.
    pub supervisor: Option<Vec<OsString>>,
}

impl std::fmt::Debug for WorkerSetup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WorkerSetup").field("dir", &self.dir).finish_non_exhaustive()
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct FinishedWork {
    outcome: JobOutcome,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    output: Option<CompressedOutput>,
}

/// Does the work of one machine.
pub struct Worker {
    setup: WorkerSetup,
    kept: Arc<ProgramDirectory>,
    state: Arc<Mutex<State>>,
    workers: WorkerPool,
    memory: Memory,
    number: u64,
    woken: Receiver<()>,
    wake: Sender<()>,
    /// The lock of the directory, held for the lifetime of the worker.
    _lock: std::fs::File,
}

struct State {
    ledger: Ledger<FinishedWork>,
    running: HashMap<WorkId, Cancel>,
    /// Begun in an earlier life, with unknown outcome.
    lost: Vec<WorkId>,
}

impl std::fmt::Debug for Worker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Worker").field("memory", &self.memory).finish_non_exhaustive()
    }
}

impl Worker {
    pub fn new(setup: WorkerSetup) -> io::Result<Self> {
        // Inputs and outputs of tasks may be confidential.
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&setup.dir)?;
        let lock = lock(&setup.dir)?;
        let memory = Memory::open(&setup.dir)?;
        let ledger: Ledger<FinishedWork> =
            Ledger::open(&setup.dir.join("ledger"), Durable::Machine)?;
        let begun = |(id, known): (&str, &LedgerEntry<FinishedWork>)| {
            matches!(known, LedgerEntry::Begun).then(|| WorkId(id.to_owned()))
        };
        let begun: Vec<WorkId> = ledger.iter().filter_map(begun).collect();
        let (wake, woken) = channel();
        let state = State { ledger, running: HashMap::new(), lost: Vec::new() };
        let worker = Self {
            kept: Arc::new(ProgramDirectory::new(&setup.dir, setup.supervisor.clone())?),
            setup,
            state: Arc::new(Mutex::new(state)),
            workers: WorkerPool::new(MAX_THREADS),
            memory,
            number: 0,
            woken,
            wake,
            _lock: lock,
        };
        let open: HashSet<String> = begun.iter().map(|id| file_name(&id.0)).collect();
        worker.kept.tidy_up(|attempt| open.contains(attempt)).end();
        for id in begun {
            worker.find(id);
        }
        Ok(worker)
    }

    /// Continues work that an earlier life began. If its job file is missing, the outcome is lost,
    /// and its programs are ended so that none runs beside later work.
    fn find(&self, id: WorkId) {
        let cancel = Cancel::default();
        self.state.lock().running.insert(id.clone(), cancel.clone());
        let setup = self.setup.clone();
        let state = Arc::clone(&self.state);
        let wake = self.wake.clone();
        let programs = AttemptPrograms::again(&self.kept);
        self.workers.send(move || {
            let job = fs_err::read(job_path(&setup, &id)).ok();
            let ended = match job.and_then(|bytes| serde_json::from_slice::<Job>(&bytes).ok()) {
                Some(job) => {
                    let go_on = |site: &ExecutionSite| site.go_on(&job, &cancel, &programs, || {});
                    with_output(&setup, &job, go_on)
                }
                None => programs.end(&id.0).err().map(|survivors| FinishedWork {
                    outcome: JobOutcome::Ran {
                        end: End::Unknown { reason: survivors.to_string() },
                    },
                    output: None,
                }),
            };
            let mut state = state.lock();
            state.running.remove(&id);
            match ended {
                // The result is reported even if the ledger cannot be written; only a restart could
                // lose it.
                Some(ended) => _ = state.ledger.end(&id.0, ended),
                None => state.lost.push(id.clone()),
            }
            drop(state);
            programs.forget(&id.0);
            // A leftover job file is harmless.
            let _ = fs_err::remove_file(job_path(&setup, &id));
            // The receiver is gone when the worker ends.
            let _ = wake.send(());
        });
    }

    /// Works until `cancel` is set. Programs that run at that time are left running.
    pub fn work(&mut self, transport: &mut impl Transport, cancel: &Cancel) {
        let mut pause = FIRST_PAUSE;
        while !cancel.is_cancelled() {
            let began = Instant::now();
            if let Ok(is_idle) = self.exchange(transport) {
                pause = FIRST_PAUSE;
                if self.is_busy() {
                    self.wait(WHILE_BUSY, cancel);
                } else if is_idle {
                    self.wait(AT_LEAST.saturating_sub(began.elapsed()), cancel);
                }
            } else {
                self.wait(pause, cancel);
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
        }
    }

    /// Whoever sends to it lets the worker report without delay.
    pub(crate) fn waker(&self) -> Sender<()> {
        self.wake.clone()
    }

    /// Whether any work runs.
    pub fn is_busy(&self) -> bool {
        !self.state.lock().running.is_empty()
    }

    /// Waits until some work has ended, or until `time` is over.
    fn wait(&self, time: Duration, cancel: &Cancel) {
        let until = Instant::now() + time;
        while !cancel.is_cancelled() && Instant::now() < until {
            match self.woken.recv_timeout(Duration::from_millis(50)) {
                Ok(()) | Err(RecvTimeoutError::Disconnected) => return,
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    /// Exchanges messages once and carries out the orders. Returns `true` if there were none.
    pub fn exchange(&mut self, transport: &mut impl Transport) -> Result<bool, Unreachable> {
        while self.woken.try_recv().is_ok() {}
        let report = self.report();
        let orders = transport.exchange(&report)?;
        let is_idle = orders.is_empty();
        self.obey(orders);
        Ok(is_idle)
    }

    pub(super) fn report(&mut self) -> WorkerReport {
        self.number += 1;
        let state = self.state.lock();
        let ended = |(id, known): (&str, &LedgerEntry<FinishedWork>)| match known {
            LedgerEntry::Ended(FinishedWork { outcome, output }) => Some(WorkResult {
                id: WorkId(id.to_owned()),
                outcome: outcome.clone(),
                output: output.clone(),
            }),
            _ => None,
        };
        let mut results: Vec<WorkResult> = state.ledger.iter().filter_map(ended).collect();
        results.sort_by(|a, b| a.id.cmp(&b.id));
        // A message has a size limit; results that do not fit are sent later.
        let mut size = 0;
        let mut unsaid = Vec::new();
        results.retain(|result| {
            size += MAX_PLAIN + result.output.as_ref().map_or(0, |output| output.0.len());
            let fits = size <= MAX_MESSAGE;
            if !fits {
                unsaid.push(result.id.clone());
            }
            fits
        });
        let wait = if state.running.is_empty() { HEARTBEAT } else { Duration::ZERO };
        let mut running: Vec<WorkId> = state.running.keys().cloned().chain(unsaid).collect();
        running.sort();
        WorkerReport {
            memory: self.memory.name.clone(),
            life: self.memory.life,
            number: self.number,
            wait_ms: u64::try_from(wait.as_millis()).unwrap_or(0),
            running,
            results,
            lost: state.lost.clone(),
            actions: self.setup.catalog.iter().map(|(name, _)| name.to_owned()).collect(),
        }
    }

    pub(super) fn obey(&self, orders: Orders) {
        let mut state = self.state.lock();
        for id in &orders.acknowledged {
            state.lost.retain(|lost| lost != id);
            // If the ledger cannot be written, the result is reported and acknowledged again.
            let _ = state.ledger.acknowledge(&id.0);
        }
        for id in &orders.kill {
            if let Some(cancel) = state.running.get(id) {
                cancel.cancel();
            }
        }
        drop(state);
        for job in orders.jobs {
            self.begin(job);
        }
    }

    /// Begins a job, unless it was begun before. A check can be repeated after it has ended.
    fn begin(&self, job: Job) {
        let id = WorkId::of(&job);
        let cancel = Cancel::default();
        let mut state = self.state.lock();
        if state.running.contains_key(&id) {
            return;
        }
        if job.what == JobKind::Start {
            match state.ledger.begin(&id.0) {
                // Without the job file a later life could not continue and would report the work as
                // lost.
                Ok(true) => _ = keep(&self.setup, &id, &job),
                Ok(false) => {
                    // The controller would not repeat the order if it had the result, and the
                    // result is not here either. If the ledger has an outcome, the next report
                    // contains it.
                    let is_over = matches!(state.ledger.get(&id.0), Some(LedgerEntry::Ended(_)));
                    if !is_over && !state.lost.contains(&id) {
                        state.lost.push(id);
                    }
                    return;
                }
                // Without a ledger entry the attempt could begin twice, so it must not begin.
                Err(error) => {
                    let reason = format!("cannot save progress: {error}");
                    let ended = FinishedWork {
                        outcome: JobOutcome::broken(job.what, reason),
                        output: None,
                    };
                    let _ = state.ledger.end(&id.0, ended);
                    return;
                }
            }
        } else if matches!(state.ledger.get(&id.0), Some(LedgerEntry::Ended(_))) {
            return;
        }
        state.running.insert(id.clone(), cancel.clone());
        drop(state);
        let setup = self.setup.clone();
        let state = Arc::clone(&self.state);
        let wake = self.wake.clone();
        let programs = AttemptPrograms::new(&self.kept).within(&job.step);
        self.workers.send(move || {
            let carry_out = |site: &ExecutionSite| {
                Some(site.carry_out(&job, &cancel, &programs)).filter(|outcome| !outcome.is_lost())
            };
            let ended = with_output(&setup, &job, carry_out);
            let mut state = state.lock();
            state.running.remove(&id);
            match ended {
                // The result is reported even if the ledger cannot be written; only a restart could
                // lose it.
                Some(ended) => _ = state.ledger.end(&id.0, ended),
                None => state.lost.push(id.clone()),
            }
            drop(state);
            programs.forget(&job.attempt_id());
            // A leftover job file is harmless.
            let _ = fs_err::remove_file(job_path(&setup, &id));
            // The receiver is gone when the worker ends.
            let _ = wake.send(());
        });
    }
}

/// Locks the directory: two workers with one ledger would begin attempts twice.
fn lock(dir: &Path) -> io::Result<std::fs::File> {
    /// A program that is being started inherits the lock for a moment, even after its worker has
    /// ended.
    const ANSWER_DEADLINE: Duration = Duration::from_secs(2);
    let options = fs_err::File::options().create(true).truncate(false).write(true).clone();
    let file = options.open(dir.join("lock"))?.into_parts().0;
    let until = Instant::now() + ANSWER_DEADLINE;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(std::fs::TryLockError::Error(error)) => return Err(error),
            Err(std::fs::TryLockError::WouldBlock) if Instant::now() < until => {
                std::thread::sleep(Duration::from_millis(20));
            }
            Err(std::fs::TryLockError::WouldBlock) => {
                let said = format!(
                    "another worker uses `{}`; give each worker its own directory",
                    dir.display()
                );
                return Err(io::Error::other(said));
            }
        }
    }
}

fn job_path(setup: &WorkerSetup, id: &WorkId) -> PathBuf {
    setup.dir.join("jobs").join(file_name(&id.0))
}

fn keep(setup: &WorkerSetup, id: &WorkId, job: &Job) -> io::Result<()> {
    let jobs = setup.dir.join("jobs");
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(jobs)?;
    fs_err::write(job_path(setup, id), serde_json::to_vec(job)?)
}

/// Carries out a job and returns its outcome together with its output.
fn with_output(
    setup: &WorkerSetup,
    job: &Job,
    carry_out: impl FnOnce(&ExecutionSite) -> Option<JobOutcome>,
) -> Option<FinishedWork> {
    let name = WorkId::of(job).0.replace('/', "-");
    let dir = setup.dir.join("output").join(name);
    let outputs = Outputs::in_dir(&dir);
    let site = ExecutionSite {
        catalog: setup.catalog.clone(),
        secrets: Arc::clone(&setup.secrets),
        outputs: outputs.clone(),
        base: setup.base.clone(),
    };
    let outcome = carry_out(&site)?;
    let output = read(&outputs, job.number, job.attempt);
    if output.is_some() {
        // From here on the output is part of the result.
        let _ = fs_err::remove_dir_all(&dir);
    }
    Some(FinishedWork { outcome, output })
}

fn read(outputs: &Outputs, step: StepId, attempt: u32) -> Option<CompressedOutput> {
    CompressedOutput::new(&outputs.read(step, attempt).ok()??)
}

/// Identifies the durable state of a worker, and counts the worker's starts with it.
#[derive(Debug, Serialize, Deserialize)]
struct Memory {
    /// Random, so that no two memories share a name. Work that was handed out to another memory may
    /// have begun there.
    name: String,
    life: u64,
}

impl Memory {
    fn open(dir: &Path) -> io::Result<Self> {
        let path = dir.join("memory");
        let known = match fs_err::read(&path) {
            // Without its ledger the memory is worthless: attempts could begin twice.
            Ok(bytes) if dir.join("ledger").exists() => serde_json::from_slice(&bytes).ok(),
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => None,
        };
        let mut memory = match known {
            Some(memory) => memory,
            None => Self { name: format!("{:016x}", getrandom::u64()?), life: 0 },
        };
        memory.life += 1;
        let part = dir.join("memory.new");
        fs_err::write(&part, serde_json::to_vec(&memory)?)?;
        fs_err::File::open(&part)?.sync_all()?;
        fs_err::rename(part, path)?;
        fs_err::File::open(dir)?.sync_all()?;
        Ok(memory)
    }
}
