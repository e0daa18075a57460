use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use hoist_engine::action::{
    Ability, Action, Cancel, Ctx, Done, Output, Prediction, Purpose, Secrets, Stream, Undone,
    Verdict,
};
use hoist_engine::plan::{Call, Made, Step};
use serde_json::{Value, json};

use super::*;

#[derive(Default)]
struct Said(Vec<u8>);

impl Output for Said {
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
        let (attempts, said) = (std::cell::Cell::new(0), std::cell::RefCell::default());
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
        let (cancel, mut output) = (Cancel::default(), Said::default());
        let directory = self.path("");
        let mut ctx = Ctx {
            attempt: &attempt,
            task: "install@n1",
            subject: "n1",
            directory: &directory,
            deadline: self.timeout.map(|timeout| Instant::now() + timeout),
            cancel: &cancel,
            secrets: &Vault,
            output: &mut output,
        };
        let call = Call { action: action.describe().name, input: input.clone(), ..Call::default() };
        let came = then(action, &Step { call, ..Step::default() }, &mut ctx);
        *self.said.borrow_mut() = String::from_utf8_lossy(&output.0).into_owned();
        came
    }

    fn apply(&self, action: &str, input: Value) -> Result<Done, Failure> {
        self.with(action, &input, |action, step, ctx| action.apply(step, ctx))
    }

    fn verify(&self, action: &str, input: Value) -> Result<Verdict, Failure> {
        self.with(action, &input, |action, step, ctx| action.verify(step, ctx))
    }

    fn undo(&self, action: &str, input: Value, receipt: &Value) -> Result<Undone, Failure> {
        self.undo_attempt(action, input, self.attempts.get(), receipt)
    }

    fn undo_attempt(
        &self,
        action: &str,
        input: Value,
        attempt: u32,
        receipt: &Value,
    ) -> Result<Undone, Failure> {
        let made = Made { attempt: format!("01run/7/{attempt}"), receipt: receipt.clone() };
        self.with(action, &input, |action, step, ctx| action.undo(step, &made, ctx))
    }

    /// An attempt that is ended from outside, and says nothing: half-way, as soon as `is_half`.
    fn kill(&self, action: &str, input: Value, is_half: impl Fn() -> bool + Sync) {
        let action = self.catalog.get(action).unwrap();
        let step = Step { call: Call { input, ..Call::default() }, ..Step::default() };
        let (cancel, directory) = (Cancel::default(), self.path(""));
        self.attempts.set(self.attempts.get() + 1);
        let attempt = format!("01run/7/{}", self.attempts.get());
        std::thread::scope(|scope| {
            let (step, cancel) = (&step, &cancel);
            let worker = scope.spawn(|| {
                let mut ctx = Ctx {
                    attempt: &attempt,
                    task: "install@n1",
                    subject: "n1",
                    directory: &directory,
                    deadline: None,
                    cancel,
                    secrets: &Vault,
                    output: &mut Said::default(),
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

fn faults(action: &str, input: &Value) -> Vec<String> {
    let faults = catalog().get(action).unwrap().validate(input);
    let line = |fault: Diagnostic| {
        let hint = fault.hint.map(|hint| format!("; {hint}")).unwrap_or_default();
        format!("{}: {}{hint}", fault.at, fault.message)
    };
    faults.into_iter().map(line).collect()
}

fn does_not(verdict: Result<Verdict, Failure>) -> String {
    match verdict {
        Ok(Verdict::DoesNot { reason }) => reason,
        other => panic!("{other:?}"),
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
fn all_that_is_wrong_with_an_input_is_said_at_once() {
    let input = json!({"comand": "x", "env": {"1A": "x", "HOIST_RUN": "y", "B": []}, "cwd": 3});
    let found = faults("shell", &input);
    assert_eq!(
        found,
        [
            "command: it is missing",
            "cwd: a text is wanted, not `3`",
            "env: `1A` cannot be the name of a variable",
            "env: `HOIST_RUN` is set by hoist; choose another name",
            "env: `B` wants a text",
            "comand: there is no such field; did you mean `command`?",
        ]
    );
    let both =
        faults("shell", &json!({"command": "x", "env": {"A": "1"}, "secrets": {"A": "ref"}}));
    assert_eq!(both, ["secrets: `A` is in `env` as well"]);
    assert_eq!(
        faults("file", &json!({"path": "a", "text": "", "mode": "9"})),
        ["mode: `9` is no file mode; write it like \"0644\""]
    );
    assert_eq!(
        faults("file", &json!({"path": "a", "text": "", "mode": 644})),
        ["mode: a text is wanted, not `644`"]
    );
    assert_eq!(
        faults("script", &json!({"text": "a", "path": "b"})),
        [": one of `text` and `path` is wanted"]
    );
    assert_eq!(
        faults("wait", &json!({"for": {"tcp": "db"}})),
        ["for.tcp: `db` is no address; write it like `host:5432`"]
    );
    assert_eq!(
        faults("wait", &json!({"for": {"ms": 1, "path": "x"}})),
        ["for: one of `tcp`, `path` and `ms` is wanted"]
    );
    assert_eq!(faults("http", &json!({"url": "ftp://x", "status": 99, "method": "get"})).len(), 3);
    assert_eq!(
        faults("ansible", &json!({"playbook": "x", "extra": 1})),
        ["extra: a mapping is wanted here"]
    );
    let long = json!({"path": "a", "text": "x".repeat(input::MAX_TEXT + 1)});
    assert_eq!(faults("file", &long), ["text: it has 1048577 bytes; at most 1048576 fit"]);
    assert_eq!(faults("file", &json!({"path": "a", "text": "x".repeat(input::MAX_TEXT)})), [""; 0]);
}

#[test]
fn a_shell_command_runs_in_its_directory_and_knows_for_what() {
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
fn a_command_that_fails_says_why_and_as_a_check_does_not_hold() {
    let node = Node::new();
    let fails = json!({"command": "echo cannot do it >&2; exit 4"});
    assert_eq!(node.reason("shell", fails.clone()), "exit code 4: cannot do it");
    assert_eq!(does_not(node.verify("shell", fails)), "exit code 4: cannot do it");
    assert_eq!(node.verify("shell", json!({"command": "true"})).unwrap(), Verdict::Holds);
    assert_eq!(
        node.reason("shell", json!({"command": "/no/such/program"})),
        "there is no program `/no/such/program` here"
    );
    let nowhere = node.reason("shell", json!({"command": "true", "cwd": "nowhere"}));
    assert!(nowhere.starts_with("there is no directory"), "{nowhere}");
}

#[test]
fn a_command_whose_time_is_over_has_timed_out() {
    let node = Node { timeout: Some(Duration::from_millis(100)), ..Node::new() };
    let failure = node.apply("shell", json!({"command": "sleep 60"})).unwrap_err();
    assert_eq!(failure.kind, FailureKind::Timeout);
}

#[test]
fn a_secret_is_in_a_file_that_is_gone_afterwards_and_not_in_the_environment() {
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
fn a_program_of_another_user_can_read_its_secret() {
    if !rustix_is_root() {
        return;
    }
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
fn a_script_is_read_by_who_is_asked_for() {
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
    assert!(node.reason("script", json!({"path": "gone.sh"})).starts_with("there is no script"));
}

#[test]
fn a_file_is_written_once_and_what_was_there_comes_back() {
    let node = Node::new();
    let input = json!({"path": "etc/app/app.conf", "text": "port = 1\n", "mode": "0640"});
    assert!(does_not(node.verify("file", input.clone())).contains("does not exist"));
    let done = node.apply("file", input.clone()).unwrap();
    assert!(done.changed);
    assert_eq!(node.text("etc/app/app.conf"), "port = 1\n");
    let mode = fs_err::metadata(node.path("etc/app/app.conf")).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o640);
    assert_eq!(node.verify("file", input.clone()).unwrap(), Verdict::Holds);
    let again = node.apply("file", input.clone()).unwrap();
    assert_eq!(again, Done { changed: false, receipt: Value::Null });
    fs_err::set_permissions(node.path("etc/app/app.conf"), PermissionsExt::from_mode(0o600))
        .unwrap();
    assert!(does_not(node.verify("file", input.clone())).ends_with("its mode is 0600, not 0640"));

    let other = json!({"path": "etc/app/app.conf", "text": "port = 2\n"});
    let second = node.apply("file", other.clone()).unwrap();
    assert_eq!(node.undo("file", other, &second.receipt).unwrap(), Undone::Undone);
    assert_eq!(node.text("etc/app/app.conf"), "port = 1\n");
    let mode = fs_err::metadata(node.path("etc/app/app.conf")).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o600, "as it was");
    assert_eq!(node.undo("file", input, &done.receipt).unwrap(), Undone::Undone);
    assert!(!node.path("etc").exists(), "also the directories that it made are gone");
}

#[test]
fn a_backup_is_for_nobody_else_and_no_receipt_leads_elsewhere() {
    let node = Node::new();
    node.write("secret", "old");
    let input = json!({"path": "secret", "text": "new"});
    let done = node.apply("file", input.clone()).unwrap();
    let dir = PathBuf::from(done.receipt["backup"].as_str().unwrap());
    assert!(dir.starts_with(node.path(".hoist/backup")));
    assert_eq!(fs_err::metadata(&dir).unwrap().permissions().mode() & 0o777, 0o700);
    assert_eq!(fs_err::metadata(dir.join("0")).unwrap().permissions().mode() & 0o777, 0o600);
    let elsewhere = json!({"backup": "/etc"});
    assert!(node.undo("file", input.clone(), &elsewhere).is_err());
    let gone = json!({"backup": node.path(".hoist/backup/gone")});
    assert!(not_possible(node.undo("file", input, &gone)).contains("is not kept in"));
}

fn not_possible(undone: Result<Undone, Failure>) -> String {
    match undone.unwrap() {
        Undone::NotPossible { reason } => reason,
        Undone::Undone => panic!("undone"),
    }
}

#[test]
fn of_an_attempt_that_nobody_knows_of_nothing_is_taken_back_and_that_is_said() {
    let node = Node::new();
    node.write("a/x", "1");
    for (action, input) in [
        ("file", json!({"path": "a/x", "text": "2"})),
        ("copy", json!({"from": "a/x", "to": "b"})),
        ("sync", json!({"from": "a", "to": "c"})),
    ] {
        let reason = not_possible(node.undo(action, input.clone(), &Value::Null));
        assert!(reason.contains("is not kept in"), "{reason}");
        let list = json!({"steps": [{"action": action, "input": input}]});
        let reason = not_possible(node.undo("steps", list, &Value::Null));
        assert_eq!(reason, "nobody kept how far it came");
    }
    for name in ["..", "", "."] {
        let made = Made { attempt: name.to_owned(), receipt: Value::Null };
        let input = json!({"path": "a/x", "text": "2"});
        node.with("file", &input, |action, step, ctx| action.undo(step, &made, ctx).unwrap_err());
    }
}

#[test]
fn an_attempt_that_failed_before_it_changed_anything_is_taken_back_without_a_receipt() {
    let node = Node::new();
    let input = json!({"from": "nowhere", "to": "b"});
    assert!(node.apply("copy", input.clone()).is_err());
    assert_eq!(node.undo("copy", input, &Value::Null).unwrap(), Undone::Undone);
}

#[test]
fn what_attempts_without_a_receipt_changed_is_taken_back_with_the_rest() {
    let node = Node::new();
    for at in 0..400 {
        node.write(&format!("a/{at}"), "new");
    }
    node.write("b/7", "old");
    let (before, input) = (tree(&node, "b"), json!({"from": "a", "to": "b"}));
    let count = |below: &Path| fs_err::read_dir(below).unwrap().count();
    for many in [20, 40] {
        let b = node.path("b");
        node.kill("sync", input.clone(), || count(&b) >= many);
    }
    let half = count(&node.path("b"));
    assert!(half > 20 && half < 400, "{half}");
    let done = node.apply("sync", input.clone()).unwrap();
    assert_eq!(tree(&node, "b"), tree(&node, "a"));
    for (attempt, receipt) in [(3, &done.receipt), (2, &Value::Null), (1, &Value::Null)] {
        let undone = node.undo_attempt("sync", input.clone(), attempt, receipt);
        assert_eq!(undone.unwrap(), Undone::Undone);
    }
    assert_eq!(tree(&node, "b"), before);
}

#[test]
fn what_a_step_was_writing_when_it_was_killed_is_removed() {
    let node = Node::new();
    let input = json!({"path": "etc/a", "text": "1"});
    node.apply("file", input.clone()).unwrap();
    // As it was just before the file took its place, and a line of the next change is half written.
    fs_err::rename(node.path("etc/a"), node.path("etc/.01run-7-1.1")).unwrap();
    let list = node.path(".hoist/backup/01run-7-1/list");
    let text = fs_err::read_to_string(&list).unwrap();
    fs_err::write(&list, format!("{text}{}", &text[..20])).unwrap();
    assert_eq!(node.undo("file", input, &Value::Null).unwrap(), Undone::Undone);
    assert!(!node.path("etc").exists());
}

#[test]
fn an_attempt_that_is_begun_twice_is_taken_back_to_before_the_first_time() {
    let node = Node::new();
    node.write("a", "before");
    for text in ["1", "2"] {
        node.attempts.set(0);
        node.apply("file", json!({"path": "a", "text": text})).unwrap();
    }
    let input = json!({"path": "a", "text": "2"});
    assert_eq!(node.undo("file", input, &Value::Null).unwrap(), Undone::Undone);
    assert_eq!(node.text("a"), "before");
}

#[test]
fn a_subject_that_is_a_directory_is_not_left() {
    let node = Node::new();
    let file = |path: &str| json!({"path": path, "text": ""});
    assert!(
        node.reason("file", file("/etc/x")).contains("leads out of the directory that `n1` is")
    );
    assert!(node.reason("file", file("../x")).contains("leads out"));
    assert!(node.reason("file", file("a/../../x")).contains("leads out"));
    assert!(node.reason("file", file(".")).contains("names no file"));
    let outside = tempfile::tempdir().unwrap();
    fs_err::os::unix::fs::symlink(outside.path(), node.path("link")).unwrap();
    assert!(node.reason("file", file("link/x")).contains("through a link"));
    assert!(
        node.reason("sync", json!({"from": ".", "to": "link/deep/er"})).contains("through a link")
    );
    assert_eq!(fs_err::read_dir(outside.path()).unwrap().count(), 0);
    // The link itself is what is replaced.
    node.apply("file", json!({"path": "link", "text": "mine"})).unwrap();
    assert_eq!(node.text("link"), "mine");
    assert!(outside.path().is_dir());
}

#[test]
fn a_directory_is_not_replaced_by_a_file() {
    let node = Node::new();
    node.write("d/x", "");
    assert!(node.reason("file", json!({"path": "d", "text": ""})).ends_with("is a directory"));
}

#[test]
fn unknown_owners_are_named() {
    let node = Node::new();
    let input = json!({"path": "a", "text": "", "owner": "nobody-here"});
    assert_eq!(node.reason("file", input), "there is no user `nobody-here` here");
}

#[test]
fn a_copy_is_the_same_and_can_be_taken_back() {
    let node = Node::new();
    node.write("from", "content");
    fs_err::set_permissions(node.path("from"), PermissionsExt::from_mode(0o755)).unwrap();
    let input = json!({"from": "from", "to": "bin/to"});
    let done = node.apply("copy", input.clone()).unwrap();
    assert!(done.changed);
    assert_eq!(node.text("bin/to"), "content");
    assert_eq!(fs_err::metadata(node.path("bin/to")).unwrap().permissions().mode() & 0o777, 0o755);
    assert!(!node.apply("copy", input.clone()).unwrap().changed);
    node.write("from", "CONTENT");
    assert!(does_not(node.verify("copy", input.clone())).ends_with("has another content"));
    node.undo("copy", input, &done.receipt).unwrap();
    assert!(!node.path("bin").exists());
    assert!(
        node.reason("copy", json!({"from": "gone", "to": "to"})).starts_with("there is no file")
    );
}

fn tree(node: &Node, below: &str) -> Vec<String> {
    let root = node.path(below);
    let mut found = Vec::new();
    let mut open = vec![root.clone()];
    while let Some(dir) = open.pop() {
        for entry in fs_err::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(&root).unwrap().display().to_string();
            if path.is_symlink() {
                found.push(format!("{name} -> {}", fs_err::read_link(&path).unwrap().display()));
            } else if path.is_dir() {
                found.push(format!("{name}/"));
                open.push(path);
            } else {
                found.push(format!("{name}={}", fs_err::read_to_string(&path).unwrap()));
            }
        }
    }
    found.sort();
    found
}

#[test]
fn a_directory_becomes_like_another_and_back() {
    let node = Node::new();
    for (path, text) in [("a/one", "1"), ("a/two/three", "3"), ("a/kind", "file")] {
        node.write(path, text);
    }
    fs_err::create_dir(node.path("a/empty")).unwrap();
    fs_err::os::unix::fs::symlink("one", node.path("a/link")).unwrap();
    for (path, text) in [
        ("b/one", "other"),
        ("b/kind/inside", "x"),
        ("b/two", "was a file"),
        ("b/more/deep", "stays"),
    ] {
        node.write(path, text);
    }
    let before = tree(&node, "b");
    let input = json!({"from": "a", "to": "b"});
    let predicted = node.predict("sync", input.clone());
    let Prediction::Diff(diff) = predicted else { panic!("{predicted:?}") };
    assert_eq!(
        diff,
        "- b/two\n- b/kind/inside\n- b/kind\n+ b/empty\n~ b/kind\n+ b/link\n~ b/one\n~ b/two\n+ b/two/three\n"
    );
    let done = node.apply("sync", input.clone()).unwrap();
    assert!(done.changed);
    let wanted = [
        "empty/",
        "kind=file",
        "link -> one",
        "more/",
        "more/deep=stays",
        "one=1",
        "two/",
        "two/three=3",
    ];
    assert_eq!(tree(&node, "b"), wanted);
    assert_eq!(node.verify("sync", input.clone()).unwrap(), Verdict::Holds);
    assert_eq!(node.predict("sync", input.clone()), Prediction::NoChange);
    assert!(!node.apply("sync", input.clone()).unwrap().changed);
    let strict = json!({"from": "a", "to": "b", "delete": true});
    assert!(does_not(node.verify("sync", strict.clone())).ends_with("is there"));
    let deleted = node.apply("sync", strict.clone()).unwrap();
    assert_eq!(tree(&node, "b"), tree(&node, "a"));
    node.undo("sync", strict, &deleted.receipt).unwrap();
    assert_eq!(tree(&node, "b"), wanted);
    node.undo("sync", input, &done.receipt).unwrap();
    assert_eq!(tree(&node, "b"), before, "as it was");
}

#[test]
fn a_directory_that_is_not_there_is_made_and_taken_away() {
    let node = Node::new();
    node.write("a/x", "1");
    let input = json!({"from": "a", "to": "c/d"});
    assert!(matches!(node.verify("sync", input.clone()).unwrap(), Verdict::DoesNot { .. }));
    let done = node.apply("sync", input.clone()).unwrap();
    assert_eq!(tree(&node, "c"), ["d/", "d/x=1"]);
    node.undo("sync", input, &done.receipt).unwrap();
    assert!(!node.path("c").exists());
    assert!(
        node.reason("sync", json!({"from": "nowhere", "to": "c"}))
            .starts_with("there is no directory")
    );
}

#[test]
fn what_was_kept_long_ago_is_removed_by_the_next_change() {
    let node = Node::new();
    let write = |text: &str| {
        let done = node.apply("file", json!({"path": "conf", "text": text})).unwrap();
        PathBuf::from(done.receipt["backup"].as_str().unwrap())
    };
    let (old, young) = (write("1"), write("2"));
    let age = |dir: &Path, age: Duration| {
        let at = std::time::SystemTime::now() - age;
        fs_err::File::open(dir).unwrap().file().set_modified(at).unwrap();
    };
    let minute = Duration::from_mins(1);
    age(&old, backup::KEPT + minute);
    age(&young, backup::KEPT.saturating_sub(minute));
    let last = write("3");
    assert!(!old.exists() && young.join("list").exists() && last.join("list").exists());
}

fn mode(node: &Node, below: &str) -> u32 {
    fs_err::metadata(node.path(below)).unwrap().permissions().mode() & 0o7777
}

#[test]
fn directories_are_as_open_as_those_they_are_like_and_come_back_as_they_were() {
    let node = Node::new();
    for dir in ["a/priv/in", "b/old", "b/priv"] {
        fs_err::create_dir_all(node.path(dir)).unwrap();
    }
    node.write("a/priv/in/x", "1");
    let set = |below: &str, mode: u32| {
        fs_err::set_permissions(node.path(below), PermissionsExt::from_mode(mode)).unwrap();
    };
    set("a", 0o750);
    set("a/priv", 0o500);
    set("b/old", 0o700);
    set("b/priv", 0o711);
    set("b", 0o701);
    if rustix_is_root() {
        std::os::unix::fs::chown(node.path("b/old"), Some(1000), Some(1001)).unwrap();
        std::os::unix::fs::chown(node.path("b/priv"), Some(1002), None).unwrap();
    }
    let owners = |below: &str| {
        let meta = fs_err::metadata(node.path(below)).unwrap();
        (meta.uid(), meta.gid())
    };
    let before = [owners("b/old"), owners("b/priv")];
    let input = json!({"from": "a", "to": "b", "delete": true});
    let wanted = "- b/old\n+ b/priv/in\n+ b/priv/in/x\n~ b/priv (mode 0500)\n";
    assert_eq!(node.predict("sync", input.clone()), Prediction::Diff(wanted.to_owned()));
    let done = node.apply("sync", input.clone()).unwrap();
    assert_eq!((mode(&node, "b/priv"), mode(&node, "b/priv/in")), (0o500, 0o755));
    assert_eq!(mode(&node, "b"), 0o701, "what was there is not ours");
    assert_eq!(node.verify("sync", input.clone()).unwrap(), Verdict::Holds);
    set("b/priv", 0o755);
    let reason = does_not(node.verify("sync", input.clone()));
    assert!(reason.starts_with("the mode of `") && reason.ends_with("b/priv` is not 0500"));
    set("a/priv", 0o700);
    node.undo("sync", input, &done.receipt).unwrap();
    assert_eq!((mode(&node, "b/old"), mode(&node, "b/priv")), (0o700, 0o711));
    assert_eq!([owners("b/old"), owners("b/priv")], before);
    node.apply("sync", json!({"from": "a", "to": "c"})).unwrap();
    assert_eq!((mode(&node, "c"), mode(&node, "c/priv")), (0o750, 0o700));
}

/// What would wait for ever without it fails here.
fn soon(test: impl FnOnce() + Send + 'static) {
    let (tell, told) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        test();
        tell.send(()).unwrap();
    });
    let told = told.recv_timeout(Duration::from_mins(1));
    assert_ne!(told, Err(std::sync::mpsc::RecvTimeoutError::Timeout), "it still waits");
    thread.join().unwrap();
}

fn fifo(node: &Node, below: &str) {
    let made = std::process::Command::new("mkfifo").arg(node.path(below)).status().unwrap();
    assert!(made.success());
}

#[test]
fn nothing_waits_for_a_fifo_and_none_is_replaced() {
    soon(|| {
        let node = Node::new();
        node.write("src/one", "1");
        node.write("src/two", "2");
        node.write("dst/one", "old");
        for pipe in ["pipe", "dst/pipe", "dst/two"] {
            fifo(&node, pipe);
        }
        let kept = "is no file, directory or link and is not replaced; remove it first";
        for (action, input) in [
            ("file", json!({"path": "pipe", "text": "x"})),
            ("copy", json!({"from": "src/one", "to": "pipe"})),
            ("sync", json!({"from": "src", "to": "dst"})),
            ("sync", json!({"from": "src", "to": "dst", "delete": true})),
        ] {
            let reason = node.reason(action, input);
            assert!(reason.ends_with(kept), "{action}: {reason}");
        }
        assert_eq!(node.text("dst/one"), "old", "nothing was touched");
        fs_err::remove_file(node.path("dst/two")).unwrap();
        node.apply("sync", json!({"from": "src", "to": "dst"})).unwrap();
        assert_eq!(node.text("dst/two"), "2", "what is only beside is no matter");
        let reason = node.reason("copy", json!({"from": "pipe", "to": "new"}));
        assert!(reason.starts_with("there is no file"), "{reason}");
        let reason = node.reason("script", json!({"path": "pipe"}));
        assert!(reason.ends_with("is no plain file"), "{reason}");
        let tls = json!({"url": "https://127.0.0.1:1/", "ca": "pipe"});
        let reason = node.reason("http", tls);
        assert!(reason.ends_with("is no plain file"), "{reason}");
    });
}

#[test]
fn a_large_file_is_not_copied_or_compared_longer_than_the_time_there_is() {
    let node = Node { timeout: Some(Duration::from_millis(100)), ..Node::new() };
    for name in ["large", "same"] {
        fs_err::File::create(node.path(name)).unwrap().set_len(4 << 30).unwrap();
    }
    let failed = |came: Option<Failure>| came.map(|failure| failure.kind);
    let over = Some(FailureKind::Timeout);
    let copy = json!({"from": "large", "to": "new"});
    assert_eq!(failed(node.apply("copy", copy).err()), over);
    assert!(!node.path("new").exists(), "not a part of it");
    let compare = json!({"from": "large", "to": "same"});
    assert_eq!(failed(node.verify("copy", compare).err()), over);
    let replace = json!({"path": "same", "text": "x"});
    assert_eq!(failed(node.apply("file", replace).err()), over, "nor is it kept");
}

#[test]
fn reading_ends_when_the_step_is_stopped() {
    let node = Node::new();
    node.write("file", "content");
    let cancel = Cancel::default();
    let until = blocks::Until { deadline: None, cancel: &cancel };
    let read = || {
        let mut text = String::new();
        let read =
            blocks::Blocks::open(&node.path("file"), until).unwrap().read_to_string(&mut text);
        read.map(|_| text).map_err(|error| io_error(&error).reason)
    };
    assert_eq!(read(), Ok("content".to_owned()));
    cancel.cancel();
    assert_eq!(read(), Err("was stopped".to_owned()));
}

#[test]
fn what_a_file_would_change_is_shown_and_not_done() {
    let node = Node::new();
    node.write("conf", "a\nb\n");
    let input = json!({"path": "conf", "text": "a\nc\n"});
    let wanted = "--- conf\n+++ conf\n@@ -1,2 +1,2 @@\n a\n-b\n+c\n";
    assert_eq!(node.predict("file", input.clone()), Prediction::Diff(wanted.to_owned()));
    assert_eq!(node.text("conf"), "a\nb\n");
    node.write("new", "a\nc\n");
    assert_eq!(
        node.predict("copy", json!({"from": "new", "to": "conf"})),
        Prediction::Diff(wanted.to_owned())
    );
    node.apply("file", input.clone()).unwrap();
    assert_eq!(node.predict("file", input), Prediction::NoChange);
    assert_eq!(node.predict("shell", json!({"command": "true"})), Prediction::CannotPredict);
}

#[test]
fn what_not_everybody_may_read_is_not_shown() {
    let node = Node::new();
    node.write("conf", "password: one\n");
    let hidden = |predicted: Prediction| {
        let Prediction::Diff(diff) = predicted else { panic!("{predicted:?}") };
        assert!(diff.contains("(not shown: not everybody may read it)"), "{diff}");
        assert!(!diff.contains("password"), "{diff}");
    };
    let text = "password: two\n";
    hidden(node.predict("file", json!({"path": "conf", "text": text, "mode": "0640"})));
    let private = PermissionsExt::from_mode(0o600);
    fs_err::set_permissions(node.path("conf"), private).unwrap();
    hidden(node.predict("file", json!({"path": "conf", "text": text})));
    node.write("other", "");
    hidden(node.predict("copy", json!({"from": "conf", "to": "other"})));
    hidden(node.predict("copy", json!({"from": "other", "to": "conf"})));
}

#[test]
fn a_link_is_not_followed_to_show_what_would_change() {
    let node = Node::new();
    node.write("elsewhere", "private\n");
    std::os::unix::fs::symlink(node.path("elsewhere"), node.path("conf")).unwrap();
    let predicted = node.predict("file", json!({"path": "conf", "text": "x\n"}));
    let Prediction::Diff(diff) = predicted else { panic!("{predicted:?}") };
    assert!(diff.ends_with("(not shown: it is no plain file)\n"), "{diff}");
}

#[test]
fn of_a_list_each_part_says_what_it_would_change() {
    let node = Node::new();
    node.write("a", "1\n");
    let file = |path: &str, text: &str| json!({"name": path, "action": "file", "input": {"path": path, "text": text}});
    let shell = json!({"name": "reload", "action": "shell", "input": {"command": "true"}});
    let predict = |parts: &[&Value]| node.predict("steps", json!({ "steps": parts }));
    assert_eq!(predict(&[&shell]), Prediction::CannotPredict);
    assert_eq!(predict(&[&file("a", "1\n"), &shell]), Prediction::CannotPredict);
    assert_eq!(predict(&[&file("a", "1\n")]), Prediction::NoChange);
    let diff = "--- a\n+++ a\n@@ -1,1 +1,1 @@\n-1\n+2\nreload: cannot be told\n";
    assert_eq!(predict(&[&file("a", "2\n"), &shell]), Prediction::Diff(diff.to_owned()));
}

#[test]
fn nothing_is_waited_for_longer_than_needed() {
    let node = Node { timeout: Some(Duration::from_secs(30)), ..Node::new() };
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    assert!(!node.apply("wait", json!({"for": {"tcp": address}})).unwrap().changed);
    assert_eq!(node.verify("wait", json!({"for": {"tcp": address}})).unwrap(), Verdict::Holds);
    drop(listener);
    assert!(matches!(
        node.verify("wait", json!({"for": {"tcp": address}})).unwrap(),
        Verdict::DoesNot { .. }
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
fn an_answer_is_looked_at() {
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
fn a_server_is_trusted_if_the_named_authority_vouches_for_it() {
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
        Verdict::DoesNot { .. }
    ));
}

#[test]
fn the_controllers_machine_is_not_rebooted() {
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
fn puppet_says_by_its_exit_code_whether_it_changed_anything() {
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
}

#[test]
fn ansible_says_in_its_recap_whether_it_changed_anything() {
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
    let called = node.text("called");
    let lines: Vec<&str> = called.lines().collect();
    assert_eq!(lines[..5], ["-i", "localhost,", "-c", "local", "-e"]);
    assert!(lines[5].starts_with('@') && !lines[5].contains("80"), "{}", lines[5]);
    assert_eq!(lines[6], r#"{"port":80}"#);
    assert_eq!(lines[7], node.path("site.yml").display().to_string());
}

#[test]
fn a_real_playbook_is_run_where_ansible_is_installed() {
    let there = std::process::Command::new("ansible-playbook").arg("--version").output();
    if !there.is_ok_and(|said| said.status.success()) {
        return;
    }
    let node = Node::new();
    let book = "- hosts: all\n  gather_facts: false\n  tasks:\n  - copy: {dest: \"{{ out }}\", content: hello}\n";
    node.write("site.yml", book);
    let input = json!({"playbook": "site.yml", "extra": {"out": node.path("made")}});
    assert!(node.apply("ansible", input.clone()).unwrap().changed, "{}", node.said());
    assert_eq!(node.text("made"), "hello");
    assert!(!node.apply("ansible", input).unwrap().changed, "{}", node.said());
}

#[test]
fn a_list_is_one_task_and_is_taken_back_from_its_end() {
    let node = Node::new();
    let list = json!({"steps": [
        {"action": "file", "input": {"path": "a", "text": "1"}},
        {"name": "the second", "action": "file", "input": {"path": "a", "text": "2"}},
    ]});
    let done = node.apply("steps", list.clone()).unwrap();
    assert!(done.changed);
    assert_eq!(node.said(), "file (1 of the list)\nthe second\n");
    assert_eq!(node.text("a"), "2");
    assert_eq!(node.undo("steps", list, &done.receipt).unwrap(), Undone::Undone);
    assert!(!node.path("a").exists());
    let fails = json!({"steps": [{"action": "shell", "input": {"command": "true"}}, {"name": "x", "action": "shell", "input": {"command": "exit 2"}}]});
    assert_eq!(node.reason("steps", fails.clone()), "x: exit code 2");
    assert_eq!(does_not(node.verify("steps", fails.clone())), "x: exit code 2");
    let reason = not_possible(node.undo("steps", fails, &Value::Null));
    assert_eq!(reason, "shell (1 of the list): `shell` takes nothing back");
}

#[test]
fn all_that_the_attempts_of_a_list_changed_is_taken_back() {
    let node = Node::new();
    node.write("a", "before");
    node.write("same", "same");
    let list = json!({"steps": [
        {"action": "file", "input": {"path": "same", "text": "same"}},
        {"action": "file", "input": {"path": "a", "text": "1"}},
        {"action": "copy", "input": {"from": "source", "to": "b"}},
        {"action": "file", "input": {"path": "c", "text": "3"}},
    ]});
    assert!(node.apply("steps", list.clone()).is_err());
    assert_eq!(node.text("a"), "1");
    node.write("source", "2");
    let done = node.apply("steps", list.clone()).unwrap();
    for (attempt, receipt) in [(2, &done.receipt), (1, &Value::Null)] {
        let undone = node.undo_attempt("steps", list.clone(), attempt, receipt);
        assert_eq!(undone.unwrap(), Undone::Undone);
    }
    assert_eq!((node.text("a"), node.text("same")), ("before".to_owned(), "same".to_owned()));
    assert!(!node.path("b").exists() && !node.path("c").exists());
    let reason = not_possible(node.undo("steps", list, &json!({"steps": vec!["begun"; 5]})));
    assert_eq!(reason, "it was another list");
}

#[test]
fn a_list_that_was_killed_is_taken_back_with_the_receipts_of_what_it_had_done() {
    let node = Node::new();
    node.write("a", "before");
    for at in 0..200 {
        node.write(&format!("from/{at}"), "new");
    }
    let list = json!({"steps": [
        {"action": "file", "input": {"path": "a", "text": "1"}},
        {"action": "sync", "input": {"from": "from", "to": "to"}},
    ]});
    let to = node.path("to");
    node.kill("steps", list.clone(), || fs_err::read_dir(&to).is_ok_and(|all| all.count() > 5));
    let backup = node.path(".hoist/backup/01run-7-1.0");
    assert_eq!(node.undo("steps", list.clone(), &Value::Null).unwrap(), Undone::Undone);
    assert_eq!(node.text("a"), "before");
    assert!(!to.exists());
    // What of it is lost is named, though the rest is there.
    fs_err::remove_dir_all(&backup).unwrap();
    let reason = not_possible(node.undo_attempt("steps", list, 1, &Value::Null));
    assert!(reason.starts_with("file (1 of the list): what it changed is not kept"), "{reason}");
}

#[test]
fn a_list_can_be_taken_back_if_all_of_it_can() {
    let part = |action: &str, input: Value| json!({"action": action, "input": input});
    let file = || part("file", json!({"path": "a", "text": "1"}));
    let steps = catalog().get("steps").unwrap().clone();
    assert!(steps.can_undo(&json!({"steps": [file(), part("none", json!({}))]})));
    let shell = part("shell", json!({"command": "true"}));
    assert!(!steps.can_undo(&json!({"steps": [file(), shell]})));
}

#[test]
fn what_is_wrong_inside_of_a_list_is_said_with_its_place() {
    let list = json!({"steps": [
        {"action": "fil", "input": {}},
        {"action": "shell", "input": {"comand": "x"}, "nam": "y"},
        {"action": "steps", "input": {}},
    ]});
    assert_eq!(
        faults("steps", &list),
        [
            "steps[0].action: there is no action `fil`; did you mean `file`?",
            "steps[1].input.command: it is missing",
            "steps[1].input.comand: there is no such field; did you mean `command`?",
            "steps[1].nam: there is no such field; did you mean `name`?",
            "steps[2].action: there is no action `steps`",
        ]
    );
    let none = json!({"steps": []});
    assert_eq!(faults("steps", &none), ["steps: there are 0; 1 to 100 are wanted"]);
    let one = json!({"action": "none"});
    let many = |count: usize| json!({ "steps": vec![one.clone(); count] });
    assert_eq!(faults("steps", &many(steps::MAX_STEPS)), [""; 0]);
    assert_eq!(
        faults("steps", &many(steps::MAX_STEPS + 1)),
        ["steps: there are 101; 1 to 100 are wanted"]
    );
}

#[test]
fn the_form_for_other_machines_does_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let run = |action: &str, input: &Value, purpose| {
        let script = catalog().get(action).unwrap().script(input, purpose).expect("a script");
        let mut command = std::process::Command::new("/bin/sh");
        command.args(["-c", &script.text]).envs(&script.env).current_dir(dir.path());
        for (name, text) in &script.files {
            fs_err::write(dir.path().join(name), text).unwrap();
            command.env(name, dir.path().join(name));
        }
        let code = command.status().unwrap().code().unwrap();
        (code, script.unchanged.contains(&code))
    };
    let path = dir.path().join("etc/app.conf");
    let input = json!({"path": path, "text": "it's $HOME\n", "mode": "0640"});
    assert_eq!(run("file", &input, Purpose::Verify).0, 1);
    assert_eq!(run("file", &input, Purpose::Apply), (0, false));
    assert_eq!(fs_err::read_to_string(&path).unwrap(), "it's $HOME\n");
    assert_eq!(fs_err::metadata(&path).unwrap().permissions().mode() & 0o777, 0o640);
    assert_eq!(run("file", &input, Purpose::Verify).0, 0);
    assert!(run("file", &input, Purpose::Apply).1, "nothing to do");
    let there = json!({"path": dir.path().join("etc"), "text": ""});
    assert_eq!(run("file", &there, Purpose::Apply).0, 1, "no file is put into a directory instead");
    assert_eq!(fs_err::read_dir(dir.path().join("etc")).unwrap().count(), 1);
    assert_eq!(run("shell", &json!({"command": "exit 5"}), Purpose::Apply).0, 5);
    let script =
        json!({"text": "#!/bin/sh -u\n[ \"$2\" = \"a b\" ] || exit 9", "args": ["x", "a b"]});
    assert_eq!(run("script", &script, Purpose::Apply).0, 0);
    assert_eq!(run("wait", &json!({"for": {"path": path}}), Purpose::Verify).0, 0);
    assert!(run("none", &Value::Null, Purpose::Apply).1);
    assert!(
        catalog()
            .get("sync")
            .unwrap()
            .script(&json!({"from": "a", "to": "b"}), Purpose::Apply)
            .is_none()
    );
}

#[test]
fn who_can_verify_or_undo_says_so() {
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
