//! Tells the controller how it goes, behind the work: what cannot be told now is told later, and
//! nothing waits for it.

use std::collections::VecDeque;
use std::mem;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use hoist_api::provision::{Event, EventsRequest, Go, MAX_EVENTS, Order, Phase};
use hoist_engine::action::Cancel;
use jiff::Timestamp;

use super::controller::{CallError, Controller};

/// Between two words about how far a step is.
const PROGRESS_EVERY: Duration = Duration::from_secs(1);

/// A controller that hears nothing for longer may think that we died, and wants to be asked whether
/// we shall go on.
const SIGN_OF_LIFE: Duration = Duration::from_secs(10);

/// Words that wait while the controller is away; more are less interesting than those.
const MAX_WAITING: usize = 2048;

/// Before telling it again; doubled each time.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(15);

/// What waits to be told, as a value.
#[derive(Debug, Default)]
struct Waiting {
    /// Not numbered yet.
    events: VecDeque<Event>,
    /// Numbered: sent again as it is until somebody has it.
    sending: Vec<Event>,
    told: u64,
    /// When a step was last told about, and which.
    progress: Option<(Instant, String)>,
}

impl Waiting {
    fn push(&mut self, event: Event) {
        if self.events.len() >= MAX_WAITING {
            // Rather the beginning of a step than how far it was.
            let least = self.events.iter().position(|event| event.phase == Phase::Progress);
            self.events.remove(least.unwrap_or(0));
        }
        self.events.push_back(event);
    }

    /// At most so often, but that all is done; of what still waits, only the last counts.
    fn progress(&mut self, event: Event, now: Instant) {
        let is_waiting = self
            .events
            .back_mut()
            .filter(|last| last.phase == Phase::Progress && last.step == event.step);
        if let Some(last) = is_waiting {
            *last = event;
            return;
        }
        let is_recent = self.progress.as_ref().is_some_and(|(at, step)| {
            *step == event.step && now.duration_since(*at) < PROGRESS_EVERY
        });
        let is_all = event.done.is_some() && event.done == event.total;
        if is_all || !is_recent {
            self.progress = Some((now, event.step.clone()));
            self.push(event);
        }
    }

    /// What is sent next: the same again, until it has arrived.
    fn batch(&mut self) -> &[Event] {
        if self.sending.is_empty() {
            let count = self.events.len().min(MAX_EVENTS);
            self.sending = self.events.drain(..count).collect();
            for event in &mut self.sending {
                self.told += 1;
                event.seq = self.told;
            }
        }
        &self.sending
    }

    fn arrived(&mut self) {
        self.sending.clear();
    }

    fn is_empty(&self) -> bool {
        self.events.is_empty() && self.sending.is_empty()
    }
}

#[derive(Debug, Default)]
struct State {
    waiting: Waiting,
    is_closing: bool,
    /// The session is over: nobody wants to hear more.
    is_over: bool,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A thread that tells.
#[derive(Debug)]
pub(super) struct Teller {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Teller {
    /// `cancel` is set when the controller says that it shall end, or that it is done with it.
    pub(super) fn start(controller: Arc<Controller>, order: Arc<Order>, cancel: Cancel) -> Self {
        let shared = Arc::new(Shared { state: Mutex::default(), changed: Condvar::new() });
        let theirs = Arc::clone(&shared);
        let thread = std::thread::spawn(move || tell(&theirs, &controller, &order, &cancel));
        Self { shared, thread: Some(thread) }
    }

    pub(super) fn tell(&self, event: Event) {
        self.shared.lock().waiting.push(event);
        self.shared.changed.notify_all();
    }

    pub(super) fn progress(&self, event: Event) {
        self.shared.lock().waiting.progress(event, Instant::now());
        self.shared.changed.notify_all();
    }

