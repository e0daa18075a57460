//! Secrets in provisioning jobs: their receivers, and the records about them.

use serde_json::{Value, json};

use crate::provision::agent::Agent;
use crate::provision::{profile, site, spec, start, until};
use crate::site::{Site, document, mac};

/// `n4` has no address of its own, and a profile with a secret; `n1` has the same profile.
async fn secret_site() -> Site {
    let site = site(|_| {}).await;
    fs_err::create_dir_all(site.data_dir().join("secrets")).expect("a directory");
    for name in ["root", "disk"] {
        let path = site.data_dir().join("secrets").join(name);
        fs_err::write(path, format!("hunter2-{name}\n")).expect("a secret");
    }
    let interface = json!({"interfaces": [{"name": "eth0", "mac": mac(4)}]});
    let layer = json!({"selector": "*", "user_data": {"password": {"secret": {"file": "root"}}}});
    site.apply(&[document("Node", "n4", &interface), document("MetadataLayer", "all", &layer)])
        .await;
    let more = json!({"document": {
        "config_drive": {},
        "files": [{"on": "root-fs", "path": "/etc/key", "content": {"secret": "secret://disk"}}],
    }});
    profile(&site, "drive", "node:n1,node:n4", more).await;
    site
}

/// The events of provisioning after `since`, once there is one of this kind.
async fn told_until(site: &Site, since: &str, kind: &str) -> Vec<Value> {
    let path = format!("/events/v1?kind=provision&since={since}");
    let mut stream = site.ask("GET", &path).open().await;
    let mut text = String::new();
    loop {
        let data = text.lines().filter_map(|line| line.strip_prefix("data:"));
        let told: Vec<Value> = data.filter_map(|data| serde_json::from_str(data).ok()).collect();
        if told.iter().any(|event| event["kind"] == kind) {
            return told;
        }
        let more = stream.chunk().await.expect("the stream goes on").expect("it has no end");
        text.push_str(std::str::from_utf8(&more).expect("text"));
    }
}

fn of_kind<'t>(told: &'t [Value], kind: &str) -> Vec<&'t Value> {
    told.iter().filter(|event| event["kind"] == kind).map(|event| &event["data"]).collect()
}

/// Entries of the audit log about secrets.
async fn released(site: &Site) -> Vec<Value> {
    let entries = site.audit().await;
    let released = entries.iter().filter(|entry| entry.object.contains(": secrets "));
    released.map(|entry| serde_json::to_value(entry).expect("plain")).collect()
}

#[tokio::test]
async fn node_without_address_gets_secrets_only_if_the_run_says_so() {
    let site = secret_site().await;
    let body = json!({"selector": "node:n1,node:n4"});
    for dry_run in [true, false] {
        let mut body = body.clone();
        body["dry_run"] = dry_run.into();
        let problem = site.post("/provision/v1/runs", &body).await.problem(409, "no-address");
        assert_eq!(problem.errors.len(), 1, "n1 has one: {problem:?}");
        assert_eq!(problem.errors[0].at, "Node n4");
        assert!(problem.errors[0].message.contains("disk, of layer all"), "{problem:?}");
        assert!(problem.remedy.is_some_and(|it| it.contains("--secrets-without-address")));
    }
    // Without a secret no consent is needed.
    let plain = json!({"selector": "node:n4", "profile": "base", "dry_run": true});
    site.post("/provision/v1/runs", &plain).await.expect(200);

    let how = json!({"secrets_without_address": true});
    let id = start(&site, &json!({"selector": "node:n4", "how": how})).await;
    let agent = Agent::boot_at(&site, 4, 1, "192.0.2.4").await;
    let job = agent.job(&site).await.job;
    assert_eq!(job["secrets"], json!({"disk": "hunter2-disk"}));
    let run = crate::provision::run(&site, &id).await;
    assert_eq!(run["how"], how, "it is kept with the run");
    assert_eq!(run["nodes"][0]["claimed"]["from"], "192.0.2.4");
    assert_eq!(released(&site).await[0]["from"], "192.0.2.4");
    site.stop().await;
}

