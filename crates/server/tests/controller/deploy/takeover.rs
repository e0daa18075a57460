//! Controllers that share a store, and the runs of one that is gone.

use std::time::Duration;

use hoist_store::Store;
use hoist_testkit::etcd::EtcdServer;
use hoist_testkit::stores::fresh_name;
use serde_json::json;

use crate::deploy::{
    HOLD, RUNS, eventually, file, lines, order, plan, put, site_with, start, step, until,
};
use crate::site::Site;

#[tokio::test(flavor = "multi_thread")]
async fn another_controller_takes_over_abandoned_work() {
    let store = EtcdServer::shared().url(&fresh_name());
    let first = site_with(|config| config.store.clone_from(&store)).await;
    let second = first
        .start_beside(|config| config.deploy.local = Some("*".parse().expect("a selector")))
        .await;
    let vertices = [
        step("first@n1", 1, "echo x >> first", &[]),
        step("slow@n1", 1, HOLD, &[0]),
        step("last@n2", 2, "echo x >> last", &[1]),
    ];
    let run = start(&first, &plan(&vertices)).await;
    eventually("task has started", || file(&first, 1, "begun").exists()).await;
    let listed = second.eventually(RUNS, |answer| answer.json()["items"][0]["id"] == *run).await;
    assert_eq!(listed.json()["items"][0]["state"], "running", "the other one sees it too");
    put(&first, 1, "go");
    first.stop().await;
    put(&second, 1, "go");
    let ended = until(&second, &run, "ended").await;
    assert_eq!(ended["outcome"], "succeeded", "{ended:#}");
    assert_eq!(lines(&second, 1, "first"), 0, "what the first one has done is not done again");
    assert_eq!(lines(&second, 2, "last"), 1);
    second.stop().await;
}

/// Two controllers on one store, a run of the first one, and its step that waits for `go`.
async fn run_of_the_first() -> (Site, Site, String) {
    let store = EtcdServer::shared().url(&fresh_name());
    let first = site_with(|config| config.store.clone_from(&store)).await;
    let local = Some("*".parse().expect("a selector"));
    let second = first.start_beside(|config| config.deploy.local = local).await;
    let vertices = [
        step("slow@n1", 1, HOLD, &[]),
        step("next@n1", 1, "echo x >> next", &[0]),
        step("last@n2", 2, "echo x >> last", &[1]),
    ];
    let run = start(&first, &plan(&vertices)).await;
    eventually("task has started", || file(&first, 1, "begun").exists()).await;
    (first, second, run)
}

