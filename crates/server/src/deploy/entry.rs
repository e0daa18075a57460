//! A run that is under way, as everybody but its own thread sees it: its records so far, and a way
//! to tell it something.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hoist_engine::drive::Journal;
use hoist_engine::journal::{FileJournal, JournalError};
use hoist_engine::{Event, Plan, Record, Run};
use tokio::sync::watch;

use super::folder::RunFile;
use super::shared::Claim;
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
    /// What they come to.
    run: Arc<Run>,
    /// Nothing goes on until somebody says something.
    waiting: bool,
    /// The run shows steps that are looked at before they start.
    is_checking: bool,
    /// Nobody listens any more.
    is_closed: bool,
}

impl Entry {
    /// `run` is what the records come to.
    pub(super) fn new(
        file: RunFile,
        run: &Run,
        records: Vec<Record>,
        events: Sender<Event>,
    ) -> Self {
        let plan = Arc::clone(run.plan());
        let count = watch::Sender::new(records.len() as u64);
        let (records, run) = (Arc::new(records), Arc::new(run.clone()));
        let state = Mutex::new(State {
            records,
            run,
            waiting: false,
            is_checking: false,
            is_closed: false,
        });
        Self { file, plan, state, count, events, leaving: AtomicBool::new(false) }
    }

    /// False when nobody listens any more.
    pub(super) fn tell(&self, events: &[Event]) -> bool {
        let state = self.lock();
        !state.is_closed && events.iter().all(|event| self.events.send(event.clone()).is_ok())
    }

    /// What was said and not heard yet. When that is nothing, nobody listens from here on.
    pub(super) fn close_unless_told(&self, told: &Receiver<Event>) -> Option<Vec<Event>> {
        let mut state = self.lock();
        let events: Vec<Event> = told.try_iter().collect();
        state.is_closed = events.is_empty();
        (!state.is_closed).then_some(events)
    }

    /// Nobody listens from here on.
    pub(super) fn close(&self) {
        self.lock().is_closed = true;
    }

    /// Waits until the journal has all that was said after so many records; false if that never
    /// happens.
    pub(super) async fn heard(&self, events: &[Event], before: usize) -> bool {
        let mut count = self.count();
        loop {
            count.mark_unchanged();
            let (records, is_closed) = {
                let state = self.lock();
                (Arc::clone(&state.records), state.is_closed)
            };
            let since = records.get(before..).unwrap_or_default();
            let has = |event| since.iter().any(|record| is_of(record, event));
            if events.iter().all(has) {
                return true;
            }
            if is_closed || count.changed().await.is_err() {
                return false;
            }
        }
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
        // Nobody listens any more when it has ended.
        let _ = self.events.send(Event::Tick);
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
        let state = self.lock();
        let (records, run) = (Arc::clone(&state.records), Arc::clone(&state.run));
        let (file, plan, waiting) = (self.file.clone(), Arc::clone(&self.plan), state.waiting);
        View { file, plan, records, run, waiting, is_broken: false }
    }

    /// What its records come to.
    pub(super) fn run(&self) -> Arc<Run> {
        Arc::clone(&self.lock().run)
    }

    fn records(&self) -> usize {
        self.lock().records.len()
    }

    fn told(&self, records: &[Record]) {
        if records.is_empty() {
            return;
        }
        let mut state = self.lock();
        let State { records: all, run, .. } = &mut *state;
        // Both are copied only while somebody looks at them.
        let (all, run) = (Arc::make_mut(all), Arc::make_mut(run));
        for record in records {
            let followed = run.follow(all.len(), record);
            followed.expect("its own thread has just decided so");
            all.push(record.clone());
        }
        let count = all.len() as u64;
        drop(state);
        self.count.send_replace(count);
    }

    /// What is looked at before it starts is in no record.
    fn show_checking(&self, of: &Run) {
        let mut state = self.lock();
        let is_checking = of.checking().next().is_some();
        if std::mem::replace(&mut state.is_checking, is_checking) || is_checking {
            Arc::make_mut(&mut state.run).show_checking(of);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether a record is what came of an order.
fn is_of(record: &Record, event: &Event) -> bool {
    match (event, record) {
        (Event::Stop { now, by }, Record::Stop { now: is, by: of, .. }) => (now, by) == (is, of),
        (Event::StopAfter { vertices, by }, Record::StopAfter { vertices: is, by: of, .. }) => {
            (vertices, by) == (is, of)
        }
        (Event::Resume { by }, Record::Resume { by: of, .. }) => by == of,
        (Event::Retry { step, by }, Record::Retry { step: is, by: of, .. }) => {
            (step, by) == (is, of)
        }
        (Event::Hold { step, held, by }, Record::Hold { step: is, held: so, by: of, .. }) => {
            (step, held, by) == (is, so, of)
        }
        (
            Event::Pause { subject, paused, by },
            Record::Pause { subject: is, paused: so, by: of, .. },
        ) => (subject, paused, by) == (is, so, of),
        (Event::Mark { step, good, by }, Record::Marked { step: is, good: so, by: of, .. }) => {
            (step, good, by) == (is, so, of)
        }
        _ => false,
    }
}

/// A journal whose records are shown as soon as they are durable.
#[derive(Debug)]
pub(super) struct Shown {
    pub(super) journal: FileJournal,
    pub(super) entry: Arc<Entry>,
    /// Where controllers share a store.
    pub(super) claim: Option<Claim>,
}

impl Journal for Shown {
    fn append(&mut self, records: &[Record]) -> Result<(), JournalError> {
        if self.entry.is_leaving() {
            return Err(std::io::Error::other("the controller ends").into());
        }
        if let Some(claim) = &self.claim {
            claim.append(self.entry.records(), records)?;
        }
        self.journal.append(records)?;
        self.entry.told(records);
        Ok(())
    }

    fn snapshot(&mut self, run: &Run) {
        self.journal.snapshot(run);
        self.entry.show_checking(run);
    }
}
