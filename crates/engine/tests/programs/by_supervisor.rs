//! The same programs under one supervisor process, and tests of the supervisor alone.

use std::ffi::OsString;
use std::path::Path;
use std::time::{Duration, Instant};

use hoist_engine::drive::Executor as _;
use hoist_engine::plan::{Draft, Kind, Plan, Step, StepId, Vertex};
use hoist_engine::record::{End, FailureKind};
use hoist_engine::run::{Effect, Event};
use hoist_testkit::eventually;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

mod all;

use all::{
    ASK, Controller, DIR, GATED, IS_GONE, IS_RUNNING, KILL, START, Site1, call, dir, open, output,
    plan, runs, says_seven, with_mount,
};

/// Starts this program as the supervisor below.
#[expect(clippy::unnecessary_wraps, reason = "the tests with shells return None")]
fn supervisor() -> Option<Vec<OsString>> {
    let own = std::env::current_exe().expect("this program");
    Some([own.into(), "--ignored".into(), "--exact".into(), "supervisor_process".into()].to_vec())
}

/// Not a test: the supervisor process. Without a socket on standard input it does nothing.
#[test]
#[ignore = "others start it"]
fn supervisor_process() {
    let _ = hoist_engine::execute::supervisor::main();
}

/// The process id in the file of the supervisor.
fn supervisor_of(dir: &Path) -> Pid {
    let text = fs_err::read_to_string(dir.join("supervisor")).expect("there is one");
    let number = text.split(' ').nth(1).expect("a number");
    Pid::from_raw(number.parse().expect("a number")).expect("a number")
}

