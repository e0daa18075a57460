//! Going back to what nodes had before.

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use hoist_model::Digest;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::provision::agent::{Agent, done, failed};
use crate::provision::{DIGEST, profile, run, site, start, until};
use crate::site::{Site, document};

const OTHER: &str = "cdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcd";

/// Runs `n1` to its end, and returns its job.
async fn installed(site: &Site, seed: u8, body: &Value) -> (String, Value) {
    let id = start(site, body).await;
    let session = Agent::boot(site, 1, seed).await.job(site).await;
    session.reports(site, &done()).await;
    until(site, &id, "n1", "done").await;
    (id, session.job["document"].clone())
}

/// The profile and the content of its image are others from now on.
async fn change(site: &Site) {
    let root = json!({"sha256": OTHER, "size": 1});
    site.apply(&[document("Artifact", "os-root", &root)]).await;
    profile(site, "base", "*", json!({"document": {"boot": {"kernel_args": ["quiet"]}}})).await;
}

#[tokio::test]
async fn node_returns_to_its_previous_profile_and_images() {
    let site = site(|_| {}).await;
    let back = json!({"selector": "node:n1", "previous": true});
    let problem = site.post("/provision/v1/runs", &back).await.problem(409, "conflict");
    assert!(
        problem.detail.contains("no earlier installation of the node is recorded"),
        "{problem:?}"
    );
    let (first, before) = installed(&site, 1, &json!({"selector": "node:n1"})).await;
    site.post("/provision/v1/runs", &back).await.problem(409, "conflict");
    change(&site).await;
    let again = json!({"selector": "node:n1", "reinstall": true});
    let (second, after) = installed(&site, 2, &again).await;
    assert_ne!(after["sections"], before["sections"]);
    let shown = run(&site, &second).await["nodes"][0]["previous"].clone();
    assert_eq!((&shown["run"], &shown["profile"]), (&json!(first), &json!("base")));
    assert_eq!(shown["artifacts"], json!({"os-root": DIGEST}));

    let (_, gone_back) = installed(&site, 3, &back).await;
    assert_eq!(gone_back["sections"], before["sections"], "as it was, with the image of then");
    assert_ne!(gone_back["txn"], before["txn"]);
    // And once more: the system before that.
    let site = site.restart().await;
    let (_, forth) = installed(&site, 4, &back).await;
    for section in ["boot", "disks"] {
        assert_eq!(forth["sections"][section], after["sections"][section]);
    }
    assert_eq!(forth["sections"]["images"]["root"]["digest"], format!("sha256:{OTHER}"));
    let wrong = json!({"selector": "node:n1", "previous": true, "profile": "base"});
    site.post("/provision/v1/runs", &wrong).await.problem(400, "bad-parameter");
    site.stop().await;
}

#[tokio::test]
async fn failed_node_falls_back_and_retries_keep_its_previous_system() {
    let site = site(|_| {}).await;
    let (_, before) = installed(&site, 1, &json!({"selector": "node:n1"})).await;
    change(&site).await;
    let id = start(&site, &json!({"selector": "node:n1", "reinstall": true})).await;
    let session = Agent::boot(&site, 1, 2).await.job(&site).await;
    session.reports(&site, &failed("failed")).await;
    until(&site, &id, "n1", "failed").await;

    let id = start(&site, &json!({"selector": "node:n1", "previous": true})).await;
    let session = Agent::boot(&site, 1, 3).await.job(&site).await;
    assert_eq!(session.job["document"]["sections"], before["sections"]);
    session.reports(&site, &failed("failed")).await;
    until(&site, &id, "n1", "failed").await;
    site.post(&format!("/provision/v1/runs/{id}/retry"), &json!({})).await.expect(200);
    let session = Agent::boot(&site, 1, 4).await.job(&site).await;
    assert_eq!(session.job["document"]["sections"], before["sections"]);
    session.reports(&site, &done()).await;
    until(&site, &id, "n1", "done").await;
    site.stop().await;
}

#[tokio::test]
async fn restored_node_is_not_restored_again() {
    let site = site(|_| {}).await;
    installed(&site, 1, &json!({"selector": "node:n1"})).await;
    change(&site).await;
    let (id, _) = installed(&site, 2, &json!({"selector": "node:n1", "reinstall": true})).await;
    site.post(&format!("/provision/v1/runs/{id}/undo"), &json!({})).await.expect(200);
    let session = Agent::boot(&site, 1, 3).await.job(&site).await;
    session.reports(&site, &done()).await;
    until(&site, &id, "n1", "undone").await;
    let back = json!({"selector": "node:n1", "previous": true});
    let problem = site.post("/provision/v1/runs", &back).await.problem(409, "conflict");
    assert!(
        problem.detail.contains("no earlier installation of the node is recorded"),
        "{problem:?}"
    );
    site.stop().await;
}

/// Brings content under a name, as old as a day, and says where it lies.
async fn bring(site: &Site, name: &str, content: &[u8]) -> PathBuf {
    let digest = Digest::from_bytes(Sha256::digest(content).into()).to_string();
    let path = format!("/boot/v2/blobs/{digest}?offset=0&size={}", content.len());
    site.ask("PATCH", &path).body(content.to_vec()).send().await.expect(200);
    let spec = json!({"sha256": digest, "size": content.len()});
    site.apply(&[document("Artifact", name, &spec)]).await;
    let file = site.data_dir().join("artifacts/blobs").join(&digest[..2]).join(&digest);
    let day = Duration::from_hours(24);
    let opened = std::fs::File::open(&file).expect("it is there");
    opened.set_modified(SystemTime::now() - day).expect("a time in the past");
    file
}

#[tokio::test]
async fn artifacts_for_fallback_are_not_collected() {
    let site = site(|_| {}).await;
    let old = bring(&site, "os-root", b"old").await;
    installed(&site, 1, &json!({"selector": "node:n1"})).await;
    let new = bring(&site, "os-root", b"new").await;
    installed(&site, 2, &json!({"selector": "node:n1", "reinstall": true})).await;
    let newest = bring(&site, "os-root", b"newest").await;
    let collect = async |query: &str| {
        site.ask("POST", &format!("/boot/v2/artifacts/gc{query}")).send().await.expect(200);
        [&old, &new, &newest].map(|file| file.exists())
    };
    assert_eq!(collect("").await, [true, true, true]);
    assert_eq!(collect("?previous=1").await, [false, false, true]);
    site.stop().await;
}
