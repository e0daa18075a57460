//! Tests of programs that hold with a supervisor and with shells.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use hoist_diagnostic::Diagnostic;
use hoist_engine::action::{Action, ApplyOutcome, Catalog, Ctx, Description, Failure, Verdict};
use hoist_engine::drive::Executor as _;
use hoist_engine::execute::{
    BaseDirectory, ExecutionSite, LocalExecutor, NoSecrets, Outputs, private_dir,
};
use hoist_engine::plan::{Call, Draft, Kind, Plan, Step, StepId, Vertex};
use hoist_engine::program::{ExitCause, ProgramStart};
use hoist_engine::record::{End, FailureKind};
use hoist_engine::run::{AttemptStatus, Effect, Event};
use hoist_testkit::{eventually, eventually_within};
use serde_json::{Value, json};

pub(super) const STEP: StepId = StepId(0);
pub(super) const START: Effect = Effect::Start { step: STEP, attempt: 1 };
pub(super) const ASK: Effect = Effect::Ask { step: STEP, attempt: 1 };
pub(super) const KILL: Effect = Effect::Kill { step: STEP, attempt: 1 };

/// Runs a script. With `secret`, the script finds a file in `$SECRET`; with `large`, so many bytes
/// in its environment; with `unkept`, its end is not reported; with `more`, the action does more
/// than run a program.
struct Sh;

impl Action for Sh {
    fn describe(&self) -> Description {
        Description { name: "sh".to_owned(), ..Description::default() }
    }

    fn validate(&self, _: &Value) -> Vec<Diagnostic> {
        Vec::new()
    }

    fn apply(&self, step: &Step, ctx: &mut Ctx<'_>) -> Result<ApplyOutcome, Failure> {
        let input = &step.call.input;
        let ran = if let Some(program) = ctx.programs.earlier(ctx.attempt) {
            program.follow(ctx.deadline, ctx.cancel, ctx.output)
        } else {
            let script = input["script"].as_str().expect("a script");
            let argv = ["/bin/sh", "-c", script].map(OsString::from).to_vec();
            let marks = ctx.programs.marks(ctx.attempt).map(|(name, value)| (name.into(), value));
            let mut env: Vec<(OsString, OsString)> = std::env::vars_os().chain(marks).collect();
            if input["secret"].is_string() {
                let prefix = ctx.programs.private_prefix(ctx.attempt);
                let dir = private_dir().join(format!("{prefix}x"));
                fs_err::create_dir(&dir).expect("a directory");
                fs_err::write(dir.join("SECRET"), "hunter2").expect("a file");
                env.push(("SECRET".into(), dir.join("SECRET").into()));
            }
            if let Some(size) = input["large"].as_u64() {
                let size = usize::try_from(size).expect("a size");
                // The kernel refuses variables of more than 128 KiB.
                env.extend(
                    (0..size / 1024)
                        .map(|at| (format!("LARGE_{at:04}").into(), "x".repeat(1024 - 11).into())),
                );
            }
            let start = ProgramStart { argv, directory: ctx.directory.to_owned(), env };
            let deadline = ctx.deadline;
            let cancel = ctx.cancel;
            let ran = ctx.programs.run(ctx.attempt, start, deadline, cancel, ctx.output)?;
            if input["unkept"].is_boolean() {
                std::thread::sleep(Duration::from_mins(5));
            }
            Ok(ran)
        };
        let failure = |kind, reason| Err(Failure { kind, reason });
        match ran {
            Err(error) => failure(FailureKind::Lost, error.to_string()),
            Ok(ran) => match (ran.cause, ran.failure()) {
                (_, None) => Ok(ApplyOutcome { changed: true, receipt: Value::Null }),
                (ExitCause::TimedOut, Some(reason)) => failure(FailureKind::Timeout, reason),
                (_, Some(reason)) => failure(FailureKind::Exit, reason),
            },
        }
    }

