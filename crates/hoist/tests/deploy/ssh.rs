//! Steps on a machine without an agent: a real sshd on loopback, and the real program there.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use hoist_engine::action::{Failure, Secrets};
use hoist_engine::drive::{Executor, Journal};
use hoist_engine::execute::Outputs;
use hoist_engine::journal::JournalError;
use hoist_engine::plan::{AppliedAttempt, Call, Draft, Kind, Plan, Step, StepId, Vertex};
use hoist_engine::pull::DispatcherJournal;
use hoist_engine::record::{End, FailedCheck, FailureKind};
use hoist_engine::run::{AttemptStatus, Run};
use hoist_engine::ssh::{Login, SentPlugins, SshExecutor, SshSetup, Target};
use hoist_engine::{Effect, Event, Record};
use hoist_testkit::eventually;
use hoist_testkit::sshd::SshServer;
use parking_lot::Mutex;
use serde_json::{Value, json};

struct Vault;

impl Secrets for Vault {
    fn get(&self, _: &str) -> Result<String, Failure> {
        Ok("hunter2 and more".to_owned())
    }
}

/// A network between both sides that can be cut.
struct Wire {
    port: u16,
    open: Arc<Mutex<Vec<TcpStream>>>,
    is_up: Arc<AtomicBool>,
    accepted: Arc<AtomicUsize>,
}

impl Wire {
    fn to(port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let own = listener.local_addr().expect("an address").port();
        let open = Arc::<Mutex<Vec<TcpStream>>>::default();
        let is_up = Arc::new(AtomicBool::new(true));
        let streams = Arc::clone(&open);
        let up = Arc::clone(&is_up);
        let accepted = Arc::<AtomicUsize>::default();
        let count = Arc::clone(&accepted);
        std::thread::spawn(move || {
            for near in listener.incoming().flatten() {
                count.fetch_add(1, Ordering::SeqCst);
                let far =
                    up.load(Ordering::SeqCst).then(|| TcpStream::connect(("127.0.0.1", port)));
                let Some(Ok(far)) = far else { continue };
                let clone = |stream: &TcpStream| stream.try_clone().expect("a socket");
                streams.lock().extend([clone(&near), clone(&far)]);
                for (from, to) in [(clone(&near), clone(&far)), (far, near)] {
                    std::thread::spawn(move || forward(from, to));
                }
            }
        });
        Self { port: own, open, is_up, accepted }
    }

