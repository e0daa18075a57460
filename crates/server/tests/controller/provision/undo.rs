//! Disks that are restored to their state before a run.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hoist_provision::backup::{Backup, BackupOrigin, pack};
use hoist_store::Prefix;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::provision::agent::{Agent, Session, done, failed};
use crate::provision::{profile, run, script, site, spec, start, until};
use crate::site::Site;

const MIB: usize = 1 << 20;
/// Values that a copy of noise is kept in.
const PARTS: usize = 6;

/// The backup of a disk of 64 MiB, as an agent sends it.
fn backup(disk: &str, content: u8, destroys: &[&str]) -> Value {
    let before = BackupOrigin {
        txn: Uuid::from_u128(7),
        writable: std::iter::once(0..64 << 20).collect(),
        destroys: destroys.iter().map(|what| (*what).to_owned()).collect(),
        journal: None,
    };
    let ends = Backup { head: vec![content; MIB], tail: vec![content; MIB] };
    let packed = pack(&before, &ends).expect("packed");
    json!({
        "disk": disk, "kernel_name": "nvme0n1", "size": 64 << 20, "sector": 512,
        "packed": STANDARD.encode(packed),
    })
}

/// The same of a disk that cannot be packed.
pub(crate) fn noise(disk: &str) -> Value {
    let mut state = 1_u64;
    let bytes: Vec<u8> = std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    })
    .take(2 * MIB / 8)
    .flatten()
    .collect();
    let mut noise = backup(disk, 0, &[]);
    let writable = Vec::new();
    let destroys = Vec::new();
    let before = BackupOrigin { txn: Uuid::from_u128(7), writable, destroys, journal: None };
    let ends = Backup { head: bytes[..MIB].to_vec(), tail: bytes[MIB..].to_vec() };
    noise["packed"] = json!(STANDARD.encode(pack(&before, &ends).expect("packed")));
    noise
}

/// `n1` is installed, and it is known what its disk held.
async fn installed(site: &Site) -> (String, Session) {
    let id = start(site, &json!({"selector": "node:n1"})).await;
    let session = Agent::boot(site, 1, 1).await.job(site).await;
    let kept = session.send(site, "backup", &backup("os", 1, &["an ext file system"])).await;
    assert!(kept.expect(200).json()["bytes"].as_u64().is_some_and(|bytes| bytes > 100));
    assert_eq!(session.reports(site, &done()).await, "reboot");
    until(site, &id, "n1", "done").await;
    (id, session)
}

async fn undo(site: &Site, id: &str, more: Value) -> Value {
    site.post(&format!("/provision/v1/runs/{id}/undo"), &more).await.expect(200).json()
}

#[tokio::test]
async fn agent_restores_disks_and_the_node_boots_as_before() {
    let site = site(|_| {}).await;
    let (id, first) = installed(&site).await;
    let dry = undo(&site, &id, json!({"dry_run": true})).await;
    let notes = dry["notes"].to_string();
    assert!(notes.contains("disk os (nvme0n1) held an ext file system"), "{notes}");
    assert!(notes.contains("the agent refuses"), "{notes}");
    assert!(script(&site, 1).await.contains("sanboot"), "nothing happened yet");

    // The profile is another one by now, which does not matter.
    let other =
        json!({"selector": "*", "document": {"disks": {"other": {"match": {"serial": "B"}}}}});
    site.apply(&[crate::provision::document("ProvisionProfile", "base", &other)]).await;
    assert_eq!(undo(&site, &id, json!({})).await["nodes"], json!(["n1"]));
    let node = run(&site, &id).await["nodes"][0].clone();
    assert_eq!((&node["state"], &node["undo"]), (&json!("pending"), &json!(true)));
    assert!(undo(&site, &id, json!({})).await["nodes"].as_array().is_some_and(Vec::is_empty));

    let session = Agent::boot(&site, 1, 2).await.job(&site).await;
    let job = &session.job;
    assert_eq!(job["undo"], json!([backup("os", 1, &["an ext file system"])]));
    assert_eq!(job["document"]["txn"], first.job["document"]["txn"]);
    let sections = &job["document"]["sections"];
    assert_eq!(sections["disks"]["os"]["match"]["serial"], "A1");
    assert_eq!(sections["flow"]["actions"], json!(["undo"]), "others than this agent refuse it");
    assert!(sections.get("images").is_none());
    session.send(&site, "backup", &backup("os", 2, &[])).await.problem(409, "conflict");
    assert_eq!(session.reports(&site, &done()).await, "reboot");
    until(&site, &id, "n1", "undone").await;
    assert!(script(&site, 1).await.contains("http://k/live"), "as before");
    let state = site.get("/boot/v2/state/n1").await.expect(200).json();
    assert!(state["state"]["installed"].is_null(), "{state}");
    let node = job["id"].as_str().expect("an id");
    let store = &site.controller.chassis().store;
    let key = format!("provision/backup/{node}").parse().expect("a key");
    assert!(store.get(&key).await.expect("the store").is_none(), "there is nothing to go back to");
    site.stop().await;
}

