use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use hoist_diagnostic::Diagnostic;
use hoist_testkit::eventually;
use parking_lot::Mutex;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::action::{
    Action, ApplyOutcome, Cancel, Catalog, Ctx, Description, Failure, Stream, Verdict,
};
use crate::drive::{self, Executor, Halt, Journal};
use crate::execute::{BaseDirectory, NoSecrets, Outputs};
use crate::plan::{Call, Draft, Kind, Plan, Repeat, Step, StepId, Vertex};
use crate::program::ProgramStart;
use crate::record::{End, FailureKind, Outcome, Record, attempt_id};
use crate::run::{AttemptStatus, Effect, Event, Run};

/// Counts how often each attempt was begun, and can run a command.
#[derive(Default)]
struct Count(Mutex<BTreeMap<String, u32>>);

impl Action for Count {
    fn describe(&self) -> Description {
        Description { name: "count".to_owned(), ..Description::default() }
    }

    fn validate(&self, _: &Value) -> Vec<Diagnostic> {
        Vec::new()
    }

    fn apply(&self, step: &Step, ctx: &mut Ctx<'_>) -> Result<ApplyOutcome, Failure> {
        *self.0.lock().entry(ctx.attempt.to_owned()).or_default() += 1;
        ctx.output.line(Stream::Out, ctx.attempt.as_bytes());
        if let Some(script) = step.call.input["sh"].as_str() {
            let ran = if let Some(program) = ctx.programs.earlier(ctx.attempt) {
                program.follow(ctx.deadline, ctx.cancel, ctx.output)
            } else {
                let argv = ["/bin/sh", "-c", script].map(std::ffi::OsString::from).to_vec();
                let marks =
                    ctx.programs.marks(ctx.attempt).map(|(name, value)| (name.into(), value));
                let env = std::env::vars_os().chain(marks).collect();
                let directory = std::env::current_dir().unwrap();
                let start = ProgramStart { argv, directory, env };
                let deadline = ctx.deadline;
                let cancel = ctx.cancel;
                let ran = ctx.programs.run(ctx.attempt, start, deadline, cancel, ctx.output);
                Ok(ran.expect("a shell"))
            };
            if let Some(reason) = ran.expect("a shell").failure() {
                return Err(Failure { kind: FailureKind::Exit, reason });
            }
        }
        Ok(ApplyOutcome { changed: true, receipt: json!(ctx.attempt) })
    }

    fn is_programs(&self, _: &Value) -> bool {
        true
    }

    fn verify(&self, _: &Step, _: &mut Ctx<'_>) -> Result<Verdict, Failure> {
        Ok(Verdict::Holds)
    }
}

fn setup(dir: &Path, count: &Arc<Count>) -> WorkerSetup {
    let mut catalog = Catalog::default();
    catalog.add(Arc::clone(count) as Arc<dyn Action>);
    WorkerSetup {
        catalog,
        secrets: Arc::new(NoSecrets),
        base: BaseDirectory::Machine,
        dir: dir.to_owned(),
        supervisor: None,
    }
}

fn plan(count: u32, machines: u32, repeat: Repeat, input: &Value) -> Arc<Plan> {
    let call = Call { action: "count".to_owned(), input: input.clone(), ..Call::default() };
    let vertex = |at: u32| {
        let step = Step {
            call: call.clone(),
            before: if at.is_multiple_of(3) { vec![call.clone()] } else { Vec::new() },
            after: if at.is_multiple_of(2) { vec![call.clone()] } else { Vec::new() },
            subject: Some(at % machines),
            repeat,
            ..Step::default()
        };
        let after = at.checked_sub(3).map(StepId).into_iter().collect();
        Vertex { name: format!("s{at}"), after, kind: Kind::Step(Box::new(step)) }
    };
    let subjects = (0..machines).map(machine).collect();
    let draft = Draft { vertices: (0..count).map(vertex).collect(), subjects, ..Draft::default() };
    Arc::new(Plan::new(draft).expect("a plan"))
}

fn machine(at: u32) -> String {
    format!("n{at}")
}

