//! `hoist deploy` as people use it, with the real program: the example, and a controller that is
//! killed in the middle of a run.

use std::io::{BufRead as _, BufReader};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use hoist_testkit::controller_process::{Controller, hoist};
use hoist_testkit::{DEADLINE, eventually};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// A copy of the example on a port of its own, and a controller for it.
pub(crate) struct Example {
    dir: tempfile::TempDir,
    port: u16,
}

impl Example {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/deploy");
        let socket = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = socket.local_addr().expect("an address").port();
        drop(socket);
        for name in ["nodes.yaml", "site.yaml", "index.html", "hoist.toml"] {
            let text = fs_err::read_to_string(from.join(name)).expect("a file of the example");
            let text = text.replace("18480", &port.to_string());
            fs_err::write(dir.path().join(name), text).expect("a copy");
        }
        Self { dir, port }
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.dir.path().join(name).display().to_string()
    }

    fn data_dir(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    pub(crate) fn start(&self) -> Controller {
        let controller =
            Controller::start(&self.data_dir(), &["--config", &self.path("hoist.toml")]);
        controller.does(&["apply", "-f", &self.path("nodes.yaml"), "--yes"]);
        controller
    }

    /// A file of a node.
    pub(crate) fn file(&self, node: &str, name: &str) -> PathBuf {
        self.data_dir().join("deploy/local").join(node).join(name)
    }

    fn answers(&self) -> bool {
        TcpStream::connect_timeout(&SocketAddr::from(([127, 0, 0, 1], self.port)), DEADLINE).is_ok()
    }
}

pub(crate) fn text(output: &Output) -> String {
    let out = String::from_utf8_lossy(&output.stdout);
    let err = String::from_utf8_lossy(&output.stderr);
    format!("{out}{err}")
}

fn json_of(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).expect("JSON")
}

fn json(controller: &Controller, words: &[&str]) -> Value {
    let words: Vec<&str> = words.iter().copied().chain(["-o", "json"]).collect();
    serde_json::from_str(&controller.does(&words)).expect("JSON")
}

#[test]
fn example_is_run_broken_repaired_resumed_and_undone() {
    let example = Example::new();
    let controller = example.start();
    let site = example.path("site.yaml");
    let dry = controller.hoist(&["deploy", "run", &site, "--dry-run"]);
    assert_eq!(dry.status.code(), Some(20), "{}", text(&dry));
    assert!(json(&controller, &["deploy", "list"]).as_array().expect("a list").is_empty());

    fs_err::create_dir_all(example.file("web1", "")).expect("a directory");
    fs_err::write(example.file("web1", "maintenance"), "").expect("a file");
    let failed = controller.hoist(&["deploy", "run", &site]);
    let said = text(&failed);
    assert_eq!(failed.status.code(), Some(1), "{said}");
    let told = "web-start@web1: precondition \"no one is logged in\" failed (exit code 1); nothing was \
                changed";
    assert!(said.contains(told), "{said}");
    let shown = json(&controller, &["deploy", "show", "last"]);
    let check = &shown["failures"][0]["check"];
    let wanted = serde_json::json!({
        "kind": "precondition", "title": "no one is logged in", "exit_code": 1,
    });
    assert_eq!(check, &wanted, "{shown:#}");
    assert!(said.contains("blocks 1 instance on 1 node"), "{said}");
    assert!(said.contains("runs the unfinished instances"), "{said}");
    let why = controller.does(&["deploy", "explain", "last", "monitor-start@mon1"]);
    assert!(why.contains("blocked") && why.contains("web-start@web1"), "{why}");

    fs_err::remove_file(example.file("web1", "maintenance")).expect("it is there");
    let left = controller.hoist(&["deploy", "resume", "last", "--dry-run"]);
    assert_eq!(left.status.code(), Some(20));
    assert!(!text(&left).contains("db-create"), "{}", text(&left));
    let resumed = controller.hoist(&["deploy", "resume", "last"]);
    let said = text(&resumed);
    assert_eq!(resumed.status.code(), Some(0), "{said}");
    assert!(!said.contains("db-create"), "what was done is not done again: {said}");
    assert!(example.answers());
    let shown = json(&controller, &["deploy", "show", "last"]);
    assert_eq!(shown["outcome"], "succeeded");
    let page = fs_err::read_to_string(example.file("web1", "www/index.html")).expect("a page");
    assert!(page.contains("Hello from hoist, on web1"), "{page}");

    let undone = controller.hoist(&["deploy", "undo", "last"]);
    assert_eq!(undone.status.code(), Some(0), "{}", text(&undone));
    eventually("web server is gone", || !example.answers());
    for (node, name) in [("db1", "app.db"), ("web1", "www/index.html"), ("mon1", "bin")] {
        assert!(!example.file(node, name).exists(), "{node} {name}");
    }
    let runs = json(&controller, &["deploy", "list"]);
    assert_eq!(runs.as_array().map(Vec::len), Some(2));
    assert_eq!(runs[0]["undoes"], runs[1]["id"]);
    assert_eq!(controller.terminate(), Some(0));
}

const CHANGES: &str = r#"
hoist: 1
roles: {all: {nodes: "*"}}
tasks:
  page: {on: all, run: {file: {path: page, text: "one\nTWO\n"}}}
  key: {on: all, run: {file: {path: key, text: "of the house", mode: "0600"}}}
  script: {on: all, run: {shell: {command: "true", secrets: {PASSWORD: password}}}}
  copy: {on: all, requires: [script], run: {copy: {from: made-by-script, to: copy}}}
  many: {on: all, run: [{file: {path: page, text: "one\ntwo swordfish\n"}}, {shell: "true"}]}
"#;

