//! The plug-ins under examples/ keep their promises.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use hoist_engine::action::{
    Ability, Action, ApplyOutcome, Catalog, Document, Planner, Stream, UndoOutcome, Verdict,
};
use hoist_engine::contribute::merge;
use hoist_engine::plan::AppliedAttempt;
use hoist_engine::plugin::check::{RuleVerdict, check};
use hoist_engine::plugin::{Isolation, Plugin};
use serde_json::{Value, json};

use crate::stage::{SECRET, Stage, open_to_all, opened, private};

fn example(name: &str) -> PathBuf {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/plugins");
    PathBuf::from(root).join(format!("hoist-action-{name}"))
}

/// Runs, verifies, runs again and undoes; returns the output.
fn round_trip(stage: &Stage, plugin: &Plugin, input: &Value) -> Vec<(Stream, String)> {
    assert_eq!(plugin.validate(input), []);
    let verify =
        || stage.with(input.clone(), |step, ctx| plugin.verify(step, ctx)).expect("an answer");
    let run = || stage.with(input.clone(), |step, ctx| plugin.apply(step, ctx)).expect("it works");
    assert!(matches!(verify(), Verdict::Fails(_)), "nothing was done yet");
    let ApplyOutcome { changed, receipt } = run();
    assert!(changed);
    assert_eq!(verify(), Verdict::Holds);
    assert!(!run().changed, "the second time there is nothing to do");
    let made = AppliedAttempt { attempt: "r/1/1".to_owned(), receipt, ..AppliedAttempt::default() };
    let undone = stage.with(input.clone(), |step, ctx| plugin.undo(step, &made, ctx));
    assert_eq!(undone.expect("an answer"), UndoOutcome::Undone);
    assert!(matches!(verify(), Verdict::Fails(_)), "it was undone");
    stage.paper.lines()
}

#[test]
fn motd_example_writes_and_undoes_its_file() {
    for isolation in [private(), open_to_all()] {
        let stage = Stage::new();
        let plugin = opened(&example("motd"), &isolation);
        assert!(plugin.describe().can.contains(&Ability::Undo));
        let file = stage.work().join("motd");
        fs_err::write(&file, "as it was\n").unwrap();
        let input = json!({"path": "motd", "text": "Say \"friend\"\nand enter."});
        let run = || stage.with(input.clone(), |step, ctx| plugin.apply(step, ctx)).unwrap();
        run();
        assert_eq!(fs_err::read_to_string(&file).unwrap(), "Say \"friend\"\nand enter.\n");
        fs_err::write(&file, "as it was\n").unwrap();
        let said = round_trip(&stage, &plugin, &input);
        assert_eq!(fs_err::read_to_string(&file).unwrap(), "as it was\n");
        assert!(said.contains(&(Stream::Out, "info: wrote motd".to_owned())), "{said:?}");
        let is_told = said.iter().any(|(_, line)| line.contains("without namespaces of its own"));
        assert_eq!(is_told, !isolation.is_private(), "weaker isolation is told: {said:?}");
    }
}

