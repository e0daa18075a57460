//! Taking back what runs did.

use serde_json::{Value, json};

use crate::site::Site;
use crate::{
    HOLD, RUNS, eventually, file, order, plan, put, site, site_with, start, step, until, with,
};

/// A list that writes one file and copies another, after which it is looked whether it may be done.
fn list(name: &str, node: u32) -> Value {
    let mut vertex = step(name, node, "", &[]);
    let steps = json!([
        {"action": "file", "input": {"path": "one", "text": "new"}},
        {"action": "copy", "input": {"from": "source", "to": "two"}},
    ]);
    vertex["kind"]["step"]["call"] = json!({"action": "steps", "input": {"steps": steps}});
    with(vertex, "fingerprint", json!("a"))
}

fn text(site: &Site, node: u32, name: &str) -> String {
    fs_err::read_to_string(file(site, node, name)).unwrap_or_default()
}

async fn undo(site: &Site, run: &str) -> Value {
    let undone = site.post(&format!("{RUNS}/{run}/undo"), &json!({})).await.expect(201).json();
    until(site, undone["run"]["id"].as_str().expect("an id"), "ended").await
}

/// A run of [`list`] on `n1` that failed half-way and then came to a good end.
async fn tried_twice(site: &Site) -> String {
    put(site, 1, "one");
    let run = start(site, &plan(&[list("list@n1", 1)])).await;
    assert_eq!(until(site, &run, "ended").await["outcome"], "failed");
    assert_eq!(text(site, 1, "one"), "new", "it came half-way");
    put(site, 1, "source");
    order(site, &run, "resume", json!({})).await;
    assert_eq!(until(site, &run, "ended").await["outcome"], "succeeded");
    run
}

#[tokio::test]
async fn what_all_attempts_did_is_taken_back_once() {
    let site = site().await;
    let run = tried_twice(&site).await;
    let dry = site.post(&format!("{RUNS}/{run}/undo?dry_run=1"), &json!({})).await;
    let unsure = "undo list@n1: 1 of its 2 attempts gave no receipt; what was kept of them decides";
    assert_eq!(dry.expect(200).json()["unsure"], json!([unsure]));
    let undone = undo(&site, &run).await;
    assert_eq!(undone["outcome"], "succeeded", "{undone:#}");
    assert!(file(&site, 1, "one").exists() && !file(&site, 1, "two").exists());
    assert_eq!(text(&site, 1, "one"), "", "as it was before the first of them");
    let again = site.post(&format!("{RUNS}/{run}/undo"), &json!({})).await;
    assert_eq!(again.problem(409, "conflict").detail, "there is nothing to take back");
    // What takes back is not taken back.
    let back = undone["id"].as_str().expect("an id");
    let path = format!("{RUNS}/{back}/undo");
    let gaps = site.post(&path, &json!({})).await.problem(409, "conflict");
    assert!(gaps.detail.starts_with("1 instances cannot be taken back"), "{}", gaps.detail);
    let left = site.post(&path, &json!({"leave_gaps": true})).await;
    assert_eq!(left.problem(409, "conflict").detail, "nothing of the run can be taken back");
    site.stop().await;
}

#[tokio::test]
async fn only_what_is_named_is_taken_back() {
    let site = site().await;
    let write = |name: &str, path: &str| {
        let mut vertex = step(name, 1, "", &[]);
        let call = json!({"action": "file", "input": {"path": path, "text": "new"}});
        vertex["kind"]["step"]["call"] = call;
        vertex
    };
    let run = start(&site, &plan(&[write("a@n1", "a"), write("b@n1", "b")])).await;
    until(&site, &run, "ended").await;
    let path = format!("{RUNS}/{run}/undo");
    site.post(&path, &json!({"instances": ["c"]})).await.problem(404, "not-found");
    let undone = site.post(&path, &json!({"instances": ["a"]})).await.expect(201).json();
    assert_eq!(undone["instances"], json!(["undo a@n1"]));
    until(&site, undone["run"]["id"].as_str().expect("an id"), "ended").await;
    assert!(!file(&site, 1, "a").exists() && file(&site, 1, "b").exists());
}

#[tokio::test]
async fn what_was_carried_over_is_taken_back_with_all_of_its_attempts() {
    let site = site().await;
    let run = tried_twice(&site).await;
    let body = json!({"title": "again", "plan": plan(&[list("list@n1", 1)])});
    let next = site.post(&format!("{RUNS}/{run}/continue"), &body).await.expect(201).json();
    let next = next["id"].as_str().expect("an id");
    until(&site, next, "ended").await;
    assert_eq!(undo(&site, next).await["outcome"], "succeeded");
    assert_eq!(text(&site, 1, "one"), "");
    assert!(!file(&site, 1, "two").exists());
    site.stop().await;
}

