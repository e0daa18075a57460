//! The loop around a run: makes records durable, carries out effects, waits for events.
//!
//! Events that arrived in the meantime are answered together, and their records are made durable in
//! one write. Decisions belong to [`crate::run`].

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use crate::file_journal::FileJournal;
use crate::journal::JournalError;
use crate::plan::Plan;
use crate::record::{Outcome, Record};
use crate::run::{CommandRefusal, Decision, Effect, Event, Run};

/// Largest number of events that are answered together, so that operators see progress.
const TOGETHER: usize = 4096;

/// While this many steps run, a short delay holds up no other step,
const MANY: usize = 8;
/// so events within this time share one write.
const GATHER: Duration = Duration::from_millis(2);

/// Longest sleep, so that a clock change is noticed.
const LONGEST_SLEEP: Duration = Duration::from_secs(30);

/// Stores records. A journal may wrap another one, to see each record when it is durable.
pub trait Journal {
    /// Appends records, which must be durable when this returns. [`JournalError::Fenced`] means
    /// that another controller has taken over the run, and that nothing was written.
    fn append(&mut self, records: &[Record]) -> Result<(), JournalError>;

    /// Offers the state after all records so far, to be stored or shown. The state includes running
    /// checks, which are in no record.
    fn snapshot(&mut self, _: &Run) {}
}

impl Journal for FileJournal {
    fn append(&mut self, records: &[Record]) -> Result<(), JournalError> {
        Self::append(self, records)
    }

    fn snapshot(&mut self, run: &Run) {
        Self::snapshot(self, run);
    }
}

/// For runs that do not outlive the process: simulations.
impl Journal for Vec<Record> {
    fn append(&mut self, records: &[Record]) -> Result<(), JournalError> {
        self.extend_from_slice(records);
        Ok(())
    }
}

/// Carries out effects without waiting for them. The outcome of each is a later event.
pub trait Executor {
    fn act(&mut self, plan: &Plan, effect: Effect);
}

/// Why the loop has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Halt {
    Finished(Outcome),
    /// Nothing runs, and nothing will start without a command of a person.
    NeedsPerson,
    /// All senders of events are gone.
    Deserted,
}

/// Begins a run: the plan is durable before any effect.
pub fn begin(plan: &Plan, journal: &mut impl Journal, now: u64) -> Result<(), JournalError> {
    journal.append(&[Record::Plan { hash: plan.hash().to_owned(), at: now }])
}

