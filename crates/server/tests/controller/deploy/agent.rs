//! Nodes whose agent comes for its work, here with a worker in this process.

use std::path::Path;
use std::sync::Arc;

use hoist_api::client::{Access, Client};
use hoist_deploy::actions;
use hoist_engine::action::Cancel;
use hoist_engine::execute::{BaseDirectory, NoSecrets};
use hoist_engine::pull::{Orders, Transport, Unreachable, Worker, WorkerReport, WorkerSetup};
use hoist_testkit::eventually_async;
use serde_json::{Value, json};

use crate::deploy::{RUNS, document, mac, plan, start, step, until, until_instance, with};
use crate::site::Site;

/// The controller, over HTTP; every second answer is lost on the way.
struct Lossy {
    client: Client,
    runtime: tokio::runtime::Handle,
    number: u32,
}

impl Transport for Lossy {
    fn exchange(&mut self, report: &WorkerReport) -> Result<Orders, Unreachable> {
        self.number += 1;
        let answered = self.runtime.block_on(self.client.work("n1", report));
        let orders: Orders = answered.map_err(|error| Unreachable(error.to_string()))?;
        if self.number.is_multiple_of(2) {
            return Err(Unreachable("lost on the way".to_owned()));
        }
        Ok(orders)
    }
}

async fn one_node() -> Site {
    let site = Site::start().await;
    let spec = json!({"interfaces": [{"name": "eth0", "mac": mac(1)}]});
    site.apply(&[document("Node", "n1", &spec), document("Node", "n2", &json!({}))]).await;
    site
}

/// The agent of `n1`, whose node is a directory below this one.
struct Agent {
    done: Cancel,
    working: std::thread::JoinHandle<()>,
}

async fn lossy(site: &Site) -> Lossy {
    let scope = json!([{"verbs": ["write"], "contexts": ["agent"], "selector": "node:n1"}]);
    let token = site.token(scope).await;
    let base = site.url("").parse().expect("an address");
    let access = Access { token: Some(token.into()), authorities: None };
    let client = Client::new(base, access).expect("a client");
    Lossy { client, runtime: tokio::runtime::Handle::current(), number: 0 }
}

fn setup(dir: &std::path::Path) -> WorkerSetup {
    WorkerSetup {
        catalog: actions::catalog(),
        secrets: Arc::new(NoSecrets),
        base: BaseDirectory::Below(dir.join("nodes")),
        dir: dir.join("worker"),
        supervisor: None,
    }
}

impl Agent {
    async fn start(site: &Site, dir: &std::path::Path) -> Self {
        let setup = setup(dir);
        let mut lossy = lossy(site).await;
        let done = Cancel::default();
        let until_done = done.clone();
        let working = std::thread::spawn(move || {
            let mut worker = Worker::new(setup).expect("a worker");
            worker.work(&mut lossy, &until_done);
        });
        Self { done, working }
    }

    fn end(self) {
        self.done.cancel();
        self.working.join().expect("the worker ends");
    }
}

fn tasks(text: &str) -> Value {
    json!({"title": "agents", "files": [{"name": "tasks.yaml", "text": text}]})
}

