//! Ended runs: their summaries and their retention.

use hoist_store::Store;
use hoist_testkit::eventually_async;
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::deploy::{RUNS, plan, site, site_with, start, step, until};

#[tokio::test]
async fn runs_are_listed_newest_first_and_found_by_id_suffix() {
    let site = site().await;
    let first = start(&site, &plan(&[step("a@n1", 1, "true", &[])])).await;
    until(&site, &first, "ended").await;
    let second = start(&site, &plan(&[step("a@n1", 1, "true", &[])])).await;
    until(&site, &second, "ended").await;
    let list = site.get(RUNS).await.expect(200).json();
    let ids: Vec<&str> = list["items"]
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(|run| run["id"].as_str())
        .collect();
    assert_eq!(ids, [&second, &first]);
    let end = &first[first.len() - 6..];
    assert_eq!(site.get(&format!("{RUNS}/{end}")).await.expect(200).json()["id"], first);
    let check = json!({"check": true, "plan": plan(&[step("a@n1", 1, "true", &[])])});
    let check = site.post(RUNS, &check).await.expect(201).json();
    assert_eq!(check["check"], true, "{check:#}");
    assert_eq!(site.get(&format!("{RUNS}/last")).await.expect(200).json()["id"], second);
    until(&site, check["id"].as_str().expect("an id"), "ended").await;
    let site = site.restart().await;
    assert_eq!(site.get(&format!("{RUNS}/last")).await.expect(200).json()["id"], second);
    site.get(&format!("{RUNS}/{}", &first[25..])).await.problem(404, "not-found");
    let one = site.get(&format!("{RUNS}?limit=1")).await.expect(200).json();
    assert_eq!(one["items"].as_array().map(Vec::len), Some(1));
    site.get(&format!("{RUNS}?limit=0")).await.problem(400, "bad-parameter");
    site.stop().await;
}

#[tokio::test]
async fn listed_runs_are_in_the_store() {
    let site = site().await;
    let run = start(&site, &plan(&[step("a@n1", 1, "true", &[])])).await;
    until(&site, &run, "ended").await;
    let key = format!("run/{run}").parse().expect("a key");
    let store = site.controller.chassis().store.clone();
    eventually_async("outcome of the run in the store", async || {
        let record = store.get(&key).await.expect("the store").map(|record| record.value);
        let found: Value = serde_json::from_slice(&record.unwrap_or_default()).unwrap_or_default();
        if found["outcome"] == "succeeded" { Ok(()) } else { Err(found) }
    })
    .await;
    site.stop().await;
}

#[tokio::test]
async fn old_runs_go_at_the_next_start() {
    let site = site_with(|config| config.deploy.retention.max_runs = 1).await;
    let mut runs = Vec::new();
    for _ in 0..3 {
        let run = start(&site, &plan(&[step("a@n1", 1, "true", &[])])).await;
        until(&site, &run, "ended").await;
        // Ids of runs are ordered by milliseconds.
        let ended = Timestamp::now().as_millisecond();
        let next = async || Timestamp::now().as_millisecond() > ended;
        eventually_async("clock shows another millisecond", next).await;
        runs.push(run);
    }
    let site = site.restart().await;
    let count = |list: &Value| list["items"].as_array().map(Vec::len);
    let left = site.eventually(RUNS, |answer| count(&answer.json()) == Some(1)).await.json();
    assert_eq!(left["items"][0]["id"], runs[2].as_str());
    assert!(!site.data_dir().join("journal").join(&runs[0]).exists());
    site.stop().await;
}
