//! `hoist deploy` without a controller, with the real program: files in, diagnostics and plans out.
//! The last tests check deployed state and use a controller.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use hoist_model::Exit;
use hoist_testkit::controller_process::Controller;
use serde_json::Value;

const NODES: &str = "\
api: hoist/v1
kind: Node
name: n1
spec: {nid: 1, role: database}
---
api: hoist/v1
kind: Node
name: n2
spec: {nid: 2, role: database, groups: [gpu], labels: {rack: r1}}
---
api: hoist/v1
kind: Node
name: n3
spec: {nid: 3, role: web, labels: {rack: r2}}
---
api: hoist/v1
kind: Node
name: gone
spec: {nid: 4, role: web, enabled: false}
---
api: hoist/v1
kind: Group
name: gpu
---
api: hoist/v1
kind: Group
name: fast
spec: {selector: \"label:rack=r2\"}
";

const SITE: &str = "\
hoist: 1
roles: {database: {}, web: {}}
settings: {mail: false}
tasks:
  install:
    on: \"*\"
    run: {shell: \"true\"}
  db-start:
    on: database
    requires: [install]
    run: {shell: \"true\"}
    check: {after: [{shell: \"true\"}]}
  web-start:
    on: web
    requires: [install]
    needs: [{task: db-start, on: database}]
    run: {shell: \"true\"}
    at_once: 1
  mail:
    on: fast
    when: settings.mail
    run: {shell: \"true\"}
";

/// A directory with files, in which the program runs.
struct Workdir(tempfile::TempDir);

impl Workdir {
    fn new() -> Self {
        let workdir = Self(tempfile::tempdir().expect("a directory"));
        workdir.write("nodes.yaml", NODES);
        workdir.write("site.yaml", SITE);
        workdir
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        fs_err::write(self.path(name), text).expect("a file");
    }

    fn hoist(&self, words: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_hoist"))
            .args(words)
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .env("HOIST_DATA_DIR", self.path("no-controller"))
            .current_dir(self.0.path())
            .output()
            .expect("the binary was built for this test")
    }

    /// Standard output and standard error.
    #[track_caller]
    fn ends(&self, words: &[&str], exit: Exit) -> String {
        let output = self.hoist(words);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let text = text + &String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(exit.code().into()), "hoist {words:?}: {text}");
        text
    }

    #[track_caller]
    fn json(&self, words: &[&str], exit: Exit) -> Value {
        let output = self.hoist(&[words, &["-o", "json"]].concat());
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(exit.code().into()), "hoist {words:?}: {errors}");
        serde_json::from_slice(&output.stdout).expect("JSON")
    }

    /// Lints a file with this in it.
    #[track_caller]
    fn lint(&self, text: &str, more: &[&str], exit: Exit) -> String {
        self.write("bad.yaml", text);
        self.ends(&[&["deploy", "lint", "bad.yaml"], more].concat(), exit)
    }
}

fn names<'a>(list: &'a Value, key: &str) -> Vec<&'a str> {
    let list = list.as_array().expect("a list");
    list.iter().map(|one| one[key].as_str().expect("a text")).collect()
}

#[test]
fn plan_from_files_lists_every_instance_edge_and_skip() {
    let workdir = Workdir::new();
    let plan = workdir.json(&["deploy", "plan", "site.yaml", "--nodes", "nodes.yaml"], Exit::Done);
    let listing = &plan["listing"];
    let mut instances = names(&listing["instances"], "name");
    instances.sort_unstable();
    let all = [
        "db-start@n1",
        "db-start@n2",
        "install@n1",
        "install@n2",
        "install@n3",
        "mail@n3",
        "web-start@n3",
    ];
    assert_eq!(instances, all);
    let edges = listing["edges"].as_array().expect("a list");
    let cross = edges.iter().find(|edge| edge["before"] == "db-start@n2").expect("it is bound");
    assert_eq!((&cross["after"], &cross["kind"]), (&"web-start@n3".into(), &"cross".into()));
    assert_eq!(cross["by"][0]["key"], "needs");
    assert_eq!(edges.len(), 5, "{edges:#?}");
    assert_eq!(plan["skips"][0]["instance"], "mail@n3");
    assert_eq!(plan["skips"][0]["reason"], "condition");
    let again = workdir.json(&["deploy", "plan", "site.yaml", "--nodes", "nodes.yaml"], Exit::Done);
    assert_eq!(plan["hash"], again["hash"], "the same files and nodes give the same plan");
    let set = ["deploy", "plan", "site.yaml", "--nodes", "nodes.yaml", "--set", "mail=true"];
    assert!(workdir.json(&set, Exit::Done)["skips"].is_null());
}

#[test]
fn plan_selection_works_as_with_a_controller() {
    let workdir = Workdir::new();
    let plan = |more: &[&str], exit| {
        let words = ["deploy", "plan", "site.yaml", "--nodes", "nodes.yaml"];
        workdir.json(&[&words[..], more].concat(), exit)
    };
    let part = plan(&["--tasks", "+web-start", "--set", "mail=true"], Exit::Done);
    assert_eq!(names(&part["skips"], "instance"), ["mail@n3"]);
    let part = plan(&["--tasks", "web-start"], Exit::Done);
    let codes = names(&part["diagnostics"], "code");
    assert!(codes.contains(&"W204"), "{codes:?}");
    let nothing = plan(&["--tasks", "web-strat"], Exit::Usage);
    assert_eq!(nothing["diagnostics"][0]["code"], "E202");
    assert_eq!(nothing["diagnostics"][0]["hint"], "did you mean `web-start`?");
    let nothing = plan(&["--tasks", "db-start", "--on", "role:web"], Exit::Usage);
    assert_eq!(nothing["diagnostics"][0]["code"], "E202", "an empty selection is an error");
    assert!(nothing["plan"].is_null());
}

#[test]
fn invalid_nodes_are_reported_first() {
    let workdir = Workdir::new();
    let plan = |exit| workdir.ends(&["deploy", "plan", "site.yaml", "--nodes", "x.yaml"], exit);
    assert!(plan(Exit::Failed).contains("x.yaml"));
    workdir.write("x.yaml", &format!("{NODES}---\napi: hoist/v1\nkind: Node\nname: n1\n"));
    assert!(plan(Exit::Usage).contains("the node `n1` is twice"));
    workdir.write("x.yaml", "api: hoist/v1\nkind: Node\nname: n1\nspec: {rol: web}\n");
    assert!(plan(Exit::Usage).contains("role"));
    workdir.write("x.yaml", "api: hoist/v1\nkind: Partition\nname: p\n");
    assert!(plan(Exit::Usage).contains("has no enabled node"));
}

#[test]
fn valid_files_are_reported_as_valid() {
    let workdir = Workdir::new();
    let told = workdir.ends(&["deploy", "lint", "site.yaml"], Exit::Done);
    assert!(told.contains("2 roles, 4 tasks, 0 barriers: 0 errors, 0 warnings"), "{told}");
    let words = ["deploy", "lint", "site.yaml", "--nodes", "nodes.yaml", "--layouts", "--strict"];
    let report = workdir.json(&words, Exit::Done);
    assert_eq!((&report["good"], &report["tasks"]), (&true.into(), &4.into()));
    workdir.ends(&["deploy", "lint"], Exit::Usage);
}

#[test]
fn typo_in_a_key_is_drawn_with_a_suggestion() {
    let workdir = Workdir::new();
    let told = workdir.lint(
        "hoist: 1\ntasks:\n  a:\n    on: \"*\"\n    reqires: [b]\n    run: none\n",
        &[],
        Exit::Usage,
    );
    assert!(told.contains("error[E102]: unknown key `reqires` in task `a`"), "{told}");
    assert!(told.contains("bad.yaml:5:5"), "{told}");
    assert!(told.contains("^^^^^^^"), "{told}");
    assert!(told.contains("did you mean `requires`?"), "{told}");
}

#[test]
fn cycle_is_printed_with_the_declaration_behind_each_edge() {
    let workdir = Workdir::new();
    let text = "\
hoist: 1
tasks:
  a: {on: web, requires: [c], run: none}
  b: {on: web, requires: [a], run: none}
  c: {on: web, requires: [b], run: none}
";
    for more in [&[][..], &["--nodes", "nodes.yaml"]] {
        let told = workdir.lint(text, more, Exit::Usage);
        assert!(told.contains("error[E401]"), "{told}");
        for arrow in ["(requires a)", "(requires b)", "(requires c)"] {
            assert!(told.contains(arrow), "{told}");
        }
        for line in ["bad.yaml:3:", "bad.yaml:4:", "bad.yaml:5:"] {
            assert!(told.contains(line), "{told}");
        }
    }
}

#[test]
fn cycle_of_some_layouts_is_found_without_nodes() {
    let workdir = Workdir::new();
    // On nodes of their own the two never meet.
    let text = "\
hoist: 1
roles: {database: {}, web: {}}
tasks:
  a: {on: database, requires: [{task: b, optional: true}], run: none}
  b: {on: web, requires: [{task: a, optional: true}], run: none}
";
    workdir.lint(text, &["--nodes", "nodes.yaml"], Exit::Done);
    let told = workdir.lint(text, &["--nodes", "nodes.yaml", "--layouts"], Exit::Usage);
    assert!(told.contains("E401") && told.contains("layout: "), "{told}");
    workdir.lint(text, &[], Exit::Usage);
}

#[test]
fn unknown_name_is_reported_with_a_suggestion() {
    let workdir = Workdir::new();
    let text = "hoist: 1\ntasks:\n  install: {on: web, run: none}\n  a: {on: web, requires: [instal], run: none}\n";
    let told = workdir.lint(text, &[], Exit::Usage);
    assert!(told.contains("E301") && told.contains("did you mean `install`?"), "{told}");
    let text = "hoist: 1\ntasks:\n  a: {on: wbe, run: none}\n";
    let told = workdir.lint(text, &["--nodes", "nodes.yaml"], Exit::Usage);
    assert!(told.contains("E200") && told.contains("did you mean `web`?"), "{told}");
}

#[test]
fn task_on_no_node_is_a_warning_or_with_strict_an_error() {
    let workdir = Workdir::new();
    let text = "hoist: 1\ntasks:\n  a: {on: \"label:rack=r9\", run: none}\n";
    let told = workdir.lint(text, &["--nodes", "nodes.yaml"], Exit::Done);
    assert!(told.contains("warning[W201]: task `a` matches no node"), "{told}");
    workdir.lint(text, &["--nodes", "nodes.yaml", "--strict"], Exit::Usage);
}

#[test]
fn contradicting_limits_are_errors() {
    let workdir = Workdir::new();
    let never = "hoist: 1\ntasks:\n  a: {on: web, at_once: 0, run: none}\n";
    let told = workdir.lint(never, &["--nodes", "nodes.yaml"], Exit::Usage);
    assert!(told.contains("E203") && told.contains("bad.yaml:3:"), "{told}");
    let more =
        "hoist: 1\nroles: {database: {tolerate: 5}}\ntasks:\n  a: {on: database, run: none}\n";
    let told = workdir.lint(more, &["--nodes", "nodes.yaml"], Exit::Usage);
    assert!(told.contains("E203") && told.contains("tolerates 5"), "{told}");
}

#[test]
fn file_at_the_limit_is_read_and_a_larger_one_refused() {
    const LIMIT: usize = hoist_deploy::parse::MAX_BYTES;
    let workdir = Workdir::new();
    let filled = |bytes: usize| {
        let comment = format!("# {}\n", "x".repeat(97));
        let mut text = SITE.to_owned();
        while text.len() + comment.len() < bytes {
            text.push_str(&comment);
        }
        text.push('#');
        text.extend(std::iter::repeat_n('x', bytes - text.len()));
        assert_eq!(text.len(), bytes);
        text
    };
    workdir.lint(&filled(LIMIT), &[], Exit::Done);
    let told = workdir.lint(&filled(LIMIT + 1), &[], Exit::Usage);
    assert!(told.contains("E103") && told.contains("split it into several files"), "{told}");
}

#[test]
fn binary_and_missing_files_are_reported() {
    let workdir = Workdir::new();
    fs_err::write(workdir.path("bad.yaml"), b"hoist: \xff").expect("a file");
    assert!(workdir.ends(&["deploy", "lint", "bad.yaml"], Exit::Usage).contains("UTF-8"));
    assert!(workdir.ends(&["deploy", "lint", "none.yaml"], Exit::Failed).contains("none.yaml"));
}

#[test]
fn drawings_have_every_format_and_overwrite_no_file() {
    let workdir = Workdir::new();
    let draw = |more: &[&str], exit| {
        let words = ["deploy", "graph", "site.yaml", "--nodes", "nodes.yaml"];
        workdir.ends(&[&words[..], more].concat(), exit)
    };
    assert!(draw(&[], Exit::Done).starts_with("digraph"));
    assert!(draw(&["--format", "mermaid"], Exit::Done).starts_with("flowchart"));
    draw(&["--format", "svg", "--out", "site.svg"], Exit::Done);
    assert!(
        fs_err::read_to_string(workdir.path("site.svg")).expect("it is there").starts_with("<svg")
    );
    assert!(draw(&["--format", "svg", "--out", "site.svg"], Exit::Refused).contains("--force"));
    draw(&["--format", "svg", "--out", "site.svg", "--force"], Exit::Done);
    let one = draw(&["--instances", "--on", "node:n2"], Exit::Done);
    assert!(one.contains("db-start@n2") && !one.contains("db-start@n1"), "{one}");
    let near = draw(&["--around", "db-start", "--depth", "1"], Exit::Done);
    assert!(near.contains("web-start") && !near.contains("mail"), "{near}");
    let typo = draw(&["--around", "db-strat"], Exit::Usage);
    assert!(typo.contains("did you mean `db-start`?"), "{typo}");
    assert!(draw(&["--on", "nobody"], Exit::Usage).contains("E200"));
    draw(&["--on", "&&"], Exit::Usage);
    let words = ["deploy", "graph", "site.yaml", "--nodes", "nodes.yaml"];
    assert!(workdir.json(&words, Exit::Done)["vertices"].is_array());
    workdir.ends(&["deploy", "graph"], Exit::Usage);
}

#[test]
fn simulated_run_ends_like_the_real_one() {
    let workdir = Workdir::new();
    let words = ["deploy", "simulate", "site.yaml", "--nodes", "nodes.yaml"];
    let simulated = workdir.json(&words, Exit::Done);
    assert_eq!(simulated["makespan_ms"], 3000);
    let way = names(&simulated["critical_path"], "name");
    assert_eq!(way.last(), Some(&"web-start@n3"));
    let with = |text: &str, exit| {
        workdir.write("with.yaml", text);
        workdir.ends(&[&words[..], &["--with", "with.yaml"]].concat(), exit)
    };
    let slow = with("cases:\n- {steps: \"db-*\", takes_ms: 60000}\n", Exit::Done);
    assert!(slow.contains("succeeded after 1m02s"), "{slow}");
    let broken = with("cases:\n- {steps: \"db-start@n1\", fails: always}\n", Exit::Failed);
    assert!(broken.contains("failed") && broken.contains("1 blocked"), "{broken}");
    let unknown = with("cases:\n- {steps: \"dbstart\"}\n", Exit::Usage);
    assert!(unknown.contains("no step of the plan has the name `dbstart`"), "{unknown}");
    with("taks_ms: 1\n", Exit::Usage);
    workdir.write("bad.yaml", "hoist: 1\ntasks:\n  a: {on: web, requires: [b], run: none}\n");
    workdir.ends(&["deploy", "simulate", "bad.yaml", "--nodes", "nodes.yaml"], Exit::Usage);
}

#[test]
fn simulated_run_takes_the_declared_times() {
    let workdir = Workdir::new();
    let text = "hoist: 1\nroles: {database: {rollout: {canary: 1, pause_after_canary: 2h}}}\n\
                tasks: {settle: {on: database, run: {wait: 30m}}}\n";
    workdir.write("waits.yaml", text);
    let words = ["deploy", "simulate", "waits.yaml", "--nodes", "nodes.yaml"];
    assert_eq!(workdir.json(&words, Exit::Done)["makespan_ms"], 3 * 60 * 60 * 1000);
    workdir.write("with.yaml", "takes_ms: 5\ncases:\n- {steps: \"pause*\", takes_ms: 60000}\n");
    let with = [&words[..], &["--with", "with.yaml"]].concat();
    assert_eq!(workdir.json(&with, Exit::Done)["makespan_ms"], 61 * 60 * 1000);
}

fn fixture() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../compat/fixtures/fuel-tasks.json");
    path.to_str().expect("UTF-8").to_owned()
}

#[test]
fn fuel_tasks_become_a_readable_task_file() {
    let workdir = Workdir::new();
    let fuel = fixture();
    let import = |more: &[&str], exit| {
        workdir.json(&[&["deploy", "import-fuel", &fuel], more].concat(), exit)
    };
    let dry = import(&["--dry-run"], Exit::WouldChange);
    assert!(!workdir.path("fuel.yaml").exists());
    let words = ["--conditions", "true", "--set", "CLUSTER_ID=1", "--out", "fuel.yaml"];
    let told = import(&words, Exit::Done);
    assert_eq!((&told["tasks"], &told["barriers"]), (&187.into(), &6.into()));
    let codes = |told: &Value, code: &str| {
        names(&told["diagnostics"], "code").into_iter().filter(|found| *found == code).count()
    };
    assert_eq!(codes(&told, "W-CONDITION"), codes(&dry, "W-CONDITION"), "they are told either way");
    assert!(codes(&told, "W-NEVER") >= 60, "{told:#}");
    let report = workdir.json(&["deploy", "lint", "fuel.yaml"], Exit::Done);
    assert_eq!((&report["tasks"], &report["errors"]), (&187.into(), &0.into()));
    let refused =
        workdir.ends(&["deploy", "import-fuel", &fuel, "--out", "fuel.yaml"], Exit::Refused);
    assert!(refused.contains("--force"), "{refused}");
    let typo = workdir
        .ends(&["deploy", "import-fuel", &fuel, "--graph", "defalt", "--dry-run"], Exit::Usage);
    assert!(typo.contains("did you mean `default`?"), "{typo}");
}

#[test]
fn untranslated_conditions_are_decided_by_flag() {
    let workdir = Workdir::new();
    workdir.write("a.yaml", "hoist: 1\ntasks:\n  a: {on: '*', run: none, when: {unknown: x}}\n");
    let words = ["deploy", "plan", "a.yaml", "--nodes", "nodes.yaml"];
    let refused = workdir.ends(&words, Exit::Usage);
    assert!(refused.contains("E602"), "{refused}");
    let skips = |decided: &str| {
        let plan = workdir.json(&[&words[..], &["--conditions", decided]].concat(), Exit::Done);
        plan["skips"].as_array().map_or(0, Vec::len)
    };
    assert_eq!(skips("true"), 0);
    assert!(skips("false") > 0);
    workdir.ends(&["deploy", "lint", "a.yaml"], Exit::Usage);
    workdir.ends(&["deploy", "lint", "a.yaml", "--conditions", "false"], Exit::Done);
}

#[test]
fn fuel_tree_is_read_and_an_empty_one_refused() {
    let workdir = Workdir::new();
    fs_err::create_dir_all(workdir.path("fuel/a/b")).expect("directories");
    workdir.ends(&["deploy", "import-fuel", "fuel", "--dry-run"], Exit::Usage);
    let tasks = "\
- {id: one, type: shell, version: 2.1.0, role: ['/.*/'], parameters: {cmd: 'true', timeout: 10}}
- {id: two, type: shell, version: 2.1.0, role: ['/.*/'], requires: [one, three], parameters: {cmd: 'true', timeout: 10}}
";
    workdir.write("fuel/a/b/tasks.yaml", tasks);
    let told = workdir.json(&["deploy", "import-fuel", "fuel", "--dry-run"], Exit::WouldChange);
    assert_eq!(told["tasks"], 2);
    let strict = ["deploy", "import-fuel", "fuel", "--strict", "--dry-run"];
    assert!(workdir.ends(&strict, Exit::Usage).contains("three"));
    workdir.write("fuel/a/b/tasks.yaml", "- {id: one, type: [\n");
    assert!(
        workdir
            .ends(&["deploy", "import-fuel", "fuel", "--dry-run"], Exit::Usage)
            .contains("tasks.yaml")
    );
}

#[test]
fn broken_expectations_are_named_and_runs_compared() {
    let workdir = Workdir::new();
    workdir.write("hoist.toml", "[deploy]\nlocal = \"*\"\n");
    workdir.write(
        "site.yaml",
        "\
hoist: 1
settings: {text: one}
tasks:
  motd: {on: web, inputs: [settings.text], run: {file: {path: motd, text: hello}}}
  seen: {on: web, requires: [motd], run: {shell: \"true\"}}
",
    );
    let text = |name: &str| workdir.path(name).display().to_string();
    let site = text("site.yaml");
    let config = text("hoist.toml");
    let controller = Controller::start(&workdir.path("data"), &["--config", &config]);
    controller.does(&["apply", "-f", &text("nodes.yaml"), "--yes"]);
    let ends = |words: &[&str], exit: Exit| {
        let output = controller.hoist(&[&["deploy"], words].concat());
        let told = String::from_utf8_lossy(&output.stdout).into_owned();
        let errors = String::from_utf8_lossy(&output.stderr);
        let code = Some(i32::from(exit.code()));
        assert_eq!(output.status.code(), code, "hoist deploy {words:?}: {told}{errors}");
        told
    };
    ends(&["run", &site], Exit::Done);
    let list: Value =
        serde_json::from_str(&ends(&["list", "-o", "json"], Exit::Done)).expect("JSON");
    let first = list[0]["id"].as_str().expect("an id").to_owned();
    assert!(ends(&["check", &site, "--dry-run"], Exit::WouldChange).contains("motd@n3"));
    let good = ends(&["check", &first], Exit::Done);
    assert!(good.contains("1 hold, 0 do not; 1 have no check"), "{good}");

    let drawn = ends(&["graph", "--run", &first, "-o", "json"], Exit::Done);
    let drawn: Value = serde_json::from_str(&drawn).expect("JSON");
    let vertices = drawn["vertices"].as_array().expect("a list");
    assert!(vertices.iter().all(|one| one.to_string().contains("done")), "{drawn:#}");

    fs_err::write(workdir.path("data/deploy/local/n3/motd"), "other").expect("a file");
    for of in [first.as_str(), &site] {
        let bad = ends(&["check", of], Exit::Failed);
        assert!(
            bad.contains("motd@n3 does not hold: ") && bad.contains("another content"),
            "{bad}"
        );
    }
    ends(&["check", &first, "--on", "role:database"], Exit::Usage);
    ends(&["check", &first, "--tasks", "motd"], Exit::Usage);

    assert!(ends(&["compare", &first, &first], Exit::Done).contains("0 had other inputs"));
    ends(&["run", &site, "--set", "text=two"], Exit::Done);
    let compared = ends(&["compare", &first, "last", "-o", "json"], Exit::Failed);
    let compared: Value = serde_json::from_str(&compared).expect("JSON");
    let motd = compared["instances"].as_array().expect("a list").iter();
    let motd = motd.filter(|one| one["name"] == "motd@n3").collect::<Vec<_>>();
    assert_eq!((motd.len(), &motd[0]["inputs_changed"]), (1, &true.into()));
}

#[test]
fn fifo_as_a_task_file_is_refused() {
    let workdir = Workdir::new();
    let path = workdir.path("fifo.yaml");
    let made = Command::new("mkfifo").arg(&path).status().expect("mkfifo of coreutils");
    assert!(made.success());
    let output = workdir.hoist(&["deploy", "lint", "fifo.yaml"]);
    let told = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{told}");
    assert!(told.contains("`fifo.yaml` is a FIFO, not a file"), "{told}");
}
