use std::collections::BTreeSet;
use std::fmt::Write as _;

use hoist_deploy::compile::Options;
use hoist_deploy::select::{History, HistoryEntry, OutcomeFilter, PastOutcome, Selection};
use hoist_engine::plan::Kind;
use proptest::prelude::*;

use crate::{compiled, done, site, three_and_one};

/// Two nodes: a, then b and c, then the barrier, then d; e by itself.
const TASKS: &str = "hoist: 1
tasks:
  a: {on: '*', run: none}
  b: {on: '*', run: none, requires: [a]}
  c: {on: node:n2, run: none, needs: [{task: a, on: node:n1}], required_for: [ready]}
  d: {on: node:n1, run: none, requires: [ready]}
  e-1: {on: '*', run: none}
barriers:
  ready: {}
";

fn chosen(selection: Selection, past: &[(&str, PastOutcome)]) -> Result<String, Vec<String>> {
    let was = |state| HistoryEntry { state, fingerprint: None };
    let past: History =
        past.iter().map(|(name, state)| ((*name).to_owned(), was(*state))).collect();
    let options = Options { selection, past, ..Options::default() };
    let compiled = compiled(TASKS, &site(&[("n1", &[]), ("n2", &[])]), &options)?;
    Ok(done(&compiled).join(" "))
}

fn tasks(terms: &[&str]) -> Result<String, Vec<String>> {
    let tasks = terms.iter().map(|term| (*term).to_owned()).collect();
    chosen(Selection { tasks, ..Selection::default() }, &[])
}

#[test]
fn tasks_are_selected_by_every_form_of_name() {
    for (terms, wanted) in [
        (&["a"] as &[&str], "a@n1 a@n2"),
        (&["e*", "d"], "d@n1 e-1@n1 e-1@n2"),
        (&["/[bc]/"], "b@n1 b@n2 c@n2"),
        (&["c, d"], "c@n2 d@n1"),
        (&["/e/"], ""),
        (&["a@n2"], "a@n2"),
        (&["+c"], "a@n1 c@n2"),
        (&["c+"], "c@n2 d@n1"),
        (&["+d"], "a@n1 c@n2 d@n1"),
        (&["a..d"], "a@n1 c@n2 d@n1"),
        (&["@ready"], "c@n2"),
        (&["+@ready"], "a@n1 c@n2"),
        (&["ready+"], "d@n1"),
    ] {
        match tasks(terms) {
            Ok(found) => assert_eq!(found, wanted, "{terms:?}"),
            Err(found) => assert!(wanted.is_empty() && found[0].contains("E202"), "{found:?}"),
        }
    }
}

#[test]
fn selection_is_narrowed_by_from_to_skip_and_nodes() {
    let list = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    let from = Selection { from: list(&["c"]), ..Selection::default() };
    assert_eq!(chosen(from, &[]).expect("a plan"), "c@n2 d@n1");
    let to = Selection { to: list(&["c"]), ..Selection::default() };
    assert_eq!(chosen(to, &[]).expect("a plan"), "a@n1 c@n2");
    let skip = Selection { skip: list(&["a", "e*"]), ..Selection::default() };
    assert_eq!(chosen(skip, &[]).expect("a plan"), "b@n1 b@n2 c@n2 d@n1");
    let on = Selection { on: Some("node:n2".parse().expect("a selector")), ..Selection::default() };
    assert_eq!(chosen(on, &[]).expect("a plan"), "a@n2 b@n2 c@n2 e-1@n2");
}

#[test]
fn failed_instances_can_be_selected_by_name() {
    let past = [
        ("a@n1", PastOutcome::Good),
        ("a@n2", PastOutcome::Failed),
        ("b@n2", PastOutcome::Blocked),
        ("e-1@n1", PastOutcome::Good),
    ];
    let of = |term: &str| {
        chosen(Selection { tasks: vec![term.to_owned()], ..Selection::default() }, &past)
    };
    assert_eq!(of("failed").expect("a plan"), "a@n2");
    assert_eq!(of("blocked").expect("a plan"), "b@n2");
    let only = |only| Selection { only: Some(only), ..Selection::default() };
    assert_eq!(chosen(only(OutcomeFilter::Failed), &past).expect("a plan"), "a@n2");
    assert_eq!(chosen(only(OutcomeFilter::Blocked), &past).expect("a plan"), "b@n2");
    for (only, line) in
        [(OutcomeFilter::Failed, "nothing failed"), (OutcomeFilter::Blocked, "nothing was blocked")]
    {
        let selection = Selection { only: Some(only), ..Selection::default() };
        let found = chosen(selection, &[]).expect_err("there was no run");
        assert!(found[0].starts_with("E202 nothing is selected"), "{found:?}");
        assert!(found[0].contains(line), "{found:?}");
    }
    let wrong = "open".parse::<OutcomeFilter>().expect_err("it is no end");
    assert_eq!(wrong.code.as_str(), "E202");
}

