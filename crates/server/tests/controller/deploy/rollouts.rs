//! Roles that are worked on a few nodes at a time.

use serde_json::json;

use crate::deploy::{RUNS, lines, site, states, until};

const TASKS: &str = r#"
hoist: 1
roles:
  web: {nodes: "*", rollout: {canary: 1, at_once: 1, pause_after_canary: 300ms}}
tasks:
  a: {on: web, run: {shell: "echo >> a"}}
  b: {on: web, requires: [a], run: {shell: "echo >> b"}}
"#;

#[tokio::test]
async fn other_nodes_continue_after_the_canary_pause() {
    let site = site().await;
    let body = json!({"title": "web", "files": [{"name": "tasks.yaml", "text": TASKS}]});
    let run = site.post(RUNS, &body).await.expect(201).json();
    let run = run["id"].as_str().expect("an id");
    let ended = until(&site, run, "ended").await;
    assert_eq!(ended["outcome"], "succeeded", "{ended:#}");
    for node in 1..=3 {
        assert_eq!(lines(&site, node, "b"), 1, "n{node}");
    }
    let all = states(&site, run).await;
    let pause = ("pause after canaries of web".to_owned(), "unchanged".to_owned());
    assert!(all.contains(&pause), "{all:?}");
    site.stop().await;
}
