//! A run from its start to its end.

use std::os::unix::fs::PermissionsExt;

use serde_json::json;

use crate::deploy::{RUNS, file, lines, plan, put, site, start, states, step, until, with};
use crate::site::Site;

#[tokio::test]
async fn run_succeeds_and_keeps_its_output() {
    let site = site().await;
    let before = site.revision();
    let vertices = [
        step("install@n1", 1, "echo hello; echo once >> count", &[]),
        step("join@n2", 2, "echo once >> count", &[0]),
        with(step("never@n3", 3, "false", &[]), "skip", json!("not wanted")),
    ];
    let run = start(&site, &plan(&vertices)).await;
    let ended = until(&site, &run, "ended").await;
    assert_eq!(ended["outcome"], "succeeded", "{ended:#}");
    assert_eq!(ended["counts"], json!({"ok": 2, "skipped": 1}));
    assert_eq!((lines(&site, 1, "count"), lines(&site, 2, "count")), (1, 1));
    let output = site.get(&format!("{RUNS}/{run}/output/install@n1/1")).await.expect(200);
    assert!(output.text().contains("hello"), "{}", output.text());
    site.get(&format!("{RUNS}/{run}/output/join@n2/1")).await.problem(404, "not-found");
    site.get(&format!("{RUNS}/{run}/output/instal@n1/1")).await.problem(404, "not-found");
    assert_eq!(site.revision(), before, "a run is no change of the site");
    let audit = site.audit().await;
    let started = audit.iter().find(|entry| entry.object == format!("run/{run}: started"));
    assert_eq!(started.expect("it is in the audit log").who, "admin");
    site.stop().await;
}

#[tokio::test]
async fn local_execution_needs_the_consent_of_the_site() {
    let site = Site::start().await;
    let spec = json!({"interfaces": [{"name": "eth0", "mac": crate::deploy::mac(1)}]});
    site.apply(&[crate::deploy::document("Node", "n1", &spec)]).await;
    let run = start(&site, &plan(&[step("a@n1", 1, "touch there", &[])])).await;
    let path = format!("{RUNS}/{run}");
    let waits = |detail: &serde_json::Value| {
        detail["running"][0]["held_by"].as_str().is_some_and(|why| why.contains("agent of `n1`"))
    };
    site.eventually(&path, |answer| waits(&answer.json())).await;
    assert!(!file(&site, 1, "there").exists());
    site.stop().await;
}

#[tokio::test]
async fn resume_runs_only_the_remaining_steps() {
    let site = site().await;
    let vertices = [
        step("first@n1", 1, "echo once >> first", &[]),
        step(
            "check@n1",
            1,
            "echo tried >> check; test -e fixed || { echo no such file; exit 3; }",
            &[0],
        ),
        step("last@n2", 2, "echo once >> last", &[1]),
    ];
    let run = start(&site, &plan(&vertices)).await;
    let failed = until(&site, &run, "ended").await;
    assert_eq!(failed["outcome"], "failed");
    let failure = &failed["failures"][0];
    assert_eq!(failure["name"], "check@n1");
    assert_eq!(failure["output"], json!(["no such file"]));
    assert_eq!((&failure["blocks"], &failure["blocked_nodes"]), (&json!(1), &json!(1)));
    let explained = site.get(&format!("{RUNS}/{run}/explain/last@n2")).await.expect(200).json();
    let because = explained["because"].to_string();
    assert!(because.contains("check@n1") && because.contains("blocked"), "{because}");

    let left = site.post(&format!("{RUNS}/{run}/resume?dry_run=1"), &json!({})).await.expect(200);
    assert_eq!(left.json()["instances"], json!(["check@n1", "last@n2"]));
    assert_eq!(left.json()["dry_run"], true);
    put(&site, 1, "fixed");
    site.post(&format!("{RUNS}/{run}/resume"), &json!({})).await.expect(200);
    let ended = until(&site, &run, "ended").await;
    assert_eq!(ended["outcome"], "succeeded", "{ended:#}");
    assert_eq!(lines(&site, 1, "first"), 1, "what was done stays done");
    assert_eq!((lines(&site, 1, "check"), lines(&site, 2, "last")), (2, 1));
    let again = site.post(&format!("{RUNS}/{run}/resume"), &json!({})).await;
    again.problem(409, "conflict");
    site.stop().await;
}

