use hoist_deploy::compile::{Compiled, Options};
use hoist_deploy::select::Selection;
use hoist_engine::plan::{Holder, Kind, Plan};
use hoist_engine::simulate::MAX_TAKES_MS;

use crate::{EXAMPLE, compiled, read, site, step, three_and_one, told, with_template};

fn pools(compiled: &Compiled, task: &str, node: &str) -> Vec<String> {
    let pools = step(compiled, task, node).pools.iter();
    pools.map(|at| compiled.draft.pools[*at as usize].name.clone()).collect()
}

fn four(role: &str, tasks: &str) -> (String, hoist_deploy::target::Site) {
    let member: &[&str] = &["r"];
    let nodes = site(&[("n1", member), ("n2", member), ("n3", member), ("n4", member)]);
    (format!("hoist: 1\nroles:\n  r: {role}\ntasks:\n{tasks}"), nodes)
}

const TWO: &str = "  a: {on: r, run: none}\n  b: {on: r, run: none, requires: [a]}\n";

#[test]
fn every_limit_is_a_pool() {
    let text = EXAMPLE.replace("settings:\n", "limits: {at_once: 100, per_node: 2}\nsettings:\n");
    let text = text.replace("at_once: 6", "at_once: 2, max_unavailable: 2");
    let compiled = compiled(&text, &three_and_one(), &with_template()).expect("it is a plan");
    assert_eq!(
        pools(&compiled, "db-install", "db2"),
        ["run", "node db2", "lock packages of db2", "role database", "role database unavailable"]
    );
    assert_eq!(
        pools(&compiled, "db-join", "db2"),
        ["run", "node db2", "task db-join", "role database", "role database unavailable"]
    );
    let held = |name: &str| {
        let pool = compiled.draft.pools.iter().find(|pool| pool.name == name);
        pool.map(|pool| (pool.places, pool.held_by))
    };
    assert_eq!(held("node db2"), Some((2, Holder::Step)));
    assert_eq!(held("role database"), Some((2, Holder::Subject)));
    assert_eq!(held("role database unavailable"), Some((2, Holder::Healthy)));
    assert_eq!(pools(&compiled, "haproxy", "db2"), ["run", "node db2"], "it is not of the role");
}

#[test]
fn canaries_go_first_and_the_others_after_the_pause() {
    let compiled = compiled(EXAMPLE, &three_and_one(), &with_template()).expect("it is a plan");
    let vertices = &compiled.draft.vertices;
    let at = |name: &str| vertices.iter().position(|one| one.name == name).expect(name);
    let gate = &vertices[at("canaries of database")];
    let waits: Vec<&str> =
        gate.after.iter().map(|before| vertices[before.0 as usize].name.as_str()).collect();
    assert_eq!(waits, ["db-install@db1", "db-bootstrap@db1"]);
    let pause = at("pause after canaries of database");
    match &vertices[pause].kind {
        Kind::Step(step) => {
            assert_eq!(step.call.input["for"]["ms"], 120_000);
            assert_eq!(step.subject, Some(0), "the canary shows meanwhile that it is there");
        }
        Kind::Join(_) => panic!("it is a step"),
    }
    let first = &vertices[at("db-install@db2")];
    assert!(first.after.iter().any(|before| before.0 as usize == pause));
    let later = &vertices[at("db-join@db2")];
    assert!(!later.after.iter().any(|before| before.0 as usize == pause));
    let cohort = |task, node| {
        let cohort = step(&compiled, task, node).cohort.expect("it is in one");
        let cohort = &compiled.draft.cohorts[cohort as usize];
        (cohort.name.as_str(), cohort.tolerate)
    };
    assert_eq!(cohort("db-install", "db1"), ("database canaries", 0));
    assert_eq!(cohort("db-install", "db2"), ("database", 1));
    assert_eq!(cohort("haproxy", "db2"), ("database", 1), "the role of the node");
    Plan::new(compiled.draft).expect("the engine takes it");
}

