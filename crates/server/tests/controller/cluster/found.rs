use serde_json::json;

use super::{detail, found, founded, unfounded};

#[tokio::test]
async fn site_is_founded_once() {
    let site = unfounded().await;
    site.get("/cluster/v1").await.problem(404, "not-found");
    site.get("/cluster/v1/hello").await.problem(404, "not-found");
    site.post("/cluster/v1/tokens", &json!({})).await.problem(404, "not-found");
    let status = found(&site).await;
    assert_eq!((&status["name"], &status["scale"]), (&json!("blue"), &json!("empty")));
    assert_eq!(status["pin"], site.controller.chassis().ca.root_pin());
    assert_eq!(status["membership_generation"], 0);
    assert_eq!(status["warnings"], json!(null));
    let again = site.post("/cluster/v1/found", &json!({"name": "green"})).await;
    again.problem(409, "conflict");
    assert!(detail(&again).contains("blue"), "{}", again.text());
    let hello = site.ask_as_nobody("GET", "/cluster/v1/hello").send().await.expect(200).json();
    assert_eq!((&hello["name"], &hello["uid"]), (&json!("blue"), &status["uid"]));
    let audit = site.audit().await;
    assert!(audit.iter().any(|entry| entry.object == "cluster/blue"), "{audit:?}");
    site.stop().await;
}

#[tokio::test]
async fn founding_needs_the_root_key_and_says_so() {
    let site = unfounded().await;
    let key = site.data_dir().join("ca/root.key");
    let away = site.data_dir().join("root.key");
    fs_err::rename(&key, &away).expect("the key is taken away");
    let refused = site.post("/cluster/v1/found", &json!({"name": "blue"})).await;
    refused.problem(409, "conflict");
    assert!(detail(&refused).contains("root.key"), "{}", refused.text());
    fs_err::rename(&away, &key).expect("the key is put back");
    found(&site).await;
    site.stop().await;
}

#[tokio::test]
async fn interrupted_founding_goes_on_with_its_authority() {
    let site = founded().await;
    let uid = site.get("/cluster/v1").await.expect(200).json()["uid"].clone();
    let store = site.controller.chassis().store.clone();
    // As if the controller had died before the state was stored.
    let top = "cluster".parse().expect("a key");
    let txn =
        hoist_store::Txn { compares: Vec::new(), ops: vec![hoist_store::Op::DeletePrefix(top)] };
    store.commit(txn).await.expect("the store takes it");
    drop(store);
    let site = site.restart().await;
    assert_eq!(found(&site).await["uid"], uid);
    site.stop().await;
}

#[tokio::test]
async fn cluster_survives_a_restart() {
    let site = founded().await;
    let before = site.get("/cluster/v1").await.expect(200).json();
    let site = site.restart().await;
    assert_eq!(site.get("/cluster/v1").await.expect(200).json(), before);
    site.stop().await;
}