fn clock() -> u64 {
    u64::try_from(std::time::UNIX_EPOCH.elapsed().expect("after 1970").as_millis()).expect("a time")
}

/// Drives a run in a thread of its own, which returns the end of the run and its journal.
fn drive_run(
    dispatcher: &Arc<Dispatcher>,
    plan: &Arc<Plan>,
    outputs: Outputs,
) -> (Sender<Event>, std::thread::JoinHandle<(Halt, Vec<Record>)>) {
    let (send, events) = channel();
    let mut executor = dispatcher.open("r", send.clone(), outputs, plan, BTreeMap::new());
    dispatcher.complete();
    let plan = Arc::clone(plan);
    let thread = std::thread::spawn(move || {
        let mut journal = executor.wrap_journal(&plan, Vec::new());
        drive::begin(&plan, &mut journal, 0).unwrap();
        let mut run = Run::new(Arc::clone(&plan));
        let halt = drive::drive(&mut run, &mut journal, &mut executor, &events, clock).unwrap();
        (halt, journal.journal)
    });
    (send, thread)
}

/// The fate of a message.
#[derive(Debug, Clone, Copy)]
enum Fate {
    Arrives,
    ReportLost,
    OrdersLost,
    Twice,
    /// The report arrives, and after it an older report.
    OldReport,
    /// The report arrives; an older answer comes back in place of the new one.
    OldOrders,
    Restart,
}

struct Chaos {
    dispatcher: Arc<Dispatcher>,
    machine: String,
    fates: VecDeque<Fate>,
    reports: Vec<WorkerReport>,
    answers: Vec<Orders>,
}

impl Transport for Chaos {
    fn exchange(&mut self, report: &WorkerReport) -> Result<Orders, Unreachable> {
        // Through JSON, as on the wire.
        let report: WorkerReport =
            serde_json::from_slice(&serde_json::to_vec(report).unwrap()).unwrap();
        self.reports.push(report.clone());
        let arrives =
            |report: &WorkerReport| self.dispatcher.exchange(&self.machine, report, Instant::now());
        let lost = || Err(Unreachable("lost".to_owned()));
        let orders = match self.fates.pop_front().unwrap_or(Fate::Arrives) {
            Fate::Arrives | Fate::Restart => arrives(&report),
            Fate::ReportLost => return lost(),
            Fate::OrdersLost => {
                arrives(&report);
                return lost();
            }
            Fate::Twice => {
                arrives(&report);
                arrives(&report)
            }
            Fate::OldReport => {
                let orders = arrives(&report);
                let old = self.reports[self.reports.len() / 2].clone();
                arrives(&old);
                orders
            }
            Fate::OldOrders => {
                let orders = arrives(&report);
                self.answers.push(orders);
                self.answers[self.answers.len() / 2].clone()
            }
        };
        self.answers.push(orders.clone());
        Ok(orders)
    }
}

fn fates() -> impl Strategy<Value = Vec<Fate>> {
    let fate = prop_oneof![
        Just(Fate::Arrives),
        Just(Fate::ReportLost),
        Just(Fate::OrdersLost),
        Just(Fate::Twice),
        Just(Fate::OldReport),
        Just(Fate::OldOrders),
        Just(Fate::Restart),
    ];
    proptest::collection::vec(fate, 0..40)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn attempt_begins_once_whatever_happens_to_messages(fates in fates()) {
        let dir = tempfile::tempdir().unwrap();
        let count = Arc::new(Count::default());
        let dispatcher = Dispatcher::new(LOST_AFTER, |_| {});
        let plan = plan(9, 1, Repeat::Never, &Value::Null);
        let (_send, run) = drive_run(&dispatcher, &plan, Outputs::in_dir(dir.path().join("output")));
        let restarts: Vec<bool> = fates.iter().map(|fate| matches!(fate, Fate::Restart)).collect();
        let mut chaos = Chaos { dispatcher: Arc::clone(&dispatcher), machine: machine(0), fates: fates.into(), reports: Vec::new(), answers: Vec::new() };
        let mut worker = Worker::new(setup(&dir.path().join("node"), &count)).unwrap();
        let mut turns = 0;
        let until = Instant::now() + Duration::from_mins(1);
        while !run.is_finished() {
            prop_assert!(Instant::now() < until, "the run does not end");
            let _ = worker.exchange(&mut chaos);
            while worker.is_busy() {
                std::thread::yield_now();
            }
            if restarts.get(turns).copied().unwrap_or(false) {
                drop(worker);
                worker = Worker::new(setup(&dir.path().join("node"), &count)).unwrap();
            }
            turns += 1;
        }
        let (halt, journal) = run.join().unwrap();
        prop_assert_eq!(halt, Halt::Finished(Outcome::Succeeded), "{:?}", journal);
        let counted = count.0.lock().clone();
        prop_assert_eq!(counted.len(), 9);
        prop_assert!(counted.values().all(|times| *times == 1), "{:?}", counted);
        // Once everything is recorded, the machine keeps nothing.
        chaos.fates.clear();
        for _ in 0..2 {
            worker.exchange(&mut chaos).unwrap();
        }
        prop_assert!(worker.report().results.is_empty());
        let printed = Outputs::in_dir(dir.path().join("output")).read(StepId(1), 1).unwrap().unwrap();
        prop_assert_eq!(String::from_utf8(printed).unwrap(), "r/1/1\n");
    }
}

