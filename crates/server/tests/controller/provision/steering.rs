//! Aborting and undoing, and limits of agent messages.

use serde_json::{Value, json};

use crate::provision::agent::{Agent, done};
use crate::provision::{run, script, site, start, states, until};

#[tokio::test]
async fn abort_ends_unstarted_nodes_and_notifies_working_ones() {
    let site = site(|_| {}).await;
    let id = start(&site, &json!({"selector": "*", "how": {"at_once": 2}})).await;
    let session = Agent::boot(&site, 1, 1).await.job(&site).await;
    assert_eq!(session.says(&site, 1, 1).await, "continue");
    let dry = json!({"dry_run": true});
    let path = format!("/provision/v1/runs/{id}/abort");
    assert_eq!(site.post(&path, &dry).await.expect(200).json()["nodes"], json!(["n1", "n2", "n3"]));
    assert_eq!(session.says(&site, 2, 2).await, "continue");
    site.post(&path, &json!({})).await.expect(200);
    let words: Vec<_> = states(&run(&site, &id).await).into_iter().map(|(_, s)| s).collect();
    assert_eq!(words, ["working", "aborted", "aborted"]);
    assert!(script(&site, 2).await.contains("http://k/live"), "as before");
    assert_eq!(session.says(&site, 3, 3).await, "abort");
    assert_eq!(
        session.reports(&site, &json!({"outcome": "aborted", "changed": true})).await,
        "stay"
    );
    assert!(script(&site, 1).await.contains("this node is held"));
    site.eventually(&format!("/provision/v1/runs/{id}"), |a| a.json()["state"] == "aborted").await;
    site.post("/provision/v1/runs/nothere/abort", &json!({})).await.problem(404, "not-found");
    site.stop().await;
}

#[tokio::test]
async fn cancelled_node_boots_as_before_and_keeps_its_disks() {
    let site = site(|_| {}).await;
    let id = start(&site, &json!({"selector": "node:n1,node:n2"})).await;
    let session = Agent::boot(&site, 1, 1).await.job(&site).await;
    session.reports(&site, &done()).await;
    until(&site, &id, "n1", "done").await;
    let only = json!({"boot_only": true});
    let undone = site.post(&format!("/provision/v1/runs/{id}/undo"), &only).await.expect(200);
    let undone = undone.json();
    assert!(
        undone["notes"][0]
            .as_str()
            .is_some_and(|note| note.contains("n1") && note.contains("stays"))
    );
    for n in [1, 2] {
        assert!(!script(&site, n).await.contains("hoist.token"), "{n}");
    }
    assert!(script(&site, 2).await.contains("http://k/live"));
    let state = site.get("/boot/v2/state/n1").await.expect(200).json();
    assert!(state["state"]["mode"].is_null(), "{state}");
    site.stop().await;
}

#[tokio::test]
async fn boot_of_a_node_has_one_decider() {
    let site = site(|_| {}).await;
    let id = start(&site, &json!({"selector": "node:n1"})).await;
    let hold = json!({"mode": "hold"});
    let refused = site.put("/boot/v2/state/n1", &hold).await.problem(409, "conflict");
    let told = format!("{refused:?}");
    assert!(told.contains(&id) && told.contains("hoist provision abort n1"), "{told}");
    site.put("/boot/v2/state/n2", &hold).await.expect(200);
    site.post(&format!("/provision/v1/runs/{id}/abort"), &json!({})).await.expect(200);
    site.put("/boot/v2/state/n1", &hold).await.expect(200);
    site.stop().await;
}

