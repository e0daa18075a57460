//! Where the root of a node was, and that it does not go elsewhere unnoticed.

use serde_json::{Value, json};

use crate::provision::agent::{Agent, done};
use crate::provision::{profile, site, start, until};
use crate::site::Site;

fn on(disks: &Value) -> Value {
    let mut report = done();
    report["root"] = disks.clone();
    report
}

/// Runs `n1` to its end with its root on these disks, and returns the sections of its job.
async fn installed(site: &Site, seed: u8, body: &Value, disks: &Value) -> (String, Value) {
    let id = start(site, body).await;
    let session = Agent::boot(site, 1, seed).await.job(site).await;
    session.reports(site, &on(disks)).await;
    until(site, &id, "n1", "done").await;
    (id, session.job["document"]["sections"].clone())
}

#[tokio::test]
async fn previous_root_is_sent_with_the_job_and_undone_with_it() {
    let site = site(|_| {}).await;
    let again = json!({"selector": "node:n1", "reinstall": true});
    let a = json!([{"wwn": "0x5000c500aaaa0001"}]);
    let both = json!([{"eui": "0025"}, {"serial": "B", "model": "M"}]);
    let (_, told) = installed(&site, 1, &again, &a).await;
    assert_eq!(told["node"]["last_root"], Value::Null);
    assert_eq!(told["node"]["generation"], 0);
    assert_eq!(told["policy"], Value::Null);
    let site = site.restart().await;
    profile(&site, "base", "*", json!({"document": {"boot": {"kernel_args": ["quiet"]}}})).await;
    let moving = json!({
        "selector": "node:n1", "reinstall": true, "how": {"allow_root_change": true},
    });
    let (id, told) = installed(&site, 2, &moving, &both).await;
    assert_eq!(told["node"]["last_root"], a[0]);
    assert_eq!(told["policy"], json!({"allow_root_change": true}));
    let shown = site.get(&format!("/provision/v1/runs/{id}")).await.expect(200).json();
    assert_eq!(shown["how"], json!({"allow_root_change": true}));

    // Of one run the permission is good for, and of no other.
    let next = start(&site, &again).await;
    let session = Agent::boot(&site, 1, 3).await.job(&site).await;
    let told = &session.job["document"]["sections"];
    assert_eq!((&told["node"]["last_root"], &told["policy"]), (&both, &Value::Null));
    session.reports(&site, &crate::provision::agent::failed("refused")).await;
    until(&site, &next, "n1", "failed").await;

    // Put back, it is where it was before.
    let (id, _) = installed(&site, 4, &moving, &json!([{"serial": "C"}])).await;
    site.post(&format!("/provision/v1/runs/{id}/undo"), &json!({})).await.expect(200);
    let session = Agent::boot(&site, 1, 5).await.job(&site).await;
    let told = &session.job["document"]["sections"]["node"];
    assert_eq!((&told["last_root"], told["id"].is_string()), (&Value::Null, true));
    session.reports(&site, &done()).await;
    until(&site, &id, "n1", "undone").await;
    start(&site, &again).await;
    let session = Agent::boot(&site, 1, 6).await.job(&site).await;
    let node = &session.job["document"]["sections"]["node"];
    assert_eq!(node["last_root"], both, "also where the same was installed again");
    site.stop().await;
}

#[tokio::test]
async fn erased_node_has_no_root_and_silence_is_not_recorded() {
    let site = site(|_| {}).await;
    let long = "x".repeat(300);
    let disks = json!([
        {"serial": "A"}, {"model": "M"}, {"wwn": ""}, {"serial": long}, {"eui": "a\u{7}"},
    ]);
    installed(&site, 1, &json!({"selector": "node:n1"}), &disks).await;
    let id = start(&site, &json!({"selector": "node:n1", "how": {"retire": true}})).await;
    let session = Agent::boot(&site, 1, 2).await.job(&site).await;
    assert_eq!(session.job["document"]["sections"]["node"]["last_root"], Value::Null);
    session.reports(&site, &crate::provision::agent::failed("refused")).await;
    until(&site, &id, "n1", "failed").await;
    // Without an erasure its root stays recorded.
    let store = &site.controller.chassis().store;
    let node = session.job["id"].as_str().expect("an id");
    let key = format!("provision/installed/{node}").parse().expect("a key");
    let kept = store.get(&key).await.expect("the store").expect("it is installed");
    let kept: Value = serde_json::from_slice(&kept.value).expect("JSON");
    assert_eq!(kept["now"]["root"], json!([{"serial": "A"}]));
    site.stop().await;
}

#[tokio::test]
async fn generation_is_fixed_for_all_attempts_of_a_run() {
    let site = site(|_| {}).await;
    let id = start(&site, &json!({"selector": "node:n1"})).await;
    let session = Agent::boot(&site, 1, 1).await.job(&site).await;
    session.reports(&site, &crate::provision::agent::failed("failed")).await;
    until(&site, &id, "n1", "failed").await;
    let node = session.job["id"].clone();
    site.post("/inventory/v1/renew", &json!({"nodes": [node]})).await.expect(200);
    site.post(&format!("/provision/v1/runs/{id}/retry"), &json!({})).await.expect(200);
    let session = Agent::boot(&site, 1, 2).await.job(&site).await;
    assert_eq!(session.job["generation"], 1);
    assert_eq!(session.job["document"]["sections"]["node"]["generation"], 0);
    session.reports(&site, &done()).await;
    until(&site, &id, "n1", "done").await;
    start(&site, &json!({"selector": "node:n1", "reinstall": true})).await;
    let session = Agent::boot(&site, 1, 3).await.job(&site).await;
    assert_eq!(session.job["document"]["sections"]["node"]["generation"], 1);
    site.stop().await;
}
