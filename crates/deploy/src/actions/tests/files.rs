//! `file`, `copy` and `sync`: their changes, previews, backups and undo.

use super::*;

#[test]
fn file_is_written_once_and_restored_by_undo() {
    let node = Node::new();
    let input = json!({"path": "etc/app/app.conf", "text": "port = 1\n", "mode": "0640"});
    assert!(does_not(node.verify("file", input.clone())).contains("does not exist"));
    let done = node.apply("file", input.clone()).unwrap();
    assert!(done.changed);
    assert_eq!(node.text("etc/app/app.conf"), "port = 1\n");
    let mode = fs_err::metadata(node.path("etc/app/app.conf")).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o640);
    assert_eq!(node.verify("file", input.clone()).unwrap(), Verdict::Holds);
    let again = node.apply("file", input.clone()).unwrap();
    assert_eq!(again, ApplyOutcome { changed: false, receipt: Value::Null });
    fs_err::set_permissions(node.path("etc/app/app.conf"), PermissionsExt::from_mode(0o600))
        .unwrap();
    assert!(does_not(node.verify("file", input.clone())).ends_with("its mode is 0600, not 0640"));

    let other = json!({"path": "etc/app/app.conf", "text": "port = 2\n"});
    let second = node.apply("file", other.clone()).unwrap();
    assert_eq!(node.undo("file", other, &second.receipt).unwrap(), UndoOutcome::Undone);
    assert_eq!(node.text("etc/app/app.conf"), "port = 1\n");
    let mode = fs_err::metadata(node.path("etc/app/app.conf")).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o600, "as it was");
    fs_err::set_permissions(node.path("etc/app/app.conf"), PermissionsExt::from_mode(0o640))
        .unwrap();
    assert_eq!(node.undo("file", input, &done.receipt).unwrap(), UndoOutcome::Undone);
    assert!(!node.path("etc").exists(), "also the directories that it made are gone");
}

#[test]
fn backup_is_private_and_receipts_cannot_lead_elsewhere() {
    let node = Node::new();
    node.write("secret", "old");
    let input = json!({"path": "secret", "text": "new"});
    let done = node.apply("file", input.clone()).unwrap();
    let dir = PathBuf::from(done.receipt["backup"].as_str().unwrap());
    assert!(dir.starts_with(node.path(".hoist/backup")));
    assert_eq!(fs_err::metadata(&dir).unwrap().permissions().mode() & 0o777, 0o700);
    assert_eq!(fs_err::metadata(dir.join("0")).unwrap().permissions().mode() & 0o777, 0o600);
    let elsewhere = json!({"backup": "/etc"});
    assert!(node.undo("file", input.clone(), &elsewhere).is_err());
    let gone = json!({"backup": node.path(".hoist/backup/gone")});
    assert!(not_possible(node.undo("file", input, &gone)).contains("no backup of its changes in"));
}

#[test]
fn attempt_killed_before_its_backup_has_nothing_to_undo() {
    let node = Node::new();
    node.write("a/x", "1");
    let week = Duration::from_hours(24 * 7);
    for (action, input) in [
        ("file", json!({"path": "a/x", "text": "2"})),
        ("copy", json!({"from": "a/x", "to": "b"})),
        ("sync", json!({"from": "a", "to": "c"})),
        ("steps", json!({"steps": [{"action": "file", "input": {"path": "a/x", "text": "2"}}]})),
    ] {
        let undo = |age: Duration| {
            let made = std::time::UNIX_EPOCH.elapsed().unwrap().checked_sub(age).unwrap();
            let run = ulid::Ulid::from_parts(u64::try_from(made.as_millis()).unwrap(), 7);
            let attempt = format!("{}/7/1", run.to_string().to_lowercase());
            let made = AppliedAttempt { attempt, receipt: Value::Null, over_changes: false };
            node.with(action, &input, |action, step, ctx| action.undo(step, &made, ctx))
        };
        assert_eq!(undo(Duration::ZERO).unwrap(), UndoOutcome::Undone, "{action}");
        assert_eq!(
            undo(place::KEPT.checked_sub(week).unwrap()).unwrap(),
            UndoOutcome::Undone,
            "{action}"
        );
        // The backups may have expired.
        assert!(!not_possible(undo(place::KEPT + week)).is_empty());
    }
    assert_eq!(node.text("a/x"), "1");
}