#[test]
fn what_waits_for_a_written_time_is_expected_to_take_it() {
    let (text, nodes) = four(
        "{rollout: {canary: 1, pause_after_canary: 2h}}",
        "  a: {on: r, run: {wait: 30m}}\n  b: {on: r, run: [{wait: 1m}, {shell: x}, {wait: 2s}]}\n  \
         c: {on: r, run: {wait: {path: /x}}}\n  d: {on: r, run: {shell: x}}\n  \
         e: {on: r, run: {wait: {for: {ms: 9223372036854775807}}}}\n",
    );
    let expected_ms = |options: &Options<'_>, name: &str| {
        let compiled = compiled(&text, &nodes, options).expect("it is a plan");
        let mut vertices = compiled.draft.vertices.into_iter();
        match vertices.find(|one| one.name == name).expect(name).kind {
            Kind::Step(step) => step.expected_ms,
            Kind::Join(_) => panic!("{name} is a join"),
        }
    };
    for (name, ms) in [
        ("pause after canaries of r", Some(7_200_000)),
        ("a@n1", Some(1_800_000)),
        ("b@n1", Some(62_000)),
        ("c@n1", None),
        ("d@n1", None),
        ("e@n1", Some(MAX_TAKES_MS)),
    ] {
        assert_eq!(expected_ms(&Options::default(), name), ms, "{name}");
    }
    let known = [("a".to_owned(), 5)].into();
    let options = Options { expected_ms: known, ..Options::default() };
    assert_eq!(expected_ms(&options, "a@n1"), Some(5), "what it took says more");
}

#[test]
fn nobody_pauses_after_canaries_that_do_nothing() {
    let (text, nodes) = four("{rollout: {canary: 1, pause_after_canary: 1h}}", TWO);
    let skip = |on: &str| {
        let on = Some(on.parse().expect("a selector"));
        let selection = Selection { on, ..Selection::default() };
        let options = Options { selection, ..Options::default() };
        let compiled = compiled(&text, &nodes, &options).expect("it is a plan");
        let mut vertices = compiled.draft.vertices.into_iter();
        match vertices.find(|one| one.name.starts_with("pause")).expect("there is a pause").kind {
            Kind::Step(step) => step.skip,
            Kind::Join(_) => panic!("it is a step"),
        }
    };
    assert_eq!(skip("node:n1"), None);
    assert_eq!(skip("node:n2").as_deref(), Some("its canaries do nothing"));
}

#[test]
fn failures_count_for_the_strictest_role_that_the_task_is_for() {
    let text = "hoist: 1\nroles: {database: {tolerate: 1}, all: {nodes: '*', tolerate: 100%}}\n\
                tasks: {a: {on: all, run: none}, b: {on: 'database, all', run: none}}\n";
    let compiled = compiled(text, &three_and_one(), &Options::default()).expect("it is a plan");
    let cohort = |task, node| {
        let cohort = step(&compiled, task, node).cohort.expect("it is in one");
        compiled.draft.cohorts[cohort as usize].name.clone()
    };
    assert_eq!(cohort("a", "db1"), "all");
    assert_eq!(cohort("b", "db1"), "database");
    assert_eq!(cohort("b", "ctl1"), "all");
    assert_eq!(compiled.draft.cohorts[1].tolerate, 4);
}

#[test]
fn limits_that_contradict_each_other_are_refused() {
    for (role, tasks, line) in [
        ("{tolerate: 5}", TWO, "E203 role `r` tolerates 5 failed nodes, but has 4"),
        ("{rollout: {canary: 4}}", TWO, "E203 role `r` has 4 canaries of 4 nodes"),
        ("{rollout: {at_once: 0}}", TWO, "E203 at most 0 at once means never"),
        ("{rollout: {per: {rack: 0}}}", TWO, "E203 at most 0 at once with the same `rack`"),
        ("{}", "  a: {on: r, run: none, at_once: 0}\n", "E203 at most 0 at once means never"),
        (
            "{}",
            "  a: {on: r, run: {shell: x}, repeat: check}\n",
            "E203 task `a` says `repeat: check`",
        ),
        (
            "{}",
            "  a: {on: r, run: none}\n  b: {on: r, run: none, needs: [{task: a, want: 5}]}\n",
            "E203 it wants 5, but there are 4 of `a`",
        ),
        (
            "{rollout: {at_once: 2}}",
            "  a: {on: r, run: none}\n  b: {on: r, run: none, needs: [a]}\n",
            "E203 role `r` would never finish: 2 of its 4 nodes are worked on at once, but n1 and n2 \
             wait for each other",
        ),
        (
            "{rollout: {canary: 1}}",
            "  a: {on: r, run: none}\n  b: {on: first(r), run: none, needs: [a]}\n",
            "E203 role `r` would never finish: its canaries wait for its other nodes",
        ),
    ] {
        let (text, nodes) = four(role, tasks);
        let found = told(&text, &nodes);
        assert!(found.iter().any(|told| told.contains(line)), "{line}\n{found:#?}");
    }
    let (text, nodes) = four(
        "{rollout: {at_once: 4}}",
        "  a: {on: r, run: none}\n  b: {on: r, run: none, needs: [a]}\n",
    );
    assert_eq!(told(&text, &nodes), Vec::<String>::new(), "all of them at once is no limit");
}