#[tokio::test]
async fn agent_messages_are_bounded() {
    let site = site(|_| {}).await;
    start(&site, &json!({"selector": "node:n1"})).await;
    let agent = Agent::boot(&site, 1, 1).await;
    let large = json!({"x": "y".repeat(1024 * 1024)});
    agent.ask_with(&site, &large).await.problem(413, "body-too-large");
    let kept = json!({"x": "y".repeat(800 * 1024)});
    agent.ask_with(&site, &kept).await.problem(413, "body-too-large");
    agent.ask_with(&site, &json!({"x": "y".repeat(700 * 1024)})).await.expect(200);
    let session = agent.job(&site).await;
    let event = |seq: usize| json!({"seq": seq, "at": "2026-01-02T03:04:05Z", "action": "disks", "phase": "note"});
    let events = |count: usize| json!({"events": (1..=count).map(event).collect::<Vec<Value>>()});
    let mut named = events(1);
    named["events"][0]["action"] = json!("ä".repeat(1000));
    session.send(&site, "events", &named).await.expect(200);
    let shown = site.get("/provision/v1/runs/last").await.expect(200).json();
    assert_eq!(shown["nodes"][0]["progress"]["action"], "ä".repeat(128));
    session.send(&site, "events", &events(256)).await.expect(200);
    session.send(&site, "events", &events(257)).await.problem(400, "invalid-body");
    let long = json!({"outcome": "done", "receipts": "x".repeat(512 * 1024)});
    session.send(&site, "report", &long).await.problem(413, "body-too-large");
    session
        .send(&site, "report", &json!({"outcome": "splendid"}))
        .await
        .problem(400, "invalid-body");
    site.stop().await;
}

#[tokio::test]
async fn removed_node_leaves_its_run() {
    let site = site(|_| {}).await;
    let id = start(&site, &json!({"selector": "node:n1"})).await;
    let session = Agent::boot(&site, 1, 1).await.job(&site).await;
    let node = session.job["id"].as_str().expect("an id").to_owned();
    site.delete(&format!("/inventory/v1/nodes/{node}")).await.expect(200);
    let gone = until(&site, &id, "n1", "aborted").await;
    assert_eq!(gone["note"], "the node was removed");
    let store = &site.controller.chassis().store;
    let facts = format!("provision/facts/{node}").parse().expect("a key");
    assert!(store.get(&facts).await.expect("the store").is_none());
    site.stop().await;
}

#[tokio::test]
async fn retired_node_is_erased_and_failed_erasure_is_held() {
    let site = site(|_| {}).await;
    let how = json!({"retire": true});
    let id = start(&site, &json!({"selector": "node:n1,node:n2", "how": how})).await;
    let session = Agent::boot(&site, 1, 1).await.job(&site).await;
    let sections = &session.job["document"]["sections"];
    assert_eq!(sections["erase"], json!({"disks": ["os"]}));
    assert!(sections.get("images").is_none());
    let erasure = json!({
        "disk": "os", "kernel_name": "nvme0n1", "serial": "S1", "size": 1 << 30,
        "method": "sanitize_crypto", "verdict": "erased", "started": "2026-01-02T03:04:05Z",
        "ended": "2026-01-02T03:04:06Z", "samples": 64, "sample": 65536, "held": 9,
        "says": "sanitize status 0x0101",
    });
    let report = json!({"outcome": "done", "changed": true, "erased": [erasure]});
    assert_eq!(session.reports(&site, &report).await, "power_off");
    let shown = until(&site, &id, "n1", "done").await;
    assert_eq!(shown["erased"], json!([erasure]), "what was erased and how is kept");
    let query = format!("/boot/v1/bootscript?mac={}", crate::provision::mac(1));
    site.ask_as_nobody("GET", &query).send().await.expect(404);
    let again = json!({"selector": "node:n1"});
    site.post("/provision/v1/runs", &again).await.problem(409, "conflict");

    let session = Agent::boot(&site, 2, 2).await.job(&site).await;
    assert_eq!(session.reports(&site, &crate::provision::agent::failed("failed")).await, "stay");
    until(&site, &id, "n2", "failed").await;
    assert!(script(&site, 2).await.contains("this node is held"));
    site.stop().await;
}

#[tokio::test]
async fn node_without_an_erasure_report_is_not_retired() {
    let site = site(|_| {}).await;
    let id = start(&site, &json!({"selector": "node:n1", "how": {"retire": true}})).await;
    let session = Agent::boot(&site, 1, 1).await.job(&site).await;
    let report = json!({"outcome": "done", "changed": true});
    assert_eq!(session.reports(&site, &report).await, "stay");
    let shown = until(&site, &id, "n1", "failed").await;
    assert_eq!(shown["problems"][0]["code"], "not-erased");
    assert_eq!(shown["problems"][0]["evidence"], json!(["os"]));
    assert!(script(&site, 1).await.contains("this node is held"));
    site.stop().await;
}