#[test]
fn undo_of_an_unknown_attempt_is_refused_with_a_reason() {
    let node = Node::new();
    node.write("a/x", "1");
    for (action, input) in [
        ("file", json!({"path": "a/x", "text": "2"})),
        ("copy", json!({"from": "a/x", "to": "b"})),
        ("sync", json!({"from": "a", "to": "c"})),
    ] {
        let reason = not_possible(node.undo(action, input.clone(), &Value::Null));
        assert!(reason.contains("no backup of its changes in"), "{reason}");
        let list = json!({"steps": [{"action": action, "input": input}]});
        let reason = not_possible(node.undo("steps", list, &Value::Null));
        assert_eq!(reason, "the progress log is missing");
    }
    for name in ["..", "", "."] {
        let made = AppliedAttempt { attempt: name.to_owned(), ..AppliedAttempt::default() };
        let input = json!({"path": "a/x", "text": "2"});
        node.with("file", &input, |action, step, ctx| action.undo(step, &made, ctx).unwrap_err());
    }
}

#[test]
fn attempt_failed_before_a_change_needs_no_receipt_for_undo() {
    let node = Node::new();
    let input = json!({"from": "nowhere", "to": "b"});
    assert!(node.apply("copy", input.clone()).is_err());
    assert_eq!(node.undo("copy", input, &Value::Null).unwrap(), UndoOutcome::Undone);
}

#[test]
fn undo_covers_attempts_without_a_receipt() {
    let node = Node::new();
    for at in 0..400 {
        node.write(&format!("a/{at}"), "new");
    }
    node.write("b/7", "old");
    let before = tree(&node, "b");
    let input = json!({"from": "a", "to": "b"});
    let is_in_place =
        |entry: &fs_err::DirEntry| !entry.file_name().as_encoded_bytes().starts_with(b".");
    let count =
        |below: &Path| fs_err::read_dir(below).unwrap().flatten().filter(is_in_place).count();
    for many in [20, 40] {
        let b = node.path("b");
        node.kill("sync", input.clone(), || count(&b) >= many);
    }
    let half = count(&node.path("b"));
    assert!(half > 20 && half < 400, "{half}");
    let done = node.apply("sync", input.clone()).unwrap();
    assert_eq!(tree(&node, "b"), tree(&node, "a"));
    for (attempt, receipt) in [(3, &done.receipt), (2, &Value::Null), (1, &Value::Null)] {
        let undone = node.undo_attempt("sync", input.clone(), attempt, receipt);
        assert_eq!(undone.unwrap(), UndoOutcome::Undone);
    }
    assert_eq!(tree(&node, "b"), before);
}

#[test]
fn partial_files_of_a_killed_step_are_removed() {
    let node = Node::new();
    let input = json!({"path": "etc/a", "text": "1"});
    node.apply("file", input.clone()).unwrap();
    // As it was just before the file took its place, and a line of the next change is half written.
    fs_err::rename(node.path("etc/a"), node.path("etc/.01run-7-1.1")).unwrap();
    let list = node.path(".hoist/backup/01run-7-1/list");
    let text = fs_err::read_to_string(&list).unwrap();
    fs_err::write(&list, format!("{text}{}", &text[..20])).unwrap();
    assert_eq!(node.undo("file", input, &Value::Null).unwrap(), UndoOutcome::Undone);
    assert!(!node.path("etc").exists());
}

#[test]
fn attempt_begun_twice_is_undone_to_its_first_begin() {
    let node = Node::new();
    node.write("a", "before");
    for text in ["1", "2"] {
        node.attempts.set(0);
        node.apply("file", json!({"path": "a", "text": text})).unwrap();
    }
    let input = json!({"path": "a", "text": "2"});
    assert_eq!(node.undo("file", input, &Value::Null).unwrap(), UndoOutcome::Undone);
    assert_eq!(node.text("a"), "before");
}