#[tokio::test]
async fn wrong_plans_and_unknown_runs_are_told_as_such() {
    let site = site().await;
    let circle = [step("a@n1", 1, "true", &[1]), step("b@n1", 1, "true", &[0])];
    let answer = site.post(RUNS, &json!({"plan": plan(&circle)})).await;
    let problem = answer.problem(400, "invalid-body");
    assert!(problem.detail.contains("a@n1 -> b@n1"), "{}", problem.detail);
    let twice = [1, 2].map(|node| step("a@n1", node, "touch there", &[]));
    let problem =
        site.post(RUNS, &json!({"plan": plan(&twice)})).await.problem(400, "invalid-body");
    assert!(problem.detail.contains("#0 and #1 are both called `a@n1`"), "{}", problem.detail);
    site.post(RUNS, &json!({"plan": {"vertexes": []}})).await.problem(400, "invalid-body");
    site.post(RUNS, &json!({})).await.problem(400, "invalid-body");
    site.post(RUNS, &json!({"plan": plan(&[])})).await.problem(400, "invalid-body");
    site.get(&format!("{RUNS}/last")).await.problem(404, "not-found");
    site.get(&format!("{RUNS}/../../etc")).await.problem(404, "unknown-route");
    let dry = site.post(&format!("{RUNS}?dry_run=1"), &json!({"plan": plan(&[])})).await;
    assert_eq!(dry.expect(200).json()["steps"], 0);
    assert!(site.get(RUNS).await.json()["items"].as_array().expect("a list").is_empty());
    site.stop().await;
}

#[tokio::test]
async fn read_only_token_starts_and_stops_nothing() {
    let site = site().await;
    let run = start(&site, &plan(&[step("a@n1", 1, "true", &[])])).await;
    let read = site.token(json!([{"verbs": ["read"], "contexts": ["deploy"]}])).await;
    site.ask_as(&read, "GET", RUNS).send().await.expect(200);
    let body = json!({"plan": plan(&[])});
    site.ask_as(&read, "POST", RUNS).json(&body).send().await.problem(403, "forbidden");
    let stop = format!("{RUNS}/{run}/stop");
    site.ask_as(&read, "POST", &stop).json(&json!({})).send().await.problem(403, "forbidden");
    let some = json!([{"verbs": ["read", "write"], "contexts": ["deploy"], "selector": "node:n1"}]);
    let limited = site.token(some).await;
    site.ask_as(&limited, "GET", RUNS).send().await.problem(403, "forbidden");
    site.stop().await;
}

#[tokio::test]
async fn run_files_are_private_to_the_owner() {
    let site = site().await;
    let run = start(&site, &plan(&[step("a@n1", 1, "echo secret", &[])])).await;
    until(&site, &run, "ended").await;
    let mut open = vec![site.data_dir().join("journal")];
    let mut seen = 0;
    while let Some(path) = open.pop() {
        let about = fs_err::metadata(&path).expect("it is there");
        assert_eq!(about.permissions().mode() & 0o077, 0, "{}", path.display());
        seen += 1;
        if about.is_dir() {
            let entries = fs_err::read_dir(&path).expect("a directory");
            open.extend(entries.map(|entry| entry.expect("an entry").path()));
        }
    }
    assert!(seen >= 7, "{seen}");
    let all = states(&site, &run).await;
    assert_eq!(all, [("a@n1".to_owned(), "ok".to_owned())]);
    site.stop().await;
}

#[tokio::test]
async fn results_of_another_project_do_not_count_as_done() {
    let site = site().await;
    let files = |what: &str, selection: &serde_json::Value| {
        let text = format!(
            "hoist: 1\ntasks:\n  base: {{on: 'node:n1', run: {{shell: 'echo {what} >> base'}}}}\n  \
             app: {{on: 'node:n1', requires: [base], run: {{shell: 'true'}}}}\n"
        );
        let file = json!({"name": "site.yaml", "text": text});
        json!({"title": what, "files": [file], "selection": selection})
    };
    let run = site.post(RUNS, &files("one", &json!({}))).await.expect(201).json();
    let ended = until(&site, run["id"].as_str().expect("an id"), "ended").await;
    assert_eq!((&ended["outcome"], &ended["nodes"]), (&json!("succeeded"), &json!(1)));
    assert_eq!(ended["files"], json!(["site.yaml"]));
    let app = json!({"tasks": ["app"]});
    let refused = site.post(RUNS, &files("two", &app)).await;
    let problem = refused.problem(409, "conflict");
    assert!(problem.detail.contains("base"), "{}", problem.detail);
    site.post(RUNS, &files("one", &app)).await.expect(201);
    site.stop().await;
}

