//! The life of a cluster: a controller and three machines, as processes in network namespaces.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use hoist_model::Exit;
use hoist_testkit::{eventually_within, skip};
use serde_json::Value;

use super::network::{Machine, Running, Switch};

/// Reports come every ten seconds, and the machine that runs the tests may be busy.
const DEADLINE: Duration = Duration::from_mins(3);

/// A program of another package: built with the workspace, and not when only this one is tested.
pub(crate) fn agent() -> PathBuf {
    let hoist = hoist();
    let agent = hoist.with_file_name("hoist-agent");
    if !agent.is_file() {
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--quiet", "--offline", "--locked", "-p", "hoist-agent"]);
        let target = hoist.parent().and_then(Path::parent).expect("in the target directory");
        let built = cargo.arg("--target-dir").arg(target).status().expect("cargo starts");
        assert!(built.success(), "hoist-agent was not built");
    }
    agent
}

pub(crate) fn hoist() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_hoist"))
}

/// The machine with the controller.
pub(crate) struct Office {
    pub(crate) machine: Machine,
    data_dir: PathBuf,
    serve: Option<Running>,
}

impl Office {
    pub(crate) fn new(machine: Machine, data_dir: &Path) -> Self {
        let mut office = Self { machine, data_dir: data_dir.to_owned(), serve: None };
        office.start();
        office
    }

    fn start(&mut self) {
        let mut command = self.machine.command(hoist());
        let advertised = format!("http://{}:27778", self.machine.address);
        command.arg("--data-dir").arg(&self.data_dir).args(["serve", "--advertise", &advertised]);
        command.args(["--listen", "0.0.0.0:27778", "--tls-listen", "0.0.0.0:27443"]);
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("the controller starts");
        let mut line = String::new();
        let mut lines = BufReader::new(child.stdout.take().expect("piped"));
        lines.read_line(&mut line).expect("the controller says where it listens");
        assert!(line.starts_with("listening on"), "{line:?}");
        // Keeps the pipe open and empty.
        std::thread::spawn(move || lines.lines().for_each(drop));
        self.serve = Some(Running::of(child));
    }

    fn kill(&mut self) {
        self.serve.take().expect("it runs").kill();
    }

    fn cluster(&self, words: &[&str]) -> Output {
        let mut command = self.machine.command(hoist());
        command.arg("--data-dir").arg(&self.data_dir).arg("cluster").args(words);
        command.output().expect("the command starts")
    }

    pub(crate) fn ends(&self, exit: Exit, words: &[&str]) -> String {
        let output = self.cluster(words);
        assert_eq!(code(&output), i32::from(exit.code()), "hoist cluster {words:?}: {output:?}");
        String::from_utf8(output.stdout).expect("output is UTF-8")
    }

    pub(crate) fn value(&self, words: &[&str]) -> Value {
        let output = self.cluster(&[words, &["-o", "json"]].concat());
        serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{words:?}: {output:?}"))
    }

    /// A file with a new join token.
    pub(crate) fn token(&self, name: &str) -> String {
        let path = self.data_dir.with_file_name(name).display().to_string();
        self.ends(Exit::Done, &["token", "create", "--out", &path]);
        path
    }

    /// The name and role of each present member, once the agents work by them.
    fn expect_roles(&self, expected: &[(&str, &str)]) {
        eventually_within(DEADLINE, "members work in the roles", || {
            let nodes = self.value(&["nodes"]);
            let generation = self.value(&["status"])["plan_generation"].clone();
            let mut roles: Vec<(String, String)> = Vec::new();
            for node in nodes.as_array().expect("a list") {
                if node["plan_generation"] != generation {
                    return Err(nodes.to_string());
                }
                let text = |key: &str| node[key].as_str().unwrap_or("-").to_owned();
                roles.push((text("node"), text("role")));
            }
            let is = roles.iter().map(|(node, role)| (node.as_str(), role.as_str()));
            if is.eq(expected.iter().copied()) { Ok(()) } else { Err(nodes.to_string()) }
        });
    }
}

pub(crate) fn code(output: &Output) -> i32 {
    output.status.code().expect("it was not killed")
}

impl Machine {
    fn bootstrap(&self, more: &[&str]) -> Command {
        let mut command = self.command(&agent());
        command.args(["bootstrap", "--join-cluster", "10.77.0.1", "--state-dir"]);
        command.arg(&self.state_dir).args(more);
        command
    }

    fn joins(&self, token: &str) {
        let output = self.bootstrap(&["--token-file", token]).output().expect("it starts");
        assert_eq!(code(&output), 0, "{}: {output:?}", self.name);
    }

    fn daemon(&self) -> Running {
        let mut command = self.command(&agent());
        command.arg("daemon").arg("--state-dir").arg(&self.state_dir);
        Running::start(command.stdout(Stdio::null()).stderr(Stdio::null()))
    }
}

