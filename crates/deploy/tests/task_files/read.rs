use std::fmt::Write as _;
use std::time::Duration;

use hoist_deploy::compile::Options;
use hoist_deploy::diagnostic::{Code, Severity};
use hoist_deploy::parse::{MAX_BYTES, MAX_TASKS, parse};
use hoist_deploy::spec::{Amount, NeedScope, Place, Sources, Want};
use proptest::prelude::*;

use crate::{EXAMPLE, good, read};

#[test]
fn example_is_read_with_places() {
    let book = good(EXAMPLE);
    assert_eq!(book.tasks.len(), 5);
    let install = &book.tasks[1];
    assert_eq!(install.id.place, Place { file: 0, line: 12, column: 3 });
    assert_eq!(install.timeout.expect("it is there").value, Duration::from_mins(30));
    let requires = &install.requires.as_ref().expect("it is there").value[0];
    assert_eq!(requires.place, Place { file: 0, line: 14, column: 16 });
    let api = &book.tasks[4];
    let need = &api.needs.as_ref().expect("it is there").value[0];
    assert_eq!(need.want, Want::Most);
    assert!(matches!(need.on, NeedScope::Nodes(_)));
    let bootstrap = &book.tasks[2];
    let after = &bootstrap.check_after.as_ref().expect("it is there").value[0];
    assert_eq!(after.within, Some(Duration::from_mins(2)));
    assert_eq!(after.by.input["command"], "mysqladmin ping");
    assert_eq!(book.roles[0].at_once.as_ref().expect("it is there").value, Amount::Count(6));
}

#[test]
fn deployment_document_equals_a_bare_file() {
    let bare = "hoist: 1\ntasks:\n  a: {on: '*', run: none}\n";
    let document = "api: hoist/v1\nkind: Deployment\nname: web\nspec:\n  tasks:\n    a: {on: '*', run: none}\n";
    let mut bare = good(bare);
    let mut document = good(document);
    for book in [&mut bare, &mut document] {
        assert_eq!(book.tasks[0].id.value, "a");
        let run = book.tasks[0].run.take().expect("it is there");
        assert_eq!(run.value.uses[0].action, "none");
    }
    let mut sources = Sources::default();
    let text = "api: hoist/v1\nkind: Node\nname: web\nspec: {}\n";
    let (_, found) = parse(&mut sources, "x", text.as_bytes());
    assert!(found[0].diagnostic.message.contains("no Deployment"), "{found:?}");
}

#[test]
fn second_document_of_a_file_is_an_error_with_its_place() {
    let text = "hoist: 1\nsettings: {a: 1}\n---\nhoist: 1\nsettings: {b: 2}\n---\n# nothing\n";
    let (_, _, found) = read(text);
    assert_eq!(
        found,
        [
            "tasks.yaml:4:1: E105 a task file is one document, and here another one begins; make one \
          of them, or a file of each"
        ]
    );
    good("---\nhoist: 1\ntasks: {a: {on: '*', run: none}}\n---\n");
}

#[test]
fn all_faults_of_a_file_are_reported_with_their_place() {
    let (_, _, found) = read(
        r#"hoist: 1
tasks:
  a:
    on: "*"
    cross-depened-by: [b]
    reqires: [b]
    retries: many
    timeout: 5 minutes
    repeat: allways
    run: {shell: "true", file: {path: /x}}
    skip: always
  b:
    on: "database and ("
    needs: [{taks: a}]
    check: {befor: []}
    run: []
    on: x
  c: {on: [web, database], run: {none: {}}}
roles:
  r: {tolerate: some, rollout: {per: {rack: one}}}
barriers:
  done: {passes_with: anything}
"#,
    );
    let wanted = [
        "tasks.yaml:5:5: E102 unknown key `cross-depened-by` in task `a`",
        "tasks.yaml:6:5: E102 unknown key `reqires` in task `a`; did you mean `requires`?",
        "tasks.yaml:7:14: E101 expected a whole number from 0 to 4294967295, found `many`",
        "tasks.yaml:8:14: E101 `5 minutes` is no time; write it like `30s`, `5m` or `1h30m`",
        "tasks.yaml:9:13: E101 expected safe or check or never, found `allways`",
        "tasks.yaml:10:26: E101 `shell` and `file` are two actions; write a list of actions",
        "tasks.yaml:11:11: E101 expected when_done, found `always`",
        "tasks.yaml:17:5: E105 the key `on` is twice in task `b` (the other one: tasks.yaml:13:5)",
        "tasks.yaml:13:9: E200 the selector `database and (` cannot be understood",
        "tasks.yaml:14:14: E102 unknown key `taks` in a need; did you mean `task`?",
        "tasks.yaml:14:13: E104 `task` is missing",
        "tasks.yaml:15:13: E102 unknown key `befor` in the check of task `b`; did you mean `before`?",
        "tasks.yaml:16:10: E101 expected at least one action, found a list",
        "tasks.yaml:18:11: E101 expected a selector such as `database` or `web, database`, found a list",
        "tasks.yaml:20:17: E101 expected a number, `2%` or `all but 3`, found a text",
        "tasks.yaml:20:45: E101 expected a whole number from 0 to 4294967295, found `one`",
        "tasks.yaml:22:23: E101 expected all or tolerated or any_result, found `anything`",
    ];
    for line in wanted {
        assert!(found.iter().any(|told| told.starts_with(line)), "{line}\n{found:#?}");
    }
    assert_eq!(found.len(), wanted.len(), "{found:#?}");
}