#[test]
fn plan_shows_changes_bounded_and_without_secrets() {
    let example = Example::new();
    let controller = example.start();
    let secrets = example.data_dir().join("secrets");
    fs_err::create_dir_all(&secrets).expect("a directory");
    fs_err::write(secrets.join("password"), "swordfish").expect("a file");
    fs_err::create_dir_all(example.file("db1", "")).expect("a directory");
    fs_err::write(example.file("db1", "page"), "one\ntwo swordfish\n").expect("a file");
    fs_err::write(example.dir.path().join("changes.yaml"), CHANGES).expect("a file");
    let file = example.path("changes.yaml");

    let on = ["--on", "node:db1"];
    let planned = controller.does(&[&["deploy", "plan", &file][..], &on].concat());
    assert!(planned.contains("page@db1 would change"), "{planned}");
    assert!(planned.contains("  -two [hidden]\n  +TWO\n"), "{planned}");
    assert!(planned.contains("(not shown: not all users may read the file)"), "{planned}");
    assert!(!planned.contains("swordfish") && !planned.contains("of the house"), "{planned}");
    assert!(
        planned.contains("2 would change files, 0 would not, 3 cannot be predicted"),
        "{planned}"
    );

    let planned = json(&controller, &[&["deploy", "plan", &file][..], &on].concat());
    let of = |task: &str| {
        let all = planned["predictions"].as_array().expect("a list");
        let one = all.iter().find(|one| one["instance"] == format!("{task}@db1"));
        one.unwrap_or_else(|| panic!("{task}: {all:?}")).clone()
    };
    assert_eq!(of("page")["change"], "diff");
    assert_eq!(of("script")["change"], "unknown");
    assert!(of("copy")["reason"].as_str().is_some_and(|why| why.starts_with("file `")));
    assert_eq!(planned["predictions"].as_array().map(Vec::len), Some(5), "only what is selected");
    assert!(!planned["predictions"].to_string().contains("swordfish"));
    assert_eq!(
        fs_err::read_to_string(example.file("db1", "page")).expect("it stays"),
        "one\ntwo swordfish\n"
    );
    assert!(!example.file("db1", "key").exists() && !example.file("web1", "page").exists());

    let dry = controller.hoist(&["deploy", "run", &file, "--dry-run"]);
    assert_eq!(dry.status.code(), Some(20), "{}", text(&dry));
    assert!(text(&dry).contains("+++ page"), "{}", text(&dry));
    assert!(json(&controller, &["deploy", "list"]).as_array().expect("a list").is_empty());
}

#[test]
fn plan_checks_run_without_changing_anything() {
    const TASKS: &str = r#"
hoist: 1
tasks:
  bare: {on: "node:web1", run: {shell: "touch bare"}}
  made:
    on: "node:web1"
    run: {shell: "touch made"}
    check:
      before: [{shell: "true"}, {shell: "test -e go", says: "the way is free"}]
      after: [{shell: "test -e made", for: 1m}]
"#;
    let example = Example::new();
    let controller = example.start();
    let file = example.path("tasks.yaml");
    fs_err::write(&file, TASKS).expect("a file");
    let looked = controller.hoist(&["deploy", "plan", &file, "--check"]);
    let said = text(&looked);
    assert_eq!(looked.status.code(), Some(1), "{said}");
    for line in
        ["made@web1\n  before 1 holds\n  before 2 does not hold: ", "1 hold, 2 do not; 1 have"]
    {
        assert!(said.contains(line), "{said}");
    }
    assert!(
        said.contains("before 2 does not hold: \"the way is free\" failed (exit code 1)")
            && said.contains("after 1 does not hold"),
        "{said}"
    );
    let bad = json_of(&controller.hoist(&["deploy", "plan", &file, "--check", "-o", "json"]));
    let bad = &bad["instances"][0]["checks"][1];
    assert_eq!((&bad["title"], &bad["exit_code"]), (&"the way is free".into(), &1.into()), "{bad}");
    assert_eq!(bad["output"], "", "{bad}");
    for name in ["made", "go"] {
        assert!(!example.file("web1", name).exists(), "nothing was done");
        fs_err::write(example.file("web1", name), "").expect("a file");
    }
    let all = json(&controller, &["deploy", "plan", &file, "--check"]);
    assert_eq!((&all["good"], &all["unchecked"][0]), (&true.into(), &"bare@web1".into()));
    let checks = &all["instances"][0]["checks"];
    assert_eq!((&checks[1]["when"], &checks[1]["number"]), (&"before".into(), &2.into()));
    assert_eq!((&checks[2]["when"], &checks[2]["holds"]), (&"after".into(), &true.into()));
    assert!(!example.file("web1", "bare").exists(), "nothing was done");
}

#[test]
fn reader_token_sees_the_plan_but_no_nodes() {
    let example = Example::new();
    let controller = example.start();
    let token = example.path("reader.token");
    controller.does(&["token", "create", "reader", "--scope", "read:deploy", "--out", &token]);
    let site = example.path("site.yaml");
    let planned = controller.hoist(&["deploy", "plan", &site, "--token-file", &token]);
    let said = text(&planned);
    assert_eq!(planned.status.code(), Some(0), "{said}");
    assert!(said.contains("8 instances on 3 nodes") && !said.contains("+++"), "{said}");
    assert!(said.contains("needs the scope write:deploy"), "{said}");
}