    /// Breaks open connections and refuses new ones until [`Wire::mend`].
    fn cut(&self) {
        self.is_up.store(false, Ordering::SeqCst);
        for stream in self.open.lock().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    fn mend(&self) {
        self.is_up.store(true, Ordering::SeqCst);
    }
}

fn forward(mut from: TcpStream, mut to: TcpStream) {
    let mut buffer = [0; 16 * 1024];
    while let Ok(read) = from.read(&mut buffer) {
        if read == 0 || to.write_all(&buffer[..read]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}

/// A machine, and the network to it.
struct Sshd {
    server: SshServer,
    wire: Wire,
    dir: tempfile::TempDir,
}

/// A run of one step, whose journal is in memory.
struct Site {
    executor: SshExecutor,
    events: Receiver<Event>,
    journal: DispatcherJournal<Nowhere>,
    plan: Arc<Plan>,
}

fn setup(login: Login) -> SshSetup {
    let target =
        Target { host: "127.0.0.1".to_owned(), login, program: env!("CARGO_BIN_EXE_hoist").into() };
    SshSetup {
        arguments: vec!["work-over-ssh".to_owned()],
        secrets: Arc::new(Vault),
        plugins: SentPlugins::default(),
        lost_after: Duration::from_mins(1),
        target: Arc::new(move |_| Ok(target.clone())),
    }
}

/// A journal for tests of what is done, and not of what is recorded.
struct Nowhere;

impl Journal for Nowhere {
    fn append(&mut self, _: &[Record]) -> Result<(), JournalError> {
        Ok(())
    }

    fn snapshot(&mut self, _: &Run) {}
}

impl Sshd {
    fn start() -> Self {
        let server = SshServer::start();
        let wire = Wire::to(server.port());
        let dir = tempfile::tempdir().expect("a directory");
        let known = fs_err::read_to_string(server.known_hosts()).expect("a file");
        let known = known.replace(&server.port().to_string(), &wire.port.to_string());
        fs_err::write(dir.path().join("known"), known).expect("a file");
        Self { server, wire, dir }
    }

    fn home(&self) -> PathBuf {
        self.server.file(".hoist").parent().expect("a home").to_owned()
    }

    fn login(&self) -> Login {
        Login {
            key: Some(self.server.key()),
            known_hosts: Some(self.dir.path().join("known")),
            port: Some(self.wire.port),
            ..Login::default()
        }
    }

    fn site(&self, plan: Plan) -> Site {
        self.site_with(plan, setup(self.login()), None)
    }

    /// `given` is the memory of the machine that has begun the first attempt.
    fn site_with(&self, plan: Plan, setup: SshSetup, given: Option<&str>) -> Site {
        let (send, events) = channel();
        let begun = given.map(|memory| ((STEP, 1), Some(memory.to_owned()))).into_iter().collect();
        let executor = SshExecutor::new("01run", setup, send, self.outputs(), &plan, begun);
        let plan = Arc::new(plan);
        let journal = executor.work().wrap_journal(&plan, Nowhere);
        Site { executor, events, journal, plan }
    }

    fn outputs(&self) -> Outputs {
        Outputs::in_dir(self.dir.path().join("output"))
    }

    fn printed(&self, attempt: u32) -> String {
        let bytes = self.outputs().read(STEP, attempt).expect("a file").unwrap_or_default();
        String::from_utf8(bytes).expect("text")
    }

    fn run_dir(&self) -> PathBuf {
        self.server.file(".hoist/runs/01run")
    }

    /// The name of the memory of the machine.
    fn memory(&self) -> String {
        let bytes = fs_err::read(self.run_dir().join("memory")).expect("a file");
        let memory: Value = serde_json::from_slice(&bytes).expect("JSON");
        memory["name"].as_str().expect("a name").to_owned()
    }

    /// Process ids of programs that work for a controller.
    fn workers(&self) -> usize {
        let home = format!("HOME={}", self.home().display());
        let processes = fs_err::read_dir("/proc").expect("processes").flatten();
        let read = |process: &fs_err::DirEntry, name: &str| {
            fs_err::read(process.path().join(name)).unwrap_or_default()
        };
        let is_worker = |process: &fs_err::DirEntry| {
            let arguments = read(process, "cmdline");
            let environ = read(process, "environ");
            arguments.ends_with(b"\0work-over-ssh\0")
                && environ.split(|byte| *byte == 0).any(|one| one == home.as_bytes())
        };
        processes.filter(is_worker).count()
    }
}

impl Site {
    fn act(&mut self, effect: Effect) {
        self.executor.act(&self.plan, effect);
    }

    /// Records that the machine gets the attempt, and returns the name of its memory.
    fn hand_out(&mut self) -> String {
        let event = self.events.recv_timeout(Duration::from_secs(90)).expect("an event");
        let Event::Given { step, attempt, to } = event else { panic!("{event:?}") };
        let record = Record::Given { step, attempt, to: to.clone(), at: 0 };
        self.journal.append(&[record]).expect("memory");
        to
    }

    /// The next event that is not about the journal.
    fn next(&mut self) -> Event {
        loop {
            let event = self.events.recv_timeout(Duration::from_secs(90)).expect("an event");
            let Event::Given { step, attempt, to } = event else { return event };
            let record = Record::Given { step, attempt, to, at: 0 };
            self.journal.append(&[record]).expect("memory");
        }
    }

    fn runs(&mut self, attempt: u32) -> End {
        self.act(start(attempt));
        end(self.next())
    }
}

const STEP: StepId = StepId(0);

fn start(attempt: u32) -> Effect {
    Effect::Start { step: STEP, attempt }
}

fn call(input: Value) -> Call {
    Call { action: "shell".to_owned(), input, ..Call::default() }
}

fn plan(step: Step) -> Plan {
    let step = Step { subject: Some(0), ..step };
    let vertex =
        Vertex { name: "t@n1".to_owned(), after: Vec::new(), kind: Kind::Step(Box::new(step)) };
    Plan::new(Draft { vertices: vec![vertex], subjects: vec!["n1".to_owned()], ..Draft::default() })
        .expect("a plan")
}

fn of(action: &str, input: Value) -> Plan {
    let call = Call { action: action.to_owned(), input, ..Call::default() };
    plan(Step { call, ..Step::default() })
}

fn shell(command: &str) -> Plan {
    of("shell", json!({ "command": command }))
}

fn end(event: Event) -> End {
    match event {
        Event::Ran { end, .. } | Event::Found { found: AttemptStatus::Ended(end), .. } => end,
        other => panic!("{other:?}"),
    }
}

fn failed(end: End) -> (FailureKind, String) {
    match end {
        End::Failed { kind, reason } => (kind, reason),
        other => panic!("{other:?}"),
    }
}

const DONE: End = End::Done { changed: true, receipt: Value::Null };

#[test]
fn step_runs_over_ssh_with_its_environment() {
    let sshd = Sshd::start();
    let text = "pwd; echo \"$HOIST_NODE $HOIST_RUN $HOIST_TASK $HOIST_ATTEMPT $ODD\"; \
                cat \"$KEY\"; echo; echo $KEY > \"$HOME/key\"; stat -c %a \"$KEY\"; env | grep -c hunter2; true";
    let odd = "a'b\"c$(exit 9)\n;";
    let input =
        json!({"command": text, "env": {"ODD": odd}, "secrets": {"KEY": "ref"}, "cwd": "/usr"});
    assert_eq!(sshd.site(of("shell", input)).runs(1), DONE);
    let wanted = format!("/usr\nn1 01run t@n1 01run/0/1 {odd}\n[hidden]\n600\n0\n");
    assert_eq!(sshd.printed(1), wanted);
    let key = fs_err::read_to_string(sshd.server.file("key")).expect("a path");
    assert!(!Path::new(key.trim()).exists(), "the secret is gone");
    assert_eq!(
        failed(sshd.site(shell("echo one; echo why >&2; exit 7")).runs(2)),
        (FailureKind::Exit, "exit code 7: why".to_owned())
    );
}

#[test]
fn one_session_serves_all_steps_of_a_run() {
    let sshd = Sshd::start();
    let mut site = sshd.site(shell("echo $PPID >> $HOME/parents"));
    for attempt in 1..=5 {
        assert_eq!(site.runs(attempt), DONE);
    }
    assert_eq!(sshd.wire.accepted.load(Ordering::SeqCst), 1);
    assert_eq!(sshd.workers(), 1);
    drop(site);
    eventually("remote program ends with its session", || sshd.workers() == 0);
    assert!(sshd.run_dir().exists(), "the run is not over");
}

#[test]
fn machine_forgets_a_run_that_is_over() {
    let sshd = Sshd::start();
    let mut site = sshd.site(shell("true"));
    assert_eq!(site.runs(1), DONE);
    site.executor.forget();
    drop(site);
    eventually("directory of the run is gone", || !sshd.run_dir().exists());
}

#[test]
fn all_kinds_of_actions_run_over_ssh() {
    let sshd = Sshd::start();
    let home = sshd.home();
    let path = |name: &str| home.join(name).display().to_string();
    fs_err::create_dir(home.join("tree")).expect("a directory");
    fs_err::write(home.join("tree/leaf"), "leaf\n").expect("a file");
    let web = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}/", web.local_addr().expect("an address"));
    std::thread::spawn(move || {
        for mut client in web.incoming().flatten() {
            let _ = client.read(&mut [0; 1024]);
            let _ = client.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
        }
    });
    let list = json!({"steps": [
        {"action": "copy", "input": {"from": path("tree/leaf"), "to": path("copied")}},
        {"action": "sync", "input": {"from": path("tree"), "to": path("synced")}},
        {"action": "http", "input": {"url": url, "contains": "ok"}},
        {"action": "script", "input": {"text": "echo \"$1\" > $HOME/script", "args": ["a b"]}},
    ]});
    let checked = Step {
        call: Call { action: "steps".to_owned(), input: list, ..Call::default() },
        after: vec![Call {
            action: "http".to_owned(),
            input: json!({"url": url, "contains": "ok"}),
            ..Call::default()
        }],
        ..Step::default()
    };
    let mut site = sshd.site(plan(checked));
    assert!(matches!(site.runs(1), End::Done { changed: true, .. }));
    site.act(Effect::Verify { step: STEP, attempt: 1 });
    assert!(matches!(site.next(), Event::Verified { failed: None, .. }));
    for (name, text) in [("copied", "leaf\n"), ("synced/leaf", "leaf\n"), ("script", "a b\n")] {
        assert_eq!(fs_err::read_to_string(home.join(name)).expect(name), text);
    }
}

#[test]
fn file_is_undone_over_ssh() {
    let sshd = Sshd::start();
    let path = sshd.server.file("page");
    fs_err::write(&path, "old\n").expect("a file");
    let input = json!({"path": path, "text": "new\n"});
    let End::Done { receipt, .. } = sshd.site(of("file", input.clone())).runs(1) else {
        panic!("it is written")
    };
    assert_eq!(fs_err::read_to_string(&path).expect("a file"), "new\n");
    let attempt =
        AppliedAttempt { attempt: "01run/0/1".to_owned(), receipt, ..AppliedAttempt::default() };
    let undo = Call { action: "file".to_owned(), input, undoes: Some(vec![attempt]) };
    let undo = plan(Step { call: undo, ..Step::default() });
    assert!(matches!(sshd.site(undo).runs(2), End::Done { .. }));
    assert_eq!(fs_err::read_to_string(&path).expect("a file"), "old\n");
}

#[test]
fn plugins_of_the_controller_run_over_ssh() {
    let sshd = Sshd::start();
    let plugins = sshd.dir.path().join("plugins");
    fs_err::create_dir(&plugins).expect("a directory");
    let name = "hoist-action-motd";
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/plugins").join(name);
    fs_err::copy(example, plugins.join(name)).expect("an example");
    let setup = SshSetup {
        plugins: SentPlugins { directory: Some(plugins), are_unconfined: true },
        ..setup(sshd.login())
    };
    let input = json!({"path": sshd.server.file("motd"), "text": "Welcome."});
    let mut site = sshd.site_with(of("motd", input), setup, None);
    assert!(matches!(site.runs(1), End::Done { changed: true, .. }));
    let text = fs_err::read_to_string(sshd.server.file("motd")).expect("a file");
    assert_eq!(text, "Welcome.\n");
}

#[test]
fn broken_ssh_connection_does_not_fail_a_step() {
    let sshd = Sshd::start();
    let home = sshd.home();
    let text = "echo begun >> $HOME/begun; until [ -e $HOME/gate ]; do sleep 0.1; done; echo done";
    let mut site = sshd.site(shell(text));
    site.act(start(1));
    site.hand_out();
    eventually("program runs", || home.join("begun").exists());
    sshd.wire.cut();
    fs_err::write(home.join("gate"), "").expect("a file");
    eventually("remote program ends after its work", || sshd.workers() == 0);
    assert!(site.events.try_recv().is_err(), "no event has arrived");
    sshd.wire.mend();
    assert_eq!(end(site.next()), DONE);
    let begun = || fs_err::read_to_string(home.join("begun")).expect("a file");
    assert_eq!(begun(), "begun\n", "it was begun once");
    assert_eq!(sshd.printed(1), "done\n");
    // A new controller asks for the state.
    drop(site);
    let mut another = sshd.site_with(shell(text), setup(sshd.login()), Some(&sshd.memory()));
    another.act(Effect::Ask { step: STEP, attempt: 1 });
    assert_eq!(end(another.next()), DONE);
}

#[test]
fn ssh_attempt_of_a_dead_controller_is_found_again() {
    let sshd = Sshd::start();
    let home = sshd.home();
    let text = "echo $$ > $HOME/pid; until [ -e $HOME/gate ]; do sleep 0.1; done; echo end";
    let mut first = sshd.site(shell(text));
    first.act(start(1));
    let to = first.hand_out();
    eventually("program runs", || home.join("pid").exists());
    drop(first);
    let mut second = sshd.site_with(shell(text), setup(sshd.login()), Some(&to));
    second.act(Effect::Ask { step: STEP, attempt: 1 });
    assert!(matches!(second.next(), Event::Found { found: AttemptStatus::Running, .. }));
    fs_err::write(home.join("gate"), "").expect("a file");
    assert_eq!(end(second.next()), DONE);
    assert_eq!(sshd.printed(1), "end\n");
    // A machine that has lost its memory may have begun it.
    drop(second);
    eventually("remote program ends", || sshd.workers() == 0);
    fs_err::remove_dir_all(sshd.run_dir()).expect("a directory");
    let mut third = sshd.site_with(shell(text), setup(sshd.login()), Some(&to));
    third.act(Effect::Ask { step: STEP, attempt: 1 });
    assert!(matches!(third.next(), Event::Found { found: AttemptStatus::Gone, .. }));
}

#[test]
fn ssh_step_ends_on_timeout_and_on_stop() {
    let sshd = Sshd::start();
    let home = sshd.home();
    let short = plan(Step {
        call: call(json!({"command": "sleep 60"})),
        timeout_ms: Some(300),
        ..Step::default()
    });
    assert_eq!(failed(sshd.site(short).runs(1)).0, FailureKind::Timeout);
    let mut site = sshd.site(shell("sleep 600 & echo $! > $HOME/child; wait"));
    site.act(start(2));
    site.hand_out();
    eventually("program runs", || {
        fs_err::read_to_string(home.join("child")).is_ok_and(|pid| pid.ends_with('\n'))
    });
    site.act(Effect::Kill { step: STEP, attempt: 2 });
    assert_eq!(end(site.next()), End::Interrupted);
    let child = fs_err::read_to_string(home.join("child")).expect("a number");
    eventually("children of the program are gone", || {
        !Path::new(&format!("/proc/{}", child.trim())).exists()
    });
}

#[test]
fn checks_run_over_ssh() {
    let sshd = Sshd::start();
    let check = call(json!({"command": "echo no disk; exit 1", "says": "there is a disk"}));
    let mut site = sshd.site(plan(Step { before: vec![check], ..Step::default() }));
    site.act(Effect::Check { step: STEP, attempt: 1 });
    let Event::Checked { failed, .. } = site.next() else { panic!("a check") };
    let title = "there is a disk".to_owned();
    let output = "no disk".to_owned();
    assert_eq!(failed, Some(FailedCheck { title, output, exit_code: Some(1) }));
    let text = "echo x >> $HOME/looks; [ $(wc -l < $HOME/looks) -ge 3 ]";
    let poll = json!({"for_ms": 60_000, "every_ms": 20});
    let after = vec![call(json!({"command": text, "poll": poll}))];
    let mut site = sshd.site(plan(Step { after, ..Step::default() }));
    site.act(Effect::Verify { step: STEP, attempt: 1 });
    assert!(matches!(site.next(), Event::Verified { failed: None, .. }));
    let looks = fs_err::read_to_string(sshd.server.file("looks")).expect("a file");
    assert_eq!(looks.lines().count(), 3);
    let printed = sshd.printed(1);
    let polls: Vec<&str> = printed.lines().filter(|line| line.contains(", poll ")).collect();
    let [first, second, last] = &polls[..] else { panic!("{printed}") };
    for (line, poll) in
        [(first, "poll 1 after "), (second, "poll 2 after "), (last, "poll 3 after ")]
    {
        assert!(line.starts_with("hoist: check ") && line.contains(poll), "{printed}");
    }
    assert!(last.ends_with(" s: holds") && !second.ends_with(" s: holds"), "{printed}");
}

#[test]
fn machine_with_unknown_host_key_is_refused() {
    let sshd = Sshd::start();
    let stranger = SshServer::start();
    let known = fs_err::read_to_string(stranger.known_hosts()).expect("a file");
    let known = known.replace(&stranger.port().to_string(), &sshd.wire.port.to_string());
    let other = sshd.dir.path().join("other");
    fs_err::write(&other, known).expect("a file");
    let refused = |login: Login, why: &str| {
        let mut site = sshd.site_with(shell("true"), setup(login), None);
        let End::NotBegun { reason: Some(reason) } = site.runs(1) else { panic!("it is begun") };
        assert!(reason.starts_with("`127.0.0.1` cannot be reached"), "{reason}");
        assert!(reason.contains(why), "{reason}");
    };
    refused(Login { known_hosts: Some(other), ..sshd.login() }, "Host key verification failed");
    refused(Login { key: Some(stranger.key()), ..sshd.login() }, "Permission denied");
    assert!(!sshd.server.file(".hoist").exists(), "nothing was done there");
}

#[test]
fn node_is_reached_through_a_jump_host() {
    let sshd = Sshd::start();
    let files = [sshd.server.known_hosts(), sshd.dir.path().join("known")];
    let known = files.map(|path| fs_err::read_to_string(path).expect("a file")).concat();
    let both = sshd.dir.path().join("both hosts");
    fs_err::write(&both, known).expect("a file");
    let login = Login {
        jump: Some(format!("127.0.0.1:{}", sshd.wire.port)),
        port: Some(sshd.server.port()),
        known_hosts: Some(both),
        ..sshd.login()
    };
    assert_eq!(sshd.site_with(shell("true"), setup(login), None).runs(1), DONE);
    assert_eq!(sshd.wire.accepted.load(Ordering::SeqCst), 1, "it was reached through the other");
}

/// The program in root's own home, which is removed with it.
struct Brought(PathBuf);

impl Drop for Brought {
    fn drop(&mut self) {
        let _ = fs_err::remove_file(&self.0);
    }
}

#[test]
fn steps_run_as_the_user_that_sudo_makes() {
    let sshd = Sshd::start();
    let sum = Command::new("sha256sum").arg(env!("CARGO_BIN_EXE_hoist")).output().expect("a sum");
    let sum = String::from_utf8(sum.stdout).expect("text");
    let _brought = Brought(Path::new("/root").join(".hoist/programs").join(&sum[..64]));
    let login = Login { become_user: Some("root".to_owned()), ..sshd.login() };
    let mut site = sshd.site_with(shell("echo $HOME"), setup(login), None);
    assert_eq!(site.runs(1), DONE);
    site.executor.forget();
    assert_eq!(sshd.printed(1), "/root\n", "not the home of the login");
    let login = Login { become_user: Some("no-such-user".to_owned()), ..sshd.login() };
    let mut site = sshd.site_with(shell("true"), setup(login), None);
    let End::NotBegun { reason: Some(reason) } = site.runs(2) else { panic!("it is begun") };
    assert!(reason.contains("no-such-user"), "{reason}");
}

#[test]
fn large_output_is_cut_on_the_machine() {
    let sshd = Sshd::start();
    let text = "head -c 20000000 /dev/zero | tr '\\0' x; echo";
    assert_eq!(sshd.site(shell(text)).runs(1), DONE);
    let length = sshd.printed(1).len();
    assert!((8_000_000..9_000_000).contains(&length), "{length}");
}

/// Files of another user at the place where an earlier version kept secrets of an attempt.
struct Trap {
    dir: PathBuf,
    victim: PathBuf,
}

impl Trap {
    const NOBODY: u32 = 65_534;

    fn set(attempt: u32, victim: &Path) -> Self {
        let dir = PathBuf::from(format!("/dev/shm/hoist-01run-0-{attempt}"));
        fs_err::create_dir(&dir).expect("a directory");
        let kept = dir.join("KEPT");
        fs_err::write(&kept, "").expect("a file");
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o666);
        fs_err::set_permissions(&kept, open).expect("open to all");
        fs_err::write(victim, "precious").expect("a file");
        std::os::unix::fs::symlink(victim, dir.join("REDIRECTED")).expect("a link");
        for path in [&dir, &kept] {
            std::os::unix::fs::lchown(path, Some(Self::NOBODY), None).expect("another owner");
        }
        Self { dir, victim: victim.to_owned() }
    }
}

impl Drop for Trap {
    fn drop(&mut self) {
        fs_err::remove_dir_all(&self.dir).expect("it is there");
    }
}

/// Processes of an attempt, and the arguments that every user of the machine can read.
fn arguments_of(attempt: &str, home: &Path) -> Vec<String> {
    let marks = [format!("HOIST_ATTEMPT={attempt}"), format!("HOME={}", home.display())];
    let processes = fs_err::read_dir("/proc").expect("processes").flatten();
    let of_attempt = processes.filter(|process| {
        let environ = fs_err::read(process.path().join("environ")).unwrap_or_default();
        let has = |mark: &String| environ.split(|byte| *byte == 0).any(|e| e == mark.as_bytes());
        marks.iter().all(has)
    });
    let arguments = of_attempt.map(|process| fs_err::read(process.path().join("cmdline")));
    arguments.flatten().map(|bytes| String::from_utf8_lossy(&bytes).replace('\0', " ")).collect()
}

#[test]
fn other_users_cannot_predict_the_place_of_secrets() {
    let sshd = Sshd::start();
    let home = sshd.home();
    let trap = Trap::set(71, &sshd.dir.path().join("victim"));
    let text = "cd \"$(dirname \"$KEPT\")\" && stat -c \"%a %u\" . && pwd > \"$HOME/place\"; \
                until [ -e $HOME/gate ]; do sleep 0.1; done";
    let input = json!({"command": text, "secrets": {"KEPT": "ref", "REDIRECTED": "ref"}});
    let mut site = sshd.site(of("shell", input));
    site.act(start(71));
    site.hand_out();
    let place = home.join("place");
    eventually("program runs", || {
        fs_err::read_to_string(&place).is_ok_and(|place| place.ends_with('\n'))
    });
    let seen = arguments_of("01run/0/71", &home);
    let place = fs_err::read_to_string(&place).expect("a path");
    fs_err::write(home.join("gate"), "").expect("a file");
    assert_eq!(end(site.next()), DONE);
    assert!(seen.len() > 1, "{seen:?}");
    for arguments in &seen {
        assert!(!arguments.contains("01run"), "{arguments}");
        assert!(!arguments.contains(place.trim()), "{arguments}");
    }
    let uid = rustix::process::geteuid().as_raw();
    assert_eq!(sshd.printed(71), format!("700 {uid}\n"));
    assert!(!Path::new(place.trim()).exists(), "the secrets are gone");
    let kept = fs_err::read_to_string(trap.dir.join("KEPT")).expect("a file");
    assert_eq!(kept, "", "another user can read a secret");
    let victim = fs_err::read_to_string(&trap.victim).expect("a file");
    assert_eq!(victim, "precious", "another user can let a file be overwritten");
}

#[test]
fn attempt_directory_that_is_not_private_is_refused() {
    let refused = |prepare: &dyn Fn(&Path, &Path)| {
        let sshd = Sshd::start();
        let elsewhere = sshd.dir.path().join("elsewhere");
        fs_err::create_dir(&elsewhere).expect("a directory");
        prepare(&sshd.server.file(".hoist"), &elsewhere);
        let input = json!({"command": "true", "secrets": {"KEY": "ref"}});
        let end = sshd.site(of("shell", input)).runs(1);
        let End::NotBegun { reason: Some(reason) } = end else { panic!("{end:?}") };
        assert!(reason.contains(".hoist is not a directory that only"), "{reason}");
        assert_eq!(fs_err::read_dir(&elsewhere).expect("a directory").count(), 0);
    };
    refused(&|hoist, elsewhere| std::os::unix::fs::symlink(elsewhere, hoist).expect("a link"));
    refused(&|hoist, _| {
        fs_err::create_dir(hoist).expect("a directory");
        std::os::unix::fs::lchown(hoist, Some(Trap::NOBODY), None).expect("another owner");
    });
    refused(&|hoist, _| {
        fs_err::create_dir(hoist).expect("a directory");
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o770);
        fs_err::set_permissions(hoist, open).expect("open to its group");
    });
}
