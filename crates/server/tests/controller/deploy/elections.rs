//! The elected first member of a role stays elected, across deployments.

use serde_json::{Value, json};

use super::{RUNS, site, until};
use crate::site::Site;

const PLANS: &str = "/deploy/v1/plans";

/// A role `db` of these nodes, whose first member begins something.
fn files(name: &str, nodes: &str) -> Value {
    let text = format!(
        "hoist: 1\nroles: {{db: {{nodes: \"{nodes}\", first: leader}}}}\n\
         tasks:\n  boot: {{on: leader, run: {{shell: \"echo >> booted\"}}}}\n"
    );
    json!({"files": [{"name": name, "text": text}]})
}

async fn planned(site: &Site, body: &Value) -> Value {
    site.post(PLANS, body).await.expect(200).json()
}

async fn first(site: &Site, body: &Value) -> Value {
    planned(site, body).await["listing"]["elections"]["db"].clone()
}

async fn run(site: &Site, body: &Value) {
    let run = site.post(RUNS, body).await.expect(201).json();
    until(site, run["id"].as_str().expect("an id"), "ended").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn first_of_a_role_is_stable_across_files() {
    let site = site().await;
    let two = "node:n2,node:n3";
    let three = "node:n1,node:n2,node:n3";
    run(&site, &files("a/site.yaml", two)).await;
    assert_eq!(first(&site, &files("a/site.yaml", three)).await, "n2", "though n1 is before it");
    for others in ["b/other.yaml", "b/site.yaml"] {
        run(&site, &files(others, "node:n1")).await;
        run(&site, &files(others, "node:n3")).await;
        assert_eq!(first(&site, &files("a/site.yaml", "node:n2")).await, "n2");
    }
    assert_eq!(first(&site, &files("elsewhere/a/other.yaml", two)).await, "n3");
}

#[tokio::test(flavor = "multi_thread")]
async fn changed_plan_or_plan_with_another_first_member_is_refused() {
    let site = site().await;
    let made = planned(&site, &files("site.yaml", "node:n1,node:n2")).await;
    let mut changed = made.clone();
    let command = "/vertices/0/kind/step/call/input/command";
    *changed["plan"].pointer_mut(command).expect("the command") = json!("true");
    let refused = site.post(RUNS, &json!({"plan": changed})).await.expect(409);
    assert!(refused.text().contains("hash"), "{}", refused.text());

    run(&site, &json!({"plan": made})).await;
    assert_eq!(first(&site, &files("site.yaml", "*")).await, "n1", "it is kept");
    run(&site, &files("site.yaml", "node:n3")).await;
    let refused = site.post(RUNS, &json!({"plan": made})).await.expect(409);
    assert!(refused.text().contains("first of role `db`"), "{}", refused.text());
}
