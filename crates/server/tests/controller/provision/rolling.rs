//! How many nodes are begun, and which are not.

use serde_json::{Value, json};

use crate::provision::agent::{Agent, done, failed};
use crate::provision::{run, site, start, states, until};
use crate::site::{Site, document};

async fn provision(site: &Site, n: u32, report: &Value) {
    let seed = u8::try_from(n).expect("small");
    let session = Agent::boot(site, n, seed).await.job(site).await;
    session.reports(site, report).await;
}

fn words(run: &Value) -> Vec<String> {
    states(run).into_iter().map(|(_, state)| state).collect()
}

#[tokio::test]
async fn canaries_run_in_sequence_and_a_failure_stops_the_run() {
    let site = site(|_| {}).await;
    let id = start(&site, &json!({"selector": "*", "how": {"canary": 2}})).await;
    assert_eq!(words(&run(&site, &id).await), ["pending", "waiting", "waiting"]);
    provision(&site, 1, &done()).await;
    until(&site, &id, "n2", "pending").await;
    assert_eq!(words(&run(&site, &id).await), ["done", "pending", "waiting"]);
    provision(&site, 2, &failed("failed")).await;
    let stopped = run(&site, &id).await;
    assert_eq!((&stopped["state"], words(&stopped)[2].as_str()), (&json!("stopped"), "waiting"));
    assert!(stopped["why"].as_str().is_some_and(|why| why.contains("1 nodes failed")));
    // Mended, it goes on with the rest.
    site.post(&format!("/provision/v1/runs/{id}/retry"), &json!({"nodes": ["n2"]}))
        .await
        .expect(200);
    provision(&site, 2, &done()).await;
    until(&site, &id, "n3", "pending").await;
    provision(&site, 3, &done()).await;
    site.eventually(&format!("/provision/v1/runs/{id}"), |a| a.json()["state"] == "done").await;
    site.stop().await;
}

#[tokio::test]
async fn started_nodes_stay_within_max_unavailable() {
    let site = site(|_| {}).await;
    let id = start(&site, &json!({"selector": "*", "how": {"max_unavailable": 1}})).await;
    assert_eq!(words(&run(&site, &id).await), ["pending", "waiting", "waiting"]);
    provision(&site, 1, &done()).await;
    until(&site, &id, "n2", "pending").await;
    let site = site.restart().await;
    assert_eq!(words(&run(&site, &id).await), ["done", "pending", "waiting"]);
    site.stop().await;

    let site = crate::provision::site(|_| {}).await;
    let id = start(&site, &json!({"selector": "*", "how": {"at_once": 2}})).await;
    assert_eq!(words(&run(&site, &id).await), ["pending", "pending", "waiting"]);
    site.stop().await;
}

#[tokio::test]
async fn node_ended_midway_counts_as_away() {
    let site = site(|_| {}).await;
    let id = start(&site, &json!({"selector": "*", "how": {"max_unavailable": 1}})).await;
    let session = Agent::boot(&site, 1, 1).await.job(&site).await;
    let one = json!({"nodes": ["n1"]});
    site.post(&format!("/provision/v1/runs/{id}/abort"), &one).await.expect(200);
    session.reports(&site, &json!({"outcome": "aborted", "changed": true})).await;
    until(&site, &id, "n1", "aborted").await;
    let stopped = site
        .eventually(&format!("/provision/v1/runs/{id}"), |a| a.json()["state"] == "stopped")
        .await
        .json();
    assert_eq!(words(&stopped), ["aborted", "waiting", "waiting"]);
    assert_eq!(stopped["counts"]["unfinished"], 1);
    assert!(stopped["why"].as_str().is_some_and(|why| why.contains("1 were aborted unfinished")));
    site.post(&format!("/provision/v1/runs/{id}/retry"), &one).await.expect(200);
    provision(&site, 1, &done()).await;
    until(&site, &id, "n2", "pending").await;
    site.stop().await;
}

#[tokio::test]
async fn node_is_in_one_run_and_installed_one_needs_consent() {
    let site = site(|_| {}).await;
    let id = start(&site, &json!({"selector": "node:n1"})).await;
    for both in [json!({"selector": "*"}), json!({"selector": "*", "dry_run": true})] {
        let problem = site.post("/provision/v1/runs", &both).await.problem(409, "conflict");
        assert!(problem.detail.contains("`n1`") && problem.detail.contains(&id), "{problem:?}");
    }
    provision(&site, 1, &done()).await;
    until(&site, &id, "n1", "done").await;
    let again = json!({"selector": "node:n1"});
    let problem = site.post("/provision/v1/runs", &again).await.problem(409, "protected");
    assert!(format!("{:?}", problem.errors).contains("--reinstall"), "{problem:?}");
    let next = start(&site, &json!({"selector": "node:n1", "reinstall": true})).await;
    assert_ne!(next, id);
    assert!(crate::provision::script(&site, 1).await.contains("hoist.token="));
    site.stop().await;
}

