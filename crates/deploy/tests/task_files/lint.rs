use hoist_deploy::compile::Options;
use hoist_deploy::lint::layouts;

use crate::{EXAMPLE, good, read, with_template};

fn found(text: &str) -> Vec<String> {
    let (book, sources, read) = read(text);
    assert_eq!(read, Vec::<String>::new());
    let actions = hoist_deploy::actions::catalog();
    let options = Options { actions: Some(&actions), ..with_template() };
    let findings = layouts(&book, &options);
    findings
        .iter()
        .map(|one| format!("{}: {}", one.layout, one.diagnostic.show(&sources)))
        .collect()
}

#[test]
fn cycle_of_two_roles_on_one_node_is_found_without_nodes() {
    let text = "hoist: 1
tasks:
  a: {on: web, run: none, requires: [{task: b, optional: true}]}
  b: {on: db, run: none, requires: [{task: c, optional: true}]}
  c: {on: web, run: none, requires: [a]}
";
    let found = found(text);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(
        found[0].starts_with(
            "three nodes with every role: tasks.yaml:3:38: E401 they wait for each other: a → b → c → \
             a, on node1, node2, node3;"
        ),
        "{found:?}"
    );
    assert_eq!(
        layouts(&good(text), &Options::default())[0].layouts,
        3,
        "wherever web and db share a node"
    );
}

#[test]
fn only_references_that_can_never_bind_are_reported() {
    let text = "hoist: 1
roles: {database: {first: leader}}
tasks:
  heat-db: {on: leader, run: none, requires: [database, other]}
  database: {on: database and not first(database), run: none}
  other: {on: web, run: none}
";
    let found = found(text);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].contains("E302 `heat-db` requires `database`"), "{found:?}");
}

#[test]
fn example_is_valid_on_every_layout() {
    let found = found(EXAMPLE);
    assert_eq!(found.len(), 1, "{found:#?}");
    assert!(found[0].contains("W502 `db-bootstrap` can be undone, but `db-install`"), "{found:?}");
}

#[test]
fn faults_that_do_not_depend_on_nodes_are_reported() {
    let text = "hoist: 1
roles: {web: {tolerate: 5, rollout: {canary: 0}}}
tasks:
  action: {on: web, run: {shel: {command: x}}}
  field: {on: web, run: {shell: {command: x, bogus: 1}}}
  nothing: {on: web}
  condition: {on: web, run: none, when: 'settings.x ==='}
  unknown: {on: web, run: none, when: {unknown: foo}}
  later: {on: web, run: none, when: settings.given_with_the_run, inputs: [settings.too]}
  zero: {on: web, run: none, at_once: 0}
  check: {on: web, run: {shell: x}, repeat: check}
  pattern: {on: web, run: none, requires: ['/(/']}
  never: {on: web, run: {shell: x}, repeat: never, retries: 3}
  slip: {on: wbe, run: none}
  template: {on: web, run: {file: {path: /x, template: gone.conf}}}
limits: {at_once: 0}
";
    let found = found(text);
    for line in [
        "2:46: E203 at most 0 at once",
        "4:27: E604 action `shel` not found",
        "5:26: E604 `shell`: bogus",
        "6:3: E104 task `nothing`: `run` is missing",
        "7:41: E601 `settings.x ===` cannot be evaluated",
        "8:39: E602 the condition of task",
        "10:39: E203 at most 0 at once",
        "11:45: E203 task `check`: `repeat: check` needs a postcondition",
        "12:44: E101 `/(/` cannot be used",
        "13:45: W503 task `never`",
        "14:14: E200 these files have no role `wbe`; did you mean `web`?",
        "15:29: E603 template `gone.conf` not found",
        "16:19: E203 at most 0 at once",
    ] {
        assert!(
            found.iter().any(|one| one.contains(&format!("tasks.yaml:{line}"))),
            "{line}\n{found:#?}"
        );
    }
    assert_eq!(found.len(), 13, "{found:#?}");
}
