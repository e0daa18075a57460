//! Tasks on one node that is reached by ssh, in a line: beside a connection for each task, and beside
//! Ansible with pipelining and `ControlPersist`. All of them use the same sshd on this machine.

use std::process::Command;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use hoist_engine::drive::{Halt, begin, drive};
use hoist_engine::execute::{NoSecrets, Outputs};
use hoist_engine::file_journal::FileJournal;
use hoist_engine::plan::{Call, Draft, Kind, Plan, Step, StepId, Vertex};
use hoist_engine::record::Outcome;
use hoist_engine::run::Run;
use hoist_engine::ssh::{Login, SentPlugins, SshExecutor, SshSetup, Target};
use hoist_testkit::sshd::SshServer;
use serde_json::json;

use crate::engine::{peers, rate};
use crate::stopwatch::ratio;
use crate::verdict::{Limit, Row};

/// The argument with which this program works on the node.
pub(crate) const WORK_OVER_SSH: &str = "work-over-ssh";

const COUNT: usize = 200;
/// Slow ones are measured with fewer.
const FEW: usize = 40;
const ROUNDS: usize = 3;

pub(crate) fn measure() -> Result<Vec<Row>> {
    let ansible_playbook = peers().join("python/bin/ansible-playbook");
    ensure!(ansible_playbook.exists(), "Ansible is not there; `make setup-bench` installs it");
    let sshd = SshServer::start();
    // Brings the program.
    run(&sshd, 1)?;
    let mut turns = Vec::new();
    for _ in 0..ROUNDS {
        let ours = per_task(COUNT, run(&sshd, COUNT)?, run(&sshd, 0)?);
        let connections = per_task(FEW, connect(&sshd, FEW)?, Duration::ZERO);
        let theirs = per_task(FEW, play(&sshd, FEW)?, play(&sshd, 0)?);
        turns.push((ours, connections, theirs));
    }
    let row = |what: &str, least, pick: fn(&(Duration, Duration, Duration)) -> Duration| {
        let mut turns: Vec<_> = turns.iter().map(|turn| (turn.0, pick(turn))).collect();
        turns.sort_by(|one, other| ratio(one.1, one.0).total_cmp(&ratio(other.1, other.0)));
        let (ours, theirs) = turns[turns.len() / 2];
        Row {
            what: format!("`/bin/true` tasks in a line on one node behind ssh / {what}"),
            measured: ratio(theirs, ours),
            unit: " x",
            limit: Some(Limit::AtLeast(least)),
            detail: format!("{}, {}", rate(1, ours), rate(1, theirs)),
        }
    };
    Ok(vec![
        row("a connection for each", 5.0, |turn| turn.1),
        row("Ansible with pipelining and ControlPersist", 1.0, |turn| turn.2),
    ])
}

fn per_task(count: usize, whole: Duration, empty: Duration) -> Duration {
    whole.saturating_sub(empty) / u32::try_from(count).expect("few")
}

