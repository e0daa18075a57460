//! Nodes that do not continue by themselves, and the remedies.

use std::time::Duration;

use serde_json::{Value, json};

use crate::provision::agent::{Agent, done, failed};
use crate::provision::{profile, run, script, site, start, until};
use crate::site::{Answer, Site, plain_client};

async fn steer(site: &Site, run: &str, what: &str) -> Value {
    site.post(&format!("/provision/v1/runs/{run}/{what}"), &json!({})).await.expect(200).json()
}

/// Begins it once more, with these keys.
async fn retry(site: &Site, run: &str, keys: &[String]) -> Answer {
    site.post(&format!("/provision/v1/runs/{run}/retry"), &json!({"keys": keys})).await
}

/// The first node of a run, once it has this note.
async fn noted(site: &Site, run: &str, word: &str) -> Value {
    let path = format!("/provision/v1/runs/{run}");
    let has = |node: &Value| node["note"].as_str().is_some_and(|note| note.contains(word));
    let answer = site.eventually(&path, |answer| has(&answer.json()["nodes"][0])).await;
    answer.json()["nodes"][0].clone()
}

/// Checks that the events since then report a silent agent so many times, and not more often within
/// a while.
async fn silences(site: &Site, since: &str, count: usize) {
    let url = site.url(&format!("/events/v1?since={since}&kind=provision.silent"));
    let asked = plain_client().build().expect("a client").get(url);
    let mut stream = asked.bearer_auth(&site.admin).send().await.expect("a stream");
    let after = |seconds| tokio::time::Instant::now() + Duration::from_secs(seconds);
    let mut text = String::new();
    let mut deadline = after(20);
    let mut is_told = false;
    let told = |text: &str| text.matches("event: provision.silent").count();
    while let Ok(chunk) = tokio::time::timeout_at(deadline, stream.chunk()).await {
        let chunk = chunk.expect("it is read").expect("it goes on");
        text.push_str(&String::from_utf8_lossy(&chunk));
        if told(&text) >= count && !is_told {
            // Runs are checked more often than that.
            (deadline, is_told) = (after(3), true);
        }
    }
    assert_eq!(told(&text), count, "{text}");
}

#[tokio::test]
async fn retry_admits_a_restarted_machine() {
    let site = site(|_| {}).await;
    let id = start(&site, &json!({"selector": "node:n1"})).await;
    let before = Agent::boot(&site, 1, 1).await;
    let cut_off = before.job(&site).await;
    // After a power cut it comes with the same token, which another key has.
    let after = Agent::boot(&site, 1, 2).await;
    let problem = after.ask(&site).await.problem(403, "forbidden");
    assert!(problem.remedy.is_some_and(|remedy| remedy.contains("`hoist provision retry --key`")));
    let shown = noted(&site, &id, "hoist provision retry").await;
    let [first, second] = [before.fingerprint(), after.fingerprint()];
    assert_eq!(
        (&shown["claimed"]["key"], &shown["quarantined"][0]["key"]),
        (&json!(first), &json!(second))
    );
    assert_eq!(shown["quarantined"][0]["from"], "10.0.0.1");
    // Every key must be named before it is accepted.
    for keys in [&[][..], &["0".repeat(16)], &[second[..8].to_owned()]] {
        let problem = retry(&site, &id, keys).await.problem(409, "key-not-named");
        let told = &problem.errors[0].message;
        for known in [&first, &second] {
            assert!(told.contains(&format!("{known} from 10.0.0.1 at ")), "{told}");
        }
        assert!(problem.remedy.is_some_and(|remedy| remedy.contains("--key")));
    }
    after.ask(&site).await.problem(403, "forbidden");
    let steered = retry(&site, &id, &[second]).await.expect(200).json();
    assert_eq!(steered["nodes"], json!(["n1"]));
    // The agent need not restart, and its token admits no other one.
    let session = after.job(&site).await;
    assert_eq!(session.job["document"]["txn"], cut_off.job["document"]["txn"]);
    before.ask(&site).await.problem(403, "forbidden");
    Agent::boot(&site, 1, 3).await.ask(&site).await.problem(403, "forbidden");
    assert_eq!(session.reports(&site, &done()).await, "reboot");
    until(&site, &id, "n1", "done").await;
    site.stop().await;
}