#[test]
fn circles_through_a_barrier_inside_of_a_roll_out_are_found_too() {
    let (text, nodes) = four(
        "{rollout: {at_once: 1}}",
        "  a: {on: r, run: none, required_for: [middle]}\n  b: {on: r, run: none, requires: [middle]}\n\
         barriers: {middle: {}}\n",
    );
    let found = told(&text, &nodes);
    assert!(found[0].contains("E203 role `r` would never finish"), "{found:?}");
}

#[test]
fn who_waits_for_the_first_does_not_take_its_place() {
    let (text, mut nodes) = four(
        "{rollout: {at_once: 1}}",
        "  a: {on: r, run: none}\n  b: {on: first(r), run: none, requires: [a]}\n  c: {on: r and not \
         first(r), run: none, requires: [a], needs: [{task: b, on: first(r)}]}\n",
    );
    nodes.elections.insert("r".to_owned(), vec!["n3".to_owned()]);
    let compiled = compiled(&text, &nodes, &Options::default()).expect("it is a plan");
    let begin = compiled.find("a", "n1").expect("it is there");
    let after = &compiled.vertex(begin).after;
    let names: Vec<&str> = after.iter().map(|id| compiled.vertex(*id).name.as_str()).collect();
    assert_eq!(names, ["b@n3"], "n1 would hold the one place that n3 needs");
}

#[test]
fn nodes_of_one_rack_have_a_pool_of_their_own() {
    let (text, mut nodes) = four("{rollout: {per: {rack: 1}}}", TWO);
    for (node, rack) in nodes.nodes.iter_mut().zip(["x", "x", "y", "y"]) {
        let labels = serde_json::json!({ "labels": { "rack": rack }, "groups": ["r"] });
        node.spec = serde_json::from_value(labels).expect("a node");
    }
    let compiled = compiled(&text, &nodes, &Options::default()).expect("it is a plan");
    assert_eq!(pools(&compiled, "a", "n1"), ["node n1", "role r rack=x"]);
    assert_eq!(pools(&compiled, "b", "n4"), ["node n4", "role r rack=y"]);
}

#[test]
fn windows_are_those_of_the_task_or_of_its_role() {
    let (text, nodes) = four(
        "{window: 'Sat 22:00-04:00'}",
        "  a: {on: r, run: none}\n  b: {on: r, run: none, window: '01:00-02:00'}\n  c: {on: '*', run: none}\n",
    );
    let compiled = compiled(&text, &nodes, &Options::default()).expect("it is a plan");
    let window = |task| {
        let at = step(&compiled, task, "n1").window?;
        Some(compiled.draft.windows[at as usize].name.as_str())
    };
    assert_eq!(window("a"), Some("Sat 22:00-04:00"));
    assert_eq!(window("b"), Some("01:00-02:00"));
    assert_eq!(window("c"), None);
}

#[test]
fn an_amount_may_be_an_expression_of_the_settings() {
    let (text, nodes) = four("{}", "  a: {on: r, run: none, at_once: settings.places}\n");
    let options = Options { settings: serde_json::json!({"places": 3}), ..Options::default() };
    let compiled = compiled(&text, &nodes, &options).expect("it is a plan");
    let pool = compiled.draft.pools.iter().find(|pool| pool.name == "task a");
    assert_eq!(pool.map(|pool| pool.places), Some(3));
    let found = told(&text, &nodes);
    assert!(found[0].contains("E601 `settings.places` cannot be told"), "{found:?}");
}

