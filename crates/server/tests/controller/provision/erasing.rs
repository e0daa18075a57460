//! Records of erased disks, and the retirement of nodes.

use serde_json::{Value, json};

use crate::provision::agent::{Agent, done, failed};
use crate::provision::{profile, script, site, start, until};
use crate::site::{Site, document};

fn erasure(disk: &str, method: &str, samples: u64) -> Value {
    json!({
        "disk": disk, "kernel_name": "nvme0n1", "size": 1 << 30, "method": method,
        "verdict": "erased", "started": "2026-01-02T03:04:05Z", "ended": "2026-01-02T03:04:06Z",
        "samples": samples, "sample": 65536,
    })
}

/// A report with what became of disks.
fn with(mut report: Value, erased: &Value, changed: bool) -> Value {
    (report["erased"], report["changed"]) = (erased.clone(), json!(changed));
    report
}

async fn by_signatures(site: &Site) {
    let sections = json!({
        "disks": {"os": {"match": {"serial": "A1"}}},
        "erase": {"disks": ["os"], "method": "signatures"},
    });
    let spec = json!({"selector": "*", "document": sections});
    site.apply(&[document("ProvisionProfile", "base", &spec)]).await;
}

#[tokio::test]
async fn retirement_refuses_methods_that_leave_data_readable() {
    let site = site(|_| {}).await;
    let retire = json!({"selector": "node:n1", "how": {"retire": true}});
    let id = start(&site, &retire).await;
    by_signatures(&site).await;
    // The profile has become another one since.
    Agent::boot(&site, 1, 1).await.ask(&site).await.problem(409, "conflict");
    let shown = until(&site, &id, "n1", "failed").await;
    assert_eq!(shown["problems"][0]["at"], "document.erase.method");

    let problem = site.post("/provision/v1/runs", &retire).await.problem(400, "invalid-body");
    let told = format!("{:?}", problem.errors);
    assert!(told.contains("signatures") && told.contains("strongest"), "{told}");
    // Where a node is not retired it is a method like others.
    start(&site, &json!({"selector": "node:n2"})).await;
    site.stop().await;
}

#[tokio::test]
async fn disk_without_read_back_evidence_does_not_count_as_erased() {
    let site = site(|_| {}).await;
    for (n, wrong) in [(1, erasure("os", "signatures", 64)), (2, erasure("os", "overwrite", 0))] {
        let selector = format!("node:n{n}");
        let id = start(&site, &json!({"selector": selector, "how": {"retire": true}})).await;
        let session = Agent::boot(&site, n, 1).await.job(&site).await;
        assert_eq!(session.reports(&site, &with(done(), &json!([wrong]), true)).await, "stay");
        let shown = until(&site, &id, &format!("n{n}"), "failed").await;
        assert_eq!(shown["problems"][0]["code"], "not-erased");
    }
    site.stop().await;
}

#[tokio::test]
async fn erasure_evidence_outlives_its_attempt() {
    let site = site(|_| {}).await;
    for (n, again, then) in [(1, "retry", "retry"), (2, "reboot", "reboot")] {
        let name = format!("n{n}");
        let more = json!({"document": {"flow": {"on_failure": again}}});
        profile(&site, &name, &format!("node:{name}"), more).await;
        let id = start(&site, &json!({"selector": format!("node:{name}")})).await;
        let agent = Agent::boot(&site, n, 1).await;
        let session = agent.job(&site).await;
        let [a, b] = [erasure("a", "overwrite", 64), erasure("b", "overwrite", 64)];
        let report = with(failed("failed"), &json!([a, b]), true);
        assert_eq!(session.reports(&site, &report).await, then);
        let agent = if again == "reboot" { Agent::boot(&site, n, 2).await } else { agent };
        let session = agent.job(&site).await;
        // Finished disks are not erased again, except for one.
        let newer = erasure("b", "block", 64);
        let report = with(done(), &json!([newer]), false);
        assert_eq!(session.reports(&site, &report).await, "reboot");
        let shown = until(&site, &id, &name, "done").await;
        assert_eq!(shown["erased"], json!([newer, a]));
        assert_eq!(shown["changed"], true, "the attempt before has written");
    }
    site.stop().await;
}

