//! The plug-ins under examples/ do what they say.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use hoist_engine::action::{Ability, Action, Catalog, Document, Done, Stream, Undone, Verdict};
use hoist_engine::contribute::merge;
use hoist_engine::plan::Made;
use hoist_engine::plugin::check::{Kept, check};
use hoist_engine::plugin::{Isolation, Plugin};
use serde_json::{Value, json};

use crate::stage::{SECRET, Stage, open_to_all, opened, private};

fn example(name: &str) -> PathBuf {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/plugins");
    PathBuf::from(root).join(format!("hoist-action-{name}"))
}

/// Runs, verifies, runs again and undoes; gives what was printed.
fn round_trip(stage: &Stage, plugin: &Plugin, input: &Value) -> Vec<(Stream, String)> {
    assert_eq!(plugin.validate(input), []);
    let verify =
        || stage.with(input.clone(), |step, ctx| plugin.verify(step, ctx)).expect("an answer");
    let run = || stage.with(input.clone(), |step, ctx| plugin.apply(step, ctx)).expect("it works");
    assert!(matches!(verify(), Verdict::DoesNot { .. }), "nothing was done yet");
    let Done { changed, receipt } = run();
    assert!(changed);
    assert_eq!(verify(), Verdict::Holds);
    assert!(!run().changed, "the second time there is nothing to do");
    let made = Made { attempt: "r/1/1".to_owned(), receipt, ..Made::default() };
    let undone = stage.with(input.clone(), |step, ctx| plugin.undo(step, &made, ctx));
    assert_eq!(undone.expect("an answer"), Undone::Undone);
    assert!(matches!(verify(), Verdict::DoesNot { .. }), "it was taken back");
    stage.paper.lines()
}

#[test]
fn a_message_of_the_day_is_written_and_taken_back() {
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
fn a_credential_comes_by_descriptor_and_is_nowhere_else() {
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
fn inputs_that_cannot_be_are_told_before_anything_runs() {
    for name in ["motd", "credential"] {
        let plugin = opened(&example(name), &private());
        for input in [Value::Null, json!(7), json!({}), json!({"pth": "x"}), json!({"path": ["x"]})]
        {
            assert!(!plugin.validate(&input).is_empty(), "{name}: {input}");
        }
    }
    let faults = opened(&example("motd"), &private()).validate(&json!({"path": "x", "mode": "1"}));
    assert_eq!(
        (faults[0].at.as_str(), faults[0].message.as_str()),
        ("mode", "there is no such field")
    );
}

#[test]
fn the_examples_keep_all_rules() {
    for (name, isolation) in
        [("motd", private()), ("credential", private()), ("motd", open_to_all())]
    {
        let directory = tempfile::tempdir().unwrap();
        let report = check(&example(name), &isolation, &Catalog::default(), directory.path(), None);
        let rules: Vec<_> =
            report.findings.iter().map(|found| (found.rule, found.verdict)).collect();
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
        ];
        assert_eq!(rules, wanted.map(|rule| (rule, Kept::Kept)), "{report:#?}");
    }
}

#[test]
fn the_isolation_that_was_found_is_told() {
    assert!(private().to_string().starts_with("mounts, processes"));
    let none = Isolation::None { why: "not permitted".to_owned() };
    assert_eq!(none.to_string(), "none: not permitted");
}

/// A plug-in that shows what it was sent.
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
fn a_plug_in_is_shown_its_own_sections_and_its_needs_are_merged() {
    let stage = Stage::new();
    let plugin = opened(&stage.put("curious", CURIOUS), &private());
    let document: Document =
        serde_json::from_value(json!({"network": {"mtu": 9000}, "secrets": {"a": 1}})).unwrap();
    let merged = merge(&document, [&plugin as &dyn Action], &json!({"cores": 2})).unwrap();
    assert_eq!(merged.0["storage"], json!({"seen": [["network"], {"cores": 2}]}));
    let steps = plugin.plan(&merged, &Value::Null).unwrap();
    assert_eq!(steps[0].call.input, json!(["network"]));
}

#[test]
fn a_plug_in_that_declares_it_has_the_network_and_is_told_what_it_acts_on() {
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