#[tokio::test(flavor = "multi_thread")]
async fn every_controller_shows_a_run() {
    let (first, second, run) = Box::pin(run_of_the_first()).await;
    for name in [&run, "last", &run[20..]] {
        let running =
            |answer: &crate::site::Answer| answer.json()["running"][0]["name"] == "slow@n1";
        let shown = second.eventually(&format!("{RUNS}/{name}"), running).await.json();
        assert_eq!((&shown["id"], &shown["state"]), (&json!(run), &json!("running")));
    }
    let events = |after: u64| format!("{RUNS}/{run}/events?wait=20s&after={after}");
    let seen = second.get(&events(0)).await.expect(200).json();
    let last = seen["last"].as_u64().expect("a number");
    let waits = async {
        let news = second.get(&events(last)).await.expect(200).json();
        assert!(!news["items"].as_array().expect("a list").is_empty(), "{news:#}");
    };
    let goes = async { put(&first, 1, "go") };
    tokio::join!(waits, goes);
    until(&first, &run, "ended").await;
    let ended = until(&second, &run, "ended").await;
    assert_eq!(ended["outcome"], "succeeded", "an ended run is shown as well");
    let plan = second.get(&format!("{RUNS}/{run}/plan")).await.expect(200).json();
    assert_eq!(plan["vertices"].as_array().map(Vec::len), Some(3));
    let explained = second.get(&format!("{RUNS}/{run}/explain/last@n2")).await.expect(200).json();
    assert_eq!(explained["instance"]["state"], "ok", "{explained:#}");
    let output = second.get(&format!("{RUNS}/{run}/output/last@n2/1")).await;
    let problem = output.problem(404, "not-found");
    assert!(problem.detail.contains("on the controller that ran"), "{}", problem.detail);
    let host = fs_err::read_to_string("/proc/sys/kernel/hostname").expect("a name");
    let remedy = problem.remedy.expect("a remedy");
    assert_eq!(remedy, format!("ask the controller on host `{}`", host.trim()));
    first.stop().await;
    second.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_controller_stops_and_resumes_a_run() {
    let (first, second, run) = Box::pin(run_of_the_first()).await;
    let retry = json!({"instances": ["slow@n1"]});
    second.post(&format!("{RUNS}/{run}/retry"), &retry).await.problem(409, "conflict");
    let held = order(&second, &run, "hold", json!({"instances": ["last@n2"]})).await;
    assert_eq!(held["instances"], json!(["last@n2"]));
    let shown = first.get(&format!("{RUNS}/{run}")).await.expect(200).json();
    assert_eq!(shown["holds"], json!(["last@n2"]), "{shown:#}");
    order(&second, &run, "release", json!({"instances": ["last@n2"]})).await;
    let stopped = order(&second, &run, "stop", json!({"now": true})).await;
    assert_ne!(stopped["run"]["state"], "running", "{stopped:#}");
    let ended = until(&first, &run, "ended").await;
    assert_eq!(ended["outcome"], "stopped");
    assert_eq!(lines(&first, 1, "next"), 0);
    until(&second, &run, "ended").await;
    // The journal of an ended run is in the store, so that any controller resumes it.
    for site in [&first, &second] {
        put(site, 1, "go");
    }
    order(&second, &run, "resume", json!({})).await;
    let ended = until(&second, &run, "ended").await;
    assert_eq!(ended["outcome"], "succeeded", "{ended:#}");
    assert_eq!(lines(&second, 2, "last"), 1);
    let has_succeeded = |answer: &crate::site::Answer| answer.json()["outcome"] == "succeeded";
    first.eventually(&format!("{RUNS}/{run}"), has_succeeded).await;
    first.stop().await;
    second.stop().await;
}

/// Waits until a controller has given up a run: it answers from the store, which has no output.
async fn until_given_up(site: &Site, run: &str, instance: &str) {
    let path = format!("{RUNS}/{run}/output/{instance}/1");
    let is_given_up = |answer: &crate::site::Answer| {
        answer.json()["detail"].as_str().is_some_and(|detail| detail.contains("that ran"))
    };
    site.eventually(&path, is_given_up).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn controller_without_its_lease_stops_writing() {
    let store = EtcdServer::shared().url(&fresh_name());
    let site = site_with(|config| config.store.clone_from(&store)).await;
    let run =
        start(&site, &plan(&[step("slow@n1", 1, HOLD, &[]), step("b@n1", 1, "true", &[0])])).await;
    eventually("task has started", || file(&site, 1, "begun").exists()).await;
    let shared = site.controller.chassis().store.clone();
    let name = format!("run-{run}");
    let path = site.data_dir().join("journal/owner");
    let owner = fs_err::read_to_string(path).expect("it has a name");
    let ours = shared.acquire(&name, &owner, Duration::from_secs(15)).await;
    let ours = ours.expect("the store answers").expect("it is ours");
    shared.release(ours).await.expect("the store answers");
    let taken = shared.acquire(&name, "another", Duration::from_mins(1)).await;
    assert!(taken.expect("the store answers").is_some());
    put(&site, 1, "go");
    // Its thread ends, and the run is not ours any more.
    until_given_up(&site, &run, "slow@n1").await;
    let third = format!("journal/{run}/records/{:010}", 2).parse().expect("a key");
    assert_eq!(shared.get(&third).await.expect("the store answers"), None, "it ended, unheard");
    site.stop().await;
}

/// If `b` fails because `ok` is missing, `a` is undone as soon as `go` exists.
const FAILS: &str = r#"
hoist: 1
roles:
  web: {nodes: "node:n1", on_failure: undo}
tasks:
  a: {on: web, run: {shell: "echo >> a"}, undo: {shell: "HOLD"}, repeat: safe}
  b: {on: web, requires: [a], run: {shell: "test -e ok"}, undo: none}
"#;

/// Two controllers on one store, a run of the first one that is being undone automatically, and the
/// undo run.
async fn being_undone() -> (Site, Site, String, String) {
    let store = EtcdServer::shared().url(&fresh_name());
    let first = site_with(|config| config.store.clone_from(&store)).await;
    let local = Some("*".parse().expect("a selector"));
    let second = first.start_beside(|config| config.deploy.local = local).await;
    let text = FAILS.replace("HOLD", HOLD);
    let body = json!({"title": "web", "files": [{"name": "tasks.yaml", "text": text}]});
    let run = first.post(RUNS, &body).await.expect(201).json();
    let run = run["id"].as_str().expect("an id").to_owned();
    let ended = until(&first, &run, "ended").await;
    let undo = ended["undone_by"].as_str().expect("it is told with the end").to_owned();
    eventually("undo has started", || file(&first, 1, "begun").exists()).await;
    (first, second, run, undo)
}

#[tokio::test(flavor = "multi_thread")]
async fn automatic_undo_is_taken_over_and_the_first_controller_told() {
    let (first, second, run, undo) = Box::pin(being_undone()).await;
    let (dir, config) = first.stop().await;
    put(&second, 1, "go");
    let ended = until(&second, &undo, "ended").await;
    assert_eq!((&ended["outcome"], &ended["automatic"]), (&json!("succeeded"), &json!(true)));
    assert!(file(&second, 1, "begun").exists(), "it was done here");
    let first = Site::start_again(dir, config).await;
    let shown = until(&first, &run, "ended").await;
    assert_eq!(shown["undone_by"], *undo, "{shown:#}");
    put(&first, 1, "ok");
    order(&first, &run, "resume", json!({})).await;
    assert_eq!(until(&first, &run, "ended").await["outcome"], "succeeded");
    assert_eq!(lines(&first, 1, "a"), 2, "what was undone is done again");
    first.stop().await;
    second.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn run_waits_for_an_undo_elsewhere_and_knows_its_result() {
    let (first, second, run, undo) = Box::pin(being_undone()).await;
    // The first one has lost it, and does not know yet.
    let shared = first.controller.chassis().store.clone();
    let name = format!("run-{undo}");
    let path = first.data_dir().join("journal/owner");
    let owner = fs_err::read_to_string(path).expect("it has a name");
    let ours = shared.acquire(&name, &owner, Duration::from_secs(15)).await;
    shared.release(ours.expect("the store answers").expect("ours")).await.expect("it is let go");
    let theirs = fs_err::read_to_string(second.data_dir().join("journal/owner")).expect("a name");
    let taken = shared.acquire(&name, &theirs, Duration::from_secs(15)).await;
    assert!(taken.expect("the store answers").is_some());
    eventually("second controller has the run", || file(&second, 1, "begun").exists()).await;
    put(&first, 1, "go");
    until_given_up(&first, &undo, "0").await;
    let shown = until(&first, &run, "ended").await;
    assert_eq!(shown["undone_by"], *undo, "{shown:#}");
    put(&first, 1, "ok");
    for word in ["resume", "undo"] {
        let refused = first.post(&format!("{RUNS}/{run}/{word}"), &json!({})).await;
        let problem = refused.problem(409, "conflict");
        assert!(problem.detail.contains(&undo), "{word}: {}", problem.detail);
    }
    put(&second, 1, "go");
    until(&second, &undo, "ended").await;
    order(&first, &run, "resume", json!({})).await;
    assert_eq!(until(&first, &run, "ended").await["outcome"], "succeeded");
    assert_eq!(lines(&first, 1, "a"), 2, "what was undone is done again");
    first.stop().await;
    second.stop().await;
}
