use hoist_deploy::compile::{CompiledPlan, Options, compile};
use hoist_deploy::select::{HistoryEntry, OutcomeFilter, PastOutcome, Selection};
use hoist_engine::plan::{Holder, Kind, Plan};
use hoist_engine::simulate::MAX_TAKES_MS;

use crate::{EXAMPLE, compiled, read, site, step, three_and_one, told, with_template};

fn limits(compiled: &CompiledPlan, task: &str, node: &str) -> Vec<String> {
    let limits = step(compiled, task, node).limits.iter();
    limits.map(|at| compiled.draft.limits[*at as usize].name.clone()).collect()
}

fn four(role: &str, tasks: &str) -> (String, hoist_deploy::target::TargetSite) {
    let member: &[&str] = &["r"];
    let nodes = site(&[("n1", member), ("n2", member), ("n3", member), ("n4", member)]);
    (format!("hoist: 1\nroles:\n  r: {role}\ntasks:\n{tasks}"), nodes)
}

const TWO: &str = "  a: {on: r, run: none}\n  b: {on: r, run: none, requires: [a]}\n";

#[test]
fn limits_become_pools() {
    let text = EXAMPLE.replace("settings:\n", "limits: {at_once: 100, per_node: 2}\nsettings:\n");
    let text = text.replace("at_once: 6", "at_once: 2, max_unavailable: 2");
    let compiled = compiled(&text, &three_and_one(), &with_template()).expect("it is a plan");
    assert_eq!(
        limits(&compiled, "db-install", "db2"),
        ["run", "node db2", "lock packages of db2", "role database", "role database unavailable"]
    );
    assert_eq!(
        limits(&compiled, "db-join", "db2"),
        ["run", "node db2", "task db-join", "role database", "role database unavailable"]
    );
    let held = |name: &str| {
        let limit = compiled.draft.limits.iter().find(|limit| limit.name == name);
        limit.map(|limit| (limit.slots, limit.held_by))
    };
    assert_eq!(held("node db2"), Some((2, Holder::Step)));
    assert_eq!(held("role database"), Some((2, Holder::Subject)));
    assert_eq!(held("role database unavailable"), Some((2, Holder::Healthy)));
    assert_eq!(limits(&compiled, "haproxy", "db2"), ["run", "node db2"], "it is not of the role");
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
    let failure_domain = |task, node| {
        let failure_domain = step(&compiled, task, node).failure_domain.expect("it is in one");
        let failure_domain = &compiled.draft.failure_domains[failure_domain as usize];
        (failure_domain.name.as_str(), failure_domain.tolerate)
    };
    assert_eq!(failure_domain("db-install", "db1"), ("database canaries", 0));
    assert_eq!(failure_domain("db-install", "db2"), ("database", 1));
    assert_eq!(failure_domain("haproxy", "db2"), ("database", 1), "the role of the node");
    Plan::new(compiled.draft).expect("the engine takes it");
}

#[test]
fn wait_with_a_duration_is_expected_to_take_it() {
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

fn on(nodes: &str) -> Options<'static> {
    let on = Some(nodes.parse().expect("a selector"));
    Options { selection: Selection { on, ..Selection::default() }, ..Options::default() }
}

/// The vertices after the pause that follows the canaries, and those before it; `None` without a
/// pause.
fn around_the_pause(compiled: &CompiledPlan) -> Option<(Vec<&str>, Vec<&str>)> {
    let vertices = &compiled.draft.vertices;
    let pause = vertices.iter().position(|one| one.name.starts_with("pause"))?;
    let name = |at: usize| vertices[at].name.as_str();
    let gate = vertices[pause].after[0].0 as usize;
    let canaries = vertices[gate].after.iter().map(|id| name(id.0 as usize)).collect();
    let waits = |at: &usize| vertices[*at].after.iter().any(|id| id.0 as usize == pause);
    Some((canaries, (0..vertices.len()).filter(waits).map(name).collect()))
}

#[test]
fn canaries_are_chosen_among_the_active_nodes() {
    let (text, nodes) = four("{rollout: {canary: 1, pause_after_canary: 1h}}", TWO);
    let some = compiled(&text, &nodes, &on("node:n[2-4]")).expect("it is a plan");
    let (canaries, others) = around_the_pause(&some).expect("there is a pause");
    assert_eq!(canaries, ["a@n2", "b@n2"]);
    assert_eq!(others, ["a@n3", "a@n4"], "n1 does nothing");
    let failure_domain = step(&some, "a", "n2").failure_domain.expect("it is in one");
    assert_eq!(some.draft.failure_domains[failure_domain as usize].name, "r canaries");
    let past =
        [("a@n1", PastOutcome::Good), ("a@n3", PastOutcome::Failed), ("a@n4", PastOutcome::Failed)]
            .map(|(name, state)| (name.to_owned(), HistoryEntry { state, fingerprint: None }));
    let selection = Selection { only: Some(OutcomeFilter::Failed), ..Selection::default() };
    let options = Options { selection, past: past.into(), ..Options::default() };
    let failed = compiled(&text, &nodes, &options).expect("it is a plan");
    let (canaries, others) = around_the_pause(&failed).expect("there is a pause");
    assert_eq!(canaries, ["a@n3", "b@n3"]);
    assert_eq!(others, ["a@n4"]);
    let (text, nodes) = four("{rollout: {canary: 50%, pause_after_canary: 1h}}", TWO);
    let two = compiled(&text, &nodes, &on("node:n[3-4]")).expect("it is a plan");
    let (canaries, others) = around_the_pause(&two).expect("there is a pause");
    assert_eq!((canaries[0], others), ("a@n3", vec!["a@n4"]), "the half of two");
}

