//! Two runs on the same nodes.

use std::time::Duration;

use hoist_testkit::etcd::EtcdServer;
use hoist_testkit::stores::fresh_name;
use serde_json::{Value, json};

use crate::deploy::{
    HOLD, RUNS, eventually, file, lines, order, plan, put, site, site_with, start, step, until,
    until_instance, with,
};
use crate::site::Site;

/// Starts a run; `allow_concurrent` allows shared nodes.
async fn begin(site: &Site, plan: &Value, allow_concurrent: bool, status: u16) -> Value {
    let body = json!({"title": "test", "plan": plan, "allow_concurrent": allow_concurrent});
    site.post(RUNS, &body).await.expect(status).json()
}

/// A conflict with this run, that says how to get past it.
fn is_conflict(problem: &Value, run: &str, nodes: &str) {
    let detail = problem["detail"].as_str().expect("a detail");
    assert_eq!(detail, format!("run {run} is under way on {nodes}"), "{problem:#}");
    assert!(
        problem["remedy"].as_str().expect("a remedy").contains("--allow-concurrent"),
        "{problem:#}"
    );
}

async fn slow(site: &Site) -> String {
    let vertices = [step("slow@n1", 1, HOLD, &[]), step("then@n2", 2, "true", &[0])];
    let run = start(site, &plan(&vertices)).await;
    eventually("step has started", || file(site, 1, "begun").exists()).await;
    run
}

#[tokio::test]
async fn run_does_not_start_on_nodes_of_an_unfinished_one() {
    let site = site().await;
    let first = slow(&site).await;
    let there = plan(&[step("a@n1", 1, "touch a", &[]), step("a@n2", 2, "touch a", &[])]);
    is_conflict(&begin(&site, &there, false, 409).await, &first, "n1, n2");
    assert!(!file(&site, 2, "a").exists(), "nothing was done");
    let list = site.get(RUNS).await.expect(200).json();
    assert_eq!(list["items"].as_array().expect("a list").len(), 1, "nothing was kept");
    // Runs on other nodes do not conflict, and the flag allows shared ones.
    let elsewhere = start(&site, &plan(&[step("a@n3", 3, "touch a", &[])])).await;
    until(&site, &elsewhere, "ended").await;
    let insisted = begin(&site, &there, true, 201).await;
    until(&site, insisted["id"].as_str().expect("an id"), "ended").await;
    assert!(file(&site, 2, "a").exists());
    // A run that waits for an operator is active as well.
    order(&site, &first, "pause", json!({})).await;
    is_conflict(&begin(&site, &there, false, 409).await, &first, "n1, n2");
    order(&site, &first, "unpause", json!({})).await;
    put(&site, 1, "go");
    until(&site, &first, "ended").await;
    begin(&site, &there, false, 201).await;
    site.stop().await;
}

#[tokio::test]
async fn dry_run_names_conflicts_and_check_still_probes() {
    let site = site().await;
    let first = slow(&site).await;
    let there = plan(&[step("a@n1", 1, "true", &[])]);
    let body = json!({"title": "test", "plan": there});
    let dry = site.post(&format!("{RUNS}?dry_run=1"), &body).await.expect(200).json();
    assert_eq!(dry["concurrent"], json!([format!("run {first} is under way on n1")]));
    let check = json!({"title": "test", "plan": there, "check": true});
    let check = site.post(RUNS, &check).await.expect(201).json();
    until(&site, check["id"].as_str().expect("an id"), "ended").await;
    put(&site, 1, "go");
    until(&site, &first, "ended").await;
    let dry = site.post(&format!("{RUNS}?dry_run=1"), &body).await.expect(200).json();
    assert_eq!(dry["concurrent"], Value::Null);
    site.stop().await;
}

#[tokio::test]
async fn ended_run_does_not_resume_beside_another() {
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
        assert_eq!(dry["concurrent"], json!([format!("run {first} is under way on n2")]), "{word}");
    }
    let files = json!({"title": "test", "plan": plan(&[step("bad@n2", 2, "true", &[])])});
    let path = format!("{RUNS}/{bad}/continue");
    is_conflict(&site.post(&path, &files).await.expect(409).json(), &first, "n2");
    assert_eq!(lines(&site, 2, "tries"), 1, "nothing was tried");
    put(&site, 2, "mended");
    order(&site, &bad, "resume", json!({"allow_concurrent": true})).await;
    assert_eq!(until(&site, &bad, "ended").await["outcome"], "succeeded");
    let path = format!("{RUNS}/{good}/undo");
    let undo = site.post(&path, &json!({"allow_concurrent": true})).await.expect(201).json();
    until(&site, undo["run"]["id"].as_str().expect("an id"), "ended").await;
    assert!(file(&site, 2, "back").exists());
    put(&site, 1, "go");
    until(&site, &first, "ended").await;
    site.stop().await;
}

