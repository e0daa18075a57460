use std::collections::BTreeMap;
use std::process::Command;
use std::sync::mpsc::{Receiver, channel};

use hoist_diagnostic::Diagnostic;
use serde_json::json;

use super::*;
use crate::action::{ApplyOutcome, Description, Stream};
use crate::drive::{self, Halt};
use crate::plan::{Draft, Kind, Vertex};
use crate::record::Outcome;
use crate::run::Run;

/// Does what its input says.
#[derive(Default)]
struct Odd {
    looks: Mutex<BTreeMap<String, u32>>,
}

impl Action for Odd {
    fn describe(&self) -> Description {
        Description { name: "odd".to_owned(), ..Description::default() }
    }

    fn validate(&self, _: &Value) -> Vec<Diagnostic> {
        Vec::new()
    }

    fn apply(&self, step: &Step, ctx: &mut Ctx<'_>) -> Result<ApplyOutcome, Failure> {
        let input = &step.call.input;
        if let Some(reference) = input["secret"].as_str() {
            let value = ctx.secrets.get(reference)?;
            ctx.output.line(Stream::Out, format!("the password is {value}").as_bytes());
            return Err(Failure {
                kind: FailureKind::Exit,
                reason: format!("no such user: {value}"),
            });
        }
        match input["do"].as_str() {
            Some("panic") => panic!("upside down"),
            Some("wait") => {
                let time =
                    ctx.time_left(std::time::Instant::now()).unwrap_or(Duration::from_mins(1));
                nap(time, ctx.cancel);
                Err(Failure { kind: FailureKind::Timeout, reason: "too long".to_owned() })
            }
            Some("boast") => {
                Ok(ApplyOutcome { changed: true, receipt: "x".repeat(MAX_RECEIPT).into() })
            }
            _ => Ok(ApplyOutcome {
                changed: true,
                receipt: json!({"was": ctx.directory, "of": ctx.attempt}),
            }),
        }
    }

    fn verify(&self, step: &Step, ctx: &mut Ctx<'_>) -> Result<Verdict, Failure> {
        let input = &step.call.input;
        if let Some(line) = input["prints"].as_str() {
            ctx.output.line(Stream::Out, line.as_bytes());
            return Ok(Verdict::fails(format!("it is {line}")));
        }
        if let Some(script) = input["sh"].as_str() {
            let mut command = Command::new("/bin/sh");
            command.args(["-c", script]);
            let ran = process::run(&mut command, b"", ctx.deadline, ctx.cancel, ctx.output);
            return Ok(ran.expect("a shell").verdict());
        }
        assert!(input.get("poll").is_none() && input.get("says").is_none());
        let holds_at = input["holds_at"].as_u64().unwrap_or(0);
        let mut looks = self.looks.lock();
        let look = looks.entry(input["name"].as_str().unwrap_or_default().to_owned()).or_default();
        *look += 1;
        if u64::from(*look) >= holds_at {
            return Ok(Verdict::Holds);
        }
        Ok(Verdict::fails(format!("look {look} of {holds_at}")))
    }

    fn undo(
        &self,
        _: &Step,
        made: &AppliedAttempt,
        ctx: &mut Ctx<'_>,
    ) -> Result<UndoOutcome, Failure> {
        ctx.output.line(Stream::Out, made.attempt.as_bytes());
        if made.receipt.is_null() {
            return Ok(UndoOutcome::NotPossible { reason: "nothing is known".to_owned() });
        }
        Ok(UndoOutcome::Undone)
    }
}

struct One;

impl Secrets for One {
    fn get(&self, _: &str) -> Result<String, Failure> {
        Ok("hunter2".to_owned())
    }
}

struct Bench {
    dir: tempfile::TempDir,
    executor: LocalExecutor,
    events: Receiver<Event>,
}

impl Bench {
    fn new() -> Self {
        Self::again(tempfile::tempdir().unwrap())
    }

    fn again(dir: tempfile::TempDir) -> Self {
        let mut catalog = Catalog::default();
        catalog.add(Arc::new(Odd::default()));
        let site = ExecutionSite {
            catalog,
            secrets: Arc::new(One),
            outputs: Outputs::in_dir(dir.path().join("output")),
            base: BaseDirectory::Below(dir.path().join("local")),
        };
        let (send, events) = channel();
        let executor =
            LocalExecutor::new("r1", site, &dir.path().join("told"), send, None).expect("a ledger");
        Self { dir, executor, events }
    }