/// A dispatcher with one run, whose events the test checks one by one.
struct Table {
    dispatcher: Arc<Dispatcher>,
    run: DispatcherRun,
    plan: Arc<Plan>,
    events: Receiver<Event>,
    began: Instant,
}

const STEP: StepId = StepId(1);
const START: Effect = Effect::Start { step: STEP, attempt: 1 };

impl Table {
    fn new() -> Self {
        let dispatcher = Dispatcher::new(LOST_AFTER, |_| {});
        let (send, events) = channel();
        let plan = plan(2, 1, Repeat::Safe, &Value::Null);
        let run = dispatcher.open("r", send, Outputs::none(), &plan, BTreeMap::new());
        Self { dispatcher, run, plan, events, began: Instant::now() }
    }

    /// Reopens the run after a restart, with these attempts begun, each with the memory it was
    /// handed out to.
    fn open_again(&mut self, begun: &[((StepId, u32), Option<&str>)]) {
        let (send, events) = channel();
        let begun = begun.iter().map(|(id, to)| (*id, to.map(str::to_owned))).collect();
        self.run = self.dispatcher.open("r", send, Outputs::none(), &self.plan, begun);
        self.events = events;
    }

    fn act(&mut self, effect: Effect) {
        self.run.act(&self.plan, effect);
    }

    fn say(&self, report: &WorkerReport) -> Orders {
        self.dispatcher.exchange("n0", report, self.began)
    }

    fn heard(&self) -> Vec<Event> {
        self.events.try_iter().collect()
    }

    /// Records every `Given` event in the journal.
    fn keep_given(&self) {
        let mut journal = self.run.wrap_journal(&self.plan, Vec::new());
        for event in self.heard() {
            let Event::Given { step, attempt, to } = event else { panic!("{event:?}") };
            journal.append(&[Record::Given { step, attempt, to, at: 0 }]).unwrap();
        }
    }

    /// The orders for a machine that reports no work, after the journal has the `Given` records.
    fn give(&self, number: u64) -> Orders {
        let orders = self.say(&report(number));
        assert!(orders.jobs.is_empty(), "no journal has it: {orders:?}");
        self.keep_given();
        self.say(&report(number))
    }
}

fn report(number: u64) -> WorkerReport {
    WorkerReport { memory: "m".to_owned(), life: 1, number, ..WorkerReport::default() }
}

fn id() -> WorkId {
    WorkId(attempt_id("r", STEP, 1))
}

fn done() -> JobOutcome {
    JobOutcome::Ran { end: End::Done { changed: true, receipt: Value::Null } }
}

fn result() -> WorkResult {
    WorkResult { id: id(), outcome: done(), output: None }
}

fn found(found: AttemptStatus) -> Event {
    Event::Found { step: STEP, attempt: 1, found }
}