#[tokio::test]
async fn selection_can_be_limited_to_blocked_instances() {
    let site = site().await;
    let tasks = "hoist: 1\ntasks:\n  a: {on: '*', run: [{shell: 'test -e fixed'}]}\n  \
                 b: {on: '*', requires: [a], run: [{shell: 'touch b'}]}\n";
    let request = |only: &str| {
        let selection = json!({"only": only, "without_prerequisites": true});
        json!({"files": [{"name": "site.yaml", "text": tasks}], "selection": selection})
    };
    put(&site, 1, "fixed");
    put(&site, 3, "fixed");
    let all = json!({"files": [{"name": "site.yaml", "text": tasks}]});
    let run = site.post(RUNS, &all).await.expect(201).json();
    let failed = until(&site, run["id"].as_str().expect("an id"), "ended").await;
    assert_eq!(failed["outcome"], "failed", "{failed:#}");
    let chosen = async |only: &str| {
        let answer = site.post("/deploy/v1/plans", &request(only)).await.expect(200).json();
        let listed = answer["listing"]["instances"].as_array().expect("a list").clone();
        let skips = answer["skips"].as_array().expect("a list").clone();
        let is_skipped =
            |name: &serde_json::Value| skips.iter().any(|skip| skip["instance"] == *name);
        let names = listed.iter().map(|one| &one["name"]).filter(|name| !is_skipped(name));
        names.filter_map(|name| name.as_str()).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(chosen("blocked").await, "b@n2");
    assert_eq!(chosen("failed").await, "a@n2");
    let wrong = site.post(RUNS, &request("faild")).await.problem(400, "invalid-body");
    assert!(format!("{wrong:?}").contains("say `failed` or `blocked`"), "{wrong:?}");
    site.stop().await;
}

#[tokio::test]
async fn list_is_neither_a_plan_nor_a_command() {
    let site = site().await;
    let run = start(&site, &plan(&[step("slow@n1", 1, crate::deploy::HOLD, &[])])).await;
    for path in ["/deploy/v1/plans".to_owned(), RUNS.to_owned(), format!("{RUNS}/{run}/stop")] {
        let problem = site.post(&path, &json!([])).await.problem(400, "invalid-body");
        assert_eq!(problem.detail, "the body is a list", "{path}");
    }
    assert_eq!(site.get(&format!("{RUNS}/{run}")).await.expect(200).json()["state"], "running");
    put(&site, 1, "go");
    until(&site, &run, "ended").await;
    site.stop().await;
}

#[tokio::test]
async fn instance_explanation_has_the_place_of_each_field() {
    let site = site().await;
    let below = "hoist: 1\ntasks:\n  a: {on: node:n1, run: none, retries: 1}\n  b: {on: node:n1, run: none}\n";
    let above = "hoist: 1\ntasks:\n  a: {patch: true,\n      retries: 2}\n";
    let files = json!([{"name": "site.yaml", "text": below}, {"name": "rack.yaml", "text": above}]);
    let run = site.post(RUNS, &json!({"title": "t", "files": files})).await.expect(201).json();
    let run = run["id"].as_str().expect("an id");
    until(&site, run, "ended").await;
    let explain = async |name: &str| {
        site.get(&format!("{RUNS}/{run}/explain/{name}")).await.expect(200).json()
    };
    let explained = explain("a@n1").await;
    assert_eq!(explained["written"], "site.yaml:3:3");
    let from = json!({
        "on": "site.yaml:3:11", "run": "site.yaml:3:25", "retries": "rack.yaml:4:16"
    });
    assert_eq!(explained["from"], from);
    let whole = json!({"on": "site.yaml:4:11", "run": "site.yaml:4:25"});
    assert_eq!(explain("b@n1").await["from"], whole);
    site.stop().await;
}

#[tokio::test]
async fn a_plan_counts_the_nodes_that_it_does_something_on() {
    let site = site().await;
    let text = "hoist: 1\ntasks:\n  a:\n    on: node:n2\n    run: {shell: 'true'}\n";
    let body = json!({"title": "one", "files": [{"name": "one.yaml", "text": text}]});
    let answer = site.post("/deploy/v1/plans", &body).await.expect(200).json();
    assert_eq!((&answer["steps"], &answer["nodes"]), (&json!(1), &json!(1)), "of three");
    site.stop().await;
}

#[tokio::test]
async fn starting_a_run_with_secrets_needs_their_right() {
    let site = site().await;
    let deploy = json!([{"verbs": ["read", "write"], "contexts": ["deploy"]}]);
    let deployer = site.token(deploy).await;
    let secret = json!({"command": "true", "secrets": {"A": "db/password"}});
    let call = json!({"action": "shell", "input": secret});
    let in_call = with(step("a@n1", 1, "true", &[]), "call", call.clone());
    let in_check = with(step("a@n1", 1, "true", &[]), "before", json!([call.clone()]));
    let in_undo = with(step("a@n1", 1, "true", &[]), "undo", call);
    for step in [in_call, in_check, in_undo] {
        let body = json!({"plan": plan(&[step])});
        for path in [RUNS.to_owned(), format!("{RUNS}?dry_run=1&predict=1")] {
            let ask = site.ask_as(&deployer, "POST", &path).json(&body);
            let refused = ask.send().await.problem(403, "forbidden");
            assert!(refused.detail.contains("db/password"), "{}", refused.detail);
        }
    }
    let body = json!({"plan": plan(&[step("a@n1", 1, "true", &[])])});
    site.ask_as(&deployer, "POST", RUNS).json(&body).send().await.expect(201);
    site.stop().await;
}
