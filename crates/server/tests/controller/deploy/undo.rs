//! undoing what runs did.

use serde_json::{Value, json};

use crate::deploy::{
    HOLD, RUNS, eventually, file, lines, order, plan, put, site, site_with, start, step, until,
    with,
};
use crate::site::Site;

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
async fn undo_covers_all_attempts_once() {
    let site = site().await;
    let run = tried_twice(&site).await;
    let dry = site.post(&format!("{RUNS}/{run}/undo?dry_run=1"), &json!({})).await;
    let unsure = "undo list@n1: 1 of its 2 attempts gave no receipt; backups on the node decide";
    assert_eq!(dry.expect(200).json()["unsure"], json!([unsure]));
    let undone = undo(&site, &run).await;
    assert_eq!(undone["outcome"], "succeeded", "{undone:#}");
    assert!(file(&site, 1, "one").exists() && !file(&site, 1, "two").exists());
    assert_eq!(text(&site, 1, "one"), "", "as it was before the first of them");
    let again = site.post(&format!("{RUNS}/{run}/undo"), &json!({})).await;
    assert_eq!(again.problem(409, "conflict").detail, "nothing to undo");
    // An undo run cannot be undone.
    let back = undone["id"].as_str().expect("an id");
    let path = format!("{RUNS}/{back}/undo");
    let gaps = site.post(&path, &json!({})).await.problem(409, "conflict");
    assert!(gaps.detail.starts_with("1 instances cannot be undone"), "{}", gaps.detail);
    let left = site.post(&path, &json!({"leave_gaps": true})).await;
    assert_eq!(left.problem(409, "conflict").detail, "no step of the run can be undone");
    site.stop().await;
}