#[test]
fn result_stays_on_the_machine_until_recorded() {
    let mut table = Table::new();
    table.act(START);
    assert_eq!(table.give(1).jobs.len(), 1);
    assert_eq!(table.say(&report(2)).jobs.len(), 1, "it may not have arrived");
    let ended = |number| WorkerReport { results: vec![result()], ..report(number) };
    assert!(table.say(&ended(3)).acknowledged.is_empty());
    assert_eq!(table.heard(), [done().event(STEP, 1)]);
    assert!(table.say(&ended(4)).acknowledged.is_empty());
    assert_eq!(table.heard(), [], "it is told once");
    let mut journal = table.run.wrap_journal(&table.plan, Vec::new());
    let JobOutcome::Ran { end } = done() else { unreachable!() };
    journal.append(&[Record::Ran { step: STEP, attempt: 1, end, at: 0 }]).unwrap();
    assert_eq!(table.say(&ended(5)).acknowledged, [id()]);
    assert_eq!(table.say(&ended(6)).acknowledged, [id()], "the answer may have been lost");
    assert!(table.say(&report(7)).is_empty());
}

#[test]
fn unrecorded_result_is_reported_again_on_ask() {
    let mut table = Table::new();
    table.act(START);
    table.give(1);
    let ended = |number| WorkerReport { results: vec![result()], ..report(number) };
    table.say(&ended(2));
    // The journal broke, and the run was read back.
    table.open_again(&[]);
    assert!(table.say(&ended(3)).acknowledged.is_empty());
    table.act(Effect::Ask { step: STEP, attempt: 1 });
    table.say(&ended(4));
    let JobOutcome::Ran { end } = done() else { unreachable!() };
    assert_eq!(table.heard(), [found(AttemptStatus::Ended(end))]);
}

#[test]
fn report_before_the_reopened_run_asks_is_not_lost() {
    let JobOutcome::Ran { end } = done() else { unreachable!() };
    let ask = Effect::Ask { step: STEP, attempt: 1 };
    let mut table = Table::new();
    table.dispatcher.complete();
    table.open_again(&[((STEP, 1), Some("m"))]);
    let running = WorkerReport { running: vec![id()], ..report(1) };
    assert!(table.say(&running).is_empty(), "it is not ended");
    let ended = |number| WorkerReport { results: vec![result()], ..report(number) };
    assert!(table.say(&ended(2)).is_empty(), "no journal has it");
    table.act(ask);
    assert!(table.say(&ended(3)).is_empty());
    let ran = done().event(STEP, 1);
    assert_eq!(table.heard(), [found(AttemptStatus::Running), ran], "once");
    let mut journal = table.run.wrap_journal(&table.plan, Vec::new());
    let record = Record::Ran { step: STEP, attempt: 1, end: end.clone(), at: 0 };
    journal.append(&[record]).unwrap();
    assert_eq!(table.say(&ended(4)).acknowledged, [id()]);
    // The machine reports to a run whose journal then breaks.
    let mut table = Table::new();
    table.open_again(&[((STEP, 1), Some("m"))]);
    table.say(&ended(1));
    table.open_again(&[((STEP, 1), Some("m"))]);
    table.say(&ended(2));
    assert_eq!(table.heard(), [found(AttemptStatus::Ended(end))]);
}

#[test]
fn silent_machine_is_lost_and_its_work_killed_on_return() {
    let mut table = Table::new();
    table.act(START);
    table.give(1);
    table.say(&WorkerReport { running: vec![id()], ..report(2) });
    table.dispatcher.tick(table.began + LOST_AFTER.saturating_sub(Duration::from_secs(1)));
    assert_eq!(table.heard(), []);
    table.dispatcher.tick(table.began + LOST_AFTER + Duration::from_secs(1));
    assert_eq!(table.heard(), [found(AttemptStatus::Gone)]);
    let orders = table.say(&WorkerReport { running: vec![id()], ..report(3) });
    assert_eq!(orders.kill, [id()]);
    let orders = table.say(&WorkerReport { results: vec![result()], ..report(4) });
    assert_eq!((orders.acknowledged, table.heard()), (vec![id()], vec![]));
}