#[test]
fn canaries_without_successors_have_no_pause() {
    let (text, nodes) = four("{rollout: {canary: 1, pause_after_canary: 1h}}", TWO);
    for node in ["node:n1", "node:n3"] {
        let compiled = compiled(&text, &nodes, &on(node)).expect("it is a plan");
        assert_eq!(around_the_pause(&compiled), None, "{node}");
    }
}

#[test]
fn role_without_a_possible_canary_is_reported() {
    let (text, nodes) = four(
        "{rollout: {canary: 1}}",
        "  a: {on: r, run: none}\n  b: {on: r and not first(r), run: none, needs: [a]}\n",
    );
    assert_eq!(told(&text, &nodes), Vec::<String>::new(), "n1 waits for nobody");
    let (book, sources, _) = read(&text);
    let found = compile(&book, &nodes, &on("node:n[2-4]")).expect("it is a plan").diagnostics;
    let line = "role `r` has no canary in this run: n2 would wait for nodes that come after it";
    assert!(
        found.iter().any(|one| !one.is_error() && one.show(&sources).contains(line)),
        "{found:?}"
    );
}

#[test]
fn failures_count_for_the_strictest_role_of_the_task() {
    let text = "hoist: 1\nroles: {database: {tolerate: 1}, all: {nodes: '*', tolerate: 100%}}\n\
                tasks: {a: {on: all, run: none}, b: {on: 'database, all', run: none}}\n";
    let compiled = compiled(text, &three_and_one(), &Options::default()).expect("it is a plan");
    let failure_domain = |task, node| {
        let failure_domain = step(&compiled, task, node).failure_domain.expect("it is in one");
        compiled.draft.failure_domains[failure_domain as usize].name.clone()
    };
    assert_eq!(failure_domain("a", "db1"), "all");
    assert_eq!(failure_domain("b", "db1"), "database");
    assert_eq!(failure_domain("b", "ctl1"), "all");
    assert_eq!(compiled.draft.failure_domains[1].tolerate, 4);
}