#[tokio::test]
async fn undo_is_limited_to_the_named_instances() {
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
async fn undo_includes_carried_over_steps_with_their_attempts() {
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
async fn steps_without_undo_are_named_and_fail_the_run() {
    let site = site().await;
    for node in [1, 2] {
        put(&site, node, "source");
    }
    let run = start(&site, &plan(&[list("list@n1", 1), list("list@n2", 2)])).await;
    until(&site, &run, "ended").await;
    let kept = file(&site, 1, ".hoist/backup");
    let gone = file(&site, 1, ".hoist/gone");
    fs_err::rename(&kept, &gone).expect("a directory");
    let undone = undo(&site, &run).await;
    assert_eq!(undone["outcome"], "failed", "{undone:#}");
    let reason = undone["failures"][0]["reason"].as_str().expect("a reason");
    let said = format!("cannot undo: attempt {run}/0/1: copy (2 of the list): no backup");
    assert!(reason.contains(&said), "{reason}");
    assert!(file(&site, 1, "two").exists() && !file(&site, 2, "two").exists());
    // The second undo covers only the remaining steps.
    fs_err::rename(&gone, &kept).expect("a directory");
    put(&site, 2, "two");
    let undone = undo(&site, &run).await;
    assert_eq!(undone["counts"], json!({"ok": 1}));
    assert!(!file(&site, 1, "two").exists() && file(&site, 2, "two").exists());
    site.stop().await;
}

#[tokio::test]
async fn undo_gaps_are_listed_before_the_start() {
    let site = site_with(|config| {
        config.deploy.local = Some("node:n1".parse().expect("a selector"));
    });
    let site = site.await;
    put(&site, 1, "source");
    let mut mixed = list("mixed@n1", 1);
    let steps = &mut mixed["kind"]["step"]["call"]["input"]["steps"];
    steps.as_array_mut().expect("a list").push(json!({"action": "none"}));
    steps[0] = json!({"action": "shell", "input": {"command": "true"}});
    let run = start(&site, &plan(&[mixed])).await;
    until(&site, &run, "ended").await;
    let dry = site.post(&format!("{RUNS}/{run}/undo?dry_run=1"), &json!({})).await;
    let refused = dry.problem(409, "conflict");
    let gaps: Vec<&str> = refused.errors.iter().map(|gap| gap.message.as_str()).collect();
    assert_eq!(gaps, ["mixed@n1: the task has no `undo`"]);
    site.stop().await;
}

#[tokio::test]
async fn undo_gaps_are_grouped_and_skip_unchanged_steps() {
    let site = site().await;
    let call = |name: &str, node: u32, call: Value| {
        let vertex = with(step(name, node, "", &[]), "call", call);
        with(vertex, "on_failure", json!("continue"))
    };
    let asks = json!({"action": "http", "input": {"url": "http://127.0.0.1:1/"}});
    let sends =
        json!({"action": "http", "input": {"url": "http://127.0.0.1:1/", "method": "POST"}});
    let both = json!({"action": "steps", "input": {"steps": [asks, {"action": "none"}]}});
    let reboot = json!({"action": "reboot"});
    let write = json!({"action": "file", "input": {"path": "a", "text": "new"}});
    let list = json!({"action": "steps", "input": {"steps": [write, reboot]}});
    let mut vertices = vec![
        call("asks@n1", 1, asks),
        call("both@n1", 1, both),
        call("reboot@n1", 1, reboot),
        call("sends@n2", 2, sends),
        call("list@n2", 2, list),
    ];
    let nodes = || [1, 2, 3].into_iter().cycle().zip(0..5);
    vertices.extend(nodes().map(|(node, at)| step(&format!("change@{at}"), node, "true", &[])));
    let run = start(&site, &plan(&vertices)).await;
    let ended = until(&site, &run, "ended").await;
    assert_eq!(ended["counts"], json!({"failed": 5, "ok": 5}), "{ended:#}");
    let path = format!("{RUNS}/{run}/undo?dry_run=1");
    let refused = site.post(&path, &json!({})).await.problem(409, "conflict");
    let gaps: Vec<&str> = refused.errors.iter().map(|gap| gap.message.as_str()).collect();
    assert_eq!(
        gaps,
        [
            "sends@n2: the task has no `undo`",
            "list@n2: the task has no `undo`",
            "change: 5 instances (change@0, change@1, change@2 and 2 more): the task has no `undo`",
        ]
    );
    let refused = site.post(&format!("{RUNS}/{run}/undo"), &json!({"instances": ["asks"]})).await;
    assert_eq!(refused.problem(409, "conflict").detail, "nothing to undo");
    site.stop().await;
}

#[tokio::test]
async fn run_has_one_undo_at_a_time_and_cannot_resume_meanwhile() {
    let site = site().await;
    let call = json!({"action": "shell", "input": {"command": HOLD}});
    let first = with(step("first@n1", 1, "true", &[]), "undo", call);
    let bad = with(step("bad@n2", 2, "false", &[0]), "undo", json!({"action": "none"}));
    let run = start(&site, &plan(&[first, bad])).await;
    until(&site, &run, "ended").await;
    let path = format!("{RUNS}/{run}");
    let undone = site.post(&format!("{path}/undo"), &json!({})).await.expect(201).json();
    let undone = undone["run"]["id"].as_str().expect("an id");
    eventually("task has started", || file(&site, 1, "begun").exists()).await;
    for word in ["undo", "resume"] {
        let refused = site.post(&format!("{path}/{word}"), &json!({})).await;
        let problem = refused.problem(409, "conflict");
        assert!(problem.detail.contains(undone), "{word}: {}", problem.detail);
    }
    put(&site, 1, "go");
    assert_eq!(until(&site, undone, "ended").await["outcome"], "succeeded");
    site.stop().await;
}

/// A role of three nodes. The canary fails in `b` unless `ok` exists; the steps of the role are
/// undone where it fails.
const CANARY: &str = r#"
hoist: 1
roles:
  web: {nodes: "*", on_failure: undo, rollout: {canary: 1}}
tasks:
  ground: {on: "*", run: {shell: "echo >> ground"}, undo: {shell: "rm ground"}}
  a: {on: web, requires: [ground], run: {shell: "echo >> a"}, undo: {shell: "rm a; echo >> undone"}}
  b: {on: web, requires: [a], run: {shell: "test -e ok"}, undo: none}
"#;

async fn start_files(site: &Site, text: &str) -> String {
    let body = json!({"title": "web", "files": [{"name": "tasks.yaml", "text": text}]});
    let run = site.post(RUNS, &body).await.expect(201).json();
    run["id"].as_str().expect("an id").to_owned()
}

/// The ended undo run of a run.
async fn undo_of(site: &Site, run: &str) -> Value {
    let ended = until(site, run, "ended").await;
    let by = ended["undone_by"].as_str().expect("it is told with the end");
    until(site, by, "ended").await
}

#[tokio::test]
async fn failed_canary_is_undone_and_resume_retries_it() {
    let site = site().await;
    let run = start_files(&site, CANARY).await;
    let undone = undo_of(&site, &run).await;
    assert_eq!(
        undone["counts"],
        json!({"ok": 1, "unchanged": 1}),
        "b and a of n1, and nothing else: {undone:#}"
    );
    assert_eq!((&undone["automatic"], &undone["by"]), (&json!(true), &json!("a failure")));
    assert!(!file(&site, 1, "a").exists() && file(&site, 1, "ground").exists());
    let last = site.get(&format!("{RUNS}/last")).await.expect(200).json();
    assert_eq!(last["id"], *run, "nobody started the other one");

    // The run fails again and is undone again.
    let left = site.post(&format!("{RUNS}/{run}/resume?dry_run=1"), &json!({})).await;
    let left = left.expect(200).json();
    assert!(left["instances"].as_array().expect("a list").contains(&json!("a@n1")), "{left:#}");
    order(&site, &run, "resume", json!({})).await;
    let again = undo_of(&site, &run).await;
    assert_ne!(again["id"], undone["id"]);
    assert_eq!((lines(&site, 1, "undone"), file(&site, 1, "a").exists()), (2, false));
    let first = undone["id"].as_str().expect("an id");
    let named = json!({"instances": ["undo a@n1"]});
    let late = site.post(&format!("{RUNS}/{first}/retry"), &named).await.problem(409, "conflict");
    assert!(late.detail.contains(&run), "it is too late for that: {}", late.detail);

    for node in 1..=3 {
        put(&site, node, "ok");
    }
    order(&site, &run, "retry", json!({"instances": ["b@n1"]})).await;
    let ended = until(&site, &run, "ended").await;
    assert_eq!((&ended["outcome"], &ended["undone_by"]), (&json!("succeeded"), &Value::Null));
    assert_eq!(lines(&site, 1, "a"), 1, "what it needs was done again");
    assert_eq!((lines(&site, 1, "ground"), lines(&site, 3, "a")), (1, 1));

    // All of it can be undone manually.
    assert_eq!(undo(&site, &run).await["outcome"], "succeeded");
    assert!(!file(&site, 1, "a").exists() && !file(&site, 1, "ground").exists());
    site.stop().await;
}

#[tokio::test]
async fn resume_repeats_steps_undone_by_hand() {
    let site = site().await;
    let undo_call =
        |name: &str| json!({"action": "shell", "input": {"command": format!("rm {name}")}});
    let a = with(step("a@n1", 1, "echo >> a", &[]), "undo", undo_call("a"));
    let b = with(step("b@n2", 2, "echo >> b", &[0]), "undo", undo_call("b"));
    let run = start(&site, &plan(&[a, b])).await;
    until(&site, &run, "ended").await;
    assert_eq!(undo(&site, &run).await["outcome"], "succeeded");
    let shown = until(&site, &run, "ended").await;
    assert!(shown["undone_by"].is_string(), "{shown:#}");
    order(&site, &run, "resume", json!({})).await;
    assert_eq!(until(&site, &run, "ended").await["counts"], json!({"ok": 2}));
    assert_eq!((lines(&site, 1, "a"), lines(&site, 2, "b")), (1, 1));
    site.stop().await;
}

#[tokio::test]
async fn an_end_is_final_only_when_what_it_asks_for_has_begun() {
    let site = site().await;
    let run = start_files(&site, CANARY).await;
    let runs = site.data_dir().join("journal");
    let summary = runs.join(&run).join("summary.json");
    let others = || {
        let all = fs_err::read_dir(&runs).expect("a directory").flatten();
        let names = all.map(|entry| entry.file_name().into_string().expect("a name"));
        names.filter(|name| name.len() == run.len() && *name != run).collect::<Vec<_>>()
    };
    while !summary.exists() {
        std::thread::yield_now();
    }
    let begun = others();
    let [undone] = &begun[..] else { panic!("it would be lost with the controller: {begun:?}") };
    until(&site, undone, "ended").await;

    // As if it had ended just before.
    let (dir, config) = site.stop().await;
    for gone in [runs.join(&run).join("summary.json"), runs.join(undone).join("run.json")] {
        fs_err::remove_file(gone).expect("a file");
    }
    fs_err::remove_dir_all(runs.join(undone)).expect("a directory");
    let site = Site::start_again(dir, config).await;
    assert_eq!(undo_of(&site, &run).await["id"], **undone, "it is the same one");
    assert_eq!((lines(&site, 1, "undone"), others().len()), (2, 1));

    // And as if it had ended just after.
    let (dir, config) = site.stop().await;
    fs_err::remove_file(&summary).expect("a file");
    let site = Site::start_again(dir, config).await;
    assert_eq!(undo_of(&site, &run).await["id"], **undone);
    assert_eq!((lines(&site, 1, "undone"), others().len()), (2, 1), "it was begun already");
    site.stop().await;
}

#[tokio::test]
async fn undo_spares_later_changes_unless_forced() {
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

#[tokio::test]
async fn undo_prints_no_secret_of_its_step() {
    let site = site().await;
    let secrets = site.data_dir().join("secrets");
    fs_err::create_dir_all(&secrets).expect("a directory");
    fs_err::write(secrets.join("pw"), "correct-horse").expect("a secret");
    let input = json!({"command": "cat \"$PW\" > out", "secrets": {"PW": "pw"}});
    let call = json!({"action": "shell", "input": input});
    let back = json!({"action": "shell", "input": {"command": "echo was; cat out"}});
    let vertex = with(with(step("pw@n1", 1, "", &[]), "call", call), "undo", back);
    let run = start(&site, &plan(&[vertex])).await;
    until(&site, &run, "ended").await;
    assert_eq!(text(&site, 1, "out"), "correct-horse");
    let undone = undo(&site, &run).await;
    assert_eq!(undone["outcome"], "succeeded", "{undone:#}");
    let back = undone["id"].as_str().expect("an id");
    let printed = site.get(&format!("{RUNS}/{back}/output/0/1")).await.expect(200).text();
    assert!(printed.starts_with("was"), "{printed}");
    assert!(!printed.contains("correct-horse"), "{printed}");
    site.stop().await;
}

#[tokio::test]
async fn a_dry_run_is_refused_as_well_where_nothing_can_be_undone() {
    let site = site().await;
    let run = start(&site, &plan(&[step("a@n1", 1, "true", &[])])).await;
    until(&site, &run, "ended").await;
    let path = format!("{RUNS}/{run}/undo?dry_run=1");
    let refused = site.post(&path, &json!({})).await.problem(409, "conflict");
    assert_eq!(refused.detail, "no step of the run can be undone");
    assert!(refused.errors[0].message.contains("a@n1"), "{refused:?}");
    site.stop().await;
}