#[tokio::test(flavor = "multi_thread")]
async fn agent_predicts_changes_of_its_node_and_makes_none() {
    let site = one_node().await;
    let dir = tempfile::tempdir().expect("a directory");
    let text = "hoist: 1\ntasks:\n\
        \x20 page:\n    on: node:n1\n    run: {file: {path: page, text: \"new\\n\"}}\n\
        \x20 same:\n    on: node:n1\n    run: {file: {path: same, text: \"same\\n\"}}\n\
        \x20 run:\n    on: node:n1\n    run: {shell: \"touch there\"}\n\
        \x20 other:\n    on: node:n2\n    run: {file: {path: page, text: new}}\n";
    let path = format!("{RUNS}?dry_run=1&predict=1");
    let predict = async || {
        let answer = site.post(&path, &tasks(text)).await.expect(200).json();
        answer["predictions"].as_array().expect("a list").clone()
    };
    let reason = |one: &Value| one["reason"].as_str().unwrap_or_default().to_owned();
    let nobody = predict().await;
    assert_eq!(reason(&nobody[0]), "the agent of `n1` sent no message recently");

    let node = dir.path().join("nodes/n1");
    fs_err::create_dir_all(&node).expect("a directory");
    fs_err::write(node.join("page"), "old\n").expect("a file");
    fs_err::write(node.join("same"), "same\n").expect("a file");
    let agent = Agent::start(&site, dir.path()).await;
    let found = eventually_async("prediction of the agent", async || {
        let found = predict().await;
        if found[0]["change"] == "unknown" { Err(found) } else { Ok(found) }
    })
    .await;
    assert_eq!(found[0]["change"], "diff");
    assert!(found[0]["diff"].as_str().expect("a diff").ends_with("-old\n+new\n"), "{found:#?}");
    assert_eq!((&found[1]["instance"], &found[1]["change"]), (&json!("same@n1"), &json!("none")));
    assert_eq!(reason(&found[2]), "`shell` cannot tell before it is done");
    assert_eq!(reason(&found[3]), "the agent of `n2` sent no message recently");
    assert!(!node.join("there").exists(), "nothing was done");
    assert_eq!(fs_err::read_to_string(node.join("page")).expect("a file"), "old\n");
    agent.end();
    site.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn action_missing_on_an_agent_is_named_before_the_run() {
    let plugins = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/plugins");
    let site = Site::start_with(|config| config.deploy.plugins = Some(plugins.into())).await;
    site.apply(&[document("Node", "n1", &json!({}))]).await;
    let text = "hoist: 1\ntasks:\n\
        \x20 first:\n    on: node:n1\n    run: {shell: \"touch there\"}\n\
        \x20 greet:\n    on: node:n1\n    requires: [first]\n    run:\n\
        \x20     - {shell: \"true\"}\n      - {motd: {path: motd, text: Hello.}}\n";
    let plan = async || site.post("/deploy/v1/plans", &tasks(text)).await.expect(200).json();
    assert_eq!(plan().await["diagnostics"], Value::Null, "nobody knows yet");
    let dir = tempfile::tempdir().expect("a directory");
    let agent = Agent::start(&site, dir.path()).await;
    let told = eventually_async("diagnostics of the plan", async || {
        Some(plan().await["diagnostics"].clone()).filter(|diagnostics| !diagnostics.is_null())
    })
    .await;
    assert_eq!(told[0]["message"], "action `motd` not found on `n1`");
    assert_eq!((&told[0]["severity"], &told[0]["code"]), (&json!("warning"), &json!("W605")));
    let problem = site.post(RUNS, &tasks(text)).await.problem(409, "conflict");
    assert!(problem.detail.contains("action `motd` not found on `n1`"), "{}", problem.detail);
    assert!(!dir.path().join("nodes/n1/there").exists(), "nothing has begun");
    agent.end();
    site.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn agent_runs_each_step_once_when_answers_are_lost() {
    let site = one_node().await;
    let dir = tempfile::tempdir().expect("a directory");
    let agent = Agent::start(&site, dir.path()).await;
    let mut vertices = Vec::new();
    for n in 0..10_u32 {
        let after: Vec<u32> = n.checked_sub(1).into_iter().collect();
        let vertex =
            step(&format!("s{n}@n1"), 1, &format!("echo said {n}; echo x >> s{n}"), &after);
        vertices.push(with(vertex, "repeat", json!("never")));
    }
    let run = start(&site, &plan(&vertices)).await;
    let ended = until(&site, &run, "ended").await;
    assert_eq!(ended["outcome"], "succeeded", "{ended:#}");
    for n in 0..10 {
        let times = fs_err::read_to_string(dir.path().join(format!("nodes/n1/s{n}")));
        assert_eq!(times.expect("it was done"), "x\n", "once");
    }
    let output = site.get(&format!("{RUNS}/{run}/output/s3@n1/1")).await.expect(200);
    assert!(output.text().contains("said 3"), "{}", output.text());
    agent.end();
    site.stop().await;
}

#[tokio::test]
async fn an_agent_gets_only_the_work_of_its_own_node() {
    let site = one_node().await;
    let scope = json!([{"verbs": ["write"], "contexts": ["agent"], "selector": "node:n1"}]);
    let token = site.token(scope).await;
    let report = json!({
        "memory": "a", "life": 1, "number": 1, "wait_ms": 0,
        "running": [], "results": [], "lost": []
    });
    let ask = async |token: &str, node: &str| {
        let path = format!("/agent/v1/nodes/{node}/work");
        site.ask_as(token, "POST", &path).json(&report).send().await
    };
    let orders = ask(&token, "n1").await.expect(200).json();
    assert_eq!(orders["jobs"], json!([]));
    ask(&token, "n2").await.problem(403, "forbidden");
    ask(&token, "n9").await.problem(403, "forbidden");
    let other = site.token(json!([{"verbs": ["write"], "contexts": ["deploy"]}])).await;
    ask(&other, "n1").await.problem(403, "forbidden");
    site.stop().await;
}

/// Kills the controller and starts it again.
async fn killed(site: Site, run: &str) -> Site {
    let (dir, config) = Box::pin(site.stop()).await;
    fs_err::remove_file(dir.path().join("journal").join(run).join("left")).expect("it was left");
    Site::start_again(dir, config).await
}

async fn begin_once(site: &Site) -> String {
    let vertex = step(
        "s@n1",
        1,
        "echo x >> s; echo x >> begun; while test -e wait; do sleep 0.05; done",
        &[],
    );
    let run = start(site, &plan(&[with(vertex, "repeat", json!("never"))])).await;
    until_instance(site, &run, "s@n1", "running").await;
    run
}

/// An agent comes, the run ends well, and its step was done one time.
async fn is_done_once(site: Site, dir: &Path, run: &str) {
    let agent = Agent::start(&site, dir).await;
    let ended = until(&site, run, "ended").await;
    assert_eq!(ended["outcome"], "succeeded", "{ended:#}");
    let times = fs_err::read_to_string(dir.join("nodes/n1/s"));
    assert_eq!(times.expect("it was done"), "x\n", "once");
    agent.end();
    site.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn unfetched_step_runs_after_a_controller_kill() {
    let site = one_node().await;
    let dir = tempfile::tempdir().expect("a directory");
    let run = begin_once(&site).await;
    let site = killed(site, &run).await;
    Box::pin(is_done_once(site, dir.path(), &run)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_handout_runs_once_after_a_controller_kill() {
    let site = one_node().await;
    let dir = tempfile::tempdir().expect("a directory");
    let run = begin_once(&site).await;
    let mut transport = Lossy { number: 1, ..lossy(&site).await };
    let setup = setup(dir.path());
    let lost = tokio::task::spawn_blocking(move || {
        Worker::new(setup).expect("a worker").exchange(&mut transport)
    });
    lost.await.expect("it comes back").expect_err("the answer is lost");
    let events = site.get(&format!("{RUNS}/{run}/events")).await.expect(200).json();
    let records = events["items"].as_array().expect("a list");
    assert!(records.iter().any(|record| record["record"] == "given"), "{events:#}");
    let site = killed(site, &run).await;
    Box::pin(is_done_once(site, dir.path(), &run)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn forgotten_step_of_an_agent_is_left_to_a_person() {
    let site = one_node().await;
    let dir = tempfile::tempdir().expect("a directory");
    let node = dir.path().join("nodes/n1");
    fs_err::create_dir_all(&node).expect("a directory");
    fs_err::write(node.join("wait"), "").expect("a file");
    let run = begin_once(&site).await;
    let agent = Agent::start(&site, dir.path()).await;
    crate::deploy::eventually("step has started", || node.join("begun").exists()).await;
    agent.end();
    // The machine is made anew, and its agent is older than the controller.
    fs_err::remove_dir_all(dir.path().join("worker")).expect("it knew something");
    drop(Worker::new(setup(dir.path())).expect("a worker"));
    let site = killed(site, &run).await;
    let agent = Agent::start(&site, dir.path()).await;
    until_instance(&site, &run, "s@n1", "unknown").await;
    let times = fs_err::read_to_string(node.join("s"));
    assert_eq!(times.expect("it was done"), "x\n", "once");
    fs_err::remove_file(node.join("wait")).expect("it is there");
    agent.end();
    site.stop().await;
}
