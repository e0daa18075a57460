//! The machine's side: comes for work, does it once, and says what came of it until that is kept.

use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::{HEARTBEAT, MAX_MESSAGE, Orders, Packed, Report, WHILE_BUSY, WorkId, WorkResult};
use crate::action::{Cancel, Catalog, Secrets};
use crate::execute::{
    Came, Crew, Durable, Job, Kept, Known, Ledger, MAX_REASON, MAX_RECEIPT, MAX_THREADS, Outputs,
    Place, Programs, Site, What, file_name,
};
use crate::plan::StepId;
use crate::record::End;

/// After a message that did not get through, from this on twice as long each time,
const FIRST_PAUSE: Duration = Duration::from_millis(200);
/// up to this.
const LONGEST_PAUSE: Duration = Duration::from_secs(20);
/// Between messages, where they are answered at once though there is nothing to do.
const AT_LEAST: Duration = Duration::from_millis(500);
/// A result without what was printed.
const MAX_PLAIN: usize = MAX_REASON + MAX_RECEIPT + 1024;

/// How messages travel.
pub trait Transport {
    /// Says something to the controller and brings back what it answers. The answer may take as long
    /// as a heartbeat if there is nothing to do.
    fn exchange(&mut self, report: &Report) -> Result<Orders, Unreachable>;
}

/// Nobody knows whether the message arrived.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the controller cannot be reached: {0}")]
pub struct Unreachable(pub String);

/// With what a machine does its work.
#[derive(Clone)]
pub struct WorkerSetup {
    pub catalog: Catalog,
    pub secrets: Arc<dyn Secrets>,
    pub place: Place,
    /// A directory of the worker's own, kept over restarts.
    pub dir: PathBuf,
    /// How [`crate::execute::keeper::main`] is started; without it each program has a shell.
    pub keeper: Option<Vec<OsString>>,
}

impl std::fmt::Debug for WorkerSetup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WorkerSetup").field("dir", &self.dir).finish_non_exhaustive()
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Ended {
    came: Came,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    output: Option<Packed>,
}

/// Does the work of one machine.
pub struct Worker {
    setup: WorkerSetup,
    kept: Arc<Kept>,
    shared: Arc<Shared>,
    crew: Crew,
    memory: Memory,
    number: u64,
    woken: Receiver<()>,
    wake: Sender<()>,
    /// Held as long as this lives.
    _lock: std::fs::File,
}

struct Shared {
    state: Mutex<State>,
}

struct State {
    ledger: Ledger<Ended>,
    running: HashMap<WorkId, Cancel>,
    /// Begun in another life.
    lost: Vec<WorkId>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for Worker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Worker").field("memory", &self.memory).finish_non_exhaustive()
    }
}