/// What runs in the directories of the example's nodes.
fn left(example: &Example) -> Vec<String> {
    let nodes = fs_err::canonicalize(example.data_dir().join("deploy/local")).expect("nodes");
    let processes = fs_err::read_dir("/proc").expect("processes").filter_map(Result::ok);
    let there = processes.filter(|process| {
        // No fault: most are of others, or gone.
        std::fs::read_link(process.path().join("cwd")).is_ok_and(|cwd| cwd.starts_with(&nodes))
    });
    there
        .filter_map(|process| std::fs::read_to_string(process.path().join("cmdline")).ok())
        .filter(|words| !words.is_empty())
        .map(|words| words.replace('\0', " "))
        .collect()
}

#[test]
fn example_runs_twice_and_undo_leaves_nothing_running() {
    let example = Example::new();
    let controller = example.start();
    let site = example.path("site.yaml");
    let first = controller.hoist(&["deploy", "run", &site]);
    assert_eq!(first.status.code(), Some(0), "{}", text(&first));
    let first = json(&controller, &["deploy", "list"])[0]["id"].as_str().expect("an id").to_owned();
    let services = |example: &Example| {
        left(example).iter().filter(|process| !process.starts_with("sleep")).count()
    };
    eventually("both services run", || services(&example) >= 2);

    controller.does(&["deploy", "run", &site, "--set", "greeting=Good morning", "--detach"]);
    // A file task that was killed before its first backup cannot be undone: its outcome is unknown.
    eventually("files are written", || {
        let shown = json(&controller, &["deploy", "show", "last"]);
        let is_done = |name: &str| {
            let mut instances = shown["instances"].as_array().expect("a list").iter();
            instances.any(|one| {
                one["name"] == name && (one["state"] == "ok" || one["state"] == "unchanged")
            })
        };
        is_done("web-page@web1") && is_done("monitor-script@mon1")
    });
    controller.kill();
    let controller = example.start();
    let ended = controller.hoist(&["deploy", "watch", "last"]);
    assert_eq!(ended.status.code(), Some(0), "{}", text(&ended));
    let page = || fs_err::read_to_string(example.file("web1", "www/index.html"));
    assert!(page().expect("a page").contains("Good morning, on web1"));
    assert!(example.answers());

    let undone = controller.hoist(&["deploy", "undo", "last"]);
    assert_eq!(undone.status.code(), Some(0), "{}", text(&undone));
    eventually("both runs leave nothing", || left(&example).is_empty());
    assert!(!example.answers());
    assert!(page().expect("a page").contains("Hello from hoist, on web1"), "of the first run");
    let undone = controller.hoist(&["deploy", "undo", &first]);
    assert_eq!(undone.status.code(), Some(0), "{}", text(&undone));
    assert!(page().is_err());
}

#[test]
fn plan_warnings_are_printed_by_run() {
    let example = Example::new();
    let controller = example.start();
    let odd = "hoist: 1\nroles: {none: {nodes: \"role:nobody\", allow_empty: true}}\ntasks:\n  \
               a: {on: \"*\", run: none}\n  b: {on: none, run: none}\n";
    fs_err::write(example.dir.path().join("odd.yaml"), odd).expect("a file");
    for more in [&[][..], &["--detach"]] {
        let ran = controller.hoist(&[&["deploy", "run", &example.path("odd.yaml")], more].concat());
        assert_eq!(ran.status.code(), Some(0), "{}", text(&ran));
        assert!(text(&ran).contains("W201"), "{}", text(&ran));
    }
    let shown = json(&controller, &["deploy", "show", "last"]);
    assert!(shown["diagnostics"].is_null(), "of the files, not of the run: {shown}");
}

#[test]
fn unknown_names_are_refused_before_confirmation() {
    let nowhere = tempfile::tempdir().expect("a directory");
    let refused = |words: &[&str], why: &str| {
        let ended = hoist(nowhere.path(), words);
        assert_eq!(ended.status.code(), Some(2), "{}", text(&ended));
        assert!(text(&ended).contains(why), "{}", text(&ended));
    };
    for run in ["", ".", ".."] {
        refused(&["deploy", "show", run], "it names nothing");
        refused(&["deploy", "stop", run], "it names nothing");
    }
    refused(&["deploy", "explain", "last", ""], "it names nothing");
    let site = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/deploy/site.yaml");
    let site = site.display().to_string();
    for set in ["=5", "a..b=5", ".a=1"] {
        refused(&["deploy", "plan", &site, "--set", set], "names no setting");
    }
    let list = nowhere.path().join("list.yaml");
    for text in ["[a, b]\n", "text\n", "null\n"] {
        fs_err::write(&list, text).expect("a file");
        let set = list.display().to_string();
        refused(&["deploy", "plan", &site, "--set", &set], "holds no mapping");
    }
}

#[test]
fn files_with_templates_of_one_name_each_get_their_own() {
    let dir = tempfile::tempdir().expect("a directory");
    let at = |name: &str| dir.path().join(name);
    for (file, text) in [("a", "one"), ("b", "two")] {
        fs_err::create_dir(at(file)).expect("a directory");
        fs_err::write(at(file).join("t.conf"), text).expect("a file");
        let task = format!("{{on: \"*\", run: {{file: {{path: {file}, template: t.conf}}}}}}");
        let yaml = format!("hoist: 1\ntasks:\n  {file}: {task}\n");
        fs_err::write(at(file).join("s.yaml"), yaml).expect("a file");
    }
    let node = "api: hoist/v1\nkind: Node\nname: n1\nspec: {}\n";
    fs_err::write(at("nodes.yaml"), node).expect("a file");
    let path = |name: &str| at(name).display().to_string();
    let one = path("a/s.yaml");
    let other = path("b/s.yaml");
    let nodes = path("nodes.yaml");
    let words = ["deploy", "plan", &one, &other, "--nodes", &nodes, "-o", "json"];
    let planned = hoist(dir.path(), &words);
    let plan: Value =
        serde_json::from_slice(&planned.stdout).unwrap_or_else(|_| panic!("{}", text(&planned)));
    let written = |at: usize| plan["plan"]["vertices"][at]["kind"]["step"]["call"]["input"].clone();
    assert_eq!(written(0), serde_json::json!({"path": "a", "text": "one"}));
    assert_eq!(written(1), serde_json::json!({"path": "b", "text": "two"}));
}