#[test]
fn words_of_other_products_are_translated() {
    let (_, _, found) = read("hoist: 1\ntasks: {a: {hosts: x, cross-depends: [], condition: y}}\n");
    let remedies: Vec<&str> = found.iter().filter_map(|line| line.split("; ").nth(1)).collect();
    assert_eq!(
        remedies,
        ["did you mean `on`?", "did you mean `needs`?", "did you mean `when`?"],
        "{found:?}"
    );
}

#[test]
fn fault_is_drawn_with_its_line() {
    let mut sources = Sources::default();
    let text = "hoist: 1\ntasks:\n  database:\n    cross-depened-by: [x]\n    on: '*'\n";
    let (_, found) = parse(&mut sources, "tasks.yaml", text.as_bytes());
    let drawn = found[0].draw(&sources, false);
    for part in [
        "error[E102]: unknown key `cross-depened-by` in task `database`",
        "--> tasks.yaml:4:5",
        "4 |     cross-depened-by: [x]",
        "^^^^^^^^^^^^^^^^",
    ] {
        assert!(drawn.contains(part), "{part}\n{drawn}");
    }
}

#[test]
fn short_forms_of_actions_become_their_inputs() {
    let book = good(
        r#"
hoist: 1
tasks:
  a:
    on: "*"
    cwd: /srv
    run:
      - {name: first, shell: "make", env: {A: "1"}}
      - {script: go.sh}
      - {script: "one\ntwo", cwd: /opt}
      - {wait: 30s}
      - {wait: {tcp: "db:3306"}}
      - {http: "http://x/"}
      - {puppet: site.pp}
      - {ansible: play.yml}
      - reboot
      - {raid: {level: 1}}
"#,
    );
    let run = book.tasks[0].run.as_ref().expect("it is there");
    let shown: Vec<String> =
        run.value.uses.iter().map(|one| format!("{} {}", one.action, one.input)).collect();
    assert_eq!(
        shown,
        [
            r#"shell {"command":"make","env":{"A":"1"},"cwd":"/srv"}"#,
            r#"script {"path":"go.sh","cwd":"/srv"}"#,
            r#"script {"text":"one\ntwo","cwd":"/opt"}"#,
            r#"wait {"for":{"ms":30000}}"#,
            r#"wait {"for":{"tcp":"db:3306"}}"#,
            r#"http {"url":"http://x/"}"#,
            r#"puppet {"manifest":"site.pp"}"#,
            r#"ansible {"playbook":"play.yml"}"#,
            "reboot {}",
            r#"raid {"level":1}"#,
        ]
    );
    assert_eq!(run.value.uses[0].name.as_deref(), Some("first"));
}

#[test]
fn oversized_file_is_not_read() {
    let mut sources = Sources::default();
    let mut at_limit = b"hoist: 1\n#".to_vec();
    at_limit.resize(MAX_BYTES, b'x');
    let (_, found) = parse(&mut sources, "large.yaml", &at_limit);
    assert_eq!(found, []);
    at_limit.push(b'x');
    let (_, found) = parse(&mut sources, "large.yaml", &at_limit);
    assert_eq!(found[0].code, Code::TooLarge);
    let line = found[0].show(&sources);
    assert!(line.starts_with("large.yaml: E103 10485761 bytes are more than"), "{line}");
}

#[test]
fn depth_tasks_and_aliases_are_bounded() {
    let deep = |levels: usize| {
        let open = "[".repeat(levels);
        let close = "]".repeat(levels);
        read(&format!("hoist: 1\nsettings: {{a: {open}{close}}}\n")).2
    };
    assert_eq!(deep(62), Vec::<String>::new());
    assert!(deep(63)[0].contains("E103 it is nested deeper than 64 levels"), "{:?}", deep(63));

    let tasks = |count: usize| {
        let mut text = "hoist: 1\ntasks:\n".to_owned();
        for at in 0..count {
            writeln!(text, "  t{at}: {{on: '*', run: none}}").expect("writing to memory");
        }
        read(&text).2
    };
    assert_eq!(tasks(MAX_TASKS), Vec::<String>::new());
    let found = tasks(MAX_TASKS + 1);
    assert!(found[0].contains("E103 10001 tasks are more than 10000"), "{found:?}");

    let mut bomb = "hoist: 1\nsettings:\n  a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n".to_owned();
    for at in 1..9 {
        let list = vec![format!("*a{}", at - 1); 10].join(",");
        writeln!(bomb, "  a{at}: &a{at} [{list}]").expect("writing to memory");
    }
    let (_, _, found) = read(&bomb);
    assert!(found[0].contains("E103 there are more than 1000000 values"), "{found:?}");
}

