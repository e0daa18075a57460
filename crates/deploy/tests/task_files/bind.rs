use std::fmt::Write as _;

use hoist_deploy::compile::{Options, compile};
use hoist_engine::plan::{Kind, Plan, Repeat, Rule};

use crate::{
    EXAMPLE, before, compiled, done, read, site, step, three_and_one, told, with_template,
};

fn tasks(text: &str) -> String {
    format!("hoist: 1\ntasks:\n{text}")
}

#[test]
fn example_binds_as_documented() {
    let compiled = compiled(EXAMPLE, &three_and_one(), &with_template()).expect("it is a plan");
    assert_eq!(before(&compiled, "db-install", "db2"), ["haproxy@db2"]);
    assert_eq!(
        before(&compiled, "db-join", "db2"),
        ["db-install@db2", "db-bootstrap@db1"],
        "the first is on its own node, the second on the first node"
    );
    let api = before(&compiled, "api-start", "ctl1");
    assert_eq!(api, ["db-bootstrap@db1", "db-join@db2", "db-join@db3"]);
    assert_eq!(compiled.elections["database"], "db1");
    let plan = Plan::new(compiled.draft).expect("the engine takes it");
    assert!(plan.ids().any(|id| plan.vertex(id).kind == Kind::Join(Rule::Most)));
}

#[test]
fn instances_with_equal_dependencies_share_a_join() {
    let text = tasks(
        "  a: {on: '*', run: none}
  b: {on: '*', run: none, needs: [a]}
  c: {on: '*', run: none, needs: [{task: a}]}
  d: {on: '*', run: none, needs: [{task: a, want: any}]}
",
    );
    let site = site(&[("n1", &[]), ("n2", &[]), ("n3", &[]), ("n4", &[])]);
    let compiled = compiled(&text, &site, &Options::default()).expect("it is a plan");
    let counts = compiled.counts();
    assert_eq!((counts.vertices, counts.joins), (16, 2), "one for all of a, one for any of a");
    assert_eq!(counts.edges, 2 * 16 + 4, "of any, one counts");
    assert_eq!((counts.same, counts.cross), (2 * 4 + 1, 2 * 12 + 3));
    assert_eq!(counts.join_edges, 4 + 4 + 3 * 4);
}

#[test]
fn unbound_names_are_reported_with_their_reason() {
    let text = tasks(
        "  heat-db: {on: node:n1, run: none, requires: [database, heat-bd]}
  database: {on: node:n2, run: none}
  nowhere: {on: node:n9, run: none}
  late:
    on: '*'
    run: none
    requires: [nowhere]
    needs: [{task: done, on: self}, {task: database, on: node:n1}, {task: gone, optional: true}]
barriers:
  done: {}
",
    );
    let found = told(&text, &site(&[("n1", &[]), ("n2", &[])]));
    for (at, part) in [
        "tasks.yaml:3:58: E301 `heat-db` requires `heat-bd`, which is neither a task nor a barrier; did \
         you mean `heat-db`?",
        "tasks.yaml:3:48: E302 `heat-db` requires `database`, but they are never on the same node: \
         `heat-db` runs on `node:n1` and `database` runs on `node:n2`; use `needs: [{task: \
         database}]` for tasks on other nodes",
        "tasks.yaml:10:13: E303 `late` needs `done` on a node, but that is a barrier; a barrier has no \
         node; leave `on` out",
        "tasks.yaml:10:37: E302 `late` needs `database` on `node:n1`, but it is never there: \
         `database` runs on `node:n2`",
        "tasks.yaml:5:17: W201 task `nowhere` matches no node",
        "tasks.yaml:9:16: I304 `late` requires `nowhere`, which is on no node of this run",
    ]
    .iter()
    .enumerate()
    {
        assert!(found.iter().any(|line| line.starts_with(part)), "{at}: {part}\n{found:#?}");
    }
    assert_eq!(found.len(), 6, "{found:#?}");
}

#[test]
fn unknown_roles_are_reported_with_a_suggestion() {
    let found = told(&tasks("  a: {on: databse, run: none}\n"), &three_and_one());
    let line =
        "tasks.yaml:3:11: E200 no role or group is called `databse`; did you mean `database`?";
    assert_eq!(found[0], line, "{found:?}");
}

#[test]
fn shortest_cycle_is_reported_with_its_declarations() {
    let text = tasks(
        "  a:
    on: '*'
    run: none
    requires: [c]
  b:
    on: '*'
    run: none
    requires: [a]
  c:
    on: '*'
    run: none
    requires: [b]
    needs: [{task: a, on: node:n2}]
",
    );
    let found = told(&text, &site(&[("n1", &[]), ("n2", &[])]));
    assert_eq!(found.len(), 2, "the other node has a longer one: {found:?}");
    assert_eq!(
        found[1],
        "tasks.yaml:6:16: E401 they wait for each other: a → c → a, on n2; take one of these \
         declarations away (a → c (requires c): tasks.yaml:6:16) (c → a (needs a): tasks.yaml:15:13)"
    );
}

