//! Actions of others, in task files.

use serde_json::{Value, json};

use crate::{RUNS, file, site_with, until};

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
    assert!(!file(&site, 1, "motd").exists(), "it was taken back");
    site.stop().await;
}

#[tokio::test]
async fn what_a_plug_in_does_not_take_is_told_before_anything_runs() {
    let site = site_with(|config| config.deploy.plugins = Some(examples())).await;
    let wrong = TASKS.replace("text: Welcome.}}\n  look", "txt: Welcome.}}\n  look");
    let answer = site.post("/deploy/v1/plans", &request(&wrong)).await.expect(200).json();
    assert!(answer.to_string().contains("there is no such field"), "{answer:#}");
    assert_eq!(answer["plan"], Value::Null);
    site.stop().await;
}
