//! Checks of tasks, with the real program: when they decide, and how they are recorded.

use crate::run::{Example, text};

#[test]
fn unchanged_inputs_do_not_skip_work_that_is_gone() {
    let example = Example::new();
    let controller = example.start();
    let file = example.path("inputs.yaml");
    let tasks = "hoist: 1\nsettings: {v: 1}\ntasks:\n  \
        bare: {on: 'node:web1', inputs: [settings.v], run: {shell: 'echo x >> bare'}}\n  \
        checked: {on: 'node:web1', inputs: [settings.v], \
        run: {shell: 'touch made; echo x >> checked'}, check: {after: [{shell: 'test -e made'}]}}\n";
    fs_err::write(&file, tasks).expect("a file");
    let times = |name: &str| {
        fs_err::read_to_string(example.file("web1", name)).expect("a log").lines().count()
    };
    for _ in 0..2 {
        controller.does(&["deploy", "run", &file]);
        assert_eq!((times("bare"), times("checked")), (1, 1));
    }
    fs_err::remove_file(example.file("web1", "made")).expect("it is there");
    controller.does(&["deploy", "run", &file]);
    assert_eq!((times("bare"), times("checked")), (1, 2), "the postcondition does not hold");
    controller.does(&["node", "renew", "web1"]);
    controller.does(&["deploy", "run", &file]);
    assert_eq!((times("bare"), times("checked")), (2, 3), "it is another system");
}

#[test]
fn every_poll_of_a_check_is_recorded() {
    let example = Example::new();
    let controller = example.start();
    let file = example.path("polled.yaml");
    let tasks = "hoist: 1\ntasks:\n  a: {on: 'node:web1', run: {shell: 'true'}, check: {after: \
        [{shell: 'echo x >> polls; echo not yet; [ $(wc -l < polls) -ge 3 ]', says: it is up, \
        for: 2m, every: 100ms}]}}\n";
    fs_err::write(&file, tasks).expect("a file");
    controller.does(&["deploy", "run", &file]);
    let shown = controller.does(&["deploy", "show", "last", "a@web1"]);
    for poll in [1, 2] {
        let start = format!("hoist: check \"it is up\", poll {poll} after ");
        let line = shown.lines().find(|line| line.starts_with(&start)).expect(&shown);
        assert!(line.ends_with(" s: does not hold (exit code 1): not yet"), "{line}");
    }
    let last = shown.lines().find(|line| line.contains("poll 3 after ")).expect(&shown);
    assert!(last.ends_with(" s: holds") && !shown.contains("poll 4"), "{shown}");

    let attempt =
        |number: &str| controller.hoist(&["deploy", "show", "last", "a@web1", "--attempt", number]);
    assert_eq!(attempt("1").status.code(), Some(0));
    for number in ["0", "2"] {
        let missing = attempt(number);
        assert_eq!(missing.status.code(), Some(1), "{}", text(&missing));
        let told = format!("attempt {number} of a@web1 not found");
        assert!(text(&missing).contains(&told), "{}", text(&missing));
    }
}