    /// Waits until everything was told, and no longer than that.
    pub(super) fn close(mut self, patience: Duration) {
        let deadline = Instant::now() + patience;
        let mut state = self.shared.lock();
        state.is_closing = true;
        self.shared.changed.notify_all();
        while !state.waiting.is_empty() && !state.is_over {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let waited = self.shared.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        let is_done = state.waiting.is_empty() || state.is_over;
        state.is_over = true;
        drop(state);
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take().filter(|_| is_done) {
            // It has nothing more to do; if it panicked, the report says everything anyway.
            let _ = thread.join();
        }
    }
}

fn tell(shared: &Shared, controller: &Controller, order: &Order, cancel: &Cancel) {
    let mut pause = FIRST_PAUSE;
    let mut last = Instant::now();
    loop {
        let events = {
            let mut state = shared.lock();
            while state.waiting.is_empty() && !state.is_closing && last.elapsed() < SIGN_OF_LIFE {
                let left = SIGN_OF_LIFE.saturating_sub(last.elapsed());
                let waited = shared.changed.wait_timeout(state, left);
                state = waited.unwrap_or_else(PoisonError::into_inner).0;
            }
            if state.is_over || (state.is_closing && state.waiting.is_empty()) {
                return;
            }
            state.waiting.batch().to_vec()
        };
        last = Instant::now();
        match controller.events(order, &EventsRequest { events }) {
            Ok(answer) => {
                pause = FIRST_PAUSE;
                shared.lock().waiting.arrived();
                shared.changed.notify_all();
                if answer.go == Go::Abort {
                    cancel.cancel();
                }
            }
            Err(error @ (CallError::Refused(_) | CallError::Over(_))) => {
                // Whatever else is wrong, only that the controller is done with it ends the work.
                if matches!(error, CallError::Over(_)) {
                    cancel.cancel();
                }
                shared.lock().is_over = true;
                shared.changed.notify_all();
                return;
            }
            Err(_) => {
                let state = shared.lock();
                let waited =
                    shared.changed.wait_timeout_while(state, pause, |state| !state.is_over);
                drop(waited);
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
        }
    }
}

/// A word about a step, now.
pub(super) fn event(action: &str, step: &str, phase: Phase) -> Event {
    Event {
        seq: 0,
        at: Timestamp::now(),
        action: action.to_owned(),
        step: step.to_owned(),
        phase,
        done: None,
        total: None,
        unit: None,
        rate: None,
        message: None,
    }
}

impl Drop for Teller {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.is_over = true;
        mem::take(&mut state.waiting);
        drop(state);
        self.shared.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seqs(events: &[Event]) -> Vec<u64> {
        events.iter().map(|event| event.seq).collect()
    }

    #[test]
    fn what_may_have_arrived_is_sent_again_under_the_same_numbers() {
        let mut waiting = Waiting::default();
        waiting.push(event("disks", "wipe os", Phase::Started));
        assert_eq!(seqs(waiting.batch()), [1]);
        waiting.push(event("disks", "wipe os", Phase::Done));
        assert_eq!(seqs(waiting.batch()), [1]);
        waiting.arrived();
        assert_eq!(seqs(waiting.batch()), [2]);
        waiting.arrived();
        assert!(waiting.is_empty());
    }

    #[test]
    fn progress_is_told_once_a_second_and_only_the_last_that_waits() {
        let (mut waiting, now) = (Waiting::default(), Instant::now());
        let at = |done| Event { done: Some(done), ..event("images", "root", Phase::Progress) };
        waiting.progress(at(1), now);
        waiting.progress(at(2), now);
        assert_eq!(waiting.events.len(), 1);
        assert_eq!(waiting.batch()[0].done, Some(2));
        waiting.arrived();
        waiting.progress(at(3), now + PROGRESS_EVERY / 2);
        assert!(waiting.is_empty());
        waiting.progress(at(4), now + PROGRESS_EVERY);
        assert_eq!(waiting.batch()[0].done, Some(4));
        waiting.arrived();
        // That all is done is told at once.
        let all = Event { total: Some(5), ..at(5) };
        waiting.progress(all, now + PROGRESS_EVERY);
        assert_eq!(waiting.batch()[0].done, Some(5));
        waiting.arrived();
        // Another step does not wait for the first one's turn.
        let other = event("images", "data", Phase::Progress);
        waiting.progress(other, now + PROGRESS_EVERY);
        assert!(!waiting.is_empty());
    }

    #[test]
    fn a_controller_that_is_away_costs_bounded_memory_and_the_least_interesting() {
        let mut waiting = Waiting::default();
        waiting.push(event("disks", "first", Phase::Started));
        waiting.push(event("images", "root", Phase::Progress));
        for _ in 0..MAX_WAITING - 1 {
            waiting.push(event("disks", "other", Phase::Started));
        }
        assert_eq!(waiting.events.len(), MAX_WAITING);
        assert_eq!(waiting.events[0].step, "first");
        assert!(waiting.events.iter().all(|event| event.phase == Phase::Started));
        waiting.push(event("disks", "last", Phase::Started));
        assert_eq!(waiting.events.len(), MAX_WAITING);
        assert_eq!(waiting.batch().len(), MAX_EVENTS);
    }
}
