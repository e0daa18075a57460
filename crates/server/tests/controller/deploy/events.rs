//! Events of runs, for clients.

use futures_util::StreamExt;
use serde_json::{Value, json};

use crate::deploy::{
    HOLD, RUNS, eventually, file, order, plan, put, site, start, step, until, until_instance, with,
};
use crate::site::Site;

/// Server-sent events until the stream ends: their numbers and data.
async fn stream(site: &Site, run: &str, after: u64) -> Vec<(u64, Value)> {
    let answer = site
        .ask("GET", &format!("{RUNS}/{run}/events"))
        .header("accept", "text/event-stream")
        .header("last-event-id", &after.to_string())
        .open()
        .await;
    let mut bytes = answer.bytes_stream();
    let mut text = String::new();
    while let Some(chunk) = bytes.next().await {
        text.push_str(&String::from_utf8_lossy(&chunk.expect("a chunk")));
    }
    let data = text.lines().filter_map(|line| line.strip_prefix("data:"));
    let events = data.map(|data| serde_json::from_str::<Value>(data).expect("an event"));
    events.map(|event| (event["seq"].as_u64().expect("a number"), event)).collect()
}

#[tokio::test]
async fn interrupted_stream_resumes_at_its_position() {
    let site = site().await;
    let run = start(&site, &plan(&[step("a@n1", 1, HOLD, &[])])).await;
    let path = format!("{RUNS}/{run}/events?after=2&wait=30s");
    let (late, ()) = tokio::join!(site.get(&path), async { put(&site, 1, "go") });
    let late = late.expect(200).json();
    assert_eq!(late["items"][0]["seq"], 3, "{late:#}");
    until(&site, &run, "ended").await;
    let all = stream(&site, &run, 0).await;
    let numbers: Vec<u64> = all.iter().map(|(seq, _)| *seq).collect();
    assert_eq!(numbers, (1..=all.len() as u64).collect::<Vec<_>>());
    let kinds: Vec<&str> = all.iter().filter_map(|(_, event)| event["record"].as_str()).collect();
    assert_eq!(kinds, ["plan", "intent", "ran", "finished"]);
    assert_eq!((&all[1].1["name"], &all[1].1["node"]), (&json!("a@n1"), &json!("n1")));
    assert_eq!(all[2].1.get("receipt"), None, "that is for undoing only");
    let rest = stream(&site, &run, 2).await;
    assert_eq!(rest, all[2..]);
    let site = site.restart().await;
    assert_eq!(stream(&site, &run, 0).await, all, "the same after a restart");
    site.stop().await;
}

#[tokio::test]
async fn poll_of_an_ended_run_returns_at_once() {
    let site = site().await;
    let run = start(&site, &plan(&[step("a@n1", 1, "true", &[])])).await;
    until(&site, &run, "ended").await;
    let path = format!("{RUNS}/{run}/events?after=999&wait=5m");
    let empty = site.get(&path).await.expect(200).json();
    assert_eq!((&empty["items"], &empty["state"]), (&json!([]), &json!("ended")));
    let wrong = site.get(&format!("{RUNS}/{run}/events?wait=soon")).await;
    wrong.problem(400, "bad-parameter");
    site.stop().await;
}

#[tokio::test]
async fn failed_checks_have_title_output_and_exit_code_apart() {
    let site = site().await;
    let check = json!([{"action": "shell", "input": {
        "command": "echo alice pts/0; exit 3", "says": "no one is logged in",
    }}]);
    let mut refused = step("refused@n1", 1, "true", &[]);
    refused["kind"]["step"]["before"] = check.clone();
    refused["kind"]["step"]["on_failure"] = json!("continue");
    let mut failed = step("failed@n2", 2, "true", &[]);
    failed["kind"]["step"]["after"] = check;
    failed["kind"]["step"]["on_failure"] = json!("continue");
    let run = start(&site, &plan(&[refused, failed])).await;
    until(&site, &run, "ended").await;
    let fields = json!({"title": "no one is logged in", "output": "alice pts/0", "exit_code": 3});
    let events = site.get(&format!("{RUNS}/{run}/events")).await.expect(200).json();
    let of = |kind: &str, field: &str| {
        let mut all = events["items"].as_array().expect("a list").iter();
        all.find(|event| event["record"] == kind).map(|event| event[field].clone())
    };
    assert_eq!(of("refused", "check"), Some(fields.clone()), "{events:#}");
    assert_eq!(of("verified", "failed"), Some(fields.clone()), "{events:#}");
    let shown = site.get(&format!("{RUNS}/{run}")).await.expect(200).json();
    for (at, kind, tail) in [(0, "precondition", "; nothing was changed"), (1, "postcondition", "")]
    {
        let failure = &shown["failures"][at];
        let mut wanted = fields.clone();
        wanted["kind"] = json!(kind);
        assert_eq!(failure["check"], wanted, "{shown:#}");
        let told =
            format!("{kind} \"no one is logged in\" failed (exit code 3): alice pts/0{tail}");
        assert_eq!(failure["reason"], json!(told));
    }
    site.stop().await;
}