    /// Carries out an effect and returns its event.
    fn act(&mut self, plan: &Plan, effect: Effect) -> Event {
        self.executor.act(plan, effect);
        self.next()
    }

    fn next(&self) -> Event {
        self.events.recv_timeout(Duration::from_mins(1)).expect("an event")
    }
}

const STEP: StepId = StepId(0);
const START: Effect = Effect::Start { step: STEP, attempt: 1 };
const ASK: Effect = Effect::Ask { step: STEP, attempt: 1 };

fn call(input: Value) -> Call {
    Call { action: "odd".to_owned(), input, ..Call::default() }
}

fn plan(step: Step) -> Plan {
    let step = Step { subject: Some(0), ..step };
    let vertex =
        Vertex { name: "t@n".to_owned(), after: Vec::new(), kind: Kind::Step(Box::new(step)) };
    let draft =
        Draft { vertices: vec![vertex], subjects: vec!["n".to_owned()], ..Draft::default() };
    Plan::new(draft).expect("a plan")
}

fn of(input: Value) -> Plan {
    plan(Step { call: call(input), ..Step::default() })
}

fn failure(event: Event) -> (FailureKind, String) {
    match event {
        Event::Ran { end: End::Failed { kind, reason }, .. } => (kind, reason),
        other => panic!("{other:?}"),
    }
}

fn not_begun(event: Event) -> Option<String> {
    match event {
        Event::Ran { end: End::NotBegun { reason }, .. } => reason,
        other => panic!("{other:?}"),
    }
}

#[test]
fn step_runs_once_in_the_directory_of_its_subject() {
    let mut bench = Bench::new();
    let plan = of(json!({}));
    let Event::Ran { end: End::Done { changed: true, receipt }, .. } = bench.act(&plan, START)
    else {
        panic!("it is done")
    };
    let place = fs_err::canonicalize(bench.dir.path().join("local/n")).unwrap();
    assert_eq!(receipt, json!({"was": place, "of": "r1/0/1"}));
    // The same attempt again is answered with its recorded outcome.
    let again = bench.act(&plan, START);
    assert!(
        matches!(again, Event::Found { found: AttemptStatus::Ended(End::Done { .. }), .. }),
        "{again:?}"
    );
}

#[test]
fn attempt_outcome_survives_a_restart() {
    let mut bench = Bench::again(Bench::new().dir);
    let plan = of(json!({}));
    let never = bench.act(&plan, ASK);
    assert!(matches!(never, Event::Found { found: AttemptStatus::Never, .. }), "{never:?}");
    bench.act(&plan, START);
    let mut again = Bench::again(bench.dir);
    let found = again.act(&plan, ASK);
    assert!(
        matches!(found, Event::Found { found: AttemptStatus::Ended(End::Done { .. }), .. }),
        "{found:?}"
    );
}

#[test]
fn attempt_with_lost_ledger_does_not_begin_again() {
    let bench = Bench::new();
    let plan = of(json!({}));
    let told = bench.dir.path().join("told");
    for lose in [|path: &Path| fs_err::write(path, ""), |path: &Path| fs_err::remove_file(path)] {
        lose(&told).unwrap();
        for _life in 0..2 {
            let (send, events) = channel();
            let site = ExecutionSite {
                catalog: Catalog::default(),
                secrets: Arc::new(NoSecrets),
                outputs: Outputs::none(),
                base: BaseDirectory::Machine,
            };
            let mut executor = LocalExecutor::new("r1", site, &told, send, None).unwrap();
            executor.act(&plan, ASK);
            let found = events.recv_timeout(Duration::from_mins(1)).unwrap();
            assert!(matches!(found, Event::Found { found: AttemptStatus::Gone, .. }), "{found:?}");
        }
    }
}

#[test]
fn attempt_of_a_dead_controller_is_gone_with_its_programs() {
    let mut bench = Bench::new();
    let plan = of(json!({"do": "wait"}));
    bench.executor.act(&plan, START);
    let running = bench.act(&plan, ASK);
    assert!(matches!(running, Event::Found { found: AttemptStatus::Running, .. }), "{running:?}");
    let programs = AttemptPrograms::new(&bench.executor.kept);
    let sleep = |attempt| Command::new("sleep").arg("300").envs(programs.marks(attempt)).spawn();
    let mut left = sleep("r1/0/1").unwrap();
    let mut other = sleep("r1/0/10").unwrap();
    let Bench { dir, executor: _executor, events: _events } = bench;
    let mut again = Bench::again(dir);
    let found = again.act(&plan, ASK);
    assert!(matches!(found, Event::Found { found: AttemptStatus::Gone, .. }), "{found:?}");
    assert!(!left.wait().unwrap().success(), "it was ended");
    assert_eq!(other.try_wait().unwrap(), None, "another attempt's was not");
    other.kill().unwrap();
    other.wait().unwrap();
}