    fn verify(&self, step: &Step, ctx: &mut Ctx<'_>) -> Result<Verdict, Failure> {
        match self.apply(step, ctx) {
            Ok(_) => Ok(Verdict::Holds),
            Err(failure) => Ok(Verdict::fails(failure.reason)),
        }
    }

    fn is_programs(&self, input: &Value) -> bool {
        input["more"].is_null()
    }
}

pub(super) fn call(input: Value) -> Call {
    Call { action: "sh".to_owned(), input, ..Call::default() }
}

pub(super) fn plan(step: Step) -> Plan {
    let step = Step { subject: Some(0), ..step };
    let vertex =
        Vertex { name: "t@n".to_owned(), after: Vec::new(), kind: Kind::Step(Box::new(step)) };
    let draft =
        Draft { vertices: vec![vertex], subjects: vec!["n".to_owned()], ..Draft::default() };
    Plan::new(draft).expect("a plan")
}

pub(super) fn runs(script: &str) -> Plan {
    plan(Step { call: call(json!({ "script": script })), ..Step::default() })
}

/// A controller's directory with its executor.
pub(super) struct Site1 {
    pub(super) executor: LocalExecutor,
    events: Receiver<Event>,
}

impl Site1 {
    pub(super) fn at(dir: &Path) -> Self {
        fs_err::create_dir_all(dir).expect("a directory");
        let mut catalog = Catalog::default();
        catalog.add(Arc::new(Sh));
        let site = ExecutionSite {
            catalog,
            secrets: Arc::new(NoSecrets),
            outputs: Outputs::in_dir(dir.join("output")),
            base: BaseDirectory::Below(dir.join("local")),
        };
        let (send, events) = channel();
        let executor =
            LocalExecutor::new("r1", site, &dir.join("ledger"), send, crate::supervisor());
        Self { executor: executor.expect("a ledger"), events }
    }

    pub(super) fn act(&mut self, plan: &Plan, effect: Effect) -> Event {
        self.executor.act(plan, effect);
        self.next()
    }

    pub(super) fn next(&self) -> Event {
        self.events.recv_timeout(Duration::from_mins(2)).expect("an event")
    }

    pub(super) fn end(&self) -> End {
        match self.next() {
            Event::Ran { end, .. } => end,
            other => panic!("{other:?}"),
        }
    }
}

/// The process id that a program writes to the file `pid` of its directory. The process is killed
/// at the end of the test.
pub(super) struct Pid(i32);

impl Pid {
    pub(super) fn of(dir: &Path) -> Self {
        let path = dir.join("local/n/pid");
        let read = || fs_err::read_to_string(&path).unwrap_or_default();
        eventually("program starts", || read().ends_with('\n'));
        Self(read().trim().parse().expect("a number"))
    }

    pub(super) fn runs(&self) -> bool {
        let stat = fs_err::read_to_string(format!("/proc/{}/stat", self.0)).unwrap_or_default();
        stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
    }

    pub(super) fn parent(&self) -> rustix::process::Pid {
        let stat = fs_err::read_to_string(format!("/proc/{}/stat", self.0)).expect("it runs");
        let parent = stat.rsplit_once(") ").expect("a name").1.split(' ').nth(1).expect("a parent");
        rustix::process::Pid::from_raw(parent.parse().expect("a number")).expect("one")
    }

    /// Whether this process holds the pipe of the program, and so reads its output. Unread output
    /// is lost with the end of the program.
    pub(super) fn is_read(&self) -> bool {
        let pipe = fs_err::read_link(format!("/proc/{}/fd/1", self.0)).expect("it runs");
        let own = fs_err::read_dir("/proc/self/fd").expect("files").flatten();
        own.filter_map(|entry| fs_err::read_link(entry.path()).ok()).any(|link| link == pipe)
    }