/// Gives commands to a run that was read back, before it continues. The commands are durable when
/// this returns, and no step has started. After an error the run must be read back.
pub fn say(
    run: &mut Run,
    journal: &mut impl Journal,
    orders: impl IntoIterator<Item = Event>,
    now: u64,
) -> Result<(), SayError> {
    let records = orders.into_iter().map(|order| run.say(order, now));
    let records: Vec<Record> = records.collect::<Result<_, CommandRefusal>>()?;
    Ok(journal.append(&records)?)
}

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SayError {
    #[error(transparent)]
    Refused(#[from] CommandRefusal),
    #[error(transparent)]
    Journal(#[from] JournalError),
}

/// Drives a run until its end, or until a person is needed: [`Run::stuck`] gives the reasons.
/// `clock` returns milliseconds since 1970, and may jump.
///
/// A run that was read back continues where it was. After an error it is unknown which records are
/// durable, so the run must be read back before it continues.
pub fn drive(
    run: &mut Run,
    journal: &mut impl Journal,
    executor: &mut impl Executor,
    events: &Receiver<Event>,
    clock: impl Fn() -> u64,
) -> Result<Halt, JournalError> {
    let mut decision = run.recover(clock());
    loop {
        journal.append(&decision.records)?;
        journal.snapshot(run);
        for effect in &decision.effects {
            executor.act(run.plan(), *effect);
        }
        if let Some(outcome) = run.outcome() {
            return Ok(Halt::Finished(outcome));
        }
        let next = match next(run, events, clock()) {
            Some(Ok(event)) => event,
            Some(Err(())) => return Ok(Halt::Deserted),
            None => return Ok(Halt::NeedsPerson),
        };
        decision = run.on(next, clock());
        let taken = take_more(run, events, &mut decision, &clock);
        let under_way = run.under_way().saturating_sub(decision.effects.len());
        // If more events wait already, they are answered without a delay.
        if taken < TOGETHER && under_way >= MANY && !decision.records.is_empty() {
            std::thread::sleep(GATHER);
            take_more(run, events, &mut decision, &clock);
        }
    }
}

/// Answers waiting events and adds the result to `decision`. Returns their number.
fn take_more(
    run: &mut Run,
    events: &Receiver<Event>,
    decision: &mut Decision,
    clock: impl Fn() -> u64,
) -> usize {
    let mut taken = 0;
    for event in events.try_iter().take(TOGETHER) {
        let more = run.on(event, clock());
        decision.records.extend(more.records);
        decision.effects.extend(more.effects);
        taken += 1;
    }
    taken
}

/// The next event; `None` if there can be none.
fn next(run: &Run, events: &Receiver<Event>, now: u64) -> Option<Result<Event, ()>> {
    if let Ok(event) = events.try_recv() {
        return Some(Ok(event));
    }
    let Some(wakes) = run.wakes_at() else {
        if !run.is_busy() {
            return None;
        }
        return Some(events.recv().map_err(|_| ()));
    };
    let sleep = Duration::from_millis(wakes.saturating_sub(now)).min(LONGEST_SLEEP);
    match events.recv_timeout(sleep) {
        Ok(event) => Some(Ok(event)),
        Err(RecvTimeoutError::Timeout) => Some(Ok(Event::Tick)),
        Err(RecvTimeoutError::Disconnected) => Some(Err(())),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::mpsc::{Sender, channel};

    use serde_json::Value;

    use super::*;
    use crate::plan::{ConcurrencyLimit, Draft, Holder, Kind, Repeat, Step, StepId, Vertex};
    use crate::record::{End, FailureKind};
    use crate::run::{AttemptStatus, State};

    /// Does everything on threads; the first attempt of each step fails.
    struct Threads {
        events: Sender<Event>,
        forgetful: bool,
    }

    impl Executor for Threads {
        fn act(&mut self, _: &Plan, effect: Effect) {
            let event = match effect {
                Effect::Start { step, attempt } => {
                    let end = match attempt {
                        1 => End::Failed { kind: FailureKind::Exit, reason: "first".to_owned() },
                        _ => End::Done { changed: false, receipt: Value::Null },
                    };
                    Event::Ran { step, attempt, end }
                }
                Effect::Ask { step, attempt } => {
                    let found =
                        if self.forgetful { AttemptStatus::Gone } else { AttemptStatus::Never };
                    Event::Found { step, attempt, found }
                }
                other => panic!("{other:?} was not planned"),
            };
            let events = self.events.clone();
            std::thread::spawn(move || events.send(event));
        }
    }

    fn plan(repeat: Repeat) -> Arc<Plan> {
        let vertex = |at: u32| {
            let step = Step { retries: 1, delay_ms: 1, limits: vec![0], repeat, ..Step::default() };
            let after = at.checked_sub(3).map(StepId).into_iter().collect();
            Vertex { name: format!("s{at}"), after, kind: Kind::Step(Box::new(step)) }
        };
        let limits =
            vec![ConcurrencyLimit { name: "few".to_owned(), slots: 2, held_by: Holder::Step }];
        let vertices = (0..9).map(vertex).collect();
        Arc::new(Plan::new(Draft { vertices, limits, ..Draft::default() }).expect("a plan"))
    }

    fn clock() -> u64 {
        let since = std::time::UNIX_EPOCH.elapsed().expect("after 1970");
        u64::try_from(since.as_millis()).expect("before the year 500 million")
    }

    #[test]
    fn finished_run_is_in_its_journal_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run");
        let plan = plan(Repeat::Safe);
        let (send, events) = channel();
        let mut journal = FileJournal::create(&path).unwrap();
        begin(&plan, &mut journal, clock()).unwrap();
        let mut run = Run::new(Arc::clone(&plan));
        let mut executor = Threads { events: send, forgetful: false };
        let halt = drive(&mut run, &mut journal, &mut executor, &events, clock).unwrap();
        assert_eq!(halt, Halt::Finished(Outcome::Succeeded));
        drop(journal);
        let (_, records) = FileJournal::open(&path).unwrap();
        let again = Run::replay(&plan, &records).unwrap();
        assert_eq!(again.outcome(), Some(Outcome::Succeeded));
        assert!(plan.ids().all(|id| again.attempt(id) == 2), "each failed once");
    }

    #[test]
    fn run_with_unknown_outcome_needs_a_person() {
        let plan = plan(Repeat::Never);
        let mut journal = Vec::new();
        begin(&plan, &mut journal, 0).unwrap();
        journal.push(Record::Intent { step: StepId(0), attempt: 1, at: 0 });
        let mut run = Run::replay(&plan, &journal).unwrap();
        let (send, events) = channel();
        let mut executor = Threads { events: send.clone(), forgetful: true };
        let halt = drive(&mut run, &mut journal, &mut executor, &events, clock).unwrap();
        assert_eq!(halt, Halt::NeedsPerson);
        assert_eq!(run.undecided().collect::<Vec<_>>(), [StepId(0)]);
        send.send(Event::Mark { step: StepId(0), good: true, by: "me".to_owned() }).unwrap();
        let halt = drive(&mut run, &mut journal, &mut executor, &events, clock).unwrap();
        assert_eq!(halt, Halt::Finished(Outcome::Succeeded));
        assert_eq!(run.attempt(StepId(0)), 1, "it was not done again");
    }

    #[test]
    fn step_that_does_not_end_needs_a_person() {
        let plan = plan(Repeat::Safe);
        let mut journal = Vec::new();
        begin(&plan, &mut journal, 0).unwrap();
        let mut run = Run::new(Arc::clone(&plan));
        run.recover(0);
        let end = End::Unknown { reason: "process 7 (dd) does not end".to_owned() };
        let decision = run.on(Event::Ran { step: StepId(0), attempt: 1, end }, 1);
        assert_eq!(run.state(StepId(0)), State::Unknown, "though it could be tried again");
        let is_again = |effect: &Effect| matches!(effect, Effect::Start { step: StepId(0), .. });
        assert!(!decision.effects.iter().any(is_again), "{decision:?}");
        run.on(Event::Mark { step: StepId(0), good: true, by: "me".to_owned() }, 2);
        assert!(matches!(run.state(StepId(0)), State::Ended(ended) if ended.is_good()));
    }

    #[test]
    fn clock_jumps_do_not_keep_a_run_from_ending() {
        const YEAR: u64 = 365 * 24 * 3_600_000;
        let plan = plan(Repeat::Safe);
        let looks = std::cell::Cell::new(0);
        let jumping = || {
            looks.set(looks.get() + 1);
            let jump = [3 * YEAR, 0, 2 * YEAR, YEAR][looks.get() / 5 % 4];
            clock() - 3 * YEAR + jump
        };
        let mut journal = Vec::new();
        begin(&plan, &mut journal, jumping()).unwrap();
        let mut run = Run::new(Arc::clone(&plan));
        let (events_in, events) = channel();
        let mut executor = Threads { events: events_in, forgetful: false };
        let halt = drive(&mut run, &mut journal, &mut executor, &events, jumping).unwrap();
        assert_eq!(halt, Halt::Finished(Outcome::Succeeded));
        let again = Run::replay(&plan, &journal).unwrap();
        assert_eq!(again.outcome(), Some(Outcome::Succeeded));
    }

    /// A run with one begun step at the time of the crash, and others that could start.
    fn read_back(plan: &Arc<Plan>, journal: &mut Vec<Record>) -> Run {
        begin(plan, journal, 0).unwrap();
        journal.push(Record::Intent { step: StepId(0), attempt: 1, at: 0 });
        Run::replay(plan, &*journal).unwrap()
    }

    #[test]
    fn commands_before_a_run_continues_prevent_starts() {
        let plan = plan(Repeat::Safe);
        for (order, comes_to) in [
            (Event::Pause { subject: None, paused: true, by: "me".to_owned() }, Halt::NeedsPerson),
            (Event::Stop { now: true, by: "me".to_owned() }, Halt::Finished(Outcome::Stopped)),
        ] {
            let mut journal = Vec::new();
            let mut run = read_back(&plan, &mut journal);
            say(&mut run, &mut journal, [order], 1).unwrap();
            let (send, events) = channel();
            let mut executor = Threads { events: send, forgetful: true };
            let halt = drive(&mut run, &mut journal, &mut executor, &events, clock).unwrap();
            assert_eq!(halt, comes_to);
            assert!(plan.ids().skip(1).all(|id| run.attempt(id) == 0), "{journal:?}");
            assert_eq!(Run::replay(&plan, &journal).unwrap().outcome(), run.outcome());
        }
    }

    #[test]
    fn commands_without_effect_are_not_recorded() {
        let plan = plan(Repeat::Safe);
        let mut journal = Vec::new();
        let mut run = read_back(&plan, &mut journal);
        let before = journal.len();
        let resume = Event::Resume { by: "me".to_owned() };
        let refused = say(&mut run, &mut journal, [resume, Event::Tick], 1);
        assert!(matches!(refused, Err(SayError::Refused(CommandRefusal::UnderWay))), "{refused:?}");
        let refused = say(&mut run, &mut journal, [Event::Tick], 1);
        assert!(matches!(refused, Err(SayError::Refused(CommandRefusal::NoOrder))), "{refused:?}");
        assert_eq!(journal.len(), before);
        assert_eq!(run.state(StepId(0)), State::Running);
    }
}