impl Worker {
    pub fn new(setup: WorkerSetup) -> io::Result<Self> {
        // Inputs and output of tasks are nobody else's business.
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&setup.dir)?;
        let lock = lock(&setup.dir)?;
        let memory = Memory::open(&setup.dir)?;
        let ledger: Ledger<Ended> = Ledger::open(&setup.dir.join("ledger"), Durable::Machine)?;
        let begun = |(id, known): (&str, &Known<Ended>)| {
            matches!(known, Known::Begun).then(|| WorkId(id.to_owned()))
        };
        let begun: Vec<WorkId> = ledger.iter().filter_map(begun).collect();
        let (wake, woken) = channel();
        let state = Mutex::new(State { ledger, running: HashMap::new(), lost: Vec::new() });
        let worker = Self {
            kept: Arc::new(Kept::new(&setup.dir, setup.keeper.clone())?),
            setup,
            shared: Arc::new(Shared { state }),
            crew: Crew::new(MAX_THREADS),
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

    /// Goes on with something that another life has begun. If nobody knows what that was, it is lost;
    /// nothing of it runs beside what comes next.
    fn find(&self, id: WorkId) {
        let cancel = Cancel::default();
        self.shared.lock().running.insert(id.clone(), cancel.clone());
        let (setup, shared, wake) =
            (self.setup.clone(), Arc::clone(&self.shared), self.wake.clone());
        let programs = Programs::again(&self.kept);
        self.crew.send(move || {
            let job = fs_err::read(job_path(&setup, &id)).ok();
            let ended = match job.and_then(|bytes| serde_json::from_slice::<Job>(&bytes).ok()) {
                Some(job) => {
                    let go_on = |site: &Site| site.go_on(&job, &cancel, &programs, || {});
                    with_output(&setup, &job, go_on)
                }
                None => programs.end(&id.0).err().map(|reason| Ended {
                    came: Came::Ran { end: End::Unknown { reason } },
                    output: None,
                }),
            };
            let mut state = shared.lock();
            state.running.remove(&id);
            match ended {
                // It is said all the same; only a restart could lose it.
                Some(ended) => _ = state.ledger.end(&id.0, ended),
                None => state.lost.push(id.clone()),
            }
            drop(state);
            programs.forget(&id.0);
            // It is of no use, and does no harm.
            let _ = fs_err::remove_file(job_path(&setup, &id));
            // Nobody waits when the worker ends.
            let _ = wake.send(());
        });
    }

    /// Works until `cancel` says to end. What is under way then is left to itself.
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

    /// Whether something is under way.
    pub fn is_busy(&self) -> bool {
        !self.shared.lock().running.is_empty()
    }

    /// Until something has ended, or the time is over.
    fn wait(&self, time: Duration, cancel: &Cancel) {
        let until = Instant::now() + time;
        while !cancel.is_cancelled() && Instant::now() < until {
            match self.woken.recv_timeout(Duration::from_millis(50)) {
                Ok(()) | Err(RecvTimeoutError::Disconnected) => return,
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    /// Says what there is to say once, and does what is answered. `true` if there was nothing to do.
    pub fn exchange(&mut self, transport: &mut impl Transport) -> Result<bool, Unreachable> {
        while self.woken.try_recv().is_ok() {}
        let report = self.report();
        let orders = transport.exchange(&report)?;
        let is_idle = orders.is_empty();
        self.obey(orders);
        Ok(is_idle)
    }

    pub(super) fn report(&mut self) -> Report {
        self.number += 1;
        let state = self.shared.lock();
        let ended = |(id, known): (&str, &Known<Ended>)| match known {
            Known::Ended(Ended { came, output }) => Some(WorkResult {
                id: WorkId(id.to_owned()),
                came: came.clone(),
                output: output.clone(),
            }),
            _ => None,
        };
        let mut results: Vec<WorkResult> = state.ledger.iter().filter_map(ended).collect();
        results.sort_by(|a, b| a.id.cmp(&b.id));
        // Large ones one after the other: a message has a limit.
        let (mut size, mut unsaid) = (0, Vec::new());
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
        Report {
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
        let mut state = self.shared.lock();
        for id in &orders.acknowledged {
            state.lost.retain(|lost| lost != id);
            // What cannot be written now is said again, and acknowledged again.
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

    /// Begins a job, unless it was begun before. Looks can be repeated once they have ended.
    fn begin(&self, job: Job) {
        let id = WorkId::of(&job);
        let cancel = Cancel::default();
        let mut state = self.shared.lock();
        if state.running.contains_key(&id) {
            return;
        }
        if job.what == What::Start {
            match state.ledger.begin(&id.0) {
                // Without it another life could not go on, and would say that it is lost.
                Ok(true) => _ = keep(&self.setup, &id, &job),
                Ok(false) => {
                    // The controller has what came of it no more, or it would not say so; neither
                    // has this machine. How it ended is said anyway.
                    let is_over = matches!(state.ledger.get(&id.0), Some(Known::Ended(_)));
                    if !is_over && !state.lost.contains(&id) {
                        state.lost.push(id);
                    }
                    return;
                }
                // Nothing is begun that might be begun twice.
                Err(error) => {
                    let reason = format!("what is begun cannot be kept: {error}");
                    let ended = Ended { came: Came::broken(job.what, reason), output: None };
                    let _ = state.ledger.end(&id.0, ended);
                    return;
                }
            }
        } else if matches!(state.ledger.get(&id.0), Some(Known::Ended(_))) {
            return;
        }
        state.running.insert(id.clone(), cancel.clone());
        drop(state);
        let (setup, shared, wake) =
            (self.setup.clone(), Arc::clone(&self.shared), self.wake.clone());
        let programs = Programs::new(&self.kept).within(&job.step);
        self.crew.send(move || {
            let carry_out = |site: &Site| {
                Some(site.carry_out(&job, &cancel, &programs)).filter(|came| !came.is_lost())
            };
            let ended = with_output(&setup, &job, carry_out);
            let mut state = shared.lock();
            state.running.remove(&id);
            match ended {
                // It is said all the same; only a restart could lose it.
                Some(ended) => _ = state.ledger.end(&id.0, ended),
                None => state.lost.push(id.clone()),
            }
            drop(state);
            programs.forget(&job.attempt_id());
            // It is of no use, and does no harm.
            let _ = fs_err::remove_file(job_path(&setup, &id));
            // Nobody waits when the worker ends.
            let _ = wake.send(());
        });
    }
}

/// Two workers with one ledger would each begin what the other does not know of.
fn lock(dir: &Path) -> io::Result<std::fs::File> {
    /// A program that is just being started has it for a moment, also after its worker has ended.
    const PATIENCE: Duration = Duration::from_secs(2);
    let options = fs_err::File::options().create(true).truncate(false).write(true).clone();
    let file = options.open(dir.join("lock"))?.into_parts().0;
    let until = Instant::now() + PATIENCE;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(std::fs::TryLockError::Error(error)) => return Err(error),
            Err(std::fs::TryLockError::WouldBlock) if Instant::now() < until => {
                std::thread::sleep(Duration::from_millis(20));
            }
            Err(std::fs::TryLockError::WouldBlock) => {
                let said = format!("another worker uses `{}`; give each its own", dir.display());
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

/// What came of a job, with what it has printed.
fn with_output(
    setup: &WorkerSetup,
    job: &Job,
    carry_out: impl FnOnce(&Site) -> Option<Came>,
) -> Option<Ended> {
    let name = WorkId::of(job).0.replace('/', "-");
    let dir = setup.dir.join("output").join(name);
    let outputs = Outputs::in_dir(&dir);
    let site = Site {
        catalog: setup.catalog.clone(),
        secrets: Arc::clone(&setup.secrets),
        outputs: outputs.clone(),
        place: setup.place.clone(),
    };
    let came = carry_out(&site)?;
    let output = read(&outputs, job.number, job.attempt);
    if output.is_some() {
        // From here on it is in the result.
        let _ = fs_err::remove_dir_all(&dir);
    }
    Some(Ended { came, output })
}

fn read(outputs: &Outputs, step: StepId, attempt: u32) -> Option<Packed> {
    Packed::new(&outputs.read(step, attempt).ok()??)
}

/// In how many lives a directory has kept what the worker was told.
#[derive(Debug, Serialize, Deserialize)]
struct Memory {
    /// No other one has it, whatever the clock says: what was given to another memory may have begun.
    name: String,
    life: u64,
}

impl Memory {
    fn open(dir: &Path) -> io::Result<Self> {
        let path = dir.join("memory");
        let known = match fs_err::read(&path) {
            // Without the ledger it knows nothing.
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