#[test]
fn paths_outside_the_subject_directory_are_refused() {
    let node = Node::new();
    let file = |path: &str| json!({"path": path, "text": ""});
    assert!(
        node.reason("file", file("/etc/x")).contains("leads out of the directory that `n1` is")
    );
    assert!(node.reason("file", file("../x")).contains("leads out"));
    assert!(node.reason("file", file("a/../../x")).contains("leads out"));
    assert!(node.reason("file", file(".")).contains("names no file"));
    let outside = tempfile::tempdir().unwrap();
    fs_err::os::unix::fs::symlink(outside.path(), node.path("link")).unwrap();
    assert!(node.reason("file", file("link/x")).contains("through a link"));
    assert!(
        node.reason("sync", json!({"from": ".", "to": "link/deep/er"})).contains("through a link")
    );
    assert_eq!(fs_err::read_dir(outside.path()).unwrap().count(), 0);
    // The link itself is replaced.
    node.apply("file", json!({"path": "link", "text": "mine"})).unwrap();
    assert_eq!(node.text("link"), "mine");
    assert!(outside.path().is_dir());
}

#[test]
fn directory_is_not_replaced_by_a_file() {
    let node = Node::new();
    node.write("d/x", "");
    assert!(node.reason("file", json!({"path": "d", "text": ""})).ends_with("is a directory"));
}

#[test]
fn unknown_owners_are_named() {
    let node = Node::new();
    let input = json!({"path": "a", "text": "", "owner": "nobody-here"});
    assert_eq!(node.reason("file", input), "user `nobody-here` not found");
}

#[test]
fn copy_is_identical_and_can_be_undone() {
    let node = Node::new();
    node.write("from", "content");
    fs_err::set_permissions(node.path("from"), PermissionsExt::from_mode(0o755)).unwrap();
    let input = json!({"from": "from", "to": "bin/to"});
    let done = node.apply("copy", input.clone()).unwrap();
    assert!(done.changed);
    assert_eq!(node.text("bin/to"), "content");
    assert_eq!(fs_err::metadata(node.path("bin/to")).unwrap().permissions().mode() & 0o777, 0o755);
    assert!(!node.apply("copy", input.clone()).unwrap().changed);
    node.write("from", "CONTENT");
    assert!(does_not(node.verify("copy", input.clone())).ends_with("has another content"));
    node.undo("copy", input, &done.receipt).unwrap();
    assert!(!node.path("bin").exists());
    assert!(node.reason("copy", json!({"from": "gone", "to": "to"})).starts_with("file `"));
}

fn tree(node: &Node, below: &str) -> Vec<String> {
    let root = node.path(below);
    let mut found = Vec::new();
    let mut open = vec![root.clone()];
    while let Some(dir) = open.pop() {
        for entry in fs_err::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(&root).unwrap().display().to_string();
            if path.is_symlink() {
                found.push(format!("{name} -> {}", fs_err::read_link(&path).unwrap().display()));
            } else if path.is_dir() {
                found.push(format!("{name}/"));
                open.push(path);
            } else {
                found.push(format!("{name}={}", fs_err::read_to_string(&path).unwrap()));
            }
        }
    }
    found.sort();
    found
}

#[test]
fn directory_sync_copies_a_tree_and_undo_restores_it() {
    let node = Node::new();
    for (path, text) in [("a/one", "1"), ("a/two/three", "3"), ("a/kind", "file")] {
        node.write(path, text);
    }
    fs_err::create_dir(node.path("a/empty")).unwrap();
    fs_err::os::unix::fs::symlink("one", node.path("a/link")).unwrap();
    for (path, text) in [
        ("b/one", "other"),
        ("b/kind/inside", "x"),
        ("b/two", "was a file"),
        ("b/more/deep", "stays"),
    ] {
        node.write(path, text);
    }
    let before = tree(&node, "b");
    let input = json!({"from": "a", "to": "b"});
    let predicted = node.predict("sync", input.clone());
    let Prediction::Diff(diff) = predicted else { panic!("{predicted:?}") };
    assert_eq!(
        diff,
        "- b/two\n- b/kind/inside\n- b/kind\n+ b/empty\n~ b/kind\n+ b/link\n~ b/one\n~ b/two\n+ b/two/three\n"
    );
    let done = node.apply("sync", input.clone()).unwrap();
    assert!(done.changed);
    let wanted = [
        "empty/",
        "kind=file",
        "link -> one",
        "more/",
        "more/deep=stays",
        "one=1",
        "two/",
        "two/three=3",
    ];
    assert_eq!(tree(&node, "b"), wanted);
    assert_eq!(node.verify("sync", input.clone()).unwrap(), Verdict::Holds);
    assert_eq!(node.predict("sync", input.clone()), Prediction::NoChange);
    assert!(!node.apply("sync", input.clone()).unwrap().changed);
    let strict = json!({"from": "a", "to": "b", "delete": true});
    assert!(does_not(node.verify("sync", strict.clone())).ends_with("is there"));
    let deleted = node.apply("sync", strict.clone()).unwrap();
    assert_eq!(tree(&node, "b"), tree(&node, "a"));
    node.undo("sync", strict, &deleted.receipt).unwrap();
    assert_eq!(tree(&node, "b"), wanted);
    node.undo("sync", input, &done.receipt).unwrap();
    assert_eq!(tree(&node, "b"), before, "as it was");
}

