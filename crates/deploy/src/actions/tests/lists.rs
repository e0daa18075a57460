//! Several actions as one.

use super::*;

#[test]
fn list_is_one_task_and_is_undone_in_reverse() {
    let node = Node::new();
    let list = json!({"steps": [
        {"action": "file", "input": {"path": "a", "text": "1"}},
        {"name": "the second", "action": "file", "input": {"path": "a", "text": "2"}},
    ]});
    let done = node.apply("steps", list.clone()).unwrap();
    assert!(done.changed);
    assert_eq!(node.said(), "file (1 of the list)\nthe second\n");
    assert_eq!(node.text("a"), "2");
    assert_eq!(node.undo("steps", list, &done.receipt).unwrap(), UndoOutcome::Undone);
    assert!(!node.path("a").exists());
    let fails = json!({"steps": [{"action": "shell", "input": {"command": "true"}}, {"name": "x", "action": "shell", "input": {"command": "exit 2"}}]});
    assert_eq!(node.reason("steps", fails.clone()), "x: exit code 2");
    let seen = Observation { output: "x".to_owned(), exit_code: Some(2) };
    assert_eq!(node.verify("steps", fails.clone()).unwrap(), Verdict::Fails(seen));
    let reason = not_possible(node.undo("steps", fails, &Value::Null));
    assert_eq!(reason, "shell (1 of the list): `shell` has no undo");
}

#[test]
fn undo_of_a_list_covers_all_its_attempts() {
    let node = Node::new();
    node.write("a", "before");
    node.write("same", "same");
    let list = json!({"steps": [
        {"action": "file", "input": {"path": "same", "text": "same"}},
        {"action": "file", "input": {"path": "a", "text": "1"}},
        {"action": "copy", "input": {"from": "source", "to": "b"}},
        {"action": "file", "input": {"path": "c", "text": "3"}},
    ]});
    assert!(node.apply("steps", list.clone()).is_err());
    assert_eq!(node.text("a"), "1");
    node.write("source", "2");
    let done = node.apply("steps", list.clone()).unwrap();
    for (attempt, receipt) in [(2, &done.receipt), (1, &Value::Null)] {
        let undone = node.undo_attempt("steps", list.clone(), attempt, receipt);
        assert_eq!(undone.unwrap(), UndoOutcome::Undone);
    }
    assert_eq!((node.text("a"), node.text("same")), ("before".to_owned(), "same".to_owned()));
    assert!(!node.path("b").exists() && !node.path("c").exists());
    let reason = not_possible(node.undo("steps", list, &json!({"steps": vec!["begun"; 5]})));
    assert_eq!(reason, "it was another list");
}

#[test]
fn killed_list_is_undone_with_the_receipts_of_its_parts() {
    let node = Node::new();
    node.write("a", "before");
    for at in 0..200 {
        node.write(&format!("from/{at}"), "new");
    }
    let list = json!({"steps": [
        {"action": "file", "input": {"path": "a", "text": "1"}},
        {"action": "sync", "input": {"from": "from", "to": "to"}},
    ]});
    let to = node.path("to");
    node.kill("steps", list.clone(), || fs_err::read_dir(&to).is_ok_and(|all| all.count() > 5));
    let backup = node.path(".hoist/backup/01run-7-1.0");
    assert_eq!(node.undo("steps", list.clone(), &Value::Null).unwrap(), UndoOutcome::Undone);
    assert_eq!(node.text("a"), "before");
    assert!(!to.exists());
    // What of it is lost is named, though the rest is there.
    fs_err::remove_dir_all(&backup).unwrap();
    let reason = not_possible(node.undo_attempt("steps", list, 1, &Value::Null));
    assert!(reason.starts_with("file (1 of the list): no backup of its changes"), "{reason}");
}

#[test]
fn expired_list_progress_is_removed_by_the_next_list() {
    let node = Node::new();
    let list = |text: &str| {
        let part = json!({"action": "file", "input": {"path": "a", "text": text}});
        node.apply("steps", json!({"steps": [part]})).unwrap();
        node.path(&format!(".hoist/steps/01run-7-{}", node.attempts.get()))
    };
    let old = list("1");
    let young = list("2");
    let minute = Duration::from_mins(1);
    for (diary, age) in [(&old, place::KEPT + minute), (&young, place::KEPT.saturating_sub(minute))]
    {
        let at = std::time::SystemTime::now() - age;
        fs_err::File::open(diary).unwrap().file().set_modified(at).unwrap();
    }
    let last = list("3");
    assert!(!old.exists() && young.exists() && last.exists());
}

#[test]
fn list_can_be_undone_if_all_its_parts_can() {
    let part = |action: &str, input: Value| json!({"action": action, "input": input});
    let file = || part("file", json!({"path": "a", "text": "1"}));
    let steps = catalog().get("steps").unwrap().clone();
    assert!(steps.can_undo(&json!({"steps": [file(), part("none", json!({}))]})));
    let shell = part("shell", json!({"command": "true"}));
    assert!(!steps.can_undo(&json!({"steps": [file(), shell]})));
}

#[test]
fn faults_inside_a_list_are_reported_with_their_place() {
    let list = json!({"steps": [
        {"action": "fil", "input": {}},
        {"action": "shell", "input": {"comand": "x"}, "nam": "y"},
        {"action": "steps", "input": {}},
    ]});
    assert_eq!(
        diagnostics("steps", &list),
        [
            "steps[0].action: action `fil` not found; did you mean `file`?",
            "steps[1].input.command: the field is missing; give it a value",
            "steps[1].input.comand: unknown field; did you mean `command`?",
            "steps[1].nam: unknown field; did you mean `name`?",
            "steps[2].action: action `steps` not found",
        ]
    );
    let none = json!({"steps": []});
    assert_eq!(diagnostics("steps", &none), ["steps: there are 0; 1 to 100 are wanted"]);
    let one = json!({"action": "none"});
    let many = |count: usize| json!({ "steps": vec![one.clone(); count] });
    assert_eq!(diagnostics("steps", &many(steps::MAX_STEPS)), [""; 0]);
    assert_eq!(
        diagnostics("steps", &many(steps::MAX_STEPS + 1)),
        ["steps: there are 101; 1 to 100 are wanted"]
    );
}