#[test]
fn what_is_probably_not_meant_is_a_warning() {
    for (role, tasks, line) in [
        (
            "{tolerate: 1}",
            "  a: {on: r, run: none, required_for: [all]}\nbarriers: {all: {passes_with: all}}\n",
            "W501 barrier `all` passes with all nodes only, so role `r` tolerates nothing",
        ),
        (
            "{tolerate: 2, rollout: {max_unavailable: 2}}",
            TWO,
            "W501 role `r` tolerates 2 failed nodes, but waits for a person when 2 have failed",
        ),
        (
            "{tolerate: 1}",
            "  a: {on: r, run: none}\n  b: {on: r, run: none, needs: [{task: a, on: r, want: 4}]}\n",
            "W501 `b` wants 4 of `a`, but 1 of the 4 nodes of role `r` may fail",
        ),
        (
            "{}",
            "  a: {on: r, run: {shell: x}}\n  b: {on: r, run: {shell: y}, undo: {shell: z}, requires: [a]}\n",
            "W502 `b` can be undone, but `a` before it cannot",
        ),
        ("{}", "  a: {on: r, run: none, repeat: never, retries: 2}\n", "W503 task `a` says"),
        ("{}", "  a: {on: r, run: none, delay: 2s}\n", "W504 task `a` has a delay"),
        ("{}", "  a: {on: r, run: none, skip: when_done}\n", "W504 task `a` is skipped when"),
        ("{rollout: {pause_after_canary: 1m}}", TWO, "W504 role `r` pauses after canaries"),
    ] {
        let (text, nodes) = four(role, tasks);
        let found = told(&text, &nodes);
        assert_eq!(found.len(), 1, "{found:#?}");
        assert!(found[0].contains(line), "{line}\n{found:#?}");
    }
}

#[test]
fn a_label_that_no_node_has_limits_nothing_and_is_an_error() {
    let (text, mut nodes) = four("{rollout: {per: {rak: 1}}}", TWO);
    for node in &mut nodes.nodes[..3] {
        let spec = serde_json::json!({ "labels": { "rack": "x" }, "groups": ["r"] });
        node.spec = serde_json::from_value(spec).expect("a node");
    }
    let found = told(&text, &nodes);
    assert!(
        found[0].contains("E203 no node of role `r` has the label `rak`; did you mean `rack`?"),
        "{found:?}"
    );
    let text = text.replace("rak", "rack");
    let compiled = compiled(&text, &nodes, &Options::default()).expect("it is a plan");
    assert_eq!(pools(&compiled, "a", "n1"), ["node n1", "role r rack=x"]);
    assert_eq!(pools(&compiled, "a", "n4"), ["node n4"], "it is alone without one");
}

#[test]
fn nodes_without_the_label_are_counted_together() {
    let (text, mut nodes) = four("{rollout: {per: {rack: 1}}}", TWO);
    let spec = serde_json::json!({ "labels": { "rack": "x" }, "groups": ["r"] });
    nodes.nodes[0].spec = serde_json::from_value(spec).expect("a node");
    let compiled = compiled(&text, &nodes, &Options::default()).expect("it is a plan");
    assert_eq!(pools(&compiled, "a", "n4"), ["node n4", "role r without rack"]);
}

#[test]
fn no_time_at_all_is_refused() {
    let (text, nodes) = four("{}", "  a: {on: r, run: none, timeout: 0s}\n");
    let found = told(&text, &nodes);
    assert!(found[0].contains("E203 task `a` has no time at all"), "{found:?}");
}

/// Two roles of the same nodes: one node has the first one's place when it needs that of the
/// second, the other one the other way round.
const CROSSING: &str = "hoist: 1
roles:
  r1: {nodes: '*', rollout: {at_once: 1}}
  r2: {nodes: '*', rollout: {at_once: 1}}
tasks:
  a: {on: 'r1 and node:n1', run: none}
  b: {on: 'r2 and node:n1', run: none, requires: [a]}
  c: {on: 'r1 and node:n1', run: none, requires: [b]}
  x: {on: 'r2 and node:n2', run: none}
  y: {on: 'r1 and node:n2', run: none, requires: [x]}
  z: {on: 'r2 and node:n2', run: none, requires: [y]}
";