/// 400 files that become like others.
fn many() -> (Node, Vec<String>) {
    let node = Node::new();
    for at in 0..400 {
        node.write(&format!("a/{at}"), "new");
        node.write(&format!("b/{at}"), &format!("old {at}"));
    }
    let before = tree(&node, "b");
    (node, before)
}

#[test]
fn undo_of_a_stopped_step_leaves_unchanged_paths() {
    let (node, before) = many();
    let input = json!({"from": "a", "to": "b"});
    let is_new = |at: i32| node.text(&format!("b/{at}")) == "new";
    let b = node.path("b");
    let has_begun = || {
        let entries = fs_err::read_dir(&b).unwrap();
        entries.flatten().any(|entry| fs_err::read(entry.path()).is_ok_and(|text| text == b"new"))
    };
    node.kill("sync", input.clone(), has_begun);
    let done = (0..400).filter(|at| is_new(*at)).count();
    assert!(done < 400, "{done}");
    let left = (0..400).find(|at| !is_new(*at)).unwrap();
    node.write(&format!("b/{left}"), "of somebody else");
    assert_eq!(node.undo("sync", input, &Value::Null).unwrap(), UndoOutcome::Undone);
    assert_eq!(node.text(&format!("b/{left}")), "of somebody else");
    node.write(&format!("b/{left}"), &format!("old {left}"));
    assert_eq!(tree(&node, "b"), before);
}

#[test]
fn undo_after_power_loss_keeps_unchanged_paths() {
    let (node, before) = many();
    let input = json!({"from": "a", "to": "b"});
    node.apply("sync", input.clone()).unwrap();
    // As it was when half of a lot had taken its place.
    for at in 0..50 {
        node.write(&format!("b/{at}"), &format!("old {at}"));
        node.write(&format!("b/.01run-7-1.{at}"), "ne");
    }
    assert_eq!(node.undo("sync", input, &Value::Null).unwrap(), UndoOutcome::Undone);
    assert_eq!(tree(&node, "b"), before);
}

#[test]
fn missing_directory_is_created_and_removed_by_undo() {
    let node = Node::new();
    node.write("a/x", "1");
    let input = json!({"from": "a", "to": "c/d"});
    assert!(matches!(node.verify("sync", input.clone()).unwrap(), Verdict::Fails(_)));
    let done = node.apply("sync", input.clone()).unwrap();
    assert_eq!(tree(&node, "c"), ["d/", "d/x=1"]);
    node.undo("sync", input, &done.receipt).unwrap();
    assert!(!node.path("c").exists());
    assert!(node.reason("sync", json!({"from": "nowhere", "to": "c"})).starts_with("directory `"));
}

#[test]
fn expired_backups_are_removed_by_the_next_change() {
    let node = Node::new();
    let write = |text: &str| {
        let done = node.apply("file", json!({"path": "conf", "text": text})).unwrap();
        PathBuf::from(done.receipt["backup"].as_str().unwrap())
    };
    let old = write("1");
    let young = write("2");
    let age = |dir: &Path, age: Duration| {
        let at = std::time::SystemTime::now() - age;
        fs_err::File::open(dir).unwrap().file().set_modified(at).unwrap();
    };
    let minute = Duration::from_mins(1);
    age(&old, place::KEPT + minute);
    age(&young, place::KEPT.saturating_sub(minute));
    let last = write("3");
    assert!(!old.exists() && young.join("list").exists() && last.join("list").exists());
}

