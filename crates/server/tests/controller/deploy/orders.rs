//! What operators say to a run.

use serde_json::json;

use crate::deploy::{
    HOLD, RUNS, eventually, file, lines, order, plan, put, site, start, states, step, until,
    until_instance, with,
};

#[tokio::test]
async fn stop_finishes_running_steps_and_starts_no_others() {
    let site = site().await;
    let vertices = [step("slow@n1", 1, HOLD, &[]), step("next@n1", 1, "echo x >> next", &[0])];
    let run = start(&site, &plan(&vertices)).await;
    eventually("task has started", || file(&site, 1, "begun").exists()).await;
    let told = order(&site, &run, "stop", json!({})).await;
    assert_eq!(told["run"]["state"], "stopping");
    put(&site, 1, "go");
    let ended = until(&site, &run, "ended").await;
    assert_eq!(ended["outcome"], "stopped");
    assert_eq!(ended["counts"], json!({"ok": 1, "stopped": 1}));
    site.post(&format!("{RUNS}/{run}/stop"), &json!({})).await.problem(409, "conflict");
    order(&site, &run, "resume", json!({})).await;
    assert_eq!(until(&site, &run, "ended").await["outcome"], "succeeded");
    assert_eq!(lines(&site, 1, "next"), 1);
    site.stop().await;
}

#[tokio::test]
async fn stop_now_ends_running_steps() {
    let site = site().await;
    let vertices = [step("slow@n1", 1, "touch begun; sleep 30", &[])];
    let run = start(&site, &plan(&vertices)).await;
    eventually("task has started", || file(&site, 1, "begun").exists()).await;
    order(&site, &run, "stop", json!({"now": true})).await;
    let ended = until(&site, &run, "ended").await;
    assert_eq!(states(&site, &run).await, [("slow@n1".to_owned(), "interrupted".to_owned())]);
    assert_eq!(ended["failures"][0]["name"], "slow@n1");
    site.stop().await;
}

#[tokio::test]
async fn a_pause_lasts_until_it_is_undone() {
    let site = site().await;
    let vertices = [
        step("slow@n1", 1, HOLD, &[]),
        step("next@n1", 1, "touch next", &[0]),
        step("other@n2", 2, "touch other", &[0]),
    ];
    let run = start(&site, &plan(&vertices)).await;
    order(&site, &run, "pause", json!({"node": "n1"})).await;
    site.post(&format!("{RUNS}/{run}/pause"), &json!({"node": "n9"}))
        .await
        .problem(404, "not-found");
    put(&site, 1, "go");
    until_instance(&site, &run, "other@n2", "ok").await;
    let waiting = until(&site, &run, "waiting").await;
    assert_eq!(waiting["held"][0]["name"], "next@n1", "{waiting:#}");
    assert!(!file(&site, 1, "next").exists());
    order(&site, &run, "unpause", json!({"node": "n1"})).await;
    assert_eq!(until(&site, &run, "ended").await["outcome"], "succeeded");
    site.stop().await;
}

#[tokio::test]
async fn a_role_is_paused_on_its_nodes_and_the_others_go_on() {
    let site = site().await;
    let of = |role: u32, vertex| with(vertex, "failure_domain", json!(role));
    let mut plan = plan(&[
        of(0, step("a@n1", 1, HOLD, &[])),
        of(0, step("b@n1", 1, "true", &[0])),
        of(1, step("a@n2", 2, "true", &[])),
        of(1, step("b@n2", 2, "true", &[2])),
        of(2, step("b@n3", 3, "true", &[0])),
    ]);
    plan["failure_domains"] = json!([{"name": "web"}, {"name": "db"}, {"name": "web canaries"}]);
    let run = start(&site, &plan).await;
    until_instance(&site, &run, "a@n1", "running").await;
    let path = format!("{RUNS}/{run}/pause");
    let unknown = site.post(&path, &json!({"role": "weeb"})).await.problem(404, "not-found");
    assert_eq!(unknown.remedy.as_deref(), Some("did you mean `web`?"));
    site.post(&path, &json!({"role": "web", "node": "n1"})).await.problem(400, "invalid-body");
    order(&site, &run, "pause", json!({"role": "web"})).await;
    put(&site, 1, "go");
    until_instance(&site, &run, "a@n1", "ok").await;
    until_instance(&site, &run, "b@n2", "ok").await;
    let states = states(&site, &run).await;
    for paused in ["b@n1", "b@n3"] {
        assert!(states.contains(&(paused.to_owned(), "ready".to_owned())), "{states:?}");
    }
    order(&site, &run, "unpause", json!({"role": "web"})).await;
    assert_eq!(until(&site, &run, "ended").await["outcome"], "succeeded");
}