#[tokio::test]
async fn retry_admits_no_machine_if_several_used_one_token() {
    let site = site(|_| {}).await;
    let id = start(&site, &json!({"selector": "node:n1"})).await;
    Agent::boot(&site, 1, 1).await.job(&site).await;
    let others = [Agent::boot(&site, 1, 2).await, Agent::boot(&site, 1, 3).await];
    for other in &others {
        other.ask(&site).await.problem(403, "forbidden");
    }
    retry(&site, &id, &[]).await.problem(409, "key-not-named");
    let told = retry(&site, &id, &["none".to_owned()]).await.expect(200).json();
    assert!(told["notes"][0].as_str().is_some_and(|note| note.contains("network again")), "{told}");
    for other in &others {
        other.ask(&site).await.problem(403, "forbidden");
    }
    Agent::boot(&site, 1, 4).await.job(&site).await;
    site.stop().await;
}

#[tokio::test]
async fn retry_of_a_run_leaves_out_nodes_whose_key_is_not_named() {
    let site = site(|_| {}).await;
    let id = start(&site, &json!({"selector": "node:n1,node:n2"})).await;
    Agent::boot(&site, 1, 1).await.job(&site).await;
    let other = Agent::boot(&site, 1, 2).await;
    other.ask(&site).await.problem(403, "forbidden");
    Agent::boot(&site, 2, 3).await.job(&site).await.reports(&site, &failed("failed")).await;
    let told = steer(&site, &id, "retry").await;
    assert_eq!(told["nodes"], json!(["n2"]));
    let note = told["notes"][0].as_str().expect("a note");
    assert!(note.contains("n1") && note.contains(&other.fingerprint()), "{note}");
    other.ask(&site).await.problem(403, "forbidden");
    site.stop().await;
}

#[tokio::test]
async fn waiting_agent_continues_repeatedly_and_keeps_its_slot() {
    let site = site(|_| {}).await;
    let id = start(&site, &json!({"selector": "node:n1"})).await;
    let agent = Agent::boot(&site, 1, 1).await;
    agent.job(&site).await.reports(&site, &failed("failed")).await;
    for _ in 0..2 {
        steer(&site, &id, "retry").await;
        let session = agent.job(&site).await;
        // The token that the machine would find now is as much its own.
        Agent::boot(&site, 1, 2).await.ask(&site).await.problem(403, "forbidden");
        session.reports(&site, &failed("failed")).await;
    }
    steer(&site, &id, "retry").await;
    // The machine that was started anew meanwhile is the only one.
    Agent::boot(&site, 1, 3).await.job(&site).await;
    agent.ask(&site).await.problem(403, "forbidden");
    site.stop().await;
}

#[tokio::test]
async fn silent_agent_is_restarted_or_given_up() {
    let site = site(|config| config.agent_silence = Duration::from_secs(1)).await;
    let before = site.controller.chassis().events.last_id();
    let id = start(&site, &json!({"selector": "node:n1"})).await;
    let lost = Agent::boot(&site, 1, 1).await.job(&site).await;
    let told = steer(&site, &id, "retry").await;
    assert_eq!(told["nodes"], json!([]), "it works");
    assert!(told["notes"][0].as_str().is_some_and(|note| note.contains("not disturbed")), "{told}");
    noted(&site, &id, "no message of its agent").await;
    silences(&site, &before, 1).await;
    steer(&site, &id, "retry").await;
    lost.send(&site, "events", &json!({"events": []})).await.problem(403, "attempt-over");
    let lost = Agent::boot(&site, 1, 2).await.job(&site).await;
    // Signs of life are enough.
    for _ in 0..6 {
        tokio::time::sleep(Duration::from_millis(250)).await;
        lost.send(&site, "events", &json!({"events": []})).await.expect(200);
    }
    assert_eq!(run(&site, &id).await["nodes"][0]["note"], Value::Null);
    noted(&site, &id, "no message of its agent").await;
    // Once each time, however often the run is checked.
    silences(&site, &before, 2).await;
    steer(&site, &id, "abort").await;
    until(&site, &id, "n1", "aborted").await;
    assert!(script(&site, 1).await.contains("this node is held"));
    site.eventually(&format!("/provision/v1/runs/{id}"), |a| a.json()["state"] == "aborted").await;
    start(&site, &json!({"selector": "node:n1"})).await;
    site.stop().await;
}