fn mode(node: &Node, below: &str) -> u32 {
    fs_err::metadata(node.path(below)).unwrap().permissions().mode() & 0o7777
}

#[test]
fn directory_modes_are_copied_and_restored_by_undo() {
    let node = Node::new();
    for dir in ["a/priv/in", "b/old", "b/priv"] {
        fs_err::create_dir_all(node.path(dir)).unwrap();
    }
    node.write("a/priv/in/x", "1");
    let set = |below: &str, mode: u32| {
        fs_err::set_permissions(node.path(below), PermissionsExt::from_mode(mode)).unwrap();
    };
    set("a", 0o750);
    set("a/priv", 0o500);
    set("b/old", 0o700);
    set("b/priv", 0o711);
    set("b", 0o701);
    assert!(rustix_is_root(), "owners change only as root; run the tests as root");
    std::os::unix::fs::chown(node.path("b/old"), Some(1000), Some(1001)).unwrap();
    std::os::unix::fs::chown(node.path("b/priv"), Some(1002), None).unwrap();
    let owners = |below: &str| {
        let meta = fs_err::metadata(node.path(below)).unwrap();
        (meta.uid(), meta.gid())
    };
    let before = [owners("b/old"), owners("b/priv")];
    let input = json!({"from": "a", "to": "b", "delete": true});
    let wanted = "- b/old\n+ b/priv/in\n+ b/priv/in/x\n~ b/priv (mode 0500)\n";
    assert_eq!(node.predict("sync", input.clone()), Prediction::Diff(wanted.to_owned()));
    let done = node.apply("sync", input.clone()).unwrap();
    assert_eq!((mode(&node, "b/priv"), mode(&node, "b/priv/in")), (0o500, 0o755));
    assert_eq!(mode(&node, "b"), 0o701, "what was there is not ours");
    assert_eq!(node.verify("sync", input.clone()).unwrap(), Verdict::Holds);
    set("b/priv", 0o755);
    let reason = does_not(node.verify("sync", input.clone()));
    assert!(reason.starts_with("the mode of `") && reason.ends_with("b/priv` is not 0500"));
    set("a/priv", 0o700);
    node.undo("sync", input, &done.receipt).unwrap();
    assert_eq!((mode(&node, "b/old"), mode(&node, "b/priv")), (0o700, 0o711));
    assert_eq!([owners("b/old"), owners("b/priv")], before);
    node.apply("sync", json!({"from": "a", "to": "c"})).unwrap();
    assert_eq!((mode(&node, "c"), mode(&node, "c/priv")), (0o750, 0o700));
}

/// Fails a test that would otherwise wait for ever.
fn soon(test: impl FnOnce() + Send + 'static) {
    let (tell, told) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        test();
        tell.send(()).unwrap();
    });
    let told = told.recv_timeout(Duration::from_mins(1));
    assert_ne!(told, Err(std::sync::mpsc::RecvTimeoutError::Timeout), "it still waits");
    thread.join().unwrap();
}

fn fifo(node: &Node, below: &str) {
    let made = std::process::Command::new("mkfifo").arg(node.path(below)).status().unwrap();
    assert!(made.success());
}

