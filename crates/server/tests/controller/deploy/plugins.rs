//! Actions of others, in task files.

use std::os::unix::fs::PermissionsExt as _;

use serde_json::{Value, json};

use crate::deploy::{RUNS, file, site_with, until};

const TASKS: &str = r"
hoist: 1
tasks:
  greet:
    on: node:n1
    run: {motd: {path: motd, text: Welcome.}}
  look:
    on: node:n1
    requires: [greet]
    check: {before: [{motd: {path: motd, text: Welcome.}}]}
    run: {shell: cat motd}
";

fn examples() -> std::path::PathBuf {
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/plugins").into()
}

fn request(tasks: &str) -> Value {
    json!({"title": "greet", "files": [{"name": "tasks.yaml", "text": tasks}]})
}

#[tokio::test]
async fn a_plug_in_is_an_action_like_any_other() {
    let site = site_with(|config| config.deploy.plugins = Some(examples())).await;
    let run = site.post(RUNS, &request(TASKS)).await.expect(201).json();
    let run = run["id"].as_str().expect("an id");
    let ended = until(&site, run, "ended").await;
    assert_eq!(ended["outcome"], "succeeded", "{ended:#}");
    assert_eq!(fs_err::read_to_string(file(&site, 1, "motd")).unwrap(), "Welcome.\n");
    let output = site.get(&format!("{RUNS}/{run}/output/greet@n1/1")).await.expect(200);
    assert!(output.text().contains("wrote motd"), "{}", output.text());

    let order = json!({"leave_gaps": true});
    let undo = site.post(&format!("{RUNS}/{run}/undo"), &order).await.expect(201).json();
    let undo = undo["run"]["id"].as_str().expect("an id");
    let ended = until(&site, undo, "ended").await;
    assert_eq!(ended["outcome"], "succeeded", "{ended:#}");
    assert!(!file(&site, 1, "motd").exists(), "it was undone");
    site.stop().await;
}

#[tokio::test]
async fn input_a_plug_in_rejects_is_reported_before_the_run() {
    let site = site_with(|config| config.deploy.plugins = Some(examples())).await;
    let wrong = TASKS.replace("text: Welcome.}}\n  look", "txt: Welcome.}}\n  look");
    let answer = site.post("/deploy/v1/plans", &request(&wrong)).await.expect(200).json();
    assert!(answer.to_string().contains("unknown field"), "{answer:#}");
    assert_eq!(answer["plan"], Value::Null);
    site.stop().await;
}

#[tokio::test]
async fn added_or_removed_plug_in_is_noticed_without_a_restart() {
    let dir = tempfile::tempdir().expect("a directory");
    let plugins = dir.path().to_owned();
    let site = site_with(|config| config.deploy.plugins = Some(plugins.clone())).await;
    let plan = async || {
        let answer = site.post("/deploy/v1/plans", &request(TASKS)).await.expect(200).json();
        answer["diagnostics"].to_string()
    };
    assert!(plan().await.contains("action `motd` not found"));
    let path = plugins.join("hoist-action-motd");
    fs_err::copy(examples().join("hoist-action-motd"), &path).expect("a plug-in");
    assert_eq!(plan().await, "null");
    fs_err::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).expect("a mode");
    assert!(plan().await.contains("action `motd` not found"), "nobody may run it");
    fs_err::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("a mode");
    assert_eq!(plan().await, "null");
    fs_err::remove_file(&path).expect("a plug-in");
    assert!(plan().await.contains("action `motd` not found"));
    site.stop().await;
}

#[tokio::test]
async fn a_plug_in_that_hangs_costs_its_deadline_once() {
    let dir = tempfile::tempdir().expect("a directory");
    let plugins = dir.path().to_owned();
    let path = plugins.join("hoist-action-slow");
    let text = r#"#!/bin/sh
read -r request
case $request in *'"verb":"describe"'*) ;; *) exec sleep 60 ;; esac
echo '{"t":"result","ok":true,"description":{"proto":[1],"name":"slow","version":"1"}}'
"#;
    fs_err::write(&path, text).expect("a plug-in");
    fs_err::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("a mode");
    let site = site_with(|config| config.deploy.plugins = Some(plugins)).await;
    let task = |n: u32| format!("  t{n}:\n    on: node:n1\n    run: {{slow: {{at: {n}}}}}\n");
    let tasks = format!("hoist: 1\ntasks:\n{}", (0..20).map(task).collect::<String>());
    let begun = std::time::Instant::now();
    let answer = site.post("/deploy/v1/plans", &request(&tasks)).await.expect(200).json();
    // For each of the tasks it would be more than three.
    assert!(begun.elapsed() < std::time::Duration::from_mins(2), "{:?}", begun.elapsed());
    let found = answer["diagnostics"].as_array().expect("a list");
    assert_eq!(found.len(), 1, "{found:#?}");
    assert!(found[0].to_string().contains("timed out after 10s"), "{}", found[0]);
    assert_eq!(answer["plan"], Value::Null);
    site.stop().await;
}

#[tokio::test]
async fn plug_in_of_a_controller_does_not_read_its_data_directory() {
    let dir = tempfile::tempdir().expect("a directory");
    let plugins = dir.path().to_owned();
    let site = site_with(|config| config.deploy.plugins = Some(plugins.clone())).await;
    let token = site.data_dir().join("admin.token");
    assert!(token.is_file());
    let text = format!(
        r#"#!/bin/sh
IFS= read -r request
case $request in
*'"verb":"describe"'*) answer='"description":{{"proto":[1],"name":"thief","version":"1"}}' ;;
*'"verb":"validate"'*) answer='"diagnostics":[]'
    [ ! -s {token} ] || answer='"diagnostics":[{{"at":"","message":"it reads the token"}}]' ;;
*) answer='"receipt":null'; [ ! -s {token} ] || exit 1 ;;
esac
echo '{{"t":"result","ok":true,'"$answer"'}}'
"#,
        token = token.display()
    );
    let path = plugins.join("hoist-action-thief");
    fs_err::write(&path, text).expect("a plug-in");
    fs_err::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("a mode");
    let tasks = "hoist: 1\ntasks:\n  steal:\n    on: node:n1\n    run: {thief: {}}\n";
    let answer = site.post(RUNS, &request(tasks)).await;
    assert_eq!(answer.status, 201, "{}", answer.text());
    let run = answer.json()["id"].as_str().expect("an id").to_owned();
    let ended = until(&site, &run, "ended").await;
    assert_eq!(ended["outcome"], "succeeded", "{ended:#}");
    site.stop().await;
}