    fn kill(&self) {
        if self.runs() {
            let pid = rustix::process::Pid::from_raw(self.0).expect("a number");
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
    }
}

impl Drop for Pid {
    fn drop(&mut self) {
        self.kill();
    }
}

pub(super) fn output(dir: &Path) -> String {
    let outputs = Outputs::in_dir(dir.join("output"));
    let bytes = outputs.read(STEP, 1).expect("it can be read").unwrap_or_default();
    String::from_utf8(bytes).expect("text")
}

pub(super) const IS_RUNNING: fn(&Event) -> bool =
    |event| matches!(event, Event::Found { found: AttemptStatus::Running, .. });
pub(super) const IS_GONE: fn(&Event) -> bool =
    |event| matches!(event, Event::Found { found: AttemptStatus::Gone, .. });

pub(super) const DIR: &str = "HOIST_TEST_DIR";
const SCRIPT: &str = "HOIST_TEST_SCRIPT";

/// A program for other tests: a controller in a process that they kill. Without its variable it does
/// nothing.
#[test]
#[ignore = "program for other tests, which start it"]
fn controller_of_another_test() {
    let Some(dir) = std::env::var_os(DIR).map(PathBuf::from) else { return };
    let input: Value =
        serde_json::from_str(&std::env::var(SCRIPT).expect("an input")).expect("JSON");
    let mut site = Site1::at(&dir);
    site.executor.act(&plan(Step { call: call(input), ..Step::default() }), START);
    // Longer than any test takes.
    let long = Duration::from_mins(5);
    eventually_within(long, "test asks for a second attempt", || dir.join("second").exists());
    site.executor.act(&runs("touch begun"), Effect::Start { step: STEP, attempt: 2 });
    std::thread::sleep(Duration::from_mins(5));
}

pub(super) struct Controller(pub(super) Child);

impl Controller {
    pub(super) fn start(dir: &Path, input: &Value) -> Self {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.args(["--ignored", "--exact", "all::controller_of_another_test"]);
        command.env(DIR, dir).env(SCRIPT, input.to_string());
        command.stdout(std::process::Stdio::null());
        Self(command.spawn().expect("this program"))
    }