#[test]
fn worker_directory_is_private() {
    use std::os::unix::fs::PermissionsExt as _;
    let dir = tempfile::tempdir().unwrap();
    let own = dir.path().join("new/node");
    Worker::new(setup(&own, &Arc::new(Count::default()))).unwrap();
    assert_eq!(fs_err::metadata(&own).unwrap().permissions().mode() & 0o777, 0o700);
}

#[test]
fn two_workers_do_not_share_a_directory() {
    let dir = tempfile::tempdir().unwrap();
    let count = Arc::new(Count::default());
    let first = Worker::new(setup(dir.path(), &count)).unwrap();
    let refused = Worker::new(setup(dir.path(), &count)).unwrap_err();
    assert!(refused.to_string().starts_with("another worker uses"), "{refused}");
    drop(first);
    Worker::new(setup(dir.path(), &count)).unwrap();
}

#[test]
fn repeated_order_for_acknowledged_work_is_lost() {
    let dir = tempfile::tempdir().unwrap();
    let count = Arc::new(Count::default());
    let mut worker = Worker::new(setup(dir.path(), &count)).unwrap();
    let plan = plan(2, 1, Repeat::Never, &Value::Null);
    let job = Job::of("r", &plan, START).unwrap();
    let told = || Orders { jobs: vec![job.clone()], ..Orders::default() };
    worker.obey(told());
    while worker.is_busy() {
        std::thread::yield_now();
    }
    worker.obey(told());
    let said = worker.report();
    assert_eq!((said.results.len(), said.lost), (1, vec![]), "it knows how it ended");
    let acknowledged = || Orders { acknowledged: vec![id()], ..Orders::default() };
    worker.obey(acknowledged());
    worker.obey(told());
    let said = worker.report();
    assert_eq!((said.results.len(), said.lost), (0, vec![id()]));
    worker.obey(acknowledged());
    assert_eq!(worker.report().lost, []);
    assert_eq!(count.0.lock()["r/1/1"], 1);
}

#[test]
fn work_on_a_silent_machine_never_began() {
    let mut table = Table::new();
    table.act(START);
    table.act(Effect::Verify { step: StepId(0), attempt: 1 });
    table.dispatcher.tick(Instant::now() + LOST_AFTER);
    let said = table.heard();
    let failed = said.iter().any(|event| {
        matches!(event, Event::Ran { end: End::NotBegun { reason: Some(reason) }, .. } if reason == "`n0` has not reported for 600 s")
    });
    assert!(failed && said.len() == 2, "{said:?}");
    assert!(table.say(&report(1)).jobs.is_empty(), "and does not begin it any more");
}

#[test]
fn work_of_an_earlier_controller_is_asked_about() {
    let asked = |report: WorkerReport| {
        let mut table = Table::new();
        table.open_again(&[((STEP, 1), Some("m"))]);
        table.act(Effect::Ask { step: STEP, attempt: 1 });
        table.say(&report);
        table.heard()
    };
    assert_eq!(asked(report(1)), [found(AttemptStatus::Never)]);
    assert_eq!(
        asked(WorkerReport { running: vec![id()], ..report(1) }),
        [found(AttemptStatus::Running)]
    );
    let JobOutcome::Ran { end } = done() else { unreachable!() };
    assert_eq!(
        asked(WorkerReport { results: vec![result()], ..report(1) }),
        [found(AttemptStatus::Ended(end))]
    );
    assert_eq!(asked(WorkerReport { lost: vec![id()], ..report(1) }), [found(AttemptStatus::Gone)]);
    // A reinstalled machine has no memory of the attempt.
    let anew = WorkerReport { memory: "another".to_owned(), ..report(1) };
    assert_eq!(asked(anew), [found(AttemptStatus::Gone)]);
}

#[test]
fn work_without_a_given_record_never_began() {
    for memory in ["m", "another"] {
        let mut table = Table::new();
        table.open_again(&[((STEP, 1), None)]);
        table.act(Effect::Ask { step: STEP, attempt: 1 });
        assert_eq!(table.heard(), [found(AttemptStatus::Never)], "no report is needed");
        table.act(START);
        let comes = WorkerReport { memory: memory.to_owned(), ..report(1) };
        assert!(table.say(&comes).jobs.is_empty(), "no journal has it");
        table.keep_given();
        assert_eq!(table.say(&comes).jobs.len(), 1);
    }
}