#[test]
fn cycle_on_many_nodes_is_reported_once_with_its_nodes() {
    let text = tasks(
        "  a: {on: '*', run: none, requires: [b]}
  b: {on: '*', run: none, requires: [a]}
  c: {on: '*', run: none, needs: [d]}
  d: {on: '*', run: none, requires: [c]}
",
    );
    let found = told(&text, &site(&[("n1", &[]), ("n2", &[]), ("n3", &[])]));
    assert_eq!(
        found,
        [
            "tasks.yaml:3:38: E401 they wait for each other: a → b → a, on n1, n2, n3; take one of \
             these declarations away (a → b (requires b): tasks.yaml:3:38) (b → a (requires a): \
             tasks.yaml:4:38)",
            "tasks.yaml:5:35: E401 they wait for each other: c → d → c, as c@n1 → d@n1 → c@n1; take \
             one of these declarations away (c → d (needs d): tasks.yaml:5:35) (d → c (requires c): \
             tasks.yaml:6:38)",
        ]
    );
    let names: Vec<String> = (1..=40).map(|at| format!("n{at:02}")).collect();
    let nodes: Vec<(&str, &[&str])> = names.iter().map(|name| (name.as_str(), &[][..])).collect();
    let found = told(&text, &site(&nodes));
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(
        found[0].contains(": a → b → a, on n01, n02, n03, n04, n05 and 35 more; "),
        "{found:?}"
    );
}

#[test]
fn cycle_names_its_path_and_its_nodes_if_any() {
    let nodes = site(&[("n1", &[]), ("n2", &[])]);
    let text = "hoist: 1\ntasks:\n  a: {on: '*', run: none}\nbarriers:\n  b1: {requires: [b2]}\n  \
                b2: {requires: [b1]}\n";
    let found = told(text, &nodes);
    assert!(found[0].contains("they wait for each other: b1 → b2 → b1; take"), "{found:?}");
    let text = tasks(
        "  a: {on: node:n1, run: none, needs: [b]}
  b: {on: node:n2, run: none, requires: [mid]}
barriers:
  mid: {requires: [a]}
",
    );
    let found = told(&text, &nodes);
    assert_eq!(found.len(), 1, "{found:?}");
    let way = "mid → a → b → mid, as mid → a@n1 → b@n2 → mid; take";
    assert!(found[0].contains(way), "{found:?}");
}

#[test]
fn tasks_on_different_nodes_make_no_cycle() {
    let text = tasks(
        "  a: {on: '*', run: none, needs: [{task: b, on: node:n2}]}
  b: {on: node:n2, run: none, requires: [c]}
  c: {on: '*', run: none, needs: [{task: a, on: node:n1, optional: true}]}
",
    );
    let found = told(&text, &site(&[("n1", &[]), ("n2", &[])]));
    assert!(found[0].contains("E401"), "a@n1 waits for b@n2, which waits for a@n1: {found:?}");
    let text = tasks(
        "  a: {on: node:n1, run: none, needs: [{task: b, on: node:n2}]}
  b: {on: '*', run: none, needs: [{task: c, on: node:n2}]}
  c: {on: node:n2, run: none}
  d: {on: node:n1, run: none, requires: [a], required_for: [b]}
",
    );
    let found = told(&text, &site(&[("n1", &[]), ("n2", &[])]));
    assert_eq!(found, Vec::<String>::new(), "a waits for b on n2 only, b on n1 waits for a");
}

#[test]
fn task_waits_for_other_nodes_but_not_for_itself() {
    let text = tasks(
        "  a: {on: node:n1, run: none, needs: ['*']}
  b: {on: node:n2, run: none}
",
    );
    let nodes = site(&[("n1", &[]), ("n2", &[])]);
    let compiled = compiled(&text, &nodes, &Options::default()).expect("it is a plan");
    assert_eq!(before(&compiled, "a", "n1"), ["b@n2"]);
    let found = told(&tasks("  a: {on: '*', run: none, needs: [/a/, a]}\n"), &nodes);
    assert!(
        found.iter().any(|line| line.contains(": a → a, as a@n1 → a@n2 → a@n1; ")),
        "{found:?}"
    );
}

