//! Steps on a machine without an agent: a real sshd on loopback, with keys and a home of its own.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use hoist_diagnostic::Diagnostic;
use hoist_engine::action::{
    Action, ApplyOutcome, Catalog, Ctx, Description, Failure, Purpose, Script, Secrets, Verdict,
};
use hoist_engine::drive::Executor;
use hoist_engine::execute::Outputs;
use hoist_engine::plan::{AppliedAttempt, Call, Draft, Kind, Plan, Step, StepId, Vertex};
use hoist_engine::record::{End, FailedCheck, FailureKind};
use hoist_engine::run::AttemptStatus;
use hoist_engine::ssh::{Login, SshExecutor, SshSetup};
use hoist_engine::{Effect, Event};
use hoist_testkit::eventually;
use hoist_testkit::scratch::free_port;
use parking_lot::Mutex;
use serde_json::{Value, json};

/// A shell command that only exists as a script.
struct Far;

impl Action for Far {
    fn describe(&self) -> Description {
        Description { name: "far".to_owned(), ..Description::default() }
    }

    fn validate(&self, _: &Value) -> Vec<Diagnostic> {
        Vec::new()
    }

    fn apply(&self, _: &Step, _: &mut Ctx<'_>) -> Result<ApplyOutcome, Failure> {
        panic!("nothing is done here")
    }

    fn verify(&self, _: &Step, _: &mut Ctx<'_>) -> Result<Verdict, Failure> {
        panic!("nothing is looked at here")
    }

    fn script(&self, input: &Value, _: Purpose) -> Option<Script> {
        serde_json::from_value(input.clone()).ok()
    }
}

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
}

