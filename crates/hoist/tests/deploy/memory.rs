//! Memory of the commands that make plans, for a large site: Fuel's tasks on 1,001 nodes, which are
//! 52,013 instances.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use hoist_testkit::controller_process::{Controller, hoist};
use serde_json::{Value, json};

const TASKS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../compat/fixtures/fuel-tasks.json");
const LAYOUT: [(&str, usize); 4] =
    [("controller", 3), ("ceph-osd", 200), ("compute", 797), ("master", 1)];
const INSTANCES: &str = "52013 instances on 1001 nodes";
/// Actions of Fuel that only a plug-in has.
const FOREIGN: [&str; 2] = ["fuel-upload_file:", "fuel-copy_files:"];
const LIMIT_KIB: u64 = 200 * 1024;

/// Runs a program and prints the most KiB that it had in memory. The output goes to `out`.
const MEASURE: &str = "import os, sys
pid = os.posix_spawnp(sys.argv[2], sys.argv[2:], os.environ, file_actions=[
    (os.POSIX_SPAWN_OPEN, 1, sys.argv[1], os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600)])
_, status, usage = os.wait4(pid, 0)
print(status, usage.ru_maxrss)";

/// The files of a site in a directory.
fn write_files(dir: &Path) {
    let router = json!({"ipaddr": "192.0.2.1", "node_roles": ["controller", "primary-controller"]});
    let fuel = json!({"network_metadata": {"vips": {"vrouter": router}}});
    fs_err::write(dir.join("fuel.yaml"), fuel.to_string()).expect("a file");
    let path = |name: &str| dir.join(name).display().to_string();
    let words = [
        "deploy",
        "import-fuel",
        TASKS,
        "--settings",
        &path("fuel.yaml"),
        "--out",
        &path("all.yaml"),
    ];
    let imported = hoist(dir, &words);
    assert!(imported.status.success(), "{imported:?}");
    let text = fs_err::read_to_string(dir.join("all.yaml")).expect("a task file");
    fs_err::write(dir.join("site.yaml"), without_foreign(&text)).expect("a file");
    fs_err::write(dir.join("settings.yaml"), settings(&text).to_string()).expect("a file");
    let mut nodes = String::new();
    let roles = LAYOUT.iter().flat_map(|(role, count)| std::iter::repeat_n(*role, *count));
    for (at, role) in roles.enumerate() {
        let mac = format!("02:00:00:00:{:02x}:{:02x}", at / 256, at % 256);
        let interfaces = json!([{"name": "eth0", "mac": mac}]);
        let spec = json!({"nid": at + 1, "role": role, "interfaces": interfaces});
        let node =
            json!({"api": "hoist/v1", "kind": "Node", "name": format!("node{at}"), "spec": spec});
        writeln!(nodes, "{node}").expect("writing to memory");
    }
    fs_err::write(dir.join("nodes.ndjson"), nodes).expect("a file");
}

/// The tasks, with a command in place of actions that are not hoist's own.
fn without_foreign(text: &str) -> String {
    let mut out = String::new();
    let mut left_out = None;
    for line in text.lines() {
        let indent = line.len() - line.trim_start().len();
        if left_out.is_some_and(|from| indent > from || line.trim().is_empty()) {
            continue;
        }
        left_out = None;
        if FOREIGN.contains(&line.trim()) {
            left_out = Some(indent);
            writeln!(out, "{}shell: 'true'", " ".repeat(indent)).expect("writing to memory");
        } else {
            writeln!(out, "{line}").expect("writing to memory");
        }
    }
    out
}

/// Settings in which everything that may be on is off.
fn settings(text: &str) -> Value {
    let mut settings = json!({"plugins": [], "use_ssl": []});
    for line in text.lines().filter(|line| line.trim_start().starts_with("when:")) {
        let words = line.split(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != '.');
        for path in words.filter_map(|word| word.strip_prefix("settings.")) {
            let mut at = &mut settings;
            for part in path.split('.') {
                if !at.is_object() {
                    *at = json!({});
                }
                at = &mut at[part];
            }
            if at.is_null() {
                *at = false.into();
            }
        }
    }
    settings
}

/// Runs `hoist deploy …` on the files; gives its output and the most KiB it had in memory.
fn measured(dir: &Path, words: &[&str], nodes: bool) -> (String, u64) {
    let out = dir.join("out");
    let [tasks, settings, nodes_file] =
        ["site.yaml", "settings.yaml", "nodes.ndjson"].map(|name| dir.join(name));
    let mut command = Command::new("python3");
    command.args(["-c", MEASURE]).arg(&out).arg(env!("CARGO_BIN_EXE_hoist")).arg("deploy");
    command.arg(words[0]).arg(tasks).args(&words[1..]).arg("--set").arg(settings);
    command.args(["--conditions", "true"]);
    if nodes {
        command.arg("--nodes").arg(nodes_file);
    }
    let output = command.env("HOIST_DATA_DIR", dir.join("data")).output().expect("python3");
    let text = String::from_utf8(output.stdout).expect("text");
    let mut numbers =
        text.split_whitespace().map(|number| number.parse::<u64>().expect("a number"));
    let status = numbers.next().expect("a status");
    let peak = numbers.next().expect("a size");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(status, 0, "{words:?}: {}", errors.chars().take(1000).collect::<String>());
    (fs_err::read_to_string(out).expect("the output"), peak)
}

const COMMANDS: [&[&str]; 5] =
    [&["plan"], &["plan", "-o", "json"], &["simulate"], &["graph"], &["graph", "--format", "svg"]];

#[test]
fn large_plan_is_made_offline_within_200_mib() {
    let dir = tempfile::tempdir().expect("a directory");
    write_files(dir.path());
    for words in COMMANDS {
        let (text, peak) = measured(dir.path(), words, true);
        assert!(words != ["plan"] || text.contains(INSTANCES), "{text}");
        assert!(peak < LIMIT_KIB, "{words:?}: {peak} KiB");
    }
}

/// Of the controller only its own memory counts: most of a program with debug information is pages
/// of its file. Beside the plan it holds the site, and memory that the allocator retains from
/// earlier plans.
#[test]
fn large_plan_takes_200_mib_of_the_client() {
    let dir = tempfile::tempdir().expect("a directory");
    write_files(dir.path());
    let controller = Controller::start(&dir.path().join("data"), &[]);
    let nodes = dir.path().join("nodes.ndjson").display().to_string();
    controller.does(&["apply", "-f", &nodes, "--yes", "--affects", "0"]);
    for words in COMMANDS {
        let (text, peak) = measured(dir.path(), words, false);
        assert!(words != ["plan"] || text.contains(INSTANCES), "{text}");
        assert!(peak < LIMIT_KIB + FILE_PAGES_KIB, "{words:?}: {peak} KiB");
    }
    let [peak, file] = ["VmHWM:", "RssFile:"].map(|field| controller.memory_kib(field));
    assert!(peak - file < CONTROLLER_KIB, "controller: {peak} KiB, of which {file} KiB are files");
}

/// Most memory of the controller while it makes all of these plans.
const CONTROLLER_KIB: u64 = 320 * 1024;
/// Pages of the client's program file, with debug information.
const FILE_PAGES_KIB: u64 = 40 * 1024;