#[test]
fn work_given_to_a_lost_memory_is_not_given_again() {
    let mut table = Table::new();
    table.act(START);
    assert_eq!(table.give(1).jobs.len(), 1);
    let anew = WorkerReport { memory: "another".to_owned(), ..report(1) };
    assert!(table.say(&anew).jobs.is_empty(), "the other one may have begun it");
    assert_eq!(table.heard(), [found(AttemptStatus::Gone)]);
    // Work that was only offered goes to the new memory.
    let mut table = Table::new();
    table.act(START);
    table.say(&report(1));
    assert!(table.say(&anew).jobs.is_empty());
    table.keep_given();
    assert_eq!(table.say(&anew).jobs.len(), 1);
}

#[test]
fn offer_lost_with_its_journal_is_repeated() {
    let mut table = Table::new();
    table.act(START);
    table.say(&report(1));
    // The event is lost together with the journal.
    table.open_again(&[((STEP, 1), None)]);
    assert_eq!(table.heard(), [found(AttemptStatus::Never)]);
    table.act(START);
    assert_eq!(table.give(2).jobs.len(), 1);
    // The journal got the record just before it broke.
    let mut table = Table::new();
    table.act(START);
    table.say(&report(1));
    table.open_again(&[((STEP, 1), Some("m"))]);
    assert_eq!(table.say(&report(2)).jobs.len(), 1);
}

#[test]
fn report_with_too_long_memory_is_ignored() {
    let mut table = Table::new();
    table.act(START);
    let named = |length| WorkerReport { memory: "m".repeat(length), ..report(1) };
    table.say(&named(MAX_MEMORY + 1));
    assert_eq!(table.heard(), []);
    table.say(&named(MAX_MEMORY));
    assert_eq!(table.heard().len(), 1);
}

#[test]
fn machine_with_new_memory_has_lost_its_work() {
    let mut table = Table::new();
    table.act(START);
    table.give(1);
    table.say(&WorkerReport { running: vec![id()], ..report(2) });
    table.say(&WorkerReport { memory: "another".to_owned(), ..report(1) });
    assert_eq!(table.heard(), [found(AttemptStatus::Gone)]);
    // Reports of the old memory are ignored.
    assert!(table.say(&WorkerReport { running: vec![id()], ..report(3) }).is_empty());
}

#[test]
fn stopped_work_is_not_handed_out() {
    let mut table = Table::new();
    table.act(START);
    table.act(Effect::Kill { step: STEP, attempt: 1 });
    let end = End::NotBegun { reason: None };
    assert_eq!(table.heard(), [Event::Ran { step: STEP, attempt: 1, end }]);
    assert!(table.say(&report(1)).jobs.is_empty());
    let mut table = Table::new();
    table.act(START);
    table.give(1);
    table.say(&WorkerReport { running: vec![id()], ..report(2) });
    table.act(Effect::Kill { step: STEP, attempt: 1 });
    assert_eq!(table.say(&WorkerReport { running: vec![id()], ..report(3) }).kill, [id()]);
}

#[test]
fn work_of_unknown_runs_is_dropped_once_complete() {
    let table = Table::new();
    let foreign = WorkId("other/1/1".to_owned());
    let holds = |number| WorkerReport {
        running: vec![WorkId("other/2/1".to_owned())],
        results: vec![WorkResult { id: foreign.clone(), outcome: done(), output: None }],
        ..report(number)
    };
    assert!(table.say(&holds(1)).is_empty(), "its run may be read back yet");
    table.dispatcher.complete();
    let orders = table.say(&holds(2));
    assert_eq!((orders.acknowledged, orders.kill.len()), (vec![foreign], 1));
}

