//! Archives of plug-ins: a machine boots those that its profile needs, and no others.

use serde_json::{Value, json};

use crate::provision::{DIGEST, disk, script, site, start};
use crate::site::document;

const SECTION: &str = "identity.example/card@1";

fn archive(name: &str, provides: &[&str]) -> Value {
    document("Artifact", name, &json!({"sha256": DIGEST, "size": 1, "provides": provides}))
}

/// For `n1` alone.
fn carded(flow: &[&str]) -> Value {
    let mut sections = disk();
    sections[SECTION] = json!({"text": "n1"});
    if !flow.is_empty() {
        sections["flow"] = json!({"actions": flow});
    }
    document("ProvisionProfile", "carded", &json!({"selector": "node:n1", "document": sections}))
}

#[tokio::test]
async fn machine_boots_only_the_archives_of_its_profile() {
    let site = site(|_| {}).await;
    let problem = site.try_apply("", &[carded(&[])]).await.problem(400, "invalid-body");
    let told = format!("{:?}", problem.errors);
    assert!(told.contains(SECTION) && told.contains("hoist plugin pack"), "{told}");

    let other = archive("plugin-raid-x86_64", &["raid"]);
    let identity = archive("plugin-identity-x86_64", &["identity", SECTION]);
    site.apply(&[other, identity, carded(&["disks", "identity"])]).await;
    start(&site, &json!({"selector": "node:n1,node:n2"})).await;
    let with = script(&site, 1).await;
    let without = script(&site, 2).await;
    let line = format!("/artifacts/{DIGEST}/plugin-identity-x86_64 ||");
    let archives = |text: &str| text.lines().filter(|line| line.starts_with("initrd ")).count();
    assert!(with.contains("initrd --name initrd1 http") && with.contains(&line), "{with}");
    assert!(with.contains(" initrd=initrd initrd=initrd1 "), "{with}");
    assert_eq!((archives(&with), archives(&without)), (2, 1), "{with}{without}");
    assert!(!without.contains("plugin-") && !without.contains("initrd1"), "{without}");

    let explained = site.get("/boot/v2/explain/n1").await.expect(200).json();
    assert_eq!(
        explained["plugins"],
        json!([format!("plugin-identity-x86_64: carded needs identity, {SECTION}")])
    );
    assert_eq!(explained["initrd"].as_array().map(Vec::len), Some(2), "{explained}");
    assert!(site.get("/boot/v2/explain/n2").await.expect(200).json().get("plugins").is_none());
    site.stop().await;
}

#[tokio::test]
async fn plug_in_archive_of_a_profile_is_retained() {
    let site = site(|_| {}).await;
    let identity = archive("plugin-identity-x86_64", &["identity", SECTION]);
    site.apply(&[identity, carded(&[])]).await;
    let body = json!({"targets": ["Artifact/plugin-identity-x86_64"]});
    let kept = site.post("/inventory/v1/delete", &body).await.problem(409, "conflict");
    assert!(format!("{kept:?}").contains("ProvisionProfile `carded` names it"), "{kept:?}");
    let emptied = archive("plugin-identity-x86_64", &[]);
    let problem = site.try_apply("", &[emptied]).await.problem(400, "invalid-body");
    assert!(format!("{problem:?}").contains("ProvisionProfile carded"), "{problem:?}");

    site.apply(&[archive("agent-x86_64-initrd", &["*"])]).await;
    start(&site, &json!({"selector": "node:n1"})).await;
    assert!(!script(&site, 1).await.contains("plugin-"));
    site.stop().await;
}