#[test]
fn attempt_of_a_dropped_executor_is_gone_for_the_next() {
    let mut bench = Bench::new();
    let plan = of(json!({"do": "wait"}));
    bench.executor.act(&plan, START);
    assert!(matches!(bench.act(&plan, ASK), Event::Found { found: AttemptStatus::Running, .. }));
    let Bench { dir, executor, events } = bench;
    drop(executor);
    // The channel closes when the action has ended.
    assert!(events.recv_timeout(Duration::from_mins(1)).is_err(), "nothing is told");
    let found = Bench::again(dir).act(&plan, ASK);
    assert!(matches!(found, Event::Found { found: AttemptStatus::Gone, .. }), "{found:?}");
}

#[test]
fn panicking_action_is_a_failed_step() {
    let mut bench = Bench::new();
    let (kind, reason) = failure(bench.act(&of(json!({"do": "panic"})), START));
    assert_eq!(
        (kind, reason.as_str()),
        (FailureKind::Internal, "the action panicked: upside down")
    );
    let unknown =
        plan(Step { call: Call { action: "od".to_owned(), ..Call::default() }, ..Step::default() });
    let event = bench.act(&unknown, Effect::Start { step: STEP, attempt: 2 });
    assert_eq!(
        not_begun(event).unwrap(),
        "action `od` is not available on this machine; install its plug-in"
    );
}

#[test]
fn subject_that_leaves_the_base_directory_is_refused() {
    let mut bench = Bench::new();
    for name in ["..", "/etc", "a/../../b", "a/b"] {
        let step = Step { subject: Some(0), call: call(json!({})), ..Step::default() };
        let vertex =
            Vertex { name: "t".to_owned(), after: Vec::new(), kind: Kind::Step(Box::new(step)) };
        let draft =
            Draft { vertices: vec![vertex], subjects: vec![name.to_owned()], ..Draft::default() };
        let attempt = u32::try_from(name.len()).unwrap();
        let event = bench.act(&Plan::new(draft).unwrap(), Effect::Start { step: STEP, attempt });
        let reason = format!("subject `{name}` is not a valid name of a directory");
        assert_eq!(not_begun(event), Some(reason));
    }
}

#[test]
fn timeout_fails_and_stop_interrupts_a_step() {
    let mut bench = Bench::new();
    let waits = call(json!({"do": "wait"}));
    let short = plan(Step { call: waits.clone(), timeout_ms: Some(30), ..Step::default() });
    assert_eq!(failure(bench.act(&short, START)).0, FailureKind::Timeout);
    let long = plan(Step { call: waits, ..Step::default() });
    bench.executor.act(&long, Effect::Start { step: STEP, attempt: 2 });
    let event = bench.act(&long, Effect::Kill { step: STEP, attempt: 2 });
    // The kill may arrive before the start.
    let Event::Ran { end: End::Interrupted | End::NotBegun { reason: None }, .. } = event else {
        panic!("{event:?}")
    };
}

#[test]
fn stop_ends_checks_as_well() {
    let mut bench = Bench::new();
    let kill = Effect::Kill { step: STEP, attempt: 1 };
    let begun = bench.dir.path().join("begun");
    let long = call(json!({"sh": format!("touch {}; exec sleep 600", begun.display())}));
    let never = call(json!({"holds_at": 1_000_000, "poll": {"for_ms": 600_000}}));
    let wait_until_begun = || {
        hoist_testkit::eventually("check starts", || fs_err::remove_file(&begun));
    };
    let before = plan(Step { before: vec![long.clone()], ..Step::default() });
    bench.executor.act(&before, Effect::Check { step: STEP, attempt: 1 });
    wait_until_begun();
    let event = bench.act(&before, kill);
    assert!(matches!(event, Event::Checked { failed: Some(_), .. }), "{event:?}");
    for (check, begins) in [(long, true), (never, false)] {
        let after = plan(Step { after: vec![check], ..Step::default() });
        bench.executor.act(&after, Effect::Verify { step: STEP, attempt: 1 });
        if begins {
            wait_until_begun();
        }
        let event = bench.act(&after, kill);
        assert!(matches!(event, Event::Verified { failed: Some(_), .. }), "{event:?}");
    }
}