fn lives(pid: Pid) -> bool {
    let stat = fs_err::read_to_string(format!("/proc/{}/stat", pid.as_raw_pid()));
    stat.is_ok_and(|stat| stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z')))
}

fn says_done(event: &Event) {
    assert!(matches!(event, Event::Ran { end: End::Done { .. }, .. }), "{event:?}");
}

#[test]
fn one_supervisor_runs_all_programs_until_the_last_ends() {
    let dir = dir();
    let mut site = Site1::at(dir.path());
    assert!(!dir.path().join("supervisor").exists(), "none is needed yet");
    says_done(&site.act(&runs("echo $PPID > parent"), START));
    let supervisor = supervisor_of(dir.path());
    let start = |attempt| Effect::Start { step: StepId(0), attempt };
    says_done(&site.act(&runs("echo $PPID >> parent"), start(2)));
    let parents = fs_err::read_to_string(dir.path().join("local/n/parent")).expect("two");
    assert_eq!(parents, format!("{0}\n{0}\n", supervisor.as_raw_pid()));
    site.executor.act(&runs(GATED), start(3));
    let _pid = all::Pid::of(dir.path());
    drop(site);
    eventually("program has no supervisor", || left(dir.path()));
    assert!(lives(supervisor), "a program runs");
    let notes: Vec<_> = fs_err::read_dir(dir.path().join("programs"))
        .expect("notes")
        .map(|entry| entry.expect("a note").file_name())
        .collect();
    assert_eq!(notes, ["r1-0-3"], "the other exits are recorded");
    open(dir.path());
    eventually("supervisor ends", || !lives(supervisor));
}

#[test]
fn unrecorded_exit_survives_a_killed_controller() {
    let dir = dir();
    let script = "echo $$ > pid; exit 7";
    let first = Controller::start(dir.path(), &json!({ "script": script, "unkept": true }));
    let pid = all::Pid::of(dir.path());
    eventually("program ends", || !pid.runs());
    first.kill();
    let event = Site1::at(dir.path()).act(&runs(script), ASK);
    let Event::Ran { end: End::Failed { kind: FailureKind::Exit, reason }, .. } = event else {
        panic!("{event:?}")
    };
    assert_eq!(reason, "exit code 7");
}

/// Number of pipe ends that a process holds.
fn pipes(pid: u32) -> usize {
    let entries = fs_err::read_dir(format!("/proc/{pid}/fd")).expect("it runs").flatten();
    let links = entries.filter_map(|entry| fs_err::read_link(entry.path()).ok());
    links.filter(|link| link.as_os_str().as_encoded_bytes().starts_with(b"pipe:")).count()
}

#[test]
fn last_request_of_a_killed_controller_does_not_begin() {
    let dir = dir();
    let first = Controller::start(dir.path(), &json!({ "script": "echo $$ > pid; sleep 300" }));
    let pid = all::Pid::of(dir.path());
    let supervisor = supervisor_of(dir.path());
    kill_process(supervisor, Signal::STOP).expect("it runs");
    let before = pipes(first.0.id());
    fs_err::write(dir.path().join("second"), "").expect("a sign");
    // Each program has three pipes, with both ends open until the request is in the socket.
    eventually("supervisor is asked for", || pipes(first.0.id()) == before + 3);
    first.kill();
    kill_process(supervisor, Signal::CONT).expect("it runs");
    let mut next = Site1::at(dir.path());
    let ask = Effect::Ask { step: StepId(0), attempt: 2 };
    let event = next.act(&runs("touch begun"), ask);
    assert!(IS_GONE(&event), "{event:?}");
    assert!(!dir.path().join("local/n/begun").exists());
    let event = next.act(&runs("sleep 300"), ASK);
    assert!(IS_RUNNING(&event), "{event:?}");
    next.act(&runs("sleep 300"), KILL);
    assert!(!pid.runs());
}

#[test]
fn killed_supervisor_loses_outcomes_and_is_replaced() {
    let dir = dir();
    let mut site = Site1::at(dir.path());
    site.executor.act(&runs(GATED), START);
    let pid = all::Pid::of(dir.path());
    let supervisor = supervisor_of(dir.path());
    kill_process(supervisor, Signal::KILL).expect("it runs");
    let event = site.next();
    assert!(IS_GONE(&event), "{event:?}");
    assert!(!pid.runs(), "nothing runs beside later steps");
    says_done(&site.act(&runs("true"), Effect::Start { step: StepId(0), attempt: 2 }));
    assert_ne!(supervisor_of(dir.path()), supervisor);
}

#[test]
fn program_that_cannot_start_differs_from_a_failed_one() {
    let dir = dir();
    let mut site = Site1::at(dir.path());
    let step =
        Step { call: call(json!({ "script": "true", "large": 4 << 20 })), ..Step::default() };
    for (attempt, bytes) in [(1, 4 << 20), (2, 16 << 20)] {
        let mut step = step.clone();
        step.call.input["large"] = json!(bytes);
        let event = site.act(&plan(step), Effect::Start { step: StepId(0), attempt });
        let Event::Ran { end: End::Failed { kind: FailureKind::Exit, reason }, .. } = event else {
            panic!("{event:?}")
        };
        assert!(reason.starts_with("cannot run `/bin/sh`: Argument list too long"), "{reason}");
    }
}

#[test]
fn large_environment_arrives_whole() {
    let dir = dir();
    let mut site = Site1::at(dir.path());
    let script = "test $(env | grep -c '^LARGE_....=x*$') = 70 && env | grep LARGE_0069 | wc -c";
    let input = json!({ "script": script, "large": 70 * 1024 });
    says_done(&site.act(&plan(Step { call: call(input), ..Step::default() }), START));
    assert_eq!(output(dir.path()), "1025\n");
}

#[test]
fn unread_output_waits_for_a_reader() {
    let dir = dir();
    let script = "echo $$ > pid; until test -e go; do sleep 0.05; done; \
                  head -c 300000 /dev/zero | tr '\\0' 'x'; echo; exit 7";
    let first = Controller::start(dir.path(), &json!({ "script": script }));
    let pid = all::Pid::of(dir.path());
    first.kill();
    open(dir.path());
    // More than a pipe holds, so the program cannot end before it is read.
    let mut next = Site1::at(dir.path());
    assert!(IS_RUNNING(&next.act(&runs(script), ASK)));
    let End::Failed { kind: FailureKind::Exit, .. } = next.end() else { panic!("it ended") };
    assert!(!pid.runs());
    assert_eq!(output(dir.path()).bytes().filter(|byte| *byte == b'x').count(), 300_000);
}

#[test]
fn daemon_that_holds_the_streams_does_not_block() {
    let dir = dir();
    let mut site = Site1::at(dir.path());
    let began = Instant::now();
    let script = "(setsid sh -c 'echo $$ > pid; exec sleep 300' &); echo said; exit 0";
    says_done(&site.act(&runs(script), START));
    assert!(began.elapsed() < Duration::from_mins(1));
    assert!(all::Pid::of(dir.path()).runs());
    assert_eq!(output(dir.path()), "said\n");
}

#[test]
fn three_hundred_programs_at_once_keep_their_outcomes() {
    const COUNT: u32 = 300;
    let dir = dir();
    let mut site = Site1::at(dir.path());
    let vertex = |at: u32| {
        let script = format!("echo {at}; exit {}", at % 100);
        let step = Step { call: call(json!({ "script": script })), ..Step::default() };
        let step = Step { subject: Some(0), ..step };
        let kind = Kind::Step(Box::new(step));
        Vertex { name: format!("t{at}"), after: Vec::new(), kind }
    };
    let vertices = (0..COUNT).map(vertex).collect();
    let subjects = vec!["n".to_owned()];
    let plan = Plan::new(Draft { vertices, subjects, ..Draft::default() }).expect("a plan");
    for at in 0..COUNT {
        site.executor.act(&plan, Effect::Start { step: StepId(at), attempt: 1 });
    }
    for _ in 0..COUNT {
        let Event::Ran { step: StepId(at), end, .. } = site.next() else { panic!("it ended") };
        match end {
            End::Done { .. } => assert_eq!(at % 100, 0),
            End::Failed { kind: FailureKind::Exit, reason } => {
                assert_eq!(reason, format!("exit code {}: {at}", at % 100));
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn programs_have_the_limits_of_their_controller() {
    let dir = dir();
    let mut site = Site1::at(dir.path());
    says_done(&site.act(&runs("ulimit -Sn; ulimit -Hn; ulimit -Sc; ulimit -Hc"), START));
    let own = |resource| rustix::process::getrlimit(resource);
    let shown =
        |limit: Option<u64>| limit.map_or("unlimited".to_owned(), |limit| limit.to_string());
    let files = own(rustix::process::Resource::Nofile);
    let core = own(rustix::process::Resource::Core);
    let core = core.maximum.map(|bytes| bytes / 512);
    let wanted =
        format!("{}\n{}\n0\n{}\n", shown(files.current), shown(files.maximum), shown(core));
    assert_eq!(output(dir.path()), wanted);
}

fn left(dir: &Path) -> bool {
    fs_err::read_to_string(dir.join("supervisor")).is_ok_and(|text| text.ends_with("left\n"))
}

#[test]
fn program_killed_with_its_supervisor_is_found_by_cgroup() {
    with_mount(&["cgroup2"], "process_without_environment_is_found_without_a_note");
}

/// A program for the test above, which starts it inside a mount. Without its variable it does nothing.
#[test]
#[ignore = "program for another test, which starts it"]
fn process_without_environment_is_found_without_a_note() {
    if std::env::var_os(DIR).is_none() {
        return;
    }
    let dir = dir();
    let script = "exec env -i sh -c 'echo $$ > pid; exec sleep 300 >/dev/null 2>&1 </dev/null'";
    let first = Controller::start(dir.path(), &json!({ "script": script }));
    let pid = all::Pid::of(dir.path());
    let supervisor = supervisor_of(dir.path());
    // Stopped, so that the supervisor cannot write a note.
    kill_process(supervisor, Signal::STOP).expect("it runs");
    first.kill();
    kill_process(supervisor, Signal::KILL).expect("it runs");
    eventually("program is gone", || !lives(supervisor));
    assert!(pid.runs());
    let event = Site1::at(dir.path()).act(&runs(script), ASK);
    assert!(IS_GONE(&event), "{event:?}");
    assert!(!pid.runs(), "nothing runs beside later steps");
}

#[test]
fn programs_continue_when_nothing_can_be_written() {
    with_mount(&["tmpfs", "-o", "size=256k"], "programs_continue_on_a_full_disk");
}

/// A program for the test above, which starts it inside a mount. Without its variable it does nothing.
#[test]
#[ignore = "program for another test, which starts it"]
fn programs_continue_on_a_full_disk() {
    let Some(dir) = std::env::var_os(DIR).map(std::path::PathBuf::from) else { return };
    let script = "echo $$ > pid; until test -e go; do sleep 0.05; done; \
                  echo after; echo after; touch done; exit 7";
    let first = Controller::start(&dir, &json!({ "script": script }));
    let pid = all::Pid::of(&dir);
    let supervisor = supervisor_of(&dir);
    // Fills the page that the file already has, so that no byte is left.
    let mut own = fs_err::OpenOptions::new();
    let mut own = own.append(true).open(dir.join("supervisor")).expect("its file");
    std::io::Write::write_all(&mut own, &vec![b'\n'; 4096 - own_length(&dir)]).expect("room");
    let fill = dir.join("fill");
    assert!(fs_err::write(&fill, vec![0; 1 << 20]).is_err(), "it is full");
    first.kill();
    open(&dir);
    eventually("program ends", || !pid.runs());
    assert!(dir.join("local/n/done").exists(), "printing did not end the program");
    eventually("supervisor ends with the program", || !lives(supervisor));
    fs_err::remove_file(&fill).expect("room");
    let event = Site1::at(&dir).act(&runs(script), ASK);
    assert!(IS_GONE(&event), "{event:?}");
}

fn own_length(dir: &Path) -> usize {
    fs_err::read(dir.join("supervisor")).expect("its file").len()
}

#[test]
fn supervisor_without_descriptors_loses_nothing() {
    let dir = dir();
    let mut site = Site1::at(dir.path());
    site.executor.act(&runs(GATED), START);
    let _pid = all::Pid::of(dir.path());
    let supervisor = supervisor_of(dir.path());
    let open_files = fs_err::read_dir(format!("/proc/{}/fd", supervisor.as_raw_pid()))
        .expect("it runs")
        .count() as u64;
    let resource = rustix::process::Resource::Nofile;
    let limit = |current| rustix::process::Rlimit {
        current: Some(current),
        ..rustix::process::getrlimit(resource)
    };
    let few = limit(open_files + 2);
    rustix::process::prlimit(Some(supervisor), resource, few).expect("it is ours");
    for (attempt, bytes) in [(2, 0), (3, 70 * 1024)] {
        let input = json!({ "script": "true", "large": bytes });
        let step = Step { call: call(input), ..Step::default() };
        let event = site.act(&plan(step), Effect::Start { step: StepId(0), attempt });
        let Event::Ran { end: End::Failed { kind: FailureKind::Exit, reason }, .. } = event else {
            panic!("{event:?}")
        };
        assert!(reason.starts_with("cannot run `/bin/sh`: Too many open files"), "{reason}");
    }
    rustix::process::prlimit(Some(supervisor), resource, limit(1024)).expect("it is ours");
    open(dir.path());
    says_seven(&site.end());
}

#[test]
fn unresponsive_supervisor_does_not_block_the_executor() {
    let dir = dir();
    let mut site = Site1::at(dir.path());
    says_done(&site.act(&runs("true"), START));
    let supervisor = supervisor_of(dir.path());
    kill_process(supervisor, Signal::STOP).expect("it runs");
    for attempt in 2..600 {
        site.executor.act(&runs("true"), Effect::Start { step: StepId(0), attempt });
    }
    let (gone, is_gone) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        drop(site);
        gone.send(())
    });
    let went = is_gone.recv_timeout(Duration::from_secs(30));
    kill_process(supervisor, Signal::CONT).expect("it runs");
    went.expect("it goes");
    eventually("supervisor ends too", || !lives(supervisor));
    assert!(left(dir.path()));
}