    pub(super) fn kill(mut self) {
        self.0.kill().expect("it runs");
        self.0.wait().expect("it is ours");
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub(super) fn dir() -> tempfile::TempDir {
    tempfile::tempdir().expect("a directory")
}

#[test]
fn process_in_another_session_ends_with_the_timeout() {
    let dir = dir();
    let mut site = Site1::at(dir.path());
    for (attempt, script) in [
        "setsid -w sh -c 'echo $$ > pid; exec sleep 300'",
        "setsid sh -c 'echo $$ > pid; exec sleep 300' & sleep 300",
        "env -i setsid -w sh -c 'echo $$ > pid; exec sleep 300'",
        "(setsid sh -c 'trap \"\" TERM; echo $$ > pid; sleep 300; sleep 300' &) ; sleep 300",
    ]
    .into_iter()
    .enumerate()
    {
        let _ = fs_err::remove_file(dir.path().join("local/n/pid"));
        let attempt = u32::try_from(attempt).expect("few") + 1;
        let step = Step {
            call: call(json!({ "script": script })),
            timeout_ms: Some(1500),
            ..Step::default()
        };
        let event = site.act(&plan(step), Effect::Start { step: STEP, attempt });
        let Event::Ran { end: End::Failed { kind: FailureKind::Timeout, .. }, .. } = event else {
            panic!("{script}: {event:?}")
        };
        assert!(!Pid::of(dir.path()).runs(), "{script}");
        let outputs = Outputs::in_dir(dir.path().join("output"));
        assert_eq!(outputs.read(STEP, attempt).expect("it can be read"), None, "{script}");
    }
}

/// Runs another test with a file system of this kind mounted at the directory in [`DIR`], for
/// example control groups, which the machine may not have there. Only that test sees the mount.
pub(super) fn with_mount(kind: &[&str], test: &str) {
    let groups = tempfile::tempdir().expect("a directory");
    let ran = Command::new("unshare")
        .args([
            "--mount",
            "sh",
            "-ec",
            "test=$1 groups=$2; shift 2; mount -t \"$@\" none \"$groups\"; \
               exec \"$PROGRAM\" --ignored --exact \"$test\"",
            "sh",
            test,
        ])
        .arg(groups.path())
        .args(kind)
        .env("PROGRAM", std::env::current_exe().expect("this program"))
        .env(DIR, groups.path())
        .output()
        .expect("unshare is there");
    let said = String::from_utf8_lossy(&ran.stdout).into_owned();
    let error = String::from_utf8_lossy(&ran.stderr).into_owned();
    assert!(ran.status.success() && said.contains("1 passed"), "{said}{error}");
}

#[test]
fn detached_process_ends_with_a_stop_in_its_cgroup() {
    with_mount(&["cgroup2"], "all::detached_process_ends_with_a_stop");
}

/// A program for the test above, which starts it inside a mount. Without its variable it does nothing.
#[test]
#[ignore = "program for another test, which starts it"]
fn detached_process_ends_with_a_stop() {
    if std::env::var_os(DIR).is_none() {
        return;
    }
    let dir = dir();
    let mut site = Site1::at(dir.path());
    let daemon = "env -i setsid sh -c '(echo $$ > pid; exec sleep 300 >/dev/null 2>&1 </dev/null)'";
    let plan = runs(&format!("({daemon} &); touch left; sleep 300"));
    site.executor.act(&plan, START);
    let pid = Pid::of(dir.path());
    assert!(pid.runs());
    let event = site.act(&plan, KILL);
    assert!(matches!(event, Event::Ran { end: End::Interrupted, .. }), "{event:?}");
    assert!(!pid.runs());
}

/// A frozen control group, whose processes cannot be killed.
struct FrozenGroup(PathBuf);

impl FrozenGroup {
    fn new(groups: &Path, pid: &Pid) -> Self {
        let frozen = Self(groups.join(format!("hoist-test-{}", pid.0)));
        fs_err::create_dir(&frozen.0).expect("a control group");
        fs_err::write(frozen.0.join("cgroup.procs"), pid.0.to_string()).expect("it runs");
        fs_err::write(frozen.0.join("freezer.state"), "FROZEN").expect("it can be frozen");
        frozen
    }
}

impl Drop for FrozenGroup {
    fn drop(&mut self) {
        let _ = fs_err::write(self.0.join("freezer.state"), "THAWED");
        eventually("program is gone", || fs_err::remove_dir(&self.0).is_ok());
    }
}

#[test]
fn unkillable_process_leaves_the_step_unknown() {
    with_mount(&["cgroup", "-o", "freezer"], "all::frozen_process_leaves_the_step_unknown");
}

/// A program for the test above, which starts it inside a mount. Without its variable it does nothing.
#[test]
#[ignore = "program for another test, which starts it"]
fn frozen_process_leaves_the_step_unknown() {
    let Some(groups) = std::env::var_os(DIR).map(PathBuf::from) else { return };
    let dir = dir();
    let mut site = Site1::at(dir.path());
    for (attempt, script) in [
        (1, "setsid sh -c 'echo $$ > pid; exec sleep 300' & wait"),
        (2, "echo $$ > pid; exec sleep 300"),
    ] {
        let step = Step {
            call: call(json!({ "script": script })),
            timeout_ms: Some(2000),
            ..Step::default()
        };
        let _ = fs_err::remove_file(dir.path().join("local/n/pid"));
        site.executor.act(&plan(step), Effect::Start { step: STEP, attempt });
        let pid = Pid::of(dir.path());
        let _frozen = FrozenGroup::new(&groups, &pid);
        let end = site.end();
        let End::Unknown { reason } = end else { panic!("{end:?}") };
        assert!(reason.contains(&format!("{} (sleep)", pid.0)), "{reason}");
        assert!(pid.runs());
    }
}

#[test]
fn processes_of_a_successful_step_stay() {
    let dir = dir();
    let mut site = Site1::at(dir.path());
    let event = site.act(&runs("(setsid sh -c 'echo $$ > pid; exec sleep 300' &)"), START);
    assert!(matches!(event, Event::Ran { end: End::Done { .. }, .. }), "{event:?}");
    assert!(Pid::of(dir.path()).runs());
}

pub(super) const GATED: &str =
    "echo $$ > pid; echo before; until test -e go; do sleep 0.05; done; echo after; exit 7";

pub(super) fn open(dir: &Path) {
    fs_err::write(dir.join("local/n/go"), "").expect("a gate");
}

pub(super) fn says_seven(end: &End) {
    let End::Failed { kind: FailureKind::Exit, reason } = end else { panic!("{end:?}") };
    assert_eq!(reason, "exit code 7: after");
}

#[test]
fn program_outlives_a_killed_controller_with_its_outcome() {
    for script in [GATED.to_owned(), format!("exec env -i /bin/sh -c '{GATED}'")] {
        let dir = dir();
        let first = Controller::start(dir.path(), &json!({ "script": script }));
        let pid = Pid::of(dir.path());
        eventually("program prints", || output(dir.path()).contains("before"));
        first.kill();
        let mut next = Site1::at(dir.path());
        let event = next.act(&runs(&script), ASK);
        assert!(IS_RUNNING(&event), "{event:?}");
        assert!(pid.runs());
        eventually("output is read", || pid.is_read());
        open(dir.path());
        says_seven(&next.end());
        assert_eq!(output(dir.path()), "before\nafter\n");
        let again = Site1::at(dir.path()).act(&runs(&script), ASK);
        let Event::Found { found: AttemptStatus::Ended(end), .. } = again else {
            panic!("{again:?}")
        };
        says_seven(&end);
    }
}

#[test]
fn dropped_executor_leaves_programs_to_the_next() {
    let dir = dir();
    let mut first = Site1::at(dir.path());
    first.executor.act(&runs(GATED), START);
    let pid = Pid::of(dir.path());
    eventually("program prints", || output(dir.path()).contains("before"));
    drop(first);
    eventually("output is unread", || !pid.is_read());
    let mut next = Site1::at(dir.path());
    assert!(IS_RUNNING(&next.act(&runs(GATED), ASK)));
    eventually("output is read", || pid.is_read());
    open(dir.path());
    says_seven(&next.end());
}

#[test]
fn exit_of_an_unwatched_program_is_known() {
    let dir = dir();
    let first = Controller::start(dir.path(), &json!({ "script": GATED }));
    let pid = Pid::of(dir.path());
    first.kill();
    open(dir.path());
    eventually("program ends", || !pid.runs());
    let note = dir.path().join("programs/r1-0-1");
    eventually("end of the program is written", || {
        fs_err::read_to_string(&note).is_ok_and(|note| note.ends_with("\n7\n"))
    });
    let event = Site1::at(dir.path()).act(&runs(GATED), ASK);
    let Event::Ran { end: End::Failed { reason, .. }, .. } = event else { panic!("{event:?}") };
    assert_eq!(reason, "exit code 7");
    assert!(!note.exists(), "the note is not needed any more");
}

#[test]
fn program_killed_with_its_controller_is_gone() {
    let dir = dir();
    let first = Controller::start(dir.path(), &json!({ "script": GATED }));
    let pid = Pid::of(dir.path());
    first.kill();
    let supervisor = pid.parent();
    rustix::process::kill_process_group(supervisor, rustix::process::Signal::KILL)
        .expect("it runs");
    pid.kill();
    eventually("program is gone", || !pid.runs());
    let event = Site1::at(dir.path()).act(&runs(GATED), ASK);
    assert!(IS_GONE(&event), "{event:?}");
}

#[test]
fn timeout_counts_while_no_controller_runs() {
    let dir = dir();
    let script = "echo $$ > pid; exec sleep 300";
    let first = Controller::start(dir.path(), &json!({ "script": script }));
    let pid = Pid::of(dir.path());
    first.kill();
    std::thread::sleep(Duration::from_millis(1500));
    let step =
        Step { call: call(json!({ "script": script })), timeout_ms: Some(1000), ..Step::default() };
    let mut next = Site1::at(dir.path());
    let began = Instant::now();
    assert!(IS_RUNNING(&next.act(&plan(step), ASK)));
    let end = next.end();
    assert!(matches!(end, End::Failed { kind: FailureKind::Timeout, .. }), "{end:?}");
    assert!(began.elapsed() < Duration::from_secs(5) && !pid.runs());
}

#[test]
fn stop_ends_a_program_of_an_earlier_life() {
    let dir = dir();
    let script = "echo $$ > pid; exec env -i sleep 300";
    let first = Controller::start(dir.path(), &json!({ "script": script }));
    let pid = Pid::of(dir.path());
    first.kill();
    let mut next = Site1::at(dir.path());
    assert!(IS_RUNNING(&next.act(&runs(script), ASK)));
    let event = next.act(&runs(script), KILL);
    assert!(matches!(event, Event::Ran { end: End::Interrupted, .. }), "{event:?}");
    assert!(!pid.runs());
}

#[test]
fn program_of_a_larger_action_is_awaited_and_then_lost() {
    let dir = dir();
    let input = json!({ "script": GATED, "more": true });
    let first = Controller::start(dir.path(), &input);
    let pid = Pid::of(dir.path());
    first.kill();
    let mut next = Site1::at(dir.path());
    let plan = plan(Step { call: call(input), ..Step::default() });
    assert!(IS_RUNNING(&next.act(&plan, ASK)));
    eventually("output is read", || pid.is_read());
    open(dir.path());
    let event = next.next();
    assert!(IS_GONE(&event), "{event:?}");
    assert!(!pid.runs() && output(dir.path()).ends_with("after\n"));
}

#[test]
fn controller_on_a_copy_leaves_original_programs_alone() {
    let dir = dir();
    let one = dir.path().join("one");
    let copy = dir.path().join("copy");
    let mut first = Site1::at(&one);
    first.executor.act(&runs(GATED), START);
    let pid = Pid::of(&one);
    let copied = Command::new("cp").arg("-a").args([&one, &copy]).status().expect("cp");
    assert!(copied.success());
    let event = Site1::at(&copy).act(&runs(GATED), ASK);
    assert!(IS_GONE(&event), "{event:?}");
    assert!(pid.runs(), "it is not the copy's");
    open(&one);
    says_seven(&first.end());
}

#[test]
fn private_files_stay_while_their_program_runs() {
    let dir = dir();
    let script = format!("echo $SECRET > where; {GATED}");
    let input = json!({ "script": script, "secret": "a" });
    let first = Controller::start(dir.path(), &input);
    let pid = Pid::of(dir.path());
    let secret = fs_err::read_to_string(dir.path().join("local/n/where")).expect("a path");
    let secret = Path::new(secret.trim()).to_owned();
    first.kill();
    assert!(secret.exists());
    let mut next = Site1::at(dir.path());
    let plan = plan(Step { call: call(input), ..Step::default() });
    assert!(IS_RUNNING(&next.act(&plan, ASK)));
    assert!(secret.exists(), "it still needs it");
    eventually("output is read", || pid.is_read());
    open(dir.path());
    says_seven(&next.end());
    assert!(!secret.parent().expect("a directory").exists());
}

#[test]
fn check_of_a_killed_controller_ends_with_its_files() {
    let dir = dir();
    let mut first = Site1::at(dir.path());
    // The ledger must have an entry of an earlier life.
    first.act(&runs("true"), START);
    let script = "echo $SECRET > where; echo $$ > pid; exec sleep 300";
    let look = call(json!({ "script": script, "secret": "a" }));
    let looks = plan(Step { call: call(json!({})), after: vec![look], ..Step::default() });
    first.executor.act(&looks, Effect::Verify { step: STEP, attempt: 1 });
    let pid = Pid::of(dir.path());
    let secret = fs_err::read_to_string(dir.path().join("local/n/where")).expect("a path");
    // Simulates a crash: the executor does nothing more.
    std::mem::forget(first);
    let next = Site1::at(dir.path());
    eventually("program is ended", || !pid.runs());
    eventually("files of the program are gone", || !Path::new(secret.trim()).exists());
    drop(next);
}
