//! Provision profiles as documents: checked when they are applied, chosen when nodes are.

use serde_json::json;

use crate::provision::{DIGEST, disk, profile, site};
use crate::site::document;

#[tokio::test]
async fn profile_is_checked_as_a_document_before_it_is_stored() {
    let site = site(|_| {}).await;
    let wrong = [
        (json!({"disks": {"os": {"matsch": {}}}}), "document.disks.os", "matsch"),
        (
            json!({"storage": [{"part": {"id": "a", "on": "no", "size": "rest"}}]}),
            "document.storage",
            "no",
        ),
        (json!({"disk": {}}), "document.disk", "disk"),
        (json!({"node": {"id": "x"}}), "document.node", "hoist sets"),
    ];
    for (document_, at, word) in wrong {
        let spec = json!({"selector": "*", "document": document_});
        let body = document("ProvisionProfile", "wrong", &spec);
        let problem = site.post("/inventory/v1/apply", &body).await.problem(400, "invalid-body");
        let told = format!("{:?} {}", problem.errors, problem.detail);
        assert!(told.contains(at) && told.contains(word), "{at}: {told}");
    }
    let spec = json!({"selector": "*", "document": {"images": {"a": {"sources": ["artifact:none"], "target": "x"}}}});
    let body = document("ProvisionProfile", "wrong", &spec);
    let problem = site.post("/inventory/v1/apply", &body).await.problem(400, "invalid-body");
    assert!(
        format!("{:?}", problem.errors).contains("artifact `none` does not exist"),
        "{problem:?}"
    );
    site.get("/provision/v1/profiles/wrong").await.problem(404, "not-found");
    site.stop().await;
}

#[tokio::test]
async fn profile_keeps_its_artifacts_and_reads_back_unchanged() {
    let site = site(|_| {}).await;
    let shown = site.get("/provision/v1/profiles/base").await.expect(200).json();
    assert_eq!((&shown["document"], &shown["nodes"]), (&disk(), &json!(3)));
    let exported = site.get("/inventory/v1/export").await.expect(200).text();
    let line =
        exported.lines().find(|line| line.contains("ProvisionProfile")).expect("it is exported");
    let kept: serde_json::Value = serde_json::from_str(line).expect("a document");
    assert_eq!(kept["spec"]["document"], disk());
    let revision = site.revision();
    site.post("/inventory/v1/apply", &kept).await.expect(200);
    assert_eq!(site.revision(), revision, "the same again is no change");
    let site = site.restart().await;
    assert_eq!(
        site.get("/provision/v1/profiles/base").await.expect(200).json()["document"],
        disk()
    );
    site.stop().await;
}

#[tokio::test]
async fn the_closest_profile_is_taken_unless_one_is_named() {
    let site = site(|_| {}).await;
    profile(&site, "close", "node:n1", json!({})).await;
    profile(&site, "high", "*", json!({"priority": 10})).await;
    let chosen = async |body: serde_json::Value| {
        let started = site.post("/provision/v1/runs", &body).await.expect(200).json();
        assert!(started["run"].is_null());
        started["nodes"].clone()
    };
    assert_eq!(
        chosen(json!({"selector": "node:n1,node:n2", "dry_run": true})).await,
        json!([{"node": "n1", "profile": "close"}, {"node": "n2", "profile": "high"}])
    );
    assert_eq!(
        chosen(json!({"selector": "node:n1", "profile": "base", "dry_run": true})).await,
        json!([{"node": "n1", "profile": "base"}])
    );
    let unknown = json!({"selector": "node:n1", "profile": "none"});
    site.post("/provision/v1/runs", &unknown).await.problem(400, "bad-parameter");
    let runs = site.get("/provision/v1/runs").await.expect(200).json();
    assert_eq!(runs["items"], json!([]), "a dry run leaves nothing");
    site.stop().await;
}

#[tokio::test]
async fn profile_with_mixed_image_artifacts_is_refused() {
    let site = site(|_| {}).await;
    let other = json!({"sha256": "cd".repeat(32), "size": 1});
    site.apply(&[document("Artifact", "other", &other)]).await;
    let with = |sources: serde_json::Value| {
        let mut sections = disk();
        sections["images"]["root"]["sources"] = sources;
        document("ProvisionProfile", "base", &json!({"selector": "*", "document": sections}))
    };
    let differing = with(json!(["https://mirror/root", "artifact:os-root", "artifact:other"]));
    let problem = site.post("/inventory/v1/apply", &differing).await.problem(400, "invalid-body");
    let told = format!("{:?}", problem.errors);
    assert!(told.contains("images.root.sources") && told.contains("artifact:other"), "{told}");
    let mirrored = with(json!(["https://mirror/root", "artifact:os-root"]));
    site.post("/inventory/v1/apply", &mirrored).await.expect(200);
    crate::provision::start(&site, &json!({"selector": "node:n1"})).await;
    let session = crate::provision::agent::Agent::boot(&site, 1, 1).await.job(&site).await;
    let root = &session.job["document"]["sections"]["images"]["root"];
    assert_eq!(root["digest"], format!("sha256:{}", crate::provision::DIGEST));
    site.stop().await;
}

#[tokio::test]
async fn profile_whose_programs_are_not_in_the_image_is_refused() {
    let site = site(|_| {}).await;
    let image = |tools: &[&str]| {
        let provides: Vec<_> = tools.iter().map(|tool| format!("tool:{tool}")).collect();
        let spec = json!({"sha256": DIGEST, "size": 1, "provides": provides});
        document("Artifact", "agent-x86_64-initrd", &spec)
    };
    let mut sections = disk();
    sections["images"]["root"]["grow"] = json!(true);
    let grown = document(
        "ProvisionProfile",
        "grown",
        &json!({"selector": "node:n1", "document": sections}),
    );
    site.apply(&[image(&["mke2fs", "resize2fs"])]).await;
    let problem =
        site.try_apply("", std::slice::from_ref(&grown)).await.problem(400, "invalid-body");
    let told = format!("{:?}", problem.errors);
    let lacks = "the agent image `agent-x86_64-initrd` lacks the program `e2fsck`";
    assert!(told.contains("ProvisionProfile grown") && told.contains(lacks), "{told}");
    assert!(told.contains("hoist agent image --tools e2fsck"), "{told}");
    site.apply(&[image(&["mke2fs", "resize2fs", "e2fsck"])]).await;
    site.apply(&[grown]).await;
    // Another image may lack what an earlier one had.
    site.apply(&[image(&["mke2fs"])]).await;
    let body = json!({"selector": "node:n1"});
    let problem = site.post("/provision/v1/runs", &body).await.problem(400, "invalid-body");
    assert!(format!("{problem:?}").contains(lacks), "{problem:?}");
    site.stop().await;
}