/// A run of so many tasks, with a journal, from its start to its end.
fn run(sshd: &SshServer, count: usize) -> Result<Duration> {
    let call = Call {
        action: "shell".to_owned(),
        input: json!({"command": "/bin/true"}),
        ..Call::default()
    };
    let step = Step { call, subject: Some(0), ..Step::default() };
    // One more, so that there is a session without any as well.
    let vertex = |at: usize| Vertex {
        name: format!("t{at}@n"),
        after: at
            .checked_sub(1)
            .map(|before| StepId(u32::try_from(before).expect("few")))
            .into_iter()
            .collect(),
        kind: Kind::Step(Box::new(step.clone())),
    };
    let vertices = (0..=count).map(vertex).collect();
    let plan = Plan::new(Draft { vertices, subjects: vec!["n".to_owned()], ..Draft::default() })?;
    let plan = Arc::new(plan);
    let dir = tempfile::tempdir()?;
    let target = Target {
        host: "127.0.0.1".to_owned(),
        login: Login {
            key: Some(sshd.key()),
            known_hosts: Some(sshd.known_hosts()),
            port: Some(sshd.port()),
            ..Login::default()
        },
        program: "/proc/self/exe".into(),
    };
    let setup = SshSetup {
        arguments: vec![WORK_OVER_SSH.to_owned()],
        secrets: Arc::new(NoSecrets),
        plugins: SentPlugins::default(),
        lost_after: Duration::from_mins(1),
        target: Arc::new(move |_| Ok(target.clone())),
    };
    let start = Instant::now();
    let (send, events) = channel();
    let outputs = Outputs::in_dir(dir.path().join("output"));
    // Each run has a directory of its own on the node.
    let name = dir.path().file_name().context("a name")?.to_string_lossy().replace('.', "r");
    let mut executor = SshExecutor::new(&name, setup, send, outputs, &plan, [].into());
    let mut journal = FileJournal::create(&dir.path().join("records"))?;
    begin(&plan, &mut journal, 0)?;
    let mut journal = executor.work().wrap_journal(&plan, journal);
    let mut run = Run::new(Arc::clone(&plan));
    let halt = drive(&mut run, &mut journal, &mut executor, &events, || 0)?;
    ensure!(halt == Halt::Finished(Outcome::Succeeded), "the run: {halt:?}");
    let took = start.elapsed();
    executor.forget();
    Ok(took)
}

/// So many programs, each through a connection of its own.
fn connect(sshd: &SshServer, count: usize) -> Result<Duration> {
    let start = Instant::now();
    for _ in 0..count {
        let mut ssh = Command::new("ssh");
        ssh.args(["-T", "-o", "BatchMode=yes", "-o", "LogLevel=ERROR", "-i"]).arg(sshd.key());
        ssh.args(options(sshd)).args(["-p", &sshd.port().to_string(), "127.0.0.1", "/bin/true"]);
        ensure!(ssh.status()?.success(), "ssh cannot reach the test server");
    }
    Ok(start.elapsed())
}

fn options(sshd: &SshServer) -> [String; 2] {
    ["-o".to_owned(), format!("UserKnownHostsFile=\"{}\"", sshd.known_hosts().display())]
}

/// How long a play of so many tasks takes, all of it.
fn play(sshd: &SshServer, count: usize) -> Result<Duration> {
    let dir = tempfile::tempdir()?;
    let book = dir.path().join("book.yaml");
    let mut text =
        "- hosts: all\n  gather_facts: false\n  tasks:\n    - command: /bin/true\n".to_owned();
    text.push_str(&"    - command: /bin/true\n".repeat(count));
    fs_err::write(&book, text)?;
    let known = options(sshd)[1].replace('"', "\\\"");
    let inventory = format!(
        "n ansible_host=127.0.0.1 ansible_port={} ansible_ssh_private_key_file={} \
         ansible_python_interpreter=/usr/bin/python3 \
         ansible_ssh_common_args=\"-o ControlMaster=auto -o ControlPersist=60s -o '{known}'\"\n",
        sshd.port(),
        sshd.key().display(),
    );
    let hosts = dir.path().join("hosts");
    fs_err::write(&hosts, inventory)?;
    let start = Instant::now();
    let out = Command::new(peers().join("python/bin/ansible-playbook"))
        .arg("-i")
        .arg(&hosts)
        .arg(&book)
        .env("ANSIBLE_PIPELINING", "1")
        .env("ANSIBLE_SSH_CONTROL_PATH_DIR", dir.path())
        .env("ANSIBLE_STDOUT_CALLBACK", "minimal")
        .env("ANSIBLE_LOCAL_TEMP", dir.path())
        .output()?;
    ensure!(out.status.success(), "Ansible: {}", String::from_utf8_lossy(&out.stdout));
    Ok(start.elapsed())
}