#[tokio::test]
async fn what_cannot_be_taken_back_is_named_and_the_run_has_failed_until_it_can() {
    let site = site().await;
    for node in [1, 2] {
        put(&site, node, "source");
    }
    let run = start(&site, &plan(&[list("list@n1", 1), list("list@n2", 2)])).await;
    until(&site, &run, "ended").await;
    let (kept, gone) = (file(&site, 1, ".hoist/backup"), file(&site, 1, ".hoist/gone"));
    fs_err::rename(&kept, &gone).expect("a directory");
    let undone = undo(&site, &run).await;
    assert_eq!(undone["outcome"], "failed", "{undone:#}");
    let reason = undone["failures"][0]["reason"].as_str().expect("a reason");
    let said = format!("it cannot be taken back: attempt {run}/0/1: copy (2 of the list): what it");
    assert!(reason.contains(&said), "{reason}");
    assert!(file(&site, 1, "two").exists() && !file(&site, 2, "two").exists());
    // Only what is left is taken back the second time.
    fs_err::rename(&gone, &kept).expect("a directory");
    put(&site, 2, "two");
    let undone = undo(&site, &run).await;
    assert_eq!(undone["counts"], json!({"ok": 1}));
    assert!(!file(&site, 1, "two").exists() && file(&site, 2, "two").exists());
    site.stop().await;
}

#[tokio::test]
async fn lists_and_nodes_that_cannot_be_taken_back_are_gaps_before_anything_starts() {
    let site = site_with(|config| {
        config.deploy.local = Some("node:n1".parse().expect("a selector"));
        config.deploy.ssh = Some("node:n2".parse().expect("a selector"));
    });
    let site = site.await;
    put(&site, 1, "source");
    let mut mixed = list("mixed@n1", 1);
    let steps = &mut mixed["kind"]["step"]["call"]["input"]["steps"];
    steps.as_array_mut().expect("a list").push(json!({"action": "none"}));
    steps[0] = json!({"action": "shell", "input": {"command": "true"}});
    let mut far = step("far@n2", 2, "", &[]);
    far["kind"]["step"]["call"] = json!({"action": "file", "input": {"path": "/x", "text": ""}});
    let far = with(far, "on_failure", json!("continue"));
    let run = start(&site, &plan(&[mixed, far])).await;
    until(&site, &run, "ended").await;
    let dry = site.post(&format!("{RUNS}/{run}/undo?dry_run=1"), &json!({})).await;
    let far = "far@n2: its node is reached by ssh, and only an agent can do it";
    assert_eq!(dry.expect(200).json()["gaps"], json!(["mixed@n1: nobody said how", far]));
    site.stop().await;
}

#[tokio::test]
async fn a_run_is_taken_back_by_one_at_a_time_and_does_not_go_on_meanwhile() {
    let site = site().await;
    let call = json!({"action": "shell", "input": {"command": HOLD}});
    let first = with(step("first@n1", 1, "true", &[]), "undo", call);
    let bad = with(step("bad@n2", 2, "false", &[0]), "undo", json!({"action": "none"}));
    let run = start(&site, &plan(&[first, bad])).await;
    until(&site, &run, "ended").await;
    let path = format!("{RUNS}/{run}");
    let undone = site.post(&format!("{path}/undo"), &json!({})).await.expect(201).json();
    let undone = undone["run"]["id"].as_str().expect("an id");
    eventually("it began", || file(&site, 1, "begun").exists()).await;
    for word in ["undo", "resume"] {
        let refused = site.post(&format!("{path}/{word}"), &json!({})).await;
        let problem = refused.problem(409, "conflict");
        assert!(problem.detail.contains(undone), "{word}: {}", problem.detail);
    }
    put(&site, 1, "go");
    assert_eq!(until(&site, undone, "ended").await["outcome"], "succeeded");
    site.stop().await;
}

#[tokio::test]
async fn what_a_later_run_changed_is_not_put_back_unless_that_is_wanted() {
    let site = site().await;
    let write = async |text: &str| {
        let mut vertex = step("conf@n1", 1, "", &[]);
        let input = json!({"path": "conf", "text": text});
        vertex["kind"]["step"]["call"] = json!({"action": "file", "input": input});
        let run = start(&site, &plan(&[vertex])).await;
        assert_eq!(until(&site, &run, "ended").await["outcome"], "succeeded");
        run
    };
    let first = write("one").await;
    let second = write("two").await;
    let refused = undo(&site, &first).await;
    assert_eq!(refused["outcome"], "failed", "{refused:#}");
    let reason = refused["failures"][0]["reason"].as_str().expect("a reason");
    assert!(reason.contains("conf` was changed since the step left it"), "{reason}");
    assert!(reason.contains("`--over-changes`"), "{reason}");
    assert_eq!(text(&site, 1, "conf"), "two", "it is as the later run left it");

    assert_eq!(undo(&site, &second).await["outcome"], "succeeded");
    assert_eq!(text(&site, 1, "conf"), "one");
    let third = write("three").await;
    let over = json!({"over_changes": true});
    let undone = site.post(&format!("{RUNS}/{first}/undo"), &over).await.expect(201).json();
    let undone = until(&site, undone["run"]["id"].as_str().expect("an id"), "ended").await;
    assert_eq!(undone["outcome"], "succeeded", "{undone:#}");
    assert!(!file(&site, 1, "conf").exists(), "as it was before the first of them");
    let refused = undo(&site, &third).await;
    assert_eq!(refused["outcome"], "failed", "what the last one left is gone: {refused:#}");
    site.stop().await;
}