impl Wire {
    fn to(port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let own = listener.local_addr().expect("an address").port();
        let (open, is_up) =
            (Arc::<Mutex<Vec<TcpStream>>>::default(), Arc::new(AtomicBool::new(true)));
        let streams = Arc::clone(&open);
        let up = Arc::clone(&is_up);
        std::thread::spawn(move || {
            for near in listener.incoming().flatten() {
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
        Self { port: own, open, is_up }
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

struct Sshd {
    dir: tempfile::TempDir,
    child: Child,
    wire: Wire,
}

impl Drop for Sshd {
    fn drop(&mut self) {
        self.child.kill().expect("it can be killed");
        self.child.wait().expect("it ends");
    }
}

fn keygen(path: &Path) {
    let made =
        Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(path).status();
    assert!(made.expect("ssh-keygen (package openssh-client)").success());
}

impl Sshd {
    fn start() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let path = |name: &str| dir.path().join(name).display().to_string();
        keygen(&dir.path().join("host"));
        keygen(&dir.path().join("user"));
        fs_err::copy(dir.path().join("user.pub"), dir.path().join("authorized")).expect("a key");
        fs_err::create_dir(dir.path().join("home")).expect("a home");
        // Required by an sshd that runs as root.
        let _ = fs_err::create_dir_all("/run/sshd");
        let port = free_port();
        let config = format!(
            "Port {port}\nListenAddress 127.0.0.1\nHostKey {}\nAuthorizedKeysFile {}\nPidFile none\nUsePAM no\n\
             StrictModes no\nPasswordAuthentication no\nPermitRootLogin yes\nSetEnv HOME={}\n",
            path("host"),
            path("authorized"),
            path("home"),
        );
        fs_err::write(dir.path().join("config"), config).expect("a file");
        let log = fs_err::File::create(dir.path().join("log")).expect("a file");
        let child = Command::new("/usr/sbin/sshd")
            .args(["-D", "-e", "-f"])
            .arg(dir.path().join("config"))
            .stdin(Stdio::null())
            .stderr(Stdio::from(log.into_parts().0))
            .spawn()
            .expect("sshd (package openssh-server)");
        eventually("sshd answers", || TcpStream::connect(("127.0.0.1", port)).is_ok());
        let wire = Wire::to(port);
        let host = fs_err::read_to_string(dir.path().join("host.pub")).expect("a key");
        let known = format!("[127.0.0.1]:{} {host}", wire.port);
        fs_err::write(dir.path().join("known"), known).expect("a file");
        Self { dir, child, wire }
    }

    fn login(&self) -> Login {
        Login {
            key: Some(self.dir.path().join("user")),
            known_hosts: Some(self.dir.path().join("known")),
            port: Some(self.wire.port),
            ..Login::default()
        }
    }

    fn executor(&self, login: Login) -> (SshExecutor, Receiver<Event>) {
        let mut catalog = Catalog::default();
        catalog.add(Arc::new(Far));
        let (send, events) = channel();
        let setup = SshSetup {
            login,
            catalog,
            secrets: Arc::new(Vault),
            outputs: self.outputs(),
            lost_after: Duration::from_mins(1),
            address: Arc::new(|_| Ok("127.0.0.1".to_owned())),
        };
        (SshExecutor::new("01run", setup, send), events)
    }

    fn outputs(&self) -> Outputs {
        Outputs::in_dir(self.dir.path().join("output"))
    }

    fn printed(&self, attempt: u32) -> String {
        let bytes = self.outputs().read(STEP, attempt).expect("a file").unwrap_or_default();
        String::from_utf8(bytes).expect("text")
    }

    fn attempts(&self) -> PathBuf {
        self.dir.path().join("home/.hoist/attempts")
    }
}

const STEP: StepId = StepId(0);

fn start(attempt: u32) -> Effect {
    Effect::Start { step: STEP, attempt }
}

fn call(input: Value) -> Call {
    Call { action: "far".to_owned(), input, ..Call::default() }
}

fn plan(step: Step) -> Plan {
    let step = Step { subject: Some(0), ..step };
    let vertex =
        Vertex { name: "t@n1".to_owned(), after: Vec::new(), kind: Kind::Step(Box::new(step)) };
    Plan::new(Draft { vertices: vec![vertex], subjects: vec!["n1".to_owned()], ..Draft::default() })
        .expect("a plan")
}

fn of(input: Value) -> Plan {
    plan(Step { call: call(input), ..Step::default() })
}

fn next(events: &Receiver<Event>) -> Event {
    events.recv_timeout(Duration::from_secs(90)).expect("an event")
}

fn end(event: Event) -> End {
    match event {
        Event::Ran { end, .. } | Event::Found { found: AttemptStatus::Ended(end), .. } => end,
        other => panic!("{other:?}"),
    }
}

fn failed(event: Event) -> (FailureKind, String) {
    match end(event) {
        End::Failed { kind, reason } => (kind, reason),
        other => panic!("{other:?}"),
    }
}

#[test]
fn step_runs_over_ssh_with_its_environment() {
    let sshd = Sshd::start();
    let (mut executor, events) = sshd.executor(sshd.login());
    let text = "pwd; echo \"$HOIST_NODE $HOIST_RUN $HOIST_TASK $HOIST_ATTEMPT $ODD\"; cat \"$DATA\"; \
                cat \"$KEY\"; echo; echo $KEY > \"$HOME/key\"; stat -c %a \"$KEY\"; env | grep -c hunter2; true";
    let odd = "a'b\"c$(exit 9)\n;";
    let script = json!({"text": text, "env": {"ODD": odd}, "files": {"DATA": "it's data\n"}, "secrets": {"KEY": "ref"}, "cwd": "/usr"});
    executor.act(&of(script), start(1));
    assert_eq!(end(next(&events)), End::Done { changed: true, receipt: Value::Null });
    let wanted = format!("/usr\nn1 01run t@n1 01run/0/1 {odd}\nit's data\n[hidden]\n600\n0\n");
    assert_eq!(sshd.printed(1), wanted);
    let key = fs_err::read_to_string(sshd.dir.path().join("home/key")).expect("a path");
    assert!(!Path::new(key.trim()).exists(), "the secret is gone");
    executor.act(&of(json!({"text": "exit 3", "unchanged": [3]})), start(2));
    assert_eq!(end(next(&events)), End::Done { changed: false, receipt: Value::Null });
    executor.act(&of(json!({"text": "echo one; echo why >&2; exit 7"})), start(3));
    assert_eq!(failed(next(&events)), (FailureKind::Exit, "exit code 7: why".to_owned()));
    executor.act(&of(json!({"text": "true", "cwd": "/nowhere"})), start(4));
    assert_eq!(failed(next(&events)).1, "exit code 1: there is no directory /nowhere");
}

#[test]
fn broken_ssh_connection_does_not_fail_a_step() {
    let sshd = Sshd::start();
    let (mut executor, events) = sshd.executor(sshd.login());
    let home = sshd.dir.path().join("home");
    let text = "echo begun >> $HOME/begun; until [ -e $HOME/gate ]; do sleep 0.1; done; echo done";
    let plan = of(json!({ "text": text }));
    executor.act(&plan, start(1));
    eventually("program runs", || home.join("begun").exists());
    sshd.wire.cut();
    fs_err::write(home.join("gate"), "").expect("a file");
    eventually("remote program ends", || sshd.attempts().join("01run-0-1/result").exists());
    assert!(events.try_recv().is_err(), "no event has arrived");
    sshd.wire.mend();
    assert_eq!(end(next(&events)), End::Done { changed: true, receipt: Value::Null });
    assert_eq!(
        fs_err::read_to_string(home.join("begun")).expect("a file"),
        "begun\n",
        "it was begun once"
    );
    assert_eq!(sshd.printed(1), "done\n");
    // A new controller asks for the state, and a second start has no effect.
    let (mut another, heard) = sshd.executor(sshd.login());
    another.act(&plan, Effect::Ask { step: STEP, attempt: 1 });
    assert!(matches!(
        next(&heard),
        Event::Found { found: AttemptStatus::Ended(End::Done { .. }), .. }
    ));
    another.act(&plan, start(1));
    assert!(matches!(end(next(&heard)), End::Done { .. }));
    assert_eq!(fs_err::read_to_string(home.join("begun")).expect("a file"), "begun\n");
    another.act(&plan, Effect::Ask { step: STEP, attempt: 2 });
    assert!(matches!(next(&heard), Event::Found { found: AttemptStatus::Never, .. }));
}

#[test]
fn ssh_attempt_of_a_dead_controller_is_found_again() {
    let sshd = Sshd::start();
    let home = sshd.dir.path().join("home");
    let plan =
        of(json!({"text": "echo $$ > $HOME/pid; until [ -e $HOME/gate ]; do sleep 0.1; done"}));
    let (mut first, _) = sshd.executor(sshd.login());
    first.act(&plan, start(1));
    eventually("program runs", || home.join("pid").exists());
    let (mut second, events) = sshd.executor(sshd.login());
    second.act(&plan, Effect::Ask { step: STEP, attempt: 1 });
    assert!(matches!(next(&events), Event::Found { found: AttemptStatus::Running, .. }));
    fs_err::write(home.join("gate"), "").expect("a file");
    assert!(matches!(
        next(&events),
        Event::Found { found: AttemptStatus::Ended(End::Done { .. }), .. }
    ));
    // A result that has vanished is reported as gone.
    fs_err::remove_file(sshd.attempts().join("01run-0-1/result")).expect("a result");
    second.act(&plan, Effect::Ask { step: STEP, attempt: 1 });
    assert!(matches!(next(&events), Event::Found { found: AttemptStatus::Gone, .. }));
}

#[test]
fn ssh_step_ends_on_timeout_and_on_stop() {
    let sshd = Sshd::start();
    let home = sshd.dir.path().join("home");
    let (mut executor, events) = sshd.executor(sshd.login());
    let short = plan(Step {
        call: call(json!({"text": "sleep 60"})),
        timeout_ms: Some(300),
        ..Step::default()
    });
    executor.act(&short, start(1));
    assert_eq!(failed(next(&events)).0, FailureKind::Timeout);
    let long = of(json!({"text": "sleep 600 & echo $! > $HOME/child; wait"}));
    executor.act(&long, start(2));
    eventually("program runs", || {
        fs_err::read_to_string(home.join("child")).is_ok_and(|pid| pid.ends_with('\n'))
    });
    executor.act(&long, Effect::Kill { step: STEP, attempt: 2 });
    assert_eq!(end(next(&events)), End::Interrupted);
    let child = fs_err::read_to_string(home.join("child")).expect("a number");
    eventually("children of the program are gone", || {
        !Path::new(&format!("/proc/{}", child.trim())).exists()
    });
}

#[test]
fn checks_run_over_ssh() {
    let sshd = Sshd::start();
    let home = sshd.dir.path().join("home");
    let (mut executor, events) = sshd.executor(sshd.login());
    let before = plan(Step {
        before: vec![call(json!({"text": "echo no disk; exit 1", "says": "there is a disk"}))],
        ..Step::default()
    });
    executor.act(&before, Effect::Check { step: STEP, attempt: 1 });
    let Event::Checked { failed, .. } = next(&events) else { panic!("a check") };
    let title = "there is a disk".to_owned();
    let output = "no disk".to_owned();
    assert_eq!(failed, Some(FailedCheck { title, output, exit_code: Some(1) }));
    let text = "echo x >> $HOME/looks; [ $(wc -l < $HOME/looks) -ge 3 ]";
    let after = plan(Step {
        after: vec![call(json!({"text": text, "poll": {"for_ms": 60_000, "every_ms": 20}}))],
        ..Step::default()
    });
    executor.act(&after, Effect::Verify { step: STEP, attempt: 1 });
    assert!(matches!(next(&events), Event::Verified { failed: None, .. }));
    assert_eq!(fs_err::read_to_string(home.join("looks")).expect("a file").lines().count(), 3);
    assert_eq!(
        fs_err::read_dir(sshd.attempts()).expect("a directory").count(),
        0,
        "nothing is left of looks"
    );
}

#[test]
fn machine_with_unknown_host_key_is_refused() {
    let sshd = Sshd::start();
    let other = sshd.dir.path().join("other");
    keygen(&other);
    let key = fs_err::read_to_string(other.with_extension("pub")).expect("a key");
    let known = sshd.dir.path().join("known-other");
    fs_err::write(&known, format!("[127.0.0.1]:{} {key}", sshd.wire.port)).expect("a file");
    let (mut executor, events) = sshd.executor(Login { known_hosts: Some(known), ..sshd.login() });
    executor.act(&of(json!({"text": "true"})), start(1));
    let (kind, reason) = failed(next(&events));
    assert_eq!(kind, FailureKind::Internal);
    assert!(reason.starts_with("`127.0.0.1` cannot be reached"), "{reason}");
    let (mut executor, events) = sshd.executor(Login { key: Some(other), ..sshd.login() });
    executor.act(&of(json!({"text": "true"})), start(1));
    assert!(failed(next(&events)).1.contains("Permission denied"));
    assert!(!sshd.attempts().exists(), "nothing was done there");
}

#[test]
fn action_without_a_script_is_refused_over_ssh() {
    let sshd = Sshd::start();
    let (mut executor, events) = sshd.executor(sshd.login());
    executor.act(&of(json!({"what": "no script"})), start(1));
    assert_eq!(failed(next(&events)).1, "`far` cannot be done through ssh; start an agent on `n1`");
    let undoes =
        Call { undoes: Some(vec![AppliedAttempt::default()]), ..call(json!({"text": "true"})) };
    executor.act(&plan(Step { call: undoes, ..Step::default() }), start(2));
    assert_eq!(
        failed(next(&events)).1,
        "`far` cannot be undone through ssh; start an agent on `n1`"
    );
}

#[test]
fn large_output_is_cut_on_the_machine() {
    let sshd = Sshd::start();
    let (mut executor, events) = sshd.executor(sshd.login());
    executor.act(&of(json!({"text": "head -c 20000000 /dev/zero | tr '\\0' x; echo"})), start(1));
    assert!(matches!(end(next(&events)), End::Done { .. }));
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
    let home = sshd.dir.path().join("home");
    let trap = Trap::set(71, &sshd.dir.path().join("victim"));
    let (mut executor, events) = sshd.executor(sshd.login());
    let text = "cd \"$(dirname \"$KEPT\")\" && stat -c \"%a %u\" . && pwd > \"$HOME/place\"; \
                until [ -e $HOME/gate ]; do sleep 0.1; done";
    let plan = of(json!({"text": text, "secrets": {"KEPT": "ref", "REDIRECTED": "ref"}}));
    executor.act(&plan, start(71));
    let place = home.join("place");
    eventually("program runs", || {
        fs_err::read_to_string(&place).is_ok_and(|place| place.ends_with('\n'))
    });
    let seen = arguments_of("01run/0/71", &home);
    let place = fs_err::read_to_string(&place).expect("a path");
    fs_err::write(home.join("gate"), "").expect("a file");
    assert!(matches!(end(next(&events)), End::Done { .. }));
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
        prepare(&sshd.dir.path().join("home/.hoist"), &elsewhere);
        let (mut executor, events) = sshd.executor(sshd.login());
        executor.act(&of(json!({"text": "true", "secrets": {"KEY": "ref"}})), start(1));
        let reason = failed(next(&events)).1;
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
