//! The shell around a run: keeps records, then acts, then listens.
//!
//! All that happened since the last look is answered together, and made durable in one go.

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use crate::journal::{FileJournal, JournalError};
use crate::plan::Plan;
use crate::record::{Outcome, Record};
use crate::run::{Decision, Effect, Event, Refusal, Run};

/// Events that are answered together at most: operators shall see that something happens.
const TOGETHER: usize = 4096;

/// While so many steps are under way others do not wait for one of them,
const MANY: usize = 8;
/// so all that happens within this time is made durable in one go.
const GATHER: Duration = Duration::from_millis(2);

/// A clock that is set while nothing happens is noticed after so long.
const LONGEST_SLEEP: Duration = Duration::from_secs(30);

/// Where records are kept. One around another sees each record when it is durable.
pub trait Journal {
    /// They are durable when this returns. [`JournalError::Fenced`] says that somebody else has
    /// taken the run over: nothing was kept.
    fn append(&mut self, records: &[Record]) -> Result<(), JournalError>;

    /// What all records so far come to, if that is to be kept beside them or shown. Also what is in
    /// no record is in it.
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

/// For runs that are gone with the process: simulations.
impl Journal for Vec<Record> {
    fn append(&mut self, records: &[Record]) -> Result<(), JournalError> {
        self.extend_from_slice(records);
        Ok(())
    }
}

/// Carries out effects. It does not wait for them: what comes of each is an event, some time later.
pub trait Executor {
    fn act(&mut self, plan: &Plan, effect: Effect);
}

/// How far a run came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Halt {
    Finished(Outcome),
    /// Nothing runs and nothing will, until a person says something.
    NeedsPerson,
    /// Nobody is left who could say what happens.
    Deserted,
}

/// Begins a run: what is run is durable before anything is done.
pub fn begin(plan: &Plan, journal: &mut impl Journal, now: u64) -> Result<(), JournalError> {
    journal.append(&[Record::Plan { hash: plan.hash().to_owned(), at: now }])
}

/// Tells a run that was read back something before it goes on: what is said is durable, and nothing
/// has started because of it or in spite of it. When this fails, the run is to be read back.
pub fn say(
    run: &mut Run,
    journal: &mut impl Journal,
    orders: impl IntoIterator<Item = Event>,
    now: u64,
) -> Result<(), SayError> {
    let records = orders.into_iter().map(|order| run.say(order, now));
    let records: Vec<Record> = records.collect::<Result<_, Refusal>>()?;
    Ok(journal.append(&records)?)
}

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SayError {
    #[error(transparent)]
    Refused(#[from] Refusal),
    #[error(transparent)]
    Journal(#[from] JournalError),
}

/// Runs until the end, or until a person is needed: [`Run::stuck`] says why. `clock` is in
/// milliseconds since 1970, and may be set at any time.
///
/// A run that was read back goes on where it was. When this fails, what is durable is not known,
/// so the run is to be read back before it goes on.
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
        // Where more has happened already nobody waits for it.
        if taken < TOGETHER && under_way >= MANY && !decision.records.is_empty() {
            std::thread::sleep(GATHER);
            take_more(run, events, &mut decision, &clock);
        }
    }
}

/// Answers what has happened by now together with what is answered already. Says how much that was.
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

/// What happens next; nothing, if nothing can.
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
    use crate::plan::{Draft, Holder, Kind, Pool, Repeat, Step, StepId, Vertex};
    use crate::record::{End, FailureKind};
    use crate::run::{Found, State};

    /// Everything is done on a thread of its own, and the first attempt of a step fails.
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
                    let found = if self.forgetful { Found::Gone } else { Found::Never };
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
            let step = Step { retries: 1, delay_ms: 1, pools: vec![0], repeat, ..Step::default() };
            let after = at.checked_sub(3).map(StepId).into_iter().collect();
            Vertex { name: format!("s{at}"), after, kind: Kind::Step(Box::new(step)) }
        };
        let pools = vec![Pool { name: "few".to_owned(), places: 2, held_by: Holder::Step }];
        let vertices = (0..9).map(vertex).collect();
        Arc::new(Plan::new(Draft { vertices, pools, ..Draft::default() }).expect("a plan"))
    }

    fn clock() -> u64 {
        let since = std::time::UNIX_EPOCH.elapsed().expect("after 1970");
        u64::try_from(since.as_millis()).expect("before the year 500 million")
    }

    #[test]
    fn a_run_comes_to_its_end_and_is_in_its_file() {
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
    fn a_person_is_asked_when_nobody_knows_how_a_step_ended() {
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
    fn a_person_is_asked_when_something_of_a_step_does_not_end() {
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
    fn a_clock_that_is_set_back_and_ahead_does_not_keep_a_run_from_its_end() {
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

    /// One step was begun when the controller died, and others could start.
    fn read_back(plan: &Arc<Plan>, journal: &mut Vec<Record>) -> Run {
        begin(plan, journal, 0).unwrap();
        journal.push(Record::Intent { step: StepId(0), attempt: 1, at: 0 });
        Run::replay(plan, &*journal).unwrap()
    }

    #[test]
    fn what_is_said_before_a_run_goes_on_keeps_it_from_starting_anything() {
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
    fn what_has_no_effect_is_not_said() {
        let plan = plan(Repeat::Safe);
        let mut journal = Vec::new();
        let mut run = read_back(&plan, &mut journal);
        let before = journal.len();
        let resume = Event::Resume { by: "me".to_owned() };
        let refused = say(&mut run, &mut journal, [resume, Event::Tick], 1);
        assert!(matches!(refused, Err(SayError::Refused(Refusal::UnderWay))), "{refused:?}");
        let refused = say(&mut run, &mut journal, [Event::Tick], 1);
        assert!(matches!(refused, Err(SayError::Refused(Refusal::NoOrder))), "{refused:?}");
        assert_eq!(journal.len(), before);
        assert_eq!(run.state(StepId(0)), State::Running);
    }
}