#[test]
fn barriers_pass_as_declared() {
    let text = tasks(
        "  a: {on: '*', run: none, required_for: [all, tolerated, any]}
  b: {on: '*', run: none, requires: [all]}
barriers:
  all: {passes_with: all}
  tolerated: {requires: [all]}
  any: {passes_with: any_result}
",
    );
    let nodes = site(&[("n1", &[]), ("n2", &[])]);
    let compiled = compiled(&text, &nodes, &Options::default()).expect("it is a plan");
    let kinds: Vec<&Kind> = compiled.draft.vertices[..3].iter().map(|one| &one.kind).collect();
    let rules = [Rule::AtLeast(2), Rule::All, Rule::AnyEnd];
    assert_eq!(kinds, rules.map(Kind::Join).iter().collect::<Vec<_>>());
    assert_eq!(before(&compiled, "b", "n2"), ["all"]);
    assert_eq!(compiled.draft.vertices[1].after.len(), 3, "both nodes and the other barrier");
}

#[test]
fn first_member_stays_first_while_it_is_a_member() {
    let text = "hoist: 1\nroles: {db: {nodes: database, first: leader}}\ntasks:\n  \
                a: {on: leader, run: none}\n  b: {on: db and not first(db), run: none}\n";
    let mut nodes = three_and_one();
    nodes.elections.insert("db".to_owned(), vec!["db3".to_owned()]);
    let kept = compiled(text, &nodes, &Options::default()).expect("it is a plan");
    assert!(kept.find("a", "db3").is_some() && kept.find("a", "db1").is_none());
    assert!(kept.find("b", "db1").is_some() && kept.find("b", "db3").is_none());
    assert_eq!(kept.elections["db"], "db3");
    nodes.elections.insert("db".to_owned(), vec!["ctl1".to_owned()]);
    let chosen = compiled(text, &nodes, &Options::default()).expect("it is a plan");
    assert_eq!(chosen.elections["db"], "db1", "no member any more");
}

#[test]
fn roles_of_roles_are_resolved_and_cycles_refused() {
    let text = "hoist: 1\nroles: {b: {nodes: a & node:db1}, a: {nodes: database}}\ntasks: \
                {t: {on: b, run: none}}\n";
    let compiled = compiled(text, &three_and_one(), &Options::default()).expect("it is a plan");
    assert_eq!(compiled.instances().count(), 1);
    let text = "hoist: 1\nroles: {b: {nodes: a}, a: {nodes: b}}\ntasks: {}\n";
    let found = told(text, &three_and_one());
    assert!(found[0].contains("E200 the nodes of role `b` are those of itself"), "{found:?}");
}

#[test]
fn references_of_imported_files_are_warnings_unless_strict() {
    let mut sources = hoist_deploy::spec::Sources::default();
    let text = tasks("  a: {on: '*', run: none, requires: [gone]}\n");
    let (mut file, _) = hoist_deploy::parse::parse(&mut sources, "fuel", text.as_bytes());
    file.is_lenient = true;
    let files = vec![(hoist_deploy::layer::Layer::Product, file)];
    let (book, _) = hoist_deploy::layer::merge(files);
    let options = Options::default();
    let compiled = compile(&book, &three_and_one(), &options).expect("it is a plan");
    assert_eq!(compiled.diagnostics[0].code.as_str(), "E301");
    let strict = Options { is_strict: true, ..Options::default() };
    assert!(compile(&book, &three_and_one(), &strict).is_err());
}

#[test]
fn plan_bytes_do_not_depend_on_the_order_of_nodes() {
    let nodes = three_and_one();
    let mut turned = nodes.clone();
    turned.nodes.reverse();
    let hash = |site| {
        let compiled = compiled(EXAMPLE, site, &with_template()).expect("it is a plan");
        Plan::new(compiled.draft).expect("the engine takes it").hash().to_owned()
    };
    assert_eq!(hash(&nodes), hash(&turned));
    assert_eq!(hash(&nodes), hash(&nodes));
}

#[test]
fn report_has_every_instance_edge_and_skip() {
    let (book, sources, _) = read(&EXAMPLE.replace("enabled: true", "enabled: false"));
    let compiled = compile(&book, &three_and_one(), &with_template()).expect("it is a plan");
    let report = compiled.listing(&sources, "", hoist_deploy::compile::MAX_LISTED_EDGES);
    let report = serde_json::to_value(report).expect("JSON");
    let instances = report["instances"].as_array().expect("a list");
    assert_eq!(instances.len(), 4 + 3 + 1 + 2 + 1);
    let skipped: Vec<&str> = instances
        .iter()
        .filter(|one| one["skip"] == "condition")
        .filter_map(|one| one["name"].as_str())
        .collect();
    assert_eq!(skipped, ["api-start@ctl1"]);
    let edges = report["edges"].as_array().expect("a list");
    assert_eq!(edges.len(), compiled.counts().edges);
    let most = edges.iter().filter(|edge| edge["want"] == "most").count();
    assert_eq!(most, 3, "those of api-start");
    let join = edges.iter().find(|edge| edge["after"] == "db-join@db2" && edge["kind"] == "cross");
    let by = &join.expect("it is there")["by"][0];
    assert_eq!((by["key"].as_str(), by["to"].as_str()), (Some("needs"), Some("db-bootstrap")));
    assert_eq!(by["place"], "tasks.yaml:33:9");
    let joined = serde_json::to_value(compiled.listing(&sources, "", 0)).expect("JSON");
    assert_eq!(joined["edges_are"], "joined");
    assert!(!joined["joins"].as_array().expect("a list").is_empty());
}