#[tokio::test]
async fn held_task_waits_for_its_release() {
    let site = site().await;
    let vertices = [step("slow@n1", 1, HOLD, &[]), step("next@n1", 1, "touch next", &[0])];
    let run = start(&site, &plan(&vertices)).await;
    let told = order(&site, &run, "hold", json!({"instances": ["next"]})).await;
    assert_eq!(told["instances"], json!(["next@n1"]), "a task is all of its instances");
    put(&site, 1, "go");
    let waiting = until(&site, &run, "waiting").await;
    assert_eq!(waiting["holds"], json!(["next@n1"]));
    order(&site, &run, "release", json!({"instances": ["next@n1"]})).await;
    assert_eq!(until(&site, &run, "ended").await["outcome"], "succeeded");
    site.stop().await;
}

#[tokio::test]
async fn run_stops_after_the_named_barrier_or_task() {
    let site = site().await;
    let vertices = [
        step("slow@n1", 1, HOLD, &[]),
        step("middle@n1", 1, "true", &[0]),
        step("last@n1", 1, "touch last", &[1]),
    ];
    let run = start(&site, &plan(&vertices)).await;
    order(&site, &run, "stop", json!({"after": "middle@n1"})).await;
    put(&site, 1, "go");
    let ended = until(&site, &run, "ended").await;
    assert_eq!(
        (&ended["outcome"], &ended["counts"]),
        (&json!("stopped"), &json!({"ok": 2, "stopped": 1}))
    );
    assert!(!file(&site, 1, "last").exists());
    site.stop().await;
}

#[tokio::test]
async fn run_stops_after_a_task_once_its_instances_have_ended() {
    let site = site().await;
    let vertices = [
        step("slow@n1", 1, HOLD, &[]),
        step("slow@n2", 2, HOLD, &[]),
        step("last@n1", 1, "touch last", &[0]),
        step("last@n2", 2, "touch last", &[1]),
    ];
    let run = start(&site, &plan(&vertices)).await;
    let told = order(&site, &run, "stop", json!({"after": "slow"})).await;
    assert_eq!(told["instances"], json!(["slow@n1", "slow@n2"]));
    put(&site, 1, "go");
    eventually("one goes on", || file(&site, 1, "last").exists()).await;
    put(&site, 2, "go");
    let ended = until(&site, &run, "ended").await;
    assert_eq!(ended["counts"], json!({"ok": 3, "stopped": 1}), "{ended:#}");
    assert!(!file(&site, 2, "last").exists());
    site.stop().await;
}

#[tokio::test]
async fn failed_steps_are_retried_or_marked_done() {
    let site = site().await;
    let vertices = [
        with(
            step("odd@n1", 1, "echo x >> tries; test -e fixed", &[]),
            "on_failure",
            json!("continue"),
        ),
        with(step("even@n2", 2, "false", &[]), "on_failure", json!("continue")),
        step("last@n3", 3, "touch last", &[0, 1]),
    ];
    let run = start(&site, &plan(&vertices)).await;
    assert_eq!(until(&site, &run, "ended").await["outcome"], "failed");
    put(&site, 1, "fixed");
    let mark = |good: bool| json!({"instances": ["even@n2"], "good": good});
    order(&site, &run, "mark", mark(true)).await;
    let refused = site.post(&format!("{RUNS}/{run}/mark"), &mark(true)).await;
    refused.problem(409, "conflict");
    order(&site, &run, "retry", json!({"instances": ["odd@n1"]})).await;
    let ended = until(&site, &run, "ended").await;
    assert_eq!(ended["outcome"], "succeeded", "{ended:#}");
    assert_eq!(lines(&site, 1, "tries"), 2);
    assert!(file(&site, 3, "last").exists());
    site.stop().await;
}