#[test]
fn fifo_is_neither_opened_nor_replaced() {
    soon(|| {
        let node = Node::new();
        node.write("src/one", "1");
        node.write("src/two", "2");
        node.write("dst/one", "old");
        for pipe in ["pipe", "dst/pipe", "dst/two"] {
            fifo(&node, pipe);
        }
        let kept = "is no file, directory or link and is not replaced; remove it first";
        for (action, input) in [
            ("file", json!({"path": "pipe", "text": "x"})),
            ("copy", json!({"from": "src/one", "to": "pipe"})),
            ("sync", json!({"from": "src", "to": "dst"})),
            ("sync", json!({"from": "src", "to": "dst", "delete": true})),
        ] {
            let reason = node.reason(action, input);
            assert!(reason.ends_with(kept), "{action}: {reason}");
        }
        assert_eq!(node.text("dst/one"), "old", "nothing was touched");
        fs_err::remove_file(node.path("dst/two")).unwrap();
        node.apply("sync", json!({"from": "src", "to": "dst"})).unwrap();
        assert_eq!(node.text("dst/two"), "2", "what is only beside is no matter");
        let reason = node.reason("copy", json!({"from": "pipe", "to": "new"}));
        assert!(reason.starts_with("file `"), "{reason}");
        let reason = node.reason("script", json!({"path": "pipe"}));
        assert!(reason.ends_with("is not a regular file"), "{reason}");
        let tls = json!({"url": "https://127.0.0.1:1/", "ca": "pipe"});
        let reason = node.reason("http", tls);
        assert!(reason.ends_with("is not a regular file"), "{reason}");
    });
}

#[test]
fn large_file_is_copied_and_compared_within_the_time_limit() {
    let node = Node { timeout: Some(Duration::from_millis(100)), ..Node::new() };
    for name in ["large", "same"] {
        fs_err::File::create(node.path(name)).unwrap().set_len(4 << 30).unwrap();
    }
    let failed = |came: Option<Failure>| came.map(|failure| failure.kind);
    let over = Some(FailureKind::Timeout);
    let copy = json!({"from": "large", "to": "new"});
    assert_eq!(failed(node.apply("copy", copy).err()), over);
    assert!(!node.path("new").exists(), "not a part of it");
    let compare = json!({"from": "large", "to": "same"});
    assert_eq!(failed(node.verify("copy", compare).err()), over);
    let replace = json!({"path": "same", "text": "x"});
    assert_eq!(failed(node.apply("file", replace).err()), over, "nor is it kept");
}

#[test]
fn reading_ends_when_the_step_is_stopped() {
    let node = Node::new();
    node.write("file", "content");
    let cancel = Cancel::default();
    let until = blocks::Until { deadline: None, cancel: &cancel };
    let read = || {
        let mut text = String::new();
        let read =
            blocks::Blocks::open(&node.path("file"), until).unwrap().read_to_string(&mut text);
        read.map(|_| text).map_err(|error| io_error(&error).reason)
    };
    assert_eq!(read(), Ok("content".to_owned()));
    cancel.cancel();
    assert_eq!(read(), Err("stopped".to_owned()));
}

#[test]
fn file_preview_shows_the_change_without_making_it() {
    let node = Node::new();
    node.write("conf", "a\nb\n");
    let input = json!({"path": "conf", "text": "a\nc\n"});
    let wanted = "--- conf\n+++ conf\n@@ -1,2 +1,2 @@\n a\n-b\n+c\n";
    assert_eq!(node.predict("file", input.clone()), Prediction::Diff(wanted.to_owned()));
    assert_eq!(node.text("conf"), "a\nb\n");
    node.write("new", "a\nc\n");
    assert_eq!(
        node.predict("copy", json!({"from": "new", "to": "conf"})),
        Prediction::Diff(wanted.to_owned())
    );
    node.apply("file", input.clone()).unwrap();
    assert_eq!(node.predict("file", input), Prediction::NoChange);
    assert_eq!(node.predict("shell", json!({"command": "true"})), Prediction::CannotPredict);
}

#[test]
fn preview_hides_files_that_are_not_world_readable() {
    let node = Node::new();
    node.write("conf", "password: one\n");
    let hidden = |predicted: Prediction| {
        let Prediction::Diff(diff) = predicted else { panic!("{predicted:?}") };
        assert!(diff.contains("(not shown: not all users may read the file)"), "{diff}");
        assert!(!diff.contains("password"), "{diff}");
    };
    let text = "password: two\n";
    hidden(node.predict("file", json!({"path": "conf", "text": text, "mode": "0640"})));
    let private = PermissionsExt::from_mode(0o600);
    fs_err::set_permissions(node.path("conf"), private).unwrap();
    hidden(node.predict("file", json!({"path": "conf", "text": text})));
    node.write("other", "");
    hidden(node.predict("copy", json!({"from": "conf", "to": "other"})));
    hidden(node.predict("copy", json!({"from": "other", "to": "conf"})));
}