#[test]
fn roles_that_take_their_places_crosswise_are_refused() {
    let nodes = site(&[("n1", &[]), ("n2", &[])]);
    let found = told(CROSSING, &nodes);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(
        found[0].contains("E203 roles `r1` and `r2` could wait for each other's places for ever"),
        "{found:?}"
    );
    // The same order everywhere, and enough places for all who would wait, are both fine.
    let same = CROSSING.replace("x: {on: 'r2", "x: {on: 'r1").replace("y: {on: 'r1", "y: {on: 'r2");
    let same = same.replace("z: {on: 'r2", "z: {on: 'r1");
    assert_eq!(told(&same, &nodes), Vec::<String>::new());
    let enough = CROSSING.replacen("at_once: 1", "at_once: 2", 1);
    assert_eq!(told(&enough, &nodes), Vec::<String>::new());
    let parallel = CROSSING.replace(", requires: [b]", "").replace(", requires: [y]", "");
    assert_eq!(told(&parallel, &nodes), Vec::<String>::new(), "nothing waits with a place");
}

#[test]
fn a_role_whose_failures_are_taken_back_has_all_of_its_steps_marked_for_it() {
    let tasks = "  a: {on: r, run: {shell: x}, undo: {shell: y}}\n  \
                 b: {on: first(r), run: {shell: x}, undo: none}\n  \
                 c: {on: \"*\", run: none}\n";
    let (text, nodes) = four("{on_failure: undo}", tasks);
    let made = compiled(&text, &nodes, &Options::default()).expect("it is a plan");
    assert_eq!(made.draft.cohorts[0].name, "r");
    for (task, node, with) in [("a", "n3", vec![0]), ("b", "n1", vec![0]), ("c", "n3", vec![])] {
        assert_eq!(step(&made, task, node).undone_with, with, "{task}@{node}");
    }
    assert_eq!(told(&text, &nodes), [] as [String; 0]);
    let (text, nodes) = four("{on_failure: leave}", tasks);
    let made = compiled(&text, &nodes, &Options::default()).expect("it is a plan");
    assert_eq!(step(&made, "a", "n3").undone_with, [] as [u32; 0]);
}

#[test]
fn instances_that_would_stay_though_their_role_is_taken_back_are_named() {
    let tasks = "  a: {on: r, run: {shell: x}}\n  \
                 b: {on: first(r), run: {shell: x}, undo: {shell: y}, reversibility: commit_point}\n";
    let (text, nodes) = four("{on_failure: undo}", tasks);
    let said = told(&text, &nodes);
    let [a, b] = &said[..] else { panic!("{said:?}") };
    assert!(
        a.starts_with(
            "tasks.yaml:3:19: W502 role `r` is taken back where it fails, but not a@n1, \
            a@n2, a@n3, a@n4: nobody said how; give it an `undo`"
        ),
        "{a}"
    );
    assert!(a.ends_with("(this stays as it is: tasks.yaml:5:3)"), "{a}");
    assert!(b.contains("but not b@n1: there is no way back from it"), "{b}");
    let (text, _) = four("{on_failure: undone}", tasks);
    let said = read(&text).2;
    assert!(said[0].contains("expected leave or undo, found `undone`; did you mean"), "{said:?}");
    let (text, _) = four("{on_failur: undo}", tasks);
    let said = read(&text).2;
    assert!(said[0].contains("E102") && said[0].contains("`on_failure`"), "{said:?}");
}

#[test]
fn a_role_says_whether_others_go_on_when_too_many_of_its_nodes_failed() {
    for (said, alone) in [("{}", false), ("{when_tripped: stop}", false)] {
        let (text, nodes) = four(said, TWO);
        let made = compiled(&text, &nodes, &Options::default()).expect("it is a plan");
        assert_eq!(made.draft.cohorts[0].trips_alone, alone, "{said}");
    }
    let (text, nodes) = four("{when_tripped: continue, rollout: {canary: 1}}", TWO);
    let made = compiled(&text, &nodes, &Options::default()).expect("it is a plan");
    let alone = made.draft.cohorts.iter().map(|one| (one.name.as_str(), one.trips_alone));
    assert_eq!(alone.collect::<Vec<_>>(), [("r", true), ("r canaries", true)]);
    let (text, _) = four("{when_tripped: continues}", TWO);
    let said = read(&text).2;
    assert!(said[0].contains("expected stop or continue") && said[0].contains("did you mean"));
}