#[tokio::test]
async fn running_run_retries_nothing_on_nodes_of_a_newer_one() {
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
    eventually("step is retried", || lines(&site, 2, "tries") == 2).await;
    put(&site, 1, "go");
    until(&site, &first, "ended").await;
    site.stop().await;
}

/// Two controllers on one store.
async fn two() -> (Site, Site) {
    let store = EtcdServer::shared().url(&fresh_name());
    let first = site_with(|config| config.store.clone_from(&store)).await;
    let local = Some("*".parse().expect("a selector"));
    let second = first.start_beside(|config| config.deploy.local = local).await;
    (first, second)
}

#[tokio::test(flavor = "multi_thread")]
async fn runs_of_other_controllers_count_as_well() {
    let (first, second) = two().await;
    let run = slow(&first).await;
    let there = plan(&[step("a@n2", 2, "touch a", &[])]);
    is_conflict(&begin(&second, &there, false, 409).await, &run, "n2");
    let body = json!({"title": "test", "plan": there});
    let dry = second.post(&format!("{RUNS}?dry_run=1"), &body).await.expect(200).json();
    assert_eq!(dry["concurrent"], json!([format!("run {run} is under way on n2")]));
    // Runs on other nodes do not conflict, and the flag allows shared ones.
    let elsewhere = start(&second, &plan(&[step("a@n3", 3, "test -e mended", &[])])).await;
    until(&second, &elsewhere, "ended").await;
    let insisted = begin(&second, &there, true, 201).await;
    until(&second, insisted["id"].as_str().expect("an id"), "ended").await;
    // An ended run resumes only without conflicts.
    let hold = HOLD.replace("begun", "begun-too");
    let third = start(&first, &plan(&[step("slow@n3", 3, &hold, &[])])).await;
    let resumed = second.post(&format!("{RUNS}/{elsewhere}/resume"), &json!({})).await;
    is_conflict(&resumed.expect(409).json(), &third, "n3");
    put(&first, 3, "go");
    until(&first, &third, "ended").await;
    put(&second, 3, "mended");
    order(&second, &elsewhere, "resume", json!({})).await;
    assert_eq!(until(&second, &elsewhere, "ended").await["outcome"], "succeeded");
    put(&first, 1, "go");
    until(&first, &run, "ended").await;
    begin(&second, &there, false, 201).await;
    first.stop().await;
    second.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_of_two_controllers_starts_a_run_on_the_same_node() {
    let (first, second) = two().await;
    for round in 0..5 {
        let hold =
            HOLD.replace("begun", &format!("begun{round}")).replace("go", &format!("go{round}"));
        let body = json!({"title": "test", "plan": plan(&[step("slow@n1", 1, &hold, &[])])});
        let (a, b) = tokio::join!(first.post(RUNS, &body), second.post(RUNS, &body));
        let mut codes = [a.status, b.status];
        codes.sort_unstable();
        assert_eq!(codes, [201, 409], "round {round}: {a:?} {b:?}");
        for (site, answer) in [(&first, a), (&second, b)] {
            put(site, 1, &format!("go{round}"));
            if answer.status == 201 {
                let id = answer.json()["id"].as_str().expect("an id").to_owned();
                until(site, &id, "ended").await;
            }
        }
    }
    first.stop().await;
    second.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_retry_is_seen_by_a_starting_run() {
    let site = site().await;
    for round in 0..20 {
        let go = format!("go{round}");
        let other = format!("other{round}");
        let hold = HOLD.replace("go &&", &format!("{go} &&"));
        // The second time it is on n2 until both have their answers.
        let stay = format!("for i in $(seq 600); do test -e {go} && break; sleep 0.05; done");
        let bad = step("bad@n2", 2, &format!("test -e {other} && {stay}; false"), &[]);
        let bad = with(bad, "on_failure", json!("continue"));
        let first = start(&site, &plan(&[step("slow@n1", 1, &hold, &[]), bad])).await;
        until_instance(&site, &first, "bad@n2", "failed").await;
        put(&site, 2, &other);
        let retry = json!({"instances": ["bad@n2"]});
        let retry_path = format!("{RUNS}/{first}/retry");
        let hold_two = HOLD.replace("go &&", &format!("{go} &&"));
        let body = json!({"title": "test", "plan": plan(&[step("slow@n2", 2, &hold_two, &[])])});
        let begin_later = async {
            tokio::time::sleep(Duration::from_micros(200 * round)).await;
            site.post(RUNS, &body).await
        };
        let (retried, begun) = tokio::join!(site.post(&retry_path, &retry), begin_later);
        assert!(
            retried.status != 200 || begun.status != 201,
            "round {round}: both are on n2: {retried:?} {begun:?}"
        );
        put(&site, 1, &go);
        put(&site, 2, &go);
        if begun.status == 201 {
            until(&site, begun.json()["id"].as_str().expect("an id"), "ended").await;
        }
        until(&site, &first, "ended").await;
    }
    site.stop().await;
}
