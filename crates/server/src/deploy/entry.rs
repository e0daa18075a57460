//! An active run as other threads see it: its records so far, and a channel to its own thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender};

use hoist_engine::drive::Journal;
use hoist_engine::file_journal::FileJournal;
use hoist_engine::journal::JournalError;
use hoist_engine::{Event, Plan, Record, Run};
use parking_lot::Mutex;
use tokio::sync::watch;

use super::folder::RunFile;
use super::shared_runs::Claim;
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
    /// The state after these records.
    run: Arc<Run>,
    /// The run waits for an operator.
    waiting: bool,
    /// The run has steps whose preconditions are being checked.
    is_checking: bool,
    /// The run's thread reads no further events.
    is_closed: bool,
}

impl Entry {
    /// `run` must be the state after the records.
    pub(super) fn new(
        file: RunFile,
        run: &Run,
        records: Vec<Record>,
        events: Sender<Event>,
    ) -> Self {
        let plan = Arc::clone(run.plan());
        let count = watch::Sender::new(records.len() as u64);
        let records = Arc::new(records);
        let run = Arc::new(run.clone());
        let state = Mutex::new(State {
            records,
            run,
            waiting: false,
            is_checking: false,
            is_closed: false,
        });
        Self { file, plan, state, count, events, leaving: AtomicBool::new(false) }
    }

    /// Sends events to the run; false if its thread has closed the channel.
    pub(super) fn tell(&self, events: &[Event]) -> bool {
        let state = self.state.lock();
        !state.is_closed && events.iter().all(|event| self.events.send(event.clone()).is_ok())
    }

    /// The events that are still unread. If there are none, the channel is closed.
    pub(super) fn close_unless_told(&self, told: &Receiver<Event>) -> Option<Vec<Event>> {
        let mut state = self.state.lock();
        let events: Vec<Event> = told.try_iter().collect();
        state.is_closed = events.is_empty();
        (!state.is_closed).then_some(events)
    }

    /// Closes the channel.
    pub(super) fn close(&self) {
        self.state.lock().is_closed = true;
    }

    /// Waits until the journal has all that was said after so many records; false if that never
    /// happens.
    pub(super) async fn heard(&self, events: &[Event], before: usize) -> bool {
        let mut count = self.count();
        loop {
            count.mark_unchanged();
            let (records, is_closed) = {
                let state = self.state.lock();
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
        // The receiver is gone after the run has ended.
        let _ = self.events.send(Event::Tick);
    }

    pub(super) fn is_leaving(&self) -> bool {
        self.leaving.load(Ordering::SeqCst)
    }

    pub(super) fn set_waiting(&self, waiting: bool) {
        self.state.lock().waiting = waiting;
        self.count.send_modify(|_| {});
    }

    /// Everything there is to see of it now.
    pub(super) fn view(&self) -> View {
        let state = self.state.lock();
        let records = Arc::clone(&state.records);
        let run = Arc::clone(&state.run);
        let file = self.file.clone();
        let plan = Arc::clone(&self.plan);
        let waiting = state.waiting;
        View { file, plan, records, run, waiting, is_broken: false }
    }

    /// What its records come to.
    pub(super) fn run(&self) -> Arc<Run> {
        Arc::clone(&self.state.lock().run)
    }

    fn records(&self) -> usize {
        self.state.lock().records.len()
    }

    fn told(&self, records: &[Record]) {
        if records.is_empty() {
            return;
        }
        let mut state = self.state.lock();
        let State { records: all, run, .. } = &mut *state;
        // Copies either only while a reader holds it.
        let all = Arc::make_mut(all);
        let run = Arc::make_mut(run);
        for record in records {
            let followed = run.follow(all.len(), record);
            followed.expect("its own thread has just decided so");
            all.push(record.clone());
        }
        let count = all.len() as u64;
        drop(state);
        self.count.send_replace(count);
    }

    /// Records do not show preconditions that are being checked.
    fn show_checking(&self, of: &Run) {
        let mut state = self.state.lock();
        let is_checking = of.checking().next().is_some();
        if std::mem::replace(&mut state.is_checking, is_checking) || is_checking {
            Arc::make_mut(&mut state.run).show_checking(of);
        }
    }
}

/// Whether a record is the result of an event.
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
pub(super) struct RunJournal {
    pub(super) journal: FileJournal,
    pub(super) entry: Arc<Entry>,
    /// Where controllers share a store.
    pub(super) claim: Option<Claim>,
}

impl Journal for RunJournal {
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
