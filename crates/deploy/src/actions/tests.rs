mod files;
mod lists;

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use hoist_engine::action::{
    Ability, Action, ApplyOutcome, Cancel, Ctx, Observation, Output, Prediction, Secrets, Stream,
    UndoOutcome, Verdict,
};
use hoist_engine::execute::AttemptPrograms;
use hoist_engine::plan::{AppliedAttempt, Call, Step};
use serde_json::{Value, json};

use super::*;

#[derive(Default)]
struct CapturedOutput(Vec<u8>);

impl Output for CapturedOutput {
    fn line(&mut self, _: Stream, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
        self.0.push(b'\n');
    }

    fn progress(&mut self, _: u64, _: Option<u64>) {}
}

struct Vault;

impl Secrets for Vault {
    fn get(&self, reference: &str) -> Result<String, Failure> {
        Ok(format!("value of {reference}"))
    }
}

/// A subject that is a directory.
struct Node {
    dir: tempfile::TempDir,
    catalog: Catalog,
    attempts: std::cell::Cell<u32>,
    timeout: Option<Duration>,
    said: std::cell::RefCell<String>,
}

#[expect(clippy::needless_pass_by_value, reason = "inputs are written where they are used")]
impl Node {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let attempts = std::cell::Cell::new(0);
        let said = std::cell::RefCell::default();
        Self { dir, catalog: catalog(), attempts, timeout: None, said }
    }

    fn path(&self, below: &str) -> PathBuf {
        fs_err::canonicalize(self.dir.path()).unwrap().join(below)
    }

    fn text(&self, below: &str) -> String {
        fs_err::read_to_string(self.path(below)).unwrap()
    }

    fn write(&self, below: &str, text: &str) {
        let path = self.path(below);
        fs_err::create_dir_all(path.parent().unwrap()).unwrap();
        fs_err::write(path, text).unwrap();
    }

    fn with<T>(
        &self,
        action: &str,
        input: &Value,
        then: impl FnOnce(&dyn Action, &Step, &mut Ctx<'_>) -> T,
    ) -> T {
        self.with_action(&**self.catalog.get(action).expect("an action"), input, then)
    }

    fn with_action<T>(
        &self,
        action: &dyn Action,
        input: &Value,
        then: impl FnOnce(&dyn Action, &Step, &mut Ctx<'_>) -> T,
    ) -> T {
        assert_eq!(action.validate(input), []);
        self.attempts.set(self.attempts.get() + 1);
        let attempt = format!("01run/7/{}", self.attempts.get());
        let cancel = Cancel::default();
        let mut output = CapturedOutput::default();
        let directory = self.path("");
        let mut ctx = Ctx {
            attempt: &attempt,
            task: "install@n1",
            subject: "n1",
            directory: &directory,
            deadline: self.timeout.map(|timeout| Instant::now() + timeout),
            cancel: &cancel,
            secrets: &Vault,
            programs: &AttemptPrograms::default(),
            output: &mut output,
        };
        let call = Call { action: action.describe().name, input: input.clone(), ..Call::default() };
        let came = then(action, &Step { call, ..Step::default() }, &mut ctx);
        *self.said.borrow_mut() = String::from_utf8_lossy(&output.0).into_owned();
        came
    }

    fn apply(&self, action: &str, input: Value) -> Result<ApplyOutcome, Failure> {
        self.with(action, &input, |action, step, ctx| action.apply(step, ctx))
    }

    fn verify(&self, action: &str, input: Value) -> Result<Verdict, Failure> {
        self.with(action, &input, |action, step, ctx| action.verify(step, ctx))
    }

    fn undo(&self, action: &str, input: Value, receipt: &Value) -> Result<UndoOutcome, Failure> {
        self.undo_attempt(action, input, self.attempts.get(), receipt)
    }

    fn undo_attempt(
        &self,
        action: &str,
        input: Value,
        attempt: u32,
        receipt: &Value,
    ) -> Result<UndoOutcome, Failure> {
        let attempt = format!("01run/7/{attempt}");
        let receipt = receipt.clone();
        let made = AppliedAttempt { attempt, receipt, over_changes: false };
        self.with(action, &input, |action, step, ctx| action.undo(step, &made, ctx))
    }

    /// An attempt that is ended from outside, and says nothing: half-way, as soon as `is_half`.
    fn kill(&self, action: &str, input: Value, is_half: impl Fn() -> bool + Sync) {
        let action = self.catalog.get(action).unwrap();
        let step = Step { call: Call { input, ..Call::default() }, ..Step::default() };
        let cancel = Cancel::default();
        let directory = self.path("");
        self.attempts.set(self.attempts.get() + 1);
        let attempt = format!("01run/7/{}", self.attempts.get());
        std::thread::scope(|scope| {
            let step = &step;
            let cancel = &cancel;
            let worker = scope.spawn(|| {
                let mut ctx = Ctx {
                    attempt: &attempt,
                    task: "install@n1",
                    subject: "n1",
                    directory: &directory,
                    deadline: None,
                    cancel,
                    secrets: &Vault,
                    programs: &AttemptPrograms::default(),
                    output: &mut CapturedOutput::default(),
                };
                action.apply(step, &mut ctx)
            });
            while !is_half() && !worker.is_finished() {
                std::thread::yield_now();
            }
            cancel.cancel();
            assert!(worker.join().unwrap().is_err(), "it was not ended half-way");
        });
    }

    fn predict(&self, action: &str, input: Value) -> Prediction {
        self.with(action, &input, |action, step, ctx| action.predict(step, ctx)).unwrap()
    }

    fn said(&self) -> String {
        self.said.borrow().clone()
    }

    fn reason(&self, action: &str, input: Value) -> String {
        self.apply(action, input).expect_err("it fails").reason
    }
}

fn diagnostics(action: &str, input: &Value) -> Vec<String> {
    let diagnostics = catalog().get(action).unwrap().validate(input);
    let line = |diagnostic: Diagnostic| {
        let hint = diagnostic.hint.map(|hint| format!("; {hint}")).unwrap_or_default();
        format!("{}: {}{hint}", diagnostic.at, diagnostic.message)
    };
    diagnostics.into_iter().map(line).collect()
}

fn does_not(verdict: Result<Verdict, Failure>) -> String {
    match verdict {
        Ok(Verdict::Fails(seen)) => seen.output,
        other => panic!("{other:?}"),
    }
}

fn not_possible(undone: Result<UndoOutcome, Failure>) -> String {
    match undone.unwrap() {
        UndoOutcome::NotPossible { reason } => reason,
        UndoOutcome::Undone => panic!("undone"),
    }
}

#[test]
fn every_built_in_action_is_in_the_catalog() {
    let names: Vec<String> = catalog().iter().map(|(name, _)| name.to_owned()).collect();
    let wanted = [
        "ansible", "copy", "file", "http", "none", "puppet", "reboot", "script", "shell", "steps",
        "sync", "wait",
    ];
    assert_eq!(names, wanted);
    for (name, action) in catalog().iter() {
        let description = action.describe();
        assert_eq!(description.name, name);
        assert!(!description.about.is_empty());
        assert_ne!(action.validate(&json!({"bogus": 1})), [], "{name} takes anything");
        assert_ne!(action.validate(&json!([1])), [], "{name} takes a list");
    }
}

#[test]
fn faults_of_an_input_are_reported_together() {
    let input = json!({"comand": "x", "env": {"1A": "x", "HOIST_RUN": "y", "B": []}, "cwd": 3});
    let found = diagnostics("shell", &input);
    assert_eq!(
        found,
        [
            "command: the field is missing; give it a value",
            "cwd: expected text, found `3`",
            "env: `1A` cannot be the name of a variable",
            "env: `HOIST_RUN` is set by hoist; choose another name",
            "env: `B` wants a text",
            "comand: unknown field; did you mean `command`?",
        ]
    );
    let both =
        diagnostics("shell", &json!({"command": "x", "env": {"A": "1"}, "secrets": {"A": "ref"}}));
    assert_eq!(both, ["secrets: `A` is in `env` as well"]);
    assert_eq!(
        diagnostics("file", &json!({"path": "a", "text": "", "mode": "9"})),
        ["mode: `9` is no file mode; write it like \"0644\""]
    );
    assert_eq!(
        diagnostics("file", &json!({"path": "a", "text": "", "mode": 644})),
        ["mode: expected text, found `644`"]
    );
    assert_eq!(
        diagnostics("script", &json!({"text": "a", "path": "b"})),
        [": exactly one of `text` and `path` is required"]
    );
    assert_eq!(
        diagnostics("wait", &json!({"for": {"tcp": "db"}})),
        ["for.tcp: `db` is no address; write it like `host:5432`"]
    );
    assert_eq!(
        diagnostics("wait", &json!({"for": {"ms": 1, "path": "x"}})),
        ["for: exactly one of `tcp`, `path` and `ms` is required"]
    );
    assert_eq!(
        diagnostics("http", &json!({"url": "ftp://x", "status": 99, "method": "get"})).len(),
        3
    );
    assert_eq!(
        diagnostics("ansible", &json!({"playbook": "x", "extra": 1})),
        ["extra: expected a mapping"]
    );
    let long = json!({"path": "a", "text": "x".repeat(input::MAX_TEXT + 1)});
    assert_eq!(
        diagnostics("file", &long),
        ["text: the text has 1048577 bytes; at most 1048576 fit"]
    );
    assert_eq!(
        diagnostics("file", &json!({"path": "a", "text": "x".repeat(input::MAX_TEXT)})),
        [""; 0]
    );
}

#[test]
fn shell_command_knows_its_directory_node_and_task() {
    let node = Node::new();
    node.write("sub/there", "");
    let command = "pwd; echo $HOIST_NODE $HOIST_RUN $HOIST_TASK $HOIST_ATTEMPT $GREETING; env | grep -c CARGO; true";
    let done = node
        .apply("shell", json!({"command": command, "cwd": "sub", "env": {"GREETING": 5}}))
        .unwrap();
    assert!(done.changed);
    let wanted = format!("{}\nn1 01run install@n1 01run/7/1 5\n0\n", node.path("sub").display());
    assert_eq!(node.said(), wanted, "and nothing of our own environment");
}

#[test]
fn failed_command_reports_its_cause() {
    let node = Node::new();
    let fails = json!({"command": "echo cannot do it >&2; exit 4"});
    assert_eq!(node.reason("shell", fails.clone()), "exit code 4: cannot do it");
    let seen = Observation { output: "cannot do it".to_owned(), exit_code: Some(4) };
    assert_eq!(node.verify("shell", fails).unwrap(), Verdict::Fails(seen));
    assert_eq!(node.verify("shell", json!({"command": "true"})).unwrap(), Verdict::Holds);
    assert_eq!(
        node.reason("shell", json!({"command": "/no/such/program"})),
        "program `/no/such/program` not found"
    );
    let nowhere = node.reason("shell", json!({"command": "true", "cwd": "nowhere"}));
    assert!(nowhere.starts_with("directory `"), "{nowhere}");
}

#[test]
fn command_past_its_time_limit_has_timed_out() {
    let node = Node { timeout: Some(Duration::from_millis(100)), ..Node::new() };
    let failure = node.apply("shell", json!({"command": "sleep 60"})).unwrap_err();
    assert_eq!(failure.kind, FailureKind::Timeout);
}

#[test]
fn secret_is_in_a_temporary_file_not_in_the_environment() {
    let node = Node::new();
    let command =
        "cat $PASSWORD; echo; stat -c %a $PASSWORD; echo $PASSWORD; env | grep -c 'value of'; true";
    node.apply("shell", json!({"command": command, "secrets": {"PASSWORD": "db/root"}})).unwrap();
    let said = node.said();
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!((lines[0], lines[1], lines[3]), ("value of db/root", "600", "0"));
    assert!(!Path::new(lines[2]).exists(), "{}", lines[2]);
}

#[test]
fn program_of_another_user_can_read_its_secret() {
    assert!(rustix_is_root(), "a program gets another user only from root; run the tests as root");
    let node = Node::new();
    fs_err::set_permissions(node.dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let input = json!({"command": "id -un; cat $PASSWORD", "user": "nobody", "cwd": "/", "secrets": {"PASSWORD": "x"}});
    node.apply("shell", input).unwrap();
    assert_eq!(node.said(), "nobody\nvalue of x\n");
}

fn rustix_is_root() -> bool {
    fs_err::metadata("/proc/self").unwrap().uid() == 0
}

#[test]
fn script_is_read_by_its_interpreter() {
    let node = Node::new();
    node.apply("script", json!({"text": "echo $0 $#: $1", "args": ["a b", 2]})).unwrap();
    assert!(node.said().ends_with("/script 2: a b\n"), "{}", node.said());
    node.apply("script", json!({"text": "#!/bin/cat -n\nline\n"})).unwrap();
    assert_eq!(node.said(), "     1\t#!/bin/cat -n\n     2\tline\n");
    node.apply("script", json!({"text": "line\n", "interpreter": "/bin/cat"})).unwrap();
    assert_eq!(node.said(), "line\n");
    node.write("run.sh", "echo from a file\n");
    node.apply("script", json!({"path": "run.sh"})).unwrap();
    assert_eq!(node.said(), "from a file\n");
    assert!(node.reason("script", json!({"path": "gone.sh"})).starts_with("script `"));
}

#[test]
fn wait_ends_as_soon_as_its_condition_holds() {
    let node = Node { timeout: Some(Duration::from_secs(30)), ..Node::new() };
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    assert!(!node.apply("wait", json!({"for": {"tcp": address}})).unwrap().changed);
    assert_eq!(node.verify("wait", json!({"for": {"tcp": address}})).unwrap(), Verdict::Holds);
    drop(listener);
    assert!(matches!(
        node.verify("wait", json!({"for": {"tcp": address}})).unwrap(),
        Verdict::Fails(_)
    ));
    node.apply("wait", json!({"for": {"ms": 1}})).unwrap();
    let path = node.path("comes");
    std::thread::scope(|scope| {
        scope.spawn(|| fs_err::write(&path, "").unwrap());
        node.apply("wait", json!({"for": {"path": "comes"}})).unwrap();
    });
    let short = Node { timeout: Some(Duration::from_millis(50)), ..Node::new() };
    let failure = short.apply("wait", json!({"for": {"path": "never"}})).unwrap_err();
    assert_eq!(failure.kind, FailureKind::Timeout);
    assert!(failure.reason.ends_with("does not exist"), "{failure}");
}

/// Answers each connection with these bytes.
fn serve(answer: &'static str, times: usize) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for connection in listener.incoming().take(times) {
            let mut connection = connection.unwrap();
            let mut request = [0; 1024];
            let _ = connection.read(&mut request);
            connection.write_all(answer.as_bytes()).unwrap();
        }
    });
    format!("http://{address}/health")
}