#[test]
fn cluster_grows_survives_its_controller_and_replaces_members() {
    if !rustix::process::geteuid().is_root() {
        return skip("network namespaces of a cluster need root");
    }
    let dir = tempfile::tempdir().unwrap();
    let switch = Switch::new();
    let mut office = Office::new(switch.machine("office", 1, dir.path()), &dir.path().join("data"));
    let machines = [("n1", 11), ("n2", 12), ("n3", 13)];
    let [one, two, three] = machines.map(|(name, number)| switch.machine(name, number, dir.path()));

    // Found, and let the first machine join.
    office.ends(Exit::Done, &["found", "--name", "lab"]);
    one.joins(&office.token("one"));
    let first = one.daemon();
    office.expect_roles(&[("n1", "monolith")]);
    let again = one.bootstrap(&["--token-file", &office.token("again")]).output().unwrap();
    assert_eq!(code(&again), 0, "a member stays one: {again:?}");

    two.joins(&office.token("two"));
    let second = two.daemon();
    office.expect_roles(&[("n1", "edge"), ("n2", "core")]);

    // The third one has only the pin. The controller dies while an operator is waited for.
    let pin = office.ends(Exit::Done, &["pin"]);
    let mut joining = Running::start(
        three.bootstrap(&["--ca-pin", pin.trim()]).stdout(Stdio::piped()).stderr(Stdio::piped()),
    );
    let pending = eventually_within(DEADLINE, "the request waits", || {
        office.value(&["pending"]).as_array().unwrap().first().cloned()
    });
    office.kill();
    office.start();
    assert_eq!(office.value(&["pending"])[0]["id"], pending["id"], "a request is durable");
    assert!(!joining.has_ended(), "the machine goes on asking");
    let id = pending["id"].as_str().unwrap();
    office.ends(Exit::WouldChange, &["accept", id, "--dry-run"]);
    office.ends(Exit::Done, &["accept", id]);
    let joined = joining.output();
    assert_eq!(code(&joined), 0, "{joined:?}");
    let fingerprint = pending["fingerprint"].as_str().unwrap();
    let shown = String::from_utf8_lossy(&joined.stderr);
    assert!(shown.contains(fingerprint), "the screen shows the fingerprint: {shown}");
    let mut daemon = three.command(&agent());
    daemon.arg("daemon").arg("--state-dir").arg(&three.state_dir);
    let third = Running::start(daemon.stdout(Stdio::null()).stderr(Stdio::piped()));
    office.expect_roles(&[("n1", "edge"), ("n2", "core"), ("n3", "data")]);
    let reasons = office.ends(Exit::Done, &["roles", "--explain", "n3"]);
    assert!(reasons.contains("has role data\n  because"), "{reasons}");
    let status = office.value(&["status"]);
    assert_eq!(status["states"], serde_json::json!({"member": 3}));
    assert_eq!(status["scale"], "small");
    office.ends(Exit::Done, &["status"]);
    let targets = office.ends(Exit::Done, &["targets", "-o", "name"]);
    assert_eq!(targets, "10.77.0.11:9100\n10.77.0.12:9100\n10.77.0.13:9100\n");

    // An expelled machine is refused at once.
    office.ends(Exit::Refused, &["expel", "n3"]);
    office.ends(Exit::WouldChange, &["expel", "n3", "--dry-run"]);
    office.ends(Exit::Done, &["expel", "n3", "-y", "--reason", "stolen"]);
    let ended = third.output();
    assert_eq!(code(&ended), 3, "its agent ends: {ended:?}");
    let told = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert_eq!(told.matches("was expelled from cluster lab").count(), 1, "{told}");
    assert!(told.contains("identity reset"), "{told}");
    let mut show = three.command(&agent());
    let shown = show.args(["identity", "show", "--state-dir"]).arg(&three.state_dir).output();
    let shown = String::from_utf8(shown.unwrap().stdout).unwrap();
    assert!(shown.starts_with("state: expelled\n"), "{shown}");
    let again = three.bootstrap(&["--ca-pin", pin.trim()]).output().unwrap();
    assert_eq!(code(&again), 3, "{again:?}");
    office.expect_roles(&[("n1", "edge"), ("n2", "core")]);

    // The second machine is installed again, without its key.
    second.kill();
    let old = office.value(&["nodes"])[1]["id"].as_str().unwrap().to_owned();
    fs_err::remove_dir_all(&two.state_dir).unwrap();
    let refused = two.bootstrap(&["--token-file", &office.token("taken")]).output().unwrap();
    assert_eq!(code(&refused), 3, "{refused:?}");
    let said = String::from_utf8_lossy(&refused.stderr);
    let remedy = said.split("`hoist cluster ").nth(1).and_then(|rest| rest.split('`').next());
    let remedy: Vec<&str> = remedy.unwrap_or_else(|| panic!("{said}")).split(' ').collect();
    assert_eq!(remedy[0], "replace", "{said}");
    office.ends(Exit::Done, &remedy);
    two.joins(&office.token("replaced"));
    let _second = two.daemon();
    office.expect_roles(&[("n1", "edge"), ("n2", "core")]);
    let new = office.value(&["nodes"])[1]["id"].as_str().unwrap().to_owned();
    assert_ne!(old, new);
    let status = office.value(&["status"]);
    let states = serde_json::json!({"expelled": 1, "member": 2, "replaced": 1});
    assert_eq!(status["states"], states, "{status}");
    assert_eq!(status["roles"], serde_json::json!({"core": 1, "edge": 1}));

    // A member that is off is told.
    first.kill();
    let degraded = eventually_within(DEADLINE, "the silent member is told", || {
        let status = office.cluster(&["status"]);
        (code(&status) == i32::from(Exit::Degraded.code())).then_some(status)
    });
    let text = String::from_utf8(degraded.stdout).unwrap();
    assert!(text.contains("! silent members: n1"), "{text}");
}