#[test]
fn invalid_yaml_and_empty_files_are_reported() {
    for (text, part) in [
        ("hoist: 1\ntasks: [", "tasks.yaml:2:"),
        ("- a\n", "a task file is a map, not a list"),
        ("", "E104 the file is empty"),
        ("tasks: {}\n", "begin it with `hoist: 1`"),
        ("hoist: 2\n", "this hoist reads `1`"),
        ("hoist: 1\ntasks: {a b: {on: x, run: none}}\n", "cannot be the name of a task"),
        ("hoist: 1\ntasks: {a..b: {on: x, run: none}}\n", "cannot be the name of a task"),
    ] {
        let (_, _, found) = read(text);
        assert!(found.first().is_some_and(|line| line.contains(part)), "{text}: {found:?}");
    }
    let mut sources = Sources::default();
    let (_, found) = parse(&mut sources, "x", b"hoist: \xff");
    assert!(found[0].diagnostic.message.contains("byte 7 is not UTF-8"));
}

#[test]
fn codes_are_unique_and_documented() {
    let guide = include_str!("../../../../docs/deploy/task-files.md");
    let mut seen = std::collections::BTreeSet::new();
    for code in Code::ALL {
        assert!(seen.insert(code.as_str()), "{code} is there twice");
        assert!(guide.contains(&format!("| {code} |")), "{code} is not documented");
    }
}

#[test]
fn documented_example_compiles_to_a_plan() {
    let guide = include_str!("../../../../docs/deploy/task-files.md");
    let example = guide.split("```yaml\n").nth(1).and_then(|rest| rest.split("```").next());
    let book = example.expect("the guide has an example");
    let compiled = crate::compiled(book, &crate::three_and_one(), &crate::with_template());
    let compiled = compiled.expect("the example is right");
    let worst = compiled.diagnostics.iter().map(|one| one.severity).max();
    assert!(worst < Some(Severity::Error));
    let _ = Options::default();
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_text_makes_the_parser_panic(text in r#"[-a-z0-9:*&!|>{}\[\],#%"' \n]{0,120}"#) {
        let mut sources = Sources::default();
        let (_, found) = parse(&mut sources, "x", text.as_bytes());
        for one in found {
            one.draw(&sources, false);
        }
    }

    #[test]
    fn no_change_to_a_good_file_makes_the_parser_panic(
        at in 0..EXAMPLE.len(),
        sign in r#"[-a-z0-9:*&!{}\[\],"' \n\t]"#,
        length in 0_usize..4,
    ) {
        let end = (at + length).min(EXAMPLE.len());
        let text = format!("{}{sign}{}", &EXAMPLE[..at], &EXAMPLE[end..]);
        let mut sources = Sources::default();
        let (_, found) = parse(&mut sources, "x", text.as_bytes());
        for one in found {
            one.draw(&sources, false);
        }
    }
}

#[test]
fn duplicate_key_is_found_at_any_depth() {
    for (text, line) in [
        ("settings: {x: {y: 1, y: 2}}\ntasks: {}", "E105 the key `y` is twice"),
        ("tasks: {a: {on: '*', run: {shell: x, env: {A: 1, A: 2}}}}", "E105 the key `A` is twice"),
        ("tasks: {a: {on: '*', run: {x: {l: [{b: 1, b: 2}]}}}}", "E105 the key `b` is twice"),
    ] {
        let (_, _, found) = read(&format!("hoist: 1\n{text}\n"));
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains(line), "{found:?}");
    }
}

#[test]
fn repeated_check_needs_a_time_limit_and_a_pause() {
    for (check, line) in [
        ("{shell: x, every: 1s}", "E101 `every` needs `for`, the deadline of the check"),
        ("{shell: x, for: 1m, every: 0s}", "E101 `every` is 100ms at least"),
    ] {
        let text = format!(
            "hoist: 1\ntasks: {{a: {{on: '*', run: none, check: {{after: [{check}]}}}}}}\n"
        );
        let (_, _, found) = read(&text);
        assert!(found.len() == 1 && found[0].contains(line), "{found:?}");
    }
}

#[test]
fn out_of_range_numbers_are_quoted_as_written() {
    for (number, line) in [
        ("-1", "expected a whole number from 0 to 4294967295, found `-1`"),
        ("1.5", "expected a whole number from 0 to 4294967295, found `1.5`"),
        ("4294967296", "expected a whole number from 0 to 4294967295, found `4294967296`"),
    ] {
        let (_, _, found) =
            read(&format!("hoist: 1\ntasks: {{a: {{on: '*', run: none, retries: {number}}}}}\n"));
        assert!(found[0].contains(line), "{found:?}");
    }
    let (_, _, found) =
        read("hoist: 1\ntasks: {a: {on: '*', run: none, window: 'Sat 99999999:00-04:00'}}\n");
    assert!(found[0].contains("E101 `Sat 99999999:00-04:00` is no part of a week"), "{found:?}");
}