#[test]
fn steps_carry_the_fields_of_their_task() {
    let compiled = compiled(EXAMPLE, &three_and_one(), &with_template()).expect("it is a plan");
    let install = step(&compiled, "db-install", "db2");
    assert_eq!(
        (install.retries, install.delay_ms, install.timeout_ms),
        (2, 5_000, Some(1_800_000))
    );
    let bootstrap = step(&compiled, "db-bootstrap", "db1");
    assert_eq!(bootstrap.after[0].input["poll"]["for_ms"], 120_000);
    assert_eq!(bootstrap.after[0].input["poll"]["every_ms"], 5_000);
    assert_eq!(bootstrap.before[0].input["says"], "data directory exists");
    assert_eq!(
        bootstrap.undo.as_ref().expect("it is there").input["command"],
        "systemctl stop mariadb"
    );
    let api = step(&compiled, "api-start", "ctl1");
    assert_eq!(api.call.input["text"], "port=3306 on ctl1\n");
    assert!(api.call.input.get("template").is_none());
    let repeats =
        ["haproxy", "db-install", "db-bootstrap"].map(|task| step(&compiled, task, "db1").repeat);
    assert_eq!(repeats, [Repeat::Safe, Repeat::Never, Repeat::Check]);
}

#[test]
fn quadratic_dependencies_are_refused_before_expansion() {
    use hoist_deploy::bind::MAX_LINKS;
    let tasks = |count: usize| {
        let mut text =
            "hoist: 1\ntasks:\n  last: {on: '*', run: none, requires: ['/t.*/']}\n".to_owned();
        for at in 0..count {
            let _ = writeln!(text, "  t{at}: {{on: '*', run: none, requires: ['/t.*/']}}");
        }
        text
    };
    // Each waits for all others, and the last one for each.
    let count = MAX_LINKS.isqrt() + 1;
    let found = told(&tasks(count), &site(&[("n", &[])]));
    assert!(
        found.iter().any(|line| line.contains(&format!("E103 there are more than {MAX_LINKS}"))),
        "{:?}",
        &found[..1]
    );
    let found = told(&tasks(50), &site(&[("n", &[])]));
    assert!(!found.iter().any(|line| line.contains("E103")), "{found:?}");
}

#[test]
fn role_has_the_members_of_a_group_of_its_name() {
    for name in ["db_nodes", "db.nodes", "rack:1", "Db_Nodes"] {
        let group = name.to_ascii_lowercase();
        let nodes = site(&[("n1", &[group.as_str()]), ("n2", &[])]);
        let text = format!(
            "hoist: 1\nroles: {{\"{name}\": {{}}}}\ntasks: {{a: {{on: '\"{name}\"', run: none}}}}\n"
        );
        let compiled = compiled(&text, &nodes, &Options::default());
        assert_eq!(done(&compiled.expect(name)), ["a@n1"], "{name}");
    }
}

#[test]
fn role_without_members_that_a_task_names_is_an_error() {
    let nodes = site(&[("n1", &["web_servers"]), ("n2", &[])]);
    let text = |role: &str, task: &str| {
        format!("hoist: 1\nroles:\n  web_server: {role}\ntasks:\n  a: {task}\n")
    };
    let named = "{on: web_server, run: none}";
    let found = told(&text("{}", named), &nodes);
    let line = "tasks.yaml:3:3: E205 role `web_server` has no members: no node has a role, subrole or \
                group of this name; did you mean `web_servers`? Otherwise write `allow_empty: true` if \
                its tasks may have nothing to do";
    assert_eq!(found[0], format!("{line} (task `a` names it: tasks.yaml:5:11)"), "{found:?}");
    let is_error = |role: &str, task: &str| {
        told(&text(role, task), &nodes).iter().any(|line| line.contains("E205"))
    };
    assert!(is_error("{nodes: 'node:gone'}", named));
    assert!(is_error("{first: lead}", "{on: lead, run: none}"));
    assert!(is_error("{}", "{on: '*', run: none, needs: [{task: a, on: web_server}]}"));
    assert!(!is_error("{allow_empty: true}", named));
    assert!(!is_error("{}", "{on: '*', run: none}"), "no task names it");
    assert!(!is_error("{}", "{on: '* and not web_server', run: none}"), "it only leaves out");
    assert!(!is_error("{nodes: 'node:n1'}", named));
}