#[tokio::test]
async fn node_retires_on_the_evidence_of_all_attempts_of_its_run() {
    let site = site(|_| {}).await;
    let id = start(&site, &json!({"selector": "node:n1", "how": {"retire": true}})).await;
    let session = Agent::boot(&site, 1, 1).await.job(&site).await;
    let proof = json!([erasure("os", "overwrite", 64)]);
    assert_eq!(session.reports(&site, &with(failed("failed"), &proof, true)).await, "stay");
    site.post(&format!("/provision/v1/runs/{id}/retry"), &json!({})).await.expect(200);
    let session = Agent::boot(&site, 1, 2).await.job(&site).await;
    assert_eq!(session.reports(&site, &with(done(), &json!([]), false)).await, "power_off");
    assert_eq!(until(&site, &id, "n1", "done").await["erased"], proof);
    site.stop().await;
}

#[tokio::test]
async fn unretired_node_keeps_its_installation_record() {
    let site = site(|_| {}).await;
    start(&site, &json!({"selector": "node:n1"})).await;
    let session = Agent::boot(&site, 1, 1).await.job(&site).await;
    assert_eq!(session.reports(&site, &done()).await, "reboot");
    let node = session.job["id"].as_str().expect("an id");
    let key = format!("provision/installed/{node}").parse().expect("a key");
    let store = &site.controller.chassis().store;
    assert!(store.get(&key).await.expect("the store").is_some());

    let id = start(&site, &json!({"selector": "node:n1", "how": {"retire": true}})).await;
    let session = Agent::boot(&site, 1, 2).await.job(&site).await;
    assert_eq!(session.reports(&site, &done()).await, "stay");
    until(&site, &id, "n1", "failed").await;
    assert!(script(&site, 1).await.contains("this node is held"));
    assert!(store.get(&key).await.expect("the store").is_some(), "nothing says that it is gone");

    site.post(&format!("/provision/v1/runs/{id}/retry"), &json!({})).await.expect(200);
    let session = Agent::boot(&site, 1, 3).await.job(&site).await;
    let proof = json!([erasure("os", "overwrite", 64)]);
    assert_eq!(session.reports(&site, &with(done(), &proof, true)).await, "power_off");
    assert!(store.get(&key).await.expect("the store").is_none());
    site.stop().await;
}

#[tokio::test]
async fn node_with_failed_erasure_stays_reserved() {
    let site = site(|_| {}).await;
    let retire = json!({"selector": "node:n1", "how": {"retire": true}});
    let id = start(&site, &retire).await;
    let session = Agent::boot(&site, 1, 1).await.job(&site).await;
    session.reports(&site, &failed("failed")).await;
    until(&site, &id, "n1", "failed").await;
    let undone = site.post(&format!("/provision/v1/runs/{id}/undo"), &json!({})).await.expect(200);
    assert_eq!(undone.json()["nodes"], json!([]));
    // No boot mode may be set either; only the hold may be repeated.
    for mode in ["live", "install", "disk", "none"] {
        let problem =
            site.put("/boot/v2/state/n1", &json!({"mode": mode})).await.problem(409, "protected");
        let told = format!("{:?}", problem.errors);
        assert!(told.contains(&id) && told.contains("hoist provision retry n1"), "{told}");
    }
    site.put("/boot/v2/state/n1", &json!({"once": "live"})).await.problem(409, "protected");
    let all = site.put("/boot/v2/states?selector=*&affects=3", &json!({"mode": "live"})).await;
    all.problem(409, "protected");
    let held = json!({"mode": "hold", "reason": "its disk is broken"});
    site.put("/boot/v2/state/n1", &held).await.expect(200);
    site.put("/boot/v2/state/n2", &json!({"mode": "live"})).await.expect(200);
    assert!(script(&site, 1).await.contains("this node is held"));
    let site = site.restart().await;
    for more in [json!({}), json!({"reinstall": true}), json!({"previous": true})] {
        let mut body = json!({"selector": "*"});
        crate::provision::merge(&mut body, more);
        let problem = site.post("/provision/v1/runs", &body).await.problem(409, "protected");
        let told = format!("{:?}", problem.errors);
        assert!(told.contains("Node n1") && told.contains("hoist provision retry"), "{told}");
    }
    start(&site, &retire).await;
    site.stop().await;
}
