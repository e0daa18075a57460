//! Sends progress events to the controller in the background. Events that cannot be sent now are
//! sent later; the work never waits for them.

use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use hoist_api::provision::{Directive, Event, EventsRequest, MAX_EVENTS, Phase, ProvisioningJob};
use hoist_engine::action::Cancel;
use jiff::Timestamp;
use parking_lot::{Condvar, Mutex};

use super::controller::{CallError, Controller};

/// Interval of progress events.
const PROGRESS_EVERY: Duration = Duration::from_secs(1);

/// Interval of heartbeats. Without them the controller presumes the agent dead; the answer to one
/// may also abort the run.
const HEARTBEAT: Duration = Duration::from_secs(10);

/// Limit of queued events while the controller is unreachable.
const MAX_WAITING: usize = 2048;

/// Pause before sending again; doubled each time.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(15);

/// Events that wait to be sent, as a pure value.
#[derive(Debug, Default)]
struct EventQueue {
    /// Not numbered yet.
    events: VecDeque<Event>,
    /// Numbered, and sent again unchanged until acknowledged.
    sending: Vec<Event>,
    last_seq: u64,
    /// Time and step of the last progress event.
    progress: Option<(Instant, String)>,
}

impl EventQueue {
    fn push(&mut self, event: Event) {
        if self.events.len() >= MAX_WAITING {
            // The start of a step matters more than its progress.
            let least = self.events.iter().position(|event| event.phase == Phase::Progress);
            self.events.remove(least.unwrap_or(0));
        }
        self.events.push_back(event);
    }

    /// Limits the rate of progress events, except for the final one; a queued one is replaced.
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