#[test]
fn secret_is_in_no_output_and_no_reason() {
    let mut bench = Bench::new();
    let (_, reason) = failure(bench.act(&of(json!({"secret": "db"})), START));
    assert_eq!(reason, "no such user: [hidden]");
    let outputs = Outputs::in_dir(bench.dir.path().join("output"));
    let output = outputs.read(STEP, 1).unwrap().unwrap();
    assert_eq!(String::from_utf8(output).unwrap(), "the password is [hidden]\n");
}

fn refusal(event: Event) -> FailedCheck {
    match event {
        Event::Verified { failed: Some(check), .. } => check,
        other => panic!("{other:?}"),
    }
}

#[test]
fn check_does_not_print_secrets_of_the_step() {
    let given = call(json!({"steps": [{"input": {"secrets": {"PASSWORD": "db"}}}]}));
    let prints = call(json!({"prints": "user=db password=hunter2"}));
    let verify = Effect::Verify { step: STEP, attempt: 1 };
    let calls = [
        Step { call: given.clone(), ..Step::default() },
        Step { before: vec![given.clone()], ..Step::default() },
        Step { undo: Some(given), ..Step::default() },
    ];
    for step in calls {
        let mut bench = Bench::new();
        let plan = plan(Step { after: vec![prints.clone()], ..step });
        let check = refusal(bench.act(&plan, verify));
        assert_eq!(check.output, "it is user=db password=[hidden]");
        let outputs = Outputs::in_dir(bench.dir.path().join("output"));
        let output = outputs.read(STEP, 1).unwrap().unwrap();
        assert_eq!(String::from_utf8(output).unwrap(), "user=db password=[hidden]\n");
    }
}

#[test]
fn quoted_last_line_holds_no_part_of_a_secret() {
    let mut bench = Bench::new();
    let mut reason = |script: &str| {
        let given = call(json!({"secrets": {"PASSWORD": "db"}}));
        let check = call(json!({"sh": script}));
        let plan = plan(Step { call: given, after: vec![check], ..Step::default() });
        let check = refusal(bench.act(&plan, Effect::Verify { step: STEP, attempt: 1 }));
        (check.exit_code, check.output)
    };
    // A secret across the end of the quote,
    let cut = reason("printf '%0297d' 0; echo hunter2; exit 1");
    assert_eq!(cut, (Some(1), format!("{}[hi", "0".repeat(297))));
    // and a secret across the border between two parts of a long line.
    let parts = reason("printf '%065533d' 0; sleep 0.3; printf hun; sleep 0.3; echo ter2; exit 1");
    assert_eq!(parts, (Some(1), "0".repeat(300)));
}