#[test]
fn empty_selection_and_unknown_names_are_errors() {
    for (terms, line) in [
        ("aa", "E202 task `aa` not found, so nothing would be done; did you mean `a`?"),
        ("@redy", "E202 barrier `redy` not found, so nothing would be done; did you mean `ready`?"),
        ("a@n9", "E202 node `n9` not found in this run"),
        ("d@n2", "E202 nothing is selected, so nothing would be done"),
        ("failed", "E202 nothing is selected"),
        ("/(/", "E101 `/(/` cannot be used"),
    ] {
        let found = tasks(&[terms]).expect_err(terms);
        assert!(found[0].starts_with(line), "{terms}: {found:?}");
    }
    let nowhere =
        Selection { on: Some("node:n9".parse().expect("a selector")), ..Selection::default() };
    let found = chosen(nowhere, &[]).expect_err("no such node");
    assert!(found[0].starts_with("E202"), "{found:?}");
    let unknown =
        Selection { on: Some("compute".parse().expect("a selector")), ..Selection::default() };
    let found = chosen(unknown, &[]).expect_err("no such role");
    assert!(found[0].starts_with("E200 no role or group is called `compute`"), "{found:?}");
}

#[test]
fn missing_prerequisites_are_reported_unless_done() {
    let options = |past: History, term: &str| Options {
        selection: Selection { tasks: vec![term.to_owned()], ..Selection::default() },
        past,
        ..Options::default()
    };
    let nodes = site(&[("n1", &[]), ("n2", &[])]);
    let of = |past, term: &str| {
        let compiled = compiled(TASKS, &nodes, &options(past, term)).expect("it is a plan");
        let told = compiled
            .diagnostics
            .iter()
            .map(|one| one.diagnostic.message.clone())
            .collect::<Vec<_>>();
        (compiled.prerequisites.len(), told)
    };
    let (count, told) = of(History::new(), "b");
    assert_eq!(count, 2);
    assert_eq!(told, ["not selected, and not known to be done: a@n1, a@n2"]);
    let good = |name: &str| {
        (name.to_owned(), HistoryEntry { state: PastOutcome::Good, fingerprint: None })
    };
    assert_eq!(of(History::from([good("a@n1"), good("a@n2")]), "b").0, 0);
    assert_eq!(of(History::new(), "+b"), (0, Vec::new()));
}

#[test]
fn unselected_tasks_keep_their_edges() {
    let nodes = site(&[("n1", &[]), ("n2", &[])]);
    let all = compiled(TASKS, &nodes, &Options::default()).expect("it is a plan");
    let selection = Selection { tasks: vec!["d".to_owned()], ..Selection::default() };
    let options = Options { selection, ..Options::default() };
    let some = compiled(TASKS, &nodes, &options).expect("it is a plan");
    let edges = |compiled: &hoist_deploy::compile::CompiledPlan| {
        compiled.draft.vertices.iter().map(|one| one.after.clone()).collect::<Vec<_>>()
    };
    assert_eq!(edges(&all), edges(&some));
    let skipped = some.draft.vertices.iter().filter(|one| match &one.kind {
        Kind::Step(step) => step.skip.as_deref() == Some("selection"),
        Kind::Join(_) => false,
    });
    assert_eq!(skipped.count(), 7);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 64, ..ProptestConfig::default() })]

    /// On any acyclic graph, `+t` and `t+` select the reachable vertices, and `a..b` their
    /// intersection.
    #[test]
    fn selections_equal_reachability_in_the_graph(
        edges in prop::collection::btree_set((0_usize..8, 0_usize..8), 0..16),
        a in 0_usize..8,
        b in 0_usize..8,
    ) {
        let edges: BTreeSet<(usize, usize)> = edges.into_iter().filter(|(x, y)| x < y).collect();
        let mut text = "hoist: 1\ntasks:\n".to_owned();
        for task in 0..8 {
            let requires: Vec<String> =
                edges.iter().filter(|(_, to)| *to == task).map(|(from, _)| format!("t{from}")).collect();
            let requires = requires.join(", ");
            writeln!(text, "  t{task}: {{on: '*', run: none, requires: [{requires}]}}")?;
        }
        let nodes = site(&[("n", &[])]);
        let of = |term: String| -> BTreeSet<String> {
            let selection = Selection { tasks: vec![term], ..Selection::default() };
            let options = Options { selection, ..Options::default() };
            compiled(&text, &nodes, &options).map(|one| done(&one)).unwrap_or_default().into_iter().collect()
        };
        let reach = |start: usize, forward: bool| {
            let mut reached = BTreeSet::from([start]);
            for _ in 0..8 {
                for (from, to) in &edges {
                    let (from, to) = if forward { (from, to) } else { (to, from) };
                    if reached.contains(from) {
                        reached.insert(*to);
                    }
                }
            }
            reached.into_iter().map(|task| format!("t{task}@n")).collect::<BTreeSet<_>>()
        };
        let after = reach(a, true);
        let before = reach(b, false);
        prop_assert_eq!(of(format!("t{a}+")), after.clone());
        prop_assert_eq!(of(format!("+t{b}")), before.clone());
        let between: BTreeSet<String> = after.intersection(&before).cloned().collect();
        prop_assert_eq!(of(format!("t{a}..t{b}")), between);
    }
}

