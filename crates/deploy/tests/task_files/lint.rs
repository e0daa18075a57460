use hoist_deploy::lint::layouts;

use crate::{EXAMPLE, good, read};

fn found(text: &str) -> Vec<String> {
    let (book, sources, read) = read(text);
    assert_eq!(read, Vec::<String>::new());
    let findings = layouts(&book, false);
    findings
        .iter()
        .map(|one| format!("{}: {}", one.layout, one.diagnostic.show(&sources)))
        .collect()
}

#[test]
fn a_circle_that_needs_two_roles_on_one_node_is_found_before_there_is_such_a_node() {
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
            "three nodes with every role: tasks.yaml:3:38: E401 they wait for each other: a@node1 → \
             b@node1 → c@node1 → a@node1"
        ),
        "{found:?}"
    );
    assert_eq!(layouts(&good(text), false)[0].layouts, 3, "wherever web and db share a node");
}

#[test]
fn a_reference_that_can_never_bind_is_found_and_one_that_can_is_not() {
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
fn the_example_is_fine_on_every_layout() {
    assert_eq!(found(EXAMPLE), Vec::<String>::new());
}