    /// The next events to send: the same ones again until they are acknowledged.
    fn batch(&mut self) -> &[Event] {
        if self.sending.is_empty() {
            let count = self.events.len().min(MAX_EVENTS);
            self.sending = self.events.drain(..count).collect();
            for event in &mut self.sending {
                self.last_seq += 1;
                event.seq = self.last_seq;
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
    queue: EventQueue,
    is_closing: bool,
    /// The session is over; the controller accepts no more events.
    is_over: bool,
}

#[derive(Debug)]
struct SharedQueue {
    state: Mutex<State>,
    changed: Condvar,
}

/// A thread that sends events.
#[derive(Debug)]
pub(super) struct EventSender {
    shared: Arc<SharedQueue>,
    thread: Option<JoinHandle<()>>,
}

impl EventSender {
    /// `cancel` is set when the controller aborts the run or no longer knows it.
    pub(super) fn start(
        controller: Arc<Controller>,
        job: Arc<ProvisioningJob>,
        cancel: Cancel,
    ) -> Self {
        let shared = Arc::new(SharedQueue { state: Mutex::default(), changed: Condvar::new() });
        let theirs = Arc::clone(&shared);
        let thread = std::thread::spawn(move || send_all(&theirs, &controller, &job, &cancel));
        Self { shared, thread: Some(thread) }
    }

    pub(super) fn send(&self, event: Event) {
        self.shared.state.lock().queue.push(event);
        self.shared.changed.notify_all();
    }

    pub(super) fn progress(&self, event: Event) {
        self.shared.state.lock().queue.progress(event, Instant::now());
        self.shared.changed.notify_all();
    }

    /// Waits until every event was sent, at most for the given time.
    pub(super) fn close(mut self, timeout: Duration) {
        let deadline = Instant::now() + timeout;
        let mut state = self.shared.state.lock();
        state.is_closing = true;
        self.shared.changed.notify_all();
        while !state.queue.is_empty() && !state.is_over {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            self.shared.changed.wait_for(&mut state, left);
        }
        let is_done = state.queue.is_empty() || state.is_over;
        state.is_over = true;
        drop(state);
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take().filter(|_| is_done) {
            // The thread has nothing left to do. If it panicked, the report is complete anyway.
            let _ = thread.join();
        }
    }
}

fn send_all(shared: &SharedQueue, controller: &Controller, job: &ProvisioningJob, cancel: &Cancel) {
    let mut pause = FIRST_PAUSE;
    let mut last = Instant::now();
    loop {
        let events = {
            let mut state = shared.state.lock();
            while state.queue.is_empty() && !state.is_closing && last.elapsed() < HEARTBEAT {
                let left = HEARTBEAT.saturating_sub(last.elapsed());
                shared.changed.wait_for(&mut state, left);
            }
            if state.is_over || (state.is_closing && state.queue.is_empty()) {
                return;
            }
            state.queue.batch().to_vec()
        };
        last = Instant::now();
        match controller.events(job, &EventsRequest { events }) {
            Ok(answer) => {
                pause = FIRST_PAUSE;
                shared.state.lock().queue.arrived();
                shared.changed.notify_all();
                if answer.directive == Directive::Abort {
                    cancel.cancel();
                }
            }
            Err(error @ (CallError::Refused(_) | CallError::Over(_))) => {
                // Only the end of the job cancels the work; other refusals do not.
                if matches!(error, CallError::Over(_)) {
                    cancel.cancel();
                }
                shared.state.lock().is_over = true;
                shared.changed.notify_all();
                return;
            }
            Err(_) => {
                let mut state = shared.state.lock();
                shared.changed.wait_while_for(&mut state, |state| !state.is_over, pause);
                drop(state);
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
        }
    }
}

/// An event of a step, now.
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

impl Drop for EventSender {
    fn drop(&mut self) {
        let mut state = self.shared.state.lock();
        state.is_over = true;
        mem::take(&mut state.queue);
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
    fn unacknowledged_events_are_sent_again_with_the_same_numbers() {
        let mut queue = EventQueue::default();
        queue.push(event("disks", "wipe os", Phase::Started));
        assert_eq!(seqs(queue.batch()), [1]);
        queue.push(event("disks", "wipe os", Phase::Done));
        assert_eq!(seqs(queue.batch()), [1]);
        queue.arrived();
        assert_eq!(seqs(queue.batch()), [2]);
        queue.arrived();
        assert!(queue.is_empty());
    }

    #[test]
    fn progress_is_sent_once_a_second_and_only_the_latest() {
        let mut queue = EventQueue::default();
        let now = Instant::now();
        let at = |done| Event { done: Some(done), ..event("images", "root", Phase::Progress) };
        queue.progress(at(1), now);
        queue.progress(at(2), now);
        assert_eq!(queue.events.len(), 1);
        assert_eq!(queue.batch()[0].done, Some(2));
        queue.arrived();
        queue.progress(at(3), now + PROGRESS_EVERY / 2);
        assert!(queue.is_empty());
        queue.progress(at(4), now + PROGRESS_EVERY);
        assert_eq!(queue.batch()[0].done, Some(4));
        queue.arrived();
        // The last progress event is not delayed.
        let all = Event { total: Some(5), ..at(5) };
        queue.progress(all, now + PROGRESS_EVERY);
        assert_eq!(queue.batch()[0].done, Some(5));
        queue.arrived();
        // Another step is not limited by the first one.
        let other = event("images", "data", Phase::Progress);
        queue.progress(other, now + PROGRESS_EVERY);
        assert!(!queue.is_empty());
    }

    #[test]
    fn unreachable_controller_costs_bounded_memory() {
        let mut queue = EventQueue::default();
        queue.push(event("disks", "first", Phase::Started));
        queue.push(event("images", "root", Phase::Progress));
        for _ in 0..MAX_WAITING - 1 {
            queue.push(event("disks", "other", Phase::Started));
        }
        assert_eq!(queue.events.len(), MAX_WAITING);
        assert_eq!(queue.events[0].step, "first");
        assert!(queue.events.iter().all(|event| event.phase == Phase::Started));
        queue.push(event("disks", "last", Phase::Started));
        assert_eq!(queue.events.len(), MAX_WAITING);
        assert_eq!(queue.batch().len(), MAX_EVENTS);
    }
}