#[test]
fn preview_does_not_follow_links() {
    let node = Node::new();
    node.write("elsewhere", "private\n");
    std::os::unix::fs::symlink(node.path("elsewhere"), node.path("conf")).unwrap();
    let predicted = node.predict("file", json!({"path": "conf", "text": "x\n"}));
    let Prediction::Diff(diff) = predicted else { panic!("{predicted:?}") };
    assert!(diff.ends_with("(not shown: the path is not a regular file)\n"), "{diff}");
}

#[test]
fn preview_of_a_list_covers_each_part() {
    let node = Node::new();
    node.write("a", "1\n");
    let file = |path: &str, text: &str| json!({"name": path, "action": "file", "input": {"path": path, "text": text}});
    let shell = json!({"name": "reload", "action": "shell", "input": {"command": "true"}});
    let predict = |parts: &[&Value]| node.predict("steps", json!({ "steps": parts }));
    assert_eq!(predict(&[&shell]), Prediction::CannotPredict);
    assert_eq!(predict(&[&file("a", "1\n"), &shell]), Prediction::CannotPredict);
    assert_eq!(predict(&[&file("a", "1\n")]), Prediction::NoChange);
    let diff = "--- a\n+++ a\n@@ -1,1 +1,1 @@\n-1\n+2\nreload: cannot be predicted\n";
    assert_eq!(predict(&[&file("a", "2\n"), &shell]), Prediction::Diff(diff.to_owned()));
}

#[test]
fn undo_refuses_files_changed_since_the_step() {
    let node = Node::new();
    node.write("from/a", "a");
    node.write("from/sub/b", "b");
    node.write("to/a", "old");
    node.write("to/gone", "gone");
    let input = json!({"from": "from", "to": "to", "delete": true});
    let done = node.apply("sync", input.clone()).unwrap();
    let attempt = node.attempts.get();
    let undo = || node.undo_attempt("sync", input.clone(), attempt, &done.receipt);
    let refused = |what: &str| {
        let reason = not_possible(undo());
        let path = node.path(what).display().to_string();
        assert!(reason.starts_with(&format!("`{path}` was changed since")), "{reason}");
    };

    node.write("to/gone", "another one");
    refused("to/gone");
    fs_err::remove_file(node.path("to/gone")).unwrap();
    node.write("to/a", "later");
    refused("to/a");
    node.write("to/a", "a");
    fs_err::set_permissions(node.path("to/a"), PermissionsExt::from_mode(0o600)).unwrap();
    refused("to/a");
    fs_err::remove_file(node.path("to/a")).unwrap();
    refused("to/a");
    assert!(node.path("to/sub/b").exists(), "nothing was touched");

    // The state after an interrupted undo.
    node.write("to/a", "old");
    assert_eq!(undo().unwrap(), UndoOutcome::Undone);
    assert_eq!((node.text("to/a"), node.text("to/gone")), ("old".to_owned(), "gone".to_owned()));
    assert!(!node.path("to/sub").exists());
    assert_eq!(undo().unwrap(), UndoOutcome::Undone, "undoing may be begun again");
}

#[test]
fn undo_needs_the_final_state_or_over_changes() {
    let node = Node::new();
    let input = json!({"path": "conf", "text": "one"});
    let done = node.apply("file", input.clone()).unwrap();
    let attempt = node.attempts.get();
    let left = std::path::Path::new(done.receipt["backup"].as_str().unwrap()).join("left");
    fs_err::write(left, "").unwrap();
    let reason = not_possible(node.undo_attempt("file", input.clone(), attempt, &done.receipt));
    assert!(reason.starts_with("the final state is unknown"), "{reason}");
    assert!(node.path("conf").exists());
    let made = AppliedAttempt {
        attempt: format!("01run/7/{attempt}"),
        receipt: done.receipt,
        over_changes: true,
    };
    let undone = node.with("file", &input, |action, step, ctx| action.undo(step, &made, ctx));
    assert_eq!(undone.unwrap(), UndoOutcome::Undone);
    assert!(!node.path("conf").exists());
}