#[test]
fn work_of_a_run_elsewhere_is_kept_until_disowned() {
    let table = Table::new();
    let foreign = WorkId("other/1/1".to_owned());
    let holds = |number| WorkerReport {
        running: vec![WorkId("another/2/1".to_owned())],
        results: vec![WorkResult { id: foreign.clone(), outcome: done(), output: None }],
        ..report(number)
    };
    assert!(table.say(&holds(1)).is_empty());
    let unknown_runs = table.dispatcher.unknown_runs();
    assert_eq!(unknown_runs, BTreeSet::from(["another".to_owned(), "other".to_owned()]));
    assert!(table.dispatcher.unknown_runs().is_empty());
    table.dispatcher.disown(BTreeSet::from(["other".to_owned()]));
    let orders = table.say(&holds(2));
    assert_eq!((orders.acknowledged, orders.kill), (vec![foreign], vec![]));
    assert_eq!(table.dispatcher.unknown_runs(), BTreeSet::from(["another".to_owned()]));
}

#[test]
fn machine_gets_a_bounded_number_of_jobs() {
    let (send, events) = channel();
    let dispatcher = Dispatcher::new(LOST_AFTER, |_| {});
    let count = u32::try_from(MAX_JOBS).unwrap() + 1;
    let plan = plan(count, 1, Repeat::Safe, &Value::Null);
    let mut run = dispatcher.open("r", send, Outputs::none(), &plan, BTreeMap::new());
    for step in 0..count {
        run.act(&plan, Effect::Start { step: StepId(step), attempt: 1 });
    }
    let mut journal = run.wrap_journal(&plan, Vec::new());
    for _ in 0..2 {
        assert!(dispatcher.exchange("n0", &report(1), Instant::now()).jobs.is_empty());
    }
    let given: Vec<Event> = events.try_iter().collect();
    assert_eq!(given.len(), MAX_JOBS, "nor is it promised");
    for event in given {
        let Event::Given { step, attempt, to } = event else { panic!("{event:?}") };
        journal.append(&[Record::Given { step, attempt, to, at: 0 }]).unwrap();
    }
    assert_eq!(dispatcher.exchange("n0", &report(1), Instant::now()).jobs.len(), MAX_JOBS);
}

#[test]
fn large_output_loses_its_middle() {
    let mut noise = Vec::new();
    let mut seed = 7_u64;
    while noise.len() < 3 * MAX_OUTPUT {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        noise.extend_from_slice(&seed.to_le_bytes()[2..]);
    }
    let packed = CompressedOutput::new(&noise).expect("it fits without its middle");
    let compressed = packed.compressed().expect("within the limit");
    assert!(compressed.len() <= MAX_OUTPUT);
    let plain = zstd::decode_all(&compressed[..]).unwrap();
    assert!(plain.starts_with(&noise[..1000]) && plain.ends_with(&noise[noise.len() - 1000..]));
    assert!(String::from_utf8_lossy(&plain).contains("bytes were left out here"));
}

/// A transport: lines of JSON over TCP.
struct Lines(BufReader<TcpStream>);

impl Transport for Lines {
    fn exchange(&mut self, report: &WorkerReport) -> Result<Orders, Unreachable> {
        let mut talk = || {
            let mut line = serde_json::to_string(report)?;
            line.push('\n');
            self.0.get_mut().write_all(line.as_bytes())?;
            let mut answer = String::new();
            self.0.read_line(&mut answer)?;
            Ok::<Orders, std::io::Error>(serde_json::from_str(&answer)?)
        };
        talk().map_err(|error| Unreachable(error.to_string()))
    }
}

const ADDRESS: &str = "HOIST_TEST_WORKER_ADDRESS";
const DIRECTORY: &str = "HOIST_TEST_WORKER_DIRECTORY";

/// A program for the test below: its worker process. Without its variables it does nothing.
#[test]
#[ignore = "program for another test, which starts it"]
fn worker_of_another_process() {
    let (Ok(address), Ok(dir)) = (std::env::var(ADDRESS), std::env::var(DIRECTORY)) else { return };
    let mut worker =
        Worker::new(setup(Path::new(&dir), &Arc::new(Count::default()))).expect("a worker");
    let mut lines = Lines(BufReader::new(TcpStream::connect(address).expect("the controller")));
    worker.work(&mut lines, &Cancel::default());
}

struct Process(Child);