#[test]
fn failed_check_has_title_output_and_exit_code_apart() {
    let mut bench = Bench::new();
    let look = |input: Value| plan(Step { after: vec![call(input)], ..Step::default() });
    let verify = Effect::Verify { step: STEP, attempt: 1 };
    let titled = json!({"sh": "echo alice pts/0; exit 3", "says": "no one is logged in"});
    let check = refusal(bench.act(&look(titled), verify));
    let wanted = FailedCheck {
        title: "no one is logged in".to_owned(),
        output: "alice pts/0".to_owned(),
        exit_code: Some(3),
    };
    assert_eq!(check, wanted);
    assert_eq!(check.to_string(), r#""no one is logged in" failed (exit code 3): alice pts/0"#);
    // Without a title the check has the name of its action; a signal is not an exit code.
    let check = refusal(bench.act(&look(json!({"sh": "kill -9 $$"})), verify));
    let output = "killed by signal 9".to_owned();
    assert_eq!(check, FailedCheck { title: "odd".to_owned(), output, exit_code: None });
    let unknown = Call { action: "gone".to_owned(), ..Call::default() };
    let unknown = plan(Step { before: vec![unknown], ..Step::default() });
    let event = bench.act(&unknown, Effect::Check { step: STEP, attempt: 1 });
    let Event::Checked { failed: Some(check), .. } = event else { panic!("{event:?}") };
    assert_eq!((check.title.as_str(), check.exit_code), ("gone", None));
    assert!(check.output.starts_with("action `gone` is not available"), "{check}");
}

#[test]
fn too_large_receipt_is_left_out() {
    let mut bench = Bench::new();
    let event = bench.act(&of(json!({"do": "boast"})), START);
    let Event::Ran { end, .. } = event else { panic!("{event:?}") };
    assert_eq!(end, End::Done { changed: true, receipt: Value::Null });
    let outputs = Outputs::in_dir(bench.dir.path().join("output"));
    let said = String::from_utf8(outputs.read(STEP, 1).unwrap().unwrap()).unwrap();
    assert!(said.starts_with("hoist: the receipt has 262146 bytes and is left out"), "{said}");
}

#[test]
fn only_postconditions_are_polled() {
    let mut bench = Bench::new();
    let check = |name: &str| {
        call(
            json!({"name": name, "holds_at": 3, "says": "it is up", "poll": {"for_ms": 60_000, "every_ms": 20}}),
        )
    };
    let before = plan(Step { before: vec![check("b")], ..Step::default() });
    let event = bench.act(&before, Effect::Check { step: STEP, attempt: 1 });
    let Event::Checked { failed, .. } = event else { panic!("{event:?}") };
    let title = "it is up".to_owned();
    let output = "look 1 of 3".to_owned();
    assert_eq!(failed, Some(FailedCheck { title, output, exit_code: None }));
    let after = plan(Step { after: vec![check("a")], ..Step::default() });
    let event = bench.act(&after, Effect::Verify { step: STEP, attempt: 1 });
    assert!(matches!(event, Event::Verified { failed: None, .. }), "{event:?}");
    let never =
        call(json!({"name": "n", "holds_at": 1_000_000, "poll": {"for_ms": 50, "every_ms": 20}}));
    let event = bench.act(
        &plan(Step { after: vec![never], ..Step::default() }),
        Effect::Verify { step: STEP, attempt: 1 },
    );
    assert!(matches!(event, Event::Verified { failed: Some(_), .. }), "{event:?}");
}

#[test]
fn step_is_skipped_when_already_done() {
    let mut bench = Bench::new();
    let step = Step {
        call: call(json!({"do": "panic"})),
        after: vec![call(json!({}))],
        skip_when_done: true,
        ..Step::default()
    };
    let event = bench.act(&plan(step), START);
    assert!(matches!(event, Event::Ran { end: End::Done { changed: false, .. }, .. }), "{event:?}");
}

#[test]
fn undo_call_undoes_every_attempt_with_its_receipt() {
    let mut bench = Bench::new();
    let undo = |receipts: &[Value]| {
        let made = |(at, receipt): (usize, &Value)| AppliedAttempt {
            attempt: format!("r0/7/{}", receipts.len() - at),
            receipt: receipt.clone(),
            ..AppliedAttempt::default()
        };
        let undoes = Some(receipts.iter().enumerate().map(made).collect());
        plan(Step { call: Call { undoes, ..call(json!({})) }, ..Step::default() })
    };
    let event = bench.act(&undo(&[json!(2), json!(1)]), START);
    assert!(matches!(event, Event::Ran { end: End::Done { changed: true, .. }, .. }), "{event:?}");
    let outputs = Outputs::in_dir(bench.dir.path().join("output"));
    assert_eq!(outputs.read(STEP, 1).unwrap().unwrap(), b"r0/7/2\nr0/7/1\n");
    let event =
        bench.act(&undo(&[json!(2), Value::Null]), Effect::Start { step: STEP, attempt: 2 });
    let reason = "cannot undo: attempt r0/7/1: nothing is known".to_owned();
    assert_eq!(failure(event), (FailureKind::Exit, reason));
    let event = bench.act(&undo(&[]), Effect::Start { step: STEP, attempt: 3 });
    let reason = "cannot undo: no attempt is known".to_owned();
    assert_eq!(failure(event), (FailureKind::Exit, reason), "of nothing");
}

#[test]
fn run_of_many_steps_finishes() {
    let vertex = |at: u32| {
        let step = Step {
            call: call(json!({})),
            before: vec![call(json!({}))],
            subject: Some(at % 7),
            ..Step::default()
        };
        let after = at.checked_sub(50).map(StepId).into_iter().collect();
        Vertex { name: format!("t{at}"), after, kind: Kind::Step(Box::new(step)) }
    };
    let subjects = (0..7).map(|at| format!("n{at}")).collect();
    let plan = Arc::new(
        Plan::new(Draft {
            vertices: (0..2000).map(vertex).collect(),
            subjects,
            ..Draft::default()
        })
        .unwrap(),
    );
    let mut bench = Bench::new();
    let mut journal = Vec::new();
    drive::begin(&plan, &mut journal, 0).unwrap();
    let mut run = Run::new(Arc::clone(&plan));
    let halt =
        drive::drive(&mut run, &mut journal, &mut bench.executor, &bench.events, || 0).unwrap();
    assert_eq!(halt, Halt::Finished(Outcome::Succeeded));
}