#[test]
fn only_templates_beside_the_task_file_are_read_and_sent() {
    let dir = tempfile::tempdir().expect("a directory");
    let at = |name: &str| dir.path().join(name);
    let outside = tempfile::tempdir().expect("a directory");
    fs_err::write(outside.path().join("key"), "private").expect("a file");
    for (file, text) in [("A", "one"), ("B", "two")] {
        fs_err::create_dir(at(file)).expect("a directory");
        fs_err::write(at(file).join("t.conf"), text).expect("a file");
    }
    std::os::unix::fs::symlink(outside.path().join("key"), at("A/link")).expect("a link");
    fs_err::write(at("A/large"), "x".repeat(1024 * 1024 + 1)).expect("a file");
    let ends = |files: &[(&str, &str)], code: i32, said: &str| {
        let mut words = vec!["deploy".to_owned(), "lint".to_owned()];
        for (at_dir, template) in files {
            let task = format!("{{on: \"*\", run: {{file: {{path: x, template: {template}}}}}}}");
            let yaml = format!("hoist: 1\ntasks:\n  {}: {task}\n", at_dir.to_lowercase());
            let path = at(at_dir).join("s.yaml");
            fs_err::write(&path, yaml).expect("a file");
            words.push(path.display().to_string());
        }
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let ended = hoist(dir.path(), &words);
        assert_eq!(ended.status.code(), Some(code), "{}", text(&ended));
        assert!(text(&ended).contains(said), "{}", text(&ended));
    };
    ends(&[("A", "t.conf")], 0, "");
    ends(&[("A", "t.conf"), ("B", "t.conf")], 0, "");
    for template in ["/etc/passwd", "../B/t.conf", "link"] {
        ends(&[("A", template)], 2, "is not below");
    }
    ends(&[("A", "large")], 2, "is longer than 1048576 bytes");
}

#[test]
fn watch_without_terminal_prints_why_the_run_waits() {
    let example = Example::new();
    let controller = example.start();
    let file = example.path("later.yaml");
    let tasks = "hoist: 1\nroles: {web: {window: 'Sun 03:00-03:01'}}\n\
        tasks:\n  t: {on: web, run: {shell: 'true'}}\n";
    fs_err::write(&file, tasks).expect("a file");
    let id = controller.does(&["deploy", "run", &file, "--detach"]).trim().to_owned();
    let seen = example.dir.path().join("seen");
    let mut watching = Command::new(env!("CARGO_BIN_EXE_hoist"))
        .arg("--data-dir")
        .arg(example.data_dir())
        .args(["deploy", "watch", &id])
        .stdout(fs_err::File::create(&seen).expect("a file").into_file())
        .spawn()
        .expect("the program starts");
    let told = || fs_err::read_to_string(&seen).expect("a file").contains("nothing runs: t");
    eventually("reason is printed", told);
    controller.does(&["deploy", "stop", &id]);
    assert_eq!(watching.wait().expect("it ends").code(), Some(8));
}

#[test]
fn watch_names_who_paused_the_run_and_how_to_resume() {
    let example = Example::new();
    let controller = example.start();
    let file = chains(example.dir.path(), 4);
    let id = controller.does(&["deploy", "run", &file, "--detach"]).trim().to_owned();
    controller.does(&["deploy", "pause", &id]);
    let paused = controller.hoist(&["deploy", "watch", &id]);
    assert_eq!(paused.status.code(), Some(4), "{}", text(&paused));
    let how = format!("nothing runs: paused by admin; `hoist deploy unpause {id}` lets it go on");
    assert!(text(&paused).contains(&how), "{}", text(&paused));
    controller.does(&["deploy", "unpause", &id]);
    let ended = controller.hoist(&["deploy", "watch", &id]);
    assert_eq!(ended.status.code(), Some(0), "{}", text(&ended));
}

/// Chains of tasks on three nodes; each leaves a line for each time that it was done.
fn chains(dir: &Path, length: u32) -> String {
    use std::fmt::Write as _;
    let mut yaml = "hoist: 1\nroles: {web: {}, database: {}, monitoring: {}}\ntasks:\n".to_owned();
    for n in 0..length {
        let after = if n == 0 { String::new() } else { format!("\n    requires: [t{}]", n - 1) };
        write!(
            yaml,
            "  t{n}:\n    on: \"*\"{after}\n    repeat: check\n    run: {{shell: \"echo x >> t{n}; \
             sleep 0.05; touch done-t{n}\"}}\n    check: {{after: [{{shell: \"test -e done-t{n}\"}}]}}\n"
        )
        .expect("writing to memory");
    }
    let path = dir.join("chains.yaml");
    fs_err::write(&path, yaml).expect("a file");
    path.display().to_string()
}

