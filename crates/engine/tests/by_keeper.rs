//! The same programs, all kept by one process, and what is true only of that.

use std::ffi::OsString;
use std::path::Path;
use std::time::{Duration, Instant};

use hoist_engine::drive::Executor as _;
use hoist_engine::plan::{Draft, Kind, Plan, Step, StepId, Vertex};
use hoist_engine::record::{End, FailureKind};
use hoist_engine::run::{Effect, Event};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

#[path = "programs/all.rs"]
mod all;

use all::{
    ASK, Controller, DIR, GATED, IS_GONE, IS_RUNNING, KILL, START, Site1, call, dir, open, output,
    plan, runs, says_seven, wait_for, with_mount,
};

/// This program, as no more than the test below.
#[expect(clippy::unnecessary_wraps, reason = "where shells do it there is none")]
fn keeper() -> Option<Vec<OsString>> {
    let own = std::env::current_exe().expect("this program");
    Some([own.into(), "--ignored".into(), "--exact".into(), "keeps_programs".into()].to_vec())
}

/// No test of its own: the process that keeps programs. It is none without a socket to be asked by.
#[test]
#[ignore = "others start it"]
fn keeps_programs() {
    let _ = hoist_engine::execute::keeper::main();
}

/// The number in what a keeper writes about itself.
fn keeper_of(dir: &Path) -> Pid {
    let text = fs_err::read_to_string(dir.join("keeper")).expect("there is one");
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
fn one_process_keeps_all_programs_and_goes_with_the_last_of_them() {
    let dir = dir();
    let mut site = Site1::at(dir.path());
    assert!(!dir.path().join("keeper").exists(), "nobody needs one yet");
    says_done(&site.act(&runs("echo $PPID > parent"), START));
    let keeper = keeper_of(dir.path());
    let start = |attempt| Effect::Start { step: StepId(0), attempt };
    says_done(&site.act(&runs("echo $PPID >> parent"), start(2)));
    let parents = fs_err::read_to_string(dir.path().join("local/n/parent")).expect("two");
    assert_eq!(parents, format!("{0}\n{0}\n", keeper.as_raw_pid()));
    site.executor.act(&runs(GATED), start(3));
    let _pid = all::Pid::of(dir.path());
    drop(site);
    wait_for("it is on its own", || left(dir.path()));
    assert!(lives(keeper), "a program runs");
    let notes: Vec<_> = fs_err::read_dir(dir.path().join("programs"))
        .expect("notes")
        .map(|entry| entry.expect("a note").file_name())
        .collect();
    assert_eq!(notes, ["r1-0-3"], "the others are known by somebody");
    open(dir.path());
    wait_for("it goes", || !lives(keeper));
}

#[test]
fn what_ended_and_was_not_kept_before_its_controller_was_killed_is_known_to_the_next() {
    let dir = dir();
    let script = "echo $$ > pid; exit 7";
    let first = Controller::start(dir.path(), &json!({ "script": script, "unkept": true }));
    let pid = all::Pid::of(dir.path());
    wait_for("it ends", || !pid.runs());
    first.kill();
    let event = Site1::at(dir.path()).act(&runs(script), ASK);
    let Event::Ran { end: End::Failed { kind: FailureKind::Exit, reason }, .. } = event else {
        panic!("{event:?}")
    };
    assert_eq!(reason, "exit code 7");
}

/// How many ends of pipes a process has.
fn pipes(pid: u32) -> usize {
    let entries = fs_err::read_dir(format!("/proc/{pid}/fd")).expect("it runs").flatten();
    let links = entries.filter_map(|entry| fs_err::read_link(entry.path()).ok());
    links.filter(|link| link.as_os_str().as_encoded_bytes().starts_with(b"pipe:")).count()
}

#[test]
fn what_was_asked_for_last_before_a_controller_was_killed_is_not_begun() {
    let dir = dir();
    let first = Controller::start(dir.path(), &json!({ "script": "echo $$ > pid; sleep 300" }));
    let pid = all::Pid::of(dir.path());
    let keeper = keeper_of(dir.path());
    kill_process(keeper, Signal::STOP).expect("it runs");
    let before = pipes(first.0.id());
    fs_err::write(dir.path().join("second"), "").expect("a sign");
    // Each program has three pipes, with both ends until the request is in the socket.
    wait_for("it is asked for", || pipes(first.0.id()) == before + 3);
    first.kill();
    kill_process(keeper, Signal::CONT).expect("it runs");
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
fn when_the_keeper_is_killed_nobody_knows_how_its_programs_ended_and_there_is_another() {
    let dir = dir();
    let mut site = Site1::at(dir.path());
    site.executor.act(&runs(GATED), START);
    let pid = all::Pid::of(dir.path());
    let keeper = keeper_of(dir.path());
    kill_process(keeper, Signal::KILL).expect("it runs");
    let event = site.next();
    assert!(IS_GONE(&event), "{event:?}");
    assert!(!pid.runs(), "nothing runs beside what comes next");
    says_done(&site.act(&runs("true"), Effect::Start { step: StepId(0), attempt: 2 }));
    assert_ne!(keeper_of(dir.path()), keeper);
}

#[test]
fn a_program_that_cannot_be_started_is_told_from_one_that_failed() {
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
fn a_large_environment_arrives_whole() {
    let dir = dir();
    let mut site = Site1::at(dir.path());
    let script = "test $(env | grep -c '^LARGE_....=x*$') = 70 && env | grep LARGE_0069 | wc -c";
    let input = json!({ "script": script, "large": 70 * 1024 });
    says_done(&site.act(&plan(Step { call: call(input), ..Step::default() }), START));
    assert_eq!(output(dir.path()), "1025\n");
}

#[test]
fn a_flood_that_nobody_reads_waits_for_somebody() {
    let dir = dir();
    let script = "echo $$ > pid; until test -e go; do sleep 0.05; done; \
                  head -c 300000 /dev/zero | tr '\\0' 'x'; echo; exit 7";
    let first = Controller::start(dir.path(), &json!({ "script": script }));
    let pid = all::Pid::of(dir.path());
    first.kill();
    open(dir.path());
    // More than a pipe holds: it cannot end before it is read.
    let mut next = Site1::at(dir.path());
    assert!(IS_RUNNING(&next.act(&runs(script), ASK)));
    let End::Failed { kind: FailureKind::Exit, .. } = next.end() else { panic!("it ended") };
    assert!(!pid.runs());
    assert_eq!(output(dir.path()).bytes().filter(|byte| *byte == b'x').count(), 300_000);
}

#[test]
fn a_daemon_that_holds_the_streams_holds_nobody_up() {
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
fn three_hundred_programs_at_once_end_each_in_its_own_way() {
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
    fs_err::read_to_string(dir.join("keeper")).is_ok_and(|text| text.ends_with("left\n"))
}

#[test]
fn what_was_killed_together_with_who_kept_it_is_found_by_its_control_group() {
    with_mount(&["cgroup2"], "what_cleared_its_environment_is_found_without_a_note");
}

/// No test of its own.
#[test]
#[ignore = "another starts it"]
fn what_cleared_its_environment_is_found_without_a_note() {
    if std::env::var_os(DIR).is_none() {
        return;
    }
    let dir = dir();
    let script = "exec env -i sh -c 'echo $$ > pid; exec sleep 300 >/dev/null 2>&1 </dev/null'";
    let first = Controller::start(dir.path(), &json!({ "script": script }));
    let pid = all::Pid::of(dir.path());
    let keeper = keeper_of(dir.path());
    // Stopped, so that it cannot write anything down.
    kill_process(keeper, Signal::STOP).expect("it runs");
    first.kill();
    kill_process(keeper, Signal::KILL).expect("it runs");
    wait_for("it is gone", || !lives(keeper));
    assert!(pid.runs());
    let event = Site1::at(dir.path()).act(&runs(script), ASK);
    assert!(IS_GONE(&event), "{event:?}");
    assert!(!pid.runs(), "nothing runs beside what comes next");
}

#[test]
fn when_nothing_can_be_written_down_programs_run_on() {
    with_mount(&["tmpfs", "-o", "size=256k"], "on_a_full_disk_programs_run_on");
}

/// No test of its own.
#[test]
#[ignore = "another starts it"]
fn on_a_full_disk_programs_run_on() {
    let Some(dir) = std::env::var_os(DIR).map(std::path::PathBuf::from) else { return };
    let script = "echo $$ > pid; until test -e go; do sleep 0.05; done; \
                  echo after; echo after; touch done; exit 7";
    let first = Controller::start(&dir, &json!({ "script": script }));
    let pid = all::Pid::of(&dir);
    let keeper = keeper_of(&dir);
    // So that there is no room left in the page either which the file has already.
    let mut own = fs_err::OpenOptions::new();
    let mut own = own.append(true).open(dir.join("keeper")).expect("its file");
    std::io::Write::write_all(&mut own, &vec![b'\n'; 4096 - own_length(&dir)]).expect("room");
    let fill = dir.join("fill");
    assert!(fs_err::write(&fill, vec![0; 1 << 20]).is_err(), "it is full");
    first.kill();
    open(&dir);
    wait_for("it ends", || !pid.runs());
    assert!(dir.join("local/n/done").exists(), "what it printed did not end it");
    wait_for("its keeper goes with it", || !lives(keeper));
    fs_err::remove_file(&fill).expect("room");
    let event = Site1::at(&dir).act(&runs(script), ASK);
    assert!(IS_GONE(&event), "{event:?}");
}

fn own_length(dir: &Path) -> usize {
    fs_err::read(dir.join("keeper")).expect("its file").len()
}

#[test]
fn a_keeper_that_may_open_nothing_more_starts_nothing_more_and_loses_nothing() {
    let dir = dir();
    let mut site = Site1::at(dir.path());
    site.executor.act(&runs(GATED), START);
    let _pid = all::Pid::of(dir.path());
    let keeper = keeper_of(dir.path());
    let open_files = fs_err::read_dir(format!("/proc/{}/fd", keeper.as_raw_pid()))
        .expect("it runs")
        .count() as u64;
    let resource = rustix::process::Resource::Nofile;
    let limit = |current| rustix::process::Rlimit {
        current: Some(current),
        ..rustix::process::getrlimit(resource)
    };
    let few = limit(open_files + 2);
    rustix::process::prlimit(Some(keeper), resource, few).expect("it is ours");
    for (attempt, bytes) in [(2, 0), (3, 70 * 1024)] {
        let input = json!({ "script": "true", "large": bytes });
        let step = Step { call: call(input), ..Step::default() };
        let event = site.act(&plan(step), Effect::Start { step: StepId(0), attempt });
        let Event::Ran { end: End::Failed { kind: FailureKind::Exit, reason }, .. } = event else {
            panic!("{event:?}")
        };
        assert!(reason.starts_with("cannot run `/bin/sh`: Too many open files"), "{reason}");
    }
    rustix::process::prlimit(Some(keeper), resource, limit(1024)).expect("it is ours");
    open(dir.path());
    says_seven(&site.end());
}

#[test]
fn a_keeper_that_does_not_listen_holds_nobody_up_who_goes() {
    let dir = dir();
    let mut site = Site1::at(dir.path());
    says_done(&site.act(&runs("true"), START));
    let keeper = keeper_of(dir.path());
    kill_process(keeper, Signal::STOP).expect("it runs");
    for attempt in 2..600 {
        site.executor.act(&runs("true"), Effect::Start { step: StepId(0), attempt });
    }
    let (gone, is_gone) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        drop(site);
        gone.send(())
    });
    let went = is_gone.recv_timeout(Duration::from_secs(30));
    kill_process(keeper, Signal::CONT).expect("it runs");
    went.expect("it goes");
    wait_for("its keeper goes too", || !lives(keeper));
    assert!(left(dir.path()));
}