#[test]
fn http_answer_is_checked() {
    let node = Node::new();
    let url =
        serve("HTTP/1.1 200 OK\r\nContent-Length: 9\r\nConnection: close\r\n\r\nall right", 4);
    assert_eq!(node.verify("http", json!({"url": url})).unwrap(), Verdict::Holds);
    assert_eq!(
        node.verify("http", json!({"url": url, "status": 200, "contains": "right"})).unwrap(),
        Verdict::Holds
    );
    let missing = does_not(node.verify("http", json!({"url": url, "contains": "wrong"})));
    assert!(missing.ends_with("does not contain `wrong`"), "{missing}");
    let other = does_not(node.verify("http", json!({"url": url, "status": 204})));
    assert!(other.ends_with("answers 200, not 204"), "{other}");
    let away = serve(
        "HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
        1,
    );
    assert!(does_not(node.verify("http", json!({"url": away}))).ends_with("answers 302, not 2xx"));
    let posts = serve("HTTP/1.1 201 Created\r\nContent-Length: 0\r\nConnection: close\r\n\r\n", 1);
    assert!(
        node.verify("http", json!({"url": posts, "method": "POST"})).is_err(),
        "a check changes nothing"
    );
    assert!(node.apply("http", json!({"url": posts, "method": "POST"})).unwrap().changed);
    let nobody = does_not(node.verify("http", json!({"url": "http://127.0.0.1:1/"})));
    assert!(nobody.contains("http://127.0.0.1:1/"), "{nobody}");
}