#[test]
fn killed_controller_resumes_without_repeating_results() {
    const LENGTH: u32 = 12;
    let example = Example::new();
    let mut controller = example.start();
    let file = chains(example.dir.path(), LENGTH);
    let id = controller.does(&["deploy", "run", &file, "--detach"]).trim().to_owned();
    let mut with_result = Vec::new();
    for round in 1..=3 {
        let done = format!("done-t{}", round * 3);
        eventually("first task is done", || example.file("web1", &done).exists());
        controller.kill();
        controller = example.start();
        // An instance with a durable end must not run again.
        let shown = json(&controller, &["deploy", "show", &id]);
        let instances = shown["instances"].as_array().expect("a list").clone();
        with_result.extend(instances.into_iter().filter(|one| one["state"] == "ok"));
    }
    let ended = controller.hoist(&["deploy", "watch", &id]);
    assert_eq!(ended.status.code(), Some(0), "{}", text(&ended));
    assert!(!with_result.is_empty());
    let shown = json(&controller, &["deploy", "show", &id]);
    for one in shown["instances"].as_array().expect("a list") {
        assert_eq!(one["state"], "ok", "{one}");
        let (task, node) =
            one["name"].as_str().and_then(|name| name.split_once('@')).expect("task@node");
        let attempts = one["attempts"].as_array().map(Vec::len).expect("attempts");
        let times = fs_err::read_to_string(example.file(node, task)).expect("a file");
        assert!(times.lines().count() <= attempts, "{task}@{node}: {attempts} attempts, {times}");
        let early = with_result.iter().find(|early| early["name"] == one["name"]);
        if let Some(early) = early {
            assert_eq!(early["attempts"], one["attempts"], "done once more");
        }
    }
}

#[test]
fn sigterm_of_a_service_spares_its_supervisor() {
    let example = Example::new();
    let mut controller = example.start();
    let file = example.dir.path().join("waits.yaml");
    let script = "grep SigIgn /proc/self/status > ignored; echo $PPID > supervisor; \
                  until test -e go; do sleep 0.05; done; exit 7";
    let yaml = format!(
        "hoist: 1\nroles: {{web: {{}}}}\ntasks:\n  wait:\n    on: web\n    repeat: never\n    \
         run: {{shell: \"{script}\"}}\n"
    );
    fs_err::write(&file, yaml).expect("a file");
    let file = file.display().to_string();
    let id = controller.does(&["deploy", "run", &file, "--detach"]).trim().to_owned();
    let said = |name| fs_err::read_to_string(example.file("web1", name)).unwrap_or_default();
    eventually("program runs", || said("supervisor").ends_with('\n'));
    let supervisor =
        said("supervisor").trim().parse().ok().and_then(Pid::from_raw).expect("a number");
    for signal in [Signal::TERM, Signal::HUP, Signal::INT, Signal::QUIT] {
        kill_process(supervisor, signal).expect("it lives");
    }
    let ignored = said("ignored");
    let ignored = ignored.trim().rsplit('\t').next().expect("a number");
    let ignored = u64::from_str_radix(ignored, 16).expect("a number");
    assert_eq!(ignored & (1 << (Signal::TERM.as_raw() - 1)), 0, "a program can be asked to end");
    controller.kill();
    controller = example.start();
    fs_err::write(example.file("web1", "go"), "").expect("a file");
    let ended = controller.hoist(&["deploy", "watch", &id]);
    assert_eq!(ended.status.code(), Some(1), "{}", text(&ended));
    let shown = json(&controller, &["deploy", "show", &id]);
    let one = &shown["instances"][0];
    assert_eq!(one["state"], "failed", "{one}");
    assert_eq!(one["attempts"].as_array().map(Vec::len), Some(1), "{one}");
    eventually("supervisor ends", || kill_process(supervisor, Signal::CONT).is_err());
}

#[test]
fn supervisor_started_by_hand_is_refused() {
    let mut started = Command::new(env!("CARGO_BIN_EXE_hoist"));
    let started = started.arg("supervise-programs").stdin(Stdio::null()).output().expect("hoist");
    assert_eq!(started.status.code(), Some(1));
    let said = String::from_utf8_lossy(&started.stderr);
    assert!(said.contains("only a controller starts it"), "{said}");
}