#[tokio::test]
async fn refused_undo_changes_nothing_and_failed_undo_can_be_retried() {
    let site = site(|_| {}).await;
    let (id, _) = installed(&site).await;
    undo(&site, &id, json!({"nodes": ["n1"]})).await;
    let session = Agent::boot(&site, 1, 2).await.job(&site).await;
    assert_eq!(session.reports(&site, &failed("refused")).await, "reboot");
    let node = until(&site, &id, "n1", "done").await;
    assert_eq!(node["problems"][0]["code"], "foreign-data");
    assert!(node["note"].as_str().is_some_and(|note| note.contains("refused")));
    assert!(script(&site, 1).await.contains("sanboot"), "it still has its system");

    undo(&site, &id, json!({"nodes": ["n1"]})).await;
    let session = Agent::boot(&site, 1, 3).await.job(&site).await;
    assert_eq!(session.reports(&site, &failed("failed")).await, "stay");
    until(&site, &id, "n1", "failed").await;
    assert!(script(&site, 1).await.contains("this node is held"));
    site.post(&format!("/provision/v1/runs/{id}/retry"), &json!({})).await.expect(200);
    let session = Agent::boot(&site, 1, 4).await.job(&site).await;
    assert!(session.job["undo"].is_array(), "what failed is tried again, and nothing else");
    site.stop().await;
}

#[tokio::test]
async fn working_agent_stops_and_restores_what_it_has_written() {
    let site = site(|_| {}).await;
    let id = start(&site, &json!({"selector": "node:n1"})).await;
    let agent = Agent::boot(&site, 1, 1).await;
    let session = agent.job(&site).await;
    session.send(&site, "backup", &backup("os", 1, &[])).await.expect(200);
    undo(&site, &id, json!({"nodes": ["n1"]})).await;
    assert_eq!(session.says(&site, 1, 1).await, "abort");
    let report = json!({"outcome": "aborted", "changed": true});
    assert_eq!(session.reports(&site, &report).await, "retry");
    let session = agent.job(&site).await;
    assert_eq!(session.job["undo"][0]["disk"], "os");
    assert_eq!(session.says(&site, 1, 1).await, "continue");
    assert_eq!(session.reports(&site, &done()).await, "reboot");
    until(&site, &id, "n1", "undone").await;
    assert!(script(&site, 1).await.contains("http://k/live"));
    site.stop().await;
}

#[tokio::test]
async fn unstarted_undo_can_be_skipped() {
    let site = site(|_| {}).await;
    let (id, session) = installed(&site).await;
    undo(&site, &id, json!({})).await;
    site.post(&format!("/provision/v1/runs/{id}/abort"), &json!({})).await.expect(200);
    until(&site, &id, "n1", "done").await;
    assert!(script(&site, 1).await.contains("sanboot"));
    let node = session.job["id"].as_str().expect("an id");
    site.put(&format!("/inventory/v1/nodes/{node}/protection"), &json!({})).await.expect(200);
    let path = format!("/provision/v1/runs/{id}/undo");
    site.post(&path, &json!({"dry_run": true})).await.problem(409, "protected");
    site.stop().await;
}

