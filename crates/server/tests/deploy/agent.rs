//! Nodes whose agent comes for its work, here with a worker in this process.

use std::sync::Arc;

use hoist_api::client::{Access, Client};
use hoist_deploy::actions;
use hoist_engine::action::Cancel;
use hoist_engine::execute::{NoSecrets, Place};
use hoist_engine::pull::{Orders, Report, Transport, Unreachable, Worker, WorkerSetup};
use serde_json::json;

use crate::site::Site;
use crate::{RUNS, document, mac, plan, start, step, until, with};

/// The controller, over HTTP; every second answer is lost on the way.
struct Lossy {
    client: Client,
    runtime: tokio::runtime::Handle,
    number: u32,
}

impl Transport for Lossy {
    fn exchange(&mut self, report: &Report) -> Result<Orders, Unreachable> {
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

#[tokio::test(flavor = "multi_thread")]
async fn the_agent_of_a_node_does_its_work_once_although_answers_are_lost() {
    let site = one_node().await;
    let scope = json!([{"verbs": ["write"], "contexts": ["agent"], "selector": "node:n1"}]);
    let token = site.token(scope).await;
    let dir = tempfile::tempdir().expect("a directory");
    let setup = WorkerSetup {
        catalog: actions::catalog(),
        secrets: Arc::new(NoSecrets),
        place: Place::Below(dir.path().join("nodes")),
        dir: dir.path().join("worker"),
    };
    let base = site.url("").parse().expect("an address");
    let access = Access { token: Some(token.into()), authorities: None };
    let client = Client::new(base, access).expect("a client");
    let mut lossy = Lossy { client, runtime: tokio::runtime::Handle::current(), number: 0 };
    let done = Cancel::default();
    let until_done = done.clone();
    let working = std::thread::spawn(move || {
        let mut worker = Worker::new(setup).expect("a worker");
        worker.work(&mut lossy, &until_done);
    });
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
    done.cancel();
    working.join().expect("the worker ends");
    site.stop().await;
}

#[tokio::test]
async fn an_agent_gets_only_the_work_of_its_own_node() {
    let site = one_node().await;
    let scope = json!([{"verbs": ["write"], "contexts": ["agent"], "selector": "node:n1"}]);
    let token = site.token(scope).await;
    let report = json!({
        "memory": "a", "life": 1, "number": 1, "remembers_ms": 0, "wait_ms": 0,
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