#[test]
fn http_server_is_trusted_by_the_named_authority() {
    let key = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let provider = std::sync::Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let secret =
        rustls_pki_types::PrivateKeyDer::try_from(key.signing_key.serialize_der()).unwrap();
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![key.cert.der().clone()], secret)
        .unwrap();
    let config = std::sync::Arc::new(config);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for connection in listener.incoming().take(2) {
            let server = rustls::ServerConnection::new(std::sync::Arc::clone(&config)).unwrap();
            let mut stream = rustls::StreamOwned::new(server, connection.unwrap());
            let mut request = [0; 1024];
            if stream.read(&mut request).is_ok() {
                stream
                    .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
                    .unwrap();
            }
        }
    });
    let node = Node::new();
    node.write("ca.pem", &key.cert.pem());
    let url = format!("https://localhost:{port}/");
    assert_eq!(node.verify("http", json!({"url": url, "ca": "ca.pem"})).unwrap(), Verdict::Holds);
    let other = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    node.write("other.pem", &other.cert.pem());
    assert!(matches!(
        node.verify("http", json!({"url": url, "ca": "other.pem"})).unwrap(),
        Verdict::Fails(_)
    ));
}

#[test]
fn reboot_of_the_controller_machine_is_refused() {
    let reason = Node::new().reason("reboot", json!({}));
    assert_eq!(reason, "`n1` is a directory of the controller's machine, which is not rebooted");
}