#[tokio::test]
async fn undo_leaves_nodes_of_a_newer_run_alone() {
    let site = site(|_| {}).await;
    let (old, _) = installed(&site).await;
    start(&site, &json!({"selector": "node:n1", "reinstall": true})).await;
    let text = script(&site, 1).await;
    for (what, more) in
        [("undo", json!({})), ("undo", json!({"boot_only": true})), ("retry", json!({}))]
    {
        let steered = site.post(&format!("/provision/v1/runs/{old}/{what}"), &more).await;
        let steered = steered.expect(200).json();
        assert!(steered["nodes"].as_array().is_some_and(Vec::is_empty), "{steered}");
        assert!(steered["notes"][0].as_str().is_some_and(|n| n.contains("since")), "{steered}");
    }
    assert_eq!(script(&site, 1).await, text, "the run that is under way is not disturbed");
    site.stop().await;
}

#[tokio::test]
async fn disk_backups_are_bounded_and_replaced_by_the_next_run() {
    let site = site(|_| {}).await;
    let (_, old) = installed(&site).await;
    old.send(&site, "backup", &backup("os", 1, &[])).await.problem(409, "conflict");
    let body = json!({"selector": "node:n1", "reinstall": true});
    let id = start(&site, &body).await;
    let session = Agent::boot(&site, 1, 2).await.job(&site).await;
    let large = json!({"disk": "os", "kernel_name": "a", "size": 1, "sector": 512,
        "packed": "A".repeat(4 << 20)});
    session.send(&site, "backup", &large).await.problem(413, "body-too-large");
    let mut wrong = backup("os", 1, &[]);
    wrong["packed"] = json!("AAAA");
    session.send(&site, "backup", &wrong).await.problem(400, "invalid-body");
    // Incompressible backups are split over several values, and their total is bounded.
    for disk in ["a", "b", "a"] {
        session.send(&site, "backup", &noise(disk)).await.expect(200);
    }
    session.send(&site, "backup", &noise("c")).await.problem(413, "body-too-large");
    assert_eq!(session.reports(&site, &done()).await, "reboot");
    undo(&site, &id, json!({})).await;
    let session = Agent::boot(&site, 1, 3).await.job(&site).await;
    assert_eq!(session.job["undo"], json!([noise("b"), noise("a")]), "and nothing of before");
    site.stop().await;
}

#[tokio::test]
async fn impossible_disk_backup_is_refused_on_upload() {
    let site = site(|_| {}).await;
    start(&site, &json!({"selector": "node:n1"})).await;
    let session = Agent::boot(&site, 1, 1).await.job(&site).await;
    let wrong = [
        ("sector", json!(0)),
        ("sector", json!(256)),
        ("sector", json!(513)),
        ("sector", json!(8192)),
        ("sector", json!(u32::MAX)),
        ("size", json!((64 << 20) + 1)),
        ("size", json!(1_u64 << 63)),
    ];
    for (member, value) in wrong {
        let mut sent = backup("os", 1, &[]);
        sent[member] = value;
        session.send(&site, "backup", &sent).await.problem(400, "invalid-body");
    }
    let mut native = backup("os", 1, &[]);
    native["sector"] = json!(4096);
    session.send(&site, "backup", &native).await.expect(200);
    site.stop().await;
}

#[tokio::test]
async fn concurrent_disk_backups_do_not_damage_each_other() {
    let site = site(|_| {}).await;
    let id = start(&site, &json!({"selector": "node:n1"})).await;
    let session = Agent::boot(&site, 1, 1).await.job(&site).await;
    let a = noise("a");
    let b = noise("b");
    for _ in 0..5 {
        let one = session.send(&site, "backup", &a);
        let (one, other) = tokio::join!(one, session.send(&site, "backup", &b));
        assert_eq!((one.status, other.status), (200, 200));
    }
    assert_eq!(session.reports(&site, &done()).await, "reboot");
    undo(&site, &id, json!({})).await;
    let job = Agent::boot(&site, 1, 2).await.job(&site).await.job;
    let mut kept = job["undo"].as_array().expect("copies").clone();
    kept.sort_by_key(|kept| kept["disk"].to_string());
    assert!(kept == [a, b], "what was sent is what is kept");
    let node = job["id"].as_str().expect("an id");
    let parts = format!("provision/backup-part/{node}").parse().expect("a key");
    let store = &site.controller.chassis().store;
    let found = store.list(&Prefix::Under(parts), None, 1000).await.expect("the store");
    assert_eq!(found.records.len(), 2 * PARTS, "nothing is left over");
    site.stop().await;
}

