//! Two runs on the same nodes.

use serde_json::{Value, json};

use crate::site::Site;
use crate::{
    HOLD, RUNS, eventually, file, lines, order, plan, put, site, start, step, until,
    until_instance, with,
};

/// Begins a run; whoever insists is not refused.
async fn begin(site: &Site, plan: &Value, beside: bool, status: u16) -> Value {
    let body = json!({"title": "test", "plan": plan, "beside": beside});
    site.post(RUNS, &body).await.expect(status).json()
}

/// A conflict with this run, that says how to get past it.
fn is_conflict(problem: &Value, run: &str, nodes: &str) {
    let detail = problem["detail"].as_str().expect("a detail");
    assert_eq!(detail, format!("run {run} is under way on {nodes}"), "{problem:#}");
    assert!(problem["remedy"].as_str().expect("a remedy").contains("--beside"), "{problem:#}");
}

async fn slow(site: &Site) -> String {
    let vertices = [step("slow@n1", 1, HOLD, &[]), step("then@n2", 2, "true", &[0])];
    let run = start(site, &plan(&vertices)).await;
    eventually("it has begun", || file(site, 1, "begun").exists()).await;
    run
}

#[tokio::test]
async fn a_run_does_not_begin_on_nodes_on_which_another_has_something_left_to_do() {
    let site = site().await;
    let first = slow(&site).await;
    let there = plan(&[step("a@n1", 1, "touch a", &[]), step("a@n2", 2, "touch a", &[])]);
    is_conflict(&begin(&site, &there, false, 409).await, &first, "n1, n2");
    assert!(!file(&site, 2, "a").exists(), "nothing was done");
    let list = site.get(RUNS).await.expect(200).json();
    assert_eq!(list["items"].as_array().expect("a list").len(), 1, "nothing was kept");
    // Another node is nobody's business, and whoever insists knows why.
    let elsewhere = start(&site, &plan(&[step("a@n3", 3, "touch a", &[])])).await;
    until(&site, &elsewhere, "ended").await;
    let insisted = begin(&site, &there, true, 201).await;
    until(&site, insisted["id"].as_str().expect("an id"), "ended").await;
    assert!(file(&site, 2, "a").exists());
    // One that waits for a person is under way as well.
    order(&site, &first, "pause", json!({})).await;
    is_conflict(&begin(&site, &there, false, 409).await, &first, "n1, n2");
    order(&site, &first, "unpause", json!({})).await;
    put(&site, 1, "go");
    until(&site, &first, "ended").await;
    begin(&site, &there, false, 201).await;
    site.stop().await;
}

#[tokio::test]
async fn a_dry_run_says_what_stands_in_the_way_and_a_check_looks_all_the_same() {
    let site = site().await;
    let first = slow(&site).await;
    let there = plan(&[step("a@n1", 1, "true", &[])]);
    let body = json!({"title": "test", "plan": there});
    let dry = site.post(&format!("{RUNS}?dry_run=1"), &body).await.expect(200).json();
    assert_eq!(dry["beside"], json!([format!("run {first} is under way on n1")]));
    let check = json!({"title": "test", "plan": there, "check": true});
    let check = site.post(RUNS, &check).await.expect(201).json();
    until(&site, check["id"].as_str().expect("an id"), "ended").await;
    put(&site, 1, "go");
    until(&site, &first, "ended").await;
    let dry = site.post(&format!("{RUNS}?dry_run=1"), &body).await.expect(200).json();
    assert_eq!(dry["beside"], Value::Null);
    site.stop().await;
}

#[tokio::test]
async fn what_has_ended_does_not_go_on_beside_another() {
    let site = site().await;
    let bad =
        start(&site, &plan(&[step("bad@n2", 2, "echo x >> tries; test -e mended", &[])])).await;
    until(&site, &bad, "ended").await;
    let call = json!({"action": "shell", "input": {"command": "touch done"}});
    let back = json!({"action": "shell", "input": {"command": "touch back"}});
    let made = json!({"call": call, "subject": 1, "repeat": "safe", "undo": back});
    let made = json!({"name": "made@n2", "after": [], "kind": {"step": made}});
    let good = start(&site, &plan(&[made])).await;
    until(&site, &good, "ended").await;
    let first = slow(&site).await;
    let retry = json!({"instances": ["bad@n2"]});
    for (run, word, body) in
        [(&bad, "resume", json!({})), (&bad, "retry", retry.clone()), (&good, "undo", json!({}))]
    {
        let path = format!("{RUNS}/{run}/{word}");
        is_conflict(&site.post(&path, &body).await.expect(409).json(), &first, "n2");
        let dry = site.post(&format!("{path}?dry_run=1"), &body).await.expect(200).json();
        assert_eq!(dry["beside"], json!([format!("run {first} is under way on n2")]), "{word}");
    }
    let files = json!({"title": "test", "plan": plan(&[step("bad@n2", 2, "true", &[])])});
    let path = format!("{RUNS}/{bad}/continue");
    is_conflict(&site.post(&path, &files).await.expect(409).json(), &first, "n2");
    assert_eq!(lines(&site, 2, "tries"), 1, "nothing was tried");
    put(&site, 2, "mended");
    order(&site, &bad, "resume", json!({"beside": true})).await;
    assert_eq!(until(&site, &bad, "ended").await["outcome"], "succeeded");
    let path = format!("{RUNS}/{good}/undo");
    let undo = site.post(&path, &json!({"beside": true})).await.expect(201).json();
    until(&site, undo["run"]["id"].as_str().expect("an id"), "ended").await;
    assert!(file(&site, 2, "back").exists());
    put(&site, 1, "go");
    until(&site, &first, "ended").await;
    site.stop().await;
}

#[tokio::test]
async fn what_is_under_way_tries_nothing_again_where_another_has_begun_since() {
    let site = site().await;
    let bad =
        with(step("bad@n2", 2, "echo x >> tries; false", &[]), "on_failure", json!("continue"));
    let first = start(&site, &plan(&[step("slow@n1", 1, HOLD, &[]), bad])).await;
    until_instance(&site, &first, "bad@n2", "failed").await;
    // It has nothing left to do there.
    let hold = HOLD.replace("begun", "begun-too");
    let second = start(&site, &plan(&[step("slow@n2", 2, &hold, &[])])).await;
    let path = format!("{RUNS}/{first}/retry");
    let retry = json!({"instances": ["bad@n2"]});
    is_conflict(&site.post(&path, &retry).await.expect(409).json(), &second, "n2");
    assert_eq!(lines(&site, 2, "tries"), 1);
    put(&site, 2, "go");
    until(&site, &second, "ended").await;
    order(&site, &first, "retry", retry).await;
    eventually("it is tried again", || lines(&site, 2, "tries") == 2).await;
    put(&site, 1, "go");
    until(&site, &first, "ended").await;
    site.stop().await;
}