#[test]
fn watch_continues_when_the_controller_returns() {
    let example = Example::new();
    let controller = example.start();
    let port = controller.port();
    let file = chains(example.dir.path(), 8);
    let id = controller.does(&["deploy", "run", &file, "--detach"]).trim().to_owned();
    let watching = Command::new(env!("CARGO_BIN_EXE_hoist"))
        .arg("--data-dir")
        .arg(example.data_dir())
        .args(["deploy", "watch", &id, "-o", "json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    eventually("first task is done", || example.file("web1", "done-t1").exists());
    controller.kill();
    let more = ["--config", &example.path("hoist.toml")];
    let controller = Controller::start_on(port, &example.data_dir(), &more);
    let watched = watching.wait_with_output().expect("it ends");
    assert_eq!(watched.status.code(), Some(0), "{}", text(&watched));
    let lines = String::from_utf8(watched.stdout).expect("text");
    let numbers: Vec<u64> = lines
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok()?["seq"].as_u64())
        .collect();
    assert_eq!(numbers, (1..=numbers.len() as u64).collect::<Vec<_>>(), "none is missing");
    drop(controller);
}

#[test]
fn resumed_run_does_changed_or_left_tasks_and_names_gone_ones() {
    let example = Example::new();
    let controller = example.start();
    let tasks = |two: &str, more: &str| {
        let shell = |name: &str, after: &str, command: &str| {
            format!("  {name}: {{on: '*', requires: [{after}], run: {{shell: '{command}'}}}}\n")
        };
        let one = shell("one", "", "echo x >> one");
        let all = [one, shell("two", "one", two), shell("three", "two", "echo x >> three")];
        let head = "hoist: 1\nroles: {web: {}, database: {}, monitoring: {}}\ntasks:\n";
        fs_err::write(example.path("tasks.yaml"), format!("{head}{}{more}", all.concat()))
            .expect("a file");
    };
    let file = example.path("tasks.yaml");
    tasks("echo x >> two; test $HOIST_NODE != db1", "  gone: {on: web, run: none}\n");
    assert_eq!(controller.hoist(&["deploy", "run", &file]).status.code(), Some(1));
    tasks("echo y >> two", "");
    let go_on = ["deploy", "continue", "last", "--replan", file.as_str()];
    let dry = controller.hoist(&[&go_on[..], &["--dry-run"]].concat());
    assert_eq!(dry.status.code(), Some(20), "{}", text(&dry));
    assert!(text(&dry).contains("left as it is: gone@web1"), "{}", text(&dry));
    let output = controller.hoist(&go_on);
    let said = text(&output);
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(said.contains("kept         one@db1"), "{said}");
    assert!(said.contains("left as it is: gone@web1\n"), "{said}");
    for node in ["web1", "db1", "mon1"] {
        let done = |name| fs_err::read_to_string(example.file(node, name)).unwrap_or_default();
        assert_eq!(done("one"), "x\n", "{node}: what was done is not done again");
        assert!(done("two").ends_with("y\n"), "{node}: what changed is done");
        assert!(done("three").ends_with("x\n"), "{node}: what was left is done");
    }
}

fn interrupt(child: &Child) {
    let pid = Pid::from_child(child);
    kill_process(pid, Signal::INT).expect("it runs");
}

fn spawned(example: &Example, words: &[&str]) -> Child {
    Command::new(env!("CARGO_BIN_EXE_hoist"))
        .arg("--data-dir")
        .arg(example.data_dir())
        .args(words)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts")
}

#[test]
fn worker_uses_its_plug_ins_and_names_a_missing_one() {
    let example = Example::new();
    let plugins = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/plugins");
    let plugins = plugins.display().to_string();
    let config = example.path("agents.toml");
    fs_err::write(&config, format!("[plugins]\ndirectory = {plugins:?}\n")).expect("a file");
    let controller = Controller::start(&example.data_dir(), &["--config", &config]);
    controller.does(&["apply", "-f", &example.path("nodes.yaml"), "--yes"]);
    let token = example.path("web1.token");
    let scope = ["--scope", "write:agent:node:web1"];
    let create = ["token", "create", "web1-agent", "--out", &token];
    controller.does(&[&create[..], &scope].concat());
    let file = example.path("motd.yaml");
    let tasks = "hoist: 1\ntasks:\n  motd: {on: 'node:web1', run: {motd: {path: motd, text: \
        Welcome.}}}\n";
    fs_err::write(&file, tasks).expect("a file");
    let dir = example.path("worker");
    let below = example.path("machines");
    let work = |more: &[&str]| {
        let words = ["deploy", "worker", "web1", "--dir", &dir, "--below", &below];
        let words = [&words[..], &["--token-file", &token], more].concat();
        spawned(&example, &words)
    };
    let end = |mut worker: Child| {
        interrupt(&worker);
        worker.wait().expect("it ends");
    };

    let none = example.path("none");
    fs_err::create_dir(&none).expect("a directory");
    let until_heard = |is_missing: bool| {
        let planned = || text(&controller.hoist(&["deploy", "plan", &file]));
        eventually("controller knows the plug-ins of the worker", || {
            let plan = planned();
            if plan.contains("W605") == is_missing { Ok(()) } else { Err(plan) }
        });
    };
    let worker = work(&["--plugins", &none]);
    until_heard(true);
    let refused = controller.hoist(&["deploy", "run", &file]);
    assert_eq!(refused.status.code(), Some(3), "{}", text(&refused));
    let why = "action `motd` not found on `web1`, and nothing was begun";
    assert!(text(&refused).contains(why), "{}", text(&refused));
    end(worker);

    let worker = work(&["--plugins", &plugins]);
    until_heard(false);
    let ran = controller.hoist(&["deploy", "run", &file]);
    assert_eq!(ran.status.code(), Some(0), "{}", text(&ran));
    let motd = Path::new(&below).join("web1/motd");
    assert_eq!(fs_err::read_to_string(motd).expect("it was written"), "Welcome.\n");
    end(worker);
}

#[test]
fn ctrl_c_leaves_the_run_going_and_says_so() {
    let example = Example::new();
    let controller = example.start();
    let slow = example.path("slow.yaml");
    let tasks = "hoist: 1\nroles: {all: {nodes: '*'}}\ntasks:\n  t: {on: all, run: {shell: \
        'touch begun; while ! test -e go; do sleep 0.05; done'}}\n";
    fs_err::write(&slow, tasks).expect("a file");
    let mut running = spawned(&example, &["deploy", "run", &slow]);
    let mut lines = BufReader::new(running.stdout.take().expect("piped")).lines();
    let first = lines.next().expect("a line").expect("text");
    let id = first.strip_prefix("run ").expect("it says which run").to_owned();
    // From the first event on, the command handles Ctrl-C.
    lines.next().expect("a line").expect("text");
    interrupt(&running);
    let left = running.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&left.stderr).into_owned();
    assert_eq!(left.status.code(), Some(5), "{said}");
    for part in ["the run goes on", &format!("stop {id}"), &format!("watch {id}")] {
        assert!(said.contains(part), "{part}: {said}");
    }
    assert_eq!(json(&controller, &["deploy", "show", &id])["state"], "running");
    for node in ["web1", "db1", "mon1"] {
        eventually("task has started", || example.file(node, "begun").exists());
        fs_err::write(example.file(node, "go"), "").expect("a file");
    }
    assert_eq!(controller.hoist(&["deploy", "watch", &id]).status.code(), Some(0));
}