#[tokio::test]
async fn anonymous_reader_of_a_boot_script_gets_no_secrets() {
    let site = secret_site().await;
    let since = site.controller.chassis().events.last_id();
    let how = json!({"secrets_without_address": true});
    let id = start(&site, &json!({"selector": "node:n4", "how": how})).await;
    let node = Agent::boot_at(&site, 4, 1, "192.0.2.4").await;
    // A client that reads the script after the node has its token, and is refused, before and after
    // the node has shown its key; so is the address of another node.
    let thief = Agent::boot_at(&site, 4, 2, "192.0.2.66").await;
    for _ in 0..2 {
        for thief in [&thief, &Agent::boot_at(&site, 4, 3, "10.0.0.2").await] {
            thief.ask(&site).await.problem(403, "forbidden");
            thief.documents(&site).await.problem(403, "forbidden");
        }
        node.job(&site).await;
    }
    let told = told_until(&site, &since, "provision.secrets").await;
    let second = of_kind(&told, "provision.second-address");
    let from: Vec<_> = second.iter().map(|event| &event["from"]).collect();
    assert_eq!(from, ["192.0.2.66", "10.0.0.2"], "each is told once: {told:?}");
    assert_eq!(second[0]["bound"], "192.0.2.4");
    let shown = until(&site, &id, "n4", "working").await;
    assert_eq!(shown["elsewhere"], json!(["192.0.2.66", "10.0.0.2"]));
    assert_eq!(shown["quarantined"], Value::Null, "a thief is no candidate");
    assert!(released(&site).await.iter().all(|entry| entry["from"] == "192.0.2.4"));
    // The binding survives a restart.
    let site = site.restart().await;
    thief.ask(&site).await.problem(403, "forbidden");
    node.job(&site).await;
    site.stop().await;
}

#[tokio::test]
async fn job_is_refused_when_the_node_has_lost_its_address() {
    let site = secret_site().await;
    let id = start(&site, &json!({"selector": "node:n1"})).await;
    let agent = Agent::boot(&site, 1, 1).await;
    let mut without = spec(1);
    without["interfaces"][0].as_object_mut().expect("an interface").remove("addresses");
    site.apply(&[document("Node", "n1", &without)]).await;
    // With the token of a run, documents are as secret as a job.
    agent.documents(&site).await.problem(403, "forbidden");
    let problem = agent.ask(&site).await.problem(409, "conflict");
    assert!(problem.detail.contains("no address of its own"), "{problem:?}");
    let node = until(&site, &id, "n1", "failed").await;
    assert_eq!(node["problems"][0]["code"], "no-address");
    assert!(node["problems"][0]["hint"].as_str().is_some_and(|it| it.contains("hoist node set")));
    assert!(released(&site).await.is_empty());
    site.stop().await;
}

#[tokio::test]
async fn secrets_of_a_job_are_audited_reported_and_counted() {
    let site = secret_site().await;
    let since = site.controller.chassis().events.last_id();
    let metric = async || {
        let metrics = site.get("/metrics").await.expect(200).text();
        let line = "hoist_secrets_total{outcome=\"given\"}";
        let found = metrics.lines().find_map(|at| at.strip_prefix(line)).unwrap_or(" 0");
        found.trim().parse::<f64>().expect("a number")
    };
    let before = metric().await;
    start(&site, &json!({"selector": "node:n1,node:n2"})).await;
    let agent = Agent::boot(&site, 1, 1).await;
    agent.job(&site).await;
    Agent::boot(&site, 2, 2).await.job(&site).await;
    let entries = released(&site).await;
    assert_eq!(entries.len(), 1, "n2 got none: {entries:?}");
    assert_eq!(entries[0]["who"], format!("node/n1 with key {}", agent.fingerprint()));
    assert_eq!(entries[0]["from"], "10.0.0.1");
    assert_eq!(entries[0]["object"], "node/n1: secrets root, disk (layers all)");
    let told = told_until(&site, &since, "provision.secrets").await;
    let event = of_kind(&told, "provision.secrets")[0];
    assert_eq!(event["key"], agent.fingerprint());
    assert_eq!((&event["from"], &event["secrets"]), (&json!("10.0.0.1"), &json!(["root", "disk"])));
    assert!(metric().await >= before + 1.0);
    let all = serde_json::to_string(&(told, site.audit().await)).expect("plain");
    assert!(!all.contains("hunter2"));
    site.stop().await;
}