#[test]
fn credential_is_passed_by_descriptor_only() {
    for isolation in [private(), open_to_all()] {
        let stage = Stage::new();
        let plugin = opened(&example("credential"), &isolation);
        let input = json!({"path": "db.password", "secrets": {"value": "site/db"}});
        let done = stage.with(input.clone(), |step, ctx| plugin.apply(step, ctx)).unwrap();
        let file = stage.work().join("db.password");
        assert_eq!(fs_err::read_to_string(&file).unwrap(), SECRET);
        assert_eq!(fs_err::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(!done.receipt.to_string().contains(SECRET));
        fs_err::remove_file(&file).unwrap();
        let said = round_trip(&stage, &plugin, &input);
        assert!(!file.exists());
        assert!(said.iter().all(|(_, line)| !line.contains(SECRET)), "{said:?}");
    }
}

#[test]
fn invalid_inputs_are_reported_before_a_run() {
    for name in ["motd", "credential"] {
        let plugin = opened(&example(name), &private());
        for input in [Value::Null, json!(7), json!({}), json!({"pth": "x"}), json!({"path": ["x"]})]
        {
            assert!(!plugin.validate(&input).is_empty(), "{name}: {input}");
        }
    }
    let diagnostics =
        opened(&example("motd"), &private()).validate(&json!({"path": "x", "mode": "1"}));
    assert_eq!(
        (diagnostics[0].at.as_str(), diagnostics[0].message.as_str()),
        ("mode", "unknown field")
    );
}

#[test]
fn examples_follow_all_rules() {
    for (name, isolation) in
        [("motd", private()), ("credential", private()), ("motd", open_to_all())]
    {
        let directory = tempfile::tempdir().unwrap();
        let report = check(&example(name), &isolation, &Catalog::default(), directory.path(), None);
        let rules: Vec<_> =
            report.results.iter().map(|found| (found.rule, found.verdict)).collect();
        let wanted = [
            "file",
            "describe",
            "describe.stable",
            "fields",
            "verbs",
            "validate",
            "contribute",
            "plan",
            "run",
            "verify",
            "run.again",
            "undo",
            "undo.no_receipt",
        ];
        assert_eq!(rules, wanted.map(|rule| (rule, RuleVerdict::Followed)), "{report:#?}");
    }
}

#[test]
fn isolation_is_described() {
    assert!(private().to_string().starts_with("mounts, processes"));
    let none = Isolation::None { why: "not permitted".to_owned() };
    assert_eq!(none.to_string(), "none: not permitted");
}

/// A plug-in that prints its input.
const CURIOUS: &str = r#"#!/usr/bin/env python3
import json, os, sys
request = json.load(sys.stdin)
answers = {
    "describe": {"description": {"proto": [1, 2], "name": "curious", "version": "1",
        "reads": ["network"], "contributes": ["storage"], "network": True}},
    "contribute": {"contributions": [{"section": "storage", "id": "seen",
        "value": [sorted(request.get("doc", [])), request.get("facts")]}]},
    "plan": {"steps": [{"call": {"action": "curious", "input": sorted(request.get("doc", []))}}]},
    "run": {"changed": True, "receipt": {"namespace": os.readlink("/proc/self/ns/net"), "request": request}},
}
print(json.dumps({"t": "result", "ok": True, **answers[request["verb"]]}))
"#;

#[test]
fn plug_in_sees_its_sections_and_contributes() {
    let stage = Stage::new();
    let plugin = opened(&stage.put("curious", CURIOUS), &private());
    let document: Document =
        serde_json::from_value(json!({"network": {"mtu": 9000}, "secrets": {"a": 1}})).unwrap();
    let merged = merge(&document, [&plugin], &json!({"cores": 2})).unwrap();
    assert_eq!(merged.0["storage"], json!({"seen": [["network"], {"cores": 2}]}));
    let steps = plugin.plan(&merged, &Value::Null).unwrap();
    assert_eq!(steps[0].call.input, json!(["network"]));
}

#[test]
fn plug_in_with_network_gets_task_and_subject() {
    let stage = Stage::new();
    let plugin = opened(&stage.put("curious", CURIOUS), &private());
    let done = stage.with(json!({"a": 1}), |step, ctx| plugin.apply(step, ctx)).unwrap();
    let ours = fs_err::read_link("/proc/self/ns/net").unwrap();
    assert_eq!(done.receipt["namespace"], ours.to_str().unwrap());
    let request = &done.receipt["request"];
    assert_eq!((&request["proto"], &request["verb"]), (&json!(1), &json!("run")));
    assert_eq!((&request["task"], &request["subject"]), (&json!("task"), &json!("n1")));
    assert_eq!(request["step"], json!({"action": "x", "input": {"a": 1}}));
    assert!(request["deadline_s"].as_u64().is_some_and(|left| (1..=60).contains(&left)));
}