#[tokio::test]
async fn node_with_unfinished_disks_is_held_when_its_run_ends() {
    let site = site(|_| {}).await;
    let id = start(&site, &json!({"selector": "node:n1,node:n2"})).await;
    let mut written = failed("failed");
    written["changed"] = json!(true);
    Agent::boot(&site, 1, 1).await.job(&site).await.reports(&site, &written).await;
    Agent::boot(&site, 2, 2).await.job(&site).await.reports(&site, &failed("refused")).await;
    steer(&site, &id, "retry").await;
    until(&site, &id, "n1", "pending").await;
    steer(&site, &id, "abort").await;
    assert!(script(&site, 1).await.contains("this node is held"));
    assert!(script(&site, 2).await.contains("http://k/live"), "nothing was written");
    site.stop().await;
}

#[tokio::test]
async fn node_enrolled_by_a_run_rejects_manual_enrollment() {
    let site = site(|_| {}).await;
    let id = start(&site, &json!({"selector": "node:n1"})).await;
    for method in ["POST", "DELETE"] {
        let asked = site.ask(method, "/provision/v1/nodes/n1/enrollment").send().await;
        let problem = asked.problem(409, "conflict");
        assert!(problem.detail.contains(&id), "{problem:?}");
    }
    let node = run(&site, &id).await["nodes"][0]["id"].clone();
    site.post("/inventory/v1/renew", &json!({"nodes": [node]})).await.expect(200);
    Agent::boot(&site, 1, 1).await.ask(&site).await.problem(403, "forbidden");
    noted(&site, &id, "the node was renewed").await;
    steer(&site, &id, "retry").await;
    Agent::boot(&site, 1, 1).await.job(&site).await;
    site.stop().await;
}

#[tokio::test]
async fn node_protected_after_enrollment_is_not_written() {
    let site = site(|_| {}).await;
    let id = start(&site, &json!({"selector": "node:n1,node:n2", "how": {"at_once": 1}})).await;
    let agent = Agent::boot(&site, 1, 1).await;
    let nodes = run(&site, &id).await["nodes"].clone();
    for n in [0, 1] {
        let node = nodes[n]["id"].as_str().expect("an id");
        site.put(&format!("/inventory/v1/nodes/{node}/protection"), &json!({})).await.expect(200);
    }
    assert!(script(&site, 1).await.contains("http://k/live"), "as if it were in no run");
    agent.ask(&site).await.problem(409, "protected");
    for node in run(&site, &id).await["nodes"].as_array().expect("nodes") {
        assert!(node["note"].as_str().is_some_and(|note| note.contains("protected")), "{node}");
    }
    let node = nodes[0]["id"].as_str().expect("an id");
    site.delete(&format!("/inventory/v1/nodes/{node}/protection")).await.expect(200);
    agent.job(&site).await;
    site.stop().await;
}

#[tokio::test]
async fn output_of_an_attempt_is_not_shown_for_the_next() {
    let site = site(|_| {}).await;
    let id = start(&site, &json!({"selector": "node:n1"})).await;
    let first = Agent::boot(&site, 1, 1).await.job(&site).await;
    first.says(&site, 1, 4000).await;
    Agent::boot(&site, 1, 2).await.ask(&site).await.problem(403, "forbidden");
    retry(&site, &id, &["none".to_owned()]).await.expect(200);
    Agent::boot(&site, 1, 3).await.job(&site).await;
    assert_eq!(until(&site, &id, "n1", "working").await["progress"], Value::Null);
    site.stop().await;
}

#[tokio::test]
async fn node_never_up_has_no_previous_system() {
    let site = site(|_| {}).await;
    let id = start(&site, &json!({"selector": "node:n1"})).await;
    let good = Agent::boot(&site, 1, 1).await.job(&site).await;
    good.reports(&site, &done()).await;
    until(&site, &id, "n1", "done").await;
    let changed = json!({"phone_home_within_s": 1, "document": {"boot": {"kernel_args": ["bad"]}}});
    profile(&site, "base", "*", changed).await;
    let id = start(&site, &json!({"selector": "node:n1", "reinstall": true})).await;
    let bad = Agent::boot(&site, 1, 2).await.job(&site).await;
    bad.reports(&site, &done()).await;
    until(&site, &id, "n1", "failed").await;
    start(&site, &json!({"selector": "node:n1", "previous": true})).await;
    let back = Agent::boot(&site, 1, 3).await.job(&site).await;
    assert_eq!(back.job["document"]["sections"], good.job["document"]["sections"]);
    site.stop().await;
}