#[test]
fn prerequisites_include_those_behind_a_barrier() {
    let text = "hoist: 1\ntasks:\n  a: {on: '*', run: none, required_for: [ready]}\n  b: {on: '*', run: \
                none, requires: [later]}\nbarriers:\n  ready: {}\n  later: {requires: [ready]}\n";
    let nodes = site(&[("n1", &[])]);
    let of = |term: &str| {
        let selection = Selection { tasks: vec![term.to_owned()], ..Selection::default() };
        let options = Options { selection, ..Options::default() };
        let compiled = compiled(text, &nodes, &options).expect("it is a plan");
        let missing = compiled.prerequisites.iter().map(|id| compiled.vertex(*id).name.clone());
        (done(&compiled), missing.collect::<Vec<_>>())
    };
    assert_eq!(of("b"), (vec!["b@n1".to_owned()], vec!["a@n1".to_owned()]));
    assert_eq!(of("@later"), (vec!["a@n1".to_owned()], Vec::new()));
}

#[test]
fn prerequisites_of_a_quorum_need_only_some() {
    let text = "hoist: 1\ntasks:\n  db: {on: '*', run: none}\n  api: {on: 'node:n1', run: none, needs: \
                [{task: db, on: '*', want: any}]}\n";
    let nodes = site(&[("n1", &[]), ("n2", &[])]);
    let missing = |good: &[&str]| {
        let was = |_: &&str| HistoryEntry { state: PastOutcome::Good, fingerprint: None };
        let past = good.iter().map(|name| ((*name).to_owned(), was(name))).collect();
        let selection = Selection { tasks: vec!["api".to_owned()], ..Selection::default() };
        let options = Options { selection, past, ..Options::default() };
        compiled(text, &nodes, &options).expect("it is a plan").prerequisites.len()
    };
    assert_eq!(missing(&[]), 2);
    assert_eq!(missing(&["db@n2"]), 0);
}

#[test]
fn empty_range_says_why() {
    let text = "hoist: 1\ntasks:\n  a: {on: '*', run: none}\n  b: {on: '*', run: none, requires: [a]}\n  \
                c: {on: '*', run: none}\n  d: {on: 'node:gone', run: none}\n";
    let why = |selection: Selection| {
        let options = Options { selection, ..Options::default() };
        compiled(text, &three_and_one(), &options).expect_err("nothing is selected")[0].clone()
    };
    let range = |from: &str, to: &str| Selection {
        from: vec![from.to_owned()],
        to: vec![to.to_owned()],
        ..Selection::default()
    };
    for (from, to, reason) in [
        ("b", "a", "`b` comes after `a`; exchange them"),
        ("a", "c", "`c` does not follow `a`"),
        ("a", "d", "`d` is on no node of this run"),
    ] {
        let told = why(range(from, to));
        assert!(told.starts_with("E202 nothing is selected") && told.contains(reason), "{told}");
        let between = Selection { tasks: vec![format!("{from}..{to}")], ..Selection::default() };
        assert!(why(between).contains(reason), "{from}..{to}");
    }
    let elsewhere = Selection { skip: vec!["*".to_owned()], ..range("a", "b") };
    assert!(!why(elsewhere).contains("follow"), "the range is not the reason");
}