#[tokio::test]
async fn undo_does_not_complete_a_node_awaiting_a_new_attempt() {
    let site = site(|_| {}).await;
    profile(&site, "base", "*", json!({"document": {"flow": {"on_failure": "reboot"}}})).await;
    let id = start(&site, &json!({"selector": "node:n1"})).await;
    let session = Agent::boot(&site, 1, 1).await.job(&site).await;
    session.send(&site, "backup", &backup("os", 1, &[])).await.expect(200);
    let mut report = failed("failed");
    report["changed"] = json!(true);
    assert_eq!(session.reports(&site, &report).await, "reboot");
    until(&site, &id, "n1", "pending").await;

    undo(&site, &id, json!({"nodes": ["n1"]})).await;
    site.post(&format!("/provision/v1/runs/{id}/abort"), &json!({})).await.expect(200);
    until(&site, &id, "n1", "failed").await;
    assert!(script(&site, 1).await.contains("this node is held"));
    site.post(&format!("/provision/v1/runs/{id}/retry"), &json!({})).await.expect(200);
    until(&site, &id, "n1", "pending").await;
    script(&site, 1).await;
    until(&site, &id, "n1", "booting").await;
    undo(&site, &id, json!({"nodes": ["n1"]})).await;
    let session = Agent::boot(&site, 1, 2).await.job(&site).await;
    assert_eq!(session.reports(&site, &failed("refused")).await, "stay");
    until(&site, &id, "n1", "failed").await;
    assert!(script(&site, 1).await.contains("this node is held"));
    site.stop().await;
}

#[tokio::test]
async fn finished_node_keeps_its_system_if_undo_is_refused() {
    let site = site(|_| {}).await;
    let id = start(&site, &json!({"selector": "node:n1"})).await;
    let agent = Agent::boot(&site, 1, 1).await;
    let session = agent.job(&site).await;
    undo(&site, &id, json!({"nodes": ["n1"]})).await;
    assert_eq!(session.reports(&site, &done()).await, "retry");
    let session = agent.job(&site).await;
    assert!(session.job["undo"].is_array());
    assert_eq!(session.reports(&site, &failed("refused")).await, "reboot");
    until(&site, &id, "n1", "done").await;
    assert!(script(&site, 1).await.contains("sanboot"), "it has a system");
    let state = site.get("/boot/v2/state/n1").await.expect(200).json();
    assert!(state["state"]["installed"].is_string(), "{state}");
    site.stop().await;
}

#[tokio::test]
async fn undo_of_many_nodes_counts_those_with_working_agents() {
    let site = site(|config| config.change_guard.nodes = 3).await;
    site.apply(&[crate::provision::document("Node", "n4", &spec(4))]).await;
    let id = start(&site, &json!({"selector": "*", "affects": 4})).await;
    let mut sessions = Vec::new();
    for (n, seed) in (1..=4).zip(1..) {
        sessions.push(Agent::boot(&site, n, seed).await.job(&site).await);
    }
    let path = format!("/provision/v1/runs/{id}/undo");
    let dry = site.post(&path, &json!({"dry_run": true})).await.expect(200).json();
    assert_eq!(dry["needs_affects"], true);
    site.post(&path, &json!({})).await.problem(409, "affects-too-many");
    assert_eq!(sessions[0].says(&site, 1, 1).await, "continue");
    site.post(&path, &json!({"affects": 4})).await.expect(200);
    assert_eq!(sessions[0].says(&site, 2, 2).await, "abort");
    site.stop().await;
}