#[tokio::test]
async fn command_to_an_ending_run_is_taken_or_refused() {
    let site = site().await;
    for _ in 0..30 {
        let vertices = [
            with(step("bad@n1", 1, "false", &[]), "on_failure", json!("continue")),
            step("last@n2", 2, "true", &[]),
        ];
        let run = start(&site, &plan(&vertices)).await;
        until_instance(&site, &run, "bad@n1", "failed").await;
        let told =
            site.post(&format!("{RUNS}/{run}/retry"), &json!({"instances": ["bad@n1"]})).await;
        told.expect(200);
        until(&site, &run, "ended").await;
        let path = format!("{RUNS}/{run}/instances");
        let tried = |answer: &crate::site::Answer| answer.json()["items"][0]["attempt"] == 2;
        site.eventually(&path, tried).await;
    }
    site.stop().await;
}

#[tokio::test]
async fn command_without_an_effect_is_refused() {
    let site = site().await;
    let mut plan = plan(&[step("slow@n1", 1, HOLD, &[]), step("bad@n2", 2, "false", &[])]);
    plan["vertices"].as_array_mut().expect("a list").push(json!({
        "name": "barrier", "after": [0, 1], "kind": {"join": "any_end"}
    }));
    let run = start(&site, &plan).await;
    eventually("task has started", || file(&site, 1, "begun").exists()).await;
    until(&site, &run, "stopping").await;
    let retry = json!({"instances": ["bad@n2"]});
    let refused = site.post(&format!("{RUNS}/{run}/retry"), &retry).await;
    let problem = refused.problem(409, "conflict");
    assert!(problem.detail.contains("stopping"), "{}", problem.detail);
    let hold = json!({"instances": ["barrier"]});
    let refused = site.post(&format!("{RUNS}/{run}/hold"), &hold).await;
    assert!(refused.problem(409, "conflict").detail.contains("barrier"));
    put(&site, 1, "go");
    until(&site, &run, "ended").await;
    site.stop().await;
}

#[tokio::test]
async fn repeated_names_retry_once_and_one_resume_wins() {
    let site = site().await;
    let run = start(&site, &plan(&[step("odd@n1", 1, "echo x >> tries; false", &[])])).await;
    until(&site, &run, "ended").await;
    order(&site, &run, "retry", json!({"instances": ["odd@n1", "odd"]})).await;
    until(&site, &run, "ended").await;
    assert_eq!(lines(&site, 1, "tries"), 2);
    let path = format!("{RUNS}/{run}/resume");
    let body = json!({});
    let asked = (0..8).map(|_| site.post(&path, &body));
    for answer in futures_util::future::join_all(asked).await {
        if answer.status != 200 {
            let problem = answer.problem(409, "conflict");
            assert!(!problem.detail.contains("another process"), "{}", problem.detail);
        }
    }
    until(&site, &run, "ended").await;
    site.stop().await;
}

#[tokio::test]
async fn marked_steps_turn_an_ended_run_into_a_success() {
    let site = site().await;
    let run = start(&site, &plan(&[step("bad@n1", 1, "false", &[])])).await;
    assert_eq!(until(&site, &run, "ended").await["outcome"], "failed");
    order(&site, &run, "mark", json!({"instances": ["bad@n1"], "good": true})).await;
    let path = format!("{RUNS}/{run}");
    let is_good = |answer: &crate::site::Answer| answer.json()["outcome"] == "succeeded";
    site.eventually(&path, is_good).await;
    site.stop().await;
}

#[tokio::test]
async fn undone_steps_do_not_count_as_done() {
    let site = site().await;
    let undo = json!({"action": "shell", "input": {"command": "rm first"}});
    let first = with(step("first@n1", 1, "echo x > first", &[]), "undo", undo);
    let first = with(first, "fingerprint", json!("a"));
    let plan = plan(&[first, step("bad@n2", 2, "false", &[0])]);
    let run = start(&site, &plan).await;
    until(&site, &run, "ended").await;
    let undone = site.post(&format!("{RUNS}/{run}/undo"), &json!({"leave_gaps": true})).await;
    let undone = undone.expect(201).json()["run"]["id"].as_str().expect("an id").to_owned();
    until(&site, &undone, "ended").await;
    assert!(!file(&site, 1, "first").exists(), "it was undone");
    let resumed = site.post(&format!("{RUNS}/{run}/resume?dry_run=1"), &json!({})).await;
    assert_eq!(resumed.expect(200).json()["instances"], json!(["first@n1", "bad@n2"]));
    let body = json!({"title": "again", "plan": plan});
    let next = site.post(&format!("{RUNS}/{run}/continue"), &body).await.expect(201).json();
    until(&site, next["id"].as_str().expect("an id"), "ended").await;
    assert!(file(&site, 1, "first").exists(), "it was done again");
    site.stop().await;
}