impl Process {
    fn start(address: &str, dir: &Path) -> Self {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "pull::tests::worker_of_another_process"])
            .env(ADDRESS, address)
            .env(DIRECTORY, dir)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("this test again");
        Self(child)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.0.kill().expect("it can be killed");
        self.0.wait().expect("it ends");
    }
}

/// The journal and the begun attempts of a run whose worker is killed halfway; with `all`, its
/// program is killed too.
fn with_a_worker_killed(all: bool) -> (Vec<Record>, Vec<String>) {
    let dir = tempfile::tempdir().unwrap();
    let dispatcher = Dispatcher::new(LOST_AFTER, |_| {});
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let server = Arc::clone(&dispatcher);
    std::thread::spawn(move || {
        for connection in listener.incoming() {
            let mut lines = BufReader::new(connection.unwrap());
            let dispatcher = Arc::clone(&server);
            std::thread::spawn(move || {
                let mut line = String::new();
                while lines.read_line(&mut line).is_ok_and(|read| read > 0) {
                    let orders = dispatcher.exchange(
                        "n0",
                        &serde_json::from_str(&line).unwrap(),
                        Instant::now(),
                    );
                    let answer = serde_json::to_string(&orders).unwrap() + "\n";
                    if lines.get_mut().write_all(answer.as_bytes()).is_err() {
                        return;
                    }
                    line.clear();
                }
            });
        }
    });
    let gate = dir.path().join("gate");
    let begun = dir.path().join("begun");
    // The first attempt of the first step waits for the gate.
    let script = format!(
        "echo $HOIST_ATTEMPT >> {0}; case $HOIST_ATTEMPT in r/0/1) echo $$ > {1}.pid; until [ -e {1} ]; do sleep 0.05; done;; esac",
        begun.display(),
        gate.display()
    );
    let plan = plan(4, 1, Repeat::Safe, &json!({ "sh": script }));
    let outputs = Outputs::in_dir(dir.path().join("output"));
    let (_send, run) = drive_run(&dispatcher, &plan, outputs);
    let node = dir.path().join("node");
    let first = Process::start(&address, &node);
    let pid = PathBuf::from(format!("{}.pid", gate.display()));
    eventually("first step runs", || {
        fs_err::read_to_string(&pid).is_ok_and(|pid| pid.ends_with('\n'))
    });
    let left = fs_err::read_to_string(&pid).unwrap();
    drop(first);
    assert!(Path::new(&format!("/proc/{}", left.trim())).exists(), "it outlives the worker");
    if all {
        let pid = rustix::process::Pid::from_raw(left.trim().parse().unwrap());
        let group = rustix::process::getpgid(pid).expect("it runs");
        rustix::process::kill_process_group(group, rustix::process::Signal::KILL).unwrap();
    }
    let _second = Process::start(&address, &node);
    if !all {
        fs_err::write(&gate, "").unwrap();
    }
    eventually("run ends", || run.is_finished());
    let (halt, journal) = run.join().unwrap();
    assert_eq!(halt, Halt::Finished(Outcome::Succeeded), "{journal:?}");
    let mut lines: Vec<String> =
        fs_err::read_to_string(&begun).unwrap().lines().map(str::to_owned).collect();
    lines.sort();
    (journal, lines)
}

#[test]
fn killed_worker_continues_running_programs() {
    let (journal, lines) = with_a_worker_killed(false);
    assert!(!journal.iter().any(|record| matches!(record, Record::Lost { .. })), "{journal:?}");
    assert_eq!(lines, ["r/0/1", "r/1/1", "r/2/1", "r/3/1"], "each once");
}

#[test]
fn worker_killed_with_its_program_begins_nothing_twice() {
    let (journal, lines) = with_a_worker_killed(true);
    assert!(journal.contains(&Record::Lost { step: StepId(0), attempt: 1, at: lost_at(&journal) }));
    assert_eq!(lines, ["r/0/1", "r/0/2", "r/1/1", "r/2/1", "r/3/1"], "each once");
}

fn lost_at(journal: &[Record]) -> u64 {
    journal.iter().find(|record| matches!(record, Record::Lost { .. })).map_or(0, Record::at)
}