#[test]
fn killed_join_continues_and_a_drained_member_leaves() {
    if !rustix::process::geteuid().is_root() {
        return skip("network namespaces of a cluster need root");
    }
    let dir = tempfile::tempdir().unwrap();
    let switch = Switch::new();
    let office = Office::new(switch.machine("office", 1, dir.path()), &dir.path().join("data"));
    let machines = [("n1", 11), ("n2", 12), ("n3", 13)];
    let [one, two, three] = machines.map(|(name, number)| switch.machine(name, number, dir.path()));
    office.ends(Exit::Done, &["found", "--name", "lab"]);
    one.joins(&office.token("one"));
    let _first = one.daemon();

    // The machine itself is killed while it waits, and accepted while it is off.
    let pin = office.ends(Exit::Done, &["pin"]);
    let mut bootstrap = two.bootstrap(&["--ca-pin", pin.trim()]);
    let waiting = Running::start(bootstrap.stdout(Stdio::null()).stderr(Stdio::null()));
    let id = eventually_within(DEADLINE, "the request waits", || {
        office.value(&["pending"])[0]["id"].as_str().map(str::to_owned)
    });
    waiting.kill();
    // A machine that gives up withdraws its request.
    let mut given_up = three.bootstrap(&["--ca-pin", pin.trim()]);
    let given_up = Running::start(given_up.stdout(Stdio::null()).stderr(Stdio::piped()));
    eventually_within(DEADLINE, "the second request waits", || {
        (office.value(&["pending"]).as_array().map(Vec::len) == Some(2)).then_some(())
    });
    given_up.interrupt();
    let given_up = given_up.output();
    assert_eq!(code(&given_up), i32::from(Exit::Stopped.code()), "{given_up:?}");
    let pending = office.value(&["pending"]);
    assert_eq!((pending.as_array().unwrap().len(), &pending[0]["id"]), (1, &id.as_str().into()));
    office.ends(Exit::Done, &["accept", "n2"]);
    assert_eq!(office.value(&["nodes"])[1]["state"], "accepted");
    assert_eq!(office.value(&["status"])["counts"]["members"], 1, "it has not confirmed");
    let mut again = two.command(&agent());
    let again = again.args(["bootstrap", "--state-dir"]).arg(&two.state_dir).output().unwrap();
    assert_eq!(code(&again), 0, "{again:?}");
    let _second = two.daemon();
    office.expect_roles(&[("n1", "edge"), ("n2", "core")]);
    assert_eq!(office.value(&["nodes"])[1]["id"], id);

    // A member that may hold data does not leave just so.
    office.ends(Exit::Refused, &["leave", "n2"]);
    let dry = office.ends(Exit::WouldChange, &["drain", "n2", "--dry-run"]);
    assert!(dry.starts_with("would drain n2 ") && dry.ends_with(", role core\n"), "{dry}");
    office.ends(Exit::Done, &["drain", "n2", "--reason", "new disks"]);
    office.ends(Exit::Done, &["drain", "n2"]);
    assert_eq!(office.value(&["nodes"])[1]["state"], "draining");
    office.ends(Exit::Done, &["leave", "n2"]);
    office.expect_roles(&[("n1", "monolith")]);
    let states = office.value(&["status"])["states"].clone();
    assert_eq!(states, serde_json::json!({"left": 1, "member": 1}));
    let former = office.value(&["nodes", "--all"]);
    assert_eq!((&former[1]["node"], &former[1]["state"]), (&"n2".into(), &"left".into()));
}