/// A program that writes down how it was called, and ends like this.
fn fake(node: &Node, exit: i32, prints: &str) -> std::ffi::OsString {
    use std::fmt::Write as _;
    let mut text = "#!/bin/sh\nfor word; do echo \"$word\"; case $word in @*) cat \"${word#@}\"; echo;; esac; done > called\n".to_owned();
    writeln!(text, "cat <<'END'\n{prints}\nEND\nexit {exit}").unwrap();
    node.write("fake", &text);
    fs_err::set_permissions(node.path("fake"), PermissionsExt::from_mode(0o755)).unwrap();
    node.path("fake").into()
}

#[test]
fn puppet_exit_code_tells_whether_anything_changed() {
    let node = Node::new();
    let input = json!({"manifest": "site.pp", "modules": "/etc/modules"});
    let run = |exit, input: &Value| {
        let puppet = puppet::Puppet { program: fake(&node, exit, "Error: it broke") };
        node.with_action(&puppet, input, |action, step, ctx| action.apply(step, ctx))
    };
    assert!(!run(0, &input).unwrap().changed);
    assert!(run(2, &input).unwrap().changed);
    assert_eq!(run(4, &input).unwrap_err().reason, "exit code 4: Error: it broke");
    assert_eq!(run(6, &input).unwrap_err().reason, "exit code 6: Error: it broke");
    assert_eq!(run(1, &input).unwrap_err().kind, FailureKind::Exit);
    let wanted = format!(
        "apply\n--detailed-exitcodes\n--color=false\n--modulepath\n/etc/modules\n{}\n",
        node.path("site.pp").display()
    );
    assert_eq!(node.text("called"), wanted);
    assert!(
        !run(2, &json!({"manifest": "site.pp", "noop": true})).unwrap().changed,
        "nothing was done"
    );
    fs_err::create_dir(node.path("plugin")).unwrap();
    let input = json!({"manifest": "a.pp", "modules": "m:/etc/modules", "cwd": "plugin"});
    assert!(run(2, &input).unwrap().changed);
    let plugin = node.path("plugin").display().to_string();
    let called = node.text("plugin/called");
    assert!(called.ends_with(&format!("{plugin}/m:/etc/modules\n{plugin}/a.pp\n")), "{called}");
}