#[test]
fn contradicting_limits_are_refused() {
    for (role, tasks, line) in [
        ("{tolerate: 5}", TWO, "E203 role `r` tolerates 5 failed nodes, but has 4"),
        ("{rollout: {canary: 4}}", TWO, "E203 role `r` has 4 canaries of 4 nodes"),
        ("{rollout: {at_once: 0}}", TWO, "E203 at most 0 at once means never"),
        ("{rollout: {per: {rack: 0}}}", TWO, "E203 at most 0 at once with the same `rack`"),
        ("{}", "  a: {on: r, run: none, at_once: 0}\n", "E203 at most 0 at once means never"),
        (
            "{}",
            "  a: {on: r, run: {shell: x}, repeat: check}\n",
            "E203 task `a`: `repeat: check` needs a postcondition",
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
fn cycle_through_a_barrier_in_a_roll_out_is_found() {
    let (text, nodes) = four(
        "{rollout: {at_once: 1}}",
        "  a: {on: r, run: none, required_for: [middle]}\n  b: {on: r, run: none, requires: [middle]}\n\
         barriers: {middle: {}}\n",
    );
    let found = told(&text, &nodes);
    assert!(found[0].contains("E203 role `r` would never finish"), "{found:?}");
}

#[test]
fn dependent_of_the_first_member_does_not_take_its_slot() {
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
    assert_eq!(limits(&compiled, "a", "n1"), ["node n1", "role r rack=x"]);
    assert_eq!(limits(&compiled, "b", "n4"), ["node n4", "role r rack=y"]);
}

#[test]
fn windows_come_from_the_task_or_its_role() {
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
fn amount_may_be_an_expression_of_the_settings() {
    let (text, nodes) = four("{}", "  a: {on: r, run: none, at_once: settings.places}\n");
    let options = Options { settings: serde_json::json!({"places": 3}), ..Options::default() };
    let compiled = compiled(&text, &nodes, &options).expect("it is a plan");
    let limit = compiled.draft.limits.iter().find(|limit| limit.name == "task a");
    assert_eq!(limit.map(|limit| limit.slots), Some(3));
    let found = told(&text, &nodes);
    assert!(found[0].contains("E601 `settings.places` cannot be evaluated"), "{found:?}");
}

#[test]
fn probable_mistakes_are_warnings() {
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
fn limit_by_a_label_that_no_node_has_is_an_error() {
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
    assert_eq!(limits(&compiled, "a", "n1"), ["node n1", "role r rack=x"]);
    assert_eq!(limits(&compiled, "a", "n4"), ["node n4"], "it is alone without one");
}

#[test]
fn nodes_without_the_label_are_counted_together() {
    let (text, mut nodes) = four("{rollout: {per: {rack: 1}}}", TWO);
    let spec = serde_json::json!({ "labels": { "rack": "x" }, "groups": ["r"] });
    nodes.nodes[0].spec = serde_json::from_value(spec).expect("a node");
    let compiled = compiled(&text, &nodes, &Options::default()).expect("it is a plan");
    assert_eq!(limits(&compiled, "a", "n4"), ["node n4", "role r without rack"]);
}

#[test]
fn zero_duration_is_refused() {
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
fn roles_that_take_slots_crosswise_are_refused() {
    let nodes = site(&[("n1", &[]), ("n2", &[])]);
    let found = told(CROSSING, &nodes);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(
        found[0].contains("E203 roles `r1` and `r2` could wait for each other's slots for ever"),
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
fn role_with_undo_on_failure_marks_all_its_steps() {
    let tasks = "  a: {on: r, run: {shell: x}, undo: {shell: y}}\n  \
                 b: {on: first(r), run: {shell: x}, undo: none}\n  \
                 c: {on: \"*\", run: none}\n";
    let (text, nodes) = four("{on_failure: undo}", tasks);
    let made = compiled(&text, &nodes, &Options::default()).expect("it is a plan");
    assert_eq!(made.draft.failure_domains[0].name, "r");
    for (task, node, with) in [("a", "n3", vec![0]), ("b", "n1", vec![0]), ("c", "n3", vec![])] {
        assert_eq!(step(&made, task, node).undone_with, with, "{task}@{node}");
    }
    assert_eq!(told(&text, &nodes), [] as [String; 0]);
    let (text, nodes) = four("{on_failure: leave}", tasks);
    let made = compiled(&text, &nodes, &Options::default()).expect("it is a plan");
    assert_eq!(step(&made, "a", "n3").undone_with, [] as [u32; 0]);
}

#[test]
fn instances_without_undo_of_an_undone_role_are_named() {
    let tasks = "  a: {on: r, run: {shell: x}}\n  \
                 b: {on: first(r), run: {shell: x}, undo: {shell: y}, reversibility: commit_point}\n";
    let (text, nodes) = four("{on_failure: undo}", tasks);
    let said = told(&text, &nodes);
    let [a, b] = &said[..] else { panic!("{said:?}") };
    assert!(
        a.starts_with(
            "tasks.yaml:3:19: W502 role `r` is undone where it fails, but not a@n1, \
            a@n2, a@n3, a@n4: the task has no `undo`; give it an `undo`"
        ),
        "{a}"
    );
    assert!(a.ends_with("(this stays as it is: tasks.yaml:5:3)"), "{a}");
    assert!(b.contains("but not b@n1: it cannot be undone"), "{b}");
    let (text, _) = four("{on_failure: undone}", tasks);
    let said = read(&text).2;
    assert!(said[0].contains("expected leave or undo, found `undone`; did you mean"), "{said:?}");
    let (text, _) = four("{on_failur: undo}", tasks);
    let said = read(&text).2;
    assert!(said[0].contains("E102") && said[0].contains("`on_failure`"), "{said:?}");
}

#[test]
fn role_decides_whether_others_continue_after_its_failures() {
    for (said, alone) in [("{}", false), ("{when_tripped: stop}", false)] {
        let (text, nodes) = four(said, TWO);
        let made = compiled(&text, &nodes, &Options::default()).expect("it is a plan");
        assert_eq!(made.draft.failure_domains[0].trips_alone, alone, "{said}");
    }
    let (text, nodes) = four("{when_tripped: continue, rollout: {canary: 1}}", TWO);
    let made = compiled(&text, &nodes, &Options::default()).expect("it is a plan");
    let alone = made.draft.failure_domains.iter().map(|one| (one.name.as_str(), one.trips_alone));
    assert_eq!(alone.collect::<Vec<_>>(), [("r", true), ("r canaries", true)]);
    let (text, _) = four("{when_tripped: continues}", TWO);
    let said = read(&text).2;
    assert!(said[0].contains("expected stop or continue") && said[0].contains("did you mean"));
}