#[tokio::test]
async fn undo_data_is_in_no_event() {
    let site = site().await;
    let mut first = step("first@n1", 1, "", &[]);
    first["kind"]["step"]["call"] =
        json!({"action": "file", "input": {"path": "made", "text": "x"}});
    first["kind"]["step"]["fingerprint"] = json!("a");
    let plan = plan(&[first, step("bad@n2", 2, "false", &[0])]);
    let run = start(&site, &plan).await;
    until(&site, &run, "ended").await;
    let body = json!({"title": "again", "plan": plan});
    let next = site.post(&format!("{RUNS}/{run}/continue"), &body).await.expect(201).json();
    let next = next["id"].as_str().expect("an id");
    until(&site, next, "ended").await;
    for (run, kind) in [(run.as_str(), "ran"), (next, "carried")] {
        let events = site.get(&format!("{RUNS}/{run}/events")).await.expect(200).json();
        let items = events["items"].as_array().expect("a list");
        assert!(items.iter().any(|event| event["record"] == kind), "{events:#}");
        let is_told = |event: &serde_json::Value| {
            ["receipt", "made"].iter().any(|key| event.get(key).is_some())
        };
        assert!(!items.iter().any(is_told), "{events:#}");
    }
    site.stop().await;
}

#[tokio::test]
async fn poll_of_a_paused_run_returns_when_nothing_runs() {
    let site = site().await;
    let vertices = [step("slow@n1", 1, HOLD, &[]), step("then@n1", 1, "true", &[0])];
    let run = start(&site, &plan(&vertices)).await;
    eventually("step has started", || file(&site, 1, "begun").exists()).await;
    order(&site, &run, "pause", json!({})).await;
    let busy = site.get(&format!("{RUNS}/{run}/events")).await.expect(200).json();
    assert_eq!((&busy["state"], &busy["rests"]), (&json!("paused"), &json!(false)));
    put(&site, 1, "go");
    until_instance(&site, &run, "slow@n1", "ok").await;
    let path = format!("{RUNS}/{run}/events?after=999&wait=5m");
    let empty = site.get(&path).await.expect(200).json();
    assert_eq!((&empty["state"], &empty["rests"]), (&json!("paused"), &json!(true)));
    let detail = site.get(&format!("{RUNS}/{run}")).await.expect(200).json();
    assert_eq!(detail["paused_by"], "admin", "{detail:#}");
    order(&site, &run, "unpause", json!({})).await;
    until(&site, &run, "ended").await;
    site.stop().await;
}

#[tokio::test]
async fn poll_of_a_run_paused_by_its_breaker_returns_at_once() {
    let site = site().await;
    let one_at_a_time = |name: &str, node: u32, command: &str| {
        let step = with(step(name, node, command, &[]), "on_failure", json!("continue"));
        with(with(step, "limits", json!([0])), "kin", json!(0))
    };
    let mut plan = plan(&[
        one_at_a_time("bad@n1", 1, "false"),
        one_at_a_time("bad@n2", 2, "false"),
        one_at_a_time("then@n3", 3, "true"),
    ]);
    plan["limits"] = json!([{"name": "one", "slots": 1}]);
    plan["breaker"] = json!(2);
    let run = start(&site, &plan).await;
    until(&site, &run, "paused").await;
    let path = format!("{RUNS}/{run}/events?after=999&wait=5m");
    let empty = site.get(&path).await.expect(200).json();
    assert_eq!((&empty["state"], &empty["rests"]), (&json!("paused"), &json!(true)));
    site.stop().await;
}
