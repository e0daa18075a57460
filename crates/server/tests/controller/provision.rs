//! Runs of provisioning: a whole controller, and agents played by the tests over TLS.

mod agent;
mod erasing;
mod journey;
mod plugins;
mod previous;
mod profiles;
mod rolling;
mod root;
mod secrets;
mod steering;
mod stuck;
mod undo;

use crate::site::{Answer, Site, document, mac};
use hoist_server::controller::Config;
use serde_json::{Value, json};

/// What stands for the content of every artifact.
const DIGEST: &str = "abababababababababababababababababababababababababababababababab";

/// `n1` to `n3` at 10.0.0.1 to 10.0.0.3, which boot `http://k/live`; a profile `base` for all of
/// them, and the agent.
async fn site(change: impl FnOnce(&mut Config)) -> Site {
    let site = Site::start_with(|config| {
        config.proxies = ["127.0.0.1/32".parse().expect("a network")].into_iter().collect();
        config.tls_listen = Some(([127, 0, 0, 1], 0).into());
        change(config);
    })
    .await;
    let nodes = (1..=3).map(|n| document("Node", &format!("n{n}"), &spec(n)));
    let mut documents: Vec<Value> = nodes.collect();
    for name in ["agent-x86_64-kernel", "agent-x86_64-initrd", "os-root"] {
        documents.push(document("Artifact", name, &json!({"sha256": DIGEST, "size": 1})));
    }
    documents.push(document(
        "BootConfig",
        "live",
        &json!({"selector": "*", "kernel": "http://k/live"}),
    ));
    documents.push(document(
        "ProvisionProfile",
        "base",
        &json!({"selector": "*", "document": disk()}),
    ));
    site.apply(&documents).await;
    site
}

fn spec(n: u32) -> Value {
    let address = format!("10.0.0.{n}/8");
    json!({"interfaces": [{"name": "eth0", "mac": mac(n), "addresses": [address]}]})
}

/// A disk with a root on it.
fn disk() -> Value {
    json!({
        "disks": {"os": {"match": {"serial": "A1"}}},
        "storage": [
            {"part": {"id": "root", "on": "os", "size": "rest"}},
            {"fs": {"id": "root-fs", "on": "root", "kind": "ext4", "mount": "/"}},
        ],
        "images": {"root": {"sources": ["artifact:os-root"], "target": "root-fs"}},
    })
}

/// Another profile for one node.
async fn profile(site: &Site, name: &str, selector: &str, more: Value) {
    let mut spec = json!({"selector": selector, "document": disk()});
    merge(&mut spec, more);
    site.apply(&[document("ProvisionProfile", name, &spec)]).await;
}

fn merge(into: &mut Value, from: Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (key, value) in from {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (into, from) => *into = from,
    }
}

/// Starts a run, and gives its name.
async fn start(site: &Site, body: &Value) -> String {
    let started = site.post("/provision/v1/runs", body).await.expect(200).json();
    started["run"].as_str().expect("a run").to_owned()
}

/// The run as it is shown.
async fn run(site: &Site, run: &str) -> Value {
    site.get(&format!("/provision/v1/runs/{run}")).await.expect(200).json()
}

/// The states of its nodes, by name.
fn states(run: &Value) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().expect("a text").to_owned();
    let nodes = run["nodes"].as_array().expect("nodes").iter();
    nodes.map(|node| (text(&node["node"]), text(&node["state"]))).collect()
}

/// Waits until a node of a run is in a state, and gives the node.
async fn until(site: &Site, run: &str, node: &str, state: &str) -> Value {
    let of = |answer: &Answer| {
        let run = answer.json();
        let nodes = run["nodes"].as_array().cloned().unwrap_or_default();
        nodes.into_iter().find(|found| found["node"] == node)
    };
    let path = format!("/provision/v1/runs/{run}");
    let answer =
        site.eventually(&path, |answer| of(answer).is_some_and(|n| n["state"] == state)).await;
    of(&answer).expect("it was there")
}

/// As the `n`th node asks for it.
async fn script(site: &Site, n: u32) -> String {
    script_from(site, n, &format!("10.0.0.{n}")).await
}

/// The boot script for a client at that address.
async fn script_from(site: &Site, n: u32, address: &str) -> String {
    let query = format!("/boot/v1/bootscript?mac={}", mac(n));
    let ask = site.ask_as_nobody("GET", &query).header("x-forwarded-for", address);
    ask.send().await.expect(200).text()
}
