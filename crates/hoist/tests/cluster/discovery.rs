//! Machines that search their network, find controllers, and join or found.

use std::path::Path;
use std::process::Output;

use hoist_model::Exit;
use hoist_testkit::skip;
use serde_json::Value;

use super::journey::{Office, agent, code, hoist};
use super::network::{Machine, Switch};

/// The answers to a machine, and the exit code.
fn discover(machine: &Machine, more: &[&str]) -> (i32, Vec<Value>) {
    let mut command = machine.command(hoist());
    command.args(["cluster", "discover", "--window", "2s", "-o", "json"]).args(more);
    let output = command.output().expect("the command starts");
    let answers = serde_json::from_slice(&output.stdout);
    (code(&output), answers.unwrap_or_else(|_| panic!("{more:?}: {output:?}")))
}

fn bootstrap(machine: &Machine, program: &Path, more: &[&str]) -> Output {
    let mut command = machine.command(program);
    command.args(["bootstrap", "--state-dir"]).arg(&machine.state_dir).args(more);
    command.output().expect("the command starts")
}

#[test]
fn machine_without_an_address_joins_the_pinned_cluster_it_finds() {
    if !rustix::process::geteuid().is_root() {
        return skip("network namespaces of a cluster need root");
    }
    let dir = tempfile::tempdir().unwrap();
    let switch = Switch::new();
    let office = Office::new(switch.machine("office", 1, dir.path()), &dir.path().join("data"));
    let one = switch.machine("n1", 11, dir.path());
    assert_eq!(discover(&one, &[]), (9, Vec::new()), "nothing is founded yet");

    office.ends(Exit::Done, &["found", "--name", "lab"]);
    let uid = office.value(&["status"])["uid"].clone();
    let pin = office.ends(Exit::Done, &["pin"]);
    let (exit, answers) = discover(&one, &[]);
    assert_eq!((exit, answers.len()), (0, 1), "{answers:?}");
    let answer = &answers[0];
    assert_eq!((&answer["cluster"], &answer["name"]), (&uid, &"lab".into()));
    assert_eq!(answer["signature"], "unverified");
    assert_eq!(answer["addresses"][0], "10.77.0.1:27443");
    let paths = answer["paths"].as_array().unwrap();
    for method in ["multicast v4", "broadcast"] {
        let is_used = |path: &Value| path["method"] == method && path["interface"] == "eth0";
        assert!(paths.iter().any(is_used), "{method}: {answer}");
    }

    // Another root answers on the same network.
    let rogue = Office::new(switch.machine("rogue", 2, dir.path()), &dir.path().join("rogue-data"));
    rogue.ends(Exit::Done, &["found", "--name", "lab"]);
    let (exit, answers) = discover(&one, &[]);
    assert_eq!((exit, answers.len()), (10, 2), "{answers:?}");
    let (exit, answers) = discover(&one, &["--pin", pin.trim(), "--seed", "10.77.0.1"]);
    assert_eq!((exit, answers.len()), (0, 2), "{answers:?}");
    for answer in &answers {
        let is_own = answer["cluster"] == uid;
        let signature = if is_own { "valid" } else { "invalid" };
        assert_eq!(answer["signature"], signature, "{answer}");
        assert_eq!(answer["reason"].is_null(), is_own, "{answer}");
    }

    // Answers without a credential prevent founding and joining.
    for flags in [&["--auto-discover"][..], &["--yes"]] {
        let refused = bootstrap(&one, hoist(), flags);
        assert!(![0, 9].contains(&code(&refused)), "{flags:?}: {refused:?}");
        let message = String::from_utf8_lossy(&refused.stderr);
        assert!(message.contains("`lab`"), "{flags:?}: {message}");
    }
    let token = office.token("one");
    let joined = bootstrap(&one, &agent(), &["--auto-discover", "--token-file", &token]);
    assert_eq!(code(&joined), 0, "{joined:?}");
    assert_eq!(office.value(&["nodes"])[0]["node"], "n1");
    assert_eq!(rogue.value(&["nodes"]), Value::Array(Vec::new()));
}

#[test]
fn consent_founds_on_a_network_where_no_cluster_answers() {
    if !rustix::process::geteuid().is_root() {
        return skip("network namespaces of a cluster need root");
    }
    let dir = tempfile::tempdir().unwrap();
    let switch = Switch::new();
    let data_dir = dir.path().join("data");
    let office = Office::new(switch.machine("office", 1, dir.path()), &data_dir);
    let data_dir = data_dir.display().to_string();
    let founded = bootstrap(&office.machine, hoist(), &["--yes", "--data-dir", &data_dir]);
    assert_eq!(code(&founded), 0, "{founded:?}");
    assert_eq!(office.value(&["nodes"])[0]["node"], "office");
}