#[test]
fn second_ctrl_c_leaves_at_once_with_a_full_pipe() {
    use std::fmt::Write as _;
    let example = Example::new();
    let controller = example.start();
    let mut tasks = "hoist: 1\nroles: {all: {nodes: '*'}}\ntasks:\n".to_owned();
    for n in 0..150 {
        writeln!(tasks, "  t{n}: {{on: all, run: none}}").expect("writing to memory");
    }
    fs_err::write(example.path("many.yaml"), tasks).expect("a file");
    controller.does(&["deploy", "run", &example.path("many.yaml"), "-o", "json"]);
    let mut watching = spawned(&example, &["deploy", "watch", "last", "-o", "json"]);
    let unread = watching.stdout.take().expect("piped");
    // A pipe holds 64 KiB; a writer that filled it blocks until it is read.
    eventually("watcher is stuck", || {
        rustix::io::ioctl_fionread(&unread).expect("a pipe") > 60 * 1024
    });
    interrupt(&watching);
    eventually("watcher has left", || {
        interrupt(&watching);
        watching.try_wait().expect("a child").is_some()
    });
    let code = watching.wait().expect("it ended").code();
    assert_eq!(code, Some(5));
}

#[test]
fn exit_code_tells_how_a_run_ended() {
    let example = Example::new();
    let controller = example.start();
    let write = |name: &str, text: &str| {
        fs_err::write(example.dir.path().join(name), text).expect("a file");
        example.path(name)
    };
    let task = |role: &str, run: &str| {
        format!(
            "hoist: 1\nroles:\n  all: {{nodes: \"*\"{role}}}\ntasks:\n  t: {{on: all, run: {run}}}\n"
        )
    };
    let degraded = write("d.yaml", &task(", tolerate: 1", "{shell: 'test $HOIST_NODE != db1'}"));
    let output = controller.hoist(&["deploy", "run", &degraded]);
    assert_eq!(output.status.code(), Some(7), "{}", text(&output));
    let wrong = write("w.yaml", &task("", "{shel: 'true'}"));
    let output = controller.hoist(&["deploy", "run", &wrong]);
    assert_eq!(output.status.code(), Some(2), "{}", text(&output));
    assert!(text(&output).contains("w.yaml:"), "{}", text(&output));
    let slow = write("s.yaml", &task("", "{shell: 'touch begun; sleep 30'}"));
    let id = controller.does(&["deploy", "run", &slow, "--detach"]).trim().to_owned();
    eventually("task has started", || example.file("db1", "begun").exists());
    controller.does(&["deploy", "stop", &id, "--now"]);
    let output = controller.hoist(&["deploy", "watch", &id]);
    assert_eq!(output.status.code(), Some(8), "{}", text(&output));
    assert!(text(&output).contains("ended by `stop --now`"), "{}", text(&output));
    let output = controller.hoist(&["deploy", "show", "nothing-like-it"]);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output));
    let nobody = hoist(&example.dir.path().join("elsewhere"), &["deploy", "list"]);
    assert_ne!(nobody.status.code(), Some(0));
}