#[tokio::test]
async fn protected_node_refuses_a_run_and_maintenance_skips_a_node() {
    let site = site(|_| {}).await;
    let node = async |name: &str| {
        let node = site.get(&format!("/inventory/v1/nodes/by/name/{name}")).await.expect(200);
        node.json()["id"].as_str().expect("an id").to_owned()
    };
    let n1 = node("n1").await;
    let n2 = node("n2").await;
    site.put(&format!("/inventory/v1/nodes/{n1}/protection"), &json!({})).await.expect(200);
    let all = json!({"selector": "*"});
    let problem = site.post("/provision/v1/runs", &all).await.problem(409, "protected");
    assert!(format!("{:?}", problem.errors).contains("Node n1"), "{problem:?}");
    site.delete(&format!("/inventory/v1/nodes/{n1}/protection")).await.expect(200);
    let reason = json!({"reason": "new DIMM"});
    site.put(&format!("/inventory/v1/nodes/{n2}/maintenance"), &reason).await.expect(200);
    let started = site.post("/provision/v1/runs", &all).await.expect(200).json();
    assert_eq!(started["nodes"].as_array().map(Vec::len), Some(2), "{started}");
    assert_eq!(started["left_out"][0]["node"], "n2");
    assert!(started["left_out"][0]["why"].as_str().is_some_and(|why| why.contains("new DIMM")));
    site.stop().await;
}

#[tokio::test]
async fn runs_on_many_nodes_need_their_number() {
    let site = site(|_| {}).await;
    let nodes: Vec<Value> =
        (10..30).map(|n| document("Node", &format!("m{n}"), &crate::provision::spec(n))).collect();
    site.apply(&nodes).await;
    let all = json!({"selector": "*"});
    let problem = site.post("/provision/v1/runs", &all).await.problem(409, "affects-too-many");
    assert!(problem.remedy.is_some_and(|remedy| remedy.contains("--affects 23")));
    let wrong = json!({"selector": "*", "affects": 22});
    site.post("/provision/v1/runs", &wrong).await.problem(409, "affects-too-many");
    let dry = json!({"selector": "*", "dry_run": true});
    let dry = site.post("/provision/v1/runs", &dry).await.expect(200).json();
    assert_eq!(dry["needs_affects"], true);
    let id = start(&site, &json!({"selector": "*", "affects": 23})).await;
    assert_eq!(run(&site, &id).await["counts"]["active"], 23);
    site.stop().await;
}

#[tokio::test]
async fn provisioning_needs_rights_on_the_node() {
    let site = site(|_| {}).await;
    let scope =
        json!([{"verbs": ["read", "write"], "contexts": ["provision"], "selector": "node:n1"}]);
    let own = site.token(scope).await;
    let dry_run = async |body: Value| {
        site.ask_as(&own, "POST", "/provision/v1/runs").json(&body).send().await
    };
    // Of a selector it provisions the nodes that it reaches; the others are not there.
    let all = dry_run(json!({"selector": "*", "dry_run": true})).await.expect(200).json();
    assert_eq!(all["nodes"], json!([{"node": "n1", "profile": "base"}]), "{all}");
    for node in ["n2", "ghost"] {
        dry_run(json!({"selector": format!("node:{node}")})).await.problem(404, "not-found");
    }
    // Nor are profiles of others, whose secrets would come along.
    let theirs = json!({"selector": "node:n2", "document": crate::provision::disk()});
    site.apply(&[crate::site::document("ProvisionProfile", "theirs", &theirs)]).await;
    for profile in ["theirs", "ghost"] {
        let refused = dry_run(json!({"selector": "node:n1", "profile": profile})).await;
        let detail = refused.problem(400, "bad-parameter").detail;
        assert!(detail.contains(&format!("ProvisionProfile `{profile}` not found")), "{detail}");
    }
    let id = start(&site, &json!({"selector": "node:n2"})).await;
    let path = format!("/provision/v1/runs/{id}");
    site.ask_as(&own, "GET", &path).send().await.problem(404, "not-found");
    let steer = format!("{path}/abort");
    site.ask_as(&own, "POST", &steer).json(&json!({})).send().await.problem(404, "not-found");
    let mine = json!({"selector": "node:n1"});
    site.ask_as(&own, "POST", "/provision/v1/runs").json(&mine).send().await.expect(200);
    let listed = site.ask_as(&own, "GET", "/provision/v1/runs").send().await.expect(200).json();
    assert_eq!(listed["items"].as_array().map(Vec::len), Some(1), "{listed}");
    site.stop().await;
}

#[tokio::test]
async fn unknown_action_is_reported_before_a_machine_starts() {
    let site = site(|_| {}).await;
    let only = |word: &str| json!({"selector": "node:n1", "how": {"only": ["disks", word]}});
    let wrong = only("bott");
    let problem = site.post("/provision/v1/runs", &wrong).await.problem(400, "invalid-body");
    let told = format!("{:?}", problem.errors);
    assert!(told.contains("`bott`") && told.contains("config_drive, boot"), "{told}");
    start(&site, &only("boot")).await;
    site.stop().await;
}