#[test]
fn ansible_recap_tells_whether_anything_changed() {
    let node = Node::new();
    let run = |exit, changed: u32, input: &Value| {
        let recap = format!(
            "TASK [ changed=7 ]\nPLAY RECAP ****\nlocalhost : ok=3 changed={changed} unreachable=0 failed=0"
        );
        let ansible = ansible::Ansible { program: fake(&node, exit, &recap) };
        node.with_action(&ansible, input, |action, step, ctx| action.apply(step, ctx))
    };
    let input = json!({"playbook": "site.yml", "extra": {"port": 80}});
    assert!(run(0, 2, &input).unwrap().changed);
    assert!(!run(0, 0, &input).unwrap().changed);
    assert!(run(2, 0, &input).unwrap_err().reason.starts_with("exit code 2: localhost"));
    let fatal = |fatal: &str| {
        let prints = format!(
            "TASK [first] ***\nok: [localhost]\nTASK [the port] ****\n{fatal}\nPLAY RECAP ***\nlocalhost : ok=1 failed=1"
        );
        let ansible = ansible::Ansible { program: fake(&node, 2, &prints) };
        let ran = node.with_action(&ansible, &input, |action, step, ctx| action.apply(step, ctx));
        ran.unwrap_err().reason
    };
    assert_eq!(
        fatal(
            r#"fatal: [localhost]: FAILED! => {"changed": true, "msg": "it is in use\nby another"}"#
        ),
        "exit code 2: TASK [the port]: it is in use",
        "the recap says only that something failed"
    );
    assert_eq!(
        fatal("fatal: [localhost]: UNREACHABLE!"),
        "exit code 2: TASK [the port]: fatal: [localhost]: UNREACHABLE!"
    );
    let called = node.text("called");
    let lines: Vec<&str> = called.lines().collect();
    assert_eq!(lines[..5], ["-i", "localhost,", "-c", "local", "-e"]);
    assert!(lines[5].starts_with('@') && !lines[5].contains("80"), "{}", lines[5]);
    assert_eq!(lines[6], r#"{"port":80}"#);
    assert_eq!(lines[7], node.path("site.yml").display().to_string());
}

fn is_installed(program: &str) {
    let there = std::process::Command::new(program).arg("--version").output();
    let is_there = there.is_ok_and(|said| said.status.success());
    assert!(is_there, "no `{program}`; `make setup-test` installs it");
}

#[test]
fn puppet_applies_a_real_manifest() {
    is_installed("puppet");
    let node = Node::new();
    let made = node.path("made");
    let resource = format!("file {{ '{}': content => \"hello\\n\" }}\n", made.display());
    node.write("site.pp", &resource);
    let input = json!({"manifest": "site.pp"});
    let Prediction::Diff(would) = node.predict("puppet", input.clone()) else {
        panic!("it would make a file: {}", node.said());
    };
    assert!(would.contains("made]/ensure: current_value 'absent', should be 'file'\n"), "{would}");
    let only_looks = json!({"manifest": "site.pp", "noop": true});
    assert!(!node.apply("puppet", only_looks.clone()).unwrap().changed, "{}", node.said());
    assert!(!made.exists(), "nobody has done anything yet");
    assert_eq!(node.predict("puppet", only_looks), Prediction::NoChange);

    assert!(node.apply("puppet", input.clone()).unwrap().changed, "{}", node.said());
    assert_eq!(node.text("made"), "hello\n");
    assert!(!node.apply("puppet", input.clone()).unwrap().changed, "{}", node.said());
    assert_eq!(node.predict("puppet", input), Prediction::NoChange);

    node.write("bad.pp", "exec { '/bin/false': }\n");
    let reason = node.reason("puppet", json!({"manifest": "bad.pp"}));
    assert!(reason.starts_with("exit code 4: "), "{reason}");
    node.write(
        "half.pp",
        &format!("{} exec {{ '/bin/false': }}\n", resource.replace("hello", "bye")),
    );
    let reason = node.reason("puppet", json!({"manifest": "half.pp"}));
    assert!(reason.starts_with("exit code 6: "), "some of it was done: {reason}");
    let reason = node.reason("puppet", json!({"manifest": "none.pp"}));
    assert!(reason.starts_with("exit code 1: "), "{reason}");
}

#[test]
fn ansible_runs_a_real_playbook() {
    is_installed("ansible-playbook");
    let node = Node::new();
    let book = "- hosts: all\n  gather_facts: false\n  tasks:\n  - copy: {dest: \"{{ out }}\", content: hello}\n";
    node.write("site.yml", book);
    let input = json!({"playbook": "site.yml", "extra": {"out": node.path("made")}});
    let would = Prediction::Diff("TASK [copy]\n".to_owned());
    assert_eq!(node.predict("ansible", input.clone()), would);
    assert!(!node.path("made").exists(), "nobody has done anything yet");
    assert!(node.apply("ansible", input.clone()).unwrap().changed, "{}", node.said());
    assert_eq!(node.text("made"), "hello");
    assert!(!node.apply("ansible", input.clone()).unwrap().changed, "{}", node.said());
    assert_eq!(node.predict("ansible", input), Prediction::NoChange);
    node.write(
        "command.yml",
        "- hosts: all\n  gather_facts: false\n  tasks: [{command: /bin/true}]\n",
    );
    let command = json!({"playbook": "command.yml"});
    assert_eq!(node.predict("ansible", command), Prediction::CannotPredict);
}

#[test]
fn actions_declare_verify_and_undo() {
    let can = |name: &str, ability| catalog().get(name).unwrap().describe().can.contains(&ability);
    for name in ["file", "copy", "sync"] {
        assert!(can(name, Ability::Verify) && can(name, Ability::Undo), "{name}");
    }
    assert!(
        can("shell", Ability::Check)
            && !can("shell", Ability::Verify)
            && !can("shell", Ability::Undo)
    );
}