#[test]
fn task_output_is_bounded_verbatim_and_without_secrets() {
    let example = Example::new();
    let controller = example.start();
    let secrets = example.data_dir().join("secrets");
    fs_err::create_dir_all(&secrets).expect("a directory");
    fs_err::write(secrets.join("db"), "hunter2-and-more").expect("a secret");
    let run = |task: &str| {
        let path = example.dir.path().join("bad.yaml");
        let yaml = format!("hoist: 1\ntasks:\n  bad: {{on: web, run: {{{task}}}}}\n");
        fs_err::write(&path, yaml).expect("a file");
        let ran = controller.hoist(&["deploy", "run", &path.display().to_string()]);
        let printed = controller.hoist(&["deploy", "show", "last", "bad@web1"]).stdout;
        (ran.status.code(), text(&ran), printed)
    };
    let has = |printed: &[u8], what: &[u8]| printed.windows(what.len()).any(|part| part == what);

    let (code, _, printed) = run("shell: \"yes | head -c 20000000; echo the end\"");
    assert_eq!(code, Some(0));
    assert!(has(&printed, b"bytes were left out here") && has(&printed, b"the end"));
    assert!(printed.len() < 9 * 1024 * 1024, "{}", printed.len());

    let (code, said, printed) =
        run(r#"shell: "printf 'a \\377 b\\n'; printf 'why \\376\\n' >&2; exit 3""#);
    assert_eq!(code, Some(1));
    assert!(said.contains("exit code 3: why \u{fffd}"), "{said}");
    assert!(has(&printed, b"a \xff b\n"), "it is not changed: {printed:?}");

    let (code, said, printed) =
        run("shell: \"cat $PW; echo why $(cat $PW) >&2; exit 4\", secrets: {PW: db}");
    assert_eq!(code, Some(1));
    assert!(said.contains("exit code 4: why [hidden]") && !said.contains("hunter2"), "{said}");
    assert!(has(&printed, b"[hidden]") && !has(&printed, b"hunter2"));
}

#[test]
fn second_controller_on_one_data_directory_is_refused() {
    let example = Example::new();
    let _controller = example.start();
    let words = ["serve", "--listen", "127.0.0.1:0", "--tls-listen", "off"];
    let second = hoist(&example.data_dir(), &words);
    assert_eq!(second.status.code(), Some(11), "{}", text(&second));
    assert!(text(&second).contains("is in use by another hoist"), "{}", text(&second));
}

#[test]
fn tasks_on_no_node_are_nothing_to_run() {
    let example = Example::new();
    let controller = example.start();
    let path = example.dir.path().join("nowhere.yaml");
    let yaml = "hoist: 1\nroles: {gpu: {}}\ntasks: {a: {on: gpu, run: none}}\n";
    fs_err::write(&path, yaml).expect("a file");
    let name = path.display().to_string();
    let refused = controller.hoist(&["deploy", "run", &name]);
    assert_eq!(refused.status.code(), Some(2), "{}", text(&refused));
    assert!(text(&refused).contains("E205 role `gpu` has no members"), "{}", text(&refused));
    fs_err::write(&path, yaml.replace("gpu: {}", "gpu: {allow_empty: true}")).expect("a file");
    let path = name;
    let planned = controller.hoist(&["deploy", "plan", &path]);
    assert_eq!(planned.status.code(), Some(0));
    assert!(text(&planned).contains("warning[W201]: task `a` matches no node"));
    let ran = controller.hoist(&["deploy", "run", &path]);
    assert_eq!(ran.status.code(), Some(2), "{}", text(&ran));
    assert!(text(&ran).contains("the plan has no tasks"), "{}", text(&ran));
}

#[test]
fn broken_run_is_shown_with_its_reason() {
    let example = Example::new();
    let controller = example.start();
    let file = chains(example.dir.path(), 30);
    let id = controller.does(&["deploy", "run", &file, "--detach"]).trim().to_owned();
    controller.does(&["deploy", "pause", &id]);
    assert_eq!(controller.terminate(), Some(0));
    let journal = example.data_dir().join("journal").join(&id);
    let lock = fs_err::File::open(journal.join("lock")).expect("a lock").into_parts().0;
    lock.try_lock().expect("nobody holds it");
    let controller = example.start();
    let watched = controller.hoist(&["deploy", "watch", &id]);
    assert_eq!(watched.status.code(), Some(1), "{}", text(&watched));
    let line = text(&watched).lines().find(|line| line.starts_with("broken: ")).map(str::to_owned);
    assert!(line.is_some_and(|why| why.contains("another process")), "{}", text(&watched));
    drop(lock);
    assert_eq!(controller.terminate(), Some(0));

    let mut bytes = fs_err::read(journal.join("records")).expect("a journal");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0x40;
    fs_err::write(journal.join("records"), &bytes).expect("a journal");
    let controller = example.start();
    for what in ["watch", "resume"] {
        let refused = controller.hoist(&["deploy", what, &id]);
        assert_eq!(refused.status.code(), Some(3), "{what}: {}", text(&refused));
        let said = text(&refused);
        assert!(said.contains("the journal is damaged at byte"), "{what}: {said}");
    }
}

#[test]
fn watch_of_a_paused_run_returns_when_nothing_runs() {
    let example = Example::new();
    let controller = example.start();
    let file = example.path("alike.yaml");
    let tasks = "hoist: 1\nlimits: {breaker: 2, at_once: 1}\n\
        roles: {all: {nodes: '*', tolerate: all but 1}}\n\
        tasks:\n  a: {on: all, run: {shell: test -e mended}}\n";
    fs_err::write(&file, tasks).expect("a file");
    let run = controller.hoist(&["deploy", "run", &file]);
    assert_eq!(run.status.code(), Some(4), "{}", text(&run));
    assert!(text(&run).contains("paused by the breaker; `hoist deploy unpause"), "{}", text(&run));
    let watch = controller.hoist(&["deploy", "watch", "last"]);
    assert_eq!(watch.status.code(), Some(4), "{}", text(&watch));
    // Others wait for it.
    let other = controller.hoist(&["deploy", "run", &file]);
    assert_eq!(other.status.code(), Some(3), "{}", text(&other));
    assert!(text(&other).contains("is under way on"), "{}", text(&other));
    assert!(text(&other).contains("--allow-concurrent"), "{}", text(&other));
    for node in ["web1", "db1", "mon1"] {
        let mended = example.file(node, "mended");
        fs_err::create_dir_all(mended.parent().expect("a directory")).expect("a directory");
        fs_err::write(mended, "").expect("a file");
    }
    let concurrent = controller.hoist(&["deploy", "run", &file, "--allow-concurrent"]);
    assert_eq!(concurrent.status.code(), Some(0), "{}", text(&concurrent));
    controller.hoist(&["deploy", "stop", "last"]);
}

#[test]
fn dry_run_leaves_out_carried_over_steps() {
    let example = Example::new();
    let controller = example.start();
    let file = example.path("two.yaml");
    let tasks = |b: &str| {
        format!(
            "hoist: 1\ntasks:\n  a: {{on: 'node:web1', run: {{shell: 'true'}}}}\n  \
             b: {{on: 'node:web1', requires: [a], run: {{shell: '{b}'}}}}\n"
        )
    };
    fs_err::write(&file, tasks("false")).expect("a file");
    assert_eq!(controller.hoist(&["deploy", "run", &file]).status.code(), Some(1));
    fs_err::write(&file, tasks("true")).expect("a file");
    let dry = controller.hoist(&["deploy", "continue", "last", "--replan", &file, "--dry-run"]);
    assert_eq!(dry.status.code(), Some(20), "{}", text(&dry));
    let said = text(&dry);
    assert!(said.contains("skipped  a@web1: done in the run that is continued"), "{said}");
    assert!(said.contains("b on web1") && !said.contains("a on web1"), "{said}");
}

#[test]
fn check_of_a_run_without_own_steps_says_so() {
    let example = Example::new();
    let controller = example.start();
    let file = example.path("once.yaml");
    let tasks = "hoist: 1\nsettings: {v: 1}\ntasks:\n  a: {on: 'node:web1', \
        inputs: [settings.v], run: {shell: 'true'}}\n";
    fs_err::write(&file, tasks).expect("a file");
    controller.does(&["deploy", "run", &file]);
    controller.does(&["deploy", "run", &file]);
    let check = controller.hoist(&["deploy", "check", "last"]);
    assert_eq!(check.status.code(), Some(2), "{}", text(&check));
    assert!(text(&check).contains("has no succeeded instance to check"), "{}", text(&check));
}
