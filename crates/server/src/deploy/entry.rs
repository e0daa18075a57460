//! A run that is under way, as everybody but its own thread sees it: its records so far, and a way
//! to tell it something.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hoist_engine::drive::Journal;
use hoist_engine::journal::{FileJournal, JournalError};
use hoist_engine::{Event, Plan, Record, Run};
use tokio::sync::watch;

use super::folder::RunFile;
use super::view::View;

#[derive(Debug)]
pub(super) struct Entry {
    pub(super) file: RunFile,
    pub(super) plan: Arc<Plan>,
    state: Mutex<State>,
    /// How many records there are.
    count: watch::Sender<u64>,
    events: Sender<Event>,
    leaving: AtomicBool,
}

#[derive(Debug)]
struct State {
    records: Arc<Vec<Record>>,
    /// The run after so many of them.
    mirror: Option<(usize, Arc<Run>)>,
    /// Nothing goes on until somebody says something.
    waiting: bool,
}

impl Entry {
    pub(super) fn new(
        file: RunFile,
        plan: Arc<Plan>,
        records: Vec<Record>,
        events: Sender<Event>,
    ) -> Self {
        let count = watch::Sender::new(records.len() as u64);
        let state = State { records: Arc::new(records), mirror: None, waiting: false };
        let state = Mutex::new(state);
        Self { file, plan, state, count, events, leaving: AtomicBool::new(false) }
    }

    /// False when its thread has ended.
    pub(super) fn tell(&self, event: Event) -> bool {
        self.events.send(event).is_ok()
    }

    pub(super) fn sender(&self) -> Sender<Event> {
        self.events.clone()
    }

    pub(super) fn count(&self) -> watch::Receiver<u64> {
        self.count.subscribe()
    }

    /// From here on nothing is kept and nothing is begun.
    pub(super) fn leave(&self) {
        self.leaving.store(true, Ordering::SeqCst);
        self.tell(Event::Tick);
    }

    pub(super) fn is_leaving(&self) -> bool {
        self.leaving.load(Ordering::SeqCst)
    }

    pub(super) fn set_waiting(&self, waiting: bool) {
        self.lock().waiting = waiting;
        self.count.send_modify(|_| {});
    }

    /// Everything there is to see of it now.
    pub(super) fn view(&self) -> View {
        let (records, mirror, waiting) = {
            let state = self.lock();
            (Arc::clone(&state.records), state.mirror.clone(), state.waiting)
        };
        let run = match mirror {
            Some((count, run)) if count == records.len() => run,
            _ => {
                let run = Run::replay(&self.plan, records.iter());
                let run = Arc::new(run.expect("its own thread has just made these records"));
                self.lock().mirror = Some((records.len(), Arc::clone(&run)));
                run
            }
        };
        let (file, plan) = (self.file.clone(), Arc::clone(&self.plan));
        View { file, plan, records, run, waiting }
    }

    fn told(&self, records: &[Record]) {
        if records.is_empty() {
            return;
        }
        let mut state = self.lock();
        // Copied only while somebody looks at them.
        Arc::make_mut(&mut state.records).extend_from_slice(records);
        let count = state.records.len() as u64;
        drop(state);
        self.count.send_replace(count);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A journal whose records are shown as soon as they are durable.
#[derive(Debug)]
pub(super) struct Shown {
    pub(super) journal: FileJournal,
    pub(super) entry: Arc<Entry>,
}

impl Journal for Shown {
    fn append(&mut self, records: &[Record]) -> Result<(), JournalError> {
        if self.entry.is_leaving() {
            return Err(std::io::Error::other("the controller ends").into());
        }
        self.journal.append(records)?;
        self.entry.told(records);
        Ok(())
    }
}
