//! Runs of plans over real sockets: a whole controller, whose nodes are directories on its machine.

mod agent;
mod bounds;
mod concurrent;
mod elections;
mod events;
mod history;
mod orders;
mod plugins;
mod recovery;
mod rollouts;
mod run;
mod ssh;
mod takeover;
mod undo;

use std::path::PathBuf;

use crate::site::{Site, document, mac};
use hoist_server::controller::Config;
use serde_json::{Value, json};

const RUNS: &str = "/deploy/v1/runs";

/// Nodes `n1`, `n2` and `n3`, each a directory.
async fn site() -> Site {
    site_with(|_| {}).await
}

async fn site_with(change: impl FnOnce(&mut Config)) -> Site {
    let site = Site::start_with(|config| {
        config.deploy.local = Some("*".parse().expect("a selector"));
        change(config);
    })
    .await;
    let node = |n: u32| {
        let spec = json!({"interfaces": [{"name": "eth0", "mac": mac(n)}]});
        document("Node", &format!("n{n}"), &spec)
    };
    site.apply(&[node(1), node(2), node(3)]).await;
    site
}

/// A step that runs a command on a node, after others.
fn step(name: &str, node: u32, command: &str, after: &[u32]) -> Value {
    let call = json!({"action": "shell", "input": {"command": command}});
    let step = json!({"call": call, "subject": node - 1, "repeat": "safe"});
    json!({"name": name, "after": after, "kind": {"step": step}})
}

fn with(mut vertex: Value, key: &str, value: Value) -> Value {
    vertex["kind"]["step"][key] = value;
    vertex
}

fn plan(vertices: &[Value]) -> Value {
    json!({"vertices": vertices, "subjects": ["n1", "n2", "n3"]})
}

/// Starts a run; gives its id.
async fn start(site: &Site, plan: &Value) -> String {
    let body = json!({"title": "test", "plan": plan});
    let run = site.post(RUNS, &body).await.expect(201).json();
    run["id"].as_str().expect("an id").to_owned()
}

/// Waits until the run is in a state; gives its detail.
async fn until(site: &Site, run: &str, state: &str) -> Value {
    let path = format!("{RUNS}/{run}");
    let answer = site.eventually(&path, |answer| answer.json()["state"] == state).await;
    answer.json()
}

/// Waits until an instance is in a state.
async fn until_instance(site: &Site, run: &str, name: &str, state: &str) {
    let path = format!("{RUNS}/{run}/instances");
    let is = |items: &Value| {
        let mut items = items["items"].as_array().expect("a list").iter();
        items.any(|one| one["name"] == name && one["state"] == state)
    };
    site.eventually(&path, |answer| is(&answer.json())).await;
}

async fn states(site: &Site, run: &str) -> Vec<(String, String)> {
    let list = site.get(&format!("{RUNS}/{run}/instances")).await.expect(200).json();
    let text = |value: &Value| value.as_str().expect("text").to_owned();
    let items = list["items"].as_array().expect("a list").iter();
    items.map(|one| (text(&one["name"]), text(&one["state"]))).collect()
}

async fn order(site: &Site, run: &str, word: &str, body: Value) -> Value {
    site.post(&format!("{RUNS}/{run}/{word}"), &body).await.expect(200).json()
}

/// A file in the directory of a node.
fn file(site: &Site, node: u32, name: &str) -> PathBuf {
    site.data_dir().join(format!("deploy/local/n{node}/{name}"))
}

fn lines(site: &Site, node: u32, name: &str) -> usize {
    let text = fs_err::read_to_string(file(site, node, name)).unwrap_or_default();
    text.lines().count()
}

fn put(site: &Site, node: u32, name: &str) {
    let path = file(site, node, name);
    fs_err::create_dir_all(path.parent().expect("a directory")).expect("a directory");
    fs_err::write(path, "").expect("a file");
}

async fn eventually(subject: &str, holds: impl Fn() -> bool) {
    hoist_testkit::eventually_async(subject, async || holds()).await;
}

/// Waits for a file, then ends well: a step that the test lets go on. It outlives no test for long.
const HOLD: &str =
    "touch begun; for i in $(seq 600); do test -e go && exit 0; sleep 0.05; done; exit 1";
